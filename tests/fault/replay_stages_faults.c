/* SPDX-License-Identifier: Apache-2.0 */
/* replay_stages_faults.c - a replay of a step through stages in which one of them fails, stalls or
 * leaves in the middle of the schedule: it ends with a sentence on all ranks within the timeout,
 * and after recovering the next replay has the bits of one that nothing disturbed. */
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/keep.h"
#include "device/device.h"
#include "fault/line.h"
#include "fault/order.h"
#include "harness/test.h"

enum { MICROS = 4, TIMEOUT_MS = 1000 };
typedef enum fault_kind { NOTHING, FAILS, STALLS, LEAVES } fault_kind;

typedef struct trial {
    test *t;
    const char *schedule;
    fault_kind kind;
    bool late;   /* strikes before the update, else in the forward of a micro-batch */
    bool orders; /* in another one than it was recorded in */
    float weight[RANKS][WIDTH * WIDTH]; /* when all is done */
} trial;

typedef struct stage_state {
    ts_rank *me;
    const trial *trial;
    ts_mesh *mesh;
    ts_tensor *weight, *x;
    ts_pipeline *pipeline;
    ts_optimizer *optimizer;
    int64_t calls;
    bool armed;
} stage_state;

/* Kept as a piece of work, so that it is where a kernel of the replay would be. */
static ts_status strike(void *context)
{
    stage_state *s = context;
    if (!s->armed) return TS_OK;
    s->armed = false;
    if (s->trial->kind == STALLS) usleep(1000 * (TIMEOUT_MS + 80));
    return s->trial->kind == FAILS ? ts_rank_fail(s->me, TS_ERR_STATE, "the stage broke") : TS_OK;
}

static void place(stage_state *s)
{
    (void)tsi_keep_work(s->me, (tsi_kept_work){ strike, s, NULL, &order_loose });
}

static void forward(void *state, const ts_module_io *io)
{
    stage_state *s = state;
    bool bad = ts_rank_index(s->me) == BAD_STAGE && s->calls++ % MICROS == BAD_MICRO;
    io->output[0] = ts_tanh(ts_matmul(io->input[0], s->weight));
    if (bad && !s->trial->late) place(s);
}

static const ts_module_desc desc = LINE_STAGE(forward);

static ts_tensor *give(void *context, ts_rank *me, int64_t micro, int32_t index)
{
    (void)me, (void)micro, (void)index;
    return ((stage_state *)context)->x;
}

static ts_status step(void *context)
{
    stage_state *s = context;
    ts_status status = ts_pipeline_step(s->pipeline, NULL, NULL);
    if (status == TS_OK && s->trial->late && ts_rank_index(s->me) == BAD_STAGE) place(s);
    if (status != TS_OK) return status;
    return ts_optimizer_step_with(s->optimizer, TS_OPTIONS(ts_step_options, .norm_max = 1.0,
                                                           .stages = ts_mesh_group(s->mesh, "pp")));
}

static ts_pipeline *open_pipeline(stage_state *s, ts_module **module)
{
    ts_schedule *schedule = NULL;
    if (ts_schedule_generate(
            s->trial->schedule,
            TS_OPTIONS(ts_schedule_options, .ranks = RANKS, .micro_batches = MICROS),
            &schedule) != TS_OK)
        return NULL;
    ts_pipeline *made = line_open(s->mesh, schedule, ts_rank_index(s->me), module, give, s);
    ts_schedule_destroy(schedule);
    return made;
}

/* A replay on which the fault falls, and one after it if the ranks come back. */
static ts_status disturbed(ts_step *again, stage_state *s)
{
    fault_kind kind = s->trial->kind;
    bool victim = ts_rank_index(s->me) == BAD_STAGE;
    if (kind == NOTHING) return ts_step_replay(again);
    if (victim && kind == LEAVES) return TS_ERR_STATE;
    s->armed = victim;
    ts_status status = ts_step_replay(again);
    TEST_SAY(s->trial->t, status != TS_OK, "rank %d went on", (int)ts_rank_index(s->me));
    if (kind != FAILS) return status;
    TEST_SAYS(s->trial->t, ts_rank_error(s->me)->text, "the stage broke");
    TEST_OK(s->trial->t, ts_rank_recover(s->me));
    return ts_step_replay(again);
}

