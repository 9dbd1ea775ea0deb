/* SPDX-License-Identifier: Apache-2.0 */
/* embedding.c - rows of a table by index by the widest unit that fits, and the gradient of the
 * table: tokens listed by row, lists sorted, sums in order. */
#include "backend/cuda/complain.h"
#include "backend/cuda/dtype.h"
#include "backend/cuda/kernel.h"
#include "backend/cuda/rows.h"
#include "base/error.h"

enum { SUM_THREADS = 128 };

/* Indices, and the operand whose rows they name. */
static bool settle(const tsi_kernel_io *io, const tsi_operand *rows, tsi_cuda_embedding_args *a)
{
    const tsi_block *ids = &io->in[1].block;
    int64_t one;
    a->ids = ids->data;
    a->id_dtype = ids->dtype;
    return io->queue && tsi_cuda_is_whole(ids->dtype) &&
           tsi_cuda_rows_of(ids, 0, &a->tokens, &one, &a->id_stride) &&
           tsi_cuda_places_make(&a->place, rows->region, 0);
}

/* The largest unit that columns, strides and places are multiples of, in bytes. */
static int64_t unit_for(int64_t bits, int64_t size)
{
    int64_t unit = 16;
    while (unit > size && bits % unit)
        unit /= 2;
    return unit;
}

ts_status tsi_cuda_embedding(const tsi_kernel_io *io)
{
    const tsi_block *table = &io->in[0].block, *out = &io->out[0].block;
    tsi_cuda_embedding_args a = { .table = table->data, .out = out->data };
    int64_t rows, length, size = (int64_t)ts_dtype_size((ts_dtype)table->dtype);
    if (!settle(io, &io->in[0], &a) || !tsi_cuda_rows_of(table, 1, &rows, &length, &a.table_row) ||
        !tsi_cuda_rows_of(out, 1, &rows, &a.columns, &a.out_row))
        return (ts_status)TSI_KERNEL_DECLINED;
    if (tsi_block_count(out) == 0) return TS_OK;
    int64_t bits = (a.columns | a.table_row | a.out_row) * size | (int64_t)(uintptr_t)a.table |
                   (int64_t)(uintptr_t)a.out;
    int64_t unit = unit_for(bits, size), n = unit / size;
    a.columns /= n;
    a.table_row /= n;
    a.out_row /= n;
    tsi_cuda_kernel kernel = unit == 16  ? TSI_CUDA_embedding_16
                             : unit == 8 ? TSI_CUDA_embedding_8
                             : unit == 4 ? TSI_CUDA_embedding_4
                             : unit == 2 ? TSI_CUDA_embedding_2
                                         : TSI_CUDA_embedding_1;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    TSI_TRY(tsi_cuda_ask(io, TSI_CUDA_BAD_INDEX, io->in[0].global->shape.extent[0],
                         io->in[1].region != NULL, &a.asker));
    return tsi_cuda_launch_items(io->queue, kernel, a.tokens * a.columns, &a);
}

/* ---- the gradient ---------------------------------------------------------------------------- */

/* One piece of scratch memory: cursor, counts, begins, what is left, the lists. */
static ts_status lists_make(tsi_stream *stream, tsi_cuda_embedding_args *a)
{
    void *memory = NULL;
    size_t rows = (size_t)a->rows, bytes = (4 + 3 * rows + (size_t)a->tokens) * sizeof(int32_t);
    TSI_TRY(tsi_cuda_scratch(stream, bytes, &memory));
    a->cursor = memory;
    a->count = a->cursor + 4;
    a->begin = a->count + rows;
    a->left = a->begin + rows;
    a->order = a->left + rows;
    TSI_CUDA_TRY(stream->cuda, "counts of rows",
                 tsi_cu.set_bytes(tsi_cuda_pointer(memory), 0, (4 + 3 * rows) * sizeof(int32_t),
                                  tsi_cuda_apart(stream)));
    TSI_TRY(tsi_cuda_launch_items(stream, TSI_CUDA_embedding_count, a->tokens, a));
    TSI_TRY(tsi_cuda_launch_items(stream, TSI_CUDA_embedding_begin, a->rows, a));
    return tsi_cuda_launch_items(stream, TSI_CUDA_embedding_order, a->tokens, a);
}

/* By 16 bytes where everything lies on them. */
static tsi_cuda_kernel sums_of(const tsi_cuda_embedding_args *a)
{
    if (tsi_cuda_row_units(a->dtype, a->columns, a->table_row | a->out_row,
                           (uintptr_t)a->table | (uintptr_t)a->out) > 0)
        return a->dtype == TS_DTYPE_F32 ? TSI_CUDA_embedding_units_f32
                                        : TSI_CUDA_embedding_units_bf16;
    return a->dtype == TS_DTYPE_F64 ? TSI_CUDA_embedding_add_f64 : TSI_CUDA_embedding_add_f32;
}

ts_status tsi_cuda_embedding_backward(const tsi_kernel_io *io)
{
    const tsi_block *dy = &io->in[0].block, *out = &io->out[0].block;
    tsi_cuda_embedding_args a = { .table = dy->data, .out = out->data, .dtype = out->dtype };
    int64_t tokens, length;
    if (!settle(io, &io->out[0], &a) || !tsi_cuda_is_real(out->dtype) || dy->dtype != out->dtype ||
        !tsi_cuda_rows_of(dy, 1, &tokens, &length, &a.table_row) ||
        !tsi_cuda_rows_of(out, 1, &a.rows, &a.columns, &a.out_row) || a.rows > INT32_MAX)
        return (ts_status)TSI_KERNEL_DECLINED;
    int64_t shared = (a.tokens + 31) / 32 * 4; /* a bit for each token */
    if (shared > io->queue->cuda->shared) return (ts_status)TSI_KERNEL_DECLINED;
    if (tsi_block_count(out) == 0) return TS_OK;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    TSI_TRY(tsi_cuda_ask(io, TSI_CUDA_BAD_INDEX, io->out[0].global->shape.extent[0],
                         io->in[1].region != NULL, &a.asker));
    TSI_TRY(lists_make(io->queue, &a));
    return tsi_cuda_launch(io->queue, sums_of(&a), a.rows, SUM_THREADS, (int32_t)shared, &a);
}
