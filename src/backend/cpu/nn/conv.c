/* SPDX-License-Identifier: Apache-2.0 */
/* conv.c - convolution and its two gradients as matrix products, on all threads.
 *
 *   columns   of one image: [channels x kernel, places], what each window sees, a block of places
 *             at a time, in the L2 cache
 *   forward   y = weight . columns            a task: an image, a group, a block of places
 *   input     columns = weight' . dy, added back into dx     an image, a group, some channels
 *   weight    dweight = sum of dy . columns'  a group, some channels, some images; their sums are
 *             added up in order
 *
 * Narrow dtypes are computed in f32, f64 in f64; operands that are not dense are copied once.
 *
 * INV: tasks depend on the sizes alone, so the number of threads does not change a bit. */
#include "backend/cpu/data.h"
#include "backend/cpu/matrix/gemm.h"
#include "base/intmath.h"
#include "op/nn/attributes.h"

enum { PLACES = 3, TILE = 131072, CHANNELS = 16, PARTS = 16, GRAIN = 32768 };

typedef struct conv {
    const tsi_kernel_io *io;
    int64_t images, groups, inner, outer; /* inner, outer: channels of a group */
    int64_t kernel[PLACES], in[PLACES], out[PLACES];
    int64_t stride[PLACES], dilation[PLACES], origin[PLACES]; /* origin: of window 0, here */
    int64_t taps, k, p, q;   /* of the kernel; inner * taps; places of y and of x */
    int64_t block, channels; /* places of a block; channels of a task, for the gradients */
    ts_dtype dtype;
    int64_t size;
    char *x, *w, *y; /* dense, of that dtype */
    char *scratch;   /* per worker: columns */
    int64_t scratch_bytes, parts;
    char *partial; /* weight: a sum for each part of the images */
} conv;

/* ---- columns --------------------------------------------------------------------------------- */

typedef struct segment {           /* windows of one row of places that lie in one row of x */
    int64_t at;                    /* where the row of x begins; -1: outside */
    int64_t count, before, inside; /* windows; of those left of x; of those on x */
    int64_t first;                 /* place on x of the first of those */
} segment;

/* Windows p, p + 1, .. of y, at most `most`, with tap (z, y, x) of the kernel. */
static segment segment_of(const conv *c, int64_t p, int64_t most, const int64_t *tap)
{
    int64_t place[PLACES] = { p / (c->out[1] * c->out[2]), p / c->out[2] % c->out[1],
                              p % c->out[2] };
    segment s = { .count = tsi_min_i64(most, c->out[2] - place[2]) };
    for (int i = 0; i < PLACES - 1; i++) {
        int64_t at = place[i] * c->stride[i] + c->origin[i] + tap[i] * c->dilation[i];
        if (at < 0 || at >= c->in[i]) s.at = -1;
        if (s.at >= 0) s.at = (s.at + at) * c->in[i + 1];
    }
    int64_t step = c->stride[2];
    int64_t from = place[2] * step + c->origin[2] + tap[2] * c->dilation[2];
    s.before = from < 0 ? tsi_min_i64(s.count, (-from + step - 1) / step) : 0;
    s.first = from + s.before * step;
    s.inside = s.first < c->in[2] ? (c->in[2] - 1 - s.first) / step + 1 : 0;
    s.inside = tsi_min_i64(s.inside, s.count - s.before);
    if (s.at < 0) s.inside = 0;
    return s;
}

static TSI_INLINE void take_places(char *to, const char *from, int64_t step, int64_t n, size_t size)
{
    for (int64_t i = 0; i < n; i++)
        tsi_copy_one(to + i * (int64_t)size, from + i * step, size);
}

/* One row of columns: a channel's plane `x` seen through one tap. */
static void fill_row(const conv *c, char *to, const char *x, int64_t p, int64_t count,
                     const int64_t *tap)
{
    for (int64_t done = 0; done < count;) {
        segment s = segment_of(c, p + done, count - done, tap);
        char *at = to + done * c->size;
        const char *from = x + (s.at < 0 ? 0 : s.at + s.first) * c->size;
        memset(at, 0, (size_t)(s.before * c->size));
        at += s.before * c->size;
        if (c->stride[2] == 1)
            memcpy(at, from, (size_t)(s.inside * c->size));
        else if (c->size == 4)
            take_places(at, from, c->stride[2] * 4, s.inside, 4);
        else
            take_places(at, from, c->stride[2] * 8, s.inside, 8);
        memset(at + s.inside * c->size, 0, (size_t)((s.count - s.before - s.inside) * c->size));
        done += s.count;
    }
}

