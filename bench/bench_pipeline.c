/* SPDX-License-Identifier: Apache-2.0 */
/* bench_pipeline.c - `tessera bench pipeline`: steps of a Llama cut into stages beside what their
 * schedule promises.
 *
 *   step      measured until the queues are empty, over the time that the ranks' lists have with
 *             the measured times of each stage's actions, messages included (on a device a message
 *             takes as much of the host as a small kernel); the bubbles of both
 *   parts     where a rank's time goes: computing, messages, other actions, waiting
 *   action    what the host does for an action of a stage that computes nothing
 *   memory    what the first rank holds when a forward begins, over what the schedule says it
 *             keeps then; GPipe, which has no gradients yet, tells what one micro-batch takes
 *
 * Ranks are threads with an equal share of the cores. The median of the steps counts, the first one
 * does not. On a device the host is done with an action before it has run, so the times of actions
 * come from steps in between that wait behind each that computes; ranks share the device there as
 * they do in the others. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_lines.h"
#include "bench_pipeline_time.h"
#include "schedule.h"

enum { RANKS_MAX = 16, STAGES_MAX = 64, STEPS_MAX = 64, MICROS_MAX = 4096 };

typedef struct bench {
    ts_model_config config;
    ts_schedule_options size;
    const char *schedule;
    int64_t context, rows; /* of a micro-batch */
    int64_t steps;
} bench;

typedef struct bench_run { /* one schedule; ranks are threads and fill their own */
    const bench *self;
    ts_schedule *schedule;
    double seconds[STEPS_MAX];             /* of a step, the slowest rank's */
    double sum[STAGES_MAX][TS_CELL_KINDS]; /* times of a stage's actions */
    int64_t count[STAGES_MAX][TS_CELL_KINDS];
    bench_list list[RANKS_MAX];              /* what each rank executes */
    double least[STAGES_MAX][TS_CELL_KINDS]; /* between the action before and a beginning */
    double busy[RANKS_MAX], messages[RANKS_MAX], others[RANKS_MAX]; /* of all counted steps */
    double ends[RANKS_MAX], drains[RANKS_MAX]; /* its last action; then, until its queue is empty */
    int64_t live[MICROS_MAX]; /* of rank 0 when it begins a forward, beside what it held before */
    int64_t base, gradients;  /* what it held before a step, and what a step leaves */
} bench_run;

typedef struct member { /* of one rank */
    bench_run *run;
    ts_model *model;
    int64_t micros;
} member;

/* ---- a model --------------------------------------------------------------------------------- */

static ts_status token_at(const int64_t *global, void *element, void *context)
{
    const int64_t *salt = context;
    uint64_t x = (uint64_t)(global[0] * 1000003 + global[1] + salt[0]) * 0x9e3779b97f4a7c15u;
    *(int64_t *)element = (int64_t)((x >> 33) % (uint64_t)salt[1]);
    return TS_OK;
}

static ts_tensor *tokens(const member *m, int64_t salt)
{
    const bench *self = m->run->self;
    int64_t context[2] = { salt, self->config.vocab };
    ts_meta meta = { .shape = TS_SHAPE(self->rows, self->context), .dtype = TS_DTYPE_I64 };
    return ts_from_function(token_at, context, ts_model_tokens(m->model), meta);
}

static ts_tensor *give(void *context, ts_rank *me, int64_t micro, int32_t index)
{
    (void)index;
    member *m = context;
    ts_memory now = TS_INIT(ts_memory);
    if (ts_rank_memory(me, &now) == TS_OK && ts_rank_index(me) == 0)
        m->run->live[micro] = now.live - m->run->base;
    return tokens(m, 2 * micro);
}

static ts_tensor *loss_of(void *context, ts_rank *me, int64_t micro, ts_tensor *const *output,
                          int32_t count)
{
    (void)me;
    (void)count;
    const member *m = context;
    return ts_mul_scalar(ts_cross_entropy(output[0], tokens(m, 2 * micro + 1)),
                         1.0 / (double)m->micros);
}

