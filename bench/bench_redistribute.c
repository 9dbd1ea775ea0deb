/* SPDX-License-Identifier: Apache-2.0 */
/* bench_redistribute.c - `tessera bench redistribute`: a matrix from layout to layout, against the
 * copies of its bytes and, under mpirun, against the raw MPI calls.
 *
 * What a rank must move, and so what its floor copies (plain memcpy, by as many threads at once):
 * without partials its whole target block; P to S the other ranks' terms of its block, P to R that
 * and the other ranks' results. Each case also runs with prime extents, where nothing divides. At
 * the end a move is overlapped with a matrix product. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_moves.h"
#include "bench_topology.h"
#include "contest.h"
#include "rival.h"

enum { RESULTS_MAX = 64, PRODUCT = 96 };

typedef struct redist_case {
    const char *name, *mesh, *from, *to; /* mesh: of all ranks */
    int32_t axes;                        /* 2: only where the ranks are a square or more */
    int32_t reduces;                     /* 1: to S, 2: to R */
} redist_case;

static const redist_case cases[] = {
    { "S0 to S1", "x=*", "S(0)", "S(1)", 1, 0 },
    { "S0 to R", "x=*", "S(0)", "R", 1, 0 },
    { "P to R", "x=*", "P(sum)", "R", 1, 2 },
    { "P to S0", "x=*", "P(sum)", "S(0)", 1, 1 },
    { "strided to plain", "x=*", "SS(0,2)", "S(0)", 1, 0 },
    { "S0,S1 to S1,S0", "a=2, b=*", "S(0), S(1)", "S(1), S(0)", 2, 0 },
    { "S0,S0 to S1,R", "a=2, b=*", "S(0), S(0)", "S(1), R", 2, 0 },
};
enum { CASES = sizeof cases / sizeof cases[0] };

typedef enum who { WHO_OURS, WHO_FLOOR, WHO_RAW, WHO_PACKED } who;

typedef struct result {
    const redist_case *what;
    int64_t ranks, rows, columns;
    double ours, median, floor, raw, packed, predicted; /* seconds; 0: not there */
    double even;                                        /* of the even case, for the prime one */
    int32_t family;
    bool uneven;
} result;

typedef struct overlap {
    double move, product, both; /* seconds */
    int64_t ranks;
} overlap;

typedef struct bench {
    const char *engine, *only, *topology;
    int64_t rank_count, extent, seconds;
    bool json;
    /* filled by rank 0 */
    result results[RESULTS_MAX];
    overlap overlaps[4];
    size_t result_count, overlap_count;
    int64_t ranks;
    char engine_used[16];
    const bench_rival *rival;
    void *shared[4096]; /* addresses of the ranks' source blocks (threads) */
} bench;

typedef struct racer { /* one rank in one case */
    bench *self;
    ts_rank *me;
    const redist_case *what;
    ts_tensor *x;
    const ts_sharding *to;
    bench_moves moves;
    char **peer;  /* source blocks that can be read */
    float *apart; /* of the host where the block is not, else NULL */
    int64_t floor_bytes;
} racer;

/* ---- contenders ---------------------------------------------------------------------------- */

static ts_status move_once(racer *r)
{
    ts_move_options options = TS_INIT(ts_move_options);
    options.blocking = 1;
    ts_scope scope = ts_scope_open(r->me, "move");
    ts_status status = ts_redistribute_with(r->x, r->to, &options) ? TS_OK : ts_rank_status(r->me);
    ts_scope_close(scope);
    return status;
}

/* Bytes in equal parts from all ranks' blocks, as far as they reach. */
static void copy_floor(const racer *r)
{
    const bench_moves *m = &r->moves;
    int64_t left = r->floor_bytes, room = m->out_count * 4, in = m->in_count * 4;
    for (int64_t p = 0; left > 0; p = (p + 1) % m->count) {
        int64_t from = (m->index + 1 + p) % m->count, bytes = r->floor_bytes / m->count + 1;
        if (bytes > left) bytes = left;
        for (int64_t done = 0; done < bytes;) {
            int64_t part = bytes - done, at = (r->floor_bytes - left + done) % room;
            if (part > in) part = in;
            if (part > room - at) part = room - at;
            memcpy((char *)m->out + at, r->peer[from], (size_t)part);
            done += part;
        }
        left -= bytes;
    }
}

