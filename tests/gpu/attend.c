/* SPDX-License-Identifier: Apache-2.0 */
/* attend.c - attention and its gradient on a GPU, by cuDNN and by the own kernels, against the
 * host; equal bits of repeated gradients; and rates of the layers of two models. */
#include "gpu/gpu.h"

#include <math.h>
#include <stdlib.h>

#include "tessera/op.h"
#include "tessera/tensor.h"

typedef struct shape {
    const char *name;
    int64_t b, h, g, t, s, d, e;
    int32_t causal;
    ts_dtype dtype;
} shape;

static const shape shapes[] = {
    { "plain", 2, 4, 4, 96, 96, 64, 64, 0, TS_DTYPE_BF16 },
    { "causal", 2, 4, 4, 128, 128, 64, 64, 1, TS_DTYPE_BF16 },
    { "causal, groups", 2, 6, 2, 200, 200, 64, 64, 1, TS_DTYPE_BF16 },
    { "causal, later queries", 1, 4, 2, 64, 192, 128, 128, 1, TS_DTYPE_BF16 },
    { "causal, f16", 1, 2, 2, 80, 80, 64, 64, 1, TS_DTYPE_F16 },
    { "odd", 2, 3, 1, 37, 41, 24, 40, 1, TS_DTYPE_BF16 },
    { "unaligned", 1, 2, 2, 19, 19, 20, 12, 1, TS_DTYPE_BF16 },
    { "f32", 2, 4, 2, 65, 65, 32, 32, 1, TS_DTYPE_F32 },
    { "f64", 1, 2, 1, 33, 40, 16, 8, 1, TS_DTYPE_F64 },
    { "queries that see nothing", 1, 2, 2, 20, 12, 16, 16, 1, TS_DTYPE_F32 },
};
enum { SHAPES = sizeof shapes / sizeof shapes[0], PARTS = 5 }; /* out, lse, dq, dk, dv */

typedef struct results {
    double *value[SHAPES][PARTS];
    int64_t count[SHAPES][PARTS];
    int32_t unequal; /* gradients that differ from run to run */
} results;

/* Heads that lie as projections leave them: [B, T, H, D] seen as [B, H, T, D]. */
static ts_tensor *heads(ts_mesh *m, const shape *s, int64_t heads_, int64_t rows, int64_t width)
{
    return ts_transpose(ts_randn(m, s->dtype, TS_SHAPE(s->b, rows, heads_, width), "R"), 1, 2);
}

static void keep(ts_tensor *t, double **value, int64_t *count)
{
    ts_shape shape_of = ts_tensor_shape(t);
    ts_array array = TS_INIT(ts_array);
    *count = ts_shape_count(&shape_of);
    *value = calloc((size_t)*count + 1, sizeof(double));
    array.meta = (ts_meta){ .shape = shape_of, .dtype = TS_DTYPE_F64 };
    array.data = *value;
    (void)ts_tensor_read(t, &array);
}

static ts_status attend(ts_rank *me, void *context)
{
    results *to = context;
    ts_mesh *m = ts_mesh_create(me, "x=*");
    for (int i = 0; i < SHAPES && ts_rank_status(me) == TS_OK; i++) {
        const shape *s = &shapes[i];
        ts_scope scope = ts_scope_open(me, NULL);
        ts_tensor *q = heads(m, s, s->h, s->t, s->d), *k = heads(m, s, s->g, s->s, s->d);
        ts_tensor *v = heads(m, s, s->g, s->s, s->e), *dy = heads(m, s, s->h, s->t, s->e);
        ts_tensor *out[2] = { NULL }, *grad[3] = { NULL }, *again[3] = { NULL };
        ts_attention_options options = TS_INIT(ts_attention_options);
        options.causal = s->causal;
        (void)ts_attention_lse(q, k, v, &options, out);
        ts_attention_saved saved = TS_INIT(ts_attention_saved);
        saved.q = q, saved.k = k, saved.v = v, saved.o = out[0], saved.lse = out[1];
        saved.d_o = dy;
        (void)ts_attention_backward(&saved, &options, grad);
        (void)ts_attention_backward(&saved, &options, again);
        ts_tensor *const parts[PARTS] = { out[0], out[1], grad[0], grad[1], grad[2] };
        for (int p = 0; p < PARTS && ts_rank_status(me) == TS_OK; p++)
            keep(parts[p], &to->value[i][p], &to->count[i][p]);
        for (int p = 0; p < 3 && ts_rank_status(me) == TS_OK; p++) {
            int equal = 0;
            (void)ts_equal(grad[p], again[p], &equal);
            to->unequal += !equal;
        }
        (void)ts_scope_close(scope);
    }
    return ts_rank_status(me);
}

static void compare(test *t, int i, const results *got, const results *want)
{
    static const char *const part[PARTS] = { "out", "lse", "dq", "dk", "dv" };
    const shape *s = &shapes[i];
    for (int p = 0; p < PARTS; p++) {
        double most = 0, worst = 0;
        bool kinds = got->value[i][p] && want->value[i][p];
        for (int64_t k = 0; kinds && k < want->count[i][p]; k++) {
            double a = got->value[i][p][k], b = want->value[i][p][k];
            kinds = isinf(a) == isinf(b) && !isnan(a);
            if (isinf(b)) continue;
            most = fmax(most, fabs(b));
            worst = fmax(worst, fabs(a - b));
        }
        double bound = s->dtype == TS_DTYPE_BF16  ? 0x1p-6
                       : s->dtype == TS_DTYPE_F16 ? 0x1p-9
                       : s->dtype == TS_DTYPE_F32 ? 1e-5
                                                  : 1e-12;
        TEST_SAY(t, kinds && worst <= bound * most, "%s, %s: off by %g of %g", s->name, part[p],
                 worst, most);
    }
}

