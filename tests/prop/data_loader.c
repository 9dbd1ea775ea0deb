/* SPDX-License-Identifier: Apache-2.0 */
/* data_loader.c - loaders: every epoch visits every window once, rows are the same however ranks
 * share them and however the stream is cut into shards, and the state is the step. */
#include "data/shard.h"
#include "unit/data_util.h"

enum { VOCABULARY = 60000 };

static int32_t token_of(int64_t i)
{
    return (int32_t)((uint64_t)i * 40503u % VOCABULARY);
}

/* Tokens [first, first + count) of the stream as one shard. */
static void write_shard(test *t, const char *path, int64_t first, int64_t count, int64_t index,
                        bool last)
{
    tsi_shard_head head = {
        .width = 2, .vocabulary = VOCABULARY, .tokenizer = 7, .index = index, .first = first
    };
    tsi_shard_writer writer;
    TEST_OK(t, tsi_shard_create(path, &head, &writer));
    for (int64_t i = 0; i < count; i++) {
        int32_t id = token_of(first + i);
        TEST_OK(t, tsi_shard_append(&writer, &id, 1));
    }
    TEST_OK(t, tsi_shard_finish(&writer, (tsi_shard_position){ 0 }, last));
}

static ts_loader *open_files(test *t, char (*paths)[DATA_PATH_MAX], int64_t count, int64_t context,
                             int64_t batch, uint64_t seed)
{
    const char *files[8];
    for (int64_t i = 0; i < count; i++)
        files[i] = paths[i];
    ts_loader_options options = TS_INIT(ts_loader_options);
    options.files = files;
    options.file_count = count;
    options.context = context;
    options.batch = batch;
    options.seed = seed;
    ts_loader *loader = NULL;
    TEST_OK(t, ts_loader_open(&options, &loader));
    return loader;
}

/* Every number of windows up to 300, and some large ones: a permutation in each epoch. */
TS_TEST(each_epoch_is_a_permutation)
{
    char folder[DATA_PATH_MAX], path[1][DATA_PATH_MAX];
    data_folder_make(t, folder);
    data_path(path[0], folder, "x.bin");
    for (int64_t windows = 1; windows <= 5000 && !test_failed(t);
         windows += windows < 300 ? 1 : 1531) {
        unlink(path[0]);
        write_shard(t, path[0], 0, windows + 1 + (windows > 1), 0, true);
        ts_loader *loader = open_files(t, path, 1, windows > 1 ? 1 : 1, 4, 17);
        int64_t all = ts_loader_windows(loader);
        char *seen = calloc((size_t)all, 1);
        bool moved = false;
        for (int64_t epoch = 0; epoch < 2; epoch++) {
            memset(seen, 0, (size_t)all);
            for (int64_t i = 0; i < all; i++) {
                int64_t at = -1;
                int64_t window = ts_loader_window(loader, epoch * all + i, &at);
                TEST_EQ(t, at, epoch);
                TEST_CHECK(t, window >= 0 && window < all && !seen[window]);
                if (window >= 0 && window < all) seen[window] = 1;
                moved = moved || window != ts_loader_window(loader, i, NULL);
            }
        }
        TEST_SAY(t, moved || all < 8, "%lld windows: both epochs have the same order",
                 (long long)all);
        free(seen);
        ts_loader_close(loader);
    }
    data_folder_remove(folder);
}

/* Positions of a window over many seeds are spread: no place is favoured. */
TS_TEST(orders_are_spread)
{
    char folder[DATA_PATH_MAX], path[1][DATA_PATH_MAX];
    enum { WINDOWS = 20, SEEDS = 20000 };
    data_folder_make(t, folder);
    data_path(path[0], folder, "x.bin");
    write_shard(t, path[0], 0, WINDOWS + 1, 0, true);
    static int64_t counts[WINDOWS][WINDOWS];
    for (uint64_t seed = 0; seed < SEEDS; seed += 1) {
        ts_loader *loader = open_files(t, path, 1, 1, 1, seed);
        for (int64_t i = 0; i < WINDOWS; i++)
            counts[i][ts_loader_window(loader, i, NULL)]++;
        ts_loader_close(loader);
    }
    for (int i = 0; i < WINDOWS; i++) {
        for (int j = 0; j < WINDOWS; j++) /* mean 1000, deviation 31 */
            TEST_SAY(t, counts[i][j] > 800 && counts[i][j] < 1200, "window %d at place %d: %lld", j,
                     i, (long long)counts[i][j]);
    }
    data_folder_remove(folder);
}

