/* SPDX-License-Identifier: Apache-2.0 */
/* attention.c - scaled dot-product attention with grouped heads, and its gradient.
 *
 *   q [B, H, T, D]   k [B, G, S, D]   v [B, G, S, E]   ->   out [B, H, T, E], lse [B, H, T]
 *
 * Head h uses group h / (H / G); nobody copies groups. Causal: query i sees keys up to i + S - T.
 * Batch and heads may be sharded; queries, too, since a rank knows which positions and heads it
 * holds; and the columns of v. The gradient needs only lse besides inputs and output, so no S x T
 * matrix is ever kept. */
#include <math.h>
#include <string.h>

#include "op/core/common.h"
#include "op/nn/attention.h"
#include "tensor/scope.h"

typedef tsi_attention_attributes attention_attributes;
static const tsi_attribute attention_table[] = {
    TSI_ATTR(attention_attributes, scale, REAL, "scale", "0"),
    TSI_ATTR(attention_attributes, causal, BOOL, "causal", "false"),
    { 0 }
};

/* ---- shapes ---------------------------------------------------------------------------------- */

static ts_status attention_check(const tsi_op_call *call)
{
    const ts_shape *q = &call->in[0].shape, *k = &call->in[1].shape, *v = &call->in[2].shape;
    bool fits = q->ndim == 4 && k->ndim == 4 && v->ndim == 4 && q->extent[0] == k->extent[0] &&
                k->extent[0] == v->extent[0] && k->extent[1] == v->extent[1] &&
                k->extent[2] == v->extent[2] && q->extent[3] == k->extent[3] && k->extent[1] > 0 &&
                q->extent[1] % k->extent[1] == 0;
    char a[96], b[96], c[96];
    if (!fits)
        return TSI_FAIL(TS_ERR_SHAPE,
                        "%s: q %s, k %s and v %s do not fit: [B, H, T, D], [B, G, S, D], "
                        "[B, G, S, E] with H a multiple of G",
                        call->op->name, tsi_shape_text(q, a, sizeof a),
                        tsi_shape_text(k, b, sizeof b), tsi_shape_text(v, c, sizeof c));
    if (tsi_dtype_category((ts_dtype)call->in[0].dtype) != TSI_CATEGORY_REAL)
        return TSI_FAIL(TS_ERR_DTYPE, "%s: is not defined for %s", call->op->name,
                        ts_dtype_name((ts_dtype)call->in[0].dtype));
    return TS_OK;
}

static ts_status attention_infer(const tsi_op_call *call)
{
    TSI_TRY(attention_check(call));
    call->out[0] = call->in[0];
    call->out[0].shape.extent[3] = call->in[2].shape.extent[3];
    call->out[1] =
        (ts_meta){ .shape = call->in[0].shape,
                   .dtype = call->in[0].dtype == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32 };
    call->out[1].shape.ndim = 3;
    call->out[1].shape.extent[3] = 0;
    return TS_OK;
}

/* ---- rules ----------------------------------------------------------------------------------- */

static tsi_role *rule(tsi_rules *rules, uint8_t flags, const tsi_role *row)
{
    tsi_role *to = tsi_rules_add_with(rules, 0, flags);
    if (to) memcpy(to, row, (size_t)(rules->input_count + rules->output_count));
    return to;
}

static void attention_rules(const tsi_op_call *call, tsi_rules *rules)
{
    (void)call;
    const tsi_role r = TSI_ROLE_R, sum = TSI_P(TS_REDUCE_SUM), avg = TSI_P(TS_REDUCE_AVG);
    rule(rules, 0, (tsi_role[]){ TSI_S(0), TSI_S(0), TSI_S(0), TSI_S(0), TSI_S(0) });
    rule(rules, TSI_RULE_EVEN | TSI_RULE_PLAIN,
         (tsi_role[]){ TSI_S(1), TSI_S(1), TSI_S(1), TSI_S(1), TSI_S(1) });
    rule(rules, 0, (tsi_role[]){ TSI_S(1), r, r, TSI_S(1), TSI_S(1) });
    rule(rules, 0, (tsi_role[]){ TSI_S(2), r, r, TSI_S(2), TSI_S(2) });
    rule(rules, 0, (tsi_role[]){ r, r, TSI_S(3), TSI_S(3), r });
    rule(rules, 0, (tsi_role[]){ r, r, sum, sum, r });
    rule(rules, 0, (tsi_role[]){ r, r, avg, avg, r });
}

