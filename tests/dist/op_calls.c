/* SPDX-License-Identifier: Apache-2.0 */
/* op_calls.c - calls that once gave other values on many ranks than on one, touched memory that was
 * not theirs, or received other bytes than they stated. Each is a line as for `tessera op`: mesh,
 * operator, attributes, dtype, inputs. */
#include <stdlib.h>

#include "base/alloc.h"
#include "bytes_util.h"
#include "harness/test.h"
#include "op/ask/numbers.h"
#include "tensor/tensor.h"
#include "tessera/autograd.h"
#include "tessera/op.h"
#include "tessera/op_query.h"

enum { INPUTS_MAX = 6 };

typedef struct kept_call {
    int64_t ranks;
    const char *mesh, *op, *attributes, *dtype;
    const char *in[INPUTS_MAX]; /* "2x3 S(0), R" */
} kept_call;

static const kept_call kept[] = {
    /* repair 25: S(0) and S(3) of an extent 1 are the same elements, but not the same blocks */
    { 2, "x=2", "attention", "{}", "f32", { "1x1x7x1 S(3)", "1x1x7x1 S(0)", "1x1x7x3 S(0)" } },
    /* an axis of one rank keeps what q says there, which its lse has no dim for */
    { 2,
      "2, 1",
      "attention",
      "{}",
      "f64",
      { "1x2x4x2 R, S(3)", "1x2x3x2 S(2), R", "1x2x3x3 S(2), R" } },
    /* sizes of a ragged cut are those of heads, or of groups, which are repeated */
    { 4,
      "2, 2",
      "attention",
      "{}",
      "f64",
      { "1x8x6x3 RS(1:6,2), S(2)", "1x2x6x3 R, S(2)", "1x2x6x3 R, S(2)" } },
    { 4,
      "2, 2",
      "attention_backward",
      "{\"algorithm\": \"heads\"}",
      "f64",
      { "1x4x6x3 S(1), S(2)", "1x2x6x3 RS(1:1,1), S(2)", "1x2x6x3 RS(1:1,1), S(2)",
        "1x4x6x3 S(1), S(2)", "1x4x6 S(1), S(2)", "1x4x6x3 S(1), S(2)" } },
    { 2,
      "1, 2",
      "attention",
      "{}",
      "f32",
      { "1x4x6x3 RS(1:4), S(2)", "1x2x6x3 RS(1:2), S(2)", "1x2x6x3 HT(1), R" } },
    /* dims behind a cut over several have other numbers in blocks */
    { 2, "x=2", "vector_norm", "{\"dims\": [2]}", "f64", { "2x4x3 S(0-1)" } },
    { 2, "x=2", "vector_norm", "{\"dims\": [0, 1], \"keepdim\": true}", "f64", { "2x4x3 S(0-1)" } },
    { 2, "x=2", "vector_norm", "{\"dims\": [1, 2], \"keepdim\": true}", "f64", { "2x4x3 S(1-2)" } },
    { 2, "x=2", "vector_norm", "{\"dims\": [0]}", "f64", { "2x4x3 S(1-2)" } },
    { 2, "x=2", "vector_norm", "{}", "f64", { "2x4x3 S(0-1)" } },
    { 2, "x=2", "matmul", "{}", "f32", { "1x1 S(0)", "1x5 S(0)" } },
    { 3, "x=3", "add", "{}", "f64", { "1x1x4 S(1)", "1x1x4 S(0)" } },
    { 2, "x=2", "sum", "{\"dims\": [0]}", "f64", { "1x0x1 S(0)" } },
    /* repair 22: the exchange of a cat read what such blocks do not hold */
    { 6,
      "3, 2",
      "cat",
      "{\"dim\": 1}",
      "f32",
      { "1x1 S(1), S(0)", "1x1 S(1), S(1)", "1x1 S(0), S(1)" } },
    { 8,
      "2, 2, 2",
      "cat",
      "{\"dim\": 2}",
      "f32",
      { "1x2x1 RS(0:0,1), HT(2), S(1)", "1x2x1 SS(0,5), S(2), S(0)", "1x2x1 S(2), SS(1,5), S(1)",
        "1x2x1 S(2), S(2), S(0)" } },
    { 6,
      "3, 2",
      "stack",
      "{\"dim\": 1}",
      "i32",
      { "1x1 S(1), S(0)", "1x1 S(1), S(1)", "1x1 S(0), S(1)" } },
    /* repair 24: pending truths beside numbers, averages and sums of narrow integers, extremes of
     * what wraps */
    { 2, "x=2", "cat", "{\"dim\": -1}", "u8", { "5x4 P(and)", "5x1 R" } },
    { 2, "x=2", "stack", "{\"dim\": 0}", "i32", { "1x3 R", "1x3 R", "1x3 P(or)" } },
    { 2, "x=2", "pad", "{\"pad\": [0, 0, 3, 0], \"value\": 2.5}", "i32", { "7x4 P(or)" } },
    { 3, "x=3", "where", "{}", "i32", { "5x4 R", "5x4 R", "5x4 P(or)" } },
    { 2, "x=2", "masked_fill", "{\"value\": 3}", "i8", { "5x4 P(and)", "5x4 R" } },
    { 2, "x=2", "rsub_scalar", "{\"value\": -1.5}", "i8", { "6x1x5 P(avg)" } },
    { 8, "x=8", "repeat", "{\"repeats\": [2, 1]}", "i8", { "5x3 P(avg)" } },
    { 6, "3, 2", "argmax", "{}", "u8", { "5x3x4 P(avg), P(avg)" } },
    { 6, "3, 2", "add", "{}", "i8", { "5x3x4 P(sum), P(avg)", "5x3x4 R, R" } },
    { 8, "2, 2, 2", "silu", "{}", "i64", { "1x7 P(avg), P(avg), P(avg)" } },
    { 8, "2, 2, 2", "sum_to", "{\"shape\": [5, 1]}", "i8", { "5x4 S(1), R, S(0)" } },
    { 2, "x=2", "sum", "{}", "i8", { "5x4 P(sum)" } },
    { 3, "x=3", "neg", "{}", "u8", { "2x4 P(max)" } },
    { 2, "x=2", "pow", "{\"exponent\": 3}", "i8", { "1x6 P(min)" } },
    { 2, "x=2", "mul_scalar", "{\"value\": 2}", "i8", { "5x4 P(max)" } },
    { 2, "x=2", "addmm", "{}", "i8", { "2 P(max)", "5x7 R", "7x2 S(0)" } },
    { 2, "x=2", "cross_entropy", "{\"reduction\": \"sum\"}", "f32", { "0x0 S(1)", "0 S(0)" } },
    /* products of f16 whose terms leave its range although the products do not */
    { 2, "x=2", "prod", "{}", "f16", { "12x7 S(1)" } },
    { 6, "2, 3", "prod", "{\"dims\": [0, -1]}", "f16", { "13x11 SS(1,2), P(prod)" } },
    { 2, "x=2", "mul", "{}", "f16", { "40x30 P(prod)", "40x30 P(prod)" } },
    { 3, "x=3", "cumprod", "{\"dim\": 0}", "f16", { "30x4 P(prod)" } },
    { 3, "x=3", "transpose", "{\"dim0\": 0, \"dim1\": 1}", "f16", { "30x4 P(prod)" } },
    /* repair 23: all dims normalised; a gradient was the moved dy, which the call then dropped */
    { 4, "x=4", "layer_norm_backward", "{}", "f64", { "1 R", "1 S(0)", "1 S(0)", "1 R", "1 R" } },
    { 4,
      "x=4",
      "layer_norm_backward",
      "{}",
      "f64",
      { "5 R", "5 S(0)", "5 S(0)", "1 R", "1 S(0)" } },
    { 2, "x=2", "rms_norm_backward", "{}", "f32", { "4x1 R", "4x1 S(1)", "1 S(0)", "4x1 S(0)" } },
    /* ragged sizes beside a cut of the same dim by another axis: the call was refused */
    { 6,
      "3, 2",
      "where",
      "{}",
      "u8",
      { "5x4 R, RS(0:5,0)", "5x4 S(1), S(1)", "5x4 S(0), P(max)" } },
    { 6, "3, 2", "hypot", "{}", "f32", { "1x4 P(sum), RS(1:4,0)", "1x4 S(1), R" } },
    { 2, "2, 1", "add", "{}", "f32", { "5x4 R, RS(0:5)", "5x4 S(0), R" } },
    /* a block of queries that sees a part of a panel of keys (bf16): others of it got gradients */
    { 3,
      "x=3",
      "attention_backward",
      "{\"causal\": true}",
      "bf16",
      { "2x4x2x3 S(2)", "2x4x2x3 R", "2x4x2x2 R", "2x4x2x2 S(2)", "2x4x2 S(2)", "2x4x2x2 S(2)" } },
};

