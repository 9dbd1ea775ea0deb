/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp.c - units of modules: making them, and what they do when their modules are called.
 *
 *   before forward    gather, unless it was gathered ahead; the next unit is gathered ahead
 *   after forward     let go, by the unit's reshard; without a tape always
 *   before backward   gather again, if it went and a gradient reads it (that of a table of
 *                     embeddings does not); the unit before it is gathered ahead
 *   in backward       a parameter goes when its gradient is complete, where it has a block
 *   after backward    reduce gradients, let go
 *   reset             a step was abandoned: shards are what handles show, nothing is on its way
 *
 * Inside a function that runs again in backward the unit is gathered once for both: after the
 * second forward it stays.
 *
 * INV: a parameter is in one unit at most. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/log.h"
#include "parallel/unit.h"
#include "tensor/prepared.h"

/* ---- what a unit does ------------------------------------------------------------------------ */

static bool in_backward(ts_rank *rank)
{
    return tsi_autograd_state_of(rank) && tsi_autograd_state_of(rank)->running;
}

static TSI_STEP_PATH ts_status enter(tsi_unit *u, tsi_unit_phase phase)
{
    TSI_TRY(tsi_units_find(u));
    TSI_TRY(tsi_unit_at_border(u));
    if (phase == TSI_UNIT_FORWARD) TSI_TRY(tsi_unit_watch(u));
    bool ahead = u->state == TSI_UNIT_COMING;
    bool reads = tsi_unit_reads(u, phase);
    if (u->state == TSI_UNIT_WHOLE) tsi_unit_look(u, false);
    u->users++;
    TSI_TRY(tsi_units_agree(u, phase));
    if (reads) TSI_TRY(tsi_unit_gather(u));
    TSI_TRY(tsi_units_event(u, phase));
    if (reads) TSI_TRY(tsi_unit_bind(u));
    if (ahead) u->all->stats.prefetched++;
    return TS_OK;
}

/* Has the last module of the unit ended in this direction? `users`: who is there in it; `open`:
 * calls that may be to come, for a module of a list may be called twice, or not at all. */
static bool leave(tsi_unit *u, int32_t users, int64_t open, int32_t *passed)
{
    if (u->users > 0) u->users--;
    if (users > 0) return false;
    if (++*passed < u->module_count && open > 0) return false;
    *passed = 0;
    return true;
}

static bool has_units_below(const ts_module *m)
{
    for (const ts_module *child = m->first; child; child = child->next)
        if (child->unit || has_units_below(child)) return true;
    return false;
}

/* Of one module: looked for when the units of the tree are others than before. */
static bool has_inner(const ts_module *m, tsi_unit *u)
{
    if (u->module_count != 1) return has_units_below(m);
    if (u->inner == 0) u->inner = has_units_below(m) ? 1 : -1;
    return u->inner > 0;
}

static int64_t nodes_of(ts_rank *rank)
{
    const ts_tape *tape = tsi_tape_recording(rank);
    return tape ? tape->node_count : -1;
}

static TSI_STEP_PATH ts_status forward_before(ts_module *m, void *context)
{
    tsi_unit *u = context;
    tsi_watch w = tsi_watch_begin(u);
    if (u->users == 0) u->node_first = nodes_of(m->rank);
    ts_status status = enter(u, in_backward(m->rank) ? TSI_UNIT_AGAIN : TSI_UNIT_FORWARD);
    if (u->all) u->all->stats.calls++;
    tsi_watch_end(u, &w);
    return status;
}

/* Backward tells a unit by what its modules recorded. If they recorded nothing, because what is
 * made of their weights is made elsewhere, gradients would arrive that nobody reduces. Who says
 * that some ranks may not use them (options.unused) may use none. */
static ts_status check_trigger(tsi_unit *u)
{
    bool recorded = u->recorded;
    u->recorded = 0;
    if (recorded || u->node_first < 0 || u->trained == 0 || u->options.unused) return TS_OK;
    TSI_TRY(ts_rank_status(u->rank));
    return TSI_FAIL(TS_ERR_STATE,
                    "fsdp: unit %s: it has %lld trained parameters, and its call recorded nothing, "
                    "so that backward would not reach it: what uses them belongs inside of it",
                    u->name, (long long)u->trained);
}

/* Is it a parameter of the unit, which is gathered, or does it lie where one does, as views of it
 * do? */
