/* SPDX-License-Identifier: Apache-2.0 */
/* comm_symmetric.c - memory that all members address: what is written before a signal is there
 * after it, words are used again, and whoever waits in vain is told for whom. */
#include <string.h>
#include <time.h>

#include "harness/test.h"
#include "tessera/tessera.h"

static int64_t *cells_of(const ts_symmetric *s, int64_t member)
{
    return ts_symmetric_data(s, member);
}

TS_TEST_RANKS(symmetric_memory_is_seen_by_all, 1, 2, 3, 8)
{
    enum { CELLS = 100, ROUNDS = 20 };
    ts_symmetric *s = ts_symmetric_alloc(ts_group_world(t->me), CELLS * sizeof(int64_t), NULL);
    TEST_CHECK(t, s != NULL);
    TEST_EQ(t, ts_symmetric_size(s), t->count);
    TEST_EQ(t, ts_symmetric_index(s), t->index);
    TEST_EQ(t, ts_symmetric_channel_count(s), 4);
    TEST_EQ(t, (int64_t)ts_symmetric_bytes(s), CELLS * (int64_t)sizeof(int64_t));
    TEST_CHECK(t, ts_symmetric_data(s, t->count) == NULL && ts_symmetric_data(s, -1) == NULL);
    for (int64_t round = 0; round < ROUNDS; round++) {
        for (int64_t i = 0; i < CELLS; i++)
            cells_of(s, t->index)[i] = round * 1000 + t->index + i;
        TEST_OK(t, ts_symmetric_barrier(s, 0));
        for (int64_t m = 0; m < t->count; m++)
            for (int64_t i = 0; i < CELLS; i += 33)
                TEST_EQ(t, cells_of(s, m)[i], round * 1000 + m + i);
        TEST_OK(t, ts_symmetric_barrier(s, 1));
    }
    ts_symmetric_release(s);
}

/* A value goes round the ranks by signals alone, a second signal waits for the first. */
TS_TEST_RANKS(symmetric_signals_are_counted, 1, 2, 3, 4)
{
    enum { ROUNDS = 300 };
    ts_symmetric *s = ts_symmetric_alloc(ts_group_world(t->me), sizeof(int64_t),
                                         TS_OPTIONS(ts_symmetric_options, .channels = 2));
    TEST_CHECK(t, s != NULL);
    int64_t next = (t->index + 1) % t->count, before = (t->index + t->count - 1) % t->count;
    for (int64_t round = 0; round < ROUNDS; round++) {
        if (t->index > 0 || round > 0) TEST_OK(t, ts_symmetric_wait(s, before, 1));
        TEST_EQ(t, cells_of(s, t->index)[0], round * t->count + t->index);
        cells_of(s, next)[0] = round * t->count + t->index + 1;
        TEST_OK(t, ts_symmetric_signal(s, next, 1));
    }
    if (t->index == 0) TEST_OK(t, ts_symmetric_wait(s, before, 1));
    ts_symmetric_release(s);
}

