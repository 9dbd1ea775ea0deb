/* SPDX-License-Identifier: Apache-2.0 */
/* data_file.h - the files of a checkpoint: one for each rank that writes, each a safetensors file
 * that any reader opens.
 *
 *   header            with the save that it belongs to in __metadata__
 *   tessera.hashes    I64: hash of the header, hash of the rest of this table, then one hash for
 *                     each block of the pieces, in their order; zeros up to a multiple of 4 KiB
 *   pieces            large elements first, so that all are aligned; blocks of 256 KiB, the last of
 *                     each piece short
 *
 * INV: every byte of the file is covered by a hash in it, and the hashes by the second one. What is
 * read verified is what was written, in the file it was written to. */
#ifndef TSI_CHECKPOINT_DATA_FILE_H
#define TSI_CHECKPOINT_DATA_FILE_H

#include "checkpoint/safetensors.h"

enum { TSI_BLOCK_BYTES = 256 << 10, TSI_DATA_NAME_MAX = 64 };
#define TSI_TABLE_NAME "tessera.hashes"

typedef struct tsi_data_piece {
    const char *name;
    ts_meta meta; /* of the piece: its own shape */
    /* set by the plan: */
    int64_t begin, bytes; /* in the file */
    int64_t block;        /* number of its first block */
} tsi_data_piece;

typedef struct tsi_data_plan {
    char *header; /* with the eight bytes of its length before it */
    size_t header_bytes;
    int64_t table_count; /* entries, with those that fill it up */
    int64_t block_count;
    int64_t begin; /* of the pieces in the file */
    int64_t bytes; /* of the whole file */
} tsi_data_plan;

void tsi_data_file_name(char *out, int64_t rank); /* TSI_DATA_NAME_MAX */
/* The name of a further copy of a piece; the caller frees. NULL: recorded. */
char *tsi_data_copy_name(const char *name, int64_t copy);

/* ---- writing */
/* Places the pieces and makes the header. */
ts_status tsi_data_plan_make(tsi_data_piece *piece, int64_t count, uint64_t save, int64_t rank,
                             tsi_data_plan *out);
/* The same plan for another save. */
void tsi_data_plan_stamp(tsi_data_plan *plan, uint64_t save);
void tsi_data_plan_release(tsi_data_plan *plan);

typedef struct tsi_data_writer tsi_data_writer;
/* Creates the file and takes its room on the disk. The plan stays the caller's, and alive. */
ts_status tsi_data_create(const char *path, const tsi_data_plan *plan, tsi_data_writer **out);
/* Bytes of a piece: `offset` at the beginning of a block, up to the end of one. */
ts_status tsi_data_put(tsi_data_writer *writer, const tsi_data_piece *piece, int64_t offset,
                       const void *data, size_t bytes);
/* Writes header and table and syncs; in every case it closes, and removes what failed. */
ts_status tsi_data_finish(tsi_data_writer *writer /* takes */, bool keep);

/* ---- reading */
typedef struct tsi_data_file tsi_data_file;
/* Refuses a file of another save, and one whose header or table is damaged. */
ts_status tsi_data_open(const char *path, uint64_t save, int64_t rank, tsi_data_file **out);
void tsi_data_close(tsi_data_file *file);
const tsi_stored *tsi_data_find(const tsi_data_file *file, const char *name); /* NULL: none */
/* Bytes of a piece from `offset` on, dealt out to places one after the other. `verify`: against the
 * hashes of the blocks; then they go from the beginning of a block up to the end of one, or of the
 * piece, and places other than the last are multiples of 4 bytes. */
ts_status tsi_data_read(const tsi_data_file *file, const tsi_stored *piece, int64_t offset,
                        const struct iovec *to, int64_t count, bool verify);

#endif