static bool shows_param(const ts_tensor *t, const tsi_unit *u)
{
    const tsi_storage *storage = t->array ? t->array->storage : NULL;
    for (int64_t k = 0; k < u->count; k++) {
        const ts_tensor *value = u->param[k].value;
        if (value == t || (storage && value->array && value->array->storage == storage))
            return true;
    }
    return false;
}

/* Will the gradient of this call look at a parameter of the unit? Those of functions, and of what
 * is made again, may. */
static bool node_reads(const tsi_node *node, const tsi_unit *u)
{
    bool tells = (node->op || node->rounds || tsi_node_moves(node)) && !node->thin;
    if (!tells) return true;
    for (int32_t i = 0; node->saved && i < node->input_count + node->output_count; i++)
        if (node->saved[i] && shows_param(node->saved[i], u)) return true;
    return false;
}

/* A call has ended; other calls may wait for their backwards, too. */
static void note_reads(tsi_unit *u)
{
    const ts_tape *tape = tsi_tape_recording(u->rank);
    if (u->open == 0) u->spares_backward = !u->options.unused;
    for (int64_t i = u->node_first; u->spares_backward && i < tape->node_count; i++)
        u->spares_backward = !node_reads(&tape->node[i], u);
}

/* Backwards of calls on a tape that is not the one of this call may never come. */
static void note_tape(tsi_unit *u)
{
    uint64_t mark = tsi_tape_recording(u->rank)->scope_mark;
    if (mark != u->tape_mark) u->open = 0;
    u->tape_mark = mark;
}

static ts_status end_forward(ts_module *m, tsi_unit *u)
{
    bool records = u->users == 1 && nodes_of(m->rank) > u->node_first;
    if (records) note_tape(u);
    if (records) u->recorded = 1;
    if (records) note_reads(u);
    if (records) tsi_unit_look(u, true);
    if (records) u->open++;
    bool last = leave(u, u->users - 1, 1, &u->forward_passed);
    if (last) TSI_TRY(check_trigger(u));
    if (!last || in_backward(m->rank)) return TS_OK;
    if (!tsi_tape_recording(m->rank)) return tsi_unit_drop(u, false);
    int32_t reshard = u->options.reshard;
    if (reshard == TS_RESHARD_AUTO && !tsi_units_turns(u) && !has_inner(m, u))
        reshard = TS_RESHARD_YES;
    if (reshard == TS_RESHARD_AUTO || reshard == TS_RESHARD_NO) return TS_OK;
    return tsi_unit_drop(u, reshard > 0 && !u->spares_backward); /* who would gather a part? */
}

static TSI_STEP_PATH ts_status forward_after(ts_module *m, void *context)
{
    tsi_unit *u = context;
    tsi_watch w = tsi_watch_begin(u);
    ts_status status = end_forward(m, u);
    tsi_watch_end(u, &w);
    return status;
}

static TSI_STEP_PATH ts_status backward_before(ts_module *m, void *context)
{
    (void)m;
    tsi_unit *u = context;
    tsi_watch w = tsi_watch_begin(u);
    if (u->forward_passed > 0 && u->users == 0) {
        if (!u->said)
            tsi_log(TSI_LOG_WARN, "fsdp: unit %s: %d of its %d modules were called before backward",
                    u->name, u->forward_passed, u->module_count);
        u->said = 1;
        u->forward_passed = 0;
    }
    ts_status status = enter(u, TSI_UNIT_BACKWARD);
    u->backwards++;
    if (u->all) u->all->stats.calls++;
    tsi_watch_end(u, &w);
    return status;
}

static ts_status end_backward(ts_module *m, tsi_unit *u)
{
    if (u->backwards > 0) u->backwards--;
    if (u->open > 0) u->open--;
    /* Gathered by hand, it has its gradients all the same, and stays. */
    if (!leave(u, u->backwards, u->open, &u->backward_passed)) return TS_OK;
    const tsi_backward *running = tsi_autograd_state_of(m->rank)->running;
    if (u->options.unused && running && !running->outer) tsi_unit_note_use(u);
    if (running && !running->outer && !running->lazy) {
        if (u->options.unused) TSI_TRY(tsi_unit_agree(u));
        TSI_TRY(tsi_unit_reduce(u));
    }
    if (u->reshard_backward && u->users == 0) TSI_TRY(tsi_unit_drop(u, false));
    return tsi_units_gather_later(u); /* some of its gradients did not come */
}

