/* SPDX-License-Identifier: Apache-2.0 */
/* again_parts.c - operations of a recorded step as exchanges, and in parts that begin one after
 * another.
 *
 * A sum of all members is cut by elements, everything else as an exchange (cut.h). The first part
 * begins where the operation does, each other one in a piece of work of its own, and who waits,
 * waits for all.
 *
 * INV: members of a group begin the same parts, as all ranks agreed; so the n-th operation of a
 * channel meets the n-th on every other member. */
#include <string.h>

#include "base/alloc.h"
#include "comm/again_op.h"
#include "comm/cut.h"
#include "device/block_task.h"

/* ---- as an exchange -------------------------------------------------------------------------- */

void tsi_exchange_room(const tsi_work *work, int64_t *sends, int64_t *recvs)
{
    bool listed = work->print.kind == TSI_COMM_EXCHANGE;
    *sends += listed ? work->send_count : work->team->size;
    *recvs += listed ? work->recv_count : work->team->size;
}

static ts_part part_of(const tsi_block *block, int64_t peer, bool combine)
{
    ts_part part = { .peer = peer, .data = block->data, .ndim = block->ndim, .combine = combine };
    memcpy(part.extent, block->extent, sizeof part.extent);
    memcpy(part.stride, block->stride, sizeof part.stride);
    return part;
}

static void add_collective(tsi_exchange_lists *to, const tsi_work *work)
{
    bool folds = work->print.reduce != TS_REDUCE_NONE;
    int64_t first = to->recv_count;
    for (int64_t peer = 0; peer < work->team->size; peer++) {
        tsi_block block;
        if (tsi_work_send_block(work, peer, &block))
            to->send[to->send_count++] = part_of(&block, peer, false);
        if (tsi_work_recv_block(work, peer, &block)) {
            bool combine = folds && to->recv_count > first;
            to->recv[to->recv_count++] = part_of(&block, peer, combine);
        }
    }
}

static void add_list(ts_part *to, int64_t *count, const ts_part *list, int64_t more)
{
    if (more > 0) memcpy(to + *count, list, (size_t)more * sizeof *list);
    *count += more;
}

void tsi_exchange_add(tsi_exchange_lists *to, const tsi_work *work)
{
    if (work->print.kind != TSI_COMM_EXCHANGE) {
        add_collective(to, work);
        return;
    }
    add_list(to->send, &to->send_count, work->send, work->send_count);
    add_list(to->recv, &to->recv_count, work->recv, work->recv_count);
}

void tsi_exchange_become(tsi_call *call, const tsi_exchange_lists *lists)
{
    tsi_work *work = &call->local.base;
    work->in = work->out = (tsi_block){ 0 };
    work->send_rows = work->recv_rows = NULL;
    work->lists_stay = false;
    work->send = lists->send_count > 0 ? lists->send : NULL;
    work->recv = lists->recv_count > 0 ? lists->recv : NULL;
    work->send_count = lists->send_count;
    work->recv_count = lists->recv_count;
    work->print = (tsi_fingerprint){ .kind = TSI_COMM_EXCHANGE,
                                     .root = -1,
                                     .dtype = work->print.dtype,
                                     .reduce = work->print.reduce };
    call->name = tsi_comm_kind_name(TSI_COMM_EXCHANGE);
}

/* ---- one part -------------------------------------------------------------------------------- */

/* Elements [low, high) of a dense block. */
static void narrow(tsi_block *block, int64_t low, int64_t high)
{
    size_t size = ts_dtype_size((ts_dtype)block->dtype);
    *block = (tsi_block){ .data = (char *)block->data + (size_t)low * size,
                          .dtype = block->dtype,
                          .ndim = 1 };
    block->extent[0] = high - low;
    block->stride[0] = 1;
}

static void narrow_sum(tsi_work *work, int32_t index, int32_t parts)
{
    int64_t count = tsi_block_count(&work->in);
    int64_t low = count / parts * index + count % parts * index / parts;
    int64_t high = count / parts * (index + 1) + count % parts * (index + 1) / parts;
    narrow(&work->in, low, high);
    narrow(&work->out, low, high);
    work->print.count = high - low;
    work->print.ndim = 1;
    memset(work->print.extent, 0, sizeof work->print.extent);
    work->print.extent[0] = high - low;
}

