/* SPDX-License-Identifier: Apache-2.0 */
/* The meaning of collectives without any engine: blocks that fit each other, bytes by information,
 * words. */
#include <stdlib.h>

#include "comm/slots.h"
#include "harness/test.h"

enum { MEMBERS_MAX = 8 };

typedef struct crew {
    tsi_team team;
    int64_t rank[MEMBERS_MAX];
    int64_t rows[MEMBERS_MAX];
    int64_t pair[MEMBERS_MAX][MEMBERS_MAX], turned[MEMBERS_MAX][MEMBERS_MAX];
    tsi_work work[MEMBERS_MAX];
    char memory[4096];
} crew;

static tsi_block block_of(crew *c, int64_t rows, int64_t cols)
{
    return (tsi_block){ .data = c->memory,
                        .dtype = TS_DTYPE_F32,
                        .ndim = 2,
                        .extent = { rows, cols },
                        .stride = { cols, 1 } };
}

static void describe(tsi_work *work, const tsi_block *shown)
{
    work->print.dtype = shown->dtype;
    work->print.ndim = shown->ndim;
    memcpy(work->print.extent, shown->extent, sizeof shown->extent);
    work->print.count = tsi_block_count(shown);
    tsi_fingerprint_seal(work);
}

static bool in_is_full(tsi_comm_kind kind)
{
    return kind == TSI_COMM_SCATTER || kind == TSI_COMM_REDUCE || kind == TSI_COMM_ALL_REDUCE ||
           kind == TSI_COMM_REDUCE_SCATTER;
}

static bool out_is_full(tsi_comm_kind kind)
{
    return kind == TSI_COMM_BROADCAST || kind == TSI_COMM_GATHER || kind == TSI_COMM_ALL_GATHER ||
           kind == TSI_COMM_REDUCE || kind == TSI_COMM_ALL_REDUCE;
}

static bool shows_in(tsi_comm_kind kind)
{
    return kind == TSI_COMM_GATHER || kind == TSI_COMM_REDUCE || kind == TSI_COMM_ALL_REDUCE ||
           kind == TSI_COMM_REDUCE_SCATTER || kind == TSI_COMM_ALL_TO_ALL;
}

/* Works of all members of one operation with rows 0, 1, 2, 0, 1, ... of 3 elements. */
static void assemble(crew *c, tsi_comm_kind kind, int64_t size, int64_t root)
{
    memset(c, 0, sizeof *c);
    c->team = (tsi_team){ .hash = 77, .size = size, .rank = c->rank, .name = "crew" };
    int64_t all = 0;
    for (int64_t i = 0; i < size; i++) {
        c->rank[i] = 10 + i;
        all += c->rows[i] = i % 3;
        for (int64_t j = 0; j < size; j++)
            c->turned[j][i] = c->pair[i][j] = (i + 2 * j) % 3;
    }
    for (int64_t i = 0; i < size; i++) {
        tsi_work *work = &c->work[i];
        work->team = &c->team;
        work->member = i;
        work->print =
            (tsi_fingerprint){ .kind = (int32_t)kind, .root = root, .sequence = 5, .rank = 10 + i };
        int64_t in = c->rows[i], out = c->rows[i];
        work->send_rows = work->recv_rows = c->rows;
        if (kind == TSI_COMM_ALL_TO_ALL) {
            work->send_rows = c->pair[i];
            work->recv_rows = c->turned[i];
            in = out = 0;
            for (int64_t j = 0; j < size; j++) {
                in += c->pair[i][j];
                out += c->turned[i][j];
            }
        }
        work->in = block_of(c, in_is_full(kind) ? all : in, 3);
        work->out = block_of(c, out_is_full(kind) ? all : out, 3);
        describe(work, shows_in(kind) ? &work->in : &work->out);
    }
}

