/* SPDX-License-Identifier: Apache-2.0 */
/* bench_experts.c - `tessera bench experts`: a layer of experts beside what it is made of.
 *
 *   grouped products      rows by expert times a matrix each, against one product of that size
 *   dispatch and combine  each row once to each rank with some of its experts and folded back,
 *                         against plain copies of the same bytes: as it is, where rows that stay on
 *                         their rank are used where they lie and count on neither side, and with
 *                         these moved and copied as well
 *   end to end            the layer on all ranks, against the dense layer of equal arithmetic there
 *                         and against PyTorch, where it is found, on as many threads
 *
 * Rates and times of whole calls; ratios are ours over the floor's: of rates larger is better, of
 * seconds smaller. Choices are those of a router without a preference. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_lines.h"
#include "contest.h"

enum { RANKS_MAX = 1024, HOLDER_WORDS = RANKS_MAX / 64 };

typedef struct bench_experts {
    bench_lines lines;
    int64_t threads, seconds, ranks;
    int64_t experts, choices, tokens, width, inner;
    bool json;
    const char *only; /* lines whose name contains it; NULL: all */
    ts_rank *me;
    ts_mesh *mesh;
    double layer; /* seconds, end to end */
} bench_experts;

/* Distinct experts of a token, spread evenly: a walk with an odd step that the token draws. */
static int64_t chosen(const bench_experts *b, int64_t token, int64_t k)
{
    uint64_t draw = (uint64_t)(token + 1) * UINT64_C(0x9e3779b97f4a7c15);
    int64_t first = (int64_t)(draw >> 33) % b->experts, step = 1;
    if ((b->experts & (b->experts - 1)) == 0) step = 2 * (int64_t)(draw >> 7 & 0xff) + 1;
    return (first + k * step) % b->experts;
}

static ts_status chosen_at(const int64_t *global, void *element, void *context)
{
    *(int64_t *)element = chosen(context, global[0], global[1]);
    return TS_OK;
}

/* Rows sorted by expert, as many of each: the expert of a row. */
static ts_status sorted_at(const int64_t *global, void *element, void *context)
{
    const bench_experts *b = context;
    *(int64_t *)element = global[0] * b->experts / (b->tokens * b->choices / 2);
    return TS_OK;
}

static bool wanted(const bench_experts *b, const char *name)
{
    return b->only == NULL || strstr(name, b->only) != NULL;
}

static ts_status waited(ts_rank *me, ts_tensor *y)
{
    if (y != NULL) (void)ts_tensor_wait(y);
    ts_tensor_drop(y);
    return ts_rank_status(me);
}

/* ---- grouped products ------------------------------------------------------------------------ */

typedef struct products {
    ts_rank *me;
    ts_tensor *x, *experts, *which, *one;
} products;

static ts_status run_products(void *context, int who)
{
    const products *p = context;
    ts_tensor *y =
        who ? ts_linear(p->x, p->one, NULL) : ts_grouped_linear(p->x, p->experts, p->which);
    return waited(p->me, y);
}

