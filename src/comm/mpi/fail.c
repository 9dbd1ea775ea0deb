/* SPDX-License-Identifier: Apache-2.0 */
/* fail.c - how a failure becomes one sentence on every rank.
 *
 * A rank that notices (a mismatch, a death, a stall, a peer that left, no memory) writes the
 * sentence into its slot. The first whose slot is named by the word of the segment has spoken: one
 * store, before which a process that is killed has said nothing. All others of the node find it
 * there, those of other nodes get it as a message. A poisoned rank ends all its operations with the
 * sentence and refuses new ones until recover begins a new epoch; what belongs to an older epoch is
 * thrown away wherever it turns up.
 *
 * INV: the poison of an epoch is written once. A rank looks at it before it moves data and at least
 * every few milliseconds while it waits. */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "comm/chain.h"
#include "comm/mpi/internal.h"

/* Of this one, or of a later one. */
static bool is_of_epoch(uint64_t word, uint32_t epoch)
{
    return word != 0 && word >> 32 >= epoch;
}

bool tsi_poisoned(const tsi_mpi_rank *rank)
{
    return is_of_epoch(atomic_load_explicit(rank->mpi->segment.poison, memory_order_acquire),
                       rank->epoch);
}

const tsi_poison *tsi_poison_of(const tsi_mpi_rank *rank)
{
    const tsi_segment *segment = &rank->mpi->segment;
    uint64_t word = atomic_load_explicit(segment->poison, memory_order_acquire);
    return &segment->slot[(uint32_t)word - 1].poison[word >> 32 & 1];
}

static void ring_all(tsi_mpi *mpi)
{
    for (int64_t i = 0; i < mpi->segment.count; i++)
        tsi_bell_ring(&mpi->segment.slot[i]);
}

/* To the first rank of every process outside the segment; what it says is for all of them. */
static void tell_far(tsi_mpi_rank *rank, tsi_message_kind kind, ts_status status, int64_t culprit,
                     const char *text)
{
    tsi_mpi *mpi = rank->mpi;
    size_t length = strlen(text) + 1;
    if (mpi->net == NULL) return;
    for (int64_t to = 0; to < mpi->rank_count; to++) {
        if (mpi->place[to] >= 0) continue;
        if (to % mpi->threads != 0) continue;
        tsi_message *message = tsi_wire_begin(rank, to, length);
        if (message == NULL) return;
        message->kind = (uint16_t)kind;
        message->value[0] = status;
        message->value[1] = culprit;
        memcpy(message + 1, text, length);
        tsi_wire_end(rank, message);
    }
}

/* False: somebody was first. */
static bool publish(tsi_mpi_rank *rank, ts_status status, int64_t culprit, const char *text)
{
    tsi_segment *segment = &rank->mpi->segment;
    tsi_poison *own = &segment->slot[rank->place].poison[rank->epoch & 1];
    uint64_t mine = (uint64_t)rank->epoch << 32 | (uint64_t)(rank->place + 1);
    pthread_mutex_lock(&rank->mpi->poison_lock);
    uint64_t old = atomic_load(segment->poison);
    bool first = !is_of_epoch(old, rank->epoch);
    if (first) {
        own->status = status;
        own->rank = culprit;
        snprintf(own->text, sizeof own->text, "%s", text);
    }
    while (first && !atomic_compare_exchange_strong(segment->poison, &old, mine))
        first = !is_of_epoch(old, rank->epoch);
    pthread_mutex_unlock(&rank->mpi->poison_lock);
    if (first) ring_all(rank->mpi);
    return first;
}

void tsi_poison_set(tsi_mpi_rank *rank, ts_status status, int64_t culprit, const char *format, ...)
{
    char text[TSI_ERROR_TEXT_MAX];
    va_list arguments;
    if (tsi_poisoned(rank)) return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (publish(rank, status, culprit, text))
        tell_far(rank, TSI_MESSAGE_ABORT, status, culprit, text);
}

void tsi_poison_memory(tsi_mpi_rank *rank, const char *what)
{
    tsi_poison_set(rank, TS_ERR_MEMORY, rank->index, "rank %lld: no memory for %s",
                   (long long)rank->index, what);
}

