/* SPDX-License-Identifier: Apache-2.0 */
/* order.c - in which order the units of a tree come, and what is gathered ahead.
 *
 *   first step    0 1 2 | 2 1 0            noted: forward and backward of each unit
 *   later steps   the unit that comes next is gathered while this one computes
 *
 * A step that leaves the order falls back: what was gathered for nothing is dropped, the new order
 * is noted, and it is said once. Evaluation follows the order as far as it goes, and notes nothing.
 *
 * INV: units gathered ahead are one at most, and it is the one that the order says is next; or
 * those that the program named (ts_fsdp_prefetch). */
#include <stdio.h>

#include "base/alloc.h"
#include "base/log.h"
#include "parallel/unit.h"

/* ---- the units of a tree --------------------------------------------------------------------- */

static tsi_units *find_below(const ts_module *m)
{
    const tsi_unit *u = m->unit;
    if (u && u->all) return u->all;
    for (const ts_module *child = m->first; child; child = child->next) {
        tsi_units *all = find_below(child);
        if (all) return all;
    }
    return NULL;
}

static ts_status join_below(ts_module *m, tsi_units *all)
{
    tsi_unit *u = m->unit;
    if (u && !u->all) {
        size_t bytes = (size_t)(all->unit_count + 1) * sizeof(tsi_unit *);
        tsi_unit **grown = tsi_realloc(all->unit, bytes);
        if (!grown) return tsi_fail_memory("the units of a tree", bytes);
        all->unit = grown;
        all->unit[all->unit_count++] = u;
        all->stats.units++;
        all->stats.parameters += u->count;
        u->all = all;
        all->references++;
    }
    for (ts_module *child = m->first; child; child = child->next)
        TSI_TRY(join_below(child, all));
    return TS_OK;
}

ts_status tsi_units_find(tsi_unit *u)
{
    if (u->all) return TS_OK;
    ts_module *top = u->module[0];
    while (top->parent)
        top = top->parent;
    tsi_units *all = find_below(top);
    if (!all) all = tsi_calloc(1, sizeof *all);
    if (!all) return tsi_fail_memory("the units of a tree", sizeof *all);
    all->stats.struct_size = sizeof all->stats;
    ts_status status = join_below(top, all);
    if (status == TS_OK || all->references > 0) return status;
    tsi_free(all->unit);
    tsi_free(all);
    return status;
}

void tsi_units_leave(tsi_unit *u)
{
    tsi_units *all = u->all;
    if (!all) return;
    for (int64_t i = 0; i < all->unit_count; i++)
        if (all->unit[i] == u) all->unit[i] = all->unit[--all->unit_count];
    for (int64_t i = 0; i < all->unit_count; i++) /* what is named in a list goes with its tree */
        all->unit[i]->ahead[0].count = all->unit[i]->ahead[1].count = 0;
    if (all->reducing == u) all->reducing = NULL;
    all->order_count = all->at = all->known = 0;
    u->all = NULL;
    if (--all->references > 0) return;
    tsi_free(all->unit);
    tsi_free(all->order);
    tsi_free(all);
}

/* ---- the order ------------------------------------------------------------------------------- */

static ts_status note(tsi_units *all, tsi_unit_event event)
{
    if (all->order_count == all->order_capacity) {
        int64_t capacity = all->order_capacity ? 2 * all->order_capacity : 64;
        tsi_unit_event *grown = tsi_realloc(all->order, (size_t)capacity * sizeof *grown);
        if (!grown) return tsi_fail_memory("the order of units", (size_t)capacity * sizeof *grown);
        all->order = grown;
        all->order_capacity = capacity;
    }
    all->order[all->order_count++] = event;
    return TS_OK;
}

static bool is_at(const tsi_units *all, int64_t place, tsi_unit_event event)
{
    return place < all->order_count && all->order[place].unit == event.unit &&
           all->order[place].phase == event.phase;
}

