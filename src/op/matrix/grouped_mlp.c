/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_mlp.c - the feed-forward of chosen experts as one operator: a row goes to its experts
 * once, and one row comes back.
 *
 *   y[m] = sum over k of weight[m, k] out[e] (act(in[e, 0] x[m]) * in[e, 1] x[m]),  e = which[m, k]
 *
 * With `skips` a choice of -1 is none and adds nothing.
 *
 * Two grouped_linear would move every row for each of their products, and once for each choice.
 * What runs is an algorithm of operators (grouped_mlp_exchange.c), on any device and any number of
 * ranks.
 *
 * Rows may be cut, the inside of experts (F) as a partial sum, and experts: as a partial sum where
 * all see the rows, else rows move. */
#include "op/matrix/grouped_mlp.h"

#include <string.h>

#include "op/core/common.h"

enum { DY_BACK, X_BACK }; /* operands of the gradient begin with dy */

static const char *const activations[] = { "silu",  "gelu",    "gelu_tanh", "quick_gelu", "relu",
                                           "relu2", "sigmoid", "tanh",      "linear",     NULL };
static const char *const algorithms[] = { "auto", "rows", "nodes", "gather", NULL };
static const tsi_attribute table[] = {
    TSI_ATTR_ONE_OF(tsi_mlp_attributes, activation, "activation", "\"silu\"", activations),
    TSI_ATTR_ONE_OF(tsi_mlp_attributes, algorithm, "algorithm", "\"auto\"", algorithms),
    TSI_ATTR(tsi_mlp_attributes, skips, BOOL, "skips", "false"),
    { 0 },
};

/* ---- shapes ---------------------------------------------------------------------------------- */

static bool same_rows(const ts_shape *a, const ts_shape *b)
{
    return a->ndim == b->ndim && a->ndim > 0 && tsi_extents_same(a->extent, b->extent, a->ndim - 1);
}

static ts_status check_rows(const char *op, const ts_meta *in)
{
    const ts_shape *x = &in[TSI_MLP_X].shape, *which = &in[TSI_MLP_WHICH].shape,
                   *weight = &in[TSI_MLP_WEIGHT].shape;
    char a[96], b[96], c[96];
    bool fits = same_rows(x, which) && same_rows(x, weight) &&
                which->extent[which->ndim - 1] == weight->extent[weight->ndim - 1];
    if (!fits)
        return TSI_FAIL(TS_ERR_SHAPE,
                        "%s: takes rows [.., C] with choices and weights [.., K], not %s with %s "
                        "and %s",
                        op, tsi_shape_text(x, a, sizeof a), tsi_shape_text(which, b, sizeof b),
                        tsi_shape_text(weight, c, sizeof c));
    if (tsi_dtype_category((ts_dtype)in[TSI_MLP_WHICH].dtype) != TSI_CATEGORY_INT)
        return TSI_FAIL(TS_ERR_DTYPE, "%s: choices are integers, not %s", op,
                        ts_dtype_name((ts_dtype)in[TSI_MLP_WHICH].dtype));
    return TS_OK;
}

