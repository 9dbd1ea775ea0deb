/* SPDX-License-Identifier: Apache-2.0 */
/* 08_pipeline.c - a network cut into stages, one per rank, trained by a zero-bubble schedule.
 *
 * Every stage is y = tanh(x W) with its own weight; the last one also takes what the first one
 * made, a connection that skips all stages between. What a stage is given is said once, in a table;
 * the schedule says in which order the ranks work, and the pipeline sends what is needed:
 *
 *   rank 0   0F0 0F1 0F2 0I0 0W0 0F3 ...      F forward, I gradient of inputs,
 *   rank 1       1F0 1F1 1I0 1F2 1I1 ...      W gradient of weights, which fills the gaps
 *
 * The gradients of the first step are checked against the whole network on each rank alone: weights
 * are initialised by name, so it has the same ones. Run it:  TESSERA_RANKS=3 ./08_pipeline */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <tessera/tessera.h>

enum { ROWS = 4, WIDTH = 8, MICRO = 6, STAGES_MAX = 16, STEPS = 30 };

/* ---- the network ----------------------------------------------------------------------------- */

typedef struct layer {
    ts_tensor *weight;
} layer;

static void forward(void *state, const ts_module_io *io)
{
    const layer *l = state;
    ts_tensor *x = io->input[0];
    for (int32_t i = 1; i < io->input_count; i++)
        x = ts_add(x, io->input[i]);
    io->output[0] = ts_tanh(ts_matmul(x, l->weight));
}

static const ts_module_desc layer_desc = { .struct_size = sizeof(ts_module_desc),
                                           .type = "layer",
                                           .input_count = 1,
                                           .output_count = 1,
                                           .forward = forward };

static ts_module *layer_make(ts_mesh *mesh, layer *l, int64_t index)
{
    ts_module *m = ts_module_create(mesh, &layer_desc, l);
    ts_param_options options = TS_INIT(ts_param_options);
    double deviation = 0.5;
    char name[32];
    options.init = ts_init_normal;
    options.init_state = &deviation;
    (void)snprintf(name, sizeof name, "layer.%lld", (long long)index);
    l->weight = ts_module_param(m, name, TS_SHAPE(WIDTH, WIDTH), &options);
    ts_module_materialize(m);
    return m;
}

/* ---- data ------------------------------------------------------------------------------------ */

/* Rows of micro-batch *context; what they should become is the next one's. */
static ts_status pixel(const int64_t *global, void *element, void *context)
{
    int64_t i = *(const int64_t *)context * ROWS * WIDTH + global[0] * WIDTH + global[1];
    *(double *)element = 0.5 * sin((double)i);
    return TS_OK;
}

static ts_tensor *rows_of(ts_mesh *self, int64_t micro)
{
    ts_meta meta = { .shape = TS_SHAPE(ROWS, WIDTH), .dtype = TS_DTYPE_F64 };
    return ts_cast(ts_from_function(pixel, &micro, ts_sharding_get(self, "R"), meta), TS_DTYPE_F32);
}

static ts_tensor *give(void *context, ts_rank *me, int64_t micro, int32_t index)
{
    (void)me;
    (void)index;
    return rows_of(context, micro);
}

/* A micro-batch's share of the mean over the whole batch: the step's loss is their sum. */
static ts_tensor *loss_of(void *context, ts_rank *me, int64_t micro, ts_tensor *const *output,
                          int32_t count)
{
    (void)me;
    (void)count;
    ts_tensor *mean = ts_mse_loss(output[0], rows_of(context, micro + 1), NULL);
    return ts_mul_scalar(mean, 1.0 / MICRO);
}

/* ---- the pipeline ---------------------------------------------------------------------------- */

typedef struct program {
    ts_rank *me;
    ts_mesh *mesh, *self;
    int64_t index, count; /* of stages */
    layer mine;
    ts_module *module;
    ts_pipeline *pipeline;
} program;

