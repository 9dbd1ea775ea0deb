/* SPDX-License-Identifier: Apache-2.0 */
/* bench_attention.c - `tessera bench attention`: the one attention beside products of its dtype.
 *
 *   causal, T = 4,096, D = 64 and 128     rates against a product of 4,096 in the same run
 *   causal against full                   rates of pairs that are seen
 *   windows and documents                 time of a computed tile against causal's
 *   few queries                           bytes of keys and values read a second
 *   a sequence cut over ranks             against one rank with as many threads: two ranks at T =
 *                                         8,192; with 16 threads also 8 ranks at T = 32,768
 *   memory                                of T = 4,096, 16,384 and 65,536, and of ranks
 *   PyTorch, where python3 finds it       scaled_dot_product_attention, and flex attention of masks
 *
 * Rates count the pairs that are seen: 4 D operations each forward, 10 D backward. Ratios are our
 * rate over the floor's: larger is better. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_lines.h"
#include "contest.h"
#include "rival_script.h"

typedef struct cut { /* of a sequence among ranks */
    int64_t ranks, length;
    double alone[2]; /* seconds on one rank with as many threads, forward and backward */
} cut;

typedef struct bench_attention {
    bench_lines lines;
    int64_t threads, seconds;
    cut cut[2];
    int cuts, now; /* how many; the one that is measured */
    bool json;
    ts_rank *me;
    ts_mesh *mesh;
    double product[2]; /* operations a second of f32 and bf16 */
    double tile;       /* seconds of a tile of causal attention */
    double masked[4];  /* seconds of a call, of `masks` */
    double bytes;      /* a token of the longest sequence on one rank */
} bench_attention;

static const char *const masks[] = { "window(511, 0)", "causal & documents(1024, 1024, 1024, 1024)",
                                     "causal & documents(300, 1700, 96, 2000)",
                                     "prefix(256) | window(255, 0)" };
enum { MASKS = sizeof masks / sizeof masks[0] };

typedef struct subject {
    ts_rank *me;
    const char *mask;
    ts_tensor *x[4], *out[2]; /* q, k, v, gradient; output, log-sum-exp */
    bool back;
} subject;

enum { LENGTH = 4096, HEADS = 2 };

/* ---- one call -------------------------------------------------------------------------------- */

static ts_attention_options options_of(const subject *s)
{
    ts_attention_options options = TS_INIT(ts_attention_options);
    options.mask = ts_mask_get(ts_rank_world(s->me), s->mask);
    return options;
}

static ts_status run_once(void *context, int who)
{
    (void)who;
    subject *s = context;
    ts_scope scope = ts_scope_open(s->me, "attention");
    ts_attention_options options = options_of(s);
    if (s->back) {
        ts_attention_saved saved = { sizeof saved, s->x[0],   s->x[1], s->x[2],
                                     s->out[0],    s->out[1], s->x[3], NULL };
        ts_tensor *d[3] = { NULL };
        (void)ts_attention_backward(&saved, &options, d);
        for (int i = 0; i < 3; i++)
            (void)ts_tensor_wait(d[i]);
    } else {
        (void)ts_tensor_wait(ts_attention(s->x[0], s->x[1], s->x[2], &options));
    }
    ts_status closed = ts_scope_close(scope);
    return ts_rank_status(s->me) != TS_OK ? ts_rank_status(s->me) : closed;
}

static ts_status subject_open(subject *s, ts_mesh *mesh, const char *place, ts_dtype dtype,
                              ts_shape shape)
{
    for (int i = 0; i < 4; i++)
        s->x[i] = ts_randn(mesh, dtype, shape, place);
    ts_attention_options options = options_of(s);
    return s->back ? ts_attention_lse(s->x[0], s->x[1], s->x[2], &options, s->out)
                   : ts_rank_status(s->me);
}

static ts_status time_of(const bench_attention *b, subject *s, double seconds, double *out)
{
    contest_times times;
    contest c = { .world = ts_group_world(b->me),
                  .contenders = 1,
                  .seconds = seconds,
                  .context = s,
                  .run = run_once };
    ts_status status = contest_run(&c, &times);
    *out = times.median[0];
    return status;
}

