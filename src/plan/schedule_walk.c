/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_walk.c - one order of events in which a schedule runs, or the cycle why there is none.
 *
 * An action needs what its rank has above it and what other stages give it: a forward the forwards
 * its inputs come from; a gradient its own forward and the gradients of whoever used its outputs; a
 * weight gradient its input gradient. The order found is by rounds, rank after rank, so it depends
 * on the schedule alone. Every rank's list is a part of it: what is emitted in this order can be
 * executed in this order, whatever the channels. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/schedule.h"

enum { DONE_FORWARD = 1, DONE_INPUT = 2, DONE_WEIGHT = 4 };

typedef struct walk {
    const ts_schedule *schedule;
    const tsi_stage_graph *graph;
    int64_t *next; /* [rank] */
    uint8_t *done; /* [stage * micros + micro] */
} walk;

typedef struct need {
    int32_t kind, stage; /* of the same micro-batch; kind INPUT stands for a backward too */
} need;

static uint8_t done_of(const walk *w, int32_t stage, int32_t micro)
{
    return w->done[(int64_t)stage * w->schedule->micros + micro];
}

static bool misses(const walk *w, int32_t stage, int32_t micro, int32_t kind, need *out)
{
    uint8_t bit = kind == TS_CELL_FORWARD ? DONE_FORWARD : DONE_INPUT;
    if (done_of(w, stage, micro) & bit) return false;
    *out = (need){ kind, stage };
    return true;
}

/* The first thing a cell needs that is not there; what is no compute needs nothing. */
static bool find_need(const walk *w, const ts_cell *c, need *out)
{
    const tsi_stage_graph *g = w->graph;
    if (!tsi_cell_computes(c)) return false;
    if (c->kind == TS_CELL_FORWARD) {
        for (int32_t i = g->in_first[c->stage]; i < g->in_first[c->stage + 1]; i++)
            if (misses(w, g->link[g->in[i]].from, c->micro, TS_CELL_FORWARD, out)) return true;
        return false;
    }
    if (c->kind == TS_CELL_WEIGHT) return misses(w, c->stage, c->micro, TS_CELL_INPUT, out);
    if (misses(w, c->stage, c->micro, TS_CELL_FORWARD, out)) return true;
    for (int32_t i = g->out_first[c->stage]; i < g->out_first[c->stage + 1]; i++) {
        const tsi_stage_link *link = &g->link[g->out[i]];
        for (int32_t k = 0; k < link->to_count && link->gradient; k++)
            if (misses(w, link->to[k], c->micro, TS_CELL_INPUT, out)) return true;
    }
    return false;
}

static void mark_done(walk *w, const ts_cell *c)
{
    if (!tsi_cell_computes(c)) return;
    uint8_t bits = c->kind == TS_CELL_FORWARD  ? DONE_FORWARD
                   : c->kind == TS_CELL_INPUT  ? DONE_INPUT
                   : c->kind == TS_CELL_WEIGHT ? DONE_WEIGHT
                                               : DONE_INPUT | DONE_WEIGHT;
    w->done[(int64_t)c->stage * w->schedule->micros + c->micro] |= bits;
}

/* The next cell of a rank that is not idle; NULL: none is left. */
static const ts_cell *head_of(walk *w, int32_t rank)
{
    const tsi_schedule_list *list = &w->schedule->list[rank];
    while (w->next[rank] < list->count && list->cell[w->next[rank]].kind == TS_CELL_IDLE)
        w->next[rank]++;
    return w->next[rank] < list->count ? &list->cell[w->next[rank]] : NULL;
}

/* ---- cycles ---------------------------------------------------------------------------------- */

static bool gives(const ts_cell *c, const need *n, int32_t micro)
{
    if (c->stage != n->stage || c->micro != micro) return false;
    return c->kind == n->kind || (n->kind == TS_CELL_INPUT && c->kind == TS_CELL_BACKWARD);
}

static bool stands_below(const walk *w, int32_t rank, const need *n, int32_t micro)
{
    const tsi_schedule_list *list = &w->schedule->list[rank];
    for (int64_t i = w->next[rank]; i < list->count; i++)
        if (gives(&list->cell[i], n, micro)) return true;
    return false;
}

