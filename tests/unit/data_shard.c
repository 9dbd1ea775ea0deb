/* SPDX-License-Identifier: Apache-2.0 */
/* data_shard.c - token files: what is written comes back, and every damage is noticed and named. */
#include "data/shard.h"
#include "data/shard_head.h"
#include "unit/data_util.h"

enum { COUNT = 70000 }; /* more than one block of either width */

static int32_t token_of(int64_t i, int64_t vocabulary)
{
    return (int32_t)((uint64_t)i * 2654435761u % (uint64_t)vocabulary);
}

static void write_shard(test *t, const char *path, int32_t width, int64_t count)
{
    tsi_shard_head head = { .width = width,
                            .vocabulary = width == 2 ? 65536 : 200000,
                            .tokenizer = 0x1122334455667788u,
                            .source = 99,
                            .index = 3,
                            .first = 500 };
    tsi_shard_writer writer;
    TEST_OK(t, tsi_shard_create(path, &head, &writer));
    int32_t ids[777];
    for (int64_t done = 0; done < count;) {
        int64_t some = count - done < 777 ? count - done : 777;
        for (int64_t i = 0; i < some; i++)
            ids[i] = token_of(done + i, head.vocabulary);
        TEST_OK(t, tsi_shard_append(&writer, ids, some));
        done += some;
    }
    TEST_CHECK(t, access(path, F_OK) != 0); /* not before it is complete */
    TEST_OK(t, tsi_shard_finish(&writer, (tsi_shard_position){ 1, 2, 3 }, true));
    TEST_CHECK(t, access(path, F_OK) == 0);
}

static void check_shard(test *t, const char *path, int32_t width, int64_t count)
{
    tsi_shard shard;
    TEST_OK(t, tsi_shard_open(path, &shard));
    TEST_EQ(t, shard.head.count, count);
    TEST_EQ(t, shard.head.width, width);
    TEST_EQ(t, shard.head.index, 3);
    TEST_EQ(t, shard.head.first, 500);
    TEST_EQ(t, shard.head.next.file, 1);
    TEST_EQ(t, shard.head.next.offset, 2);
    TEST_EQ(t, shard.head.next.tokens, 3);
    TEST_CHECK(t, shard.head.last && shard.head.tokenizer == 0x1122334455667788u);
    unsigned char *block = malloc(TSI_SHARD_BLOCK);
    int32_t *ids = malloc(COUNT * sizeof *ids);
    for (int round = 0; round < 50 && count > 0 && !test_failed(t); round++) {
        int64_t first = test_random_below(t, count), some = test_random_below(t, count - first + 1);
        TEST_OK(t, tsi_shard_read(&shard, first, some, block, ids));
        for (int64_t i = 0; i < some && !test_failed(t); i++)
            TEST_EQ(t, ids[i], token_of(first + i, shard.head.vocabulary));
    }
    free(block);
    free(ids);
    tsi_shard_close(&shard);
}

TS_TEST(round_trip)
{
    static const int64_t counts[] = { 0, 1, 3, 4, 16384, 32768, 32769, COUNT };
    char folder[DATA_PATH_MAX], path[DATA_PATH_MAX];
    data_folder_make(t, folder);
    data_path(path, folder, "x.bin");
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        for (int32_t width = 2; width <= 4; width += 2) {
            unlink(path);
            write_shard(t, path, width, counts[i]);
            check_shard(t, path, width, counts[i]);
        }
    }
    data_folder_remove(folder);
}

/* The format is fixed: these bytes were computed by a program of its own from docs/data.md. */
TS_TEST(format_stays)
{
    char folder[DATA_PATH_MAX], path[DATA_PATH_MAX];
    data_folder_make(t, folder);
    data_path(path, folder, "x.bin");
    write_shard(t, path, 2, 3);
    static const unsigned char want[144] = {
#include "data_shard_bytes.inc"
    };
    size_t bytes;
    unsigned char *got = data_read(t, path, &bytes);
    TEST_EQ(t, bytes, sizeof want);
    for (size_t i = 0; i < bytes && i < sizeof want; i++)
        TEST_SAY(t, got[i] == want[i], "byte %zu is %02x, not %02x", i, got[i], want[i]);
    free(got);
    data_folder_remove(folder);
}

/* ---- damage ---------------------------------------------------------------------------------- */
/* Opens and reads everything: the status, and the sentence in ts_last_error. */
static ts_status read_all(const char *path)
{
    static unsigned char block[TSI_SHARD_BLOCK];
    static int32_t ids[COUNT];
    tsi_shard shard;
    ts_status status = tsi_shard_open(path, &shard);
    if (status != TS_OK) return status;
    int64_t count = shard.head.count < COUNT ? shard.head.count : COUNT;
    status = tsi_shard_read(&shard, 0, count, block, ids);
    tsi_shard_close(&shard);
    return status;
}

