/* SPDX-License-Identifier: Apache-2.0 */
/* seen.c - one step in pictures: what every rank's thread did when, and what memory was for after
 * each call of an operator.
 *
 *   time     a row of cells a rank: forward, backward, update, waiting; from phases and events
 *   memory   the most of each kind in so many equal runs of calls, planned and held alike
 *
 * INV: what is kept has a fixed size: where a curve is full, neighbours become one. */
#include "train/seen.h"

#include <string.h>

#include "array/pool.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/rank.h"
#include "base/ring.h"
#include "runtime/record.h"

/* ---- memory ---------------------------------------------------------------------------------- */

enum { CURVE = TS_TRAIN_CURVE_MAX };

static int64_t total_of(const int64_t *kinds)
{
    int64_t sum = 0;
    for (int k = 0; k < TS_MEMORY_KINDS; k++)
        sum += kinds[k];
    return sum;
}

/* Of two neighbours the larger moment. */
static void halve(tsi_curve *c)
{
    for (int32_t i = 0; i < CURVE / 2; i++) {
        const int64_t *a = c->curve->bytes[2 * i], *b = c->curve->bytes[2 * i + 1];
        memmove(c->curve->bytes[i], total_of(a) >= total_of(b) ? a : b, sizeof c->curve->bytes[i]);
    }
    c->curve->count = CURVE / 2;
    c->stride *= 2;
}

static void hear_call(void *context, void *what)
{
    (void)what;
    tsi_curve *c = context;
    const tsi_pool *pool = tsi_pool_of(c->me);
    int64_t now[TS_MEMORY_KINDS] = { 0 };
    for (uint32_t tag = 0; pool && tag < TSI_TAG_COUNT; tag++)
        now[tsi_memory_of_tag(tag)] += tsi_pool_used(pool, (int32_t)tag).live;
    if (c->calls++ % c->stride == 0) {
        if (c->curve->count == CURVE) halve(c);
        memset(c->curve->bytes[c->curve->count++], 0, sizeof now);
    }
    int64_t *last = c->curve->bytes[c->curve->count - 1];
    if (total_of(now) > total_of(last)) memcpy(last, now, sizeof now);
}

ts_status tsi_curve_begin(tsi_curve *c, ts_rank *me, ts_train_curve *out)
{
    *c = (tsi_curve){ .me = me, .curve = out, .stride = 1 };
    out->count = 0;
    c->hears = (tsi_observer){ .context = c, .hear = { [TSI_NEWS_CALL] = hear_call } };
    return tsi_observers_add(&me->observers, &c->hears);
}

void tsi_curve_end(tsi_curve *c)
{
    tsi_observers_remove(&c->me->observers, &c->hears);
}

/* ---- time ------------------------------------------------------------------------------------ */

ts_status tsi_seen_begin(tsi_seen *w, ts_rank *me, ts_module *root)
{
    w->held = tsi_calloc(1, sizeof *w->held);
    w->peak = tsi_calloc(1, sizeof *w->peak);
    if (!w->held || !w->peak) return tsi_fail_memory("the memory of a step", sizeof *w->peak);
    TSI_TRY(tsi_tracker_begin(&w->tracker, me, root));
    tsi_tracker_step(&w->tracker, "forward");
    w->me = me;
    w->begin_ns = tsi_clock_ns();
    w->event = tsi_ring_last(me->ring);
    w->watching = true;
    return tsi_curve_begin(&w->curve, me, w->held);
}

void tsi_seen_phase(tsi_seen *w, int32_t phase, int64_t from_ns, int64_t to_ns)
{
    if (!w->watching || w->span_count == TSI_SEEN_SPANS) return;
    w->span[w->span_count++] = (tsi_seen_span){ from_ns, to_ns, phase };
}

static void paint(const tsi_seen *w, unsigned char *cell, int64_t from, int64_t to, int kind)
{
    double scale = TSI_SEEN_CELLS / (double)(w->end_ns - w->begin_ns);
    int64_t first = (int64_t)((double)(from - w->begin_ns) * scale + 0.5);
    int64_t last = (int64_t)((double)(to - w->begin_ns) * scale + 0.5);
    if (first < 0) first = 0;
    if (last > TSI_SEEN_CELLS) last = TSI_SEEN_CELLS;
    for (int64_t i = first; i < last; i++)
        cell[i] = (unsigned char)kind;
}

/* Phases first, then what of them was communication or waiting for it. */
static void paint_row(const tsi_seen *w, unsigned char *cell)
{
    tsi_event e;
    for (int32_t i = 0; i < w->span_count; i++)
        paint(w, cell, w->span[i].from_ns, w->span[i].to_ns, 1 + w->span[i].phase);
    for (uint64_t n = w->event + 1; n <= w->event_last; n++)
        if (tsi_ring_read(w->me->ring, n, &e) && e.end_ns > 0 &&
            (e.kind == TSI_EVENT_WAIT || (e.kind == TSI_EVENT_COMM && e.queue == 0)))
            paint(w, cell, e.begin_ns, e.end_ns, TSI_SEEN_WAITS);
}

ts_status tsi_seen_end(tsi_seen *w, ts_group *all, ts_module *root, ts_optimizer *optimizer)
{
    int64_t ranks = ts_rank_count(w->me), mine = ts_rank_index(w->me);
    if (!w->watching) return TS_OK;
    w->watching = false;
    tsi_curve_end(&w->curve);
    TSI_TRY(tsi_tracker_end(&w->tracker, root, optimizer, w->peak));
    w->end_ns = tsi_clock_ns();
    w->event_last = tsi_ring_last(w->me->ring);
    size_t bytes = (size_t)ranks * TSI_SEEN_CELLS;
    w->cell = tsi_calloc(bytes, 1);
    if (!w->cell) return tsi_fail_memory("the picture of a step", bytes);
    paint_row(w, w->cell + mine * TSI_SEEN_CELLS);
    ts_array cells = TS_INIT(ts_array); /* each rank has its own, the others are 0 */
    cells.data = w->cell;
    cells.meta = (ts_meta){ .shape = TS_SHAPE((int64_t)bytes), .dtype = TS_DTYPE_U8 };
    return ts_group_all_reduce(all, &cells, &cells, TS_REDUCE_SUM, NULL);
}

void tsi_seen_release(tsi_seen *w)
{
    if (w->watching) tsi_curve_end(&w->curve);
    tsi_tracker_release(&w->tracker);
    tsi_free(w->cell);
    tsi_free(w->held);
    tsi_free(w->peak);
    *w = (tsi_seen){ 0 };
}
