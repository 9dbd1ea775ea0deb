/* SPDX-License-Identifier: Apache-2.0 */
/* step_ties.c - which actions of a list keep their order. See step_reorder.h.
 *
 * Ties are kept to the nearest ones: to the last that changed a value, to those that looked at it
 * since, to the wait that makes it known that such a one has ended, to the action before on the
 * same queue, and to the operation of communication before. Whatever follows from these by going on
 * is not written down.
 *
 * Operations of a queue end one after another, so a wait for one tells of all before it. The wait
 * for an operation itself counts where there is one: else a gather that began ahead of a reduction
 * would keep the wait for that reduction before whoever uses what was gathered. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/step_reorder.h"

typedef struct looks { /* at a value since it was changed: a chain of actions */
    int32_t changed, head;
    int32_t last[TSI_STEP_QUEUES]; /* that touched it, by queue */
} looks;

typedef struct link {
    int32_t action, next;
} link;

typedef struct walk {
    const tsi_step_list *list;
    looks *value;
    link *chain;
    int64_t chain_count, chain_capacity;
    int32_t *pair; /* before, after, before, after ... */
    int64_t pair_count, pair_capacity;
    int32_t *ahead; /* [action]: the one before it on its queue, while no wait covers it */
    int32_t *cover; /* [action]: the first wait after which it is known to have ended; or -1 */
    int32_t *own;   /* [action]: the first wait for it by name; or -1 */
    int32_t last[TSI_STEP_QUEUES];    /* of each queue, or -1 */
    int32_t communicated, waited_all; /* the latest, or -1 */
    const bool *early;                /* [action]: it need not come behind others; NULL: none */
    int32_t before_early;             /* the latest of them, or -1 */
} walk;

static ts_status tie(walk *w, int32_t before, int32_t after)
{
    if (before < 0 || before == after) return TS_OK;
    TSI_TRY(tsi_room(&w->pair, w->pair_count + 1, &w->pair_capacity, sizeof *w->pair, "ties"));
    w->pair[w->pair_count++] = before;
    w->pair[w->pair_count++] = after;
    return TS_OK;
}

static ts_status look(walk *w, int32_t value, int32_t action)
{
    TSI_TRY(tsi_room(&w->chain, w->chain_count, &w->chain_capacity, sizeof *w->chain, "ties"));
    w->chain[w->chain_count] = (link){ action, w->value[value].head };
    w->value[value].head = (int32_t)w->chain_count++;
    return TS_OK;
}

/* An action on another queue is over once a wait covers it. */
static ts_status tie_over(walk *w, int32_t before, int32_t after)
{
    TSI_TRY(tie(w, before, after));
    if (before < 0 || w->list->action[before].queue == 0) return TS_OK;
    bool same = w->list->action[before].queue == w->list->action[after].queue;
    int32_t wait = w->own[before] >= 0 ? w->own[before] : w->cover[before];
    return same ? TS_OK : tie(w, wait, after);
}

static looks fresh(int32_t changed)
{
    looks v = { .changed = changed, .head = -1 };
    memset(v.last, 0xff, sizeof v.last); /* -1 */
    return v;
}

static ts_status touch(walk *w, int32_t action, const tsi_touch *t)
{
    looks *v = &w->value[t->value];
    int32_t queue = w->list->action[action].queue;
    TSI_TRY(tie_over(w, v->changed, action));
    if (t->how ==
        TSI_READS) { /* whoever views it in another form changes what others may ask for */
        v->last[queue] = action;
        return look(w, t->value, action);
    }
    for (int32_t at = v->head; at >= 0; at = w->chain[at].next)
        TSI_TRY(tie_over(w, w->chain[at].action, action));
    *v = fresh(action);
    v->last[queue] = action;
    return TS_OK;
}

/* All of a queue up to `last` is known to have ended from here on. */
static void cover(walk *w, int32_t last, int32_t wait)
{
    for (int32_t i = last; i >= 0 && w->cover[i] < 0; i = w->ahead[i])
        w->cover[i] = wait;
}

/* A wait stands behind all that it waits for, and before whatever ends its values. */
static ts_status wait_for(walk *w, int32_t action, const tsi_action *a)
{
    const tsi_touch *t = tsi_step_touches(w->list, a);
    bool named = false;
    for (int32_t i = 0; i < a->touch_count; i++) {
        looks *v = &w->value[t[i].value];
        if (t[i].how != TSI_READS) continue;
        named = true;
        for (int32_t q = 0; q < TSI_STEP_QUEUES; q++) {
            TSI_TRY(tie(w, v->last[q], action));
            if (q == a->queue) continue;
            cover(w, v->last[q], action);
            if (v->last[q] >= 0 && w->own[v->last[q]] < 0) w->own[v->last[q]] = action;
        }
        TSI_TRY(tie(w, v->changed, action));
        TSI_TRY(look(w, t[i].value, action));
    }
    if (!named) {
        for (int32_t i = w->waited_all < 0 ? 0 : w->waited_all; i < action; i++)
            TSI_TRY(tie(w, i, action)); /* those before the last such wait are tied by it */
        for (int32_t q = 1; q < TSI_STEP_QUEUES; q++)
            cover(w, w->last[q], action);
        w->waited_all = action;
    }
    for (int32_t i = 0; i < a->touch_count; i++)
        if (t[i].how != TSI_READS) TSI_TRY(touch(w, action, &t[i]));
    return TS_OK;
}

