/* SPDX-License-Identifier: Apache-2.0 */
/* replay_events.c - see replay_events.h.
 *
 * INV: a step is in the list of running ones exactly while its replay runs, so whoever finds it
 * there under the lock may read it: nothing but its place changes. */
#include "runtime/replay_events.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "comm/again.h"
#include "device/capture.h"

/* ---- names ----------------------------------------------------------------------------------- */

enum { NAME_MAX = 256 };

typedef struct named { /* a piece of work */
    char kind[NAME_MAX], label[NAME_MAX];
    const char *place;
} named;

int32_t tsi_step_computing(const tsi_step_list *list, int32_t of)
{
    for (int32_t i = of; i < list->action_count; i++)
        if (tsi_action_class_of(list->action[i].kind) == TSI_CLASS_COMPUTE) return i;
    return of;
}

static bool touch_the_same(const tsi_step_list *list, const tsi_action *a, const tsi_action *b)
{
    for (int32_t i = 0; i < a->touch_count; i++)
        for (int32_t k = 0; k < b->touch_count; k++)
            if (list->touch[a->touch_first + i].value == list->touch[b->touch_first + k].value)
                return true;
    return false;
}

const tsi_action *tsi_step_waited_for(const tsi_step_list *list, int32_t wait)
{
    for (int32_t i = wait - 1; i >= 0; i--) {
        tsi_action_class is = tsi_action_class_of(list->action[i].kind);
        if (is != TSI_CLASS_COLLECTIVE && is != TSI_CLASS_PAIR) continue;
        if (touch_the_same(list, &list->action[i], &list->action[wait])) return &list->action[i];
    }
    return &list->action[wait];
}

/* "layers.0.wq:matmul" is an operator and a label. An update has its parameter's name, or the
 * operator's with a number. */
static void name_action(const tsi_action *a, named *out)
{
    const char *what = a->what ? a->what : "", *colon = strrchr(what, ':');
    const char *op = colon ? colon + 1 : what;
    bool is_op = tsi_action_class_of(a->kind) == TSI_CLASS_COMPUTE && op[0] != '\0';
    bool updates = a->kind == TSI_ACTION_UPDATE;
    if (updates) is_op = strncmp(op, "fused_", 6) == 0;
    int length = (int)(updates ? strcspn(op, ".") : strlen(op));
    if (is_op) {
        (void)snprintf(out->kind, sizeof out->kind, "%.*s", length, op);
        (void)snprintf(out->label, sizeof out->label, "%.*s", colon ? (int)(colon - what) : 0,
                       what);
    } else {
        (void)snprintf(out->kind, sizeof out->kind, "%s", tsi_action_names[a->kind]);
        (void)snprintf(out->label, sizeof out->label, "%s", what);
    }
    out->place = a->place ? a->place : "";
}

static void name_work(const ts_step *s, int64_t at, named *out)
{
    const tsi_kept_work *work = &s->kept.work[at];
    int64_t recorded = tsi_works_recorded(&s->works, at);
    int32_t of = recorded < s->worked.count ? s->worked.action[recorded] : -1;
    bool listed = s->rank->index < s->value->list_count;
    *out = (named){ .kind = "work", .place = "" };
    if (tsi_capture_is_graph(work))
        (void)snprintf(out->kind, sizeof out->kind, "graph");
    else if (of >= 0 && listed) {
        const tsi_step_list *list = &s->value->list[s->rank->index];
        if (!tsi_again_is_one(work)) of = tsi_step_computing(list, of);
        bool waits = list->action[of].kind == TSI_ACTION_WAIT;
        name_action(waits ? tsi_step_waited_for(list, of) : &list->action[of], out);
    }
}

/* ---- events ---------------------------------------------------------------------------------- */

void tsi_replay_forget(ts_step *s)
{
    tsi_free(s->event);
    s->event = NULL;
}

/* One for each piece of work, but for operations, which have their own. */
static tsi_event *events_of(ts_step *s)
{
    tsi_ring *ring = s->rank->ring;
    if (s->event) return s->event;
    s->event = tsi_calloc((size_t)s->kept.count + 1, sizeof *s->event);
    for (int64_t i = 0; s->event && i < s->kept.count; i++) {
        named name;
        if (tsi_again_is_one(&s->kept.work[i])) continue;
        name_work(s, i, &name);
        s->event[i] = (tsi_event){ .kind = TSI_EVENT_OP,
                                   .kind_name = tsi_ring_name(ring, name.kind),
                                   .name = tsi_ring_name(ring, name.label),
                                   .where = tsi_ring_name(ring, name.place) };
    }
    return s->event;
}

typedef struct telling {
    const ts_step *step;
    uint64_t number; /* of the event that is open; 0: none */
} telling;

static void begins(void *context, int64_t place)
{
    telling *t = context;
    const tsi_event *event = &t->step->event[place];
    t->number = event->kind == TSI_EVENT_OP ? tsi_ring_begin(t->step->rank->ring, event) : 0;
}

static void ended(void *context, int64_t place)
{
    const telling *t = context;
    (void)place;
    tsi_ring_end(t->step->rank->ring, t->number, 0);
}

/* ---- steps that run -------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    ts_step *first;
} running = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void enter(ts_step *s)
{
    atomic_store_explicit(&s->kept.at, 0, memory_order_relaxed);
    s->begin_ns = tsi_clock_ns();
    pthread_mutex_lock(&running.lock);
    s->next = running.first;
    running.first = s;
    pthread_mutex_unlock(&running.lock);
}

static void leave(const ts_step *s)
{
    pthread_mutex_lock(&running.lock);
    ts_step **at = &running.first;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    pthread_mutex_unlock(&running.lock);
}

ts_status tsi_replay_run(ts_step *s)
{
    telling tells = { .step = s };
    tsi_kept_hearer hearer = { begins, ended, &tells };
    bool told = TSI_UNLIKELY(s->rank->traced > 0) && events_of(s) != NULL;
    enter(s);
    ts_status status = tsi_kept_run(s->rank, &s->kept, told ? &hearer : NULL);
    leave(s);
    return status;
}

ts_status tsi_replay_time(ts_step *s, int64_t *ns)
{
    enter(s);
    ts_status status = tsi_kept_time(s->rank, &s->kept, ns);
    leave(s);
    return status;
}

static void describe(const ts_step *s, char *out, size_t size)
{
    named name = { .place = "" };
    int64_t at = atomic_load_explicit(&s->kept.at, memory_order_relaxed);
    if (at < s->kept.count) name_work(s, at, &name);
    bool labelled = name.label[0] != '\0', placed = name.place[0] != '\0';
    (void)snprintf(out, size, "%s%s%.80s%s%s%.80s%s", name.kind, labelled ? " \"" : "", name.label,
                   labelled ? "\"" : "", placed ? " (" : "", name.place, placed ? ")" : "");
}

bool tsi_replay_at(const ts_rank *rank, char *out, size_t size, int64_t *begin_ns)
{
    pthread_mutex_lock(&running.lock);
    const ts_step *s = running.first;
    while (s && s->rank != rank)
        s = s->next;
    if (s) describe(s, out, size);
    if (s) *begin_ns = s->begin_ns;
    pthread_mutex_unlock(&running.lock);
    return s != NULL;
}
