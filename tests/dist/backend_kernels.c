/* SPDX-License-Identifier: Apache-2.0 */
/* backend_kernels.c - the fast kernels of the cpu against the references, operator by operator.
 *
 * Every operator's sample is run in several dtypes with operands that are dense, permuted, spread
 * out or repeated by zero strides; further cases are large and odd. A kernel may decline; what it
 * does not decline must agree with the reference within the tolerance of its dtype, and must not
 * depend on the number of threads by a single bit. */
#include <math.h>

#include "backend/cpu/install.h"
#include "base/alloc.h"
#include "device/parallel.h"
#include "harness/test.h"
#include "op/contract.h"
#include "op/op.h"

/* ---- operands -------------------------------------------------------------------------------- */

typedef struct operand {
    tsi_operand is;
    ts_meta meta;
    void *memory;
    size_t bytes;
} operand;

typedef enum spread { DENSE, PERMUTED, GAPS, SPREADS } spread;

/* Memory for a block with the strides of a spread; all its bytes are defined. */
static void place(test *t, operand *x, const ts_meta *meta, spread how)
{
    x->meta = *meta;
    tsi_block *b = &x->is.block;
    *b = (tsi_block){ .dtype = meta->dtype, .ndim = meta->shape.ndim };
    memcpy(b->extent, meta->shape.extent, sizeof b->extent);
    int64_t stride = how == GAPS ? 2 : 1;
    for (int32_t i = b->ndim - 1; i >= 0; i--) {
        int32_t d = how == PERMUTED ? b->ndim - 1 - i : i;
        b->stride[d] = stride;
        stride *= b->extent[d] + (how == GAPS);
    }
    x->bytes = (size_t)(stride + 8) * ts_dtype_size((ts_dtype)meta->dtype);
    x->memory = tsi_calloc(1, x->bytes);
    TEST_CHECK(t, x->memory != NULL);
    b->data = x->memory;
    x->is.global = &x->meta;
    x->is.region = NULL;
}

static double random_real(test *t)
{
    return (double)(test_random_below(t, 4001) - 2000) / 500.0;
}

static bool harsh; /* now and then an infinity, a NaN, a zero or a huge number; one rank only */

static double harsh_real(test *t, double otherwise)
{
    static const double special[] = {
        (double)INFINITY, (double)-INFINITY, (double)NAN, 0.0, -0.0, 1e30, -1e30, 1e-30
    };
    return test_random_below(t, 9) ? otherwise : special[test_random_below(t, 8)];
}

static void fill(test *t, operand *x, double low, bool positive)
{
    tsi_block *b = &x->is.block;
    tsi_loop loop = tsi_loop_over(b);
    ts_dtype dtype = (ts_dtype)b->dtype;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        double v = random_real(t);
        if (positive) v = fabs(v) + 0.05;
        if (harsh && tsi_dtype_category(dtype) == TSI_CATEGORY_REAL) v = harsh_real(t, v);
        if (tsi_dtype_category(dtype) <= TSI_CATEGORY_INT) v = floor(fabs(v)) + low;
        if (dtype == TS_DTYPE_BOOL) v = v > 1.0 ? 1.0 : 0.0;
        tsi_store_complex(dtype, tsi_block_at(b, loop.at[0]), v);
    }
}

static double tolerance(ts_dtype dtype)
{
    if (dtype == TS_DTYPE_F64 || dtype == TS_DTYPE_C128) return 1e-11;
    if (dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_C64) return 2e-5;
    return dtype == TS_DTYPE_F16 ? 2e-3 : 1.2e-2;
}

/* The largest size of a number. */
static double largest(const operand *x)
{
    tsi_loop loop = tsi_loop_over(&x->is.block);
    double most = 0;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        double size = cabs(
            tsi_load_complex((ts_dtype)x->is.block.dtype, tsi_block_at(&x->is.block, loop.at[0])));
        if (size > most) most = size;
    }
    return most;
}

