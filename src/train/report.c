/* SPDX-License-Identifier: Apache-2.0 */
/* report.c - the page of a run: one HTML file, no scripts, no network, light and dark.
 *
 * Curves are inline SVG in a box of WIDTH x HEIGHT; long runs are drawn with at most POINTS points,
 * each the mean of its steps. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "train/run.h"

enum { WIDTH = 720, HEIGHT = 240, LEFT = 64, BOTTOM = 24, POINTS = 600 };

static const char head[] =
    "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">"
    "<meta name=\"viewport\" content=\"width=device-width\"><title>tessera train</title><style>"
    ":root{color-scheme:light dark;--line:#8884;--a:#2563eb;--b:#d97706;--soft:#888}"
    "@media(prefers-color-scheme:dark){:root{--a:#7aa2ff;--b:#fbbf24}}"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "h1{font-size:1.5rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}"
    "table{border-collapse:collapse}td,th{padding:.2rem .8rem;text-align:right;"
    "border-bottom:1px solid var(--line)}td:first-child,th:first-child{text-align:left}"
    "svg{width:100%;height:auto;display:block}svg text{font:11px system-ui;fill:var(--soft)}"
    ".bar{width:14rem;padding:0}.bar i{display:block;height:.7rem;background:var(--a)}"
    ".mesh td{border:1px solid var(--line);text-align:center}"
    "pre{white-space:pre-wrap;border:1px solid var(--line);border-radius:6px;padding:.8rem}"
    "</style></head><body>\n";

/* Bytes of the UTF-8 character at text, or 0 if there is none: a model may write any bytes. */
static size_t character(const char *text, size_t left)
{
    unsigned char c = (unsigned char)text[0];
    size_t n = c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : c >= 0xe0 && c < 0xf0 ? 3 : 0;
    if (c >= 0xf0 && c < 0xf5) n = 4;
    if (n == 0 || n > left) return 0;
    for (size_t i = 1; i < n; i++)
        if (((unsigned char)text[i] & 0xc0) != 0x80) return 0;
    return n;
}

static void escape(tsi_text *out, const char *text, size_t length)
{
    for (size_t i = 0; i < length;) {
        size_t n = character(text + i, length - i);
        unsigned char c = (unsigned char)text[i];
        if (n == 0 || (c < 32 && c != '\n' && c != '\t'))
            tsi_text_add(out, "\xef\xbf\xbd");
        else if (c == '&')
            tsi_text_add(out, "&amp;");
        else if (c == '<')
            tsi_text_add(out, "&lt;");
        else if (c == '>')
            tsi_text_add(out, "&gt;");
        else
            tsi_text_add_n(out, text + i, n);
        i += n > 0 ? n : 1;
    }
}

/* ---- curves ---------------------------------------------------------------------------------- */

typedef double (*value_fn)(const ts_train_step *step);

static double loss_of(const ts_train_step *step)
{
    return step->loss;
}
static double speed_of(const ts_train_step *step)
{
    return step->tokens_per_second;
}
static double rate_of(const ts_train_step *step)
{
    return step->rate;
}
static double norm_of(const ts_train_step *step)
{
    return step->norm;
}

/* The mean of point p of `points`, of what is finite; NaN: nothing is. */
static double mean_of(const tsi_history *h, value_fn value, int64_t p, int64_t points)
{
    int64_t from = p * h->count / points, to = (p + 1) * h->count / points, finite = 0;
    double sum = 0;
    for (int64_t i = from; i < to; i++) {
        double v = value(&h->step[i]);
        if (!isfinite(v)) continue;
        sum += v;
        finite++;
    }
    return finite > 0 ? sum / (double)finite : (double)NAN;
}

static void axis_labels(tsi_text *out, double low, double high, int64_t steps)
{
    for (int i = 0; i <= 4; i++) {
        double y = (HEIGHT - BOTTOM) * (1.0 - i / 4.0) * 0.94 + 8,
               value = low + (high - low) * i / 4;
        tsi_text_printf(out,
                        "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"var(--line)\"/>"
                        "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>",
                        LEFT, WIDTH, y, y, LEFT - 6, y + 4, value);
    }
    tsi_text_printf(out,
                    "<text x=\"%d\" y=\"%d\">step 1</text><text x=\"%d\" y=\"%d\" "
                    "text-anchor=\"end\">%lld</text>",
                    LEFT, HEIGHT - 4, WIDTH, HEIGHT - 4, (long long)steps);
}

