/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_lower.c - adds to an order of work what makes it run: gathers and releases of stages
 * whose parameters are sharded, one reduction a stage, sends and receives.
 *
 * Messages are emitted in the order of schedule_walk.c, the two ends of each at one moment. So
 * every rank's list is a part of one sequence in which each event needs only earlier ones: even
 * with sends that wait for their receives it cannot deadlock, and the k-th send of a pair meets the
 * k-th receive. Receives that are wanted later keep that: see meet_all. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/schedule.h"

/* ---- messages -------------------------------------------------------------------------------- */

typedef struct lowering {
    const ts_schedule *from;
    const tsi_stage_graph *graph;
    ts_schedule *out;
    int32_t *left; /* by link, first user on a rank, micro-batch: users there whose gradient is
                      still missing */
    int64_t *left_first; /* [link]: where those of a link begin */
} lowering;

static void emit(lowering *l, int32_t rank, ts_cell cell, int32_t link, int32_t peer)
{
    cell.link = link;
    cell.peer = peer;
    tsi_schedule_add(l->out, rank, &cell);
}

/* The first user of a link on a rank stands for all of them there: it is sent once. */
static int32_t first_user(const lowering *l, const tsi_stage_link *link, int32_t rank)
{
    for (int32_t i = 0; i < link->to_count; i++)
        if (l->from->rank_of[link->to[i]] == rank) return i;
    return -1;
}

static void send_forward(lowering *l, int32_t rank, const ts_cell *c)
{
    const tsi_stage_graph *g = l->graph;
    for (int32_t i = g->out_first[c->stage]; i < g->out_first[c->stage + 1]; i++) {
        const tsi_stage_link *link = &g->link[g->out[i]];
        for (int32_t k = 0; k < link->to_count; k++) {
            int32_t to = l->from->rank_of[link->to[k]];
            if (to == rank || first_user(l, link, to) != k) continue;
            emit(l, rank, tsi_cell_of(TS_CELL_SEND_FORWARD, c->stage, c->micro), g->out[i], to);
            emit(l, to, tsi_cell_of(TS_CELL_RECEIVE_FORWARD, link->to[k], c->micro), g->out[i],
                 rank);
        }
    }
}

/* A gradient goes back once all users on this rank have added theirs. */
static void send_backward(lowering *l, int32_t rank, const ts_cell *c)
{
    const tsi_stage_graph *g = l->graph;
    for (int32_t i = g->in_first[c->stage]; i < g->in_first[c->stage + 1]; i++) {
        const tsi_stage_link *link = &g->link[g->in[i]];
        int32_t to = l->from->rank_of[link->from], first = first_user(l, link, rank);
        if (!link->gradient || to == rank) continue;
        int64_t slot = l->left_first[g->in[i]] + (int64_t)first * l->from->micros + c->micro;
        if (--l->left[slot] > 0) continue;
        emit(l, rank, tsi_cell_of(TS_CELL_SEND_BACKWARD, link->to[first], c->micro), g->in[i], to);
        emit(l, to, tsi_cell_of(TS_CELL_RECEIVE_BACKWARD, link->from, c->micro), g->in[i], rank);
    }
}

static ts_status lower_visit(void *context, int32_t rank, int64_t index, int32_t count)
{
    lowering *l = context;
    const ts_cell *c = &l->from->list[rank].cell[index];
    for (int32_t i = 0; i < count; i++)
        tsi_schedule_add(l->out, rank, &c[i]);
    for (int32_t i = 0; i < count; i++) {
        if (c[i].kind == TS_CELL_FORWARD)
            send_forward(l, rank, &c[i]);
        else if (c[i].kind == TS_CELL_BACKWARD || c[i].kind == TS_CELL_INPUT)
            send_backward(l, rank, &c[i]);
    }
    return l->out->failed ? tsi_fail_memory("a schedule", 0) : TS_OK;
}

static ts_status count_users(lowering *l)
{
    const tsi_stage_graph *g = l->graph;
    size_t micros = (size_t)l->from->micros, uses = 0;
    l->left_first = tsi_alloc_array((size_t)g->count + 1, sizeof *l->left_first);
    for (int32_t i = 0; i < g->count && l->left_first; i++) {
        l->left_first[i] = (int64_t)(uses * micros);
        uses += (size_t)g->link[i].to_count;
    }
    l->left = tsi_calloc(uses * micros + 1, sizeof *l->left);
    if (!l->left || !l->left_first) return tsi_fail_memory("a schedule", uses * micros * 4);
    for (int32_t i = 0; i < g->count; i++) {
        const tsi_stage_link *link = &g->link[i];
        for (int32_t k = 0; k < link->to_count; k++) {
            int32_t first = first_user(l, link, l->from->rank_of[link->to[k]]);
            for (size_t m = 0; m < micros; m++)
                l->left[(size_t)l->left_first[i] + (size_t)first * micros + m]++;
        }
    }
    return TS_OK;
}

