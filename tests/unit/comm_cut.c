/* SPDX-License-Identifier: Apache-2.0 */
/* comm_cut.c - parts of an exchange: together they are the whole, element by element and in order,
 * and both ends of a pair cut at the same elements, whatever their blocks are. */
#include "comm/cut.h"
#include "harness/test.h"

enum { MEMBERS = 3, BLOCKS = 6, MOST = 4000, PARTS = 5 };

typedef struct elements { /* of each member, in the order in which they travel */
    const char *at[MEMBERS][MOST];
    int32_t folds[MEMBERS][MOST];
    int64_t count[MEMBERS];
} elements;

static void walk(elements *e, const ts_part *part, int32_t d, const char *at, int64_t size)
{
    if (d == part->ndim) {
        int64_t *n = &e->count[part->peer];
        e->folds[part->peer][*n] = part->combine;
        e->at[part->peer][(*n)++] = at;
        return;
    }
    for (int64_t i = 0; i < part->extent[d]; i++)
        walk(e, part, d + 1, at + i * part->stride[d] * size, size);
}

static void walk_all(elements *e, const ts_part *list, int64_t count, int64_t size)
{
    for (int64_t i = 0; i < count; i++)
        walk(e, &list[i], 0, list[i].data, size);
}

static char memory[1 << 16];

/* Rows with gaps; dims of one element and of none among them. */
static ts_part random_block(test *t, int64_t peer)
{
    ts_part part = { .peer = peer, .ndim = (int32_t)test_random_below(t, 4) };
    int64_t stride = 1;
    part.data = memory + 8 * test_random_below(t, 100);
    for (int32_t d = part.ndim - 1; d >= 0; d--) {
        part.extent[d] = test_random_below(t, 10) ? 1 + test_random_below(t, 5) : 0;
        part.stride[d] = stride;
        stride *= part.extent[d] + test_random_below(t, 2);
    }
    return part;
}

/* All parts one after another are the list: the same elements, folded as before. */
static void check_list(test *t, const ts_part *list, int64_t count, bool folds)
{
    static elements whole, parts;
    static ts_part out[MOST];
    int64_t scratch[2 * MEMBERS];
    tsi_cut cut = { .dtype = TS_DTYPE_F64, .folds = folds, .members = MEMBERS, .scratch = scratch };
    memset(&whole, 0, sizeof whole);
    memset(&parts, 0, sizeof parts);
    walk_all(&whole, list, count, 8);
    cut.count = 1 + test_random_below(t, PARTS);
    for (cut.index = 0; cut.index < cut.count; cut.index++) {
        int64_t blocks = tsi_cut_list(&cut, list, count, NULL);
        TEST_CHECK(t, blocks <= MOST);
        TEST_EQ(t, tsi_cut_list(&cut, list, count, out), blocks);
        walk_all(&parts, out, blocks, 8);
        for (int64_t p = 0; p < MEMBERS;
             p++) { /* a k-th, to the element: as the other end has it */
            int64_t all = whole.count[p], k = cut.count, i = cut.index + 1;
            TEST_EQ(t, parts.count[p], all / k * i + all % k * i / k);
        }
    }
    for (int64_t p = 0; p < MEMBERS; p++)
        TEST_CHECK(t, memcmp(whole.at[p], parts.at[p],
                             (size_t)whole.count[p] * sizeof *whole.at[p]) == 0 &&
                          memcmp(whole.folds[p], parts.folds[p],
                                 (size_t)whole.count[p] * sizeof *whole.folds[p]) == 0);
}

TS_TEST(parts_of_a_list_are_the_list)
{
    for (int n = 0; n < 3000 && !test_failed(t); n++) {
        ts_part list[BLOCKS];
        int64_t count = test_random_below(t, BLOCKS + 1);
        for (int64_t i = 0; i < count; i++)
            list[i] = random_block(t, test_random_below(t, MEMBERS));
        check_list(t, list, count, false);
    }
}

/* Each block has a term of every member, in their order, or of some in any order. */
TS_TEST(terms_of_a_block_are_cut_alike)
{
    int64_t scratch[2 * MEMBERS];
    tsi_cut cut = { .dtype = TS_DTYPE_F64, .folds = true, .members = MEMBERS, .scratch = scratch };
    for (int n = 0; n < 3000 && !test_failed(t); n++) {
        ts_part list[BLOCKS];
        for (int64_t i = 0; i < BLOCKS; i++) {
            if (i % MEMBERS == 0) list[i] = random_block(t, 0);
            if (i % MEMBERS > 0) list[i] = list[i - 1];
            list[i].peer = (i + n) % MEMBERS;
            list[i].combine = i % MEMBERS > 0;
        }
        TEST_CHECK(t, tsi_cut_is_possible(&cut, list, BLOCKS));
        check_list(t, list, BLOCKS, true);
    }
}

TS_TEST(terms_that_lie_elsewhere_keep_the_whole)
{
    int64_t scratch[2 * MEMBERS];
    tsi_cut cut = { .dtype = TS_DTYPE_F64, .folds = true, .members = MEMBERS, .scratch = scratch };
    ts_part a = { .ndim = 1, .data = memory, .extent = { 4 }, .stride = { 1 } }, b = a, c = a;
    b.peer = 1;
    b.combine = 1;
    c.data = memory + 64;
    TEST_CHECK(t, tsi_cut_is_possible(&cut, (ts_part[]){ a, b }, 2));
    TEST_CHECK(t, !tsi_cut_is_possible(&cut, (ts_part[]){ c, a, b }, 3)); /* 4 before, and none */
    TEST_CHECK(t, !tsi_cut_is_possible(&cut, (ts_part[]){ a, b, c }, 3)); /* of 8, and of 4 */
    b.peer = 0;
    TEST_CHECK(t, !tsi_cut_is_possible(&cut, (ts_part[]){ a, b }, 2)); /* two of one member */
    b.peer = 1;
    b.data = memory + 8;
    TEST_CHECK(t, !tsi_cut_is_possible(&cut, (ts_part[]){ a, b }, 2)); /* another block */
}
