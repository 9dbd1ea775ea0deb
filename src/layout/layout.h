/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h - bodies of meshes, shardings and layouts.
 *
 *   ts_mesh (a rank's handle) --> tsi_mesh_desc (interned: axes, names, ranks)
 *   ts_sharding (interned)    --> tsi_mesh_desc, ts_placement[axes]
 *   ts_layout   (interned)    --> ts_sharding, ts_shape, and what is derived from them
 *
 * Interned values hold their parts and live in the world's slot TSI_SLOT_LAYOUT. Nothing here knows
 * ranks beyond their numbers. */
#ifndef TSI_LAYOUT_LAYOUT_H
#define TSI_LAYOUT_LAYOUT_H

#include "base/intern.h"
#include "base/rank.h"
#include "layout/region.h"
#include "tessera/layout.h"

enum { TSI_MODE_MAX = 24, TSI_AXIS_NAME_MAX = 31 };

/* One axis is a mixed-radix number of modes, the last fastest (a flattened axis has several); a
 * coordinate's index is offset + sum of digit * stride, and its rank is map[index], or the index
 * itself if map is NULL. */
typedef struct tsi_mode {
    int64_t size, stride;
} tsi_mode;
typedef struct tsi_mesh_member {
    int64_t rank, index;
} tsi_mesh_member;
/* One spelling: axes of size 1 have no modes, neighbouring modes that continue each other are one,
 * strides are positive and each is at least what the next smaller mode reaches; ranks that cannot
 * be said so are in the map. */
typedef struct tsi_mesh_desc {
    tsi_interned interned; /* the hash is that of the content, the same on every rank */
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
    const tsi_mesh_member *member;    /* the map sorted by rank; owned; NULL without a map */
    uint8_t mode_order[TSI_MODE_MAX]; /* modes by descending stride */
} tsi_mesh_desc;

struct ts_sharding {
    tsi_interned interned;
    tsi_mesh_desc *mesh;        /* retained */
    int32_t ndim;               /* axes */
    int32_t order_count;        /* cutting axes in cutting order, all dims together: */
    int32_t order[TS_NDIM_MAX]; /* order[0..order_count): axes sorted by (dim, position) */
    int32_t negative; /* some dim is counted from the end: only a layout knows which it is */
    int32_t reserved;
    uint32_t joined; /* bit d: dims d and d+1 are cut as one */
    uint32_t axes_partial;
    ts_placement place[TS_NDIM_MAX];
};

struct ts_layout {
    tsi_interned interned;
    const ts_sharding *sharding; /* retained */
    ts_shape shape;              /* global */
    int64_t count;               /* elements; -1: beyond 2^63 (allowed for planning) */
    int64_t replicas, terms;
    uint32_t axes_cut; /* bit k: axis k cuts with size > 1 */
    uint32_t axes_partial, axes_replicated;
    int32_t even; /* every cut divides exactly */
    int32_t reserved;
    const char *text;              /* owned: "[8, 16](S(0), R)" without the dtype */
    ts_shape view;                 /* the extents with joined dims as one */
    int32_t view_dim[TS_NDIM_MAX]; /* first tensor dim of each view dim */
    /* Cuts of view dim v: sharding->order[cut_first[v] .. cut_first[v + 1]). */
    int32_t cut_first[TS_NDIM_MAX + 1];
};

/* Retained. world_size bounds the ranks and resolves "*"; -1: no bound, and "*" is not allowed. */
ts_status tsi_mesh_desc_parse(ts_world *world, const char *text, int64_t world_size,
                              tsi_mesh_desc **out);
int64_t tsi_mesh_desc_rank(const tsi_mesh_desc *mesh, const int64_t *coord); /* world rank */
int64_t tsi_mesh_desc_product(const tsi_mesh_desc *mesh, uint32_t axes); /* of the axes' sizes */
bool tsi_mesh_desc_coord(const tsi_mesh_desc *mesh, int64_t rank, int64_t *coord);
/* Coordinate of the i-th member in row-major order, and back. */
void tsi_mesh_desc_unravel(const tsi_mesh_desc *mesh, int64_t index, int64_t *coord);
int64_t tsi_mesh_desc_ravel(const tsi_mesh_desc *mesh, const int64_t *coord);
/* Parses back to the same mesh; like snprintf. */
size_t tsi_mesh_desc_text(const tsi_mesh_desc *mesh, char *out, size_t size);
/* By name or number; -1: none. */
int32_t tsi_mesh_desc_axis(const tsi_mesh_desc *mesh, const char *name);
static inline void tsi_mesh_desc_release(tsi_mesh_desc *mesh)
{
    if (mesh) tsi_interned_release(&mesh->interned);
}
/* Is every line along the axis of one node of the world? */
bool tsi_mesh_desc_in_node(const tsi_mesh_desc *mesh, int32_t axis);

/* From parts, for planners and operators: `place` has one entry per axis. Of the cuts of one dim
 * those with an order >= 0 come first, ascending, then those with -1, equal ones from left to
 * right; positions are then numbered 0, 1, 2. So all -1 or all 0 is left to right, a cut taken away
 * leaves the others in order, and a new one with -1 is the last. Returned values are retained.
 * NULL: recorded. */
const ts_sharding *tsi_sharding_intern(tsi_mesh_desc *mesh, const ts_placement *place);
const ts_sharding *tsi_sharding_parse(tsi_mesh_desc *mesh, const char *text);
const ts_layout *tsi_layout_intern(const ts_sharding *sharding, const ts_shape *shape);

/* What coordinate holds. The region's dims are the tensor's, except that a cut over a span of dims
 * makes them one region dim (tsi_layout_view gives the merged extents; row-major order is the
 * same). */
bool tsi_layout_region(const ts_layout *layout, const int64_t *coord, tsi_arena *arena,
                       tsi_region *out);
ts_shape tsi_layout_view(const ts_layout *layout);
/* One dim only (of the view): cheaper where dims are independent. */
bool tsi_layout_region_dim(const ts_layout *layout, const int64_t *coord, int32_t dim,
                           tsi_arena *arena, tsi_span_list *out);

/* Lengths only, per view dim, without lists. */
void tsi_layout_local(const ts_layout *layout, const int64_t *coord, ts_shape *out);
/* As tsi_layout_region with further dims joined: bit d of `joined` (a superset of the layout's own)
 * sees dims d and d+1 as one. Layouts with different spans are compared and intersected under the
 * union of their bits. */
bool tsi_layout_region_joined(const ts_layout *layout, const int64_t *coord, uint32_t joined,
                              tsi_arena *arena, tsi_region *out);

/* Does every rank hold the same block in both: the same elements, and the same extents also where
 * there are none? Then a kernel may take the one for the other. Dims cut over other spans are other
 * blocks, and so may be those of axes that cut different dims; false also where thousands of
 * coordinates would have to be compared. */
bool tsi_layout_same_blocks(const ts_layout *a, const ts_layout *b);

bool tsi_placement_equal(const ts_placement *a, const ts_placement *b, int64_t axis_size);
size_t tsi_placement_text(const ts_placement *place, int64_t axis_size, int ordered, char *out,
                          size_t size);
static inline bool tsi_extents_same(const int64_t *a, const int64_t *b, int32_t count)
{
    for (int32_t d = 0; d < count; d++)
        if (a[d] != b[d]) return false;
    return true;
}
static inline bool tsi_shape_same(const ts_shape *a, const ts_shape *b)
{
    return a->ndim == b->ndim && tsi_extents_same(a->extent, b->extent, a->ndim);
}
/* Has `rows` all dims of x but the last? */
static inline bool tsi_shape_is_rows(const ts_shape *rows, const ts_shape *x)
{
    return x->ndim == rows->ndim + 1 && tsi_extents_same(x->extent, rows->extent, rows->ndim);
}

static inline bool tsi_placement_cuts(const ts_placement *place)
{
    return place->kind >= TS_PLACE_SHARD && place->kind <= TS_PLACE_HEAD_TAIL;
}
static inline bool tsi_placement_partial(const ts_placement *place)
{
    return place->kind >= TS_PLACE_PARTIAL;
}

/* The rank's handle on a mesh (mesh_handle.c). Its view says where its axes lie in the root it was
 * derived from, as modes in the root's index space: slices and concatenations of one root are
 * worked out there. */
struct ts_mesh {
    tsi_mesh_desc *desc; /* retained */
    ts_rank *rank;       /* NULL: a description without ranks */
    ts_mesh *parent;     /* retained, or NULL */
    int64_t references;
    int32_t member, reserved;
    int64_t coord[TS_NDIM_MAX];
    struct tsi_mesh_groups *groups; /* filled by a higher layer (tensor/), see ts_mesh_group */
    void (*groups_destroy)(struct tsi_mesh_groups *groups);
    ts_world *world;
    tsi_mesh_desc *root;     /* retained; its own desc for a mesh that was not derived */
    tsi_mesh_desc view;      /* not interned; map belongs to the root */
    ts_mesh *before, *after; /* in the rank's (or the world's) list */
};

/* For ts_mesh_create and ts_mesh_group, which communicate and live in tensor/. A new root handle of
 * the rank (NULL: a description); takes the reference to desc, also on failure. */
ts_mesh *tsi_mesh_handle(ts_world *world, ts_rank *rank, tsi_mesh_desc *desc /* takes */);
/* Axes of a text ("tp", "dp, tp", NULL: all) as a mask. */
ts_status tsi_mesh_axes(const ts_mesh *mesh, const char *axes, uint32_t *mask);
/* The ranks that differ from `coord` in the masked axes only, row-major in the mesh's order: how
 * many, which, and the place of `coord` among them. */
int64_t tsi_mesh_group_count(const tsi_mesh_desc *mesh, uint32_t mask);
void tsi_mesh_group_ranks(const tsi_mesh_desc *mesh, uint32_t mask, const int64_t *coord,
                          int64_t *ranks);
int64_t tsi_mesh_group_place(const tsi_mesh_desc *mesh, uint32_t mask, const int64_t *coord);
/* All living handles of a rank, e.g. to drop their groups before the engine goes. */
void tsi_mesh_each(ts_rank *rank, void (*visit)(ts_mesh *mesh, void *context), void *context);

#endif
