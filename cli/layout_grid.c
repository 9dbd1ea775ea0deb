/* SPDX-License-Identifier: Apache-2.0 */
/* layout_grid.c - a layout for a person at a terminal: a grid of owners, and a table of ranks.
 *
 * A cell is one element, or a block of them where the tensor is too large for the terminal: then
 * cells follow the pieces, so that each has one owner, as long as the pieces fit. A cell names the
 * rank that holds its first element, with '+' behind it where it has several owners. Tensors of
 * more than two dims are shown slice by slice. */
#include <stdlib.h>
#include <string.h>

#include "layout.h"

enum { ROWS_MAX = 32, ROWS_NICE = 12, SLICES_MAX = 6, TABLE_MAX = 64, LINES_MAX = 4 };

/* Backgrounds of the 256-colour palette that black text can be read on; neighbours differ. */
static const int palette[] = { 117, 222, 156, 217, 183, 159, 229, 150, 216, 189, 123, 193 };
enum { PALETTE = sizeof palette / sizeof palette[0] };

typedef struct grid {
    const layout_picture *picture;
    const layout_look *look;
    FILE *out;
    int cell, margin;               /* columns of a cell, of the row labels */
    int64_t rows, columns;          /* cells */
    int64_t *row_at, *column_at;    /* where each begins; one more is the end */
    bool blocks;                    /* some cell is more than one element */
    const layout_dim *row, *column; /* NULL: one cell in that direction */
} grid;

static int digits(int64_t value)
{
    int count = 1;
    for (; value >= 10; value /= 10)
        count++;
    return count;
}

/* ---- where cells begin ----------------------------------------------------------------------- */
/* Cells of a dim that is too long: each piece gets its share of about `nice` cells, or, if there
 * are more than `most` pieces, all cells are equal. Returns how many; `at` has room for most + 1.
 */
static int64_t divide(const layout_dim *dim, int64_t most, int64_t nice, int64_t *at)
{
    int64_t count = 0, spare = nice > dim->count ? nice - dim->count : 0;
    if (dim->count > most) {
        int64_t step = dim->extent / most + (dim->extent % most != 0);
        for (int64_t begin = 0; begin < dim->extent; begin += step)
            at[count++] = begin;
    }
    for (int64_t i = 0; dim->count <= most && i < dim->count; i++) {
        const layout_piece *piece = &dim->piece[i];
        int64_t length = piece->end - piece->begin;
        int64_t parts = 1 + (int64_t)((double)length / (double)dim->extent * (double)spare);
        if (parts > length) parts = length;
        for (int64_t part = 0; part < parts; part++)
            at[count++] = piece->begin + length / parts * part;
    }
    at[count] = dim->extent;
    return count;
}

/* NULL: no memory. */
static int64_t *choose(const layout_dim *dim, int64_t most, int64_t nice, int64_t *count)
{
    int64_t *at = calloc((size_t)most + 2, sizeof *at);
    *count = 1;
    if (at == NULL) return NULL;
    at[1] = 1;
    if (dim != NULL && dim->extent <= most) {
        *count = dim->extent;
        for (int64_t i = 0; i <= dim->extent; i++)
            at[i] = i;
    } else if (dim != NULL) {
        *count = divide(dim, most, nice, at);
    }
    return at;
}

/* ---- cells ----------------------------------------------------------------------------------- */
/* Adds the key of the piece at a position; true if one piece covers all up to `end`. */
static bool add_piece(const layout_dim *dim, int64_t position, int64_t end, int64_t *number)
{
    if (dim == NULL) return true;
    const layout_piece *piece = layout_piece_at(dim, position);
    if (piece == NULL) return true;
    *number += piece->key;
    return !piece->mixed && end <= piece->end;
}

static void put_cell(const grid *g, int64_t base, int64_t i, int64_t j)
{
    int64_t number = base;
    bool pure = add_piece(g->row, g->row_at[i], g->row_at[i + 1], &number);
    pure &= add_piece(g->column, g->column_at[j], g->column_at[j + 1], &number);
    int64_t owner = layout_owner_index(g->picture, number);
    char text[32];
    (void)snprintf(text, sizeof text, "%lld%s", (long long)layout_rank(g->picture->mesh, number),
                   pure ? " " : "+");
    if (g->look->colour)
        fprintf(g->out, "\033[48;5;%dm\033[38;5;16m%*s\033[0m", palette[owner % PALETTE], g->cell,
                text);
    else
        fprintf(g->out, "%*s", g->cell, text);
}

/* Positions over the columns, as many as there is room for. */
static void put_header(const grid *g)
{
    int64_t free_at = 0;
    int column = 0;
    fprintf(g->out, "%*s", g->margin, "");
    for (int64_t j = 0; j < g->columns; j++) {
        int64_t end = (j + 1) * g->cell - 1, length = digits(g->column_at[j]);
        if (end - length < free_at) continue;
        fprintf(g->out, "%*lld", (int)end - column, (long long)g->column_at[j]);
        column = (int)end;
        free_at = end + 1;
    }
    fputc('\n', g->out);
}

