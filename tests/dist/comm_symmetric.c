/* SPDX-License-Identifier: Apache-2.0 */
/* comm_symmetric.c - memory that all members address: what is written before a signal is there
 * after it, words are used again, and whoever waits in vain is told for whom. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

/* A signal that nobody took before a failure is no signal of what comes after. */
TS_TEST_RANKS(symmetric_signals_begin_anew_after_recovery, 2)
{
    if (strcmp(t->engine, "threads") != 0) return;
    ts_group *world = ts_group_world(t->me);
    ts_symmetric *s =
        ts_symmetric_alloc(world, 64, TS_OPTIONS(ts_symmetric_options, .timeout_ms = 200));
    for (int round = 0; round < 3; round++) {
        if (t->index == 1) TEST_OK(t, ts_symmetric_signal(s, 0, 0));
        TEST_OK(t, ts_group_barrier(world, NULL));
        if (t->index == 0 && round == 1) TEST_OK(t, ts_symmetric_wait(s, 1, 0));
        ts_rank_fail(t->me, TS_ERR_STATE, "half way");
        TEST_OK(t, ts_rank_recover(t->me));
    }
    if (t->index == 1) TEST_OK(t, ts_symmetric_signal(s, 0, 0)); /* none is in its way */
    TEST_OK(t, ts_group_barrier(world, NULL));
    if (t->index == 0) {
        TEST_OK(t, ts_symmetric_wait(s, 1, 0));
        TEST_EQ(t, ts_symmetric_wait(s, 1, 0), TS_ERR_PEER); /* there was one */
    }
    TEST_OK(t, ts_rank_recover(t->me));
    ts_symmetric_release(s);
}

static ts_status barrier_step(void *context)
{
    return ts_symmetric_barrier(context, 0);
}

TS_TEST_RANKS(symmetric_signals_are_no_part_of_a_step, 1, 2)
{
    if (strcmp(t->engine, "threads") != 0) return;
    ts_symmetric *s = ts_symmetric_alloc(ts_group_world(t->me), 64, NULL);
    TEST_CHECK(t, !ts_step_record(t->me, barrier_step, s));
    TEST_SAYS(t, ts_rank_error(t->me)->text, "a step is recorded, which cannot do this again");
    TEST_OK(t, ts_rank_recover(t->me));
    ts_symmetric_release(s);
}

/* ---- memory that is there, and memory that is not -------------------------------------------- */

/* In the place of libc's: counts what is reserved of the file that processes share; or it is full.
 */
static struct {
    int64_t bytes;
    int full;
} reserved;

int posix_fallocate(int fd, off_t offset, off_t length)
{
    if (reserved.full) return ENOSPC;
    reserved.bytes += length;
    return fallocate(fd, 0, offset, length) == 0 ? 0 : errno;
}

/* The first process makes the file, with room for all of it. */
TS_TEST_RANKS(symmetric_memory_is_reserved, 2, 3)
{
    enum { BYTES = 70 << 20 };
    if (strcmp(t->engine, "threads") == 0) return; /* there it is written to when it is made */
    reserved.bytes = 0;
    ts_symmetric *s = ts_symmetric_alloc(ts_group_world(t->me), BYTES, NULL);
    TEST_CHECK(t, s != NULL);
    TEST_CHECK(t, reserved.bytes >= (t->index == 0 ? t->count * BYTES : 0));
    for (int64_t m = 0; s && m < t->count; m++)
        TEST_EQ(t, cells_of(s, m)[BYTES / 8 - 1], 0);
    ts_symmetric_release(s);
}

/* All members say so and go on. Of processes the first to find out may be heard of by the others
 * before they have found out themselves. */
static void lacks(test *t, size_t bytes, const char *words)
{
    TEST_CHECK(t, !ts_symmetric_alloc(ts_group_world(t->me), bytes, NULL));
    bool told = strcmp(t->engine, "threads") != 0 && ts_rank_status(t->me) == TS_ERR_PEER;
    TEST_CHECK(t, told || ts_rank_status(t->me) == TS_ERR_MEMORY);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "symmetric memory: rank 0 cannot get ");
    TEST_SAYS(t, ts_rank_error(t->me)->text, words);
    TEST_OK(t, ts_rank_recover(t->me));
}

