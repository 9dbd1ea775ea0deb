/* SPDX-License-Identifier: Apache-2.0 */
/* op_matrix.c - matrix products on every placement against one rank, and their gradients. */
#include <math.h>

#include "harness/test.h"
#include "op/matrix/linear_list.h"
#include "tessera/autograd.h"
#include "tessera/op.h"

static ts_tensor *filled(ts_mesh *mesh, ts_shape shape, const char *place, double start)
{
    ts_arange_options range = TS_INIT(ts_arange_options);
    range.start = start;
    range.step = 0.25;
    return ts_arange(mesh, TS_DTYPE_F64, shape, place, &range);
}

static void same(test *t, ts_tensor *have, ts_tensor *want, const char *what)
{
    ts_array a = TS_INIT(ts_array), b = TS_INIT(ts_array);
    TEST_SAY(t, have && test_view(ts_tensor_full(have), &a) == TS_OK, "%s: %s", what,
             ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "failed");
    TEST_OK(t, test_view(want, &b));
    int64_t n = ts_shape_count(&b.meta.shape);
    TEST_EQ(t, ts_shape_count(&a.meta.shape), n);
    for (int64_t i = 0; a.data && i < n; i++) {
        double x = ((const double *)a.data)[i], y = ((const double *)b.data)[i];
        TEST_SAY(t, fabs(x - y) <= 1e-9 * (1 + fabs(y)), "%s: element %lld is %g, not %g", what,
                 (long long)i, x, y);
    }
}

static const char *place2[] = { "R", "S(0)", "S(1)", "SS(0,2)" };

TS_TEST_RANKS(matmul_takes_any_placement, 1, 2, 3, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*"), *self = ts_mesh_self(t->me);
    ts_tensor *want =
        ts_matmul(filled(self, TS_SHAPE(5, 7), NULL, 1), filled(self, TS_SHAPE(7, 3), NULL, 2));
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++) {
            char what[64];
            snprintf(what, sizeof what, "%s by %s", place2[a], place2[b]);
            same(t,
                 ts_matmul(filled(mesh, TS_SHAPE(5, 7), place2[a], 1),
                           filled(mesh, TS_SHAPE(7, 3), place2[b], 2)),
                 want, what);
        }
}

TS_TEST_RANKS(linear_keeps_a_sharded_sequence, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "tp=*"), *self = ts_mesh_self(t->me);
    ts_tensor *want =
        ts_linear(filled(self, TS_SHAPE(2, 5, 4), NULL, 1), filled(self, TS_SHAPE(6, 4), NULL, 2),
                  filled(self, TS_SHAPE(6), NULL, 3));
    const char *x[] = { "R", "S(0)", "S(1)", "S(2)" }, *w[] = { "R", "S(0)", "S(1)" },
               *b[] = { "R", "S(0)" };
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 3; j++)
            for (int k = 0; k < 2; k++) {
                char what[64];
                snprintf(what, sizeof what, "%s, %s, %s", x[i], w[j], b[k]);
                same(t,
                     ts_linear(filled(mesh, TS_SHAPE(2, 5, 4), x[i], 1),
                               filled(mesh, TS_SHAPE(6, 4), w[j], 2),
                               filled(mesh, TS_SHAPE(6), b[k], 3)),
                     want, what);
            }
    ts_scope_options strict = TS_INIT(ts_scope_options);
    strict.implicit_moves = TS_MOVES_FORBID;
    ts_scope s = ts_scope_open_with(t->me, &strict);
    TEST_CHECK(t, ts_linear(filled(mesh, TS_SHAPE(2, 5, 4), "S(1)", 1),
                            filled(mesh, TS_SHAPE(6, 4), "R", 2),
                            filled(mesh, TS_SHAPE(6), "R", 3)) != NULL);
    ts_scope_close(s);
}

