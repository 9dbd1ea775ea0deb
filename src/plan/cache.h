/* SPDX-License-Identifier: Apache-2.0 */
/* cache.h - what this layer keeps in a world: its topology and the plans made lately.
 *
 * Plans are found by the pointers of their interned layouts and the numbers of the question; a plan
 * holds its layouts, so a pointer in a key cannot come to mean another layout. The table is
 * bounded: sets of four, the least recently used of a set goes. One uncontended lock per lookup;
 * stripes keep ranks apart. */
#ifndef TSI_PLAN_CACHE_H
#define TSI_PLAN_CACHE_H

#include "plan/plan.h"

typedef struct tsi_plan_key {
    const ts_layout *src, *dst;
    uint64_t topology; /* generation of the world's, or hash of the caller's with the top bit set */
    int64_t budget_bytes;
    int32_t dtype, planner, staged;
    uint32_t forbid;
} tsi_plan_key;

/* A held plan, or NULL. */
ts_plan *tsi_plan_cache_find(ts_world *world, const tsi_plan_key *key);
/* Keeps a reference of its own. Memory trouble only means that the plan is not kept. */
void tsi_plan_cache_add(ts_world *world, const tsi_plan_key *key, ts_plan *plan);

/* What a rank does most: the plan for default options (`staged`: see
 * ts_plan_options), from its own small table, without a lock or a count. Borrowed:
 * valid until this rank asks again; retain to keep it longer. Only the rank's own thread asks. */
ts_status tsi_plan_for(ts_rank *rank, const ts_layout *src, const ts_layout *dst, ts_dtype dtype,
                       bool staged, ts_plan **out);

#endif
