/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_p2p.c - shift, send and recv of tensors: every length on every number of ranks, views that
 * are not contiguous, gradients, and what is said when the two sides differ. */
#include "harness/test.h"
#include "tessera/tessera.h"

/* Rows of an iota [rows, 3] that the rank at `coord` of `size` holds under S(0). */
static void check_rows(test *t, ts_tensor *x, int64_t rows, int64_t coord, int64_t size)
{
    int64_t chunk = (rows + size - 1) / size, begin = coord * chunk, end = begin + chunk;
    if (begin > rows) begin = rows;
    if (end > rows) end = rows;
    ts_array view = TS_INIT(ts_array);
    TEST_OK(t, test_view(ts_clone(ts_tensor_local(x)), &view));
    TEST_EQ(t, view.meta.shape.extent[0], end - begin);
    const float *data = view.data;
    for (int64_t i = 0; data && i < (end - begin) * 3; i++)
        TEST_SAY(t, data[i] == (float)(begin * 3 + i), "rows %lld, coordinate %lld: %g at %lld",
                 (long long)rows, (long long)coord, (double)data[i], (long long)i);
}

static ts_tensor *iota(ts_mesh *mesh, int64_t rows, const char *placements)
{
    return ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(rows, 3), placements, NULL);
}

TS_TEST_RANKS(shift_every_length, 1, 2, 3, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "cp=*");
    int64_t at = ts_mesh_coord(mesh, "cp");
    for (int64_t rows = 0; rows <= 9; rows++)
        for (int64_t hops = -4; hops <= 5; hops++) {
            ts_scope scope = ts_scope_open(t->me, "case");
            ts_tensor *x = iota(mesh, rows, "S(0)"), *y = ts_shift(x, "cp", hops);
            int64_t from = ((at - hops) % t->count + t->count) % t->count;
            check_rows(t, y, rows, from, t->count);
            int equal = 0; /* the tensor has not changed */
            TEST_OK(t, ts_equal(x, ts_redistribute_to(y, ts_layout_sharding(ts_tensor_layout(x))),
                                &equal));
            TEST_EQ(t, equal, 1);
            ts_tensor *back = ts_shift(y, "cp", -hops);
            TEST_CHECK(t, ts_tensor_layout(back) == ts_tensor_layout(x));
            check_rows(t, back, rows, at, t->count);
            ts_scope_close(scope);
        }
    TEST_OK(t, ts_rank_status(t->me));
}

/* A ring: each rank sees every block once, and the last step leads home. */
TS_TEST_RANKS(shift_all_round, 2, 3, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, t->count == 4 ? "dp=2, cp=2" : "dp=1, cp=*");
    int64_t size = ts_mesh_size(mesh, "cp"), at = ts_mesh_coord(mesh, "cp");
    const int64_t rows = 7;
    ts_tensor *first = iota(mesh, rows, "cp:S(0)"), *x = first;
    ts_scope scope = ts_scope_open(t->me, "ring");
    for (int64_t i = 0; i < size; i++) {
        check_rows(t, x, rows, (at - i + size) % size, size);
        x = ts_scope_turn(scope, ts_shift(x, "cp", 1));
    }
    TEST_CHECK(t, ts_tensor_layout(x) == ts_tensor_layout(first));
    ts_scope_close(scope);
    TEST_OK(t, ts_rank_status(t->me));
}

TS_TEST_RANKS(shift_views_copies_and_terms, 1, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "cp=*");
    ts_tensor *x = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(4, 5), "S(1)", NULL);
    ts_tensor *turned = ts_shift(ts_transpose(x, 0, 1), "cp", 1); /* a view: rows are 5 apart */
    int equal = 0;
    const ts_sharding *home = ts_sharding_get(mesh, "S(1)");
    ts_tensor *again = ts_redistribute_to(ts_transpose(turned, 0, 1), home);
    TEST_OK(t, ts_equal(again, x, &equal));
    TEST_EQ(t, equal, 1);
    ts_tensor *copies = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(4), "R", NULL);
    double sum = 0, shifted = 0;
    ts_tensor_item(ts_sum(ts_shift(copies, "cp", 2), NULL, 0, 0), &sum);
    TEST_CHECK(t, sum == 6.0);
    ts_tensor *terms = ts_sum(x, NULL, 0, 0); /* partial: the terms go round, the sum stays */
    ts_tensor_item(ts_shift(terms, "cp", 1), &shifted);
    TEST_CHECK(t, shifted == 190.0);
    TEST_OK(t, ts_rank_status(t->me));
}

/* d/dx of sum(w * shift(x)) is w on its way back. */
TS_TEST_RANKS(shift_gradient, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "cp=*");
    for (int64_t rows = 1; rows <= 7; rows += 2) {
        ts_scope scope = ts_scope_open(t->me, "case");
        ts_tape_begin(t->me);
        ts_tensor *x = ts_watch(iota(mesh, rows, "S(0)")), *w = iota(mesh, rows, "S(0)");
        ts_tensor *y = ts_shift(ts_square(x), "cp", 1);
        ts_backward(ts_sum(ts_mul(y, ts_shift(w, "cp", 1)), NULL, 0, 0), NULL);
        int equal = 0; /* 2 x w, with w = x */
        TEST_OK(t, ts_equal(ts_tensor_grad(x), ts_scale(ts_square(w), 2.0), &equal));
        TEST_EQ(t, equal, 1);
        ts_scope_close(scope);
    }
    TEST_OK(t, ts_rank_status(t->me));
}

