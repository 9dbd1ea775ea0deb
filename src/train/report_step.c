/* SPDX-License-Identifier: Apache-2.0 */
/* report_step.c - one step on the page: what all ranks did, memory by kind as planned and as held,
 * the predicted time beside the measured one, and what each rank took. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "train/run.h"

enum { WIDE = 960, HIGH = 18, SIDE = 60, ROWS_MAX = 64, TALL = 200, HALF = 460 };

/* ---- all ranks ------------------------------------------------------------------------------- */

static const char *const colours[] = { "#9ca3af", "var(--a)", "var(--b)",
                                       "#10b981", "#10b981",  "#d1d5db" }; /* by tsi_phase */

static void draw_row(tsi_text *out, const unsigned char *cell, int64_t row)
{
    double scale = (double)(WIDE - SIDE) / TSI_SEEN_CELLS;
    tsi_text_printf(out, "<text x=\"0\" y=\"%lld\">rank %lld</text>",
                    (long long)(row * HIGH + HIGH - 5), (long long)row);
    for (int i = 0, next; i < TSI_SEEN_CELLS; i = next) {
        for (next = i + 1; next < TSI_SEEN_CELLS && cell[next] == cell[i];)
            next++;
        if (cell[i] == 0) continue;
        const char *colour = cell[i] == TSI_SEEN_WAITS ? "#ef4444" : colours[cell[i] - 1];
        tsi_text_printf(out,
                        "<rect x=\"%.1f\" y=\"%lld\" width=\"%.1f\" height=\"%d\" "
                        "fill=\"%s\"/>",
                        SIDE + i * scale, (long long)(row * HIGH + 1), (next - i) * scale, HIGH - 2,
                        colour);
    }
}

static void legend(tsi_text *out, const char *colour, const char *what)
{
    tsi_text_printf(out, "<i style=\"background:%s\"></i>%s", colour, what);
}

void tsi_report_gantt(tsi_text *out, const tsi_run *run)
{
    const tsi_seen *w = &run->seen;
    int64_t rows = run->plan.ranks < ROWS_MAX ? run->plan.ranks : ROWS_MAX;
    if (!w->cell) return;
    tsi_text_printf(out, "<h2>One step of all ranks, %.2f ms</h2>",
                    1e-6 * (double)(w->end_ns - w->begin_ns));
    tsi_text_printf(out,
                    "<svg class=\"ranks\" viewBox=\"0 0 %d %lld\" role=\"img\" "
                    "aria-label=\"one step of all ranks\">",
                    WIDE, (long long)(rows * HIGH));
    for (int64_t r = 0; r < rows; r++)
        draw_row(out, w->cell + r * TSI_SEEN_CELLS, r);
    tsi_text_add(out, "</svg><p class=\"legend\">");
    legend(out, colours[TSI_PHASE_DATA], "data");
    legend(out, colours[TSI_PHASE_FORWARD], "forward");
    legend(out, colours[TSI_PHASE_BACKWARD], run->stages ? "stages" : "backward");
    legend(out, colours[TSI_PHASE_UPDATE], "norm and update");
    legend(out, "#ef4444", "communication and waiting");
    tsi_text_add(out, "</p>");
    if (rows < run->plan.ranks)
        tsi_text_printf(out, "<p>The first %d of %lld ranks.</p>", ROWS_MAX,
                        (long long)run->plan.ranks);
    tsi_text_add(out, "\n");
}

/* ---- memory ---------------------------------------------------------------------------------- */

static const char *const shades[TS_MEMORY_KINDS] = { "#6b7280", "#2563eb", "#60a5fa", "#a78bfa",
                                                     "#d97706", "#059669", "#fbbf24", "#f87171",
                                                     "#f472b6", "#94a3b8", "#475569" };

static int64_t most_of(const ts_train_curve *c)
{
    int64_t most = 0;
    for (int32_t i = 0; i < c->count; i++) {
        int64_t sum = 0;
        for (int k = 0; k < TS_MEMORY_KINDS; k++)
            sum += c->bytes[i][k];
        most = sum > most ? sum : most;
    }
    return most;
}

/* Kinds stacked on each other, the last call at the right. */
static void area(tsi_text *out, const char *title, const ts_train_curve *c, int64_t most)
{
    double below[TS_TRAIN_CURVE_MAX] = { 0 }, wide = (double)HALF / (c->count > 0 ? c->count : 1);
    char bytes[32];
    tsi_text_printf(out,
                    "<figure><figcaption>%s: at most %s after a call</figcaption><svg "
                    "viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"memory %s\">",
                    title, tsi_text_bytes(bytes, sizeof bytes, most_of(c)), HALF, TALL, title);
    for (int k = 0; k < TS_MEMORY_KINDS; k++) {
        bool any = false;
        for (int32_t i = 0; i < c->count; i++)
            any = any || c->bytes[i][k] > 0;
        if (!any) continue;
        tsi_text_printf(out, "<polygon fill=\"%s\" points=\"", shades[k]);
        for (int32_t i = 0; i < c->count; i++) {
            double y = TALL - TALL * (below[i] + (double)c->bytes[i][k]) / (double)most;
            tsi_text_printf(out, "%.1f,%.1f %.1f,%.1f ", i * wide, y, (i + 1) * wide, y);
        }
        for (int32_t i = c->count - 1; i >= 0; i--) {
            double y = TALL - TALL * below[i] / (double)most;
            tsi_text_printf(out, "%.1f,%.1f %.1f,%.1f ", (i + 1) * wide, y, i * wide, y);
            below[i] += (double)c->bytes[i][k];
        }
        tsi_text_printf(out, "\"><title>%s</title></polygon>",
                        ts_memory_kind_name((ts_memory_kind)k));
    }
    tsi_text_add(out, "</svg></figure>");
}

