/* SPDX-License-Identifier: Apache-2.0 */
/* slice_select.c - one index of a dim, and diagonals: views with one dim less, where the dims are
 * whole.
 *
 * Where the selected dim is cut nothing moves: the rank that has the index writes it, the others
 * write zeros, and the result is pending a sum (an `or` for bool). */
#include <string.h>

#include "op/index/index.h"

typedef struct select_attributes {
    int64_t dim, index;
} select_attributes;
static const tsi_attribute select_table[] = { TSI_ATTR(select_attributes, dim, INT, "dim", "0"),
                                              TSI_ATTR(select_attributes, index, INT, "index",
                                                       NULL),
                                              { 0 } };

/* ---- select ---------------------------------------------------------------------------------- */

static ts_status select_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                  void *attributes)
{
    (void)count;
    select_attributes *a = attributes;
    if (in[0].shape.ndim == 0)
        return TSI_FAIL(TS_ERR_SHAPE, "select: a tensor without dims has no dim %lld",
                        (long long)a->dim);
    TSI_TRY(tsi_normalise_dim(op->name, &a->dim, in[0].shape.ndim));
    int64_t extent = in[0].shape.extent[a->dim];
    if (a->index < -extent || a->index >= extent)
        return TSI_FAIL(TS_ERR_ARG,
                        "select: index %lld is out of range for dim %lld of extent %lld",
                        (long long)a->index, (long long)a->dim, (long long)extent);
    if (a->index < 0) a->index += extent;
    return TS_OK;
}

static ts_status select_infer(const tsi_op_call *call)
{
    const select_attributes *a = call->attributes;
    call->out[0] = call->in[0];
    call->out[0].shape = tsi_shape_reduce(&call->in[0].shape, 1u << a->dim, false);
    return TS_OK;
}

static void select_rules(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t own = (int32_t)((const select_attributes *)call->attributes)->dim;
    for (int32_t d = 0; d < call->in[0].shape.ndim; d++) {
        tsi_role *row = tsi_rules_add(rules);
        row[0] = TSI_S(d);
        row[1] = d == own ? tsi_index_joined(&call->in[0]) : TSI_S(d < own ? d : d - 1);
    }
}

/* Strides without the dim; the rank must have the index. */
static void select_strides(const select_attributes *a, const tsi_block *in, tsi_block *out)
{
    for (int32_t d = 0; d < out->ndim; d++)
        out->stride[d] = in->stride[d < a->dim ? d : d + 1];
}

static bool select_view(const tsi_op_call *call, const tsi_block *in, tsi_block *out,
                        int64_t *offset)
{
    const select_attributes *a = call->attributes;
    if (in->extent[a->dim] != call->in[0].shape.extent[a->dim]) return false; /* the dim is cut */
    select_strides(a, in, out);
    *offset = tsi_block_count(out) ? a->index * in->stride[a->dim] : 0;
    return true;
}

static ts_status select_reference(const tsi_kernel_io *io)
{
    const select_attributes *a = io->attributes;
    const tsi_block *in = &io->in[0].block, *out = &io->out[0].block;
    const tsi_region *region = io->in[0].region;
    int64_t at = region ? tsi_span_list_find(&region->dim[a->dim], a->index) : a->index;
    unsigned char zero[16] = { 0 };
    if (tsi_block_count(out) == 0) return TS_OK;
    if (at < 0) return io->device->fill(io->device, out, zero, io->queue);
    tsi_block from = *out;
    select_strides(a, in, &from);
    from.data = tsi_block_at(in, at * in->stride[a->dim]);
    return io->device->copy(io->device, out, &from, io->queue);
}

static ts_status select_grad(const tsi_grad_io *io)
{
    const select_attributes *a = io->attributes;
    ts_tensor *dy = ts_unsqueeze(io->out_grad[0], (int32_t)a->dim);
    return tsi_grad_give(io,
                         ts_slice_backward(dy, (int32_t)a->dim, io->in_meta[0].shape.extent[a->dim],
                                           TS_OPTIONS(ts_slice_options, .start = a->index,
                                                      .end = a->index + 1, .end_is_given = 1)));
}

