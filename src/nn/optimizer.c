/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer.c - steps of AdamW, SGD and Muon on raw shards, and the total norm of gradients.
 *
 * A step first settles every gradient and turns the directions of Muon (which may communicate),
 * then updates blocks in place: past that point nothing can fail short of a lost rank, so a step
 * happens on all parameters or on none. Moments lie as their parameters do. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/keep.h"
#include "nn/optimizer.h"

/* ---- parameters that move -------------------------------------------------------------------- */

ts_tensor *tsi_trained_tensor(const tsi_trained *s, tsi_array *state)
{
    const ts_tensor *param = s->param;
    bool same = param->mesh->desc == s->layout->sharding->mesh;
    ts_mesh *mesh = same ? param->mesh : tsi_mesh_of(param->rank, s->layout->sharding->mesh);
    if (!mesh) return NULL;
    return tsi_tensor_make(mesh, s->layout, (ts_dtype)state->dtype, tsi_array_retain(state), NULL);
}

/* An array of state with the layout that its parameter has now; NULL: recorded. */
static tsi_array *moved(const tsi_trained *s, tsi_array *state)
{
    const ts_tensor *param = s->param;
    ts_scope scope = ts_scope_open(param->rank, NULL);
    ts_tensor *old = tsi_trained_tensor(s, state);
    ts_tensor *laid = old ? (ts_redistribute_to)(old, param->layout->sharding) : NULL;
    tsi_array *array = NULL;
    if (laid && tsi_tensor_ready(laid) == TS_OK) {
        ts_shape shape = tsi_array_shape(laid->array);
        array =
            tsi_array_create_tagged(param->rank, (ts_dtype)laid->dtype, &shape, TSI_TAG_OPTIMIZER);
    }
    if (array && tsi_array_copy(array, laid->array) != TS_OK) {
        tsi_array_release(array);
        array = NULL;
    }
    ts_scope_close(scope);
    return array;
}

/* Both moments, or none. */
static ts_status follow(tsi_trained *s)
{
    if (TSI_LIKELY(s->layout == s->param->layout)) return TS_OK;
    if (tsi_keeps(s->param->rank))
        return TSI_FAIL(TS_ERR_STATE,
                        "optimizer: %s lies as %s, its state as %s, which moves in a step that is "
                        "not recorded",
                        s->name, s->param->layout->text, s->layout->text);
    tsi_array *first = s->first ? moved(s, s->first) : NULL;
    tsi_array *second = first && s->second ? moved(s, s->second) : NULL;
    if ((s->first && !first) || (s->second && !second)) {
        tsi_array_release(first);
        return ts_rank_status(s->param->rank);
    }
    tsi_array_release(s->first);
    tsi_array_release(s->second);
    ts_layout_release(s->layout);
    s->first = first;
    s->second = second;
    s->layout = ts_layout_retain(s->param->layout);
    s->places.layout = NULL;
    return TS_OK;
}

ts_status tsi_optimizer_follow(ts_optimizer *o, ts_tensor *param, int32_t *moments, ts_dtype *dtype)
{
    *moments = 0;
    for (int64_t i = 0; o && i < o->count; i++) {
        tsi_trained *s = &o->slot[i];
        if (s->param != param) continue;
        *moments = (s->first != NULL) + (s->second != NULL);
        if (s->first) *dtype = (ts_dtype)s->first->dtype;
        TSI_TRY(follow(s));
    }
    return TS_OK;
}

/* ---- stepping -------------------------------------------------------------------------------- */

ts_status tsi_settled_grad(ts_tensor *param, ts_tensor **out)
{
    *out = ts_tensor_grad(param);
    if (!*out) return TS_OK;
    TSI_TRY(ts_grad_settle(param));
    TSI_TRY(tsi_tensor_ready(*out));
    if (tsi_array_is_dense((*out)->array)) return TS_OK;
    ts_scope scope = ts_scope_open(param->rank, NULL);
    ts_status status = ts_tensor_write(*out, ts_clone(*out));
    ts_scope_close(scope);
    return status;
}

