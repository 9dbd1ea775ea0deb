/* SPDX-License-Identifier: Apache-2.0 */
/* runtime_works.c - the order of pieces of work and the places of blocks by themselves, without a
 * step: by keys as far as pairs allow, members together, blocks in use at once apart. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "harness/test.h"
#include "runtime/works.h"

TS_TEST(pieces_come_by_key_as_far_as_pairs_allow)
{
    enum { N = 40, PAIRS = 60 };
    for (int round = 0; round < 200; round++) {
        int32_t pair[2 * PAIRS], order[N], place[N];
        int64_t key[N], count = 1 + test_random_below(t, N), pairs = 0;
        for (int i = 0; i < PAIRS; i++) {
            int32_t a = (int32_t)test_random_below(t, count),
                    b = (int32_t)test_random_below(t, count);
            if (a == b) continue;
            pair[pairs++] = a < b ? a : b;
            pair[pairs++] = a < b ? b : a;
        }
        for (int i = 0; i < count; i++)
            key[i] = test_random_below(t, 10);
        TEST_OK(t, tsi_pieces_by_key(count, pair, pairs, key, order));
        for (int32_t i = 0; i < count; i++)
            place[order[i]] = i;
        for (int64_t i = 0; i < pairs; i += 2)
            TEST_CHECK(t, place[pair[i]] < place[pair[i + 1]]);
        if (pairs > 0) continue;
        for (int32_t i = 1; i < count; i++) /* free ones are sorted, equal keys as they stood */
            TEST_CHECK(t, key[order[i - 1]] < key[order[i]] ||
                              (key[order[i - 1]] == key[order[i]] && order[i - 1] < order[i]));
    }
}

/* Is there a way by the pairs from a to b through a third one? */
static bool is_way_round(int64_t count, const int32_t *pair, int64_t pairs, int32_t a, int32_t b)
{
    bool behind[64] = { false };
    for (int32_t piece = a; piece < count; piece++) /* pairs go to larger numbers */
        for (int64_t i = 0; i < pairs; i += 2) {
            bool from = pair[i] == piece && (piece == a || behind[piece]);
            if (from && pair[i + 1] == b && piece != a) return true;
            if (from) behind[pair[i + 1]] = true;
        }
    return false;
}

/* Members that follow each other do; two of them alone do exactly if nothing must be between. */
TS_TEST(members_come_together_as_far_as_pairs_allow)
{
    enum { N = 30, PAIRS = 40 };
    int64_t together = 0, apart = 0;
    for (int round = 0; round < 2000; round++) {
        int32_t pair[2 * PAIRS], order[N], place[N];
        int64_t key[N], count = 2 + test_random_below(t, N - 1), pairs = 0;
        for (int i = 0; i < PAIRS; i++) {
            int32_t a = (int32_t)test_random_below(t, count),
                    b = (int32_t)test_random_below(t, count);
            if (a == b || test_random_below(t, 3) == 0) continue;
            pair[pairs++] = a < b ? a : b;
            pair[pairs++] = a < b ? b : a;
        }
        tsi_member member[N];
        tsi_members members = { member, 0 };
        int64_t most = round % 2 ? 2 : count; /* of members */
        for (int32_t i = 0; i < count; i++) {
            key[i] = test_random_below(t, 10);
            if (members.count >= most || test_random_below(t, 3) > 0) continue;
            if (members.count > 0 && pairs + 2 <= 2 * PAIRS) { /* as operations begin in order */
                pair[pairs++] = member[members.count - 1].piece;
                pair[pairs++] = i;
            }
            bool follows = members.count > 0 && (most == 2 || test_random_below(t, 4) > 0);
            member[members.count++] = (tsi_member){ .piece = i, .follows = follows };
        }
        TEST_OK(t, tsi_pieces_by_key(count, pair, pairs, key, order));
        bool in_order = true;
        for (int32_t i = 0; i < count; i++)
            place[order[i]] = i;
        for (int64_t i = 1; i < members.count; i++)
            in_order = in_order && place[member[i - 1].piece] < place[member[i].piece];
        TEST_OK(t, tsi_pieces_together(count, pair, pairs, &members, order));
        for (int32_t i = 0; i < count; i++)
            place[i] = -1;
        for (int32_t i = 0; i < count; i++)
            place[order[i]] = i;
        for (int32_t i = 0; i < count; i++)
            TEST_CHECK(t, place[i] >= 0);
        for (int64_t i = 0; i < pairs; i += 2)
            TEST_CHECK(t, place[pair[i]] < place[pair[i + 1]]);
        for (int64_t i = 1; i < members.count; i++) {
            TEST_CHECK(t, !member[i].follows ||
                              place[member[i].piece] == place[member[i - 1].piece] + 1);
            together += member[i].follows;
            apart += !member[i].follows;
        }
        if (most == 2 && members.count == 2 && in_order)
            TEST_CHECK(t, member[1].follows !=
                              is_way_round(count, pair, pairs, member[0].piece, member[1].piece));
    }
    TEST_CHECK(t, together > 100 && apart > 100);
}

TS_TEST(blocks_in_use_at_once_do_not_overlap)
{
    enum { N = 60, PLACES = 30 };
    for (int round = 0; round < 200; round++) {
        tsi_span_of_use span[N];
        int64_t bytes = 0, held[PLACES] = { 0 }, most = 0;
        int32_t count = (int32_t)test_random_below(t, N);
        for (int32_t i = 0; i < count; i++) {
            int64_t first = test_random_below(t, PLACES), last = test_random_below(t, PLACES);
            span[i] = (tsi_span_of_use){ test_random_below(t, 500), first, last, 0 };
            for (int64_t k = first; k <= last; k++)
                held[k] += (span[i].bytes + 63) / 64 * 64;
        }
        TEST_OK(t, tsi_arena_places(span, count, &bytes));
        for (int32_t i = 0; i < count; i++) {
            const tsi_span_of_use *a = &span[i];
            if (a->last < a->first || a->bytes == 0) continue;
            TEST_CHECK(t, a->offset % 64 == 0 && a->offset + a->bytes <= bytes);
            for (int32_t k = 0; k < i; k++) {
                const tsi_span_of_use *b = &span[k];
                bool together = b->last >= b->first && b->bytes > 0 && a->first <= b->last &&
                                b->first <= a->last;
                TEST_CHECK(t, !together || a->offset + a->bytes <= b->offset ||
                                  b->offset + b->bytes <= a->offset);
            }
        }
        for (int32_t i = 0; i < PLACES; i++)
            most = held[i] > most ? held[i] : most;
        TEST_CHECK(t, bytes >= most && bytes <= 2 * most); /* first fit is not far off */
    }
}

/* Memory that went back to the device while a step was recorded, and came again cut otherwise: the
 * first block lies over the last, with one between them in the list. */
TS_TEST(blocks_that_lie_over_each_other_keep_the_recorded_order)
{
    static char memory[256];
    const tsi_taken apart[] = { { .memory = memory, .bytes = 128, .from = 0, .to = 1 },
                                { .memory = memory, .bytes = 64, .from = 1, .to = 2 },
                                { .memory = memory + 128, .bytes = 64, .from = 1, .to = 2 } };
    for (int over = 0; over < 2; over++) {
        tsi_kept kept = { 0 };
        tsi_works w = { .kept = &kept, .block = tsi_alloc(sizeof apart), .block_count = 3 };
        memcpy(w.block, apart, sizeof apart);
        if (over) w.block[2].memory = memory + 64;
        TEST_OK(t, tsi_works_tie(&w));
        TEST_EQ(t, w.unclear, over);
        tsi_works_release(&w, NULL);
    }
}
