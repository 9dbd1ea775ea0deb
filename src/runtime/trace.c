/* SPDX-License-Identifier: Apache-2.0 */
/* trace.c - the event rings as a Chrome trace, which Perfetto and chrome://tracing open.
 *
 *   pid = rank, tid = queue (0 the rank's own, then its channels, then point to point, then queues
 *   of its device), times in us
 *   operator, collective, wait: "X" (complete), or "B" (begin) if it has not ended
 *   allocation: "C" (counter) with the running sum of what the ring still holds
 *   mark: "i" (instant)
 *   work of a device: "X", by the device's own times
 *
 * Each rank's part is built in memory and written at once, so memory is bounded by one ring. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "device/moments.h"
#include "runtime/runtime.h"
#include "tessera/comm.h"
#include "tessera/event.h"

enum { QUEUES_MAX = 64, DEVICE_FIRST = TS_CHANNEL_COUNT + 2 };

typedef struct writer {
    tsi_text text;
    int64_t rank;
    int64_t allocated;      /* running sum of allocation events */
    uint64_t queues_named;  /* bit per queue whose name was written */
    int64_t from_ns, to_ns; /* events that began then */
} writer;

static const char *category_of(tsi_event_kind kind)
{
    switch (kind) {
    case TSI_EVENT_NONE:
        return "none";
    case TSI_EVENT_OP:
        return "op";
    case TSI_EVENT_COMM:
        return "comm";
    case TSI_EVENT_WAIT:
        return "wait";
    case TSI_EVENT_ALLOC:
        return "alloc";
    case TSI_EVENT_MARK:
        return "mark";
    case TSI_EVENT_DEVICE:
        return "device";
    }
    return "none";
}

static uint32_t track_of(const tsi_event *event)
{
    return event->queue + (event->kind == TSI_EVENT_DEVICE ? DEVICE_FIRST : 0);
}

static void name_queue(writer *w, uint32_t queue)
{
    if (queue >= QUEUES_MAX || (w->queues_named & (UINT64_C(1) << queue)) != 0) return;
    w->queues_named |= UINT64_C(1) << queue;
    tsi_text_printf(&w->text,
                    ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%" PRId64 ",\"tid\":%" PRIu32
                    ",\"args\":{\"name\":\"",
                    w->rank, queue);
    if (queue == 0)
        tsi_text_add(&w->text, "rank");
    else if (queue == DEVICE_FIRST)
        tsi_text_add(&w->text, "queue compute");
    else if (queue > DEVICE_FIRST)
        tsi_text_printf(&w->text, "queue comm %" PRIu32, queue - DEVICE_FIRST);
    else if (queue > TS_CHANNEL_COUNT)
        tsi_text_add(&w->text, "point to point");
    else
        tsi_text_printf(&w->text, "channel %" PRIu32, queue - 1);
    tsi_text_add(&w->text, "\"}}");
}

/* `{"name":..,"cat":..,"ph":..,"pid":..,"tid":..,"ts":..` without the closing brace. */
static void write_head(writer *w, const tsi_event *event, const char *phase)
{
    char title[256];
    bool named = event->name != NULL && event->name[0] != '\0';
    (void)snprintf(title, sizeof title, "%s%s%s", event->kind_name, named ? " " : "",
                   named ? event->name : "");
    tsi_text_add(&w->text, ",\n{\"name\":");
    tsi_text_json(&w->text, title);
    tsi_text_printf(&w->text,
                    ",\"cat\":\"%s\",\"ph\":\"%s\",\"pid\":%" PRId64 ",\"tid\":%" PRIu32
                    ",\"ts\":%" PRId64 ".%03d",
                    category_of((tsi_event_kind)event->kind), phase, w->rank, track_of(event),
                    event->begin_ns / 1000, (int)(event->begin_ns % 1000));
}

static void write_arguments(writer *w, const tsi_event *event)
{
    tsi_text_printf(&w->text, ",\"args\":{\"bytes\":%" PRId64, event->bytes);
    if (event->kind == TSI_EVENT_COMM) {
        tsi_text_printf(&w->text, ",\"sequence\":%" PRIu64 ",\"group\":\"%016" PRIx64 "\"",
                        event->sequence, event->group);
    }
    if (event->where != NULL && event->where[0] != '\0') {
        tsi_text_add(&w->text, ",\"where\":");
        tsi_text_json(&w->text, event->where);
    }
    tsi_text_add(&w->text, "}}");
}

static void write_span(writer *w, const tsi_event *event)
{
    write_head(w, event, event->end_ns != 0 ? "X" : "B");
    if (event->end_ns != 0) {
        int64_t duration = event->end_ns - event->begin_ns;
        tsi_text_printf(&w->text, ",\"dur\":%" PRId64 ".%03d", duration / 1000,
                        (int)(duration % 1000));
    }
    write_arguments(w, event);
}

