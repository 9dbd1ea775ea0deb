/* SPDX-License-Identifier: Apache-2.0 */
/* cache.c - the world's topology and its bounded cache of plans (see cache.h). */
#include "plan/cache.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/error.h"
#include "base/hash.h"

enum { STRIPES = 16, SETS = 16, WAYS = 4 };

typedef struct cache_entry {
    tsi_plan_key key;
    ts_plan *plan; /* NULL: free */
    uint64_t used; /* of the stripe's clock */
} cache_entry;

typedef struct stripe {
    pthread_mutex_t lock;
    uint64_t clock;
    int64_t hits, misses, evicted, live;
    cache_entry set[SETS][WAYS];
} stripe;

typedef struct plan_state {
    pthread_mutex_t lock; /* guards topology */
    ts_topology topology;
    stripe stripe[STRIPES];
} plan_state;

static void plan_state_destroy(void *pointer)
{
    plan_state *state = pointer;
    for (int32_t i = 0; i < STRIPES; i++) {
        for (int32_t j = 0; j < SETS * WAYS; j++)
            ts_plan_release(state->stripe[i].set[j / WAYS][j % WAYS].plan);
        pthread_mutex_destroy(&state->stripe[i].lock);
    }
    pthread_mutex_destroy(&state->lock);
    tsi_free(state);
}

static void *plan_state_create(ts_world *world)
{
    plan_state *state = tsi_calloc(1, sizeof *state);
    if (!state) {
        (void)tsi_fail_memory("the cache of plans", sizeof *state);
        return NULL;
    }
    pthread_mutex_init(&state->lock, NULL);
    for (int32_t i = 0; i < STRIPES; i++)
        pthread_mutex_init(&state->stripe[i].lock, NULL);
    if (tsi_topology_find(world, &state->topology) != TS_OK) {
        plan_state_destroy(state);
        return NULL;
    }
    return state;
}

static plan_state *state_of(ts_world *world)
{
    return tsi_world_slot(world, TSI_SLOT_PLAN, plan_state_create, plan_state_destroy);
}

static uint64_t hash_of(const tsi_plan_key *key)
{
    uint64_t h = (uint64_t)(uintptr_t)key->src * 0x9E3779B97F4A7C15u;
    h = (h ^ (uint64_t)(uintptr_t)key->dst) * 0xD6E8FEB86659FD93u;
    h ^= h >> 32;
    h = (h ^ key->topology ^ (uint64_t)key->budget_bytes << 7) * 0x9E3779B97F4A7C15u;
    h ^= (uint64_t)(uint32_t)key->dtype << 3 ^ (uint64_t)(uint32_t)key->planner << 9 ^
         (uint64_t)key->forbid << 15 ^ (uint64_t)(uint32_t)key->staged << 21;
    h *= 0xD6E8FEB86659FD93u;
    return h ^ h >> 29;
}

static bool same_key(const tsi_plan_key *a, const tsi_plan_key *b)
{
    return a->src == b->src && a->dst == b->dst && a->topology == b->topology &&
           a->budget_bytes == b->budget_bytes && a->dtype == b->dtype && a->planner == b->planner &&
           a->staged == b->staged && a->forbid == b->forbid;
}

ts_plan *tsi_plan_cache_find(ts_world *world, const tsi_plan_key *key)
{
    plan_state *state = state_of(world);
    if (!state) return NULL;
    uint64_t hash = hash_of(key);
    stripe *s = &state->stripe[hash % STRIPES];
    cache_entry *set = s->set[hash / STRIPES % SETS];
    ts_plan *found = NULL;
    pthread_mutex_lock(&s->lock);
    for (int32_t i = 0; i < WAYS; i++) {
        if (!set[i].plan || !same_key(&set[i].key, key)) continue;
        found = ts_plan_retain(set[i].plan);
        set[i].used = ++s->clock;
        break;
    }
    if (found)
        s->hits++;
    else
        s->misses++;
    pthread_mutex_unlock(&s->lock);
    return found;
}