/* The batch of a step, read by 1 .. 5 ranks with uneven rows, from 1 shard and from 5. */
TS_TEST(rows_do_not_depend_on_ranks_or_shards)
{
    enum { TOKENS = 80000, CONTEXT = 37, BATCH = 11 };
    static int32_t want[BATCH * (CONTEXT + 1)], got[BATCH * (CONTEXT + 1)];
    char folder[DATA_PATH_MAX], one[1][DATA_PATH_MAX], many[5][DATA_PATH_MAX];
    data_folder_make(t, folder);
    data_path(one[0], folder, "one.bin");
    write_shard(t, one[0], 0, TOKENS, 0, true);
    static const int64_t ends[6] = { 0, 40, 40, 41, 70001, TOKENS }; /* one is empty */
    for (int i = 0; i < 5; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "many-%05d.bin", i);
        data_path(many[i], folder, name);
        write_shard(t, many[i], ends[i], ends[i + 1] - ends[i], i, i == 4);
    }
    ts_loader *loader = open_files(t, one, 1, CONTEXT, BATCH, 3);
    ts_loader *cut = open_files(t, many, 5, CONTEXT, BATCH, 3);
    TEST_EQ(t, ts_loader_windows(loader), (TOKENS - 1) / CONTEXT);
    for (int round = 0; round < 200 && !test_failed(t); round++) {
        int64_t step = test_random_below(t, 1000), ranks = 1 + test_random_below(t, 5);
        TEST_OK(t, ts_loader_batch(loader, step, 0, BATCH, want));
        for (int64_t r = 0; r < BATCH; r++) { /* rows are the windows that the order says */
            int64_t window = ts_loader_window(loader, step * BATCH + r, NULL);
            for (int64_t i = 0; i <= CONTEXT && !test_failed(t); i++)
                TEST_EQ(t, want[r * (CONTEXT + 1) + i], token_of(window * CONTEXT + i));
        }
        int64_t part = (BATCH + ranks - 1) / ranks;
        for (int64_t rank = 0; rank < ranks; rank++) {
            int64_t first = rank * part < BATCH ? rank * part : BATCH;
            int64_t rows = first + part < BATCH ? part : BATCH - first;
            TEST_OK(t, ts_loader_batch(rank % 2 == 0 ? loader : cut, step, first, rows,
                                       got + first * (CONTEXT + 1)));
        }
        TEST_CHECK(t, memcmp(want, got, sizeof want) == 0);
    }
    ts_loader_close(loader);
    ts_loader_close(cut);
    ts_loader_options options = TS_INIT(ts_loader_options);
    char prefix[DATA_PATH_MAX];
    data_path(prefix, folder, "many");
    options.prefix = prefix;
    options.context = CONTEXT;
    options.batch = BATCH;
    options.in_order = 1;
    TEST_OK(t, ts_loader_open(&options, &loader));
    TEST_OK(t, ts_loader_batch(loader, 0, 0, 2, got));
    for (int64_t i = 0; i <= CONTEXT; i++) {
        TEST_EQ(t, got[i], token_of(i));
        TEST_EQ(t, got[CONTEXT + 1 + i], token_of(CONTEXT + i)); /* overlaps by one token */
    }
    ts_loader_close(loader);
    TEST_CHECK(t, unlink(many[4]) == 0);
    TEST_STATUS(t, ts_loader_open(&options, &loader), TS_ERR_IO);
    TEST_SAYS(t, ts_last_error(), "tokenizing was not finished");
    data_folder_remove(folder);
}

TS_TEST(bad_calls)
{
    char folder[DATA_PATH_MAX], path[2][DATA_PATH_MAX];
    int32_t out[64];
    data_folder_make(t, folder);
    data_path(path[0], folder, "a.bin");
    data_path(path[1], folder, "b.bin");
    write_shard(t, path[0], 0, 20, 0, true);
    ts_loader *loader = open_files(t, path, 1, 4, 3, 0);
    TEST_STATUS(t, ts_loader_batch(loader, -1, 0, 1, out), TS_ERR_ARG);
    TEST_STATUS(t, ts_loader_batch(loader, INT64_MAX, 0, 1, out), TS_ERR_ARG);
    TEST_STATUS(t, ts_loader_batch(loader, 0, 2, 2, out), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "rows 2 to 3 of a batch of 3");
    TEST_OK(t, ts_loader_batch(loader, 0, 3, 0, NULL)); /* a rank without rows */
    ts_loader_close(loader);
    ts_loader_options options = TS_INIT(ts_loader_options);
    const char *files[2] = { path[0], path[1] };
    options.files = files;
    options.file_count = 1;
    options.batch = 1;
    options.context = 20;
    TEST_STATUS(t, ts_loader_open(&options, &loader), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "20 tokens are fewer than one window of 20 + 1");
    options.context = 0;
    TEST_STATUS(t, ts_loader_open(&options, &loader), TS_ERR_ARG);
    options.context = 4;
    tsi_shard_head head = { .width = 2, .vocabulary = 5, .tokenizer = 8 };
    tsi_shard_writer writer;
    TEST_OK(t, tsi_shard_create(path[1], &head, &writer));
    TEST_OK(t, tsi_shard_finish(&writer, (tsi_shard_position){ 0 }, true));
    options.file_count = 2;
    TEST_STATUS(t, ts_loader_open(&options, &loader), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "different tokenizers");
    options.prefix = "x";
    TEST_STATUS(t, ts_loader_open(&options, &loader), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "either files or a prefix");
    data_folder_remove(folder);
}
