/* SPDX-License-Identifier: Apache-2.0 */
/* rates.c - how fast the device moves memory, beside the driver's own copy of as many bytes.
 *
 * Bytes read and written are counted. Buffers are far larger than the L2 cache, and each
 * measurement runs several times between two events; the best counts. */
#include "gpu/gpu.h"

#include "array/random.h"

enum { RUNS = 8, REPEATS = 4 };
#define BYTES ((int64_t)1 << 30)

typedef struct scene {
    const tsi_device *gpu;
    tsi_stream *stream;
    void *a, *b;
} scene;

typedef void (*work_fn)(test *t, const scene *s, void *context);

static double best_us(test *t, const scene *s, work_fn work, void *context)
{
    double best = 1e30;
    for (int i = 0; i < RUNS; i++) {
        tsi_device_event *begin = NULL, *end = NULL;
        double us = 0;
        TEST_OK(t, s->gpu->event_mark(s->gpu, s->stream, &begin));
        for (int k = 0; k < REPEATS; k++)
            work(t, s, context);
        TEST_OK(t, s->gpu->event_mark(s->gpu, s->stream, &end));
        TEST_OK(t, s->gpu->stream_sync(s->gpu, s->stream));
        TEST_OK(t, s->gpu->event_time(s->gpu, begin, end, &us));
        s->gpu->event_destroy(s->gpu, begin);
        s->gpu->event_destroy(s->gpu, end);
        if (i > 0 && us / REPEATS < best) best = us / REPEATS;
    }
    return best;
}

static double told(test *t, const scene *s, const char *name, work_fn work, void *context,
                   double bytes, double driver)
{
    double us = best_us(t, s, work, context), rate = bytes / us / 1e6;
    printf("%-44s %9.1f us %7.3f TB/s", name, us, rate);
    if (driver > 0) printf("  %5.2f of the driver's copy", rate / driver);
    printf("\n");
    return rate;
}

typedef struct pair {
    tsi_block to, from;
    const tsi_block *list[8];
    int64_t count;
    tsi_random_recipe recipe;
} pair;

static void do_copy(test *t, const scene *s, void *context)
{
    pair *p = context;
    TEST_OK(t, s->gpu->copy(s->gpu, &p->to, &p->from, s->stream));
}

static void do_fill(test *t, const scene *s, void *context)
{
    pair *p = context;
    uint64_t element[2] = { 0x3f803f803f803f80, 0 };
    TEST_OK(t, s->gpu->fill(s->gpu, &p->to, element, s->stream));
}

static void do_fold(test *t, const scene *s, void *context)
{
    pair *p = context;
    TEST_OK(t, s->gpu->fold(s->gpu, &p->to, p->list, p->count, TS_REDUCE_SUM, 0, s->stream));
}

static void do_random(test *t, const scene *s, void *context)
{
    pair *p = context;
    tsi_random_run all = { 0, 0, p->to.extent[0] };
    TEST_OK(t, s->gpu->random(s->gpu, &p->recipe, &p->to, &all, 1, s->stream));
}

static tsi_block block(void *data, ts_dtype dtype, int64_t rows, int64_t columns,
                       int64_t row_stride, int64_t column_stride)
{
    return (tsi_block){ .data = data,
                        .dtype = dtype,
                        .ndim = 2,
                        .extent = { rows, columns },
                        .stride = { row_stride, column_stride } };
}

static void folds(test *t, const scene *s, double driver)
{
    static const struct {
        ts_dtype dtype;
        int64_t count;
        const char *name;
    } cases[] = { { TS_DTYPE_BF16, 2, "fold of 2, bf16" },
                  { TS_DTYPE_BF16, 8, "fold of 8, bf16" },
                  { TS_DTYPE_F32, 2, "fold of 2, f32" },
                  { TS_DTYPE_F32, 8, "fold of 8, f32" } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t part = BYTES / cases[i].count, n = part / (int64_t)ts_dtype_size(cases[i].dtype);
        pair p = { .to = block(s->b, cases[i].dtype, 1, n, n, 1), .count = cases[i].count };
        tsi_block from[8];
        for (int64_t k = 0; k < p.count; k++) {
            from[k] = block((char *)s->a + k * part, cases[i].dtype, 1, n, n, 1);
            p.list[k] = &from[k];
        }
        (void)told(t, s, cases[i].name, do_fold, &p, (double)(part * (p.count + 1)), driver);
    }
}