/* Seconds of a mask at a length, with its pairs and tiles. */
static ts_status measure(bench_attention *b, const char *mask, ts_dtype dtype, ts_shape shape,
                         bool back, double *seconds, ts_mask_summary *summary)
{
    ts_scope scope = ts_scope_open(b->me, "line");
    subject s = { .me = b->me, .mask = mask, .back = back };
    ts_mask_size size = TS_INIT(ts_mask_size);
    size.queries = size.keys = shape.extent[2];
    size.key_block =
        64; /* of a partial tile only what is between is computed, in steps of 64 keys */
    *summary = (ts_mask_summary)TS_INIT(ts_mask_summary);
    ts_status status =
        ts_mask_tiles(ts_mask_get(ts_rank_world(b->me), mask), &size, NULL, 0, summary);
    if (status == TS_OK) status = subject_open(&s, b->mesh, NULL, dtype, shape);
    if (status == TS_OK) status = time_of(b, &s, (double)b->seconds / 30.0, seconds);
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

/* ---- lines ----------------------------------------------------------------------------------- */

typedef struct product {
    ts_rank *me;
    ts_tensor *x, *y;
} product;

static ts_status run_product(void *context, int who)
{
    (void)who;
    const product *p = context;
    ts_tensor *z = ts_matmul(p->x, p->y);
    ts_status status = z != NULL ? ts_tensor_wait(z) : ts_rank_status(p->me);
    ts_tensor_drop(z);
    return status;
}

static ts_status products(bench_attention *b)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16 };
    const int64_t n = 4096;
    ts_status status = TS_OK;
    for (int i = 0; i < 2 && status == TS_OK; i++) {
        ts_scope scope = ts_scope_open(b->me, "product");
        product p = { b->me, ts_randn(b->mesh, dtypes[i], TS_SHAPE(n, n), NULL),
                      ts_randn(b->mesh, dtypes[i], TS_SHAPE(n, n), NULL) };
        contest_times times;
        contest c = { .world = ts_group_world(b->me),
                      .contenders = 1,
                      .seconds = 1.0,
                      .context = &p,
                      .run = run_product };
        status = contest_run(&c, &times);
        b->product[i] = 2.0 * (double)n * (double)n * (double)n / times.median[0];
        (void)bench_lines_add(&b->lines, "GFLOP/s", b->product[i] / 1e9, "product %s 4096",
                              ts_dtype_name(dtypes[i]));
        ts_status closed = ts_scope_close(scope);
        if (status == TS_OK) status = closed;
    }
    return status;
}

static ts_status rates(bench_attention *b)
{
    double full[2] = { 0 };
    for (int i = 0; i < 16; i++) {
        int wide = i & 1, half = i >> 1 & 1, back = i >> 2 & 1, all = i >> 3;
        int64_t depth = wide ? 128 : 64;
        double seconds;
        ts_mask_summary seen;
        if (all && (wide || half)) continue; /* full: f32, D = 64 */
        ts_dtype dtype = half ? TS_DTYPE_BF16 : TS_DTYPE_F32;
        ts_status status = measure(b, all ? "full" : "causal", dtype,
                                   TS_SHAPE(1, HEADS, LENGTH, depth), back, &seconds, &seen);
        if (status != TS_OK) return status;
        double work = (back ? 10.0 : 4.0) * (double)depth * (double)seen.pairs * HEADS;
        if (i == 0 || i == 4) full[back] = work / seconds; /* causal, f32, D = 64 */
        bench_line *line =
            bench_lines_add(&b->lines, "GFLOP/s", work / seconds / 1e9, "%s %s %s T=%d D=%d",
                            all ? "full" : "causal", back ? "backward" : "forward",
                            ts_dtype_name(dtype), LENGTH, (int)depth);
        bench_line_floor(line, b->product[half] / 1e9, "product 4096");
        if (i == 0) b->tile = seconds / (double)(seen.full + seen.partial);
        if (!all) continue;
        line = bench_lines_add(&b->lines, "GFLOP/s", full[back] / 1e9, "causal by pair %s",
                               back ? "backward" : "forward");
        bench_line_floor(line, work / seconds / 1e9, "full");
    }
    return TS_OK;
}

/* Time is proportional to what is computed. */
static ts_status sparse(bench_attention *b)
{
    for (int i = 0; i < MASKS; i++) {
        double seconds;
        ts_mask_summary seen;
        ts_status status = measure(b, masks[i], TS_DTYPE_F32, TS_SHAPE(1, HEADS, LENGTH, 64), false,
                                   &seconds, &seen);
        if (status != TS_OK) return status;
        double tiles = (double)(seen.full + seen.partial);
        b->masked[i] = seconds;
        bench_line *line =
            bench_lines_add(&b->lines, "us/tile", seconds / tiles * 1e6, "%s", masks[i]);
        bench_line_floor(line, b->tile * 1e6, "causal");
        bench_line_note(line, "%.0f %% of the tiles skipped",
                        100.0 * (double)seen.empty / ((double)seen.empty + tiles));
    }
    return TS_OK;
}

