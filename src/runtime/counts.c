/* SPDX-License-Identifier: Apache-2.0 */
/* counts.c - the table of communication counts, read from the event rings.
 *
 * A reader walks from the oldest event that a ring can still hold to the latest; an event that is
 * overwritten while it is read is skipped and counted as lost. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/runtime.h"
#include "tessera/event.h"

/* The row of a kind, appended if it is new; NULL if the table is full. */
static ts_count *row_of(ts_counts *counts, const char *kind)
{
    for (int64_t i = 0; i < counts->row_count; i++) {
        if (strcmp(counts->row[i].kind, kind) == 0) return &counts->row[i];
    }
    if (counts->row_count == TS_COUNTS_MAX) return NULL;
    ts_count *row = &counts->row[counts->row_count++];
    *row = (ts_count){ .kind = kind };
    return row;
}

static void count_event(ts_counts *counts, const tsi_event *event)
{
    if (event->kind != TSI_EVENT_COMM) return;
    if (event->end_ns == 0) {
        counts->open++;
        return;
    }
    ts_count *row = row_of(counts, event->kind_name);
    if (row == NULL) {
        counts->lost++;
        return;
    }
    row->count++;
    row->bytes += event->bytes;
    row->time_ns += event->end_ns - event->begin_ns;
}

static void count_ring(ts_counts *counts, const tsi_ring *ring, uint64_t since)
{
    uint64_t last = tsi_ring_last(ring);
    uint64_t capacity = (uint64_t)tsi_ring_capacity(ring);
    uint64_t oldest = last > capacity ? last - capacity : 0; /* numbers up to it are overwritten */
    uint64_t start = since > oldest ? since : oldest;
    if (since < oldest) counts->lost += (int64_t)(oldest - since);
    for (uint64_t number = start + 1; number <= last; number++) {
        tsi_event event;
        if (tsi_ring_read(ring, number, &event))
            count_event(counts, &event);
        else
            counts->lost++;
    }
}

static ts_status begin_counts(const char *function, const void *object, ts_counts *out)
{
    if (object == NULL || out == NULL) {
        return TSI_FAIL(TS_ERR_NULL, "%s: %s is NULL", function, object == NULL ? "object" : "out");
    }
    size_t size = out->struct_size;
    if (size != sizeof *out) {
        return TSI_FAIL(TS_ERR_ARG,
                        "%s: out->struct_size is %zu, expected %zu (TS_INIT(ts_counts))", function,
                        size, sizeof *out);
    }
    *out = (ts_counts){ .struct_size = size };
    return TS_OK;
}

uint64_t ts_rank_event(const ts_rank *me)
{
    return me != NULL ? tsi_ring_last(me->ring) : 0;
}

ts_status ts_rank_counts(const ts_rank *me, uint64_t since, ts_counts *out)
{
    TSI_TRY(begin_counts("ts_rank_counts", me, out));
    count_ring(out, me->ring, since);
    return TS_OK;
}

ts_status ts_world_counts(const ts_world *world, ts_counts *out)
{
    TSI_TRY(begin_counts("ts_world_counts", world, out));
    for (int64_t i = 0; i < world->local_count; i++)
        count_ring(out, world->rank[i]->ring, 0);
    return TS_OK;
}

/* Appends at *used and moves it, like snprintf into what is left of the buffer. */
static void append(char *out, size_t size, size_t *used, const char *line)
{
    size_t length = strlen(line);
    if (*used < size) (void)snprintf(out + *used, size - *used, "%s", line);
    *used += length;
}

size_t ts_counts_text(const ts_counts *counts, char *out, size_t size)
{
    size_t used = 0;
    if (size > 0 && out != NULL)
        out[0] = '\0';
    else
        size = 0;
    if (counts == NULL) return 0;
    char line[160], bytes[32];
    (void)snprintf(line, sizeof line, "%-16s %10s %14s %14s\n", "operation", "count", "received",
                   "time");
    append(out, size, &used, line);
    for (int64_t i = 0; i < counts->row_count; i++) {
        const ts_count *row = &counts->row[i];
        (void)snprintf(line, sizeof line, "%-16s %10" PRId64 " %14s %11.3f ms\n", row->kind,
                       row->count, tsi_text_bytes(bytes, sizeof bytes, row->bytes),
                       (double)row->time_ns / 1e6);
        append(out, size, &used, line);
    }
    if (counts->open > 0) {
        (void)snprintf(line, sizeof line, "%" PRId64 " in flight\n", counts->open);
        append(out, size, &used, line);
    }
    if (counts->lost > 0) {
        (void)snprintf(line, sizeof line, "%" PRId64 " events overwritten before they were read\n",
                       counts->lost);
        append(out, size, &used, line);
    }
    return used;
}
