/* SPDX-License-Identifier: Apache-2.0 */
/* cast.c - the same elements in another dtype. What is pending may stay so where the cast loses
 * nothing: then casting the sum is summing what was cast. */
#include "op/pointwise/unary.h"
#include "tensor/scope.h"

typedef struct cast_attributes {
    int32_t dtype, reserved;
} cast_attributes;
static const tsi_attribute cast_table[] = { TSI_ATTR(cast_attributes, dtype, DTYPE, "dtype", NULL),
                                            { 0 } };

static ts_status cast_infer(const tsi_op_call *call)
{
    const cast_attributes *a = call->attributes;
    if (ts_dtype_size((ts_dtype)a->dtype) == 0)
        return TSI_FAIL(TS_ERR_DTYPE, "cast: unknown dtype %d", a->dtype);
    call->out[0] = call->in[0];
    call->out[0].dtype = a->dtype;
    return TS_OK;
}

/* Does every value of `from` exist in `to`? */
static bool widens(ts_dtype from, ts_dtype to)
{
    if (from == to) return true;
    if (to == TS_DTYPE_F64)
        return from == TS_DTYPE_F32 || from == TS_DTYPE_BF16 || from == TS_DTYPE_F16;
    if (to == TS_DTYPE_F32) return from == TS_DTYPE_BF16 || from == TS_DTYPE_F16;
    return to == TS_DTYPE_C128 && from == TS_DTYPE_C64;
}

/* Rounding commutes with extremes, being monotone; with sums only if nothing is rounded. */
static void cast_trait(const tsi_op_call *call, tsi_traits *traits)
{
    ts_dtype from = (ts_dtype)call->in[0].dtype, to = (ts_dtype)call->out[0].dtype;
    *traits = (tsi_traits){ 0 };
    if (from == to)
        traits->flow = TSI_SELECT;
    else if (widens(from, to))
        traits->flow = TSI_LINEAR_ALL | TSI_MULTIPLICATIVE;
    bool ordered = tsi_dtype_category(from) != TSI_CATEGORY_COMPLEX &&
                   tsi_dtype_category(to) != TSI_CATEGORY_COMPLEX && to != TS_DTYPE_BOOL;
    bool wraps = tsi_dtype_category(from) == TSI_CATEGORY_INT &&
                 tsi_dtype_category(to) == TSI_CATEGORY_INT &&
                 ts_dtype_size(to) < ts_dtype_size(from);
    if (from != to && ordered && !wraps) traits->mono[0] = TSI_MONO_UP;
}

static ts_status cast_reference(const tsi_kernel_io *io)
{
    return io->device->copy(io->device, &io->out[0].block, &io->in[0].block, NULL);
}

static ts_status cast_grad(const tsi_grad_io *io)
{
    return tsi_grad_give(io, ts_cast(io->out_grad[0], (ts_dtype)io->in_meta[0].dtype));
}

static bool sample_cast(tsi_sample *s)
{
    static const ts_dtype pair[][2] = { { TS_DTYPE_F32, TS_DTYPE_F64 },
                                        { TS_DTYPE_F64, TS_DTYPE_F32 },
                                        { TS_DTYPE_F32, TS_DTYPE_BF16 },
                                        { TS_DTYPE_F64, TS_DTYPE_I64 } };
    tsi_sample_unary(s);
    s->in[0].dtype = (int32_t)pair[s->variant % 4][0];
    ((cast_attributes *)s->attributes)->dtype = (int32_t)pair[s->variant % 4][1];
    return s->variant < 4;
}

const tsi_op_desc tsi_op_cast = {
    .name = "cast",
    .what = "the same values in another dtype",
    .dims = "*",
    TSI_OPERANDS(1, 1, 1),
    TSI_ATTRIBUTES(cast_table, cast_attributes),
    .infer = cast_infer,
    .trait = cast_trait,
    .reference = cast_reference,
    .grad = cast_grad,
    .sample = sample_cast,
};

ts_tensor *(ts_cast)(ts_tensor *x, ts_dtype dtype)
{
    if (x && ts_tensor_dtype(x) == dtype) return tsi_tensor_same(x);
    return tsi_op_make(&tsi_op_cast, &x, 1, &(cast_attributes){ .dtype = (int32_t)dtype });
}
