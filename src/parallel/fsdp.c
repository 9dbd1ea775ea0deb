/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp.c - units of modules: making them, and what they do when their modules are called.
 *
 *   before forward    gather, unless it was gathered ahead; the next unit is gathered ahead
 *   after forward     let go, by the unit's reshard; without a tape always
 *   before backward   gather again, if it went; the unit before it is gathered ahead
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
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "parallel/unit.h"

/* ---- what a unit does ------------------------------------------------------------------------ */

static bool in_backward(ts_rank *rank)
{
    return tsi_autograd_state_of(rank) && tsi_autograd_state_of(rank)->running;
}

static ts_status enter(tsi_unit *u, tsi_unit_phase phase)
{
    TSI_TRY(tsi_units_find(u));
    TSI_TRY(tsi_unit_watch(u));
    bool ahead = u->state == TSI_UNIT_COMING;
    u->users++;
    TSI_TRY(tsi_units_agree(u, phase));
    TSI_TRY(tsi_unit_gather(u));
    TSI_TRY(tsi_units_event(u, phase));
    TSI_TRY(tsi_unit_bind(u));
    if (ahead) u->all->stats.prefetched++;
    return TS_OK;
}

/* The time of the host in what a unit does before and after its modules, waiting for peers aside.
 */
typedef struct watch {
    int64_t begin, waited;
} watch;

static watch watch_begin(const tsi_unit *u)
{
    return (watch){ tsi_clock_ns(), u->all ? u->all->waited_ns : 0 };
}

static ts_status watch_end(const tsi_unit *u, watch w, ts_status status)
{
    if (!u->all) return status;
    u->all->stats.host_ns += tsi_clock_ns() - w.begin - (u->all->waited_ns - w.waited);
    return status;
}

/* Has the last module of the unit ended in this direction? */
static bool leave(tsi_unit *u, int32_t *passed)
{
    if (u->users > 0) u->users--;
    if (u->users > 0) return false;
    if (++*passed < u->module_count) return false;
    *passed = 0;
    return true;
}

static bool has_units_below(const ts_module *m)
{
    for (const ts_module *child = m->first; child; child = child->next)
        if (child->unit || has_units_below(child)) return true;
    return false;
}

static ts_status forward_before(ts_module *m, void *context)
{
    tsi_unit *u = context;
    watch w = watch_begin(u);
    ts_status status = enter(u, in_backward(m->rank) ? TSI_UNIT_AGAIN : TSI_UNIT_FORWARD);
    if (u->all) u->all->stats.calls++;
    return watch_end(u, w, status);
}

static ts_status end_forward(ts_module *m, tsi_unit *u)
{
    bool last = leave(u, &u->forward_passed);
    if (!last || in_backward(m->rank)) return TS_OK;
    if (!tsi_tape_recording(m->rank)) return tsi_unit_drop(u, false);
    int32_t reshard = u->options.reshard;
    if (reshard == TS_RESHARD_AUTO && !tsi_units_turns(u) && !has_units_below(m))
        reshard = TS_RESHARD_YES;
    if (reshard == TS_RESHARD_AUTO || reshard == TS_RESHARD_NO) return TS_OK;
    return tsi_unit_drop(u, reshard > 0);
}

static ts_status forward_after(ts_module *m, void *context)
{
    tsi_unit *u = context;
    watch w = watch_begin(u);
    return watch_end(u, w, end_forward(m, u));
}

static ts_status backward_before(ts_module *m, void *context)
{
    (void)m;
    tsi_unit *u = context;
    watch w = watch_begin(u);
    if (u->forward_passed > 0 && u->users == 0) {
        if (!u->said)
            tsi_log(TSI_LOG_WARN, "fsdp: unit %s: %d of its %d modules were called before backward",
                    u->name, u->forward_passed, u->module_count);
        u->said = 1;
        u->forward_passed = 0;
    }
    ts_status status = enter(u, TSI_UNIT_BACKWARD);
    if (u->all) u->all->stats.calls++;
    return watch_end(u, w, status);
}

static ts_status end_backward(ts_module *m, tsi_unit *u)
{
    if (!leave(u, &u->backward_passed)) return TS_OK;
    const tsi_backward *running = tsi_autograd_state_of(m->rank)->running;
    if (running && !running->outer && !running->lazy) {
        if (u->options.unused) TSI_TRY(tsi_unit_agree(u));
        TSI_TRY(tsi_unit_reduce(u));
    }
    return u->reshard_backward ? tsi_unit_drop(u, false) : TS_OK;
}

