/* SPDX-License-Identifier: Apache-2.0 */
/* op_more.c - values of operators against others that say the same in another way: einsum of many
 * inputs, factors of addmm, grouped products, halos, losses, strides, distinct values; and ranks
 * outside a mesh. That placements do not matter is the affair of op_sweep.c; here some are tried
 * beside. */
#include "op_family.h"
#include "tessera/op.h"

static ts_tensor *numbers(ts_mesh *mesh, int32_t input, ts_shape shape, const char *place)
{
    ts_meta meta = { .shape = shape, .dtype = TS_DTYPE_F64 };
    return family_input(mesh, input, &meta, place);
}

TS_TEST_RANKS(einsum_of_many_inputs_and_short_forms, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *a = numbers(mesh, 0, TS_SHAPE(5, 4), "S(0)");
    ts_tensor *b = numbers(mesh, 1, TS_SHAPE(4, 3), "R");
    ts_tensor *c = numbers(mesh, 2, TS_SHAPE(3, 2), "S(1)");
    ts_tensor *abc[] = { a, b, c };
    ts_tensor *want = ts_matmul(ts_matmul(a, b), c);
    family_same(t, ts_einsum_many("ab,bc,cd->ad", abc, 3), want, "three inputs");
    family_same(t, ts_einsum("ij, jk", a, b), ts_matmul(a, b), "without a result");
    family_same(t, ts_einsum("ab->ba", a, NULL), ts_transpose(a, 0, 1), "one input");
    ts_tensor *batch = numbers(mesh, 3, TS_SHAPE(2, 5, 4), "S(1)");
    family_same(t, ts_einsum("...ij,...jk->...ik", batch, b), ts_matmul(batch, b), "dots");
    FAMILY_REFUSES(t, "dim 'j' is 4 in one place and 3 in another", ts_einsum("ij,jk", a, c));
    FAMILY_REFUSES(t, "names 2 inputs, given are 1", ts_einsum("ij,jk", a, NULL));
}

TS_TEST_RANKS(factors_of_addmm, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *in[] = { numbers(mesh, 0, TS_SHAPE(3), "R"),
                        numbers(mesh, 1, TS_SHAPE(5, 4), "S(1)"),
                        numbers(mesh, 2, TS_SHAPE(4, 3), "S(0)") };
    const double factor[][2] = { { 1, 1 }, { 0.5, -2 }, { 2, 0 } };
    for (int k = 0; k < 3; k++) {
        ts_tensor *out[TSI_OUTPUT_MAX];
        ts_number said[] = { tsi_number_real(factor[k][0]), tsi_number_real(factor[k][1]) };
        tsi_op_args args = { &tsi_op_addmm, in, 3, 0, said };
        TEST_OK(t, tsi_op_run(&args, out));
        ts_tensor *product = ts_scale(ts_matmul(in[1], in[2]), factor[k][0]);
        family_same(t, out[0], ts_add(product, ts_scale(in[0], factor[k][1])), "addmm");
    }
}

/* ---- groups ---------------------------------------------------------------------------------- */

static ts_status end_of(const int64_t *global, void *element, void *context)
{
    *(int64_t *)element = ((const int64_t *)context)[global[0]];
    return TS_OK;
}

static ts_tensor *rows(ts_tensor *x, int64_t from, int64_t to)
{
    return ts_slice(x, 0,
                    TS_OPTIONS(ts_slice_options, .start = from, .end = to, .end_is_given = 1));
}

TS_TEST_RANKS(groups_of_rows_by_a_matrix_each, 1, 2, 3)
{
    static const int64_t ends[] = { 3, 3,
                                    6 }; /* the second group is empty, the last row is none's */
    static const char *const place[][2] = {
        { "R", "R" }, { "S(0)", "R" }, { "R", "S(0)" }, { "S(1)", "S(1)" }, { "R", "S(2)" }
    };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_meta meta = { .shape = TS_SHAPE(3), .dtype = TS_DTYPE_I64 };
    ts_tensor *end =
        ts_from_function(end_of, (void *)(uintptr_t)ends, ts_sharding_get(mesh, "R"), meta);
    for (int p = 0; p < 5; p++) {
        ts_tensor *a = numbers(mesh, 0, TS_SHAPE(7, 4), place[p][0]);
        ts_tensor *b = numbers(mesh, 1, TS_SHAPE(3, 4, 2), place[p][1]);
        ts_tensor *part[] = { ts_matmul(rows(a, 0, 3), ts_select(b, 0, 0)),
                              ts_matmul(rows(a, 3, 6), ts_select(b, 0, 2)),
                              ts_zeros(mesh, TS_DTYPE_F64, TS_SHAPE(1, 2), NULL) };
        ts_tensor *y = ts_grouped_mm(a, b, end);
        family_same(t, y, ts_cat(part, 3, 0), place[p][0]);
        if (t->count > 1 && p == 2) family_plan(t, y, "P(sum)", "experts");
    }
    ts_tensor *a = numbers(mesh, 0, TS_SHAPE(5, 4), "R"),
              *b = numbers(mesh, 1, TS_SHAPE(3, 4, 2), "R");
    FAMILY_REFUSES(t, "group 2 ends at row 6, which is not in 3 .. 5", ts_grouped_mm(a, b, end));
}

