/* SPDX-License-Identifier: Apache-2.0 */
/* torch_file.h - what torch.save writes, anywhere in a file: a zip archive whose members are stored
 * as they are, a pickle `data.pkl` that says what they are, and the bytes of tensors `data/N`.
 *
 *   [member][member] .. [list of members][its place, twice]
 *
 * INV: places that are handed out lie inside the range that was opened. */
#ifndef TSI_CHECKPOINT_TORCH_FILE_H
#define TSI_CHECKPOINT_TORCH_FILE_H

#include "checkpoint/pickle.h"
#include "tessera/types.h"

typedef struct tsi_torch_file { /* borrowed but for the list */
    const char *path;
    int fd;
    int32_t reserved;
    int64_t begin, bytes; /* of the archive in the file */
    unsigned char *list;  /* of members, as it is there */
    size_t list_bytes;
} tsi_torch_file;

typedef struct tsi_torch_tensor {
    ts_meta meta;
    int32_t float8; /* a tsi_float8: then meta.dtype is u8, its bits */
    int32_t dense;  /* row-major: else `stride` tells, in elements */
    int64_t stride[TS_NDIM_MAX];
    int64_t begin, bytes; /* in the file: from its first element on */
} tsi_torch_tensor;

/* A dtype by torch's name, "torch.float32"; TS_DTYPE_NONE: it is none we have. */
ts_dtype tsi_torch_dtype(const char *name, int32_t *float8);

ts_status tsi_torch_open(const char *path, int fd, int64_t begin, int64_t bytes,
                         tsi_torch_file *out);
void tsi_torch_close(tsi_torch_file *file);
/* The one tensor that the archive is. */
ts_status tsi_torch_tensor_of(const tsi_torch_file *file, tsi_torch_tensor *out);
/* Anything made of None, numbers, texts, lists and dicts, as JSON, which the caller frees; NULL in
 * *out: it is made of something else. */
ts_status tsi_torch_plain_of(const tsi_torch_file *file, char **out);

#endif
