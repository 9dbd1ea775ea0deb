/* SPDX-License-Identifier: Apache-2.0 */
/* again.c - operations that are issued once more. See again.h. */
#include "comm/again.h"

#include <string.h>

#include "base/alloc.h"
#include "comm/again_op.h"
#include "comm/comm.h"
#include "device/block_task.h"

/* Of a recording that failed, what it began may be under way: its handle is the caller's own. */
static void again_destroy(void *context)
{
    again *a = context;
    if (a->work && a->work->again == a) a->work->again = NULL;
    if (a->call.group) {
        tsi_copies_put(a->call.group->comm, a->lists);
        ts_group_release(a->call.group);
    }
    tsi_free(a->name);
    tsi_free(a);
}

static again *again_make(ts_rank *rank, const ts_comm_options *options)
{
    again *a = tsi_calloc(1, sizeof *a);
    if (!a) {
        (void)tsi_fail_memory("an operation of a step", sizeof *a);
        return NULL;
    }
    a->rank = rank;
    a->where = rank->where;
    a->posted = options && options->work;
    if (options) a->call.options = *options;
    return a;
}

/* ---- memory and order ------------------------------------------------------------------------ */

/* The copy of a list that lies in a->lists, to be changed. */
static void *own_list(again *a, const void *list)
{
    return (char *)a->lists + ((const char *)list - (const char *)a->lists);
}

static void touch_parts(again *a, const ts_part *list, int64_t count, bool writes,
                        tsi_kept_tell tell, void *to)
{
    ts_part *part = count > 0 ? own_list(a, list) : NULL;
    for (int64_t i = 0; i < count; i++) {
        tsi_block block = { .data = part[i].data,
                            .dtype = a->call.local.base.print.dtype,
                            .ndim = part[i].ndim };
        memcpy(block.extent, part[i].extent, sizeof block.extent);
        memcpy(block.stride, part[i].stride, sizeof block.stride);
        tsi_kept_touch touch = tsi_block_covers(&block);
        touch.at = &part[i].data;
        touch.writes = writes;
        if (touch.low) tell(to, &touch);
    }
}

static void again_touches(void *context, tsi_kept_tell tell, void *to)
{
    again *a = context;
    tsi_work *work = &a->call.local.base;
    if (work->in.dtype) tsi_block_touch(&work->in, false, tell, to);
    if (work->out.dtype) tsi_block_touch(&work->out, true, tell, to);
    touch_parts(a, work->send, work->send_count, false, tell, to);
    touch_parts(a, work->recv, work->recv_count, true, tell, to);
}

static const tsi_kept_kind fence_kind = { TSI_KEPT_FENCE, again_touches },
                           issue_kind = { TSI_KEPT_ISSUE, again_touches },
                           meet_kind = { TSI_KEPT_MEET, again_touches },
                           wait_kind = { TSI_KEPT_WAIT, NULL },
                           batch_kind = { TSI_KEPT_BATCH, NULL },
                           close_kind = { TSI_KEPT_CLOSE, NULL };

/* What moves nothing orders what other ranks do. What is lent is touched by whoever reads it. */
static const tsi_kept_kind *kind_of(const again *a)
{
    const tsi_work *work = &a->call.local.base;
    if (work->lending) return NULL;
    if (work->print.kind == TSI_COMM_BARRIER) return &fence_kind;
    return a->posted ? &issue_kind : &meet_kind;
}

/* ---- operations that go as one --------------------------------------------------------------- */

static tsi_block *source_of(again *a)
{
    return &a->call.local.base.in;
}

/* The last of those it goes with; NULL: it goes alone. */
static again *last_of(const again *a)
{
    bool holds = a->with && a->with->epoch == a->call.group->comm->epoch;
    return holds ? a->with : NULL;
}

/* Into the room of the last one, or from there to where the results of each belong. */
static ts_status copy_all(const again *last, bool into)
{
    const tsi_device *cpu = tsi_device_host();
    char *at = last->room;
    for (again *a = last->first; a; a = a->next) {
        const tsi_block *block = into ? source_of(a) : &a->call.local.base.out;
        tsi_block packed = tsi_block_dense_like(block, at);
        int64_t count = tsi_block_count(block);
        at += count * (int64_t)ts_dtype_size((ts_dtype)block->dtype);
        if (count > 0)
            TSI_TRY(cpu->copy(cpu, into ? &packed : block, into ? block : &packed, NULL));
    }
    return TS_OK;
}

