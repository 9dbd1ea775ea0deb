/* SPDX-License-Identifier: Apache-2.0 */
/* parallel.c - helpers of a rank that join its loops (loop.h).
 *
 * A rank has one loop at a time. `turn` goes up by one for each, and helpers wait for it to change;
 * one that wakes too late finds the loop closed, or the next one open. */
#include "device/parallel.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/intmath.h"
#include "base/launcher.h"
#include "base/thread.h"
#include "device/guests.h"
#include "device/loop.h"

enum { THREADS_MAX = 1024, RANGES_PER_THREAD = 4, STACK_BYTES = 512 * 1024 };

typedef struct helper {
    pthread_t thread;
    struct team *team;
    int32_t worker, reserved;
} helper;

typedef struct team {
    tsi_loop own;
    tsi_loop *loop; /* that one, or the world's, where guests find it */
    tsi_word turn;
    _Atomic bool leaving;
    _Atomic bool inside;      /* a loop is running: of the rank, or of its queue's thread */
    int32_t threads, started; /* wanted, with the rank's own; helpers that run */
    helper *helpers;
} team;

/* ---- helpers --------------------------------------------------------------------------------- */

static void *help(void *argument)
{
    helper *me = argument;
    team *t = me->team;
    uint32_t seen = 0;
    for (;;) {
        uint32_t turn = atomic_load_explicit(&t->turn, memory_order_acquire);
        if (atomic_load_explicit(&t->leaving, memory_order_relaxed)) return NULL;
        if (turn == seen) {
            (void)tsi_wait_word(&t->turn, seen, TSI_LOOP_SPIN_NS, INT64_MAX);
            continue;
        }
        seen = turn;
        if (!tsi_loop_join(t->loop, TSI_LOOP_OPEN)) continue;
        while (me->worker < t->threads && tsi_loop_take(t->loop, me->worker))
            continue;
        tsi_loop_leave(t->loop);
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
    team *t = tsi_alloc_aligned(sizeof *t, TSI_CACHE_LINE);
    if (!t) {
        (void)tsi_fail_memory("the threads of a rank", sizeof *t);
        return NULL;
    }
    memset((void *)t, 0, sizeof *t);
    t->threads = threads_by_default(rank);
    t->loop = tsi_guests_loop_of(rank);
    if (!t->loop) t->loop = &t->own;
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

static void run_together(ts_rank *rank, team *t, bool guests, int64_t count, int64_t chunk,
                         tsi_parallel_fn fn, void *context)
{
    TSI_ASSERT(atomic_load_explicit(&t->loop->state, memory_order_relaxed) == 0);
    if (guests)
        tsi_guests_open(rank, t->loop, count, chunk, fn, context);
    else
        tsi_loop_open(t->loop, TSI_LOOP_OPEN, count, chunk, fn, context);
    atomic_fetch_add_explicit(&t->turn, 1, memory_order_release);
    tsi_wake_all(&t->turn);
    while (tsi_loop_take(t->loop, 0))
        continue;
    if (guests)
        tsi_guests_close(rank, t->loop);
    else
        tsi_loop_close(t->loop);
    atomic_store_explicit(&t->inside, false, memory_order_release);
}

/* May guests come to its loops? */
static bool has_guests(const team *t)
{
    return t->loop != &t->own;
}

/* Its threads are there, and no loop of it runs; else NULL. */
static team *enter(ts_rank *rank, bool guests)
{
    team *t = team_of(rank);
    bool alone = t && t->threads <= 1 && !(guests && has_guests(t));
    if (!t || alone || atomic_exchange_explicit(&t->inside, true, memory_order_acquire))
        return NULL;
    if (t->threads > t->started + 1) start_helpers(t);
    if (t->threads > 1 || (guests && has_guests(t))) return t;
    atomic_store_explicit(&t->inside, false, memory_order_release);
    return NULL;
}

void tsi_parallel_for(ts_rank *rank, int64_t count, int64_t grain, tsi_parallel_fn fn,
                      void *context)
{
    if (count <= 0 || tsi_dry(rank)) return;
    team *t = count > grain && rank ? enter(rank, false) : NULL;
    if (!t) {
        fn(context, 0, count, 0);
        return;
    }
    int64_t ranges = (int64_t)t->threads * RANGES_PER_THREAD;
    int64_t chunk = (count - 1) / ranges + 1;
    if (chunk < grain) chunk = grain;
    run_together(rank, t, false, count, chunk, fn, context);
}

void tsi_parallel_for_all(ts_rank *rank, int64_t count, int64_t grain, tsi_parallel_fn fn,
                          void *context)
{
    if (count <= 0 || tsi_dry(rank)) return;
    team *t = count > grain && rank ? enter(rank, true) : NULL;
    if (t)
        run_together(rank, t, has_guests(t), count, grain, fn, context);
    else
        fn(context, 0, count, 0);
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
