/* SPDX-License-Identifier: Apache-2.0 */
/* gradients.c - gradients of a unit, from partial and whole to the shard.
 *
 *   backward of a unit --> its leaves are complete, one by one --> one round for all of them:
 *   partial over fsdp, replicate, tp: folded over the union of these axes in rank order, each rank
 *   receives the terms of its shard alone
 *
 * Gradients of two units are there at once: those on their way, and those that backward fills
 * meanwhile (prefetch_off 2: of one). Where units are gathered into blocks, those on their way are
 * waited for when half of the others are there: then the next unit takes their room. What an
 * earlier backward left in the shard (micro-batches) is added to.
 *
 * Where all are cut that is one round, in flight while backward goes on. With copies (replicate),
 * or with a parameter that cannot be cut, it is two: each rank folds its part of a block over all
 * axes, then those that want the same block give each other their parts. Both are issued at once:
 * the second is behind the first in its channel, and whoever waits for a gradient waits for both.
 *
 * In the usual step all that follows from layouts is known from the step before: the round was
 * prepared (tensor/prepared.h), and is only begun.
 *
 * INV: nothing is divided here: a loss is a sum over tokens, divided once by who makes it. */
#include "base/alloc.h"
#include "base/compiler.h"
#include "base/keep.h"
#include "parallel/unit.h"
#include "tensor/prepared.h"
#include "tensor/scope.h"

/* ---- who is ready ---------------------------------------------------------------------------- */

/* A parameter whose gradient is complete is read no more in this backward, and goes: its gradient
 * has taken as much memory. Where the unit stays, or is called by others at the same time, or where
 * ranks use different parameters, which would gather again at different times, it stays. */
static ts_status leave_early(tsi_unit_param *p)
{
    const tsi_unit *u = p->unit;
    bool alone = u->users == 1 && u->backwards == 1; /* else somebody gathered it by hand */
    bool goes = u->reshard_backward && alone && u->module_count == 1 && !u->options.unused;
    return goes ? tsi_param_drop(p) : TS_OK;
}

/* Of all elements, by whole shapes: every rank comes to it at the same leaf. */
static bool has_half(const tsi_unit *u)
{
    int64_t ready = 0, trained = 0;
    for (int64_t i = 0; i < u->count; i++) {
        int64_t elements = u->param[i].leaf ? ts_shape_count(&u->param[i].param->shape) : 0;
        trained += elements;
        if (u->param[i].ready) ready += elements;
    }
    return 2 * ready >= trained;
}

static TSI_STEP_PATH ts_status leaf_complete(void *context)
{
    tsi_unit_param *p = context;
    tsi_unit *u = p->unit;
    TSI_TRY(leave_early(p));
    if (!p->ready) u->ready_count++;
    p->ready = 1;
    bool all = u->ready_count == u->trained && !u->options.unused;
    bool room = u->all && u->all->until == u && has_half(u);
    if (!all && !room) return TS_OK;
    tsi_watch w = tsi_watch_begin(u);
    ts_status status = room ? tsi_units_gather_later(u) : TS_OK;
    if (all && status == TS_OK) status = tsi_unit_reduce(u);
    tsi_watch_end(u, &w);
    return status;
}

/* Parameters may be frozen and trained again between two steps. Leaves are far from each other in
 * memory: they are looked for when there are others. */
TSI_STEP_PATH ts_status tsi_unit_watch(tsi_unit *u)
{
    const tsi_autograd_state *state = tsi_autograd_state_of(u->rank);
    if (!state) return ts_rank_status(u->rank);
    if (u->leaves_seen == state->leaves) return TS_OK;
    u->leaves_seen = state->leaves;
    u->trained = 0;
    for (int64_t i = 0; i < u->count; i++) {
        tsi_leaf *leaf = u->param[i].leaf = tsi_leaf_of(u->param[i].value);
        if (!leaf) continue;
        u->trained++;
        leaf->complete = leaf_complete;
        leaf->alone = u->options.unused ? tsi_unit_settles_together : NULL;
        leaf->complete_context = &u->param[i];
    }
    return TS_OK;
}

/* ---- where gradients go ---------------------------------------------------------------------- */

/* Without all-reduce, and where such a sum waits already, axes that do not cut stay partial, if
 * what comes is partial there: calls may have gone different ways. Retained. */
