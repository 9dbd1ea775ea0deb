/* SPDX-License-Identifier: Apache-2.0 */
/* search.c - the cheapest sequence of collectives between two layouts of one mesh: A* over
 * placement states.
 *
 * Edges out of a state, in this order: moves of the top of a dim's stack to another dim
 * (all_to_all), gathers of it, reductions, slices, reduce-scatters; then the same over several axes
 * at once: suffixes of a stack moved or gathered together, everything that the target does not cut
 * gathered together, sets of partial axes reduced or scattered together. Partials are never made on
 * the way: a target that is partial where the source is replicated is a local last step, added by
 * the caller.
 *
 * The heuristic counts what any sequence must still pay: one base cost, the hops of every axis that
 * must take part, and the bytes that information theory demands; it never overestimates, so the
 * first arrival is the best. Block sizes are those of the largest block of a state, so uneven cuts
 * cost what their slowest rank costs. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/frontier.h"
#include "plan/path.h"
#include "plan/remain.h"

enum { ROUNDING = 32 }; /* ticks by which the rounding of a path's edges may have made it cheaper */

typedef struct expansion {
    const tsi_search *search;
    const tsi_space *space;
    const tsi_links *links;
    tsi_frontier frontier;
    bool failed;
    /* fixed */
    tsi_links_group single[TS_NDIM_MAX];
    double wait[TS_NDIM_MAX];     /* least latency of an axis that takes part */
    double wait_sum[TS_NDIM_MAX]; /* where its ranks hold terms */
    double drag[TS_NDIM_MAX];     /* least transfer time of an axis that takes part */
    double per_byte_min, unit;    /* unit: bytes of the tensor */
    double ranks;
    double held_dst; /* copies of the tensor in the target */
    double kept;     /* ranks along partial axes that stay partial */
    uint32_t frozen; /* axes that never change: size 1, kept partials */
    bool exact;      /* `remain` gives the bytes that are still to come */
    tsi_remain remain;
    /* of the node being expanded */
    uint32_t from;
    tsi_state state;
    double time, bytes;
    double least;       /* bytes of any way through it */
    double held, local; /* copies of the tensor; bytes of the largest block */
    int32_t code[TS_NDIM_MAX];
    int32_t depth[TS_NDIM_MAX];
    int32_t stack[TS_NDIM_MAX][TS_NDIM_MAX];
    double length[TS_NDIM_MAX]
                 [TS_NDIM_MAX + 1]; /* of a dim below each cut; [depth] is the local one */
    double inner[TS_NDIM_MAX];      /* bytes of the local block inside each dim */
} expansion;

/* ---- what is still to be paid --------------------------------------------------------------- */

static void heuristic(const expansion *x, tsi_state state, double held, double out[2])
{
    uint64_t differs = state ^ x->space->dst;
    double wait = 0, drag = 0, terms = 1;
    bool any = false, flat = x->links->hops == TS_HOPS_FLAT;
    for (int32_t k = 0; differs >> (8 * k) != 0 && k < x->space->axes; k++) {
        int32_t code = tsi_state_code(state, k);
        if (!(differs >> (8 * k) & 255u) || code == TSI_CODE_R) continue;
        any = true;
        bool sums = tsi_code_partial(code);
        if (sums) terms *= (double)x->space->size[k];
        double least = sums ? x->wait_sum[k] : x->wait[k];
        wait = flat ? fmax(wait, least) : wait + least;
        drag = fmax(drag, x->drag[k]);
        if (k == TS_NDIM_MAX - 1) break;
    }
    out[0] = out[1] = 0;
    if (!any) return;
    double bytes =
        terms > 1 ? (terms - 1 + x->held_dst / x->kept - 1) * x->kept : x->held_dst - held;
    bytes = fmax(bytes, 0) * x->unit;
    double us = x->links->base + wait + fmax(drag, bytes / x->ranks * x->per_byte_min);
    out[0] = fmax(tsi_grid_us(us) - ROUNDING * TSI_TICK_US, 0);
    out[1] = fmax(tsi_grid_bytes(bytes) - ROUNDING * TSI_TICK_BYTES, 0);
}

