/* SPDX-License-Identifier: Apache-2.0 */
/* step_passes.c - new orders of a list: each is a list schedule over the ties (step_reorder.h).
 *
 * At every place the ready action with the least key comes next; a pass is a way to give keys.
 * Ready is what has everything before it that it is tied to, so no pass can break a tie. Passes by
 * time put off a wait while something else is ready and what it waits for is under way, as this
 * rank's own times say. The pass that puts waits off without looking at the time looks at memory:
 * what they hold goes before more is made than may be held. */
#include <float.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/step_reorder.h"

typedef struct order {
    const tsi_pass_job *job;
    tsi_step_list *list;
    const bool *early; /* of the pass that begins operations ahead; else NULL */
    tsi_ties ties;
    int32_t count;
    int32_t *left;        /* ties before it that are not done */
    int32_t *after_first; /* the other way round: who is tied behind it */
    int32_t *after;
    double *key;  /* the least ready one goes first; equal: as they stood */
    int32_t *out; /* the new order */
    int32_t *heap;
    int32_t heap_count;
    /* Of passes by time: */
    double now;                        /* when the main queue is free */
    double *end;                       /* [action]: when it ends, of those that came */
    double queue_end[TSI_STEP_QUEUES]; /* when the last of each queue ends */
    int32_t *aside;                    /* waits that were put off */
    int32_t aside_count;
    /* Of the pass that looks at memory: */
    double held; /* bytes, now */
} order;

typedef enum pace { AT_ONCE, IN_TIME, IN_ROOM } pace; /* what a pass looks at beside its keys */

/* ---- a heap of what is ready ----------------------------------------------------------------- */

static bool goes_first(const order *o, int32_t a, int32_t b)
{
    return o->key[a] < o->key[b] || (o->key[a] == o->key[b] && a < b);
}

static void heap_rise(order *o, int32_t at)
{
    int32_t action = o->heap[at];
    for (; at > 0 && goes_first(o, action, o->heap[(at - 1) / 2]); at = (at - 1) / 2)
        o->heap[at] = o->heap[(at - 1) / 2];
    o->heap[at] = action;
}

static void heap_push(order *o, int32_t action)
{
    o->heap[o->heap_count++] = action;
    heap_rise(o, o->heap_count - 1);
}

static int32_t heap_pop(order *o)
{
    int32_t top = o->heap[0], last = o->heap[--o->heap_count], at = 0;
    for (;;) {
        int32_t child = 2 * at + 1;
        if (child >= o->heap_count) break;
        if (child + 1 < o->heap_count && goes_first(o, o->heap[child + 1], o->heap[child])) child++;
        if (!goes_first(o, o->heap[child], last)) break;
        o->heap[at] = o->heap[child];
        at = child;
    }
    o->heap[at] = last;
    return top;
}

static ts_status order_begin(order *o, const tsi_pass_job *job, const bool *early)
{
    *o = (order){ .job = job, .list = &job->step->list[job->rank], .early = early };
    o->count = o->list->action_count;
    TSI_TRY(tsi_ties_make_early(o->list, early, &o->ties));
    size_t n = (size_t)o->count + 2, ties = (size_t)o->ties.first[o->count] + 1;
    o->left = tsi_calloc(n, sizeof *o->left);
    o->after_first = tsi_calloc(n, sizeof *o->after_first);
    o->after = tsi_calloc(ties, sizeof *o->after);
    o->key = tsi_calloc(n, sizeof *o->key);
    o->out = tsi_calloc(n, sizeof *o->out);
    o->heap = tsi_calloc(n, sizeof *o->heap);
    o->end = tsi_calloc(n, sizeof *o->end);
    o->aside = tsi_calloc(n, sizeof *o->aside);
    if (!o->left || !o->after_first || !o->after || !o->key || !o->out || !o->heap || !o->end ||
        !o->aside)
        return tsi_fail_memory("an order", n * 56);
    int32_t *next = o->after_first + 1;
    for (int32_t t = 0; t < o->ties.first[o->count]; t++)
        next[o->ties.before[t]]++;
    for (int32_t i = 0, sum = 0; i < o->count; i++) {
        int32_t here = next[i];
        next[i] = sum;
        sum += here;
    }
    for (int32_t i = 0; i < o->count; i++)
        for (int32_t t = o->ties.first[i]; t < o->ties.first[i + 1]; t++)
            o->after[next[o->ties.before[t]]++] = i;
    return TS_OK;
}

