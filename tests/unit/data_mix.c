/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of several loaders in turn: shares, each loader's own order, the same however they are read.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/test.h"
#include "tessera/data.h"

enum { CONTEXT = 4, BATCH = 7, SOURCES = 3 };

/* Text of one letter: a row tells whose it is. */
static ts_loader *loader_of(test *t, const char *folder, int which)
{
    char path[256], prefix[256];
    snprintf(path, sizeof path, "%s/%d.txt", folder, which);
    snprintf(prefix, sizeof prefix, "%s/%d", folder, which);
    FILE *file = fopen(path, "w");
    for (int i = 0; file && i < 100 + 40 * which; i++)
        fputc('a' + which, file);
    if (file) fclose(file);
    const char *files[] = { path };
    ts_tokenize_result result;
    ts_tokenize_options to = TS_INIT(ts_tokenize_options);
    to.files = files;
    to.file_count = 1;
    to.prefix = prefix;
    to.no_eos = 1;
    TEST_OK(t, ts_tokenize_files(&to, &result));
    ts_loader_options options = TS_INIT(ts_loader_options);
    options.prefix = prefix;
    options.context = CONTEXT;
    options.batch = 1;
    options.seed = 3;
    ts_loader *loader = NULL;
    TEST_OK(t, ts_loader_open(&options, &loader));
    return loader;
}

TS_TEST(shares_and_order)
{
    char folder[] = TS_BINARY_DIR "/mix-XXXXXX", command[300];
    TEST_CHECK(t, mkdtemp(folder) != NULL);
    ts_loader *own[SOURCES], *alone[SOURCES], *mix = NULL;
    const double weight[SOURCES] = { 5, 3, 2 };
    for (int i = 0; i < SOURCES; i++) {
        own[i] = loader_of(t, folder, i);
        alone[i] = loader_of(t, folder, i);
    }
    TEST_OK(t, ts_loader_mix(own, weight, SOURCES, BATCH, &mix));
    int64_t seen[SOURCES] = { 0 };
    for (int64_t n = 0; n < 100 * BATCH; n++) {
        int32_t row[CONTEXT + 1];
        int64_t epoch, there;
        TEST_OK(t, ts_loader_batch(mix, n / BATCH, n % BATCH, 1, row));
        int which = row[0] - 'a';
        TEST_CHECK(t, which >= 0 && which < SOURCES);
        int64_t window = ts_loader_window(mix, n, &epoch);
        TEST_EQ(t, window, ts_loader_window(alone[which], seen[which], &there));
        TEST_EQ(t, epoch, there);
        seen[which]++;
        for (int i = 0; i < SOURCES; i++) /* never more than a row from its share */
            TEST_CHECK(t, labs((long)(10 * seen[i] - (int64_t)weight[i] * (n + 1))) <= 10);
    }
    TEST_EQ(t, seen[0], 350);
    TEST_EQ(t, ts_loader_tokens(mix), 100 + 140 + 180);
    ts_loader_close(mix);
    const double bad[SOURCES] = { 1, 0, 1 }, huge[SOURCES] = { 1e308, 1.5e308, 1e308 };
    TEST_CHECK(t, ts_loader_mix(alone, bad, SOURCES, BATCH, &mix) == TS_ERR_ARG);
    TEST_CHECK(t, ts_loader_mix(alone, huge, SOURCES, BATCH, &mix) == TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "the weights add up to inf");
    for (int i = 0; i < SOURCES; i++)
        ts_loader_close(alone[i]);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    TEST_EQ(t, system(command), 0);
}

/* Many sources of equal weight: rounding must leave none without a turn, and none with too many. */
TS_TEST(many_sources_have_their_share)
{
    enum { MOST = 64 };
    char folder[] = TS_BINARY_DIR "/mix-XXXXXX", command[300];
    TEST_CHECK(t, mkdtemp(folder) != NULL);
    static const int64_t counts[] = { 51, 60, 64 };
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        ts_loader *own[MOST], *mix = NULL;
        double weight[MOST];
        int64_t seen[26] = { 0 }, rows = 1000;
        for (int64_t i = 0; i < counts[c]; i++) {
            own[i] = loader_of(t, folder, (int)(i % 26));
            weight[i] = 1;
        }
        TEST_OK(t, ts_loader_mix(own, weight, counts[c], BATCH, &mix));
        for (int64_t n = 0; n < rows; n++) {
            int32_t row[CONTEXT + 1];
            TEST_OK(t, ts_loader_batch(mix, n / BATCH, n % BATCH, 1, row));
            seen[(row[0] - 'a') % 26]++;
        }
        for (int64_t k = 0; k < 26; k++) {
            int64_t sources = counts[c] / 26 + (k < counts[c] % 26);
            double share = (double)rows * (double)sources / (double)counts[c];
            TEST_SAY(t, (double)seen[k] > share - 4 && (double)seen[k] < share + 4,
                     "%lld sources: %lld rows of letter %lld, not %g", (long long)counts[c],
                     (long long)seen[k], (long long)k, share);
        }
        ts_loader *again[] = { mix };
        ts_loader *none = NULL;
        TEST_STATUS(t, ts_loader_mix(again, weight, 1, BATCH, &none), TS_ERR_ARG);
        ts_loader_close(mix);
    }
    snprintf(command, sizeof command, "rm -r %s", folder);
    TEST_EQ(t, system(command), 0);
}
