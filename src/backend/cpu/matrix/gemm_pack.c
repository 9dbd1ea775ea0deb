/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_pack.c - operands of bf16 products as panels, in the order the machine's tiles read them.
 *
 *   rows (or columns) in panels of `width`; a panel is [k / together][width][together]
 *
 * What is missing of the last panel, and of k up to a multiple of the tile's kr, is zeros. */
#include <string.h>

#include "backend/cpu/machine.h"
#include "backend/cpu/matrix/gemm.h"
#include "base/compiler.h"

const tsi_bf16_tile *tsi_bf16_tile_of_machine(void)
{
#if defined(__aarch64__)
    if (tsi_machine() & TSI_MACHINE_NEON_BF16) return &tsi_bf16_tile_neon;
#elif defined(__x86_64__)
    const uint32_t both = TSI_MACHINE_AMX_BF16 | TSI_MACHINE_AVX512_BF16;
    if ((tsi_machine() & both) == both) return &tsi_bf16_tile_amx;
    if (tsi_machine() & TSI_MACHINE_AVX512_BF16) return &tsi_bf16_tile_avx512;
#endif
    return NULL;
}

static tsi_panels panels_of(const tsi_bf16_tile *tile, int64_t count, int64_t k, int64_t width,
                            int64_t together)
{
    int64_t depth = (k + tile->kr - 1) / tile->kr * tile->kr;
    return (tsi_panels){ .tile = tile,
                         .count = count,
                         .k = k,
                         .width = width,
                         .together = together,
                         .panels = (count + width - 1) / width,
                         .panel_size = depth * width };
}

tsi_panels tsi_panels_a(const tsi_bf16_tile *tile, int64_t count, int64_t k)
{
    return panels_of(tile, count, k, tile->mr, tile->ka);
}

tsi_panels tsi_panels_b(const tsi_bf16_tile *tile, int64_t count, int64_t k)
{
    return panels_of(tile, count, k, tile->nr, tile->kb);
}

/* ---- packing --------------------------------------------------------------------------------- */

/* Any strides; zeros where there is nothing. */
static void pack_element(const tsi_panels *p, int64_t first, int64_t rows, int64_t group,
                         uint16_t *to)
{
    for (int64_t r = 0; r < p->width; r++)
        for (int64_t l = 0; l < p->together; l++) {
            int64_t k = group * p->together + l;
            bool there = r < rows && k < p->k;
            to[r * p->together + l] =
                there ? p->from[(first + r) * p->stride + k * p->k_stride] : 0;
        }
}

static TSI_INLINE void copy_runs(uint16_t *to, int64_t step, const uint16_t *from, int64_t count,
                                 int64_t run)
{
    for (int64_t i = 0; i < count; i++)
        memcpy(to + i * step, from + i * run, (size_t)run * sizeof *to);
}

/* A line of memory of a row after the other; those of the next panel come to the second cache
 * meanwhile. */
static TSI_INLINE void pack_runs(const tsi_panels *p, int64_t first, int64_t groups, uint16_t *to,
                                 int64_t run)
{
    const int64_t line = TSI_CACHE_LINE / (run * (int64_t)sizeof *to);
    const int64_t width = p->width, stride = p->stride;
    const uint16_t *from = p->from + first * stride;
    int64_t g = 0;
    for (; g + line <= groups; g += line)
        for (int64_t r = 0; r < width; r++) {
            TSI_PREFETCH_NEAR(from + (width + r) * stride + g * run);
            copy_runs(to + (g * width + r) * run, width * run, from + r * stride + g * run, line,
                      run);
        }
    for (int64_t r = 0; r < width; r++)
        copy_runs(to + (g * width + r) * run, width * run, from + r * stride + g * run, groups - g,
                  run);
}

/* k is contiguous: a group of a row is one short copy, of a length the compiler knows. */
static void pack_along(const tsi_panels *p, int64_t first, int64_t groups, uint16_t *to)
{
    if (p->together == 2)
        pack_runs(p, first, groups, to, 2);
    else if (p->together == 4)
        pack_runs(p, first, groups, to, 4);
    else
        pack_runs(p, first, groups, to, 32);
}

/* Rows are contiguous, pairs of k lie together: two rows of k become one of pairs. */
static void pack_pairs(const tsi_panels *p, int64_t first, int64_t groups, uint16_t *to)
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

/* Rows are contiguous, long runs of k lie together: a transpose of [together][width]. */
static void pack_turned(const tsi_panels *p, int64_t first, int64_t groups, uint16_t *to)
{
    const uint16_t *from = p->from + first;
    int64_t run = p->together;
    for (int64_t g = 0; g < groups; g++, to += run * p->width, from += run * p->k_stride)
        for (int64_t l = 0; l < run; l++)
            for (int64_t r = 0; r < p->width; r++)
                to[r * run + l] = from[l * p->k_stride + r];
}

void tsi_panel_pack_to(const tsi_panels *p, int64_t panel, uint16_t *to)
{
    int64_t run = p->together, whole = p->k / run, groups = p->panel_size / (p->width * run), g = 0;
    int64_t first = panel * p->width;
    int64_t rows = p->count - first < p->width ? p->count - first : p->width;
    bool full = rows == p->width;
    if (full && p->k_stride == 1 && (run == 2 || run == 4 || run == 32)) {
        pack_along(p, first, whole, to);
        g = whole;
    } else if (full && p->stride == 1 && p->tile->pack_across && p->width == 8) {
        p->tile->pack_across(to, p->from + first, p->k_stride, whole);
        g = whole;
    } else if (full && p->stride == 1) {
        if (run == 2)
            pack_pairs(p, first, whole, to);
        else
            pack_turned(p, first, whole, to);
        g = whole;
    }
    for (; g < groups; g++)
        pack_element(p, first, rows, g, to + g * p->width * run);
}

void tsi_panel_pack(const tsi_panels *p, int64_t panel)
{
    tsi_panel_pack_to(p, panel, p->to + panel * p->panel_size);
}

void tsi_panels_pack(const tsi_panels *p)
{
    for (int64_t panel = 0; panel < p->panels; panel++)
        tsi_panel_pack(p, panel);
}

/* ---- products of panels ---------------------------------------------------------------------- */

void tsi_panels_multiply(const tsi_panels *a, const tsi_panels *b, float *c, int64_t ldc,
                         bool first)
{
    const tsi_bf16_tile *tile = a->tile;
    tsi_bf16_tiles x = { .groups = (a->k + tile->kr - 1) / tile->kr,
                         .count = a->panels,
                         .a = a->to,
                         .a_step = a->panel_size,
                         .ldc = ldc,
                         .first = first };
    for (int64_t j = 0; j < b->panels; j++) {
        x.b = b->to + j * b->panel_size;
        x.c = c + j * tile->nr;
        tile->multiply(&x);
    }
}
