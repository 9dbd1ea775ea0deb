/* SPDX-License-Identifier: Apache-2.0 */
/* bench_comm.c - `tessera bench comm`: every collective and size against its copies, in turns.
 *
 * All ranks take every decision (how many repetitions, what is skipped) from numbers they have
 * agreed on, so they stay in step. The process that has rank 0 keeps the results and prints them.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_topology.h"
#include "rival.h"

enum { BATCHES_MAX = 15, BATCHES_MIN = 3, REPEATS_MAX = 5000, SIZES_MAX = 16 };

static const int64_t default_sizes[] = { 8,        1 << 10,  64 << 10, 1 << 20,
                                         16 << 20, 64 << 20, 256 << 20 };

typedef struct result {
    const bench_case *what;
    int64_t size;
    double ours, floor, rival; /* seconds of one operation, best batch; rival 0: none */
    double median;             /* of ours */
    bool skipped;
} result;

typedef struct bench {
    const char *engine, *only; /* options; only: one collective */
    const char *save;          /* not NULL: measure the cost model's constants into this file */
    int64_t rank_count, seconds, sizes[SIZES_MAX], size_count, size_max;
    bool json;
    const bench_rival *rival;
    /* filled by rank 0 */
    result *results;
    size_t result_count;
    int64_t ranks;
    char engine_used[16];
    pthread_barrier_t barrier; /* of the thread ranks */
    ts_topology topology;      /* --save */
} bench;

/* ---- numbers that all ranks agree on --------------------------------------------------------- */
static ts_status agree_max(bench_rank *b, double *values, int64_t count)
{
    ts_array array = { .struct_size = sizeof array, .data = values };
    array.meta.dtype = TS_DTYPE_F64;
    array.meta.shape.ndim = 1;
    array.meta.shape.extent[0] = count;
    return ts_group_all_reduce(b->world, &array, &array, TS_REDUCE_MAX, NULL);
}

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* ---- what is timed: ours, the copies, the raw call ------------------------------------------- */
typedef enum contender { CONTENDER_OURS, CONTENDER_COPY, CONTENDER_RAW, CONTENDERS } contender;

static ts_status run_once(bench *self, bench_rank *b, const bench_case *what, contender who)
{
    switch (who) {
    case CONTENDER_OURS:
        return what->run(b);
    case CONTENDER_COPY:
        what->copy(b);
        return TS_OK;
    case CONTENDER_RAW:
        if (self->rival->call(what->raw, b) == 0) return TS_OK;
        return ts_rank_fail(b->me, TS_ERR_PEER, "the raw call %s failed", what->raw);
    case CONTENDERS:
        break;
    }
    return TS_OK;
}

/* Seconds per operation of a batch, on this rank. */
static ts_status time_batch(bench *self, bench_rank *b, const bench_case *what, contender who,
                            int64_t repeats, double *out)
{
    ts_status status = ts_group_barrier(b->world, NULL);
    double start = cli_now();
    for (int64_t i = 0; i < repeats && status == TS_OK; i++)
        status = run_once(self, b, what, who);
    *out = (cli_now() - start) / (double)repeats;
    return status;
}

/* What every contender does in one batch of about 1/15 of the budget, from one timed call each. */
static ts_status calibrate(bench *self, bench_rank *b, const bench_case *what, int contenders,
                           double budget, int64_t *repeats)
{
    double once[CONTENDERS] = { 0 }, all = 1e-9;
    ts_status status = TS_OK;
    for (int turn = 0; turn < 2; turn++) { /* the first turn warms up */
        for (int who = 0; who < contenders && status == TS_OK; who++) {
            status = time_batch(self, b, what, (contender)who, 1, &once[who]);
        }
    }
    if (status == TS_OK) status = agree_max(b, once, CONTENDERS);
    for (int who = 0; who < contenders; who++)
        all += once[who];
    double share = budget / BATCHES_MAX / all;
    *repeats = share < 1 ? 1 : share > REPEATS_MAX ? REPEATS_MAX : (int64_t)share;
    return status;
}

