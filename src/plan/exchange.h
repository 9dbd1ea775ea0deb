/* SPDX-License-Identifier: Apache-2.0 */
/* exchange.h - the direct family: who needs what from whom, from regions alone.
 *
 * Source and target are layouts of one tensor, on one mesh or on two. Every axis has a role on its
 * side:
 *
 *   cut     its coordinate selects a part
 *   term    partial, and reduced by the transfer
 *   keep    replicated, or a partial that stays
 *   owner   target partial made from replicas: coordinate 0 keeps
 *
 * A block is what the cut coordinates select: sigma on the source side, delta on the target side.
 * Ranks with equal cut coordinates hold equal blocks, so between two ranks there is at most one
 * common box per phase, and both ends find it, and its order, without asking anyone:
 *
 *   no terms   receiver q gets sigma ∩ delta(q) from holder(q, sigma): itself, else the replica
 *              with q's own coordinates (same mesh), else the one in q's node, else number q
 *              modulo replicas
 *   terms      sigma ∩ delta is cut among the ranks that can own it (in both sides if there are
 *              such); each owner gets every other term from holder(owner, sigma, term), folds in
 *              term order, sends to the rest of delta
 *
 * INV: each element a rank lacks is received exactly once; terms travel once; so bytes equal the
 * bound. */
#ifndef TSI_PLAN_EXCHANGE_H
#define TSI_PLAN_EXCHANGE_H

#include "base/arena.h"
#include "layout/layout.h"
#include "plan/topology.h"

typedef struct tsi_side {
    const ts_layout *layout;
    const tsi_mesh_desc *mesh;
    uint32_t cut, term, keep, owner; /* axes by role; size-1 axes are `keep` */
    int64_t replicas, terms; /* products of the sizes of keep (not kept partials) and term axes */
    int32_t dim_count[TS_NDIM_MAX]; /* axes that cut joint dim d, in cutting order */
    int32_t dim_axis[TS_NDIM_MAX][TS_NDIM_MAX];
    uint32_t dim_plain; /* bit d: only plain chunks, of one tensor dim */
    uint32_t kept;      /* partial axes that stay partial, a subset of keep */
} tsi_side;

typedef struct tsi_pair {
    tsi_side src, dst;
    int32_t dims; /* joint view: dims that a cut of either side runs over are one */
    int32_t same_mesh;
    int64_t extent[TS_NDIM_MAX];
    int32_t first_dim[TS_NDIM_MAX +
                      1];       /* tensor dims [first_dim[d], first_dim[d + 1]) are joint dim d */
    int64_t count, item, ranks; /* elements; bytes of one; ranks of the union (an upper bound) */
    const tsi_links *links;
    int32_t scan; /* replicas of a node must be looked for */
    int32_t reserved;
} tsi_pair;

ts_status tsi_pair_make(const ts_layout *src, const ts_layout *dst, int64_t item,
                        const tsi_links *links, tsi_pair *out);

/* ---- blocks that meet a region (blocks.c) --------------------------------------------------- */
typedef struct tsi_meet {       /* one choice of the cut coordinates of one joint dim */
    int64_t coord[TS_NDIM_MAX]; /* of dim_axis[d][0..) */
    tsi_span_list common;       /* with the query */
} tsi_meet;
typedef struct tsi_meets {
    tsi_meet *item;
    int64_t count, capacity;
} tsi_meets;
/* Blocks of joint dim d that meet the query. Axes in `fixed` take their value from `at`. False:
 * memory. */
bool tsi_side_meets(const tsi_pair *pair, const tsi_side *side, int32_t dim,
                    const tsi_span_list *query, uint32_t fixed, const int64_t *at, tsi_arena *arena,
                    tsi_meets *out);
/* What a coordinate holds, in joint dims. */
bool tsi_side_region(const tsi_pair *pair, const tsi_side *side, const int64_t *coord,
                     tsi_arena *arena, tsi_region *out);
bool tsi_side_list(const tsi_pair *pair, const tsi_side *side, const int64_t *coord, int32_t dim,
                   tsi_arena *arena, tsi_span_list *out);

/* Walks all blocks of a side that meet a region: the product of the meets of its dims. */
typedef struct tsi_walk {
    const tsi_pair *pair;
    const tsi_side *side;
    tsi_meets meets[TS_NDIM_MAX];
    int64_t at[TS_NDIM_MAX];
    int64_t coord[TS_NDIM_MAX]; /* cut coordinates of the block; others as the caller set them */
    tsi_region common;
    int32_t started, empty;
} tsi_walk;
bool tsi_walk_open(tsi_walk *walk, const tsi_pair *pair, const tsi_side *side,
                   const tsi_region *query, uint32_t fixed, const int64_t *at, tsi_arena *arena);
bool tsi_walk_next(tsi_walk *walk); /* sets coord and common; false: done */

/* ---- sums over all ranks (overlap.c) -------------------------------------------------------- */
/* Elements that ranks hold on both sides, summed over the ranks of both (owner axes: coordinate 0).
 * With `distinct`: summed over the different (sigma, delta) that such ranks have instead. */
ts_status tsi_pair_overlap(const tsi_pair *pair, bool distinct, int64_t *out);
/* The least number of elements that must be received, all ranks together; the direct exchange needs
 * no more. */
ts_status tsi_pair_bound(const tsi_pair *pair, int64_t *out);

/* ---- one rank's messages (route.c) ---------------------------------------------------------- */
/* World rank that holds block `sigma` (cut coordinates set) and term t for rank q of the target
 * side. */
int64_t tsi_pair_holder(const tsi_pair *pair, int64_t q, const int64_t *sigma, int64_t term);
/* Ranks that may own sigma ∩ delta, in order; `fixed` axes of the source mesh (same mesh only) take
 * coordinates `at`. Calls visit(world rank, number, how many there are). */
typedef bool (*tsi_owner_fn)(int64_t rank, int64_t number, int64_t count, void *context);
bool tsi_pair_owners(const tsi_pair *pair, const int64_t *sigma, const int64_t *delta,
                     uint32_t fixed, const int64_t *at, tsi_owner_fn visit, void *context);
/* Ranks of the target that hold delta, in order. */
bool tsi_pair_receivers(const tsi_pair *pair, const int64_t *delta, uint32_t fixed,
                        const int64_t *at, tsi_owner_fn visit, void *context);
/* Part `number` of `count` of a region: positions of its longest dim. False: empty. */
bool tsi_region_share(const tsi_region *whole, int64_t number, int64_t count, tsi_arena *arena,
                      tsi_region *out);

/* ---- costs (direct.c) ----------------------------------------------------------------------- */
typedef struct tsi_direct {
    int64_t bound; /* elements received in all */
    double time_us;
    double tree_us;     /* the hierarchical variant; HUGE_VAL where it does not apply */
    int64_t peers_most; /* messages of the busiest rank */
} tsi_direct;
ts_status tsi_direct_cost(const tsi_pair *pair, tsi_direct *out);

#endif
