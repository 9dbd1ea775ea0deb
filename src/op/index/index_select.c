/* SPDX-License-Identifier: Apache-2.0 */
/* index_select.c - rows of a dim by index, sums of rows into a dim, and elements by flat index.
 *
 * A dim that is indexed may be cut: the rank that holds a row reads it (others give zeros, and the
 * result is pending a sum) or writes it (others do nothing). */
#include <string.h>

#include "op/index/index.h"

static const tsi_attribute rows_table[] = {
    TSI_ATTR(tsi_index_select_attributes, dim, INT, "dim", "0"), { 0 }
};
static const tsi_attribute backward_table[] = {
    TSI_ATTR(tsi_index_select_attributes, dim, INT, "dim", "0"),
    TSI_ATTR(tsi_index_select_attributes, extent, INT, "extent", NULL),
    { 0 }
};

/* ---- shapes ---------------------------------------------------------------------------------- */

static ts_status rows_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                void *attributes)
{
    (void)count;
    return tsi_normalise_dim(op->name, &((tsi_index_select_attributes *)attributes)->dim,
                             in[0].shape.ndim);
}

static ts_status check_index(const tsi_op_call *call, int32_t input)
{
    TSI_TRY(tsi_index_dtype(call->op->name, &call->in[input]));
    if (call->in[0].shape.ndim == 0)
        return TSI_FAIL(TS_ERR_SHAPE, "%s: a tensor without dims has no rows", call->op->name);
    if (call->in[input].shape.ndim != 1)
        return TSI_FAIL(TS_ERR_SHAPE, "%s: the index has %d dims, not 1", call->op->name,
                        call->in[input].shape.ndim);
    return TS_OK;
}

static ts_status select_infer(const tsi_op_call *call)
{
    const tsi_index_select_attributes *a = call->attributes;
    TSI_TRY(check_index(call, 1));
    call->out[0] = call->in[0];
    call->out[0].shape.extent[a->dim] = call->in[1].shape.extent[0];
    return TS_OK;
}

static ts_status backward_infer(const tsi_op_call *call)
{
    const tsi_index_select_attributes *a = call->attributes;
    TSI_TRY(check_index(call, 1));
    if (a->extent < 0 || call->in[0].shape.extent[a->dim] != call->in[1].shape.extent[0])
        return TSI_FAIL(TS_ERR_SHAPE, "%s: %lld rows for %lld indices (extent %lld)",
                        call->op->name, (long long)call->in[0].shape.extent[a->dim],
                        (long long)call->in[1].shape.extent[0], (long long)a->extent);
    if (call->in[0].dtype == TS_DTYPE_BOOL)
        return TSI_FAIL(TS_ERR_DTYPE, "%s: rows of equal index are added, which bool cannot be",
                        call->op->name);
    call->out[0] = call->in[0];
    call->out[0].shape.extent[a->dim] = a->extent;
    return TS_OK;
}

static ts_status add_infer(const tsi_op_call *call)
{
    const tsi_index_select_attributes *a = call->attributes;
    const ts_shape *x = &call->in[0].shape, *src = &call->in[2].shape;
    char one[96], other[96];
    TSI_TRY(check_index(call, 1));
    bool fits = x->ndim == src->ndim;
    for (int32_t d = 0; fits && d < x->ndim; d++)
        fits = src->extent[d] == (d == a->dim ? call->in[1].shape.extent[0] : x->extent[d]);
    if (!fits)
        return TSI_FAIL(TS_ERR_SHAPE,
                        "index_add: a source of %s for %lld indices does not go into dim %lld of "
                        "%s",
                        tsi_shape_text(src, other, sizeof other),
                        (long long)call->in[1].shape.extent[0], (long long)a->dim,
                        tsi_shape_text(x, one, sizeof one));
    if (call->in[0].dtype != call->in[2].dtype || call->in[0].dtype == TS_DTYPE_BOOL)
        return TSI_FAIL(TS_ERR_DTYPE, "index_add: %s cannot be added into %s",
                        ts_dtype_name((ts_dtype)call->in[2].dtype),
                        ts_dtype_name((ts_dtype)call->in[0].dtype));
    call->out[0] = call->in[0];
    return TS_OK;
}

/* ---- rules ----------------------------------------------------------------------------------- */

static void select_rules(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t dim = (int32_t)((const tsi_index_select_attributes *)call->attributes)->dim;
    tsi_index_rule(rules, (tsi_role[]){ TSI_ROLE_R, TSI_S(0), TSI_S(dim) });
    for (int32_t d = 0; d < call->in[0].shape.ndim; d++)
        tsi_index_rule(rules, (tsi_role[]){ TSI_S(d), TSI_ROLE_R,
                                            d == dim ? tsi_index_joined(&call->in[0]) : TSI_S(d) });
    tsi_index_pass(rules, 0);
}