static const ts_layout *layout_of(ts_mesh *mesh, const char *text)
{
    ts_shape shape = TS_SHAPE_SCALAR;
    char *end = NULL;
    for (const char *at = text;; at = end + 1) {
        shape.extent[shape.ndim++] = strtoll(at, &end, 10);
        if (*end != 'x') break;
    }
    return tsi_tensor_layout_of(mesh, end + 1, shape);
}

static void make_call(test *t, const kept_call *call)
{
    ts_mesh *mesh = ts_mesh_create(t->me, call->mesh);
    const ts_layout *in[INPUTS_MAX] = { NULL };
    ts_op_query_options options = TS_INIT(ts_op_query_options);
    while (options.input_count < INPUTS_MAX && call->in[options.input_count]) {
        in[options.input_count] = layout_of(mesh, call->in[options.input_count]);
        options.input_count++;
    }
    options.op = call->op;
    options.attributes = call->attributes;
    options.mesh = mesh;
    options.in = in;
    options.dtype = (int32_t)ts_dtype_parse(call->dtype);
    ts_op_query *query = NULL;
    TEST_OK(t, ts_op_query_create(&options, &query));
    for (int32_t p = 0; query && p < TSI_PATTERNS; p++) {
        char verdict[512] = "";
        TEST_OK(t, ts_op_query_run(query, t->me, p, verdict, sizeof verdict));
        TEST_SAY(t, strcmp(verdict, "ok") == 0, "call %d, %s of %s on %s: %s", (int)(call - kept),
                 call->op, call->dtype, call->mesh, verdict);
    }
    ts_op_query_destroy(query);
    for (int32_t i = 0; i < options.input_count; i++)
        ts_layout_release(in[i]);
    ts_mesh_release(mesh);
}

