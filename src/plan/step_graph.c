/* SPDX-License-Identifier: Apache-2.0 */
/* step_graph.c - edges of a step's graph, its order, and the sentence about a cycle.
 *
 * Edges are kept by the meeting they lead into. A depth-first walk against them gives an order in
 * which everything comes after what it waits for; an edge back into the walk closes a cycle, and
 * the walk's stack is that cycle. */
#include "plan/step_graph.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

int64_t tsi_step_graph_rank(const tsi_step_graph *graph, int32_t number)
{
    int64_t low = 0, high = graph->step->rank_count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (graph->first[middle] <= number)
            low = middle;
        else
            high = middle;
    }
    return low;
}

void tsi_step_graph_cite(const tsi_step_graph *graph, int32_t number, tsi_text *text)
{
    int64_t rank = tsi_step_graph_rank(graph, number);
    tsi_step_cite(graph->step, rank, number - graph->first[rank], text);
}

ts_status tsi_step_graph_edge(tsi_step_graph *graph, int32_t from, int32_t to, tsi_edge_why why)
{
    TSI_TRY(tsi_room(&graph->edge, graph->edge_count, &graph->edge_capacity, sizeof *graph->edge,
                     "the graph of a step"));
    graph->edge[graph->edge_count++] = (tsi_step_edge){ from, to, (int32_t)why };
    return TS_OK;
}

/* ---- edges within a rank --------------------------------------------------------------------- */

/* Who touched what last, by queue; indices of the rank's actions, -1: nobody. */
typedef struct walk {
    tsi_step_graph *graph;
    const tsi_step_list *list;
    int32_t base, queues;
    int32_t last[TSI_STEP_QUEUES];
    int32_t *touched; /* [value * queues + queue] */
} walk;

/* A wait begins after the last action of each queue in `last` has ended. */
static ts_status wait_edges(walk *w, int32_t index, const int32_t *last)
{
    int32_t queue = w->list->action[index].queue;
    for (int32_t q = 0; q < w->queues; q++) {
        if (q == queue || last[q] < 0) continue;
        TSI_TRY(tsi_step_graph_edge(w->graph, w->base + last[q], w->base + index, TSI_EDGE_WAIT));
    }
    return TS_OK;
}

static ts_status walk_wait(walk *w, int32_t index, const tsi_action *a)
{
    const tsi_touch *touch = tsi_step_touches(w->list, a);
    bool named = false;
    for (int32_t i = 0; i < a->touch_count; i++) {
        if (touch[i].how != TSI_READS) continue;
        named = true;
        TSI_TRY(wait_edges(w, index, &w->touched[(int64_t)touch[i].value * w->queues]));
    }
    return named ? TS_OK : wait_edges(w, index, w->last);
}

static ts_status walk_action(walk *w, int32_t index)
{
    const tsi_action *a = &w->list->action[index];
    const tsi_touch *touch = tsi_step_touches(w->list, a);
    int32_t number = w->base + index, before = w->last[a->queue], above = w->last[0];
    if (before >= 0)
        TSI_TRY(tsi_step_graph_edge(w->graph, w->base + before, number, TSI_EDGE_QUEUE));
    if (a->queue != 0 && above >= 0)
        TSI_TRY(tsi_step_graph_edge(w->graph, w->base + above, number, TSI_EDGE_ISSUE));
    if (a->kind == TSI_ACTION_WAIT) {
        TSI_TRY(walk_wait(w, index, a));
    } else {
        for (int32_t i = 0; i < a->touch_count; i++)
            w->touched[(int64_t)touch[i].value * w->queues + a->queue] = index;
    }
    w->last[a->queue] = index;
    return TS_OK;
}

static ts_status rank_edges(tsi_step_graph *graph, int64_t rank)
{
    walk w = { .graph = graph,
               .list = tsi_step_list_of(graph->step, rank),
               .base = graph->first[rank],
               .queues = graph->step->queue_count };
    size_t bytes = (size_t)w.list->value_count * (size_t)w.queues * sizeof *w.touched;
    w.touched = tsi_alloc(bytes + 1);
    if (!w.touched) return tsi_fail_memory("the graph of a step", bytes);
    memset(w.touched, 0xff, bytes); /* -1 */
    memset(w.last, 0xff, sizeof w.last);
    ts_status status = TS_OK;
    for (int32_t i = 0; i < w.list->action_count && status == TS_OK; i++)
        status = walk_action(&w, i);
    tsi_free(w.touched);
    return status;
}

/* ---- sorting --------------------------------------------------------------------------------- */

/* Edges by the meeting they lead into: a counting sort. */
static ts_status sort_edges(tsi_step_graph *g)
{
    size_t bytes = (size_t)g->edge_count * sizeof *g->edge;
    tsi_step_edge *sorted = tsi_alloc(bytes + 1);
    g->edge_first = tsi_arena_calloc(&g->memory, (size_t)g->count + 2, sizeof *g->edge_first);
    if (!sorted || !g->edge_first) {
        tsi_free(sorted);
        return tsi_fail_memory("the graph of a step", bytes);
    }
    int64_t *next = g->edge_first + 1; /* next[n]: where the next edge into meeting n goes */
    for (int64_t e = 0; e < g->edge_count; e++)
        next[g->meet[g->edge[e].to]]++;
    int64_t sum = 0;
    for (int32_t n = 0; n < g->count; n++) {
        int64_t here = next[n];
        next[n] = sum;
        sum += here;
    }
    TSI_ASSERT(sum == g->edge_count);
    /* Once filled, next[n] is where those of n end, which is where those of n + 1 begin. */
    for (int64_t e = 0; e < g->edge_count; e++)
        sorted[next[g->meet[g->edge[e].to]]++] = g->edge[e];
    tsi_free(g->edge);
    g->edge = sorted;
    g->edge_capacity = g->edge_count;
    return TS_OK;
}

