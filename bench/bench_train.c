/* SPDX-License-Identifier: Apache-2.0 */
/* bench_train.c - `tessera bench train`: training steps of a Llama beside the machine's matrix
 * products.
 *
 *   f32    one rank with all cores: FLOP/s of the model over the rate of one large product
 *   bf16   the same with products in bf16, over f32
 *   dp=2   two ranks with half of the cores each and half of the batch each, over one rank
 *   fsdp=2, tp=2, cp=2   two ranks that share what is stored, every layer, or every row
 *   pp=2   two ranks that have half of the layers each (bench_train_stages.c)
 *   --mesh A --against B   two meshes in turns (bench_train_pair.c)
 *   --start                the first step after the start of a process (bench_train_start.c)
 *
 * The batch is random tokens. The first step of each is not counted, the best of the others is. The
 * rate of products is measured between the steps, by all ranks of that run at once, the best
 * counts. Ratios are rates: larger is better. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_train.h"
#include "contest.h"

enum { PRODUCT = 1024, PRODUCT_TURNS = 4 };

typedef struct bench {
    ts_model_config config;
    int64_t context, rows, seconds;
    const char *only;
    bench_lines lines;
    double tokens_f32; /* tokens/s of one rank */
} bench;

typedef struct phase_times {
    double step, norm, update;
    ts_times times; /* of forward and backward */
} phase_times;

typedef struct bench_run { /* one mesh and dtype */
    bench *self;
    const char *name, *mesh;
    ts_dtype compute;
    int64_t ranks;
    double seconds; /* for its steps, about */
    /* rank 0's answers */
    phase_times best;
    double product_rate;
    bool is_cold; /* there was time for the first step alone */
    ts_memory memory;
    ts_train_cost cost;
    ts_train_rates rates;
} bench_run;

/* ---- one rank -------------------------------------------------------------------------------- */

/* Tokens without a pattern, the same on every mesh. */
static ts_status token_at(const int64_t *global, void *element, void *context)
{
    const int64_t *salt = context;
    uint64_t x = (uint64_t)(global[0] * 1000003 + global[1] + salt[0]) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
    *(int64_t *)element = (int64_t)((x >> 33) % (uint64_t)salt[1]);
    return TS_OK;
}

static ts_tensor *tokens(const bench_run *r, ts_model *model, int64_t salt)
{
    int64_t context[2] = { salt, r->self->config.vocab };
    ts_meta meta = { .shape = TS_SHAPE(r->self->rows, r->self->context), .dtype = TS_DTYPE_I64 };
    return ts_from_function(token_at, context, ts_model_tokens(model), meta);
}

