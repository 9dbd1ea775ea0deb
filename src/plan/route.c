/* SPDX-License-Identifier: Apache-2.0 */
/* route.c - who gives a block to whom. Every answer is a closed form of the asking rank's own
 * coordinates, so that one rank's part of a transfer needs no look at all the others (INV of
 * exchange.h). */
#include <string.h>

#include "base/intmath.h"
#include "plan/exchange.h"

enum { SCAN_MAX = 64 }; /* replicas that are looked at to find one in the same node */

/* Writes number `index` into the coordinates of the axes, the last fastest. */
static void spread_index(const tsi_mesh_desc *mesh, uint32_t axes, int64_t index, int64_t *coord)
{
    for (int32_t k = mesh->ndim - 1; k >= 0; k--) {
        if (!(axes >> k & 1u)) continue;
        coord[k] = index % mesh->size[k];
        index /= mesh->size[k];
    }
}

/* Of the replicas, the first in q's node, counted from the preferred one; or the preferred one. */
static int64_t nearest_replica(const tsi_pair *pair, int64_t q, int64_t preferred, int64_t *coord)
{
    const tsi_side *src = &pair->src;
    uint32_t free = src->keep & ~src->kept;
    for (int64_t i = 0; i < src->replicas && i < SCAN_MAX; i++) {
        spread_index(src->mesh, free, (preferred + i) % src->replicas, coord);
        int64_t rank = tsi_mesh_desc_rank(src->mesh, coord);
        if (tsi_links_same_node(pair->links, rank, q)) return rank;
    }
    spread_index(src->mesh, free, preferred, coord);
    return tsi_mesh_desc_rank(src->mesh, coord);
}

static int64_t ravel_axes(const tsi_mesh_desc *mesh, uint32_t axes, const int64_t *coord)
{
    int64_t index = 0;
    for (int32_t k = 0; k < mesh->ndim; k++) {
        if (axes >> k & 1u) index = index * mesh->size[k] + coord[k];
    }
    return index;
}

int64_t tsi_pair_holder(const tsi_pair *pair, int64_t q, const int64_t *sigma, int64_t term)
{
    const tsi_side *src = &pair->src;
    int64_t coord[TS_NDIM_MAX], own[TS_NDIM_MAX];
    uint32_t free = src->keep & ~src->kept;
    int64_t preferred = 0;
    memset(coord, 0, sizeof coord);
    if (tsi_mesh_desc_coord(src->mesh, q, own)) {
        memcpy(coord, own, sizeof coord);
        preferred = pair->scan ? ravel_axes(src->mesh, free, own) : 0;
    } else if (src->replicas > 1) {
        int64_t there[TS_NDIM_MAX] = { 0 };
        tsi_mesh_desc_coord(pair->dst.mesh, q, there);
        preferred = tsi_mesh_desc_ravel(pair->dst.mesh, there) % src->replicas;
        spread_index(src->mesh, free, preferred, coord);
    }
    for (int32_t k = 0; k < src->mesh->ndim; k++) {
        if (src->cut >> k & 1u) coord[k] = sigma[k];
    }
    if (src->terms > 1) spread_index(src->mesh, src->term, term, coord);
    int64_t rank = tsi_mesh_desc_rank(src->mesh, coord);
    if (!pair->scan || rank == q || tsi_links_same_node(pair->links, rank, q)) return rank;
    return nearest_replica(pair, q, preferred, coord);
}

bool tsi_pair_receivers(const tsi_pair *pair, const int64_t *delta, uint32_t fixed,
                        const int64_t *at, tsi_owner_fn visit, void *context)
{
    const tsi_side *dst = &pair->dst;
    int64_t coord[TS_NDIM_MAX] = { 0 };
    uint32_t free = dst->keep;
    if (pair->same_mesh) {
        if (ravel_axes(dst->mesh, dst->owner & fixed, at) != 0) return true;
        free &= ~(fixed | dst->kept);
    }
    for (int32_t k = 0; k < dst->mesh->ndim; k++) {
        if (dst->cut >> k & 1u)
            coord[k] = delta[k];
        else if (pair->same_mesh && (dst->keep & ~free) >> k & 1u)
            coord[k] = at[k];
    }
    int64_t count = tsi_mesh_desc_product(dst->mesh, free);
    for (int64_t i = 0; i < count; i++) {
        spread_index(dst->mesh, free, i, coord);
        if (!visit(tsi_mesh_desc_rank(dst->mesh, coord), i, count, context)) return false;
    }
    return true;
}