static TSI_STEP_PATH ts_status backward_after(ts_module *m, void *context)
{
    tsi_unit *u = context;
    tsi_watch w = tsi_watch_begin(u);
    ts_status status = end_backward(m, u);
    tsi_watch_end(u, &w);
    return status;
}

static ts_status reset(ts_module *m, void *context)
{
    (void)m;
    tsi_unit *u = context;
    tsi_unit_forget(u);
    if (!u->all) return TS_OK;
    tsi_units_forget(u->all);
    u->all->reducing = NULL;
    return TS_OK;
}

static bool is_alike(const ts_tensor *a, const ts_tensor *b)
{
    ts_shape x = ts_tensor_shape(a), y = ts_tensor_shape(b);
    return ts_tensor_dtype(a) == ts_tensor_dtype(b) && tsi_shape_same(&x, &y);
}

/* What a user's function, which said `status`, gave is what was asked for. */
ts_status tsi_unit_check_moved(const tsi_unit *u, const char *what, ts_status status,
                               ts_tensor *const *from, const ts_sharding *const *to, int32_t count,
                               ts_tensor *const *out)
{
    if (status != TS_OK && ts_rank_status(u->rank) == TS_OK)
        return TSI_FAIL(status, "fsdp: unit %s: its own %s returned %s", u->name, what,
                        ts_status_name(status));
    for (int32_t i = 0; i < count; i++) {
        const ts_layout *layout = out[i] ? ts_tensor_layout(out[i]) : NULL;
        bool same = layout && layout->sharding == to[i] && is_alike(from[i], out[i]);
        if (same) continue;
        if (ts_rank_status(u->rank) != TS_OK) return ts_rank_status(u->rank);
        return TSI_FAIL(TS_ERR_ARG,
                        "fsdp: unit %s: its own %s gave %s of %s for tensor %d of %d, "
                        "which is of %s",
                        u->name, what, layout ? layout->text : "nothing",
                        layout ? ts_dtype_name(ts_tensor_dtype(out[i])) : "no dtype", i, count,
                        ts_dtype_name(ts_tensor_dtype(from[i])));
    }
    return TS_OK;
}

/* ---- ending ---------------------------------------------------------------------------------- */

static void unit_free(tsi_unit *u)
{
    for (int64_t i = 0; i < u->count; i++) {
        tsi_unit_param *p = &u->param[i];
        tsi_leaf *leaf = tsi_leaf_of(p->value);
        if (leaf && leaf->complete_context == p) leaf->complete = leaf->alone = NULL;
        p->param->unit = NULL;
        p->param->unit_block = NULL;
        p->param->unit_cut = NULL;
        p->value->swaps = 0;
        ts_sharding_release(p->cut);
        ts_sharding_release(p->whole);
        ts_sharding_release(p->kept);
    }
    ts_mesh_release(u->groups);
    tsi_free(u->ahead[0].unit);
    tsi_free(u->ahead[1].unit);
    tsi_free(u->list);
    tsi_free(u->list_to);
    tsi_free(u->layouts);
    tsi_prepared_destroy(u->reduction);
    tsi_free(u->leaves);
    tsi_free(u->param);
    tsi_free(u->module);
    tsi_free(u->name);
    tsi_free(u);
}

static void unit_destroy(ts_module *m)
{
    tsi_unit *u = m->unit, *next;
    for (int32_t i = 0; i < u->module_count; i++) {
        u->module[i]->unit = NULL;
        u->module[i]->unit_input = NULL;
        u->module[i]->unit_output = NULL;
    }
    for (; u; u = next) {
        next = u->beside;
        tsi_unit_forget(u);
        tsi_unit_leave_shared(u);
        tsi_units_leave(u);
        unit_free(u);
    }
}

/* ---- making ---------------------------------------------------------------------------------- */

/* By a text; NULL: "fsdp", with "cp" where the mesh has both. */
static ts_status find_axes(const tsi_unit *u, const char *text, uint32_t *out)
{
    *out = 0;
    if (text) {
        if (tsi_mesh_axes(u->mesh, text, out) == TS_OK) return TS_OK;
        tsi_error_prefix("fsdp: unit %s", u->name);
        return ts_rank_status(u->rank);
    }
    int32_t fsdp = ts_mesh_axis(u->mesh, "fsdp"), context = ts_mesh_axis(u->mesh, "cp");
    if (fsdp < 0) return TS_OK;
    *out = 1u << fsdp;
    if (context >= 0) *out |= 1u << context;
    return TS_OK;
}