TS_TEST_RANKS(calls_that_were_wrong, 2, 3, 4, 6, 8)
{
    for (size_t i = 0; i < TSI_COUNT_OF(kept) && ts_rank_status(t->me) == TS_OK; i++)
        if (kept[i].ranks == t->count) make_call(t, &kept[i]);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static const kept_call counted[] = {
    /* another axis cuts the rows: each group of the algorithm's axis has its own only */
    { 4, "2, 2", "cumsum", "{\"dim\": 1}", "f32", { "16x32 S(0), S(1)" } },
    { 4, "2, 2", "roll", "{\"shifts\": [2], \"dims\": [1]}", "f32", { "16x32 S(0), S(1)" } },
    { 4, "2, 2", "cat", "{\"dim\": 1}", "f32", { "16x32 S(0), S(1)", "16x32 S(0), S(1)" } },
    { 4, "2, 2", "conv", "{\"padding\": [1]}", "f32", { "4x8x32 S(0), S(2)", "8x8x3 R, R" } },
    { 4,
      "2, 2",
      "softmax_backward",
      "{\"dim\": 1}",
      "bf16",
      { "16x32 S(0), S(1)", "16x32 S(0), S(1)" } },
    /* sums of bf16 travel as f32 */
    { 4,
      "x=4",
      "rms_norm_backward",
      "{}",
      "bf16",
      { "16x32 S(1)", "16x32 S(1)", "32 S(0)", "16x1 R" } },
    /* values that another axis cuts travel as they are cut */
    { 4,
      "2, 2",
      "attention",
      "{\"algorithm\": \"gather\"}",
      "f32",
      { "1x2x4x2 S(2), R", "1x2x4x2 S(2), R", "1x2x4x4 S(2), S(3)" } },
    { 4,
      "2, 2",
      "attention",
      "{\"algorithm\": \"heads\"}",
      "f32",
      { "1x2x4x2 S(2), R", "1x2x4x2 S(2), R", "1x2x4x4 S(2), S(3)" } },
    /* ranks that hold less than others, dims that lack more than the one that is cut, fills */
    { 4, "x=4", "roll", "{\"shifts\": [1, 5], \"dims\": [0, 1]}", "f32", { "10x12 S(0)" } },
    { 4, "x=4", "cat", "{\"dim\": 0}", "f32", { "10x3 S(0)", "3x3 S(0)", "1x3 S(0)" } },
    { 4, "x=4", "pad", "{\"pad\": [1, 7, 3, 0]}", "f32", { "10x12 S(0)" } },
    { 4, "x=4", "slice", "{\"dim\": 0, \"start\": 3, \"end\": 9}", "bf16", { "10x12 S(0)" } },
    { 4, "x=4", "flip", "{\"dims\": [0]}", "f32", { "9x2 S(0)" } },
    { 4, "x=4", "conv", "{\"padding\": [2, 1]}", "f32", { "2x3x10x9 S(2)", "4x3x5x3 R" } },
    { 4, "2, 2", "conv", "{\"padding\": [1, 1]}", "f32", { "2x3x7x9 S(2), S(3)", "4x3x3x3 R, R" } },
    { 4,
      "x=4",
      "max_pool",
      "{\"kernel_size\": [3, 3], \"stride\": [1, 2]}",
      "f32",
      { "2x3x11x9 S(2)" } },
    { 4, "x=4", "avg_pool", "{\"kernel_size\": [5]}", "f32", { "2x3x11 S(2)" } },
    /* lines of no elements have totals, too */
    { 4, "2, 2", "cumsum", "{\"dim\": 0}", "f32", { "0x4 S(0), R" } },
};

static ts_tensor *ones_of(ts_mesh *mesh, const char *text, ts_dtype dtype)
{
    char placements[64];
    const ts_layout *layout = layout_of(mesh, text);
    ts_sharding_text(ts_layout_sharding(layout), placements, sizeof placements);
    ts_tensor *x = ts_ones(mesh, dtype, ts_layout_shape(layout), placements);
    ts_layout_release(layout);
    return x;
}

static void check_bytes(test *t, const kept_call *call)
{
    ts_mesh *mesh = ts_mesh_create(t->me, call->mesh);
    ts_tensor *in[INPUTS_MAX] = { NULL }, *out[3] = { NULL };
    int32_t count = 0;
    for (; count < INPUTS_MAX && call->in[count]; count++)
        in[count] = ones_of(mesh, call->in[count], ts_dtype_parse(call->dtype));
    int64_t before = stated(t->me);
    uint64_t since = ts_rank_event(t->me);
    TEST_OK(t, ts_op_call_json(ts_op_find(t->me, call->op), in, count, call->attributes, out));
    for (int32_t o = 0; o < 3 && out[o]; o++)
        TEST_OK(t, ts_tensor_wait(out[o]));
    int64_t all = received_by_all(ts_mesh_group(mesh, NULL), since), said = stated(t->me) - before;
    TEST_SAY(t, all == said, "%s of %s on %s: %lld bytes, stated %lld", call->op, call->dtype,
             call->in[0], (long long)all, (long long)said);
    ts_mesh_release(mesh);
}

TS_TEST_RANKS(calls_receive_what_they_state, 4)
{
    for (size_t i = 0; i < TSI_COUNT_OF(counted) && ts_rank_status(t->me) == TS_OK; i++)
        check_bytes(t, &counted[i]);
}

/* ---- several dtypes -------------------------------------------------------------------------- */

/* What is pending stands beside numbers that it has no meaning for: a sum beside truths. */
TS_TEST_RANKS(pending_sums_beside_truths, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_scope s = ts_scope_open(t->me, "beside");
    const int64_t rows[] = { 0 };
    ts_tensor *sum =
        ts_sum(ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(6, 4), "S(0)"), rows, 1, 0); /* P(sum) */
    ts_tensor *yes = ts_ones(mesh, TS_DTYPE_BOOL, TS_SHAPE(4), "R");
    ts_tensor *some = ts_gt_scalar(ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(4), "R", NULL), 1);
    ts_tensor *out[] = { ts_where(some, sum, yes), ts_add(sum, yes), ts_sub(yes, sum) };
    const float want[3][4] = { { 1, 1, 6, 6 }, { 7, 7, 7, 7 }, { -5, -5, -5, -5 } };
    for (int i = 0; i < 3; i++) {
        ts_array view = TS_INIT(ts_array);
        TEST_OK(t, test_view(ts_tensor_full(out[i]), &view));
        for (int k = 0; view.data && k < 4; k++)
            TEST_CHECK(t, ((const float *)view.data)[k] == want[i][k]);
    }
    TEST_OK(t, ts_scope_close(s));
    ts_mesh_release(mesh);
}

