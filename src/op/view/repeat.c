/* SPDX-License-Identifier: Apache-2.0 */
/* repeat.c - repeat (whole dims, one after another) and repeat_interleave (each index in a row).
 *
 * A dim that is repeated and cut is done by an exchange (remap.h); the others stay as they are.
 * Gradients sum the copies. */
#include <string.h>

#include "base/intmath.h"
#include "op/view/remap.h"
#include "tensor/scope.h"

typedef struct repeat_attributes {
    tsi_dims repeats; /* one number per dim */
} repeat_attributes;
static const tsi_attribute repeat_table[] = {
    TSI_ATTR(repeat_attributes, repeats, DIMS, "repeats", NULL), { 0 }
};

/* ---- repeat ---------------------------------------------------------------------------------- */

static ts_status repeat_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                  void *attributes)
{
    (void)op;
    (void)count;
    const tsi_dims *repeats = &((repeat_attributes *)attributes)->repeats;
    if (repeats->count != in[0].shape.ndim)
        return TSI_FAIL(TS_ERR_SHAPE, "repeat: %d numbers for a tensor of %d dims%s",
                        repeats->count, in[0].shape.ndim,
                        repeats->count > in[0].shape.ndim ? "; unsqueeze it first" : "");
    int64_t extent;
    for (int32_t d = 0; d < repeats->count; d++)
        if (repeats->value[d] < 0 ||
            !tsi_mul_i64(in[0].shape.extent[d], repeats->value[d], &extent))
            return TSI_FAIL(TS_ERR_ARG, "repeat: dim %d of extent %lld %lld times", d,
                            (long long)in[0].shape.extent[d], (long long)repeats->value[d]);
    return TS_OK;
}

static ts_status repeat_infer(const tsi_op_call *call)
{
    const tsi_dims *repeats = &((const repeat_attributes *)call->attributes)->repeats;
    call->out[0] = call->in[0];
    for (int32_t d = 0; d < repeats->count; d++)
        call->out[0].shape.extent[d] *= repeats->value[d];
    return TS_OK;
}

static void repeat_map(const tsi_op_call *call, int32_t input, tsi_remap *map)
{
    const tsi_dims *repeats = &((const repeat_attributes *)call->attributes)->repeats;
    const ts_shape *in = &call->in[input].shape;
    tsi_remap_begin(in, &call->out[0].shape, map);
    for (int32_t d = 0; d < in->ndim; d++) {
        map->dim[d].repeats = repeats->value[d];
        map->dim[d].out_shift = in->extent[d];
    }
}

static const tsi_remap_kind repeat_kind = { repeat_map, NULL };

/* Sums a dim that holds `copies` copies, outermost or innermost, into one of them. */
static ts_tensor *sum_copies(ts_tensor *dy, int32_t dim, int64_t copies, bool outer)
{
    ts_shape shape = ts_tensor_shape(dy);
    int64_t extent = shape.extent[dim] / copies, at = outer ? dim : dim + 1;
    if (shape.ndim < TS_NDIM_MAX) {
        ts_tensor *split = outer ? ts_unflatten(dy, dim, TS_SHAPE(copies, extent))
                                 : ts_unflatten(dy, dim, TS_SHAPE(extent, copies));
        return ts_sum(split, &at, 1, 0);
    }
    ts_tensor *sum = NULL; /* no dim is free: copy by copy */
    for (int64_t k = 0; k < copies; k++) {
        ts_slice_options part = TS_INIT(ts_slice_options);
        part.start = outer ? k * extent : k;
        part.end = outer ? (k + 1) * extent : shape.extent[dim];
        part.end_is_given = 1;
        part.step = outer ? 1 : copies;
        ts_tensor *one = ts_slice(dy, dim, &part);
        sum = sum ? ts_add(sum, one) : one;
    }
    return sum;
}

static ts_tensor *zeros_of(const tsi_grad_io *io)
{
    return ts_zeros(ts_tensor_mesh(io->out_grad[0]), (ts_dtype)io->in_meta[0].dtype,
                    io->in_meta[0].shape, NULL);
}

static ts_status repeat_grad(const tsi_grad_io *io)
{
    const tsi_dims *repeats = &((const repeat_attributes *)io->attributes)->repeats;
    ts_tensor *dy = io->out_grad[0];
    for (int32_t d = 0; d < repeats->count; d++) {
        if (repeats->value[d] == 0) dy = zeros_of(io);
        if (repeats->value[d] == 0) break;
        if (repeats->value[d] > 1) dy = sum_copies(dy, d, repeats->value[d], true);
    }
    return tsi_grad_give(io, dy);
}

static bool sample_repeat(tsi_sample *s)
{
    static const repeat_attributes given[] = { { { .count = 2, .value = { 2, 1 } } },
                                               { { .count = 2, .value = { 1, 3 } } },
                                               { { .count = 2, .value = { 2, 2 } } } };
    return TSI_SAMPLE_GIVEN(s, TS_SHAPE(5, 3), given);
}