/* ---- edges ---------------------------------------------------------------------------------- */

static void relax(expansion *x, tsi_state to, int32_t kind, uint32_t axes, double held, double us,
                  double bytes)
{
    /* The first arrival is the best only if no edge is cheaper than nothing; NaN fails here too. */
    TSI_ASSERT(us >= 0 && bytes >= 0);
    double time = x->time + tsi_grid_us(us), total = x->bytes + tsi_grid_bytes(bytes), h[2];
    heuristic(x, to, held, h);
    if (total + h[1] < x->least) h[1] = x->least - total;
    if (time + h[0] > x->search->limit_us || total + h[1] > x->search->limit_bytes) return;
    double cost[2] = { time, total };
    if (x->search->bytes_first) {
        cost[0] = total;
        cost[1] = time;
        double swap = h[0];
        h[0] = h[1];
        h[1] = swap;
    }
    if (!tsi_frontier_relax(&x->frontier, to, x->from, kind, axes, cost, h)) x->failed = true;
}

static double cut_length(const expansion *x, int32_t code, double length, int32_t axis)
{
    if (code < TSI_CODE_CUT) return ceil(length / (double)x->space->size[axis]);
    const ts_placement *place = &x->space->cut[code - TSI_CODE_CUT];
    return fmax(1, (double)tsi_place_longest(place, (int64_t)length, x->space->size[axis]));
}

/* What the runs cost of which `bytes` are made when one dim changes its length. */
static double runs_us(const expansion *x, double bytes, int32_t d, double after)
{
    double before = x->length[d][x->depth[d]];
    if (before == after) return 0;
    return tsi_time_runs(x->links, bytes, fmin(before, after) * x->inner[d]);
}

/* The same for two dims: the inner one decides, if it changes. */
static double moved_runs_us(const expansion *x, int32_t d, double d_after, int32_t e,
                            double e_after)
{
    bool e_changes = e_after != x->length[e][x->depth[e]];
    bool d_changes = d_after != x->length[d][x->depth[d]];
    if (e_changes && (e > d || !d_changes)) return runs_us(x, x->local, e, e_after);
    return runs_us(x, x->local, d, d_after);
}

/* The cuts an axis may take: every plain one, and what the target has there. */
static int32_t next_cut(const expansion *x, int32_t axis, int32_t code)
{
    int32_t last = TSI_CODE_S + x->space->dims - 1;
    if (code < last) return code + 1;
    int32_t wanted = tsi_state_code(x->space->dst, axis);
    return code <= last && wanted >= TSI_CODE_CUT && wanted < TSI_CODE_P ? wanted : -1;
}
static int32_t first_cut(const expansion *x, int32_t axis)
{
    return next_cut(x, axis, TSI_CODE_S - 1);
}

/* The top `count` axes of dim d, as a mask. */
static uint32_t suffix(const expansion *x, int32_t d, int32_t count)
{
    uint32_t mask = 0;
    for (int32_t i = x->depth[d] - count; i < x->depth[d]; i++)
        mask |= 1u << x->stack[d][i];
    return mask;
}

static void move_edges(expansion *x, int32_t d)
{
    int32_t axis = x->stack[d][x->depth[d] - 1];
    const tsi_links_group *g = &x->single[axis];
    double us = tsi_time_all_to_all(x->links, g, x->local);
    double bytes = x->held * x->unit * (g->n - 1) / g->n;
    for (int32_t c = first_cut(x, axis); c >= 0; c = next_cut(x, axis, c)) {
        if (c == x->code[axis]) continue;
        int32_t e = tsi_code_dim(x->space, c), depth = x->depth[e];
        int32_t position = e == d ? depth - 1 : depth;
        double after = cut_length(x, c, x->length[e][position], axis);
        double runs = e == d ? runs_us(x, x->local, d, after)
                             : moved_runs_us(x, d, x->length[d][x->depth[d] - 1], e, after);
        relax(x, tsi_state_with(x->state, axis, c, position), TS_STEP_ALL_TO_ALL, 1u << axis,
              x->held, us + runs, bytes);
    }
}

