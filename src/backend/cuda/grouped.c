/* SPDX-License-Identifier: Apache-2.0 */
/* grouped.c - grouped_linear, grouped_mm and their gradients: rows are listed by their groups on
 * the device, so the host waits for nothing.
 *
 *   groups of rows, or where groups end --count, list--> tiles of rows of one group --> products
 *
 * Both operators are rows x [m, inner] and y [m, outer] and a matrix w [outer, inner] for each
 * group, and say which dims of the matrices these are. */
#include <string.h>

#include "backend/cuda/complain.h"
#include "backend/cuda/dtype.h"
#include "backend/cuda/kernel.h"
#include "backend/cuda/kernels/grouped.h"
#include "base/error.h"
#include "base/intmath.h"

enum { CHUNK_LEAST = 1024, CHUNKS_MOST = 256 };

/* What one call multiplies. */
typedef struct products {
    const tsi_operand *x, *y, *w;
    int32_t outer, inner; /* dims of w */
    bool ends;            /* the third input has the ends of groups, not the group of each row */
    bool sums;            /* w is the result, not y */
} products;

/* ---- what lies where ------------------------------------------------------------------------- */

/* Rows of contiguous columns in two steps; false: they take more. */
static bool row_steps_of(const tsi_block *block, tsi_cuda_row_steps *out)
{
    int32_t last = block->ndim - 1;
    int64_t count = 1;
    *out = (tsi_cuda_row_steps){ .each = 1 };
    if (block->extent[last] != 1 && block->stride[last] != 1) return false;
    bool apart = false; /* the outer step is known */
    for (int32_t d = last - 1; d >= 0; d--) {
        int64_t stride = block->stride[d];
        if (block->extent[d] == 1) continue;
        if (stride < 0) return false;
        if (!apart && count == 1) {
            out->inner = stride;
        } else if (!apart && stride != out->inner * count) {
            apart = true;
            out->each = count;
            out->outer = stride;
            count = 1;
        } else if (apart && stride != out->outer * count) {
            return false;
        }
        count *= block->extent[d];
    }
    if (!apart) out->outer = out->inner; /* one step for each row */
    return true;
}

static bool settle(const tsi_kernel_io *io, const products *p, tsi_cuda_grouped_args *a)
{
    const tsi_block *x = &p->x->block, *y = &p->y->block, *w = &p->w->block;
    const tsi_block *group = &io->in[2].block;
    int64_t one;
    a->w = w->data, a->group = group->data;
    a->w_group = w->stride[0], a->w_outer = w->stride[p->outer], a->w_inner = w->stride[p->inner];
    a->groups = w->extent[0];
    a->inner = x->extent[x->ndim - 1];
    a->outer = y->extent[y->ndim - 1];
    a->dtype = x->dtype;
    a->group_dtype = group->dtype;
    if (!io->queue || !tsi_cuda_is_real(x->dtype) || y->dtype != x->dtype || w->dtype != x->dtype ||
        !tsi_cuda_is_whole(group->dtype) ||
        !tsi_cuda_rows_of(group, 0, &a->rows, &one, &a->group_stride) ||
        !tsi_cuda_places_make(&a->place, p->w->region, 0))
        return false;
    if (p->ends) {
        a->ends = a->rows;
        a->rows = x->extent[0];
        if (!tsi_cuda_places_make(&a->row_place, p->x->region, 0)) return false;
    }
    return a->rows < INT32_MAX;
}

/* ---- the lists ------------------------------------------------------------------------------- */

/* `block` as rows of two steps, in `room` where it takes a copy. */
static ts_status rows_make(tsi_stream *stream, tsi_block block, tsi_cuda_row_steps *steps,
                           void **data, char **room)
{
    if (!row_steps_of(&block, steps)) {
        TSI_TRY(tsi_cuda_rows_make(stream, &block, 1, room));
        (void)row_steps_of(&block, steps);
    }
    *data = block.data;
    return TS_OK;
}

static size_t rows_room(const tsi_block *block)
{
    tsi_cuda_row_steps steps;
    return row_steps_of(block, &steps) ? 0 : tsi_cuda_rows_room(block, 1);
}

