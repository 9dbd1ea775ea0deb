/* SPDX-License-Identifier: Apache-2.0 */
/* runtime_parts.c - recorded steps whose program has operations in parts: they go in parts, at
 * random places, with the bits of the wholes; whole again where a rank cannot or refuses, and after
 * a recovery. What a part is: tests/unit/comm_cut.c. */
#include "dist/reorder_machine.h"

/* Cuts an operation that a machine draws, at places that it draws. Returns in how many lists. */
static int64_t cut_one(test *t, tsi_step *step, machine *m)
{
    size_t count = (size_t)tsi_step_action_count(step) + 1;
    int64_t *first = tsi_calloc((size_t)step->list_count + 1, sizeof *first), cut = 0;
    double *us = tsi_calloc(count, sizeof *us), *end = tsi_calloc(count, sizeof *end), now = 0;
    for (int32_t r = 0, at = 0; r < step->list_count; r++) {
        first[r] = at;
        for (int32_t i = 0; i < step->list[r].action_count; i++, at++) {
            us[at] = 1 + next(m, 60);
            end[at] = now += next(m, 10);
        }
    }
    tsi_wholes wholes;
    tsi_step_cost cost = { 0 };
    TEST_OK(t, tsi_wholes_find(step, us, first, &wholes));
    const tsi_split_job job = { step, &cost, first, us, end, 2 + (int32_t)next(m, 3) };
    int64_t which = wholes.count > 0 ? next(m, (uint32_t)wholes.count) : 0;
    if (wholes.count > 0) TEST_OK(t, tsi_pass_split(&job, &wholes.op[which], &cut));
    tsi_wholes_release(&wholes);
    tsi_free(first);
    tsi_free(us);
    tsi_free(end);
    return cut;
}

/* The shuffled step with some operations in parts, the same on every rank. *good: nothing is wrong
 * with that: ranks do not begin them in different orders. */
static ts_program *in_parts(test *t, const ts_step *step, machine *m, bool *good)
{
    ts_program *program = NULL;
    tsi_findings found = { 0 };
    machine by;
    int64_t cut = 0;
    TEST_OK(t, ts_step_program(step, &program));
    for (int32_t r = 0; r < program->step->list_count; r++) {
        by = *m;
        shuffle(t, &program->step->list[r], &by);
    }
    *m = by;
    for (int32_t i = 0; i < 6; i++)
        cut += cut_one(t, program->step, m);
    TEST_OK(t, tsi_step_check(program->step, &(tsi_step_rules){ .buffered = true }, &found));
    *good = found.total == 0 && cut > 0;
    tsi_findings_release(&found);
    return program;
}

/* Returns how many operations went in parts. */
static int64_t check_parts(test *t, ts_mesh *mesh, uint64_t seed)
{
    machine orders = { .state = seed };
    int64_t parted = 0;
    trial x;
    trial_begin(&x, t, mesh, seed, moves_of(seed));
    for (int32_t n = 0; trial_goes_on(&x, n); n++) {
        bool good = false;
        int64_t bytes = n % 3 == 2 ? 0 : 16 * x.was.bytes;
        ts_step_order is = TS_INIT(ts_step_order);
        ts_program *program = in_parts(t, x.step, &orders, &good);
        if (good) TEST_OK(t, ts_step_reorder(x.step, program, bytes, &is));
        TEST_CHECK(t, is.parted == 0 || is.taken);
        trial_runs(&x, 2, "in parts");
        parted += is.parted;
        ts_program_destroy(program);
    }
    trial_end(&x);
    return parted;
}

/* 300 orders of 15 steps on two ranks, with sums, gathers and shards in parts. */
TS_TEST_RANKS(operations_go_in_parts, 2, 3)
{
    int64_t parted = 0;
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    if (keeps_order(t, mesh)) return;
    for (uint64_t seed = 1; seed <= (t->count == 2 ? 15 : 5); seed++)
        parted += check_parts(t, mesh, seed * 811 + (uint64_t)t->count);
    TEST_SAY(t, parted > (t->count == 2 ? 100 : 20), "%lld operations", (long long)parted);
}

/* ---- refusals, recoveries, faults ------------------------------------------------------------ */

