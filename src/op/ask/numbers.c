/* SPDX-License-Identifier: Apache-2.0 */
/* numbers.c - adversarial values and terms; see numbers.h. */
#include "op/ask/numbers.h"

#include <math.h>

#include "op/core/common.h"

/* ---- values ---------------------------------------------------------------------------------- */

/* Few digits: values and terms are halves below a hundred, so that sums of terms are exact. */
static bool is_rough(const tsi_numbers *n)
{
    return n->meta.dtype == TS_DTYPE_BF16 || n->meta.dtype == TS_DTYPE_F16;
}

static double real_at(const tsi_numbers *n, int64_t i)
{
    double x = (double)((i * 37 + n->operand * 11 + i / 17 * 5) % 17 - 8) / 2.0;
    if (x == 0.0) x = 1.5;
    switch (n->pattern) {
    case 1:
        x = -x + 0.5;
        break;
    case 2:
        x = fabs(x) + (is_rough(n) ? 0.5 : 0.25);
        break;
    case 3: /* ties, and groups that are all zero */
        x = (i + 2 * n->operand) / 4 % 2 ? 0.0 : x > 0 ? 2.0 : -1.0;
        break;
    case 4:
        x = (i + 2 * n->operand) % 23 == 19 ? x : 0.0;
        break;
    case 5:
        x = i % 3 ? x + (is_rough(n) ? 0.0 : 0.25) : (is_rough(n) ? 2.0 : 16.0) * x;
        break;
    default:
        break;
    }
    return n->positive ? fabs(x) : x;
}

/* Spreads the true ones evenly, from another place on in every pattern. */
static bool is_set(const tsi_numbers *n, int64_t i)
{
    int64_t count = ts_shape_count(&n->meta.shape), at = (i + 3 * n->pattern) % count;
    return (at + 1) * n->set / count != at * n->set / count;
}

double complex tsi_numbers_at(const tsi_numbers *n, int64_t i)
{
    ts_dtype dtype = (ts_dtype)n->meta.dtype;
    double x = real_at(n, i), y;
    switch (tsi_dtype_category(dtype)) {
    case TSI_CATEGORY_BOOL:
        if (n->counted) return (double)is_set(n, i);
        return (double)((i * 7 + n->operand + n->pattern) % 3 == 0);
    case TSI_CATEGORY_INT:
        if (n->truth) return (double)((i * 7 + n->operand + n->pattern) % 3 == 0 && n->limit != 1);
        if (n->limit > 0)
            return (double)(((n->pattern % 2 ? i / 2 : i) * 7 + i / 5 + n->pattern) % n->limit);
        return dtype == TS_DTYPE_U8 ? floor(fabs(x)) : floor(x);
    case TSI_CATEGORY_REAL:
        return x;
    case TSI_CATEGORY_COMPLEX: /* not on the real line, where functions have their cuts */
        y = real_at(n, i + 3);
        return x + (y == 0.0 && x != 0.0 ? 0.5 : y) * (double complex)I;
    }
    return x;
}

/* ---- terms ----------------------------------------------------------------------------------- */

typedef struct share { /* one term among several */
    ts_reduce reduce;  /* SUM also for avg and mixtures */
    bool norm;
    double p;
    int64_t rank, ranks;
    double divisor; /* of the avg axes */
} share;

static share share_of(const ts_layout *layout, const int64_t *coord)
{
    const ts_sharding *s = layout->sharding;
    share out = { .ranks = 1, .divisor = 1 };
    for (int32_t k = 0; k < s->ndim; k++) {
        const ts_placement *place = &s->place[k];
        if (!tsi_placement_partial(place)) continue;
        out.rank = out.rank * s->mesh->size[k] + coord[k];
        out.ranks *= s->mesh->size[k];
        out.norm = place->kind == TS_PLACE_NORM;
        out.p = place->norm;
        out.reduce = (ts_reduce)place->reduce;
        if (place->reduce == TS_REDUCE_AVG) {
            out.divisor *= (double)s->mesh->size[k];
            out.reduce = TS_REDUCE_SUM;
        }
    }
    return out;
}

static bool is_whole(const tsi_numbers *n)
{
    return tsi_dtype_category((ts_dtype)n->meta.dtype) == TSI_CATEGORY_INT;
}

/* What a term that is not the owner's adds, and what they add up to. Integers also have terms so
 * large that their sum wraps. */
