/* SPDX-License-Identifier: Apache-2.0 */
/* guests.h - ranks of a process that wait compute for ranks that are late.
 *
 * Ranks that do alike are never done together: caches, other programs and the machine's neighbours
 * see to that, and who is done first waits for the others. A kernel whose pieces need nothing of
 * the rank but memory opens them; a rank that waits is a guest there: it takes a piece at a time,
 * until what it waits for has come or nothing is left. Who owns a piece is open, what a piece is is
 * not (parallel.h), so bits do not depend on guests; threads of all ranks of a process are to have
 * the same floating-point environment for that.
 *
 * Only in worlds of the host's memory where every thread of every rank has a core of its own;
 * TESSERA_GUESTS says otherwise. Else, and in a world that was not prepared, loops are run by those
 * who open them, and waits are waits. */
#ifndef TSI_DEVICE_GUESTS_H
#define TSI_DEVICE_GUESTS_H

#include "base/thread.h"
#include "device/loop.h"
#include "device/parallel.h"

/* Before ranks begin. Repeatable. */
ts_status tsi_guests_prepare(ts_world *world);

/* Runs fn for 0 .. count-1, on the calling thread, which is that `worker` of the rank's loops, and
 * on guests, whose worker is TSI_GUEST: they bring their own scratch. Returns when all are done. A
 * piece is what a guest may come too late by: some tenths of a millisecond. What all pieces take
 * should be worth waking somebody for. (All threads of a rank with guests: tsi_parallel_for_all.)
 */
enum { TSI_GUEST = -1 };
void tsi_guests_loop(ts_rank *rank, int32_t worker, int64_t count, tsi_parallel_fn fn,
                     void *context);

/* For parallel.c: the loop that all threads of the rank join, where guests may come, else NULL; and
 * its way from opening it to them to closing it. */
tsi_loop *tsi_guests_loop_of(ts_rank *rank);
void tsi_guests_open(ts_rank *rank, tsi_loop *loop, int64_t count, int64_t chunk,
                     tsi_parallel_fn fn, void *context);
void tsi_guests_close(ts_rank *rank, tsi_loop *loop);

/* Waits while *word == old and not is_over(context), and is a guest meanwhile; false: the deadline
 * passed. As with tsi_wait_word, callers loop over their own condition; without is_over who calls a
 * guest ends the wait, too, and with it whoever changes the word says why before. On the rank's
 * thread. */
typedef struct tsi_guest_wait {
    tsi_word *word;
    uint32_t old;
    int64_t deadline_ns;
    bool (*is_over)(const void *context); /* on any thread of the rank */
    const void *context;
} tsi_guest_wait;
bool tsi_wait_as_guest(ts_rank *rank, const tsi_guest_wait *wait);

#endif
