/* SPDX-License-Identifier: Apache-2.0 */
/* mask_picture.c - tiles of a mask for the terminal, as a drawing and as a page.
 *
 * Queries go down, keys to the right; a full tile is computed as it is, a partial one under bits,
 * an empty one not at all. Where ranks were asked for, tiles have the colour of the rank that holds
 * their queries. */
#include <math.h>

#include "html.h"
#include "mask.h"

enum { TILES_SHOWN = 96, ROOM = 640, LEFT = 20, TOP = 56 };

double mask_skipped(const mask_picture *p)
{
    int64_t all = p->summary.empty + p->summary.partial + p->summary.full;
    return all > 0 ? (double)p->summary.empty / (double)all : 0;
}

/* What a rectangle of tiles is, where several share one character or cell: full or empty only if
 * all of them are. */
static int kind_of(const mask_picture *p, int64_t row, int64_t column, int64_t step)
{
    bool some = false, all = true;
    for (int64_t i = row; i < row + step && i < p->rows; i++) {
        for (int64_t j = column; j < column + step && j < p->columns; j++) {
            int tile = p->tile[i * p->columns + j];
            some |= tile != TS_TILE_EMPTY;
            all &= tile == TS_TILE_FULL;
        }
    }
    return all ? TS_TILE_FULL : some ? TS_TILE_PARTIAL : TS_TILE_EMPTY;
}

static int64_t step_of(const mask_picture *p)
{
    int64_t most = p->rows > p->columns ? p->rows : p->columns;
    return (most + TILES_SHOWN - 1) / TILES_SHOWN > 0 ? (most + TILES_SHOWN - 1) / TILES_SHOWN : 1;
}

static void put_words(const mask_picture *p, FILE *out)
{
    fprintf(out, "%lld queries x %lld keys in tiles of %lld x %lld: %lld full, %lld partial, ",
            (long long)p->size.queries, (long long)p->size.keys, (long long)p->size.query_block,
            (long long)p->size.key_block, (long long)p->summary.full,
            (long long)p->summary.partial);
    fprintf(out, "%lld empty (%.1f %% skipped); %lld pairs of %lld", (long long)p->summary.empty,
            100 * mask_skipped(p), (long long)p->summary.pairs, (long long)p->summary.pairs_all);
}

static void put_balance(const mask_picture *p, FILE *out)
{
    double mean = p->cut.work_mean > 0 ? p->cut.work_mean : 1;
    fprintf(out,
            "%lld ranks: the busiest sees %lld pairs, %.4f of the mean; no cut has less than "
            "%lld; %lld pieces",
            (long long)p->cut.ranks, (long long)p->cut.work_max, (double)p->cut.work_max / mean,
            (long long)p->cut.bound, (long long)p->cut.pieces);
}

/* ---- terminal -------------------------------------------------------------------------------- */

void mask_print(const mask_picture *p, bool colour, FILE *out)
{
    static const char *const sign[] = { "\xC2\xB7", "\xE2\x96\x92", "\xE2\x96\x88" };
    static const char *const plain[] = { ".", "+", "#" };
    int64_t step = step_of(p);
    fprintf(out, "%s\n", p->text);
    put_words(p, out);
    fputs("\n\n", out);
    for (int64_t i = 0; i < p->rows; i += step) {
        if (p->owner != NULL && colour)
            fprintf(out, "\033[38;5;%dm", 17 + (int)(p->owner[i] * 37 % 214));
        for (int64_t j = 0; j < p->columns; j += step)
            fputs(colour ? sign[kind_of(p, i, j, step)] : plain[kind_of(p, i, j, step)], out);
        if (p->owner != NULL) fprintf(out, "%s  %d", colour ? "\033[0m" : "", (int)p->owner[i]);
        fputc('\n', out);
    }
    fprintf(out, "\n%s full  %s partial  %s empty%s\n", colour ? sign[2] : plain[2],
            colour ? sign[1] : plain[1], colour ? sign[0] : plain[0],
            step > 1 ? "; each stands for several tiles" : "");
    if (p->owner == NULL) return;
    put_balance(p, out);
    fputc('\n', out);
}

