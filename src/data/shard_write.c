/* SPDX-License-Identifier: Apache-2.0 */
/* shard_write.c - writing a shard: blocks of 64 KiB as they fill, then the table, then the header.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "data/shard_head.h"

char *tsi_shard_path(const char *prefix, int64_t index)
{
    tsi_text path = { 0 };
    tsi_text_printf(&path, "%s-%05lld.bin", prefix, (long long)index);
    return tsi_text_take(&path);
}

/* Closes and forgets, without removing. */
static void release(tsi_shard_writer *w)
{
    if (w->file >= 0) close(w->file);
    tsi_free(w->path);
    tsi_free(w->temporary);
    tsi_free(w->block);
    tsi_free(w->sum);
    *w = (tsi_shard_writer){ .file = -1 };
}

void tsi_shard_abandon(tsi_shard_writer *writer)
{
    if (writer->file >= 0) unlink(writer->temporary);
    release(writer);
}

ts_status tsi_shard_create(const char *path, const tsi_shard_head *head, tsi_shard_writer *out)
{
    *out = (tsi_shard_writer){ .file = -1, .head = *head };
    out->head.count = 0;
    tsi_text name = { 0 };
    tsi_text_printf(&name, "%s.tmp", path);
    out->temporary = tsi_text_take(&name);
    out->path = tsi_strdup(path);
    out->block = tsi_alloc(TSI_SHARD_BLOCK);
    ts_status status = TS_OK;
    if (out->temporary == NULL || out->path == NULL || out->block == NULL)
        status = tsi_fail_memory("a token file", TSI_SHARD_BLOCK);
    if (status == TS_OK) {
        out->file = open(out->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (out->file < 0)
            status =
                TSI_FAIL(TS_ERR_IO, "%s cannot be created: %s", out->temporary, strerror(errno));
    }
    static const unsigned char blank[TSI_SHARD_HEADER];
    if (status == TS_OK) status = tsi_file_write(out->temporary, out->file, blank, sizeof blank);
    if (status != TS_OK) tsi_shard_abandon(out);
    return status;
}

static ts_status flush(tsi_shard_writer *w)
{
    if (w->block_used == 0) return TS_OK;
    if (w->sum_count == w->sum_capacity) {
        size_t capacity = w->sum_capacity != 0 ? 2 * w->sum_capacity : 256;
        uint64_t *sum = tsi_realloc(w->sum, capacity * sizeof *sum);
        if (sum == NULL) return tsi_fail_memory("checksums", capacity * sizeof *sum);
        w->sum = sum;
        w->sum_capacity = capacity;
    }
    w->sum[w->sum_count++] = tsi_shard_sum(w->block, w->block_used);
    size_t bytes = w->block_used;
    w->block_used = 0;
    return tsi_file_write(w->temporary, w->file, w->block, bytes);
}

ts_status tsi_shard_append(tsi_shard_writer *w, const int32_t *ids, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        TSI_ASSERT(ids[i] >= 0 && ids[i] < w->head.vocabulary);
        for (int32_t b = 0; b < w->head.width; b++)
            w->block[w->block_used++] = (unsigned char)((uint32_t)ids[i] >> (8 * b));
        w->head.count++;
        if (w->block_used == TSI_SHARD_BLOCK) TSI_TRY(flush(w));
    }
    return TS_OK;
}

/* Zeros up to a multiple of 8, the table of sums, and the sum of the table. */
static ts_status write_table(tsi_shard_writer *w)
{
    TSI_TRY(flush(w));
    static const unsigned char zeros[8];
    size_t bytes = 8 * w->sum_count;
    int64_t end = TSI_SHARD_HEADER + w->head.count * w->head.width;
    TSI_TRY(
        tsi_file_write(w->temporary, w->file, zeros, (size_t)(tsi_shard_table_at(&w->head) - end)));
    unsigned char *table = tsi_alloc(bytes);
    if (table == NULL) return tsi_fail_memory("checksums", bytes);
    for (size_t i = 0; i < w->sum_count; i++)
        tsi_shard_put64(table + 8 * i, w->sum[i]);
    w->head.table_sum = tsi_shard_sum(table, bytes);
    ts_status status = tsi_file_write(w->temporary, w->file, table, bytes);
    tsi_free(table);
    return status;
}

static ts_status write_header(tsi_shard_writer *w)
{
    unsigned char bytes[TSI_SHARD_HEADER];
    tsi_shard_encode(&w->head, bytes);
    if (lseek(w->file, 0, SEEK_SET) != 0)
        return TSI_FAIL(TS_ERR_IO, "%s cannot be written: %s", w->temporary, strerror(errno));
    return tsi_file_write(w->temporary, w->file, bytes, sizeof bytes);
}

ts_status tsi_shard_finish(tsi_shard_writer *w, tsi_shard_position next, bool last)
{
    w->head.next = next;
    w->head.last = last;
    ts_status status = write_table(w);
    if (status == TS_OK) status = write_header(w);
    if (status != TS_OK) {
        tsi_shard_abandon(w);
        return status;
    }
    int file = w->file;
    w->file = -1; /* publishing closes it */
    status = tsi_file_publish(w->temporary, file, w->path);
    if (status != TS_OK) unlink(w->temporary);
    release(w);
    return status;
}
