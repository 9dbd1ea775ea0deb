/* SPDX-License-Identifier: Apache-2.0 */
/* attention.c - scaled dot-product attention with grouped heads and any mask, and its gradient.
 *
 *   q [B, H, T, D]   k [B, G, S, D]   v [B, G, S, E]   ->   out [B, H, T, E], lse [B, H, T]
 *
 * Head h uses group h / (H / G); nobody copies groups. Who sees whom is a mask (tessera/mask.h), by
 * its name; causal is the mask of that name. Batch and heads may be sharded; queries, too, since a
 * rank knows which positions and heads it holds; and the columns of v. The gradient needs only lse
 * besides inputs and output, so no S x T matrix is ever kept.
 *
 * INV: after normalisation a mask is said once: "causal" alone by the attribute of that name; and
 * the scale is the number that scores are multiplied by. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rank.h"
#include "mask/mask.h"
#include "op/core/common.h"
#include "op/nn/attention.h"
#include "op/nn/attention_bias.h"
#include "op/nn/attention_context.h"
#include "tensor/scope.h"

typedef tsi_attention_attributes attention_attributes;
/* As ts_attention_algorithm, and as in attention_context.h. */
static const char *const algorithm_names[] = {
    "auto", "gather", "ring", "heads", "two-level", NULL
};
static const tsi_attribute attention_table[] = {
    TSI_ATTR(attention_attributes, scale, REAL, "scale", "null"),
    TSI_ATTR(attention_attributes, causal, BOOL, "causal", "false"),
    TSI_ATTR(attention_attributes, mask, TEXT, "mask", "\"\""),
    TSI_ATTR(attention_attributes, dropout, REAL, "dropout", "0"),
    TSI_ATTR(attention_attributes, seed, INT, "seed", "0"),
    TSI_ATTR_ONE_OF(attention_attributes, algorithm, "algorithm", "\"auto\"", algorithm_names),
    { 0 }
};

/* ---- attributes ------------------------------------------------------------------------------ */

static ts_status attention_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                     void *attributes)
{
    (void)count;
    attention_attributes *a = attributes;
    if (isnan(a->scale) && in[0].shape.ndim == 4)
        a->scale = 1.0 / sqrt((double)in[0].shape.extent[3]);
    if (!(a->dropout >= 0.0 && a->dropout < 1.0))
        return TSI_FAIL(TS_ERR_ARG, "%s: dropout = %g is not a probability below 1", op->name,
                        a->dropout);
    if (a->dropout == 0.0) a->seed = 0;
    if (strcmp(a->mask, "causal") == 0) a->causal = 1;
    if (strcmp(a->mask, "causal") == 0 || strcmp(a->mask, "full") == 0)
        memset(a->mask, 0, sizeof a->mask);
    if (a->causal && a->mask[0])
        return TSI_FAIL(TS_ERR_ARG,
                        "%s: causal and the mask \"%s\" are both given; say \"causal & (..)\"",
                        op->name, a->mask);
    return TS_OK;
}

const char *tsi_attention_mask(const tsi_attention_attributes *a)
{
    return a->mask[0] ? a->mask : a->causal ? "causal" : "full";
}

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
    const attention_attributes *said = call->attributes;
    if (!said->mask[0]) return TS_OK;
    return tsi_mask_check_text(said->mask, call->op->name, q->extent[0], q->extent[2],
                               k->extent[2]);
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

static tsi_role *rule_by(tsi_rules *rules, uint8_t algorithm, uint8_t flags, const tsi_role *row)
{
    tsi_role *to = tsi_rules_add_with(rules, algorithm, flags);
    memcpy(to, row, (size_t)(rules->input_count + rules->output_count));
    return to;
}

static tsi_role *rule(tsi_rules *rules, uint8_t flags, const tsi_role *row)
{
    return rule_by(rules, 0, flags, row);
}

/* Where every head has keys of its own, any cut of heads will do. */
static uint8_t head_flags(const tsi_op_call *call)
{
    bool own = call->in[0].shape.extent[1] == call->in[1].shape.extent[1];
    return own ? 0 : TSI_RULE_EVEN | TSI_RULE_PLAIN;
}

