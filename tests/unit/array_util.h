/* SPDX-License-Identifier: Apache-2.0 */
/* array_util.h - a world of one rank for tests of arrays, without a launch. */
#ifndef TESTS_UNIT_ARRAY_UTIL_H
#define TESTS_UNIT_ARRAY_UTIL_H

#include "array/array.h"
#include "base/alloc.h"
#include "harness/test.h"

static inline ts_rank *rank_open(test *t, ts_world **world)
{
    TEST_OK(t, tsi_world_make(1, 1, 0, 64, world));
    tsi_rank_set_current((*world)->rank[0]);
    return (*world)->rank[0];
}

/* The sentence a rank kept, and the rank healthy again. */
static inline const char *take_error(ts_rank *rank)
{
    tsi_error_copy(&rank->caught, &rank->error);
    rank->error.error.status = TS_OK;
    return rank->caught.text;
}

static inline void rank_close(test *t, ts_world *world)
{
    tsi_rank_set_current(NULL);
    tsi_world_unmake(world);
    TEST_EQ(t, tsi_alloc_live(), 0);
}

#endif
