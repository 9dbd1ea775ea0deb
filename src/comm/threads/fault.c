/* SPDX-License-Identifier: Apache-2.0 */
/* fault.c - failures of the threads engine: said once, heard by everybody.
 *
 * A rank that fails, a rank that ended while others wait for it, members that disagree, a deadline:
 * each puts the engine at fault, with a culprit and a sentence. Every rank that waits then wakes
 * up, withdraws and returns TS_ERR_PEER with that sentence and with what it was doing itself. Only
 * recover, called by all ranks, ends the fault.
 *
 * INV: fault and fault_text are written once, before `faulty` is set, and again only when all ranks
 * are in recover. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/compiler.h"
#include "base/intmath.h"
#include "comm/chain.h"
#include "comm/threads/threads.h"

enum { NAMED_MAX = 4 }; /* missing ranks that a sentence names */

TSI_STEP_PATH bool tsi_threads_faulty(const tsi_threads *engine)
{
    return atomic_load_explicit(&engine->faulty, memory_order_seq_cst) != 0;
}

static void ring_everybody(tsi_threads *engine)
{
    for (int64_t i = 0; i < engine->world->local_count; i++)
        (void)tsi_chair_ring(&engine->chair[i]);
}

void tsi_threads_fault(tsi_threads *engine, int64_t culprit, ts_status status, const char *sentence)
{
    pthread_mutex_lock(&engine->lock);
    bool first = !tsi_threads_faulty(engine);
    if (first) {
        (void)snprintf(engine->fault_text, sizeof engine->fault_text, "%s", sentence);
        engine->fault = (ts_error){
            .status = status, .rank = culprit, .event = -1, .where = "", .text = engine->fault_text
        };
        atomic_store_explicit(&engine->faulty, 1, memory_order_seq_cst);
    }
    pthread_mutex_unlock(&engine->lock);
    if (first) ring_everybody(engine);
}

ts_status tsi_fault_status(const tsi_threads *engine)
{
    return engine->fault.status == TS_ERR_INTERRUPTED ? TS_ERR_INTERRUPTED : TS_ERR_PEER;
}

TSI_STEP_PATH bool tsi_threads_interrupted(const tsi_threads *engine)
{
    return atomic_load_explicit(&engine->world->interrupted, memory_order_seq_cst) != 0 &&
           !tsi_threads_faulty(engine);
}

/* Said by the first rank that waits or comes: the one who interrupts may be a signal handler, which
 * may take no lock. */
void tsi_fault_interrupted(tsi_threads *engine, const ts_rank *rank)
{
    char text[80];
    (void)snprintf(text, sizeof text, "the world was interrupted (seen by rank %" PRId64 ")",
                   rank->index);
    tsi_threads_fault(engine, rank->index, TS_ERR_INTERRUPTED, text);
}

void tsi_threads_interrupt(void *state)
{
    ring_everybody(state);
}

void tsi_fault_text(const tsi_threads *engine, const tsi_work *work, char *out, size_t size)
{
    char doing[280];
    tsi_fingerprint_text(&work->print, doing, sizeof doing);
    (void)snprintf(out, size, "%.700s; rank %" PRId64 " was in %s", engine->fault_text,
                   work->rank->index, doing);
}

/* ---- whom does a work wait for? -------------------------------------------------------------- */

/* Members that have not come, at most `most` of them; returns how many there are. */
static int64_t missing_members(const tsi_work *work, int64_t *missing, int64_t most)
{
    if (work->print.kind == TSI_COMM_SEND || work->print.kind == TSI_COMM_RECV) {
        if (atomic_load_explicit(&work->state, memory_order_seq_cst) != TSI_WORK_POSTED) return 0;
        missing[0] = work->print.root;
        return 1;
    }
    int64_t count = 0;
    (void)tsi_lane_missing(work->engine_state, work->print.sequence, missing, most, &count);
    return count;
}

/* The first rank that a rank which sleeps waits for, or -1: one that was rung may have what it
 * waits for. It may wake up meanwhile: this is for words only. */
static int64_t waits_for(const void *state, int64_t rank)
{
    const tsi_threads *engine = state;
    const tsi_chair *chair = &engine->chair[rank - engine->world->first_index];
    if (!atomic_load_explicit(&chair->sleeping, memory_order_seq_cst) ||
        atomic_load_explicit(&chair->rung, memory_order_seq_cst))
        return -1;
    tsi_lane *lane = atomic_load_explicit(&chair->lane, memory_order_acquire);
    if (lane == NULL) return atomic_load_explicit(&chair->peer, memory_order_acquire);
    uint64_t sequence = atomic_load_explicit(&chair->sequence, memory_order_acquire);
    int64_t member = -1, count = 0;
    (void)tsi_lane_missing(lane, sequence, &member, 1, &count);
    return count > 0 ? lane->hall->team->rank[member] : -1;
}

