/* SPDX-License-Identifier: Apache-2.0 */
/* record.c - the observer that fills a step.
 *
 * Collectives are told of before it is known what they were for: they are kept until the move or
 * message that they belong to is told, and get its tensors. Moves that an operator makes for itself
 * are read, and freed, by its call. What is freed is written down with the next action at the
 * latest.
 *
 * INV: a storage in `blocks` that still has its mark is the one that was entered; one without it is
 * another that lies where an old one was, freed by another thread. */
#include "runtime/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/keep.h"
#include "comm/comm.h"
#include "op/core/dispatch.h"
#include "op/core/list.h"

enum {
    FORMS = 4,     /* of one block; a block that is seen in more says nothing */
    OWN_QUEUES = 3 /* groups that have one */
};

typedef struct block { /* of memory: one value of the step */
    const tsi_storage *storage;
    int32_t value;
    const char *form[FORMS]; /* in which it is known to be; names of the step */
    bool there;
    bool mixed;    /* seen in a form that nothing told of: handles into one storage */
    bool implicit; /* made by a move for the next call */
    bool gone;     /* freed before that call was told */
} block;

typedef struct pending { /* an operation that was issued */
    tsi_action action;
    const ts_work *work; /* NULL: it has ended */
    int32_t value;       /* what it makes or reads; -1: not known */
    int64_t works;       /* pieces of work that are kept with it */
    bool written;        /* it is in the list; waits for being waited for */
    bool waited;         /* for it, before it was told what it is for: a round of several */
    int64_t wait_of;     /* it is that wait, for the one of this number; -1: an operation */
} pending;

struct tsi_recording {
    ts_rank *rank;
    tsi_step *step;
    tsi_observer hears;
    tsi_held *held;     /* of a step that is to run again; else NULL */
    tsi_worked *worked; /* likewise */
    ts_status status;   /* the first failure: nothing more is written then */
    tsi_map blocks;     /* storage -> block, while it is there */
    block **all;        /* by value; owned */
    int64_t all_count, all_capacity, implicit_count;
    pending *issued;
    int64_t issued_count, issued_capacity;
    int32_t group[OWN_QUEUES], group_count; /* that have a queue of their own */
    bool told, hidden; /* what those not written are for is in `touch`; an operator's own moves */
    tsi_touch *touch;  /* of the action being written */
    const char **form; /* as which it sees them */
    int64_t touch_count, touch_capacity, form_capacity;
    double flops, bytes_us, flops_us; /* so far; what a kernel does in a microsecond, or 0 */
    tsi_touch *freed;                 /* not written yet */
    int64_t freed_count, freed_capacity;
};

/* ---- small lists ----------------------------------------------------------------------------- */

static void fail(tsi_recording *r, ts_status status)
{
    if (r->status == TS_OK) r->status = status;
}

static void add_touch_as(tsi_recording *r, int32_t value, tsi_touch_how how, const char *form)
{
    if (value < 0) return;
    for (int64_t i = 0; i < r->touch_count; i++)
        if (r->touch[i].value == value && r->touch[i].how == (int32_t)how &&
            (r->form[i] == form || !form))
            return;
    if (tsi_room(&r->touch, r->touch_count, &r->touch_capacity, sizeof *r->touch,
                 "the recording of a step") != TS_OK ||
        tsi_room(&r->form, r->touch_count, &r->form_capacity, sizeof *r->form,
                 "the recording of a step") != TS_OK) {
        fail(r, tsi_fail_memory("a recording", sizeof *r->touch));
        return;
    }
    r->form[r->touch_count] = form;
    r->touch[r->touch_count++] = (tsi_touch){ value, (int32_t)how };
}

static void add_touch(tsi_recording *r, int32_t value, tsi_touch_how how)
{
    add_touch_as(r, value, how, NULL);
}

/* ---- names ----------------------------------------------------------------------------------- */

/* Labels may have anything in them; names of a step may not. */
static void clean(char *name)
{
    for (char *c = name; *c; c++)
        if ((unsigned char)*c <= ' ' || strchr(",=#\x7f", *c)) *c = '_';
}

enum { NAME = 200 };

