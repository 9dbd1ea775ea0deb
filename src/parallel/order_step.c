/* SPDX-License-Identifier: Apache-2.0 */
/* order_step.c - the order of units as a step value: what every rank of the mesh gathers, waits
 * for, computes, reduces and lets go, as order.c follows it.
 *
 *   gather 1 queue=comm    forward 0    release 0    wait 1    gather 2 queue=comm    forward 1 ...
 *
 * So the schedule prints, is proved and simulated like any other step, and what gathered
 * parameters and gradients take at most is known without running it.
 *
 * INV: the walk here makes the decisions of fsdp.c and order.c from the same order. It knows whole
 * units: a gather that waits for half of a unit's gradients (order.c) stands before the unit here,
 * and parameters that go with their gradients go after it, so that no moment holds more. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "parallel/unit.h"

typedef struct walk { /* of one rank */
    const tsi_units *all;
    const tsi_unit_order *order;
    tsi_step *step;
    int64_t rank;
    int64_t coord[TS_NDIM_MAX];
    int32_t comm;          /* the queue */
    tsi_unit_state *state; /* [unit] */
    int32_t *group, *sums; /* [unit]: who gathers, who adds up */
    int32_t reducing;      /* the unit whose gradients are on their way, or -1 */
} walk;

/* ---- values ---------------------------------------------------------------------------------- */

static int64_t bytes_of(const ts_sharding *where, const tsi_param *param, const int64_t *coord,
                        int32_t dtype)
{
    const ts_layout *layout = tsi_layout_intern(where, &param->shape);
    if (!layout) return 0;
    ts_shape local = ts_layout_local(layout, coord);
    ts_layout_release(layout);
    return ts_shape_count(&local) * (int64_t)ts_dtype_size((ts_dtype)dtype);
}

typedef enum what { SHARD, WHOLE, GRAD, GRAD_SHARD } what;

static int64_t unit_bytes(const walk *w, const tsi_unit *u, what which)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < u->count; i++) {
        const tsi_unit_param *p = &u->param[i];
        int32_t own = p->param->dtype, seen = p->mirrors ? p->mirrors : own;
        bool trained = !p->param->frozen, moves = p->cut != p->whole && !p->slice;
        if (which == SHARD) sum += bytes_of(p->cut, p->param, w->coord, own);
        if (which == WHOLE && moves) sum += bytes_of(p->whole, p->param, w->coord, seen);
        if (which == GRAD && trained) sum += bytes_of(p->whole, p->param, w->coord, own);
        if (which == GRAD_SHARD && trained) sum += bytes_of(p->cut, p->param, w->coord, own);
    }
    return sum;
}

static ts_status value_of(walk *w, int64_t unit, what which, int32_t *out)
{
    static const char *const suffix[] = { ".shard", "", ".grad", ".grad.shard" };
    static const int32_t memory[] = { TSI_STEP_MEMORY_PARAMETER, TSI_STEP_MEMORY_GATHERED,
                                      TSI_STEP_MEMORY_GRADIENT, TSI_STEP_MEMORY_GRADIENT };
    static const int32_t life[] = { TSI_LIFE_HELD, TSI_LIFE_INSIDE, TSI_LIFE_INSIDE,
                                    TSI_LIFE_LEFT };
    char name[240];
    const tsi_unit *u = w->all->unit[unit];
    const char *base = strchr(u->name, ' ') ? "root" : u->name;
    snprintf(name, sizeof name, "%.200s%s", base, suffix[which]);
    tsi_value value = {
        .name = name, .bytes = unit_bytes(w, u, which), .memory = memory[which], .life = life[which]
    };
    return tsi_step_value(w->step, w->rank, &value, out);
}

/* ---- actions --------------------------------------------------------------------------------- */

/* At most two values, by how they are touched. */
typedef struct act {
    int32_t kind, queue, group;
    int64_t unit;
    what first, second;
    int32_t first_how, second_how; /* -1: none */
    int64_t bytes;
} act;

static ts_status append(walk *w, const act *a)
{
    tsi_touch touch[2];
    int32_t count = 0;
    tsi_action action = TSI_ACTION_INIT(a->kind);
    const what which[2] = { a->first, a->second };
    const int32_t how[2] = { a->first_how, a->second_how };
    for (int i = 0; i < 2; i++) {
        int32_t value;
        if (how[i] < 0) continue;
        TSI_TRY(value_of(w, a->unit, which[i], &value));
        touch[count++] = (tsi_touch){ value, how[i] };
    }
    bool named = a->kind != TSI_ACTION_RELEASE && a->kind != TSI_ACTION_WAIT;
    const char *name = w->all->unit[a->unit]->name;
    if (named) TSI_TRY(tsi_step_name(w->step, strchr(name, ' ') ? "root" : name, &action.what));
    action.queue = a->queue;
    action.group = a->group;
    action.bytes = a->bytes;
    return tsi_step_append(w->step, w->rank, &action, touch, count);
}

