/* SPDX-License-Identifier: Apache-2.0 */
/* op.c - the life of an operation on device memory, and what ends it early.
 *
 * Everything here runs under the lock of the rank, in its own thread or in a helper's. An operation
 * ends early where the host engine says so (a mismatch, a peer that failed, left or died), where
 * the library reports an error, and by its deadline; the last two are told to the host engine, so
 * that every peer hears of them at once and not each by its own deadline.
 *
 * INV-4: a work is done when all of it is in the lane's stream, with an event that its rank's queue
 * waits for; where nobody would watch it from there on, when the stream has passed it. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/intmath.h"
#include "comm/nccl/internal.h"

#define DEATH_NS_MAX ((int64_t)3000000000)

/* ---- beginning ------------------------------------------------------------------------------- */

bool tsi_has_lanes(const tsi_nccl *nccl, const tsi_device *device)
{
    return nccl->api && device->stream_handle;
}

bool tsi_op_is_staged(const tsi_nccl *nccl, const tsi_work *work)
{
    if (!tsi_has_lanes(nccl, work->device)) return true;
    if (!tsi_is_point(work)) return false;
    int64_t bytes = work->print.count * tsi_element_bytes(work->print.dtype);
    return bytes <= TSI_NCCL_SMALL_SEND || work->print.root == work->member;
}

/* The same operation to the engine below. Host and device memory must not meet, nor two ways to
 * reduce: they would move different bytes. */
static void shadow_make(tsi_nccl_op *op)
{
    tsi_work *shadow = &op->shadow;
    uint64_t way = 1u + (op->lane ? 2u : 0u) + (op->rank->nccl->native ? 4u : 0u);
    *shadow = *op->work;
    shadow->next = NULL;
    shadow->asynchronous = 0; /* its event is the operation's */
    shadow->device = op->rank->nccl->host->cpu;
    shadow->ready = shadow->done = NULL;
    shadow->timed = false;
    shadow->engine_state = NULL;
    shadow->print.hash = tsi_mix(shadow->print.hash, way);
    memset(shadow->engine_word, 0, sizeof shadow->engine_word);
}

static void op_free(tsi_nccl_op *op)
{
    const tsi_device *device = op->device;
    if (op->begun) device->event_destroy(device, op->begun);
    if (op->event) device->event_destroy(device, op->event);
    tsi_staged_free(op);
    tsi_free(op->lists);
    tsi_free(op->memory);
    tsi_free(op->shadow.error);
    tsi_free(op);
}

static void unlink_op(tsi_nccl_op *op)
{
    tsi_nccl_op **at = &op->rank->ops;
    while (*at != op)
        at = &(*at)->next;
    *at = op->next;
    atomic_fetch_sub_explicit(&op->rank->works, 1, memory_order_seq_cst);
}

/* The work may be gone when its state is seen. */
static void work_end(const tsi_nccl_op *op, tsi_work *work, ts_status status, int64_t culprit,
                     const char *text)
{
    op->rank->nccl->host->work_conclude(work, status, culprit, text);
    atomic_store_explicit(&work->state, TSI_WORK_DONE, memory_order_release);
}

static void op_end(tsi_nccl_op *op, ts_status status, int64_t culprit, const char *text)
{
    tsi_work *work = op->work;
    unlink_op(op);
    if (work) work_end(op, work, status, culprit, text);
    op_free(op);
}

/* Ends it early. What is in the stream passes now, and must have passed before the blocks are used
 * for anything else. */
static void op_abort(tsi_nccl_op *op, ts_status status, int64_t culprit, const char *text)
{
    const tsi_device *device = op->device;
    const tsi_nccl *nccl = op->rank->nccl;
    if (!op->work) (void)nccl->host->rank_failed(op->shadow.rank, status, culprit, text);
    if (op->lane) tsi_lane_abort(op->lane);
    if (op->work && op->begun)
        (void)device->event_record(device, op->lane->stream, &op->work->done);
    op_end(op, status, culprit, text);
}

