/* SPDX-License-Identifier: Apache-2.0 */
/* record_values.c - what a recording knows of memory: values, their forms, and which of them the
 * action being written touches.
 *
 * INV: a storage in `blocks` that still has its mark is the one that was entered; one without it is
 * another that lies where an old one was, freed by another thread. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "runtime/recording.h"

/* ---- touches --------------------------------------------------------------------------------- */

void tsi_recording_fail(tsi_recording *r, ts_status status)
{
    if (r->status == TS_OK) r->status = status;
}

void tsi_recording_touch_as(tsi_recording *r, int32_t value, tsi_touch_how how, const char *form)
{
    if (value < 0) return;
    if (how == TSI_WRITES) r->all[value]->written = true;
    for (int64_t i = 0; i < r->touch_count; i++)
        if (r->touch[i].value == value && r->touch[i].how == (int32_t)how &&
            (r->form[i] == form || !form))
            return;
    if (tsi_room(&r->touch, r->touch_count, &r->touch_capacity, sizeof *r->touch,
                 "the recording of a step") != TS_OK ||
        tsi_room(&r->form, r->touch_count, &r->form_capacity, sizeof *r->form,
                 "the recording of a step") != TS_OK) {
        tsi_recording_fail(r, tsi_fail_memory("a recording", sizeof *r->touch));
        return;
    }
    r->form[r->touch_count] = form;
    r->touch[r->touch_count++] = (tsi_touch){ value, (int32_t)how };
}

void tsi_recording_touch_value(tsi_recording *r, int32_t value, tsi_touch_how how)
{
    tsi_recording_touch_as(r, value, how, NULL);
}

void tsi_recording_clean(char *name)
{
    for (char *c = name; *c; c++)
        if ((unsigned char)*c <= ' ' || strchr(",=#\x7f", *c)) *c = '_';
}

int tsi_recording_cut(const char *label)
{
    enum { MOST = 150 };
    size_t length = strnlen(label, MOST + 1);
    if (length <= MOST) return (int)length;
    length = MOST;
    while (length > 0 && ((unsigned char)label[length] & 0xC0) == 0x80)
        length--;
    return (int)length;
}

/* ---- forms ----------------------------------------------------------------------------------- */

void tsi_recording_axis(const tsi_mesh_desc *mesh, int32_t axis, char out[TSI_RECORDING_AXIS])
{
    if (mesh->name[axis][0])
        (void)snprintf(out, TSI_RECORDING_AXIS, "%s", mesh->name[axis]);
    else
        (void)snprintf(out, TSI_RECORDING_AXIS, "%d", axis);
}

/* "fsdp:S(0)|tp:R": what each axis of the mesh does to the tensor; one of a single rank does
 * nothing, whatever its placement is called. NULL: it has none, is too long for a name, or failed.
 */
static const char *form_of(tsi_recording *r, const ts_tensor *t)
{
    char text[TS_NDIM_MAX * (TSI_RECORDING_AXIS + 64)], axis[TSI_RECORDING_AXIS];
    size_t length = 0;
    if (!t || !t->layout || r->status != TS_OK) return NULL;
    const ts_sharding *s = t->layout->sharding;
    for (int32_t k = 0; k < s->ndim; k++) {
        char place[60];
        (void)tsi_placement_text(&s->place[k], s->mesh->size[k], 0, place, sizeof place);
        if (strchr(place, ',')) (void)snprintf(place, sizeof place, "S"); /* by a list of extents */
        if (s->mesh->size[k] == 1) (void)snprintf(place, sizeof place, "R");
        tsi_recording_axis(s->mesh, k, axis);
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%s:%s", k ? "|" : "",
                                   axis, place);
    }
    if (length == 0 || length > TSI_STEP_NAME_MAX) return NULL;
    const char *own = NULL;
    tsi_recording_clean(text);
    tsi_recording_fail(r, tsi_step_name(r->step, text, &own));
    return own;
}

static bool has_form(const tsi_recorded *b, const char *form)
{
    for (int32_t i = 0; i < TSI_RECORDED_FORMS; i++)
        if (b->form[i] == form) return true;
    return false;
}

