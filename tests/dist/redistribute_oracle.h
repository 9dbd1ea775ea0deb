/* SPDX-License-Identifier: Apache-2.0 */
/* redistribute_oracle.h - what every rank must hold after a redistribution, written apart from the
 * planner and the executor.
 *
 * A tensor's terms are a pure function of (global index, coordinates on the partial axes), small
 * whole numbers whose sums, products and roots are exact in every dtype here, so that results are
 * compared bit for bit. Gather-then-slice is then: for each element this rank must hold, fold all
 * its terms in order. */
#ifndef TESTS_DIST_REDISTRIBUTE_ORACLE_H
#define TESTS_DIST_REDISTRIBUTE_ORACLE_H

#include <math.h>
#include <stdlib.h>

#include "harness/test.h"
#include "tessera/plan.h"
#include "tessera/tensor.h"

typedef struct kind { /* how terms combine */
    const char *name; /* as in P(name) */
    ts_reduce reduce; /* NONE: a norm */
    double norm;
} kind;

static const kind oracle_kinds[] = {
    { "sum", TS_REDUCE_SUM, 0 },     { "avg", TS_REDUCE_AVG, 0 },
    { "min", TS_REDUCE_MIN, 0 },     { "max", TS_REDUCE_MAX, 0 },
    { "prod", TS_REDUCE_PROD, 0 },   { "norm:2", TS_REDUCE_NONE, 2 },
    { "norm:1", TS_REDUCE_NONE, 1 }, { "norm:3", TS_REDUCE_NONE, 3 },
    { "and", TS_REDUCE_AND, 0 },     { "or", TS_REDUCE_OR, 0 },
    { "band", TS_REDUCE_BAND, 0 },   { "bor", TS_REDUCE_BOR, 0 },
};
enum { ORACLE_KINDS = sizeof oracle_kinds / sizeof oracle_kinds[0] };

static const ts_dtype oracle_dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_I64, TS_DTYPE_C64 };
enum { ORACLE_DTYPES = 4, ORACLE_ELEMENT = 8 };

/* Has the dtype this combination? */
static inline bool oracle_has(const kind *k, ts_dtype dtype)
{
    bool arithmetic =
        k->reduce == TS_REDUCE_SUM || k->reduce == TS_REDUCE_AVG || k->reduce == TS_REDUCE_PROD;
    if (dtype == TS_DTYPE_C64) return arithmetic;
    if (dtype == TS_DTYPE_I64) return k->reduce != TS_REDUCE_NONE;
    return arithmetic || k->reduce == TS_REDUCE_NONE || k->reduce == TS_REDUCE_MIN ||
           k->reduce == TS_REDUCE_MAX;
}

static inline uint64_t oracle_mix(uint64_t a, uint64_t b)
{
    uint64_t h = (a + 1) * 0x9E3779B97F4A7C15u ^ (b + 1) * 0xC2B2AE3D27D4EB4Fu;
    h ^= h >> 29;
    h *= 0xBF58476D1CE4E5B9u;
    return h ^ h >> 32;
}

/* One number of one term: element x, term `term` of `terms` (1: not partial), real or imaginary. */
static inline int64_t oracle_number(const kind *k, ts_dtype dtype, int64_t x, int64_t term,
                                    int64_t terms, int32_t part)
{
    uint64_t h = oracle_mix(oracle_mix((uint64_t)x, (uint64_t)term), (uint64_t)part);
    int64_t small = (int64_t)(h % 9) - 4;
    if (terms == 1) return dtype == TS_DTYPE_I64 ? (int64_t)h : (int64_t)(h % 257) - 128;
    if (k->reduce == TS_REDUCE_NONE)
        return (int64_t)(oracle_mix((uint64_t)x, 99) % (uint64_t)terms) == term ? small * 3 / 2 : 0;
    if (k->reduce == TS_REDUCE_AVG) return small * terms;
    if (k->reduce == TS_REDUCE_PROD && dtype == TS_DTYPE_C64) {
        /* 1 + 2i times a power of i: no part of a product is zero, which could have either sign */
        static const int8_t turn[4][2] = { { 1, 2 }, { -2, 1 }, { -1, -2 }, { 2, -1 } };
        return turn[oracle_mix((uint64_t)x, (uint64_t)term) & 3][part];
    }
    if (k->reduce == TS_REDUCE_PROD) return (h & 1 ? 1 : 2) * (h & 2 ? 1 : -1);
    if (k->reduce == TS_REDUCE_SUM) return small * 3;
    if (k->reduce == TS_REDUCE_AND || k->reduce == TS_REDUCE_OR)
        return (int64_t)(h % 3 ? k->reduce == TS_REDUCE_AND : h % 7);
    if (dtype == TS_DTYPE_I64) return (int64_t)h;
    return (int64_t)(h % 257) - 128;
}

