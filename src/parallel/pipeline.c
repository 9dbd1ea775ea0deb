/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline.c - making a pipeline, and steps of it: this rank's list from top to bottom.
 *
 * INV: nothing is sent before the whole schedule is proved; an error says which action of which
 * stage it came from, on the rank where it happened and on those that wait for it. */
#include "parallel/pipeline.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/keep.h"
#include "comm/again.h"
#include "comm/comm.h"
#include "op/core/list.h"
#include "parallel/lend.h"

/* ---- the mesh of a stage --------------------------------------------------------------------- */

static const char *axis_of(const char *axis)
{
    return axis ? axis : "pp";
}

ts_mesh *ts_pipeline_mesh(ts_mesh *mesh, const char *axis)
{
    if (!mesh || tsi_rank_enter(mesh->rank) != TS_OK) return NULL;
    axis = axis_of(axis);
    char others[1024] = "";
    size_t used = 0;
    int32_t skip = ts_mesh_axis(mesh, axis);
    if (skip < 0) {
        TSI_FAIL(TS_ERR_MESH, "pipeline: the mesh has no axis \"%s\"", axis);
        return NULL;
    }
    if (ts_mesh_ndim(mesh) == 1) return ts_mesh_self(mesh->rank);
    for (int32_t k = 0; k < ts_mesh_ndim(mesh); k++) {
        if (k == skip || used >= sizeof others) continue;
        int n = snprintf(others + used, sizeof others - used, "%s%s", used ? ", " : "",
                         ts_mesh_axis_name(mesh, k));
        used += n > 0 ? (size_t)n : 0;
    }
    return ts_mesh_slice(mesh, others);
}

/* ---- the graph of stages --------------------------------------------------------------------- */

static ts_status check_stage(const ts_stages *stages, int64_t g)
{
    const ts_stage *s = &stages->stage[g];
    if (s->output_count < 1 || s->output_count > TSI_STAGE_OUTPUTS || s->input_count < 1 ||
        s->input_count > TSI_STAGE_OUTPUTS)
        return TSI_FAIL(TS_ERR_ARG,
                        "pipeline: stage %lld has %d inputs and %d outputs; 1 to %d each",
                        (long long)g, s->input_count, s->output_count, TSI_STAGE_OUTPUTS);
    for (int32_t i = 0; i < s->input_count; i++) {
        const ts_stage_input *in = &s->input[i];
        bool fits = in->stage < 0 ? in->output >= 0
                                  : in->stage < g && in->output >= 0 &&
                                        in->output < stages->stage[in->stage].output_count;
        if (!fits)
            return TSI_FAIL(TS_ERR_ARG,
                            "pipeline: input %d of stage %lld is output %d of stage %d; it comes "
                            "from a stage before it, or from the step's inputs (-1)",
                            i, (long long)g, in->output, in->stage);
    }
    return TS_OK;
}

static ts_status copy_stage(ts_pipeline *p, const ts_stages *stages, int32_t g)
{
    const ts_stage *from = &stages->stage[g];
    tsi_stage *to = &p->stage[g];
    TSI_TRY(check_stage(stages, g));
    size_t modules = from->module ? (size_t)from->module_count : 0;
    size_t inputs = (size_t)from->input_count;
    to->module = tsi_arena_calloc(&p->memory, modules + 1, sizeof *to->module);
    to->input = tsi_arena_calloc(&p->memory, inputs + 1, sizeof *to->input);
    if (!to->module || !to->input) return tsi_fail_memory("a pipeline", inputs * sizeof *to->input);
    for (size_t i = 0; i < modules; i++)
        to->module[i] = from->module[i];
    memcpy(to->input, from->input, inputs * sizeof *to->input);
    to->module_count = (int64_t)modules;
    to->input_count = from->input_count;
    to->output_count = from->output_count;
    to->constant = from->constant;
    for (int32_t o = 0; o < TSI_STAGE_OUTPUTS; o++)
        to->link[o] = -1;
    return TS_OK;
}

