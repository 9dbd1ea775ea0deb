/* SPDX-License-Identifier: Apache-2.0 */
/* attention_gather.c - attention over a cut sequence by one exchange of all keys and values that my
 * queries see, and one run of the kernel.
 *
 * Gradients of keys and values go home in one exchange that folds them in the order of ranks. */
#include <string.h>

#include "base/alloc.h"
#include "base/intmath.h"
#include "op/nn/attention_travel.h"

static int64_t intervals_all(tsi_travel *t, bool sent, int64_t *count)
{
    *count = 0;
    for (int64_t s = 0; s < t->c.size; s++) {
        tsi_span_list need = t->need[s];
        if (sent && tsi_context_need(&t->c, s, t->c.me, &t->arena, &need) != TS_OK) return -1;
        *count += 2 * tsi_span_list_intervals(&need);
    }
    return *count;
}

static ts_status gather_rows(tsi_travel *t, const tsi_block block[2])
{
    tsi_travel_parts send, recv;
    int64_t sends, recvs;
    if (intervals_all(t, true, &sends) < 0 || intervals_all(t, false, &recvs) < 0)
        return TS_ERR_MEMORY;
    TSI_TRY(tsi_travel_room(t, sends, &send));
    TSI_TRY(tsi_travel_room(t, recvs, &recv));
    for (int64_t s = 0; s < t->c.size; s++) {
        TSI_TRY(tsi_travel_send(t, s, &send));
        tsi_travel_recv(t, s, &t->c.sees[t->c.me], block, &recv);
    }
    tsi_travel_round round = { &send, &recv, (ts_dtype)t->in[TSI_K].dtype, TS_REDUCE_NONE };
    return tsi_travel_go(t, &round, NULL);
}

/* ---- gradients go home ----------------------------------------------------------------------- */

/* Which members see each key of an owner, as runs of keys that the same ones see. */
typedef struct home {
    int64_t owner, rows;
    unsigned char *seen; /* [size][rows] */
    int64_t begin, end;  /* of the run */
} home;

static ts_status home_make(tsi_travel *t, int64_t owner, home *out)
{
    const tsi_span_list *keys = &t->c.keys[owner];
    *out = (home){ .owner = owner, .rows = keys->total };
    size_t bytes = (size_t)(t->c.size * keys->total) + 1;
    out->seen = tsi_arena_calloc(&t->arena, bytes, 1);
    if (!out->seen) return tsi_fail_memory("who sees a key", bytes);
    for (int64_t r = 0; r < t->c.size; r++) {
        tsi_span_list need;
        TSI_TRY(tsi_context_need(&t->c, r, owner, &t->arena, &need));
        tsi_context_walk walk = { .list = &need };
        while (tsi_context_next(&walk))
            memset(out->seen + r * keys->total + tsi_span_list_find(keys, walk.begin), 1,
                   (size_t)walk.count);
    }
    return TS_OK;
}

/* A run also ends where positions do not follow each other: rows elsewhere may lie apart. */
static bool home_next(const tsi_travel *t, home *h)
{
    const tsi_span_list *keys = &t->c.keys[h->owner];
    h->begin = h->end;
    if (h->begin == h->rows) return false;
    bool same = true;
    while (same && ++h->end < h->rows) {
        same = tsi_span_list_at(keys, h->end) == tsi_span_list_at(keys, h->end - 1) + 1;
        for (int64_t r = 0; r < t->c.size && same; r++)
            same = h->seen[r * h->rows + h->end] == h->seen[r * h->rows + h->end - 1];
    }
    return true;
}

static void send_home(tsi_travel *t, home *h, const tsi_block from[2], tsi_travel_parts *send)
{
    int64_t me = t->c.me;
    while (home_next(t, h)) {
        if (!h->seen[me * h->rows + h->begin]) continue;
        int64_t position = tsi_span_list_at(&t->c.keys[h->owner], h->begin);
        for (int i = 0; i < 2; i++)
            tsi_travel_add(send, &from[i], h->owner, tsi_span_list_find(&t->c.sees[me], position),
                           h->end - h->begin);
    }
}

static void recv_home(tsi_travel *t, home *h, const tsi_block to[2], tsi_travel_parts *recv)
{
    while (home_next(t, h))
        for (int i = 0; i < 2; i++) {
            int64_t first = recv->count;
            for (int64_t r = 0; r < t->c.size; r++) {
                if (!h->seen[r * h->rows + h->begin]) continue;
                tsi_travel_add(recv, &to[i], r, h->begin, h->end - h->begin);
                if (recv->count > first + 1) recv->part[recv->count - 1].combine = 1;
            }
        }
}

/* Sums of gradients of my keys: mine and what others computed, in the order of ranks. */
static ts_status bring_home(tsi_travel *t, const tsi_block from[2], const tsi_block to[2])
{
    tsi_travel_parts send, recv;
    int64_t mine = t->c.keys[t->c.me].total, all = 0;
    for (int64_t s = 0; s < t->c.size; s++)
        all += t->c.keys[s].total;
    TSI_TRY(tsi_travel_room(t, 2 * all, &send));
    TSI_TRY(tsi_travel_room(t, 2 * mine * t->c.size, &recv));
    for (int64_t s = 0; s < t->c.size; s++) {
        home h;
        TSI_TRY(home_make(t, s, &h));
        send_home(t, &h, from, &send);
        h.end = 0;
        if (s == t->c.me) recv_home(t, &h, to, &recv);
    }
    return tsi_travel_go(t, &(tsi_travel_round){ &send, &recv, t->sum, TS_REDUCE_SUM }, NULL);
}

/* dk and dv from where they were computed into the outputs, in their dtype. */
static ts_status settle_gradients(tsi_travel *t, const tsi_block from[2])
{
    tsi_array *array[2] = { NULL };
    tsi_block sums[2] = { t->out[1], t->out[2] };
    bool wide = (ts_dtype)t->out[1].dtype == t->sum;
    ts_status status = TS_OK;
    if (!wide) status = tsi_travel_rows(t, t->in[TSI_K].extent[2], t->sum, array, sums);
    if (status == TS_OK) status = bring_home(t, from, sums);
    if (status == TS_OK) status = tsi_travel_settle(t, sums);
    tsi_array_release(array[0]);
    tsi_array_release(array[1]);
    return status;
}

/* ---- the algorithm --------------------------------------------------------------------------- */

static ts_status gather(tsi_travel *t)
{
    tsi_array *array[4] = { NULL };
    tsi_block kv[2], sums[2];
    const tsi_span_list *list = &t->c.sees[t->c.me];
    ts_status status = tsi_travel_rows(t, list->total, (ts_dtype)t->in[TSI_K].dtype, array, kv);
    if (status == TS_OK && t->backward)
        status = tsi_travel_rows(t, list->total, t->sum, array + 2, sums);
    if (status == TS_OK) status = gather_rows(t, kv);
    tsi_block result[TSI_OUTPUT_MAX] = { t->out[0], t->out[1] };
    if (t->backward) {
        result[1] = sums[0];
        result[2] = sums[1];
    }
    if (status == TS_OK)
        status = tsi_travel_kernel(t, &(tsi_travel_keys){ kv, list, false }, result);
    if (status == TS_OK && t->backward) status = settle_gradients(t, sums);
    for (int i = 0; i < 4; i++)
        tsi_array_release(array[i]);
    return status;
}

/* Where members can read each other's memory there is nothing to gather. */
ts_status tsi_context_gather(const tsi_algorithm_io *io)
{
    return tsi_travel_run(io, tsi_travel_in_place(io) ? tsi_ring_in_place : gather);
}