/* Whole numbers (pairs of them for c64) as an element of the dtype. */
static inline void oracle_encode(ts_dtype dtype, const int64_t *number, void *element)
{
    float f[2] = { (float)number[0], (float)number[1] };
    uint32_t bits;
    memcpy(&bits, f, sizeof bits);
    uint16_t half = (uint16_t)(bits >> 16); /* exact: at most eight significant bits */
    if (dtype == TS_DTYPE_I64)
        memcpy(element, number, 8);
    else if (dtype == TS_DTYPE_BF16)
        memcpy(element, &half, 2);
    else
        memcpy(element, f, dtype == TS_DTYPE_C64 ? 8 : 4);
}

static inline void oracle_combine(ts_reduce reduce, int64_t *a, const int64_t *b)
{
    int64_t re = a[0], im = a[1];
    switch (reduce) {
    case TS_REDUCE_SUM:
    case TS_REDUCE_AVG:
        a[0] += b[0];
        a[1] += b[1];
        return;
    case TS_REDUCE_PROD:
        a[0] = re * b[0] - im * b[1];
        a[1] = re * b[1] + im * b[0];
        return;
    case TS_REDUCE_MIN:
        a[0] = re < b[0] ? re : b[0];
        return;
    case TS_REDUCE_MAX:
        a[0] = re > b[0] ? re : b[0];
        return;
    case TS_REDUCE_AND:
        a[0] = re && b[0];
        return;
    case TS_REDUCE_OR:
        a[0] = re || b[0];
        return;
    case TS_REDUCE_BAND:
        a[0] &= b[0];
        return;
    case TS_REDUCE_BOR:
        a[0] |= b[0];
        return;
    case TS_REDUCE_NONE: /* norms: at most one term is not zero */
        a[0] = llabs(a[0]) + llabs(b[0]);
        return;
    case TS_REDUCE_COUNT:
        return;
    }
}

/* ---- one side of a redistribution ----------------------------------------------------------- */

typedef struct side {
    ts_mesh *mesh;
    const ts_layout *layout;
    int32_t axes;
    uint32_t partial; /* axes of more than one rank that are partial */
} side;

static inline side side_of(ts_mesh *mesh, const ts_layout *layout)
{
    const ts_sharding *sharding = ts_layout_sharding(layout);
    side s = { mesh, layout, ts_sharding_ndim(sharding), 0 };
    for (int32_t k = 0; k < s.axes; k++) {
        int32_t place = ts_sharding_placement(sharding, k).kind;
        bool partial = place == TS_PLACE_PARTIAL || place == TS_PLACE_NORM;
        if (partial && ts_mesh_axis_size(mesh, k) > 1) s.partial |= 1u << k;
    }
    return s;
}

static inline bool side_cuts(const side *s, int32_t axis)
{
    int32_t place = ts_sharding_placement(ts_layout_sharding(s->layout), axis).kind;
    return place != TS_PLACE_REPLICATE && place != TS_PLACE_PARTIAL && place != TS_PLACE_NORM;
}