/* FLOP/s of large products of all ranks at once, each its own; the best of all so far. */
static ts_status product_rate(ts_rank *me, double *best)
{
    ts_group *world = ts_group_world(me);
    ts_scope scope = ts_scope_open_with(me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    ts_mesh *self = ts_mesh_self(me);
    ts_tensor *a = ts_randn(self, TS_DTYPE_F32, TS_SHAPE(PRODUCT, PRODUCT), NULL);
    ts_tensor *b = ts_randn(self, TS_DTYPE_F32, TS_SHAPE(PRODUCT, PRODUCT), NULL);
    ts_status status = ts_rank_status(me);
    for (int i = 0; i < PRODUCT_TURNS && status == TS_OK; i++) {
        status = ts_group_barrier(world, NULL);
        double start = cli_now();
        ts_tensor *c = ts_matmul(a, b);
        if (c == NULL || ts_tensor_wait(c) != TS_OK) break;
        double seconds = cli_now() - start;
        if (status == TS_OK) status = contest_agree(world, &seconds, 1);
        double rate = 2.0 * PRODUCT * PRODUCT * PRODUCT * (double)ts_rank_count(me) / seconds;
        if (rate > *best) *best = rate;
        ts_tensor_drop(c);
    }
    ts_scope_close(scope);
    return ts_rank_status(me);
}

typedef struct trainee {
    ts_model *model;
    ts_optimizer *optimizer;
} trainee;

static ts_status one_step(bench_run *r, ts_rank *me, const trainee *t, int64_t step, phase_times *p)
{
    double start = cli_now(), mark = start, norm = 0, loss = 0;
    uint64_t event = ts_rank_event(me);
    p->times = (ts_times)TS_INIT(ts_times);
    ts_scope scope = ts_scope_open(me, "");
    ts_tape_begin(me);
    ts_tensor *mean =
        ts_model_loss(t->model, tokens(r, t->model, 2 * step), tokens(r, t->model, 2 * step + 1));
    ts_status status = ts_tensor_item(mean, &loss);
    if (status == TS_OK) status = ts_backward(mean, NULL);
    ts_scope_close(scope);
    if (status == TS_OK) status = ts_rank_times(me, event, &p->times);
    mark = cli_now();
    if (status == TS_OK) status = ts_clip_grad_norm(ts_model_module(t->model), 1.0, &norm);
    p->norm = cli_now() - mark;
    mark = cli_now();
    if (status == TS_OK) status = ts_optimizer_step(t->optimizer);
    if (status == TS_OK) status = ts_optimizer_zero(t->optimizer);
    p->update = cli_now() - mark;
    p->step = cli_now() - start;
    return status;
}

/* Is there time for another step? The first is not counted, so a second is made if that is not far
 * too long. */
static bool goes_on(const bench_run *r, int64_t step, const double *spent)
{
    if (step == 0) return true;
    return spent[0] + spent[1] < r->seconds || (step == 1 && spent[0] < 1.2 * r->seconds);
}

static ts_status steps(bench_run *r, ts_rank *me, const trainee *t, double *rate)
{
    bool first = ts_rank_index(me) == 0;
    ts_group *world = ts_group_world(me);
    double begin = cli_now(), spent[2] = { 0, 0 }; /* all, the last step */
    for (int64_t step = 0; goes_on(r, step, spent); step++) {
        ts_status status = ts_group_barrier(world, NULL);
        phase_times p = { 0 };
        if (status == TS_OK)
            status = ts_rank_memory_reset(me); /* products between steps are none */
        if (status == TS_OK) status = one_step(r, me, t, step, &p);
        ts_memory memory = TS_INIT(ts_memory);
        if (status == TS_OK) status = ts_rank_memory(me, &memory);
        if (first && memory.peak > r->memory.peak) r->memory = memory;
        double start = cli_now();
        if (status == TS_OK) status = ts_group_barrier(world, NULL);
        p.step += cli_now() - start; /* the slowest rank's */
        spent[0] = cli_now() - begin;
        spent[1] = p.step;
        if (status == TS_OK) status = contest_agree(world, spent, 2);
        if (status == TS_OK) status = product_rate(me, rate);
        if (status != TS_OK) return status;
        if (!first || (step > 1 && p.step >= r->best.step)) continue;
        r->is_cold = step == 0;
        r->best = p;
    }
    return TS_OK;
}

static ts_status work(ts_rank *me, void *argument)
{
    bench_run *r = argument;
    bool first = ts_rank_index(me) == 0;
    ts_mesh *mesh = ts_mesh_create(me, r->mesh);
    double rate = 0;
    (void)product_rate(me, &rate);
    ts_model_options options = TS_INIT(ts_model_options);
    options.compute = (int32_t)r->compute;
    trainee t = { .model = ts_model_declare(mesh, &r->self->config, &options) };
    if (t.model && cli_mesh_has_units(mesh)) (void)ts_model_fsdp(t.model, NULL);
    if (t.model) (void)ts_model_materialize(t.model);
    if (ts_rank_status(me) == TS_OK) t.optimizer = ts_adamw_create(ts_model_module(t.model), NULL);
    ts_train_shape shape = { .struct_size = sizeof shape,
                             .rows = r->self->rows,
                             .context = r->self->context,
                             .moments = 2 };
    ts_train_cost cost;
    ts_train_rates rates;
    ts_status status = t.optimizer ? ts_train_estimate(t.model, &shape, &cost) : ts_rank_status(me);
    if (status == TS_OK) status = ts_train_measure(me, &cost, &rates);
    if (status == TS_OK) status = steps(r, me, &t, &rate);
    if (status == TS_OK && first) {
        r->cost = cost;
        r->rates = rates;
        r->product_rate = rate;
    }
    ts_optimizer_destroy(t.optimizer);
    ts_model_destroy(t.model);
    ts_mesh_release(mesh);
    return status != TS_OK ? status : ts_rank_status(me);
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Seconds of a step in operators that are matrix products alone: linear_pair, linear_list_input ...
 */
static double product_seconds(const ts_times *t)
{
    static const char *const names[] = { "einsum", "einsum_add", "matmul", "mm", "bmm", "addmm" };
    double ns = 0;
    for (int64_t i = 0; i < t->op_count; i++) {
        bool product = strncmp(t->op[i].name, "linear", 6) == 0;
        for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
            product = product || strcmp(t->op[i].name, names[k]) == 0;
        if (product) ns += (double)t->op[i].own_ns;
    }
    return ns * 1e-9;
}

static void add_shares(bench_lines *lines, const bench_run *r)
{
    double step = r->best.step, comm = (double)r->best.times.comm_ns * 1e-9;
    double fixed = r->best.norm + r->best.update, op = (double)r->best.times.op_ns * 1e-9;
    double rest = step - comm - op - fixed;
    if (rest < 0) rest = 0;
    bench_line *line = bench_lines_add(lines, "%", 100 * op / step,
                                       "%s: operators of forward and backward", r->name);
    line = bench_lines_add(lines, "%", 100 * fixed / step, "%s: norm and update", r->name);
    line = bench_lines_add(lines, "%", 100 * comm / step, "%s: communication in them", r->name);
    line = bench_lines_add(lines, "%", 100 * rest / step, "%s: dispatch and the rest", r->name);
    if (r->best.times.lost > 0)
        bench_line_note(line, "%lld events lost", (long long)r->best.times.lost);
}

static void add_hot(bench_lines *lines, const bench_run *r)
{
    bool shown[TS_TIMES_MAX] = { false };
    for (int n = 0; n < 7 && n < r->best.times.op_count; n++) {
        int64_t best = -1;
        for (int64_t i = 0; i < r->best.times.op_count; i++)
            if (!shown[i] &&
                (best < 0 || r->best.times.op[i].own_ns > r->best.times.op[best].own_ns))
                best = i;
        shown[best] = true;
        bench_line *line =
            bench_lines_add(lines, "%", (double)r->best.times.op[best].own_ns * 1e-7 / r->best.step,
                            "%s: operator %s", r->name, r->best.times.op[best].name);
        bench_line_note(line, "%lld calls", (long long)r->best.times.op[best].count);
    }
}

/* What --plan-only says of such a step on this machine, beside what it took. */
static void add_prediction(bench_lines *lines, const bench_run *r)
{
    ts_train_times t;
    ts_train_predict(&r->cost, &r->rates, &t);
    bench_line *line =
        bench_lines_add(lines, "ms", 1e3 * t.step, "%s: predicted time of a step", r->name);
    bench_line_floor(line, 1e3 * r->best.step, "measured");
    bench_line_note(line,
                    "within 20 %% is wanted; products %.0f, attention %.0f, other %.0f, update "
                    "%.0f, comm %.0f",
                    1e3 * t.products, 1e3 * t.attention, 1e3 * t.memory, 1e3 * t.update,
                    1e3 * t.comm);
}

static void add_run(bench *self, const bench_run *r, bool hot)
{
    bench_lines *lines = &self->lines;
    double count = (double)(self->rows * self->context), rate = count / r->best.step;
    double flops = rate * r->cost.flops_per_token;
    bool f32 = r->ranks == 1 && r->compute == TS_DTYPE_NONE;
    if (f32) self->tokens_f32 = rate;
    bench_line *line = bench_lines_add(lines, "tokens/s", rate, "%s: tokens", r->name);
    if (r->is_cold) bench_line_note(line, "the first step: the machine is too slow or busy");
    if (!f32) bench_line_floor(line, self->tokens_f32, "one rank, f32");
    if (!f32)
        line->wanted = (r->compute                                             ? 1.3
                        : strcmp(r->mesh, "dp=2") == 0 && self->context < 1024 ? 0.92
                                                                               : 0.85) *
                       self->tokens_f32;
    line = bench_lines_add(lines, "GFLOP/s", flops * 1e-9, "%s: model", r->name);
    bench_line_floor(line, r->product_rate * 1e-9, "one large product, f32");
    if (f32) line->wanted = 0.55 * r->product_rate * 1e-9;
    double attention = 12.0 * (double)(self->config.layers * self->config.heads) *
                       (double)(self->config.head_dim * self->context);
    double products = count * (r->cost.flops_per_token - attention) / (double)r->ranks;
    line = bench_lines_add(lines, "GFLOP/s", products / product_seconds(&r->best.times) * 1e-9,
                           "%s: matrix products of a rank", r->name);
    bench_line_floor(line, r->product_rate * 1e-9 / (double)r->ranks,
                     "its share of one large product, f32");
    if (f32) line->wanted = 0.7 * r->product_rate * 1e-9;
    const ts_train_cost *c = &r->cost;
    double estimate =
        (double)(c->weight_bytes + c->gradient_bytes + c->optimizer_bytes + c->activation_bytes);
    line =
        bench_lines_add(lines, "MiB", (double)r->memory.peak / 0x1p20, "%s: peak memory", r->name);
    bench_line_floor(line, estimate / 0x1p20, "parameters, gradients, optimiser, activations");
    line->wanted = 1.1 * estimate / 0x1p20;
    add_prediction(lines, r);
    add_shares(lines, r);
    if (hot) add_hot(lines, r);
}

/* ---- the command ----------------------------------------------------------------------------- */

static int run_one(bench *self, const char *name, const char *mesh, ts_dtype compute, bool hot)
{
    if (self->only != NULL && strcmp(self->only, name) != 0) return 0;
    bench_run *r = calloc(1, sizeof *r);
    if (r == NULL) return cli_fail("bench train", "out of memory");
    *r = (bench_run){ .self = self, .name = name, .mesh = mesh, .compute = compute };
    /* f32 on one rank is what the others are measured against: it gets more. */
    bool floor = strcmp(name, "f32") == 0;
    r->seconds = (double)self->seconds / (self->only != NULL ? 1.5 : floor ? 4.0 : 10.0);
    if (cli_mesh_ranks(mesh, &r->ranks) != TS_OK) {
        free(r);
        return cli_fail("bench train", "%s", ts_last_error());
    }
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "threads";
    options.rank_count = r->ranks;
    options.seed = 1;
    options.events = 1 << 16;
    char error[1024] = "";
    ts_status status = ts_launch_with(&options, work, r, error, sizeof error);
    if (status == TS_OK) add_run(self, r, hot);
    free(r);
    return status == TS_OK ? 0 : cli_fail("bench train", "%s: %s", name, error);
}

/* Any number of ranks may share the layers. */
static bool is_tp(const char *only)
{
    int64_t ranks = 0;
    return only != NULL && strncmp(only, "tp=", 3) == 0 && cli_mesh_ranks(only, &ranks) == TS_OK;
}

static bool is_run(const char *only)
{
    static const char *const names[] = { "f32", "bf16", "dp=2", "fsdp=2", "tp=2", "cp=2", "pp=2" };
    bool found = only == NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        found = found || strcmp(only, names[i]) == 0;
    return found || is_tp(only);
}

/* What the command line asks for. */
typedef struct asked {
    bench self;
    bench_pair pair;
    bench_step_options step;
    const char *recompute, *reshard, *dtype;
    int64_t layers, hidden, vocab, warmup;
    bool json, hot, start;
} asked;

/* Options that go with others; -1: they do. */
static int check_together(const asked *a)
{
    bool of_model = a->step.device != NULL || a->step.moments != NULL ||
                    a->step.optimizer != NULL || a->step.replay || a->step.rate_only;
    if (a->step.model == NULL && of_model)
        return cli_fail_usage("bench train",
                              "--device, --moments, --optimizer, --replay and --rate-only go with "
                              "--model");
    bool of_mesh = a->pair.against != NULL || a->pair.pairs != 0 || a->recompute || a->reshard ||
                   a->pair.topology != NULL;
    if (of_mesh && (a->pair.mesh == NULL || a->step.model != NULL))
        return cli_fail_usage("bench train",
                              "--against, --pairs, --recompute, --reshard and --topology go with "
                              "--mesh%s",
                              a->step.model != NULL ? " and without --model" : "");
    if (a->dtype != NULL && a->pair.mesh == NULL && a->step.model == NULL)
        return cli_fail_usage("bench train", "--dtype goes with --mesh or --model");
    if (a->hidden % 64 != 0) return cli_fail_usage("bench train", "--hidden is no multiple of 64");
    if (!is_run(a->self.only))
        return cli_fail_usage("bench train",
                              "--only: expected f32, bf16, dp=2, fsdp=2, tp=2, cp=2 or pp=2, found "
                              "\"%s\"",
                              a->self.only);
    return -1;
}

/* -1: go on; else the exit status. */
static int parse(asked *a, int argc, char **argv)
{
    bench *self = &a->self;
    const cli_option options[] = {
        CLI_TEXT("model", &a->step.model, "SIZE", "tiny, 134m, 1b or moe: its steps alone"),
        CLI_TEXT("device", &a->step.device, "NAME", "with --model: cpu, queue, cuda, auto"),
        CLI_TEXT("moments", &a->step.moments, "NAME", "with --model: of AdamW, f32 or bf16"),
        CLI_TEXT("optimizer", &a->step.optimizer, "NAME",
                 "with --model: adamw, or muon with products in --dtype, beside adamw"),
        CLI_FLAG("replay", &a->step.replay, "with --model: record a step, measure it run again"),
        CLI_FLAG("rate-only", &a->step.rate_only, "with --model: no times by kind"),
        CLI_INT("warmup", &a->warmup, 1, 1000,
                "steps not counted: default 5 with --model, 3 with --mesh"),
        CLI_TEXT("only", &self->only, "NAME",
                 "f32, bf16, dp=2, fsdp=2, tp=2 (or more), cp=2 or pp=2; default: all"),
        CLI_INT("rows", &self->rows, 1, 4096, "of the batch, of all ranks together; default 2"),
        CLI_INT("seconds", &self->seconds, 1, 3600,
                "for all, about; default 50, with --model 2, with --mesh as many as pairs take"),
        CLI_INT("layers", &a->layers, 1, 1000, "of the model; default 12"),
        CLI_INT("hidden", &a->hidden, 64, 65536, "its width, a multiple of 64; default 768"),
        CLI_INT("vocab", &a->vocab, 2, 1000000, "default 32000"),
        CLI_INT("context", &self->context, 1, 65536, "tokens of a row; default 256"),
        CLI_TEXT("mesh", &a->pair.mesh, "TEXT",
                 "steps on this mesh, in turns with --against or of --model"),
        CLI_TEXT("against", &a->pair.against, "TEXT",
                 "default replicate=2; dp=1: one rank with all cores"),
        CLI_FLAG("start", &a->start, "milliseconds from the start to the first step, tiny models"),
        CLI_INT("pairs", &a->pair.pairs, 1, BENCH_PAIRS_MAX, "of steps, with --mesh; default 7"),
        CLI_TEXT("recompute", &a->recompute, "none|full|select|N", "with --mesh; default none"),
        CLI_TEXT("reshard", &a->reshard, "auto|yes|no|K", "with --mesh; default auto"),
        CLI_TOPOLOGY(&a->pair.topology),
        CLI_TEXT("dtype", &a->dtype, "f32|f64|bf16",
                 "with --mesh, default f32; with --model of products, default bf16"),
        CLI_FLAG("operators", &a->hot, "also the operators that take longest"),
        CLI_FLAG("json", &a->json, "the result as JSON"),
        CLI_END
    };
    const cli_usage usage = { "bench train", "[options]",
                              "Training steps of a Llama against the rate of matrix products.",
                              options, NULL };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc > 1) return cli_fail_usage("bench train", "takes no arguments");
    code = cli_check_topology("bench train", a->pair.topology);
    return code < 0 ? check_together(a) : code;
}

static int run_step(asked *a)
{
    a->step.rows = a->self.rows;
    a->step.context = a->self.context;
    a->step.seconds = a->self.seconds ? a->self.seconds : 2;
    a->step.dtype = a->dtype;
    a->step.hot = a->hot;
    a->step.mesh = a->pair.mesh;
    a->step.warmup = a->warmup ? a->warmup : 5;
    return bench_step(&a->step, a->json);
}

static void settle(asked *a)
{
    bench *self = &a->self;
    a->pair.rows = self->rows;
    a->pair.seconds = self->seconds;
    a->pair.warmup = a->warmup ? a->warmup : 3;
    if (a->pair.against == NULL) a->pair.against = "replicate=2";
    if (a->pair.pairs == 0) a->pair.pairs = 7;
    if (a->recompute == NULL) a->recompute = "none";
    if (a->reshard == NULL) a->reshard = "auto";
    if (self->rows == 0) self->rows = 2;
    if (self->context == 0) self->context = 256;
    if (self->seconds == 0) self->seconds = 50;
    self->config = (ts_model_config){ .struct_size = sizeof self->config,
                                      .vocab = a->vocab,
                                      .hidden = a->hidden,
                                      .intermediate = (8 * a->hidden / 3 + 255) / 256 * 256,
                                      .layers = a->layers,
                                      .heads = a->hidden / 64,
                                      .kv_heads = a->hidden / 64,
                                      .head_dim = 64,
                                      .positions = self->context,
                                      .norm_epsilon = 1e-5,
                                      .init_deviation = 0.02,
                                      .rope_theta = 10000 };
}

static int run_pair(asked *a)
{
    bench_pair *pair = &a->pair;
    const char *dtype = a->dtype ? a->dtype : "f32";
    bool recomputes = cli_recompute_parse(a->recompute, &pair->recompute, &pair->every);
    bool bf16 = strcmp(dtype, "bf16") == 0, f64 = strcmp(dtype, "f64") == 0;
    if (!recomputes || (!bf16 && !f64 && strcmp(dtype, "f32") != 0))
        return cli_fail_usage("bench train", "--recompute %s, --dtype %s: no such", a->recompute,
                              dtype);
    if (ts_reshard_parse(a->reshard, &pair->reshard) != TS_OK)
        return cli_fail_usage("bench train", "%s", ts_last_error());
    pair->config = a->self.config;
    pair->context = a->self.context;
    pair->compute = bf16 ? TS_DTYPE_BF16 : 0;
    pair->dtype = f64 ? TS_DTYPE_F64 : 0;
    int code = bench_train_pair(pair, &a->self.lines);
    if (code != 0 || a->self.lines.count == 0) return code; /* the first process says it */
    return bench_lines_print(&a->self.lines, a->json);
}

/* Eight micro-batches of at least a row. */
static int run_stages(asked *a)
{
    enum { MICROS = 8 };
    const bench *self = &a->self;
    if (self->only != NULL && strcmp(self->only, "pp=2") != 0) return 0;
    bench_stages stages = { .config = self->config,
                            .rows = self->rows > MICROS ? self->rows : MICROS,
                            .context = self->context,
                            .micros = MICROS,
                            .seconds = (double)self->seconds / (self->only != NULL ? 4.0 : 14.0) };
    return bench_train_stages(&stages, &a->self.lines);
}

int cli_bench_train(int argc, char **argv)
{
    asked a = { .layers = 12, .hidden = 768, .vocab = 32000 };
    int code = parse(&a, argc, argv);
    if (code >= 0) return code;
    if (a.start) return bench_train_start(a.pair.mesh, &a.self.lines, a.json);
    if (a.step.model != NULL) return run_step(&a);
    settle(&a);
    if (a.pair.mesh != NULL) return run_pair(&a);
    const char *tp = is_tp(a.self.only) ? a.self.only : "tp=2";
    code = run_one(&a.self, "f32", "dp=1", TS_DTYPE_NONE, a.hot);
    if (code == 0) code = run_one(&a.self, "bf16", "dp=1", TS_DTYPE_BF16, a.hot);
    const char *const pairs[] = { "dp=2", "fsdp=2", tp, "cp=2" };
    for (size_t i = 0; code == 0 && i < sizeof pairs / sizeof pairs[0]; i++)
        code = run_one(&a.self, pairs[i], pairs[i], TS_DTYPE_NONE, a.hot);
    if (code == 0) code = run_stages(&a);
    return code != 0 ? code : bench_lines_print(&a.self.lines, a.json);
}
