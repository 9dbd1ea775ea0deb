/* SPDX-License-Identifier: Apache-2.0 */
/* view.c - views that rename dims: permute, movedim, transpose, squeeze, unsqueeze, expand.
 *
 * Each gives another shape to the same elements; a cut dim keeps its cut under its new number,
 * every pending reduction passes, and locally nothing is copied: the result has other strides on
 * the same memory. */
#include <string.h>

#include "op/core/common.h"

/* Where each output dim comes from: an input dim, or -1 for a new one of extent 1 or a broadcast
 * one. */
typedef struct dim_map {
    int32_t ndim;
    int32_t from[TS_NDIM_MAX];
} dim_map;

typedef struct view_attributes {
    tsi_dims dims;                /* permute: the order; expand: the shape; squeeze: which */
    int64_t dim0, dim1;           /* transpose; squeeze, unsqueeze: dim0 */
    tsi_dims source, destination; /* movedim; once normalised, dims is the order */
} view_attributes;

static const tsi_attribute permute_table[] = { TSI_ATTR(view_attributes, dims, DIMS, "dims", NULL),
                                               { 0 } };
static const tsi_attribute movedim_table[] = {
    TSI_ATTR(view_attributes, source, DIMS, "source", NULL),
    TSI_ATTR(view_attributes, destination, DIMS, "destination", NULL),
    { 0 },
};
static const tsi_attribute transpose_table[] = { TSI_ATTR(view_attributes, dim0, INT, "dim0", "0"),
                                                 TSI_ATTR(view_attributes, dim1, INT, "dim1", "1"),
                                                 { 0 } };
static const tsi_attribute squeeze_table[] = { TSI_ATTR(view_attributes, dims, DIMS, "dim", "[]"),
                                               { 0 } };
static const tsi_attribute unsqueeze_table[] = { TSI_ATTR(view_attributes, dim0, INT, "dim", NULL),
                                                 { 0 } };
static const tsi_attribute expand_table[] = { TSI_ATTR(view_attributes, dims, DIMS, "shape", NULL),
                                              { 0 } };

/* ---- maps ------------------------------------------------------------------------------------ */

static dim_map map_of(const tsi_op_desc *op, const view_attributes *a, const ts_shape *in)
{
    dim_map map = { .ndim = in->ndim };
    for (int32_t d = 0; d < in->ndim; d++)
        map.from[d] = d;
    if (op == &tsi_op_permute || op == &tsi_op_movedim) {
        for (int32_t d = 0; d < in->ndim; d++)
            map.from[d] = (int32_t)a->dims.value[d];
    } else if (op == &tsi_op_transpose && in->ndim > 0) {
        map.from[a->dim0] = (int32_t)a->dim1;
        map.from[a->dim1] = (int32_t)a->dim0;
    } else if (op == &tsi_op_squeeze) {
        uint32_t gone = tsi_dims_mask(&a->dims);
        map.ndim = 0;
        for (int32_t d = 0; d < in->ndim; d++)
            if (!(gone >> d & 1 && in->extent[d] == 1)) map.from[map.ndim++] = d;
    } else if (op == &tsi_op_unsqueeze) {
        map.ndim = 0;
        for (int32_t d = 0; d <= in->ndim; d++) {
            if (d == a->dim0) map.from[map.ndim++] = -1;
            if (d < in->ndim) map.from[map.ndim++] = d;
        }
    } else if (op == &tsi_op_expand) {
        map.ndim = a->dims.count;
        for (int32_t d = 0; d < map.ndim; d++)
            map.from[d] = d - (map.ndim - in->ndim);
    }
    return map;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static ts_status permute_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                   void *attributes)
{
    (void)count;
    view_attributes *a = attributes;
    int32_t ndim = in[0].shape.ndim;
    if (a->dims.count != ndim)
        return TSI_FAIL(TS_ERR_ARG, "permute: %d dims are given for a tensor of %d", a->dims.count,
                        ndim);
    uint32_t seen = 0;
    for (int32_t d = 0; d < ndim; d++) {
        TSI_TRY(tsi_normalise_dim(op->name, &a->dims.value[d], ndim));
        if (seen >> a->dims.value[d] & 1)
            return TSI_FAIL(TS_ERR_ARG, "permute: dim %lld is given twice",
                            (long long)a->dims.value[d]);
        seen |= 1u << a->dims.value[d];
    }
    return TS_OK;
}

