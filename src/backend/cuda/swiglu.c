/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu.c - the gradients of swiglu in one pass, for contiguous f32 and bf16. */
#include "backend/cuda/kernel.h"
#include "base/error.h"

enum { WIDE = 16 };

ts_status tsi_cuda_swiglu_gradients(const tsi_kernel_io *io)
{
    const tsi_block *gate = &io->in[1].block;
    const tsi_block *all[] = { &io->in[0].block, gate, &io->in[2].block, &io->out[0].block,
                               &io->out[1].block };
    bool fits = io->queue && (gate->dtype == TS_DTYPE_F32 || gate->dtype == TS_DTYPE_BF16);
    int64_t count = tsi_block_count(gate);
    for (int k = 0; k < 5; k++)
        fits = fits && all[k]->dtype == gate->dtype && tsi_block_is_dense(all[k]) &&
               (uintptr_t)all[k]->data % WIDE == 0;
    if (!fits) return (ts_status)TSI_KERNEL_DECLINED;
    if (count == 0) return TS_OK;
    tsi_cuda_swiglu_args args = { .dy = all[0]->data,
                                  .gate = gate->data,
                                  .up = all[2]->data,
                                  .d_gate = all[3]->data,
                                  .d_up = all[4]->data,
                                  .count = count };
    int64_t each = WIDE / (int64_t)ts_dtype_size((ts_dtype)gate->dtype);
    int64_t threads = (count + each - 1) / each;
    if (threads < each) threads = each; /* the last ones are one a thread */
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    return tsi_cuda_launch(io->queue,
                           gate->dtype == TS_DTYPE_F32 ? TSI_CUDA_swiglu_gradients_f32
                                                       : TSI_CUDA_swiglu_gradients_bf16,
                           (threads + TSI_CUDA_BLOCK - 1) / TSI_CUDA_BLOCK, TSI_CUDA_BLOCK, 0,
                           &args);
}
