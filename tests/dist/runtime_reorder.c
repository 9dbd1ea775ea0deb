/* SPDX-License-Identifier: Apache-2.0 */
/* runtime_reorder.c - recorded steps in other orders: random steps in random legal orders give the
 * bits of the recorded order on every rank, whatever order the others take; programs that are not
 * of the step, or that nobody could run, are refused with a sentence. The order and the places of
 * blocks by themselves: tests/unit/runtime_works.c; operations in parts: runtime_parts.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "dist/reorder_machine.h"
#include "runtime/replay.h"

/* Returns how many pieces of work were moved. */
static int64_t check_orders(test *t, ts_mesh *mesh, uint64_t seed)
{
    trial x;
    int64_t moved = 0;
    trial_begin(&x, t, mesh, seed, ANYTHING);
    for (int32_t n = 0; trial_goes_on(&x, n); n++) {
        ts_program *program = NULL;
        ts_step_order is = TS_INIT(ts_step_order);
        TEST_OK(t, ts_step_program(x.step, &program));
        if (n == 0) TEST_OK(t, tsi_step_prove(program->step, NULL));
        for (int32_t r = 0; r < program->step->list_count; r++)
            shuffle(t, &program->step->list[r], NULL);
        TEST_OK(t, ts_step_reorder(x.step, program, 16 * x.was.bytes, &is));
        trial_runs(&x, 1, "in another order");
        TEST_CHECK(t, is.taken == 1);
        moved += is.moved;
        ts_program_destroy(program);
    }
    trial_end(&x);
    return moved;
}

/* Any operations begin before others, on all lists alike; *good: nothing is wrong with that. */
static ts_program *begun_early(test *t, const ts_step *step, machine *orders, bool *good)
{
    ts_program *program = NULL;
    machine by = *orders;
    tsi_findings found = { 0 };
    TEST_OK(t, ts_step_program(step, &program));
    for (int32_t r = 0; r < program->step->list_count; r++) {
        tsi_step_list *list = &program->step->list[r];
        bool *early = tsi_calloc((size_t)list->action_count + 1, sizeof *early);
        by = *orders;
        for (int32_t i = 0; i < list->action_count; i++)
            early[i] = list->action[i].group >= 0 && next(&by, 2) == 0;
        shuffle_early(t, list, early, &by);
        tsi_free(early);
    }
    *orders = by;
    TEST_OK(t, tsi_step_check(program->step, &(tsi_step_rules){ .buffered = true }, &found));
    *good = found.total == 0;
    tsi_findings_release(&found);
    return program;
}

/* Returns how many operations began before others that they were recorded behind. In some rounds
 * each rank has an order of its own: then they begin as they were recorded. */
static int64_t check_begins(test *t, ts_mesh *mesh, uint64_t seed)
{
    machine orders = { .state = seed }, own = { .state = seed + 77 * (uint64_t)t->me->index };
    int64_t ahead = 0;
    trial x;
    trial_begin(&x, t, mesh, seed, moves_of(seed));
    for (int32_t n = 0; trial_goes_on(&x, n); n++) {
        bool good = false, apart = n % 4 == 3;
        int64_t bytes = n % 5 == 4 ? 0 : 16 * x.was.bytes;
        ts_step_order is = TS_INIT(ts_step_order);
        ts_program *program = begun_early(t, x.step, apart ? &own : &orders, &good), *plain = NULL;
        TEST_OK(t, ts_step_program(x.step, &plain));
        TEST_OK(t, ts_step_reorder(x.step, good ? program : plain, bytes, &is));
        TEST_CHECK(t, is.ahead == 0 || is.taken);
        trial_runs(&x, 2, "begun early");
        ahead += is.ahead;
        ts_program_destroy(program);
        ts_program_destroy(plain);
    }
    trial_end(&x);
    return ahead;
}

/* A bucketed program of the shuffled step, the same on every rank; on some rounds rank 0 has
 * another one. */
static ts_program *bucketed(test *t, const ts_step *step, machine *m, bool another)
{
    ts_program *program = NULL;
    int64_t moves = 0;
    TEST_OK(t, ts_step_program(step, &program));
    for (int32_t r = 0; r < program->step->list_count; r++)
        shuffle(t, &program->step->list[r], m);
    if (!another || ts_rank_index(t->me) > 0)
        TEST_OK(t, tsi_pass_bucket(program->step, 1 << 20, &moves));
    return program;
}

/* Returns how many operations went with others. */
static int64_t check_buckets(test *t, ts_mesh *mesh, uint64_t seed, int moves)
{
    machine orders = { .state = seed };
    int64_t joined = 0;
    trial x;
    trial_begin(&x, t, mesh, seed, moves);
    for (int32_t n = 0; trial_goes_on(&x, n); n++) {
        bool scarce = n % 3 == 2, another = n % 7 == 5;
        ts_program *program = bucketed(t, x.step, &orders, another);
        ts_step_order is = TS_INIT(ts_step_order);
        ts_step_summary now = TS_INIT(ts_step_summary);
        int64_t most = 16 * x.was.bytes;
        TEST_OK(t, ts_step_reorder(x.step, program, scarce ? 0 : most, &is));
        TEST_OK(t, ts_step_summarise(x.step, &now));
        TEST_CHECK(t, is.joined == 0 || (is.taken && !another));
        TEST_CHECK(t, !is.taken || (is.bytes_needed <= is.bytes && now.bytes <= most));
        TEST_CHECK(t, !is.taken || !scarce || is.bytes <= x.was.bytes);
        trial_runs(&x, 2, "with buckets");
        joined += is.joined;
        ts_program_destroy(program);
    }
    trial_end(&x);
    return joined;
}

