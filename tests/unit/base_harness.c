/* SPDX-License-Identifier: Apache-2.0 */
/* base_harness.c - the harness itself: a test that fails, hangs, dies or leaks must be seen.
 *
 * The program runs itself with the specimens switched on by the environment; otherwise they pass.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "harness/test.h"

static bool armed(void)
{
    return getenv("TESSERA_SPECIMEN") != NULL;
}

TS_TEST(specimen_fail)
{
    TEST_CHECK(t, !armed());
    TEST_EQ(t, armed() ? 3 : 4, 4);
    TEST_TEXT(t, armed() ? NULL : "a", "a");
}

TS_TEST(specimen_hang)
{
    while (armed())
        (void)usleep(1000);
}

TS_TEST(specimen_die)
{
    if (armed()) abort();
}

TS_TEST(specimen_leak)
{
    char *lost = tsi_strdup("lost");
    if (!armed()) tsi_free(lost);
}

/* A grandchild that outlives its test would keep the pipe of run_self open, and that would hang. */
TS_TEST(specimen_orphan)
{
    if (armed() && fork() == 0)
        for (;;)
            (void)pause();
}

TS_TEST(specimen_seed)
{
    if (armed()) printf("drew %llu\n", (unsigned long long)test_random(t));
}

static int run_self(test *t, const char *arguments, char *said, size_t size)
{
    char self[1024] = "", command[2048];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    TEST_CHECK(t, length > 0);
    (void)snprintf(command, sizeof command,
                   "env -u OMPI_COMM_WORLD_SIZE -u PMI_SIZE ASAN_OPTIONS=detect_leaks=0 "
                   "TESSERA_SPECIMEN=1 %s %s 2>&1",
                   self, arguments);
    FILE *pipe = popen(command, "r");
    size_t got = pipe != NULL ? fread(said, 1, size - 1, pipe) : 0;
    said[got] = '\0';
    int status = pipe != NULL ? pclose(pipe) : -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TS_TEST(harness_sees_failures)
{
    static const struct {
        const char *arguments;
        int code;
        const char *says[3];
    } row[] = {
        { "--seed 77 specimen_fail",
          1,
          { "!armed()", "is 3, expected 4", "--seed 77 specimen_fail" } },
        { "--timeout 0.1 specimen_hang",
          1,
          { "no end after", "FAIL specimen_hang", "0 passed, 1 failed" } },
        { "specimen_die", 1, { "ended by signal 6", "FAIL", "0 passed, 1 failed" } },
        { "specimen_leak", 1, { "1 allocations were not freed", "FAIL", "seed 1" } },
        { "--no-fork specimen_leak", 1, { "1 allocations were not freed", "FAIL", "1 failed" } },
        { "specimen_orphan", 0, { "ok   specimen_orphan", "1 passed, 0 failed", "" } },
        { "specimen_le specimen_see",
          1,
          { "FAIL specimen_leak", "ok   specimen_seed", "1 passed, 1 failed" } },
        { "--list specimen_h", 0, { "specimen_hang\n", "", "" } },
        { "no_such_test", 0, { "0 passed, 0 failed", "", "" } },
        { "--sead 4", 2, { "unknown option or missing value: --sead", "", "" } },
        { "--seed", 2, { "missing value: --seed", "", "" } },
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char said[8192];
        int code = run_self(t, row[i].arguments, said, sizeof said);
        TEST_SAY(t, code == row[i].code, "\"%s\" exits with %d:\n%s", row[i].arguments, code, said);
        for (int k = 0; k < 3; k++)
            TEST_SAYS(t, said, row[i].says[k]);
    }
}

TS_TEST(harness_repeats_with_the_seed)
{
    char first[4096], again[4096], other[4096];
    (void)run_self(t, "--seed 5 specimen_seed", first, sizeof first);
    (void)run_self(t, "--seed 5 specimen_seed", again, sizeof again);
    (void)run_self(t, "--seed 6 specimen_seed", other, sizeof other);
    first[strcspn(first, "\n")] = again[strcspn(again, "\n")] = other[strcspn(other, "\n")] = '\0';
    TEST_SAYS(t, first, "drew ");
    TEST_TEXT(t, again, first);
    TEST_CHECK(t, strcmp(first, other) != 0);
}

TS_TEST(harness_reads_files_of_the_source_tree)
{
    size_t length = 0;
    char *text = test_read_file(t, "tests/unit/base_harness.c", &length);
    TEST_CHECK(t, text != NULL && strlen(text) == length);
    TEST_SAYS(t, text, "harness_reads_files_of_the_source_tree");
    tsi_free(text);
}
