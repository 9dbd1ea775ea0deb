/* SPDX-License-Identifier: Apache-2.0 */
/* parallel.h - the threads of one rank: a loop over independent pieces, run by all of them.
 *
 * A rank has cores / (ranks of this machine) threads, its own included, so that the process never
 * computes with more threads than it has cores; TESSERA_THREADS or tsi_parallel_limit say
 * otherwise. Ranks that wait may compute for others (guests.h). Helpers are started on first use,
 * spin for at most 20 us after a loop, then sleep.
 *
 * INV: who runs a piece is open, what a piece is is not. A function whose pieces do not depend on
 * each other gives the same bits with any number of threads; a reduction therefore cuts its input
 * by sizes alone and folds the parts in their order. */
#ifndef TSI_DEVICE_PARALLEL_H
#define TSI_DEVICE_PARALLEL_H

#include <stdint.h>

#include "base/rank.h"

/* Runs pieces begin .. end-1. `worker` is below tsi_parallel_threads of the rank; no two calls at
 * the same time have the same one, so that it may index scratch memory. In loops that guests may
 * come to it is TSI_GUEST for them. */
typedef void (*tsi_parallel_fn)(void *context, int64_t begin, int64_t end, int32_t worker);

/* Runs fn over 0 .. count-1 in ranges of at least `grain` pieces (but the last), and returns when
 * all are done. On the rank's thread, or that of its queue; rank NULL, a loop while another one
 * runs and a single range run at once on the calling thread. Nothing is run while the rank's kernel
 * is (tsi_dry). */
void tsi_parallel_for(ts_rank *rank, int64_t count, int64_t grain, tsi_parallel_fn fn,
                      void *context);
/* The same, and ranks of the process that wait come as guests (guests.h): they take `grain` pieces
 * at a time, as worker TSI_GUEST. */
void tsi_parallel_for_all(ts_rank *rank, int64_t count, int64_t grain, tsi_parallel_fn fn,
                          void *context);
int32_t tsi_parallel_threads(ts_rank *rank); /* at least 1 */
int32_t tsi_parallel_default(int64_t ranks); /* of each of so many ranks of a process */
/* From the next loop on; 0: the default. On the rank's thread. */
void tsi_parallel_limit(ts_rank *rank, int32_t threads);

#endif
