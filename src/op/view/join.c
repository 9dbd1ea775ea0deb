/* SPDX-License-Identifier: Apache-2.0 */
/* join.c - cat and stack: several tensors as one.
 *
 * Other dims may stay cut, alike on all inputs. A cut dim along which tensors are joined is done by
 * an exchange (remap.h): the result has plain chunks again. Replicas may stand beside averages,
 * minima and maxima as they are. */
#include <string.h>

#include "base/intmath.h"
#include "op/view/attributes.h"
#include "op/view/remap.h"

enum { MIXED_MAX = 4 }; /* up to so many inputs, every mix of roles has its rule */

static const tsi_attribute join_table[] = { TSI_ATTR(tsi_join_attributes, dim, INT, "dim", "0"),
                                            { 0 } };

/* ---- shapes ---------------------------------------------------------------------------------- */

/* The shapes are alike, but for dim `but`; dtypes promote. */
static ts_status join_check(const tsi_op_call *call, int64_t but, ts_dtype *dtype)
{
    const ts_shape *first = &call->in[0].shape;
    char one[96], other[96];
    *dtype = (ts_dtype)call->in[0].dtype;
    for (int32_t i = 1; i < call->input_count; i++) {
        const ts_shape *shape = &call->in[i].shape;
        bool same = shape->ndim == first->ndim;
        for (int32_t d = 0; same && d < first->ndim; d++)
            same = d == but || shape->extent[d] == first->extent[d];
        if (!same)
            return TSI_FAIL(TS_ERR_SHAPE, "%s: input %d is %s, which does not go with %s",
                            call->op->name, i, tsi_shape_text(shape, other, sizeof other),
                            tsi_shape_text(first, one, sizeof one));
        *dtype = tsi_dtype_promote(*dtype, (ts_dtype)call->in[i].dtype);
    }
    for (int32_t i = 0; i < call->input_count; i++)
        if (call->in[i].dtype != (int32_t)*dtype)
            return TSI_FAIL(TS_ERR_DTYPE, "%s: input %d is %s, the others %s; cast it first",
                            call->op->name, i, ts_dtype_name((ts_dtype)call->in[i].dtype),
                            ts_dtype_name(*dtype));
    return TS_OK;
}

static ts_status cat_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                               void *attributes)
{
    (void)count;
    tsi_join_attributes *a = attributes;
    if (in[0].shape.ndim == 0)
        return TSI_FAIL(TS_ERR_SHAPE, "cat: tensors without dims cannot be joined; use stack");
    return tsi_normalise_dim(op->name, &a->dim, in[0].shape.ndim);
}

static ts_status cat_infer(const tsi_op_call *call)
{
    int64_t dim = ((const tsi_join_attributes *)call->attributes)->dim, sum = 0;
    ts_dtype dtype;
    TSI_TRY(join_check(call, dim, &dtype));
    for (int32_t i = 0; i < call->input_count; i++)
        if (!tsi_add_i64(sum, call->in[i].shape.extent[dim], &sum))
            return TSI_FAIL(TS_ERR_SHAPE, "cat: dim %lld would be too long", (long long)dim);
    call->out[0] = (ts_meta){ .shape = call->in[0].shape, .dtype = (int32_t)dtype };
    call->out[0].shape.extent[dim] = sum;
    return TS_OK;
}

/* A scalar becomes a vector, so dims count one more than the inputs have. */
static ts_status stack_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                 void *attributes)
{
    (void)count;
    if (in[0].shape.ndim >= TS_NDIM_MAX)
        return TSI_FAIL(TS_ERR_SHAPE, "stack: the tensors have %d dims already", in[0].shape.ndim);
    return tsi_normalise_dim(op->name, &((tsi_join_attributes *)attributes)->dim,
                             in[0].shape.ndim + 1);
}

static ts_status stack_infer(const tsi_op_call *call)
{
    int64_t dim = ((const tsi_join_attributes *)call->attributes)->dim;
    const ts_shape *in = &call->in[0].shape;
    ts_dtype dtype;
    TSI_TRY(join_check(call, -1, &dtype));
    call->out[0] = (ts_meta){ .shape = { .ndim = in->ndim + 1 }, .dtype = (int32_t)dtype };
    for (int32_t d = 0; d <= in->ndim; d++)
        call->out[0].shape.extent[d] = d < dim    ? in->extent[d]
                                       : d == dim ? call->input_count
                                                  : in->extent[d - 1];
    return TS_OK;
}

