/* SPDX-License-Identifier: Apache-2.0 */
/* attend.c - attention in f32, a query row at a time: scores of the keys it sees, their softmax,
 * the weighted sum of values; and the gradient of each from log-sum-exp. No T x S matrix is kept.
 *
 * Declines other dtypes and blocks whose last dim is not contiguous. Rows are independent and
 * computed in one order, so the result does not depend on how many threads there are. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/alloc.h"
#include "op/attention.h"
#include "op/op.h"

enum { LANES = 8 };

typedef struct rows {
    const tsi_kernel_io *io;
    double scale;
    int64_t group, reach; /* heads per group; causal: what query 0 sees, less one */
    bool causal;
    float *score; /* as many as there are keys */
} rows;

static int64_t global_of(const tsi_operand *operand, int32_t dim, int64_t local)
{
    return operand->region ? tsi_span_list_at(&operand->region->dim[dim], local) : local;
}

static int64_t group_of(const rows *r, int64_t head)
{
    int64_t group = global_of(&r->io->in[0], 1, head) / r->group;
    const tsi_operand *k = &r->io->in[1];
    return k->region ? tsi_span_list_find(&k->region->dim[1], group) : group;
}

static int64_t keys_seen(const rows *r, int64_t query)
{
    int64_t all = r->io->in[1].block.extent[2];
    if (!r->causal) return all;
    int64_t seen = global_of(&r->io->in[0], 2, query) + r->reach + 1;
    return seen < 0 ? 0 : seen < all ? seen : all;
}

static float *row_at(const tsi_block *x, int64_t b, int64_t h, int64_t t)
{
    return (float *)x->data + b * x->stride[0] + h * x->stride[1] + t * x->stride[2];
}

/* In double, so that the exponential of a large score keeps its digits. */
static double dot(const float *a, const float *b, int64_t n)
{
    double lane[LANES] = { 0 }, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int u = 0; u < LANES; u++)
            lane[u] += (double)a[i + u] * (double)b[i + u];
    for (int u = 0; u < LANES; u++)
        sum += lane[u];
    for (; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static void add_scaled(float *to, const float *from, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += factor * from[i];
}

/* Scores of one query; returns the largest. */
static float scores(const rows *r, int64_t b, int64_t h, int64_t g, int64_t i, int64_t seen)
{
    const tsi_block *q = &r->io->in[0].block, *k = &r->io->in[1].block;
    const float *query = row_at(q, b, h, i);
    float top = -INFINITY;
    for (int64_t j = 0; j < seen; j++) {
        r->score[j] = (float)(dot(query, row_at(k, b, g, j), q->extent[3]) * r->scale);
        top = fmaxf(top, r->score[j]);
    }
    return top;
}

static void attend(const rows *r, int64_t b, int64_t h, int64_t i)
{
    const tsi_block *v = &r->io->in[2].block, *out = &r->io->out[0].block,
                    *lse = &r->io->out[1].block;
    int64_t g = group_of(r, h), seen = keys_seen(r, i), width = out->extent[3];
    float top = scores(r, b, h, g, i, seen), sum = 0, *to = row_at(out, b, h, i);
    for (int64_t j = 0; j < seen; j++)
        sum += r->score[j] = expf(r->score[j] - top);
    memset(to, 0, (size_t)width * sizeof *to);
    for (int64_t j = 0; j < seen; j++)
        add_scaled(to, row_at(v, b, g, j), r->score[j] / sum, width);
    float *base = (float *)lse->data + b * lse->stride[0] + h * lse->stride[1] + i * lse->stride[2];
    *base = seen > 0 ? top + logf(sum) : -INFINITY;
}

static void attend_back(const rows *r, int64_t b, int64_t h, int64_t i)
{
    const tsi_operand *in = r->io->in, *out = r->io->out;
    int64_t g = group_of(r, h), seen = keys_seen(r, i);
    int64_t depth = in[0].block.extent[3], width = in[2].block.extent[3];
    const tsi_block *lse = &in[4].block;
    float base =
        ((const float *)lse->data)[b * lse->stride[0] + h * lse->stride[1] + i * lse->stride[2]];
    const float *query = row_at(&in[0].block, b, h, i), *grad = row_at(&in[5].block, b, h, i);
    float *d_query = row_at(&out[0].block, b, h, i);
    double delta = dot(row_at(&in[3].block, b, h, i), grad, width);
    for (int64_t j = 0; j < seen; j++) {
        const float *key = row_at(&in[1].block, b, g, j);
        double p = exp(dot(query, key, depth) * r->scale - (double)base);
        double pull = dot(grad, row_at(&in[2].block, b, g, j), width) - delta;
        float ds = (float)(p * pull * r->scale);
        add_scaled(row_at(&out[2].block, b, g, j), grad, (float)p, width);
        add_scaled(d_query, key, ds, depth);
        add_scaled(row_at(&out[1].block, b, g, j), query, ds, depth);
    }
}

/* ---- the kernels ----------------------------------------------------------------------------- */

static bool is_plain(const tsi_operand *operand)
{
    const tsi_block *x = &operand->block;
    return x->dtype == TS_DTYPE_F32 && (x->ndim < 4 || x->stride[3] == 1 || x->extent[3] <= 1);
}

static bool rows_make(const tsi_kernel_io *io, rows *r)
{
    for (int32_t i = 0; i < io->input_count; i++)
        if (!is_plain(&io->in[i])) return false;
    for (int32_t o = 0; o < io->output_count; o++)
        if (!is_plain(&io->out[o])) return false;
    const tsi_attention_attributes *a = io->attributes;
    const ts_shape *q = &io->in[0].global->shape, *k = &io->in[1].global->shape;
    double scale = a->scale != 0.0 ? a->scale : 1.0 / sqrt((double)q->extent[3]);
    *r = (rows){ .io = io,
                 .scale = scale,
                 .group = q->extent[1] / k->extent[1],
                 .reach = k->extent[2] - q->extent[2],
                 .causal = a->causal };
    r->score = tsi_alloc_array((size_t)io->in[1].block.extent[2] + 1, sizeof *r->score);
    return r->score != NULL;
}

static ts_status each_row(const tsi_kernel_io *io,
                          void (*row)(const rows *, int64_t, int64_t, int64_t))
{
    rows r;
    if (!rows_make(io, &r)) return (ts_status)TSI_KERNEL_DECLINED;
    const tsi_block *q = &io->in[0].block;
    for (int64_t b = 0; b < q->extent[0]; b++)
        for (int64_t h = 0; h < q->extent[1]; h++)
            for (int64_t i = 0; i < q->extent[2]; i++)
                row(&r, b, h, i);
    tsi_free(r.score);
    return TS_OK;
}

static ts_status attention(const tsi_kernel_io *io)
{
    return each_row(io, attend);
}

static ts_status attention_backward(const tsi_kernel_io *io)
{
    const unsigned char zero[16] = { 0 };
    for (int32_t o = 0; o < 3; o++)
        TSI_TRY(io->device->fill(io->device, &io->out[o].block, zero, NULL));
    return each_row(io, attend_back);
}

void tsi_attend_install(void)
{
    tsi_kernel_set(tsi_device_cpu(), TSI_OP_ID_ATTENTION, attention);
    tsi_kernel_set(tsi_device_cpu(), TSI_OP_ID_ATTENTION_BACKWARD, attention_backward);
}
