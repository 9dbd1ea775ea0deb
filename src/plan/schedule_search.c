/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_search.c - the best order under costs and a cap on memory.
 *
 *   published orders      all that keep the cap
 *   list scheduling       caps per rank and preferences, varied where the best so far stands
 *   exactly               where there are few enough states
 *
 * INV: what comes out keeps the cap and is not longer than any published order that keeps it. The
 * bound holds for every order with the same stages on the same ranks. How much is tried follows
 * from the seconds given and the size, not from the clock, so that ranks that search alike find
 * the same; the clock only ends a search on a machine that is far slower than meant. */
#include "plan/schedule_search.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/philox.h"

#define NEVER 1e300
enum { CELLS_PER_SECOND = 4000000 }; /* that list scheduling places, at least */

typedef struct search {
    const ts_schedule_search_options *options;
    ts_schedule *best;
    double makespan;
    int64_t cells_left, deadline_ns;
    uint64_t draws;
} search;

/* ---- the problem ----------------------------------------------------------------------------- */

static int32_t way_of(const tsi_problem *p, int32_t stage, int32_t step)
{
    int32_t next = stage + step;
    if (next < 0 || next >= p->G || p->rank_of[stage] == p->rank_of[next]) return -1;
    for (int32_t g = step < 0 ? 1 : 0; g < stage; g++)
        if (p->rank_of[g] == p->rank_of[stage] && p->rank_of[g + step] == p->rank_of[next])
            return g;
    return stage;
}

/* Earliest begins and shortest ways to the end along the line of stages. */
static void fill_ways(tsi_problem *p)
{
    for (int32_t g = 0; g < 2 * p->G; g++)
        p->way[g] = way_of(p, g / 2, g % 2 == 0 ? 1 : -1);
    for (int32_t g = 0; g + 1 < p->G; g++)
        p->before[g + 1] =
            p->before[g] + p->cost[g].forward + (p->way[2 * g] >= 0 ? p->cost[g].send : 0);
    for (int32_t g = 0; g < p->G; g++) {
        double below = g > 0 ? (p->way[2 * g + 1] >= 0 ? p->cost[g].send : 0) +
                                   p->cost[g - 1].input + p->after[g - 1]
                             : 0;
        p->after[g] = fmax(below, p->cost[g].weight);
        p->work[p->rank_of[g]] +=
            p->M * (p->cost[g].forward + p->cost[g].input + p->cost[g].weight);
    }
}

/* A rank cannot begin before its first stage, does all its work, and after its last input gradient
 * that goes down to stage 0. Before the first gradient reaches it, it can do forwards alone, and
 * no more than it may keep. */
static double rank_bound(const tsi_problem *p, int32_t r)
{
    double begin = -1, moves = 0, tail = 0, forwards = 0, most = 0, first = 0, down = 0;
    for (int32_t g = p->G - 1; g >= 0; g--) {
        if (p->rank_of[g] == r && first == 0) /* its deepest stage has the first gradient */
            first = p->before[p->G - 1] + p->cost[p->G - 1].forward + down;
        down += p->cost[g].input + (g > 0 && p->way[2 * g + 1] >= 0 ? p->cost[g].send : 0);
    }
    for (int32_t g = 0; g < p->G; g++) {
        if (p->rank_of[g] != r) continue;
        if (begin < 0) begin = p->before[g];
        moves += p->M * (p->cost[g].forward + p->cost[g].input);
        forwards += p->M * p->cost[g].forward;
        if (tail == 0 || p->after[g] < tail) tail = p->after[g];
        if (p->cost[g].memory > 0) most = fmax(most, p->cost[g].forward / p->cost[g].memory);
    }
    double early = p->memory_max > 0 && most > 0 ? fmin(forwards, most * p->memory_max) : forwards;
    double idle = fmax(0, first - begin - early);
    return fmax(begin + idle + p->work[r], begin + idle + moves + tail);
}

