/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_time.c - when the actions of a schedule run under costs, stages on a line.
 *
 * A rank computes in the order of its list, each action as soon as its input is there. A message
 * leaves when its maker ends, behind those before it on the way between the same two ranks in the
 * same direction, and takes the maker's cost of sending. Agrees with the simulation of the lowered
 * step (tests/prop/plan_schedule.c), which knows any graph; this one is what a search can afford.
 */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/schedule.h"

ts_status tsi_stage_costs(const ts_schedule_costs *costs, int32_t stages, ts_stage_cost *out)
{
    static const ts_stage_cost one = { 1, 1, 1, 0, 1 };
    const ts_stage_cost *from = costs && costs->stage ? costs->stage : &one;
    int64_t count = from == &one ? 1 : costs->count;
    if (count != 1 && count != stages)
        return TSI_FAIL(TS_ERR_ARG, "schedule: costs of %lld stages for %d; 1 holds for all",
                        (long long)count, stages);
    for (int32_t g = 0; g < stages; g++) {
        const ts_stage_cost *c = &from[count == 1 ? 0 : g];
        const double all[] = { c->forward, c->input, c->weight, c->send, c->memory };
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            if (!(all[i] >= 0) || all[i] > 1e18)
                return TSI_FAIL(TS_ERR_ARG, "schedule: a cost of stage %d is %g", g, all[i]);
        out[g] = *c;
    }
    return TS_OK;
}

double tsi_cell_cost(const ts_stage_cost *stage, int32_t kind)
{
    if (kind == TS_CELL_FORWARD) return stage->forward;
    if (kind == TS_CELL_INPUT) return stage->input;
    if (kind == TS_CELL_WEIGHT) return stage->weight;
    return kind == TS_CELL_BACKWARD ? stage->input + stage->weight : 0;
}

typedef struct timing {
    const ts_schedule *s;
    const ts_stage_cost *cost;
    int64_t *first;                /* [rank]: number of its first cell */
    double *free_at, *busy;        /* [rank] */
    double *kept, *peak;           /* [rank] */
    double *forward_at, *input_at; /* [stage * micros + micro]: when the next stage, or the one
                                      before, has what was made */
    int32_t *way;                  /* [2 * stage], forward and back: which channel it sends on */
    double *channel;               /* by way: when it is free */
    double *begin, *end;           /* by cell; may be NULL */
    double makespan;
} timing;

/* The way out of a stage: that of the first stage between the same two ranks. -1: nothing is sent.
 */
static int32_t way_of(const ts_schedule *s, int32_t stage, int32_t step)
{
    int32_t next = stage + step;
    if (next < 0 || next >= s->stages || s->rank_of[stage] == s->rank_of[next]) return -1;
    for (int32_t g = step < 0 ? 1 : 0; g < stage; g++)
        if (s->rank_of[g] == s->rank_of[stage] && s->rank_of[g + step] == s->rank_of[next])
            return g;
    return stage;
}

static double arrival(timing *t, int32_t stage, int32_t back, double at)
{
    int32_t way = t->way[2 * stage + back];
    if (way < 0) return at;
    double *free_at = &t->channel[2 * way + back];
    double leaves = at > *free_at ? at : *free_at;
    *free_at = leaves + t->cost[stage].send;
    return *free_at;
}

static int64_t slot_of(const timing *t, const ts_cell *c)
{
    return (int64_t)c->stage * t->s->micros + c->micro;
}

static double ready_at(const timing *t, const ts_cell *c)
{
    int64_t slot = slot_of(t, c);
    if (c->kind == TS_CELL_FORWARD) return c->stage > 0 ? t->forward_at[slot - t->s->micros] : 0;
    if (c->kind == TS_CELL_WEIGHT || c->stage + 1 == t->s->stages) return 0;
    return t->input_at[slot + t->s->micros];
}

static void keep(timing *t, int32_t rank, const ts_cell *c)
{
    double bytes = t->cost[c->stage].memory;
    if (c->kind == TS_CELL_FORWARD) t->kept[rank] += bytes;
    if (t->kept[rank] > t->peak[rank]) t->peak[rank] = t->kept[rank];
    if (c->kind == TS_CELL_WEIGHT || c->kind == TS_CELL_BACKWARD) t->kept[rank] -= bytes;
}

