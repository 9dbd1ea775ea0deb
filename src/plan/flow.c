/* SPDX-License-Identifier: Apache-2.0 */
/* flow.c - who sends what to whom in a direct exchange, for those who want to look.
 *
 * The blocks are those the executor would receive (tsi_plan_part), read from the receiving side.
 * One rank's answer costs that rank's messages, whatever the number of ranks. */
#include "base/arena.h"
#include "base/error.h"
#include "plan/plan.h"

#include <string.h>

static void visit_piece(const tsi_piece *piece, int64_t round, int64_t rank, ts_plan_block_fn visit,
                        void *context)
{
    ts_plan_block block = { .struct_size = sizeof block,
                            .round = round,
                            .from = piece->peer,
                            .to = rank,
                            .folds = piece->combine,
                            .ndim = piece->ndim,
                            .offset = piece->offset };
    memcpy(block.extent, piece->extent, sizeof block.extent);
    memcpy(block.stride, piece->stride, sizeof block.stride);
    visit(&block, context);
}

ts_status ts_plan_receives(const ts_plan *plan, int64_t rank, ts_plan_block_fn visit, void *context)
{
    if (!plan || !visit) return TSI_FAIL(TS_ERR_NULL, "plan_receives: an argument is NULL");
    if (plan->family != TS_PLAN_DIRECT && plan->family != TS_PLAN_HIERARCHICAL) return TS_OK;
    tsi_arena arena = { 0 };
    tsi_part part;
    ts_status status = tsi_plan_part(plan, rank, &arena, &part);
    for (int64_t r = 0; status == TS_OK && r < part.round_count; r++) {
        const tsi_round *round = &part.round[r];
        for (int64_t i = 0; i < round->recv_count; i++)
            visit_piece(&round->recv[i], r, rank, visit, context);
    }
    tsi_arena_release(&arena);
    return status;
}
