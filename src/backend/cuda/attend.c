/* SPDX-License-Identifier: Apache-2.0 */
/* attend.c - attention and its gradient, by the first that takes the call:
 *
 *   cuDNN          causal or whole, of 16 bits, positions in intervals
 *   attend_mma.cu  of 16 bits, heads of up to 128: causal or whole, or by block lists; the gradient
 *                  (attend_mma_back.cu) by block lists always. On GPUs of 9.0 by products of four
 *                  warps and of up to 256 (attend_wide.cu, attend_wide_back.cu)
 *   attend_tile.cu any strides, positions, masks, changed scores, drops, dtypes, in f32 rows of up
 *                  to 128 columns, in f64 of 64
 *   attend.cu      everything else
 *
 * A call that goes on from what its results hold (`adds`) is for the own kernels.
 *
 * INV: who sees whom is said by global positions: of a causal mask over intervals by how far
 * queries reach, else by the block lists of the host (attend_tiles.c). */
#include "backend/cuda/attend.h"
#include "backend/cuda/dtype.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cuda/kernel.h"
#include "backend/cuda/kernels/attend_tile.h"
#include "base/error.h"
#include "op/nn/attention.h"

enum { ROW_MAX = 512, THREADS = 128 }; /* what a block of attend.cu sums */
#define LOG2_E 1.4426950408889634

/* ---- the call -------------------------------------------------------------------------------- */

typedef struct call {
    tsi_cuda_attend of;
    tsi_cuda_attend_args args;
    bool plain; /* causal or whole, positions in intervals, scores and weights as they are */
} call;

static tsi_cuda_attend blocks_of(const tsi_kernel_io *io)
{
    const tsi_attention_attributes *a = io->attributes;
    bool back = io->input_count > 3;
    return (tsi_cuda_attend){
        .q = &io->in[0].block,
        .k = &io->in[1].block,
        .v = &io->in[2].block,
        .out = back ? &io->in[3].block : &io->out[0].block,
        .lse = back ? &io->in[4].block : &io->out[1].block,
        .d_out = back ? &io->in[5].block : NULL,
        .dq = back ? &io->out[0].block : NULL,
        .dk = back ? &io->out[1].block : NULL,
        .dv = back ? &io->out[2].block : NULL,
        .scale = a->scale,
        .causal = a->causal != 0,
    };
}

/* The first of positions that follow each other; false: they do not. */
static bool interval_of(const tsi_kernel_io *io, int32_t input, int64_t *first)
{
    tsi_cuda_places p;
    *first = 0;
    if (!tsi_cuda_places_make(&p, io->in[input].region, 2)) return false;
    if (p.count > 0) *first = p.span[0].begin;
    return p.count == 0 || (p.count == 1 && p.span[0].count <= 1);
}

/* Is nothing to be said but how far queries reach? Of all pairs not even that. */
static bool is_plain(const tsi_kernel_io *io, int64_t *reach)
{
    const tsi_attention_attributes *a = io->attributes;
    int64_t query, key;
    *reach = 0;
    if (a->mask[0] || a->dropout > 0) return false;
    if (!a->causal) return true;
    bool intervals = interval_of(io, 0, &query) && interval_of(io, 1, &key);
    if (!intervals) return false;
    *reach = io->in[1].global->shape.extent[2] - io->in[0].global->shape.extent[2] + query - key;
    return true;
}

/* ---- cuDNN ----------------------------------------------------------------------------------- */

/* Local heads share local groups as global ones do global groups: cuDNN divides by the quotient. */
static bool groups_are_even(const tsi_cuda_attend_args *a)
{
    if (a->groups == 0 || a->heads % a->groups) return false;
    for (int64_t h = 0; h < a->heads; h++)
        if (a->group_of[h] != h / (a->heads / a->groups)) return false;
    return true;
}

