/* SPDX-License-Identifier: Apache-2.0 */
/* reference.c - the greedy and the graph planner of the reference, exactly: for comparison, by name
 * only.
 *
 * greedy  two passes over the axes, one step per axis and pass.
 * graph   Dijkstra over (placements, order) with the reference's own cost model (one device per
 * host). Ties go to the edge made first, so the order of edges below is part of the behaviour:
 * moves, gathers, reductions, slices, reduce-scatters, partitions, gathers and slices of strided
 * cuts. The sums are evaluated in the reference's order, so that equal costs are equal bits. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/frontier.h"
#include "plan/path.h"

int32_t tsi_path_kind_of(int32_t from, int32_t to)
{
    if (from == TSI_CODE_R) return tsi_code_cuts(to) ? TS_STEP_SLICE : TS_STEP_PARTITION;
    if (tsi_code_cuts(from)) {
        if (to == TSI_CODE_R) return TS_STEP_ALL_GATHER;
        return tsi_code_cuts(to) ? TS_STEP_ALL_TO_ALL : -1;
    }
    if (to == TSI_CODE_R) return TS_STEP_ALL_REDUCE;
    return tsi_code_cuts(to) ? TS_STEP_REDUCE_SCATTER : -1;
}

ts_status tsi_path_add(tsi_path *path, int32_t kind, uint32_t axes, tsi_state to)
{
    if (path->count == TSI_PATH_MAX) {
        return TSI_FAIL(TS_ERR_INTERNAL, "plan: a sequence of more than %d steps", TSI_PATH_MAX);
    }
    path->step[path->count++] = (tsi_path_step){ .kind = kind, .axes = axes, .to = to };
    return TS_OK;
}

/* ---- greedy --------------------------------------------------------------------------------- */

/* Codes with left-to-right positions. */
static tsi_state default_order(const tsi_space *space, tsi_state state)
{
    int32_t next[TS_NDIM_MAX] = { 0 };
    for (int32_t k = 0; k < space->axes; k++) {
        int32_t code = tsi_state_code(state, k);
        int32_t position = tsi_code_cuts(code) ? next[tsi_code_dim(space, code)]++ : 0;
        state = tsi_state_with(state, k, code, position);
    }
    return state;
}

static bool greedy_applies(const tsi_space *space, tsi_state state)
{
    for (int32_t k = 0; k < space->axes; k++) {
        int32_t code = tsi_state_code(state, k);
        if (code >= TSI_CODE_CUT && code < TSI_CODE_P) return false;
    }
    return default_order(space, state) == state;
}

/* A sequence that must not stop at a mixture of terms is refused, not executed. */
static ts_status check_terms(const tsi_space *space, tsi_state state)
{
    int32_t first = -1;
    for (int32_t k = 0; k < space->axes; k++) {
        int32_t code = tsi_state_code(state, k);
        if (!tsi_code_partial(code) || space->size[k] == 1) continue;
        if (first < 0) first = code;
        if (tsi_ops_mix(&space->op[first - TSI_CODE_P], &space->op[code - TSI_CODE_P])) continue;
        tsi_text text = { 0 };
        tsi_space_trace(space, state, &text);
        ts_status status = TSI_FAIL(TS_ERR_ARG,
                                    "planner 'greedy' would mix kinds of partial on its way (%s), "
                                    "which depends on the order of reduction; use 'auto'",
                                    text.data ? text.data : "?");
        tsi_text_release(&text);
        return status;
    }
    return TS_OK;
}

static ts_status greedy_step(const tsi_space *space, tsi_path *path, tsi_state *state, int32_t axis,
                             int32_t code)
{
    int32_t kind = tsi_path_kind_of(tsi_state_code(*state, axis), code);
    if (kind < 0 && space->size[axis] == 1) { /* one rank holds it all, whatever it is called */
        TSI_TRY(greedy_step(space, path, state, axis, TSI_CODE_R));
        kind = tsi_path_kind_of(TSI_CODE_R, code);
    }
    if (kind < 0)
        return TSI_FAIL(TS_ERR_INTERNAL, "plan: greedy step without a meaning on axis %d", axis);
    *state = default_order(space, tsi_state_with(*state, axis, code, 0));
    TSI_TRY(check_terms(space, *state));
    return tsi_path_add(path, kind, 1u << axis, *state);
}

