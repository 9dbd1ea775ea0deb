/* SPDX-License-Identifier: Apache-2.0 */
/* streams.c - operations on memory of devices: who would copy enqueues the copies instead.
 *
 *   queue of rank 0   ... ready |................| done of all -> what comes after the wait
 *   queue of rank 1   ...... ready |.............| done of all -> ...
 *   stream of part 0               | copies  ....|
 *   stream of part 1               | copies ..   |
 *
 * Each part of a lane has a stream of its own, each inbox has one. A part runs behind `ready` of
 * every member and behind the operation before it in the lane; all parts are joined, and every
 * member's queue goes on behind all of them, because others read and write its blocks. No host
 * waits for any of it, but where there is no memory for an event, or an operation failed.
 *
 * Where all members share one device there is nothing to divide: who comes last enqueues all of it
 * in the first stream, and there is one event for all members.
 *
 * What fails here is told by the works alone: whose thread it is has nothing to do with it.
 *
 * INV: a stream is posted to by one thread at a time: who claimed the part, or holds the inbox's
 * lock of moves. An event is recorded before anybody is told to wait for it, so streams never wait
 * for each other in a circle. */
#include <stdio.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "comm/threads/threads.h"
#include "device/moments.h"

/* ---- lanes ----------------------------------------------------------------------------------- */

static bool on_device(const tsi_meeting *m)
{
    return atomic_load_explicit(&m->on_device, memory_order_relaxed) != 0;
}

/* Of the member, or of the next one that has one. */
static const tsi_device *device_of(const tsi_lane *lane, const tsi_meeting *m, int64_t member)
{
    int64_t size = lane->hall->team->size, k = 0;
    while (k + 1 < size && m->work[(member + k) % size]->device->host_readable)
        k++;
    return m->work[(member + k) % size]->device;
}

static ts_status mover_open(tsi_mover *mover, const tsi_device *device)
{
    if (mover->stream != NULL) return TS_OK;
    mover->device = device;
    return device->stream_create(device, &mover->stream);
}

/* Its kernels read and write memory of this device, too. */
static ts_status reaches(const tsi_mover *mover, const tsi_device *other)
{
    if (tsi_device_reaches(mover->device, other)) return TS_OK;
    return TSI_FAIL(TS_ERR_MISSING, "comm: %s has no way to memory of %s", mover->device->name,
                    other->name);
}

static ts_status wait_in(const tsi_mover *mover, tsi_device_event *event)
{
    return event != NULL ? mover->device->event_wait(mover->device, mover->stream, event) : TS_OK;
}

static ts_status record(const tsi_mover *mover, tsi_device_event **out)
{
    return mover->device->event_record(mover->device, mover->stream, out);
}

static void drop(const tsi_mover *mover, tsi_device_event **event)
{
    if (*event != NULL) mover->device->event_destroy(mover->device, *event);
    *event = NULL;
}

TSI_STEP_PATH bool tsi_lane_one_stream(const tsi_lane *lane, const tsi_meeting *m)
{
    bool one = on_device(m);
    for (int64_t i = 0; i < lane->hall->team->size && one; i++)
        one = m->work[i]->device == m->work[0]->device;
    return one;
}

/* Parts in other streams than the first run behind what that one has. */
TSI_STEP_PATH void tsi_lane_parted(tsi_lane *lane, const tsi_meeting *m)
{
    const tsi_mover *first = &lane->mover[0];
    if (!on_device(m) || first->stream == NULL) return;
    ts_rank *rank = tsi_rank_current();
    tsi_rank_set_current(NULL);
    drop(first, &lane->last);
    if (record(first, &lane->last) != TS_OK)
        (void)first->device->stream_sync(first->device, first->stream);
    tsi_rank_set_current(rank);
}

static ts_status lane_mover(tsi_lane *lane, const tsi_meeting *m, int64_t part, tsi_mover *out)
{
    tsi_mover *mover = &lane->mover[part];
    TSI_TRY(mover_open(mover, device_of(lane, m, part)));
    for (int64_t i = 0; i < lane->hall->team->size; i++) {
        TSI_TRY(reaches(mover, m->work[i]->device));
        TSI_TRY(wait_in(mover, m->work[i]->ready));
    }
    if (part > 0) TSI_TRY(wait_in(mover, lane->last)); /* the first stream has passed it */
    *out = *mover;
    return TS_OK;
}

/* The operation as the rank's own ring has it. */
static void passed(ts_rank *rank, const tsi_mover *mover, tsi_device_event *mark,
                   const tsi_work *work)
{
    if (mark == NULL) return;
    tsi_event event = tsi_work_event(work);
    tsi_moment_passed(rank, mover->stream, mark, &event);
}

ts_status tsi_lane_move(tsi_lane *lane, const tsi_meeting *m, int64_t part, int64_t parts,
                        char *text, size_t size)
{
    int64_t count = lane->hall->team->size;
    tsi_mover by = { .device = m->work[part]->device };
    if (!on_device(m)) return tsi_move_part(by, m->work, count, part, parts, text, size);
    ts_rank *rank = tsi_rank_current();
    tsi_rank_set_current(NULL);
    (void)snprintf(text, size, "no queue of the device could be used");
    ts_status status = lane_mover(lane, m, part, &by);
    tsi_device_event *mark = status == TS_OK ? tsi_moment_mark(rank, by.stream) : NULL;
    if (status == TS_OK) status = tsi_move_part(by, m->work, count, part, parts, text, size);
    passed(rank, &by, mark, m->work[part]);
    tsi_rank_set_current(rank);
    return status;
}

