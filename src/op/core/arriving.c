/* SPDX-License-Identifier: Apache-2.0 */
/* arriving.c - a call whose first input is still on its way: the rows that are here are computed
 * while the others come.
 *
 *   gathered   [ rank 0's rows | mine | rank 2's ]     on its way into one block
 *   the call   mine first, from where they come from; then it waits, and computes the others
 *
 * A step that is recorded keeps each of these: kernel, wait, kernels. Observers are told of the
 * first rows before the wait, so that its program has them as an operator of their own.
 *
 * INV: results, bytes and events are those of the call that waits first. Whether rows may be
 * computed apart, and with what bits, the operator says (tsi_op_desc.arrives). */
#include "op/core/dispatch.h"

#include <string.h>

#include "base/alloc.h"
#include "base/keep.h"
#include "op/core/element.h"
#include "tensor/move.h"

/* Of a device that captures waits are no part of its graphs; what runs inside of a piece of kept
 * work is kept as a whole. */
static bool may_wait_between(const ts_rank *rank)
{
    return !rank->kept || tsi_keeps_calls(rank);
}

bool tsi_op_arrives(const tsi_op_plan *plan, const ts_tensor *x, int32_t *dim)
{
    const tsi_move *move = x ? x->move : NULL;
    if (!move || !plan->op->arrives || !move->work || !move->from) return false;
    if (!may_wait_between(x->rank)) return false;
    if (plan->algorithm || plan->wanted[0] || plan->in_place || !plan->mesh->member) return false;
    if (move->hold_count < 2 || move->hold[1] != x->array) return false;
    tsi_op_call call = { plan->op,       plan->attributes,  plan->in_meta,
                         plan->out_meta, plan->input_count, plan->output_count };
    return plan->op->arrives(&call, plan->in, move->from, dim);
}

typedef struct row_range {
    int32_t dim, reserved;
    int64_t begin, end;
} row_range;

/* The kernel on these rows, `x` of the first input, of all outputs. */
static ts_status run_rows(const tsi_op_plan *plan, const tsi_kernel_io *io, const tsi_block *x,
                          row_range rows)
{
    tsi_operand in[TSI_INPUT_MAX], out[TSI_OUTPUT_MAX];
    tsi_kernel_io part = *io;
    if (rows.end <= rows.begin) return TS_OK;
    memcpy(in, io->in, (size_t)io->input_count * sizeof *in);
    memcpy(out, io->out, (size_t)io->output_count * sizeof *out);
    in[0].block = *x;
    for (int32_t o = 0; o < io->output_count; o++) {
        tsi_block *block = &out[o].block;
        block->data = tsi_block_at(block, rows.begin * block->stride[rows.dim]);
        block->extent[rows.dim] = rows.end - rows.begin;
    }
    part.in = in;
    part.out = out;
    return tsi_kernel_run(plan->kernel, &part);
}

/* As the call will be told, but for where its first input lies. */
static void tell_rows(const tsi_op_plan *plan, ts_tensor *const *in, tsi_array *const *result)
{
    ts_rank *rank = in[0]->rank;
    const tsi_move *move = in[0]->move;
    ts_tensor here = { .rank = rank, .layout = move->from, .array = move->hold[0] };
    ts_tensor *used[TSI_INPUT_MAX], *made[TSI_OUTPUT_MAX], out[TSI_OUTPUT_MAX];
    memcpy(used, in, (size_t)plan->input_count * sizeof *used);
    used[0] = &here;
    for (int32_t o = 0; o < plan->output_count; o++) {
        out[o] = (ts_tensor){ .rank = rank, .layout = plan->out[o], .array = result[o] };
        made[o] = &out[o];
    }
    tsi_op_record record = { .plan = plan, .in = used, .out = made };
    tsi_observers_tell(&rank->observers, TSI_NEWS_ROWS, &record);
}

ts_status tsi_op_run_arriving(const tsi_op_plan *plan, const tsi_kernel_io *io,
                              ts_tensor *const *in, tsi_array *const *result, int32_t dim)
{
    ts_tensor *x = in[0];
    tsi_block here = tsi_array_block(x->move->hold[0]), all = io->in[0].block, rest = all;
    tsi_span_list list;
    tsi_arena arena = { 0 };
    if (!tsi_layout_region_dim(x->move->from, plan->mesh->coord, dim, &arena, &list))
        return tsi_fail_memory("rows that are here", sizeof list);
    int64_t begin = list.total ? tsi_span_list_at(&list, 0) : 0, end = begin + list.total;
    tsi_arena_release(&arena);
    TSI_TRY(run_rows(plan, io, &here, (row_range){ dim, 0, begin, end }));
    if (end > begin && tsi_observers_want(&x->rank->observers, TSI_NEWS_ROWS))
        tell_rows(plan, in, result);
    TSI_TRY(tsi_tensor_ready(x));
    rest.extent[dim] = begin;
    TSI_TRY(run_rows(plan, io, &rest, (row_range){ dim, 0, 0, begin }));
    rest.extent[dim] = all.extent[dim] - end;
    if (rest.extent[dim] > 0) rest.data = tsi_block_at(&all, end * all.stride[dim]);
    return run_rows(plan, io, &rest, (row_range){ dim, 0, end, all.extent[dim] });
}
