/* SPDX-License-Identifier: Apache-2.0 */
/* report.c - the page of a run: one HTML file, no scripts, no network, light and dark.
 *
 * Curves are inline SVG in a box of WIDTH x HEIGHT with round numbers at the side; long runs are
 * drawn with at most POINTS points, each the mean of its steps. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "train/run.h"

enum { WIDTH = 480, HEIGHT = 240, LEFT = 52, TOP = 8, BOTTOM = 24, POINTS = 400, TICKS = 5 };

static const char head[] =
    "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">"
    "<meta name=\"viewport\" content=\"width=device-width\"><title>tessera train</title><style>"
    ":root{color-scheme:light dark;--line:#8883;--a:#2563eb;--b:#d97706;--c:#9ca3af;--soft:#777;"
    "--card:#8881}"
    "@media(prefers-color-scheme:dark){:root{--a:#7aa2ff;--b:#fbbf24;--c:#6b7280;--soft:#aaa}}"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem}"
    "h1{font-size:1.5rem;margin:0 0 1rem}h2{font-size:1.05rem;margin:2rem 0 .5rem}"
    ".tiles,.curves{display:grid;gap:.8rem}"
    ".tiles{grid-template-columns:repeat(auto-fit,minmax(13rem,1fr))}"
    ".curves{grid-template-columns:repeat(auto-fit,minmax(min(24rem,100%),1fr))}"
    ".tiles div,.curves figure{background:var(--card);border-radius:8px;padding:.7rem "
    ".9rem;margin:0}"
    ".tiles b{display:block;font-size:1.25rem;font-variant-numeric:tabular-nums}"
    ".tiles span,figcaption{color:var(--soft);font-size:.85rem}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.2rem .8rem;"
    "text-align:right;border-bottom:1px solid var(--line)}td:first-child,th:first-child{"
    "text-align:left;padding-left:0}th{color:var(--soft);font-weight:500}"
    "svg{width:100%;height:auto;display:block}svg text{font:11px system-ui;fill:var(--soft)}"
    ".bar{width:14rem;padding:0}.bar i{display:block;height:.7rem;background:var(--a);"
    "border-radius:2px}"
    ".stack{display:flex;height:1.1rem;border-radius:4px;overflow:hidden;margin:.6rem 0 .2rem}"
    ".stack i:nth-child(1){background:var(--a)}.stack i:nth-child(2){background:var(--b)}"
    ".stack i:nth-child(3){background:var(--c)}.legend i{display:inline-block;width:.7rem;"
    "height:.7rem;border-radius:2px;margin:0 .4rem 0 1rem}.legend i:first-child{margin-left:0}"
    ".mesh td,.mesh th{border:1px solid var(--line);text-align:center;padding:.5rem 1rem}"
    ".mesh th{border:0}"
    "@media(max-width:48rem){table{display:block;overflow-x:auto}td,th{padding:.2rem .5rem;"
    "white-space:nowrap}.bar{width:7rem;min-width:5rem}}"
    "pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--card);border-radius:8px;"
    "padding:.8rem 1rem}"
    "</style></head><body>\n";

size_t tsi_utf8_character(const char *text, size_t left)
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
        size_t n = tsi_utf8_character(text + i, length - i);
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
static double held_out_of(const ts_train_step *step)
{
    return step->eval_loss;
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

/* A round distance of about TICKS lines in a range: 1, 2 or 5 times a power of ten. */
static double tick_of(double range)
{
    double rough = range / TICKS, power = pow(10, floor(log10(rough))), share = rough / power;
    return power * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10);
}

/* "0.02", "1.5", "12k": as short as a round number is. */
static void tick_text(tsi_text *out, double value)
{
    if (fabs(value) >= 1e6)
        tsi_text_printf(out, "%gM", value / 1e6);
    else if (fabs(value) >= 1e4)
        tsi_text_printf(out, "%gk", value / 1e3);
    else
        tsi_text_printf(out, "%.6g", fabs(value) < 1e-12 ? 0.0 : value);
}

