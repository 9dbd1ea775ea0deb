/* SPDX-License-Identifier: Apache-2.0 */
/* dlpack.c - arrays to and from other libraries without a copy.
 *
 * Out: one allocation holds the managed tensor, its shape and strides, and a reference to the
 * storage; the deleter gives them back and may run on any thread. In: the managed tensor becomes
 * the `done` of a storage. Memory of a device keeps its address and says which one it is; whoever
 * hands it over sees to it that streams meet (tsi_rank_device_meet). */
#include "array/dlpack_abi.h"

#include <string.h>

#include "array/array.h"
#include "base/alloc.h"
#include "base/compiler.h"

static const struct {
    uint8_t code, bits;
} type_of[TS_DTYPE_COUNT] = {
    [TS_DTYPE_F64] = { TSI_DL_FLOAT, 64 },   [TS_DTYPE_F32] = { TSI_DL_FLOAT, 32 },
    [TS_DTYPE_BF16] = { TSI_DL_BFLOAT, 16 }, [TS_DTYPE_F16] = { TSI_DL_FLOAT, 16 },
    [TS_DTYPE_I64] = { TSI_DL_INT, 64 },     [TS_DTYPE_I32] = { TSI_DL_INT, 32 },
    [TS_DTYPE_U8] = { TSI_DL_UINT, 8 },      [TS_DTYPE_BOOL] = { TSI_DL_BOOL, 8 },
    [TS_DTYPE_I16] = { TSI_DL_INT, 16 },     [TS_DTYPE_I8] = { TSI_DL_INT, 8 },
    [TS_DTYPE_C64] = { TSI_DL_COMPLEX, 64 }, [TS_DTYPE_C128] = { TSI_DL_COMPLEX, 128 },
};

typedef struct exported {
    DLManagedTensorVersioned managed;
    int64_t extent[TS_NDIM_MAX], stride[TS_NDIM_MAX];
    tsi_storage *storage;
} exported;

static void exported_delete(DLManagedTensorVersioned *managed)
{
    if (!managed) return;
    exported *e = managed->manager_ctx;
    tsi_storage_release(e->storage);
    tsi_free(e);
}

ts_status tsi_array_to_dlpack(tsi_array *array, DLManagedTensorVersioned **out)
{
    *out = NULL;
    if (!array) return TSI_FAIL(TS_ERR_NULL, "to DLPack: the array is NULL");
    const tsi_device *device = array->storage->device;
    if (!array->storage->data && array->storage->bytes > 0)
        return TSI_FAIL(TS_ERR_STATE, "to DLPack: the storage is emptied");
    exported *e = tsi_calloc(1, sizeof *e);
    if (!e) return tsi_fail_memory("a DLPack tensor", sizeof *e);
    memcpy(e->extent, array->extent, sizeof e->extent);
    memcpy(e->stride, array->stride, sizeof e->stride);
    tsi_storage_retain(array->storage);
    e->storage = array->storage;
    DLTensor tensor = {
        .data = array->storage->data,
        .device = { device->dlpack_type, device->ordinal },
        .ndim = array->ndim,
        .dtype = { type_of[array->dtype].code, type_of[array->dtype].bits, 1 },
        .shape = e->extent,
        .strides = e->stride,
        .byte_offset = (uint64_t)array->offset * ts_dtype_size((ts_dtype)array->dtype),
    };
    e->managed = (DLManagedTensorVersioned){
        .version = { TSI_DLPACK_MAJOR, TSI_DLPACK_MINOR },
        .manager_ctx = e,
        .deleter = exported_delete,
        .flags = array->storage->read_only ? TSI_DL_FLAG_READ_ONLY : 0,
        .dl_tensor = tensor,
    };
    *out = &e->managed;
    return TS_OK;
}

static ts_dtype dtype_of(DLDataType type)
{
    for (int32_t i = TS_DTYPE_NONE + 1; i < TS_DTYPE_COUNT; i++)
        if (type_of[i].code == type.code && type_of[i].bits == type.bits && type.lanes == 1)
            return (ts_dtype)i;
    return TS_DTYPE_NONE;
}

/* A flag of ours, in what was taken and until its deleter is called: nobody else may take it. */
#define TAKEN ((uint64_t)1 << 63)

