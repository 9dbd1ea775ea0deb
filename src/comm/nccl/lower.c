/* SPDX-License-Identifier: Apache-2.0 */
/* lower.c - collectives as rounds of parts: what each member sends to each, and what it folds.
 *
 *   all_gather, broadcast, ...   a part to each, a part from each
 *   reduce_scatter, reduce       a share to each; one target that folds a part of each, in order
 *   all_reduce                   small: everything to everybody, everybody folds;
 *                                else slices: reduce_scatter in round 0, all_gather in round 1
 *   exchange                     the caller's parts as they are
 *
 * An all_reduce cuts the elements in row-major order, so it works on dense arrays: a strided one is
 * packed into the lane's staging first and unpacked last. So do NCCL's own collectives. */
#include <string.h>

#include "base/alloc.h"
#include "comm/nccl/internal.h"

enum { ALIGN = 256, SLICE_ALIGN = 64 };

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- dense arrays ---------------------------------------------------------------------------- */

static size_t flat_room(const tsi_block *block)
{
    if (!block->dtype || tsi_block_is_dense(block)) return 0;
    size_t bytes = (size_t)(tsi_block_count(block) * tsi_element_bytes(block->dtype));
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* `in` and `out` in one piece each: where they lie, or in the staging, where `in` is packed now.
 * `extra`: staging that the rounds need beside. */
static ts_status flatten(tsi_nccl_op *op, size_t extra)
{
    const tsi_work *work = op->work;
    size_t in = flat_room(&work->in), out = flat_room(&work->out);
    op->flat_bytes = in + out;
    TSI_TRY(tsi_lane_space(op->lane, op->flat_bytes + extra));
    char *space = op->lane->space;
    op->flat_in = in > 0 ? space : work->in.data;
    op->flat_out = out > 0 ? space + in : work->out.data;
    const tsi_device *device = work->device;
    bool root = work->print.kind == TSI_COMM_BROADCAST && work->print.root == work->member;
    if (in > 0) {
        tsi_block to = tsi_block_dense_like(&work->in, op->flat_in);
        TSI_TRY(device->copy(device, &to, &work->in, op->lane->stream));
    }
    if (out == 0 || !root) return TS_OK;
    tsi_block to = tsi_block_dense_like(&work->out, op->flat_out);
    return device->copy(device, &to, &work->out, op->lane->stream);
}

static ts_status unflatten(const tsi_nccl_op *op)
{
    const tsi_work *work = op->work;
    if (!work->out.dtype || op->flat_out == work->out.data || !op->flat_out) return TS_OK;
    tsi_block from = tsi_block_dense_like(&work->out, op->flat_out);
    return work->device->copy(work->device, &work->out, &from, op->lane->stream);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static ts_part part_of(const tsi_block *block, int64_t peer, bool combine)
{
    ts_part part = { .peer = peer, .data = block->data, .ndim = block->ndim, .combine = combine };
    memcpy(part.extent, block->extent, sizeof part.extent);
    memcpy(part.stride, block->stride, sizeof part.stride);
    return part;
}

static ts_part run_of(char *base, int64_t begin, int64_t end, int32_t dtype, int64_t peer,
                      bool combine)
{
    return (ts_part){ .peer = peer,
                      .data = base + begin * tsi_element_bytes(dtype),
                      .ndim = 1,
                      .combine = combine,
                      .extent = { end - begin },
                      .stride = { 1 } };
}

typedef struct slice {
    int64_t begin, end;
} slice;

static slice slice_of(const tsi_nccl_op *op, int64_t p)
{
    int64_t count = tsi_block_count(&op->work->in), n = op->lane->team->size;
    if (op->rounds == 1) return (slice){ 0, count };
    int64_t each = ((count + n - 1) / n + SLICE_ALIGN - 1) / SLICE_ALIGN * SLICE_ALIGN;
    slice s = { each * p < count ? each * p : count, 0 };
    s.end = s.begin + each < count ? s.begin + each : count;
    return s;
}

/* Slice p goes to p, and mine is folded of all. */
static void scatter_slices(tsi_nccl_op *op, ts_part *send, ts_part *recv)
{
    int32_t dtype = op->work->print.dtype;
    slice mine = slice_of(op, op->lane->member);
    for (int64_t p = 0; p < op->lane->team->size; p++) {
        slice theirs = slice_of(op, p);
        send[op->send_count++] = run_of(op->flat_in, theirs.begin, theirs.end, dtype, p, false);
        recv[op->recv_count++] = run_of(op->flat_out, mine.begin, mine.end, dtype, p, p > 0);
    }
}

static void gather_slices(tsi_nccl_op *op, ts_part *send, ts_part *recv)
{
    int32_t dtype = op->work->print.dtype;
    slice mine = slice_of(op, op->lane->member);
    for (int64_t p = 0; p < op->lane->team->size; p++) {
        slice theirs = slice_of(op, p);
        if (p == op->lane->member) continue;
        send[op->send_count++] = run_of(op->flat_out, mine.begin, mine.end, dtype, p, false);
        recv[op->recv_count++] = run_of(op->flat_out, theirs.begin, theirs.end, dtype, p, false);
    }
}

static bool folds(const tsi_work *work)
{
    return work->print.kind == TSI_COMM_REDUCE || work->print.kind == TSI_COMM_REDUCE_SCATTER;
}

static void move_blocks(tsi_nccl_op *op, ts_part *send, ts_part *recv)
{
    const tsi_host *host = op->rank->nccl->host;
    tsi_block block;
    for (int64_t p = 0; p < op->lane->team->size; p++) {
        if (host->send_block(op->work, p, &block))
            send[op->send_count++] = part_of(&block, p, false);
        if (host->recv_block(op->work, p, &block))
            recv[op->recv_count++] = part_of(&block, p, folds(op->work) && p > 0);
    }
}

static void set_round(tsi_nccl_op *op, ts_part *send, ts_part *recv)
{
    const tsi_work *work = op->work;
    op->send = send;
    op->recv = recv;
    op->send_count = op->recv_count = op->avg_count = 0;
    switch ((tsi_comm_kind)work->print.kind) {
    case TSI_COMM_SEND:
        send[op->send_count++] = part_of(&work->in, 1, false);
        break;
    case TSI_COMM_RECV:
        recv[op->recv_count++] = part_of(&work->out, 0, false);
        break;
    case TSI_COMM_EXCHANGE:
        op->send = work->send;
        op->recv = work->recv;
        op->send_count = work->send_count;
        op->recv_count = work->recv_count;
        op->avg_count = work->avg_count;
        break;
    case TSI_COMM_ALL_REDUCE:
        if (op->round == 0)
            scatter_slices(op, send, recv);
        else
            gather_slices(op, send, recv);
        break;
    case TSI_COMM_BROADCAST:
    case TSI_COMM_SCATTER:
    case TSI_COMM_GATHER:
    case TSI_COMM_ALL_GATHER:
    case TSI_COMM_REDUCE:
    case TSI_COMM_REDUCE_SCATTER:
    case TSI_COMM_ALL_TO_ALL:
        move_blocks(op, send, recv);
        break;
    case TSI_COMM_BARRIER:
    case TSI_COMM_KIND_COUNT:
        break;
    }
}

/* ---- an operation ---------------------------------------------------------------------------- */

/* peers, sources of a fold, pointers to them, parts out, parts in */
static ts_status lists_make(tsi_nccl_op *op)
{
    size_t n = (size_t)op->lane->team->size;
    size_t chain = (size_t)larger((int64_t)n, op->work->recv_count);
    size_t bytes = n * sizeof *op->peer + chain * (sizeof *op->source + sizeof *op->from) +
                   2 * n * sizeof(ts_part);
    op->memory = tsi_alloc(bytes);
    if (!op->memory) return tsi_fail_memory("lists of an operation", bytes);
    op->peer = op->memory;
    op->source = (tsi_block *)(void *)(op->peer + n);
    op->from = (const tsi_block **)(void *)(op->source + chain);
    op->parts = (ts_part *)(void *)(op->from + chain);
    return TS_OK;
}

ts_status tsi_lower_begin(tsi_nccl_op *op)
{
    const tsi_work *work = op->work;
    bool reduces = work->print.kind == TSI_COMM_ALL_REDUCE;
    int64_t size = tsi_element_bytes(work->print.dtype), n = op->lane->team->size;
    int64_t bytes = reduces ? tsi_block_count(&work->in) * size : 0;
    op->round = 0;
    op->native = tsi_is_native(op->rank->nccl, work);
    op->rounds = reduces && !op->native && bytes > TSI_NCCL_SMALL_REDUCE ? 2 : 1;
    TSI_TRY(lists_make(op));
    if (!reduces && !op->native) return TS_OK;
    size_t slices = (size_t)((op->rounds == 1 ? n * bytes : bytes) +
                             n * (SLICE_ALIGN * size + ALIGN)); /* what peers send of one slice */
    return flatten(op, op->native ? 0 : slices);
}

ts_status tsi_lower_enqueue(tsi_nccl_op *op, tsi_nccl_result *result)
{
    if (op->native) {
        *result = tsi_native_call(op);
        return TS_OK;
    }
    set_round(op, op->parts, op->parts + op->lane->team->size);
    return tsi_round_enqueue(op, result);
}

ts_status tsi_lower_unpack(tsi_nccl_op *op)
{
    if (!op->native) TSI_TRY(tsi_round_unpack(op));
    return op->round + 1 == op->rounds ? unflatten(op) : TS_OK;
}
