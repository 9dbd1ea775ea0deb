/* SPDX-License-Identifier: Apache-2.0 */
/* parallel.c - helpers of a rank that join its loops.
 *
 * A loop is open while its state word has the top bit; the other bits count the helpers inside. A
 * helper joins by a compare-and-swap on the open state, so one that wakes too late finds the loop
 * closed and nobody waits for it. The rank closes the loop when no range is left, and returns when
 * the last helper has gone out.
 *
 *   turn   +1 per loop: helpers wait for it to change
 *   next   first piece that nobody has taken
 *   state  OPEN | helpers inside
 *
 * INV: fn, context, count and chunk are written only while the loop is closed and empty. */
#include "device/parallel.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/intmath.h"
#include "base/launcher.h"
#include "base/thread.h"

enum { SPIN_NS = 20000, THREADS_MAX = 1024, RANGES_PER_THREAD = 4, STACK_BYTES = 512 * 1024 };
#define OPEN 0x80000000u

typedef struct helper {
    pthread_t thread;
    struct team *team;
    int32_t worker, reserved;
} helper;

typedef struct team {
    tsi_parallel_fn fn;
    void *context;
    int64_t count, chunk;
    _Atomic int64_t next;
    tsi_word state, turn;
    _Atomic bool leaving;
    _Atomic bool inside;      /* a loop is running: of the rank, or of its queue's thread */
    int32_t threads, started; /* wanted, with the rank's own; helpers that run */
    helper *helpers;
} team;

/* ---- helpers --------------------------------------------------------------------------------- */

static void take_ranges(team *t, int32_t worker)
{
    for (;;) {
        int64_t begin = atomic_fetch_add_explicit(&t->next, t->chunk, memory_order_relaxed);
        if (begin >= t->count) return;
        int64_t end = begin + t->chunk < t->count ? begin + t->chunk : t->count;
        t->fn(t->context, begin, end, worker);
    }
}

static bool join(team *t)
{
    uint32_t state = atomic_load_explicit(&t->state, memory_order_relaxed);
    while (state & OPEN) {
        if (atomic_compare_exchange_weak_explicit(&t->state, &state, state + 1,
                                                  memory_order_acquire, memory_order_relaxed))
            return true;
    }
    return false;
}

static void leave(team *t)
{
    uint32_t before = atomic_fetch_sub_explicit(&t->state, 1, memory_order_release);
    if (before == 1) tsi_wake_one(&t->state); /* closed, and this was the last one inside */
}

static void *help(void *argument)
{
    helper *me = argument;
    team *t = me->team;
    uint32_t seen = 0;
    for (;;) {
        uint32_t turn = atomic_load_explicit(&t->turn, memory_order_acquire);
        if (atomic_load_explicit(&t->leaving, memory_order_relaxed)) return NULL;
        if (turn == seen) {
            (void)tsi_wait_word(&t->turn, seen, SPIN_NS, INT64_MAX);
            continue;
        }
        seen = turn;
        if (!join(t)) continue;
        if (me->worker < t->threads) take_ranges(t, me->worker);
        leave(t);
    }
}

/* ---- the team of a rank ---------------------------------------------------------------------- */

static void team_destroy(void *state)
{
    team *t = state;
    atomic_store_explicit(&t->leaving, true, memory_order_relaxed);
    atomic_fetch_add_explicit(&t->turn, 1, memory_order_release);
    tsi_wake_all(&t->turn);
    for (int32_t i = 0; i < t->started; i++)
        (void)pthread_join(t->helpers[i].thread, NULL);
    tsi_free(t->helpers);
    tsi_free(t);
}

static int64_t number_of(const char *variable)
{
    const char *text = getenv(variable);
    char *end = NULL;
    long value = text ? strtol(text, &end, 10) : 0;
    return text && end != text && *end == '\0' && value > 0 ? value : 0;
}

/* Processes of this job on this machine that may run on the same cores as this one. */
static int64_t processes_here(void)
{
    if (tsi_core_count() < sysconf(_SC_NPROCESSORS_ONLN)) return 1; /* cores of its own */
    int64_t local = tsi_launcher_find().local_size;
    return local > 0 ? local : 1;
}

int32_t tsi_parallel_default(int64_t ranks)
{
    int64_t given = number_of("TESSERA_THREADS");
    if (given == 0) given = tsi_core_count() / (ranks * processes_here());
    return given < 1 ? 1 : given > THREADS_MAX ? THREADS_MAX : (int32_t)given;
}

