/* SPDX-License-Identifier: Apache-2.0 */
/* shard.h - token files: one shard of a stream of token ids (docs/data.md has the format).
 *
 *   header 128 B | tokens, u16 or u32, padded with zeros to 8 B | u64 sum of each 64 KiB of tokens
 *
 * Little-endian. The header has a sum of its own and one of the table of sums, so opening reads no
 * tokens, and each block is checked when it is first touched. A shard is written under a temporary
 * name and renamed when it is complete. Files are read with pread and not mapped: one that is cut
 * short while we read is then an error and not a signal. */
#ifndef TSI_DATA_SHARD_H
#define TSI_DATA_SHARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tessera/status.h"

enum { TSI_SHARD_VERSION = 1, TSI_SHARD_HEADER = 128, TSI_SHARD_BLOCK = 65536 };

/* Where the text goes on behind a shard: after `tokens` tokens of the part at `offset` of a file.
 */
typedef struct tsi_shard_position {
    int64_t file, offset, tokens;
} tsi_shard_position;

typedef struct tsi_shard_head {
    int32_t width; /* bytes of a token, 2 or 4 */
    bool last;     /* of its set */
    int64_t count, vocabulary;
    uint64_t tokenizer, source; /* hashes */
    int64_t index;              /* in its set */
    int64_t first;              /* tokens of the set before this shard */
    tsi_shard_position next;
    uint64_t table_sum;
} tsi_shard_head;

/* ---- writing ---- */
typedef struct tsi_shard_writer {
    char *path, *temporary;
    int file; /* -1: none is open */
    tsi_shard_head head;
    unsigned char *block;
    size_t block_used;
    uint64_t *sum;
    size_t sum_count, sum_capacity;
} tsi_shard_writer;

/* Takes width, vocabulary, tokenizer, source, index and first of the head. */
ts_status tsi_shard_create(const char *path, const tsi_shard_head *head, tsi_shard_writer *out);
ts_status tsi_shard_append(tsi_shard_writer *writer, const int32_t *ids, int64_t count);
/* Completes the file and gives it its name; the writer is zero again, also on failure. */
ts_status tsi_shard_finish(tsi_shard_writer *writer, tsi_shard_position next, bool last);
void tsi_shard_abandon(tsi_shard_writer *writer); /* removes what was written */

/* ---- reading ---- */
typedef struct tsi_shard {
    char *path;
    int file;
    tsi_shard_head head;
    uint64_t *sum;
    bool *checked; /* blocks whose sum was right */
    int64_t block_count;
} tsi_shard;

/* Header only, validated against the size of the file. */
ts_status tsi_shard_peek(const char *path, tsi_shard_head *out);
ts_status tsi_shard_open(const char *path, tsi_shard *out);
void tsi_shard_close(tsi_shard *shard);
/* Tokens [first, first + count); `block` is scratch of TSI_SHARD_BLOCK bytes. */
ts_status tsi_shard_read(tsi_shard *shard, int64_t first, int64_t count, unsigned char *block,
                         int32_t *out);
/* "PREFIX-00007.bin", owned by the caller; NULL after recording TS_ERR_MEMORY. */
char *tsi_shard_path(const char *prefix, int64_t index);

#endif
