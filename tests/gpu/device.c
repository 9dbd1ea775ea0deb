/* SPDX-License-Identifier: Apache-2.0 */
/* device.c - the device table of a GPU against the host's, bit for bit: copies and casts of every
 * pair of dtypes, fills, folds, random numbers; then streams, events, graphs and large blocks.
 *
 * Bytes are random, so every kind of number is met, NaN with its payload too. What a sum makes of a
 * NaN is any NaN: the machines differ there. */
#include <math.h>

#include "gpu/gpu.h"

#include "array/random.h"
#include "device/number.h"

enum { ROOM = 1 << 16, SOURCES_MAX = 40 };

/* ---- shapes ---------------------------------------------------------------------------------- */

/* Extents and strides of a target and a source, in elements; offsets keep negative strides inside.
 */
typedef struct shape {
    const char *name;
    int32_t ndim;
    int64_t extent[TS_NDIM_MAX], to[TS_NDIM_MAX], from[TS_NDIM_MAX];
    int64_t to_at, from_at;
} shape;

static const shape shapes[] = {
    { "one", 0, { 0 }, { 0 }, { 0 }, 0, 0 },
    { "empty", 2, { 3, 0 }, { 1, 1 }, { 1, 1 }, 0, 0 },
    { "dense", 1, { 1003 }, { 1 }, { 1 }, 0, 0 },
    { "dense, off its alignment", 1, { 1003 }, { 1 }, { 1 }, 1, 3 },
    { "rows", 2, { 17, 64 }, { 80, 1 }, { 96, 1 }, 0, 0 },
    { "odd rows", 2, { 17, 61 }, { 67, 1 }, { 71, 1 }, 3, 1 },
    { "transposed", 2, { 45, 70 }, { 70, 1 }, { 1, 45 }, 0, 0 },
    { "transposed in batches", 3, { 3, 33, 40 }, { 1320, 40, 1 }, { 1320, 1, 33 }, 0, 0 },
    { "heads", 4, { 2, 5, 7, 8 }, { 280, 56, 8, 1 }, { 280, 8, 40, 1 }, 0, 0 },
    { "broadcast", 2, { 19, 23 }, { 23, 1 }, { 0, 1 }, 0, 0 },
    { "one value", 2, { 19, 23 }, { 23, 1 }, { 0, 0 }, 0, 5 },
    { "backwards", 1, { 500 }, { 1 }, { -1 }, 0, 499 },
    { "both backwards", 2, { 9, 20 }, { -20, -1 }, { -1, -9 }, 179, 179 },
    { "every third", 1, { 333 }, { 3 }, { 2 }, 0, 0 },
    { "five dims", 5, { 2, 3, 4, 5, 6 }, { 1, 2, 6, 24, 120 }, { 360, 120, 30, 6, 1 }, 0, 0 },
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static tsi_block block_of(const shape *s, char *memory, ts_dtype dtype, bool to)
{
    tsi_block block = { .dtype = dtype, .ndim = s->ndim };
    memcpy(block.extent, s->extent, sizeof block.extent);
    memcpy(block.stride, to ? s->to : s->from, sizeof block.stride);
    block.data = memory + (to ? s->to_at : s->from_at) * (int64_t)ts_dtype_size(dtype);
    return block;
}

/* ---- copies and fills ------------------------------------------------------------------------ */

static void check_copy(test *t, const tsi_device *gpu, tsi_stream *stream, const shape *s,
                       ts_dtype to, ts_dtype from, gpu_pair target, gpu_pair source)
{
    const tsi_device *cpu = tsi_device_host();
    tsi_block host_to = block_of(s, target.host, to, true);
    tsi_block host_from = block_of(s, source.host, from, false);
    tsi_block gpu_to = block_of(s, target.device, to, true);
    tsi_block gpu_from = block_of(s, source.device, from, false);
    TEST_OK(t, cpu->copy(cpu, &host_to, &host_from, NULL));
    TEST_OK(t, gpu->copy(gpu, &gpu_to, &gpu_from, stream));
    char *back = gpu_read(t, gpu, stream, target);
    size_t at = 0;
    while (at < target.bytes && back[at] == target.host[at])
        at++;
    TEST_SAY(t, at == target.bytes, "copy %s to %s, %s: byte %zu is %02x, expected %02x",
             ts_dtype_name(from), ts_dtype_name(to), s->name, at, (unsigned char)back[at],
             (unsigned char)target.host[at]);
    if (at < target.bytes)
        TEST_OK(t, gpu->copy_in(gpu, target.device, target.host, target.bytes, stream));
    free(back);
}

TS_TEST_LONG(copies, 300)
{
    tsi_stream *stream = NULL;
    const tsi_device *gpu = gpu_open(t, &stream);
    if (!gpu) return;
    gpu_pair target = gpu_pair_make(t, gpu, stream, ROOM);
    gpu_pair source = gpu_pair_make(t, gpu, stream, ROOM);
    for (int to = 1; to < TS_DTYPE_COUNT; to++)
        for (int from = 1; from < TS_DTYPE_COUNT; from++)
            for (int s = 0; s < SHAPES; s++)
                check_copy(t, gpu, stream, &shapes[s], (ts_dtype)to, (ts_dtype)from, target,
                           source);
    gpu_pair_drop(gpu, &target);
    gpu_pair_drop(gpu, &source);
    gpu->stream_destroy(gpu, stream);
}

/* Tiles: whole ones, parts of them on either side, rows that lie apart, several planes, and places
 * that are off the units of the widest kernel. */
TS_TEST(transposes)
{
    static const shape turned[] = {
        { "one tile", 2, { 128, 128 }, { 128, 1 }, { 1, 128 }, 0, 0 },
        { "less than one tile", 2, { 72, 64 }, { 64, 1 }, { 1, 72 }, 0, 0 },
        { "parts of tiles, rows apart", 2, { 72, 200 }, { 208, 1 }, { 1, 80 }, 8, 16 },
        { "bands of tiles", 2, { 1160, 136 }, { 136, 1 }, { 1, 1160 }, 0, 0 },
        { "planes", 3, { 3, 136, 80 }, { 12000, 88, 1 }, { 11000, 1, 136 }, 0, 0 },
        { "off the units", 2, { 128, 136 }, { 136, 1 }, { 1, 128 }, 2, 2 },
        { "odd", 2, { 129, 201 }, { 201, 1 }, { 1, 129 }, 1, 0 },
    };
    static const ts_dtype dtypes[] = { TS_DTYPE_U8, TS_DTYPE_BF16, TS_DTYPE_F32, TS_DTYPE_F64,
                                       TS_DTYPE_C128 };
    tsi_stream *stream = NULL;
    const tsi_device *gpu = gpu_open(t, &stream);
    if (!gpu) return;
    gpu_pair target = gpu_pair_make(t, gpu, stream, 16 * 160000);
    gpu_pair source = gpu_pair_make(t, gpu, stream, 16 * 160000);
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++)
        for (size_t s = 0; s < sizeof turned / sizeof turned[0]; s++)
            check_copy(t, gpu, stream, &turned[s], dtypes[d], dtypes[d], target, source);
    gpu_pair_drop(gpu, &target);
    gpu_pair_drop(gpu, &source);
    gpu->stream_destroy(gpu, stream);
}