static void gather_edge(expansion *x, int32_t d, int32_t count)
{
    TSI_ASSERT(count >= 1 && count <= x->depth[d]);
    uint32_t axes = suffix(x, d, count);
    tsi_links_group g =
        count == 1 ? x->single[x->stack[d][x->depth[d] - 1]] : tsi_links_of(x->links, axes);
    tsi_state to = x->state;
    for (int32_t k = 0; k < x->space->axes; k++) {
        if (axes >> k & 1u) to = tsi_state_with(to, k, TSI_CODE_R, 0);
    }
    int32_t depth = x->depth[d];
    double out = x->local / x->length[d][depth] * x->length[d][depth - count];
    double us = tsi_time_all_gather(x->links, &g, out, false) +
                runs_us(x, out, d, x->length[d][depth - count]);
    relax(x, to, TS_STEP_ALL_GATHER, axes, x->held * g.n, us, x->held * (g.n - 1) * x->unit);
}

static void reduce_edge(expansion *x, uint32_t axes)
{
    tsi_links_group g = tsi_links_of(x->links, axes);
    tsi_state to = x->state;
    for (int32_t k = 0; k < x->space->axes; k++) {
        if (axes >> k & 1u) to = tsi_state_with(to, k, TSI_CODE_R, 0);
    }
    double us = tsi_time_all_reduce(x->links, &g, x->local);
    relax(x, to, TS_STEP_ALL_REDUCE, axes, x->held, us, 2 * x->held * x->unit * (g.n - 1) / g.n);
}

static void slice_edges(expansion *x, int32_t axis)
{
    double held = x->held / (double)x->space->size[axis];
    for (int32_t c = first_cut(x, axis); c >= 0; c = next_cut(x, axis, c)) {
        int32_t e = tsi_code_dim(x->space, c);
        double length = x->length[e][x->depth[e]];
        double after = cut_length(x, c, length, axis), out = x->local / length * after;
        double us = x->links->local + out * x->links->copy + runs_us(x, out, e, after);
        relax(x, tsi_state_with(x->state, axis, c, x->depth[e]), TS_STEP_SLICE, 1u << axis, held,
              us, 0);
    }
}

static void scatter_edges(expansion *x, int32_t axis)
{
    const tsi_links_group *g = &x->single[axis];
    for (int32_t c = first_cut(x, axis); c >= 0; c = next_cut(x, axis, c)) {
        int32_t e = tsi_code_dim(x->space, c);
        double after = cut_length(x, c, x->length[e][x->depth[e]], axis);
        double us =
            tsi_time_reduce_scatter(x->links, g, x->local, false) + runs_us(x, x->local, e, after);
        relax(x, tsi_state_with(x->state, axis, c, x->depth[e]), TS_STEP_REDUCE_SCATTER, 1u << axis,
              x->held / g->n, us, x->held * x->unit * (g->n - 1) / g->n);
    }
}

/* ---- edges of merged groups ----------------------------------------------------------------- */

/* The top `count` axes of dim d go to dim e, in their order. */
static void merged_move_edges(expansion *x, int32_t d, int32_t count)
{
    uint32_t axes = suffix(x, d, count);
    for (int32_t i = x->depth[d] - count; i < x->depth[d]; i++) {
        if (x->code[x->stack[d][i]] >= TSI_CODE_CUT) return;
    }
    tsi_links_group g = tsi_links_of(x->links, axes);
    double us = tsi_time_all_to_all(x->links, &g, x->local);
    for (int32_t e = 0; e < x->space->dims; e++) {
        if (e == d) continue;
        tsi_state to = x->state;
        int32_t position = x->depth[e];
        double after = x->length[e][position];
        for (int32_t i = x->depth[d] - count; i < x->depth[d]; i++) {
            to = tsi_state_with(to, x->stack[d][i], TSI_CODE_S + e, position++);
            after = cut_length(x, TSI_CODE_S + e, after, x->stack[d][i]);
        }
        double runs = moved_runs_us(x, d, x->length[d][x->depth[d] - count], e, after);
        relax(x, to, TS_STEP_ALL_TO_ALL, axes, x->held, us + runs,
              x->held * x->unit * (g.n - 1) / g.n);
    }
}