static const char *raw_name(const racer *r, int which)
{
    if (r->what->reduces == 2) return "MPI_Allreduce";
    if (r->what->reduces == 1) return "MPI_Reduce_scatter";
    return which == WHO_RAW ? "MPI_Alltoallw" : "MPI_Alltoallv";
}

static ts_status run_racer(void *context, int which)
{
    racer *r = context;
    switch ((who)which) {
    case WHO_OURS:
        return move_once(r);
    case WHO_FLOOR:
        copy_floor(r);
        return TS_OK;
    case WHO_RAW:
    case WHO_PACKED:
        if (r->self->rival->move(raw_name(r, which), &r->moves) == 0) return TS_OK;
        return ts_rank_fail(r->me, TS_ERR_PEER, "the raw call %s failed", raw_name(r, which));
    }
    return TS_OK;
}

/* ---- one case ------------------------------------------------------------------------------- */

static ts_status share_blocks(racer *r, ts_group *world)
{
    bool threads = strcmp(ts_world_engine(ts_rank_world(r->me)), "threads") == 0;
    r->peer = calloc((size_t)r->moves.count, sizeof *r->peer);
    if (!r->peer) return ts_rank_fail(r->me, TS_ERR_MEMORY, "no memory for a list");
    for (int64_t p = 0; p < r->moves.count; p++)
        r->peer[p] = (char *)r->moves.in;
    if (!threads) return TS_OK;
    r->self->shared[r->moves.index] = r->moves.in;
    ts_status status = ts_group_barrier(world, NULL);
    for (int64_t p = 0; status == TS_OK && p < r->moves.count; p++)
        r->peer[p] = r->self->shared[p];
    return status;
}

static ts_status racer_open(racer *r, ts_mesh *mesh, ts_shape shape)
{
    r->x = ts_empty(mesh, TS_DTYPE_F32, shape, r->what->from);
    r->to = ts_sharding_get(mesh, r->what->to);
    ts_array view = { .struct_size = sizeof view };
    if (!r->x || !r->to || ts_tensor_view(r->x, &view) != TS_OK) return ts_rank_status(r->me);
    const ts_layout *from = ts_tensor_layout(r->x), *to = ts_layout_get(r->to, shape);
    bench_moves *m = &r->moves;
    if (!to || !bench_moves_make(mesh, from, to, ts_rank_index(r->me), m))
        return ts_rank_fail(r->me, TS_ERR_MEMORY, "no memory for lists of boxes");
    bool packs = r->self->rival && !r->what->reduces;
    size_t in = (size_t)m->in_count * 4, out = (size_t)m->out_count * 4;
    /* What is copied beside a device's block is one of the host, as large. */
    if (view.device != 0) r->apart = aligned_alloc(4096, (in + 4096) / 4096 * 4096);
    m->in = view.device != 0 ? r->apart : (float *)view.data;
    m->out = aligned_alloc(4096, (out + 4096) / 4096 * 4096);
    if (packs) m->packed_in = malloc((size_t)m->send_count * 4 + 4);
    if (packs) m->packed_out = malloc((size_t)m->recv_count * 4 + 4);
    if (!m->in || !m->out || (packs && (!m->packed_in || !m->packed_out)))
        return ts_rank_fail(r->me, TS_ERR_MEMORY, "no memory for blocks of %zu bytes", out);
    memset(m->in, 0, in);
    memset(m->out, 0, out);
    if (packs) memset(m->packed_in, 0, (size_t)m->send_count * 4);
    if (packs) memset(m->packed_out, 0, (size_t)m->recv_count * 4);
    int64_t whole = shape.extent[0] * shape.extent[1] * 4, n = m->count;
    m->folded = r->what->reduces ? shape.extent[0] * shape.extent[1] : 0;
    r->floor_bytes = r->what->reduces ? r->what->reduces * whole / n * (n - 1) : m->out_count * 4;
    if (r->self->rival && r->self->rival->move_open(m) != 0)
        return ts_rank_fail(r->me, TS_ERR_PEER, "the raw calls cannot be prepared");
    return share_blocks(r, ts_group_world(r->me));
}