typedef struct frame { /* values to places */
    double low, high;
} frame;

static double y_of(const frame *f, double value)
{
    return TOP + (HEIGHT - BOTTOM - TOP) * (1.0 - (value - f->low) / (f->high - f->low));
}

static void grid(tsi_text *out, const frame *f, double tick, int64_t first, int64_t last)
{
    for (double v = f->low; v <= f->high + tick / 2; v += tick) {
        double y = y_of(f, v);
        tsi_text_printf(out,
                        "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" "
                        "stroke=\"var(--line)\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">",
                        LEFT, WIDTH, y, y, LEFT - 6, y + 4);
        tick_text(out, v);
        tsi_text_add(out, "</text>");
    }
    tsi_text_printf(out,
                    "<text x=\"%d\" y=\"%d\">step %lld</text><text x=\"%d\" y=\"%d\" "
                    "text-anchor=\"end\">%lld</text>",
                    LEFT, HEIGHT - 6, (long long)first, WIDTH, HEIGHT - 6, (long long)last);
}

static void curve(tsi_text *out, const char *title, const tsi_history *h, value_fn value)
{
    int64_t points = h->count < POINTS ? h->count : POINTS;
    frame f = { INFINITY, -INFINITY };
    for (int64_t p = 0; p < points; p++) {
        double v = mean_of(h, value, p, points);
        f.low = fmin(f.low, v);
        f.high = fmax(f.high, v);
    }
    if (f.low > f.high) return;
    if (f.low > 0 && f.low < 0.5 * f.high) f.low = 0;
    if (f.high <= f.low) f.high = f.low + 1;
    double tick = tick_of(f.high - f.low);
    f.low = floor(f.low / tick) * tick;
    f.high = ceil(f.high / tick) * tick;
    tsi_text_printf(out,
                    "<figure><figcaption>%s</figcaption><svg viewBox=\"0 0 %d %d\" role=\"img\" "
                    "aria-label=\"%s\">",
                    title, WIDTH, HEIGHT, title);
    grid(out, &f, tick, h->step[0].step, h->step[h->count - 1].step);
    tsi_text_add(out, "<polyline fill=\"none\" stroke=\"var(--a)\" stroke-width=\"1.6\" "
                      "stroke-linejoin=\"round\" points=\"");
    for (int64_t p = 0; p < points; p++) {
        double x = points > 1 ? (double)p / (double)(points - 1) : 0.5;
        double v = mean_of(h, value, p, points);
        if (isfinite(v)) tsi_text_printf(out, "%.1f,%.1f ", LEFT + (WIDTH - LEFT) * x, y_of(&f, v));
    }
    tsi_text_add(out, "\"/></svg></figure>\n");
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void tile(tsi_text *out, const char *name, const char *value)
{
    tsi_text_add(out, "<div><b>");
    escape(out, value, strlen(value));
    tsi_text_printf(out, "</b><span>%s</span></div>", name);
}

/* "12.3 k" */
static const char *amount(char *buffer, size_t size, double value)
{
    static const char *const suffix[] = { "", " k", " M", " G", " T", " P" };
    size_t i = 0;
    for (; value >= 1000 && i < 5; i++)
        value /= 1000;
    snprintf(buffer, size, "%.3g%s", value, suffix[i]);
    return buffer;
}

static void summary(tsi_text *out, const tsi_run *run, const ts_train_result *result)
{
    const ts_train_plan *p = &run->plan;
    const tsi_history *h = &run->history;
    char text[64];
    int64_t here = result->step - p->step_first;
    double speed = run->seconds > 0 ? (double)(here * p->tokens_per_step) / run->seconds : 0;
    tsi_text_printf(out, "<h1>tessera train: %lld of %lld steps%s</h1><div class=\"tiles\">",
                    (long long)result->step, (long long)p->steps,
                    result->stopped ? ", stopped" : "");
    snprintf(text, sizeof text, "%.4f", result->loss);
    tile(out, "loss of the last step", text);
    tile(out, "tokens/s", amount(text, sizeof text, speed));
    tile(out, "model FLOP/s", amount(text, sizeof text, speed * p->flops_per_token));
    tile(out, "parameters", amount(text, sizeof text, (double)p->parameters));
    tile(out, "tokens seen",
         amount(text, sizeof text, (double)(result->step * p->tokens_per_step)));
    snprintf(text, sizeof text, "%lld x %lld", (long long)p->rows, (long long)p->context);
    tile(out, "rows x tokens of a step", text);
    snprintf(text, sizeof text, "%.1f s", run->seconds);
    tile(out, "time in this process", text);
    tile(out, "memory, the most of any rank",
         tsi_text_bytes(text, sizeof text, h->count > 0 ? h->step[h->count - 1].memory_bytes : 0));
    tsi_text_add(out, "</div>\n");
}

/* Where the thread of rank 0 was: operators, communication, and between them. */
static void shares(tsi_text *out, const tsi_measures *m, double total)
{
    double op = (double)m->times.op_ns * 1e-9, comm = (double)m->times.comm_ns * 1e-9;
    double rest = total - op - comm > 0 ? total - op - comm : 0;
    double all = op + comm + rest > 0 ? op + comm + rest : 1;
    tsi_text_printf(out,
                    "<div class=\"stack\"><i style=\"width:%.1f%%\"></i><i style=\"width:%.1f%%\">"
                    "</i><i style=\"width:%.1f%%\"></i></div>",
                    100 * op / all, 100 * comm / all, 100 * rest / all);
    tsi_text_printf(out,
                    "<p class=\"legend\"><i style=\"background:var(--a)\"></i>operators %.2f s"
                    "<i style=\"background:var(--b)\"></i>communication and waiting %.2f s"
                    "<i style=\"background:var(--c)\"></i>dispatch and the rest %.2f s</p>",
                    op, comm, rest);
}

static void phases(tsi_text *out, const tsi_measures *m)
{
    static const char *const names[TSI_PHASE_COUNT] = { "data", "forward", "backward",
                                                        "norm", "update",  "other" };
    double total = 0;
    for (int i = 0; i < TSI_PHASE_COUNT; i++)
        total += m->phase[i];
    tsi_text_add(out, "<h2>Time of rank 0</h2>");
    shares(out, m, total);
    tsi_text_add(out, "<table><tr><th>phase</th><th>s</th><th>share</th></tr>");
    for (int i = 0; i < TSI_PHASE_COUNT; i++) {
        double share = total > 0 ? 100 * m->phase[i] / total : 0.0;
        tsi_text_printf(out,
                        "<tr><td>%s</td><td>%.2f</td><td>%.1f %%</td><td class=\"bar\"><i "
                        "style=\"width:%.1f%%\"></i></td></tr>",
                        names[i], m->phase[i], share, share);
    }
    tsi_text_add(out, "</table>\n");
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
        const char *name = row[best].name[0] ? row[best].name : "outside the layers";
        escape(out, name, strlen(name));
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

static void memory_row(tsi_text *out, const char *what, int64_t planned, int64_t held)
{
    char a[32], b[32];
    tsi_text_printf(out, "<tr><td>%s</td><td>%s</td><td>%s</td></tr>", what,
                    tsi_text_bytes(a, sizeof a, planned), tsi_text_bytes(b, sizeof b, held));
}

/* What was planned before the first step beside what was held, kind by kind. */
static void memory(tsi_text *out, const tsi_run *run)
{
    const ts_memory *plan = &run->planned, *held = &run->measures.memory;
    tsi_text_add(out, "<h2>Memory of rank 0</h2><table><tr><th>at most</th><th>planned</th>"
                      "<th>held</th></tr>");
    for (int k = 0; k < TS_MEMORY_KINDS; k++)
        if (plan->most[k] > 0 || held->most[k] > 0)
            memory_row(out, ts_memory_kind_name((ts_memory_kind)k), plan->most[k], held->most[k]);
    memory_row(out, "the largest moment", plan->peak, held->peak);
    tsi_text_add(out,
                 "</table><p>Kinds have their largest moments at different times. What kernels "
                 "use while they run (transient) is planned on the host alone.");
    if (run->config->parallel.ep > 1)
        tsi_text_add(out, " How many rows come to the experts of a rank is known of numbers alone: "
                          "a plan gives each an even share, and activations are more or fewer.");
    tsi_text_add(out, "</p>\n");
}

/* The last axis runs across, all others down. */
static void mesh(tsi_text *out, const tsi_run *run)
{
    int32_t ndim = ts_mesh_ndim(run->mesh);
    int64_t size = ts_mesh_size(run->mesh, NULL);
    int64_t across = ndim > 0 ? ts_mesh_axis_size(run->mesh, ndim - 1) : 1;
    tsi_text_add(out, "<h2>Mesh</h2><p>");
    escape(out, run->mesh_text, strlen(run->mesh_text));
    tsi_text_printf(out, "; plan %s; engine %s; device ", run->plan.plan[0] ? run->plan.plan : "",
                    run->plan.engine);
    escape(out, run->plan.device, strlen(run->plan.device));
    tsi_text_add(out, "</p><table class=\"mesh\"><tr><th></th>");
    for (int64_t i = 0; ndim > 0 && i < across && i < 4096; i++)
        tsi_text_printf(out, "<th>%s %lld</th>", ts_mesh_axis_name(run->mesh, ndim - 1),
                        (long long)i);
    for (int64_t i = 0; i < size && i < 4096; i++) {
        int64_t coord[TS_NDIM_MAX] = { 0 }, rest = i;
        for (int32_t a = ndim - 1; a >= 0; a--) {
            coord[a] = rest % ts_mesh_axis_size(run->mesh, a);
            rest /= ts_mesh_axis_size(run->mesh, a);
        }
        if (i % across == 0) tsi_text_add(out, "</tr><tr><th>");
        for (int32_t a = 0; i % across == 0 && a < ndim - 1; a++)
            tsi_text_printf(out, "%s%s %lld", a > 0 ? ", " : "", ts_mesh_axis_name(run->mesh, a),
                            (long long)coord[a]);
        tsi_text_printf(out, "%s<td>rank %lld</td>", i % across == 0 ? "</th>" : "",
                        (long long)ts_mesh_rank_at(run->mesh, coord));
    }
    tsi_text_add(out, "</tr></table>\n");
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
    tsi_text_add(&out, "<h2>Steps</h2><div class=\"curves\">");
    curve(&out, "loss", &run->history, loss_of);
    curve(&out, "loss of held-out rows", &run->history, held_out_of);
    curve(&out, "tokens per second", &run->history, speed_of);
    curve(&out, "total norm of the gradients, before clipping", &run->history, norm_of);
    curve(&out, "learning rate", &run->history, rate_of);
    tsi_text_add(&out, "</div>\n");
    if (result->sample.length > 0) {
        tsi_text_add(&out, "<h2>Sample</h2><pre>");
        escape(&out, result->sample.data, result->sample.length);
        tsi_text_add(&out, "</pre>");
    }
    tsi_report_prediction(&out, run);
    tsi_report_gantt(&out, run);
    phases(&out, &run->measures);
    const ts_times *t = &run->measures.times;
    times(&out, "module", t->module, t->module_count, 64);
    times(&out, "operator", t->op, t->op_count, 20);
    tsi_report_stages(&out, run);
    communication(&out, &run->measures.counts);
    tsi_report_traffic(&out, run);
    tsi_report_ranks(&out, run);
    tsi_report_busy(&out, run);
    tsi_report_curves(&out, run);
    memory(&out, run);
    tsi_report_peak(&out, run);
    mesh(&out, run);
    tsi_report_layout(&out, run);
    configuration(&out, run->config);
    size_t length = out.length;
    char *text = tsi_text_take(&out);
    if (!text) return TS_ERR_MEMORY;
    ts_status status = tsi_file_replace(result->report, text, length);
    tsi_free(text);
    return status;
}
