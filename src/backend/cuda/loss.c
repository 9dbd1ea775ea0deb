/* SPDX-License-Identifier: Apache-2.0 */
/* loss.c - losses of elements (TSI_CUDA_LOSSES): their terms, and the sum of them by the reductions
 * of reduce.c, so that its order is theirs. */
#include <string.h>

#include "backend/cuda/dtype.h"
#include "backend/cuda/kernel.h"
#include "backend/cuda/reduce.h"
#include "base/error.h"
#include "op/nn/attributes.h"

enum { MEAN, SUM, NONE, BATCH_MEAN };

static double divisor_of(const ts_shape *shape, int32_t reduction)
{
    if (reduction == MEAN) return (double)ts_shape_count(shape);
    return reduction == BATCH_MEAN && shape->ndim ? (double)shape->extent[0] : 1.0;
}

/* Every term into a block of the extents of x. */
static ts_status write_terms(const tsi_kernel_io *io, tsi_cuda_loss kind, const tsi_block *to)
{
    const tsi_loss_attributes *a = io->attributes;
    const tsi_block *x = &io->in[0].block, *target = &io->in[1].block;
    bool wide = x->dtype == TS_DTYPE_F64 || target->dtype == TS_DTYPE_F64;
    tsi_cuda_loss_args args = { .x = tsi_cuda_operand_of(x),
                                .target = tsi_cuda_operand_of(target),
                                .to = tsi_cuda_operand_of(to),
                                .point = a->point,
                                .kind = (int32_t)kind,
                                .flag = a->log_target,
                                .dtype = { x->dtype, target->dtype, to->dtype } };
    tsi_cuda_operand *const operands[] = { &args.x, &args.target, &args.to };
    int64_t extent[TS_NDIM_MAX];
    memcpy(extent, x->extent, sizeof extent);
    int32_t ndim = tsi_cuda_coalesce(x->ndim, extent, operands, 3);
    tsi_cuda_space_make(&args.space, ndim, extent);
    return tsi_cuda_launch_items(io->queue,
                                 wide ? TSI_CUDA_loss_terms_f64 : TSI_CUDA_loss_terms_f32,
                                 args.space.count, &args);
}

static ts_status loss(const tsi_kernel_io *io, tsi_cuda_loss kind)
{
    const tsi_loss_attributes *a = io->attributes;
    const tsi_block *x = &io->in[0].block, *target = &io->in[1].block, *out = &io->out[0].block;
    tsi_stream *stream = io->queue;
    int64_t count = tsi_block_count(x), step = 1;
    if (!stream || !tsi_cuda_is_real(x->dtype) || !tsi_cuda_is_real(target->dtype) || count == 0)
        return (ts_status)TSI_KERNEL_DECLINED;
    TSI_TRY(tsi_cuda_enter(stream->cuda));
    if (a->reduction == NONE) return write_terms(io, kind, out);
    bool wide = x->dtype == TS_DTYPE_F64 || target->dtype == TS_DTYPE_F64;
    tsi_block terms = *x;
    CUdeviceptr memory = 0;
    terms.dtype = wide ? TS_DTYPE_F64 : TS_DTYPE_F32;
    for (int32_t d = x->ndim - 1; d >= 0; step *= x->extent[d--])
        terms.stride[d] = step;
    TSI_TRY(tsi_cuda_memory(stream, "terms of a loss", (size_t)count * (wide ? 8 : 4), &memory));
    terms.data = (void *)(uintptr_t)memory;
    ts_status status = write_terms(io, kind, &terms);
    if (status == TS_OK)
        status = tsi_cuda_sum_all(stream, &terms, out,
                                  divisor_of(&io->in[0].global->shape, a->reduction));
    (void)tsi_cu.free_async(memory, tsi_cuda_apart(stream));
    return status;
}

#define LOSS(name, term)                                                                           \
    ts_status tsi_cuda_##name(const tsi_kernel_io *io)                                             \
    {                                                                                              \
        return loss(io, TSI_CUDA_LOSS_##name);                                                     \
    }
TSI_CUDA_LOSSES(LOSS)
#undef LOSS