/* 1,000 orders of 50 steps. */
TS_TEST_RANKS(random_steps_in_random_orders, 1, 2, 3)
{
    int64_t moved = 0;
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    if (keeps_order(t, mesh)) return;
    for (uint64_t seed = 1; seed <= (t->count == 2 ? 50 : 10); seed++)
        moved += check_orders(t, mesh, seed * 977 + (uint64_t)t->count);
    TEST_CHECK(t, moved > 0);
}

/* 300 orders of 15 steps on two ranks, 100 of 5 on three: any operations begin before others. How
 * many can depends on when those of the recorded step ended. */
TS_TEST_RANKS(operations_begin_in_an_order_that_all_ranks_take, 2, 3)
{
    int64_t ahead = 0, steps = t->count == 2 ? 15 : 5;
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    if (keeps_order(t, mesh)) return;
    for (uint64_t seed = 1; seed <= (uint64_t)steps; seed++)
        ahead += check_begins(t, mesh, seed * 1201 + (uint64_t)t->count);
    TEST_SAY(t, ahead > 3 * steps, "%lld operations", (long long)ahead);
}

/* 300 orders of 15 steps on two ranks: sums of all members. */
TS_TEST_RANKS(reductions_of_buckets_go_as_one, 2, 3)
{
    int64_t joined = 0;
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    if (keeps_order(t, mesh)) return;
    for (uint64_t seed = 1; seed <= (t->count == 2 ? 15 : 5); seed++)
        joined += check_buckets(t, mesh, seed * 1543 + (uint64_t)t->count, SUMS);
    TEST_SAY(t, joined > 100, "%lld reductions", (long long)joined);
}

/* 300 orders of 15 steps on two ranks: what a redistribution gathers or leaves in shards. */
TS_TEST_RANKS(gathers_and_shards_of_buckets_go_as_one, 2, 3)
{
    int64_t joined = 0;
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    if (keeps_order(t, mesh)) return;
    for (uint64_t seed = 1; seed <= (t->count == 2 ? 15 : 5); seed++)
        joined += check_buckets(t, mesh, seed * 2477 + (uint64_t)t->count, SHARDS);
    TEST_SAY(t, joined > 100, "%lld operations", (long long)joined);
}

/* Members of a bucket of which some begin before others that were recorded between them. Returns
 * how many operations went with others. */
static int64_t check_early_buckets(test *t, ts_mesh *mesh, uint64_t seed)
{
    machine orders = { .state = seed };
    int64_t joined = 0, moves = 0;
    trial x;
    trial_begin(&x, t, mesh, seed, ANYTHING);
    for (int32_t n = 0; trial_goes_on(&x, n); n++) {
        bool good = false;
        ts_step_order is = TS_INIT(ts_step_order);
        ts_program *program = begun_early(t, x.step, &orders, &good);
        TEST_OK(t, tsi_pass_bucket(program->step, 1 << 20, &moves));
        if (good) TEST_OK(t, ts_step_reorder(x.step, program, 16 * x.was.bytes, &is));
        if (good) trial_runs(&x, 1, "with buckets, begun early");
        joined += is.joined;
        ts_program_destroy(program);
    }
    trial_end(&x);
    return joined;
}

TS_TEST_RANKS(buckets_of_what_begins_early, 2, 3)
{
    int64_t joined = 0;
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    if (keeps_order(t, mesh)) return;
    for (uint64_t seed = 1; seed <= 6; seed++)
        joined += check_early_buckets(t, mesh, seed * 3571 + (uint64_t)t->count);
    TEST_SAY(t, joined > 20, "%lld operations", (long long)joined);
}

typedef struct rolled {
    ts_rank *me;
    ts_tensor *x, *y, *to;
} rolled;