void tsi_plan_cache_add(ts_world *world, const tsi_plan_key *key, ts_plan *plan)
{
    plan_state *state = state_of(world);
    if (!state) return;
    uint64_t hash = hash_of(key);
    stripe *s = &state->stripe[hash % STRIPES];
    cache_entry *set = s->set[hash / STRIPES % SETS], *victim = &set[0];
    pthread_mutex_lock(&s->lock);
    for (int32_t i = 0; i < WAYS; i++) {
        if (set[i].plan && same_key(&set[i].key, key)) {
            victim = &set[i]; /* another thread was as fast: the plans are equal */
            break;
        }
        if (victim->plan && (!set[i].plan || set[i].used < victim->used)) victim = &set[i];
    }
    ts_plan *old = victim->plan;
    if (!old)
        s->live++;
    else if (!same_key(&victim->key, key))
        s->evicted++;
    *victim = (cache_entry){ *key, ts_plan_retain(plan), ++s->clock };
    pthread_mutex_unlock(&s->lock);
    ts_plan_release(old);
}

/* ---- one rank's table ----------------------------------------------------------------------- */

enum { RANK_PLANS = 128 };

typedef struct rank_entry {
    const ts_layout *src, *dst;
    ts_plan *plan; /* retained, or NULL */
    uint32_t generation;
    int16_t dtype, staged;
} rank_entry;

typedef struct rank_plans {
    _Atomic int64_t hits; /* written by the rank's thread, read by anybody */
    rank_entry entry[RANK_PLANS];
} rank_plans;

static void rank_plans_destroy(void *pointer)
{
    rank_plans *plans = pointer;
    for (int32_t i = 0; i < RANK_PLANS; i++)
        ts_plan_release(plans->entry[i].plan);
    tsi_free(plans);
}

static void *rank_plans_create(ts_rank *rank)
{
    (void)rank;
    rank_plans *plans = tsi_calloc(1, sizeof *plans);
    if (!plans) (void)tsi_fail_memory("a rank's table of plans", sizeof *plans);
    return plans;
}

static TSI_NOINLINE ts_status rank_miss(rank_entry *entry, const rank_entry *wanted, ts_plan **out)
{
    tsi_plan_key key = { .src = wanted->src,
                         .dst = wanted->dst,
                         .topology = wanted->generation,
                         .dtype = wanted->dtype,
                         .planner = TSI_PLANNER_AUTO,
                         .staged = wanted->staged };
    ts_world *world = wanted->src->sharding->mesh->world;
    ts_plan *plan = tsi_plan_cache_find(world, &key);
    if (!plan) {
        ts_plan_options options = { .struct_size = sizeof options, .staged = wanted->staged };
        TSI_TRY(ts_plan_create(wanted->src, wanted->dst, (ts_dtype)wanted->dtype, &options, &plan));
        tsi_plan_cache_add(world, &key, plan);
    }
    ts_plan_release(entry->plan);
    *entry = *wanted;
    entry->plan = plan;
    *out = plan;
    return TS_OK;
}

ts_status tsi_plan_for(ts_rank *rank, const ts_layout *src, const ts_layout *dst, ts_dtype dtype,
                       bool staged, ts_plan **out)
{
    *out = NULL;
    rank_plans *plans = tsi_rank_slot(rank, TSI_SLOT_PLAN, rank_plans_create, rank_plans_destroy);
    if (TSI_UNLIKELY(!plans)) return TS_ERR_MEMORY;
    uint64_t h = ((uint64_t)(uintptr_t)src ^ (uint64_t)(uintptr_t)dst << 17 ^ (uint64_t)dtype << 3 ^
                  (uint64_t)staged) *
                 0x9E3779B97F4A7C15u;
    rank_entry *entry = &plans->entry[(h >> 40) % RANK_PLANS];
    uint32_t generation = atomic_load_explicit(&rank->world->generation, memory_order_acquire);
    if (TSI_LIKELY(entry->src == src && entry->dst == dst && entry->dtype == (int16_t)dtype &&
                   entry->staged == (int16_t)staged && entry->generation == generation)) {
        int64_t hits = atomic_load_explicit(&plans->hits, memory_order_relaxed);
        atomic_store_explicit(&plans->hits, hits + 1, memory_order_relaxed);
        *out = entry->plan;
        return TS_OK;
    }
    rank_entry wanted = { .src = src,
                          .dst = dst,
                          .generation = generation,
                          .dtype = (int16_t)dtype,
                          .staged = (int16_t)staged };
    return rank_miss(entry, &wanted, out);
}

