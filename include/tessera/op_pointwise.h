/* SPDX-License-Identifier: Apache-2.0 */
/* op_pointwise.h - elementwise operators: unary, binary, ternary, comparisons, casts, and their
 * scalar forms.
 *
 * makers: NULL on failure, NULL in gives NULL out (world.h). Any operator takes any placement; what
 * cannot stay sharded is moved, as far as the policy of the open scope allows (scope.h). Inputs
 * broadcast; dtypes promote. */
#ifndef TESSERA_OP_POINTWISE_H
#define TESSERA_OP_POINTWISE_H

#include "tensor.h"

/* One input, one output: ts_abs(x), ts_exp(x), ... docs/ops.md says what each computes. Two inputs:
 * ts_add(a, b), ts_gt(a, b), ... Comparisons and logic give bool. */
/* clang-format off */
/* generated: lists */
#define TS_UNARY_LIST(X) \
    X(abs) X(acos) X(acosh) X(asin) X(asinh) X(atan) X(atanh) X(ceil) X(conj) X(cos) X(cosh) \
    X(deg2rad) X(digamma) X(erf) X(erfc) X(erfinv) X(exp) X(exp2) X(expm1) X(floor) X(frac) \
    X(gelu) X(gelu_tanh) X(hardsigmoid) X(hardswish) X(isfinite) X(isinf) X(isnan) X(isneginf) \
    X(isposinf) X(lgamma) X(log) X(log10) X(log1p) X(log2) X(log_sigmoid) X(logical_not) X(mish) \
    X(neg) X(ones_like) X(rad2deg) X(reciprocal) X(relu) X(relu2) X(relu6) X(round) X(rsqrt) \
    X(selu) X(sigmoid) X(sign) X(signbit) X(silu) X(sin) X(sinc) X(sinh) X(softplus) X(softsign) \
    X(sqrt) X(square) X(tan) X(tanh) X(tanhshrink) X(trigamma) X(trunc) X(zeros_like)
#define TS_BINARY_LIST(X) \
    X(add) X(atan2) X(bitwise_and) X(bitwise_left_shift) X(bitwise_or) X(bitwise_right_shift) \
    X(bitwise_xor) X(copysign) X(div) X(eq) X(floor_divide) X(fmax) X(fmin) X(fmod) X(gcd) X(ge) \
    X(gt) X(heaviside) X(hypot) X(lcm) X(le) X(logaddexp) X(logaddexp2) X(logical_and) \
    X(logical_or) X(logical_xor) X(lt) X(maximum) X(minimum) X(mul) X(ne) X(power) X(remainder) \
    X(sub) X(xlogy)
/* end */
/* clang-format on */

TS_BEGIN_C

#define TS_UNARY_DECLARE(name) TS_API ts_tensor *ts_##name(ts_tensor *x);
TS_UNARY_LIST(TS_UNARY_DECLARE)
#undef TS_UNARY_DECLARE
TS_API ts_tensor *ts_bitwise_not(ts_tensor *x);
TS_API ts_tensor *ts_clone(ts_tensor *x);

#define TS_BINARY_DECLARE(name) TS_API ts_tensor *ts_##name(ts_tensor *a, ts_tensor *b);
TS_BINARY_LIST(TS_BINARY_DECLARE)
#undef TS_BINARY_DECLARE

/* With numbers; a number counts once, whatever is pending. Integers stay integers beside a whole
 * number, beside another they become f32; bool becomes i64 or f32. */
