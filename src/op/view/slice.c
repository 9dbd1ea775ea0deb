/* SPDX-License-Identifier: Apache-2.0 */
/* slice.c - every step-th index of a dim, its gradient, and makers that give several slices:
 * narrow, split, chunk, unbind.
 *
 * Where the dim is whole on a rank the result is a view of the same memory. Where it is cut, ranks
 * exchange just the rows that change hands (remap.h). */
#include <string.h>

#include "base/intmath.h"
#include "op/view/remap.h"

typedef struct slice_attributes {
    int64_t dim, start, end, step;
    int64_t extent; /* slice_backward: of the dim that was sliced */
} slice_attributes;
static const tsi_attribute slice_table[] = { TSI_ATTR(slice_attributes, dim, INT, "dim", "0"),
                                             TSI_ATTR(slice_attributes, start, INT, "start", "0"),
                                             TSI_ATTR(slice_attributes, end, INT, "end",
                                                      "9223372036854775807"),
                                             TSI_ATTR(slice_attributes, step, INT, "step", "1"),
                                             { 0 } };
static const tsi_attribute narrow_table[] = {
    TSI_ATTR(slice_attributes, dim, INT, "dim", NULL),
    TSI_ATTR(slice_attributes, start, INT, "start", NULL),
    TSI_ATTR(slice_attributes, end, INT, "length", NULL), /* becomes the end */
    { 0 },
};
static const tsi_attribute backward_table[] = {
    TSI_ATTR(slice_attributes, dim, INT, "dim", "0"),
    TSI_ATTR(slice_attributes, start, INT, "start", "0"),
    TSI_ATTR(slice_attributes, end, INT, "end", "9223372036854775807"),
    TSI_ATTR(slice_attributes, step, INT, "step", "1"),
    TSI_ATTR(slice_attributes, extent, INT, "extent", NULL),
    { 0 }
};

/* ---- shapes ---------------------------------------------------------------------------------- */

/* Bounds count from the end if negative and are cut down to the extent, as in Python. */
static ts_status normalise_bounds(const char *op, slice_attributes *a, int64_t extent)
{
    if (a->step < 1)
        return TSI_FAIL(TS_ERR_ARG, "%s: step %lld is not positive", op, (long long)a->step);
    if (a->start < 0) a->start = a->start < -extent ? 0 : a->start + extent;
    if (a->end < 0) a->end = a->end < -extent ? 0 : a->end + extent;
    a->start = tsi_min_i64(a->start, extent);
    a->end = tsi_max_i64(a->start, tsi_min_i64(a->end, extent));
    return TS_OK;
}

static int64_t slice_count(const slice_attributes *a)
{
    return tsi_ceil_div(a->end - a->start, a->step);
}

static ts_status slice_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                 void *attributes)
{
    (void)count;
    slice_attributes *a = attributes;
    if (in[0].shape.ndim == 0)
        return TSI_FAIL(TS_ERR_SHAPE, "%s: a tensor without dims has no dim %lld", op->name,
                        (long long)a->dim);
    TSI_TRY(tsi_normalise_dim(op->name, &a->dim, in[0].shape.ndim));
    return normalise_bounds(op->name, a, in[0].shape.extent[a->dim]);
}

/* Unlike a slice, it must lie within the dim. */
static ts_status narrow_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                  void *attributes)
{
    slice_attributes *a = attributes;
    int64_t length = a->end;
    a->end = INT64_MAX;
    a->step = 1;
    int64_t start = a->start;
    TSI_TRY(slice_normalise(op, in, count, attributes));
    int64_t extent = in[0].shape.extent[a->dim];
    if (start < -extent || start > extent || length < 0 || length > extent - a->start)
        return TSI_FAIL(TS_ERR_ARG, "%s: %lld from %lld on do not lie in dim %lld of extent %lld",
                        op->name, (long long)length, (long long)start, (long long)a->dim,
                        (long long)extent);
    a->end = a->start + length;
    return TS_OK;
}