/* What roll sends is its own, and stands between two that go as one. */
static ts_status roll_step(void *context)
{
    const rolled *r = context;
    ts_scope scope = ts_scope_open(r->me, NULL);
    ts_tensor *a = ts_redistribute(r->x, "S(1)");
    ts_tensor *b = ts_roll(a, (int64_t[]){ 1 }, (int64_t[]){ 1 }, 1);
    ts_tensor *c = ts_redistribute(r->y, "S(1)");
    ts_tensor *sum = ts_add(ts_add(a, b), c);
    ts_status status = ts_foreach_copy((ts_list){ &r->to, 1 }, (ts_list){ &sum, 1 });
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

/* The last operation that has a queue begins right behind the first. */
static void begin_behind_first(test *t, tsi_step_list *list)
{
    int32_t order[64], first = -1, last = -1, at = 0;
    for (int32_t i = 0; i < list->action_count; i++) {
        if (list->action[i].group < 0 || list->action[i].queue == 0) continue;
        if (first < 0) first = i;
        last = i;
    }
    TEST_CHECK(t, first >= 0 && last > first && list->action_count <= 64);
    for (int32_t i = 0; i < list->action_count; i++) {
        if (i != last) order[at++] = i;
        if (i == first) order[at++] = last;
    }
    TEST_OK(t, tsi_list_permute(list, order));
}

static bool touches(const tsi_step_list *list, int32_t action, int32_t value, tsi_touch_how how)
{
    const tsi_action *a = &list->action[action];
    const tsi_touch *touch = tsi_step_touches(list, a);
    int32_t i = 0;
    while (i < a->touch_count && (touch[i].value != value || touch[i].how != (int32_t)how))
        i++;
    return i < a->touch_count;
}

/* An operation of roll's own reads what roll reads, and leaves something that roll reads: it stays
 * between the two. */
static void check_own_operation(test *t, const tsi_step_list *list)
{
    int32_t call = 0, tied = 0;
    while (call < list->action_count &&
           (!list->action[call].what || strcmp(list->action[call].what, "roll") != 0))
        call++;
    TEST_CHECK(t, call < list->action_count);
    for (int32_t i = 0; i < call; i++) {
        bool reads = false, leaves = false;
        for (int32_t v = 0; list->action[i].group >= 0 && v < list->value_count; v++) {
            bool read = touches(list, call, v, TSI_READS);
            reads = reads || (read && touches(list, i, v, TSI_READS));
            leaves = leaves || (read && touches(list, i, v, TSI_MAKES));
        }
        tied += reads && leaves;
    }
    TEST_SAY(t, tied == 1, "%d operations are tied to their operator", tied);
}

TS_TEST_RANKS(operations_of_operators_stay_out_of_buckets, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_shape shape = TS_SHAPE(SIDE, SIDE);
    if (keeps_order(t, mesh)) return;
    rolled r = { t->me, ts_rand(mesh, TS_DTYPE_F32, shape, "S(0)"),
                 ts_rand(mesh, TS_DTYPE_F32, shape, "S(0)"),
                 ts_zeros(mesh, TS_DTYPE_F32, shape, "S(1)") };
    ts_program *program = NULL;
    ts_step_order is = TS_INIT(ts_step_order);
    ts_step *step = ts_step_record(t->me, roll_step, &r);
    ts_tensor *was = ts_clone(r.to);
    int64_t moves = 0;
    double far = NAN;
    TEST_OK(t, ts_step_program(step, &program));
    for (int32_t i = 0; i < program->step->list_count; i++)
        check_own_operation(t, &program->step->list[i]);
    for (int32_t i = 0; i < program->step->list_count; i++)
        begin_behind_first(t, &program->step->list[i]);
    TEST_OK(t, tsi_pass_bucket(program->step, 1 << 20, &moves));
    TEST_EQ(t, moves, 2);
    TEST_OK(t, ts_step_reorder(step, program, 1 << 20, &is));
    TEST_CHECK(t, is.taken && is.ahead == 1);
    TEST_OK(t, ts_foreach_zero((ts_list){ &r.to, 1 }));
    TEST_OK(t, ts_step_replay(step));
    TEST_OK(t, ts_tensor_item(ts_amax(ts_abs(ts_sub(r.to, was)), NULL, 0, 0), &far));
    TEST_SAY(t, far == 0, "off by %g", far);
    ts_program_destroy(program);
    ts_step_destroy(step);
}

/* ---- collectives of the caller's own --------------------------------------------------------- */

enum { OWN = 5, OWN_ROWS = 4, OWN_COLUMNS = 3, OWN_RANKS = 3 };

typedef struct own_collectives {
    ts_group *world;
    bool gathers, bf16;
    int32_t reduce;
    /* Whole arrays and shares; of bf16 the first half of each. */
    float whole[OWN][OWN_RANKS * OWN_ROWS * OWN_COLUMNS], share[OWN][OWN_ROWS * OWN_COLUMNS];
} own_collectives;

/* Uneven shares; the last member has none of the first. */
static int64_t rows_of_share(int64_t member, int64_t members, int32_t i)
{
    return i == 0 && member + 1 == members ? 0 : 1 + (member + i) % OWN_ROWS;
}

static ts_status own_step(void *context)
{
    own_collectives *o = context;
    ts_work *work[OWN] = { NULL };
    int64_t members = ts_group_size(o->world), me = ts_group_index(o->world);
    for (int32_t i = 0; i < OWN; i++) {
        int64_t rows[OWN_RANKS], all = 0;
        for (int64_t m = 0; m < members; m++)
            all += rows[m] = rows_of_share(m, members, i);
        ts_dtype dtype = o->bf16 ? TS_DTYPE_BF16 : TS_DTYPE_F32;
        ts_array whole = TS_INIT(ts_array), share = TS_INIT(ts_array);
        whole.data = o->whole[i];
        whole.meta = (ts_meta){ .shape = TS_SHAPE(all, OWN_COLUMNS), .dtype = dtype };
        share.data = o->share[i];
        share.meta = (ts_meta){ .shape = TS_SHAPE(rows[me], OWN_COLUMNS), .dtype = dtype };
        ts_comm_options options = TS_INIT(ts_comm_options);
        options.work = &work[i];
        options.send_rows = o->gathers ? NULL : rows;
        options.recv_rows = o->gathers ? rows : NULL;
        ts_status status = o->gathers ? ts_group_all_gather(o->world, &share, &whole, &options)
                                      : ts_group_reduce_scatter(o->world, &whole, &share,
                                                                (ts_reduce)o->reduce, &options);
        TSI_TRY(status);
    }
    for (int32_t i = OWN - 1; i >= 0; i--)
        TSI_TRY(ts_work_wait(work[i]));
    return TS_OK;
}

static void fill_own(test *t, own_collectives *o)
{
    memset(o->whole, 0, sizeof o->whole);
    memset(o->share, 0, sizeof o->share);
    char *bytes = o->gathers ? (char *)o->share : (char *)o->whole;
    size_t size = o->gathers ? sizeof o->share : sizeof o->whole;
    for (size_t i = 0; i < size / 2; i++) { /* bf16 near 1; two of them are one f32 near 1 */
        uint16_t half = (uint16_t)(0x3f80 + test_random_below(t, 64));
        memcpy(bytes + 2 * i, &half, sizeof half);
    }
}

typedef struct recorded { /* a step whose program has its operations in buckets */
    ts_step *step;
    ts_program *program;
    int64_t joined;
} recorded;

static recorded record_in_buckets(test *t, ts_step_fn fn, void *context)
{
    recorded b = { .step = ts_step_record(t->me, fn, context) };
    TEST_SAY(t, b.step != NULL, "%s", ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "");
    int64_t moves = 0;
    ts_step_order is = TS_INIT(ts_step_order);
    TEST_OK(t, ts_step_program(b.step, &b.program));
    TEST_OK(t, tsi_pass_bucket(b.program->step, 1 << 20, &moves));
    TEST_OK(t, ts_step_reorder(b.step, b.program, 0, &is));
    b.joined = is.joined;
    return b;
}

static void check_own(test *t, own_collectives usual)
{
    usual.world = ts_group_world(t->me);
    fill_own(t, &usual);
    own_collectives again = usual;
    recorded b = record_in_buckets(t, own_step, &again);
    TEST_SAY(t, b.joined == OWN, "%lld of %d went as one", (long long)b.joined, (int)OWN);
    for (int round = 0; round < 3; round++) {
        fill_own(t, &usual);
        memcpy(again.whole, usual.whole, sizeof again.whole);
        memcpy(again.share, usual.share, sizeof again.share);
        TEST_OK(t, own_step(&usual));
        TEST_OK(t, ts_step_replay(b.step));
        TEST_CHECK(t, memcmp(again.whole, usual.whole, sizeof again.whole) == 0);
        TEST_CHECK(t, memcmp(again.share, usual.share, sizeof again.share) == 0);
    }
    ts_program_destroy(b.program);
    ts_step_destroy(b.step);
}

TS_TEST_RANKS(collectives_of_the_caller_go_as_one, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    if (keeps_order(t, mesh)) return;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        check_own(t, (own_collectives){ .gathers = true, .bf16 = bf16 });
        check_own(t, (own_collectives){ .bf16 = bf16, .reduce = TS_REDUCE_SUM });
        check_own(t, (own_collectives){ .bf16 = bf16, .reduce = TS_REDUCE_AVG });
        check_own(t, (own_collectives){ .bf16 = bf16, .reduce = TS_REDUCE_MAX });
    }
}

