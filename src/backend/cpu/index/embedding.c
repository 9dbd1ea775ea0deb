/* SPDX-License-Identifier: Apache-2.0 */
/* embedding.c - rows of a table by index, and the gradient of the table, on all threads.
 *
 * Rows are copied by ranges of indices. Gradients are added up by ranges of columns, each in the
 * order of the indices: the same bits with any number of threads. */
#include <string.h>

#include "backend/cpu/data.h"
#include "base/compiler.h"
#include "op/core/element.h"

enum { GRAIN = 16384, COLUMNS = 64 };

typedef struct lookup {
    const tsi_row_set *set;
    const tsi_block *table, *ids, *rows; /* rows: [ids.., width] */
    const int64_t *row;                  /* per index: local row of the table; -1: elsewhere */
    int64_t count, width;
} lookup;

static int64_t offset_of(const tsi_block *ids, const tsi_block *block, int64_t position)
{
    int64_t at = 0;
    for (int32_t d = ids->ndim - 1; d >= 0; d--) {
        at += position % ids->extent[d] * block->stride[d];
        position /= ids->extent[d];
    }
    return at;
}

/* The local rows of all indices; false: one is out of range, which the reference tells. */
static bool find_rows(const tsi_operand *table, const tsi_block *ids, int64_t count, int64_t *row)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t index = tsi_block_int(ids, offset_of(ids, ids, i));
        if (index < 0 || index >= table->global->shape.extent[0]) return false;
        row[i] = tsi_operand_local(table, 0, index);
    }
    return true;
}

static void copy_rows(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const lookup *l = context;
    size_t bytes = (size_t)l->width * ts_dtype_size((ts_dtype)l->table->dtype);
    for (int64_t i = begin; i < end; i++) {
        void *to = tsi_block_at(l->rows, offset_of(l->ids, l->rows, i));
        if (l->row[i] < 0)
            memset(to, 0, bytes);
        else
            memcpy(to, tsi_block_at(l->table, l->row[i] * l->table->stride[0]), bytes);
    }
}

/* Columns begin .. end-1, in blocks, of every row. */
static void add_columns(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const lookup *l = context;
    int64_t first = begin * COLUMNS, last = end * COLUMNS < l->width ? end * COLUMNS : l->width;
    int64_t n = last - first;
    size_t size = ts_dtype_size((ts_dtype)l->table->dtype);
    for (int64_t r = 0; r < l->table->extent[0]; r++)
        memset(tsi_block_at(l->table, r * l->table->stride[0] + first), 0, (size_t)n * size);
    tsi_row row = { .step = { 1, 1 }, .number = (const double[]){ 1.0 }, .count = n };
    for (int64_t i = 0; i < l->count; i++) {
        if (l->row[i] < 0) continue;
        row.out = tsi_block_at(l->table, l->row[i] * l->table->stride[0] + first);
        row.in[0] = row.out;
        row.in[1] = tsi_block_at(l->rows, offset_of(l->ids, l->rows, i) + first);
        if (l->table->dtype == TS_DTYPE_F32)
            l->set->f32[TSI_ROW_add](&row);
        else
            l->set->bf16[TSI_ROW_add](&row);
    }
}

static ts_status run_rows(const tsi_kernel_io *io, lookup *l, const tsi_operand *table)
{
    bool backward = table == &io->out[0];
    tsi_scratch scratch;
    TSI_TRY(tsi_scratch_get(&scratch, io->rank, (size_t)l->count + 1, sizeof(int64_t)));
    l->row = scratch.data;
    bool found = tsi_dry(io->rank) || find_rows(table, l->ids, l->count, scratch.data);
    int64_t blocks = (l->width - 1) / COLUMNS + 1,
            work = l->width * (l->count + l->table->extent[0]);
    if (found && backward) /* pieces as wide as can be: each goes through all rows */
        tsi_parallel_for(io->rank, blocks,
                         work < GRAIN ? blocks : (blocks - 1) / tsi_parallel_threads(io->rank) + 1,
                         add_columns, l);
    else if (found)
        tsi_parallel_for(io->rank, l->count, GRAIN / l->width + 1, copy_rows, l);
    tsi_scratch_done(&scratch);
    return found ? TS_OK : (ts_status)TSI_KERNEL_DECLINED;
}

/* A block whose rows are contiguous is used where it lies. */
static ts_status hold_rows(const tsi_kernel_io *io, const tsi_block *block, bool out,
                           tsi_held *held)
{
    int32_t last = block->ndim - 1;
    if (block->stride[last] != 1 && block->extent[last] != 1)
        return tsi_hold(io, block, (ts_dtype)block->dtype, out, held);
    *held = (tsi_held){ .block = block, .dense = *block, .out = out };
    return TS_OK;
}

static ts_status run(const tsi_kernel_io *io, bool backward)
{
    const tsi_operand *table = backward ? &io->out[0] : &io->in[0];
    const tsi_block *rows = backward ? &io->in[0].block : &io->out[0].block;
    tsi_held held[2] = { { 0 } };
    lookup l = { .set = tsi_rows(),
                 .table = &held[0].dense,
                 .ids = &io->in[1].block,
                 .rows = &held[1].dense,
                 .count = tsi_block_count(&io->in[1].block),
                 .width = table->block.extent[1] };
    bool adds = table->block.dtype == TS_DTYPE_F32 || table->block.dtype == TS_DTYPE_BF16;
    if ((backward && !adds) || rows->dtype != table->block.dtype || l.width == 0)
        return (ts_status)TSI_KERNEL_DECLINED;
    ts_status status = hold_rows(io, &table->block, backward, &held[0]);
    if (status == TS_OK) status = hold_rows(io, rows, !backward, &held[1]);
    if (status == TS_OK) status = run_rows(io, &l, table);
    status = tsi_let_go(io, &held[1], status);
    return tsi_let_go(io, &held[0], status);
}

ts_status tsi_cpu_embedding(const tsi_kernel_io *io)
{
    return run(io, false);
}

ts_status tsi_cpu_embedding_backward(const tsi_kernel_io *io)
{
    return run(io, true);
}