static ts_status backward_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                    void *attributes)
{
    (void)count;
    slice_attributes *a = attributes;
    if (a->extent < 0 || in[0].shape.ndim == 0)
        return TSI_FAIL(TS_ERR_SHAPE, "slice_backward: extent %lld, %d dims", (long long)a->extent,
                        in[0].shape.ndim);
    TSI_TRY(tsi_normalise_dim(op->name, &a->dim, in[0].shape.ndim));
    TSI_TRY(normalise_bounds("slice_backward", a, a->extent));
    if (in[0].shape.extent[a->dim] != slice_count(a))
        return TSI_FAIL(TS_ERR_SHAPE,
                        "slice_backward: dim %lld of the gradient has extent %lld, the slice %lld",
                        (long long)a->dim, (long long)in[0].shape.extent[a->dim],
                        (long long)slice_count(a));
    return TS_OK;
}

static ts_status slice_infer(const tsi_op_call *call)
{
    const slice_attributes *a = call->attributes;
    call->out[0] = call->in[0];
    call->out[0].shape.extent[a->dim] =
        call->op == &tsi_op_slice_backward ? a->extent : slice_count(a);
    return TS_OK;
}

/* ---- the map and the view -------------------------------------------------------------------- */

static void slice_map(const tsi_op_call *call, int32_t input, tsi_remap *map)
{
    const slice_attributes *a = call->attributes;
    tsi_remap_begin(&call->in[input].shape, &call->out[0].shape, map);
    tsi_remap_piece piece = { .in = a->start, .count = slice_count(a), .in_step = a->step };
    tsi_remap_set(map, (int32_t)a->dim, piece);
}

static void backward_map(const tsi_op_call *call, int32_t input, tsi_remap *map)
{
    const slice_attributes *a = call->attributes;
    tsi_remap_begin(&call->in[input].shape, &call->out[0].shape, map);
    tsi_remap_piece piece = { .out = a->start, .count = slice_count(a), .out_step = a->step };
    tsi_remap_set(map, (int32_t)a->dim, piece);
}

static ts_number zero(const void *attributes)
{
    (void)attributes;
    return ts_number_int(0);
}

static const tsi_remap_kind slice_kind = { slice_map, NULL };
static const tsi_remap_kind backward_kind = { backward_map, zero };

/* The dim is whole here, or the slice is. */
static bool slice_view(const tsi_op_call *call, const tsi_block *in, tsi_block *out,
                       int64_t *offset)
{
    const slice_attributes *a = call->attributes;
    memcpy(out->stride, in->stride, sizeof out->stride);
    *offset = 0;
    if (tsi_block_count(out) == 0) return true;
    out->stride[a->dim] *= a->step;
    *offset = a->start * in->stride[a->dim];
    return true;
}

/* ---- gradients ------------------------------------------------------------------------------- */

static ts_status slice_grad(const tsi_grad_io *io)
{
    slice_attributes a = *(const slice_attributes *)io->attributes;
    a.extent = io->in_meta[0].shape.extent[a.dim];
    return tsi_grad_give(io, tsi_op_make(&tsi_op_slice_backward, io->out_grad, 1, &a));
}

static ts_status backward_grad(const tsi_grad_io *io)
{
    slice_attributes a = *(const slice_attributes *)io->attributes;
    a.extent = 0;
    return tsi_grad_give(io, tsi_op_make(&tsi_op_slice, io->out_grad, 1, &a));
}

/* ---- samples --------------------------------------------------------------------------------- */

static const slice_attributes samples[] = {
    { 0, 1, 5, 1, 0 }, { -1, 0, INT64_MAX, 2, 0 }, { 0, -6, -1, 3, 0 },
    { 1, 0, 4, 1, 0 }, { 0, 5, 7, 1, 0 },          { 1, 3, 2, 1, 0 },
};
enum { SAMPLES = 6 };

static bool sample_slice(tsi_sample *s)
{
    if (s->variant >= SAMPLES) return false;
    s->count = 1;
    s->in[0] = tsi_meta_f64(TS_SHAPE(7, 4));
    *(slice_attributes *)s->attributes = samples[s->variant];
    return true;
}