static void racer_close(racer *r)
{
    if (r->self->rival) r->self->rival->move_close(&r->moves);
    bench_moves_release(&r->moves);
    free(r->apart);
    free(r->peer);
}

/* The family that moves it, by the world's topology, and its time by the measured one. */
static ts_status plan_of(racer *r, const ts_topology *measured, result *out)
{
    ts_plan *plan = NULL;
    ts_plan_summary summary = { .struct_size = sizeof summary };
    const ts_layout *from = ts_tensor_layout(r->x);
    const ts_layout *to = ts_layout_get(r->to, ts_layout_shape(from));
    ts_status status = ts_plan_cached(from, to, TS_DTYPE_F32, NULL, &plan);
    if (status != TS_OK) return status;
    ts_plan_summarise(plan, &summary);
    ts_plan_release(plan);
    out->family = summary.family;
    ts_plan_options options = TS_INIT(ts_plan_options);
    options.topology = measured;
    options.planner = summary.family == TS_PLAN_COLLECTIVES ? "collectives" : "direct";
    status = ts_plan_create(from, to, TS_DTYPE_F32, &options, &plan);
    if (status != TS_OK) return status;
    ts_plan_summarise(plan, &summary);
    ts_plan_release(plan);
    out->predicted = summary.time_us * 1e-6;
    return TS_OK;
}

static ts_status run_case(bench *self, ts_rank *me, const redist_case *what,
                          const ts_topology *measured, ts_shape shape, double seconds, result *out)
{
    ts_scope scope = ts_scope_open(me, "bench");
    racer r = { .self = self, .me = me, .what = what };
    ts_mesh *mesh = ts_mesh_create(me, what->mesh);
    ts_status status = mesh ? racer_open(&r, mesh, shape) : ts_rank_status(me);
    contest race = {
        .world = ts_group_world(me), .seconds = seconds, .context = &r, .run = run_racer
    };
    race.contenders = !self->rival ? WHO_RAW : what->reduces ? WHO_PACKED : WHO_PACKED + 1;
    contest_times times = { { 0 }, { 0 } };
    *out = (result){ .what = what,
                     .ranks = ts_rank_count(me),
                     .rows = shape.extent[0],
                     .columns = shape.extent[1] };
    if (status == TS_OK) status = plan_of(&r, measured, out);
    if (status == TS_OK) status = contest_run(&race, &times);
    if (status == TS_OK) status = ts_group_barrier(race.world, NULL); /* peers may still read */
    out->ours = times.best[WHO_OURS];
    out->median = times.median[WHO_OURS];
    out->floor = times.best[WHO_FLOOR];
    out->raw = times.best[WHO_RAW];
    out->packed = times.best[WHO_PACKED];
    racer_close(&r);
    ts_scope_close(scope);
    return status;
}

/* ---- overlap -------------------------------------------------------------------------------- */

typedef struct overlapping {
    ts_rank *me;
    ts_tensor *x;
    const ts_sharding *to;
    float *a, *b, *c;
    int64_t products; /* as many as take about as long as the move */
    double sum;
} overlapping;

/* c += a b, small enough to stay in the first caches. */
static void multiply(overlapping *o)
{
    for (int64_t p = 0; p < o->products; p++) {
        for (int i = 0; i < PRODUCT; i++) {
            for (int k = 0; k < PRODUCT; k++) {
                float f = o->a[i * PRODUCT + k];
                for (int j = 0; j < PRODUCT; j++)
                    o->c[i * PRODUCT + j] += f * o->b[k * PRODUCT + j];
            }
        }
        o->sum += (double)o->c[p % (PRODUCT * PRODUCT)];
    }
}

static ts_status run_overlap(void *context, int which) /* 0: the move, 1: the product, 2: both */
{
    overlapping *o = context;
    ts_scope scope = ts_scope_open(o->me, "overlap");
    ts_tensor *y = which == 1 ? NULL : ts_redistribute_to(o->x, o->to);
    if (which > 0) multiply(o);
    ts_status status = which == 1 ? TS_OK : ts_tensor_wait(y);
    ts_scope_close(scope);
    return status;
}

