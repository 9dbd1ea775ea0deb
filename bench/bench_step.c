/* SPDX-License-Identifier: Apache-2.0 */
/* bench_step.c - `tessera bench train --model NAME [--device D]`: whole training steps of a Llama
 * (moe: a Mixtral) of a known size on one device.
 *
 *   warm-up     steps that are not counted: kernels load, plans and blocks are made
 *   recorded    with --replay one more step, which is what is measured then (tessera/step.h)
 *   measured    steps one after another for some seconds; the host waits once, behind the last
 *               (several ranks: as many steps on each, behind which all wait)
 *   by kind     a few steps in a world of its own that waits after every operator
 *
 * The tokens are random, four batches in turn, and lie on the device before the first step. The
 * work is that of a run: forward, backward, the total norm, clipping, AdamW; with --optimizer muon
 * Muon, after a world of the same steps by AdamW. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_lines.h"

enum { BATCHES = 4, KINDS_MAX = 24, STEPS_TOGETHER = 10 };

#define TRY(call)                                                                                  \
    do {                                                                                           \
        ts_status status_of_try = (call);                                                          \
        if (status_of_try != TS_OK) return status_of_try;                                          \
    } while (0)

typedef struct size_row {
    const char *name;
    int64_t layers, hidden, heads, kv_heads, inner, vocab, rows, context;
    int64_t experts, chosen; /* of a layer; of a token */
} size_row;

static const size_row sizes[] = {
    { "tiny", 4, 256, 4, 4, 768, 4096, 4, 256, 0, 0 },
    { "134m", 12, 768, 12, 12, 2048, 32000, 16, 1024, 0, 0 },
    { "1b", 22, 2048, 32, 4, 5632, 32000, 4, 2048, 0, 0 },
    { "moe", 12, 1024, 16, 4, 1024, 32000, 8, 1024, 32, 4 }, /* 1.3 G, 250 M of them for a token */
};

typedef struct step_bench {
    bench_step_options options;
    ts_model_config config;
    int64_t rows, context;
    ts_dtype compute, moments; /* 0: f32 */
    int64_t ranks;
    bool muon;    /* this world trains by it */
    bool by_kind; /* this world waits after every operator */
    /* answers */
    int64_t steps;
    double seconds, first_seconds, loss, norm;
    ts_step_summary recorded;
    ts_memory memory;
    ts_train_cost cost;
    ts_times times;
} step_bench;

/* ---- one rank -------------------------------------------------------------------------------- */

/* Tokens without a pattern. */
static ts_status token_at(const int64_t *global, void *element, void *context)
{
    const int64_t *salt = context;
    uint64_t x = (uint64_t)(global[0] * 1000003 + global[1] + salt[0]) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
    *(int64_t *)element = (int64_t)((x >> 33) % (uint64_t)salt[1]);
    return TS_OK;
}

typedef struct trainee {
    ts_model *model;
    ts_optimizer *optimizer;
    ts_tensor *ids[BATCHES], *labels[BATCHES]; /* held */
    ts_step *step;                             /* NULL: steps run as usual */
    ts_rank *me;
    int64_t at; /* of the step that runs */
} trainee;

static ts_tensor *batch_of(const step_bench *b, const trainee *t, int64_t salt)
{
    int64_t context[2] = { salt * 7919, b->config.vocab };
    ts_meta meta = { .shape = TS_SHAPE(b->rows, b->context), .dtype = TS_DTYPE_I64 };
    return ts_tensor_retain(ts_from_function(token_at, context, ts_model_tokens(t->model), meta));
}

static ts_status train_step(void *context)
{
    const trainee *t = context;
    ts_scope scope = ts_scope_open(t->me, "");
    ts_tape_begin(t->me);
    ts_tensor *mean = ts_model_loss(t->model, t->ids[t->at % BATCHES], t->labels[t->at % BATCHES]);
    ts_status status = ts_backward(mean, NULL);
    if (status == TS_OK)
        status = ts_optimizer_step_with(t->optimizer,
                                        TS_OPTIONS(ts_step_options, .norm_max = 1.0, .loss = mean));
    ts_scope_close(scope);
    return status;
}

