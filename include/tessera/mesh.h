/* SPDX-License-Identifier: Apache-2.0 */
/* mesh.h - n-dimensional arrangements of ranks with named axes.
 *
 * Text: "dp=2, tp=4" names axes and sizes, ranks row-major from 0; "2, 4" leaves them unnamed; one
 * size may be "*" (what is left of the world, or of the ranks listed). Explicit ranks follow a
 * colon, row-major: "dp=2, tp=2 : 3 1 2 0", with a-b for a run and a-b/s for a strided one, as in
 * "x=4 : 0-6/2". Names begin with a letter or '_', go on with letters, digits, '_', '.', '-', and
 * have at most 31 characters. Where a name is asked for, the number of the axis will do.
 *
 * What a mesh is (axes, names, ranks) is interned in the world; ts_mesh is one rank's handle on it
 * and knows the handle it was derived from. A rank outside a mesh holds a handle without
 * coordinates: it may call everything and gets empty blocks. The order of ranks along an axis is
 * the mesh's, never sorted. */
#ifndef TESSERA_MESH_H
#define TESSERA_MESH_H

#include "comm.h"

typedef struct ts_mesh ts_mesh;

TS_BEGIN_C

TS_API ts_mesh *ts_mesh_create(ts_rank *me, const char *axes); /* maker [coll]; agreed by all */
TS_API ts_mesh *ts_mesh_self(ts_rank *me);                     /* maker; this rank alone */
/* A mesh without ranks of this process, for planning: any size ("*" only with listed ranks); NULL
 * and ts_last_error on failure. */
TS_API ts_mesh *ts_mesh_describe(ts_world *world, const char *axes);
TS_API ts_mesh *ts_mesh_retain(ts_mesh *mesh);
TS_API void ts_mesh_release(ts_mesh *mesh); /* [any] accepts NULL; the rank frees what is left */

/* ---- derived meshes -------------------------------------------------------------------------- */
/* Makers, local. Each rank gets its own part; what equals the mesh is the mesh, retained. */
/* "tp" or "tp, dp" in any order; "dp+cp" flattens two axes into one named "dp_cp". */
TS_API ts_mesh *ts_mesh_slice(ts_mesh *mesh, const char *axes);
/* All axes into one; NULL: their names joined by '_'. */
TS_API ts_mesh *ts_mesh_flatten(ts_mesh *mesh, const char *name);
/* One axis into several, "dp" by "a=2, b=*", row-major. */
TS_API ts_mesh *ts_mesh_split(ts_mesh *mesh, const char *axis, const char *axes);
TS_API ts_mesh *ts_mesh_permute(ts_mesh *mesh, const char *axes); /* all axes, new order */
/* The axes of several meshes that were derived from one, side by side. */
TS_API ts_mesh *ts_mesh_concat(ts_mesh *const *mesh, int32_t count);

/* ---- getters --------------------------------------------------------------------------------- */
TS_API int32_t ts_mesh_ndim(const ts_mesh *mesh);
TS_API int64_t ts_mesh_size(const ts_mesh *mesh, const char *axis); /* NULL: all; -1: no such */
TS_API int64_t ts_mesh_axis_size(const ts_mesh *mesh, int32_t axis);
TS_API const char *ts_mesh_axis_name(const ts_mesh *mesh, int32_t axis); /* "" if unnamed */
TS_API int32_t ts_mesh_axis(const ts_mesh *mesh, const char *name);  /* -1: none; "0" is axis 0 */
TS_API int64_t ts_mesh_coord(const ts_mesh *mesh, const char *axis); /* -1: not a member */
TS_API int ts_mesh_is_member(const ts_mesh *mesh);
TS_API int64_t ts_mesh_rank_at(const ts_mesh *mesh, const int64_t *coord); /* -1: outside */
TS_API int64_t ts_mesh_rank_end(const ts_mesh *mesh); /* one more than its greatest rank */
TS_API int ts_mesh_coord_of(const ts_mesh *mesh, int64_t rank, int64_t *coord); /* 0: not in it */
TS_API ts_mesh *ts_mesh_parent(const ts_mesh *mesh); /* what it was derived from, or NULL */
TS_API int ts_mesh_equal(const ts_mesh *a, const ts_mesh *b); /* same axes, names and ranks */
/* 1 if ranks along the axis are always of one node (ts_world_node). */
TS_API int ts_mesh_axis_in_node(const ts_mesh *mesh, int32_t axis);
TS_API size_t ts_mesh_text(const ts_mesh *mesh, char *out, size_t size); /* like snprintf */
/* The group of the ranks that differ from me in these axes only ("tp", "dp, tp", NULL: all), in the
 * mesh's order. Made on first use, owned by the mesh. maker */
TS_API ts_group *ts_mesh_group(ts_mesh *mesh, const char *axes);

TS_END_C
#endif