static ts_status pack(const again *last, tsi_work *work)
{
    int64_t count = 0;
    for (again *a = last->first; a; a = a->next)
        count += tsi_block_count(source_of(a));
    work->in = (tsi_block){ .data = last->room, .dtype = work->in.dtype, .ndim = 1 };
    work->in.extent[0] = count;
    work->in.stride[0] = 1;
    work->out = work->in;
    work->print.count = count;
    work->print.ndim = 1;
    memset(work->print.extent, 0, sizeof work->print.extent);
    work->print.extent[0] = count;
    return copy_all(last, true);
}

static ts_status unpack(const again *last)
{
    return copy_all(last, false);
}

/* One exchange of the blocks of all: those between two members match in order, so lists one behind
 * another match too. *lists: to be put back when it was issued. */
static ts_status put_together(const again *last, tsi_call *call, void **lists)
{
    int64_t sends = 0, recvs = 0;
    for (const again *a = last->first; a; a = a->next)
        tsi_exchange_room(&a->call.local.base, &sends, &recvs);
    size_t bytes = (size_t)(sends + recvs) * sizeof(ts_part);
    *lists = tsi_copies_take(call->group->comm, bytes);
    if (!*lists) return tsi_fail_memory("the lists of a bucket", bytes);
    tsi_exchange_lists all = { .send = *lists, .recv = (ts_part *)*lists + sends };
    for (const again *a = last->first; a; a = a->next)
        tsi_exchange_add(&all, &a->call.local.base);
    tsi_exchange_become(call, &all);
    return TS_OK;
}

/* ---- issuing --------------------------------------------------------------------------------- */

static ts_status issue_joined(const again *last, tsi_call *call)
{
    void *lists = NULL;
    if (last->room)
        TSI_TRY(pack(last, &call->local.base));
    else
        TSI_TRY(put_together(last, call, &lists));
    ts_status status = tsi_call_issue(call);
    tsi_copies_put(call->group->comm, lists);
    return status;
}

static ts_status issue_run(void *context)
{
    again *a = context;
    const again *last = last_of(a);
    memset(a->event, 0, sizeof a->event);
    a->begun = 0;
    if (last && last != a) return TS_OK; /* it begins with the last of them */
    if (!last && tsi_again_parts(a) > 0) return tsi_again_next_part(a);
    tsi_call call = a->call;
    a->rank->where = a->where;
    call.options.work = a->posted ? &a->work : NULL;
    ts_status status = last ? issue_joined(last, &call) : tsi_call_issue(&call);
    bool posted = a->posted || call.group->comm->batch_open;
    if (status == TS_OK && posted) a->event[0] = tsi_ring_last(a->rank->ring); /* that it began */
    return status;
}

static ts_status batch_end_run(void *context)
{
    again *a = context;
    ts_comm_options options = a->call.options;
    options.struct_size = sizeof options;
    options.work = a->posted ? &a->work : NULL;
    return ts_group_batch_end(a->rank, &options);
}

/* Runs it and keeps it; the caller's handle knows by what it was issued. */
static ts_status run_and_keep(again *a, tsi_kept_fn run, const tsi_kept_kind *kind,
                              ts_work **handle)
{
    TSI_TRY(tsi_keep_work(a->rank, (tsi_kept_work){ run, a, again_destroy, kind }));
    if (!a->posted) return TS_OK;
    a->work->again = a;
    *handle = a->work;
    return TS_OK;
}

enum { APART_BYTES = 64 }; /* what is smaller ends where it begins */

/* An operation that its caller waits for is kept as two pieces of work, its begin and the wait: in
 * another order something may stand between. */