/* "layers.0.wq:matmul", or the operator alone. */
static void name_in_scope(const ts_rank *rank, const char *name, char *out)
{
    bool labelled = rank->label && rank->label[0];
    (void)snprintf(out, NAME, "%.150s%s%.40s", labelled ? rank->label : "", labelled ? ":" : "",
                   name);
    clean(out);
}

/* ---- forms ----------------------------------------------------------------------------------- */

/* "fsdp:S(0)|tp:R": what each axis of the mesh does to the tensor. NULL: it has none, or failed. */
static const char *form_of(tsi_recording *r, const ts_tensor *t)
{
    char text[NAME];
    size_t length = 0;
    if (!t || !t->layout || r->status != TS_OK) return NULL;
    const ts_sharding *s = t->layout->sharding;
    for (int32_t k = 0; k < s->ndim && length < sizeof text - 48; k++) {
        char place[64];
        (void)tsi_placement_text(&s->place[k], s->mesh->size[k], 0, place, sizeof place);
        if (strchr(place, ',')) (void)snprintf(place, sizeof place, "S"); /* by a list of extents */
        length +=
            (size_t)snprintf(text + length, sizeof text - length, "%s%.16s:%.24s", k ? "|" : "",
                             s->mesh->name[k][0] ? s->mesh->name[k] : "axis", place);
    }
    if (length == 0) return NULL;
    const char *own = NULL;
    clean(text);
    fail(r, tsi_step_name(r->step, text, &own));
    return own;
}

static bool has_form(const block *b, const char *form)
{
    for (int32_t i = 0; i < FORMS; i++)
        if (b->form[i] == form) return true;
    return false;
}

static void give_form(block *b, const char *form)
{
    if (!form || has_form(b, form)) return;
    for (int32_t i = 0; i < FORMS; i++) {
        if (b->form[i]) continue;
        b->form[i] = form;
        return;
    }
    b->mixed = true;
}

/* ---- values ---------------------------------------------------------------------------------- */

static tsi_step_list *list_of(tsi_recording *r)
{
    return r->rank->index < r->step->list_count ? &r->step->list[r->rank->index] : NULL;
}

static void hold(tsi_recording *r, tsi_storage *storage)
{
    tsi_held *held = r->held;
    if (!held) return;
    fail(r, tsi_room(&held->storage, held->count, &held->capacity, sizeof(void *), "a step"));
    if (r->status != TS_OK) return;
    tsi_storage_retain(storage);
    held->storage[held->count++] = storage;
}

void tsi_record_hold(tsi_recording *recording, tsi_held *held)
{
    recording->held = held;
}

void tsi_held_release(tsi_held *held)
{
    for (int64_t i = 0; i < held->count; i++)
        tsi_storage_release(held->storage[i]);
    tsi_free(held->storage);
    *held = (tsi_held){ 0 };
}

/* A storage that was not seen before becomes a value: made by the action being written, or given.
 */
static block *enter(tsi_recording *r, tsi_storage *storage, const char *maker, const char *form)
{
    char name[NAME + 32];
    tsi_value value = { .name = name,
                        .bytes = (int64_t)storage->bytes,
                        .memory = (int32_t)tsi_memory_of_tag(storage->tag),
                        .life = maker ? TSI_LIFE_INSIDE : TSI_LIFE_TAKEN,
                        .form = maker ? NULL : form };
    (void)snprintf(name, sizeof name, "%.180s.%lld", maker ? maker : "given",
                   (long long)r->all_count + 1);
    clean(name);
    block *made = tsi_calloc(1, sizeof *made);
    if (!made || tsi_room(&r->all, r->all_count, &r->all_capacity, sizeof *r->all,
                          "the recording of a step") != TS_OK) {
        tsi_free(made);
        fail(r, tsi_fail_memory("a recording", sizeof *made));
        return NULL;
    }
    *made = (block){ .storage = storage, .value = -1, .there = true };
    give_form(made, form);
    r->all[r->all_count++] = made;
    if (!maker) hold(r, storage);
    ts_status status = tsi_step_value(r->step, r->rank->index, &value, &made->value);
    if (status == TS_OK) status = tsi_map_insert(&r->blocks, (uint64_t)(uintptr_t)storage, made);
    if (status != TS_OK) fail(r, status);
    storage->watched = true;
    return status == TS_OK ? made : NULL;
}

