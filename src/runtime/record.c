/* SPDX-License-Identifier: Apache-2.0 */
/* record.c - the observer that fills a step: operators, moves, messages, updates, and what is
 * freed.
 *
 *   record_values.c      values of the step, and what an action touches
 *   record_operations.c  operations of communication
 *
 * Moves that an operator makes for itself are read, and freed, by its call. What is freed is
 * written down with the next action at the latest. */
#include "runtime/record.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/keep.h"
#include "op/core/dispatch.h"
#include "op/core/list.h"
#include "runtime/recording.h"
#include "tensor/move.h"

/* ---- actions --------------------------------------------------------------------------------- */

/* "layers.0.wq:matmul", or the operator alone. */
static void name_in_scope(const ts_rank *rank, const char *name, char *out)
{
    const char *label = rank->label ? rank->label : "";
    (void)snprintf(out, TSI_RECORDING_NAME, "%.*s%s%.40s", tsi_recording_cut(label), label,
                   label[0] ? ":" : "", name);
    tsi_recording_clean(out);
}

int64_t tsi_recording_works(const tsi_recording *r)
{
    const tsi_kept *kept = r->rank->kept;
    return kept && kept->paused == 0 ? kept->count + (kept->inside > 0) : 0;
}

/* The pieces below `works` that belong to no action yet belong to the last one. */
static void belong(tsi_recording *r, int64_t works)
{
    const tsi_step_list *list = tsi_recording_list(r);
    tsi_worked *w = r->worked;
    while (w && r->status == TS_OK && w->count < works) {
        tsi_recording_fail(
            r, tsi_room(&w->action, w->count, &w->capacity, sizeof *w->action, "a step"));
        if (r->status == TS_OK) w->action[w->count++] = list ? list->action_count - 1 : -1;
    }
}

void tsi_recording_append_with(tsi_recording *r, const tsi_action *action, int64_t works)
{
    if (r->status == TS_OK)
        tsi_recording_fail(r, tsi_step_append_as(r->step, r->rank->index, action, r->touch, r->form,
                                                 (int32_t)r->touch_count));
    r->touch_count = 0;
    belong(r, works);
}

void tsi_recording_append(tsi_recording *r, const tsi_action *action)
{
    tsi_recording_make_staged(r);
    tsi_recording_end_staged(r);
    tsi_recording_append_with(r, action, tsi_recording_works(r));
}

void tsi_record_works(tsi_recording *recording, tsi_worked *worked)
{
    recording->worked = worked;
}

void tsi_recording_place(const ts_rank *rank, char *place, tsi_action *action)
{
    const char *where = rank->where && rank->where[0] ? rank->where : NULL;
    if (!where) return;
    (void)snprintf(place, TSI_RECORDING_NAME, "%.190s", where);
    tsi_recording_clean(place);
    action->place = place;
}

/* A kernel's time: of its arithmetic or of its memory, whichever is more; -1: not asked for. */
static double kernel_us(tsi_recording *r)
{
    double bytes = 0, before = r->flops;
    const tsi_op_state *state = tsi_op_state_of(r->rank);
    const tsi_step_list *list = tsi_recording_list(r);
    if (r->flops_us <= 0 || !state || !list) return -1;
    for (int64_t i = 0; i < r->touch_count; i++)
        if (r->touch[i].how < TSI_FREES) bytes += (double)list->value[r->touch[i].value].bytes;
    r->flops = state->flops_here;
    double arithmetic = (r->flops - before) / r->flops_us, memory = bytes / r->bytes_us;
    return arithmetic > memory ? arithmetic : memory;
}

void tsi_record_kernels(tsi_recording *r, double flops_per_second, double bytes_per_second)
{
    const tsi_op_state *state = tsi_op_state_of(r->rank);
    r->flops_us = flops_per_second * 1e-6;
    r->bytes_us = bytes_per_second * 1e-6;
    r->flops = state ? state->flops_here : 0;
}

void tsi_recording_freed(tsi_recording *r, int32_t value)
{
    if (tsi_room(&r->freed, r->freed_count, &r->freed_capacity, sizeof *r->freed,
                 "the recording of a step") != TS_OK) {
        tsi_recording_fail(r, tsi_fail_memory("a recording", sizeof *r->freed));
        return;
    }
    r->freed[r->freed_count++] = (tsi_touch){ value, TSI_FREES };
}