/* One reads what the one before it made: the channel orders them, without a wait. */
static ts_status chain_step(void *context)
{
    own_collectives *o = context;
    ts_work *first = NULL, *second = NULL;
    ts_array whole = TS_INIT(ts_array), share = TS_INIT(ts_array);
    int64_t rows = ts_group_size(o->world) * OWN_ROWS;
    whole.data = o->whole[0];
    whole.meta = (ts_meta){ .shape = TS_SHAPE(rows, OWN_COLUMNS), .dtype = TS_DTYPE_F32 };
    share.data = o->share[0];
    share.meta = (ts_meta){ .shape = TS_SHAPE(OWN_ROWS, OWN_COLUMNS), .dtype = TS_DTYPE_F32 };
    ts_array next = whole;
    next.data = o->whole[1];
    TSI_TRY(
        ts_group_all_gather(o->world, &share, &whole, TS_OPTIONS(ts_comm_options, .work = &first)));
    share.data = o->whole[0];
    TSI_TRY(
        ts_group_all_gather(o->world, &share, &next, TS_OPTIONS(ts_comm_options, .work = &second)));
    TSI_TRY(ts_work_wait(first));
    return ts_work_wait(second);
}

TS_TEST_RANKS(what_one_reads_of_another_keeps_them_apart, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    if (keeps_order(t, mesh)) return;
    own_collectives usual = { .world = ts_group_world(t->me), .gathers = true };
    fill_own(t, &usual);
    own_collectives again = usual;
    recorded b = record_in_buckets(t, chain_step, &again);
    TEST_CHECK(t, b.joined == 0);
    fill_own(t, &usual);
    memcpy(again.share, usual.share, sizeof again.share);
    TEST_OK(t, chain_step(&usual));
    TEST_OK(t, ts_step_replay(b.step));
    TEST_CHECK(t, memcmp(again.whole, usual.whole, sizeof again.whole) == 0);
    ts_program_destroy(b.program);
    ts_step_destroy(b.step);
}

/* ---- pairs of a ring ------------------------------------------------------------------------- */

enum { PAIR = 32 };

typedef struct ring {
    ts_group *pair[2]; /* with the rank before, and with the one behind */
    float value[2][PAIR];
} ring;

/* All begin with the rank before: the first operation of a rank is the second of that one. */
static ts_status ring_step(void *context)
{
    ring *r = context;
    ts_work *work[2] = { NULL };
    for (int i = 0; i < 2; i++) {
        ts_array all = TS_INIT(ts_array);
        all.data = r->value[i];
        all.meta = (ts_meta){ .shape = TS_SHAPE(PAIR), .dtype = TS_DTYPE_F32 };
        TSI_TRY(ts_group_all_reduce(r->pair[i], &all, &all, TS_REDUCE_SUM,
                                    TS_OPTIONS(ts_comm_options, .work = &work[i])));
    }
    TSI_TRY(ts_work_wait(work[0]));
    return ts_work_wait(work[1]);
}