static ts_status measure(bench *self, bench_rank *b, const bench_case *what, double budget,
                         result *out)
{
    double batch[CONTENDERS][BATCHES_MAX] = { { 0 } }, spent = 0, start = cli_now();
    int contenders = self->rival != NULL && what->raw != NULL ? CONTENDERS : CONTENDER_RAW;
    int64_t repeats = 1, batches = 0;
    ts_status status = calibrate(self, b, what, contenders, budget, &repeats);
    while (status == TS_OK && batches < BATCHES_MAX && (batches < BATCHES_MIN || spent < budget)) {
        for (int who = 0; who < contenders && status == TS_OK; who++) {
            status = time_batch(self, b, what, (contender)who, repeats, &batch[who][batches]);
        }
        batches++;
        spent = cli_now() - start;
        if (status == TS_OK) status = agree_max(b, &spent, 1);
    }
    for (int who = 0; who < contenders && status == TS_OK; who++) {
        status = agree_max(b, batch[who], batches);
    }
    *out = (result){ .what = what, .size = b->size };
    if (status != TS_OK) return status;
    for (int who = 0; who < contenders; who++) {
        qsort(batch[who], (size_t)batches, sizeof batch[who][0], compare_doubles);
    }
    out->ours = batch[CONTENDER_OURS][0];
    out->median = batch[CONTENDER_OURS][batches / 2];
    out->floor = batch[CONTENDER_COPY][0];
    out->rival = batch[CONTENDER_RAW][0];
    return TS_OK;
}

/* ---- one rank's part ------------------------------------------------------------------------- */
static ts_status share_buffers(bench_rank *b)
{
    uintptr_t mine = (uintptr_t)b->in;
    ts_array in = { .struct_size = sizeof in, .data = &mine };
    in.meta.dtype = TS_DTYPE_I64;
    in.meta.shape.ndim = 1;
    in.meta.shape.extent[0] = 1;
    ts_array out = in;
    out.data = b->peer_in;
    out.meta.shape.extent[0] = b->count;
    if (b->shared) return ts_group_all_gather(b->world, &in, &out, NULL);
    for (int64_t i = 0; i < b->count; i++)
        b->peer_in[i] = b->in;
    return TS_OK;
}

static ts_status rank_open(bench *self, bench_rank *b)
{
    size_t bytes = ((size_t)self->size_max + 4095) / 4096 * 4096, n = (size_t)b->count;
    b->in = aligned_alloc(4096, bytes);
    b->out = aligned_alloc(4096, bytes);
    b->peer_in = calloc(n, sizeof *b->peer_in);
    b->send_rows = calloc(n, sizeof *b->send_rows);
    b->recv_rows = calloc(n, sizeof *b->recv_rows);
    b->send = calloc(n, sizeof *b->send);
    b->recv = calloc(n, sizeof *b->recv);
    if (!b->in || !b->out || !b->peer_in || !b->send_rows || !b->recv_rows || !b->send ||
        !b->recv) {
        return ts_rank_fail(b->me, TS_ERR_MEMORY, "no memory for two arrays of %lld bytes",
                            (long long)self->size_max);
    }
    if (b->shared) {
        b->barrier = &self->barrier;
        /* Nobody uses it before the collective of share_buffers, which rank 0 joins afterwards. */
        if (b->index == 0) pthread_barrier_init(b->barrier, NULL, (unsigned)b->count);
    }
    memset(b->in, 0, bytes); /* touched by the rank that uses it; zeros add up to zeros */
    memset(b->out, 0, bytes);
    return share_buffers(b);
}

static void rank_close(bench_rank *b)
{
    free(b->in);
    free(b->out);
    free(b->peer_in);
    free(b->send_rows);
    free(b->recv_rows);
    free(b->send);
    free(b->recv);
}

