/* SPDX-License-Identifier: Apache-2.0 */
/* pad.c - pad with a constant, flip, roll: the same elements at other indices of some dims.
 *
 * Dims that are not named may be cut in any way; a named dim that is cut is done by an exchange of
 * the rows that change hands (remap.h). */
#include <string.h>

#include "op/view/remap.h"
#include "tensor/scope.h"

/* ---- pad ------------------------------------------------------------------------------------- */

typedef struct pad_attributes {
    tsi_dims pad; /* before and after of the last dim, then of the one before it, ... */
    ts_number value;
} pad_attributes;
static const tsi_attribute pad_table[] = { TSI_ATTR(pad_attributes, pad, DIMS, "pad", NULL),
                                           TSI_ATTR(pad_attributes, value, NUMBER, "value", "0"),
                                           { 0 } };

/* What is put before and after dim d; less than nothing cuts off. */
static void pad_of(const pad_attributes *a, int32_t ndim, int32_t d, int64_t *before,
                   int64_t *after)
{
    int32_t pair = ndim - 1 - d;
    bool given = 2 * pair + 1 < a->pad.count;
    *before = given ? a->pad.value[2 * pair] : 0;
    *after = given ? a->pad.value[2 * pair + 1] : 0;
}

static ts_status pad_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                               void *attributes)
{
    (void)op;
    (void)count;
    pad_attributes *a = attributes;
    int32_t ndim = in[0].shape.ndim;
    if (a->pad.count % 2 != 0 || a->pad.count / 2 > ndim)
        return TSI_FAIL(TS_ERR_ARG, "pad: %d numbers are not pairs for at most %d dims",
                        a->pad.count, ndim);
    for (int32_t d = 0; d < ndim; d++) {
        int64_t before, after, extent = in[0].shape.extent[d];
        pad_of(a, ndim, d, &before, &after);
        if (before < -extent || after < -extent || extent + before + after < 0)
            return TSI_FAIL(TS_ERR_SHAPE, "pad: %lld before and %lld after dim %d of extent %lld",
                            (long long)before, (long long)after, d, (long long)extent);
    }
    return TS_OK;
}

static ts_status pad_infer(const tsi_op_call *call)
{
    call->out[0] = call->in[0];
    for (int32_t d = 0; d < call->in[0].shape.ndim; d++) {
        int64_t before, after;
        pad_of(call->attributes, call->in[0].shape.ndim, d, &before, &after);
        call->out[0].shape.extent[d] += before + after;
    }
    return TS_OK;
}

static void pad_map(const tsi_op_call *call, int32_t input, tsi_remap *map)
{
    const ts_shape *in = &call->in[input].shape, *out = &call->out[0].shape;
    tsi_remap_begin(in, out, map);
    for (int32_t d = 0; d < in->ndim; d++) {
        int64_t before, after;
        pad_of(call->attributes, in->ndim, d, &before, &after);
        tsi_remap_piece piece = { .out = before > 0 ? before : 0, .in = before < 0 ? -before : 0 };
        piece.count = in->extent[d] - piece.in + (after < 0 ? after : 0);
        if (piece.count < 0) piece.count = 0;
        tsi_remap_set(map, d, piece);
    }
}

static ts_number pad_value(const void *attributes)
{
    return ((const pad_attributes *)attributes)->value;
}

static const tsi_remap_kind pad_kind = { pad_map, pad_value };

/* The other way round: what was put there is cut off. */
static ts_status pad_grad(const tsi_grad_io *io)
{
    pad_attributes a = *(const pad_attributes *)io->attributes;
    a.value = ts_number_int(0);
    for (int32_t i = 0; i < a.pad.count; i++)
        a.pad.value[i] = -a.pad.value[i];
    return tsi_grad_give(io, tsi_op_make(&tsi_op_pad, io->out_grad, 1, &a));
}

static bool sample_pad(tsi_sample *s)
{
    static const pad_attributes given[] = {
        { { .count = 2, .value = { 1, 2 } }, { .whole = 0 } },
        { { .count = 4, .value = { 0, 0, 3, 0 } }, { .real = 2.5, .kind = TS_NUMBER_REAL } },
        { { .count = 4, .value = { -1, 2, 1, -3 } }, { .real = 1, .whole = 1 } },
        { { .count = 0 }, { .real = 1, .whole = 1 } },
    };
    return TSI_SAMPLE_GIVEN(s, TS_SHAPE(7, 4), given);
}

