/* SPDX-License-Identifier: Apache-2.0 */
/* norm.c - rms_norm, layer_norm and their gradients: rows that a warp keeps in registers where they
 * are short and on 16 bytes, or a block, else a block that reads them again. */
#include "op/nn/norm.h"

#include "backend/cuda/dtype.h"
#include "backend/cuda/kernel.h"
#include "backend/cuda/rows.h"
#include "base/error.h"
#include "op/nn/attributes.h"

/* Blocks by numbers alone: the order of sums does not follow the GPU. FULL_BLOCKS: as many as an
 * H200 runs at once of those whose threads use most registers; each further one leaves sums that
 * are to be added. */
enum { WARPS = 8, FORWARD_BLOCKS = 1056, BACK_BLOCKS = 528, FULL_BLOCKS = 264, THREADS_MAX = 512 };

/* ---- operands -------------------------------------------------------------------------------- */

/* A parameter of the columns, or none. */
static bool parameter_of(const tsi_kernel_io *io, int32_t input, int64_t length, const void **out,
                         int32_t *dtype)
{
    *out = NULL;
    if (input >= io->input_count || io->in[input].block.dtype == TS_DTYPE_NONE) return true;
    const tsi_block *p = &io->in[input].block;
    *out = p->data;
    if (*dtype == 0) *dtype = p->dtype;
    return tsi_cuda_is_real(p->dtype) && *dtype == p->dtype && tsi_block_is_dense(p) &&
           tsi_block_count(p) == length;
}

/* One number a row, dense, f32 (f64 of f64). */
static bool is_statistic(const tsi_block *block, const tsi_cuda_norm_args *args)
{
    return block->dtype == (args->dtype == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32) &&
           tsi_block_is_dense(block) && tsi_block_count(block) == args->rows;
}

/* ---- which kernel ---------------------------------------------------------------------------- */

static int64_t row_units(const tsi_cuda_norm_args *a)
{
    return tsi_cuda_row_units(a->dtype, a->length, a->x_stride | a->y_stride | a->dy_stride,
                              (uintptr_t)a->x | (uintptr_t)a->y | (uintptr_t)a->dy);
}

/* Units a lane keeps of a row, a power of two; 0: rows are not for warps. */
static int32_t units_of(const tsi_cuda_norm_args *a)
{
    int64_t units = (row_units(a) + 31) / 32;
    if (units == 0) return 0;
    int32_t power = 1;
    while (power < units)
        power *= 2;
    return power <= 16 ? power : 0;
}

static int32_t place_of(int32_t units)
{
    int32_t place = 0;
    for (; units > 1; units /= 2)
        place++;
    return place;
}

/* A thread for each unit of 16 bytes, as far as there are some. */
static int32_t threads_for(const tsi_cuda_norm_args *a)
{
    int64_t units = a->length * (int64_t)ts_dtype_size((ts_dtype)a->dtype) / 16;
    int64_t threads = (units + 31) / 32 * 32;
    return (int32_t)(threads < 32 ? 32 : threads > THREADS_MAX ? THREADS_MAX : threads);
}

/* Warps: by layer_norm or not, dtype (f32, bf16) and units a lane (1, 2, 4, 8, 16). */
#define WARP(name, type)                                                                           \
    {                                                                                              \
        TSI_CUDA_##name##_1_##type, TSI_CUDA_##name##_2_##type, TSI_CUDA_##name##_4_##type,        \
            TSI_CUDA_##name##_8_##type                                                             \
    }

static tsi_cuda_kernel forward_warp(const tsi_cuda_norm_args *a, int32_t units)
{
    static const tsi_cuda_kernel warp[2][2][4] = {
        { WARP(norm_warp, f32), WARP(norm_warp, bf16) },
        { WARP(norm_warp_layer, f32), WARP(norm_warp_layer, bf16) },
    };
    static const tsi_cuda_kernel most[2][2] = {
        { TSI_CUDA_norm_warp_16_f32, TSI_CUDA_norm_warp_16_bf16 },
        { TSI_CUDA_norm_warp_layer_16_f32, TSI_CUDA_norm_warp_layer_16_bf16 },
    };
    bool narrow = a->dtype == TS_DTYPE_BF16;
    return units == 16 ? most[a->layer][narrow] : warp[a->layer][narrow][place_of(units)];
}

static tsi_cuda_kernel backward_warp(const tsi_cuda_norm_args *a, int32_t units)
{
    static const tsi_cuda_kernel warp[2][2][4] = {
        { WARP(norm_warp_backward, f32), WARP(norm_warp_backward, bf16) },
        { WARP(norm_warp_layer_backward, f32), WARP(norm_warp_layer_backward, bf16) },
    };
    return warp[a->layer][a->dtype == TS_DTYPE_BF16][place_of(units)];
}

