/* SPDX-License-Identifier: Apache-2.0 */
/* step_wide.h - steps of more ranks than anybody writes down: a list per kind of rank.
 *
 *   ranks 131072            rank 0..8191    the ranks that do what follows
 *   wide                    rank 8192..16383
 *   groups tp 8:1           every rank is in one of these groups: 8 ranks, 1 apart
 *   groups all 16:8,8:1     ranks that differ in these digits alone
 *
 * Lists count sections, not ranks. A peer is a distance: to=+8192.
 *
 * Narrowing. Ranks are classed until ranks of a class have the same list, peers of the same class
 * and groups with as many of each class. Then what one of them waits for, all of them wait for, and
 * a step of one rank per class has a cycle exactly if the whole one has: a way round in the small
 * one goes on for ever in the large one, which has an end, so it meets itself. What is proved or
 * simulated of the small one therefore holds for all ranks. */
#ifndef TSI_PLAN_STEP_WIDE_H
#define TSI_PLAN_STEP_WIDE_H

#include "plan/step.h"

enum { TSI_WIDE_DIGITS = 4 };

typedef struct tsi_family { /* of groups; no digits: a group of named members */
    int32_t digits;
    int64_t count[TSI_WIDE_DIGITS], stride[TSI_WIDE_DIGITS];
} tsi_family;

typedef struct tsi_ranks { /* ranks first, first + stride ... last have the list */
    int64_t first, last, stride;
    int32_t list;
} tsi_ranks;

typedef struct tsi_wide {
    tsi_family *family; /* [group] */
    int64_t family_count, family_capacity;
    tsi_ranks *span;
    int64_t span_count, span_capacity;
} tsi_wide;

/* Lists are sections and groups families from now on; there are none yet. */
ts_status tsi_step_widen(tsi_step *step);
void tsi_wide_destroy(tsi_wide *wide); /* accepts NULL */
/* "8:1" or "16:8,8:1". */
ts_status tsi_wide_family(tsi_step *step, const char *name, const tsi_family *family, int32_t *out);
/* Of the list of the span before, or of a later one. */
ts_status tsi_wide_span(tsi_step *step, const tsi_ranks *span);
/* How many spans the list has, from *first on. */
int64_t tsi_wide_spans_of(const tsi_wide *wide, int32_t list, const tsi_ranks **first);
/* The rank that sentences name for a list: itself, or the first of those that have it. */
int64_t tsi_wide_shown(const tsi_step *step, int32_t list);
static inline bool tsi_step_is_family(const tsi_step *step, int32_t group)
{
    return step->wide && group < step->wide->family_count && step->wide->family[group].digits > 0;
}
/* The least rank of the group that the rank is in; its members. */
int64_t tsi_family_base(const tsi_family *family, int64_t rank);
int64_t tsi_family_size(const tsi_family *family);
int64_t tsi_family_member(const tsi_family *family, int64_t base, int64_t index);

/* One rank per class, its list marked with the ranks it stands for. A step that is not wide is
 * copied as it is. Lists that overlap and messages beyond the ends of the world are added to
 * `found` and *out is NULL; without it they are errors, as is always a step with too much to look
 * at. */
ts_status tsi_step_narrow(const tsi_step *step, tsi_findings *found, tsi_step **out);

#endif
