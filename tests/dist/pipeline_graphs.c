/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_graphs.c - programs of one's own as pipelines: skips over several stages, tensors with
 * several users, integers between stages; by every schedule that fits, against one rank.
 *
 * A stage is y = tanh((sum of its inputs) W), weights by name, so every rank can compute the whole
 * network alone and compare the gradients of its own stages. In f64 they agree to 1e-12, and two
 * steps have the same bits. */
#include <math.h>

#include "base/alloc.h"
#include "harness/test.h"
#include "plan/schedule.h"
#include "tessera/tessera.h"

enum { WIDTH = 6, STAGES = 6, MICROS = 4, INPUTS = 3 };

/* ---- a network ------------------------------------------------------------------------------- */

typedef struct layer {
    ts_tensor *weight;
    bool masks; /* its second output are integers that others multiply by */
} layer;

typedef struct network {
    const char *name;
    int count; /* of stages */
    ts_stage_input input[STAGES][INPUTS];
    int inputs[STAGES];
    bool masks[STAGES];
} network;

static void forward(void *state, const ts_module_io *io)
{
    const layer *l = state;
    ts_tensor *x = NULL;
    for (int32_t i = 0; i < io->input_count; i++) {
        bool whole = ts_tensor_dtype(io->input[i]) == TS_DTYPE_I32;
        ts_tensor *in = whole ? ts_cast(io->input[i], TS_DTYPE_F64) : io->input[i];
        x = !x ? in : whole ? ts_mul(x, in) : ts_add(x, in);
    }
    io->output[0] = ts_tanh(ts_matmul(x, l->weight));
    if (l->masks) io->output[1] = ts_cast(ts_mul_scalar(x, 3.0), TS_DTYPE_I32);
}

static const ts_module_desc plain = { .struct_size = sizeof(ts_module_desc),
                                      .type = "layer",
                                      .input_count = 1,
                                      .output_count = 1,
                                      .forward = forward };
static const ts_module_desc masking = { .struct_size = sizeof(ts_module_desc),
                                        .type = "masking",
                                        .input_count = 1,
                                        .output_count = 2,
                                        .forward = forward };

static ts_module *make_layer(ts_mesh *mesh, const network *n, int index, layer *state)
{
    state->masks = n->masks[index];
    ts_module *m = ts_module_create(mesh, state->masks ? &masking : &plain, state);
    ts_param_options options = TS_INIT(ts_param_options);
    double deviation = 0.5;
    char name[32];
    options.init = ts_init_normal;
    options.init_state = &deviation;
    options.dtype = TS_DTYPE_F64;
    (void)snprintf(name, sizeof name, "stage.%d", index);
    state->weight = ts_module_param(m, name, TS_SHAPE(WIDTH, WIDTH), &options);
    ts_module_materialize(m);
    return m;
}

/* A skip over three stages and one over five, as in a U-net; the middle has two users. */
static const network unet = { "unet",
                              6,
                              { { { -1, 0 } },
                                { { 0, 0 } },
                                { { 1, 0 } },
                                { { 2, 0 } },
                                { { 3, 0 }, { 1, 0 } },
                                { { 4, 0 }, { 0, 0 }, { 2, 0 } } },
                              { 1, 1, 1, 1, 2, 3 },
                              { false } };
/* Two stages encode one input; four decode another, and three of them see what was encoded. */
static const network translator = { "encoder and decoder",
                                    6,
                                    { { { -1, 0 } },
                                      { { 0, 0 } },
                                      { { -1, 1 }, { 1, 0 } },
                                      { { 2, 0 } },
                                      { { 3, 0 }, { 1, 0 } },
                                      { { 4, 0 }, { 1, 0 } } },
                                    { 1, 1, 2, 1, 2, 2 },
                                    { false } };
/* Integers made by stage 1 multiply the inputs of stages 3 and 5. */
static const network masked = { "masks",
                                6,
                                { { { -1, 0 } },
                                  { { 0, 0 } },
                                  { { 1, 0 } },
                                  { { 2, 0 }, { 1, 1 } },
                                  { { 3, 0 } },
                                  { { 4, 0 }, { 1, 1 } } },
                                { 1, 1, 1, 2, 1, 2 },
                                { false, true } };

/* ---- data ------------------------------------------------------------------------------------ */

static int64_t rows_of(int64_t micro)
{
    return micro == MICROS - 1 ? 0 : 3 - micro; /* uneven, and the last one is empty */
}

static ts_status number_at(const int64_t *global, void *element, void *context)
{
    const int64_t *which = context;
    *(double *)element =
        sin((double)(1 + global[0] * WIDTH + global[1] + 100 * which[0] + 1000 * which[1]));
    return TS_OK;
}