static ts_status add_messages(const ts_schedule *from, const tsi_stage_graph *graph,
                              ts_schedule **out)
{
    lowering l = { .from = from, .graph = graph };
    TSI_TRY(tsi_schedule_create(from->ranks, from->stages, from->micros, &l.out));
    ts_status status = count_users(&l);
    if (status == TS_OK) status = tsi_schedule_walk(from, graph, lower_visit, &l);
    tsi_free(l.left);
    tsi_free(l.left_first);
    return tsi_schedule_done(l.out, status, out);
}

/* ---- gathers and reductions ------------------------------------------------------------------ */

typedef struct residence {
    const ts_schedule *from;
    ts_schedule *out;
    uint8_t *gathered, *wanted; /* [stage] */
    int32_t *finished;          /* [stage]: gradients of weights so far */
    int64_t *use;               /* [stage]: the next action on it; INT64_MAX: there is none */
    int64_t *again;             /* [action of the rank]: the next one on its stage */
    int32_t limit;
} residence;

/* Where the stages of a rank are used first, and where again after each use: looking ahead for that
 * at every action would take the square of their number. */
static void find_uses(residence *w, const tsi_schedule_list *list)
{
    for (int32_t g = 0; g < w->from->stages; g++)
        w->use[g] = INT64_MAX;
    for (int64_t i = list->count - 1; i >= 0; i--) {
        if (!tsi_cell_computes(&list->cell[i])) continue;
        int32_t stage = list->cell[i].stage;
        w->again[i] = w->use[stage];
        w->use[stage] = i;
    }
}

/* The stages that this and later actions use first, as many as may be gathered at once. */
static int32_t next_stages(const residence *w, int32_t rank, int32_t *out)
{
    int32_t count = 0;
    for (int32_t g = 0; g < w->from->stages; g++) {
        if (w->from->rank_of[g] != rank || w->use[g] == INT64_MAX) continue;
        int32_t place = count;
        while (place > 0 && w->use[out[place - 1]] > w->use[g])
            place--;
        if (place == w->limit) continue;
        if (count < w->limit) count++;
        for (int32_t k = count - 1; k > place; k--)
            out[k] = out[k - 1];
        out[place] = g;
    }
    return count;
}

static void reside(residence *w, int32_t rank, const int32_t *next, int32_t count)
{
    for (int32_t k = 0; k < count; k++)
        w->wanted[next[k]] = 1;
    for (int32_t g = 0; g < w->from->stages; g++) {
        if (w->from->rank_of[g] != rank || !w->gathered[g] || w->wanted[g]) continue;
        ts_cell cell = tsi_cell_of(TS_CELL_RELEASE, g, -1);
        tsi_schedule_add(w->out, rank, &cell);
        w->gathered[g] = 0;
    }
    for (int32_t k = 0; k < count; k++) {
        w->wanted[next[k]] = 0;
        if (w->gathered[next[k]]) continue;
        ts_cell cell = tsi_cell_of(TS_CELL_GATHER, next[k], -1);
        tsi_schedule_add(w->out, rank, &cell);
        w->gathered[next[k]] = 1;
    }
}

static bool is_kept(const residence *w, const ts_cell *c)
{
    bool shards = c->kind == TS_CELL_GATHER || c->kind == TS_CELL_RELEASE;
    return c->kind != TS_CELL_IDLE && !shards && (c->kind != TS_CELL_REDUCE || w->limit == 0);
}

static bool is_last(residence *w, const ts_cell *c)
{
    bool weights = c->kind == TS_CELL_WEIGHT || c->kind == TS_CELL_BACKWARD;
    return w->limit > 0 && weights && ++w->finished[c->stage] == w->from->micros;
}

