/* SPDX-License-Identifier: Apache-2.0 */
/* mask_values.c - masks as values: texts both ways, interning, what they see, tiles, balances and
 * cuts, each against the pair-by-pair answer. */
#include <stdlib.h>
#include <time.h>

#include "base/alloc.h"
#include "base/rank.h"
#include "harness/test.h"
#include "mask/mask.h"

static ts_world *open_world(test *t)
{
    ts_world *world = NULL;
    TEST_OK(t, tsi_world_make(1, 1, 0, 0, &world));
    return world;
}

TS_TEST(masks_both_ways)
{
    static const char *const cases[][2] = {
        { "causal", "causal" },
        { " causal&window( 5,0 )", "causal & window(5, 0)" },
        { "(causal | prefix(3)) & documents(4,4;8)", "(causal | prefix(3)) & documents(4, 4; 8)" },
        { "causal & (window(1, -1) & full)", "causal & (window(1, -1) & full)" },
        { "causal | full | prefix(0)", "causal | full | prefix(0)" },
        { "documents(3, 0, 5)", "documents(3, 5)" },
        { "causal + alibi + softcap(30)", "causal + softcap(30) + alibi" },
        { "window(2)", NULL },
        { "causal &", NULL },
        { "documents(3; 4)", NULL },
        { "documents(3) & documents(4)", NULL },
        { "softcap(2)", NULL },
        { "causal + softcap(0)", NULL },
        { "user(nobody)", NULL },
        { "window(-2, 0)", NULL },
    };
    ts_world *world = open_world(t);
    for (size_t i = 0; i < TSI_COUNT_OF(cases); i++) {
        char text[128] = "";
        const ts_mask *mask = ts_mask_get(world, cases[i][0]);
        TEST_SAY(t, !mask == !cases[i][1], "\"%s\": %s", cases[i][0], ts_last_error());
        if (!mask || !cases[i][1]) continue;
        (void)ts_mask_text(mask, text, sizeof text);
        TEST_TEXT(t, text, cases[i][1]);
        TEST_CHECK(t, ts_mask_get(world, text) == mask);
        TEST_CHECK(t, ts_mask_get(world, ts_mask_name(mask)) == mask);
    }
    tsi_world_unmake(world);
}

/* A long text has a name by content, which finds it again. */
TS_TEST(masks_have_names)
{
    int64_t length[64], count = TSI_COUNT_OF(length);
    ts_world *world = open_world(t);
    for (int64_t i = 0; i < count; i++)
        length[i] = i + 100;
    const ts_mask *a = ts_mask_documents(world, length, &count, 1);
    const ts_mask *b = ts_mask_and(ts_mask_get(world, "causal"), a);
    TEST_CHECK(t, a && b && ts_mask_name(a)[0] == '@' && strlen(ts_mask_name(a)) == 17);
    TEST_CHECK(t, ts_mask_get(world, ts_mask_name(b)) == b);
    TEST_CHECK(t, ts_mask_get(world, "@0123456789abcdef") == NULL);
    TEST_SAYS(t, ts_last_error(), "nobody holds");
    const unsigned char seen[] = { 1, 0, 0, 1, 1, 0 };
    const ts_mask *d = ts_mask_dense(world, "table", 2, 3, seen);
    TEST_CHECK(t, d && ts_mask_sees(d, 0, 0, 1, 0) && !ts_mask_sees(d, 0, 0, 1, 1));
    TEST_CHECK(t, ts_mask_sees(d, 0, 0, 2, 0) && !ts_mask_sees(d, 0, 0, 2, 2));
    TEST_CHECK(t, ts_mask_dense(world, "table", 3, 2, seen) == NULL);
    TEST_SAYS(t, ts_last_error(), "taken");
    tsi_world_unmake(world);
}

/* ---- random masks ---------------------------------------------------------------------------- */

static int sees_some(int64_t row, int64_t head, int64_t query, int64_t key, void *context)
{
    (void)context;
    uint64_t h = (uint64_t)(row * 31 + head * 17 + query * 131 + key * 7919);
    return (h * 0x9E3779B97F4A7C15u >> 60) < 6;
}

