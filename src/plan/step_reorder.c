/* SPDX-License-Identifier: Apache-2.0 */
/* step_reorder.c - passes tried one after another, each kept only if it helps. See step_reorder.h.
 *
 * Greedy: every pass is made on all ranks, proved, timed; what is slower than before, or needs more
 * memory than is allowed, is taken back. Then a local search: one action of one kind moves to
 * another place on every rank that has it, by the same rule and the same random numbers everywhere,
 * and stays there if the simulated makespan falls.
 *
 * INV: the step that is kept passes the check, is at most as slow as the one that was given, and
 * holds at most the cap. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/program.h"
#include "plan/step_reorder.h"
#include "plan/step_wide.h"

typedef struct state {
    tsi_step *best; /* owned */
    tsi_program_cost cost;
    ts_program_times times; /* of the best */
    double *us, *end;       /* of its actions, by number: how long, and when it ends; owned */
    int64_t *first;         /* [rank]; owned */
    int64_t cap, bucket_bytes, tries;
    uint64_t random;
    ts_reorder_fn tell;
    void *context;
} state;

/* To be given another order. */
static ts_status copy_step(const tsi_step *step, tsi_step **out)
{
    TSI_TRY(tsi_step_narrow(step, NULL, out));
    for (int32_t r = 0; r < (*out)->list_count; r++) {
        (*out)->list[r].alike = step->list[r].alike;
        (*out)->list[r].first = step->list[r].first;
        (*out)->list[r].peak = 0; /* it was another order's */
    }
    (*out)->narrowed = step->narrowed;
    for (int32_t g = 0; g < (*out)->group_count; g++) { /* a copy joins them in order of use */
        tsi_step_group *own = &(*out)->group[g];
        int32_t known = tsi_step_find_group(step, own->name);
        TSI_ASSERT(known >= 0);
        const tsi_step_group *of = &step->group[known];
        own->size = of->size;
        own->low = of->low;
        own->high = of->high;
    }
    return TS_OK;
}

static void release_times(state *s)
{
    tsi_free(s->us);
    tsi_free(s->end);
    tsi_free(s->first);
    s->us = s->end = NULL;
    s->first = NULL;
}

/* Times of a step; with `keep`, of its actions too. */
static ts_status time_step(state *s, const tsi_step *step, ts_program_times *out, bool keep)
{
    tsi_step_times times;
    *out = (ts_program_times){ .struct_size = sizeof *out };
    TSI_TRY(tsi_step_simulate(step, &s->cost.cost, &times));
    tsi_program_times_of(step, &times, 0, out);
    ts_status status = TS_OK;
    if (keep) {
        int64_t count = times.first[step->rank_count];
        release_times(s);
        s->us = tsi_alloc_array((size_t)count + 1, sizeof *s->us);
        s->end = tsi_alloc_array((size_t)count + 1, sizeof *s->end);
        s->first = tsi_alloc_array((size_t)step->rank_count + 1, sizeof *s->first);
        if (!s->us || !s->end || !s->first)
            status = tsi_fail_memory("times of actions", (size_t)count * 16);
        for (int64_t i = 0; status == TS_OK && i < count; i++) {
            s->us[i] = times.end_us[i] - times.start_us[i];
            s->end[i] = times.end_us[i];
        }
        if (status == TS_OK)
            memcpy(s->first, times.first, ((size_t)step->rank_count + 1) * sizeof *s->first);
    }
    tsi_step_times_release(&times);
    return status;
}

/* Is the new one legal, no slower and small enough? *why says what speaks against it. */
static ts_status judge(state *s, const tsi_step *step, ts_program_times *times, const char **why)
{
    tsi_findings found = { 0 };
    tsi_step_rules rules = { .buffered = s->cost.cost.buffered, .memory_bytes_max = s->cap };
    *times = s->times;
    *why = NULL;
    TSI_TRY(tsi_step_check(step, &rules, &found));
    if (found.total > found.by[TSI_FINDING_MEMORY])
        *why = "taken back: an order that another rank keeps would be broken";
    else if (found.total > 0)
        *why = "taken back: it needs more memory than is allowed";
    tsi_findings_release(&found);
    if (*why) return TS_OK;
    TSI_TRY(time_step(s, step, times, false));
    if (times->makespan_us > s->times.makespan_us) *why = "taken back: the step would take longer";
    return TS_OK;
}

static ts_status take(state *s, tsi_step *step, const ts_program_times *times)
{
    tsi_step_destroy(s->best);
    s->best = step;
    s->times = *times;
    ts_program_times same;
    return time_step(s, step, &same, true);
}

