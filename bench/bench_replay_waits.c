/* SPDX-License-Identifier: Apache-2.0 */
/* bench_replay_waits.c - see bench_replay_waits.h. */
#include "bench_replay_waits.h"

#include <string.h>

#include "step.h"

enum { ROWS = sizeof((bench_waits *)0)->row / sizeof(bench_wait) };

/* The last row is of all that found no room. */
static bench_wait *row_of(bench_waits *w, const char *kind, const char *axes)
{
    for (int i = 0; i < w->count; i++)
        if (strcmp(w->row[i].kind, kind) == 0 && strcmp(w->row[i].axes, axes) == 0)
            return &w->row[i];
    if (w->count == ROWS) return &w->row[ROWS - 1];
    bench_wait *row = &w->row[w->count++];
    (void)snprintf(row->kind, sizeof row->kind, "%s", kind);
    (void)snprintf(row->axes, sizeof row->axes, "%s", axes);
    return row;
}

ts_status bench_waits_predict(bench_waits *w, int order, const ts_program *program,
                              const ts_program_costs *costs, ts_program_times *times)
{
    step_bars bars;
    step_waits waits = { .count = 0 };
    int code = step_simulate("bench replay", program, costs, &bars);
    if (code < 0) step_count_waits(&bars, &waits);
    *times = bars.times;
    for (int64_t i = 0; code < 0 && order == BENCH_RECORDED && i < bars.count; i++)
        if (bars.bar[i].communicates) (void)row_of(w, bars.bar[i].kind, bars.bar[i].along);
    for (int i = 0; i < waits.count; i++)
        row_of(w, waits.row[i].kind, waits.row[i].axes)->predicted[order] +=
            1e-6 * waits.row[i].us / (double)waits.ranks;
    step_bars_release(&bars);
    return code < 0 ? TS_OK : TS_ERR_ARG;
}

typedef struct adding {
    bench_waits *waits;
    int order;
} adding;

static void add_wait(const ts_step_wait *wait, void *context)
{
    const adding *a = context;
    row_of(a->waits, wait->kind, wait->along)->measured[a->order] += 1e-9 * (double)wait->ns;
}

ts_status bench_waits_add(bench_waits *w, int order, const ts_step *step)
{
    return ts_step_waits(step, add_wait, &(adding){ w, order });
}

/* Rows beyond those of the recorded program may differ between ranks: all of the table is added up,
 * and rank 0 has the names. */
ts_status bench_waits_meet(bench_waits *w, ts_rank *me, int64_t turns)
{
    double sum[ROWS * BENCH_ORDERS];
    for (int i = 0; i < ROWS * BENCH_ORDERS; i++)
        sum[i] = w->row[i / BENCH_ORDERS].measured[i % BENCH_ORDERS];
    ts_array all = { .struct_size = sizeof all, .data = sum };
    all.meta = (ts_meta){ .shape = TS_SHAPE(ROWS * BENCH_ORDERS), .dtype = TS_DTYPE_F64 };
    ts_status status = ts_group_all_reduce(ts_group_world(me), &all, &all, TS_REDUCE_SUM, NULL);
    double each = 1.0 / (double)(ts_rank_count(me) * turns);
    for (int i = 0; status == TS_OK && i < ROWS * BENCH_ORDERS; i++)
        w->row[i / BENCH_ORDERS].measured[i % BENCH_ORDERS] = sum[i] * each;
    return status;
}

void bench_waits_report(const bench_waits *w, const char *mesh, bench_lines *lines)
{
    for (int i = 0; i < w->count; i++) {
        const bench_wait *row = &w->row[i];
        const double *is = row->measured, *was = row->predicted;
        if (is[BENCH_RECORDED] + is[BENCH_REORDERED] < 1e-6) continue;
        bench_line *line =
            bench_lines_add(lines, "ms", 1e3 * is[BENCH_REORDERED], "%s: of it for %s%s%s", mesh,
                            row->kind, row->axes[0] ? " over " : "", row->axes);
        bench_line_floor(line, 1e3 * is[BENCH_RECORDED], "as recorded");
        bench_line_note(line, "means; predicted %.2f and %.2f", 1e3 * was[BENCH_REORDERED],
                        1e3 * was[BENCH_RECORDED]);
    }
}