static void attention_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const tsi_role r = TSI_ROLE_R, sum = TSI_P(TS_REDUCE_SUM), avg = TSI_P(TS_REDUCE_AVG);
    rule(rules, 0, (tsi_role[]){ TSI_S(0), TSI_S(0), TSI_S(0), TSI_S(0), TSI_S(0) });
    rule(rules, head_flags(call), (tsi_role[]){ TSI_S(1), TSI_S(1), TSI_S(1), TSI_S(1), TSI_S(1) });
    rule(rules, 0, (tsi_role[]){ TSI_S(1), r, r, TSI_S(1), TSI_S(1) });
    rule(rules, 0, (tsi_role[]){ TSI_S(2), r, r, TSI_S(2), TSI_S(2) });
    rule_by(rules, 1, 0, (tsi_role[]){ TSI_S(2), TSI_S(2), TSI_S(2), TSI_S(2), TSI_S(2) });
    rule(rules, 0, (tsi_role[]){ r, r, TSI_S(3), TSI_S(3), r });
    rule(rules, 0, (tsi_role[]){ r, r, sum, sum, r });
    rule(rules, 0, (tsi_role[]){ r, r, avg, avg, r });
}

/* ---- backward: inputs q, k, v, out, lse, d_out -> dq, dk, dv --------------------------------- */

static bool has_shape(const ts_shape *shape, int32_t ndim, const int64_t *extent)
{
    return shape->ndim == ndim && tsi_extents_same(shape->extent, extent, ndim);
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
    const tsi_role r = TSI_ROLE_R, sum = TSI_P(TS_REDUCE_SUM);
    rule(rules, 0,
         (tsi_role[]){ TSI_S(0), TSI_S(0), TSI_S(0), TSI_S(0), TSI_S(0), TSI_S(0), TSI_S(0),
                       TSI_S(0), TSI_S(0) });
    rule(rules, head_flags(call),
         (tsi_role[]){ TSI_S(1), TSI_S(1), TSI_S(1), TSI_S(1), TSI_S(1), TSI_S(1), TSI_S(1),
                       TSI_S(1), TSI_S(1) });
    rule_by(rules, 1, 0,
            (tsi_role[]){ TSI_S(2), TSI_S(2), TSI_S(2), TSI_S(2), TSI_S(2), TSI_S(2), TSI_S(2),
                          TSI_S(2), TSI_S(2) });
    for (int32_t d = 1; d <= 2; d++)
        rule(rules, 0,
             (tsi_role[]){ TSI_S(d), r, r, TSI_S(d), TSI_S(d), TSI_S(d), TSI_S(d), sum, sum });
}

/* The gradient of a score is P (d_out v - sum over E of d_out out + d_lse), whichever kernel and
 * algorithm computes it. So a column more, in which v is 0, out -1 and d_out is d_lse, brings in
 * that of the log-sum-exp. */
static ts_status widen(ts_tensor *in[6], ts_tensor *d_lse)
{
    static const int64_t one[] = { 0, 1 };
    ts_dtype dtype = (ts_dtype)in[3]->dtype;
    ts_tensor *column = ts_cast(ts_unsqueeze(d_lse, 3), dtype);
    ts_tensor *const both[] = { in[5] ? in[5] : ts_zeros_like(in[3]), column };
    in[2] = ts_pad(in[2], one, 2, 0.0);
    in[3] = ts_pad(in[3], one, 2, -1.0);
    in[5] = ts_cat(both, 2, 3);
    return ts_rank_status(d_lse->rank);
}

static ts_status backward_run(ts_tensor *in[6], ts_tensor *d_lse, const void *attributes,
                              ts_tensor *out[TSI_OUTPUT_MAX])
{
    ts_slice_options columns = TS_INIT(ts_slice_options);
    columns.end = ts_tensor_shape(in[2]).extent[3];
    columns.end_is_given = 1;
    if (d_lse)
        TSI_TRY(widen(in, d_lse));
    else if (!in[5])
        in[5] = ts_zeros_like(in[3]);
    tsi_op_args args = { &tsi_op_attention_backward, in, 6, 0, attributes };
    TSI_TRY(tsi_op_run(&args, out));
    if (d_lse) out[2] = ts_slice(out[2], 3, &columns);
    return out[2] ? TS_OK : ts_rank_status(in[0]->rank);
}

static ts_status attention_grad(const tsi_grad_io *io)
{
    ts_tensor *in[] = { io->in[0], io->in[1], io->in[2], io->out[0], io->out[1], io->out_grad[0] };
    ts_tensor *out[TSI_OUTPUT_MAX] = { NULL };
    TSI_TRY(backward_run(in, io->out_grad[1], io->attributes, out));
    for (int32_t i = 0; i < 3; i++)
        if (io->needs >> i & 1) io->in_grad[i] = out[i];
    return TS_OK;
}