/* The one who failed keeps its own status, an interrupt is everybody's. */
ts_status tsi_poison_status(const tsi_mpi_rank *rank)
{
    const tsi_poison *poison = tsi_poison_of(rank);
    bool own = poison->rank == rank->index || poison->status == TS_ERR_INTERRUPTED;
    return own ? (ts_status)poison->status : TS_ERR_PEER;
}

int64_t tsi_poison_culprit(const tsi_mpi_rank *rank)
{
    int64_t culprit = tsi_poison_of(rank)->rank;
    return culprit >= 0 ? culprit : TSI_NOBODY;
}

void tsi_check_interrupt(tsi_mpi_rank *rank)
{
    if (TSI_LIKELY(atomic_load(&rank->mpi->world->interrupted) == 0) || tsi_poisoned(rank)) return;
    tsi_poison_set(rank, TS_ERR_INTERRUPTED, rank->index,
                   "the world was interrupted (seen by rank %lld)", (long long)rank->index);
}

/* ---- what everybody is doing ------------------------------------------------------------- */
static const char *life_name(int32_t life)
{
    switch ((tsi_slot_life)life) {
    case TSI_LIFE_NONE:
        return "has not started";
    case TSI_LIFE_OPEN:
        return "runs";
    case TSI_LIFE_LEFT:
        return "has finished";
    case TSI_LIFE_FAILED:
        return "has failed";
    case TSI_LIFE_CLOSED:
        return "has closed the world";
    case TSI_LIFE_EXITING:
        return "has ended";
    }
    return "";
}

/* "rank 2 is in all_gather ...", "rank 2 was last in ...", "rank 2 has not communicated yet". */
static int doing(const void *context, int64_t index, char *out, size_t size)
{
    const tsi_mpi *mpi = context;
    int64_t place = mpi->place[index];
    tsi_fingerprint print;
    char text[256];
    if (place < 0) return snprintf(out, size, "rank %lld is on another node", (long long)index);
    tsi_mpi_slot *slot = &mpi->segment.slot[place];
    int32_t life = atomic_load(&slot->life);
    if (life != TSI_LIFE_OPEN)
        return snprintf(out, size, "rank %lld %s", (long long)index, life_name(life));
    if (tsi_place_dead(&mpi->segment, place))
        return snprintf(out, size, "rank %lld was killed (process %d)", (long long)index,
                        (int)atomic_load(&slot->pid));
    if (!tsi_slot_read(slot, &print))
        return snprintf(out, size, "rank %lld has not communicated yet", (long long)index);
    mpi->host->fingerprint_text(&print, text, sizeof text);
    return snprintf(out, size, "rank %lld %s %s", (long long)index,
                    atomic_load(&slot->busy) ? "is in" : "was last in", text);
}

void tsi_fail_describe(tsi_mpi *mpi, char *out, size_t size)
{
    size_t used = 0;
    if (size > 0) out[0] = 0;
    for (int64_t i = 0; i < mpi->rank_count && used + 1 < size; i++) {
        int length = doing(mpi, i, out + used, size - used);
        used += length > 0 ? (size_t)length : 0;
        if (used + 1 < size) {
            out[used++] = '\n';
            out[used] = 0;
        }
    }
}

/* The ranks of the operation that wait, "; rank 0 is in ..., rank 3 is in ...", as far as there is
 * room. */
static void add_waiting(tsi_mpi_rank *rank, const tsi_mpi_op *op, int64_t culprit, int64_t but,
                        char *text, size_t size)
{
    size_t used = strlen(text);
    for (int64_t p = 0, said = 0; op != NULL && p < op->count && said < 4 && used + 1 < size; p++) {
        int64_t index = op->peer[p].rank;
        if (index == culprit || index == but || rank->mpi->place[index] < 0) continue;
        int length = snprintf(text + used, size - used, "; ");
        used += (size_t)length;
        if (used >= size) return;
        length = doing(rank->mpi, index, text + used, size - used);
        used += length > 0 ? (size_t)length : 0;
        said++;
    }
}

/* ---- death and departure ----------------------------------------------------------------- */
static tsi_slot_life life_of(const tsi_mpi *mpi, int64_t index)
{
    int64_t place = mpi->place[index];
    if (place >= 0) return (tsi_slot_life)atomic_load(&mpi->segment.slot[place].life);
    return (tsi_slot_life)atomic_load(&mpi->gone[index]);
}