static block *find(tsi_recording *r, const tsi_storage *storage)
{
    uint64_t key = (uint64_t)(uintptr_t)storage;
    block *found = tsi_map_find(&r->blocks, key, NULL, NULL);
    if (!found || storage->watched) return found;
    (void)tsi_map_remove(&r->blocks, key, NULL, NULL); /* lost sight of: it stays to the end */
    return NULL;
}

/* The block of a tensor, which is there; NULL: it has no memory, or it failed. */
static block *block_of(tsi_recording *r, const ts_tensor *t)
{
    tsi_storage *storage = t && t->array ? t->array->storage : NULL;
    if (!storage || storage->bytes == 0 || r->status != TS_OK) return NULL;
    block *known = find(r, storage);
    return known ? known : enter(r, storage, NULL, form_of(r, t));
}

/* The action being written touches the tensor as it lies. */
static void touch_tensor(tsi_recording *r, const ts_tensor *t, tsi_touch_how how)
{
    block *b = block_of(r, t);
    if (!b) return;
    const char *form = form_of(r, t);
    if (form && !has_form(b, form)) b->mixed = true;
    add_touch_as(r, b->value, how, form);
}

/* A tensor that the action made: a new block, or another view of one that is there. Returns the new
 * value, or -1. */
static int32_t touch_made(tsi_recording *r, const ts_tensor *t, const char *maker)
{
    tsi_storage *storage = t && t->array ? t->array->storage : NULL;
    if (!storage || storage->bytes == 0 || r->status != TS_OK) return -1;
    const char *form = form_of(r, t);
    block *known = find(r, storage);
    if (known) {
        if (form && !has_form(known, form)) add_touch_as(r, known->value, TSI_VIEWS, form);
        give_form(known, form);
        return -1;
    }
    block *made = enter(r, storage, maker, form);
    if (!made) return -1;
    add_touch_as(r, made->value, TSI_MAKES, form);
    return made->value;
}

/* What one round of a move leaves for the next: nothing that the rank counts as memory. -1: failed.
 */
static int32_t enter_round(tsi_recording *r)
{
    char name[32];
    tsi_value value = { .name = name, .memory = TSI_STEP_MEMORY_COMM };
    (void)snprintf(name, sizeof name, "round.%lld", (long long)r->all_count + 1);
    block *made = tsi_calloc(1, sizeof *made);
    if (!made || tsi_room(&r->all, r->all_count, &r->all_capacity, sizeof *r->all,
                          "the recording of a step") != TS_OK) {
        tsi_free(made);
        fail(r, tsi_fail_memory("a recording", sizeof *made));
        return -1;
    }
    *made = (block){ .value = -1, .there = true };
    r->all[r->all_count++] = made;
    fail(r, tsi_step_value(r->step, r->rank->index, &value, &made->value));
    return r->status == TS_OK ? made->value : -1;
}

/* ---- actions --------------------------------------------------------------------------------- */

/* Pieces of work that the rank has kept so far, with the one that is under way. */
static int64_t works_with_this(const tsi_recording *r)
{
    const tsi_kept *kept = r->rank->kept;
    return kept ? kept->count + (kept->inside > 0) : 0;
}

/* The pieces below `works` that belong to no action yet belong to the last one. */
static void belong(tsi_recording *r, int64_t works)
{
    const tsi_step_list *list = list_of(r);
    tsi_worked *w = r->worked;
    while (w && r->status == TS_OK && w->count < works) {
        fail(r, tsi_room(&w->action, w->count, &w->capacity, sizeof *w->action, "a step"));
        if (r->status == TS_OK) w->action[w->count++] = list ? list->action_count - 1 : -1;
    }
}

static void append_with(tsi_recording *r, const tsi_action *action, int64_t works)
{
    if (r->status == TS_OK)
        fail(r, tsi_step_append_as(r->step, r->rank->index, action, r->touch, r->form,
                                   (int32_t)r->touch_count));
    r->touch_count = 0;
    belong(r, works);
}

static void append(tsi_recording *r, const tsi_action *action)
{
    append_with(r, action, works_with_this(r));
}

void tsi_record_works(tsi_recording *recording, tsi_worked *worked)
{
    recording->worked = worked;
}

