/* SPDX-License-Identifier: Apache-2.0 */
/* shard_read.c - reading tokens of a shard, each block checked when it is first touched. */
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/intmath.h"
#include "data/shard_head.h"

static ts_status read_head(const char *path, int file, int64_t bytes, tsi_shard_head *out)
{
    unsigned char raw[TSI_SHARD_HEADER] = { 0 };
    size_t done;
    TSI_TRY(tsi_file_read_at(path, file, 0, raw, sizeof raw, &done));
    return tsi_shard_decode(path, raw, done < sizeof raw ? (int64_t)done : bytes, out);
}

ts_status tsi_shard_peek(const char *path, tsi_shard_head *out)
{
    *out = (tsi_shard_head){ 0 };
    int file;
    int64_t bytes;
    TSI_TRY(tsi_file_open(path, &file, &bytes));
    ts_status status = read_head(path, file, bytes, out);
    close(file);
    return status;
}

void tsi_shard_close(tsi_shard *shard)
{
    if (shard->file >= 0 && shard->path != NULL) close(shard->file);
    tsi_free(shard->path);
    tsi_free(shard->sum);
    tsi_free(shard->checked);
    *shard = (tsi_shard){ .file = -1 };
}

/* Exactly `bytes` at an offset: the size was checked, so less means that the file changed. */
static ts_status read_exactly(const tsi_shard *shard, int64_t offset, void *to, size_t bytes)
{
    size_t done;
    TSI_TRY(tsi_file_read_at(shard->path, shard->file, offset, to, bytes, &done));
    if (done == bytes) return TS_OK;
    return TSI_FAIL(TS_ERR_IO, "%s became shorter while it was read, at byte %lld", shard->path,
                    (long long)(offset + (int64_t)done));
}

static ts_status read_table(tsi_shard *shard)
{
    size_t bytes = 8 * (size_t)shard->block_count;
    shard->sum = tsi_alloc(bytes);
    shard->checked = tsi_calloc((size_t)shard->block_count + 1, sizeof *shard->checked);
    if (shard->sum == NULL || shard->checked == NULL) return tsi_fail_memory(shard->path, bytes);
    TSI_TRY(read_exactly(shard, tsi_shard_table_at(&shard->head), shard->sum, bytes));
    if (tsi_shard_sum(shard->sum, bytes) != shard->head.table_sum)
        return TSI_FAIL(TS_ERR_IO, "%s: the table of checksums is damaged", shard->path);
    for (int64_t i = 0; i < shard->block_count; i++) {
        unsigned char raw[8];
        memcpy(raw, &shard->sum[i], sizeof raw);
        shard->sum[i] = tsi_shard_get64(raw);
    }
    return TS_OK;
}

ts_status tsi_shard_open(const char *path, tsi_shard *out)
{
    *out = (tsi_shard){ .file = -1 };
    int64_t bytes;
    TSI_TRY(tsi_file_open(path, &out->file, &bytes));
    out->path = tsi_strdup(path);
    if (out->path == NULL) {
        close(out->file);
        out->file = -1;
        return tsi_fail_memory("a path", strlen(path));
    }
    ts_status status = read_head(path, out->file, bytes, &out->head);
    out->block_count = status == TS_OK ? tsi_shard_blocks(&out->head) : 0;
    if (status == TS_OK) status = read_table(out);
    if (status != TS_OK) tsi_shard_close(out);
    return status;
}

/* Bytes [start, end) of one block into it, checked: whole the first time, then only that. */
static ts_status read_block(tsi_shard *shard, int64_t index, size_t start, size_t end,
                            unsigned char *block)
{
    int64_t offset = index * TSI_SHARD_BLOCK, all = shard->head.count * shard->head.width;
    if (shard->checked[index])
        return read_exactly(shard, TSI_SHARD_HEADER + offset + (int64_t)start, block + start,
                            end - start);
    size_t bytes = (size_t)tsi_min_i64(TSI_SHARD_BLOCK, all - offset);
    TSI_TRY(read_exactly(shard, TSI_SHARD_HEADER + offset, block, bytes));
    if (tsi_shard_sum(block, bytes) != shard->sum[index])
        return TSI_FAIL(TS_ERR_IO, "%s is damaged: the checksum of tokens %lld to %lld is wrong",
                        shard->path, (long long)(offset / shard->head.width),
                        (long long)((offset + (int64_t)bytes) / shard->head.width - 1));
    shard->checked[index] = true;
    return TS_OK;
}

static int32_t token_at(const unsigned char *from, int32_t width)
{
    uint32_t value = (uint32_t)from[0] | (uint32_t)from[1] << 8;
    if (width == 4) value |= (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
    return (int32_t)value;
}

ts_status tsi_shard_read(tsi_shard *shard, int64_t first, int64_t count, unsigned char *block,
                         int32_t *out)
{
    TSI_ASSERT(first >= 0 && count >= 0 && first + count <= shard->head.count);
    int32_t width = shard->head.width;
    int64_t at = first * width, end = (first + count) * width;
    while (at < end) {
        int64_t index = at / TSI_SHARD_BLOCK, base = index * TSI_SHARD_BLOCK;
        size_t from = (size_t)(at - base);
        size_t to = (size_t)tsi_min_i64(end - base, TSI_SHARD_BLOCK);
        TSI_TRY(read_block(shard, index, from, to, block));
        for (size_t i = from; i < to; i += (size_t)width) {
            int32_t id = token_at(block + i, width);
            if (id < 0 || id >= shard->head.vocabulary)
                return TSI_FAIL(TS_ERR_IO, "%s: token %lld is %u, the vocabulary has %lld",
                                shard->path, (long long)((base + (int64_t)i) / width), (uint32_t)id,
                                (long long)shard->head.vocabulary);
            *out++ = id;
        }
        at = base + (int64_t)to;
    }
    return TS_OK;
}
