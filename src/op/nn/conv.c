/* SPDX-License-Identifier: Apache-2.0 */
/* conv.c - convolution of one, two or three place dims, and its two gradients.
 *
 * x [N, C, places..], weight [O, C / groups, kernel..], bias [O]. The batch, the output channels
 * and (as a partial sum) the input channels may stay sharded; so may place dims, of which each rank
 * fetches what its windows reach beyond its own (halo.h).
 *
 * All three operators visit the same products, y[n,o,p] += x[n,c,q] w[o,c,k] with
 * q = p stride - padding + k dilation; they differ in which of the three is summed into. */
#include <string.h>

#include "base/alloc.h"
#include "op/nn/attributes.h"
#include "op/nn/halo.h"

#define CONV_ATTRIBUTES                                                                            \
    TSI_ATTR(tsi_conv_attributes, stride, DIMS, "stride", "[1]"),                                  \
        TSI_ATTR(tsi_conv_attributes, padding, DIMS, "padding", "[0]"),                            \
        TSI_ATTR(tsi_conv_attributes, dilation, DIMS, "dilation", "[1]"),                          \
        TSI_ATTR(tsi_conv_attributes, groups, INT, "groups", "1")
static const tsi_attribute conv_table[] = { CONV_ATTRIBUTES, { 0 } };
static const tsi_attribute backward_table[] = {
    CONV_ATTRIBUTES, TSI_ATTR(tsi_conv_attributes, shape, DIMS, "shape", NULL), { 0 }
};

/* ---- shapes ---------------------------------------------------------------------------------- */

static ts_status spread(const char *op, const char *name, tsi_dims *dims, int32_t places,
                        int64_t least)
{
    if (dims->count <= 0) *dims = (tsi_dims){ .count = 1, .value = { least } };
    return tsi_dims_spread(op, name, dims, places, least);
}

static ts_status conv_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                void *attributes)
{
    (void)count;
    tsi_conv_attributes *a = attributes;
    int32_t places = in[0].shape.ndim - 2;
    char text[96];
    if (places < 1 || places > 3)
        return TSI_FAIL(TS_ERR_SHAPE, "%s: takes a batch, channels and 1 to 3 place dims, not %s",
                        op->name, tsi_shape_text(&in[0].shape, text, sizeof text));
    TSI_TRY(spread(op->name, "stride", &a->stride, places, 1));
    TSI_TRY(spread(op->name, "padding", &a->padding, places, 0));
    return spread(op->name, "dilation", &a->dilation, places, 1);
}

static int64_t extent_of(const tsi_conv_attributes *a, int32_t i, int64_t x, int64_t kernel)
{
    int64_t room = x + 2 * a->padding.value[i] - a->dilation.value[i] * (kernel - 1) - 1;
    return room < 0 ? 0 : room / a->stride.value[i] + 1;
}

static ts_status conv_infer(const tsi_op_call *call)
{
    const tsi_conv_attributes *a = call->attributes;
    const ts_shape *x = &call->in[0].shape, *w = &call->in[1].shape;
    char one[96], other[96];
    if (w->ndim != x->ndim || a->groups < 1 || a->groups > x->extent[1] ||
        w->extent[1] * a->groups != x->extent[1] || w->extent[0] % a->groups != 0)
        return TSI_FAIL(
            TS_ERR_SHAPE,
            "conv: a weight of shape %s does not fit an input of shape %s in %lld groups",
            tsi_shape_text(w, one, sizeof one), tsi_shape_text(x, other, sizeof other),
            (long long)a->groups);
    bool biased = call->input_count > 2 && call->in[2].dtype != TS_DTYPE_NONE;
    if (biased && (call->in[2].shape.ndim != 1 || call->in[2].shape.extent[0] != w->extent[0]))
        return TSI_FAIL(TS_ERR_SHAPE, "conv: a bias of shape %s does not fit %lld channels",
                        tsi_shape_text(&call->in[2].shape, one, sizeof one),
                        (long long)w->extent[0]);
    ts_dtype dtype = tsi_dtype_promote((ts_dtype)call->in[0].dtype, (ts_dtype)call->in[1].dtype);
    if (tsi_dtype_category(dtype) != TSI_CATEGORY_REAL)
        return TSI_FAIL(TS_ERR_DTYPE, "conv: is defined for reals, not %s", ts_dtype_name(dtype));
    call->out[0] = (ts_meta){ .shape = *x, .dtype = (int32_t)dtype };
    call->out[0].shape.extent[1] = w->extent[0];
    for (int32_t i = 0; i < x->ndim - 2; i++) {
        call->out[0].shape.extent[2 + i] = extent_of(a, i, x->extent[2 + i], w->extent[2 + i]);
        if (call->out[0].shape.extent[2 + i] < 1)
            return TSI_FAIL(TS_ERR_SHAPE, "conv: a kernel of %lld does not fit into dim %d of %s",
                            (long long)w->extent[2 + i], (int)(2 + i),
                            tsi_shape_text(x, other, sizeof other));
    }
    return TS_OK;
}