static bool takes(const tsi_stage *s, int32_t from, int32_t output)
{
    for (int32_t i = 0; i < s->input_count; i++)
        if (s->input[i].stage == from && s->input[i].output == output) return true;
    return false;
}

/* A link for each output that a later stage takes. */
static ts_status make_graph(ts_pipeline *p)
{
    size_t outputs = (size_t)p->stage_count * TSI_STAGE_OUTPUTS;
    tsi_stage_link *link = tsi_calloc(outputs, sizeof *link);
    int32_t *to = tsi_calloc(outputs * (size_t)p->stage_count, sizeof *to), *next = to;
    int32_t count = 0;
    ts_status status = link && to ? TS_OK : tsi_fail_memory("a pipeline", outputs * sizeof *link);
    for (int32_t g = 0; g < p->stage_count && status == TS_OK; g++) {
        for (int32_t o = 0; o < p->stage[g].output_count; o++) {
            tsi_stage_link one = { .from = g, .to = next };
            one.gradient = !(p->stage[g].constant >> o & 1);
            for (int32_t user = g + 1; user < p->stage_count; user++)
                if (takes(&p->stage[user], g, o)) next[one.to_count++] = user;
            if (one.to_count == 0) continue;
            one.name = tsi_arena_printf(&p->memory, "stage%d.%d", g, o);
            if (!one.name) status = tsi_fail_memory("a pipeline", 32);
            next += one.to_count;
            p->stage[g].link[o] = count;
            link[count++] = one;
        }
    }
    if (status == TS_OK) status = tsi_stage_graph_make(p->stage_count, link, count, &p->graph);
    tsi_free(link);
    tsi_free(to);
    return status;
}

/* ---- making ---------------------------------------------------------------------------------- */

static ts_status check_schedule(const ts_pipeline *p, const ts_schedule *s, int64_t stages)
{
    int64_t ranks = ts_mesh_size(p->mesh, p->axis);
    if (s->stages != stages)
        return TSI_FAIL(TS_ERR_ARG, "pipeline: the schedule is for %d stages, and there are %lld",
                        s->stages, (long long)stages);
    if (s->ranks != ranks)
        return TSI_FAIL(TS_ERR_ARG, "pipeline: the schedule is for %d ranks, the axis %s has %lld",
                        s->ranks, p->axis, (long long)ranks);
    return TS_OK;
}

/* What is executed: the same with messages, proved under both kinds of sends. */
static ts_status prepare_schedule(ts_pipeline *p, const ts_schedule *schedule)
{
    tsi_lower_options options = { .gathered = TSI_SCHEDULE_GATHERED,
                                  .prefetch = (int32_t)p->options.prefetch };
    tsi_step *step = NULL;
    if (schedule->messages) { /* a complete one, executed as it is; its links are those of a line */
        TSI_TRY(tsi_schedule_copy(schedule, &p->lowered));
    } else {
        TSI_TRY(tsi_schedule_lower(schedule, &p->graph, &options, &p->lowered));
    }
    ts_status status = tsi_schedule_prove(p->lowered, &p->graph, &options, &step);
    tsi_step_destroy(step);
    return status;
}

static ts_status make_arrays(ts_pipeline *p)
{
    const tsi_schedule_list *list = &p->lowered->list[p->at];
    size_t micros = (size_t)p->micros, links = (size_t)p->graph.count * micros + 1;
    size_t cells = (size_t)list->count + 1;
    p->contract = tsi_arena_calloc(&p->memory, links, sizeof *p->contract);
    p->passing = tsi_arena_calloc(&p->memory, links, sizeof *p->passing);
    p->flight = tsi_arena_calloc(&p->memory, (size_t)p->stage_count * micros, sizeof *p->flight);
    p->size = tsi_arena_calloc(&p->memory, micros, sizeof *p->size);
    p->label = tsi_arena_calloc(&p->memory, cells, sizeof *p->label);
    p->begin = tsi_arena_calloc(&p->memory, 2 * cells, sizeof *p->begin);
    if (!p->contract || !p->passing || !p->flight || !p->size || !p->label || !p->begin)
        return tsi_fail_memory("a pipeline", links * sizeof *p->passing);
    p->end = p->begin + cells;
    for (int32_t l = 0; l < p->graph.count; l++) {
        size_t users = (size_t)p->graph.link[l].to_count;
        ts_tensor **back = tsi_arena_calloc(&p->memory, users * micros, sizeof *back);
        if (!back) return tsi_fail_memory("a pipeline", users * micros * sizeof *back);
        for (size_t m = 0; m < micros; m++)
            p->passing[(size_t)l * micros + m].back = back + m * users;
    }
    tsi_pipeline_renew(p);
    for (int64_t i = 0; i < list->count; i++) {
        char text[48];
        ts_cell_text(&list->cell[i], text, sizeof text);
        p->label[i] = tsi_arena_strdup(&p->memory, text);
        if (!p->label[i]) return tsi_fail_memory("a pipeline", sizeof text);
    }
    return TS_OK;
}