static bool sample_narrow(tsi_sample *s)
{
    static const slice_attributes part[] = { { 0, 1, 4, 0, 0 }, { -1, -3, 2, 0, 0 } };
    if (!sample_slice(s)) return false;
    *(slice_attributes *)s->attributes = part[s->variant % 2];
    return s->variant < 2;
}

static bool sample_backward(tsi_sample *s)
{
    if (!sample_slice(s)) return false;
    slice_attributes *a = s->attributes, b = *a;
    int64_t dim = a->dim < 0 ? a->dim + 2 : a->dim;
    a->extent = s->in[0].shape.extent[dim];
    (void)normalise_bounds("slice", &b, a->extent);
    s->in[0].shape.extent[dim] = slice_count(&b);
    return true;
}

#define SLICE                                                                                      \
    .input_min = 1, .input_max = 1, .output_count = 1,                                             \
    .flags = TSI_OP_VIEW | TSI_OP_ONE_ROUND | TSI_OP_MOVES,                                        \
    .attribute_bytes = sizeof(slice_attributes), .family = &slice_kind, .infer = slice_infer,      \
    .rules = tsi_remap_rules, .reference = tsi_remap_reference, .view = slice_view,                \
    .algorithm = tsi_remap_exchange, .received = tsi_remap_received, .grad = slice_grad

const tsi_op_desc tsi_op_slice = {
    .name = "slice",
    .what = "every step-th index of a dim from start to end",
    .attribute = slice_table,
    .normalise = slice_normalise,
    SLICE,
    .sample = sample_slice,
};
const tsi_op_desc tsi_op_narrow = {
    .name = "narrow",
    .what = "`length` indices of a dim from start on, which must exist",
    .attribute = narrow_table,
    .normalise = narrow_normalise,
    SLICE,
    .sample = sample_narrow,
};
const tsi_op_desc tsi_op_slice_backward = {
    .name = "slice_backward",
    .what = "the gradient of slice: zeros with the slice put in its place",
    TSI_OPERANDS(1, 1, 1),
    .flags = TSI_OP_ONE_ROUND | TSI_OP_MOVES,
    TSI_ATTRIBUTES(backward_table, slice_attributes),
    .family = &backward_kind,
    .normalise = backward_normalise,
    .infer = slice_infer,
    .rules = tsi_remap_rules,
    .reference = tsi_remap_reference,
    .algorithm = tsi_remap_exchange,
    .received = tsi_remap_received,
    .grad = backward_grad,
    .sample = sample_backward,
};

/* ---- makers ---------------------------------------------------------------------------------- */

static slice_attributes attributes_of(int32_t dim, const ts_slice_options *options)
{
    slice_attributes a = { .dim = dim, .end = INT64_MAX, .step = 1 };
    if (!options) return a;
    a.start = options->start;
    if (options->end_is_given) a.end = options->end;
    if (options->step) a.step = options->step;
    return a;
}

ts_tensor *(ts_slice)(ts_tensor *x, int32_t dim, const ts_slice_options *options)
{
    slice_attributes a = attributes_of(dim, options);
    return tsi_op_make(&tsi_op_slice, &x, 1, &a);
}

ts_tensor *(ts_slice_backward)(ts_tensor *dy, int32_t dim, int64_t extent,
                               const ts_slice_options *options)
{
    slice_attributes a = attributes_of(dim, options);
    a.extent = extent;
    return tsi_op_make(&tsi_op_slice_backward, &dy, 1, &a);
}

static ts_tensor *part_of(ts_tensor *x, int64_t dim, int64_t start, int64_t length)
{
    slice_attributes a = { .dim = dim, .start = start, .end = start + length, .step = 1 };
    return tsi_op_make(&tsi_op_slice, &x, 1, &a);
}

ts_tensor *(ts_narrow)(ts_tensor *x, int32_t dim, ts_interval range)
{
    bool forward = range.begin >= 0 && range.end >= range.begin; /* else: a length to be refused */
    slice_attributes a = { .dim = dim,
                           .start = range.begin,
                           .end = forward ? range.end - range.begin : -1 };
    return tsi_op_make(&tsi_op_narrow, &x, 1, &a);
}

