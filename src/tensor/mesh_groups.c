/* SPDX-License-Identifier: Apache-2.0 */
/* mesh_groups.c - the two functions of mesh.h that concern communication: creation, which all ranks
 * agree on, and the groups of axes, which are made on first use.
 *
 * A group of axes holds the ranks that differ from this one in those axes only, in the mesh's own
 * order, so a member's place in the group is its coordinate (row-major over the axes). */
#include "base/alloc.h"
#include "tensor/tensor.h"

struct tsi_mesh_groups {
    ts_group *by_mask[1u << TS_NDIM_MAX]; /* NULL until used */
};

/* ---- creation -------------------------------------------------------------------------------- */

/* What every rank must have asked for alike. */
static uint64_t desc_hash(const tsi_mesh_desc *desc)
{
    uint64_t h = tsi_hash_mix(0x74657373, (uint64_t)desc->ndim);
    for (int32_t k = 0; k < desc->ndim; k++) {
        h = tsi_hash_mix(h, (uint64_t)desc->size[k]);
        h = tsi_hash_text(h, desc->name[k]);
    }
    for (int32_t m = 0; m < desc->mode_first[desc->ndim]; m++)
        h = tsi_hash_mix(tsi_hash_mix(h, (uint64_t)desc->mode[m].size),
                         (uint64_t)desc->mode[m].stride);
    h = tsi_hash_mix(h, (uint64_t)desc->offset);
    if (desc->map) h = tsi_hash_bytes(h, desc->map, (size_t)desc->map_count * sizeof *desc->map);
    return h;
}

ts_mesh *ts_mesh_create(ts_rank *me, const char *axes)
{
    if (!me || tsi_rank_enter(me) != TS_OK) return NULL;
    if (!axes) {
        TSI_FAIL(TS_ERR_NULL, "mesh: the text of the axes is NULL");
        return NULL;
    }
    tsi_mesh_desc *desc = NULL;
    if (tsi_mesh_desc_parse(me->world, axes, me->world->rank_count, &desc) != TS_OK) return NULL;
    ts_mesh *mesh = NULL;
    if (tsi_agree(ts_group_world(me), "mesh", NULL, desc_hash(desc)) == TS_OK)
        mesh = ts_mesh_retain(tsi_mesh_of(me, desc)); /* the caller may release it */
    tsi_interned_release(&desc->interned);
    return mesh;
}

/* ---- groups of axes -------------------------------------------------------------------------- */

static void groups_destroy(struct tsi_mesh_groups *groups)
{
    for (size_t i = 0; i < TSI_COUNT_OF(groups->by_mask); i++)
        ts_group_release(groups->by_mask[i]);
    tsi_free(groups);
}

/* The ranks that share my other coordinates, row-major over the masked axes. */
static ts_group *group_of_axes(ts_mesh *mesh, uint32_t axes)
{
    int64_t count = tsi_mesh_group_count(mesh->desc, axes);
    int64_t *rank = tsi_alloc_array((size_t)count, sizeof *rank);
    if (!rank) {
        tsi_fail_memory("the ranks of a group", (size_t)count * sizeof *rank);
        return NULL;
    }
    tsi_mesh_group_ranks(mesh->desc, axes, mesh->coord, rank);
    ts_group *group = ts_group_create(mesh->rank, rank, count, NULL);
    tsi_free(rank);
    return group;
}

/* A rank outside the mesh belongs to no group of it: a group that does not contain it does nothing.
 */
static ts_group *group_outside(ts_mesh *mesh)
{
    int64_t first = tsi_mesh_desc_rank(mesh->desc, (int64_t[TS_NDIM_MAX]){ 0 });
    return ts_group_create(mesh->rank, &first, 1, NULL);
}

void tsi_mesh_groups_drop(ts_mesh *mesh, void *context)
{
    (void)context;
    if (mesh->groups) groups_destroy(mesh->groups);
    mesh->groups = NULL;
}

ts_group *tsi_mesh_axes_group(ts_mesh *mesh, uint32_t axes)
{
    TSI_ASSERT(axes >> mesh->desc->ndim == 0);
    if (!mesh->groups) {
        mesh->groups = tsi_calloc(1, sizeof *mesh->groups);
        if (!mesh->groups) {
            tsi_fail_memory("the groups of a mesh", sizeof *mesh->groups);
            return NULL;
        }
        mesh->groups_destroy = groups_destroy;
    }
    ts_group **group = &mesh->groups->by_mask[axes];
    if (!*group) *group = mesh->member ? group_of_axes(mesh, axes) : group_outside(mesh);
    return *group;
}

ts_group *ts_mesh_group(ts_mesh *mesh, const char *axes)
{
    ts_rank *rank = mesh ? mesh->rank : NULL;
    if (!rank) {
        TSI_FAIL(TS_ERR_MESH, "group: the mesh is NULL or a description without ranks");
        return NULL;
    }
    if (tsi_rank_enter(rank) != TS_OK) return NULL;
    uint32_t mask = 0;
    if (tsi_mesh_axes(mesh, axes, &mask) != TS_OK) return NULL;
    return tsi_mesh_axes_group(mesh, mask);
}
