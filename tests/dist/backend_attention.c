/* SPDX-License-Identifier: Apache-2.0 */
/* backend_attention.c - attention of the cpu and its gradient against the reference in f64: blocks
 * that are cut, grouped heads, causal masks, odd sizes, large scores, and the same bits with any
 * number of threads. */
#include <stdlib.h>

#include "backend_util.h"
#include "mask/mask.h"
#include "op/nn/attention.h"

static call masked_call(const char *name, ts_dtype dtype, const int64_t *size, const char *mask)
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
    /* What sums of many products lose by rounding is a weight's error: scores stay small. */
    double scale = fmin(0.1, 0.5 / sqrt((double)size[5]));
    tsi_attention_attributes attributes = { .scale = scale, .causal = strcmp(mask, "causal") == 0 };
    if (!attributes.causal) memcpy(attributes.mask, mask, strlen(mask));
    memcpy(c.attributes, &attributes, sizeof attributes);
    return c;
}

static call attention_call(const char *name, ts_dtype dtype, const int64_t *size, bool causal)
{
    return masked_call(name, dtype, size, causal ? "causal" : "");
}

static int sees_third(int64_t row, int64_t head, int64_t query, int64_t key, void *context)
{
    (void)context;
    return (query * 7 + key * 3 + row * 5 + head) % 3 == 0;
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

/* Scores far from each other and from zero: weights from 1 down to nothing, tops that grow. Where
 * they are so far that one key has all the weight, the rounding of a score must not show. */
TS_TEST_RANKS(attention_of_large_scores, 1)
{
    static const double scales[] = { 0.4, 0.25, 3e5, 1e30 }; /* of sums of 16 numbers up to 16 */
    static const int64_t sizes[][7] = { { 1, 1, 1, 40, 600, 16, 8 }, { 1, 1, 1, 1, 600, 16, 8 } };
    counts n = { 0, 0 };
    for (int k = 0; k < 32; k++) {
        ts_dtype dtype = k & 1 ? TS_DTYPE_BF16 : TS_DTYPE_F32;
        call c = attention_call("attention", dtype, sizes[k >> 4], k & 2);
        memcpy(c.attributes, &scales[k >> 2 & 3], sizeof *scales);
        TEST_CHECK(t, infer(&c));
        run_both(t, &c, DENSE, &n);
    }
    TEST_EQ(t, n.declined, 0);
}

/* Few queries against many keys: one tile and several, heads of a group together. */
TS_TEST_RANKS(attention_of_few_queries, 1)
{
    static const char *const masks[] = { "",
                                         "causal",
                                         "window(300, 0)",
                                         "prefix(3) | window(9, 0)",
                                         "causal + softcap(2) + alibi",
                                         "user(third)" };
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_F16 };
    static const int64_t keys[] = { 1, 256, 257, 1100 };
    counts n = { 0, 0 };
    TEST_CHECK(t, ts_mask_user(ts_rank_world(t->me), "third", sees_third, NULL));
    for (int i = 0; i < 36; i++) {
        const int64_t size[] = {
            1 + i % 2, 6, i % 3 ? 2 : 6, 1 + i % 4, keys[i / 4 % 4], 7 + i, 9
        };
        call c = masked_call("attention", dtypes[i % 3], size, masks[i % 6]);
        if (i % 4 == 3) ((tsi_attention_attributes *)(void *)c.attributes)->dropout = 0.3;
        TEST_SAY(t, infer(&c), "%s", ts_last_error());
        tsi_op_call sizes = { .op = c.op, .in = c.in, .input_count = 3 };
        tsi_kernel_choice choice;
        tsi_attention_kernels(&sizes, &choice);
        TEST_TEXT(t, choice.candidate[choice.chosen].name, "few queries");
        run_both(t, &c, (spread)(i % SPREADS), &n);
    }
    TEST_EQ(t, n.declined, 0);
}

TS_TEST_RANKS(attention_on_threads, 1, 2)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16 };
    static const char *const attention[] = { "attention", "attention_backward" };
    for (int k = 0; k < 6; k++) {
        const int64_t size[] = { 1, 4, 2, k < 4 ? 200 : 3, k < 4 ? 700 : 3000, 24, 40 };
        call c = attention_call(attention[k < 4 && k & 1], dtypes[k / 2 % 2 ^ (k > 4)], size, true);
        TEST_CHECK(t, infer(&c));
        repeat_with_threads(t, &c);
    }
}

/* ---- masks ----------------------------------------------------------------------------------- */

static int sees_bits(int64_t row, int64_t head, int64_t query, int64_t key, void *context)
{
    uint64_t h = *(const uint64_t *)context ^ (uint64_t)(row * 1000003 + head * 10007);
    h = (h + (uint64_t)(query * 131071 + key)) * 0x9E3779B97F4A7C15u;
    return (h >> 40 & 255) < (*(const uint64_t *)context & 255);
}

/* Lengths: 1, a prime, one more than a block, no keys; queries fewer and more than keys. */
static const int64_t lengths[][2] = { { 1, 1 }, { 129, 129 }, { 37, 257 }, { 131, 37 },
                                      { 5, 0 }, { 0, 5 },     { 130, 257 } };

