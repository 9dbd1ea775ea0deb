/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_table.c - a schedule in the terminal: time goes to the right, a line a rank.
 *
 *   rank 0  F0 F1 F2 F3 .  .  .  .  B0 =  F4 B1 =
 *
 * A slot is as wide as the shortest action lasts; where all of it does not fit on the line, it goes
 * on below. Without colours every slot still says what it is. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "schedule.h"

enum { SLOT_WIDTH_MAX = 12, SLOTS_MAX = 4096, LEFT = 10 };

typedef struct grid {
    const schedule_case *c;
    const schedule_look *look;
    FILE *out;
    double unit; /* time of a slot */
    int64_t slots;
    int width; /* characters of a slot, with the blank behind it */
} grid;

static bool computes(const ts_cell *cell)
{
    return cell->kind >= TS_CELL_FORWARD && cell->kind <= TS_CELL_WEIGHT;
}

/* Backgrounds of the 256-colour palette, by kind, for even and odd stages of a rank. */
static int background(const grid *g, const ts_cell *cell)
{
    static const int colour[][2] = { [TS_CELL_IDLE] = { 0, 0 },
                                     [TS_CELL_FORWARD] = { 117, 153 },
                                     [TS_CELL_BACKWARD] = { 114, 157 },
                                     [TS_CELL_INPUT] = { 216, 223 },
                                     [TS_CELL_WEIGHT] = { 183, 189 } };
    return colour[cell->kind][cell->stage / ts_schedule_ranks(g->c->schedule) % 2];
}

static void put_slot(const grid *g, const ts_cell *cell, bool first)
{
    char text[48] = ".";
    if (cell != NULL && first) ts_cell_text(cell, text, sizeof text);
    if (cell != NULL && !first) (void)snprintf(text, sizeof text, "=");
    if (g->look->colour && cell != NULL)
        fprintf(g->out, "\033[48;5;%d;30m%-*.*s\033[0m ", background(g, cell), g->width - 1,
                g->width - 1, first ? text : "");
    else
        fprintf(g->out, "%-*.*s ", g->width - 1, g->width - 1, text);
}

/* What runs in the middle of a slot; cells ascend in time. */
static const ts_cell *cell_at(const grid *g, int64_t rank, int64_t slot, int64_t *at, ts_cell *out,
                              bool *first)
{
    double middle = ((double)slot + 0.5) * g->unit;
    const double *begin = g->c->begin + g->c->first[rank], *end = g->c->end + g->c->first[rank];
    while (*at < ts_schedule_count(g->c->schedule, rank) && end[*at] <= middle)
        ++*at;
    if (*at == ts_schedule_count(g->c->schedule, rank) || begin[*at] > middle) return NULL;
    *out = ts_schedule_cell(g->c->schedule, rank, *at);
    *first = begin[*at] > middle - g->unit;
    return computes(out) ? out : NULL;
}

static void put_rows(const grid *g, int64_t from, int64_t to)
{
    for (int64_t r = 0; r < ts_schedule_ranks(g->c->schedule); r++) {
        int64_t at = 0;
        fprintf(g->out, "rank %-*lld", LEFT - 5, (long long)r);
        for (int64_t slot = from; slot < to; slot++) {
            ts_cell cell;
            bool first = false;
            const ts_cell *found = cell_at(g, r, slot, &at, &cell, &first);
            put_slot(g, found, first);
        }
        fputc('\n', g->out);
    }
}

/* The shortest action, and the longest text. */
static void measure(grid *g)
{
    const schedule_case *c = g->c;
    char text[48];
    g->unit = 0;
    for (int64_t r = 0; r < ts_schedule_ranks(c->schedule); r++) {
        for (int64_t i = 0; i < ts_schedule_count(c->schedule, r); i++) {
            ts_cell cell = ts_schedule_cell(c->schedule, r, i);
            double takes = c->end[c->first[r] + i] - c->begin[c->first[r] + i];
            if (!computes(&cell)) continue;
            int width = (int)ts_cell_text(&cell, text, sizeof text) + 1;
            if (width > g->width) g->width = width < SLOT_WIDTH_MAX ? width : SLOT_WIDTH_MAX;
            if (takes > 0 && (g->unit == 0 || takes < g->unit)) g->unit = takes;
        }
    }
    if (g->unit < c->times.makespan / SLOTS_MAX) g->unit = c->times.makespan / SLOTS_MAX;
    g->slots = g->unit > 0 ? (int64_t)ceil(c->times.makespan / g->unit - 1e-9) : 0;
}

void schedule_print(const schedule_case *c, const schedule_look *look, FILE *out)
{
    grid g = { .c = c, .look = look, .out = out };
    measure(&g);
    int64_t across = g.width > 0 ? (look->width - LEFT) / g.width : 1;
    if (across < 1) across = 1;
    fprintf(out, "%s: %lld ranks, %lld stages, %lld micro-batches\n", c->name,
            (long long)ts_schedule_ranks(c->schedule), (long long)ts_schedule_stages(c->schedule),
            (long long)ts_schedule_micro_batches(c->schedule));
    for (int64_t from = 0; from < g.slots; from += across) {
        put_rows(&g, from, from + across < g.slots ? from + across : g.slots);
        fputc('\n', out);
    }
    fprintf(out, "makespan %.6g, bubble %.6g (%.1f %%), kept at once %.6g", c->times.makespan,
            c->times.bubble, 100 * c->times.fraction, c->times.peak);
    if (c->bound > 0)
        fprintf(out, "; no order is shorter than %.6g (%.1f %% above it)", c->bound,
                100 * (c->times.makespan / c->bound - 1));
    fputs("\n\n", out);
}

void schedule_compare(const schedule_case *c, int64_t count, FILE *out)
{
    static const char *const names[] = { "schedule", ">stages",       ">makespan", ">bubble",
                                         ">%",       ">kept at once", NULL };
    cli_table table = { 0 };
    cli_table_begin(&table, names);
    for (int64_t i = 0; i < count; i++) {
        cli_table_row(&table);
        cli_table_cell(&table, 0, "%s", c[i].name);
        cli_table_cell(&table, 1, "%lld", (long long)ts_schedule_stages(c[i].schedule));
        cli_table_cell(&table, 2, "%.6g", c[i].times.makespan);
        cli_table_cell(&table, 3, "%.6g", c[i].times.bubble);
        cli_table_cell(&table, 4, "%.1f", 100 * c[i].times.fraction);
        cli_table_cell(&table, 5, "%.6g", c[i].times.peak);
    }
    cli_table_print(&table, out);
    cli_table_release(&table);
}
