/* SPDX-License-Identifier: Apache-2.0 */
/* Loads in which the n-th allocation fails, for every n, while ranks read for each other: all ranks
 * end, with a sentence or with the right numbers, and nothing is left behind. */
#include <stdlib.h>
#include <unistd.h>

#include "base/alloc.h"
#include "device/device.h"
#include "harness/test.h"
#include "tessera/tessera.h"

enum { RANKS = 3, ROWS = 301, COLUMNS = 300, FAILS_MAX = 5000 };

typedef struct trial {
    const char *path;
    const char *placements; /* NULL: saves */
    int64_t fail_at, tried;
    _Atomic int32_t wrong;
} trial;

static ts_tensor *numbers(ts_mesh *mesh, const char *placements)
{
    ts_arange_options options;
    ts_arange_options_init(&options);
    return ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(ROWS, COLUMNS), placements, &options);
}

static ts_status load(ts_rank *me, ts_mesh *mesh, ts_state *state, ts_tensor *w, trial *l)
{
    ts_tensor *want = numbers(mesh, l->placements);
    ts_status status = ts_group_barrier(ts_group_world(me), NULL);
    if (status == TS_OK && ts_rank_index(me) == 0) (void)tsi_alloc_fail_at(l->fail_at);
    if (status == TS_OK) status = ts_group_barrier(ts_group_world(me), NULL);
    if (status == TS_OK) status = ts_checkpoint_load(state, l->path, NULL);
    ts_array x = TS_INIT(ts_array), y = x;
    if (status == TS_OK) status = ts_tensor_view(w, &x);
    if (status == TS_OK) status = ts_tensor_view(want, &y);
    if (status == TS_OK && tsi_rank_device_of(me)->device->host_readable)
        l->wrong |=
            memcmp(x.data, y.data, (size_t)ts_shape_count(&x.meta.shape) * sizeof(float)) != 0;
    return status;
}

static ts_status work(ts_rank *me, void *argument)
{
    trial *l = argument;
    ts_scope scope = ts_scope_open(me, NULL);
    ts_mesh *mesh = ts_mesh_create(me, "x=3");
    ts_state *state = ts_state_create(mesh);
    ts_tensor *w = l->placements
                       ? ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(ROWS, COLUMNS), l->placements)
                       : numbers(mesh, "S(0)");
    (void)ts_state_add_tensor(state, "w", w);
    ts_status status = ts_rank_status(me);
    if (status == TS_OK)
        status =
            l->placements ? load(me, mesh, state, w, l) : ts_checkpoint_save(state, l->path, NULL);
    ts_state_destroy(state);
    ts_mesh_release(mesh);
    ts_scope_close(scope);
    return status;
}

static ts_status run(trial *l, char *error, size_t size)
{
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "threads";
    options.rank_count = RANKS;
    options.timeout_ms = 20000;
    ts_status status = ts_launch_with(&options, work, l, error, size);
    l->tried = tsi_alloc_fail_at(0);
    return status;
}

static void fail_each(test *t, const char *path, const char *placements)
{
    char error[1024];
    int64_t failed = 0, live = tsi_alloc_live();
    trial l = { .path = path, .placements = placements };
    for (l.fail_at = 1; l.fail_at < FAILS_MAX && !test_failed(t); l.fail_at++) {
        ts_status status = run(&l, error, sizeof error);
        TEST_SAY(t, !l.wrong, "%s, allocation %lld: other numbers", placements,
                 (long long)l.fail_at);
        TEST_SAY(t, status == TS_OK || *error, "allocation %lld: no sentence",
                 (long long)l.fail_at);
        TEST_SAY(t, tsi_alloc_live() == live, "%s, allocation %lld: %lld are left", placements,
                 (long long)l.fail_at, (long long)(tsi_alloc_live() - live));
        failed += status != TS_OK;
        if (l.tried < l.fail_at) break;
    }
    TEST_SAY(t, failed > 0 && l.fail_at < FAILS_MAX, "%lld failed", (long long)failed);
}

TS_TEST_LONG(every_allocation_of_a_load, 600)
{
    char path[512], command[600], error[1024];
    snprintf(path, sizeof path, "%s/load-%lld", TS_BINARY_DIR, (long long)getpid());
    trial save = { .path = path };
    TEST_SAY(t, run(&save, error, sizeof error) == TS_OK, "%s", error);
    trial first = { .path = path, .placements = "S(1)" };
    TEST_SAY(t, run(&first, error, sizeof error) == TS_OK, "%s", error); /* what is made once */
    fail_each(t, path, "S(1)");
    fail_each(t, path, "R");
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    TEST_EQ(t, system(command), 0);
}
