/* SPDX-License-Identifier: Apache-2.0 */
/* bench_layout.c - `tessera bench layout`: what it costs to ask who holds what, and to fill a
 * tensor with random numbers by global index.
 *
 * Everything runs on one attached rank, as in a training step. Floors: of a lookup, one probe of a
 * table that knows where to look; of a coordinate's answer, the chunk rule in plain arithmetic; of
 * random numbers, a Philox loop that fills memory. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_lines.h"

enum { KEYS = 64, BATCHES = 10 };

typedef struct bench {
    bench_lines lines;
    int64_t lookups, elements;
    double sink; /* what was computed, so that it is */
} bench;

/* ---- lookups --------------------------------------------------------------------------------- */
typedef struct probe { /* the floor: an entry that is already known to be the right one */
    const ts_sharding *sharding;
    ts_shape shape;
    const ts_layout *layout;
} probe;

static double time_lookups(const probe *key, int64_t count, uintptr_t *sink)
{
    double start = cli_now();
    for (int64_t i = 0; i < count; i++) {
        const probe *k = &key[i % KEYS];
        *sink += (uintptr_t)ts_layout_get(k->sharding, k->shape);
    }
    return (cli_now() - start) / (double)count;
}

static double time_probes(const probe *key, const probe *table, int64_t count, uintptr_t *sink)
{
    double start = cli_now();
    for (int64_t i = 0; i < count; i++) {
        const probe *k = &key[i % KEYS], *entry = &table[i % KEYS];
        if (memcmp(&k->shape, &entry->shape, sizeof k->shape) == 0 &&
            k->sharding == entry->sharding)
            *sink += (uintptr_t)entry->layout;
    }
    return (cli_now() - start) / (double)count;
}

static ts_status bench_lookup(bench *self, ts_rank *me, ts_mesh *mesh)
{
    static const char *const texts[] = { "S(0), R", "S(0), S(1)", "R, S(1)", "S(1), S(0)" };
    probe key[KEYS], table[KEYS];
    uintptr_t sink = 0;
    double best = 1, floor = 1;
    for (int i = 0; i < KEYS; i++) {
        key[i].sharding = ts_sharding_retain(ts_sharding_get(mesh, texts[i % 4]));
        key[i].shape = TS_SHAPE(1024 + i, 512, 8 + i / 4);
        key[i].layout = ts_layout_retain(ts_layout_get(key[i].sharding, key[i].shape));
        if (key[i].layout == NULL) return ts_rank_status(me);
    }
    memcpy(table, key, sizeof table);
    for (int i = 0; i < BATCHES; i++) {
        double ours = time_lookups(key, self->lookups / BATCHES, &sink);
        double plain = time_probes(key, table, self->lookups / BATCHES, &sink);
        if (ours < best) best = ours;
        if (plain < floor) floor = plain;
    }
    bench_line *line =
        bench_lines_add(&self->lines, "ns", best * 1e9, "lookup of an existing layout (%lld of %d)",
                        (long long)self->lookups, KEYS);
    bench_line_floor(line, floor * 1e9, "one probe");
    line->wanted = 40;
    double start = cli_now();
    for (int64_t i = 0; i < self->lookups / 10; i++)
        sink += (uintptr_t)ts_sharding_get(mesh, texts[i % 4]);
    (void)bench_lines_add(&self->lines, "ns", (cli_now() - start) * 1e10 / (double)self->lookups,
                          "lookup of a sharding by its text");
    line = bench_lines_add(&self->lines, "B", (double)ts_layout_bytes(key[0].layout),
                           "memory of a layout, 2 axes, 3 dims");
    for (int i = 0; i < KEYS; i++) {
        ts_layout_release(key[i].layout);
        ts_sharding_release(key[i].sharding);
    }
    self->sink += (double)(sink & 1);
    return TS_OK;
}

/* ---- one coordinate -------------------------------------------------------------------------- */
enum { AXES = 5, DIMS = 3, REGION_INTERVALS = 8 };
static const int64_t sizes[AXES] = { 2, 4, 2, 8, 4 };
static const int cut_dim[AXES] = { 0, 1, 0, -1, 2 }; /* -1: replicated */

