/* SPDX-License-Identifier: Apache-2.0 */
/* pooling.c - the largest and the mean of windows over place dims: x [N, C, places..].
 *
 * Batch, channels and place dims may stay sharded; of the latter each rank fetches what its windows
 * reach beyond its own (halo.h). A mean counts the padding as zeros; the largest ignores it, and
 * comes with its row-major index among the places, the smallest of equal ones. */
#include <math.h>
#include <string.h>

#include "op/nn/attributes.h"
#include "op/nn/halo.h"

#define POOL_ATTRIBUTES                                                                            \
    TSI_ATTR(tsi_pool_attributes, kernel_size, DIMS, "kernel_size", NULL),                         \
        TSI_ATTR(tsi_pool_attributes, stride, DIMS, "stride", "[]"),                               \
        TSI_ATTR(tsi_pool_attributes, padding, DIMS, "padding", "[0]")
static const tsi_attribute pool_table[] = { POOL_ATTRIBUTES, { 0 } };
static const tsi_attribute backward_table[] = {
    POOL_ATTRIBUTES, TSI_ATTR(tsi_pool_attributes, shape, DIMS, "shape", NULL), { 0 }
};

/* ---- shapes ---------------------------------------------------------------------------------- */

static ts_status pool_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                void *attributes)
{
    (void)count;
    tsi_pool_attributes *a = attributes;
    int32_t places = in[0].shape.ndim - 2;
    char text[96];
    if (places < 1 || places > 3)
        return TSI_FAIL(TS_ERR_SHAPE, "%s: takes a batch, channels and 1 to 3 place dims, not %s",
                        op->name, tsi_shape_text(&in[0].shape, text, sizeof text));
    TSI_TRY(tsi_dims_spread(op->name, "kernel_size", &a->kernel_size, places, 1));
    if (a->stride.count <= 0) a->stride = a->kernel_size;
    TSI_TRY(tsi_dims_spread(op->name, "stride", &a->stride, places, 1));
    TSI_TRY(tsi_dims_spread(op->name, "padding", &a->padding, places, 0));
    for (int32_t i = 0; i < places; i++)
        if (2 * a->padding.value[i] > a->kernel_size.value[i])
            return TSI_FAIL(TS_ERR_ARG, "%s: a padding of %lld is more than half a window of %lld",
                            op->name, (long long)a->padding.value[i],
                            (long long)a->kernel_size.value[i]);
    return TS_OK;
}

static int64_t extent_of(const tsi_pool_attributes *a, int32_t i, int64_t x)
{
    int64_t room = x + 2 * a->padding.value[i] - a->kernel_size.value[i];
    return room < 0 ? 0 : room / a->stride.value[i] + 1;
}

static ts_status pool_infer(const tsi_op_call *call)
{
    const tsi_pool_attributes *a = call->attributes;
    char text[96];
    ts_dtype dtype = (ts_dtype)call->in[0].dtype;
    if (tsi_dtype_category(dtype) != TSI_CATEGORY_REAL)
        return TSI_FAIL(TS_ERR_DTYPE, "%s: is defined for reals, not %s", call->op->name,
                        ts_dtype_name(dtype));
    ts_shape shape = call->in[0].shape;
    for (int32_t i = 0; i < shape.ndim - 2; i++) {
        int64_t extent = extent_of(a, i, shape.extent[2 + i]);
        if (extent < 1)
            return TSI_FAIL(TS_ERR_SHAPE, "%s: a window of %lld does not fit into dim %d of %s",
                            call->op->name, (long long)a->kernel_size.value[i], (int)(2 + i),
                            tsi_shape_text(&call->in[0].shape, text, sizeof text));
        shape.extent[2 + i] = extent;
    }
    for (int32_t o = 0; o < call->output_count; o++)
        call->out[o] = (ts_meta){ .shape = shape, .dtype = o ? TS_DTYPE_I64 : (int32_t)dtype };
    return TS_OK;
}

static void pool_rules(const tsi_op_call *call, tsi_rules *rules)
{
    tsi_rules_batch(rules, call->in[0].shape.ndim, ~3u);
    tsi_halo_rules(call, rules);
}

