/* SPDX-License-Identifier: Apache-2.0 */
/* backend_kernels.c - the fast kernels of the cpu against the references, operator by operator.
 *
 * Every operator's sample is run in several dtypes with operands that are dense, permuted, spread
 * out or repeated by zero strides; further cases are large and odd. Products and attention have
 * more cases of their own in backend_products.c and backend_attention.c. */
#include "backend_util.h"
#include "op/nn/attributes.h"
#include "op/nn/update.h"
#include "op/reduce/reduce.h"

/* ---- every operator's sample, in several dtypes ---------------------------------------------- */

static void with_dtype(call *c, ts_dtype dtype)
{
    for (int32_t i = 0; i < c->input_count; i++)
        if (c->in[i].dtype == TS_DTYPE_F64) c->in[i].dtype = (int32_t)dtype;
}

/* All samples of an operator in one dtype. */
static counts sweep(test *t, const tsi_op_desc *op, ts_dtype dtype)
{
    counts n = { 0, 0 };
    for (int32_t variant = 0; variant < 8; variant++) {
        call c = { .op = op, .input_count = op->input_max };
        uint64_t random = t->seed + (uint64_t)variant;
        if (!tsi_op_sample(op, &random, variant, c.in, &c.input_count, c.attributes)) break;
        with_dtype(&c, dtype);
        ts_scope_options options = TS_INIT(ts_scope_options);
        options.catches = 1;
        ts_scope scope = ts_scope_open_with(t->me, &options);
        bool valid = infer(&c);
        (void)ts_scope_close(scope); /* a dtype the operator refuses */
        for (int how = 0; valid && how < SPREADS; how++)
            run_both(t, &c, (spread)how, &n);
    }
    return n;
}

/* Weights are the reference's, which also tells of a mask that chooses more than there is room for,
 * and so is a scale of 0 or less: the kernels' running maximum needs scores in the products' order.
 */
static bool may_decline(const tsi_op_desc *op)
{
    return op == &tsi_op_bincount || op == &tsi_op_cross_entropy ||
           op == &tsi_op_cross_entropy_backward || op == &tsi_op_masked_select ||
           op == &tsi_op_masked_select_backward || op == &tsi_op_attention ||
           op == &tsi_op_attention_backward;
}

TS_TEST_RANKS(kernels_agree_with_references, 1, 2)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F64, TS_DTYPE_F32, TS_DTYPE_BF16,
                                       TS_DTYPE_F16, TS_DTYPE_I64, TS_DTYPE_I32 };
    counts n = { 0, 0 };
    tsi_backend_cpu_add();
    for (int32_t id = 0; id < TSI_OP_ID_COUNT; id++) {
        const tsi_op_desc *op = tsi_op_at(id);
        if (!op->sample || !tsi_kernel_of(tsi_device_host(), op)) continue;
        for (size_t d = 0; d < TSI_COUNT_OF(dtypes); d++) {
            counts own = sweep(t, op, dtypes[d]);
            n.fast += own.fast;
            n.declined += own.declined;
            /* A kernel has loops for a dtype or has none; sizes and strides do not matter. */
            TEST_SAY(t, own.fast == 0 || own.declined == 0 || may_decline(op),
                     "%s of %s: %lld fast, %lld declined", op->name, ts_dtype_name(dtypes[d]),
                     (long long)own.fast, (long long)own.declined);
        }
    }
    TEST_SAY(t, n.fast > 3000, "only %lld calls were fast, %lld declined", (long long)n.fast,
             (long long)n.declined);
}

/* ---- large and odd --------------------------------------------------------------------------- */