/* Number of a coordinate among those of the axes in the mask, and how many there are. */
static inline int64_t side_term(const side *s, uint32_t axes, const int64_t *coord, int64_t *count)
{
    int64_t term = 0;
    *count = 1;
    for (int32_t k = 0; k < s->axes; k++) {
        if (!(axes >> k & 1u)) continue;
        term = term * ts_mesh_axis_size(s->mesh, k) + coord[k];
        *count *= ts_mesh_axis_size(s->mesh, k);
    }
    return term;
}

/* May the pair be asked for at all? (One mesh; both sides with the same kind of partial.) */
static inline bool oracle_meaningful(const side *from, const side *to)
{
    for (int32_t k = 0; k < to->axes; k++)
        if ((to->partial >> k & 1u) && from->mesh == to->mesh && side_cuts(from, k)) return false;
    return true;
}

/* What the rank at `coord` of the source holds of element x. */
static inline void oracle_source(const kind *k, ts_dtype dtype, const side *from,
                                 const int64_t *coord, int64_t x, void *element)
{
    int64_t terms = 1, term = side_term(from, from->partial, coord, &terms), number[2] = { 0, 0 };
    for (int32_t i = 0; i < (dtype == TS_DTYPE_C64 ? 2 : 1); i++)
        number[i] = oracle_number(k, dtype, x, term, terms, i);
    oracle_encode(dtype, number, element);
}

/* The identity of a combination. */
static inline void oracle_identity(const kind *k, ts_dtype dtype, void *element)
{
    int64_t number[2] = { 0, 0 };
    float end = k->reduce == TS_REDUCE_MIN ? INFINITY : -INFINITY;
    uint32_t bits;
    uint16_t half;
    bool ends = k->reduce == TS_REDUCE_MIN || k->reduce == TS_REDUCE_MAX;
    if (k->reduce == TS_REDUCE_PROD || k->reduce == TS_REDUCE_AND) number[0] = 1;
    if (k->reduce == TS_REDUCE_BAND) number[0] = -1;
    if (ends) number[0] = k->reduce == TS_REDUCE_MIN ? INT64_MAX : INT64_MIN;
    oracle_encode(dtype, number, element);
    memcpy(&bits, &end, sizeof bits);
    half = (uint16_t)(bits >> 16);
    if (ends && dtype == TS_DTYPE_F32) memcpy(element, &end, 4);
    if (ends && dtype == TS_DTYPE_BF16) memcpy(element, &half, 2);
}

/* What the rank at `coord` of the target must hold of element x. */
static inline void oracle_target(const kind *k, ts_dtype dtype, const side *from, const side *to,
                                 const int64_t *coord, int64_t x, void *element)
{
    uint32_t kept = from->mesh == to->mesh ? from->partial & to->partial : 0;
    uint32_t made = to->partial & ~kept, folded = from->partial & ~kept;
    int64_t at[TS_NDIM_MAX] = { 0 }, count = 1, terms = 1, total[2] = { 0, 0 };
    for (int32_t a = 0; a < to->axes; a++) {
        if ((kept >> a & 1u)) at[a] = coord[a];
        if (!(made >> a & 1u) || coord[a] == 0 || k->reduce == TS_REDUCE_AVG) continue;
        oracle_identity(k, dtype, element);
        return;
    }
    (void)side_term(from, folded, at, &count);
    for (int64_t i = 0; i < count; i++) {
        int64_t rest = i, number[2] = { 0, 0 };
        for (int32_t a = from->axes - 1; a >= 0; a--) {
            if (!(folded >> a & 1u)) continue;
            at[a] = rest % ts_mesh_axis_size(from->mesh, a);
            rest /= ts_mesh_axis_size(from->mesh, a);
        }
        int64_t term = side_term(from, from->partial, at, &terms);
        for (int32_t p = 0; p < (dtype == TS_DTYPE_C64 ? 2 : 1); p++)
            number[p] = oracle_number(k, dtype, x, term, terms, p);
        if (i == 0)
            memcpy(total, number, sizeof total);
        else
            oracle_combine(k->reduce, total, number);
    }
    if (count > 1 && k->reduce == TS_REDUCE_AVG) {
        total[0] /= count;
        total[1] /= count;
    }
    if (count > 1 && k->reduce == TS_REDUCE_NONE) total[0] = llabs(total[0]);
    if (count > 1 && (k->reduce == TS_REDUCE_AND || k->reduce == TS_REDUCE_OR))
        total[0] = total[0] != 0;
    oracle_encode(dtype, total, element);
}

