/* SPDX-License-Identifier: Apache-2.0 */
/* cache.c - the world's topology and its bounded cache of plans (see cache.h). */
#include "plan/cache.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/hash.h"

enum { STRIPES = 16, SETS = 16, WAYS = 4 };

typedef struct entry {
    tsi_plan_key key;
    ts_plan *plan; /* NULL: free */
    uint64_t used; /* of the stripe's clock */
} entry;

typedef struct stripe {
    pthread_mutex_t lock;
    uint64_t clock;
    int64_t hits, misses, evicted, live;
    entry set[SETS][WAYS];
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
        for (int32_t j = 0; j < SETS * WAYS; j++) ts_plan_release(state->stripe[i].set[j / WAYS][j % WAYS].plan);
        pthread_mutex_destroy(&state->stripe[i].lock);
    }
    pthread_mutex_destroy(&state->lock);
    tsi_free(state);
}

static void *plan_state_create(ts_world *world)
{
    (void)world;
    plan_state *state = tsi_calloc(1, sizeof *state);
    if (!state) {
        (void)tsi_fail_memory("the cache of plans", sizeof *state);
        return NULL;
    }
    pthread_mutex_init(&state->lock, NULL);
    for (int32_t i = 0; i < STRIPES; i++) pthread_mutex_init(&state->stripe[i].lock, NULL);
    if (ts_topology_preset("threads", &state->topology) != TS_OK) {
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
    entry *set = s->set[hash / STRIPES % SETS];
    ts_plan *found = NULL;
    pthread_mutex_lock(&s->lock);
    for (int32_t i = 0; i < WAYS; i++) {
        if (!set[i].plan || !same_key(&set[i].key, key)) continue;
        found = ts_plan_retain(set[i].plan);
        set[i].used = ++s->clock;
        break;
    }
    if (found) s->hits++;
    else s->misses++;
    pthread_mutex_unlock(&s->lock);
    return found;
}

void tsi_plan_cache_add(ts_world *world, const tsi_plan_key *key, ts_plan *plan)
{
    plan_state *state = state_of(world);
    if (!state) return;
    uint64_t hash = hash_of(key);
    stripe *s = &state->stripe[hash % STRIPES];
    entry *set = s->set[hash / STRIPES % SETS], *victim = &set[0];
    pthread_mutex_lock(&s->lock);
    for (int32_t i = 0; i < WAYS; i++) {
        if (set[i].plan && same_key(&set[i].key, key)) {
            victim = &set[i]; /* another thread was as fast: the plans are equal */
            break;
        }
        if (victim->plan && (!set[i].plan || set[i].used < victim->used)) victim = &set[i];
    }
    ts_plan *old = victim->plan;
    if (!old) s->live++;
    else if (!same_key(&victim->key, key)) s->evicted++;
    *victim = (entry){ *key, ts_plan_retain(plan), ++s->clock };
    pthread_mutex_unlock(&s->lock);
    ts_plan_release(old);
}

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
    if (!world || !topology) return TSI_FAIL(TS_ERR_NULL, "topology: the world or the topology is NULL");
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
    return TS_OK;
}

ts_status ts_plan_cache_clear(ts_world *world)
{
    if (!world) return TSI_FAIL(TS_ERR_NULL, "plan cache: the world is NULL");
    plan_state *state = state_of(world);
    if (!state) return TS_ERR_MEMORY;
    for (int32_t i = 0; i < STRIPES; i++) {
        stripe *s = &state->stripe[i];
        pthread_mutex_lock(&s->lock);
        for (int32_t j = 0; j < SETS * WAYS; j++) {
            ts_plan_release(s->set[j / WAYS][j % WAYS].plan);
            s->set[j / WAYS][j % WAYS] = (entry){ 0 };
        }
        s->live = 0;
        pthread_mutex_unlock(&s->lock);
    }
    return TS_OK;
}
