/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_step.c - a lowered schedule as a step: its values, queues and channels; and the proof.
 *
 *   value             made by             read by                      freed by
 *   a.stage.micro     forward             gradients of the stage       backward, weight gradient
 *   x.link.micro      its maker's forward sends, users on the rank     its maker's gradient
 *   y.link.micro      receive             forwards of its users        the last user's gradient
 *   e.link.micro      gradient of a user  the send back, or the maker  the next e of the link, or
 * the (more add to it)    where it is on the rank      maker's gradient d.link.micro.rank receive
 * gradient of the maker        the same
 *
 * Messages of the two directions run on queues and channels of their own, and so do receives from
 * ranks below and above: none waits behind one that comes from elsewhere. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/schedule.h"

enum { CHANNEL_FORWARD, CHANNEL_BACKWARD };

typedef struct stepping {
    const ts_schedule *s;
    const tsi_stage_graph *graph;
    const int64_t *activation; /* [stage]; may be NULL */
    tsi_step *step;
    int32_t queue[TS_CELL_KINDS][2]; /* of messages; [1]: from a rank above */
    int32_t rank;
    int32_t *sending; /* [2 * link]: micro-batches whose e may be on its way, the older one first;
                         -1: none. Two, so that nothing waits for a send that has just begun */
    uint8_t *made;    /* [link * micros + micro]: e is there */
    int32_t *left;    /* the same: users on the rank that still need y */
    tsi_touch *touch; /* of the action that is being made */
    int32_t touch_count, touch_capacity;
    ts_status status; /* the first failure */
} stepping;

/* ---- values ---------------------------------------------------------------------------------- */

static void add_touch(stepping *w, const tsi_value *value, int32_t how)
{
    tsi_touch touch = { .how = how };
    if (w->status == TS_OK) w->status = tsi_step_value(w->step, w->rank, value, &touch.value);
    if (w->status == TS_OK && w->touch_count == w->touch_capacity) {
        int32_t capacity = 2 * w->touch_capacity + 16;
        void *more = tsi_realloc(w->touch, (size_t)capacity * sizeof *w->touch);
        if (!more) w->status = tsi_fail_memory("a step", (size_t)capacity * sizeof *w->touch);
        if (more) w->touch = more;
        if (more) w->touch_capacity = capacity;
    }
    if (w->status == TS_OK) w->touch[w->touch_count++] = touch;
}

static const char *link_name(const stepping *w, int32_t link, char *out, size_t size)
{
    if (w->graph->link[link].name) return w->graph->link[link].name;
    (void)snprintf(out, size, "stage%d", w->graph->link[link].from);
    return out;
}

/* `peer`: -1, or the rank it comes from. */
static void touch_link(stepping *w, char which, int32_t link, int32_t micro, int32_t peer,
                       int32_t how)
{
    char name[TSI_STEP_NAME_MAX + 1], stage[32];
    int length = snprintf(name, sizeof name, "%c.%.200s.%d", which,
                          link_name(w, link, stage, sizeof stage), micro);
    if (peer >= 0) (void)snprintf(name + length, sizeof name - (size_t)length, ".%d", peer);
    tsi_value value = { .name = name,
                        .bytes = w->graph->link[link].bytes,
                        .memory = TSI_STEP_MEMORY_COMM };
    add_touch(w, &value, how);
}

static void touch_activation(stepping *w, const ts_cell *c, int32_t how)
{
    char name[64];
    (void)snprintf(name, sizeof name, "a.stage%d.%d", c->stage, c->micro);
    tsi_value value = { .name = name,
                        .bytes = w->activation ? w->activation[c->stage] : 0,
                        .memory = TSI_STEP_MEMORY_ACTIVATION };
    add_touch(w, &value, how);
}

static void append(stepping *w, const tsi_action *action)
{
    if (w->status == TS_OK)
        w->status = tsi_step_append(w->step, w->rank, action, w->touch, w->touch_count);
    w->touch_count = 0;
}