static void backward_rules(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t dim = (int32_t)((const tsi_index_select_attributes *)call->attributes)->dim;
    tsi_role sum = TSI_P(TS_REDUCE_SUM), avg = TSI_P(TS_REDUCE_AVG);
    for (int32_t d = 0; d < call->in[0].shape.ndim; d++)
        if (d != dim) tsi_index_rule(rules, (tsi_role[]){ TSI_S(d), TSI_ROLE_R, TSI_S(d) });
    tsi_index_rule(rules, (tsi_role[]){ TSI_S(dim), TSI_S(0), sum });
    tsi_index_rule(rules, (tsi_role[]){ sum, TSI_ROLE_R, sum });
    tsi_index_rule(rules, (tsi_role[]){ avg, TSI_ROLE_R, avg });
}

static void add_rules(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t dim = (int32_t)((const tsi_index_select_attributes *)call->attributes)->dim;
    tsi_role r = TSI_ROLE_R, sum = TSI_P(TS_REDUCE_SUM), avg = TSI_P(TS_REDUCE_AVG),
             least = TSI_P(TS_REDUCE_MIN), most = TSI_P(TS_REDUCE_MAX);
    for (int32_t d = 0; d < call->in[0].shape.ndim; d++)
        tsi_index_rule(rules, (tsi_role[]){ TSI_S(d), r, d == dim ? r : TSI_S(d), TSI_S(d) });
    tsi_index_rule(rules, (tsi_role[]){ sum, r, sum, sum });
    tsi_index_rule(rules, (tsi_role[]){ sum, TSI_S(0), TSI_S(dim), sum });
    tsi_index_rule(rules, (tsi_role[]){ avg, r, avg, avg });
    tsi_index_rule(rules, (tsi_role[]){ avg, r, r, avg });
    tsi_index_rule(rules, (tsi_role[]){ r, r, avg, avg });
    tsi_index_rule(rules, (tsi_role[]){ least, r, r, least });
    tsi_index_rule(rules, (tsi_role[]){ most, r, r, most });
}

/* ---- kernels --------------------------------------------------------------------------------- */

static int64_t index_at(const tsi_block *index, int64_t position)
{
    return tsi_block_int(index, position * index->stride[0]);
}

static ts_status select_reference(const tsi_kernel_io *io)
{
    int32_t dim = (int32_t)((const tsi_index_select_attributes *)io->attributes)->dim;
    const tsi_block *x = &io->in[0].block, *index = &io->in[1].block, *out = &io->out[0].block;
    TSI_TRY(tsi_index_check(io, 1, io->in[0].global->shape.extent[dim], false));
    if (tsi_block_count(out) == 0) return TS_OK;
    for (int64_t p = 0; p < index->extent[0]; p++) {
        int64_t row = tsi_operand_local(&io->in[0], dim, index_at(index, p));
        tsi_block to = tsi_block_slab(out, dim, p);
        if (row < 0) {
            TSI_TRY(tsi_block_zero(io, &to));
            continue;
        }
        tsi_block from = tsi_block_slab(x, dim, row);
        TSI_TRY(io->device->copy(io->device, &to, &from, NULL));
    }
    return TS_OK;
}

/* out[index[p]] += source[p] for the rows that are here. */
static ts_status add_rows(const tsi_kernel_io *io, const tsi_block *source)
{
    int32_t dim = (int32_t)((const tsi_index_select_attributes *)io->attributes)->dim;
    const tsi_block *index = &io->in[1].block, *out = &io->out[0].block;
    if (tsi_block_count(out) == 0 || tsi_block_count(source) == 0) return TS_OK;
    for (int64_t p = 0; p < index->extent[0]; p++) {
        int64_t row = tsi_operand_local(&io->out[0], dim, index_at(index, p));
        if (row < 0) continue;
        tsi_block to = tsi_block_slab(out, dim, row), from = tsi_block_slab(source, dim, p);
        const tsi_block *terms[] = { &to, &from };
        TSI_TRY(io->device->fold(io->device, &to, terms, 2, TS_REDUCE_SUM, 0, NULL));
    }
    return TS_OK;
}

static ts_status backward_reference(const tsi_kernel_io *io)
{
    TSI_TRY(tsi_index_check(io, 1, ((const tsi_index_select_attributes *)io->attributes)->extent,
                            false));
    TSI_TRY(tsi_block_zero(io, &io->out[0].block));
    return add_rows(io, &io->in[0].block);
}

static ts_status add_reference(const tsi_kernel_io *io)
{
    int64_t dim = ((const tsi_index_select_attributes *)io->attributes)->dim;
    TSI_TRY(tsi_index_check(io, 1, io->in[0].global->shape.extent[dim], false));
    if (!io->in_place && tsi_block_count(&io->out[0].block) > 0)
        TSI_TRY(io->device->copy(io->device, &io->out[0].block, &io->in[0].block, NULL));
    return add_rows(io, &io->in[2].block);
}

