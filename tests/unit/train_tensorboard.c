/* SPDX-License-Identifier: Apache-2.0 */
/* Event files: checksums against published vectors, and every record read back. */
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "harness/test.h"
#include "train/tensorboard.h"

TS_TEST(checksums)
{
    unsigned char zeros[32] = { 0 };
    TEST_EQ(t, tsi_crc32c("123456789", 9), 0xe3069283u);
    TEST_EQ(t, tsi_crc32c(zeros, sizeof zeros), 0x8a9136aau); /* RFC 3720, B.4 */
    TEST_EQ(t, tsi_crc32c("", 0), 0u);
    uint32_t crc = 0xe3069283u;
    TEST_EQ(t, tsi_crc32c_masked("123456789", 9), (crc >> 15 | crc << 17) + 0xa282ead8u);
}

static uint64_t little(const unsigned char *at, int count)
{
    uint64_t value = 0;
    for (int i = count - 1; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

/* Is the tag with this value, as a float, in the record? */
static bool has(const unsigned char *data, size_t length, const char *tag, float value)
{
    size_t n = strlen(tag);
    for (size_t i = 0; i + n + 5 <= length; i++) {
        float found;
        if (memcmp(data + i, tag, n) != 0 || data[i + n] != 0x15) continue;
        memcpy(&found, data + i + n + 1, sizeof found);
        return found == value;
    }
    return false;
}

TS_TEST(records_are_whole)
{
    char folder[] = TS_BINARY_DIR "/board-XXXXXX", path[1024] = "";
    TEST_CHECK(t, mkdtemp(folder) != NULL);
    tsi_tensorboard board = { 0 };
    TEST_OK(t, tsi_tensorboard_open(&board, folder));
    for (int64_t i = 1; i <= 300; i++) { /* a step of two bytes, too */
        ts_train_step s = { .struct_size = sizeof s, .step = i, .loss = 1.0 / (double)i };
        s.eval_loss = i % 100 == 0 ? 0.5 : (double)NAN;
        TEST_OK(t, tsi_tensorboard_add(&board, &s));
    }
    tsi_tensorboard_close(&board);
    DIR *directory = opendir(folder);
    for (struct dirent *e = directory ? readdir(directory) : NULL; e; e = readdir(directory))
        if (strncmp(e->d_name, "events.out.tfevents.", 20) == 0)
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
    if (directory) closedir(directory);
    char *text = NULL;
    size_t length = 0, at = 0;
    TEST_OK(t, tsi_file_read(path, 1 << 24, &text, &length));
    const unsigned char *data = (const unsigned char *)text;
    int64_t records = 0, held_out = 0;
    while (at + 16 <= length) {
        size_t size = (size_t)little(data + at, 8);
        TEST_EQ(t, little(data + at + 8, 4), tsi_crc32c_masked(data + at, 8));
        TEST_CHECK(t, at + 16 + size <= length);
        TEST_EQ(t, little(data + at + 12 + size, 4), tsi_crc32c_masked(data + at + 12, size));
        if (records > 0)
            TEST_CHECK(t, has(data + at + 12, size, "loss/train", (float)(1.0 / (double)records)));
        held_out += has(data + at + 12, size, "loss/held_out", 0.5f);
        at += 16 + size;
        records++;
    }
    TEST_EQ(t, at, length);
    TEST_EQ(t, records, 301);
    TEST_EQ(t, held_out, 3);
    tsi_free(text);
    unlink(path);
    rmdir(folder);
}