/* Bytes that a rank holds at most beside inputs, by token of the whole sequence. */
static ts_status bytes_a_token(ts_rank *me, ts_mesh *mesh, const char *place, int64_t length,
                               double *each)
{
    ts_scope scope = ts_scope_open(me, "memory");
    subject s = { .me = me, .mask = "window(1023, 0)" };
    ts_memory before = TS_INIT(ts_memory), after = TS_INIT(ts_memory);
    ts_status status = subject_open(&s, mesh, place, TS_DTYPE_F32, TS_SHAPE(1, 1, length, 64));
    (void)ts_rank_memory_reset(me);
    (void)ts_rank_memory(me, &before);
    if (status == TS_OK) status = run_once(&s, 0);
    (void)ts_rank_memory(me, &after);
    (void)ts_scope_close(scope);
    *each = (double)(after.peak - before.live) / (double)length;
    return status;
}

/* It must not grow faster than the length. */
static ts_status memory(bench_attention *b)
{
    double first = 0;
    for (int64_t length = 4096; length <= 65536; length *= 4) {
        ts_status status = bytes_a_token(b->me, b->mesh, NULL, length, &b->bytes);
        if (status != TS_OK) return status;
        bench_line *line =
            bench_lines_add(&b->lines, "B/token", b->bytes, "memory T=%lld", (long long)length);
        if (first > 0) bench_line_floor(line, first, "T=4096");
        if (first == 0) first = b->bytes;
    }
    return TS_OK;
}

/* A token against many keys, which are read once for the heads of a group. */
static ts_status few_queries(bench_attention *b)
{
    enum { KEYS = 32768, GROUPS = 2, DEPTH = 128 };
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16 };
    for (int i = 0; i < 2; i++) {
        ts_scope scope = ts_scope_open(b->me, "few");
        subject s = { .me = b->me, .mask = "causal" };
        double seconds;
        for (int k = 0; k < 3; k++)
            s.x[k] = ts_randn(b->mesh, dtypes[i],
                              TS_SHAPE(1, k ? GROUPS : 4 * GROUPS, k ? KEYS : 1, DEPTH), NULL);
        ts_status status = time_of(b, &s, (double)b->seconds / 30.0, &seconds);
        ts_status closed = ts_scope_close(scope);
        if (status != TS_OK || closed != TS_OK) return status != TS_OK ? status : closed;
        double bytes = 2.0 * KEYS * GROUPS * DEPTH * (double)ts_dtype_size(dtypes[i]);
        (void)bench_lines_add(&b->lines, "GB/s", bytes / seconds / 1e9,
                              "one query, %d keys, %s, 4 heads a group", KEYS,
                              ts_dtype_name(dtypes[i]));
    }
    return TS_OK;
}

static ts_status alone(bench_attention *b)
{
    ts_mask_summary seen;
    ts_status status = TS_OK;
    for (int c = 0; c < b->cuts && status == TS_OK; c++)
        for (int back = 0; back < 2 && status == TS_OK; back++)
            status = measure(b, "causal", TS_DTYPE_F32, TS_SHAPE(1, HEADS, b->cut[c].length, 64),
                             back, &b->cut[c].alone[back], &seen);
    return status;
}

static ts_status one_rank(ts_rank *me, void *argument)
{
    bench_attention *b = argument;
    b->me = me;
    b->mesh = ts_mesh_self(me);
    ts_status status = products(b);
    if (status == TS_OK) status = rates(b);
    if (status == TS_OK) status = sparse(b);
    if (status == TS_OK) status = few_queries(b);
    if (status == TS_OK) status = memory(b);
    return status == TS_OK ? alone(b) : status;
}