TS_TEST_RANKS(shift_refusals, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "cp=*");
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.catches = 1;
    options.agree = mesh;
    ts_scope scope = ts_scope_open_with(t->me, &options);
    TEST_CHECK(t, ts_shift(iota(mesh, 4, "S(0)"), "tp", 1) == NULL);
    TEST_STATUS(t, ts_scope_close(scope), TS_ERR_MESH);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "the mesh cp=2 has no axis \"tp\"");
}

/* ---- send and receive ------------------------------------------------------------------------ */

/* A pipeline: everyone sends forward on channel 0 and backward on channel 1, several in flight, in
 * an order that differs between the channels. */
TS_TEST_RANKS(send_and_receive, 2, 3, 4)
{
    enum { MESSAGES = 5 };
    ts_mesh *mesh = ts_mesh_create(t->me, "pp=*"), *self = ts_mesh_self(t->me);
    const ts_sharding *whole = ts_sharding_get(self, "R");
    ts_peer after = { mesh, "pp", 1, 0 }, after_back = { mesh, "pp", 1, 1 };
    ts_peer before = { mesh, "pp", -1, 0 }, before_back = { mesh, "pp", -1, 1 };
    for (int64_t i = 0; i < MESSAGES && t->index + 1 < t->count; i++) {
        ts_scope scope = ts_scope_open(t->me, "send"); /* closed while the sends are on their way */
        ts_tensor *x =
            ts_full((double)(10 * t->index + i), self, TS_DTYPE_F32, TS_SHAPE(i, 4), "R");
        TEST_OK(t, ts_send(ts_transpose(x, 0, 1), &after));
        TEST_OK(t, ts_send(ts_full(-(double)i, self, TS_DTYPE_I64, TS_SHAPE(2), "R"), &after_back));
        ts_scope_close(scope);
    }
    for (int64_t i = 0; i < MESSAGES && t->index > 0; i++) { /* all of channel 1 first */
        ts_meta meta = { .shape = TS_SHAPE(2), .dtype = TS_DTYPE_I64 };
        double sum = 0;
        ts_tensor_item(ts_sum(ts_recv(&meta, whole, &before_back), NULL, 0, 0), &sum);
        TEST_CHECK(t, sum == -2.0 * (double)i);
    }
    for (int64_t i = 0; i < MESSAGES && t->index > 0; i++) {
        ts_meta meta = { .shape = TS_SHAPE(4, i), .dtype = TS_DTYPE_F32 };
        double sum = -1;
        ts_tensor_item(ts_sum(ts_recv(&meta, whole, &before), NULL, 0, 0), &sum);
        TEST_CHECK(t, sum == (double)(4 * i * (10 * (t->index - 1) + i)));
    }
    TEST_OK(t, ts_rank_status(t->me));
}

TS_TEST_RANKS(receive_of_another_shape, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "pp=*"), *self = ts_mesh_self(t->me);
    ts_peer other = { mesh, "pp", t->index == 0 ? 1 : -1, 0 };
    ts_meta meta = { .shape = TS_SHAPE(2, 4), .dtype = TS_DTYPE_F32 };
    if (t->index == 0) ts_send(ts_zeros(self, TS_DTYPE_F32, TS_SHAPE(2, 3), "R"), &other);
    ts_tensor_wait(ts_recv(&meta, ts_sharding_get(self, "R"), &other)); /* rank 0: never comes */
    TEST_STATUS(t, ts_rank_status(t->me), TS_ERR_PEER);
    const char *text = ts_rank_error(t->me)->text;
    TEST_SAYS(t, text, "rank 0");
    TEST_SAYS(t, text, "rank 1");
    if (t->index == 1) TEST_SAYS(t, text, "f32[2 x 3]");
    if (t->index == 1) TEST_SAYS(t, text, "f32[2 x 4]");
    TEST_OK(t, ts_rank_recover(t->me));
}

TS_TEST_RANKS(peer_refusals, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "pp=*"), *self = ts_mesh_self(t->me);
    static const struct {
        const char *axis;
        int64_t offset, channel;
        const char *words;
    } rows[] = { { "tp", 1, 0, "has no axis \"tp\"" },
                 { "pp", 5, 0, "has no neighbour at +5" },
                 { "pp", 0, 0, "has no neighbour at +0" },
                 { "pp", 1, 2, "channel 2, 0 to 1 are possible" } };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ts_scope_options options = TS_INIT(ts_scope_options);
        options.catches = 1;
        ts_scope scope = ts_scope_open_with(t->me, &options);
        ts_peer peer = { mesh, rows[i].axis, rows[i].offset, rows[i].channel };
        TEST_CHECK(t, ts_send(ts_zeros(self, TS_DTYPE_F32, TS_SHAPE(1), "R"), &peer) != TS_OK);
        TEST_CHECK(t, ts_scope_close(scope) != TS_OK);
        TEST_SAYS(t, ts_rank_error(t->me)->text, rows[i].words);
    }
    TEST_OK(t, ts_rank_status(t->me));
}
