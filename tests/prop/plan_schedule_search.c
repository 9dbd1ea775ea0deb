/* SPDX-License-Identifier: Apache-2.0 */
/* plan_schedule_search.c - searched schedules: never worse than a published one, near their bound,
 * within the cap and the time, and on small problems as short as any order there is.
 *
 * The exhaustive search here is its own: it appends any action that can come next to its rank's
 * list, in the order of their beginnings, so that each set of lists is met once, and cuts off what
 * cannot become shorter than the best.
 *
 * TEST_TABLES says how many tables, TEST_SHORTEST how many problems of each larger size. */
#include <math.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "harness/test.h"
#include "plan/schedule.h"

enum { STAGES_MAX = 64 };

typedef struct table {
    ts_schedule_search_options o;
    ts_stage_cost cost[STAGES_MAX];
} table;

static double number(test *t, double low, double high)
{
    return low + (high - low) * (double)test_random_below(t, 1000) / 1000;
}

static void draw(test *t, table *out, int64_t ranks, int64_t per, int64_t micros)
{
    double comm = test_random_below(t, 3) ? number(t, 0, 0.4) : 0;
    *out = (table){ .o = { .struct_size = sizeof out->o } };
    for (int64_t g = 0; g < ranks * per; g++)
        out->cost[g] =
            (ts_stage_cost){ number(t, 0.5, 2), number(t, 0.5, 2), number(t, 0.5, 2), comm, 1 };
    out->o.size = (ts_schedule_options){ .struct_size = sizeof out->o.size,
                                         .ranks = ranks,
                                         .stages_per_rank = per,
                                         .micro_batches = micros };
    out->o.costs = (ts_schedule_costs){ .struct_size = sizeof out->o.costs,
                                        .stage = out->cost,
                                        .count = ranks * per };
}

/* The shortest of the published orders that keep the cap; 0: none does. */
static double best_published(test *t, const table *c)
{
    double best = 0;
    for (int64_t i = 0; ts_schedule_name(i); i++) {
        ts_schedule *s = NULL;
        ts_schedule_times times = { .struct_size = sizeof times };
        if (!tsi_schedule_rule_has(i, c->o.size.stages_per_rank)) continue;
        TEST_OK(t, ts_schedule_generate(ts_schedule_name(i), &c->o.size, &s));
        TEST_OK(t, ts_schedule_simulate(s, &c->o.costs, &times, NULL, NULL, NULL));
        bool keeps = c->o.memory_max <= 0 || times.peak <= c->o.memory_max;
        if (keeps && (best == 0 || times.makespan < best)) best = times.makespan;
        ts_schedule_destroy(s);
    }
    return best;
}

static double search(test *t, const table *c, double *bound)
{
    ts_schedule *s = NULL;
    ts_schedule_times times = { .struct_size = sizeof times };
    ts_status status = ts_schedule_search(&c->o, &s, bound);
    TEST_SAY(t, status == TS_OK, "P=%lld V=%lld M=%lld cap %g: %s", (long long)c->o.size.ranks,
             (long long)c->o.size.stages_per_rank, (long long)c->o.size.micro_batches,
             c->o.memory_max, ts_last_error());
    if (status != TS_OK) return 0;
    TEST_OK(t, ts_schedule_check(s, &c->o.costs, c->o.memory_max));
    TEST_OK(t, ts_schedule_simulate(s, &c->o.costs, &times, NULL, NULL, NULL));
    ts_schedule_destroy(s);
    return times.makespan;
}

TS_TEST_LONG(searched_schedules_of_random_tables, 600)
{
    const char *wanted = getenv("TEST_TABLES");
    int64_t count = wanted ? strtoll(wanted, NULL, 10) : 40;
    double gaps = 0;
    for (int64_t i = 0; i < count; i++) {
        table c;
        double bound = 0;
        int64_t ranks = 2 + test_random_below(t, 7), per = 1 + test_random_below(t, 2);
        draw(t, &c, ranks, per, 1 + test_random_below(t, 4 * ranks));
        c.o.seconds = 0.5;
        if (test_random_below(t, 3) == 0)
            c.o.memory_max = (double)(per * (ranks + test_random_below(t, 2 * ranks)));
        double have = search(t, &c, &bound), published = best_published(t, &c);
        TEST_SAY(t, published == 0 || have <= published * (1 + 1e-12),
                 "P=%lld V=%lld M=%lld: %.9g, and a published one has %.9g", (long long)ranks,
                 (long long)per, (long long)c.o.size.micro_batches, have, published);
        TEST_SAY(t, bound <= have * (1 + 1e-9), "bound %.9g above %.9g", bound, have);
        gaps += have / bound - 1;
    }
    TEST_SAY(t, gaps / (double)count <= 0.05, "mean gap %.4f", gaps / (double)count);
}