TS_API ts_tensor *ts_add_scalar(ts_tensor *x, double value);
TS_API ts_tensor *ts_rsub_scalar(ts_tensor *x, double value); /* value - x */
TS_API ts_tensor *ts_mul_scalar(ts_tensor *x, double value);
TS_API ts_tensor *ts_scale(ts_tensor *x, double factor); /* the same as ts_mul_scalar */
TS_API ts_tensor *ts_div_scalar(ts_tensor *x, double value);
TS_API ts_tensor *ts_pow(ts_tensor *x, double exponent);
TS_API ts_tensor *ts_clamp(ts_tensor *x, double min, double max); /* NaN: no bound on that side */
TS_API ts_tensor *ts_full_like(ts_tensor *x, double value);       /* of x's dtype */
TS_API ts_tensor *ts_leaky_relu(ts_tensor *x, double negative_slope);
TS_API ts_tensor *ts_elu(ts_tensor *x, double alpha);
TS_API ts_tensor *ts_celu(ts_tensor *x, double alpha);
TS_API ts_tensor *ts_hardshrink(ts_tensor *x, double lambd);
TS_API ts_tensor *ts_softshrink(ts_tensor *x, double lambd);
TS_API ts_tensor *ts_threshold(ts_tensor *x, double threshold, double value);
TS_API ts_tensor *ts_logit(ts_tensor *x, double eps); /* NaN: x may be 0 or 1 */
/* NaN becomes the number, infinities the largest and smallest numbers of the dtype. */
TS_API ts_tensor *ts_nan_to_num(ts_tensor *x, double nan);
/* x == value and so on: bool. Remainders have the sign of x (fmod) or of the number. */
TS_API ts_tensor *ts_eq_scalar(ts_tensor *x, double value);
TS_API ts_tensor *ts_ne_scalar(ts_tensor *x, double value);
TS_API ts_tensor *ts_gt_scalar(ts_tensor *x, double value);
TS_API ts_tensor *ts_ge_scalar(ts_tensor *x, double value);
TS_API ts_tensor *ts_lt_scalar(ts_tensor *x, double value);
TS_API ts_tensor *ts_le_scalar(ts_tensor *x, double value);
TS_API ts_tensor *ts_fmod_scalar(ts_tensor *x, double value);
TS_API ts_tensor *ts_remainder_scalar(ts_tensor *x, double value);
TS_API ts_tensor *ts_lerp(ts_tensor *a, ts_tensor *b, double weight); /* a + weight * (b - a) */

TS_API ts_tensor *ts_where(ts_tensor *condition, ts_tensor *a, ts_tensor *b);
TS_API ts_tensor *ts_addcmul(ts_tensor *a, ts_tensor *b, ts_tensor *c,
                             double value); /* a + value b c */
TS_API ts_tensor *ts_addcdiv(ts_tensor *a, ts_tensor *b, ts_tensor *c,
                             double value); /* a + value b / c */
TS_API ts_tensor *ts_masked_fill(ts_tensor *x, ts_tensor *mask, double value);
TS_API ts_tensor *ts_swiglu(ts_tensor *gate, ts_tensor *up); /* silu(gate) * up, rounded once */
TS_API ts_tensor *ts_cast(ts_tensor *x, ts_dtype dtype);     /* x itself if it has that dtype */

/* Gradients of activations, for gradients of users' own operators: dy first. */
TS_API ts_tensor *ts_threshold_backward(ts_tensor *dy, ts_tensor *y); /* dy where y > 0 */
TS_API ts_tensor *ts_sigmoid_backward(ts_tensor *dy, ts_tensor *y);
TS_API ts_tensor *ts_tanh_backward(ts_tensor *dy, ts_tensor *y);
TS_API ts_tensor *ts_silu_backward(ts_tensor *dy, ts_tensor *x);
TS_API ts_tensor *ts_gelu_backward(ts_tensor *dy, ts_tensor *x);
TS_API ts_tensor *ts_gelu_tanh_backward(ts_tensor *dy, ts_tensor *x);
/* By the gate; by `up` it is ts_swiglu(gate, dy). */
TS_API ts_tensor *ts_swiglu_backward(ts_tensor *dy, ts_tensor *gate, ts_tensor *up);

TS_END_C

