/* SPDX-License-Identifier: Apache-2.0 */
/* keep.c - the list of kept work. */
#include "base/keep.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/error.h"

const tsi_kept_kind tsi_kept_fence = { TSI_KEPT_FENCE, NULL };

static void let_go(const tsi_kept_work *work)
{
    if (work->destroy) work->destroy(work->context);
}

static ts_status room_for_one(tsi_kept *kept)
{
    return tsi_room(&kept->work, kept->count, &kept->capacity, sizeof *kept->work, "a step");
}

static ts_status append(tsi_kept *kept, tsi_kept_work work)
{
    ts_status status = room_for_one(kept);
    if (status == TS_OK)
        kept->work[kept->count++] = work;
    else
        let_go(&work);
    return status;
}

ts_status tsi_keep_done(ts_rank *rank, tsi_kept_work work)
{
    TSI_ASSERT(tsi_keeps(rank));
    return append(rank->kept, work);
}

ts_status tsi_keep_apart(ts_rank *rank, tsi_kept_work work)
{
    TSI_ASSERT(rank->kept && rank->kept->inside == rank->kept->paused);
    return append(rank->kept, work);
}

/* Until come_back the rank's work is its own affair; what was captured so far comes before it. */
static ts_status leave(tsi_kept *kept)
{
    ts_status status = kept->inside == 0 && kept->turn ? kept->turn(kept, false) : TS_OK;
    kept->inside++;
    return status;
}

static ts_status come_back(tsi_kept *kept)
{
    TSI_ASSERT(kept->inside > 0);
    return --kept->inside == 0 && kept->turn ? kept->turn(kept, true) : TS_OK;
}

static ts_status run_alone(const tsi_kept_work *work)
{
    ts_status status = work->run(work->context);
    let_go(work);
    return status;
}

TSI_STEP_PATH ts_status tsi_keep_work(ts_rank *rank, tsi_kept_work work)
{
    if (!tsi_keeps(rank)) return run_alone(&work);
    tsi_kept *kept = rank->kept;
    ts_status status = leave(kept);
    if (status == TS_OK) status = room_for_one(kept); /* what is under way cannot be forgotten */
    if (status == TS_OK) status = work.run(work.context);
    if (status == TS_OK)
        status = append(kept, work);
    else
        let_go(&work);
    ts_status back = come_back(kept);
    return status == TS_OK ? back : status;
}

void tsi_keep_pause(const ts_rank *rank)
{
    if (!rank->kept) return;
    rank->kept->paused++;
    (void)leave(rank->kept); /* recorded if it fails */
}

void tsi_keep_resume(const ts_rank *rank)
{
    if (!rank->kept) return;
    rank->kept->paused--;
    (void)come_back(rank->kept);
}

static tsi_kept_stream *stream_find(const tsi_kept *kept, uint64_t recorded)
{
    for (int64_t i = 0; i < kept->stream_count; i++)
        if (kept->stream[i].recorded == recorded) return &kept->stream[i];
    return NULL;
}

tsi_kept_stream *tsi_keep_stream(tsi_kept *kept, uint64_t recorded)
{
    tsi_kept_stream *found = stream_find(kept, recorded);
    if (found) return found;
    if (tsi_room(&kept->stream, kept->stream_count, &kept->stream_capacity, sizeof *kept->stream,
                 "the random streams of a step") != TS_OK)
        return NULL;
    kept->stream[kept->stream_count] = (tsi_kept_stream){ recorded, recorded };
    return &kept->stream[kept->stream_count++];
}

uint64_t tsi_kept_stream_now(const ts_rank *rank, uint64_t recorded)
{
    const tsi_kept *kept = rank->kept;
    const tsi_kept_stream *found = kept && kept->drawn == 0 ? stream_find(kept, recorded) : NULL;
    return found ? found->now : recorded;
}

static inline ts_status run_one(tsi_kept *kept, int64_t i)
{
    atomic_store_explicit(&kept->at, i, memory_order_relaxed);
    return kept->work[i].run(kept->work[i].context);
}

static void enter(ts_rank *rank, tsi_kept *kept)
{
    TSI_ASSERT(!rank->kept);
    rank->kept = kept;
    kept->inside++;
}

static void let_out(ts_rank *rank, tsi_kept *kept)
{
    kept->inside--;
    rank->kept = NULL;
}

ts_status tsi_kept_time(ts_rank *rank, tsi_kept *kept, int64_t *ns)
{
    ts_status status = TS_OK;
    enter(rank, kept);
    int64_t now = tsi_clock_ns();
    for (int64_t i = 0; status == TS_OK && i < kept->count; i++) {
        int64_t before = now, helped = rank->helped_ns;
        status = run_one(kept, i);
        now = tsi_clock_ns();
        ns[i] = now - before - (rank->helped_ns - helped);
    }
    let_out(rank, kept);
    return status;
}

ts_status tsi_kept_run(ts_rank *rank, tsi_kept *kept, const tsi_kept_hearer *hearer)
{
    ts_status status = TS_OK;
    enter(rank, kept);
    for (int64_t i = 0; !hearer && status == TS_OK && i < kept->count; i++)
        status = run_one(kept, i);
    for (int64_t i = 0; hearer && status == TS_OK && i < kept->count; i++) {
        hearer->begins(hearer->context, i);
        status = run_one(kept, i);
        hearer->ended(hearer->context, i);
    }
    let_out(rank, kept);
    return status;
}

ts_status tsi_keep_border(const ts_rank *rank, tsi_kept_border border)
{
    tsi_kept *kept = rank->kept;
    ts_status status = tsi_room(&kept->border, kept->border_count, &kept->border_capacity,
                                sizeof border, "a step");
    if (status == TS_OK)
        kept->border[kept->border_count++] = border;
    else
        border.destroy(border.context);
    return status;
}

ts_status tsi_kept_settle(const tsi_kept *kept)
{
    for (int64_t i = 0; i < kept->border_count; i++)
        if (kept->border[i].settle) TSI_TRY(kept->border[i].settle(kept->border[i].context));
    return TS_OK;
}

ts_status tsi_kept_enter(const tsi_kept *kept)
{
    for (int64_t i = 0; i < kept->border_count; i++)
        if (kept->border[i].check) TSI_TRY(kept->border[i].check(kept->border[i].context));
    for (int64_t i = 0; i < kept->border_count; i++)
        if (kept->border[i].enter) TSI_TRY(kept->border[i].enter(kept->border[i].context));
    return TS_OK;
}

ts_status tsi_kept_leave(const tsi_kept *kept)
{
    for (int64_t i = 0; i < kept->border_count; i++)
        if (kept->border[i].leave) TSI_TRY(kept->border[i].leave(kept->border[i].context));
    return TS_OK;
}

void tsi_kept_release(tsi_kept *kept)
{
    for (int64_t i = kept->border_count; i > 0; i--)
        kept->border[i - 1].destroy(kept->border[i - 1].context);
    tsi_free(kept->border);
    for (int64_t i = kept->count; i > 0; i--)
        let_go(&kept->work[i - 1]);
    tsi_free(kept->work);
    tsi_free(kept->stream);
    *kept = (tsi_kept){ 0 };
}