static void put_grid(const grid *g, int64_t base)
{
    put_header(g);
    for (int64_t i = 0; i < g->rows; i++) {
        fprintf(g->out, "%*lld ", g->margin - 1, (long long)g->row_at[i]);
        for (int64_t j = 0; j < g->columns; j++)
            put_cell(g, base, i, j);
        fputc('\n', g->out);
    }
}

/* A single dim runs over several lines. */
static void put_line(const grid *g)
{
    int64_t in_line = (g->look->width - g->margin) / g->cell;
    for (int64_t j = 0; j < g->columns; j++) {
        if (j % in_line == 0)
            fprintf(g->out, "%s%*lld ", j > 0 ? "\n" : "", g->margin - 1,
                    (long long)g->column_at[j]);
        put_cell(g, 0, 0, j);
    }
    fputc('\n', g->out);
}

/* ---- slices ---------------------------------------------------------------------------------- */
static void put_slice(const grid *g, int32_t leading, const int64_t *index)
{
    int64_t base = 0;
    fputc('[', g->out);
    for (int32_t d = 0; d < leading; d++) {
        fprintf(g->out, "%lld, ", (long long)index[d]);
        (void)add_piece(&g->picture->dim[d], index[d], index[d] + 1, &base);
    }
    fputs(":, :]\n", g->out);
    put_grid(g, base);
}

static void put_slices(const grid *g, int32_t leading)
{
    int64_t index[TS_NDIM_MAX] = { 0 }, shown = 0;
    if (g->look->sliced) {
        put_slice(g, leading, g->look->slice);
        return;
    }
    int32_t d = 0;
    while (d >= 0 && (shown < SLICES_MAX || g->look->all)) {
        if (shown++ > 0) fputc('\n', g->out);
        put_slice(g, leading, index);
        for (d = leading - 1; d >= 0 && ++index[d] == g->picture->dim[d].extent; d--)
            index[d] = 0;
    }
    if (d >= 0) fputs("... more slices: choose one with --slice, or --all\n", g->out);
}

static bool choose_cells(grid *g)
{
    const layout_picture *p = g->picture;
    int64_t ranks = ts_mesh_size(p->mesh, NULL), most = layout_rank(p->mesh, ranks - 1);
    for (int64_t i = 0; i < ranks && i < 4096; i++) {
        int64_t rank = layout_rank(p->mesh, i);
        if (rank > most) most = rank;
    }
    g->cell = digits(most) + 2;
    g->row = p->ndim >= 2 ? &p->dim[p->ndim - 2] : NULL;
    g->column = p->ndim >= 1 ? &p->dim[p->ndim - 1] : NULL;
    const layout_dim *labels = p->ndim == 1 ? g->column : g->row;
    g->margin = digits(labels != NULL ? labels->extent : 0) + 2;
    int64_t fits = (g->look->width - g->margin) / g->cell;
    if (fits < 1) fits = 1;
    g->row_at = choose(g->row, ROWS_MAX, ROWS_NICE, &g->rows);
    g->column_at =
        choose(g->column, p->ndim == 1 ? LINES_MAX * fits : fits, 2 * ROWS_NICE, &g->columns);
    g->blocks = (g->row != NULL && g->rows < g->row->extent) ||
                (g->column != NULL && g->columns < g->column->extent);
    return g->row_at != NULL && g->column_at != NULL;
}

static void print_grid(const layout_picture *p, const layout_look *look, FILE *out)
{
    grid g = { .picture = p, .look = look, .out = out };
    ts_shape view = ts_layout_view(p->layout);
    if (ts_shape_count(&view) == 0) {
        fputs("(the tensor is empty)\n", out);
        return;
    }
    bool made = choose_cells(&g);
    if (g.blocks) fputs("cells are blocks of elements; + marks several owners\n\n", out);
    if (!made)
        fputs("(no memory for the grid)\n", out);
    else if (p->ndim <= 1)
        put_line(&g);
    else if (p->ndim == 2)
        put_grid(&g, 0);
    else
        put_slices(&g, p->ndim - 2);
    free(g.row_at);
    free(g.column_at);
}

