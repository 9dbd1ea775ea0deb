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
 * Few rows read b where it lies, since packing it would be for one tile; where it has to be turned,
 * a panel is packed and read at once.
 *
 * INV: a result is the sum of sums over DEPTH numbers of k each, every one from zero and in order:
 * its bits depend on k alone, not on the sides of the product, on where it stands in it or on the
 * room. Instruction sets with a fused product give the same ones. */
#include <string.h>

#include "backend/cpu/matrix/gemm.h"
#include "backend/cpu/rows/vf.h"
#include "device/guests.h"

enum {
    DEPTH = TSI_TILES_DEPTH,
    VECTORS = 2,
    WIDE = VECTORS * VF_LANES,
    TALL = VF_REGISTERS == 32 ? 12 : 6,
    MIDDLE = 8,                  /* rows of tiles where sums of short ones wait for each other */
    SHORT = 4,                   /* rows of the tiles below the last tall one */
    BLOCK = VF_BY_LANES ? 4 : 8, /* that is turned at once */
    RUN = 128,                   /* columns that are packed together */
    FEW = TSI_TILES_BAND_LEAST,  /* rows for which no panel of b is kept */
    CHUNK = 8,                   /* rows of b that are read side by side */
    AHEAD = 8,                   /* rows of b that are on their way */
    NEAR = 1024,                 /* between numbers of k that are read in place: a page at most */
    IN_PLACE = 8192              /* numbers that stay in the first cache */
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

/* The same of whole blocks of numbers of k, which lie together; returns how many numbers. A line of
 * memory is read at once: columns may lie apart by what a cache takes for the same place. Those of
 * the next panel come to the second cache meanwhile. */
static int64_t pack_turned(const float *from, int64_t step, int64_t depth, float *to)
{
    enum { LINE = TSI_CACHE_LINE / (int)sizeof(float) };
    int64_t done = 0;
    for (; done + LINE <= depth; done += LINE)
        for (int64_t j = 0; j < WIDE; j += BLOCK) {
            for (int64_t i = j; i < j + BLOCK; i++)
                TSI_PREFETCH_NEAR(from + done + (WIDE + i) * step);
            for (int64_t l = done; l < done + LINE; l += BLOCK)
                turn_block(from + l + j * step, step, to + l * WIDE + j, WIDE);
        }
    for (; done + BLOCK <= depth; done += BLOCK)
        for (int64_t j = 0; j < WIDE; j += BLOCK)
            turn_block(from + done + j * step, step, to + done * WIDE + j, WIDE);
    return done;
}

/* Columns `column` .. of b and `depth` numbers of k from l on; zeros where there is no column. */
static void pack_panel(const tsi_gemm *g, int64_t l, int64_t depth, int64_t column, float *to)
{
    const float *from = (const float *)g->b + l * g->bk + column * g->bn;
    int64_t columns = g->n - column < WIDE ? g->n - column : WIDE, done = 0;
    if (columns == WIDE && g->bk == 1) done = pack_turned(from, g->bn, depth, to);
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

/* The same for `depth` numbers of k. */
static TSI_INLINE void add_depth(vf (*sum)[VECTORS], const float *a, const float *b, int64_t b_step,
                                 int64_t depth, int tall, bool by_rows)
{
    for (int64_t l = 0; l < depth; l++, a += by_rows ? 1 : TALL, b += b_step) {
        vf x[VECTORS];
        for (int v = 0; v < VECTORS; v++)
            memcpy(&x[v], b + v * VF_LANES, sizeof x[v]);
        add_products(sum, x, a, tall, by_rows);
    }
}

/* `tall` rows of s, of which some may be missing, from `column` on. */
static TSI_INLINE void tile(const strip *s, int tall, bool by_rows, int64_t column)
{
    vf sum[TALL][VECTORS];
    bool packed = column >= s->unpacked;
    const float *b = packed ? s->b + column * s->depth : s->in_place + column;
    float *c = s->c + column;
    for (int i = 0; i < tall; i++) {
        for (int v = 0; v < VECTORS; v++)
            sum[i][v] = (vf){ 0 };
        if (i < s->rows) TSI_PREFETCH(c + i * s->cm);
        if (i < s->rows) TSI_PREFETCH(c + i * s->cm + WIDE - 1);
    }
    add_depth(sum, s->a, b, packed ? WIDE : s->step, s->depth, tall, by_rows);
    OVER_ROWS
    for (int i = 0; i < tall; i++)
        if (i < s->rows) put_row(c + i * s->cm, sum[i], s->columns - column, s->add);
}

static TSI_INLINE void sweep(const strip *s, int tall, bool by_rows)
{
    for (int64_t column = 0; column < s->columns; column += WIDE)
        tile(s, tall, by_rows, column);
}

/* Rows of the tile that begins at row i of a band. What is left below the last tall tile goes in
 * one more where that wastes less than a third, else in shorter ones. */
static inline int64_t tile_rows(int64_t i, int64_t rows)
{
    bool begins = i % TALL == 0;
    if (begins && rows - i > TALL - TALL / 3) return TALL;
    return VF_BY_LANES && begins && rows - i > SHORT ? MIDDLE : SHORT;
}

/* Row i of a packed band. */
static inline const float *row_of(const float *band, int64_t i, bool by_rows)
{
    return by_rows ? band + i * DEPTH : band + i / TALL * TALL * DEPTH + i % TALL;
}

/* All rows of a packed band. */
static TSI_INLINE void run_band(strip s, bool by_rows)
{
    const float *band = s.a;
    int64_t rows = s.rows, step;
    for (int64_t i = 0; i < rows; i += step, s.c += step * s.cm) {
        s.rows = rows - i;
        s.a = row_of(band, i, by_rows);
        step = tile_rows(i, rows);
        if (step == TALL)
            sweep(&s, TALL, by_rows);
        else if (VF_BY_LANES && step == MIDDLE)
            sweep(&s, MIDDLE, by_rows);
        else
            sweep(&s, SHORT, by_rows);
    }
}

/* ---- few rows by a b whose rows lie far apart ------------------------------------------------
 *
 * A panel would be packed for the one tile that reads it. Instead b is read where it lies, CHUNK
 * rows at a time along all columns, and between two chunks sums lie in memory, panel by panel:
 * [FEW][WIDE]. */

/* The sums of a tile go on by `depth` numbers of k. */
static TSI_INLINE void go_on(float *sums, const float *a, const float *b, int64_t b_step,
                             int64_t depth, int tall, bool by_rows)
{
    vf sum[TALL][VECTORS];
    OVER_ROWS
    for (int i = 0; i < tall; i++)
        for (int v = 0; v < VECTORS; v++)
            memcpy(&sum[i][v], sums + i * WIDE + v * VF_LANES, sizeof sum[i][v]);
    add_depth(sum, a, b, b_step, depth, tall, by_rows);
    OVER_ROWS
    for (int i = 0; i < tall; i++)
        for (int v = 0; v < VECTORS; v++)
            memcpy(sums + i * WIDE + v * VF_LANES, &sum[i][v], sizeof sum[i][v]);
}

/* All rows by one panel of columns, from number l of k on. */
static TSI_INLINE void go_on_rows(const strip *s, float *sums, const float *b, int64_t b_step,
                                  int64_t l, int64_t depth, bool by_rows)
{
    int64_t step;
    for (int64_t i = 0; i < s->rows; i += step) {
        const float *a = row_of(s->a, i, by_rows) + l * (by_rows ? 1 : TALL);
        step = tile_rows(i, s->rows);
        if (step == TALL)
            go_on(sums + i * WIDE, a, b, b_step, depth, TALL, by_rows);
        else if (VF_BY_LANES && step == MIDDLE)
            go_on(sums + i * WIDE, a, b, b_step, depth, MIDDLE, by_rows);
        else
            go_on(sums + i * WIDE, a, b, b_step, depth, SHORT, by_rows);
    }
}

static TSI_INLINE void run_few(const strip *s, float *sums, bool by_rows)
{
    int64_t whole = s->columns / WIDE * WIDE;
    for (int64_t l = 0; l < s->depth; l += CHUNK) {
        int64_t depth = s->depth - l < CHUNK ? s->depth - l : CHUNK;
        for (int64_t j = 0; j < whole; j += WIDE)
            go_on_rows(s, sums + j * FEW, s->in_place + l * s->step + j, s->step, l, depth,
                       by_rows);
    }
    if (whole < s->columns) go_on_rows(s, sums + whole * FEW, s->b, WIDE, 0, s->depth, by_rows);
    for (int64_t j = 0; j < s->columns; j += WIDE)
        for (int64_t i = 0; i < s->rows; i++) {
            vf row[VECTORS];
            memcpy(row, sums + j * FEW + i * WIDE, sizeof row);
            put_row(s->c + i * s->cm + j, row, s->columns - j, s->add);
        }
}

/* ---- the product ----------------------------------------------------------------------------- */

/* Rows of s from `from` on, as its band. */
static void pack_band(const tsi_gemm *g, const float *from, const strip *s, float *band)
{
    if (g->ak == 1)
        pack_rows(g, from, s->rows, s->depth, band);
    else
        pack_columns(g, from, s->rows, s->depth, band);
}

static inline bool packs_by_rows(const tsi_gemm *g)
{
    return !VF_BY_LANES && g->ak == 1;
}

static void run_packed(const tsi_gemm *g, strip s)
{
    if (packs_by_rows(g))
        run_band(s, true);
    else
        run_band(s, false);
}

/* Are columns of b that lie together read less often than packing them is worth? */
static bool is_read_in_place(const tsi_gemm *g, int64_t depth)
{
    bool few = g->m <= 2 * TALL && g->bk <= NEAR;
    return g->bn == 1 && (few || g->bk * depth <= IN_PLACE);
}

/* Where panels would be packed for few rows, and the room for them takes the sums instead, and one
 * panel. */
static bool is_streamed(const tsi_gemm *g, const tsi_tiles_room *room, const strip *s)
{
    int64_t needs = (s->columns + WIDE) * FEW + s->depth * WIDE;
    return g->bn == 1 && g->m <= FEW && !is_read_in_place(g, s->depth) &&
           needs <= room->columns * DEPTH;
}

/* The columns of s and its numbers of k, of few rows. */
static void stream_block(const tsi_gemm *g, const tsi_tiles_room *room, strip s, int64_t l,
                         int64_t column)
{
    int64_t whole = s.columns / WIDE * WIDE, panels = (s.columns + WIDE - 1) / WIDE * WIDE;
    const float *from = (const float *)g->a + l * g->ak;
    float *packed = room->b + panels * FEW;
    s.in_place = (const float *)g->b + l * g->bk + column;
    s.step = g->bk;
    s.rows = g->m;
    s.c = (float *)g->c + column;
    s.b = packed;
    memset(room->b, 0, (size_t)(panels * FEW) * sizeof *room->b);
    if (whole < s.columns) pack_panel(g, l, s.depth, column + whole, packed);
    pack_band(g, from, &s, room->band);
    if (packs_by_rows(g))
        run_few(&s, room->b, true);
    else
        run_few(&s, room->b, false);
}

/* All rows by the columns of s, which are packed: bands of `rows`, one a piece. */
typedef struct bands {
    const tsi_gemm *g;
    const float *a; /* at the first number of k */
    strip s;        /* of the first row */
    float *band;    /* whose thread it is has it; guests have their own */
    int64_t rows;
} bands;

/* Rows begin .. end-1, as many at a time as `band` holds. */
static void run_rows(const bands *x, int64_t begin, int64_t end, float *band, int64_t most)
{
    strip s = x->s;
    s.a = band;
    for (int64_t row = begin; row < end; row += most) {
        s.rows = end - row < most ? end - row : most;
        s.c = x->s.c + row * s.cm;
        pack_band(x->g, x->a + row * x->g->am, &s, band);
        run_packed(x->g, s);
    }
}

static TSI_NOINLINE void run_on_stack(const bands *x, int64_t begin, int64_t end)
{
    _Alignas(TSI_CACHE_LINE) float band[TSI_TILES_BAND_LEAST * TSI_TILES_DEPTH];
    run_rows(x, begin, end, band, TSI_TILES_BAND_LEAST);
}

static void run_bands(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const bands *x = context;
    tsi_tiles_room room;
    int64_t first = begin * x->rows, last = end * x->rows < x->g->m ? end * x->rows : x->g->m;
    if (worker != TSI_GUEST)
        run_rows(x, first, last, x->band, x->rows);
    else if (tsi_tiles_room_of_thread(&room))
        run_rows(x, first, last, room.band, room.rows);
    else
        run_on_stack(x, first, last);
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
    s.c = (float *)g->c + column;
    bands x = { g, (const float *)g->a + l * g->ak, s, room->band, room->rows };
    int64_t count = (g->m - 1) / room->rows + 1;
    if (!g->rank || g->m * s.columns * s.depth < TSI_GEMM_ALONE)
        run_bands(&x, 0, count, g->worker);
    else
        tsi_guests_loop(g->rank, g->worker, count, run_bands, &x);
}

/* Few rows by columns whose numbers of k lie together: a panel is read while it is in the first
 * cache. */
static void run_panels(const tsi_gemm *g, const tsi_tiles_room *room, strip s, int64_t l,
                       int64_t column)
{
    int64_t end = column + s.columns;
    s.rows = g->m;
    pack_band(g, (const float *)g->a + l * g->ak, &s, room->band);
    for (; column < end; column += WIDE) {
        s.columns = end - column < WIDE ? end - column : WIDE;
        s.c = (float *)g->c + column;
        pack_panel(g, l, s.depth, column, room->b);
        run_packed(g, s);
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
            if (g->bk == 1 && g->m <= FEW)
                run_panels(g, room, s, l, column);
            else if (is_streamed(g, room, &s))
                stream_block(g, room, s, l, column);
            else
                run_block(g, room, s, l, column);
        }
    }
}