/* `next` has room for as many stages as may be gathered at once. */
static void reside_rank(residence *w, int32_t rank, int32_t *next)
{
    const tsi_schedule_list *list = &w->from->list[rank];
    if (w->limit > 0) find_uses(w, list);
    for (int64_t i = 0; i < list->count; i++) {
        const ts_cell *c = &list->cell[i];
        if (!is_kept(w, c)) continue;
        int32_t count = c->joined ? 2 : 1;
        if (w->limit > 0) reside(w, rank, next, next_stages(w, rank, next));
        for (int32_t k = 0; k < count; k++) {
            tsi_schedule_add(w->out, rank, &c[k]);
            if (w->limit > 0 && tsi_cell_computes(&c[k])) w->use[c[k].stage] = w->again[i + k];
        }
        for (int32_t k = 0; k < count; k++) {
            ts_cell reduce = tsi_cell_of(TS_CELL_REDUCE, c[k].stage, -1);
            if (is_last(w, &c[k])) tsi_schedule_add(w->out, rank, &reduce);
        }
        i += count - 1;
    }
    if (w->limit > 0) reside(w, rank, next, 0);
}

/* On a schedule without messages: these are put between later. */
static ts_status add_residence(const ts_schedule *from, int32_t limit, ts_schedule **out)
{
    residence w = { .from = from, .limit = limit };
    size_t stages = (size_t)from->stages, longest = 0;
    for (int32_t r = 0; r < from->ranks; r++)
        if ((size_t)from->list[r].count > longest) longest = (size_t)from->list[r].count;
    TSI_TRY(tsi_schedule_create(from->ranks, from->stages, from->micros, &w.out));
    w.use = tsi_calloc(stages + longest, sizeof *w.use);
    w.again = w.use ? w.use + stages : NULL;
    w.gathered = tsi_calloc(2 * stages, 1);
    w.wanted = w.gathered ? w.gathered + stages : NULL;
    w.finished = tsi_calloc(2 * stages + (size_t)limit, sizeof *w.finished);
    bool fits = w.use && w.gathered && w.finished;
    ts_status status = fits ? TS_OK : tsi_fail_memory("a schedule", stages);
    for (int32_t r = 0; r < from->ranks && status == TS_OK; r++)
        reside_rank(&w, r, w.finished + stages);
    tsi_free(w.use);
    tsi_free(w.gathered);
    tsi_free(w.finished);
    return tsi_schedule_done(w.out, status, out);
}

/* ---- receives as late as wanted -------------------------------------------------------------- */

/* Is this the computation that a receive is for? */
static bool uses(const tsi_stage_graph *graph, const ts_cell *c, const ts_cell *receive)
{
    const tsi_stage_link *link = &graph->link[receive->link];
    if (c->micro != receive->micro) return false;
    if (receive->kind == TS_CELL_RECEIVE_BACKWARD)
        return c->stage == link->from && (c->kind == TS_CELL_BACKWARD || c->kind == TS_CELL_INPUT);
    for (int32_t i = 0; i < link->to_count && c->kind == TS_CELL_FORWARD; i++)
        if (link->to[i] == c->stage) return true;
    return false;
}

/* How far down a receive may go: past computations until `prefetch` are left before its use, and
 * never past another receive from the same rank of the same kind. */
static int64_t lowest_place(const tsi_schedule_list *list, int64_t at, const tsi_stage_graph *graph,
                            int32_t prefetch)
{
    const ts_cell *receive = &list->cell[at];
    int64_t use = at + 1, place;
    while (use < list->count && !uses(graph, &list->cell[use], receive))
        use++;
    int32_t between = 0;
    for (place = use - 1; place > at && between < prefetch; place--)
        between += tsi_cell_computes(&list->cell[place]);
    for (int64_t i = at + 1; i <= place; i++) {
        bool same = list->cell[i].kind == receive->kind && list->cell[i].peer == receive->peer;
        if (same) return i - 1;
    }
    return place > 0 && list->cell[place].joined ? place - 1 : place;
}

static void delay_receives(ts_schedule *s, const tsi_stage_graph *graph, int32_t prefetch)
{
    for (int32_t r = 0; r < s->ranks; r++) {
        tsi_schedule_list *list = &s->list[r];
        for (int64_t i = list->count - 1; i >= 0; i--) {
            ts_cell cell = list->cell[i];
            if (cell.kind != TS_CELL_RECEIVE_FORWARD && cell.kind != TS_CELL_RECEIVE_BACKWARD)
                continue;
            int64_t to = lowest_place(list, i, graph, prefetch);
            if (to <= i) continue;
            memmove(&list->cell[i], &list->cell[i + 1], (size_t)(to - i) * sizeof cell);
            list->cell[to] = cell;
        }
    }
}