static void add_row(tsi_rules *rules, const tsi_role *roles, int32_t count)
{
    tsi_role *row = tsi_rules_add(rules);
    memcpy(row, roles, (size_t)count * sizeof *roles);
}

static void conv_window(const tsi_op_call *call, int32_t place, tsi_window *out)
{
    const tsi_conv_attributes *a = call->attributes;
    const ts_shape *weight =
        call->op == &tsi_op_conv_backward_weight ? &call->out[0].shape : &call->in[1].shape;
    *out = (tsi_window){ weight->extent[2 + place], a->stride.value[place], a->padding.value[place],
                         a->dilation.value[place] };
}

/* Places for windows; windows for places; places for the windows of dy. */
static const tsi_halo_kind forward_kind = { 0, -1, false, conv_window },
                           input_kind = { 0, -1, true, conv_window },
                           weight_kind = { 0, 1, false, conv_window };

static void conv_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const tsi_conv_attributes *a = call->attributes;
    bool biased = call->input_count > 2 && call->in[2].dtype != TS_DTYPE_NONE;
    tsi_role none = call->input_count > 2 ? TSI_ROLE_NONE : TSI_ROLE_R;
    tsi_role rest = biased ? TSI_ROLE_R : none;
    int32_t y = call->input_count, count = y + 1;
    tsi_role batch[4] = { TSI_S(0), TSI_ROLE_R, rest, TSI_ROLE_R };
    batch[y] = TSI_S(0);
    add_row(rules, batch, count);
    if (a->groups == 1) {
        tsi_role outer[4] = { TSI_ROLE_R, TSI_S(0), biased ? TSI_S(0) : none, TSI_ROLE_R };
        outer[y] = TSI_S(1);
        add_row(rules, outer, count);
    }
    tsi_role pending = TSI_P(TS_REDUCE_SUM);
    if (a->groups == 1) { /* a bias may only be added once: it must be pending too */
        tsi_role inner[4] = { TSI_S(1), TSI_S(1), biased ? pending : none, TSI_ROLE_R };
        inner[y] = pending;
        add_row(rules, inner, count);
    }
    for (int32_t i = 0; i < 2; i++)
        for (int32_t k = 0; k < 2; k++) {
            tsi_role part = k ? TSI_P(TS_REDUCE_AVG) : pending;
            tsi_role row[4] = { TSI_ROLE_R, TSI_ROLE_R, biased ? part : none, TSI_ROLE_R };
            row[i] = row[y] = part;
            add_row(rules, row, count);
        }
    static const ts_reduce passes[] = { TS_REDUCE_AVG, TS_REDUCE_MAX, TS_REDUCE_MIN };
    for (size_t i = 0; biased && i < 3; i++) { /* a bias alone is only added */
        tsi_role row[4] = { TSI_ROLE_R, TSI_ROLE_R, TSI_P(passes[i]), TSI_P(passes[i]) };
        add_row(rules, row, count);
    }
    tsi_halo_rules(call, rules);
}

/* ---- products -------------------------------------------------------------------------------- */

typedef struct products {
    const tsi_conv_attributes *a;
    const tsi_block *x, *w, *y;
    double *sum;  /* of the target, row-major */
    int32_t into; /* 0 x, 1 w, 2 y */
    int32_t places;
    int64_t x_first[3], y_first[3]; /* global indices of the blocks' first places */
} products;

static void place_blocks(products *p, const tsi_operand *x, const tsi_operand *y)
{
    p->x = &x->block;
    p->y = &y->block;
    for (int32_t i = 0; i < p->x->ndim - 2; i++) {
        p->x_first[i] = tsi_operand_offset(x, 2 + i);
        p->y_first[i] = tsi_operand_offset(y, 2 + i);
    }
}

