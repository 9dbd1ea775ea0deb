/* SPDX-License-Identifier: Apache-2.0 */
/* step_order.c - one rank's list: are values there when they are touched, and does nobody change
 * them meanwhile?
 *
 * A walk down the list keeps, for every queue, how many actions of each queue are known to have
 * ended when its next action begins (a vector clock): what came before it on its queue, what stands
 * above it on main, and what was waited for with all that was known there. An action may read what
 * is known to be written, and change or free what is known to be touched by nobody else. Orders
 * that come about only through another rank do not count: they are not this rank's to keep. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/step_prove.h"

typedef struct knowledge {
    int32_t ended[TSI_STEP_QUEUES]; /* how many actions of each queue */
} knowledge;

typedef struct track { /* of a value; indices of actions, -1: none */
    bool there;
    int32_t written, freed;
    int32_t touched[TSI_STEP_QUEUES];
} track;

typedef struct walk {
    const tsi_step *step;
    const tsi_step_list *list;
    tsi_findings *found;
    int64_t rank;
    track *value;
    knowledge *known; /* [action]: when it begins */
    int32_t *place;   /* [action]: on its queue */
    knowledge queue[TSI_STEP_QUEUES];
    int32_t last[TSI_STEP_QUEUES], count[TSI_STEP_QUEUES];
} walk;

static void merge(knowledge *into, const knowledge *from)
{
    for (int32_t q = 0; q < TSI_STEP_QUEUES; q++)
        if (from->ended[q] > into->ended[q]) into->ended[q] = from->ended[q];
}

/* Everything that is known once the action has ended. */
static void merge_ended(const walk *w, knowledge *into, int32_t index)
{
    if (index < 0) return;
    int32_t queue = w->list->action[index].queue;
    merge(into, &w->known[index]);
    if (w->place[index] + 1 > into->ended[queue]) into->ended[queue] = w->place[index] + 1;
}

static bool has_ended(const walk *w, const knowledge *known, int32_t index)
{
    return index < 0 || w->place[index] < known->ended[w->list->action[index].queue];
}

/* ---- sentences ------------------------------------------------------------------------------- */

/* "forward (action 3 of rank 0) reads w, " and then the reason. */
static ts_status refuse(const walk *w, tsi_finding_kind kind, int32_t index, const tsi_touch *touch,
                        const char *reason, int32_t other)
{
    tsi_text text = { 0 };
    tsi_step_cite(w->step, w->rank, index, &text);
    tsi_text_printf(&text, " %s %s, %s", tsi_touch_names[touch->how],
                    w->list->value[touch->value].name, reason);
    if (other >= 0) tsi_step_cite(w->step, w->rank, other, &text);
    return tsi_step_refuse(w->found, kind, &text);
}

static ts_status refuse_race(const walk *w, int32_t index, const tsi_touch *touch, int32_t other)
{
    tsi_text text = { 0 };
    tsi_step_cite(w->step, w->rank, index, &text);
    tsi_text_printf(&text, " %s %s while ", tsi_touch_names[touch->how],
                    w->list->value[touch->value].name);
    tsi_step_cite(w->step, w->rank, other, &text);
    tsi_text_printf(&text, " on queue %s may still use it: no wait stands between them",
                    w->step->queue[w->list->action[other].queue]);
    return tsi_step_refuse(w->found, TSI_FINDING_RACE, &text);
}

/* ---- touches --------------------------------------------------------------------------------- */

static ts_status check_there(const walk *w, int32_t index, const tsi_touch *touch)
{
    const track *v = &w->value[touch->value];
    bool makes = touch->how == TSI_MAKES;
    if (makes && v->there)
        return refuse(w, TSI_FINDING_REMADE, index, touch,
                      v->written < 0 ? "which is there before the step" : "which is there since ",
                      v->written);
    if (makes || v->there) return TS_OK;
    return refuse(w, v->freed < 0 ? TSI_FINDING_ABSENT : TSI_FINDING_RELEASED, index, touch,
                  v->freed < 0 ? "which nothing above it makes" : "which is gone since ", v->freed);
}

static ts_status check_race(const walk *w, int32_t index, const knowledge *known,
                            const tsi_touch *touch)
{
    const track *v = &w->value[touch->value];
    if (touch->how == TSI_READS || touch->how == TSI_VIEWS) {
        bool waits = w->list->action[index].kind == TSI_ACTION_WAIT;
        bool own = touch->how == TSI_VIEWS && v->written == index; /* outputs of one block */
        return waits || own || has_ended(w, known, v->written)
                   ? TS_OK
                   : refuse_race(w, index, touch, v->written);
    }
    for (int32_t q = 0; q < w->step->queue_count; q++)
        if (v->touched[q] != index && !has_ended(w, known, v->touched[q]))
            return refuse_race(w, index, touch, v->touched[q]);
    return TS_OK;
}

/* A value as it is with nobody using it. */
static track fresh(bool there, int32_t written, int32_t freed)
{
    track v = { .there = there, .written = written, .freed = freed };
    memset(v.touched, 0xff, sizeof v.touched); /* -1 */
    return v;
}