/* The recorded step read the first batch: its memory gets those of the others in turn. */
static ts_status replay(trainee *t)
{
    int64_t batch = t->at % BATCHES;
    if (batch == 0) batch = BATCHES - 1; /* what the first one was is overwritten */
    TRY(ts_step_input(t->step, t->ids[0], t->ids[batch]));
    TRY(ts_step_input(t->step, t->labels[0], t->labels[batch]));
    return ts_step_replay(t->step);
}

/* The host waits for nothing but the step before the last, so as not to run away. */
static ts_status one_step(trainee *t, int64_t step)
{
    t->at = step;
    ts_status status = t->step ? replay(t) : train_step(t);
    ts_step_outcome outcome = TS_INIT(ts_step_outcome);
    int64_t begun = ts_optimizer_begun(t->optimizer);
    if (status == TS_OK && begun > 2)
        status = ts_optimizer_outcome(t->optimizer, begun - 2, &outcome);
    return status;
}

static ts_status record(step_bench *b, trainee *t)
{
    t->at = 0;
    t->step = ts_step_record(t->me, train_step, t);
    if (t->step == NULL) return ts_rank_status(t->me);
    b->recorded = (ts_step_summary)TS_INIT(ts_step_summary);
    TRY(ts_step_summarise(t->step, &b->recorded));
    return one_step(t, 1);
}

/* Whole steps until the time is over, the host waiting behind the last one of each round. */
static ts_status measured(step_bench *b, ts_rank *me, trainee *t)
{
    int64_t step = 0, round = b->ranks > 1 ? STEPS_TOGETHER : 1;
    double begin = cli_now();
    for (; step < b->options.warmup; step++) {
        TRY(one_step(t, step));
        if (step == 0) TRY(ts_rank_sync(me));
        if (step == 0) b->first_seconds = cli_now() - begin;
    }
    if (b->options.replay) TRY(record(b, t));
    TRY(ts_rank_sync(me));
    TRY(ts_rank_memory_reset(me));
    begin = cli_now();
    while (b->seconds < (double)b->options.seconds) {
        for (int64_t i = 0; i < round; i++, step++)
            TRY(one_step(t, step));
        TRY(ts_rank_sync(me));
        b->seconds = cli_now() - begin;
        b->steps += round;
        if (b->ranks > 1) break; /* clocks of ranks differ: all take as many steps */
        double left = (double)b->options.seconds - b->seconds, each = b->seconds / (double)b->steps;
        round = left > 0 ? (int64_t)(left / each) + 1 : 1;
    }
    ts_step_outcome outcome = TS_INIT(ts_step_outcome);
    TRY(ts_optimizer_outcome(t->optimizer, ts_optimizer_begun(t->optimizer), &outcome));
    b->loss = outcome.loss;
    b->norm = outcome.norm;
    b->memory = (ts_memory)TS_INIT(ts_memory);
    return ts_rank_memory(me, &b->memory);
}

static ts_status timed_by_kind(step_bench *b, ts_rank *me, trainee *t)
{
    enum { COLD = 3, STEPS = 2 };
    for (int64_t step = 0; step < COLD; step++)
        TRY(one_step(t, step));
    TRY(ts_rank_sync(me));
    uint64_t event = ts_rank_event(me);
    double begin = cli_now();
    for (int64_t step = 0; step < STEPS; step++)
        TRY(one_step(t, step));
    TRY(ts_rank_sync(me));
    b->seconds = cli_now() - begin;
    b->steps = STEPS;
    b->times = (ts_times)TS_INIT(ts_times);
    return ts_rank_times(me, event, &b->times);
}

static ts_model *model_make(const step_bench *b, ts_mesh *mesh)
{
    ts_model_options options = TS_INIT(ts_model_options);
    options.compute = (int32_t)b->compute;
    if (b->options.mesh == NULL) return ts_model_create(mesh, &b->config, &options);
    ts_model *model = ts_model_declare(mesh, &b->config, &options);
    if (model == NULL) return NULL;
    (void)ts_model_fsdp(model, NULL);
    (void)ts_model_materialize(model);
    return model;
}

