/* SPDX-License-Identifier: Apache-2.0 */
/* step_wide.c - building wide steps. See step_wide.h. */
#include "plan/step_wide.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/intmath.h"

ts_status tsi_step_widen(tsi_step *step)
{
    if (step->wide || step->group_count > 0 || step->list_count > 0)
        return TSI_FAIL(TS_ERR_ARG, "step: 'wide' stands once, before groups and ranks");
    step->wide = tsi_calloc(1, sizeof *step->wide);
    return step->wide ? TS_OK : tsi_fail_memory("a wide step", sizeof *step->wide);
}

void tsi_wide_destroy(tsi_wide *wide)
{
    if (!wide) return;
    tsi_free(wide->family);
    tsi_free(wide->span);
    tsi_free(wide);
}

/* ---- families -------------------------------------------------------------------------------- */

int64_t tsi_family_size(const tsi_family *family)
{
    int64_t size = 1;
    for (int32_t d = 0; d < family->digits; d++)
        size *= family->count[d];
    return size;
}

int64_t tsi_family_base(const tsi_family *family, int64_t rank)
{
    int64_t base = rank;
    for (int32_t d = 0; d < family->digits; d++)
        base -= rank / family->stride[d] % family->count[d] * family->stride[d];
    return base;
}

/* Members ascend: the digit of the least stride counts fastest. */
int64_t tsi_family_member(const tsi_family *family, int64_t base, int64_t index)
{
    for (int32_t d = family->digits - 1; d >= 0; d--) {
        base += index % family->count[d] * family->stride[d];
        index /= family->count[d];
    }
    return base;
}

/* Strides fall, each above what the next digit spans, and the world is full of such groups. */
static ts_status check_family(const tsi_step *step, const char *name, const tsi_family *family)
{
    for (int32_t d = 0; d < family->digits; d++) {
        int64_t spans;
        bool good = family->count[d] > 0 && family->stride[d] > 0 &&
                    tsi_mul_i64(family->count[d], family->stride[d], &spans) &&
                    step->rank_count % spans == 0;
        if (good && d > 0) good = family->stride[d - 1] % spans == 0;
        if (!good)
            return TSI_FAIL(TS_ERR_ARG,
                            "groups %.60s: %lld ranks %lld apart do not divide %d ranks, or do "
                            "not fit into the digit before",
                            name, (long long)family->count[d], (long long)family->stride[d],
                            step->rank_count);
    }
    return TS_OK;
}

ts_status tsi_wide_family(tsi_step *step, const char *name, const tsi_family *family, int32_t *out)
{
    tsi_wide *wide = step->wide;
    TSI_ASSERT(wide);
    TSI_TRY(check_family(step, name, family));
    int32_t none = 0;
    TSI_TRY(tsi_step_group_of(step, name, &none, 1, out));
    while (wide->family_count <= *out) {
        TSI_TRY(tsi_room(&wide->family, wide->family_count, &wide->family_capacity,
                         sizeof *wide->family, "the groups of a step"));
        wide->family[wide->family_count++] = (tsi_family){ 0 };
    }
    wide->family[*out] = *family;
    step->group[*out].size = tsi_family_size(family);
    step->group[*out].low = 0;
    step->group[*out].high = tsi_family_member(family, 0, tsi_family_size(family) - 1);
    return TS_OK;
}

ts_status tsi_wide_span(tsi_step *step, const tsi_ranks *span)
{
    tsi_wide *wide = step->wide;
    TSI_ASSERT(wide && span->stride > 0);
    if (span->first < 0 || span->last < span->first || span->last >= step->rank_count)
        return TSI_FAIL(TS_ERR_ARG, "ranks %lld..%lld of %d", (long long)span->first,
                        (long long)span->last, step->rank_count);
    TSI_ASSERT(wide->span_count == 0 || wide->span[wide->span_count - 1].list <= span->list);
    TSI_TRY(tsi_room(&wide->span, wide->span_count, &wide->span_capacity, sizeof *wide->span,
                     "the ranks of a step"));
    wide->span[wide->span_count++] = *span;
    return TS_OK;
}

/* The first span of the list, or of a later one. */
static int64_t first_span(const tsi_wide *wide, int32_t list)
{
    int64_t low = 0, high = wide->span_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (wide->span[middle].list < list)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int64_t tsi_wide_spans_of(const tsi_wide *wide, int32_t list, const tsi_ranks **first)
{
    int64_t begin = first_span(wide, list), end = begin;
    while (end < wide->span_count && wide->span[end].list == list)
        end++;
    *first = end > begin ? &wide->span[begin] : NULL;
    return end - begin;
}

int64_t tsi_wide_shown(const tsi_step *step, int32_t list)
{
    const tsi_ranks *first = NULL;
    if (!step->wide || tsi_wide_spans_of(step->wide, list, &first) == 0) return list;
    return first->first;
}