TS_TEST_RANKS(large_and_odd_reductions, 1, 2)
{
    static const char *const names[] = { "sum",       "mean",          "amax",  "amin",
                                         "logsumexp", "count_nonzero", "powsum" };
    static const double powers[] = { 0, 1, 2, 3.5 };
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_F64, TS_DTYPE_I64 };
    const ts_shape shapes[] = { TS_SHAPE(70001), TS_SHAPE(777, 130), TS_SHAPE(5, 333, 37),
                                TS_SHAPE(2, 7, 1, 1025) };
    static const int64_t masks[][3] = { { 0, 0, 0 }, { 1, 0, 0 }, { 1, -1, 0 }, { 2, 0, -1 } };
    counts n = { 0, 0 };
    for (size_t k = 0; k < TSI_COUNT_OF(names); k++)
        for (size_t s = 0; s < TSI_COUNT_OF(shapes); s++)
            for (size_t d = 0; d < TSI_COUNT_OF(dtypes); d++)
                for (size_t m = 0; m < TSI_COUNT_OF(masks); m++) {
                    call c = call_of(names[k], 1, &shapes[s], dtypes[d]);
                    if (masks[m][0] > shapes[s].ndim || (d == 3 && (k == 1 || k == 4 || k == 6)))
                        continue;
                    ((tsi_reduce_attributes *)(void *)c.attributes)->p = powers[(s + m) % 4];
                    set_dims(&c, (int32_t)masks[m][0], masks[m][1], masks[m][2]);
                    TEST_CHECK(t, infer(&c));
                    run_both(t, &c, (spread)(m % 2), &n);
                }
    TEST_CHECK(t, n.fast > 120);
}

TS_TEST_RANKS(large_and_odd_rows, 1, 2)
{
    static const char *const names[] = {
        "softmax",
        "log_softmax",
        "add",
        "mul",
        "silu",
        "gt",
        "silu_backward",
        "gelu",
        "swiglu",
        "softmax_backward",
        "gelu_tanh",
        "log_softmax_backward",
        "exp",
        "tanh",
        "gelu_tanh_backward",
        "log",
        "swiglu_backward",
        "elu",
        "expm1",
        "softplus",
        "log_sigmoid",
        "log1p",
    };
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_F16, TS_DTYPE_F64 };
    const ts_shape shapes[] = { TS_SHAPE(33001), TS_SHAPE(29, 511), TS_SHAPE(2, 3, 2049) };
    counts n = { 0, 0 };
    for (size_t k = 0; k < TSI_COUNT_OF(names); k++)
        for (size_t s = 0; s < TSI_COUNT_OF(shapes); s++)
            for (size_t d = 0; d < TSI_COUNT_OF(dtypes); d++)
                for (int how = 0; how < SPREADS; how++) {
                    if (k >= 8 && d >= 2) continue; /* the others go the same way */
                    const tsi_op_desc *op = tsi_op_find(names[k]);
                    const ts_shape three[] = { shapes[s], shapes[s], shapes[s] };
                    call c = call_of(names[k], op->input_max, three, dtypes[d]);
                    double one = 1.0;
                    int64_t last = shapes[s].ndim - 1;
                    if (op->attribute_bytes == sizeof one) memcpy(c.attributes, &one, sizeof one);
                    if (strstr(names[k], "softmax")) memcpy(c.attributes, &last, sizeof last);
                    TEST_CHECK(t, infer(&c));
                    run_both(t, &c, (spread)how, &n);
                }
    TEST_CHECK(t, n.fast > 200);
}

TS_TEST_RANKS(gradients_of_norms, 1, 2)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_F16 };
    counts n = { 0, 0 };
    for (int64_t rows = 0; rows < 600; rows = rows * 3 + 1)
        for (size_t d = 0; d < TSI_COUNT_OF(dtypes); d++)
            for (int how = 0; how < SPREADS; how++) {
                int64_t length = 1 + 7 * rows % 300;
                ts_shape x = TS_SHAPE(rows, length), w = TS_SHAPE(length), one = TS_SHAPE(rows, 1);
                const ts_shape shapes[] = { x, x, w, one, one };
                for (int32_t layer = 0; layer < 2; layer++) {
                    call c = call_of(layer ? "layer_norm_backward" : "rms_norm_backward", 4 + layer,
                                     shapes, dtypes[d]);
                    c.in[3].dtype = c.in[4].dtype = TS_DTYPE_F32;
                    TEST_CHECK(t, infer(&c));
                    run_both(t, &c, (spread)how, &n);
                }
            }
    TEST_CHECK(t, n.fast > 60);
}

