/* SPDX-License-Identifier: Apache-2.0 */
/* bf16.c - bf16 matrix products with f32 sums, on the machine's own instructions.
 *
 *   chunks of at most 1024 rows and 2048 columns: both operands are packed into panels, in
 * parallel; then blocks of about 64 x 256 results, one task each, hold their f32 sums in the L2
 * cache while k goes by in steps of 1024, and are rounded to bf16 once at the end.
 *
 * INV: a result is summed over k in one order, whatever the number of threads. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/machine.h"
#include "base/compiler.h"
#include "device/cpu.h"
#include "device/number.h"

enum {
    CHUNK_ROWS = 1024,
    CHUNK_COLUMNS = 2048,
    BLOCK_ROWS = 64,
    BLOCK_COLUMNS = 256,
    DEPTH = 1024
};

const tsi_bf16_tile *tsi_bf16_tile_of_machine(void)
{
#if defined(__aarch64__)
    if (tsi_machine() & TSI_MACHINE_NEON_BF16) return &tsi_bf16_tile_neon;
#elif defined(__x86_64__)
    if (tsi_machine() & TSI_MACHINE_AMX_BF16) return &tsi_bf16_tile_amx;
    if (tsi_machine() & TSI_MACHINE_AVX512_BF16) return &tsi_bf16_tile_avx512;
#endif
    return NULL;
}

/* ---- packing --------------------------------------------------------------------------------- */

/* One operand as panels: `count` rows (or columns) in panels of `width`. */
typedef struct panels {
    const tsi_bf16_tile *tile;
    const uint16_t *from;
    uint16_t *to;
    int64_t count, k, stride, k_stride, width;
    int64_t panel_size; /* elements */
    int64_t together;   /* numbers of k that lie together: the tile's ka or kb */
} panels;

static void pack_element(const panels *p, int64_t first, int64_t rows, int64_t group, uint16_t *to)
{
    for (int64_t r = 0; r < p->width; r++)
        for (int64_t l = 0; l < p->together; l++) {
            int64_t k = group * p->together + l;
            bool there = r < rows && k < p->k;
            to[r * p->together + l] =
                there ? p->from[(first + r) * p->stride + k * p->k_stride] : 0;
        }
}

static TSI_INLINE void pack_runs(const panels *p, int64_t first, int64_t groups, uint16_t *to,
                                 int64_t run)
{
    const uint16_t *from = p->from + first * p->stride;
    for (int64_t g = 0; g < groups; g++)
        for (int64_t r = 0; r < p->width; r++)
            memcpy(to + (g * p->width + r) * run, from + r * p->stride + g * run,
                   (size_t)run * sizeof *to);
}

/* k is contiguous: a group of a row is one short copy, of a length the compiler knows. */
static void pack_along(const panels *p, int64_t first, int64_t groups, uint16_t *to)
{
    if (p->together == 2)
        pack_runs(p, first, groups, to, 2);
    else if (p->together == 4)
        pack_runs(p, first, groups, to, 4);
    else
        pack_runs(p, first, groups, to, 32);
}

/* Rows are contiguous, pairs of k lie together: two rows of k become one of pairs. */
static void pack_pairs(const panels *p, int64_t first, int64_t groups, uint16_t *to)
{
    const uint16_t *from = p->from + first;
    for (int64_t g = 0; g < groups; g++, to += 2 * p->width) {
        const uint16_t *even = from + 2 * g * p->k_stride, *odd = even + p->k_stride;
        for (int64_t r = 0; r < p->width; r++) {
            to[2 * r] = even[r];
            to[2 * r + 1] = odd[r];
        }
    }
}

static void pack_panel(const panels *p, int64_t panel)
{
    int64_t run = p->together, whole = p->k / run, groups = p->panel_size / (p->width * run), g = 0;
    int64_t first = panel * p->width;
    int64_t rows = p->count - first < p->width ? p->count - first : p->width;
    uint16_t *to = p->to + panel * p->panel_size;
    if (rows == p->width && p->k_stride == 1 && (run == 2 || run == 4 || run == 32)) {
        pack_along(p, first, whole, to);
        g = whole;
    } else if (rows == p->width && p->stride == 1 && p->tile->pack_across && p->width == 8) {
        p->tile->pack_across(to, p->from + first, p->k_stride, whole);
        g = whole;
    } else if (rows == p->width && p->stride == 1 && run == 2) {
        pack_pairs(p, first, whole, to);
        g = whole;
    }
    for (; g < groups; g++)
        pack_element(p, first, rows, g, to + g * p->width * run);
}

static void pack_panels(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    for (int64_t panel = begin; panel < end; panel++)
        pack_panel(context, panel);
}