/* An update writes the mirror too, which other ranks may read where it lies. */
static ts_status ask_mirror(ts_tensor *param)
{
    const tsi_array *mirror = tsi_param_mirror(tsi_param_of(param));
    const tsi_storage *storage = mirror ? mirror->storage : NULL;
    return storage && storage->ask ? storage->ask(storage->ask_context, NULL) : TS_OK;
}

/* The gradient as its parameter lies, also where that was laid out anew since backward. */
static ts_status grad_of(ts_tensor *param, ts_tensor **out)
{
    TSI_TRY(tsi_settled_grad(param, out));
    if (!*out || (*out)->layout == param->layout) return TS_OK;
    TSI_TRY(tsi_leaf_follow(tsi_leaf_of(param), param));
    return tsi_settled_grad(param, out);
}

/* Shards are updated, also of units that were left gathered: each rank its own. */
static ts_status cut_units(ts_optimizer *o)
{
    for (int64_t i = 0; i < o->count; i++) {
        tsi_param *body = tsi_param_of(o->slot[i].param);
        if (body && body->unit_cut && ts_tensor_grad(o->slot[i].param))
            TSI_TRY(body->unit_cut(body));
    }
    return TS_OK;
}

static ts_status settle_all(ts_optimizer *o)
{
    (void)TS_HERE;
    for (int64_t i = 0; i < o->count; i++) {
        ts_tensor *grad;
        TSI_TRY(grad_of(o->slot[i].param, &grad));
        if (!grad) continue;
        TSI_TRY(tsi_tensor_writable(o->slot[i].param, "optimizer: %s", o->slot[i].name));
        TSI_TRY(ask_mirror(o->slot[i].param));
        if (!tsi_array_is_dense(o->slot[i].param->array))
            return TSI_FAIL(TS_ERR_STATE, "optimizer: the block of %s is not dense",
                            o->slot[i].name);
        if (grad->layout != o->slot[i].param->layout)
            return TSI_FAIL(TS_ERR_STATE,
                            "optimizer: the gradient of %s lies as %s, the parameter as %s",
                            o->slot[i].name, grad->layout->text, o->slot[i].param->layout->text);
        TSI_TRY(follow(&o->slot[i]));
    }
    return TS_OK;
}

/* Are elements told apart by where they lie? */
static bool by_place(const tsi_trained *s)
{
    return s->second && s->second->dtype == TS_DTYPE_BF16;
}

/* Room for all that a step can update. */
static ts_status items_ready(ts_optimizer *o)
{
    int64_t wanted = 0;
    for (int64_t i = 0; i < o->count; i++) {
        tsi_trained *s = &o->slot[i];
        if (by_place(s)) TSI_TRY(tsi_places_of(&s->places, s->param));
        wanted += by_place(s) ? s->places.count : 1;
    }
    if (wanted <= o->item_capacity) return TS_OK;
    tsi_list_item *item = tsi_calloc((size_t)wanted, sizeof *item);
    if (!item) return tsi_fail_memory("a step", (size_t)wanted * sizeof *item);
    tsi_free(o->item);
    o->item = item;
    o->item_capacity = wanted;
    return TS_OK;
}

static ts_status begin(ts_optimizer *o)
{
    TSI_TRY(cut_units(o));
    TSI_TRY(items_ready(o));
    return settle_all(o);
}

/* The parameter is written, and with it the mirror that is as new as it. */
static tsi_list_part written(ts_tensor *param)
{
    tsi_param *body = tsi_param_of(param);
    tsi_array *mirror = tsi_param_mirror(body);
    tsi_array_wrote(param->array);
    if (!mirror) return (tsi_list_part){ 0 };
    tsi_array_wrote(mirror);
    tsi_param_mirrored(body);
    return tsi_part_of(mirror);
}