/* Every shape several times, each into memory of its own, some with a cast. */
static void make_list(ts_dtype dtype, char *to, char *from, tsi_block *target, tsi_block *source,
                      int64_t count)
{
    ts_dtype other = dtype == TS_DTYPE_F32 ? TS_DTYPE_BF16 : TS_DTYPE_F32;
    for (int64_t i = 0; i < count; i++) {
        const shape *s = &shapes[i % SHAPES];
        target[i] = block_of(s, to + i * ROOM, dtype, true);
        source[i] = block_of(s, from, i % 7 == 6 ? other : dtype, false);
    }
}

TS_TEST_LONG(lists_of_copies, 120)
{
    enum { COUNT = 100 };
    tsi_stream *stream = NULL;
    const tsi_device *gpu = gpu_open(t, &stream), *cpu = tsi_device_host();
    if (!gpu) return;
    gpu_pair target = gpu_pair_make(t, gpu, stream, (size_t)COUNT * ROOM);
    gpu_pair source = gpu_pair_make(t, gpu, stream, ROOM);
    for (int dtype = 1; dtype < TS_DTYPE_COUNT; dtype++) {
        tsi_block to[COUNT], from[COUNT];
        make_list((ts_dtype)dtype, target.host, source.host, to, from, COUNT);
        for (int64_t i = 0; i < COUNT; i++)
            TEST_OK(t, cpu->copy(cpu, &to[i], &from[i], NULL));
        make_list((ts_dtype)dtype, target.device, source.device, to, from, COUNT);
        TEST_OK(t, gpu->copy_list(gpu, to, from, COUNT, stream));
        char *back = gpu_read(t, gpu, stream, target);
        size_t at = 0;
        while (at < target.bytes && back[at] == target.host[at])
            at++;
        TEST_SAY(t, at == target.bytes, "%s: piece %zu differs, %s", ts_dtype_name((ts_dtype)dtype),
                 at / ROOM, shapes[at / ROOM % SHAPES].name);
        free(back);
    }
    gpu_pair_drop(gpu, &target);
    gpu_pair_drop(gpu, &source);
    gpu->stream_destroy(gpu, stream);
}

/* Casts of numbers that random bytes seldom are: ends of ranges, halves, the last bits. */
static const double numbers[] = { 0.0,          -0.0,         0.5,
                                  -0.5,         1.5,          2.5,
                                  127.0,        128.0,        -128.5,
                                  255.0,        256.0,        32767.5,
                                  65504.0,      65519.9,      65520.0,
                                  0x1p-14,      0x1p-24,      0x1p-25,
                                  0x1.8p-25,    0x1p-126,     0x1p-149,
                                  0x1p-150,     3.0e38,       3.5e38,
                                  2147483647.0, 2147483648.0, 9.3e18,
                                  -9.3e18,      1e300,        -1e300,
                                  1.00390625,   1.01171875,   1.0039062500001 };

TS_TEST(casts_of_edges)
{
    enum { COUNT = sizeof numbers / sizeof numbers[0] };
    tsi_stream *stream = NULL;
    const tsi_device *gpu = gpu_open(t, &stream), *cpu = tsi_device_host();
    if (!gpu) return;
    gpu_pair target = gpu_pair_make(t, gpu, stream, ROOM);
    gpu_pair source = gpu_pair_make(t, gpu, stream, ROOM);
    shape row = { "edges", 1, { COUNT }, { 1 }, { 1 }, 0, 0 };
    double edges[COUNT];
    memcpy(edges, numbers, sizeof edges);
    tsi_block wide = block_of(&row, (char *)edges, TS_DTYPE_F64, false);
    for (int from = 1; from < TS_DTYPE_COUNT; from++) {
        tsi_block in = block_of(&row, source.host, (ts_dtype)from, true);
        TEST_OK(t, cpu->copy(cpu, &in, &wide, NULL));
        TEST_OK(t, gpu->copy_in(gpu, source.device, source.host, ROOM, stream));
        for (int to = 1; to < TS_DTYPE_COUNT; to++)
            check_copy(t, gpu, stream, &row, (ts_dtype)to, (ts_dtype)from, target, source);
    }
    gpu_pair_drop(gpu, &target);
    gpu_pair_drop(gpu, &source);
    gpu->stream_destroy(gpu, stream);
}

