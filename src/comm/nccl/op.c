/* SPDX-License-Identifier: Apache-2.0 */
/* op.c - the life of an operation on device memory, and what ends it early.
 *
 * Everything here runs under the lock of the rank, in its own thread or in a helper's. An operation
 * ends early where the host engine says so (a mismatch, a peer that failed, left or died), where
 * the library reports an error, and by its deadline; the last two are told to the host engine, so
 * that every peer hears of them at once and not each by its own deadline.
 *
 * INV-4: an operation is done when its stream has passed its last kernel. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "comm/nccl/internal.h"

/* ---- beginning ------------------------------------------------------------------------------- */

static bool goes_staged(const tsi_nccl *nccl, const tsi_work *work)
{
    if (!nccl->api || !work->device->stream_handle) return true;
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
    shadow->engine_state = NULL;
    shadow->print.hash = tsi_mix(shadow->print.hash, way);
    memset(shadow->engine_word, 0, sizeof shadow->engine_word);
}

static void op_free(tsi_nccl_op *op)
{
    const tsi_device *device = op->work->device;
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
static void op_end(tsi_nccl_op *op, ts_status status, int64_t culprit, const char *text)
{
    tsi_work *work = op->work;
    const tsi_host *host = op->rank->nccl->host;
    unlink_op(op);
    host->work_conclude(work, status, culprit, text);
    op_free(op);
    atomic_store_explicit(&work->state, TSI_WORK_DONE, memory_order_release);
}

/* As the shadow ended. */
static void end_as_shadow(tsi_nccl_op *op)
{
    const tsi_error_record *error = op->shadow.error;
    char text[TSI_ERROR_TEXT_MAX];
    (void)snprintf(text, sizeof text, "%s",
                   error ? error->text : op->rank->nccl->host->status_meaning(op->shadow.status));
    op_end(op, op->shadow.status, error ? error->error.rank : op->work->rank->index, text);
}

ts_status tsi_op_start(tsi_nccl_rank *rank, tsi_work *work)
{
    tsi_nccl *nccl = rank->nccl;
    tsi_nccl_op *op = tsi_calloc(1, sizeof *op);
    if (!op) return tsi_fail_memory("an operation on a device", sizeof *op);
    op->rank = rank;
    op->work = work;
    bool staged = goes_staged(nccl, work);
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
    ts_rank *rank = op->work->rank;
    nccl->host->fingerprint_text(&op->work->print, doing, sizeof doing);
    (void)snprintf(text, sizeof text, "%s: %.600s", doing, why);
    if (op->lane) tsi_lane_abort(op->lane);
    nccl->inner->leave(nccl->inner_state, rank, status, text);
    op_end(op, status, rank->index, text);
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
    if (op->lane) tsi_lane_abort(op->lane);
    end_as_shadow(op);
    return true;
}

static bool is_first(const tsi_nccl_op *op)
{
    const tsi_nccl_op *before = op->rank->ops;
    while (before != op && (before->lane != op->lane || before->stage == TSI_NCCL_RUN))
        before = before->next;
    return before == op;
}

void tsi_op_late(tsi_nccl_rank *rank, tsi_work *work)
{
    tsi_nccl *nccl = rank->nccl;
    tsi_nccl_op *op = work->engine_state;
    char text[160];
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
    if (op_end_by_fault(op)) return;
    const char *what = "finish";
    if (op->stage == TSI_NCCL_JOIN && op->lane->state != TSI_LANE_READY)
        what = "make its communicator";
    else if (!is_first(op))
        what = "finish an earlier operation of the channel";
    (void)snprintf(text, sizeof text, "all members came, but NCCL did not %s within %lld ms", what,
                   (long long)work->timeout_ms);
    op_fail(op, TS_ERR_PEER, text);
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

static bool join(tsi_nccl_op *op)
{
    char text[TSI_ERROR_TEXT_MAX] = "";
    if (!is_first(op)) return false;
    if (op->lane->state != TSI_LANE_READY) {
        ts_status status = tsi_lane_join(op->lane, op->work, text, sizeof text);
        if (status != TS_OK) {
            if (!op_end_by_fault(op)) op_fail(op, status, text);
            return true;
        }
        if (op->lane->state != TSI_LANE_READY) return op_end_by_fault(op);
    }
    ts_status status = tsi_lower_begin(op);
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
    if (op_end_by_fault(op)) return true; /* a peer's death is told better there */
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

static bool launch(tsi_nccl_op *op)
{
    const tsi_device *device = op->work->device;
    tsi_nccl_result result = tsi_lane_look(op->lane);
    if (failed(op, result)) return true;
    if (result == TSI_NCCL_IN_PROGRESS) return op_end_by_fault(op);
    ts_status status = tsi_lower_unpack(op);
    if (status == TS_OK && ++op->round < op->rounds) {
        op->stage = TSI_NCCL_MOVE;
        return true;
    }
    if (status == TS_OK) status = device->event_record(device, op->lane->stream, &op->event);
    if (status != TS_OK)
        op_fail(op, status, op->rank->nccl->host->status_meaning(status));
    else
        op->stage = TSI_NCCL_RUN;
    return true;
}

static bool run(tsi_nccl_op *op)
{
    const tsi_device *device = op->work->device;
    if (failed(op, tsi_lane_look(op->lane))) return true;
    if (!device->event_done(device, op->event)) return op_end_by_fault(op);
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
