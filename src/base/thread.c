/* SPDX-License-Identifier: Apache-2.0 */
/* thread.c - starting threads, and waiting for a word.
 *
 * A wake-up must be cheap when nobody sleeps, because most collectives end while their peers still
 * spin. So sleepers announce themselves in a small table hashed by the word's address, and a waker
 * whose entry is zero makes no system call:
 *
 *   sleeper:   sleepers++ ; fence ; *word == old ? sleep
 *   waker:     *word = new ; fence ; sleepers ? wake
 *
 * One of the two sees the other: either the sleeper finds the word changed, or the waker finds the
 * sleeper. Two words that share an entry cost a superfluous system call, nothing else. */
#include "base/thread.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#endif

#include "base/clock.h"
#include "base/compiler.h"
#include "base/error.h"

enum { STACK_DEFAULT = 512 * 1024, SLEEPER_SLOTS = 256, SPINS_PER_CLOCK = 16 };

ts_status tsi_thread_start(pthread_t *thread, tsi_thread_fn fn, void *argument, size_t stack_bytes)
{
    size_t stack = stack_bytes != 0 ? stack_bytes : STACK_DEFAULT;
    if (TSI_SANITIZED) stack *= 4; /* instrumented frames are several times as large */
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    stack = (stack + page - 1) / page * page;
    if (stack < (size_t)PTHREAD_STACK_MIN) stack = (size_t)PTHREAD_STACK_MIN;
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error != 0) return TSI_FAIL(TS_ERR_MEMORY, "thread attributes: %s", strerror(error));
    error = pthread_attr_setstacksize(&attributes, stack);
    /* Signals belong to the host program's threads. Those a fault raises stay open: a blocked one
     * would end the process without the handler of a debugger or sanitizer. */
    sigset_t blocked, before;
    sigfillset(&blocked);
    static const int fault[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGPROF };
    for (size_t i = 0; i < TSI_COUNT_OF(fault); i++)
        sigdelset(&blocked, fault[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    if (error == 0) error = pthread_create(thread, &attributes, fn, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error == 0) return TS_OK;
    return TSI_FAIL(TS_ERR_MEMORY, "could not start a thread with a stack of %zu bytes: %s", stack,
                    strerror(error));
}

void tsi_thread_give_way(void)
{
#ifdef __linux__ /* "process 0" is the calling thread alone, unlike what POSIX says */
    errno = 0;
    int priority = getpriority(PRIO_PROCESS, 0);
    if (errno == 0) (void)setpriority(PRIO_PROCESS, 0, priority + 10);
#endif
}

/* True as soon as the word differs from old; false after spin_ns. */
static bool spin(tsi_word *word, uint32_t old, int64_t spin_ns)
{
    if (spin_ns <= 0) return false;
    int64_t until = tsi_clock_ns() + spin_ns;
    do {
        for (int i = 0; i < SPINS_PER_CLOCK; i++) {
            TSI_CPU_RELAX();
            if (atomic_load_explicit(word, memory_order_acquire) != old) return true;
        }
    } while (tsi_clock_ns() < until);
    return false;
}

static size_t slot_of(const tsi_word *word)
{
    return (size_t)(((uintptr_t)word * 0x9E3779B97F4A7C15u) >> 56) % SLEEPER_SLOTS;
}

#ifdef __linux__

static _Atomic uint32_t sleepers[SLEEPER_SLOTS];

/* False: the deadline passed. */
static bool sleep_on(tsi_word *word, uint32_t old, int64_t deadline_ns)
{
    struct timespec at = { .tv_sec = (time_t)(deadline_ns / 1000000000),
                           .tv_nsec = (long)(deadline_ns % 1000000000) };
    _Atomic uint32_t *slot = &sleepers[slot_of(word)];
    atomic_fetch_add_explicit(slot, 1, memory_order_seq_cst);
    /* The kernel compares the word after a full barrier of its own. WAIT_BITSET takes an absolute
     * time on the monotonic clock. */
    long result = syscall(SYS_futex, word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, old,
                          deadline_ns == INT64_MAX ? NULL : &at, NULL, FUTEX_BITSET_MATCH_ANY);
    bool late = result != 0 && errno == ETIMEDOUT;
    atomic_fetch_sub_explicit(slot, 1, memory_order_relaxed);
    return !late;
}

static void wake(tsi_word *word, int count)
{
#if !TSI_SANITIZED /* thread sanitizers do not model fences, so there every wake is a call */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&sleepers[slot_of(word)], memory_order_relaxed) == 0) return;
#endif
    (void)syscall(SYS_futex, word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, count, NULL, NULL, 0);
}

#else /* a condition variable per slot; everybody of the slot wakes and looks at his word */

typedef struct bed {
    pthread_mutex_t lock;
    pthread_cond_t changed;
} bed;
static bed beds[SLEEPER_SLOTS];
static pthread_once_t beds_made = PTHREAD_ONCE_INIT;

static void make_beds(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    for (int i = 0; i < SLEEPER_SLOTS; i++) {
        pthread_mutex_init(&beds[i].lock, NULL);
        pthread_cond_init(&beds[i].changed, &attributes);
    }
    pthread_condattr_destroy(&attributes);
}

static bool sleep_on(tsi_word *word, uint32_t old, int64_t deadline_ns)
{
    pthread_once(&beds_made, make_beds);
    bed *b = &beds[slot_of(word)];
    struct timespec at = { .tv_sec = (time_t)(deadline_ns / 1000000000),
                           .tv_nsec = (long)(deadline_ns % 1000000000) };
    int error = 0;
    pthread_mutex_lock(&b->lock);
    if (atomic_load_explicit(word, memory_order_acquire) == old) {
        if (deadline_ns == INT64_MAX)
            error = pthread_cond_wait(&b->changed, &b->lock);
        else
            error = pthread_cond_timedwait(&b->changed, &b->lock, &at);
    }
    pthread_mutex_unlock(&b->lock);
    return error != ETIMEDOUT;
}

static void wake(tsi_word *word, int count)
{
    (void)count;
    pthread_once(&beds_made, make_beds);
    bed *b = &beds[slot_of(word)];
    pthread_mutex_lock(&b->lock);
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

#endif

bool tsi_wait_word(tsi_word *word, uint32_t old, int64_t spin_ns, int64_t deadline_ns)
{
    if (atomic_load_explicit(word, memory_order_acquire) != old) return true;
    if (spin(word, old, spin_ns)) return true;
    bool in_time = sleep_on(word, old, deadline_ns);
    /* The acquire makes visible what the waker wrote before the word. */
    return atomic_load_explicit(word, memory_order_acquire) != old || in_time;
}

void tsi_wake_all(tsi_word *word)
{
    wake(word, INT_MAX);
}

void tsi_wake_one(tsi_word *word)
{
    wake(word, 1);
}
