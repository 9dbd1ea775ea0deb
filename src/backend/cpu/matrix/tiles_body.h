/* SPDX-License-Identifier: Apache-2.0 */
/* tiles_body.h - products of f32 in tiles, compiled once per instruction set: whoever includes it
 * names the function (TSI_TILES).
 *
 *   b     DEPTH numbers of k by as many columns as the room holds, as panels
 *         [columns / WIDE][depth][WIDE]: they stay in the second cache
 *   a     a band of rows, as tiles read them: by rows where k lies together and a product takes
 *         its number from memory, else [depth][TALL]
 *   c     TALL x WIDE sums in registers; a row of tiles after the other
 *
 * INV: a result is the sum of sums over DEPTH numbers of k each, every one from zero and in order:
 * its bits depend on k alone, not on the sides of the product, on where it stands in it or on the
 * room. Instruction sets with a fused product give the same ones. */
#include <string.h>

#include "backend/cpu/matrix/gemm.h"
#include "backend/cpu/rows/vf.h"

enum {
    DEPTH = TSI_TILES_DEPTH,
    VECTORS = 2,
    WIDE = VECTORS * VF_LANES,
    TALL = VF_REGISTERS == 32 ? 12 : 6,
    SHORT = 4,                   /* rows of the tiles below the last tall one */
    BLOCK = VF_BY_LANES ? 4 : 8, /* that is turned at once */
    RUN = 128,                   /* columns that are packed together */
    AHEAD = 8,                   /* rows of b that are on their way */
    NEAR = 1024,    /* between numbers of k that are read in place: no more than a page */
    IN_PLACE = 8192 /* numbers that stay in the first cache */
};
_Static_assert(TSI_TILES_BAND % TALL == 0 && TSI_TILES_BAND_LEAST % TALL == 0, "whole tiles");
_Static_assert(TSI_TILES_COLUMNS_LEAST % WIDE == 0 && WIDE % BLOCK == 0, "whole panels");

/* ---- panels of b ----------------------------------------------------------------------------- */

typedef float block_row __attribute__((vector_size(BLOCK * sizeof(float))));

