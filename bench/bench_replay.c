/* SPDX-License-Identifier: Apache-2.0 */
/* bench_replay.c - `tessera bench replay`: training steps that are recorded and run again, against
 * the same steps run as usual; with --order, in another order (bench_replay_order.c).
 *
 * The model is tiny, so that what the host does for an operator is a part of the step that shows.
 * How much a replay costs beyond its kernels is measured on a chain of additions of four numbers,
 * against the arithmetic alone. */
#include <string.h>

#include "bench.h"
#include "bench_replay.h"
#include "contest.h"

typedef struct bench {
    bench_lines lines;
    const char *mesh, *engine;
    int64_t ranks, layers, hidden, rows, context, seconds;
} bench;

enum { EAGER, REPLAY, WAYS, VOCAB = 1024 };

typedef struct racer {
    ts_rank *me;
    ts_model *model[WAYS]; /* one each, so that both learn the same from the same */
    ts_optimizer *optimizer[WAYS];
    ts_tensor *tokens[WAYS];
    ts_step *step;
    int way;
} racer;

/* ---- a training step ------------------------------------------------------------------------- */

ts_status bench_replay_step(ts_rank *me, ts_model *model, ts_optimizer *optimizer,
                            ts_tensor *tokens)
{
    ts_scope scope = ts_scope_open(me, "step");
    ts_tape_begin(me);
    ts_tensor *loss = ts_model_loss(model, tokens, tokens);
    ts_status status = ts_backward(loss, NULL);
    ts_step_options options = { .struct_size = sizeof options, .norm_max = 1.0, .loss = loss };
    if (status == TS_OK) status = ts_optimizer_step_with(optimizer, &options);
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

static ts_status train_step(void *context)
{
    const racer *r = context;
    return bench_replay_step(r->me, r->model[r->way], r->optimizer[r->way], r->tokens[r->way]);
}

static ts_status run_once(void *context, int way)
{
    racer *r = context;
    r->way = way;
    return way == REPLAY ? ts_step_replay(r->step) : train_step(r);
}

static ts_status make(const bench *self, racer *r, ts_mesh *mesh)
{
    ts_model_config config = { .struct_size = sizeof config,
                               .vocab = VOCAB,
                               .hidden = (int32_t)self->hidden,
                               .intermediate = (int32_t)(self->hidden * 8 / 3),
                               .layers = (int32_t)self->layers,
                               .heads = (int32_t)(self->hidden / 64),
                               .kv_heads = (int32_t)(self->hidden / 64),
                               .head_dim = 64,
                               .positions = (int32_t)self->context };
    ts_shape shape = TS_SHAPE(self->rows, self->context);
    for (int way = 0; way < WAYS; way++) {
        r->model[way] = ts_model_create(mesh, &config, NULL);
        ts_module *root = ts_model_module(r->model[way]);
        r->optimizer[way] = ts_adamw_create(root, TS_OPTIONS(ts_adamw_options, .lr = 1e-4));
        ts_tensor *any = ts_randint(mesh, TS_DTYPE_I64, shape, NULL,
                                    TS_OPTIONS(ts_random_options, .high = VOCAB));
        r->tokens[way] = ts_tensor_retain(ts_redistribute_to(any, ts_model_tokens(r->model[way])));
    }
    r->way = REPLAY;
    for (int warm = 0; warm < 2; warm++) {
        ts_status status = train_step(r);
        if (status != TS_OK) return status;
    }
    r->step = ts_step_record(r->me, train_step, r);
    return ts_rank_status(r->me);
}

static void unmake(racer *r)
{
    ts_step_destroy(r->step);
    for (int way = 0; way < WAYS; way++) {
        ts_tensor_release(r->tokens[way]);
        ts_optimizer_destroy(r->optimizer[way]);
        ts_model_destroy(r->model[way]);
    }
}

static ts_status run_model(bench *self, ts_rank *me)
{
    racer r = { .me = me };
    ts_status status = make(self, &r, ts_mesh_create(me, self->mesh));
    contest race = { .world = ts_group_world(me),
                     .contenders = WAYS,
                     .seconds = (double)self->seconds * 0.7,
                     .context = &r,
                     .run = run_once };
    contest_times times = { { 0 }, { 0 } };
    if (status == TS_OK) status = contest_run(&race, &times);
    ts_step_summary is = TS_INIT(ts_step_summary);
    if (status == TS_OK) status = ts_step_summarise(r.step, &is);
    if (status == TS_OK && ts_rank_index(me) == 0) {
        bench_line *line = bench_lines_add(
            &self->lines, "us", times.median[REPLAY] * 1e6, "a step of %lld x %lld on %s, replayed",
            (long long)self->layers, (long long)self->hidden, self->mesh);
        bench_line_floor(line, times.median[EAGER] * 1e6, "as usual");
        line->wanted = times.median[EAGER] * 1e6 / 1.5;
        bench_line_note(line, "x %.2f; %lld works, %lld bytes of its own",
                        times.median[EAGER] / times.median[REPLAY], (long long)is.works,
                        (long long)is.bytes);
    }
    unmake(&r);
    return status;
}

/* ---- the host's part ------------------------------------------------------------------------- */

enum { CHAIN = 1000, NUMBERS = 4 };

typedef struct chain {
    ts_rank *me;
    ts_tensor *x, *y;
    ts_step *step;
    float a[NUMBERS], b[NUMBERS];
} chain;

static ts_status chain_step(void *context)
{
    const chain *c = context;
    ts_scope scope = ts_scope_open(c->me, NULL);
    ts_tensor *x = c->x;
    for (int i = 0; i < CHAIN && x; i++)
        x = ts_add(x, c->y);
    return ts_scope_close(scope);
}

static void add_plain(chain *c)
{
    for (int i = 0; i < CHAIN; i++) {
        for (int k = 0; k < NUMBERS; k++)
            c->a[k] += c->b[k];
        __asm__ volatile("" ::"r"(c->a) : "memory"); /* each of them happens */
    }
}

enum { CHAIN_EAGER, CHAIN_REPLAY, CHAIN_PLAIN, CHAIN_WAYS };

static ts_status chain_once(void *context, int way)
{
    chain *c = context;
    if (way == CHAIN_REPLAY) return ts_step_replay(c->step);
    if (way == CHAIN_EAGER) return chain_step(c);
    add_plain(c);
    return TS_OK;
}

static ts_status run_chain(bench *self, ts_rank *me)
{
    ts_scope scope = ts_scope_open(me, NULL);
    chain c = { .me = me };
    c.x = ts_ones(ts_mesh_self(me), TS_DTYPE_F32, TS_SHAPE(NUMBERS), "R");
    c.y = ts_ones(ts_mesh_self(me), TS_DTYPE_F32, TS_SHAPE(NUMBERS), "R");
    c.step = ts_step_record(me, chain_step, &c);
    contest race = { .world = ts_group_world(me),
                     .contenders = CHAIN_WAYS,
                     .seconds = (double)self->seconds * 0.3,
                     .context = &c,
                     .run = chain_once };
    contest_times times = { { 0 }, { 0 } };
    ts_status status = ts_rank_status(me);
    if (status == TS_OK) status = contest_run(&race, &times);
    if (status == TS_OK && ts_rank_index(me) == 0) {
        double each = 1e9 / CHAIN;
        bench_line *line = bench_lines_add(&self->lines, "ns", times.best[CHAIN_REPLAY] * each,
                                           "an operator of four numbers, replayed");
        bench_line_floor(line, times.best[CHAIN_PLAIN] * each, "the arithmetic alone");
        line->wanted = 40 + times.best[CHAIN_PLAIN] * each;
        bench_line_note(line, "as usual: %.0f ns", times.best[CHAIN_EAGER] * each);
    }
    ts_step_destroy(c.step);
    ts_scope_close(scope);
    return status;
}

static ts_status work(ts_rank *me, void *arg)
{
    ts_status status = run_model(arg, me);
    return status == TS_OK ? run_chain(arg, me) : status;
}

/* ---- the command ----------------------------------------------------------------------------- */

static int run_usual(bench *self, bool json)
{
    char error[1024];
    ts_world_options world = { .struct_size = sizeof world,
                               .engine = self->engine,
                               .rank_count = self->ranks };
    ts_status status = ts_launch_with(&world, work, self, error, sizeof error);
    if (status != TS_OK) return cli_fail_run("bench replay", status, error);
    return self->lines.count ? bench_lines_print(&self->lines, json) : 0; /* another process does */
}

/* A model whose communication shows, unless another one was asked for. */
static int run_order(bench *self, bench_order *order, bool json)
{
    order->mesh = self->mesh ? self->mesh : "fsdp=2";
    order->engine = self->engine;
    if (cli_mesh_ranks(order->mesh, &order->ranks) != TS_OK)
        return cli_fail_usage("bench replay", "%s", ts_last_error());
    order->layers = self->layers ? self->layers : 6;
    order->hidden = self->hidden ? self->hidden : 512;
    order->rows = self->rows ? self->rows : order->ranks;
    order->context = self->context ? self->context : 128;
    order->seconds = self->seconds;
    int code = bench_replay_order(order, &self->lines);
    return code != 0 || self->lines.count == 0 ? code : bench_lines_print(&self->lines, json);
}

/* The exit code, or -1. */
static int settle(bench *self)
{
    int64_t ranks = 1;
    if (self->mesh && cli_mesh_ranks(self->mesh, &ranks) != TS_OK)
        return cli_fail_usage("bench replay", "--mesh: %s", ts_last_error());
    if (!self->mesh) self->mesh = "replicate=*";
    if (!self->ranks) self->ranks = ranks > 0 ? ranks : 1;
    if (!self->layers) self->layers = 4;
    if (!self->hidden) self->hidden = 256;
    if (!self->rows) self->rows = 1;
    if (!self->context) self->context = 32;
    return -1;
}

int cli_bench_replay(int argc, char **argv)
{
    static bench self = { .seconds = 15 };
    bench_order order = { .vocab = VOCAB, .memory = 150 };
    bool json = false, ordered = false;
    const cli_option options[] = {
        CLI_INT("ranks", &self.ranks, 1, 4096, "ranks (default: as the mesh has)"),
        CLI_TEXT("mesh", &self.mesh, "TEXT", "roles of the ranks (default: replicate=*)"),
        CLI_INT("layers", &self.layers, 1, 1 << 10, "of the model (default: 4, with --order 6)"),
        CLI_INT("hidden", &self.hidden, 64, 1 << 14,
                "its width, a multiple of 64 (default: 256, with --order 512)"),
        CLI_INT("rows", &self.rows, 1, 1 << 14, "of a batch (default: 1, with --order the ranks)"),
        CLI_INT("context", &self.context, 1, 1 << 17,
                "tokens of a row (default: 32, with --order 128)"),
        CLI_TEXT("engine", &self.engine, "NAME", "threads or mpi (default: mpi under mpirun)"),
        CLI_INT("seconds", &self.seconds, 1, 3600, "time to spend (default: 15)"),
        CLI_FLAG("order", &ordered, "the step in the order of its reordered program, against it"),
        CLI_INT("threads", &order.threads, 1, 1024, "with --order: of a rank"),
        CLI_INT("vocab", &order.vocab, 2, 1 << 20, "with --order (default: 1024)"),
        CLI_INT("memory", &order.memory, 100, 10000,
                "with --order: per cent of the recorded step's that it may hold (default: 150)"),
        CLI_FLAG("shared", &order.shared,
                 "with --order: ranks read shards where they lie, nothing is gathered"),
        CLI_FLAG("parts", &order.parts, "with --order: large operations may go in parts"),
        CLI_TEXT("save", &order.save, "FILE",
                 "with --order: programs to FILE.before and FILE.after"),
        CLI_FLAG("json", &json, "one JSON object"),
        CLI_END
    };
    const cli_usage usage = { "bench replay", "[options]",
                              "Training steps of a tiny Llama that are recorded once and run "
                              "again, against the same steps\n"
                              "as usual, and what a replay costs beyond its kernels, in the same "
                              "run. With --order: a step\n"
                              "whose communication nothing hides, as recorded and reordered, in "
                              "turns.",
                              options, NULL };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc > 1) return cli_fail_usage("bench replay", "unexpected argument \"%s\"", argv[1]);
    if (self.hidden % 64 != 0)
        return cli_fail_usage("bench replay", "--hidden %lld is not a multiple of 64",
                              (long long)self.hidden);
    if (ordered) return run_order(&self, &order, json);
    code = settle(&self);
    return code >= 0 ? code : run_usual(&self, json);
}