static ts_status copy_shared(ts_pipeline *p, const ts_stages *stages)
{
    size_t count = (size_t)stages->shared_count;
    p->shared = tsi_arena_calloc(&p->memory, count + 1, sizeof *p->shared);
    p->before = tsi_arena_calloc(&p->memory, count + 1, sizeof(ts_tensor *));
    if (!p->shared || !p->before) return tsi_fail_memory("a pipeline", count * sizeof *p->shared);
    p->shared_count = (int32_t)count;
    for (size_t i = 0; i < count; i++) {
        const ts_shared_param *from = &stages->shared[i];
        if (from->stage_count < 1)
            return TSI_FAIL(TS_ERR_ARG, "pipeline: shared parameter %lld is of no stage",
                            (long long)i);
        size_t bytes = (size_t)from->stage_count * sizeof *from->stage;
        int32_t *stage = tsi_arena_alloc(&p->memory, bytes + 1);
        if (!stage) return tsi_fail_memory("a pipeline", bytes);
        memcpy(stage, from->stage, bytes);
        p->shared[i] = (ts_shared_param){ from->parameter, stage, from->stage_count };
        for (int64_t k = 0; k < from->stage_count; k++)
            if (stage[k] < 0 || stage[k] >= p->stage_count)
                return TSI_FAIL(TS_ERR_ARG, "pipeline: a parameter is shared by stage %d of %d",
                                stage[k], p->stage_count);
    }
    return TS_OK;
}

/* Every stage of this rank has modules, and what it shares with others. */
static ts_status check_own(const ts_pipeline *p)
{
    for (int32_t g = 0; g < p->stage_count; g++)
        if (tsi_pipeline_has(p, g) && p->stage[g].module_count == 0)
            return TSI_FAIL(TS_ERR_ARG,
                            "pipeline: stage %d is on rank %d of axis %s, which has no "
                            "modules for it",
                            g, p->at, p->axis);
    for (int32_t i = 0; i < p->shared_count; i++)
        for (int64_t k = 0; !p->shared[i].parameter && k < p->shared[i].stage_count; k++)
            if (tsi_pipeline_has(p, p->shared[i].stage[k]))
                return TSI_FAIL(TS_ERR_ARG,
                                "pipeline: shared parameter %d is one of stage %d, and rank %d of "
                                "axis %s, which has that stage, gave NULL",
                                i, p->shared[i].stage[k], p->at, p->axis);
    return TS_OK;
}

static ts_status create(ts_pipeline *p, const ts_stages *stages, const ts_schedule *schedule)
{
    p->at = (int32_t)ts_mesh_coord(p->mesh, p->axis);
    if (p->at < 0)
        return TSI_FAIL(TS_ERR_MESH, "pipeline: the mesh has no axis \"%s\", or not this rank",
                        p->axis);
    TSI_TRY(check_schedule(p, schedule, stages->count));
    p->here = ts_pipeline_mesh(p->mesh, p->axis);
    if (!p->here) return ts_rank_status(p->rank);
    p->stage_count = (int32_t)stages->count;
    p->micros = schedule->micros;
    p->lends = tsi_lends(p->rank);
    p->stage = tsi_arena_calloc(&p->memory, (size_t)p->stage_count, sizeof *p->stage);
    if (!p->stage) return tsi_fail_memory("a pipeline", sizeof *p->stage);
    for (int32_t g = 0; g < p->stage_count; g++)
        TSI_TRY(copy_stage(p, stages, g));
    TSI_TRY(copy_shared(p, stages));
    TSI_TRY(make_graph(p));
    TSI_TRY(prepare_schedule(p, schedule));
    TSI_TRY(check_own(p));
    return make_arrays(p);
}

