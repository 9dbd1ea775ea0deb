/* SPDX-License-Identifier: Apache-2.0 */
/* verify_pipeline.c - a model on a mesh and its steps, the same where it is a pipeline: what one
 * stage knows is summed over the axis, so every rank has it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "verify.h"

static ts_tensor *micro_tokens(const verify_pipe *p, int64_t micro, int64_t shift)
{
    return ts_micro_batch(p->tokens(p->context, p->model, shift), 0, p->micros, micro);
}

static ts_tensor *ids_of(void *context, ts_rank *me, int64_t micro, int32_t index)
{
    (void)me;
    (void)index;
    return micro_tokens(context, micro, 0);
}

static double item(ts_tensor *t)
{
    double value = NAN;
    ts_tensor_item(t, &value);
    return value;
}

/* What is compared of the logits: their squares, and the last position of the first row. */
static void keep_logits(verify_pipe *p, int64_t micro, ts_tensor *logits)
{
    ts_scope_options quiet = TS_INIT(ts_scope_options);
    quiet.no_grad = 1;
    ts_scope scope = ts_scope_open_with(p->me, &quiet);
    p->squares += item(ts_sum(ts_square(ts_cast(logits, TS_DTYPE_F64)), NULL, 0, 0));
    ts_shape shape = ts_tensor_shape(logits);
    if (micro == 0 && p->last == NULL) {
        ts_tensor *row = ts_tensor_full(ts_select(ts_select(logits, 0, 0), 0, shape.extent[1] - 1));
        ts_array to = TS_INIT(ts_array);
        p->last = calloc((size_t)shape.extent[2] + 1, sizeof *p->last);
        p->vocabulary = shape.extent[2];
        to.data = p->last;
        to.meta = (ts_meta){ .shape = TS_SHAPE(shape.extent[2]), .dtype = TS_DTYPE_F64 };
        if (p->last != NULL) (void)ts_tensor_read(row, &to);
    }
    ts_scope_close(scope);
}

/* Each token counts once, whatever micro-batch it is in. */
static ts_tensor *loss_of(void *context, ts_rank *me, int64_t micro, ts_tensor *const *output,
                          int32_t count)
{
    (void)me;
    (void)count;
    verify_pipe *p = context;
    if (p->keeps) keep_logits(p, micro, output[0]);
    ts_tensor *sum = ts_cross_entropy_sum(output[0], micro_tokens(p, micro, 1));
    return ts_mul_scalar(sum, 1.0 / (double)p->count);
}

/* Before the model is materialised. */
static bool open_stages(verify_pipe *p, ts_mesh *mesh)
{
    ts_model_pipeline_options options = TS_INIT(ts_model_pipeline_options);
    options.mesh = mesh;
    options.schedule = p->schedule;
    options.input = ids_of;
    options.loss = loss_of;
    options.context = p;
    p->micros = ts_schedule_micro_batches(p->schedule);
    p->pipeline = ts_model_pipeline(p->model, &options);
    p->size = calloc((size_t)p->micros, sizeof *p->size);
    ts_scope scope = ts_scope_open(p->me, "sizes");
    for (int64_t m = 0; p->pipeline != NULL && p->size != NULL && m < p->micros; m++) {
        ts_tensor *part = micro_tokens(p, m, 0);
        p->size[m] = part != NULL ? ts_tensor_shape(part).extent[0] : 0;
    }
    ts_scope_close(scope);
    return p->pipeline != NULL && p->size != NULL;
}

void verify_pipe_open(verify_pipe *p, const verify_setting *s, ts_mesh *mesh)
{
    ts_mesh *here = s->schedule != NULL ? ts_pipeline_mesh(mesh, NULL) : mesh;
    p->schedule = s->schedule;
    p->model = s->directory != NULL ? ts_model_open(here, s->directory, &s->options)
                                    : ts_model_declare(here, s->config, &s->options);
    if (p->model == NULL || (s->schedule != NULL && !open_stages(p, mesh))) return;
    int64_t every = s->every > 1 ? s->every : 1;
    for (int64_t i = every > 1; i < ts_model_block_count(p->model); i += every)
        ts_module_checkpoint(ts_model_block(p->model, i), (int)s->again);
    if (cli_mesh_has_units(mesh)) ts_model_fsdp(p->model, &s->units);
    ts_model_materialize(p->model);
}

void verify_pipe_close(verify_pipe *p)
{
    ts_pipeline_destroy(p->pipeline);
    ts_model_destroy(p->model);
    free(p->size);
    free(p->last);
}

void verify_pipe_step(const verify_pipe *p, double clip, double *loss, double *norm)
{
    if (p->pipeline != NULL) {
        ts_pipeline_step(p->pipeline, p->size, loss);
        ts_pipeline_clip_grad_norm(p->pipeline, clip, norm);
        return;
    }
    ts_tape_begin(p->me);
    ts_tensor *mean = ts_model_loss(p->model, p->tokens(p->context, p->model, 0),
                                    p->tokens(p->context, p->model, 1));
    ts_tensor_item(mean, loss);
    ts_backward(mean, NULL);
    ts_clip_grad_norm(ts_model_module(p->model), clip, norm);
}

double verify_pipe_sum(const verify_pipe *p, double mine)
{
    double sum = NAN;
    (void)ts_pipeline_sum(p->pipeline, mine, &sum);
    return sum;
}
