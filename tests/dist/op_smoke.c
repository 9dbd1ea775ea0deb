/* SPDX-License-Identifier: Apache-2.0 */
/* op_smoke.c - one operator through the whole machinery: rules, moves, kernel, policy. */
#include "harness/test.h"
#include "tessera/op.h"

static void expect_sum(test *t, ts_tensor *y, const char *what)
{
    ts_array view = TS_INIT(ts_array);
    ts_tensor *full = ts_tensor_full(y);
    TEST_STATUS(t, test_view(full, &view), TS_OK);
    for (int64_t i = 0; view.data && i < 35; i++)
        TEST_SAY(t, ((const float *)view.data)[i] == (float)(2 * i), "%s: element %lld is %g", what,
                 (long long)i, (double)((const float *)view.data)[i]);
}

TS_TEST_RANKS(add_takes_any_placement, 1, 2, 3, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    const char *place[] = { "R", "S(0)", "S(1)", "SS(0,2)", "HT(1)" };
    for (int a = 0; a < 5; a++) {
        for (int b = 0; b < 5; b++) {
            ts_scope s = ts_scope_open(t->me, "pair");
            ts_tensor *x = ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(7, 5), place[a], NULL);
            ts_tensor *y = ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(7, 5), place[b], NULL);
            char what[64];
            snprintf(what, sizeof what, "%s + %s", place[a], place[b]);
            expect_sum(t, ts_add(x, y), what);
            ts_scope_close(s);
        }
    }
}

TS_TEST_RANKS(forbidden_moves_are_refused, 2, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.catches = 1;
    options.implicit_moves = TS_MOVES_FORBID;
    ts_scope s = ts_scope_open_with(t->me, &options);
    ts_tensor *x = ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(8, 4), "S(0)", NULL);
    ts_tensor *y = ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(8, 4), "S(1)", NULL);
    TEST_CHECK(t, ts_add(x, x) != NULL);
    TEST_CHECK(t, ts_add(x, y) == NULL);
    TEST_STATUS(t, ts_scope_close(s), TS_ERR_POLICY);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "ts_redistribute(x, \"S(0)\")");
}
