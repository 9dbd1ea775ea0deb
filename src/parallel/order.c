/* SPDX-License-Identifier: Apache-2.0 */
/* order.c - in which order the units of a tree come, and what is gathered ahead.
 *
 *   first step    0 1 2 | 2 1 0            noted: forward and backward of each unit
 *   later steps   the unit that comes next is gathered while this one computes
 *
 * A step is forwards and then backwards; the first forward after a backward begins the next one.
 * The orders of the last steps that differed are kept, each with the shapes of the inputs that it
 * was last used for. A step begins with the order of its shapes, else with the latest; where it
 * goes another way it goes on with an order that began as it did. Where there is none it leaves
 * what is known: what was gathered for nothing is dropped, units are gathered when they are called
 * until the step ends, it is said once, and the order is kept. Evaluation follows as far as it
 * goes, and notes nothing.
 *
 * In backward a unit that is gathered into blocks waits for room: until half of the unit before it
 * has its gradients, whose parameters have gone, and the gradients that were on their way have
 * arrived. So at most two units are held (docs/parallel.md).
 *
 * INV: units gathered ahead are those of one list of modules at most, and it is what the order says
 * is next; or those that the program named (ts_fsdp_prefetch). */
#include <stdio.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/log.h"
#include "comm/again.h"
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

/* There are other units than before. */
static void forget_inner(const tsi_units *all)
{
    for (int64_t i = 0; i < all->unit_count; i++)
        all->unit[i]->inner = 0;
}