/* BLOCK lines, `step` apart, of as many numbers that lie together: lines become columns of `to`. */
#if VF_BY_LANES
static TSI_INLINE void turn_block(const float *from, int64_t step, float *to, int64_t to_step)
{
    block_row x[BLOCK], pairs[BLOCK];
    for (int j = 0; j < BLOCK; j++)
        memcpy(&x[j], from + j * step, sizeof x[j]);
    for (int j = 0; j < BLOCK; j += 2) {
        pairs[j] = __builtin_shufflevector(x[j], x[j + 1], 0, 4, 1, 5);
        pairs[j + 1] = __builtin_shufflevector(x[j], x[j + 1], 2, 6, 3, 7);
    }
    for (int i = 0; i < 2; i++) {
        block_row first = __builtin_shufflevector(pairs[i], pairs[i + 2], 0, 1, 4, 5);
        block_row second = __builtin_shufflevector(pairs[i], pairs[i + 2], 2, 3, 6, 7);
        memcpy(to + 2 * i * to_step, &first, sizeof first);
        memcpy(to + (2 * i + 1) * to_step, &second, sizeof second);
    }
}
#else
static void turn_block(const float *from, int64_t step, float *to, int64_t to_step)
{
    block_row x[BLOCK], pairs[BLOCK], fours[BLOCK];
    for (int j = 0; j < BLOCK; j++)
        memcpy(&x[j], from + j * step, sizeof x[j]);
    for (int j = 0; j < BLOCK; j += 2) {
        pairs[j] = __builtin_shufflevector(x[j], x[j + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        pairs[j + 1] = __builtin_shufflevector(x[j], x[j + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int j = 0; j < BLOCK; j += 4)
        for (int i = 0; i < 2; i++) {
            block_row low = pairs[j + i], high = pairs[j + i + 2];
            fours[j + 2 * i] = __builtin_shufflevector(low, high, 0, 1, 8, 9, 4, 5, 12, 13);
            fours[j + 2 * i + 1] = __builtin_shufflevector(low, high, 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; i++) {
        block_row first = __builtin_shufflevector(fours[i], fours[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        block_row second =
            __builtin_shufflevector(fours[i], fours[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
        memcpy(to + i * to_step, &first, sizeof first);
        memcpy(to + (i + 4) * to_step, &second, sizeof second);
    }
}
#endif

/* Columns `column` .. of b that lie together, in whole panels: long runs of memory are read. */
static void pack_runs(const tsi_gemm *g, int64_t l, int64_t depth, int64_t column, int64_t columns,
                      float *to)
{
    const float *from = (const float *)g->b + l * g->bk + column;
    for (int64_t k = 0; k < depth; k++, from += g->bk, to += WIDE) {
        const float *next = k + AHEAD < depth ? from + AHEAD * g->bk : from;
        for (int64_t j = 0; j < columns; j += WIDE) {
            TSI_PREFETCH(next + j);
            memcpy(to + j * depth, from + j, WIDE * sizeof *to);
        }
    }
}

/* Columns `column` .. of b and `depth` numbers of k from l on; zeros where there is no column. */
static void pack_panel(const tsi_gemm *g, int64_t l, int64_t depth, int64_t column, float *to)
{
    const float *from = (const float *)g->b + l * g->bk + column * g->bn;
    int64_t columns = g->n - column < WIDE ? g->n - column : WIDE, done = 0;
    if (columns == WIDE && g->bk == 1)
        for (; done + BLOCK <= depth; done += BLOCK)
            for (int64_t j = 0; j < WIDE; j += BLOCK)
                turn_block(from + done + j * g->bn, g->bn, to + done * WIDE + j, WIDE);
    for (; done < depth; done++)
        for (int64_t j = 0; j < WIDE; j++)
            to[done * WIDE + j] = j < columns ? from[done * g->bk + j * g->bn] : 0.0f;
}

/* Of the columns from `column` on, those from `begin` to `end`. */
static void pack_panels(const tsi_gemm *g, int64_t l, int64_t depth, int64_t column, int64_t begin,
                        int64_t end, float *to)
{
    for (int64_t j = begin; j < end;) {
        int64_t run = g->bn == 1 ? (end - j < RUN ? end - j : RUN) / WIDE * WIDE : 0;
        if (run > 0)
            pack_runs(g, l, depth, column + j, run, to + j * depth);
        else
            pack_panel(g, l, depth, column + j, to + j * depth);
        j += run > 0 ? run : WIDE;
    }
}

/* ---- bands of a ------------------------------------------------------------------------------ */

#if VF_BY_LANES
/* Panels [depth][TALL], DEPTH * TALL apart, of rows whose numbers of k lie together. */
static void pack_rows(const tsi_gemm *g, const float *from, int64_t rows, int64_t depth, float *to)
{
    for (int64_t i = 0; i < rows; i += BLOCK, from += BLOCK * g->am) {
        float *panel = to + i / TALL * TALL * DEPTH + i % TALL;
        int64_t here = rows - i < BLOCK ? rows - i : BLOCK, l = 0;
        for (; here == BLOCK && l + BLOCK <= depth; l += BLOCK)
            turn_block(from + l, g->am, panel + l * TALL, TALL);
        for (; l < depth; l++)
            for (int64_t j = 0; j < BLOCK; j++)
                panel[l * TALL + j] = j < here ? from[j * g->am + l] : 0.0f;
    }
}
#else
/* Rows DEPTH apart; those that a tile reads beyond the last are zeros. */
static void pack_rows(const tsi_gemm *g, const float *from, int64_t rows, int64_t depth, float *to)
{
    size_t bytes = (size_t)depth * sizeof *to;
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + i * DEPTH, from + i * g->am, bytes);
    for (int64_t i = rows; i % TALL; i++)
        memset(to + i * DEPTH, 0, bytes);
}
#endif

/* Panels [depth][TALL], DEPTH * TALL apart; memory is read once, along m. */
static void pack_columns(const tsi_gemm *g, const float *from, int64_t rows, int64_t depth,
                         float *to)
{
    int64_t whole = g->am == 1 ? rows / TALL * TALL : 0;
    for (int64_t l = 0; l < depth; l++, from += g->ak, to += TALL) {
        for (int64_t i = 0; i < whole; i += TALL)
            memcpy(to + i * DEPTH, from + i, TALL * sizeof *to);
        for (int64_t i = whole; i < rows; i += TALL)
            for (int64_t j = 0; j < TALL; j++)
                to[i * DEPTH + j] = i + j < rows ? from[(i + j) * g->am] : 0.0f;
    }
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* Before a loop over the rows of a tile: where gcc does not write it out by itself, sums would go
 * to memory for each number of k. */
#if VF_BY_LANES
#define OVER_ROWS TSI_UNROLL
#else
#define OVER_ROWS
#endif

typedef struct strip { /* some rows of a by the columns of b that the room holds */
    const float *a, *b, *in_place;
    float *c;
    int64_t rows, depth, columns, cm;
    int64_t unpacked, step; /* columns that are read where they lie, and their numbers of k */
    bool add;               /* to what c holds */
} strip;

static TSI_INLINE void put_row(float *to, const vf *sum, int64_t columns, bool add)
{
    if (TSI_LIKELY(columns >= WIDE)) {
        for (int v = 0; v < VECTORS; v++) {
            vf here, one = sum[v];
            memcpy(&here, to + v * VF_LANES, sizeof here);
            if (add) one = here + one;
            memcpy(to + v * VF_LANES, &one, sizeof one);
        }
        return;
    }
    float one[WIDE];
    memcpy(one, sum, sizeof one);
    for (int64_t j = 0; j < columns; j++)
        to[j] = add ? to[j] + one[j] : one[j];
}

/* One number of k: the row x of b times the numbers of a that begin at `a`, by panels or, where
 * there are such bands, by rows. */
static TSI_INLINE void add_products(vf (*sum)[VECTORS], const vf *x, const float *a, int tall,
                                    bool by_rows)
{
#if VF_BY_LANES
    (void)by_rows;
    OVER_ROWS
    for (int i = 0; i < tall; i += VF_LANES) {
        vf y = (vf)vld1q_f32(a + i);
        for (int v = 0; v < VECTORS; v++) {
            sum[i][v] = vf_fma_lane(x[v], y, 0, sum[i][v]);
            sum[i + 1][v] = vf_fma_lane(x[v], y, 1, sum[i + 1][v]);
            sum[i + 2][v] = vf_fma_lane(x[v], y, 2, sum[i + 2][v]);
            sum[i + 3][v] = vf_fma_lane(x[v], y, 3, sum[i + 3][v]);
        }
    }
#else
    for (int i = 0; i < tall; i++) {
        vf y = vf_set(a[by_rows ? i * DEPTH : i]);
        for (int v = 0; v < VECTORS; v++)
            sum[i][v] = vf_fma(x[v], y, sum[i][v]);
    }
#endif
}

/* `tall` rows of s, of which some may be missing, from `column` on. */
static TSI_INLINE void tile(const strip *s, int tall, bool by_rows, int64_t column)
{
    vf sum[TALL][VECTORS];
    bool packed = column >= s->unpacked;
    const float *a = s->a, *b = packed ? s->b + column * s->depth : s->in_place + column;
    int64_t a_step = by_rows ? 1 : TALL, b_step = packed ? WIDE : s->step;
    float *c = s->c + column;
    for (int i = 0; i < tall; i++) {
        for (int v = 0; v < VECTORS; v++)
            sum[i][v] = (vf){ 0 };
        if (i < s->rows) TSI_PREFETCH(c + i * s->cm);
        if (i < s->rows) TSI_PREFETCH(c + i * s->cm + WIDE - 1);
    }
    for (int64_t l = 0; l < s->depth; l++, a += a_step, b += b_step) {
        vf x[VECTORS];
        for (int v = 0; v < VECTORS; v++)
            memcpy(&x[v], b + v * VF_LANES, sizeof x[v]);
        add_products(sum, x, a, tall, by_rows);
    }
    OVER_ROWS
    for (int i = 0; i < tall; i++)
        if (i < s->rows) put_row(c + i * s->cm, sum[i], s->columns - column, s->add);
}

static TSI_INLINE void sweep(const strip *s, int tall, bool by_rows)
{
    for (int64_t column = 0; column < s->columns; column += WIDE)
        tile(s, tall, by_rows, column);
}

/* All rows of a packed band. What is left below the last tall tile goes in one more where that
 * wastes less than a third, else in short ones. */
static TSI_INLINE void run_band(strip s, bool by_rows)
{
    const float *band = s.a;
    int64_t rows = s.rows, step;
    for (int64_t i = 0; i < rows; i += step, s.c += step * s.cm) {
        s.rows = rows - i;
        s.a = by_rows ? band + i * DEPTH : band + i / TALL * TALL * DEPTH + i % TALL;
        step = i % TALL == 0 && s.rows > TALL - TALL / 3 ? TALL : SHORT;
        if (step == TALL)
            sweep(&s, TALL, by_rows);
        else
            sweep(&s, SHORT, by_rows);
    }
}

static void run_rows(const strip *s)
{
    run_band(*s, true);
}

static void run_columns(const strip *s)
{
    run_band(*s, false);
}

/* ---- the product ----------------------------------------------------------------------------- */

/* Are columns of b that lie together read less often than packing them is worth? */
static bool is_read_in_place(const tsi_gemm *g, int64_t depth)
{
    bool few = g->m <= 2 * TALL && g->bk <= NEAR;
    return g->bn == 1 && (few || g->bk * depth <= IN_PLACE);
}

/* The columns of s, from `column` on, and its numbers of k from l on: all rows, band by band. */
static void run_block(const tsi_gemm *g, const tsi_tiles_room *room, strip s, int64_t l,
                      int64_t column)
{
    if (is_read_in_place(g, s.depth)) {
        s.in_place = (const float *)g->b + l * g->bk + column;
        s.unpacked = s.columns / WIDE * WIDE;
        s.step = g->bk;
    }
    pack_panels(g, l, s.depth, column, s.unpacked, s.columns, room->b);
    for (int64_t row = 0; row < g->m; row += room->rows) {
        const float *from = (const float *)g->a + row * g->am + l * g->ak;
        s.rows = g->m - row < room->rows ? g->m - row : room->rows;
        s.c = (float *)g->c + row * g->cm + column;
        if (g->ak == 1)
            pack_rows(g, from, s.rows, s.depth, room->band);
        else
            pack_columns(g, from, s.rows, s.depth, room->band);
        if (g->ak == 1 && !VF_BY_LANES)
            run_rows(&s);
        else
            run_columns(&s);
    }
}

void TSI_TILES(const tsi_gemm *g, const tsi_tiles_room *room)
{
    for (int64_t l = 0; l < g->k; l += DEPTH) {
        strip s = { .a = room->band, .b = room->b, .cm = g->cm, .add = g->accumulate || l > 0 };
        s.depth = g->k - l < DEPTH ? g->k - l : DEPTH;
        int64_t most = room->columns * DEPTH / s.depth / WIDE * WIDE; /* columns at a time */
        for (int64_t column = 0; column < g->n; column += most) {
            s.columns = g->n - column < most ? g->n - column : most;
            run_block(g, room, s, l, column);
        }
    }
}
