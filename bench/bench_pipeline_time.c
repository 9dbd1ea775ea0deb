/* SPDX-License-Identifier: Apache-2.0 */
/* bench_pipeline_time.c - see bench_pipeline_time.h.
 *
 * ts_schedule_simulate knows what computes and how long a message is on its way. Here a message
 * also takes its time of both ranks, where their lists have it. */
#include "bench_pipeline_time.h"

#include <stdbool.h>
#include <stdlib.h>

typedef struct play {
    const bench_list *list;
    int64_t ranks;
    double **end;  /* by rank and action, of those that have run */
    int64_t *done; /* by rank */
    double *now;
} play;

/* The send that brings what is received; its peer's count: there is none. */
static int64_t send_of(const play *p, const ts_cell *receive, int64_t to)
{
    const bench_list *from = &p->list[receive->peer];
    int32_t kind =
        receive->kind == TS_CELL_RECEIVE_FORWARD ? TS_CELL_SEND_FORWARD : TS_CELL_SEND_BACKWARD;
    int64_t i = 0;
    while (i < from->count && (from->cell[i].kind != kind || from->cell[i].link != receive->link ||
                               from->cell[i].micro != receive->micro || from->cell[i].peer != to))
        i++;
    return i;
}

static bool needs(const ts_cell *cell, const ts_cell *receive)
{
    bool gradient = cell->kind == TS_CELL_BACKWARD || cell->kind == TS_CELL_INPUT;
    if (receive->stage != cell->stage || receive->micro != cell->micro) return false;
    return gradient ? receive->kind == TS_CELL_RECEIVE_BACKWARD
                    : cell->kind == TS_CELL_FORWARD && receive->kind == TS_CELL_RECEIVE_FORWARD;
}

/* When the next action of a rank can begin; false: something it needs was not sent yet. */
static bool begins(const play *p, int64_t rank, double *at)
{
    const bench_list *mine = &p->list[rank];
    const ts_cell *cell = &mine->cell[p->done[rank]];
    *at = p->now[rank];
    for (int64_t i = 0; i < p->done[rank]; i++) {
        const ts_cell *receive = &mine->cell[i];
        if (!needs(cell, receive)) continue;
        int64_t sent = send_of(p, receive, rank);
        if (sent >= p->done[receive->peer]) return false;
        if (p->end[receive->peer][sent] > *at) *at = p->end[receive->peer][sent];
    }
    return true;
}

static double play_lists(play *p, bench_cost_fn cost, const void *context)
{
    double last = 0;
    int64_t left = 0;
    for (int64_t r = 0; r < p->ranks; r++)
        left += p->list[r].count;
    for (bool moved = true; moved && left > 0;) {
        moved = false;
        for (int64_t r = 0; r < p->ranks; r++) {
            double at;
            while (p->done[r] < p->list[r].count && begins(p, r, &at)) {
                p->now[r] = at + cost(context, &p->list[r].cell[p->done[r]]);
                p->end[r][p->done[r]++] = p->now[r];
                if (p->now[r] > last) last = p->now[r];
                moved = true;
                left--;
            }
        }
    }
    return left == 0 ? last : -1;
}

double bench_lists_time(const bench_list *list, int64_t ranks, bench_cost_fn cost,
                        const void *context)
{
    double time = -1;
    play p = { .list = list, .ranks = ranks };
    p.end = calloc((size_t)ranks, sizeof *p.end);
    p.done = calloc((size_t)ranks, sizeof *p.done);
    p.now = calloc((size_t)ranks, sizeof *p.now);
    bool good = p.end && p.done && p.now;
    for (int64_t r = 0; r < ranks && good; r++)
        good = (p.end[r] = calloc((size_t)list[r].count + 1, sizeof **p.end)) != NULL;
    if (good) time = play_lists(&p, cost, context);
    for (int64_t r = 0; r < ranks && p.end; r++)
        free(p.end[r]);
    free(p.end);
    free(p.done);
    free(p.now);
    return time;
}
