/* SPDX-License-Identifier: Apache-2.0 */
/* backend_util.h - what the tests of the cpu's fast kernels share: random operands, a call of the
 * kernel and of the reference on the same inputs, and calls with several numbers of threads.
 *
 * A kernel may decline; what it does not decline must agree with the reference within the tolerance
 * of its dtype, and must not depend on the number of threads by a single bit. */
#ifndef TESTS_DIST_BACKEND_UTIL_H
#define TESTS_DIST_BACKEND_UTIL_H

#include <math.h>

#include "backend/cpu/kernels.h"
#include "backend_operand.h"
#include "device/parallel.h"
#include "op/core/kernel.h"
#include "op/matrix/contract.h"

/* ---- numbers --------------------------------------------------------------------------------- */

static inline double random_real(test *t)
{
    return (double)(test_random_below(t, 4001) - 2000) / 500.0;
}

static bool harsh; /* now and then an infinity, a NaN, a zero or a huge number; one rank only */

static inline double harsh_real(test *t, double otherwise)
{
    static const double special[] = {
        (double)INFINITY, (double)-INFINITY, (double)NAN, 0.0, -0.0, 1e30, -1e30, 1e-30
    };
    return test_random_below(t, 9) ? otherwise : special[test_random_below(t, 8)];
}

static inline void fill(test *t, operand *x, double low, bool positive)
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

static inline double tolerance(ts_dtype dtype)
{
    if (dtype == TS_DTYPE_F64 || dtype == TS_DTYPE_C128) return 1e-11;
    if (dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_C64) return 2e-5;
    return dtype == TS_DTYPE_F16 ? 2e-3 : 1.2e-2;
}

/* The largest size of a number. */
static inline double largest(const operand *x)
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
static inline void same_numbers_of(test *t, const operand *have, const operand *want,
                                   const char *what, double size)
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

static inline void release(operand *x, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        tsi_free(x[i].memory);
}

/* References that add up in the dtype of their results are asked in f64. */
static inline bool is_rough(const call *c)
{
    return strncmp(c->op->name, "attention", 9) == 0 || strcmp(c->op->name, "sum_to") == 0;
}

static inline void widen(test *t, operand *to, const operand *from)
{
    ts_meta meta = from->meta;
    meta.dtype = TS_DTYPE_F64;
    place(t, to, &meta, DENSE);
    TEST_OK(t, tsi_device_host()->copy(tsi_device_host(), &to->is.block, &from->is.block, NULL));
}

/* Output and log-sum-exp, inputs 3 and 4 of the gradient, as attention gives them. */
static inline void attend_first(test *t, const call *c, operand *in)
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
                         .rank = t->me,
                         .device = tsi_device_host() };
    TEST_OK(t, tsi_op_attention.reference(&io));
    for (int o = 0; o < 2; o++)
        TEST_OK(t, tsi_device_host()->copy(tsi_device_host(), &in[3 + o].is.block, &out[o].is.block,
                                           NULL));
    release(wide, 3);
    release(out, 2);
}

/* Gradients of attention, softmax and norms are long sums of numbers that nearly cancel: their
 * error is that of the largest result. */
static inline double size_of(const call *c, const operand *want)
{
    bool sums = strstr(c->op->name, "softmax_backward") || strstr(c->op->name, "norm_backward");
    return sums || (is_rough(c) && c->input_count == 6) ? largest(want) : 0.0;
}

/* Runs kernel and reference on the same inputs with outputs of their own. */
static inline void run_both(test *t, const call *c, spread how, counts *n)
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
                         .device = tsi_device_host() };
    int verdict = (int)tsi_kernel_of(tsi_device_host(), c->op)(&io);
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

static inline bool infer(call *c)
{
    tsi_op_call op_call = {
        c->op, c->attributes, c->in, c->out, c->input_count, c->op->output_count
    };
    if (c->op->normalise && c->op->normalise(c->op, c->in, c->input_count, c->attributes) != TS_OK)
        return false;
    return c->op->infer(&op_call) == TS_OK;
}

static inline call call_of(const char *name, int32_t input_count, const ts_shape *shape,
                           ts_dtype dtype)
{
    call c = { .op = tsi_op_find(name), .input_count = input_count };
    for (int32_t i = 0; i < input_count; i++)
        c.in[i] = (ts_meta){ .shape = shape[i], .dtype = (int32_t)dtype };
    return c;
}

static inline void set_dims(call *c, int32_t count, int64_t a, int64_t b)
{
    tsi_dims dims = { .count = count, .value = { a, b } };
    memcpy(c->attributes, &dims, sizeof dims); /* the first member of every reduction's */
}

/* ---- the same bits with any number of threads ------------------------------------------------ */

static inline void repeat_with_threads(test *t, const call *c)
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
                         .device = tsi_device_host() };
    for (int32_t threads = 1; threads < 5; threads++) {
        place(t, &out[threads], &c->out[0], DENSE);
        out_is[0] = out[threads].is;
        tsi_parallel_limit(t->me, threads);
        tsi_kernel_fn kernel = tsi_kernel_of(tsi_device_host(), c->op);
        if (!kernel || (int)kernel(&io) == TSI_KERNEL_DECLINED) TEST_OK(t, c->op->reference(&io));
        TEST_SAY(t, memcmp(out[threads].memory, out[1].memory, out[1].bytes) == 0,
                 "%s: %d threads give other bits than one", c->op->name, threads);
    }
    tsi_parallel_limit(t->me, 0);
    release(in, c->input_count);
    release(out, 5);
    release(more, TSI_OUTPUT_MAX);
}

#endif
