/* SPDX-License-Identifier: Apache-2.0 */
/* step_defer.c - reductions let others pass: the pass that gives the rounds of a sum their time.
 *
 *   before   round 1 | wait | round 2 | rows for the next layer | wait ...     each begins behind
 *   after    round 1 | rows for the next layer | ... | wait | round 2 ...      the one before
 *
 * An operation is late if another one that begins behind it is needed before its own result is: a
 * reduction of gradients, that nobody but the norm and the update asks for. Late operations keep
 * their order among themselves, and so do the others; a late one begins when the round before it is
 * over by the times of the simulation, so that its wait costs nothing.
 *
 * INV: every rank begins its operations in the same order, or nothing is moved: which are late, and
 * behind how many others each begins, the first list says for all (runtime/reorder.c takes an order
 * of begins only if all ranks have it). */
#include <limits.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/step_reorder.h"

typedef struct walk { /* over one list */
    const tsi_step_list *list;
    const double *us;
    int32_t *need; /* [action]: of an operation or what is between rounds, the first that uses it;
                      INT32_MAX: none */
    bool *late;    /* [action] */
    bool *between; /* [action]: waits and operators between rounds of late operations */
    double *ready; /* [value]: when it is there, by its latest maker */
    bool *pending; /* [value]: its maker is late and has not begun */
    int32_t *fifo; /* late operations and what is between, that come */
    double *key;   /* [action]: its place */
    int32_t head, tail;
    int32_t number, others; /* so far: late operations that began, and others */
    double now, queue_end[TSI_STEP_QUEUES];
} walk;

typedef struct plan { /* by number of late operation: behind how many others it begins */
    bool *late;       /* by number of operation */
    int32_t *slot;    /* by number of late operation */
    int32_t count, late_count;
    bool made; /* by the first list; the others follow it */
} plan;

static bool communicates(const tsi_action *a)
{
    return a->group >= 0 || a->peer >= 0;
}

static bool is_under_way(const tsi_action *a) /* while the rank goes on */
{
    return a->queue != 0 && a->group >= 0;
}

/* An operator that hands what one round brought to the next: nothing that is memory. */
static bool hands_on(const tsi_step_list *list, const tsi_action *a)
{
    const tsi_touch *touch = tsi_step_touches(list, a);
    int32_t makes = 0;
    if (a->kind != TSI_ACTION_OPERATOR || a->queue != 0) return false;
    for (int32_t k = 0; k < a->touch_count; k++) {
        if (list->value[touch[k].value].bytes > 0 || touch[k].how == TSI_WRITES) return false;
        makes += touch[k].how == TSI_MAKES;
    }
    return makes > 0;
}

/* ---- which are late -------------------------------------------------------------------------- */

/* From the end: the first action that computes with a value, or with what operations make of it. */
static void find_needs(const walk *w, int32_t *use)
{
    const tsi_step_list *list = w->list;
    for (int32_t v = 0; v < list->value_count; v++)
        use[v] = INT32_MAX;
    for (int32_t i = list->action_count - 1; i >= 0; i--) {
        const tsi_action *a = &list->action[i];
        const tsi_touch *touch = tsi_step_touches(list, a);
        bool carries = is_under_way(a) || hands_on(list, a);
        w->need[i] = carries ? INT32_MAX : i;
        for (int32_t k = 0; carries && k < a->touch_count; k++)
            if (touch[k].how != TSI_READS && use[touch[k].value] < w->need[i])
                w->need[i] = use[touch[k].value];
        if (a->kind == TSI_ACTION_WAIT || a->kind == TSI_ACTION_RELEASE) continue;
        for (int32_t k = 0; k < a->touch_count; k++) {
            int32_t *of = &use[touch[k].value];
            if (touch[k].how == TSI_MAKES)
                *of = INT32_MAX; /* what was there before is another */
            else if (w->need[i] < *of)
                *of = w->need[i];
        }
    }
}