ts_pipeline *ts_pipeline_create(ts_mesh *mesh, const ts_stages *stages, const ts_schedule *schedule,
                                const ts_pipeline_options *options)
{
    ts_rank *rank = mesh ? mesh->rank : tsi_rank_current();
    if (!rank || tsi_rank_enter(rank) != TS_OK) return NULL;
    if (!mesh || !stages || !schedule || !options || !options->input || !options->loss) {
        TSI_FAIL(TS_ERR_NULL, "pipeline: the mesh, stages, schedule, input or loss is NULL");
        return NULL;
    }
    ts_pipeline *p = tsi_calloc(1, sizeof *p);
    if (!p) {
        tsi_fail_memory("a pipeline", sizeof *p);
        return NULL;
    }
    p->rank = rank;
    p->mesh = ts_mesh_retain(mesh);
    memcpy(&p->options, options,
           options->struct_size < sizeof p->options ? options->struct_size : sizeof p->options);
    (void)snprintf(p->axis, sizeof p->axis, "%s", axis_of(options->axis));
    if (create(p, stages, schedule) == TS_OK) return p;
    ts_pipeline_destroy(p);
    return NULL;
}

void ts_pipeline_destroy(ts_pipeline *p)
{
    if (!p) return;
    if (p->on_end) p->on_end(p->end_context);
    if (p->passing && p->flight) tsi_pipeline_drop(p);
    for (int64_t i = 0; p->contract && i < (int64_t)p->graph.count * p->micros; i++)
        ts_sharding_release(p->contract[i].sharding);
    ts_schedule_destroy(p->lowered);
    tsi_stage_graph_release(&p->graph);
    ts_mesh_release(p->here);
    ts_mesh_release(p->mesh);
    tsi_arena_release(&p->memory);
    tsi_free(p);
}

const ts_schedule *ts_pipeline_schedule(const ts_pipeline *p)
{
    return p ? p->lowered : NULL;
}

int64_t ts_pipeline_rank(const ts_pipeline *p)
{
    return p ? p->at : -1;
}

const double *ts_pipeline_begin(const ts_pipeline *p)
{
    return p ? p->begin : NULL;
}

const double *ts_pipeline_end(const ts_pipeline *p)
{
    return p ? p->end : NULL;
}

void tsi_pipeline_on_end(ts_pipeline *p, void (*fn)(void *context), void *context)
{
    p->on_end = fn;
    p->end_context = context;
}

