/* SPDX-License-Identifier: Apache-2.0 */
/* step_forms.c - placements agree at every edge of a step.
 *
 * A form says what each axis of a mesh does to a value: "fsdp:S(0)|tp:P(sum)". A value has the form
 * in which it was made or last written, and those it was viewed in since; whoever reads it in a
 * form must find that one. Where nothing is said, nothing is checked. A collective changes axes of
 * its group alone, and has something to gather or to add up there. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/error.h"
#include "plan/step_prove.h"

typedef struct known { /* a form of a value */
    const char *form;
    int32_t by; /* the action that gave it; -1: it was there before */
    struct known *next;
} known;

typedef struct walk {
    const tsi_step *step;
    const tsi_step_list *list;
    int64_t rank;
    tsi_findings *found;
    known **value; /* [value]; NULL: nothing is known */
    tsi_arena memory;
} walk;

static const known *find(const known *forms, const char *form)
{
    while (forms && forms->form != form) /* names of a step are one pointer each */
        forms = forms->next;
    return forms;
}

static ts_status learn(walk *w, int32_t value, const char *form, int32_t by, bool alone)
{
    known *made = tsi_arena_alloc(&w->memory, sizeof *made);
    if (!made) return tsi_fail_memory("the forms of a step", sizeof *made);
    *made = (known){ form, by, alone ? NULL : w->value[value] };
    w->value[value] = made;
    return TS_OK;
}

/* ---- one axis of a form ---------------------------------------------------------------------- */

/* The part of a form that is the axis', "S(0)"; its length in *length, 0: it says nothing. */
static const char *part_of(const char *form, const char *axis, size_t axis_length, size_t *length)
{
    *length = 0;
    for (const char *at = form; at && *at; at = strchr(at, '|')) {
        if (*at == '|') at++;
        if (strncmp(at, axis, axis_length) != 0 || at[axis_length] != ':') continue;
        const char *part = at + axis_length + 1;
        *length = strcspn(part, "|");
        return part;
    }
    return NULL;
}

/* Whether any of the axes "a+b" has a part that begins with one of the letters. */
static bool any_part(const char *form, const char *axes, const char *letters)
{
    for (size_t n; *axes; axes += n + (axes[n] == '+')) {
        n = strcspn(axes, "+");
        size_t length;
        const char *part = part_of(form, axes, n, &length);
        if (part && length > 0 && strchr(letters, part[0])) return true;
    }
    return false;
}

static bool names_axis(const char *axes, const char *axis, size_t length)
{
    for (size_t n; *axes; axes += n + (axes[n] == '+')) {
        n = strcspn(axes, "+");
        if (n == length && strncmp(axes, axis, n) == 0) return true;
    }
    return false;
}

/* An axis beyond the group that would need communication: from what is not whole to another. */
static const char *foreign_axis(const char *from, const char *to, const char *axes, size_t *length)
{
    for (const char *at = from; at && *at; at = strchr(at, '|')) {
        if (*at == '|') at++;
        size_t name = strcspn(at, ":|"), was = 0, is = 0;
        if (at[name] != ':' || names_axis(axes, at, name)) continue;
        const char *a = part_of(from, at, name, &was), *b = part_of(to, at, name, &is);
        if (!a || !b || (was == is && strncmp(a, b, is) == 0) || a[0] == 'R') continue;
        *length = name;
        return at;
    }
    return NULL;
}

/* ---- sentences ------------------------------------------------------------------------------- */

static ts_status refuse_read(walk *w, int32_t index, int32_t value, const char *form)
{
    tsi_text text = { 0 };
    const known *has = w->value[value];
    bool terms = strstr(has->form, "P(") && !strstr(form, "P(");
    tsi_step_cite(w->step, w->rank, index, &text);
    tsi_text_printf(&text, " reads %s as %s, ", w->list->value[value].name, form);
    if (has->by < 0) {
        tsi_text_printf(&text, "which is %s before the step", has->form);
    } else {
        tsi_text_printf(&text, "which is %s since ", has->form);
        tsi_step_cite(w->step, w->rank, has->by, &text);
    }
    if (terms) tsi_text_add(&text, ": its terms are not added up");
    return tsi_step_refuse(w->found, terms ? TSI_FINDING_UNREDUCED : TSI_FINDING_PLACEMENT, &text);
}