static bool sample_select(tsi_sample *s)
{
    static const select_attributes given[] = { { 0, 4 }, { -1, -2 }, { 1, 0 } };
    return TSI_SAMPLE_GIVEN(s, TS_SHAPE(5, 3, 4), given);
}

const tsi_op_desc tsi_op_select = {
    .name = "select",
    .what = "one index of a dim; the dim goes",
    TSI_OPERANDS(1, 1, 1),
    .flags = TSI_OP_VIEW | TSI_OP_MOVES,
    .traits = { .flow = TSI_SELECT },
    TSI_ATTRIBUTES(select_table, select_attributes),
    .normalise = select_normalise,
    .infer = select_infer,
    .rules = select_rules,
    .reference = select_reference,
    .view = select_view,
    .grad = select_grad,
    .sample = sample_select,
};

/* ---- diagonal: [.., i, .., i + offset, ..] -> [.., .., i] ------------------------------------ */

typedef struct diagonal_attributes {
    int64_t offset, dim1, dim2;
    int64_t rows, columns; /* diagonal_backward: extents of dim1 and dim2 */
} diagonal_attributes;
static const tsi_attribute diagonal_table[] = {
    TSI_ATTR(diagonal_attributes, offset, INT, "offset", "0"),
    TSI_ATTR(diagonal_attributes, dim1, INT, "dim1", "0"),
    TSI_ATTR(diagonal_attributes, dim2, INT, "dim2", "1"),
    { 0 }
};
static const tsi_attribute diagonal_backward_table[] = {
    TSI_ATTR(diagonal_attributes, offset, INT, "offset", "0"),
    TSI_ATTR(diagonal_attributes, dim1, INT, "dim1", "0"),
    TSI_ATTR(diagonal_attributes, dim2, INT, "dim2", "1"),
    TSI_ATTR(diagonal_attributes, rows, INT, "rows", NULL),
    TSI_ATTR(diagonal_attributes, columns, INT, "columns", NULL),
    { 0 }
};

static int64_t diagonal_length(int64_t rows, int64_t columns, int64_t offset)
{
    int64_t a = offset < 0 ? rows + offset : rows, b = offset > 0 ? columns - offset : columns;
    int64_t n = a < b ? a : b;
    return n > 0 ? n : 0;
}

static ts_status diagonal_dims(const char *op, diagonal_attributes *a, int32_t ndim)
{
    if (ndim < 2) return TSI_FAIL(TS_ERR_SHAPE, "%s: needs two dims, has %d", op, ndim);
    TSI_TRY(tsi_normalise_dim(op, &a->dim1, ndim));
    TSI_TRY(tsi_normalise_dim(op, &a->dim2, ndim));
    if (a->dim1 == a->dim2)
        return TSI_FAIL(TS_ERR_ARG, "%s: both dims are %lld", op, (long long)a->dim1);
    return TS_OK;
}

static ts_status diagonal_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                    void *attributes)
{
    (void)op;
    (void)count;
    return diagonal_dims("diagonal", attributes, in[0].shape.ndim);
}

static ts_status diagonal_infer(const tsi_op_call *call)
{
    const diagonal_attributes *a = call->attributes;
    const ts_shape *in = &call->in[0].shape;
    ts_shape *out = &call->out[0].shape;
    call->out[0] = call->in[0];
    *out = tsi_shape_reduce(in, 1u << a->dim1 | 1u << a->dim2, false);
    out->extent[out->ndim++] = diagonal_length(in->extent[a->dim1], in->extent[a->dim2], a->offset);
    return TS_OK;
}

static void diagonal_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const diagonal_attributes *a = call->attributes;
    int32_t kept = 0;
    for (int32_t d = 0; d < call->in[0].shape.ndim; d++) {
        tsi_role *row = tsi_rules_add(rules);
        bool own = d == a->dim1 || d == a->dim2;
        row[0] = TSI_S(d);
        row[1] = own ? tsi_index_joined(&call->in[0]) : TSI_S(kept);
        if (!own) kept++;
    }
}

/* Strides of the square's other dims, one after another; the last one is left alone. */
static void other_strides(const diagonal_attributes *a, const tsi_block *square, int64_t *stride)
{
    int32_t next = 0;
    for (int32_t d = 0; d < square->ndim; d++)
        if (d != a->dim1 && d != a->dim2) stride[next++] = square->stride[d];
}