/* As the shadow ended. */
static void end_as_shadow(tsi_nccl_op *op)
{
    const tsi_error_record *error = op->shadow.error;
    char text[TSI_ERROR_TEXT_MAX];
    (void)snprintf(text, sizeof text, "%s",
                   error ? error->text : op->rank->nccl->host->status_meaning(op->shadow.status));
    op_abort(op, op->shadow.status, error ? error->error.rank : op->shadow.rank->index, text);
}

ts_status tsi_op_start(tsi_nccl_rank *rank, tsi_work *work)
{
    tsi_nccl *nccl = rank->nccl;
    tsi_nccl_op *op = tsi_calloc(1, sizeof *op);
    if (!op) return tsi_fail_memory("an operation on a device", sizeof *op);
    op->rank = rank;
    op->work = work;
    op->device = work->device;
    bool staged = tsi_op_is_staged(nccl, work);
    op->lane = staged ? NULL : tsi_lane_for(rank, work);
    shadow_make(op);
    ts_status status = !staged && !op->lane ? TS_ERR_MEMORY
                       : staged             ? tsi_staged_make(op)
                                            : tsi_agree_make(op);
    if (status != TS_OK) {
        op_free(op);
        return status;
    }
    atomic_store_explicit(&work->state, TSI_WORK_POSTED, memory_order_relaxed);
    work->engine_state = op;
    tsi_nccl_op **end = &rank->ops;
    while (*end)
        end = &(*end)->next;
    *end = op;
    atomic_fetch_add_explicit(&rank->works, 1, memory_order_seq_cst);
    status = nccl->inner->start(nccl->inner_state, &op->shadow);
    if (status == TS_OK) return TS_OK;
    if (atomic_load_explicit(&op->shadow.state, memory_order_acquire) != TSI_WORK_DONE)
        op->shadow.status = status;
    end_as_shadow(op);
    return status;
}

/* ---- ending early ---------------------------------------------------------------------------- */

/* A failure of our own: the peers are told through the engine below. */
static void op_fail(tsi_nccl_op *op, ts_status status, const char *why)
{
    char text[TSI_ERROR_TEXT_MAX], doing[280];
    const tsi_nccl *nccl = op->rank->nccl;
    ts_rank *rank = op->shadow.rank;
    nccl->host->fingerprint_text(&op->shadow.print, doing, sizeof doing);
    (void)snprintf(text, sizeof text, "%s: %.600s", doing, why);
    nccl->inner->leave(nccl->inner_state, rank, status, text);
    op_abort(op, status, rank->index, text);
}

/* The engine below is at fault: it ends whatever is started with the sentence of the fault. */
static bool op_end_by_fault(tsi_nccl_op *op)
{
    const tsi_nccl *nccl = op->rank->nccl;
    tsi_work *shadow = &op->shadow;
    if (!nccl->inner->faulty || !nccl->inner->faulty(nccl->inner_state)) return false;
    tsi_free(shadow->error);
    shadow->error = NULL;
    shadow->status = TS_OK;
    atomic_store_explicit(&shadow->state, TSI_WORK_NEW, memory_order_relaxed);
    (void)nccl->inner->start(nccl->inner_state, shadow);
    if (shadow->status == TS_OK) shadow->status = TS_ERR_PEER;
    end_as_shadow(op);
    return true;
}

/* The connections of a process that dies close before the engine below can see that it is gone, and
 * there its death is told better: it has a moment for that. */