bool tsi_fail_absent(const tsi_mpi *mpi, int64_t rank)
{
    tsi_slot_life life = life_of(mpi, rank);
    return life != TSI_LIFE_OPEN && life != TSI_LIFE_NONE;
}

static const tsi_mpi_op *first_op(const tsi_mpi_rank *rank)
{
    return rank->active != NULL ? &rank->active->op : NULL;
}

static void say_dead(tsi_mpi_rank *rank, int64_t place)
{
    tsi_mpi *mpi = rank->mpi;
    int64_t index = mpi->segment.rank[place];
    tsi_fingerprint print;
    char text[TSI_ERROR_TEXT_MAX], was[256] = "it had not communicated yet";
    char print_text[220];
    if (tsi_slot_read(&mpi->segment.slot[place], &print)) {
        mpi->host->fingerprint_text(&print, print_text, sizeof print_text);
        snprintf(was, sizeof was, "it was last in %s", print_text);
    }
    snprintf(text, sizeof text, "rank %lld is gone: process %d ended without leaving the world, %s",
             (long long)index, (int)atomic_load(&mpi->segment.slot[place].pid), was);
    add_waiting(rank, first_op(rank), index, -1, text, sizeof text);
    tsi_poison_set(rank, TS_ERR_PEER, index, "%s", text);
}

/* Does the operation still need something of that member? */
static bool needs(const tsi_mpi_op *op, const tsi_mpi_peer *peer)
{
    if (op->stage == TSI_OP_OFFERED) return !peer->offered && op->offers_due > 0;
    if (op->two_phase && peer->expect[1] > 0 && !peer->in[1].known) return true;
    for (const tsi_get *get = op->gets; get != NULL; get = get->next)
        if (&op->peer[get->member] == peer && get->arrived < get->bytes) return true;
    return peer->reads && !peer->done;
}

/* op NULL: outside of operations. */
static void say_left(tsi_mpi_rank *rank, const tsi_mpi_op *op, int64_t left, const char *own)
{
    char text[TSI_ERROR_TEXT_MAX];
    snprintf(text, sizeof text, "rank %lld %s while rank %lld waits for it in %s", (long long)left,
             life_name((int32_t)life_of(rank->mpi, left)), (long long)rank->index, own);
    add_waiting(rank, op, left, rank->index, text, sizeof text);
    tsi_poison_set(rank, TS_ERR_PEER, left, "%s", text);
}

static void check_left(tsi_mpi_rank *rank, const tsi_mpi_op *op)
{
    char own[256];
    for (int64_t p = 0; p < op->count; p++) {
        const tsi_mpi_peer *peer = &op->peer[p];
        if (p == op->self || !needs(op, peer)) continue;
        tsi_slot_life life = life_of(rank->mpi, peer->rank);
        if (life == TSI_LIFE_OPEN || life == TSI_LIFE_NONE) continue;
        if (tsi_wire_receive(rank) && !needs(op, peer))
            continue; /* its last message was on the way */
        rank->mpi->host->fingerprint_text(&op->work->print, own, sizeof own);
        say_left(rank, op, peer->rank, own);
        return;
    }
}

/* The first rank at work among those of the process that begins at `place`, or -1. */
static int64_t open_place(const tsi_mpi *mpi, int64_t place)
{
    for (int64_t i = place; i < place + mpi->threads; i++)
        if (atomic_load(&mpi->segment.slot[i].life) == TSI_LIFE_OPEN) return i;
    return -1;
}

void tsi_check_life(tsi_mpi_rank *rank)
{
    tsi_segment *segment = &rank->mpi->segment;
    if (tsi_poisoned(rank)) return;
    for (int64_t i = 0; i < segment->count; i += rank->mpi->threads) {
        if (open_place(rank->mpi, i) < 0 || !tsi_place_dead(segment, i)) continue;
        int64_t open = open_place(rank->mpi, i); /* it may have left meanwhile */
        if (open >= 0) say_dead(rank, open);
        return;
    }
    for (tsi_lane *lane = rank->active; lane != NULL && !tsi_poisoned(rank);
         lane = lane->active_next)
        if (lane->op.stage != TSI_OP_IDLE) check_left(rank, &lane->op);
}

