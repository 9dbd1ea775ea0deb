/* SPDX-License-Identifier: Apache-2.0 */
/* region.h - sets of indices as sorted interval lists in closed form, one list per dim.
 *
 * A span is `count` intervals of `length` indices, `period` apart:
 *
 *   begin  [####]....[####]....[####]
 *
 * A list holds spans in ascending order, no overlap, each wholly before the next. The local
 * position of an index is the number of indices of the list before it. A region is the product of
 * its dims' lists.
 *
 * INV: spans are non-empty; count == 1 has period == length; intervals that touch are merged; and
 * spans are the greedy grouping of the intervals from the left (as many as are alike and evenly
 * spaced). Every list made here has that one spelling, so equal sets have equal spans and both ends
 * of a message agree. Indices lie below TSI_EXTENT_MAX, so that one period beyond the end cannot
 * overflow. */
#ifndef TSI_LAYOUT_REGION_H
#define TSI_LAYOUT_REGION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "tessera/types.h"

typedef struct tsi_span {
    int64_t begin, length, period, count;
} tsi_span;

#define TSI_EXTENT_MAX                                                                             \
    ((int64_t)1 << 62) /* extents of a dim, or of dims seen as one, are below this */
enum { TSI_SPAN_INLINE = 3, TSI_SPAN_COUNT_MAX = 1 << 22 /* a list with more is refused */ };
typedef struct tsi_span_list {
    int64_t total; /* indices in the list */
    int64_t span_count;
    tsi_span *more; /* all spans if span_count > TSI_SPAN_INLINE (arena memory), else NULL */
    tsi_span few[TSI_SPAN_INLINE];
} tsi_span_list;
static inline const tsi_span *tsi_spans(const tsi_span_list *list)
{
    return list->more ? list->more : list->few;
}

typedef struct tsi_region {
    int32_t ndim, reserved;
    tsi_span_list dim[TS_NDIM_MAX];
} tsi_region;

/* ---- lists. Those that can grow take an arena; false: out of memory (recorded). -------------- */
tsi_span_list tsi_span_list_whole(int64_t extent); /* [0, extent) */
bool tsi_span_list_append(tsi_span_list *list, tsi_span span,
                          tsi_arena *arena); /* after the last; merges */
/* The indices at the given positions of a list: how a later cut acts on what earlier ones left. */
bool tsi_span_list_select(const tsi_span_list *list, const tsi_span_list *positions,
                          tsi_arena *arena, tsi_span_list *out);
/* [0, extent) without the list. */
bool tsi_span_list_complement(const tsi_span_list *list, int64_t extent, tsi_arena *arena,
                              tsi_span_list *out);
/* All pairs (i, j) of an outer and an inner list as indices i * inner_extent + j of the two dims
 * seen as one. */
bool tsi_span_list_join(const tsi_span_list *outer, const tsi_span_list *inner,
                        int64_t inner_extent, tsi_arena *arena, tsi_span_list *out);
/* Positions [begin, end) of a list, as a list. */
bool tsi_span_list_cut(const tsi_span_list *list, int64_t begin, int64_t end, tsi_arena *arena,
                       tsi_span_list *out);
bool tsi_span_list_intersect(const tsi_span_list *a, const tsi_span_list *b, tsi_arena *arena,
                             tsi_span_list *out);
bool tsi_span_list_subtract(const tsi_span_list *a, const tsi_span_list *b, tsi_arena *arena,
                            tsi_span_list *out);
int64_t tsi_span_list_intersect_count(const tsi_span_list *a,
                                      const tsi_span_list *b); /* no memory */
bool tsi_span_list_equal(const tsi_span_list *a, const tsi_span_list *b);
int64_t tsi_span_list_at(const tsi_span_list *list, int64_t position);  /* index at a position */
int64_t tsi_span_list_find(const tsi_span_list *list, int64_t index);   /* position, or -1 */
int64_t tsi_span_list_before(const tsi_span_list *list, int64_t index); /* how many are below */
int64_t tsi_span_list_intervals(const tsi_span_list *list);             /* how many intervals */

/* ---- regions --------------------------------------------------------------------------------- */
int64_t tsi_region_count(const tsi_region *region); /* -1: beyond 2^63 */
bool tsi_region_intersect(const tsi_region *a, const tsi_region *b, tsi_arena *arena,
                          tsi_region *out);
int64_t tsi_region_intersect_count(const tsi_region *a, const tsi_region *b);
bool tsi_region_equal(const tsi_region *a,
                      const tsi_region *b); /* as sets: all empty ones are equal */
/* The same elements with dims first..last of the region seen as one (row-major); `view` holds the
 * extents. */
bool tsi_region_join(const tsi_region *region, const ts_shape *view, int32_t first, int32_t last,
                     tsi_arena *arena, tsi_region *out);

/* ---- contiguous runs of a region in the row-major order of its own block --------------------- */
typedef struct tsi_region_iterator {
    const tsi_region *region;
    int64_t run_length; /* elements of each step along the innermost dims */
    int64_t global;     /* row-major global index of the run's first element */
    int64_t local;      /* its place in the local block */
    int64_t length;     /* elements of this run */
    /* private */
    int64_t span[TS_NDIM_MAX], step[TS_NDIM_MAX], within[TS_NDIM_MAX], stride[TS_NDIM_MAX];
    int32_t inner; /* dims >= inner are whole and travel in one run */
    int32_t done;
} tsi_region_iterator;
/* `shape`: the global extents. next returns false at the end. */
void tsi_region_iterate(tsi_region_iterator *iterator, const tsi_region *region,
                        const ts_shape *shape);
bool tsi_region_next(tsi_region_iterator *iterator);

/* ---- boxes: a sub-region as strided blocks of two local arrays ------------------------------- */
/* One box of `part` (a sub-region of both `a` and `b`): its extents, and per array the offset of
 * its first element and strides, in elements, of row-major local blocks with a's and b's local
 * extents. A periodic span gives one box with an extra dim where the dims allow, so strided shards
 * need few boxes. */
typedef struct tsi_box {
    int32_t ndim, reserved;
    int64_t extent[TS_NDIM_MAX];
    int64_t offset_a, stride_a[TS_NDIM_MAX];
    int64_t offset_b, stride_b[TS_NDIM_MAX];
} tsi_box;
typedef bool (*tsi_box_fn)(const tsi_box *box, void *context); /* false stops */
/* Visits boxes so that the sequence of elements (boxes one after another, each row-major) depends
 * on `part` alone: both ends of a message agree even where they need different boxes. `a` or `b`
 * may be NULL (offsets and strides 0). A box has at least one dim; an empty part has no box.
 * Returns false if the visitor stopped or memory ran out. */
bool tsi_region_boxes(const tsi_region *part, const tsi_region *a, const tsi_region *b,
                      tsi_arena *arena, tsi_box_fn visit, void *context);

#endif