/* A piece of the item of a whole block. */
static tsi_list_item item_of(const tsi_list_item *whole, const tsi_piece *piece)
{
    tsi_list_item item = *whole;
    item.count = piece->count;
    item.base = piece->base;
    item.inner = piece->inner;
    item.outer = piece->outer;
    for (int k = 0; k < TSI_UPDATE_CONTROL; k++)
        if (item.part[k].data)
            item.part[k].data = (char *)item.part[k].data +
                                (size_t)piece->first * ts_dtype_size(item.part[k].dtype);
    return item;
}

/* Blocks of the parameters of a group that have a gradient, in order, from item[0] on. */
static int64_t gather_items(ts_optimizer *o, int64_t of, tsi_list_part control, tsi_list_item *item)
{
    int64_t count = 0;
    for (int64_t i = 0; i < o->count; i++) {
        const tsi_trained *s = &o->slot[i];
        ts_tensor *grad = s->group == of ? ts_tensor_grad(s->param) : NULL;
        if (!grad) continue;
        tsi_block block = tsi_array_block(s->param->array);
        bool turns = o->group[of].rule == TSI_RULE_MUON; /* its momentum has gone on already */
        tsi_list_item whole = {
            .count = tsi_block_count(&block),
            .part = { tsi_part_of(s->param->array),
                      tsi_part_of(turns ? s->turned->array : grad->array),
                      tsi_part_of(turns ? NULL : s->first), tsi_part_of(s->second),
                      written(s->param), control },
        };
        if (!by_place(s)) item[count++] = whole;
        if (by_place(s)) whole.salt = tsi_hash_text(0, s->name);
        for (int64_t k = 0; by_place(s) && k < s->places.count; k++)
            item[count++] = item_of(&whole, &s->places.piece[k]);
    }
    return count;
}

/* Observers hear of each parameter; moments are no tensors, but have blocks like them. */
static void tell_updates(const ts_optimizer *o)
{
    static const char *const name[] = { "fused_adamw", "fused_sgd", "fused_muon" };
    if (!tsi_observers_want(&o->rank->observers, TSI_NEWS_LIST)) return;
    for (int64_t i = 0; i < o->count; i++) {
        const tsi_trained *s = &o->slot[i];
        ts_tensor first = { .rank = o->rank, .array = s->first };
        ts_tensor second = { .rank = o->rank, .array = s->second };
        ts_tensor *grad = ts_tensor_grad(s->param);
        ts_tensor *item[] = { s->param, s->turned ? s->turned : grad, &first, &second };
        ts_list lists[] = { { &item[0], 1 }, { &item[1], 1 }, { &item[2], 1 }, { &item[3], 1 } };
        tsi_listed listed = { name[o->group[s->group].rule], s->name, lists, 4, 13, 0, 0 };
        if (grad) tsi_tell(o->rank, TSI_NEWS_LIST, &listed);
    }
}

static const tsi_list_op *list_of(const tsi_param_group *g)
{
    return g->rule == TSI_RULE_ADAMW ? &tsi_list_adamw : &tsi_list_sgd;
}

/* Is a step of this parameter one on all ranks or on none? */
static bool needs_all(const tsi_trained *s)
{
    return s->owner || (tsi_leaf_of(s->param)->complete && s->param->layout->axes_cut);
}

/* Shards of one parameter are updated by all ranks or by none. Copies have nothing to agree on:
 * the others hold the same. */
static ts_status agree_step(ts_optimizer *o)
{
    const ts_tensor *cut = NULL;
    for (int64_t g = 0; g < o->group_count; g++) { /* of a step that was not agreed on */
        tsi_free(o->group[g].reserved_list);
        o->group[g].reserved_list = NULL;
    }
    for (int64_t i = 0; i < o->count && !cut; i++)
        if (needs_all(&o->slot[i])) cut = o->slot[i].param;
    if (!cut) return TS_OK;
    ts_group *all = ts_mesh_group(cut->mesh, NULL);
    if (!all) return ts_rank_status(o->rank);
    for (int64_t g = 0; g < o->group_count; g++)
        TSI_TRY(tsi_list_reserve(list_of(&o->group[g]), o->rank, o->item_capacity,
                                 &o->group[g].reserved_list));
    TSI_TRY(tsi_muon_reserve(o));
    return tsi_agree(all, "optimizer", NULL, (uint64_t)o->steps);
}

