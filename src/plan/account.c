/* SPDX-License-Identifier: Apache-2.0 */
/* account.c - what the steps of a sequence of collectives receive, take and keep in memory.
 *
 * Bytes are exact whatever the cuts: what all ranks hold together is a product, so gathers and
 * reductions need no look at blocks; an all_to_all is what is held afterwards less what stays where
 * it is, by regions unless all is even. */
#include <math.h>

#include "base/error.h"
#include "plan/plan.h"

/* Elements that stay where they are when the state changes, summed over ranks: by regions. */
static ts_status kept_elements(const ts_plan *plan, tsi_state from, tsi_state to, int64_t *out)
{
    const ts_layout *a = NULL, *b = NULL;
    tsi_pair pair;
    ts_status status = tsi_plan_state_layout(plan, from, &a);
    if (status == TS_OK) status = tsi_plan_state_layout(plan, to, &b);
    if (status == TS_OK) status = tsi_pair_make(a, b, plan->space.item, NULL, &pair);
    if (status == TS_OK) status = tsi_pair_overlap(&pair, false, out);
    if (a) ts_layout_release(a);
    if (b) ts_layout_release(b);
    return status;
}

/* Are all axes of the mask plain cuts in both states, of other dims than before? */
static bool simple_move(const tsi_space *space, tsi_state from, tsi_state to, uint32_t axes)
{
    for (int32_t k = 0; k < space->axes; k++) {
        int32_t a = tsi_state_code(from, k), b = tsi_state_code(to, k);
        if (!(axes >> k & 1u)) continue;
        if (a >= TSI_CODE_CUT || b >= TSI_CODE_CUT || a == b) return false;
    }
    return true;
}

static int64_t group_size(const tsi_space *space, uint32_t axes)
{
    int64_t n = 1;
    for (int32_t k = 0; k < space->axes; k++) {
        if (axes >> k & 1u) n *= space->size[k];
    }
    return n;
}

static ts_status step_bytes(const ts_plan *plan, tsi_state from, tsi_path_step *step)
{
    const tsi_space *space = &plan->space;
    int64_t before = tsi_space_held(space, from), after = tsi_space_held(space, step->to);
    int64_t n = group_size(space, step->axes), kept = 0;
    bool even_a, even_b;
    switch ((ts_step_kind)step->kind) {
    case TS_STEP_SLICE:
    case TS_STEP_PARTITION:
        step->bytes = 0;
        return TS_OK;
    case TS_STEP_ALL_GATHER:
        step->bytes = (after - before) * space->item;
        return TS_OK;
    case TS_STEP_REDUCE_SCATTER:
        step->bytes = (n - 1) * after * space->item;
        return TS_OK;
    case TS_STEP_ALL_REDUCE:
        step->bytes = 2 * (n - 1) * (before / n) * space->item;
        return TS_OK;
    case TS_STEP_ALL_TO_ALL:
        tsi_space_largest(space, from, &even_a);
        tsi_space_largest(space, step->to, &even_b);
        if (even_a && even_b && simple_move(space, from, step->to, step->axes)) {
            kept = after / n;
        } else {
            TSI_TRY(kept_elements(plan, from, step->to, &kept));
        }
        step->bytes = (after - kept) * space->item;
        return TS_OK;
    case TS_STEP_EXCHANGE:
    case TS_STEP_REDUCE_EXCHANGE:
        return TS_OK;
    }
    return TS_OK;
}

/* Extents of the largest block, and their product. */
static double lengths_of(const tsi_space *space, tsi_state state, double *out)
{
    int64_t length[TS_NDIM_MAX];
    bool even;
    double count = 1;
    tsi_space_lengths(space, state, length, &even);
    for (int32_t d = 0; d < space->dims; d++) {
        out[d] = (double)length[d];
        count *= out[d];
    }
    return count;
}

/* A step's time under the plan's links, as the search would count it; for paths that were not
 * searched for. */
double tsi_path_step_time(const ts_plan *plan, tsi_state from, const tsi_path_step *step)
{
    const tsi_space *space = &plan->space;
    double a[TS_NDIM_MAX], b[TS_NDIM_MAX], item = (double)space->item;
    double in = item * lengths_of(space, from, a), out = item * lengths_of(space, step->to, b);
    const tsi_links *links = &plan->links;
    double runs = tsi_time_runs(links, fmax(in, out), tsi_run_bytes(space->dims, a, b, item));
    double local = links->local + out * links->copy;
    tsi_links_group group = tsi_links_of(links, step->axes);
    if (group.n <= 1) return local; /* meets nobody */
    switch ((ts_step_kind)step->kind) {
    case TS_STEP_SLICE:
    case TS_STEP_PARTITION:
        return local + tsi_time_runs(links, out, tsi_run_bytes(space->dims, a, b, item));
    case TS_STEP_ALL_GATHER:
        return tsi_time_all_gather(links, &group, out, false) + runs;
    case TS_STEP_REDUCE_SCATTER:
        return tsi_time_reduce_scatter(links, &group, in, false) + runs;
    case TS_STEP_ALL_REDUCE:
        return tsi_time_all_reduce(links, &group, in);
    case TS_STEP_ALL_TO_ALL:
        return tsi_time_all_to_all(links, &group, in) + runs;
    case TS_STEP_EXCHANGE:
    case TS_STEP_REDUCE_EXCHANGE:
        return 0;
    }
    return 0;
}

/* Does the step combine p-norms? Then its input is raised to the power in a copy. */
static bool combines_norms(const tsi_space *space, tsi_state from, const tsi_path_step *step)
{
    if (step->kind != TS_STEP_ALL_REDUCE && step->kind != TS_STEP_REDUCE_SCATTER) return false;
    for (int32_t k = 0; k < space->axes; k++) {
        int32_t code = tsi_state_code(from, k);
        if (!(step->axes >> k & 1u) || !tsi_code_partial(code)) continue;
        return space->op[code - TSI_CODE_P].kind == TS_PLACE_NORM;
    }
    return false;
}

/* Bytes of all steps, and the memory of the arrays between them. */
ts_status tsi_path_account(const ts_plan *plan, tsi_path *path, int64_t *bytes, int64_t *peak)
{
    tsi_state from = path->first;
    int64_t before = 0;
    *bytes = *peak = 0;
    for (int32_t i = 0; i < path->count; i++) {
        tsi_path_step *step = &path->step[i];
        bool even, last = i == path->count - 1;
        TSI_TRY(step_bytes(plan, from, step));
        *bytes += step->bytes;
        int64_t after =
            last ? 0 : tsi_space_largest(&plan->space, step->to, &even) * plan->space.item;
        int64_t copy = 0;
        if (combines_norms(&plan->space, from, step))
            copy = tsi_space_largest(&plan->space, from, &even) * plan->space.item;
        if (before + after + copy > *peak) *peak = before + after + copy;
        before = after;
        from = step->to;
    }
    return TS_OK;
}