/* ---- rules ----------------------------------------------------------------------------------- */

static void add_alike(tsi_rules *rules, tsi_role in, tsi_role out)
{
    tsi_role *row = tsi_rules_add(rules);
    for (int32_t i = 0; i < rules->input_count; i++)
        row[i] = in;
    row[rules->input_count] = out;
}

/* Every proper, non-empty choice of inputs has the role, the others are replicated. */
static void add_mixed(tsi_rules *rules, tsi_role role, uint8_t algorithm, uint8_t flags)
{
    int32_t n = rules->input_count;
    if (n > MIXED_MAX) return;
    for (uint32_t chosen = 1; chosen + 1 < 1u << n; chosen++) {
        tsi_role *row = tsi_rules_add_with(rules, algorithm, flags);
        for (int32_t i = 0; i < n; i++)
            if (chosen >> i & 1) row[i] = role;
        row[n] = role;
    }
}

static void add_mixed_partials(tsi_rules *rules)
{
    static const ts_reduce idempotent[] = { TS_REDUCE_AVG, TS_REDUCE_MIN, TS_REDUCE_MAX,
                                            TS_REDUCE_AND, TS_REDUCE_OR };
    for (int k = 0; k < 5; k++)
        add_mixed(rules, TSI_P(idempotent[k]), 0, 0);
}

static void cat_rules(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t dim = (int32_t)((const tsi_join_attributes *)call->attributes)->dim;
    for (int32_t d = 0; d < call->in[0].shape.ndim; d++)
        if (d != dim) add_alike(rules, TSI_S(d), TSI_S(d));
    tsi_role *row = tsi_rules_add_with(rules, 1, TSI_RULE_PLAIN);
    memset(row, TSI_S(dim), (size_t)call->input_count + 1);
    add_mixed_partials(rules);
    add_mixed(rules, TSI_S(dim), 1, TSI_RULE_PLAIN);
}

static void stack_rules(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t dim = (int32_t)((const tsi_join_attributes *)call->attributes)->dim;
    for (int32_t d = 0; d < call->in[0].shape.ndim; d++)
        add_alike(rules, TSI_S(d), TSI_S(d < dim ? d : d + 1));
    add_mixed_partials(rules);
}

/* ---- kernels --------------------------------------------------------------------------------- */

static void cat_map(const tsi_op_call *call, int32_t input, tsi_remap *map)
{
    int32_t dim = (int32_t)((const tsi_join_attributes *)call->attributes)->dim;
    int64_t begin = 0;
    for (int32_t i = 0; i < input; i++)
        begin += call->in[i].shape.extent[dim];
    tsi_remap_begin(&call->in[input].shape, &call->out[0].shape, map);
    tsi_remap_set(map, dim,
                  (tsi_remap_piece){ .out = begin, .count = call->in[input].shape.extent[dim] });
    map->changed |= 1u << dim; /* also where the others are empty */
}

static const tsi_remap_kind cat_kind = { cat_map, NULL };

tsi_block tsi_stack_place(const tsi_kernel_io *io, int32_t i)
{
    int64_t dim = ((const tsi_join_attributes *)io->attributes)->dim;
    const tsi_block *out = &io->out[0].block;
    tsi_block to = io->in[i].block;
    for (int32_t d = 0; d < to.ndim; d++)
        to.stride[d] = out->stride[d < dim ? d : d + 1];
    to.data = tsi_block_at(out, i * out->stride[dim]);
    return to;
}

static ts_status stack_reference(const tsi_kernel_io *io)
{
    if (tsi_block_count(&io->out[0].block) == 0) return TS_OK;
    for (int32_t i = 0; i < io->input_count; i++) {
        tsi_block to = tsi_stack_place(io, i);
        TSI_TRY(io->device->copy(io->device, &to, &io->in[i].block, io->queue));
    }
    return TS_OK;
}