typedef struct damage {
    size_t at;
    unsigned char flip;
    const char *words;
} damage;

TS_TEST(damage_is_named)
{
    static const damage cases[] = {
        { 0, 1, "is not a token file" },
        { 8, 2, "version 3" },
        { 12, 4, "header of 132 bytes" },
        { 24, 1, "checksum of the header" },
        { 100, 1, "checksum of the header" },
        { 127, 128, "checksum of the header" },
        { 128, 1, "tokens 0 to 32767" },
        { 128 + 65536, 1, "tokens 32768 to 65535" },
        { 128 + 139999, 1, "tokens 65536 to 69999" },
        { 128 + 140000 + 3, 1, "table of checksums" },
    };
    char folder[DATA_PATH_MAX], path[DATA_PATH_MAX];
    data_folder_make(t, folder);
    data_path(path, folder, "x.bin");
    write_shard(t, path, 2, COUNT);
    size_t bytes;
    unsigned char *good = data_read(t, path, &bytes);
    TEST_OK(t, read_all(path));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        good[cases[i].at] ^= cases[i].flip;
        data_write(t, path, good, bytes);
        good[cases[i].at] ^= cases[i].flip;
        TEST_STATUS(t, read_all(path), TS_ERR_IO);
        TEST_SAYS(t, ts_last_error(), cases[i].words);
        TEST_SAYS(t, ts_last_error(), "x.bin");
    }
    static const size_t lengths[] = { 0, 5, 127, 128, 5000, 140127, 140130 };
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        data_write(t, path, good, lengths[i]);
        TEST_STATUS(t, read_all(path), TS_ERR_IO);
        TEST_SAYS(t, ts_last_error(), lengths[i] < 128 ? "less than the header" : "truncated");
    }
    good = realloc(good, bytes + 1);
    good[bytes] = 0;
    data_write(t, path, good, bytes + 1);
    TEST_STATUS(t, read_all(path), TS_ERR_IO);
    TEST_SAYS(t, ts_last_error(), "too long");
    free(good);
    data_folder_remove(folder);
}

/* Every single bit of a small file. */
TS_TEST(every_bit_counts)
{
    char folder[DATA_PATH_MAX], path[DATA_PATH_MAX];
    data_folder_make(t, folder);
    data_path(path, folder, "x.bin");
    write_shard(t, path, 4, 6);
    size_t bytes;
    unsigned char *good = data_read(t, path, &bytes);
    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        good[bit / 8] ^= (unsigned char)(1u << bit % 8);
        data_write(t, path, good, bytes);
        good[bit / 8] ^= (unsigned char)(1u << bit % 8);
        TEST_SAY(t, read_all(path) == TS_ERR_IO, "bit %zu of byte %zu", bit % 8, bit / 8);
    }
    free(good);
    data_folder_remove(folder);
}

/* A file with right sums but a token outside of the vocabulary, and one cut while it is open. */
TS_TEST(other_faults)
{
    char folder[DATA_PATH_MAX], path[DATA_PATH_MAX];
    static unsigned char block[TSI_SHARD_BLOCK];
    static int32_t ids[COUNT];
    data_folder_make(t, folder);
    data_path(path, folder, "x.bin");
    write_shard(t, path, 2, COUNT);
    tsi_shard shard;
    TEST_OK(t, tsi_shard_open(path, &shard));
    shard.head.vocabulary = 10; /* as if the header said so */
    TEST_STATUS(t, tsi_shard_read(&shard, 0, 100, block, ids), TS_ERR_IO);
    TEST_SAYS(t, ts_last_error(), "the vocabulary has 10");
    TEST_CHECK(t, truncate(path, 1000) == 0);
    TEST_STATUS(t, tsi_shard_read(&shard, 60000, 100, block, ids), TS_ERR_IO);
    TEST_SAYS(t, ts_last_error(), "became shorter");
    tsi_shard_close(&shard);
    tsi_shard_writer writer;
    tsi_shard_head head = { .width = 2, .vocabulary = 5 };
    TEST_STATUS(t, tsi_shard_create("/nowhere/x.bin", &head, &writer), TS_ERR_IO);
    TEST_SAYS(t, ts_last_error(), "/nowhere/x.bin.tmp cannot be created");
    TEST_STATUS(t, tsi_shard_open(folder, &shard), TS_ERR_IO);
    TEST_SAYS(t, ts_last_error(), "not a regular file");
    data_folder_remove(folder);
}