TS_TEST_RANKS(broadcasts, 1, 2)
{
    const ts_shape pairs[][2] = { { TS_SHAPE(130, 257), TS_SHAPE(257) },
                                  { TS_SHAPE(130, 257), TS_SHAPE(130, 1) },
                                  { TS_SHAPE(1), TS_SHAPE(33001) },
                                  { TS_SHAPE(5, 1, 300), TS_SHAPE(7, 1) },
                                  { TS_SHAPE(3, 1, 65), TS_SHAPE(3, 129, 1) } };
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_F64, TS_DTYPE_I64 };
    counts n = { 0, 0 };
    for (size_t p = 0; p < TSI_COUNT_OF(pairs); p++)
        for (size_t d = 0; d < TSI_COUNT_OF(dtypes); d++)
            for (int how = 0; how < SPREADS; how++) {
                call c = call_of(how == 1 ? "mul" : "sub", 2, pairs[p], dtypes[d]);
                double alpha = 1.0;
                memcpy(c.attributes, &alpha, sizeof alpha);
                if (p == 2 && d == 0) c.in[1].dtype = TS_DTYPE_BF16; /* mixed */
                TEST_CHECK(t, infer(&c));
                run_both(t, &c, (spread)how, &n);
            }
    TEST_EQ(t, n.declined, 0);
}

/* ---- the same bits with any number of threads ------------------------------------------------ */

TS_TEST_RANKS(threads_do_not_change_bits, 1, 2)
{
    static const char *const names[] = { "sum", "mean", "softmax", "rms_norm", "exp", "matmul" };
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16 };
    for (size_t k = 0; k < TSI_COUNT_OF(names); k++)
        for (size_t d = 0; d < TSI_COUNT_OF(dtypes); d++)
            for (int64_t dim = 0; dim < 3; dim++) {
                const ts_shape factors[][2] = { { TS_SHAPE(500, 600), TS_SHAPE(600, 520) },
                                                { TS_SHAPE(301, 733), TS_SHAPE(733, 1030) },
                                                { TS_SHAPE(1100, 900), TS_SHAPE(900, 70) } };
                const ts_shape *shape = factors[k == 5 ? dim : 0];
                call c = call_of(names[k], k == 5 ? 2 : 1, shape, dtypes[d]);
                if (k < 2) set_dims(&c, dim == 2 ? 0 : 1, dim, 0);
                if (k == 2) memcpy(c.attributes, &(int64_t){ dim % 2 }, 8);
                TEST_CHECK(t, infer(&c));
                repeat_with_threads(t, &c);
            }
}

/* ---- groups of channels ---------------------------------------------------------------------- */

/* Few and many places, with and without weight and bias; batch, channels and places that are odd.
 */
TS_TEST_RANKS(norms_of_groups, 1, 2)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_F16 };
    static const int64_t places[] = { 1, 5, 33, 131, 1500 };
    counts n = { 0, 0 };
    for (size_t p = 0; p < TSI_COUNT_OF(places); p++)
        for (size_t d = 0; d < TSI_COUNT_OF(dtypes); d++)
            for (int k = 0; k < 9; k++) {
                const ts_shape x = TS_SHAPE(3, 6, places[p]), w = TS_SHAPE(6);
                const ts_shape in[] = { x, w, w };
                call c = call_of("group_norm", 1 + k % 3, in, dtypes[d]);
                const struct {
                    int64_t groups;
                    double eps;
                } attributes = { k < 3 ? 1 : k < 6 ? 2 : 6, 1e-3 };
                memcpy(c.attributes, &attributes, sizeof attributes);
                if (p == 0) c.in[0].shape.ndim = 2;
                TEST_CHECK(t, infer(&c));
                for (int how = 0; how < SPREADS; how++)
                    run_both(t, &c, (spread)how, &n);
                repeat_with_threads(t, &c);
            }
    TEST_EQ(t, n.declined, 0);
}

/* ---- losses of elements ---------------------------------------------------------------------- */

