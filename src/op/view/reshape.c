/* SPDX-License-Identifier: Apache-2.0 */
/* reshape.c - the same elements in row-major order under another shape, also when dims are sharded:
 * reshape, flatten, unflatten.
 *
 * Dims fall into groups of equal products, (6, 4) -> (3, 8) is one. Within a group a cut of dim g
 * is, on the flattened group, a cut of F pieces, F being the extents before g times its own split
 * factor; it is a cut of the output dim h in which the extents before h divide F, with split factor
 * F over those. So flattening a later dim gives a strided shard, and splitting a strided shard may
 * give a plain one; nothing moves. What no output dim can express (sizes that do not divide) is
 * moved first, to another dim if one will do, else gathered.
 *
 * INV: extents here are what is left after the cuts taken so far, so several axes may cut one
 * group. */
#include <string.h>

#include "base/intmath.h"
#include "op/core/common.h"

typedef struct reshape_attributes {  /* reshape itself has the shape and nothing else */
    tsi_dims shape;                  /* of the result; flatten and unflatten: once normalised */
    tsi_dims sizes;                  /* unflatten: what the dim becomes */
    int64_t dim, start_dim, end_dim; /* unflatten; flatten: first and last */
} reshape_attributes;
static const tsi_attribute reshape_table[] = {
    TSI_ATTR(reshape_attributes, shape, DIMS, "shape", NULL), { 0 }
};
static const tsi_attribute flatten_table[] = {
    TSI_ATTR(reshape_attributes, start_dim, INT, "start_dim", "0"),
    TSI_ATTR(reshape_attributes, end_dim, INT, "end_dim", "-1"),
    { 0 },
};
static const tsi_attribute unflatten_table[] = {
    TSI_ATTR(reshape_attributes, dim, INT, "dim", NULL),
    TSI_ATTR(reshape_attributes, sizes, DIMS, "sizes", NULL),
    { 0 },
};

/* ---- shape ----------------------------------------------------------------------------------- */

/* Fills in the extent that is -1. false: one has no meaning, or the product is not `total`. */
static bool settle(int64_t *extent, int32_t count, int64_t total)
{
    int64_t known = 1;
    int32_t open = -1;
    for (int32_t d = 0; d < count; d++) {
        if (extent[d] == -1 && open < 0)
            open = d;
        else if (extent[d] < 0 || !tsi_mul_i64(known, extent[d], &known))
            return false;
    }
    if (open >= 0 && known > 0 && total % known == 0) {
        extent[open] = total / known;
        known = total;
    }
    return known == total && (open < 0 || extent[open] >= 0);
}

static ts_status reshape_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                   void *attributes)
{
    (void)count;
    tsi_dims *shape = attributes;
    int64_t total = ts_shape_count(&in[0].shape);
    ts_shape want = { .ndim = shape->count };
    memcpy(want.extent, shape->value, sizeof want.extent);
    char from[96], to[96];
    if (!settle(shape->value, shape->count, total))
        return TSI_FAIL(TS_ERR_SHAPE, "%s: %s has %lld elements and does not become %s", op->name,
                        tsi_shape_text(&in[0].shape, from, sizeof from), (long long)total,
                        tsi_shape_text(&want, to, sizeof to));
    return TS_OK;
}

static ts_status flatten_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                   void *attributes)
{
    (void)count;
    reshape_attributes *a = attributes;
    const ts_shape *have = &in[0].shape;
    TSI_TRY(tsi_normalise_dim(op->name, &a->start_dim, have->ndim));
    TSI_TRY(tsi_normalise_dim(op->name, &a->end_dim, have->ndim));
    if (a->start_dim > a->end_dim)
        return TSI_FAIL(TS_ERR_ARG, "%s: dim %lld does not come before dim %lld", op->name,
                        (long long)a->start_dim, (long long)a->end_dim);
    a->shape = (tsi_dims){ .count = have->ndim == 0, .value = { 1 } };
    for (int32_t d = 0; d < have->ndim; d++) {
        int64_t *to = &a->shape.value[a->shape.count > 0 ? a->shape.count - 1 : 0];
        bool joins = d > a->start_dim && d <= a->end_dim;
        if (joins && !tsi_mul_i64(*to, have->extent[d], to))
            return TSI_FAIL(TS_ERR_SHAPE, "%s: the dims together overflow 64 bits", op->name);
        if (!joins) a->shape.value[a->shape.count++] = have->extent[d];
    }
    return TS_OK;
}