/* ---- stall ------------------------------------------------------------------------------- */
/* The first rank of which the operation needs something, or -1. */
static int64_t first_needed(const tsi_mpi_op *op)
{
    for (int64_t p = 0; p < op->count; p++)
        if (p != op->self && needs(op, &op->peer[p])) return op->peer[p].rank;
    return -1;
}

/* Whom another rank waits for; -1: nobody, or it is of another node, which is not known here. */
static int64_t waits_for(const void *context, int64_t index)
{
    const tsi_mpi *mpi = context;
    int64_t place = mpi->place[index];
    return place >= 0 ? atomic_load(&mpi->segment.slot[place].waits_for) - 1 : -1;
}

/* What a rank has waited in, and how long. */
typedef struct stall {
    const tsi_mpi_op *op; /* NULL: outside of operations */
    int64_t needed, waited_ms;
    const char *own;
} stall;

static void say_circle(tsi_mpi_rank *rank, const stall *s, const tsi_chain *chain, int64_t from)
{
    char text[TSI_ERROR_TEXT_MAX], ranks[256], others[900];
    tsi_chain_circle(chain, from, -1, ranks, sizeof ranks, others, sizeof others);
    snprintf(text, sizeof text, "%srank %lld waited %lld ms for rank %lld in %s%s", ranks,
             (long long)rank->index, (long long)s->waited_ms, (long long)s->needed, s->own, others);
    tsi_poison_set(rank, TS_ERR_PEER, TSI_NOBODY, "%s", text);
}

static void say_stalled(tsi_mpi_rank *rank, const stall *s)
{
    char text[TSI_ERROR_TEXT_MAX], whom[64] = "it";
    tsi_chain chain = {
        rank->mpi, waits_for, doing, rank->mpi->rank_count, rank->index, s->needed
    };
    bool circle = false;
    int64_t culprit = s->needed < 0 ? -1 : tsi_chain_end(&chain, &circle);
    if (circle) {
        say_circle(rank, s, &chain, culprit);
        return;
    }
    if (culprit != s->needed)
        snprintf(whom, sizeof whom, "rank %lld, which waits for it,", (long long)s->needed);
    if (culprit < 0) {
        snprintf(text, sizeof text, "%s took longer than %lld ms on rank %lld", s->own,
                 (long long)s->waited_ms, (long long)rank->index);
    } else {
        int used = snprintf(
            text, sizeof text, "rank %lld stalled: rank %lld waited %lld ms for %s in %s; ",
            (long long)culprit, (long long)rank->index, (long long)s->waited_ms, whom, s->own);
        doing(rank->mpi, culprit, text + used, sizeof text - (size_t)used);
        add_waiting(rank, s->op, culprit, rank->index, text, sizeof text);
    }
    tsi_poison_set(rank, TS_ERR_PEER, culprit, "%s", text);
}

static void op_stalled(tsi_mpi_rank *rank, const tsi_mpi_op *op)
{
    char own[256];
    rank->mpi->host->fingerprint_text(&op->work->print, own, sizeof own);
    say_stalled(rank, &(stall){ op, first_needed(op), op->work->timeout_ms, own });
}

void tsi_fail_unmet(tsi_mpi_rank *rank, int64_t peer, int64_t waited_ms, const char *own)
{
    if (waited_ms == 0)
        say_left(rank, NULL, peer, own);
    else
        say_stalled(rank, &(stall){ NULL, peer, waited_ms, own });
}

/* Of the operations under way, the one that its rank waits in. */
static const tsi_mpi_op *awaited_op(const tsi_mpi_rank *rank)
{
    for (const tsi_lane *lane = rank->active; lane != NULL; lane = lane->active_next)
        for (const tsi_work *work = lane->first; work != NULL; work = work->next)
            if (lane->op.stage != TSI_OP_IDLE && work->deadline_ns > 0) return &lane->op;
    return NULL;
}