/* Units of weight for one of a row, whole ones, if blocks that keep a row have room for them beside
 * it and come to a second row; else 0. */
static int32_t units_kept(const tsi_stream *stream, const tsi_cuda_norm_args *a)
{
    tsi_cuda_keepers by = tsi_cuda_keepers_of(row_units(a));
    int64_t units = (int64_t)ts_dtype_size((ts_dtype)a->weight_dtype) /
                    (int64_t)ts_dtype_size((ts_dtype)a->dtype);
    bool fits = by.at_once * by.each * by.threads * (1 + units) * 16 <= stream->cuda->shared;
    bool again = a->rows > stream->cuda->units * by.at_once;
    return a->weight && (uintptr_t)a->weight % 16 == 0 && fits && again ? (int32_t)units : 0;
}

static ts_status launch_forward(tsi_stream *stream, tsi_cuda_norm_args *a)
{
    static const tsi_cuda_kernel block[] = { TSI_CUDA_norm_f32, TSI_CUDA_norm_f64,
                                             TSI_CUDA_norm_bf16, TSI_CUDA_norm_f16 };
    static const tsi_cuda_kernel kept[2][2] = {
        { TSI_CUDA_norm_block_4_f32, TSI_CUDA_norm_block_8_f32 },
        { TSI_CUDA_norm_block_4_bf16, TSI_CUDA_norm_block_8_bf16 },
    };
    int32_t units = units_of(a);
    if (units == 0 && tsi_cuda_keeps(row_units(a))) {
        a->kept = units_kept(stream, a);
        return tsi_cuda_launch_kept(stream, kept, a->dtype, a->rows, row_units(a),
                                    16 * (1 + a->kept), a);
    }
    if (units == 0)
        return tsi_cuda_launch(stream, tsi_cuda_by_dtype(a->dtype, block),
                               tsi_min_i64(a->rows, INT32_MAX), threads_for(a), 0, a);
    static const int64_t at_once[] = { 4, 3, 3, 6, 3 }; /* of layer_norm, which fetches ahead */
    bool by_blocks = a->layer && units >= 8;            /* of two units a thread */
    int64_t blocks =
        by_blocks ? a->rows : tsi_min_i64((a->rows + WARPS - 1) / WARPS, FORWARD_BLOCKS);
    if (a->layer) blocks = tsi_cuda_walkers(stream, blocks, at_once[place_of(units)]);
    return tsi_cuda_launch(stream, forward_warp(a, units), blocks,
                           by_blocks ? 16 * units : WARPS * 32, 0, a);
}

/* The number of blocks; false: rows are too long for their sums. */
static bool cut_rows(const tsi_stream *stream, tsi_cuda_norm_args *a)
{
    int32_t units = units_of(a);
    int64_t kept = a->length * (a->layer ? 2 : 1), size = a->dtype == TS_DTYPE_F64 ? 8 : 4;
    bool by_warps = units > 0 && units <= 8;
    int32_t each = by_warps ? WARPS : 1; /* rows of a block at a time */
    if (by_warps && a->layer && units > 2) each = WARPS * 2 / units;
    bool full = by_warps && (a->layer || units > 2);
    a->blocks = (int32_t)tsi_min_i64((a->rows + each - 1) / each, full ? FULL_BLOCKS : BACK_BLOCKS);
    return by_warps || kept * size <= stream->cuda->shared;
}

