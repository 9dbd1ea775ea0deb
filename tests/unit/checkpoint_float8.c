/* SPDX-License-Identifier: Apache-2.0 */
/* Weights published in 8 bits: every byte has its number, blocks their factors, and slices that
 * begin inside a block are those of the whole. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/test.h"
#include "tessera/checkpoint.h"

enum { ROWS = 130, COLUMNS = 300, BLOCKS = 3 };

/* By the book, apart from the code. */
static double number(unsigned bits, int mantissa_bits, int bias)
{
    int exponent = (int)(bits & 0x7F) >> mantissa_bits, steps = 1 << mantissa_bits;
    double fraction = (double)(bits % (unsigned)steps) / steps, sign = bits & 0x80 ? -1 : 1;
    if (exponent == 0) return sign * fraction * pow(2, 1 - bias);
    return sign * (1 + fraction) * pow(2, exponent - bias);
}

static void write_file(test *t, const char *path, const char *dtype, const unsigned char *bits,
                       const float *scale)
{
    char header[512];
    int length =
        snprintf(header, sizeof header,
                 "{\"w\":{\"dtype\":\"%s\",\"shape\":[%d,%d],\"data_offsets\":[0,%d]},"
                 "\"w_scale_inv\":{\"dtype\":\"F32\",\"shape\":[2,%d],\"data_offsets\":[%d,%d]}}",
                 dtype, ROWS, COLUMNS, ROWS * COLUMNS, BLOCKS, ROWS * COLUMNS,
                 ROWS * COLUMNS + 2 * BLOCKS * 4);
    uint64_t bytes = (uint64_t)length;
    FILE *file = fopen(path, "wb");
    TEST_CHECK(t, file != NULL);
    if (!file) return;
    fwrite(&bytes, 8, 1, file);
    fwrite(header, 1, (size_t)length, file);
    fwrite(bits, 1, ROWS * COLUMNS, file);
    fwrite(scale, 4, 2 * BLOCKS, file);
    fclose(file);
}

static void check_kind(test *t, const char *dtype, int mantissa_bits, int bias)
{
    static unsigned char bits[ROWS * COLUMNS];
    static float read[ROWS * COLUMNS];
    float scale[2 * BLOCKS] = { 1, 0.5f, 3, 0.25f, 7, 2 };
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        bits[i] = (unsigned char)(i * 7 + i / 256);
        bool whole = mantissa_bits == 3 ? (bits[i] & 0x7F) != 0x7F : (bits[i] & 0x7F) < 0x7C;
        if (!whole) bits[i] = 1;
    }
    char path[512];
    snprintf(path, sizeof path, "%s/float8-%ld.safetensors", TS_BINARY_DIR, (long)getpid());
    write_file(t, path, dtype, bits, scale);
    ts_archive *archive = NULL;
    ts_archive_about about;
    TEST_OK(t, ts_archive_open(path, &archive));
    ts_archive_about_of(archive, &about);
    TEST_EQ(t, about.tensor_count, 1); /* the factors are no tensor of their own */
    int64_t first = 0, count = ROWS * COLUMNS;
    for (int turn = 0; turn < 20; turn++) {
        TEST_OK(t, ts_archive_read(archive, 0, first, count, TS_DTYPE_F32, read));
        for (int64_t i = 0; i < count; i++) {
            int64_t at = first + i, row = at / COLUMNS, column = at % COLUMNS;
            double want = number(bits[at], mantissa_bits, bias) *
                          (double)scale[row / 128 * BLOCKS + column / 128];
            TEST_SAY(t, (double)read[i] == want, "%s, byte %02x at %lld: %g, not %g", dtype,
                     bits[at], (long long)at, (double)read[i], want);
            if (test_failed(t)) break;
        }
        first = test_random_below(t, ROWS * COLUMNS);
        count = test_random_below(t, ROWS * COLUMNS - first + 1);
    }
    ts_archive_close(archive);
    unlink(path);
}

/* Blocks of the size that config.json says; with another one the factors do not fit, and nothing is
 * read as if there were none. */
TS_TEST(float8_blocks_are_those_of_the_configuration)
{
    static unsigned char bits[ROWS * COLUMNS];
    static float read[ROWS * COLUMNS];
    const float scale[2 * BLOCKS] = { 1, 0.5f, 3, 0.25f, 7, 2 };
    char directory[400], path[512], config[512];
    memset(bits, 0x38, sizeof bits); /* 1.0 */
    snprintf(directory, sizeof directory, "%s/float8-%ld", TS_BINARY_DIR, (long)getpid());
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    snprintf(config, sizeof config, "%s/config.json", directory);
    TEST_CHECK(t, mkdir(directory, 0777) == 0);
    write_file(t, path, "F8_E4M3", bits, scale);
    static const char *const size[] = { "[100, 150]", "[65, 100]", "[64, 64]", "[0, 128]" };
    for (int i = 0; i < 4; i++) {
        FILE *file = fopen(config, "w");
        TEST_CHECK(t, file != NULL);
        if (!file) return;
        fprintf(file, "{\"quantization_config\": {\"weight_block_size\": %s}}", size[i]);
        fclose(file);
        ts_archive *archive = NULL;
        ts_status status = ts_archive_open(i % 2 ? path : directory, &archive);
        if (i == 1) {
            TEST_OK(t, status);
            TEST_OK(t, ts_archive_read(archive, 0, 0, ROWS * COLUMNS, TS_DTYPE_F32, read));
            for (int at = 0; at < ROWS * COLUMNS; at++) {
                int row = at / COLUMNS, column = at % COLUMNS;
                TEST_CHECK(t, read[at] == scale[row / 65 * BLOCKS + column / 100]);
            }
        } else {
            TEST_STATUS(t, status, TS_ERR_IO);
            TEST_SAYS(t, ts_last_error(), i == 3 ? "weight_block_size is 0 x 128" : "do not fit");
        }
        ts_archive_close(archive);
    }
    unlink(config);
    unlink(path);
    rmdir(directory);
}

TS_TEST(float8_with_factors)
{
    check_kind(t, "F8_E4M3", 3, 7);
    check_kind(t, "F8_E5M2", 2, 15);
}
