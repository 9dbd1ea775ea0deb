/* SPDX-License-Identifier: Apache-2.0 */
/* lane.c - the collectives of one team and channel, one after another.
 *
 *   post -> (pending) -> arrive -+- last one: check -+- small, or on one device: carried out at
 *                                |                   |  once by the last one
 *                                |                   +- large: RUN; waiters and helpers claim parts
 *   all parts done: the head moves on, every work is DONE, the meeting serves sequence + DEPTH
 *
 * Operation s meets in meeting[s % DEPTH]. A member may be DEPTH ahead; beyond that its works wait
 * in `pending` until the meeting is free. Nobody waits for a lock on the way of a blocking call.
 *
 * INV: operation s runs only when head == s; the head moves when all parts of s are done. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/intmath.h"
#include "comm/threads/threads.h"

static tsi_meeting *meeting_of(tsi_lane *lane, uint64_t sequence)
{
    return &lane->meeting[sequence % TSI_LANE_DEPTH];
}

static uint64_t turn_of(uint64_t sequence, tsi_phase phase)
{
    return sequence << 2 | (uint64_t)phase;
}

/* ---- the end of an operation ----------------------------------------------------------------- */

/* Pending works whose meeting became free arrive now. Under the lock, so that a rank that withdraws
 * finds its work either in the list or arrived. */
static bool arrive(tsi_lane *lane, tsi_meeting *m, tsi_work *work);

static void admit_pending(tsi_lane *lane, tsi_meeting *m, uint64_t sequence)
{
    pthread_mutex_lock(&lane->lock);
    tsi_work **link = &lane->pending;
    while (*link != NULL) {
        tsi_work *work = *link;
        if (work->print.sequence != sequence) {
            link = &work->next;
            continue;
        }
        *link = work->next;
        atomic_fetch_sub_explicit(&lane->pending_count, 1, memory_order_seq_cst);
        (void)arrive(lane, m, work); /* poisoned: the engine is at fault and its rank withdraws */
    }
    pthread_mutex_unlock(&lane->lock);
}

/* The status of one member when the operation failed: the culprit has the cause, its peers the
 * news. */
static ts_status status_for(const tsi_meeting *m, const tsi_work *work)
{
    return m->culprit == work->rank->index ? m->status : TS_ERR_PEER;
}

static void complete(tsi_lane *lane, tsi_meeting *m, uint64_t sequence, int64_t parts)
{
    tsi_threads *engine = lane->hall->engine;
    int64_t size = lane->hall->team->size;
    /* One thread decides a turn or runs its last part, and nobody else is here: the head is ours to
     * move (INV-5). */
    TSI_ASSERT(atomic_load_explicit(&lane->head, memory_order_relaxed) == sequence);
    bool failed = atomic_load_explicit(&m->failed, memory_order_acquire) != 0;
    if (failed) tsi_threads_fault(engine, m->culprit, m->status, m->text);
    tsi_lane_moved(lane, m, parts, failed);
    atomic_store_explicit(&lane->head, sequence + 1, memory_order_seq_cst);
    for (int64_t i = 0; i < size; i++) {
        tsi_work *work = m->work[i];
        if (failed)
            tsi_threads_finish(engine, work, status_for(m, work), m->culprit, m->text);
        else
            tsi_threads_finish(engine, work, TS_OK, -1, "");
    }
    atomic_store_explicit(&m->failed, 0, memory_order_relaxed);
    atomic_store_explicit(&m->on_device, 0, memory_order_relaxed);
    atomic_store_explicit(&m->done, 0, memory_order_relaxed);
    atomic_store_explicit(&m->asynchronous, 0, memory_order_relaxed);
    atomic_store_explicit(&m->arrived, 0, memory_order_release); /* after DONE: see poison */
    uint64_t next = sequence + TSI_LANE_DEPTH;
    atomic_store_explicit(&m->turn, turn_of(next, TSI_PHASE_GATHER), memory_order_seq_cst);
    if (atomic_load_explicit(&lane->pending_count, memory_order_seq_cst) != 0)
        admit_pending(lane, m, next);
}