/* What the host does in every step, and again when the step runs again (base/keep.h). */
static ts_status host_does(ts_optimizer *o, tsi_kept_fn what)
{
    return tsi_keep_work(o->rank, (tsi_kept_work){ what, o, NULL, &tsi_kept_fence });
}

static ts_status count_step(void *context)
{
    ts_optimizer *o = context;
    o->steps++;
    return TS_OK;
}

/* Parameters of one group in one call; with control, its numbers count instead of ours. `item` has
 * room for them; *count says how many there were. */
static ts_status update_group(ts_optimizer *o, int64_t of, bool controlled, tsi_list_item *item,
                              int64_t *count)
{
    const int64_t step = o->steps + 1;
    tsi_param_group *g = &o->group[of];
    double lr = o->lr * g->rate * g->adjust;
    bool turns = g->rule == TSI_RULE_MUON;
    tsi_sgd_step sgd = {
        lr, turns ? 0.0 : o->momentum, g->decay / g->adjust, 1.0, o->nesterov, step == 1
    };
    tsi_adamw_step adamw = { .lr = lr,
                             .beta1 = o->beta1,
                             .beta2 = o->beta2,
                             .epsilon = o->epsilon,
                             .weight_decay = g->decay,
                             .correction1 = 1.0 - pow(o->beta1, (double)step),
                             .correction2 = 1.0 - pow(o->beta2, (double)step),
                             .factor = 1.0,
                             .steps = (double)step,
                             .noise = o->moments == TS_DTYPE_BF16 ? o->rank->world->seed + 1 : 0 };
    tsi_list_part control = { 0 };
    if (controlled) control = tsi_control_part_of(o->control, g->control);
    *count = gather_items(o, of, control, item);
    bool by_adamw = g->rule == TSI_RULE_ADAMW;
    tsi_list_io list = { .attributes = by_adamw ? (const void *)&adamw : &sgd,
                         .item = item,
                         .count = *count,
                         .rank = o->rank,
                         .reserved = g->reserved_list };
    g->reserved_list = NULL;
    return tsi_list_run(list_of(g), list);
}

/* All parameters that have a gradient, group by group. */
static ts_status update(ts_optimizer *o, bool controlled)
{
    int64_t done = 0, count = 0;
    (void)TS_HERE;
    TSI_TRY(tsi_muon_momentum(o, controlled));
    for (int64_t g = 0; g < o->group_count; g++, done += count)
        TSI_TRY(update_group(o, g, controlled, o->item + done, &count));
    TSI_TRY(host_does(o, count_step)); /* a step that failed is no step */
    tell_updates(o);
    return ts_optimizer_zero(o);
}

/* What is turned lives until the update has run. */
static ts_status turn_and_update(ts_optimizer *o, bool controlled)
{
    ts_scope scope = ts_scope_open_with(
        o->rank, TS_OPTIONS(ts_scope_options, .label = "optimizer", .no_grad = 1));
    ts_status status = tsi_muon_turn(o, controlled);
    if (status == TS_OK) status = agree_step(o);
    if (status == TS_OK) status = update(o, controlled);
    for (int64_t i = 0; i < o->count; i++)
        o->slot[i].turned = NULL;
    ts_scope_close(scope);
    return status;
}

static ts_status take_step(ts_optimizer *o, bool controlled)
{
    if (o->muon) return turn_and_update(o, controlled);
    TSI_TRY(agree_step(o));
    return update(o, controlled);
}

/* Counted as far as the host knows; outcome says. An update that failed is taken back. */
static ts_status ended(ts_optimizer *o, ts_status status)
{
    if (status != TS_OK && o->control) (void)tsi_control_resume(o->control, o->steps);
    return status;
}