/* TESSERA_CUDNN=off: the own kernels alone, to compare. */
static bool is_off(void)
{
    const char *word = getenv("TESSERA_CUDNN");
    return word && strcmp(word, "off") == 0;
}

static ts_status try_cudnn(tsi_stream *stream, const call *c)
{
    if (is_off() || !c->plain || c->args.adds || !groups_are_even(&c->args))
        return (ts_status)TSI_KERNEL_DECLINED;
    return tsi_cuda_attend_cudnn(stream, &c->of);
}

/* ---- own kernels ----------------------------------------------------------------------------- */

static tsi_cuda_heads heads_of(const tsi_block *block)
{
    tsi_cuda_heads heads = { .data = NULL };
    if (!block) return heads;
    heads.data = block->data;
    heads.dtype = block->dtype;
    memcpy(heads.stride, block->stride, sizeof heads.stride);
    return heads;
}

/* Which local group a head uses; false: it is another rank's, or there are too many heads. */
static bool find_groups(const tsi_kernel_io *io, tsi_cuda_attend_args *a)
{
    tsi_cuda_places groups;
    int64_t share = io->in[0].global->shape.extent[1] / io->in[1].global->shape.extent[1];
    if (a->heads > TSI_CUDA_HEADS || !tsi_cuda_places_make(&a->head_at, io->in[0].region, 1) ||
        !tsi_cuda_places_make(&groups, io->in[1].region, 1))
        return false;
    for (int64_t h = 0; h < a->heads; h++) {
        int64_t group = tsi_cuda_place_of(&groups, tsi_cuda_index_at(&a->head_at, h) / share);
        if (group < 0) return false;
        a->group_of[h] = (int16_t)group;
    }
    return true;
}

static tsi_cuda_drop drop_of(const tsi_attention_attributes *a, const ts_shape *q,
                             const ts_shape *k)
{
    tsi_attention_drop drop = tsi_attention_drop_of(a, q, k);
    return (tsi_cuda_drop){ .seed = drop.seed, .below = drop.below, .factor = drop.factor };
}

/* False: not for a GPU. */
static bool settle(const tsi_kernel_io *io, call *out)
{
    const ts_shape *q = &io->in[0].global->shape, *k = &io->in[1].global->shape;
    *out = (call){ .of = blocks_of(io) };
    tsi_cuda_attend *c = &out->of;
    const tsi_block *const list[] = { c->q,     c->k,  c->v,  c->out, c->lse,
                                      c->d_out, c->dq, c->dk, c->dv };
    bool real = io->queue != NULL;
    for (size_t i = 0; i < TSI_COUNT_OF(list); i++)
        real = real && (!list[i] || tsi_cuda_is_real(list[i]->dtype));
    out->plain = is_plain(io, &c->reach);
    tsi_cuda_attend_args *a = &out->args;
    *a = (tsi_cuda_attend_args){ .batch = c->q->extent[0],
                                 .heads = c->q->extent[1],
                                 .queries = c->q->extent[2],
                                 .depth = c->q->extent[3],
                                 .groups = c->k->extent[1],
                                 .keys = c->k->extent[2],
                                 .width = c->v->extent[3],
                                 .reach = c->reach,
                                 .scale = c->scale,
                                 .scale_power = (float)(c->scale * LOG2_E),
                                 .scale_narrow = (float)c->scale,
                                 .causal = c->causal,
                                 .adds = io->adds,
                                 .drop = drop_of(io->attributes, q, k),
                                 .heads_all = q->extent[1],
                                 .queries_all = q->extent[2],
                                 .offset = k->extent[2] - q->extent[2] };
    a->q = heads_of(c->q), a->k = heads_of(c->k), a->v = heads_of(c->v);
    a->out = heads_of(c->out), a->lse = heads_of(c->lse), a->d_out = heads_of(c->d_out);
    a->dq = heads_of(c->dq), a->dk = heads_of(c->dk), a->dv = heads_of(c->dv);
    return real && tsi_cuda_places_make(&a->row_at, io->in[0].region, 0) && find_groups(io, a);
}