TS_TEST(fills)
{
    tsi_stream *stream = NULL;
    const tsi_device *gpu = gpu_open(t, &stream), *cpu = tsi_device_host();
    if (!gpu) return;
    gpu_pair target = gpu_pair_make(t, gpu, stream, ROOM);
    for (int dtype = 1; dtype < TS_DTYPE_COUNT; dtype++)
        for (int s = 0; s < SHAPES; s++) {
            uint64_t element[2] = { test_random(t), test_random(t) };
            tsi_block to = block_of(&shapes[s], target.host, (ts_dtype)dtype, true);
            tsi_block there = block_of(&shapes[s], target.device, (ts_dtype)dtype, true);
            TEST_OK(t, cpu->fill(cpu, &to, element, NULL));
            TEST_OK(t, gpu->fill(gpu, &there, element, stream));
            char *back = gpu_read(t, gpu, stream, target);
            TEST_SAY(t, memcmp(back, target.host, target.bytes) == 0, "fill %s, %s",
                     ts_dtype_name((ts_dtype)dtype), shapes[s].name);
            free(back);
        }
    gpu_pair_drop(gpu, &target);
    gpu->stream_destroy(gpu, stream);
}

/* ---- powers and roots of p-norms ------------------------------------------------------------- */

static double power_of(double x, int power, bool root)
{
    if (power == 1) return root ? x : fabs(x);
    return root ? sqrt(x) : x * x;
}

/* What the host makes of a block, through doubles. */
static void power_on_host(test *t, const tsi_block *block, int power, bool root)
{
    const tsi_device *cpu = tsi_device_host();
    double *wide = malloc((size_t)(tsi_block_count(block) + 1) * sizeof *wide);
    tsi_block dense = *block;
    dense.dtype = TS_DTYPE_F64;
    dense.data = wide;
    int64_t step = 1;
    for (int32_t d = block->ndim - 1; d >= 0; step *= block->extent[d--])
        dense.stride[d] = step;
    TEST_OK(t, cpu->copy(cpu, &dense, block, NULL));
    for (int64_t i = 0; i < tsi_block_count(block); i++)
        wide[i] = power_of(wide[i], power, root);
    TEST_OK(t, cpu->copy(cpu, block, &dense, NULL));
    free(wide);
}

/* Random numbers of a dtype, none of them negative where roots are taken. */
static void numbers_of(test *t, char *memory, ts_dtype dtype, bool root)
{
    const tsi_device *cpu = tsi_device_host();
    int64_t count = ROOM / (int64_t)ts_dtype_size(dtype);
    double *wide = malloc((size_t)count * sizeof *wide);
    for (int64_t i = 0; i < count; i++)
        wide[i] = (double)(test_random(t) % 200001) / 1000 - (root ? 0 : 100);
    tsi_block from = {
        .data = wide, .dtype = TS_DTYPE_F64, .ndim = 1, .extent = { count }, .stride = { 1 }
    };
    tsi_block to = from;
    to.data = memory;
    to.dtype = (int32_t)dtype;
    TEST_OK(t, cpu->copy(cpu, &to, &from, NULL));
    free(wide);
}

static void check_power(test *t, const tsi_device *gpu, tsi_stream *stream, gpu_pair pair,
                        const shape *s, ts_dtype dtype, int power, bool root)
{
    bool done = false;
    numbers_of(t, pair.host, dtype, root);
    TEST_OK(t, gpu->copy_in(gpu, pair.device, pair.host, ROOM, stream));
    tsi_block here = block_of(s, pair.host, dtype, true);
    tsi_block there = block_of(s, pair.device, dtype, true);
    power_on_host(t, &here, power, root);
    TEST_OK(t, gpu->power(gpu, &there, power, root, stream, &done));
    char *back = gpu_read(t, gpu, stream, pair);
    TEST_SAY(t, done && memcmp(back, pair.host, ROOM) == 0, "%s of %d, %s, %s",
             root ? "root" : "power", power, ts_dtype_name(dtype), s->name);
    free(back);
}

TS_TEST(powers_and_roots)
{
    static const ts_dtype reals[] = { TS_DTYPE_F32, TS_DTYPE_F64, TS_DTYPE_BF16, TS_DTYPE_F16 };
    tsi_stream *stream = NULL;
    bool done = true;
    const tsi_device *gpu = gpu_open(t, &stream);
    if (!gpu) return;
    gpu_pair pair = gpu_pair_make(t, gpu, stream, ROOM);
    for (int i = 0; i < SHAPES * 4 * 4; i++)
        check_power(t, gpu, stream, pair, &shapes[i / 16], reals[i / 4 % 4], 1 + i / 2 % 2, i % 2);
    tsi_block other = block_of(&shapes[2], pair.device, TS_DTYPE_F32, true);
    TEST_OK(t, gpu->power(gpu, &other, 3, false, stream, &done));
    TEST_CHECK(t, !done);
    gpu_pair_drop(gpu, &pair);
    gpu->stream_destroy(gpu, stream);
}

/* ---- folds ----------------------------------------------------------------------------------- */