/* Does it read only what is there before the step, as gathers of parameters? Those have a pass of
 * their own. What reads nothing is of the move before. */
static bool reads_given(const walk *w, const bool *changed, int32_t i, bool before)
{
    const tsi_action *a = &w->list->action[i];
    const tsi_touch *touch = tsi_step_touches(w->list, a);
    int32_t reads = 0;
    for (int32_t k = 0; k < a->touch_count; k++) {
        if (touch[k].how != TSI_READS) continue;
        reads++;
        bool given = w->list->value[touch[k].value].life & TSI_LIFE_TAKEN;
        if (!given || changed[touch[k].value]) return false;
    }
    return reads > 0 || before;
}

/* Another one behind it is needed before it. */
static void find_late(const walk *w, bool *changed)
{
    const tsi_step_list *list = w->list;
    bool given = true;
    for (int32_t i = 0; i < list->action_count; i++) {
        const tsi_action *a = &list->action[i];
        const tsi_touch *touch = tsi_step_touches(list, a);
        if (is_under_way(a)) {
            given = reads_given(w, changed, i, given);
            w->late[i] = !given;
        }
        for (int32_t k = 0; k < a->touch_count; k++)
            if (touch[k].how != TSI_READS) changed[touch[k].value] = true;
    }
    for (int32_t i = list->action_count - 1, first = INT32_MAX; i >= 0; i--) {
        if (!is_under_way(&list->action[i])) continue;
        w->late[i] = w->late[i] && first < w->need[i];
        if (w->need[i] < first) first = w->need[i];
    }
}

/* Waits and operators that only late operations are behind. */
static void find_between(const walk *w, bool *wanted)
{
    const tsi_step_list *list = w->list; /* wanted: by value, for a late operation */
    for (int32_t i = list->action_count - 1; i >= 0; i--) {
        const tsi_action *a = &list->action[i];
        const tsi_touch *touch = tsi_step_touches(list, a);
        bool hands = hands_on(list, a), waits = a->kind == TSI_ACTION_WAIT && a->touch_count > 0;
        for (int32_t k = 0; k < a->touch_count; k++) {
            if (hands && touch[k].how == TSI_MAKES) hands = wanted[touch[k].value];
            if (waits) waits = wanted[touch[k].value];
        }
        w->between[i] = hands || waits;
        for (int32_t k = 0; (hands || w->late[i]) && k < a->touch_count; k++)
            if (touch[k].how == TSI_READS && list->value[touch[k].value].bytes == 0)
                wanted[touch[k].value] = true;
    }
}

/* ---- when they begin ------------------------------------------------------------------------- */

static double inputs_ready(const walk *w, const tsi_action *a)
{
    const tsi_touch *touch = tsi_step_touches(w->list, a);
    double ready = 0;
    for (int32_t k = 0; k < a->touch_count; k++)
        if (touch[k].how == TSI_READS && w->ready[touch[k].value] > ready)
            ready = w->ready[touch[k].value];
    return ready;
}

static void note_made(walk *w, const tsi_action *a, double ready, bool pending)
{
    const tsi_touch *touch = tsi_step_touches(w->list, a);
    for (int32_t k = 0; k < a->touch_count; k++) {
        if (touch[k].how != TSI_MAKES && touch[k].how != TSI_WRITES) continue;
        w->ready[touch[k].value] = ready;
        w->pending[touch[k].value] = pending;
    }
}

static bool touches_pending(const walk *w, const tsi_action *a)
{
    const tsi_touch *touch = tsi_step_touches(w->list, a);
    for (int32_t k = 0; k < a->touch_count; k++)
        if (w->pending[touch[k].value]) return true;
    return false;
}

static void begin_operation(walk *w, int32_t i)
{
    const tsi_action *a = &w->list->action[i];
    double begin = w->now > w->queue_end[a->queue] ? w->now : w->queue_end[a->queue];
    w->queue_end[a->queue] = begin + w->us[i];
    note_made(w, a, w->queue_end[a->queue], false);
}