/* ---- passes ---------------------------------------------------------------------------------- */

typedef struct pass {
    uint32_t bit;
    const char *name, *why;
    ts_status (*run)(const tsi_pass_job *job, int64_t *moves);
} pass;

/* Gathers first: who waits for them tells which operations they may pass. */
static const pass passes[] = {
    { TS_PASS_PREFETCH, "prefetch", "gathers begin a module ahead", tsi_pass_prefetch },
    { TS_PASS_HOIST, "hoist", "operations begin as soon as what they need is there",
      tsi_pass_hoist },
    { TS_PASS_SINK, "sink", "waits come when their results are needed", tsi_pass_sink },
    { TS_PASS_DEFER, "defer", "rounds of sums begin when those before are over, others pass them",
      NULL },
    { TS_PASS_BUCKET, "bucket", "small operations of a group go as one: a latency less each",
      NULL },
    { TS_PASS_FILL, "fill", "what is ready fills the time before waits", tsi_pass_fill },
    { TS_PASS_SCHEDULE, "schedule", "the longest way to the end goes first", tsi_pass_schedule },
};

static void report(const state *s, const pass *p, int64_t moves, const ts_program_times *before,
                   const char *refused)
{
    ts_reorder_report r = { .pass = p->name,
                            .moves = moves,
                            .makespan_before_us = before->makespan_us,
                            .makespan_after_us = s->times.makespan_us,
                            .exposed_before_us = before->exposed_us,
                            .exposed_after_us = s->times.exposed_us,
                            .peak_before = before->peak_bytes,
                            .peak_after = s->times.peak_bytes,
                            .kept = refused == NULL && moves > 0,
                            .why = refused ? refused
                                   : moves == 0
                                       ? "nothing to move: every order that it wants is kept"
                                       : p->why };
    if (s->tell) s->tell(&r, s->context);
}

static ts_status run_pass(state *s, const pass *p)
{
    tsi_step *next = NULL;
    ts_program_times before = s->times, times;
    const char *refused = NULL;
    int64_t moves = 0;
    ts_status status = copy_step(s->best, &next);
    if (status == TS_OK && p->bit == TS_PASS_BUCKET)
        status = tsi_pass_bucket(next, s->bucket_bytes, &moves);
    if (status == TS_OK && p->bit == TS_PASS_DEFER)
        status = tsi_pass_defer(next, s->us, s->first, &moves);
    for (int64_t r = 0; status == TS_OK && p->run && r < next->list_count; r++) {
        tsi_pass_job job = { next, r, s->us + s->first[r], s->cap };
        status = p->run(&job, &moves);
    }
    if (status == TS_OK && moves > 0) status = judge(s, next, &times, &refused);
    bool kept = status == TS_OK && moves > 0 && !refused;
    if (kept)
        status = take(s, next, &times);
    else
        tsi_step_destroy(next);
    if (status == TS_OK) report(s, p, moves, &before, refused);
    return status;
}

static ts_status run_passes(state *s, uint32_t wanted)
{
    for (size_t i = 0; i < TSI_COUNT_OF(passes); i++)
        if (wanted & passes[i].bit) TSI_TRY(run_pass(s, &passes[i]));
    return TS_OK;
}

/* ---- parts ----------------------------------------------------------------------------------- */

static const double least_gain = 1e-9; /* relative: less is rounding, and would go to and fro */

static bool is_faster(const ts_program_times *a, const ts_program_times *b)
{
    return a->makespan_us < b->makespan_us * (1 - least_gain);
}

enum { LOOKED_AT = 2000000 }; /* actions, by a pass that tries: larger steps are tried less often */

static int64_t tries_of(const state *s)
{
    int64_t most = LOOKED_AT / (tsi_step_action_count(s->best) + 1);
    return s->tries < most ? s->tries : most;
}

/* In as many parts as are fastest; *cut: it stays whole, or in how many lists it is cut. */
static ts_status split_one(state *s, const tsi_whole *op, int64_t *cut)
{
    tsi_step *best = NULL;
    ts_program_times least = s->times, times;
    ts_status status = TS_OK;
    *cut = 0;
    for (int32_t parts = 2; parts <= 8 && status == TS_OK; parts *= 2) {
        tsi_step *next = NULL;
        const char *refused = NULL;
        int64_t lists = 0;
        status = copy_step(s->best, &next);
        const tsi_split_job job = { next, &s->cost.cost, s->first, s->us, s->end, parts };
        if (status == TS_OK) status = tsi_pass_split(&job, op, &lists);
        if (status == TS_OK && lists > 0) status = judge(s, next, &times, &refused);
        bool better = status == TS_OK && lists > 0 && !refused && is_faster(&times, &least);
        tsi_step_destroy(better ? best : next);
        if (!better) continue;
        best = next;
        least = times;
        *cut = lists;
    }
    if (status == TS_OK && best) return take(s, best, &least);
    tsi_step_destroy(best);
    return status;
}

