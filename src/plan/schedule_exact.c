/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_exact.c - a shortest schedule of a small problem: states by how much is done, best first
 * kept.
 *
 * A state has how many forwards, input and weight gradients each stage has done, when each rank is
 * free, when each channel is, and when what nobody has used yet arrives. Of two states with the
 * same counts, one that is nowhere later makes the other one needless. States go on in layers of
 * equally many actions; one whose bound is not below the best known schedule is dropped. All orders
 * of all ranks are reached, so what remains is a shortest one. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/schedule_search.h"

enum { STATES_MAX = 400000, COUNTS_MAX = 200000 };

typedef struct exact {
    const tsi_problem *p;
    double most;
    int32_t width;    /* doubles of a state */
    double *time;     /* [state * width]: ranks, channels, arrivals */
    uint8_t *count;   /* [state * 3 * G] */
    int32_t *parent;  /* [state] */
    int32_t *action;  /* [state]: kind * G + stage */
    int32_t *next;    /* [state]: in its bucket of the layer; -1: the end */
    uint8_t *dropped; /* [state]: another one is nowhere later */
    int32_t *bucket;  /* [BUCKETS]: the first state; of the layer that is made */
    int32_t states, best;
    bool full; /* too many states */
} exact;

enum { BUCKETS = 1 << 16, FORWARD = 0, INPUT = 1, WEIGHT = 2 };

static uint8_t *counts_of(const exact *e, int32_t s)
{
    return e->count + (size_t)s * 3 * (size_t)e->p->G;
}

static double *times_of(const exact *e, int32_t s)
{
    return e->time + (size_t)s * (size_t)e->width;
}

