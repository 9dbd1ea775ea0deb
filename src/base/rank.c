/* SPDX-License-Identifier: Apache-2.0 */
/* rank.c - the bodies of ranks and worlds, their slots, and the gate of every recorded function.
 *
 * A rank's error, labels and slots are touched by its own thread only; the attached thread is the
 * one whose thread-local points at the rank. World slots are made under the world's lock and
 * published by a release, so reading one takes no lock.
 *
 * INV-16: other threads reach a rank by its inbox alone, which the gate looks at. */
#include "base/rank.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/intmath.h"
#include "base/log.h"

TSI_TLS_DIRECT _Thread_local ts_rank *tsi_attached;

void tsi_rank_set_current(ts_rank *rank)
{
    tsi_attached = rank;
}

/* Of the calling thread, or of no thread: then nobody else writes what is read here. */
static bool may_read(const ts_rank *rank)
{
    return rank == tsi_attached || atomic_load_explicit(&rank->attached, memory_order_acquire) == 0;
}

/* ---- the inbox and the gate ------------------------------------------------------------------ */

void tsi_rank_tell(ts_rank *rank, tsi_post *post)
{
    post->next = atomic_load_explicit(&rank->inbox, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&rank->inbox, &post->next, post,
                                                  memory_order_release, memory_order_relaxed)) {
    }
}

void tsi_rank_drain(ts_rank *rank)
{
    if (atomic_load_explicit(&rank->inbox, memory_order_relaxed) == NULL) return;
    tsi_post *post = atomic_exchange_explicit(&rank->inbox, NULL, memory_order_acquire);
    while (post != NULL) {
        tsi_post *next = post->next; /* from here on it may be posted again */
        post->run(rank, post);
        post = next;
    }
}

static TSI_COLD ts_status enter_slowly(ts_rank *rank)
{
    if (rank == NULL) return TSI_FAIL(TS_ERR_NULL, "a rank is required, got NULL");
    if (rank == tsi_attached) {
        tsi_rank_drain(rank);
        return rank->error.error.status;
    }
    if (tsi_attached == NULL)
        return TSI_FAIL(TS_ERR_THREAD, "rank %lld was used by a thread that is not attached to it",
                        (long long)rank->index);
    return TSI_FAIL(TS_ERR_THREAD, "rank %lld was used by the thread of rank %lld",
                    (long long)rank->index, (long long)tsi_attached->index);
}

TSI_STEP_PATH ts_status tsi_rank_enter(ts_rank *rank)
{
    return rank != NULL && tsi_rank_is_ready(rank) ? TS_OK : enter_slowly(rank);
}

void tsi_rank_take_error(ts_rank *rank, const tsi_error_record *record)
{
    if (rank->error.error.status != TS_OK || record->error.status == TS_OK) return;
    tsi_error_copy(&rank->error, record);
    if (rank->on_error != NULL) rank->on_error(rank, &rank->error.error);
}

void *tsi_world_slot(ts_world *world, tsi_slot slot, void *(*create)(ts_world *world),
                     void (*destroy)(void *state))
{
    tsi_slot_state *s = &world->slot[slot];
    void *state = atomic_load_explicit(&s->state, memory_order_acquire);
    if (TSI_LIKELY(state != NULL)) return state;
    pthread_mutex_lock(
        &world->lock); /* recursive: a layer's state may need that of a lower layer */
    state = atomic_load_explicit(&s->state, memory_order_relaxed);
    if (state == NULL) {
        state = create(world);
        s->destroy = destroy;
        atomic_store_explicit(&s->state, state, memory_order_release);
    }
    pthread_mutex_unlock(&world->lock);
    return state;
}

TSI_STEP_PATH void *tsi_rank_slot(ts_rank *rank, tsi_slot slot, void *(*create)(ts_rank *rank),
                                  void (*destroy)(void *state))
{
    tsi_slot_state *s = &rank->slot[slot];
    void *state = atomic_load_explicit(&s->state, memory_order_relaxed);
    if (TSI_LIKELY(state != NULL)) return state;
    state = create(rank);
    s->destroy = destroy;
    atomic_store_explicit(&s->state, state, memory_order_relaxed);
    return state;
}

/* The state stays in its slot while it is destroyed: what it releases may still ask for it. */
static void slot_destroy(tsi_slot_state *slot)
{
    void *state = atomic_load_explicit(&slot->state, memory_order_acquire);
    if (state != NULL && slot->destroy != NULL) slot->destroy(state);
    atomic_store_explicit(&slot->state, NULL, memory_order_release);
}

static ts_status rank_make(ts_world *world, int64_t local_index, int64_t events)
{
    ts_rank *rank = tsi_calloc(1, sizeof *rank);
    if (rank == NULL) return tsi_fail_memory("a rank", sizeof *rank);
    world->rank[local_index] = rank;
    rank->world = world;
    rank->index = world->first_index + local_index;
    rank->local_index = local_index;
    rank->where = "";
    rank->label = "";
    tsi_error_clear(&rank->error);
    tsi_error_clear(&rank->caught);
    rank->ring = tsi_ring_create(events);
    return rank->ring != NULL ? TS_OK : TS_ERR_MEMORY;
}

static ts_status lock_make(pthread_mutex_t *lock)
{
    pthread_mutexattr_t attributes;
    if (pthread_mutexattr_init(&attributes) != 0) return tsi_fail_memory("a mutex", sizeof *lock);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    return TS_OK;
}

