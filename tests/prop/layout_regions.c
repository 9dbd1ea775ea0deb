/* SPDX-License-Identifier: Apache-2.0 */
/* layout_regions.c - the algebra of interval lists and regions against sets of booleans.
 *
 * Lists are random unions of periodic spans, so that cycles, touching intervals and odd spellings
 * all occur. Every result must hold the right indices and be in the one spelling (that of appending
 * its indices one by one). Boxes must visit exactly the elements of the part, at the right places
 * of both blocks, in an order that both ends share. */
#include <stdlib.h>

#include "base/alloc.h"
#include "base/rank.h"
#include "harness/test.h"
#include "layout/region.h"

enum { EXTENT = 400 };

typedef struct set {
    bool has[EXTENT * 4];
} set;

static void fill_span(set *s, int64_t extent, tsi_span span)
{
    for (int64_t k = 0; k < span.count; k++)
        for (int64_t i = 0; i < span.length; i++)
            if (span.begin + k * span.period + i < extent)
                s->has[span.begin + k * span.period + i] = true;
}

/* A random set: of few spans that may run into each other, or the inverse of one. */
static set random_set(test *t, int64_t extent)
{
    set s = { 0 };
    int64_t spans = test_random_below(t, 16) == 0 ? 0 : 1 + test_random_below(t, 3);
    for (int64_t i = 0; i < spans; i++) {
        int64_t period = 1 + test_random_below(t, 1 + extent / 3);
        tsi_span span = { test_random_below(t, extent), 1 + test_random_below(t, period), period,
                          1 + test_random_below(t, 40) };
        fill_span(&s, extent, span);
    }
    if (test_random_below(t, 4) == 0)
        for (int64_t x = 0; x < extent; x++)
            s.has[x] = !s.has[x];
    return s;
}

static tsi_span_list list_of(test *t, const set *s, int64_t extent, tsi_arena *arena)
{
    tsi_span_list list = { 0 };
    for (int64_t x = 0; x < extent; x++)
        if (s->has[x]) TEST_CHECK(t, tsi_span_list_append(&list, (tsi_span){ x, 1, 1, 1 }, arena));
    return list;
}

static void check_same(test *t, const char *what, const tsi_span_list *got, const set *want,
                       int64_t extent, tsi_arena *arena)
{
    tsi_span_list spelled = list_of(t, want, extent, arena);
    TEST_SAY(t, tsi_span_list_equal(got, &spelled),
             "%s: %lld indices in %lld spans, expected %lld in %lld", what, (long long)got->total,
             (long long)got->span_count, (long long)spelled.total, (long long)spelled.span_count);
}

/* INV of region.h, from the list alone. */
static void check_spelling(test *t, const tsi_span_list *list)
{
    int64_t total = 0, end = -1;
    for (int64_t i = 0; i < list->span_count; i++) {
        const tsi_span *s = &tsi_spans(list)[i];
        TEST_CHECK(t, s->length > 0 && s->count > 0 && s->begin > end);
        TEST_CHECK(t, s->count > 1 ? s->period > s->length : s->period == s->length);
        total += s->length * s->count;
        end = s->begin + (s->count - 1) * s->period + s->length;
    }
    TEST_EQ(t, total, list->total);
}

static void check_pair(test *t, tsi_arena *arena)
{
    int64_t extent = 1 + test_random_below(t, EXTENT);
    set a = random_set(t, extent), b = random_set(t, extent), both = { 0 }, minus = { 0 },
        other = { 0 };
    tsi_span_list x = list_of(t, &a, extent, arena), y = list_of(t, &b, extent, arena), out;
    int64_t common = 0;
    for (int64_t i = 0; i < extent; i++) {
        both.has[i] = a.has[i] && b.has[i];
        minus.has[i] = a.has[i] && !b.has[i];
        other.has[i] = !a.has[i];
        common += both.has[i];
    }
    check_spelling(t, &x);
    TEST_CHECK(t, tsi_span_list_intersect(&x, &y, arena, &out));
    check_same(t, "intersect", &out, &both, extent, arena);
    TEST_EQ(t, tsi_span_list_intersect_count(&x, &y), common);
    TEST_CHECK(t, tsi_span_list_subtract(&x, &y, arena, &out));
    check_same(t, "subtract", &out, &minus, extent, arena);
    TEST_CHECK(t, tsi_span_list_complement(&x, extent, arena, &out));
    check_same(t, "complement", &out, &other, extent, arena);
}

