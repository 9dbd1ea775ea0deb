/* SPDX-License-Identifier: Apache-2.0 */
/* replay_times.c - how long the actions of a recorded step take, from replays that are timed.
 *
 *   computation     the mean of the time that its works took, with what an operator computes before
 *                   an operation of its own, or in one piece of work with several; what a rank
 *                   computes for others while it waits is nobody's
 *   an operation    from its begin, or the end of the one before it on its channel, to its end, as
 *                   the rank's events have it; of all timed replays in one order the least, because
 *                   a rank that begins early counts the time that others need to come; of a bucket
 *                   that goes as one the last has the time of all; of one inside an operator's
 *                   piece of work none, for it is the operator's
 *   messages        are left to the cost model
 *
 * What a rank counts of an operation is too much unless it came last, so the program of all ranks
 * takes the least of its members (tsi_step_meet_least).
 *
 * INV: what is timed runs as a replay does: a look at the clock between two works is all. */
#include <string.h>

#include "base/alloc.h"
#include "comm/again.h"
#include "runtime/replay.h"
#include "runtime/replay_events.h"

enum { LANES = 64 }; /* groups and channels of a step; those beyond count from their begin */

typedef struct lane { /* the operations of a group and channel end one after another */
    uint64_t group;
    uint32_t queue;
    int64_t end_ns;
} lane;

typedef struct lanes {
    lane lane[LANES];
    int32_t count;
} lanes;

static lane *lane_of(lanes *all, const tsi_event *event)
{
    for (int32_t i = 0; i < all->count; i++)
        if (all->lane[i].group == event->group && all->lane[i].queue == event->queue)
            return &all->lane[i];
    if (all->count == LANES) return NULL;
    all->lane[all->count] = (lane){ event->group, event->queue, 0 };
    return &all->lane[all->count++];
}

/* Nanoseconds of an operation that was waited for; -1: not known. */
static int64_t operation_ns(lanes *all, const ts_rank *rank, uint64_t number)
{
    tsi_event event;
    if (!tsi_ring_read(rank->ring, number, &event) || event.end_ns == 0) return -1;
    lane *own = lane_of(all, &event);
    int64_t begin = event.begin_ns;
    if (own && own->end_ns > begin) begin = own->end_ns;
    if (own) own->end_ns = event.end_ns;
    return event.end_ns > begin ? event.end_ns - begin : 0;
}

/* Of all its parts; -1: not known. */
static int64_t parts_ns(lanes *all, const ts_rank *rank, const uint64_t *event, int32_t count)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < count && sum >= 0; i++) {
        int64_t ns = operation_ns(all, rank, event[i]);
        sum = ns < 0 ? -1 : sum + ns;
    }
    return sum;
}

static bool is_operation(const tsi_action *a)
{
    return tsi_action_class_of(a->kind) == TSI_CLASS_COLLECTIVE;
}

/* Of the operation that a work begins; -1: not known. */
static double operation_us(lanes *all, const ts_rank *rank, const tsi_action *a,
                           const tsi_kept_work *work, int64_t ns)
{
    uint64_t event[TSI_PARTS_LIVE];
    int32_t events = tsi_again_events(work, event);
    if (events > 0) return (double)parts_ns(all, rank, event, events) * 1e-3;
    return a->queue == 0 ? (double)ns * 1e-3 : -1;
}

static void take_least(tsi_action *a, double us)
{
    if (us >= 0 && (a->us < 0 || us < a->us)) a->us = us;
}

static ts_status note_wait(ts_step *s, int32_t action, int64_t ns)
{
    s->waited_ns += ns;
    TSI_TRY(tsi_room(&s->waited, s->waited_count, &s->waited_capacity, sizeof *s->waited,
                     "times of a step"));
    s->waited[s->waited_count++] = (tsi_waited){ action, ns };
    return TS_OK;
}

/* The time of each action's works in this replay; of operations, that of the operation, and in `us`
 * -1 for those that have works of their own. */
static ts_status sum_works(ts_step *s, tsi_step_list *list, const int64_t *ns, double *us)
{
    lanes all = { .count = 0 };
    s->waited_ns = s->waited_count = 0;
    for (int32_t i = 0; s->timed == 0 && i < list->action_count; i++)
        if (is_operation(&list->action[i])) list->action[i].us = -1; /* of another order */
    for (int64_t i = 0; i < s->kept.count; i++) {
        const tsi_kept_work *work = &s->kept.work[i];
        bool communicates = tsi_again_is_one(work);
        int64_t recorded = tsi_works_recorded(&s->works, i);
        int32_t of = recorded < s->worked.count ? s->worked.action[recorded] : -1;
        if (communicates) TSI_TRY(note_wait(s, of, ns[i]));
        if (of < 0) continue;
        tsi_action *a = &list->action[of];
        if (!communicates) {
            us[tsi_step_computing(list, of)] += (double)ns[i] * 1e-3;
        } else if (is_operation(a)) {
            us[of] = -1;
            take_least(a, operation_us(&all, s->rank, a, work, ns[i]));
        }
    }
    return TS_OK;
}

static ts_status time_actions(ts_step *s, const int64_t *ns)
{
    tsi_step_list *list =
        s->rank->index < s->value->list_count ? &s->value->list[s->rank->index] : NULL;
    if (!list) return TS_OK;
    double *us = tsi_calloc((size_t)list->action_count + 1, sizeof *us);
    if (!us) return tsi_fail_memory("times of a step", (size_t)list->action_count * sizeof *us);
    ts_status status = sum_works(s, list, ns, us);
    s->timed += status == TS_OK;
    for (int32_t i = 0; status == TS_OK && i < list->action_count; i++) {
        tsi_action *a = &list->action[i];
        tsi_action_class kind = tsi_action_class_of(a->kind);
        if (kind == TSI_CLASS_COLLECTIVE && us[i] >= 0) a->us = 0; /* its operator's */
        if (kind == TSI_CLASS_COLLECTIVE || kind == TSI_CLASS_PAIR) continue;
        double before = s->timed > 1 && a->us > 0 ? a->us : 0;
        a->us = before + (us[i] - before) / (double)s->timed;
    }
    tsi_free(us);
    return status;
}

ts_status ts_step_time(ts_step *s)
{
    if (!s) return TS_ERR_NULL;
    int64_t *ns = tsi_calloc((size_t)s->kept.count + 1, sizeof *ns);
    if (!ns) return tsi_fail_memory("times of a step", (size_t)s->kept.count * sizeof *ns);
    int64_t helped = s->rank->helped_ns;
    ts_status status = tsi_step_run(s, ns);
    s->helped_ns = s->rank->helped_ns - helped;
    if (status == TS_OK) status = time_actions(s, ns);
    tsi_free(ns);
    return status;
}

ts_status ts_step_waits(const ts_step *s, ts_step_wait_fn visit, void *context)
{
    if (!s || !visit) return TS_ERR_NULL;
    const tsi_step_list *list = tsi_step_list_of(s->value, s->rank->index);
    for (int64_t i = 0; i < s->waited_count; i++) {
        int32_t of = s->waited[i].action;
        ts_step_wait is = { .kind = "other", .along = "", .ns = s->waited[i].ns };
        const tsi_action *a = of >= 0 ? &list->action[of] : NULL;
        if (a && a->kind == TSI_ACTION_WAIT) a = tsi_step_waited_for(list, of);
        if (a && (a->group >= 0 || a->peer >= 0)) is.kind = tsi_action_names[a->kind];
        if (a && a->group >= 0 && s->value->group[a->group].along)
            is.along = s->value->group[a->group].along;
        visit(&is, context);
    }
    return TS_OK;
}