/* Which axes before `axis` hold exactly this code? */
static uint32_t holders(tsi_state state, int32_t axis, int32_t code)
{
    uint32_t mask = 0;
    for (int32_t k = 0; k < axis; k++) {
        if (tsi_state_code(state, k) == code) mask |= 1u << k;
    }
    return mask;
}

static bool any_cut(const tsi_space *space, tsi_state state)
{
    for (int32_t k = 0; k < space->axes; k++) {
        if (tsi_code_cuts(tsi_state_code(state, k))) return true;
    }
    return false;
}

ts_status tsi_reference_greedy(const tsi_space *space, tsi_path *out)
{
    memset(out, 0, offsetof(tsi_path, step));
    out->first = space->src;
    out->found = 1;
    if (!greedy_applies(space, space->src) || !greedy_applies(space, space->dst)) {
        return TSI_FAIL(TS_ERR_ARG,
                        "planner 'greedy' knows plain shards cut from left to right only; use "
                        "'graph' or 'auto'");
    }
    tsi_state state = space->src;
    for (int32_t m = space->axes - 1; space->axes > 1 && any_cut(space, space->src) && m >= 0;
         m--) {
        int32_t code = tsi_state_code(space->dst, m);
        if (tsi_code_cuts(code) && holders(state, m, code) != holders(space->dst, m, code)) {
            code = TSI_CODE_R;
        }
        if (tsi_state_code(state, m) != code) TSI_TRY(greedy_step(space, out, &state, m, code));
    }
    for (int32_t m = 0; m < space->axes; m++) {
        int32_t code = tsi_state_code(space->dst, m);
        if (tsi_state_code(state, m) != code) TSI_TRY(greedy_step(space, out, &state, m, code));
    }
    return TS_OK;
}

/* ---- graph ---------------------------------------------------------------------------------- */

typedef struct graph {
    const tsi_space *space;
    tsi_frontier frontier;
    uint32_t from;
    tsi_state state;
    double cost, gib;           /* of the node being expanded; its local block */
    int32_t depth[TS_NDIM_MAX]; /* cuts of a dim */
    int32_t top[TS_NDIM_MAX];   /* the innermost axis of a dim */
    uint32_t target_cuts;       /* unusual cuts of the target */
    bool failed;
} graph;

static const double zero_h[2] = { 0, 0 };

/* The states grow with the factorial of the axes that cut one dim: 8 mixed axes have tens of
 * millions. More than these (about a second and 50 MB) are refused, not waited for. */
enum { GRAPH_STATES_MAX = 1 << 19 };

/* The reference's cost of a ring: an all_gather of g GiB, or with twice the hops an all_reduce. */
static double ring_us(const graph *g, int32_t axis, double gib, int64_t hops_per_step)
{
    double n = (double)g->space->size[axis];
    double hops = (double)(hops_per_step * (g->space->size[axis] - 1));
    double latency = 6.6 + hops * 2.7;
    double seconds = (gib * hops / n) / (87.7 * 0.22);
    return latency + seconds * 1e6;
}

static void edge(graph *g, int32_t axis, int32_t code, double us)
{
    int32_t from = tsi_state_code(g->state, axis);
    int32_t position = tsi_code_cuts(code) ? g->depth[tsi_code_dim(g->space, code)] : 0;
    if (tsi_code_cuts(from) && tsi_code_cuts(code) &&
        tsi_code_dim(g->space, from) == tsi_code_dim(g->space, code)) {
        position--;
    }
    double cost[2] = { g->cost + us, 0 };
    tsi_state to = tsi_state_with(g->state, axis, code, position);
    int32_t kind = tsi_path_kind_of(from, code);
    if (!tsi_frontier_relax(&g->frontier, to, g->from, kind, 1u << axis, cost, zero_h))
        g->failed = true;
}

static bool plain(int32_t code)
{
    return code >= TSI_CODE_S && code < TSI_CODE_CUT;
}

