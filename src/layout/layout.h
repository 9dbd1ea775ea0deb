/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h - bodies of meshes, shardings and layouts.
 *
 *   ts_mesh (a rank's handle) --> tsi_mesh_desc (interned: axes, names, ranks)
 *   ts_sharding (interned)    --> tsi_mesh_desc, ts_placement[axes]
 *   ts_layout   (interned)    --> ts_sharding, ts_shape, and what is derived from them
 *
 * Interned values hold their parts and live in the world's slot TSI_SLOT_LAYOUT. Nothing here knows ranks
 * beyond their numbers. */
#ifndef TSI_LAYOUT_LAYOUT_H
#define TSI_LAYOUT_LAYOUT_H

#include "base/intern.h"
#include "base/rank.h"
#include "layout/region.h"
#include "tessera/layout.h"

enum { TSI_MODE_MAX = 24, TSI_AXIS_NAME_MAX = 31 };

/* One axis is a mixed-radix number of modes, the last fastest (a flattened axis has several); a coordinate's
 * index is offset + sum of digit * stride, and its rank is map[index], or the index itself if map is NULL. */
typedef struct tsi_mode {
    int64_t size, stride;
} tsi_mode;
typedef struct tsi_mesh_desc {
    tsi_interned interned;
    ts_world *world;
    int64_t count; /* ranks in it */
    int32_t ndim;
    int32_t mode_first[TS_NDIM_MAX + 1]; /* modes of axis k: [mode_first[k], mode_first[k+1]) */
    int64_t size[TS_NDIM_MAX];
    char name[TS_NDIM_MAX][TSI_AXIS_NAME_MAX + 1]; /* "" if unnamed */
    tsi_mode mode[TSI_MODE_MAX];
    int64_t offset;
    const int64_t *map; /* owned; explicit rank numbers, or NULL */
    int64_t map_count;
} tsi_mesh_desc;

struct ts_sharding {
    tsi_interned interned;
    tsi_mesh_desc *mesh; /* retained */
    int32_t ndim;        /* axes */
    int32_t order_count; /* cutting axes in cutting order, all dims together: */
    int32_t order[TS_NDIM_MAX]; /* order[0..order_count): axes sorted by (dim, position) */
    ts_placement place[TS_NDIM_MAX];
};

struct ts_layout {
    tsi_interned interned;
    const ts_sharding *sharding; /* retained */
    ts_shape shape;              /* global */
    int64_t count;               /* elements; -1: beyond 2^63 (allowed for planning) */
    int64_t replicas, terms;
    uint32_t axes_cut;           /* bit k: axis k cuts with size > 1 */
    uint32_t axes_partial, axes_replicated;
    int32_t even;                /* every cut divides exactly */
    int32_t reserved;
    const char *text;            /* owned: "f(8, 16)(S(0), R)" without the dtype */
};

ts_status tsi_mesh_desc_parse(ts_world *world, const char *text, int64_t world_size,
                              tsi_mesh_desc **out); /* retained; world_size resolves "*", -1: not allowed */
int64_t tsi_mesh_desc_rank(const tsi_mesh_desc *mesh, const int64_t *coord); /* world rank */
bool tsi_mesh_desc_coord(const tsi_mesh_desc *mesh, int64_t rank, int64_t *coord);
/* Coordinate of the i-th member in row-major order, and back. */
void tsi_mesh_desc_unravel(const tsi_mesh_desc *mesh, int64_t index, int64_t *coord);
int64_t tsi_mesh_desc_ravel(const tsi_mesh_desc *mesh, const int64_t *coord);

/* From parts, for planners and operators: `place` has one entry per axis, orders normalised or -1 (left to right).
 * Returned values are retained. NULL: recorded. */
const ts_sharding *tsi_sharding_intern(tsi_mesh_desc *mesh, const ts_placement *place);
const ts_sharding *tsi_sharding_parse(tsi_mesh_desc *mesh, const char *text);
const ts_layout *tsi_layout_intern(const ts_sharding *sharding, const ts_shape *shape);

/* What coordinate holds. The region's dims are the tensor's, except that a cut over a span of dims makes them one
 * region dim (tsi_layout_view gives the merged extents; row-major order is the same). */
bool tsi_layout_region(const ts_layout *layout, const int64_t *coord, tsi_arena *arena, tsi_region *out);
ts_shape tsi_layout_view(const ts_layout *layout);
/* One dim only (of the view): cheaper where dims are independent. */
bool tsi_layout_region_dim(const ts_layout *layout, const int64_t *coord, int32_t dim, tsi_arena *arena,
                           tsi_span_list *out);

bool tsi_placement_equal(const ts_placement *a, const ts_placement *b, int64_t axis_size);
static inline bool tsi_placement_cuts(const ts_placement *place)
{
    return place->kind >= TS_PLACE_SHARD && place->kind <= TS_PLACE_HEAD_TAIL;
}
static inline bool tsi_placement_partial(const ts_placement *place)
{
    return place->kind >= TS_PLACE_PARTIAL;
}

/* The rank's handle on a mesh (mesh_handle.c). */
struct ts_mesh {
    tsi_mesh_desc *desc;   /* retained */
    ts_rank *rank;         /* NULL: a description without ranks */
    ts_mesh *parent;       /* retained, or NULL */
    int64_t references;
    int32_t member, reserved;
    int64_t coord[TS_NDIM_MAX];
    struct tsi_mesh_groups *groups; /* filled by a higher layer (tensor/), see ts_mesh_group */
    void (*groups_destroy)(struct tsi_mesh_groups *groups);
};

#endif