/* ---- the world's topology and counters ------------------------------------------------------ */

ts_status ts_topology_of(ts_world *world, ts_topology *out)
{
    if (!world || !out) return TSI_FAIL(TS_ERR_NULL, "topology: the world or the output is NULL");
    memset(out, 0, sizeof *out);
    plan_state *state = state_of(world);
    if (!state) return TS_ERR_MEMORY;
    pthread_mutex_lock(&state->lock);
    *out = state->topology;
    pthread_mutex_unlock(&state->lock);
    return TS_OK;
}

ts_status ts_topology_set(ts_world *world, const ts_topology *topology)
{
    if (!world || !topology)
        return TSI_FAIL(TS_ERR_NULL, "topology: the world or the topology is NULL");
    if (topology->struct_size < sizeof *topology) {
        return TSI_FAIL(TS_ERR_ARG, "topology: struct_size is %zu, begin with ts_topology_preset",
                        topology->struct_size);
    }
    TSI_TRY(tsi_topology_check(topology));
    plan_state *state = state_of(world);
    if (!state) return TS_ERR_MEMORY;
    pthread_mutex_lock(&state->lock);
    state->topology = *topology;
    atomic_fetch_add_explicit(&world->generation, 1, memory_order_release);
    pthread_mutex_unlock(&state->lock);
    return TS_OK;
}

ts_status ts_plan_cache_statistics(ts_world *world, ts_plan_cache_stats *out)
{
    if (!world || !out) return TSI_FAIL(TS_ERR_NULL, "plan cache: the world or the output is NULL");
    memset(out, 0, sizeof *out);
    plan_state *state = state_of(world);
    if (!state) return TS_ERR_MEMORY;
    out->capacity = STRIPES * SETS * WAYS;
    for (int32_t i = 0; i < STRIPES; i++) {
        stripe *s = &state->stripe[i];
        pthread_mutex_lock(&s->lock);
        out->live += s->live;
        out->hits += s->hits;
        out->misses += s->misses;
        out->evicted += s->evicted;
        pthread_mutex_unlock(&s->lock);
    }
    for (int64_t i = 0; i < world->local_count; i++) {
        if (!world->rank[i]) continue;
        rank_plans *plans =
            atomic_load_explicit(&world->rank[i]->slot[TSI_SLOT_PLAN].state, memory_order_acquire);
        if (plans) out->hits += atomic_load_explicit(&plans->hits, memory_order_relaxed);
    }
    return TS_OK;
}

ts_status ts_plan_cache_clear(ts_world *world)
{
    if (!world) return TSI_FAIL(TS_ERR_NULL, "plan cache: the world is NULL");
    plan_state *state = state_of(world);
    if (!state) return TS_ERR_MEMORY;
    atomic_fetch_add_explicit(&world->generation, 1, memory_order_release); /* ranks' tables */
    for (int32_t i = 0; i < STRIPES; i++) {
        stripe *s = &state->stripe[i];
        pthread_mutex_lock(&s->lock);
        for (int32_t j = 0; j < SETS * WAYS; j++) {
            ts_plan_release(s->set[j / WAYS][j % WAYS].plan);
            s->set[j / WAYS][j % WAYS] = (cache_entry){ 0 };
        }
        s->live = 0;
        pthread_mutex_unlock(&s->lock);
    }
    return TS_OK;
}
