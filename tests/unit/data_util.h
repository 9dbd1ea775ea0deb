/* SPDX-License-Identifier: Apache-2.0 */
/* data_util.h - what the tests of tokenizers, token files and loaders share. */
#ifndef TESTS_UNIT_DATA_UTIL_H
#define TESTS_UNIT_DATA_UTIL_H

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "harness/test.h"
#include "tessera/data.h"

enum { DATA_PATH_MAX = 512 };

/* A tokenizer of tests/golden/tokenizer, or NULL and a failure. NULL alone: this build lacks
 * PCRE2. */
static inline ts_tokenizer *data_golden(test *t, const char *name)
{
    char path[DATA_PATH_MAX];
    (void)snprintf(path, sizeof path, TS_SOURCE_DIR "/tests/golden/tokenizer/%s.json", name);
    ts_tokenizer *tokenizer = NULL;
    ts_status status = ts_tokenizer_open(path, &tokenizer);
    TEST_SAY(t, status == TS_OK || status == TS_ERR_MISSING, "%s: %s", name, ts_last_error());
    return tokenizer;
}

/* A directory of this process under the build directory; remove it with data_folder_remove. */
static inline void data_folder_make(test *t, char *path)
{
    (void)snprintf(path, DATA_PATH_MAX, TS_BINARY_DIR "/data-XXXXXX");
    TEST_CHECK(t, mkdtemp(path) != NULL);
}

static inline void data_folder_remove(const char *path)
{
    char command[DATA_PATH_MAX + 16];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", path);
    if (system(command) != 0) (void)fprintf(stderr, "%s stays\n", path);
}

static inline void data_path(char *out, const char *folder, const char *name)
{
    int length = snprintf(out, DATA_PATH_MAX, "%s/%s", folder, name);
    if (length >= DATA_PATH_MAX) out[0] = '\0';
}

static inline void data_write(test *t, const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    TEST_SAY(t, file != NULL, "%s cannot be written", path);
    if (file == NULL) return;
    TEST_CHECK(t, fwrite(data, 1, bytes, file) == bytes);
    TEST_CHECK(t, fclose(file) == 0);
}

/* The whole file, to be freed with free(); NULL and a failure if it cannot be read. */
static inline unsigned char *data_read(test *t, const char *path, size_t *bytes)
{
    struct stat about;
    FILE *file = fopen(path, "rb");
    *bytes = 0;
    TEST_SAY(t, file != NULL && fstat(fileno(file), &about) == 0, "%s cannot be read", path);
    if (file == NULL) return NULL;
    unsigned char *data = malloc((size_t)about.st_size + 1);
    if (data != NULL) *bytes = fread(data, 1, (size_t)about.st_size, file);
    (void)fclose(file);
    return data;
}

/* Appends a random character: ASCII mostly, every plane sometimes, and if `broken` bytes that are
 * no UTF-8. Returns the new length; 4 bytes are free. */
static inline size_t data_random_char(test *t, char *text, size_t at, bool broken)
{
    static const uint32_t limits[] = { 0x80, 0x80, 0x80, 0x250, 0x800, 0x3100, 0x10000, 0x110000 };
    if (broken && test_random_below(t, 6) == 0) {
        text[at] = (char)test_random_below(t, 256);
        return at + 1;
    }
    uint32_t code = (uint32_t)test_random_below(t, limits[test_random_below(t, 8)]);
    if (code >= 0xD800 && code < 0xE000) code = 0xFFFD;
    if (code < 0x80) {
        text[at] = (char)code;
        return at + 1;
    }
    size_t count = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char lead[5] = { 0, 0, 0xC0, 0xE0, 0xF0 };
    for (size_t i = count - 1; i > 0; i--, code >>= 6)
        text[at + i] = (char)(0x80 | (code & 0x3F));
    text[at] = (char)(lead[count] | code);
    return at + count;
}

#endif
