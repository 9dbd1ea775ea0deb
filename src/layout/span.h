/* SPDX-License-Identifier: Apache-2.0 */
/* span.h - parts of the list code that span.c and algebra.c share. */
#ifndef TSI_LAYOUT_SPAN_H
#define TSI_LAYOUT_SPAN_H

#include "base/intmath.h"
#include "layout/region.h"

static inline int64_t tsi_span_end(const tsi_span *span) /* of the last interval */
{
    return span->begin + (span->count - 1) * span->period + span->length;
}
static inline int64_t tsi_span_total(const tsi_span *span)
{
    return span->count * span->length;
}
/* Indices of the span below x. */
static inline int64_t tsi_span_before(const tsi_span *span, int64_t x)
{
    if (x <= span->begin) return 0;
    int64_t full = (x - span->begin) / span->period, rest = (x - span->begin) % span->period;
    if (full >= span->count) return tsi_span_total(span);
    return full * span->length + tsi_min_i64(rest, span->length);
}

/* Appends what lies at the span's positions [begin, end), or within the indices [begin, end). */
bool tsi_span_append_positions(tsi_span_list *out, const tsi_span *span, int64_t begin, int64_t end,
                               tsi_arena *arena);
bool tsi_span_append_clipped(tsi_span_list *out, const tsi_span *span, int64_t begin, int64_t end,
                             tsi_arena *arena);
/* Appends the pattern `repeats` times, each `shift` further than the one before. */
bool tsi_span_list_append_repeated(tsi_span_list *list, const tsi_span_list *pattern, int64_t shift,
                                   int64_t repeats, tsi_arena *arena);

#endif
