/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h - who holds what: placements, shardings and layouts. Pure arithmetic, no communication.
 *
 * A sharding is a mesh, one placement per axis and the order in which axes cut; a layout is a
 * sharding plus a global shape. Both are interned in the world: equal after normalisation is an
 * equal pointer.
 *
 *   R               every rank along the axis holds the same
 *   S(d)            dim d is cut into chunks of ceil(n / ranks), the last ones short or empty
 *   SS(d,f)         dim d is cut into f pieces, each into chunks; a rank holds its chunk of each
 *   RS(d:3,5,0,8)   dim d is cut at given sizes, one per coordinate
 *   HT(d)           head and tail: 2n chunks, coordinate r holds chunks r and 2n-1-r
 *   P(sum) ...      terms whose combination is the value: sum avg min max prod and or band bor
 *   P(norm:2)       p-norms of parts
 *
 * Order: where several axes cut one dim they cut left to right, unless [k] behind each of the
 * placements gives the position: "S(0)[1], S(0)[0]" - axis 1 cuts first. A later cut acts on the
 * positions of what the earlier ones left, always (one reading, also for SS). By name: "dp:S(0)
 * tp?:S(1)" - other axes are R, and axis tp may be missing. A cut may run over adjacent dims as
 * one, S(0-1), in multiples of an alignment S(0-1/64); cuts that share a dim must share all of
 * them. A dim may be counted from the end, S(-1): a sharding keeps it so, the layout of a shape
 * holds the sharding with the real dim. Partial axes of one sharding must reduce alike; sum and avg
 * may be mixed. See docs/layouts.md for drawings.
 *
 * All functions are local and pure, and may be called from any thread. */
#ifndef TESSERA_LAYOUT_H
#define TESSERA_LAYOUT_H

#include "mesh.h"

typedef struct ts_sharding ts_sharding;
typedef struct ts_layout ts_layout;

typedef enum ts_placement_kind {
    TS_PLACE_REPLICATE,
    TS_PLACE_SHARD,
    TS_PLACE_STRIDED,
    TS_PLACE_RAGGED,
    TS_PLACE_HEAD_TAIL,
    TS_PLACE_PARTIAL,
    TS_PLACE_NORM /* partial p-norm */
} ts_placement_kind;

typedef struct ts_placement { /* frozen; compare with ts_placement_equal */
    int32_t kind;             /* ts_placement_kind */
    int32_t dim;              /* cuts: the (first) tensor dim; else 0 */
    int32_t dim_last;         /* cuts: the last dim of a span; equal to dim as a rule */
    int32_t order;            /* cuts: position among the axes that cut this dim, 0 first */
    int64_t factor;           /* STRIDED: split factor >= 2 after normalisation; else 1 */
    int64_t align;            /* cuts: chunks are multiples of this; 1 as a rule */
    int32_t reduce;           /* PARTIAL: ts_reduce; else 0 */
    int32_t reserved;
    double norm;          /* NORM: p */
    const int64_t *sizes; /* RAGGED: one per coordinate, owned by the sharding; else NULL */
} ts_placement;

typedef struct ts_interval {
    int64_t begin, end; /* half open */
} ts_interval;

TS_BEGIN_C

/* Equal as values; `axis_size` is how many sizes a ragged shard has. */
TS_API int ts_placement_equal(const ts_placement *a, const ts_placement *b, int64_t axis_size);

/* ---- shardings ------------------------------------------------------------------------------- */
/* getter-like maker: NULL after recording a sentence with the column. Valid while the mesh's world
 * lives and somebody holds it: a layout, a tensor, or the rank, which holds at least the last 256
 * it was given. Retain it to keep it for long. The same goes for the results of conversions and of
 * ts_layout_get. */