/* Where the program calls from: file and line of its latest public call. */
static void place_in(const ts_rank *rank, char *place, tsi_action *action)
{
    const char *where = rank->where && rank->where[0] ? rank->where : NULL;
    if (!where) return;
    (void)snprintf(place, NAME, "%.190s", where);
    clean(place);
    action->place = place;
}

/* A kernel's time: of its arithmetic or of its memory, whichever is more; -1: not asked for. */
static double kernel_us(tsi_recording *r)
{
    double bytes = 0, before = r->flops;
    const tsi_op_state *state = tsi_op_state_of(r->rank);
    const tsi_step_list *list = list_of(r);
    if (r->flops_us <= 0 || !state || !list) return -1;
    for (int64_t i = 0; i < r->touch_count; i++)
        if (r->touch[i].how < TSI_FREES) bytes += (double)list->value[r->touch[i].value].bytes;
    r->flops = state->flops;
    double arithmetic = (r->flops - before) / r->flops_us, memory = bytes / r->bytes_us;
    return arithmetic > memory ? arithmetic : memory;
}

void tsi_record_kernels(tsi_recording *r, double flops_per_second, double bytes_per_second)
{
    const tsi_op_state *state = tsi_op_state_of(r->rank);
    r->flops_us = flops_per_second * 1e-6;
    r->bytes_us = bytes_per_second * 1e-6;
    r->flops = state ? state->flops : 0;
}

static void write_freed(tsi_recording *r)
{
    tsi_action release = TSI_ACTION_INIT(TSI_ACTION_RELEASE);
    if (r->freed_count == 0) return;
    if (r->status == TS_OK)
        fail(r,
             tsi_step_append(r->step, r->rank->index, &release, r->freed, (int32_t)r->freed_count));
    r->freed_count = 0;
}

/* The axes that a group lies along, as the tensor's mesh has them. */
static void group_along(tsi_recording *r, int32_t group, const ts_tensor *t)
{
    const tsi_mesh_desc *mesh = t && t->layout ? t->layout->sharding->mesh : NULL;
    int64_t first[TS_NDIM_MAX], coord[TS_NDIM_MAX];
    uint32_t differ = 0;
    if (!mesh || group < 0 || r->status != TS_OK || r->step->group[group].along) return;
    const tsi_step_group *g = &r->step->group[group];
    bool inside = tsi_mesh_desc_coord(mesh, g->member[0], first);
    for (int32_t i = 1; inside && i < g->count; i++) {
        inside = tsi_mesh_desc_coord(mesh, g->member[i], coord);
        for (int32_t k = 0; inside && k < mesh->ndim; k++)
            if (coord[k] != first[k]) differ |= 1u << k;
    }
    char axes[NAME] = "";
    size_t length = 0;
    for (int32_t k = 0; inside && k < mesh->ndim && length < NAME - 24; k++)
        if (differ >> k & 1 && mesh->name[k][0])
            length += (size_t)snprintf(axes + length, sizeof axes - length, "%s%.16s",
                                       length > 0 ? "+" : "", mesh->name[k]);
    if (axes[0]) fail(r, tsi_step_group_along(r->step, group, axes));
}

typedef struct told { /* what the operations that are not written yet are for */
    tsi_touch *touch;
    const char **form;
    int64_t count;
    int32_t value, made; /* that a wait names; that the last of them makes; -1: none */
    int64_t first, last; /* operations among those that were issued */
} told;

static told told_so_far(const tsi_recording *r)
{
    told t = { r->touch, r->form, r->touch_count, -1, -1, -1, -1 };
    for (int64_t i = 0; i < t.count; i++) {
        bool makes = t.touch[i].how == TSI_MAKES;
        if (t.value < 0 || makes) t.value = t.touch[i].value;
        if (makes) t.made = t.touch[i].value;
    }
    for (int64_t i = 0; i < r->issued_count; i++) {
        if (r->issued[i].written || r->issued[i].wait_of >= 0) continue;
        t.first = t.first < 0 ? i : t.first;
        t.last = i;
    }
    return t;
}

/* Does something else than what the last one makes say that it has ended? It was waited for before
 * that was told, or is on another queue. */
static bool leaves_round(const tsi_recording *r, const told *t, int64_t index)
{
    const pending *p = &r->issued[index];
    if (index == t->last) return p->waited && t->made < 0;
    return p->waited || p->action.queue != r->issued[t->last].action.queue;
}

