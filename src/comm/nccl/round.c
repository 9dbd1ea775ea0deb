/* SPDX-License-Identifier: Apache-2.0 */
/* round.c - one round of an operation: for each member a stream of elements goes out and one comes
 * in, a message each, all in one group; then what came is folded and unpacked.
 *
 *   parts for p  --pack-->  stream  ==NCCL==>  stream of me  --fold, unpack-->  parts from me
 *
 * A stream that is one dense part is sent from where it lies, and received where it belongs.
 *
 * INV-6: sources of a fold stand in the order of the receive parts, which is the group's. */
#include <string.h>

#include "comm/nccl/internal.h"

enum { ALIGN = 256 };

static bool is_dense(const ts_part *part, int32_t dtype)
{
    tsi_block block = tsi_part_block(part, dtype);
    return tsi_block_is_dense(&block);
}

/* ---- where the streams lie ------------------------------------------------------------------- */

/* Does the part make its whole stream, alone and in one piece? */
static bool is_whole(const tsi_nccl_op *op, const ts_part *part, int64_t stream)
{
    return tsi_part_elements(part) == stream && is_dense(part, op->work->print.dtype);
}

static void place_sends(tsi_nccl_op *op)
{
    for (int64_t i = 0; i < op->send_count; i++) {
        tsi_nccl_peer *peer = &op->peer[op->send[i].peer];
        if (peer->parts++ == 0) peer->part = &op->send[i];
        peer->send_count += tsi_part_elements(&op->send[i]);
    }
    for (int64_t i = 0; i < op->send_count; i++) {
        tsi_nccl_peer *peer = &op->peer[op->send[i].peer];
        if (is_whole(op, &op->send[i], peer->send_count)) peer->send = op->send[i].data;
    }
}

static bool combines(const tsi_nccl_op *op, int64_t i)
{
    return op->recv[i].combine || (i + 1 < op->recv_count && op->recv[i + 1].combine);
}

static void place_receives(tsi_nccl_op *op)
{
    for (int64_t i = 0; i < op->recv_count; i++)
        op->peer[op->recv[i].peer].recv_count += tsi_part_elements(&op->recv[i]);
    for (int64_t i = 0; i < op->recv_count; i++) {
        tsi_nccl_peer *peer = &op->peer[op->recv[i].peer];
        if (op->recv[i].peer == op->lane->member || combines(op, i)) continue;
        if (peer->recv_count == 0 || !is_whole(op, &op->recv[i], peer->recv_count)) continue;
        peer->direct = true; /* the others of this peer are empty */
        peer->recv = op->recv[i].data;
    }
}

static size_t room(int64_t elements, int64_t size)
{
    return ((size_t)(elements * size) + ALIGN - 1) / ALIGN * ALIGN;
}

/* Streams that are not parts get room in the lane's staging. `base` NULL: it is only counted. */
static size_t place_staged(tsi_nccl_op *op, char *base)
{
    int64_t size = tsi_element_bytes(op->work->print.dtype);
    size_t used = 0;
    for (int64_t p = 0; p < op->lane->team->size; p++) {
        tsi_nccl_peer *peer = &op->peer[p];
        if (peer->send_count > 0 && !peer->send) {
            if (base) peer->send = base + used;
            used += room(peer->send_count, size);
        }
        if (p == op->lane->member) {
            peer->recv = peer->send; /* what I send to myself is there already */
        } else if (peer->recv_count > 0 && !peer->direct) {
            if (base) peer->recv = base + used;
            used += room(peer->recv_count, size);
        }
    }
    return used;
}

/* ---- out ------------------------------------------------------------------------------------- */

static ts_status pack(tsi_nccl_op *op, const tsi_nccl_peer *peer)
{
    const tsi_device *device = op->work->device;
    int32_t dtype = op->work->print.dtype;
    char *at = peer->send;
    for (int64_t i = 0; i < peer->parts; i++) {
        tsi_block from = tsi_part_block(&peer->part[i], dtype),
                  to = tsi_block_dense_like(&from, at);
        int64_t count = tsi_block_count(&from);
        if (count == 0 || from.data == at) continue;
        TSI_TRY(device->copy(device, &to, &from, op->lane->stream));
        at += count * tsi_element_bytes(dtype);
    }
    return TS_OK;
}