/* ---- exhaustively ---------------------------------------------------------------------------- */

enum { G_MAX = 4, M_MAX = 3 };

typedef struct brute {
    const table *c;
    int P, G, M;
    int rank_of[G_MAX];
    int done[G_MAX][3];
    double ready[G_MAX][3][M_MAX]; /* when the k-th of a kind may begin, as far as others go */
    double free_at[G_MAX], channel[G_MAX][G_MAX][2];
    double left[G_MAX]; /* work of a rank */
    double best;
    int64_t visited;
} brute;

static double cost_of(const brute *b, int g, int kind)
{
    const ts_stage_cost *c = &b->c->cost[g];
    return kind == 0 ? c->forward : kind == 1 ? c->input : c->weight;
}

static bool can_follow(const brute *b, int g, int kind)
{
    int k = b->done[g][kind];
    if (k == b->M) return false;
    if (kind == 2) return k < b->done[g][1];
    if (kind == 1) return k < b->done[g][0] && (g + 1 == b->G || k < b->done[g + 1][1]);
    return g == 0 || k < b->done[g - 1][0];
}

static void deliver(brute *b, int from, int to, int kind, int k, double at)
{
    double *way = &b->channel[b->rank_of[from]][b->rank_of[to]][kind];
    if (b->rank_of[from] != b->rank_of[to]) {
        at = fmax(at, *way) + b->c->cost[from].send;
        *way = at;
    }
    b->ready[to][kind][k] = at;
}

/* What the last forward or input gradient that stage g still has to begin needs behind it, at
 * least: the way up, the way back, a weight gradient. */
static double way_from(const brute *b, int g, int kind)
{
    double way = 0;
    for (int s = g; kind == 0 && s < b->G; s++)
        way += cost_of(b, s, 0);
    for (int s = kind == 0 ? b->G - 1 : g; s >= 0; s--)
        way += cost_of(b, s, 1);
    return way + cost_of(b, 0, 2);
}

/* No end from here on is earlier, where nothing more begins before `now`. */
static bool is_hopeless(const brute *b, double now)
{
    for (int r = 0; r < b->P; r++)
        if (fmax(b->free_at[r], b->left[r] > 0 ? now : 0) + b->left[r] >= b->best - 1e-9)
            return true;
    for (int g = 0; g < b->G; g++)
        for (int kind = 0; kind < 2; kind++) {
            int rest = b->M - b->done[g][kind];
            double from = fmax(now, b->free_at[b->rank_of[g]]);
            double way = (rest - 1) * cost_of(b, g, kind) + way_from(b, g, kind);
            if (rest > 0 && from + way >= b->best - 1e-9) return true;
        }
    return false;
}

/* Beginnings do not go back; of two at one time, the lower rank's comes first. */
static void visit(brute *b, double last, double now, int at, int left)
{
    if (left == 0) {
        if (last < b->best) b->best = last;
        return;
    }
    b->visited++;
    if (is_hopeless(b, now)) return;
    for (int g = 0; g < b->G; g++) {
        for (int kind = 0; kind < 3; kind++) {
            if (!can_follow(b, g, kind)) continue;
            int r = b->rank_of[g], k = b->done[g][kind];
            double begin = fmax(b->free_at[r], b->ready[g][kind][k]);
            if (begin < now || (begin == now && r < at)) continue;
            brute before = *b;
            b->done[g][kind]++;
            double end = begin + cost_of(b, g, kind);
            b->free_at[r] = end;
            b->left[r] -= cost_of(b, g, kind);
            if (kind == 0 && g + 1 < b->G) deliver(b, g, g + 1, 0, k, end);
            if (kind == 1 && g > 0) deliver(b, g, g - 1, 1, k, end);
            visit(b, fmax(last, end), begin, r, left - 1);
            before.best = b->best;
            before.visited = b->visited;
            *b = before;
        }
    }
}