static ts_status check_experts(const tsi_op_call *call, const ts_meta *meta)
{
    const char *op = call->op->name;
    bool skips = ((const tsi_mlp_attributes *)call->attributes)->skips != 0;
    const ts_shape *x = &meta[TSI_MLP_X].shape, *in = &meta[TSI_MLP_IN].shape,
                   *out = &meta[TSI_MLP_OUT].shape;
    int64_t width = x->extent[x->ndim - 1], choices = meta[TSI_MLP_WHICH].shape.extent[x->ndim - 1];
    char a[96], b[96];
    bool fits = in->ndim == 4 && out->ndim == 3 && in->extent[0] == out->extent[0] &&
                in->extent[1] == 2 && in->extent[2] == out->extent[2] && in->extent[3] == width &&
                out->extent[1] == width;
    if (!fits)
        return TSI_FAIL(TS_ERR_SHAPE,
                        "%s: experts of rows of %lld are [E, 2, F, %lld] and [E, %lld, F], not %s "
                        "and %s",
                        op, (long long)width, (long long)width, (long long)width,
                        tsi_shape_text(in, a, sizeof a), tsi_shape_text(out, b, sizeof b));
    if (choices > in->extent[0] && !skips)
        return TSI_FAIL(TS_ERR_ARG, "%s: %lld choices of %lld experts", op, (long long)choices,
                        (long long)in->extent[0]);
    for (int32_t i = TSI_MLP_WEIGHT; i < TSI_MLP_INPUTS; i++)
        if (meta[i].dtype != meta[TSI_MLP_X].dtype)
            return TSI_FAIL(TS_ERR_DTYPE, "%s: rows are %s, input %d is %s", op,
                            ts_dtype_name((ts_dtype)meta[TSI_MLP_X].dtype), i,
                            ts_dtype_name((ts_dtype)meta[i].dtype));
    return TS_OK;
}

static ts_status mlp_infer(const tsi_op_call *call)
{
    TSI_TRY(check_rows(call->op->name, call->in));
    TSI_TRY(check_experts(call, call->in));
    call->out[0] = call->in[TSI_MLP_X];
    return TS_OK;
}

static ts_status backward_infer(const tsi_op_call *call)
{
    const ts_meta *in = call->in + X_BACK;
    TSI_TRY(check_rows(call->op->name, in));
    TSI_TRY(check_experts(call, in));
    const ts_shape *dy = &call->in[DY_BACK].shape, *x = &in[TSI_MLP_X].shape;
    char a[96], b[96];
    if (!same_rows(dy, x) || dy->extent[dy->ndim - 1] != x->extent[x->ndim - 1] ||
        call->in[DY_BACK].dtype != in[TSI_MLP_X].dtype)
        return TSI_FAIL(
            TS_ERR_SHAPE, "%s: dy, %s of %s, is not like x, %s of %s", call->op->name,
            tsi_shape_text(dy, a, sizeof a), ts_dtype_name((ts_dtype)call->in[DY_BACK].dtype),
            tsi_shape_text(x, b, sizeof b), ts_dtype_name((ts_dtype)in[TSI_MLP_X].dtype));
    call->out[TSI_MLP_DX] = in[TSI_MLP_X];
    call->out[TSI_MLP_DWEIGHT] = in[TSI_MLP_WEIGHT];
    call->out[TSI_MLP_DIN] = in[TSI_MLP_IN];
    call->out[TSI_MLP_DOUT] = in[TSI_MLP_OUT];
    return TS_OK;
}

/* ---- rules ----------------------------------------------------------------------------------- */

static void add_rule(tsi_rules *rules, uint8_t algorithm, const tsi_role *row)
{
    tsi_role *to = tsi_rules_add_with(rules, algorithm, 0);
    memcpy(to, row, (size_t)(rules->input_count + rules->output_count) * sizeof *to);
}

/* Experts are cut as they like, whatever the cut of rows. */
enum {
    APART = 1 << TSI_MLP_IN | 1 << TSI_MLP_OUT,
    APART_BACK = APART << X_BACK | (1 << TSI_MLP_DIN | 1 << TSI_MLP_DOUT)
                                       << (TSI_MLP_INPUTS + X_BACK)
};