/* ---- gradients ------------------------------------------------------------------------------- */

static ts_tensor *rows_of(ts_tensor *x, ts_tensor *index, int64_t dim)
{
    ts_tensor *in[] = { x, index };
    return tsi_op_make(&tsi_op_index_select, in, 2, &(tsi_index_select_attributes){ .dim = dim });
}

static ts_status select_grad(const tsi_grad_io *io)
{
    tsi_index_select_attributes a = *(const tsi_index_select_attributes *)io->attributes;
    a.extent = io->in_meta[0].shape.extent[a.dim];
    ts_tensor *in[] = { io->out_grad[0], io->in[1] };
    if (io->needs & 1) io->in_grad[0] = tsi_op_make(&tsi_op_index_select_backward, in, 2, &a);
    return ts_rank_status(io->rank);
}

static ts_status backward_grad(const tsi_grad_io *io)
{
    int64_t dim = ((const tsi_index_select_attributes *)io->attributes)->dim;
    if (io->needs & 1) io->in_grad[0] = rows_of(io->out_grad[0], io->in[1], dim);
    return ts_rank_status(io->rank);
}

static ts_status add_grad(const tsi_grad_io *io)
{
    int64_t dim = ((const tsi_index_select_attributes *)io->attributes)->dim;
    if (io->needs & 1) io->in_grad[0] = io->out_grad[0];
    if (io->needs >> 2 & 1) io->in_grad[2] = rows_of(io->out_grad[0], io->in[1], dim);
    return ts_rank_status(io->rank);
}

/* ---- samples: indices of the sweeps are 0 to 4 ----------------------------------------------- */

static bool sample_select(tsi_sample *s)
{
    if (s->variant >= 2) return false;
    s->count = 2;
    s->in[0] = tsi_meta_f64(TS_SHAPE(7, 5));
    s->in[1] = (ts_meta){ .shape = { .ndim = 1, .extent = { 6 } }, .dtype = TS_DTYPE_I64 };
    ((tsi_index_select_attributes *)s->attributes)->dim = -s->variant;
    return true;
}

static bool sample_backward(tsi_sample *s)
{
    if (!sample_select(s)) return false;
    ((tsi_index_select_attributes *)s->attributes)->extent = s->in[0].shape.extent[s->variant];
    s->in[0].shape.extent[s->variant] = 6;
    return true;
}

static bool sample_add(tsi_sample *s)
{
    if (!sample_select(s)) return false;
    s->count = 3;
    s->in[2] = s->in[0];
    s->in[2].shape.extent[s->variant] = 6;
    return true;
}

#define ROWS                                                                                       \
    .output_count = 1, .attribute_bytes = sizeof(tsi_index_select_attributes),                     \
    .normalise = rows_normalise, .saves = 2

const tsi_op_desc tsi_op_index_select = {
    .name = "index_select",
    .what = "indices of a dim by a list",
    .input_min = 2,
    .input_max = 2,
    ROWS,
    .attribute = rows_table,
    TSI_INDEXED(select),
};
const tsi_op_desc tsi_op_index_select_backward = {
    .name = "index_select_backward",
    .what = "the gradient of index_select: rows of equal index summed",
    .input_min = 2,
    .input_max = 2,
    ROWS,
    .attribute = backward_table,
    TSI_INDEXED(backward),
};
const tsi_op_desc tsi_op_index_add = {
    .name = "index_add",
    .what = "rows of a source added to the indices of a dim that a list names",
    .input_min = 3,
    .input_max = 3,
    ROWS,
    .flags = TSI_OP_IN_PLACE | TSI_OP_WRAPS,
    .attribute = rows_table,
    TSI_INDEXED(add),
};

/* ---- makers ---------------------------------------------------------------------------------- */

ts_tensor *(ts_index_select)(ts_tensor *x, int32_t dim, ts_tensor *index)
{
    return rows_of(x, index, dim);
}

static ts_tensor *add(ts_tensor *x, int32_t dim, ts_tensor *index, ts_tensor *source,
                      int32_t in_place)
{
    ts_tensor *in[] = { x, index, source }, *out[TSI_OUTPUT_MAX];
    tsi_index_select_attributes a = { .dim = dim };
    tsi_op_args args = { &tsi_op_index_add, in, 3, in_place, &a };
    return tsi_op_run(&args, out) == TS_OK ? out[0] : NULL;
}

ts_tensor *(ts_index_add)(ts_tensor *x, int32_t dim, ts_tensor *index, ts_tensor *source)
{
    return add(x, dim, index, source, 0);
}

ts_tensor *(ts_index_add_)(ts_tensor *x, int32_t dim, ts_tensor *index, ts_tensor *source)
{
    return add(x, dim, index, source, 1);
}
