/* SPDX-License-Identifier: Apache-2.0 */
/* bench_train_stages.c - `tessera bench train --only pp=2`: steps of two ranks with half of the
 * cores each, a pipeline of the model's blocks, over steps of one rank with all of them.
 *
 *   zbv      zero-bubble V; stages are cut by what their blocks cost
 *   search   the order that is best with the costs measured in zbv
 *
 * All run the same rows, a pipeline in micro-batches. The first step is not counted, the best of
 * the others is. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_train.h"
#include "contest.h"

enum { RANKS = 2, STAGES = 4 };

typedef struct stages_run {
    const bench_stages *self;
    ts_schedule *schedule;             /* NULL: one rank without stages */
    double best;                       /* seconds of a step */
    double sum[STAGES][TS_CELL_KINDS]; /* each stage is one rank's */
    int64_t count[STAGES][TS_CELL_KINDS];
} stages_run;

typedef struct member { /* of one rank */
    const stages_run *run;
    ts_model *model;
    int64_t step;
} member;

/* ---- a step ---------------------------------------------------------------------------------- */

static ts_status token_at(const int64_t *global, void *element, void *context)
{
    const int64_t *salt = context;
    uint64_t x = (uint64_t)(global[0] * 1000003 + global[1] + salt[0]) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
    *(int64_t *)element = (int64_t)((x >> 33) % (uint64_t)salt[1]);
    return TS_OK;
}

static ts_tensor *tokens(const member *m, int64_t shift)
{
    const bench_stages *self = m->run->self;
    int64_t context[2] = { 2 * m->step + shift, self->config.vocab };
    ts_meta meta = { .shape = TS_SHAPE(self->rows, self->context), .dtype = TS_DTYPE_I64 };
    return ts_from_function(token_at, context, ts_model_tokens(m->model), meta);
}

static ts_tensor *give(void *context, ts_rank *me, int64_t micro, int32_t index)
{
    (void)me;
    (void)index;
    const member *m = context;
    return ts_micro_batch(tokens(m, 0), 0, m->run->self->micros, micro);
}

static ts_tensor *loss_of(void *context, ts_rank *me, int64_t micro, ts_tensor *const *output,
                          int32_t count)
{
    (void)me;
    (void)count;
    const member *m = context;
    const bench_stages *self = m->run->self;
    ts_tensor *labels = ts_micro_batch(tokens(m, 1), 0, self->micros, micro);
    return ts_mul_scalar(ts_cross_entropy_sum(output[0], labels),
                         1.0 / (double)(self->rows * self->context));
}

/* One rank: forward, backward. */
static ts_status plain_step(ts_rank *me, const member *m)
{
    double loss;
    ts_scope scope = ts_scope_open(me, "");
    ts_tape_begin(me);
    ts_tensor *mean = ts_model_loss(m->model, tokens(m, 0), tokens(m, 1));
    ts_status status = ts_tensor_item(mean, &loss);
    if (status == TS_OK) status = ts_backward(mean, NULL);
    ts_scope_close(scope);
    return status;
}

static ts_status step(ts_rank *me, const member *m, ts_pipeline *p, ts_optimizer *optimizer)
{
    double loss, norm;
    ts_status status = p != NULL ? ts_pipeline_step(p, NULL, &loss) : plain_step(me, m);
    if (status == TS_OK)
        status = p != NULL ? ts_pipeline_clip_grad_norm(p, 1.0, &norm)
                           : ts_clip_grad_norm(ts_model_module(m->model), 1.0, &norm);
    if (status == TS_OK) status = ts_optimizer_step(optimizer);
    return status == TS_OK ? ts_optimizer_zero(optimizer) : status;
}

/* ---- a run ----------------------------------------------------------------------------------- */

static void count_times(stages_run *r, const ts_pipeline *p)
{
    const ts_schedule *s = ts_pipeline_schedule(p);
    int64_t rank = ts_pipeline_rank(p);
    for (int64_t i = 0; i < ts_schedule_count(s, rank); i++) {
        ts_cell c = ts_schedule_cell(s, rank, i);
        if (c.kind < TS_CELL_FORWARD || c.kind > TS_CELL_WEIGHT) continue;
        r->sum[c.stage][c.kind] += ts_pipeline_end(p)[i] - ts_pipeline_begin(p)[i];
        r->count[c.stage][c.kind]++;
    }
}

static ts_status run_steps(stages_run *r, ts_rank *me, member *m, ts_pipeline *p, ts_optimizer *o)
{
    ts_group *world = ts_group_world(me);
    double begin = cli_now(), spent = 0;
    for (m->step = 0; m->step < 2 || spent < r->self->seconds; m->step++) {
        ts_status status = ts_group_barrier(world, NULL);
        double start = cli_now();
        if (status == TS_OK) status = step(me, m, p, o);
        if (status == TS_OK) status = ts_group_barrier(world, NULL);
        double took = cli_now() - start;
        spent = cli_now() - begin;
        if (status == TS_OK) status = contest_agree(world, &spent, 1);
        if (status != TS_OK) return status;
        if (p != NULL && m->step > 0) count_times(r, p);
        if (ts_rank_index(me) == 0 && m->step > 0 && took < r->best) r->best = took;
    }
    return TS_OK;
}