static ts_status axes_of_param(const tsi_unit *u, const tsi_param *param, const char *name,
                               uint32_t *axes)
{
    const ts_fsdp_options *o = &u->options;
    const char *text = o->axes_fn ? o->axes_fn(name, param->shape, o->axes_context) : NULL;
    return text ? find_axes(u, text, axes) : TS_OK;
}

/* For one more; in cache lines of their own. */
static ts_status room_for_param(tsi_unit *u)
{
    size_t bytes = (size_t)u->count * sizeof *u->param;
    tsi_unit_param *grown = tsi_alloc_aligned(bytes + sizeof *u->param, TSI_CACHE_LINE);
    if (!grown) return tsi_fail_memory("the parameters of a unit", bytes + sizeof *u->param);
    if (bytes > 0) memcpy(grown, u->param, bytes);
    tsi_free(u->param);
    u->param = grown;
    return TS_OK;
}

/* Nobody reads the whole between two steps, though it may have been left there for the next one.
 * What is shown in fewer bits is not what is saved, read from a file or updated. */
static ts_status cut(tsi_param *param)
{
    tsi_unit *u = param->unit;
    char name[TSI_PARAM_NAME_MAX];
    if (u->state != TSI_UNIT_WHOLE) return TS_OK;
    if (u->users == 0) return tsi_unit_drop(u, false);
    if (param->value->dtype == param->dtype) return TS_OK;
    (void)tsi_name_text(&param->name, name, sizeof name);
    return TSI_FAIL(TS_ERR_STATE,
                    "fsdp: unit %s is gathered, so that %s is there in %s alone: let go of it "
                    "before parameters are saved, loaded or updated (ts_fsdp_release)",
                    u->name, name, ts_dtype_name((ts_dtype)param->value->dtype));
}

/* Where shards lie, gradients are to lie, too. */
static ts_status check_gradient(const tsi_unit *u, const tsi_param *param, const char *name)
{
    const tsi_leaf *leaf = tsi_leaf_of(param->value);
    if (!leaf || !leaf->grad || !ts_tensor_layout(leaf->grad)) return TS_OK;
    return TSI_FAIL(TS_ERR_STATE,
                    "fsdp: unit %s: %s has a gradient already; units are made before backward, or "
                    "gradients are cleared first",
                    u->name, name);
}

static ts_status take_param(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m;
    tsi_unit *u = context;
    if (param->unit) return TS_OK;
    uint32_t axes = u->axes_own;
    bool ignored = false;
    TSI_TRY(axes_of_param(u, param, name, &axes));
    TSI_TRY(tsi_unit_ignores(u, param, axes, &ignored));
    if (ignored) {
        u->has_ignored = 1;
        return TS_OK;
    }
    TSI_TRY(check_gradient(u, param, name));
    if (axes != u->axes_cut) {
        u->axes_left = axes;
        u->has_left = 1;
        return TS_OK;
    }
    TSI_TRY(room_for_param(u));
    u->param[u->count++] = (tsi_unit_param){ .param = param, .value = param->value, .unit = u };
    param->unit = u;
    param->unit_block = tsi_unit_block;
    param->unit_cut = cut;
    return TS_OK;
}

typedef struct frozen_count {
    int64_t all, frozen;
} frozen_count;

static ts_status count_frozen(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m;
    (void)name;
    frozen_count *count = context;
    count->all++;
    count->frozen += param->frozen;
    return TS_OK;
}

static ts_status check_module(ts_module *m, ts_module *first, const char *name)
{
    frozen_count count = { 0 };
    if (m->unit) return TSI_FAIL(TS_ERR_STATE, "fsdp: %s is a unit already", name);
    if (m->mesh->desc != first->mesh->desc)
        return TSI_FAIL(TS_ERR_MESH, "fsdp: %s lies on another mesh than the first of its unit",
                        name);
    if (tsi_module_top(m) != tsi_module_top(first))
        return TSI_FAIL(TS_ERR_ARG,
                        "fsdp: %s is in another tree of modules than the first of its "
                        "unit",
                        name);
    TSI_TRY(tsi_module_visit(m, count_frozen, &count));
    if (!m->parent && count.all > 0 && count.frozen == count.all)
        return TSI_FAIL(TS_ERR_ARG,
                        "fsdp: %s: all of its %lld parameters are frozen, so that nothing would be "
                        "trained",
                        name, (long long)count.all);
    return TS_OK;
}

