/* SPDX-License-Identifier: Apache-2.0 */
/* thread.h - threads with a chosen stack, and waiting for a word to change.
 *
 * tsi_wait_word is the only way a thread waits for another: it spins for at most spin_ns, then
 * sleeps in the kernel (futex on Linux, a hashed condition variable elsewhere) until the word
 * differs, somebody wakes it, or the deadline passes. Spurious returns happen; callers loop over
 * their own condition. */
#ifndef TSI_BASE_THREAD_H
#define TSI_BASE_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "tessera/status.h"

typedef void *(*tsi_thread_fn)(void *argument);
/* stack_bytes 0: 512 KiB. Signals are blocked in the new thread. */
ts_status tsi_thread_start(pthread_t *thread, tsi_thread_fn fn, void *argument, size_t stack_bytes);
/* The calling thread from here on gets a tenth of a core that others want too (10 steps nicer),
 * where the system has priorities of threads. */
void tsi_thread_give_way(void);
/* Cores this process may use: affinity, cut by the cgroup's quota (rounded up). At least 1. Found
 * on the first call and kept. */
int tsi_core_count(void);
/* The quota in cores of the cgroup that the text of /proc/self/cgroup names and of its parents,
 * below the mount point `root` ("/sys/fs/cgroup"), version 2 or 1, rounded up; 0: no quota. */
int tsi_cgroup_cores(const char *root, const char *self);

typedef _Atomic uint32_t tsi_word;
/* Waits while *word == old. deadline_ns: absolute on tsi_clock_ns, INT64_MAX: none. False:
 * deadline. */
bool tsi_wait_word(tsi_word *word, uint32_t old, int64_t spin_ns, int64_t deadline_ns);
void tsi_wake_all(tsi_word *word);
void tsi_wake_one(tsi_word *word);

#endif