static void append_wait(stepping *w)
{
    tsi_action wait = TSI_ACTION_INIT(TSI_ACTION_WAIT);
    if (w->touch_count > 0) append(w, &wait);
}

static void append_compute(stepping *w, int32_t kind, const ts_cell *c)
{
    tsi_action action = TSI_ACTION_INIT(kind);
    action.stage = c->stage;
    action.micro = c->micro;
    append(w, &action);
}

static bool on_rank(const stepping *w, int32_t stage)
{
    return w->s->rank_of[stage] == w->rank;
}

static int64_t slot_of(const stepping *w, int32_t link, int32_t micro)
{
    return (int64_t)link * w->s->micros + micro;
}

/* ---- computations ---------------------------------------------------------------------------- */

static void step_forward(stepping *w, const ts_cell *c)
{
    const tsi_stage_graph *g = w->graph;
    const int32_t *in = g->in + g->in_first[c->stage], *end = g->in + g->in_first[c->stage + 1];
    for (const int32_t *l = in; l < end; l++)
        touch_link(w, on_rank(w, g->link[*l].from) ? 'x' : 'y', *l, c->micro, -1, TSI_READS);
    touch_activation(w, c, TSI_MAKES);
    for (int32_t i = g->out_first[c->stage]; i < g->out_first[c->stage + 1]; i++)
        touch_link(w, 'x', g->out[i], c->micro, -1, TSI_MAKES);
    append_compute(w, TSI_ACTION_FORWARD, c);
}

/* Gradients that other ranks or stages give for the outputs, and the outputs, which go now. */
static void touch_outputs(stepping *w, const ts_cell *c, bool wait)
{
    const tsi_stage_graph *g = w->graph;
    for (int32_t i = g->out_first[c->stage]; i < g->out_first[c->stage + 1]; i++) {
        const tsi_stage_link *link = &g->link[g->out[i]];
        bool local = false, remote = false;
        for (int32_t k = 0; k < link->to_count; k++) {
            int32_t rank = w->s->rank_of[link->to[k]];
            bool again = false;
            for (int32_t j = 0; j < k && !again; j++)
                again = w->s->rank_of[link->to[j]] == rank;
            local = local || rank == w->rank;
            remote = remote || rank != w->rank;
            if (again || rank == w->rank || !link->gradient) continue;
            touch_link(w, 'd', g->out[i], c->micro, rank, TSI_READS);
            if (!wait) touch_link(w, 'd', g->out[i], c->micro, rank, TSI_FREES);
        }
        if (wait && remote) touch_link(w, 'x', g->out[i], c->micro, -1, TSI_READS);
        if (wait) continue;
        touch_link(w, 'x', g->out[i], c->micro, -1, TSI_FREES);
        if (local && link->gradient) touch_link(w, 'e', g->out[i], c->micro, -1, TSI_READS);
        if (local && link->gradient) touch_link(w, 'e', g->out[i], c->micro, -1, TSI_FREES);
    }
}

/* Of a link into the stage: makes its gradient, or adds to that of another user. */
static void touch_input_gradient(stepping *w, int32_t link, int32_t micro)
{
    int64_t slot = slot_of(w, link, micro);
    touch_link(w, 'e', link, micro, -1, w->made[slot] ? TSI_WRITES : TSI_MAKES);
    w->made[slot] = 1;
}

/* The older one that is on its way goes before another of the same link is made. */
static void free_sent(stepping *w, int32_t link)
{
    int32_t *sending = &w->sending[2 * link];
    if (sending[0] >= 0) {
        touch_link(w, 'e', link, sending[0], -1, TSI_READS);
        touch_link(w, 'e', link, sending[0], -1, TSI_FREES);
    }
    sending[0] = sending[1];
    sending[1] = -1;
}