static int flips(int64_t row, int64_t head, int64_t query, int64_t key, void *context)
{
    (void)row, (void)head, (void)query, (void)key;
    return (*(int *)context)++ & 1;
}

static void random_leaf(test *t, int64_t length, char *out, size_t size)
{
    long long a = (long long)test_random_below(t, length / 2 + 1);
    long long b = (long long)test_random_below(t, length + 1);
    switch (test_random_below(t, 6)) {
    case 0:
        (void)snprintf(out, size, "causal");
        return;
    case 1:
        (void)snprintf(out, size, "window(%lld, %lld)", a - 1, b - 1);
        return;
    case 2:
        (void)snprintf(out, size, "prefix(%lld)", b);
        return;
    case 3:
        (void)snprintf(out, size, "documents(%lld, %lld, %lld)", a, (b - a > 0 ? b - a : 0),
                       (long long)length - (b > a ? b : a));
        return;
    case 4:
        (void)snprintf(out, size, "full");
        return;
    default:
        (void)snprintf(out, size, "user(some)");
    }
}

static const ts_mask *random_mask(test *t, ts_world *world, int64_t length)
{
    char a[64], b[64], c[64], text[256];
    random_leaf(t, length, a, sizeof a);
    random_leaf(t, length, b, sizeof b);
    random_leaf(t, length, c, sizeof c);
    static const char *const forms[] = { "%s", "%s & %s", "%s | %s", "(%s | %s) & %s",
                                         "%s & %s | %s" };
    const char *form = forms[test_random_below(t, TSI_COUNT_OF(forms))];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-extra-args"
    (void)snprintf(text, sizeof text, form, a, b, c);
#pragma GCC diagnostic pop
    const ts_mask *mask = ts_mask_get(world, text);
    TEST_SAY(t, mask, "\"%s\": %s", text, ts_last_error());
    return mask;
}

/* Tiles, bits and pairs are what the pairs are, also for positions with gaps. */
static void check_blocks(test *t, const ts_mask *mask, int64_t length)
{
    tsi_span_list keys = tsi_span_list_whole(length), queries = { 0 };
    int64_t gap = test_random_below(t, length) + 1, part = test_random_below(t, gap) + 1;
    (void)tsi_span_list_append(&queries, (tsi_span){ 0, part, gap, length / gap }, NULL);
    tsi_mask_shape shape = { .queries = &queries,
                             .keys = &keys,
                             .row_count = 2,
                             .head_count = 2,
                             .query_block = 64,
                             .key_block = 64 * (1 + (int32_t)test_random_below(t, 2)) };
    const tsi_mask_blocks *b = tsi_mask_blocks_get(mask, &shape);
    TEST_SAY(t, b, "%s", ts_last_error());
    if (!b) return;
    TEST_CHECK(t, tsi_mask_blocks_get(mask, &shape) == b);
    tsi_mask_blocks_release(b);
    int64_t wrong = 0;
    for (int64_t row = 0; row < 2; row++)
        for (int64_t i = 0; i < b->query_count; i++) {
            unsigned char seen[4096] = { 0 };
            tsi_mask_runs runs = tsi_mask_runs_of(b, row, 1, i / b->query_block);
            for (int64_t r = 0; r < runs.count; r++)
                for (int64_t k = runs.run[r].first * (int64_t)b->key_block;
                     k < (runs.run[r].first + runs.run[r].count) * (int64_t)b->key_block &&
                     k < length;
                     k++) {
                    int64_t at = k - runs.run[r].first * (int64_t)b->key_block;
                    seen[k] = runs.run[r].bits < 0 ||
                              (tsi_mask_tile_bits(b, &runs.run[r], i % b->query_block)[at / 64] >>
                                   (at % 64) &
                               1);
                }
            for (int64_t k = 0; k < length; k++)
                wrong += seen[k] != ts_mask_sees(mask, row, 1, b->query_at[i], k);
        }
    TEST_SAY(t, wrong == 0, "%s: %lld pairs differ", mask->text, (long long)wrong);
    tsi_mask_blocks_release(b);
}