/* ---- one query row --------------------------------------------------------------------------- */

/* What a rank holds of q and k, as loops need it. */
typedef struct attention_view {
    const tsi_kernel_io *io;
    double scale;
    int64_t group; /* heads per group, globally */
    int64_t reach; /* causal: keys seen by query 0, less one */
    bool causal;
} attention_view;

static attention_view view_of(const tsi_kernel_io *io)
{
    const attention_attributes *a = io->attributes;
    const ts_shape *q = &io->in[0].global->shape, *k = &io->in[1].global->shape;
    attention_view view = { .io = io, .scale = a->scale, .causal = a->causal };
    if (view.scale == 0.0) view.scale = 1.0 / sqrt((double)q->extent[3]);
    view.group = q->extent[1] / k->extent[1];
    view.reach = k->extent[2] - q->extent[2];
    return view;
}

static int64_t global_index(const tsi_operand *operand, int32_t dim, int64_t local)
{
    return operand->region ? tsi_span_list_at(&operand->region->dim[dim], local) : local;
}

/* The local group of k that a local head of q uses, or -1: it is not here, which the rules rule
 * out. */
static int64_t group_of(const attention_view *view, int64_t head)
{
    int64_t group = global_index(&view->io->in[0], 1, head) / view->group;
    const tsi_operand *k = &view->io->in[1];
    return k->region ? tsi_span_list_find(&k->region->dim[1], group) : group;
}

/* How many keys a local query sees. */
static int64_t keys_seen(const attention_view *view, int64_t query)
{
    int64_t all = view->io->in[1].block.extent[2];
    if (!view->causal) return all;
    int64_t seen = global_index(&view->io->in[0], 2, query) + view->reach + 1;
    return seen < 0 ? 0 : seen < all ? seen : all;
}

static double at4(const tsi_block *x, int64_t b, int64_t h, int64_t t, int64_t d)
{
    return tsi_load_real(
        (ts_dtype)x->dtype,
        tsi_block_at(x, b * x->stride[0] + h * x->stride[1] + t * x->stride[2] + d * x->stride[3]));
}

static void put4(const tsi_block *x, int64_t b, int64_t h, int64_t t, int64_t d, double value)
{
    tsi_store_real(
        (ts_dtype)x->dtype,
        tsi_block_at(x, b * x->stride[0] + h * x->stride[1] + t * x->stride[2] + d * x->stride[3]),
        value);
}

static void add4(const tsi_block *x, int64_t b, int64_t h, int64_t t, int64_t d, double value)
{
    put4(x, b, h, t, d, at4(x, b, h, t, d) + value);
}

static double score(const attention_view *view, int64_t b, int64_t h, int64_t g, int64_t i,
                    int64_t j)
{
    const tsi_block *q = &view->io->in[0].block, *k = &view->io->in[1].block;
    double sum = 0;
    for (int64_t d = 0; d < q->extent[3]; d++)
        sum += at4(q, b, h, i, d) * at4(k, b, g, j, d);
    return sum * view->scale;
}

/* ---- forward --------------------------------------------------------------------------------- */