static bool diagonal_view(const tsi_op_call *call, const tsi_block *in, tsi_block *out,
                          int64_t *offset)
{
    const diagonal_attributes *a = call->attributes;
    const int64_t *global = call->in[0].shape.extent;
    if (in->extent[a->dim1] != global[a->dim1] || in->extent[a->dim2] != global[a->dim2])
        return false;
    int64_t row = in->stride[a->dim1], column = in->stride[a->dim2];
    other_strides(a, in, out->stride);
    out->stride[out->ndim - 1] = row + column;
    *offset = a->offset >= 0 ? a->offset * column : -a->offset * row;
    if (tsi_block_count(out) == 0) *offset = 0;
    return true;
}

/* Copies between line i of the diagonals and its place in the square: into the square or out of it.
 */
static ts_status copy_line(const tsi_kernel_io *io, const tsi_operand *square,
                           const tsi_operand *line, int64_t position, bool inwards)
{
    const diagonal_attributes *a = io->attributes;
    const tsi_block *s = &square->block, *l = &line->block;
    int32_t last = l->ndim - 1;
    int64_t index = tsi_operand_global(line, last, position);
    int64_t row =
        tsi_operand_local(square, (int32_t)a->dim1, index + (a->offset < 0 ? -a->offset : 0));
    int64_t column =
        tsi_operand_local(square, (int32_t)a->dim2, index + (a->offset > 0 ? a->offset : 0));
    tsi_block at_line = *l, at_square = *l;
    at_line.ndim = at_square.ndim = last;
    at_square.dtype = s->dtype;
    at_line.data = tsi_block_at(l, position * l->stride[last]);
    unsigned char zero[16] = { 0 };
    if (row < 0 || column < 0)
        return inwards ? TS_OK : io->device->fill(io->device, &at_line, zero, io->queue);
    other_strides(a, s, at_square.stride);
    at_square.data = tsi_block_at(s, row * s->stride[a->dim1] + column * s->stride[a->dim2]);
    return inwards ? io->device->copy(io->device, &at_square, &at_line, io->queue)
                   : io->device->copy(io->device, &at_line, &at_square, io->queue);
}

static ts_status diagonal_reference(const tsi_kernel_io *io)
{
    bool inwards = io->op == &tsi_op_diagonal_backward;
    const tsi_operand *square = inwards ? &io->out[0] : &io->in[0];
    const tsi_operand *line = inwards ? &io->in[0] : &io->out[0];
    unsigned char zero[16] = { 0 };
    if (inwards && tsi_block_count(&square->block) > 0)
        TSI_TRY(io->device->fill(io->device, &square->block, zero, io->queue));
    if (tsi_block_count(&line->block) == 0) return TS_OK;
    for (int64_t i = 0; i < line->block.extent[line->block.ndim - 1]; i++)
        TSI_TRY(copy_line(io, square, line, i, inwards));
    return TS_OK;
}

static ts_status diagonal_grad(const tsi_grad_io *io)
{
    diagonal_attributes a = *(const diagonal_attributes *)io->attributes;
    a.rows = io->in_meta[0].shape.extent[a.dim1];
    a.columns = io->in_meta[0].shape.extent[a.dim2];
    return tsi_grad_give(io, tsi_op_make(&tsi_op_diagonal_backward, io->out_grad, 1, &a));
}

static bool sample_diagonal(tsi_sample *s)
{
    static const diagonal_attributes given[] = { { 0, 0, 1, 0, 0 },
                                                 { -2, -1, 0, 0, 0 },
                                                 { 1, 1, 2, 0, 0 } };
    return TSI_SAMPLE_GIVEN(s, TS_SHAPE(5, 3, 4), given);
}

const tsi_op_desc tsi_op_diagonal = {
    .name = "diagonal",
    .what = "a diagonal of two dims, as the last dim",
    TSI_OPERANDS(1, 1, 1),
    .flags = TSI_OP_VIEW | TSI_OP_MOVES,
    .traits = { .flow = TSI_SELECT },
    TSI_ATTRIBUTES(diagonal_table, diagonal_attributes),
    .normalise = diagonal_normalise,
    .infer = diagonal_infer,
    .rules = diagonal_rules,
    .reference = diagonal_reference,
    .view = diagonal_view,
    .grad = diagonal_grad,
    .sample = sample_diagonal,
};

