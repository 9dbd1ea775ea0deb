/* SPDX-License-Identifier: Apache-2.0 */
/* layout_svg.c - a layout as a drawing: one rectangle per piece of the last two dims, slice under
 * slice. Small tensors get a cell and a rank per element. Titles answer the mouse where the viewer
 * shows them. */
#include <stdlib.h>

#include "html.h"
#include "layout.h"

enum { BINS_MAX = 128, SLICES_MAX = 8, CELL = 26, SMALL = 40, ROOM = 720, LEFT = 46, TOP = 26 };

typedef struct drawing {
    const layout_picture *picture;
    FILE *out;
    const layout_dim *row, *column; /* NULL: one cell */
    layout_piece *rows, *columns;
    int64_t row_count, column_count;
    double scale_x, scale_y, width, height;
    bool small; /* a label per element */
} drawing;

static int64_t extent_of(const layout_dim *dim)
{
    return dim != NULL ? dim->extent : 1;
}

static layout_piece *bins_of(const layout_dim *dim, int64_t *count)
{
    static const layout_dim one = { .extent = 1 };
    if (dim != NULL) return layout_bins(dim, BINS_MAX, count);
    layout_piece *bins = layout_bins(&one, 1, count);
    if (bins != NULL) bins[0] = (layout_piece){ .end = 1 };
    *count = bins != NULL;
    return bins;
}

static bool drawing_open(drawing *w)
{
    const layout_picture *p = w->picture;
    w->row = p->ndim >= 2 ? &p->dim[p->ndim - 2] : NULL;
    w->column = p->ndim >= 1 ? &p->dim[p->ndim - 1] : NULL;
    w->rows = bins_of(w->row, &w->row_count);
    w->columns = bins_of(w->column, &w->column_count);
    double tall = (double)extent_of(w->row), wide = (double)extent_of(w->column);
    w->small = tall <= SMALL && wide <= SMALL;
    w->width = w->small ? wide * CELL : ROOM;
    w->height = w->small ? tall * CELL : w->row == NULL ? 2 * CELL : ROOM * 0.7;
    w->scale_x = wide > 0 ? w->width / wide : 1;
    w->scale_y = tall > 0 ? w->height / tall : 1;
    return w->rows != NULL && w->columns != NULL;
}

static void put_piece(const drawing *w, int64_t base, const layout_piece *r, const layout_piece *c,
                      double top)
{
    const layout_picture *p = w->picture;
    int64_t number = base + r->key + c->key, coord[TS_NDIM_MAX];
    char fill[8], edge[8], text[128];
    int64_t owner = layout_owner_index(p, number), owners = layout_owners(p);
    html_colour(owner, owners, 0.78, fill);
    html_colour(owner, owners, 0.5, edge);
    layout_coord(p->mesh, number, coord);
    fprintf(w->out,
            "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\" stroke=\"%s\"",
            LEFT + (double)c->begin * w->scale_x, top + (double)r->begin * w->scale_y,
            (double)(c->end - c->begin) * w->scale_x, (double)(r->end - r->begin) * w->scale_y,
            fill, edge);
    if (r->mixed || c->mixed) fputs(" stroke-dasharray=\"2 2\"", w->out);
    fprintf(w->out, "><title>rank %lld at %s: [%lld,%lld) x [%lld,%lld)%s</title></rect>\n",
            (long long)layout_rank(p->mesh, number),
            layout_list_text(coord, ts_mesh_ndim(p->mesh), text, sizeof text), (long long)r->begin,
            (long long)r->end, (long long)c->begin, (long long)c->end,
            r->mixed || c->mixed ? ", the first of several owners" : "");
}

static void put_label(const drawing *w, double x, double y, int64_t value, const char *class)
{
    fprintf(w->out, "<text x=\"%.2f\" y=\"%.2f\" class=\"%s\">%lld</text>\n", x, y, class,
            (long long)value);
}