static void pool_window(const tsi_op_call *call, int32_t place, tsi_window *out)
{
    const tsi_pool_attributes *a = call->attributes;
    *out = (tsi_window){ a->kernel_size.value[place], a->stride.value[place],
                         a->padding.value[place], 1 };
}

static const tsi_halo_kind forward_kind = { 0, -1, false, pool_window },
                           backward_kind = { 0, -1, true, pool_window };

/* ---- windows --------------------------------------------------------------------------------- */

typedef struct window { /* one place of a window on the input */
    int64_t at;         /* offset in the block */
    int64_t index;      /* row-major among the places */
} window;

typedef struct sides { /* the places and the windows of a call, on one rank */
    const tsi_pool_attributes *a;
    const tsi_block *x;
    const ts_shape *places;         /* of the whole */
    int64_t x_first[3], y_first[3]; /* global indices of the blocks' first places */
} sides;

static sides sides_of(const tsi_pool_attributes *a, const tsi_operand *x, const tsi_operand *y)
{
    sides s = { .a = a, .x = &x->block, .places = &x->global->shape };
    for (int32_t i = 0; i < x->block.ndim - 2; i++) {
        s.x_first[i] = tsi_operand_offset(x, 2 + i);
        s.y_first[i] = tsi_operand_offset(y, 2 + i);
    }
    return s;
}

/* Where kernel position k of the window of y lies on x; false: in the padding. */
static bool place_of(const sides *s, const int64_t *y, const int64_t *k, window *out)
{
    const tsi_block *x = s->x;
    *out = (window){ .at = y[0] * x->stride[0] + y[1] * x->stride[1] };
    for (int32_t i = 0; i < x->ndim - 2; i++) {
        int64_t q =
            (s->y_first[i] + y[2 + i]) * s->a->stride.value[i] - s->a->padding.value[i] + k[i];
        int64_t here = q - s->x_first[i];
        if (here < 0 || here >= x->extent[2 + i]) return false;
        out->at += here * x->stride[2 + i];
        out->index = out->index * s->places->extent[2 + i] + q;
    }
    return true;
}

static tsi_loop kernel_loop(const tsi_pool_attributes *a)
{
    tsi_loop loop = { .ndim = a->kernel_size.count };
    memcpy(loop.extent, a->kernel_size.value, sizeof loop.extent);
    return loop;
}

static double window_size(const tsi_pool_attributes *a)
{
    double size = 1;
    for (int32_t i = 0; i < a->kernel_size.count; i++)
        size *= (double)a->kernel_size.value[i];
    return size;
}

static ts_status max_reference(const tsi_kernel_io *io)
{
    const tsi_pool_attributes *a = io->attributes;
    const tsi_block *x = &io->in[0].block, *y = &io->out[0].block, *index = &io->out[1].block;
    sides both = sides_of(a, &io->in[0], &io->out[0]);
    tsi_loop loop = tsi_loop_over(y), kernel = kernel_loop(a);
    loop.operand_count = 2;
    loop.stride[1] = index->stride;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        double top = -(double)INFINITY;
        int64_t best = -1;
        for (bool next = tsi_loop_begin(&kernel); next; next = tsi_loop_next(&kernel)) {
            window w;
            if (!place_of(&both, loop.index, kernel.index, &w)) continue;
            double value = tsi_block_real(x, w.at);
            if (best >= 0 && !(value > top) && !(isnan(value) && !isnan(top))) continue;
            top = value;
            best = w.index;
        }
        tsi_block_set_real(y, loop.at[0], top);
        tsi_store_int(TS_DTYPE_I64, tsi_block_at(index, loop.at[1]), best);
    }
    return TS_OK;
}