typedef struct tried {
    int64_t cut, slower, alone, unwaited, untried;
} tried;

/* What became of the operations that could be large. */
static void report_split(const state *s, const tried *sum, const ts_program_times *before)
{
    char why[240];
    (void)snprintf(why, sizeof why,
                   "%lld go in parts, and others pass between; whole are %lld that nothing would "
                   "pass, %lld that would not be faster, %lld that nobody waits for by name, %lld "
                   "that were not tried",
                   (long long)sum->cut, (long long)sum->alone, (long long)sum->slower,
                   (long long)sum->unwaited, (long long)sum->untried);
    const pass p = { TS_PASS_SPLIT, "split", why, NULL };
    report(s, &p, sum->cut, before, sum->cut > 0 ? NULL : why);
}

/* One after another, the longest first. */
static ts_status split(state *s)
{
    ts_program_times before = s->times;
    tsi_wholes wholes;
    tried sum = { 0 };
    int64_t left = tries_of(s);
    ts_status status = tsi_wholes_find(s->best, s->us, s->first, &wholes);
    for (int64_t i = 0; i < wholes.count && status == TS_OK; i++) {
        const tsi_whole *op = &wholes.op[i];
        int64_t cut = 0;
        bool can = op->state == TSI_WHOLE_CUTTABLE;
        sum.alone += op->state == TSI_WHOLE_ALONE;
        sum.unwaited += op->state == TSI_WHOLE_UNWAITED;
        sum.untried += can && left <= 0;
        if (!can || left <= 0) continue;
        left -= 3;
        status = split_one(s, op, &cut);
        sum.cut += cut > 0;
        sum.slower += cut == 0;
    }
    tsi_wholes_release(&wholes);
    if (status == TS_OK) report_split(s, &sum, &before);
    return status;
}

/* ---- search ---------------------------------------------------------------------------------- */

static uint64_t draw(state *s, uint64_t below)
{
    s->random = tsi_hash_mix(s->random, 0x9e3779b97f4a7c15u);
    return below > 0 ? s->random % below : 0;
}

/* Moves action `from` to `to`, as far as its ties let it. */
static ts_status shift(tsi_step_list *list, int32_t from, int32_t to, int64_t *moves)
{
    tsi_ties ties;
    TSI_TRY(tsi_ties_make(list, &ties));
    int32_t low = -1, high = list->action_count;
    for (int32_t t = ties.first[from]; t < ties.first[from + 1]; t++)
        if (ties.before[t] > low) low = ties.before[t];
    for (int32_t i = from + 1; i < list->action_count && high == list->action_count; i++)
        for (int32_t t = ties.first[i]; t < ties.first[i + 1]; t++)
            if (ties.before[t] == from) high = i;
    tsi_ties_release(&ties);
    if (to <= low) to = low + 1;
    if (to >= high) to = high - 1;
    if (to == from) return TS_OK;
    tsi_action moved = list->action[from];
    if (to < from)
        memmove(&list->action[to + 1], &list->action[to], (size_t)(from - to) * sizeof moved);
    else
        memmove(&list->action[from], &list->action[from + 1], (size_t)(to - from) * sizeof moved);
    list->action[to] = moved;
    ++*moves;
    return TS_OK;
}

/* The same move on every rank: lists are mostly alike, and the check refuses what does not fit. */
static ts_status try_move(state *s, bool *helped)
{
    tsi_step *next = NULL;
    int64_t moves = 0;
    ts_program_times times;
    const char *refused = NULL;
    *helped = false;
    TSI_TRY(copy_step(s->best, &next));
    uint64_t place = draw(s, 1u << 30), far = draw(s, 1u << 30);
    bool all = draw(s, 2) == 0;
    int32_t only = (int32_t)draw(s, (uint64_t)next->list_count);
    ts_status status = TS_OK;
    for (int32_t r = 0; status == TS_OK && r < next->list_count; r++) {
        int32_t count = next->list[r].action_count;
        if (count < 2 || (!all && r != only)) continue;
        status = shift(&next->list[r], (int32_t)(place % (uint64_t)count),
                       (int32_t)(far % (uint64_t)count), &moves);
    }
    if (status == TS_OK && moves > 0) status = judge(s, next, &times, &refused);
    *helped = status == TS_OK && moves > 0 && !refused && is_faster(&times, &s->times);
    if (*helped) return take(s, next, &times);
    tsi_step_destroy(next);
    return status;
}