static int64_t flat_of(const tsi_block *block, const int64_t *index)
{
    int64_t flat = 0;
    for (int32_t d = 0; d < block->ndim; d++)
        flat = flat * block->extent[d] + index[d];
    return flat;
}

static double value_at(const tsi_block *block, const int64_t *index)
{
    int64_t at = 0;
    for (int32_t d = 0; d < block->ndim; d++)
        at += index[d] * block->stride[d];
    return tsi_block_real(block, at);
}

/* One output position with one kernel position, all channels of its group. */
static void visit(const products *p, const int64_t *y, const int64_t *k)
{
    int64_t x[5] = { y[0] }, w[5] = { y[1] };
    int64_t inner = p->w->extent[1], group = y[1] / (p->w->extent[0] / p->a->groups);
    for (int32_t i = 0; i < p->places; i++) {
        x[2 + i] = (p->y_first[i] + y[2 + i]) * p->a->stride.value[i] - p->a->padding.value[i] +
                   k[i] * p->a->dilation.value[i] - p->x_first[i];
        w[2 + i] = k[i];
        if (x[2 + i] < 0 || x[2 + i] >= p->x->extent[2 + i]) return;
    }
    for (int64_t c = 0; c < inner; c++) {
        w[1] = c;
        x[1] = group * inner + c;
        if (p->into == 0)
            p->sum[flat_of(p->x, x)] += value_at(p->w, w) * value_at(p->y, y);
        else if (p->into == 1)
            p->sum[flat_of(p->w, w)] += value_at(p->x, x) * value_at(p->y, y);
        else
            p->sum[flat_of(p->y, y)] += value_at(p->x, x) * value_at(p->w, w);
    }
}

static void store_sums(const products *p, const tsi_block *bias)
{
    const tsi_block *to = p->into == 0 ? p->x : p->into == 1 ? p->w : p->y;
    tsi_loop loop = tsi_loop_over(to);
    int64_t i = 0;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        double add = bias ? tsi_block_real(bias, loop.index[1] * bias->stride[0]) : 0.0;
        tsi_block_set_real(to, loop.at[0], p->sum[i++] + add);
    }
}

static ts_status run_products(products *p, const tsi_block *bias)
{
    const tsi_block *to = p->into == 0 ? p->x : p->into == 1 ? p->w : p->y;
    int64_t count = tsi_block_count(to);
    p->places = p->x->ndim - 2;
    p->sum = tsi_calloc((size_t)count + 1, sizeof *p->sum);
    if (!p->sum) return tsi_fail_memory("the sums of a convolution", (size_t)count * 8);
    tsi_loop outer = tsi_loop_over(p->y), kernel = { .ndim = p->places };
    memcpy(kernel.extent, p->w->extent + 2, (size_t)p->places * sizeof *kernel.extent);
    for (bool more = tsi_loop_begin(&outer); more; more = tsi_loop_next(&outer))
        for (bool next = tsi_loop_begin(&kernel); next; next = tsi_loop_next(&kernel))
            visit(p, outer.index, kernel.index);
    store_sums(p, bias);
    tsi_free(p->sum);
    return TS_OK;
}

