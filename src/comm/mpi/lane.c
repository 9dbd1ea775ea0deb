/* SPDX-License-Identifier: Apache-2.0 */
/* lane.c - queues of operations, and how messages find theirs.
 *
 * A lane is one rank's queue for a (group, channel), or for one direction of a (group, peer) pair.
 * Its first operation is under way, the others wait: so an operation begins only when the one
 * before it is complete here. Messages that come early (a peer is one operation ahead, or this rank
 * has not called yet) are kept in the lane. Lanes are found by hash and hold nothing once they are
 * empty.
 *
 *   IDLE -> OFFERED -> MOVE -> [GATHER: all_reduce] -> DRAIN
 *
 * OFFERED waits for all offers, DRAIN for DONE.
 *
 * A poisoned rank begins nothing. What all members came to, and what needs no more of them, is
 * carried out all the same: a member that has it behind itself may have been the one to fail. */
#include <sched.h>
#include <string.h>

#include "comm/mpi/internal.h"

enum { LANES_IDLE_MAX = 4096, OFFERING_NS = 100000000 };

static size_t bucket_of(uint64_t team, int64_t peer, int32_t channel)
{
    uint64_t key = team ^ ((uint64_t)(peer + 1) * UINT64_C(0x9E3779B97F4A7C15)) ^
                   ((uint64_t)(uint32_t)channel << 17);
    key *= UINT64_C(0xD6E8FEB86659FD93);
    return (size_t)(key >> 56) % TSI_LANE_BUCKETS;
}

static bool lane_is_idle(const tsi_lane *lane)
{
    return lane->first == NULL && lane->pending.first == NULL && !lane->active;
}

static void lane_free(tsi_mpi_rank *rank, tsi_lane *lane)
{
    tsi_parcel_drop(rank->mpi, &lane->pending);
    tsi_op_release(rank, &lane->op);
    rank->mpi->host->core.free(lane);
    rank->lane_count--;
}

static void sweep(tsi_mpi_rank *rank)
{
    for (size_t b = 0; b < TSI_LANE_BUCKETS; b++) {
        for (tsi_lane **link = &rank->lane[b]; *link != NULL;) {
            tsi_lane *lane = *link;
            if (lane_is_idle(lane)) {
                *link = lane->next;
                lane_free(rank, lane);
            } else {
                link = &lane->next;
            }
        }
    }
}

static tsi_lane *lane_known(tsi_mpi_rank *rank, uint64_t team, int64_t peer, int32_t channel)
{
    tsi_lane *lane = rank->lane[bucket_of(team, peer, channel)];
    while (lane != NULL && (lane->team != team || lane->peer != peer || lane->channel != channel))
        lane = lane->next;
    return lane;
}

static tsi_lane *lane_find(tsi_mpi_rank *rank, uint64_t team, int64_t peer, int32_t channel)
{
    size_t bucket = bucket_of(team, peer, channel);
    tsi_lane *known = lane_known(rank, team, peer, channel);
    if (known != NULL || tsi_poisoned(rank)) return known;
    if (rank->lane_count >= LANES_IDLE_MAX) sweep(rank);
    tsi_lane *lane = rank->mpi->host->core.alloc(sizeof *lane);
    if (lane == NULL) {
        tsi_poison_memory(rank, "a queue");
        return NULL;
    }
    memset(lane, 0, sizeof *lane);
    lane->team = team;
    lane->peer = peer;
    lane->channel = channel;
    lane->next = rank->lane[bucket];
    rank->lane[bucket] = lane;
    rank->lane_count++;
    return lane;
}

/* ---- messages ---------------------------------------------------------------------------- */
static void keep(tsi_mpi_rank *rank, tsi_parcel_list *list, const tsi_message *message,
                 tsi_parcel *parcel)
{
    if (parcel == NULL) {
        parcel = tsi_parcel_make(rank->mpi, message->bytes);
        if (parcel == NULL) {
            tsi_poison_memory(rank, "a message that came early");
            return;
        }
        memcpy(&parcel->message, message, message->bytes);
    }
    tsi_parcel_push(list, parcel);
}