/* All tops that the target does not cut, of every dim, in one gather. */
static void merged_gather_edge(expansion *x)
{
    uint32_t axes = 0;
    int32_t dims = 0, inmost = 0;
    double out = x->local, longer = 0;
    tsi_state to = x->state;
    for (int32_t d = 0; d < x->space->dims; d++) {
        int32_t depth = x->depth[d];
        while (depth > 0 && tsi_state_code(x->space->dst, x->stack[d][depth - 1]) == TSI_CODE_R) {
            int32_t axis = x->stack[d][--depth];
            axes |= 1u << axis;
            to = tsi_state_with(to, axis, TSI_CODE_R, 0);
        }
        if (depth == x->depth[d]) continue;
        dims++;
        out = out / x->length[d][x->depth[d]] * x->length[d][depth];
        if (x->length[d][x->depth[d]] == x->length[d][depth]) continue;
        inmost = d;
        longer = x->length[d][depth];
    }
    if (dims < 2) return; /* one dim: gather_edge */
    tsi_links_group g = tsi_links_of(x->links, axes);
    double us = tsi_time_all_gather(x->links, &g, out, false);
    if (longer > 0) us += runs_us(x, out, inmost, longer);
    relax(x, to, TS_STEP_ALL_GATHER, axes, x->held * g.n, us, x->held * (g.n - 1) * x->unit);
}

/* Order in which a set of axes is cut: as in the target where it cuts dim e by them, else left to
 * right. */
static int32_t scatter_order(const expansion *x, uint32_t axes, int32_t e, int32_t *order)
{
    int32_t count = 0;
    for (int32_t position = 0; position < x->space->axes; position++) {
        for (int32_t k = 0; k < x->space->axes; k++) {
            if (!(axes >> k & 1u) || tsi_state_code(x->space->dst, k) != TSI_CODE_S + e) continue;
            if (tsi_state_position(x->space->dst, k) == position) order[count++] = k;
        }
    }
    for (int32_t k = 0; k < x->space->axes; k++) {
        if ((axes >> k & 1u) && tsi_state_code(x->space->dst, k) != TSI_CODE_S + e)
            order[count++] = k;
    }
    return count;
}

static void merged_scatter_edges(expansion *x, uint32_t axes)
{
    tsi_links_group g = tsi_links_of(x->links, axes);
    for (int32_t e = 0; e < x->space->dims; e++) {
        int32_t order[TS_NDIM_MAX];
        int32_t count = scatter_order(x, axes, e, order);
        tsi_state to = x->state;
        double after = x->length[e][x->depth[e]];
        for (int32_t i = 0; i < count; i++) {
            to = tsi_state_with(to, order[i], TSI_CODE_S + e, x->depth[e] + i);
            after = cut_length(x, TSI_CODE_S + e, after, order[i]);
        }
        double us =
            tsi_time_reduce_scatter(x->links, &g, x->local, false) + runs_us(x, x->local, e, after);
        relax(x, to, TS_STEP_REDUCE_SCATTER, axes, x->held / g.n, us,
              x->held * x->unit * (g.n - 1) / g.n);
    }
}

static void merged_edges(expansion *x, uint32_t partial)
{
    for (int32_t d = 0; d < x->space->dims; d++) {
        for (int32_t count = 2; count <= x->depth[d]; count++) {
            merged_move_edges(x, d, count);
            gather_edge(x, d, count);
        }
    }
    merged_gather_edge(x);
    for (uint32_t set = partial; set != 0; set = (set - 1) & partial) {
        if ((set & (set - 1)) == 0) continue;
        reduce_edge(x, set);
        merged_scatter_edges(x, set);
    }
}

/* ---- the search ----------------------------------------------------------------------------- */