/* Would another size of this collective keep the run within its time? From the last size's own
 * time. */
static bool is_too_long(const result *last, int64_t size, double left)
{
    if (last->size == 0) return false;
    double growth = (double)size / (double)last->size;
    return 2 * (BATCHES_MIN + 2) * (last->ours + last->floor + last->rival) * growth / 2 > left / 4;
}

static ts_status run_sizes(bench *self, bench_rank *b)
{
    double start = cli_now(), left = (double)self->seconds;
    result last[32] = { { 0 } };
    double budget = left / (double)(self->size_count * (int64_t)bench_case_count) / 2;
    for (int64_t s = 0; s < self->size_count; s++) {
        b->size = self->sizes[s];
        for (size_t c = 0; c < bench_case_count; c++) {
            const bench_case *what = &bench_cases[c];
            if (self->only != NULL && strcmp(self->only, what->name) != 0) continue;
            if (!what->sized && s > 0) continue;
            result one = { .what = what, .size = b->size, .skipped = true };
            double elapsed = cli_now() - start;
            ts_status status = agree_max(b, &elapsed, 1);
            left = (double)self->seconds - elapsed;
            if (!is_too_long(&last[c], b->size, left) || (s == 0 && left > 0)) {
                if (status == TS_OK) status = measure(self, b, what, budget, &one);
                last[c] = one;
            }
            if (status != TS_OK) return status;
            if (b->index == 0) self->results[self->result_count++] = one;
        }
    }
    return TS_OK;
}

static ts_status work(ts_rank *me, void *arg)
{
    bench *self = arg;
    const char *engine = ts_world_engine(ts_rank_world(me));
    bench_rank b = { .me = me,
                     .world = ts_group_world(me),
                     .index = ts_rank_index(me),
                     .count = ts_rank_count(me),
                     .shared = strcmp(engine, "threads") == 0 };
    if (b.index == 0) {
        self->ranks = b.count;
        (void)snprintf(self->engine_used, sizeof self->engine_used, "%s", engine);
    }
    if (self->save != NULL) {
        ts_topology measured;
        ts_status done = bench_topology_measure(me, (double)self->seconds / 4, &measured);
        if (b.index == 0) self->topology = measured;
        return done;
    }
    if (!b.shared && ts_world_local_count(ts_rank_world(me)) == 1 && self->rival == NULL) {
        self->rival = bench_rival_load();
    }
    ts_status status = rank_open(self, &b);
    if (status == TS_OK) status = run_sizes(self, &b);
    if (status == TS_OK)
        status = ts_group_barrier(b.world, NULL); /* nobody frees what a peer still reads */
    if (b.barrier != NULL && b.index == 0 && status == TS_OK) pthread_barrier_destroy(b.barrier);
    rank_close(&b);
    return status;
}

/* ---- output ---------------------------------------------------------------------------------- */
static double ratio_of(const result *r)
{
    double base = r->rival > 0 ? r->rival : r->floor;
    return base > 1e-9 ? r->ours / base : 0;
}

static void result_json(const bench *self, const result *r, ts_json_writer *json)
{
    char name[96], bytes[32], floor[64];
    (void)snprintf(name, sizeof name, "%s%s%s", r->what->name, r->what->sized ? " " : "",
                   r->what->sized ? cli_bytes(bytes, sizeof bytes, r->size) : "");
    (void)snprintf(floor, sizeof floor,
                   r->what->sized ? "memcpy by %lld threads" : "pthread barrier of %lld",
                   (long long)self->ranks);
    ts_json_put_open(json, '{');
    ts_json_put_member_text(json, "name", name);
    ts_json_put_member_text(json, "unit", "s");
    ts_json_put_member_real(json, "value", r->ours);
    ts_json_put_key(json, "floor");
    ts_json_put_open(json, '{');
    ts_json_put_member_text(json, "name", r->rival > 0 ? r->what->raw : floor);
    ts_json_put_member_real(json, "value", r->rival > 0 ? r->rival : r->floor);
    ts_json_put_close(json, '}');
    ts_json_put_key(json, "ratio");
    if (ratio_of(r) > 0)
        ts_json_put_real(json, ratio_of(r));
    else
        ts_json_put_text(json, NULL);
    ts_json_put_member_text(json, "collective", r->what->name);
    ts_json_put_member_text(json, "engine", self->engine_used);
    ts_json_put_member_int(json, "ranks", self->ranks);
    ts_json_put_member_int(json, "bytes", r->what->sized ? r->size : 0);
    ts_json_put_member_real(json, "median", r->median);
    ts_json_put_member_real(json, "gb_s", r->what->sized ? (double)r->size / r->ours / 1e9 : 0);
    if (r->rival > 0) ts_json_put_member_real(json, "memcpy", r->floor);
    ts_json_put_close(json, '}');
}

