/* SPDX-License-Identifier: Apache-2.0 */
/* select.c - making a plan: both families, one cost model, one winner.
 *
 * The direct exchange is costed first, in closed form; it receives exactly the bound, so it may
 * always be chosen. The search for collectives then stops at its time. A sequence that wins on time
 * is taken if it, too, receives the bound; if it receives more, it must be proved to be the one
 * with the fewest bytes of all (a second search, by bytes), or the direct exchange is taken. So a
 * chosen plan never receives more than the best sequence of collectives. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/intmath.h"
#include "device/device.h"
#include "plan/plan.h"

/* States after which a search is given up: by time, by bytes, the proof that nothing is leaner, and
 * a named one. */
enum {
    STATES_TIME = 1 << 12,
    STATES_BYTES = 1 << 14,
    STATES_PROOF = 1 << 14,
    STATES_NAMED = 1 << 22
};

typedef struct maker {
    ts_plan *plan;
    tsi_space core; /* the space without unit axes, partial targets made R where the source is */
    tsi_direct direct;
    double direct_us;          /* the better of plain and hierarchical */
    uint32_t partition;        /* axes that become partial by a last local step */
    bool collectives, directs; /* allowed and possible */
    int32_t blocked;           /* tsi_why: the reason if one of them is not */
} maker;

/* ---- the winner ----------------------------------------------------------------------------- */

/* Writes the path into the plan: the whole first and last state, and the local step to partials. */
static ts_status adopt(maker *m, tsi_path *path, int64_t bytes, int64_t peak)
{
    ts_plan *plan = m->plan;
    if (m->partition) {
        TSI_TRY(tsi_path_add(path, TS_STEP_PARTITION, m->partition, plan->space.dst));
    } else if (path->count > 0) {
        path->step[path->count - 1].to = plan->space.dst;
    }
    plan->family = TS_PLAN_COLLECTIVES;
    if (bytes == 0) {
        plan->family = path->count == 0 ? TS_PLAN_NONE : TS_PLAN_LOCAL;
        for (int32_t i = 0; i < path->count; i++) {
            int32_t kind = path->step[i].kind;
            if (kind != TS_STEP_SLICE && kind != TS_STEP_PARTITION)
                plan->family = TS_PLAN_COLLECTIVES;
        }
    }
    plan->first = plan->space.src;
    plan->step_count = path->count;
    if (path->count > 0) {
        plan->step = tsi_alloc_array((size_t)path->count, sizeof *plan->step);
        if (!plan->step) return tsi_fail_memory("the steps of a plan", 0);
        memcpy(plan->step, path->step, (size_t)path->count * sizeof *plan->step);
    }
    plan->bytes_received = bytes;
    plan->peak_bytes = plan->family == TS_PLAN_COLLECTIVES ? peak : 0; /* others go in one step */
    plan->time_us = path->time_us;
    return TS_OK;
}

/* ---- the reference's planners --------------------------------------------------------------- */

static ts_status make_reference(maker *m, bool greedy)
{
    ts_plan *plan = m->plan;
    if (!plan->has_space) {
        return TSI_FAIL(TS_ERR_MESH,
                        "planner '%s' needs source and target on one mesh; use 'direct'",
                        greedy ? "greedy" : "graph");
    }
    if (plan->space.spans) {
        return TSI_FAIL(TS_ERR_ARG,
                        "planner '%s' does not know cuts over several dims; use 'direct'",
                        greedy ? "greedy" : "graph");
    }
    tsi_path path;
    TSI_TRY(greedy ? tsi_reference_greedy(&plan->space, &path)
                   : tsi_reference_graph(&plan->space, &path));
    tsi_state from = path.first;
    path.time_us = 0;
    for (int32_t i = 0; i < path.count; i++) {
        path.step[i].time_us = tsi_path_step_time(plan, from, &path.step[i]);
        path.time_us += path.step[i].time_us;
        from = path.step[i].to;
    }
    int64_t bytes = 0, peak = 0;
    TSI_TRY(tsi_path_account(plan, &path, &bytes, &peak));
    plan->states = path.states;
    m->partition = 0; /* these planners make partials themselves */
    TSI_TRY(adopt(m, &path, bytes, peak));
    plan->why = TSI_WHY_NAMED;
    plan->other_family = TS_PLAN_DIRECT;
    plan->other_us = m->direct_us;
    plan->other_bytes = plan->bytes_bound;
    if (plan->budget_bytes > 0 && peak > plan->budget_bytes) {
        return TSI_FAIL_BLAST(
            TS_BLAST_AGREED, TS_ERR_MEMORY,
            "plan: planner '%s' needs %lld bytes beside source and target, the budget "
            "is %lld",
            greedy ? "greedy" : "graph", (long long)peak, (long long)plan->budget_bytes);
    }
    return TS_OK;
}