/* The next that waits for its turn comes behind action `at`, or before it. */
static void come(walk *w, double at)
{
    int32_t i = w->fifo[w->head++];
    const tsi_action *a = &w->list->action[i];
    double ready = inputs_ready(w, a);
    w->key[i] = at;
    if (ready > w->now) w->now = ready; /* it was waited for */
    if (w->late[i])
        begin_operation(w, i);
    else
        note_made(w, a, w->now, false);
}

/* The place in the fifo of the next late operation, or of the last that comes; *ready: when all up
 * to there has what it reads. */
static int32_t next_late(const walk *w, double *ready)
{
    int32_t at = w->head;
    *ready = 0;
    for (;; at++) {
        double inputs = inputs_ready(w, &w->list->action[w->fifo[at]]);
        if (inputs > *ready) *ready = inputs;
        if (at + 1 == w->tail || w->late[w->fifo[at]]) return at;
    }
}

static bool any_comes(const walk *w)
{
    return w->head < w->tail;
}

/* Is the next late operation ready, and behind as many others as on the first list? */
static bool is_its_turn(const walk *w, const plan *p)
{
    double ready = 0;
    if (!any_comes(w) || !w->late[w->fifo[next_late(w, &ready)]]) return false;
    return ready <= w->now && (!p->made || p->slot[w->number] <= w->others);
}

/* Must it begin before this action: who needs it, or another that would come before it else? */
static bool is_held_up(const walk *w, const plan *p, const tsi_action *a)
{
    bool last =
        p->made && communicates(a) && w->number < p->late_count && p->slot[w->number] <= w->others;
    return any_comes(w) && (last || touches_pending(w, a));
}

/* The next late operation begins, with what comes before it. */
static void begin_next(walk *w, plan *p, double at)
{
    double ready = 0;
    int32_t last = next_late(w, &ready);
    bool late = w->late[w->fifo[last]];
    while (w->head <= last)
        come(w, at);
    if (late && !p->made) p->slot[w->number] = w->others;
    w->number += late;
}

static void pass_main(walk *w, int32_t i)
{
    const tsi_action *a = &w->list->action[i];
    bool stands = a->kind == TSI_ACTION_WAIT || communicates(a);
    double ready = stands ? inputs_ready(w, a) : 0;
    w->others += communicates(a);
    if (is_under_way(a)) {
        begin_operation(w, i);
        return;
    }
    if (ready > w->now) w->now = ready;
    w->now += a->kind == TSI_ACTION_WAIT ? 0 : w->us[i];
    note_made(w, a, w->now, false);
}

/* All others in their order, and late ones between them. */
static void place(walk *w, plan *p)
{
    for (int32_t i = 0; i < w->list->action_count; i++) {
        const tsi_action *a = &w->list->action[i];
        w->key[i] = i;
        if (w->late[i] || w->between[i]) {
            w->fifo[w->tail++] = i;
            note_made(w, a, 0, true);
        } else {
            while (is_held_up(w, p, a))
                begin_next(w, p, i - 0.5);
            pass_main(w, i);
        }
        while (is_its_turn(w, p))
            begin_next(w, p, i + 0.5);
    }
    while (any_comes(w))
        begin_next(w, p, w->list->action_count);
    if (!p->made) p->late_count = w->number;
}

/* ---- a list ---------------------------------------------------------------------------------- */

static ts_status walk_begin(walk *w, const tsi_step_list *list, const double *us)
{
    size_t n = (size_t)list->action_count + 1, values = (size_t)list->value_count + 1;
    *w = (walk){ .list = list,
                 .us = us,
                 .need = tsi_calloc(n, sizeof *w->need),
                 .late = tsi_calloc(n, sizeof *w->late),
                 .between = tsi_calloc(n, sizeof *w->between),
                 .ready = tsi_calloc(values, sizeof *w->ready),
                 .pending = tsi_calloc(values, sizeof *w->pending),
                 .fifo = tsi_calloc(n, sizeof *w->fifo),
                 .key = tsi_calloc(n, sizeof *w->key) };
    bool room = w->need && w->late && w->between && w->ready && w->pending && w->fifo && w->key;
    return room ? TS_OK : tsi_fail_memory("an order", n * 32);
}