static double bound_of(const tsi_problem *p)
{
    double bound = p->before[p->G - 1] + p->cost[p->G - 1].forward + p->cost[p->G - 1].input +
                   p->after[p->G - 1];
    for (int32_t r = 0; r < p->P; r++)
        bound = fmax(bound, rank_bound(p, r));
    return bound;
}

ts_status tsi_problem_make(const ts_schedule *placed, const ts_schedule_costs *costs,
                           double memory_max, tsi_problem *out)
{
    *out = (tsi_problem){
        .P = placed->ranks, .G = placed->stages, .M = placed->micros, .memory_max = memory_max
    };
    size_t G = (size_t)out->G, P = (size_t)out->P;
    out->rank_of = tsi_arena_calloc(&out->memory, 3 * G, sizeof *out->rank_of);
    out->cost = tsi_arena_calloc(&out->memory, G, sizeof *out->cost);
    out->work = tsi_arena_calloc(&out->memory, P + 2 * G, sizeof *out->work);
    if (!out->rank_of || !out->cost || !out->work) {
        tsi_problem_release(out);
        return tsi_fail_memory("a search", G * sizeof *out->cost);
    }
    out->way = out->rank_of + G;
    out->before = out->work + P;
    out->after = out->before + G;
    memcpy(out->rank_of, placed->rank_of, G * sizeof *out->rank_of);
    ts_status status = tsi_stage_costs(costs, out->G, out->cost);
    if (status != TS_OK) tsi_problem_release(out);
    if (status != TS_OK) return status;
    fill_ways(out);
    out->bound = bound_of(out);
    return TS_OK;
}

void tsi_problem_release(tsi_problem *problem)
{
    tsi_arena_release(&problem->memory);
    *problem = (tsi_problem){ 0 };
}

/* ---- published orders ------------------------------------------------------------------------ */

static bool keeps_cap(double peak, double most)
{
    return most <= 0 || peak <= most * (1 + 1e-12);
}

/* Takes the schedule. */
static ts_status offer(search *self, ts_schedule *schedule)
{
    ts_schedule_times times = { .struct_size = sizeof times };
    ts_status status =
        ts_schedule_simulate(schedule, &self->options->costs, &times, NULL, NULL, NULL);
    bool better = status == TS_OK && keeps_cap(times.peak, self->options->memory_max) &&
                  (!self->best || times.makespan < self->makespan);
    ts_schedule *other = better ? self->best : schedule;
    if (better) self->best = schedule;
    if (better) self->makespan = times.makespan;
    ts_schedule_destroy(other);
    return status;
}

/* ---- list scheduling ------------------------------------------------------------------------- */

static double draw(search *self) /* in [0, 1) */
{
    return (double)tsi_philox(1, self->draws++, 0).word[0] / 4294967296.0;
}

/* At most all of a rank's activations, at least one of each of its stages. */
static void cap_limits(const tsi_problem *p, int32_t r, double *low, double *high)
{
    *low = 0;
    *high = 0;
    for (int32_t g = 0; g < p->G; g++) {
        if (p->rank_of[g] != r) continue;
        *low += p->cost[g].memory;
        *high += p->cost[g].memory * p->M;
    }
    if (p->memory_max > 0 && p->memory_max < *high) *high = p->memory_max;
}

/* Some usual shapes of caps over the ranks: as 1F1B has them, twice that, as many as ranks, all. */
static void usual_caps(const tsi_problem *p, int shape, double *cap)
{
    for (int32_t r = 0; r < p->P; r++) {
        double low, high, of = 0;
        cap_limits(p, r, &low, &high);
        int32_t many = shape == 0   ? p->P - r
                       : shape == 1 ? 2 * (p->P - r) - 1
                       : shape == 2 ? p->P
                       : shape == 3 ? p->P + 1
                       : shape == 4 ? 2 * p->P
                                    : p->M;
        of = low * many;
        cap[r] = fmin(fmax(of, low), high);
    }
}