/* ---- direct --------------------------------------------------------------------------------- */

static uint32_t changed_axes(const ts_plan *plan)
{
    uint32_t axes = 0;
    if (!plan->has_space) return (1u << plan->src->sharding->ndim) - 1u;
    for (int32_t k = 0; k < plan->space.axes; k++) {
        if ((plan->space.src ^ plan->space.dst) >> (8 * k) & 255u) axes |= 1u << k;
    }
    return axes;
}

/* Bytes that staging takes on the busiest rank: all ranks of small meshes, some of large ones. */
static ts_status staging(ts_plan *plan, int64_t *out)
{
    const tsi_mesh_desc *mesh[2] = { plan->src->sharding->mesh, plan->dst->sharding->mesh };
    tsi_arena arena = { 0 };
    ts_status status = TS_OK;
    *out = 0;
    for (int32_t side = 0; side < (plan->pair.same_mesh ? 1 : 2) && status == TS_OK; side++) {
        int64_t count = mesh[side]->count, looks = count <= 1024 ? count : 64;
        for (int64_t i = 0; i < looks && status == TS_OK; i++) {
            int64_t coord[TS_NDIM_MAX], most = 0;
            tsi_mesh_desc_unravel(mesh[side], looks == count ? i : (count - 1) / (looks - 1) * i,
                                  coord);
            status = tsi_part_volume(plan, tsi_mesh_desc_rank(mesh[side], coord), &arena, &most);
            *out = tsi_max_i64(*out, most);
            tsi_arena_reset(&arena);
        }
    }
    tsi_arena_release(&arena);
    return status;
}

/* Bytes of the copy of the source that p-norms are raised in, on the busiest rank. */
static int64_t powered_bytes(const ts_plan *plan)
{
    const tsi_pair *pair = &plan->pair;
    const tsi_side *src = &pair->src;
    bool norm = false;
    int64_t count = 1;
    for (int32_t k = 0; k < src->mesh->ndim; k++) {
        if (!(src->term >> k & 1u)) continue;
        norm = norm || src->layout->sharding->place[k].kind == TS_PLACE_NORM;
    }
    if (!norm) return 0;
    for (int32_t d = 0; d < pair->dims; d++) {
        int64_t length = pair->extent[d];
        for (int32_t i = 0; i < src->dim_count[d]; i++) {
            int32_t axis = src->dim_axis[d][i];
            length = tsi_place_longest(&src->layout->sharding->place[axis], length,
                                       src->mesh->size[axis]);
        }
        count *= length;
    }
    return count * pair->item;
}

/* Cuts messages until a round fits the budget: the dim with the longest pieces is halved. */
static ts_status fit_budget(ts_plan *plan)
{
    int64_t powered = powered_bytes(plan);
    if (plan->budget_bytes > 0 && powered > plan->budget_bytes) {
        return TSI_FAIL_BLAST(
            TS_BLAST_AGREED, TS_ERR_MEMORY,
            "plan: a budget of %lld bytes is too small; norms are combined from a copy "
            "of the source, which takes %lld",
            (long long)plan->budget_bytes, (long long)powered);
    }
    for (;;) {
        plan->peak_bytes = 0;
        if (plan->staged) TSI_TRY(staging(plan, &plan->peak_bytes));
        plan->peak_bytes += powered;
        if (plan->budget_bytes == 0 || plan->peak_bytes <= plan->budget_bytes) return TS_OK;
        int32_t longest = -1;
        for (int32_t d = 0; d < plan->pair.dims; d++) {
            int64_t piece = plan->pair.extent[d] / plan->grid[d];
            if (piece > 1 &&
                (longest < 0 || piece > plan->pair.extent[longest] / plan->grid[longest])) {
                longest = d;
            }
        }
        if (longest < 0) {
            return TSI_FAIL_BLAST(
                TS_BLAST_AGREED, TS_ERR_MEMORY,
                "plan: a budget of %lld bytes is too small; one round of single elements "
                "takes %lld",
                (long long)plan->budget_bytes, (long long)plan->peak_bytes);
        }
        plan->grid[longest] *= 2;
    }
}