static void fail_meeting(tsi_meeting *m, ts_status status, int64_t culprit, const char *text)
{
    uint32_t nobody = 0;
    if (!atomic_compare_exchange_strong_explicit(&m->failed, &nobody, 1, memory_order_acq_rel,
                                                 memory_order_relaxed))
        return;
    m->status = status;
    m->culprit = culprit;
    (void)snprintf(m->text, sizeof m->text, "%s", text);
}

/* ---- parts ----------------------------------------------------------------------------------- */

static void run_part(tsi_lane *lane, tsi_meeting *m, int64_t part, int64_t parts)
{
    char text[sizeof m->text];
    if (atomic_load_explicit(&m->failed, memory_order_relaxed) != 0) return;
    ts_status status = tsi_lane_move(lane, m, part, parts, text, sizeof text);
    if (status == TS_OK) return;
    int64_t culprit = status == TS_ERR_PEER ? -1 : lane->hall->team->rank[part];
    fail_meeting(m, status, culprit, text);
}

/* Every part is claimed once in its sequence: the claim of a thread that fell asleep for a whole
 * turn of the ring finds a newer number and fails. */
static bool claim(tsi_meeting *m, uint64_t sequence, int64_t part)
{
    uint32_t before = (uint32_t)(sequence - TSI_LANE_DEPTH);
    return atomic_compare_exchange_strong_explicit(&m->claimed[part], &before, (uint32_t)sequence,
                                                   memory_order_acq_rel, memory_order_relaxed);
}

/* The next part that nobody was offered, or -1. */
static int64_t next_part(tsi_meeting *m, uint64_t sequence, int64_t parts)
{
    uint64_t cursor = atomic_load_explicit(&m->cursor, memory_order_acquire);
    for (;;) {
        if (cursor >> 32 != (uint32_t)sequence || (int64_t)(uint32_t)cursor >= parts) return -1;
        if (atomic_compare_exchange_weak_explicit(&m->cursor, &cursor, cursor + 1,
                                                  memory_order_acq_rel, memory_order_acquire))
            return (int64_t)(uint32_t)cursor;
    }
}

static void drive(tsi_lane *lane);

static void run_claimed(tsi_lane *lane, tsi_meeting *m, uint64_t sequence, int64_t part)
{
    int64_t parts = lane->hall->team->size;
    run_part(lane, m, part, parts);
    int64_t done = (int64_t)atomic_fetch_add_explicit(&m->done, 1, memory_order_acq_rel) + 1;
    TSI_ASSERT(done <= parts); /* a part that ran twice would end works that are read (INV-4) */
    if (done < parts) return;
    complete(lane, m, sequence, parts);
    drive(lane);
}

bool tsi_lane_has_parts(tsi_lane *lane)
{
    uint64_t sequence = atomic_load_explicit(&lane->head, memory_order_seq_cst);
    tsi_meeting *m = meeting_of(lane, sequence);
    if (atomic_load_explicit(&m->turn, memory_order_seq_cst) != turn_of(sequence, TSI_PHASE_RUN))
        return false;
    uint64_t cursor = atomic_load_explicit(&m->cursor, memory_order_relaxed);
    return cursor >> 32 == (uint32_t)sequence && (int64_t)(uint32_t)cursor < lane->hall->team->size;
}

/* Rings up to `most` members that sleep in this lane; true: there was one. One who sleeps elsewhere
 * would run no parts: *elsewhere is set, else it stays. */