ts_status ts_optimizer_step(ts_optimizer *o)
{
    if (!o) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(o->rank));
    if (tsi_keeps(o->rank))
        return TSI_FAIL(TS_ERR_STATE,
                        "optimizer: a step that is recorded ends with "
                        "ts_optimizer_step_with: its numbers change from step to step");
    TSI_TRY(begin(o));
    if (o->control) TSI_TRY(tsi_control_resume(o->control, o->steps + 1));
    return ended(o, take_step(o, false));
}

/* ---- steps that decide on the device --------------------------------------------------------- */

static ts_status squares_of(ts_optimizer *o, const ts_tensor *but, tsi_norm_sums *sums)
{
    for (int64_t i = 0; i < o->count; i++) {
        ts_tensor *grad = ts_tensor_grad(o->slot[i].param);
        if (grad && o->slot[i].param != but) TSI_TRY(tsi_norm_add(sums, grad));
    }
    return TS_OK;
}

/* What the step was called with: another one, recorded or not, is called with something else. */
typedef struct numbers {
    ts_optimizer *o;
    double norm_max, grad_scale;
    int32_t skips;
} numbers;

static ts_status tell_numbers(void *context)
{
    const numbers *n = context;
    const ts_optimizer *o = n->o;
    double scale = n->grad_scale != 0.0 ? n->grad_scale : 1.0;
    double input[TSI_CONTROL_INPUTS] = {
        [TSI_CONTROL_RATE] = o->lr,           [TSI_CONTROL_SCALE] = 1.0 / scale,
        [TSI_CONTROL_NORM_MAX] = n->norm_max, [TSI_CONTROL_ENDS] = n->skips ? 0.0 : 1.0,
        [TSI_CONTROL_BETA1] = o->beta1,       [TSI_CONTROL_BETA2] = o->beta2
    };
    return tsi_control_begin(o->control, input);
}

static ts_status end_step(void *context)
{
    ts_optimizer *o = context;
    return tsi_control_end(o->control);
}

static ts_status decide(ts_optimizer *o)
{
    tsi_norm_sums sums = { .rank = o->rank };
    numbers *n = tsi_alloc(sizeof *n);
    if (!n) return tsi_fail_memory("the numbers of a step", sizeof *n);
    *n = (numbers){ o, o->given.norm_max, o->given.grad_scale, o->given.skips };
    TSI_TRY(tsi_keep_work(o->rank, (tsi_kept_work){ tell_numbers, n, tsi_free, &tsi_kept_fence }));
    ts_status status = squares_of(o, o->given.shared, &sums);
    if (status == TS_OK) status = tsi_control_decide(o->control, &sums, &o->given);
    tsi_norm_drop(&sums);
    return status;
}

static ts_status control_fill(ts_optimizer *o)
{
    for (int64_t i = 0; i < o->group_count; i++) {
        tsi_param_group *g = &o->group[i];
        const tsi_control_own own = { .times = g->rate * g->adjust,
                                      .plain = g->rule == TSI_RULE_MUON };
        if (own.times != 1.0 || own.plain) TSI_TRY(tsi_control_add(o->control, &own, &g->control));
    }
    TSI_TRY(tsi_muon_control(o));
    return tsi_control_resume(o->control, o->steps);
}

/* With all its copies, or not at all. */
static ts_status control_make(ts_optimizer *o)
{
    o->control = tsi_control_create(o->rank);
    if (!o->control) return ts_rank_status(o->rank);
    ts_status status = control_fill(o);
    if (status == TS_OK) return TS_OK;
    tsi_control_destroy(o->control);
    o->control = NULL;
    return status;
}

ts_status ts_optimizer_step_with(ts_optimizer *o, const ts_step_options *options)
{
    if (!o) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(o->rank));
    ts_step_options given = TS_INIT(ts_step_options);
    if (options)
        memcpy(&given, options,
               options->struct_size < sizeof given ? options->struct_size : sizeof given);
    o->given = given;
    if (!o->control) {
        if (tsi_keeps(o->rank))
            return TSI_FAIL(TS_ERR_STATE,
                            "optimizer: the first ts_optimizer_step_with comes before "
                            "a step that is recorded: run one step as usual first");
        TSI_TRY(control_make(o));
    }
    TSI_TRY(begin(o));
    ts_status status = decide(o);
    if (status == TS_OK) status = take_step(o, true);
    TSI_TRY(ended(o, status));
    return host_does(o, end_step);
}