/* ---- one rank -------------------------------------------------------------------------------- */

static bool computes(int32_t kind)
{
    return kind >= TS_CELL_FORWARD && kind <= TS_CELL_WEIGHT;
}

static bool is_message(int32_t kind)
{
    return kind >= TS_CELL_SEND_FORWARD && kind <= TS_CELL_RECEIVE_BACKWARD;
}

/* Times of this rank's actions; only this rank has its stages. */
static void count_times(bench_run *r, const ts_pipeline *p)
{
    const ts_schedule *s = ts_pipeline_schedule(p);
    const double *begin = ts_pipeline_begin(p), *end = ts_pipeline_end(p);
    int64_t rank = ts_pipeline_rank(p), count = ts_schedule_count(s, rank);
    for (int64_t i = 0; i < count; i++) {
        ts_cell c = ts_schedule_cell(s, rank, i);
        double *all = computes(c.kind) ? r->busy : is_message(c.kind) ? r->messages : r->others;
        if (c.stage < 0) continue;
        double gap = begin[i] - (i > 0 ? end[i - 1] : 0), *least = &r->least[c.stage][c.kind];
        if (r->count[c.stage][c.kind] == 0 || gap < *least) *least = gap;
        r->sum[c.stage][c.kind] += end[i] - begin[i];
        r->count[c.stage][c.kind]++;
        all[rank] += end[i] - begin[i];
    }
    if (count > 0) r->ends[rank] += end[count - 1];
}

static void keep_list(bench_run *r, const ts_pipeline *p)
{
    const ts_schedule *s = ts_pipeline_schedule(p);
    int64_t rank = ts_pipeline_rank(p), count = ts_schedule_count(s, rank);
    bench_list *list = &r->list[rank];
    list->cell = calloc((size_t)count + 1, sizeof *list->cell);
    list->count = list->cell != NULL ? count : 0;
    for (int64_t i = 0; i < list->count; i++)
        list->cell[i] = ts_schedule_cell(s, rank, i);
}

/* Whether tensors of the model lie elsewhere than in memory of the host. */
static bool is_apart(ts_rank *me, const member *m)
{
    ts_array view;
    ts_scope scope = ts_scope_open(me, "bench");
    ts_tensor *x = tokens(m, 0);
    bool apart = x != NULL && ts_tensor_view(x, &view) == TS_OK && view.device != 0;
    (void)ts_scope_close(scope);
    return apart;
}

static void time_actions(bench_run *r, ts_pipeline *p, bool apart)
{
    if (apart) {
        ts_pipeline_waits(p, 1);
        ts_pipeline_step(p, NULL, NULL);
        ts_pipeline_waits(p, 0);
    }
    count_times(r, p);
}

static ts_status run_steps(bench_run *r, ts_rank *me, ts_pipeline *p, ts_optimizer *optimizer,
                           bool apart)
{
    ts_group *world = ts_group_world(me);
    for (int64_t step = 0; step <= r->self->steps && ts_rank_status(me) == TS_OK; step++) {
        ts_memory before = TS_INIT(ts_memory), after = TS_INIT(ts_memory);
        ts_rank_sync(me); /* of the optimizer's step, too, nothing is left */
        ts_group_barrier(world, NULL);
        ts_rank_memory(me, &before);
        if (ts_rank_index(me) == 0) r->base = before.live;
        double start = cli_now();
        ts_pipeline_step(p, NULL, NULL);
        double issued = cli_now();
        ts_rank_sync(me);
        double drained = cli_now();
        ts_group_barrier(world, NULL);
        double seconds = cli_now() - start;
        ts_rank_memory(me, &after);
        if (step > 0) time_actions(r, p, apart);
        if (step > 0) r->drains[ts_pipeline_rank(p)] += drained - issued;
        if (ts_rank_index(me) == 0 && step > 0) {
            r->seconds[step - 1] = seconds;
            r->gradients = after.live - before.live;
        }
        ts_optimizer_step(optimizer);
    }
    keep_list(r, p);
    return ts_rank_status(me);
}