static bool is_nan(ts_dtype dtype, const void *p)
{
    double d;
    float f;
    uint16_t h;
    memcpy(&d, p, ts_dtype_size(dtype) >= 8 ? 8 : 2);
    memcpy(&f, p, ts_dtype_size(dtype) >= 4 ? 4 : 2);
    memcpy(&h, p, 2);
    if (dtype == TS_DTYPE_F64 || dtype == TS_DTYPE_C128) return d != d;
    if (dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_C64) return f != f;
    if (dtype == TS_DTYPE_BF16) return (h & 0x7FFF) > 0x7F80;
    return dtype == TS_DTYPE_F16 && (h & 0x7FFF) > 0x7C00;
}

/* Equal bits, or both NaN; complex numbers by parts. */
static int64_t differs_at(ts_dtype dtype, const char *got, const char *want, int64_t bytes)
{
    bool complex = dtype == TS_DTYPE_C64 || dtype == TS_DTYPE_C128;
    int64_t part = (int64_t)ts_dtype_size(dtype) / (complex ? 2 : 1);
    for (int64_t i = 0; i + part <= bytes; i += part)
        if (memcmp(got + i, want + i, (size_t)part) != 0 &&
            !(is_nan(dtype, got + i) && is_nan(dtype, want + i)))
            return i / part;
    return -1;
}

/* Numbers of a size that sums and products stay finite, with a NaN and an infinity now and then. */
static void write_numbers(test *t, ts_dtype dtype, char *to, int64_t count)
{
    const tsi_device *cpu = tsi_device_host();
    shape row = { "numbers", 1, { count }, { 1 }, { 1 }, 0, 0 };
    double *wide = malloc((size_t)count * sizeof *wide);
    for (int64_t i = 0; i < count; i++) {
        wide[i] = (double)(int64_t)test_random(t) * 0x1p-62;
        int64_t special = test_random_below(t, 200);
        if (special == 0) wide[i] = 0.0 / (wide[i] - wide[i]);
        if (special == 1) wide[i] = wide[i] / 0.0;
        if (special == 2) wide[i] = special > 3 ? 1.0 : -0.0;
    }
    tsi_block from = block_of(&row, (char *)wide, TS_DTYPE_F64, false);
    tsi_block out = block_of(&row, to, dtype, true);
    if (dtype == TS_DTYPE_F64)
        memcpy(to, wide, (size_t)count * sizeof *wide);
    else
        TEST_OK(t, cpu->copy(cpu, &out, &from, NULL));
    free(wide);
}

static bool is_float(ts_dtype dtype)
{
    return dtype == TS_DTYPE_F64 || dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_BF16 ||
           dtype == TS_DTYPE_F16 || dtype == TS_DTYPE_C64 || dtype == TS_DTYPE_C128;
}

static void check_fold(test *t, const tsi_device *gpu, tsi_stream *stream, const shape *s,
                       ts_dtype dtype, ts_reduce reduce, int64_t count, bool in_place,
                       gpu_pair target, const gpu_pair *source)
{
    const tsi_device *cpu = tsi_device_host();
    tsi_block host[SOURCES_MAX], device[SOURCES_MAX];
    const tsi_block *host_from[SOURCES_MAX], *gpu_from[SOURCES_MAX];
    for (int64_t i = 0; i < count; i++) {
        host[i] = block_of(s, source[i].host, dtype, false);
        device[i] = block_of(s, source[i].device, dtype, false);
        host_from[i] = &host[i];
        gpu_from[i] = &device[i];
    }
    tsi_block to = block_of(s, target.host, dtype, true);
    tsi_block there = block_of(s, target.device, dtype, true);
    if (in_place) host[count - 1] = to, device[count - 1] = there;
    int64_t divisor = count > 2 ? 7 : 0;
    TEST_OK(t, cpu->fold(cpu, &to, host_from, count, reduce, divisor, NULL));
    TEST_OK(t, gpu->fold(gpu, &there, gpu_from, count, reduce, divisor, stream));
    char *back = gpu_read(t, gpu, stream, target);
    int64_t at = differs_at(dtype, back, target.host, (int64_t)target.bytes);
    TEST_SAY(t, at < 0, "%s of %lld %s%s, %s: part %lld differs", ts_reduce_name(reduce),
             (long long)count, ts_dtype_name(dtype), in_place ? " in place" : "", s->name,
             (long long)at);
    memcpy(target.host, back, target.bytes); /* one NaN on both sides */
    free(back);
}

static void fold_dtype(test *t, const tsi_device *gpu, tsi_stream *stream, ts_dtype dtype)
{
    static const int64_t counts[] = { 1, 2, 3, 4, 5, 9, SOURCES_MAX };
    gpu_pair target = gpu_pair_make(t, gpu, stream, ROOM), source[SOURCES_MAX];
    for (int i = 0; i < SOURCES_MAX; i++) {
        source[i] = gpu_pair_make(t, gpu, stream, ROOM);
        if (is_float(dtype))
            write_numbers(t, dtype, source[i].host, ROOM / (int64_t)ts_dtype_size(dtype));
        TEST_OK(t, gpu->copy_in(gpu, source[i].device, source[i].host, ROOM, stream));
    }
    for (int reduce = 1; reduce < TS_REDUCE_COUNT; reduce++) {
        if (!tsi_reduce_allowed((ts_reduce)reduce, dtype, NULL)) continue;
        for (int s = 0; s < SHAPES; s++)
            for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
                for (int in_place = 0; in_place < 2; in_place++)
                    if (test_tries(t))
                        check_fold(t, gpu, stream, &shapes[s], dtype, (ts_reduce)reduce, counts[c],
                                   in_place, target, source);
    }
    gpu_pair_drop(gpu, &target);
    for (int i = 0; i < SOURCES_MAX; i++)
        gpu_pair_drop(gpu, &source[i]);
}