static bool is_for_kernels(const tsi_cuda_attend_args *a)
{
    int64_t rows = a->batch * a->heads * a->queries, keys = a->batch * a->groups * a->keys;
    return a->depth <= ROW_MAX && a->width <= ROW_MAX && rows <= INT32_MAX && keys <= INT32_MAX;
}

/* The block lists of the call's mask, and what it does to scores. */
static ts_status find_tiles(const tsi_kernel_io *io, tsi_cuda_attend_args *a)
{
    const tsi_attention_family *core = io->op->family;
    const tsi_attention_tile tile = { TSI_CUDA_TILE_QUERIES, TSI_CUDA_TILE_KEYS };
    const tsi_mask_blocks *blocks = NULL;
    TSI_TRY(core->blocks(io, tile, &blocks));
    a->cap = blocks->mask->cap;
    a->alibi = blocks->mask->alibi != 0;
    ts_status status = tsi_cuda_tiles_get(io->queue, blocks, &a->tiles);
    core->release(blocks);
    return status;
}

static ts_status launch(tsi_stream *stream, const tsi_cuda_attend_args *a, int64_t blocks,
                        tsi_cuda_kernel narrow, tsi_cuda_kernel wide, int64_t numbers)
{
    bool f64 = a->q.dtype == TS_DTYPE_F64;
    tsi_cuda_attend_args args = *a;
    if (blocks == 0) return TS_OK;
    return tsi_cuda_launch(stream, f64 ? wide : narrow, blocks, THREADS,
                           (int32_t)numbers * (f64 ? 8 : 4), &args);
}

static int64_t tiles_of(int64_t count, int64_t tile)
{
    return (count + tile - 1) / tile;
}

/* ---- by tiles -------------------------------------------------------------------------------- */

static const struct tile_kernels {
    tsi_cuda_kernel forward, queries, keys;
} tile_kernels[] = {
    { TSI_CUDA_attend_tile_64_f32, TSI_CUDA_attend_tile_queries_64_f32,
      TSI_CUDA_attend_tile_keys_64_f32 },
    { TSI_CUDA_attend_tile_128_f32, TSI_CUDA_attend_tile_queries_128_f32,
      TSI_CUDA_attend_tile_keys_128_f32 },
    { TSI_CUDA_attend_tile_64_f64, TSI_CUDA_attend_tile_queries_64_f64,
      TSI_CUDA_attend_tile_keys_64_f64 },
};

/* NULL: rows are too long. */
static const struct tile_kernels *tile_of(const tsi_cuda_attend_args *a)
{
    int64_t columns = a->depth > a->width ? a->depth : a->width;
    if (columns > 128) return NULL;
    if (a->q.dtype == TS_DTYPE_F64) return columns <= 64 ? &tile_kernels[2] : NULL;
    return &tile_kernels[columns > 64];
}

/* Shared memory of two tiles of rows as long as a key, and so many as long as a value, and of
 * scores. */
static int32_t tile_bytes(const tsi_cuda_attend_args *a, int64_t values, int64_t scores)
{
    int64_t row = 2 * tsi_cuda_tile_row(a->depth) + values * tsi_cuda_tile_row(a->width) +
                  scores * TSI_CUDA_TILE_SCORES;
    return (int32_t)(row * TSI_CUDA_TILE) * (a->q.dtype == TS_DTYPE_F64 ? 8 : 4);
}

/* Of few queries most of a tile would be empty. */
static bool is_for_tiles(const tsi_stream *stream, const tsi_cuda_attend_args *a, int32_t bytes)
{
    enum { FEW = 16 };
    return tile_of(a) && a->queries >= FEW && bytes <= stream->cuda->shared;
}