static ts_status backward_after(ts_module *m, void *context)
{
    tsi_unit *u = context;
    watch w = watch_begin(u);
    return watch_end(u, w, end_backward(m, u));
}

static ts_status reset(ts_module *m, void *context)
{
    (void)m;
    tsi_unit *u = context;
    tsi_unit_forget(u);
    if (!u->all) return TS_OK;
    u->all->at = 0;
    u->all->reducing = NULL;
    return TS_OK;
}

/* What a user's function gave is what was asked for. */
ts_status tsi_unit_check_moved(const tsi_unit *u, const char *what, const ts_sharding *const *to,
                               int32_t count, ts_tensor *const *out)
{
    for (int32_t i = 0; i < count; i++) {
        const ts_layout *layout = out[i] ? ts_tensor_layout(out[i]) : NULL;
        if (layout && layout->sharding == to[i]) continue;
        if (ts_rank_status(u->rank) != TS_OK) return ts_rank_status(u->rank);
        return TSI_FAIL(TS_ERR_ARG, "fsdp: unit %s: its own %s gave %s for tensor %d of %d",
                        u->name, what, layout ? layout->text : "nothing", i, count);
    }
    return TS_OK;
}

/* ---- ending ---------------------------------------------------------------------------------- */

static void unit_free(tsi_unit *u)
{
    for (int64_t i = 0; i < u->count; i++) {
        tsi_unit_param *p = &u->param[i];
        tsi_leaf *leaf = tsi_leaf_of(p->param->value);
        if (leaf && leaf->complete_context == p) leaf->complete = NULL;
        p->param->unit = NULL;
        p->param->unit_block = NULL;
        ts_sharding_release(p->cut);
        ts_sharding_release(p->whole);
        ts_sharding_release(p->kept);
    }
    ts_mesh_release(u->groups);
    tsi_free(u->ahead[0].unit);
    tsi_free(u->ahead[1].unit);
    tsi_free(u->list);
    tsi_free(u->list_to);
    tsi_free(u->param);
    tsi_free(u->module);
    tsi_free(u->name);
    tsi_free(u);
}

static void unit_destroy(ts_module *m)
{
    tsi_unit *u = m->unit;
    for (int32_t i = 0; i < u->module_count; i++)
        u->module[i]->unit = NULL;
    tsi_unit_forget(u);
    tsi_unit_leave_shared(u);
    tsi_units_leave(u);
    unit_free(u);
}

/* ---- making ---------------------------------------------------------------------------------- */

