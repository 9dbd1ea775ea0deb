/* SPDX-License-Identifier: Apache-2.0 */
/* unary.h - what the files of the elementwise operators of one input share. */
#ifndef TSI_OP_UNARY_H
#define TSI_OP_UNARY_H

#include "op/core/common.h"

/* What the result's dtype is. */
typedef enum tsi_result_kind {
    TSI_RESULT_SAME, /* the input's (promoted) dtype */
    TSI_RESULT_REAL, /* reals of it: integers give f32 */
    TSI_RESULT_BOOL,
    TSI_RESULT_PART /* the real dtype of a complex one; else the same */
} tsi_result_kind;

typedef struct tsi_pointwise_family {
    tsi_scalar_fns fns;
    tsi_result_kind result;
    /* (optional) The dtype that numbers among the attributes count as: i64 if they are whole, c64
     * if one is complex, else f32. It is taken where it is of a higher category than the inputs'.
     */
    ts_dtype (*with)(const void *attributes);
} tsi_pointwise_family;

/* Scalar functions real_<name>, whole_<name> and both_<name> of a file, one line each. */
#define TSI_REAL(name, e) static TSI_SCALAR(double, real_##name, e)
#define TSI_WHOLE(name, e) static TSI_SCALAR(int64_t, whole_##name, e)
#define TSI_BOTH(name, e) static TSI_SCALAR(double complex, both_##name, e)

ts_status tsi_family_infer(const tsi_op_call *call);
ts_status tsi_family_reference(const tsi_kernel_io *io);
/* What a number counts as beside tensors: i64 if it is whole, c64 if complex, else f32. */
ts_dtype tsi_number_dtype(const ts_number *number);
/* The first number of attributes as an integer: a real is cut off, as in a cast. */
int64_t tsi_first_cut(const void *attributes);
/* Whether the first number of a call's attributes can be an element of its first input. */
ts_status tsi_number_fits(const tsi_op_call *call);
/* Rules of a constant: whatever is pending on the input, the result is replicated. */
void tsi_constant_rules(const tsi_op_call *call, tsi_rules *rules);
/* The dtype in which a family computes, from its inputs' dtypes (promoted) and attributes. */
ts_dtype tsi_family_compute(const tsi_op_desc *op, ts_dtype promoted, const void *attributes);

/* Attributes that are one real number. */
typedef struct tsi_unary_number {
    double number;
} tsi_unary_number;
static inline double tsi_unary_number_of(const void *attributes)
{
    return ((const tsi_unary_number *)attributes)->number;
}
/* The largest number of a dtype of reals: what nan_to_num puts for an infinity unless it is told.
 */
static inline double tsi_largest_real(ts_dtype dtype)
{
    return dtype == TS_DTYPE_F64    ? 0x1.fffffffffffffp1023
           : dtype == TS_DTYPE_F32  ? 0x1.fffffep127
           : dtype == TS_DTYPE_BF16 ? 0x1.fep127
                                    : 65504;
}
/* The end of a gradient: dy * slope. */
ts_status tsi_unary_give(const tsi_grad_io *io, ts_tensor *slope);

/* Gradients of unary.c, in unary_grad.c. */
/* clang-format off */
#define TSI_UNARY_GRADS(X) \
    X(abs) X(acos) X(acosh) X(asin) X(asinh) X(atan) X(atanh) X(conj) X(copy) X(cos) X(cosh) \
    X(deg2rad) X(digamma) \
    X(erf) X(erfc) X(exp) X(exp2) X(expm1) X(gelu) X(gelu_tanh) X(lgamma) X(log) \
    X(log10) X(log1p) X(log2) X(log_sigmoid) \
    X(neg) X(rad2deg) X(reciprocal) X(relu) X(rsqrt) X(sigmoid) X(silu) X(sin) \
    X(sinh) X(softplus) X(sqrt) X(square) X(tan) X(tanh) X(zero)
/* clang-format on */
#define TSI_DECLARE_GRAD(name) ts_status tsi_grad_##name(const tsi_grad_io *io);
TSI_UNARY_GRADS(TSI_DECLARE_GRAD)
#undef TSI_DECLARE_GRAD

/* x / |x|, 0 at 0, by the conjugate of complex x, which is what gradients are given. */
ts_tensor *tsi_complex_sign(ts_tensor *conjugate);

/* A random shape of 0 to 3 dims, small and odd, for the samples of pointwise operators. */
ts_shape tsi_sample_shape(uint64_t *random, int32_t variant);
bool tsi_sample_unary(tsi_sample *s);
/* Integers; the second input is there if the operator takes it. */
bool tsi_sample_bits(tsi_sample *s);
bool tsi_sample_binary(tsi_sample *s);

#endif
