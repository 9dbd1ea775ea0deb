/* SPDX-License-Identifier: Apache-2.0 */
/* record_operations.c - operations of communication in a recording.
 *
 * They are told of before it is known what they were for: they are kept until the move or message
 * that they belong to is told, and get its tensors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "comm/comm.h"
#include "plan/step_reorder.h"
#include "runtime/recording.h"

/* ---- as they are written --------------------------------------------------------------------- */

/* The axes of a mesh in which members of a group differ, one bit each; 0: some are outside. */
static uint32_t axes_of_group(const tsi_mesh_desc *mesh, const tsi_step_group *g)
{
    int64_t first[TS_NDIM_MAX], coord[TS_NDIM_MAX];
    uint32_t differ = 0;
    if (!tsi_mesh_desc_coord(mesh, g->member[0], first)) return 0;
    for (int32_t i = 1; i < g->count; i++) {
        if (!tsi_mesh_desc_coord(mesh, g->member[i], coord)) return 0;
        for (int32_t k = 0; k < mesh->ndim; k++)
            if (coord[k] != first[k]) differ |= 1u << k;
    }
    return differ;
}

/* "a+b" has the axis. */
static bool lies_along(const char *axes, const char *axis)
{
    size_t length = strlen(axis);
    for (const char *at = axes; at && *at; at += strcspn(at, "+"), at += *at == '+')
        if (strcspn(at, "+") == length && strncmp(at, axis, length) == 0) return true;
    return false;
}

/* A group lies along these axes too: ranks may be one axis of a mesh and another of the next. */
static void group_along(tsi_recording *r, int32_t group, const tsi_mesh_desc *mesh, uint32_t which)
{
    char axes[TSI_STEP_NAME_MAX + 1] = "", axis[TSI_RECORDING_AXIS];
    const char *has = r->step->group[group].along;
    size_t length = has ? (size_t)snprintf(axes, sizeof axes, "%s", has) : 0, before = length;
    for (int32_t k = 0; k < mesh->ndim; k++) {
        tsi_recording_axis(mesh, k, axis);
        if (!(which >> k & 1) || lies_along(axes, axis)) continue;
        if (length + sizeof axis + 1 > sizeof axes) return;
        length += (size_t)snprintf(axes + length, sizeof axes - length, "%s%s",
                                   length > 0 ? "+" : "", axis);
    }
    if (length > before) tsi_recording_fail(r, tsi_step_group_along(r->step, group, axes));
}

void tsi_recording_issued_along(tsi_recording *r, const tsi_moved *moved)
{
    const ts_layout *from = moved->from->layout, *to = moved->to->layout;
    if (!from || !to) return;
    const tsi_mesh_desc *mesh = from->sharding->mesh;
    bool one = mesh == to->sharding->mesh; /* else every axis may be another */
    for (int64_t i = 0; i < r->issued_count && r->status == TS_OK; i++) {
        int32_t group = r->issued[i].action.group;
        if (r->issued[i].written || group < 0) continue;
        group_along(r, group, mesh, one ? axes_of_group(mesh, &r->step->group[group]) : ~0u);
    }
}

typedef struct told { /* what the operations that are not written yet are for */
    tsi_touch *touch;
    const char **form;
    int64_t count;
    int32_t value, made; /* that a wait names; that the last of them makes; -1: none */
    int64_t first, last; /* operations among those that were issued */
    bool own;            /* they are an operator's, which reads what the last of them leaves */
} told;