static TSI_STEP_PATH bool ring_sleepers(tsi_lane *lane, int64_t most, bool *elsewhere)
{
    tsi_threads *engine = lane->hall->engine;
    const tsi_team *team = lane->hall->team;
    int64_t rang = 0;
    for (int64_t i = 0; i < team->size && rang < most; i++) {
        tsi_chair *chair = &engine->chair[team->rank[i] - engine->world->first_index];
        if (!atomic_load_explicit(&chair->sleeping, memory_order_seq_cst)) continue;
        if (atomic_load_explicit(&chair->lane, memory_order_acquire) == lane) {
            rang += tsi_chair_ring(chair);
        } else {
            *elsewhere = true;
        }
    }
    return rang > 0;
}

bool tsi_lane_help(tsi_lane *lane, int64_t member)
{
    enum { RINGS = 2 }; /* so that those who sleep are awake after few turns */
    uint64_t sequence = atomic_load_explicit(&lane->head, memory_order_seq_cst);
    tsi_meeting *m = meeting_of(lane, sequence);
    int64_t parts = lane->hall->team->size, part;
    if (atomic_load_explicit(&m->turn, memory_order_seq_cst) != turn_of(sequence, TSI_PHASE_RUN))
        return false;
    bool ran = false, elsewhere = false;
    if (member >= 0 && claim(m, sequence, member)) {
        ran = true;
        if (parts > RINGS) (void)ring_sleepers(lane, RINGS, &elsewhere);
        run_claimed(lane, m, sequence, member);
    }
    while ((part = next_part(m, sequence, parts)) >= 0) {
        if (!claim(m, sequence, part)) continue;
        ran = true;
        run_claimed(lane, m, sequence, part);
    }
    return ran;
}

/* ---- a full meeting -------------------------------------------------------------------------- */

/* Everybody is there and nobody leaves before it is decided, so the works can be compared. */
static TSI_STEP_PATH bool members_agree(tsi_lane *lane, tsi_meeting *m)
{
    int64_t size = lane->hall->team->size;
    bool pairs = m->work[0]->print.kind == TSI_COMM_ALL_TO_ALL;
    int64_t root = m->work[0]->print.root;
    int64_t reference = root >= 0 && root < size ? root : 0;
    for (int64_t k = 0; k < (pairs ? size : 1); k++) {
        int64_t r = pairs ? k : reference;
        for (int64_t i = pairs ? r + 1 : 0; i < size; i++) {
            char text[sizeof m->text];
            if (i == r || tsi_work_agree(m->work[r], m->work[i], text, sizeof text)) continue;
            fail_meeting(m, TS_ERR_PEER, -1, text);
            return false;
        }
    }
    return true;
}

/* Bytes that the whole operation writes, or a number that is certainly too large. */
static int64_t bytes_moved(const tsi_lane *lane, const tsi_meeting *m)
{
    const tsi_work *first = m->work[0];
    int64_t size = lane->hall->team->size;
    if (first->lending) return 0; /* addresses */
    int64_t each = first->print.count * (int64_t)ts_dtype_size((ts_dtype)first->print.dtype);
    switch ((tsi_comm_kind)first->print.kind) {
    case TSI_COMM_BARRIER:
        return 0;
    case TSI_COMM_REDUCE:
    case TSI_COMM_REDUCE_SCATTER:
        return each; /* count is that of the full array */
    case TSI_COMM_BROADCAST:
    case TSI_COMM_ALL_GATHER:
    case TSI_COMM_ALL_REDUCE:
        return each * size;
    case TSI_COMM_SCATTER:
    case TSI_COMM_GATHER:
    case TSI_COMM_ALL_TO_ALL:
    case TSI_COMM_EXCHANGE:
    case TSI_COMM_SEND:
    case TSI_COMM_RECV:
    case TSI_COMM_KIND_COUNT:
        break;
    }
    int64_t total = 0; /* members differ */
    for (int64_t i = 0; i < size && total <= lane->hall->engine->inline_bytes; i++)
        total += tsi_work_bytes_received(m->work[i]) + 64;
    return total;
}

