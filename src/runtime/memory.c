/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c - how much tensor memory a rank holds: the counters of its caching allocator. */
#include "array/pool.h"
#include "base/error.h"
#include "base/rank.h"
#include "tessera/event.h"

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