/* A pending extreme has infinite terms where a whole became one: they stay what they are, or the
 * extreme is made first. */
TS_TEST_RANKS(extremes_with_infinite_terms, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    for (int most = 0; most < 2; most++) {
        ts_scope s = ts_scope_open(t->me, "extremes");
        ts_tensor *x = ts_full(-3.0, mesh, TS_DTYPE_F64, TS_SHAPE(4), "R");
        x = ts_redistribute(x, most ? "P(max)" : "P(min)");
        ts_tensor *y = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(4), "R");
        ts_tensor *out[] = { ts_lerp(x, y, 0.25), ts_lerp(y, x, 0.25), ts_mul_scalar(x, 0),
                             ts_leaky_relu(x, 0) };
        const double want[] = { -2, 0, 0, 0 };
        for (int i = 0; i < 4; i++) {
            ts_array view = TS_INIT(ts_array);
            TEST_OK(t, test_view(ts_tensor_full(out[i]), &view));
            for (int k = 0; view.data && k < 4; k++)
                TEST_SAY(t, ((const double *)view.data)[k] == want[i], "%d of %d: %g", i, most,
                         ((const double *)view.data)[k]);
        }
        TEST_OK(t, ts_scope_close(s));
    }
    ts_mesh_release(mesh);
}