static void give_form(tsi_recorded *b, const char *form)
{
    if (!form || has_form(b, form)) return;
    for (int32_t i = 0; i < TSI_RECORDED_FORMS; i++) {
        if (b->form[i]) continue;
        b->form[i] = form;
        return;
    }
    b->mixed = true;
}

/* ---- values ---------------------------------------------------------------------------------- */

tsi_step_list *tsi_recording_list(tsi_recording *r)
{
    return r->rank->index < r->step->list_count ? &r->step->list[r->rank->index] : NULL;
}

static void hold(tsi_recording *r, tsi_storage *storage, int32_t value)
{
    tsi_held *held = r->held;
    if (!held) return;
    tsi_recording_fail(
        r, tsi_room(&held->storage, held->count, &held->capacity, sizeof(void *), "a step"));
    tsi_recording_fail(r, tsi_room(&held->value, held->count, &held->value_capacity,
                                   sizeof *held->value, "a step"));
    if (r->status != TS_OK) return;
    tsi_storage_retain(storage);
    held->storage[held->count] = storage;
    held->value[held->count++] = value;
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
    tsi_free(held->value);
    tsi_free(held->written);
    *held = (tsi_held){ 0 };
}

/* One more, of no value yet. NULL: it failed. */
static tsi_recorded *add_block(tsi_recording *r, const tsi_storage *storage)
{
    tsi_recorded *made = tsi_calloc(1, sizeof *made);
    if (!made || tsi_room(&r->all, r->all_count, &r->all_capacity, sizeof *r->all,
                          "the recording of a step") != TS_OK) {
        tsi_free(made);
        tsi_recording_fail(r, tsi_fail_memory("a recording", sizeof *made));
        return NULL;
    }
    *made = (tsi_recorded){ .storage = storage, .value = -1, .there = true };
    r->all[r->all_count++] = made;
    return made;
}

/* A storage that was not seen before becomes a value: made by the action being written, or given.
 */
static tsi_recorded *enter(tsi_recording *r, tsi_storage *storage, const char *maker,
                           const char *form)
{
    char name[TSI_RECORDING_NAME + 32];
    tsi_value value = { .name = name,
                        .bytes = (int64_t)storage->bytes,
                        .memory = (int32_t)tsi_memory_of_tag(storage->tag),
                        .life = maker ? TSI_LIFE_INSIDE : TSI_LIFE_TAKEN,
                        .form = maker ? NULL : form };
    (void)snprintf(name, sizeof name, "%.180s.%lld", maker ? maker : "given",
                   (long long)r->all_count + 1);
    tsi_recording_clean(name);
    tsi_recorded *made = add_block(r, storage);
    if (!made) return NULL;
    give_form(made, form);
    ts_status status = tsi_step_value(r->step, r->rank->index, &value, &made->value);
    if (status == TS_OK && !maker) hold(r, storage, made->value);
    if (status == TS_OK) status = tsi_map_insert(&r->blocks, (uint64_t)(uintptr_t)storage, made);
    if (status != TS_OK) tsi_recording_fail(r, status);
    storage->watched = true;
    return status == TS_OK ? made : NULL;
}

tsi_recorded *tsi_recording_find(tsi_recording *r, const tsi_storage *storage)
{
    uint64_t key = (uint64_t)(uintptr_t)storage;
    tsi_recorded *found = tsi_map_find(&r->blocks, key, NULL, NULL);
    if (!found || storage->watched) return found;
    (void)tsi_map_remove(&r->blocks, key, NULL, NULL); /* lost sight of: it stays to the end */
    return NULL;
}

tsi_recorded *tsi_recording_block(tsi_recording *r, const ts_tensor *t)
{
    return t && t->array ? tsi_recording_find(r, t->array->storage) : NULL;
}

/* The block of a tensor, which is there; NULL: it has no memory, or it failed. */
static tsi_recorded *block_of(tsi_recording *r, const ts_tensor *t)
{
    tsi_storage *storage = t && t->array ? t->array->storage : NULL;
    if (!storage || storage->bytes == 0 || r->status != TS_OK) return NULL;
    tsi_recorded *known = tsi_recording_find(r, storage);
    return known ? known : enter(r, storage, NULL, form_of(r, t));
}

