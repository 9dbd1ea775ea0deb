/* SPDX-License-Identifier: Apache-2.0 */
/* guests.c - loops of a world that ranks which wait take pieces of.
 *
 *   lobby --+-- loop[rank][0]           of all its threads (parallel.c)
 *           +-- loop[rank][1 + worker]  of one of them
 *           +-- bed[rank]               the word that wakes the rank while it sleeps, or NULL
 *
 * A rank that waits goes around the loops of others with its threads, goes on looking for a moment
 * where none is open, since kernels come one after the other, then sleeps; who opens a loop wakes
 * one that sleeps, and a guest who finds many pieces another one. A wake-up that comes too late
 * costs a look.
 *
 * INV: a loop has one owner at a time: who finds it taken (a thread of the rank's queue beside the
 * rank's own) runs its pieces alone. Guests touch a loop between joining and leaving only, and the
 * lobby lives as long as the world. Who opens a loop counts it, opens it and looks who sleeps; who
 * lies down looks for loops once more: one of them sees the other (all in one order, seq_cst). */
#include "device/guests.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/error.h"
#include "base/intmath.h"
#include "base/launcher.h"
#include "device/device.h"

enum {
    LOOK_NS = 300000,  /* a guest looks for another loop before it sleeps */
    LOOKS = 64,        /* between two looks at the clock */
    LEFT_FOR_MORE = 4, /* pieces, for which another guest is woken */
    WORKERS_MOST = 64
};
typedef struct bed {
    _Alignas(TSI_CACHE_LINE) _Atomic(tsi_word *) word;
} bed;

typedef struct lobby {
    _Alignas(TSI_CACHE_LINE) int64_t ranks, loops; /* of a rank */
    bed *bed;
    tsi_loop *loop;
    _Alignas(TSI_CACHE_LINE) _Atomic int32_t open;   /* loops that guests may find */
    _Alignas(TSI_CACHE_LINE) _Atomic int32_t asleep; /* beds with a word */
} lobby;

/* ---- the lobby of a world -------------------------------------------------------------------- */

static bool has_room(ts_world *world)
{
    const char *text = getenv("TESSERA_GUESTS");
    if (world->local_count < 2 || !tsi_world_device(world)->host_readable) return false;
    if (text && strcmp(text, "off") == 0) return false;
    if (text && strcmp(text, "on") == 0) return true;
    return world->local_count * tsi_parallel_default(world->local_count) <= tsi_core_count();
}

static void *lobby_create(ts_world *world)
{
    int64_t ranks = world->local_count, workers = tsi_parallel_default(ranks);
    if (workers > WORKERS_MOST) workers = WORKERS_MOST;
    size_t each = sizeof(bed) + (size_t)(1 + workers) * sizeof(tsi_loop);
    size_t bytes = sizeof(lobby) + (size_t)ranks * each;
    lobby *b = tsi_alloc_aligned(bytes, TSI_CACHE_LINE);
    if (!b) {
        (void)tsi_fail_memory("loops that ranks share", bytes);
        return NULL;
    }
    memset((void *)b, 0, bytes);
    b->ranks = ranks;
    b->loops = 1 + workers;
    b->bed = (bed *)(void *)(b + 1);
    b->loop = (tsi_loop *)(void *)(b->bed + ranks);
    return b;
}

ts_status tsi_guests_prepare(ts_world *world)
{
    if (!has_room(world)) return TS_OK;
    return tsi_world_slot(world, TSI_SLOT_THREADS, lobby_create, tsi_free) ? TS_OK : TS_ERR_MEMORY;
}

static lobby *lobby_of(const ts_rank *rank)
{
    const tsi_slot_state *slot = &rank->world->slot[TSI_SLOT_THREADS];
    return atomic_load_explicit(&slot->state, memory_order_acquire);
}

/* ---- sleeping and waking --------------------------------------------------------------------- */

/* Whoever takes the word out of a bed counts it out. NULL: nobody sleeps there. */
static tsi_word *rise(lobby *b, int64_t rank)
{
    if (!atomic_load_explicit(&b->bed[rank].word, memory_order_seq_cst)) return NULL;
    tsi_word *word = atomic_exchange_explicit(&b->bed[rank].word, NULL, memory_order_seq_cst);
    if (word) atomic_fetch_sub_explicit(&b->asleep, 1, memory_order_seq_cst);
    return word;
}

static void lie_down(lobby *b, int64_t rank, tsi_word *word)
{
    atomic_fetch_add_explicit(&b->asleep, 1, memory_order_seq_cst);
    atomic_store_explicit(&b->bed[rank].word, word, memory_order_seq_cst);
}

/* One that sleeps, from the next rank on. */
static void wake_one(lobby *b, int64_t rank)
{
    if (atomic_load_explicit(&b->asleep, memory_order_seq_cst) <= 0) return;
    for (int64_t i = 1; i < b->ranks; i++) {
        tsi_word *word = rise(b, (rank + i) % b->ranks);
        if (!word) continue;
        atomic_fetch_add_explicit(word, 1, memory_order_seq_cst);
        tsi_wake_all(word);
        return;
    }
}

/* ---- the owner of a loop --------------------------------------------------------------------- */

/* NULL: nobody could come. */
static tsi_loop *claim(lobby *b, const ts_rank *rank, int32_t worker)
{
    if (!b || worker < 0 || 1 + worker >= b->loops) return NULL;
    tsi_loop *loop = &b->loop[rank->local_index * b->loops + 1 + worker];
    uint32_t nobody = 0;
    bool mine = atomic_compare_exchange_strong_explicit(&loop->state, &nobody, TSI_LOOP_CLAIMED,
                                                        memory_order_acquire, memory_order_relaxed);
    return mine ? loop : NULL;
}