static bool op_end_by_death(tsi_nccl_op *op)
{
    int64_t timeout = tsi_mul_most(op->shadow.timeout_ms, 1000000);
    int64_t until = tsi_clock_ns() + tsi_min_i64(timeout / 2, DEATH_NS_MAX);
    while (!op_end_by_fault(op)) {
        if (tsi_clock_ns() > until) return false;
        (void)nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    return true;
}

static bool op_end_by_peer(tsi_nccl_op *op, tsi_nccl_result result)
{
    return result == TSI_NCCL_REMOTE ? op_end_by_death(op) : op_end_by_fault(op);
}

static bool is_first(const tsi_nccl_op *op)
{
    const tsi_nccl_op *before = op->rank->ops;
    while (before != op && (before->lane != op->lane || before->stage == TSI_NCCL_RUN))
        before = before->next;
    return before == op;
}

/* The library has it and does not end it. */
static void fail_late(tsi_nccl_op *op, const char *what)
{
    char text[160];
    if (op_end_by_fault(op)) return;
    (void)snprintf(text, sizeof text, "all members came, but NCCL did not %s within %lld ms", what,
                   (long long)op->shadow.timeout_ms);
    op_fail(op, TS_ERR_PEER, text);
}

void tsi_op_late(tsi_nccl_rank *rank, tsi_work *work)
{
    tsi_nccl *nccl = rank->nccl;
    tsi_nccl_op *op = work->engine_state;
    if (op->stage == TSI_NCCL_AGREE) { /* it knows who is missing */
        op->shadow.deadline_ns = work->deadline_ns;
        (void)nccl->inner->wait(nccl->inner_state, &op->shadow);
        return;
    }
    if (op->stage == TSI_NCCL_JOIN && op->lane->state == TSI_LANE_MEETING) {
        op->lane->meeting.deadline_ns = work->deadline_ns;
        (void)nccl->inner->wait(nccl->inner_state, &op->lane->meeting);
        return;
    }
    if (op->stage == TSI_NCCL_JOIN && op->lane->state != TSI_LANE_READY)
        fail_late(op, "make its communicator");
    else if (!is_first(op))
        fail_late(op, "finish an earlier operation of the channel");
    else
        fail_late(op, "finish");
}

/* ---- stage by stage -------------------------------------------------------------------------- */

static bool agree(tsi_nccl_op *op)
{
    const tsi_nccl *nccl = op->rank->nccl;
    char text[480];
    if (!nccl->inner->test(nccl->inner_state, &op->shadow)) return false;
    if (op->shadow.status != TS_OK) {
        end_as_shadow(op);
    } else if (!op->lane) {
        ts_status status = tsi_staged_unpack(op);
        if (status != TS_OK)
            op_fail(op, status, "its result could not be copied to the device");
        else
            op_end(op, TS_OK, -1, "");
    } else if (!tsi_agree_read(op, text, sizeof text)) {
        op_fail(op, TS_ERR_PEER, text);
    } else {
        op->stage = TSI_NCCL_JOIN;
    }
    return true;
}

/* What the lane's stream has from here on runs behind what the rank's queue had when it called. */
static ts_status take_turn(tsi_nccl_op *op)
{
    const tsi_device *device = op->device;
    TSI_TRY(device->event_wait(device, op->lane->stream, op->work->ready));
    op->rank->nccl->host->work_moment(op->work, op->lane->stream);
    return device->event_record(device, op->lane->stream, &op->begun);
}

static bool join(tsi_nccl_op *op)
{
    char text[TSI_ERROR_TEXT_MAX] = "";
    if (!is_first(op)) return false;
    if (op->lane->state != TSI_LANE_READY) {
        ts_status status = tsi_lane_join(op->lane, op->work, text, sizeof text);
        if (status != TS_OK) {
            if (!op_end_by_peer(op, tsi_lane_look(op->lane))) op_fail(op, status, text);
            return true;
        }
        if (op->lane->state != TSI_LANE_READY) return op_end_by_fault(op);
    }
    ts_status status = take_turn(op);
    if (status == TS_OK) status = tsi_lower_begin(op);
    if (status != TS_OK)
        op_fail(op, status, op->rank->nccl->host->status_meaning(status));
    else
        op->stage = TSI_NCCL_MOVE;
    return true;
}

static bool failed(tsi_nccl_op *op, tsi_nccl_result result)
{
    char text[480];
    if (result == TSI_NCCL_SUCCESS || result == TSI_NCCL_IN_PROGRESS) return false;
    if (op_end_by_peer(op, result)) return true;
    tsi_lane_text(op->lane, result, text, sizeof text);
    op_fail(op, TS_ERR_PEER, text);
    return true;
}

static bool move(tsi_nccl_op *op)
{
    tsi_nccl_result result = TSI_NCCL_SUCCESS;
    ts_status status = tsi_lower_enqueue(op, &result);
    if (status != TS_OK)
        op_fail(op, status, op->rank->nccl->host->status_meaning(status));
    else if (!failed(op, result))
        op->stage = TSI_NCCL_LAUNCH;
    return true;
}

/* The rank goes on; of the caller's memory nothing is known from here on. */
static ts_status detach(tsi_nccl_op *op)
{
    tsi_work *work = op->work, *shadow = &op->shadow;
    TSI_TRY(op->device->event_record(op->device, op->lane->stream, &work->done));
    shadow->group = NULL;
    shadow->in = shadow->out = (tsi_block){ 0 };
    shadow->send_rows = shadow->recv_rows = NULL;
    shadow->send = shadow->recv = NULL;
    shadow->send_count = shadow->recv_count = 0;
    shadow->lending = NULL;
    op->work = NULL;
    work_end(op, work, TS_OK, -1, "");
    return TS_OK;
}

static bool launch(tsi_nccl_op *op)
{
    const tsi_device *device = op->device;
    tsi_nccl_result result = tsi_lane_look(op->lane);
    if (failed(op, result)) return true;
    if (result == TSI_NCCL_IN_PROGRESS) return op_end_by_fault(op);
    ts_status status = tsi_lower_unpack(op);
    if (status == TS_OK && ++op->round < op->rounds) {
        op->stage = TSI_NCCL_MOVE;
        return true;
    }
    if (status == TS_OK) op->rank->nccl->host->work_moment(op->work, op->lane->stream);
    if (status == TS_OK) status = device->event_record(device, op->lane->stream, &op->event);
    if (status == TS_OK && op->work->in_order) status = detach(op);
    if (status != TS_OK)
        op_fail(op, status, op->rank->nccl->host->status_meaning(status));
    else
        op->stage = TSI_NCCL_RUN;
    return true;
}

/* A stream may reach an operation long after it was called, so time counts from its turn. */
static bool is_late(tsi_nccl_op *op)
{
    int64_t now = tsi_clock_ns();
    if (op->since_ns == 0 && op->device->event_done(op->device, op->begun)) op->since_ns = now;
    return op->since_ns > 0 && (now - op->since_ns) / 1000000 > op->shadow.timeout_ms;
}

static bool run(tsi_nccl_op *op)
{
    const tsi_device *device = op->device;
    if (failed(op, tsi_lane_look(op->lane))) return true;
    if (!device->event_done(device, op->event)) {
        if (op_end_by_fault(op)) return true;
        bool late = !op->work && is_late(op);
        if (late) fail_late(op, "finish");
        return late;
    }
    const char *why = device->fault ? device->fault(device) : NULL; /* then all events are done */
    if (why)
        op_fail(op, TS_ERR_PEER, why);
    else
        op_end(op, TS_OK, -1, "");
    return true;
}

static bool advance(tsi_nccl_op *op)
{
    switch (op->stage) {
    case TSI_NCCL_AGREE:
        return agree(op);
    case TSI_NCCL_JOIN:
        return join(op);
    case TSI_NCCL_MOVE:
        return move(op);
    case TSI_NCCL_LAUNCH:
        return launch(op);
    case TSI_NCCL_RUN:
        return run(op);
    }
    return false;
}

bool tsi_ops_advance(tsi_nccl_rank *rank)
{
    bool any = false;
    for (tsi_nccl_op *op = rank->ops, *next; op; op = next) {
        next = op->next; /* it may end, and nothing else does */
        any = advance(op) || any;
    }
    return any;
}