/* Positions of a list: cut, select, at, find. */
static void check_positions(test *t, tsi_arena *arena)
{
    int64_t extent = 1 + test_random_below(t, EXTENT), index[EXTENT], count = 0;
    set a = random_set(t, extent), cut = { 0 }, picked = { 0 };
    for (int64_t i = 0; i < extent; i++)
        if (a.has[i]) index[count++] = i;
    set p = random_set(t, count > 0 ? count : 1);
    tsi_span_list x = list_of(t, &a, extent, arena), y = list_of(t, &p, count, arena), out;
    int64_t begin = test_random_below(t, count + 1),
            end = begin + test_random_below(t, count - begin + 1);
    for (int64_t i = 0; i < count; i++) {
        if (i >= begin && i < end) cut.has[index[i]] = true;
        if (p.has[i]) picked.has[index[i]] = true;
        TEST_EQ(t, tsi_span_list_at(&x, i), index[i]);
    }
    for (int64_t i = 0, at = 0; i < extent; i++)
        TEST_EQ(t, tsi_span_list_find(&x, i), a.has[i] ? at++ : -1);
    TEST_CHECK(t, tsi_span_list_cut(&x, begin, end, arena, &out));
    check_same(t, "cut", &out, &cut, extent, arena);
    TEST_CHECK(t, tsi_span_list_select(&x, &y, arena, &out));
    check_same(t, "select", &out, &picked, extent, arena);
}

static void check_join(test *t, tsi_arena *arena)
{
    int64_t rows = 1 + test_random_below(t, 20), columns = 1 + test_random_below(t, 20);
    set a = random_set(t, rows), b = random_set(t, columns), joined = { 0 };
    tsi_span_list x = list_of(t, &a, rows, arena), y = list_of(t, &b, columns, arena), out;
    for (int64_t i = 0; i < rows * columns; i++)
        joined.has[i] = a.has[i / columns] && b.has[i % columns];
    TEST_CHECK(t, tsi_span_list_join(&x, &y, columns, arena, &out));
    check_same(t, "join", &out, &joined, rows * columns, arena);
}

TS_TEST(region_lists)
{
    ts_world *world;
    tsi_arena arena = { 0 };
    TEST_OK(t, tsi_world_make(1, 1, 0, 0, &world));
    for (int i = 0; i < 20000 && !test_failed(t); i++) {
        tsi_arena_reset(&arena);
        check_pair(t, &arena);
        check_positions(t, &arena);
        check_join(t, &arena);
    }
    tsi_arena_release(&arena);
    tsi_world_unmake(world);
}

/* Two periodic lists of a million intervals: the result must come in closed form, not interval by
 * interval. */