void tsi_recording_write_freed(tsi_recording *r)
{
    char place[TSI_RECORDING_NAME];
    tsi_action release = TSI_ACTION_INIT(TSI_ACTION_RELEASE);
    if (r->freed_count == 0) return;
    tsi_recording_place(r->rank, place, &release);
    if (r->status == TS_OK)
        tsi_recording_fail(r, tsi_step_append(r->step, r->rank->index, &release, r->freed,
                                              (int32_t)r->freed_count));
    r->freed_count = 0;
}

/* ---- news ------------------------------------------------------------------------------------ */

/* What operators moved for themselves is theirs: the call reads it, and frees what is gone. */
static void take_implicit(tsi_recording *r)
{
    for (int64_t i = r->all_count - 1; i >= 0 && r->implicit_count > 0; i--) {
        tsi_recorded *b = r->all[i];
        if (!b->implicit) continue;
        tsi_recording_touch_value(r, b->value, TSI_READS);
        if (b->gone) tsi_recording_touch_value(r, b->value, TSI_FREES);
        b->implicit = false;
        r->implicit_count--;
    }
}

static bool is_read(const tsi_recording *r, int32_t value)
{
    int64_t i = 0;
    while (i < r->touch_count && (r->touch[i].value != value || r->touch[i].how != TSI_READS))
        i++;
    return i < r->touch_count;
}

/* What is there, or some rows of it, is changed. What calls inside of this one made, and is not on
 * its way, is its own: who reads it comes behind. */
static void touch_outputs(tsi_recording *r, const tsi_op_record *call)
{
    const tsi_op_plan *plan = call->plan;
    for (int32_t o = 0; o < plan->output_count; o++) {
        const tsi_recorded *b = tsi_recording_block(r, call->out[o]);
        if ((plan->in_place && o == 0) || (b && b->begun))
            tsi_recording_touch(r, call->out[o], TSI_WRITES);
        else
            (void)tsi_recording_made(r, call->out[o], plan->op->name);
        if (b && plan->algorithm > 0 && !call->out[o]->move && !is_read(r, b->value))
            tsi_recording_touch_value(r, b->value, TSI_WRITES);
    }
}

/* The operations that the call did itself, without calls inside; see tsi_recording_write_own. */
static int32_t write_own(tsi_recording *r, const tsi_op_record *call)
{
    if (call->plan->algorithm == 0 || r->told || tsi_recording_under_way(r)) return -1;
    for (int32_t i = 0; i < call->plan->input_count; i++) {
        const tsi_recorded *b = tsi_recording_block(r, call->in[i]);
        if (b) tsi_recording_touch_value(r, b->value, TSI_READS);
    }
    return tsi_recording_write_own(r);
}

/* All of it, or the rows that are here. What was moved for the call goes with the call itself. */
static void write_call(tsi_recording *r, const tsi_op_record *call, bool whole)
{
    const tsi_op_plan *plan = call->plan;
    char name[TSI_RECORDING_NAME], place[TSI_RECORDING_NAME];
    name_in_scope(r->rank, plan->op->name, name);
    int32_t own = whole ? write_own(r, call) : -1;
    tsi_recording_catch_up(r);
    tsi_action action = TSI_ACTION_INIT(TSI_ACTION_OPERATOR);
    action.what = name;
    tsi_recording_place(r->rank, place, &action);
    for (int32_t i = 0; i < plan->input_count; i++)
        if (call->in[i]) tsi_recording_touch(r, call->in[i], TSI_READS);
    tsi_recording_touch_value(r, own, TSI_READS);
    if (whole) take_implicit(r);
    touch_outputs(r, call);
    action.us = kernel_us(r);
    tsi_recording_append(r, &action);
    for (int32_t o = 0; o < plan->output_count; o++) {
        tsi_recorded *b = tsi_recording_block(r, call->out[o]);
        if (b) b->begun = !whole;
    }
}

static void hear_rows(void *context, void *what)
{
    write_call(context, what, false);
}

static void hear_call(void *context, void *what)
{
    write_call(context, what, true);
}

/* Does the move need what other ranks have? */
static bool needs_others(const tsi_moved *moved)
{
    const ts_layout *from = moved->from->layout, *to = moved->to->layout;
    if (!from || !to || from->sharding->mesh != to->sharding->mesh) return true;
    for (int32_t k = 0; k < from->sharding->ndim; k++) {
        const ts_placement *a = &from->sharding->place[k], *b = &to->sharding->place[k];
        int64_t size = from->sharding->mesh->size[k];
        if (size > 1 && a->kind != TS_PLACE_REPLICATE && !tsi_placement_equal(a, b, size))
            return true;
    }
    return false;
}