static TSI_INLINE void add_places_f32(float *to, int64_t step, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i * step] += from[i];
}

static TSI_INLINE void add_places_f64(double *to, int64_t step, const double *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i * step] += from[i];
}

/* The other way round: a row of columns is added into the plane. */
static void add_row(const conv *c, char *x, const char *from, int64_t p, int64_t count,
                    const int64_t *tap)
{
    for (int64_t done = 0; done < count;) {
        segment s = segment_of(c, p + done, count - done, tap);
        const void *at = from + (done + s.before) * c->size;
        void *to = x + (s.at < 0 ? 0 : s.at + s.first) * c->size;
        if (c->dtype == TS_DTYPE_F32 && c->stride[2] == 1)
            add_places_f32(to, 1, at, s.inside);
        else if (c->dtype == TS_DTYPE_F32)
            add_places_f32(to, c->stride[2], at, s.inside);
        else
            add_places_f64(to, c->stride[2], at, s.inside);
        done += s.count;
    }
}

/* All taps of channels first .. first + channels - 1 of an image; rows are `c->block` apart. */
static void columns(const conv *c, int64_t image, int64_t first, int64_t channels, int64_t p,
                    int64_t count, char *buffer, bool adds)
{
    int64_t row = c->block * c->size;
    for (int64_t ch = 0; ch < channels; ch++) {
        char *plane = c->x + (image * c->groups * c->inner + first + ch) * c->q * c->size;
        for (int64_t t = 0; t < c->taps; t++, buffer += row) {
            int64_t tap[PLACES] = { t / (c->kernel[1] * c->kernel[2]),
                                    t / c->kernel[2] % c->kernel[1], t % c->kernel[2] };
            if (adds)
                add_row(c, plane, buffer, p, count, tap);
            else
                fill_row(c, buffer, plane, p, count, tap);
        }
    }
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static char *y_of(const conv *c, int64_t image, int64_t group, int64_t p)
{
    return c->y + ((image * c->groups + group) * c->outer * c->p + p) * c->size;
}

/* The rows of y begin as the bias, to which products are added. */
static void begin_bias(const conv *c, const tsi_block *bias, int64_t group, char *y, int64_t count)
{
    for (int64_t o = 0; o < c->outer; o++) {
        double b = tsi_block_real(bias, (group * c->outer + o) * bias->stride[0]);
        char *row = y + o * c->p * c->size;
        for (int64_t i = 0; i < count; i++)
            tsi_store_real(c->dtype, row + i * c->size, b);
    }
}

static void forward_tasks(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const conv *c = context;
    const tsi_kernel_io *io = c->io;
    bool biased = io->input_count > 2 && io->in[2].global->dtype != TS_DTYPE_NONE;
    int64_t blocks = (c->p - 1) / c->block + 1;
    char *buffer = c->scratch + worker * c->scratch_bytes;
    for (int64_t task = begin; task < end; task++) {
        int64_t p = task % blocks * c->block, group = task / blocks % c->groups;
        int64_t image = task / blocks / c->groups, count = tsi_min_i64(c->block, c->p - p);
        columns(c, image, group * c->inner, c->inner, p, count, buffer, false);
        tsi_gemm gemm = { .m = c->outer, .n = count, .k = c->k, .accumulate = biased };
        gemm.a = c->w + group * c->outer * c->k * c->size;
        gemm.b = buffer;
        gemm.c = y_of(c, image, group, p);
        gemm.am = c->k;
        gemm.ak = gemm.bn = gemm.cn = 1;
        gemm.bk = c->block;
        gemm.cm = c->p;
        if (biased) begin_bias(c, &io->in[2].block, group, gemm.c, count);
        (void)tsi_gemm_blas(c->dtype, &gemm);
    }
}

static void input_tasks(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const conv *c = context;
    int64_t slices = (c->inner - 1) / c->channels + 1;
    char *buffer = c->scratch + worker * c->scratch_bytes;
    for (int64_t task = begin; task < end; task++) {
        int64_t first = task % slices * c->channels, group = task / slices % c->groups;
        int64_t image = task / slices / c->groups, n = tsi_min_i64(c->channels, c->inner - first);
        char *x = c->x + ((image * c->groups + group) * c->inner + first) * c->q * c->size;
        memset(x, 0, (size_t)(n * c->q * c->size));
        for (int64_t p = 0; p < c->p; p += c->block) {
            int64_t count = tsi_min_i64(c->block, c->p - p);
            tsi_gemm gemm = { .m = n * c->taps, .n = count, .k = c->outer };
            gemm.a = c->w + (group * c->outer * c->k + first * c->taps) * c->size;
            gemm.b = y_of(c, image, group, p);
            gemm.c = buffer;
            gemm.am = gemm.bn = gemm.cn = 1;
            gemm.ak = c->k;
            gemm.bk = c->p;
            gemm.cm = c->block;
            (void)tsi_gemm_blas(c->dtype, &gemm);
            columns(c, image, group * c->inner + first, n, p, count, buffer, true);
        }
    }
}

static void weight_tasks(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const conv *c = context;
    int64_t slices = (c->inner - 1) / c->channels + 1, total = c->groups * c->outer * c->k;
    char *buffer = c->scratch + worker * c->scratch_bytes;
    for (int64_t task = begin; task < end; task++) {
        int64_t first = task % slices * c->channels, group = task / slices % c->groups;
        int64_t part = task / slices / c->groups, n = tsi_min_i64(c->channels, c->inner - first);
        int64_t image = part * c->images / c->parts, last = (part + 1) * c->images / c->parts;
        tsi_gemm gemm = { .m = c->outer, .n = n * c->taps };
        gemm.b = buffer;
        gemm.c = c->partial + (part * total + group * c->outer * c->k + first * c->taps) * c->size;
        gemm.ak = gemm.bk = gemm.cn = 1;
        gemm.am = c->p;
        gemm.bn = c->block;
        gemm.cm = c->k;
        for (; image < last; image++)
            for (int64_t p = 0; p < c->p; p += c->block) {
                gemm.k = tsi_min_i64(c->block, c->p - p);
                gemm.a = y_of(c, image, group, p);
                columns(c, image, group * c->inner + first, n, p, gemm.k, buffer, false);
                (void)tsi_gemm_blas(c->dtype, &gemm);
                gemm.accumulate = true;
            }
    }
}

/* ---- calls ----------------------------------------------------------------------------------- */

static bool conv_make(conv *c, const tsi_kernel_io *io, const tsi_operand *x, const tsi_block *w,
                      const tsi_operand *y)
{
    const tsi_conv_attributes *a = io->attributes;
    const tsi_dims *stride = &a->stride, *padding = &a->padding, *dilation = &a->dilation;
    int32_t places = x->block.ndim - 2;
    *c = (conv){ .io = io, .images = x->block.extent[0], .groups = a->groups };
    c->inner = w->extent[1];
    c->outer = w->extent[0] / c->groups;
    c->taps = c->p = c->q = 1;
    for (int32_t i = 0; i < PLACES; i++) { /* missing ones stand in front */
        int32_t d = i - (PLACES - places);
        c->kernel[i] = d < 0 ? 1 : w->extent[2 + d];
        c->in[i] = d < 0 ? 1 : x->block.extent[2 + d];
        c->out[i] = d < 0 ? 1 : y->block.extent[2 + d];
        c->stride[i] = d < 0 ? 1 : stride->value[d];
        c->dilation[i] = d < 0 ? 1 : dilation->value[d];
        c->origin[i] = d < 0 ? 0
                             : tsi_operand_offset(y, 2 + d) * stride->value[d] - padding->value[d] -
                                   tsi_operand_offset(x, 2 + d);
        c->taps *= c->kernel[i];
        c->p *= c->out[i];
        c->q *= c->in[i];
    }
    c->k = c->inner * c->taps;
    c->channels = tsi_min_i64(c->inner, CHANNELS);
    bool wide = x->block.dtype == TS_DTYPE_F64 || w->dtype == TS_DTYPE_F64 ||
                y->block.dtype == TS_DTYPE_F64;
    c->dtype = wide ? TS_DTYPE_F64 : TS_DTYPE_F32;
    c->size = (int64_t)ts_dtype_size(c->dtype);
    return c->images > 0 && c->k > 0 && c->p > 0 && c->q > 0 && c->outer > 0;
}

/* Parts are added up in order, and into the result. */
static void add_parts(const conv *c, char *w)
{
    int64_t total = c->groups * c->outer * c->k;
    for (int64_t i = 0; i < total; i++) {
        double sum = 0;
        for (int64_t part = 0; part < c->parts; part++)
            sum += tsi_load_real(c->dtype, c->partial + (part * total + i) * c->size);
        tsi_store_real(c->dtype, w + i * c->size, sum);
    }
}

static ts_status run_tasks(conv *c, tsi_parallel_fn fn, int64_t rows, int64_t tasks)
{
    tsi_scratch scratch;
    c->block = tsi_min_i64(c->p, tsi_max_i64(64, TILE / rows));
    c->scratch_bytes = rows * c->block * c->size;
    int64_t grain = GRAIN / (rows * c->p + 1) + 1;
    TSI_TRY(tsi_scratch_get(&scratch, c->io->rank, (size_t)c->scratch_bytes,
                            (size_t)tsi_parallel_threads(c->io->rank)));
    c->scratch = scratch.data;
    if (fn == forward_tasks) tasks *= (c->p - 1) / c->block + 1;
    tsi_parallel_for(c->io->rank, tasks, grain, fn, c);
    tsi_scratch_done(&scratch);
    return TS_OK;
}

static ts_status run_weight(conv *c)
{
    int64_t slices = (c->inner - 1) / c->channels + 1, total = c->groups * c->outer * c->k;
    tsi_scratch sums;
    c->parts = tsi_min_i64(c->images, tsi_max_i64(1, PARTS / (slices * c->groups)));
    TSI_TRY(tsi_scratch_get(&sums, c->io->rank, (size_t)(c->parts * total), (size_t)c->size));
    c->partial = sums.data;
    ts_status status =
        run_tasks(c, weight_tasks, c->channels * c->taps, c->parts * c->groups * slices);
    if (status == TS_OK) add_parts(c, c->w);
    tsi_scratch_done(&sums);
    return status;
}

/* What the three operators share: x, w and y in memory, one of them the result. */
static ts_status run_conv(const tsi_kernel_io *io, const tsi_operand *x, const tsi_block *w,
                          const tsi_operand *y, const tsi_block *out)
{
    conv c;
    if (!conv_make(&c, io, x, w, y)) return (ts_status)TSI_KERNEL_DECLINED;
    tsi_held hx = { 0 }, hw = { 0 }, hy = { 0 };
    ts_status status = tsi_hold(io, &x->block, c.dtype, &x->block == out, &hx);
    if (status == TS_OK) status = tsi_hold(io, w, c.dtype, w == out, &hw);
    if (status == TS_OK) status = tsi_hold(io, &y->block, c.dtype, &y->block == out, &hy);
    c.x = hx.dense.data;
    c.w = hw.dense.data;
    c.y = hy.dense.data;
    if (status == TS_OK && out == w)
        status = run_weight(&c);
    else if (status == TS_OK && out == &y->block)
        status = run_tasks(&c, forward_tasks, c.k, c.images * c.groups);
    else if (status == TS_OK)
        status = run_tasks(&c, input_tasks, c.channels * c.taps,
                           c.images * c.groups * ((c.inner - 1) / c.channels + 1));
    status = tsi_let_go(io, &hy, status);
    status = tsi_let_go(io, &hw, status);
    return tsi_let_go(io, &hx, status);
}

ts_status tsi_cpu_conv(const tsi_kernel_io *io)
{
    return run_conv(io, &io->in[0], &io->in[1].block, &io->out[0], &io->out[0].block);
}

ts_status tsi_cpu_conv_backward_input(const tsi_kernel_io *io)
{
    return run_conv(io, &io->out[0], &io->in[1].block, &io->in[0], &io->out[0].block);
}

ts_status tsi_cpu_conv_backward_weight(const tsi_kernel_io *io)
{
    return run_conv(io, &io->in[0], &io->out[0].block, &io->in[1], &io->out[0].block);
}
