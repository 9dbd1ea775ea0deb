/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_greedy.c - orders by list scheduling: whoever is free first chooses next.
 *
 * Times are those of schedule_time.c: an action begins when its rank is free and its input is
 * there; a message leaves behind those before it on its way. A rank prefers input gradients, then
 * forwards while its cap allows, then weight gradients; the policy varies that. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/schedule_search.h"

typedef struct choice {
    int32_t kind, stage; /* stage -1: nothing */
    double at;
} choice;

struct tsi_greedy {
    const tsi_problem *p;
    choice *next;           /* [rank]: what it would do now */
    int32_t *done[3];       /* forwards, input gradients, weight gradients; [stage] */
    double *arrives[2];     /* [stage * M + k]: input of the k-th forward, of the k-th gradient */
    double *free_at, *kept; /* [rank] */
    double *channel;        /* [2 * stage] */
    ts_cell *cell;          /* in the order of the choices */
    int32_t *cell_rank;
    int64_t cell_count, cell_total;
    int32_t *stages, *stage_first; /* of a rank */
    tsi_arena memory;
};

enum { FORWARD, INPUT, WEIGHT };
#define NEVER 1e300 /* a time that is not known yet */

static ts_status open_greedy(tsi_greedy *s)
{
    size_t G = (size_t)s->p->G, P = (size_t)s->p->P, slots = G * (size_t)s->p->M;
    tsi_arena *m = &s->memory;
    s->cell_total = (int64_t)(3 * slots);
    for (int k = 0; k < 3; k++)
        s->done[k] = tsi_arena_calloc(m, G, sizeof *s->done[k]);
    for (int k = 0; k < 2; k++)
        s->arrives[k] = tsi_arena_calloc(m, slots, sizeof *s->arrives[k]);
    s->free_at = tsi_arena_calloc(m, 2 * P, sizeof *s->free_at);
    s->channel = tsi_arena_calloc(m, 2 * G, sizeof *s->channel);
    s->next = tsi_arena_calloc(m, P, sizeof *s->next);
    s->cell = tsi_arena_calloc(m, 3 * slots, sizeof *s->cell);
    s->cell_rank = tsi_arena_calloc(m, 3 * slots, sizeof *s->cell_rank);
    s->stages = tsi_arena_calloc(m, G, sizeof *s->stages);
    s->stage_first = tsi_arena_calloc(m, P + 2, sizeof *s->stage_first);
    if (!s->done[0] || !s->done[1] || !s->done[2] || !s->arrives[0] || !s->arrives[1] ||
        !s->free_at || !s->channel || !s->next || !s->cell || !s->cell_rank || !s->stages ||
        !s->stage_first)
        return tsi_fail_memory("a search", 3 * slots * sizeof *s->cell);
    s->kept = s->free_at + P;
    int32_t next = 0;
    for (int32_t r = 0; r < s->p->P; r++) {
        s->stage_first[r] = next;
        for (int32_t g = 0; g < s->p->G; g++)
            if (s->p->rank_of[g] == r) s->stages[next++] = g;
    }
    s->stage_first[s->p->P] = next;
    return TS_OK;
}

ts_status tsi_greedy_open(const tsi_problem *problem, tsi_greedy **out)
{
    tsi_greedy *s = tsi_calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return tsi_fail_memory("a search", sizeof *s);
    s->p = problem;
    ts_status status = open_greedy(s);
    if (status == TS_OK) *out = s;
    if (status != TS_OK) tsi_greedy_close(s);
    return status;
}

void tsi_greedy_close(tsi_greedy *s)
{
    if (!s) return;
    tsi_arena_release(&s->memory);
    tsi_free(s);
}

/* ---- choosing -------------------------------------------------------------------------------- */

static bool may_forward(const tsi_greedy *s, const tsi_policy *policy, int32_t rank, int32_t i)
{
    const tsi_problem *p = s->p;
    int32_t g = s->stages[i];
    if (s->done[FORWARD][g] == p->M) return false;
    double needs = 0; /* with room left for the rank's deeper stages, or nothing would go on */
    for (int32_t k = i; k < s->stage_first[rank + 1]; k++)
        if (k == i || s->done[FORWARD][s->stages[k]] < p->M) needs += p->cost[s->stages[k]].memory;
    return s->kept[rank] + needs <= policy->cap[rank] * (1 + 1e-12);
}

/* When the next of a kind on a stage can begin; infinite: not known yet, or not at all. */
static double ready_at(const tsi_greedy *s, int32_t kind, int32_t g)
{
    const tsi_problem *p = s->p;
    int32_t k = s->done[kind][g];
    if (k == p->M) return NEVER;
    if (kind == WEIGHT) return k < s->done[INPUT][g] ? 0 : NEVER;
    if (kind == FORWARD) {
        if (g == 0) return 0;
        return k < s->done[FORWARD][g - 1] ? s->arrives[FORWARD][(int64_t)g * p->M + k] : NEVER;
    }
    if (k >= s->done[FORWARD][g]) return NEVER;
    if (g + 1 == p->G) return 0;
    return k < s->done[INPUT][g + 1] ? s->arrives[INPUT][(int64_t)g * p->M + k] : NEVER;
}

static void consider(choice *best, int32_t kind, int32_t stage, double at, bool later_stage_wins)
{
    bool better =
        best->stage < 0 || at < best->at - 1e-12 || (at <= best->at + 1e-12 && later_stage_wins);
    if (better && at < NEVER) *best = (choice){ kind, stage, at };
}