static void ask_helpers(tsi_lane *lane)
{
    tsi_threads *engine = lane->hall->engine;
    pthread_mutex_lock(&engine->ready_lock);
    if (!lane->ready_queued) {
        lane->ready_queued = true;
        lane->ready_next = engine->ready;
        engine->ready = lane;
    }
    pthread_mutex_unlock(&engine->ready_lock);
    tsi_comm_kick(engine->world, lane->hall->team->size);
}

/* One member that sleeps in this lane is told that there are parts to run, and tells more of them
 * (tsi_lane_help): waking is a call of the system, and who opens the parts has work of his own.
 * Helpers are asked if a member may be away for long, or is away while a core may be idle: there
 * are more of them than ranks, or a member sleeps elsewhere. Else members carry the parts out when
 * they wait: a helper would only take their cores. */
static void announce(tsi_lane *lane, tsi_meeting *m)
{
    const tsi_threads *engine = lane->hall->engine;
    uint32_t absent = atomic_load_explicit(&m->asynchronous, memory_order_relaxed);
    bool elsewhere = false, rang = ring_sleepers(lane, 1, &elsewhere);
    bool idle = engine->cores > engine->world->local_count || (elsewhere && !rang);
    if (absent & TSI_ABSENT || (absent && idle)) ask_helpers(lane);
}

static void open_parts(tsi_lane *lane, tsi_meeting *m, uint64_t sequence)
{
    for (int64_t i = 0; i < lane->hall->team->size; i++)
        atomic_store_explicit(&m->claimed[i], (uint32_t)(sequence - TSI_LANE_DEPTH),
                              memory_order_relaxed);
    tsi_lane_parted(lane, m);
    atomic_store_explicit(&m->cursor, (sequence & UINT32_MAX) << 32, memory_order_release);
    atomic_store_explicit(&m->turn, turn_of(sequence, TSI_PHASE_RUN), memory_order_seq_cst);
    announce(lane, m);
}

/* Starts the operation whose turn it is, if all members are there; and those after it that are
 * small. */
static TSI_STEP_PATH void drive(tsi_lane *lane)
{
    for (;;) {
        uint64_t sequence = atomic_load_explicit(&lane->head, memory_order_seq_cst);
        tsi_meeting *m = meeting_of(lane, sequence);
        uint64_t gather = turn_of(sequence, TSI_PHASE_GATHER);
        if (atomic_load_explicit(&m->turn, memory_order_seq_cst) != gather) return;
        if (atomic_load_explicit(&m->arrived, memory_order_seq_cst) !=
            (uint32_t)lane->hall->team->size)
            return;
        if (!atomic_compare_exchange_strong_explicit(&m->turn, &gather,
                                                     turn_of(sequence, TSI_PHASE_CHECK),
                                                     memory_order_seq_cst, memory_order_relaxed))
            return; /* another thread saw it too */
        if (members_agree(lane, m)) {
            if (bytes_moved(lane, m) > lane->hall->engine->inline_bytes &&
                !tsi_lane_one_stream(lane, m)) {
                open_parts(lane, m, sequence);
                return;
            }
            run_part(lane, m, 0, 1);
        }
        complete(lane, m, sequence, 1);
    }
}

/* ---- arriving and withdrawing ---------------------------------------------------------------- */

/* True: in. The last one does not drive here, because the caller may hold the lock. */
static TSI_STEP_PATH bool arrive(tsi_lane *lane, tsi_meeting *m, tsi_work *work)
{
    /* It serves this operation until this member, too, was there: see put_pending. */
    TSI_ASSERT(atomic_load_explicit(&m->turn, memory_order_seq_cst) >> 2 == work->print.sequence);
    TSI_ASSERT(work->member >= 0 && work->member < lane->hall->team->size);
    m->work[work->member] = work;
    atomic_store_explicit(&m->stamp[work->member], (uint32_t)work->print.sequence,
                          memory_order_relaxed);
    if (work->asynchronous)
        atomic_fetch_or_explicit(&m->asynchronous,
                                 work->awaited ? TSI_ABSENT_SOON_BACK : TSI_ABSENT,
                                 memory_order_relaxed);
    if (!work->device->host_readable) atomic_store_explicit(&m->on_device, 1, memory_order_relaxed);
    uint32_t before = atomic_fetch_add_explicit(&m->arrived, 1, memory_order_seq_cst);
    return (before & TSI_POISONED) == 0;
}

