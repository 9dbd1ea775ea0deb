/* SPDX-License-Identifier: Apache-2.0 */
/* common.h - what the ranks of a process share in this layer: a world has one slot for it, and each
 * of its users a place there. */
#ifndef TSI_PARALLEL_COMMON_H
#define TSI_PARALLEL_COMMON_H

#include "base/rank.h"

typedef enum tsi_common {
    TSI_COMMON_SHARDS, /* shared.c */
    TSI_COMMON_LOANS,  /* lend.c */
    TSI_COMMON_COUNT
} tsi_common;

/* As tsi_world_slot: made on first use, destroyed with the world. NULL: recorded. */
void *tsi_common_of(ts_world *world, tsi_common which, void *(*create)(ts_world *world),
                    void (*destroy)(void *state));

#endif