static bool has_root(tsi_comm_kind kind)
{
    return kind == TSI_COMM_BROADCAST || kind == TSI_COMM_SCATTER || kind == TSI_COMM_GATHER ||
           kind == TSI_COMM_REDUCE;
}

/* What i sends to j is what j receives from i, in shape; reductions receive whole blocks. */
static void check_pair(test *t, const crew *c, tsi_comm_kind kind, int64_t i, int64_t j)
{
    tsi_block sent = { 0 }, received = { 0 };
    bool sends = tsi_work_send_block(&c->work[i], j, &sent);
    bool receives = tsi_work_recv_block(&c->work[j], i, &received);
    TEST_SAY(t, sends == receives, "%s: %d to %d: %d vs %d", tsi_comm_kind_name(kind), (int)i,
             (int)j, sends, receives);
    if (!sends || !receives) return;
    TEST_EQ(t, sent.extent[0], received.extent[0]);
    TEST_EQ(t, sent.extent[1], received.extent[1]);
    TEST_CHECK(t, tsi_block_count(&sent) > 0);
}

TS_TEST(comm_blocks_of_pairs_fit)
{
    static const tsi_comm_kind kinds[] = { TSI_COMM_BROADCAST,      TSI_COMM_SCATTER,
                                           TSI_COMM_GATHER,         TSI_COMM_ALL_GATHER,
                                           TSI_COMM_REDUCE,         TSI_COMM_ALL_REDUCE,
                                           TSI_COMM_REDUCE_SCATTER, TSI_COMM_ALL_TO_ALL };
    static crew c;
    for (size_t k = 0; k < TSI_COUNT_OF(kinds); k++)
        for (int64_t size = 1; size <= MEMBERS_MAX; size++) {
            int64_t root = has_root(kinds[k]) ? size / 2 : -1;
            assemble(&c, kinds[k], size, root);
            for (int64_t i = 0; i < size; i++)
                for (int64_t j = 0; j < size; j++) {
                    char text[400] = "";
                    check_pair(t, &c, kinds[k], i, j);
                    TEST_SAY(t, tsi_work_agree(&c.work[i], &c.work[j], text, sizeof text), "%s",
                             text);
                }
        }
}

/* Rows are disjoint and fill the array: the shares of an all_gather touch each other. */
TS_TEST(comm_shares_fill_the_array)
{
    static crew c;
    for (int64_t size = 1; size <= MEMBERS_MAX; size++) {
        assemble(&c, TSI_COMM_ALL_GATHER, size, -1);
        char *next = c.memory;
        for (int64_t i = 0; i < size; i++) {
            tsi_block share;
            bool any = tsi_work_recv_block(&c.work[0], i, &share);
            TEST_EQ(t, any, c.rows[i] > 0);
            TEST_CHECK(t, (char *)share.data == next);
            next += c.rows[i] * 3 * 4;
        }
        TEST_CHECK(t, next == c.memory + tsi_block_count(&c.work[0].out) * 4);
    }
}

static int64_t received_in_all(crew *c, tsi_comm_kind kind, int64_t size)
{
    assemble(c, kind, size, has_root(kind) ? size - 1 : -1);
    int64_t total = 0;
    for (int64_t i = 0; i < size; i++)
        total += tsi_work_bytes_received(&c->work[i]);
    return total;
}

