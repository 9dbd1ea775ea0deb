/* SPDX-License-Identifier: Apache-2.0 */
/* pointwise.c - elementwise operators (op/pointwise/scalars.def) of reals and whole numbers: hot
 * ones of one dtype by 16 bytes, all others by strides. Complex numbers are the host's.
 *
 * INV: what a call is computed in follows from its operator's family as in the references: whole
 * numbers in int64, reals in f32, or in f64 if one of them is f64 or whole or the result a truth.
 */
#include "op/pointwise/unary.h"

#include <math.h>
#include <string.h>

#include "backend/cuda/dtype.h"
#include "backend/cuda/kernel.h"

enum {
    HOT = 0
#define TSI_HOT(name, real, whole) +1
#define TSI_POINT(name, real, whole)
#include "op/pointwise/scalars.def"
#undef TSI_HOT
#undef TSI_POINT
};

typedef enum compute { IN_F32, IN_F64, IN_I64, NOWHERE } compute;

/* ---- what it is computed in ------------------------------------------------------------------ */

static compute compute_of(const tsi_kernel_io *io)
{
    const tsi_pointwise_family *family = io->op->family;
    bool real = family->result == TSI_RESULT_REAL, wide = false, narrow = false;
    if (tsi_cuda_is_complex(io->out[0].block.dtype)) return NOWHERE;
    for (int32_t k = 0; k < io->input_count; k++) {
        int32_t dtype = io->in[k].block.dtype;
        if (tsi_cuda_is_complex(dtype) || dtype == TS_DTYPE_NONE) return NOWHERE;
        real = real || tsi_cuda_is_real(dtype);
        wide = wide || (!tsi_cuda_is_narrow(dtype) && dtype != TS_DTYPE_BOOL);
        narrow = narrow || tsi_cuda_is_narrow(dtype);
    }
    ts_dtype with = family->with ? family->with(io->attributes) : TS_DTYPE_BOOL;
    if (tsi_cuda_is_complex(with)) return NOWHERE;
    real = real || tsi_cuda_is_real(with);
    if (!real) return family->fns.integer ? IN_I64 : NOWHERE;
    if (!family->fns.real) return NOWHERE;
    return wide || !narrow || io->out[0].block.dtype == TS_DTYPE_BOOL ? IN_F64 : IN_F32;
}

/* ---- operands -------------------------------------------------------------------------------- */

/* The strides of an input along the dims of the result. */
static tsi_cuda_operand operand_of(const tsi_block *out, const tsi_block *in)
{
    tsi_cuda_operand operand = { .data = in->data };
    for (int32_t d = 0; d < out->ndim; d++) {
        int32_t from = d - (out->ndim - in->ndim);
        operand.stride[d] = from < 0 || in->extent[from] == 1 ? 0 : in->stride[from];
    }
    return operand;
}

/* Units of 16 bytes: on their places in every dim, contiguous in the last. */
static bool is_in_units(const tsi_cuda_operand *x, int32_t ndim, int64_t n)
{
    bool fits = (uintptr_t)x->data % 16 == 0 && x->stride[ndim - 1] == 1;
    for (int32_t d = 0; d < ndim - 1; d++)
        fits = fits && x->stride[d] % n == 0;
    return fits;
}

/* The call by units, if it can be. A result of one dim may end within a unit. */
static bool by_units(tsi_cuda_pointwise_args *args, int32_t ndim, int64_t *extent, int64_t size)
{
    int64_t n = 16 / size, *last = &extent[ndim - 1];
    if (!is_in_units(&args->to, ndim, n) || (ndim > 1 && *last % n)) return false;
    args->single = 0;
    for (int32_t k = 0; k < args->inputs; k++)
        if (args->from[k].stride[ndim - 1] == 0)
            args->single |= 1 << k;
        else if (!is_in_units(&args->from[k], ndim, n))
            return false;
    *last /= n;
    args->to.stride[ndim - 1] = n;
    for (int32_t k = 0; k < args->inputs; k++)
        args->from[k].stride[ndim - 1] *= n;
    return true;
}

static bool is_hot(const tsi_cuda_pointwise_args *args)
{
    bool hot = args->op < HOT && args->inputs > 0 &&
               (args->dtype[0] == TS_DTYPE_F32 || args->dtype[0] == TS_DTYPE_BF16);
    for (int32_t k = 0; k < args->inputs; k++)
        hot = hot && args->dtype[1 + k] == args->dtype[0];
    return hot;
}

/* For whole numbers a real is cut off, as in a cast; what does not fit was refused by infer. */
static int64_t whole_of(const ts_number *number)
{
    if (number->kind == TS_NUMBER_INT) return number->whole;
    return fabs(number->real) < 0x1p63 ? (int64_t)number->real : 0;
}

