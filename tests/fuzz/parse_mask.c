/* SPDX-License-Identifier: Apache-2.0 */
/* parse_mask.c - any bytes as a mask: refused with a sentence, or a mask that prints and parses to
 * itself, and whose tiles are those of its pairs. */
#include "corpus.h"

#include "mask/mask.h"

static void check_tiles(const ts_mask *mask)
{
    ts_mask_size size = TS_INIT(ts_mask_size);
    ts_mask_summary summary = TS_INIT(ts_mask_summary);
    int64_t pairs = 0, keys = mask->length > 0 ? mask->length : 70;
    if (keys > 200) return;
    size.queries = size.keys = keys;
    size.query_block = size.key_block = 64;
    FUZZ_CHECK(ts_mask_tiles(mask, &size, NULL, 0, &summary) == TS_OK);
    for (int64_t q = 0; q < keys; q++)
        for (int64_t k = 0; k < keys; k++)
            pairs += ts_mask_sees(mask, 0, 0, q, k);
    FUZZ_CHECK(summary.pairs == pairs);
    FUZZ_CHECK((summary.full + summary.partial > 0) == (pairs > 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 2000) return 0;
    char text[2048];
    memcpy(text, data, size);
    text[size] = '\0';
    ts_world *world = fuzz_world();
    const ts_mask *mask = ts_mask_get(world, text);
    FUZZ_CHECK(mask || ts_last_error()[0]);
    if (mask) {
        FUZZ_CHECK(ts_mask_get(world, mask->text) == mask);
        FUZZ_CHECK(ts_mask_get(world, ts_mask_name(mask)) == mask);
        check_tiles(mask);
    }
    tsi_world_unmake(world);
    return 0;
}

#ifndef TS_FUZZER
TS_TEST(parse_mask_corpus)
{
    TEST_CHECK(t, fuzz_corpus(t, "parse_mask") >= 8);
}
#endif