static ts_status run_tiles(tsi_stream *stream, tsi_cuda_attend_args *a)
{
    int64_t blocks = tiles_of(a->queries, TSI_CUDA_TILE) * a->batch * a->heads;
    if (blocks == 0) return TS_OK;
    return tsi_cuda_launch(stream, tile_of(a)->forward, blocks, TSI_CUDA_TILE_THREADS,
                           tile_bytes(a, 1, 1), a);
}

static ts_status backward_tiles(tsi_stream *stream, tsi_cuda_attend_args *a)
{
    int64_t rows = tiles_of(a->queries, TSI_CUDA_TILE) * a->batch * a->heads;
    int64_t columns = tiles_of(a->keys, TSI_CUDA_TILE) * a->batch * a->groups;
    if (rows > 0)
        TSI_TRY(tsi_cuda_launch(stream, tile_of(a)->queries, rows, TSI_CUDA_TILE_THREADS,
                                tile_bytes(a, 2, 1), a));
    if (columns == 0) return TS_OK;
    return tsi_cuda_launch(stream, tile_of(a)->keys, columns, TSI_CUDA_TILE_THREADS,
                           tile_bytes(a, 2, 2), a);
}

/* ---- on the tensor cores --------------------------------------------------------------------- */

static bool lies_well(const tsi_block *x)
{
    bool fits = (uintptr_t)x->data % 16 == 0 && x->stride[3] == 1;
    for (int32_t d = 0; d < 3; d++)
        fits = fits && (x->extent[d] == 1 || (x->stride[d] % 8 == 0 && x->stride[d] <= INT32_MAX));
    return fits;
}

enum { QUERIES = TSI_CUDA_TILE_QUERIES, KEYS = TSI_CUDA_TILE_KEYS };
enum { FAR = 1 << 30 }; /* kernels on the tensor cores count queries and keys in 32 bits */

/* Kernels for heads of up to so many columns; rings: tiles of keys and of values that the pass over
 * queries has in memory, and of queries that the one over keys has. */
typedef struct mma_kernels {
    int32_t depth, width, threads, ring, ring_values, ring_queries;
    tsi_cuda_kernel plain, listed, known, queries, keys,
        values; /* values: keys, if that does both */
} mma_kernels;
#define MMA(half, columns, threads)                                                                \
    {                                                                                              \
        columns, columns, threads, 2, 2, 2, TSI_CUDA_attend_mma_##columns##_##half,                \
            TSI_CUDA_attend_mma_##columns##_##half##_listed,                                       \
            TSI_CUDA_attend_known_##columns##_##half,                                              \
            TSI_CUDA_attend_mma_queries_##columns##_##half,                                        \
            TSI_CUDA_attend_mma_keys_##columns##_##half,                                           \
            TSI_CUDA_attend_mma_keys_##columns##_##half                                            \
    }
#define WIDE(half, depth, width, ring, queries, values)                                            \
    {                                                                                              \
        depth, width, 256, ring, (ring)-1, queries, TSI_CUDA_attend_wide_##depth##_##half,         \
            TSI_CUDA_attend_wide_##depth##_##half##_listed,                                        \
            TSI_CUDA_attend_known_##width##_##half, TSI_CUDA_attend_wide_queries_##depth##_##half, \
            TSI_CUDA_attend_wide_keys_##depth##_##half,                                            \
            TSI_CUDA_attend_wide_##values##_##depth##_##half                                       \
    }
enum { SIZES = 4 };
static const mma_kernels by_mma[2][SIZES] = { { MMA(bf16, 64, 128), MMA(bf16, 128, 256) },
                                              { MMA(f16, 64, 128), MMA(f16, 128, 256) } };
/* By products of four warps. */
static const mma_kernels by_wide[2][SIZES] = {
    { WIDE(bf16, 64, 64, 3, 3, keys), WIDE(bf16, 128, 128, 3, 2, keys),
      WIDE(bf16, 192, 128, 3, 2, values), WIDE(bf16, 256, 256, 2, 2, values) },
    { WIDE(f16, 64, 64, 3, 3, keys), WIDE(f16, 128, 128, 3, 2, keys),
      WIDE(f16, 192, 128, 3, 2, values), WIDE(f16, 256, 256, 2, 2, values) },
};
#undef MMA
#undef WIDE