static ts_status work(ts_rank *me, void *argument)
{
    bench_run *r = argument;
    ts_mesh *mesh = ts_mesh_create(me, "pp=*"), *here = ts_pipeline_mesh(mesh, NULL);
    member m = { .run = r, .micros = ts_schedule_micro_batches(r->schedule) };
    m.model = ts_model_declare(here, &r->self->config, NULL);
    ts_model_pipeline_options options = TS_INIT(ts_model_pipeline_options);
    options.mesh = mesh;
    options.schedule = r->schedule;
    options.input = give;
    options.loss = loss_of;
    options.context = &m;
    ts_pipeline *p = m.model != NULL ? ts_model_pipeline(m.model, &options) : NULL;
    ts_optimizer *optimizer = NULL;
    if (p != NULL && ts_model_materialize(m.model) == TS_OK)
        optimizer = ts_adamw_create(ts_model_module(m.model), NULL);
    if (optimizer != NULL) (void)run_steps(r, me, p, optimizer, is_apart(me, &m));
    ts_optimizer_destroy(optimizer);
    ts_pipeline_destroy(p);
    ts_model_destroy(m.model);
    return ts_rank_status(me);
}

static void free_lists(bench_run *r)
{
    for (int64_t i = 0; i < RANKS_MAX; i++)
        free(r->list[i].cell);
}

static int run_ranks(int64_t ranks, ts_work_fn body, void *argument)
{
    ts_world_options options = TS_INIT(ts_world_options);
    char error[1024] = "";
    options.engine = "threads";
    options.rank_count = ranks;
    options.seed = 1;
    if (ts_launch_with(&options, body, argument, error, sizeof error) == TS_OK) return 0;
    return cli_fail("bench pipeline", "%s", error);
}

static int run_schedule(const bench *self, const char *name, int64_t micros, bench_run *out)
{
    ts_schedule_options size = self->size;
    ts_schedule *schedule = NULL;
    if (micros > 0) size.micro_batches = micros;
    if (micros > 0) size.stages_per_rank = 1;
    if (ts_schedule_find(name, &size, &schedule) != TS_OK)
        return cli_fail_usage("bench pipeline", "%s", ts_last_error());
    *out = (bench_run){ .self = self, .schedule = schedule };
    int code = run_ranks(size.ranks, work, out);
    if (micros > 0) ts_schedule_destroy(schedule); /* else the caller does */
    return code;
}

/* ---- step ------------------------------------------------------------------------------------ */

static double mean_of(const bench_run *r, int64_t stage, int kind)
{
    return r->count[stage][kind] > 0 ? r->sum[stage][kind] / (double)r->count[stage][kind] : 0;
}

/* A whole backward is not told apart; its halves are not used then. */
static void costs_of(const bench_run *r, ts_stage_cost *out)
{
    for (int64_t g = 0; g < ts_schedule_stages(r->schedule); g++) {
        double whole = mean_of(r, g, TS_CELL_BACKWARD), input = mean_of(r, g, TS_CELL_INPUT);
        bool halves = r->count[g][TS_CELL_INPUT] > 0;
        out[g] = (ts_stage_cost){ .forward = mean_of(r, g, TS_CELL_FORWARD),
                                  .input = halves ? input : whole / 2,
                                  .weight = halves ? mean_of(r, g, TS_CELL_WEIGHT) : whole / 2,
                                  .memory = 1 };
    }
}

/* What the rank does at least before the action begins: making or taking over its inputs. Longer
 * is waiting. */
static double before(const bench_run *r, const ts_cell *c)
{
    return c->stage >= 0 && computes(c->kind) ? r->least[c->stage][c->kind] : 0;
}

