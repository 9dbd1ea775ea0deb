/* SPDX-License-Identifier: Apache-2.0 */
/* slots.c - the slot of this layer: made on first use, destroyed with the world. */
#include "mask/slots.h"

#include "base/alloc.h"
#include "base/error.h"

/* Arrays keep what they have per rank, so the world's side of their slot is this level's. */
enum { SLOT = TSI_SLOT_ARRAY };

static void destroy_state(void *slot)
{
    tsi_mask_state *state = slot;
    for (int64_t i = 0; i < state->blocks_count; i++)
        tsi_mask_blocks_release(state->blocks[i]);
    tsi_intern_destroy(state->masks);
    for (tsi_mask_user *user = state->users, *next; user; user = next) {
        next = user->next;
        tsi_free(user);
    }
    pthread_mutex_destroy(&state->lock);
    tsi_free(state);
}

static void *create_state(ts_world *world)
{
    (void)world;
    tsi_mask_state *state = tsi_calloc(1, sizeof *state);
    if (!state) {
        tsi_fail_memory("the tables of masks", sizeof *state);
        return NULL;
    }
    pthread_mutex_init(&state->lock, NULL);
    state->masks = tsi_intern_create(&tsi_mask_intern_type);
    if (state->masks) return state;
    destroy_state(state);
    return NULL;
}

tsi_mask_state *tsi_mask_state_of(ts_world *world)
{
    return tsi_world_slot(world, (tsi_slot)SLOT, create_state, destroy_state);
}

void tsi_mask_hold(tsi_mask_state *state, tsi_interned *mask)
{
    pthread_mutex_lock(&state->lock);
    tsi_interned **place = &state->mask_held[state->mask_next++ % TSI_MASKS_HELD];
    tsi_interned *before = *place;
    tsi_interned_retain(mask);
    *place = mask;
    pthread_mutex_unlock(&state->lock);
    if (before) tsi_interned_release(before);
}