/* ---- its gradient ---------------------------------------------------------------------------- */

static ts_status backward_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                    void *attributes)
{
    (void)op;
    (void)count;
    diagonal_attributes *a = attributes;
    int32_t last = in[0].shape.ndim - 1;
    TSI_TRY(diagonal_dims("diagonal_backward", a, last + 2));
    if (last < 0 || last + 2 > TS_NDIM_MAX || a->rows < 0 || a->columns < 0 ||
        in[0].shape.extent[last] != diagonal_length(a->rows, a->columns, a->offset))
        return TSI_FAIL(TS_ERR_SHAPE,
                        "diagonal_backward: the gradient has %lld on the diagonal "
                        "%lld of %lld rows and %lld columns",
                        last >= 0 ? (long long)in[0].shape.extent[last] : 1LL, (long long)a->offset,
                        (long long)a->rows, (long long)a->columns);
    return TS_OK;
}

static ts_status backward_infer(const tsi_op_call *call)
{
    const diagonal_attributes *a = call->attributes;
    const ts_shape *line = &call->in[0].shape;
    ts_shape square = { .ndim = line->ndim + 1 };
    for (int32_t d = 0, next = 0; d < square.ndim; d++)
        square.extent[d] = d == a->dim1   ? a->rows
                           : d == a->dim2 ? a->columns
                                          : line->extent[next++];
    call->out[0] = (ts_meta){ .shape = square, .dtype = call->in[0].dtype };
    return TS_OK;
}

static void backward_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const diagonal_attributes *a = call->attributes;
    int32_t kept = 0;
    tsi_role *row;
    for (int32_t d = 0; d < call->out[0].shape.ndim; d++) {
        if (d == a->dim1 || d == a->dim2) continue;
        row = tsi_rules_add(rules);
        row[0] = TSI_S(kept++);
        row[1] = TSI_S(d);
    }
    row = tsi_rules_add(rules);
    row[0] = TSI_S(kept); /* each rank puts its own part of the diagonal among zeros */
    row[1] = tsi_index_joined(&call->in[0]);
}

static ts_status backward_grad(const tsi_grad_io *io)
{
    diagonal_attributes a = *(const diagonal_attributes *)io->attributes;
    a.rows = a.columns = 0;
    return tsi_grad_give(io, tsi_op_make(&tsi_op_diagonal, io->out_grad, 1, &a));
}

static bool sample_backward(tsi_sample *s)
{
    static const diagonal_attributes given[] = { { 0, 0, 1, 5, 3 }, { 1, -1, 0, 4, 6 } };
    return TSI_SAMPLE_GIVEN(s, TS_SHAPE(4, s->variant ? 4 : 3), given);
}

const tsi_op_desc tsi_op_diagonal_backward = {
    .name = "diagonal_backward",
    .what = "the gradient of diagonal: zeros with the diagonal put in its place",
    TSI_OPERANDS(1, 1, 1),
    .flags = TSI_OP_MOVES,
    .traits = { .flow = TSI_SELECT },
    TSI_ATTRIBUTES(diagonal_backward_table, diagonal_attributes),
    .normalise = backward_normalise,
    .infer = backward_infer,
    .rules = backward_rules,
    .reference = diagonal_reference,
    .grad = backward_grad,
    .sample = sample_backward,
};

/* ---- makers ---------------------------------------------------------------------------------- */

ts_tensor *(ts_select)(ts_tensor *x, int32_t dim, int64_t index)
{
    return tsi_op_make(&tsi_op_select, &x, 1, &(select_attributes){ dim, index });
}

ts_tensor *(ts_diagonal)(ts_tensor *x, int64_t offset, int32_t dim_a, int32_t dim_b)
{
    return tsi_op_make(&tsi_op_diagonal, &x, 1,
                       &(diagonal_attributes){ .offset = offset, .dim1 = dim_a, .dim2 = dim_b });
}