/* ---- words ----------------------------------------------------------------------------------- */
static void print_shared(const layout_picture *p, FILE *out)
{
    char name[64];
    for (int32_t k = 0; k < ts_mesh_ndim(p->mesh); k++) {
        int64_t n = ts_mesh_axis_size(p->mesh, k);
        char place[256];
        (void)ts_placement_text(ts_layout_sharding(p->layout), k, place, sizeof place);
        if ((p->replicated >> k & 1u) && n > 1)
            fprintf(out, "replicated over %s: %lld ranks hold the same\n",
                    layout_axis_name(p->mesh, k, name, sizeof name), (long long)n);
        if ((p->partial >> k & 1u) && n > 1)
            fprintf(out, "partial over %s, %s: %lld ranks hold a term each\n",
                    layout_axis_name(p->mesh, k, name, sizeof name), place, (long long)n);
    }
    int64_t holders = layout_holders(p), owners = layout_owners(p), shown = owners < 4 ? owners : 4;
    if (holders == 1) return;
    fputs("the grid names the first of them: ", out);
    for (int64_t o = 0; o < shown; o++) {
        int64_t first = layout_owner(p, o);
        fprintf(out, "%s%lld =", o > 0 ? "; " : "", (long long)layout_rank(p->mesh, first));
        for (int64_t i = 0; i < holders && i < 8; i++)
            fprintf(out, " %lld", (long long)layout_rank(p->mesh, layout_holder(p, first, i)));
        if (holders > 8) fputs(" ...", out);
    }
    fprintf(out, "%s\n", owners > shown ? "; ..." : "");
}

/* "[0,4) [8,12)", shortened in the middle of a long list. */
static void intervals_text(const ts_layout *layout, const int64_t *coord, int32_t d, char *out,
                           size_t size)
{
    enum { SHOWN = 3 };
    ts_interval list[SHOWN];
    int64_t count = ts_layout_intervals(layout, coord, d, list, SHOWN);
    size_t used = 0;
    out[0] = '\0';
    for (int64_t i = 0; i < count && i < SHOWN && used < size; i++) {
        used += (size_t)snprintf(out + used, size - used, "%s[%lld,%lld)", i > 0 ? " " : "",
                                 (long long)list[i].begin, (long long)list[i].end);
    }
    if (count > SHOWN && used < size)
        (void)snprintf(out + used, size - used, " +%lld", (long long)(count - SHOWN));
    if (count == 0) (void)snprintf(out, size, "-");
}

static void table_row(const layout_picture *p, int64_t number, cli_table *table)
{
    int64_t coord[TS_NDIM_MAX], offset[TS_NDIM_MAX] = { 0 };
    char text[CLI_CELL_MAX];
    layout_coord(p->mesh, number, coord);
    ts_shape local = ts_layout_local(p->layout, coord);
    (void)ts_layout_offset(p->layout, coord, offset);
    cli_table_row(table);
    cli_table_cell(table, 0, "%lld", (long long)layout_rank(p->mesh, number));
    cli_table_cell(table, 1, "%s",
                   layout_list_text(coord, ts_mesh_ndim(p->mesh), text, sizeof text));
    cli_table_cell(table, 2, "%s", layout_shape_text(&local, text, sizeof text));
    cli_table_cell(table, 3, "%s", layout_list_text(offset, local.ndim, text, sizeof text));
    for (int32_t d = 0; d < p->ndim; d++) {
        intervals_text(p->layout, coord, d, text, sizeof text);
        cli_table_cell(table, (size_t)(4 + d), "%s", text);
    }
}

static void print_table(const layout_picture *p, const layout_look *look, FILE *out)
{
    const char *names[CLI_COLUMNS_MAX + 1] = { ">rank", "coordinate", "shape", "offset" };
    char dims[TS_NDIM_MAX][32];
    int64_t ranks = ts_mesh_size(p->mesh, NULL);
    for (int32_t d = 0; d < p->ndim; d++) {
        const layout_dim *dim = &p->dim[d];
        if (dim->last > dim->first)
            (void)snprintf(dims[d], sizeof dims[d], "dims %d-%d", dim->first, dim->last);
        else
            (void)snprintf(dims[d], sizeof dims[d], "dim %d", dim->first);
        names[4 + d] = dims[d];
    }
    names[4 + p->ndim] = NULL;
    cli_table table;
    cli_table_begin(&table, names);
    int64_t shown = look->all || ranks <= TABLE_MAX ? ranks : TABLE_MAX;
    for (int64_t i = 0; i < shown; i++)
        table_row(p, i, &table);
    cli_table_print(&table, out);
    if (shown < ranks)
        fprintf(out, "... and %lld more ranks: --all, or --json\n", (long long)(ranks - shown));
    cli_table_release(&table);
}

void layout_print(const layout_picture *p, const layout_look *look, FILE *out)
{
    char shape_text[128];
    ts_shape shape = ts_layout_shape(p->layout);
    char *mesh = layout_mesh_text(p->mesh);
    char *placements = layout_sharding_text(ts_layout_sharding(p->layout));
    fprintf(out, "%s on mesh %s, placements %s\n\n",
            layout_shape_text(&shape, shape_text, sizeof shape_text), mesh != NULL ? mesh : "?",
            placements != NULL ? placements : "?");
    free(mesh);
    free(placements);
    print_grid(p, look, out);
    fputc('\n', out);
    if (p->replicated | p->partial) print_shared(p, out);
    if (p->replicated | p->partial) fputc('\n', out);
    print_table(p, look, out);
}
