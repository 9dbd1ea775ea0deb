/* SPDX-License-Identifier: Apache-2.0 */
/* pieces.c - what each collective means: which block goes where. Pure; no memory is touched.
 *
 * A scalar was made a block of one row before it came here, so dim 0 is always there to be split.
 *
 * INV: send_block(work of i, j) and recv_block(work of j, i) have the same shape, for every pair
 * (i, j) of members whose works agree; both say false when nothing goes from i to j. */
#include "base/compiler.h"
#include "base/intmath.h"
#include "comm/engine.h"

const char *tsi_comm_kind_name(tsi_comm_kind kind)
{
    switch (kind) {
    case TSI_COMM_BARRIER:
        return "barrier";
    case TSI_COMM_BROADCAST:
        return "broadcast";
    case TSI_COMM_SCATTER:
        return "scatter";
    case TSI_COMM_GATHER:
        return "gather";
    case TSI_COMM_ALL_GATHER:
        return "all_gather";
    case TSI_COMM_REDUCE:
        return "reduce";
    case TSI_COMM_ALL_REDUCE:
        return "all_reduce";
    case TSI_COMM_REDUCE_SCATTER:
        return "reduce_scatter";
    case TSI_COMM_ALL_TO_ALL:
        return "all_to_all";
    case TSI_COMM_EXCHANGE:
        return "exchange";
    case TSI_COMM_SEND:
        return "send";
    case TSI_COMM_RECV:
        return "recv";
    case TSI_COMM_KIND_COUNT:
        break;
    }
    return "none";
}

/* Rows [first, first + rows) of the block. Elements may have any stride. */
static bool rows_of(const tsi_block *block, int64_t first, int64_t rows, tsi_block *out)
{
    *out = *block;
    out->extent[0] = rows;
    int64_t skip = first * block->stride[0] * (int64_t)ts_dtype_size((ts_dtype)block->dtype);
    if (block->data != NULL) out->data = (char *)block->data + skip;
    return tsi_block_count(out) > 0;
}

/* The share of member `peer` when dim 0 of the block is split by rows, or evenly. */
static bool share_of(const tsi_block *block, const int64_t *rows, int64_t size, int64_t peer,
                     tsi_block *out)
{
    if (rows == NULL) {
        int64_t each = block->extent[0] / size;
        return rows_of(block, peer * each, each, out);
    }
    int64_t first = 0;
    for (int64_t i = 0; i < peer; i++)
        first += rows[i];
    return rows_of(block, first, rows[peer], out);
}

static bool whole_of(const tsi_block *block, tsi_block *out)
{
    *out = *block;
    return tsi_block_count(block) > 0;
}

bool tsi_work_send_block(const tsi_work *work, int64_t peer, tsi_block *out)
{
    bool root = work->print.root == work->member;
    int64_t size = work->team->size;
    switch ((tsi_comm_kind)work->print.kind) {
    case TSI_COMM_BROADCAST:
        return root && peer != work->member && whole_of(&work->out, out);
    case TSI_COMM_SCATTER:
        return root && share_of(&work->in, work->send_rows, size, peer, out);
    case TSI_COMM_GATHER:
    case TSI_COMM_REDUCE:
    case TSI_COMM_SEND:
        return peer == work->print.root && whole_of(&work->in, out);
    case TSI_COMM_ALL_GATHER:
    case TSI_COMM_ALL_REDUCE:
        return whole_of(&work->in, out);
    case TSI_COMM_REDUCE_SCATTER:
    case TSI_COMM_ALL_TO_ALL:
        return share_of(&work->in, work->send_rows, size, peer, out);
    case TSI_COMM_BARRIER:
    case TSI_COMM_EXCHANGE:
    case TSI_COMM_RECV:
    case TSI_COMM_KIND_COUNT:
        break;
    }
    return false;
}

bool tsi_work_recv_block(const tsi_work *work, int64_t peer, tsi_block *out)
{
    bool root = work->print.root == work->member;
    int64_t size = work->team->size;
    switch ((tsi_comm_kind)work->print.kind) {
    case TSI_COMM_BROADCAST:
        return !root && peer == work->print.root && whole_of(&work->out, out);
    case TSI_COMM_SCATTER:
    case TSI_COMM_RECV:
        return peer == work->print.root && whole_of(&work->out, out);
    case TSI_COMM_GATHER:
        return root && share_of(&work->out, work->recv_rows, size, peer, out);
    case TSI_COMM_ALL_GATHER:
    case TSI_COMM_ALL_TO_ALL:
        return share_of(&work->out, work->recv_rows, size, peer, out);
    case TSI_COMM_REDUCE:
        return root && whole_of(&work->out, out);
    case TSI_COMM_ALL_REDUCE:
    case TSI_COMM_REDUCE_SCATTER:
        return whole_of(&work->out, out);
    case TSI_COMM_BARRIER:
    case TSI_COMM_EXCHANGE:
    case TSI_COMM_SEND:
    case TSI_COMM_KIND_COUNT:
        break;
    }
    return false;
}

/* ---- accounting ------------------------------------------------------------------------------ */

static int64_t exchange_elements(const tsi_work *work)
{
    int64_t total = 0;
    for (int64_t i = 0; i < work->recv_count; i++) {
        const ts_part *part = &work->recv[i];
        if (part->peer != work->member) total += tsi_part_elements(part);
    }
    return total;
}

/* What comes from others: all of out but the share that is my own. */
static int64_t others_elements(const tsi_work *work)
{
    tsi_block own;
    bool any = tsi_work_recv_block(work, work->member, &own);
    return tsi_block_count(&work->out) - (any ? tsi_block_count(&own) : 0);
}

/* An all_reduce counts as the reduce_scatter and the all_gather it is made of: slice i of the count
 * elements is reduced at member i, and every member receives the slices it did not reduce. */
static int64_t all_reduce_elements(const tsi_work *work)
{
    int64_t count = tsi_block_count(&work->out), size = work->team->size;
    int64_t slice = count / size + (work->member < count % size);
    return slice * (size - 1) + (count - slice);
}

TSI_STEP_PATH int64_t tsi_work_bytes_received(const tsi_work *work)
{
    bool root = work->print.root == work->member;
    int64_t elements = 0, others = work->team->size - 1;
    switch ((tsi_comm_kind)work->print.kind) {
    case TSI_COMM_BROADCAST:
    case TSI_COMM_SCATTER:
        elements = root ? 0 : tsi_block_count(&work->out);
        break;
    case TSI_COMM_RECV:
        elements = root ? 0 : tsi_block_count(&work->out); /* root: the peer is this rank itself */
        break;
    case TSI_COMM_GATHER:
        elements = root ? others_elements(work) : 0;
        break;
    case TSI_COMM_ALL_GATHER:
    case TSI_COMM_ALL_TO_ALL:
        elements = others_elements(work);
        break;
    case TSI_COMM_REDUCE:
        elements = root ? others * tsi_block_count(&work->out) : 0;
        break;
    case TSI_COMM_ALL_REDUCE:
        elements = all_reduce_elements(work);
        break;
    case TSI_COMM_REDUCE_SCATTER:
        elements = others * tsi_block_count(&work->out);
        break;
    case TSI_COMM_EXCHANGE:
        elements = exchange_elements(work);
        break;
    case TSI_COMM_BARRIER:
    case TSI_COMM_SEND:
    case TSI_COMM_KIND_COUNT:
        break;
    }
    return elements * (int64_t)ts_dtype_size((ts_dtype)work->print.dtype) + work->bytes_read;
}