static void note(walk *w, int32_t index, const tsi_touch *touch)
{
    track *v = &w->value[touch->value];
    const tsi_action *a = &w->list->action[index];
    if (touch->how == TSI_FREES) {
        *v = fresh(false, -1, index);
        return;
    }
    if (touch->how == TSI_MAKES) *v = fresh(true, index, -1);
    if (touch->how == TSI_WRITES) v->written = index;
    if (a->kind != TSI_ACTION_WAIT) v->touched[a->queue] = index;
}

/* What a wait learns. */
static void learn(const walk *w, const tsi_action *a, knowledge *known)
{
    const tsi_touch *touch = tsi_step_touches(w->list, a);
    bool named = false;
    for (int32_t i = 0; i < a->touch_count; i++) {
        if (touch[i].how != TSI_READS) continue;
        named = true;
        for (int32_t q = 0; q < w->step->queue_count; q++)
            merge_ended(w, known, w->value[touch[i].value].touched[q]);
    }
    for (int32_t q = 0; q < w->step->queue_count && !named; q++)
        merge_ended(w, known, w->last[q]);
}

static ts_status walk_action(walk *w, int32_t index)
{
    const tsi_action *a = &w->list->action[index];
    const tsi_touch *touch = tsi_step_touches(w->list, a);
    knowledge known = w->queue[a->queue];
    merge(&known, &w->queue[0]);
    if (a->kind == TSI_ACTION_WAIT) learn(w, a, &known);
    w->place[index] = w->count[a->queue]++;
    for (int32_t i = 0; i < a->touch_count; i++) {
        TSI_TRY(check_there(w, index, &touch[i]));
        TSI_TRY(check_race(w, index, &known, &touch[i]));
        note(w, index, &touch[i]);
    }
    w->known[index] = known;
    w->last[a->queue] = index;
    known.ended[a->queue] = w->place[index] + 1;
    w->queue[a->queue] = known;
    return TS_OK;
}

/* At the end: what is not left is gone, what is left is there. */
static ts_status check_end(const walk *w)
{
    for (int32_t v = 0; v < w->list->value_count; v++) {
        const tsi_value *value = &w->list->value[v];
        bool left = value->life & TSI_LIFE_LEFT;
        if (w->value[v].there == left) continue;
        tsi_text text = { 0 };
        tsi_text_printf(&text, "%s of rank %lld is declared as '%s' and is %s the last action",
                        value->name, (long long)tsi_step_shown(w->step, w->rank),
                        tsi_life_names[value->life],
                        left ? "not there after" : "still there after");
        TSI_TRY(tsi_step_refuse(w->found, TSI_FINDING_LIFE, &text));
    }
    return TS_OK;
}

/* What is there after the step is known to be written. */
static ts_status check_waited(const walk *w)
{
    for (int32_t v = 0; v < w->list->value_count; v++) {
        int32_t written = w->value[v].written;
        bool left = w->list->value[v].life & TSI_LIFE_LEFT;
        if (!left || !w->value[v].there || has_ended(w, &w->queue[0], written)) continue;
        tsi_text text = { 0 };
        tsi_text_printf(&text, "%s of rank %lld is left while ", w->list->value[v].name,
                        (long long)tsi_step_shown(w->step, w->rank));
        tsi_step_cite(w->step, w->rank, written, &text);
        tsi_text_printf(&text, " on queue %s may still write it: nothing waits for it",
                        w->step->queue[w->list->action[written].queue]);
        TSI_TRY(tsi_step_refuse(w->found, TSI_FINDING_UNWAITED, &text));
    }
    return TS_OK;
}

ts_status tsi_step_prove_order(const tsi_step *step, int64_t rank, tsi_findings *found)
{
    walk w = { .step = step, .list = tsi_step_list_of(step, rank), .found = found, .rank = rank };
    size_t values = (size_t)w.list->value_count + 1, actions = (size_t)w.list->action_count + 1;
    w.value = tsi_alloc_array(values, sizeof *w.value);
    w.known = tsi_alloc_array(actions, sizeof *w.known);
    w.place = tsi_alloc_array(actions, sizeof *w.place);
    ts_status status = w.value && w.known && w.place
                           ? TS_OK
                           : tsi_fail_memory("the order of a list", actions * sizeof *w.known);
    memset(w.last, 0xff, sizeof w.last); /* -1 */
    for (int32_t v = 0; v < w.list->value_count && status == TS_OK; v++)
        w.value[v] = fresh(w.list->value[v].life & TSI_LIFE_TAKEN, -1, -1);
    for (int32_t i = 0; i < w.list->action_count && status == TS_OK; i++)
        status = walk_action(&w, i);
    if (status == TS_OK) status = check_end(&w);
    if (status == TS_OK) status = check_waited(&w);
    tsi_free(w.value);
    tsi_free(w.known);
    tsi_free(w.place);
    return status;
}
