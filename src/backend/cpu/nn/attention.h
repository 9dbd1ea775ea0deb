/* SPDX-License-Identifier: Apache-2.0 */
/* attention.h - what attention and its gradient share: operands as rows of f32, and who sees what.
 *
 * Heads, queries and keys of a rank may be any part of the whole, so the group a head uses comes
 * from the regions, and who sees whom from the block lists of the mask for these positions. Tiles
 * that nobody sees are in no list; only partial ones have bits. */
#ifndef TSI_BACKEND_CPU_ATTEND_H
#define TSI_BACKEND_CPU_ATTEND_H

#include "backend/cpu/cpu.h"
#include "backend/cpu/matrix/gemm.h"
#include "mask/mask.h"
#include "op/nn/attention.h"

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
    int64_t group_size; /* heads per group */
    int64_t batches, heads, groups, queries, keys, depth, width;
    const ts_mask *mask;           /* retained */
    const tsi_mask_blocks *blocks; /* retained */
    float cap;                     /* of scores; 0: none */
    bool alibi, drops;             /* biased by distance; weights are dropped */
    tsi_attention_drop drop;
} tsi_attend;

/* With the block lists of the mask for tiles of these sizes. TSI_KERNEL_DECLINED: a dtype that is
 * not computed in f32, or a scale that is not positive. */
ts_status tsi_attend_make(const tsi_kernel_io *io, tsi_attend *out);
ts_status tsi_attend_tiles(tsi_attend *a, int64_t queries, int64_t keys);
void tsi_attend_done(tsi_attend *a);
int64_t tsi_attend_group(const tsi_attend *a, int64_t head); /* local group of a local head */
/* Scores are more than a scaled product: they are changed row by row, and their scale is then 1. */
static inline bool tsi_attend_changes(const tsi_attend *a)
{
    return a->cap > 0 || a->alibi;
}
static inline float tsi_attend_scale(const tsi_attend *a) /* of scores as they are after that */
{
    return tsi_attend_changes(a) ? 1.0f : a->scale;
}

/* Scores from here on are so far apart that the rounding of a product shows in its power. */
#define TSI_ATTEND_FAR 65536.0f

/* ---- one row of a tile (attention_tile.c) ---------------------------------------------------- */
typedef struct tsi_attend_row {
    int64_t b, h, query, key; /* local: batch, head, query, first key of the tile */
    int64_t first, last;      /* columns of the tile that may be seen: [first, last) */
    const uint64_t *bits;     /* NULL: all of them are */
} tsi_attend_row;
/* Columns of a tile from key `first` on that are worth computing: of a partial one those that any
 * row sees. */
static inline int64_t tsi_attend_columns(const tsi_attend *a, const tsi_mask_run *run,
                                         int64_t first)
{
    int64_t left = a->keys - first, block = a->blocks->key_block;
    int64_t most = run->bits < 0 ? block : run->end;
    return left < most ? left : most;
}
/* What row i of a tile sees. at[3] is the first of its columns, a multiple of 64 into the tile. */
tsi_attend_row tsi_attend_row_of(const tsi_attend *a, const tsi_mask_run *run, const int64_t *at,
                                 int64_t i, int64_t columns);
/* Products to scores: caps and biases; what is not seen becomes -inf. `slope` (NULL: not wanted)
 * gets the derivative of each score by its product, scale included, where scores are changed. */
void tsi_attend_scores(const tsi_attend *a, const tsi_attend_row *row, float *score, float *slope);
/* Scores to weights e^(scale score - top) in place, where top is the rounded product of the
 * greatest score, or greater; their sum. */
double tsi_attend_weigh(const tsi_attend *a, float *score, float top, int64_t count);
/* Each number times what its weight is kept by. */
void tsi_attend_drop_row(const tsi_attend *a, const tsi_attend_row *row, float *x);

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

/* bf16 (attention_bf16.c, attention_backward_bf16.c): are all operands so, are scores plain, and
 * has the machine products of it? */
bool tsi_attend_is_bf16(const tsi_kernel_io *io, const tsi_attend *a);
/* Where panels come from: positions at[2] .. of head at[1] of batch at[0] are rows, the head's dims
 * k; or (turned) the other way round. */
void tsi_attend_panels(tsi_panels *p, const tsi_block *x, const int64_t *at, bool turned);
ts_status tsi_attend_forward_bf16(const tsi_kernel_io *io, tsi_attend *a);
ts_status tsi_attend_backward_bf16(const tsi_kernel_io *io, tsi_attend *a);
/* Few queries (attention_few.c), of any dtype that is computed in f32. */
ts_status tsi_attend_forward_few(const tsi_kernel_io *io, tsi_attend *a);

#endif
