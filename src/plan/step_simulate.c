/* SPDX-License-Identifier: Apache-2.0 */
/* step_simulate.c - when every action begins and ends under a cost model.
 *
 * A meeting begins when the last of what its members wait for has ended, and takes as long as its
 * slowest member. The path of those last ones, from the end back, is the critical path. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/step_graph.h"

/* ---- costs ----------------------------------------------------------------------------------- */

/* Of the group's slowest link: units of a level are neighbours, so its ends decide. */
static tsi_links_group links_group(const tsi_links *links, const tsi_step_group *group)
{
    TSI_ASSERT(group->size > 0);
    int32_t level = tsi_links_level(links, group->low, group->high);
    tsi_links_group out = { .n = (double)group->size,
                            .latency = links->level_latency[level],
                            .per_byte = links->level_per_byte[level] };
    out.hops = tsi_links_hops(links, out.n);
    return out;
}

static double collective_us(const tsi_links *links, const tsi_step *step, const tsi_action *a)
{
    const tsi_step_group *group = &step->group[a->group];
    double bytes = (double)a->bytes;
    if (group->size == 1) return links->local + bytes * links->copy;
    tsi_links_group over = links_group(links, group);
    if (a->kind == TSI_ACTION_GATHER) return tsi_time_all_gather(links, &over, bytes, false);
    if (a->kind == TSI_ACTION_REDUCE) return tsi_time_reduce_scatter(links, &over, bytes, false);
    if (a->kind == TSI_ACTION_ALL_REDUCE) return tsi_time_all_reduce(links, &over, bytes);
    return tsi_time_all_to_all(links, &over, bytes);
}

double tsi_step_latency_us(const tsi_step_cost *cost, const tsi_step *step,
                           const tsi_action *collective)
{
    tsi_action empty = *collective;
    empty.bytes = 0;
    double us = cost->of ? cost->of(cost->context, step, 0, &empty) : -1;
    bool linked = cost->links && cost->links->level_count > 0;
    if (us >= 0) return us;
    return linked ? collective_us(cost->links, step, &empty) : 0;
}

/* A message costs its sender; the receiver only waits for it. */
static double message_us(const tsi_links *links, const tsi_step *step, int64_t rank,
                         const tsi_action *a)
{
    if (a->kind == TSI_ACTION_RECEIVE) return 0;
    int32_t level =
        tsi_links_level(links, tsi_step_shown(step, rank), tsi_step_shown(step, a->peer));
    return links->base + links->level_latency[level] +
           (double)a->bytes * links->level_per_byte[level];
}

static double cost_of(const tsi_step_cost *cost, const tsi_step *step, int64_t rank,
                      const tsi_action *a)
{
    if (a->us >= 0) return a->us;
    double us = cost->of ? cost->of(cost->context, step, rank, a) : -1;
    if (us >= 0) return us;
    tsi_action_class kind = tsi_action_class_of(a->kind);
    if (kind == TSI_CLASS_MARK) return 0;
    bool linked = cost->links && cost->links->level_count > 0 && a->bytes > 0;
    if (linked && kind == TSI_CLASS_COLLECTIVE) return collective_us(cost->links, step, a);
    if (linked && kind == TSI_CLASS_PAIR) return message_us(cost->links, step, rank, a);
    return cost->us[a->kind];
}

/* ---- times ----------------------------------------------------------------------------------- */

typedef struct spell { /* in which a queue computes */
    double begin, end;
} spell;

typedef struct run {
    const tsi_step *step;
    const tsi_step_cost *cost;
    tsi_step_graph graph;
    double *begin, *takes; /* by meeting */
    int32_t *cause;        /* by meeting: the edge's action that ended last; -1: none */
    spell *spell;          /* room for the actions of a rank */
    tsi_step_times *out;
} run;

