/* SPDX-License-Identifier: Apache-2.0 */
/* record_variables.c - variables at the border of a step that is recorded (base/keep.h).
 *
 * Kept work reads the block that a variable showed when the step began. A step that reads a
 * variable and then gives it another block is refused when it is recorded; one that is to be run
 * again where a variable shows another block is refused then. A variable that the step gives a
 * value has it behind each run, whatever it was given meanwhile.
 *
 *   recorded      reads w in block a, writes loss := block b
 *   run again     is w in a?  ... kernels ...  loss := b
 *
 * Gradients have a border of their own (autograd/border.c).
 * INV: a variable is retained when the recording has ended; one that goes before is forgotten. */
#include <stdio.h>

#include "base/alloc.h"
#include "base/keep.h"
#include "runtime/recording.h"

struct tsi_shown {
    tsi_shown *next;
    ts_tensor *variable;      /* NULL: it is gone */
    const tsi_storage *found; /* of the block that it showed, if that was given; held by the step */
    const char *place;        /* of the call that wrote it; a name of the step, or NULL */
    ts_tensor *left;          /* the value that the step gave it, retained; NULL: none */
    bool written, turned;     /* by ts_tensor_write; by its unit */
    bool settled;             /* the variable is retained */
};

static const tsi_storage *storage_of(const ts_tensor *v)
{
    return v->array ? v->array->storage : NULL;
}

static void shown_destroy(void *context)
{
    tsi_shown *s = context;
    if (s->settled) tsi_tensor_release(s->variable);
    tsi_tensor_release(s->left);
    tsi_free(s);
}

static ts_status shown_settle(void *context)
{
    tsi_shown *s = context;
    const ts_tensor *v = s->variable;
    s->settled = v != NULL;
    if (!v) return TS_OK;
    (void)tsi_tensor_retain(s->variable);
    return s->written ? tsi_variable_value(v, &s->left) : TS_OK;
}

static void name_of(const ts_tensor *v, const char *otherwise, char out[TSI_RECORDING_NAME])
{
    if (v->name)
        (void)tsi_name_text(v->name, out, TSI_RECORDING_NAME);
    else
        snprintf(out, TSI_RECORDING_NAME, "%s", otherwise);
}

static ts_status shown_check(void *context)
{
    const tsi_shown *s = context;
    const ts_tensor *v = s->variable;
    char name[TSI_RECORDING_NAME];
    if (!v || !s->found || storage_of(v) == s->found) return TS_OK;
    name_of(v, "a variable", name);
    return TSI_FAIL_BLAST(
        TS_BLAST_LOCAL, TS_ERR_STATE,
        "step: %s shows another block than when the step was recorded, and run again it would read "
        "that one: %s",
        name,
        v->swaps ? "its unit was gathered, or was not (ts_fsdp_release lets go of it)"
                 : "change it in place, as ts_foreach_copy does, not by ts_tensor_write");
}

static ts_status shown_leave(void *context)
{
    const tsi_shown *s = context;
    if (!s->left || s->variable->array == s->left->array) return TS_OK;
    return ts_tensor_write(s->variable, s->left);
}

/* NULL: recorded. */
static tsi_shown *shown_of(tsi_recording *r, const ts_tensor *variable)
{
    uint64_t key = (uint64_t)(uintptr_t)variable;
    tsi_shown *s = tsi_map_find(&r->shown, key, NULL, NULL);
    if (s) return s;
    s = tsi_calloc(1, sizeof *s);
    if (!s) {
        tsi_recording_fail(r, tsi_fail_memory("a variable of a step", sizeof *s));
        return NULL;
    }
    s->variable = (ts_tensor *)(uintptr_t)variable;
    const tsi_kept_border border = { .settle = shown_settle,
                                     .check = shown_check,
                                     .leave = shown_leave,
                                     .destroy = shown_destroy,
                                     .context = s };
    ts_status status = tsi_keep_border(r->rank, border);
    if (status == TS_OK) {
        *(r->last_shown ? &r->last_shown->next : &r->first_shown) = s;
        r->last_shown = s;
        status = tsi_map_insert(&r->shown, key, s);
    }
    tsi_recording_fail(r, status);
    return status == TS_OK ? s : NULL;
}

/* Is it the border's business? Not a gradient, nor where nothing is to be run again. */
static bool counts(const tsi_recording *r, const ts_tensor *t)
{
    return t->is_variable == TSI_VARIABLE && r->held && r->rank->kept;
}

/* Was the block given to the step? */
static bool is_given(tsi_recording *r, const ts_tensor *v)
{
    const tsi_recorded *b = v->array ? tsi_recording_find(r, v->array->storage) : NULL;
    const tsi_step_list *list = tsi_recording_list(r);
    return b && list && list->value[b->value].life & TSI_LIFE_TAKEN;
}

void tsi_recording_shows(tsi_recording *r, const ts_tensor *t)
{
    if (!counts(r, t) || !is_given(r, t)) return;
    tsi_shown *s = shown_of(r, t);
    if (s && !s->found && !s->written) s->found = storage_of(t);
}

void tsi_recording_hear_write(void *context, void *what)
{
    tsi_recording *r = context;
    const ts_tensor *v = what;
    if (!counts(r, v)) return;
    tsi_shown *s = shown_of(r, v);
    if (!s || s->written || s->turned) return; /* where it lay before the first counts */
    s->written = !v->swaps;
    s->turned = v->swaps;
    if (!s->found && (v->swaps || is_given(r, v))) s->found = storage_of(v);
    tsi_action at = TSI_ACTION_INIT(TSI_ACTION_OPERATOR);
    char place[TSI_RECORDING_NAME];
    tsi_recording_place(r->rank, place, &at);
    if (at.place) tsi_recording_fail(r, tsi_step_name(r->step, at.place, &s->place));
}

void tsi_recording_hear_drop(void *context, void *what)
{
    tsi_recording *r = context;
    tsi_shown *s = tsi_map_remove(&r->shown, (uint64_t)(uintptr_t)what, NULL, NULL);
    if (s) s->variable = NULL;
}

static ts_status refuse(const tsi_shown *s)
{
    char name[TSI_RECORDING_NAME];
    if (!s->variable->swaps)
        return TSI_FAIL_BLAST(
            TS_BLAST_LOCAL, TS_ERR_STATE,
            "step: a variable that it reads gets another block (ts_tensor_write%s%s); run again it "
            "would read the old one: change it in place, as ts_foreach_copy does",
            s->place ? " behind " : "", s->place ? s->place : "");
    name_of(s->variable, "a parameter", name);
    return TSI_FAIL_BLAST(
        TS_BLAST_LOCAL, TS_ERR_STATE,
        "step: the unit of %s is gathered where the step begins or ends, and lies elsewhere at its "
        "other end; run again it would read what is old: let go of it (ts_fsdp_release, "
        "TS_FSDP_RESHARD_BACKWARD 1)",
        name);
}

/* Ranks without a block of it do not know: so the others are told. */
ts_status tsi_recording_check_writes(const tsi_recording *r)
{
    for (const tsi_shown *s = r->first_shown; s; s = s->next)
        if (s->variable && s->found && (s->written || s->turned) &&
            storage_of(s->variable) != s->found)
            return refuse(s);
    return TS_OK;
}