static ts_status unflatten_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                     void *attributes)
{
    (void)count;
    reshape_attributes *a = attributes;
    const ts_shape *have = &in[0].shape;
    TSI_TRY(tsi_normalise_dim(op->name, &a->dim, have->ndim));
    if (have->ndim == 0 || a->sizes.count < 1 || have->ndim - 1 + a->sizes.count > TS_NDIM_MAX)
        return TSI_FAIL(TS_ERR_ARG, "%s: dim %lld of a tensor of %d dims cannot become %d dims",
                        op->name, (long long)a->dim, have->ndim, a->sizes.count);
    ts_shape want = { .ndim = a->sizes.count };
    memcpy(want.extent, a->sizes.value, sizeof want.extent);
    char to[96];
    if (!settle(a->sizes.value, a->sizes.count, have->extent[a->dim]))
        return TSI_FAIL(TS_ERR_SHAPE, "%s: dim %lld of extent %lld does not become %s", op->name,
                        (long long)a->dim, (long long)have->extent[a->dim],
                        tsi_shape_text(&want, to, sizeof to));
    a->shape = (tsi_dims){ 0 };
    for (int32_t d = 0; d < have->ndim; d++) {
        for (int32_t i = 0; d == a->dim && i < a->sizes.count; i++)
            a->shape.value[a->shape.count++] = a->sizes.value[i];
        if (d != a->dim) a->shape.value[a->shape.count++] = have->extent[d];
    }
    return TS_OK;
}

static ts_status reshape_infer(const tsi_op_call *call)
{
    const tsi_dims *shape = call->attributes; /* the first of all three */
    call->out[0] = (ts_meta){ .shape = { .ndim = shape->count }, .dtype = call->in[0].dtype };
    memcpy(call->out[0].shape.extent, shape->value, sizeof call->out[0].shape.extent);
    return TS_OK;
}

/* ---- groups of dims -------------------------------------------------------------------------- */

typedef struct group {
    int32_t in_first, in_end, out_first, out_end;
} group;

/* Splits both shapes into runs of dims with equal products; an empty tensor is one group. */
static int32_t groups_of(const ts_shape *in, const ts_shape *out, group *list)
{
    int32_t i = 0, j = 0, count = 0;
    if (ts_shape_count(in) == 0) {
        list[0] = (group){ 0, in->ndim, 0, out->ndim };
        return 1;
    }
    while (i < in->ndim || j < out->ndim) {
        group g = { i, i, j, j };
        int64_t a = 1, b = 1;
        if (i < in->ndim) a = in->extent[i++];
        if (j < out->ndim) b = out->extent[j++];
        while (a != b) {
            if (a < b && i < in->ndim)
                a *= in->extent[i++];
            else if (j < out->ndim)
                b *= out->extent[j++];
            else
                break;
        }
        g.in_end = i;
        g.out_end = j;
        list[count++] = g;
    }
    return count;
}

/* ---- carrying cuts over ---------------------------------------------------------------------- */

typedef struct carry {
    const tsi_mesh_desc *mesh;
    int64_t in[TS_NDIM_MAX], out[TS_NDIM_MAX]; /* extents left */
    int32_t next[TS_NDIM_MAX];                 /* positions taken per output dim */
    bool closed; /* an uneven cut was taken in this group: no further one can be */
    ts_placement place[TS_NDIM_MAX]; /* of the output, per axis */
} carry;