static int32_t threads_by_default(const ts_rank *rank)
{
    return tsi_parallel_default(rank->world->local_count);
}

static void *team_create(ts_rank *rank)
{
    team *t = tsi_calloc(1, sizeof *t);
    if (!t) {
        (void)tsi_fail_memory("the threads of a rank", sizeof *t);
        return NULL;
    }
    t->threads = threads_by_default(rank);
    return t;
}

static team *team_of(ts_rank *rank)
{
    team *t = tsi_slot_get(rank, TSI_SLOT_THREADS);
    if (TSI_LIKELY(t != NULL)) return t;
    return tsi_rank_slot(rank, TSI_SLOT_THREADS, team_create, team_destroy);
}

/* A machine that gives fewer threads than wanted is used with those it gives. */
static TSI_COLD void start_helpers(team *t)
{
    helper *grown = tsi_calloc((size_t)(t->threads - 1), sizeof *grown);
    if (!grown || t->started > 0) { /* helpers know their own address: a team never grows */
        tsi_free(grown);
        t->threads = t->started + 1;
        return;
    }
    t->helpers = grown;
    while (t->started < t->threads - 1) {
        helper *h = &t->helpers[t->started];
        *h = (helper){ .team = t, .worker = t->started + 1 };
        if (tsi_thread_start(&h->thread, help, h, STACK_BYTES) != TS_OK) break;
        t->started++;
    }
    t->threads = t->started + 1;
}

/* ---- loops ----------------------------------------------------------------------------------- */

static void run_together(team *t, int64_t count, int64_t chunk, tsi_parallel_fn fn, void *context)
{
    TSI_ASSERT(atomic_load_explicit(&t->state, memory_order_relaxed) == 0);
    t->fn = fn;
    t->context = context;
    t->count = count;
    t->chunk = chunk;
    atomic_store_explicit(&t->next, 0, memory_order_relaxed);
    atomic_store_explicit(&t->state, OPEN, memory_order_release);
    atomic_fetch_add_explicit(&t->turn, 1, memory_order_release);
    tsi_wake_all(&t->turn);
    take_ranges(t, 0);
    uint32_t state = atomic_fetch_and_explicit(&t->state, ~OPEN, memory_order_acquire) & ~OPEN;
    while (state != 0) {
        (void)tsi_wait_word(&t->state, state, SPIN_NS, INT64_MAX);
        state = atomic_load_explicit(&t->state, memory_order_acquire);
    }
    atomic_store_explicit(&t->inside, false, memory_order_release);
}

void tsi_parallel_for(ts_rank *rank, int64_t count, int64_t grain, tsi_parallel_fn fn,
                      void *context)
{
    if (count <= 0 || tsi_dry(rank)) return;
    if (count <= grain || !rank) {
        fn(context, 0, count, 0);
        return;
    }
    team *t = team_of(rank);
    if (!t || t->threads <= 1 || atomic_exchange_explicit(&t->inside, true, memory_order_acquire)) {
        fn(context, 0, count, 0);
        return;
    }
    if (t->threads > t->started + 1) start_helpers(t);
    if (t->threads <= 1) {
        atomic_store_explicit(&t->inside, false, memory_order_release);
        fn(context, 0, count, 0);
        return;
    }
    int64_t ranges = (int64_t)t->threads * RANGES_PER_THREAD;
    int64_t chunk = (count - 1) / ranges + 1;
    if (chunk < grain) chunk = grain;
    run_together(t, count, chunk, fn, context);
}

int32_t tsi_parallel_threads(ts_rank *rank)
{
    team *t = rank ? team_of(rank) : NULL;
    return t ? t->threads : 1;
}

void tsi_parallel_limit(ts_rank *rank, int32_t threads)
{
    team *t = team_of(rank);
    if (!t) return;
    if (threads <= 0) threads = threads_by_default(rank);
    if (threads > THREADS_MAX) threads = THREADS_MAX;
    if (t->started > 0 && threads > t->started + 1) { /* a larger team: begin anew */
        atomic_store_explicit(&rank->slot[TSI_SLOT_THREADS].state, NULL, memory_order_relaxed);
        team_destroy(t);
        t = team_of(rank);
        if (!t) return;
    }
    t->threads = threads;
}