static ts_status search(state *s)
{
    static const pass p = { TS_PASS_SEARCH, "search", "single moves that made it shorter", NULL };
    ts_program_times before = s->times;
    int64_t moves = 0, tries = tries_of(s);
    for (int64_t i = 0; i < tries; i++) {
        bool helped;
        TSI_TRY(try_move(s, &helped));
        moves += helped;
    }
    report(s, &p, moves, &before, NULL);
    return TS_OK;
}

/* ---- the call -------------------------------------------------------------------------------- */

static int64_t most_held(const tsi_step *step)
{
    int64_t most = 0;
    for (int32_t r = 0; r < step->list_count; r++) {
        tsi_step_peak peak;
        tsi_step_memory_of(step, r, &peak, NULL);
        if (peak.bytes > most) most = peak.bytes;
    }
    return most;
}

static ts_status reorder(state *s, uint32_t wanted)
{
    tsi_step_rules rules = { .buffered = s->cost.cost.buffered };
    TSI_TRY(tsi_step_prove(s->best, &rules));
    if (s->cap == 0) s->cap = most_held(s->best);
    if (s->cap < most_held(s->best))
        return TSI_FAIL(TS_ERR_ARG, "reorder: the program holds %lld bytes, the cap is %lld",
                        (long long)most_held(s->best), (long long)s->cap);
    TSI_TRY(time_step(s, s->best, &s->times, true));
    if (wanted & TS_PASS_SPLIT) TSI_TRY(split(s)); /* while waits stand close: see steps.md */
    TSI_TRY(run_passes(s, wanted));
    if (wanted & TS_PASS_SEARCH) TSI_TRY(search(s));
    /* Once more: these put waits where they are over by the simulation, and what runs is late at
     * times. */
    bool timed = wanted & (TS_PASS_FILL | TS_PASS_SCHEDULE | TS_PASS_SEARCH);
    return timed ? run_passes(s, wanted & TS_PASS_SINK) : TS_OK;
}

/* Nothing is won by buckets of more bytes than make up for the latency. */
static int64_t bucket_of(const tsi_program_cost *cost, int64_t ranks)
{
    if (!cost->cost.of || ranks < 2) return 1 << 20;
    return (int64_t)tsi_collective_floor(cost->machine, TSI_COLLECTIVE_GATHER, ranks, TSI_NCCL_NODE,
                                         0.9);
}

ts_status ts_program_reorder(const ts_program *program, const ts_reorder_options *options,
                             ts_reorder_fn tell, void *context, ts_program **out)
{
    if (!program || !out) return TSI_FAIL(TS_ERR_NULL, "reorder: an argument is NULL");
    ts_reorder_options given = { .struct_size = sizeof given };
    if (options)
        memcpy(&given, options,
               options->struct_size < sizeof given ? options->struct_size : sizeof given);
    if (given.costs.struct_size == 0) given.costs.struct_size = sizeof given.costs;
    if (given.passes & ~(uint32_t)TS_PASS_ALL)
        return TSI_FAIL(TS_ERR_ARG, "reorder: passes 0x%x; TS_PASS_* make up 0x%x", given.passes,
                        (unsigned)TS_PASS_ALL);
    state s = { .cap = given.memory_bytes_max,
                .tries = given.tries > 0 ? given.tries : 2000,
                .random = given.seed + 1,
                .tell = tell,
                .context = context };
    *out = NULL;
    ts_status status = tsi_program_cost_of(&given.costs, program->step->rank_count, &s.cost);
    s.bucket_bytes =
        given.bucket_bytes > 0 ? given.bucket_bytes : bucket_of(&s.cost, program->step->rank_count);
    if (status == TS_OK) status = tsi_step_narrow(program->step, NULL, &s.best);
    if (status == TS_OK) status = reorder(&s, given.passes ? given.passes : TS_PASS_ALL);
    release_times(&s);
    if (status == TS_OK) return tsi_program_make(s.best, out);
    tsi_step_destroy(s.best);
    return status;
}