static ts_status conv_reference(const tsi_kernel_io *io)
{
    products p = { .a = io->attributes, .w = &io->in[1].block, .into = 2 };
    place_blocks(&p, &io->in[0], &io->out[0]);
    bool biased = io->input_count > 2 && io->in[2].global->dtype != TS_DTYPE_NONE;
    return run_products(&p, biased ? &io->in[2].block : NULL);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* conv_backward_input: dy, weight -> dx; conv_backward_weight: x, dy -> dweight. */
static ts_status backward_infer(const tsi_op_call *call)
{
    const tsi_conv_attributes *a = call->attributes;
    if (tsi_dtype_category((ts_dtype)call->in[0].dtype) != TSI_CATEGORY_REAL ||
        tsi_dtype_category((ts_dtype)call->in[1].dtype) != TSI_CATEGORY_REAL)
        return TSI_FAIL(TS_ERR_DTYPE, "%s: is defined for reals, not %s and %s", call->op->name,
                        ts_dtype_name((ts_dtype)call->in[0].dtype),
                        ts_dtype_name((ts_dtype)call->in[1].dtype));
    if (a->shape.count != call->in[0].shape.ndim || call->in[1].shape.ndim != a->shape.count)
        return TSI_FAIL(TS_ERR_SHAPE, "%s: a result of %d dims does not fit %d and %d dims",
                        call->op->name, (int)a->shape.count, (int)call->in[0].shape.ndim,
                        (int)call->in[1].shape.ndim);
    call->out[0] = (ts_meta){ .shape = { .ndim = a->shape.count }, .dtype = call->in[0].dtype };
    memcpy(call->out[0].shape.extent, a->shape.value, sizeof a->shape.value);
    const ts_shape *out = &call->out[0].shape, *first = &call->in[0].shape,
                   *second = &call->in[1].shape;
    bool input = call->op == &tsi_op_conv_backward_input;
    const ts_shape *x = input ? out : first, *w = input ? second : out, *y = input ? first : second;
    bool fits = a->groups > 0 && a->groups <= x->extent[1] && x->extent[0] == y->extent[0] &&
                w->extent[0] == y->extent[1] && w->extent[1] * a->groups == x->extent[1] &&
                w->extent[0] % a->groups == 0;
    for (int32_t i = 0; fits && i < x->ndim - 2; i++)
        fits = y->extent[2 + i] == extent_of(a, i, x->extent[2 + i], w->extent[2 + i]);
    char one[96], other[96], third[96];
    if (fits) return TS_OK;
    return TSI_FAIL(TS_ERR_SHAPE, "%s: shapes %s, %s and %s are not of one convolution",
                    call->op->name, tsi_shape_text(x, one, sizeof one),
                    tsi_shape_text(w, other, sizeof other), tsi_shape_text(y, third, sizeof third));
}

static void backward_input_rules(const tsi_op_call *call, tsi_rules *rules)
{
    tsi_role sum = TSI_P(TS_REDUCE_SUM);
    add_row(rules, (tsi_role[]){ TSI_S(0), TSI_ROLE_R, TSI_S(0) }, 3);
    if (((const tsi_conv_attributes *)call->attributes)->groups == 1) {
        add_row(rules, (tsi_role[]){ TSI_S(1), TSI_S(0), sum }, 3);
        add_row(rules, (tsi_role[]){ TSI_ROLE_R, TSI_S(1), TSI_S(1) }, 3);
    }
    tsi_traits linear = { .flow = TSI_LINEAR_EACH };
    tsi_rules_partials(rules, &linear);
    tsi_halo_rules(call, rules);
}

static void backward_weight_rules(const tsi_op_call *call, tsi_rules *rules)
{
    tsi_role sum = TSI_P(TS_REDUCE_SUM);
    add_row(rules, (tsi_role[]){ TSI_S(0), TSI_S(0), sum }, 3);
    if (((const tsi_conv_attributes *)call->attributes)->groups == 1) {
        add_row(rules, (tsi_role[]){ TSI_S(1), TSI_ROLE_R, TSI_S(1) }, 3);
        add_row(rules, (tsi_role[]){ TSI_ROLE_R, TSI_S(1), TSI_S(0) }, 3);
    }
    tsi_traits linear = { .flow = TSI_LINEAR_EACH };
    tsi_rules_partials(rules, &linear);
    tsi_halo_rules(call, rules);
}

static ts_status backward_reference(const tsi_kernel_io *io)
{
    const tsi_operand *first = &io->in[0], *second = &io->in[1], *out = &io->out[0];
    bool input = io->op == &tsi_op_conv_backward_input;
    products p = { .a = io->attributes,
                   .w = input ? &second->block : &out->block,
                   .into = input ? 0 : 1 };
    place_blocks(&p, input ? out : first, input ? first : second);
    return run_products(&p, NULL);
}

static ts_tensor *backward(const tsi_op_desc *op, const tsi_grad_io *io, ts_tensor *const *in,
                           const ts_meta *result)
{
    tsi_conv_attributes a = *(const tsi_conv_attributes *)io->attributes;
    a.shape.count = result->shape.ndim;
    memcpy(a.shape.value, result->shape.extent, sizeof a.shape.value);
    return ts_cast(tsi_op_make(op, in, 2, &a), (ts_dtype)result->dtype);
}

/* In the dtype of the result: a product has that of its first input, which may have fewer bits, and
 * weights may be whole numbers. */
static ts_status conv_grad(const tsi_grad_io *io)
{
    ts_tensor *dy = io->out_grad[0];
    ts_dtype dtype = ts_tensor_dtype(dy);
    int64_t others[4] = { 0, 2, 3, 4 };
    if (io->needs & 1)
        io->in_grad[0] =
            backward(&tsi_op_conv_backward_input, io,
                     (ts_tensor *[]){ dy, ts_cast(io->in[1], dtype) }, &io->in_meta[0]);
    if (io->needs & 2)
        io->in_grad[1] =
            backward(&tsi_op_conv_backward_weight, io,
                     (ts_tensor *[]){ ts_cast(io->in[0], dtype), dy }, &io->in_meta[1]);
    if (io->needs & 4)
        io->in_grad[2] = ts_cast(ts_sum(dy, others, io->in_meta[0].shape.ndim - 1, 0),
                                 (ts_dtype)io->in_meta[2].dtype);
    return ts_rank_status(io->rank);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static const tsi_conv_attributes sampled[] = {
    { .stride = { .count = 1, .value = { 1 } },
      .padding = { .count = 1, .value = { 1 } },
      .dilation = { .count = 1, .value = { 1 } },
      .groups = 1 },
    { .stride = { .count = 2, .value = { 2, 1 } },
      .padding = { .count = 1, .value = { 0 } },
      .dilation = { .count = 2, .value = { 1, 2 } },
      .groups = 2 },
    { .stride = { .count = 1, .value = { 2 } },
      .padding = { .count = 1, .value = { 1 } },
      .dilation = { .count = 1, .value = { 1 } },
      .groups = 1 },
};

/* x, weight and y of a variant. */
static void sample_shapes(int32_t variant, ts_meta *x, ts_meta *w, ts_meta *y)
{
    static const ts_shape shape[3][3] = {
        { { .ndim = 3, .extent = { 3, 4, 5 } },
          { .ndim = 3, .extent = { 5, 4, 3 } },
          { .ndim = 3, .extent = { 3, 5, 5 } } },
        { { .ndim = 4, .extent = { 2, 4, 5, 5 } },
          { .ndim = 4, .extent = { 6, 2, 2, 3 } },
          { .ndim = 4, .extent = { 2, 6, 2, 1 } } },
        { { .ndim = 4, .extent = { 2, 3, 4, 5 } },
          { .ndim = 4, .extent = { 3, 3, 3, 3 } },
          { .ndim = 4, .extent = { 2, 3, 2, 3 } } },
    };
    *x = (ts_meta){ .shape = shape[variant % 3][0], .dtype = TS_DTYPE_F64 };
    *w = (ts_meta){ .shape = shape[variant % 3][1], .dtype = TS_DTYPE_F64 };
    *y = (ts_meta){ .shape = shape[variant % 3][2], .dtype = TS_DTYPE_F64 };
}

static void sample_target(tsi_conv_attributes *a, int32_t variant, const ts_meta *result)
{
    *a = sampled[variant % 3];
    if (!result) return;
    a->shape.count = result->shape.ndim;
    memcpy(a->shape.value, result->shape.extent, sizeof a->shape.value);
}

static bool sample_conv(tsi_sample *s)
{
    ts_meta y;
    sample_shapes(s->variant, &s->in[0], &s->in[1], &y);
    sample_target(s->attributes, s->variant, NULL);
    s->in[2] = tsi_meta_f64(TS_SHAPE(s->in[1].shape.extent[0]));
    s->count = s->variant == 2 ? 2 : 3;
    return s->variant < 3;
}

static bool sample_backward_input(tsi_sample *s)
{
    ts_meta x;
    sample_shapes(s->variant, &x, &s->in[1], &s->in[0]);
    sample_target(s->attributes, s->variant, &x);
    s->count = 2;
    return s->variant < 3;
}

static bool sample_backward_weight(tsi_sample *s)
{
    ts_meta w;
    sample_shapes(s->variant, &s->in[0], &w, &s->in[1]);
    sample_target(s->attributes, s->variant, &w);
    s->count = 2;
    return s->variant < 3;
}

/* Every element of the result is a sum over the weights of its channel; the gradients have as many
 * products. */
static double conv_flops(const tsi_op_call *call)
{
    const void *kind = call->op->family;
    const ts_shape *y = kind == &forward_kind ? &call->out[0].shape
                        : kind == &input_kind ? &call->in[0].shape
                                              : &call->in[1].shape;
    const ts_shape *w = kind == &weight_kind ? &call->out[0].shape : &call->in[1].shape;
    double own = (double)ts_shape_count(w) / (double)(w->extent[0] > 0 ? w->extent[0] : 1);
    return 2.0 * own * (double)ts_shape_count(y);
}

const tsi_op_desc tsi_op_conv = {
    .name = "conv",
    .what =
        "convolution over 1 to 3 place dims: x [N, C, ..], weight [O, C / groups, ..], bias [O]",
    .dtypes = TSI_DTYPES_REAL,
    TSI_OPERANDS(2, 3, 1),
    .saves = 3,
    TSI_ATTRIBUTES(conv_table, tsi_conv_attributes),
    .normalise = conv_normalise,
    .infer = conv_infer,
    .flags = TSI_OP_ONE_ROUND,
    .family = &forward_kind,
    .rules = conv_rules,
    .algorithm = tsi_halo_exchange,
    .received = tsi_halo_received,
    .reference = conv_reference,
    .grad = conv_grad,
    .flops = conv_flops,
    .sample = sample_conv,
};

#define BACKWARD                                                                                   \
    .input_min = 2, .input_max = 2, .output_count = 1, .algorithm = tsi_halo_exchange,             \
    .received = tsi_halo_received, .flags = TSI_OP_NO_GRAD | TSI_OP_ONE_ROUND,                     \
    .attribute = backward_table, .attribute_bytes = sizeof(tsi_conv_attributes),                   \
    .normalise = conv_normalise, .infer = backward_infer, .reference = backward_reference,         \
    .flops = conv_flops

const tsi_op_desc tsi_op_conv_backward_input = {
    .name = "conv_backward_input",
    .what = "the gradient of a convolution for its input, of dy and the weight",
    .dtypes = TSI_DTYPES_REAL,
    BACKWARD,
    .family = &input_kind,
    .rules = backward_input_rules,
    .sample = sample_backward_input,
};
const tsi_op_desc tsi_op_conv_backward_weight = {
    .name = "conv_backward_weight",
    .what = "the gradient of a convolution for its weight, of the input and dy",
    .dtypes = TSI_DTYPES_REAL,
    BACKWARD,
    .family = &weight_kind,
    .rules = backward_weight_rules,
    .sample = sample_backward_weight,
};

/* ---- makers ---------------------------------------------------------------------------------- */

static void numbers_of(tsi_dims *to, const int64_t *from, int32_t places, int64_t otherwise)
{
    to->count = 1;
    to->value[0] = otherwise;
    if (!from) return;
    to->count = places;
    for (int32_t i = 0; i < places; i++)
        to->value[i] = from[i];
}

ts_tensor *(ts_conv)(ts_tensor *x, ts_tensor *weight, ts_tensor *bias,
                     const ts_conv_options *options)
{
    ts_tensor *in[] = { x, weight, bias };
    tsi_conv_attributes a = { .groups = options && options->groups ? options->groups : 1 };
    int32_t places = ts_tensor_shape(x).ndim - 2;
    if (places < 1) places = 1;
    numbers_of(&a.stride, options ? options->stride : NULL, places, 1);
    numbers_of(&a.padding, options ? options->padding : NULL, places, 0);
    numbers_of(&a.dilation, options ? options->dilation : NULL, places, 1);
    return tsi_op_make(&tsi_op_conv, in, bias ? 3 : 2, &a);
}

static ts_tensor *conv_of(int32_t places, ts_tensor *x, ts_tensor *weight, ts_tensor *bias,
                          const ts_conv_options *options)
{
    int32_t ndim = ts_tensor_shape(x).ndim;
    if (!x || ndim == places + 2) return (ts_conv)(x, weight, bias, options);
    TSI_FAIL(TS_ERR_SHAPE, "conv%dd: takes %d dims, [N, C, places..], not %d", (int)places,
             (int)places + 2, (int)ndim);
    return NULL;
}

ts_tensor *(ts_conv1d)(ts_tensor *x, ts_tensor *weight, ts_tensor *bias,
                       const ts_conv_options *options)
{
    return conv_of(1, x, weight, bias, options);
}

ts_tensor *(ts_conv2d)(ts_tensor *x, ts_tensor *weight, ts_tensor *bias,
                       const ts_conv_options *options)
{
    return conv_of(2, x, weight, bias, options);
}
