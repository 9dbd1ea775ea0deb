/* SPDX-License-Identifier: Apache-2.0 */
/* dlpack_abi.h - the structs of DLPack version 1, written from its published ABI.
 *
 * A tensor passes between libraries as a DLManagedTensorVersioned; whoever consumes it calls
 * `deleter` once. Names and order of fields are the standard's, so that a program may include its
 * own dlpack.h beside this library. */
#ifndef TSI_ARRAY_DLPACK_ABI_H
#define TSI_ARRAY_DLPACK_ABI_H

#include <stdint.h>

enum { TSI_DLPACK_MAJOR = 1, TSI_DLPACK_MINOR = 0 };

/* Device kinds, as far as tessera tells them apart. */
enum { TSI_DL_CPU = 1, TSI_DL_CUDA = 2, TSI_DL_CUDA_HOST = 3 };

/* Type codes; bits and lanes say the rest. */
enum {
    TSI_DL_INT = 0,
    TSI_DL_UINT = 1,
    TSI_DL_FLOAT = 2,
    TSI_DL_BFLOAT = 4,
    TSI_DL_COMPLEX = 5,
    TSI_DL_BOOL = 6
};

/* Flags of the managed tensor. */
#define TSI_DL_FLAG_READ_ONLY ((uint64_t)1)
#define TSI_DL_FLAG_IS_COPIED ((uint64_t)2)

typedef struct DLPackVersion {
    uint32_t major, minor;
} DLPackVersion;

typedef struct DLDevice {
    int32_t device_type;
    int32_t device_id;
} DLDevice;

typedef struct DLDataType {
    uint8_t code, bits;
    uint16_t lanes;
} DLDataType;

typedef struct DLTensor {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: contiguous, row-major */
    uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensorVersioned {
    DLPackVersion version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self); /* NULL: nothing to do */
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

/* What was taken (array.h), and of which no array is left, is its giver's again. */
void tsi_dlpack_give_back(DLManagedTensorVersioned *managed);

#endif
