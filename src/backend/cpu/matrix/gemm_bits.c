/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_bits.c - does it change a product's bits how it is cut over m and n?
 *
 * Each result is a sum over k, and BLAS adds it up in an order that depends on k alone as long as
 * the same loop computes it; a boundary at a multiple of 32 moves no result from a whole tile to an
 * edge. Small products may have a loop of their own: no piece is smaller than TSI_GEMM_PIECE_LEAST.
 * Tiles of our own hold by their definition and are not tried; some libraries do not (0041).
 * Versions differ, though, so it is tried, once in a process and dtype: products in every
 * transposition, with odd sides and a k of several blocks, whole and in pieces just large enough.
 */
#include <stdatomic.h>
#include <string.h>

#include "backend/cpu/matrix/gemm.h"
#include "base/alloc.h"
#include "base/compiler.h"

enum { ROW_STEP = 64, COLUMN_STEP = 96, ROWS = ROW_STEP + 57, COLUMNS = COLUMN_STEP + 45 };
enum { DEPTH = 451 };
_Static_assert(2 * 57 * 45 * DEPTH >= TSI_GEMM_PIECE_LEAST, "the smallest piece is large enough");

/* Numbers of many sizes, so that another order of adding is another sum. */
static void fill(ts_dtype dtype, void *to, int64_t count)
{
    uint32_t random = 1;
    for (int64_t i = 0; i < count; i++) {
        random = random * 1664525u + 1013904223u;
        double x = ((double)(random >> 8) - 8388608.0) * (random & 16u ? 0.001 : 1.0);
        if (dtype == TS_DTYPE_F32)
            ((float *)to)[i] = (float)x;
        else
            ((double *)to)[i] = x;
    }
}

static void multiply_in_pieces(ts_dtype dtype, const tsi_gemm *whole)
{
    int64_t size = (int64_t)ts_dtype_size(dtype);
    for (int64_t row = 0; row < whole->m; row += ROW_STEP)
        for (int64_t column = 0; column < whole->n; column += COLUMN_STEP) {
            tsi_gemm g = *whole;
            g.m = whole->m - row < ROW_STEP ? whole->m - row : ROW_STEP;
            g.n = whole->n - column < COLUMN_STEP ? whole->n - column : COLUMN_STEP;
            g.a = (const char *)g.a + row * g.am * size;
            g.b = (const char *)g.b + column * g.bn * size;
            g.c = (char *)g.c + (row * g.cm + column) * size;
            (void)tsi_gemm_blas(dtype, &g);
        }
}

static bool try(ts_dtype dtype)
{
    size_t size = ts_dtype_size(dtype), results = (size_t)ROWS * COLUMNS;
    char *memory = tsi_calloc((size_t)(ROWS + COLUMNS) * DEPTH + 2 * results, size);
    if (!memory) return false;
    char *b = memory + (size_t)ROWS * DEPTH * size, *c = b + (size_t)COLUMNS * DEPTH * size;
    fill(dtype, memory, (int64_t)(ROWS + COLUMNS) * DEPTH);
    bool same = true;
    for (int turned = 0; turned < 4 && same; turned++) {
        bool at = turned & 1, bt = turned & 2;
        tsi_gemm g = { .m = ROWS, .n = COLUMNS, .k = DEPTH, .a = memory, .b = b, .c = c };
        g.am = at ? 1 : DEPTH;
        g.ak = at ? ROWS : 1;
        g.bk = bt ? 1 : COLUMNS;
        g.bn = bt ? DEPTH : 1;
        g.cm = COLUMNS;
        g.cn = 1;
        (void)tsi_gemm_blas(dtype, &g);
        g.c = c + results * size;
        multiply_in_pieces(dtype, &g);
        same = memcmp(c, g.c, results * size) == 0;
    }
    tsi_free(memory);
    return same;
}

bool tsi_gemm_bits_hold(ts_dtype dtype)
{
    enum { UNKNOWN, YES, NO };
    static _Atomic int known[2];
    if (dtype != TS_DTYPE_F32 && dtype != TS_DTYPE_F64) return false;
    if (dtype == TS_DTYPE_F32 && tsi_gemm_f32_is_ours()) return true;
    _Atomic int *mine = &known[dtype == TS_DTYPE_F64];
    int answer = atomic_load_explicit(mine, memory_order_relaxed);
    if (TSI_LIKELY(answer != UNKNOWN)) return answer == YES;
    answer = try(dtype) ? YES : NO; /* by several ranks at once: they find the same */
    atomic_store_explicit(mine, answer, memory_order_relaxed);
    return answer == YES;
}

double tsi_gemm_piece_least(ts_dtype dtype)
{
    const double worth = 500000; /* some microseconds */
    return dtype == TS_DTYPE_F32 && tsi_gemm_f32_is_ours() ? worth : TSI_GEMM_PIECE_LEAST;
}