/* The stage needs its inputs no more. */
static void touch_inputs_last(stepping *w, const ts_cell *c)
{
    const tsi_stage_graph *g = w->graph;
    for (int32_t i = g->in_first[c->stage]; i < g->in_first[c->stage + 1]; i++) {
        int32_t link = g->in[i];
        if (on_rank(w, g->link[link].from)) continue;
        if (--w->left[slot_of(w, link, c->micro)] > 0) continue;
        touch_link(w, 'y', link, c->micro, -1, TSI_FREES);
    }
}

static void step_gradient(stepping *w, const ts_cell *c)
{
    const tsi_stage_graph *g = w->graph;
    bool whole = c->kind == TS_CELL_BACKWARD;
    const int32_t *in = g->in + g->in_first[c->stage], *end = g->in + g->in_first[c->stage + 1];
    touch_activation(w, c, TSI_READS);
    touch_outputs(w, c, false);
    for (const int32_t *l = in; l < end; l++)
        if (g->link[*l].gradient) touch_input_gradient(w, *l, c->micro);
    if (whole) touch_activation(w, c, TSI_FREES);
    if (whole) touch_inputs_last(w, c);
    append_compute(w, whole ? TSI_ACTION_BACKWARD : TSI_ACTION_INPUT_GRADIENT, c);
}

static void step_weight(stepping *w, const ts_cell *c)
{
    touch_activation(w, c, TSI_READS);
    touch_activation(w, c, TSI_FREES);
    touch_inputs_last(w, c);
    append_compute(w, TSI_ACTION_WEIGHT_GRADIENT, c);
}

/* ---- messages and parameters ----------------------------------------------------------------- */

static void step_message(stepping *w, const ts_cell *c)
{
    bool sends = c->kind == TS_CELL_SEND_FORWARD || c->kind == TS_CELL_SEND_BACKWARD;
    bool forward = c->kind == TS_CELL_SEND_FORWARD || c->kind == TS_CELL_RECEIVE_FORWARD;
    char stage[32];
    tsi_action action = TSI_ACTION_INIT(sends ? TSI_ACTION_SEND : TSI_ACTION_RECEIVE);
    action.what = link_name(w, c->link, stage, sizeof stage);
    action.stage = c->stage;
    action.micro = c->micro;
    action.peer = c->peer;
    action.channel = forward ? CHANNEL_FORWARD : CHANNEL_BACKWARD;
    action.queue = w->queue[c->kind][c->peer > w->rank];
    action.bytes = w->graph->link[c->link].bytes;
    if (c->kind == TS_CELL_SEND_BACKWARD && w->sending[2 * c->link + 1] >= 0) {
        free_sent(w, c->link); /* two are on their way already */
        append_wait(w);
    }
    if (sends)
        touch_link(w, forward ? 'x' : 'e', c->link, c->micro, -1, TSI_READS);
    else
        touch_link(w, forward ? 'y' : 'd', c->link, c->micro, forward ? -1 : c->peer, TSI_MAKES);
    if (c->kind == TS_CELL_SEND_BACKWARD) w->sending[2 * c->link + 1] = c->micro;
    append(w, &action);
}

static void step_parameters(stepping *w, const ts_cell *c)
{
    char name[32], group[32];
    int32_t kind = c->kind == TS_CELL_GATHER    ? TSI_ACTION_GATHER
                   : c->kind == TS_CELL_RELEASE ? TSI_ACTION_RELEASE
                                                : TSI_ACTION_REDUCE;
    tsi_action action = TSI_ACTION_INIT(kind);
    (void)snprintf(name, sizeof name, "w.stage%d.%s", c->stage,
                   c->kind == TS_CELL_REDUCE ? "gradient" : "gathered");
    (void)snprintf(group, sizeof group, "rank%d", w->rank);
    tsi_value value = { .name = name, .memory = TSI_STEP_MEMORY_GATHERED };
    if (c->kind != TS_CELL_REDUCE)
        add_touch(w, &value, c->kind == TS_CELL_GATHER ? TSI_MAKES : TSI_FREES);
    action.stage = c->stage;
    if (c->kind != TS_CELL_RELEASE && w->status == TS_OK)
        w->status = tsi_step_group_of(w->step, group, &w->rank, 1, &action.group);
    append(w, &action);
}