TS_TEST_RANKS(gradients_of_linear, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*"), *self = ts_mesh_self(t->me);
    const char *x[] = { "R", "S(0)", "S(1)", "S(2)" }, *w[] = { "R", "S(0)", "S(1)" };
    ts_tensor *want[3];
    ts_mesh *meshes[2] = { self, mesh };
    for (int which = 0; which < 2; which++)
        for (int i = 0; i < (which ? 4 : 1); i++)
            for (int j = 0; j < (which ? 3 : 1); j++) {
                ts_mesh *m = meshes[which];
                ts_tensor *p[3] = { ts_watch(filled(m, TS_SHAPE(2, 5, 4), which ? x[i] : NULL, 1)),
                                    ts_watch(filled(m, TS_SHAPE(6, 4), which ? w[j] : NULL, 2)),
                                    ts_watch(filled(m, TS_SHAPE(6), NULL, 3)) };
                ts_scope s = ts_scope_open(t->me, "step");
                ts_tape_begin(t->me);
                ts_tensor *y = ts_square(ts_linear(p[0], p[1], p[2]));
                ts_backward_options options = TS_INIT(ts_backward_options);
                options.seed = ts_ones(m, TS_DTYPE_F64, TS_SHAPE(2, 5, 6), NULL);
                TEST_OK(t, ts_backward(y, &options));
                ts_scope_close(s);
                for (int k = 0; k < 3; k++) {
                    if (!which)
                        want[k] = ts_tensor_grad(p[k]);
                    else
                        same(t, ts_tensor_grad(p[k]), want[k], "gradient");
                }
            }
}

/* ---- lists of weights ------------------------------------------------------------------------ */

enum { ROWS = 12 };
static const int64_t list_begin[] = { 0, 4, 6 }, list_end[] = { 4, 6, 12 };

/* Weight i: a parameter of its own, or (`one`) rows of one block that all of them are. */
static ts_tensor *list_weight(ts_mesh *m, ts_tensor *one, int i, const char *place)
{
    if (!one)
        return filled(m, TS_SHAPE(list_end[i] - list_begin[i], 4), place,
                      2 + 0.25 * 4 * (double)list_begin[i]);
    return ts_narrow(one, 0, (ts_interval){ list_begin[i], list_end[i] });
}

/* Results and gradients of x by `count` weights, as a list or one by one. */
static void run_list(test *t, ts_mesh *m, const char *const place[2], int32_t count, bool list,
                     ts_tensor **out)
{
    ts_tensor *x = ts_watch(filled(m, TS_SHAPE(2, 5, 4), place[0], 1)), *w[3], *y[3] = { NULL };
    for (int i = 0; i < count; i++)
        w[i] = ts_watch(list_weight(m, NULL, i, place[1]));
    ts_scope s = ts_scope_open(t->me, "step");
    ts_tape_begin(t->me);
    if (list) TEST_OK(t, ts_linear_list(x, w, count, y));
    ts_tensor *total = NULL;
    for (int i = 0; i < count; i++) {
        if (!list) y[i] = ts_linear(x, w[i], NULL);
        ts_tensor *sum = ts_sum(ts_square(y[i]), NULL, 0, 0);
        total = total ? ts_add(total, sum) : sum;
        out[i] = ts_scope_pass(s, ts_clone(ts_tensor_full(y[i])));
    }
    TEST_OK(t, ts_backward(total, NULL));
    ts_scope_close(s);
    out[count] = ts_tensor_grad(x);
    for (int i = 0; i < count; i++)
        out[count + 1 + i] = ts_tensor_grad(w[i]);
}

TS_TEST_RANKS(lists_of_linear_are_linears, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*"), *self = ts_mesh_self(t->me);
    const char *x[] = { "R", "S(0)", "S(1)", "S(2)" }, *w[] = { "R", "S(0)", "S(1)" };
    for (int32_t n = 2; n <= 3; n++) {
        ts_tensor *want[7], *have[7];
        run_list(t, self, (const char *const[]){ NULL, NULL }, n, false, want);
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 3; j++) {
                char what[64];
                run_list(t, mesh, (const char *const[]){ x[i], w[j] }, n, true, have);
                for (int k = 0; k < 2 * n + 1; k++) {
                    snprintf(what, sizeof what, "%d weights, %s by %s, %d", (int)n, x[i], w[j], k);
                    same(t, have[k], want[k], what);
                }
            }
    }
}

