/* SPDX-License-Identifier: Apache-2.0 */
/* read.c - getting values out of a distributed tensor: block, whole, one number, DLPack. */
#include <math.h>
#include <string.h>

#include "array/image.h"
#include "base/dtype.h"
#include "tensor/move.h"
#include "tensor/tensor.h"

ts_tensor *ts_tensor_local(ts_tensor *t)
{
    ts_rank *rank = tsi_tensor_enter(t, "local");
    if (!rank || tsi_tensor_ready(t) != TS_OK) return NULL;
    ts_mesh *self = ts_mesh_self(rank);
    const ts_layout *layout =
        self ? tsi_tensor_layout_of(self, NULL, tsi_array_shape(t->array)) : NULL;
    if (!layout) return NULL;
    ts_tensor *block =
        tsi_tensor_make(self, layout, (ts_dtype)t->dtype, tsi_array_retain(t->array), NULL);
    ts_layout_release(layout);
    return block;
}

ts_status ts_tensor_view(ts_tensor *t, ts_array *out)
{
    if (out)
        memset((char *)out + sizeof out->struct_size, 0, sizeof *out - sizeof out->struct_size);
    ts_rank *rank = tsi_tensor_enter(t, "view");
    if (!rank) return tsi_rank_current() ? ts_rank_status(tsi_rank_current()) : TS_ERR_NULL;
    if (!out) return TSI_FAIL(TS_ERR_NULL, "view: the output is NULL");
    TSI_TRY(tsi_tensor_ready(t));
    TSI_TRY(tsi_rank_device_sync(rank));
    tsi_array_describe(t->array, out);
    return TS_OK;
}

ts_status ts_tensor_read(ts_tensor *t, const ts_array *to)
{
    ts_rank *rank = tsi_tensor_enter(t, "read");
    if (!rank) return tsi_rank_current() ? ts_rank_status(tsi_rank_current()) : TS_ERR_NULL;
    if (!to) return TSI_FAIL(TS_ERR_NULL, "read: the target is NULL");
    if (to->device > 1)
        return TSI_FAIL(TS_ERR_ARG, "read: the target lies on device type %d, not in host memory",
                        to->device);
    tsi_block block;
    TSI_TRY(tsi_block_of_array(to, "read", &block));
    TSI_TRY(tsi_tensor_ready(t));
    bool fits = block.ndim == t->array->ndim;
    for (int32_t d = 0; fits && d < block.ndim; d++)
        fits = block.extent[d] == t->array->extent[d];
    if (!fits)
        return TSI_FAIL(TS_ERR_SHAPE,
                        "read: the target has not the shape of this rank's block (%s)",
                        t->layout->text);
    return tsi_array_read(rank, t->array, &block);
}

/* `host`: it waits, and the stream does not. */
static ts_status give_dlpack(ts_tensor *t, bool host, void *stream,
                             struct DLManagedTensorVersioned **out)
{
    if (out) *out = NULL;
    ts_rank *rank = tsi_tensor_enter(t, "dlpack");
    if (!rank) return tsi_rank_current() ? ts_rank_status(tsi_rank_current()) : TS_ERR_NULL;
    if (!out) return TSI_FAIL(TS_ERR_NULL, "dlpack: the output is NULL");
    TSI_TRY(tsi_tensor_ready(t));
    TSI_TRY(host ? tsi_rank_device_sync(rank) : tsi_rank_device_meet(rank, stream, false));
    return tsi_array_to_dlpack(t->array, out);
}

ts_status ts_tensor_dlpack(ts_tensor *t, struct DLManagedTensorVersioned **out)
{
    return give_dlpack(t, true, NULL, out);
}

ts_status ts_tensor_dlpack_on(ts_tensor *t, void *stream, struct DLManagedTensorVersioned **out)
{
    return give_dlpack(t, false, stream, out);
}

ts_tensor *(ts_tensor_full)(ts_tensor *t)
{
    ts_rank *rank = tsi_tensor_enter(t, "full");
    if (!rank) return NULL;
    const ts_sharding *whole = tsi_sharding_replicated(t->mesh->desc);
    if (!whole) return NULL;
    ts_tensor *full = (ts_redistribute_to)(t, whole);
    ts_sharding_release(whole);
    return full;
}

/* The one element of a tensor in the given dtype; nothing on ranks outside its mesh. */
static ts_status read_one(ts_tensor *t, ts_dtype as, void *out)
{
    ts_rank *rank = tsi_tensor_enter(t, "item");
    if (!rank) return tsi_rank_current() ? ts_rank_status(tsi_rank_current()) : TS_ERR_NULL;
    if (!out) return TSI_FAIL(TS_ERR_NULL, "item: the output is NULL");
    if (t->layout->count != 1)
        return TSI_FAIL(TS_ERR_SHAPE, "item: the tensor has %lld elements, not one (%s)",
                        (long long)t->layout->count, t->layout->text);
    ts_scope scope = ts_scope_open(rank, "item");
    ts_tensor *full = (ts_tensor_full)(t);
    ts_status status = full ? tsi_tensor_ready(full) : ts_rank_status(rank);
    if (status == TS_OK && full->mesh->member) {
        tsi_block to = { .data = out, .dtype = as, .ndim = full->array->ndim };
        memcpy(to.extent, full->array->extent, sizeof to.extent);
        status = tsi_array_read(rank, full->array, &to);
    }
    ts_scope_close(scope);
    return status;
}

ts_status(ts_tensor_item)(ts_tensor *t, double *out)
{
    if (out) *out = NAN;
    return read_one(t, TS_DTYPE_F64, out);
}

static ts_number_kind kind_of(ts_dtype dtype)
{
    if (tsi_dtype_is_complex((int32_t)dtype)) return TS_NUMBER_COMPLEX;
    return tsi_dtype_is_real((int32_t)dtype) ? TS_NUMBER_REAL : TS_NUMBER_INT;
}

ts_status ts_tensor_number(ts_tensor *t, ts_number *out)
{
    if (out) *out = ts_number_real((double)NAN);
    ts_number_kind kind = kind_of(t ? (ts_dtype)t->dtype : TS_DTYPE_F64);
    if (!out || kind == TS_NUMBER_REAL) return read_one(t, TS_DTYPE_F64, out ? &out->real : NULL);
    int64_t whole = 0;
    double both[2] = { (double)NAN, 0 };
    ts_status status = kind == TS_NUMBER_INT ? read_one(t, TS_DTYPE_I64, &whole)
                                             : read_one(t, TS_DTYPE_C128, both);
    if (status == TS_OK)
        *out = kind == TS_NUMBER_INT ? ts_number_int(whole) : ts_number_complex(both[0], both[1]);
    return status;
}