static ts_status refuse_over(walk *w, int32_t index, int32_t value, const char *form,
                             const char *why)
{
    tsi_text text = { 0 };
    const tsi_action *a = &w->list->action[index];
    tsi_step_cite(w->step, w->rank, index, &text);
    tsi_text_printf(&text, " has %s over %s: %s is %s", why, w->step->group[a->group].along,
                    w->list->value[value].name, form);
    const known *has = w->value[value];
    if (has && has->by >= 0) {
        tsi_text_add(&text, " since ");
        tsi_step_cite(w->step, w->rank, has->by, &text);
    }
    return tsi_step_refuse(w->found, TSI_FINDING_AXIS, &text);
}

/* ---- the walk -------------------------------------------------------------------------------- */

/* What a collective needs of its input, and what it may change. */
static ts_status check_over(walk *w, int32_t index)
{
    const tsi_action *a = &w->list->action[index];
    const tsi_touch *touch = tsi_step_touches(w->list, a);
    const char *axes = a->group >= 0 ? w->step->group[a->group].along : NULL;
    int32_t in = -1, out = -1;
    for (int32_t i = 0; axes && i < a->touch_count; i++) {
        if (!tsi_step_form(w->list, a, i)) continue;
        if (touch[i].how == TSI_READS && in < 0) in = i;
        if ((touch[i].how == TSI_MAKES || touch[i].how == TSI_WRITES) && out < 0) out = i;
    }
    if (in < 0) return TS_OK;
    const char *from = tsi_step_form(w->list, a, in), *wrong = NULL;
    bool gathers = a->kind == TSI_ACTION_GATHER;
    bool adds = a->kind == TSI_ACTION_REDUCE || a->kind == TSI_ACTION_ALL_REDUCE;
    if (gathers && !any_part(from, axes, "S")) wrong = "nothing to gather";
    if (adds && !any_part(from, axes, "P")) wrong = "nothing to add up";
    if (wrong) return refuse_over(w, index, touch[in].value, from, wrong);
    size_t length = 0;
    const char *to = out >= 0 ? tsi_step_form(w->list, a, out) : from;
    const char *axis = foreign_axis(from, to, axes, &length);
    if (!axis) return TS_OK;
    char why[96];
    (void)snprintf(why, sizeof why, "no way to change axis %.*s", length < 60 ? (int)length : 60,
                   axis);
    return refuse_over(w, index, touch[in].value, from, why);
}

static ts_status walk_touch(walk *w, int32_t index, const tsi_touch *touch, const char *form)
{
    const known *has = w->value[touch->value];
    switch ((tsi_touch_how)touch->how) {
    case TSI_READS:
        if (!form || !has || find(has, form)) return TS_OK;
        return refuse_read(w, index, touch->value, form);
    case TSI_WRITES:
        if (!form || find(has, form)) return TS_OK;
        return learn(w, touch->value, form, index, true);
    case TSI_MAKES:
        w->value[touch->value] = NULL;
        return form ? learn(w, touch->value, form, index, true) : TS_OK;
    case TSI_VIEWS:
        if (!form || !has || find(has, form)) return TS_OK;
        return learn(w, touch->value, form, index, false);
    case TSI_FREES:
    case TSI_TOUCH_COUNT:
        break;
    }
    return TS_OK;
}

static ts_status walk_list(walk *w)
{
    for (int32_t v = 0; v < w->list->value_count; v++)
        if (w->list->value[v].form) TSI_TRY(learn(w, v, w->list->value[v].form, -1, true));
    for (int32_t i = 0; i < w->list->action_count; i++) {
        const tsi_action *a = &w->list->action[i];
        const tsi_touch *touch = tsi_step_touches(w->list, a);
        TSI_TRY(check_over(w, i));
        for (int32_t k = 0; k < a->touch_count; k++)
            TSI_TRY(walk_touch(w, i, &touch[k], tsi_step_form(w->list, a, k)));
    }
    return TS_OK;
}

ts_status tsi_step_prove_forms(const tsi_step *step, int64_t rank, tsi_findings *found)
{
    walk w = { .step = step, .list = tsi_step_list_of(step, rank), .rank = rank, .found = found };
    size_t values = (size_t)w.list->value_count + 1;
    w.value = tsi_arena_calloc(&w.memory, values, sizeof(known *));
    ts_status status =
        w.value ? walk_list(&w) : tsi_fail_memory("the forms of a step", values * sizeof(known *));
    tsi_arena_release(&w.memory);
    return status;
}