/* Each number within the tolerance of its own size, or of a `size` that is larger. */
static void same_numbers_of(test *t, const operand *have, const operand *want, const char *what,
                            double size)
{
    const tsi_block *b = &have->is.block;
    tsi_loop loop = tsi_loop_over(b);
    loop.operand_count = 2;
    loop.stride[1] = want->is.block.stride;
    ts_dtype dtype = (ts_dtype)b->dtype;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        double complex x = tsi_load_complex(dtype, tsi_block_at(b, loop.at[0]));
        double complex y = tsi_load_complex((ts_dtype)want->is.block.dtype,
                                            tsi_block_at(&want->is.block, loop.at[1]));
        bool nan = isnan(creal(x)) && isnan(creal(y));
        bool same = nan || x == y || cabs(x - y) <= tolerance(dtype) * (1 + fmax(size, cabs(y)));
        TEST_SAY(t, same, "%s: %.9g, not %.9g", what, creal(x), creal(y));
        if (!same) return;
    }
}

/* ---- one call, both ways --------------------------------------------------------------------- */

typedef struct call {
    const tsi_op_desc *op;
    ts_meta in[TSI_INPUT_MAX], out[TSI_OUTPUT_MAX];
    int32_t input_count;
    _Alignas(16) unsigned char attributes[512];
} call;

typedef struct counts {
    int64_t fast, declined;
} counts;

static void release(operand *x, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        tsi_free(x[i].memory);
}

/* References that add up in the dtype of their results are asked in f64. */
static bool is_rough(const call *c)
{
    return strncmp(c->op->name, "attention", 9) == 0 || strcmp(c->op->name, "sum_to") == 0;
}

static void widen(test *t, operand *to, const operand *from)
{
    ts_meta meta = from->meta;
    meta.dtype = TS_DTYPE_F64;
    place(t, to, &meta, DENSE);
    TEST_OK(t, tsi_device_cpu()->copy(tsi_device_cpu(), &to->is.block, &from->is.block, NULL));
}

/* Output and log-sum-exp, inputs 3 and 4 of the gradient, as attention gives them. */
static void attend_first(test *t, const call *c, operand *in)
{
    operand wide[3] = { 0 }, out[2] = { 0 };
    tsi_operand in_is[3], out_is[2];
    for (int i = 0; i < 3; i++) {
        widen(t, &wide[i], &in[i]);
        in_is[i] = wide[i].is;
    }
    for (int o = 0; o < 2; o++) {
        widen(t, &out[o], &in[3 + o]);
        out_is[o] = out[o].is;
    }
    tsi_kernel_io io = { .op = &tsi_op_attention,
                         .attributes = c->attributes,
                         .in = in_is,
                         .out = out_is,
                         .input_count = 3,
                         .output_count = 2,
                         .device = tsi_device_cpu() };
    TEST_OK(t, tsi_op_attention.reference(&io));
    for (int o = 0; o < 2; o++)
        TEST_OK(t, tsi_device_cpu()->copy(tsi_device_cpu(), &in[3 + o].is.block, &out[o].is.block,
                                          NULL));
    release(wide, 3);
    release(out, 2);
}

/* Gradients of attention, softmax and norms are long sums of numbers that nearly cancel: their
 * error is that of the largest result. */
static double size_of(const call *c, const operand *want)
{
    bool sums = strstr(c->op->name, "softmax_backward") || strstr(c->op->name, "norm_backward");
    return sums || (is_rough(c) && c->input_count == 6) ? largest(want) : 0.0;
}

