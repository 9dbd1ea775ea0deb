/* SPDX-License-Identifier: Apache-2.0 */
/* rows.c - what works on rows (softmax, norms, losses, sums, places) on a GPU against the same
 * calls on the host, over lengths on both sides of every border between kernels; many rows of which
 * a warp has several, long ones of which a block has; rows with infinities, and rows of nothing
 * else. */
#include "gpu/gpu.h"

#include <math.h>

#include "device/number.h"
#include "tessera/op.h"
#include "tessera/world.h"

/* Units of 16 bytes that a lane, a warp or a block keeps end at powers of two times 32 or 512. */
static const int64_t lengths[] = { 1,    8,     33,    96,    100,   256,   264,  768,
                                   1001, 1024,  1032,  2048,  2056,  4096,  4104, 8192,
                                   8200, 16384, 16392, 32000, 32768, 32776, 40000 };
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };
enum { ELEMENTS = 1 << 18, ELEMENTS_SIMULATED = 1 << 12, ROWS_MAX = 4500 };
enum { PLACES = 16, MORE_NORMS = 20, ADDED = 22, RESULTS = 26 };

static const char *const names[RESULTS] = { "softmax",
                                            "log_softmax",
                                            "rms_norm",
                                            "layer_norm",
                                            "rms_norm_backward, dx",
                                            "rms_norm_backward, dw",
                                            "layer_norm_backward, dx",
                                            "cross_entropy",
                                            "cross_entropy of each",
                                            "sum of rows",
                                            "sum of columns",
                                            "largest of rows",
                                            "largest of columns",
                                            "sum of all",
                                            "softmax_backward",
                                            "log_softmax_backward",
                                            "argmax of rows",
                                            "argmin of rows",
                                            "max of rows",
                                            "place of min of rows",
                                            "layer_norm_backward, dw",
                                            "layer_norm_backward, db",
                                            "add_rms_norm",
                                            "add_rms_norm, the sum",
                                            "add_rms_norm_backward, dx",
                                            "add_rms_norm_backward, dw" };

typedef struct asked {
    ts_dtype dtype, weights;
    int64_t length;
    double *value[RESULTS];
    int64_t count[RESULTS];
} asked;

static void keep(asked *a, int which, ts_tensor *x)
{
    a->value[which] = gpu_values(x, &a->count[which]);
}

/* Some numbers are -inf, and all of some rows. */
static ts_tensor *with_infinities(ts_mesh *m, ts_tensor *x, int64_t rows)
{
    ts_shape shape = ts_tensor_shape(x);
    ts_tensor *some = ts_gt_scalar(ts_randn(m, TS_DTYPE_F32, shape, "R"), 2);
    ts_tensor *whole = ts_gt_scalar(ts_randn(m, TS_DTYPE_F32, TS_SHAPE(rows, 1), "R"), 2);
    return ts_masked_fill(ts_masked_fill(x, some, -INFINITY), whole, -INFINITY);
}

/* Gradients of any means and scales, one a row. */
static void norms(ts_rank *me, asked *a, ts_mesh *m, ts_tensor *x, ts_tensor *w, int64_t rows)
{
    ts_dtype wide = a->dtype == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32;
    ts_tensor *in[5] = { ts_randn(m, a->dtype, TS_SHAPE(rows, a->length), "R"), x, w,
                         ts_randn(m, wide, TS_SHAPE(rows, 1), "R"),
                         ts_randn(m, wide, TS_SHAPE(rows, 1), "R") };
    ts_tensor *out[3] = { NULL };
    keep(a, 2, ts_rms_norm(x, w, 1e-5));
    keep(a, 3, ts_layer_norm(x, w, in[2], 1e-5));
    if (ts_op_call_json(ts_op_find(me, "rms_norm_backward"), in, 4, NULL, out) != TS_OK) return;
    keep(a, 4, out[0]);
    keep(a, 5, out[1]);
    if (ts_op_call_json(ts_op_find(me, "layer_norm_backward"), in, 5, NULL, out) != TS_OK) return;
    keep(a, 6, out[0]);
    keep(a, MORE_NORMS, out[1]);
    keep(a, MORE_NORMS + 1, out[2]);
    ts_tensor *sum = NULL, *added[5] = { in[0], x, x, w, in[3] };
    keep(a, ADDED, ts_add_rms_norm(x, in[0], w, 1e-5, &sum));
    if (sum) keep(a, ADDED + 1, sum);
    if (ts_op_call_json(ts_op_find(me, "add_rms_norm_backward"), added, 5, NULL, out) != TS_OK)
        return;
    keep(a, ADDED + 2, out[0]);
    keep(a, ADDED + 3, out[1]);
}