TS_TEST_RANKS(losses_of_differences, 1, 2)
{
    static const char *const names[] = { "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss" };
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_F16 };
    const ts_shape shapes[] = { TS_SHAPE(40001), TS_SHAPE(77, 130), TS_SHAPE(5, 33, 7),
                                TS_SHAPE_SCALAR };
    counts n = { 0, 0 };
    for (size_t k = 0; k < TSI_COUNT_OF(names); k++)
        for (size_t s = 0; s < TSI_COUNT_OF(shapes); s++)
            for (int i = 0; i < 9; i++) {
                const ts_shape in[] = { shapes[s], shapes[s] };
                call c = call_of(names[k], 2, in, dtypes[i / 3]);
                const struct {
                    int32_t reduction, log_target;
                    double point;
                } attributes = { i % 3, 0, 1.25 };
                memcpy(c.attributes, &attributes, sizeof attributes);
                if (k == 1) c.in[1].dtype = TS_DTYPE_F32; /* of two dtypes */
                TEST_CHECK(t, infer(&c));
                for (int how = 0; how < SPREADS; how++)
                    run_both(t, &c, (spread)how, &n);
                repeat_with_threads(t, &c);
            }
    TEST_EQ(t, n.declined, 0);
}

/* ---- along one dim --------------------------------------------------------------------------- */

/* Places, variances, sums so far and truths, of every stride and number of threads. */
TS_TEST_RANKS(kernels_along_a_dim, 1, 2)
{
    static const char *const names[] = { "argmax", "argmin", "max",    "min", "var",
                                         "std",    "any",    "cumsum", "all", "count_nonzero" };
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_BOOL };
    const ts_shape shapes[] = { TS_SHAPE(70001), TS_SHAPE(777, 130), TS_SHAPE(5, 33, 70) };
    counts n = { 0, 0 };
    for (size_t k = 0; k < TSI_COUNT_OF(names); k++)
        for (size_t s = 0; s < TSI_COUNT_OF(shapes); s++)
            for (size_t d = 0; d < TSI_COUNT_OF(dtypes); d++)
                for (int32_t dim = 0; dim < shapes[s].ndim; dim++) {
                    call c = call_of(names[k], 1, &shapes[s], dtypes[d]);
                    bool stat = k == 4 || k == 5;
                    if (stat && dtypes[d] == TS_DTYPE_BOOL) continue;
                    set_dims(&c, 1, dim, 0);
                    if (k == 7)
                        memcpy(c.attributes, (const int64_t[]){ dim, dim % 2 }, 16); /* reverse */
                    TEST_CHECK(t, infer(&c));
                    run_both(t, &c, (spread)(dim % SPREADS), &n);
                    if (s == 1) repeat_with_threads(t, &c);
                }
    TEST_SAY(t, n.fast > 80, "only %lld calls were fast, %lld declined", (long long)n.fast,
             (long long)n.declined);
}

/* The same over several dims, and norms over several: whatever the strides, nothing declines. */
TS_TEST_RANKS(kernels_over_several_dims, 1, 2)
{
    static const char *const names[] = { "argmax",      "argmin",        "var",
                                         "std",         "count_nonzero", "logsumexp",
                                         "vector_norm", "rms_norm",      "layer_norm" };
    static const double powers[] = { 2, 1, 0, 3, 0.5, (double)INFINITY };
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_F16 };
    const ts_shape shape = TS_SHAPE(7, 33, 20, 3), inner = TS_SHAPE(20, 3);
    const ts_shape shapes[] = { shape, inner, inner };
    counts n = { 0, 0 };
    for (size_t k = 0; k < TSI_COUNT_OF(names); k++)
        for (size_t d = 0; d < TSI_COUNT_OF(dtypes); d++)
            for (int how = 0; how < SPREADS; how++) {
                call c = call_of(names[k], k < 7 ? 1 : (int32_t)k - 5, shapes, dtypes[d]);
                if (k < 2)
                    set_dims(&c, -1, 0, 0); /* the flattened tensor */
                else if (k < 7)
                    set_dims(&c, 2, how % 2, 3);
                else
                    ((tsi_norm_attributes *)(void *)c.attributes)->normalized =
                        (tsi_dims){ .count = 2, .value = { 20, 3 } };
                if (k == 6)
                    ((tsi_reduce_attributes *)(void *)c.attributes)->p =
                        powers[((size_t)how + d) % TSI_COUNT_OF(powers)];
                TEST_CHECK(t, infer(&c));
                run_both(t, &c, (spread)how, &n);
            }
    TEST_EQ(t, n.declined, 0);
}

