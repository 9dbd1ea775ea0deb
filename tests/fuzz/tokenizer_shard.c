/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_shard.c - token files with damaged fields and correct sums, as a wrong program would
 * write them: refused or read, never a crash or a huge allocation. */
#include "data/shard.h"
#include "data/shard_head.h"
#include "unit/data_util.h"

static uint64_t odd_number(test *t)
{
    static const uint64_t odd[] = { 0,         1,          2,          3,         65536,
                                    65537,     0x7FFFFFFF, 0x80000000, 1u << 20,  UINT64_MAX,
                                    INT64_MAX, 1ull << 60, 1ull << 40, 0xFFFFFFFF };
    if (test_random_below(t, 3) == 0) return test_random(t);
    return odd[test_random_below(t, (int64_t)(sizeof odd / sizeof odd[0]))];
}

TS_TEST(odd_headers)
{
    enum { COUNT = 100 };
    static unsigned char block[TSI_SHARD_BLOCK];
    char folder[DATA_PATH_MAX], path[DATA_PATH_MAX];
    data_folder_make(t, folder);
    data_path(path, folder, "x.bin");
    tsi_shard_head head = { .width = 2, .vocabulary = 1000 };
    tsi_shard_writer writer;
    TEST_OK(t, tsi_shard_create(path, &head, &writer));
    for (int32_t i = 0; i < COUNT; i++)
        TEST_OK(t, tsi_shard_append(&writer, &i, 1));
    TEST_OK(t, tsi_shard_finish(&writer, (tsi_shard_position){ 0 }, true));
    size_t bytes;
    unsigned char *good = data_read(t, path, &bytes), *copy = malloc(bytes);
    int64_t refused = 0;
    for (int round = 0; round < 600 && copy != NULL; round++) {
        memcpy(copy, good, bytes);
        int64_t times = 1 + test_random_below(t, 3);
        for (int64_t i = 0; i < times; i++)
            tsi_shard_put64(copy + 8 * (1 + test_random_below(t, 14)), odd_number(t));
        if (round % 4 != 0) tsi_shard_put64(copy + 120, tsi_shard_sum(copy, 120));
        data_write(t, path, copy, bytes);
        tsi_shard shard;
        ts_status status = tsi_shard_open(path, &shard);
        refused += status != TS_OK;
        if (status != TS_OK) continue;
        int32_t ids[COUNT];
        int64_t count = shard.head.count < COUNT ? shard.head.count : COUNT;
        status = tsi_shard_read(&shard, 0, count, block, ids);
        TEST_CHECK(t, status == TS_OK || ts_last_error()[0] != '\0');
        tsi_shard_close(&shard);
    }
    TEST_CHECK(t, refused > 200);
    free(good);
    free(copy);
    data_folder_remove(folder);
}