static bool goes_apart(const tsi_call *call)
{
    const tsi_work *work = &call->local.base;
    if (call->options.work || call->group->comm->batch_open || work->lending) return false;
    if (work->print.kind == TSI_COMM_BARRIER || work->device != tsi_device_host()) return false;
    return work->print.kind == TSI_COMM_EXCHANGE ||
           work->print.count * (int64_t)ts_dtype_size((ts_dtype)work->print.dtype) >= APART_BYTES;
}

static ts_status issue_apart(again *a)
{
    ts_work *begun = NULL;
    a->posted = true;
    a->call.local.base.awaited = 1;
    TSI_TRY(run_and_keep(a, issue_run, kind_of(a), &begun));
    return ts_work_wait(begun);
}

ts_status tsi_again_issue(tsi_call *call)
{
    ts_rank *rank = call->group->comm->rank;
    again *a = again_make(rank, &call->options);
    if (!a) return TS_ERR_MEMORY;
    const char *name = tsi_call_title(call);
    ts_work **handle = call->options.work;
    bool apart = goes_apart(call);
    a->call = *call;
    tsi_group_retain(call->group);
    a->name = tsi_strdup(name);
    a->call.options.name = a->name;
    ts_status status = a->name ? tsi_call_copy_lists(&a->call.local.base, true, &a->lists)
                               : tsi_fail_memory("the name of an operation", 1);
    if (status == TS_OK && apart) return issue_apart(a);
    if (status == TS_OK) return run_and_keep(a, issue_run, kind_of(a), handle);
    again_destroy(a);
    return status;
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* All parts, also when one of them failed. */
static ts_status end_all(again *a)
{
    ts_work *work = a->work;
    a->work = NULL;
    ts_status status = ts_work_wait(work);
    for (int32_t i = 1; i < a->begun; i++) {
        work = a->more[i - 1];
        a->more[i - 1] = NULL;
        ts_status part = ts_work_wait(work);
        if (status == TS_OK) status = part;
    }
    a->begun = 0;
    return status;
}

static ts_status wait_run(void *context)
{
    again *a = context, *last = last_of(a);
    if (last) a = last;
    if (!a->work) return TS_OK; /* of those who wait for the same, the first did */
    TSI_TRY(end_all(a));
    return last && last->room ? unpack(last) : TS_OK;
}

ts_status tsi_again_wait(ts_work *work)
{
    if (!work->again)
        return TSI_FAIL(TS_ERR_STATE,
                        "step: an operation that was issued before the step is waited for in it; "
                        "wait for it first");
    return tsi_keep_work(work->comm->rank,
                         (tsi_kept_work){ wait_run, work->again, NULL, &wait_kind });
}

bool tsi_again_elsewhere(const ts_work *work)
{
    const ts_rank *rank = work->comm->rank;
    return work->again && rank->kept && !tsi_keeps(rank);
}

static ts_status batch_begin_run(void *context)
{
    return ts_group_batch_begin(context);
}

/* Issued, and nobody waited for it. */
static bool is_open(const tsi_kept_work *work)
{
    bool issues = work->run == issue_run || work->run == batch_end_run;
    return issues && ((const again *)work->context)->work != NULL;
}

int64_t tsi_again_open(const tsi_kept *kept)
{
    int64_t open = 0;
    for (int64_t i = 0; i < kept->count; i++)
        open += is_open(&kept->work[i]);
    return open;
}

int32_t tsi_again_events(const tsi_kept_work *work, uint64_t event[TSI_PARTS_LIVE])
{
    const again *a = work->run == issue_run ? work->context : NULL;
    int32_t count = 0;
    while (a && count < TSI_PARTS_LIVE && a->event[count] > 0) {
        event[count] = a->event[count];
        count++;
    }
    return count;
}

bool tsi_again_is_one(const tsi_kept_work *work)
{
    return work->run == issue_run || work->run == wait_run || work->run == batch_begin_run ||
           work->run == batch_end_run || tsi_again_is_part(work);
}

void tsi_again_end(ts_rank *rank, const tsi_kept *kept)
{
    tsi_comm_rank *comm = tsi_comm_of_rank(rank);
    if (comm && comm->batch_open) tsi_batch_drop(comm);
    for (int64_t i = 0; i < kept->count; i++)
        if (is_open(&kept->work[i])) (void)wait_run(kept->work[i].context);
}

/* ---- batches --------------------------------------------------------------------------------- */

ts_status tsi_again_batch_begin(ts_rank *rank)
{
    return tsi_keep_work(rank, (tsi_kept_work){ batch_begin_run, rank, NULL, &batch_kind });
}

ts_status tsi_again_batch_end(ts_rank *rank, const ts_comm_options *options)
{
    again *a = again_make(rank, options);
    if (!a) return TS_ERR_MEMORY;
    ts_work *begun = NULL, **handle = options && options->work ? options->work : &begun;
    a->posted = true; /* who waits at once waits apart */
    TSI_TRY(run_and_keep(a, batch_end_run, &close_kind, handle));
    return begun ? ts_work_wait(begun) : TS_OK;
}

/* ---- which go as one ------------------------------------------------------------------------- */

typedef enum going { GOES_ALONE, GOES_PACKED, GOES_LISTED } going;

/* How it can go with others: its elements beside theirs, or its blocks behind theirs. Sums of all
 * members are packed: an exchange would move each term to everybody. */
static going goes(const tsi_kept_work *work)
{
    if (work->run != issue_run) return GOES_ALONE;
    const again *a = work->context;
    const tsi_work *base = &a->call.local.base;
    if (!a->posted || base->lending || base->device != tsi_device_host()) return GOES_ALONE;
    switch ((tsi_comm_kind)base->print.kind) {
    case TSI_COMM_ALL_REDUCE:
        return GOES_PACKED;
    case TSI_COMM_ALL_GATHER:
    case TSI_COMM_REDUCE_SCATTER:
    case TSI_COMM_EXCHANGE:
        return GOES_LISTED;
    case TSI_COMM_BARRIER:
    case TSI_COMM_BROADCAST:
    case TSI_COMM_SCATTER:
    case TSI_COMM_GATHER:
    case TSI_COMM_REDUCE:
    case TSI_COMM_ALL_TO_ALL:
    case TSI_COMM_SEND:
    case TSI_COMM_RECV:
    case TSI_COMM_KIND_COUNT:
        break;
    }
    return GOES_ALONE;
}

bool tsi_again_alike(const tsi_kept_work *one, const tsi_kept_work *other)
{
    going how = goes(one);
    if (how == GOES_ALONE || goes(other) != how) return false;
    const again *a = one->context, *b = other->context;
    const tsi_work *x = &a->call.local.base, *y = &b->call.local.base;
    return x->team == y->team && x->print.dtype == y->print.dtype &&
           x->print.reduce == y->print.reduce && x->avg_count == y->avg_count &&
           x->awaited == y->awaited && a->call.options.channel == b->call.options.channel &&
           a->call.options.timeout_ms == b->call.options.timeout_ms;
}

int64_t tsi_again_bytes(const tsi_kept_work *work)
{
    if (goes(work) != GOES_PACKED) return 0;
    const tsi_block *in = source_of(work->context);
    return tsi_block_count(in) * (int64_t)ts_dtype_size((ts_dtype)in->dtype);
}

void tsi_again_join(const tsi_kept_work *const *operation, int64_t count, char *room)
{
    again *last = operation[count - 1]->context;
    last->first = operation[0]->context;
    last->room = room;
    last->epoch = last->call.group->comm->epoch;
    for (int64_t i = 0; i < count; i++) {
        again *a = operation[i]->context;
        a->with = last;
        a->next = i + 1 < count ? operation[i + 1]->context : NULL;
    }
}

void tsi_again_go_alone(const tsi_kept *kept)
{
    for (int64_t i = 0; i < kept->count; i++)
        if (kept->work[i].run == issue_run) {
            again *a = kept->work[i].context;
            a->with = NULL;
            a->parts = 0;
        }
}

bool tsi_again_may_part(const tsi_kept_work *work)
{
    return goes(work) != GOES_ALONE;
}

uint64_t tsi_again_epoch(ts_rank *rank)
{
    const tsi_comm_rank *comm = tsi_comm_of_rank(rank);
    return comm ? comm->epoch : 0;
}
