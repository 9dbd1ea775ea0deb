/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_bf16.c - bf16 matrix products with f32 sums, on the machine's own instructions.
 *
 * Chunks of at most 1024 rows and 2048 columns: both operands are packed into panels, in parallel;
 * then blocks of about 64 x 256 results, one task each, hold their f32 sums in the L2 cache while k
 * goes by in steps of 1024, and are rounded to bf16 once at the end. Where there are rows for one
 * such block alone, who computes it packs each panel of its columns as it comes to it.
 *
 * INV: a result is summed over k in one order, whatever the number of threads. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/matrix/gemm.h"
#include "device/cpu.h"
#include "device/guests.h"
#include "device/number.h"

enum {
    CHUNK_ROWS = 1024,
    CHUNK_COLUMNS = 2048,
    BLOCK_ROWS = 64,
    BLOCK_COLUMNS = 256,
    SUMS_MOST = 96 * BLOCK_COLUMNS, /* of a block whose rows are whole tiles */
    FEW_COLUMNS = 64,               /* of a block of all rows */
    DEPTH = 1024
};
_Static_assert(SUMS_MOST <= TSI_TILES_COLUMNS * TSI_TILES_DEPTH, "a guest's room holds a block");

/* ---- packing --------------------------------------------------------------------------------- */

static void pack_panels(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    for (int64_t panel = begin; panel < end; panel++)
        tsi_panel_pack(context, panel);
}