TS_TEST(region_cycles_stay_closed)
{
    tsi_arena arena = { 0 };
    tsi_span_list a = { 0 }, b = { 0 }, out;
    int64_t many = 1000000000000;
    TEST_CHECK(t, tsi_span_list_append(&a, (tsi_span){ 5, 30, 120, many }, &arena));
    TEST_CHECK(t, tsi_span_list_append(&b, (tsi_span){ 0, 60, 240, many / 2 }, &arena));
    TEST_CHECK(t, tsi_span_list_intersect(&a, &b, &arena, &out));
    TEST_EQ(t, out.span_count, 1);
    TEST_EQ(t, out.total, many / 2 * 30);
    TEST_EQ(t, tsi_span_list_intersect_count(&a, &b), many / 2 * 30);
    tsi_span_list pieces = { 0 };
    TEST_CHECK(t, tsi_span_list_append(&pieces, (tsi_span){ 0, 30, 60, many / 2 }, &arena));
    TEST_CHECK(t, tsi_span_list_select(&a, &pieces, &arena, &out));
    TEST_EQ(t, out.span_count, 1);
    TEST_EQ(t, out.few[0].period, 240);
    TEST_CHECK(t, tsi_span_list_subtract(&a, &b, &arena, &out));
    TEST_EQ(t, out.total, many / 2 * 30);
    tsi_arena_release(&arena);
}

/* ---- regions and boxes ----------------------------------------------------------------------- */

enum { BLOCK = 8 * 10 * 40 * 8 };

typedef struct walk {
    int64_t a[BLOCK], b[BLOCK]; /* places in either block, in the order of the visit */
    int64_t count, boxes;
} walk;

static bool visit_box(const tsi_box *box, void *context)
{
    walk *w = context;
    int64_t at[TS_NDIM_MAX] = { 0 };
    w->boxes++;
    for (;;) {
        int64_t a = box->offset_a, b = box->offset_b;
        for (int32_t d = 0; d < box->ndim; d++) {
            a += at[d] * box->stride_a[d];
            b += at[d] * box->stride_b[d];
        }
        if (w->count == BLOCK) return false;
        w->a[w->count] = a;
        w->b[w->count++] = b;
        int32_t d = box->ndim - 1;
        while (d >= 0 && ++at[d] == box->extent[d])
            at[d--] = 0;
        if (d < 0) return true;
    }
}

/* Global indices of a region in the order of its block, from the lists. */
static int64_t list_elements(const tsi_region *region, const ts_shape *shape, int64_t *out)
{
    int64_t total = tsi_region_count(region);
    for (int64_t i = 0; i < total; i++) {
        int64_t rest = i, stride = 1, g = 0;
        for (int32_t d = region->ndim - 1; d >= 0; d--) {
            g += tsi_span_list_at(&region->dim[d], rest % region->dim[d].total) * stride;
            rest /= region->dim[d].total;
            stride *= shape->extent[d];
        }
        out[i] = g;
    }
    return total;
}

typedef struct pair {
    int64_t a[BLOCK], b[BLOCK], part[BLOCK], seen[BLOCK];
    walk both, from, to;
} pair;

static void check_runs(test *t, const tsi_region *region, const ts_shape *shape,
                       const int64_t *want, int64_t total)
{
    tsi_region_iterator it;
    int64_t local = 0;
    for (tsi_region_iterate(&it, region, shape); tsi_region_next(&it); local += it.length) {
        TEST_EQ(t, it.local, local);
        for (int64_t i = 0; i < it.length; i++)
            TEST_SAY(t, local + i < total && want[local + i] == it.global + i, "run at %lld",
                     (long long)local);
    }
    TEST_EQ(t, local, total);
}