/* Runs kernel and reference on the same inputs with outputs of their own. */
static void run_both(test *t, const call *c, spread how, counts *n)
{
    operand in[TSI_INPUT_MAX] = { 0 }, out[TSI_OUTPUT_MAX] = { 0 }, want[TSI_OUTPUT_MAX] = { 0 };
    char what[160];
    snprintf(what, sizeof what, "%s %s spread %d", c->op->name,
             ts_dtype_name((ts_dtype)c->in[0].dtype), (int)how);
    bool positive = strcmp(c->op->name, "prod") == 0 || strcmp(c->op->name, "pow") == 0;
    tsi_operand in_is[TSI_INPUT_MAX], out_is[TSI_OUTPUT_MAX], want_is[TSI_OUTPUT_MAX];
    for (int32_t i = 0; i < c->input_count; i++) {
        if (c->in[i].dtype != TS_DTYPE_NONE) {
            place(t, &in[i], &c->in[i], how);
            fill(t, &in[i], 0, positive);
        } else {
            in[i].meta = c->in[i];
            in[i].is.global = &in[i].meta;
        }
        in_is[i] = in[i].is;
    }
    if (is_rough(c) && c->input_count == 6) attend_first(t, c, in);
    operand wide[TSI_INPUT_MAX] = { 0 };
    for (int32_t o = 0; o < c->op->output_count; o++) {
        ts_meta meta = c->out[o];
        if (is_rough(c)) meta.dtype = TS_DTYPE_F64;
        place(t, &out[o], &c->out[o], how == GAPS ? DENSE : how);
        place(t, &want[o], &meta, DENSE);
        out_is[o] = out[o].is;
        want_is[o] = want[o].is;
    }
    tsi_kernel_io io = { .op = c->op,
                         .attributes = c->attributes,
                         .in = in_is,
                         .out = out_is,
                         .input_count = c->input_count,
                         .output_count = c->op->output_count,
                         .rank = t->me,
                         .device = tsi_device_cpu() };
    int verdict = (int)tsi_kernel_of(tsi_device_cpu(), c->op)(&io);
    io.out = want_is;
    if (verdict == TSI_KERNEL_DECLINED) {
        n->declined++;
    } else {
        n->fast++;
        for (int32_t i = 0; is_rough(c) && i < c->input_count; i++) {
            widen(t, &wide[i], &in[i]);
            in_is[i] = wide[i].is;
        }
        TEST_SAY(t, verdict == TS_OK, "%s: status %d", what, verdict);
        TEST_OK(t, c->op->reference(&io));
        for (int32_t o = 0; o < c->op->output_count; o++)
            same_numbers_of(t, &out[o], &want[o], what, size_of(c, &want[o]));
    }
    release(in, c->input_count);
    release(wide, c->input_count);
    release(out, c->op->output_count);
    release(want, c->op->output_count);
}

static bool infer(call *c)
{
    tsi_op_call op_call = {
        c->op, c->attributes, c->in, c->out, c->input_count, c->op->output_count
    };
    if (c->op->normalise && c->op->normalise(c->op, c->in, c->input_count, c->attributes) != TS_OK)
        return false;
    return c->op->infer(&op_call) == TS_OK;
}

/* ---- every operator's sample, in several dtypes ---------------------------------------------- */

static void with_dtype(call *c, ts_dtype dtype)
{
    for (int32_t i = 0; i < c->input_count; i++)
        if (c->in[i].dtype == TS_DTYPE_F64) c->in[i].dtype = (int32_t)dtype;
}

