/* SPDX-License-Identifier: Apache-2.0 */
/* execute_root.c - ts_distribute: an array on one rank becomes a tensor of all.
 *
 * The root's array is a tensor on a mesh of one rank, so this is a move between two meshes; what
 * can differ between ranks (the root's array, the arguments) is agreed on before anything moves. */
#include <stdio.h>
#include <string.h>

#include "tensor/move.h"

/* A mesh of one rank, by its number in the world. */
static tsi_mesh_desc *mesh_of_one(ts_rank *rank, int64_t world_rank)
{
    char text[48];
    snprintf(text, sizeof text, "root=1 : %lld", (long long)world_rank);
    tsi_mesh_desc *desc = NULL;
    if (tsi_mesh_desc_parse(rank->world, text, rank->world->rank_count, &desc) != TS_OK)
        return NULL;
    return desc;
}

/* What is wrong with the root's array; "" if nothing is. */
static void check_whole(const ts_array *whole, const ts_meta *meta, char *complaint, size_t size)
{
    *complaint = '\0';
    if (!whole || !whole->data)
        snprintf(complaint, size, "the root gave no array");
    else if (whole->meta.dtype != meta->dtype)
        snprintf(complaint, size, "the root's array has another dtype");
    else if (whole->meta.shape.ndim != meta->shape.ndim ||
             memcmp(whole->meta.shape.extent, meta->shape.extent,
                    (size_t)meta->shape.ndim * sizeof meta->shape.extent[0]) != 0)
        snprintf(complaint, size, "the root's array has another shape than was announced");
}

static tsi_array *source_block(ts_mesh *source, const ts_array *whole, const ts_meta *meta)
{
    if (!source->member) return tsi_array_create(source->rank, (ts_dtype)meta->dtype, &TS_SHAPE(0));
    return tsi_array_wrap(source->rank, whole);
}

static ts_tensor *distribute(ts_mesh *mesh, ts_mesh *source, const ts_layout *to,
                             const ts_array *whole, const ts_meta *meta)
{
    ts_rank *rank = mesh->rank;
    const ts_layout *from = tsi_tensor_layout_of(source, NULL, meta->shape);
    tsi_array *block = from ? source_block(source, whole, meta) : NULL;
    ts_tensor *t = NULL;
    if (block) {
        tsi_source origin = { source, from, block, (ts_dtype)meta->dtype };
        ts_move_options options = TS_INIT(ts_move_options);
        options.blocking = 1; /* the caller's array is his again when we return */
        options.name = rank->label;
        tsi_move *move = NULL;
        tsi_array *array = tsi_move_begin(&origin, mesh, to, &options, &move);
        if (array) t = tsi_tensor_make(mesh, to, origin.dtype, array, move);
    }
    tsi_array_release(block);
    ts_layout_release(from);
    return t;
}

ts_tensor *(ts_distribute)(const ts_array *whole, const ts_sharding *sharding, ts_meta meta,
                           int64_t root)
{
    ts_rank *rank = tsi_rank_current();
    if (!rank || tsi_rank_enter(rank) != TS_OK) return NULL;
    if (!sharding) {
        TSI_FAIL(TS_ERR_NULL, "distribute: the sharding is NULL");
        return NULL;
    }
    ts_mesh *mesh = tsi_mesh_of(rank, sharding->mesh);
    if (!mesh) return NULL;
    if (root < 0 || root >= mesh->desc->count) {
        TSI_FAIL(TS_ERR_ARG, "distribute: root %lld is not one of the %lld members of the mesh",
                 (long long)root, (long long)mesh->desc->count);
        return NULL;
    }
    int64_t coord[TS_NDIM_MAX];
    tsi_mesh_desc_unravel(mesh->desc, root, coord);
    tsi_mesh_desc *one = mesh_of_one(rank, tsi_mesh_desc_rank(mesh->desc, coord));
    ts_mesh *source = one ? tsi_mesh_of(rank, one) : NULL;
    if (one) tsi_interned_release(&one->interned);
    const ts_layout *to = source ? tsi_layout_intern(sharding, &meta.shape) : NULL;
    if (!to) return NULL;
    char complaint[160] = "";
    if (source->member) check_whole(whole, &meta, complaint, sizeof complaint);
    ts_group *group = tsi_mesh_axes_group(mesh, (1u << mesh->desc->ndim) - 1);
    uint64_t hash = tsi_hash_text(tsi_hash_mix((uint64_t)root, (uint64_t)meta.dtype), to->text);
    ts_tensor *t = NULL;
    if (group && tsi_agree(group, "distribute", complaint, hash) == TS_OK)
        t = distribute(mesh, source, to, whole, &meta);
    ts_layout_release(to);
    return t;
}
