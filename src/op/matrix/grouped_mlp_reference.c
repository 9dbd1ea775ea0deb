/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_mlp_reference.c - the feed-forward of chosen experts and its gradients as plain loops:
 * what the rules are proved with. Experts of another rank add nothing; sums are in double. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "op/core/element.h"
#include "op/matrix/grouped_linear.h"
#include "op/matrix/grouped_mlp.h"

/* ---- the activation -------------------------------------------------------------------------- */

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

/* f(x), in the order of tsi_mlp_activations; slope: f'(x). */
static double activate(int32_t which, double x, bool slope)
{
    const double half = sqrt(0.5), c = 0.7978845608028654, d = 0.044715;
    double s, t;
    switch (which) {
    case 0:
    case 3:
        t = which ? 1.702 : 1.0;
        s = sigmoid(t * x);
        return slope ? s * (1 + t * x * (1 - s)) : x * s;
    case 1:
        s = 0.5 * erfc(-x * half);
        return slope ? s + x * exp(-0.5 * x * x) * 0.3989422804014327 : x * s;
    case 2:
        t = tanh(c * (x + d * x * x * x));
        return slope ? 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * d * x * x)
                     : 0.5 * x * (1 + t);
    case 4:
        return slope ? x > 0 : fmax(x, 0);
    case 5:
        return slope ? 2 * fmax(x, 0) : fmax(x, 0) * fmax(x, 0);
    case 6:
        s = sigmoid(x);
        return slope ? s * (1 - s) : s;
    case 7:
        t = tanh(x);
        return slope ? 1 - t * t : t;
    default:
        return slope ? 1 : x;
    }
}

/* ---- elements -------------------------------------------------------------------------------- */

/* in[e, side, f, c] and out[e, c, f] */
static int64_t at_in(const tsi_block *b, int64_t e, int64_t side, int64_t f, int64_t c)
{
    return e * b->stride[0] + side * b->stride[1] + f * b->stride[2] + c * b->stride[3];
}

static int64_t at_out(const tsi_block *b, int64_t e, int64_t c, int64_t f)
{
    return e * b->stride[0] + c * b->stride[1] + f * b->stride[2];
}

/* Element j of row r of [.., N]. */
static int64_t at_row(const tsi_block *b, int64_t r, int64_t j)
{
    int64_t at = j * b->stride[b->ndim - 1];
    for (int32_t d = b->ndim - 2; d >= 0; r /= b->extent[d--])
        at += r % b->extent[d] * b->stride[d];
    return at;
}

typedef struct chosen {          /* one choice of one row */
    const tsi_operand *in;       /* the forward's */
    int64_t row, choice, expert; /* expert: its place in the block, or -1 */
    double weight;
} chosen;

static ts_status choose(const tsi_kernel_io *io, const tsi_operand *in, int64_t row, int64_t choice,
                        chosen *out)
{
    const tsi_operand *experts = &in[TSI_MLP_IN];
    const tsi_block *which = &in[TSI_MLP_WHICH].block;
    int64_t e = tsi_block_int(which, at_row(which, row, choice));
    int64_t count = experts->global->shape.extent[0];
    bool none = e == -1 && ((const tsi_mlp_attributes *)io->attributes)->skips;
    if (!none && (e < 0 || e >= count))
        return tsi_grouped_refuse(io->op->name, e, count, in[TSI_MLP_WHICH].region != NULL);
    *out = (chosen){ in, row, choice, e,
                     tsi_block_real(&in[TSI_MLP_WEIGHT].block,
                                    at_row(&in[TSI_MLP_WEIGHT].block, row, choice)) };
    if (experts->region && !none) out->expert = tsi_span_list_find(&experts->region->dim[0], e);
    return TS_OK;
}

static void gate_up(const chosen *c, int64_t f, double both[2])
{
    const tsi_block *x = &c->in[TSI_MLP_X].block, *in = &c->in[TSI_MLP_IN].block;
    for (int64_t side = 0; side < 2; side++) {
        both[side] = 0;
        for (int64_t i = 0; i < in->extent[3]; i++)
            both[side] += tsi_block_real(in, at_in(in, c->expert, side, f, i)) *
                          tsi_block_real(x, at_row(x, c->row, i));
    }
}