/* A minimum of -0, whose other terms are infinite: of it the function is the smallest. */
TS_TEST_RANKS(a_pending_zero_has_its_sign, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_scope s = ts_scope_open(t->me, "zero");
    ts_tensor *x = ts_full(-0.0, mesh, TS_DTYPE_F64, TS_SHAPE(4), "R");
    ts_array view = TS_INIT(ts_array);
    TEST_OK(t, test_view(ts_tensor_full(ts_rsqrt(ts_redistribute(x, "P(min)"))), &view));
    for (int k = 0; view.data && k < 4; k++)
        TEST_CHECK(t, ((const double *)view.data)[k] < -1e300);
    TEST_OK(t, ts_scope_close(s));
    ts_mesh_release(mesh);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* repair 5: layer_norm over all dims, everything cut but the gradient of its result. */
TS_TEST_RANKS(gradient_of_a_norm_over_all_dims, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    TEST_CHECK(t, ts_tape_begin(t->me) != NULL);
    ts_tensor *leaf[3], *seed = ts_full(2.0, mesh, TS_DTYPE_F64, TS_SHAPE(4, 3), "R");
    for (int i = 0; i < 3; i++)
        leaf[i] = ts_watch(ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(4, 3), "S(0)", NULL));
    ts_tensor *y = ts_layer_norm(leaf[0], leaf[1], leaf[2], 1e-5);
    TEST_OK(t, ts_backward(y, TS_OPTIONS(ts_backward_options, .seed = seed)));
    ts_tensor *db = ts_tensor_full(ts_tensor_grad(leaf[2]));
    ts_array view = TS_INIT(ts_array);
    TEST_OK(t, test_view(db, &view));
    for (int64_t e = 0; view.data && e < 12; e++)
        TEST_CHECK(t, ((const double *)view.data)[e] == 2.0);
}

/* Terms that cancel excuse their own rounding and no more. */
TS_TEST(comparisons_allow_what_rounding_explains)
{
    const double terms = 1e6;
    double wide = tsi_terms_scale(TS_DTYPE_F64, terms),
           narrow = tsi_terms_scale(TS_DTYPE_F32, terms);
    TEST_CHECK(t, tsi_number_close(1 + 8 * 0x1p-53 * terms, 1, TS_DTYPE_F64, wide));
    TEST_CHECK(t, !tsi_number_close(1 + 1e-6, 1, TS_DTYPE_F64, wide));
    TEST_CHECK(t, tsi_number_close(1 + 8 * 0x1p-24 * terms, 1, TS_DTYPE_F32, narrow));
    TEST_CHECK(t, !tsi_number_close(1 + 1e-5 * terms, 1, TS_DTYPE_F32, narrow));
}