/* Touches of operations that are not written yet, while another action is written before them. */
typedef struct aside {
    tsi_touch *touch;
    const char **form;
    int64_t count, touch_capacity, form_capacity;
} aside;

static aside set_aside(tsi_recording *r)
{
    aside of = { r->touch, r->form, r->touch_count, r->touch_capacity, r->form_capacity };
    r->touch = NULL;
    r->form = NULL;
    r->touch_count = r->touch_capacity = r->form_capacity = 0;
    return of;
}

static void take_back(tsi_recording *r, const aside *of)
{
    tsi_free(r->touch);
    tsi_free(r->form);
    r->touch = of->touch;
    r->form = of->form;
    r->touch_count = of->count;
    r->touch_capacity = of->touch_capacity;
    r->form_capacity = of->form_capacity;
}

void tsi_recording_append_operator(tsi_recording *r, const char *what, int64_t works)
{
    tsi_action action = TSI_ACTION_INIT(TSI_ACTION_OPERATOR);
    char name[TSI_RECORDING_NAME], place[TSI_RECORDING_NAME];
    name_in_scope(r->rank, what, name);
    action.what = name;
    tsi_recording_place(r->rank, place, &action);
    tsi_recording_append_with(r, &action, works);
}

/* With what was touched since they were set aside. */
static void append_before(tsi_recording *r, const char *what)
{
    tsi_recording_append_operator(r, what, tsi_recording_works_before(r));
}

/* Operations read a copy of a tensor that was made before they began: the tensor may go while they
 * are under way. `array` is the copy, if somebody may see it. */
static void read_copy(tsi_recording *r, const ts_tensor *from, tsi_array *array)
{
    aside others = set_aside(r);
    tsi_recording_touch(r, from, TSI_READS);
    const char *form = r->touch_count > 0 ? r->form[0] : NULL;
    int32_t copy = -1;
    if (r->touch_count > 0 && array) {
        copy =
            tsi_recording_made(r, &(ts_tensor){ .layout = from->layout, .array = array }, "copy");
    } else if (r->touch_count > 0) {
        copy = tsi_recording_round(r);
        tsi_recording_touch_as(r, copy, TSI_MAKES, form);
    }
    if (copy >= 0) append_before(r, "copy");
    take_back(r, &others);
    tsi_recording_touch_as(r, copy, TSI_READS, form);
}

/* Several tensors may move by the same operations: they are told one after another. */
static int32_t move_by_others(tsi_recording *r, const tsi_moved *moved)
{
    const tsi_move *move = moved->to->move;
    tsi_recording_issued_along(r, moved);
    r->told = true;
    r->hidden = r->hidden || moved->implicit;
    if (move && !tsi_move_holds(move, moved->from->array->storage))
        read_copy(r, moved->from, move->from ? move->hold[0] : NULL);
    else
        tsi_recording_touch(r, moved->from, TSI_READS);
    return tsi_recording_made(r, moved->to, "move");
}

/* One of several tensors stays where it is while operations carry the others. */
static int32_t move_beside_others(tsi_recording *r, const tsi_moved *moved)
{
    aside others = set_aside(r);
    tsi_recording_touch(r, moved->from, TSI_READS);
    int32_t to = tsi_recording_made(r, moved->to, "move");
    append_before(r, "redistribute");
    take_back(r, &others);
    return to;
}

static int32_t move_alone(tsi_recording *r, const tsi_moved *moved)
{
    tsi_action action = TSI_ACTION_INIT(TSI_ACTION_OPERATOR);
    char name[TSI_RECORDING_NAME], place[TSI_RECORDING_NAME];
    tsi_recording_catch_up(r);
    name_in_scope(r->rank, "redistribute", name);
    action.what = name;
    tsi_recording_place(r->rank, place, &action);
    tsi_recording_touch(r, moved->from, TSI_READS);
    int32_t to = tsi_recording_made(r, moved->to, "move");
    action.us = kernel_us(r);
    tsi_recording_append(r, &action);
    return to;
}

/* The caller's own operations are for nothing that is told. */
static void hear_moving(void *context, void *what)
{
    (void)what;
    tsi_recording_catch_up(context);
}

static void hear_move(void *context, void *what)
{
    tsi_recording *r = context;
    const tsi_moved *moved = what;
    bool by_others = tsi_recording_any_issued(r) && (!r->told || needs_others(moved));
    bool stays = !moved->to->move && tsi_recording_under_way(r);
    int32_t to = stays       ? move_beside_others(r, moved)
                 : by_others ? move_by_others(r, moved)
                             : move_alone(r, moved);
    if (to < 0 || !moved->implicit) return;
    TSI_ASSERT(r->all[r->all_count - 1]->value == to); /* entered last */
    r->all[r->all_count - 1]->implicit = true;
    r->implicit_count++;
}