static void next_coord(int64_t *coord)
{
    for (int k = AXES - 1; k >= 0 && ++coord[k] == sizes[k]; k--)
        coord[k] = 0;
}

/* The chunk rule, axis after axis: the part of a dim that a coordinate keeps. */
static int64_t plain_answer(const int64_t *coord, const int64_t *extent)
{
    int64_t begin[DIMS] = { 0 }, length[DIMS];
    memcpy(length, extent, sizeof length);
    for (int k = 0; k < AXES; k++) {
        int d = cut_dim[k];
        if (d < 0) continue;
        int64_t chunk = (length[d] + sizes[k] - 1) / sizes[k], at = coord[k] * chunk;
        int64_t left = at < length[d] ? length[d] - at : 0;
        begin[d] += at;
        length[d] = left < chunk ? left : chunk;
    }
    return begin[0] + length[0] + begin[1] + length[1] + begin[2] + length[2];
}

static double time_plain(int64_t count, const int64_t *extent, int64_t *sink)
{
    int64_t coord[AXES] = { 0 };
    double start = cli_now();
    for (int64_t i = 0; i < count; i++, next_coord(coord))
        *sink += plain_answer(coord, extent);
    return (cli_now() - start) / (double)count;
}

static double time_region(const ts_layout *layout, int64_t count, int64_t *sink)
{
    int64_t coord[TS_NDIM_MAX] = { 0 };
    ts_interval list[REGION_INTERVALS];
    double start = cli_now();
    for (int64_t i = 0; i < count; i++, next_coord(coord)) {
        ts_shape local = ts_layout_local(layout, coord);
        for (int32_t d = 0; d < DIMS; d++)
            *sink += ts_layout_intervals(layout, coord, d, list, REGION_INTERVALS);
        *sink += local.extent[0] + list[0].begin;
    }
    return (cli_now() - start) / (double)count;
}

static ts_status bench_coordinate(bench *self, ts_world *world)
{
    static const char *const texts[] = { "S(0), S(1), S(0), R, S(2)",
                                         "S(0), S(1), SS(0,2), R, S(2)" };
    ts_mesh *mesh = ts_mesh_describe(world, "2, 4, 2, 8, 4");
    const int64_t extent[DIMS] = { 1000, 513, 97 }, count = 200000;
    int64_t sink = 0;
    for (int t = 0; t < 2; t++) {
        const ts_sharding *sharding = ts_sharding_get(mesh, texts[t]);
        const ts_layout *layout =
            ts_layout_get(sharding, TS_SHAPE(extent[0], extent[1], extent[2]));
        if (layout == NULL) return TS_ERR_ARG;
        double best = 1, floor = 1;
        for (int i = 0; i < BATCHES; i++) {
            double ours = time_region(layout, count, &sink),
                   plain = time_plain(count, extent, &sink);
            if (ours < best) best = ours;
            if (plain < floor) floor = plain;
        }
        bench_line *line =
            bench_lines_add(&self->lines, "ns", best * 1e9,
                            "local shape and region of a coordinate%s", t ? ", strided" : "");
        bench_line_floor(line, floor * 1e9, "the chunk rule");
        bench_line_note(line, "5 axes, each time another coordinate");
        line->wanted = 200;
        if (t == 1)
            (void)bench_lines_add(&self->lines, "B", (double)ts_layout_bytes(layout),
                                  "memory of a layout, 5 axes, 3 dims");
    }
    ts_mesh_release(mesh);
    self->sink += (double)(sink & 1);
    return TS_OK;
}

/* ---- random numbers -------------------------------------------------------------------------- */
static void philox(uint32_t block, uint32_t key, uint32_t *out)
{
    uint32_t x[4] = { block, 0, 0, 0 }, k0 = key, k1 = 0;
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)x[0] * 0xd2511f53u, b = (uint64_t)x[2] * 0xcd9e8d57u;
        uint32_t y[4] = { (uint32_t)(b >> 32) ^ x[1] ^ k0, (uint32_t)b,
                          (uint32_t)(a >> 32) ^ x[3] ^ k1, (uint32_t)a };
        memcpy(x, y, sizeof x);
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    memcpy(out, x, sizeof x);
}