static double noise_of(const tsi_numbers *n, int64_t i, int64_t rank)
{
    bool whole = is_whole(n) || is_rough(n);
    double x = (double)((i * 7 + rank * 3 + n->operand * 4) % 5 - 2);
    size_t bytes = ts_dtype_size((ts_dtype)n->meta.dtype);
    if (is_whole(n) && n->pattern == 5 && bytes < 8) return ldexp(x, 8 * (int)bytes - 2);
    double step = whole ? 3.0 : 2.75 + 0.5 * (double)(n->operand % 3);
    return (i + rank + n->operand) % 2 ? x + step : -x - (whole ? 1.0 : 0.25);
}

/* Terms of integers that fit, whose sum need not, and which leave a remainder: as many ranks as are
 * averaged have the value, neighbours differ from it by as much up as down. */
static double average_term(const tsi_numbers *n, const share *s, double x, int64_t i, int64_t owner)
{
    bool natural = n->meta.dtype == TS_DTYPE_U8, has_value = (double)s->rank < s->divisor;
    bool paired = (s->rank ^ 1) < s->ranks && ((double)(s->rank ^ 1) < s->divisor) == has_value;
    double step = (double)((i * 7 + s->rank / 2 * 3 + n->operand) % 4), term = has_value ? x : 0;
    if (natural && step > term) step = term;
    if (paired) term += s->rank % 2 ? -step : step;
    if (s->rank != owner) return term;
    double rest = fmod((double)(i + 3 * n->operand), s->divisor);
    return x < 0 ? term - rest : term + rest;
}

static double complex sum_term(const tsi_numbers *n, const share *s, double complex x, int64_t i,
                               int64_t owner)
{
    double others = 0;
    if (is_whole(n) && s->divisor > 1) return average_term(n, s, creal(x), i, owner);
    if (n->meta.dtype == TS_DTYPE_BOOL) return s->rank == owner ? s->divisor * x : 0;
    if (s->rank != owner) return noise_of(n, i, s->rank);
    for (int64_t q = 0; q < s->ranks; q++)
        if (q != owner) others += noise_of(n, i, q);
    return s->divisor * x - others;
}

static double complex product_term(const tsi_numbers *n, const share *s, double complex x,
                                   int64_t i, int64_t owner)
{
    bool whole = tsi_dtype_category((ts_dtype)n->meta.dtype) <= TSI_CATEGORY_INT;
    bool sign = n->meta.dtype != TS_DTYPE_U8 && n->meta.dtype != TS_DTYPE_BOOL;
    double others = 1;
    /* A complex zero by other factors has other signs of its parts: other sides of a cut. */
    if (x == 0.0 && tsi_meta_is_complex(&n->meta)) return 0;
    for (int64_t q = 0; q < s->ranks; q++) {
        double one = (i + q + n->operand) % 2 ? (whole ? 1.0 : 2.0) : sign ? -1.0 : 1.0;
        if (q == s->rank && q != owner) return one;
        if (q != owner) others *= one;
    }
    return x / others;
}

/* A decoy for an extreme: near (less than half a step) or far. */
static double decoy(int64_t i, int64_t rank, bool whole)
{
    double near = whole ? 1.0 : i % 3 ? 0.375 : 0.5;
    double far = whole ? 19.0 : 19.5;
    return (i / 2 + rank) % 2 ? far : near;
}

static double complex extreme_term(const tsi_numbers *n, const share *s, double complex x,
                                   int64_t i, int64_t owner, double sign)
{
    bool whole = tsi_dtype_category((ts_dtype)n->meta.dtype) <= TSI_CATEGORY_INT;
    double value = creal(x);
    if (s->rank == owner || ((i + s->rank + n->operand) % 5 == 0)) return x;
    if (n->meta.dtype == TS_DTYPE_BOOL) return sign > 0 ? 1.0 : 0.0;
    if (n->meta.dtype == TS_DTYPE_U8) return sign > 0 ? value + 1 : floor(value / 2);
    if (value * sign < 0 && (i + s->rank) % 3 == 0)
        return 0; /* an exact zero where it is harmless */
    return value + sign * decoy(i + n->operand, s->rank, whole);
}

/* Any integer but 0 is true. */
static double truth_term(const tsi_numbers *n, bool truth, int64_t i)
{
    return truth ? (is_whole(n) ? (double)(1 + i % 3) : 1.0) : 0.0;
}