/* ---- samples --------------------------------------------------------------------------------- */

static bool sample_attention(tsi_sample *s)
{
    attention_attributes *a = s->attributes;
    static const char *const masks[] = { "",
                                         "",
                                         "",
                                         "window(1, 2)",
                                         "causal & documents(2, 3)",
                                         "prefix(1) | window(0, 1) + softcap(2) + alibi" };
    *a = (attention_attributes){ .scale = s->variant == 1   ? 0.3
                                          : s->variant == 5 ? 0.0
                                                            : (double)NAN,
                                 .causal = s->variant == 0 || s->variant == 2 };
    memcpy(a->mask, masks[s->variant % 6], strlen(masks[s->variant % 6]) + 1);
    if (s->variant == 4) a->dropout = 0.25;
    int64_t groups = s->variant == 2 ? 2 : 4;
    s->count = 3;
    s->in[0] = tsi_meta_f64(TS_SHAPE(2, 4, 5, 3));
    s->in[1] = tsi_meta_f64(TS_SHAPE(2, groups, 5, 3));
    s->in[2] = tsi_meta_f64(TS_SHAPE(2, groups, 5, 2));
    return s->variant < 6;
}

static bool sample_attention_backward(tsi_sample *s)
{
    bool more = sample_attention(s);
    s->in[3] = s->in[5] = s->in[0];
    s->in[3].shape.extent[3] = s->in[5].shape.extent[3] = s->in[2].shape.extent[3];
    s->in[4] = s->in[0];
    s->in[4].shape.ndim = 3;
    s->in[4].shape.extent[3] = 0;
    s->count = 6;
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
    .what = "softmax(scale q k^T) v with grouped heads under any mask; and log-sum-exp",
    TSI_OPERANDS(3, 3, 2),
    .saves = 7 | (uint64_t)3 << TSI_SAVE_OUT,
    .lies_like = { 1 },
    TSI_ATTRIBUTES(attention_table, attention_attributes),
    .normalise = attention_normalise,
    .infer = attention_infer,
    .flops = attention_flops,
    .flags = TSI_OP_ONE_ROUND,
    .algorithm = tsi_attention_contexts,
    .pick = tsi_attention_pick,
    .kernels = tsi_attention_kernels,
    .family = &tsi_attention_tools,
    .rules = attention_rules,
    .reference = tsi_attention_reference,
    .grad = attention_grad,
    .sample = sample_attention,
};
const tsi_op_desc tsi_op_attention_backward = {
    .name = "attention_backward",
    .what = "gradients of attention from its output and log-sum-exp",
    TSI_OPERANDS(6, 6, 3),
    .flags = TSI_OP_NO_GRAD | TSI_OP_ONE_ROUND,
    .algorithm = tsi_attention_contexts,
    .pick = tsi_attention_pick,
    .kernels = tsi_attention_kernels,
    .family = &tsi_attention_tools,
    .lies_like = { 1, 2, 3 },
    .beside = 2, /* heads of one block, as linear_triple wants the gradients of its results */
    TSI_ATTRIBUTES(attention_table, attention_attributes),
    .normalise = attention_normalise,
    .infer = backward_infer,
    .flops = attention_flops,
    .rules = backward_rules,
    .reference = tsi_attention_backward_reference,
    .sample = sample_attention_backward,
};

/* ---- makers ---------------------------------------------------------------------------------- */

/* What the scope says where the call does not. */
static void scope_of(ts_tensor *q, attention_attributes *a)
{
    tsi_tensor_state *state = q ? tsi_slot_get(q->rank, TSI_SLOT_TENSOR) : NULL;
    if (!state) return;
    const tsi_frame *frame = tsi_frame_top(state);
    if (a->algorithm == TS_ATTENTION_AUTO) a->algorithm = frame->attention;
    a->forbid = frame->attention_forbid;
}