/* ---- drawing --------------------------------------------------------------------------------- */

static void put_cells(const mask_picture *p, FILE *out)
{
    int64_t step = step_of(p), most = p->rows > p->columns ? p->rows : p->columns;
    double each = (double)ROOM / (double)(most > 0 ? most : 1);
    for (int64_t i = 0; i < p->rows; i += step) {
        for (int64_t j = 0; j < p->columns; j += step) {
            char fill[8] = "#4a7fb5";
            int kind = kind_of(p, i, j, step);
            if (kind == TS_TILE_EMPTY) continue;
            if (p->owner != NULL) html_colour(p->owner[i], p->cut.ranks, 0.5, fill);
            fprintf(out,
                    "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\" "
                    "fill-opacity=\"%s\"><title>queries from %lld, keys from %lld: %s</title>"
                    "</rect>\n",
                    LEFT + (double)j * each, TOP + (double)i * each, each * (double)step,
                    each * (double)step, fill, kind == TS_TILE_FULL ? "1" : "0.45",
                    (long long)(i * p->size.query_block), (long long)(j * p->size.key_block),
                    kind == TS_TILE_FULL ? "full" : "partial");
        }
    }
}

static void put_drawing(const mask_picture *p, FILE *out)
{
    int64_t most = p->rows > p->columns ? p->rows : p->columns;
    double each = (double)ROOM / (double)(most > 0 ? most : 1);
    double wide = (double)p->columns * each, tall = (double)p->rows * each;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
            "font-family=\"sans-serif\" font-size=\"13\">\n<text x=\"%d\" y=\"20\">",
            ROOM + 2.0 * LEFT, TOP + tall + LEFT, LEFT);
    html_text(out, p->text);
    fprintf(out,
            "</text>\n<text x=\"%d\" y=\"40\" fill=\"#6a717c\">%.1f %% of the tiles are skipped"
            "</text>\n",
            LEFT, 100 * mask_skipped(p));
    fprintf(out,
            "<rect x=\"%d\" y=\"%d\" width=\"%.2f\" height=\"%.2f\" fill=\"#8882\" "
            "stroke=\"#8888\"/>\n",
            LEFT, TOP, wide, tall);
    put_cells(p, out);
    fputs("</svg>\n", out);
}

int mask_write_svg(const mask_picture *p, const char *path)
{
    FILE *out = html_open("mask", "svg", path);
    if (out == NULL) return 1;
    put_drawing(p, out);
    return html_close("mask", path, out);
}

/* ---- page ------------------------------------------------------------------------------------ */

int mask_write_html(const mask_picture *p, const char *path)
{
    static const char *const style[] = { "svg { max-width: 720px; display: block; }", NULL };
    static const char *const script[] = { NULL };
    FILE *out = html_open("mask", "html", path);
    if (out == NULL) return 1;
    ts_json_writer data = { 0 };
    ts_json_put_open(&data, '{');
    ts_json_put_member_text(&data, "mask", p->text);
    ts_json_put_member_real(&data, "skipped", mask_skipped(p));
    ts_json_put_member_int(&data, "pairs", p->summary.pairs);
    ts_json_put_close(&data, '}');
    html_begin(out, p->text, style);
    fputs("<h1>", out);
    html_text(out, p->text);
    fputs("</h1>\n<p class=\"soft\">", out);
    put_words(p, out);
    if (p->owner != NULL) {
        fputs("</p>\n<p class=\"soft\">", out);
        put_balance(p, out);
    }
    fputs("</p>\n<div class=\"card\">\n", out);
    put_drawing(p, out);
    fputs("</div>\n", out);
    html_end(out, &data, script);
    ts_json_writer_release(&data);
    return html_close("mask", path, out);
}
