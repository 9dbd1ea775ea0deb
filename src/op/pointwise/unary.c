/* SPDX-License-Identifier: Apache-2.0 */
/* unary.c - elementwise operators of one input: a scalar function each, and how pending reductions
 * pass.
 *
 * Every one may stay sharded on any dim. Sums and averages pass linear functions, minima and maxima
 * monotone ones (on all reals, since terms need not lie in the domain the value lies in), products
 * multiplicative ones. */
#include "op/pointwise/unary.h"

#include <math.h>

#include "op/pointwise/unary_scalar.h"

/* ---- shared by the family -------------------------------------------------------------------- */

ts_dtype tsi_number_dtype(const ts_number *number)
{
    if (number->kind == TS_NUMBER_INT) return TS_DTYPE_I64;
    return number->kind == TS_NUMBER_COMPLEX ? TS_DTYPE_C64 : TS_DTYPE_F32;
}

int64_t tsi_first_cut(const void *attributes)
{
    const ts_number *value = attributes;
    return value->kind == TS_NUMBER_INT ? value->whole : (int64_t)value->real;
}

ts_status tsi_number_fits(const tsi_op_call *call)
{
    const ts_number *value = call->attributes;
    ts_dtype dtype = (ts_dtype)call->in[0].dtype;
    tsi_category kind = tsi_dtype_category(dtype);
    if (kind <= TSI_CATEGORY_INT && value->kind != TS_NUMBER_INT && !(fabs(value->real) < 0x1p63))
        return TSI_FAIL(TS_ERR_ARG, "%s: %g is no whole number for %s", call->op->name, value->real,
                        ts_dtype_name(dtype));
    if (kind <= TSI_CATEGORY_REAL && value->kind == TS_NUMBER_COMPLEX)
        return TSI_FAIL(TS_ERR_ARG, "%s: %g%+gi is no real number for %s", call->op->name,
                        value->real, value->imaginary, ts_dtype_name(dtype));
    return TS_OK;
}

ts_dtype tsi_family_compute(const tsi_op_desc *op, ts_dtype promoted, const void *attributes)
{
    const tsi_pointwise_family *family = op->family;
    ts_dtype number = family->with ? family->with(attributes) : TS_DTYPE_BOOL;
    if (tsi_dtype_category(number) > tsi_dtype_category(promoted))
        promoted = tsi_dtype_promote(promoted, number);
    return family->result == TSI_RESULT_REAL ? tsi_dtype_to_real(promoted) : promoted;
}

static ts_dtype promote(const tsi_operand *operand, const ts_meta *meta, int32_t count)
{
    ts_dtype dtype = TS_DTYPE_BOOL;
    for (int32_t i = 0; i < count; i++) {
        ts_dtype one = (ts_dtype)(operand ? operand[i].global : &meta[i])->dtype;
        if (one != TS_DTYPE_NONE) dtype = tsi_dtype_promote(dtype, one);
    }
    return dtype;
}

static ts_dtype real_part_of(ts_dtype dtype)
{
    if (dtype == TS_DTYPE_C64) return TS_DTYPE_F32;
    return dtype == TS_DTYPE_C128 ? TS_DTYPE_F64 : dtype;
}

ts_status tsi_family_infer(const tsi_op_call *call)
{
    const tsi_pointwise_family *family = call->op->family;
    TSI_TRY(tsi_infer_pointwise(call));
    ts_dtype dtype =
        tsi_family_compute(call->op, promote(NULL, call->in, call->input_count), call->attributes);
    tsi_category category = tsi_dtype_category(dtype);
    bool has = category == TSI_CATEGORY_COMPLEX ? family->fns.both != NULL
               : category == TSI_CATEGORY_REAL  ? family->fns.real != NULL
                                                : family->fns.integer != NULL;
    if (!has)
        return TSI_FAIL(TS_ERR_DTYPE, "%s: is not defined for %s", call->op->name,
                        ts_dtype_name(dtype));
    if (family->result == TSI_RESULT_BOOL) dtype = TS_DTYPE_BOOL;
    if (family->result == TSI_RESULT_PART) dtype = real_part_of(dtype);
    call->out[0].dtype = (int32_t)dtype;
    return TS_OK;
}