static void walk_end(walk *w)
{
    tsi_free(w->need);
    tsi_free(w->late);
    tsi_free(w->between);
    tsi_free(w->ready);
    tsi_free(w->pending);
    tsi_free(w->fifo);
    tsi_free(w->key);
}

/* Of the first list which are late is found; of others taken from it, by number. */
static ts_status find_all(walk *w, plan *p)
{
    size_t values = (size_t)w->list->value_count + 1;
    int32_t *use = tsi_calloc(values, sizeof *use), number = 0;
    bool *changed = tsi_calloc(values, sizeof *changed), *wanted = tsi_calloc(values, 1);
    bool room = use && changed && wanted;
    if (room && !p->made) {
        find_needs(w, use);
        find_late(w, changed);
    }
    for (int32_t i = 0; room && i < w->list->action_count; i++) {
        if (!is_under_way(&w->list->action[i])) continue;
        if (p->made)
            w->late[i] = p->late[number];
        else
            p->late[number] = w->late[i];
        number++;
    }
    if (room) find_between(w, wanted);
    tsi_free(use);
    tsi_free(changed);
    tsi_free(wanted);
    return room ? TS_OK : tsi_fail_memory("an order", values * 8);
}

static ts_status defer_list(const tsi_pass_job *job, plan *p, int64_t *moves)
{
    walk w;
    const tsi_step_list *list = &job->step->list[job->rank];
    ts_status status = walk_begin(&w, list, job->us);
    if (status == TS_OK) status = find_all(&w, p);
    if (status == TS_OK) place(&w, p);
    if (status == TS_OK) status = tsi_pass_by_keys(job, w.late, w.key, moves);
    walk_end(&w);
    return status;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static int32_t count_under_way(const tsi_step_list *list)
{
    int32_t count = 0;
    for (int32_t i = 0; i < list->action_count; i++)
        count += is_under_way(&list->action[i]);
    return count;
}

/* Do all ranks have the same operations, one after another, and no messages? */
static bool are_alike(const tsi_step *step)
{
    const tsi_step_list *first = &step->list[0];
    for (int32_t r = 0; r < step->list_count; r++) {
        const tsi_step_list *list = &step->list[r];
        int32_t k = 0;
        for (int32_t i = 0; i < list->action_count; i++) {
            const tsi_action *a = &list->action[i];
            if (a->peer >= 0) return false;
            if (a->group < 0) continue;
            while (k < first->action_count && first->action[k].group < 0)
                k++;
            if (k == first->action_count) return false;
            const tsi_action *b = &first->action[k++];
            if (a->kind != b->kind || a->queue != b->queue || a->what != b->what) return false;
        }
        if (count_under_way(list) != count_under_way(first)) return false;
    }
    return true;
}

ts_status tsi_pass_defer(tsi_step *step, const double *us, const int64_t *first, int64_t *moves)
{
    if (step->list_count == 0 || !are_alike(step)) return TS_OK;
    plan p = { .count = count_under_way(&step->list[0]) };
    p.late = tsi_calloc((size_t)p.count + 1, sizeof *p.late);
    p.slot = tsi_calloc((size_t)p.count + 1, sizeof *p.slot);
    bool room = p.late && p.slot;
    ts_status status = room ? TS_OK : tsi_fail_memory("an order", (size_t)p.count * 8);
    for (int64_t r = 0; r < step->list_count && status == TS_OK; r++) {
        const tsi_pass_job job = { step, r, us + first[r], 0 };
        status = defer_list(&job, &p, moves);
        p.made = true;
    }
    if (status == TS_OK && !are_alike(step)) *moves = 0; /* ties kept some elsewhere */
    tsi_free(p.late);
    tsi_free(p.slot);
    return status;
}