/* ---- order and cycles ------------------------------------------------------------------------ */

typedef struct frame {
    int32_t node;
    int64_t edge; /* the one that is walked */
} frame;

enum { CYCLE_SHOWN = 8 };

/* "send a (..) comes after receive b (..), which meets send b (..), which ...": from an action to
 * itself. The edges are those of the frames, each from a later action to the one it waits for. */
static ts_status refuse_cycle(tsi_step_graph *g, const frame *walked, int32_t count)
{
    static const char *const why[] = { "comes after", "is issued after", "is on its channel behind",
                                       "waits for", "needs" };
    TSI_ASSERT(count > 0);
    tsi_text text = { 0 };
    int32_t begin = g->edge[walked[0].edge].to, at = begin;
    tsi_text_add(&text, "deadlock: ");
    tsi_step_graph_cite(g, begin, &text);
    for (int32_t i = 0; i < count; i++) {
        const tsi_step_edge *edge = &g->edge[walked[i].edge];
        if (i == CYCLE_SHOWN) {
            tsi_text_printf(&text, ", and so on over %d more", count - i);
            break;
        }
        if (edge->to != at) {
            tsi_text_add(&text, ", which meets ");
            tsi_step_graph_cite(g, edge->to, &text);
        }
        tsi_text_printf(&text, "%s %s ", i || edge->to != at ? ", which" : "", why[edge->why]);
        tsi_step_graph_cite(g, edge->from, &text);
        at = edge->from;
    }
    if (count <= CYCLE_SHOWN && at != begin) {
        tsi_text_add(&text, ", which meets ");
        tsi_step_graph_cite(g, begin, &text);
    }
    g->broken = true;
    return tsi_step_refuse(g->found, TSI_FINDING_DEADLOCK, &text);
}

enum { NEW, OPEN, DONE };

/* Walks from one meeting to all it waits for; these come first. */
static ts_status order_from(tsi_step_graph *g, int32_t root, uint8_t *colour, frame *stack)
{
    int32_t depth = 0;
    stack[depth++] = (frame){ root, g->edge_first[root] };
    colour[root] = OPEN;
    while (depth > 0) {
        frame *top = &stack[depth - 1];
        if (top->edge == g->edge_first[top->node + 1]) {
            colour[top->node] = DONE;
            g->order[g->order_count++] = top->node;
            depth--;
            if (depth > 0) stack[depth - 1].edge++;
            continue;
        }
        int32_t next = g->meet[g->edge[top->edge].from];
        if (colour[next] == OPEN) {
            int32_t start = depth - 1;
            while (stack[start].node != next)
                start--;
            return refuse_cycle(g, &stack[start], depth - start);
        }
        if (colour[next] == DONE) {
            top->edge++;
        } else {
            TSI_ASSERT(depth < g->count); /* nobody is on the stack twice */
            colour[next] = OPEN;
            stack[depth++] = (frame){ next, g->edge_first[next] };
        }
    }
    return TS_OK;
}

static ts_status order_all(tsi_step_graph *g)
{
    size_t count = (size_t)g->count + 1;
    uint8_t *colour = tsi_calloc(count, 1);
    frame *stack = tsi_alloc_array(count, sizeof *stack);
    g->order = tsi_arena_calloc(&g->memory, count, sizeof *g->order);
    ts_status status = colour && stack && g->order
                           ? TS_OK
                           : tsi_fail_memory("the order of a step", count * sizeof *stack);
    for (int32_t n = 0; n < g->count && status == TS_OK && !g->broken; n++)
        if (g->meet[n] == n && colour[n] == NEW) status = order_from(g, n, colour, stack);
    tsi_free(colour);
    tsi_free(stack);
    return status;
}

/* ---- making ---------------------------------------------------------------------------------- */

static ts_status number_actions(tsi_step_graph *g)
{
    int64_t count = tsi_step_action_count(g->step);
    if (count > INT32_MAX - 2)
        return TSI_FAIL(TS_ERR_ARG, "step: %lld actions are too many to order", (long long)count);
    g->count = (int32_t)count;
    g->first = tsi_arena_calloc(&g->memory, (size_t)g->step->rank_count + 1, sizeof *g->first);
    g->meet = tsi_arena_calloc(&g->memory, (size_t)count + 1, sizeof *g->meet);
    if (!g->first || !g->meet) return tsi_fail_memory("the graph of a step", (size_t)count * 4);
    for (int32_t r = 0; r < g->step->rank_count; r++)
        g->first[r + 1] = g->first[r] + tsi_step_list_of(g->step, r)->action_count;
    for (int32_t n = 0; n < g->count; n++)
        g->meet[n] = n;
    return TS_OK;
}

ts_status tsi_step_graph_make(const tsi_step *step, bool buffered, tsi_findings *found,
                              tsi_step_graph *out)
{
    *out = (tsi_step_graph){ .step = step, .found = found };
    TSI_TRY(number_actions(out));
    for (int32_t r = 0; r < step->list_count; r++)
        TSI_TRY(rank_edges(out, r));
    TSI_TRY(tsi_step_graph_pairs(out, buffered));
    if (out->broken) return TS_OK;
    TSI_TRY(sort_edges(out));
    return order_all(out);
}

void tsi_step_graph_release(tsi_step_graph *graph)
{
    tsi_free(graph->edge);
    tsi_arena_release(&graph->memory);
    *graph = (tsi_step_graph){ 0 };
}
