/* SPDX-License-Identifier: Apache-2.0 */
/* agree.c - the shadow of an operation: what the engine below compares before bytes move.
 *
 * It is the operation itself with the same fingerprint, sequence number and rows, but its blocks
 * have no columns, so nothing moves; everything the host engine finds out about members that
 * disagree, stall, leave or die is found out here, with its sentence. The parts of an exchange are
 * known to pairs alone: there each member sends each other one number, how many elements it means
 * to send. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "comm/nccl/internal.h"

enum { COUNT_BYTES = 16 }; /* a count, as elements of any dtype */

uint64_t tsi_mix(uint64_t a, uint64_t b)
{
    uint64_t h = (a ^ (b + 0x9E3779B97F4A7C15u)) * 0xBF58476D1CE4E5B9u;
    h ^= h >> 29;
    h *= 0x94D049BB133111EBu;
    return h ^ h >> 32;
}

/* As many rows, no columns. */
static tsi_block thin(const tsi_block *block)
{
    tsi_block out = { .dtype = block->dtype, .ndim = 2, .stride = { 1, 1 } };
    out.extent[0] = block->extent[0];
    return out;
}

static void count_to(int64_t total[], const ts_part *part, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        total[part[i].peer] += tsi_part_elements(&part[i]);
}

static ts_part count_part(int64_t peer, char *at, int64_t elements)
{
    return (
        ts_part){ .peer = peer, .data = at, .ndim = 1, .extent = { elements }, .stride = { 1 } };
}

/* lists: what I send to each, what I expect of each, what they say, and the parts of both. */
static ts_status count_parts(tsi_nccl_op *op)
{
    size_t n = (size_t)op->work->team->size;
    size_t bytes = n * (3 * COUNT_BYTES + 2 * sizeof(ts_part));
    char *memory = tsi_calloc(1, bytes);
    if (!memory) return tsi_fail_memory("the counts of an exchange", bytes);
    op->lists = memory;
    ts_part *send = (ts_part *)(void *)(memory + 3 * n * COUNT_BYTES), *recv = send + n;
    int64_t size = tsi_element_bytes(op->work->print.dtype), elements = size < 8 ? 8 / size : 1;
    int64_t *expected = (int64_t *)(void *)memory;
    count_to(expected, op->work->recv, op->work->recv_count);
    for (int64_t p = 0; p < (int64_t)n; p++) {
        send[p] = count_part(p, memory + ((int64_t)n + p) * COUNT_BYTES, elements);
        recv[p] = count_part(p, memory + (2 * (int64_t)n + p) * COUNT_BYTES, elements);
        for (int64_t i = 0; i < op->work->send_count; i++)
            if (op->work->send[i].peer == p)
                *(int64_t *)send[p].data += tsi_part_elements(&op->work->send[i]);
    }
    op->shadow.send = send;
    op->shadow.recv = recv;
    op->shadow.send_count = op->shadow.recv_count = (int64_t)n;
    return TS_OK;
}

ts_status tsi_agree_make(tsi_nccl_op *op)
{
    const tsi_work *work = op->work;
    op->shadow.in = work->in.dtype ? thin(&work->in) : work->in;
    op->shadow.out = work->out.dtype ? thin(&work->out) : work->out;
    return work->print.kind == TSI_COMM_EXCHANGE ? count_parts(op) : TS_OK;
}

bool tsi_agree_read(const tsi_nccl_op *op, char *text, size_t size)
{
    const tsi_work *work = op->work;
    if (work->print.kind != TSI_COMM_EXCHANGE) return true;
    const int64_t *expected = op->lists;
    for (int64_t p = 0; p < work->team->size; p++) {
        int64_t sent = 0;
        memcpy(&sent, op->shadow.recv[p].data, sizeof sent);
        if (sent == expected[p]) continue;
        char own[256];
        op->rank->nccl->host->fingerprint_text(&work->print, own, sizeof own);
        (void)snprintf(text, size,
                       "ranks disagree: rank %lld sends %lld elements to rank %lld in exchange, "
                       "which expects %lld in %s",
                       (long long)work->team->rank[p], (long long)sent, (long long)work->print.rank,
                       (long long)expected[p], own);
        return false;
    }
    return true;
}