TS_TEST_RANKS(kernels_agree_with_references, 1, 2)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F64, TS_DTYPE_F32, TS_DTYPE_BF16,
                                       TS_DTYPE_F16, TS_DTYPE_I64, TS_DTYPE_I32 };
    counts n = { 0, 0 };
    tsi_backend_cpu_install();
    for (int32_t id = 0; id < TSI_OP_ID_COUNT; id++) {
        const tsi_op_desc *op = tsi_op_at(id);
        if (!op->sample || !tsi_kernel_of(tsi_device_cpu(), op)) continue;
        for (int32_t variant = 0; variant < 8; variant++) {
            for (size_t d = 0; d < TSI_COUNT_OF(dtypes); d++) {
                call c = { .op = op, .input_count = op->input_max };
                uint64_t random = t->seed + (uint64_t)variant;
                if (!op->sample(&random, variant, c.in, &c.input_count, c.attributes)) break;
                with_dtype(&c, dtypes[d]);
                ts_scope_options options = TS_INIT(ts_scope_options);
                options.catches = 1;
                ts_scope scope = ts_scope_open_with(t->me, &options);
                bool valid = infer(&c);
                (void)ts_scope_close(scope); /* a dtype the operator refuses */
                for (int how = 0; valid && how < SPREADS; how++)
                    run_both(t, &c, (spread)how, &n);
            }
        }
    }
    TEST_SAY(t, n.fast > 3000, "only %lld calls were fast, %lld declined", (long long)n.fast,
             (long long)n.declined);
}

/* ---- large and odd --------------------------------------------------------------------------- */

static call call_of(const char *name, int32_t input_count, const ts_shape *shape, ts_dtype dtype)
{
    call c = { .op = tsi_op_find(name), .input_count = input_count };
    for (int32_t i = 0; i < input_count; i++)
        c.in[i] = (ts_meta){ .shape = shape[i], .dtype = (int32_t)dtype };
    return c;
}

static void set_dims(call *c, int32_t count, int64_t a, int64_t b)
{
    tsi_dims dims = { .count = count, .value = { a, b } };
    memcpy(c->attributes, &dims, sizeof dims); /* the first member of every reduction's */
}

TS_TEST_RANKS(large_and_odd_reductions, 1, 2)
{
    static const char *const names[] = { "sum", "mean", "amax", "amin", "logsumexp" };
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
                    if (masks[m][0] > shapes[s].ndim || (d == 3 && (k == 1 || k == 4))) continue;
                    set_dims(&c, (int32_t)masks[m][0], masks[m][1], masks[m][2]);
                    TEST_CHECK(t, infer(&c));
                    run_both(t, &c, (spread)(m % 2), &n);
                }
    TEST_CHECK(t, n.fast > 120);
}

