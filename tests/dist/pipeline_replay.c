/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_replay.c - steps of pipelines that are recorded once and run again, also in other
 * orders: the bits of the same steps run as usual, of every schedule; what the host reads of all
 * stages is refused in them. */
#include <math.h>
#include <time.h>

#include "dist/token_util.h"
#include "harness/test.h"
#include "tensor/tensor.h"
#include "tessera/tessera.h"

enum { STEPS = 13, MICROS = 4, ROWS = 12, CONTEXT = 6, VOCAB = 23 };

typedef struct way {
    const char *mesh, *schedule;
    int64_t last; /* which rank has the last stage */
    bool tied, units;
} way;

typedef struct trained {
    ts_rank *me;
    ts_mesh *mesh;
    ts_model *model;
    ts_pipeline *pipeline;
    ts_optimizer *optimizer;
    ts_tensor *ids, *labels;          /* where the step reads */
    double norm[STEPS], after[STEPS]; /* after: the loss of updated weights */
} trained;

/* ---- a model in stages ----------------------------------------------------------------------- */

static ts_tensor *input_of(void *context, ts_rank *me, int64_t micro, int32_t index)
{
    (void)me, (void)index;
    const trained *r = context;
    return ts_micro_batch(r->ids, 0, MICROS, micro);
}

static ts_tensor *loss_of(void *context, ts_rank *me, int64_t micro, ts_tensor *const *output,
                          int32_t count)
{
    (void)me, (void)count;
    const trained *r = context;
    ts_tensor *labels = ts_micro_batch(r->labels, 0, MICROS, micro);
    return ts_mul_scalar(ts_cross_entropy_sum(output[0], labels), 1.0 / (ROWS * CONTEXT));
}

static ts_tensor *tokens(const trained *r, int64_t salt)
{
    return tokens_of(r->model, ROWS, CONTEXT, (token_recipe){ VOCAB, salt });
}

static void make(test *t, const way *w, trained *r)
{
    ts_model_config config = { .struct_size = sizeof config,
                               .family = w->tied ? TS_MODEL_GPT2 : TS_MODEL_LLAMA,
                               .vocab = VOCAB,
                               .hidden = 16,
                               .intermediate = 24,
                               .layers = 4,
                               .heads = 4,
                               .kv_heads = 4,
                               .head_dim = 4,
                               .positions = CONTEXT,
                               .tied = w->tied };
    *r = (trained){ .me = t->me, .mesh = ts_mesh_create(t->me, w->mesh) };
    r->model = ts_model_declare(ts_pipeline_mesh(r->mesh, NULL), &config, NULL);
    ts_schedule_options size = { .struct_size = sizeof size, .micro_batches = MICROS };
    size.ranks = ts_mesh_size(r->mesh, "pp");
    ts_schedule *schedule = NULL;
    TEST_OK(t, ts_schedule_generate(w->schedule, &size, &schedule));
    ts_model_pipeline_options options = TS_INIT(ts_model_pipeline_options);
    options.mesh = r->mesh;
    options.schedule = schedule;
    options.input = input_of;
    options.loss = loss_of;
    options.context = r;
    r->pipeline = ts_model_pipeline(r->model, &options);
    ts_schedule_destroy(schedule);
    if (w->units) TEST_OK(t, ts_model_fsdp(r->model, NULL));
    TEST_OK(t, ts_model_materialize(r->model));
    r->optimizer = ts_adamw_create(ts_model_module(r->model),
                                   TS_OPTIONS(ts_adamw_options, .lr = 1e-2, .weight_decay = 0.1));
    r->ids = ts_tensor_retain(tokens(r, 0));
    r->labels = ts_tensor_retain(tokens(r, 1));
}

static void unmake(trained *r)
{
    ts_tensor_release(r->ids);
    ts_tensor_release(r->labels);
    ts_optimizer_destroy(r->optimizer);
    ts_pipeline_destroy(r->pipeline);
    ts_model_destroy(r->model);
}

/* ---- its steps ------------------------------------------------------------------------------- */

