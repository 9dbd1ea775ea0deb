/* SPDX-License-Identifier: Apache-2.0 */
/* bytes_util.h - what ranks received, and what operators stated, for tests that compare them. */
#ifndef TESTS_DIST_BYTES_UTIL_H
#define TESTS_DIST_BYTES_UTIL_H

#include "tessera/comm.h"
#include "tessera/event.h"
#include "tessera/op_query.h"

/* Bytes of exchanges and collectives after an event; -1: they were not counted. */
static inline int64_t received(const ts_rank *me, uint64_t since)
{
    ts_counts counts = TS_INIT(ts_counts);
    int64_t total = 0;
    if (ts_rank_counts(me, since, &counts) != TS_OK) return -1;
    for (int64_t i = 0; i < counts.row_count; i++)
        total += counts.row[i].bytes;
    return total;
}

/* [coll] The same of all members together. */
static inline int64_t received_by_all(ts_group *group, uint64_t since)
{
    int64_t bytes = received(ts_rank_current(), since);
    ts_array sum = TS_INIT(ts_array);
    sum.data = &bytes;
    sum.meta = (ts_meta){ .shape = TS_SHAPE_SCALAR, .dtype = TS_DTYPE_I64 };
    ts_status status = ts_group_all_reduce(group, &sum, &sum, TS_REDUCE_SUM, NULL);
    return status == TS_OK ? bytes : -1;
}

/* Bytes that operators stated so far, of all ranks. */
static inline int64_t stated(ts_rank *me)
{
    ts_op_cache_stats stats = TS_INIT(ts_op_cache_stats);
    (void)ts_op_cache_statistics(me, &stats);
    return stats.implicit_bytes;
}

/* Who holds an index of a dim that is cut into chunks. */
static inline int64_t holder(int64_t index, int64_t extent, int64_t ranks)
{
    return index / ((extent + ranks - 1) / ranks);
}

#endif
