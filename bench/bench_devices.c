/* SPDX-License-Identifier: Apache-2.0 */
/* bench_devices.c - `tessera bench devices`: ranks as threads that share a device (or have one
 * each), moving a matrix of its memory from layout to layout, beside a copy of the same bytes by
 * one rank of that device.
 *
 * The bytes of a move are those all ranks write together: the whole target of each. A reduction
 * reads more than it writes, so its line says what it writes and the ratio is below one by nature.
 * Rounds begin behind a barrier and end when the last rank's queue is empty. A round is many calls
 * and one wait, as in a program that runs ahead of its queue; what the host does for a call,
 * without the wait, is said beside the rate. */
#include <string.h>

#include "bench.h"
#include "bench_lines.h"

enum { ROUNDS = 5 };

static const struct {
    const char *name, *from, *to;
    bool whole; /* every rank gets all of it */
} cases[] = {
    { "gather, S(0) to R", "S(0)", "R", true },
    { "exchange, S(0) to S(1)", "S(0)", "S(1)", false },
    { "reduce, P(sum) to S(0)", "P(sum)", "S(0)", false },
    { "reduce, P(sum) to R", "P(sum)", "R", true },
};
enum { CASES = sizeof cases / sizeof cases[0] };

typedef struct bench_devices {
    const char *device, *only;
    int64_t ranks, mib, calls;
    bool json;
    double copy;                        /* bytes a second */
    double seconds[CASES], host[CASES]; /* of a move; of them, what its call takes */
    bench_lines lines;
} bench_devices;

/* ---- one rank: the copy ---------------------------------------------------------------------- */

static ts_status copy_alone(ts_rank *me, void *context)
{
    bench_devices *b = context;
    ts_mesh *self = ts_mesh_self(me);
    ts_tensor *x = ts_randn(self, TS_DTYPE_F32, TS_SHAPE(b->mib << 18), NULL);
    double best = 0;
    for (int r = 0; r < ROUNDS && ts_rank_sync(me) == TS_OK; r++) {
        double start = cli_now();
        ts_scope scope = ts_scope_open(me, NULL);
        for (int64_t i = 0; i < b->calls; i++) {
            ts_tensor *y = ts_clone(x);
            ts_tensor_drop(y);
        }
        (void)ts_scope_close(scope);
        (void)ts_rank_sync(me);
        double rate = (double)(b->calls * (b->mib << 20)) / (cli_now() - start);
        if (r > 0 && rate > best) best = rate;
    }
    b->copy = best;
    return ts_rank_status(me);
}

/* ---- all ranks: the moves -------------------------------------------------------------------- */

static double move_seconds(ts_rank *me, const bench_devices *b, ts_tensor *x, const char *to,
                           double *host)
{
    double best = 0;
    for (int r = 0; r < ROUNDS && ts_rank_status(me) == TS_OK; r++) {
        (void)ts_rank_sync(me);
        (void)ts_group_barrier(ts_group_world(me), NULL);
        double start = cli_now();
        ts_scope scope = ts_scope_open(me, NULL);
        for (int64_t i = 0; i < b->calls; i++)
            ts_tensor_drop(ts_redistribute(x, to)); /* in queues: the host waits at the end */
        (void)ts_scope_close(scope);
        double issued = (cli_now() - start) / (double)b->calls;
        (void)ts_rank_sync(me);
        (void)ts_group_barrier(ts_group_world(me), NULL);
        double seconds = (cli_now() - start) / (double)b->calls;
        if (r == 1 || (r > 1 && seconds < best)) best = seconds, *host = issued;
    }
    return best;
}

static ts_status move_together(ts_rank *me, void *context)
{
    bench_devices *b = context;
    ts_mesh *mesh = ts_mesh_create(me, "x=*");
    int64_t rows = 4096, columns = (b->mib << 18) / rows;
    for (int i = 0; i < CASES && ts_rank_status(me) == TS_OK; i++) {
        if (b->only && !strstr(cases[i].name, b->only)) continue;
        ts_scope scope = ts_scope_open(me, NULL);
        ts_tensor *x = ts_empty(mesh, TS_DTYPE_F32, TS_SHAPE(rows, columns), cases[i].from);
        double host = 0, seconds = move_seconds(me, b, x, cases[i].to, &host);
        if (ts_rank_index(me) == 0) b->seconds[i] = seconds, b->host[i] = host;
        (void)ts_scope_close(scope);
    }
    return ts_rank_status(me);
}

/* ---- the command ----------------------------------------------------------------------------- */

static void put_lines(bench_devices *b)
{
    double bytes = (double)(b->mib << 20);
    (void)bench_lines_add(&b->lines, "GB/s", b->copy * 1e-9, "a copy of %lld MiB, %s, one rank",
                          (long long)b->mib, b->device);
    for (int i = 0; i < CASES; i++) {
        if (b->seconds[i] <= 0) continue;
        double written = cases[i].whole ? bytes * (double)b->ranks : bytes;
        double rate = written / b->seconds[i];
        bench_line *line = bench_lines_add(&b->lines, "GB/s", rate * 1e-9, "%s, %lld ranks",
                                           cases[i].name, (long long)b->ranks);
        bench_line_floor(line, b->copy * 1e-9, "a copy of as many bytes");
        bench_line_note(line, "the host %.3g us a call of %.4g us", b->host[i] * 1e6,
                        b->seconds[i] * 1e6);
    }
}

int cli_bench_devices(int argc, char **argv)
{
    static bench_devices self;
    self = (bench_devices){ .device = "cuda", .ranks = 4, .mib = 256, .calls = 16 };
    const cli_option options[] = {
        CLI_TEXT("device", &self.device, "NAME", "cuda, queue or cpu; default cuda"),
        CLI_INT("ranks", &self.ranks, 1, 64, "threads; default 4"),
        CLI_INT("mib", &self.mib, 1, 65536, "of the matrix; default 256"),
        CLI_INT("calls", &self.calls, 1, 1000, "in a round; default 16"),
        CLI_TEXT("only", &self.only, "TEXT", "moves whose name contains it"),
        CLI_FLAG("json", &self.json, "one JSON object"),
        CLI_END
    };
    const cli_usage usage = { "bench devices", "[options]",
                              "Ranks that move memory of devices, beside a copy of the same bytes.",
                              options, NULL };
    char error[1024] = "";
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc > 1) return cli_fail_usage("bench devices", "takes no arguments");
    ts_world_options world = TS_INIT(ts_world_options);
    world.device = self.device;
    world.engine = "threads";
    world.rank_count = 1;
    ts_status status = ts_launch_with(&world, copy_alone, &self, error, sizeof error);
    world.rank_count = self.ranks;
    if (status == TS_OK) status = ts_launch_with(&world, move_together, &self, error, sizeof error);
    if (status != TS_OK) return cli_fail("bench devices", "%s", error);
    put_lines(&self);
    return bench_lines_print(&self.lines, self.json);
}
