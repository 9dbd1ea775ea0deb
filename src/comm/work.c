/* SPDX-License-Identifier: Apache-2.0 */
/* work.c - the life of one operation: start, wait, its event in the ring, its error.
 *
 *   blocking       on the caller's stack:  launch -> complete
 *   asynchronous   from the rank's spares: launch -> linked in flight ... ts_work_wait ->
 *                  complete -> put
 *
 * INV: a ts_work is touched by its rank's thread only, but for what conclude writes before the
 * state DONE is stored; its event ends once, by the thread that concludes it if asynchronous, else
 * by its rank. */
#include <stdarg.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/thread.h"
#include "comm/again.h"
#include "device/moments.h"

/* ---- copies of lists ------------------------------------------------------------------------- */

enum { KEPT_FEW = 4 };

struct tsi_copies {
    tsi_copies *next;
    size_t bytes;
};

void *tsi_copies_take(tsi_comm_rank *comm, size_t bytes)
{
    for (tsi_copies **link = &comm->copies; *link != NULL; link = &(*link)->next) {
        tsi_copies *kept = *link;
        if (kept->bytes < bytes) continue;
        *link = kept->next;
        return kept + 1;
    }
    tsi_copies *kept = tsi_alloc(sizeof *kept + bytes);
    if (kept == NULL) return NULL;
    kept->bytes = bytes;
    return kept + 1;
}

void tsi_copies_put(tsi_comm_rank *comm, void *memory)
{
    int32_t count = 0;
    if (memory == NULL) return;
    tsi_copies *kept = (tsi_copies *)memory - 1, **end = &comm->copies;
    for (; *end != NULL; end = &(*end)->next)
        count++;
    *end = kept; /* the oldest is looked at first, and goes first */
    kept->next = NULL;
    if (count < KEPT_FEW) return;
    kept = comm->copies;
    comm->copies = kept->next;
    tsi_free(kept);
}

/* ---- handles --------------------------------------------------------------------------------- */

ts_work *tsi_work_take(tsi_comm_rank *comm)
{
    ts_work *work = comm->spare;
    if (work != NULL) {
        comm->spare = work->next;
        *work = (ts_work){ .comm = comm };
        return work;
    }
    work = tsi_calloc(1, sizeof *work);
    if (work != NULL)
        work->comm = comm;
    else
        (void)tsi_fail_memory("an operation in flight", sizeof *work);
    return work;
}

static void unlink_work(ts_work *work)
{
    if (!work->linked) return;
    if (work->previous != NULL)
        work->previous->next = work->next;
    else
        work->comm->flight = work->next;
    if (work->next != NULL) work->next->previous = work->previous;
    work->previous = work->next = NULL;
    work->linked = false;
}

TSI_STEP_PATH void tsi_work_link(ts_work *work)
{
    tsi_comm_rank *comm = work->comm;
    TSI_ASSERT(!work->linked && !work->on_stack);
    work->linked = true;
    work->previous = NULL;
    work->next = comm->flight;
    if (comm->flight != NULL) comm->flight->previous = work;
    comm->flight = work;
}

void tsi_work_put(ts_work *work)
{
    while (work->inside != NULL) {
        ts_work *one = work->inside;
        work->inside = one->next;
        one->next = NULL;
        tsi_work_put(one);
    }
    unlink_work(work);
    work->before = NULL;
    tsi_work_absorb(&work->base);
    tsi_free(work->base.error);
    work->base.error = NULL;
    tsi_copies_put(work->comm, work->kept);
    work->kept = NULL;
    if (work->on_stack || work->standing) return;
    if (work->base.group != NULL) ts_group_release(work->base.group);
    work->next = work->comm->spare;
    work->comm->spare = work;
}

void tsi_work_disown(ts_work *work)
{
    TSI_ASSERT(work->standing);
    if (!work->linked) {
        tsi_free(work);
        return;
    }
    tsi_group_retain(work->base.group); /* as any other, which it is from now on */
    work->standing = false;
}

void tsi_work_forget_all(tsi_comm_rank *comm)
{
    while (comm->flight != NULL)
        tsi_work_put(comm->flight);
    while (comm->spare != NULL) {
        ts_work *work = comm->spare;
        comm->spare = work->next;
        tsi_free(work);
    }
    while (comm->copies != NULL) {
        tsi_copies *kept = comm->copies;
        comm->copies = kept->next;
        tsi_free(kept);
    }
}

/* ---- the end of an operation ----------------------------------------------------------------- */

void tsi_work_conclude(tsi_work *work, ts_status status, int64_t culprit, const char *sentence)
{
    work->status = status;
    if (status != TS_OK && work->error == NULL) work->error = tsi_alloc(sizeof *work->error);
    if (status != TS_OK && work->error != NULL) {
        ts_blast blast = status == TS_ERR_LOST ? TS_BLAST_LOST : TS_BLAST_LOCAL;
        ts_error error = { .status = status,
                           .blast = blast,
                           .rank = culprit,
                           .event = (int64_t)work->event,
                           .where = work->print.where };
        tsi_error_set(work->error, &error, "%s", sentence);
    }
    if (work->asynchronous)
        tsi_ring_end(work->rank->ring, work->event, tsi_work_bytes_received(work));
}

