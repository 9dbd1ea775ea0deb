/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_route.c - the walk over all members' choices that says who sends which rows to whom; see
 * grouped_route.h. It is walked twice: to count, then to fill. Without data it is walked once, over
 * rows that stand for as many as there are. */
#include "op/matrix/grouped_route.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/intmath.h"

enum { STAND_ALL = 1 << 14, STAND_MIN = 32 }; /* rows that stand for others: of all, of a member */

typedef struct holder {  /* of some experts of one row */
    int64_t member, via; /* via: who passes it on; the home itself: nobody */
} holder;

typedef struct walk {
    const tsi_route_request *q;
    tsi_route *route;
    holder *holder; /* [choices] of the row at hand, by member */
    int32_t *drawn; /* [choices] of it, where they stand for data */
    int64_t count;
    int64_t *out_at[2], *in_at[2]; /* [size]: counts, then the next place */
    int64_t *slot_out_at, *slot_in_at;
    int64_t times; /* rows that the one at hand stands for */
    bool fills;
} walk;

/* ---- one row --------------------------------------------------------------------------------- */

/* -1: none of these. */
static int64_t holder_of(const walk *w, int32_t expert)
{
    return expert < 0 ? -1 : w->q->owner[expert];
}

/* The next place of a list, which moves on. */
static int64_t take(const walk *w, int64_t *next)
{
    int64_t at = *next;
    *next += w->times;
    return at;
}

/* The members that hold its experts, each once, in their order. */
static void find_holders(walk *w, const int32_t *which)
{
    w->count = 0;
    for (int64_t k = 0; k < w->q->choices; k++) {
        int64_t member = holder_of(w, which[k]), at = 0;
        while (at < w->count && w->holder[at].member < member)
            at++;
        if (member < 0 || (at < w->count && w->holder[at].member == member)) continue;
        memmove(w->holder + at + 1, w->holder + at, (size_t)(w->count - at) * sizeof *w->holder);
        w->holder[at] = (holder){ member, -1 };
        w->count++;
    }
}

/* In a node that is not the home's, the holders take turns at passing rows on. */
static void find_ways(walk *w, int64_t home, int64_t row)
{
    const int64_t *node = w->q->node;
    for (int64_t i = 0; i < w->count; i++)
        w->holder[i].via = home;
    if (!node) return;
    for (int64_t i = 0, same = 1; i < w->count; i += same) {
        int64_t here = node[w->holder[i].member];
        for (same = 1; i + same < w->count && node[w->holder[i + same].member] == here; same++) {
        }
        if (here == node[home]) continue;
        int64_t passes = w->holder[i + row % same].member;
        for (int64_t j = i; j < i + same; j++)
            w->holder[j].via = w->holder[j].member == passes ? home : passes;
    }
}

/* What comes to me; returns its place among the rows I hold, or -1. */
static int64_t take_row(walk *w, int64_t home)
{
    for (int64_t i = 0; i < w->count; i++)
        if (w->holder[i].member == w->q->me) {
            int leg = w->holder[i].via != home;
            return take(w, &w->in_at[leg][w->holder[i].via]);
        }
    return -1;
}

static void send_row(walk *w, int64_t home, int64_t row, int64_t held)
{
    int64_t me = w->q->me;
    for (int64_t i = 0; i < w->count; i++) {
        const holder *h = &w->holder[i];
        int leg = h->via != home;
        if (h->via != me) continue;
        int64_t at = take(w, &w->out_at[leg][h->member]);
        if (w->fills) w->route->leg[leg].out_row[at] = leg ? held : row;
    }
}

static void take_slots(walk *w, int64_t home, int64_t row, int64_t held, const int32_t *which)
{
    int64_t me = w->q->me, choices = w->q->choices;
    tsi_route *r = w->route;
    for (int64_t k = 0; k < choices; k++) {
        int64_t member = holder_of(w, which[k]);
        if (home == me && member >= 0) {
            int64_t at = take(w, &w->slot_out_at[member]);
            if (w->fills) r->slot_out[at] = row * choices + k;
        }
        if (member != me) continue;
        int64_t at = take(w, &w->slot_in_at[home]);
        if (!w->fills) continue;
        r->slot_row[at] = held;
        r->slot_expert[at] = which[k];
    }
}

static void walk_row(walk *w, int64_t home, int64_t row, const int32_t *which)
{
    find_holders(w, which);
    find_ways(w, home, row);
    int64_t held = take_row(w, home);
    send_row(w, home, row, held);
    take_slots(w, home, row, held, which);
}