/* ---- whole blocks --------------------------------------------------------------------------- */

typedef void (*oracle_fn)(int64_t position, int64_t x, void *context);

/* Visits the local elements of a rank in row-major order; x: row-major global index. */
static inline void oracle_each(const side *s, int64_t rank, oracle_fn visit, void *context)
{
    int64_t coord[TS_NDIM_MAX], at[TS_NDIM_MAX] = { 0 }, global[TS_NDIM_MAX];
    if (!ts_mesh_coord_of(s->mesh, rank, coord)) return;
    ts_shape local = ts_layout_local(s->layout, coord), shape = ts_layout_shape(s->layout);
    int64_t count = ts_shape_count(&local);
    for (int64_t i = 0; i < count; i++) {
        int64_t x = 0;
        ts_layout_to_global(s->layout, coord, at, global);
        for (int32_t d = 0; d < shape.ndim; d++)
            x = x * shape.extent[d] + global[d];
        visit(i, x, context);
        for (int32_t d = local.ndim - 1; d >= 0 && ++at[d] == local.extent[d]; d--)
            at[d] = 0;
    }
}

typedef struct oracle_block {
    const kind *k;
    ts_dtype dtype;
    const side *from, *to; /* to NULL: the source itself */
    int64_t coord[TS_NDIM_MAX];
    unsigned char *data;
    int64_t wrong, wrong_x; /* positions that differ, and the first one's global index */
} oracle_block;

static inline void oracle_element(const oracle_block *b, int64_t x, void *element)
{
    if (b->to)
        oracle_target(b->k, b->dtype, b->from, b->to, b->coord, x, element);
    else
        oracle_source(b->k, b->dtype, b->from, b->coord, x, element);
}

static inline void oracle_put(int64_t position, int64_t x, void *context)
{
    oracle_block *b = context;
    unsigned char element[ORACLE_ELEMENT]; /* of another dtype they may be longer */
    size_t size = ts_dtype_size(b->dtype);
    oracle_element(b, x, element);
    memcpy(b->data + (size_t)position * size, element, size);
}

static inline void oracle_compare(int64_t position, int64_t x, void *context)
{
    oracle_block *b = context;
    unsigned char want[ORACLE_ELEMENT];
    size_t size = ts_dtype_size(b->dtype);
    oracle_element(b, x, want);
    if (memcmp(want, b->data + (size_t)position * size, size) == 0) return;
    if (b->wrong++ == 0) b->wrong_x = x;
}

/* Fills or compares this rank's block; returns how many elements were wrong, the first in *x. */
static inline int64_t oracle_block_run(ts_tensor *tensor, int64_t rank, const kind *k,
                                       const side *from, const side *to, bool fill, int64_t *x)
{
    const side *own = to ? to : from;
    ts_array view = TS_INIT(ts_array);
    oracle_block b = { .k = k, .dtype = ts_tensor_dtype(tensor), .from = from, .to = to };
    *x = -1;
    if (test_view(tensor, &view) != TS_OK) return -1;
    if (!ts_mesh_coord_of(own->mesh, rank, b.coord)) return 0;
    ts_shape local = ts_layout_local(own->layout, b.coord);
    if (local.ndim != view.meta.shape.ndim ||
        memcmp(local.extent, view.meta.shape.extent, (size_t)local.ndim * sizeof *local.extent) !=
            0)
        return -2; /* the block has another shape than the layout says */
    b.data = view.data;
    oracle_each(own, rank, fill ? oracle_put : oracle_compare, &b);
    if (fill && test_written(tensor, &view) != TS_OK) return -1;
    *x = b.wrong_x;
    return b.wrong;
}

#endif