/* NULL: heads have too many columns. */
static const mma_kernels *mma_of(const tsi_stream *stream, const tsi_cuda_attend_args *a)
{
    const mma_kernels *by = (stream->cuda->wide ? by_wide : by_mma)[a->q.dtype == TS_DTYPE_F16];
    for (int i = 0; i < SIZES; i++)
        if (a->depth <= by[i].depth && a->width <= by[i].width) return &by[i];
    return NULL;
}

/* Shared memory of the kernels, in bytes of elements of 16 bits. */
static int32_t forward_bytes(const mma_kernels *by)
{
    return 2 * (QUERIES * by->depth + 2 * KEYS * (by->depth + by->width));
}

static int32_t queries_bytes(const mma_kernels *by)
{
    return 2 * (QUERIES * (by->depth + by->width) +
                KEYS * (by->ring * by->depth + by->ring_values * by->width));
}

static int32_t keys_bytes(const mma_kernels *by)
{
    enum { KNOWN = 1024 }; /* of the queries of a step */
    return 2 * (by->ring_queries + 1) * KEYS * (by->depth + by->width) + by->ring_queries * KNOWN;
}

/* Rows of narrow columns on 16 bytes, scores that are scaled and no more. A scale that is not
 * positive keeps no order. Results may be f32, sums that others add to, and are where one goes on
 * from what it holds. GPUs of some architectures have less shared memory than the gradient of wide
 * heads takes. */
static bool is_for_mma(const tsi_stream *stream, const call *c)
{
    const tsi_cuda_attend *of = &c->of;
    bool back = of->d_out != NULL;
    const tsi_block *const list[] = { of->q, of->k, of->v, of->d_out };
    const tsi_block *const result[] = { back ? of->dq : of->out, of->dk, of->dv };
    const tsi_cuda_attend_args *a = &c->args;
    const mma_kernels *by = mma_of(stream, a);
    int32_t dtype = a->q.dtype;
    bool fits = (dtype == TS_DTYPE_BF16 || dtype == TS_DTYPE_F16) && by && a->depth % 8 == 0 &&
                a->width % 8 == 0 && a->lse.dtype == TS_DTYPE_F32 && a->scale > 0 && a->cap == 0 &&
                !a->alibi && a->drop.below == 0 && a->queries < FAR && a->keys < FAR;
    for (size_t i = 0; i < (back ? 4 : 3); i++)
        fits = fits && list[i]->dtype == dtype && lies_well(list[i]);
    for (size_t i = 0; i < (back ? 3 : 1); i++)
        fits = fits && lies_well(result[i]) &&
               (result[i]->dtype == TS_DTYPE_F32 || (result[i]->dtype == dtype && !a->adds));
    if (fits && back) /* threads that look at all of out are counted in 32 bits, too */
        fits = a->batch * a->heads * a->queries < INT32_MAX / (by->width / 8) &&
               lies_well(of->out) && (of->out->dtype == TS_DTYPE_F32 || of->out->dtype == dtype) &&
               queries_bytes(by) <= stream->cuda->shared && keys_bytes(by) <= stream->cuda->shared;
    return fits;
}

static ts_status run_mma(tsi_stream *stream, call *c)
{
    tsi_cuda_attend_args *a = &c->args;
    const mma_kernels *by = mma_of(stream, a);
    int64_t blocks = tiles_of(a->queries, QUERIES) * a->batch * a->heads;
    return tsi_cuda_launch(stream, c->plain ? by->plain : by->listed, blocks, by->threads,
                           forward_bytes(by), a);
}

