/* SPDX-License-Identifier: Apache-2.0 */
/* trace_steps.c - chosen steps as a trace that Perfetto opens: one file for all ranks of a process.
 *
 * Ranks keep their latest events anyway, and those that are kept for traces alone from the first
 * chosen step on; after the last one those since the first are written, while all ranks wait, so
 * that none is overwritten meanwhile. */
#include "base/clock.h"
#include "base/error.h"
#include "base/rank.h"
#include "base/text.h"
#include "train/run.h"

ts_status tsi_trace_parse(const char *text, int64_t *first, int64_t *last)
{
    tsi_cursor cursor = tsi_cursor_of("log.trace", text);
    *first = *last = 0;
    if (text[0] == '\0') return TS_OK;
    if (!tsi_cursor_int(&cursor, first)) return tsi_cursor_fail(&cursor, "steps, \"10-12\"");
    *last = *first;
    if (tsi_cursor_take(&cursor, '-') && !tsi_cursor_int(&cursor, last))
        return tsi_cursor_fail(&cursor, "the last step, \"10-12\"");
    if (!tsi_cursor_done(&cursor)) return tsi_cursor_fail(&cursor, "the end");
    if (*first < 1 || *last < *first)
        return TSI_FAIL(TS_ERR_ARG, "log.trace: \"%s\" are no steps; the first is 1", text);
    return TS_OK;
}

/* Every rank keeps when the first of them began that it takes. */
ts_status tsi_trace_begin(tsi_run *run, int64_t step, int64_t now_ns)
{
    bool chosen = run->trace_first > 0 && step >= run->trace_first && step <= run->trace_last;
    if (!chosen || run->trace_ns > 0) return TS_OK;
    run->trace_ns = now_ns;
    return ts_rank_trace_begin(run->me);
}

bool tsi_trace_is_due(const tsi_run *run, int64_t step)
{
    return run->trace_ns > 0 && step == run->trace_last;
}

ts_status tsi_trace_write(tsi_run *run)
{
    char path[TSI_CONFIG_TEXT_MAX];
    ts_status status = TS_OK;
    TSI_TRY(tsi_train_path(run->config, "trace.json", path));
    TSI_TRY(ts_rank_trace_end(run->me));
    TSI_TRY(ts_group_barrier(run->all, NULL)); /* the events of all are there */
    if (run->me->local_index == 0)
        status = ts_world_trace_since(ts_rank_world(run->me), path, run->trace_ns, tsi_clock_ns());
    run->trace_ns = 0;
    ts_status waited = ts_group_barrier(run->all, NULL);
    return status != TS_OK ? status : waited;
}