static int64_t count_rows(const tsi_block *rows)
{
    int64_t count = 1;
    for (int32_t d = 0; d < rows->ndim - 1; d++)
        count *= rows->extent[d];
    return count;
}

/* Sums [count] of each output, rounded once when all are there. */
static void store(const tsi_block *to, const double *sum)
{
    tsi_loop loop = tsi_loop_over(to);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop))
        tsi_block_set_real(to, loop.at[0], *sum++);
}

/* ---- forward --------------------------------------------------------------------------------- */

static void add_forward(const chosen *c, int32_t activation, double *y)
{
    const tsi_block *out = &c->in[TSI_MLP_OUT].block;
    double both[2];
    for (int64_t f = 0; c->expert >= 0 && f < out->extent[2]; f++) {
        gate_up(c, f, both);
        double h = c->weight * activate(activation, both[0], false) * both[1];
        for (int64_t i = 0; i < out->extent[1]; i++)
            y[c->row * out->extent[1] + i] += tsi_block_real(out, at_out(out, c->expert, i, f)) * h;
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

typedef struct sums {
    double *of[TSI_MLP_GRADS];
} sums;

static void add_backward(const chosen *c, int32_t activation, const tsi_block *dy, sums *d)
{
    const tsi_block *x = &c->in[TSI_MLP_X].block, *in = &c->in[TSI_MLP_IN].block;
    const tsi_block *out = &c->in[TSI_MLP_OUT].block;
    int64_t choices = c->in[TSI_MLP_WHICH].block.extent[x->ndim - 1], width = out->extent[1];
    int64_t inner = out->extent[2];
    double both[2];
    for (int64_t f = 0; c->expert >= 0 && f < inner; f++) {
        gate_up(c, f, both);
        double a = activate(activation, both[0], false), dh = 0;
        for (int64_t i = 0; i < width; i++) {
            double g = tsi_block_real(dy, at_row(dy, c->row, i));
            dh += tsi_block_real(out, at_out(out, c->expert, i, f)) * g;
            d->of[TSI_MLP_DOUT][(c->expert * width + i) * inner + f] += g * c->weight * a * both[1];
        }
        d->of[TSI_MLP_DWEIGHT][c->row * choices + c->choice] += dh * a * both[1];
        double slope = activate(activation, both[0], true);
        double d_both[2] = { dh * c->weight * slope * both[1], dh * c->weight * a };
        for (int64_t side = 0; side < 2; side++)
            for (int64_t i = 0; i < width; i++) {
                int64_t at = ((c->expert * 2 + side) * inner + f) * width + i;
                d->of[TSI_MLP_DIN][at] += d_both[side] * tsi_block_real(x, at_row(x, c->row, i));
                d->of[TSI_MLP_DX][c->row * width + i] +=
                    d_both[side] * tsi_block_real(in, at_in(in, c->expert, side, f, i));
            }
    }
}

ts_status tsi_mlp_reference(const tsi_kernel_io *io)
{
    bool back = io->output_count == TSI_MLP_GRADS;
    const tsi_operand *in = io->in + back;
    int32_t activation = ((const tsi_mlp_attributes *)io->attributes)->activation;
    const tsi_block *which = &in[TSI_MLP_WHICH].block;
    sums d = { { NULL } };
    ts_status status = TS_OK;
    for (int32_t o = 0; o < io->output_count && status == TS_OK; o++) {
        d.of[o] = tsi_calloc((size_t)tsi_block_count(&io->out[o].block) + 1, sizeof(double));
        if (!d.of[o]) status = tsi_fail_memory("sums of experts", sizeof(double));
    }
    int64_t rows = count_rows(which), choices = which->extent[which->ndim - 1];
    for (int64_t i = 0; i < rows * choices && status == TS_OK; i++) {
        chosen c = { 0 };
        status = choose(io, in, i / choices, i % choices, &c);
        if (status != TS_OK) break;
        if (back)
            add_backward(&c, activation, &io->in[0].block, &d);
        else
            add_forward(&c, activation, d.of[0]);
    }
    for (int32_t o = 0; o < io->output_count; o++) {
        if (status == TS_OK) store(&io->out[o].block, d.of[o]);
        tsi_free(d.of[o]);
    }
    return status;
}