/* A mask that the options give beside `causal` is joined with it. */
static ts_status options_of(const ts_attention_options *options, attention_attributes *a)
{
    if (!options) return TS_OK;
    if ((options->scale != 0.0 || options->exact) && !isnan(options->scale))
        a->scale = options->scale;
    a->causal = options->causal != 0;
    if (options->struct_size <= offsetof(ts_attention_options, mask)) return TS_OK;
    a->dropout = options->dropout;
    a->seed = (int64_t)options->seed;
    a->algorithm = options->algorithm;
    const ts_mask *mask = options->mask;
    if (mask && a->causal) {
        mask = ts_mask_and(ts_mask_get(mask->world, "causal"), mask);
        if (!mask) return TS_ERR_ARG;
        a->causal = 0;
    }
    if (mask) memcpy(a->mask, mask->name, sizeof a->mask);
    return TS_OK;
}

static ts_status attributes_of(ts_tensor *q, const ts_attention_options *options,
                               attention_attributes *a)
{
    memset(a, 0, sizeof *a); /* the bytes are a key */
    a->scale = (double)NAN;
    TSI_TRY(options_of(options, a));
    scope_of(q, a);
    if (a->algorithm >= 0 && a->algorithm <= TS_ATTENTION_TWO_LEVEL) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG, "attention: %d is no algorithm", (int)a->algorithm);
}

/* Packed rows [tokens, H, D]: one row of the batch, heads before tokens; a view. */
static ts_tensor *unpack(ts_tensor *x)
{
    return ts_transpose(ts_unsqueeze(x, 0), 1, 2);
}

static ts_tensor *pack(ts_tensor *x)
{
    return ts_squeeze(ts_transpose(x, 1, 2), (const int64_t[]){ 0 }, 1);
}

/* A packed log-sum-exp [tokens, H], to and fro. */
static ts_tensor *unpack_lse(ts_tensor *x)
{
    return ts_unsqueeze(ts_transpose(x, 0, 1), 0);
}

static ts_tensor *pack_lse(ts_tensor *x)
{
    return ts_transpose(ts_squeeze(x, (const int64_t[]){ 0 }, 1), 0, 1);
}

static ts_tensor *bias_of(const ts_attention_options *options)
{
    bool has = options && options->struct_size > offsetof(ts_attention_options, bias);
    return has ? options->bias : NULL;
}

ts_status(ts_attention_lse)(ts_tensor *q, ts_tensor *k, ts_tensor *v,
                            const ts_attention_options *options, ts_tensor *out[2])
{
    attention_attributes a;
    out[0] = out[1] = NULL;
    TSI_TRY(attributes_of(q, options, &a));
    bool packed = q && k && v && ts_tensor_shape(q).ndim == 3;
    ts_tensor *in[] = { packed ? unpack(q) : q, packed ? unpack(k) : k, packed ? unpack(v) : v };
    ts_tensor *made[TSI_OUTPUT_MAX] = { NULL };
    tsi_op_args args = { &tsi_op_attention, in, 3, 0, &a };
    ts_tensor *bias = bias_of(options);
    ts_status status =
        bias ? tsi_attention_biased((ts_tensor *const[]){ in[0], in[1], in[2], bias }, &a, made)
             : tsi_op_run(&args, made);
    out[0] = packed && status == TS_OK ? pack(made[0]) : made[0];
    out[1] = packed && status == TS_OK ? pack_lse(made[1]) : made[1];
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
    attention_attributes a;
    d_qkv[0] = d_qkv[1] = d_qkv[2] = NULL;
    TSI_TRY(attributes_of(s->q, options, &a));
    if (bias_of(options))
        return TSI_FAIL(TS_ERR_ARG, "attention_backward: gradients of attention with a bias come "
                                    "from a tape (ts_backward), which has its scores");
    for (int32_t i = 0; i < 5; i++)
        if (!in[i]) return TSI_FAIL(TS_ERR_NULL, "attention_backward: input %d is NULL", (int)i);
    bool has = s->struct_size > offsetof(ts_attention_saved, d_lse);
    bool packed = ts_tensor_shape(s->q).ndim == 3;
    ts_tensor *d_lse = has ? s->d_lse : NULL;
    for (int32_t i = 0; i < 6 && packed; i++)
        if (in[i]) in[i] = i == 4 ? unpack_lse(in[i]) : unpack(in[i]);
    if (packed && d_lse) d_lse = unpack_lse(d_lse);
    TSI_TRY(ts_rank_status(s->q->rank));
    ts_status status = backward_run(in, d_lse, &a, made);
    for (int32_t i = 0; i < 3 && status == TS_OK; i++)
        d_qkv[i] = packed ? pack(made[i]) : made[i];
    return status == TS_OK ? ts_rank_status(s->q->rank) : status;
}
