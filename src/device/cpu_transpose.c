/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_transpose.c - copies whose source is contiguous along one dim and whose target is along
 * another.
 *
 * The target is written in panels one cache line wide, from top to bottom: each source row of the
 * panel is then one forward stream (the prefetcher's case), and each line of the target is written
 * whole, once.
 *
 *   source: columns of the target    c0 ------>            target:   |c0 c1 .. |  <- one line
 *           as rows                  c1 ------>                      |         |
 *                                    ..                              v panel   v
 *
 * Inside, squares of 8 bytes by 8 / unit rows are turned around in 64-bit registers
 * (little-endian). Tiles that were copied to a buffer first were slower: short source rows defeat
 * the prefetcher. */
#include <string.h>

#include "base/intmath.h"
#include "device/cpu.h"

enum { LINE = 64 }; /* bytes */

/* Passed by value: the compiler then knows that no store changes it. */
typedef struct panel {
    char *to;
    const char *from;
    int64_t rows, columns;         /* of the target */
    int64_t to_row, to_column;     /* strides in bytes */
    int64_t from_row, from_column; /* strides in bytes; from_row is the small one */
} panel;

static uint64_t load_8(const char *from)
{
    uint64_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

/* Swaps the high parts of *a with the low parts of *b; mask has the low half of each pair of lanes.
 */
static void swap_lanes(uint64_t *a, uint64_t *b, int shift, uint64_t mask)
{
    uint64_t low = (*a & mask) | ((*b & mask) << shift);
    uint64_t high = ((*a >> shift) & mask) | (*b & ~mask);
    *a = low;
    *b = high;
}

static void square_1(char *to, int64_t to_row, const char *from, int64_t from_column)
{
    uint64_t w[8];
    for (int i = 0; i < 8; i++)
        w[i] = load_8(from + i * from_column);
    for (int i = 0; i < 4; i++)
        swap_lanes(&w[i], &w[i + 4], 32, 0x00000000FFFFFFFFu);
    for (int i = 0; i < 4; i++) { /* pairs 0-2, 1-3, 4-6, 5-7 */
        int at = i + (i & 2);
        swap_lanes(&w[at], &w[at + 2], 16, 0x0000FFFF0000FFFFu);
    }
    for (int i = 0; i < 8; i += 2)
        swap_lanes(&w[i], &w[i + 1], 8, 0x00FF00FF00FF00FFu);
    for (int i = 0; i < 8; i++)
        memcpy(to + i * to_row, &w[i], 8);
}

static void square_2(char *to, int64_t to_row, const char *from, int64_t from_column)
{
    uint64_t w[4];
    for (int i = 0; i < 4; i++)
        w[i] = load_8(from + i * from_column);
    for (int i = 0; i < 2; i++)
        swap_lanes(&w[i], &w[i + 2], 32, 0x00000000FFFFFFFFu);
    for (int i = 0; i < 4; i += 2)
        swap_lanes(&w[i], &w[i + 1], 16, 0x0000FFFF0000FFFFu);
    for (int i = 0; i < 4; i++)
        memcpy(to + i * to_row, &w[i], 8);
}

static void square_4(char *to, int64_t to_row, const char *from, int64_t from_column)
{
    uint64_t a = load_8(from), b = load_8(from + from_column);
    swap_lanes(&a, &b, 32, 0x00000000FFFFFFFFu);
    memcpy(to, &a, 8);
    memcpy(to + to_row, &b, 8);
}

/* Rows from `row` on, columns from `column` on, one element at a time; the unit is constant after
 * inlining. */
static inline void plain(panel p, size_t unit, int64_t row, int64_t column)
{
    for (int64_t r = row; r < p.rows; r++)
        for (int64_t c = column; c < p.columns; c++)
            memcpy(p.to + r * p.to_row + c * p.to_column,
                   p.from + r * p.from_row + c * p.from_column, unit);
}

static void panel_plain(panel p, size_t unit, int64_t row, int64_t column)
{
    switch (unit) {
    case 1:
        plain(p, 1, row, column);
        break;
    case 2:
        plain(p, 2, row, column);
        break;
    case 4:
        plain(p, 4, row, column);
        break;
    case 8:
        plain(p, 8, row, column);
        break;
    default:
        plain(p, 16, row, column);
        break;
    }
}

static void panel_1(panel p, int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r += 8)
        for (int64_t c = 0; c < columns; c += 8)
            square_1(p.to + r * p.to_row + c, p.to_row, p.from + r + c * p.from_column,
                     p.from_column);
}

static void panel_2(panel p, int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r += 4)
        for (int64_t c = 0; c < columns; c += 4)
            square_2(p.to + r * p.to_row + 2 * c, p.to_row, p.from + 2 * r + c * p.from_column,
                     p.from_column);
}

static void panel_4(panel p, int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r += 2)
        for (int64_t c = 0; c < columns; c += 2)
            square_4(p.to + r * p.to_row + 4 * c, p.to_row, p.from + 4 * r + c * p.from_column,
                     p.from_column);
}

/* Squares as far as they reach, then the rows below and the columns beside them. */
static void panel_squares(panel p, size_t unit)
{
    int64_t side = 8 / (int64_t)unit;
    int64_t rows = p.rows - p.rows % side, columns = p.columns - p.columns % side;
    if (unit == 1)
        panel_1(p, rows, columns);
    else if (unit == 2)
        panel_2(p, rows, columns);
    else
        panel_4(p, rows, columns);
    if (rows < p.rows) panel_plain(p, unit, rows, 0);
    p.rows = rows;
    if (columns < p.columns) panel_plain(p, unit, 0, columns);
}

void tsi_cpu_transpose(const tsi_loops *loops)
{
    int32_t row = loops->ndim - 2, column = loops->ndim - 1;
    int64_t unit = (int64_t)loops->unit, width = LINE / unit, columns = loops->extent[column];
    panel p = { .to = loops->to,
                .from = loops->from,
                .rows = loops->extent[row],
                .to_row = loops->to_stride[row],
                .to_column = loops->to_stride[column],
                .from_row = loops->from_stride[row],
                .from_column = loops->from_stride[column] };
    bool squares = unit <= 4 && p.to_column == unit && p.from_row == unit;
    for (int64_t c = 0; c < columns; c += width) {
        p.columns = tsi_min_i64(width, columns - c);
        if (squares)
            panel_squares(p, loops->unit);
        else
            panel_plain(p, loops->unit, 0, 0);
        p.to += width * p.to_column;
        p.from += width * p.from_column;
    }
}
