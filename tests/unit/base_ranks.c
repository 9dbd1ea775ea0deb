/* SPDX-License-Identifier: Apache-2.0 */
/* base_ranks.c - rank tests of the harness: each rank sees itself, and a failure on any is seen.
 *
 * The specimens fail only when the environment arms them; the program then runs itself. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/test.h"

static bool armed(void)
{
    return getenv("TESSERA_SPECIMEN") != NULL;
}

static _Atomic uint64_t drawn[8];
static _Atomic int64_t arrived;

TS_TEST_RANKS(ranks_know_themselves, 1, 2, 3, 8)
{
    TEST_CHECK(t, t->me != NULL && t->me == ts_rank_current());
    TEST_CHECK(t, t->index >= 0 && t->index < t->count);
    TEST_EQ(t, t->index, ts_rank_index(t->me));
    TEST_EQ(t, t->count, ts_rank_count(t->me));
    TEST_OK(t, ts_rank_status(t->me));
    /* All ranks draw the same numbers; the last to arrive compares those of this process. */
    atomic_store(&drawn[t->index], test_random(t));
    if (atomic_fetch_add(&arrived, 1) + 1 < ts_world_local_count(ts_rank_world(t->me))) return;
    for (int64_t i = 0; i < t->count; i++)
        if (drawn[i] != 0) TEST_CHECK(t, drawn[i] == drawn[t->index]);
}

TS_TEST_RANKS(specimen_one_fails, 3)
{
    TEST_CHECK(t, !armed() || t->index != 1);
}

TS_TEST_RANKS(specimen_error_remains, 2)
{
    if (armed()) (void)ts_rank_fail(t->me, TS_ERR_IO, "step 3: no such file");
}

static int run_self(test *t, const char *arguments, char *said, size_t size)
{
    char self[1024] = "", command[2048];
    TEST_CHECK(t, readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    (void)snprintf(command, sizeof command, "TESSERA_SPECIMEN=1 %s %s 2>&1", self, arguments);
    FILE *pipe = popen(command, "r");
    size_t got = pipe != NULL ? fread(said, 1, size - 1, pipe) : 0;
    said[got] = '\0';
    int status = pipe != NULL ? pclose(pipe) : -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TS_TEST(harness_sees_failures_of_ranks)
{
    char said[8192];
    TEST_EQ(t, run_self(t, "specimen_one_fails", said, sizeof said), 1);
    TEST_SAYS(t, said, "[1 of 3] !armed()");
    TEST_SAYS(t, said, "FAIL specimen_one_fails/3");
    TEST_EQ(t, run_self(t, "specimen_error", said, sizeof said), 1);
    TEST_SAYS(t, said, "TS_ERR_IO");
    TEST_SAYS(t, said, "step 3: no such file");
    TEST_EQ(t, run_self(t, "--list know_themselves/", said, sizeof said), 0);
    TEST_TEXT(t, said,
              "ranks_know_themselves/1\nranks_know_themselves/2\nranks_know_themselves/3\n"
              "ranks_know_themselves/8\n");
}
