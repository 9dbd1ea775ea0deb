/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_file.c - any header as that of a checkpoint's data file: refused with a sentence, or a
 * file whose pieces are covered by its table, and are refused since their hashes do not fit.
 *
 * The text is a header; 4 KiB of table, with the two hashes that a writer puts there, and 64 bytes
 * of data are added. */
#define _GNU_SOURCE 1
#include "corpus.h"

#include <sys/mman.h>
#include <unistd.h>

#include "checkpoint/data_file.h"
#include "checkpoint/digest.h"

enum { TABLE = 512, DATA = 64 };

static int64_t accepted; /* inputs that were no nonsense */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 4000) return 0;
    static uint8_t file[8 + 4000 + 8 * TABLE + DATA];
    uint64_t table[TABLE] = { 0 };
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)((uint64_t)size >> (8 * i));
    if (size > 0) memcpy(file + 8, data, size);
    table[0] = tsi_digest_block(file, 8 + size);
    table[1] = tsi_digest_block(table + 2, sizeof table - 16);
    memcpy(file + 8 + size, table, sizeof table);
    memset(file + 8 + size + sizeof table, 1, DATA);
    char path[64];
    int fd = memfd_create("checkpoint", 0);
    FUZZ_CHECK(fd >= 0);
    size_t bytes = 8 + size + sizeof table + DATA;
    FUZZ_CHECK(write(fd, file, bytes) == (ssize_t)bytes);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    tsi_data_file *opened = NULL;
    ts_status status = tsi_data_open(path, 0x1234, 0, &opened);
    FUZZ_CHECK((status == TS_OK) == (opened != NULL));
    FUZZ_CHECK(opened || ts_last_error()[0]);
    accepted += opened != NULL;
    const tsi_stored *piece = opened ? tsi_data_find(opened, "a") : NULL;
    int64_t length = piece ? piece->end - piece->begin : 0;
    char to[DATA + 8 * TABLE];
    struct iovec place = { to, (size_t)length };
    if (length > 0 && length <= (int64_t)sizeof to)
        FUZZ_CHECK(tsi_data_read(opened, piece, 0, &place, 1, true) != TS_OK);
    tsi_data_close(opened);
    close(fd);
    return 0;
}

#ifndef TS_FUZZER
TS_TEST(checkpoint_file_corpus)
{
    TEST_CHECK(t, fuzz_corpus(t, "checkpoint_file") >= 4);
    /* Two files as they are, and some that were changed. */
    TEST_SAY(t, accepted > 2, "%lld", (long long)accepted);
}
#endif
