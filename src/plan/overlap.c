/* SPDX-License-Identifier: Apache-2.0 */
/* overlap.c - how much of what they need ranks already have, summed over all ranks, and the bound
 * that follows.
 *
 * Three ways, the first that applies:
 *   digits    all cuts even and their sizes factor alike: every coordinate is a number of prime
 *             digits, a rank holds something on both sides iff certain digits are equal, and the
 *             sum is a product. No enumeration.
 *   classes   one mesh: dims that share no axis are independent; within a component the
 *             coordinates of its cutting axes are enumerated, everything else is a factor.
 *   ranks     two meshes: the members of the smaller one are looked up in the other.
 *
 * What would be enumerated one by one is counted first, and refused beyond LOOKS_MAX. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/intmath.h"
#include "plan/exchange.h"

/* ---- digits --------------------------------------------------------------------------------- */

enum { DIGITS_MAX = 64, VARIABLES_MAX = TS_NDIM_MAX * DIGITS_MAX };

typedef struct digits {
    int32_t first[TS_NDIM_MAX + 1]; /* variables of axis k */
    int32_t prime[VARIABLES_MAX];
    int32_t parent[VARIABLES_MAX];
} digits;

static bool digits_make(const tsi_mesh_desc *mesh, uint32_t axes, digits *out)
{
    int32_t count = 0;
    for (int32_t k = 0; k < mesh->ndim; k++) {
        out->first[k] = count;
        int64_t rest = axes >> k & 1u ? mesh->size[k] : 1;
        for (int64_t p = 2; rest > 1; p++) {
            if (p > 1024) return false; /* a large prime: not worth the search for it */
            for (; rest % p == 0; rest /= p) {
                out->parent[count] = count;
                out->prime[count++] = (int32_t)p;
            }
        }
    }
    out->first[mesh->ndim] = count;
    return true;
}

static int32_t root_of(digits *x, int32_t i)
{
    while (x->parent[i] != i)
        i = x->parent[i] = x->parent[x->parent[i]];
    return i;
}

/* The digits of one dim of a side, the most significant first; -1: the cuts do not divide the
 * extent. */
static int32_t dim_digits(const digits *x, const tsi_side *side, int32_t d, int64_t extent,
                          int32_t *out)
{
    int32_t count = 0;
    if (!(side->dim_plain >> d & 1u)) return -1;
    for (int32_t i = 0; i < side->dim_count[d]; i++) {
        int32_t axis = side->dim_axis[d][i];
        if (extent % side->mesh->size[axis] != 0) return -1;
        extent /= side->mesh->size[axis];
        for (int32_t v = x->first[axis]; v < x->first[axis + 1]; v++)
            out[count++] = v;
    }
    return count;
}

static bool overlap_digits(const tsi_pair *pair, int64_t *out)
{
    digits x;
    const tsi_mesh_desc *mesh = pair->src.mesh;
    uint32_t cut = pair->src.cut | pair->dst.cut;
    if (!digits_make(mesh, cut, &x)) return false;
    int64_t common = 1;
    for (int32_t d = 0; d < pair->dims; d++) {
        int32_t s[VARIABLES_MAX], t[VARIABLES_MAX];
        int32_t ns = dim_digits(&x, &pair->src, d, pair->extent[d], s);
        int32_t nt = dim_digits(&x, &pair->dst, d, pair->extent[d], t);
        if (ns < 0 || nt < 0) return false;
        int64_t length = pair->extent[d];
        for (int32_t j = 0; j < ns || j < nt; j++) {
            int32_t prime = x.prime[j < ns ? s[j] : t[j]];
            if (j < ns && j < nt) {
                if (x.prime[s[j]] != x.prime[t[j]]) return false;
                x.parent[root_of(&x, s[j])] = root_of(&x, t[j]);
            }
            if (length % prime != 0) return false;
            length /= prime;
        }
        common *= length;
    }
    for (int32_t k = 0; k < mesh->ndim; k++) {
        if (!(cut >> k & 1u) && !(pair->dst.owner >> k & 1u)) common *= mesh->size[k];
    }
    for (int32_t v = 0; v < x.first[mesh->ndim]; v++) {
        if (x.parent[v] == v) common *= x.prime[v];
    }
    *out = common;
    return true;
}

