/* SPDX-License-Identifier: Apache-2.0 */
/* corpus.h - what the fuzz targets of the parsers share.
 *
 * Compiled as usual, a target is a test program: it runs every file of its corpus, all their
 * prefixes, and a fixed number of mutations of them from the run's seed. With -DTS_FUZZER and clang
 * -fsanitize=fuzzer it is only the entry point LLVMFuzzerTestOneInput. A target gets NUL-terminated
 * text and aborts on a broken promise; refusing is fine. */
#ifndef TESTS_FUZZ_CORPUS_H
#define TESTS_FUZZ_CORPUS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rank.h"
#include "tessera/layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            (void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                  \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* A world for one input. */
static inline ts_world *fuzz_world(void)
{
    ts_world *world = NULL;
    FUZZ_CHECK(tsi_world_make(1, 1, 0, 16, &world) == TS_OK);
    return world;
}

static inline void fuzz_bytes(const char *text, size_t length)
{
    (void)LLVMFuzzerTestOneInput((const uint8_t *)text, length);
}

#ifndef TS_FUZZER
#include <dirent.h>

#include "base/alloc.h"
#include "harness/test.h"

/* Prefixes and mutations of one input: bytes replaced, removed and doubled. */
static inline void fuzz_around(test *t, const char *text, size_t length)
{
    static const char bytes[] = "()[]:,-/+*=? 0123456789RSPHTdpxy\t\n\xff";
    char copy[4096];
    for (size_t end = 0; end <= length; end++)
        fuzz_bytes(text, end);
    for (int i = 0; i < 300 && length > 0 && length < sizeof copy - 1; i++) {
        size_t size = length;
        memcpy(copy, text, length);
        for (int64_t n = 1 + test_random_below(t, 3); n > 0 && size > 0; n--) {
            size_t at = (size_t)test_random_below(t, (int64_t)size);
            if (test_random_below(t, 3) == 0) {
                memmove(copy + at, copy + at + 1, --size - at);
            } else if (test_random_below(t, 2) == 0 && size < sizeof copy - 1) {
                memmove(copy + at + 1, copy + at, size++ - at);
            } else {
                copy[at] = bytes[test_random_below(t, (int64_t)sizeof bytes - 1)];
            }
        }
        fuzz_bytes(copy, size);
    }
}

/* Runs a corpus directory under tests/fuzz/corpus; returns how many files there were. */
static inline int fuzz_corpus(test *t, const char *name)
{
    char path[1024], local[512];
    int files = 0;
    (void)snprintf(path, sizeof path, "%s/tests/fuzz/corpus/%s", TS_SOURCE_DIR, name);
    DIR *directory = opendir(path);
    TEST_SAY(t, directory, "cannot open %s", path);
    for (struct dirent *entry = directory ? readdir(directory) : NULL; entry;
         entry = readdir(directory)) {
        if (entry->d_name[0] == '.') continue;
        size_t length;
        (void)snprintf(local, sizeof local, "tests/fuzz/corpus/%s/%.255s", name, entry->d_name);
        char *text = test_read_file(t, local, &length);
        if (text) fuzz_around(t, text, length);
        tsi_free(text);
        files++;
    }
    if (directory) (void)closedir(directory);
    return files;
}
#endif

#endif
