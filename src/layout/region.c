/* SPDX-License-Identifier: Apache-2.0 */
/* region.c - products of interval lists: counting, intersecting, and walking over contiguous runs.
 *
 * Dims are independent, so all algebra is done dim by dim; only "empty" concerns the whole product.
 * The iterator visits a region in the row-major order of its own block. Trailing dims that are held
 * whole belong to the run:
 *
 *   dim 0       dim 1 (inner - 1)    dims >= inner
 *   one index   one interval         whole: one run */
#include "base/intmath.h"
#include "layout/span.h"

int64_t tsi_region_count(const tsi_region *region)
{
    int64_t count = 1;
    bool fits = true;
    for (int32_t d = 0; d < region->ndim; d++) {
        if (region->dim[d].total == 0) return 0;
        fits = fits && tsi_mul_i64(count, region->dim[d].total, &count);
    }
    return fits ? count : -1;
}

bool tsi_region_intersect(const tsi_region *a, const tsi_region *b, tsi_arena *arena,
                          tsi_region *out)
{
    out->ndim = a->ndim;
    out->reserved = 0;
    for (int32_t d = 0; d < a->ndim; d++)
        if (!tsi_span_list_intersect(&a->dim[d], &b->dim[d], arena, &out->dim[d])) return false;
    return true;
}

int64_t tsi_region_intersect_count(const tsi_region *a, const tsi_region *b)
{
    int64_t count = 1;
    bool fits = true;
    for (int32_t d = 0; d < a->ndim; d++) {
        int64_t common = tsi_span_list_intersect_count(&a->dim[d], &b->dim[d]);
        if (common == 0) return 0;
        fits = fits && tsi_mul_i64(count, common, &count);
    }
    return fits ? count : -1;
}

static bool is_empty(const tsi_region *region)
{
    for (int32_t d = 0; d < region->ndim; d++)
        if (region->dim[d].total == 0) return true;
    return false;
}

bool tsi_region_equal(const tsi_region *a, const tsi_region *b)
{
    if (a->ndim != b->ndim) return false;
    bool empty_a = is_empty(a), empty_b = is_empty(b);
    if (empty_a || empty_b) return empty_a && empty_b;
    for (int32_t d = 0; d < a->ndim; d++)
        if (!tsi_span_list_equal(&a->dim[d], &b->dim[d])) return false;
    return true;
}

bool tsi_region_join(const tsi_region *region, const ts_shape *view, int32_t first, int32_t last,
                     tsi_arena *arena, tsi_region *out)
{
    out->ndim = region->ndim - (last - first);
    out->reserved = 0;
    for (int32_t d = 0; d < first; d++)
        out->dim[d] = region->dim[d];
    tsi_span_list joined = region->dim[last];
    int64_t extent = view->extent[last];
    for (int32_t d = last - 1; d >= first; d--) {
        tsi_span_list outer;
        if (!tsi_span_list_join(&region->dim[d], &joined, extent, arena, &outer)) return false;
        joined = outer;
        extent *= view->extent[d];
    }
    out->dim[first] = joined;
    for (int32_t d = last + 1; d < region->ndim; d++)
        out->dim[d - (last - first)] = region->dim[d];
    return true;
}

/* ---- runs ----------------------------------------------------------------------------------- */

static void set_run(tsi_region_iterator *it)
{
    if (it->inner == 0) {
        it->length = it->run_length;
        return;
    }
    const tsi_region *region = it->region;
    it->global = 0;
    for (int32_t d = 0; d < it->inner; d++) {
        const tsi_span *span = tsi_spans(&region->dim[d]) + it->span[d];
        it->global += (span->begin + it->step[d] * span->period + it->within[d]) * it->stride[d];
    }
    it->length =
        tsi_spans(&region->dim[it->inner - 1])[it->span[it->inner - 1]].length * it->run_length;
}

void tsi_region_iterate(tsi_region_iterator *it, const tsi_region *region, const ts_shape *shape)
{
    *it = (tsi_region_iterator){ .region = region, .inner = region->ndim, .run_length = 1 };
    it->done = is_empty(region);
    int64_t stride = 1;
    for (int32_t d = region->ndim - 1; d >= 0 && !it->done; d--) {
        it->stride[d] = stride;
        if (!tsi_mul_i64(stride, shape->extent[d], &stride)) {
            it->done = 1; /* no block of memory has such indices */
        } else if (it->inner == d + 1 && region->dim[d].total == shape->extent[d]) {
            it->inner = d;
            it->run_length = stride;
        }
    }
    it->local = -1; /* before the first run */
}

/* The next index of a dim, or with `by_interval` its next interval; false after the last, back at
 * the first. */
static bool advance(tsi_region_iterator *it, int32_t d, bool by_interval)
{
    const tsi_span_list *list = &it->region->dim[d];
    const tsi_span *span = tsi_spans(list) + it->span[d];
    if (!by_interval && ++it->within[d] < span->length) return true;
    it->within[d] = 0;
    if (++it->step[d] < span->count) return true;
    it->step[d] = 0;
    if (++it->span[d] < list->span_count) return true;
    it->span[d] = 0;
    return false;
}

bool tsi_region_next(tsi_region_iterator *it)
{
    if (it->done) return false;
    if (it->local < 0) {
        it->local = 0;
        set_run(it);
        return true;
    }
    it->local += it->length;
    for (int32_t d = it->inner - 1; d >= 0; d--) {
        if (advance(it, d, d == it->inner - 1)) {
            set_run(it);
            return true;
        }
    }
    it->done = 1;
    return false;
}