/* Sub-groups, several memories at once, views for collectives. */
TS_TEST_RANKS(symmetric_memory_of_groups, 4)
{
    int64_t ranks[2] = { t->index % 2 + 2, t->index % 2 }; /* in an order of its own */
    ts_group *pair = ts_group_create(t->me, ranks, 2, NULL);
    ts_symmetric *a = ts_symmetric_alloc(pair, 64, NULL);
    ts_symmetric *b = ts_symmetric_alloc(ts_group_world(t->me), 0, NULL);
    TEST_CHECK(t, a != NULL && b != NULL);
    ts_meta meta = { .shape = TS_SHAPE(4), .dtype = TS_DTYPE_F32 };
    ts_array view;
    TEST_OK(t, ts_symmetric_view(a, ts_symmetric_index(a), 16, &meta, &view));
    for (int i = 0; i < 4; i++)
        ((float *)view.data)[i] = (float)(t->index * 10 + i);
    TEST_OK(t, ts_symmetric_barrier(a, 3));
    TEST_OK(t, ts_symmetric_view(a, 1 - ts_symmetric_index(a), 16, &meta, &view));
    TEST_CHECK(t, ((float *)view.data)[3] == (float)((t->index + 2) % 4 * 10 + 3));
    TEST_OK(t, ts_symmetric_barrier(b, 0));
    ts_symmetric_release(a);
    TEST_OK(t, ts_symmetric_barrier(b, 0));
    ts_symmetric_release(b);
    ts_group_release(pair);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void refuses(test *t, ts_status got, ts_status want, const char *words)
{
    TEST_EQ(t, got, want);
    TEST_SAYS(t, ts_rank_error(t->me)->text, words);
    TEST_OK(t, ts_rank_recover(t->me));
}

TS_TEST_RANKS(symmetric_memory_refuses, 2)
{
    if (strcmp(t->engine, "threads") != 0) return; /* a process that fails takes others along */
    ts_meta meta = { .shape = TS_SHAPE(4), .dtype = TS_DTYPE_F32 };
    ts_array view;
    ts_group *world = ts_group_world(t->me);
    ts_symmetric *s = ts_symmetric_alloc(world, 64, NULL);
    TEST_CHECK(t, s != NULL);
    refuses(t, ts_symmetric_signal(s, 1, 4), TS_ERR_ARG, "no channel 4 of 4");
    refuses(t, ts_symmetric_wait(s, 2, 0), TS_ERR_ARG, "no member 2 of 2");
    refuses(t, ts_symmetric_view(s, 0, 52, &meta, &view), TS_ERR_ARG, "does not fit in 64 bytes");
    refuses(t, ts_symmetric_view(s, 5, 0, &meta, &view), TS_ERR_ARG, "no member 5 of 2");
    TEST_CHECK(t, !ts_symmetric_alloc(world, 64, TS_OPTIONS(ts_symmetric_options, .channels = -1)));
    refuses(t, ts_rank_status(t->me), TS_ERR_ARG, "-1 channels are asked for");
    TEST_CHECK(t, !ts_symmetric_alloc(world, 64 + (size_t)t->index, NULL));
    refuses(t, ts_rank_status(t->me), TS_ERR_SHAPE, "rank 0 asks for 64 bytes and 4 channels");
    ts_symmetric_release(s);
    ts_symmetric_release(NULL);
}

/* ---- faults ---------------------------------------------------------------------------------- */

typedef struct scene {
    int fails;
    ts_status status;
    double seconds;
    char text[512];
} scene;

static double now(void)
{
    struct timespec at;
    (void)clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

/* Rank 1 waits for a signal of rank 0, which never gives one. */
static ts_status play(ts_rank *me, void *argument)
{
    scene *c = argument;
    ts_symmetric_options o = TS_INIT(ts_symmetric_options);
    o.timeout_ms = c->fails ? 20000 : 200;
    o.name = "ring";
    ts_symmetric *s = ts_symmetric_alloc(ts_group_world(me), 64, &o);
    ts_status status = ts_rank_status(me);
    if (s && ts_rank_index(me) == 1) {
        double begin = now();
        status = c->status = ts_symmetric_wait(s, 0, 0);
        c->seconds = now() - begin;
        (void)strncpy(c->text, ts_rank_error(me)->text, sizeof c->text - 1);
    } else if (c->fails) {
        (void)ts_group_send(ts_group_world(me), NULL, 1, NULL); /* its own mistake */
        status = TS_ERR_ARG;
    }
    ts_symmetric_release(s);
    return status;
}

static scene perform(int fails)
{
    scene c = { .fails = fails };
    char error[1024];
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "threads";
    options.rank_count = 2;
    if (ts_launch_with(&options, play, &c, error, sizeof error) == TS_OK) c.status = TS_OK;
    return c;
}

TS_TEST(symmetric_wait_ends_when_the_peer_fails)
{
    scene c = perform(1);
    TEST_EQ(t, c.status, TS_ERR_PEER);
    TEST_SAYS(t, c.text, "rank 0");
    TEST_CHECK(t, c.seconds < 10);
}

TS_TEST(symmetric_wait_ends_after_the_timeout)
{
    scene c = perform(0);
    TEST_EQ(t, c.status, TS_ERR_PEER);
    TEST_SAYS(t, c.text, "ring: rank 1 waited 200 ms in channel 0 for a signal of rank 0");
    TEST_CHECK(t, c.seconds < 10);
}