static int print_json(const bench *self)
{
    ts_json_writer json = { 0 };
    cli_json_bench(&json);
    ts_json_put_key(&json, "results");
    ts_json_put_open(&json, '[');
    for (size_t i = 0; i < self->result_count; i++) {
        if (!self->results[i].skipped) result_json(self, &self->results[i], &json);
    }
    ts_json_put_close(&json, ']');
    ts_json_put_key(&json, "skipped");
    ts_json_put_open(&json, '[');
    for (size_t i = 0; i < self->result_count; i++) {
        if (self->results[i].skipped) ts_json_put_text(&json, self->results[i].what->name);
    }
    ts_json_put_close(&json, ']');
    ts_json_put_close(&json, '}');
    int code = cli_json_print(&json, stdout);
    ts_json_writer_release(&json);
    return code;
}

static void print_text(const bench *self)
{
    static const char *const names[] = { "collective", ">size",    ">time",  ">GB/s",
                                         ">floor",     ">raw MPI", ">ratio", NULL };
    cli_table table;
    char text[32];
    size_t skipped = 0;
    cli_table_begin(&table, names);
    for (size_t i = 0; i < self->result_count; i++) {
        const result *r = &self->results[i];
        if (r->skipped) {
            skipped++;
            continue;
        }
        cli_table_row(&table);
        cli_table_cell(&table, 0, "%s", r->what->name);
        if (r->what->sized) cli_table_cell(&table, 1, "%s", cli_bytes(text, sizeof text, r->size));
        cli_table_cell(&table, 2, "%s", cli_seconds(text, sizeof text, r->ours));
        if (r->what->sized) cli_table_cell(&table, 3, "%.2f", (double)r->size / r->ours / 1e9);
        if (r->floor > 1e-9)
            cli_table_cell(&table, 4, "%s", cli_seconds(text, sizeof text, r->floor));
        if (r->rival > 0) cli_table_cell(&table, 5, "%s", cli_seconds(text, sizeof text, r->rival));
        if (ratio_of(r) > 0) cli_table_cell(&table, 6, "%.2f", ratio_of(r));
    }
    printf("%lld ranks, engine %s, f32; ratio: ours over %s\n\n", (long long)self->ranks,
           self->engine_used, self->rival ? "the raw MPI call" : "its floor, plain copies");
    cli_table_print(&table, stdout);
    if (skipped > 0) {
        printf("\n%zu cases skipped: they would not end within %lld s; ask with --size and "
               "--seconds\n",
               skipped, (long long)self->seconds);
    }
    cli_table_release(&table);
}

