/* SPDX-License-Identifier: Apache-2.0 */
/* postmortem.c - what every rank is doing, or did last, for the person who finds a job stuck.
 *
 *   post-mortem of 4 ranks (threads):
 *     ranks 0-1, 3: in all_reduce "grads" #17, 4.0 MiB (train.c:88) for 2.1 s
 *     rank 2:       idle for 2.1 s, last: all_reduce "grads" #16, 4.0 MiB (train.c:88)
 *
 * Ranks that do the same are one line, so the report of a thousand ranks fits a screen. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "comm/comm.h"
#include "runtime/replay_events.h"
#include "runtime/runtime.h"
#include "tessera/event.h"

enum { ACTIVITY_MAX = 224, RANGES_SHOWN = 12, LOOK_BACK = 64 };

typedef struct activity {
    int64_t rank;
    char text[ACTIVITY_MAX]; /* without times: equal texts are one line */
    double seconds;          /* how long it has been so */
    bool running;
} activity;

/* all_reduce "grads" #17, 4.0 MiB (train.c:88) */
static void event_text(const tsi_event *event, char *out, size_t size)
{
    char bytes[32] = "", name[96] = "", sequence[32] = "", where[96] = "";
    if (event->name != NULL && event->name[0] != '\0') {
        (void)snprintf(name, sizeof name, " \"%s\"", event->name);
    }
    if (event->kind == TSI_EVENT_COMM) {
        (void)snprintf(sequence, sizeof sequence, " #%" PRIu64, event->sequence);
    }
    if (event->where != NULL && event->where[0] != '\0') {
        (void)snprintf(where, sizeof where, " (%s)", event->where);
    }
    (void)snprintf(
        out, size, "%s%s%s%s%s%s", event->kind_name, name, sequence, event->bytes != 0 ? ", " : "",
        event->bytes != 0 ? tsi_text_bytes(bytes, sizeof bytes, event->bytes) : "", where);
}

static bool is_span(const tsi_event *event)
{
    switch ((tsi_event_kind)event->kind) {
    case TSI_EVENT_OP:
    case TSI_EVENT_COMM:
    case TSI_EVENT_WAIT:
        return true;
    case TSI_EVENT_NONE:
    case TSI_EVENT_ALLOC:
    case TSI_EVENT_MARK:
    case TSI_EVENT_DEVICE:
        return false;
    }
    return false;
}

/* The event that says most: the oldest of the latest few that has not ended, else the latest. */
static bool telling_event(const tsi_ring *ring, tsi_event *out)
{
    uint64_t last = tsi_ring_last(ring);
    bool found = false;
    for (uint64_t number = last; number > 0 && number + LOOK_BACK > last; number--) {
        tsi_event event;
        if (!tsi_ring_read(ring, number, &event) || !is_span(&event)) continue;
        if (!found || event.end_ns == 0) *out = event;
        found = true;
    }
    return found;
}

/* Operators of a step that runs again leave no events unless it is traced. */
static bool describe_replay(const ts_rank *rank, int64_t now_ns, activity *out)
{
    char what[ACTIVITY_MAX - 16];
    int64_t begin_ns;
    if (!tsi_replay_at(rank, what, sizeof what, &begin_ns)) return false;
    out->running = true;
    out->seconds = (double)(now_ns - begin_ns) / 1e9;
    (void)snprintf(out->text, sizeof out->text, "in step at %s", what);
    return true;
}

static void describe_rank(const ts_rank *rank, int64_t now_ns, activity *out)
{
    *out = (activity){ .rank = rank->index };
    if (describe_replay(rank, now_ns, out)) return;
    tsi_event event = { 0 };
    if (!telling_event(rank->ring, &event)) {
        (void)snprintf(out->text, sizeof out->text, "has not communicated or computed yet");
        return;
    }
    char what[ACTIVITY_MAX - 16];
    event_text(&event, what, sizeof what);
    out->running = event.end_ns == 0;
    out->seconds = (double)(now_ns - (out->running ? event.begin_ns : event.end_ns)) / 1e9;
    (void)snprintf(out->text, sizeof out->text, "%s %s", out->running ? "in" : "idle; last", what);
}