static ts_status avg_reference(const tsi_kernel_io *io)
{
    const tsi_pool_attributes *a = io->attributes;
    const tsi_block *x = &io->in[0].block, *y = &io->out[0].block;
    sides both = sides_of(a, &io->in[0], &io->out[0]);
    tsi_loop loop = tsi_loop_over(y), kernel = kernel_loop(a);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        double sum = 0;
        window w;
        for (bool next = tsi_loop_begin(&kernel); next; next = tsi_loop_next(&kernel))
            if (place_of(&both, loop.index, kernel.index, &w)) sum += tsi_block_real(x, w.at);
        tsi_block_set_real(y, loop.at[0], sum / window_size(a));
    }
    return TS_OK;
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* The chosen places receive it all: a gather over the places seen as one dim. */
static ts_status max_grad(const tsi_grad_io *io)
{
    if (!io->out_grad[0]) return TS_OK;
    const ts_shape *x = &io->in_meta[0].shape;
    ts_shape y = ts_tensor_shape(io->out[1]);
    ts_shape places = TS_SHAPE(x->extent[0], x->extent[1], 1), flat = places;
    for (int32_t d = 2; d < x->ndim; d++) {
        places.extent[2] *= x->extent[d];
        flat.extent[2] *= y.extent[d];
    }
    ts_tensor *dy = ts_reshape(io->out_grad[0], flat), *at = ts_reshape(io->out[1], flat);
    return tsi_grad_give(io, ts_reshape(ts_gather_backward(dy, 2, at, places), *x));
}

static ts_status avg_grad(const tsi_grad_io *io)
{
    tsi_pool_attributes a = *(const tsi_pool_attributes *)io->attributes;
    a.shape.count = io->in_meta[0].shape.ndim;
    memcpy(a.shape.value, io->in_meta[0].shape.extent, sizeof a.shape.value);
    return tsi_grad_give(io, tsi_op_make(&tsi_op_avg_pool_backward, io->out_grad, 1, &a));
}

static ts_status backward_infer(const tsi_op_call *call)
{
    const tsi_pool_attributes *a = call->attributes;
    const ts_shape *y = &call->in[0].shape;
    bool fits = a->shape.count == y->ndim && a->shape.value[0] == y->extent[0] &&
                a->shape.value[1] == y->extent[1];
    for (int32_t i = 0; fits && i < y->ndim - 2; i++)
        fits = extent_of(a, i, a->shape.value[2 + i]) == y->extent[2 + i];
    char one[96], other[96];
    call->out[0] = (ts_meta){ .shape = { .ndim = a->shape.count }, .dtype = call->in[0].dtype };
    memcpy(call->out[0].shape.extent, a->shape.value, sizeof a->shape.value);
    if (tsi_dtype_category((ts_dtype)call->in[0].dtype) != TSI_CATEGORY_REAL)
        return TSI_FAIL(TS_ERR_DTYPE, "avg_pool_backward: is defined for reals, not %s",
                        ts_dtype_name((ts_dtype)call->in[0].dtype));
    if (fits) return TS_OK;
    return TSI_FAIL(TS_ERR_SHAPE, "avg_pool_backward: windows of %s are not those of %s",
                    tsi_shape_text(y, one, sizeof one),
                    tsi_shape_text(&call->out[0].shape, other, sizeof other));
}

static ts_status backward_reference(const tsi_kernel_io *io)
{
    const tsi_pool_attributes *a = io->attributes;
    const tsi_block *dy = &io->in[0].block, *dx = &io->out[0].block;
    sides both = sides_of(a, &io->out[0], &io->in[0]);
    tsi_loop all = tsi_loop_over(dx), loop = tsi_loop_over(dy), kernel = kernel_loop(a);
    for (bool more = tsi_loop_begin(&all); more; more = tsi_loop_next(&all))
        tsi_block_set_real(dx, all.at[0], 0.0);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        double share = tsi_block_real(dy, loop.at[0]) / window_size(a);
        for (bool next = tsi_loop_begin(&kernel); next; next = tsi_loop_next(&kernel)) {
            window w;
            if (!place_of(&both, loop.index, kernel.index, &w)) continue;
            tsi_block_add_real(dx, w.at, share);
        }
    }
    return TS_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static bool sample_pool(tsi_sample *s)
{
    tsi_pool_attributes *a = s->attributes;
    *a = (tsi_pool_attributes){ .kernel_size = { .count = 1, .value = { 2 + s->variant } },
                                .padding = { .count = 1, .value = { s->variant } } };
    if (s->variant) a->stride = (tsi_dims){ .count = 2, .value = { 1, 2 } };
    s->count = 1;
    s->in[0] = tsi_meta_f64(s->variant ? TS_SHAPE(2, 3, 4, 5) : TS_SHAPE(3, 4, 5));
    return s->variant < 2;
}

