/* SPDX-License-Identifier: Apache-2.0 */
/* loss.c - mse_loss, l1_loss, smooth_l1_loss and huber_loss of narrow reals: differences a tile at
 * a time, by the rows of subtraction, and their sums.
 *
 * A task is a run of elements whose length depends on sizes and strides alone; sums of tasks are
 * kept in double and added up in order. INV: the number of threads does not change a bit. */
#include <math.h>

#include "backend/cpu/cpu.h"
#include "base/compiler.h"
#include "op/core/element.h"
#include "op/nn/attributes.h"

enum { TILE = TSI_SUM_BLOCK, TASK = 16 * TILE };
enum { X, TARGET, OUT };
enum { BY_MEAN, BY_SUM, BY_NONE };
typedef enum loss_kind { SQUARE, SIZE, BENT } loss_kind;

typedef struct loss {
    const tsi_row_set *set;
    tsi_walk walk; /* x, target and, if every term is a result, out */
    ts_dtype dtype[3];
    double *sum; /* per task */
    float point, scale;
    loss_kind kind;
    int64_t piece, pieces; /* of a row: how long, how many */
    int64_t batch;         /* pieces of a task */
    bool each;
} loss;

/* `count` numbers of an operand as f32: where they lie, or in the buffer. */
static const float *numbers(const loss *l, int32_t k, const char *from, float *buffer,
                            int64_t count)
{
    int64_t stride = l->walk.stride[k][l->walk.ndim - 1];
    if (l->dtype[k] == TS_DTYPE_F32 && (stride == sizeof(float) || count == 1))
        return (const float *)(const void *)from;
    tsi_gather(TS_DTYPE_F32, buffer, l->dtype[k], from, stride, count);
    return buffer;
}

/* Sizes d to parabolas below the point and lines beyond: with c = min(d, point) c (d - c / 2). */
static void bend(float *x, float point, float scale, int64_t count)
{
    TSI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        float c = x[i] < point ? x[i] : point;
        x[i] = c * (x[i] - 0.5f * c) * scale;
    }
}

/* The terms of a tile, unless they are squares that are only added up; and their sum. */
static double tile_sum(const loss *l, float *x, int64_t count)
{
    tsi_row row = { .out = x, .in = { x }, .step = { 1 }, .count = count };
    if (l->kind == SQUARE && !l->each) return l->set->fold_f32[TSI_BY_SQUARES](x, count);
    l->set->f32[l->kind == SQUARE ? TSI_ROW_square : TSI_ROW_abs](&row);
    if (l->kind == BENT) bend(x, l->point, l->scale, count);
    return l->each ? 0.0 : l->set->fold_f32[TSI_BY_SUM](x, count);
}

static double run_piece(const loss *l, char *const *at, int64_t count)
{
    float x[TILE], y[TILE];
    const tsi_walk *walk = &l->walk;
    const int32_t last = walk->ndim - 1;
    const double one = 1.0;
    double sum = 0;
    for (int64_t i = 0; i < count; i += TILE) {
        int64_t n = count - i < TILE ? count - i : TILE;
        tsi_row row = { .out = x, .step = { 1, 1 }, .count = n, .number = &one };
        row.in[0] = numbers(l, X, at[X] + i * walk->stride[X][last], x, n);
        row.in[1] = numbers(l, TARGET, at[TARGET] + i * walk->stride[TARGET][last], y, n);
        l->set->f32[TSI_ROW_sub](&row);
        sum += tile_sum(l, x, n);
        if (l->each)
            tsi_scatter(l->dtype[OUT], at[OUT] + i * walk->stride[OUT][last],
                        walk->stride[OUT][last], TS_DTYPE_F32, x, n);
    }
    return sum;
}

static void run_task(const loss *l, int64_t task)
{
    const tsi_walk *walk = &l->walk;
    int64_t all = walk->rows * l->pieces, first = task * l->batch;
    int64_t end = all - first < l->batch ? all : first + l->batch, part = first % l->pieces;
    int32_t last = walk->ndim - 1;
    tsi_walker walker;
    tsi_walker_start(&walker, walk, first / l->pieces);
    double sum = 0;
    for (int64_t i = first; i < end; i++) {
        int64_t from = part * l->piece;
        int64_t count = walk->length - from < l->piece ? walk->length - from : l->piece;
        char *at[3] = { NULL };
        for (int32_t k = 0; k < walk->count; k++)
            at[k] = walker.at[k] + from * walk->stride[k][last];
        sum += run_piece(l, at, count);
        if (++part < l->pieces) continue;
        part = 0;
        if (i + 1 < end) tsi_walker_next(&walker);
    }
    l->sum[task] = sum;
}

static void run_tasks(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    for (int64_t task = begin; task < end; task++)
        run_task(context, task);
}

static void describe(loss *l, const tsi_kernel_io *io)
{
    const tsi_loss_attributes *a = io->attributes;
    l->set = tsi_rows();
    l->each = a->reduction == BY_NONE;
    l->kind = io->op == &tsi_op_mse_loss ? SQUARE : io->op == &tsi_op_l1_loss ? SIZE : BENT;
    bool smooth = io->op == &tsi_op_smooth_l1_loss;
    double point = l->kind == BENT ? a->point : 1.0;
    l->point = (float)point;
    l->scale = smooth ? (float)(1.0 / point) : 1.0f;
    const tsi_block *block[] = { &io->in[0].block, &io->in[1].block, &io->out[0].block };
    for (int32_t k = 0; k < 3; k++)
        l->dtype[k] = (ts_dtype)block[k]->dtype;
    tsi_walk_make(&l->walk, block, l->each ? 3 : 2, 0);
    l->piece = l->walk.length < TASK ? l->walk.length : TASK;
    l->pieces = (l->walk.length - 1) / l->piece + 1;
    l->batch = (TASK - 1) / l->piece + 1;
}

ts_status tsi_cpu_loss(const tsi_kernel_io *io)
{
    const tsi_block *x = &io->in[0].block, *target = &io->in[1].block, *out = &io->out[0].block;
    if (!tsi_is_small_real(x->dtype) || !tsi_is_small_real(target->dtype) ||
        tsi_block_count(x) == 0)
        return (ts_status)TSI_KERNEL_DECLINED;
    loss l = { 0 };
    describe(&l, io);
    int64_t tasks = (l.walk.rows * l.pieces - 1) / l.batch + 1;
    tsi_scratch sums;
    TSI_TRY(tsi_scratch_get(&sums, io->rank, (size_t)tasks, sizeof(double)));
    l.sum = sums.data;
    tsi_parallel_for(io->rank, tasks, 1, run_tasks, &l);
    double total = 0;
    for (int64_t task = 0; task < tasks; task++)
        total += l.sum[task];
    if (((const tsi_loss_attributes *)io->attributes)->reduction == BY_MEAN)
        total /= (double)ts_shape_count(&io->in[0].global->shape);
    if (!l.each) tsi_store_real((ts_dtype)out->dtype, out->data, total);
    tsi_scratch_done(&sums);
    return TS_OK;
}