static ts_status adopt_direct(maker *m)
{
    ts_plan *plan = m->plan;
    bool tree = m->direct.tree_us < m->direct.time_us && !(plan->forbid & TS_PLAN_NO_HIERARCHICAL);
    bool local = m->direct.bound == 0;
    plan->family = local ? TS_PLAN_LOCAL : tree ? TS_PLAN_HIERARCHICAL : TS_PLAN_DIRECT;
    plan->time_us = m->direct_us;
    plan->bytes_received = plan->bytes_bound;
    plan->first = plan->space.src;
    plan->step = tsi_alloc_array(2, sizeof *plan->step);
    if (!plan->step) return tsi_fail_memory("the steps of a plan", 0);
    tsi_path_step step = { .kind = TS_STEP_EXCHANGE,
                           .axes = changed_axes(plan),
                           .to = plan->space.dst,
                           .time_us = m->direct_us,
                           .bytes = plan->bytes_bound };
    if (local)
        step.kind = TS_STEP_SLICE;
    else if (plan->pair.src.terms > 1)
        step.kind = TS_STEP_REDUCE_EXCHANGE;
    if (local && m->partition) {
        if (step.axes & ~m->partition) {
            step.axes &= ~m->partition;
            step.to = tsi_space_compact(&plan->space, m->core.dst);
            plan->step[plan->step_count++] = step;
        }
        step = (tsi_path_step){ .kind = TS_STEP_PARTITION,
                                .axes = m->partition,
                                .to = plan->space.dst };
    }
    plan->step[plan->step_count++] = step;
    return local ? TS_OK : fit_budget(plan);
}

/* ---- collectives ---------------------------------------------------------------------------- */

static ts_status search(maker *m, double limit_us, double limit_bytes, bool bytes_first,
                        int64_t states, tsi_path *out)
{
    tsi_search s = { .space = &m->core,
                     .links = &m->plan->links,
                     .limit_us = limit_us,
                     .limit_bytes = limit_bytes,
                     .state_limit = states,
                     .bytes_first = bytes_first,
                     .merged = !(m->plan->forbid & TS_PLAN_NO_MERGED) };
    ts_status status = tsi_search_run(&s, out);
    m->plan->states += out->states;
    return status;
}

/* Collectives only: by least time if named, by fewest bytes first if `auto` may not use direct
 * exchanges. */
static ts_status make_collectives(maker *m, bool bytes_first)
{
    ts_plan *plan = m->plan;
    if (!m->collectives) {
        return TSI_FAIL(
            plan->has_space ? TS_ERR_ARG : TS_ERR_MESH,
            plan->has_space
                ? "plan: no sequence of collectives makes this transfer (a cut runs over "
                  "several dims, or collectives are forbidden)"
                : "plan: collectives need source and target on one mesh; use 'direct'");
    }
    tsi_path path;
    TSI_TRY(search(m, HUGE_VAL, HUGE_VAL, bytes_first, STATES_NAMED, &path));
    if (!path.found) {
        return TSI_FAIL(
            TS_ERR_STATE,
            "plan: the search for collectives was stopped after %lld states; use 'direct'",
            (long long)path.states);
    }
    int64_t bytes = 0, peak = 0;
    TSI_TRY(tsi_path_account(plan, &path, &bytes, &peak));
    if (plan->budget_bytes > 0 && peak > plan->budget_bytes) {
        return TSI_FAIL_BLAST(
            TS_BLAST_AGREED, TS_ERR_MEMORY,
            "plan: the sequence of collectives needs %lld bytes beside source and target, "
            "the budget is %lld",
            (long long)peak, (long long)plan->budget_bytes);
    }
    TSI_TRY(adopt(m, &path, bytes, peak));
    plan->other_family = m->directs ? TS_PLAN_DIRECT : TS_PLAN_NONE;
    plan->other_us = m->direct_us;
    plan->other_bytes = plan->bytes_bound;
    return TS_OK;
}

