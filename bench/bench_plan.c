/* SPDX-License-Identifier: Apache-2.0 */
/* bench_plan.c - `tessera bench plan`: what planning costs, and how good its predictions are.
 *
 * Cold plans are made for random pairs of layouts, each asked once; the seed is fixed, so every run
 * asks the same. Predictions are compared with the same redistributions run on thread ranks, under
 * a topology that is measured first in the same run (bench_predict.c). */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_lines.h"
#include "bench_predict.h"

enum { PAIRS_MAX = 400, CACHED = 1000000 };

typedef struct bench {
    bench_lines lines;
    int64_t ranks, seconds;
    uint64_t seed;
} bench;

static uint64_t draw(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t x = *state;
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* ---- cold ------------------------------------------------------------------------------------ */
/* "S(1), R, ...": R and shards alike, now and then a partial (a source may have them). */
static void random_places(uint64_t *seed, int axes, int dims, bool partial, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (int k = 0; k < axes && used < size; k++) {
        uint64_t pick = draw(seed) % (uint64_t)(dims + (partial ? 2 : 1));
        const char *comma = k > 0 ? ", " : "";
        if (pick < (uint64_t)dims)
            used += (size_t)snprintf(out + used, size - used, "%sS(%d)", comma, (int)pick);
        else
            used += (size_t)snprintf(out + used, size - used, "%s%s", comma,
                                     pick == (uint64_t)dims ? "R" : "P(sum)");
    }
}

static const ts_layout *random_layout(bench *self, ts_mesh *mesh, int dims, bool partial)
{
    char text[128];
    ts_shape shape = { .ndim = dims };
    random_places(&self->seed, ts_mesh_ndim(mesh), dims, partial, text, sizeof text);
    for (int d = 0; d < dims; d++)
        shape.extent[d] = (dims > 3 ? 64 : 256) << d % 3;
    const ts_sharding *sharding = ts_sharding_get(mesh, text);
    return sharding != NULL ? ts_layout_retain(ts_layout_get(sharding, shape)) : NULL;
}

/* One pair; seconds, or a negative number. */
static double time_pair(bench *self, ts_mesh *mesh, int dims)
{
    const ts_layout *src = random_layout(self, mesh, dims, true);
    const ts_layout *dst = random_layout(self, mesh, dims, false);
    ts_plan *plan = NULL;
    double start = cli_now(), spent = -1;
    if (src != NULL && dst != NULL && ts_plan_create(src, dst, TS_DTYPE_F32, NULL, &plan) == TS_OK)
        spent = cli_now() - start;
    ts_plan_release(plan);
    ts_layout_release(src);
    ts_layout_release(dst);
    return spent;
}

static ts_status bench_cold(bench *self, ts_world *world)
{
    static const struct {
        const char *mesh;
        int dims, pairs;
        double wanted; /* us */
    } sets[] = { { "2, 4, 8", 3, 400, 20 },
                 { "2, 4, 2, 4", 3, 300, 200 },
                 { "2, 4, 2, 4, 2", 4, 100, 5000 },
                 { "2, 2, 4, 2, 2, 4", 6, 30, 100000 } };
    for (size_t s = 0; s < sizeof sets / sizeof sets[0]; s++) {
        double times[PAIRS_MAX];
        ts_mesh *mesh = ts_mesh_describe(world, sets[s].mesh);
        size_t count = 0;
        double begin = cli_now(), most = 0;
        (void)time_pair(self, mesh, sets[s].dims); /* wakes the caches of the processor */
        for (int i = 0; i < sets[s].pairs && cli_now() - begin < (double)self->seconds / 8; i++) {
            double spent = time_pair(self, mesh, sets[s].dims);
            if (spent < 0) return TS_ERR_ARG;
            times[count++] = spent;
            if (spent > most) most = spent;
        }
        bench_line *line =
            bench_lines_add(&self->lines, "us", bench_median(times, count) * 1e6,
                            "cold plan, %d axes x %d dims", ts_mesh_ndim(mesh), sets[s].dims);
        line->wanted = sets[s].wanted;
        bench_line_note(line, "median of %zu, 90 %% below %.0f, most %.0f", count,
                        times[count * 9 / 10] * 1e6, most * 1e6);
        ts_mesh_release(mesh);
    }
    return TS_OK;
}

/* ---- cached ---------------------------------------------------------------------------------- */
static ts_status bench_cached(bench *self, ts_world *world)
{
    ts_mesh *mesh = ts_mesh_describe(world, "2, 4, 8");
    const ts_layout *src[16] = { NULL }, *dst[16] = { NULL };
    ts_status status = TS_OK;
    double best = 1;
    for (int i = 0; i < 16; i++) {
        src[i] = random_layout(self, mesh, 3, true);
        dst[i] = random_layout(self, mesh, 3, false);
    }
    for (int batch = 0; batch < 6 && status == TS_OK; batch++) { /* the first fills the cache */
        double start = cli_now();
        for (int i = 0; i < CACHED / 5 && status == TS_OK; i++) {
            ts_plan *plan = NULL;
            status = ts_plan_cached(src[i % 16], dst[i % 16], TS_DTYPE_F32, NULL, &plan);
            ts_plan_release(plan);
        }
        double each = (cli_now() - start) / (CACHED / 5.0);
        if (batch > 0 && each < best) best = each;
    }
    bench_line *line = bench_lines_add(&self->lines, "ns", best * 1e9, "cached plan");
    line->wanted = 50;
    for (int i = 0; i < 16; i++) {
        ts_layout_release(src[i]);
        ts_layout_release(dst[i]);
    }
    ts_mesh_release(mesh);
    return status;
}

/* ---- large meshes ---------------------------------------------------------------------------- */
static void count_block(const ts_plan_block *block, void *context)
{
    (void)block;
    ++*(int64_t *)context;
}

static ts_status make_large(ts_world *world, const char *mesh_text, const char *planner,
                            ts_plan **plan)
{
    ts_mesh *mesh = ts_mesh_describe(world, mesh_text);
    const ts_sharding *from = ts_sharding_get(mesh, "S(0), S(1)");
    const ts_layout *src = ts_layout_retain(ts_layout_get(from, TS_SHAPE(1000003, 100003)));
    const ts_sharding *to = ts_sharding_get(mesh, "S(1), S(0)");
    const ts_layout *dst = ts_layout_retain(ts_layout_get(to, TS_SHAPE(1000003, 100003)));
    ts_plan_options options = { .struct_size = sizeof options, .planner = planner };
    ts_status status = TS_ERR_ARG;
    if (src != NULL && dst != NULL) status = ts_plan_create(src, dst, TS_DTYPE_F32, &options, plan);
    ts_layout_release(src);
    ts_layout_release(dst);
    ts_mesh_release(mesh);
    return status;
}

static ts_status bench_large(bench *self, ts_world *world)
{
    ts_plan *plan = NULL;
    double start = cli_now(), times[101];
    int64_t blocks = 0;
    ts_status status = make_large(world, "100, 1000", "direct", &plan);
    double made = cli_now() - start;
    for (size_t i = 0; i < 101 && status == TS_OK; i++) {
        int64_t rank = (int64_t)(draw(&self->seed) % 100000);
        start = cli_now();
        status = ts_plan_receives(plan, rank, count_block, &blocks);
        times[i] = cli_now() - start;
    }
    ts_plan_release(plan);
    if (status != TS_OK) return status;
    bench_line *line = bench_lines_add(&self->lines, "us", bench_median(times, 101) * 1e6,
                                       "one rank's part, 100,000 ranks");
    line->wanted = 1000;
    bench_line_note(line, "%.1f messages each; the plan took %.1f us", (double)blocks / 101,
                    made * 1e6);
    for (int i = 0; i < 2; i++) {
        plan = NULL;
        start = cli_now();
        status = make_large(world, "1000, 1000", i ? "auto" : "direct", &plan);
        double spent = cli_now() - start;
        ts_plan_release(plan);
        if (status != TS_OK) return status;
        line = bench_lines_add(&self->lines, "us", spent * 1e6, "1,000,000 ranks costed, %s",
                               i ? "both families" : "direct");
        line->wanted = 1e6;
    }
    return TS_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */
static ts_status work(ts_rank *me, void *arg)
{
    bench *self = arg;
    ts_world *world = ts_rank_world(me);
    ts_status status = bench_cold(self, world);
    if (status == TS_OK) status = bench_cached(self, world);
    if (status == TS_OK) status = bench_large(self, world);
    if (status != TS_OK && ts_rank_status(me) == TS_OK)
        return ts_rank_fail(me, status, "a plan could not be made: %s", ts_last_error());
    return status;
}

int cli_bench_plan(int argc, char **argv)
{
    bench self = { .seconds = 40, .seed = 20240229 };
    bool json = false;
    char error[1024];
    const cli_option options[] = { CLI_INT("ranks", &self.ranks, 1, 1024,
                                           "of the predictions (default: 2, or 4 with 4 cores)"),
                                   CLI_INT("seconds", &self.seconds, 1, 3600,
                                           "time to spend (default: 40)"),
                                   CLI_FLAG("json", &json, "one JSON object"), CLI_END };
    const cli_usage usage = {
        "bench plan", "[options]",
        "Times planning, cold and cached, and compares predicted with measured "
        "times of\nredistributions on thread ranks.",
        options, NULL
    };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc > 1) return cli_fail_usage("bench plan", "unexpected argument \"%s\"", argv[1]);
    ts_world_options world = { .struct_size = sizeof world, .engine = "threads", .rank_count = 1 };
    if (ts_launch_with(&world, work, &self, error, sizeof error) != TS_OK)
        return cli_fail("bench plan", "%s", error);
    if (!bench_predict(self.ranks, (double)self.seconds / 2, &self.lines, error, sizeof error))
        return cli_fail("bench plan", "%s", error);
    return bench_lines_print(&self.lines, json);
}