/* ---- places ---------------------------------------------------------------------------------- */

TS_TEST_RANKS(a_convolution_keeps_its_places_cut, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = numbers(mesh, 0, TS_SHAPE(2, 1, 64), "S(2)");
    ts_tensor *w = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(1, 1, 3), NULL);
    static const int64_t one[] = { 1 };
    ts_conv_options options = TS_INIT(ts_conv_options);
    options.padding = one;
    ts_tensor *y = ts_conv1d(x, w, NULL, &options);
    if (t->count > 1) family_plan(t, y, "S(2)", "conv1d");
    ts_tensor *full = ts_tensor_full(x),
              *edge = ts_zeros(mesh, TS_DTYPE_F64, TS_SHAPE(2, 1, 1), NULL);
    ts_tensor *left[] = { edge, full, edge };
    ts_tensor *wide = ts_cat(left, 3, 2), *sum = NULL;
    for (int64_t k = 0; k < 3; k++) {
        ts_tensor *shifted = ts_slice(
            wide, 2, TS_OPTIONS(ts_slice_options, .start = k, .end = k + 64, .end_is_given = 1));
        sum = sum ? ts_add(sum, shifted) : shifted;
    }
    family_same(t, y, sum, "sums of three neighbours");
    FAMILY_REFUSES(t, "conv2d: takes 4 dims", ts_conv2d(x, w, NULL, NULL));
}

/* ---- losses ---------------------------------------------------------------------------------- */

TS_TEST_RANKS(losses_by_their_formulas, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = numbers(mesh, 0, TS_SHAPE(5, 4), "S(0)");
    ts_tensor *target = ts_sigmoid(numbers(mesh, 1, TS_SHAPE(5, 4), "S(0)"));
    family_same(t, ts_bce_with_logits(x, target, NULL), ts_bce(ts_sigmoid(x), target, NULL),
                "bce_with_logits");
    ts_loss_options far = TS_INIT(ts_loss_options);
    far.point = 1e6; /* never turns: half a square */
    family_same(t, ts_huber_loss(x, target, &far), ts_scale(ts_mse_loss(x, target, NULL), 0.5),
                "huber");
    far.point = 1e-9; /* turns at once: the size */
    family_same(t, ts_smooth_l1_loss(x, target, &far), ts_l1_loss(x, target, NULL), "smooth_l1");
}

/* Weights of one and no smoothing change nothing; a uniform target is the mean over classes. */
TS_TEST_RANKS(weights_and_smoothing_of_cross_entropy, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    static const int64_t labels[] = { 0, 3, 2, -100, 1 };
    static const char *const place[] = { "R", "S(0)", "S(1)" };
    ts_meta meta = { .shape = TS_SHAPE(5), .dtype = TS_DTYPE_I64 };
    ts_tensor *y =
        ts_from_function(end_of, (void *)(uintptr_t)labels, ts_sharding_get(mesh, "R"), meta);
    for (int p = 0; p < 3; p++) {
        ts_tensor *x = numbers(mesh, 0, TS_SHAPE(5, 4), place[p]);
        ts_cross_entropy_options o = TS_CROSS_ENTROPY_OPTIONS_INIT;
        o.weight = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(4), NULL);
        family_same(t, ts_cross_entropy_with(x, y, &o), ts_cross_entropy(x, y), "weights of one");
        o.weight = ts_full(3, mesh, TS_DTYPE_F64, TS_SHAPE(4), NULL);
        family_same(t, ts_cross_entropy_with(x, y, &o), ts_cross_entropy(x, y), "equal weights");
        o.weight = NULL;
        o.label_smoothing = 1;
        ts_tensor *each = ts_mean(ts_log_softmax(x, 1), (int64_t[]){ 1 }, 1, 0);
        ts_tensor *counted[] = { rows(each, 0, 3), rows(each, 4, 5) };
        ts_tensor *mean = ts_mean(ts_cat(counted, 2, 0), NULL, 0, 0);
        family_same(t, ts_cross_entropy_with(x, y, &o), ts_neg(mean), "all spread");
    }
    ts_cross_entropy_options o = TS_CROSS_ENTROPY_OPTIONS_INIT;
    o.label_smoothing = 1.5;
    ts_tensor *x = numbers(mesh, 0, TS_SHAPE(5, 4), "R");
    FAMILY_REFUSES(t, "1.5 is not in 0 .. 1", ts_cross_entropy_with(x, y, &o));
}

