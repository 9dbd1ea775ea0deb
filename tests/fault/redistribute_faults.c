/* SPDX-License-Identifier: Apache-2.0 */
/* redistribute_faults.c - moves that are refused, and moves in which a rank dies.
 *
 * A refusal is the same sentence on every rank, before anything moves, and the source is intact.
 * When a rank fails in the middle, all others return and name it. */
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "dist/redistribute_oracle.h"
#include "tessera/event.h"

/* ---- refusals -------------------------------------------------------------------------------- */

typedef struct refusal {
    const char *from, *to, *planner;
    ts_dtype dtype;
    int64_t budget;
    ts_status status;
    const char *words;
} refusal;

static int64_t operations_since(ts_rank *me, uint64_t since)
{
    ts_counts counts = TS_INIT(ts_counts);
    int64_t total = 0;
    if (ts_rank_counts(me, since, &counts) != TS_OK) return -1;
    for (int64_t i = 0; i < counts.row_count; i++)
        total += counts.row[i].count;
    return total + counts.open;
}

static void expect_refusal(test *t, ts_mesh *mesh, const refusal *r)
{
    ts_shape shape = TS_SHAPE(12, 10);
    side from = side_of(mesh, ts_layout_get(ts_sharding_get(mesh, r->from), shape));
    ts_tensor *x = ts_empty(mesh, r->dtype, shape, r->from);
    int64_t at = 0;
    (void)oracle_block_run(x, t->index, &oracle_kinds[0], &from, NULL, true, &at);
    ts_move_options move = TS_INIT(ts_move_options);
    move.planner = r->planner;
    move.budget = r->budget;
    const ts_sharding *to = ts_sharding_get(mesh, r->to);
    ts_scope_options catching = TS_INIT(ts_scope_options);
    catching.catches = 1;
    ts_scope scope = ts_scope_open_with(t->me, &catching);
    uint64_t before = ts_rank_event(t->me);
    TEST_CHECK(t, ts_redistribute_with(x, to, &move) == NULL);
    TEST_EQ(t, operations_since(t->me, before), 0); /* nothing moved, nobody waited */
    TEST_STATUS(t, ts_scope_close(scope), r->status);
    TEST_SAYS(t, ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "", r->words);
    TEST_EQ(t, oracle_block_run(x, t->index, &oracle_kinds[0], &from, NULL, false, &at), 0);
    ts_tensor_drop(x);
}

TS_TEST_RANKS(what_has_no_meaning_is_refused_alike, 2, 4, 6)
{
    const refusal all[] = {
        { "S(0), R", "P(sum), R", NULL, TS_DTYPE_F32, 0, TS_ERR_SHAPE,
          "cannot go from S(0) to P(sum)" },
        { "P(sum), R", "P(max), R", NULL, TS_DTYPE_F32, 0, TS_ERR_SHAPE,
          "one kind of partial is not another" },
        { "P(sum), R", "R, R", NULL, TS_DTYPE_BOOL, 0, TS_ERR_DTYPE,
          "sum has no meaning for bool" },
        { "P(and), R", "R, R", NULL, TS_DTYPE_F32, 0, TS_ERR_DTYPE, "and has no meaning for f32" },
        { "R, R", "P(bor), R", NULL, TS_DTYPE_F32, 0, TS_ERR_DTYPE, "bor has no meaning for f32" },
        { "P(norm:2), R", "R, R", NULL, TS_DTYPE_I64, 0, TS_ERR_DTYPE,
          "norm has no meaning for i64" },
        { "P(max), R", "R, R", NULL, TS_DTYPE_C64, 0, TS_ERR_DTYPE, "max has no meaning for c64" },
        { "S(0), R", "R, R", "gready", TS_DTYPE_F32, 0, TS_ERR_ARG, "did you mean 'greedy'" },
        { "S(0), R", "R, R", "fastest of all", TS_DTYPE_F32, 0, TS_ERR_ARG,
          "no planner 'fastest of all'" },
        { "SS(0,2), R", "R, R", "greedy", TS_DTYPE_F32, 0, TS_ERR_ARG, "use 'graph' or 'auto'" },
        { "P(norm:2), R", "R, R", NULL, TS_DTYPE_F32, 16, TS_ERR_MEMORY,
          "a budget of 16 bytes is too small" },
        { "S(0), R", "S(1), R", NULL, TS_DTYPE_F32, -5, TS_ERR_ARG, "a budget of -5 bytes" },
    };
    ts_mesh *mesh = ts_mesh_create(t->me, "a=2, b=*");
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        expect_refusal(t, mesh, &all[i]);
    if (t->count >= 4) {
        const refusal small = { "S(0), S(1)",  "S(1), S(0)",     "graph", TS_DTYPE_F32, 8,
                                TS_ERR_MEMORY, "the budget is 8" };
        expect_refusal(t, mesh, &small);
    }
}