TS_TEST(masks_see_what_they_say)
{
    ts_world *world = open_world(t);
    TEST_CHECK(t, ts_mask_user(world, "some", sees_some, NULL));
    for (int round = 0; round < 150; round++) {
        int64_t length = test_random_below(t, 300) + 1, pairs = 0;
        const ts_mask *mask = random_mask(t, world, length);
        if (!mask) break;
        int64_t q0 = test_random_below(t, length), q1 = q0 + test_random_below(t, length - q0 + 1);
        for (int64_t q = q0; q < q1; q++)
            for (int64_t k = 0; k < length; k++)
                pairs += ts_mask_sees(mask, 0, 0, q, k);
        TEST_SAY(t, tsi_mask_pairs(mask, (tsi_mask_at){ 0 }, q0, q1, length) == pairs,
                 "%s: queries %lld to %lld see %lld", mask->text, (long long)q0, (long long)q1,
                 (long long)pairs);
        check_blocks(t, mask, length);
    }
    tsi_world_unmake(world);
}

TS_TEST(masks_refuse)
{
    ts_world *world = open_world(t);
    int state = 0;
    ts_mask_size size = TS_INIT(ts_mask_size);
    size.queries = size.keys = 100;
    const ts_mask *mask = ts_mask_user(world, "flips", flips, &state);
    TEST_STATUS(t, ts_mask_tiles(mask, &size, NULL, 0, NULL), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "not pure");
    mask = ts_mask_get(world, "documents(60, 50)");
    TEST_STATUS(t, ts_mask_tiles(mask, &size, NULL, 0, NULL), TS_ERR_SHAPE);
    TEST_SAYS(t, ts_last_error(), "another length");
    tsi_world_unmake(world);
}

/* ---- balances -------------------------------------------------------------------------------- */

TS_TEST(balances_of_the_specification)
{
    const int64_t cost[] = { 7, 3, 12, 5, 9, 1, 4, 8, 10, 2, 6, 11 };
    const int64_t want[] = { 0, 2, 5, 10, 3, 7, 9, 11, 1, 4, 6, 8 };
    const int64_t documents[] = { 8, 8, 48 };
    int64_t got[64], back[64];
    TEST_OK(t, ts_balance_blocks(3, 12, cost, got, back));
    for (int i = 0; i < 12; i++)
        TEST_EQ(t, got[i], want[i]);
    TEST_OK(t, ts_balance_table(TS_BALANCE_PER_DOCUMENT, 4, 3, documents, got, back));
    for (int64_t rank = 0; rank < 4; rank++) {
        int64_t work = 0;
        for (int64_t p = rank * 16; p < rank * 16 + 16; p++) {
            work += got[p] < 8 ? got[p] + 1 : got[p] < 16 ? got[p] - 7 : got[p] - 15;
            TEST_EQ(t, back[got[p]], p);
        }
        TEST_EQ(t, work, 312);
    }
    TEST_STATUS(t, ts_balance_table(TS_BALANCE_HEAD_TAIL, 3, 3, documents, got, back),
                TS_ERR_SHAPE);
}

/* Twice the ranks need not fit 64 bits; time goes with positions, not with ranks. */
TS_TEST(balances_of_ranks_beyond_counting)
{
    enum { BLOCKS = 1 << 18 };
    static int64_t cost[BLOCKS], got[BLOCKS], back[BLOCKS];
    const int64_t length[] = { 16 }, nothing[] = { 0, 0 };
    const int64_t most = INT64_MAX / 2;
    TEST_STATUS(t, ts_balance_table(TS_BALANCE_HEAD_TAIL, INT64_MAX, 1, length, got, back),
                TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "9223372036854775807 ranks");
    TEST_STATUS(t, ts_balance_table(TS_BALANCE_HEAD_TAIL, most, 1, length, got, back),
                TS_ERR_SHAPE);
    TEST_OK(t, ts_balance_table(TS_BALANCE_HEAD_TAIL, most, 2, nothing, got, back));
    TEST_OK(t, ts_balance_table(TS_BALANCE_PER_DOCUMENT, most, 2, nothing, got, back));
    TEST_OK(t, ts_balance_blocks(INT64_MAX, 0, cost, got, back));
    TEST_OK(t, ts_balance_blocks(BLOCKS, BLOCKS, cost, got, back)); /* one block each, in order */
    for (int64_t b = 0; b < BLOCKS; b++)
        TEST_EQ(t, got[b], b);
}