/* By information: a group of n with an array of b bytes. */
TS_TEST(comm_bytes_are_counted_by_information)
{
    static crew c;
    for (int64_t n = 1; n <= MEMBERS_MAX; n++) {
        int64_t b = 0, own = 0;
        for (int64_t i = 0; i < n; i++)
            b += i % 3 * 12;
        own = (n - 1) % 3 * 12; /* of the last member, the root */
        TEST_EQ(t, received_in_all(&c, TSI_COMM_ALL_GATHER, n), b * (n - 1));
        TEST_EQ(t, received_in_all(&c, TSI_COMM_REDUCE_SCATTER, n), b * (n - 1));
        TEST_EQ(t, received_in_all(&c, TSI_COMM_ALL_REDUCE, n), 2 * b * (n - 1));
        TEST_EQ(t, received_in_all(&c, TSI_COMM_BROADCAST, n), b * (n - 1));
        TEST_EQ(t, received_in_all(&c, TSI_COMM_REDUCE, n), b * (n - 1));
        TEST_EQ(t, received_in_all(&c, TSI_COMM_GATHER, n), b - own);
        TEST_EQ(t, received_in_all(&c, TSI_COMM_SCATTER, n), b - own);
        TEST_EQ(t, received_in_all(&c, TSI_COMM_BARRIER, n), 0);
        int64_t moved = 0;
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++)
                if (i != j) moved += (i + 2 * j) % 3 * 12;
        TEST_EQ(t, received_in_all(&c, TSI_COMM_ALL_TO_ALL, n), moved);
    }
}

TS_TEST(comm_disagreements_have_words)
{
    static crew c;
    char text[600] = "";
    assemble(&c, TSI_COMM_SCATTER, 3, 1);
    c.work[2].out.extent[0] = 7;
    TEST_CHECK(t, !tsi_work_agree(&c.work[1], &c.work[2], text, sizeof text));
    TEST_SAYS(t, text, "rank 11 sends 2 rows, rank 12 expects 7");
    TEST_CHECK(t, tsi_work_agree(&c.work[0], &c.work[2], text, sizeof text)); /* neither is root */
    assemble(&c, TSI_COMM_ALL_GATHER, 3, -1);
    const int64_t other[3] = { 1, 1, 1 };
    c.work[2].recv_rows = other;
    tsi_fingerprint_seal(&c.work[2]);
    TEST_CHECK(t, !tsi_work_agree(&c.work[0], &c.work[2], text, sizeof text));
    TEST_SAYS(t, text, "rows per member differ");
    assemble(&c, TSI_COMM_ALL_REDUCE, 2, -1);
    c.work[1].print.sequence = 6;
    tsi_fingerprint_seal(&c.work[1]);
    TEST_CHECK(t, !tsi_work_agree(&c.work[0], &c.work[1], text, sizeof text));
    TEST_SAYS(t, text, "different numbers");
}

/* A list of equal counts is the even split, and says so to the peers. */
TS_TEST(comm_equal_rows_are_even_rows)
{
    static crew c;
    assemble(&c, TSI_COMM_ALL_GATHER, 2, -1);
    const int64_t equal[2] = { 1, 1 };
    c.work[0].out = c.work[1].out = block_of(&c, 2, 3);
    c.work[0].recv_rows = equal;
    c.work[1].recv_rows = NULL;
    describe(&c.work[0], &c.work[0].out);
    describe(&c.work[1], &c.work[1].out);
    TEST_CHECK(t, c.work[0].print.hash == c.work[1].print.hash);
}

TS_TEST(comm_fingerprint_text)
{
    tsi_fingerprint print = { .kind = TSI_COMM_ALL_REDUCE,
                              .reduce = TS_REDUCE_SUM,
                              .root = -1,
                              .dtype = TS_DTYPE_F32,
                              .sequence = 17,
                              .ndim = 2,
                              .extent = { 4, 8 },
                              .name = "loss",
                              .where = "train.c:88",
                              .group = "dp" };
    char text[200];
    tsi_fingerprint_text(&print, text, sizeof text);
    TEST_TEXT(t, text, "all_reduce(sum) 'loss' #17 on group dp (f32[4 x 8], train.c:88)");
    tsi_fingerprint_text(&print, text, 12); /* cut, never written beyond */
    TEST_TEXT(t, text, "all_reduce(");
    print =
        (tsi_fingerprint){ .kind = TSI_COMM_BARRIER, .root = -1, .sequence = 1, .group = "world" };
    tsi_fingerprint_text(&print, text, sizeof text);
    TEST_TEXT(t, text, "barrier #1 on group world");
}

