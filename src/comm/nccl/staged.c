/* SPDX-License-Identifier: Apache-2.0 */
/* staged.c - operations whose bytes go through the host: the shadow is the operation itself on
 * dense copies in memory that the device reads and writes too (host_alloc).
 *
 * Small sends go this way, because they must not wait for their receiver; and everything where
 * there is no library, which is right and slow. Who starts one copies, so that one that reads what
 * another writes has to be started when that has ended (tsi_engine.copies_early). */
#include <string.h>

#include "base/alloc.h"
#include "comm/nccl/internal.h"

enum { ALIGN = 64 };

static size_t bytes_of(int64_t elements, int32_t dtype)
{
    return ((size_t)(elements * tsi_element_bytes(dtype)) + ALIGN - 1) / ALIGN * ALIGN;
}

/* `combine` is said of parts that are received. */
static size_t parts_bytes(const ts_part *part, int64_t count, int32_t dtype, bool receives)
{
    size_t bytes = 0;
    for (int64_t i = 0; i < count; i++)
        bytes += receives && part[i].combine ? 0 : bytes_of(tsi_part_elements(&part[i]), dtype);
    return bytes;
}

static ts_status host_make(tsi_nccl_op *op)
{
    const tsi_work *work = op->work;
    const tsi_device *device = work->device;
    int32_t dtype = work->print.dtype;
    size_t bytes = ALIGN;
    if (work->in.dtype) bytes += bytes_of(tsi_block_count(&work->in), dtype);
    if (work->out.dtype) bytes += bytes_of(tsi_block_count(&work->out), dtype);
    bytes += parts_bytes(work->send, work->send_count, dtype, false);
    bytes += parts_bytes(work->recv, work->recv_count, dtype, true);
    if (device->host_alloc) {
        if (device->host_alloc(device, bytes, &op->host) != TS_OK) op->host = NULL;
    } else {
        op->host = tsi_alloc(bytes);
    }
    op->host_bytes = bytes;
    if (op->host) return TS_OK;
    return tsi_fail_memory("copies on the host", bytes);
}

void tsi_staged_free(tsi_nccl_op *op)
{
    const tsi_device *device = op->device;
    if (!op->host) return;
    if (device->host_alloc)
        device->host_free(device, op->host, op->host_bytes);
    else
        tsi_free(op->host);
    op->host = NULL;
}

static ts_status copy(const tsi_nccl_op *op, const tsi_block *to, const tsi_block *from)
{
    const tsi_device *device = op->work->device;
    return tsi_block_count(to) > 0 ? device->copy(device, to, from, NULL) : TS_OK;
}

static ts_part dense_part(const ts_part *part, void *data)
{
    ts_part out = *part;
    int64_t stride = 1;
    out.data = data;
    for (int32_t d = part->ndim - 1; d >= 0; d--) {
        out.stride[d] = stride;
        stride *= part->extent[d];
    }
    return out;
}

/* Dense twins of the parts; those that combine share the block of the part before them. */
static char *twin_parts(ts_part *to, const ts_part *from, int64_t count, int32_t dtype,
                        bool receives, char *at)
{
    for (int64_t i = 0; i < count; i++) {
        bool joins = receives && from[i].combine && i > 0;
        to[i] = dense_part(&from[i], joins ? to[i - 1].data : at);
        if (!joins) at += bytes_of(tsi_part_elements(&from[i]), dtype);
    }
    return at;
}

static ts_status stage_parts(tsi_nccl_op *op, char *at)
{
    const tsi_work *work = op->work;
    int32_t dtype = work->print.dtype;
    size_t bytes = (size_t)(work->send_count + work->recv_count + 1) * sizeof(ts_part);
    ts_part *send = op->lists = tsi_alloc(bytes);
    if (!send) return tsi_fail_memory("lists of parts", bytes);
    ts_part *recv = send + work->send_count;
    at = twin_parts(send, work->send, work->send_count, dtype, false, at);
    (void)twin_parts(recv, work->recv, work->recv_count, dtype, true, at);
    for (int64_t i = 0; i < work->send_count; i++) {
        tsi_block to = tsi_part_block(&send[i], dtype);
        tsi_block from = tsi_part_block(&work->send[i], dtype);
        TSI_TRY(copy(op, &to, &from));
    }
    op->shadow.send = send;
    op->shadow.recv = recv;
    return TS_OK;
}

/* A broadcast's root has its values in `out`. */
static ts_status stage_blocks(tsi_nccl_op *op, char *at)
{
    const tsi_work *work = op->work;
    tsi_work *shadow = &op->shadow;
    if (work->in.dtype) {
        shadow->in = tsi_block_dense_like(&work->in, at);
        at += bytes_of(tsi_block_count(&work->in), work->print.dtype);
        TSI_TRY(copy(op, &shadow->in, &work->in));
    }
    if (!work->out.dtype) return TS_OK;
    shadow->out = tsi_block_dense_like(&work->out, at);
    bool root = work->print.kind == TSI_COMM_BROADCAST && work->print.root == work->member;
    return root ? copy(op, &shadow->out, &work->out) : TS_OK;
}

ts_status tsi_staged_make(tsi_nccl_op *op)
{
    TSI_TRY(host_make(op));
    return op->work->print.kind == TSI_COMM_EXCHANGE ? stage_parts(op, op->host)
                                                     : stage_blocks(op, op->host);
}

ts_status tsi_staged_unpack(tsi_nccl_op *op)
{
    const tsi_work *work = op->work;
    bool root = work->print.kind == TSI_COMM_BROADCAST && work->print.root == work->member;
    if (work->out.dtype && !root) return copy(op, &work->out, &op->shadow.out);
    for (int64_t i = 0; i < work->recv_count; i++) {
        if (work->recv[i].combine && i > 0) continue;
        tsi_block to = tsi_part_block(&work->recv[i], work->print.dtype);
        tsi_block from = tsi_part_block(&op->shadow.recv[i], work->print.dtype);
        TSI_TRY(copy(op, &to, &from));
    }
    return TS_OK;
}