#define REMAP                                                                                      \
    .input_min = 1, .input_max = 1, .output_count = 1, .rules = tsi_remap_rules,                   \
    .reference = tsi_remap_reference, .algorithm = tsi_remap_exchange,                             \
    .received = tsi_remap_received, .flags = TSI_OP_ONE_ROUND | TSI_OP_MOVES

const tsi_op_desc tsi_op_pad = {
    .name = "pad",
    .what = "a constant before and after dims; negative amounts cut off",
    REMAP,
    TSI_ATTRIBUTES(pad_table, pad_attributes),
    .family = &pad_kind,
    .normalise = pad_normalise,
    .infer = pad_infer,
    .grad = pad_grad,
    .sample = sample_pad,
};

/* ---- flip ------------------------------------------------------------------------------------ */

typedef struct flip_attributes {
    tsi_dims dims;
} flip_attributes;
static const tsi_attribute flip_table[] = { TSI_ATTR(flip_attributes, dims, DIMS, "dims", NULL),
                                            { 0 } };

static ts_status flip_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                void *attributes)
{
    (void)count;
    flip_attributes *a = attributes;
    if (a->dims.count <= 0) { /* no dim is turned */
        a->dims = (tsi_dims){ 0 };
        return TS_OK;
    }
    return tsi_normalise_dims(op->name, &a->dims, in[0].shape.ndim);
}

static void flip_map(const tsi_op_call *call, int32_t input, tsi_remap *map)
{
    const flip_attributes *a = call->attributes;
    tsi_remap_begin(&call->in[input].shape, &call->out[0].shape, map);
    for (int32_t i = 0; i < a->dims.count; i++) {
        int32_t d = (int32_t)a->dims.value[i];
        int64_t extent = call->in[input].shape.extent[d];
        if (extent > 1)
            tsi_remap_set(map, d,
                          (tsi_remap_piece){ .in = extent - 1, .count = extent, .in_step = -1 });
    }
}

static const tsi_remap_kind flip_kind = { flip_map, NULL };

static ts_status flip_grad(const tsi_grad_io *io)
{
    return tsi_grad_give(io, tsi_op_make(&tsi_op_flip, io->out_grad, 1, io->attributes));
}

static bool sample_flip(tsi_sample *s)
{
    static const flip_attributes given[] = { { { .count = 1, .value = { 0 } } },
                                             { { .count = 1, .value = { -1 } } },
                                             { { .count = 2, .value = { 1, 0 } } } };
    return TSI_SAMPLE_GIVEN(s, TS_SHAPE(7, 4), given);
}

const tsi_op_desc tsi_op_flip = {
    .name = "flip",
    .what = "dims in reverse",
    REMAP,
    TSI_ATTRIBUTES(flip_table, flip_attributes),
    .family = &flip_kind,
    .normalise = flip_normalise,
    .infer = tsi_infer_like,
    .grad = flip_grad,
    .sample = sample_flip,
};

/* ---- roll ------------------------------------------------------------------------------------ */

typedef struct roll_attributes {
    tsi_dims shifts, dims;
} roll_attributes;
static const tsi_attribute roll_table[] = { TSI_ATTR(roll_attributes, shifts, DIMS, "shifts", NULL),
                                            TSI_ATTR(roll_attributes, dims, DIMS, "dims", NULL),
                                            { 0 } };

/* One shift for every dim, each from 0 up to its extent. */
static ts_status roll_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                void *attributes)
{
    (void)count;
    roll_attributes *a = attributes, sum = { .shifts = { .count = in[0].shape.ndim } };
    if (a->shifts.count != a->dims.count)
        return TSI_FAIL(TS_ERR_ARG, "roll: %d shifts for %d dims", a->shifts.count, a->dims.count);
    for (int32_t i = 0; i < a->dims.count; i++) {
        TSI_TRY(tsi_normalise_dim(op->name, &a->dims.value[i], in[0].shape.ndim));
        int64_t d = a->dims.value[i], extent = in[0].shape.ndim ? in[0].shape.extent[d] : 1;
        if (extent == 0) continue;
        int64_t shift = a->shifts.value[i] % extent;
        sum.shifts.value[d] = (sum.shifts.value[d] + shift + extent) % extent;
    }
    *a = sum;
    return TS_OK;
}

