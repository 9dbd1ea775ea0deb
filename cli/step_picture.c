/* SPDX-License-Identifier: Apache-2.0 */
/* step_picture.c - a program drawn: time goes to the right, a line for each queue of a rank.
 *
 *   rank 0 main   fffff--bbbbbbbbb   what computes most in that time; - waits
 *          comm   =====  =======     moves something
 *          held   ..-==##            memory, of the most that any rank holds
 *
 * Letters of what is on the critical path are capitals. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "html.h"
#include "step.h"

enum { WIDE = 80, ROOM = 1000, SIDE = 150, TALL = 16, GAP = 6, TOP = 30 };

/* Bars of one rank are neighbours. */
static int64_t rank_end(const step_bars *bars, int64_t first)
{
    int64_t i = first;
    while (i < bars->count && bars->bar[i].rank == bars->bar[first].rank &&
           (i == first || bars->bar[i].index > bars->bar[i - 1].index))
        i++;
    return i;
}

static bool takes_time(const ts_program_bar *bar)
{
    return !bar->waits && bar->end_us > bar->begin_us;
}

/* ---- the terminal ---------------------------------------------------------------------------- */

/* What is done longest within a cell of time. */
static char letter_at(const step_bars *bars, int64_t first, int64_t end, const char *queue,
                      double from, double to)
{
    double most = 0;
    const ts_program_bar *found = NULL;
    for (int64_t i = first; i < end; i++) {
        const ts_program_bar *bar = &bars->bar[i];
        if (strcmp(bar->queue, queue) != 0 || !takes_time(bar)) continue;
        double a = bar->begin_us > from ? bar->begin_us : from;
        double b = bar->end_us < to ? bar->end_us : to;
        if (b - a <= most) continue;
        most = b - a;
        found = bar;
    }
    if (found == NULL) return strcmp(queue, "main") == 0 ? '-' : ' ';
    if (found->communicates) return found->critical ? '#' : '=';
    char letter = found->kind[0];
    return (char)(found->critical ? toupper((unsigned char)letter) : letter);
}

static void put_row(const step_bars *bars, int64_t first, int64_t end, const char *queue, FILE *out)
{
    double cell = bars->times.makespan_us / WIDE;
    for (int i = 0; i < WIDE; i++)
        fputc(letter_at(bars, first, end, queue, i * cell, (i + 1) * cell), out);
    fputc('\n', out);
}

static void put_memory(const step_bars *bars, int64_t first, int64_t end, FILE *out)
{
    static const char level[] = " .:-=+*#";
    double cell = bars->times.makespan_us / WIDE;
    for (int i = 0; i < WIDE; i++) {
        int64_t most = 0;
        for (int64_t k = first; k < end; k++) {
            const ts_program_bar *bar = &bars->bar[k];
            bool inside = bar->begin_us < (i + 1) * cell && bar->end_us >= i * cell;
            if (inside && bar->memory_bytes > most) most = bar->memory_bytes;
        }
        int64_t peak = bars->times.peak_bytes > 0 ? bars->times.peak_bytes : 1;
        fputc(level[(int)(7.0 * (double)most / (double)peak)], out);
    }
    fputc('\n', out);
}

/* Has a bar above it in the rank the same queue? */
static bool queue_is_new(const step_bars *bars, int64_t first, int64_t at)
{
    for (int64_t i = first; i < at; i++)
        if (strcmp(bars->bar[i].queue, bars->bar[at].queue) == 0) return false;
    return true;
}

void step_draw(const step_bars *bars, int64_t ranks, FILE *out)
{
    char a[32], b[32], c[32], d[32];
    for (int64_t i = 0, end, shown = 0; i < bars->count && shown < ranks; i = end, shown++) {
        end = rank_end(bars, i);
        char name[64];
        (void)snprintf(name, sizeof name, "rank %lld", (long long)bars->bar[i].rank);
        for (int64_t k = i; k < end; k++) {
            if (!queue_is_new(bars, i, k)) continue;
            fprintf(out, "%-10.10s %-6.6s ", name, bars->bar[k].queue);
            put_row(bars, i, end, bars->bar[k].queue, out);
            name[0] = '\0';
        }
        if (bars->bar[i].alike > 0)
            (void)snprintf(name, sizeof name, "+ %lld", (long long)bars->bar[i].alike);
        fprintf(out, "%-10.10s %-6.6s ", name, "held");
        put_memory(bars, i, end, out);
    }
    fprintf(out, "%s; a rank computes %s, waits at most %s; %s on rank %lld\n",
            cli_seconds(a, sizeof a, 1e-6 * bars->times.makespan_us),
            cli_seconds(b, sizeof b, 1e-6 * bars->times.compute_us),
            cli_seconds(c, sizeof c, 1e-6 * bars->times.exposed_us),
            cli_bytes(d, sizeof d, bars->times.peak_bytes), (long long)bars->times.peak_rank);
}

