/* SPDX-License-Identifier: Apache-2.0 */
/* body.c - slabs of bodies, and the one lock between a rank that closes and threads that release.
 *
 *   rank     slabs -> [63 bodies] -> [63 bodies]      its own while its world is open
 *            ended: oldest ... latest                 the oldest is used again once there are many
 *   process  slabs of closed worlds, oldest first     used again alike, if nothing in them is held
 *
 * INV-16: a thread that is not the rank's changes nothing of a body but what it posts, under the
 * lock, and only if the slab has an owner; closing takes the owner away under the same lock. So a
 * finalizer may run at any time. */
#include "tensor/body.h"

#include <pthread.h>

#include "base/alloc.h"
#include "base/log.h"

enum {
    CLOSED_SLABS_KEPT = 1024, /* as many bodies as a rank keeps */
    SLABS_AT_ONCE = 16,       /* for a rank that has many tensors */
    SLABS_LOOKED_AT = 1024,   /* no step has as many tensors */
    SLABS_OF_HUGE_PAGE = TSI_HUGE_PAGE / TSI_SLAB_BYTES
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tsi_slab *closed_first, *closed_last; /* slabs of closed worlds */
static int64_t closed_count;

_Static_assert(sizeof(ts_tensor) == TSI_BODY_BYTES, "a body fills its place");
_Static_assert(sizeof(tsi_slab) == TSI_SLAB_BYTES, "slabs are found by their address");

static void closed_append(tsi_slab *slab)
{
    slab->next = NULL;
    if (closed_count++ == 0)
        closed_first = slab;
    else
        closed_last->next = slab;
    closed_last = slab;
}

static tsi_slab *closed_pop(void)
{
    TSI_ASSERT(closed_count > 0);
    tsi_slab *slab = closed_first;
    closed_first = slab->next;
    closed_count--;
    return slab;
}

/* The oldest slab of a closed world, if there are many and nobody holds a body of it. */
static tsi_slab *closed_take(ts_rank *rank)
{
    tsi_slab *taken = NULL;
    pthread_mutex_lock(&lock);
    for (int64_t i = closed_count; i > 0 && !taken && closed_count > CLOSED_SLABS_KEPT; i--) {
        tsi_slab *slab = closed_pop();
        if (slab->held > 0)
            closed_append(slab);
        else
            taken = slab;
    }
    if (taken) {
        atomic_store_explicit(&taken->owner, rank, memory_order_relaxed);
        taken->used = 0;
    }
    pthread_mutex_unlock(&lock);
    return taken;
}

/* One for a rank's first tensors, then several at once, then a huge page of them if as many are
 * kept: what the system takes to give a small page is much beside the calls that fill it. */
static int32_t reserve_count(const tsi_tensor_state *state)
{
    if (!state->slabs) return 1;
    bool many = state->slabs->next && state->ended_kept >= SLABS_OF_HUGE_PAGE * TSI_SLAB_BODIES;
    return many ? SLABS_OF_HUGE_PAGE : SLABS_AT_ONCE;
}

static bool reserve_fill(tsi_tensor_state *state)
{
    int32_t count = reserve_count(state);
    size_t alignment = count == SLABS_OF_HUGE_PAGE ? TSI_HUGE_PAGE : TSI_SLAB_BYTES;
    tsi_slab *slab = tsi_alloc_kept((size_t)count * sizeof *slab, alignment);
    for (int32_t i = 0; slab && i < count; i++) {
        atomic_init(&slab[i].owner, state->rank);
        slab[i].used = 0;
        slab[i].next = i + 1 < count ? &slab[i + 1] : NULL;
    }
    if (!slab) tsi_fail_memory("tensors", (size_t)count * sizeof *slab);
    state->reserve = slab;
    return slab != NULL;
}

static tsi_slab *slab_make(tsi_tensor_state *state)
{
    tsi_slab *slab = state->reserve ? NULL : closed_take(state->rank);
    if (slab || (!state->reserve && !reserve_fill(state))) return slab;
    slab = state->reserve;
    state->reserve = slab->next;
    return slab;
}

/* The first that was never used of a slab that has one. */
static inline ts_tensor *body_of(tsi_slab *slab)
{
    TSI_ASSERT(slab->used < TSI_SLAB_BODIES);
    ts_tensor *t = &slab->body[slab->used++];
    memset(t, 0, sizeof *t);
    t->post.run = tsi_tensor_posted;
    return t;
}

/* Tensors that nobody ends are seen where a rank needs twice as many as ever: if its root scope has
 * very many of them, that is told, once. */
static void look_at_root(tsi_tensor_state *state)
{
    if (state->slab_count == UINT32_MAX) return;
    uint32_t slabs = ++state->slab_count;
    int64_t held = 0;
    if (slabs < SLABS_LOOKED_AT || (slabs & (slabs - 1)) != 0) return;
    for (const ts_tensor *t = state->frame[0].first; t; t = t->next)
        held++;
    if (held < SLABS_LOOKED_AT / 2 * TSI_SLAB_BODIES) return;
    state->slab_count = UINT32_MAX;
    const char *where = state->rank->where;
    tsi_log(TSI_LOG_WARN,
            "the root scope holds %lld tensors and only grows%s%s: open a scope for each step, or "
            "end what is not needed (ts_tensor_drop)",
            (long long)held, *where ? ", now at " : "", where);
}

static TSI_NOINLINE ts_tensor *body_of_next_slab(tsi_tensor_state *state)
{
    tsi_slab *slab = slab_make(state);
    if (!slab) return NULL;
    look_at_root(state);
    slab->next = state->slabs;
    state->slabs = slab;
    return body_of(slab);
}

ts_tensor *tsi_body_fresh(tsi_tensor_state *state)
{
    tsi_slab *slab = state->slabs;
    if (TSI_LIKELY(slab && slab->used < TSI_SLAB_BODIES)) return body_of(slab);
    return body_of_next_slab(state);
}

/* ---- other threads --------------------------------------------------------------------------- */

/* Of a closed world: the program's count alone is left. Locked. */
static bool release_closed(tsi_slab *slab, ts_tensor *t, bool drop)
{
    if (drop && !t->caller_owns) return true;
    if (t->held == 0) return false;
    if (drop) t->caller_owns = 0;
    if (--t->held > 0) return true;
    t->caller_owns = 0;
    slab->held--;
    return true;
}

void tsi_body_post(ts_tensor *t, bool drop)
{
    tsi_slab *slab = tsi_slab_of(t);
    bool fine = true;
    pthread_mutex_lock(&lock);
    ts_rank *rank = atomic_load_explicit(&slab->owner, memory_order_relaxed);
    if (!rank) {
        fine = release_closed(slab, t, drop);
    } else {
        bool first = t->posted_releases == 0 && t->posted_drops == 0;
        t->posted_releases += !drop;
        t->posted_drops += drop;
        if (first) tsi_rank_tell(rank, &t->post);
    }
    pthread_mutex_unlock(&lock);
    if (!fine)
        TSI_FAIL(TS_ERR_STATE, "ts_tensor_release: the tensor is released more often than it was "
                               "retained, after its world was closed");
}

void tsi_body_posted(ts_tensor *t, int32_t *releases, int32_t *drops)
{
    pthread_mutex_lock(&lock);
    *releases = t->posted_releases;
    *drops = t->posted_drops;
    t->posted_releases = t->posted_drops = 0;
    pthread_mutex_unlock(&lock);
}

/* ---- closing --------------------------------------------------------------------------------- */

/* Gives back what a tensor has that somebody still holds. */
static void body_close(ts_tensor *t)
{
    if (t->references == 0) return;
    if (t->autograd || t->is_variable) tsi_tell(t->rank, TSI_NEWS_DROP, t);
    tsi_tensor_unbind(t);
    t->is_variable = 0;
}

static void slab_close(tsi_slab *slab)
{
    atomic_store_explicit(&slab->owner, NULL, memory_order_relaxed);
    slab->held = 0;
    for (int32_t i = 0; i < slab->used; i++) {
        ts_tensor *t = &slab->body[i];
        t->rank = NULL;
        t->scope = NULL; /* labels go with the rank's ring */
        t->ended = TSI_ENDED_WORLD;
        t->references = t->posted_releases = t->posted_drops = 0;
        slab->held += t->held > 0;
    }
    closed_append(slab);
}

void tsi_bodies_close(tsi_tensor_state *state)
{
    tsi_rank_drain(state->rank);
    for (tsi_slab *slab = state->slabs; slab; slab = slab->next)
        for (int32_t i = 0; i < slab->used; i++)
            body_close(&slab->body[i]);
    pthread_mutex_lock(&lock);
    /* What came since the inbox was emptied is counted here: nothing is left but the count. */
    for (tsi_slab *slab = state->slabs; slab; slab = slab->next)
        for (int32_t i = 0; i < slab->used; i++) {
            ts_tensor *t = &slab->body[i];
            int32_t given = t->posted_releases + (t->posted_drops > 0 && t->caller_owns);
            t->held -= given < t->held ? given : t->held;
            if (t->held == 0 || t->posted_drops > 0) t->caller_owns = 0;
        }
    tsi_post *left = atomic_exchange_explicit(&state->rank->inbox, NULL, memory_order_acquire);
    for (tsi_post *next; left; left = next) { /* of tensors it hears no more */
        next = left->next;
        if (left->run != tsi_tensor_posted) tsi_rank_tell(state->rank, left);
    }
    for (tsi_slab *slab = state->slabs, *next; slab; slab = next) {
        next = slab->next;
        slab_close(slab);
    }
    for (tsi_slab *slab = state->reserve, *next; slab; slab = next) {
        next = slab->next;
        slab_close(slab);
    }
    pthread_mutex_unlock(&lock);
}