void tsi_report_curves(tsi_text *out, const tsi_run *run)
{
    const ts_train_curve *held = run->seen.held, *plan = run->cost ? &run->cost->curve : NULL;
    if (!held || held->count == 0 || !plan) return;
    int64_t most = most_of(held) > most_of(plan) ? most_of(held) : most_of(plan);
    if (most == 0) return;
    tsi_text_add(out, "<h2>Memory of rank 0 over a step, by kind</h2><div class=\"curves\">");
    if (plan->count > 0) area(out, "planned", plan, most);
    area(out, "held", held, most);
    tsi_text_add(out, "</div><p class=\"legend\">");
    for (int k = 0; k < TS_MEMORY_KINDS; k++) {
        int64_t any = 0;
        for (int32_t i = 0; i < held->count; i++)
            any |= held->bytes[i][k];
        if (any) legend(out, shades[k], ts_memory_kind_name((ts_memory_kind)k));
    }
    tsi_text_add(out, "</p><p>From left to right the calls of operators of a step; the update has "
                      "none.</p>\n");
}

/* ---- time ------------------------------------------------------------------------------------ */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of this process's steps but the first, of those that are kept; 0: there are none. */
static double median_step(const tsi_run *run)
{
    const tsi_history *h = &run->history;
    int64_t first = run->plan.step_first + 1, count = 0;
    double *took = tsi_alloc_array((size_t)h->count + 1, sizeof *took), middle = 0;
    for (int64_t i = 0; took && i < h->count; i++)
        if (h->step[i].step > first) took[count++] = h->step[i].seconds;
    if (count > 0) {
        qsort(took, (size_t)count, sizeof *took, compare);
        middle = took[count / 2];
    }
    tsi_free(took);
    return middle;
}

static void time_row(tsi_text *out, const char *what, double seconds)
{
    tsi_text_printf(out, "<tr><td>%s</td><td>%.2f</td></tr>", what, 1e3 * seconds);
}

void tsi_report_prediction(tsi_text *out, const tsi_run *run)
{
    double middle = median_step(run);
    ts_train_times t;
    if (!run->cost || !(run->rates.product_flops > 0) || !(middle > 0)) return;
    ts_train_predict(run->cost, &run->rates, &t);
    tsi_text_printf(out,
                    "<h2>Time of a step: predicted %.2f ms, measured %.2f ms</h2><p>At rates "
                    "measured when the run had ended; the median of its steps.</p><table><tr><th>"
                    "predicted</th><th>ms</th></tr>",
                    1e3 * t.step, 1e3 * middle);
    time_row(out, "products", t.products);
    time_row(out, "attention", t.attention);
    time_row(out, "other operators", t.memory);
    if (t.idle > 0) time_row(out, "idle in the pipeline", t.idle);
    time_row(out, "norm and update", t.update);
    time_row(out, "communication", t.comm);
    if (t.hidden > 0) time_row(out, "of it beside compute", -t.hidden);
    tsi_text_add(out, "</table>\n");
}

/* Of each rank, beside the slowest. */
void tsi_report_busy(tsi_text *out, const tsi_run *run)
{
    int64_t rows = run->plan.ranks < ROWS_MAX ? run->plan.ranks : ROWS_MAX, slow = 0;
    double most = 0;
    if (!run->busy_of || run->plan.ranks < 2) return;
    for (int64_t r = 0; r < run->plan.ranks; r++)
        if (run->busy_of[r] > most) most = run->busy_of[slow = r];
    if (most == 0) return;
    tsi_text_printf(
        out,
        "<p>Slowest of all steps together: rank %lld.</p><table><tr><th>rank</th><th>ms "
        "a step without waiting</th></tr>",
        (long long)slow);
    for (int64_t r = 0; r < rows; r++)
        tsi_text_printf(out,
                        "<tr><td>%lld</td><td>%.2f</td><td class=\"bar\"><i "
                        "style=\"width:%.1f%%\"></i></td></tr>",
                        (long long)r, 1e3 * run->busy_of[r], 100 * run->busy_of[r] / most);
    tsi_text_add(out, "</table>\n");
}