/* The first operation reads what moves, the last makes what came of it; in between each reads what
 * was waited for before it. */
static void write_operation(tsi_recording *r, const told *t, int64_t index)
{
    pending *p = &r->issued[index];
    for (int64_t k = 0; k < t->count; k++)
        if (t->touch[k].how == TSI_READS ? index == t->first : index == t->last)
            add_touch_as(r, t->touch[k].value, (tsi_touch_how)t->touch[k].how, t->form[k]);
    for (int64_t i = index - 1; i >= 0 && r->issued[i].wait_of >= 0; i--)
        add_touch(r, r->issued[i].value, TSI_READS);
    p->value = t->value;
    if (leaves_round(r, t, index)) {
        p->value = enter_round(r);
        add_touch(r, p->value, TSI_MAKES);
    }
    p->action.hidden = r->hidden;
    append_with(r, &p->action, p->works);
}

static void write_wait(tsi_recording *r, pending *p)
{
    p->value = r->issued[p->wait_of].value;
    add_touch(r, p->value, TSI_READS);
    append_with(r, &p->action, p->works);
}

/* Touches of the moves that were told go to the operations that were issued for them. Those whose
 * purpose was not told touch nothing. */
static void write_issued(tsi_recording *r)
{
    told t = told_so_far(r);
    int64_t kept = 0;
    if (t.first < 0 && t.count == 0) return;
    r->touch = NULL; /* they are handed out below */
    r->form = NULL;
    r->touch_count = r->touch_capacity = r->form_capacity = 0;
    for (int64_t i = t.first; i >= 0 && i < r->issued_count; i++) {
        if (r->issued[i].written) continue;
        r->issued[i].written = true;
        if (r->issued[i].wait_of >= 0)
            write_wait(r, &r->issued[i]);
        else
            write_operation(r, &t, i);
    }
    for (int64_t i = 0; i < r->issued_count; i++) /* those that have ended need no wait */
        if (r->issued[i].work) r->issued[kept++] = r->issued[i];
    r->issued_count = kept;
    r->told = r->hidden = false;
    tsi_free(t.touch);
    tsi_free(t.form);
}

static bool any_issued(const tsi_recording *r)
{
    return r->issued_count > 0 && !r->issued[r->issued_count - 1].written;
}

/* Before anything else is written: what was issued, then what was freed. */
static void catch_up(tsi_recording *r)
{
    write_issued(r);
    write_freed(r);
}

/* What operators moved for themselves is theirs: the call reads it, and frees what is gone. */
static void take_implicit(tsi_recording *r)
{
    for (int64_t i = r->all_count - 1; i >= 0 && r->implicit_count > 0; i--) {
        block *b = r->all[i];
        if (!b->implicit) continue;
        add_touch(r, b->value, TSI_READS);
        if (b->gone) add_touch(r, b->value, TSI_FREES);
        b->implicit = false;
        r->implicit_count--;
    }
}

/* ---- news ------------------------------------------------------------------------------------ */

