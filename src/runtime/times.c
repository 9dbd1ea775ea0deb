/* SPDX-License-Identifier: Apache-2.0 */
/* times.c - where the time of a rank's thread went, read from its event ring.
 *
 *   matmul  |------------------------|          own time: without what was called inside
 *   add          |-----|
 *   all_reduce             |--------------|     asynchronous: counts up to the thread's next event
 *
 * Events come in the order in which they began. Those of the thread nest, so a stack of open ones
 * is enough; a collective belongs to the thread until it does something else, and a wait whole. */
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "base/rank.h"
#include "base/ring.h"
#include "tessera/event.h"
#include "tessera/schedule.h"

enum { DEPTH_MAX = 64, PLACES = 1024 };

/* Where names were found, by their address: they are kept once, so most are the same. */
typedef struct places {
    int16_t at[PLACES];
} places;

typedef struct open_op {
    int64_t end_ns, own_ns;
    const char *op, *module;
} open_op;

typedef struct sweep {
    ts_times *sum;
    open_op stack[DEPTH_MAX];
    int64_t depth;
    int64_t comm_begin, comm_end; /* a collective that the thread may still be in; begin 0: none */
    places ops, modules;
} sweep;

static int64_t row_of(const ts_time *row, int64_t count, const char *name)
{
    int64_t i = 0;
    while (i < count && row[i].name != name && strcmp(row[i].name, name) != 0)
        i++;
    return i;
}

static void add_row(ts_time *row, int64_t *count, places *known, const char *name, int64_t own_ns)
{
    int16_t *place = &known->at[((uintptr_t)name >> 3) % PLACES];
    int64_t i = *place;
    if (i >= *count || row[i].name != name) {
        i = row_of(row, *count, name);
        if (i >= TS_TIMES_MAX - 1) {
            i = TS_TIMES_MAX - 1;
            name = "others";
        }
        if (i == *count) row[(*count)++] = (ts_time){ .name = name };
        *place = (int16_t)i;
    }
    row[i].count++;
    row[i].own_ns += own_ns;
}

static void close_top(sweep *s)
{
    const open_op *top = &s->stack[--s->depth];
    s->sum->op_ns += top->own_ns;
    add_row(s->sum->op, &s->sum->op_count, &s->ops, top->op, top->own_ns);
    add_row(s->sum->module, &s->sum->module_count, &s->modules, top->module, top->own_ns);
}

/* Behind digits and what follows them; NULL: there are none. */
static const char *behind_number(const char *at)
{
    size_t digits = strspn(at, "0123456789");
    return digits > 0 ? at + digits : NULL;
}

/* The name of a module without the action of a pipeline that it runs in, "0F3." of
 * "0F3.layers.1": those of all micro-batches are one. */
static const char *module_of(const char *name)
{
    static const struct {
        const char *text;
        int micro;
    } kinds[] = {
#define CELL_TEXT(kind, text, micro) { text, micro },
        TS_CELL_LIST(CELL_TEXT)
#undef CELL_TEXT
    };
    const char *stage = behind_number(name);
    for (size_t i = TS_CELL_FORWARD; stage && i < TSI_COUNT_OF(kinds); i++) {
        size_t length = strlen(kinds[i].text);
        if (strncmp(stage, kinds[i].text, length) != 0) continue;
        const char *end = kinds[i].micro ? behind_number(stage + length) : stage + length;
        if (end && (*end == '\0' || *end == '.')) return *end ? end + 1 : end;
    }
    return name;
}

/* Time that is not the operator's own. */
static void take_off(sweep *s, int64_t ns)
{
    if (s->depth > 0) s->stack[s->depth - 1].own_ns -= ns;
}

/* The thread does something at `now`: what it was in before is known. */
static void close_before(sweep *s, int64_t now)
{
    if (s->comm_begin != 0) {
        int64_t ns = (now < s->comm_end ? now : s->comm_end) - s->comm_begin;
        if (ns < 0) ns = 0; /* the begin of a tiny event is rounded down */
        s->sum->comm_ns += ns;
        take_off(s, ns);
        s->comm_begin = 0;
    }
    while (s->depth > 0 && s->stack[s->depth - 1].end_ns <= now)
        close_top(s);
}

static void visit(sweep *s, const tsi_event *e)
{
    if (e->kind == TSI_EVENT_NONE || e->kind == TSI_EVENT_MARK || e->kind == TSI_EVENT_DEVICE)
        return;
    int64_t end = e->end_ns != 0 ? e->end_ns : e->begin_ns, ns = end - e->begin_ns;
    close_before(s, e->begin_ns);
    if (e->kind == TSI_EVENT_COMM) {
        s->comm_begin = e->begin_ns;
        s->comm_end = end;
    } else if (e->kind == TSI_EVENT_WAIT) {
        s->sum->comm_ns += ns;
        take_off(s, ns);
    } else if (e->kind == TSI_EVENT_OP && s->depth < DEPTH_MAX) {
        take_off(s, ns);
        s->stack[s->depth++] =
            (open_op){ end, ns, e->kind_name, e->name ? module_of(e->name) : "" };
    }
}

ts_status ts_rank_times(const ts_rank *me, uint64_t since, ts_times *sum)
{
    if (me == NULL || sum == NULL)
        return TSI_FAIL(TS_ERR_NULL, "ts_rank_times: %s is NULL", me == NULL ? "me" : "sum");
    if (sum->struct_size != sizeof *sum)
        return TSI_FAIL(TS_ERR_ARG, "ts_rank_times: struct_size is %zu, expected %zu",
                        sum->struct_size, sizeof *sum);
    sweep s = { .sum = sum };
    uint64_t last = tsi_ring_last(me->ring), capacity = (uint64_t)tsi_ring_capacity(me->ring);
    uint64_t oldest = last > capacity ? last - capacity : 0;
    if (since < oldest) sum->lost += (int64_t)(oldest - since);
    tsi_event event;
    for (uint64_t n = (since > oldest ? since : oldest) + 1; n <= last; n++) {
        if (tsi_ring_read(me->ring, n, &event))
            visit(&s, &event);
        else
            sum->lost++;
    }
    close_before(&s, INT64_MAX);
    return TS_OK;
}