static ts_status walk_list(walk *w)
{
    for (int32_t i = 0; i < w->list->action_count; i++) {
        const tsi_action *a = &w->list->action[i];
        const tsi_touch *t = tsi_step_touches(w->list, a);
        bool early = w->early && w->early[i];
        w->cover[i] = w->own[i] = -1;
        w->ahead[i] = early ? -1 : w->last[a->queue];
        TSI_TRY(tie(w, w->waited_all, i));
        if (a->queue != 0 && !early) TSI_TRY(tie(w, w->last[a->queue], i));
        if (!early) w->last[a->queue] = i;
        if (a->kind == TSI_ACTION_WAIT) {
            TSI_TRY(wait_for(w, i, a));
            continue;
        }
        for (int32_t k = 0; k < a->touch_count; k++)
            TSI_TRY(touch(w, i, &t[k]));
        if (a->group < 0 && a->peer < 0) continue;
        int32_t *latest = early ? &w->before_early : &w->communicated;
        TSI_TRY(tie(w, *latest, i));
        *latest = i;
    }
    return TS_OK;
}

/* By the later action: a counting sort. */
static ts_status sort_ties(const walk *w, tsi_ties *out)
{
    int32_t count = w->list->action_count;
    if (w->pair_count / 2 > INT32_MAX)
        return TSI_FAIL(TS_ERR_ARG, "step: a list of %d actions has %lld ties; %d are possible",
                        count, (long long)(w->pair_count / 2), INT32_MAX);
    out->count = count;
    out->first = tsi_calloc((size_t)count + 2, sizeof *out->first);
    out->before = tsi_alloc_array((size_t)w->pair_count / 2 + 1, sizeof *out->before);
    if (!out->first || !out->before) return tsi_fail_memory("ties", (size_t)w->pair_count * 4);
    int32_t *next = out->first + 1;
    for (int64_t i = 0; i < w->pair_count; i += 2)
        next[w->pair[i + 1]]++;
    for (int32_t n = 0, sum = 0; n < count; n++) {
        int32_t here = next[n];
        next[n] = sum;
        sum += here;
    }
    for (int64_t i = 0; i < w->pair_count; i += 2)
        out->before[next[w->pair[i + 1]]++] = w->pair[i];
    return TS_OK;
}

ts_status tsi_ties_make(const tsi_step_list *list, tsi_ties *out)
{
    return tsi_ties_make_early(list, NULL, out);
}

ts_status tsi_ties_make_early(const tsi_step_list *list, const bool *early, tsi_ties *out)
{
    *out = (tsi_ties){ 0 };
    walk w = {
        .list = list, .communicated = -1, .waited_all = -1, .early = early, .before_early = -1
    };
    size_t values = (size_t)list->value_count + 1, actions = (size_t)list->action_count + 1;
    w.value = tsi_alloc_array(values, sizeof *w.value);
    w.ahead = tsi_alloc_array(actions, sizeof *w.ahead);
    w.cover = tsi_alloc_array(actions, sizeof *w.cover);
    w.own = tsi_alloc_array(actions, sizeof *w.own);
    bool there = w.value && w.ahead && w.cover && w.own;
    ts_status status = there ? TS_OK : tsi_fail_memory("ties", values * sizeof *w.value);
    memset(w.last, 0xff, sizeof w.last); /* -1 */
    for (size_t v = 0; status == TS_OK && v < values; v++)
        w.value[v] = fresh(-1);
    if (status == TS_OK) status = walk_list(&w);
    if (status == TS_OK) status = sort_ties(&w, out);
    tsi_free(w.value);
    tsi_free(w.ahead);
    tsi_free(w.cover);
    tsi_free(w.own);
    tsi_free(w.chain);
    tsi_free(w.pair);
    if (status != TS_OK) tsi_ties_release(out);
    return status;
}

void tsi_ties_release(tsi_ties *ties)
{
    tsi_free(ties->first);
    tsi_free(ties->before);
    *ties = (tsi_ties){ 0 };
}

ts_status tsi_list_permute(tsi_step_list *list, const int32_t *order)
{
    size_t bytes = (size_t)list->action_count * sizeof *list->action;
    if (list->action_count == 0) return TS_OK;
    tsi_action *moved = tsi_alloc(bytes);
    if (!moved) return tsi_fail_memory("a new order", bytes);
    for (int32_t i = 0; i < list->action_count; i++)
        moved[i] = list->action[order[i]];
    memcpy(list->action, moved, bytes);
    tsi_free(moved);
    return TS_OK;
}
