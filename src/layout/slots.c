/* SPDX-License-Identifier: Apache-2.0 */
/* slots.c - the slots of this layer: made on first use, destroyed with the world or the rank. */
#include "layout/slots.h"

#include "base/alloc.h"
#include "base/error.h"

static void clear_recent(tsi_recent *recent)
{
    for (int i = 0; i < TSI_RECENT_SHARDINGS; i++) {
        tsi_free(recent->sharding[i].text);
        ts_sharding_release(recent->sharding[i].sharding);
    }
    for (int i = 0; i < TSI_RECENT_LAYOUTS; i++)
        ts_layout_release(recent->layout[i]);
    for (int i = 0; i < TSI_RECENT_FALLEN; i++)
        if (recent->fallen[i]) tsi_interned_release(recent->fallen[i]);
}

/* Handles hold their parents: each is unlinked and freed without following them. */
static void free_handles(ts_mesh *mesh)
{
    while (mesh) {
        ts_mesh *after = mesh->after;
        tsi_mesh_free(mesh);
        mesh = after;
    }
}

static void destroy_state(void *slot)
{
    tsi_layout_state *state = slot;
    free_handles(state->handles);
    clear_recent(&state->recent);
    tsi_intern_destroy(state->layouts);
    tsi_intern_destroy(state->shardings);
    tsi_intern_destroy(state->meshes);
    pthread_mutex_destroy(&state->lock);
    tsi_free(state);
}

static void *create_state(ts_world *world)
{
    (void)world;
    tsi_layout_state *state = tsi_calloc(1, sizeof *state);
    if (!state) {
        tsi_fail_memory("the tables of layouts", sizeof *state);
        return NULL;
    }
    pthread_mutex_init(&state->lock, NULL);
    state->recent.lock = &state->lock;
    state->meshes = tsi_intern_create(&tsi_mesh_intern_type);
    state->shardings = state->meshes ? tsi_intern_create(&tsi_sharding_intern_type) : NULL;
    state->layouts = state->shardings ? tsi_intern_create(&tsi_layout_intern_type) : NULL;
    if (state->layouts) return state;
    destroy_state(state);
    return NULL;
}

tsi_layout_state *tsi_layout_state_of(ts_world *world)
{
    return tsi_world_slot(world, TSI_SLOT_LAYOUT, create_state, destroy_state);
}

static void destroy_rank(void *slot)
{
    tsi_rank_layouts *layouts = slot;
    free_handles(layouts->handles);
    clear_recent(&layouts->recent);
    tsi_free(layouts);
}

static void *create_rank(ts_rank *rank)
{
    (void)rank;
    tsi_rank_layouts *layouts = tsi_calloc(1, sizeof *layouts);
    if (!layouts) tsi_fail_memory("a rank's memory of layouts", sizeof *layouts);
    return layouts;
}

tsi_rank_layouts *tsi_rank_layouts_of(ts_rank *rank)
{
    return tsi_rank_slot(rank, TSI_SLOT_LAYOUT, create_rank, destroy_rank);
}

tsi_recent *tsi_recent_open(ts_world *world)
{
    ts_rank *rank = tsi_rank_current();
    if (rank && rank->world == world) {
        tsi_rank_layouts *layouts = tsi_rank_layouts_of(rank);
        return layouts ? &layouts->recent : NULL;
    }
    tsi_layout_state *state = tsi_layout_state_of(world);
    if (!state) return NULL;
    pthread_mutex_lock(&state->lock);
    return &state->recent;
}

void tsi_recent_fall(tsi_recent *recent, tsi_interned *value)
{
    if (!value) return;
    tsi_interned **place = &recent->fallen[recent->fallen_next++ % TSI_RECENT_FALLEN];
    if (*place) tsi_interned_release(*place);
    *place = value;
}

ts_status tsi_recent_hold(ts_world *world, tsi_interned *value)
{
    tsi_recent *recent = tsi_recent_open(world);
    if (!recent) {
        tsi_interned_release(value);
        return TS_ERR_MEMORY;
    }
    tsi_recent_fall(recent, value);
    tsi_recent_close(recent);
    return TS_OK;
}