static void curve(tsi_text *out, const char *title, const tsi_history *h, value_fn value)
{
    int64_t points = h->count < POINTS ? h->count : POINTS;
    if (points == 0) return;
    double low = INFINITY, high = -INFINITY;
    for (int64_t p = 0; p < points; p++) {
        double v = mean_of(h, value, p, points);
        low = fmin(low, v);
        high = fmax(high, v);
    }
    if (low > high) return;
    if (low > 0 && low < 0.5 * high) low = 0;
    if (high <= low) high = low + 1;
    tsi_text_printf(out, "<h2>%s</h2><svg viewBox=\"0 0 %d %d\" role=\"img\">", title, WIDTH,
                    HEIGHT);
    axis_labels(out, low, high, h->step[h->count - 1].step);
    tsi_text_add(out, "<polyline fill=\"none\" stroke=\"var(--a)\" stroke-width=\"1.6\" points=\"");
    for (int64_t p = 0; p < points; p++) {
        double x = points > 1 ? (double)p / (double)(points - 1) : 0.5;
        double y = (mean_of(h, value, p, points) - low) / (high - low);
        if (!isfinite(y)) continue;
        tsi_text_printf(out, "%.1f,%.1f ", LEFT + (WIDTH - LEFT) * x,
                        (HEIGHT - BOTTOM) * (1.0 - y) * 0.94 + 8);
    }
    tsi_text_add(out, "\"/></svg>\n");
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void summary(tsi_text *out, const tsi_run *run, const ts_train_result *result)
{
    const ts_train_plan *p = &run->plan;
    char bytes[32];
    int64_t here = result->step - p->step_first;
    double speed = run->seconds > 0 ? (double)(here * p->tokens_per_step) / run->seconds : 0;
    tsi_text_printf(out, "<h1>tessera train: %lld of %lld steps%s</h1><table>",
                    (long long)result->step, (long long)p->steps,
                    result->stopped ? ", stopped" : "");
    tsi_text_printf(out, "<tr><td>loss</td><td>%.4f</td></tr>", result->loss);
    tsi_text_printf(out, "<tr><td>parameters</td><td>%lld</td></tr>", (long long)p->parameters);
    tsi_text_printf(out, "<tr><td>tokens of a step</td><td>%lld (%lld rows of %lld)</td></tr>",
                    (long long)p->tokens_per_step, (long long)p->rows, (long long)p->context);
    tsi_text_printf(out, "<tr><td>speed</td><td>%.0f tokens/s, %.2f GFLOP/s</td></tr>", speed,
                    speed * p->flops_per_token * 1e-9);
    tsi_text_printf(out, "<tr><td>time</td><td>%.1f s in this process</td></tr>", run->seconds);
    tsi_text_printf(out, "<tr><td>memory</td><td>%s, the largest of any rank</td></tr></table>\n",
                    tsi_text_bytes(bytes, sizeof bytes,
                                   run->history.count > 0
                                       ? run->history.step[run->history.count - 1].memory_bytes
                                       : 0));
}

static void phases(tsi_text *out, const tsi_measures *m)
{
    static const char *const names[TSI_PHASE_COUNT] = { "data", "forward", "backward",
                                                        "norm", "update",  "other" };
    double total = 0;
    for (int i = 0; i < TSI_PHASE_COUNT; i++)
        total += m->phase[i];
    tsi_text_add(
        out,
        "<h2>Time of rank 0 by phase</h2><table><tr><th>phase</th><th>s</th><th>share</th></tr>");
    for (int i = 0; i < TSI_PHASE_COUNT; i++)
        tsi_text_printf(out, "<tr><td>%s</td><td>%.2f</td><td>%.1f %%</td></tr>", names[i],
                        m->phase[i], total > 0 ? 100 * m->phase[i] / total : 0.0);
    double in_op = (double)m->times.op_ns * 1e-9, in_comm = (double)m->times.comm_ns * 1e-9;
    tsi_text_printf(out,
                    "</table><p>Of %.2f s: %.2f s in operators, %.2f s in communication.</p>\n",
                    total, in_op, in_comm);
}

/* The largest first, at most `most` rows, with a bar; the table is small. */
static void times(tsi_text *out, const char *what, const ts_time *row, int64_t count, int64_t most)
{
    bool shown[TS_TIMES_MAX] = { false };
    int64_t total = 1;
    for (int64_t i = 0; i < count; i++)
        total += row[i].own_ns;
    tsi_text_printf(out,
                    "<h2>Time of rank 0 by %s</h2><table><tr><th>%s</th><th>calls</th><th>s</th>"
                    "<th>share</th></tr>",
                    what, what);
    for (int64_t n = 0; n < count && n < most; n++) {
        int64_t best = -1;
        for (int64_t i = 0; i < count; i++)
            if (!shown[i] && (best < 0 || row[i].own_ns > row[best].own_ns)) best = i;
        shown[best] = true;
        double share = (double)row[best].own_ns / (double)total;
        tsi_text_add(out, "<tr><td>");
        escape(out, row[best].name[0] ? row[best].name : "(no name)",
               row[best].name[0] ? strlen(row[best].name) : 9);
        tsi_text_printf(out,
                        "</td><td>%lld</td><td>%.3f</td><td>%.1f %%</td><td class=\"bar\"><i "
                        "style=\"width:%.1f%%\"></i></td></tr>",
                        (long long)row[best].count, (double)row[best].own_ns * 1e-9, 100 * share,
                        100 * share);
    }
    tsi_text_add(out, "</table>\n");
}

static void communication(tsi_text *out, const ts_counts *counts)
{
    char bytes[32];
    tsi_text_add(out, "<h2>Communication of rank 0 by kind</h2><table><tr><th>kind</th>"
                      "<th>operations</th><th>received</th><th>s</th></tr>");
    for (int64_t i = 0; i < counts->row_count; i++)
        tsi_text_printf(out, "<tr><td>%s</td><td>%lld</td><td>%s</td><td>%.3f</td></tr>",
                        counts->row[i].kind, (long long)counts->row[i].count,
                        tsi_text_bytes(bytes, sizeof bytes, counts->row[i].bytes),
                        (double)counts->row[i].time_ns * 1e-9);
    tsi_text_add(out, "</table>");
    if (counts->lost > 0)
        tsi_text_printf(out, "<p>%lld events were overwritten before they could be counted.</p>",
                        (long long)counts->lost);
    tsi_text_add(out, "\n");
}

/* The last axis runs across, all others down. */
static void mesh(tsi_text *out, const tsi_run *run)
{
    int32_t ndim = ts_mesh_ndim(run->mesh);
    int64_t size = ts_mesh_size(run->mesh, NULL);
    int64_t across = ndim > 0 ? ts_mesh_axis_size(run->mesh, ndim - 1) : 1;
    tsi_text_add(out, "<h2>Mesh</h2><p>");
    escape(out, run->mesh_text, strlen(run->mesh_text));
    tsi_text_printf(out, "; plan %s; engine %s</p><table class=\"mesh\">",
                    run->plan.plan[0] ? run->plan.plan : "", run->plan.engine);
    for (int64_t i = 0; i < size && i < 4096; i++) {
        int64_t coord[TS_NDIM_MAX] = { 0 }, rest = i;
        for (int32_t a = ndim - 1; a >= 0; a--) {
            coord[a] = rest % ts_mesh_axis_size(run->mesh, a);
            rest /= ts_mesh_axis_size(run->mesh, a);
        }
        tsi_text_printf(out, "%s<td>rank %lld</td>%s", i % across == 0 ? "<tr>" : "",
                        (long long)ts_mesh_rank_at(run->mesh, coord),
                        i % across == across - 1 ? "</tr>" : "");
    }
    tsi_text_add(out, "</table>\n");
}

static void configuration(tsi_text *out, const ts_train_config *config)
{
    size_t length = ts_train_config_text(config, NULL, 0);
    char *text = tsi_alloc(length + 1);
    if (!text) return;
    ts_train_config_text(config, text, length + 1);
    tsi_text_add(out, "<details><summary>Configuration</summary><pre>");
    escape(out, text, length);
    tsi_text_add(out, "</pre></details></body></html>\n");
    tsi_free(text);
}

ts_status tsi_report_write(const tsi_run *run, const ts_train_result *result)
{
    tsi_text out = { 0 };
    tsi_text_add(&out, head);
    summary(&out, run, result);
    curve(&out, "Loss", &run->history, loss_of);
    curve(&out, "Tokens per second", &run->history, speed_of);
    curve(&out, "Total norm of the gradients", &run->history, norm_of);
    curve(&out, "Learning rate", &run->history, rate_of);
    if (result->sample.length > 0) {
        tsi_text_add(&out, "<h2>Sample</h2><pre>");
        escape(&out, result->sample.data, result->sample.length);
        tsi_text_add(&out, "</pre>");
    }
    phases(&out, &run->measures);
    const ts_times *t = &run->measures.times;
    times(&out, "module", t->module, t->module_count, 64);
    times(&out, "operator", t->op, t->op_count, 20);
    communication(&out, &run->measures.counts);
    mesh(&out, run);
    configuration(&out, run->config);
    size_t length = out.length;
    char *text = tsi_text_take(&out);
    if (!text) return TS_ERR_MEMORY;
    FILE *file = fopen(result->report, "wb");
    bool good = file && fwrite(text, 1, length, file) == length;
    if (file && fclose(file) != 0) good = false;
    tsi_free(text);
    return good ? TS_OK : TSI_FAIL(TS_ERR_IO, "%s: %s", result->report, strerror(errno));
}
