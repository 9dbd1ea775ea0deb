/* SPDX-License-Identifier: Apache-2.0 */
/* trace_steps.c - chosen steps as a trace that Perfetto opens: one file for all ranks.
 *
 * Ranks keep their latest events anyway, and those that are kept for traces alone from the first
 * chosen step on; after the last one those since the first are written, while all ranks wait, so
 * that none is overwritten meanwhile. Each process writes a file, and the first rank puts those of
 * other processes behind its own. Times are of the machine's clock: those of several nodes are
 * apart by what their clocks are. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/rank.h"
#include "base/text.h"
#include "model/model_config.h"
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

/* ---- one file of several --------------------------------------------------------------------- */

static const char tail[] = "\n]}\n"; /* of a trace, behind its events; a line is before them */

/* The events of another process's file, which goes. */
static ts_status append(FILE *all, const char *path)
{
    char *text = NULL;
    size_t length = 0, end = sizeof tail - 1;
    TSI_TRY(tsi_file_text(path, &text, &length));
    const char *begin = memchr(text, '\n', length);
    size_t events = begin ? length - (size_t)(begin + 1 - text) : 0;
    bool good = events > end && fputs(",\n", all) >= 0 &&
                fwrite(begin + 1, 1, events - end, all) == events - end;
    tsi_free(text);
    if (!good) return TSI_FAIL(TS_ERR_IO, "trace %s: cannot be put behind the others", path);
    (void)unlink(path);
    return TS_OK;
}

static ts_status join_files(const char *path, int64_t ranks)
{
    char other[TSI_CONFIG_TEXT_MAX + 24];
    ts_status status = TS_OK;
    FILE *all = fopen(path, "r+");
    if (!all || fseek(all, -(long)(sizeof tail - 1), SEEK_END) != 0)
        status = TSI_FAIL(TS_ERR_IO, "trace %s: %s", path, strerror(errno));
    for (int64_t r = 1; status == TS_OK && r < ranks; r++) {
        (void)snprintf(other, sizeof other, "%s.%lld", path, (long long)r);
        if (access(other, F_OK) == 0) status = append(all, other); /* of a process's first rank */
    }
    if (status == TS_OK && fputs(tail, all) < 0)
        status = TSI_FAIL(TS_ERR_IO, "trace %s: %s", path, strerror(errno));
    if (all) (void)fclose(all);
    return status;
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
    int64_t ranks = ts_rank_count(run->me), here = ts_rank_world(run->me)->local_count;
    if (status == TS_OK && waited == TS_OK && ts_rank_index(run->me) == 0 && here < ranks)
        status = join_files(path, ranks);
    return status != TS_OK ? status : waited;
}
