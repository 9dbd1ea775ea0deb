/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_mlp_local.c - the feed-forward of experts on rows whose experts are known, as a
 * composition of operators, and its gradient as another.
 *
 *   both_S2F = in[e] x      h_SF = weight act(gate) up      y_SC = out[e] h
 *
 * INV: no value is kept between the two: the gradient makes both_S2F again from x. */
#include "op/core/common.h"
#include "op/matrix/grouped_linear.h"
#include "op/matrix/grouped_mlp.h"

const tsi_mlp_activation tsi_mlp_activations[] = {
    { &tsi_op_silu, 1.0 },    { &tsi_op_gelu, 1.0 }, { &tsi_op_gelu_tanh, 1.0 },
    { &tsi_op_silu, 1.702 },  { &tsi_op_relu, 1.0 }, { &tsi_op_relu2, 1.0 },
    { &tsi_op_sigmoid, 1.0 }, { &tsi_op_tanh, 1.0 }, { NULL, 1.0 },
};

/* ---- the gate -------------------------------------------------------------------------------- */

static bool is_swiglu(const tsi_mlp_activation *a)
{
    return a->op == &tsi_op_silu && a->scale == 1.0;
}

static ts_tensor *scaled(ts_tensor *x, double by)
{
    return by == 1.0 ? x : (ts_mul_scalar)(x, by);
}

ts_tensor *tsi_mlp_gate(int32_t activation, ts_tensor *gate, ts_tensor *up)
{
    const tsi_mlp_activation *a = &tsi_mlp_activations[activation];
    if (is_swiglu(a)) return ts_swiglu(gate, up);
    if (!a->op) return ts_mul(gate, up);
    ts_tensor *x = scaled(gate, a->scale);
    return ts_mul(scaled(tsi_op_make(a->op, &x, 1, NULL), 1.0 / a->scale), up);
}

/* The gradient of one operator for its first `count` inputs. */
static ts_status grad_of(const tsi_op_desc *op, ts_tensor *const *in, int32_t count, ts_tensor *out,
                         ts_tensor *dy, ts_tensor **d)
{
    ts_meta meta[2];
    ts_tensor *no_sum[2] = { NULL, NULL };
    uint64_t included = 0;
    for (int32_t i = 0; i < count; i++) {
        if (!in[i] || !dy) return in[0] ? ts_rank_status(in[0]->rank) : TS_ERR_NULL;
        meta[i] = (ts_meta){ .shape = in[i]->layout->shape, .dtype = in[i]->dtype };
    }
    tsi_grad_io io = { .op = op,
                       .rank = in[0]->rank,
                       .in = in,
                       .out = &out,
                       .in_meta = meta,
                       .out_grad = &dy,
                       .in_grad = d,
                       .needs = (UINT64_C(1) << count) - 1,
                       .in_sum = no_sum,
                       .included = &included,
                       .input_count = count,
                       .output_count = 1 };
    return op->grad(&io);
}

ts_status tsi_mlp_gate_grad(int32_t activation, ts_tensor *const gate_up[2], ts_tensor *dy,
                            ts_tensor *d[2])
{
    const tsi_mlp_activation *a = &tsi_mlp_activations[activation];
    if (is_swiglu(a)) return grad_of(&tsi_op_swiglu, gate_up, 2, NULL, dy, d);
    ts_tensor *x = scaled(gate_up[0], a->scale), *by = ts_mul(dy, gate_up[1]);
    if (!a->op) {
        d[0] = by;
        d[1] = ts_mul(dy, gate_up[0]);
        return TS_OK;
    }
    ts_tensor *y = tsi_op_make(a->op, &x, 1, NULL);
    TSI_TRY(grad_of(a->op, &x, 1, y, by, &d[0])); /* the scale and its inverse cancel */
    d[1] = ts_mul(dy, scaled(y, 1.0 / a->scale));
    return TS_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* [S, 2F] as gate and up, [S, F] each. */
static void halves(ts_tensor *both, ts_tensor *gate_up[2])
{
    ts_shape s = ts_tensor_shape(both);
    int32_t last = s.ndim - 1;
    int64_t width = s.extent[last] / 2;
    s.extent[last] = 2;
    s.extent[last + 1] = width;
    s.ndim++;
    ts_tensor *apart = ts_reshape(both, s);
    gate_up[0] = ts_select(apart, last, 0);
    gate_up[1] = ts_select(apart, last, 1);
}

/* A term of a sum over ranks, as this rank's value. */
static ts_tensor *mine(ts_tensor *term)
{
    if (!term || tsi_tensor_ready(term) != TS_OK) return NULL;
    const ts_layout *layout = tsi_tensor_layout_of(term->mesh, NULL, term->layout->shape);
    if (!layout) return NULL;
    ts_tensor *t = tsi_tensor_make(term->mesh, layout, (ts_dtype)term->dtype,
                                   tsi_array_retain(term->array), NULL);
    ts_layout_release(layout);
    return t;
}

static ts_tensor *multiply(const tsi_mlp_rows *r, ts_tensor *x, ts_tensor *matrices)
{
    ts_tensor *y = ts_grouped_linear(x, matrices, r->expert);
    return r->terms ? mine(y) : y;
}

static ts_tensor *weighted(const tsi_mlp_rows *r, ts_tensor *h)
{
    return ts_mul(h, ts_unsqueeze(r->weight, ts_tensor_shape(r->weight).ndim));
}

ts_tensor *tsi_mlp_product(const tsi_mlp_rows *r)
{
    ts_tensor *gate_up[2];
    halves(multiply(r, r->x, r->in), gate_up);
    ts_tensor *h = tsi_mlp_gate(r->activation, gate_up[0], gate_up[1]);
    return multiply(r, weighted(r, h), r->out);
}

ts_status tsi_mlp_back_begin(tsi_mlp_back *b)
{
    const tsi_mlp_rows *r = b->rows;
    halves(multiply(r, r->x, r->in), b->gate_up);
    b->gated = tsi_mlp_gate(r->activation, b->gate_up[0], b->gate_up[1]);
    return ts_rank_status(tsi_rank_current());
}

ts_status tsi_mlp_back_rows(tsi_mlp_back *b, ts_tensor *d[TSI_MLP_GRADS])
{
    const tsi_mlp_rows *r = b->rows;
    int64_t last = -1;
    ts_tensor *halves_d[2] = { NULL, NULL };
    ts_tensor *dh = multiply(r, b->dy, ts_transpose(r->out, 1, 2));
    d[TSI_MLP_DWEIGHT] = ts_sum(ts_mul(dh, b->gated), &last, 1, 0);
    if (!b->gated || !dh) return ts_rank_status(tsi_rank_current());
    dh = weighted(r, dh);
    TSI_TRY(tsi_mlp_gate_grad(r->activation, b->gate_up, dh, halves_d));
    b->gate_up_d = ts_cat(halves_d, 2, (int32_t)last);
    d[TSI_MLP_DX] = multiply(r, b->gate_up_d, ts_transpose(r->in, 1, 2));
    return ts_rank_status(tsi_rank_current());
}

ts_status tsi_mlp_back_experts(tsi_mlp_back *b, ts_tensor *d[TSI_MLP_GRADS])
{
    const tsi_mlp_rows *r = b->rows;
    d[TSI_MLP_DOUT] = tsi_grouped_sums(b->dy, weighted(r, b->gated), r->expert, r->out);
    d[TSI_MLP_DIN] = tsi_grouped_sums(b->gate_up_d, r->x, r->expert, r->in);
    return ts_rank_status(tsi_rank_current());
}