static void write_event(writer *w, const tsi_event *event)
{
    name_queue(w, track_of(event));
    switch ((tsi_event_kind)event->kind) {
    case TSI_EVENT_NONE:
        return;
    case TSI_EVENT_OP:
    case TSI_EVENT_COMM:
    case TSI_EVENT_WAIT:
    case TSI_EVENT_DEVICE:
        write_span(w, event);
        return;
    case TSI_EVENT_ALLOC:
        w->allocated += event->bytes;
        tsi_text_printf(&w->text,
                        ",\n{\"name\":\"allocated\",\"ph\":\"C\",\"pid\":%" PRId64
                        ",\"ts\":%" PRId64 ".%03d,\"args\":{\"bytes\":%" PRId64 "}}",
                        w->rank, event->begin_ns / 1000, (int)(event->begin_ns % 1000),
                        w->allocated);
        return;
    case TSI_EVENT_MARK:
        write_head(w, event, "i");
        tsi_text_add(&w->text, ",\"s\":\"t\"");
        write_arguments(w, event);
        return;
    }
}

static void write_rank(writer *w, const ts_rank *rank)
{
    w->rank = rank->index;
    tsi_text_printf(&w->text,
                    "%s{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%" PRId64
                    ",\"args\":{\"name\":\"rank %" PRId64 "\"}}",
                    rank->local_index == 0 ? "" : ",\n", rank->index, rank->index);
    tsi_text_printf(&w->text,
                    ",\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%" PRId64
                    ",\"args\":{\"sort_index\":%" PRId64 "}}",
                    rank->index, rank->index);
    uint64_t last = tsi_ring_last(rank->ring);
    uint64_t capacity = (uint64_t)tsi_ring_capacity(rank->ring);
    for (uint64_t number = last > capacity ? last - capacity + 1 : 1; number <= last; number++) {
        tsi_event event;
        if (tsi_ring_read(rank->ring, number, &event) && event.begin_ns >= w->from_ns &&
            event.begin_ns <= w->to_ns)
            write_event(w, &event);
    }
}

/* The rank's part goes to the file; memory is reused. */
static ts_status write_out(tsi_text *text, FILE *file, const char *path)
{
    if (text->failed)
        return TSI_FAIL(TS_ERR_MEMORY, "trace %s: no memory for a rank's events", path);
    if (text->length > 0 && fwrite(text->data, 1, text->length, file) != text->length) {
        return TSI_FAIL(TS_ERR_IO, "trace %s: cannot write: %s", path, strerror(errno));
    }
    text->length = 0;
    return TS_OK;
}

static ts_status write_file(const ts_world *world, writer w, FILE *file, const char *path)
{
    ts_status status = TS_OK;
    tsi_text_add(&w.text, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
    for (int64_t i = 0; i < world->local_count && status == TS_OK; i++) {
        w.queues_named = 0;
        w.allocated = 0;
        write_rank(&w, world->rank[i]);
        status = write_out(&w.text, file, path);
    }
    tsi_text_add(&w.text, "\n]}\n");
    if (status == TS_OK) status = write_out(&w.text, file, path);
    tsi_text_release(&w.text);
    return status;
}

ts_status ts_world_trace(const ts_world *world, const char *path)
{
    return ts_world_trace_since(world, path, 0, INT64_MAX);
}

ts_status ts_world_trace_since(const ts_world *world, const char *path, int64_t from_ns,
                               int64_t to_ns)
{
    if (world == NULL || path == NULL) {
        return TSI_FAIL(TS_ERR_NULL, "ts_world_trace: %s is NULL", world ? "path" : "world");
    }
    char own[4096];
    bool suffix = world->first_index > 0;
    int length = suffix ? snprintf(own, sizeof own, "%s.%" PRId64, path, world->first_index)
                        : snprintf(own, sizeof own, "%s", path);
    if (length < 0 || (size_t)length >= sizeof own) {
        return TSI_FAIL(TS_ERR_ARG, "ts_world_trace: the path is longer than %zu bytes",
                        sizeof own);
    }
    FILE *file = fopen(own, "w");
    if (file == NULL) return TSI_FAIL(TS_ERR_IO, "trace %s: cannot open: %s", own, strerror(errno));
    ts_status status = write_file(world, (writer){ .from_ns = from_ns, .to_ns = to_ns }, file, own);
    if (fclose(file) != 0 && status == TS_OK) {
        status = TSI_FAIL(TS_ERR_IO, "trace %s: cannot write: %s", own, strerror(errno));
    }
    return status;
}

/* ---- what is kept for it alone --------------------------------------------------------------- */

ts_status ts_rank_trace_begin(ts_rank *me)
{
    TSI_TRY(tsi_rank_enter(me));
    TSI_TRY(tsi_moments_begin(me));
    me->traced++;
    return TS_OK;
}

/* Of a rank that failed, too. */
ts_status ts_rank_trace_end(ts_rank *me)
{
    if (me == NULL) return TSI_FAIL(TS_ERR_NULL, "ts_rank_trace_end: rank is NULL");
    if (tsi_rank_current() != me) return tsi_rank_enter(me); /* it says so */
    if (me->traced == 0) return TSI_FAIL(TS_ERR_STATE, "ts_rank_trace_end: nothing was begun");
    me->traced--;
    tsi_moments_end(me);
    return ts_rank_status(me);
}