/* ---- strides and distinct values ------------------------------------------------------------- */

TS_TEST_RANKS(strides_of_the_whole_and_distinct_values, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = numbers(mesh, 0, TS_SHAPE(5, 4), "S(0)");
    family_same(t, ts_as_strided(x, TS_SHAPE(4, 5), (int64_t[]){ 1, 4 }, 0), ts_transpose(x, 0, 1),
                "a transpose");
    FAMILY_REFUSES(t, "elements 0 to 20 are named, there are 20",
                   ts_as_strided(x, TS_SHAPE(6), (int64_t[]){ 4 }, 0));
    ts_tensor *even = ts_arange(mesh, TS_DTYPE_I64, TS_SHAPE(12), "S(0)", NULL);
    ts_tensor *three = ts_full(3, mesh, TS_DTYPE_I64, TS_SHAPE_SCALAR, NULL);
    double count = 0;
    TEST_OK(t, ts_tensor_item(ts_count_unique(ts_remainder(even, three)), &count));
    TEST_EQ(t, (int64_t)count, 3);
}

/* ---- ranks outside --------------------------------------------------------------------------- */

static void check_outside(test *t, ts_mesh *mesh, ts_tensor *y, const char *what)
{
    ts_array block = TS_INIT(ts_array);
    TEST_SAY(t, y != NULL && ts_tensor_layout(y) != NULL, "%s: no result", what);
    if (ts_mesh_is_member(mesh) || !y) return;
    TEST_OK(t, test_view(y, &block));
    TEST_SAY(t, ts_shape_count(&block.meta.shape) == 0, "%s: a block outside", what);
}

/* Ranks that are not in the mesh make the same calls, hold nothing and wait for nobody: free ones,
 * moves, algorithms that communicate, views, forms in place, gradients. */
TS_TEST_RANKS(ranks_outside_hold_nothing_and_never_wait, 3, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=2 : 2 0");
    ts_tensor *x = ts_watch(ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(6, 4), "S(0)", NULL));
    ts_tensor *w = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(4, 6), "S(0)", NULL);
    ts_tape_begin(t->me);
    check_outside(t, mesh, ts_add(x, x), "add");
    check_outside(t, mesh, ts_matmul(x, w), "matmul");
    check_outside(t, mesh, ts_softmax(x, 0), "softmax");
    check_outside(t, mesh, ts_cumsum(x, 0), "cumsum");
    check_outside(t, mesh, ts_narrow(x, 0, (ts_interval){ 1, 5 }), "narrow");
    check_outside(t, mesh, ts_reshape(x, TS_SHAPE(3, 8)), "reshape");
    check_outside(t, mesh, ts_tril_(ts_clone(w), 0), "tril_");
    ts_tensor *loss = ts_sum(ts_mul(x, x), NULL, 0, 0);
    check_outside(t, mesh, loss, "sum");
    TEST_OK(t, ts_backward(loss, NULL));
    check_outside(t, mesh, ts_tensor_grad(x), "a gradient");
    ts_mesh *other = ts_mesh_create(t->me, "y=2 : 1 2");
    ts_tensor *z = ts_arange(other, TS_DTYPE_F64, TS_SHAPE(6, 4), "S(0)", NULL);
    FAMILY_REFUSES(t, "ts_redistribute_to", ts_add(x, z));
    check_outside(t, other, ts_add(z, ts_redistribute_to(x, ts_sharding_get(other, "S(0)"))),
                  "what the sentence says");
    TEST_OK(t, ts_rank_status(t->me));
}