static double cost_of(const void *context, const ts_cell *c)
{
    const bench_run *r = context;
    return c->stage >= 0 ? before(r, c) + mean_of(r, c->stage, c->kind) : 0;
}

static double mean_of_ranks(const bench *self, const double *sum)
{
    double mean = 0;
    for (int64_t i = 0; i < self->size.ranks; i++)
        mean += sum[i] / (double)(self->size.ranks * self->steps);
    return mean;
}

/* Where a rank's time goes, the mean of ranks and steps. */
static void add_parts(const bench *self, const bench_run *r, double played, bench_lines *lines)
{
    double busy = mean_of_ranks(self, r->busy), messages = mean_of_ranks(self, r->messages);
    double others = mean_of_ranks(self, r->others), ends = mean_of_ranks(self, r->ends);
    int64_t count = 0;
    double inputs = 0;
    for (int64_t i = 0; i < self->size.ranks; i++)
        for (int64_t k = 0; k < r->list[i].count; k++) {
            count += is_message(r->list[i].cell[k].kind);
            inputs += before(r, &r->list[i].cell[k]) / (double)self->size.ranks;
        }
    double work = busy + messages + others + inputs;
    (void)bench_lines_add(lines, "ms", busy * 1e3, "of it a rank computes");
    bench_line *line = bench_lines_add(lines, "ms", messages * 1e3, "it sends and receives");
    bench_line_note(line, "%.3g us each",
                    messages * 1e6 * (double)self->size.ranks / fmax(1, (double)count));
    (void)bench_lines_add(lines, "ms", (others + inputs) * 1e3,
                          "it takes inputs, gathers, reduces");
    line = bench_lines_add(lines, "ms", (ends - work) * 1e3, "it waits, and what is not timed");
    bench_line_floor(line, (played - work) * 1e3, "in the lists with the measured costs");
    (void)bench_lines_add(lines, "ms", mean_of_ranks(self, r->drains) * 1e3,
                          "its queue is empty after its host");
}

