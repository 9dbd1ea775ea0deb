/* SPDX-License-Identifier: Apache-2.0 */
/* kept_draw.c - random numbers of a step that is recorded (base/keep.h): each time it runs again,
 * scopes draw from the next streams, as they do when the step is run as usual.
 *
 * INV: a draw is kept where an ordinal goes up, and one more piece where it is put back, by a scope
 * that caught an error. So labels have the ordinals of the usual step behind every replay. */
#include "base/alloc.h"
#include "base/keep.h"
#include "tensor/tensor.h"

typedef struct kept_draw {
    ts_rank *rank;
    const char *label; /* of the scope that drew */
    uint64_t recorded;
} kept_draw;

static const tsi_kept_kind draw_kind = { TSI_KEPT_RANDOM, NULL };

/* Also inside of work that is kept as a whole: that draws nothing by itself when it runs again. */
static bool keeps_draws(const ts_rank *rank)
{
    return rank->kept && rank->kept->inside == rank->kept->paused;
}

/* The scope draws once more, as it does when the step is run as usual. */
static ts_status draw_again(void *context)
{
    const kept_draw *k = context;
    const char *label = k->rank->label;
    tsi_kept_stream *stream = tsi_keep_stream(k->rank->kept, k->recorded);
    TSI_ASSERT(stream);
    k->rank->label = k->label;
    stream->now = tsi_random_stream(k->rank, NULL);
    k->rank->label = label;
    return ts_rank_status(k->rank);
}

void tsi_keep_draw(ts_rank *rank, uint64_t stream)
{
    if (!keeps_draws(rank) || !tsi_keep_stream(rank->kept, stream)) return;
    kept_draw *draw = tsi_alloc(sizeof *draw);
    if (!draw) {
        (void)tsi_fail_memory("a draw of a step", sizeof *draw);
        return;
    }
    *draw = (kept_draw){ rank, tsi_place_of(rank, rank->label ? rank->label : ""), stream };
    (void)tsi_keep_apart(rank, (tsi_kept_work){ draw_again, draw, tsi_free, &draw_kind });
}

typedef struct kept_undraw {
    ts_rank *rank;
    uint64_t label; /* its hash */
} kept_undraw;

/* It is one lower than the draw left it: draws of a label are undone one by one. */
static ts_status undraw_again(void *context)
{
    const kept_undraw *k = context;
    tsi_tensor_state *state = tsi_tensor_state_of(k->rank);
    if (!state) return ts_rank_status(k->rank);
    tsi_ordinal *counter = tsi_map_find(&state->ordinals, k->label, NULL, NULL);
    TSI_ASSERT(counter && counter->next > 0);
    counter->next--;
    return TS_OK;
}

void tsi_keep_undraw(ts_rank *rank, uint64_t label)
{
    if (!keeps_draws(rank)) return;
    kept_undraw *undraw = tsi_alloc(sizeof *undraw);
    if (!undraw) {
        (void)tsi_fail_memory("a draw of a step", sizeof *undraw);
        return;
    }
    *undraw = (kept_undraw){ rank, label };
    (void)tsi_keep_apart(rank, (tsi_kept_work){ undraw_again, undraw, tsi_free, &draw_kind });
}