static ts_status all_ranks(ts_rank *me, void *argument)
{
    bench_attention *b = argument, mine = *b;
    const cut *c = &b->cut[b->now];
    char text[32];
    (void)snprintf(text, sizeof text, "cp=%lld", (long long)c->ranks);
    mine.me = me;
    mine.mesh = ts_mesh_create(me, text);
    ts_status status = TS_OK;
    for (int back = 0; back < 2 && status == TS_OK; back++) {
        double seconds = 0;
        subject s = { .me = me, .mask = "causal", .back = back };
        ts_scope scope = ts_scope_open(me, "cp");
        status = subject_open(&s, mine.mesh, "cp:HT(2)", TS_DTYPE_F32,
                              TS_SHAPE(1, HEADS, c->length, 64));
        if (status == TS_OK) status = time_of(&mine, &s, (double)b->seconds / 30.0, &seconds);
        (void)ts_scope_close(scope);
        if (status != TS_OK || ts_rank_index(me) != 0) continue;
        bench_line *line =
            bench_lines_add(&b->lines, "/s", 1.0 / seconds, "causal %s T=%lld on %s",
                            back ? "backward" : "forward", (long long)c->length, text);
        bench_line_floor(line, 1.0 / c->alone[back], "one rank, as many threads");
    }
    double each = 0;
    if (status == TS_OK) status = bytes_a_token(me, mine.mesh, "cp:HT(2)", 65536, &each);
    if (status != TS_OK || ts_rank_index(me) != 0) return status;
    bench_line *line =
        bench_lines_add(&b->lines, "B/token", each, "memory of a rank T=65536 on %s", text);
    bench_line_floor(line, b->bytes, "one rank");
    return TS_OK;
}

/* ---- PyTorch --------------------------------------------------------------------------------- */

/* An answer has the name of a line of ours, or of a mask. */
static void beside(void *context, const ts_json *answer)
{
    bench_attention *b = context;
    const char *name = ts_json_text(ts_json_member(answer, "name"), "");
    double theirs = ts_json_real(ts_json_member(answer, "value"), 0);
    size_t measured = b->lines.count;
    for (size_t i = 0; i < measured && theirs > 0; i++) {
        const bench_line *ours = &b->lines.line[i];
        if (strcmp(ours->name, name) != 0 || strcmp(ours->unit, "GFLOP/s") != 0) continue;
        bench_line *line =
            bench_lines_add(&b->lines, "GFLOP/s", ours->value, "beside PyTorch: %s", name);
        bench_line_floor(line, theirs, "PyTorch");
    }
    for (int i = 0; i < MASKS && theirs > 0; i++) {
        if (strcmp(masks[i], name) != 0) continue;
        bench_line *line =
            bench_lines_add(&b->lines, "/s", 1.0 / b->masked[i], "beside PyTorch: %s", name);
        bench_line_floor(line, theirs, "flex attention");
    }
}

static void rival(bench_attention *b)
{
    char command[128];
    (void)snprintf(command, sizeof command,
                   "python3 bench/rival/attention_torch.py %lld %d 2>/dev/null",
                   (long long)b->threads, (int)LENGTH);
    bench_rival_ask(command, beside, b);
}

/* ---- the command ----------------------------------------------------------------------------- */

int cli_bench_attention(int argc, char **argv)
{
    bench_attention self = { .seconds = 40, .cuts = 1, .cut = { { 2, 8192, { 0 } } } };
    cli_machine machine;
    char error[1024] = "";
    cli_machine_read(&machine);
    self.threads = machine.cores;
    const cli_option options[] = {
        CLI_INT("threads", &self.threads, 1, 1024, "threads in all (default: the cores)"),
        CLI_INT("ranks", &self.cut[0].ranks, 2, 1024,
                "among which the sequence is cut (default: 2)"),
        CLI_INT("length", &self.cut[0].length, 1, 1 << 24, "of that sequence (default: 8192)"),
        CLI_INT("seconds", &self.seconds, 1, 3600, "time to spend, about (default: 40)"),
        CLI_FLAG("json", &self.json, "one JSON object"),
        CLI_END
    };
    const cli_usage usage = {
        "bench attention", "[options]",
        "Attention against products of its dtype: causal and full, forward and backward, windows\n"
        "and documents by computed tile, a sequence cut over ranks, memory by length.",
        options,
        "bench/rival/attention_torch.py measures the same of PyTorch, in the same run where the\n"
        "working directory has it and python3 finds torch.\n"
    };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc > 1) return cli_fail_usage("bench attention", "unexpected argument \"%s\"", argv[1]);
    if (self.threads >= 16) self.cut[self.cuts++] = (cut){ 8, 32768, { 0 } };
    ts_status status = bench_launch(self.threads, 1, one_rank, &self, error, sizeof error);
    for (; self.now < self.cuts && status == TS_OK; self.now++)
        status = bench_launch(self.threads, self.cut[self.now].ranks, all_ranks, &self, error,
                              sizeof error);
    if (status != TS_OK) return cli_fail("bench attention", "%s", error);
    rival(&self);
    return bench_lines_print(&self.lines, self.json);
}