static ts_status gather(walk *w, int64_t unit)
{
    if (w->state[unit] != TSI_UNIT_CUT) return TS_OK;
    w->state[unit] = TSI_UNIT_COMING;
    return append(w, &(act){ .kind = TSI_ACTION_GATHER,
                             .queue = w->comm,
                             .group = w->group[unit],
                             .unit = unit,
                             .first = SHARD,
                             .first_how = TSI_READS,
                             .second = WHOLE,
                             .second_how = TSI_MAKES,
                             .bytes = unit_bytes(w, w->all->unit[unit], WHOLE) });
}

static ts_status wait_for(walk *w, int64_t unit, what which)
{
    return append(w, &(act){ .kind = TSI_ACTION_WAIT,
                             .group = -1,
                             .unit = unit,
                             .first = which,
                             .first_how = TSI_READS,
                             .second_how = -1 });
}

static ts_status let_go(walk *w, int64_t unit, what which)
{
    if (which == WHOLE) w->state[unit] = TSI_UNIT_CUT;
    return append(w, &(act){ .kind = TSI_ACTION_RELEASE,
                             .group = -1,
                             .unit = unit,
                             .first = which,
                             .first_how = TSI_FREES,
                             .second_how = -1 });
}

/* Gradients of the unit before this one have arrived: what they were made of goes. */
static ts_status end_reduction(walk *w)
{
    if (w->reducing < 0) return TS_OK;
    int64_t unit = w->reducing;
    w->reducing = -1;
    TSI_TRY(wait_for(w, unit, GRAD));
    return let_go(w, unit, GRAD);
}

static ts_status reduce(walk *w, int64_t unit)
{
    TSI_TRY(end_reduction(w));
    w->reducing = (int32_t)unit;
    return append(w, &(act){ .kind = TSI_ACTION_REDUCE,
                             .queue = w->comm,
                             .group = w->sums[unit],
                             .unit = unit,
                             .first = GRAD,
                             .first_how = TSI_READS,
                             .second = GRAD_SHARD,
                             .second_how = TSI_MAKES,
                             .bytes = unit_bytes(w, w->all->unit[unit], GRAD) });
}

static ts_status compute(walk *w, int64_t unit, int32_t phase, bool makes_grad)
{
    bool reads = w->state[unit] == TSI_UNIT_WHOLE;
    static const int32_t kind[] = { TSI_ACTION_FORWARD, TSI_ACTION_BACKWARD, TSI_ACTION_RECOMPUTE };
    return append(w, &(act){ .kind = kind[phase],
                             .group = -1,
                             .unit = unit,
                             .first = WHOLE,
                             .first_how = reads ? TSI_READS : -1,
                             .second = GRAD,
                             .second_how = makes_grad ? TSI_MAKES : -1 });
}

/* ---- the walk -------------------------------------------------------------------------------- */

static int64_t place_of(const tsi_units *all, const tsi_unit *u)
{
    int64_t i = 0;
    while (all->unit[i] != u)
        i++;
    return i;
}

static bool comes_again(const tsi_unit_order *order, int64_t at, int32_t phase)
{
    const tsi_unit_event *event = order->event;
    for (int64_t i = at + 1; i < order->count; i++)
        if (event[i].unit == event[at].unit && event[i].phase == phase) return true;
    return false;
}

/* Does the backward of the same modules come next? */
static bool turns_at(const tsi_unit_order *order, int64_t at)
{
    const tsi_unit_event *own = &order->event[at], *next = own + 1;
    return at + 1 < order->count && next->phase == TSI_UNIT_BACKWARD &&
           tsi_units_beside(next->unit, own->unit);
}

/* The unit of an event is there, and the next one comes, as far as they are read. */
static ts_status enter(walk *w, const tsi_unit_event *own, const tsi_unit_event *next)
{
    const tsi_units *all = w->all;
    int64_t unit = place_of(all, own->unit);
    bool was_whole = w->state[unit] == TSI_UNIT_WHOLE;
    bool reads = tsi_unit_reads(own->unit, own->phase);
    bool ahead =
        next && !own->unit->options.prefetch_off && tsi_unit_reads(next->unit, next->phase);
    if (reads) TSI_TRY(gather(w, unit));
    for (const tsi_unit *n = ahead ? next->unit : NULL; n; n = n->beside)
        TSI_TRY(gather(w, place_of(all, n)));
    if (was_whole || !reads) return TS_OK;
    w->state[unit] = TSI_UNIT_WHOLE;
    return wait_for(w, unit, WHOLE);
}