/* Blocks of each stage, by the products of a token: an embedding has none. */
static ts_status cut(const bench_stages *self, int64_t stages, int64_t *out)
{
    const ts_model_config *c = &self->config;
    double attention = 2.0 * (double)(self->context * c->hidden);
    double layer =
        (double)(4 * c->hidden * c->hidden + 3 * c->hidden * c->intermediate) + attention;
    double *cost = calloc((size_t)c->layers + 2, sizeof *cost);
    if (cost == NULL) return TS_ERR_MEMORY;
    for (int64_t i = 1; i <= c->layers; i++)
        cost[i] = layer;
    cost[c->layers + 1] = (double)(c->vocab * c->hidden);
    ts_status status = ts_stage_cut(cost, c->layers + 2, stages, out);
    free(cost);
    return status;
}

static ts_pipeline *open_pipeline(const stages_run *r, ts_mesh *mesh, member *m)
{
    int64_t blocks[STAGES];
    if (cut(r->self, ts_schedule_stages(r->schedule), blocks) != TS_OK) return NULL;
    ts_model_pipeline_options options = TS_INIT(ts_model_pipeline_options);
    options.mesh = mesh;
    options.schedule = r->schedule;
    options.blocks = blocks;
    options.input = give;
    options.loss = loss_of;
    options.context = m;
    return ts_model_pipeline(m->model, &options);
}

static ts_status work(ts_rank *me, void *argument)
{
    stages_run *r = argument;
    bool staged = r->schedule != NULL;
    ts_mesh *mesh = ts_mesh_create(me, staged ? "pp=*" : "dp=1");
    member m = { .run = r };
    m.model =
        ts_model_declare(staged ? ts_pipeline_mesh(mesh, NULL) : mesh, &r->self->config, NULL);
    ts_pipeline *p = staged && m.model != NULL ? open_pipeline(r, mesh, &m) : NULL;
    ts_optimizer *optimizer = NULL;
    if ((p != NULL || !staged) && m.model != NULL && ts_model_materialize(m.model) == TS_OK)
        optimizer = ts_adamw_create(ts_model_module(m.model), NULL);
    if (optimizer != NULL) (void)run_steps(r, me, &m, p, optimizer);
    ts_optimizer_destroy(optimizer);
    ts_pipeline_destroy(p);
    ts_model_destroy(m.model);
    return ts_rank_status(me);
}

/* ---- the lines ------------------------------------------------------------------------------- */

static int launch(const bench_stages *self, ts_schedule *schedule, stages_run *out)
{
    ts_world_options options = TS_INIT(ts_world_options);
    char error[1024] = "";
    options.engine = "threads";
    options.rank_count = schedule != NULL ? RANKS : 1;
    options.seed = 1;
    *out = (stages_run){ .self = self, .schedule = schedule, .best = INFINITY };
    if (ts_launch_with(&options, work, out, error, sizeof error) == TS_OK) return 0;
    return cli_fail("bench train", "pp=2: %s", error);
}

static double mean_of(const stages_run *r, int64_t stage, int kind)
{
    return r->count[stage][kind] > 0 ? r->sum[stage][kind] / (double)r->count[stage][kind] : 0;
}

/* The best order for what the stages took. */
static ts_status search(const stages_run *r, ts_schedule **out)
{
    ts_stage_cost cost[STAGES];
    for (int64_t g = 0; g < STAGES; g++)
        cost[g] = (ts_stage_cost){ .forward = mean_of(r, g, TS_CELL_FORWARD),
                                   .input = mean_of(r, g, TS_CELL_INPUT),
                                   .weight = mean_of(r, g, TS_CELL_WEIGHT),
                                   .memory = 1 };
    ts_schedule_search_options options = TS_INIT(ts_schedule_search_options);
    options.size = (ts_schedule_options){ .struct_size = sizeof options.size,
                                          .ranks = RANKS,
                                          .stages_per_rank = STAGES / RANKS,
                                          .micro_batches = r->self->micros };
    options.costs =
        (ts_schedule_costs){ .struct_size = sizeof options.costs, .stage = cost, .count = STAGES };
    return ts_schedule_search(&options, out, NULL);
}

static void add_line(const bench_stages *self, const char *name, double seconds, double plain,
                     bench_lines *lines)
{
    double count = (double)(self->rows * self->context);
    bench_line *line = bench_lines_add(lines, "tokens/s", count / seconds, "%s: tokens", name);
    if (plain == 0) return;
    bench_line_floor(line, count / plain, "one rank with all cores");
    line->wanted = 0.85 * count / plain;
}

int bench_train_stages(const bench_stages *self, bench_lines *lines)
{
    stages_run plain, staged, searched;
    ts_schedule *v = NULL, *best = NULL;
    ts_schedule_options size = { .struct_size = sizeof size,
                                 .ranks = RANKS,
                                 .micro_batches = self->micros };
    if (ts_schedule_generate("zbv", &size, &v) != TS_OK)
        return cli_fail("bench train", "%s", ts_last_error());
    int code = launch(self, NULL, &plain);
    if (code == 0) code = launch(self, v, &staged);
    if (code == 0 && search(&staged, &best) != TS_OK)
        code = cli_fail("bench train", "%s", ts_last_error());
    if (code == 0) code = launch(self, best, &searched);
    if (code == 0) {
        add_line(self, "f32, the same rows", plain.best, 0, lines);
        add_line(self, "pp=2, zbv", staged.best, plain.best, lines);
        add_line(self, "pp=2, search", searched.best, plain.best, lines);
    }
    ts_schedule_destroy(v);
    ts_schedule_destroy(best);
    return code;
}