/* The shortest below `most`, or `most`, with the stages on a loop or on a V. */
static double exhaustive(const table *c, bool on_v, double most)
{
    brute b = { .c = c,
                .P = (int)c->o.size.ranks,
                .G = (int)(c->o.size.ranks * c->o.size.stages_per_rank),
                .M = (int)c->o.size.micro_batches,
                .best = most };
    for (int g = 0; g < b.G; g++) {
        b.rank_of[g] = g < b.P || !on_v ? g % b.P : 2 * b.P - 1 - g;
        for (int kind = 0; kind < 3; kind++)
            b.left[b.rank_of[g]] += b.M * cost_of(&b, g, kind);
    }
    visit(&b, 0, 0, 0, 3 * b.G * b.M);
    if (getenv("TEST_TALKS")) fprintf(stderr, "  %lld states\n", (long long)b.visited);
    return b.best;
}

static void compare_exhaustively(test *t, int64_t ranks, int64_t per, int64_t micros)
{
    table c;
    double bound;
    draw(t, &c, ranks, per, micros);
    double have = search(t, &c, &bound), want = exhaustive(&c, false, have * (1 + 1e-12) + 1e-8);
    if (per == 2) want = fmin(want, exhaustive(&c, true, want));
    TEST_SAY(t, have <= want * (1 + 1e-9) + 1e-8,
             "P=%lld V=%lld M=%lld: %.9g, the shortest is %.9g", (long long)ranks, (long long)per,
             (long long)micros, have, want);
}

TS_TEST_LONG(searched_schedules_are_shortest, 300)
{
    for (int i = 0; i < 12; i++)
        for (int64_t micros = 1; micros <= 2; micros++) {
            compare_exhaustively(t, 2, 1, micros + 1);
            compare_exhaustively(t, 3, 1, micros);
            compare_exhaustively(t, 2, 2, 1);
        }
    const char *wanted = getenv("TEST_SHORTEST");
    int64_t count = wanted ? strtoll(wanted, NULL, 10) : 1;
    for (int64_t i = 0; i < count; i++) {
        compare_exhaustively(t, 2, 2, 2);
        compare_exhaustively(t, 3, 1, 3);
        compare_exhaustively(t, 2, 2, 3);
    }
}

/* ---- time and bubbles ------------------------------------------------------------------------ */

/* Seconds within which a search has ended that was given 1 or less: without an end it would take
 * hours, and a machine may have other work. */
enum { ENDS = 30 };

TS_TEST(searched_schedules_end_in_time)
{
    table c;
    double bound;
    draw(t, &c, 8, 1, 32);
    int64_t begin = tsi_clock_ns();
    TEST_CHECK(t, search(t, &c, &bound) > 0);
    double seconds = (double)(tsi_clock_ns() - begin) * 1e-9;
    TEST_SAY(t, seconds < ENDS, "%.2f s", seconds);
    c.o.seconds = 0.05;
    begin = tsi_clock_ns();
    TEST_CHECK(t, search(t, &c, &bound) > 0);
    seconds = (double)(tsi_clock_ns() - begin) * 1e-9;
    TEST_SAY(t, seconds < ENDS, "%.2f s", seconds);
}

TS_TEST(searched_bubble_of_equal_costs)
{
    for (int64_t ranks = 2; ranks <= 8; ranks += 2) {
        table c;
        double bound = 0;
        draw(t, &c, ranks, 2, 2 * ranks);
        for (int64_t g = 0; g < 2 * ranks; g++)
            c.cost[g] = (ts_stage_cost){ 1, 1, 1, 0, 1 };
        double have = search(t, &c, &bound), zbv = (double)(6 * 2 * ranks + ranks - 1);
        TEST_SAY(t, have <= zbv + 1e-9, "%lld ranks: %g, zero-bubble V has %g", (long long)ranks,
                 have, zbv);
    }
}

TS_TEST(search_refuses)
{
    table c;
    double bound;
    ts_schedule *s = NULL;
    draw(t, &c, 4, 1, 8);
    c.o.memory_max = 0.5;
    TEST_STATUS(t, ts_schedule_search(&c.o, &s, &bound), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "no order was found that keeps the cap of 0.5");
    c.o.memory_max = 0;
    c.cost[2].forward = -1;
    TEST_STATUS(t, ts_schedule_search(&c.o, &s, &bound), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "a cost of stage 2 is -1");
}