/* ---- streams of other shapes ----------------------------------------------------------------- */

TS_TEST(comm_stream_between_shapes)
{
    int32_t from[24], to[48];
    for (int i = 0; i < 24; i++)
        from[i] = i;
    memset(to, 0xFF, sizeof to);
    tsi_block source = {
        .data = from, .dtype = TS_DTYPE_I32, .ndim = 2, .extent = { 4, 6 }, .stride = { 1, 4 }
    }; /* columns first */
    tsi_block target = {
        .data = to, .dtype = TS_DTYPE_I32, .ndim = 3, .extent = { 2, 3, 4 }, .stride = { 24, 8, 2 }
    };
    TEST_OK(t, tsi_move_stream((tsi_mover){ .device = tsi_device_host() }, &target, &source));
    for (int i = 0; i < 24; i++) {
        int at = i / 12 * 24 + i / 4 % 3 * 8 + i % 4 * 2;
        TEST_EQ(t, to[at], i / 6 + i % 6 * 4);
        TEST_EQ(t, to[at + 1], -1);
    }
}

/* A block of `count` elements in random dims, with gaps between rows, in a random order of dims. */
static tsi_block random_block(test *t, int64_t count, void *data)
{
    tsi_block block = { .data = data, .dtype = TS_DTYPE_I32 };
    int64_t rest = count, step = 1;
    while (rest > 1 && block.ndim < 4) {
        int64_t factor = 1 + test_random_below(t, 12);
        if (block.ndim == 3 || rest % factor != 0) factor = block.ndim == 3 ? rest : 1;
        block.extent[block.ndim++] = factor;
        rest /= factor;
    }
    if (rest > 1) block.extent[block.ndim - 1] *= rest;
    int32_t order[4] = { 0, 1, 2, 3 };
    for (int32_t i = block.ndim - 1; i > 0 && test_random_below(t, 3) == 0; i--) {
        int32_t j = (int32_t)test_random_below(t, i + 1), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    for (int32_t i = block.ndim - 1; i >= 0; i--) {
        block.stride[order[i]] = step;
        step *= block.extent[order[i]];
        if (test_random_below(t, 2)) step += test_random_below(t, 3);
    }
    return block;
}

static int64_t place_in(const tsi_block *block, int64_t i)
{
    int64_t at = 0;
    for (int32_t d = block->ndim - 1; d >= 0; d--) {
        at += i % block->extent[d] * block->stride[d];
        i /= block->extent[d];
    }
    return at;
}

TS_TEST(comm_stream_between_random_shapes)
{
    enum { ROOM = 1 << 13 };
    static const int64_t counts[] = { 1, 7, 24, 60, 96, 210, 360, 1001 };
    int32_t *from = malloc(ROOM * sizeof *from), *to = malloc(ROOM * sizeof *to);
    for (int round = 0; round < 4000 && !test_failed(t); round++) {
        int64_t count = counts[test_random_below(t, 8)];
        tsi_block source = random_block(t, count, from), target = random_block(t, count, to);
        TEST_CHECK(t, place_in(&source, count - 1) < ROOM && place_in(&target, count - 1) < ROOM);
        memset(from, 0xFF, ROOM * sizeof *from);
        memset(to, 0xFF, ROOM * sizeof *to);
        for (int64_t i = 0; i < count; i++)
            from[place_in(&source, i)] = (int32_t)i;
        TEST_OK(t, tsi_move_stream((tsi_mover){ .device = tsi_device_host() }, &target, &source));
        int64_t wrong = 0;
        for (int64_t i = 0; i < count; i++)
            wrong += to[place_in(&target, i)] != (int32_t)i;
        TEST_SAY(t, wrong == 0, "round %d: %lld of %lld elements", round, (long long)wrong,
                 (long long)count);
    }
    free(from);
    free(to);
}
