/* SPDX-License-Identifier: Apache-2.0 */
/* backend_attention.c - attention of the cpu and its gradient against the reference in f64: blocks
 * that are cut, grouped heads, causal masks, odd sizes, large scores, and the same bits with any
 * number of threads. */
#include "backend_util.h"

static call attention_call(const char *name, ts_dtype dtype, const int64_t *size, bool causal)
{
    /* size: B, H, G, T, S, D, E */
    const ts_shape q = TS_SHAPE(size[0], size[1], size[3], size[5]);
    const ts_shape k = TS_SHAPE(size[0], size[2], size[4], size[5]);
    const ts_shape v = TS_SHAPE(size[0], size[2], size[4], size[6]);
    const ts_shape o = TS_SHAPE(size[0], size[1], size[3], size[6]);
    const ts_shape lse = TS_SHAPE(size[0], size[1], size[3]);
    const ts_shape shape[] = { q, k, v, o, lse, o };
    call c = call_of(name, strcmp(name, "attention") == 0 ? 3 : 6, shape, dtype);
    c.in[4].dtype = TS_DTYPE_F32;
    struct {
        double scale;
        int32_t causal, reserved;
    } attributes = { 0.1, causal, 0 };
    memcpy(c.attributes, &attributes, sizeof attributes);
    return c;
}

/* Blocks of queries and keys that are cut, grouped heads, fewer and more keys than queries. */
TS_TEST_RANKS(attention_in_blocks, 1)
{
    static const int64_t sizes[][7] = { { 1, 2, 1, 150, 270, 8, 5 },  { 2, 4, 2, 131, 131, 4, 4 },
                                        { 1, 1, 1, 40, 20, 3, 2 },    { 1, 2, 2, 35, 270, 72, 40 },
                                        { 1, 1, 1, 17, 259, 256, 8 }, { 1, 6, 2, 1, 37, 16, 130 } };
    static const char *const names[] = { "attention", "attention_backward" };
    counts n = { 0, 0 };
    for (size_t i = 0; i < TSI_COUNT_OF(sizes); i++)
        for (int k = 0; k < 8; k++) {
            ts_dtype dtype = k & 2 ? TS_DTYPE_BF16 : TS_DTYPE_F32;
            call c = attention_call(names[k & 1], dtype, sizes[i], k & 4);
            TEST_CHECK(t, infer(&c));
            run_both(t, &c, (spread)((i + (size_t)(k >> 1)) % SPREADS), &n);
        }
    TEST_EQ(t, n.declined, 0);
}

/* Every D that tiles cut differently, odd numbers of queries and keys. */
TS_TEST_RANKS(attention_of_odd_sizes, 1)
{
    static const char *const names[] = { "attention", "attention_backward" };
    counts n = { 0, 0 };
    for (int64_t d = 1; d <= 37; d += d < 20 ? 3 : 1)
        for (int k = 0; k < 4; k++) {
            int64_t queries = test_random_below(t, 70) + 1, keys = test_random_below(t, 70) + 1;
            const int64_t size[] = { 1, 2, 1 + k / 2, queries, keys, d, 38 - d };
            call c = attention_call(names[k & 1], TS_DTYPE_BF16, size, k & 2);
            TEST_CHECK(t, infer(&c));
            run_both(t, &c, (spread)(d % SPREADS), &n);
        }
    TEST_EQ(t, n.declined, 0);
}

/* Scores far from each other and from zero: weights from 1 down to nothing, tops that grow. */
TS_TEST_RANKS(attention_of_large_scores, 1)
{
    const int64_t size[] = { 1, 1, 1, 40, 600, 16, 8 };
    counts n = { 0, 0 };
    for (int k = 0; k < 8; k++) {
        call c = attention_call("attention", k & 1 ? TS_DTYPE_BF16 : TS_DTYPE_F32, size, k & 2);
        const double scale = k & 4 ? 0.25 : 0.8; /* of sums of 16 numbers up to 16 */
        memcpy(c.attributes, &scale, sizeof scale);
        TEST_CHECK(t, infer(&c));
        run_both(t, &c, DENSE, &n);
    }
    TEST_EQ(t, n.declined, 0);
}

TS_TEST_RANKS(attention_on_threads, 1, 2)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16 };
    static const char *const attention[] = { "attention", "attention_backward" };
    for (int k = 0; k < 4; k++) {
        const int64_t size[] = { 1, 4, 2, 200, 700, 24, 40 };
        call c = attention_call(attention[k & 1], dtypes[k / 2], size, true);
        TEST_CHECK(t, infer(&c));
        repeat_with_threads(t, &c);
    }
}
