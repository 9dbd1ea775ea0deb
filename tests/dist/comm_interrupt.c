/* SPDX-License-Identifier: Apache-2.0 */
/* comm_interrupt.c - ts_world_interrupt: from another thread and from a signal handler, while ranks
 * wait and before they do; everybody gets the same status, and recover goes on. */
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "harness/test.h"
#include "tessera/comm.h"

static ts_world *target; /* of the handler */

static void pause_ms(long ms)
{
    struct timespec time = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };
    (void)nanosleep(&time, NULL);
}

static void *interrupt_soon(void *world)
{
    pause_ms(80);
    ts_world_interrupt(world);
    return NULL;
}

static void handle(int signal_number)
{
    (void)signal_number;
    ts_world_interrupt(target);
}

/* All wait for something that never comes: a message from the next rank. */
static ts_status wait_for_ever(test *t)
{
    float value = 0;
    int64_t count = ts_rank_count(t->me);
    ts_array array = TS_INIT(ts_array);
    array.data = &value;
    array.meta.dtype = TS_DTYPE_F32;
    return ts_group_recv(ts_group_world(t->me), &array, (ts_rank_index(t->me) + 1) % count, NULL);
}

static void go_on(test *t)
{
    TEST_OK(t, ts_rank_recover(t->me));
    TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
}

TS_TEST_RANKS(interrupt_ends_waits, 2, 3, 4)
{
    pthread_t thread;
    bool mine = ts_rank_index(t->me) == 0;
    if (mine) TEST_EQ(t, pthread_create(&thread, NULL, interrupt_soon, ts_rank_world(t->me)), 0);
    TEST_STATUS(t, wait_for_ever(t), TS_ERR_INTERRUPTED);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "the world was interrupted");
    if (mine) (void)pthread_join(thread, NULL);
    go_on(t);
}

TS_TEST_RANKS(interrupt_before_the_wait, 2, 3)
{
    if (ts_rank_index(t->me) == 1) ts_world_interrupt(ts_rank_world(t->me));
    TEST_STATUS(t, wait_for_ever(t), TS_ERR_INTERRUPTED);
    go_on(t);
}

TS_TEST_RANKS(interrupt_from_a_signal_handler, 2, 3)
{
    if (ts_rank_index(t->me) == 0) {
        struct sigaction action = { .sa_handler = handle }, before;
        target = ts_rank_world(t->me);
        (void)sigaction(SIGALRM, &action, &before);
        timer_t timer;
        struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM };
        struct itimerspec soon = { .it_value = { .tv_nsec = 80000000 } };
        TEST_EQ(t, timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
        TEST_EQ(t, timer_settime(timer, 0, &soon, NULL), 0);
        TEST_STATUS(t, wait_for_ever(t), TS_ERR_INTERRUPTED);
        (void)timer_delete(timer);
        (void)sigaction(SIGALRM, &before, NULL);
    } else {
        TEST_STATUS(t, wait_for_ever(t), TS_ERR_INTERRUPTED);
    }
    go_on(t);
}