/* Half the choices of a layer: as good a measure. */
static ts_status measure_products(bench_experts *b)
{
    int64_t rows = b->tokens * b->choices / 2;
    ts_meta ids = { .shape = TS_SHAPE(rows), .dtype = TS_DTYPE_I64 };
    ts_scope scope = ts_scope_open(b->me, "products");
    products p = { b->me, ts_randn(b->mesh, TS_DTYPE_F32, TS_SHAPE(rows, b->width), NULL),
                   ts_randn(b->mesh, TS_DTYPE_F32, TS_SHAPE(b->experts, 2 * b->inner, b->width),
                            NULL),
                   ts_from_function(sorted_at, b, ts_sharding_get(b->mesh, "R"), ids),
                   ts_randn(b->mesh, TS_DTYPE_F32, TS_SHAPE(2 * b->inner, b->width), NULL) };
    contest_times times;
    contest c = { .world = ts_group_world(b->me),
                  .contenders = 2,
                  .seconds = (double)b->seconds / 4,
                  .context = &p,
                  .run = run_products };
    ts_status status = contest_run(&c, &times);
    double work = 4e-9 * (double)rows * (double)b->width * (double)b->inner;
    bench_line *line = bench_lines_add(&b->lines, "GFLOP/s", work / times.median[0],
                                       "grouped products of %lld experts", (long long)b->experts);
    bench_line_floor(line, work / times.median[1], "one product of that size");
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

/* ---- dispatch and combine -------------------------------------------------------------------- */

typedef struct passing {
    bench_experts *b;
    ts_group *world;
    int64_t first, rows, held; /* tokens of this rank; rows that its experts want */
    int64_t came, results;     /* rows that come; results that go home, the own ones too */
    bool own;                  /* the rows of this rank that its own experts want come, too */
    float *x, *y, *there, *copy;
    ts_part *send, *recv, *back, *home;
    int64_t send_count, recv_count, back_count, home_count;
} passing;

static bool holds(const bench_experts *b, int64_t token, int64_t rank, int64_t ranks)
{
    int64_t each = (b->experts + ranks - 1) / ranks;
    for (int64_t k = 0; k < b->choices; k++)
        if (chosen(b, token, k) / each == rank) return true;
    return false;
}

static ts_part part_of(int64_t peer, float *data, int64_t count, int32_t combine)
{
    return (ts_part){ .peer = peer,
                      .data = data,
                      .ndim = 1,
                      .combine = combine,
                      .extent = { count },
                      .stride = { 1 } };
}

/* The holders of a token's experts as bits of words. */
static void holders_of(const bench_experts *b, int64_t token, int64_t ranks, uint64_t *bits)
{
    memset(bits, 0, HOLDER_WORDS * sizeof *bits);
    for (int64_t j = 0; j < ranks; j++)
        if (holds(b, token, j, ranks)) bits[j / 64] |= UINT64_C(1) << j % 64;
}

/* Results of token i of this rank fold into its row; a token whose holders are those of the one
 * before joins it. */
static void home_parts(passing *p, int64_t ranks)
{
    const bench_experts *b = p->b;
    uint64_t bits[HOLDER_WORDS], before[HOLDER_WORDS] = { 0 };
    int64_t chain = 0;
    for (int64_t i = 0; i < p->rows; i++) {
        holders_of(b, p->first + i, ranks, bits);
        bool joins = i > 0 && memcmp(bits, before, sizeof bits) == 0;
        if (!joins) chain = 0;
        for (int64_t j = 0; j < ranks && !joins; j++)
            if (bits[j / 64] >> j % 64 & 1)
                p->home[p->home_count++] = part_of(j, p->y + i * b->width, b->width, chain++ > 0);
        for (int64_t k = 1; joins && k <= chain; k++)
            p->home[p->home_count - k].extent[0] += b->width;
        p->results += chain;
        memcpy(before, bits, sizeof bits);
    }
}

/* The parts that grouped_mlp makes: rows straight from where they lie, results straight home; this
 * rank's own rows are used where they lie, and come only if they are asked for. */
static void passing_parts(passing *p, int64_t ranks)
{
    bench_experts *b = p->b;
    int64_t each = (b->tokens + ranks - 1) / ranks, me = ts_group_index(p->world);
    for (int64_t j = 0; j < ranks; j++) {
        int64_t begin = p->held;
        bool moves = j != me || p->own;
        for (int64_t i = 0; i < p->rows && moves; i++)
            if (holds(b, p->first + i, j, ranks))
                p->send[p->send_count++] = part_of(j, p->x + i * b->width, b->width, 0);
        for (int64_t token = j * each; token < (j + 1) * each && token < b->tokens; token++)
            p->held += holds(b, token, me, ranks);
        if (p->held == begin) continue;
        ts_part part = part_of(j, p->there + begin * b->width, (p->held - begin) * b->width, 0);
        p->back[p->back_count++] = part;
        if (!moves) continue;
        p->recv[p->recv_count++] = part;
        p->came += p->held - begin;
    }
    home_parts(p, ranks);
}

static ts_status exchange(passing *p, bool back)
{
    ts_exchange round = TS_INIT(ts_exchange);
    round.dtype = TS_DTYPE_F32;
    round.reduce = TS_REDUCE_SUM;
    round.send = back ? p->back : p->send;
    round.send_count = back ? p->back_count : p->send_count;
    round.recv = back ? p->home : p->recv;
    round.recv_count = back ? p->home_count : p->recv_count;
    return ts_group_exchange(p->world, &round, NULL);
}

static ts_status run_passing(void *context, int who)
{
    passing *p = context;
    size_t row = (size_t)p->b->width * sizeof(float);
    if (who == 0) {
        ts_status status = exchange(p, false);
        return status == TS_OK ? exchange(p, true) : status;
    }
    for (int64_t i = 0; i < p->came; i++) /* there, then as many results */
        memcpy(p->there + i * p->b->width, p->copy + i * p->b->width, row);
    for (int64_t i = 0; i < p->results; i++)
        memcpy(p->copy + i * p->b->width, p->there + i % (p->held + 1) * p->b->width, row);
    return TS_OK;
}

static ts_status measure_passing(bench_experts *b, int64_t ranks, bool own)
{
    int64_t each = (b->tokens + ranks - 1) / ranks, me = ts_rank_index(b->me);
    size_t all = (size_t)(b->tokens + each * ranks + 1);
    passing p = { .b = b, .world = ts_group_world(b->me), .first = me * each, .own = own };
    p.rows = p.first >= b->tokens ? 0 : b->tokens - p.first < each ? b->tokens - p.first : each;
    p.x = calloc((size_t)(2 * p.rows + 1), (size_t)b->width * sizeof(float));
    p.there = calloc(2 * all, (size_t)b->width * sizeof(float));
    p.send = calloc(2 * all + 2 * (size_t)ranks, sizeof(ts_part));
    contest_times times = { 0 };
    ts_status status = TS_ERR_MEMORY;
    if (p.x != NULL && p.there != NULL && p.send != NULL) {
        p.y = p.x + p.rows * b->width;
        p.copy = p.there + all * (size_t)b->width;
        p.home = p.send + all;
        p.recv = p.home + all;
        p.back = p.recv + ranks;
        passing_parts(&p, ranks);
        contest c = { .world = p.world,
                      .contenders = 2,
                      .seconds = (double)b->seconds / 8,
                      .context = &p,
                      .run = run_passing };
        status = contest_run(&c, &times);
    }
    if (status == TS_OK && me == 0) {
        bench_line *line = bench_lines_add(&b->lines, "ms", times.median[0] * 1e3,
                                           "dispatch and combine on %lld ranks%s", (long long)ranks,
                                           own ? ", own rows too" : "");
        bench_line_floor(line, times.median[1] * 1e3, "plain copies of these bytes");
    }
    free(p.x);
    free(p.there);
    free(p.send);
    return status;
}

/* ---- end to end ------------------------------------------------------------------------------ */

typedef struct layer {
    ts_rank *me;
    ts_tensor *x, *which, *gate, *up, *down;
    ts_grouped_mlp_options experts;
} layer;

static ts_status run_layer(void *context, int who)
{
    const layer *l = context;
    ts_scope scope = ts_scope_open(l->me, "layer");
    ts_tensor *y =
        who ? ts_linear(ts_swiglu(ts_linear(l->x, l->gate, NULL), ts_linear(l->x, l->up, NULL)),
                        l->down, NULL)
            : ts_grouped_mlp(l->x, l->which, &l->experts);
    if (y != NULL) (void)ts_tensor_wait(y);
    ts_status closed = ts_scope_close(scope);
    return ts_rank_status(l->me) != TS_OK ? ts_rank_status(l->me) : closed;
}

static ts_status measure_layer(bench_experts *b, bench_experts *shared)
{
    ts_scope scope = ts_scope_open(b->me, "layer");
    int64_t inner = b->inner * b->choices;
    ts_mesh *m = b->mesh;
    ts_dtype f32 = TS_DTYPE_F32;
    ts_meta ids = { .shape = TS_SHAPE(b->tokens, b->choices), .dtype = TS_DTYPE_I64 };
    layer l = { .me = b->me,
                .x = ts_randn(m, f32, TS_SHAPE(b->tokens, b->width), "S(0)"),
                .which = ts_from_function(chosen_at, b, ts_sharding_get(m, "S(0)"), ids),
                .gate = ts_randn(m, f32, TS_SHAPE(inner, b->width), "R"),
                .up = ts_randn(m, f32, TS_SHAPE(inner, b->width), "R"),
                .down = ts_randn(m, f32, TS_SHAPE(b->width, inner), "R"),
                .experts = TS_INIT(ts_grouped_mlp_options) };
    l.experts.weight = ts_randn(m, f32, TS_SHAPE(b->tokens, b->choices), "S(0)");
    l.experts.in = ts_randn(m, f32, TS_SHAPE(b->experts, 2, b->inner, b->width), "S(0)");
    l.experts.out = ts_randn(m, f32, TS_SHAPE(b->experts, b->width, b->inner), "S(0)");
    contest_times times;
    contest c = { .world = ts_group_world(b->me),
                  .contenders = 2,
                  .seconds = (double)b->seconds / 3,
                  .context = &l,
                  .run = run_layer };
    ts_status status = contest_run(&c, &times);
    ts_status closed = ts_scope_close(scope);
    if (status != TS_OK || ts_rank_index(b->me) != 0) return status != TS_OK ? status : closed;
    double work = 6e-9 * (double)b->tokens * (double)b->width * (double)inner;
    bench_line *line = bench_lines_add(&shared->lines, "GFLOP/s", work / times.median[0],
                                       "layer of experts on %lld ranks", (long long)b->ranks);
    bench_line_floor(line, work / times.median[1], "dense layer of equal arithmetic");
    shared->layer = times.median[0];
    return closed;
}

/* ---- PyTorch --------------------------------------------------------------------------------- */

/* Nothing where it is not found. */
static void measure_rival(bench_experts *b)
{
    char command[512], answer[256] = "";
    (void)snprintf(command, sizeof command,
                   "python3 bench/rival/experts_torch.py %lld %lld %lld %lld %lld %lld 2>/dev/null",
                   (long long)b->threads, (long long)b->experts, (long long)b->choices,
                   (long long)b->tokens, (long long)b->width, (long long)b->inner);
    FILE *rival = popen(command, "r");
    if (rival == NULL) return;
    const char *line = fgets(answer, sizeof answer, rival), *at = NULL;
    if (pclose(rival) == 0 && line != NULL) at = strstr(answer, "\"seconds\": ");
    if (at == NULL) return;
    double seconds = strtod(at + strlen("\"seconds\": "), NULL);
    bench_line *added = bench_lines_add(&b->lines, "s", b->layer, "layer of experts");
    bench_line_floor(added, seconds, "PyTorch: index and a loop of products");
}

/* ---- the command ----------------------------------------------------------------------------- */

static ts_status one_rank(ts_rank *me, void *argument)
{
    bench_experts *b = argument;
    b->me = me;
    b->mesh = ts_mesh_self(me);
    return wanted(b, "grouped products") ? measure_products(b) : TS_OK;
}

static ts_status all_ranks(ts_rank *me, void *argument)
{
    bench_experts *b = argument, mine = *b;
    mine.me = me;
    mine.mesh = ts_mesh_create(me, "ep=*");
    ts_status status = TS_OK;
    for (int own = 0; own < 2 && status == TS_OK && wanted(b, "dispatch and combine"); own++)
        status = measure_passing(&mine, b->ranks, own);
    if (status == TS_OK && ts_rank_index(me) == 0) b->lines = mine.lines;
    return status == TS_OK && wanted(b, "layer of experts") ? measure_layer(&mine, b) : status;
}

int cli_bench_experts(int argc, char **argv)
{
    bench_experts self = {
        .seconds = 36, .experts = 64, .choices = 8, .tokens = 8192, .width = 1024, .inner = 512
    };
    cli_machine machine;
    char error[1024] = "";
    cli_machine_read(&machine);
    self.threads = machine.cores;
    self.ranks = machine.cores >= 16 ? 8 : 2;
    const cli_option options[] = {
        CLI_INT("ranks", &self.ranks, 1, RANKS_MAX,
                "that hold the experts (default: 2; of 16 cores 8)"),
        CLI_INT("threads", &self.threads, 1, 1024, "threads in all (default: the cores)"),
        CLI_INT("experts", &self.experts, 1, 65536, "of the layer (default: 64)"),
        CLI_INT("choices", &self.choices, 1, 64, "experts of a token (default: 8)"),
        CLI_INT("tokens", &self.tokens, 2, 1 << 24, "of all ranks together (default: 8192)"),
        CLI_INT("width", &self.width, 1, 1 << 20, "of a token (default: 1024)"),
        CLI_INT("inner", &self.inner, 1, 1 << 20, "of an expert (default: 512)"),
        CLI_INT("seconds", &self.seconds, 1, 3600, "time to spend, about (default: 36)"),
        CLI_TEXT("only", &self.only, "TEXT", "lines whose name contains it"),
        CLI_FLAG("json", &self.json, "one JSON object"),
        CLI_END
    };
    const cli_usage usage = {
        "bench experts", "[options]",
        "A layer of experts: its products against one, what moves against copies, the whole\n"
        "against a dense layer of equal arithmetic and against PyTorch, where it is found.",
        options, "bench/rival/experts_torch.py is PyTorch's side.\n"
    };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc > 1) return cli_fail_usage("bench experts", "unexpected argument \"%s\"", argv[1]);
    if (self.choices > self.experts)
        return cli_fail_usage("bench experts", "%lld choices of %lld experts",
                              (long long)self.choices, (long long)self.experts);
    ts_status status = bench_launch(self.threads, 1, one_rank, &self, error, sizeof error);
    if (status == TS_OK)
        status = bench_launch(self.threads, self.ranks, all_ranks, &self, error, sizeof error);
    if (status != TS_OK) return cli_fail("bench experts", "%s", error);
    if (self.layer > 0) measure_rival(&self);
    if (self.lines.count == 0)
        return cli_fail_usage("bench experts", "--only: no line has \"%s\" in its name", self.only);
    return bench_lines_print(&self.lines, self.json);
}