TS_TEST_LONG(folds, 300)
{
    tsi_stream *stream = NULL;
    const tsi_device *gpu = gpu_open(t, &stream);
    if (!gpu) return;
    for (int dtype = 1; dtype < TS_DTYPE_COUNT; dtype++)
        fold_dtype(t, gpu, stream, (ts_dtype)dtype);
    tsi_block to = { .dtype = TS_DTYPE_F32, .ndim = 0 };
    const tsi_block *from = &to;
    TEST_STATUS(t, gpu->fold(gpu, &to, &from, 1, TS_REDUCE_BAND, 0, stream), TS_ERR_DTYPE);
    TEST_STATUS(t, gpu->fold(gpu, &to, &from, 0, TS_REDUCE_SUM, 0, stream), TS_ERR_ARG);
    gpu->stream_destroy(gpu, stream);
}

/* ---- random numbers -------------------------------------------------------------------------- */

static void check_random(test *t, const tsi_device *gpu, tsi_stream *stream, const tsi_random *r,
                         ts_dtype dtype, gpu_pair target, const tsi_random_run *run, int64_t runs)
{
    int64_t room = ROOM / (int64_t)ts_dtype_size(dtype);
    tsi_block to = { .data = target.host, .dtype = dtype, .ndim = 1 };
    to.extent[0] = room;
    to.stride[0] = 1;
    tsi_block there = to;
    there.data = target.device;
    tsi_random_recipe recipe;
    TEST_OK(t, tsi_random_fill_runs(r, &to, run, runs));
    TEST_OK(t, tsi_random_recipe_make(r, dtype, &recipe));
    TEST_OK(t, gpu->random(gpu, &recipe, &there, run, runs, stream));
    char *back = gpu_read(t, gpu, stream, target);
    size_t at = 0;
    while (at < target.bytes && back[at] == target.host[at])
        at++;
    TEST_SAY(t, at == target.bytes, "random kind %d of %s in %lld runs: byte %zu differs",
             (int)r->kind, ts_dtype_name(dtype), (long long)runs, at);
    if (at < target.bytes)
        TEST_OK(t, gpu->copy_in(gpu, target.device, target.host, target.bytes, stream));
    free(back);
}

TS_TEST(random_bits)
{
    tsi_stream *stream = NULL;
    const tsi_device *gpu = gpu_open(t, &stream);
    if (!gpu) return;
    gpu_pair target = gpu_pair_make(t, gpu, stream, ROOM);
    static const tsi_random_run whole[] = { { 1234567890123, 5, 3001 } };
    static const tsi_random_run rows[] = { { 70, 0, 30 }, { 170, 30, 30 }, { 270, 60, 30 } };
    static const tsi_random_run uneven[] = {
        { 3, 1, 7 }, { 30, 20, 9 }, { 31, 40, 1 }, { 9, 50, 0 }
    };
    for (int kind = 0; kind <= TSI_RANDOM_BERNOULLI; kind++)
        for (int dtype = 1; dtype < TS_DTYPE_COUNT; dtype++) {
            tsi_random r = { .kind = (tsi_random_kind)kind,
                             .seed = test_random(t),
                             .stream = test_random(t),
                             .offset = test_random(t) >> 20,
                             .low = 0,
                             .high = dtype == TS_DTYPE_BOOL ? 2 : 100 };
            if (tsi_random_words(r.kind, (ts_dtype)dtype) == 0) continue;
            for (int range = 0; range < 2; range++) {
                r.a = range || kind == TSI_RANDOM_BERNOULLI ? 0.25 : 0;
                r.b = range ? 7.5 : 1;
                check_random(t, gpu, stream, &r, (ts_dtype)dtype, target, whole, 1);
                check_random(t, gpu, stream, &r, (ts_dtype)dtype, target, rows, 3);
                check_random(t, gpu, stream, &r, (ts_dtype)dtype, target, uneven, 4);
            }
        }
    gpu_pair_drop(gpu, &target);
    gpu->stream_destroy(gpu, stream);
}

/* ---- streams, events, graphs ----------------------------------------------------------------- */

TS_TEST(bytes_from_and_to_the_host)
{
    enum { BYTES = (11 << 20) + 13 };
    tsi_stream *stream = NULL;
    const tsi_device *gpu = gpu_open(t, &stream);
    if (!gpu) return;
    gpu_pair pair = gpu_pair_make(t, gpu, stream, BYTES);
    memcpy(pair.host + BYTES, "guard", 6);
    char *kept = malloc(BYTES);
    memcpy(kept, pair.host, BYTES);
    memset(pair.host, 0, BYTES); /* pageable memory may be reused at once */
    char *back = gpu_read(t, gpu, stream, pair);
    TEST_CHECK(t, memcmp(back, kept, BYTES) == 0);
    void *pinned = NULL;
    TEST_OK(t, gpu->host_alloc(gpu, BYTES, &pinned));
    memset(pinned, 7, BYTES);
    TEST_OK(t, gpu->copy_in(gpu, pair.device, pinned, BYTES, stream));
    TEST_OK(t, gpu->stream_sync(gpu, stream));
    memset(pinned, 0, BYTES);
    TEST_OK(t, gpu->copy_out(gpu, pinned, pair.device, BYTES, stream));
    TEST_OK(t, gpu->stream_sync(gpu, stream));
    TEST_EQ(t, ((char *)pinned)[0], 7);
    TEST_EQ(t, ((char *)pinned)[BYTES - 1], 7);
    /* Without a stream a call is done when it returns. */
    TEST_OK(t, gpu->copy_in(gpu, pair.device, kept, BYTES, NULL));
    TEST_OK(t, gpu->copy_out(gpu, back, pair.device, BYTES, NULL));
    TEST_CHECK(t, memcmp(back, kept, BYTES) == 0);
    gpu->host_free(gpu, pinned, BYTES);
    free(kept);
    free(back);
    gpu_pair_drop(gpu, &pair);
    gpu->stream_destroy(gpu, stream);
}