/* ---- what a training step needs -------------------------------------------------------------- */

/* Rotary positions, cross entropy and embeddings, forward and back; casts and copies. */
static call step_call(int which, ts_dtype dtype)
{
    const ts_shape rows = TS_SHAPE(5, 61, 1003), labels = TS_SHAPE(5, 61);
    const ts_shape heads = TS_SHAPE(3, 2, 129, 62), angles = TS_SHAPE(140, 62);
    const ts_shape table = TS_SHAPE(301, 130), found = TS_SHAPE(5, 61, 130);
    call c = { .input_count = 2 };
    const ts_shape in[][4] = {
        { heads, angles }, { rows, labels },  { rows, labels, labels, labels },
        { table, labels }, { found, labels }, { rows },
        { rows },          { rows }
    };
    static const char *const names[] = { "rope",
                                         "cross_entropy",
                                         "cross_entropy_backward",
                                         "embedding",
                                         "embedding_backward",
                                         "clone",
                                         "cast",
                                         "cast" };
    int32_t count = which == 2 ? 4 : which < 5 ? 2 : 1;
    c = call_of(names[which], count, in[which], dtype);
    if (which > 0 && which < 5) c.in[1].dtype = TS_DTYPE_I64;
    if (which == 1) memcpy(c.attributes, &(int64_t){ 2 }, 8);   /* ignore_index */
    if (which == 4) memcpy(c.attributes, &(int64_t){ 301 }, 8); /* rows */
    if (which > 5) memcpy(c.attributes, &(int32_t){ which == 6 ? TS_DTYPE_BF16 : TS_DTYPE_F32 }, 4);
    return c;
}

TS_TEST_RANKS(kernels_of_a_step, 1, 2)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_F64 };
    counts n = { 0, 0 };
    for (int which = 0; which < 8; which++)
        for (size_t d = 0; d < TSI_COUNT_OF(dtypes); d++) {
            call c = step_call(which, dtypes[d]);
            TEST_CHECK(t, infer(&c));
            for (int how = 0; how < SPREADS; how++)
                run_both(t, &c, (spread)how, &n);
            repeat_with_threads(t, &c);
        }
    TEST_SAY(t, n.fast > 40, "only %lld calls were fast", (long long)n.fast);
}

/* beta c + alpha a b, c whole or one row for all. */
TS_TEST_RANKS(products_with_factors, 1, 2)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_F64 };
    static const double factors[][2] = { { 2.0315, -4.775 }, { 1, 3.4445 }, { -0.5, 1 }, { 2, 0 } };
    const ts_shape shapes[][3] = { { TS_SHAPE(7, 601), TS_SHAPE(7, 33), TS_SHAPE(33, 601) },
                                   { TS_SHAPE(601), TS_SHAPE(7, 33), TS_SHAPE(33, 601) },
                                   { TS_SHAPE(3, 1), TS_SHAPE(3, 2), TS_SHAPE(2, 5) } };
    counts n = { 0, 0 };
    for (size_t d = 0; d < TSI_COUNT_OF(dtypes); d++)
        for (size_t f = 0; f < TSI_COUNT_OF(factors); f++)
            for (size_t s = 0; s < TSI_COUNT_OF(shapes); s++) {
                call c = call_of("addmm", 3, shapes[s], dtypes[d]);
                const ts_number both[] = { tsi_number_real(factors[f][0]),
                                           tsi_number_real(factors[f][1]) };
                memcpy(c.attributes, both, sizeof both);
                TEST_CHECK(t, infer(&c));
                for (int how = 0; how < SPREADS; how++)
                    run_both(t, &c, (spread)how, &n);
                repeat_with_threads(t, &c);
            }
    TEST_EQ(t, n.declined, 0);
}