TS_TEST_RANKS(large_and_odd_rows, 1, 2)
{
    static const char *const names[] = {
        "softmax",   "log_softmax",          "add",  "mul",    "silu",
        "gt",        "silu_backward",        "gelu", "swiglu", "softmax_backward",
        "gelu_tanh", "log_softmax_backward", "exp",  "tanh",   "gelu_tanh_backward",
        "log",       "swiglu_backward",
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

/* ---- matrix products ------------------------------------------------------------------------- */

static void product_case(test *t, const char *equation, const ts_meta *meta, spread how, bool add)
{
    operand x[4] = { 0 };
    tsi_contraction fast, slow;
    for (int k = 0; k < 3; k++) {
        place(t, &x[k], &meta[k], how);
        fill(t, &x[k], 0, false);
    }
    place(t, &x[3], &meta[2], DENSE);
    TEST_OK(t, tsi_device_cpu()->copy(tsi_device_cpu(), &x[3].is.block, &x[2].is.block, NULL));
    tsi_contraction_make(equation, &x[0].is.block, &x[1].is.block, &x[2].is.block, &fast);
    tsi_contraction_make(equation, &x[0].is.block, &x[1].is.block, &x[3].is.block, &slow);
    TEST_OK(t, tsi_contract(&fast, add));
    TEST_OK(t, tsi_contract_reference(&slow, add));
    char what[128];
    snprintf(what, sizeof what, "%s %s spread %d%s", equation,
             ts_dtype_name((ts_dtype)meta[0].dtype), (int)how, add ? " added" : "");
    same_numbers_of(t, &x[2], &x[3], what, largest(&x[3])); /* sums that may cancel */
    release(x, 4);
}

TS_TEST_RANKS(products_agree_with_loops, 1, 2)
{
    static const struct {
        const char *equation;
        ts_shape shape[3];
    } cases[] = {
        { "mk,kn->mn", { { 2, 0, { 37, 65 } }, { 2, 0, { 65, 21 } }, { 2, 0, { 37, 21 } } } },
        { "mk,nk->mn", { { 2, 0, { 1, 130 } }, { 2, 0, { 90, 130 } }, { 2, 0, { 1, 90 } } } },
        { "km,kn->nm", { { 2, 0, { 19, 33 } }, { 2, 0, { 19, 70 } }, { 2, 0, { 70, 33 } } } },
        { "Amk,Akn->Amn",
          { { 3, 0, { 5, 17, 9 } }, { 3, 0, { 5, 9, 12 } }, { 3, 0, { 5, 17, 12 } } } },
        { "Amk,Akn->Anm",
          { { 3, 0, { 5, 17, 9 } }, { 3, 0, { 5, 9, 12 } }, { 3, 0, { 5, 12, 17 } } } },
        { "ABk,nk->ABn",
          { { 3, 0, { 3, 20, 40 } }, { 2, 0, { 24, 40 } }, { 3, 0, { 3, 20, 24 } } } },
        { "ABk,ABn->nk",
          { { 3, 0, { 4, 30, 16 } }, { 3, 0, { 4, 30, 24 } }, { 2, 0, { 24, 16 } } } },
        { "bqhd,bkhd->bhqk",
          { { 4, 0, { 2, 13, 3, 8 } }, { 4, 0, { 2, 11, 3, 8 } }, { 4, 0, { 2, 3, 13, 11 } } } },
        { "Amk,kn->Amn", { { 3, 0, { 1, 6, 300 } }, { 2, 0, { 300, 5 } }, { 3, 0, { 1, 6, 5 } } } },
        { "k,k->", { { 1, 0, { 1000 } }, { 1, 0, { 1000 } }, { 0, 0, { 0 } } } },
        { "mk,k->m", { { 2, 0, { 70, 50 } }, { 1, 0, { 50 } }, { 1, 0, { 70 } } } },
        { "mk,kn->mn", { { 2, 0, { 5, 0 } }, { 2, 0, { 0, 3 } }, { 2, 0, { 5, 3 } } } },
    };
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_F64,  TS_DTYPE_BF16, TS_DTYPE_F16,
                                       TS_DTYPE_C64, TS_DTYPE_C128, TS_DTYPE_I64,  TS_DTYPE_I32 };
    for (size_t i = 0; i < TSI_COUNT_OF(cases); i++)
        for (size_t d = 0; d < TSI_COUNT_OF(dtypes); d++)
            for (int how = 0; how < SPREADS; how++) {
                ts_meta meta[3];
                for (int k = 0; k < 3; k++)
                    meta[k] = (ts_meta){ .shape = cases[i].shape[k], .dtype = (int32_t)dtypes[d] };
                if (d == 0 && how == 2) meta[1].dtype = TS_DTYPE_BF16; /* mixed */
                product_case(t, cases[i].equation, meta, (spread)how, i % 2 == 1);
            }
}

/* Every small size once in a while, from the blocks of the operators themselves. */
TS_TEST_RANKS(small_products, 1, 2)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_F64, TS_DTYPE_BF16 };
    counts n = { 0, 0 };
    for (int i = 0; i < 120; i++) {
        int64_t size[3];
        for (int k = 0; k < 3; k++)
            size[k] = test_random_below(t, 20) + 1;
        bool linear = i % 3 == 1, many = i % 3 == 2;
        const ts_shape a = TS_SHAPE(size[0], size[2]), b = TS_SHAPE(size[2], size[1]);
        const ts_shape w = TS_SHAPE(size[1], size[2]), as = TS_SHAPE(5, size[0], size[2]);
        const ts_shape bs = TS_SHAPE(5, size[2], size[1]);
        const ts_shape shape[] = { many ? as : a, many ? (i & 1 ? bs : b) : linear ? w : b };
        call c = call_of(linear ? "linear" : "matmul", 2, shape, dtypes[i / 3 % 3]);
        if (i % 10 == 4) c.in[0].shape.extent[many ? 2 : 1] = 1; /* one k for all, which infer */
        if (i % 10 == 9) c.in[1].shape.extent[many && i & 1 ? 1 : linear] = 1; /* takes */
        TEST_CHECK(t, infer(&c));
        run_both(t, &c, (spread)(i % SPREADS), &n);
    }
    TEST_SAY(t, n.fast > 70, "only %lld calls were fast", (long long)n.fast);
}