/* "rank 1 (last: barrier #3, ended 2.0 s ago)". */
static int name(const void *state, int64_t rank, char *out, size_t size)
{
    const tsi_threads *engine = state;
    char doing[120];
    tsi_rank_doing(engine->world->rank[rank - engine->world->first_index], doing, sizeof doing);
    return snprintf(out, size, "rank %" PRId64 " (last: %s)", rank, doing);
}

static tsi_chain chain_of(const tsi_threads *engine, int64_t self, int64_t needed)
{
    return (tsi_chain){ engine, waits_for, name, engine->world->local_count, self, needed };
}

/* Who is to blame, -1 where it is a circle; what to say of it before the sentence, and after. */
static int64_t blame(const tsi_chain *chain, char *first, size_t size, char *last, size_t last_size)
{
    bool circle = false;
    int64_t end = tsi_chain_end(chain, &circle);
    first[0] = last[0] = '\0';
    if (circle) {
        tsi_chain_circle(chain, end, chain->needed, first, size, last, last_size);
        return -1;
    }
    if (end == chain->needed) return end;
    int used = name(chain->context, end, first, size);
    (void)snprintf(first + used, size - (size_t)used,
                   " keeps rank %" PRId64 " waiting: ", chain->needed);
    return end;
}

/* The first few of them. */
static void name_missing(const tsi_threads *engine, const tsi_team *team, const int64_t *missing,
                         int64_t count, char *out, size_t size)
{
    int length = 0;
    for (int64_t i = 0; i < tsi_min_i64(count, NAMED_MAX); i++) {
        if (i > 0) length += snprintf(out + length, size - (size_t)length, ", ");
        length += name(engine, team->rank[missing[i]], out + length, size - (size_t)length);
    }
    if (count > NAMED_MAX)
        (void)snprintf(out + length, size - (size_t)length, " and %" PRId64 " more",
                       count - NAMED_MAX);
}

static void say_stalled(tsi_threads *engine, const tsi_chain *chain, int64_t waited_ms,
                        const char *doing, const char *whom)
{
    char text[2200], first[240], last[768];
    int64_t culprit = blame(chain, first, sizeof first, last, sizeof last);
    (void)snprintf(text, sizeof text, "%srank %" PRId64 " waited %" PRId64 " ms in %s for %s%s",
                   first, chain->self, waited_ms, doing, whom, last);
    tsi_threads_fault(engine, culprit, TS_ERR_PEER, text);
}

void tsi_fault_stalled(tsi_threads *engine, const tsi_work *work)
{
    int64_t missing[NAMED_MAX];
    int64_t count = missing_members(work, missing, NAMED_MAX);
    if (count == 0) return; /* all came: it goes on */
    char doing[280], whom[768];
    tsi_chain chain = chain_of(engine, work->rank->index, work->team->rank[missing[0]]);
    tsi_fingerprint_text(&work->print, doing, sizeof doing);
    name_missing(engine, work->team, missing, count, whom, sizeof whom);
    say_stalled(engine, &chain, work->timeout_ms, doing, whom);
}

static void say_gone(tsi_threads *engine, int64_t rank, int64_t self, const char *doing)
{
    char text[480];
    (void)snprintf(text, sizeof text,
                   "rank %" PRId64 " has finished, but rank %" PRId64 " waits for it in %s", rank,
                   self, doing);
    tsi_threads_fault(engine, rank, TS_ERR_PEER, text);
}

/* It sits in no operation, and sleeps elsewhere: nobody wakes it by its chair. */
void tsi_threads_awaits(void *state, ts_rank *rank, int64_t peer)
{
    tsi_chair *chair = tsi_chair_of(state, rank);
    atomic_store_explicit(&chair->hall, NULL, memory_order_release);
    atomic_store_explicit(&chair->lane, NULL, memory_order_release);
    atomic_store_explicit(&chair->peer, peer, memory_order_release);
    atomic_store_explicit(&chair->rung, 0, memory_order_seq_cst);
    atomic_store_explicit(&chair->sleeping, peer >= 0, memory_order_seq_cst);
}

void tsi_threads_unmet(void *state, ts_rank *rank, int64_t peer, int64_t waited_ms,
                       const char *doing)
{
    char whom[160];
    tsi_chain chain = chain_of(state, rank->index, peer);
    if (waited_ms == 0) {
        say_gone(state, peer, rank->index, doing);
        return;
    }
    (void)name(state, peer, whom, sizeof whom);
    say_stalled(state, &chain, waited_ms, doing, whom);
}