static ts_status check_import(const DLManagedTensorVersioned *managed)
{
    if (!managed) return TSI_FAIL(TS_ERR_NULL, "from DLPack: the tensor is NULL");
    if (managed->flags & TAKEN)
        return TSI_FAIL(TS_ERR_STATE, "from DLPack: the tensor was given before, to whom it "
                                      "belongs now; export it again");
    const DLTensor *tensor = &managed->dl_tensor;
    /* A new major version may have moved every field that follows. */
    if (managed->version.major != TSI_DLPACK_MAJOR)
        return TSI_FAIL(TS_ERR_ARG, "from DLPack: version %u.%u, this build reads %d.x",
                        managed->version.major, managed->version.minor, TSI_DLPACK_MAJOR);
    if (dtype_of(tensor->dtype) == TS_DTYPE_NONE)
        return TSI_FAIL(TS_ERR_DTYPE, "from DLPack: type code %u with %u bits and %u lanes",
                        tensor->dtype.code, tensor->dtype.bits, tensor->dtype.lanes);
    if (tensor->ndim < 0 || tensor->ndim > TS_NDIM_MAX)
        return TSI_FAIL(TS_ERR_SHAPE, "from DLPack: %d dims, 0 to %d are possible", tensor->ndim,
                        TS_NDIM_MAX);
    if (tensor->ndim > 0 && !tensor->shape)
        return TSI_FAIL(TS_ERR_ARG, "from DLPack: shape is NULL");
    return TS_OK;
}

void tsi_dlpack_give_back(DLManagedTensorVersioned *managed)
{
    managed->flags &= ~TAKEN;
}

static void imported_done(void *context)
{
    DLManagedTensorVersioned *managed = context;
    tsi_dlpack_give_back(managed);
    if (managed->deleter) managed->deleter(managed);
}

/* Strides that are all zero say "contiguous" in a ts_array, but in DLPack they broadcast one
 * element. Such a tensor is described with stride 1 along extents of 1, which reaches the same
 * element, and patched after. */
static bool broadcasts_one(const DLTensor *tensor)
{
    bool zero = tensor->ndim > 0 && tensor->strides;
    for (int32_t d = 0; zero && d < tensor->ndim; d++)
        zero = tensor->strides[d] == 0;
    return zero;
}

tsi_array *tsi_array_from_dlpack(ts_rank *rank, DLManagedTensorVersioned *managed)
{
    if (check_import(managed) != TS_OK) return NULL;
    const DLTensor *tensor = &managed->dl_tensor;
    bool one = broadcasts_one(tensor), host = tensor->device.device_type == TSI_DL_CUDA_HOST;
    bool read_only = (managed->flags & TSI_DL_FLAG_READ_ONLY) != 0;
    ts_array block = { .struct_size = sizeof block, .done = imported_done, .context = managed };
    block.device = host ? TSI_DL_CPU : tensor->device.device_type;
    block.ordinal = host ? 0 : tensor->device.device_id;
    block.data = tensor->data ? (char *)tensor->data + tensor->byte_offset : NULL;
    block.meta.dtype = (int32_t)dtype_of(tensor->dtype);
    block.meta.shape.ndim = tensor->ndim;
    for (int32_t d = 0; d < tensor->ndim; d++) {
        block.meta.shape.extent[d] = tensor->shape[d];
        block.stride[d] = tensor->strides && !one ? tensor->strides[d] : 0;
    }
    tsi_block whole;
    if (tsi_block_of_array(&block, "from DLPack", &whole) != TS_OK) return NULL;
    for (int32_t d = 0; one && d < tensor->ndim; d++)
        if (tensor->shape[d] > 0) block.meta.shape.extent[d] = 1;
    managed->flags |= TAKEN;
    tsi_array *array = tsi_array_wrap(rank, &block);
    if (!array) {
        tsi_dlpack_give_back(managed);
        return NULL;
    }
    for (int32_t d = 0; one && d < whole.ndim; d++) {
        array->extent[d] = whole.extent[d];
        array->stride[d] = array->dense = 0;
    }
    array->storage->read_only = read_only;
    return array;
}