/* Where arrivals stand: input of the k-th forward of stage g, of its k-th gradient. */
static double *arrival(const exact *e, double *time, int32_t way, int32_t g, int32_t k)
{
    const tsi_problem *p = e->p;
    return time + p->P + 2 * p->G + ((int64_t)way * p->G + g) * p->M + k;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static double kept_on(const exact *e, const uint8_t *count, int32_t rank)
{
    double kept = 0;
    for (int32_t g = 0; g < e->p->G; g++)
        if (e->p->rank_of[g] == rank)
            kept += e->p->cost[g].memory * (count[3 * g + FORWARD] - count[3 * g + WEIGHT]);
    return kept;
}

static bool possible(const exact *e, const uint8_t *count, int32_t kind, int32_t g)
{
    const tsi_problem *p = e->p;
    const uint8_t *c = count + 3 * g;
    if (c[kind] == p->M) return false;
    if (kind == WEIGHT) return c[WEIGHT] < c[INPUT];
    if (kind == INPUT)
        return c[INPUT] < c[FORWARD] && (g + 1 == p->G || c[INPUT] < count[3 * (g + 1) + INPUT]);
    if (g > 0 && c[FORWARD] >= count[3 * (g - 1) + FORWARD]) return false;
    return p->memory_max <= 0 ||
           kept_on(e, count, p->rank_of[g]) + p->cost[g].memory <= p->memory_max * (1 + 1e-12);
}

static void send(const exact *e, double *time, int32_t g, int32_t back, int32_t k, double end)
{
    int32_t way = e->p->way[2 * g + back];
    if (way >= 0) {
        double *channel = time + e->p->P + 2 * way + back;
        *channel = (end > *channel ? end : *channel) + e->p->cost[g].send;
        end = *channel;
    }
    *arrival(e, time, back, back ? g - 1 : g + 1, k) = end;
}

static void advance(const exact *e, uint8_t *count, double *time, int32_t kind, int32_t g)
{
    static const int32_t kinds[] = { TS_CELL_FORWARD, TS_CELL_INPUT, TS_CELL_WEIGHT };
    const tsi_problem *p = e->p;
    int32_t k = count[3 * g + kind]++;
    double *free_at = &time[p->rank_of[g]], at = *free_at;
    double *input = kind == FORWARD && g > 0        ? arrival(e, time, 0, g, k)
                    : kind == INPUT && g + 1 < p->G ? arrival(e, time, 1, g, k)
                                                    : NULL;
    if (input && *input > at) at = *input;
    if (input) *input = 0; /* used: it tells states apart no more */
    *free_at = at + tsi_cell_cost(&p->cost[g], kinds[kind]);
    if (kind == FORWARD && g + 1 < p->G) send(e, time, g, 0, k, *free_at);
    if (kind == INPUT && g > 0) send(e, time, g, 1, k, *free_at);
}

/* No way from here ends earlier: a rank does what is left of its work, and its last input gradient
 * has a way to go. */
static double bound_of(const exact *e, const uint8_t *count, const double *time)
{
    const tsi_problem *p = e->p;
    double bound = 0;
    for (int32_t r = 0; r < p->P; r++) {
        double all = time[r], chain = time[r], tail = 0;
        for (int32_t g = 0; g < p->G; g++) {
            if (p->rank_of[g] != r) continue;
            const uint8_t *c = count + 3 * g;
            double moves =
                (p->M - c[FORWARD]) * p->cost[g].forward + (p->M - c[INPUT]) * p->cost[g].input;
            all += moves + (p->M - c[WEIGHT]) * p->cost[g].weight;
            chain += moves;
            if (c[INPUT] < p->M && (tail == 0 || p->after[g] < tail)) tail = p->after[g];
        }
        bound = fmax(bound, fmax(all, tail > 0 ? chain + tail : 0));
    }
    return bound;
}

/* ---- layers ---------------------------------------------------------------------------------- */

static bool nowhere_later(const double *a, const double *b, int32_t width)
{
    for (int32_t i = 0; i < width; i++)
        if (a[i] > b[i] + 1e-12) return false;
    return true;
}

/* What came before its user is free might as well have come then. */
static void normalise(const exact *e, double *time)
{
    const tsi_problem *p = e->p;
    for (int32_t way = 0; way < 2; way++)
        for (int32_t g = 0; g < p->G; g++)
            for (int32_t k = 0; k < p->M; k++) {
                double *at = arrival(e, time, way, g, k);
                if (*at > 0 && *at < time[p->rank_of[g]]) *at = time[p->rank_of[g]];
            }
}

/* Keeps the last state, which is not counted yet, unless another one makes it needless. */
static void keep(exact *e)
{
    int32_t s = e->states;
    const uint8_t *count = counts_of(e, s);
    size_t bytes = 3 * (size_t)e->p->G;
    uint32_t at = (uint32_t)(tsi_hash_bytes(7, count, bytes) % BUCKETS);
    for (int32_t o = e->bucket[at]; o >= 0; o = e->next[o]) {
        if (e->dropped[o] || memcmp(counts_of(e, o), count, bytes) != 0) continue;
        if (nowhere_later(times_of(e, o), times_of(e, s), e->width)) return;
        if (nowhere_later(times_of(e, s), times_of(e, o), e->width)) e->dropped[o] = 1;
    }
    e->next[s] = e->bucket[at];
    e->bucket[at] = s;
    e->dropped[s] = 0;
    e->states++;
}

static void expand(exact *e, int32_t from, bool last)
{
    const tsi_problem *p = e->p;
    for (int32_t kind = 0; kind < 3; kind++) {
        for (int32_t g = 0; g < p->G; g++) {
            if (!possible(e, counts_of(e, from), kind, g)) continue;
            e->full = e->full || e->states + 1 >= STATES_MAX;
            if (e->full) return;
            int32_t s = e->states;
            memcpy(counts_of(e, s), counts_of(e, from), 3 * (size_t)p->G);
            memcpy(times_of(e, s), times_of(e, from), (size_t)e->width * sizeof(double));
            advance(e, counts_of(e, s), times_of(e, s), kind, g);
            normalise(e, times_of(e, s));
            double bound = bound_of(e, counts_of(e, s), times_of(e, s));
            if (bound >= e->most - 1e-9) continue;
            e->parent[s] = from;
            e->action[s] = kind * p->G + g;
            if (last) {
                e->most = bound;
                e->best = s;
                e->states++;
                continue;
            }
            keep(e);
        }
    }
}

static void run_layers(exact *e)
{
    int32_t first = 0, total = 3 * e->p->G * e->p->M;
    for (int32_t layer = 0; layer < total && !e->full; layer++) {
        int32_t end = e->states;
        memset(e->bucket, 0xff, BUCKETS * sizeof *e->bucket); /* -1 */
        for (int32_t s = first; s < end && !e->full; s++)
            if (!e->dropped[s]) expand(e, s, layer + 1 == total);
        first = end;
    }
}

/* ---- the result ------------------------------------------------------------------------------ */

static ts_status write_schedule(const exact *e, ts_schedule **out)
{
    static const int32_t kinds[] = { TS_CELL_FORWARD, TS_CELL_INPUT, TS_CELL_WEIGHT };
    const tsi_problem *p = e->p;
    int32_t total = 3 * p->G * p->M, *path = tsi_alloc_array((size_t)total, sizeof *path);
    ts_schedule *made = NULL;
    if (!path) return tsi_fail_memory("a search", (size_t)total * sizeof *path);
    for (int32_t s = e->best, i = total - 1; i >= 0; s = e->parent[s], i--)
        path[i] = e->action[s];
    ts_status status = tsi_schedule_create(p->P, p->G, p->M, &made);
    int32_t *count = tsi_calloc(3 * (size_t)p->G, sizeof *count);
    if (status == TS_OK && !count) status = tsi_fail_memory("a search", 0);
    for (int32_t i = 0; i < total && status == TS_OK; i++) {
        int32_t kind = path[i] / p->G, g = path[i] % p->G;
        ts_cell cell = tsi_cell_of(kinds[kind], g, count[path[i]]++);
        tsi_schedule_add(made, p->rank_of[g], &cell);
    }
    tsi_free(count);
    tsi_free(path);
    return made ? tsi_schedule_done(made, status, out) : status;
}

static ts_status open_exact(exact *e)
{
    const tsi_problem *p = e->p;
    size_t states = STATES_MAX;
    e->width = p->P + 2 * p->G + 2 * p->G * p->M;
    e->time = tsi_alloc_array(states, (size_t)e->width * sizeof *e->time);
    e->count = tsi_alloc_array(states, 3 * (size_t)p->G);
    e->parent = tsi_alloc_array(states, 3 * sizeof *e->parent);
    e->dropped = tsi_alloc_array(states, 1);
    e->bucket = tsi_alloc_array(BUCKETS, sizeof *e->bucket);
    if (!e->time || !e->count || !e->parent || !e->dropped || !e->bucket)
        return tsi_fail_memory("a search", states * (size_t)e->width * sizeof *e->time);
    e->action = e->parent + states;
    e->next = e->parent + 2 * states;
    memset(e->time, 0, (size_t)e->width * sizeof *e->time);
    memset(e->count, 0, 3 * (size_t)p->G);
    e->dropped[0] = 0;
    e->states = 1;
    e->best = -1;
    return TS_OK;
}

/* Ways to have done some of M forwards, of these some input gradients, of these some weights. */
static bool is_small(const tsi_problem *p)
{
    double ways = (p->M + 1.0) * (p->M + 2.0) * (p->M + 3.0) / 6, all = 1;
    for (int32_t g = 0; g < p->G && all <= COUNTS_MAX; g++)
        all *= ways;
    return all <= COUNTS_MAX && p->M < 250;
}

ts_status tsi_schedule_exact(const tsi_problem *problem, double most, ts_schedule **out)
{
    *out = NULL;
    exact e = { .p = problem, .most = most };
    if (!is_small(problem)) return TS_OK;
    ts_status status = open_exact(&e);
    if (status == TS_OK) run_layers(&e);
    if (status == TS_OK && e.best >= 0 && !e.full) status = write_schedule(&e, out);
    tsi_free(e.time);
    tsi_free(e.count);
    tsi_free(e.parent);
    tsi_free(e.dropped);
    tsi_free(e.bucket);
    return status;
}