/* ---- the drawing ----------------------------------------------------------------------------- */

static const char *fill_of(const ts_program_bar *bar)
{
    if (bar->communicates) return "#e8b04a";
    if (bar->kind[0] == 'f') return "#8ab8f0";
    if (bar->kind[0] == 'b' || bar->kind[0] == 'i') return "#8fd19e";
    if (bar->kind[0] == 'w' || bar->kind[0] == 'u') return "#c9b0ea";
    return "#a9c3d8";
}

static void put_bar(const ts_program_bar *bar, double scale, double top, FILE *out)
{
    fprintf(out, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%d\" fill=\"%s\"%s><title>",
            SIDE + bar->begin_us * scale, top, (bar->end_us - bar->begin_us) * scale, TALL - 2,
            fill_of(bar), bar->critical ? " class=\"c\"" : "");
    html_text(out, bar->kind);
    fputc(' ', out);
    html_text(out, bar->what);
    fprintf(out, " on rank %lld: %.6g to %.6g us</title></rect>\n", (long long)bar->rank,
            bar->begin_us, bar->end_us);
}

static void put_line(const step_bars *bars, int64_t first, int64_t end, double scale, double top,
                     FILE *out)
{
    double high = bars->times.peak_bytes > 0 ? (TALL - 2) / (double)bars->times.peak_bytes : 0;
    fprintf(out, "<path class=\"m\" d=\"M%d %.2f", SIDE, top + TALL - 2);
    for (int64_t i = first; i < end; i++)
        if (strcmp(bars->bar[i].queue, "main") == 0)
            fprintf(out, "H%.2fV%.2f", SIDE + bars->bar[i].begin_us * scale,
                    top + TALL - 2 - (double)bars->bar[i].memory_bytes * high);
    fprintf(out, "\"><title>memory of rank %lld</title></path>\n",
            (long long)bars->bar[first].rank);
}

/* One rank; returns how far down it reaches. */
static double put_rank(const step_bars *bars, int64_t first, int64_t end, double scale, double top,
                       FILE *out)
{
    for (int64_t k = first; k < end; k++) {
        if (!queue_is_new(bars, first, k)) continue;
        fprintf(out, "<text x=\"0\" y=\"%.2f\">rank %lld ", top + TALL - 5,
                (long long)bars->bar[first].rank);
        html_text(out, bars->bar[k].queue);
        fputs("</text>\n", out);
        for (int64_t i = k; i < end; i++)
            if (strcmp(bars->bar[i].queue, bars->bar[k].queue) == 0 && takes_time(&bars->bar[i]))
                put_bar(&bars->bar[i], scale, top, out);
        top += TALL;
    }
    put_line(bars, first, end, scale, top, out);
    return top + TALL + GAP;
}

/* Lines that the picture has. */
static double picture_height(const step_bars *bars, int64_t ranks)
{
    double height = TOP;
    for (int64_t i = 0, end, shown = 0; i < bars->count && shown < ranks; i = end, shown++) {
        end = rank_end(bars, i);
        height += TALL + GAP;
        for (int64_t k = i; k < end; k++)
            height += queue_is_new(bars, i, k) ? TALL : 0;
    }
    return height;
}

int step_write_svg(const step_bars *bars, int64_t ranks, const char *path)
{
    FILE *out = html_open("step draw", "svg", path);
    if (out == NULL) return 1;
    double height = picture_height(bars, ranks), top = TOP;
    double scale = bars->times.makespan_us > 0 ? ROOM / bars->times.makespan_us : 1;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" "
            "viewBox=\"0 0 %d %.0f\">\n<style>text{font:11px ui-monospace,Menlo,Consolas,"
            "monospace;fill:#7a828e}.c{stroke:#c92a2a;stroke-width:1.5}"
            ".m{fill:none;stroke:#d9480f;stroke-width:1.2}</style>\n"
            "<text x=\"0\" y=\"16\">%.6g us, computing %.6g, waiting at most %.6g; %lld bytes on "
            "rank %lld; the critical path has a red line</text>\n",
            SIDE + ROOM + 10, height, SIDE + ROOM + 10, height, bars->times.makespan_us,
            bars->times.compute_us, bars->times.exposed_us, (long long)bars->times.peak_bytes,
            (long long)bars->times.peak_rank);
    for (int64_t i = 0, end, shown = 0; i < bars->count && shown < ranks; i = end, shown++) {
        end = rank_end(bars, i);
        top = put_rank(bars, i, end, scale, top, out);
    }
    fputs("</svg>\n", out);
    return html_close("step draw", path, out);
}