/* Rows of x and y, and behind their copies the room of the lists. Tiles of 64 rows are the most. */
static ts_status room_make(const tsi_kernel_io *io, const products *p, tsi_cuda_grouped_args *a)
{
    void *memory = NULL, *x = NULL;
    int64_t even = (a->rows + CHUNKS_MOST - 1) / CHUNKS_MOST;
    a->chunk_rows =
        tsi_max_i64(CHUNK_LEAST, (even + TSI_CUDA_GROUPED_LISTERS - 1) / TSI_CUDA_GROUPED_LISTERS *
                                     TSI_CUDA_GROUPED_LISTERS);
    a->chunks = tsi_max_i64(1, (a->rows + a->chunk_rows - 1) / a->chunk_rows);
    size_t tiles = (size_t)(a->rows / TSI_CUDA_GROUPED_TILE + a->groups);
    size_t numbers = (size_t)(2 * a->groups * (1 + a->chunks) + a->rows);
    size_t copies = rows_room(&p->x->block) + rows_room(&p->y->block);
    TSI_TRY(tsi_cuda_scratch(
        io->queue, copies + tiles * sizeof *a->tile + numbers * sizeof(int32_t), &memory));
    char *room = memory;
    TSI_TRY(rows_make(io->queue, p->x->block, &a->x_row, &x, &room));
    TSI_TRY(rows_make(io->queue, p->y->block, &a->y_row, &a->y, &room));
    a->x = x;
    a->tile = (tsi_cuda_grouped_tile *)(void *)room;
    a->count = (int32_t *)(void *)(a->tile + tiles);
    a->begin = a->count + a->groups;
    a->counted = a->begin + a->groups;
    a->next = a->counted + a->groups * a->chunks;
    a->order = a->next + a->groups * a->chunks;
    return TS_OK;
}

static ts_status lists_make(const tsi_kernel_io *io, const products *p, int32_t tile_rows,
                            tsi_cuda_grouped_args *a)
{
    a->tile_rows = tile_rows;
    a->tiles = a->rows / tile_rows + a->groups;
    if (p->ends)
        TSI_TRY(
            tsi_cuda_ask(io, TSI_CUDA_BAD_END, p->x->global->shape.extent[0], false, &a->asker));
    else /* peers may have other rows: they are told */
        TSI_TRY(
            tsi_cuda_ask(io, TSI_CUDA_BAD_GROUP, p->w->global->shape.extent[0], true, &a->asker));
    TSI_TRY(tsi_cuda_launch(io->queue, TSI_CUDA_grouped_count, a->chunks, TSI_CUDA_GROUPED_LISTERS,
                            0, a));
    return tsi_cuda_launch(io->queue, TSI_CUDA_grouped_list, a->chunks, TSI_CUDA_GROUPED_LISTERS, 0,
                           a);
}

/* ---- the products ---------------------------------------------------------------------------- */

/* Matrices [outer, inner] that are contiguous along inner, or outer; sums over rows. */
enum { PLAIN, TURNED, SUMS, FORMS };

/* A way to multiply: tiles of `rows` listed rows by `columns`, and kernels of two dtypes. */
typedef struct method {
    int32_t threads, rows, columns, shared;
    tsi_cuda_kernel kernel[2][FORMS];
} method;

static const method plain_method = {
    TSI_CUDA_GROUPED_THREADS,
    TSI_CUDA_GROUPED_TILE,
    TSI_CUDA_GROUPED_TILE,
    0,
    { { TSI_CUDA_grouped_f32, TSI_CUDA_grouped_f32, TSI_CUDA_grouped_backward_f32 },
      { TSI_CUDA_grouped_f64, TSI_CUDA_grouped_f64, TSI_CUDA_grouped_backward_f64 } },
};

static const method mma_method = {
    TSI_CUDA_GROUPED_MMA_THREADS,
    TSI_CUDA_GROUPED_MMA_TILE,
    TSI_CUDA_GROUPED_MMA_TILE,
    TSI_CUDA_GROUPED_MMA_SHARED,
    { { TSI_CUDA_grouped_mma_bf16, TSI_CUDA_grouped_mma_turned_bf16,
        TSI_CUDA_grouped_mma_sums_bf16 },
      { TSI_CUDA_grouped_mma_f16, TSI_CUDA_grouped_mma_turned_f16,
        TSI_CUDA_grouped_mma_sums_f16 } },
};