/* Takes one axis's cut of dim g over to the group's output dims. */
static bool carry_cut(carry *c, const group *range, const ts_placement *cut, int64_t n,
                      ts_placement *out)
{
    int64_t g = cut->dim, factor = cut->kind == TS_PLACE_STRIDED ? cut->factor : 1;
    if (c->closed || cut->dim != cut->dim_last || cut->align > 1) return false;
    if (cut->kind != TS_PLACE_SHARD && cut->kind != TS_PLACE_STRIDED) return false;
    if (c->in[g] % factor != 0) return false;
    int64_t pieces = factor, length = c->in[g] / factor, inner = 1;
    for (int32_t d = range->in_first; d < g; d++)
        pieces *= c->in[d];
    for (int32_t d = (int32_t)g + 1; d < range->in_end; d++)
        inner *= c->in[d];
    bool even = length % n == 0;
    int64_t before = 1;
    for (int32_t h = range->out_first; h < range->out_end; before *= c->out[h], h++) {
        if (before == 0 || pieces % before != 0) continue;
        int64_t split = pieces / before;
        if (split == 0 || c->out[h] % split != 0) continue;
        int64_t own = c->out[h] / split, own_inner = 1;
        for (int32_t d = h + 1; d < range->out_end; d++)
            own_inner *= c->out[d];
        bool fits = even ? own % n == 0 : own == length && own_inner == inner;
        if (!fits) continue;
        *out = (ts_placement){ .kind = split == 1 ? TS_PLACE_SHARD : TS_PLACE_STRIDED,
                               .dim = h,
                               .dim_last = h,
                               .order = c->next[h]++,
                               .factor = split,
                               .align = 1 };
        c->closed = !even;
        if (even) {
            c->in[g] /= n;
            c->out[h] /= n;
        }
        return true;
    }
    return false;
}

/* The one dim of [first, end) that is not 1; -1: there are none, or several. */
static int32_t only_dim(const ts_shape *shape, int32_t first, int32_t end)
{
    int32_t found = -1;
    for (int32_t d = first; d < end; d++) {
        if (shape->extent[d] == 1) continue;
        if (found >= 0) return -1;
        found = d;
    }
    return found;
}

/* A dim that stays as it is, beside dims of 1, keeps its cuts, of whatever kind. */
static bool carry_dim(const tsi_op_call *call, const group *range, const ts_placement *cut,
                      ts_placement *out)
{
    int32_t from = only_dim(&call->in[0].shape, range->in_first, range->in_end);
    int32_t to = only_dim(&call->out[0].shape, range->out_first, range->out_end);
    if (from < 0 || to < 0 || cut->dim != from || cut->dim_last != from) return false;
    *out = *cut;
    out->dim = out->dim_last = to;
    return true;
}

/* Placements of the result for placements of the input; returns the first axis that cannot be
 * carried, or -1. */
static int32_t carry_all(const tsi_op_call *call, const tsi_mesh_desc *mesh,
                         const ts_placement *place, ts_placement *out)
{
    const ts_shape *from = &call->in[0].shape, *to = &call->out[0].shape;
    carry c = { .mesh = mesh };
    memcpy(c.in, from->extent, sizeof c.in);
    memcpy(c.out, to->extent, sizeof c.out);
    for (int32_t k = 0; k < mesh->ndim; k++)
        out[k] = place[k];
    group list[2 * TS_NDIM_MAX + 1];
    int32_t count = groups_of(from, to, list);
    for (int32_t i = 0; i < count; i++) {
        c.closed = false;
        for (int32_t d = list[i].in_first; d < list[i].in_end; d++)
            for (int32_t position = 0; position < mesh->ndim; position++)
                for (int32_t k = 0; k < mesh->ndim; k++) {
                    if (!tsi_placement_cuts(&place[k]) || place[k].dim != d ||
                        place[k].order != position)
                        continue;
                    if (!carry_dim(call, &list[i], &place[k], &out[k]) &&
                        !carry_cut(&c, &list[i], &place[k], mesh->size[k], &out[k]))
                        return k;
                }
    }
    return -1;
}

