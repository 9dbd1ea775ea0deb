/* SPDX-License-Identifier: Apache-2.0 */
/* slots.h - what this layer keeps in a world: masks, block lists, registered predicates.
 *
 * Masks asked for last are held, so that one that only an attribute names outlives the step that
 * uses it. Block lists are kept by value too, those used last and no more than so many bytes:
 * documents that differ from batch to batch leave new ones behind in every step. */
#ifndef TSI_MASK_SLOTS_H
#define TSI_MASK_SLOTS_H

#include <pthread.h>

#include "base/rank.h"
#include "mask/mask.h"

enum { TSI_MASKS_HELD = 1024, TSI_BLOCKS_KEPT = 64 };
#define TSI_BLOCKS_BYTES ((size_t)256 << 20)

typedef struct tsi_mask_state {
    tsi_intern *masks;
    pthread_mutex_t lock; /* of the rest */
    tsi_mask_user *users; /* the latest first */
    tsi_interned *mask_held[TSI_MASKS_HELD];
    uint32_t mask_next, reserved;
    tsi_mask_blocks *blocks[TSI_BLOCKS_KEPT]; /* the last used first; one reference each */
    int64_t blocks_count;
    size_t blocks_bytes;
} tsi_mask_state;

extern const tsi_intern_type tsi_mask_intern_type;

tsi_mask_state *tsi_mask_state_of(ts_world *world); /* NULL: recorded */
/* Holds one reference more, and lets the oldest go. */
void tsi_mask_hold(tsi_mask_state *state, tsi_interned *mask);

#endif