/* The sources at their destinations, the other dims in order in the places between. */
static ts_status movedim_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                   void *attributes)
{
    (void)count;
    view_attributes *a = attributes;
    int32_t ndim = in[0].shape.ndim, moved = a->source.count;
    if (moved < 0 || moved != a->destination.count)
        return TSI_FAIL(TS_ERR_ARG, "%s: %d dims move to %d places", op->name, moved,
                        a->destination.count);
    tsi_dims source = a->source, destination = a->destination;
    uint32_t taken = 0, used = 0;
    for (int32_t i = 0; i < moved; i++) {
        TSI_TRY(tsi_normalise_dim(op->name, &source.value[i], ndim));
        TSI_TRY(tsi_normalise_dim(op->name, &destination.value[i], ndim));
        if (taken >> source.value[i] & 1 || used >> destination.value[i] & 1)
            return TSI_FAIL(TS_ERR_ARG, "%s: dim %lld to place %lld: one of them is given twice",
                            op->name, (long long)source.value[i], (long long)destination.value[i]);
        taken |= 1u << source.value[i];
        used |= 1u << destination.value[i];
        a->dims.value[destination.value[i]] = source.value[i];
    }
    a->dims.count = ndim;
    for (int32_t d = 0, next = 0; d < ndim; d++) {
        if (used >> d & 1) continue;
        while (taken >> next & 1)
            next++;
        a->dims.value[d] = next++;
    }
    return TS_OK;
}

static ts_status transpose_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                     void *attributes)
{
    (void)count;
    view_attributes *a = attributes;
    TSI_TRY(tsi_normalise_dim(op->name, &a->dim0, in[0].shape.ndim));
    return tsi_normalise_dim(op->name, &a->dim1, in[0].shape.ndim);
}

static ts_status squeeze_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                   void *attributes)
{
    (void)count;
    return tsi_normalise_dims(op->name, &((view_attributes *)attributes)->dims, in[0].shape.ndim);
}

static ts_status unsqueeze_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                     void *attributes)
{
    (void)count;
    if (in[0].shape.ndim >= TS_NDIM_MAX)
        return TSI_FAIL(TS_ERR_SHAPE, "unsqueeze: the tensor has %d dims already",
                        in[0].shape.ndim);
    return tsi_normalise_dim(op->name, &((view_attributes *)attributes)->dim0,
                             in[0].shape.ndim + 1);
}

static ts_status expand_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                  void *attributes)
{
    (void)op;
    (void)count;
    tsi_dims *want = &((view_attributes *)attributes)->dims;
    const ts_shape *have = &in[0].shape;
    if (want->count < have->ndim)
        return TSI_FAIL(TS_ERR_SHAPE, "expand: %d dims cannot hold a tensor of %d", want->count,
                        have->ndim);
    for (int32_t d = 0; d < want->count; d++) {
        int32_t from = d - (want->count - have->ndim);
        if (want->value[d] == -1 && from >= 0) want->value[d] = have->extent[from];
        if (want->value[d] < 0 ||
            (from >= 0 && have->extent[from] != 1 && have->extent[from] != want->value[d]))
            return TSI_FAIL(TS_ERR_SHAPE, "expand: dim %d of extent %lld does not become %lld", d,
                            from >= 0 ? (long long)have->extent[from] : 1LL,
                            (long long)want->value[d]);
    }
    return TS_OK;
}

/* ---- shapes, rules, strides ------------------------------------------------------------------ */

static ts_status view_infer(const tsi_op_call *call)
{
    const view_attributes *a = call->attributes;
    dim_map map = map_of(call->op, a, &call->in[0].shape);
    call->out[0] = (ts_meta){ .shape = { .ndim = map.ndim }, .dtype = call->in[0].dtype };
    for (int32_t d = 0; d < map.ndim; d++) {
        int64_t extent = map.from[d] >= 0 ? call->in[0].shape.extent[map.from[d]] : 1;
        call->out[0].shape.extent[d] = call->op == &tsi_op_expand ? a->dims.value[d] : extent;
    }
    return TS_OK;
}

static void view_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const ts_shape *in = &call->in[0].shape, *out = &call->out[0].shape;
    dim_map map = map_of(call->op, call->attributes, in);
    for (int32_t d = 0; d < map.ndim; d++) {
        if (map.from[d] < 0 || in->extent[map.from[d]] != out->extent[d]) continue;
        tsi_role *row = tsi_rules_add(rules);
        row[0] = TSI_S(map.from[d]);
        row[1] = TSI_S(d);
    }
}

