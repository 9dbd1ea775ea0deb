/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c - how much tensor memory a rank holds, and for what: the counters of its caching
 * allocator. A step without data is counted by the same. */
#include "array/pool.h"
#include "base/error.h"
#include "base/rank.h"
#include "runtime/record.h"
#include "tessera/event.h"

/* Kinds are those of steps. */
_Static_assert((int)TS_MEMORY_KINDS == (int)TSI_STEP_MEMORY_KINDS, "kinds of memory");

tsi_step_memory tsi_memory_of_tag(uint32_t tag)
{
    switch ((tsi_pool_tag)tag) {
    case TSI_TAG_ACTIVATION:
        return TSI_STEP_MEMORY_ACTIVATION;
    case TSI_TAG_PARAMETER:
        return TSI_STEP_MEMORY_PARAMETER;
    case TSI_TAG_GRADIENT:
        return TSI_STEP_MEMORY_GRADIENT;
    case TSI_TAG_OPTIMIZER:
        return TSI_STEP_MEMORY_OPTIMIZER;
    case TSI_TAG_COMM:
        return TSI_STEP_MEMORY_COMM;
    case TSI_TAG_MIRROR:
        return TSI_STEP_MEMORY_MIRROR;
    case TSI_TAG_GATHERED:
        return TSI_STEP_MEMORY_GATHERED;
    case TSI_TAG_STAGING:
        return TSI_STEP_MEMORY_STAGING;
    case TSI_TAG_OTHER:
        return TSI_STEP_MEMORY_TRANSIENT;
    case TSI_TAG_COUNT:
        break;
    }
    return TSI_STEP_MEMORY_OTHER;
}

const char *ts_memory_kind_name(ts_memory_kind kind)
{
    bool known = (int)kind >= 0 && (int)kind < (int)TS_MEMORY_KINDS;
    return known ? tsi_step_memory_names[kind] : "other";
}

ts_status ts_rank_memory(ts_rank *me, ts_memory *out)
{
    if (!me || !out) return TSI_FAIL(TS_ERR_NULL, "ts_rank_memory: an argument is NULL");
    size_t size = out->struct_size;
    if (size != sizeof *out)
        return TSI_FAIL(TS_ERR_ARG, "ts_rank_memory: struct_size is %zu, expected %zu", size,
                        sizeof *out);
    *out = (ts_memory){ .struct_size = size };
    TSI_TRY(tsi_rank_enter(me));
    const tsi_pool *pool = tsi_pool_of(me);
    if (!pool) return ts_rank_status(me);
    tsi_pool_usage used = tsi_pool_used(pool, -1);
    out->live = used.live;
    out->peak = used.peak;
    out->allocations = used.allocations;
    out->reserved = tsi_pool_reserved(pool);
    for (uint32_t tag = 0; tag < TSI_TAG_COUNT; tag++) {
        tsi_pool_usage one = tsi_pool_used(pool, (int32_t)tag);
        out->at_peak[tsi_memory_of_tag(tag)] += one.at_peak;
        out->most[tsi_memory_of_tag(tag)] += one.peak;
    }
    return TS_OK;
}

ts_status ts_rank_memory_reset(ts_rank *me)
{
    if (!me) return TSI_FAIL(TS_ERR_NULL, "ts_rank_memory_reset: the rank is NULL");
    TSI_TRY(tsi_rank_enter(me));
    tsi_pool *pool = tsi_pool_of(me);
    if (!pool) return ts_rank_status(me);
    tsi_pool_peak_reset(pool);
    return TS_OK;
}