void tsi_rank_activity(const ts_rank *rank, char *out, size_t size)
{
    activity now;
    describe_rank(rank, tsi_clock_ns(), &now);
    (void)snprintf(out, size, "%s, %s %.1f s", now.text, now.running ? "for" : "since",
                   now.seconds);
}

static int compare_activities(const void *left, const void *right)
{
    const activity *a = left, *b = right;
    int order = strcmp(a->text, b->text);
    return order != 0 ? order : (a->rank > b->rank) - (a->rank < b->rank);
}

/* "ranks 0-2, 4" of a sorted run of activities. */
static void write_ranks(const activity *list, int64_t count, tsi_text *out)
{
    tsi_text_add(out, count == 1 ? "  rank " : "  ranks ");
    int64_t shown = 0;
    for (int64_t i = 0; i < count; shown++) {
        int64_t end = i;
        while (end + 1 < count && list[end + 1].rank == list[end].rank + 1)
            end++;
        if (shown == RANGES_SHOWN) {
            tsi_text_printf(out, ", ... (%" PRId64 " in all)", count);
            return;
        }
        tsi_text_printf(out, "%s%" PRId64, i > 0 ? ", " : "", list[i].rank);
        if (end > i) tsi_text_printf(out, "-%" PRId64, list[end].rank);
        i = end + 1;
    }
}

static void write_activities(activity *list, int64_t count, tsi_text *out)
{
    qsort(list, (size_t)count, sizeof *list, compare_activities);
    for (int64_t i = 0; i < count;) {
        int64_t end = i;
        double longest = 0;
        while (end < count && strcmp(list[end].text, list[i].text) == 0) {
            if (list[end].seconds > longest) longest = list[end].seconds;
            end++;
        }
        write_ranks(list + i, end - i, out);
        tsi_text_printf(out, ": %s", list[i].text);
        if (longest > 0)
            tsi_text_printf(out, ", %s %.3f s", list[i].running ? "for" : "since", longest);
        tsi_text_add(out, "\n");
        i = end;
    }
}

/* Ranks of other processes have no ring here; the engine may know what they wait in. */
static void write_others(ts_world *world, tsi_text *out)
{
    char said[4096] = "";
    if (world->local_count == world->rank_count) return;
    tsi_comm_describe(world, said, sizeof said);
    if (said[0] == '\0') return;
    tsi_text_add(out, "all ranks, as the engine sees them:\n");
    for (const char *line = said; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        tsi_text_printf(out, "  %.*s\n", (int)length, line);
        line += length + (line[length] == '\n');
    }
}

void tsi_postmortem(ts_world *world, tsi_text *out)
{
    int64_t count = world->local_count, now_ns = tsi_clock_ns();
    activity *list = tsi_calloc((size_t)count, sizeof *list);
    tsi_text_printf(out, "post-mortem of %" PRId64 " rank%s (%s):\n", count, count == 1 ? "" : "s",
                    ts_world_engine(world));
    if (list == NULL) {
        tsi_text_add(out, "  (no memory to write it)\n");
        return;
    }
    for (int64_t i = 0; i < count; i++)
        describe_rank(world->rank[i], now_ns, &list[i]);
    write_activities(list, count, out);
    tsi_free(list);
    write_others(world, out);
}

size_t ts_world_postmortem(ts_world *world, char *out, size_t size)
{
    if (world == NULL) return 0;
    tsi_text text = { 0 };
    tsi_postmortem(world, &text);
    size_t length = text.length;
    if (out != NULL && size > 0) (void)snprintf(out, size, "%s", length > 0 ? text.data : "");
    tsi_text_release(&text);
    return length;
}