static ts_status take_direct(maker *m, tsi_why why, const tsi_path *lost, int64_t lost_bytes)
{
    m->plan->why = (int32_t)why;
    if (lost) {
        m->plan->other_family = TS_PLAN_COLLECTIVES;
        m->plan->other_us = lost->time_us;
        m->plan->other_bounded = !lost->found;
        m->plan->other_bytes = lost->found ? lost_bytes : -1;
    }
    return adopt_direct(m);
}

static ts_status take_collectives(maker *m, tsi_path *path, int64_t bytes, int64_t peak)
{
    m->plan->why = TSI_WHY_FASTER;
    m->plan->other_family =
        m->direct.tree_us < m->direct.time_us ? TS_PLAN_HIERARCHICAL : TS_PLAN_DIRECT;
    m->plan->other_us = m->direct_us;
    m->plan->other_bytes = m->plan->bytes_bound;
    return adopt(m, path, bytes, peak);
}

/* An engine that packs would need its buffers beside the arrays between the steps; only the direct
 * exchange is cut into rounds that keep to a budget. */
static bool fits(const ts_plan *plan, int64_t peak)
{
    return plan->budget_bytes == 0 || (!plan->staged && peak <= plan->budget_bytes);
}

/* Other cuts than plain ones may spell what plain ones in another order do (SS(0,2), S(0) is
 * S(0)[1], S(0)[0]), and the search, which takes them by name, does not see those sequences. */
static bool only_plain_cuts(const tsi_space *space)
{
    for (int32_t k = 0; k < space->axes; k++) {
        int32_t from = tsi_state_code(space->src, k), to = tsi_state_code(space->dst, k);
        if (tsi_code_cuts(from) && from >= TSI_CODE_CUT) return false;
        if (tsi_code_cuts(to) && to >= TSI_CODE_CUT) return false;
    }
    return true;
}

/* Is there surely no sequence with fewer bytes than this one? */
static ts_status prove_leanest(maker *m, const tsi_path *path, bool *out)
{
    tsi_path leaner;
    *out = false;
    if (!only_plain_cuts(&m->core)) return TS_OK;
    TSI_TRY(search(m, HUGE_VAL, path->bytes * (1 - 1e-9), true, STATES_PROOF, &leaner));
    *out = !leaner.found && leaner.states <= STATES_PROOF;
    return TS_OK;
}

/* Some sequence may be faster than the direct exchange, but the fastest one receives more than the
 * bound. So the leanest is looked for; `lost` is what the search by time found or reached. Uneven
 * blocks are not compared exactly by the search, so such sequences are not taken. */
static ts_status take_leanest(maker *m, const tsi_path *lost, int64_t lost_bytes)
{
    ts_plan *plan = m->plan;
    tsi_path lean;
    int64_t bytes = 0, peak = 0;
    TSI_TRY(search(m, m->direct_us, HUGE_VAL, true, STATES_BYTES, &lean));
    bool stopped = !lost->found || (!lean.found && lean.states > STATES_BYTES);
    if (!lean.found) {
        return take_direct(m, stopped ? TSI_WHY_UNPROVED : TSI_WHY_FEWER_BYTES, lost, lost_bytes);
    }
    TSI_TRY(tsi_path_account(plan, &lean, &bytes, &peak));
    if (!fits(plan, peak)) return take_direct(m, TSI_WHY_BUDGET, &lean, bytes);
    if (bytes == plan->bytes_bound) return take_collectives(m, &lean, bytes, peak);
    bool leanest = false;
    double gap = fabs((double)bytes - lean.bytes);
    if (gap <= lean.bytes * 1e-9) TSI_TRY(prove_leanest(m, &lean, &leanest));
    if (leanest) return take_collectives(m, &lean, bytes, peak);
    return take_direct(m, TSI_WHY_FEWER_BYTES, &lean, bytes);
}