/* A program in which operations go in parts, and its trial in that order. */
static ts_program *taken_in_parts(test *t, trial *x, machine *orders)
{
    ts_program *program = NULL;
    ts_step_order is = TS_INIT(ts_step_order);
    for (int tries = 0; tries < 100 && is.parted == 0; tries++) {
        bool good = false;
        ts_program_destroy(program);
        program = in_parts(t, x->step, orders, &good);
        if (good) TEST_OK(t, ts_step_reorder(x->step, program, 16 * x->was.bytes, &is));
    }
    TEST_CHECK(t, is.parted > 0);
    return program;
}

/* One rank has another program: all go whole. Then all have the same one; then they recover. */
TS_TEST_RANKS(parts_are_of_all_ranks_or_none, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    if (keeps_order(t, mesh)) return;
    machine orders = { .state = 5 };
    trial x;
    trial_begin(&x, t, mesh, 3603, SHARDS);
    ts_program *program = taken_in_parts(t, &x, &orders), *plain = NULL;
    trial_runs(&x, 1, "in parts");
    TEST_OK(t, ts_step_program(x.step, &plain));
    ts_step_order is = TS_INIT(ts_step_order);
    bool differs = ts_rank_index(t->me) + 1 == t->count;
    TEST_OK(t, ts_step_reorder(x.step, differs ? plain : program, 16 * x.was.bytes, &is));
    TEST_CHECK(t, is.parted == 0 && (is.whole > 0) == !differs);
    trial_runs(&x, 1, "whole");
    TEST_OK(t, ts_step_reorder(x.step, program, 16 * x.was.bytes, &is));
    TEST_CHECK(t, is.parted > 0);
    trial_runs(&x, 1, "in parts once more");
    TEST_OK(t, ts_step_time(x.step));
    TEST_OK(t, random_step(&x.usual));
    ts_status met = ts_group_barrier(ts_group_world(t->me), NULL);
    TEST_CHECK(t, met == TS_OK || met == TS_ERR_PEER); /* a faster rank recovers already */
    TEST_OK(t, ts_rank_recover(t->me));
    trial_runs(&x, 2, "after a recovery");
    TEST_OK(t, ts_step_reorder(x.step, NULL, 0, &is));
    TEST_CHECK(t, is.parted == 0 && is.whole == 0);
    trial_runs(&x, 1, "as recorded");
    ts_program_destroy(program);
    ts_program_destroy(plain);
    trial_end(&x);
}

/* The n-th allocation of a process fails while all take an order with parts, or run it. Returns
 * whether there were so many. */
static bool lack_memory(test *t, trial *x, const ts_program *program, int64_t n)
{
    ts_group *world = ts_group_world(t->me);
    int64_t tried = 0;
    ts_step_order is = TS_INIT(ts_step_order);
    ts_status status = ts_group_barrier(world, NULL);
    if (ts_rank_index(t->me) == 0) (void)tsi_alloc_fail_at(n);
    if (status == TS_OK) status = ts_step_reorder(x->step, program, 16 * x->was.bytes, &is);
    if (status == TS_OK) status = ts_group_barrier(world, NULL);
    if (ts_rank_index(t->me) == 0) tried = tsi_alloc_fail_at(0);
    return all_come_back(t, status, tried, n);
}

TS_TEST_RANKS(every_allocation_of_parts_may_fail, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    if (keeps_order(t, mesh)) return;
    machine orders = { .state = 5 };
    trial x;
    trial_begin(&x, t, mesh, 3603, SHARDS);
    ts_program *program = taken_in_parts(t, &x, &orders);
    bool reached = true;
    for (int64_t n = 1; reached && !test_failed(t); n++) {
        reached = lack_memory(t, &x, program, n);
        trial_runs(&x, 1, "after a lack of memory");
    }
    ts_program_destroy(program);
    trial_end(&x);
}

/* ---- collectives of the caller's own --------------------------------------------------------- */

enum { ROWS = 7, COLUMNS = 5, OWN_RANKS = 3, WHOLE = OWN_RANKS * ROWS * COLUMNS };

typedef struct own { /* a sum of all, a gather of uneven shares, sums that stay in such shares */
    ts_group *world;
    bool bf16;
    int32_t reduce;
    float sum[2][WHOLE], share[2][ROWS * COLUMNS], whole[2][WHOLE]; /* of bf16 half of each */
} own;

