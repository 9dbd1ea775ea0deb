/* SPDX-License-Identifier: Apache-2.0 */
/* device_loop.c - loops that threads join: who closes one goes on when the last one has left it,
 * whoever has it next. */
#include "device/loop.h"

#include <pthread.h>
#include <time.h>

#include "base/clock.h"
#include "base/compiler.h"
#include "harness/test.h"

enum { PIECES = 10, ROUNDS = 40 };

static void count(void *context, int64_t begin, int64_t end, int32_t worker)
{
    int64_t *ran = context;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        ran[i]++;
}

TS_TEST(loop_hands_out_each_piece_once)
{
    for (int64_t chunk = 1; chunk <= PIECES + 1; chunk++) {
        tsi_loop loop = { 0 };
        int64_t ran[PIECES] = { 0 };
        tsi_loop_open(&loop, TSI_LOOP_OPEN, PIECES, chunk, count, ran);
        TEST_EQ(t, tsi_loop_left(&loop), 0); /* not to guests */
        TEST_EQ(t, tsi_loop_join(&loop, TSI_LOOP_GUESTS), false);
        TEST_EQ(t, tsi_loop_join(&loop, TSI_LOOP_OPEN), true);
        while (tsi_loop_take(&loop, 0))
            continue;
        tsi_loop_leave(&loop);
        tsi_loop_close(&loop);
        for (int64_t i = 0; i < PIECES; i++)
            TEST_EQ(t, ran[i], 1);
        TEST_EQ(t, atomic_load(&loop.state), 0);
        TEST_EQ(t, tsi_loop_join(&loop, TSI_LOOP_OPEN), false);
    }
}

typedef struct closer {
    tsi_loop *loop;
    _Atomic bool done;
} closer;

static void *close_it(void *context)
{
    closer *c = context;
    tsi_loop_close(c->loop);
    atomic_store(&c->done, true);
    return NULL;
}

static void let_others_sleep(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = 300000 }, NULL);
}

/* As soon as it is free: claimed, opened and closed by this thread. False: it took too long. */
static bool open_next(tsi_loop *loop, int64_t *ran)
{
    int64_t deadline = tsi_clock_after_ms(20000);
    uint32_t nobody = 0;
    while (!atomic_compare_exchange_strong(&loop->state, &nobody, TSI_LOOP_CLAIMED)) {
        if (tsi_clock_ns() > deadline) return false;
        nobody = 0;
        TSI_CPU_RELAX();
    }
    tsi_loop_open(loop, TSI_LOOP_OPEN | TSI_LOOP_GUESTS, PIECES, 1, count, ran);
    let_others_sleep(); /* on its state, if they take the loop for theirs */
    while (tsi_loop_take(loop, 0))
        continue;
    tsi_loop_close(loop);
    return true;
}

/* This thread is the last one inside, and has the loop the moment it may. */
TS_TEST(loop_that_is_closed_waits_for_its_own_guests)
{
    for (int round = 0; round < ROUNDS; round++) {
        tsi_loop loop = { 0 };
        int64_t ran[PIECES] = { 0 };
        closer c = { .loop = &loop };
        pthread_t thread;
        tsi_loop_open(&loop, TSI_LOOP_OPEN | TSI_LOOP_GUESTS, PIECES, 1, count, ran);
        TEST_EQ(t, tsi_loop_join(&loop, TSI_LOOP_GUESTS), true);
        TEST_EQ(t, pthread_create(&thread, NULL, close_it, &c), 0);
        while (atomic_load(&loop.state) & TSI_LOOP_OPEN)
            TSI_CPU_RELAX();
        let_others_sleep();
        TEST_EQ(t, atomic_load(&c.done), false);
        tsi_loop_leave(&loop);
        TEST_EQ(t, open_next(&loop, ran), true);
        int64_t deadline = tsi_clock_after_ms(20000);
        while (!atomic_load(&c.done) && tsi_clock_ns() < deadline)
            TSI_CPU_RELAX();
        if (!atomic_load(&c.done)) { /* so that the thread ends, and the test with it */
            TEST_SAY(t, false, "round %d: it waits for guests of the next loop", round);
            tsi_wake_all(&loop.state);
        }
        TEST_EQ(t, pthread_join(thread, NULL), 0);
    }
}
