/* SPDX-License-Identifier: Apache-2.0 */
/* nll.c - nll_loss: the costs of labels, and their sum or mean. */
#include "backend/cuda/complain.h"
#include "backend/cuda/dtype.h"
#include "backend/cuda/kernel.h"
#include "base/error.h"
#include "op/nn/attributes.h"

enum { MEAN, SUM, NONE, TOTAL_THREADS = 1024 };

/* False: not of these dtypes, or classes in more pieces than a kernel takes. */
static bool settle(const tsi_kernel_io *io, tsi_cuda_nll_args *a)
{
    const tsi_operand *x = &io->in[0], *weight = io->input_count == 3 ? &io->in[2] : NULL;
    const tsi_block *labels = &io->in[1].block;
    int32_t last = x->block.ndim - 1;
    if (weight && weight->global->dtype == TS_DTYPE_NONE) weight = NULL;
    if (!tsi_cuda_is_whole(labels->dtype) || (weight && !tsi_cuda_is_real(weight->block.dtype)) ||
        !tsi_cuda_places_make(&a->place, x->region, last) ||
        !tsi_cuda_places_make(&a->weight_place, weight ? weight->region : NULL, 0))
        return false;
    a->x = tsi_cuda_operand_of(&x->block);
    a->class_step = x->block.stride[last];
    a->labels = tsi_cuda_operand_of(labels);
    a->dtype = x->block.dtype;
    a->label_dtype = labels->dtype;
    if (weight) {
        a->weight = weight->block.data;
        a->weight_step = weight->block.stride[0];
        a->weight_dtype = weight->block.dtype;
    }
    tsi_cuda_space_make(&a->space, labels->ndim, labels->extent);
    return true;
}

ts_status tsi_cuda_nll_loss(const tsi_kernel_io *io)
{
    const tsi_nll_attributes *attributes = io->attributes;
    const tsi_block *out = &io->out[0].block;
    const ts_shape *x = &io->in[0].global->shape;
    tsi_cuda_nll_args a = { .ignore = attributes->ignore_index, .to_dtype = out->dtype };
    void *memory = NULL;
    if (!io->queue || !settle(io, &a)) return (ts_status)TSI_KERNEL_DECLINED;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    TSI_TRY(tsi_cuda_ask(io, TSI_CUDA_BAD_LABEL, x->extent[x->ndim - 1], io->in[1].region != NULL,
                         &a.asker));
    if (attributes->reduction == NONE) {
        a.to = tsi_cuda_operand_of(out);
        return tsi_cuda_launch_items(io->queue, TSI_CUDA_nll_terms, a.space.count, &a);
    }
    TSI_TRY(
        tsi_cuda_scratch(io->queue, (size_t)(2 * a.space.count + 1) * sizeof *a.terms, &memory));
    a.terms = memory;
    a.loss = out->data;
    a.mean = attributes->reduction == MEAN;
    TSI_TRY(tsi_cuda_launch_items(io->queue, TSI_CUDA_nll_terms, a.space.count, &a));
    return tsi_cuda_launch(io->queue, TSI_CUDA_nll_total, 1, TOTAL_THREADS, 0, &a);
}