static ts_status launch_backward(tsi_stream *stream, tsi_cuda_norm_args *a)
{
    static const tsi_cuda_kernel block[] = { TSI_CUDA_norm_backward_f32, TSI_CUDA_norm_backward_f64,
                                             TSI_CUDA_norm_backward_bf16,
                                             TSI_CUDA_norm_backward_f16 };
    int32_t units = units_of(a);
    bool wide = a->dtype == TS_DTYPE_F64, by_warps = units > 0 && units <= 8;
    int64_t kept = a->length * (a->layer ? 2 : 1), size = wide ? 8 : 4;
    TSI_TRY(by_warps ? tsi_cuda_launch(stream, backward_warp(a, units), a->blocks, WARPS * 32, 0, a)
                     : tsi_cuda_launch(stream, tsi_cuda_by_dtype(a->dtype, block), a->blocks,
                                       threads_for(a), (int32_t)(kept * size), a));
    return tsi_cuda_launch(stream, wide ? TSI_CUDA_norm_sums_f64 : TSI_CUDA_norm_sums_f32,
                           (kept + 31) / 32, 256, 0, a);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static ts_status forward(const tsi_kernel_io *io, bool layer)
{
    const tsi_norm_attributes *attributes = io->attributes;
    int32_t inner = attributes->normalized.count;
    tsi_block x = io->in[0].block;
    const tsi_block *y = &io->out[0].block;
    tsi_cuda_norm_args a = { .y = y->data, .eps = attributes->eps, .layer = layer };
    int64_t rows, length;
    void *memory = NULL;
    a.dtype = x.dtype;
    if (!io->queue || !tsi_cuda_is_real(x.dtype) || y->dtype != x.dtype ||
        tsi_block_count(&x) == 0 || !tsi_cuda_rows_of(y, inner, &a.rows, &a.length, &a.y_stride) ||
        !parameter_of(io, 1, a.length, &a.weight, &a.weight_dtype) ||
        !parameter_of(io, 2, a.length, &a.bias, &a.weight_dtype))
        return (ts_status)TSI_KERNEL_DECLINED;
    for (int32_t o = 1; o < io->output_count; o++)
        if (!is_statistic(&io->out[o].block, &a)) return (ts_status)TSI_KERNEL_DECLINED;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    TSI_TRY(tsi_cuda_scratch(io->queue, tsi_cuda_rows_room(&x, inner), &memory));
    char *room = memory;
    TSI_TRY(tsi_cuda_rows_make(io->queue, &x, inner, &room));
    (void)tsi_cuda_rows_of(&x, inner, &rows, &length, &a.x_stride);
    a.x = x.data;
    a.scale = io->out[io->output_count - 1].block.data;
    a.mean = layer ? io->out[1].block.data : NULL;
    return launch_forward(io->queue, &a);
}

enum { DY, X, WEIGHT, SCALE, MEAN };

/* Everything but x and dy, which may have to be copied. */
static bool settle_backward(const tsi_kernel_io *io, tsi_cuda_norm_args *a)
{
    const tsi_block *x = &io->in[X].block, *dx = &io->out[0].block, *dw = &io->out[1].block;
    const tsi_block *db = a->layer ? &io->out[2].block : dw;
    a->dtype = x->dtype;
    a->sum_dtype = dw->dtype;
    a->y = dx->data;
    a->dw = dw->data;
    a->db = db->data;
    a->scale = io->in[SCALE].block.data;
    a->mean = a->layer ? io->in[MEAN].block.data : NULL;
    if (!io->queue || !tsi_cuda_is_real(x->dtype) || io->in[DY].block.dtype != x->dtype ||
        dx->dtype != x->dtype || tsi_block_count(x) == 0 ||
        !tsi_cuda_rows_of(dx, io->in[WEIGHT].block.ndim, &a->rows, &a->length, &a->y_stride) ||
        !parameter_of(io, WEIGHT, a->length, &a->weight, &a->weight_dtype) ||
        !tsi_block_is_dense(dw) || !tsi_block_is_dense(db) || db->dtype != dw->dtype)
        return false;
    for (int32_t i = SCALE; i < io->input_count; i++)
        if (!is_statistic(&io->in[i].block, a)) return false;
    return true;
}

static ts_status backward(const tsi_kernel_io *io, bool layer)
{
    tsi_block dy = io->in[DY].block, x = io->in[X].block;
    int32_t inner = io->in[WEIGHT].block.ndim;
    tsi_cuda_norm_args a = { .layer = layer };
    int64_t rows, length;
    void *memory = NULL;
    if (!settle_backward(io, &a)) return (ts_status)TSI_KERNEL_DECLINED;
    size_t copies = tsi_cuda_rows_room(&x, inner) + tsi_cuda_rows_room(&dy, inner);
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    /* Copies are dense, so the strides below do not depend on where they lie. */
    size_t most = (size_t)BACK_BLOCKS * (size_t)a.length * (layer ? 2 : 1) * sizeof(double);
    TSI_TRY(tsi_cuda_scratch(io->queue, copies + most, &memory));
    char *room = memory;
    TSI_TRY(tsi_cuda_rows_make(io->queue, &x, inner, &room));
    TSI_TRY(tsi_cuda_rows_make(io->queue, &dy, inner, &room));
    (void)tsi_cuda_rows_of(&x, inner, &rows, &length, &a.x_stride);
    (void)tsi_cuda_rows_of(&dy, inner, &rows, &length, &a.dy_stride);
    a.x = x.data;
    a.dy = dy.data;
    a.partial = (float *)(void *)room;
    if (!cut_rows(io->queue, &a)) return (ts_status)TSI_KERNEL_DECLINED;
    return launch_backward(io->queue, &a);
}

ts_status tsi_cuda_rms_norm(const tsi_kernel_io *io)
{
    return forward(io, false);
}

ts_status tsi_cuda_layer_norm(const tsi_kernel_io *io)
{
    return forward(io, true);
}

ts_status tsi_cuda_rms_norm_backward(const tsi_kernel_io *io)
{
    return backward(io, false);
}

ts_status tsi_cuda_layer_norm_backward(const tsi_kernel_io *io)
{
    return backward(io, true);
}
