/* SPDX-License-Identifier: Apache-2.0 */
/* model_faults.c - a model declared, read and planned while the n-th allocation fails, for every n:
 * it ends with TS_ERR_MEMORY or as if nothing had been, and leaves nothing behind. */
#include "base/alloc.h"
#include "harness/test.h"
#include "tessera/train.h"

typedef struct life {
    const char *directory;
    int64_t fail_at, tried; /* allocations; 0: nothing fails */
    bool began;
} life;

static ts_status work(ts_rank *me, void *argument)
{
    life *l = argument;
    ts_mesh *mesh = ts_mesh_create(me, "dp=1");
    ts_scope scope = ts_scope_open(me, "life");
    l->began = mesh != NULL;
    ts_model *model = ts_model_open(mesh, l->directory, NULL);
    if (l->began && l->fail_at > 0) (void)tsi_alloc_fail_at(l->fail_at);
    ts_model *other = ts_model_declare(mesh, ts_model_configuration(model), NULL);
    ts_train_shape shape = { .struct_size = sizeof shape, .rows = 1, .context = 4 };
    ts_train_cost cost;
    if (model) (void)ts_train_estimate(model, &shape, &cost);
    (void)ts_model_materialize(model);
    ts_model_destroy(other);
    ts_model_destroy(model);
    l->tried = tsi_alloc_fail_at(0);
    ts_scope_close(scope);
    return ts_rank_status(me);
}

static ts_status run(life *l, char *error, size_t size)
{
    ts_world_options options = {
        .struct_size = sizeof options, .engine = "threads", .rank_count = 1, .seed = 9
    };
    return ts_launch_with(&options, work, l, error, size);
}

static void fail_each(test *t, const char *directory)
{
    char error[512] = "";
    life good = { .directory = directory };
    TEST_OK(t, run(&good, error, sizeof error));
    int64_t n = 1, step = 1;
    for (bool reached = true; reached && n < 100000; n += step) {
        life l = { .directory = directory, .fail_at = n };
        int64_t live = tsi_alloc_live();
        ts_status status = run(&l, error, sizeof error);
        reached = l.tried >= n;
        TEST_SAY(t, status == TS_OK || status == TS_ERR_MEMORY, "allocation %lld: %s", (long long)n,
                 error);
        TEST_SAY(t, tsi_alloc_live() == live, "allocation %lld leaves %lld behind", (long long)n,
                 (long long)(tsi_alloc_live() - live));
        if (n > 200) step = 7; /* the rest is more of the same layers */
    }
    TEST_CHECK(t, n > 200);
    TEST_OK(t, run(&good, error, sizeof error));
}

TS_TEST(every_allocation_of_a_model_may_fail)
{
    fail_each(t, TS_SOURCE_DIR "/tests/golden/models/llama_bias");
    fail_each(t, TS_SOURCE_DIR "/tests/golden/models/gpt2_plain");
}