static ts_tensor *rows(ts_mesh *mesh, int64_t micro, int64_t index)
{
    int64_t which[2] = { micro, index };
    ts_meta meta = { .shape = TS_SHAPE(rows_of(micro), WIDTH), .dtype = TS_DTYPE_F64 };
    return ts_from_function(number_at, which, ts_sharding_get(mesh, "R"), meta);
}

typedef struct running {
    ts_mesh *self;
} running;

static ts_tensor *give(void *context, ts_rank *me, int64_t micro, int32_t index)
{
    (void)me;
    const running *r = context;
    return rows(r->self, micro, index);
}

static ts_tensor *loss_of(void *context, ts_rank *me, int64_t micro, ts_tensor *const *output,
                          int32_t count)
{
    (void)context;
    (void)me;
    (void)micro;
    (void)count;
    return ts_mul_scalar(ts_sum(ts_square(output[0]), NULL, 0, 0), 0.125);
}

/* ---- alone ----------------------------------------------------------------------------------- */

/* All stages and micro-batches on this rank; gradients of `weight` are left in its leaves. */
static double run_alone(test *t, const network *n, ts_mesh *self, layer *layers, ts_module **module)
{
    double total = 0;
    for (int i = 0; i < n->count; i++)
        module[i] = make_layer(self, n, i, &layers[i]);
    for (int64_t m = 0; m < MICROS; m++) {
        if (rows_of(m) == 0) continue;
        ts_tensor *out[STAGES][2] = { { NULL } };
        double value = 0;
        ts_scope scope = ts_scope_open(t->me, "alone");
        ts_tape_begin(t->me);
        for (int i = 0; i < n->count; i++) {
            ts_tensor *in[INPUTS];
            for (int k = 0; k < n->inputs[i]; k++) {
                ts_stage_input from = n->input[i][k];
                in[k] = from.stage < 0 ? rows(self, m, from.output) : out[from.stage][from.output];
            }
            ts_module_io io = { .struct_size = sizeof io,
                                .rank = t->me,
                                .input = in,
                                .output = out[i],
                                .input_count = n->inputs[i],
                                .output_count = 2 };
            forward(&layers[i], &io);
        }
        ts_tensor *loss = loss_of(NULL, t->me, m, out[n->count - 1], 1);
        ts_tensor_item(loss, &value);
        total += value;
        ts_backward(loss, NULL);
        ts_scope_close(scope);
    }
    return total;
}

/* ---- as a pipeline --------------------------------------------------------------------------- */

typedef struct pipe {
    ts_pipeline *pipeline;
    layer layers[STAGES];
    ts_module *module[STAGES];
    running run;
} pipe;

static void open_pipe(test *t, pipe *p, const network *n, ts_mesh *mesh, const ts_schedule *s)
{
    ts_stage stage[STAGES];
    *p = (pipe){ .run.self = ts_pipeline_mesh(mesh, NULL) };
    for (int i = 0; i < n->count; i++) {
        bool here = ts_schedule_rank_of(s, i) == ts_mesh_coord(mesh, "pp");
        if (here) p->module[i] = make_layer(p->run.self, n, i, &p->layers[i]);
        stage[i] = (ts_stage){ .module = here ? &p->module[i] : NULL,
                               .module_count = 1,
                               .input = n->input[i],
                               .input_count = n->inputs[i],
                               .output_count = n->masks[i] ? 2 : 1,
                               .constant = n->masks[i] ? 2 : 0 };
    }
    ts_stages stages = { .stage = stage, .count = n->count };
    ts_pipeline_options options = TS_INIT(ts_pipeline_options);
    options.input = give;
    options.loss = loss_of;
    options.context = &p->run;
    p->pipeline = ts_pipeline_create(mesh, &stages, s, &options);
    TEST_SAY(t, p->pipeline != NULL, "%s: %s", n->name, ts_rank_error(t->me)->text);
}

static void close_pipe(pipe *p)
{
    ts_pipeline_destroy(p->pipeline);
    for (int i = 0; i < STAGES; i++)
        ts_module_destroy(p->module[i]);
}

static bool read_gradient(ts_tensor *weight, double *out)
{
    ts_tensor *grad = ts_tensor_grad(weight);
    ts_array to = TS_INIT(ts_array);
    to.data = out;
    to.meta = (ts_meta){ .shape = TS_SHAPE(WIDTH, WIDTH), .dtype = TS_DTYPE_F64 };
    return grad && ts_tensor_read(ts_tensor_full(grad), &to) == TS_OK;
}

