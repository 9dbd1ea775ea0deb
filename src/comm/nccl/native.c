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

/* One call, in the terms of the library. */
typedef struct native {
    const tsi_nccl_api *api;
    const void *from;
    void *to, *stream;
    size_t in, out, size; /* elements of the blocks, bytes of one */
    tsi_nccl_type type;
    tsi_nccl_op_kind how;
    int root;
    tsi_nccl_comm comm;
} native;

static tsi_nccl_result broadcast(const native *n)
{
    return n->api->broadcast(n->to, n->to, n->out * n->size, TSI_NCCL_U8, n->root, n->comm,
                             n->stream);
}

static tsi_nccl_result all_gather(const native *n)
{
    return n->api->all_gather(n->from, n->to, n->in * n->size, TSI_NCCL_U8, n->comm, n->stream);
}

static tsi_nccl_result reduce(const native *n)
{
    return n->api->reduce(n->from, n->to, n->in, n->type, n->how, n->root, n->comm, n->stream);
}

static tsi_nccl_result all_reduce(const native *n)
{
    return n->api->all_reduce(n->from, n->to, n->in, n->type, n->how, n->comm, n->stream);
}

static tsi_nccl_result reduce_scatter(const native *n)
{
    return n->api->reduce_scatter(n->from, n->to, n->out, n->type, n->how, n->comm, n->stream);
}

/* Those that there are, and what each needs beside elements to move. */
static const struct {
    tsi_nccl_result (*call)(const native *n);
    bool adds;                 /* by name, and for dtypes and reductions that NCCL has */
    bool even_send, even_recv; /* rows */
} kinds[TSI_COMM_KIND_COUNT] = {
    [TSI_COMM_BROADCAST] = { .call = broadcast },
    [TSI_COMM_ALL_GATHER] = { .call = all_gather, .even_recv = true },
    [TSI_COMM_REDUCE] = { .call = reduce, .adds = true },
    [TSI_COMM_ALL_REDUCE] = { .call = all_reduce, .adds = true },
    [TSI_COMM_REDUCE_SCATTER] = { .call = reduce_scatter, .adds = true, .even_send = true },
};

bool tsi_is_native(const tsi_nccl *nccl, const tsi_work *work)
{
    int32_t kind = work->print.kind;
    int64_t size = work->team->size;
    tsi_nccl_op_kind how;
    if (!kinds[kind].call || work->print.count == 0) return false;
    if (kinds[kind].even_send && !is_even(work->send_rows, size)) return false;
    if (kinds[kind].even_recv && !is_even(work->recv_rows, size)) return false;
    return !kinds[kind].adds || (nccl->native && type_of(work->print.dtype) != TSI_NCCL_TYPE_NONE &&
                                 op_of(work->print.reduce, &how));
}

tsi_nccl_result tsi_native_call(tsi_nccl_op *op)
{
    const tsi_work *work = op->work;
    const tsi_nccl_lane *lane = op->lane;
    native n = {
        .api = op->rank->nccl->api,
        .from = op->flat_in,
        .to = op->flat_out,
        .stream = lane->device->stream_handle(lane->device, lane->stream),
        .in = work->in.dtype ? (size_t)tsi_block_count(&work->in) : 0,
        .out = work->out.dtype ? (size_t)tsi_block_count(&work->out) : 0,
        .size = (size_t)tsi_element_bytes(work->print.dtype),
        .type = type_of(work->print.dtype),
        .how = TSI_NCCL_SUM,
        .root = (int)work->print.root,
        .comm = lane->comm,
    };
    (void)op_of(work->print.reduce, &n.how);
    return kinds[work->print.kind].call(&n);
}