static void attend(const attention_view *view, int64_t b, int64_t h, int64_t i)
{
    const tsi_block *v = &view->io->in[2].block, *out = &view->io->out[0].block,
                    *lse = &view->io->out[1].block;
    int64_t g = group_of(view, h), seen = keys_seen(view, i);
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < seen; j++)
        top = fmax(top, score(view, b, h, g, i, j));
    for (int64_t e = 0; e < out->extent[3]; e++)
        put4(out, b, h, i, e, 0.0);
    for (int64_t j = 0; j < seen; j++)
        sum += exp(score(view, b, h, g, i, j) - top);
    for (int64_t j = 0; j < seen; j++) {
        double weight = exp(score(view, b, h, g, i, j) - top) / sum;
        for (int64_t e = 0; e < out->extent[3]; e++)
            add4(out, b, h, i, e, weight * at4(v, b, g, j, e));
    }
    tsi_store_real((ts_dtype)lse->dtype,
                   tsi_block_at(lse, b * lse->stride[0] + h * lse->stride[1] + i * lse->stride[2]),
                   seen > 0 ? top + log(sum) : -(double)INFINITY);
}

static ts_status attention_reference(const tsi_kernel_io *io)
{
    attention_view view = view_of(io);
    const tsi_block *q = &io->in[0].block;
    for (int64_t b = 0; b < q->extent[0]; b++)
        for (int64_t h = 0; h < q->extent[1]; h++)
            for (int64_t i = 0; i < q->extent[2]; i++)
                attend(&view, b, h, i);
    return TS_OK;
}

/* ---- backward: inputs q, k, v, out, lse, d_out -> dq, dk, dv --------------------------------- */

static bool has_shape(const ts_shape *shape, int32_t ndim, const int64_t *extent)
{
    bool same = shape->ndim == ndim;
    for (int32_t d = 0; same && d < ndim; d++)
        same = shape->extent[d] == extent[d];
    return same;
}

static ts_status backward_infer(const tsi_op_call *call)
{
    TSI_TRY(attention_check(call));
    const int64_t *q = call->in[0].shape.extent;
    const int64_t rows[4] = { q[0], q[1], q[2], call->in[2].shape.extent[3] };
    for (int32_t i = 3; i < 6; i++) {
        char text[96];
        if (!has_shape(&call->in[i].shape, i == 4 ? 3 : 4, rows))
            return TSI_FAIL(TS_ERR_SHAPE,
                            "attention_backward: input %d of shape %s is not of a result "
                            "[%lld, %lld, %lld, %lld]",
                            (int)i, tsi_shape_text(&call->in[i].shape, text, sizeof text),
                            (long long)rows[0], (long long)rows[1], (long long)rows[2],
                            (long long)rows[3]);
        if (tsi_dtype_category((ts_dtype)call->in[i].dtype) != TSI_CATEGORY_REAL)
            return TSI_FAIL(TS_ERR_DTYPE, "attention_backward: input %d is %s, not reals", (int)i,
                            ts_dtype_name((ts_dtype)call->in[i].dtype));
    }
    for (int32_t o = 0; o < 3; o++)
        call->out[o] = call->in[o];
    return TS_OK;
}

static void backward_rules(const tsi_op_call *call, tsi_rules *rules)
{
    (void)call;
    const tsi_role r = TSI_ROLE_R, sum = TSI_P(TS_REDUCE_SUM);
    rule(rules, 0,
         (tsi_role[]){ TSI_S(0), TSI_S(0), TSI_S(0), TSI_S(0), TSI_S(0), TSI_S(0), TSI_S(0),
                       TSI_S(0), TSI_S(0) });
    rule(rules, TSI_RULE_EVEN | TSI_RULE_PLAIN,
         (tsi_role[]){ TSI_S(1), TSI_S(1), TSI_S(1), TSI_S(1), TSI_S(1), TSI_S(1), TSI_S(1),
                       TSI_S(1), TSI_S(1) });
    for (int32_t d = 1; d <= 2; d++)
        rule(rules, 0,
             (tsi_role[]){ TSI_S(d), r, r, TSI_S(d), TSI_S(d), TSI_S(d), TSI_S(d), sum, sum });
}