static ts_status join_below(ts_module *m, tsi_units *all)
{
    for (tsi_unit *u = m->unit; u && !u->all; u = u->beside) {
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
    ts_module *top = tsi_module_top(u->module[0]);
    tsi_units *all = find_below(top);
    if (!all) all = tsi_calloc(1, sizeof *all);
    if (!all) return tsi_fail_memory("the units of a tree", sizeof *all);
    all->stats.struct_size = sizeof all->stats;
    if (all->references == 0) all->epoch = tsi_again_epoch(u->rank);
    ts_status status = join_below(top, all);
    forget_inner(all);
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
    forget_inner(all);
    tsi_units_forget(all); /* and what is to come later */
    for (int32_t i = 0; i < TSI_UNIT_ORDERS; i++)
        all->order[i].count = 0;
    u->all = NULL;
    if (--all->references > 0) return;
    for (int32_t i = 0; i < TSI_UNIT_ORDERS; i++)
        tsi_free(all->order[i].event);
    tsi_free(all->noted.event);
    tsi_free(all->unit);
    tsi_free(all);
}

/* ---- orders that are kept -------------------------------------------------------------------- */

static ts_status note(tsi_unit_order *order, tsi_unit_event event)
{
    TSI_TRY(tsi_room(&order->event, order->count, &order->capacity, sizeof *order->event,
                     "the order of units"));
    order->event[order->count++] = event;
    return TS_OK;
}

static bool is_at(const tsi_unit_order *order, int64_t place, tsi_unit_event event)
{
    return order && place < order->count && order->event[place].unit == event.unit &&
           order->event[place].phase == event.phase;
}

/* Does it begin with all that was noted? */
static bool begins_alike(const tsi_unit_order *order, const tsi_unit_order *noted)
{
    for (int64_t i = noted->count - 1; i >= 0; i--) /* they differ at the end, if at all */
        if (!is_at(order, i, noted->event[i])) return false;
    return order->count > 0;
}

/* Of the orders that begin as this step did the one of its shapes, else the latest; or NULL. */
static tsi_unit_order *find_order(tsi_units *all)
{
    tsi_unit_order *best = NULL;
    for (int32_t i = 0; i < TSI_UNIT_ORDERS; i++) {
        tsi_unit_order *order = &all->order[i];
        if (!begins_alike(order, &all->noted)) continue;
        bool same = order->shapes == all->noted.shapes;
        bool best_same = best && best->shapes == all->noted.shapes;
        if (!best || same > best_same || (same == best_same && order->used > best->used))
            best = order;
    }
    return best;
}

/* A step has ended: its order is kept, in the place of the one that was not used for longest. */
static void keep_order(tsi_units *all)
{
    tsi_unit_order *place = &all->order[0];
    if (all->noted.count == 0) return;
    for (int32_t i = 0; i < TSI_UNIT_ORDERS; i++) {
        tsi_unit_order *order = &all->order[i];
        bool same = order->count == all->noted.count && begins_alike(order, &all->noted);
        if (same || order->used < place->used) place = order;
        if (same) break;
    }
    tsi_unit_order former = *place;
    *place = all->noted;
    place->used = ++all->clock;
    all->noted = former; /* its room serves the next step */
    all->noted.count = 0;
}

/* Has every unit that was called had its backward? */
static bool is_whole(const tsi_unit_order *order)
{
    int64_t open = 0;
    for (int64_t i = 0; i < order->count; i++)
        open += (order->event[i].phase == TSI_UNIT_FORWARD) -
                (order->event[i].phase == TSI_UNIT_BACKWARD);
    return open == 0;
}

/* Ranks that a fault ended, each where it was, agree anew on the first calls of units, and on what
 * follows what. */
static void agree_anew(tsi_units *all)
{
    all->epoch = tsi_again_epoch(all->unit[0]->rank);
    all->noted.count = 0;
    for (int32_t i = 0; i < TSI_UNIT_ORDERS; i++)
        all->order[i].count = all->order[i].used = 0;
    for (int64_t i = 0; i < all->unit_count; i++)
        all->unit[i]->agreed = 0;
}

void tsi_units_forget(tsi_units *all)
{
    ts_rank *rank = all->unit_count > 0 ? all->unit[0]->rank : NULL;
    bool failed = rank && ts_rank_status(rank) != TS_OK;
    if (failed || (rank && all->epoch != tsi_again_epoch(rank))) agree_anew(all);
    if (is_whole(&all->noted)) keep_order(all); /* it had ended */
    all->noted.count = 0;
    all->followed = NULL;
    all->later = all->until = NULL;
    all->at = 0;
}

const tsi_unit_order *tsi_units_order(const tsi_units *all)
{
    const tsi_unit_order *latest = all->followed;
    for (int32_t i = 0; !all->followed && i < TSI_UNIT_ORDERS; i++)
        if (all->order[i].count > 0 && (!latest || all->order[i].used > latest->used))
            latest = &all->order[i];
    return latest;
}

/* ---- following one --------------------------------------------------------------------------- */

/* What is on its way for another unit than this one is not wanted. */
static ts_status drop_coming(const tsi_units *all, const tsi_unit *but)
{
    for (int64_t i = 0; i < all->unit_count; i++)
        if (!tsi_units_beside(all->unit[i], but) && all->unit[i]->state == TSI_UNIT_COMING)
            TSI_TRY(tsi_unit_drop(all->unit[i], false));
    return TS_OK;
}

static void say_left(tsi_units *all, const tsi_unit *u)
{
    if (!all->said)
        tsi_log(TSI_LOG_WARN,
                "fsdp: unit %s comes where another one was expected: units are gathered when they "
                "are called until the step ends",
                u->name);
    all->said = 1;
    all->stats.orders++;
}

static bool ends_in_backward(const tsi_unit_order *noted)
{
    return noted->count > 0 && noted->event[noted->count - 1].phase != TSI_UNIT_FORWARD;
}

static bool begins_one(const tsi_units *all, tsi_unit_event event)
{
    for (int32_t i = 0; i < TSI_UNIT_ORDERS; i++)
        if (is_at(&all->order[i], 0, event)) return true;
    return false;
}

/* An event of a step; after it all->followed says at all->at what comes next, if it is known. */
static ts_status follow(tsi_units *all, tsi_unit_event event)
{
    bool begins = event.phase == TSI_UNIT_FORWARD && ends_in_backward(&all->noted);
    if (begins) keep_order(all);
    if (begins) all->followed = NULL;
    if (all->noted.count == 0) all->noted.shapes = event.unit->shapes;
    TSI_TRY(note(&all->noted, event));
    bool expected = all->followed && all->at == all->noted.count - 1;
    if (expected && is_at(all->followed, all->at, event)) {
        all->at++;
        return TS_OK;
    }
    const tsi_unit_order *former = all->followed;
    all->followed = find_order(all);
    /* The last one had no backward. */
    bool again = former && !all->followed && is_at(&all->noted, 0, event);
    if (again) {
        all->noted.event[0] = event;
        all->noted.count = 1;
        all->noted.shapes = event.unit->shapes;
        all->followed = find_order(all);
    }
    all->at = all->noted.count;
    if (all->followed) all->followed->used = ++all->clock;
    if (former && !all->followed) say_left(all, event.unit);
    return begins || former ? drop_coming(all, event.unit) : TS_OK;
}

/* The same of a call without a tape, which leaves no trace. */
static ts_status look_along(tsi_units *all, tsi_unit_event event)
{
    if (!all->followed) all->followed = find_order(all);
    if (is_at(all->followed, all->at, event)) {
        all->at++;
        return TS_OK;
    }
    if (!all->followed) return TS_OK;
    all->at = is_at(all->followed, 0, event) ? 1 : all->followed->count;
    return drop_coming(all, event.unit);
}

/* Units of one shape look alike to an exchange: ranks that call them in different orders would mix
 * them up without a word. So they agree on each unit's first calls, and on those that come where
 * another one was expected; a rank that expects what the others do not is told by the exchange. */
TSI_STEP_PATH ts_status tsi_units_agree(tsi_unit *u, tsi_unit_phase phase)
{
    enum { FIRST_CALLS = 2 };
    const tsi_units *all = u->all;
    tsi_unit_event event = { .unit = u, .phase = phase };
    bool known = tsi_units_order(all) != NULL;
    bool expected = is_at(all->followed, all->at, event) || begins_one(all, event);
    if (u->agreed >= FIRST_CALLS && (expected || !known)) return TS_OK;
    ts_group *group = u->axes_cut ? tsi_mesh_axes_group(u->mesh, u->axes_cut) : NULL;
    if (!group) return ts_rank_status(u->rank);
    if (ts_group_size(group) < 2) return TS_OK;
    char what[TSI_PARAM_NAME_MAX + 32];
    u->agreed++;
    snprintf(what, sizeof what, "fsdp: unit %s", u->name);
    return tsi_agree(group, what, NULL, tsi_hash_text((uint64_t)phase, u->name));
}

static bool takes_blocks(const tsi_unit *u)
{
    for (int64_t i = 0; i < u->count; i++) {
        const tsi_unit_param *p = &u->param[i];
        if (!p->slice && (p->cut != p->whole || p->mirrors)) return true;
    }
    return false;
}

/* Has the unit, whose backward begins, to wait for room before the next one is gathered? Gradients
 * of this backward are on their way. Where ranks may differ in what becomes complete, where several
 * units have the same modules, and where its gradients are complete together at its end, since it
 * runs its forward again first, it does not. */
static bool waits_for_room(const tsi_unit *u)
{
    const tsi_units *all = u->all;
    const tsi_autograd_state *state = tsi_autograd_state_of(u->rank);
    bool usual = u->module_count == 1 && u->module[0]->unit == u && !u->beside &&
                 !u->options.unused && u->trained > 0;
    bool by_and_by =
        u->module[0]->runs_again != TS_RECOMPUTE_FULL && state->running && !state->running->outer;
    return usual && by_and_by && all->reducing && all->reduced_in == state->serial &&
           takes_blocks(u);
}

/* Ahead of its use: what is in use, some of it let go already, is gathered when it is called. */
static ts_status gather_unused(tsi_unit *u)
{
    return u->partly && u->users > 0 ? TS_OK : tsi_unit_gather_ahead(u);
}

ts_status tsi_units_gather_later(tsi_unit *u)
{
    tsi_units *all = u->all;
    if (!all || all->until != u) return TS_OK;
    tsi_unit *next = all->later;
    all->later = all->until = NULL;
    TSI_TRY(tsi_units_settle(all));
    return next ? gather_unused(next) : TS_OK;
}

/* What comes next is gathered, or will be. `notes`: there is a tape. */
static ts_status gather_ahead(tsi_unit *u, tsi_unit_phase phase, bool notes)
{
    tsi_units *all = u->all;
    bool waits = phase == TSI_UNIT_BACKWARD && waits_for_room(u);
    if (!all->followed) {
        all->until = waits ? u : NULL; /* a first step holds no more than others */
        return TS_OK;
    }
    if (all->at >= all->followed->count) return TS_OK;
    tsi_unit_event next = all->followed->event[all->at];
    /* Without a tape there is no backward to prepare. */
    if (!notes && next.phase != TSI_UNIT_FORWARD) return TS_OK;
    if (!tsi_unit_reads(next.unit, next.phase)) {
        all->until = waits ? u : NULL;
        return TS_OK;
    }
    if (!waits || next.unit->state != TSI_UNIT_CUT) return gather_unused(next.unit);
    all->until = u;
    all->later = next.unit;
    return TS_OK;
}

TSI_STEP_PATH ts_status tsi_units_event(tsi_unit *u, tsi_unit_phase phase)
{
    tsi_units *all = u->all;
    all->later = all->until = NULL;
    if (u->options.prefetch_off) return TS_OK; /* nobody asks for the order */
    bool notes = phase != TSI_UNIT_FORWARD || tsi_tape_recording(u->rank);
    tsi_unit_event event = { .unit = u, .phase = phase };
    TSI_TRY(notes ? follow(all, event) : look_along(all, event));
    /* Units of a module side by side follow what was said of the first. */
    const tsi_unit *first = u->module[0]->unit;
    const tsi_unit_ahead *ahead = &first->ahead[phase != TSI_UNIT_FORWARD];
    for (int64_t i = 0; i < ahead->count; i++)
        TSI_TRY(gather_unused(ahead->unit[i]));
    return ahead->count > 0 ? TS_OK : gather_ahead(u, phase, notes);
}

TSI_STEP_PATH bool tsi_units_turns(const tsi_unit *u)
{
    const tsi_unit_order *order = u->all ? u->all->followed : NULL;
    if (!order || u->all->at >= order->count) return false;
    const tsi_unit_event *next = &order->event[u->all->at];
    return next->phase == TSI_UNIT_BACKWARD && tsi_units_beside(next->unit, u);
}