const char *tsi_unit_title(const ts_module *m, char *out, size_t size)
{
    (void)ts_module_name(m, out, size);
    if (!out[0]) snprintf(out, size, "the top of the tree");
    return out;
}

/* reshard = k: the mesh whose cutting axis is groups of k neighbours. */
static ts_status split_axis(tsi_unit *u)
{
    int64_t k = u->options.reshard, ranks = 1;
    int32_t axis = -1, cuts = 0;
    for (int32_t i = 0; i < ts_mesh_ndim(u->mesh); i++) {
        if (!(u->axes_cut >> i & 1)) continue;
        axis = i;
        cuts++;
        ranks *= ts_mesh_axis_size(u->mesh, i);
    }
    if (k < TS_RESHARD_NO)
        return TSI_FAIL(TS_ERR_ARG, "fsdp: unit %s: reshard is %lld", u->name, (long long)k);
    if (k == 1) u->options.reshard = TS_RESHARD_NO;
    if (k == ranks) u->options.reshard = TS_RESHARD_YES;
    if (k <= 1 || k == ranks) return TS_OK;
    if (k > ranks || ranks % k != 0)
        return TSI_FAIL(TS_ERR_ARG,
                        "fsdp: unit %s: groups of %lld ranks do not divide the %lld ranks that it "
                        "is cut over",
                        u->name, (long long)k, (long long)ranks);
    if (cuts != 1)
        return TSI_FAIL(TS_ERR_ARG,
                        "fsdp: unit %s: groups of %lld ranks need one cutting axis, there are %d",
                        u->name, (long long)k, cuts);
    char text[64];
    snprintf(text, sizeof text, "fsdp_groups=%lld, fsdp_in=%lld", (long long)(ranks / k),
             (long long)k);
    u->groups = ts_mesh_split(u->mesh, ts_mesh_axis_name(u->mesh, axis), text);
    return u->groups ? TS_OK : ts_rank_status(u->rank);
}

static ts_status add_hooks(tsi_unit *u)
{
    for (int32_t i = 0; i < u->module_count; i++) {
        ts_module *m = u->module[i];
        TSI_TRY(ts_module_on(m, TS_HOOK_FORWARD_BEFORE, forward_before, u));
        TSI_TRY(ts_module_on(m, TS_HOOK_FORWARD_AFTER, forward_after, u));
        TSI_TRY(ts_module_on(m, TS_HOOK_BACKWARD_BEFORE, backward_before, u));
        TSI_TRY(ts_module_on(m, TS_HOOK_BACKWARD_AFTER, backward_after, u));
        TSI_TRY(ts_module_on(m, TS_HOOK_RESET, reset, u));
    }
    return TS_OK;
}

/* Parameters that the unit's axes cut, of those that are in none yet. */
static ts_status unit_fill(tsi_unit *u)
{
    for (int32_t i = 0; i < u->module_count; i++)
        TSI_TRY(tsi_module_visit(u->module[i], take_param, u));
    if (u->count == 0 && u->has_left) return TS_OK;
    if (u->count == 0)
        return TSI_FAIL(TS_ERR_ARG, "fsdp: %s has no parameters that are not %s", u->name,
                        u->has_ignored ? "ignored or in a unit below it" : "in a unit below it");
    u->list = tsi_calloc(2 * (size_t)u->count, sizeof *u->list);
    u->list_to = tsi_calloc((size_t)u->count, sizeof *u->list_to);
    u->layouts = tsi_calloc((size_t)u->count, sizeof *u->layouts);
    u->leaves = tsi_calloc((size_t)u->count, sizeof *u->leaves);
    if (!u->list || !u->list_to || !u->layouts || !u->leaves)
        return tsi_fail_memory("a unit", 5 * (size_t)u->count * sizeof *u->list);
    TSI_TRY(split_axis(u));
    return tsi_unit_place(u);
}

