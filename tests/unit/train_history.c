/* SPDX-License-Identifier: Apache-2.0 */
/* train_history.c - the log has every step once, also after a run goes on; what is kept in memory
 * is bounded, at equal distances, ends with the newest step and loses no held-out loss. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/test.h"
#include "train/run.h"

enum { EVERY = 100 }; /* steps between held-out losses */

static ts_train_step step_of(int64_t number)
{
    return (ts_train_step){ .struct_size = sizeof(ts_train_step),
                            .step = number,
                            .loss = 1.0 / (double)number,
                            .norm = (double)number,
                            .eval_loss = number % EVERY == 0 ? (double)number : (double)NAN };
}

static int64_t lines_of(const char *path)
{
    int64_t lines = 0;
    FILE *file = fopen(path, "r");
    for (int c; file && (c = fgetc(file)) != EOF;)
        lines += c == '\n';
    if (file) fclose(file);
    return lines;
}

static void expect(test *t, const tsi_history *h, int64_t newest)
{
    int64_t held_out = 0, stride = h->stride;
    TEST_SAY(t, h->count <= TSI_HISTORY_MAX && h->capacity <= TSI_HISTORY_MAX, "%lld are kept",
             (long long)h->count);
    TEST_EQ(t, h->count, (newest + stride - 1) / stride);
    for (int64_t i = 0; i < h->count; i++) {
        const ts_train_step *s = &h->step[i];
        int64_t number = i + 1 < h->count ? (i + 1) * stride : newest;
        TEST_EQ(t, s->step, number);
        TEST_CHECK(t, s->loss == 1.0 / (double)number);
        held_out += !isnan(s->eval_loss);
    }
    TEST_EQ(t, held_out, newest / EVERY);
}

/* Every length up to a few, and those around where the history is thinned. */
TS_TEST(histories_are_bounded)
{
    static const int64_t lengths[] = { 1,    2,    3,    255,  256,  257,  1023,
                                       1024, 1025, 2047, 2048, 2049, 10007 };
    char folder[] = TS_BINARY_DIR "/history-XXXXXX", path[1024];
    TEST_CHECK(t, mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/train.jsonl", folder);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        int64_t length = lengths[i], again = length / 2;
        tsi_history h = { .run = 7 }, later = { .run = 7 };
        TEST_OK(t, tsi_history_open(&h, path, 0));
        for (int64_t s = 1; s <= length; s++) {
            ts_train_step step = step_of(s);
            TEST_OK(t, tsi_history_add(&h, &step));
        }
        expect(t, &h, length);
        tsi_history_close(&h);
        TEST_EQ(t, lines_of(path), length);
        TEST_OK(t, tsi_history_open(&later, path, again)); /* goes on from the middle */
        TEST_EQ(t, lines_of(path), again);
        for (int64_t s = again + 1; s <= length; s++) {
            ts_train_step step = step_of(s);
            TEST_OK(t, tsi_history_add(&later, &step));
        }
        expect(t, &later, length);
        tsi_history_close(&later);
        TEST_EQ(t, lines_of(path), length);
    }
    (void)unlink(path);
    (void)rmdir(folder);
}

/* A file that may not grow any more is like a disk that is full. */
TS_TEST(lines_are_whole_where_the_disk_is_full)
{
    char folder[] = TS_BINARY_DIR "/history-XXXXXX", path[1024];
    TEST_CHECK(t, mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/train.jsonl", folder);
    tsi_history h = { .run = 7 };
    TEST_OK(t, tsi_history_open(&h, path, 0));
    ts_train_step step = step_of(1);
    TEST_OK(t, tsi_history_add(&h, &step));
    struct stat one, two;
    TEST_EQ(t, stat(path, &one), 0);
    struct rlimit before, few;
    TEST_EQ(t, getrlimit(RLIMIT_FSIZE, &before), 0);
    few = before;
    few.rlim_cur = (rlim_t)one.st_size + 100;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    TEST_EQ(t, setrlimit(RLIMIT_FSIZE, &few), 0);
    step = step_of(2);
    ts_status status = tsi_history_add(&h, &step);
    tsi_history_close(&h);
    TEST_EQ(t, setrlimit(RLIMIT_FSIZE, &before), 0);
    (void)signal(SIGXFSZ, handler);
    TEST_STATUS(t, status, TS_ERR_IO);
    TEST_SAYS(t, ts_last_error(), "train.jsonl: cannot be written");
    TEST_EQ(t, stat(path, &two), 0);
    TEST_EQ(t, two.st_size, one.st_size);
    (void)unlink(path);
    (void)rmdir(folder);
}