/* ---- classes -------------------------------------------------------------------------------- */

/* The interval that plain chunks select. */
static void plain_interval(const tsi_pair *pair, const tsi_side *side, int32_t d,
                           const int64_t *coord, int64_t *begin, int64_t *end)
{
    *begin = 0;
    *end = pair->extent[d];
    for (int32_t i = 0; i < side->dim_count[d]; i++) {
        int32_t axis = side->dim_axis[d][i];
        int64_t chunk = tsi_ceil_div(*end - *begin, side->mesh->size[axis]);
        int64_t from = tsi_min_i64(*begin + coord[axis] * chunk, *end);
        *end = tsi_min_i64(from + chunk, *end);
        *begin = from;
    }
}

/* Indices of dim d in both blocks; -1: memory. */
static int64_t dim_overlap(const tsi_pair *pair, int32_t d, const int64_t *src, const int64_t *dst,
                           tsi_arena *arena)
{
    if ((pair->src.dim_plain & pair->dst.dim_plain) >> d & 1u) {
        int64_t a, b, c, e;
        plain_interval(pair, &pair->src, d, src, &a, &b);
        plain_interval(pair, &pair->dst, d, dst, &c, &e);
        return tsi_max_i64(0, tsi_min_i64(b, e) - tsi_max_i64(a, c));
    }
    tsi_span_list s, t;
    tsi_arena_mark mark = tsi_arena_save(arena);
    int64_t count = -1;
    if (tsi_side_list(pair, &pair->src, src, d, arena, &s) &&
        tsi_side_list(pair, &pair->dst, dst, d, arena, &t)) {
        count = tsi_span_list_intersect_count(&s, &t);
    }
    tsi_arena_rewind(arena, mark);
    return count;
}

typedef struct component {
    uint32_t axes;
    int32_t dims[TS_NDIM_MAX], dim_count;
    int64_t
        *table[TS_NDIM_MAX]; /* overlap by the coordinates of the dim's axes, -1 unknown; or NULL */
    uint32_t dim_axes[TS_NDIM_MAX];
} component;

enum { TABLE_MAX = 1 << 16 };

static uint32_t axes_of_dim(const tsi_pair *pair, int32_t d)
{
    uint32_t axes = 0;
    for (int32_t i = 0; i < pair->src.dim_count[d]; i++)
        axes |= 1u << pair->src.dim_axis[d][i];
    for (int32_t i = 0; i < pair->dst.dim_count[d]; i++)
        axes |= 1u << pair->dst.dim_axis[d][i];
    return axes;
}

/* All dims connected with dim d by shared axes; marks them in *seen. */
static void component_of(const tsi_pair *pair, int32_t d, uint32_t *seen, component *out)
{
    memset(out, 0, sizeof *out);
    uint32_t members = 1u << d;
    out->axes = axes_of_dim(pair, d);
    for (bool grown = true; grown;) {
        grown = false;
        for (int32_t e = 0; e < pair->dims; e++) {
            if ((members >> e & 1u) || !(axes_of_dim(pair, e) & out->axes)) continue;
            members |= 1u << e;
            out->axes |= axes_of_dim(pair, e);
            grown = true;
        }
    }
    for (int32_t e = 0; e < pair->dims; e++) {
        if (!(members >> e & 1u)) continue;
        out->dim_axes[out->dim_count] = axes_of_dim(pair, e);
        out->dims[out->dim_count++] = e;
    }
    *seen |= members;
}

static bool component_tables(const tsi_pair *pair, component *c, tsi_arena *arena)
{
    int64_t all = tsi_mesh_desc_product(pair->src.mesh, c->axes);
    for (int32_t i = 0; i < c->dim_count; i++) {
        int64_t size = tsi_mesh_desc_product(pair->src.mesh, c->dim_axes[i]);
        if (size > TABLE_MAX || 2 * size > all) continue;
        c->table[i] = tsi_arena_alloc(arena, (size_t)size * sizeof *c->table[i]);
        if (!c->table[i]) return false;
        for (int64_t j = 0; j < size; j++)
            c->table[i][j] = -1;
    }
    return true;
}