static void look(const stage_state *s, trial *l)
{
    ts_array to = TS_INIT(ts_array);
    to.meta = (ts_meta){ .shape = TS_SHAPE(WIDTH, WIDTH), .dtype = TS_DTYPE_F32 };
    to.data = l->weight[ts_rank_index(s->me)];
    TEST_OK(l->t, ts_tensor_read(s->weight, &to));
}

static ts_status work(ts_rank *me, void *argument)
{
    trial *l = argument;
    stage_state s = { .me = me, .trial = l, .mesh = ts_mesh_create(me, "pp=*") };
    ts_mesh *self = ts_mesh_self(me);
    ts_module *module = ts_module_create(self, &desc, &s);
    s.weight = ts_module_param(module, "w", TS_SHAPE(WIDTH, WIDTH),
                               TS_OPTIONS(ts_param_options, .init = ts_init_normal));
    ts_module_materialize(module);
    s.x = ts_ones(self, TS_DTYPE_F32, TS_SHAPE(2, WIDTH), NULL);
    s.pipeline = open_pipeline(&s, &module);
    s.optimizer = ts_sgd_create(module, TS_OPTIONS(ts_sgd_options, .lr = 0.1));
    ts_status status = s.pipeline && s.optimizer ? step(&s) : ts_rank_status(me);
    ts_step *again = status == TS_OK ? ts_step_record(me, step, &s) : NULL;
    if (!again) status = ts_rank_status(me);
    bool graphs = !tsi_rank_device_of(me)->device->host_readable; /* they keep their order */
    if (again && l->orders && !graphs) status = order_anew(l->t, again, HOISTED);
    if (status == TS_OK) status = ts_group_barrier(ts_group_world(me), NULL);
    if (status == TS_OK) status = disturbed(again, &s);
    if (status == TS_OK) look(&s, l);
    ts_step_destroy(again);
    ts_optimizer_destroy(s.optimizer);
    ts_pipeline_destroy(s.pipeline);
    ts_module_destroy(module);
    return status;
}

static ts_status launch(trial *l, char *error, size_t size)
{
    ts_world_options options = { .struct_size = sizeof options,
                                 .engine = "threads",
                                 .rank_count = RANKS,
                                 .seed = 3,
                                 .timeout_ms = l->kind == STALLS ? TIMEOUT_MS : 20000 };
    return ts_launch_with(&options, work, l, error, size);
}

static const char *const schedules[] = { "GPipe", "1F1B", "zb1p" };

TS_TEST_LONG(a_stage_fails_in_a_replay, 120)
{
    char error[1024] = "";
    for (int i = 0; i < 12; i++) {
        trial l = { .t = t, .schedule = schedules[i / 4], .orders = i & 1, .late = i & 2 };
        trial usual = l;
        TEST_SAY(t, launch(&usual, error, sizeof error) == TS_OK, "%s: %s", l.schedule, error);
        l.kind = FAILS;
        TEST_SAY(t, launch(&l, error, sizeof error) == TS_OK, "%s: %s", l.schedule, error);
        TEST_SAY(t, memcmp(l.weight, usual.weight, sizeof l.weight) == 0, "%s, %d: other weights",
                 l.schedule, i);
    }
}

TS_TEST_LONG(a_stage_stalls_or_leaves_in_a_replay, 120)
{
    char error[1024] = "";
    for (int i = 0; i < 3; i++) {
        trial stalls = { .t = t, .schedule = schedules[i], .kind = STALLS, .orders = i & 1 };
        TEST_CHECK(t, launch(&stalls, error, sizeof error) != TS_OK);
        TEST_SAYS(t, error, "rank");
        trial leaves = { .t = t, .schedule = schedules[i], .kind = LEAVES, .orders = !(i & 1) };
        TEST_CHECK(t, launch(&leaves, error, sizeof error) != TS_OK);
        TEST_SAYS(t, error, "rank 1");
    }
}