static bool view_strides(const tsi_op_call *call, const tsi_block *in, tsi_block *out,
                         int64_t *offset)
{
    dim_map map = map_of(call->op, call->attributes, &call->in[0].shape);
    *offset = 0;
    for (int32_t d = 0; d < map.ndim; d++) {
        bool kept = map.from[d] >= 0 &&
                    call->in[0].shape.extent[map.from[d]] == call->out[0].shape.extent[d];
        out->stride[d] = kept ? in->stride[map.from[d]] : 0;
        if (map.from[d] < 0 && call->out[0].shape.extent[d] == 1) out->stride[d] = 1;
    }
    return true;
}

/* Only where a view is not allowed (in the validator): the same elements, copied. */
static ts_status view_reference(const tsi_kernel_io *io)
{
    ts_meta in = *io->in[0].global, out = *io->out[0].global;
    tsi_op_call call = { io->op, io->attributes, &in, &out, 1, 1 };
    tsi_block from = io->out[0].block;
    int64_t offset;
    view_strides(&call, &io->in[0].block, &from, &offset);
    from.data = io->in[0].block.data;
    return io->device->copy(io->device, &io->out[0].block, &from, io->queue);
}

/* ---- gradients ------------------------------------------------------------------------------- */

static ts_status permute_grad(const tsi_grad_io *io)
{
    const view_attributes *a = io->attributes;
    int64_t back[TS_NDIM_MAX];
    for (int32_t d = 0; d < a->dims.count; d++)
        back[a->dims.value[d]] = d;
    return tsi_grad_give(io, ts_permute(io->out_grad[0], back, a->dims.count));
}

static ts_status transpose_grad(const tsi_grad_io *io)
{
    const view_attributes *a = io->attributes;
    return tsi_grad_give(io, ts_transpose(io->out_grad[0], (int32_t)a->dim0, (int32_t)a->dim1));
}

static ts_status reshape_grad(const tsi_grad_io *io)
{
    return tsi_grad_give(io, ts_reshape(io->out_grad[0], io->in_meta[0].shape));
}

static ts_status expand_grad(const tsi_grad_io *io)
{
    return tsi_grad_give(io, tsi_grad_unbroadcast(io->out_grad[0], &io->in_meta[0]));
}

/* ---- samples --------------------------------------------------------------------------------- */

static void meta3(ts_meta *in, int64_t a, int64_t b, int64_t c)
{
    *in = (ts_meta){ .shape = { .ndim = 3, .extent = { a, b, c } }, .dtype = TS_DTYPE_F64 };
}

static bool sample_permute(tsi_sample *s)
{
    static const int64_t order[][3] = { { 2, 0, 1 }, { 1, -1, 0 } };
    view_attributes *a = s->attributes;
    meta3(s->in, 5, 4, 3);
    s->count = 1;
    a->dims = (tsi_dims){ .count = 3 };
    memcpy(a->dims.value, order[s->variant % 2], sizeof order[0]);
    return s->variant < 2;
}

static bool sample_movedim(tsi_sample *s)
{
    bool more = sample_permute(s);
    *(view_attributes *)s->attributes = (view_attributes){
        .source = { .count = 1, .value = { s->variant ? -1 : 0 } },
        .destination = { .count = 1, .value = { s->variant ? 0 : 1 } },
    };
    return more;
}

static bool sample_transpose(tsi_sample *s)
{
    view_attributes *a = s->attributes;
    meta3(s->in, 5, 4, 3);
    s->count = 1;
    a->dim0 = s->variant == 0 ? 0 : -1;
    a->dim1 = 1;
    return s->variant < 2;
}

static bool sample_squeeze(tsi_sample *s)
{
    view_attributes *a = s->attributes;
    meta3(s->in, 5, 1, 4);
    s->count = 1;
    a->dims = (tsi_dims){ .count = s->variant, .value = { 1 } };
    return s->variant < 2;
}

static bool sample_unsqueeze(tsi_sample *s)
{
    meta3(s->in, 5, 2, 4);
    s->count = 1;
    ((view_attributes *)s->attributes)->dim0 = s->variant == 0 ? 0 : -2;
    return s->variant < 2;
}

