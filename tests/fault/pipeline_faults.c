/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_faults.c - a stage that fails, stalls, leaves or gives another shape in the middle of a
 * schedule: every rank ends within the timeout, with a sentence that names an action. And the n-th
 * allocation of a step that fails, for every n: nothing is left behind. */
#include <stdlib.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "fault/line.h"
#include "harness/test.h"

enum { MICROS = 6, TIMEOUT_MS = 1500 };

typedef enum fault { NONE, FAILS, STALLS, LEAVES, RESHAPES, INTEGER, ABANDONS } fault;

typedef struct trial {
    fault what;
    const char *schedule;
    int64_t fail_at, tried; /* allocations of rank 0's step; 0: none */
    int steps;
    char said[RANKS][1024];
    int64_t ended_ms[RANKS];
} trial;

typedef struct stage_state {
    trial *trial;
    int64_t index;
    int64_t calls; /* forwards so far */
    int step;
    ts_tensor *weight;
} stage_state;

static void misbehave(const stage_state *s, const ts_module_io *io)
{
    struct timespec nap = { .tv_sec = 1, .tv_nsec = 640000000 }; /* a little beyond the timeout */
    if (s->trial->what == FAILS) (void)TSI_FAIL(TS_ERR_ARG, "the module has had enough");
    if (s->trial->what == STALLS) (void)nanosleep(&nap, NULL);
    if (s->trial->what == INTEGER) io->output[0] = ts_cast(io->output[0], TS_DTYPE_I32);
    if (s->trial->what == RESHAPES && s->step > 0) {
        ts_slice_options half = TS_INIT(ts_slice_options);
        half.step = 1;
        half.end = 1;
        half.end_is_given = 1;
        io->output[0] = ts_slice(io->output[0], 0, &half);
    }
}

static void forward(void *state, const ts_module_io *io)
{
    stage_state *s = state;
    io->output[0] = ts_tanh(ts_matmul(io->input[0], s->weight));
    if (s->index == BAD_STAGE && s->calls++ % MICROS == BAD_MICRO) misbehave(s, io);
}

static const ts_module_desc desc = LINE_STAGE(forward);

static ts_tensor *give(void *context, ts_rank *me, int64_t micro, int32_t index)
{
    (void)index;
    ts_mesh *mesh = context;
    (void)me;
    (void)micro;
    return ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(2, WIDTH), NULL);
}

/* The first stage is late with the backwards of its first step: others end their lists. */
static ts_status on_backward(ts_module *m, void *context)
{
    const stage_state *s = context;
    struct timespec nap = { .tv_nsec = 30000000 };
    (void)m;
    if (s->trial->what == ABANDONS && s->index == 0 && s->step == 0) (void)nanosleep(&nap, NULL);
    return TS_OK;
}

static ts_status work(ts_rank *me, void *argument)
{
    trial *l = argument;
    int64_t at = ts_rank_index(me), begin = tsi_clock_ns();
    ts_schedule_options size = { .struct_size = sizeof size,
                                 .ranks = RANKS,
                                 .micro_batches = MICROS };
    ts_schedule *s = NULL;
    if (ts_schedule_generate(l->schedule, &size, &s) != TS_OK) return TS_ERR_INTERNAL;
    ts_mesh *mesh = ts_mesh_create(me, "pp=*"), *self = ts_mesh_self(me);
    stage_state state = { .trial = l, .index = at };
    ts_module *module = ts_module_create(self, &desc, &state);
    ts_param_options normal = TS_INIT(ts_param_options);
    normal.init = ts_init_normal;
    state.weight = ts_module_param(module, "w", TS_SHAPE(WIDTH, WIDTH), &normal);
    ts_module_materialize(module);
    ts_module_on(module, TS_HOOK_BACKWARD_BEFORE, on_backward, &state);
    ts_pipeline *p = s ? line_open(mesh, s, at, &module, give, self) : NULL;
    if (l->fail_at > 0 && at == 0) (void)tsi_alloc_fail_at(l->fail_at);
    for (; p && state.step < l->steps && ts_rank_status(me) == TS_OK; state.step++) {
        if (l->what == LEAVES && at == BAD_STAGE) break;
        (void)ts_pipeline_step(p, NULL, NULL);
        if (l->what != ABANDONS || state.step > 0) continue;
        (void)ts_rank_fail(me, TS_ERR_STATE, "who ended its list abandons the step, too");
        if (ts_rank_recover(me) == TS_OK) (void)ts_module_reset(module);
    }
    if (at == 0) l->tried = tsi_alloc_fail_at(0);
    if (ts_rank_status(me) != TS_OK)
        (void)snprintf(l->said[at], sizeof l->said[at], "%s", ts_rank_error(me)->text);
    l->ended_ms[at] = (tsi_clock_ns() - begin) / 1000000;
    ts_pipeline_destroy(p);
    ts_module_destroy(module);
    ts_schedule_destroy(s);
    return ts_rank_status(me);
}

static ts_status run(trial *l, char *error, size_t size)
{
    ts_world_options options = { .struct_size = sizeof options,
                                 .engine = "threads",
                                 .rank_count = RANKS,
                                 .seed = 3,
                                 .timeout_ms = TIMEOUT_MS };
    return ts_launch_with(&options, work, l, error, size);
}