/* What is on its way for another unit than this one is not wanted. */
static ts_status drop_coming(const tsi_units *all, const tsi_unit *but)
{
    for (int64_t i = 0; i < all->unit_count; i++)
        if (all->unit[i] != but && all->unit[i]->state == TSI_UNIT_COMING)
            TSI_TRY(tsi_unit_drop(all->unit[i], false));
    return TS_OK;
}

static ts_status leave_order(tsi_units *all, const tsi_unit *u)
{
    if (!all->said)
        tsi_log(TSI_LOG_WARN,
                "fsdp: unit %s comes where another one was expected: units are gathered when they "
                "are called until the order is known again",
                u->name);
    all->said = 1;
    all->stats.orders++;
    all->known = 0;
    all->order_count = all->at = 0;
    return drop_coming(all, u);
}

/* Notes the event, or finds it where it is expected; all->at is what comes next. */
static ts_status follow(tsi_units *all, tsi_unit_event event, bool notes)
{
    bool first = is_at(all, 0, event);
    bool ended = all->order_count > 0 && all->order[all->order_count - 1].phase != TSI_UNIT_FORWARD;
    if (!all->known && first && ended) {
        all->known = 1;
        all->at = 0;
    }
    if (all->known && is_at(all, all->at, event)) {
        all->at++;
        return TS_OK;
    }
    if (all->known && first) { /* the last one ended early, or was an evaluation */
        all->at = 1;
        return drop_coming(all, event.unit);
    }
    if (all->known) {
        if (!notes) return TS_OK;
        TSI_TRY(leave_order(all, event.unit));
    }
    return notes ? note(all, event) : TS_OK;
}

/* Units of one shape look alike to an exchange: ranks that call them in different orders would mix
 * them up without a word. So they agree on each unit's first calls, and on those that come where
 * another one was expected; a rank that expects what the others do not is told by the exchange. */
ts_status tsi_units_agree(tsi_unit *u, tsi_unit_phase phase)
{
    enum { FIRST_CALLS = 2 };
    const tsi_units *all = u->all;
    tsi_unit_event event = { .unit = u, .phase = phase };
    bool expected = all->known && (is_at(all, all->at, event) || is_at(all, 0, event));
    if (u->agreed >= FIRST_CALLS && (expected || !all->known)) return TS_OK;
    ts_group *group = u->axes_cut ? tsi_mesh_axes_group(u->mesh, u->axes_cut) : NULL;
    if (!group) return ts_rank_status(u->rank);
    if (ts_group_size(group) < 2) return TS_OK;
    char what[TSI_PARAM_NAME_MAX + 32];
    u->agreed++;
    snprintf(what, sizeof what, "fsdp: unit %s", u->name);
    return tsi_agree(group, what, NULL, tsi_hash_text((uint64_t)phase, u->name));
}

ts_status tsi_units_event(tsi_unit *u, tsi_unit_phase phase)
{
    tsi_units *all = u->all;
    if (u->options.prefetch_off) return TS_OK; /* nobody asks for the order */
    bool notes = phase != TSI_UNIT_FORWARD || tsi_tape_recording(u->rank);
    TSI_TRY(follow(all, (tsi_unit_event){ .unit = u, .phase = phase }, notes));
    const tsi_unit_ahead *ahead = &u->ahead[phase != TSI_UNIT_FORWARD];
    for (int64_t i = 0; i < ahead->count; i++)
        TSI_TRY(tsi_unit_gather(ahead->unit[i]));
    if (ahead->count > 0) return TS_OK;
    if (!all->known || all->at >= all->order_count) return TS_OK;
    tsi_unit *next = all->order[all->at].unit;
    /* Without a tape there is no backward to prepare. */
    if (!notes && all->order[all->at].phase != TSI_UNIT_FORWARD) return TS_OK;
    return tsi_unit_gather(next);
}

bool tsi_units_turns(const tsi_unit *u)
{
    const tsi_units *all = u->all;
    return all && all->known &&
           is_at(all, all->at,
                 (tsi_unit_event){ .unit = (tsi_unit *)(uintptr_t)u, .phase = TSI_UNIT_BACKWARD });
}