static bool others(const tsi_nccl_op *op)
{
    for (int64_t p = 0; p < op->lane->team->size; p++)
        if (p != op->lane->member && (op->peer[p].send_count > 0 || op->peer[p].recv_count > 0))
            return true;
    return false;
}

static tsi_nccl_result exchange(tsi_nccl_op *op, void *stream)
{
    const tsi_nccl_lane *lane = op->lane;
    const tsi_nccl_api *api = op->rank->nccl->api;
    int64_t size = tsi_element_bytes(op->work->print.dtype), n = lane->team->size;
    tsi_nccl_result result = api->group_begin();
    for (int64_t k = 1; k < n && result == TSI_NCCL_SUCCESS; k++) {
        int64_t to = (lane->member + k) % n, from = (lane->member + n - k) % n;
        const tsi_nccl_peer *out = &op->peer[to], *in = &op->peer[from];
        if (out->send_count > 0)
            result = api->send(out->send, (size_t)(out->send_count * size), TSI_NCCL_U8, (int)to,
                               lane->comm, stream);
        if (in->recv_count > 0 && result == TSI_NCCL_SUCCESS)
            result = api->recv(in->recv, (size_t)(in->recv_count * size), TSI_NCCL_U8, (int)from,
                               lane->comm, stream);
    }
    tsi_nccl_result ended = api->group_end();
    return result != TSI_NCCL_SUCCESS ? result : ended;
}

ts_status tsi_round_enqueue(tsi_nccl_op *op, tsi_nccl_result *result)
{
    tsi_nccl_lane *lane = op->lane;
    *result = TSI_NCCL_SUCCESS;
    memset(op->peer, 0, (size_t)lane->team->size * sizeof *op->peer);
    place_sends(op);
    place_receives(op);
    TSI_TRY(tsi_lane_space(lane, op->flat_bytes + place_staged(op, NULL)));
    if (lane->space) (void)place_staged(op, (char *)lane->space + op->flat_bytes);
    for (int64_t p = 0; p < lane->team->size; p++)
        TSI_TRY(pack(op, &op->peer[p]));
    void *stream = lane->device->stream_handle(lane->device, lane->stream);
    if (others(op)) *result = exchange(op, stream);
    return TS_OK;
}

/* ---- in -------------------------------------------------------------------------------------- */

static int64_t chain_length(const tsi_nccl_op *op, int64_t first)
{
    int64_t length = 1;
    while (first + length < op->recv_count && op->recv[first + length].combine)
        length++;
    return length;
}

/* What the peer sent for the part, as a dense block of its extents. */
static tsi_block next_of(tsi_nccl_op *op, const ts_part *part)
{
    tsi_nccl_peer *peer = &op->peer[part->peer];
    int32_t dtype = op->work->print.dtype;
    tsi_block like = tsi_part_block(part, dtype);
    tsi_block from = tsi_block_dense_like(&like, peer->recv + peer->at * tsi_element_bytes(dtype));
    peer->at += tsi_part_elements(part);
    return from;
}

static ts_status fold(tsi_nccl_op *op, int64_t first, int64_t length)
{
    const tsi_device *device = op->work->device;
    tsi_block to = tsi_part_block(&op->recv[first], op->work->print.dtype);
    for (int64_t i = 0; i < length; i++) {
        op->source[i] = next_of(op, &op->recv[first + i]);
        op->from[i] = &op->source[i];
    }
    return device->fold(device, &to, op->from, length, (ts_reduce)op->work->print.reduce,
                        op->avg_count, op->lane->stream);
}

ts_status tsi_round_unpack(tsi_nccl_op *op)
{
    const tsi_device *device = op->work->device;
    for (int64_t i = 0, length; i < op->recv_count; i += length) {
        const ts_part *part = &op->recv[i];
        length = chain_length(op, i);
        if (tsi_part_elements(part) == 0) continue;
        if (length > 1) {
            TSI_TRY(fold(op, i, length));
            continue;
        }
        tsi_block from = next_of(op, part), to = tsi_part_block(part, op->work->print.dtype);
        if (from.data == to.data) continue; /* received where it belongs, or sent to itself */
        TSI_TRY(device->copy(device, &to, &from, op->lane->stream));
    }
    return TS_OK;
}