TS_API const ts_sharding *ts_sharding_get(ts_mesh *mesh, const char *text);
TS_API const ts_sharding *ts_sharding_retain(const ts_sharding *sharding);
TS_API void ts_sharding_release(const ts_sharding *sharding);
TS_API ts_placement ts_sharding_placement(const ts_sharding *sharding, int32_t axis);
TS_API int32_t ts_sharding_ndim(const ts_sharding *sharding); /* axes */
TS_API size_t ts_sharding_text(const ts_sharding *sharding, char *out, size_t size);
TS_API size_t ts_placement_text(const ts_sharding *sharding, int32_t axis, char *out, size_t size);
/* Local shape of a world rank: one dim of size 0 outside the mesh; ndim -1 (recorded) if the shape
 * does not fit. */
TS_API ts_shape ts_sharding_local(const ts_sharding *sharding, ts_shape shape, int64_t rank);
/* The same layout written with strided shards in left-to-right order (orders exist only for even
 * sizes), or NULL with the reason. And back. `shape` NULL: assume every extent divides. */
TS_API const ts_sharding *ts_sharding_to_strided(ts_mesh *mesh, const ts_sharding *sharding,
                                                 const ts_shape *shape);
TS_API const ts_sharding *ts_sharding_to_order(ts_mesh *mesh, const ts_sharding *sharding,
                                               const ts_shape *shape);

/* ---- layouts --------------------------------------------------------------------------------- */
/* getter-like maker: NULL after recording why the placements do not fit the shape. Extents are
 * below 2^62; the number of elements may be beyond all counting (planning). */
TS_API const ts_layout *ts_layout_get(const ts_sharding *sharding, ts_shape shape);
TS_API const ts_layout *ts_layout_retain(const ts_layout *layout);
TS_API void ts_layout_release(const ts_layout *layout);
TS_API const ts_sharding *ts_layout_sharding(const ts_layout *layout);
TS_API ts_shape ts_layout_shape(const ts_layout *layout);
TS_API size_t ts_layout_text(const ts_layout *layout, char *out, size_t size);
TS_API size_t ts_layout_bytes(const ts_layout *layout); /* memory it takes */

/* The extents as they are cut: the shape, with dims that are cut as one joined to one. Local
 * shapes, offsets, intervals and local indices are in these dims; global indices are in the
 * tensor's own. */
TS_API ts_shape ts_layout_view(const ts_layout *layout);

/* ---- one coordinate -------------------------------------------------------------------------- */
/* An int64 per axis; NULL is not allowed; a coordinate outside the mesh holds nothing. */
TS_API ts_shape ts_layout_local(const ts_layout *layout, const int64_t *coord);
/* Global index of the first local element per dim; the dim's size where the shard is empty. */
TS_API ts_status ts_layout_offset(const ts_layout *layout, const int64_t *coord, int64_t *offset);
/* Intervals of one dim held at coord, ascending: writes up to capacity and returns how many there
 * are; -1: out of memory, recorded. */
TS_API int64_t ts_layout_intervals(const ts_layout *layout, const int64_t *coord, int32_t dim,
                                   ts_interval *out, int64_t capacity);
/* Maps of indices (one int64 per dim). to_local: 0 if the element is not held at coord. */
TS_API void ts_layout_to_global(const ts_layout *layout, const int64_t *coord, const int64_t *local,
                                int64_t *global);
TS_API int ts_layout_to_local(const ts_layout *layout, const int64_t *coord, const int64_t *global,
                              int64_t *local);
/* The coordinate with 0 on replicated and partial axes that holds the element; every owner differs
 * from it in those axes only. */
TS_API ts_status ts_layout_owner(const ts_layout *layout, const int64_t *global, int64_t *coord);
/* Products of the sizes of the replicated and of the partial axes. */
TS_API int64_t ts_layout_replicas(const ts_layout *layout);
TS_API int64_t ts_layout_terms(const ts_layout *layout);
/* Do two layouts on equal meshes put the same elements in the same places, with the same partial
 * axes? Local shapes may still differ where nothing is held: S(0) and S(1) of extents 1. */
TS_API int ts_layout_same_places(const ts_layout *a, const ts_layout *b);

TS_END_C
#endif