static void cut_edges(graph *g)
{
    const tsi_space *s = g->space;
    for (int32_t d = 0; d < s->dims; d++) {
        if (g->depth[d] == 0 || !plain(tsi_state_code(g->state, g->top[d]))) continue;
        for (int32_t e = 0; e < s->dims; e++) {
            if (e == d) continue;
            edge(g, g->top[d], TSI_CODE_S + e, ring_us(g, g->top[d], g->gib, 1) + 1.0);
        }
    }
    for (int32_t d = 0; d < s->dims; d++) {
        if (g->depth[d] == 0 || !plain(tsi_state_code(g->state, g->top[d]))) continue;
        double gathered = g->gib * (double)s->size[g->top[d]];
        edge(g, g->top[d], TSI_CODE_R, ring_us(g, g->top[d], gathered, 1));
    }
}

static bool may_mix(const graph *g, int32_t op)
{
    for (int32_t k = 0; k < g->space->axes; k++) {
        int32_t code = tsi_state_code(g->state, k);
        if (!tsi_code_partial(code)) continue;
        if (!tsi_ops_mix(&g->space->op[code - TSI_CODE_P], &g->space->op[op])) return false;
    }
    return true;
}

static void other_edges(graph *g)
{
    const tsi_space *s = g->space;
    for (int32_t k = 0; k < s->axes; k++) {
        if (tsi_code_partial(tsi_state_code(g->state, k)))
            edge(g, k, TSI_CODE_R, ring_us(g, k, g->gib, 2));
    }
    for (int32_t k = 0; k < s->axes; k++) {
        for (int32_t e = 0; tsi_state_code(g->state, k) == TSI_CODE_R && e < s->dims; e++) {
            edge(g, k, TSI_CODE_S + e, 0);
        }
    }
    for (int32_t k = 0; k < s->axes; k++) {
        for (int32_t e = 0; tsi_code_partial(tsi_state_code(g->state, k)) && e < s->dims; e++) {
            edge(g, k, TSI_CODE_S + e, ring_us(g, k, g->gib, 1));
        }
    }
    for (int32_t k = 0; k < s->axes; k++) {
        for (int32_t i = 0; tsi_state_code(g->state, k) == TSI_CODE_R && i < s->op_count; i++) {
            if (s->op[i].kind == TS_PLACE_PARTIAL && may_mix(g, i)) edge(g, k, TSI_CODE_P + i, 0);
        }
    }
}

/* Cuts the reference treats as opaque: they cost nothing and count as no shard. */
static void opaque_edges(graph *g)
{
    const tsi_space *s = g->space;
    for (int32_t d = 0; d < s->dims; d++) {
        if (g->depth[d] == 0 || plain(tsi_state_code(g->state, g->top[d]))) continue;
        edge(g, g->top[d], TSI_CODE_R, 0);
    }
    for (int32_t k = 0; k < s->axes; k++) {
        for (int32_t i = 0; tsi_state_code(g->state, k) == TSI_CODE_R && i < s->cut_count; i++) {
            if (g->target_cuts >> i & 1u) edge(g, k, TSI_CODE_CUT + i, 0);
        }
    }
}

static void expand(graph *g, uint32_t index)
{
    const tsi_space *s = g->space;
    g->from = index;
    g->state = g->frontier.node[index].state;
    g->cost = g->frontier.node[index].cost[0];
    memset(g->depth, 0, sizeof g->depth);
    double shards = 1;
    for (int32_t k = 0; k < s->axes; k++) {
        int32_t code = tsi_state_code(g->state, k);
        if (!tsi_code_cuts(code)) continue;
        int32_t d = tsi_code_dim(s, code);
        if (tsi_state_position(g->state, k) + 1 > g->depth[d]) {
            g->depth[d] = tsi_state_position(g->state, k) + 1;
            g->top[d] = k;
        }
        if (plain(code)) shards *= (double)s->size[k];
    }
    g->gib = (double)(s->item * s->count) / shards / 1024 / 1024 / 1024;
    cut_edges(g);
    other_edges(g);
    opaque_edges(g);
}