TS_TEST_RANKS(symmetric_memory_that_is_not_there, 2, 3)
{
    lacks(t, (size_t)1 << 44, "bytes: Cannot allocate memory"); /* more than any host has */
    ts_symmetric *s = ts_symmetric_alloc(ts_group_world(t->me), 64, NULL);
    TEST_CHECK(t, s != NULL);
    if (strcmp(t->engine, "threads") != 0) {
        reserved.full = 1;
        lacks(t, 64, "bytes: No space left on device");
        reserved.full = 0;
    }
    TEST_OK(t, ts_symmetric_barrier(s, 0));
    ts_symmetric_release(s);
}

/* ---- faults ---------------------------------------------------------------------------------- */

typedef enum ending { LATE, FAILS, LEAVES, LEAVES_TAKER } ending; /* of rank 0 */

typedef struct scene {
    ending how;
    ts_status status;
    int64_t culprit;
    double seconds;
    char text[512];
} scene;

static double now(void)
{
    struct timespec at;
    (void)clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

/* Rank 0 gave one signal, which is taken whatever becomes of rank 0, and no second one. */
static ts_status wait_in_vain(ts_rank *me, scene *c, ts_symmetric *s)
{
    double begin = now();
    ts_status status = ts_symmetric_wait(s, 0, 0);
    if (status == TS_OK && c->how == LEAVES_TAKER) status = ts_symmetric_signal(s, 0, 1);
    if (status == TS_OK)
        status = c->how == LEAVES_TAKER ? ts_symmetric_signal(s, 0, 1) : ts_symmetric_wait(s, 0, 0);
    c->status = status;
    c->seconds = now() - begin;
    if (status != TS_OK) (void)strncpy(c->text, ts_rank_error(me)->text, sizeof c->text - 1);
    if (status != TS_OK) c->culprit = ts_rank_error(me)->rank;
    return status;
}

static ts_status play(ts_rank *me, void *argument)
{
    scene *c = argument;
    ts_symmetric_options o = TS_INIT(ts_symmetric_options);
    o.timeout_ms = c->how == LATE ? 200 : 20000;
    o.name = "ring";
    ts_symmetric *s = ts_symmetric_alloc(ts_group_world(me), 64, &o);
    ts_status status = ts_rank_status(me);
    if (s && ts_rank_index(me) == 1) {
        status = wait_in_vain(me, c, s);
    } else if (s) {
        status = ts_symmetric_signal(s, 1, 0);
        if (c->how == FAILS) {
            (void)ts_group_send(ts_group_world(me), NULL, 1, NULL); /* its own mistake */
            status = TS_ERR_ARG;
        }
        if (c->how == LATE) (void)usleep(1000000);
    }
    ts_symmetric_release(s);
    return status;
}

static scene perform(ending how)
{
    scene c = { .how = how };
    char error[1024];
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "threads";
    options.rank_count = 2;
    if (ts_launch_with(&options, play, &c, error, sizeof error) == TS_OK) c.status = TS_OK;
    return c;
}

/* All of them long before the timeout. */
static void ends(test *t, ending how, const char *words)
{
    scene c = perform(how);
    TEST_EQ(t, c.status, TS_ERR_PEER);
    TEST_EQ(t, c.culprit, 0);
    TEST_SAYS(t, c.text, words);
    TEST_CHECK(t, c.seconds < 10);
}

TS_TEST(symmetric_wait_ends_when_the_peer_fails)
{
    ends(t, FAILS, "rank 0");
}

#define GONE "rank 0 has finished, but rank 1 waits for it in "
TS_TEST(symmetric_wait_ends_when_the_peer_leaves)
{
    for (int i = 0; i < 20; i++) {
        ends(t, LEAVES, GONE "ts_symmetric_wait 'ring', channel 0 (");
        ends(t, LEAVES_TAKER, GONE "ts_symmetric_signal 'ring', channel 1 (");
    }
}

TS_TEST(symmetric_wait_ends_after_the_timeout)
{
    scene c = perform(LATE);
    TEST_EQ(t, c.status, TS_ERR_PEER);
    TEST_EQ(t, c.culprit, 0);
    TEST_SAYS(t, c.text, "rank 1 waited 200 ms in ts_symmetric_wait 'ring', channel 0 (");
    TEST_SAYS(t, c.text, "for rank 0 (last: all_gather 'ring' #3");
}