/* Products that take as long as the move, from one timing of each. */
static ts_status balance(overlapping *o, ts_group *world)
{
    double time[2] = { 0, 0 };
    ts_status status = TS_OK;
    o->products = 20;
    for (int turn = 0; turn < 2; turn++) {
        for (int which = 0; which < 2 && status == TS_OK; which++) {
            double start = cli_now();
            status = run_overlap(o, which);
            time[which] = cli_now() - start;
        }
    }
    if (status == TS_OK) status = contest_agree(world, time, 2);
    o->products = (int64_t)(20 * time[0] / (time[1] + 1e-9)) + 1;
    return status;
}

static ts_status measure_overlap(bench *self, ts_rank *me, ts_shape shape, double seconds)
{
    ts_scope scope = ts_scope_open(me, "bench");
    ts_mesh *mesh = ts_mesh_create(me, "x=*");
    ts_group *world = ts_group_world(me);
    overlapping o = { .me = me };
    float *room = calloc(3 * PRODUCT * PRODUCT, sizeof *room);
    o.x = ts_zeros(mesh, TS_DTYPE_F32, shape, "S(0)");
    o.to = ts_sharding_get(mesh, "S(1)");
    o.a = room;
    o.b = room + PRODUCT * PRODUCT;
    o.c = room + 2 * PRODUCT * PRODUCT;
    contest race = {
        .world = world, .contenders = 3, .seconds = seconds, .context = &o, .run = run_overlap
    };
    contest_times times = { { 0 }, { 0 } };
    ts_status status = room && o.x && o.to ? balance(&o, world) : TS_ERR_MEMORY;
    if (status == TS_OK) status = contest_run(&race, &times);
    if (ts_rank_index(me) == 0 && status == TS_OK)
        self->overlaps[self->overlap_count++] =
            (overlap){ times.best[0], times.best[1], times.best[2], ts_rank_count(me) };
    free(room);
    ts_scope_close(scope);
    return status;
}

/* ---- one world ------------------------------------------------------------------------------- */

static int64_t prime_below(int64_t n)
{
    for (;; n--) {
        bool prime = n > 1;
        for (int64_t d = 2; prime && d * d <= n; d++)
            prime = n % d != 0;
        if (prime || n < 3) return n;
    }
}

static ts_status work(ts_rank *me, void *arg)
{
    bench *self = arg;
    int64_t ranks = ts_rank_count(me), n = self->extent;
    const char *engine = ts_world_engine(ts_rank_world(me));
    bool first = ts_rank_index(me) == 0;
    if (first) {
        self->ranks = ranks;
        (void)snprintf(self->engine_used, sizeof self->engine_used, "%s", engine);
    }
    if (strcmp(engine, "mpi") == 0 && ts_world_local_count(ts_rank_world(me)) == 1 && !self->rival)
        self->rival = bench_rival_load();
    ts_shape even = TS_SHAPE(n, n), prime = TS_SHAPE(prime_below(n), prime_below(n - 2));
    double seconds = (double)self->seconds / (2 * CASES + 2);
    ts_topology measured;
    ts_status status = ts_topology_preset("threads", &measured);
    if (status == TS_OK && ranks > 1) status = bench_topology_measure(me, 2, &measured);
    for (size_t c = 0; c < CASES && status == TS_OK; c++) {
        if (self->only && strcmp(self->only, cases[c].name) != 0) continue;
        if (cases[c].axes == 2 && (ranks < 4 || ranks % 2 != 0)) continue;
        result a, b;
        status = run_case(self, me, &cases[c], &measured, even, seconds, &a);
        if (status == TS_OK) status = run_case(self, me, &cases[c], &measured, prime, seconds, &b);
        b.uneven = true;
        b.even = a.ours;
        if (!first || status != TS_OK || self->result_count + 2 > RESULTS_MAX) continue;
        self->results[self->result_count++] = a;
        self->results[self->result_count++] = b;
    }
    if (status == TS_OK && !self->only) status = measure_overlap(self, me, even, seconds);
    return status;
}

/* ---- output ---------------------------------------------------------------------------------- */

static double better_raw(const result *r)
{
    if (r->packed > 0 && r->packed < r->raw) return r->packed;
    return r->raw;
}

static double base_of(const result *r)
{
    return r->raw > 0 ? better_raw(r) : r->floor;
}