/* The receive of the rank's next action, a send; -1: it is none, or that receive is gone. */
static int64_t awaited(const ts_schedule *s, const int64_t *at, int32_t rank)
{
    const ts_cell *send = &s->list[rank].cell[at[rank]];
    const tsi_schedule_list *peer = &s->list[send->peer];
    int32_t kind =
        send->kind == TS_CELL_SEND_FORWARD ? TS_CELL_RECEIVE_FORWARD : TS_CELL_RECEIVE_BACKWARD;
    if (send->kind != TS_CELL_SEND_FORWARD && send->kind != TS_CELL_SEND_BACKWARD) return -1;
    for (int64_t i = at[send->peer]; i < peer->count; i++) {
        const ts_cell *c = &peer->cell[i];
        if (c->kind == kind && c->peer == rank && c->link == send->link && c->micro == send->micro)
            return i;
    }
    return -1;
}

/* Everything but messages happens at once. */
static void reach_message(const ts_schedule *s, int64_t *at, int32_t rank)
{
    const tsi_schedule_list *list = &s->list[rank];
    while (at[rank] < list->count && !tsi_cell_is_message(&list->cell[at[rank]]))
        at[rank]++;
}

/* The next message whose two ends stand before their ranks; if there is none, one that is sent is
 * received before what else its rank has: of all that is left, what came first before receives were
 * delayed is such a one. False: no message is left. */
static bool meet_one(ts_schedule *s, int64_t *at)
{
    int32_t sender = -1;
    int64_t place = -1;
    for (int32_t r = 0; r < s->ranks; r++)
        reach_message(s, at, r);
    for (int32_t r = 0; r < s->ranks; r++) {
        int64_t i = at[r] < s->list[r].count ? awaited(s, at, r) : -1;
        if (i < 0) continue;
        bool meets = i == at[s->list[r].cell[at[r]].peer];
        if (sender < 0 || meets) {
            sender = r;
            place = i;
        }
        if (meets) break;
    }
    if (sender < 0) return false;
    int32_t peer = s->list[sender].cell[at[sender]].peer;
    ts_cell *cell = s->list[peer].cell, receive = cell[place];
    memmove(&cell[at[peer] + 1], &cell[at[peer]], (size_t)(place - at[peer]) * sizeof receive);
    cell[at[peer]++] = receive;
    at[sender]++;
    return true;
}

/* Receives that were delayed beyond what sends that wait for them allow come earlier again. */
static ts_status meet_all(ts_schedule *s)
{
    int64_t *at = tsi_calloc((size_t)s->ranks, sizeof *at);
    if (!at) return tsi_fail_memory("a schedule", (size_t)s->ranks * sizeof *at);
    while (meet_one(s, at))
        ;
    tsi_free(at);
    return TS_OK;
}

/* ---- all of it ------------------------------------------------------------------------------- */

ts_status tsi_schedule_lower(const ts_schedule *schedule, const tsi_stage_graph *graph,
                             const tsi_lower_options *options, ts_schedule **out)
{
    *out = NULL;
    if (schedule->messages)
        return TSI_FAIL(TS_ERR_ARG, "schedule: it has sends and receives already");
    TSI_TRY(tsi_schedule_complete(schedule));
    ts_schedule *resident;
    TSI_TRY(add_residence(schedule, options->gathered, &resident));
    ts_status status = add_messages(resident, graph, out);
    ts_schedule_destroy(resident);
    if (status != TS_OK || options->prefetch <= 0) return status;
    delay_receives(*out, graph, options->prefetch);
    status = meet_all(*out);
    return status == TS_OK ? status : tsi_schedule_done(*out, status, out);
}

ts_status ts_schedule_lower(const ts_schedule *schedule, int64_t gathered, ts_schedule **out)
{
    if (!schedule || !out) return TSI_FAIL(TS_ERR_NULL, "schedule: an argument is NULL");
    *out = NULL;
    if (gathered < 0 || gathered > INT32_MAX)
        return TSI_FAIL(TS_ERR_ARG, "schedule: %lld stages gathered at once", (long long)gathered);
    tsi_stage_graph line;
    tsi_lower_options options = { .gathered =
                                      gathered > 0 ? (int32_t)gathered : TSI_SCHEDULE_GATHERED };
    TSI_TRY(tsi_stage_graph_line(schedule->stages, &line));
    ts_status status = tsi_schedule_lower(schedule, &line, &options, out);
    tsi_stage_graph_release(&line);
    return status;
}