static void fill_ring(test *t, ring *r)
{
    for (int i = 0; i < 2 * PAIR; i++)
        r->value[i / PAIR][i % PAIR] = (float)test_random_below(t, 1000) * 0.01f;
}

/* The operations of each list change their places. */
static void swap_operations(test *t, tsi_step *step)
{
    for (int32_t r = 0; r < step->list_count; r++) {
        tsi_step_list *list = &step->list[r];
        int32_t *order = tsi_calloc((size_t)list->action_count + 1, sizeof *order), before = -1;
        for (int32_t i = 0; i < list->action_count; i++) {
            order[i] = i;
            if (list->action[i].group < 0) continue;
            if (before >= 0) order[i] = before;
            if (before >= 0) order[before] = i;
            before = i;
        }
        TEST_OK(t, tsi_list_permute(list, order));
        tsi_free(order);
    }
}

/* The n-th operation of a rank is not the n-th of its neighbours: they keep the recorded order,
 * though their names are alike and all change their places alike. */
TS_TEST_RANKS(pairs_that_cross_begin_as_recorded, 3, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    if (keeps_order(t, mesh)) return;
    ring usual = { .pair = { NULL } };
    int64_t n = t->count, me = ts_rank_index(t->me);
    for (int i = 0; i < 2; i++) {
        int64_t a = (me + i + n - 1) % n, b = (me + i) % n;
        usual.pair[i] =
            ts_group_create(t->me, (int64_t[]){ a < b ? a : b, a < b ? b : a }, 2, NULL);
    }
    fill_ring(t, &usual);
    ring again = usual;
    ts_step *step = ts_step_record(t->me, ring_step, &again);
    TEST_SAY(t, step != NULL, "%s", ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "");
    ts_program *program = NULL;
    ts_step_order is = TS_INIT(ts_step_order);
    TEST_OK(t, ts_step_program(step, &program));
    swap_operations(t, program->step);
    TEST_OK(t, ts_step_reorder(step, program, 0, &is));
    TEST_CHECK(t, is.taken == 1 && is.ahead == 0);
    for (int round = 0; round < 3; round++) {
        fill_ring(t, &usual);
        memcpy(again.value, usual.value, sizeof again.value);
        TEST_OK(t, ring_step(&usual));
        TEST_OK(t, ts_step_replay(step));
        TEST_CHECK(t, memcmp(again.value, usual.value, sizeof again.value) == 0);
    }
    ts_program_destroy(program);
    ts_step_destroy(step);
    for (int i = 0; i < 2; i++)
        ts_group_release(usual.pair[i]);
}

/* ---- operators with calls and operations inside ---------------------------------------------- */

typedef struct classes {
    ts_rank *me;
    ts_tensor *x, *labels, *loss;
} classes;

/* The loss makes zeros, and adds up over ranks, inside of one piece of work. */
static ts_status classes_step(void *context)
{
    const classes *c = context;
    ts_scope scope = ts_scope_open(c->me, NULL);
    ts_tensor *y = ts_redistribute(c->x, "S(1)");
    ts_tensor *loss = ts_cross_entropy(ts_mul(y, y), c->labels);
    ts_status status = ts_foreach_copy((ts_list){ &c->loss, 1 }, (ts_list){ &loss, 1 });
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

/* What reads nothing comes first. Returns how many there are. */
static int32_t needs_nothing_first(test *t, tsi_step_list *list)
{
    int32_t order[96], count = 0, free = 0;
    TEST_CHECK(t, list->action_count <= 96);
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < list->action_count; i++) {
            const tsi_action *a = &list->action[i];
            const tsi_touch *touch = tsi_step_touches(list, a);
            bool needs = a->kind != TSI_ACTION_OPERATOR || a->touch_count == 0;
            for (int32_t k = 0; k < a->touch_count; k++)
                needs = needs || touch[k].how != TSI_MAKES;
            if (needs == (pass == 1)) order[count++] = i;
        }
        if (pass == 0) free = count;
    }
    TEST_OK(t, tsi_list_permute(list, order));
    return free;
}

/* Its time is the operator's, and so is its place, whatever was told inside. */
TS_TEST_RANKS(an_operator_with_calls_inside_is_where_its_call_is, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    if (keeps_order(t, mesh)) return;
    enum { LABELS = 8, CLASSES = 4096 }; /* so many that they stay where they are */
    classes c = { .me = t->me };
    c.x = ts_rand(mesh, TS_DTYPE_F32, TS_SHAPE(LABELS, CLASSES), "S(0)");
    c.labels = ts_randint(mesh, TS_DTYPE_I64, TS_SHAPE(LABELS), "R",
                          TS_OPTIONS(ts_random_options, .high = CLASSES));
    c.loss = ts_full(0, mesh, TS_DTYPE_F32, TS_SHAPE_SCALAR, "R");
    ts_program *program = NULL;
    ts_step_order is = TS_INIT(ts_step_order);
    ts_step *step = ts_step_record(t->me, classes_step, &c);
    double was = NAN, now = NAN;
    TEST_OK(t, ts_tensor_item(c.loss, &was));
    TEST_OK(t, ts_step_time(step));
    TEST_OK(t, ts_step_program(step, &program));
    for (int32_t r = 0; r < program->step->list_count; r++) {
        tsi_step_list *list = &program->step->list[r];
        int32_t free = needs_nothing_first(t, list);
        TEST_CHECK(t, free > 0);
        for (int32_t i = 0; i < free; i++)
            TEST_SAY(t, list->action[i].us == 0, "%s takes %g us", list->action[i].what,
                     list->action[i].us);
    }
    TEST_OK(t, ts_step_reorder(step, program, 1 << 20, &is));
    TEST_CHECK(t, is.taken && is.agreed);
    TEST_OK(t, ts_step_replay(step));
    TEST_OK(t, ts_tensor_item(c.loss, &now));
    TEST_SAY(t, now == was && now > 0, "%g, recorded %g", now, was);
    ts_program_destroy(program);
    ts_step_destroy(step);
}

