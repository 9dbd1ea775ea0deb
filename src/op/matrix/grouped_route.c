/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_route.c - the walk over all members' choices that says who sends which rows to whom; see
 * grouped_route.h. It is walked twice: to count, then to fill. */
#include "op/matrix/grouped_route.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/hash.h"

typedef struct holder {  /* of some experts of one row */
    int64_t member, via; /* via: who passes it on; the home itself: nobody */
} holder;

typedef struct walk {
    const tsi_route_request *q;
    tsi_route *route;
    holder *holder; /* [choices] of the row at hand, by member */
    int64_t count;
    int64_t *out_at[2], *in_at[2]; /* [size]: counts, then the next place */
    int64_t *slot_out_at, *slot_in_at;
    bool fills;
} walk;

/* ---- one row --------------------------------------------------------------------------------- */

/* The members that hold its experts, each once, in their order. */
static void find_holders(walk *w, const int32_t *which)
{
    w->count = 0;
    for (int64_t k = 0; k < w->q->choices; k++) {
        int64_t member = w->q->owner[which[k]], at = 0;
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
            return w->in_at[leg][w->holder[i].via]++;
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
        int64_t at = w->out_at[leg][h->member]++;
        if (w->fills) w->route->leg[leg].out_row[at] = leg ? held : row;
    }
}

static void take_slots(walk *w, int64_t home, int64_t row, int64_t held, const int32_t *which)
{
    int64_t me = w->q->me, choices = w->q->choices;
    tsi_route *r = w->route;
    for (int64_t k = 0; k < choices; k++) {
        int64_t member = w->q->owner[which[k]];
        if (home == me && member >= 0) {
            int64_t at = w->slot_out_at[member]++;
            if (w->fills) r->slot_out[at] = row * choices + k;
        }
        if (member != me) continue;
        int64_t at = w->slot_in_at[home]++;
        if (!w->fills) continue;
        r->slot_row[at] = held;
        r->slot_expert[at] = which[k];
    }
}

static void walk_all(walk *w)
{
    const int32_t *which = w->q->which;
    for (int64_t home = 0; home < w->q->size; home++)
        for (int64_t row = 0; row < w->q->rows[home]; row++, which += w->q->choices) {
            find_holders(w, which);
            find_ways(w, home, row);
            int64_t held = take_row(w, home);
            send_row(w, home, row, held);
            take_slots(w, home, row, held, which);
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
    return w->holder != NULL;
}

static bool make_lists(walk *w, tsi_route *r, tsi_arena *arena)
{
    int64_t size = w->q->size, base = 0;
    for (int leg = 0; leg < 2; leg++) {
        int64_t out = add_up(w->out_at[leg], r->leg[leg].out_first, size, 0);
        base = add_up(w->in_at[leg], r->leg[leg].in_first, size, base);
        r->leg[leg].out_row = numbers(arena, out);
        if (!r->leg[leg].out_row) return false;
    }
    r->held = base;
    r->slot_out = numbers(arena, add_up(w->slot_out_at, r->slot_out_first, size, 0));
    int64_t slots = add_up(w->slot_in_at, r->slot_in_first, size, 0);
    r->slot_row = numbers(arena, slots);
    r->slot_expert = numbers(arena, slots);
    return r->slot_out && r->slot_row && r->slot_expert;
}

ts_status tsi_route_make(const tsi_route_request *request, tsi_arena *arena, tsi_route *out)
{
    *out = (tsi_route){ .size = request->size, .has_second = request->node != NULL };
    walk w = { .q = request, .route = out };
    bool made = make_counts(&w, out, arena);
    if (made) walk_all(&w);
    made = made && make_lists(&w, out, arena);
    if (!made) return tsi_fail_memory("the ways of rows", (size_t)request->size * 64);
    w.fills = true;
    walk_all(&w);
    return TS_OK;
}

int32_t tsi_route_modelled(int64_t member, int64_t row, int64_t choice, int64_t experts)
{
    uint64_t first = tsi_hash_mix(tsi_hash_mix(17, (uint64_t)member), (uint64_t)row);
    /* An odd step that is no divisor's multiple would do; 1 always does. */
    return (int32_t)((first % (uint64_t)experts + (uint64_t)choice) % (uint64_t)experts);
}