/* ---- gradients ------------------------------------------------------------------------------- */

static ts_status cat_grad(const tsi_grad_io *io)
{
    int64_t dim = ((const tsi_join_attributes *)io->attributes)->dim, begin = 0;
    for (int32_t i = 0; i < io->input_count; i++) {
        int64_t end = begin + io->in_meta[i].shape.extent[dim];
        if (io->needs >> i & 1)
            io->in_grad[i] = ts_narrow(io->out_grad[0], (int32_t)dim, (ts_interval){ begin, end });
        begin = end;
    }
    return ts_rank_status(io->rank);
}

static ts_status stack_grad(const tsi_grad_io *io)
{
    int64_t dim = ((const tsi_join_attributes *)io->attributes)->dim;
    for (int32_t i = 0; i < io->input_count; i++)
        if (io->needs >> i & 1) io->in_grad[i] = ts_select(io->out_grad[0], (int32_t)dim, i);
    return ts_rank_status(io->rank);
}

static bool sample_cat(tsi_sample *s)
{
    if (s->variant >= 3) return false;
    s->count = s->variant == 2 ? 3 : 2;
    for (int32_t i = 0; i < s->count; i++)
        s->in[i] = tsi_meta_f64(TS_SHAPE(5, 4));
    ((tsi_join_attributes *)s->attributes)->dim = s->variant == 1 ? -1 : 0;
    s->in[1].shape.extent[s->variant == 1] = 2;
    if (s->variant == 2) s->in[2].shape.extent[0] = 0;
    return true;
}

static bool sample_stack(tsi_sample *s)
{
    if (s->variant >= 3) return false;
    s->count = 2 + (s->variant == 1);
    for (int32_t i = 0; i < s->count; i++)
        s->in[i] = tsi_meta_f64(TS_SHAPE(5, 3));
    ((tsi_join_attributes *)s->attributes)->dim = s->variant - 1;
    return true;
}

#define JOIN                                                                                       \
    .input_min = 1, .input_max = TSI_INPUT_MAX, .output_count = 1,                                 \
    .traits = { .flow = TSI_SELECT }, .attribute = join_table,                                     \
    .attribute_bytes = sizeof(tsi_join_attributes)

const tsi_op_desc tsi_op_cat = {
    .name = "cat",
    .what = "tensors one after another along a dim",
    JOIN,
    .flags = TSI_OP_LIST | TSI_OP_ONE_ROUND | TSI_OP_MOVES,
    .family = &cat_kind,
    .normalise = cat_normalise,
    .infer = cat_infer,
    .rules = cat_rules,
    .reference = tsi_remap_reference,
    .algorithm = tsi_remap_exchange,
    .received = tsi_remap_received,
    .grad = cat_grad,
    .sample = sample_cat,
};
const tsi_op_desc tsi_op_stack = {
    .name = "stack",
    .what = "tensors of one shape along a new dim",
    JOIN,
    .flags = TSI_OP_LIST | TSI_OP_MOVES,
    .normalise = stack_normalise,
    .infer = stack_infer,
    .rules = stack_rules,
    .reference = stack_reference,
    .grad = stack_grad,
    .sample = sample_stack,
};

/* ---- makers ---------------------------------------------------------------------------------- */

static ts_tensor *join(const tsi_op_desc *op, ts_tensor *const *x, int32_t count, int32_t dim)
{
    ts_rank *rank = tsi_rank_current();
    for (int32_t i = 0; x && i < count && rank; i++) {
        if (x[i]) continue;
        if (ts_rank_status(rank) == TS_OK) /* else it failed before */
            (void)TSI_FAIL(TS_ERR_NULL, "%s: input %d is NULL", op->name, i);
        return NULL;
    }
    return tsi_op_make(op, x, x ? count : 0, &(tsi_join_attributes){ dim });
}

ts_tensor *(ts_cat)(ts_tensor *const *x, int32_t count, int32_t dim)
{
    return join(&tsi_op_cat, x, count, dim);
}

ts_tensor *(ts_stack)(ts_tensor *const *x, int32_t count, int32_t dim)
{
    return join(&tsi_op_stack, x, count, dim);
}
