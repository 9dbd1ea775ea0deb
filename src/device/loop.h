/* SPDX-License-Identifier: Apache-2.0 */
/* loop.h - one loop over independent pieces, that threads join and leave (parallel.c, guests.c).
 *
 * A loop is open while its state word has the top bit; the low bits count those inside beside the
 * thread that opened it. One joins by a compare-and-swap on the open state, so that who wakes too
 * late finds the loop closed and nobody waits for it. Who opened it closes it when no piece is
 * left, and goes on when the last one has gone out.
 *
 *   left   pieces that nobody has taken; less than 0 when the last ones are gone
 *   state  OPEN | GUESTS | CLAIMED | threads inside; 0: nobody has it
 *
 * INV: fn, context, count and chunk are written only by who has claimed the loop, while it is
 * closed and empty, and read by those inside alone. It stays claimed until the last one has gone
 * out, so that who waits for that never sees another one's loop. */
#ifndef TSI_DEVICE_LOOP_H
#define TSI_DEVICE_LOOP_H

#include "base/compiler.h"
#include "base/thread.h"
#include "device/parallel.h"

enum { TSI_LOOP_SPIN_NS = 20000 };
#define TSI_LOOP_OPEN 0x80000000u    /* to threads of the rank */
#define TSI_LOOP_GUESTS 0x40000000u  /* to those of others, too */
#define TSI_LOOP_CLAIMED 0x20000000u /* by the thread that opens and closes it */

typedef struct tsi_loop {
    _Alignas(TSI_CACHE_LINE) tsi_word state;
    int64_t count, chunk;
    tsi_parallel_fn fn;
    void *context;
    _Alignas(TSI_CACHE_LINE) _Atomic int64_t left;
} tsi_loop;

/* Of a loop that nobody else has; `to` is OPEN, or that and GUESTS. Who looks for one before it
 * sleeps, and is looked for behind this, sees it or is seen (guests.c). */
static inline void tsi_loop_open(tsi_loop *loop, uint32_t to, int64_t count, int64_t chunk,
                                 tsi_parallel_fn fn, void *context)
{
    loop->fn = fn;
    loop->context = context;
    loop->count = count;
    loop->chunk = chunk;
    atomic_store_explicit(&loop->left, count, memory_order_relaxed);
    atomic_store_explicit(&loop->state, to | TSI_LOOP_CLAIMED, memory_order_seq_cst);
}

/* Pieces that a guest who joins now may find. */
static inline int64_t tsi_loop_left(const tsi_loop *loop)
{
    if (!(atomic_load_explicit(&loop->state, memory_order_seq_cst) & TSI_LOOP_GUESTS)) return 0;
    return atomic_load_explicit(&loop->left, memory_order_relaxed);
}

/* Runs the next pieces that nobody has; false: there are none left. */
static inline bool tsi_loop_take(tsi_loop *loop, int32_t worker)
{
    int64_t left = atomic_fetch_sub_explicit(&loop->left, loop->chunk, memory_order_relaxed);
    if (left <= 0) return false;
    int64_t begin = loop->count - left, end = begin + (left < loop->chunk ? left : loop->chunk);
    loop->fn(loop->context, begin, end, worker);
    return true;
}

/* As a thread of the rank (OPEN) or as a guest (GUESTS); false: it is not open. */
static inline bool tsi_loop_join(tsi_loop *loop, uint32_t as)
{
    uint32_t state = atomic_load_explicit(&loop->state, memory_order_relaxed);
    while (state & as) {
        if (atomic_compare_exchange_weak_explicit(&loop->state, &state, state + 1,
                                                  memory_order_acquire, memory_order_relaxed))
            return true;
    }
    return false;
}

static inline void tsi_loop_leave(tsi_loop *loop)
{
    uint32_t before = atomic_fetch_sub_explicit(&loop->state, 1, memory_order_release);
    if (before == (TSI_LOOP_CLAIMED | 1)) tsi_wake_one(&loop->state); /* closed, and the last one */
}

static inline void tsi_loop_close(tsi_loop *loop)
{
    const uint32_t open = TSI_LOOP_OPEN | TSI_LOOP_GUESTS;
    uint32_t state = atomic_fetch_and_explicit(&loop->state, ~open, memory_order_acquire) & ~open;
    while (state != TSI_LOOP_CLAIMED) {
        (void)tsi_wait_word(&loop->state, state, TSI_LOOP_SPIN_NS, INT64_MAX);
        state = atomic_load_explicit(&loop->state, memory_order_acquire);
    }
    atomic_store_explicit(&loop->state, 0, memory_order_release);
}

#endif