/* Another one that waits for the moment of the event, which is the latest of the stream. */
static ts_status share(const tsi_mover *mover, tsi_device_event *event, tsi_device_event **out)
{
    const tsi_device *device = mover->device;
    bool shares = event != NULL && device->event_share != NULL;
    *out = shares ? device->event_share(device, event) : NULL;
    return *out != NULL ? TS_OK : record(mover, out);
}

/* The first stream has passed all parts, then everybody gets an event of it. */
static ts_status join(tsi_lane *lane, const tsi_meeting *m, int64_t parts)
{
    const tsi_mover *first = &lane->mover[0];
    for (int64_t p = 1; p < parts; p++) {
        tsi_device_event *end = NULL;
        TSI_TRY(record(&lane->mover[p], &end));
        ts_status status = wait_in(first, end);
        drop(first, &end);
        TSI_TRY(status);
    }
    tsi_device_event *end = NULL;
    for (int64_t i = 0; i < lane->hall->team->size; i++) {
        if (m->work[i]->device->host_readable) continue;
        TSI_TRY(share(first, end, &m->work[i]->done));
        end = m->work[i]->done;
    }
    return TS_OK;
}

/* The host waits until nothing of the lane moves. */
static void come_to_rest(tsi_lane *lane)
{
    for (int64_t p = 0; p < lane->hall->team->size; p++) {
        const tsi_mover *mover = &lane->mover[p];
        if (mover->stream != NULL) (void)mover->device->stream_sync(mover->device, mover->stream);
    }
    if (lane->last != NULL) drop(&lane->mover[0], &lane->last);
}

static bool all_in_order(const tsi_lane *lane, const tsi_meeting *m)
{
    for (int64_t i = 0; i < lane->hall->team->size; i++)
        if (!m->work[i]->in_order) return false;
    return true;
}

void tsi_lane_moved(tsi_lane *lane, const tsi_meeting *m, int64_t parts, bool failed)
{
    if (!on_device(m)) return;
    ts_rank *rank = tsi_rank_current();
    tsi_rank_set_current(NULL);
    bool joined = !failed && all_in_order(lane, m) && join(lane, m, parts) == TS_OK;
    if (!joined) come_to_rest(lane);
    tsi_rank_set_current(rank);
    if (joined) return;
    for (int64_t i = 0; i < lane->hall->team->size; i++)
        if (m->work[i]->done != NULL) drop(&lane->mover[0], &m->work[i]->done);
}

void tsi_lane_movers_end(tsi_lane *lane)
{
    come_to_rest(lane);
    for (int64_t p = 0; p < lane->hall->team->size; p++) {
        tsi_mover *mover = &lane->mover[p];
        if (mover->stream != NULL) mover->device->stream_destroy(mover->device, mover->stream);
        mover->stream = NULL;
    }
}

/* ---- inboxes --------------------------------------------------------------------------------- */

static bool on_host(const tsi_work *work)
{
    return work->device->host_readable;
}

/* One copy behind what both sides had, and the events that both go on behind; `to` may be NULL. */
static ts_status enqueue(const tsi_mover *mover, tsi_work *from, tsi_work *to,
                         const tsi_block *target)
{
    TSI_TRY(reaches(mover, from->device));
    if (to != NULL) TSI_TRY(reaches(mover, to->device));
    TSI_TRY(wait_in(mover, from->ready));
    if (to != NULL) TSI_TRY(wait_in(mover, to->ready));
    TSI_TRY(tsi_move_stream(*mover, target, &from->in));
    if (!on_host(from)) TSI_TRY(record(mover, &from->done));
    return to != NULL && !on_host(to) ? share(mover, from->done, &to->done) : TS_OK;
}

ts_status tsi_inbox_move(tsi_inbox *box, tsi_work *from, tsi_work *to, const tsi_block *target)
{
    if (on_host(from) && (to == NULL || on_host(to)))
        return tsi_move_stream((tsi_mover){ .device = from->device }, target, &from->in);
    ts_rank *rank = tsi_rank_current();
    tsi_rank_set_current(NULL);
    pthread_mutex_lock(&box->moving);
    ts_status status = mover_open(&box->mover, on_host(from) ? to->device : from->device);
    tsi_device_event *mark = status == TS_OK ? tsi_moment_mark(rank, box->mover.stream) : NULL;
    if (status == TS_OK) status = enqueue(&box->mover, from, to, target);
    passed(rank, &box->mover, mark, from);
    bool in_order = !on_host(from) && (to == NULL || (to->in_order && !on_host(to)));
    if (box->mover.stream != NULL && (status != TS_OK || !in_order)) {
        (void)box->mover.device->stream_sync(box->mover.device, box->mover.stream);
        drop(&box->mover, &from->done);
        if (to != NULL) drop(&box->mover, &to->done);
    }
    pthread_mutex_unlock(&box->moving);
    tsi_rank_set_current(rank);
    return status;
}

void tsi_inbox_rest(tsi_inbox *box)
{
    const tsi_mover *mover = &box->mover;
    if (mover->stream != NULL) (void)mover->device->stream_sync(mover->device, mover->stream);
}

void tsi_inbox_mover_end(tsi_inbox *box)
{
    if (box->mover.stream != NULL)
        box->mover.device->stream_destroy(box->mover.device, box->mover.stream);
    box->mover.stream = NULL;
}
