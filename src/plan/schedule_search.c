/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_search.c - the best order under costs and a cap on memory.
 *
 * INV: what comes out keeps the cap and is not longer than any published order that keeps it. The
 * bound holds for every order with the same stages on the same ranks. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/schedule.h"

typedef struct search {
    const ts_schedule_search_options *options;
    ts_schedule *best;
    double makespan;
} search;

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

static bool fits_costs(const ts_schedule_costs *costs, int64_t stages)
{
    return !costs->stage || costs->count == 1 || costs->count == stages;
}

static ts_status offer_published(search *self)
{
    const ts_schedule_options *size = &self->options->size;
    int64_t given = size->stages_per_rank;
    for (int64_t per = given ? given : 1; per <= (given ? given : 2); per++) {
        ts_schedule_options asked = *size;
        asked.stages_per_rank = per;
        for (int64_t i = 0; ts_schedule_name(i); i++) {
            ts_schedule *made;
            if (!tsi_schedule_rule_has(i, per)) continue;
            if (!fits_costs(&self->options->costs, size->ranks * per)) continue;
            TSI_TRY(ts_schedule_generate(ts_schedule_name(i), &asked, &made));
            TSI_TRY(offer(self, made));
        }
    }
    return TS_OK;
}

/* A rank must wait for its first forward, then do all its work; its last gradient then goes down to
 * stage 0. Nothing about other ranks' work is used, so it holds for every order. */
static ts_status bound_of(const ts_schedule *s, const ts_schedule_costs *costs, double *out)
{
    size_t stages = (size_t)s->stages;
    ts_stage_cost *cost = tsi_alloc_array(stages, sizeof *cost);
    double *begin = tsi_calloc((size_t)s->ranks * 2, sizeof *begin), *work = begin + s->ranks;
    ts_status status = cost && begin ? tsi_stage_costs(costs, s->stages, cost)
                                     : tsi_fail_memory("a search", stages * sizeof *cost);
    *out = 0;
    double chain = 0;
    for (int32_t g = 0; g < s->stages && status == TS_OK; g++) {
        int32_t r = s->rank_of[g];
        bool apart = g + 1 < s->stages && s->rank_of[g + 1] != r;
        if (work[r] == 0) begin[r] = chain;
        work[r] += s->micros * (cost[g].forward + cost[g].input + cost[g].weight);
        chain += cost[g].forward + (apart ? cost[g].send : 0);
    }
    for (int32_t r = 0; r < s->ranks && status == TS_OK; r++)
        if (begin[r] + work[r] > *out) *out = begin[r] + work[r];
    for (int32_t g = s->stages - 1; g >= 0 && status == TS_OK; g--)
        chain += cost[g].input + (g > 0 && s->rank_of[g - 1] != s->rank_of[g] ? cost[g].send : 0);
    if (status == TS_OK) chain += cost[0].weight;
    if (chain > *out) *out = chain;
    tsi_free(cost);
    tsi_free(begin);
    return status;
}

ts_status ts_schedule_search(const ts_schedule_search_options *options, ts_schedule **out,
                             double *bound)
{
    if (!options || !out) return TSI_FAIL(TS_ERR_NULL, "schedule: an argument is NULL");
    *out = NULL;
    search self = { .options = options };
    const ts_schedule_options *size = &options->size;
    if (size->ranks < 1 || size->micro_batches < 1 || size->stages_per_rank < 0)
        return TSI_FAIL(TS_ERR_ARG,
                        "schedule search: %lld ranks with %lld stages each, %lld micro-batches",
                        (long long)size->ranks, (long long)size->stages_per_rank,
                        (long long)size->micro_batches);
    ts_status status = offer_published(&self);
    if (status == TS_OK && !self.best)
        status = TSI_FAIL(TS_ERR_ARG, "schedule search: no order keeps the cap of %g",
                          options->memory_max);
    double least = 0;
    if (status == TS_OK) status = bound_of(self.best, &options->costs, &least);
    if (status != TS_OK) {
        ts_schedule_destroy(self.best);
        return status;
    }
    if (bound) *bound = least;
    *out = self.best;
    return TS_OK;
}