static ts_status backward_mma(tsi_stream *stream, tsi_cuda_attend_args *a)
{
    enum { THREADS_KNOWN = 256 };
    const mma_kernels *by = mma_of(stream, a);
    int64_t heads = a->batch * a->heads, rows = heads * a->queries;
    int64_t columns = tiles_of(a->keys, KEYS) * a->batch * a->groups;
    if (rows > 0) {
        TSI_TRY(tsi_cuda_scratch(stream, (size_t)rows * 2 * sizeof(float), &a->delta));
        TSI_TRY(tsi_cuda_launch(stream, by->known, tiles_of(rows * by->width / 8, THREADS_KNOWN),
                                THREADS_KNOWN, 0, a));
        TSI_TRY(tsi_cuda_launch(stream, by->queries, tiles_of(a->queries, QUERIES) * heads,
                                2 * QUERIES, queries_bytes(by), a));
    }
    if (columns == 0) return TS_OK;
    TSI_TRY(tsi_cuda_launch(stream, by->keys, columns, 2 * KEYS, keys_bytes(by), a));
    if (by->values == by->keys) return TS_OK;
    return tsi_cuda_launch(stream, by->values, columns, 2 * KEYS, keys_bytes(by), a);
}

/* ---- which of them --------------------------------------------------------------------------- */

static ts_status backward(tsi_stream *stream, call *c)
{
    tsi_cuda_attend_args *a = &c->args;
    int64_t rows = a->batch * a->heads * a->queries, numbers = a->depth + a->width;
    size_t size = a->q.dtype == TS_DTYPE_F64 ? sizeof(double) : sizeof(float);
    if (is_for_mma(stream, c)) return backward_mma(stream, a);
    TSI_TRY(tsi_cuda_scratch(stream, (size_t)rows * size, &a->delta));
    TSI_TRY(launch(stream, a, tiles_of(rows, THREADS / 32), TSI_CUDA_attend_delta_f32,
                   TSI_CUDA_attend_delta_f64, 0));
    if (is_for_tiles(stream, a, tile_bytes(a, 2, 2))) return backward_tiles(stream, a);
    TSI_TRY(
        launch(stream, a, rows, TSI_CUDA_attend_queries_f32, TSI_CUDA_attend_queries_f64, numbers));
    return launch(stream, a, a->batch * a->groups * a->keys, TSI_CUDA_attend_keys_f32,
                  TSI_CUDA_attend_keys_f64, numbers);
}

static ts_status run_own(const tsi_kernel_io *io, call *c)
{
    tsi_cuda_attend_args *a = &c->args;
    bool back = c->of.d_out != NULL;
    if (!back && tsi_block_count(c->of.lse) == 0) return TS_OK;
    if (c->plain && !back && is_for_mma(io->queue, c)) return run_mma(io->queue, c);
    TSI_TRY(find_tiles(io, a));
    if (back) return backward(io->queue, c);
    if (!c->plain && is_for_mma(io->queue, c)) return run_mma(io->queue, c);
    if (is_for_tiles(io->queue, a, tile_bytes(a, 1, 1))) return run_tiles(io->queue, a);
    return launch(io->queue, a, a->batch * a->heads * a->queries, TSI_CUDA_attend_f32,
                  TSI_CUDA_attend_f64, a->depth);
}

static ts_status attend(const tsi_kernel_io *io)
{
    call c;
    if (!settle(io, &c)) return (ts_status)TSI_KERNEL_DECLINED;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    ts_status status = try_cudnn(io->queue, &c);
    if ((int)status != TSI_KERNEL_DECLINED) return status;
    return is_for_kernels(&c.args) ? run_own(io, &c) : (ts_status)TSI_KERNEL_DECLINED;
}

ts_status tsi_cuda_attention(const tsi_kernel_io *io)
{
    return attend(io);
}

ts_status tsi_cuda_attention_backward(const tsi_kernel_io *io)
{
    return attend(io);
}