static bool is_open(const tsi_meeting *m, uint64_t sequence)
{
    return atomic_load_explicit(&m->turn, memory_order_seq_cst) >> 2 == sequence;
}

/* True: put into the list; false: the meeting became free meanwhile. */
static bool put_pending(tsi_lane *lane, tsi_meeting *m, tsi_work *work)
{
    pthread_mutex_lock(&lane->lock);
    atomic_fetch_add_explicit(&lane->pending_count, 1, memory_order_seq_cst);
    bool free = is_open(m, work->print.sequence);
    if (free) {
        atomic_fetch_sub_explicit(&lane->pending_count, 1, memory_order_seq_cst);
    } else {
        work->next = lane->pending;
        lane->pending = work;
    }
    pthread_mutex_unlock(&lane->lock);
    return !free;
}

TSI_STEP_PATH bool tsi_lane_post(tsi_lane *lane, tsi_work *work)
{
    tsi_meeting *m = meeting_of(lane, work->print.sequence);
    if (!is_open(m, work->print.sequence) && put_pending(lane, m, work)) return true;
    if (!arrive(lane, m, work)) return false;
    drive(lane);
    return true;
}

static bool take_pending(tsi_lane *lane, const tsi_work *work)
{
    bool found = false;
    pthread_mutex_lock(&lane->lock);
    for (tsi_work **link = &lane->pending; *link != NULL && !found; link = &(*link)->next) {
        if (*link != work) continue;
        *link = work->next;
        atomic_fetch_sub_explicit(&lane->pending_count, 1, memory_order_seq_cst);
        found = true;
        break;
    }
    pthread_mutex_unlock(&lane->lock);
    return found;
}

/* True: it will never be full. */
static bool poison(tsi_meeting *m, uint32_t full)
{
    uint32_t arrived = atomic_load_explicit(&m->arrived, memory_order_seq_cst);
    while (arrived != full && !(arrived & TSI_POISONED))
        if (atomic_compare_exchange_weak_explicit(&m->arrived, &arrived, arrived | TSI_POISONED,
                                                  memory_order_seq_cst, memory_order_seq_cst))
            return true;
    return arrived != full;
}

/* A meeting that was complete when it was poisoned had been emptied for a later operation, which
 * the fault ends as well; whoever saw it empty sees that this work is DONE. */
bool tsi_lane_withdraw(tsi_lane *lane, tsi_work *work)
{
    if (take_pending(lane, work)) return true;
    tsi_meeting *m = meeting_of(lane, work->print.sequence);
    if (!is_open(m, work->print.sequence)) return false; /* it is complete */
    if (!poison(m, (uint32_t)lane->hall->team->size)) return false;
    return atomic_load_explicit(&work->state, memory_order_seq_cst) != TSI_WORK_DONE;
}

static bool has_come(tsi_meeting *m, uint64_t sequence, int64_t member)
{
    return atomic_load_explicit(&m->stamp[member], memory_order_relaxed) == (uint32_t)sequence;
}

bool tsi_lane_lacks(tsi_lane *lane, uint64_t sequence, int64_t member)
{
    for (uint64_t s = atomic_load_explicit(&lane->head, memory_order_seq_cst); s <= sequence; s++) {
        tsi_meeting *m = meeting_of(lane, s);
        if (is_open(m, s) && !has_come(m, s, member)) return true;
    }
    return false;
}