/* Vectors by matrices, short and long, k and results together or apart. */
TS_TEST_RANKS(products_with_vectors, 1)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_F64, TS_DTYPE_BF16 };
    static const int64_t sizes[][2] = { { 7, 3 }, { 130, 1027 }, { 2300, 61 }, { 3, 40001 } };
    static const char *const equations[] = { "k,kn->n", "k,nk->n", "mk,k->m" };
    for (size_t d = 0; d < TSI_COUNT_OF(dtypes); d++)
        for (size_t i = 0; i < TSI_COUNT_OF(sizes); i++)
            for (int e = 0; e < 3; e++)
                for (int how = 0; how < SPREADS; how++) {
                    int64_t n = sizes[i][0], k = sizes[i][1];
                    const ts_shape x = TS_SHAPE(k), out = TS_SHAPE(n);
                    const ts_shape w = e == 0 ? TS_SHAPE(k, n) : TS_SHAPE(n, k);
                    const ts_meta meta[] = {
                        { .shape = e == 2 ? w : x, .dtype = (int32_t)dtypes[d] },
                        { .shape = e == 2 ? x : w, .dtype = (int32_t)dtypes[d] },
                        { .shape = out, .dtype = (int32_t)dtypes[d] }
                    };
                    product_case(t, equations[e], meta, (spread)how, e == 1);
                }
}

/* Products of a size that is cut into tasks, in double by plain loops over dense copies. */
static void large_case(test *t, const ts_meta *meta, spread how)
{
    operand x[3] = { 0 };
    int64_t m = meta[2].shape.extent[0], n = meta[2].shape.extent[1], k = meta[0].shape.extent[1];
    for (int i = 0; i < 3; i++)
        place(t, &x[i], &meta[i], how);
    fill(t, &x[0], 0, false);
    fill(t, &x[1], 0, false);
    tsi_contraction fast;
    tsi_contraction_make("mk,kn->mn", &x[0].is.block, &x[1].is.block, &x[2].is.block, &fast);
    TEST_OK(t, tsi_contract(&fast, false));
    double *row = tsi_calloc((size_t)n, sizeof *row), worst = 0;
    ts_dtype dtype = (ts_dtype)meta[0].dtype;
    for (int64_t i = 0; i < m; i += 29) {
        memset(row, 0, (size_t)n * sizeof *row);
        for (int64_t l = 0; l < k; l++) {
            const tsi_block *a = &x[0].is.block, *b = &x[1].is.block;
            double f = tsi_load_real(dtype, tsi_block_at(a, i * a->stride[0] + l * a->stride[1]));
            for (int64_t j = 0; j < n; j++)
                row[j] +=
                    f * tsi_load_real(dtype, tsi_block_at(b, l * b->stride[0] + j * b->stride[1]));
        }
        for (int64_t j = 0; j < n; j++) {
            const tsi_block *c = &x[2].is.block;
            double y = tsi_load_real(dtype, tsi_block_at(c, i * c->stride[0] + j * c->stride[1]));
            double error =
                fabs(y - row[j]) / (60.0 + fabs(row[j])); /* sums of 1500 terms of size 2 */
            if (!(error <= worst)) worst = error;
        }
    }
    TEST_SAY(t, worst < tolerance(dtype), "%s spread %d: error %g", ts_dtype_name(dtype), (int)how,
             worst);
    tsi_free(row);
    release(x, 3);
}