static ts_status make_auto(maker *m)
{
    ts_plan *plan = m->plan;
    if (!m->collectives) return take_direct(m, (tsi_why)m->blocked, NULL, 0);
    if (!m->directs) {
        plan->why = TSI_WHY_FORBIDDEN;
        return make_collectives(m, true);
    }
    tsi_path path;
    int64_t bytes = 0, peak = 0;
    TSI_TRY(search(m, m->direct_us, HUGE_VAL, false, STATES_TIME, &path));
    if (!path.found && path.states <= STATES_TIME) return take_direct(m, TSI_WHY_FASTER, &path, 0);
    if (path.found) {
        TSI_TRY(tsi_path_account(plan, &path, &bytes, &peak));
        if (!fits(plan, peak)) return take_direct(m, TSI_WHY_BUDGET, &path, bytes);
        if (bytes == plan->bytes_bound) return take_collectives(m, &path, bytes, peak);
    }
    return take_leanest(m, &path, bytes);
}

/* ---- making --------------------------------------------------------------------------------- */

/* The space the search walks: unit axes do not exist, new partials are replicas until the end. */
static void make_core(maker *m)
{
    const tsi_space *space = &m->plan->space;
    m->core = *space;
    m->core.src = tsi_space_without_units(space, space->src);
    m->core.dst = tsi_space_without_units(space, space->dst);
    for (int32_t k = 0; k < space->axes; k++) {
        int32_t from = tsi_state_code(m->core.src, k), to = tsi_state_code(m->core.dst, k);
        if (!tsi_code_partial(to) || from == to) continue;
        m->partition |= 1u << k;
        m->core.dst = tsi_state_with(m->core.dst, k, TSI_CODE_R, 0);
    }
}

/* Does every rank already have exactly its target? Then its bytes are also in the right order. */
static bool nothing_moves(const maker *m)
{
    const tsi_pair *pair = &m->plan->pair;
    if (!pair->same_mesh || m->partition || pair->src.terms > 1) return false;
    if (m->core.src == m->core.dst) return true;
    return m->direct.bound == 0 && pair->src.replicas == pair->dst.replicas;
}

/* Averages of integers truncate: over several axes there is one sum and one division, which no
 * sequence of steps makes, whichever planner is asked for. Axes that stay as they are do not count.
 */
static bool averages_whole_numbers(const ts_plan *plan)
{
    const char *why = NULL;
    bool whole = tsi_reduce_allowed(TS_REDUCE_AVG, (ts_dtype)plan->dtype, &why) &&
                 tsi_reduce_allowed(TS_REDUCE_AND, (ts_dtype)plan->dtype, &why);
    int32_t terms = 0, averages = 0;
    for (int32_t k = 0; whole && k < plan->src->sharding->ndim; k++) {
        if (!(plan->pair.src.term >> k & 1u)) continue;
        bool stays = plan->has_space && tsi_placement_partial(&plan->dst->sharding->place[k]);
        if (stays) continue;
        terms++;
        averages += plan->src->sharding->place[k].reduce == TS_REDUCE_AVG;
    }
    return averages > 0 && terms > 1;
}