static ts_status unwind(const tsi_frontier *f, uint32_t index, tsi_path *out)
{
    uint32_t chain[TSI_PATH_MAX + 1];
    int32_t count = 0;
    for (uint32_t at = index;; at = f->node[at].parent) {
        if (count > TSI_PATH_MAX) return TSI_FAIL(TS_ERR_INTERNAL, "plan: the path is too long");
        chain[count++] = at;
        if (f->node[at].parent == at) break;
    }
    for (int32_t i = count - 2; i >= 0; i--) {
        const tsi_node *node = &f->node[chain[i]];
        TSI_TRY(tsi_path_add(out, node->kind, node->axes, node->state));
    }
    return TS_OK;
}

/* Strided cuts that only spell an order are turned into one, as the reference does: from the last
 * axis to the first, each goes to the first place before which the sizes multiply to its factor.
 * False: not an order. */
static bool strided_to_order(const tsi_space *space, tsi_state *state)
{
    int32_t list[TS_NDIM_MAX][TS_NDIM_MAX], length[TS_NDIM_MAX] = { 0 };
    for (int32_t k = space->axes - 1; k >= 0; k--) {
        int32_t code = tsi_state_code(*state, k);
        if (!tsi_code_cuts(code)) continue;
        ts_placement place = tsi_space_place(space, *state, k);
        if (place.kind != TS_PLACE_SHARD && place.kind != TS_PLACE_STRIDED) return false;
        if (place.align > 1) return false;
        int32_t d = place.dim, at = 0;
        int64_t product = 1;
        while (product != place.factor && at < length[d])
            product *= space->size[list[d][at++]];
        if (product != place.factor) return false;
        memmove(&list[d][at + 1], &list[d][at], sizeof(int32_t) * (size_t)(length[d] - at));
        list[d][at] = k;
        length[d]++;
    }
    for (int32_t d = 0; d < space->dims; d++) {
        for (int32_t i = 0; i < length[d]; i++) {
            *state = tsi_state_with(*state, list[d][i], TSI_CODE_S + d, i);
        }
    }
    return true;
}

static tsi_state normalised(const tsi_space *space, tsi_state state)
{
    tsi_state ordered = state;
    if (default_order(space, state) != state) return state;
    return strided_to_order(space, &ordered) ? ordered : state;
}

ts_status tsi_reference_graph(const tsi_space *space, tsi_path *out)
{
    memset(out, 0, offsetof(tsi_path, step));
    graph g = { .space = space };
    tsi_state src = normalised(space, space->src), dst = normalised(space, space->dst);
    out->first = src;
    for (int32_t k = 0; k < space->axes; k++) {
        int32_t code = tsi_state_code(dst, k);
        if (code >= TSI_CODE_CUT && code < TSI_CODE_P) g.target_cuts |= 1u << (code - TSI_CODE_CUT);
    }
    ts_status status = TS_OK;
    double zero[2] = { 0, 0 };
    if (!tsi_frontier_open(&g.frontier)) return tsi_fail_memory("the states of a plan", 0);
    g.failed = !tsi_frontier_relax(&g.frontier, src, 0, 0, 0, zero, zero_h);
    int64_t at = -1;
    double key[2];
    while (!g.failed && (at = tsi_frontier_pop(&g.frontier, key)) >= 0) {
        if (g.frontier.node[at].state == dst) break;
        if (g.frontier.node_count > GRAPH_STATES_MAX) break;
        expand(&g, (uint32_t)at);
    }
    out->states = g.frontier.node_count;
    if (g.failed) status = tsi_fail_memory("the states of a plan", 0);
    if (status == TS_OK && at >= 0 && g.frontier.node[at].state != dst) {
        status = TSI_FAIL(TS_ERR_ARG,
                          "planner 'graph': more than %d states lie between source and target on "
                          "%d axes, the most it looks at; use 'auto'",
                          GRAPH_STATES_MAX, space->axes);
    }
    if (status == TS_OK && at < 0) {
        status = TSI_FAIL(
            TS_ERR_ARG, "planner 'graph': no sequence of its steps reaches the target; use 'auto'");
    }
    if (status == TS_OK) status = unwind(&g.frontier, (uint32_t)at, out);
    if (status == TS_OK) out->time_us = g.frontier.node[at].cost[0];
    out->found = status == TS_OK;
    tsi_frontier_close(&g.frontier);
    return status;
}