/* The lists of the whole, with numbers for cutting behind them. NULL: no memory, not recorded. */
static void *whole_lists(tsi_comm_rank *comm, const tsi_work *work, tsi_exchange_lists *out,
                         tsi_cut *cut)
{
    int64_t sends = 0, recvs = 0;
    tsi_exchange_room(work, &sends, &recvs);
    size_t bytes = (size_t)(sends + recvs) * sizeof(ts_part);
    size_t numbers = 2 * (size_t)work->team->size * sizeof(int64_t);
    char *memory = tsi_copies_take(comm, bytes + numbers);
    if (!memory) return NULL;
    *out = (tsi_exchange_lists){ .send = (ts_part *)(void *)memory,
                                 .recv = (ts_part *)(void *)memory + sends };
    tsi_exchange_add(out, work);
    *cut = (tsi_cut){ .dtype = work->print.dtype,
                      .members = work->team->size,
                      .scratch = (int64_t *)(void *)(memory + bytes) };
    return memory;
}

/* The call becomes an exchange of its part. *lists: to be put back when it was issued. */
static ts_status cut_exchange(tsi_call *call, int32_t index, int32_t parts, void **lists)
{
    tsi_comm_rank *comm = call->group->comm;
    tsi_exchange_lists whole, part = { 0 };
    tsi_cut cut, folds;
    void *memory = whole_lists(comm, &call->local.base, &whole, &cut);
    if (!memory) return tsi_fail_memory("the lists of a part", sizeof(ts_part));
    cut.index = index;
    cut.count = parts;
    folds = cut;
    folds.folds = true;
    part.send_count = tsi_cut_list(&cut, whole.send, whole.send_count, NULL);
    part.recv_count = tsi_cut_list(&folds, whole.recv, whole.recv_count, NULL);
    size_t bytes = (size_t)(part.send_count + part.recv_count) * sizeof(ts_part);
    *lists = tsi_copies_take(comm, bytes + 1);
    if (*lists) {
        part.send = *lists;
        part.recv = part.send + part.send_count;
        (void)tsi_cut_list(&cut, whole.send, whole.send_count, part.send);
        (void)tsi_cut_list(&folds, whole.recv, whole.recv_count, part.recv);
        tsi_exchange_become(call, &part);
    }
    tsi_copies_put(comm, memory);
    return *lists ? TS_OK : tsi_fail_memory("the lists of a part", bytes);
}

int32_t tsi_again_parts(const again *a)
{
    bool holds = a->parts > 0 && a->parts_epoch == a->call.group->comm->epoch;
    return holds ? a->parts : 0;
}

ts_status tsi_again_next_part(again *a)
{
    int32_t index = a->begun;
    void *lists = NULL;
    tsi_call call = a->call;
    TSI_ASSERT(index < a->parts && a->posted);
    call.options.work = index == 0 ? &a->work : &a->more[index - 1];
    a->rank->where = a->where;
    if (call.local.base.print.kind == TSI_COMM_ALL_REDUCE)
        narrow_sum(&call.local.base, index, a->parts);
    else
        TSI_TRY(cut_exchange(&call, index, a->parts, &lists));
    ts_status status = tsi_call_issue(&call);
    tsi_copies_put(call.group->comm, lists);
    if (status != TS_OK) return status;
    a->event[index] = tsi_ring_last(a->rank->ring); /* the one it began */
    a->begun++;
    return TS_OK;
}

ts_status tsi_again_part_run(void *context)
{
    again *a = context;
    bool more = a->begun > 0 && a->begun < tsi_again_parts(a);
    return more ? tsi_again_next_part(a) : TS_OK;
}

/* ---- which can ------------------------------------------------------------------------------- */

tsi_kept_work tsi_again_part_of(const tsi_kept_work *operation)
{
    static const tsi_kept_kind kind = { TSI_KEPT_PART, NULL };
    return (tsi_kept_work){ tsi_again_part_run, operation->context, NULL, &kind };
}

bool tsi_again_is_part(const tsi_kept_work *work)
{
    return work->run == tsi_again_part_run;
}

bool tsi_again_can_part(const tsi_kept_work *operation)
{
    const again *a = operation->context;
    const tsi_work *work = &a->call.local.base;
    tsi_exchange_lists whole;
    tsi_cut cut;
    if (work->print.kind == TSI_COMM_ALL_REDUCE)
        return tsi_block_is_dense(&work->in) && tsi_block_is_dense(&work->out) &&
               tsi_block_count(&work->in) >= TSI_PARTS_LIVE;
    tsi_comm_rank *comm = a->call.group->comm;
    void *memory = whole_lists(comm, work, &whole, &cut);
    if (!memory) return false;
    cut.folds = true;
    bool can = tsi_cut_is_possible(&cut, whole.recv, whole.recv_count);
    tsi_copies_put(comm, memory);
    return can;
}

void tsi_again_go_in_parts(const tsi_kept_work *operation, int32_t parts)
{
    again *a = operation->context;
    TSI_ASSERT(parts >= 2 && parts <= TSI_PARTS_LIVE);
    a->parts = parts;
    a->parts_epoch = a->call.group->comm->epoch;
}
