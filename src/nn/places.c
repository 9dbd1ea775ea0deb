/* SPDX-License-Identifier: Apache-2.0 */
/* places.c - runs of a block, put together to pieces from the left. */
#include "nn/places.h"

#include "base/alloc.h"
#include "tensor/fill.h"

/* Can the piece go on with this run? Two runs tell how far apart they all are. */
static bool goes_on(const tsi_piece *p, int64_t global, int64_t length)
{
    if (p->inner == 0) return global == p->base + p->count || length == p->count;
    return length == p->inner && global == p->base + p->count / p->inner * p->outer;
}

static ts_status add_run(int64_t global, int64_t local, int64_t length, void *context)
{
    tsi_places *places = context;
    tsi_piece *last = places->count > 0 ? &places->piece[places->count - 1] : NULL;
    if (!last || !goes_on(last, global, length)) {
        TSI_TRY(tsi_room(&places->piece, places->count, &places->capacity, sizeof *places->piece,
                         "the places of a block"));
        places->piece[places->count++] =
            (tsi_piece){ .first = local, .count = length, .base = global };
        return TS_OK;
    }
    if (last->inner == 0 && global != last->base + last->count) {
        last->inner = length;
        last->outer = global - last->base;
    }
    last->count += length;
    return TS_OK;
}

ts_status tsi_places_of(tsi_places *places, const ts_tensor *t)
{
    if (places->layout == t->layout) return TS_OK;
    places->layout = NULL;
    places->count = 0;
    TSI_TRY(tsi_fill_runs(t->mesh, t->layout, add_run, places));
    places->layout = t->layout;
    return TS_OK;
}

void tsi_places_release(tsi_places *places)
{
    tsi_free(places->piece);
    *places = (tsi_places){ 0 };
}