ts_status tsi_family_reference(const tsi_kernel_io *io)
{
    const tsi_pointwise_family *family = io->op->family;
    ts_dtype promoted = promote(io->in, NULL, io->input_count);
    return tsi_reference_pointwise(io, &family->fns,
                                   tsi_family_compute(io->op, promoted, io->attributes));
}

/* ---- the rows -------------------------------------------------------------------------------- */

#define FAMILY(real, whole, both, kind)                                                            \
    (&(const tsi_pointwise_family){ { real, whole, both }, TSI_RESULT_##kind, NULL })
#define UNARY(op, words, family_, flow_, mono_, more_flags, saves_, grad_)                         \
    const tsi_op_desc tsi_op_##op = {                                                              \
        .name = #op,                                                                               \
        .what = words,                                                                             \
        .dims = "*",                                                                               \
        .input_min = 1,                                                                            \
        .input_max = 1,                                                                            \
        .output_count = 1,                                                                         \
        .flags = (more_flags),                                                                     \
        .saves = (saves_),                                                                         \
        .family = family_,                                                                         \
        .traits = { .flow = (flow_), .mono = { TSI_MONO_##mono_ } },                               \
        .infer = tsi_family_infer,                                                                 \
        .reference = tsi_family_reference,                                                         \
        .grad = grad_,                                                                             \
        .sample = tsi_sample_unary,                                                                \
    }
#define IN 1
#define OUT ((uint64_t)1 << TSI_SAVE_OUT)
#define INPLACE TSI_OP_IN_PLACE
#define LINEAR (TSI_LINEAR_ALL | TSI_AVG_WITH_R)

UNARY(abs, "|x|", FAMILY(tsi_real_abs, tsi_whole_abs, tsi_both_abs, PART), TSI_MULTIPLICATIVE, NONE,
      INPLACE | TSI_OP_WRAPS, IN, tsi_grad_abs);
UNARY(acos, "arc cosine", FAMILY(tsi_real_acos, NULL, tsi_both_acos, REAL), 0, NONE, INPLACE, IN,
      tsi_grad_acos);
UNARY(acosh, "inverse hyperbolic cosine", FAMILY(tsi_real_acosh, NULL, tsi_both_acosh, REAL), 0,
      UP_FROM, INPLACE, IN, tsi_grad_acosh);
UNARY(asin, "arc sine", FAMILY(tsi_real_asin, NULL, tsi_both_asin, REAL), 0, NONE, INPLACE, IN,
      tsi_grad_asin);
UNARY(asinh, "inverse hyperbolic sine", FAMILY(tsi_real_asinh, NULL, tsi_both_asinh, REAL), 0, UP,
      INPLACE, IN, tsi_grad_asinh);
UNARY(atan, "arc tangent", FAMILY(tsi_real_atan, NULL, tsi_both_atan, REAL), 0, UP, INPLACE, IN,
      tsi_grad_atan);
UNARY(atanh, "inverse hyperbolic tangent", FAMILY(tsi_real_atanh, NULL, tsi_both_atanh, REAL), 0,
      NONE, INPLACE, IN, tsi_grad_atanh);
UNARY(ceil, "smallest integer not below x", FAMILY(tsi_real_ceil, tsi_whole_same, NULL, SAME), 0,
      UP, INPLACE, 0, tsi_grad_zero);
UNARY(clone, "a copy", FAMILY(tsi_real_same, tsi_whole_same, tsi_both_same, SAME), TSI_SELECT, NONE,
      0, 0, tsi_grad_copy);
UNARY(conj, "complex conjugate", FAMILY(tsi_real_same, tsi_whole_same, tsi_both_conj, SAME), LINEAR,
      NONE, INPLACE, 0, tsi_grad_conj);
UNARY(cos, "cosine", FAMILY(tsi_real_cos, NULL, tsi_both_cos, REAL), 0, NONE, INPLACE, IN,
      tsi_grad_cos);
UNARY(cosh, "hyperbolic cosine", FAMILY(tsi_real_cosh, NULL, tsi_both_cosh, REAL), 0, NONE, INPLACE,
      IN, tsi_grad_cosh);
UNARY(deg2rad, "degrees to radians", FAMILY(tsi_real_deg2rad, NULL, NULL, REAL), LINEAR, UP,
      INPLACE, 0, tsi_grad_deg2rad);
UNARY(digamma, "the slope of lgamma", FAMILY(tsi_real_digamma, NULL, NULL, REAL), 0, NONE, INPLACE,
      IN, tsi_grad_digamma);
UNARY(erf, "error function", FAMILY(tsi_real_erf, NULL, NULL, REAL), 0, UP, INPLACE, IN,
      tsi_grad_erf);
UNARY(erfc, "1 - erf(x)", FAMILY(tsi_real_erfc, NULL, NULL, REAL), 0, DOWN, INPLACE, IN,
      tsi_grad_erfc);
UNARY(expm1, "e^x - 1", FAMILY(tsi_real_expm1, NULL, tsi_both_expm1, REAL), 0, UP, INPLACE, OUT,
      tsi_grad_expm1);
UNARY(floor, "largest integer not above x", FAMILY(tsi_real_floor, tsi_whole_same, NULL, SAME), 0,
      UP, INPLACE, 0, tsi_grad_zero);
UNARY(frac, "x - trunc(x)", FAMILY(tsi_real_frac, NULL, NULL, REAL), 0, NONE, INPLACE, 0,
      tsi_grad_copy);
UNARY(gelu, "x times the normal distribution function of x",
      FAMILY(tsi_real_gelu, NULL, NULL, REAL), 0, NONE, INPLACE, IN, tsi_grad_gelu);
UNARY(gelu_tanh, "gelu by its tanh approximation", FAMILY(tsi_real_gelu_tanh, NULL, NULL, REAL), 0,
      NONE, INPLACE, IN, tsi_grad_gelu_tanh);
UNARY(isfinite, "is it a finite number?",
      FAMILY(tsi_real_isfinite, tsi_whole_one, tsi_both_isfinite, BOOL), 0, NONE, TSI_OP_NO_GRAD, 0,
      NULL);
UNARY(isinf, "is it infinite?", FAMILY(tsi_real_isinf, tsi_whole_zero, tsi_both_isinf, BOOL), 0,
      NONE, TSI_OP_NO_GRAD, 0, NULL);
UNARY(isnan, "is it not a number?", FAMILY(tsi_real_isnan, tsi_whole_zero, tsi_both_isnan, BOOL), 0,
      NONE, TSI_OP_NO_GRAD, 0, NULL);
UNARY(lgamma, "log of the gamma function", FAMILY(tsi_real_lgamma, NULL, NULL, REAL), 0, NONE,
      INPLACE, IN, tsi_grad_lgamma);
UNARY(log, "natural logarithm", FAMILY(tsi_real_log, NULL, tsi_both_log, REAL), 0, UP_FROM, INPLACE,
      IN, tsi_grad_log);
UNARY(log10, "logarithm to base 10", FAMILY(tsi_real_log10, NULL, tsi_both_log10, REAL), 0, UP_FROM,
      INPLACE, IN, tsi_grad_log10);
UNARY(log1p, "log(1 + x)", FAMILY(tsi_real_log1p, NULL, tsi_both_log1p, REAL), 0, UP_FROM, INPLACE,
      IN, tsi_grad_log1p);
UNARY(log2, "logarithm to base 2", FAMILY(tsi_real_log2, NULL, tsi_both_log2, REAL), 0, UP_FROM,
      INPLACE, IN, tsi_grad_log2);
UNARY(log_sigmoid, "log(sigmoid(x))", FAMILY(tsi_real_log_sigmoid, NULL, NULL, REAL), 0, UP, 0, IN,
      tsi_grad_log_sigmoid);
UNARY(neg, "-x", FAMILY(tsi_real_neg, tsi_whole_neg, tsi_both_neg, SAME), LINEAR, DOWN,
      INPLACE | TSI_OP_WRAPS, 0, tsi_grad_neg);
UNARY(rad2deg, "radians to degrees", FAMILY(tsi_real_rad2deg, NULL, NULL, REAL), LINEAR, UP,
      INPLACE, 0, tsi_grad_rad2deg);
UNARY(reciprocal, "1 / x", FAMILY(tsi_real_reciprocal, NULL, tsi_both_reciprocal, REAL),
      TSI_MULTIPLICATIVE, NONE, INPLACE, OUT, tsi_grad_reciprocal);
UNARY(relu, "max(x, 0)", FAMILY(tsi_real_relu, tsi_whole_relu, NULL, SAME), 0, UP, INPLACE, OUT,
      tsi_grad_relu);
UNARY(round, "nearest integer, ties to even", FAMILY(tsi_real_round, tsi_whole_same, NULL, SAME), 0,
      UP, INPLACE, 0, tsi_grad_zero);
UNARY(rsqrt, "1 / sqrt(x)", FAMILY(tsi_real_rsqrt, NULL, tsi_both_rsqrt, REAL), 0, NONE, INPLACE,
      OUT, tsi_grad_rsqrt); /* of -0 it is -infinite, below all others */
UNARY(sigmoid, "1 / (1 + e^-x)", FAMILY(tsi_real_sigmoid, NULL, tsi_both_sigmoid, REAL), 0, UP,
      INPLACE, OUT, tsi_grad_sigmoid);
UNARY(sign, "-1, 0 or 1", FAMILY(tsi_real_sign, tsi_whole_sign, NULL, SAME), TSI_MULTIPLICATIVE, UP,
      INPLACE | TSI_OP_WRAPS, 0, tsi_grad_zero);
UNARY(signbit, "is the sign bit set?", FAMILY(tsi_real_signbit, tsi_whole_signbit, NULL, BOOL), 0,
      NONE, TSI_OP_NO_GRAD, 0, NULL);
UNARY(silu, "x * sigmoid(x)", FAMILY(tsi_real_silu, NULL, tsi_both_silu, REAL), 0, NONE, INPLACE,
      IN, tsi_grad_silu);
UNARY(sin, "sine", FAMILY(tsi_real_sin, NULL, tsi_both_sin, REAL), 0, NONE, INPLACE, IN,
      tsi_grad_sin);
UNARY(sinh, "hyperbolic sine", FAMILY(tsi_real_sinh, NULL, tsi_both_sinh, REAL), 0, UP, INPLACE, IN,
      tsi_grad_sinh);
UNARY(softplus, "log(1 + e^x)", FAMILY(tsi_real_softplus, NULL, NULL, REAL), 0, UP, 0, IN,
      tsi_grad_softplus);
UNARY(sqrt, "square root", FAMILY(tsi_real_sqrt, NULL, tsi_both_sqrt, REAL), 0, UP_FROM, INPLACE,
      OUT, tsi_grad_sqrt);
UNARY(square, "x * x", FAMILY(tsi_real_square, tsi_whole_square, tsi_both_square, SAME),
      TSI_MULTIPLICATIVE, NONE, INPLACE, IN, tsi_grad_square);
UNARY(tan, "tangent", FAMILY(tsi_real_tan, NULL, tsi_both_tan, REAL), 0, NONE, INPLACE, OUT,
      tsi_grad_tan);
UNARY(tanh, "hyperbolic tangent", FAMILY(tsi_real_tanh, NULL, tsi_both_tanh, REAL), 0, UP, INPLACE,
      OUT, tsi_grad_tanh);
UNARY(trunc, "towards zero", FAMILY(tsi_real_trunc, tsi_whole_same, NULL, SAME), 0, UP, INPLACE, 0,
      tsi_grad_zero);

/* Powers of a number turn sums into products, but those of terms overflow where that of their sum
 * does not, so a pending sum is settled first. */
UNARY(exp, "e^x", FAMILY(tsi_real_exp, NULL, tsi_both_exp, REAL), 0, UP, INPLACE, OUT,
      tsi_grad_exp);
UNARY(exp2, "2^x", FAMILY(tsi_real_exp2, NULL, tsi_both_exp2, REAL), 0, UP, INPLACE, OUT,
      tsi_grad_exp2);

/* Of truths, "not" exchanges "and" and "or". */
static void not_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const ts_reduce kind[] = { TS_REDUCE_AND, TS_REDUCE_OR };
    for (int k = 0; k < 2 && call->in[0].dtype == TS_DTYPE_BOOL; k++) {
        tsi_role *row = tsi_rules_add(rules);
        row[0] = TSI_P(kind[k]);
        row[1] = TSI_P(kind[1 - k]);
    }
}

const tsi_op_desc tsi_op_logical_not = {
    .name = "logical_not",
    .what = "x == 0",
    .dims = "*",
    TSI_OPERANDS(1, 1, 1),
    .flags = TSI_OP_NO_GRAD,
    .family = FAMILY(tsi_real_logical_not, tsi_whole_logical_not, tsi_both_logical_not, BOOL),
    .infer = tsi_family_infer,
    .rules = not_rules,
    .reference = tsi_family_reference,
    .sample = tsi_sample_unary,
};

/* Of truths it is "not"; of whole numbers, -1 - x. */
static ts_status bitwise_not_reference(const tsi_kernel_io *io)
{
    bool truth = io->in[0].global->dtype == TS_DTYPE_BOOL;
    tsi_scalar_fns fns = { .integer = truth ? tsi_whole_logical_not : tsi_whole_bitwise_not };
    return tsi_reference_pointwise(io, &fns, (ts_dtype)io->in[0].global->dtype);
}

const tsi_op_desc tsi_op_bitwise_not = {
    .name = "bitwise_not",
    .what = "~x",
    .dims = "*",
    TSI_OPERANDS(1, 1, 1),
    .flags = TSI_OP_IN_PLACE | TSI_OP_NO_GRAD,
    .family = FAMILY(NULL, tsi_whole_bitwise_not, NULL, SAME),
    .traits = { .mono = { TSI_MONO_DOWN } },
    .infer = tsi_family_infer,
    .rules = not_rules,
    .reference = bitwise_not_reference,
    .sample = tsi_sample_bits,
};

void tsi_constant_rules(const tsi_op_call *call, tsi_rules *rules)
{
    (void)call;
    for (int reduce = TS_REDUCE_SUM; reduce < TS_REDUCE_COUNT; reduce++) {
        tsi_role *row = tsi_rules_add(rules);
        row[0] = TSI_P(reduce);
    }
}

const tsi_op_desc tsi_op_ones_like = {
    .name = "ones_like",
    .what = "ones of the same shape and dtype",
    .dims = "*",
    TSI_OPERANDS(1, 1, 1),
    .flags = TSI_OP_NO_GRAD | TSI_OP_FREE,
    .family = FAMILY(tsi_real_one, tsi_whole_one, tsi_both_one, SAME),
    .infer = tsi_family_infer,
    .rules = tsi_constant_rules,
    .reference = tsi_family_reference,
    .sample = tsi_sample_unary,
};

const tsi_op_desc tsi_op_zeros_like = {
    .name = "zeros_like",
    .what = "zeros of the same shape and dtype",
    .dims = "*",
    TSI_OPERANDS(1, 1, 1),
    .flags = TSI_OP_NO_GRAD | TSI_OP_FREE,
    .family = FAMILY(tsi_real_zero, tsi_whole_zero, tsi_both_zero, SAME),
    .infer = tsi_family_infer,
    .rules = tsi_constant_rules,
    .reference = tsi_family_reference,
    .sample = tsi_sample_unary,
};