/* Documents with lengths by a power law, cut at random. */
static const ts_mask *zipf_documents(test *t, ts_world *world, int64_t length)
{
    static int64_t part[1 << 16];
    int64_t count = 0, left = length;
    while (left > 0 && count < (1 << 16) - 1) {
        int64_t one = length / (1 + test_random_below(t, 1000)) / (1 + test_random_below(t, 8)) + 1;
        part[count] = one < left ? one : left;
        left -= part[count++];
    }
    if (left > 0) part[count++] = left;
    return ts_mask_and(ts_mask_get(world, "causal"), ts_mask_documents(world, part, &count, 1));
}

static void check_cut(test *t, const ts_mask *mask, const ts_cut_options *o, ts_cut *cut)
{
    int64_t at = 0;
    for (int64_t i = 0; i < cut->pieces; i++) {
        TEST_EQ(t, cut->piece[i].begin, at);
        TEST_CHECK(t, cut->piece[i].owner >= 0 && cut->piece[i].owner < o->ranks);
        at = cut->piece[i].end;
        if (at < o->length && o->balance == TS_BALANCE_AUTO) TEST_EQ(t, at % o->align, 0);
    }
    TEST_EQ(t, at, o->length);
    (void)mask;
}

TS_TEST(cuts_are_balanced)
{
    double worst = 1, slowest = 0;
    int64_t bounded = 0, missed = 0;
    ts_world *world = open_world(t);
    for (int round = 0; round < 1000; round++) {
        ts_cut_options o = TS_INIT(ts_cut_options);
        ts_cut cut;
        struct timespec begin, end;
        o.length = round < 10 ? 1 << 20 : 1 + test_random_below(t, 1 << (10 + round % 11));
        o.ranks = 4 + test_random_below(t, 61);
        o.align = 128;
        const ts_mask *mask = zipf_documents(t, world, o.length);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
        TEST_OK(t, ts_cut_for(mask, &o, &cut));
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
        double ms =
            (double)(end.tv_sec - begin.tv_sec) * 1e3 + (double)(end.tv_nsec - begin.tv_nsec) / 1e6;
        if (ms > slowest) slowest = ms;
        check_cut(t, mask, &o, &cut);
        double ratio = (double)cut.work_max / cut.work_mean;
        bool good = ratio <= 1.02 || (double)cut.work_max <= 1.02 * (double)cut.bound;
        missed += !good;
        TEST_SAY(t, good, "%lld positions, %lld ranks: %lld of %.1f, bound %lld",
                 (long long)o.length, (long long)o.ranks, (long long)cut.work_max, cut.work_mean,
                 (long long)cut.bound);
        if (ratio > 1.02)
            bounded++;
        else if (ratio > worst)
            worst = ratio;
        ts_cut_release(&cut);
    }
    printf("cuts: worst %.4f of the mean; of 1000, %lld where blocks do not allow 1.02 of it, %lld "
           "beyond 1.02 of their bound; slowest %.2f ms\n",
           worst, (long long)(bounded - missed), (long long)missed, slowest);
    tsi_world_unmake(world);
}

TS_TEST(cuts_by_name)
{
    ts_world *world = open_world(t);
    for (int b = TS_BALANCE_AUTO; b <= TS_BALANCE_PTRR; b++)
        for (int64_t length = 0; length < 40; length += 13) {
            char text[512];
            ts_cut_options o = TS_INIT(ts_cut_options);
            ts_cut cut;
            o.length = length;
            o.ranks = 3;
            o.align = 4;
            o.balance = b;
            (void)snprintf(text, sizeof text, "causal & documents(%lld, %lld)",
                           (long long)length / 3, (long long)(length - length / 3));
            const ts_mask *mask = ts_mask_get(world, text);
            TEST_OK(t, ts_cut_for(mask, &o, &cut));
            check_cut(t, mask, &o, &cut);
            ts_cut_release(&cut);
        }
    tsi_world_unmake(world);
}