static void open_pipeline(program *p)
{
    ts_stage stage[STAGES_MAX];
    ts_stage_input input[STAGES_MAX][2];
    for (int64_t g = 0; g < p->count; g++) {
        bool skips = g > 1 && g + 1 == p->count;
        input[g][0] = (ts_stage_input){ (int32_t)g - 1, 0 }; /* -1: the step's input */
        input[g][1] = (ts_stage_input){ 0, 0 };
        stage[g] = (ts_stage){ .module = g == p->index ? &p->module : NULL,
                               .module_count = 1,
                               .input = input[g],
                               .input_count = skips ? 2 : 1,
                               .output_count = 1 };
    }
    ts_stages stages = { .stage = stage, .count = p->count };
    ts_schedule_options size = { .struct_size = sizeof size,
                                 .ranks = p->count,
                                 .micro_batches = MICRO };
    ts_schedule *schedule = NULL;
    if (ts_schedule_generate("InterleavedZeroBubble", &size, &schedule) != TS_OK) return;
    ts_pipeline_options options = TS_INIT(ts_pipeline_options);
    options.input = give;
    options.loss = loss_of;
    options.context = p->self;
    p->pipeline = ts_pipeline_create(p->mesh, &stages, schedule, &options);
    ts_schedule_destroy(schedule);
}

/* ---- the check ------------------------------------------------------------------------------- */

/* How far the gradient of this stage's weight is from that of the whole network. */
static double compare(const program *p)
{
    layer all[STAGES_MAX];
    ts_module *module[STAGES_MAX];
    for (int64_t g = 0; g < p->count; g++)
        module[g] = layer_make(p->self, &all[g], g);
    for (int64_t micro = 0; micro < MICRO; micro++) {
        ts_scope scope = ts_scope_open(p->me, "whole");
        ts_tape_begin(p->me);
        ts_tensor *x = rows_of(p->self, micro), *first = NULL;
        for (int64_t g = 0; g < p->count; g++) {
            if (g > 1 && g + 1 == p->count) x = ts_add(x, first);
            x = TS_CALL(module[g], x);
            if (g == 0) first = x;
        }
        ts_backward(loss_of(p->self, p->me, micro, &x, 1), NULL);
        ts_scope_close(scope);
    }
    double worst = 1e30;
    ts_tensor *ours = ts_tensor_grad(p->mine.weight);
    ts_tensor *theirs = ts_tensor_grad(all[p->index].weight);
    ts_tensor_item(ts_amax(ts_abs(ts_sub(ours, theirs)), NULL, 0, 0), &worst);
    for (int64_t g = 0; g < p->count; g++)
        ts_module_destroy(module[g]);
    return worst;
}

/* ---- training -------------------------------------------------------------------------------- */

static void train(program *p)
{
    ts_adamw_options options = TS_INIT(ts_adamw_options);
    options.lr = 0.02;
    ts_optimizer *optimizer = ts_adamw_create(p->module, &options);
    double first = 0, loss = 0, norm = 0;
    for (int64_t step = 0; step < STEPS && ts_rank_status(p->me) == TS_OK; step++) {
        ts_pipeline_step(p->pipeline, NULL, &loss);
        if (step == 0) {
            double worst = compare(p);
            first = loss;
            if (ts_rank_status(p->me) == TS_OK && !(worst < 1e-6))
                ts_rank_fail(p->me, TS_ERR_STATE, "stage %lld: its gradient is %g away",
                             (long long)p->index, worst);
        }
        ts_pipeline_clip_grad_norm(p->pipeline, 1.0, &norm); /* over all stages */
        ts_optimizer_step(optimizer);
    }
    if (ts_rank_status(p->me) == TS_OK && !(loss < first))
        ts_rank_fail(p->me, TS_ERR_STATE, "the loss went from %g to %g", first, loss);
    if (p->index == 0 && ts_rank_status(p->me) == TS_OK)
        printf("%lld stages, %d micro-batches: gradients as those of the whole network; "
               "loss %.3f to %.3f in %d steps\n",
               (long long)p->count, MICRO, first, loss, STEPS);
    ts_optimizer_destroy(optimizer);
}

static ts_status work(ts_rank *me, void *arg)
{
    (void)arg;
    program p = { .me = me, .mesh = ts_mesh_create(me, "pp=*") };
    p.index = ts_mesh_coord(p.mesh, "pp");
    p.count = ts_mesh_size(p.mesh, "pp");
    p.self = ts_pipeline_mesh(p.mesh, NULL);
    if (p.count > STAGES_MAX) return ts_rank_fail(me, TS_ERR_ARG, "at most %d stages", STAGES_MAX);
    p.module = layer_make(p.self, &p.mine, p.index);
    open_pipeline(&p);
    if (p.pipeline) train(&p);
    ts_pipeline_destroy(p.pipeline);
    ts_module_destroy(p.module);
    return ts_rank_sync(me);
}

int main(int argc, char **argv)
{
    return ts_launch(argc, argv, work, NULL);
}