/* ---- options --------------------------------------------------------------------------------- */
static int check_options(const bench *self)
{
    static const char *const engines[] = { "threads", "mpi" };
    const char *names[32];
    if (self->engine != NULL && strcmp(self->engine, "threads") != 0 &&
        strcmp(self->engine, "mpi") != 0) {
        const char *near = cli_nearest(self->engine, engines, 2);
        return cli_fail_usage("bench comm", "--engine: expected threads or mpi, found \"%s\"%s%s%s",
                              self->engine, near ? "; did you mean " : "", near ? near : "",
                              near ? "?" : "");
    }
    bool known = self->only == NULL;
    for (size_t i = 0; i < bench_case_count; i++) {
        names[i] = bench_cases[i].name;
        if (self->only != NULL && strcmp(names[i], self->only) == 0) known = true;
    }
    if (known) return -1;
    const char *near = cli_nearest(self->only, names, bench_case_count);
    return cli_fail_usage("bench comm", "--op: there is no collective \"%s\"%s%s%s", self->only,
                          near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

/* The sizes to run: the one that was asked for, or the default ones that fit the memory. */
static void choose_sizes(bench *self, int64_t size)
{
    cli_machine machine;
    cli_machine_read(&machine);
    int64_t ranks = self->rank_count > 0 ? self->rank_count : machine.cores;
    self->size_max = size;
    if (size > 0) self->sizes[self->size_count++] = size;
    for (size_t i = 0; size == 0 && i < sizeof default_sizes / sizeof default_sizes[0]; i++) {
        if (default_sizes[i] > machine.memory_bytes / 4 / ranks) break;
        self->sizes[self->size_count++] = self->size_max = default_sizes[i];
    }
}

/* The measured topology into its file, and onto the screen. */
static int save_topology(const bench *self)
{
    char text[4096];
    if (ts_topology_save(&self->topology, self->save) != TS_OK)
        return cli_fail("bench comm", "%s", ts_last_error());
    (void)ts_topology_json(&self->topology, text, sizeof text);
    printf("%s\n", text);
    return 0;
}

static int run_bench(bench *self)
{
    char error[1024];
    ts_world_options options = { .struct_size = sizeof options,
                                 .engine = self->engine,
                                 .rank_count = self->rank_count };
    self->results = calloc((size_t)self->size_count * bench_case_count, sizeof *self->results);
    if (self->results == NULL) return cli_fail("bench comm", "out of memory");
    int code = 0;
    ts_status status = ts_launch_with(&options, work, self, error, sizeof error);
    if (status == TS_ERR_ARG && self->ranks == 0)
        code = cli_fail_usage("bench comm", "%s", error);
    else if (status != TS_OK)
        code = cli_fail("bench comm", "%s", error);
    else if (self->ranks > 0 && self->save != NULL)
        code = save_topology(self);
    else if (self->ranks > 0 && self->json)
        code = print_json(self);
    else if (self->ranks > 0)
        print_text(self);
    free(self->results);
    return code;
}

int cli_bench_comm(int argc, char **argv)
{
    bench self = { .seconds = 40 };
    int64_t size = 0;
    const cli_option options[] = {
        CLI_INT("ranks", &self.rank_count, 1, 65536,
                "ranks (default: TESSERA_RANKS, else the cores)"),
        CLI_SIZE("size", &size, 4, INT64_C(1) << 36, "of the full array (default: 8 B to 256 MiB)"),
        CLI_TEXT("engine", &self.engine, "NAME", "threads or mpi (default: mpi under mpirun)"),
        CLI_TEXT("op", &self.only, "NAME", "one collective: all_reduce, all_gather, ..."),
        CLI_TEXT("save", &self.save, "FILE",
                 "measure the constants of the cost model instead, into a topology file"),
        CLI_INT("seconds", &self.seconds, 1, 3600, "time to spend (default: 40)"),
        CLI_FLAG("json", &self.json, "one JSON object"),
        CLI_END
    };
    const cli_usage usage = {
        "bench comm", "[options]",
        "Times every collective against plain copies of the bytes it must move, by as "
        "many threads,\nin the same run; under mpirun against the raw MPI call.",
        options, NULL
    };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc > 1) return cli_fail_usage("bench comm", "unexpected argument \"%s\"", argv[1]);
    code = check_options(&self);
    if (code >= 0) return code;
    choose_sizes(&self, size / 4 * 4);
    return run_bench(&self);
}