void tsi_pipeline_renew(ts_pipeline *p)
{
    for (int32_t m = 0; m < p->micros; m++)
        p->size[m] = -1;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static ts_status run_cell(ts_pipeline *p, const ts_cell *c)
{
    bool backward = c->kind == TS_CELL_BACKWARD || c->kind == TS_CELL_INPUT ||
                    c->kind == TS_CELL_WEIGHT || c->kind == TS_CELL_SEND_BACKWARD ||
                    c->kind == TS_CELL_RECEIVE_BACKWARD || c->kind == TS_CELL_REDUCE;
    if ((backward && !p->trains) || (c->micro >= 0 && p->size[c->micro] == 0)) return TS_OK;
    if (p->options.begin && tsi_cell_computes(c))
        TSI_TRY(p->options.begin(p->options.context, p->rank, c->micro));
    switch ((ts_cell_kind)c->kind) {
    case TS_CELL_FORWARD:
        return tsi_pipeline_forward(p, c);
    case TS_CELL_BACKWARD:
    case TS_CELL_INPUT:
        return tsi_pipeline_gradient(p, c);
    case TS_CELL_WEIGHT:
        return tsi_pipeline_weight(p, c);
    case TS_CELL_SEND_FORWARD:
        return tsi_pipeline_send_forward(p, c);
    case TS_CELL_RECEIVE_FORWARD:
        return tsi_pipeline_receive_forward(p, c);
    case TS_CELL_SEND_BACKWARD:
        return tsi_pipeline_send_backward(p, c);
    case TS_CELL_RECEIVE_BACKWARD:
        return tsi_pipeline_receive_backward(p, c);
    case TS_CELL_REDUCE:
        return tsi_pipeline_reduce(p, c->stage);
    case TS_CELL_GATHER:
        return tsi_pipeline_reside(p, c->stage, true);
    case TS_CELL_RELEASE:
        return tsi_pipeline_reside(p, c->stage, false);
    case TS_CELL_IDLE:
    case TS_CELL_KINDS:
        break;
    }
    return TS_OK;
}

static void blame(const ts_cell *c)
{
    static const char *const words[] = { [TS_CELL_IDLE] = "idle",
                                         [TS_CELL_FORWARD] = "forward",
                                         [TS_CELL_BACKWARD] = "backward",
                                         [TS_CELL_INPUT] = "input gradient",
                                         [TS_CELL_WEIGHT] = "weight gradient",
                                         [TS_CELL_SEND_FORWARD] = "send",
                                         [TS_CELL_RECEIVE_FORWARD] = "receive",
                                         [TS_CELL_SEND_BACKWARD] = "send of the gradient",
                                         [TS_CELL_RECEIVE_BACKWARD] = "receive of the gradient",
                                         [TS_CELL_GATHER] = "gather",
                                         [TS_CELL_RELEASE] = "release",
                                         [TS_CELL_REDUCE] = "reduction of gradients" };
    if (c->micro >= 0)
        tsi_error_prefix("stage %d, %s, micro-batch %d", c->stage, words[c->kind], c->micro);
    else
        tsi_error_prefix("stage %d, %s", c->stage, words[c->kind]);
}

static double seconds_in(const ts_pipeline *p)
{
    return (double)(tsi_clock_ns() - p->started_ns) * 1e-9;
}

/* What fails on the device is the rank's error, which the cell looks at. */
static double seconds_when_done(const ts_pipeline *p)
{
    if (p->waits) (void)ts_rank_sync(p->rank);
    return seconds_in(p);
}

void tsi_pipeline_begins(ts_pipeline *p)
{
    p->begin[p->cell] = seconds_when_done(p);
}

void ts_pipeline_waits(ts_pipeline *p, int32_t waits)
{
    if (p) p->waits = waits != 0;
}

static ts_status run_list(ts_pipeline *p)
{
    const tsi_schedule_list *list = &p->lowered->list[p->at];
    p->started_ns = tsi_clock_ns();
    for (int64_t i = 0; i < list->count; i++) {
        p->cell = i;
        p->begin[i] = seconds_in(p);
        ts_scope scope = ts_scope_open(p->rank, p->label[i]);
        ts_status status = run_cell(p, &list->cell[i]);
        p->end[i] = tsi_cell_computes(&list->cell[i]) ? seconds_when_done(p) : seconds_in(p);
        if (status == TS_OK) status = ts_rank_status(p->rank);
        ts_scope_close(scope);
        if (status == TS_OK) continue;
        blame(&list->cell[i]);
        return status;
    }
    return TS_OK;
}

/* New sizes are announced anew; so is everything after a recovery: the step that failed may have
 * ended on this rank. */
static ts_status open_step(ts_pipeline *p, const int64_t *size, bool trains)
{
    uint64_t epoch = tsi_again_epoch(p->rank);
    if (epoch != p->epoch) tsi_pipeline_renew(p);
    p->epoch = epoch;
    p->announces = false;
    p->trains = trains;
    for (int32_t m = 0; m < p->micros; m++) {
        int64_t now = size ? size[m] : 1;
        if (now < 0)
            return TSI_FAIL(TS_ERR_ARG, "pipeline: micro-batch %d has size %lld", m,
                            (long long)now);
        p->announces = p->announces || p->size[m] != now;
        p->size[m] = now;
    }
    for (int32_t l = 0; l < p->graph.count; l++) {
        int32_t users = 0;
        for (int32_t i = 0; i < p->graph.link[l].to_count; i++)
            users += tsi_pipeline_has(p, p->graph.link[l].to[i]);
        for (int32_t m = 0; m < p->micros; m++)
            p->passing[tsi_pipeline_slot(p, l, m)].users = users;
    }
    return TS_OK;
}

/* The losses of all micro-batches, in their order; NULL: this rank has not the last stage. */
static ts_tensor *sum_losses(ts_pipeline *p)
{
    ts_tensor *sum = NULL;
    for (int32_t m = 0; m < p->micros; m++) {
        ts_tensor *loss = p->flight[tsi_pipeline_slot(p, p->stage_count - 1, m)].loss;
        if (loss) sum = sum ? ts_add(sum, loss) : loss;
    }
    return sum;
}

static ts_status finish_step(ts_pipeline *p, double *loss)
{
    double mine = 0;
    ts_scope scope = ts_scope_open(p->rank, "loss");
    ts_tensor *sum = loss ? sum_losses(p) : NULL;
    if (sum) (ts_tensor_item)(sum, &mine);
    ts_scope_close(scope);
    TSI_TRY(ts_rank_status(p->rank));
    return loss ? ts_pipeline_sum(p, mine, loss) : TS_OK;
}

/* On all ranks alike, before one of them waits for another. */
static ts_status refuse_kept(const ts_pipeline *p, const char *what)
{
    if (!tsi_keeps(p->rank)) return TS_OK;
    return TSI_FAIL(TS_ERR_STATE,
                    "pipeline: the host reads %s in a step that is recorded; without it "
                    "ts_step_options.loss and .stages know loss and norm",
                    what);
}

static ts_status run(ts_pipeline *p, const int64_t *size, double *loss, bool trains)
{
    if (!p) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(p->rank));
    if (loss) TSI_TRY(refuse_kept(p, "the loss"));
    ts_status status = open_step(p, size, trains);
    if (status == TS_OK && p->announces && !p->options.shape && tsi_keeps(p->rank))
        status = TSI_FAIL(TS_ERR_STATE,
                          "pipeline: stages tell each other shapes in the first step of these "
                          "sizes; run one before a step is recorded");
    if (status == TS_OK && trains) status = tsi_pipeline_set_aside(p);
    if (status == TS_OK) status = run_list(p);
    if (status == TS_OK && trains) status = tsi_pipeline_share(p);
    if (status == TS_OK) status = finish_step(p, loss);
    if (status != TS_OK) tsi_pipeline_renew(p); /* contracts may be half made */
    tsi_pipeline_drop(p);
    return status;
}