static const ts_sharding *target_of(const tsi_unit *u, const tsi_leaf *leaf)
{
    const ts_layout *waits = leaf->reduced ? ts_tensor_layout(leaf->reduced) : NULL;
    bool partly = waits && waits != leaf->layout;
    if (!partly && u->all_reduce) return ts_sharding_retain(leaf->layout->sharding);
    ts_placement place[TS_NDIM_MAX];
    const ts_sharding *from = ts_tensor_layout(leaf->grad)->sharding;
    for (int32_t k = 0; k < from->ndim; k++) {
        bool open = !partly || tsi_placement_partial(&waits->sharding->place[k]);
        bool stays = open && tsi_placement_partial(&from->place[k]) && !(u->axes_cut >> k & 1);
        place[k] = stays ? from->place[k] : leaf->layout->sharding->place[k];
    }
    return tsi_sharding_intern(from->mesh, place);
}

/* The sum of this backward is in the target's layout: it becomes the leaf's, or is added. */
static ts_status take_sum(const tsi_unit *u, tsi_leaf *leaf, ts_tensor *sum)
{
    if (sum && sum->dtype != leaf->dtype) sum = ts_cast(sum, (ts_dtype)leaf->dtype);
    ts_tensor *waits = sum ? leaf->reduced : NULL;
    if (waits && waits->layout != leaf->layout && waits->layout != sum->layout)
        waits = (ts_redistribute_to)(waits, sum->layout->sharding);
    if (leaf->reduced) sum = waits ? ts_add(waits, sum) : NULL;
    bool partly = sum && u->all_reduce && sum->layout != leaf->layout;
    if (partly) sum = (ts_redistribute_to)(sum, leaf->layout->sharding);
    if (!sum) return ts_rank_status(u->rank);
    TSI_TRY(ts_tensor_write(leaf->grad, sum));
    leaf->settled = 1;
    tsi_tensor_release(leaf->reduced);
    leaf->reduced = NULL;
    return TS_OK;
}

typedef struct round_list { /* room for all parameters of the unit */
    tsi_leaf **leaf;
    ts_tensor **from, **out;
    const ts_sharding **to; /* retained */
    int32_t count;
} round_list;

/* The same terms in another dtype, of the innermost scope: with fewer bits each is rounded by
 * itself, where a cast of the tensor would add them up first. NULL: recorded. */
static ts_tensor *cast_terms(ts_tensor *grad, ts_dtype dtype)
{
    if (tsi_tensor_ready(grad) != TS_OK) return NULL;
    tsi_array *block = tsi_tensor_block_tagged(grad->mesh, grad->layout, dtype, TSI_TAG_GRADIENT);
    if (block && tsi_array_copy(block, grad->array) == TS_OK)
        return tsi_tensor_make(grad->mesh, grad->layout, dtype, block, NULL);
    tsi_array_release(block);
    return NULL;
}

static ts_status list_fill(tsi_unit *u, round_list *list)
{
    for (int64_t i = 0; i < u->count; i++) {
        tsi_unit_param *p = &u->param[i];
        tsi_leaf *leaf = tsi_leaf_of(p->value);
        if (!p->ready) continue;
        p->ready = 0;
        if (!leaf || leaf->settled || !leaf->grad || !ts_tensor_layout(leaf->grad)) continue;
        ts_tensor *grad = leaf->grad;
        if (u->options.reduce && u->options.reduce != grad->dtype)
            grad = cast_terms(grad, (ts_dtype)u->options.reduce);
        const ts_sharding *to = grad ? target_of(u, leaf) : NULL;
        if (!to) return ts_rank_status(u->rank);
        list->leaf[list->count] = leaf;
        list->from[list->count] = grad;
        list->to[list->count++] = to;
    }
    u->ready_count = 0;
    return TS_OK;
}

static ts_status reduce_all(const tsi_unit *u, round_list *list)
{
    if (!u->options.reduce_fn)
        return tsi_redistribute_tagged(list->from, list->to, list->count, TSI_TAG_GRADIENT,
                                       list->out);
    ts_status status =
        u->options.reduce_fn(list->from, list->to, list->count, list->out, u->options.move_context);
    return tsi_unit_check_moved(u, "reduction", status, list->from, list->to, list->count,
                                list->out);
}

static ts_status list_run(tsi_unit *u, round_list *list)
{
    TSI_TRY(list_fill(u, list));
    if (list->count == 0) return TS_OK;
    TSI_TRY(reduce_all(u, list));
    for (int32_t i = 0; i < list->count; i++)
        TSI_TRY(take_sum(u, list->leaf[i], list->out[i]));
    if (u->all) u->all->stats.reductions++;
    return TS_OK;
}

/* ---- the usual step -------------------------------------------------------------------------- */

