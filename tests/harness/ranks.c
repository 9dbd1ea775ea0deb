/* SPDX-License-Identifier: Apache-2.0 */
/* ranks.c - runs a rank test through ts_launch_with, on threads or over MPI.
 *
 * The one object of the harness that needs the runtime; only TS_TEST_RANKS refers to it. */
#include <stdlib.h>

#include "harness/harness.h"

typedef struct rank_run {
    const test_case *body;
    const test *shared;
} rank_run;

static ts_status work(ts_rank *me, void *argument)
{
    const rank_run *run = argument;
    test mine = *run->shared; /* each rank draws from the same state */
    mine.me = me;
    mine.index = ts_rank_index(me);
    mine.count = ts_rank_count(me);
    run->body->fn(&mine);
    /* A test that failed its rank on purpose recovers it, or says so by leaving it failed: then the
     * launch reports the sentence. */
    return ts_rank_status(me);
}

void test_run_ranks(const test_case *body, test *t, int64_t count)
{
    rank_run run = { .body = body, .shared = t };
    char error[2048] = "";
    ts_world_options options = TS_INIT(ts_world_options);
    const char *asked = getenv("TESSERA_ENGINE"); /* over the same ranks: nccl */
    options.engine = asked && *asked ? asked : t->engine;
    options.rank_count = count;
    options.seed = t->seed;
    ts_status status = ts_launch_with(&options, work, &run, error, sizeof error);
    if (status != TS_OK)
        test_fail(t, body->name, (int)count, "launch on %lld ranks: %s: %s", (long long)count,
                  ts_status_name(status), error);
}
