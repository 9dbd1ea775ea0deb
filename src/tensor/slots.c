/* SPDX-License-Identifier: Apache-2.0 */
/* slots.c - what the tensor layer keeps for a rank: frames, bodies, handles on meshes.
 *
 * Made on first use, destroyed with the rank: whatever the program left open is closed then, so a
 * rank leaves nothing behind even after an error. */
#include "base/alloc.h"
#include "base/compiler.h"
#include "base/intmath.h"
#include "tensor/body.h"
#include "tensor/move.h"
#include "tensor/program.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"
#include "tensor/union.h"

enum { ENDED_KEPT = 65536, ENDED_KEPT_LEAST = 4096, ENDED_KEPT_PROCESS = 1 << 20 };

/* Ended tensors whose handles are refused for sure: see design note 0022. */
static int64_t ended_kept(const ts_world *world)
{
    if (world->handles_kept > 0) return world->handles_kept;
    if (TSI_SANITIZED) return INT64_MAX;
    int64_t share = tsi_min_i64(ENDED_KEPT, ENDED_KEPT_PROCESS / world->local_count);
    return tsi_max_i64(share, ENDED_KEPT_LEAST);
}

static void release_values(tsi_map *map, void (*release)(void *value))
{
    for (size_t i = 0; i < map->capacity; i++)
        if (map->entry[i].value) release(map->entry[i].value);
    tsi_map_release(map);
}

static void release_mesh(void *mesh)
{
    ts_mesh_release(mesh);
}

static void state_destroy(void *argument)
{
    tsi_tensor_state *state = argument;
    tsi_frames_release(state);
    tsi_bodies_close(state);
    tsi_moves_release(state);
    tsi_programs_release(state);
    tsi_unions_release(state);
    tsi_mesh_each(state->rank, tsi_mesh_groups_drop, NULL);
    release_values(&state->meshes, release_mesh);
    release_values(&state->ordinals, tsi_free);
    tsi_spare_layouts_release(state);
    tsi_arena_release(&state->scratch);
    tsi_free(state);
}

static void *state_create(ts_rank *rank)
{
    tsi_tensor_state *state = tsi_calloc(1, sizeof *state);
    if (!state) {
        tsi_fail_memory("the tensor state of a rank", sizeof *state);
        return NULL;
    }
    state->rank = rank;
    state->ended_kept = ended_kept(rank->world);
    if (tsi_frames_begin(rank, state) != TS_OK) {
        tsi_free(state);
        return NULL;
    }
    return state;
}

tsi_tensor_state *tsi_tensor_state_of(ts_rank *rank)
{
    tsi_tensor_state *state = tsi_slot_get(rank, TSI_SLOT_TENSOR);
    if (TSI_LIKELY(state != NULL)) return state;
    return tsi_rank_slot(rank, TSI_SLOT_TENSOR, state_create, state_destroy);
}

ts_mesh *tsi_mesh_of(ts_rank *rank, tsi_mesh_desc *desc)
{
    tsi_tensor_state *state = tsi_tensor_state_of(rank);
    if (!state) return NULL;
    uint64_t key = tsi_hash_mix(0x6d657368, (uint64_t)(uintptr_t)desc);
    ts_mesh *mesh = tsi_map_find(&state->meshes, key, NULL, NULL);
    if (mesh) return mesh;
    tsi_interned_retain(&desc->interned);
    mesh = tsi_mesh_handle(rank->world, rank, desc);
    if (!mesh) return NULL;
    if (tsi_map_insert(&state->meshes, key, mesh) != TS_OK) {
        ts_mesh_release(mesh);
        return NULL;
    }
    return mesh;
}