static int64_t check_boxes(test *t, pair *p, tsi_arena *arena)
{
    ts_shape shape = { .ndim = 1 + (int32_t)test_random_below(t, 4) };
    const int64_t most[4] = { 8, 10, 40, 8 };
    tsi_region a = { .ndim = shape.ndim }, b = a, part, again;
    for (int32_t d = 0; d < shape.ndim; d++) {
        shape.extent[d] = 1 + test_random_below(t, most[d]);
        set x = random_set(t, shape.extent[d]), y = random_set(t, shape.extent[d]);
        a.dim[d] = list_of(t, &x, shape.extent[d], arena);
        b.dim[d] = list_of(t, &y, shape.extent[d], arena);
    }
    int64_t count_a = list_elements(&a, &shape, p->a);
    (void)list_elements(&b, &shape, p->b);
    check_runs(t, &a, &shape, p->a, count_a);
    TEST_CHECK(t, tsi_region_intersect(&a, &b, arena, &part));
    TEST_CHECK(t, tsi_region_intersect(&b, &a, arena, &again));
    TEST_CHECK(t, tsi_region_equal(&part, &again));
    int64_t total = list_elements(&part, &shape, p->part);
    TEST_EQ(t, tsi_region_intersect_count(&a, &b), total);
    p->both.count = p->from.count = p->to.count = 0;
    TEST_CHECK(t, tsi_region_boxes(&part, &a, &b, arena, visit_box, &p->both));
    TEST_CHECK(t, tsi_region_boxes(&part, &a, NULL, arena, visit_box, &p->from));
    TEST_CHECK(t, tsi_region_boxes(&again, NULL, &b, arena, visit_box, &p->to));
    TEST_EQ(t, p->both.count, total);
    TEST_CHECK(t, p->from.count == total && p->to.count == total);
    memset(p->seen, 0, sizeof p->seen);
    for (int64_t i = 0; i < total && !test_failed(t); i++) {
        int64_t g = p->a[p->both.a[i]];
        TEST_EQ(t, g, p->b[p->both.b[i]]);      /* the same element at both ends */
        TEST_EQ(t, p->both.a[i], p->from.a[i]); /* in the order of either end alone */
        TEST_EQ(t, p->both.b[i], p->to.b[i]);
        TEST_EQ(t, p->seen[g]++, 0); /* once */
    }
    return total;
}

TS_TEST(region_boxes)
{
    tsi_arena arena = { 0 };
    pair *p = tsi_alloc(sizeof *p);
    int64_t elements = 0;
    for (int i = 0; i < 20000 && p && !test_failed(t); i++) {
        tsi_arena_reset(&arena);
        elements += check_boxes(t, p, &arena);
    }
    TEST_CHECK(t, elements > 100000);
    tsi_free(p);
    tsi_arena_release(&arena);
}

static bool count_box(const tsi_box *box, void *context)
{
    (void)box;
    ++*(int64_t *)context;
    return true;
}

/* What strided shards need: one box for a periodic column, one for a whole block, and more dims
 * than a box has. */
TS_TEST(region_boxes_are_few)
{
    tsi_arena arena = { 0 };
    tsi_region whole = { .ndim = 2 }, part = { .ndim = 2 };
    int64_t boxes = 0;
    whole.dim[0] = part.dim[0] = tsi_span_list_whole(1000);
    whole.dim[1] = tsi_span_list_whole(4096);
    TEST_CHECK(t, tsi_span_list_append(&part.dim[1], (tsi_span){ 8, 16, 64, 64 }, &arena));
    TEST_CHECK(t, tsi_region_boxes(&part, &whole, &part, &arena, count_box, &boxes));
    TEST_EQ(t, boxes, 1);
    boxes = 0;
    TEST_CHECK(t, tsi_region_boxes(&whole, &whole, NULL, &arena, count_box, &boxes));
    TEST_EQ(t, boxes, 1);
    boxes = 0;
    tsi_region wide = { .ndim = 8 }, teeth = { .ndim = 8 };
    for (int32_t d = 0; d < 8; d++) {
        wide.dim[d] = tsi_span_list_whole(7);
        TEST_CHECK(t, tsi_span_list_append(&teeth.dim[d], (tsi_span){ 0, 2, 4, 2 }, &arena));
    }
    TEST_CHECK(t, tsi_region_boxes(&teeth, &wide, NULL, &arena, count_box, &boxes));
    TEST_EQ(t, boxes, 256); /* 16 axes: the 8 of steps are looped over */
    tsi_region scalar = { .ndim = 0 };
    boxes = 0;
    TEST_CHECK(t, tsi_region_boxes(&scalar, &scalar, &scalar, &arena, count_box, &boxes));
    TEST_EQ(t, boxes, 1);
    tsi_arena_release(&arena);
}