ts_status tsi_world_make(int64_t rank_count, int64_t local_count, int64_t first_index,
                         int64_t events, ts_world **out)
{
    *out = NULL;
    if (local_count < 1 || first_index < 0 || first_index > rank_count - local_count)
        return TSI_FAIL(TS_ERR_ARG, "a world of %lld ranks cannot have ranks %lld to %lld here",
                        (long long)rank_count, (long long)first_index,
                        (long long)(first_index + local_count - 1));
    ts_world *world = tsi_calloc(1, sizeof *world);
    if (world == NULL) return tsi_fail_memory("a world", sizeof *world);
    world->rank_count = rank_count;
    world->local_count = local_count;
    world->first_index = first_index;
    world->local_first = -1;
    ts_status status = lock_make(&world->lock);
    if (status != TS_OK) {
        tsi_free(world);
        return status;
    }
    world->rank = tsi_calloc((size_t)local_count, sizeof *world->rank);
    if (world->rank == NULL)
        status = tsi_fail_memory("the list of ranks", (size_t)local_count * sizeof *world->rank);
    for (int64_t i = 0; status == TS_OK && i < local_count; i++)
        status = rank_make(world, i, events);
    if (status == TS_OK)
        *out = world;
    else
        tsi_world_unmake(world);
    return status;
}

void tsi_world_settle_nodes(ts_world *world)
{
    int32_t *node = world->node, count = 0;
    int64_t unit = 0; /* all places where another node begins are multiples of it */
    bool plain = true;
    if (node == NULL) {
        if (world->node_ranks == 0) world->node_ranks = world->rank_count;
        return;
    }
    for (int64_t r = 1; r < world->rank_count; r++)
        if (node[r] != node[r - 1]) unit = tsi_gcd(r, unit);
    world->node_ranks = unit > 0 ? unit : world->rank_count;
    for (int64_t r = 0; r < world->rank_count; r++) {
        node[r] = node[r] == r ? count++ : node[node[r]];
        plain &= node[r] == r / world->node_ranks;
    }
    if (!plain) return;
    tsi_free(node);
    world->node = NULL;
}

void tsi_world_unmake(ts_world *world)
{
    if (world == NULL) return;
    /* A high layer's state may use a lower layer's, of its rank or of another, to the last. */
    for (int slot = TSI_SLOT_COUNT - 1; slot >= 0; slot--)
        for (int64_t i = 0; world->rank != NULL && i < world->local_count; i++)
            if (world->rank[i] != NULL) slot_destroy(&world->rank[i]->slot[slot]);
    for (int slot = TSI_SLOT_COUNT - 1; slot >= 0; slot--)
        slot_destroy(&world->slot[slot]);
    for (int64_t i = 0; world->rank != NULL && i < world->local_count; i++) {
        if (world->rank[i] == NULL) continue;
        if (world->rank[i] == tsi_attached) tsi_attached = NULL;
        tsi_ring_destroy(world->rank[i]->ring);
        tsi_places_destroy(world->rank[i]->places);
        tsi_free(world->rank[i]);
    }
    tsi_free(world->rank);
    tsi_free(world->node);
    pthread_mutex_destroy(&world->lock);
    tsi_free(world);
    tsi_log_flush();
}

TSI_STEP_PATH ts_status ts_rank_status(const ts_rank *me)
{
    if (me == NULL) return TS_ERR_NULL;
    return may_read(me) ? me->error.error.status : TS_ERR_THREAD;
}

const ts_error *ts_rank_error(const ts_rank *me)
{
    if (me == NULL || !may_read(me)) return NULL;
    if (me->error.error.status != TS_OK) return &me->error.error;
    return me->caught.error.status != TS_OK ? &me->caught.error : NULL;
}

ts_status ts_rank_fail(ts_rank *me, ts_status status, const char *format, ...)
{
    ts_status entered = tsi_rank_enter(me);
    if (entered != TS_OK) return entered;
    if (status >= TS_OK)
        return TSI_FAIL(TS_ERR_ARG, "ts_rank_fail: status %d is not an error", (int)status);
    /* The status says how far it reaches, as for our own errors: a bad argument is taken to be bad
     * on every rank, so that a catching scope suffices; a rank that fails alone meets its peers in
     * a mismatch, never in silence. */
    va_list arguments;
    va_start(arguments, format);
    (void)tsi_fail_va(TS_BLAST_NONE, status, format, arguments);
    va_end(arguments);
    return status;
}

int64_t ts_rank_index(const ts_rank *me)
{
    return me != NULL ? me->index : -1;
}

int64_t ts_rank_count(const ts_rank *me)
{
    return me != NULL ? me->world->rank_count : 0;
}

ts_world *ts_rank_world(const ts_rank *me)
{
    return me != NULL ? me->world : NULL;
}

ts_rank *ts_rank_current(void)
{
    return tsi_attached;
}

static void be_at(ts_rank *rank, const char *place)
{
    rank->where = place;
    rank->placed = 1;
}

void ts_here_literal(const char *place)
{
    if (tsi_attached != NULL && place != NULL) be_at(tsi_attached, place);
}

void(ts_here)(const char *place)
{
    if (tsi_attached != NULL && place != NULL)
        be_at(tsi_attached, tsi_place_of(tsi_attached, place));
}

const char *tsi_here_within(const char *place)
{
    if (tsi_attached == NULL || tsi_attached->placed) return NULL;
    while (place[0] == '.' && place[1] == '.' && place[2] == '/') /* of a build below the sources */
        place += 3;
    tsi_attached->where = place;
    return NULL;
}

int64_t ts_world_size(const ts_world *world)
{
    return world != NULL ? world->rank_count : 0;
}

int64_t ts_world_node(const ts_world *world, int64_t rank)
{
    if (world == NULL || rank < 0 || rank >= world->rank_count) return -1;
    return tsi_world_node(world, rank);
}

int64_t ts_world_local_count(const ts_world *world)
{
    return world != NULL ? world->local_count : 0;
}