static void compare(test *t, const char *what, int stage, ts_tensor *have, ts_tensor *want,
                    double tolerance)
{
    double a[WIDTH * WIDTH], b[WIDTH * WIDTH], error = 0, size = 0;
    ts_scope scope = ts_scope_open(t->me, "compare");
    bool read = read_gradient(have, a) && read_gradient(want, b);
    TEST_SAY(t, read, "%s, stage %d: no gradient", what, stage);
    for (int i = 0; read && i < WIDTH * WIDTH; i++) {
        error = fmax(error, fabs(a[i] - b[i]));
        size = fmax(size, fabs(b[i]));
    }
    TEST_SAY(t, error <= tolerance * size, "%s, stage %d: off by %.3g of %.3g", what, stage, error,
             size);
    ts_scope_close(scope);
}

/* Two steps: equal to one rank, and of the same bits. */
static void run_case(test *t, const network *n, const char *name, int64_t per, layer *alone,
                     double loss)
{
    static const int64_t size[MICROS] = { 3, 2, 1, 0 };
    ts_schedule_options options = { .struct_size = sizeof options,
                                    .ranks = t->count,
                                    .stages_per_rank = per,
                                    .micro_batches = MICROS };
    ts_schedule *s = NULL;
    char what[96];
    double first[STAGES][WIDTH * WIDTH] = { { 0 } }, again[WIDTH * WIDTH] = { 0 };
    pipe p;
    TEST_OK(t, ts_schedule_generate(name, &options, &s));
    (void)snprintf(what, sizeof what, "%s by %s", n->name, name);
    ts_mesh *mesh = ts_mesh_create(t->me, "pp=*");
    open_pipe(t, &p, n, mesh, s);
    for (int step = 0; step < 2 && p.pipeline; step++) {
        double value = 0, norm = 0;
        TEST_OK(t, ts_pipeline_step(p.pipeline, size, &value));
        TEST_SAY(t, fabs(value - loss) <= 1e-12 * loss, "%s: loss %.17g, not %.17g", what, value,
                 loss);
        TEST_OK(t, ts_pipeline_clip_grad_norm(p.pipeline, 0, &norm));
        TEST_CHECK(t, norm > 0 && isfinite(norm));
        for (int i = 0; i < n->count; i++) {
            if (!p.module[i]) continue;
            compare(t, what, i, p.layers[i].weight, alone[i].weight, 1e-12);
            TEST_CHECK(t, read_gradient(p.layers[i].weight, step == 0 ? first[i] : again));
            TEST_SAY(t, step == 0 || memcmp(first[i], again, sizeof again) == 0,
                     "%s, stage %d: two steps differ", what, i);
            ts_tensor_grad_clear(p.layers[i].weight);
        }
    }
    close_pipe(&p);
    ts_schedule_destroy(s);
}

static void run_network(test *t, const network *n)
{
    layer alone[STAGES];
    ts_module *module[STAGES];
    if (n->count % t->count != 0) return;
    double loss = run_alone(t, n, ts_mesh_self(t->me), alone, module);
    for (int64_t i = 0; ts_schedule_name(i); i++)
        if (tsi_schedule_rule_has(i, n->count / t->count))
            run_case(t, n, ts_schedule_name(i), n->count / t->count, alone, loss);
    for (int i = 0; i < n->count; i++)
        ts_module_destroy(module[i]);
}

TS_TEST_RANKS(pipeline_skips, 1, 2, 3, 6)
{
    run_network(t, &unet);
}

TS_TEST_RANKS(pipeline_several_users, 1, 2, 3, 6)
{
    run_network(t, &translator);
}

TS_TEST_RANKS(pipeline_integers, 1, 2, 3, 6)
{
    run_network(t, &masked);
}

static ts_schedule *make_schedule(test *t, const char *name, int64_t per)
{
    ts_schedule *s = NULL;
    ts_schedule_options options = { .struct_size = sizeof options,
                                    .ranks = t->count,
                                    .stages_per_rank = per,
                                    .micro_batches = MICROS };
    TEST_OK(t, ts_schedule_generate(name, &options, &s));
    return s;
}

static void fails_with(test *t, const char *words)
{
    TEST_CHECK(t, ts_rank_status(t->me) != TS_OK);
    TEST_SAYS(t, ts_rank_error(t->me)->text, words);
}

/* ---- shared parameters ----------------------------------------------------------------------- */

