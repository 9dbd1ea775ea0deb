/* SPDX-License-Identifier: Apache-2.0 */
/* kept_draw.c - random numbers of a step that is recorded (base/keep.h): each time it runs again,
 * scopes draw from the next streams, as they do when the step is run as usual. */
#include "base/alloc.h"
#include "base/keep.h"
#include "op/core/dispatch.h"
#include "tensor/tensor.h"

typedef struct kept_draw {
    ts_rank *rank;
    const char *label; /* of the scope that drew */
    uint64_t recorded;
} kept_draw;

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

static const tsi_kept_kind draw_kind = { TSI_KEPT_RANDOM, NULL };

ts_status tsi_op_keep_stream(ts_rank *rank, const tsi_op_plan *plan, uint64_t stream)
{
    tsi_kept *kept = rank->kept;
    if (plan->algorithm > 0)
        return TSI_FAIL(TS_ERR_STATE,
                        "step: %s draws random numbers while it communicates, which a step that "
                        "runs again cannot yet",
                        plan->op->name);
    int64_t before = kept->stream_count;
    if (!tsi_keep_stream(kept, stream)) return TS_ERR_MEMORY;
    if (kept->stream_count == before) return TS_OK;
    kept_draw *draw = tsi_alloc(sizeof *draw);
    if (!draw) return tsi_fail_memory("a draw of a step", sizeof *draw);
    *draw = (kept_draw){ rank, tsi_place_of(rank, rank->label ? rank->label : ""), stream };
    return tsi_keep_done(rank, (tsi_kept_work){ draw_again, draw, tsi_free, &draw_kind });
}