static void unpack(expansion *x, uint32_t index)
{
    const tsi_space *s = x->space;
    const tsi_node *node = &x->frontier.node[index];
    x->from = index;
    x->state = node->state;
    x->time = node->cost[x->search->bytes_first ? 1 : 0];
    x->bytes = node->cost[x->search->bytes_first ? 0 : 1];
    x->held = 1;
    memset(x->depth, 0, sizeof x->depth);
    uint32_t places[TS_NDIM_MAX] = { 0 }; /* of a dim's stack that are taken */
    for (int32_t k = 0; k < s->axes; k++) {
        x->code[k] = tsi_state_code(x->state, k);
        if (!tsi_code_cuts(x->code[k])) {
            x->held *= (double)s->size[k];
            continue;
        }
        int32_t d = tsi_code_dim(s, x->code[k]);
        x->stack[d][tsi_state_position(x->state, k)] = k;
        places[d] |= 1u << tsi_state_position(x->state, k);
        x->depth[d]++;
    }
    x->local = (double)s->item;
    for (int32_t d = 0; d < s->dims; d++) {
        TSI_ASSERT(places[d] + 1 == 1u << x->depth[d]);  /* an edge that left a gap made no stack */
        x->length[d][0] = fmax(1, (double)s->extent[d]); /* divided by */
        for (int32_t i = 0; i < x->depth[d]; i++) {
            int32_t axis = x->stack[d][i];
            x->length[d][i + 1] = cut_length(x, x->code[axis], x->length[d][i], axis);
        }
        x->local *= x->length[d][x->depth[d]];
    }
    double inner = (double)s->item;
    for (int32_t d = s->dims - 1; d >= 0; d--) {
        x->inner[d] = inner;
        inner *= x->length[d][x->depth[d]];
    }
    if (s->count == 0) x->local = 0;
}

static void expand(expansion *x)
{
    const tsi_space *s = x->space;
    uint32_t partial = 0;
    for (int32_t d = 0; d < s->dims; d++) {
        if (x->depth[d] > 0) move_edges(x, d);
    }
    for (int32_t d = 0; d < s->dims; d++) {
        if (x->depth[d] > 0) gather_edge(x, d, 1);
    }
    for (int32_t k = 0; k < s->axes; k++) {
        if (!tsi_code_partial(x->code[k]) || (x->frozen >> k & 1u)) continue;
        partial |= 1u << k;
        reduce_edge(x, 1u << k);
    }
    for (int32_t k = 0; k < s->axes; k++) {
        if (x->code[k] == TSI_CODE_R && !(x->frozen >> k & 1u)) slice_edges(x, k);
    }
    for (int32_t k = 0; k < s->axes; k++) {
        if (partial >> k & 1u) scatter_edges(x, k);
    }
    if (x->search->merged) merged_edges(x, partial);
}

/* Hops of an axis that takes part; with others in one group there are no fewer than their sum. */
static double least_hops(const tsi_links *links, double n, bool sums)
{
    if (links->hops == TS_HOPS_LOG) return log2(n);
    double hops = tsi_links_hops(links, n);
    return links->hops == TS_HOPS_TREE && sums ? fmin(hops, 2 * log2(n)) : hops;
}

static void prepare(const tsi_search *search, expansion *x)
{
    const tsi_space *s = search->space;
    memset(x, 0, sizeof *x);
    x->search = search;
    x->space = s;
    x->links = search->links;
    x->unit = (double)s->count * (double)s->item;
    x->ranks = (double)s->ranks;
    x->per_byte_min = HUGE_VAL;
    x->held_dst = 1;
    x->kept = 1;
    for (int32_t k = 0; k < s->axes; k++) {
        double n = (double)s->size[k];
        int32_t src = tsi_state_code(s->src, k), dst = tsi_state_code(s->dst, k);
        x->single[k] = tsi_links_of(x->links, 1u << k);
        x->wait[k] = least_hops(x->links, n, false) * x->single[k].latency;
        x->wait_sum[k] = least_hops(x->links, n, true) * x->single[k].latency;
        x->drag[k] = (n - 1) / n * x->unit / x->ranks * x->single[k].per_byte;
        if (n > 1) x->per_byte_min = fmin(x->per_byte_min, x->single[k].per_byte);
        if (!tsi_code_cuts(dst)) x->held_dst *= n;
        if (n == 1 || (tsi_code_partial(src) && src == dst)) x->frozen |= 1u << k;
        if (tsi_code_partial(src) && src == dst) x->kept *= n;
    }
    if (!isfinite(x->per_byte_min)) x->per_byte_min = 0;
    x->exact = tsi_remain_make(s, &x->remain);
}