/* Is the message for the operation under way? */
static bool belongs(const tsi_lane *lane, const tsi_message *message)
{
    const tsi_mpi_op *op = &lane->op;
    if (op->stage == TSI_OP_IDLE) return false;
    if (lane->channel >= 0) return message->sequence == op->work->print.sequence;
    return message->kind != TSI_MESSAGE_OFFER || !op->peer[0].offered;
}

void tsi_rank_message(tsi_mpi_rank *rank, const tsi_message *message, tsi_parcel *parcel)
{
    bool global = true;
    if (message->epoch < rank->epoch) {
        rank->mpi->host->core.free(parcel);
        return;
    }
    if (message->epoch > rank->epoch) {
        keep(rank, &rank->future, message, parcel);
        return;
    }
    if (message->kind == TSI_MESSAGE_LEAVE)
        tsi_fail_left(rank, message);
    else if (message->kind == TSI_MESSAGE_ABORT)
        tsi_fail_aborted(rank, message);
    else if (message->kind == TSI_MESSAGE_RECOVER)
        tsi_fail_came(rank, message);
    else
        global = false;
    tsi_lane *lane = NULL;
    if (!global)
        lane = lane_find(rank, message->team, message->channel < 0 ? message->from : -1,
                         message->channel);
    if (lane == NULL)
        rank->mpi->host->core.free(parcel);
    else if (belongs(lane, message))
        tsi_op_message(rank, &lane->op, message, parcel);
    else
        keep(rank, &lane->pending, message, parcel);
}

/* ---- operations -------------------------------------------------------------------------- */
static void replay(tsi_mpi_rank *rank, tsi_lane *lane)
{
    tsi_parcel_list list = lane->pending;
    lane->pending = (tsi_parcel_list){ 0 };
    for (tsi_parcel *parcel; (parcel = tsi_parcel_pop(&list)) != NULL;) {
        if (belongs(lane, &parcel->message))
            tsi_op_message(rank, &lane->op, &parcel->message, parcel);
        else
            tsi_parcel_push(&lane->pending, parcel);
    }
}

static bool offer(tsi_mpi_rank *rank, tsi_lane *lane)
{
    tsi_mpi_op *op = &lane->op;
    if (!tsi_op_build(rank, op, lane->first)) {
        tsi_poison_memory(rank, "an operation");
        return false;
    }
    op->stage = TSI_OP_OFFERED;
    tsi_slot_print(&rank->mpi->segment.slot[rank->place], &lane->first->print, true);
    if (!lane->active) {
        lane->active = true;
        lane->active_next = rank->active;
        rank->active = lane;
    }
    return tsi_op_offer(rank, op);
}

/* Who finds the poison and then nobody offering has all offers that will ever be made: whoever
 * offers later finds the poison himself (see await_offers). */
static bool begin(tsi_mpi_rank *rank, tsi_lane *lane)
{
    tsi_mpi_slot *slot = &rank->mpi->segment.slot[rank->place];
    TSI_ASSERT(lane->first != NULL && lane->op.stage == TSI_OP_IDLE); /* one at a time (INV-5) */
    atomic_store(&slot->offering, 1);
    atomic_thread_fence(memory_order_seq_cst);
    bool offered = !tsi_poisoned(rank) && offer(rank, lane);
    atomic_store(&slot->offering, 0);
    if (!offered) return false;
    replay(rank, lane);
    return !tsi_poisoned(rank);
}

/* The operation is complete on all sides; the owner may free it from here on. */
static void finish(tsi_mpi_rank *rank, tsi_lane *lane)
{
    tsi_work *work = lane->first;
    TSI_ASSERT(work != NULL && lane->op.work == work);
    tsi_op_clear(rank, &lane->op, false);
    lane->first = work->next;
    if (lane->first == NULL) lane->last = NULL;
    work->next = NULL;
    int64_t left = atomic_fetch_sub(&rank->works, 1) - 1;
    TSI_ASSERT(left >= 0);
    if (left == 0) tsi_slot_print(&rank->mpi->segment.slot[rank->place], NULL, false);
    rank->mpi->host->work_finish(work, TS_OK, -1, "%s", "");
}