static ts_muon_options muon_of(const step_bench *b)
{
    ts_muon_options options = TS_INIT(ts_muon_options);
    options.lr = 1e-4;
    options.weight_decay = 0.1;
    options.dtype = (int32_t)b->compute;
    options.moments = (int32_t)b->moments;
    return options;
}

static ts_optimizer *optimizer_make(const step_bench *b, ts_module *root)
{
    if (!b->muon)
        return ts_adamw_create(root, TS_OPTIONS(ts_adamw_options, .lr = 1e-4, .weight_decay = 0.1,
                                                .moments = (int32_t)b->moments));
    ts_muon_options options = muon_of(b);
    return ts_muon_create(root, &options);
}

static ts_status trainee_make(const step_bench *b, ts_rank *me, ts_mesh *mesh, trainee *t)
{
    t->model = model_make(b, mesh);
    if (t->model == NULL) return ts_rank_status(me);
    t->optimizer = optimizer_make(b, ts_model_module(t->model));
    for (int64_t i = 0; i < BATCHES; i++) {
        t->ids[i] = batch_of(b, t, 2 * i);
        t->labels[i] = batch_of(b, t, 2 * i + 1);
    }
    return ts_rank_status(me);
}

static ts_status run_rank(ts_rank *me, step_bench *b)
{
    ts_mesh *mesh = ts_mesh_create(me, b->options.mesh ? b->options.mesh : "dp=1");
    trainee t = { .me = me };
    ts_status status = mesh ? trainee_make(b, me, mesh, &t) : ts_rank_status(me);
    if (status == TS_OK) status = b->by_kind ? timed_by_kind(b, me, &t) : measured(b, me, &t);
    if (status == TS_OK && !b->by_kind) {
        ts_train_shape shape = {
            .struct_size = sizeof shape, .rows = b->rows, .context = b->context, .moments = 2
        };
        shape.moment_dtype = (int32_t)b->moments;
        if (b->muon) shape.muon = muon_of(b);
        status = ts_train_estimate(t.model, &shape, &b->cost);
    }
    ts_step_destroy(t.step);
    for (int64_t i = 0; i < BATCHES; i++) {
        if (t.ids[i]) ts_tensor_release(t.ids[i]);
        if (t.labels[i]) ts_tensor_release(t.labels[i]);
    }
    ts_optimizer_destroy(t.optimizer);
    ts_model_destroy(t.model);
    ts_mesh_release(mesh);
    return status != TS_OK ? status : ts_rank_status(me);
}