void tsi_guests_open(ts_rank *rank, tsi_loop *loop, int64_t count, int64_t chunk,
                     tsi_parallel_fn fn, void *context)
{
    lobby *b = lobby_of(rank);
    atomic_fetch_add_explicit(&b->open, 1, memory_order_seq_cst);
    tsi_loop_open(loop, TSI_LOOP_OPEN | TSI_LOOP_GUESTS, count, chunk, fn, context);
    wake_one(b, rank->local_index);
}

void tsi_guests_close(ts_rank *rank, tsi_loop *loop)
{
    atomic_fetch_sub_explicit(&lobby_of(rank)->open, 1, memory_order_relaxed);
    tsi_loop_close(loop);
}

void tsi_guests_loop(ts_rank *rank, int32_t worker, int64_t count, tsi_parallel_fn fn,
                     void *context)
{
    lobby *b = rank && count > 1 ? lobby_of(rank) : NULL;
    tsi_loop *loop = claim(b, rank, worker);
    if (!loop) {
        fn(context, 0, count, worker);
        return;
    }
    tsi_guests_open(rank, loop, count, 1, fn, context);
    while (tsi_loop_take(loop, worker))
        continue;
    tsi_guests_close(rank, loop);
}

tsi_loop *tsi_guests_loop_of(ts_rank *rank)
{
    lobby *b = lobby_of(rank);
    return b ? &b->loop[rank->local_index * b->loops] : NULL;
}

/* ---- guests ---------------------------------------------------------------------------------- */

typedef struct guest {
    ts_rank *rank;
    lobby *lobby;
    tsi_guest_wait wait;
} guest;

static bool has_come(const tsi_guest_wait *w)
{
    return atomic_load_explicit(w->word, memory_order_seq_cst) != w->old ||
           (w->is_over && w->is_over(w->context));
}

static bool is_over(const tsi_guest_wait *w)
{
    return has_come(w) || (w->deadline_ns != INT64_MAX && tsi_clock_ns() >= w->deadline_ns);
}

/* The first loop from the next rank on that has pieces left; NULL: none has. */
static tsi_loop *find(const lobby *b, const ts_rank *rank)
{
    if (atomic_load_explicit(&b->open, memory_order_seq_cst) <= 0) return NULL;
    int64_t all = b->ranks * b->loops, at = (rank->local_index + 1) * b->loops;
    for (int64_t i = b->loops; i < all; i++, at++) {
        tsi_loop *loop = &b->loop[at < all ? at : at - all];
        if (tsi_loop_left(loop) > 0) return loop;
    }
    return NULL;
}

/* The same, looking for a moment. */
static tsi_loop *look(const guest *g)
{
    int64_t until = tsi_clock_ns() + LOOK_NS;
    do {
        for (int i = 0; i < LOOKS && !has_come(&g->wait); i++) {
            tsi_loop *loop = find(g->lobby, g->rank);
            if (loop) return loop;
            TSI_CPU_RELAX();
        }
    } while (!is_over(&g->wait) && tsi_clock_ns() < until);
    return NULL;
}

static void go_around(void *context, int64_t begin, int64_t end, int32_t worker)
{
    guest *g = context;
    (void)begin, (void)end;
    for (tsi_loop *loop; !is_over(&g->wait) && (loop = look(g)) != NULL;) {
        if (!tsi_loop_join(loop, TSI_LOOP_GUESTS)) continue;
        int64_t joined_ns = tsi_clock_ns();
        if (tsi_loop_left(loop) > LEFT_FOR_MORE) wake_one(g->lobby, g->rank->local_index);
        while (tsi_loop_take(loop, TSI_GUEST) && !is_over(&g->wait))
            continue;
        tsi_loop_leave(loop);
        if (worker == 0)
            atomic_fetch_add_explicit(&g->rank->helped_ns, tsi_clock_ns() - joined_ns,
                                      memory_order_relaxed);
    }
}

/* With as many threads of the rank as there are pieces. What goes wrong in one is not this rank's.
 */
static void visit(ts_rank *rank, guest *g, int64_t pieces)
{
    ts_rank *current = tsi_rank_current();
    tsi_rank_set_current(NULL);
    tsi_parallel_for(rank, tsi_min_i64(tsi_parallel_threads(rank), pieces), 1, go_around, g);
    tsi_rank_set_current(current);
}

/* Until it is woken, or there is a loop. Called to one it sleeps no more, and waits on. */
static void sleep_in_bed(const ts_rank *rank, guest *g)
{
    tsi_guest_wait *w = &g->wait;
    lie_down(g->lobby, rank->local_index, w->word);
    if (!find(g->lobby, rank)) (void)tsi_wait_word(w->word, w->old, 0, w->deadline_ns);
    bool called = !rise(g->lobby, rank->local_index);
    if (called && w->is_over) w->old = atomic_load_explicit(w->word, memory_order_seq_cst);
}

bool tsi_wait_as_guest(ts_rank *rank, const tsi_guest_wait *w)
{
    guest g = { rank, lobby_of(rank), *w };
    while (g.lobby && !is_over(&g.wait)) {
        tsi_loop *loop = find(g.lobby, rank);
        int64_t left = loop ? tsi_loop_left(loop) : 0;
        if (left > 0)
            visit(rank, &g, left);
        else
            sleep_in_bed(rank, &g);
    }
    if (g.lobby) return has_come(&g.wait);
    return tsi_wait_word(w->word, w->old, 0, w->deadline_ns);
}
