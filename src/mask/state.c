/* SPDX-License-Identifier: Apache-2.0 */
/* state.c - the slot of this layer: made on first use, destroyed with the world. */
#include "mask/state.h"

#include "base/alloc.h"
#include "base/error.h"

/* Arrays keep what they have per rank, so the world's side of their slot is this level's. */
enum { SLOT = TSI_SLOT_ARRAY };

static void destroy_state(void *slot)
{
    tsi_mask_state *state = slot;
    tsi_intern_destroy(state->blocks);
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
    state->blocks = state->masks ? tsi_intern_create(&tsi_blocks_intern_type) : NULL;
    if (state->blocks) return state;
    destroy_state(state);
    return NULL;
}

tsi_mask_state *tsi_mask_state_of(ts_world *world)
{
    return tsi_world_slot(world, (tsi_slot)SLOT, create_state, destroy_state);
}

void tsi_mask_hold(tsi_mask_state *state, tsi_interned *value, bool is_blocks)
{
    pthread_mutex_lock(&state->lock);
    tsi_interned **place = is_blocks ? &state->blocks_held[state->blocks_next++ % TSI_BLOCKS_HELD]
                                     : &state->mask_held[state->mask_next++ % TSI_MASKS_HELD];
    tsi_interned *before = *place;
    tsi_interned_retain(value);
    *place = value;
    pthread_mutex_unlock(&state->lock);
    if (before) tsi_interned_release(before);
}
