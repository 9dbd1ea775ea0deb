/* SPDX-License-Identifier: Apache-2.0 */
/* softmax_backward.c - gradients of softmax and log_softmax of narrow reals from their results, row
 * by row: twice over a row of dy and y while they lie in the cache. Rows of f32 are used where they
 * lie, others go through buffers. */
#include <math.h>

#include "backend/cpu/cpu.h"
#include "base/compiler.h"
#include "op/nn/attributes.h"

enum { GRAIN = 8192 };
enum { DY, Y, DX, OPERANDS };

typedef struct backward {
    tsi_walk walk;
    const tsi_row_set *set;
    ts_dtype dtype[OPERANDS];
    float *buffer; /* per worker: two rows; NULL: all rows are used where they lie */
    bool logs;
} backward;

static void back_row(const backward *b, float *dx, const float *dy, const float *y)
{
    int64_t count = b->walk.length;
    if (b->logs)
        b->set->log_softmax_back(dx, dy, y, (float)b->set->fold_f32[TSI_BY_SUM](dy, count), count);
    else
        b->set->softmax_back(dx, dy, y, (float)b->set->dot(dy, y, count), count);
}

static void run_rows(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const backward *b = context;
    const tsi_walk *walk = &b->walk;
    int64_t count = walk->length;
    int32_t last = walk->ndim - 1;
    float *dy = b->buffer ? b->buffer + 2 * worker * count : NULL, *y = dy ? dy + count : NULL;
    tsi_walker at;
    tsi_walker_start(&at, walk, begin);
    for (int64_t row = begin; row < end; row++, tsi_walker_next(&at)) {
        if (!b->buffer) {
            back_row(b, (float *)(void *)at.at[DX], (const float *)(const void *)at.at[DY],
                     (const float *)(const void *)at.at[Y]);
            continue;
        }
        tsi_gather(TS_DTYPE_F32, dy, b->dtype[DY], at.at[DY], walk->stride[DY][last], count);
        tsi_gather(TS_DTYPE_F32, y, b->dtype[Y], at.at[Y], walk->stride[Y][last], count);
        back_row(b, dy, dy, y);
        tsi_scatter(b->dtype[DX], at.at[DX], walk->stride[DX][last], TS_DTYPE_F32, dy, count);
    }
}

ts_status tsi_cpu_softmax_backward(const tsi_kernel_io *io)
{
    const tsi_block *in[] = { &io->in[0].block, &io->in[1].block, &io->out[0].block };
    if (!tsi_is_small_real(in[DY]->dtype) || !tsi_is_small_real(in[Y]->dtype) || in[Y]->ndim == 0)
        return (ts_status)TSI_KERNEL_DECLINED;
    if (tsi_block_count(in[Y]) == 0) return TS_OK;
    backward b = { .set = tsi_rows(), .logs = io->op == &tsi_op_log_softmax_backward };
    uint32_t dim = 1u << ((const tsi_softmax_attributes *)io->attributes)->dim;
    tsi_block moved[OPERANDS];
    const tsi_block *block[OPERANDS];
    for (int k = 0; k < OPERANDS; k++) {
        moved[k] = tsi_block_with_last(in[k], dim);
        block[k] = &moved[k];
        b.dtype[k] = (ts_dtype)in[k]->dtype;
    }
    tsi_walk_make(&b.walk, block, OPERANDS, 1);
    bool direct = true;
    for (int k = 0; k < OPERANDS; k++)
        direct = direct && b.dtype[k] == TS_DTYPE_F32 &&
                 (b.walk.length == 1 || b.walk.stride[k][b.walk.ndim - 1] == 4);
    tsi_scratch scratch = { 0 };
    if (!direct)
        TSI_TRY(tsi_scratch_get(&scratch, io->rank,
                                (size_t)(2 * tsi_parallel_threads(io->rank) * b.walk.length),
                                sizeof(float)));
    b.buffer = scratch.data;
    tsi_parallel_for(io->rank, b.walk.rows, GRAIN / b.walk.length + 1, run_rows, &b);
    tsi_scratch_done(&scratch);
    return TS_OK;
}