static void attend_back(const attention_view *view, int64_t b, int64_t h, int64_t i)
{
    const tsi_kernel_io *io = view->io;
    const tsi_block *q = &io->in[0].block, *k = &io->in[1].block, *v = &io->in[2].block,
                    *out = &io->in[3].block, *lse = &io->in[4].block, *d_out = &io->in[5].block;
    const tsi_block *dq = &io->out[0].block, *dk = &io->out[1].block, *dv = &io->out[2].block;
    int64_t g = group_of(view, h), seen = keys_seen(view, i), depth = q->extent[3],
            width = v->extent[3];
    double base = tsi_load_real(
        (ts_dtype)lse->dtype,
        tsi_block_at(lse, b * lse->stride[0] + h * lse->stride[1] + i * lse->stride[2]));
    double delta = 0;
    for (int64_t e = 0; e < width; e++)
        delta += at4(out, b, h, i, e) * at4(d_out, b, h, i, e);
    for (int64_t j = 0; j < seen; j++) {
        double p = exp(score(view, b, h, g, i, j) - base), dp = 0;
        for (int64_t e = 0; e < width; e++) {
            double grad = at4(d_out, b, h, i, e);
            dp += grad * at4(v, b, g, j, e);
            add4(dv, b, g, j, e, p * grad);
        }
        double ds = p * (dp - delta) * view->scale;
        for (int64_t d = 0; d < depth; d++) {
            add4(dq, b, h, i, d, ds * at4(k, b, g, j, d));
            add4(dk, b, g, j, d, ds * at4(q, b, h, i, d));
        }
    }
}

static ts_status backward_reference(const tsi_kernel_io *io)
{
    attention_view view = view_of(io);
    unsigned char zero[16] = { 0 };
    for (int32_t o = 0; o < 3; o++)
        TSI_TRY(io->device->fill(io->device, &io->out[o].block, zero, NULL));
    const tsi_block *q = &io->in[0].block;
    for (int64_t b = 0; b < q->extent[0]; b++)
        for (int64_t h = 0; h < q->extent[1]; h++)
            for (int64_t i = 0; i < q->extent[2]; i++)
                attend_back(&view, b, h, i);
    return TS_OK;
}

static ts_status attention_grad(const tsi_grad_io *io)
{
    ts_tensor *in[] = { io->in[0], io->in[1], io->in[2], io->out[0], io->out[1], io->out_grad[0] };
    ts_tensor *out[TSI_OUTPUT_MAX] = { NULL };
    tsi_op_args args = { &tsi_op_attention_backward, in, 6, 0, io->attributes };
    TSI_TRY(tsi_op_run(&args, out));
    for (int32_t i = 0; i < 3; i++)
        if (io->needs >> i & 1) io->in_grad[i] = out[i];
    return TS_OK;
}

/* ---- samples --------------------------------------------------------------------------------- */

static bool sample_attention(uint64_t *random, int32_t variant, ts_meta *in, int32_t *count,
                             void *attributes)
{
    (void)random;
    attention_attributes *a = attributes;
    *a = (attention_attributes){ .scale = variant == 1 ? 0.3 : 0.0, .causal = variant != 1 };
    int64_t groups = variant == 2 ? 2 : 4;
    *count = 3;
    in[0] = (ts_meta){ .shape = { .ndim = 4, .extent = { 2, 4, 5, 3 } }, .dtype = TS_DTYPE_F64 };
    in[1] =
        (ts_meta){ .shape = { .ndim = 4, .extent = { 2, groups, 5, 3 } }, .dtype = TS_DTYPE_F64 };
    in[2] =
        (ts_meta){ .shape = { .ndim = 4, .extent = { 2, groups, 5, 2 } }, .dtype = TS_DTYPE_F64 };
    return variant < 3;
}

