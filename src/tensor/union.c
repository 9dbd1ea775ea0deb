/* SPDX-License-Identifier: Apache-2.0 */
/* union.c - the ranks of two meshes as one group, kept per pair of meshes for the life of the rank.
 */
#include "tensor/union.h"

#include "base/alloc.h"

static uint64_t rank_key(int64_t world_rank)
{
    return tsi_hash_mix(0x72616e6b, (uint64_t)world_rank);
}

int64_t tsi_union_member(const tsi_union *both, int64_t world_rank)
{
    const int64_t *place = tsi_map_find(&both->members, rank_key(world_rank), NULL, NULL);
    return place ? place - both->rank : -1;
}

/* Appends the ranks of a mesh that are not there yet. */
static ts_status add_mesh(tsi_union *both, const tsi_mesh_desc *mesh)
{
    int64_t coord[TS_NDIM_MAX];
    for (int64_t i = 0; i < mesh->count; i++) {
        tsi_mesh_desc_unravel(mesh, i, coord);
        int64_t world_rank = tsi_mesh_desc_rank(mesh, coord);
        if (tsi_union_member(both, world_rank) >= 0) continue;
        both->rank[both->count] = world_rank;
        TSI_TRY(tsi_map_insert(&both->members, rank_key(world_rank), &both->rank[both->count]));
        both->count++;
    }
    return TS_OK;
}

static void union_destroy(tsi_union *both)
{
    ts_group_release(both->group);
    tsi_map_release(&both->members);
    tsi_interned_release(&both->src->interned);
    tsi_interned_release(&both->dst->interned);
    tsi_free(both->rank);
    tsi_free(both);
}

static tsi_union *union_make(ts_rank *rank, tsi_mesh_desc *src, tsi_mesh_desc *dst)
{
    tsi_union *both = tsi_calloc(1, sizeof *both);
    if (!both) {
        tsi_fail_memory("the ranks of two meshes", sizeof *both);
        return NULL;
    }
    both->src = src;
    both->dst = dst;
    tsi_interned_retain(&src->interned);
    tsi_interned_retain(&dst->interned);
    both->rank = tsi_alloc_array((size_t)(src->count + dst->count), sizeof *both->rank);
    ts_status status = both->rank ? TS_OK : tsi_fail_memory("the ranks of two meshes", 8);
    if (status == TS_OK) status = add_mesh(both, src);
    if (status == TS_OK) status = add_mesh(both, dst);
    if (status == TS_OK) both->group = ts_group_create(rank, both->rank, both->count, NULL);
    if (both->group) return both;
    union_destroy(both);
    return NULL;
}

const tsi_union *tsi_union_of(ts_rank *rank, tsi_mesh_desc *src, tsi_mesh_desc *dst)
{
    tsi_tensor_state *state = tsi_tensor_state_of(rank);
    if (!state) return NULL;
    uint64_t key =
        tsi_hash_mix(tsi_hash_mix(0x756e696f, (uint64_t)(uintptr_t)src), (uint64_t)(uintptr_t)dst);
    tsi_union *both = tsi_map_find(&state->unions, key, NULL, NULL);
    if (both) return both;
    both = union_make(rank, src, dst);
    if (both && tsi_map_insert(&state->unions, key, both) != TS_OK) {
        union_destroy(both);
        both = NULL;
    }
    return both;
}

void tsi_unions_release(tsi_tensor_state *state)
{
    for (size_t i = 0; i < state->unions.capacity; i++)
        if (state->unions.entry[i].value) union_destroy(state->unions.entry[i].value);
    tsi_map_release(&state->unions);
}