static int64_t component_at(const tsi_pair *pair, const component *c, const int64_t *coord,
                            tsi_arena *arena)
{
    int64_t product = 1;
    for (int32_t i = 0; i < c->dim_count && product > 0; i++) {
        int64_t *known = NULL, index = 0;
        if (c->table[i]) {
            for (int32_t k = 0; k < pair->src.mesh->ndim; k++) {
                if (c->dim_axes[i] >> k & 1u) index = index * pair->src.mesh->size[k] + coord[k];
            }
            known = &c->table[i][index];
        }
        int64_t value =
            known && *known >= 0 ? *known : dim_overlap(pair, c->dims[i], coord, coord, arena);
        if (value < 0) return -1;
        if (known) *known = value;
        product *= value;
    }
    return product;
}

static bool component_sum(const tsi_pair *pair, component *c, tsi_arena *arena, int64_t *out)
{
    int64_t coord[TS_NDIM_MAX] = { 0 };
    const tsi_mesh_desc *mesh = pair->src.mesh;
    int64_t all = tsi_mesh_desc_product(mesh, c->axes);
    *out = 0;
    if (!component_tables(pair, c, arena)) return false;
    for (int64_t i = 0; i < all; i++) {
        int64_t value = component_at(pair, c, coord, arena);
        if (value < 0) return false;
        *out += value;
        for (int32_t k = mesh->ndim - 1; k >= 0; k--) {
            if (!(c->axes >> k & 1u)) continue;
            if (++coord[k] < mesh->size[k]) break;
            coord[k] = 0;
        }
    }
    return true;
}

static bool overlap_classes(const tsi_pair *pair, tsi_arena *arena, int64_t *out)
{
    uint32_t seen = 0;
    int64_t total =
        tsi_mesh_desc_product(pair->src.mesh, ~(pair->src.cut | pair->dst.cut | pair->dst.owner));
    for (int32_t d = 0; d < pair->dims; d++) {
        component c;
        int64_t sum = 0;
        if (seen >> d & 1u) continue;
        component_of(pair, d, &seen, &c);
        if (!component_sum(pair, &c, arena, &sum)) return false;
        total *= sum;
    }
    *out = total;
    return true;
}

/* ---- the limit ------------------------------------------------------------------------------- */

enum { LOOKS_MAX = 1 << 26 }; /* about a second */

/* Coordinates that overlap_classes looks at. */
static int64_t class_looks(const tsi_pair *pair)
{
    uint32_t seen = 0;
    int64_t looks = 0;
    for (int32_t d = 0; d < pair->dims; d++) {
        component c;
        if (seen >> d & 1u) continue;
        component_of(pair, d, &seen, &c);
        looks = tsi_max_i64(looks, tsi_mesh_desc_product(pair->src.mesh, c.axes));
    }
    return looks;
}

static ts_status check_looks(const tsi_pair *pair, int64_t looks)
{
    if (looks <= LOOKS_MAX) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG,
                    "plan: a move from %lld ranks to %lld, %s, would be planned by looking at %lld "
                    "of them one by one: at most %lld are looked at",
                    (long long)pair->src.mesh->count, (long long)pair->dst.mesh->count,
                    pair->same_mesh ? "cut unevenly" : "of another mesh", (long long)looks,
                    (long long)LOOKS_MAX);
}

/* ---- ranks ---------------------------------------------------------------------------------- */

static int64_t cut_index(const tsi_side *side, const int64_t *coord)
{
    int64_t index = 0;
    for (int32_t k = 0; k < side->mesh->ndim; k++) {
        if (side->cut >> k & 1u) index = index * side->mesh->size[k] + coord[k];
    }
    return index;
}

/* Blocks (sigma, delta) that were seen; open addressing. */
typedef struct seen_set {
    int64_t (*key)[2];
    int64_t mask;
} seen_set;