/* The state is a word that a waiter may sleep on; wakes go by address and do not read the work,
 * which may be gone as soon as DONE is seen. */
void tsi_work_finish(tsi_work *work, ts_status status, int64_t culprit, const char *format, ...)
{
    char text[TSI_ERROR_TEXT_MAX] = "";
    if (format != NULL) {
        va_list arguments;
        va_start(arguments, format);
        (void)vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
    }
    tsi_work_conclude(work, status, culprit, text);
    tsi_word *word = (tsi_word *)&work->state;
    atomic_store_explicit(&work->state, TSI_WORK_DONE, memory_order_release);
    tsi_wake_all(word);
}

/* Records the error of a finished work on its rank, whose thread this is, or which is closing. */
static ts_status report(ts_work *work, ts_status status)
{
    if (status == TS_OK || work->stale) return status;
    ts_rank *rank = work->base.rank;
    if (work->base.error != NULL) {
        tsi_rank_take_error(rank, work->base.error);
    } else if (rank->error.error.status == TS_OK) {
        tsi_error_record record;
        ts_error error = { .status = status,
                           .blast = TS_BLAST_LOCAL,
                           .rank = rank->index,
                           .event = (int64_t)work->base.event,
                           .where = work->base.print.where };
        tsi_error_set(&record, &error, "%s failed: %s (no memory for more)",
                      tsi_comm_kind_name((tsi_comm_kind)work->base.print.kind),
                      ts_status_meaning(status));
        tsi_rank_take_error(rank, &record);
    }
    return status;
}

static bool is_done(const ts_work *work)
{
    return atomic_load_explicit(&work->base.state, memory_order_acquire) == TSI_WORK_DONE;
}

/* Where there is no memory to tell the queue so, the host waits, and nobody fails for it. */
static void go_behind(const tsi_work *work, tsi_device_event *done)
{
    const tsi_device *device = work->device;
    ts_rank *rank = tsi_rank_current();
    tsi_word nothing = 0;
    tsi_rank_set_current(NULL);
    if (device->event_wait(device, tsi_rank_device_of(work->rank)->queue, done) != TS_OK)
        while (!device->event_done(device, done))
            (void)tsi_wait_word(&nothing, 0, 0, tsi_clock_ns() + 20000);
    tsi_rank_set_current(rank);
}

tsi_event tsi_work_event(const tsi_work *work)
{
    tsi_event event;
    if (tsi_ring_read(work->rank->ring, work->event, &event)) return event;
    return (tsi_event){ .kind_name = "move", .name = "", .where = "" };
}

void tsi_work_moment(tsi_work *work, tsi_stream *stream)
{
    if (!work->timed) return;
    bool begins = work->moved_in == NULL;
    work->moved_in = stream;
    work->moment[begins ? 0 : 1] = tsi_moment_at(work->device, stream);
}

void tsi_work_absorb(tsi_work *work)
{
    const tsi_device *device = work->device;
    if (work->done != NULL) {
        go_behind(work, work->done);
        device->event_destroy(device, work->done);
    }
    if (work->moved_in != NULL) {
        tsi_event event = tsi_work_event(work);
        tsi_moment_add(work->rank, work->moved_in, work->moment, &event);
        work->moved_in = NULL;
        work->moment[0] = work->moment[1] = NULL;
    }
    if (work->ready != NULL) device->event_destroy(device, work->ready);
    work->ready = work->done = NULL;
}

/* Alone in a group: the one part runs here. Only send and recv need somebody to meet. */
static bool runs_alone(const ts_work *work)
{
    tsi_comm_kind kind = (tsi_comm_kind)work->base.print.kind;
    return work->base.team->size == 1 && kind != TSI_COMM_SEND && kind != TSI_COMM_RECV &&
           !work->comm->world->engine->no_data;
}

/* In the rank's own queue, whose order is all there is to keep. */
static ts_status run_alone(ts_work *work)
{
    char sentence[256] = "";
    tsi_work *const one[1] = { &work->base };
    tsi_mover by = { .device = work->base.device };
    if (!by.device->host_readable) by.stream = tsi_rank_device_of(work->base.rank)->queue;
    ts_status status = tsi_move_part(by, one, 1, 0, 1, sentence, sizeof sentence);
    tsi_work_conclude(&work->base, status, work->base.rank->index, sentence);
    atomic_store_explicit(&work->base.state, TSI_WORK_DONE, memory_order_release);
    return status;
}

TSI_STEP_PATH ts_status tsi_work_launch(ts_work *work)
{
    const tsi_comm_world *world = work->comm->world;
    if (runs_alone(work)) return report(work, run_alone(work));
    ts_status status = world->engine->start(world->engine_state, &work->base);
    if (status == TS_OK) return TS_OK;
    if (!is_done(work)) {
        if (work->base.asynchronous) tsi_ring_end(work->base.rank->ring, work->base.event, 0);
        work->base.status = status;
        atomic_store_explicit(&work->base.state, TSI_WORK_DONE, memory_order_release);
    }
    return report(work, status);
}