ts_status ts_pipeline_step(ts_pipeline *p, const int64_t *size, double *loss)
{
    return run(p, size, loss, true);
}

ts_status ts_pipeline_forward(ts_pipeline *p, const int64_t *size, double *loss)
{
    return run(p, size, loss, false);
}

/* ---- numbers of all stages ------------------------------------------------------------------- */

ts_status ts_pipeline_sum(ts_pipeline *p, double value, double *sum)
{
    if (!p || !sum) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(p->rank));
    TSI_TRY(refuse_kept(p, "a sum over stages"));
    TSI_TRY(tsi_comm_now(p->rank, "a sum over stages"));
    ts_group *group = ts_mesh_group(p->mesh, p->axis);
    if (!group) return ts_rank_status(p->rank);
    ts_array in = TS_INIT(ts_array), out = TS_INIT(ts_array);
    in.data = &value;
    out.data = sum;
    in.meta = out.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_F64 };
    return (ts_group_all_reduce)(group, &in, &out, TS_REDUCE_SUM, NULL);
}

typedef struct norming {
    const ts_pipeline *p;
    tsi_norm_sums sums;
} norming;

static bool is_shared(const ts_pipeline *p, const ts_tensor *parameter)
{
    for (int32_t i = 0; i < p->shared_count; i++)
        if (p->shared[i].parameter == parameter) return true;
    return false;
}