static const char *data_of(ts_tensor *x, int64_t *row)
{
    ts_array a = TS_INIT(ts_array);
    if (ts_tensor_view(x, &a) != TS_OK) return NULL;
    *row = a.stride[a.meta.shape.ndim - 2];
    return a.data;
}

/* Results are columns of one block, and weights that are rows of one give the same numbers. */
TS_TEST_RANKS(results_of_lists_lie_beside_each_other, 1)
{
    ts_mesh *m = ts_mesh_self(t->me);
    ts_tensor *x = filled(m, TS_SHAPE(2, 5, 4), NULL, 1),
              *one = filled(m, TS_SHAPE(ROWS, 4), NULL, 2);
    ts_tensor *w[3], *y[3] = { NULL };
    for (int i = 0; i < 3; i++)
        w[i] = list_weight(m, one, i, NULL);
    TEST_OK(t, ts_linear_list(x, w, 3, y));
    int64_t row = 0;
    const char *first = data_of(y[0], &row);
    for (int i = 0; i < 3; i++) {
        int64_t own = 0;
        const char *at = data_of(y[i], &own);
        TEST_SAY(t, own == ROWS && at == first + list_begin[i] * (int64_t)sizeof(double),
                 "result %d lies %lld bytes behind the first, rows are %lld apart", i,
                 (long long)(at - first), (long long)own);
        same(t, ts_clone(y[i]), ts_linear(x, list_weight(m, NULL, i, NULL), NULL), "of one block");
    }
}

/* ---- products of lists on devices ------------------------------------------------------------ */

static int32_t products;

static ts_status count_product(const tsi_kernel_io *io, const char *equation,
                               const tsi_block *const block[3], bool accumulate)
{
    (void)io, (void)equation, (void)block, (void)accumulate;
    products++;
    return TS_OK;
}

/* Columns (dim 1) or rows (dim 0) of one memory, two of them. */
static void put_neighbours(tsi_operand *x, double *memory, int32_t dim, const void *storage)
{
    for (int i = 0; i < 2; i++)
        x[i] = (tsi_operand){ .block = { .data = memory + (dim ? 4 * i : 16 * i),
                                         .dtype = TS_DTYPE_F64,
                                         .ndim = 2,
                                         .extent = { 4, 4 },
                                         .stride = { dim ? 8 : 4, 1 } },
                              .storage = storage };
}

/* Neighbours of one storage are one product; those of two are neighbours by chance, and bits must
 * not depend on that. */
TS_TEST(lists_are_joined_by_storage_not_by_address)
{
    double x[16] = { 0 }, w[32] = { 0 }, y[32] = { 0 };
    for (int whole = 0; whole < 2; whole++) {
        tsi_operand in[4] = { { .block = { .data = x,
                                           .dtype = TS_DTYPE_F64,
                                           .ndim = 2,
                                           .extent = { 4, 4 },
                                           .stride = { 4, 1 } } } },
                    out[2];
        put_neighbours(in + 1, w, 0, w);
        put_neighbours(out, y, 1, y);
        if (!whole) in[2].storage = x;
        tsi_kernel_io io = { .in = in, .out = out, .input_count = 3, .output_count = 2 };
        products = 0;
        TEST_OK(t, tsi_linear_list_by(&io, count_product, true));
        TEST_EQ(t, products, whole ? 1 : 2);
        products = 0;
        TEST_OK(t, tsi_linear_list_by(&io, count_product, false));
        TEST_EQ(t, products, 2);
        /* Gradients: dy beside each other, the weights as before; then dw as rows. */
        put_neighbours(in, y, 1, y);
        put_neighbours(in + 2, w, 0, w);
        if (!whole) in[0].storage = x;
        tsi_operand dx = { .block = { .data = x,
                                      .dtype = TS_DTYPE_F64,
                                      .ndim = 2,
                                      .extent = { 4, 4 },
                                      .stride = { 4, 1 } } };
        tsi_kernel_io back = { .in = in, .out = &dx, .input_count = 4, .output_count = 1 };
        products = 0;
        TEST_OK(t, tsi_linear_list_input_by(&back, count_product, true));
        TEST_EQ(t, products, whole ? 1 : 2);
    }
}