/* Positions of the cuts of each dim counted anew, in the order they had. */
static void renumber(ts_placement *place, int32_t axes)
{
    int32_t next[TS_NDIM_MAX] = { 0 };
    for (int32_t position = 0; position <= 2 * TS_NDIM_MAX; position++)
        for (int32_t k = 0; k < axes; k++)
            if (tsi_placement_cuts(&place[k]) && place[k].order == position)
                place[k].order = -1 - next[place[k].dim]++;
    for (int32_t k = 0; k < axes; k++)
        if (tsi_placement_cuts(&place[k])) place[k].order = -1 - place[k].order;
}

/* Another placement for an axis whose cut cannot be carried: a plain cut of dim `attempt`, or at
 * last R. */
static void replace(ts_placement *place, int32_t axis, int32_t attempt, int32_t ndim, int32_t axes)
{
    place[axis] = (ts_placement){ .kind = TS_PLACE_REPLICATE, .factor = 1, .align = 1 };
    if (attempt < ndim) {
        place[axis].kind = TS_PLACE_SHARD;
        place[axis].dim = place[axis].dim_last = attempt;
        place[axis].order = 2 * TS_NDIM_MAX; /* innermost */
    }
    renumber(place, axes);
}

static ts_status reshape_propagate(const tsi_op_call *call, const ts_layout *in,
                                   const ts_layout **in_wanted, const ts_sharding **out)
{
    const ts_sharding *sharding = in->sharding;
    ts_placement place[TS_NDIM_MAX], result[TS_NDIM_MAX];
    memcpy(place, sharding->place, sizeof place);
    int32_t attempt[TS_NDIM_MAX] = { 0 }, ndim = call->in[0].shape.ndim;
    for (;;) {
        int32_t axis = carry_all(call, sharding->mesh, place, result);
        if (axis < 0) break;
        replace(place, axis, attempt[axis]++, ndim, sharding->ndim);
    }
    return tsi_propagate_to(call, sharding->mesh, place, result, in_wanted, out);
}

/* ---- locally --------------------------------------------------------------------------------- */

/* Strides of `out` on the memory of `in`: each group of dims must lie in one stretch. */
static bool reshape_strides(const tsi_op_call *call, const tsi_block *in, tsi_block *out,
                            int64_t *offset)
{
    (void)call;
    *offset = 0;
    if (tsi_block_count(in) == 0) {
        int64_t stride = 1;
        for (int32_t d = out->ndim - 1; d >= 0; stride *= out->extent[d--])
            out->stride[d] = stride;
        return true;
    }
    ts_shape from = { .ndim = in->ndim }, to = { .ndim = out->ndim };
    memcpy(from.extent, in->extent, sizeof from.extent);
    memcpy(to.extent, out->extent, sizeof to.extent);
    group list[2 * TS_NDIM_MAX + 1];
    int32_t count = groups_of(&from, &to, list);
    for (int32_t i = 0; i < count; i++) {
        int64_t stride = 1, expected = -1;
        for (int32_t d = list[i].in_end - 1; d >= list[i].in_first; d--) {
            if (in->extent[d] == 1) continue;
            if (expected < 0)
                stride = in->stride[d];
            else if (in->stride[d] != expected)
                return false;
            expected = in->stride[d] * in->extent[d];
        }
        for (int32_t d = list[i].out_end - 1; d >= list[i].out_first; d--) {
            out->stride[d] = stride;
            stride *= out->extent[d];
        }
    }
    return true;
}

/* Row-major order is the same on both sides, so the result's memory is filled under the input's
 * extents. */
static ts_status reshape_reference(const tsi_kernel_io *io)
{
    tsi_block to = tsi_block_dense_like(&io->in[0].block, io->out[0].block.data);
    to.dtype = io->out[0].block.dtype;
    return io->device->copy(io->device, &to, &io->in[0].block, io->queue);
}