uint64_t tsi_lane_missing(tsi_lane *lane, uint64_t sequence, int64_t *missing, int64_t most,
                          int64_t *count)
{
    *count = 0;
    uint64_t s = atomic_load_explicit(&lane->head, memory_order_seq_cst);
    for (; s <= sequence; s++) {
        tsi_meeting *m = meeting_of(lane, s);
        if (!is_open(m, s)) continue;
        for (int64_t i = 0; i < lane->hall->team->size; i++) {
            if (has_come(m, s, i)) continue;
            if (*count < most) missing[*count] = i;
            ++*count;
        }
        if (*count > 0) return s;
    }
    return 0;
}

/* ---- making ---------------------------------------------------------------------------------- */

/* The first sequence number is 1; meeting 0 therefore serves DEPTH first. */
void tsi_lane_reset(tsi_lane *lane)
{
    int64_t size = lane->hall->team->size;
    tsi_lane_movers_end(lane);
    lane->pending = NULL;
    atomic_store_explicit(&lane->pending_count, 0, memory_order_relaxed);
    atomic_store_explicit(&lane->head, 1, memory_order_relaxed);
    for (uint64_t k = 0; k < TSI_LANE_DEPTH; k++) {
        tsi_meeting *m = &lane->meeting[k];
        uint64_t first = k == 0 ? TSI_LANE_DEPTH : k;
        for (int64_t i = 0; i < size; i++) {
            m->work[i] = NULL;
            atomic_store_explicit(&m->claimed[i], 0, memory_order_relaxed);
            atomic_store_explicit(&m->stamp[i], 0, memory_order_relaxed);
        }
        atomic_store_explicit(&m->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&m->asynchronous, 0, memory_order_relaxed);
        atomic_store_explicit(&m->on_device, 0, memory_order_relaxed);
        atomic_store_explicit(&m->done, 0, memory_order_relaxed);
        atomic_store_explicit(&m->failed, 0, memory_order_relaxed);
        atomic_store_explicit(&m->cursor, 0, memory_order_relaxed);
        atomic_store_explicit(&m->turn, turn_of(first, TSI_PHASE_GATHER), memory_order_seq_cst);
    }
}

static tsi_lane *lane_create(tsi_hall *hall)
{
    size_t size = (size_t)hall->team->size;
    size_t arrays = TSI_LANE_DEPTH * size * (sizeof(tsi_work *) + 2 * sizeof(uint32_t)) +
                    size * sizeof(tsi_mover);
    tsi_lane *lane = tsi_alloc_aligned(sizeof *lane + arrays, TSI_CACHE_LINE);
    if (lane == NULL) return NULL;
    memset((void *)lane, 0, sizeof *lane + arrays);
    lane->hall = hall;
    pthread_mutex_init(&lane->lock, NULL);
    lane->mover = (tsi_mover *)(void *)(lane + 1);
    tsi_work **work = (tsi_work **)(void *)(lane->mover + size);
    _Atomic uint32_t *number = (_Atomic uint32_t *)(void *)(work + TSI_LANE_DEPTH * size);
    for (size_t k = 0; k < TSI_LANE_DEPTH; k++) {
        lane->meeting[k].work = work + k * size;
        lane->meeting[k].claimed = number + 2 * k * size;
        lane->meeting[k].stamp = number + (2 * k + 1) * size;
    }
    tsi_lane_reset(lane);
    return lane;
}

void tsi_lane_destroy(tsi_lane *lane)
{
    if (lane == NULL) return;
    tsi_lane_movers_end(lane);
    pthread_mutex_destroy(&lane->lock);
    tsi_free(lane);
}

tsi_lane *tsi_lane_of(tsi_hall *hall, int32_t channel)
{
    tsi_lane *lane = atomic_load_explicit(&hall->lane[channel], memory_order_acquire);
    if (lane != NULL) return lane;
    tsi_lane *made = lane_create(hall);
    if (made == NULL) return NULL;
    if (atomic_compare_exchange_strong_explicit(&hall->lane[channel], &lane, made,
                                                memory_order_acq_rel, memory_order_acquire))
        return made;
    tsi_lane_destroy(made); /* another member was faster */
    return lane;
}