static void pack(ts_rank *rank, const panels *p)
{
    panels mine = *p;
    int64_t grain = 32768 / (mine.k * mine.width) + 1;
    tsi_parallel_for(rank, (mine.count - 1) / mine.width + 1, grain, pack_panels, &mine);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

typedef struct blocks {
    const tsi_bf16_tile *tile;
    panels a, b;
    uint16_t *c;
    float *sums;                                            /* per worker */
    int64_t m, n, k, cm, cn, row_step, column_step, across; /* across: blocks in a row of blocks */
    bool accumulate;
} blocks;

static void multiply_block(const blocks *x, int64_t row, int64_t column, int64_t rows,
                           int64_t columns, float *sum)
{
    const tsi_bf16_tile *tile = x->tile;
    int64_t groups = (x->k - 1) / tile->kr + 1, step = DEPTH / tile->kr;
    for (int64_t g = 0; g < groups; g += step) {
        int64_t depth = groups - g < step ? groups - g : step;
        for (int64_t j = 0; j < columns; j += tile->nr) {
            const uint16_t *b =
                x->b.to + (column + j) / tile->nr * x->b.panel_size + g * tile->nr * tile->kr;
            for (int64_t i = 0; i < rows; i += tile->mr) {
                const uint16_t *a =
                    x->a.to + (row + i) / tile->mr * x->a.panel_size + g * tile->mr * tile->kr;
                tile->multiply(depth, a, b, sum + i * x->column_step + j, x->column_step, g == 0);
            }
        }
    }
}

static void store_row(const blocks *x, uint16_t *to, const float *sum, int64_t columns)
{
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

static void run_blocks(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const blocks *x = context;
    float *sum = x->sums + worker * x->row_step * x->column_step;
    for (int64_t block = begin; block < end; block++) {
        int64_t row = block / x->across * x->row_step, column = block % x->across * x->column_step;
        int64_t rows = x->m - row < x->row_step ? x->m - row : x->row_step;
        int64_t columns = x->n - column < x->column_step ? x->n - column : x->column_step;
        multiply_block(x, row, column, rows, columns, sum);
        for (int64_t i = 0; i < rows; i++)
            store_row(x, x->c + (row + i) * x->cm + column * x->cn, sum + i * x->column_step,
                      columns);
    }
}

/* ---- the product ----------------------------------------------------------------------------- */

static int64_t round_up(int64_t value, int64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The part of the result at (row, column), with b packed. */
static void run_chunk(ts_rank *rank, const tsi_gemm *g, blocks *x, int64_t row, int64_t column)
{
    x->m = smaller(g->m - row, CHUNK_ROWS);
    x->a.from = (const uint16_t *)g->a + row * g->am;
    x->a.count = x->m;
    x->c = (uint16_t *)g->c + row * g->cm + column * g->cn;
    pack(rank, &x->a);
    x->across = (x->n - 1) / x->column_step + 1;
    int64_t down = (x->m - 1) / x->row_step + 1;
    tsi_parallel_for(rank, x->across * down, 1, run_blocks, x);
}

ts_status tsi_gemm_bf16(ts_rank *rank, const tsi_bf16_tile *tile, const tsi_gemm *g)
{
    int64_t depth = round_up(g->k, tile->kr);
    int64_t rows = round_up(smaller(g->m, CHUNK_ROWS), tile->mr);
    int64_t columns = round_up(smaller(g->n, CHUNK_COLUMNS), tile->nr);
    blocks x = { .tile = tile, .k = g->k, .cm = g->cm, .cn = g->cn, .accumulate = g->accumulate };
    x.row_step = smaller(round_up(BLOCK_ROWS, tile->mr), rows);
    x.column_step = smaller(round_up(BLOCK_COLUMNS, tile->nr), columns);
    x.a = (panels){ .tile = tile, .k = g->k, .stride = g->am, .k_stride = g->ak };
    x.b = (panels){ .tile = tile, .k = g->k, .stride = g->bn, .k_stride = g->bk };
    x.a.width = tile->mr;
    x.b.width = tile->nr;
    x.a.together = tile->ka;
    x.b.together = tile->kb;
    x.a.panel_size = depth * tile->mr;
    x.b.panel_size = depth * tile->nr;
    size_t sums = (size_t)(tsi_parallel_threads(rank) * x.row_step * x.column_step);
    tsi_scratch scratch;
    TSI_TRY(tsi_scratch_get(&scratch, rank, (size_t)((rows + columns) * depth) + 2 * sums,
                            sizeof(uint16_t)));
    x.sums = scratch.data;
    x.a.to = (uint16_t *)scratch.data + 2 * sums;
    x.b.to = x.a.to + rows * depth;
    for (int64_t column = 0; column < g->n; column += CHUNK_COLUMNS) {
        x.n = smaller(g->n - column, CHUNK_COLUMNS);
        x.b.from = (const uint16_t *)g->b + column * g->bn;
        x.b.count = x.n;
        pack(rank, &x.b);
        for (int64_t row = 0; row < g->m; row += CHUNK_ROWS)
            run_chunk(rank, g, &x, row, column);
    }
    tsi_scratch_done(&scratch);
    return TS_OK;
}
