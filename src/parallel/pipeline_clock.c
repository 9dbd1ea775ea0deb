/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_clock.c - when the cells of a step began and ended: by the host's clock where the host
 * computes; on a device that measures events, by those in the rank's queue. They are read when
 * somebody asks, so that a step waits for none of them.
 *
 * INV: what a step marked has events until it is read, and then none. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/keep.h"
#include "device/device.h"
#include "parallel/pipeline.h"

struct tsi_pipeline_clock {
    const tsi_device *device;
    int64_t count;
    tsi_device_event *origin, *event[]; /* [count]: of begin, then of end */
};

static void forget(struct tsi_pipeline_clock *clock)
{
    if (clock->origin) clock->device->event_destroy(clock->device, clock->origin);
    for (int64_t i = 0; i < clock->count; i++)
        if (clock->event[i]) clock->device->event_destroy(clock->device, clock->event[i]);
    clock->origin = NULL;
    memset(clock->event, 0, (size_t)clock->count * sizeof *clock->event);
}

/* Without memory for it the host's times must do. */
static struct tsi_pipeline_clock *made(ts_pipeline *p, const tsi_device *device)
{
    int64_t count = 2 * (p->end - p->begin);
    size_t bytes = (size_t)count * sizeof(tsi_device_event *);
    if (!p->clock) p->clock = tsi_calloc(1, sizeof *p->clock + bytes);
    if (!p->clock) return NULL;
    p->clock->device = device;
    p->clock->count = count;
    return p->clock;
}

void tsi_pipeline_clock_start(ts_pipeline *p)
{
    const tsi_rank_device *mine = tsi_rank_device_of(p->rank);
    p->started_ns = tsi_clock_ns();
    if (p->clock) forget(p->clock);
    /* The work of a step that is recorded runs again without these. */
    if (!mine || mine->device->host_readable || !mine->device->event_time || tsi_keeps(p->rank))
        return;
    struct tsi_pipeline_clock *clock = made(p, mine->device);
    if (clock) (void)mine->device->event_record(mine->device, mine->queue, &clock->origin);
}

void tsi_pipeline_mark(ts_pipeline *p, double *time)
{
    *time = (double)(tsi_clock_ns() - p->started_ns) * 1e-9;
    if (!p->clock || !p->clock->origin) return;
    const tsi_rank_device *mine = tsi_rank_device_of(p->rank);
    tsi_device_event **event = &p->clock->event[time - p->begin];
    if (*event) mine->device->event_destroy(mine->device, *event);
    (void)mine->device->event_record(mine->device, mine->queue, event);
}

void tsi_pipeline_clock_read(const ts_pipeline *p)
{
    struct tsi_pipeline_clock *clock = p->clock;
    if (!clock || !clock->origin) return;
    bool passed = tsi_rank_device_sync(p->rank) == TS_OK;
    for (int64_t i = 0; passed && i < clock->count; i++) {
        double us = 0;
        if (clock->event[i] &&
            clock->device->event_time(clock->device, clock->origin, clock->event[i], &us) == TS_OK)
            p->begin[i] = us * 1e-6;
    }
    forget(clock);
}

void tsi_pipeline_clock_release(ts_pipeline *p)
{
    if (p->clock) forget(p->clock);
    tsi_free(p->clock);
}