/* A unit of the modules, and which axes its options name; no parameters yet. NULL: recorded. */
static tsi_unit *unit_make(ts_module *const *m, int32_t count, const ts_fsdp_options *options)
{
    char name[TSI_PARAM_NAME_MAX];
    tsi_unit *u = tsi_calloc(1, sizeof *u);
    if (u) {
        u->name = tsi_strdup(tsi_unit_title(m[0], name, sizeof name));
        u->module = tsi_alloc_array((size_t)count, sizeof *u->module);
    }
    if (!u || !u->name || !u->module) {
        if (u) unit_free(u);
        (void)tsi_fail_memory("a unit", sizeof *u);
        return NULL;
    }
    memcpy(u->module, m, (size_t)count * sizeof *u->module);
    u->rank = m[0]->rank;
    u->mesh = m[0]->mesh;
    u->label = tsi_ring_name(u->rank->ring, m[0]->name.text[0] ? u->name : "");
    u->module_count = count;
    u->all_reduce = u->reshard_backward = 1;
    u->options.struct_size = sizeof u->options;
    if (options)
        memcpy(&u->options, options,
               options->struct_size < sizeof u->options ? options->struct_size : sizeof u->options);
    ts_status status = tsi_unit_check_casts(u);
    if (status == TS_OK) status = find_axes(u, u->options.axes, &u->axes_own);
    if (status == TS_OK) return u;
    unit_free(u);
    return NULL;
}

/* The next unit of the same modules, for the axes that this one left. NULL: recorded. */
static tsi_unit *make_beside(const tsi_unit *u, int32_t number)
{
    char name[TSI_PARAM_NAME_MAX + 16];
    tsi_unit *next = unit_make(u->module, u->module_count, &u->options);
    if (!next || number == 1) return next;
    if (next->options.reshard > 0) next->options.reshard = TS_RESHARD_YES;
    snprintf(name, sizeof name, "%s@%d", u->module[0]->name.text[0] ? next->name : "root", number);
    tsi_free(next->name);
    next->name = tsi_strdup(name);
    if (next->name) return next;
    unit_free(next);
    (void)tsi_fail_memory("a unit", sizeof name);
    return NULL;
}

static void free_chain(tsi_unit *u)
{
    while (u) {
        tsi_unit *next = u->beside;
        unit_free(u);
        u = next;
    }
}

/* One unit for each set of axes, the options' own first. NULL: recorded. */
static tsi_unit *make_chain(ts_module *const *m, int32_t count, const ts_fsdp_options *options)
{
    int32_t number = 1;
    tsi_unit *first = unit_make(m, count, options), *last = first;
    if (!first) return NULL;
    first->axes_cut = first->axes_own;
    ts_status status = unit_fill(first);
    while (status == TS_OK && last->has_left) {
        tsi_unit *next = make_beside(first, last->count > 0 ? ++number : number);
        status = next ? TS_OK : ts_rank_status(first->rank);
        if (!next) break;
        next->axes_cut = last->axes_left;
        if (last->count == 0) { /* all parameters name their axes */
            unit_free(last);
            first = next;
        } else {
            last->beside = next;
        }
        last = next;
        status = unit_fill(next);
    }
    if (status == TS_OK) return first;
    free_chain(first);
    return NULL;
}

ts_status ts_fsdp_together(ts_module *const *m, int32_t count, const ts_fsdp_options *options)
{
    char name[TSI_PARAM_NAME_MAX];
    if (!m || count < 1 || !m[0]) return TSI_FAIL(TS_ERR_NULL, "fsdp: there is no module");
    TSI_TRY(tsi_rank_enter(m[0]->rank));
    for (int32_t i = 0; i < count; i++) {
        if (!m[i]) return TSI_FAIL(TS_ERR_NULL, "fsdp: module %d of the unit is NULL", i);
        TSI_TRY(check_module(m[i], m[0], tsi_unit_title(m[i], name, sizeof name)));
        for (int32_t k = 0; k < i; k++)
            if (m[k] == m[i])
                return TSI_FAIL(TS_ERR_ARG, "fsdp: %s is twice among the modules of its unit",
                                tsi_unit_title(m[i], name, sizeof name));
    }
    tsi_unit *u = make_chain(m, count, options);
    if (!u) return ts_rank_status(m[0]->rank);
    ts_status status = TS_OK;
    for (tsi_unit *one = u; status == TS_OK && one; one = one->beside)
        status = add_hooks(one);
    if (status != TS_OK) {
        free_chain(u);
        return status;
    }
    for (int32_t i = 0; i < count; i++) {
        m[i]->unit = u;
        m[i]->unit_destroy = unit_destroy;
        m[i]->unit_input = tsi_unit_input;
        m[i]->unit_output = tsi_unit_output;
    }
    return TS_OK;
}

ts_status ts_fsdp(ts_module *m, const ts_fsdp_options *options)
{
    return ts_fsdp_together(&m, 1, options);
}
