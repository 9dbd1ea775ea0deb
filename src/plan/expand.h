/* SPDX-License-Identifier: Apache-2.0 */
/* expand.h - from rules on one axis to the cheapest legal choice on a whole mesh.
 *
 * The cost of a rule on an axis is the time of the moves it needs there; costs of different axes
 * add up, so the best choice is found best-first over sums, not by looking at every product. What
 * axes can only decide together (the order in which several axes cut one dim, partials that do not
 * mix, ragged sizes that must add up, the operator's own joint condition) is checked when a
 * combination is taken from the queue.
 *
 * On an axis of one rank all placements say the same: inputs keep theirs, also a target in place.
 *
 * A choice that communicates is also charged for what it leaves behind: a result that is pending
 * has its reduction still to come, and what is gathered is read whole by every rank. A choice that
 * communicates nothing is never charged.
 *
 * INV: a pure function of the request; ties go to fewer changed inputs, then to earlier rules, then
 * to earlier axes. */
#ifndef TSI_PLAN_EXPAND_H
#define TSI_PLAN_EXPAND_H

#include "layout/layout.h"
#include "plan/rule.h"
#include "plan/topology.h"

typedef struct tsi_expand_request {
    tsi_mesh_desc *mesh;
    const tsi_rules *rules;
    const tsi_links *links;
    const ts_layout *const *in; /* NULL where the operand is absent */
    const ts_meta *out;         /* one per output */
    const int64_t *in_bytes;    /* bytes of an element */
    int32_t in_place;           /* 1: input 0 keeps its placements and output 0 takes them */
    int32_t reserved;
    const double
        *algorithm_us; /* of algorithm a on axis k: [(a - 1) * TS_NDIM_MAX + k]; NULL: none */
    /* (optional) The operator's own condition on a whole combination. */
    bool (*joint)(void *context, const ts_placement *const *in, const ts_placement *const *out);
    void *context;
} tsi_expand_request;

typedef struct tsi_expansion {
    int32_t rule[TS_NDIM_MAX];      /* per axis */
    uint32_t algorithm_axes;        /* axes whose rule has an algorithm */
    int32_t algorithm;              /* its number, or 0 */
    double cost_us;                 /* of moves and algorithm, by the model */
    int32_t combinations, reserved; /* looked at */
    ts_placement in[TSI_OPERAND_MAX][TS_NDIM_MAX];
    ts_placement out[8][TS_NDIM_MAX];
} tsi_expansion;

/* The first combination of the search, without the search, where it is the inputs' own roles on
 * every axis; false: it is not, search. Needs no costs: nothing is before what costs nothing and
 * changes nothing, and of rules that have the same roles there is the first (INV of rule.h). */
bool tsi_expand_match(const tsi_expand_request *request, tsi_expansion *out);

typedef struct tsi_expand_search tsi_expand_search; /* arena memory */

/* A search over the request's combinations; NULL: memory ran out (recorded), or no rule is possible
 * on some axis (then *status is TS_ERR_POLICY, not recorded). */
tsi_expand_search *tsi_expand_begin(const tsi_expand_request *request, tsi_arena *arena,
                                    ts_status *status);
/* The next legal combination, cheapest first; TS_ERR_POLICY: there is none, mostly since in_place
 * leaves none (recorded by the caller, who knows the operator). */
ts_status tsi_expand_next(tsi_expand_search *search, tsi_expansion *out);
/* The role a placement has; TSI_ROLE_NONE for a p-norm, which fits no rule. */
tsi_role tsi_role_of(const ts_placement *place);

#endif
