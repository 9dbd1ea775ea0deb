/* SPDX-License-Identifier: Apache-2.0 */
/* mask_union.c - which keys are seen by any of a set of queries: what a rank needs of the others.
 *
 * INV: a key that some query sees is in the list. Of masks without tables a key is in the list only
 * if the leaves let one of a few neighbouring queries see it; of tables only if one does. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/intmath.h"
#include "mask/mask.h"

/* Queries that are looked at together: where parts are joined by "or", what neighbours see may have
 * holes; else what a stretch of queries sees is one interval. */
enum { STEP = 16 };

typedef struct marking {
    const ts_mask *mask;
    tsi_mask_at at;
    int64_t keys;
    unsigned char *seen;
} marking;

static bool has_table(const ts_mask *mask)
{
    for (int32_t i = 0; i < mask->node_count; i++)
        if (mask->node[i].user) return true;
    return false;
}

static int64_t step_of(const ts_mask *mask)
{
    for (int32_t i = 0; i < mask->node_count; i++)
        if (mask->node[i].kind == TSI_MASK_OR) return STEP;
    return TSI_EXTENT_MAX / 2;
}

/* Queries [q0, q1] of a mask with tables: pair by pair, until a key is seen. */
static void mark_pairs(const marking *m, int64_t q0, int64_t q1)
{
    for (int64_t k = 0; k < m->keys; k++)
        for (int64_t q = q0; q <= q1 && !m->seen[k]; q++)
            m->seen[k] = tsi_mask_sees(m->mask, m->at, q, k);
}

/* Their intervals: what the mask may show to any of them. */
static void mark_intervals(const marking *m, int64_t q0, int64_t q1)
{
    tsi_mask_interval part[TSI_MASK_NODES];
    int64_t step = step_of(m->mask);
    for (int64_t q = q0; q <= q1; q += step) {
        int64_t last = tsi_min_i64(q + step - 1, q1);
        int32_t count =
            tsi_mask_intervals(m->mask, m->at, (const int64_t[]){ q, last }, m->keys, part);
        for (int32_t i = 0; i < count; i++)
            memset(m->seen + part[i].begin, 1, (size_t)(part[i].end - part[i].begin));
    }
}

static void mark(const marking *m, const tsi_span_list *queries, int64_t offset)
{
    bool table = has_table(m->mask);
    for (int64_t s = 0; s < queries->span_count; s++) {
        const tsi_span *span = &tsi_spans(queries)[s];
        for (int64_t c = 0; c < span->count; c++) {
            int64_t q0 = span->begin + c * span->period + offset;
            if (table)
                mark_pairs(m, q0, q0 + span->length - 1);
            else
                mark_intervals(m, q0, q0 + span->length - 1);
        }
    }
}

static void mark_list(const tsi_span_list *list, unsigned char *seen)
{
    for (int64_t s = 0; s < list->span_count; s++) {
        const tsi_span *span = &tsi_spans(list)[s];
        for (int64_t c = 0; c < span->count; c++)
            memset(seen + span->begin + c * span->period, 1, (size_t)span->length);
    }
}

ts_status tsi_mask_union(const ts_mask *mask, const tsi_mask_shape *shape, int64_t keys,
                         tsi_arena *arena, tsi_span_list *out)
{
    unsigned char *seen = tsi_arena_calloc(arena, (size_t)keys + 1, 1);
    *out = (tsi_span_list){ 0 };
    if (!seen) return tsi_fail_memory("what a mask shows", (size_t)keys);
    int64_t rows = mask->by_row ? shape->row_count : 1,
            heads = mask->by_head ? shape->head_count : 1;
    for (int64_t i = 0; i < rows * heads; i++) {
        marking m = { mask, { i / heads, i % heads }, keys, seen };
        if (shape->rows && mask->by_row) m.at.row = tsi_span_list_at(shape->rows, m.at.row);
        if (shape->heads && mask->by_head) m.at.head = tsi_span_list_at(shape->heads, m.at.head);
        mark(&m, shape->queries, shape->offset);
    }
    mark_list(shape->keys, seen);
    for (int64_t k = 0; k < keys;) {
        int64_t end = k;
        while (end < keys && seen[end])
            end++;
        tsi_span span = { k, end - k, end - k, 1 };
        if (end > k && !tsi_span_list_append(out, span, arena))
            return tsi_fail_memory("what a mask shows", sizeof span);
        k = end + 1;
    }
    return TS_OK;
}