/* Infinities, NaN and huge numbers come out as the references give them. */
TS_TEST_RANKS(harsh_numbers, 1)
{
    static const char *const names[] = { "add",     "mul",         "maximum",  "minimum",    "silu",
                                         "sigmoid", "tanh",        "gelu",     "relu",       "exp",
                                         "softmax", "log_softmax", "clone",    "erf",        "sqrt",
                                         "expm1",   "log1p",       "softplus", "log_sigmoid" };
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16 };
    counts n = { 0, 0 };
    harsh = true;
    for (size_t k = 0; k < TSI_COUNT_OF(names); k++)
        for (size_t d = 0; d < TSI_COUNT_OF(dtypes); d++)
            for (int how = 0; how < SPREADS; how++) {
                const ts_shape two[] = { TS_SHAPE(97, 11), TS_SHAPE(97, 11) };
                const tsi_op_desc *op = tsi_op_find(names[k]);
                call c = call_of(names[k], op->input_max, two, dtypes[d]);
                if (op->attribute_bytes == 8 && k < 4) memcpy(c.attributes, &(double){ 1 }, 8);
                if (k == 10 || k == 11) memcpy(c.attributes, &(int64_t){ 1 }, 8);
                TEST_CHECK(t, infer(&c));
                run_both(t, &c, (spread)how, &n);
            }
    harsh = false;
    TEST_CHECK(t, n.fast == 2 * SPREADS * (int64_t)TSI_COUNT_OF(names));
}

/* ---- squares of a list ----------------------------------------------------------------------- */

/* Items of no element, of some, of several chunks and of more chunks than one loop has. */
static const int64_t square_counts[] = { 5, 0, 65536, 65537, 300, 1, 1200000, 0, 65536, 16777216 };
enum { SQUARES = TSI_COUNT_OF(square_counts) };

static void add_squares(test *t, float *x, double *sum)
{
    tsi_list_item item[SQUARES] = { 0 };
    for (int64_t i = 0, at = 0; i < SQUARES; at += square_counts[i++]) {
        item[i].count = square_counts[i];
        item[i].part[TSI_SQUARES_OF] = (tsi_list_part){ x + at % 1000, TS_DTYPE_F32, 0 };
        item[i].part[TSI_SQUARES_SUM] = (tsi_list_part){ &sum[i % 3], TS_DTYPE_F64, 0 };
    }
    tsi_list_io io = { .item = item, .count = SQUARES, .rank = t->me };
    TEST_OK(t, tsi_list_run(&tsi_list_squares, io));
}

TS_TEST_RANKS(squares_of_lists, 1, 2)
{
    int64_t most = square_counts[SQUARES - 1] + 1000;
    float *x = tsi_calloc((size_t)most, sizeof *x);
    double want[3] = { 0 }, whole[3] = { 0 };
    for (int64_t i = 0; i < most; i++)
        x[i] = (float)random_real(t);
    for (int64_t i = 0, at = 0; i < SQUARES; at += square_counts[i++])
        for (int64_t k = 0; k < square_counts[i]; k++)
            want[i % 3] += (double)x[at % 1000 + k] * (double)x[at % 1000 + k];
    tsi_backend_cpu_add();
    add_squares(t, x, whole);
    for (int s = 0; s < 3; s++)
        TEST_SAY(t, fabs(whole[s] - want[s]) <= 1e-7 * want[s], "sum %d: %.9g, not %.9g", s,
                 whole[s], want[s]);
    for (int32_t threads = 1; threads <= 3; threads++) {
        double again[3] = { 0 };
        tsi_parallel_limit(t->me, threads);
        add_squares(t, x, again);
        TEST_SAY(t, memcmp(again, whole, sizeof whole) == 0, "other bits with %d threads", threads);
    }
    tsi_parallel_limit(t->me, 0);
    tsi_free(x);
}