static void hear_message(void *context, void *what)
{
    tsi_recording *r = context;
    const tsi_message *message = what;
    if (message->received)
        (void)tsi_recording_made(r, message->tensor, "received");
    else if (tsi_array_repeats(message->tensor->array)) /* a copy goes */
        read_copy(r, message->tensor, NULL);
    else
        tsi_recording_touch(r, message->tensor, TSI_READS);
    tsi_recording_catch_up(r);
}

static void hear_fill(void *context, void *what)
{
    tsi_recording *r = context;
    const tsi_filled *filled = what;
    char name[TSI_RECORDING_NAME], place[TSI_RECORDING_NAME];
    tsi_recording_catch_up(r);
    for (int32_t i = 0; i < filled->of_count; i++)
        if (filled->of[i]) tsi_recording_touch(r, filled->of[i], TSI_READS);
    if (tsi_recording_made(r, filled->made, filled->how) < 0) {
        r->touch_count = 0; /* another handle of what is there */
        return;
    }
    tsi_action action = TSI_ACTION_INIT(TSI_ACTION_OPERATOR);
    name_in_scope(r->rank, filled->how, name);
    action.what = name;
    tsi_recording_place(r->rank, place, &action);
    action.us = kernel_us(r);
    tsi_recording_append(r, &action);
}

/* Updates count once: of parameters of one name, as two trees have them, or in two steps that are
 * one here, the second and so on have a number behind it. */
static void name_update(const tsi_step_list *list, const char *of, char *out, size_t size)
{
    (void)snprintf(out, size, "%.200s", of);
    tsi_recording_clean(out);
    size_t length = strlen(out);
    int32_t number = 1;
    for (int32_t i = 0; list && i < list->action_count; i++) {
        const tsi_action *a = &list->action[i];
        if (a->kind != TSI_ACTION_UPDATE || strcmp(a->what, out) != 0) continue;
        (void)snprintf(out + length, size - length, ".%d", ++number);
        i = -1; /* that name may be there, too */
    }
}

/* Updates have their parameter's name or, for a list of them, a number. */
static void hear_list(void *context, void *what)
{
    tsi_recording *r = context;
    const tsi_listed *listed = what;
    char name[TSI_RECORDING_NAME], numbered[TSI_RECORDING_NAME + 16], place[TSI_RECORDING_NAME];
    bool updates = strncmp(listed->name, "fused_", 6) == 0;
    tsi_recording_catch_up(r);
    tsi_action action = TSI_ACTION_INIT(updates ? TSI_ACTION_UPDATE : TSI_ACTION_OPERATOR);
    name_in_scope(r->rank, listed->name, name);
    const tsi_step_list *list = tsi_recording_list(r);
    (void)snprintf(numbered, sizeof numbered, "%s.%d", name, list ? list->action_count + 1 : 1);
    tsi_recording_clean(numbered);
    if (listed->of) name_update(list, listed->of, numbered, sizeof numbered);
    action.what = updates ? numbered : name;
    for (int32_t k = 0; k < listed->count; k++)
        for (int64_t i = 0; i < listed->lists[k].count; i++)
            tsi_recording_touch(r, listed->lists[k].item[i],
                                listed->written >> k & 1 ? TSI_WRITES : TSI_READS);
    take_implicit(r);
    tsi_recording_place(r->rank, place, &action);
    action.us = kernel_us(r);
    tsi_recording_append(r, &action);
}

static void hear_free(void *context, void *what)
{
    tsi_recording *r = context;
    tsi_storage *storage = what;
    tsi_recorded *b = tsi_recording_find(r, storage);
    if (!b) return;
    (void)tsi_map_remove(&r->blocks, (uint64_t)(uintptr_t)storage, NULL, NULL);
    storage->watched = false;
    b->there = false;
    b->gone = true;
    if (b->implicit || b->staged) return; /* by the call that is to come, or behind the move */
    tsi_recording_freed(r, b->value);
}

/* ---- begin and end --------------------------------------------------------------------------- */

static void destroy(tsi_recording *r)
{
    for (int64_t i = 0; i < r->all_count; i++)
        tsi_free(r->all[i]);
    tsi_free(r->all);
    tsi_free(r->issued);
    tsi_free(r->touch);
    tsi_free(r->form);
    tsi_free(r->freed);
    tsi_map_release(&r->blocks);
    tsi_map_release(&r->shown);
    tsi_step_destroy(r->step);
    tsi_free(r);
}