static double time_philox(float *data, int64_t count)
{
    double start = cli_now();
    for (int64_t i = 0; i + 4 <= count; i += 4) {
        uint32_t x[4];
        philox((uint32_t)(i / 4), 1234, x);
        for (int j = 0; j < 4; j++)
            data[i + j] = (float)(x[j] >> 8) * 0x1p-24f;
    }
    return (cli_now() - start) / (double)count;
}

static ts_status time_rand(ts_rank *me, ts_mesh *mesh, bool normal, int64_t count, double *out)
{
    ts_scope scope = ts_scope_open(me, "bench");
    double start = cli_now();
    ts_tensor *t = normal ? ts_randn(mesh, TS_DTYPE_F32, TS_SHAPE(count), "S(0)")
                          : ts_rand(mesh, TS_DTYPE_F32, TS_SHAPE(count), "S(0)");
    ts_status status = t != NULL ? ts_tensor_wait(t) : ts_rank_status(me);
    *out = (cli_now() - start) / (double)count;
    (void)ts_scope_close(scope);
    return status;
}

static ts_status bench_random(bench *self, ts_rank *me)
{
    ts_mesh *mesh = ts_mesh_create(me, "x=1");
    float *data = malloc((size_t)self->elements * sizeof *data);
    double best[2] = { 1, 1 }, floor = 1, once;
    ts_status status = data != NULL ? TS_OK : ts_rank_fail(me, TS_ERR_MEMORY, "no memory");
    if (data != NULL) memset(data, 0, (size_t)self->elements * sizeof *data);
    for (int i = 0; i < 5 && status == TS_OK; i++) {
        for (int normal = 0; normal < 2 && status == TS_OK; normal++) {
            status = time_rand(me, mesh, normal, self->elements, &once);
            if (once < best[normal]) best[normal] = once;
        }
        once = time_philox(data, self->elements);
        if (once < floor) floor = once;
    }
    for (int normal = 0; normal < 2 && status == TS_OK; normal++) {
        bench_line *line = bench_lines_add(&self->lines, "ns", best[normal] * 1e9,
                                           "%s, each number", normal ? "randn f32" : "rand f32");
        bench_line_floor(line, floor * 1e9, "a plain Philox loop");
        bench_line_note(line, "%.2f GB/s", 4e-9 / best[normal]);
        if (!normal) line->wanted = 2 * floor * 1e9;
    }
    if (data != NULL) self->sink += (double)data[self->elements / 2];
    free(data);
    return status;
}

static ts_status work(ts_rank *me, void *arg)
{
    bench *self = arg;
    ts_mesh *mesh = ts_mesh_describe(ts_rank_world(me), "a=4, b=8");
    ts_status status = mesh != NULL ? bench_lookup(self, me, mesh) : TS_ERR_ARG;
    ts_mesh_release(mesh);
    if (status == TS_OK) status = bench_coordinate(self, ts_rank_world(me));
    if (status == TS_OK) status = bench_random(self, me);
    return status;
}

int cli_bench_layout(int argc, char **argv)
{
    bench self = { .lookups = 10000000, .elements = 1 << 24 };
    bool json = false;
    char error[1024];
    const cli_option options[] = { CLI_INT("lookups", &self.lookups, 1000, INT64_C(10000000000),
                                           "default 10,000,000"),
                                   CLI_INT("elements", &self.elements, 1024, INT64_C(1) << 32,
                                           "random numbers to draw; default 16,777,216"),
                                   CLI_FLAG("json", &json, "one JSON object"), CLI_END };
    const cli_usage usage = { "bench layout", "[options]",
                              "Times lookups of layouts, answers for a coordinate, and random "
                              "numbers by global index.",
                              options, NULL };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc > 1) return cli_fail_usage("bench layout", "unexpected argument \"%s\"", argv[1]);
    ts_world_options world = { .struct_size = sizeof world, .engine = "threads", .rank_count = 1 };
    if (ts_launch_with(&world, work, &self, error, sizeof error) != TS_OK)
        return cli_fail("bench layout", "%s", error);
    if (self.sink < 0) return 1; /* never: keeps what was computed */
    return bench_lines_print(&self.lines, json);
}