static ts_status prepare(run *r)
{
    tsi_step_times *out = r->out;
    size_t n = (size_t)r->graph.count + 1, ranks = (size_t)r->step->rank_count;
    tsi_arena *memory = &out->memory;
    out->first = tsi_arena_calloc(memory, ranks + 1, sizeof *out->first);
    out->start_us = tsi_arena_calloc(memory, n, sizeof *out->start_us);
    out->end_us = tsi_arena_calloc(memory, n, sizeof *out->end_us);
    out->busy_us = tsi_arena_calloc(memory, ranks * TSI_STEP_QUEUES, sizeof *out->busy_us);
    out->peak = tsi_arena_calloc(memory, ranks, sizeof *out->peak);
    out->critical = tsi_arena_calloc(memory, n, sizeof *out->critical);
    r->begin = tsi_calloc(n, sizeof *r->begin);
    r->takes = tsi_calloc(n, sizeof *r->takes);
    r->cause = tsi_calloc(n, sizeof *r->cause);
    r->spell = tsi_calloc(n, sizeof *r->spell);
    if (out->first && out->start_us && out->end_us && out->busy_us && out->peak && out->critical &&
        r->begin && r->takes && r->cause && r->spell)
        return TS_OK;
    return tsi_fail_memory("the times of a step", n * 64);
}

/* Durations: a meeting takes as long as its slowest member. */
static ts_status ask_costs(run *r)
{
    int32_t number = 0;
    for (int64_t rank = 0; rank < r->step->rank_count; rank++) {
        const tsi_step_list *list = tsi_step_list_of(r->step, rank);
        for (int32_t i = 0; i < list->action_count; i++, number++) {
            double us = cost_of(r->cost, r->step, rank, &list->action[i]);
            if (!(us >= 0) || isinf(us))
                return TSI_FAIL(TS_ERR_ARG, "step: the cost of a %s on rank %lld is %g us",
                                tsi_action_names[list->action[i].kind], (long long)rank, us);
            int32_t meet = r->graph.meet[number];
            r->takes[meet] = fmax(r->takes[meet], us);
        }
    }
    return TS_OK;
}

/* Returns the meeting that ends last; -1: there is none. */
static int32_t play(run *r)
{
    const tsi_step_graph *g = &r->graph;
    int32_t last = -1;
    for (int32_t i = 0; i < g->order_count; i++) {
        int32_t node = g->order[i];
        r->cause[node] = -1;
        for (int64_t e = g->edge_first[node]; e < g->edge_first[node + 1]; e++) {
            int32_t from = g->edge[e].from, meet = g->meet[from];
            double end = r->begin[meet] + r->takes[meet];
            if (r->cause[node] >= 0 && end <= r->begin[node]) continue;
            r->cause[node] = from;
            r->begin[node] = end;
        }
        if (last < 0 || r->begin[node] + r->takes[node] > r->begin[last] + r->takes[last])
            last = node;
    }
    return last;
}

static void report_path(run *r, int32_t last)
{
    tsi_step_times *out = r->out;
    for (int32_t at = last; at >= 0; at = r->cause[r->graph.meet[at]])
        out->critical[out->critical_count++] = at;
    for (int64_t i = 0, j = out->critical_count - 1; i < j; i++, j--) {
        int64_t keep = out->critical[i];
        out->critical[i] = out->critical[j];
        out->critical[j] = keep;
    }
}

