/* SPDX-License-Identifier: Apache-2.0 */
/* backend_radix.c - lists that are longer than one radix sort takes: parts are sorted and merged,
 * with the order and the places of one sort; narrow keys in two words, as such lists have them. */
#include <stdlib.h>

#include "backend/cpu/index/radix.h"
#include "base/philox.h"
#include "harness/test.h"

enum { MANY = 10007 };

/* Few values, so that equal keys are common, and some that are no number. */
static void fill(float *x, uint64_t seed)
{
    for (int64_t i = 0; i < MANY; i++) {
        uint32_t word = tsi_philox(seed, (uint64_t)i, 0).word[0];
        x[i] = word % 97 == 0 ? 0.0f / 0.0f : (float)(int32_t)(word % 2001) - 1000.0f;
    }
}

static uint64_t *sorted(const float *x, int64_t count, bool descending, int32_t words,
                        uint64_t *memory, int64_t most)
{
    uint64_t live =
        tsi_items_load(TS_DTYPE_F32, (const char *)x, sizeof *x, count, descending, words, memory);
    return tsi_radix_sort_parts(NULL, memory, memory + count * words, count, words, live, most);
}

TS_TEST(lists_in_parts_have_the_order_of_one)
{
    static const int64_t counts[] = { 0, 1, 2, 39, 40, 41, 4097, MANY };
    static const int64_t parts[] = { 1, 7, 100, 5000 };
    float *x = malloc(MANY * sizeof *x);
    uint64_t *one = malloc(MANY * 2 * sizeof *one), *many = malloc(MANY * 4 * sizeof *many);
    for (size_t c = 0; x && one && many && c < 8 * 4 * 4; c++) {
        int64_t count = counts[c % 8], most = parts[c / 8 % 4];
        bool descending = c / 32 % 2;
        int32_t words = c / 64 % 2 ? 2 : 1;
        fill(x, c % 8);
        const uint64_t *want = sorted(x, count, descending, 1, one, UINT32_MAX);
        const uint64_t *have = sorted(x, count, descending, words, many, most);
        for (int64_t i = 0; i < count; i++) {
            uint64_t key = words == 1 ? have[i] >> 32 : have[2 * i];
            uint64_t place = words == 1 ? have[i] & UINT32_MAX : have[2 * i + 1];
            TEST_SAY(t, want[i] == (key << 32 | place), "%lld items, parts of %lld, item %lld",
                     (long long)count, (long long)most, (long long)i);
        }
    }
    free(x);
    free(one);
    free(many);
}

TS_TEST(places_beyond_32_bits_have_a_word)
{
    TEST_EQ(t, tsi_item_words(TS_DTYPE_I8, (int64_t)UINT32_MAX), 1);
    TEST_EQ(t, tsi_item_words(TS_DTYPE_I8, (int64_t)UINT32_MAX + 1), 2);
    TEST_EQ(t, tsi_item_words(TS_DTYPE_I64, 1), 2);
}
