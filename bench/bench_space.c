/* SPDX-License-Identifier: Apache-2.0 */
/* bench_space.c - `tessera bench space`: convolutions and pools of images that are cut along their
 * rows, forward and, of convolutions, back to the input.
 *
 * The floor is the operator on an image of as many rows as a rank holds, without neighbours: the
 * same arithmetic and nothing to exchange. The rival gathers the images and computes all of them on
 * every rank, which is what a cut along space is to be better than. */
#include <string.h>

#include "bench.h"
#include "bench_lines.h"
#include "contest.h"

typedef ts_tensor *(*layer_fn)(ts_tensor *x, ts_tensor *weight);

static ts_tensor *conv_3x3(ts_tensor *x, ts_tensor *weight)
{
    return ts_conv2d(x, weight, NULL,
                     TS_OPTIONS(ts_conv_options, .padding = (const int64_t[]){ 1, 1 }));
}

static ts_tensor *conv_stride_2(ts_tensor *x, ts_tensor *weight)
{
    return ts_conv2d(x, weight, NULL,
                     TS_OPTIONS(ts_conv_options, .stride = (const int64_t[]){ 2, 2 },
                                .padding = (const int64_t[]){ 1, 1 }));
}

static ts_tensor *max_pool(ts_tensor *x, ts_tensor *weight)
{
    (void)weight;
    return ts_max_pool(x, TS_OPTIONS(ts_pool_options, .window = (const int64_t[]){ 3, 3 },
                                     .stride = (const int64_t[]){ 1, 1 },
                                     .padding = (const int64_t[]){ 1, 1 }));
}

static ts_tensor *avg_pool(ts_tensor *x, ts_tensor *weight)
{
    (void)weight;
    return ts_avg_pool(x, TS_OPTIONS(ts_pool_options, .window = (const int64_t[]){ 3, 3 },
                                     .stride = (const int64_t[]){ 1, 1 },
                                     .padding = (const int64_t[]){ 1, 1 }));
}

static const struct {
    const char *name;
    layer_fn layer;
    bool back;
} cases[] = {
    { "conv2d 3x3", conv_3x3, false },
    { "conv2d 3x3 and back", conv_3x3, true },
    { "conv2d 3x3 stride 2", conv_stride_2, false },
    { "max_pool 3x3", max_pool, false },
    { "avg_pool 3x3", avg_pool, false },
};
enum { CASES = sizeof cases / sizeof cases[0] };

typedef struct bench {
    bench_lines lines;
    const char *engine;
    int64_t ranks, images, channels, extent, seconds;
} bench;

enum { CUT, ALONE, GATHERED, WAYS };
typedef struct racer {
    ts_rank *me;
    size_t which;
    ts_tensor *x[2], *weight[2]; /* on all ranks, cut along the rows; on this one alone */
} racer;

static ts_status run_once(void *context, int way)
{
    const racer *r = context;
    ts_scope scope = ts_scope_open(r->me, "bench");
    bool back = cases[r->which].back;
    ts_tensor *x = r->x[way == ALONE];
    if (back) {
        (void)ts_tape_begin(r->me); /* until the scope closes */
        x = ts_watch(x);
    }
    ts_tensor *leaf = x;
    if (way == GATHERED) x = ts_redistribute(x, "R");
    ts_tensor *y = cases[r->which].layer(x, r->weight[way == ALONE]);
    if (back) (void)ts_grad(ts_sum(y, NULL, 0, 0), &leaf, 1, &y);
    ts_status status = ts_tensor_wait(y);
    ts_scope_close(scope);
    return status;
}

static ts_status run_case(bench *self, ts_rank *me, size_t which)
{
    int64_t ranks = ts_rank_count(me), n = self->extent, c = self->channels;
    ts_scope scope = ts_scope_open(me, "bench");
    racer r = { .me = me, .which = which };
    for (int alone = 0; alone < 2; alone++) {
        ts_mesh *mesh = alone ? ts_mesh_self(me) : ts_mesh_create(me, "x=*");
        int64_t rows = alone ? bench_chunk(n, ranks, 0) : n;
        ts_shape shape = TS_SHAPE(self->images, c, rows, n);
        r.x[alone] = ts_randn(mesh, TS_DTYPE_F32, shape, alone ? "R" : "S(2)");
        r.weight[alone] = ts_randn(mesh, TS_DTYPE_F32, TS_SHAPE(c, c, 3, 3), "R");
    }
    double seconds = (double)self->seconds / CASES;
    contest race = { .world = ts_group_world(me),
                     .contenders = WAYS,
                     .seconds = seconds,
                     .context = &r,
                     .run = run_once };
    contest_times times = { { 0 }, { 0 } };
    ts_status status = ts_rank_status(me);
    if (status == TS_OK) status = contest_run(&race, &times);
    if (status == TS_OK && ts_rank_index(me) == 0) {
        bench_line *line =
            bench_lines_add(&self->lines, "us", times.best[CUT] * 1e6, "%s, rows over %lld ranks",
                            cases[which].name, (long long)ranks);
        bench_line_floor(line, times.best[ALONE] * 1e6, "as many rows alone");
        bench_line_note(line, "gathered: %.0f us, x %.2f", times.best[GATHERED] * 1e6,
                        times.best[GATHERED] / times.best[CUT]);
    }
    ts_scope_close(scope);
    return status;
}

static ts_status work(ts_rank *me, void *arg)
{
    ts_status status = TS_OK;
    for (size_t i = 0; i < CASES && status == TS_OK; i++)
        status = run_case(arg, me, i);
    return status;
}

int cli_bench_space(int argc, char **argv)
{
    static bench self = { .ranks = 2, .images = 4, .channels = 32, .extent = 64, .seconds = 15 };
    bool json = false;
    char error[1024];
    const cli_option options[] = {
        CLI_INT("ranks", &self.ranks, 1, 4096, "ranks (default: 2)"),
        CLI_INT("images", &self.images, 1, 4096, "of a batch (default: 4)"),
        CLI_INT("channels", &self.channels, 1, 4096, "of an image (default: 32)"),
        CLI_INT("extent", &self.extent, 8, 1 << 14, "rows and columns (default: 64)"),
        CLI_TEXT("engine", &self.engine, "NAME", "threads or mpi (default: mpi under mpirun)"),
        CLI_INT("seconds", &self.seconds, 1, 3600, "time to spend (default: 15)"),
        CLI_FLAG("json", &json, "one JSON object"),
        CLI_END
    };
    const cli_usage usage = { "bench space", "[options]",
                              "Convolutions and pools of images cut along their rows, against as "
                              "many rows alone, where nothing\n"
                              "is exchanged, and against gathering the images, in the same run.",
                              options, NULL };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc > 1) return cli_fail_usage("bench space", "unexpected argument \"%s\"", argv[1]);
    ts_world_options world = { .struct_size = sizeof world,
                               .engine = self.engine,
                               .rank_count = self.ranks };
    ts_status status = ts_launch_with(&world, work, &self, error, sizeof error);
    if (status != TS_OK) return cli_fail("bench space", "%s", error);
    return self.lines.count ? bench_lines_print(&self.lines, json) : 0; /* another process prints */
}