static int compare_spells(const void *a, const void *b)
{
    const spell *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* What several queues of a rank compute at once is its time once. */
static double time_of_spells(spell *all, int32_t count)
{
    double sum = 0, until = 0;
    int32_t sorted = 1; /* those of one queue are */
    while (sorted < count && all[sorted - 1].begin <= all[sorted].begin)
        sorted++;
    if (sorted < count) qsort(all, (size_t)count, sizeof *all, compare_spells);
    for (int32_t i = 0; i < count; i++) {
        if (all[i].end <= until) continue;
        sum += all[i].end - fmax(all[i].begin, until);
        until = all[i].end;
    }
    return sum;
}

static void report(run *r, int32_t last)
{
    tsi_step_times *out = r->out;
    double compute = 0;
    int32_t number = 0;
    for (int64_t rank = 0; rank < r->step->rank_count; rank++) {
        const tsi_step_list *list = tsi_step_list_of(r->step, rank);
        int32_t spells = 0;
        out->first[rank] = number;
        for (int32_t i = 0; i < list->action_count; i++, number++) {
            int32_t meet = r->graph.meet[number];
            tsi_action_class kind = tsi_action_class_of(list->action[i].kind);
            out->start_us[number] = r->begin[meet];
            out->end_us[number] = r->begin[meet] + r->takes[meet];
            if (kind == TSI_CLASS_MARK) continue;
            out->busy_us[rank * TSI_STEP_QUEUES + list->action[i].queue] += r->takes[meet];
            if (kind == TSI_CLASS_COMPUTE)
                r->spell[spells++] = (spell){ out->start_us[number], out->end_us[number] };
        }
        compute += time_of_spells(r->spell, spells);
        tsi_step_memory_of(r->step, rank, &out->peak[rank], NULL);
    }
    out->first[r->step->rank_count] = number;
    out->makespan_us = last >= 0 ? r->begin[last] + r->takes[last] : 0;
    double whole = (double)r->step->rank_count * out->makespan_us;
    out->bubble = whole > 0 ? 1 - compute / whole : 0;
    report_path(r, last);
}

ts_status tsi_step_simulate(const tsi_step *step, const tsi_step_cost *cost, tsi_step_times *out)
{
    *out = (tsi_step_times){ 0 };
    run r = { .step = step, .cost = cost, .out = out };
    ts_status status = tsi_step_graph_make(step, cost->buffered, NULL, &r.graph);
    if (status == TS_OK) status = prepare(&r);
    if (status == TS_OK) status = ask_costs(&r);
    if (status == TS_OK) report(&r, play(&r));
    tsi_step_graph_release(&r.graph);
    tsi_free(r.begin);
    tsi_free(r.takes);
    tsi_free(r.cause);
    tsi_free(r.spell);
    if (status != TS_OK) tsi_step_times_release(out);
    return status;
}

void tsi_step_times_release(tsi_step_times *times)
{
    tsi_arena_release(&times->memory);
    *times = (tsi_step_times){ 0 };
}

/* ---- measured times -------------------------------------------------------------------------- */

/* [number]: the least time that a member says; < 0: one of them says nothing. */
static void find_least(const tsi_step *step, const tsi_step_graph *graph, double *least)
{
    int32_t number = 0;
    for (int32_t r = 0; r < step->list_count; r++)
        for (int32_t i = 0; i < step->list[r].action_count; i++, number++) {
            double us = step->list[r].action[i].us, *of = &least[graph->meet[number]];
            if (graph->meet[number] == number || us < *of) *of = us < 0 ? -1 : us;
        }
}

ts_status tsi_step_meet_least(tsi_step *step)
{
    tsi_step_graph graph = { 0 };
    tsi_findings found = { 0 };
    ts_status status = tsi_step_graph_make(step, true, &found, &graph);
    bool pairs = status == TS_OK && !graph.broken;
    double *least = pairs ? tsi_alloc_array((size_t)graph.count + 1, sizeof *least) : NULL;
    if (pairs && !least) status = tsi_fail_memory("times of a step", (size_t)graph.count * 8);
    if (least) find_least(step, &graph, least);
    for (int32_t r = 0, number = 0; least && r < step->list_count; r++)
        for (int32_t i = 0; i < step->list[r].action_count; i++, number++)
            if (step->list[r].action[i].group >= 0)
                step->list[r].action[i].us = least[graph.meet[number]];
    tsi_free(least);
    tsi_step_graph_release(&graph);
    tsi_findings_release(&found);
    return status;
}
