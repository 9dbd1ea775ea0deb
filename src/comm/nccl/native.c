/* SPDX-License-Identifier: Apache-2.0 */
/* native.c - NCCL's own collectives.
 *
 * Where nothing is added they give the same bits as sends would and know the machine better: even
 * all_gather, broadcast. Its reductions add in an order of their own, so they break INV-6 and run
 * only where TESSERA_REDUCE=native asks for them.
 *
 * INV: every member decides alike: by kind, dtype, reduction and rows, which fingerprints hold, and
 * never by how its own arrays lie. */
#include "comm/nccl/internal.h"

static tsi_nccl_type type_of(int32_t dtype)
{
    switch ((ts_dtype)dtype) {
    case TS_DTYPE_F64:
        return TSI_NCCL_F64;
    case TS_DTYPE_F32:
        return TSI_NCCL_F32;
    case TS_DTYPE_BF16:
        return TSI_NCCL_BF16;
    case TS_DTYPE_F16:
        return TSI_NCCL_F16;
    case TS_DTYPE_I64:
        return TSI_NCCL_I64;
    case TS_DTYPE_I32:
        return TSI_NCCL_I32;
    case TS_DTYPE_I8:
        return TSI_NCCL_I8;
    case TS_DTYPE_U8:
        return TSI_NCCL_U8;
    case TS_DTYPE_I16:
    case TS_DTYPE_BOOL:
    case TS_DTYPE_C64:
    case TS_DTYPE_C128:
    case TS_DTYPE_NONE:
    case TS_DTYPE_COUNT:
        break;
    }
    return TSI_NCCL_TYPE_NONE;
}

static bool op_of(int32_t reduce, tsi_nccl_op_kind *out)
{
    switch ((ts_reduce)reduce) {
    case TS_REDUCE_SUM:
        *out = TSI_NCCL_SUM;
        return true;
    case TS_REDUCE_PROD:
        *out = TSI_NCCL_PROD;
        return true;
    case TS_REDUCE_MIN:
        *out = TSI_NCCL_MIN;
        return true;
    case TS_REDUCE_MAX:
        *out = TSI_NCCL_MAX;
        return true;
    case TS_REDUCE_AVG:
        *out = TSI_NCCL_AVG;
        return true;
    case TS_REDUCE_AND:
    case TS_REDUCE_OR:
    case TS_REDUCE_BAND:
    case TS_REDUCE_BOR:
    case TS_REDUCE_NONE:
    case TS_REDUCE_COUNT:
        break;
    }
    return false;
}

static bool is_even(const int64_t *rows, int64_t count)
{
    for (int64_t i = 1; rows && i < count; i++)
        if (rows[i] != rows[0]) return false;
    return true;
}

bool tsi_is_native(const tsi_nccl *nccl, const tsi_work *work)
{
    tsi_nccl_op_kind op;
    bool adds = nccl->native && type_of(work->print.dtype) != TSI_NCCL_TYPE_NONE &&
                op_of(work->print.reduce, &op);
    switch ((tsi_comm_kind)work->print.kind) {
    case TSI_COMM_BROADCAST:
        return work->print.count > 0;
    case TSI_COMM_ALL_GATHER:
        return work->print.count > 0 && is_even(work->recv_rows, work->team->size);
    case TSI_COMM_REDUCE:
    case TSI_COMM_ALL_REDUCE:
        return adds && work->print.count > 0;
    case TSI_COMM_REDUCE_SCATTER:
        return adds && work->print.count > 0 && is_even(work->send_rows, work->team->size);
    case TSI_COMM_SCATTER:
    case TSI_COMM_GATHER:
    case TSI_COMM_ALL_TO_ALL:
    case TSI_COMM_EXCHANGE:
    case TSI_COMM_SEND:
    case TSI_COMM_RECV:
    case TSI_COMM_BARRIER:
    case TSI_COMM_KIND_COUNT:
        break;
    }
    return false;
}

tsi_nccl_result tsi_native_call(tsi_nccl_op *op)
{
    const tsi_work *work = op->work;
    const tsi_nccl_lane *lane = op->lane;
    const tsi_nccl_api *api = op->rank->nccl->api;
    void *stream = lane->device->stream_handle(lane->device, lane->stream);
    size_t size = (size_t)tsi_element_bytes(work->print.dtype);
    size_t in = work->in.dtype ? (size_t)tsi_block_count(&work->in) : 0;
    size_t out = work->out.dtype ? (size_t)tsi_block_count(&work->out) : 0;
    tsi_nccl_type type = type_of(work->print.dtype);
    tsi_nccl_op_kind how = TSI_NCCL_SUM;
    (void)op_of(work->print.reduce, &how);
    switch ((tsi_comm_kind)work->print.kind) {
    case TSI_COMM_BROADCAST:
        return api->broadcast(op->flat_out, op->flat_out, out * size, TSI_NCCL_U8,
                              (int)work->print.root, lane->comm, stream);
    case TSI_COMM_ALL_GATHER:
        return api->all_gather(op->flat_in, op->flat_out, in * size, TSI_NCCL_U8, lane->comm,
                               stream);
    case TSI_COMM_REDUCE:
        return api->reduce(op->flat_in, op->flat_out, in, type, how, (int)work->print.root,
                           lane->comm, stream);
    case TSI_COMM_ALL_REDUCE:
        return api->all_reduce(op->flat_in, op->flat_out, in, type, how, lane->comm, stream);
    case TSI_COMM_REDUCE_SCATTER:
        return api->reduce_scatter(op->flat_in, op->flat_out, out, type, how, lane->comm, stream);
    case TSI_COMM_SCATTER:
    case TSI_COMM_GATHER:
    case TSI_COMM_ALL_TO_ALL:
    case TSI_COMM_EXCHANGE:
    case TSI_COMM_SEND:
    case TSI_COMM_RECV:
    case TSI_COMM_BARRIER:
    case TSI_COMM_KIND_COUNT:
        break;
    }
    return TSI_NCCL_INTERNAL;
}
