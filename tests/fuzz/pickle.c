/* SPDX-License-Identifier: Apache-2.0 */
/* pickle.c - any bytes as the metadata of a distributed checkpoint of PyTorch: refused with a
 * sentence, or tensors that their chunks cover, without a file that leaves the directory.
 *
 * The corpus is metadata that torch wrote, and hostile pickles. */
#define _GNU_SOURCE 1
#include "corpus.h"

#include "checkpoint/dcp_body.h"

static int64_t accepted; /* inputs that were no nonsense */

static void check_tensor(const tsi_dcp_tensor *t)
{
    int64_t all = ts_shape_count(&t->meta.shape), have = 0;
    FUZZ_CHECK(t->name && all >= 0 && t->meta.dtype != TS_DTYPE_NONE);
    for (int64_t i = 0; i < t->chunk_count; i++) {
        const tsi_dcp_chunk *c = &t->chunk[i];
        FUZZ_CHECK(c->count > 0 && c->begin >= 0 && c->bytes >= 0);
        for (int32_t d = 0; d < t->meta.shape.ndim; d++)
            FUZZ_CHECK(c->first[d] >= 0 && c->first[d] + c->extent[d] <= t->meta.shape.extent[d]);
        have += c->count;
    }
    FUZZ_CHECK(have == all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 16000) return 0;
    tsi_dcp *dcp = NULL;
    ts_status status = tsi_dcp_open_bytes(data, size, &dcp);
    FUZZ_CHECK((status == TS_OK) == (dcp != NULL));
    FUZZ_CHECK(dcp || ts_last_error()[0]);
    accepted += dcp != NULL;
    for (int64_t i = 0; dcp && i < tsi_dcp_tensor_count(dcp); i++)
        check_tensor(tsi_dcp_tensor_at(dcp, i));
    for (int32_t i = 0; dcp && i < dcp->file_count; i++)
        FUZZ_CHECK(!strchr(dcp->file[i].name, '/') && strcmp(dcp->file[i].name, "..") != 0);
    tsi_dcp_close(dcp);
    return 0;
}

#ifndef TS_FUZZER
TS_TEST(pickle_corpus)
{
    TEST_CHECK(t, fuzz_corpus(t, "pickle") >= 8);
    TEST_SAY(t, accepted >= 10, "%lld", (long long)accepted);
}
#endif