/* Of one action or of two that are joined: the one that cannot run. */
static const ts_cell *blocked(walk *w, int32_t rank, need *out)
{
    const ts_cell *c = head_of(w, rank);
    if (find_need(w, c, out)) return c;
    TSI_ASSERT(c->joined);
    find_need(w, c + 1, out);
    return c + 1;
}

static ts_status refuse_stop(walk *w, int32_t rank)
{
    enum { SHOWN = 12 };
    tsi_text text = { 0 };
    need n;
    char name[48];
    int32_t begin = rank;
    for (int32_t i = 0; i < w->schedule->ranks; i++) { /* far enough to be on the cycle */
        const ts_cell *c = blocked(w, begin, &n);
        int32_t other = w->schedule->rank_of[n.stage];
        if (other < 0 || !stands_below(w, other, &n, c->micro)) break;
        begin = other;
    }
    rank = begin;
    tsi_text_add(&text, "schedule: ");
    for (int32_t i = 0; i < SHOWN; i++) {
        const ts_cell *c = blocked(w, rank, &n);
        ts_cell missing = tsi_cell_of(n.kind, n.stage, c->micro);
        ts_cell_text(c, name, sizeof name);
        tsi_text_printf(&text, "%s%s on rank %d needs ", i == 0 ? "" : ", behind which ", name,
                        rank);
        ts_cell_text(&missing, name, sizeof name);
        tsi_text_printf(&text, "%s", name);
        int32_t other = w->schedule->rank_of[n.stage];
        if (other < 0 || !stands_below(w, other, &n, c->micro)) {
            tsi_text_add(&text, ", which is nowhere");
            break;
        }
        ts_cell_text(head_of(w, other), name, sizeof name);
        tsi_text_printf(&text, ", which stands on rank %d behind %s", other, name);
        rank = other;
        if (rank == begin) {
            tsi_text_add(&text, ": a deadlock");
            break;
        }
    }
    ts_status status = TSI_FAIL(TS_ERR_ARG, "%s", text.failed ? "schedule: a deadlock" : text.data);
    tsi_text_release(&text);
    return status;
}

/* ---- walking --------------------------------------------------------------------------------- */

static ts_status try_rank(walk *w, int32_t rank, tsi_walk_fn visit, void *context, bool *moved)
{
    const ts_cell *c = head_of(w, rank);
    need n;
    if (!c) return TS_OK;
    int32_t count = c->joined ? 2 : 1;
    for (int32_t i = 0; i < count; i++)
        if (find_need(w, &c[i], &n)) return TS_OK;
    for (int32_t i = 0; i < count; i++)
        mark_done(w, &c[i]);
    int64_t index = w->next[rank];
    w->next[rank] += count;
    *moved = true;
    return visit ? visit(context, rank, index, count) : TS_OK;
}

static ts_status walk_all(walk *w, tsi_walk_fn visit, void *context)
{
    bool moved = true;
    while (moved) {
        moved = false;
        for (int32_t r = 0; r < w->schedule->ranks; r++)
            TSI_TRY(try_rank(w, r, visit, context, &moved));
    }
    for (int32_t r = 0; r < w->schedule->ranks; r++)
        if (head_of(w, r)) return refuse_stop(w, r);
    return TS_OK;
}

ts_status tsi_schedule_walk(const ts_schedule *schedule, const tsi_stage_graph *graph,
                            tsi_walk_fn visit, void *context)
{
    walk w = { .schedule = schedule, .graph = graph };
    size_t slots = (size_t)schedule->stages * (size_t)schedule->micros;
    TSI_ASSERT(graph->stages == schedule->stages);
    w.next = tsi_calloc((size_t)schedule->ranks, sizeof *w.next);
    w.done = tsi_calloc(slots, 1);
    ts_status status =
        w.next && w.done ? walk_all(&w, visit, context) : tsi_fail_memory("a schedule", slots);
    tsi_free(w.next);
    tsi_free(w.done);
    return status;
}