int64_t ts_optimizer_begun(const ts_optimizer *o)
{
    return o ? tsi_control_count(o->control) : 0;
}

ts_status ts_optimizer_outcome(ts_optimizer *o, int64_t step, ts_step_outcome *out)
{
    if (!o || !out) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(o->rank));
    double number[TSI_CONTROL_COUNT];
    if (!o->control)
        return TSI_FAIL(TS_ERR_STATE, "optimizer: there was no ts_optimizer_step_with yet");
    TSI_TRY(tsi_control_read(o->control, step, number));
    ts_step_outcome is = { .struct_size = out->struct_size,
                           .loss = number[TSI_CONTROL_LOSS],
                           .norm = number[TSI_CONTROL_NORM],
                           .updated = number[TSI_CONTROL_GO] != 0.0 };
    if (step == tsi_control_count(o->control)) o->steps = (int64_t)number[TSI_CONTROL_STEPS];
    memcpy(out, &is, out->struct_size < sizeof is ? out->struct_size : sizeof is);
    return TS_OK;
}

ts_tensor *tsi_optimizer_taken(const ts_optimizer *o, ts_mesh *mesh)
{
    TSI_ASSERT(o->control);
    const ts_layout *layout = tsi_tensor_layout_of(mesh, NULL, TS_SHAPE_SCALAR);
    tsi_array *taken = layout ? tsi_control_taken(o->control) : NULL;
    ts_tensor *t = taken ? tsi_tensor_make(mesh, layout, TS_DTYPE_F64, taken, NULL) : NULL;
    ts_layout_release(layout);
    return t;
}

ts_status ts_optimizer_zero(ts_optimizer *o)
{
    if (!o) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(o->rank));
    for (int64_t i = 0; i < o->count; i++)
        TSI_TRY(ts_tensor_grad_clear(o->slot[i].param));
    return TS_OK;
}

ts_status ts_optimizer_rate(ts_optimizer *o, double lr)
{
    if (!o) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(o->rank));
    double before = o->lr;
    o->lr = lr;
    ts_status status = tsi_optimizer_check(o);
    if (status != TS_OK) o->lr = before;
    return status;
}

int64_t ts_optimizer_steps(const ts_optimizer *o)
{
    return o ? o->steps : 0;
}

ts_status ts_optimizer_resume(ts_optimizer *o, int64_t steps)
{
    if (!o) return TS_ERR_NULL;
    o->steps = steps;
    return o->control ? tsi_control_resume(o->control, steps) : TS_OK;
}

/* ---- its state, by name ---------------------------------------------------------------------- */

static ts_status give(ts_optimizer *o, const tsi_trained *s, tsi_array *array, const char *what,
                      ts_param_fn fn, void *context)
{
    if (!array) return TS_OK;
    char name[320];
    snprintf(name, sizeof name, "%s.%s", s->name, what);
    ts_scope scope = ts_scope_open(o->rank, NULL);
    ts_tensor *t = tsi_trained_tensor(s, array);
    ts_status status = t ? fn(name, t, context) : ts_rank_status(o->rank);
    ts_scope_close(scope);
    return status;
}

ts_status ts_optimizer_each(ts_optimizer *o, ts_param_fn fn, void *context)
{
    if (!o || !fn) return TS_ERR_NULL;
    for (int64_t i = 0; i < o->count; i++) {
        TSI_TRY(give(o, &o->slot[i], o->slot[i].first, "exp_avg", fn, context));
        TSI_TRY(give(o, &o->slot[i], o->slot[i].second, "exp_avg_sq", fn, context));
    }
    return TS_OK;
}
