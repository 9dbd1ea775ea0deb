/* SPDX-License-Identifier: Apache-2.0 */
/* shard_head.h - the header of a shard as bytes, and sums; for shard_read.c and shard_write.c. */
#ifndef TSI_DATA_SHARD_HEAD_H
#define TSI_DATA_SHARD_HEAD_H

#include "data/shard.h"

void tsi_shard_encode(const tsi_shard_head *head, unsigned char bytes[TSI_SHARD_HEADER]);
/* `path` begins the sentences; file_bytes is the size of the whole file. */
ts_status tsi_shard_decode(const char *path, const unsigned char bytes[TSI_SHARD_HEADER],
                           int64_t file_bytes, tsi_shard_head *out);
uint64_t tsi_shard_sum(const void *data, size_t bytes);
int64_t tsi_shard_blocks(const tsi_shard_head *head);    /* of 64 KiB, the last may be short */
int64_t tsi_shard_table_at(const tsi_shard_head *head);  /* offset of the sums in the file */
void tsi_shard_put64(unsigned char *to, uint64_t value); /* little-endian */
uint64_t tsi_shard_get64(const unsigned char *from);

#endif