static ts_status event(walk *w, int64_t at)
{
    const tsi_units *all = w->all;
    const tsi_unit_event *own = &w->order->event[at];
    const tsi_unit_event *next = at + 1 < w->order->count ? own + 1 : NULL;
    const tsi_unit *u = own->unit;
    int32_t phase = own->phase;
    int64_t unit = place_of(all, u);
    bool last = !comes_again(w->order, at, phase);
    TSI_TRY(enter(w, own, next));
    TSI_TRY(compute(w, unit, phase, phase == TSI_UNIT_BACKWARD && last));
    if (phase == TSI_UNIT_BACKWARD && last) TSI_TRY(reduce(w, unit));
    bool turns = phase == TSI_UNIT_FORWARD && turns_at(w->order, at);
    bool stays = phase == TSI_UNIT_AGAIN ||
                 (phase == TSI_UNIT_FORWARD &&
                  (u->options.reshard == TS_RESHARD_NO || (turns && !u->options.reshard)));
    return stays || w->state[unit] == TSI_UNIT_CUT ? TS_OK : let_go(w, unit, WHOLE);
}

/* "gathers.fsdp.0": what the group does, along which axes, its first rank. */
static void name_group(const ts_mesh *mesh, uint32_t axes, const char *does, int32_t first,
                       char *out, size_t size)
{
    int length = snprintf(out, size, "%s", does);
    for (int32_t k = 0; k < ts_mesh_ndim(mesh); k++)
        if (axes >> k & 1 && length >= 0 && (size_t)length < size)
            length +=
                snprintf(out + length, size - (size_t)length, ".%s", ts_mesh_axis_name(mesh, k));
    if (length >= 0 && (size_t)length < size)
        (void)snprintf(out + length, size - (size_t)length, ".%d", first);
}

/* The ranks that differ from this one in these axes alone. */
static ts_status group_of(walk *w, const ts_mesh *mesh, uint32_t axes, const char *does,
                          int32_t *out)
{
    int64_t count = tsi_mesh_group_count(mesh->desc, axes);
    int64_t *rank = tsi_alloc_array((size_t)count, sizeof *rank);
    int32_t *member = tsi_alloc_array((size_t)count, sizeof *member);
    ts_status status = TS_OK;
    if (!rank || !member) {
        status = tsi_fail_memory("a group of a step", (size_t)count * sizeof *rank);
    } else {
        char name[160];
        tsi_mesh_group_ranks(mesh->desc, axes, w->coord, rank);
        for (int64_t i = 0; i < count; i++)
            member[i] = (int32_t)rank[i];
        name_group(mesh, axes, does, member[0], name, sizeof name);
        status = tsi_step_group_of(w->step, name, member, count, out);
    }
    tsi_free(rank);
    tsi_free(member);
    return status;
}

/* Gradients are terms of sums over all axes that cut the batch: those that cut the parameters of
 * its modules, whichever, and those of copies. */
static uint32_t sum_axes(const tsi_unit *u)
{
    uint32_t axes = u->axes_cut | u->axes_own;
    int32_t copies = ts_mesh_axis(u->mesh, "replicate");
    if (copies < 0) copies = ts_mesh_axis(u->mesh, "dp");
    return copies >= 0 ? axes | 1u << copies : axes;
}

static ts_status walk_rank(walk *w)
{
    for (int64_t i = 0; i < w->all->unit_count; i++) {
        const tsi_unit *u = w->all->unit[i];
        w->state[i] = TSI_UNIT_CUT;
        int32_t unused;
        TSI_TRY(group_of(w, u->mesh, u->axes_cut, "gathers", &w->group[i]));
        TSI_TRY(group_of(w, u->mesh, sum_axes(u), "sums", &w->sums[i]));
        TSI_TRY(value_of(w, i, SHARD, &unused));
    }
    for (int64_t at = 0; at < w->order->count; at++)
        TSI_TRY(event(w, at));
    return end_reduction(w);
}

ts_status tsi_units_step(const tsi_units *all, tsi_step **out)
{
    *out = NULL;
    const tsi_unit_order *order = tsi_units_order(all);
    if (all->unit_count == 0 || !order)
        return TSI_FAIL(TS_ERR_STATE, "fsdp: the order of units is not known yet");
    const ts_mesh *mesh = all->unit[0]->mesh;
    walk w = { .all = all, .order = order, .reducing = -1 };
    size_t units = (size_t)all->unit_count;
    w.state = tsi_calloc(units, sizeof *w.state);
    w.group = tsi_calloc(2 * units, sizeof *w.group);
    ts_status status = w.state && w.group ? tsi_step_create(mesh->desc->count, &w.step)
                                          : tsi_fail_memory("states of units", units);
    w.sums = w.group ? w.group + units : NULL;
    if (status == TS_OK) status = tsi_step_queue(w.step, "comm", &w.comm);
    for (int64_t i = 0; status == TS_OK && i < mesh->desc->count; i++) {
        tsi_mesh_desc_unravel(mesh->desc, i, w.coord);
        w.rank = i;
        status = walk_rank(&w);
    }
    tsi_free(w.state);
    tsi_free(w.group);
    if (status == TS_OK)
        *out = w.step;
    else
        tsi_step_destroy(w.step);
    return status;
}
