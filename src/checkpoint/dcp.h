/* SPDX-License-Identifier: Apache-2.0 */
/* dcp.h - reading the distributed checkpoints of PyTorch (torch.distributed.checkpoint), which are
 * made of pickles, without executing any of them.
 *
 *   .metadata          a pickle: per tensor shape, dtype and chunks (boxes that cover it), and
 *                      where in which file each of them lies
 *   __RANK_N.distcp    one archive of torch.save after the other: a chunk each, or an object
 *
 * INV: the chunks of a tensor lie in it, do not overlap and cover it, so what is read has every
 * element. Names of files stay in the directory. What an archive says of its chunk is what the
 * metadata said, or it is refused. */
#ifndef TSI_CHECKPOINT_DCP_H
#define TSI_CHECKPOINT_DCP_H

#include "tessera/types.h"

#define TSI_DCP_METADATA ".metadata"

typedef struct tsi_dcp_chunk {
    int64_t first[TS_NDIM_MAX], extent[TS_NDIM_MAX];
    int64_t count; /* elements */
    int32_t file;
    int32_t form;         /* what is known of its data: dcp.c */
    int64_t begin, bytes; /* of the archive; when its form is known, of its elements */
} tsi_dcp_chunk;

typedef struct tsi_dcp_tensor {
    const char *name;
    ts_meta meta;
    int32_t float8; /* a tsi_float8: then meta.dtype is u8, its bits */
    int32_t reserved;
    tsi_dcp_chunk *chunk;
    int64_t chunk_count; /* without empty ones */
} tsi_dcp_tensor;

typedef struct tsi_dcp_value { /* what is no tensor, as JSON */
    const char *name, *text;
} tsi_dcp_value;

typedef struct tsi_dcp tsi_dcp;

ts_status tsi_dcp_open(const char *directory, tsi_dcp **out);
/* Of bytes of a metadata file, without its directory: nothing can be read of it. For tests. */
ts_status tsi_dcp_open_bytes(const void *data, size_t bytes, tsi_dcp **out);
void tsi_dcp_close(tsi_dcp *dcp); /* accepts NULL */
void tsi_dcp_close_files(tsi_dcp *dcp);
int64_t tsi_dcp_tensor_count(const tsi_dcp *dcp);
const tsi_dcp_tensor *tsi_dcp_tensor_at(const tsi_dcp *dcp, int64_t index);
/* Values that are plain are read with the metadata; the others are left out, with a warning. */
int64_t tsi_dcp_value_count(const tsi_dcp *dcp);
tsi_dcp_value tsi_dcp_value_at(const tsi_dcp *dcp, int64_t index);
/* Bytes of a chunk's elements in row-major order. */
ts_status tsi_dcp_read(tsi_dcp *dcp, const tsi_dcp_tensor *tensor, int64_t chunk, int64_t offset,
                       size_t bytes, void *to);

#endif
