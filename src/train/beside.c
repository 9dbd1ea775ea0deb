/* SPDX-License-Identifier: Apache-2.0 */
/* beside.c - communication that is under way while the rank computes: which, and what is computed
 * meanwhile, counted in a world without data.
 *
 *   issue   it is under way
 *   call    counts for every row of traffic of which something is
 *   wait    it is not any more; if no call came between, nothing hides it
 *
 * Rows are kept apart, so that what is computed while gradients are summed over one axis hides
 * nothing of another axis, whose operations are waited for at once. */
#include <string.h>

#include "comm/comm.h"
#include "op/core/dispatch.h"
#include "train/run.h"

static void hear_issue(void *context, void *what)
{
    tsi_beside *b = context;
    const tsi_issued *issued = what;
    int32_t row = issued->work ? tsi_traffic_row(b->traffic, issued->operation) : -1;
    if (row < 0 || b->count == TSI_BESIDE_MAX) return;
    tsi_model_counts counts = { 0 };
    tsi_model_cost(&b->traffic->machine, issued->operation, &counts);
    b->under_way[b->count].work = issued->work;
    b->under_way[b->count].row = row;
    b->under_way[b->count].met = false;
    b->under_way[b->count].seconds = counts.seconds;
    b->under_way[b->count].bytes = 0;
    for (int link = 0; link < TSI_LINK_COUNT; link++)
        b->under_way[b->count].bytes += counts.bytes[link];
    b->count++;
    b->open[row]++;
}

static void hear_wait(void *context, void *what)
{
    tsi_beside *b = context;
    int32_t i = 0;
    while (i < b->count && b->under_way[i].work != what)
        i++;
    if (i == b->count) return;
    ts_train_beside *row = &b->row[b->under_way[i].row];
    b->open[b->under_way[i].row]--;
    if (b->under_way[i].met) {
        row->count++;
        row->bytes += b->under_way[i].bytes;
        row->seconds += b->under_way[i].seconds;
    }
    b->under_way[i] = b->under_way[--b->count];
}

static void hear_call(void *context, void *what)
{
    tsi_beside *b = context;
    const tsi_op_state *state = tsi_op_state_of(b->me);
    double flops = state ? state->flops_here - b->flops_before : 0;
    b->flops_before += flops;
    tsi_amounts done = tsi_amounts_of(what, flops);
    for (int32_t i = 0; i < b->traffic->count; i++) {
        if (b->open[i] == 0) continue;
        b->row[i].product_flops += done.product_flops;
        b->row[i].attention_flops += done.attention_flops;
        b->row[i].touched_bytes += done.bytes;
    }
    for (int32_t i = 0; i < b->count; i++)
        b->under_way[i].met = true;
}

ts_status tsi_beside_begin(tsi_beside *b, ts_rank *me, const tsi_traffic *traffic)
{
    const tsi_op_state *state = tsi_op_state_of(me);
    if (!state) return ts_rank_status(me);
    *b = (tsi_beside){ .me = me, .traffic = traffic, .flops_before = state->flops_here };
    b->hears = (tsi_observer){ .context = b,
                               .hear = { [TSI_NEWS_ISSUE] = hear_issue,
                                         [TSI_NEWS_WAIT] = hear_wait,
                                         [TSI_NEWS_CALL] = hear_call } };
    return tsi_observers_add(&me->observers, &b->hears);
}

void tsi_beside_end(tsi_beside *b, ts_train_cost *out)
{
    tsi_observers_remove(&b->me->observers, &b->hears);
    memcpy(out->beside, b->row, sizeof out->beside);
}