static void run(test *t, const char *device, results *to)
{
    char error[512] = "";
    ts_status status =
        ts_launch_with(TS_OPTIONS(ts_world_options, .rank_count = 1, .seed = 3, .device = device),
                       attend, to, error, sizeof error);
    TEST_SAY(t, status == TS_OK, "%s: %s", device, error);
}

TS_TEST_LONG(attention_agrees_with_the_host, 300)
{
    static results host, cudnn, own;
    (void)setenv("TESSERA_FALLBACK", "forbid", 1);
    run(t, "cpu", &host);
    run(t, "cuda", &cudnn);
    (void)setenv("TESSERA_CUDNN", "off", 1);
    run(t, "cuda", &own);
    for (int i = 0; i < SHAPES; i++) {
        compare(t, i, &cudnn, &host);
        compare(t, i, &own, &host);
    }
    TEST_SAY(t, cudnn.unequal == 0, "%d gradients of cuDNN differ from run to run",
             (int)cudnn.unequal);
    TEST_SAY(t, own.unequal == 0, "%d own gradients differ from run to run", (int)own.unequal);
}

/* ---- rates ----------------------------------------------------------------------------------- */

enum { RUNS = 6, REPEATS = 5 };

typedef struct timing {
    ts_tensor *q, *k, *v, *out[2], *dy;
    bool backward;
} timing;

static void once(const timing *w)
{
    ts_attention_options options = TS_INIT(ts_attention_options);
    options.causal = 1;
    ts_tensor *made[3] = { NULL };
    if (!w->backward) {
        (void)ts_attention_lse(w->q, w->k, w->v, &options, made);
        return;
    }
    ts_attention_saved saved = TS_INIT(ts_attention_saved);
    saved.q = w->q, saved.k = w->k, saved.v = w->v;
    saved.o = w->out[0], saved.lse = w->out[1], saved.d_o = w->dy;
    (void)ts_attention_backward(&saved, &options, made);
}

static double best_us(ts_rank *me, const timing *w)
{
    const tsi_rank_device *where = tsi_rank_device_of(me);
    const tsi_device *gpu = where->device;
    double best = 1e30;
    for (int r = 0; r < RUNS; r++) {
        tsi_device_event *begin = NULL, *end = NULL;
        double us = 0;
        (void)gpu->event_record(gpu, where->queue, &begin);
        for (int i = 0; i < REPEATS; i++) {
            ts_scope scope = ts_scope_open(me, NULL);
            once(w);
            (void)ts_scope_close(scope);
        }
        (void)gpu->event_record(gpu, where->queue, &end);
        (void)gpu->stream_sync(gpu, where->queue);
        (void)gpu->event_time(gpu, begin, end, &us);
        gpu->event_destroy(gpu, begin);
        gpu->event_destroy(gpu, end);
        if (r > 0 && us / REPEATS < best) best = us / REPEATS;
    }
    return best;
}

static ts_status time_layers(ts_rank *me, void *context)
{
    (void)context;
    static const shape layers[] = {
        { "A, 16 x 1024, 12 heads of 64", 16, 12, 12, 1024, 1024, 64, 64, 1, TS_DTYPE_BF16 },
        { "B, 4 x 2048, 32 on 4 heads of 64", 4, 32, 4, 2048, 2048, 64, 64, 1, TS_DTYPE_BF16 },
        { "4 x 2048, 16 on 4 heads of 128", 4, 16, 4, 2048, 2048, 128, 128, 1, TS_DTYPE_BF16 },
    };
    ts_mesh *m = ts_mesh_create(me, "x=*");
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        const shape *s = &layers[i];
        ts_scope scope = ts_scope_open(me, NULL);
        timing w = { .q = heads(m, s, s->h, s->t, s->d), .k = heads(m, s, s->g, s->s, s->d) };
        w.v = heads(m, s, s->g, s->s, s->e);
        w.dy = heads(m, s, s->h, s->t, s->e);
        ts_attention_options options = TS_INIT(ts_attention_options);
        options.causal = 1;
        (void)ts_attention_lse(w.q, w.k, w.v, &options, w.out);
        double flops =
            2.0 * (double)(s->b * s->h * s->t) * (double)s->s * (double)(s->d + s->e) / 2;
        double forward = best_us(me, &w);
        w.backward = true;
        double backward = best_us(me, &w);
        printf("%-36s forward %8.1f us %5.0f TFLOP/s   backward %8.1f us %5.0f TFLOP/s\n", s->name,
               forward, flops / forward / 1e6, backward, 2.5 * flops / backward / 1e6);
        (void)ts_scope_close(scope);
    }
    return ts_rank_status(me);
}

TS_TEST_LONG(zz_rates, 300)
{
    char error[512] = "";
    ts_status status =
        ts_launch_with(TS_OPTIONS(ts_world_options, .rank_count = 1, .device = "cuda"), time_layers,
                       NULL, error, sizeof error);
    TEST_SAY(t, status == TS_OK, "%s", error);
}