/* ---- results that nobody has any more -------------------------------------------------------- */

typedef struct loose {
    ts_tensor *x, *sum;
} loose;

/* Without a scope of its own: what it makes is its caller's. */
static ts_status loose_step(void *context)
{
    const loose *l = context;
    ts_tensor *y = ts_tanh(l->x);
    ts_tensor *z = ts_mul(y, ts_exp(y));
    return ts_tensor_write(l->sum, ts_sum(z, NULL, 0, 0));
}

TS_TEST_RANKS(what_a_caller_let_go_is_still_written, 1, 2)
{
    enum { SIZE = 1 << 16 };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    if (keeps_order(t, mesh)) return;
    double want = NAN, got = NAN;
    loose l = { .x = ts_full(0.5, mesh, TS_DTYPE_F32, TS_SHAPE(SIZE), "S(0)"),
                .sum = ts_variable(t->me) };
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_step *step = ts_step_record(t->me, loose_step, &l);
    TEST_SAY(t, step != NULL, "%s", ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "");
    TEST_OK(t, ts_tensor_item(l.sum, &want));
    TEST_OK(t, ts_scope_close(scope));
    for (int round = 0; round < 3; round++) {
        TEST_OK(t, ts_step_reorder(step, NULL, INT64_C(1) << 30, NULL));
        ts_tensor *other = ts_full(7.0, mesh, TS_DTYPE_F32, TS_SHAPE(SIZE), "S(0)");
        TEST_OK(t, ts_step_replay(step));
        TEST_OK(t, ts_tensor_item(l.sum, &got));
        TEST_SAY(t, got == want, "%g, then %g", want, got);
        TEST_OK(t, ts_tensor_item(ts_amax(other, NULL, 0, 0), &got));
        TEST_SAY(t, got == 7, "another tensor has %g", got);
    }
    ts_step_destroy(step);
    ts_tensor_release(l.sum);
}

/* ---- steps that have an order, whatever is in them ------------------------------------------- */

typedef struct trees { /* each of one parameter, of one name */
    ts_tensor *x, *w[2], *norm;
    ts_optimizer *optimizer[2];
    const char *label; /* what is called like buckets and parts is none */
} trees;

/* Norms over a cut dim end in a piece of work of the rank itself. */
static ts_status trees_step(void *context)
{
    const trees *n = context;
    ts_scope scope = ts_scope_open(ts_tensor_rank(n->x), n->label);
    ts_tape_begin(ts_tensor_rank(n->x));
    ts_tensor *y = ts_linear(ts_linear(n->x, n->w[0], NULL), n->w[1], NULL);
    ts_status status = ts_backward(ts_mean(ts_square(y), NULL, 0, 0), NULL);
    for (int i = 0; i < 2 && status == TS_OK; i++)
        status = ts_optimizer_step_with(n->optimizer[i], NULL);
    if (status == TS_OK) status = ts_tensor_write(n->norm, ts_vector_norm(n->x, NULL));
    ts_scope_close(scope);
    return status;
}