static void mlp_rules(const tsi_op_call *call, tsi_rules *rules)
{
    rules->apart = APART;
    const tsi_role r = TSI_ROLE_R, sum = TSI_P(TS_REDUCE_SUM), avg = TSI_P(TS_REDUCE_AVG);
    int32_t last = call->in[TSI_MLP_X].shape.ndim - 1;
    for (int32_t d = 0; d < last; d++) {
        tsi_role s = TSI_S(d);
        add_rule(rules, 0, (tsi_role[]){ s, s, s, r, r, s });
        add_rule(rules, 1, (tsi_role[]){ s, s, s, TSI_S(0), TSI_S(0), s });
    }
    add_rule(rules, 0, (tsi_role[]){ r, r, r, TSI_S(0), TSI_S(0), sum });
    add_rule(rules, 0, (tsi_role[]){ r, r, r, TSI_S(2), TSI_S(2), sum });
    add_rule(rules, 0, (tsi_role[]){ r, r, sum, r, r, sum });
    add_rule(rules, 0, (tsi_role[]){ r, r, avg, r, r, avg });
    add_rule(rules, 0, (tsi_role[]){ r, r, r, r, sum, sum });
    add_rule(rules, 0, (tsi_role[]){ r, r, r, r, avg, avg });
}

static void backward_rules(const tsi_op_call *call, tsi_rules *rules)
{
    rules->apart = APART_BACK;
    const tsi_role r = TSI_ROLE_R, sum = TSI_P(TS_REDUCE_SUM), avg = TSI_P(TS_REDUCE_AVG);
    int32_t last = call->in[X_BACK].shape.ndim - 1;
    for (int32_t d = 0; d < last; d++) {
        tsi_role s = TSI_S(d), e = TSI_S(0);
        add_rule(rules, 0, (tsi_role[]){ s, s, s, s, r, r, s, s, sum, sum });
        add_rule(rules, 1, (tsi_role[]){ s, s, s, s, e, e, s, s, e, e });
    }
    for (int32_t d = 0; d <= 2; d += 2)
        add_rule(rules, 0,
                 (tsi_role[]){ r, r, r, r, TSI_S(d), TSI_S(d), sum, sum, TSI_S(d), TSI_S(d) });
    add_rule(rules, 0, (tsi_role[]){ sum, r, r, r, r, r, sum, sum, sum, sum });
    add_rule(rules, 0, (tsi_role[]){ avg, r, r, r, r, r, avg, avg, avg, avg });
}

/* ---- the gradient ---------------------------------------------------------------------------- */

static ts_status mlp_grad(const tsi_grad_io *io)
{
    static const int32_t whose[TSI_MLP_GRADS] = { TSI_MLP_X, TSI_MLP_WEIGHT, TSI_MLP_IN,
                                                  TSI_MLP_OUT };
    ts_tensor *in[TSI_MLP_INPUTS + 1] = { ts_cast(io->out_grad[0],
                                                  (ts_dtype)io->in_meta[TSI_MLP_X].dtype) };
    ts_tensor *out[TSI_OUTPUT_MAX] = { NULL };
    memcpy(in + X_BACK, io->in, TSI_MLP_INPUTS * sizeof *in);
    tsi_op_args args = { &tsi_op_grouped_mlp_backward, in, TSI_MLP_INPUTS + 1, 0, io->attributes };
    TSI_TRY(tsi_op_run(&args, out));
    for (int32_t o = 0; o < TSI_MLP_GRADS; o++)
        if (io->needs >> whose[o] & 1) io->in_grad[whose[o]] = out[o];
    return TS_OK;
}

/* ---- rows of the table ----------------------------------------------------------------------- */

static bool sample_mlp(tsi_sample *s)
{
    int32_t rows = 1 + s->variant % 2;
    ts_shape shape = { .ndim = rows + 1, .extent = { 5, 4, 3 } };
    int64_t width = shape.extent[rows];
    s->count = TSI_MLP_INPUTS;
    s->in[TSI_MLP_X] = tsi_meta_f64(shape);
    shape.extent[rows] = 2;
    s->in[TSI_MLP_WHICH] = (ts_meta){ .shape = shape, .dtype = TS_DTYPE_I64 };
    s->in[TSI_MLP_WEIGHT] = tsi_meta_f64(shape);
    s->in[TSI_MLP_IN] = tsi_meta_f64(TS_SHAPE(7, 2, 3, width));
    s->in[TSI_MLP_OUT] = tsi_meta_f64(TS_SHAPE(7, width, 3));
    /* silu, quick_gelu, sigmoid */
    ((tsi_mlp_attributes *)s->attributes)->activation = s->variant * 3;
    return s->variant < 3;
}

