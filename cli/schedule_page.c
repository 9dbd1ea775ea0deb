/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_page.c - schedules as a drawing and as a page: who computes when, the idle time between,
 * and below each rank what it keeps. The page answers the mouse. */
#include <stdlib.h>

#include "html.h"
#include "schedule.h"

enum { ROOM = 1000, LEFT = 70, TALL = 22, LINE = 16, GAP = 8, TOP = 44 };

static const char *const kind_fill[] = { [TS_CELL_IDLE] = "none",
                                         [TS_CELL_FORWARD] = "#8ab8f0",
                                         [TS_CELL_BACKWARD] = "#8fd19e",
                                         [TS_CELL_INPUT] = "#f2b48a",
                                         [TS_CELL_WEIGHT] = "#c9b0ea" };

static bool computes(const ts_cell *cell)
{
    return cell->kind >= TS_CELL_FORWARD && cell->kind <= TS_CELL_WEIGHT;
}

/* ---- the drawing ----------------------------------------------------------------------------- */

static void put_bar(const schedule_case *c, int64_t rank, int64_t index, double scale, double top,
                    FILE *out)
{
    ts_cell cell = ts_schedule_cell(c->schedule, rank, index);
    double begin = c->begin[c->first[rank] + index], end = c->end[c->first[rank] + index];
    char text[48];
    if (!computes(&cell)) return;
    ts_cell_text(&cell, text, sizeof text);
    fprintf(out,
            "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%d\" fill=\"%s\" "
            "stroke=\"#0004\"%s><title>%s on rank %lld: %.6g to %.6g</title></rect>\n",
            LEFT + begin * scale, top, (end - begin) * scale, TALL, kind_fill[cell.kind],
            cell.joined ? " stroke-width=\"2\"" : "", text, (long long)rank, begin, end);
    if ((end - begin) * scale >= 24)
        fprintf(out, "<text x=\"%.2f\" y=\"%.2f\">%s</text>\n", LEFT + (begin + end) / 2 * scale,
                top + TALL - 7, text);
}

/* Kept from a forward's begin to the end of the weight gradient. */
static void put_memory(const schedule_case *c, int64_t rank, double scale, double top, FILE *out)
{
    double kept = 0, high = c->times.peak > 0 ? LINE / c->times.peak : 0;
    fprintf(out, "<path class=\"m\" d=\"M%d %.2f", LEFT, top + LINE);
    for (int64_t i = 0; i < ts_schedule_count(c->schedule, rank); i++) {
        ts_cell cell = ts_schedule_cell(c->schedule, rank, i);
        int64_t n = c->first[rank] + i;
        bool forward = cell.kind == TS_CELL_FORWARD;
        if (!forward && cell.kind != TS_CELL_BACKWARD && cell.kind != TS_CELL_WEIGHT) continue;
        kept += forward ? schedule_memory(c, cell.stage) : -schedule_memory(c, cell.stage);
        fprintf(out, "H%.2fV%.2f", LEFT + (forward ? c->begin[n] : c->end[n]) * scale,
                top + LINE - kept * high);
    }
    fprintf(out, "\"><title>rank %lld keeps at most %.6g</title></path>\n", (long long)rank,
            c->peak[rank]);
}

static double drawing_height(const schedule_case *c)
{
    return TOP + (double)ts_schedule_ranks(c->schedule) * (TALL + LINE + GAP);
}

/* `longest`: the makespan that is as wide as there is room, so that several can be compared. */
static void put_drawing(const schedule_case *c, double longest, double top, FILE *out)
{
    double scale = longest > 0 ? ROOM / longest : 1;
    fprintf(out, "<text class=\"t\" x=\"0\" y=\"%.2f\">", top + 16);
    html_text(out, c->name);
    fprintf(out, ": makespan %.6g, bubble %.6g (%.1f %%), kept at once %.6g</text>\n",
            c->times.makespan, c->times.bubble, 100 * c->times.fraction, c->times.peak);
    for (int64_t r = 0; r < ts_schedule_ranks(c->schedule); r++) {
        double y = top + 26 + (double)r * (TALL + LINE + GAP);
        fprintf(out, "<text class=\"t\" x=\"0\" y=\"%.2f\">rank %lld</text>\n", y + TALL - 6,
                (long long)r);
        fprintf(out, "<rect x=\"%d\" y=\"%.2f\" width=\"%.2f\" height=\"%d\" class=\"b\"/>\n", LEFT,
                y, c->times.makespan * scale, TALL);
        for (int64_t i = 0; i < ts_schedule_count(c->schedule, r); i++)
            put_bar(c, r, i, scale, y, out);
        put_memory(c, r, scale, y + TALL, out);
    }
}