static ts_status unwind(const expansion *x, uint32_t index, tsi_path *out)
{
    uint32_t chain[TSI_PATH_MAX + 1];
    int32_t count = 0;
    const tsi_node *node = x->frontier.node;
    for (uint32_t at = index;; at = node[at].parent) {
        if (count > TSI_PATH_MAX) return TSI_FAIL(TS_ERR_INTERNAL, "plan: the path is too long");
        chain[count++] = at;
        if (node[at].parent == at) break;
    }
    int32_t time = x->search->bytes_first ? 1 : 0;
    for (int32_t i = count - 2; i >= 0; i--) {
        const tsi_node *to = &node[chain[i]];
        TSI_TRY(tsi_path_add(out, to->kind, to->axes, to->state));
        out->step[out->count - 1].time_us = to->cost[time] - node[chain[i + 1]].cost[time];
    }
    out->time_us = node[index].cost[time];
    out->bytes = node[index].cost[1 - time];
    return TS_OK;
}

/* Makes the key of a node that came to the top exact. False: it lies beyond a limit, or was put
 * back. */
static bool refine(expansion *x, uint32_t index, const double key[2])
{
    tsi_node *node = &x->frontier.node[index];
    x->least = x->bytes;
    if (!x->exact) return true;
    double remain = tsi_remain_bytes(&x->remain, node->state), h[2];
    x->least = fmax(x->bytes + remain - ROUNDING * TSI_TICK_BYTES, x->bytes);
    if (node->refined) return true;
    node->refined = 1;
    heuristic(x, node->state, x->held, h);
    double us = remain > 0 ? x->links->base + remain / x->ranks * x->per_byte_min : 0;
    h[0] = fmax(h[0], tsi_grid_us(us) - ROUNDING * TSI_TICK_US);
    double time = x->time + h[0];
    if (time > x->search->limit_us || x->least > x->search->limit_bytes) return false;
    bool bytes_first = x->search->bytes_first;
    double better[2] = { bytes_first ? x->least : time, bytes_first ? time : x->least };
    if (better[0] < key[0]) better[0] = key[0];
    if (better[0] == key[0] && better[1] <= key[1]) return true;
    if (!tsi_frontier_raise(&x->frontier, index, better)) x->failed = true;
    return false;
}

ts_status tsi_search_run(const tsi_search *search, tsi_path *out)
{
    memset(out, 0, offsetof(tsi_path, step));
    out->first = search->space->src;
    expansion x;
    prepare(search, &x);
    if (!tsi_frontier_open(&x.frontier)) return tsi_fail_memory("the states of a plan", 0);
    double zero[2] = { 0, 0 };
    x.failed = !tsi_frontier_relax(&x.frontier, search->space->src, 0, 0, 0, zero, zero);
    int64_t at = -1;
    double key[2] = { 0, 0 };
    while (!x.failed && (at = tsi_frontier_pop(&x.frontier, key)) >= 0) {
        if (x.frontier.node[at].state == search->space->dst) break;
        if (x.frontier.node_count > search->state_limit) break;
        unpack(&x, (uint32_t)at);
        if (refine(&x, (uint32_t)at, key)) expand(&x);
    }
    ts_status status = x.failed ? tsi_fail_memory("the states of a plan", 0) : TS_OK;
    out->states = x.frontier.node_count;
    out->found = status == TS_OK && at >= 0 && x.frontier.node[at].state == search->space->dst;
    if (out->found) {
        status = unwind(&x, (uint32_t)at, out);
    } else {
        /* Nothing is left below the limit, or the search was stopped at what it had reached. */
        out->time_us = at < 0 ? search->limit_us : search->bytes_first ? 0 : key[0];
    }
    tsi_frontier_close(&x.frontier);
    return status;
}