static void vary(search *self, const tsi_problem *p, const tsi_policy *from, tsi_policy *to)
{
    static const double patience[] = { 0, 0.25, 0.5, 0.75, 1 };
    memcpy(to->cap, from->cap, (size_t)p->P * sizeof *to->cap);
    to->patience = from->patience;
    to->deeper_first = from->deeper_first;
    to->forward_first = from->forward_first;
    for (int changes = 1 + (int)(3 * draw(self)); changes > 0; changes--) {
        double low, high, kind = draw(self);
        int32_t r = (int32_t)(draw(self) * p->P);
        cap_limits(p, r, &low, &high);
        if (kind < 0.15)
            to->patience = patience[(int)(5 * draw(self))];
        else if (kind < 0.22)
            to->deeper_first = !to->deeper_first;
        else if (kind < 0.27)
            to->forward_first = !to->forward_first;
        else
            to->cap[r] = fmin(fmax(to->cap[r] + low * (floor(5 * draw(self)) - 2), low), high);
    }
}

static bool may_go_on(const search *self, const tsi_problem *p)
{
    return self->cells_left > 0 && tsi_clock_ns() < self->deadline_ns &&
           (!self->best || self->makespan > p->bound * (1 + 1e-9));
}

static ts_status try_policy(search *self, const tsi_problem *p, tsi_greedy *greedy,
                            const tsi_policy *policy, double *found)
{
    ts_schedule *made;
    double most = self->best ? self->makespan * 1.1 : NEVER; /* nearly as good may lead on */
    self->cells_left -= 3 * (int64_t)p->G * p->M;
    *found = tsi_greedy_run(greedy, policy, most);
    if (*found < 0 || (self->best && *found >= self->makespan)) return TS_OK;
    TSI_TRY(tsi_greedy_schedule(greedy, &made));
    return offer(self, made);
}

typedef struct climbing {
    tsi_policy at, next;
    double found;
} climbing;

static ts_status climb(search *self, const tsi_problem *p, tsi_greedy *greedy, climbing *c)
{
    double best = NEVER;
    ts_status status = TS_OK;
    for (int i = 0; i < 24 && status == TS_OK && may_go_on(self, p); i++) { /* where to begin */
        usual_caps(p, i / 4, c->next.cap);
        c->next.patience = i & 1 ? 0.5 : 0;
        c->next.deeper_first = (i & 2) != 0;
        c->next.forward_first = false;
        status = try_policy(self, p, greedy, &c->next, &c->found);
        if (c->found < 0 || c->found >= best) continue;
        best = c->found;
        vary(self, p, &c->next, &c->at); /* a copy; then its caps are put back */
        memcpy(c->at.cap, c->next.cap, (size_t)p->P * sizeof *c->at.cap);
        c->at.patience = c->next.patience;
        c->at.deeper_first = c->next.deeper_first;
        c->at.forward_first = c->next.forward_first;
    }
    while (status == TS_OK && best < NEVER && may_go_on(self, p)) {
        vary(self, p, &c->at, &c->next);
        status = try_policy(self, p, greedy, &c->next, &c->found);
        if (c->found < 0 || c->found > best * (1 + 0.02 * draw(self) * draw(self))) continue;
        best = c->found;
        climbing other = *c; /* the two change places */
        c->at = other.next;
        c->next = other.at;
    }
    return status;
}

static ts_status search_lists(search *self, const tsi_problem *p)
{
    tsi_greedy *greedy;
    TSI_TRY(tsi_greedy_open(p, &greedy));
    double *caps = tsi_calloc(2 * (size_t)p->P, sizeof *caps);
    climbing c = { .at.cap = caps, .next.cap = caps ? caps + p->P : NULL };
    ts_status status =
        caps ? climb(self, p, greedy, &c) : tsi_fail_memory("a search", 2 * sizeof *caps);
    tsi_free(caps);
    tsi_greedy_close(greedy);
    return status;
}

/* ---- one placement --------------------------------------------------------------------------- */