static ts_status absorb(ts_work *work, ts_status status)
{
    tsi_work_absorb(&work->base);
    return report(work, status);
}

static ts_status complete_one(ts_work *work)
{
    if (is_done(work)) return absorb(work, work->base.status);
    const tsi_comm_world *world = work->comm->world;
    tsi_work *base = &work->base;
    base->deadline_ns = tsi_clock_after_ms(base->timeout_ms); /* until now nobody waited */
    return absorb(work, world->engine->wait(world->engine_state, base));
}

ts_status tsi_work_complete(ts_work *work)
{
    if (!work->batch) return complete_one(work);
    ts_status first = TS_OK;
    for (ts_work *one = work->inside; one != NULL; one = one->next) {
        ts_status status = complete_one(one);
        if (first == TS_OK) first = status;
    }
    return first;
}

/* ---- public ---------------------------------------------------------------------------------- */

static bool all_done(const ts_work *work)
{
    if (!work->batch) return is_done(work);
    for (const ts_work *one = work->inside; one != NULL; one = one->next)
        if (!is_done(one)) return false;
    return true;
}

static ts_status wait_with_event(ts_work *work)
{
    ts_rank *rank = work->comm->rank;
    const ts_work *first = work->batch ? work->inside : work;
    tsi_event event = { .kind = TSI_EVENT_WAIT, .kind_name = "wait", .name = "", .where = "" };
    if (first != NULL) {
        event.sequence = first->base.print.sequence;
        event.group = first->base.print.team;
        event.name =
            work->batch ? "batch" : tsi_comm_kind_name((tsi_comm_kind)first->base.print.kind);
    }
    if (rank->where != NULL) event.where = rank->where;
    uint64_t number = tsi_ring_begin(rank->ring, &event);
    ts_status status = tsi_work_complete(work);
    tsi_ring_end(rank->ring, number, 0);
    return status;
}

void tsi_work_tell(ts_work *work)
{
    ts_rank *rank = work->comm->rank;
    ts_work *one = work->batch ? work->inside : work;
    while (one != NULL) {
        tsi_tell(rank, TSI_NEWS_WAIT, one);
        one = work->batch ? one->next : NULL;
    }
}

static ts_status check_thread(const ts_work *work)
{
    const ts_rank *rank = work->comm->rank;
    if (rank == tsi_rank_current()) return TS_OK;
    return TSI_FAIL(TS_ERR_THREAD, "work: this thread is not attached to rank %lld",
                    (long long)rank->index);
}

static ts_status wait_alone(ts_work *work)
{
    if (TSI_UNLIKELY(tsi_keeps(work->comm->rank))) return tsi_again_wait(work);
    ts_status status = all_done(work) ? tsi_work_complete(work) : wait_with_event(work);
    tsi_work_tell(work);
    tsi_work_put(work);
    return status;
}

void tsi_work_behind(ts_work *work, ts_work *before)
{
    TSI_ASSERT(work->before == NULL && work != before);
    work->before = before;
}

ts_status ts_work_wait(ts_work *work)
{
    if (work == NULL) {
        ts_rank *rank = tsi_rank_current();
        return rank != NULL ? rank->error.error.status : TS_OK;
    }
    TSI_TRY(check_thread(work));
    ts_work *before = work->before;
    work->before = NULL;
    ts_status first = before != NULL ? ts_work_wait(before) : TS_OK;
    ts_status status = wait_alone(work); /* whatever became of the other: this one ends, too */
    return first != TS_OK ? first : status;
}

bool tsi_work_test(ts_work *work)
{
    const tsi_comm_world *world = work->comm->world;
    if (work->before != NULL && !tsi_work_test(work->before)) return false;
    ts_work *one = work->batch ? work->inside : work;
    while (one != NULL) {
        if (!is_done(one) && !world->engine->test(world->engine_state, &one->base)) return false;
        one = work->batch ? one->next : NULL;
    }
    return true;
}

/* Who asks again and again waits, too, from the first look on, and no longer than who waits: from
 * then on a wait is over at once, and says who did not come. */
static void ask_alone(ts_work *work)
{
    const tsi_comm_world *world = work->comm->world;
    tsi_work *base = &work->base;
    int64_t now = tsi_clock_ns();
    if (is_done(work)) return;
    if (work->asked_until_ns == 0) {
        work->asked_until_ns = tsi_clock_after_ms(base->timeout_ms);
    } else if (now >= work->asked_until_ns) {
        base->deadline_ns = now;
        (void)world->engine->wait(world->engine_state, base);
    }
}

/* Are all that are waited for done? */
static bool ask_no_longer(ts_work *work)
{
    bool before = work->before == NULL || ask_no_longer(work->before);
    ts_work *one = work->batch ? work->inside : work;
    while (one != NULL) {
        ask_alone(one);
        one = work->batch ? one->next : NULL;
    }
    return before && all_done(work);
}

int ts_work_test(ts_work *work)
{
    if (work == NULL || check_thread(work) != TS_OK || tsi_work_test(work)) return 1;
    return ask_no_longer(work);
}