/* Each call also tells its place, for messages and events. */
/* generated: places */
#define ts_abs(...) (ts_here(TS_HERE), ts_abs(__VA_ARGS__))
#define ts_acos(...) (ts_here(TS_HERE), ts_acos(__VA_ARGS__))
#define ts_acosh(...) (ts_here(TS_HERE), ts_acosh(__VA_ARGS__))
#define ts_add(...) (ts_here(TS_HERE), ts_add(__VA_ARGS__))
#define ts_add_scalar(...) (ts_here(TS_HERE), ts_add_scalar(__VA_ARGS__))
#define ts_addcdiv(...) (ts_here(TS_HERE), ts_addcdiv(__VA_ARGS__))
#define ts_addcmul(...) (ts_here(TS_HERE), ts_addcmul(__VA_ARGS__))
#define ts_asin(...) (ts_here(TS_HERE), ts_asin(__VA_ARGS__))
#define ts_asinh(...) (ts_here(TS_HERE), ts_asinh(__VA_ARGS__))
#define ts_atan(...) (ts_here(TS_HERE), ts_atan(__VA_ARGS__))
#define ts_atan2(...) (ts_here(TS_HERE), ts_atan2(__VA_ARGS__))
#define ts_atanh(...) (ts_here(TS_HERE), ts_atanh(__VA_ARGS__))
#define ts_bitwise_and(...) (ts_here(TS_HERE), ts_bitwise_and(__VA_ARGS__))
#define ts_bitwise_left_shift(...) (ts_here(TS_HERE), ts_bitwise_left_shift(__VA_ARGS__))
#define ts_bitwise_not(...) (ts_here(TS_HERE), ts_bitwise_not(__VA_ARGS__))
#define ts_bitwise_or(...) (ts_here(TS_HERE), ts_bitwise_or(__VA_ARGS__))
#define ts_bitwise_right_shift(...) (ts_here(TS_HERE), ts_bitwise_right_shift(__VA_ARGS__))
#define ts_bitwise_xor(...) (ts_here(TS_HERE), ts_bitwise_xor(__VA_ARGS__))
#define ts_cast(...) (ts_here(TS_HERE), ts_cast(__VA_ARGS__))
#define ts_ceil(...) (ts_here(TS_HERE), ts_ceil(__VA_ARGS__))
#define ts_celu(...) (ts_here(TS_HERE), ts_celu(__VA_ARGS__))
#define ts_clamp(...) (ts_here(TS_HERE), ts_clamp(__VA_ARGS__))
#define ts_clone(...) (ts_here(TS_HERE), ts_clone(__VA_ARGS__))
#define ts_conj(...) (ts_here(TS_HERE), ts_conj(__VA_ARGS__))
#define ts_copysign(...) (ts_here(TS_HERE), ts_copysign(__VA_ARGS__))
#define ts_cos(...) (ts_here(TS_HERE), ts_cos(__VA_ARGS__))
#define ts_cosh(...) (ts_here(TS_HERE), ts_cosh(__VA_ARGS__))
#define ts_deg2rad(...) (ts_here(TS_HERE), ts_deg2rad(__VA_ARGS__))
#define ts_digamma(...) (ts_here(TS_HERE), ts_digamma(__VA_ARGS__))
#define ts_div(...) (ts_here(TS_HERE), ts_div(__VA_ARGS__))
#define ts_div_scalar(...) (ts_here(TS_HERE), ts_div_scalar(__VA_ARGS__))
#define ts_elu(...) (ts_here(TS_HERE), ts_elu(__VA_ARGS__))
#define ts_eq(...) (ts_here(TS_HERE), ts_eq(__VA_ARGS__))
#define ts_eq_scalar(...) (ts_here(TS_HERE), ts_eq_scalar(__VA_ARGS__))
#define ts_erf(...) (ts_here(TS_HERE), ts_erf(__VA_ARGS__))
#define ts_erfc(...) (ts_here(TS_HERE), ts_erfc(__VA_ARGS__))
#define ts_erfinv(...) (ts_here(TS_HERE), ts_erfinv(__VA_ARGS__))
#define ts_exp(...) (ts_here(TS_HERE), ts_exp(__VA_ARGS__))
#define ts_exp2(...) (ts_here(TS_HERE), ts_exp2(__VA_ARGS__))
#define ts_expm1(...) (ts_here(TS_HERE), ts_expm1(__VA_ARGS__))
#define ts_floor(...) (ts_here(TS_HERE), ts_floor(__VA_ARGS__))
#define ts_floor_divide(...) (ts_here(TS_HERE), ts_floor_divide(__VA_ARGS__))
#define ts_fmax(...) (ts_here(TS_HERE), ts_fmax(__VA_ARGS__))
#define ts_fmin(...) (ts_here(TS_HERE), ts_fmin(__VA_ARGS__))
#define ts_fmod(...) (ts_here(TS_HERE), ts_fmod(__VA_ARGS__))
#define ts_fmod_scalar(...) (ts_here(TS_HERE), ts_fmod_scalar(__VA_ARGS__))
#define ts_frac(...) (ts_here(TS_HERE), ts_frac(__VA_ARGS__))
#define ts_full_like(...) (ts_here(TS_HERE), ts_full_like(__VA_ARGS__))
#define ts_gcd(...) (ts_here(TS_HERE), ts_gcd(__VA_ARGS__))
#define ts_ge(...) (ts_here(TS_HERE), ts_ge(__VA_ARGS__))
#define ts_ge_scalar(...) (ts_here(TS_HERE), ts_ge_scalar(__VA_ARGS__))
#define ts_gelu(...) (ts_here(TS_HERE), ts_gelu(__VA_ARGS__))
#define ts_gelu_tanh(...) (ts_here(TS_HERE), ts_gelu_tanh(__VA_ARGS__))
#define ts_gt(...) (ts_here(TS_HERE), ts_gt(__VA_ARGS__))
#define ts_gt_scalar(...) (ts_here(TS_HERE), ts_gt_scalar(__VA_ARGS__))
#define ts_hardshrink(...) (ts_here(TS_HERE), ts_hardshrink(__VA_ARGS__))
#define ts_hardsigmoid(...) (ts_here(TS_HERE), ts_hardsigmoid(__VA_ARGS__))
#define ts_hardswish(...) (ts_here(TS_HERE), ts_hardswish(__VA_ARGS__))
#define ts_heaviside(...) (ts_here(TS_HERE), ts_heaviside(__VA_ARGS__))
#define ts_hypot(...) (ts_here(TS_HERE), ts_hypot(__VA_ARGS__))
#define ts_isfinite(...) (ts_here(TS_HERE), ts_isfinite(__VA_ARGS__))
#define ts_isinf(...) (ts_here(TS_HERE), ts_isinf(__VA_ARGS__))
#define ts_isnan(...) (ts_here(TS_HERE), ts_isnan(__VA_ARGS__))
#define ts_isneginf(...) (ts_here(TS_HERE), ts_isneginf(__VA_ARGS__))
#define ts_isposinf(...) (ts_here(TS_HERE), ts_isposinf(__VA_ARGS__))
#define ts_lcm(...) (ts_here(TS_HERE), ts_lcm(__VA_ARGS__))
#define ts_le(...) (ts_here(TS_HERE), ts_le(__VA_ARGS__))
#define ts_le_scalar(...) (ts_here(TS_HERE), ts_le_scalar(__VA_ARGS__))
#define ts_leaky_relu(...) (ts_here(TS_HERE), ts_leaky_relu(__VA_ARGS__))
#define ts_lerp(...) (ts_here(TS_HERE), ts_lerp(__VA_ARGS__))
#define ts_lgamma(...) (ts_here(TS_HERE), ts_lgamma(__VA_ARGS__))
#define ts_log(...) (ts_here(TS_HERE), ts_log(__VA_ARGS__))
#define ts_log10(...) (ts_here(TS_HERE), ts_log10(__VA_ARGS__))
#define ts_log1p(...) (ts_here(TS_HERE), ts_log1p(__VA_ARGS__))
#define ts_log2(...) (ts_here(TS_HERE), ts_log2(__VA_ARGS__))
#define ts_log_sigmoid(...) (ts_here(TS_HERE), ts_log_sigmoid(__VA_ARGS__))
#define ts_logaddexp(...) (ts_here(TS_HERE), ts_logaddexp(__VA_ARGS__))
#define ts_logaddexp2(...) (ts_here(TS_HERE), ts_logaddexp2(__VA_ARGS__))
#define ts_logical_and(...) (ts_here(TS_HERE), ts_logical_and(__VA_ARGS__))
#define ts_logical_not(...) (ts_here(TS_HERE), ts_logical_not(__VA_ARGS__))
#define ts_logical_or(...) (ts_here(TS_HERE), ts_logical_or(__VA_ARGS__))
#define ts_logical_xor(...) (ts_here(TS_HERE), ts_logical_xor(__VA_ARGS__))
#define ts_logit(...) (ts_here(TS_HERE), ts_logit(__VA_ARGS__))
#define ts_lt(...) (ts_here(TS_HERE), ts_lt(__VA_ARGS__))
#define ts_lt_scalar(...) (ts_here(TS_HERE), ts_lt_scalar(__VA_ARGS__))
#define ts_masked_fill(...) (ts_here(TS_HERE), ts_masked_fill(__VA_ARGS__))
#define ts_maximum(...) (ts_here(TS_HERE), ts_maximum(__VA_ARGS__))
#define ts_minimum(...) (ts_here(TS_HERE), ts_minimum(__VA_ARGS__))
#define ts_mish(...) (ts_here(TS_HERE), ts_mish(__VA_ARGS__))
#define ts_mul(...) (ts_here(TS_HERE), ts_mul(__VA_ARGS__))
#define ts_mul_scalar(...) (ts_here(TS_HERE), ts_mul_scalar(__VA_ARGS__))
#define ts_nan_to_num(...) (ts_here(TS_HERE), ts_nan_to_num(__VA_ARGS__))
#define ts_ne(...) (ts_here(TS_HERE), ts_ne(__VA_ARGS__))
#define ts_ne_scalar(...) (ts_here(TS_HERE), ts_ne_scalar(__VA_ARGS__))
#define ts_neg(...) (ts_here(TS_HERE), ts_neg(__VA_ARGS__))
#define ts_ones_like(...) (ts_here(TS_HERE), ts_ones_like(__VA_ARGS__))
#define ts_pow(...) (ts_here(TS_HERE), ts_pow(__VA_ARGS__))
#define ts_power(...) (ts_here(TS_HERE), ts_power(__VA_ARGS__))
#define ts_rad2deg(...) (ts_here(TS_HERE), ts_rad2deg(__VA_ARGS__))
#define ts_reciprocal(...) (ts_here(TS_HERE), ts_reciprocal(__VA_ARGS__))
#define ts_relu(...) (ts_here(TS_HERE), ts_relu(__VA_ARGS__))
#define ts_relu2(...) (ts_here(TS_HERE), ts_relu2(__VA_ARGS__))
#define ts_relu6(...) (ts_here(TS_HERE), ts_relu6(__VA_ARGS__))
#define ts_remainder(...) (ts_here(TS_HERE), ts_remainder(__VA_ARGS__))
#define ts_remainder_scalar(...) (ts_here(TS_HERE), ts_remainder_scalar(__VA_ARGS__))
#define ts_round(...) (ts_here(TS_HERE), ts_round(__VA_ARGS__))
#define ts_rsqrt(...) (ts_here(TS_HERE), ts_rsqrt(__VA_ARGS__))
#define ts_rsub_scalar(...) (ts_here(TS_HERE), ts_rsub_scalar(__VA_ARGS__))
#define ts_scale(...) (ts_here(TS_HERE), ts_scale(__VA_ARGS__))
#define ts_selu(...) (ts_here(TS_HERE), ts_selu(__VA_ARGS__))
#define ts_sigmoid(...) (ts_here(TS_HERE), ts_sigmoid(__VA_ARGS__))
#define ts_sign(...) (ts_here(TS_HERE), ts_sign(__VA_ARGS__))
#define ts_signbit(...) (ts_here(TS_HERE), ts_signbit(__VA_ARGS__))
#define ts_silu(...) (ts_here(TS_HERE), ts_silu(__VA_ARGS__))
#define ts_sin(...) (ts_here(TS_HERE), ts_sin(__VA_ARGS__))
#define ts_sinc(...) (ts_here(TS_HERE), ts_sinc(__VA_ARGS__))
#define ts_sinh(...) (ts_here(TS_HERE), ts_sinh(__VA_ARGS__))
#define ts_softplus(...) (ts_here(TS_HERE), ts_softplus(__VA_ARGS__))
#define ts_softshrink(...) (ts_here(TS_HERE), ts_softshrink(__VA_ARGS__))
#define ts_softsign(...) (ts_here(TS_HERE), ts_softsign(__VA_ARGS__))
#define ts_sqrt(...) (ts_here(TS_HERE), ts_sqrt(__VA_ARGS__))
#define ts_square(...) (ts_here(TS_HERE), ts_square(__VA_ARGS__))
#define ts_sub(...) (ts_here(TS_HERE), ts_sub(__VA_ARGS__))
#define ts_swiglu(...) (ts_here(TS_HERE), ts_swiglu(__VA_ARGS__))
#define ts_tan(...) (ts_here(TS_HERE), ts_tan(__VA_ARGS__))
#define ts_tanh(...) (ts_here(TS_HERE), ts_tanh(__VA_ARGS__))
#define ts_tanhshrink(...) (ts_here(TS_HERE), ts_tanhshrink(__VA_ARGS__))
#define ts_threshold(...) (ts_here(TS_HERE), ts_threshold(__VA_ARGS__))
#define ts_trigamma(...) (ts_here(TS_HERE), ts_trigamma(__VA_ARGS__))
#define ts_trunc(...) (ts_here(TS_HERE), ts_trunc(__VA_ARGS__))
#define ts_where(...) (ts_here(TS_HERE), ts_where(__VA_ARGS__))
#define ts_xlogy(...) (ts_here(TS_HERE), ts_xlogy(__VA_ARGS__))
#define ts_zeros_like(...) (ts_here(TS_HERE), ts_zeros_like(__VA_ARGS__))
/* end */

#endif