/* The answers are the first rank's. */
static ts_status work(ts_rank *me, void *argument)
{
    step_bench *shared = argument, *mine = malloc(sizeof *mine);
    if (mine == NULL) return TS_ERR_MEMORY;
    *mine = *shared;
    ts_status status = run_rank(me, mine);
    ts_status met = ts_group_barrier(ts_group_world(me), NULL); /* all have read it */
    if (ts_rank_index(me) == 0) *shared = *mine;
    free(mine);
    return status != TS_OK ? status : met;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Operators by what they are, as the table of a step's budget has them. */
static const char *kind_of(const char *op)
{
    static const struct {
        const char *part, *kind;
    } rows[] = {
        { "linear_cross", "loss" },
        { "cross_entropy", "loss" },
        { "linear", "products" },
        { "einsum", "products" },
        { "matmul", "products" },
        { "mm", "products" },
        { "attention", "attention" },
        { "norm", "norms" },
        { "embedding", "embedding" },
        { "adamw", "norm and update" },
        { "squares", "norm and update" },
        { "decide", "norm and update" },
        { "rope", "rope" },
        { "swiglu", "swiglu" },
        { "cast", "casts and copies" },
        { "clone", "casts and copies" },
        { "reshape", "casts and copies" },
        { "transpose", "casts and copies" },
        { "add", "sums of gradients and residuals" },
        { "fallback", "fallbacks" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strstr(op, rows[i].part) != NULL) return rows[i].kind;
    return "other";
}

typedef struct kind_sum {
    const char *name;
    double ns;
    int64_t calls;
} kind_sum;

static void add_kinds(bench_lines *lines, const step_bench *b)
{
    kind_sum kind[KINDS_MAX] = { { 0 } };
    size_t count = 0;
    double ops = 0;
    for (int64_t i = 0; i < b->times.op_count; i++) {
        const ts_time *row = &b->times.op[i];
        const char *name = kind_of(row->name);
        size_t k = 0;
        while (k < count && strcmp(kind[k].name, name) != 0)
            k++;
        if (k == count && count + 1 < KINDS_MAX) kind[count++].name = name;
        kind[k].ns += (double)row->own_ns;
        kind[k].calls += row->count;
        ops += (double)row->own_ns;
    }
    double steps = (double)b->steps;
    for (size_t k = 0; k < count; k++)
        bench_line_note(
            bench_lines_add(lines, "ms", kind[k].ns * 1e-6 / steps, "by kind: %s", kind[k].name),
            "%lld calls", (long long)(kind[k].calls / b->steps));
    double rest = b->seconds * 1e3 / steps - ops * 1e-6 / steps;
    bench_line_note(bench_lines_add(lines, "ms", rest, "by kind: between operators"),
                    "waiting after every operator");
}

static void add_hot(bench_lines *lines, const step_bench *b)
{
    bool shown[TS_TIMES_MAX] = { false };
    for (int n = 0; n < 24 && n < b->times.op_count; n++) {
        int64_t best = -1;
        for (int64_t i = 0; i < b->times.op_count; i++)
            if (!shown[i] && (best < 0 || b->times.op[i].own_ns > b->times.op[best].own_ns))
                best = i;
        shown[best] = true;
        const ts_time *row = &b->times.op[best];
        bench_line_note(bench_lines_add(lines, "ms", (double)row->own_ns * 1e-6 / (double)b->steps,
                                        "operator %s", row->name),
                        "%lld calls", (long long)(row->count / b->steps));
    }
}

static double rate_of(const step_bench *b)
{
    return (double)(b->steps * b->rows * b->context) / b->seconds;
}

/* `adamw`: the same steps by it; 0: these are they. */
static void add_run(bench_lines *lines, const step_bench *b, double adamw)
{
    double rate = rate_of(b);
    const ts_train_cost *c = &b->cost;
    double estimate =
        (double)(c->weight_bytes + c->gradient_bytes + c->optimizer_bytes + c->activation_bytes);
    bench_line *tokens = bench_lines_add(lines, "tokens/s", rate, "tokens");
    if (adamw > 0)
        bench_line_floor(tokens, adamw, "the same steps by AdamW");
    else
        bench_line_note(tokens, "%lld steps in %.2f s", (long long)b->steps, b->seconds);
    bench_lines_add(lines, "ms", b->seconds * 1e3 / (double)b->steps, "a step");
    if (b->options.replay)
        bench_line_note(bench_lines_add(lines, "", (double)b->recorded.works, "works of a replay"),
                        "%.1f MiB of its own", (double)b->recorded.bytes / 0x1p20);
    bench_lines_add(lines, "TFLOP/s", rate * c->flops_per_token * 1e-12, "model");
    bench_lines_add(lines, "s", b->first_seconds, "the first step");
    bench_lines_add(lines, "", b->loss, "loss of the last step");
    bench_lines_add(lines, "", b->norm, "its total norm");
    bench_line *line =
        bench_lines_add(lines, "MiB", (double)b->memory.peak / 0x1p20, "peak memory");
    bench_line_floor(line, estimate / 0x1p20, "parameters, gradients, optimiser, activations");
    line->wanted = 1.1 * estimate / 0x1p20;
    bench_lines_add(lines, "MiB", (double)b->memory.reserved / 0x1p20, "held from the device");
    for (int kind = 0; kind < TS_MEMORY_KINDS; kind++)
        if (b->memory.at_peak[kind] > 0)
            bench_lines_add(lines, "MiB", (double)b->memory.at_peak[kind] / 0x1p20,
                            "at the peak: %s", ts_memory_kind_name((ts_memory_kind)kind));
}

/* ---- the command ----------------------------------------------------------------------------- */

static int launch(step_bench *b)
{
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "threads";
    options.rank_count = b->ranks;
    options.seed = 1;
    options.events = 1 << 16;
    options.device = b->options.device;
    char error[1024] = "";
    if (b->by_kind) setenv("TESSERA_DEVICE_SYNC", "1", 1);
    ts_status status = ts_launch_with(&options, work, b, error, sizeof error);
    if (b->by_kind) unsetenv("TESSERA_DEVICE_SYNC");
    return status == TS_OK ? 0 : cli_fail_run("bench train", status, error);
}

static const size_row *find_size(const char *name)
{
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (strcmp(sizes[i].name, name) == 0) return &sizes[i];
    return NULL;
}

static int run_both(step_bench *b, bool json)
{
    bench_lines *lines = calloc(1, sizeof *lines);
    step_bench *kinds = malloc(sizeof *kinds);
    double adamw = 0;
    int code = lines && kinds ? 0 : cli_fail("bench train", "out of memory");
    bool by_kind = !b->options.rate_only;
    if (code == 0 && b->muon) {
        *kinds = *b;
        kinds->muon = false;
        code = launch(kinds);
        if (code == 0) adamw = rate_of(kinds);
    }
    if (code == 0) code = launch(b);
    if (code == 0) {
        add_run(lines, b, adamw);
        *kinds = *b;
        kinds->by_kind = true;
        kinds->seconds = 0;
        if (by_kind) code = launch(kinds);
    }
    if (code == 0 && by_kind) add_kinds(lines, kinds);
    if (code == 0 && by_kind && b->options.hot) add_hot(lines, kinds);
    if (code == 0) code = bench_lines_print(lines, json);
    free(kinds);
    free(lines);
    return code;
}

int bench_step(const bench_step_options *options, bool json)
{
    const size_row *size = find_size(options->model);
    ts_dtype compute = options->dtype ? ts_dtype_parse(options->dtype) : TS_DTYPE_BF16;
    if (size == NULL)
        return cli_fail_usage("bench train", "--model: expected tiny, 134m, 1b, moe, found \"%s\"",
                              options->model);
    if (compute != TS_DTYPE_BF16 && compute != TS_DTYPE_F32)
        return cli_fail_usage("bench train", "--dtype: expected bf16 or f32, found \"%s\"",
                              options->dtype);
    const char *optimizer = options->optimizer ? options->optimizer : "adamw";
    if (strcmp(optimizer, "adamw") != 0 && strcmp(optimizer, "muon") != 0)
        return cli_fail_usage("bench train", "--optimizer: expected adamw or muon, found \"%s\"",
                              optimizer);
    step_bench *b = calloc(1, sizeof *b);
    if (b == NULL) return cli_fail("bench train", "out of memory");
    b->options = *options;
    b->muon = strcmp(optimizer, "muon") == 0;
    b->ranks = 1;
    if (options->mesh && cli_mesh_ranks(options->mesh, &b->ranks) != TS_OK) {
        free(b);
        return cli_fail_usage("bench train", "%s", ts_last_error());
    }
    b->rows = options->rows ? options->rows : size->rows;
    b->context = options->context ? options->context : size->context;
    b->compute = compute == TS_DTYPE_BF16 ? compute : TS_DTYPE_NONE;
    if (options->moments && ts_dtype_parse(options->moments) == TS_DTYPE_BF16)
        b->moments = TS_DTYPE_BF16;
    b->config = (ts_model_config){ .struct_size = sizeof b->config,
                                   .vocab = size->vocab,
                                   .hidden = size->hidden,
                                   .intermediate = size->inner,
                                   .layers = size->layers,
                                   .heads = size->heads,
                                   .kv_heads = size->kv_heads,
                                   .head_dim = size->hidden / size->heads,
                                   .positions = b->context,
                                   .norm_epsilon = 1e-5,
                                   .init_deviation = 0.02,
                                   .rope_theta = 10000,
                                   .family = size->experts ? TS_MODEL_MIXTRAL : TS_MODEL_LLAMA,
                                   .experts = size->experts,
                                   .experts_per_token = size->chosen };
    int code = run_both(b, json);
    free(b);
    return code;
}