TS_TEST_LONG(rates, 300)
{
    scene s = { 0 };
    s.gpu = gpu_open(t, &s.stream);
    if (!s.gpu) return;
    TEST_OK(t, s.gpu->buffer_alloc(s.gpu, BYTES, &s.a));
    TEST_OK(t, s.gpu->buffer_alloc(s.gpu, BYTES, &s.b));
    const int64_t n = 16384; /* n x n of 4 bytes are 1 GiB */
    pair p = { .to = block(s.a, TS_DTYPE_F32, 1, n * n, n * n, 1) };
    tsi_random normal = { .kind = TSI_RANDOM_NORMAL, .a = 0, .b = 1, .seed = 5 };
    TEST_OK(t, tsi_random_recipe_make(&normal, TS_DTYPE_F32, &p.recipe));
    p.to = (tsi_block){
        .data = s.a, .dtype = TS_DTYPE_F32, .ndim = 1, .extent = { n * n }, .stride = { 1 }
    };
    (void)told(t, &s, "random normals, f32 (write)", do_random, &p, BYTES, 0);

    p.to = block(s.b, TS_DTYPE_F32, n, n, n, 1);
    p.from = block(s.a, TS_DTYPE_F32, n, n, n, 1);
    double driver = told(t, &s, "the driver's copy", do_copy, &p, 2.0 * BYTES, 0);
    p.to = block(s.b, TS_DTYPE_F32, n, n - 64, n, 1);
    p.from = block(s.a, TS_DTYPE_F32, n, n - 64, n, 1);
    double rows =
        told(t, &s, "rows of 16320 f32", do_copy, &p, 8.0 * (double)(n * (n - 64)), driver);
    TEST_SAY(t, rows >= 0.95 * driver, "rows are copied at %.2f of the driver's rate",
             rows / driver);
    p.to = block(s.b, TS_DTYPE_BF16, 1 << 20, 64, 64, 1);
    p.from = block(s.a, TS_DTYPE_BF16, 1 << 20, 64, 192, 1);
    (void)told(t, &s, "rows of 64 bf16 (heads)", do_copy, &p, 4.0 * (64 << 20), driver);
    p.to = block(s.b, TS_DTYPE_F32, n, n, n, 1);
    p.from = block(s.a, TS_DTYPE_F32, n, n, 1, n);
    (void)told(t, &s, "transpose, f32", do_copy, &p, 2.0 * BYTES, driver);
    p.to = block(s.b, TS_DTYPE_BF16, n, n, n, 1);
    p.from = block(s.a, TS_DTYPE_BF16, n, n, 1, n);
    (void)told(t, &s, "transpose, bf16", do_copy, &p, 1.0 * BYTES, driver);
    p.from = block(s.a, TS_DTYPE_F32, n, n, n, 1);
    (void)told(t, &s, "f32 to bf16", do_copy, &p, 1.5 * BYTES, driver);
    p.to = block(s.b, TS_DTYPE_F32, n, n, n, 1);
    p.from = block(s.a, TS_DTYPE_BF16, n, n, n, 1);
    (void)told(t, &s, "bf16 to f32", do_copy, &p, 1.5 * BYTES, driver);
    p.to = block(s.b, TS_DTYPE_BF16, n, n - 64, n, 1);
    p.from = block(s.a, TS_DTYPE_F32, n, n - 64, n, 1);
    (void)told(t, &s, "f32 to bf16 by any strides", do_copy, &p, 6.0 * (double)(n * (n - 64)),
               driver);
    p.to = block(s.b, TS_DTYPE_F32, n, n, n, 1);
    (void)told(t, &s, "fill (write)", do_fill, &p, BYTES, driver);
    folds(t, &s, driver);
    s.gpu->buffer_free(s.gpu, s.a, BYTES);
    s.gpu->buffer_free(s.gpu, s.b, BYTES);
    s.gpu->stream_destroy(s.gpu, s.stream);
}