static ts_pipeline *share(ts_mesh *mesh, const ts_schedule *s, pipe *p, int64_t stages)
{
    static const ts_stage_input from[2] = { { -1, 0 }, { 0, 0 } };
    static const int32_t both[2] = { 0, 1 };
    ts_stage stage[2];
    for (int i = 0; i < 2; i++)
        stage[i] = (ts_stage){ .module = p->module[i] ? &p->module[i] : NULL,
                               .module_count = 1,
                               .input = &from[i],
                               .input_count = 1,
                               .output_count = 1 };
    ts_shared_param shared = { p->layers[0].weight, both, stages };
    ts_pipeline_options options = TS_INIT(ts_pipeline_options);
    options.input = give;
    options.loss = loss_of;
    options.context = &p->run;
    return ts_pipeline_create(mesh, &(ts_stages){ stage, 2, &shared, 1 }, s, &options);
}

/* Both stages use one weight, which is in a module of neither. */
TS_TEST_RANKS(pipeline_norm_of_what_is_shared, 1, 2)
{
    double grad[WIDTH * WIDTH], want = 0, norm = NAN;
    ts_schedule *s = make_schedule(t, "LoopedBFS", 2 / t->count);
    ts_mesh *mesh = ts_mesh_create(t->me, "pp=*");
    pipe p = { .run.self = ts_pipeline_mesh(mesh, NULL) };
    ts_module *owner = make_layer(p.run.self, &unet, 0, &p.layers[0]);
    for (int i = 0; i < 2; i++)
        if (ts_schedule_rank_of(s, i) == ts_mesh_coord(mesh, "pp"))
            p.module[i] = ts_module_create(p.run.self, &plain, &p.layers[0]);
    p.pipeline = share(mesh, s, &p, 2);
    TEST_OK(t, ts_pipeline_step(p.pipeline, (int64_t[MICROS]){ 3, 2, 1, 0 }, NULL));
    TEST_OK(t, ts_pipeline_clip_grad_norm(p.pipeline, 0, &norm));
    TEST_CHECK(t, read_gradient(p.layers[0].weight, grad));
    for (int i = 0; i < WIDTH * WIDTH; i++)
        want += grad[i] * grad[i];
    TEST_SAY(t, want > 0 && fabs(norm - sqrt(want)) <= 1e-12 * norm, "%g, not %g", norm,
             sqrt(want));
    ts_scope_options catching = TS_INIT(ts_scope_options);
    catching.catches = 1;
    ts_scope scope = ts_scope_open_with(t->me, &catching);
    TEST_CHECK(t, share(mesh, s, &p, 0) == NULL);
    fails_with(t, "shared parameter 0 is of no stage");
    ts_scope_close(scope);
    scope = ts_scope_open_with(t->me, &catching);
    p.layers[0].weight = NULL;
    TEST_CHECK(t, share(mesh, s, &p, 2) == NULL);
    fails_with(t, "shared parameter 0 is one of stage ");
    ts_scope_close(scope);
    close_pipe(&p);
    ts_module_destroy(owner);
    ts_schedule_destroy(s);
}

/* ---- what is refused ------------------------------------------------------------------------- */

TS_TEST_RANKS(pipeline_bad_graphs, 2)
{
    static const ts_stage_input first = { -1, 0 }, ahead = { 2, 0 }, beyond = { 0, 1 };
    const ts_stage_input *second[] = { &ahead, &beyond };
    static const char *const words[] = {
        "input 0 of stage 1 is output 0 of stage 2; it comes from a "
        "stage before it",
        "input 0 of stage 1 is output 1 of stage 0"
    };
    ts_mesh *mesh = ts_mesh_create(t->me, "pp=*");
    for (int i = 0; i < 3; i++) {
        ts_schedule *s = make_schedule(t, "1F1B", 1);
        ts_scope_options catching = TS_INIT(ts_scope_options);
        catching.catches = 1;
        ts_scope scope = ts_scope_open_with(t->me, &catching);
        ts_stage stage[3] = {
            { .input = &first, .input_count = 1, .output_count = 1 },
            { .input = i < 2 ? second[i] : &first, .input_count = 1, .output_count = 1 },
            { .input = &first, .input_count = 1, .output_count = 1 }
        };
        ts_stages stages = { .stage = stage, .count = i < 2 ? 2 : 3 };
        ts_pipeline_options options = TS_INIT(ts_pipeline_options);
        options.input = give;
        options.loss = loss_of;
        TEST_CHECK(t, ts_pipeline_create(mesh, &stages, s, &options) == NULL);
        fails_with(t, i < 2 ? words[i] : "the schedule is for 2 stages, and there are 3");
        ts_scope_close(scope);
        ts_schedule_destroy(s);
    }
}