static void walk_all(walk *w)
{
    const int32_t *which = w->q->which;
    w->times = 1;
    for (int64_t home = 0; home < w->q->size; home++)
        for (int64_t row = 0; row < w->q->rows[home]; row++, which += w->q->choices)
            walk_row(w, home, row, which);
}

static void walk_modelled(walk *w)
{
    const tsi_route_request *q = w->q;
    int64_t some = tsi_max_i64(STAND_ALL / q->size, STAND_MIN);
    for (int64_t home = 0; home < q->size; home++)
        for (int64_t row = 0; row < tsi_min_i64(q->rows[home], some); row++) {
            w->times = (q->rows[home] - row - 1) / some + 1;
            for (int64_t k = 0; k < q->choices; k++)
                w->drawn[k] = tsi_route_modelled(home, row, k, q->experts);
            walk_row(w, home, row, w->drawn);
        }
}

/* ---- counting, then filling ------------------------------------------------------------------ */

/* Counts become beginnings from `base` on, in `first` too; returns where it ends. */
static int64_t add_up(int64_t *count, int64_t *first, int64_t size, int64_t base)
{
    for (int64_t j = 0; j < size; j++) {
        int64_t here = count[j];
        count[j] = first[j] = base;
        base += here;
    }
    return first[size] = base;
}

static int64_t *numbers(tsi_arena *arena, int64_t count)
{
    return tsi_arena_calloc(arena, (size_t)count + 1, sizeof(int64_t));
}

static bool make_counts(walk *w, tsi_route *r, tsi_arena *arena)
{
    int64_t **list[] = { &w->out_at[0],        &w->out_at[1],        &w->in_at[0],
                         &w->in_at[1],         &w->slot_out_at,      &w->slot_in_at,
                         &r->leg[0].out_first, &r->leg[1].out_first, &r->leg[0].in_first,
                         &r->leg[1].in_first,  &r->slot_out_first,   &r->slot_in_first };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (!(*list[i] = numbers(arena, w->q->size))) return false;
    w->holder = tsi_arena_alloc(arena, (size_t)(w->q->choices + 1) * sizeof *w->holder);
    w->drawn = tsi_arena_alloc(arena, (size_t)(w->q->choices + 1) * sizeof *w->drawn);
    return w->holder && w->drawn;
}

static bool make_lists(walk *w, tsi_route *r, tsi_arena *arena)
{
    int64_t size = w->q->size, out[2];
    for (int leg = 0; leg < 2; leg++) {
        out[leg] = add_up(w->out_at[leg], r->leg[leg].out_first, size, 0);
        r->held = add_up(w->in_at[leg], r->leg[leg].in_first, size, r->held);
    }
    int64_t slots_out = add_up(w->slot_out_at, r->slot_out_first, size, 0);
    int64_t slots = add_up(w->slot_in_at, r->slot_in_first, size, 0);
    if (!w->q->which) return true;
    r->leg[0].out_row = numbers(arena, out[0]);
    r->leg[1].out_row = numbers(arena, out[1]);
    r->slot_out = numbers(arena, slots_out);
    r->slot_row = numbers(arena, slots);
    r->slot_expert = numbers(arena, slots);
    return r->leg[0].out_row && r->leg[1].out_row && r->slot_out && r->slot_row && r->slot_expert;
}

ts_status tsi_route_make(const tsi_route_request *request, tsi_arena *arena, tsi_route *out)
{
    *out = (tsi_route){ .size = request->size, .has_second = request->node != NULL };
    walk w = { .q = request, .route = out };
    bool made = make_counts(&w, out, arena);
    if (made) (request->which ? walk_all : walk_modelled)(&w);
    made = made && make_lists(&w, out, arena);
    if (!made) return tsi_fail_memory("the ways of rows", (size_t)request->size * 64);
    w.fills = request->which != NULL;
    if (w.fills) walk_all(&w);
    return TS_OK;
}

int32_t tsi_route_modelled(int64_t member, int64_t row, int64_t choice, int64_t experts)
{
    uint64_t first = tsi_hash_mix(tsi_hash_mix(17, (uint64_t)member), (uint64_t)row);
    /* An odd step that is no divisor's multiple would do; 1 always does. */
    return (int32_t)((first % (uint64_t)experts + (uint64_t)choice) % (uint64_t)experts);
}
