/* SPDX-License-Identifier: Apache-2.0 */
/* moments.c - see moments.h. */
#include "device/moments.h"

#include "base/alloc.h"
#include "base/clock.h"

/* Marks in flight: a host that is further ahead waits for the oldest. Times of a device lose digits
 * as they grow, so that those of long traces are taken from a later mark. */
enum { PAIRS = 1024, ANCHOR_US = 1000000 };

typedef struct pair {
    tsi_device_event *begin, *end;
    tsi_event event;
} pair;

typedef struct tsi_moments {
    const tsi_device *device;
    tsi_stream *queue[TSI_MOMENTS_QUEUES];
    int32_t queue_count, users;
    tsi_device_event *anchor;
    int64_t anchor_ns; /* of the host */
    int64_t first, count;
    pair pair[PAIRS]; /* from first on, around the end */
} tsi_moments;

/* No memory for a mark fails no rank. */
tsi_device_event *tsi_moment_at(const tsi_device *device, tsi_stream *stream)
{
    tsi_device_event *event = NULL;
    ts_rank *rank = tsi_rank_current();
    tsi_rank_set_current(NULL);
    if (device->event_mark(device, stream, &event) != TS_OK) event = NULL;
    tsi_rank_set_current(rank);
    return event;
}

static void drop(const tsi_moments *m, tsi_device_event *event)
{
    if (event) m->device->event_destroy(m->device, event);
}

/* Of a mark that has passed; 0: not known. */
static int64_t time_of(const tsi_moments *m, tsi_device_event *event, double *us)
{
    *us = 0;
    if (m->device->event_time(m->device, m->anchor, event, us) != TS_OK) return 0;
    return m->anchor_ns + (int64_t)(*us * 1e3);
}

/* The oldest goes to the ring. */
static void take_oldest(ts_rank *rank, tsi_moments *m)
{
    pair *p = &m->pair[m->first % PAIRS];
    double begin_us, end_us;
    ts_rank *current = tsi_rank_current();
    tsi_rank_set_current(NULL);
    (void)m->device->event_wait(m->device, NULL, p->end); /* the host waits */
    p->event.begin_ns = time_of(m, p->begin, &begin_us);
    p->event.end_ns = time_of(m, p->end, &end_us);
    tsi_rank_set_current(current);
    if (p->event.begin_ns > 0 && p->event.end_ns >= p->event.begin_ns)
        tsi_ring_add(rank->ring, &p->event);
    drop(m, p->begin);
    if (end_us > ANCHOR_US) {
        drop(m, m->anchor);
        m->anchor = p->end;
        m->anchor_ns = p->event.end_ns;
    } else {
        drop(m, p->end);
    }
    m->first++;
    m->count--;
}

/* The queue's number among those that are marked; -1: one too many. */
static int32_t number_of(tsi_moments *m, tsi_stream *stream)
{
    int32_t i = 0;
    while (i < m->queue_count && m->queue[i] != stream)
        i++;
    if (i == TSI_MOMENTS_QUEUES) return -1;
    if (i == m->queue_count) m->queue[m->queue_count++] = stream;
    return i;
}

ts_status tsi_moments_begin(ts_rank *rank)
{
    const tsi_rank_device *mine = tsi_rank_device_of(rank);
    if (!mine) return ts_rank_status(rank);
    const tsi_device *device = mine->device;
    if (rank->moments) rank->moments->users++;
    if (rank->moments || !mine->queue || !device->event_mark || !device->event_time) return TS_OK;
    TSI_TRY(tsi_rank_device_sync(rank)); /* the mark passes at once */
    tsi_moments *m = tsi_calloc(1, sizeof *m);
    if (!m) return tsi_fail_memory("the times of a queue", sizeof *m);
    m->device = device;
    m->users = 1;
    m->anchor = tsi_moment_at(device, mine->queue);
    ts_status status = m->anchor ? tsi_rank_device_sync(rank) : TS_OK;
    m->anchor_ns = tsi_clock_ns();
    (void)number_of(m, mine->queue);
    if (m->anchor && status == TS_OK) {
        rank->moments = m;
        return TS_OK;
    }
    drop(m, m->anchor);
    tsi_free(m);
    return status;
}

void tsi_moments_settle(ts_rank *rank)
{
    tsi_moments *m = rank->moments;
    while (m && m->count > 0)
        take_oldest(rank, m);
}

void tsi_moments_end(ts_rank *rank)
{
    tsi_moments *m = rank->moments;
    if (!m || --m->users > 0) return;
    tsi_moments_settle(rank);
    drop(m, m->anchor);
    rank->moments = NULL;
    tsi_free(m);
}

tsi_device_event *tsi_moment_mark(ts_rank *rank, tsi_stream *stream)
{
    tsi_moments *m = rank ? rank->moments : NULL;
    if (!m || !stream || number_of(m, stream) < 0) return NULL;
    if (m->count == PAIRS) take_oldest(rank, m);
    return tsi_moment_at(m->device, stream);
}

void tsi_moment_passed(ts_rank *rank, tsi_stream *stream, tsi_device_event *begin,
                       const tsi_event *event)
{
    if (!begin) return;
    tsi_device_event *const both[2] = { begin, tsi_moment_at(rank->moments->device, stream) };
    tsi_moment_add(rank, stream, both, event);
}

void tsi_moment_add(ts_rank *rank, tsi_stream *stream, tsi_device_event *const both[2],
                    const tsi_event *event)
{
    tsi_moments *m = rank->moments;
    int32_t number = m ? number_of(m, stream) : -1;
    if (number < 0 || !both[0] || !both[1]) {
        const tsi_device *device = tsi_rank_device_of(rank)->device;
        for (int i = 0; i < 2; i++)
            if (both[i]) device->event_destroy(device, both[i]);
        return;
    }
    if (m->count == PAIRS) take_oldest(rank, m); /* work inside of this was marked */
    pair *p = &m->pair[(m->first + m->count++) % PAIRS];
    *p = (pair){ both[0], both[1], *event };
    p->event.kind = TSI_EVENT_DEVICE;
    p->event.queue = (uint32_t)number;
}