static const char *base_name(const result *r)
{
    if (r->raw <= 0) return "memcpy by as many threads";
    if (r->what->reduces) return r->what->reduces == 2 ? "MPI_Allreduce" : "MPI_Reduce_scatter";
    return better_raw(r) < r->raw ? "pack + MPI_Alltoallv" : "MPI_Alltoallw";
}

static void result_json(const result *r, ts_json_writer *json)
{
    char name[96];
    (void)snprintf(name, sizeof name, "%s %lldx%lld on %lld ranks", r->what->name,
                   (long long)r->rows, (long long)r->columns, (long long)r->ranks);
    ts_json_put_open(json, '{');
    ts_json_put_member_text(json, "name", name);
    ts_json_put_member_text(json, "unit", "s");
    ts_json_put_member_real(json, "value", r->ours);
    ts_json_put_key(json, "floor");
    ts_json_put_open(json, '{');
    ts_json_put_member_text(json, "name", base_name(r));
    ts_json_put_member_real(json, "value", base_of(r));
    ts_json_put_close(json, '}');
    ts_json_put_member_real(json, "ratio", r->ours / base_of(r));
    ts_json_put_member_text(json, "case", r->what->name);
    ts_json_put_member_int(json, "ranks", r->ranks);
    ts_json_put_member_real(json, "median", r->median);
    ts_json_put_member_real(json, "memcpy", r->floor);
    if (r->raw > 0) ts_json_put_member_real(json, "raw", r->raw);
    if (r->packed > 0) ts_json_put_member_real(json, "packed", r->packed);
    ts_json_put_member_text(json, "family", ts_plan_family_name((ts_plan_family)r->family));
    ts_json_put_member_real(json, "predicted", r->predicted);
    if (r->uneven) ts_json_put_member_real(json, "over_even", r->ours / r->even);
    ts_json_put_close(json, '}');
}

static void overlap_json(const overlap *o, ts_json_writer *json)
{
    char name[64];
    double longer = o->move > o->product ? o->move : o->product;
    (void)snprintf(name, sizeof name, "overlap with a product on %lld ranks", (long long)o->ranks);
    ts_json_put_open(json, '{');
    ts_json_put_member_text(json, "name", name);
    ts_json_put_member_text(json, "unit", "s");
    ts_json_put_member_real(json, "value", o->both);
    ts_json_put_key(json, "floor");
    ts_json_put_open(json, '{');
    ts_json_put_member_text(json, "name", "the longer of move and product");
    ts_json_put_member_real(json, "value", longer);
    ts_json_put_close(json, '}');
    ts_json_put_member_real(json, "ratio", o->both / longer);
    ts_json_put_member_real(json, "move", o->move);
    ts_json_put_member_real(json, "product", o->product);
    ts_json_put_close(json, '}');
}

static int print_json(const bench *self)
{
    ts_json_writer json = { 0 };
    cli_json_bench(&json);
    ts_json_put_member_text(&json, "engine", self->engine_used);
    ts_json_put_key(&json, "results");
    ts_json_put_open(&json, '[');
    for (size_t i = 0; i < self->result_count; i++)
        result_json(&self->results[i], &json);
    for (size_t i = 0; i < self->overlap_count; i++)
        overlap_json(&self->overlaps[i], &json);
    ts_json_put_close(&json, ']');
    ts_json_put_close(&json, '}');
    int code = cli_json_print(&json, stdout);
    ts_json_writer_release(&json);
    return code;
}

static void print_row(cli_table *table, const result *r)
{
    char text[32];
    cli_table_row(table);
    cli_table_cell(table, 0, "%s", r->what->name);
    cli_table_cell(table, 1, "%lldx%lld", (long long)r->rows, (long long)r->columns);
    cli_table_cell(table, 2, "%lld", (long long)r->ranks);
    cli_table_cell(table, 3, "%s", ts_plan_family_name((ts_plan_family)r->family));
    cli_table_cell(table, 4, "%s", cli_seconds(text, sizeof text, r->ours));
    cli_table_cell(table, 5, "%s", cli_seconds(text, sizeof text, r->floor));
    if (r->raw > 0) cli_table_cell(table, 6, "%s", cli_seconds(text, sizeof text, r->raw));
    if (r->packed > 0) cli_table_cell(table, 7, "%s", cli_seconds(text, sizeof text, r->packed));
    cli_table_cell(table, 8, "%.2f", r->ours / base_of(r));
    if (r->uneven) cli_table_cell(table, 9, "%.2f", r->ours / r->even);
    cli_table_cell(table, 10, "%s", cli_seconds(text, sizeof text, r->predicted));
}