TS_TEST_RANKS(a_target_that_does_not_fit_the_shape, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    const char *to[] = { "S(2)", "RS(0:1,1)", "RS(0:1,1,1)" };
    ts_tensor *x = ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(6, 4), "S(0)", NULL);
    for (int i = 0; i < 3; i++) {
        if (i > 0 && i + 1 != t->count) continue; /* as many sizes as ranks */
        ts_scope_options catching = TS_INIT(ts_scope_options);
        catching.catches = 1;
        ts_scope scope = ts_scope_open_with(t->me, &catching);
        TEST_CHECK(t, ts_redistribute(x, to[i]) == NULL);
        TEST_STATUS(t, ts_scope_close(scope), TS_ERR_SHAPE);
    }
    TEST_CHECK(t, ts_redistribute(x, "S(1)") != NULL);
}

TS_TEST_RANKS(null_arguments, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(4), "S(0)"), *y = x;
    const ts_sharding *none = NULL;
    ts_scope_options catching = TS_INIT(ts_scope_options);
    catching.catches = 1;
    for (int i = 0; i < 4; i++) {
        ts_scope scope = ts_scope_open_with(t->me, &catching);
        if (i == 0) TEST_CHECK(t, ts_redistribute(x, NULL) == NULL);
        if (i == 1) TEST_CHECK(t, ts_redistribute_to(x, NULL) == NULL);
        if (i == 2) TEST_STATUS(t, ts_redistribute_many(&x, &none, 1, &y), TS_ERR_NULL);
        if (i == 3) TEST_STATUS(t, ts_redistribute_many(NULL, &none, 1, &y), TS_ERR_NULL);
        TEST_STATUS(t, ts_scope_close(scope), TS_ERR_NULL);
    }
    TEST_CHECK(t, y == NULL);
}

/* ---- ranks that fail or leave in the middle -------------------------------------------------- */

enum { RANKS_MAX = 8 };

typedef struct scene {
    int64_t culprit, steps; /* which rank goes, after how many moves */
    int32_t how;            /* 0: fails, 1: returns early, 2: moves something else */
    const char *planner;
    ts_status status[RANKS_MAX];
    char text[RANKS_MAX][1200];
} scene;

static ts_status play(ts_rank *me, void *argument)
{
    scene *s = argument;
    int64_t index = ts_rank_index(me);
    ts_mesh *mesh = ts_mesh_create(me, "a=2, b=*");
    const char *place[] = { "S(0), R", "S(1), S(0)", "R, R", "S(0), S(1)" };
    ts_tensor *x = ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(64, 48), place[0], NULL);
    ts_move_options move = TS_INIT(ts_move_options);
    move.planner = s->planner;
    for (int64_t i = 1; x && i < 40; i++) {
        bool now = index == s->culprit && i == s->steps;
        if (now && s->how == 0)
            ts_rank_fail(me, TS_ERR_IO, "the disk of rank %lld is full", (long long)index);
        if (now && s->how == 1) return TS_OK;
        const char *to = now && s->how == 2 ? "S(1), S(1)" : place[i % 4];
        x = ts_redistribute_with(x, ts_sharding_get(mesh, to), &move);
    }
    if (x) (void)ts_tensor_wait(x);
    s->status[index] = ts_rank_status(me);
    const ts_error *error = ts_rank_error(me);
    snprintf(s->text[index], sizeof s->text[index], "%s", error ? error->text : "");
    return ts_rank_status(me);
}

static void perform(test *t, scene *s, int64_t ranks)
{
    ts_world_options options = TS_INIT(ts_world_options);
    char error[2048] = "", name[32];
    options.engine = "threads";
    options.rank_count = ranks;
    options.timeout_ms = 20000;
    ts_status verdict = ts_launch_with(&options, play, s, error, sizeof error);
    TEST_CHECK(t, verdict != TS_OK);
    snprintf(name, sizeof name, "rank %lld", (long long)s->culprit);
    for (int64_t i = 0; i < ranks; i++) {
        if (i == s->culprit) continue;
        TEST_SAY(t, s->status[i] == TS_ERR_PEER, "rank %lld: %s", (long long)i,
                 ts_status_name(s->status[i]));
        TEST_SAYS(t, s->text[i], name);
        TEST_SAYS(t, s->text[i], "redistribute_faults.c");
    }
}

