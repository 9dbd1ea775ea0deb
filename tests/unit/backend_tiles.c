/* SPDX-License-Identifier: Apache-2.0 */
/* backend_tiles.c - products of f32 in our own tiles, in every instruction set this machine runs:
 * the bits of the definition for every side around a tile, every order in memory, added to what is
 * there or not, with the room of a thread and with the least. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/machine.h"
#include "backend/cpu/matrix/gemm.h"
#include "base/compiler.h"
#include "harness/test.h"

enum { SIDE = 70, K_MOST = 600, ROOM_COLUMNS = 64, FAR = 1100, WAYS = 64 };

typedef struct set {
    const char *name;
    void (*multiply)(const tsi_gemm *gemm, const tsi_tiles_room *room);
    bool fused;
} set;

static int32_t sets(set *out)
{
    int32_t count = 0;
#if defined(__aarch64__)
    out[count++] = (set){ "base", tsi_tiles_base, true };
#else
    out[count++] = (set){ "base", tsi_tiles_base, false };
#endif
#if defined(__x86_64__)
    if (tsi_machine() & TSI_MACHINE_AVX2) out[count++] = (set){ "avx2", tsi_tiles_avx2, true };
    if (tsi_machine() & TSI_MACHINE_AVX512)
        out[count++] = (set){ "avx512", tsi_tiles_avx512, true };
#endif
    return count;
}

static float rounded(float a, float b, float c, bool fused)
{
    volatile float product = a * b; /* or the compiler may fuse it */
    return fused ? fmaf(a, b, c) : product + c;
}

static float defined(const tsi_gemm *g, int64_t i, int64_t j, float before, bool fused)
{
    const float *a = g->a, *b = g->b;
    float total = before;
    for (int64_t l = 0; l < g->k;) {
        float sum = 0;
        bool first = l == 0 && !g->accumulate;
        do {
            sum = rounded(b[l * g->bk + j * g->bn], a[i * g->am + l * g->ak], sum, fused);
        } while (++l < g->k && l % TSI_TILES_DEPTH);
        total = first ? sum : total + sum;
    }
    return total;
}

static float number(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(*state >> 40) / 8388608.0 - 1.0);
}

typedef struct operands {
    float a[(SIDE + 2) * K_MOST], b[FAR * K_MOST], c[30 * 302];
    _Alignas(64) float band[TSI_TILES_BAND * TSI_TILES_DEPTH];
    _Alignas(64) float panels[ROOM_COLUMNS * TSI_TILES_DEPTH];
} operands;

/* Bit 0: a lies by columns, bit 1: b by columns, bit 2: added up, bit 3: the least room, bit 4:
 * rows with gaps, bit 5: rows of b far apart. */
static bool is_right(const set *s, operands *o, int64_t m, int64_t n, int64_t k, int way)
{
    int64_t gap = way & 16 ? 2 : 0;
    bool a_down = way & 1, b_down = way & 2;
    tsi_gemm g = { .m = m, .n = n, .k = k, .a = o->a, .b = o->b, .c = o->c, .cn = 1 };
    g.am = a_down ? 1 : k;
    g.ak = a_down ? m + gap : 1;
    g.bk = b_down ? 1 : way & 32 ? FAR : n + gap;
    g.bn = b_down ? k : 1;
    g.cm = n + gap;
    g.accumulate = way & 4;
    tsi_tiles_room room = { o->band, o->panels, TSI_TILES_BAND, ROOM_COLUMNS };
    if (way & 8) {
        room.rows = TSI_TILES_BAND_LEAST;
        room.columns = TSI_TILES_COLUMNS_LEAST;
    }
    for (int64_t i = 0; i < m * g.cm; i++)
        o->c[i] = (float)i;
    s->multiply(&g, &room);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < g.cm; j++) {
            float before = (float)(i * g.cm + j), got = o->c[i * g.cm + j];
            float want = j < n ? defined(&g, i, j, before, s->fused) : before;
            if (memcmp(&got, &want, sizeof got) != 0) return false;
        }
    return true;
}