void tsi_recording_touch(tsi_recording *r, const ts_tensor *t, tsi_touch_how how)
{
    tsi_recorded *b = block_of(r, t);
    if (!b) return;
    tsi_recording_shows(r, t);
    const char *form = form_of(r, t);
    if (form && !has_form(b, form)) b->mixed = true;
    tsi_recording_touch_as(r, b->value, how, form);
}

/* A tensor that the action made: a new block, or another view of one that is there. Returns the new
 * value, or -1. */
int32_t tsi_recording_made(tsi_recording *r, const ts_tensor *t, const char *maker)
{
    tsi_storage *storage = t && t->array ? t->array->storage : NULL;
    if (!storage || storage->bytes == 0 || r->status != TS_OK) return -1;
    const char *form = form_of(r, t);
    tsi_recorded *known = tsi_recording_find(r, storage);
    if (known && known->staged) { /* a move's own copy, which others see */
        known->staged = false;
        r->staged_count--;
        give_form(known, form);
        tsi_recording_touch_as(r, known->value, TSI_MAKES, form);
        return known->value;
    }
    if (known) {
        if (form && !has_form(known, form))
            tsi_recording_touch_as(r, known->value, TSI_VIEWS, form);
        give_form(known, form);
        return -1;
    }
    tsi_recorded *made = enter(r, storage, maker, form);
    if (!made) return -1;
    tsi_recording_touch_as(r, made->value, TSI_MAKES, form);
    return made->value;
}

int32_t tsi_recording_round(tsi_recording *r)
{
    char name[32];
    tsi_value value = { .name = name, .memory = TSI_STEP_MEMORY_COMM };
    (void)snprintf(name, sizeof name, "round.%lld", (long long)r->all_count + 1);
    tsi_recorded *made = add_block(r, NULL);
    if (!made) return -1;
    tsi_recording_fail(r, tsi_step_value(r->step, r->rank->index, &value, &made->value));
    return r->status == TS_OK ? made->value : -1;
}

/* ---- what moves take for themselves ---------------------------------------------------------- */

/* Of those that are staged, what is there holds most so far, or not. */
static void see_most(tsi_recording *r)
{
    int64_t bytes = 0, first = r->all_count;
    for (int64_t left = r->staged_count; first > 0 && left > 0; left -= r->all[first]->staged) {
        first--;
        if (r->all[first]->staged && !r->all[first]->gone)
            bytes += (int64_t)r->all[first]->storage->bytes;
    }
    if (bytes <= r->staged_most) return;
    r->staged_most = bytes;
    for (int64_t i = first; i < r->all_count; i++)
        r->all[i]->early = r->all[i]->staged && r->all[i]->gone;
}

void tsi_recording_hear_stage(void *context, void *what)
{
    tsi_recording *r = context;
    tsi_storage *storage = what;
    if (storage->bytes == 0 || r->status != TS_OK || tsi_recording_find(r, storage)) return;
    if (r->told) tsi_recording_catch_up(r); /* it is of the next move */
    tsi_recorded *b = enter(r, storage, "stage", NULL);
    if (!b) return;
    b->staged = true;
    r->staged_count++;
    see_most(r);
}

/* The target of a move is made by its last operation, though it is there from the first on: so what
 * is held at most stays until then, and what was freed before that is gone with the first. */
void tsi_recording_make_staged(tsi_recording *r)
{
    int64_t left = r->staged_count;
    for (int64_t i = r->all_count - 1; i >= 0 && left > 0; i--) {
        tsi_recorded *b = r->all[i];
        if (!b->staged) continue;
        left--;
        tsi_recording_touch_value(r, b->value, TSI_MAKES);
        if (!b->early) continue;
        tsi_recording_touch_value(r, b->value, TSI_FREES);
        b->staged = false;
        r->staged_count--;
    }
}

void tsi_recording_end_staged(tsi_recording *r)
{
    for (int64_t i = r->all_count - 1; i >= 0 && r->staged_count > 0; i--) {
        tsi_recorded *b = r->all[i];
        if (!b->staged) continue;
        if (b->gone) tsi_recording_freed(r, b->value);
        b->staged = false;
        r->staged_count--;
    }
    r->staged_most = 0;
}