/* ---- owners of partial results -------------------------------------------------------------- */

static bool owners_same_mesh(const tsi_pair *pair, const int64_t *sigma, const int64_t *delta,
                             uint32_t fixed, const int64_t *at, tsi_owner_fn visit, void *context)
{
    const tsi_side *src = &pair->src, *dst = &pair->dst;
    const tsi_mesh_desc *mesh = src->mesh;
    uint32_t free = dst->keep & ~dst->kept & ~src->cut;
    int64_t coord[TS_NDIM_MAX] = { 0 };
    if (ravel_axes(mesh, dst->owner & fixed, at) != 0) return true;
    for (int32_t k = 0; k < mesh->ndim; k++) {
        if (dst->cut >> k & 1u)
            coord[k] = delta[k];
        else if (src->cut >> k & 1u)
            coord[k] = sigma[k];
        else if (dst->kept >> k & 1u)
            coord[k] = at[k];
    }
    uint32_t loop = free & ~fixed;
    int64_t count = tsi_mesh_desc_product(mesh, free), loops = tsi_mesh_desc_product(mesh, loop);
    for (int32_t k = 0; k < mesh->ndim; k++) {
        if ((free & fixed) >> k & 1u) coord[k] = at[k];
    }
    for (int64_t i = 0; i < loops; i++) {
        spread_index(mesh, loop, i, coord);
        if (!visit(tsi_mesh_desc_rank(mesh, coord), ravel_axes(mesh, free, coord), count,
                   context)) {
            return false;
        }
    }
    return true;
}

typedef struct owner_scan {
    const tsi_pair *pair;
    const int64_t *sigma;
    tsi_owner_fn visit;
    void *context;
    int64_t inside; /* receivers that hold a term */
    int64_t next;
    bool count_only, only_inside;
} owner_scan;

static bool holds_block(const tsi_pair *pair, const int64_t *sigma, int64_t rank)
{
    int64_t own[TS_NDIM_MAX];
    if (!tsi_mesh_desc_coord(pair->src.mesh, rank, own)) return false;
    for (int32_t k = 0; k < pair->src.mesh->ndim; k++) {
        if ((pair->src.cut >> k & 1u) && own[k] != sigma[k]) return false;
    }
    return true;
}

static bool owner_candidate(int64_t rank, int64_t number, int64_t count, void *context)
{
    owner_scan *scan = context;
    (void)number;
    bool inside =
        (scan->count_only || scan->only_inside) && holds_block(scan->pair, scan->sigma, rank);
    if (scan->count_only) {
        scan->inside += inside;
        return true;
    }
    if (scan->only_inside && !inside) return true;
    return scan->visit(rank, scan->next++, scan->only_inside ? scan->inside : count, scan->context);
}

bool tsi_pair_owners(const tsi_pair *pair, const int64_t *sigma, const int64_t *delta,
                     uint32_t fixed, const int64_t *at, tsi_owner_fn visit, void *context)
{
    if (pair->same_mesh) return owners_same_mesh(pair, sigma, delta, fixed, at, visit, context);
    owner_scan scan = {
        .pair = pair, .sigma = sigma, .visit = visit, .context = context, .count_only = true
    };
    if (!tsi_pair_receivers(pair, delta, 0, at, owner_candidate, &scan)) return false;
    scan.count_only = false;
    scan.only_inside = scan.inside > 0;
    return tsi_pair_receivers(pair, delta, 0, at, owner_candidate, &scan);
}

bool tsi_region_share(const tsi_region *whole, int64_t number, int64_t count, tsi_arena *arena,
                      tsi_region *out)
{
    TSI_ASSERT(number >= 0 && number < count);
    if (tsi_region_count(whole) == 0) return false;
    *out = *whole;
    if (count == 1 || whole->ndim == 0) return number == 0;
    int32_t longest = 0;
    for (int32_t d = 1; d < whole->ndim; d++) {
        if (whole->dim[d].total > whole->dim[longest].total) longest = d;
    }
    int64_t total = whole->dim[longest].total, chunk = tsi_ceil_div(total, count);
    int64_t begin = tsi_min_i64(number * chunk, total), end = tsi_min_i64(begin + chunk, total);
    if (begin >= end) return false;
    return tsi_span_list_cut(&whole->dim[longest], begin, end, arena, &out->dim[longest]);
}
