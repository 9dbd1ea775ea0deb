/* SPDX-License-Identifier: Apache-2.0 */
/* common.c - shape inference and references that many operators share. */
#include "op/core/common.h"

#include <stdio.h>
#include <string.h>

const char *tsi_shape_text(const ts_shape *shape, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "(");
    for (int32_t d = 0; d < shape->ndim && used < size; d++)
        used += (size_t)snprintf(out + used, size - used, "%s%lld", d ? ", " : "",
                                 (long long)shape->extent[d]);
    if (used < size) snprintf(out + used, size - used, ")");
    return out;
}

/* ---- inference ------------------------------------------------------------------------------- */

static ts_status merge_shape(const tsi_op_call *call, const ts_shape *add, ts_shape *out)
{
    int32_t ndim = add->ndim > out->ndim ? add->ndim : out->ndim;
    ts_shape merged = { .ndim = ndim };
    for (int32_t d = 0; d < ndim; d++) {
        int32_t a = d - (ndim - add->ndim), b = d - (ndim - out->ndim);
        int64_t x = a >= 0 ? add->extent[a] : 1, y = b >= 0 ? out->extent[b] : 1;
        if (x != y && x != 1 && y != 1) {
            char one[96], other[96];
            return TSI_FAIL(TS_ERR_SHAPE,
                            "%s: shapes %s and %s do not broadcast: %lld against %lld",
                            call->op->name, tsi_shape_text(out, one, sizeof one),
                            tsi_shape_text(add, other, sizeof other), (long long)y, (long long)x);
        }
        merged.extent[d] = x == 1 ? y : x;
    }
    *out = merged;
    return TS_OK;
}

ts_status tsi_infer_broadcast(const tsi_op_call *call, ts_shape *out)
{
    *out = TS_SHAPE_SCALAR;
    for (int32_t i = 0; i < call->input_count; i++)
        if (call->in[i].dtype != TS_DTYPE_NONE) TSI_TRY(merge_shape(call, &call->in[i].shape, out));
    return TS_OK;
}

ts_status tsi_infer_pointwise(const tsi_op_call *call)
{
    ts_shape shape;
    TSI_TRY(tsi_infer_broadcast(call, &shape));
    ts_dtype dtype = TS_DTYPE_BOOL;
    for (int32_t i = 0; i < call->input_count; i++)
        if (call->in[i].dtype != TS_DTYPE_NONE)
            dtype = tsi_dtype_promote(dtype, (ts_dtype)call->in[i].dtype);
    for (int32_t o = 0; o < call->output_count; o++)
        call->out[o] = (ts_meta){ .shape = shape, .dtype = (int32_t)dtype };
    return TS_OK;
}

ts_status tsi_infer_like(const tsi_op_call *call)
{
    for (int32_t o = 0; o < call->output_count; o++)
        call->out[o] = call->in[0];
    return TS_OK;
}

ts_status tsi_check_reals(const tsi_op_call *call)
{
    for (int32_t i = 0; i < call->input_count; i++)
        if (tsi_dtype_category((ts_dtype)call->in[i].dtype) != TSI_CATEGORY_REAL)
            return TSI_FAIL(TS_ERR_DTYPE, "%s: is not defined for %s", call->op->name,
                            ts_dtype_name((ts_dtype)call->in[i].dtype));
    return TS_OK;
}

/* ---- dims ------------------------------------------------------------------------------------ */

ts_status tsi_normalise_dim(const char *op, int64_t *dim, int32_t ndim)
{
    int64_t span = ndim > 0 ? ndim : 1; /* a scalar counts as one dim */
    if (*dim < -span || *dim >= span)
        return TSI_FAIL(TS_ERR_ARG, "%s: dim %lld is out of range for %d dims", op, (long long)*dim,
                        ndim);
    if (*dim < 0) *dim += span;
    return TS_OK;
}

ts_status tsi_normalise_dims(const char *op, tsi_dims *dims, int32_t ndim)
{
    uint32_t mask = 0;
    for (int32_t i = 0; i < dims->count; i++) {
        TSI_TRY(tsi_normalise_dim(op, &dims->value[i], ndim));
        if (mask >> dims->value[i] & 1)
            return TSI_FAIL(TS_ERR_ARG, "%s: dim %lld is given twice", op,
                            (long long)dims->value[i]);
        mask |= 1u << dims->value[i];
    }
    if (dims->count <= 0) mask = ndim > 0 ? (1u << ndim) - 1 : 0;
    *dims = (tsi_dims){ 0 };
    for (int32_t d = 0; d < ndim; d++)
        if (mask >> d & 1) dims->value[dims->count++] = d;
    return TS_OK;
}

