/* SPDX-License-Identifier: Apache-2.0 */
/* state.h - what this layer keeps in a world: masks, block lists, registered predicates.
 *
 * The values asked for last are held, so that a mask that only an attribute names outlives the step
 * that uses it. */
#ifndef TSI_MASK_STATE_H
#define TSI_MASK_STATE_H

#include <pthread.h>

#include "base/rank.h"
#include "mask/mask.h"

enum { TSI_MASKS_HELD = 1024, TSI_BLOCKS_HELD = 256 };

typedef struct tsi_mask_state {
    tsi_intern *masks, *blocks;
    pthread_mutex_t lock; /* of the rest */
    tsi_mask_user *users; /* the latest first */
    tsi_interned *mask_held[TSI_MASKS_HELD], *blocks_held[TSI_BLOCKS_HELD];
    uint32_t mask_next, blocks_next;
} tsi_mask_state;

extern const tsi_intern_type tsi_mask_intern_type, tsi_blocks_intern_type;

tsi_mask_state *tsi_mask_state_of(ts_world *world); /* NULL: recorded */
/* Holds one reference more, and lets the oldest go. */
void tsi_mask_hold(tsi_mask_state *state, tsi_interned *value, bool is_blocks);

#endif
