/* SPDX-License-Identifier: Apache-2.0 */
/* torch_file.c - any bytes as an archive of torch.save: refused with a sentence, or a tensor whose
 * elements lie in it, or an object as JSON. */
#define _GNU_SOURCE 1
#include "corpus.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "checkpoint/torch_file.h"
#include "tessera/json.h"

static int64_t tensors, objects; /* inputs that were no nonsense */

static void check_plain(const tsi_torch_file *file)
{
    char *text = NULL;
    ts_json_document *document = NULL;
    if (tsi_torch_plain_of(file, &text) != TS_OK || !text) return;
    FUZZ_CHECK(ts_json_parse("plain", text, strlen(text), &document) == TS_OK);
    ts_json_release(document);
    tsi_free(text);
    objects++;
}

static void check_tensor(const tsi_torch_file *file, int64_t size)
{
    tsi_torch_tensor tensor;
    if (tsi_torch_tensor_of(file, &tensor) != TS_OK) return;
    FUZZ_CHECK(tensor.begin >= 0 && tensor.bytes >= 0 && tensor.begin + tensor.bytes <= size);
    if (tensor.dense)
        FUZZ_CHECK(tensor.bytes == ts_shape_count(&tensor.meta.shape) *
                                       (int64_t)ts_dtype_size((ts_dtype)tensor.meta.dtype));
    tensors++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 4000) return 0;
    tsi_torch_file file;
    int fd = memfd_create("torch", 0);
    FUZZ_CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    if (tsi_torch_open("input", fd, 0, (int64_t)size, &file) == TS_OK) {
        check_tensor(&file, (int64_t)size);
        check_plain(&file);
        tsi_torch_close(&file);
    } else {
        FUZZ_CHECK(ts_last_error()[0]);
    }
    close(fd);
    return 0;
}

#ifndef TS_FUZZER
TS_TEST(torch_file_corpus)
{
    TEST_CHECK(t, fuzz_corpus(t, "torch_file") >= 5);
    TEST_SAY(t, tensors >= 10 && objects >= 10, "%lld, %lld", (long long)tensors,
             (long long)objects);
}
#endif