static void put_all(const schedule_case *c, int64_t count, FILE *out)
{
    double height = 0, longest = 0;
    for (int64_t i = 0; i < count; i++) {
        height += drawing_height(&c[i]);
        if (c[i].times.makespan > longest) longest = c[i].times.makespan;
    }
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" "
            "viewBox=\"0 0 %d %.0f\">\n<style>text{font:11px ui-monospace,Menlo,Consolas,"
            "monospace;text-anchor:middle;fill:#20242a;pointer-events:none}"
            ".t{text-anchor:start;fill:#7a828e}.b{fill:#8884}"
            ".m{fill:none;stroke:#d9480f;stroke-width:1.5}</style>\n",
            LEFT + ROOM + 10, height, LEFT + ROOM + 10, height);
    for (int64_t i = 0, top = 0; i < count; i++) {
        put_drawing(&c[i], longest, (double)top, out);
        top += (int64_t)drawing_height(&c[i]);
    }
    fputs("</svg>\n", out);
}

int schedule_write_svg(const schedule_case *c, int64_t count, const char *path)
{
    FILE *out = html_open("schedule", "svg", path);
    if (out == NULL) return 1;
    put_all(c, count, out);
    return html_close("schedule", path, out);
}

/* ---- the page -------------------------------------------------------------------------------- */

/* clang-format off */
static const char *const style[] = {
"#tip { position: fixed; pointer-events: none; background: var(--ink); color: var(--paper);",
"  padding: 6px 10px; border-radius: 7px; font-size: 13px; display: none; z-index: 2; }",
"svg rect:hover { stroke: var(--mark); stroke-width: 2; }",
".key i { margin-left: 14px; }",
    NULL
};

static const char *const script[] = {
"const tip = document.getElementById('tip');",
"for (const e of document.querySelectorAll('svg rect, svg path')) {",
"  const title = e.querySelector('title');",
"  if (!title) continue;",
"  const text = title.textContent;",
"  title.remove();",
"  e.addEventListener('mousemove', at => {",
"    tip.textContent = text;",
"    tip.style.display = 'block';",
"    tip.style.left = Math.min(at.clientX + 14, innerWidth - tip.offsetWidth - 8) + 'px';",
"    tip.style.top = at.clientY + 16 + 'px';",
"  });",
"  e.addEventListener('mouseleave', () => { tip.style.display = 'none'; });",
"}",
    NULL
};
/* clang-format on */

static void put_table(const schedule_case *c, int64_t count, FILE *out)
{
    fputs("<div class=\"card scroll\"><table><tr><th>schedule</th><th class=\"n\">ranks</th>"
          "<th class=\"n\">stages</th><th class=\"n\">micro-batches</th>"
          "<th class=\"n\">makespan</th><th class=\"n\">bubble</th><th class=\"n\">%</th>"
          "<th class=\"n\">kept at once</th><th class=\"n\">bound</th></tr>\n",
          out);
    for (int64_t i = 0; i < count; i++) {
        fputs("<tr><td>", out);
        html_text(out, c[i].name);
        fprintf(out,
                "</td><td class=\"n\">%lld</td><td class=\"n\">%lld</td><td class=\"n\">%lld</td>"
                "<td class=\"n\">%.6g</td><td class=\"n\">%.6g</td><td class=\"n\">%.1f</td>"
                "<td class=\"n\">%.6g</td>",
                (long long)ts_schedule_ranks(c[i].schedule),
                (long long)ts_schedule_stages(c[i].schedule),
                (long long)ts_schedule_micro_batches(c[i].schedule), c[i].times.makespan,
                c[i].times.bubble, 100 * c[i].times.fraction, c[i].times.peak);
        if (c[i].bound > 0)
            fprintf(out, "<td class=\"n\">%.6g</td></tr>\n", c[i].bound);
        else
            fputs("<td></td></tr>\n", out);
    }
    fputs("</table></div>\n", out);
}

int schedule_write_html(const schedule_case *c, int64_t count, const char *path)
{
    FILE *out = html_open("schedule", "html", path);
    if (out == NULL) return 1;
    ts_json_writer data = { 0 };
    ts_json_put_open(&data, '{');
    ts_json_put_member_int(&data, "schedules", count);
    ts_json_put_close(&data, '}');
    html_begin(out, "Pipeline schedules", style);
    fputs("<h1>Pipeline schedules</h1>\n<p class=\"soft key\">", out);
    static const char *const words[] = { [TS_CELL_FORWARD] = "forward (F)",
                                         [TS_CELL_BACKWARD] = "backward (B)",
                                         [TS_CELL_INPUT] = "gradient of inputs (I)",
                                         [TS_CELL_WEIGHT] = "gradient of weights (W)" };
    for (int k = TS_CELL_FORWARD; k <= TS_CELL_WEIGHT; k++)
        fprintf(out, "<i class=\"swatch\" style=\"background:%s\"></i>%s", kind_fill[k], words[k]);
    fputs("; grey: idle; the line below a rank: what it keeps.</p>\n", out);
    put_table(c, count, out);
    fputs("<h2>Time goes to the right</h2>\n<div class=\"card scroll\">\n", out);
    put_all(c, count, out);
    fputs("</div>\n<div id=\"tip\"></div>\n", out);
    html_end(out, &data, script);
    ts_json_writer_release(&data);
    return html_close("schedule", path, out);
}
