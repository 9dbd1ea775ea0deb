/* SPDX-License-Identifier: Apache-2.0 */
/* bytes_util.h - what a rank received, for tests that know what it must receive. */
#ifndef TESTS_DIST_BYTES_UTIL_H
#define TESTS_DIST_BYTES_UTIL_H

#include "tessera/event.h"

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

/* Who holds an index of a dim that is cut into chunks. */
static inline int64_t holder(int64_t index, int64_t extent, int64_t ranks)
{
    return index / ((extent + ranks - 1) / ranks);
}

#endif