static ts_status reshape_grad(const tsi_grad_io *io)
{
    return tsi_grad_give(io, ts_reshape(io->out_grad[0], io->in_meta[0].shape));
}

static bool sample_reshape(tsi_sample *s)
{
    static const int64_t from[][3] = { { 4, 6, 2 }, { 4, 6, 2 }, { 6, 4, 2 }, { 5, 3, 4 } };
    static const tsi_dims to[] = { { .count = 2, .value = { 24, 2 } },
                                   { .count = 1, .value = { -1 } },
                                   { .count = 4, .value = { 2, 3, 2, 4 } },
                                   { .count = 2, .value = { 5, 12 } } };
    s->count = 1;
    s->in[0] = (ts_meta){ .shape = { .ndim = 3 }, .dtype = TS_DTYPE_F64 };
    memcpy(s->in[0].shape.extent, from[s->variant % 4], sizeof from[0]);
    *(tsi_dims *)s->attributes = to[s->variant % 4];
    return s->variant < 4;
}

static bool sample_flatten(tsi_sample *s)
{
    bool more = sample_reshape(s);
    *(reshape_attributes *)s->attributes =
        (reshape_attributes){ .start_dim = s->variant == 1 ? 1 : 0,
                              .end_dim = s->variant == 2 ? 1 : -1 };
    return more;
}

static bool sample_unflatten(tsi_sample *s)
{
    bool more = sample_reshape(s);
    *(reshape_attributes *)s->attributes = (reshape_attributes){
        .dim = s->variant == 1 ? -2 : 0,
        .sizes = { .count = 2, .value = { s->variant == 3 ? 5 : 2, -1 } },
    };
    return more;
}

#define RESHAPE                                                                                    \
    .input_min = 1, .input_max = 1, .output_count = 1, .flags = TSI_OP_VIEW | TSI_OP_MOVES,        \
    .infer = reshape_infer, .propagate = reshape_propagate, .view = reshape_strides,               \
    .reference = reshape_reference, .grad = reshape_grad

const tsi_op_desc tsi_op_reshape = {
    .name = "reshape",
    .what = "the same elements under another shape; one extent may be -1",
    RESHAPE,
    TSI_ATTRIBUTES(reshape_table, tsi_dims),
    .normalise = reshape_normalise,
    .sample = sample_reshape,
};
const tsi_op_desc tsi_op_flatten = {
    .name = "flatten",
    .what = "dims start_dim to end_dim as one",
    RESHAPE,
    TSI_ATTRIBUTES(flatten_table, reshape_attributes),
    .normalise = flatten_normalise,
    .sample = sample_flatten,
};
const tsi_op_desc tsi_op_unflatten = {
    .name = "unflatten",
    .what = "one dim as several; one of the sizes may be -1",
    RESHAPE,
    TSI_ATTRIBUTES(unflatten_table, reshape_attributes),
    .normalise = unflatten_normalise,
    .sample = sample_unflatten,
};

/* ---- makers ---------------------------------------------------------------------------------- */

ts_tensor *(ts_reshape)(ts_tensor *x, ts_shape shape)
{
    tsi_dims a = { .count = shape.ndim };
    memcpy(a.value, shape.extent, sizeof a.value);
    return tsi_op_make(&tsi_op_reshape, &x, 1, &a);
}

ts_tensor *(ts_flatten)(ts_tensor *x, int32_t first, int32_t last)
{
    reshape_attributes a = { .start_dim = first, .end_dim = last };
    return tsi_op_make(&tsi_op_flatten, &x, 1, &a);
}

ts_tensor *(ts_unflatten)(ts_tensor *x, int32_t dim, ts_shape sizes)
{
    reshape_attributes a = { .dim = dim, .sizes = { .count = sizes.ndim } };
    memcpy(a.sizes.value, sizes.extent, sizeof a.sizes.value);
    return tsi_op_make(&tsi_op_unflatten, &x, 1, &a);
}