static void put_labels(const drawing *w, int64_t base, double top)
{
    int64_t tall = extent_of(w->row), wide = extent_of(w->column);
    for (int64_t i = 0; i < tall; i++) {
        for (int64_t j = 0; j < wide; j++) {
            int64_t number = base;
            if (w->row != NULL) number += layout_piece_at(w->row, i)->key;
            if (w->column != NULL) number += layout_piece_at(w->column, j)->key;
            put_label(w, LEFT + ((double)j + 0.5) * CELL, top + ((double)i + 0.65) * CELL,
                      layout_rank(w->picture->mesh, number), "r");
        }
    }
}

static void put_rulers(const drawing *w, double top)
{
    int64_t tall = extent_of(w->row), wide = extent_of(w->column);
    int64_t step = w->small ? 1 : wide / 8 + 1;
    double half = w->small ? 0.5 : 0;
    for (int64_t j = 0; w->column != NULL && j < wide; j += step)
        put_label(w, LEFT + ((double)j + half) * w->scale_x, top - 8, j, "i");
    step = w->small ? 1 : tall / 8 + 1;
    for (int64_t i = 0; w->row != NULL && i < tall; i += step)
        put_label(w, LEFT - 16, top + ((double)i + half) * w->scale_y + 4, i, "i");
}

static void put_slice(const drawing *w, const int64_t *index, int32_t leading, double top)
{
    int64_t base = 0;
    char text[128];
    for (int32_t d = 0; d < leading; d++)
        base += layout_piece_at(&w->picture->dim[d], index[d])->key;
    if (leading > 0)
        fprintf(w->out, "<text x=\"%d\" y=\"%.2f\" class=\"s\">slice %s</text>\n", LEFT, top - TOP,
                layout_list_text(index, leading, text, sizeof text));
    for (int64_t i = 0; i < w->row_count; i++) {
        for (int64_t j = 0; j < w->column_count; j++)
            put_piece(w, base, &w->rows[i], &w->columns[j], top);
    }
    put_rulers(w, top);
    if (w->small) put_labels(w, base, top);
}

static int64_t slice_count(const layout_picture *p, int32_t leading, const layout_look *look)
{
    int64_t count = 1;
    for (int32_t d = 0; d < leading && !look->sliced; d++) {
        count *= p->dim[d].extent;
        if (count > SLICES_MAX) return SLICES_MAX;
    }
    return count;
}

static void put_drawing(const drawing *w, const layout_look *look)
{
    int32_t leading = w->picture->ndim > 2 ? w->picture->ndim - 2 : 0;
    int64_t slices = slice_count(w->picture, leading, look), index[TS_NDIM_MAX] = { 0 };
    double each = w->height + 2.4 * TOP;
    fprintf(w->out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
            "viewBox=\"0 0 %.0f %.0f\">\n"
            "<style>text{font:12px ui-monospace,Menlo,Consolas,monospace;text-anchor:middle}"
            ".i{fill:#7a828e}.r{fill:#20242a}.s{text-anchor:start;fill:#7a828e}</style>\n",
            LEFT + w->width + 12, (double)slices * each, LEFT + w->width + 12,
            (double)slices * each);
    for (int64_t s = 0; s < slices; s++) {
        put_slice(w, look->sliced ? look->slice : index, leading,
                  (double)s * each + (leading > 0 ? 2 : 1.2) * TOP);
        for (int32_t d = leading - 1; d >= 0 && ++index[d] == w->picture->dim[d].extent; d--)
            index[d] = 0;
    }
    fputs("</svg>\n", w->out);
}

int layout_write_svg(const layout_picture *p, const layout_look *look, const char *path)
{
    drawing w = { .picture = p };
    bool made = drawing_open(&w);
    if (made) w.out = html_open("layout", "svg", path);
    int code = made ? 1 : cli_fail("layout", "out of memory");
    if (w.out != NULL) {
        put_drawing(&w, look);
        code = html_close("layout", path, w.out);
    }
    free(w.rows);
    free(w.columns);
    return code;
}