ts_status tsi_dims_spread(const char *op, const char *name, tsi_dims *dims, int32_t places,
                          int64_t least)
{
    if (dims->count != 1 && dims->count != places)
        return TSI_FAIL(TS_ERR_ARG, "%s: %d numbers of %s do not fit %d place dims", op,
                        (int)dims->count, name, (int)places);
    for (int32_t i = 1; dims->count == 1 && i < places; i++)
        dims->value[i] = dims->value[0];
    dims->count = places;
    for (int32_t i = 0; i < places; i++)
        if (dims->value[i] < least || dims->value[i] > INT32_MAX)
            return TSI_FAIL(TS_ERR_ARG, "%s: a %s of %lld has no meaning", op, name,
                            (long long)dims->value[i]);
    return TS_OK;
}

uint32_t tsi_dims_mask(const tsi_dims *dims)
{
    uint32_t mask = 0;
    for (int32_t i = 0; i < dims->count; i++)
        mask |= 1u << dims->value[i];
    return mask;
}

ts_shape tsi_shape_reduce(const ts_shape *shape, uint32_t mask, bool keepdim)
{
    ts_shape out = TS_SHAPE_SCALAR;
    for (int32_t d = 0; d < shape->ndim; d++) {
        bool gone = mask >> d & 1;
        if (!gone || keepdim) out.extent[out.ndim++] = gone ? 1 : shape->extent[d];
    }
    return out;
}

/* ---- references ------------------------------------------------------------------------------ */

typedef struct pointwise_loop {
    tsi_loop loop;
    int64_t stride[TSI_LOOP_OPERANDS][TS_NDIM_MAX];
} pointwise_loop;

static void pointwise_begin(const tsi_kernel_io *io, pointwise_loop *p)
{
    const tsi_block *out = &io->out[0].block;
    p->loop = (tsi_loop){ .ndim = out->ndim, .operand_count = 1 + io->input_count };
    memcpy(p->loop.extent, out->extent, sizeof p->loop.extent);
    p->loop.stride[0] = out->stride;
    for (int32_t i = 0; i < io->input_count; i++) {
        tsi_broadcast_strides(&io->in[i].block, out->ndim, out->extent, p->stride[i]);
        p->loop.stride[1 + i] = p->stride[i];
    }
}

static void compute_one(const tsi_kernel_io *io, const tsi_scalar_fns *fns, tsi_category category,
                        const int64_t *at)
{
    ts_dtype to = (ts_dtype)io->out[0].block.dtype;
    void *target = tsi_block_at(&io->out[0].block, at[0]);
    double real[4];
    int64_t whole[4];
    double complex both[4];
    for (int32_t i = 0; i < io->input_count && i < 4; i++) {
        ts_dtype dtype = (ts_dtype)io->in[i].block.dtype;
        if (dtype == TS_DTYPE_NONE) continue;
        const void *element = tsi_block_at(&io->in[i].block, at[1 + i]);
        if (category == TSI_CATEGORY_COMPLEX)
            both[i] = tsi_load_complex(dtype, element);
        else if (category == TSI_CATEGORY_REAL)
            real[i] = tsi_load_real(dtype, element);
        else
            whole[i] = tsi_load_int(dtype, element);
    }
    if (category == TSI_CATEGORY_COMPLEX)
        tsi_store_complex(to, target, fns->both(both, io->attributes));
    else if (category == TSI_CATEGORY_REAL)
        tsi_store_real(to, target, fns->real(real, io->attributes));
    else
        tsi_store_int(to, target, fns->integer(whole, io->attributes));
}

ts_status tsi_reference_pointwise(const tsi_kernel_io *io, const tsi_scalar_fns *fns,
                                  ts_dtype compute)
{
    tsi_category category = tsi_dtype_category(compute);
    bool has = category == TSI_CATEGORY_COMPLEX ? fns->both != NULL
               : category == TSI_CATEGORY_REAL  ? fns->real != NULL
                                                : fns->integer != NULL;
    if (!has)
        return TSI_FAIL(TS_ERR_DTYPE, "%s: is not defined for %s", io->op->name,
                        ts_dtype_name(compute));
    pointwise_loop p;
    pointwise_begin(io, &p);
    for (bool more = tsi_loop_begin(&p.loop); more; more = tsi_loop_next(&p.loop))
        compute_one(io, fns, category, p.loop.at);
    return TS_OK;
}

ts_tensor *tsi_op_make2(const tsi_op_desc *op, ts_tensor *a, ts_tensor *b, const void *attributes)
{
    ts_tensor *in[] = { a, b };
    return tsi_op_make(op, in, 2, attributes);
}

ts_status tsi_propagate_to(const tsi_op_call *call, tsi_mesh_desc *mesh, const ts_placement *in,
                           const ts_placement *result, const ts_layout **in_wanted,
                           const ts_sharding **out)
{
    const ts_sharding *wanted = tsi_sharding_intern(mesh, in);
    if (!wanted) return TS_ERR_MEMORY;
    *in_wanted = tsi_layout_intern(wanted, &call->in[0].shape);
    ts_sharding_release(wanted);
    *out = *in_wanted ? tsi_sharding_intern(mesh, result) : NULL;
    if (*out) return TS_OK;
    ts_layout_release(*in_wanted);
    return TS_ERR_MEMORY;
}
