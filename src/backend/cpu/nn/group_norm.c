/* SPDX-License-Identifier: Apache-2.0 */
/* group_norm.c - group_norm of narrow reals: a group of channels of one batch element is a row, as
 * those of norm.c are.
 *
 * Contiguous groups of f32 and bf16 are used where they lie, others through a buffer of f32. The
 * weight and bias of a channel hold for all its places: many places take them as single numbers,
 * few as rows, written once per call. Both ways give the same bits. */
#include <math.h>

#include "backend/cpu/cpu.h"
#include "base/compiler.h"
#include "op/core/element.h"
#include "op/nn/attributes.h"

enum { GRAIN = 16384, FEW = 128 };

typedef struct group_norm {
    const tsi_row_set *set;
    const tsi_kernel_io *io;
    float *weight, *bias; /* per channel, or, of few places, per place of a channel */
    float *buffer;        /* per worker: a group */
    double eps;
    int64_t groups, channels, places, length; /* length: of a group, channels times places */
    bool direct, narrow;                      /* f32, or bf16, where it lies */
} group_norm;

/* Where a group of a batch element begins in x or y. */
static char *group_at(const group_norm *g, const tsi_block *block, int64_t row)
{
    return tsi_block_at(block, row / g->groups * block->stride[0] +
                                   row % g->groups * g->channels * block->stride[1]);
}

static void store_statistic(const group_norm *g, int32_t output, int64_t row, double value)
{
    const tsi_block *to = &g->io->out[output].block;
    int64_t at = row / g->groups * to->stride[0] + row % g->groups * to->stride[1];
    tsi_block_set_real(to, at, value);
}

/* One group of a block of any strides into the buffer, or out of it. */
static void move_group(const group_norm *g, const tsi_block *block, int64_t row, float *buffer,
                       bool out)
{
    ts_dtype dtype = (ts_dtype)block->dtype;
    int32_t inner = block->ndim - 1;
    int64_t size = (int64_t)ts_dtype_size(dtype), step = block->stride[inner] * size;
    int64_t count = inner == 1 ? g->channels : block->extent[inner];
    tsi_loop loop = { .ndim = inner - 1, .operand_count = 1, .stride = { block->stride + 1 } };
    for (int32_t d = 1; d < inner; d++)
        loop.extent[d - 1] = d == 1 ? g->channels : block->extent[d];
    char *base = group_at(g, block, row);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        char *at = base + loop.at[0] * size;
        if (out)
            tsi_scatter(dtype, at, step, TS_DTYPE_F32, buffer, count);
        else
            tsi_gather(TS_DTYPE_F32, buffer, dtype, at, step, count);
        buffer += count;
    }
}

/* All channels of a group at once, by rows of weights, or channel by channel. */
static void normalise(const group_norm *g, int64_t group, void *to, const void *x, float mean,
                      float scale)
{
    int64_t first = group * g->channels;
    if (g->places < FEW) {
        const float *parameters[] = { g->weight + first * g->places, g->bias + first * g->places };
        if (g->narrow)
            g->set->normalise_bf16(to, x, parameters, mean, scale, g->length);
        else
            g->set->normalise(to, x, parameters, mean, scale, g->length);
        return;
    }
    for (int64_t c = 0; c < g->channels; c++) {
        const float numbers[] = { mean, scale, g->weight[first + c], g->bias[first + c] };
        int64_t at = c * g->places;
        if (g->narrow)
            g->set->normalise_by_bf16((uint16_t *)to + at, (const uint16_t *)x + at, numbers,
                                      g->places);
        else
            g->set->normalise_by((float *)to + at, (const float *)x + at, numbers, g->places);
    }
}

static void run_groups(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const group_norm *g = context;
    const tsi_block *x = &g->io->in[0].block, *y = &g->io->out[0].block;
    float *buffer = g->buffer + worker * g->length;
    bool whole = g->direct || g->narrow;
    for (int64_t row = begin; row < end; row++) {
        void *from = whole ? (void *)group_at(g, x, row) : buffer;
        void *to = whole ? (void *)group_at(g, y, row) : buffer;
        if (!whole) move_group(g, x, row, buffer, false);
        double moments[2];
        if (g->narrow)
            g->set->moments_bf16(from, g->length, moments);
        else
            g->set->moments(from, g->length, moments);
        double scale = 1.0 / sqrt(moments[1] / (double)g->length + g->eps);
        normalise(g, row % g->groups, to, from, (float)moments[0], (float)scale);
        if (!whole) move_group(g, y, row, buffer, true);
        store_statistic(g, 1, row, moments[0]);
        store_statistic(g, 2, row, scale);
    }
}

/* A parameter of each channel, `times` times; `otherwise` if absent. */
static void parameter(const tsi_kernel_io *io, int32_t input, float *to, int64_t times,
                      float otherwise)
{
    const tsi_block *p = input < io->input_count ? &io->in[input].block : NULL;
    bool given = p && p->dtype != TS_DTYPE_NONE;
    for (int64_t c = 0; c < io->in[0].block.extent[1]; c++) {
        float value = otherwise;
        if (given) value = (float)tsi_block_real(p, c * p->stride[0]);
        for (int64_t i = 0; i < times; i++)
            *to++ = value;
    }
}

static bool lies_plain(const tsi_block *block)
{
    tsi_line line;
    tsi_line_make(&line, block, 1);
    return tsi_line_is_plain(&line, (ts_dtype)block->dtype);
}

ts_status tsi_cpu_group_norm(const tsi_kernel_io *io)
{
    const tsi_block *x = &io->in[0].block, *y = &io->out[0].block;
    if (!tsi_is_small_real(x->dtype) || tsi_block_count(x) == 0)
        return (ts_status)TSI_KERNEL_DECLINED;
    group_norm g = { .set = tsi_rows(), .io = io, .places = 1 };
    const tsi_group_norm_attributes *a = io->attributes;
    g.groups = a->num_groups;
    g.eps = a->eps;
    g.channels = x->extent[1] / g.groups;
    for (int32_t d = 2; d < x->ndim; d++)
        g.places *= x->extent[d];
    g.length = g.channels * g.places;
    bool plain = lies_plain(x) && lies_plain(y);
    g.direct = plain && x->dtype == TS_DTYPE_F32;
    g.narrow = plain && x->dtype == TS_DTYPE_BF16;
    int64_t times = g.places < FEW ? g.places : 1, numbers = x->extent[1] * times;
    int64_t buffers = g.direct || g.narrow ? 0 : tsi_parallel_threads(io->rank) * g.length;
    tsi_scratch scratch;
    TSI_TRY(tsi_scratch_get(&scratch, io->rank, (size_t)(2 * numbers + buffers), sizeof(float)));
    g.weight = scratch.data;
    g.bias = g.weight + numbers;
    g.buffer = g.bias + numbers;
    parameter(io, 1, g.weight, times, 1.0f);
    parameter(io, 2, g.bias, times, 0.0f);
    tsi_parallel_for(io->rank, x->extent[0] * g.groups, GRAIN / g.length + 1, run_groups, &g);
    tsi_scratch_done(&scratch);
    return TS_OK;
}
