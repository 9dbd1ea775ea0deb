/* SPDX-License-Identifier: Apache-2.0 */
/* attend.h - one call of attention or of its gradient, as cuDNN and the own kernels take it. */
#ifndef TSI_BACKEND_CUDA_ATTEND_H
#define TSI_BACKEND_CUDA_ATTEND_H

#include "backend/cuda/cuda.h"
#include "mask/mask.h"

/* q [B, H, T, D], k [B, G, S, D], v [B, G, S, E]; blocks of this rank. */
typedef struct tsi_cuda_attend {
    const tsi_block *q, *k, *v, *out, *lse;
    const tsi_block *d_out, *dq, *dk, *dv; /* the gradient's; else NULL */
    double scale;
    int64_t reach; /* causal: query i sees keys up to i + reach */
    bool causal;
} tsi_cuda_attend;

/* TSI_KERNEL_DECLINED: cuDNN is not here, or has nothing for these blocks. Positions and heads are
 * one interval each. */
ts_status tsi_cuda_attend_cudnn(tsi_stream *stream, const tsi_cuda_attend *call);

/* Block lists on the device, for kernels that follow in the order of the stream: copied there once,
 * and kept while they are among the last that were used. */
ts_status tsi_cuda_tiles_get(tsi_stream *stream, const tsi_mask_blocks *blocks,
                             tsi_cuda_tiles *out);
/* All of a stream that does nothing any more; `alive`: its GPU can still be asked. */
void tsi_cuda_tiles_drop(tsi_stream *stream, bool alive);

#endif
