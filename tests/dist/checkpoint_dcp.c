/* SPDX-License-Identifier: Apache-2.0 */
/* Distributed checkpoints of PyTorch, loaded by ranks: any placements, and the numbers that one
 * reader finds. */
#include "harness/test.h"
#include "tessera/checkpoint.h"
#include "tessera/tensor.h"

enum { ELEMENTS_MAX = 64 };

static const struct {
    const char *name;
    ts_dtype dtype;
    ts_shape shape;
    const char *placements;
} cases[] = {
    { "rows", TS_DTYPE_F32, { .ndim = 2, .extent = { 7, 3 } }, "S(0)" },
    { "rows", TS_DTYPE_F64, { .ndim = 2, .extent = { 7, 3 } }, "S(1)" },
    { "columns", TS_DTYPE_F32, { .ndim = 2, .extent = { 3, 10 } }, "S(0)" },
    { "both", TS_DTYPE_F32, { .ndim = 3, .extent = { 5, 6, 2 } }, "S(2)" },
    { "both", TS_DTYPE_F32, { .ndim = 3, .extent = { 5, 6, 2 } }, "SS(1,2)" },
    { "few", TS_DTYPE_F32, { .ndim = 2, .extent = { 2, 3 } }, "R" },
    { "half", TS_DTYPE_BF16, { .ndim = 2, .extent = { 6, 2 } }, "S(0)" },
    { "transposed", TS_DTYPE_F32, { .ndim = 2, .extent = { 3, 2 } }, "S(1)" },
    { "eighths", TS_DTYPE_F32, { .ndim = 1, .extent = { 3 } }, "S(0)" },
    { "scalar", TS_DTYPE_I64, { .ndim = 0 }, "R" },
    { "empty", TS_DTYPE_F32, { .ndim = 2, .extent = { 0, 3 } }, "S(1)" },
};

/* The tensor as f64, whole, against what the archive says of it without ranks. */
static void check_numbers(test *t, ts_archive *archive, const char *name, ts_tensor *tensor)
{
    double want[ELEMENTS_MAX] = { 0 }, have[ELEMENTS_MAX] = { 0 };
    ts_tensor *whole = ts_redistribute(ts_cast(tensor, TS_DTYPE_F64), "R");
    ts_array to = TS_INIT(ts_array);
    to.data = have;
    to.meta = (ts_meta){ .shape = ts_tensor_shape(whole), .dtype = TS_DTYPE_F64 };
    int64_t count = ts_shape_count(&to.meta.shape);
    TEST_OK(t, ts_tensor_read(whole, &to));
    TEST_OK(t,
            ts_archive_read(archive, ts_archive_find(archive, name), 0, count, TS_DTYPE_F64, want));
    TEST_SAY(t, memcmp(have, want, sizeof want) == 0, "%s", name);
}

TS_TEST_RANKS(checkpoints_of_pytorch_on_any_mesh, 1, 2, 3, 5)
{
    char axes[32];
    const char *path = TS_SOURCE_DIR "/tests/golden/dcp/sharded";
    ts_archive *archive = NULL;
    ts_scope scope = ts_scope_open(t->me, NULL);
    snprintf(axes, sizeof axes, "x=%lld", (long long)t->count);
    ts_mesh *mesh = ts_mesh_create(t->me, axes);
    TEST_OK(t, ts_archive_open(path, &archive));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] && !test_failed(t); i++) {
        ts_state *state = ts_state_create(mesh);
        ts_load_options options = TS_INIT(ts_load_options);
        ts_tensor *x = ts_zeros(mesh, cases[i].dtype, cases[i].shape, cases[i].placements);
        options.names = cases[i].name;
        TEST_OK(t, ts_state_add_tensor(state, cases[i].name, x));
        TEST_OK(t, ts_checkpoint_load(state, path, &options));
        check_numbers(t, archive, cases[i].name, x);
        ts_state_destroy(state);
    }
    ts_archive_close(archive);
    ts_mesh_release(mesh);
    ts_scope_close(scope);
}