/* Does somebody beside the tape want to hear of each move? */
static bool is_watched(const ts_rank *rank)
{
    uint32_t hearers = rank->observers.hearers[TSI_NEWS_MOVE];
    return (hearers & (hearers - 1)) != 0;
}

/* Are gradients reduced as they are, from what backward left straight into the shard? */
static bool is_usual(const tsi_unit *u)
{
    return u->all_reduce && !u->options.reduce && !u->options.reduce_fn && !u->one_by_one &&
           !tsi_keeps(u->rank) && !is_watched(u->rank);
}

/* The gradients that are ready, in u->list, and where they go, in u->layouts. -1: some of them need
 * more than a move. */
static int32_t list_usual(tsi_unit *u)
{
    int32_t count = 0;
    for (int64_t i = 0; i < u->count; i++) {
        const tsi_unit_param *p = &u->param[i];
        tsi_leaf *leaf = p->leaf;
        if (!p->ready) continue;
        if (!leaf || leaf->settled || leaf->reduced || !leaf->grad || !leaf->grad->layout ||
            leaf->grad->dtype != leaf->dtype)
            return -1;
        u->leaves[count] = leaf;
        u->list[count] = leaf->grad;
        u->layouts[count++] = leaf->layout;
    }
    return count;
}

/* Sets *done: whether what is ready was reduced, in a round that was prepared. */
static ts_status reduce_prepared(tsi_unit *u, bool *done)
{
    *done = false;
    TSI_TRY(tsi_unit_watch(u));
    int32_t count = is_usual(u) ? list_usual(u) : -1;
    if (count < 0) return TS_OK;
    if (!tsi_prepared_fits(u->reduction, u->list, u->layouts, count)) {
        tsi_prepared_destroy(u->reduction);
        u->reduction = NULL;
        TSI_TRY(tsi_prepared_make(u->list, u->layouts, count, TSI_TAG_GRADIENT, &u->reduction));
        u->one_by_one = !u->reduction;
        if (u->one_by_one) return TS_OK;
    }
    TSI_TRY(tsi_prepared_run(u->reduction, u->name, u->list, u->list));
    for (int32_t i = 0; i < count; i++)
        u->leaves[i]->settled = 1;
    for (int64_t i = 0; i < u->count; i++)
        u->param[i].ready = 0;
    u->ready_count = 0;
    u->all->stats.reductions++;
    *done = true;
    return TS_OK;
}

/* ---- reducing -------------------------------------------------------------------------------- */

TSI_STEP_PATH ts_status tsi_units_settle(tsi_units *all)
{
    tsi_unit *u = all->reducing;
    bool at_work = tsi_watch_wait(all);
    all->reducing = NULL;
    for (int64_t i = 0; u && i < u->count; i++) {
        const tsi_leaf *leaf = tsi_leaf_of(u->param[i].value);
        if (leaf && leaf->grad) TSI_TRY(tsi_tensor_ready(leaf->grad));
    }
    tsi_watch_waited(all, at_work);
    return TS_OK;
}

static ts_status reduce_by_list(tsi_unit *u)
{
    round_list list = { u->leaves, u->list, u->list + u->count, u->list_to, 0 };
    ts_scope scope =
        ts_scope_open_with(u->rank, TS_OPTIONS(ts_scope_options, .no_grad = 1, .label = "reduce"));
    tsi_scope_relabel(scope, u->label);
    ts_status status = list_run(u, &list);
    ts_scope_close(scope);
    for (int32_t i = 0; i < list.count; i++)
        ts_sharding_release(list.to[i]);
    return status;
}

static ts_status reduce(tsi_unit *u)
{
    const char *label = u->rank->label, *where = u->rank->where;
    bool done = false;
    u->rank->label = u->label; /* sums are the unit's, whosever turn it is */
    (void)TS_HERE;
    ts_status status = u->all ? reduce_prepared(u, &done) : TS_OK;
    if (status == TS_OK && !done) status = reduce_by_list(u);
    u->rank->label = label;
    u->rank->where = where;
    return status;
}

TSI_STEP_PATH ts_status tsi_unit_reduce(tsi_unit *u)
{
    if (u->ready_count == 0) return TS_OK;
    TSI_TRY(tsi_unit_at_border(u));
    if (u->all) TSI_TRY(tsi_units_settle(u->all));
    TSI_TRY(reduce(u));
    if (!u->all) return TS_OK;
    u->all->reducing = u;
    u->all->reduced_in = tsi_autograd_state_of(u->rank)->serial;
    return u->options.prefetch_off > 1 ? tsi_units_settle(u->all) : TS_OK;
}