static bool sample_backward(tsi_sample *s)
{
    bool more = sample_mlp(s);
    memmove(s->in + X_BACK, s->in, TSI_MLP_INPUTS * sizeof *s->in);
    s->in[DY_BACK] = s->in[X_BACK + TSI_MLP_X];
    s->count = TSI_MLP_INPUTS + 1;
    return more;
}

static double mlp_flops(const tsi_op_call *call)
{
    bool back = call->input_count > TSI_MLP_INPUTS;
    const ts_meta *in = call->in + back;
    return (back ? 16.0 : 6.0) * (double)ts_shape_count(&in[TSI_MLP_WHICH].shape) *
           (double)in[TSI_MLP_OUT].shape.extent[1] * (double)in[TSI_MLP_OUT].shape.extent[2];
}

#define MLP                                                                                        \
    .attribute = table, .attribute_bytes = sizeof(tsi_mlp_attributes), .dtypes = TSI_DTYPES_REAL,  \
    .algorithm = tsi_mlp_algorithms, .pick = tsi_mlp_pick, .flops = mlp_flops,                     \
    .reference = tsi_mlp_reference

const tsi_op_desc tsi_op_grouped_mlp = {
    .name = "grouped_mlp",
    .what = "rows through the feed-forwards of their experts, weighted and summed; rows go to the "
            "experts once",
    TSI_OPERANDS(TSI_MLP_INPUTS, TSI_MLP_INPUTS, 1),
    .flags = TSI_OP_COMPOSED,
    .saves = 31,
    MLP,
    .infer = mlp_infer,
    .rules = mlp_rules,
    .grad = mlp_grad,
    .sample = sample_mlp,
};
const tsi_op_desc tsi_op_grouped_mlp_backward = {
    .name = "grouped_mlp_backward",
    .what = "gradients of grouped_mlp for rows, weights and experts, of dy and its inputs",
    TSI_OPERANDS(TSI_MLP_INPUTS + 1, TSI_MLP_INPUTS + 1, TSI_MLP_GRADS),
    .flags = TSI_OP_COMPOSED | TSI_OP_NO_GRAD,
    MLP,
    .infer = backward_infer,
    .rules = backward_rules,
    .sample = sample_backward,
};

/* ---- public ---------------------------------------------------------------------------------- */

/* The place of a word in a list that ends with NULL; -1: it is not there. */
static int32_t place_of(const char *word, const char *const *list)
{
    for (int32_t i = 0; list[i]; i++)
        if (strcmp(word, list[i]) == 0) return i;
    return -1;
}

ts_tensor *(ts_grouped_mlp)(ts_tensor *x, ts_tensor *which, const ts_grouped_mlp_options *options)
{
    if (!x || !which || !options) {
        if (x && ts_rank_status(x->rank) == TS_OK)
            (void)TSI_FAIL(TS_ERR_NULL, "grouped_mlp: an argument is NULL");
        return NULL;
    }
    ts_tensor *in[TSI_MLP_INPUTS] = { x, which, options->weight, options->in, options->out };
    const char *activation = options->activation ? options->activation : activations[0];
    const char *algorithm = options->algorithm ? options->algorithm : algorithms[0];
    tsi_mlp_attributes at = { place_of(activation, activations), place_of(algorithm, algorithms),
                              options->struct_size >= sizeof *options && options->skips != 0 };
    if (at.activation < 0 || at.algorithm < 0) {
        (void)TSI_FAIL(TS_ERR_ARG, "grouped_mlp: \"%s\" is no %s",
                       at.activation < 0 ? activation : algorithm,
                       at.activation < 0 ? "activation" : "algorithm");
        return NULL;
    }
    return tsi_op_make(&tsi_op_grouped_mlp, in, TSI_MLP_INPUTS, &at);
}