/* The slices, one after another; on failure none. */
static ts_status split_into(ts_tensor *x, int64_t dim, const int64_t *sizes, int32_t count,
                            ts_tensor **out)
{
    int64_t start = 0;
    ts_status status = TS_OK;
    for (int32_t i = 0; i < count; start += sizes[i++]) {
        out[i] = part_of(x, dim, start, sizes[i]);
        if (!out[i]) status = ts_rank_status(x->rank);
    }
    for (int32_t i = 0; status != TS_OK && i < count; i++)
        out[i] = NULL;
    return status;
}

ts_status(ts_split)(ts_tensor *x, int32_t dim, const int64_t *sizes, int32_t count, ts_tensor **out)
{
    for (int32_t i = 0; i < count; i++)
        out[i] = NULL;
    if (!x || !sizes) return TSI_FAIL(TS_ERR_NULL, "split: %s is NULL", x ? "sizes" : "the tensor");
    ts_shape shape = ts_tensor_shape(x);
    int64_t d = dim, total = 0;
    TSI_TRY(tsi_normalise_dim("split", &d, shape.ndim));
    for (int32_t i = 0; i < count; i++) {
        if (sizes[i] < 0 || !tsi_add_i64(total, sizes[i], &total))
            return TSI_FAIL(TS_ERR_ARG, "split: part %d has size %lld", i, (long long)sizes[i]);
    }
    if (shape.ndim == 0 || total != shape.extent[d])
        return TSI_FAIL(TS_ERR_SHAPE, "split: %d parts of %lld in all, but dim %lld has %lld",
                        count, (long long)total, (long long)d,
                        shape.ndim ? (long long)shape.extent[d] : 1LL);
    return split_into(x, d, sizes, count, out);
}

ts_status(ts_chunk)(ts_tensor *x, int32_t dim, int64_t count, ts_tensor **out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = NULL;
    if (!x) return TSI_FAIL(TS_ERR_NULL, "chunk: the tensor is NULL");
    ts_shape shape = ts_tensor_shape(x);
    int64_t d = dim;
    TSI_TRY(tsi_normalise_dim("chunk", &d, shape.ndim));
    if (count < 1 || shape.ndim == 0)
        return TSI_FAIL(TS_ERR_ARG, "chunk: %lld chunks of a tensor of %d dims", (long long)count,
                        shape.ndim);
    int64_t extent = shape.extent[d], each = tsi_ceil_div(extent, count);
    ts_status status = TS_OK;
    for (int64_t i = 0; i < count && status == TS_OK; i++) {
        int64_t begin = tsi_min_i64(i * each, extent);
        out[i] = part_of(x, d, begin, tsi_min_i64(each, extent - begin));
        if (!out[i]) status = ts_rank_status(x->rank);
    }
    for (int64_t i = 0; status != TS_OK && i < count; i++)
        out[i] = NULL;
    return status;
}

ts_status(ts_unbind)(ts_tensor *x, int32_t dim, int64_t count, ts_tensor **out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = NULL;
    if (!x) return TSI_FAIL(TS_ERR_NULL, "unbind: the tensor is NULL");
    ts_shape shape = ts_tensor_shape(x);
    int64_t d = dim;
    TSI_TRY(tsi_normalise_dim("unbind", &d, shape.ndim));
    if (shape.ndim == 0 || shape.extent[d] != count)
        return TSI_FAIL(TS_ERR_SHAPE, "unbind: dim %lld has extent %lld, room is for %lld",
                        (long long)d, shape.ndim ? (long long)shape.extent[d] : 1LL,
                        (long long)count);
    ts_status status = TS_OK;
    for (int64_t i = 0; i < count && status == TS_OK; i++) {
        out[i] = (ts_select)(x, (int32_t)d, i);
        if (!out[i]) status = ts_rank_status(x->rank);
    }
    for (int64_t i = 0; status != TS_OK && i < count; i++)
        out[i] = NULL;
    return status;
}