TS_TEST(streams_and_events)
{
    const int64_t count = gpu_is_simulated() ? 1 << 16 : 1 << 24;
    const size_t bytes = (size_t)count * 4;
    tsi_stream *first = NULL, *second = NULL;
    const tsi_device *gpu = gpu_open(t, &first);
    if (!gpu) return;
    TEST_OK(t, gpu->stream_create(gpu, &second));
    void *a = NULL, *b = NULL;
    TEST_OK(t, gpu->buffer_alloc(gpu, bytes, &a));
    TEST_OK(t, gpu->buffer_alloc(gpu, bytes, &b));
    tsi_block x = {
        .data = a, .dtype = TS_DTYPE_F32, .ndim = 1, .extent = { count }, .stride = { 1 }
    };
    tsi_block y = x;
    y.data = b;
    tsi_device_event *begin = NULL, *filled = NULL, *end = NULL;
    TEST_OK(t, gpu->event_mark(gpu, first, &begin));
    float value = 0;
    for (int i = 0; i < 20; i++) {
        value = (float)i;
        TEST_OK(t, gpu->fill(gpu, &x, &value, first));
    }
    TEST_OK(t, gpu->event_record(gpu, first, &filled));
    TEST_OK(t, gpu->event_wait(gpu, second, filled));
    TEST_OK(t, gpu->copy(gpu, &y, &x, second));
    TEST_OK(t, gpu->event_mark(gpu, second, &end));
    float last[2] = { 0, 0 };
    TEST_OK(t, gpu->copy_out(gpu, last, (char *)b + bytes - 8, 8, second));
    TEST_OK(t, gpu->stream_sync(gpu, second));
    TEST_CHECK(t, last[0] == value && last[1] == value);
    TEST_CHECK(t, gpu->event_done(gpu, end) && gpu->event_done(gpu, filled));
    double us = 0;
    TEST_OK(t, gpu->event_time(gpu, begin, end, &us));
    TEST_SAY(t, us > 20 && (us < 1e6 || gpu_is_simulated()), "20 fills and a copy took %g us", us);
    gpu->event_destroy(gpu, begin);
    gpu->event_destroy(gpu, filled);
    gpu->event_destroy(gpu, end);
    gpu->buffer_free(gpu, a, bytes);
    gpu->buffer_free(gpu, b, bytes);
    gpu->stream_destroy(gpu, first);
    gpu->stream_destroy(gpu, second);
}

/* Two streams that wait for each other by turns, with few events in all. */
TS_TEST(events_are_recorded_again)
{
    enum { TURNS = 200 };
    const int64_t count = gpu_is_simulated() ? 1 << 10 : 1 << 20;
    const size_t bytes = (size_t)count * 4;
    tsi_stream *stream[2] = { NULL, NULL };
    const tsi_device *gpu = gpu_open(t, &stream[0]);
    if (!gpu) return;
    TEST_OK(t, gpu->stream_create(gpu, &stream[1]));
    void *memory = NULL;
    TEST_OK(t, gpu->buffer_alloc(gpu, bytes, &memory));
    tsi_block x = {
        .data = memory, .dtype = TS_DTYPE_F32, .ndim = 1, .extent = { count }, .stride = { 1 }
    };
    float got = 0;
    for (int i = 0; i < TURNS; i++) {
        float value = (float)i;
        tsi_device_event *event = NULL;
        TEST_OK(t, gpu->fill(gpu, &x, &value, stream[i % 2]));
        TEST_OK(t, gpu->event_record(gpu, stream[i % 2], &event));
        tsi_device_event *shared = gpu->event_share(gpu, event);
        gpu->event_destroy(gpu, event);
        TEST_OK(t, gpu->event_wait(gpu, stream[1 - i % 2], shared));
        gpu->event_destroy(gpu, shared);
    }
    TEST_OK(t, gpu->copy_out(gpu, &got, (char *)memory + bytes - 4, 4, stream[0]));
    TEST_OK(t, gpu->stream_sync(gpu, stream[0]));
    TEST_SAY(t, got == TURNS - 1, "the last fill wrote %d, there is %g", TURNS - 1, (double)got);
    gpu->buffer_free(gpu, memory, bytes);
    gpu->stream_destroy(gpu, stream[0]);
    gpu->stream_destroy(gpu, stream[1]);
}

