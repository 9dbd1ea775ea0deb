/* SPDX-License-Identifier: Apache-2.0 */
/* attention.h - what attention and its gradient share: operands as rows of f32, and who sees what.
 *
 * Heads and queries of a rank may be any part of the whole, so the keys a query sees and the group
 * a head uses come from the regions. */
#ifndef TSI_BACKEND_CPU_ATTEND_H
#define TSI_BACKEND_CPU_ATTEND_H

#include "backend/cpu/cpu.h"
#include "backend/cpu/matrix/gemm.h"

/* An operand [B, H, T, D] with rows of contiguous f32: where it lies, or a copy. Strides in
 * elements. */
typedef struct tsi_heads {
    float *data;
    int64_t batch, head, row;
} tsi_heads;

typedef struct tsi_attend {
    const tsi_kernel_io *io;
    const tsi_row_set *set;
    float scale;
    bool causal;
    int64_t group_size, reach; /* heads per group; causal: keys seen by query 0, less one */
    int64_t batches, heads, groups, queries, keys, depth, width;
} tsi_attend;

/* False: a dtype that is not computed in f32, or a scale that is not positive. */
bool tsi_attend_make(const tsi_kernel_io *io, tsi_attend *out);
int64_t tsi_attend_group(const tsi_attend *a, int64_t head); /* local group of a local head */
int64_t tsi_attend_seen(const tsi_attend *a, int64_t query); /* keys a local query sees */

/* Rows of f32 for an operand: itself if they lie so, else in scratch, filled from it if `fill`. */
ts_status tsi_heads_get(ts_rank *rank, const tsi_block *block, bool fill, tsi_heads *out,
                        tsi_scratch *scratch);
/* Copies what was computed in scratch into the block; nothing if it lies there. */
void tsi_heads_put(ts_rank *rank, const tsi_block *block, const tsi_heads *from);

static inline float *tsi_heads_row(const tsi_heads *x, int64_t b, int64_t h, int64_t t)
{
    return x->data + b * x->batch + h * x->head + t * x->row;
}

/* One element of log-sum-exp [B, H, T]. */
void *tsi_attend_lse(const tsi_block *lse, int64_t b, int64_t h, int64_t t);

/* bf16 (attend_bf16.c, attend_back_bf16.c): are all operands so, and has the machine products of
 * it? */
bool tsi_attend_is_bf16(const tsi_kernel_io *io);
/* Where panels come from: positions at[2] .. of head at[1] of batch at[0] are rows, the head's dims
 * k; or (turned) the other way round. */
void tsi_attend_panels(tsi_panels *p, const tsi_block *x, const int64_t *at, bool turned);
ts_status tsi_attend_forward_bf16(const tsi_kernel_io *io, const tsi_attend *a);
ts_status tsi_attend_backward_bf16(const tsi_kernel_io *io, const tsi_attend *a);

#endif