/* Two that are joined begin when both can, and what they make leaves when both have ended. */
static ts_status time_visit(void *context, int32_t rank, int64_t index, int32_t count)
{
    timing *t = context;
    const ts_cell *c = &t->s->list[rank].cell[index];
    double at = t->free_at[rank];
    if (!tsi_cell_computes(c)) return TS_OK;
    for (int32_t i = 0; i < count; i++)
        if (ready_at(t, &c[i]) > at) at = ready_at(t, &c[i]);
    for (int32_t i = 0; i < count; i++) {
        double takes = tsi_cell_cost(&t->cost[c[i].stage], c[i].kind);
        if (t->begin) t->begin[t->first[rank] + index + i] = at;
        at += takes;
        if (t->end) t->end[t->first[rank] + index + i] = at;
        t->busy[rank] += takes;
        keep(t, rank, &c[i]);
    }
    for (int32_t i = 0; i < count; i++) {
        bool forward = c[i].kind == TS_CELL_FORWARD;
        if (forward) t->forward_at[slot_of(t, &c[i])] = arrival(t, c[i].stage, 0, at);
        if (!forward && c[i].kind != TS_CELL_WEIGHT)
            t->input_at[slot_of(t, &c[i])] = arrival(t, c[i].stage, 1, at);
    }
    t->free_at[rank] = at;
    if (at > t->makespan) t->makespan = at;
    return TS_OK;
}

/* Cells that do not compute stand where the one before them ends. */
static void place_rest(timing *t)
{
    for (int32_t r = 0; r < t->s->ranks; r++) {
        double at = 0;
        for (int64_t i = 0; i < t->s->list[r].count; i++) {
            int64_t n = t->first[r] + i;
            if (tsi_cell_computes(&t->s->list[r].cell[i])) {
                at = t->end ? t->end[n] : 0;
                continue;
            }
            if (t->begin) t->begin[n] = at;
            if (t->end) t->end[n] = at;
        }
    }
}

static void sum_times(const timing *t, ts_schedule_times *out)
{
    ts_schedule_times all = { .struct_size = sizeof all, .makespan = t->makespan };
    double busy = 0;
    for (int32_t r = 0; r < t->s->ranks; r++) {
        busy += t->busy[r];
        if (t->peak[r] > all.peak) all.peak = t->peak[r];
    }
    all.bubble = t->makespan - busy / t->s->ranks;
    all.fraction = t->makespan > 0 ? all.bubble / t->makespan : 0;
    size_t size =
        out->struct_size > 0 && out->struct_size < sizeof all ? out->struct_size : sizeof all;
    memcpy(out, &all, size);
    out->struct_size = size;
}

static ts_status open_timing(timing *t, tsi_arena *memory, const ts_schedule_costs *costs)
{
    size_t ranks = (size_t)t->s->ranks, stages = (size_t)t->s->stages;
    size_t slots = stages * (size_t)t->s->micros;
    ts_stage_cost *cost = tsi_arena_calloc(memory, stages, sizeof *cost);
    double *by_rank = tsi_arena_calloc(memory, 4 * ranks, sizeof *by_rank);
    double *by_slot = tsi_arena_calloc(memory, 2 * slots, sizeof *by_slot);
    t->channel = tsi_arena_calloc(memory, 2 * stages, sizeof *t->channel);
    t->first = tsi_arena_calloc(memory, ranks + 1, sizeof *t->first);
    t->way = tsi_arena_calloc(memory, 2 * stages, sizeof *t->way);
    if (!cost || !by_rank || !by_slot || !t->channel || !t->first || !t->way)
        return tsi_fail_memory("the times of a schedule", slots * 2 * sizeof *by_slot);
    TSI_TRY(tsi_stage_costs(costs, t->s->stages, cost));
    t->cost = cost;
    t->free_at = by_rank;
    t->busy = by_rank + ranks;
    t->kept = by_rank + 2 * ranks;
    t->peak = by_rank + 3 * ranks;
    t->forward_at = by_slot;
    t->input_at = by_slot + slots;
    for (int32_t g = 0; g < 2 * t->s->stages; g++)
        t->way[g] = way_of(t->s, g / 2, g % 2 == 0 ? 1 : -1);
    for (int32_t r = 0; r < t->s->ranks; r++)
        t->first[r + 1] = t->first[r] + t->s->list[r].count;
    return TS_OK;
}

ts_status ts_schedule_simulate(const ts_schedule *schedule, const ts_schedule_costs *costs,
                               ts_schedule_times *out, double *begin, double *end, double *peak)
{
    if (!schedule || !out) return TSI_FAIL(TS_ERR_NULL, "schedule: an argument is NULL");
    timing t = { .s = schedule, .begin = begin, .end = end };
    tsi_arena memory = { 0 };
    tsi_stage_graph line = { 0 };
    ts_status status = open_timing(&t, &memory, costs);
    if (status == TS_OK) status = tsi_stage_graph_line(schedule->stages, &line);
    if (status == TS_OK) status = tsi_schedule_walk(schedule, &line, time_visit, &t);
    if (status == TS_OK) {
        place_rest(&t);
        sum_times(&t, out);
        if (peak) memcpy(peak, t.peak, (size_t)schedule->ranks * sizeof *peak);
    }
    tsi_stage_graph_release(&line);
    tsi_arena_release(&memory);
    return status;
}