static bool sample_expand(tsi_sample *s)
{
    view_attributes *a = s->attributes;
    meta3(s->in, 5, 1, 4);
    s->count = 1;
    a->dims = (tsi_dims){ .count = 3 + s->variant, .value = { 5, 3, 4 } };
    if (s->variant) memcpy(a->dims.value, (int64_t[]){ 2, 5, 3, -1 }, 4 * sizeof(int64_t));
    return s->variant < 2;
}

/* ---- rows ------------------------------------------------------------------------------------ */

#define VIEW                                                                                       \
    .input_min = 1, .input_max = 1, .output_count = 1, .flags = TSI_OP_VIEW | TSI_OP_MOVES,        \
    .attribute_bytes = sizeof(view_attributes), .infer = view_infer, .rules = view_rules,          \
    .traits = { .flow = TSI_SELECT }, .view = view_strides, .reference = view_reference

const tsi_op_desc tsi_op_permute = {
    .name = "permute",
    .what = "dims in another order",
    VIEW,
    .attribute = permute_table,
    .normalise = permute_normalise,
    .grad = permute_grad,
    .sample = sample_permute,
};
const tsi_op_desc tsi_op_movedim = {
    .name = "movedim",
    .what = "dims at other places, the others in order",
    VIEW,
    .attribute = movedim_table,
    .normalise = movedim_normalise,
    .grad = permute_grad,
    .sample = sample_movedim,
};
const tsi_op_desc tsi_op_transpose = {
    .name = "transpose",
    .what = "two dims exchanged",
    VIEW,
    .attribute = transpose_table,
    .normalise = transpose_normalise,
    .grad = transpose_grad,
    .sample = sample_transpose,
};
const tsi_op_desc tsi_op_squeeze = {
    .name = "squeeze",
    .what = "without dims of extent 1",
    VIEW,
    .attribute = squeeze_table,
    .normalise = squeeze_normalise,
    .grad = reshape_grad,
    .sample = sample_squeeze,
};
const tsi_op_desc tsi_op_unsqueeze = {
    .name = "unsqueeze",
    .what = "with a new dim of extent 1",
    VIEW,
    .attribute = unsqueeze_table,
    .normalise = unsqueeze_normalise,
    .grad = reshape_grad,
    .sample = sample_unsqueeze,
};
const tsi_op_desc tsi_op_expand = {
    .name = "expand",
    .what = "dims of extent 1 repeated without a copy",
    VIEW,
    .attribute = expand_table,
    .normalise = expand_normalise,
    .grad = expand_grad,
    .sample = sample_expand,
};

/* ---- makers ---------------------------------------------------------------------------------- */

static tsi_dims dims_of(const int64_t *dims, int32_t count)
{
    tsi_dims out = { .count = count > TS_NDIM_MAX ? TS_NDIM_MAX : count };
    for (int32_t i = 0; dims && i < out.count; i++)
        out.value[i] = dims[i];
    return out;
}

ts_tensor *(ts_permute)(ts_tensor *x, const int64_t *dims, int32_t count)
{
    view_attributes a = { .dims = dims_of(dims, count) };
    return tsi_op_make(&tsi_op_permute, &x, 1, &a);
}

ts_tensor *(ts_movedim)(ts_tensor *x, int32_t source, int32_t destination)
{
    view_attributes a = { .source = { .count = 1, .value = { source } },
                          .destination = { .count = 1, .value = { destination } } };
    return tsi_op_make(&tsi_op_movedim, &x, 1, &a);
}

ts_tensor *(ts_transpose)(ts_tensor *x, int32_t dim_a, int32_t dim_b)
{
    view_attributes a = { .dim0 = dim_a, .dim1 = dim_b };
    return tsi_op_make(&tsi_op_transpose, &x, 1, &a);
}

ts_tensor *(ts_squeeze)(ts_tensor *x, const int64_t *dims, int32_t count)
{
    view_attributes a = { .dims = dims_of(dims, dims ? count : 0) };
    return tsi_op_make(&tsi_op_squeeze, &x, 1, &a);
}

ts_tensor *(ts_unsqueeze)(ts_tensor *x, int32_t dim)
{
    view_attributes a = { .dim0 = dim };
    return tsi_op_make(&tsi_op_unsqueeze, &x, 1, &a);
}

ts_tensor *(ts_expand)(ts_tensor *x, ts_shape shape)
{
    view_attributes a = { .dims = dims_of(shape.extent, shape.ndim) };
    return tsi_op_make(&tsi_op_expand, &x, 1, &a);
}