/* The first three numbers among the attributes, and the first flag. */
static void read_numbers(const tsi_kernel_io *io, tsi_cuda_pointwise_args *args)
{
    int32_t numbers = 0;
    args->number[0] = 1;
    args->whole[0] = 1;
    const tsi_attribute *table = io->attributes ? io->op->attribute : NULL;
    for (; table && table->name; table++) {
        const char *at = (const char *)io->attributes + table->offset;
        ts_number number = { .real = 0 };
        if (table->type == TS_ATTRIBUTE_BOOL) memcpy(&args->flag, at, sizeof args->flag);
        if (table->type == TS_ATTRIBUTE_NUMBER) memcpy(&number, at, sizeof number);
        if (table->type == TS_ATTRIBUTE_REAL) memcpy(&number.real, at, sizeof number.real);
        bool is_number = table->type == TS_ATTRIBUTE_NUMBER || table->type == TS_ATTRIBUTE_REAL;
        if (!is_number || numbers == 3) continue;
        args->number[numbers] = number.real;
        args->whole[numbers++] = whole_of(&number);
    }
}

/* What nan_to_num puts for infinities where it is not said: the ends of the dtype. */
static void read_ends(tsi_cuda_pointwise_args *args)
{
    double largest = tsi_largest_real((ts_dtype)args->dtype[0]);
    if (isnan(args->number[1])) args->number[1] = largest;
    if (isnan(args->number[2])) args->number[2] = -largest;
}

/* ---- the call -------------------------------------------------------------------------------- */

static ts_status launch(tsi_stream *stream, tsi_cuda_pointwise_args *args, int32_t ndim,
                        int64_t *extent, compute in)
{
    static const tsi_cuda_kernel any[] = { [IN_F32] = TSI_CUDA_pointwise_any,
                                           [IN_F64] = TSI_CUDA_pointwise_any_f64,
                                           [IN_I64] = TSI_CUDA_pointwise_any_i64 };
    int64_t size = (int64_t)ts_dtype_size((ts_dtype)args->dtype[0]);
    bool units = in == IN_F32 && is_hot(args) && by_units(args, ndim, extent, size);
    tsi_cuda_space_make(&args->space, ndim, extent);
    if (!units) return tsi_cuda_launch_items(stream, any[in], args->count, args);
    static const tsi_cuda_kernel by[2][2] = {
        { TSI_CUDA_pointwise_f32, TSI_CUDA_pointwise_rows_f32 },
        { TSI_CUDA_pointwise_bf16, TSI_CUDA_pointwise_rows_bf16 },
    };
    return tsi_cuda_launch_pieces(stream, by[args->dtype[0] == TS_DTYPE_BF16][ndim > 1],
                                  args->space.count > 0 ? args->space.count : 1, 2, args);
}

static ts_status pointwise(const tsi_kernel_io *io, int32_t op)
{
    const tsi_block *out = &io->out[0].block;
    tsi_cuda_pointwise_args args = { .op = op, .inputs = io->input_count };
    tsi_cuda_operand *operand[4] = { &args.to, &args.from[0], &args.from[1], &args.from[2] };
    if (!io->queue || io->input_count > 3) return (ts_status)TSI_KERNEL_DECLINED;
    compute in = compute_of(io);
    if (in == NOWHERE) return (ts_status)TSI_KERNEL_DECLINED;
    args.count = tsi_block_count(out);
    if (args.count == 0) return TS_OK;
    if (op == TSI_POINTWISE_swiglu) { /* the hottest, and by rows a kernel of its own */
        ts_status own = tsi_cuda_swiglu_rows(io);
        if ((int)own != TSI_KERNEL_DECLINED) return own;
    }
    args.dtype[0] = out->dtype;
    args.to = operand_of(out, out);
    for (int32_t k = 0; k < io->input_count; k++) {
        args.dtype[1 + k] = io->in[k].block.dtype;
        args.from[k] = operand_of(out, &io->in[k].block);
    }
    args.flag = out->dtype == TS_DTYPE_BOOL;
    read_numbers(io, &args);
    if (op == TSI_POINTWISE_nan_to_num) read_ends(&args);
    int64_t extent[TS_NDIM_MAX];
    memcpy(extent, out->extent, sizeof extent);
    int32_t ndim = tsi_cuda_coalesce(out->ndim, extent, operand, 1 + io->input_count);
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    return launch(io->queue, &args, ndim, extent, in);
}

#define TSI_HOT(name, real, whole)                                                                 \
    ts_status tsi_cuda_op_##name(const tsi_kernel_io *io)                                          \
    {                                                                                              \
        return pointwise(io, TSI_POINTWISE_##name);                                                \
    }
#define TSI_POINT TSI_HOT
#include "op/pointwise/scalars.def"
#undef TSI_HOT
#undef TSI_POINT