/* What was read may have changed meanwhile: its owner, too, ends the operation where it finds the
 * poison, and goes on. */
static bool is_doubtful(const tsi_mpi_rank *rank, const tsi_mpi_op *op)
{
    bool read = false;
    atomic_thread_fence(memory_order_acquire);
    for (int64_t p = 0; tsi_poisoned(rank) && p < op->count; p++)
        read |= op->peer[p].read;
    return read;
}

/* Moves the lane's operation forward as far as it goes now. false: the world is poisoned. */
static bool advance(tsi_mpi_rank *rank, tsi_lane *lane, bool *progress)
{
    tsi_mpi_op *op = &lane->op;
    if (op->serves != NULL && !tsi_serve_run(rank, op, progress)) return false;
    if (op->stage == TSI_OP_OFFERED) {
        if (!tsi_jobs_run(rank, op, 0, progress)) return false;
        if (op->offers < op->offers_due) return true;
        op->stage = TSI_OP_MOVE;
    }
    if (op->stage == TSI_OP_MOVE) {
        if (op->jobs_left[0] > 0 && !tsi_jobs_run(rank, op, 0, progress)) return false;
        if (op->jobs_left[0] > 0) return true;
        if (op->two_phase && !tsi_op_ready(rank, op)) return false;
        op->stage = TSI_OP_GATHER;
        *progress = true;
    }
    if (op->stage == TSI_OP_GATHER) {
        if (op->jobs_left[1] > 0 && !tsi_jobs_run(rank, op, 1, progress)) return false;
        if (op->jobs_left[1] > 0) return true;
        if (!op->said_done && !tsi_op_done(rank, op)) return false;
        op->said_done = true;
        op->stage = TSI_OP_DRAIN;
        *progress = true;
    }
    if (op->stage == TSI_OP_DRAIN && op->dones == op->dones_due && op->serves == NULL) {
        if (is_doubtful(rank, op)) return false;
        finish(rank, lane);
        *progress = true;
        if (lane->first != NULL) return begin(rank, lane);
    }
    return true;
}

bool tsi_rank_post(tsi_mpi_rank *rank, tsi_work *work)
{
    int32_t kind = work->print.kind, channel = work->print.channel;
    int64_t peer = -1;
    if (kind == TSI_COMM_SEND || kind == TSI_COMM_RECV) {
        channel = kind == TSI_COMM_SEND ? TSI_CHANNEL_TO_SEND : TSI_CHANNEL_TO_RECV;
        peer = work->team->rank[work->print.root];
    }
    tsi_lane *lane = lane_find(rank, work->print.team, peer, channel);
    if (lane == NULL) return false;
    work->next = NULL;
    if (lane->last != NULL)
        lane->last->next = work;
    else
        lane->first = work;
    lane->last = work;
    atomic_fetch_add(&rank->works, 1);
    return lane->first != work || begin(rank, lane);
}

/* ---- in a poisoned world ----------------------------------------------------------------- */
/* Offers that were made before their rank could find the poison are on their way. */
static void await_offers(tsi_mpi_rank *rank, const tsi_mpi_op *op)
{
    const tsi_mpi *mpi = rank->mpi;
    int64_t end = tsi_clock_ns() + OFFERING_NS;
    atomic_thread_fence(memory_order_seq_cst);
    for (int64_t p = 0; p < op->count; p++) {
        int64_t place = mpi->place[op->peer[p].rank];
        if (p == op->self || op->peer[p].offered || place < 0) continue;
        while (atomic_load(&mpi->segment.slot[place].offering) && tsi_clock_ns() < end)
            (void)sched_yield();
    }
    (void)tsi_wire_receive(rank);
}

/* Is all that the operation takes here, and has everybody what it gives? */
static bool suffices(const tsi_mpi_op *op)
{
    if (op->offers < op->offers_due || op->dones < op->dones_due || op->serves != NULL)
        return false;
    for (int64_t j = 0; j < op->job_count; j++) {
        const tsi_job *job = &op->job[j];
        for (int64_t s = 0; s < job->source_count; s++) {
            int64_t member = job->source[s].member;
            if (member != op->self && op->peer[member].in[job->phase].data == NULL) return false;
        }
    }
    return true;
}

