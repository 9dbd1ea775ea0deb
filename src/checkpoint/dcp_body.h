/* SPDX-License-Identifier: Apache-2.0 */
/* dcp_body.h - the body of an open distributed checkpoint of PyTorch, shared by dcp.c (what is
 * there) and dcp_data.c (its data). */
#ifndef TSI_CHECKPOINT_DCP_BODY_H
#define TSI_CHECKPOINT_DCP_BODY_H

#include "base/arena.h"
#include "checkpoint/dcp.h"

enum { TSI_DCP_PATH_BYTES = 4400, TSI_DCP_FILES_OPEN = 64 };

typedef struct tsi_dcp_file {
    const char *name; /* in the directory */
    int fd;           /* -1: not open */
    int32_t reserved;
    int64_t bytes;
    uint64_t used; /* when */
} tsi_dcp_file;

struct tsi_dcp {
    char *path;       /* of the directory; "": there is none */
    tsi_arena memory; /* of everything that was parsed */
    tsi_dcp_file *file;
    int32_t file_count, file_capacity, open_count, reserved;
    uint64_t clock;
    tsi_dcp_tensor *tensor;
    tsi_dcp_value *value;
    int64_t tensor_count, value_count;
    char *dense; /* elements of `dense_of`, in row-major order; the last that lay otherwise */
    const tsi_dcp_chunk *dense_of;
};

/* Refuses chunks that overlap or leave elements out. */
ts_status tsi_dcp_check_cover(const tsi_dcp *dcp, const tsi_dcp_tensor *tensor);
/* The object that lies there, as JSON; NULL: it is not plain. */
ts_status tsi_dcp_read_plain(tsi_dcp *dcp, const tsi_dcp_chunk *at, char **out);

#endif
