/* SPDX-License-Identifier: Apache-2.0 */
/* bf16.c - tiles of bf16 products by tdpbf16ps: 32 x 32 results in four tile registers.
 *
 * A tile register holds 16 rows of 64 bytes. One tdpbf16ps adds to 16 x 16 results the products of
 * 16 rows of a, 32 numbers each, by 16 rows of b, each the pairs of 16 columns. Registers are
 * shaped for the length of a block and given back after it, since a thread that holds them is
 * expensive to switch. Called only where the machine has AMX and the system has granted it; such a
 * machine has AVX512_BF16, too. */
#include <immintrin.h>

#include "backend/cpu/matrix/gemm.h"

enum { ROWS = 32, COLUMNS = 32, DEPTH = 32, SIDE = 16, TILE_BYTES = 64 };

typedef struct shapes { /* as ldtilecfg wants it */
    uint8_t palette, start;
    uint8_t reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} shapes;

/* Constant, since compilers know of _tile_loadconfig that it reads the first bytes alone: to a
 * variable they would write no others. */
static const shapes eight_tiles = {
    .palette = 1,
    .bytes = { TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES,
               TILE_BYTES },
    .rows = { SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE },
};

static void take_tiles(void)
{
    _tile_loadconfig(&eight_tiles);
}

/* 0 1 / 2 3: results; 4 5: rows of a, upper and lower; 6 7: columns of b, left and right. */
static void load_results(const float *c, int64_t ldc, bool first)
{
    size_t bytes = (size_t)ldc * sizeof *c;
    if (first) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        return;
    }
    _tile_loadd(0, c, bytes);
    _tile_loadd(1, c + SIDE, bytes);
    _tile_loadd(2, c + SIDE * ldc, bytes);
    _tile_loadd(3, c + SIDE * ldc + SIDE, bytes);
}

static void store_results(float *c, int64_t ldc)
{
    size_t bytes = (size_t)ldc * sizeof *c;
    _tile_stored(0, c, bytes);
    _tile_stored(1, c + SIDE, bytes);
    _tile_stored(2, c + SIDE * ldc, bytes);
    _tile_stored(3, c + SIDE * ldc + SIDE, bytes);
}

static void multiply_one(const tsi_bf16_tiles *x, const uint16_t *a, float *c)
{
    const uint16_t *b = x->b;
    load_results(c, x->ldc, x->first);
    for (int64_t g = 0; g < x->groups; g++, a += ROWS * DEPTH, b += COLUMNS * DEPTH) {
        _tile_loadd(4, a, TILE_BYTES);
        _tile_loadd(6, b, 2 * TILE_BYTES);
        _tile_loadd(7, b + TILE_BYTES / 2, 2 * TILE_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + SIDE * DEPTH, TILE_BYTES);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    store_results(c, x->ldc);
}

static void multiply(const tsi_bf16_tiles *x)
{
    for (int64_t i = 0; i < x->count; i++)
        multiply_one(x, x->a + i * x->a_step, x->c + i * ROWS * x->ldc);
}

static void give_tiles(void)
{
    _tile_release();
}

const tsi_bf16_tile tsi_bf16_tile_amx = {
    .name = "amx_bf16",
    .mr = ROWS,
    .nr = COLUMNS,
    .kr = DEPTH,
    .ka = DEPTH,
    .kb = 2,
    .run = 32, /* of tsi_weigh_avx512 */
    .multiply = multiply,
    .begin = take_tiles,
    .end = give_tiles,
    .dot = tsi_dot_avx512,
    .weigh = tsi_weigh_avx512,
    .weigh_near = tsi_weigh_near_avx512,
    .weigh_back = tsi_weigh_back_avx512,
};