static void print_text(const bench *self)
{
    static const char *const names[] = { "case",   ">shape",     ">ranks",     "family",
                                         ">time",  ">memcpy",    ">raw MPI",   ">packed",
                                         ">ratio", ">over even", ">predicted", NULL };
    cli_table table;
    cli_table_begin(&table, names);
    for (size_t i = 0; i < self->result_count; i++)
        print_row(&table, &self->results[i]);
    printf("f32, engine %s; ratio: ours over %s\n\n", self->engine_used,
           self->rival ? "the better raw MPI call" : "memcpy of the bytes by as many threads");
    cli_table_print(&table, stdout);
    cli_table_release(&table);
    for (size_t i = 0; i < self->overlap_count; i++) {
        const overlap *o = &self->overlaps[i];
        char a[32], b[32], c[32];
        printf("\n%lld ranks: move %s, product %s, both at once %s: %.2f of the longer\n",
               (long long)o->ranks, cli_seconds(a, sizeof a, o->move),
               cli_seconds(b, sizeof b, o->product), cli_seconds(c, sizeof c, o->both),
               o->both / (o->move > o->product ? o->move : o->product));
    }
}

/* ---- options --------------------------------------------------------------------------------- */

static int launch(bench *self, int64_t ranks)
{
    char error[1024];
    ts_world_options options = { .struct_size = sizeof options,
                                 .engine = self->engine,
                                 .rank_count = ranks,
                                 .topology = self->topology };
    ts_status status = ts_launch_with(&options, work, self, error, sizeof error);
    if (status == TS_ERR_ARG && self->ranks == 0)
        return cli_fail_usage("bench redistribute", "%s", error);
    return status == TS_OK ? 0 : cli_fail("bench redistribute", "%s", error);
}

static int check_case(const bench *self)
{
    const char *names[CASES];
    for (size_t i = 0; i < CASES; i++) {
        names[i] = cases[i].name;
        if (!self->only || strcmp(self->only, names[i]) == 0) return -1;
    }
    const char *near = cli_nearest(self->only, names, CASES);
    return cli_fail_usage("bench redistribute", "--case: there is no case \"%s\"%s%s%s", self->only,
                          near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

int cli_bench_redistribute(int argc, char **argv)
{
    static bench self = { .extent = 8192, .seconds = 18 };
    const cli_option options[] = {
        CLI_INT("ranks", &self.rank_count, 1, 4096, "ranks (default: 2, then 4)"),
        CLI_INT("extent", &self.extent, 8, 1 << 17, "rows and columns (default: 8192)"),
        CLI_TEXT("engine", &self.engine, "NAME", "threads or mpi (default: mpi under mpirun)"),
        CLI_TOPOLOGY(&self.topology),
        CLI_TEXT("case", &self.only, "NAME", "one case: \"S0 to S1\", ..."),
        CLI_INT("seconds", &self.seconds, 1, 3600,
                "time to spend for each number of ranks (default: 18)"),
        CLI_FLAG("json", &self.json, "one JSON object"),
        CLI_END
    };
    const cli_usage usage = { "bench redistribute", "[options]",
                              "Moves a matrix of f32 from layout to layout and compares with plain "
                              "copies of its bytes by as\n"
                              "many threads, in the same run; under mpirun with MPI_Alltoallw on "
                              "derived types and with packing\n"
                              "around MPI_Alltoallv.",
                              options, NULL };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc > 1)
        return cli_fail_usage("bench redistribute", "unexpected argument \"%s\"", argv[1]);
    code = cli_check_topology("bench redistribute", self.topology);
    if (code < 0) code = check_case(&self);
    if (code >= 0) return code;
    code = launch(&self, self.rank_count > 0 ? self.rank_count : 2);
    bool more = self.rank_count == 0 && strcmp(self.engine_used, "threads") == 0;
    if (code == 0 && more) code = launch(&self, 4);
    if (code != 0 || self.ranks == 0) return code; /* another process prints */
    if (self.json) return print_json(&self);
    print_text(&self);
    return 0;
}