TS_TEST(graphs)
{
    tsi_stream *stream = NULL;
    const tsi_device *gpu = gpu_open(t, &stream);
    if (!gpu) return;
    void *memory = NULL;
    TEST_OK(t, gpu->buffer_alloc(gpu, 4096, &memory));
    tsi_block x = {
        .data = memory, .dtype = TS_DTYPE_F32, .ndim = 1, .extent = { 1000 }, .stride = { 1 }
    };
    float one = 1, got = 0;
    const tsi_block *twice[2] = { &x, &x };
    TEST_OK(t, gpu->fill(gpu, &x, &one, stream));
    TEST_OK(t, gpu->stream_sync(gpu, stream));
    tsi_device_graph *graph = NULL;
    TEST_OK(t, gpu->capture_begin(gpu, stream));
    TEST_OK(t, gpu->fold(gpu, &x, twice, 2, TS_REDUCE_SUM, 0, stream));
    TEST_OK(t, gpu->capture_end(gpu, stream, &graph));
    for (int i = 0; i < 10; i++)
        TEST_OK(t, gpu->graph_launch(gpu, graph, stream));
    TEST_OK(t, gpu->copy_out(gpu, &got, (char *)memory + 999 * 4, 4, stream));
    TEST_OK(t, gpu->stream_sync(gpu, stream));
    TEST_SAY(t, got == 1024, "ten doublings gave %g", (double)got);
    gpu->graph_destroy(gpu, graph);
    gpu->buffer_free(gpu, memory, 4096);
    gpu->stream_destroy(gpu, stream);
}

/* Ranks that share a GPU record and end steps when they come to it: a graph goes while another
 * stream is captured, and what it reads and writes is not gone before it has run. */
TS_TEST(a_graph_goes_while_another_stream_captures)
{
    tsi_stream *stream = NULL, *other = NULL;
    const tsi_device *gpu = gpu_open(t, &stream);
    if (!gpu) return;
    TEST_OK(t, gpu->stream_create(gpu, &other));
    void *memory = NULL;
    TEST_OK(t, gpu->buffer_alloc(gpu, 4096, &memory));
    tsi_block x = {
        .data = memory, .dtype = TS_DTYPE_F32, .ndim = 1, .extent = { 1000 }, .stride = { 1 }
    };
    float number[2] = { 1, 2 }, got[2] = { 0 };
    tsi_device_graph *graph[2] = { NULL };
    for (int i = 0; i < 2; i++) {
        tsi_stream *by = i == 0 ? stream : other;
        TEST_OK(t, gpu->capture_begin(gpu, by));
        TEST_OK(t, gpu->fill(gpu, &x, &number[i], by));
        if (i == 1) gpu->graph_destroy(gpu, graph[0]);
        TEST_OK(t, gpu->capture_end(gpu, by, &graph[i]));
        TEST_OK(t, gpu->stream_sync(gpu, stream)); /* the number of the first is here */
        TEST_OK(t, gpu->graph_launch(gpu, graph[i], by));
        TEST_OK(t, gpu->copy_out(gpu, &got[i], memory, 4, by));
    }
    TEST_OK(t, gpu->stream_sync(gpu, other));
    TEST_SAY(t, got[0] == 1 && got[1] == 2, "%g, %g", (double)got[0], (double)got[1]);
    gpu->graph_destroy(gpu, graph[1]);
    gpu->buffer_free(gpu, memory, 4096);
    gpu->stream_destroy(gpu, other);
    gpu->stream_destroy(gpu, stream);
}

/* ---- kernels that begin before the one ahead has ended --------------------------------------- */

enum { TURNS = 200, SEEN = 8 };

/* Fills x again and again; between two fills a small kernel keeps what it sees at places spread
 * over x. One that did not wait would see the fill before, or the one behind it. */
static void in_turns(test *t, const tsi_device *gpu, tsi_stream *stream, const tsi_block *x,
                     float *seen)
{
    int64_t apart = x->extent[0] / SEEN;
    tsi_block from = *x, to = *x;
    from.data = (float *)x->data + apart - 1;
    from.extent[0] = to.extent[0] = SEEN;
    from.stride[0] = apart;
    for (int i = 0; i < TURNS; i++) {
        float value = (float)i;
        to.data = seen + (size_t)i * SEEN;
        TEST_OK(t, gpu->fill(gpu, x, &value, stream));
        TEST_OK(t, gpu->copy(gpu, &to, &from, stream));
    }
}

static void check_turns(test *t, const tsi_device *gpu, tsi_stream *stream, const void *seen,
                        const char *how, int64_t count)
{
    float got[TURNS * SEEN];
    TEST_OK(t, gpu->copy_out(gpu, got, seen, sizeof got, stream));
    TEST_OK(t, gpu->stream_sync(gpu, stream));
    int at = 0;
    while (at < TURNS * SEEN && got[at] == (float)(at / SEEN))
        at++;
    TEST_SAY(t, at == TURNS * SEEN, "%s, %lld elements: turn %d saw %g", how, (long long)count,
             at / SEEN, (double)got[at % (TURNS * SEEN)]);
}

static void check_order(test *t, const tsi_device *gpu, tsi_stream *stream, int64_t count)
{
    float none = -1;
    void *memory = NULL, *seen = NULL;
    TEST_OK(t, gpu->buffer_alloc(gpu, (size_t)count * 4, &memory));
    TEST_OK(t, gpu->buffer_alloc(gpu, TURNS * SEEN * 4, &seen));
    tsi_block x = {
        .data = memory, .dtype = TS_DTYPE_F32, .ndim = 1, .extent = { count }, .stride = { 1 }
    };
    tsi_block all = x;
    all.data = seen;
    all.extent[0] = TURNS * SEEN;
    in_turns(t, gpu, stream, &x, seen);
    check_turns(t, gpu, stream, seen, "as it comes", count);
    tsi_device_graph *graph = NULL;
    TEST_OK(t, gpu->capture_begin(gpu, stream));
    in_turns(t, gpu, stream, &x, seen);
    TEST_OK(t, gpu->capture_end(gpu, stream, &graph));
    for (int i = 0; i < 3; i++) {
        TEST_OK(t, gpu->fill(gpu, &all, &none, stream));
        TEST_OK(t, gpu->graph_launch(gpu, graph, stream));
        check_turns(t, gpu, stream, seen, "a graph", count);
    }
    gpu->graph_destroy(gpu, graph);
    gpu->buffer_free(gpu, memory, (size_t)count * 4);
    gpu->buffer_free(gpu, seen, TURNS * SEEN * 4);
}