/* What other ranks sent for it must be there; what was sent before must be gone. */
static void wait_for(stepping *w, const ts_cell *c)
{
    const tsi_stage_graph *g = w->graph;
    const int32_t *in = g->in + g->in_first[c->stage], *end = g->in + g->in_first[c->stage + 1];
    bool forward = c->kind == TS_CELL_FORWARD;
    if (c->kind == TS_CELL_WEIGHT) return;
    if (!forward) touch_outputs(w, c, true);
    for (const int32_t *l = in; l < end; l++) {
        if (on_rank(w, g->link[*l].from)) continue;
        if (forward)
            touch_link(w, 'y', *l, c->micro, -1, TSI_READS);
        else if (!w->made[slot_of(w, *l, c->micro)])
            free_sent(w, *l);
    }
}

static void step_cell(stepping *w, const ts_cell *c)
{
    switch ((ts_cell_kind)c->kind) {
    case TS_CELL_FORWARD:
        step_forward(w, c);
        return;
    case TS_CELL_BACKWARD:
    case TS_CELL_INPUT:
        step_gradient(w, c);
        return;
    case TS_CELL_WEIGHT:
        step_weight(w, c);
        return;
    case TS_CELL_SEND_FORWARD:
    case TS_CELL_RECEIVE_FORWARD:
    case TS_CELL_SEND_BACKWARD:
    case TS_CELL_RECEIVE_BACKWARD:
        step_message(w, c);
        return;
    case TS_CELL_GATHER:
    case TS_CELL_RELEASE:
    case TS_CELL_REDUCE:
        step_parameters(w, c);
        return;
    case TS_CELL_IDLE:
    case TS_CELL_KINDS:
        return;
    }
}

/* ---- a rank ---------------------------------------------------------------------------------- */

static void count_users(stepping *w)
{
    memset(w->made, 0, (size_t)w->graph->count * (size_t)w->s->micros);
    for (int32_t l = 0; l < w->graph->count; l++) {
        const tsi_stage_link *link = &w->graph->link[l];
        int32_t users = 0;
        for (int32_t i = 0; i < link->to_count; i++)
            users += on_rank(w, link->to[i]);
        for (int32_t m = 0; m < w->s->micros; m++)
            w->left[slot_of(w, l, m)] = users;
        w->sending[2 * l] = w->sending[2 * l + 1] = -1;
    }
}

static void step_rank(stepping *w)
{
    const tsi_schedule_list *list = &w->s->list[w->rank];
    count_users(w);
    for (int64_t i = 0; i < list->count && w->status == TS_OK; i++) {
        const ts_cell *c = &list->cell[i];
        int32_t count = c->joined ? 2 : 1; /* both wait before the first begins */
        for (int32_t k = 0; k < count && tsi_cell_computes(c); k++)
            wait_for(w, &c[k]);
        append_wait(w);
        for (int32_t k = 0; k < count; k++)
            step_cell(w, &c[k]);
        i += count - 1;
    }
    for (int32_t l = 0; l < 2 * w->graph->count; l++)
        free_sent(w, l / 2);
    append_wait(w);
}