ts_status tsi_record_begin(ts_rank *rank, tsi_recording **out)
{
    *out = NULL;
    TSI_TRY(tsi_rank_enter(rank));
    tsi_recording *r = tsi_calloc(1, sizeof *r);
    if (!r) return tsi_fail_memory("a recording", sizeof *r);
    r->rank = rank;
    r->hears = (tsi_observer){ .context = r,
                               .hear = { [TSI_NEWS_FREE] = hear_free,
                                         [TSI_NEWS_ISSUE] = tsi_recording_hear_issue,
                                         [TSI_NEWS_WAIT] = tsi_recording_hear_wait,
                                         [TSI_NEWS_AGREE] = tsi_recording_hear_agree,
                                         [TSI_NEWS_STAGE] = tsi_recording_hear_stage,
                                         [TSI_NEWS_FILL] = hear_fill,
                                         [TSI_NEWS_MOVING] = hear_moving,
                                         [TSI_NEWS_MOVE] = hear_move,
                                         [TSI_NEWS_WRITE] = tsi_recording_hear_write,
                                         [TSI_NEWS_DROP] = tsi_recording_hear_drop,
                                         [TSI_NEWS_MESSAGE] = hear_message,
                                         [TSI_NEWS_ROWS] = hear_rows,
                                         [TSI_NEWS_CALL] = hear_call,
                                         [TSI_NEWS_LIST] = hear_list } };
    ts_status status = tsi_step_create(rank->world->rank_count, &r->step);
    if (status == TS_OK) status = tsi_observers_add(&rank->observers, &r->hears);
    if (status == TS_OK)
        *out = r;
    else
        destroy(r);
    return status;
}

/* Where handles see one storage in several forms that nothing told of, none of them is sure. */
static void forget_mixed(const tsi_recording *r, tsi_step_list *list)
{
    for (int32_t i = 0; i < list->action_count; i++) {
        const tsi_action *a = &list->action[i];
        const tsi_touch *touch = tsi_step_touches(list, a);
        for (int32_t k = 0; k < a->touch_count; k++)
            if (r->all[touch[k].value]->mixed) list->form[a->touch_first + k] = NULL;
    }
    for (int64_t i = 0; i < r->all_count; i++)
        if (r->all[i]->mixed) list->value[r->all[i]->value].form = NULL;
}

/* Of what the step was given it changes these. */
static void hold_written(tsi_recording *r, const tsi_step_list *list)
{
    tsi_held *held = r->held;
    for (int64_t i = 0; i < r->all_count && r->status == TS_OK; i++) {
        const tsi_recorded *b = r->all[i];
        bool given = b->value >= 0 && b->storage && list->value[b->value].life & TSI_LIFE_TAKEN;
        if (!given || !b->written) continue;
        tsi_recording_fail(r, tsi_room(&held->written, held->written_count, &held->written_capacity,
                                       sizeof *held->written, "a step"));
        if (r->status == TS_OK)
            held->written[held->written_count++] = (tsi_storage *)(uintptr_t)b->storage;
    }
}

/* What is still there is left by the step; what was given and is there is held by it. */
static void settle(tsi_recording *r)
{
    tsi_recording_catch_up(r);
    if (r->implicit_count > 0) { /* a call that failed */
        tsi_action failed = TSI_ACTION_INIT(TSI_ACTION_OPERATOR);
        take_implicit(r);
        tsi_recording_append(r, &failed);
    }
    if (r->issued_count > 0) { /* what is under way ends with the step */
        tsi_action wait = TSI_ACTION_INIT(TSI_ACTION_WAIT);
        tsi_recording_append(r, &wait);
    }
    tsi_step_list *list = tsi_recording_list(r);
    if (r->held && list) hold_written(r, list);
    for (int64_t i = 0; i < r->all_count; i++) {
        const tsi_recorded *b = r->all[i];
        if (b->value >= 0 && list && b->there) list->value[b->value].life |= TSI_LIFE_LEFT;
    }
    if (list && r->status == TS_OK) forget_mixed(r, list);
}

ts_status tsi_record_end(tsi_recording *r, tsi_step **out)
{
    *out = NULL;
    if (!r) return TS_OK;
    tsi_observers_remove(&r->rank->observers, &r->hears);
    settle(r);
    if (r->status == TS_OK) r->status = tsi_recording_check_writes(r);
    ts_status status = r->status;
    if (status == TS_OK) {
        *out = r->step;
        r->step = NULL;
    }
    destroy(r);
    return status;
}
