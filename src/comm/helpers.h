/* SPDX-License-Identifier: Apache-2.0 */
/* helpers.h - the threads of a process that progress asynchronous operations of all its ranks.
 *
 * They are started on the first asynchronous use, at most as many as cores, and sleep until kicked.
 * An engine that reads memory directly is progressed by several at once; any other by one. A
 * process that cannot start them still works: every wait progresses what it needs. */
#ifndef TSI_COMM_HELPERS_H
#define TSI_COMM_HELPERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/rank.h"
#include "base/thread.h"
#include "comm/engine.h"

enum { TSI_HELPERS_MAX = 256 };

typedef struct tsi_helpers {
    const tsi_engine *engine;
    void *engine_state;
    pthread_mutex_t lock; /* guards starting and stopping */
    pthread_t *thread;
    int32_t count, limit;
    _Atomic bool running, stopping;
    tsi_word word;             /* changes with every kick */
    _Atomic uint32_t sleeping; /* helpers in the kernel */
    _Atomic uint32_t wanted;   /* of those, to be woken by who wakes up next */
} tsi_helpers;

ts_status tsi_helpers_init(tsi_helpers *helpers, const tsi_engine *engine, void *engine_state,
                           int64_t local_count);
ts_status tsi_helpers_start(tsi_helpers *helpers); /* repeatable */
void tsi_helpers_stop(tsi_helpers *helpers);       /* repeatable */
void tsi_helpers_release(tsi_helpers *helpers);
/* There is something to do for up to `count` of them. */
void tsi_helpers_kick(tsi_helpers *helpers, int64_t count);
/* The same, for engines, which know their world only. */
void tsi_comm_kick(ts_world *world, int64_t count);

#endif
