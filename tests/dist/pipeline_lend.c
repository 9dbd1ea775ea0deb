/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_lend.c - between ranks of one process a tensor is not copied: the next stage reads the
 * memory that the stage before it wrote, and lets go of it. */
#include "harness/test.h"
#include "parallel/lend.h"
#include "tessera/tessera.h"

enum { MICROS = 6, ROWS = 64, WIDTH = 32, STEPS = 8 };

/* Of threads: stage 0 writes, stage 1 compares what it gets in the same micro-batch. */
static const void *made[MICROS];

typedef struct stage {
    test *t;
    ts_tensor *weight;
    int64_t index, calls;
    int64_t same, other; /* memory */
} stage;

static const void *memory_of(ts_tensor *x)
{
    ts_array view = TS_INIT(ts_array);
    return ts_tensor_view(x, &view) == TS_OK ? view.data : NULL;
}

static void forward(void *state, const ts_module_io *io)
{
    stage *s = state;
    int64_t micro = s->calls++ % MICROS;
    if (s->index == 1) {
        bool same = memory_of(io->input[0]) == made[micro];
        s->same += same;
        s->other += !same;
    }
    io->output[0] = ts_tanh(ts_matmul(io->input[0], s->weight));
    if (s->index == 0) made[micro] = memory_of(io->output[0]);
}

static ts_tensor *input_of(void *context, ts_rank *me, int64_t micro, int32_t index)
{
    (void)me;
    (void)index;
    return ts_full(0.1 * (double)micro, context, TS_DTYPE_F32, TS_SHAPE(ROWS, WIDTH), NULL);
}

static ts_tensor *loss_of(void *context, ts_rank *me, int64_t micro, ts_tensor *const *output,
                          int32_t count)
{
    (void)context, (void)me, (void)micro, (void)count;
    return ts_mean(output[0], NULL, 0, 0);
}

static ts_pipeline *make(test *t, ts_mesh *self, ts_module *module)
{
    ts_stage_input input[2] = { { -1, 0 }, { 0, 0 } };
    ts_stage part[2];
    for (int64_t g = 0; g < 2; g++)
        part[g] = (ts_stage){ .module = g == t->index ? &module : NULL,
                              .module_count = 1,
                              .input = &input[g],
                              .input_count = 1,
                              .output_count = 1 };
    ts_schedule_options size = { .struct_size = sizeof size, .ranks = 2, .micro_batches = MICROS };
    ts_schedule *schedule = NULL;
    TEST_OK(t, ts_schedule_generate("1F1B", &size, &schedule));
    ts_pipeline_options options = TS_INIT(ts_pipeline_options);
    options.input = input_of;
    options.loss = loss_of;
    options.context = self;
    ts_stages stages = { .stage = part, .count = 2 };
    ts_pipeline *p = ts_pipeline_create(ts_mesh_create(t->me, "pp=2"), &stages, schedule, &options);
    ts_schedule_destroy(schedule);
    return p;
}

/* What the rank holds when nothing is on its way any more: blocks that were lent or sent come back
 * when the queues of both ranks have passed them, and the next scope that closes lets go of them.
 */
static void look_at_memory(test *t, ts_memory *out)
{
    TEST_OK(t, ts_rank_sync(t->me));
    TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
    TEST_OK(t, ts_rank_sync(t->me));
    TEST_OK(t, ts_scope_close(ts_scope_open(t->me, NULL)));
    TEST_OK(t, ts_rank_memory(t->me, out));
}

TS_TEST_RANKS(pipeline_lends, 2)
{
    static const ts_module_desc desc = { .struct_size = sizeof desc,
                                         .type = "stage",
                                         .input_count = 1,
                                         .output_count = 1,
                                         .forward = forward };
    ts_mesh *self = ts_mesh_self(t->me);
    stage state = { .t = t, .index = t->index };
    ts_module *module = ts_module_create(self, &desc, &state);
    ts_param_options normal = TS_INIT(ts_param_options);
    normal.init = ts_init_normal;
    state.weight = ts_module_param(module, "w", TS_SHAPE(WIDTH, WIDTH), &normal);
    TEST_OK(t, ts_module_materialize(module));
    ts_pipeline *p = make(t, self, module);
    ts_memory before = TS_INIT(ts_memory), after = TS_INIT(ts_memory);
    for (int i = 0; i < STEPS && p; i++) {
        TEST_OK(t, ts_pipeline_step(p, NULL, NULL));
        look_at_memory(t, i == 0 ? &before : &after);
    }
    if (tsi_lends(t->me) && t->index == 1) TEST_EQ(t, state.same, MICROS * STEPS);
    TEST_SAY(t, after.live <= before.live, "%lld bytes are left of %d steps",
             (long long)(after.live - before.live), STEPS - 1);
    ts_pipeline_destroy(p);
    ts_module_destroy(module);
}