#define REMAP                                                                                      \
    .input_min = 1, .input_max = 1, .output_count = 1, .rules = tsi_remap_rules,                   \
    .reference = tsi_remap_reference, .algorithm = tsi_remap_exchange,                             \
    .received = tsi_remap_received, .flags = TSI_OP_ONE_ROUND | TSI_OP_MOVES

const tsi_op_desc tsi_op_repeat = {
    .name = "repeat",
    .what = "whole dims repeated, one copy after another",
    REMAP,
    TSI_ATTRIBUTES(repeat_table, repeat_attributes),
    .family = &repeat_kind,
    .normalise = repeat_normalise,
    .infer = repeat_infer,
    .grad = repeat_grad,
    .sample = sample_repeat,
};

/* ---- repeat_interleave ----------------------------------------------------------------------- */

typedef struct interleave_attributes {
    int64_t repeats, dim;
} interleave_attributes;
static const tsi_attribute interleave_table[] = {
    TSI_ATTR(interleave_attributes, repeats, INT, "repeats", NULL),
    TSI_ATTR(interleave_attributes, dim, INT, "dim", "0"),
    { 0 }
};

static ts_status interleave_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                      void *attributes)
{
    (void)count;
    interleave_attributes *a = attributes;
    int64_t extent;
    if (in[0].shape.ndim == 0)
        return TSI_FAIL(TS_ERR_SHAPE, "repeat_interleave: a tensor without dims has no dim %lld",
                        (long long)a->dim);
    TSI_TRY(tsi_normalise_dim(op->name, &a->dim, in[0].shape.ndim));
    if (a->repeats < 0 || !tsi_mul_i64(in[0].shape.extent[a->dim], a->repeats, &extent))
        return TSI_FAIL(TS_ERR_ARG, "repeat_interleave: dim %lld of extent %lld %lld times",
                        (long long)a->dim, (long long)in[0].shape.extent[a->dim],
                        (long long)a->repeats);
    return TS_OK;
}

static ts_status interleave_infer(const tsi_op_call *call)
{
    const interleave_attributes *a = call->attributes;
    call->out[0] = call->in[0];
    call->out[0].shape.extent[a->dim] *= a->repeats;
    return TS_OK;
}

/* Copy k of all indices lies at k, k + repeats, ... */
static void interleave_map(const tsi_op_call *call, int32_t input, tsi_remap *map)
{
    const interleave_attributes *a = call->attributes;
    tsi_remap_begin(&call->in[input].shape, &call->out[0].shape, map);
    if (a->repeats == 1) return;
    tsi_remap_piece piece = { .count = call->in[input].shape.extent[a->dim],
                              .out_step = a->repeats };
    tsi_remap_set(map, (int32_t)a->dim, piece);
    map->dim[a->dim].repeats = a->repeats;
    map->dim[a->dim].out_shift = 1;
}

static const tsi_remap_kind interleave_kind = { interleave_map, NULL };

static ts_status interleave_grad(const tsi_grad_io *io)
{
    const interleave_attributes *a = io->attributes;
    return tsi_grad_give(io, a->repeats == 0
                                 ? zeros_of(io)
                                 : sum_copies(io->out_grad[0], (int32_t)a->dim, a->repeats, false));
}

static bool sample_interleave(tsi_sample *s)
{
    s->count = 1;
    s->in[0] = tsi_meta_f64(TS_SHAPE(5, 3));
    *(interleave_attributes *)s->attributes =
        (interleave_attributes){ 2 + s->variant, -s->variant };
    return s->variant < 2;
}

const tsi_op_desc tsi_op_repeat_interleave = {
    .name = "repeat_interleave",
    .what = "each index of a dim several times in a row",
    REMAP,
    TSI_ATTRIBUTES(interleave_table, interleave_attributes),
    .family = &interleave_kind,
    .normalise = interleave_normalise,
    .infer = interleave_infer,
    .grad = interleave_grad,
    .sample = sample_interleave,
};

/* ---- makers ---------------------------------------------------------------------------------- */

ts_tensor *(ts_repeat)(ts_tensor *x, const int64_t *repeats, int32_t count)
{
    repeat_attributes a = { .repeats = { .count = count > TS_NDIM_MAX || !repeats ? -1 : count } };
    if (!x) return tsi_op_make(&tsi_op_repeat, &x, 1, &a);
    for (int32_t i = 0; i < a.repeats.count; i++)
        a.repeats.value[i] = repeats[i];
    ts_shape have = ts_tensor_shape(x), wide = { .ndim = count };
    ts_scope inner = tsi_scope_inner(x);
    if (a.repeats.count > have.ndim) { /* new dims in front */
        for (int32_t d = 0; d < count; d++)
            wide.extent[d] = d < count - have.ndim ? 1 : have.extent[d - (count - have.ndim)];
        x = (ts_reshape)(x, wide);
    }
    return ts_scope_leave(inner, tsi_op_make(&tsi_op_repeat, &x, 1, &a));
}

ts_tensor *(ts_repeat_interleave)(ts_tensor *x, int64_t repeats, int32_t dim)
{
    return tsi_op_make(&tsi_op_repeat_interleave, &x, 1, &(interleave_attributes){ repeats, dim });
}