static void fill(operands *o)
{
    uint64_t state = 7;
    for (size_t i = 0; i < TSI_COUNT_OF(o->a); i++)
        o->a[i] = number(&state);
    for (size_t i = 0; i < TSI_COUNT_OF(o->b); i++)
        o->b[i] = number(&state);
}

TS_TEST(tiles_have_the_bits_of_their_definition)
{
    static const int64_t sides[] = { 1,  2,  3,  4,  5,  6,  7,  8,  9,  12, 13, 16,
                                     17, 24, 31, 32, 33, 48, 49, 63, 64, 65, 70 };
    static const int64_t depths[] = { 1, 2, 7, 8, 9, 17, 255, 256, 257, 600 };
    operands *o = malloc(sizeof *o);
    set all[3];
    int32_t count = sets(all);
    fill(o);
    for (int32_t s = 0; s < count; s++)
        for (size_t i = 0; i < TSI_COUNT_OF(sides); i++)
            for (size_t j = 0; j < TSI_COUNT_OF(sides); j++) {
                size_t number = i * TSI_COUNT_OF(sides) + j;
                int64_t k = depths[number % TSI_COUNT_OF(depths)];
                int way = (int)(number * 7 % WAYS);
                TEST_SAY(t, is_right(&all[s], o, sides[i], sides[j], k, way),
                         "%s: %lld x %lld x %lld, way %d: other bits", all[s].name,
                         (long long)sides[i], (long long)sides[j], (long long)k, way);
            }
    free(o);
}

TS_TEST(tiles_of_every_way)
{
    operands *o = malloc(sizeof *o);
    set all[3];
    int32_t count = sets(all);
    fill(o);
    for (int32_t s = 0; s < count; s++)
        for (int way = 0; way < WAYS; way++) {
            for (int64_t k = 250; k < 260; k += 3)
                TEST_SAY(t, is_right(&all[s], o, 29, 43, k, way), "%s: way %d, k %lld", all[s].name,
                         way, (long long)k);
            TEST_SAY(t, is_right(&all[s], o, 30, 300, 21, way), "%s: way %d, 300 columns",
                     all[s].name, way);
            for (int64_t m = 1; m <= 13; m++)
                TEST_SAY(t, !test_tries(t) || is_right(&all[s], o, m, 301, 260, way),
                         "%s: way %d, %lld rows", all[s].name, way, (long long)m);
        }
    free(o);
}

TS_TEST(tiles_of_nothing)
{
    float c[6] = { 1, 2, 3, 4, 5, 6 };
    tsi_gemm g = { .m = 2, .n = 2, .c = c, .cm = 3, .cn = 1, .accumulate = true };
    tsi_gemm_f32(&g);
    for (int i = 0; i < 6; i++)
        TEST_CHECK(t, c[i] == (float)(i + 1));
    g.accumulate = false;
    tsi_gemm_f32(&g);
    for (int i = 0; i < 6; i++)
        TEST_CHECK(t, c[i] == (i % 3 < 2 ? 0.0f : (float)(i + 1)));
}

/* Rows and columns that fill up a tile do not reach those that are there. */
TS_TEST(tiles_keep_a_nan_in_its_row)
{
    operands *o = malloc(sizeof *o);
    set all[3];
    int32_t count = sets(all);
    for (int32_t s = 0; s < count; s++) {
        fill(o);
        memset(o->band, 0xFF, sizeof o->band); /* NaN */
        memset(o->panels, 0xFF, sizeof o->panels);
        o->a[5 * 20 + 3] = NAN;
        tsi_gemm g = { .m = 7,
                       .n = 9,
                       .k = 20,
                       .a = o->a,
                       .b = o->b,
                       .c = o->c,
                       .am = 20,
                       .ak = 1,
                       .bk = 9,
                       .bn = 1,
                       .cm = 9,
                       .cn = 1 };
        tsi_tiles_room room = { o->band, o->panels, TSI_TILES_BAND, ROOM_COLUMNS };
        all[s].multiply(&g, &room);
        for (int i = 0; i < 7 * 9; i++)
            TEST_EQ(t, isnan(o->c[i]) != 0, i / 9 == 5);
    }
    free(o);
}