static bool lacks(const tsi_work *work, int64_t member)
{
    if (work->print.kind == TSI_COMM_SEND || work->print.kind == TSI_COMM_RECV) {
        int64_t peer = -1;
        return missing_members(work, &peer, 1) > 0 && peer == member;
    }
    return tsi_lane_lacks(work->engine_state, work->print.sequence, member);
}

bool tsi_fault_gone(tsi_threads *engine, const tsi_work *work)
{
    for (int64_t i = 0; i < work->team->size; i++) {
        int64_t rank = work->team->rank[i];
        const tsi_chair *chair = &engine->chair[rank - engine->world->first_index];
        if (!atomic_load_explicit(&chair->gone, memory_order_seq_cst) || !lacks(work, i)) continue;
        char doing[280];
        tsi_fingerprint_text(&work->print, doing, sizeof doing);
        say_gone(engine, rank, work->rank->index, doing);
        return true;
    }
    return false;
}

/* ---- leaving --------------------------------------------------------------------------------- */

static bool has_member(const tsi_team *team, int64_t rank)
{
    if (rank < team->size && team->rank[rank] == rank) return true; /* all of the world */
    for (int64_t i = 0; i < team->size; i++)
        if (team->rank[i] == rank) return true;
    return false;
}

/* Those who sleep in an operation of a team that has the rank look whether they wait for it. */
void tsi_threads_gone(void *state, ts_rank *rank)
{
    tsi_threads *engine = state;
    tsi_chair *own = tsi_chair_of(engine, rank);
    if (atomic_exchange_explicit(&own->gone, 1, memory_order_seq_cst)) return;
    atomic_fetch_add_explicit(&engine->departures, 1, memory_order_seq_cst);
    for (int64_t i = 0; i < engine->world->local_count; i++) {
        tsi_chair *chair = &engine->chair[i];
        if (!atomic_load_explicit(&chair->sleeping, memory_order_seq_cst)) continue;
        tsi_hall *hall = atomic_load_explicit(&chair->hall, memory_order_acquire);
        if (hall == NULL || has_member(hall->team, rank->index)) (void)tsi_chair_ring(chair);
    }
}

void tsi_threads_leave(void *state, ts_rank *rank, ts_status status, const char *sentence)
{
    if (status == TS_OK) {
        tsi_threads_gone(state, rank);
        return;
    }
    char text[700];
    const char *colon = sentence[0] != '\0' ? ": " : "";
    (void)snprintf(text, sizeof text, "rank %" PRId64 " failed (%s)%s%s", rank->index,
                   ts_status_name(status), colon, sentence);
    tsi_threads_fault(state, rank->index, status, text);
}

/* ---- recovering ------------------------------------------------------------------------------ */

static void reset_halls(tsi_threads *engine)
{
    for (tsi_hall *hall = engine->halls; hall != NULL; hall = hall->next) {
        for (int32_t c = 0; c < TS_CHANNEL_COUNT; c++) {
            tsi_lane *lane = atomic_load_explicit(&hall->lane[c], memory_order_acquire);
            if (lane != NULL) tsi_lane_reset(lane);
        }
        tsi_inboxes_reset(atomic_load_explicit(&hall->inbox, memory_order_acquire),
                          hall->team->size);
    }
}

/* Every rank is in recover, so only helpers may still be on their way out of an operation. */
static void new_epoch(tsi_threads *engine)
{
    TSI_ASSERT(engine->recovering == engine->world->local_count);
    pthread_mutex_lock(&engine->ready_lock);
    for (tsi_lane *lane = engine->ready; lane != NULL; lane = lane->ready_next)
        lane->ready_queued = false;
    engine->ready = NULL;
    engine->pairs = NULL;
    pthread_mutex_unlock(&engine->ready_lock);
    tsi_word nothing = 0;
    while (atomic_load_explicit(&engine->busy, memory_order_seq_cst) != 0)
        (void)tsi_wait_word(&nothing, 0, 0, tsi_clock_ns() + 20000);
    reset_halls(engine);
    engine->recovering = 0;
    engine->lost_text[0] = '\0';
    atomic_store_explicit(&engine->faulty, 0, memory_order_seq_cst);
    atomic_fetch_add_explicit(&engine->epoch, 1, memory_order_seq_cst);
}

static int64_t first_gone(const tsi_threads *engine)
{
    if (atomic_load_explicit(&engine->departures, memory_order_seq_cst) == 0) return -1;
    for (int64_t i = 0; i < engine->world->local_count; i++)
        if (atomic_load_explicit(&engine->chair[i].gone, memory_order_seq_cst))
            return engine->world->first_index + i;
    return -1;
}