/* Gradients of any numbers, as if they were results: both sides get the same. */
static void softmaxes(asked *a, ts_mesh *m, ts_tensor *x, ts_tensor *cut, int64_t rows)
{
    ts_tensor *dy = ts_randn(m, a->dtype, TS_SHAPE(rows, a->length), "R");
    keep(a, 0, ts_softmax(cut, -1));
    keep(a, 1, ts_log_softmax(cut, -1));
    keep(a, 14, ts_softmax_backward(dy, x, -1));
    keep(a, 15, ts_log_softmax_backward(dy, cut, -1));
}

/* Places where numbers differ; where most have equals, few are NaN and the rest infinite. */
static void places(asked *a, ts_mesh *m, ts_tensor *x, ts_tensor *cut, int64_t rows)
{
    ts_shape shape = TS_SHAPE(rows, a->length);
    ts_tensor *value = NULL, *place = NULL;
    ts_tensor *few = ts_gt_scalar(ts_randn(m, TS_DTYPE_F32, shape, "R"), 3);
    ts_tensor *equals = ts_masked_fill(ts_round(cut), few, NAN);
    keep(a, PLACES, ts_argmax(x, -1, 0));
    keep(a, PLACES + 1, ts_argmin(equals, -1, 0));
    if (ts_max(equals, -1, &value, &place) == TS_OK) keep(a, PLACES + 2, value);
    if (ts_min(ts_round(x), -1, &value, &place) == TS_OK) keep(a, PLACES + 3, place);
}

static ts_status compute(ts_rank *me, void *context)
{
    asked *a = context;
    ts_mesh *m = ts_mesh_create(me, "x=*");
    int64_t rows = (gpu_is_simulated() ? ELEMENTS_SIMULATED : ELEMENTS) / a->length + 2;
    if (rows > ROWS_MAX) rows = ROWS_MAX;
    ts_scope scope = ts_scope_open(me, NULL);
    ts_tensor *x = ts_randn(m, a->dtype, TS_SHAPE(rows, a->length), "R");
    ts_tensor *w = ts_randn(m, a->weights, TS_SHAPE(a->length), "R");
    ts_tensor *cut = with_infinities(m, x, rows);
    ts_random_options below = TS_INIT(ts_random_options);
    below.high = a->length;
    ts_tensor *labels = ts_randint(m, TS_DTYPE_I64, TS_SHAPE(rows), "R", &below);
    ts_cross_entropy_options each = TS_CROSS_ENTROPY_OPTIONS_INIT;
    each.reduction = TS_LOSS_NONE;
    norms(me, a, m, x, w, rows);
    keep(a, 7, ts_cross_entropy(x, labels));
    keep(a, 8, ts_cross_entropy_with(cut, labels, &each));
    keep(a, 9, ts_sum(x, (int64_t[]){ 1 }, 1, 0));
    keep(a, 10, ts_sum(x, (int64_t[]){ 0 }, 1, 0));
    keep(a, 11, ts_amax(cut, (int64_t[]){ 1 }, 1, 0));
    keep(a, 12, ts_amax(cut, (int64_t[]){ 0 }, 1, 0));
    keep(a, 13, ts_sum(x, NULL, 0, 0));
    softmaxes(a, m, x, cut, rows);
    places(a, m, x, cut, rows);
    (void)ts_scope_close(scope);
    ts_mesh_release(m);
    return ts_rank_status(me);
}

/* Each block that keeps a row has several, on a GPU of up to 256 multiprocessors: it fetches the
 * next one while it works, and may keep a weight. */
static ts_status compute_many(ts_rank *me, void *context)
{
    const int64_t many = gpu_is_simulated() ? 26 : 800; /* of 8 multiprocessors, of 256 */
    asked *a = context;
    ts_mesh *m = ts_mesh_create(me, "x=*");
    ts_scope scope = ts_scope_open(me, NULL);
    ts_tensor *x = ts_randn(m, a->dtype, TS_SHAPE(many, a->length), "R");
    ts_tensor *w = ts_randn(m, a->weights, TS_SHAPE(a->length), "R");
    ts_tensor *b = ts_randn(m, a->weights, TS_SHAPE(a->length), "R");
    softmaxes(a, m, x, with_infinities(m, x, many), many);
    keep(a, 2, ts_rms_norm(x, w, 1e-5));
    keep(a, 3, ts_layer_norm(x, w, b, 1e-5));
    (void)ts_scope_close(scope);
    ts_mesh_release(m);
    return ts_rank_status(me);
}

/* Warps that have rows of gradients have several, and threads that have columns many rows and a
 * rest. */
static ts_status compute_tall(ts_rank *me, void *context)
{
    const int64_t tall = gpu_is_simulated() ? 331 : 5003;
    asked *a = context;
    ts_mesh *m = ts_mesh_create(me, "x=*");
    ts_scope scope = ts_scope_open(me, NULL);
    ts_tensor *x = ts_randn(m, a->dtype, TS_SHAPE(tall, a->length), "R");
    norms(me, a, m, x, ts_randn(m, a->weights, TS_SHAPE(a->length), "R"), tall);
    keep(a, 10, ts_sum(x, (int64_t[]){ 0 }, 1, 0));
    keep(a, 12, ts_amax(x, (int64_t[]){ 0 }, 1, 0));
    keep(a, 13, ts_sum(x, NULL, 0, 0));
    (void)ts_scope_close(scope);
    ts_mesh_release(m);
    return ts_rank_status(me);
}