static bool seen_before(seen_set *set, int64_t sigma, int64_t delta)
{
    uint64_t hash = tsi_hash_mix(tsi_hash_mix(1, (uint64_t)sigma), (uint64_t)delta);
    int64_t slot = (int64_t)(hash & (uint64_t)set->mask);
    for (; set->key[slot][0] >= 0; slot = (slot + 1) & set->mask) {
        if (set->key[slot][0] == sigma && set->key[slot][1] == delta) return true;
    }
    set->key[slot][0] = sigma;
    set->key[slot][1] = delta;
    return false;
}

static bool seen_make(seen_set *set, int64_t count, tsi_arena *arena)
{
    int64_t capacity = 16;
    while (capacity < 2 * count)
        capacity *= 2;
    set->mask = capacity - 1;
    set->key = tsi_arena_alloc(arena, (size_t)capacity * sizeof *set->key);
    for (int64_t i = 0; set->key && i < capacity; i++)
        set->key[i][0] = -1;
    return set->key != NULL;
}

static bool owner_coord(const tsi_side *dst, const int64_t *coord)
{
    for (int32_t k = 0; k < dst->mesh->ndim; k++) {
        if ((dst->owner >> k & 1u) && coord[k] != 0) return false;
    }
    return true;
}

static bool overlap_ranks(const tsi_pair *pair, bool distinct, tsi_arena *arena, int64_t *out)
{
    bool by_src = pair->src.mesh->count <= pair->dst.mesh->count;
    const tsi_mesh_desc *few = by_src ? pair->src.mesh : pair->dst.mesh;
    const tsi_mesh_desc *many = by_src ? pair->dst.mesh : pair->src.mesh;
    seen_set seen = { 0 };
    *out = 0;
    if (distinct && !seen_make(&seen, few->count, arena)) return false;
    for (int64_t i = 0; i < few->count; i++) {
        int64_t a[TS_NDIM_MAX], b[TS_NDIM_MAX];
        tsi_mesh_desc_unravel(few, i, a);
        if (!tsi_mesh_desc_coord(many, tsi_mesh_desc_rank(few, a), b)) continue;
        const int64_t *src = by_src ? a : b, *dst = by_src ? b : a;
        if (!owner_coord(&pair->dst, dst)) continue;
        if (distinct && seen_before(&seen, cut_index(&pair->src, src), cut_index(&pair->dst, dst)))
            continue;
        int64_t product = 1;
        for (int32_t d = 0; d < pair->dims && product > 0; d++) {
            int64_t value = dim_overlap(pair, d, src, dst, arena);
            if (value < 0) return false;
            product *= value;
        }
        *out += product;
    }
    return true;
}

ts_status tsi_pair_overlap(const tsi_pair *pair, bool distinct, int64_t *out)
{
    tsi_arena arena = { 0 };
    bool good = true;
    if (!pair->same_mesh) {
        int64_t few = tsi_min_i64(pair->src.mesh->count, pair->dst.mesh->count);
        TSI_TRY(check_looks(pair, few));
        good = overlap_ranks(pair, distinct, &arena, out);
    } else {
        if (!overlap_digits(pair, out)) {
            TSI_TRY(check_looks(pair, class_looks(pair)));
            good = overlap_classes(pair, &arena, out);
        }
        uint32_t others = pair->src.cut | pair->dst.cut | pair->dst.owner | pair->src.kept;
        if (distinct) *out /= tsi_mesh_desc_product(pair->src.mesh, ~others);
    }
    tsi_arena_release(&arena);
    return good ? TS_OK : tsi_fail_memory("the overlap of two layouts", 0);
}

ts_status tsi_pair_bound(const tsi_pair *pair, int64_t *out)
{
    int64_t overlap = 0;
    bool terms = pair->src.terms > 1;
    TSI_TRY(tsi_pair_overlap(pair, terms, &overlap));
    int64_t wanted = pair->count * tsi_mesh_desc_product(pair->src.mesh, pair->src.kept);
    if (!terms) {
        *out = wanted * pair->dst.replicas - overlap;
    } else {
        *out = wanted * (pair->src.terms + pair->dst.replicas - 2) + (wanted - overlap);
    }
    return TS_OK;
}