/* Element i goes to i + shift; the last ones come round to the beginning. */
static void roll_map(const tsi_op_call *call, int32_t input, tsi_remap *map)
{
    const roll_attributes *a = call->attributes;
    const ts_shape *shape = &call->in[input].shape;
    tsi_remap_begin(shape, &call->out[0].shape, map);
    for (int32_t d = 0; d < shape->ndim; d++) {
        int64_t shift = a->shifts.value[d], extent = shape->extent[d];
        if (shift == 0) continue;
        tsi_remap_set(map, d, (tsi_remap_piece){ .out = shift, .count = extent - shift });
        map->dim[d].piece[1] =
            (tsi_remap_piece){ .in = extent - shift, .count = shift, .out_step = 1, .in_step = 1 };
        map->dim[d].piece_count = 2;
    }
}

static const tsi_remap_kind roll_kind = { roll_map, NULL };

static ts_tensor *roll_all(ts_tensor *x, const int64_t *shifts, int32_t ndim, int64_t sign)
{
    roll_attributes a = { .shifts = { .count = ndim }, .dims = { .count = ndim } };
    for (int32_t d = 0; d < ndim; d++) {
        a.shifts.value[d] = sign * shifts[d];
        a.dims.value[d] = d;
    }
    return tsi_op_make(&tsi_op_roll, &x, 1, &a);
}

static ts_status roll_grad(const tsi_grad_io *io)
{
    const roll_attributes *a = io->attributes;
    return tsi_grad_give(io,
                         roll_all(io->out_grad[0], a->shifts.value, io->in_meta[0].shape.ndim, -1));
}

static bool sample_roll(tsi_sample *s)
{
    static const roll_attributes given[] = {
        { { .count = 1, .value = { 2 } }, { .count = 1, .value = { 0 } } },
        { { .count = 1, .value = { -9 } }, { .count = 1, .value = { -1 } } },
        { { .count = 2, .value = { 3, 1 } }, { .count = 2, .value = { 1, 0 } } },
    };
    return TSI_SAMPLE_GIVEN(s, TS_SHAPE(7, 4), given);
}

const tsi_op_desc tsi_op_roll = {
    .name = "roll",
    .what = "dims shifted; what leaves at one end comes in at the other",
    REMAP,
    TSI_ATTRIBUTES(roll_table, roll_attributes),
    .family = &roll_kind,
    .normalise = roll_normalise,
    .infer = tsi_infer_like,
    .grad = roll_grad,
    .sample = sample_roll,
};

/* ---- makers ---------------------------------------------------------------------------------- */

static tsi_dims list_of(const int64_t *value, int32_t count)
{
    tsi_dims out = { .count = !value ? 0 : count > TS_NDIM_MAX ? TS_NDIM_MAX : count };
    for (int32_t i = 0; i < out.count; i++)
        out.value[i] = value[i];
    return out;
}

ts_tensor *(ts_pad)(ts_tensor *x, const int64_t *pad, int32_t count, double value)
{
    if (count > TS_NDIM_MAX) {
        if (x) TSI_FAIL(TS_ERR_ARG, "pad: %d numbers, at most %d", count, TS_NDIM_MAX);
        return NULL;
    }
    pad_attributes a = { .pad = list_of(pad, count), .value = tsi_number_real(value) };
    return tsi_op_make(&tsi_op_pad, &x, 1, &a);
}

ts_tensor *(ts_flip)(ts_tensor *x, const int64_t *dims, int32_t count)
{
    flip_attributes a = { .dims = list_of(dims, count) };
    return tsi_op_make(&tsi_op_flip, &x, 1, &a);
}

ts_tensor *(ts_roll)(ts_tensor *x, const int64_t *shifts, const int64_t *dims, int32_t count)
{
    if (x && !dims) { /* as one dim */
        ts_shape shape = ts_tensor_shape(x), flat = TS_SHAPE(-1);
        ts_scope inner = tsi_scope_inner(x);
        ts_tensor *line = (ts_reshape)(x, flat);
        return ts_scope_leave(inner, (ts_reshape)(roll_all(line, shifts, 1, 1), shape));
    }
    roll_attributes a = { .shifts = list_of(shifts, count), .dims = list_of(dims, count) };
    return tsi_op_make(&tsi_op_roll, &x, 1, &a);
}