double complex tsi_numbers_term(const tsi_numbers *n, const ts_layout *layout, const int64_t *coord,
                                int64_t i)
{
    double complex x = tsi_numbers_at(n, i);
    share s = share_of(layout, coord);
    if (s.ranks == 1) return x;
    int64_t owner = (i * 5 + 1 + n->operand * (1 + i / 3)) % s.ranks;
    bool mine = s.rank == owner, second = s.rank == (owner + 1) % s.ranks;
    if (s.norm && isfinite(s.p)) {
        double a = 0.75, b = pow(1 - pow(a, s.p), 1 / s.p);
        return mine ? a * x : second ? b * x : 0;
    }
    switch (s.reduce) {
    case TS_REDUCE_SUM:
    case TS_REDUCE_AVG:
        return sum_term(n, &s, x, i, owner);
    case TS_REDUCE_PROD:
        return product_term(n, &s, x, i, owner);
    case TS_REDUCE_MAX:
        return extreme_term(n, &s, x, i, owner, -1);
    case TS_REDUCE_MIN:
        return extreme_term(n, &s, x, i, owner, 1);
    case TS_REDUCE_AND: /* a false may come from one term, a true needs all */
        return truth_term(n, creal(x) != 0 || (!mine && (i + s.rank + n->operand) % 3 != 0), i);
    case TS_REDUCE_OR:
        return truth_term(n, creal(x) != 0 && (mine || (i + s.rank + n->operand) % 3 == 0), i);
    case TS_REDUCE_BAND:
    case TS_REDUCE_BOR:
    case TS_REDUCE_NONE:
    case TS_REDUCE_COUNT:
        break;
    }
    return x;
}

/* ---- elements -------------------------------------------------------------------------------- */

void tsi_number_store(ts_dtype dtype, void *element, double complex value)
{
    switch (tsi_dtype_category(dtype)) {
    case TSI_CATEGORY_COMPLEX:
        tsi_store_complex(dtype, element, value);
        return;
    case TSI_CATEGORY_REAL:
        tsi_store_real(dtype, element, creal(value));
        return;
    case TSI_CATEGORY_INT:
    case TSI_CATEGORY_BOOL:
        tsi_store_int(dtype, element, (int64_t)creal(value));
        return;
    }
}

double complex tsi_number_load(ts_dtype dtype, const void *element)
{
    switch (tsi_dtype_category(dtype)) {
    case TSI_CATEGORY_COMPLEX:
        return tsi_load_complex(dtype, element);
    case TSI_CATEGORY_REAL:
        return tsi_load_real(dtype, element);
    case TSI_CATEGORY_INT:
    case TSI_CATEGORY_BOOL:
        return (double)tsi_load_int(dtype, element);
    }
    return 0;
}

static double unit_of(ts_dtype dtype)
{
    tsi_category category = tsi_dtype_category(dtype);
    if (category <= TSI_CATEGORY_INT) return 0;
    if (dtype == TS_DTYPE_BF16) return 3e-2;
    size_t bytes = ts_dtype_size(dtype) / (category == TSI_CATEGORY_COMPLEX ? 2 : 1);
    return bytes == 8 ? 1e-9 : bytes == 4 ? 1e-4 : 4e-3;
}

static bool part_close(double x, double y, double unit, double scale)
{
    if (x == y || (isnan(x) && isnan(y))) return true;
    return fabs(x - y) <= unit * (1 + fabs(y) + 0.1 * scale);
}

double tsi_terms_scale(ts_dtype dtype, double terms)
{
    double unit = unit_of(dtype), digit = 0;
    if (dtype == TS_DTYPE_F64 || dtype == TS_DTYPE_C128) digit = 0x1p-53;
    if (dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_C64) digit = 0x1p-24;
    return digit > 0 ? 64 * digit / (0.1 * unit) * terms : terms;
}

bool tsi_number_close(double complex x, double complex y, ts_dtype dtype, double scale)
{
    double unit = unit_of(dtype);
    return part_close(creal(x), creal(y), unit, scale) &&
           part_close(cimag(x), cimag(y), unit, scale);
}

bool tsi_numbers_fill(const tsi_numbers *n, const ts_layout *layout, const int64_t *coord,
                      tsi_arena *arena, const tsi_block *block)
{
    ts_dtype dtype = (ts_dtype)block->dtype;
    size_t size = ts_dtype_size(dtype);
    tsi_region region;
    if (!tsi_layout_region(layout, coord, arena, &region)) return false;
    ts_shape view = tsi_layout_view(layout);
    tsi_region_iterator at;
    tsi_region_iterate(&at, &region, &view);
    while (tsi_region_next(&at))
        for (int64_t i = 0; i < at.length; i++)
            tsi_number_store(dtype, (char *)block->data + (size_t)(at.local + i) * size,
                             tsi_numbers_term(n, layout, coord, at.global + i));
    return true;
}
