/* SPDX-License-Identifier: Apache-2.0 */
/* index_file.h - index.json, which makes a folder of data files a checkpoint.
 *
 *   {"format": "tessera", "version": 1, "save": "9f..", "step": 12, "mesh": "dp=2, tp=2",
 *    "copies": 1, "hash": "..", "values": {"run": "..", ..}, "others": {"config.json": ".."},
 *    "tensors": [{"name", "of", "shape", "dtype", "sharding", "mesh", "files", "hash"}, ..],
 *    "checksum": ".."}
 *
 * INV: it is written last; its size does not grow with the ranks that wrote; every byte of it is
 * covered by the checksum at its end, so that one that opens is one that was written. */
#ifndef TSI_CHECKPOINT_INDEX_FILE_H
#define TSI_CHECKPOINT_INDEX_FILE_H

#include <stdbool.h>

#include "base/arena.h"
#include "tessera/types.h"

#define TSI_INDEX_NAME "index.json"
#define TSI_DATA_PATTERN "rank-*.safetensors"
enum { TSI_INDEX_VERSION = 1, TSI_INDEX_BYTES_MAX = 1 << 30 };

typedef struct tsi_index_tensor {
    const char *name;
    const char *of;       /* whose: "", or "optimizer" */
    const char *sharding; /* of the writer: placements */
    const char *mesh;     /* where it is not the index's; else NULL */
    ts_meta meta;
    uint64_t hash;
} tsi_index_tensor;

typedef struct tsi_index_value { /* a text by its name; of another file: its name and hash */
    const char *name, *text;
} tsi_index_value;

typedef struct tsi_index {
    uint64_t save; /* which files belong to it */
    int64_t step;
    const char *mesh;
    int64_t copies;
    uint64_t hash; /* of the whole state */
    tsi_index_value *value, *other;
    int64_t value_count, other_count;
    tsi_index_tensor *tensor;
    int64_t tensor_count;
    tsi_arena memory; /* of what was parsed */
} tsi_index;

/* The text of the file; the caller frees. NULL: recorded. */
char *tsi_index_text(const tsi_index *index, size_t *length);
/* `path` begins sentences. What it gives lives until tsi_index_release, on failure too. */
ts_status tsi_index_parse(const char *path, const char *text, size_t length, tsi_index *out);
void tsi_index_release(tsi_index *index);
const char *tsi_index_value_of(const tsi_index *index, const char *name); /* NULL: none */

/* Files beside the data (others.c): adds those of a directory, with the hashes of their bytes. */
ts_status tsi_index_add_others(tsi_index *index, const char *directory);

#endif
