/* SPDX-License-Identifier: Apache-2.0 */
/* ring.h - the event ring: what a rank did, always on, fixed size, under 100 ns an event.
 *
 * One writer (the rank's thread or the helper that runs its operation, never both at once on one
 * entry), any number of readers. An entry is claimed by an atomic counter, filled, and published by
 * its `number`; a reader that finds the number changed drops the entry. Names must outlive the
 * ring: string literals, or tsi_ring_name which keeps a copy once. */
#ifndef TSI_BASE_RING_H
#define TSI_BASE_RING_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "tessera/status.h"

typedef enum tsi_event_kind {
    TSI_EVENT_NONE,
    TSI_EVENT_OP,
    TSI_EVENT_COMM,
    TSI_EVENT_WAIT,
    TSI_EVENT_ALLOC,
    TSI_EVENT_MARK,
    TSI_EVENT_DEVICE /* work of a device: its times are those of a queue, not of the thread */
} tsi_event_kind;

typedef struct tsi_event {
    uint64_t number;          /* 1, 2, 3, ... in the order of begin */
    int64_t begin_ns, end_ns; /* end_ns 0: still going on */
    int64_t bytes;            /* COMM: received; ALLOC: signed change */
    const char *kind_name;    /* "all_gather", "matmul" */
    const char *name;         /* fully qualified name or ""; */
    const char *where;        /* file:line or "" */
    uint32_t kind;            /* tsi_event_kind */
    uint32_t queue;           /* 0 the rank's own, 1.. channels: a track of the trace; of a DEVICE
                                 the queue's number among those that the rank uses */
    uint64_t sequence;        /* COMM: number in its channel */
    uint64_t group;           /* COMM: hash of the group */
} tsi_event;

typedef struct tsi_ring tsi_ring;
tsi_ring *tsi_ring_create(int64_t capacity); /* rounded up to a power of two; NULL: recorded */
void tsi_ring_destroy(tsi_ring *ring);
/* Opens an event and returns its number; all fields but number and times come from `event`. */
uint64_t tsi_ring_begin(tsi_ring *ring, const tsi_event *event);
void tsi_ring_end(tsi_ring *ring, uint64_t number, int64_t bytes);
/* A finished event, with its times from `event`. */
void tsi_ring_add(tsi_ring *ring, const tsi_event *event);
/* A finished event of no duration. */
void tsi_ring_mark(tsi_ring *ring, const tsi_event *event);
/* A kept copy, the same for equal texts; "?" if it cannot be kept. NULL gives "". */
const char *tsi_ring_name(tsi_ring *ring, const char *text);
uint64_t tsi_ring_last(const tsi_ring *ring); /* number of the latest event; 0: none */
/* A consistent copy of event `number`; false if it was overwritten or never existed. */
int tsi_ring_read(const tsi_ring *ring, uint64_t number, tsi_event *out);
int64_t tsi_ring_capacity(const tsi_ring *ring);

#endif
