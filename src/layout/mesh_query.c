/* SPDX-License-Identifier: Apache-2.0 */
/* mesh_query.c - getters of mesh handles: they borrow, accept NULL and cannot fail. */
#include <string.h>

#include "base/error.h"
#include "layout/mesh.h"

int32_t ts_mesh_ndim(const ts_mesh *mesh)
{
    return mesh ? mesh->desc->ndim : 0;
}

int32_t ts_mesh_axis(const ts_mesh *mesh, const char *name)
{
    return mesh ? tsi_mesh_desc_axis(mesh->desc, name) : -1;
}

int64_t ts_mesh_axis_size(const ts_mesh *mesh, int32_t axis)
{
    return mesh && axis >= 0 && axis < mesh->desc->ndim ? mesh->desc->size[axis] : -1;
}

int64_t ts_mesh_size(const ts_mesh *mesh, const char *axis)
{
    if (!mesh) return -1;
    return axis ? ts_mesh_axis_size(mesh, ts_mesh_axis(mesh, axis)) : mesh->desc->count;
}

const char *ts_mesh_axis_name(const ts_mesh *mesh, int32_t axis)
{
    return mesh && axis >= 0 && axis < mesh->desc->ndim ? mesh->desc->name[axis] : "";
}

int64_t ts_mesh_coord(const ts_mesh *mesh, const char *axis)
{
    if (!mesh || !mesh->member) return -1;
    int32_t k = axis ? ts_mesh_axis(mesh, axis) : mesh->desc->ndim == 1 ? 0 : -1;
    return k >= 0 ? mesh->coord[k] : -1;
}

int ts_mesh_is_member(const ts_mesh *mesh)
{
    return mesh ? mesh->member : 0;
}

int64_t ts_mesh_rank_at(const ts_mesh *mesh, const int64_t *coord)
{
    if (!mesh || !coord) return -1;
    for (int32_t k = 0; k < mesh->desc->ndim; k++)
        if (coord[k] < 0 || coord[k] >= mesh->desc->size[k]) return -1;
    return tsi_mesh_desc_rank(mesh->desc, coord);
}

/* Strides are positive, so without a map the last coordinate has the greatest rank. A map is short:
 * its ranks were listed one by one. */
int64_t ts_mesh_rank_end(const ts_mesh *mesh)
{
    int64_t coord[TS_NDIM_MAX], end = 0;
    if (!mesh) return 0;
    int64_t count = mesh->desc->count;
    for (int64_t i = mesh->desc->map ? 0 : count - 1; i < count; i++) {
        tsi_mesh_desc_unravel(mesh->desc, i, coord);
        int64_t rank = tsi_mesh_desc_rank(mesh->desc, coord);
        if (rank >= end) end = rank + 1;
    }
    return end;
}

int ts_mesh_coord_of(const ts_mesh *mesh, int64_t rank, int64_t *coord)
{
    int64_t found[TS_NDIM_MAX];
    if (!mesh || rank < 0 || !tsi_mesh_desc_coord(mesh->desc, rank, found)) return 0;
    if (coord) memcpy(coord, found, (size_t)mesh->desc->ndim * sizeof *coord);
    return 1;
}

ts_mesh *ts_mesh_parent(const ts_mesh *mesh)
{
    return mesh ? mesh->parent : NULL;
}

int ts_mesh_equal(const ts_mesh *a, const ts_mesh *b)
{
    return a && b && a->desc == b->desc;
}

int ts_mesh_axis_in_node(const ts_mesh *mesh, int32_t axis)
{
    if (!mesh || axis < 0 || axis >= mesh->desc->ndim) return 0;
    return tsi_mesh_desc_in_node(mesh->desc, axis);
}

size_t ts_mesh_text(const ts_mesh *mesh, char *out, size_t size)
{
    if (mesh) return tsi_mesh_desc_text(mesh->desc, out, size);
    if (size > 0) out[0] = '\0';
    return 0;
}

ts_status tsi_mesh_axes(const ts_mesh *mesh, const char *axes, uint32_t *mask)
{
    *mask = (1u << mesh->desc->ndim) - 1;
    if (!axes) return TS_OK;
    tsi_cursor cursor = tsi_cursor_of("axes of a mesh", axes);
    *mask = 0;
    do {
        char name[TSI_AXIS_NAME_MAX + 1] = "";
        int64_t number;
        tsi_cursor before = cursor;
        if (!tsi_cursor_word(&cursor, name, sizeof name) && tsi_cursor_int(&cursor, &number) &&
            number >= 0 && number < TS_NDIM_MAX)
            name[0] = (char)('0' + number);
        int32_t axis = tsi_mesh_desc_axis(mesh->desc, name);
        if (axis < 0) return tsi_cursor_fail(&before, "an axis of the mesh");
        *mask |= 1u << axis;
    } while (tsi_cursor_take(&cursor, ','));
    return tsi_cursor_done(&cursor) ? TS_OK : tsi_cursor_fail(&cursor, "',' or the end");
}