static ts_status step(void *context)
{
    const trained *r = context;
    ts_scope scope = ts_scope_open(r->me, "step");
    ts_status status = ts_pipeline_step(r->pipeline, NULL, NULL);
    if (status == TS_OK)
        status = ts_optimizer_step_with(
            r->optimizer,
            TS_OPTIONS(ts_step_options, .norm_max = 0.5, .stages = ts_mesh_group(r->mesh, "pp")));
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

static ts_status step_with_loss(void *context)
{
    const trained *r = context;
    double loss = 0;
    return ts_pipeline_step(r->pipeline, NULL, &loss);
}

static ts_status norm_alone(void *context)
{
    const trained *r = context;
    double norm = 0;
    return ts_pipeline_clip_grad_norm(r->pipeline, 1.0, &norm);
}

static ts_status sum_alone(void *context)
{
    const trained *r = context;
    double sum = 0;
    return ts_pipeline_sum(r->pipeline, 1.0, &sum);
}

static void note(test *t, trained *r, int64_t number)
{
    ts_step_outcome is = TS_INIT(ts_step_outcome);
    TEST_OK(t, ts_optimizer_outcome(r->optimizer, number + 1, &is));
    r->norm[number] = is.norm;
    /* Between replays the pipeline runs as usual, with loans where tensors are not copied. */
    TEST_OK(t, ts_pipeline_forward(r->pipeline, NULL, &r->after[number]));
    TEST_OK(t, ts_optimizer_rate(r->optimizer, 1e-2 / (double)(number + 2)));
}

static void order_anew(test *t, ts_step *recorded, int64_t n)
{
    if (n % 3 != 2 || !tsi_rank_device_of(t->me)->device->host_readable) return;
    ts_program *program = NULL, *better = NULL;
    int64_t wrong = -1;
    ts_reorder_options options;
    ts_reorder_options_init(&options);
    options.tries = 20;
    TEST_OK(t, ts_step_program(recorded, &program));
    TEST_OK(t, ts_program_check(program, NULL, NULL, NULL, &wrong));
    TEST_CHECK(t, wrong == 0);
    TEST_OK(t, ts_program_reorder(program, &options, NULL, NULL, &better));
    TEST_OK(t, ts_step_reorder(recorded, n == 8 ? NULL : better, 0, NULL));
    ts_program_destroy(better);
    ts_program_destroy(program);
}

static void feed(trained *r, int64_t number)
{
    ts_tensor_release(r->ids);
    ts_tensor_release(r->labels);
    r->ids = ts_tensor_retain(tokens(r, number));
    r->labels = ts_tensor_retain(tokens(r, number + 1));
}

/* What this rank's stages read. */
static void feed_recorded(test *t, const way *w, const trained *r, ts_step *recorded, int64_t n)
{
    int64_t stage = 2 * t->index / t->count;
    if (stage == 0) TEST_OK(t, ts_step_input(recorded, r->ids, tokens(r, n)));
    if (stage == w->last) TEST_OK(t, ts_step_input(recorded, r->labels, tokens(r, n + 1)));
}

/* `replays`: the third is recorded, the rest run it again. */
static void run(test *t, const way *w, trained *r, bool replays)
{
    ts_step *recorded = NULL;
    for (int64_t n = 0; n < STEPS && !ts_rank_status(t->me); n++) {
        ts_scope scope = ts_scope_open(t->me, NULL);
        if (recorded) {
            order_anew(t, recorded, n);
            feed_recorded(t, w, r, recorded, n);
            TEST_OK(t, ts_step_replay(recorded));
        } else {
            feed(r, n);
            bool records = replays && n == 2;
            if (records) recorded = ts_step_record(t->me, step, r);
            TEST_SAY(t, !records || recorded, "%s",
                     ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "");
            if (!records) TEST_OK(t, step(r));
        }
        TEST_OK(t, ts_scope_close(scope));
        note(t, r, n);
    }
    ts_step_destroy(recorded);
}

static void check_way(test *t, const way *w)
{
    trained usual, again;
    make(t, w, &usual);
    run(t, w, &usual, false);
    make(t, w, &again);
    run(t, w, &again, true);
    for (int64_t n = 0; n < STEPS; n++)
        TEST_SAY(t, usual.norm[n] == again.norm[n] && usual.after[n] == again.after[n],
                 "%s, %s, step %lld: norm %.17g, then loss %.17g; replayed %.17g, %.17g", w->mesh,
                 w->schedule, (long long)n, usual.norm[n], usual.after[n], again.norm[n],
                 again.after[n]);
    TEST_CHECK(t, usual.after[STEPS - 1] < usual.after[0] && usual.norm[0] > 0); /* it learns */
    unmake(&again);
    unmake(&usual);
}

/* Ten replays each. */
TS_TEST_RANKS(pipelines_run_again, 2)
{
    const way ways[] = { { "pp=2", "1F1B", .last = 1 },
                         { "pp=2", "1F1B", .last = 1, .tied = true },
                         { "pp=2", "Interleaved1F1B", .last = 1 },
                         { "pp=2", "InterleavedZeroBubble", .last = 1, .tied = true },
                         { "pp=2", "ZBVZeroBubble", .last = 0 } };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (test_tries(t)) check_way(t, &ways[i]);
}

TS_TEST_RANKS(pipelines_of_shards_run_again, 4)
{
    const way ways[] = { { "pp=2, fsdp=2", "1F1B", .last = 1, .units = true },
                         { "pp=2, tp=2", "1F1B", .last = 1 } };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (test_tries(t)) check_way(t, &ways[i]);
}

typedef struct loss_step {
    const trained *r;
    ts_tensor *loss; /* where the last stage is; else NULL */
} loss_step;

static ts_status step_of_loss(void *context)
{
    const loss_step *s = context;
    ts_status status = ts_pipeline_step(s->r->pipeline, NULL, NULL);
    if (status != TS_OK) return status;
    return ts_optimizer_step_with(
        s->r->optimizer, TS_OPTIONS(ts_step_options, .stages = ts_mesh_group(s->r->mesh, "pp"),
                                    .loss = s->loss, .adds_loss = 1, .skips = 1));
}

/* The last stage knows a loss; all ranks hear of it, and none updates if it is not finite: in the
 * recorded step, and in its replays. */
TS_TEST_RANKS(a_loss_of_the_last_stage_is_that_of_all, 2)
{
    const way w = { "pp=2", "1F1B", .last = 1 };
    const double told[] = { 2.5, 2.5, (double)NAN, 4.5 };
    trained r;
    loss_step s = { &r, NULL };
    ts_step *recorded = NULL;
    make(t, &w, &r);
    for (int64_t n = 0; n < 4 && !ts_rank_status(t->me); n++) {
        ts_scope scope = ts_scope_open(t->me, NULL);
        ts_tensor *number = ts_full(told[n], ts_module_mesh(ts_model_module(r.model)), TS_DTYPE_F64,
                                    TS_SHAPE_SCALAR, NULL);
        if (n == 0 && t->index == w.last) s.loss = ts_tensor_retain(number);
        if (n == 0) TEST_OK(t, step_of_loss(&s));
        if (n == 1) recorded = ts_step_record(t->me, step_of_loss, &s);
        if (n > 1 && s.loss) TEST_OK(t, ts_step_input(recorded, s.loss, number));
        if (n > 1) TEST_OK(t, ts_step_replay(recorded));
        TEST_OK(t, ts_scope_close(scope));
        ts_step_outcome is = TS_INIT(ts_step_outcome);
        TEST_OK(t, ts_optimizer_outcome(r.optimizer, n + 1, &is));
        TEST_SAY(t, n == 2 ? isnan(is.loss) && !is.updated : is.loss == told[n] && is.updated,
                 "step %lld: loss %g, %d", (long long)n, is.loss, is.updated);
    }
    ts_step_destroy(recorded);
    ts_tensor_release(s.loss);
    unmake(&r);
}

/* By each rank, before anything is sent; the pipeline goes on. */
TS_TEST_RANKS(numbers_of_all_stages_are_refused, 1)
{
    const way w = { "pp=1", "1F1B", .last = 0 };
    const ts_step_fn fn[] = { step_with_loss, norm_alone, sum_alone };
    const char *want[] = { "reads the loss", "reads the norm", "reads a sum over stages" };
    trained r;
    make(t, &w, &r);
    TEST_OK(t, step(&r));
    for (int i = 0; i < 3; i++) {
        TEST_CHECK(t, ts_step_record(t->me, fn[i], &r) == NULL);
        TEST_SAYS(t, ts_rank_error(t->me)->text, want[i]);
        TEST_OK(t, ts_rank_recover(t->me));
        TEST_OK(t, step(&r));
    }
    unmake(&r);
}

/* ---- stages that tell each other what they send ---------------------------------------------- */

typedef struct layer {
    ts_pipeline *pipeline;
    ts_mesh *self;
    ts_tensor *weight;
} layer;

static void layer_forward(void *state, const ts_module_io *io)
{
    const layer *l = state;
    io->output[0] = ts_tanh(ts_matmul(io->input[0], l->weight));
}

static ts_tensor *layer_input(void *context, ts_rank *me, int64_t micro, int32_t index)
{
    (void)me, (void)micro, (void)index;
    return ts_ones(((const layer *)context)->self, TS_DTYPE_F32, TS_SHAPE(2, 4), NULL);
}

static ts_tensor *layer_loss(void *context, ts_rank *me, int64_t micro, ts_tensor *const *output,
                             int32_t count)
{
    (void)context, (void)me, (void)micro, (void)count;
    return ts_sum(output[0], NULL, 0, 0);
}

static ts_status layer_step(void *context)
{
    return ts_pipeline_step(((const layer *)context)->pipeline, NULL, NULL);
}

static void make_layers(test *t, layer *l, ts_module *module)
{
    const ts_stage_input input[] = { { -1, 0 }, { 0, 0 } };
    ts_stage stages[2] = { 0 };
    for (int64_t g = 0; g < 2; g++)
        stages[g] = (ts_stage){ .module = g == t->index ? &module : NULL,
                                .module_count = 1,
                                .input = &input[g],
                                .input_count = 1,
                                .output_count = 1 };
    ts_schedule_options size = { .struct_size = sizeof size, .ranks = 2, .micro_batches = 2 };
    ts_schedule *schedule = NULL;
    TEST_OK(t, ts_schedule_generate("1F1B", &size, &schedule));
    ts_pipeline_options options = TS_INIT(ts_pipeline_options);
    options.input = layer_input;
    options.loss = layer_loss;
    options.context = l;
    l->pipeline =
        ts_pipeline_create(ts_mesh_create(t->me, "pp=*"),
                           &(ts_stages){ .stage = stages, .count = 2 }, schedule, &options);
    TEST_CHECK(t, l->pipeline != NULL);
    ts_schedule_destroy(schedule);
}

/* Between processes a failure may be heard before what the failed rank sent: both have left the
 * last operation some time ago. */
static void part(test *t)
{
    TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
    (void)nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
}

/* On both ranks at once, without waiting for each other; the pipeline goes on. */
TS_TEST_RANKS(first_steps_that_tell_shapes_are_refused, 2)
{
    static const ts_module_desc desc = { .struct_size = sizeof desc,
                                         .type = "layer",
                                         .input_count = 1,
                                         .output_count = 1,
                                         .forward = layer_forward };
    layer l = { .self = ts_mesh_self(t->me) };
    ts_module *module = ts_module_create(l.self, &desc, &l);
    l.weight = ts_module_param(module, "w", TS_SHAPE(4, 4), NULL);
    TEST_OK(t, ts_module_materialize(module));
    make_layers(t, &l, module);
    part(t);
    TEST_CHECK(t, ts_step_record(t->me, layer_step, &l) == NULL);
    TEST_STATUS(t, ts_rank_status(t->me), TS_ERR_STATE);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "run one before a step is recorded");
    TEST_OK(t, ts_rank_recover(t->me));
    TEST_OK(t, layer_step(&l));
    TEST_OK(t, ts_tensor_grad_clear(l.weight)); /* a step that adds to it is another each time */
    ts_step *recorded = ts_step_record(t->me, layer_step, &l);
    TEST_SAY(t, recorded, "%s", ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "");
    TEST_OK(t, ts_tensor_grad_clear(l.weight));
    if (recorded) TEST_OK(t, ts_step_replay(recorded));
    ts_step_destroy(recorded);
    ts_pipeline_destroy(l.pipeline);
    ts_module_destroy(module);
}