void tsi_show_wait(tsi_mpi_rank *rank, bool waits)
{
    const tsi_mpi_op *op = waits ? awaited_op(rank) : NULL;
    int64_t needed = op != NULL ? first_needed(op) : rank->outside - 1;
    _Atomic int64_t *shown = &rank->mpi->segment.slot[rank->place].waits_for;
    if (atomic_load(shown) != needed + 1) atomic_store(shown, needed + 1);
}

/* Somebody may wait for an operation that stands behind the one under way. */
static bool is_overdue(const tsi_lane *lane, int64_t now)
{
    for (const tsi_work *work = lane->first; work != NULL; work = work->next)
        if (work->deadline_ns > 0 && now >= work->deadline_ns) return true;
    return false;
}

void tsi_check_deadline(tsi_mpi_rank *rank)
{
    int64_t now = tsi_clock_ns();
    for (tsi_lane *lane = rank->active; lane != NULL; lane = lane->active_next) {
        if (lane->op.stage == TSI_OP_IDLE || !is_overdue(lane, now)) continue;
        op_stalled(rank, &lane->op);
        return;
    }
}

/* ---- leaving ----------------------------------------------------------------------------- */
void tsi_fail_leave(tsi_mpi_rank *rank, ts_status status, const char *sentence)
{
    tsi_mpi *mpi = rank->mpi;
    tsi_mpi_slot *slot = &mpi->segment.slot[rank->place];
    if (status != TS_OK) {
        tsi_poison_set(rank, status, rank->index, "rank %lld failed: %s", (long long)rank->index,
                       sentence != NULL ? sentence : "it gave no reason");
        tsi_rank_progress(rank); /* ends its own operations */
        return;
    }
    int64_t deadline = tsi_clock_after_ms(mpi->timeout_ms);
    while (rank->outbox_count > 0 && !tsi_poisoned(rank) && tsi_clock_ns() < deadline) {
        if (!tsi_rank_progress(rank)) sched_yield();
        tsi_check_life(rank);
    }
    if (rank->left) return;
    rank->left = true;
    atomic_store(&slot->life, TSI_LIFE_LEFT);
    tell_far(rank, TSI_MESSAGE_LEAVE, TS_OK, rank->index, "");
    ring_all(mpi);
}

/* Is a rank of another process still at work? */
static bool anyone_works(const tsi_mpi *mpi)
{
    for (int64_t i = 0; i < mpi->rank_count; i++) {
        if (i >= mpi->first && i < mpi->first + mpi->threads) continue;
        if (!tsi_fail_absent(mpi, i)) return true;
    }
    return false;
}

/* The last look before a process says that all went well. Who works on alone for longer than the
 * timeout is not waited for. */
ts_status tsi_fail_farewell(tsi_mpi *mpi, char *sentence, size_t size)
{
    tsi_mpi_rank *rank = &mpi->local[0];
    tsi_mpi_slot *slot = &mpi->segment.slot[rank->place];
    int64_t deadline = tsi_clock_after_ms(mpi->timeout_ms);
    for (;;) {
        uint32_t seen = atomic_load(&slot->bell);
        pthread_mutex_lock(&rank->lock);
        bool progress = tsi_rank_progress(rank);
        if (!progress) tsi_check_life(rank);
        bool failed = tsi_poisoned(rank);
        pthread_mutex_unlock(&rank->lock);
        if (failed) {
            snprintf(sentence, size, "%s", tsi_poison_of(rank)->text);
            return TS_ERR_PEER;
        }
        if (!anyone_works(mpi) || tsi_clock_ns() > deadline) return TS_OK;
        if (!progress) tsi_bell_wait(slot, seen, mpi->net != NULL ? 50000 : 1000000);
    }
}

/* It failed before and will not recover. */
void tsi_fail_gone(tsi_mpi_rank *rank)
{
    if (rank->left) return;
    rank->left = true;
    atomic_store(&rank->mpi->segment.slot[rank->place].life, TSI_LIFE_FAILED);
    tell_far(rank, TSI_MESSAGE_LEAVE, TS_ERR_PEER, rank->index, "");
    ring_all(rank->mpi);
}

void tsi_fail_left(tsi_mpi_rank *rank, const tsi_message *message)
{
    bool clean = message->value[0] == TS_OK;
    atomic_store(&rank->mpi->gone[message->from], clean ? TSI_LIFE_LEFT : TSI_LIFE_FAILED);
}