/* All ranks but those that `excused` names end with a sentence about an action. */
static void all_say(test *t, const trial *l, const char *what, int excused)
{
    for (int r = 0; r < RANKS; r++) {
        if (r == excused) continue;
        TEST_SAY(t, strstr(l->said[r], "stage ") && strstr(l->said[r], "micro-batch "),
                 "%s by %s, rank %d said: %s", what, l->schedule, r, l->said[r]);
        TEST_SAY(t, l->ended_ms[r] < 3 * TIMEOUT_MS + 2000, "%s, rank %d: after %lld ms", what, r,
                 (long long)l->ended_ms[r]);
    }
}

static const char *const schedules[] = { "GPipe", "1F1B", "zb1p" };
enum { SCHEDULES = sizeof schedules / sizeof schedules[0] };

TS_TEST(pipeline_without_faults)
{
    char error[1024] = "";
    for (int i = 0; i < SCHEDULES; i++) {
        trial l = { .schedule = schedules[i], .steps = 2 };
        TEST_SAY(t, run(&l, error, sizeof error) == TS_OK, "%s: %s", schedules[i], error);
    }
}

TS_TEST(pipeline_stage_fails)
{
    char error[1024] = "";
    for (int i = 0; i < SCHEDULES; i++) {
        trial l = { .what = FAILS, .schedule = schedules[i], .steps = 1 };
        TEST_CHECK(t, run(&l, error, sizeof error) != TS_OK);
        TEST_SAYS(t, l.said[1], "stage 1, forward, micro-batch 2: the module has had enough");
        TEST_SAYS(t, error, "stage 1, forward, micro-batch 2: the module has had enough");
        all_say(t, &l, "a failure", -1);
    }
}

/* After a recovery the next step is right, whoever had ended the one that failed. */
TS_TEST(pipeline_goes_on_after_a_recovery)
{
    for (int i = 0; i < SCHEDULES; i++) {
        trial l = { .what = ABANDONS, .schedule = schedules[i], .steps = 3 };
        char error[512] = "";
        ts_status status = run(&l, error, sizeof error);
        TEST_SAY(t, status == TS_OK, "%s: %s", schedules[i], error);
    }
}

TS_TEST(pipeline_stage_stalls)
{
    char error[1024] = "";
    trial l = { .what = STALLS, .schedule = "1F1B", .steps = 1 };
    TEST_CHECK(t, run(&l, error, sizeof error) != TS_OK);
    TEST_SAYS(t, l.said[2], "stage 2, receive, micro-batch 2");
    TEST_SAYS(t, l.said[2], "for rank 1 (last: tanh '1F2'"); /* where it is stuck */
    all_say(t, &l, "a stall", BAD_STAGE);
}

TS_TEST(pipeline_stage_leaves)
{
    char error[1024] = "";
    trial l = { .what = LEAVES, .schedule = "1F1B", .steps = 1 };
    TEST_CHECK(t, run(&l, error, sizeof error) != TS_OK);
    all_say(t, &l, "a rank that left", BAD_STAGE);
}

/* Every allocation of rank 0's step; the step path allocates little besides tensors. */
TS_TEST(pipeline_allocations_may_fail)
{
    char error[1024] = "";
    trial good = { .schedule = "1F1B", .steps = 2 };
    TEST_OK(t, run(&good, error, sizeof error));
    int64_t n = 1;
    for (bool reached = true; reached && n < 20000; n += n < 60 ? 1 : 13) {
        trial l = { .schedule = n % 2 ? "1F1B" : "zb1p", .steps = 2, .fail_at = n };
        int64_t live = tsi_alloc_live();
        ts_status status = run(&l, error, sizeof error);
        reached = l.tried >= n;
        TEST_SAY(t, status == TS_OK || strstr(error, "memory"), "allocation %lld: %s", (long long)n,
                 error);
        TEST_SAY(t, tsi_alloc_live() == live, "allocation %lld leaves %lld behind", (long long)n,
                 (long long)(tsi_alloc_live() - live));
    }
    TEST_CHECK(t, n > 60);
}

TS_TEST(pipeline_other_shape_than_announced)
{
    char error[1024] = "";
    trial l = { .what = RESHAPES, .schedule = "1F1B", .steps = 2 };
    TEST_CHECK(t, run(&l, error, sizeof error) != TS_OK);
    TEST_SAYS(t, l.said[1],
              "stage 1, send, micro-batch 2: pipeline: stage1.0 is f32 (1, 4) R, and was announced "
              "as f32 (2, 4) R");
    all_say(t, &l, "a shape", -1);
}

TS_TEST(pipeline_integers_have_no_gradient)
{
    char error[1024] = "";
    trial l = { .what = INTEGER, .schedule = "1F1B", .steps = 1 };
    TEST_CHECK(t, run(&l, error, sizeof error) != TS_OK);
    TEST_SAYS(t, l.said[1],
              "stage 1, forward, micro-batch 2: pipeline: output 0 is i32, which has "
              "no gradient");
    all_say(t, &l, "an integer", -1);
}