static ts_status take_param(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m;
    tsi_unit *u = context;
    if (param->unit) return TS_OK;
    int32_t dim =
        u->options.dim ? u->options.dim(name, param->shape, 0, u->options.dim_context) : 0;
    if (dim == TS_FSDP_IGNORE) return TS_OK;
    size_t bytes = (size_t)(u->count + 1) * sizeof *u->param;
    tsi_unit_param *grown = tsi_realloc(u->param, bytes);
    if (!grown) return tsi_fail_memory("the parameters of a unit", bytes);
    u->param = grown;
    u->param[u->count++] = (tsi_unit_param){ .param = param, .unit = u };
    param->unit = u;
    param->unit_block = tsi_unit_block;
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

static ts_status check_module(const ts_module *m, const ts_module *first, const char *name)
{
    frozen_count count = { 0 };
    if (m->unit) return TSI_FAIL(TS_ERR_STATE, "fsdp: %s is a unit already", name);
    if (m->mesh->desc != first->mesh->desc)
        return TSI_FAIL(TS_ERR_MESH, "fsdp: %s lies on another mesh than the first of its unit",
                        name);
    TSI_TRY(tsi_module_visit((ts_module *)(uintptr_t)m, count_frozen, &count));
    if (!m->parent && count.all > 0 && count.frozen == count.all)
        return TSI_FAIL(TS_ERR_ARG,
                        "fsdp: %s: all of its %lld parameters are frozen, so that nothing would be "
                        "trained",
                        name, (long long)count.all);
    return TS_OK;
}

static const char *name_of(const ts_module *m, char *out, size_t size)
{
    (void)ts_module_name(m, out, size);
    if (!out[0]) snprintf(out, size, "the top of the tree");
    return out;
}

static ts_status find_axes(tsi_unit *u)
{
    const char *axes = u->options.axes;
    if (axes) {
        if (tsi_mesh_axes(u->mesh, axes, &u->axes_cut) == TS_OK) return TS_OK;
        tsi_error_prefix("fsdp: unit %s", u->name);
        return ts_rank_status(u->rank);
    }
    int32_t fsdp = ts_mesh_axis(u->mesh, "fsdp"), context = ts_mesh_axis(u->mesh, "cp");
    if (fsdp < 0) return TS_OK;
    u->axes_cut = 1u << fsdp;
    if (context >= 0) u->axes_cut |= 1u << context;
    return TS_OK;
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

static ts_status unit_fill(tsi_unit *u, ts_module *const *m)
{
    char name[TSI_PARAM_NAME_MAX];
    u->name = tsi_strdup(name_of(m[0], name, sizeof name));
    u->module = tsi_alloc_array((size_t)u->module_count, sizeof *u->module);
    if (!u->name || !u->module) return tsi_fail_memory("a unit", sizeof *u);
    memcpy(u->module, m, (size_t)u->module_count * sizeof *u->module);
    for (int32_t i = 0; i < u->module_count; i++) {
        TSI_TRY(check_module(m[i], m[0], name_of(m[i], name, sizeof name)));
        TSI_TRY(tsi_module_visit(m[i], take_param, u));
    }
    if (u->count == 0)
        return TSI_FAIL(TS_ERR_ARG, "fsdp: %s has no parameters that are not in a unit below it",
                        u->name);
    u->list = tsi_calloc(2 * (size_t)u->count, sizeof *u->list);
    u->list_to = tsi_calloc((size_t)u->count, sizeof *u->list_to);
    if (!u->list || !u->list_to) return tsi_fail_memory("a unit", 3 * (size_t)u->count * 8);
    TSI_TRY(find_axes(u));
    TSI_TRY(split_axis(u));
    return tsi_unit_place(u);
}

ts_status ts_fsdp_together(ts_module *const *m, int32_t count, const ts_fsdp_options *options)
{
    if (!m || count < 1 || !m[0]) return TSI_FAIL(TS_ERR_NULL, "fsdp: there is no module");
    TSI_TRY(tsi_rank_enter(m[0]->rank));
    for (int32_t i = 1; i < count; i++)
        if (!m[i]) return TSI_FAIL(TS_ERR_NULL, "fsdp: module %d of the unit is NULL", i);
    tsi_unit *u = tsi_calloc(1, sizeof *u);
    if (!u) return tsi_fail_memory("a unit", sizeof *u);
    u->rank = m[0]->rank;
    u->mesh = m[0]->mesh;
    u->module_count = count;
    u->all_reduce = u->reshard_backward = 1;
    u->options.struct_size = sizeof u->options;
    if (options)
        memcpy(&u->options, options,
               options->struct_size < sizeof u->options ? options->struct_size : sizeof u->options);
    ts_status status = unit_fill(u, m);
    if (status == TS_OK) status = add_hooks(u);
    if (status != TS_OK) {
        unit_free(u);
        return status;
    }
    for (int32_t i = 0; i < count; i++) {
        m[i]->unit = u;
        m[i]->unit_destroy = unit_destroy;
    }
    return TS_OK;
}

ts_status ts_fsdp(ts_module *m, const ts_fsdp_options *options)
{
    return ts_fsdp_together(&m, 1, options);
}

ts_status ts_reshard_parse(const char *text, int32_t *out)
{
    static const char *const word[] = { "auto", "yes", "no" };
    static const int32_t value[] = { TS_RESHARD_AUTO, TS_RESHARD_YES, TS_RESHARD_NO };
    if (!text || !out) return TSI_FAIL(TS_ERR_NULL, "reshard: an argument is NULL");
    for (int32_t i = 0; i < 3; i++) {
        if (strcmp(text, word[i]) != 0) continue;
        *out = value[i];
        return TS_OK;
    }
    tsi_cursor cursor = tsi_cursor_of("reshard", text);
    int64_t number = 0;
    bool good = tsi_cursor_int(&cursor, &number) && tsi_cursor_done(&cursor);
    if (!good || number < 1 || number > INT32_MAX)
        return TSI_FAIL(TS_ERR_ARG,
                        "reshard: expected auto, yes, no or a number of ranks, found \"%.40s\"",
                        text);
    *out = (int32_t)number;
    return TS_OK;
}

/* ---- by hand --------------------------------------------------------------------------------- */

static ts_status unit_of(const ts_module *m, tsi_unit **out)
{
    char name[TSI_PARAM_NAME_MAX];
    *out = NULL;
    if (!m) return TSI_FAIL(TS_ERR_NULL, "fsdp: there is no module");
    TSI_TRY(tsi_rank_enter(m->rank));
    if (!m->unit)
        return TSI_FAIL(TS_ERR_STATE, "fsdp: %s is no unit", name_of(m, name, sizeof name));
    *out = m->unit;
    return TS_OK;
}

ts_status ts_fsdp_gather(ts_module *m)
{
    tsi_unit *u;
    TSI_TRY(unit_of(m, &u));
    TSI_TRY(tsi_units_find(u));
    u->users++;
    return tsi_unit_bind(u);
}

ts_status ts_fsdp_release(ts_module *m)
{
    tsi_unit *u;
    TSI_TRY(unit_of(m, &u));
    if (u->users > 0) u->users--;
    return u->users > 0 ? TS_OK : tsi_unit_drop(u, false);
}

ts_status ts_fsdp_prefetch(ts_module *m, ts_module *const *next, int32_t count, int32_t backward)
{
    tsi_unit *u, *one;
    TSI_TRY(unit_of(m, &u));
    if (count < 0 || (count > 0 && !next))
        return TSI_FAIL(TS_ERR_ARG, "fsdp: unit %s: %d units are to be gathered ahead", u->name,
                        count);
    TSI_TRY(tsi_units_find(u));
    tsi_unit_ahead *list = &u->ahead[backward != 0];
    tsi_unit **units = tsi_calloc((size_t)count + 1, sizeof *units);
    if (!units) return tsi_fail_memory("units to gather ahead", (size_t)count * sizeof *units);
    for (int32_t i = 0; i < count; i++) {
        ts_status status = unit_of(next[i], &one);
        if (status == TS_OK) status = tsi_units_find(one);
        if (status == TS_OK && one->all != u->all)
            status =
                TSI_FAIL(TS_ERR_ARG, "fsdp: units %s and %s are of two trees", u->name, one->name);
        if (status != TS_OK) {
            tsi_free(units);
            return status;
        }
        units[i] = one;
    }
    tsi_free(list->unit);
    *list = (tsi_unit_ahead){ units, count };
    return TS_OK;
}

static ts_status set_unit(tsi_unit *u, ts_fsdp_switch what, int32_t value)
{
    switch (what) {
    case TS_FSDP_ALL_REDUCE:
        u->all_reduce = value != 0;
        return TS_OK;
    case TS_FSDP_RESHARD_FORWARD:
        if (value > 0)
            return TSI_FAIL(TS_ERR_ARG, "fsdp: unit %s: groups of ranks are said when it is made",
                            u->name);
        u->options.reshard = value;
        return TS_OK;
    case TS_FSDP_RESHARD_BACKWARD:
        u->reshard_backward = value != 0;
        return TS_OK;
    case TS_FSDP_SWITCH_COUNT:
        break;
    }
    return TSI_FAIL(TS_ERR_ARG, "fsdp: there is no switch %d", (int)what);
}

static ts_status set_below(ts_module *m, ts_fsdp_switch what, int32_t value)
{
    if (m->unit) TSI_TRY(set_unit(m->unit, what, value));
    for (ts_module *child = m->first; child; child = child->next)
        TSI_TRY(set_below(child, what, value));
    return TS_OK;
}

ts_status ts_fsdp_set(ts_module *root, ts_fsdp_switch what, int32_t value)
{
    if (!root) return TSI_FAIL(TS_ERR_NULL, "fsdp: there is no module");
    TSI_TRY(tsi_rank_enter(root->rank));
    return set_below(root, what, value);
}

static tsi_unit *first_below(const ts_module *m)
{
    tsi_unit *u = m->unit;
    for (const ts_module *child = m->first; child && !u; child = child->next)
        u = first_below(child);
    return u;
}

ts_status ts_fsdp_statistics(ts_module *root, ts_fsdp_stats *out)
{
    if (!root || !out) return TSI_FAIL(TS_ERR_NULL, "fsdp: an argument is NULL");
    size_t size = out->struct_size;
    TSI_TRY(tsi_rank_enter(root->rank));
    tsi_unit *u = first_below(root);
    ts_fsdp_stats stats = { 0 };
    if (u) {
        TSI_TRY(tsi_units_find(u));
        stats = u->all->stats;
    }
    memcpy(out, &stats, size < sizeof stats ? size : sizeof stats);
    out->struct_size = size;
    return TS_OK;
}