void tsi_fail_aborted(tsi_mpi_rank *rank, const tsi_message *message)
{
    (void)publish(rank, (ts_status)message->value[0], message->value[1],
                  (const char *)(message + 1));
}

/* ---- recovering -------------------------------------------------------------------------- */
void tsi_fail_came(tsi_mpi_rank *rank, const tsi_message *message)
{
    rank->recovered++;
    rank->came[message->from] = true;
}

/* A rank that will not come, or -1. One that came may be gone again. */
static int64_t missing_for_good(tsi_mpi_rank *rank)
{
    for (int64_t i = 0; i < rank->mpi->rank_count; i++) {
        tsi_slot_life life = life_of(rank->mpi, i);
        int64_t place = rank->mpi->place[i];
        if (rank->came[i]) continue;
        if (life != TSI_LIFE_OPEN && life != TSI_LIFE_NONE) return i;
        if (place >= 0 && tsi_place_dead(&rank->mpi->segment, place)) return i;
    }
    return -1;
}

/* Has recovering failed for all? A rank that has recovered may fail again before others have heard
 * that all came: such a poison is of the new epoch and waits for their next operation. */
static bool recovering_failed(const tsi_mpi_rank *rank)
{
    return tsi_poisoned(rank) && tsi_poison_of(rank)->status == TS_ERR_LOST;
}

static void name_absent(tsi_mpi_rank *rank, char *why, size_t size)
{
    tsi_mpi *mpi = rank->mpi;
    int64_t first = 0;
    while (first < mpi->rank_count && (first == rank->index || rank->came[first]))
        first++;
    int used = snprintf(why, size, "not all ranks came within %lld ms", (long long)mpi->timeout_ms);
    if (first == mpi->rank_count) return;
    used += snprintf(why + used, size - (size_t)used, ": ");
    doing(mpi, first, why + used, size - (size_t)used);
}

/* All ranks tell all others; a message of the new epoch that comes before is kept for it. On
 * failure `why` says who did not come. */
ts_status tsi_fail_recover(tsi_mpi_rank *rank, char *why, size_t size)
{
    tsi_mpi *mpi = rank->mpi;
    snprintf(why, size, "there is no memory for a message");
    tsi_rank_fail_all(rank, TS_ERR_PEER, "the rank recovers");
    tsi_rank_forget(rank);
    rank->epoch++;
    rank->recovered = 0;
    memset(rank->came, 0, (size_t)mpi->rank_count * sizeof *rank->came);
    tsi_parcel_list early = rank->future;
    rank->future = (tsi_parcel_list){ 0 };
    for (tsi_parcel *parcel; (parcel = tsi_parcel_pop(&early)) != NULL;)
        tsi_rank_message(rank, &parcel->message, parcel);
    for (int64_t to = 0; to < mpi->rank_count; to++) {
        if (to == rank->index) continue;
        tsi_message *message = tsi_wire_begin(rank, to, 0);
        if (message == NULL) return TS_ERR_MEMORY;
        message->kind = TSI_MESSAGE_RECOVER;
        tsi_wire_end(rank, message);
    }
    int64_t deadline = tsi_clock_after_ms(mpi->timeout_ms);
    while (rank->recovered < mpi->rank_count - 1 || recovering_failed(rank)) {
        uint32_t seen = atomic_load(&mpi->segment.slot[rank->place].bell);
        if (tsi_rank_progress(rank)) continue;
        int64_t gone = missing_for_good(rank);
        if (gone >= 0 && !tsi_wire_receive(rank)) {
            doing(mpi, gone, why, size);
            tsi_poison_set(rank, TS_ERR_LOST, gone, "%s", why);
        }
        if (recovering_failed(rank)) { /* all say the same */
            snprintf(why, size, "%s", tsi_poison_of(rank)->text);
            return TS_ERR_LOST;
        }
        if (tsi_clock_ns() > deadline) {
            name_absent(rank, why, size);
            return TS_ERR_LOST;
        }
        tsi_bell_wait(&mpi->segment.slot[rank->place], seen, mpi->net != NULL ? 50000 : 1000000);
    }
    return TS_OK;
}