/* The mask that a form stands for with so many queries and keys. */
static void mask_text(const char *form, const int64_t *length, char *text, size_t size)
{
    long long queries = (long long)length[0], keys = (long long)length[1];
    if (strstr(form, "documents"))
        (void)snprintf(text, size, "causal & documents(%lld, 0, %lld; %lld)", keys / 3,
                       keys - keys / 3, keys);
    else if (strstr(form, "dense"))
        (void)snprintf(text, size, "%sdense(t%lldx%lld)", form[0] == 'c' ? "causal & " : "",
                       queries, keys);
    else
        (void)snprintf(text, size, "%s", form);
}

static const char *const masks[] = { "",
                                     "causal",
                                     "window(20, 3)",
                                     "causal & window(7, -1)",
                                     "prefix(30)",
                                     "causal | prefix(9)",
                                     "documents",
                                     "user(third)",
                                     "causal & user(third)",
                                     "dense",
                                     "causal & dense",
                                     "causal + alibi",
                                     "window(40, 0) + softcap(1.5)",
                                     "user(third) + softcap(2) + alibi" };

enum { DTYPES = 3, GROUPINGS = 3 };

/* A table of as many queries and keys, by name. */
static void make_table(test *t, const int64_t *length, char *name, size_t size)
{
    static unsigned char table[131 * 257];
    (void)snprintf(name, size, "t%lldx%lld", (long long)length[0], (long long)length[1]);
    for (int64_t i = 0; i < length[0] * length[1]; i++)
        table[i] = (i * 2654435761u >> 7) % 5 != 0;
    TEST_CHECK(t, ts_mask_dense(ts_rank_world(t->me), name, length[0], length[1], table));
}

/* One mask of certain lengths, in a dtype, with heads in groups of one, of all, of two. */
static void run_masked(test *t, const char *form, const int64_t *l, int of, int spread_of,
                       counts *n)
{
    static const char *const names[] = { "attention", "attention_backward" };
    static const ts_dtype dtypes[DTYPES] = { TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_F16 };
    const int64_t heads = l[0] * l[1] > 5000 ? 2 : 4, groups[GROUPINGS] = { heads, 1, 2 };
    const int64_t size[] = { 2, heads, groups[of / DTYPES % GROUPINGS], l[0], l[1], 8 + of % 3, 5 };
    char text[96], table[32];
    bool empty = l[0] * l[1] == 0;
    if (empty && (strstr(form, "documents") || strstr(form, "dense"))) return;
    mask_text(form, l, text, sizeof text);
    if (strstr(form, "dense")) make_table(t, l, table, sizeof table);
    for (int k = 0; k < 2; k++) {
        call c = masked_call(names[k], dtypes[of % DTYPES], size, text);
        TEST_SAY(t, infer(&c), "%s: %s", text, ts_last_error());
        run_both(t, &c, (spread)(spread_of % SPREADS), n);
    }
}

/* Every mask with all lengths; of dtypes, groupings and strides one drawn by the seed, or each
 * (TEST_MASKS=all). */
TS_TEST_RANKS(attention_of_masks, 1)
{
    counts n = { 0, 0 };
    bool all = getenv("TEST_MASKS") != NULL;
    TEST_CHECK(t, ts_mask_user(ts_rank_world(t->me), "third", sees_third, NULL));
    for (size_t m = 0; m < TSI_COUNT_OF(masks); m++)
        for (size_t i = 0; i < TSI_COUNT_OF(lengths); i++) {
            int drawn = (int)test_random_below(t, DTYPES * GROUPINGS);
            for (int of = 0; of < DTYPES * GROUPINGS; of++)
                if (all || of == drawn)
                    run_masked(t, masks[m], lengths[i], of, (int)test_random_below(t, SPREADS), &n);
        }
    TEST_EQ(t, n.declined, 0);
}

/* Predicates at random, dropped weights, tiles with holes. */
TS_TEST_RANKS(attention_of_predicates, 1)
{
    static uint64_t seeds[512];
    static const char *const names[] = { "attention", "attention_backward" };
    const char *rounds_text = getenv("TEST_PREDICATES");
    int64_t rounds = rounds_text ? strtoll(rounds_text, NULL, 10) : 24;
    counts n = { 0, 0 };
    for (int64_t round = 0; round < rounds; round++) {
        char name[24], text[64];
        uint64_t *seed = &seeds[round % 512];
        const int64_t size[] = { 1 + test_random_below(t, 2),   2,
                                 1 + test_random_below(t, 2),   1 + test_random_below(t, 140),
                                 1 + test_random_below(t, 270), 1 + test_random_below(t, 20),
                                 1 + test_random_below(t, 20) };
        if (round < 512) *seed = test_random(t);
        (void)snprintf(name, sizeof name, "bits%d", (int)(round % 512));
        (void)snprintf(text, sizeof text, "%suser(%s)", round % 3 ? "" : "causal & ", name);
        TEST_CHECK(t, ts_mask_user(ts_rank_world(t->me), name, sees_bits, seed));
        call c =
            masked_call(names[round & 1], round & 2 ? TS_DTYPE_BF16 : TS_DTYPE_F32, size, text);
        tsi_attention_attributes *a = (tsi_attention_attributes *)(void *)c.attributes;
        if (round % 4 == 0) a->dropout = 0.3;
        a->seed = round;
        TEST_SAY(t, infer(&c), "%s: %s", text, ts_last_error());
        run_both(t, &c, DENSE, &n);
        if (test_failed(t)) break;
    }
    TEST_EQ(t, n.declined, 0);
}