static void hear_call(void *context, void *what)
{
    tsi_recording *r = context;
    const tsi_op_record *call = what;
    const tsi_op_plan *plan = call->plan;
    char name[NAME], place[NAME];
    name_in_scope(r->rank, plan->op->name, name);
    catch_up(r);
    tsi_action action = TSI_ACTION_INIT(TSI_ACTION_OPERATOR);
    action.what = name;
    place_in(r->rank, place, &action);
    for (int32_t i = 0; i < plan->input_count; i++)
        if (call->in[i]) touch_tensor(r, call->in[i], TSI_READS);
    take_implicit(r);
    for (int32_t o = 0; o < plan->output_count; o++) {
        if (plan->in_place && o == 0)
            touch_tensor(r, call->out[o], TSI_WRITES);
        else
            (void)touch_made(r, call->out[o], plan->op->name);
    }
    action.us = kernel_us(r);
    append(r, &action);
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

/* Several tensors may move by the same operations: they are told one after another. */
static int32_t move_by_others(tsi_recording *r, const tsi_moved *moved)
{
    for (int64_t i = 0; i < r->issued_count; i++)
        if (!r->issued[i].written) group_along(r, r->issued[i].action.group, moved->from);
    r->told = true;
    r->hidden = r->hidden || moved->implicit;
    touch_tensor(r, moved->from, TSI_READS);
    return touch_made(r, moved->to, "move");
}

static int32_t move_alone(tsi_recording *r, const tsi_moved *moved)
{
    tsi_action action = TSI_ACTION_INIT(TSI_ACTION_OPERATOR);
    char name[NAME], place[NAME];
    catch_up(r);
    name_in_scope(r->rank, "redistribute", name);
    action.what = name;
    place_in(r->rank, place, &action);
    touch_tensor(r, moved->from, TSI_READS);
    int32_t to = touch_made(r, moved->to, "move");
    action.us = kernel_us(r);
    append(r, &action);
    return to;
}

static void hear_move(void *context, void *what)
{
    tsi_recording *r = context;
    const tsi_moved *moved = what;
    bool by_others = any_issued(r) && (!r->told || needs_others(moved));
    int32_t to = by_others ? move_by_others(r, moved) : move_alone(r, moved);
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
        (void)touch_made(r, message->tensor, "received");
    else
        touch_tensor(r, message->tensor, TSI_READS);
    catch_up(r);
}

static void hear_fill(void *context, void *what)
{
    tsi_recording *r = context;
    const tsi_filled *filled = what;
    char name[NAME], place[NAME];
    catch_up(r);
    for (int32_t i = 0; i < filled->of_count; i++)
        if (filled->of[i]) touch_tensor(r, filled->of[i], TSI_READS);
    if (touch_made(r, filled->made, filled->how) < 0) {
        r->touch_count = 0; /* another handle of what is there */
        return;
    }
    tsi_action action = TSI_ACTION_INIT(TSI_ACTION_OPERATOR);
    name_in_scope(r->rank, filled->how, name);
    action.what = name;
    place_in(r->rank, place, &action);
    action.us = kernel_us(r);
    append(r, &action);
}

/* Updates count once: each has its parameter's name or, for a list of them, a number. */
static void hear_list(void *context, void *what)
{
    tsi_recording *r = context;
    const tsi_listed *listed = what;
    char name[NAME], numbered[NAME + 16], place[NAME];
    bool updates = strncmp(listed->name, "fused_", 6) == 0;
    catch_up(r);
    tsi_action action = TSI_ACTION_INIT(updates ? TSI_ACTION_UPDATE : TSI_ACTION_OPERATOR);
    name_in_scope(r->rank, listed->name, name);
    const tsi_step_list *list = list_of(r);
    if (listed->of)
        (void)snprintf(numbered, sizeof numbered, "%.200s", listed->of);
    else
        (void)snprintf(numbered, sizeof numbered, "%s.%d", name, list ? list->action_count + 1 : 1);
    clean(numbered);
    action.what = updates ? numbered : name;
    for (int32_t k = 0; k < listed->count; k++)
        for (int64_t i = 0; i < listed->lists[k].count; i++)
            touch_tensor(r, listed->lists[k].item[i],
                         listed->written >> k & 1 ? TSI_WRITES : TSI_READS);
    take_implicit(r);
    place_in(r->rank, place, &action);
    action.us = kernel_us(r);
    append(r, &action);
}

static void hear_free(void *context, void *what)
{
    tsi_recording *r = context;
    tsi_storage *storage = what;
    block *b = find(r, storage);
    if (!b) return;
    (void)tsi_map_remove(&r->blocks, (uint64_t)(uintptr_t)storage, NULL, NULL);
    storage->watched = false;
    b->there = false;
    b->gone = true;
    if (b->implicit) return; /* by the call that is to come */
    if (tsi_room(&r->freed, r->freed_count, &r->freed_capacity, sizeof *r->freed,
                 "the recording of a step") != TS_OK) {
        fail(r, tsi_fail_memory("a recording", sizeof *r->freed));
        return;
    }
    r->freed[r->freed_count++] = (tsi_touch){ b->value, TSI_FREES };
}

/* ---- operations ------------------------------------------------------------------------------ */

static int32_t action_kind(int32_t kind)
{
    switch ((tsi_comm_kind)kind) {
    case TSI_COMM_ALL_GATHER:
        return TSI_ACTION_GATHER;
    case TSI_COMM_REDUCE_SCATTER:
        return TSI_ACTION_REDUCE;
    case TSI_COMM_ALL_REDUCE:
        return TSI_ACTION_ALL_REDUCE;
    case TSI_COMM_SEND:
        return TSI_ACTION_SEND;
    case TSI_COMM_RECV:
        return TSI_ACTION_RECEIVE;
    case TSI_COMM_BARRIER:
    case TSI_COMM_BROADCAST:
    case TSI_COMM_SCATTER:
    case TSI_COMM_GATHER:
    case TSI_COMM_REDUCE:
    case TSI_COMM_ALL_TO_ALL:
    case TSI_COMM_EXCHANGE:
    case TSI_COMM_KIND_COUNT:
        break;
    }
    return TSI_ACTION_EXCHANGE;
}

static int compare_ranks(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

/* The step's group of a team; lists in another order are another team, and another group. */
static ts_status group_of(tsi_recording *r, const tsi_team *team, int32_t *out)
{
    char name[96];
    int32_t *member = tsi_alloc_array((size_t)team->size, sizeof *member);
    if (!member) return tsi_fail_memory("a group", (size_t)team->size * sizeof *member);
    for (int64_t i = 0; i < team->size; i++)
        member[i] = (int32_t)(team->rank ? team->rank[i] : i);
    qsort(member, (size_t)team->size, sizeof *member, compare_ranks);
    (void)snprintf(name, sizeof name, "%.40s@%08llx", team->name ? team->name : "",
                   (unsigned long long)(team->hash & 0xffffffffu));
    clean(name);
    ts_status status = tsi_step_group_of(r->step, name, member, team->size, out);
    tsi_free(member);
    return status;
}

/* Messages of one pair of ranks are ordered by team: two lists of the same two ranks are two. */
static int32_t message_channel(const tsi_team *team)
{
    if (team->size == 2 && team->rank) return team->rank[0] < team->rank[1] ? 0 : 1;
    return (int32_t)(2 + team->hash % 1000003);
}

/* Operations of one group and channel wait for each other, those of different groups do not. The
 * first groups on channel 0 have queues of their own, numbered by first use, so that ranks call
 * them alike; there are few queues, so others share that of the first. */
static int32_t group_number(tsi_recording *r, int32_t group)
{
    int32_t i = 0;
    while (i < r->group_count && r->group[i] != group)
        i++;
    bool room = i < OWN_QUEUES && r->step->queue_count < TSI_STEP_QUEUES - 3;
    if (i == r->group_count && room) r->group[r->group_count++] = group;
    return i < r->group_count ? i : 0;
}

static ts_status queue_of(tsi_recording *r, const tsi_issued *issued, tsi_action *action)
{
    char name[32];
    if (!issued->work) return TS_OK;
    int32_t number = action->channel == 0 && action->peer < 0 ? group_number(r, action->group) : 0;
    if (action->peer >= 0)
        (void)snprintf(name, sizeof name, "%s", tsi_action_names[action->kind]);
    else if (number > 0)
        (void)snprintf(name, sizeof name, "group%d", number);
    else
        (void)snprintf(name, sizeof name, "channel%d", action->channel);
    return tsi_step_queue(r->step, name, &action->queue);
}

static ts_status describe(tsi_recording *r, const tsi_issued *issued, tsi_action *action,
                          char *name)
{
    const tsi_work *work = issued->operation;
    const tsi_fingerprint *print = &work->print;
    bool point = print->kind == TSI_COMM_SEND || print->kind == TSI_COMM_RECV;
    action->bytes = action->kind == TSI_ACTION_EXCHANGE
                        ? tsi_work_bytes_received(work)
                        : print->count * (int64_t)ts_dtype_size((ts_dtype)print->dtype);
    (void)snprintf(name, NAME, "%.150s.%llu", point ? "message" : issued->name,
                   (unsigned long long)print->sequence);
    clean(name);
    action->what = name;
    if (point) {
        action->peer = (int32_t)(work->team->rank ? work->team->rank[print->root] : print->root);
        action->channel = message_channel(work->team);
    } else {
        action->channel = print->channel;
        TSI_TRY(group_of(r, work->team, &action->group));
    }
    char place[NAME];
    place_in(r->rank, place, action);
    TSI_TRY(queue_of(r, issued, action));
    if (action->place) TSI_TRY(tsi_step_name(r->step, place, &action->place));
    return tsi_step_name(r->step, name, &action->what);
}

static ts_status add_pending(tsi_recording *r, const pending *p)
{
    if (tsi_room(&r->issued, r->issued_count, &r->issued_capacity, sizeof *r->issued,
                 "the recording of a step") != TS_OK)
        return tsi_fail_memory("a recording", sizeof *r->issued);
    r->issued[r->issued_count++] = *p;
    return TS_OK;
}

static void hear_issue(void *context, void *what)
{
    tsi_recording *r = context;
    const tsi_issued *issued = what;
    char name[NAME];
    if (r->status != TS_OK) return;
    if (r->told) write_issued(r); /* those before have their purpose */
    if (!any_issued(r)) write_freed(r);
    pending p = { .work = issued->work, .value = -1, .works = works_with_this(r), .wait_of = -1 };
    p.action = TSI_ACTION_INIT(action_kind(issued->operation->print.kind));
    ts_status status = describe(r, issued, &p.action, name);
    if (status == TS_OK && p.action.peer == r->rank->index) return; /* to itself: no message */
    if (status == TS_OK) status = add_pending(r, &p);
    fail(r, status);
}

/* Of a step that runs again it is no part: then nothing is agreed on. Else it touches nothing. */
static void hear_agree(void *context, void *what)
{
    tsi_recording *r = context;
    const char *name = what;
    if (!any_issued(r) || r->told) return;
    const tsi_action *last = &r->issued[r->issued_count - 1].action;
    if (last->kind != TSI_ACTION_ALL_REDUCE || strncmp(last->what, name, strlen(name)) != 0) return;
    if (r->rank->kept)
        r->issued_count--;
    else
        write_issued(r);
}

/* What it is for is told later: the wait is written with it. */
static bool wait_in_round(tsi_recording *r, const void *work)
{
    int64_t i = 0;
    while (i < r->issued_count && (r->issued[i].work != work || r->issued[i].written))
        i++;
    if (r->told || i == r->issued_count) return false;
    pending wait = { .value = -1, .works = works_with_this(r), .wait_of = i };
    wait.action = TSI_ACTION_INIT(TSI_ACTION_WAIT);
    r->issued[i].work = NULL;
    r->issued[i].waited = true;
    fail(r, add_pending(r, &wait));
    return true;
}

static void hear_wait(void *context, void *what)
{
    tsi_recording *r = context;
    if (wait_in_round(r, what)) return;
    catch_up(r);
    for (int64_t i = 0; i < r->issued_count; i++) {
        if (r->issued[i].work != what) continue;
        tsi_action wait = TSI_ACTION_INIT(TSI_ACTION_WAIT);
        add_touch(r, r->issued[i].value, TSI_READS);
        append(r, &wait);
        memmove(&r->issued[i], &r->issued[i + 1],
                (size_t)(--r->issued_count - i) * sizeof *r->issued);
        return;
    }
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
                                         [TSI_NEWS_ISSUE] = hear_issue,
                                         [TSI_NEWS_WAIT] = hear_wait,
                                         [TSI_NEWS_AGREE] = hear_agree,
                                         [TSI_NEWS_FILL] = hear_fill,
                                         [TSI_NEWS_MOVE] = hear_move,
                                         [TSI_NEWS_MESSAGE] = hear_message,
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

/* What is still there is left by the step; what was given and is there is held by it. */
static void settle(tsi_recording *r)
{
    catch_up(r);
    if (r->implicit_count > 0) { /* a call that failed */
        tsi_action failed = TSI_ACTION_INIT(TSI_ACTION_OPERATOR);
        take_implicit(r);
        append(r, &failed);
    }
    if (r->issued_count > 0) { /* what is under way ends with the step */
        tsi_action wait = TSI_ACTION_INIT(TSI_ACTION_WAIT);
        append(r, &wait);
    }
    tsi_step_list *list = list_of(r);
    for (int64_t i = 0; i < r->all_count; i++) {
        const block *b = r->all[i];
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
    ts_status status = r->status;
    if (status == TS_OK) {
        *out = r->step;
        r->step = NULL;
    }
    destroy(r);
    return status;
}