static ts_status search_placed(search *self, const ts_schedule *placed, double *bound)
{
    tsi_problem p;
    ts_schedule *exact = NULL;
    TSI_TRY(tsi_problem_make(placed, &self->options->costs, self->options->memory_max, &p));
    ts_status status = search_lists(self, &p);
    if (status == TS_OK && (!self->best || self->makespan > p.bound * (1 + 1e-9)))
        status = tsi_schedule_exact(&p, self->best ? self->makespan : NEVER, &exact);
    if (status == TS_OK && exact) status = offer(self, exact);
    *bound = p.bound;
    tsi_problem_release(&p);
    return status;
}

static bool fits_costs(const ts_schedule_costs *costs, int64_t stages)
{
    return !costs->stage || costs->count == 1 || costs->count == stages;
}

/* All published orders with so many stages a rank, and a search on each of their placements. */
static ts_status search_per(search *self, int64_t per, double *bound)
{
    ts_schedule_options asked = self->options->size;
    bool placed[2] = { false, false };
    asked.stages_per_rank = per;
    if (!fits_costs(&self->options->costs, asked.ranks * per)) return TS_OK;
    for (int round = 0; round < 2; round++) { /* published ones first: a good start */
        for (int64_t i = 0; ts_schedule_name(i); i++) {
            ts_schedule *made;
            double here;
            if (!tsi_schedule_rule_has(i, per)) continue;
            TSI_TRY(ts_schedule_generate(ts_schedule_name(i), &asked, &made));
            bool on_v = made->stages > made->ranks &&
                        made->rank_of[made->ranks] == made->ranks - 1 && made->ranks > 1;
            if (round == 0) {
                TSI_TRY(offer(self, made));
                continue;
            }
            ts_status status = placed[on_v] ? TS_OK : search_placed(self, made, &here);
            if (!placed[on_v] && status == TS_OK) *bound = fmin(*bound, here);
            placed[on_v] = true;
            ts_schedule_destroy(made);
            TSI_TRY(status);
        }
    }
    return TS_OK;
}

static ts_status check_options(const ts_schedule_search_options *o)
{
    if (o->size.ranks < 1 || o->size.micro_batches < 1 || o->size.stages_per_rank < 0)
        return TSI_FAIL(TS_ERR_ARG,
                        "schedule search: %lld ranks with %lld stages each, %lld micro-batches",
                        (long long)o->size.ranks, (long long)o->size.stages_per_rank,
                        (long long)o->size.micro_batches);
    if (!(o->seconds >= 0) || !(o->memory_max >= 0))
        return TSI_FAIL(TS_ERR_ARG, "schedule search: %g seconds, a cap of %g", o->seconds,
                        o->memory_max);
    return TS_OK;
}

ts_status ts_schedule_search(const ts_schedule_search_options *options, ts_schedule **out,
                             double *bound)
{
    if (!options || !out) return TSI_FAIL(TS_ERR_NULL, "schedule: an argument is NULL");
    *out = NULL;
    TSI_TRY(check_options(options));
    double seconds = options->seconds > 0 ? options->seconds : 1, least = NEVER;
    search self = { .options = options,
                    .cells_left = (int64_t)fmin(seconds * 0.25 * CELLS_PER_SECOND, 1e15),
                    .deadline_ns = tsi_clock_ns() + (int64_t)fmin(seconds * 0.6e9, 1e18) };
    int64_t given = options->size.stages_per_rank, low = given ? given : 1;
    ts_status status = TS_OK;
    for (int64_t per = low; per <= (given ? given : 2) && status == TS_OK; per++)
        status = search_per(&self, per, &least);
    if (status == TS_OK && !self.best)
        status =
            TSI_FAIL(TS_ERR_ARG, "schedule search: no order was found that keeps the cap of %g",
                     options->memory_max);
    if (status != TS_OK) {
        ts_schedule_destroy(self.best);
        return status;
    }
    if (bound) *bound = least;
    *out = self.best;
    return TS_OK;
}
