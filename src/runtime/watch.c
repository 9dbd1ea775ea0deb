/* SPDX-License-Identifier: Apache-2.0 */
/* watch.c - SIGUSR1 asks a running launch what its ranks are doing; a failure makes it look for
 * ranks that do not come back.
 *
 * A handler may do almost nothing, so it only posts a semaphore; a thread of its own waits for it
 * and writes the post-mortem to standard error. The handler needs one process-wide word to find
 * that semaphore, set only while a launch runs, and only if the signal has its default action; and
 * one that counts handlers, which run in any thread: what they may have found is freed when none is
 * left. They are the only such words of the library. Signals of other owners stay as they were
 * found. */
#include <errno.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

#include "base/alloc.h"
#include "base/thread.h"
#include "runtime/runtime.h"

enum { LOOK_NS = 50000000 };

struct tsi_watch {
    ts_world *world;
    pthread_t thread;
    tsi_look_fn look;
    void *context;
    sem_t asked;
    _Atomic int32_t signalled, looking, stopping;
    bool has_signal;
    struct sigaction before;
};

static _Atomic(tsi_watch *) watch_active;
static _Atomic int32_t handlers_inside;

static void on_signal(int number)
{
    (void)number;
    int saved = errno;
    /* Counted before it looks, in one order with stop's store and its look at the count: either it
     * finds nothing or it is waited for. */
    atomic_fetch_add_explicit(&handlers_inside, 1, memory_order_seq_cst);
    tsi_watch *watch = atomic_load_explicit(&watch_active, memory_order_seq_cst);
    if (watch != NULL) {
        atomic_store_explicit(&watch->signalled, 1, memory_order_relaxed);
        sem_post(&watch->asked);
    }
    atomic_fetch_sub_explicit(&handlers_inside, 1, memory_order_release);
    errno = saved;
}

static void print_postmortem(ts_world *world)
{
    tsi_text text = { 0 };
    tsi_postmortem(world, &text);
    if (text.length > 0) {
        fputs(text.data, stderr);
        fflush(stderr);
    }
    tsi_text_release(&text);
}

/* Until somebody asks or, once it looks, for a moment. */
static void wait_asked(tsi_watch *watch)
{
    struct timespec until;
    if (!atomic_load_explicit(&watch->looking, memory_order_acquire)) {
        while (sem_wait(&watch->asked) != 0 && errno == EINTR) {
        }
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += LOOK_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (sem_timedwait(&watch->asked, &until) != 0 && errno == EINTR) {
    }
}

static void *watch_thread(void *argument)
{
    tsi_watch *watch = argument;
    for (;;) {
        wait_asked(watch);
        if (atomic_load_explicit(&watch->stopping, memory_order_acquire)) return NULL;
        if (atomic_exchange_explicit(&watch->signalled, 0, memory_order_relaxed))
            print_postmortem(watch->world);
        if (atomic_load_explicit(&watch->looking, memory_order_acquire))
            watch->look(watch->context);
    }
}

/* Takes the signal if nobody else has it. */
static bool take_signal(tsi_watch *watch)
{
    tsi_watch *none = NULL;
    if (sigaction(SIGUSR1, NULL, &watch->before) != 0) return false;
    if ((watch->before.sa_flags & SA_SIGINFO) != 0 || watch->before.sa_handler != SIG_DFL)
        return false;
    if (!atomic_compare_exchange_strong_explicit(&watch_active, &none, watch, memory_order_acq_rel,
                                                 memory_order_relaxed)) {
        return false; /* another launch of this process has it */
    }
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGUSR1, &action, NULL) == 0) return true;
    atomic_store_explicit(&watch_active, NULL, memory_order_release);
    return false;
}

static void stop_thread(tsi_watch *watch)
{
    atomic_store_explicit(&watch->stopping, 1, memory_order_release);
    sem_post(&watch->asked);
    pthread_join(watch->thread, NULL);
}

tsi_watch *tsi_watch_start(ts_world *world, tsi_look_fn look, void *context)
{
    tsi_watch *watch = tsi_calloc(1, sizeof *watch);
    if (watch == NULL) return NULL;
    watch->world = world;
    watch->look = look;
    watch->context = context;
    if (sem_init(&watch->asked, 0, 0) != 0) goto failed;
    if (tsi_thread_start(&watch->thread, watch_thread, watch, 0) != TS_OK) goto failed_thread;
    watch->has_signal = take_signal(watch);
    return watch;
failed_thread:
    sem_destroy(&watch->asked);
failed:
    tsi_free(watch);
    return NULL;
}

void tsi_watch_look(tsi_watch *watch)
{
    if (watch == NULL) return;
    atomic_store_explicit(&watch->looking, 1, memory_order_release);
    sem_post(&watch->asked);
}

void tsi_watch_stop(tsi_watch *watch)
{
    if (watch == NULL) return;
    if (watch->has_signal) {
        sigaction(SIGUSR1, &watch->before, NULL);
        atomic_store_explicit(&watch_active, NULL, memory_order_seq_cst);
        while (atomic_load_explicit(&handlers_inside, memory_order_seq_cst) != 0)
            sched_yield(); /* they wait for nothing */
    }
    stop_thread(watch);
    sem_destroy(&watch->asked);
    tsi_free(watch);
}