TS_TEST_RANKS(trees_of_one_name_and_norms_have_an_order, 1, 2, 3)
{
    static const ts_module_desc desc = { .struct_size = sizeof desc, .type = "tree" };
    static const char *const labels[] = { NULL, "bucket.1", "part.1/2" };
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    if (keeps_order(t, mesh)) return;
    trees n = { .x = ts_full(0.5, mesh, TS_DTYPE_F32, TS_SHAPE(6, 6), "S(0)"),
                .norm = ts_variable(t->me),
                .label = labels[t->count - 1] };
    ts_module *root[2];
    for (int i = 0; i < 2; i++) {
        root[i] = ts_module_create(mesh, &desc, NULL);
        n.w[i] = ts_module_param(root[i], "w", TS_SHAPE(6, 6), NULL);
        TEST_OK(t, ts_module_materialize(root[i]));
        n.optimizer[i] = ts_sgd_create(root[i], NULL);
    }
    TEST_OK(t, trees_step(&n));
    ts_program *program = NULL;
    ts_step_order is = TS_INIT(ts_step_order);
    ts_step *step = ts_step_record(t->me, trees_step, &n);
    TEST_OK(t, ts_step_program(step, &program));
    int64_t findings = -1;
    TEST_OK(t, ts_program_check(program, NULL, NULL, NULL, &findings));
    TEST_EQ(t, findings, 0);
    TEST_OK(t, ts_step_reorder(step, program, 1 << 20, &is));
    TEST_CHECK(t, is.taken);
    TEST_OK(t, ts_step_replay(step));
    double norm = 0;
    TEST_OK(t, ts_tensor_item(n.norm, &norm));
    TEST_SAY(t, fabs(norm - 3) < 1e-5, "%g", norm);
    ts_program_destroy(program);
    ts_step_destroy(step);
    for (int i = 0; i < 2; i++) {
        ts_optimizer_destroy(n.optimizer[i]);
        ts_module_destroy(root[i]);
    }
    ts_tensor_release(n.norm);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void refuse(test *t, ts_step *step, const char *text, const char *want)
{
    ts_program *program = NULL;
    TEST_OK(t, ts_program_parse(text, &program));
    TEST_CHECK(t, ts_step_reorder(step, program, 0, NULL) != TS_OK);
    const char *why = ts_rank_error(t->me)->text;
    TEST_SAY(t, strstr(why, want) != NULL, "%s, wanted: %s", why, want);
    TEST_OK(t, ts_rank_recover(t->me));
    ts_program_destroy(program);
}

/* The text without its n-th line from the end, or with it at the top of the list. */
static char *edited(const char *text, const char *line, bool again)
{
    const char *at = strstr(text, line), *end = at ? strchr(at, '\n') + 1 : NULL;
    size_t size = strlen(text) + 2 * strlen(line) + 400, head = at ? (size_t)(at - text) : 0;
    char *out = calloc(1, size);
    if (!at) return out;
    memcpy(out, text, again ? (size_t)(end - text) : head);
    if (again) strncat(out, at, (size_t)(end - at));
    strcat(out, end);
    return out;
}

/* A random step as usual, beside the same one that was recorded. */
typedef struct twins {
    machine usual, again, orders;
    ts_step *step;
    int64_t bytes; /* enough for any order */
    ts_scope scope;
} twins;

static twins twins_of(test *t, ts_mesh *mesh, uint64_t seed, int moves)
{
    twins r = { .scope = ts_scope_open(t->me, NULL) };
    r.usual = machine_of(t, mesh, seed);
    r.again = machine_of(t, mesh, seed);
    r.orders.state = seed;
    r.usual.moves = r.again.moves = moves;
    TEST_OK(t, random_step(&r.usual));
    r.step = ts_step_record(t->me, random_step, &r.again);
    ts_step_summary was = TS_INIT(ts_step_summary);
    TEST_OK(t, ts_step_summarise(r.step, &was));
    r.bytes = 16 * was.bytes;
    return r;
}

static void twins_end(test *t, twins *r)
{
    ts_step_destroy(r->step);
    TEST_OK(t, ts_scope_close(r->scope));
}

static void replays(test *t, twins *r, const char *when)
{
    TEST_OK(t, ts_step_replay(r->step));
    TEST_OK(t, random_step(&r->usual));
    same_bits(t, &r->usual, &r->again, when);
}

/* The last rank refuses the next order, then all recover, before which some may know of a newer
 * one: operations go alone and begin as they were recorded. */
static void refuse_then_recover(test *t, twins *r, const ts_program *program)
{
    ts_program *other = NULL;
    TEST_OK(t, ts_program_parse("step 1\nranks 1\n", &other));
    ts_step_order is = TS_INIT(ts_step_order);
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.catches = 1;
    bool refuses = ts_rank_index(t->me) + 1 == t->count;
    ts_scope inner = ts_scope_open_with(t->me, &options);
    ts_status status = ts_step_reorder(r->step, refuses ? other : program, r->bytes, &is);
    TEST_CHECK(t, status == (refuses ? TS_ERR_ARG : TS_OK) && is.joined == 0 && is.ahead == 0);
    TEST_CHECK(t, ts_scope_close(inner) == status);
    replays(t, r, "after a refusal");
    status = ts_step_reorder(r->step, program, r->bytes, &is);
    TEST_CHECK(t, status == TS_OK || status == TS_ERR_PEER); /* a faster rank recovers already */
    TEST_OK(t, ts_rank_recover(t->me));
    replays(t, r, "after a recovery");
    ts_program_destroy(other);
}

/* The others are not held up, and nothing goes as one. */
TS_TEST_RANKS(a_rank_that_refuses_holds_nobody_up, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    if (keeps_order(t, mesh)) return;
    twins r = twins_of(t, mesh, 4629, SUMS);
    r.orders.state = 3;
    ts_program *program = bucketed(t, r.step, &r.orders, false);
    ts_step_order is = TS_INIT(ts_step_order);
    TEST_OK(t, ts_step_reorder(r.step, program, r.bytes, &is));
    TEST_CHECK(t, is.joined > 0);
    replays(t, &r, "joined");
    refuse_then_recover(t, &r, program);
    ts_program_destroy(program);
    twins_end(t, &r);
}

/* One rank goes back to the recorded order while others take the program, and the other way round:
 * nobody is held up, and nothing goes as one. */
TS_TEST_RANKS(a_rank_without_a_program_holds_nobody_up, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    if (keeps_order(t, mesh)) return;
    twins r = twins_of(t, mesh, 4629, SUMS);
    r.orders.state = 3;
    ts_program *program = bucketed(t, r.step, &r.orders, false);
    for (int64_t round = 0; round < 3; round++) {
        bool has = round == 2 || (t->index == 0) == (round == 0);
        ts_step_order is = TS_INIT(ts_step_order);
        TEST_OK(t, ts_step_reorder(r.step, has ? program : NULL, r.bytes, &is));
        TEST_CHECK(t, (is.joined > 0) == (round == 2) && is.taken);
        replays(t, &r, "some without a program");
    }
    ts_program_destroy(program);
    twins_end(t, &r);
}

/* The step in an order in which all ranks begin operations ahead. */
static ts_program *agreed_order(test *t, twins *r)
{
    ts_program *program = NULL;
    ts_step_order is = TS_INIT(ts_step_order);
    for (int tries = 0; tries < 100 && is.ahead == 0; tries++) {
        bool good = false;
        ts_program_destroy(program);
        program = begun_early(t, r->step, &r->orders, &good);
        if (good) TEST_OK(t, ts_step_reorder(r->step, program, r->bytes, &is));
    }
    TEST_CHECK(t, is.ahead > 0);
    return program;
}

/* Operations begin in an order that all ranks took: when one refuses the next, all begin as they
 * were recorded; so they do after a recovery. */
TS_TEST_RANKS(an_order_of_all_ranks_ends_with_a_refusal, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    if (keeps_order(t, mesh)) return;
    twins r = twins_of(t, mesh, 3603, SHARDS);
    ts_program *program = agreed_order(t, &r);
    ts_step_order is = TS_INIT(ts_step_order);
    replays(t, &r, "begun early");
    refuse_then_recover(t, &r, program);
    TEST_OK(t, ts_step_reorder(r.step, program, r.bytes, &is));
    TEST_CHECK(t, is.ahead > 0);
    replays(t, &r, "begun early once more");
    ts_program_destroy(program);
    twins_end(t, &r);
}

/* A rank that could not go back to the recorded order tells the others so, and nobody waits for it;
 * with the next order it is found again. */
TS_TEST_RANKS(a_lost_order_is_told_to_all, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    if (keeps_order(t, mesh)) return;
    twins r = twins_of(t, mesh, 3603, SHARDS);
    bool loses = ts_rank_index(t->me) == 0;
    r.step->lost = loses;
    ts_status status = ts_group_barrier(ts_group_world(t->me), NULL); /* all have recorded it */
    if (status == TS_OK) status = ts_step_replay(r.step);
    TEST_STATUS(t, status, loses ? TS_ERR_STATE : TS_ERR_PEER);
    if (loses) TEST_SAYS(t, ts_rank_error(t->me)->text, "its order was lost");
    TEST_CHECK(t, !loses || ts_rank_error(t->me)->blast == TS_BLAST_LOCAL);
    TEST_OK(t, ts_rank_recover(t->me));
    TEST_OK(t, ts_step_reorder(r.step, NULL, INT64_C(1) << 30, NULL));
    TEST_CHECK(t, !r.step->lost);
    TEST_OK(t, ts_step_replay(r.step));
    twins_end(t, &r);
}

/* The n-th allocation of the process fails while ranks that agreed on an order take it once more.
 * Returns whether there were so many. */
static bool lack_memory(test *t, const twins *r, const ts_program *program, int64_t n)
{
    ts_group *world = ts_group_world(t->me);
    int64_t tried = 0;
    ts_step_order is = TS_INIT(ts_step_order);
    TEST_OK(t, ts_step_reorder(r->step, program, r->bytes, &is));
    TEST_CHECK(t, is.ahead > 0);
    ts_status status = ts_group_barrier(world, NULL); /* others may be told of a failure in it */
    if (ts_rank_index(t->me) == 0) (void)tsi_alloc_fail_at(n);
    if (status == TS_OK) status = ts_step_reorder(r->step, program, r->bytes, &is);
    if (status == TS_OK) status = ts_group_barrier(world, NULL);
    if (ts_rank_index(t->me) == 0) tried = tsi_alloc_fail_at(0);
    return all_come_back(t, status, tried, n);
}

/* Nobody waits in vain, and nobody stays in an order alone. */
TS_TEST_RANKS(every_allocation_of_an_order_may_fail, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    if (keeps_order(t, mesh)) return;
    twins r = twins_of(t, mesh, 3603, SHARDS);
    ts_program *program = agreed_order(t, &r);
    bool reached = true;
    for (int64_t n = 1; reached && !test_failed(t); n++) {
        reached = lack_memory(t, &r, program, n);
        replays(t, &r, "after a lack of memory");
    }
    ts_program_destroy(program);
    twins_end(t, &r);
}

TS_TEST_RANKS(programs_of_other_steps_are_refused, 1)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    if (keeps_order(t, mesh)) return;
    ts_scope scope = ts_scope_open(t->me, NULL);
    machine m = machine_of(t, mesh, 5), usual = machine_of(t, mesh, 5);
    ts_step *step = ts_step_record(t->me, random_step, &m);
    size_t size = ts_step_text(step, NULL, 0) + 1;
    char *text = malloc(size);
    (void)ts_step_text(step, text, size);
    char *less = edited(text, "operator tanh", false), *more = edited(text, "operator tanh", true);
    refuse(t, step, less, "lacks");
    refuse(t, step, more, "does not do");
    refuse(t, step, "step 1\nranks 2\n", "of 2 ranks");
    refuse(t, step, "step 1\nranks 1\nrank 0\noperator other\n", "operator other");
    TEST_CHECK(t, ts_step_reorder(step, NULL, 64, NULL) == TS_ERR_ARG);
    TEST_SAY(t, strstr(ts_rank_error(t->me)->text, "the cap is 64"), "%s",
             ts_rank_error(t->me)->text);
    TEST_OK(t, ts_rank_recover(t->me));
    TEST_OK(t, ts_step_reorder(step, NULL, 0, NULL)); /* nothing of it was changed */
    TEST_OK(t, ts_step_replay(step));
    TEST_OK(t, random_step(&usual));
    TEST_OK(t, random_step(&usual));
    same_bits(t, &usual, &m, "after refusals");
    free(text);
    free(less);
    free(more);
    ts_step_destroy(step);
    TEST_OK(t, ts_scope_close(scope));
}