/* Sleeps until the epoch changes, somebody leaves, or the deadline (false). */
static bool wait_epoch(tsi_threads *engine, tsi_chair *chair, uint32_t epoch, int64_t deadline_ns)
{
    bool in_time = true;
    atomic_store_explicit(&chair->hall, NULL, memory_order_release);
    atomic_store_explicit(&chair->lane, NULL, memory_order_release);
    atomic_store_explicit(&chair->peer, -1, memory_order_release);
    atomic_store_explicit(&chair->sleeping, 1, memory_order_seq_cst);
    uint32_t word = atomic_load_explicit(&chair->word, memory_order_seq_cst);
    if (atomic_load_explicit(&engine->epoch, memory_order_seq_cst) == epoch &&
        first_gone(engine) < 0)
        in_time = tsi_wait_word(&chair->word, word, 0, deadline_ns);
    atomic_store_explicit(&chair->sleeping, 0, memory_order_seq_cst);
    return in_time;
}

/* Those that are not in recover: "rank 1 (last: ...), rank 2 (last: ...)". */
static void name_absent(const tsi_threads *engine, char *out, size_t size)
{
    int64_t count = 0;
    int used = 0;
    out[0] = '\0';
    for (int64_t i = 0; i < engine->world->local_count; i++) {
        if (atomic_load_explicit(&engine->chair[i].recovers, memory_order_seq_cst)) continue;
        if (++count > NAMED_MAX) continue;
        if (count > 1) used += snprintf(out + used, size - (size_t)used, ", ");
        used += name(engine, engine->world->first_index + i, out + used, size - (size_t)used);
    }
    if (count > NAMED_MAX)
        (void)snprintf(out + used, size - (size_t)used, " and %" PRId64 " more", count - NAMED_MAX);
}

/* gone: a rank that will never come, or -1 for the deadline. Who gives up leaves, and is no reason:
 * all say what the first one said. */
static void say_lost(tsi_threads *engine, int64_t gone, int64_t timeout_ms)
{
    char missing[768];
    if (engine->lost_text[0] != '\0') return;
    if (gone >= 0) {
        (void)snprintf(engine->lost_text, sizeof engine->lost_text,
                       "recover: rank %" PRId64 " has left; the world must be closed", gone);
        return;
    }
    name_absent(engine, missing, sizeof missing);
    (void)snprintf(engine->lost_text, sizeof engine->lost_text,
                   "recover: not all ranks came within %" PRId64 " ms, not %s; the world must be "
                   "closed",
                   timeout_ms, missing);
}

static ts_status give_up(tsi_threads *engine, uint32_t epoch, int64_t gone, int64_t timeout_ms)
{
    pthread_mutex_lock(&engine->lock);
    bool late = atomic_load_explicit(&engine->epoch, memory_order_seq_cst) != epoch;
    TSI_ASSERT(late || engine->recovering > 0); /* this rank is one of them */
    if (!late) engine->recovering--;
    if (!late) say_lost(engine, gone, timeout_ms);
    pthread_mutex_unlock(&engine->lock);
    if (late) return TS_OK; /* it succeeded at the last moment */
    return TSI_FAIL(TS_ERR_LOST, "%s", engine->lost_text);
}

/* Until the last one has begun the new epoch. */
static ts_status wait_for_all(tsi_threads *engine, tsi_chair *chair, uint32_t epoch)
{
    int64_t timeout_ms = engine->world->timeout_ms > 0 ? engine->world->timeout_ms : 60000;
    int64_t deadline_ns = tsi_clock_after_ms(timeout_ms);
    while (atomic_load_explicit(&engine->epoch, memory_order_seq_cst) == epoch) {
        int64_t gone = first_gone(engine);
        if (gone >= 0) return give_up(engine, epoch, gone, timeout_ms);
        if (!wait_epoch(engine, chair, epoch, deadline_ns))
            return give_up(engine, epoch, -1, timeout_ms);
    }
    return TS_OK;
}

ts_status tsi_threads_recover(void *state, ts_rank *rank)
{
    tsi_threads *engine = state;
    tsi_chair *chair = tsi_chair_of(engine, rank);
    pthread_mutex_lock(&engine->lock);
    uint32_t epoch = atomic_load_explicit(&engine->epoch, memory_order_seq_cst);
    bool last = ++engine->recovering == engine->world->local_count;
    if (last) new_epoch(engine);
    pthread_mutex_unlock(&engine->lock);
    if (last) {
        ring_everybody(engine);
        return TS_OK;
    }
    atomic_store_explicit(&chair->recovers, 1, memory_order_seq_cst);
    ts_status status = wait_for_all(engine, chair, epoch);
    atomic_store_explicit(&chair->recovers, 0, memory_order_seq_cst);
    return status;
}