TS_TEST_RANKS(large_products, 1)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16 };
    for (size_t d = 0; d < 2; d++)
        for (int how = 0; how < 2; how++) {
            const ts_meta meta[3] = {
                { .shape = TS_SHAPE(135, 1500), .dtype = (int32_t)dtypes[d] },
                { .shape = TS_SHAPE(1500, 1030), .dtype = (int32_t)dtypes[d] },
                { .shape = TS_SHAPE(135, 1030), .dtype = (int32_t)dtypes[d] }
            };
            large_case(t, meta, (spread)how);
        }
}

/* ---- attention ------------------------------------------------------------------------------ */

static call attention_call(const char *name, ts_dtype dtype, const int64_t *size, bool causal)
{
    /* size: B, H, G, T, S, D, E */
    const ts_shape q = TS_SHAPE(size[0], size[1], size[3], size[5]);
    const ts_shape k = TS_SHAPE(size[0], size[2], size[4], size[5]);
    const ts_shape v = TS_SHAPE(size[0], size[2], size[4], size[6]);
    const ts_shape o = TS_SHAPE(size[0], size[1], size[3], size[6]);
    const ts_shape lse = TS_SHAPE(size[0], size[1], size[3]);
    const ts_shape shape[] = { q, k, v, o, lse, o };
    call c = call_of(name, strcmp(name, "attention") == 0 ? 3 : 6, shape, dtype);
    c.in[4].dtype = TS_DTYPE_F32;
    struct {
        double scale;
        int32_t causal, reserved;
    } attributes = { 0.1, causal, 0 };
    memcpy(c.attributes, &attributes, sizeof attributes);
    return c;
}

/* Blocks of queries and keys that are cut, grouped heads, fewer and more keys than queries. */
TS_TEST_RANKS(attention_in_blocks, 1)
{
    static const int64_t sizes[][7] = { { 1, 2, 1, 150, 270, 8, 5 },  { 2, 4, 2, 131, 131, 4, 4 },
                                        { 1, 1, 1, 40, 20, 3, 2 },    { 1, 2, 2, 35, 270, 72, 40 },
                                        { 1, 1, 1, 17, 259, 256, 8 }, { 1, 6, 2, 1, 37, 16, 130 } };
    static const char *const names[] = { "attention", "attention_backward" };
    counts n = { 0, 0 };
    for (size_t i = 0; i < TSI_COUNT_OF(sizes); i++)
        for (int k = 0; k < 8; k++) {
            ts_dtype dtype = k & 2 ? TS_DTYPE_BF16 : TS_DTYPE_F32;
            call c = attention_call(names[k & 1], dtype, sizes[i], k & 4);
            TEST_CHECK(t, infer(&c));
            run_both(t, &c, (spread)((i + (size_t)(k >> 1)) % SPREADS), &n);
        }
    TEST_EQ(t, n.declined, 0);
}

/* Every D that tiles cut differently, odd numbers of queries and keys. */
TS_TEST_RANKS(attention_of_odd_sizes, 1)
{
    static const char *const names[] = { "attention", "attention_backward" };
    counts n = { 0, 0 };
    for (int64_t d = 1; d <= 37; d += d < 20 ? 3 : 1)
        for (int k = 0; k < 4; k++) {
            int64_t queries = test_random_below(t, 70) + 1, keys = test_random_below(t, 70) + 1;
            const int64_t size[] = { 1, 2, 1 + k / 2, queries, keys, d, 38 - d };
            call c = attention_call(names[k & 1], TS_DTYPE_BF16, size, k & 2);
            TEST_CHECK(t, infer(&c));
            run_both(t, &c, (spread)(d % SPREADS), &n);
        }
    TEST_EQ(t, n.declined, 0);
}