static bool sample_attention_backward(uint64_t *random, int32_t variant, ts_meta *in,
                                      int32_t *count, void *attributes)
{
    bool more = sample_attention(random, variant, in, count, attributes);
    in[3] = in[5] = in[0];
    in[3].shape.extent[3] = in[5].shape.extent[3] = in[2].shape.extent[3];
    in[4] = in[0];
    in[4].shape.ndim = 3;
    in[4].shape.extent[3] = 0;
    *count = 6;
    return more;
}

/* Two products of all queries with all keys, not halved where half of them are not seen; the
 * gradient has four. */
static double attention_flops(const tsi_op_call *call)
{
    const int64_t *q = call->in[0].shape.extent, *v = call->in[2].shape.extent;
    double pairs = (double)q[0] * (double)q[1] * (double)q[2] * (double)v[2];
    double forward = 2.0 * pairs * (double)(q[3] + v[3]);
    return call->op == &tsi_op_attention ? forward : 2.0 * forward;
}

const tsi_op_desc tsi_op_attention = {
    .name = "attention",
    .what = "softmax(scale q k^T) v with grouped heads, causal or not; and log-sum-exp",
    .input_min = 3,
    .input_max = 3,
    .output_count = 2,
    .saves = 7 | (uint64_t)3 << TSI_SAVE_OUT,
    .attribute = attention_table,
    .attribute_bytes = sizeof(attention_attributes),
    .infer = attention_infer,
    .flops = attention_flops,
    .rules = attention_rules,
    .reference = attention_reference,
    .grad = attention_grad,
    .sample = sample_attention,
};
const tsi_op_desc tsi_op_attention_backward = {
    .name = "attention_backward",
    .what = "gradients of attention from its output and log-sum-exp",
    .input_min = 6,
    .input_max = 6,
    .output_count = 3,
    .flags = TSI_OP_NO_GRAD,
    .attribute = attention_table,
    .attribute_bytes = sizeof(attention_attributes),
    .infer = backward_infer,
    .flops = attention_flops,
    .rules = backward_rules,
    .reference = backward_reference,
    .sample = sample_attention_backward,
};

/* ---- makers ---------------------------------------------------------------------------------- */

static attention_attributes attributes_of(const ts_attention_options *options)
{
    attention_attributes a = { 0 };
    if (options) {
        a.scale = options->scale;
        a.causal = options->causal != 0;
    }
    return a;
}

ts_status(ts_attention_lse)(ts_tensor *q, ts_tensor *k, ts_tensor *v,
                            const ts_attention_options *options, ts_tensor *out[2])
{
    ts_tensor *in[] = { q, k, v }, *made[TSI_OUTPUT_MAX] = { NULL };
    attention_attributes a = attributes_of(options);
    tsi_op_args args = { &tsi_op_attention, in, 3, 0, &a };
    ts_status status = tsi_op_run(&args, made);
    out[0] = made[0];
    out[1] = made[1];
    return status;
}

ts_tensor *(ts_attention)(ts_tensor *q, ts_tensor *k, ts_tensor *v,
                          const ts_attention_options *options)
{
    ts_tensor *out[2];
    if ((ts_attention_lse)(q, k, v, options, out) != TS_OK) return NULL;
    ts_tensor_drop(out[1]); /* a tape that wants it has it */
    return out[0];
}

ts_status(ts_attention_backward)(const ts_attention_saved *s, const ts_attention_options *options,
                                 ts_tensor *d_qkv[3])
{
    ts_tensor *in[] = { s->q, s->k, s->v, s->o, s->lse, s->d_o }, *made[TSI_OUTPUT_MAX] = { NULL };
    attention_attributes a = attributes_of(options);
    tsi_op_args args = { &tsi_op_attention_backward, in, 6, 0, &a };
    ts_status status = tsi_op_run(&args, made);
    for (int32_t i = 0; i < 3; i++)
        d_qkv[i] = made[i];
    return status;
}