static void order_release(order *o)
{
    tsi_ties_release(&o->ties);
    tsi_free(o->left);
    tsi_free(o->after_first);
    tsi_free(o->after);
    tsi_free(o->key);
    tsi_free(o->out);
    tsi_free(o->heap);
    tsi_free(o->end);
    tsi_free(o->aside);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* When all that a wait waits for has ended; what is tied before it is there. */
static double ended_at(const order *o, int32_t wait)
{
    double end = 0;
    for (int32_t t = o->ties.first[wait]; t < o->ties.first[wait + 1]; t++)
        if (o->end[o->ties.before[t]] > end) end = o->end[o->ties.before[t]];
    return end;
}

static bool is_wait(const order *o, int32_t action)
{
    return o->list->action[action].kind == TSI_ACTION_WAIT;
}

/* The next one by keys that need not be waited for; else the wait that is over first. */
static int32_t pop_in_time(order *o)
{
    int32_t next = -1, first = 0;
    while (next < 0 && o->heap_count > 0) {
        next = heap_pop(o);
        if (!is_wait(o, next) || ended_at(o, next) <= o->now) break;
        o->aside[o->aside_count++] = next;
        next = -1;
    }
    for (int32_t i = 1; i < o->aside_count; i++)
        if (ended_at(o, o->aside[i]) < ended_at(o, o->aside[first])) first = i;
    for (int32_t i = 0; i < o->aside_count; i++) {
        if (next < 0 && i == first) continue;
        heap_push(o, o->aside[i]);
    }
    if (next < 0) next = o->aside[first];
    o->aside_count = 0;
    return next;
}

/* It comes now: on main it takes its time, on another queue it waits for its turn there. */
static void pass_time(order *o, int32_t action)
{
    const tsi_action *a = &o->list->action[action];
    double begin = o->now;
    if (is_wait(o, action) && ended_at(o, action) > begin) begin = ended_at(o, action);
    if (a->queue != 0 && o->queue_end[a->queue] > begin) begin = o->queue_end[a->queue];
    o->end[action] = begin + o->job->us[action];
    if (a->queue == 0)
        o->now = o->end[action];
    else
        o->queue_end[a->queue] = o->end[action];
}

/* ---- memory ---------------------------------------------------------------------------------- */

static double held_before(const tsi_step_list *list)
{
    double held = 0;
    for (int32_t v = 0; v < list->value_count; v++)
        if (list->value[v].life & TSI_LIFE_TAKEN) held += (double)tsi_held_bytes(&list->value[v]);
    return held;
}

static double bytes_of(const order *o, int32_t action, tsi_touch_how how)
{
    const tsi_action *a = &o->list->action[action];
    const tsi_touch *touch = tsi_step_touches(o->list, a);
    double bytes = 0;
    for (int32_t i = 0; i < a->touch_count; i++)
        if (touch[i].how == (int32_t)how)
            bytes += (double)tsi_held_bytes(&o->list->value[touch[i].value]);
    return bytes;
}

static bool is_release(const order *o, int32_t action)
{
    return o->list->action[action].kind == TSI_ACTION_RELEASE;
}

/* Does memory go when it is over: is a release tied to nothing else that is to come? One may be
 * tied several times; those stand together. */
static bool holds_memory(const order *o, int32_t wait)
{
    int32_t times = 0;
    for (int32_t t = o->after_first[wait]; t < o->after_first[wait + 1]; t++) {
        bool again = times > 0 && o->after[t] == o->after[t - 1];
        times = again ? times + 1 : 1;
        if (is_release(o, o->after[t]) && o->left[o->after[t]] == times) return true;
    }
    return false;
}

/* The ready wait that stood first of those which hold memory: its place in the heap, or -1. */
static int32_t oldest_wait(const order *o)
{
    int32_t found = -1;
    for (int32_t i = 0; i < o->heap_count; i++)
        if (is_wait(o, o->heap[i]) && (found < 0 || o->heap[i] < o->heap[found]) &&
            holds_memory(o, o->heap[i]))
            found = i;
    return found;
}

static const double foremost = -2; /* a key before those of releases */

/* The next one by keys, if there is room for what it makes; else a wait that makes room. */
static int32_t pop_in_room(order *o)
{
    double makes = bytes_of(o, o->heap[0], TSI_MAKES), most = (double)o->job->bytes_max;
    bool full = makes > 0 && most > 0 && o->held + makes > most;
    int32_t wait = full ? oldest_wait(o) : -1;
    if (wait >= 0) {
        o->key[o->heap[wait]] = foremost;
        heap_rise(o, wait);
    }
    int32_t next = heap_pop(o);
    o->held += bytes_of(o, next, TSI_MAKES) - bytes_of(o, next, TSI_FREES);
    return next;
}

/* ---- running --------------------------------------------------------------------------------- */

static int32_t pop_next(order *o, pace by)
{
    if (by == AT_ONCE) return heap_pop(o);
    if (by == IN_ROOM) return pop_in_room(o);
    int32_t next = pop_in_time(o);
    pass_time(o, next);
    return next;
}

/* Everything by its keys; *moves: how many do not stand where they stood. */
static ts_status order_run(order *o, pace by, int64_t *moves)
{
    int32_t done = 0;
    o->held = by == IN_ROOM ? held_before(o->list) : 0;
    for (int32_t i = 0; i < o->count; i++) {
        o->left[i] = o->ties.first[i + 1] - o->ties.first[i];
        if (o->left[i] == 0) heap_push(o, i);
    }
    while (o->heap_count > 0) {
        int32_t next = pop_next(o, by);
        o->out[done++] = next;
        for (int32_t t = o->after_first[next]; t < o->after_first[next + 1]; t++)
            if (--o->left[o->after[t]] == 0) heap_push(o, o->after[t]);
    }
    TSI_ASSERT(done == o->count); /* ties go from earlier to later ones, so there is no circle */
    for (int32_t i = 0; i < o->count; i++)
        *moves += o->out[i] != i;
    return tsi_list_permute(o->list, o->out);
}

typedef void (*key_fn)(order *o);

static ts_status pass_with(const tsi_pass_job *job, const bool *early, key_fn keys, pace by,
                           int64_t *moves)
{
    order o = { 0 };
    ts_status status = order_begin(&o, job, early);
    if (status == TS_OK) keys(&o);
    if (status == TS_OK) status = order_run(&o, by, moves);
    order_release(&o);
    return status;
}

static ts_status pass_by(const tsi_pass_job *job, key_fn keys, pace by, int64_t *moves)
{
    return job->rank < job->step->list_count ? pass_with(job, NULL, keys, by, moves) : TS_OK;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static bool begins(const tsi_action *a)
{
    return a->queue != 0 && (a->group >= 0 || a->peer >= 0);
}

/* An action that something urgent is tied behind is as urgent. Ties go forward: one sweep back. */
static void pull_forward(order *o)
{
    for (int32_t i = o->count - 1; i >= 0; i--)
        for (int32_t t = o->after_first[i]; t < o->after_first[i + 1]; t++)
            if (o->key[o->after[t]] < o->key[i]) o->key[i] = o->key[o->after[t]];
}

/* Operations on queues come as soon as they can, with what they need. */
static void hoist_keys(order *o)
{
    for (int32_t i = 0, number = 0; i < o->count; i++)
        o->key[i] = begins(&o->list->action[i]) ? number++ : (double)o->count;
    pull_forward(o);
}

/* Is it an update that takes no time, as those of a list do of which one has the time of all, and
 * nothing but memory goes behind it? */
static bool is_idle(const order *o, int32_t action)
{
    const tsi_action *a = &o->list->action[action];
    bool idle = a->kind == TSI_ACTION_UPDATE && o->job->us[action] == 0;
    for (int32_t t = o->after_first[action]; idle && t < o->after_first[action + 1]; t++)
        idle = is_release(o, o->after[t]);
    return idle;
}

/* Waits come before the first that needs them, whatever memory they hold; what goes with them goes
 * then. All else stays as it stands, but for what could as well come last. */
static void sink_keys(order *o)
{
    for (int32_t i = o->count - 1; i >= 0; i--) {
        o->key[i] = is_release(o, i) ? -1 : i;
        if (is_idle(o, i)) o->key[i] = o->count;
        if (!is_wait(o, i)) continue;
        o->key[i] = o->count;
        for (int32_t t = o->after_first[i]; t < o->after_first[i + 1]; t++) {
            int32_t after = o->after[t];
            double before = is_wait(o, after) ? o->key[after] : o->key[after] - 0.5;
            if (!is_release(o, after) && before < o->key[i]) o->key[i] = before;
        }
    }
}

/* Operations that are early come where the ones before them are waited for: they are under way
 * while what those brought is used. Neighbours go together. */
static void prefetch_keys(order *o)
{
    int32_t wait = -1; /* the first behind those before */
    bool since = false;
    for (int32_t i = 0; i < o->count; i++) {
        bool follows = i > 0 && o->early[i] && o->early[i - 1];
        o->key[i] = i;
        if (follows)
            o->key[i] = o->key[i - 1];
        else if (o->early[i] && wait >= 0)
            o->key[i] = wait - 0.5;
        if (o->early[i]) since = true;
        if (!since || o->list->action[i].kind != TSI_ACTION_WAIT) continue;
        wait = i;
        since = false;
    }
}

/* As they stand; memory goes as soon as it can. */
static void fill_keys(order *o)
{
    for (int32_t i = 0; i < o->count; i++)
        o->key[i] = is_release(o, i) ? -1 : i;
}

/* The longest way from here to the end, communication as long as it takes: longest first. So what
 * nothing but an update needs, as gradients of weights, is left for the time before waits. */
static void schedule_keys(order *o)
{
    for (int32_t i = o->count - 1; i >= 0; i--) {
        double behind = 0;
        for (int32_t t = o->after_first[i]; t < o->after_first[i + 1]; t++)
            if (-o->key[o->after[t]] > behind) behind = -o->key[o->after[t]];
        o->key[i] = -(behind + o->job->us[i]);
    }
    for (int32_t i = 0; i < o->count; i++)
        if (is_release(o, i)) o->key[i] = -DBL_MAX;
}

ts_status tsi_pass_hoist(const tsi_pass_job *job, int64_t *moves)
{
    return pass_by(job, hoist_keys, AT_ONCE, moves);
}

ts_status tsi_pass_sink(const tsi_pass_job *job, int64_t *moves)
{
    return pass_by(job, sink_keys, IN_ROOM, moves);
}

static bool is_there_before(const tsi_step_list *list, const bool *changed, int32_t value)
{
    return list->value[value].life & TSI_LIFE_TAKEN && !changed[value];
}

/* Does it move what is there before the step, and changes nothing? What has no inputs goes with the
 * one before it: both are of one move. */
static bool is_early(const tsi_step_list *list, const bool *changed, const bool *early, int32_t i)
{
    const tsi_action *a = &list->action[i];
    const tsi_touch *touch = tsi_step_touches(list, a);
    int32_t reads = 0, makes = 0;
    bool gathers = a->kind == TSI_ACTION_GATHER || a->kind == TSI_ACTION_EXCHANGE;
    if (!begins(a) || a->group < 0 || !gathers) return false;
    for (int32_t k = 0; k < a->touch_count; k++) {
        makes += touch[k].how == TSI_MAKES;
        reads += touch[k].how == TSI_READS;
        if (touch[k].how == TSI_MAKES) continue;
        if (touch[k].how != TSI_READS || !is_there_before(list, changed, touch[k].value))
            return false;
    }
    return makes > 0 && (reads > 0 || (i > 0 && early[i - 1]));
}

static void find_early(const tsi_step_list *list, bool *changed, bool *early)
{
    for (int32_t i = 0; i < list->action_count; i++) {
        const tsi_action *a = &list->action[i];
        const tsi_touch *touch = tsi_step_touches(list, a);
        early[i] = is_early(list, changed, early, i);
        for (int32_t k = 0; k < a->touch_count; k++)
            if (touch[k].how != TSI_READS) changed[touch[k].value] = true;
    }
}

ts_status tsi_pass_prefetch(const tsi_pass_job *job, int64_t *moves)
{
    if (job->rank >= job->step->list_count) return TS_OK;
    const tsi_step_list *list = &job->step->list[job->rank];
    bool *early = tsi_calloc((size_t)list->action_count + 1, sizeof *early);
    bool *changed = tsi_calloc((size_t)list->value_count + 1, sizeof *changed);
    ts_status status = early && changed ? TS_OK : tsi_fail_memory("an order", 2);
    if (status == TS_OK) {
        find_early(list, changed, early);
        status = pass_with(job, early, prefetch_keys, AT_ONCE, moves);
    }
    tsi_free(early);
    tsi_free(changed);
    return status;
}

ts_status tsi_pass_by_keys(const tsi_pass_job *job, const bool *early, const double *key,
                           int64_t *moves)
{
    order o = { 0 };
    ts_status status = order_begin(&o, job, early);
    if (status == TS_OK) memcpy(o.key, key, (size_t)o.count * sizeof *key);
    if (status == TS_OK) pull_forward(&o);
    if (status == TS_OK) status = order_run(&o, AT_ONCE, moves);
    order_release(&o);
    return status;
}

ts_status tsi_pass_fill(const tsi_pass_job *job, int64_t *moves)
{
    return pass_by(job, fill_keys, IN_TIME, moves);
}

ts_status tsi_pass_schedule(const tsi_pass_job *job, int64_t *moves)
{
    return pass_by(job, schedule_keys, IN_TIME, moves);
}