/* Lists that were used last are kept, others go; one that somebody holds stays. */
TS_TEST(block_lists_are_kept_by_use)
{
    ts_world *world = open_world(t);
    const ts_mask *mask = ts_mask_get(world, "causal");
    tsi_span_list keys = tsi_span_list_whole(500);
    tsi_mask_shape shape = { .keys = &keys, .query_block = 64, .key_block = 64 };
    const tsi_mask_blocks *first = NULL, *last = NULL;
    for (int64_t n = 1; n <= 300; n++) {
        tsi_span_list queries = tsi_span_list_whole(n);
        shape.queries = &queries;
        const tsi_mask_blocks *b = tsi_mask_blocks_get(mask, &shape);
        TEST_SAY(t, b && b->query_count == n, "%s", ts_last_error());
        if (n == 1) first = b;
        if (n > 1) tsi_mask_blocks_release(b);
        last = b;
    }
    tsi_span_list one = tsi_span_list_whole(1), all = tsi_span_list_whole(300);
    shape.queries = &all;
    const tsi_mask_blocks *again = tsi_mask_blocks_get(mask, &shape);
    TEST_CHECK(t, again == last);
    shape.queries = &one;
    const tsi_mask_blocks *other = tsi_mask_blocks_get(mask, &shape);
    TEST_CHECK(t, other && other != first && other->tiles_partial == first->tiles_partial);
    tsi_mask_blocks_release(first);
    tsi_mask_blocks_release(again);
    tsi_mask_blocks_release(other);
    tsi_world_unmake(world);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Everything once; false: something failed. */
static bool use_masks(ts_world *world)
{
    int64_t length[40], count = TSI_COUNT_OF(length);
    ts_mask_size size = TS_INIT(ts_mask_size);
    ts_mask_summary summary = TS_INIT(ts_mask_summary);
    ts_cut_options options = TS_INIT(ts_cut_options);
    ts_cut cut;
    tsi_arena arena = { 0 };
    for (int64_t i = 0; i < count; i++)
        length[i] = 10 + i;
    const ts_mask *some = ts_mask_user(world, "some", sees_some, NULL);
    const ts_mask *mask = ts_mask_and(some ? ts_mask_get(world, "causal | prefix(3)") : NULL,
                                      ts_mask_documents(world, length, &count, 1));
    size.queries = size.keys = options.length = 40 * 10 + 39 * 20;
    options.ranks = 3;
    bool good = mask && ts_mask_tiles(mask, &size, NULL, 0, &summary) == TS_OK;
    good = good && ts_cut_for(mask, &options, &cut) == TS_OK;
    if (good) ts_cut_release(&cut);
    tsi_span_list queries = tsi_span_list_whole(100), keys = { 0 }, seen;
    tsi_mask_shape shape = { .queries = &queries, .keys = &keys, .row_count = 1, .head_count = 1 };
    good = good && tsi_mask_union(mask, &shape, size.keys, &arena, &seen) == TS_OK;
    tsi_arena_release(&arena);
    return good;
}

TS_TEST(masks_without_memory)
{
    bool good = false;
    for (int64_t n = 1; n < 1000 && !good; n++) {
        ts_world *world = open_world(t);
        int64_t before = tsi_alloc_live();
        tsi_alloc_fail_at(n);
        good = use_masks(world);
        tsi_alloc_fail_at(0);
        TEST_CHECK(t, good || ts_last_error()[0]);
        tsi_world_unmake(world);
        TEST_SAY(t, tsi_alloc_live() <= before, "allocation %lld fails: something is left",
                 (long long)n);
    }
    TEST_CHECK(t, good);
}