static ts_array array_of(const own *o, void *data, int64_t rows)
{
    ts_array array = TS_INIT(ts_array);
    array.data = data;
    array.meta = (ts_meta){ .shape = TS_SHAPE(rows, COLUMNS),
                            .dtype = o->bf16 ? TS_DTYPE_BF16 : TS_DTYPE_F32 };
    return array;
}

static ts_status own_step(void *context)
{
    own *o = context;
    int64_t members = ts_group_size(o->world), me = ts_group_index(o->world), rows[OWN_RANKS];
    int64_t all = 0;
    ts_work *work[3] = { NULL };
    for (int64_t m = 0; m < members; m++)
        all += rows[m] = ROWS - 3 * m; /* uneven */
    ts_array sum[2] = { array_of(o, o->sum[0], all), array_of(o, o->sum[1], all) };
    ts_array share[2] = { array_of(o, o->share[0], rows[me]), array_of(o, o->share[1], rows[me]) };
    ts_array whole[2] = { array_of(o, o->whole[0], all), array_of(o, o->whole[1], all) };
    TSI_TRY(ts_group_all_reduce(o->world, &sum[0], &sum[1], (ts_reduce)o->reduce,
                                TS_OPTIONS(ts_comm_options, .work = &work[0])));
    TSI_TRY(ts_group_all_gather(o->world, &share[0], &whole[1],
                                TS_OPTIONS(ts_comm_options, .work = &work[1], .recv_rows = rows)));
    TSI_TRY(
        ts_group_reduce_scatter(o->world, &whole[0], &share[1], (ts_reduce)o->reduce,
                                TS_OPTIONS(ts_comm_options, .work = &work[2], .send_rows = rows)));
    for (int i = 2; i >= 0; i--)
        TSI_TRY(ts_work_wait(work[i]));
    return TS_OK;
}

static void fill_own(test *t, own *o)
{
    float *all = o->sum[0];
    size_t bytes = sizeof o->sum + sizeof o->share + sizeof o->whole;
    for (size_t i = 0; i < bytes / 2; i++) { /* bf16 near 1; two of them are one f32 near 1 */
        uint16_t half = (uint16_t)(0x3f80 + test_random_below(t, 64));
        memcpy((char *)all + 2 * i, &half, sizeof half);
    }
}

static bool same_own(const own *a, const own *b)
{
    return memcmp(a->sum, b->sum, sizeof a->sum) == 0 &&
           memcmp(a->share, b->share, sizeof a->share) == 0 &&
           memcmp(a->whole, b->whole, sizeof a->whole) == 0;
}

/* Each operation that others could pass, in parts. Returns how many went so. */
static int64_t check_own(test *t, own usual, machine *orders)
{
    usual.world = ts_group_world(t->me);
    own again = usual;
    fill_own(t, &usual);
    ts_step *step = ts_step_record(t->me, own_step, &again);
    TEST_SAY(t, step != NULL, "%s", ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "");
    ts_program *program = NULL;
    ts_step_order is = TS_INIT(ts_step_order);
    TEST_OK(t, ts_step_program(step, &program));
    for (int i = 0; i < 4; i++)
        (void)cut_one(t, program->step, orders);
    TEST_OK(t, ts_step_reorder(step, program, 0, &is));
    for (int round = 0; round < 3; round++) {
        fill_own(t, &usual);
        again = usual;
        TEST_OK(t, own_step(&usual));
        TEST_OK(t, ts_step_replay(step));
        TEST_CHECK(t, same_own(&usual, &again));
    }
    ts_program_destroy(program);
    ts_step_destroy(step);
    return is.parted;
}

TS_TEST_RANKS(collectives_of_the_caller_go_in_parts, 2, 3)
{
    static const int32_t reduces[] = { TS_REDUCE_SUM, TS_REDUCE_AVG, TS_REDUCE_MAX };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    if (keeps_order(t, mesh)) return;
    machine orders = { .state = 9 };
    int64_t parted = 0;
    for (int i = 0; i < 24; i++)
        parted += check_own(t, (own){ .bf16 = i & 1, .reduce = reduces[i / 2 % 3] }, &orders);
    TEST_SAY(t, parted >= 24, "%lld operations", (long long)parted);
}