/* The best of a kind on a rank's stages: what is ready now counts as ready alike. */
static choice best_of(const tsi_greedy *s, const tsi_policy *policy, int32_t rank, int32_t kind)
{
    choice best = { kind, -1, NEVER };
    for (int32_t i = s->stage_first[rank]; i < s->stage_first[rank + 1]; i++) {
        int32_t g = s->stages[i];
        if (kind == FORWARD && !may_forward(s, policy, rank, i)) continue;
        double at = ready_at(s, kind, g);
        if (at < s->free_at[rank]) at = s->free_at[rank];
        consider(&best, kind, g, at, kind == FORWARD ? policy->deeper_first : false);
    }
    return best;
}

/* Waiting for what is known to come may be better than a weight gradient now. */
static choice choose(const tsi_greedy *s, const tsi_policy *policy, int32_t rank)
{
    double now = s->free_at[rank];
    choice input = best_of(s, policy, rank, INPUT), forward = best_of(s, policy, rank, FORWARD);
    choice weight = best_of(s, policy, rank, WEIGHT);
    choice first = policy->forward_first ? forward : input;
    choice second = policy->forward_first ? input : forward;
    if (first.stage >= 0 && first.at <= now) return first;
    if (second.stage >= 0 && second.at <= now) return second;
    choice soon = first.stage >= 0 && (second.stage < 0 || first.at <= second.at) ? first : second;
    if (weight.stage < 0) return soon;
    double takes = s->p->cost[weight.stage].weight;
    if (soon.stage >= 0 && soon.at - now < policy->patience * takes) return soon;
    return weight;
}

/* ---- running --------------------------------------------------------------------------------- */

static double leave(tsi_greedy *s, int32_t stage, int32_t back, double at)
{
    int32_t way = s->p->way[2 * stage + back];
    if (way < 0) return at;
    double *free_at = &s->channel[2 * way + back];
    *free_at = (at > *free_at ? at : *free_at) + s->p->cost[stage].send;
    return *free_at;
}

static void act(tsi_greedy *s, int32_t rank, const choice *c)
{
    static const int32_t kinds[] = { TS_CELL_FORWARD, TS_CELL_INPUT, TS_CELL_WEIGHT };
    const tsi_problem *p = s->p;
    int32_t g = c->stage, k = s->done[c->kind][g]++;
    double end = c->at + tsi_cell_cost(&p->cost[g], kinds[c->kind]);
    if (c->kind == FORWARD) s->kept[rank] += p->cost[g].memory;
    if (c->kind == WEIGHT) s->kept[rank] -= p->cost[g].memory;
    if (c->kind == FORWARD && g + 1 < p->G)
        s->arrives[FORWARD][(int64_t)(g + 1) * p->M + k] = leave(s, g, 0, end);
    if (c->kind == INPUT && g > 0)
        s->arrives[INPUT][(int64_t)(g - 1) * p->M + k] = leave(s, g, 1, end);
    s->free_at[rank] = end;
    s->cell_rank[s->cell_count] = rank;
    s->cell[s->cell_count++] = tsi_cell_of(kinds[c->kind], g, k);
}

static void reset(tsi_greedy *s)
{
    size_t G = (size_t)s->p->G, P = (size_t)s->p->P;
    for (int k = 0; k < 3; k++)
        memset(s->done[k], 0, G * sizeof *s->done[k]);
    memset(s->free_at, 0, 2 * P * sizeof *s->free_at);
    memset(s->channel, 0, 2 * G * sizeof *s->channel);
    s->cell_count = 0;
}

/* The rank whose choice can begin first; -1: nobody can do anything. */
static int32_t first_rank(const tsi_greedy *s)
{
    int32_t best = -1;
    for (int32_t r = 0; r < s->p->P; r++)
        if (s->next[r].stage >= 0 && (best < 0 || s->next[r].at < s->next[best].at)) best = r;
    return best;
}

/* After an action only its rank and those that get something from it may choose otherwise. */
static void choose_again(tsi_greedy *s, const tsi_policy *policy, int32_t rank, int32_t stage)
{
    const tsi_problem *p = s->p;
    s->next[rank] = choose(s, policy, rank);
    for (int32_t g = stage - 1; g <= stage + 1; g += 2)
        if (g >= 0 && g < p->G && p->rank_of[g] != rank)
            s->next[p->rank_of[g]] = choose(s, policy, p->rank_of[g]);
}

double tsi_greedy_run(tsi_greedy *s, const tsi_policy *policy, double most)
{
    double last = 0;
    reset(s);
    for (int32_t r = 0; r < s->p->P; r++)
        s->next[r] = choose(s, policy, r);
    while (s->cell_count < s->cell_total) {
        int32_t rank = first_rank(s);
        if (rank < 0) return -1;
        choice c = s->next[rank];
        act(s, rank, &c);
        if (s->free_at[rank] > last) last = s->free_at[rank];
        if (last >= most) return -1;
        choose_again(s, policy, rank, c.stage);
    }
    return last;
}

ts_status tsi_greedy_schedule(const tsi_greedy *s, ts_schedule **out)
{
    ts_schedule *made;
    TSI_TRY(tsi_schedule_create(s->p->P, s->p->G, s->p->M, &made));
    for (int64_t i = 0; i < s->cell_count; i++)
        tsi_schedule_add(made, s->cell_rank[i], &s->cell[i]);
    return tsi_schedule_done(made, TS_OK, out);
}