static ts_status open_step(stepping *w)
{
    static const char *const names[TS_CELL_KINDS][2] = {
        [TS_CELL_SEND_FORWARD] = { "send", "send" },
        [TS_CELL_RECEIVE_FORWARD] = { "receive_below", "receive_above" },
        [TS_CELL_SEND_BACKWARD] = { "send_back", "send_back" },
        [TS_CELL_RECEIVE_BACKWARD] = { "back_below", "back_above" },
    };
    TSI_TRY(tsi_step_create(w->s->ranks, &w->step));
    TSI_TRY(tsi_step_stages(w->step, w->s->stages, w->s->micros));
    for (int32_t k = TS_CELL_SEND_FORWARD; k <= TS_CELL_RECEIVE_BACKWARD; k++)
        for (int32_t above = 0; above < 2; above++)
            TSI_TRY(tsi_step_queue(w->step, names[k][above], &w->queue[k][above]));
    size_t slots = (size_t)w->graph->count * (size_t)w->s->micros + 1;
    w->sending = tsi_alloc_array(2 * (size_t)w->graph->count + 1, sizeof *w->sending);
    w->made = tsi_calloc(slots, 1);
    w->left = tsi_alloc_array(slots, sizeof *w->left);
    if (!w->sending || !w->made || !w->left) return tsi_fail_memory("a step", slots);
    return TS_OK;
}

ts_status tsi_schedule_step(const ts_schedule *lowered, const tsi_stage_graph *graph,
                            const int64_t *activation, tsi_step **out)
{
    stepping w = { .s = lowered, .graph = graph, .activation = activation };
    w.status = open_step(&w);
    for (w.rank = 0; w.rank < lowered->ranks && w.status == TS_OK; w.rank++)
        step_rank(&w);
    tsi_free(w.sending);
    tsi_free(w.made);
    tsi_free(w.left);
    tsi_free(w.touch);
    if (w.status != TS_OK) tsi_step_destroy(w.step);
    *out = w.status == TS_OK ? w.step : NULL;
    return w.status;
}

/* ---- proof ----------------------------------------------------------------------------------- */

static ts_status check_memory(const ts_schedule *s, const ts_schedule_costs *costs, double most)
{
    ts_schedule_times times = { .struct_size = sizeof times };
    double *peak = tsi_alloc_array((size_t)s->ranks, sizeof *peak);
    if (!peak) return tsi_fail_memory("a schedule", (size_t)s->ranks * sizeof *peak);
    ts_status status = ts_schedule_simulate(s, costs, &times, NULL, NULL, peak);
    for (int32_t r = 0; r < s->ranks && status == TS_OK && most > 0; r++)
        if (peak[r] > most * (1 + 1e-12))
            status = TSI_FAIL(TS_ERR_ARG, "schedule: rank %d keeps %g at once, above the cap of %g",
                              r, peak[r], most);
    tsi_free(peak);
    return status;
}

ts_status tsi_schedule_prove(const ts_schedule *s, const tsi_stage_graph *graph,
                             const tsi_lower_options *options, tsi_step **out)
{
    *out = NULL;
    ts_schedule *lowered = NULL;
    TSI_TRY(tsi_schedule_complete(s));
    if (!s->messages) TSI_TRY(tsi_schedule_lower(s, graph, options, &lowered));
    ts_status status = tsi_schedule_step(lowered ? lowered : s, graph, NULL, out);
    for (int buffered = 0; buffered < 2 && status == TS_OK; buffered++)
        status = tsi_step_prove(*out, &(tsi_step_rules){ .buffered = buffered });
    ts_schedule_destroy(lowered);
    if (status == TS_OK) return TS_OK;
    tsi_step_destroy(*out);
    *out = NULL;
    return status;
}

ts_status ts_schedule_check(const ts_schedule *schedule, const ts_schedule_costs *costs,
                            double memory_max)
{
    if (!schedule) return TSI_FAIL(TS_ERR_NULL, "schedule: it is NULL");
    tsi_stage_graph line;
    tsi_step *step = NULL;
    tsi_lower_options options = { .gathered = TSI_SCHEDULE_GATHERED };
    TSI_TRY(tsi_stage_graph_line(schedule->stages, &line));
    ts_status status = tsi_schedule_prove(schedule, &line, &options, &step);
    if (status == TS_OK) status = check_memory(schedule, costs, memory_max);
    tsi_step_destroy(step);
    tsi_stage_graph_release(&line);
    return status;
}