static ts_status norm_of(norming *n, ts_tensor *parameter)
{
    ts_tensor *grad;
    TSI_TRY(tsi_settled_grad(parameter, &grad));
    return grad ? tsi_norm_add(&n->sums, grad) : TS_OK;
}

static ts_status norm_add(const char *name, ts_tensor *parameter, void *context)
{
    (void)name;
    norming *n = context;
    return is_shared(n->p, parameter) ? TS_OK : norm_of(n, parameter);
}

/* Of a parameter that several stages hold, the first one's counts, whichever module has it. */
static ts_status norm_shared(norming *n)
{
    for (int32_t i = 0; i < n->p->shared_count; i++) {
        const ts_shared_param *shared = &n->p->shared[i];
        if (shared->parameter && tsi_pipeline_has(n->p, shared->stage[0]))
            TSI_TRY(norm_of(n, shared->parameter));
    }
    return TS_OK;
}

/* `fn` for every module of this rank's stages. */
static ts_status each_module(ts_pipeline *p, ts_status (*fn)(ts_module *m, void *context),
                             void *context)
{
    for (int32_t g = 0; g < p->stage_count; g++)
        for (int64_t i = 0; i < p->stage[g].module_count && tsi_pipeline_has(p, g); i++)
            TSI_TRY(fn(p->stage[g].module[i], context));
    return TS_OK;
}

static ts_status norm_module(ts_module *m, void *context)
{
    return ts_module_each(m, norm_add, context);
}

static ts_status scale_module(ts_module *m, void *context)
{
    return ts_grad_scale(m, *(const double *)context);
}

typedef struct finding {
    const ts_tensor *parameter;
    bool found;
} finding;

static ts_status find_param(const char *name, ts_tensor *parameter, void *context)
{
    (void)name;
    finding *f = context;
    f->found = f->found || f->parameter == parameter;
    return TS_OK;
}

static ts_status find_module(ts_module *m, void *context)
{
    return ts_module_each(m, find_param, context);
}

/* Copies that belong to no module of this rank's stages, as a tied weight of the head. */
static ts_status scale_shared(ts_pipeline *p, double factor)
{
    for (int32_t i = 0; i < p->shared_count; i++) {
        ts_tensor *parameter = p->shared[i].parameter;
        ts_tensor *grad = parameter ? ts_tensor_grad(parameter) : NULL;
        finding f = { .parameter = parameter };
        TSI_TRY(each_module(p, find_module, &f));
        if (!grad || f.found) continue;
        ts_scope scope = ts_scope_open(p->rank, NULL);
        ts_status status = ts_tensor_write(grad, ts_mul_scalar(grad, factor));
        ts_scope_close(scope);
        TSI_TRY(status);
    }
    return TS_OK;
}

ts_status ts_pipeline_clip_grad_norm(ts_pipeline *p, double norm_max, double *norm)
{
    if (norm) *norm = NAN;
    if (!p) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(p->rank));
    TSI_TRY(refuse_kept(p, "the norm"));
    norming n = { .p = p };
    double mine = 0, total = 0;
    ts_status status = each_module(p, norm_module, &n);
    if (status == TS_OK) status = norm_shared(&n);
    if (status == TS_OK) status = tsi_norm_total(&n.sums, &mine);
    tsi_norm_drop(&n.sums);
    if (status == TS_OK) status = ts_pipeline_sum(p, mine, &total);
    if (status != TS_OK) return status;
    total = sqrt(total);
    if (norm) *norm = total;
    double factor = norm_max / (total + 1e-6);
    if (norm_max <= 0.0 || factor >= 1.0) return TS_OK;
    TSI_TRY(each_module(p, scale_module, &factor));
    return scale_shared(p, factor);
}