static ts_status prepare(maker *m, const ts_topology *topology)
{
    ts_plan *plan = m->plan;
    plan->has_space = plan->src->sharding->mesh == plan->dst->sharding->mesh;
    plan->other_bytes = -1;
    for (int32_t d = 0; d < TS_NDIM_MAX; d++)
        plan->grid[d] = 1;
    memcpy(plan->topology, topology->name, sizeof plan->topology);
    int64_t item = (int64_t)ts_dtype_size((ts_dtype)plan->dtype), most = 0;
    int64_t ranks = plan->src->sharding->mesh->count;
    if (!plan->has_space) ranks += plan->dst->sharding->mesh->count;
    if (plan->src->count < 0 || !tsi_mul_i64(plan->src->count, 2 * item, &most) ||
        !tsi_mul_i64(most, ranks, &most)) {
        return TSI_FAIL(TS_ERR_SHAPE, "plan: the bytes of %s on %lld ranks do not fit into 63 bits",
                        plan->src->text, (long long)ranks);
    }
    tsi_links_make(topology, plan->src->sharding->mesh, ranks, &plan->links);
    TSI_TRY(tsi_pair_make(plan->src, plan->dst, item, &plan->links, &plan->pair));
    if (plan->has_space) {
        TSI_TRY(tsi_space_make(plan->src, plan->dst, (ts_dtype)plan->dtype, &plan->space));
        make_core(m);
    }
    TSI_TRY(tsi_direct_cost(&plan->pair, &m->direct));
    m->direct_us = m->direct.time_us;
    if (!(plan->forbid & TS_PLAN_NO_HIERARCHICAL))
        m->direct_us = fmin(m->direct_us, m->direct.tree_us);
    plan->bytes_bound = m->direct.bound * item;
    m->directs = !(plan->forbid & TS_PLAN_NO_DIRECT);
    bool divided_once = averages_whole_numbers(plan);
    m->collectives = plan->has_space && !plan->space.spans && !divided_once &&
                     !(plan->forbid & TS_PLAN_NO_COLLECTIVES);
    m->blocked = !plan->has_space    ? TSI_WHY_OTHER_MESH
                 : plan->space.spans ? TSI_WHY_SPANS
                 : divided_once      ? TSI_WHY_WHOLE
                                     : TSI_WHY_FORBIDDEN;
    if (!m->directs && !m->collectives) {
        return TSI_FAIL(
            TS_ERR_ARG,
            "plan: both families are forbidden, or collectives cannot make the transfer%s",
            divided_once ? ": averages of integers over several axes are one sum and one division"
                         : "");
    }
    return TS_OK;
}

static ts_status choose(maker *m)
{
    ts_plan *plan = m->plan;
    tsi_planner planner = (tsi_planner)plan->planner;
    if (m->blocked == TSI_WHY_WHOLE) {
        plan->why = TSI_WHY_WHOLE;
        return adopt_direct(m);
    }
    if (planner == TSI_PLANNER_GREEDY || planner == TSI_PLANNER_GRAPH) {
        return make_reference(m, planner == TSI_PLANNER_GREEDY);
    }
    if (nothing_moves(m)) {
        plan->family = TS_PLAN_NONE;
        plan->why = TSI_WHY_SAME;
        plan->first = plan->space.src;
        return TS_OK;
    }
    if (m->direct.bound == 0 && planner != TSI_PLANNER_COLLECTIVES) {
        plan->why = TSI_WHY_LOCAL;
        return adopt_direct(m);
    }
    switch (planner) {
    case TSI_PLANNER_AUTO:
        return make_auto(m);
    case TSI_PLANNER_COLLECTIVES:
        plan->why = TSI_WHY_NAMED;
        return make_collectives(m, false);
    case TSI_PLANNER_DIRECT:
        plan->why = TSI_WHY_NAMED;
        return adopt_direct(m);
    case TSI_PLANNER_GREEDY:
    case TSI_PLANNER_GRAPH:
    case TSI_PLANNER_COUNT:
        break;
    }
    return TSI_FAIL(TS_ERR_INTERNAL, "plan: planner %d", plan->planner);
}

ts_status tsi_plan_make(const ts_layout *src, const ts_layout *dst, ts_dtype dtype,
                        const ts_plan_options *options, const ts_topology *topology, ts_plan **out)
{
    *out = NULL;
    tsi_planner planner;
    TSI_TRY(tsi_planner_parse(options->planner, &planner));
    TSI_TRY(tsi_plan_check(src, dst, dtype));
    if (options->budget_bytes < 0) {
        return TSI_FAIL(TS_ERR_ARG, "plan: a budget of %lld bytes",
                        (long long)options->budget_bytes);
    }
    ts_plan *plan = tsi_calloc(1, sizeof *plan);
    if (!plan) return tsi_fail_memory("a plan", sizeof *plan);
    atomic_init(&plan->references, 1);
    plan->src = ts_layout_retain(src);
    plan->dst = ts_layout_retain(dst);
    plan->dtype = (int32_t)dtype;
    plan->planner = (int32_t)planner;
    plan->forbid = options->forbid;
    plan->staged = options->staged;
    plan->budget_bytes = options->budget_bytes;
    maker m = { .plan = plan };
    ts_status status = prepare(&m, topology);
    if (status == TS_OK) status = choose(&m);
    if (status != TS_OK) {
        ts_plan_release(plan);
        return status;
    }
    *out = plan;
    return TS_OK;
}