static bool sample_backward(tsi_sample *s)
{
    bool more = sample_pool(s);
    tsi_pool_attributes *a = s->attributes;
    a->shape.count = s->in[0].shape.ndim;
    memcpy(a->shape.value, s->in[0].shape.extent, sizeof a->shape.value);
    s->in[0].shape = s->variant ? TS_SHAPE(2, 3, 4, 3) : TS_SHAPE(3, 4, 2);
    return more;
}

#define POOL                                                                                       \
    .input_min = 1, .input_max = 1, .attribute_bytes = sizeof(tsi_pool_attributes),                \
    .normalise = pool_normalise, .rules = pool_rules, .algorithm = tsi_halo_exchange,              \
    .received = tsi_halo_received

const tsi_op_desc tsi_op_max_pool = {
    .name = "max_pool",
    .what = "the largest of each window of the place dims, and where it is",
    .dtypes = TSI_DTYPES_REAL,
    POOL,
    .family = &forward_kind,
    .flags = TSI_OP_ONE_ROUND,
    .output_count = 2,
    .attribute = pool_table,
    .infer = pool_infer,
    .reference = max_reference,
    .grad = max_grad,
    .saves = (uint64_t)2 << TSI_SAVE_OUT,
    .sample = sample_pool,
};
const tsi_op_desc tsi_op_avg_pool = {
    .name = "avg_pool",
    .what = "the mean of each window of the place dims; padding counts as zeros",
    .dtypes = TSI_DTYPES_REAL,
    POOL,
    .family = &forward_kind,
    .flags = TSI_OP_ONE_ROUND,
    .output_count = 1,
    .traits = { .flow = TSI_LINEAR_ALL, .mono = { TSI_MONO_NONE } },
    .attribute = pool_table,
    .infer = pool_infer,
    .reference = avg_reference,
    .grad = avg_grad,
    .sample = sample_pool,
};
const tsi_op_desc tsi_op_avg_pool_backward = {
    .name = "avg_pool_backward",
    .what = "the gradient of avg_pool: each place receives its share of its windows",
    .dtypes = TSI_DTYPES_REAL,
    POOL,
    .family = &backward_kind,
    .output_count = 1,
    .flags = TSI_OP_NO_GRAD | TSI_OP_ONE_ROUND,
    .traits = { .flow = TSI_LINEAR_ALL, .mono = { TSI_MONO_NONE } },
    .attribute = backward_table,
    .infer = backward_infer,
    .reference = backward_reference,
    .sample = sample_backward,
};

/* ---- makers ---------------------------------------------------------------------------------- */

static tsi_pool_attributes attributes_of(ts_tensor *x, const ts_pool_options *options)
{
    tsi_pool_attributes a = { .padding = { .count = 1 },
                              .kernel_size = { .count = 1, .value = { 1 } } };
    int32_t places = ts_tensor_shape(x).ndim - 2;
    if (!options || places < 1 || places > 3) return a;
    for (int32_t i = 0; i < places; i++) {
        if (options->window) a.kernel_size.value[i] = options->window[i];
        if (options->stride) a.stride.value[i] = options->stride[i];
        if (options->padding) a.padding.value[i] = options->padding[i];
    }
    if (options->window) a.kernel_size.count = places;
    if (options->stride) a.stride.count = places;
    if (options->padding) a.padding.count = places;
    return a;
}

ts_tensor *(ts_max_pool)(ts_tensor *x, const ts_pool_options *options)
{
    ts_tensor *out[TSI_OUTPUT_MAX] = { NULL };
    tsi_pool_attributes a = attributes_of(x, options);
    tsi_op_args args = { &tsi_op_max_pool, &x, 1, 0, &a };
    return tsi_op_run(&args, out) == TS_OK ? out[0] : NULL;
}

ts_tensor *(ts_avg_pool)(ts_tensor *x, const ts_pool_options *options)
{
    tsi_pool_attributes a = attributes_of(x, options);
    return tsi_op_make(&tsi_op_avg_pool, &x, 1, &a);
}
