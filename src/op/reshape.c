/* SPDX-License-Identifier: Apache-2.0 */
/* reshape.c - the same elements in row-major order under another shape, also when dims are sharded.
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

#include "op/common.h"

typedef struct reshape_attributes {
    tsi_dims shape;
} reshape_attributes;
static const tsi_attribute reshape_table[] = {
    TSI_ATTR(reshape_attributes, shape, DIMS, "shape", NULL), { 0 }
};

/* ---- shape ----------------------------------------------------------------------------------- */

static ts_status reshape_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t count,
                                   void *attributes)
{
    (void)op;
    (void)count;
    tsi_dims *shape = &((reshape_attributes *)attributes)->shape;
    int64_t total = ts_shape_count(&in[0].shape), known = 1;
    int32_t open = -1;
    for (int32_t d = 0; d < shape->count; d++) {
        if (shape->value[d] == -1 && open < 0)
            open = d;
        else if (shape->value[d] < 0)
            return TSI_FAIL(TS_ERR_SHAPE, "reshape: extent %lld of dim %d has no meaning",
                            (long long)shape->value[d], d);
        else
            known *= shape->value[d];
    }
    if (open >= 0 && known > 0 && total % known == 0) shape->value[open] = total / known;
    ts_shape want = { .ndim = shape->count };
    memcpy(want.extent, shape->value, sizeof want.extent);
    char from[96], to[96];
    if (ts_shape_count(&want) != total)
        return TSI_FAIL(TS_ERR_SHAPE, "reshape: %s has %lld elements and does not become %s",
                        tsi_shape_text(&in[0].shape, from, sizeof from), (long long)total,
                        tsi_shape_text(&want, to, sizeof to));
    return TS_OK;
}

static ts_status reshape_infer(const tsi_op_call *call)
{
    const tsi_dims *shape = &((const reshape_attributes *)call->attributes)->shape;
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
                    if (!carry_cut(&c, &list[i], &place[k], mesh->size[k], &out[k])) return k;
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
    const ts_sharding *wanted = tsi_sharding_intern(sharding->mesh, place);
    if (!wanted) return TS_ERR_MEMORY;
    *in_wanted = tsi_layout_intern(wanted, &call->in[0].shape);
    ts_sharding_release(wanted);
    *out = *in_wanted ? tsi_sharding_intern(sharding->mesh, result) : NULL;
    if (*out) return TS_OK;
    ts_layout_release(*in_wanted);
    return TS_ERR_MEMORY;
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
    tsi_block to = io->in[0].block;
    to.data = io->out[0].block.data;
    to.dtype = io->out[0].block.dtype;
    int64_t stride = 1;
    for (int32_t d = to.ndim - 1; d >= 0; stride *= to.extent[d--])
        to.stride[d] = stride;
    return io->device->copy(io->device, &to, &io->in[0].block, NULL);
}

static ts_status reshape_grad(const tsi_grad_io *io)
{
    io->in_grad[0] = ts_reshape(io->out_grad[0], io->in_meta[0].shape);
    return ts_rank_status(io->rank);
}

static bool sample_reshape(uint64_t *random, int32_t variant, ts_meta *in, int32_t *count,
                           void *attributes)
{
    (void)random;
    static const int64_t from[][3] = { { 4, 6, 2 }, { 4, 6, 2 }, { 6, 4, 2 }, { 5, 3, 4 } };
    static const tsi_dims to[] = { { .count = 2, .value = { 24, 2 } },
                                   { .count = 1, .value = { -1 } },
                                   { .count = 4, .value = { 2, 3, 2, 4 } },
                                   { .count = 2, .value = { 5, 12 } } };
    *count = 1;
    in[0] = (ts_meta){ .shape = { .ndim = 3 }, .dtype = TS_DTYPE_F64 };
    memcpy(in[0].shape.extent, from[variant % 4], sizeof from[0]);
    ((reshape_attributes *)attributes)->shape = to[variant % 4];
    return variant < 4;
}

const tsi_op_desc tsi_op_reshape = {
    .name = "reshape",
    .what = "the same elements under another shape; one extent may be -1",
    .input_min = 1,
    .input_max = 1,
    .output_count = 1,
    .flags = TSI_OP_VIEW,
    .attribute = reshape_table,
    .attribute_bytes = sizeof(reshape_attributes),
    .normalise = reshape_normalise,
    .infer = reshape_infer,
    .propagate = reshape_propagate,
    .view = reshape_strides,
    .reference = reshape_reference,
    .grad = reshape_grad,
    .sample = sample_reshape,
};

/* ---- makers ---------------------------------------------------------------------------------- */

ts_tensor *(ts_reshape)(ts_tensor *x, ts_shape shape)
{
    reshape_attributes a = { .shape = { .count = shape.ndim } };
    memcpy(a.shape.value, shape.extent, sizeof a.shape.value);
    return tsi_op_make(&tsi_op_reshape, &x, 1, &a);
}

ts_tensor *(ts_flatten)(ts_tensor *x, int32_t first, int32_t last)
{
    ts_shape have = ts_tensor_shape(x), want = TS_SHAPE_SCALAR;
    if (first < 0) first += have.ndim;
    if (last < 0) last += have.ndim;
    if (!x || first < 0 || last >= have.ndim || first > last) return (ts_reshape)(x, have);
    for (int32_t d = 0; d < have.ndim; d++) {
        if (d > first && d <= last)
            want.extent[want.ndim - 1] *= have.extent[d];
        else
            want.extent[want.ndim++] = have.extent[d];
    }
    return (ts_reshape)(x, want);
}

ts_tensor *(ts_unflatten)(ts_tensor *x, int32_t dim, ts_shape sizes)
{
    ts_shape have = ts_tensor_shape(x), want = TS_SHAPE_SCALAR;
    if (dim < 0) dim += have.ndim;
    if (!x || dim < 0 || dim >= have.ndim || have.ndim - 1 + sizes.ndim > TS_NDIM_MAX) {
        if (x && ts_rank_status(x->rank) == TS_OK)
            TSI_FAIL(TS_ERR_ARG, "unflatten: dim %d cannot be split into %d of a tensor of %d dims",
                     dim, sizes.ndim, have.ndim);
        return NULL;
    }
    for (int32_t d = 0; d < have.ndim; d++) {
        if (d != dim)
            want.extent[want.ndim++] = have.extent[d];
        else
            for (int32_t s = 0; s < sizes.ndim; s++)
                want.extent[want.ndim++] = sizes.extent[s];
    }
    return (ts_reshape)(x, want);
}