static told told_so_far(const tsi_recording *r)
{
    told t = { r->touch, r->form, r->touch_count, -1, -1, -1, -1, false };
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
 * that was told, or is the last of its move on another queue: a queue ends in order. */
static bool leaves_round(const tsi_recording *r, const told *t, int64_t index)
{
    const tsi_pending *p = &r->issued[index];
    if (index == t->last) return (p->waited || t->own) && t->made < 0;
    bool told_by_later = false;
    for (int64_t i = index + 1; i <= t->last && !told_by_later; i++)
        told_by_later = r->issued[i].wait_of < 0 && r->issued[i].action.queue == p->action.queue;
    return p->waited || !told_by_later;
}

/* What was waited for before an operation of the same move goes through the rank's hands: it begins
 * behind the wait. Returns what it reads; -1: nothing was waited for. */
static int32_t write_between(tsi_recording *r, int64_t index)
{
    if (index == 0 || r->issued[index - 1].wait_of < 0) return -1;
    for (int64_t i = index - 1; i >= 0 && r->issued[i].wait_of >= 0; i--)
        tsi_recording_touch_value(r, r->issued[i].value, TSI_READS);
    int32_t made = tsi_recording_round(r);
    tsi_recording_touch_value(r, made, TSI_MAKES);
    tsi_recording_append_operator(r, "redistribute", r->issued[index].works - 1);
    return made;
}

/* The first operation reads what moves, the last makes what came of it; in between each reads what
 * came of the waits before it. */
static void write_operation(tsi_recording *r, const told *t, int64_t index)
{
    tsi_pending *p = &r->issued[index];
    int32_t between = write_between(r, index);
    for (int64_t k = 0; k < t->count; k++)
        if (t->touch[k].how == TSI_READS ? index == t->first : index == t->last)
            tsi_recording_touch_as(r, t->touch[k].value, (tsi_touch_how)t->touch[k].how,
                                   t->form[k]);
    tsi_recording_touch_value(r, between, TSI_READS);
    if (index == t->first) tsi_recording_make_staged(r);
    if (index == t->last) tsi_recording_end_staged(r);
    p->value = t->value;
    if (leaves_round(r, t, index)) {
        p->value = tsi_recording_round(r);
        tsi_recording_touch_value(r, p->value, TSI_MAKES);
    }
    p->action.hidden = r->hidden;
    tsi_recording_append_with(r, &p->action, p->works);
}

static void write_wait(tsi_recording *r, tsi_pending *p)
{
    p->value = r->issued[p->wait_of].value;
    tsi_recording_touch_value(r, p->value, TSI_READS);
    tsi_recording_append_with(r, &p->action, p->works);
}

/* What moved is there when all of them have ended, on whichever queue: who waits for the last waits
 * for all. */
static void note_beside(const tsi_recording *r, const told *t)
{
    tsi_pending *last = t->last >= 0 ? &r->issued[t->last] : NULL;
    for (int64_t i = t->first; last && i < t->last; i++) {
        const tsi_pending *p = &r->issued[i];
        if (p->wait_of < 0 && !p->waited && p->action.queue != last->action.queue)
            last->beside[p->action.queue] = p->value;
    }
}

/* Touches of the moves that were told go to the operations that were issued for them. Those whose
 * purpose was not told touch nothing. Returns what the last of them leaves; -1: there is none. */
static int32_t write_issued(tsi_recording *r, bool own)
{
    told t = told_so_far(r);
    t.own = own;
    int64_t kept = 0;
    if (t.first < 0 && t.count == 0) return -1;
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
    note_beside(r, &t);
    int32_t left = t.last >= 0 ? r->issued[t.last].value : -1;
    for (int64_t i = 0; i < r->issued_count; i++) /* those that have ended need no wait */
        if (r->issued[i].work) r->issued[kept++] = r->issued[i];
    r->issued_count = kept;
    r->told = r->hidden = false;
    tsi_free(t.touch);
    tsi_free(t.form);
    return left;
}

bool tsi_recording_any_issued(const tsi_recording *r)
{
    return r->issued_count > 0 && !r->issued[r->issued_count - 1].written;
}

bool tsi_recording_under_way(const tsi_recording *r)
{
    bool any = false;
    for (int64_t i = 0; i < r->issued_count; i++)
        any = any || (!r->issued[i].written && r->issued[i].work);
    return any;
}

int64_t tsi_recording_works_before(const tsi_recording *r)
{
    told t = told_so_far(r);
    return t.first < 0 ? tsi_recording_works(r) : r->issued[t.first].works - 1;
}

int32_t tsi_recording_write_own(tsi_recording *r)
{
    if (tsi_recording_any_issued(r)) return write_issued(r, true);
    r->touch_count = 0;
    return -1;
}

void tsi_recording_catch_up(tsi_recording *r)
{
    (void)write_issued(r, false);
    tsi_recording_write_freed(r);
}

/* ---- as they are issued ---------------------------------------------------------------------- */

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
    tsi_recording_clean(name);
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
 * them alike; there are few queues, so others share that of the first. With the other channels,
 * messages of both ways and `main` they are all that a step may have. */
_Static_assert(TSI_RECORDING_QUEUES + (TS_CHANNEL_COUNT - 1) + 2 + 1 <= TSI_STEP_QUEUES, "queues");
static int32_t group_number(tsi_recording *r, int32_t group)
{
    int32_t i = 0;
    while (i < r->group_count && r->group[i] != group)
        i++;
    if (i == r->group_count && i < TSI_RECORDING_QUEUES) r->group[r->group_count++] = group;
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

/* "layers.0.12": the 12th of its group; channels of the caller's count for themselves,
 * "layers.0.1:12". */
/* Names that begin so are those of buckets and parts, which orders make of operations. */
static bool is_taken(const char *label)
{
    return strncmp(label, TSI_BUCKET_PREFIX, sizeof TSI_BUCKET_PREFIX - 1) == 0 ||
           strncmp(label, TSI_PART_PREFIX, sizeof TSI_PART_PREFIX - 1) == 0;
}

static void name_operation(const tsi_issued *issued, char *name)
{
    const tsi_fingerprint *print = &issued->operation->print;
    bool point = print->kind == TSI_COMM_SEND || print->kind == TSI_COMM_RECV;
    char channel[16] = "";
    if (print->channel > 0) (void)snprintf(channel, sizeof channel, "%d:", print->channel);
    const char *label = point ? "message" : issued->name;
    (void)snprintf(name, TSI_RECORDING_NAME, "%s%.*s.%s%llu", is_taken(label) ? "_" : "",
                   tsi_recording_cut(label), label, channel, (unsigned long long)print->sequence);
    tsi_recording_clean(name);
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
    name_operation(issued, name);
    action->what = name;
    if (point) {
        action->peer = (int32_t)(work->team->rank ? work->team->rank[print->root] : print->root);
        action->channel = message_channel(work->team);
    } else {
        action->channel = print->channel;
        TSI_TRY(group_of(r, work->team, &action->group));
    }
    char place[TSI_RECORDING_NAME];
    tsi_recording_place(r->rank, place, action);
    TSI_TRY(queue_of(r, issued, action));
    if (action->place) TSI_TRY(tsi_step_name(r->step, place, &action->place));
    return tsi_step_name(r->step, name, &action->what);
}

static ts_status add_pending(tsi_recording *r, const tsi_pending *p)
{
    if (tsi_room(&r->issued, r->issued_count, &r->issued_capacity, sizeof *r->issued,
                 "the recording of a step") != TS_OK)
        return tsi_fail_memory("a recording", sizeof *r->issued);
    r->issued[r->issued_count++] = *p;
    return TS_OK;
}

void tsi_recording_hear_issue(void *context, void *what)
{
    tsi_recording *r = context;
    const tsi_issued *issued = what;
    char name[TSI_RECORDING_NAME];
    if (r->status != TS_OK) return;
    if (r->told) (void)write_issued(r, false); /* those before have their purpose */
    if (!tsi_recording_any_issued(r)) tsi_recording_write_freed(r);
    tsi_pending p = {
        .work = issued->work, .value = -1, .works = tsi_recording_works(r), .wait_of = -1
    };
    memset(p.beside, 0xff, sizeof p.beside); /* -1 */
    p.action = TSI_ACTION_INIT(action_kind(issued->operation->print.kind));
    ts_status status = describe(r, issued, &p.action, name);
    if (status == TS_OK && p.action.peer == r->rank->index) return; /* to itself: no message */
    if (status == TS_OK) status = add_pending(r, &p);
    tsi_recording_fail(r, status);
}

/* Of a step that runs again it is no part: then nothing is agreed on. Else it touches nothing. */
void tsi_recording_hear_agree(void *context, void *what)
{
    tsi_recording *r = context;
    const char *name = what;
    if (!tsi_recording_any_issued(r) || r->told) return;
    const tsi_action *last = &r->issued[r->issued_count - 1].action;
    if (last->kind != TSI_ACTION_ALL_REDUCE || strncmp(last->what, name, strlen(name)) != 0) return;
    if (r->rank->kept)
        r->issued_count--;
    else
        (void)write_issued(r, false);
}

/* What it is for is told later: the wait is written with it. */
static bool wait_in_round(tsi_recording *r, const void *work)
{
    int64_t i = 0;
    while (i < r->issued_count && (r->issued[i].work != work || r->issued[i].written))
        i++;
    if (r->told || i == r->issued_count) return false;
    tsi_pending wait = { .value = -1, .works = tsi_recording_works(r), .wait_of = i };
    wait.action = TSI_ACTION_INIT(TSI_ACTION_WAIT);
    wait.action.place = r->issued[i].action.place; /* it is waited for where it is begun */
    r->issued[i].work = NULL;
    r->issued[i].waited = true;
    tsi_recording_fail(r, add_pending(r, &wait));
    return true;
}

void tsi_recording_hear_wait(void *context, void *what)
{
    tsi_recording *r = context;
    char place[TSI_RECORDING_NAME];
    if (wait_in_round(r, what)) return;
    tsi_recording_catch_up(r);
    for (int64_t i = 0; i < r->issued_count; i++) {
        if (r->issued[i].work != what) continue;
        tsi_action wait = TSI_ACTION_INIT(TSI_ACTION_WAIT);
        tsi_recording_place(r->rank, place, &wait);
        tsi_recording_touch_value(r, r->issued[i].value, TSI_READS);
        for (int32_t q = 0; q < TSI_STEP_QUEUES; q++)
            tsi_recording_touch_value(r, r->issued[i].beside[q], TSI_READS);
        tsi_recording_append_with(r, &wait, tsi_recording_works(r));
        memmove(&r->issued[i], &r->issued[i + 1],
                (size_t)(--r->issued_count - i) * sizeof *r->issued);
        return;
    }
}
