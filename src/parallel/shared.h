/* SPDX-License-Identifier: Apache-2.0 */
/* shared.h - the storages of a world that ranks of one process share (shared.c): each has a seat in
 * it. */
#ifndef TSI_PARALLEL_SHARED_H
#define TSI_PARALLEL_SHARED_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/thread.h"
#include "parallel/unit.h"

typedef struct tsi_seat {                       /* of a rank that has a slice */
    _Alignas(TSI_CACHE_LINE) tsi_word released; /* times that it let go of the unit */
    pthread_mutex_t lock;
    tsi_device_event *passed; /* guarded by it: its queue when it let go last; NULL: it has none */
} tsi_seat;

struct tsi_shared {
    struct tsi_shared *next;
    struct tsi_house *house;
    uint64_t group;
    int64_t serial;     /* with `group`: which it is, agreed by its members */
    int64_t references; /* guarded by the house's lock */
    const tsi_device *device;
    void *data;
    size_t bytes;
    tsi_seat *seat; /* by member */
    int64_t seats;
    _Atomic int32_t waiting;
};

/* The storage that the members agreed on, made by the first who comes; one reference more. NULL:
 * recorded. */
tsi_shared *tsi_shared_take(ts_rank *rank, uint64_t group, int64_t serial, size_t bytes,
                            int64_t seats);
void tsi_shared_retain(tsi_shared *s);
void tsi_shared_release(tsi_shared *s); /* the last one frees it */

#endif
