/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.c - any bytes as a weight file: refused with a sentence, or a set whose tensors lie
 * in the file one after the other and can all be read.
 *
 * Bytes that begin with '{' are a header, to which its length and 64 bytes of data are added. */
#define _GNU_SOURCE 1
#include "corpus.h"

#include <sys/mman.h>
#include <unistd.h>

#include "checkpoint/safetensors.h"

enum { DATA_BYTES = 64 };

static void file_fill(int fd, const uint8_t *data, size_t size)
{
    static const uint8_t zeros[DATA_BYTES];
    bool bare = size > 0 && data[0] == '{';
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)size >> (8 * i));
    if (bare) FUZZ_CHECK(write(fd, length, 8) == 8);
    FUZZ_CHECK(write(fd, data, size) == (ssize_t)size);
    if (bare) FUZZ_CHECK(write(fd, zeros, DATA_BYTES) == DATA_BYTES);
}

static void check_set(tsi_weights *w)
{
    int64_t total = 0;
    for (int64_t i = 0; i < tsi_weights_count(w); i++) {
        const tsi_stored *stored = tsi_weights_at(w, i);
        int64_t bytes = stored->end - stored->begin;
        FUZZ_CHECK(bytes >= 0 && bytes == ts_shape_count(&stored->meta.shape) *
                                              (int64_t)ts_dtype_size((ts_dtype)stored->meta.dtype));
        FUZZ_CHECK(tsi_weights_find(w, stored->name) == stored);
        char *to = malloc((size_t)bytes + 1);
        FUZZ_CHECK(to);
        FUZZ_CHECK(tsi_weights_read(w, stored, 0, ts_shape_count(&stored->meta.shape), to) ==
                   TS_OK);
        free(to);
        total += bytes;
    }
    tsi_weights_file file = tsi_weights_file_at(w, 0);
    FUZZ_CHECK(total >= 0 && file.header && tsi_weights_file_count(w) == 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 4000) return 0;
    char path[64];
    int fd = memfd_create("safetensors", 0);
    FUZZ_CHECK(fd >= 0);
    file_fill(fd, data, size);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    tsi_weights *w = NULL;
    ts_status status = tsi_weights_open(path, &w);
    FUZZ_CHECK((status == TS_OK) == (w != NULL));
    FUZZ_CHECK(w || ts_last_error()[0]);
    if (w) check_set(w);
    tsi_weights_close(w);
    close(fd);
    return 0;
}

#ifndef TS_FUZZER
TS_TEST(safetensors_corpus)
{
    TEST_CHECK(t, fuzz_corpus(t, "safetensors") >= 8);
}
#endif