static const method wide_method = {
    TSI_CUDA_GROUPED_WIDE_THREADS,
    TSI_CUDA_GROUPED_WIDE_ROWS,
    TSI_CUDA_GROUPED_WIDE_COLUMNS,
    TSI_CUDA_GROUPED_WIDE_SHARED,
    { { TSI_CUDA_grouped_wide_bf16, TSI_CUDA_grouped_wide_turned_bf16,
        TSI_CUDA_grouped_wide_sums_bf16 },
      { TSI_CUDA_grouped_wide_f16, TSI_CUDA_grouped_wide_turned_f16,
        TSI_CUDA_grouped_wide_sums_f16 } },
};

static bool on_units(const void *data, int64_t strides)
{
    return (uintptr_t)data % 16 == 0 && strides % 8 == 0; /* of two bytes each */
}

/* Rows of x and y are known. A narrow result would leave half of a wide tile empty. */
static const method *method_of(const tsi_cuda *cuda, const products *p,
                               const tsi_cuda_grouped_args *a)
{
    bool plain = a->w_inner == 1, turned = !p->sums && a->w_outer == 1;
    bool short_numbers = a->dtype == TS_DTYPE_BF16 || a->dtype == TS_DTYPE_F16;
    if (!short_numbers || (!plain && !turned) || mma_method.shared > cuda->shared ||
        !on_units(a->x, a->x_row.outer | a->x_row.inner) ||
        !on_units(a->y, a->y_row.outer | a->y_row.inner) ||
        !on_units(a->w, a->w_group | (plain ? a->w_outer : a->w_inner)))
        return &plain_method;
    int64_t columns = p->sums ? a->inner : a->outer;
    return cuda->wide && columns > mma_method.columns ? &wide_method : &mma_method;
}

/* Tiles of y for each tile of rows, or of each matrix. */
static int64_t tiles_of(const products *p, const tsi_cuda_grouped_args *a, const method *by)
{
    int64_t columns = p->sums ? a->inner : a->outer;
    int64_t across = (columns + by->columns - 1) / by->columns;
    return across * (p->sums ? a->groups * ((a->outer + by->rows - 1) / by->rows) : a->tiles);
}

static ts_status multiply(const tsi_kernel_io *io, const products *p, tsi_cuda_grouped_args *a)
{
    const method *by = method_of(io->queue->cuda, p, a);
    int form = p->sums ? SUMS : a->w_inner == 1 ? PLAIN : TURNED;
    bool second = a->dtype == TS_DTYPE_F64 || (by != &plain_method && a->dtype == TS_DTYPE_F16);
    TSI_TRY(lists_make(io, p, by->rows, a));
    return tsi_cuda_launch(io->queue, by->kernel[second][form], tiles_of(p, a, by), by->threads,
                           by->shared, a);
}

static ts_status run(const tsi_kernel_io *io, const products *p)
{
    tsi_cuda_grouped_args a = { .rows = 0 };
    const tsi_block *result = &io->out[0].block;
    if (!settle(io, p, &a) || (!p->sums && rows_room(result) > 0))
        return (ts_status)TSI_KERNEL_DECLINED;
    if (tsi_block_count(result) == 0) return TS_OK;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    bool empty = a.groups == 0 || a.inner == 0;
    if (!p->sums && (p->ends || a.place.count > 0 || empty)) { /* rows of nobody here */
        unsigned char zero[16] = { 0 };
        TSI_TRY(io->device->fill(io->device, result, zero, io->queue));
        if (empty) return TS_OK;
    }
    TSI_TRY(room_make(io, p, &a));
    return multiply(io, p, &a);
}

ts_status tsi_cuda_grouped_linear(const tsi_kernel_io *io)
{
    return run(io, &(products){ &io->in[0], &io->out[0], &io->in[1], 1, 2, false, false });
}

ts_status tsi_cuda_grouped_linear_backward(const tsi_kernel_io *io)
{
    return run(io, &(products){ &io->in[1], &io->in[0], &io->out[0], 1, 2, false, true });
}

ts_status tsi_cuda_grouped_mm(const tsi_kernel_io *io)
{
    return run(io, &(products){ &io->in[0], &io->out[0], &io->in[1], 2, 1, true, false });
}

/* Columns of the matrices are those of dy, which are the inner ones here: they are contiguous. */
ts_status tsi_cuda_grouped_mm_backward(const tsi_kernel_io *io)
{
    return run(io, &(products){ &io->in[1], &io->in[0], &io->out[0], 1, 2, true, true });
}
