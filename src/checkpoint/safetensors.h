/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.h - the file format of published weights: a JSON header and raw little-endian
 * tensors.
 *
 *   u64 length of the header
 *   header   {"name": {"dtype", "shape", "data_offsets": [begin, end]}, ..}
 *   data
 *
 * A set is one file, or the files of an index. Everything is checked before a byte of data is read:
 * lengths, offsets that neither overlap nor leave holes, sizes against shapes, names that occur
 * once, paths that stay in the directory. */
#ifndef TSI_CHECKPOINT_SAFETENSORS_H
#define TSI_CHECKPOINT_SAFETENSORS_H

#include <sys/uio.h>

#include "base/hash.h"
#include "tessera/types.h"

typedef enum tsi_float8 { TSI_FLOAT8_NONE, TSI_FLOAT8_E4M3, TSI_FLOAT8_E5M2 } tsi_float8;

typedef struct tsi_stored { /* one tensor of a file */
    const char *name;
    ts_meta meta;
    int32_t file;
    int32_t float8;     /* a tsi_float8: then meta.dtype is u8, its bits */
    int64_t begin, end; /* bytes from the start of the file */
} tsi_stored;

typedef struct tsi_weights tsi_weights;

/* A directory (model.safetensors, or model.safetensors.index.json with its files), or one file. */
ts_status tsi_weights_open(const char *path, tsi_weights **out);
void tsi_weights_close(tsi_weights *weights);
void tsi_weights_close_files(tsi_weights *weights); /* what is known of them stays */
int64_t tsi_weights_count(const tsi_weights *weights);
const tsi_stored *tsi_weights_at(const tsi_weights *weights,
                                 int64_t index); /* in the order of the file */
const tsi_stored *tsi_weights_find(const tsi_weights *weights, const char *name); /* NULL: none */
/* Elements [first, first + count) of a tensor, raw. TS_ERR_IO if the file changed since it was
 * opened. */
ts_status tsi_weights_read(const tsi_weights *weights, const tsi_stored *stored, int64_t first,
                           int64_t count, void *to);
ts_status tsi_weights_read_bytes(const tsi_weights *weights, const tsi_stored *stored,
                                 int64_t offset, size_t bytes, void *to);
/* Bytes from `offset` on, dealt out to places one after the other. */
ts_status tsi_weights_read_parts(const tsi_weights *weights, const tsi_stored *stored,
                                 int64_t offset, const struct iovec *to, int64_t count);

typedef struct tsi_weights_file { /* borrowed */
    const char *name;             /* in its directory */
    const char *path;             /* where it was read */
    const char *header;           /* as it is in the file */
    size_t header_length;
} tsi_weights_file;
int32_t tsi_weights_file_count(const tsi_weights *weights);
tsi_weights_file tsi_weights_file_at(const tsi_weights *weights, int32_t index);
const char *tsi_weights_index(const tsi_weights *weights); /* text of the index; NULL: none */

/* Writing: the header first, then tensors in their order; a temporary name until finish. */
typedef struct tsi_weights_writer tsi_weights_writer;
typedef struct tsi_weights_entry {
    const char *name;
    ts_meta meta;
} tsi_weights_entry;
/* The header of those tensors as the format's own tools write it; the caller frees. NULL: recorded.
 */
char *tsi_weights_header_text(const tsi_weights_entry *entry, int64_t count, size_t *length);
ts_status tsi_weights_create(const char *path, const char *header, size_t header_length,
                             tsi_weights_writer **out);
ts_status tsi_weights_write(tsi_weights_writer *writer, const void *data,
                            size_t bytes); /* of the next tensor */
ts_status tsi_weights_finish(tsi_weights_writer *writer /* takes */,
                             bool keep); /* keep false: removes it */

#endif
