/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_index.c - any text as the index of a checkpoint: refused with a sentence, or one whose
 * tensors have layouts and sizes, every element a writer, and no data to be read.
 *
 * The checksum is added to the text, or nothing would come further. */
#define _GNU_SOURCE 1
#include "corpus.h"

#include "checkpoint/archive.h"
#include "checkpoint/digest.h"
#include "checkpoint/share.h"

static void check_entry(ts_archive *archive, const tsi_entry *e)
{
    int64_t count = ts_shape_count(&e->meta.shape);
    FUZZ_CHECK(count >= 0 && e->layout && tsi_archive_find(archive, e->name) == e);
    if (count == 0 || e->layout->sharding->mesh->count > 64) return;
    double number[2];
    /* The files are not there: whoever wrote the element, it cannot be read. */
    FUZZ_CHECK(tsi_archive_read_range(archive, e, count - 1, 1, (ts_dtype)e->meta.dtype, number) !=
               TS_OK);
    tsi_share_rule rule;
    int64_t coord[TS_NDIM_MAX] = { 0 }, slot = 0;
    tsi_share_rule_of(e->layout, coord, e->name, ts_dtype_size((ts_dtype)e->meta.dtype), &rule);
    if (rule.count == 0) return;
    tsi_share share = tsi_share_find(&rule, rule.count - 1, &slot);
    int64_t writer = tsi_share_writer(&rule, e->layout, coord, slot, 0);
    int64_t at[TS_NDIM_MAX];
    FUZZ_CHECK(tsi_mesh_desc_coord(e->layout->sharding->mesh, writer, at));
    tsi_share own = tsi_share_at(&rule, e->layout, at, 0);
    FUZZ_CHECK(own.first == share.first && own.count == share.count);
    FUZZ_CHECK(share.first + share.count == rule.count);
}

static int64_t accepted; /* inputs that were no nonsense */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 4000) return 0;
    char text[4200];
    if (size > 0) memcpy(text, data, size);
    int tail = snprintf(text + size, sizeof text - size, ",\n \"checksum\": \"%016llx\"}\n",
                        (unsigned long long)tsi_digest_block(data, size));
    ts_archive *archive = NULL;
    ts_status status = tsi_archive_open_text(text, size + (size_t)tail, &archive);
    FUZZ_CHECK((status == TS_OK) == (archive != NULL));
    FUZZ_CHECK(archive || ts_last_error()[0]);
    accepted += archive != NULL;
    for (int64_t i = 0; archive && i < archive->count; i++)
        check_entry(archive, &archive->entry[i]);
    ts_archive_close(archive);
    return 0;
}

#ifndef TS_FUZZER
TS_TEST(checkpoint_index_corpus)
{
    TEST_CHECK(t, fuzz_corpus(t, "checkpoint_index") >= 6);
    TEST_SAY(t, accepted >= 10, "%lld", (long long)accepted);
}
#endif