/* Two others may disagree on what they give each other in the operation: that is an error of all
 * its members. */
static bool is_disputed(const tsi_mpi_rank *rank, const tsi_mpi_op *op)
{
    int32_t kind = op->work->print.kind;
    bool pairs = kind == TSI_COMM_SCATTER || kind == TSI_COMM_GATHER ||
                 kind == TSI_COMM_ALL_TO_ALL || kind == TSI_COMM_EXCHANGE;
    return pairs && tsi_poison_of(rank)->rank == TSI_TWO_DISAGREE;
}

static void carry_out(tsi_mpi_rank *rank)
{
    for (tsi_lane *lane = rank->active; lane != NULL; lane = lane->active_next) {
        const tsi_work *work = lane->first;
        bool progress = lane->op.stage != TSI_OP_IDLE;
        if (!progress || is_disputed(rank, &lane->op)) continue;
        if (lane->op.offers < lane->op.offers_due) await_offers(rank, &lane->op);
        if (!suffices(&lane->op)) continue;
        while (progress && lane->first == work) {
            progress = false;
            (void)advance(rank, lane, &progress);
        }
    }
}

bool tsi_rank_progress(tsi_mpi_rank *rank)
{
    bool progress = tsi_net_progress(rank->mpi);
    progress |= tsi_wire_flush(rank);
    progress |= tsi_wire_receive(rank);
    for (tsi_lane **link = &rank->active; *link != NULL;) {
        tsi_lane *lane = *link;
        if (tsi_poisoned(rank) || !advance(rank, lane, &progress)) break;
        if (lane->op.stage == TSI_OP_IDLE) {
            *link = lane->active_next;
            lane->active = false;
        } else {
            link = &lane->active_next;
        }
    }
    if (tsi_poisoned(rank) && atomic_load(&rank->works) > 0) {
        carry_out(rank);
        tsi_rank_fail_all(rank, TS_OK, NULL);
        progress = true;
    }
    return progress;
}

/* ---- the end ----------------------------------------------------------------------------- */
static void fail_lane(tsi_mpi_rank *rank, tsi_lane *lane, ts_status status, int64_t culprit,
                      const char *text)
{
    char own[256];
    tsi_op_clear(rank, &lane->op, true);
    for (tsi_work *work; (work = lane->first) != NULL;) {
        lane->first = work->next;
        work->next = NULL;
        atomic_fetch_sub(&rank->works, 1);
        rank->mpi->host->fingerprint_text(&work->print, own, sizeof own);
        if (strstr(text, own) != NULL)
            rank->mpi->host->work_finish(work, status, culprit, "%s", text);
        else
            rank->mpi->host->work_finish(work, status, culprit, "%s; rank %lld was in %s", text,
                                         (long long)rank->index, own);
    }
    lane->last = NULL;
    lane->active = false;
    tsi_parcel_drop(rank->mpi, &lane->pending);
}

/* Ends every work with the status and text of the poison (status TS_OK), or with those given. */
void tsi_rank_fail_all(tsi_mpi_rank *rank, ts_status status, const char *text)
{
    int64_t culprit = rank->index;
    if (status == TS_OK) {
        const tsi_poison *poison = tsi_poison_of(rank);
        status = tsi_poison_status(rank);
        culprit = tsi_poison_culprit(rank);
        text = poison->text;
    }
    rank->active = NULL;
    for (size_t b = 0; b < TSI_LANE_BUCKETS; b++)
        for (tsi_lane *lane = rank->lane[b]; lane != NULL; lane = lane->next)
            fail_lane(rank, lane, status, culprit, text);
}

void tsi_rank_forget(tsi_mpi_rank *rank)
{
    for (size_t b = 0; b < TSI_LANE_BUCKETS; b++) {
        for (tsi_lane *lane; (lane = rank->lane[b]) != NULL;) {
            rank->lane[b] = lane->next;
            lane_free(rank, lane);
        }
    }
    for (int64_t i = 0; i < rank->mpi->segment.count; i++)
        tsi_parcel_drop(rank->mpi, &rank->outbox[i]);
    rank->outbox_count = 0;
}
