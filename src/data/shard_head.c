/* SPDX-License-Identifier: Apache-2.0 */
/* shard_head.c - the 128 bytes before the tokens. Offsets are fixed; docs/data.md lists them. */
#include "data/shard_head.h"

#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/intmath.h"

static const char magic[8] = { 'T', 'S', 'T', 'O', 'K', 'E', 'N', 'S' };

enum { /* offsets */
       AT_VERSION = 8,
       AT_HEADER = 12,
       AT_WIDTH = 16,
       AT_FLAGS = 20,
       AT_COUNT = 24,
       AT_VOCABULARY = 32,
       AT_TOKENIZER = 40,
       AT_TABLE_SUM = 48,
       AT_INDEX = 56,
       AT_SOURCE = 64,
       AT_NEXT = 72, /* file, offset, tokens */
       AT_FIRST = 96,
       AT_SUM = 120, /* of the 120 bytes before it */
       FLAG_LAST = 1,
       SUM_SEED = 0x54534D
};

void tsi_shard_put64(unsigned char *to, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        to[i] = (unsigned char)(value >> (8 * i));
}

uint64_t tsi_shard_get64(const unsigned char *from)
{
    uint64_t value = 0;
    for (int i = 0; i < 8; i++)
        value |= (uint64_t)from[i] << (8 * i);
    return value;
}

static void put32(unsigned char *to, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        to[i] = (unsigned char)(value >> (8 * i));
}

static uint32_t get32(const unsigned char *from)
{
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 |
           (uint32_t)from[3] << 24;
}

uint64_t tsi_shard_sum(const void *data, size_t bytes)
{
    return tsi_hash_bytes(SUM_SEED, data, bytes);
}

int64_t tsi_shard_blocks(const tsi_shard_head *head)
{
    return tsi_ceil_div(head->count * head->width, TSI_SHARD_BLOCK);
}

int64_t tsi_shard_table_at(const tsi_shard_head *head)
{
    return TSI_SHARD_HEADER + tsi_round_up(head->count * head->width, 8);
}

void tsi_shard_encode(const tsi_shard_head *head, unsigned char bytes[TSI_SHARD_HEADER])
{
    memset(bytes, 0, TSI_SHARD_HEADER);
    memcpy(bytes, magic, sizeof magic);
    put32(bytes + AT_VERSION, TSI_SHARD_VERSION);
    put32(bytes + AT_HEADER, TSI_SHARD_HEADER);
    put32(bytes + AT_WIDTH, (uint32_t)head->width);
    put32(bytes + AT_FLAGS, head->last ? FLAG_LAST : 0);
    tsi_shard_put64(bytes + AT_COUNT, (uint64_t)head->count);
    tsi_shard_put64(bytes + AT_VOCABULARY, (uint64_t)head->vocabulary);
    tsi_shard_put64(bytes + AT_TOKENIZER, head->tokenizer);
    tsi_shard_put64(bytes + AT_TABLE_SUM, head->table_sum);
    tsi_shard_put64(bytes + AT_INDEX, (uint64_t)head->index);
    tsi_shard_put64(bytes + AT_SOURCE, head->source);
    tsi_shard_put64(bytes + AT_NEXT, (uint64_t)head->next.file);
    tsi_shard_put64(bytes + AT_NEXT + 8, (uint64_t)head->next.offset);
    tsi_shard_put64(bytes + AT_NEXT + 16, (uint64_t)head->next.tokens);
    tsi_shard_put64(bytes + AT_FIRST, (uint64_t)head->first);
    tsi_shard_put64(bytes + AT_SUM, tsi_shard_sum(bytes, AT_SUM));
}

static void read_fields(const unsigned char *bytes, tsi_shard_head *out)
{
    out->width = (int32_t)get32(bytes + AT_WIDTH);
    out->last = (get32(bytes + AT_FLAGS) & FLAG_LAST) != 0;
    out->count = (int64_t)tsi_shard_get64(bytes + AT_COUNT);
    out->vocabulary = (int64_t)tsi_shard_get64(bytes + AT_VOCABULARY);
    out->tokenizer = tsi_shard_get64(bytes + AT_TOKENIZER);
    out->table_sum = tsi_shard_get64(bytes + AT_TABLE_SUM);
    out->index = (int64_t)tsi_shard_get64(bytes + AT_INDEX);
    out->source = tsi_shard_get64(bytes + AT_SOURCE);
    out->next.file = (int64_t)tsi_shard_get64(bytes + AT_NEXT);
    out->next.offset = (int64_t)tsi_shard_get64(bytes + AT_NEXT + 8);
    out->next.tokens = (int64_t)tsi_shard_get64(bytes + AT_NEXT + 16);
    out->first = (int64_t)tsi_shard_get64(bytes + AT_FIRST);
}

/* The fields of a header whose sum is right; another program may have written nonsense. */
static ts_status check_fields(const char *path, const tsi_shard_head *head, int64_t file_bytes)
{
    if (head->width != 2 && head->width != 4)
        return TSI_FAIL(TS_ERR_IO, "%s: tokens of %d bytes; only 2 and 4 are known", path,
                        head->width);
    if (head->vocabulary < 1 || head->vocabulary > (head->width == 2 ? 65536 : INT32_MAX))
        return TSI_FAIL(TS_ERR_IO, "%s: a vocabulary of %lld does not fit tokens of %d bytes", path,
                        (long long)head->vocabulary, head->width);
    if (head->count < 0 || head->count > INT64_MAX / 8 || head->index < 0 || head->first < 0)
        return TSI_FAIL(TS_ERR_IO, "%s: %lld tokens, shard %lld", path, (long long)head->count,
                        (long long)head->index);
    int64_t wanted = tsi_shard_table_at(head) + 8 * tsi_shard_blocks(head);
    if (file_bytes != wanted)
        return TSI_FAIL(TS_ERR_IO, "%s has %lld bytes, but its %lld tokens need %lld: it is %s",
                        path, (long long)file_bytes, (long long)head->count, (long long)wanted,
                        file_bytes < wanted ? "truncated" : "too long");
    return TS_OK;
}

ts_status tsi_shard_decode(const char *path, const unsigned char bytes[TSI_SHARD_HEADER],
                           int64_t file_bytes, tsi_shard_head *out)
{
    *out = (tsi_shard_head){ 0 };
    if (file_bytes < TSI_SHARD_HEADER)
        return TSI_FAIL(TS_ERR_IO, "%s has %lld bytes, less than the header of a token file", path,
                        (long long)file_bytes);
    if (memcmp(bytes, magic, sizeof magic) != 0)
        return TSI_FAIL(TS_ERR_IO, "%s is not a token file: it does not begin with TSTOKENS", path);
    uint32_t version = get32(bytes + AT_VERSION), header = get32(bytes + AT_HEADER);
    if (version != TSI_SHARD_VERSION || header != TSI_SHARD_HEADER)
        return TSI_FAIL(TS_ERR_IO,
                        "%s: version %u with a header of %u bytes; this program reads "
                        "version %d with %d",
                        path, version, header, TSI_SHARD_VERSION, TSI_SHARD_HEADER);
    if (tsi_shard_get64(bytes + AT_SUM) != tsi_shard_sum(bytes, AT_SUM))
        return TSI_FAIL(TS_ERR_IO, "%s: the checksum of the header is wrong", path);
    read_fields(bytes, out);
    ts_status status = check_fields(path, out, file_bytes);
    if (status != TS_OK) *out = (tsi_shard_head){ 0 };
    return status;
}