/* Scores far from each other and from zero: weights from 1 down to nothing, tops that grow. */
TS_TEST_RANKS(attention_of_large_scores, 1)
{
    const int64_t size[] = { 1, 1, 1, 40, 600, 16, 8 };
    counts n = { 0, 0 };
    for (int k = 0; k < 8; k++) {
        call c = attention_call("attention", k & 1 ? TS_DTYPE_BF16 : TS_DTYPE_F32, size, k & 2);
        const double scale = k & 4 ? 0.25 : 0.8; /* of sums of 16 numbers up to 16 */
        memcpy(c.attributes, &scale, sizeof scale);
        TEST_CHECK(t, infer(&c));
        run_both(t, &c, DENSE, &n);
    }
    TEST_EQ(t, n.declined, 0);
}

/* ---- the same bits with any number of threads ------------------------------------------------ */

static void repeat_with_threads(test *t, const call *c)
{
    operand in[TSI_INPUT_MAX] = { 0 }, out[5] = { 0 };
    tsi_operand in_is[TSI_INPUT_MAX], out_is[TSI_OUTPUT_MAX];
    operand more[TSI_OUTPUT_MAX] = { 0 };
    for (int32_t i = 0; i < c->input_count; i++) {
        place(t, &in[i], &c->in[i], DENSE);
        fill(t, &in[i], 0, false);
        in_is[i] = in[i].is;
    }
    for (int32_t o = 1; o < c->op->output_count; o++) {
        place(t, &more[o], &c->out[o], DENSE);
        out_is[o] = more[o].is;
    }
    tsi_kernel_io io = { .op = c->op,
                         .attributes = c->attributes,
                         .in = in_is,
                         .out = out_is,
                         .input_count = c->input_count,
                         .output_count = c->op->output_count,
                         .rank = t->me,
                         .device = tsi_device_cpu() };
    for (int32_t threads = 1; threads < 5; threads++) {
        place(t, &out[threads], &c->out[0], DENSE);
        out_is[0] = out[threads].is;
        tsi_parallel_limit(t->me, threads);
        tsi_kernel_fn kernel = tsi_kernel_of(tsi_device_cpu(), c->op);
        if (!kernel || (int)kernel(&io) == TSI_KERNEL_DECLINED) TEST_OK(t, c->op->reference(&io));
        TEST_SAY(t, memcmp(out[threads].memory, out[1].memory, out[1].bytes) == 0,
                 "%s: %d threads give other bits than one", c->op->name, threads);
    }
    tsi_parallel_limit(t->me, 0);
    release(in, c->input_count);
    release(out, 5);
    release(more, TSI_OUTPUT_MAX);
}

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
    for (int k = 0; k < 8; k++) {
        const ts_shape vector = TS_SHAPE(40001), down = TS_SHAPE(40001, 9);
        const ts_shape wide = TS_SHAPE(2100, 610), shape[] = { k & 2 ? down : wide, vector };
        call c = call_of("matmul", 2, shape, dtypes[k & 1]);
        c.in[1].shape = k & 2 ? down : TS_SHAPE(610);
        c.in[0].shape = k & 2 ? vector : wide;
        if (k & 4) c.in[0].shape = TS_SHAPE(610), c.in[1].shape = TS_SHAPE(610, 2100);
        TEST_CHECK(t, infer(&c));
        repeat_with_threads(t, &c);
    }
    static const char *const attention[] = { "attention", "attention_backward" };
    for (int k = 0; k < 4; k++) {
        const int64_t size[] = { 1, 4, 2, 200, 700, 24, 40 };
        call c = attention_call(attention[k & 1], dtypes[k / 2], size, true);
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

/* Infinities, NaN and huge numbers come out as the references give them. */
TS_TEST_RANKS(harsh_numbers, 1)
{
    static const char *const names[] = { "add",     "mul",         "maximum", "minimum", "silu",
                                         "sigmoid", "tanh",        "gelu",    "relu",    "exp",
                                         "softmax", "log_softmax", "clone",   "erf",     "sqrt" };
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