static void pack(ts_rank *rank, tsi_panels *p)
{
    int64_t grain = 32768 / (p->k * p->width) + 1;
    tsi_parallel_for(rank, (p->count - 1) / p->width + 1, grain, pack_panels, p);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

typedef struct blocks {
    const tsi_bf16_tile *tile;
    tsi_panels a, b;
    void *c;                                                /* bf16, or f32 (wide) */
    float *sums;                                            /* per worker */
    uint16_t *panel;                                        /* likewise, of b; NULL: b.to has all */
    int64_t m, n, k, cm, cn, row_step, column_step, across; /* across: blocks in a row of blocks */
    bool accumulate, wide;
} blocks;

/* A row of tiles below each other by one panel of b: groups of k from g on. */
static void multiply_panel(const blocks *x, int64_t row, int64_t rows, int64_t g, const uint16_t *b,
                           float *sum)
{
    const tsi_bf16_tile *tile = x->tile;
    int64_t groups = (x->k - 1) / tile->kr + 1, step = DEPTH / tile->kr;
    tsi_bf16_tiles t = { .count = (rows + tile->mr - 1) / tile->mr,
                         .a_step = x->a.panel_size,
                         .ldc = x->column_step };
    t.groups = groups - g < step ? groups - g : step;
    t.a = x->a.to + row / tile->mr * x->a.panel_size + g * tile->mr * tile->kr;
    t.b = b + g * tile->nr * tile->kr;
    t.c = sum;
    t.first = g == 0;
    tile->multiply(&t);
}

static void multiply_block(const blocks *x, int64_t row, int64_t column, int64_t rows,
                           int64_t columns, float *sum)
{
    const tsi_bf16_tile *tile = x->tile;
    for (int64_t g = 0; g * tile->kr < x->k; g += DEPTH / tile->kr)
        for (int64_t j = 0; j < columns; j += tile->nr)
            multiply_panel(x, row, rows, g, x->b.to + (column + j) / tile->nr * x->b.panel_size,
                           sum + j);
}

/* All rows: a panel is read while it is in the first cache. */
static void multiply_few(const blocks *x, int64_t column, int64_t columns, uint16_t *panel,
                         float *sum)
{
    const tsi_bf16_tile *tile = x->tile;
    for (int64_t j = 0; j < columns; j += tile->nr) {
        tsi_panel_pack_to(&x->b, (column + j) / tile->nr, panel);
        for (int64_t g = 0; g * tile->kr < x->k; g += DEPTH / tile->kr)
            multiply_panel(x, 0, x->m, g, panel, sum + j);
    }
}

static void store_wide(const blocks *x, float *to, const float *sum, int64_t columns)
{
    for (int64_t j = 0; j < columns; j++)
        to[j * x->cn] = x->accumulate ? to[j * x->cn] + sum[j] : sum[j];
}

static void store_row(const blocks *x, int64_t at, const float *sum, int64_t columns)
{
    if (x->wide) {
        store_wide(x, (float *)x->c + at, sum, columns);
        return;
    }
    uint16_t *to = (uint16_t *)x->c + at;
    if (!x->accumulate && x->cn == 1) {
        tsi_cpu_narrow_rows(TS_DTYPE_BF16, to, sum, columns);
        return;
    }
    for (int64_t j = 0; j < columns; j++) {
        uint16_t *c = to + j * x->cn;
        float before = x->accumulate ? tsi_f32_of_bf16(*c) : 0.0f;
        *c = tsi_bf16_of_f32(before + sum[j]);
    }
}

/* `panel`: of few rows. */
static void run_some(const blocks *x, int64_t begin, int64_t end, float *sum, uint16_t *panel)
{
    for (int64_t block = begin; block < end; block++) {
        int64_t row = block / x->across * x->row_step, column = block % x->across * x->column_step;
        int64_t rows = x->m - row < x->row_step ? x->m - row : x->row_step;
        int64_t columns = x->n - column < x->column_step ? x->n - column : x->column_step;
        tsi_bf16_begin(x->tile);
        if (panel)
            multiply_few(x, column, columns, panel, sum);
        else
            multiply_block(x, row, column, rows, columns, sum);
        tsi_bf16_end(x->tile);
        for (int64_t i = 0; i < rows; i++)
            store_row(x, (row + i) * x->cm + column * x->cn, sum + i * x->column_step, columns);
    }
}

static TSI_NOINLINE void run_on_stack(const blocks *x, int64_t begin, int64_t end)
{
    _Alignas(TSI_CACHE_LINE) float sum[SUMS_MOST];
    run_some(x, begin, end, sum, NULL);
}

static void run_blocks(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const blocks *x = context;
    tsi_tiles_room room;
    if (worker != TSI_GUEST)
        run_some(x, begin, end, x->sums + worker * x->row_step * x->column_step,
                 x->panel ? x->panel + worker * x->b.panel_size : NULL);
    else if (tsi_tiles_room_of_thread(&room))
        run_some(x, begin, end, room.b, NULL);
    else
        run_on_stack(x, begin, end);
}

/* ---- the product ----------------------------------------------------------------------------- */

/* Is there enough for others to come, and in pieces that are soon over? */
static bool is_for_guests(const blocks *x)
{
    return !x->panel && x->m * x->n * x->k >= TSI_GEMM_ALONE &&
           x->row_step * x->column_step * x->k <= TSI_GEMM_PIECE;
}

/* The part of the result at (row, column), with b packed. */
static void run_chunk(ts_rank *rank, const tsi_gemm *g, blocks *x, int64_t row, int64_t column)
{
    x->m = tsi_min_i64(g->m - row, CHUNK_ROWS);
    x->a.from = (const uint16_t *)g->a + row * g->am;
    x->a.count = x->m;
    int64_t at = row * g->cm + column * g->cn;
    x->c = g->wide ? (void *)((float *)g->c + at) : (void *)((uint16_t *)g->c + at);
    pack(rank, &x->a);
    x->across = (x->n - 1) / x->column_step + 1;
    int64_t down = (x->m - 1) / x->row_step + 1;
    if (is_for_guests(x))
        tsi_parallel_for_all(rank, x->across * down, 1, run_blocks, x);
    else
        tsi_parallel_for(rank, x->across * down, 1, run_blocks, x);
}

ts_status tsi_gemm_bf16(ts_rank *rank, const tsi_bf16_tile *tile, const tsi_gemm *g)
{
    bool few = g->m <= BLOCK_ROWS;
    int64_t most = few ? g->n : CHUNK_COLUMNS, threads = tsi_parallel_threads(rank);
    int64_t rows = tsi_round_up(tsi_min_i64(g->m, CHUNK_ROWS), tile->mr);
    int64_t columns = tsi_round_up(tsi_min_i64(g->n, most), tile->nr);
    blocks x = { .tile = tile,
                 .k = g->k,
                 .cm = g->cm,
                 .cn = g->cn,
                 .accumulate = g->accumulate,
                 .wide = g->wide };
    x.row_step = tsi_min_i64(tsi_round_up(BLOCK_ROWS, tile->mr), rows);
    x.column_step = tsi_min_i64(tsi_round_up(few ? FEW_COLUMNS : BLOCK_COLUMNS, tile->nr), columns);
    TSI_ASSERT(x.row_step * x.column_step <= SUMS_MOST);
    x.a = tsi_panels_a(tile, 0, g->k);
    x.b = tsi_panels_b(tile, 0, g->k);
    x.a.stride = g->am;
    x.a.k_stride = g->ak;
    x.b.stride = g->bn;
    x.b.k_stride = g->bk;
    size_t sums = (size_t)(threads * x.row_step * x.column_step);
    size_t of_a = (size_t)(rows / tile->mr * x.a.panel_size);
    size_t of_b = (size_t)((few ? threads : columns / tile->nr) * x.b.panel_size);
    tsi_scratch scratch;
    TSI_TRY(tsi_scratch_get(&scratch, rank, of_a + of_b + 2 * sums, sizeof(uint16_t)));
    x.sums = scratch.data;
    x.a.to = (uint16_t *)scratch.data + 2 * sums;
    x.b.to = x.a.to + of_a;
    x.panel = few ? x.b.to : NULL;
    for (int64_t column = 0; column < g->n; column += most) {
        x.n = tsi_min_i64(g->n - column, most);
        x.b.from = (const uint16_t *)g->b + column * g->bn;
        x.b.count = x.n;
        if (!few) pack(rank, &x.b);
        for (int64_t row = 0; row < g->m; row += CHUNK_ROWS)
            run_chunk(rank, g, &x, row, column);
    }
    tsi_scratch_done(&scratch);
    return TS_OK;
}