TS_TEST(kernels_keep_their_order)
{
    static const int64_t counts[] = { 64, 1 << 12, 1 << 17, 1 << 20, 1 << 24 };
    tsi_stream *stream = NULL;
    const tsi_device *gpu = gpu_open(t, &stream);
    if (!gpu) return;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        if (counts[i] > 1 << 12 && gpu_leaves_out("the order of large kernels")) break;
        check_order(t, gpu, stream, counts[i]);
    }
    gpu->stream_destroy(gpu, stream);
}

TS_TEST(more_than_31_bits)
{
    if (gpu_leaves_out("blocks of more than 31 bits")) return;
    const int64_t count = ((int64_t)1 << 31) + 77, bytes = 2 * count;
    tsi_stream *stream = NULL;
    const tsi_device *gpu = gpu_open(t, &stream);
    if (!gpu) return;
    void *memory = NULL, *other = NULL;
    TEST_OK(t, gpu->buffer_alloc(gpu, (size_t)bytes, &memory));
    TEST_OK(t, gpu->buffer_alloc(gpu, (size_t)count, &other));
    unsigned char five = 5, nine = 9, got[4] = { 0 };
    tsi_block all = {
        .data = memory, .dtype = TS_DTYPE_U8, .ndim = 1, .extent = { bytes }, .stride = { 1 }
    };
    tsi_block even = {
        .data = memory, .dtype = TS_DTYPE_U8, .ndim = 1, .extent = { count }, .stride = { 2 }
    };
    tsi_block dense = {
        .data = other, .dtype = TS_DTYPE_I8, .ndim = 1, .extent = { count }, .stride = { 1 }
    };
    TEST_OK(t, gpu->fill(gpu, &all, &five, stream));
    TEST_OK(t, gpu->fill(gpu, &even, &nine, stream));
    TEST_OK(t, gpu->copy_out(gpu, got, (char *)memory + bytes - 4, 4, stream));
    TEST_OK(t, gpu->stream_sync(gpu, stream));
    TEST_CHECK(t, got[0] == 9 && got[1] == 5 && got[2] == 9 && got[3] == 5);
    TEST_OK(t, gpu->copy(gpu, &dense, &even, stream)); /* a cast, too */
    TEST_OK(t, gpu->copy_out(gpu, got, (char *)other + count - 4, 4, stream));
    TEST_OK(t, gpu->stream_sync(gpu, stream));
    TEST_CHECK(t, got[0] == 9 && got[1] == 9 && got[2] == 9 && got[3] == 9);
    gpu->buffer_free(gpu, memory, (size_t)bytes);
    gpu->buffer_free(gpu, other, (size_t)count);
    gpu->stream_destroy(gpu, stream);
}

TS_TEST(what_it_is)
{
    tsi_stream *stream = NULL;
    const tsi_device *gpu = gpu_open(t, &stream);
    if (!gpu) return;
    tsi_device_properties p;
    gpu->properties(gpu, &p);
    printf("%s: %s, %.1f GiB, %d units, %.2f TB/s, %.0f f32 and %.0f bf16 TFLOP/s by its clocks\n",
           gpu->name, p.name, (double)p.bytes / 0x1p30, (int)p.units, p.bytes_per_second / 1e12,
           p.flops_f32 / 1e12, p.flops_bf16 / 1e12);
    TEST_CHECK(t, p.bytes > 0 && p.units > 0 && p.bytes_per_second > 1e10 && p.name[0]);
    TEST_CHECK(t, gpu->fault(gpu) == NULL);
    TEST_CHECK(t, gpu->reach(gpu, gpu) && !gpu->reach(gpu, tsi_device_host()));
    void *memory = NULL;
    TEST_EQ(t, gpu->buffer_alloc(gpu, (size_t)1 << 50, &memory), TS_ERR_MEMORY);
    TEST_CHECK(t, memory == NULL && gpu->fault(gpu) == NULL);
    gpu->stream_destroy(gpu, stream);
}

/* A fault is final: told by the next wait, and by everything after it. Last, in its own process. */
TS_TEST(zz_fault)
{
    tsi_stream *stream = NULL;
    const tsi_device *gpu = gpu_open(t, &stream);
    if (!gpu) return;
    uintptr_t nowhere = (uintptr_t)1 << 20;
    void *bad = NULL;
    memcpy(&bad, &nowhere, sizeof bad);
    tsi_block x = {
        .data = bad, .dtype = TS_DTYPE_F32, .ndim = 1, .extent = { 100 }, .stride = { 2 }
    };
    float one = 1;
    (void)gpu->fill(gpu, &x, &one, stream);
    TEST_STATUS(t, gpu->stream_sync(gpu, stream), TS_ERR_LOST);
    TEST_CHECK(t, gpu->fault(gpu) != NULL);
    if (gpu->fault(gpu)) TEST_SAYS(t, gpu->fault(gpu), "ILLEGAL_ADDRESS");
    void *memory = NULL;
    TEST_STATUS(t, gpu->buffer_alloc(gpu, 64, &memory), TS_ERR_LOST);
    gpu->stream_destroy(gpu, stream);
}