/* One row goes by a block. */
static ts_status compute_one(ts_rank *me, void *context)
{
    asked *a = context;
    ts_mesh *m = ts_mesh_create(me, "x=*");
    ts_scope scope = ts_scope_open(me, NULL);
    ts_tensor *x = ts_randn(m, a->dtype, TS_SHAPE(1, a->length), "R");
    places(a, m, x, x, 1);
    (void)ts_scope_close(scope);
    ts_mesh_release(m);
    return ts_rank_status(me);
}

static bool is_special(double x)
{
    return isnan(x) || isinf(x);
}

static void check(test *t, const asked *got, const asked *want, int which)
{
    double most = 0, worst = 0;
    int64_t strange = 0;
    TEST_SAY(t, got->count[which] == want->count[which] && want->count[which] > 0,
             "%s of %s, %lld columns: %lld results of %lld", names[which],
             ts_dtype_name(want->dtype), (long long)want->length, (long long)got->count[which],
             (long long)want->count[which]);
    for (int64_t i = 0; i < want->count[which] && i < got->count[which]; i++) {
        double x = got->value[which][i], y = want->value[which][i];
        if (is_special(x) || is_special(y)) {
            strange += !(x == y || (isnan(x) && isnan(y)));
            continue;
        }
        most = fmax(most, fabs(y));
        worst = fmax(worst, fabs(x - y));
    }
    TEST_SAY(t, strange == 0, "%s of %s, %lld columns: %lld places are no numbers on one side",
             names[which], ts_dtype_name(want->dtype), (long long)want->length, (long long)strange);
    bool place = which >= PLACES && which < MORE_NORMS; /* none is near to it */
    double allowed = place ? 0 : gpu_allowed(want->dtype);
    TEST_SAY(t, worst <= allowed * most, "%s of %s, %lld columns: off by %g of %g", names[which],
             ts_dtype_name(want->dtype), (long long)want->length, worst, most);
}

static void compare(test *t, ts_work_fn work, asked of)
{
    asked on[2] = { of, of };
    gpu_beside_host(t, 11, work, &on[0], &on[1]);
    for (int k = 0; k < RESULTS; k++) {
        if (work == compute || on[0].value[k]) check(t, &on[1], &on[0], k);
        free(on[0].value[k]);
        free(on[1].value[k]);
    }
}

TS_TEST_LONG(rows_of_all_lengths_agree_with_the_host, 300)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_F64 };
    (void)setenv("TESSERA_CUDA_MEMORY", "host", 1); /* results are read through pointers */
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++)
        for (int k = 0; k < LENGTHS; k++)
            if (test_tries(t))
                compare(t, compute,
                        (asked){ .dtype = dtypes[d], .weights = dtypes[d], .length = lengths[k] });
}

TS_TEST_LONG(places_of_extremes_of_one_row_are_those_of_the_host, 300)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16 };
    (void)setenv("TESSERA_CUDA_MEMORY", "host", 1);
    for (int d = 0; d < 2; d++)
        for (int k = 0; k < LENGTHS; k++)
            compare(t, compute_one,
                    (asked){ .dtype = dtypes[d], .weights = dtypes[d], .length = lengths[k] });
}

TS_TEST_LONG(many_rows_of_which_a_warp_has_several, 300)
{
    static const int64_t widths[] = { 136, 768, 2048 };
    (void)setenv("TESSERA_CUDA_MEMORY", "host", 1);
    for (size_t k = 0; k < sizeof widths / sizeof widths[0]; k++) {
        compare(t, compute_tall, (asked){ TS_DTYPE_F32, TS_DTYPE_F32, .length = widths[k] });
        compare(t, compute_tall, (asked){ TS_DTYPE_BF16, TS_DTYPE_F32, .length = widths[k] });
    }
}

TS_TEST_LONG(long_rows_of_which_a_block_has_several, 300)
{
    static const int64_t long_rows[] = { 8200, 16384, 16392, 32000, 32768 };
    (void)setenv("TESSERA_CUDA_MEMORY", "host", 1);
    for (size_t k = 0; k < sizeof long_rows / sizeof long_rows[0]; k++) {
        int64_t n = long_rows[k];
        if (!test_tries(t)) continue;
        compare(t, compute_many, (asked){ TS_DTYPE_F32, TS_DTYPE_F32, .length = n });
        compare(t, compute_many, (asked){ TS_DTYPE_BF16, TS_DTYPE_F32, .length = n });
        compare(t, compute_many, (asked){ TS_DTYPE_BF16, TS_DTYPE_BF16, .length = n });
    }
}
