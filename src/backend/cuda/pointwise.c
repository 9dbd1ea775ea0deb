/* SPDX-License-Identifier: Apache-2.0 */
/* pointwise.c - elementwise operators of reals (kernels/pointwise.def): dense operands of one dtype
 * by 16 bytes, others by strides. Whole and complex numbers are the host's. */
#include <string.h>

#include "backend/cuda/kernel.h"

static bool is_real(int32_t dtype)
{
    return dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_BF16 || dtype == TS_DTYPE_F16 ||
           dtype == TS_DTYPE_F64;
}

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

static bool is_row(const tsi_block *out, const tsi_block *in)
{
    return in->dtype == out->dtype && (uintptr_t)in->data % 16 == 0 &&
           tsi_block_count(in) == tsi_block_count(out) && tsi_block_is_dense(in);
}

static tsi_cuda_kernel kernel_of(const tsi_cuda_pointwise_args *args, bool rows, bool wide)
{
    if (wide) return TSI_CUDA_pointwise_any_f64;
    if (rows && args->dtype[0] == TS_DTYPE_F32) return TSI_CUDA_pointwise_f32;
    if (rows && args->dtype[0] == TS_DTYPE_BF16) return TSI_CUDA_pointwise_bf16;
    return TSI_CUDA_pointwise_any;
}

static ts_status pointwise(const tsi_kernel_io *io, int32_t op)
{
    const tsi_block *out = &io->out[0].block;
    tsi_cuda_pointwise_args args = { .op = op, .inputs = io->input_count, .number = 1 };
    if (!io->queue || io->input_count > 3 || !is_real(out->dtype))
        return (ts_status)TSI_KERNEL_DECLINED;
    bool wide = out->dtype == TS_DTYPE_F64, rows = is_row(out, out);
    args.dtype[0] = out->dtype;
    args.to = operand_of(out, out);
    for (int32_t k = 0; k < io->input_count; k++) {
        const tsi_block *in = &io->in[k].block;
        if (!is_real(in->dtype)) return (ts_status)TSI_KERNEL_DECLINED;
        args.dtype[1 + k] = in->dtype;
        args.from[k] = operand_of(out, in);
        wide = wide || in->dtype == TS_DTYPE_F64;
        rows = rows && is_row(out, in);
    }
    if (io->attributes && io->op->attribute_bytes >= sizeof args.number)
        memcpy(&args.number, io->attributes, sizeof args.number);
    if (tsi_block_count(out) == 0) return TS_OK;
    int64_t one = tsi_block_count(out);
    rows = rows && (out->dtype == TS_DTYPE_F32 || out->dtype == TS_DTYPE_BF16);
    tsi_cuda_space_make(&args.space, rows ? 1 : out->ndim, rows ? &one : out->extent);
    tsi_cuda_kernel kernel = kernel_of(&args, rows, wide);
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    if (kernel == TSI_CUDA_pointwise_any || kernel == TSI_CUDA_pointwise_any_f64)
        return tsi_cuda_launch_items(io->queue, kernel, one, &args);
    int64_t units = one / (16 / (int64_t)ts_dtype_size((ts_dtype)out->dtype));
    return tsi_cuda_launch_pieces(io->queue, kernel, units > 0 ? units : 1, 2, &args);
}

#define TSI_POINTWISE(name, expression)                                                            \
    ts_status tsi_cuda_op_##name(const tsi_kernel_io *io)                                          \
    {                                                                                              \
        return pointwise(io, TSI_POINTWISE_##name);                                                \
    }
#include "backend/cuda/kernels/pointwise.def"
#undef TSI_POINTWISE