TS_TEST(a_rank_fails_in_the_middle)
{
    const char *planner[] = { "auto", "direct", "graph" };
    for (int64_t i = 0; i < 18 && !test_failed(t); i++) {
        scene *s = calloc(1, sizeof *s);
        *s = (scene){
            .culprit = i % 4, .steps = 1 + i % 7, .how = (int32_t)(i % 2), .planner = planner[i % 3]
        };
        perform(t, s, 4);
        if (s->how == 0) TEST_SAYS(t, s->text[(s->culprit + 1) % 4], "the disk of rank");
        free(s);
    }
}

/* ---- a rank that stops in the middle of large moves ------------------------------------------ */

enum { NOT_BACK = 1 };

typedef struct stopping {
    int64_t culprit;
    _Atomic int64_t moves;             /* of the culprit, before it stopped */
    _Atomic int32_t status[RANKS_MAX]; /* NOT_BACK until the rank has ended */
    char text[RANKS_MAX][1200];
} stopping;

/* Longer than the timeout: until another rank has ended for it. */
static void sleep_past_the_others(stopping *s)
{
    for (int turns = 0; turns < 4000; turns++) {
        for (int64_t i = 0; i < 3; i++)
            if (atomic_load(&s->status[i]) != NOT_BACK) return;
        (void)nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
    }
}

/* The culprit's moves stay in flight when it stops: others read its blocks while it sleeps. */
static ts_status stop_within(ts_rank *me, void *argument)
{
    stopping *s = argument;
    int64_t index = ts_rank_index(me);
    static const char *const place[] = { "S(0)", "S(1)", "R" };
    ts_mesh *mesh = ts_mesh_create(me, "x=*");
    ts_tensor *x = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(1024, 1000), place[0]);
    for (int64_t i = 1; x && i < 4000; i++) {
        ts_tensor *y = ts_redistribute(x, place[i % 3]);
        if (index == s->culprit && i == 7) sleep_past_the_others(s);
        if (y && i % 3 == 0 && ts_tensor_wait(y) != TS_OK) y = NULL;
        if (index == s->culprit) atomic_fetch_add(&s->moves, 1);
        ts_tensor_drop(x);
        x = y;
    }
    const ts_error *error = ts_rank_error(me);
    snprintf(s->text[index], sizeof s->text[index], "%s", error ? error->text : "");
    atomic_store(&s->status[index], ts_rank_status(me));
    return ts_rank_status(me);
}

TS_TEST(a_rank_stops_in_the_middle_of_large_moves)
{
    for (int64_t culprit = 0; culprit < 3 && !test_failed(t); culprit += 2) {
        stopping *s = calloc(1, sizeof *s);
        s->culprit = culprit;
        for (int64_t i = 0; i < RANKS_MAX; i++)
            atomic_store(&s->status[i], NOT_BACK);
        ts_world_options options = TS_INIT(ts_world_options);
        char error[2048] = "", name[64];
        options.engine = "threads";
        options.rank_count = 3;
        options.timeout_ms = 1000;
        TEST_CHECK(t, ts_launch_with(&options, stop_within, s, error, sizeof error) != TS_OK);
        TEST_CHECK(t, s->moves < 3999);
        snprintf(name, sizeof name, "rank %lld", (long long)culprit);
        for (int64_t i = 0; i < 3; i++) {
            int32_t status = atomic_load(&s->status[i]);
            TEST_SAY(t, status == TS_ERR_PEER, "rank %lld: %s", (long long)i,
                     ts_status_name((ts_status)status));
            if (i != culprit) TEST_SAYS(t, s->text[i], name);
        }
        free(s);
    }
}

/* A rank that goes another way than the others: the words name both sides. */
TS_TEST(a_rank_goes_another_way)
{
    scene *s = calloc(1, sizeof *s);
    *s = (scene){ .culprit = 1, .steps = 3, .how = 2, .planner = "direct" };
    ts_world_options options = TS_INIT(ts_world_options);
    char error[2048] = "";
    options.engine = "threads";
    options.rank_count = 4;
    options.timeout_ms = 2000;
    TEST_CHECK(t, ts_launch_with(&options, play, s, error, sizeof error) != TS_OK);
    TEST_SAYS(t, error, "rank");
    for (int64_t i = 0; i < 4; i++)
        TEST_CHECK(t, s->status[i] != TS_OK);
    free(s);
}