static int add_step(const bench *self, bench_run *r, bench_lines *lines)
{
    ts_stage_cost cost[STAGES_MAX];
    ts_schedule_times times = { .struct_size = sizeof times };
    costs_of(r, cost);
    ts_schedule_costs costs = { .struct_size = sizeof costs,
                                .stage = cost,
                                .count = ts_schedule_stages(r->schedule) };
    if (ts_schedule_simulate(r->schedule, &costs, &times, NULL, NULL, NULL) != TS_OK)
        return cli_fail("bench pipeline", "%s", ts_last_error());
    double played = bench_lists_time(r->list, self->size.ranks, cost_of, r);
    if (played < 0) return cli_fail("bench pipeline", "the ranks' lists could not be timed");
    double step = bench_median(r->seconds, (size_t)self->steps), all = 0;
    for (int64_t i = 0; i < self->steps; i++)
        all += r->seconds[i];
    bench_line *line = bench_lines_add(lines, "ms", step * 1e3, "%s: a step", self->schedule);
    bench_line_floor(line, played * 1e3, "its lists with the measured costs");
    bench_line_note(line, "without messages %.4g ms", times.makespan * 1e3);
    line->wanted = (self->size.ranks > 2 ? 1.10 : 1.05) * played * 1e3;
    double busy = mean_of_ranks(self, r->busy) * (double)self->steps;
    line = bench_lines_add(lines, "%", 100 * (1 - busy / all), "%s: bubble", self->schedule);
    bench_line_floor(line, 100 * (1 - busy / (double)self->steps / played), "of the lists");
    add_parts(self, r, played, lines);
    return 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* The most that rank 0 holds when a forward begins: measured, and by the schedule. */
static void most_of(const bench_run *r, double each, double *have, double *said)
{
    double kept = 0, done = 0;
    *have = *said = 0;
    for (int64_t i = 0; i < ts_schedule_count(r->schedule, 0); i++) {
        ts_cell c = ts_schedule_cell(r->schedule, 0, i);
        if (c.kind == TS_CELL_FORWARD) {
            *have = fmax(*have, (double)r->live[c.micro]);
            *said = fmax(*said, kept * each + (done > 0 ? (double)r->gradients : 0));
        }
        kept += c.kind == TS_CELL_FORWARD;
        kept -= c.kind == TS_CELL_BACKWARD || c.kind == TS_CELL_WEIGHT;
        done += c.kind == TS_CELL_BACKWARD || c.kind == TS_CELL_WEIGHT;
    }
}

static int add_memory(const bench *self, const bench_run *r, bench_lines *lines)
{
    bench_run *plain = calloc(1, sizeof *plain);
    if (plain == NULL) return cli_fail("bench pipeline", "out of memory");
    int code = run_schedule(self, "GPipe", 3, plain);
    double each = (double)(plain->live[2] - plain->live[0]) / 2, have, said;
    free_lists(plain);
    free(plain);
    if (code != 0 || ts_schedule_stages(r->schedule) != self->size.ranks) return code;
    most_of(r, each, &have, &said);
    bench_line *line = bench_lines_add(lines, "MiB", have / 0x1p20,
                                       "%s: held when a forward begins, rank 0", self->schedule);
    bench_line_floor(line, said / 0x1p20, "what the schedule keeps then");
    bench_line_note(line, "a micro-batch takes %.3g MiB", each / 0x1p20);
    line->wanted = 1.05 * said / 0x1p20;
    return 0;
}

/* ---- an action ------------------------------------------------------------------------------- */

enum { IDLE_STAGES = 4, IDLE_MICROS = 64, IDLE_STEPS = 20 };

static void pass_on(void *state, const ts_module_io *io)
{
    (void)state;
    io->output[0] = io->input[0];
}

static const ts_module_desc idle_desc = { .struct_size = sizeof(ts_module_desc),
                                          .type = "idle",
                                          .input_count = 1,
                                          .output_count = 1,
                                          .forward = pass_on };

static ts_tensor *give_one(void *context, ts_rank *me, int64_t micro, int32_t index)
{
    (void)me;
    (void)micro;
    (void)index;
    return context;
}

static ts_tensor *loss_one(void *context, ts_rank *me, int64_t micro, ts_tensor *const *output,
                           int32_t count)
{
    (void)context;
    (void)me;
    (void)micro;
    (void)count;
    return output[0];
}

/* All stages on one rank: no messages, and operators only where gradients are added up. */
static ts_status idle_work(ts_rank *me, void *argument)
{
    double *best = argument;
    ts_mesh *mesh = ts_mesh_create(me, "pp=1"), *here = ts_pipeline_mesh(mesh, NULL);
    ts_module *module[IDLE_STAGES];
    ts_stage stage[IDLE_STAGES];
    ts_stage_input input[IDLE_STAGES];
    for (int32_t g = 0; g < IDLE_STAGES; g++) {
        module[g] = ts_module_create(here, &idle_desc, NULL);
        input[g] = (ts_stage_input){ g - 1, 0 };
        stage[g] = (ts_stage){ .module = &module[g],
                               .module_count = 1,
                               .input = &input[g],
                               .input_count = 1,
                               .output_count = 1 };
    }
    ts_stages stages = { .stage = stage, .count = IDLE_STAGES };
    ts_schedule_options size = { .struct_size = sizeof size,
                                 .ranks = 1,
                                 .stages_per_rank = IDLE_STAGES,
                                 .micro_batches = IDLE_MICROS };
    ts_schedule *schedule = NULL;
    if (ts_schedule_generate("Interleaved1F1B", &size, &schedule) != TS_OK) return TS_ERR_INTERNAL;
    ts_pipeline_options options = TS_INIT(ts_pipeline_options);
    options.input = give_one;
    options.loss = loss_one;
    options.context = ts_ones(here, TS_DTYPE_F32, TS_SHAPE(1), NULL);
    ts_pipeline *p = ts_pipeline_create(mesh, &stages, schedule, &options);
    *best = INFINITY;
    for (int i = 0; i < IDLE_STEPS && p != NULL; i++) {
        double start = cli_now();
        if (ts_pipeline_forward(p, NULL, NULL) != TS_OK) break;
        double each = (cli_now() - start) / (IDLE_STAGES * IDLE_MICROS);
        if (each < *best) *best = each;
    }
    ts_pipeline_destroy(p);
    ts_schedule_destroy(schedule);
    for (int32_t g = 0; g < IDLE_STAGES; g++)
        ts_module_destroy(module[g]);
    return ts_rank_status(me);
}

static int add_action(bench_lines *lines)
{
    double best = 0;
    int code = run_ranks(1, idle_work, &best);
    if (code != 0) return code;
    bench_line *line = bench_lines_add(lines, "us", best * 1e6, "an action that computes nothing");
    line->wanted = 2;
    return 0;
}

/* ---- the command ----------------------------------------------------------------------------- */

static int run(bench *self, bool json)
{
    bench_lines lines = { .count = 0 };
    bench_run *r = calloc(1, sizeof *r);
    if (r == NULL) return cli_fail("bench pipeline", "out of memory");
    int code = run_schedule(self, self->schedule, 0, r);
    if (code == 0) code = add_step(self, r, &lines);
    if (code == 0) code = add_memory(self, r, &lines);
    if (code == 0) code = add_action(&lines);
    ts_schedule_destroy(r->schedule);
    free_lists(r);
    free(r);
    return code != 0 ? code : bench_lines_print(&lines, json);
}

int cli_bench_pipeline(int argc, char **argv)
{
    bool json = false;
    int64_t layers = 6, hidden = 256, vocab = 2048;
    bench self = { .schedule = "InterleavedZeroBubble",
                   .context = 128,
                   .rows = 1,
                   .steps = 9,
                   .size = { .struct_size = sizeof self.size, .ranks = 2, .micro_batches = 8 } };
    const cli_option options[] = {
        CLI_TEXT("schedule", &self.schedule, "NAME|FILE", "default InterleavedZeroBubble"),
        CLI_INT("ranks", &self.size.ranks, 1, RANKS_MAX, "of the pipeline; default 2"),
        CLI_INT("stages", &self.size.stages_per_rank, 1, 4, "per rank; what the schedule needs"),
        CLI_INT("micro-batches", &self.size.micro_batches, 1, 4096, "default 8"),
        CLI_INT("steps", &self.steps, 1, STEPS_MAX, "that count; default 9"),
        CLI_INT("rows", &self.rows, 1, 4096, "of a micro-batch; default 1"),
        CLI_INT("layers", &layers, 1, 1000, "of the model; default 6"),
        CLI_INT("hidden", &hidden, 64, 65536, "its width, a multiple of 64; default 256"),
        CLI_INT("vocab", &vocab, 2, 1000000, "default 2048"),
        CLI_INT("context", &self.context, 1, 65536, "tokens of a row; default 128"),
        CLI_FLAG("json", &json, "the result as JSON"),
        CLI_END
    };
    const cli_usage usage = { "bench pipeline", "[options]",
                              "Steps of a pipeline against what its schedule promises.", options,
                              NULL };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc > 1) return cli_fail_usage("bench pipeline", "takes no arguments");
    if (hidden % 64 != 0) return cli_fail_usage("bench pipeline", "--hidden is no multiple of 64");
    self.config = (ts_model_config){ .struct_size = sizeof self.config,
                                     .vocab = vocab,
                                     .hidden = hidden,
                                     .intermediate = (8 * hidden / 3 + 63) / 64 * 64,
                                     .layers = layers,
                                     .heads = hidden / 64,
                                     .kv_heads = hidden / 64,
                                     .head_dim = 64,
                                     .positions = self.context };
    return run(&self, json);
}
