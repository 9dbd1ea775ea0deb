/* SPDX-License-Identifier: Apache-2.0 */
/* walk.c - several strided operands as rows: sorted by the first one's strides, merged where all of
 * them allow, broadcast by zero strides. */
#include <string.h>

#include "array/pool.h"
#include "backend/cpu/cpu.h"
#include "base/alloc.h"
#include "base/intmath.h"
#include "device/cpu.h"

/* ---- walks ----------------------------------------------------------------------------------- */

static void add_operand(tsi_walk *walk, int32_t k, const tsi_block *block, const tsi_block *first)
{
    int64_t size = (int64_t)ts_dtype_size((ts_dtype)block->dtype);
    walk->data[k] = block->data;
    for (int32_t d = 0; d < first->ndim; d++) {
        int32_t own = d - (first->ndim - block->ndim);
        bool there = own >= 0 && block->extent[own] != 1;
        walk->stride[k][d] = there ? block->stride[own] * size : 0;
    }
}

static void swap_dims(tsi_walk *walk, int32_t a, int32_t b)
{
    int64_t extent = walk->extent[a];
    walk->extent[a] = walk->extent[b];
    walk->extent[b] = extent;
    for (int32_t k = 0; k < walk->count; k++) {
        int64_t stride = walk->stride[k][a];
        walk->stride[k][a] = walk->stride[k][b];
        walk->stride[k][b] = stride;
    }
}

/* Removes dims of extent 1 among the first `ndim`; returns how many are left. */
static int32_t drop_ones(tsi_walk *walk, int32_t ndim)
{
    int32_t kept = 0;
    for (int32_t d = 0; d < ndim; d++) {
        if (walk->extent[d] == 1) continue;
        if (kept != d) swap_dims(walk, kept, d);
        kept++;
    }
    return kept;
}

static void sort_dims(tsi_walk *walk, int32_t ndim)
{
    for (int32_t i = 1; i < ndim; i++)
        for (int32_t j = i; j > 0 && walk->stride[0][j - 1] < walk->stride[0][j]; j--)
            swap_dims(walk, j - 1, j);
}

static bool can_merge(const tsi_walk *walk, int32_t outer, int32_t inner)
{
    for (int32_t k = 0; k < walk->count; k++)
        if (walk->stride[k][outer] != walk->stride[k][inner] * walk->extent[inner]) return false;
    return true;
}

static int32_t merge_dims(tsi_walk *walk, int32_t ndim)
{
    int32_t last = 0;
    for (int32_t d = 1; d < ndim; d++) {
        if (can_merge(walk, last, d)) {
            walk->extent[d] *= walk->extent[last];
            swap_dims(walk, last, d);
        } else if (++last != d) {
            swap_dims(walk, last, d);
        }
    }
    return ndim > 0 ? last + 1 : 0;
}

void tsi_walk_make(tsi_walk *walk, const tsi_block *const *block, int32_t count, int32_t fixed)
{
    int32_t ndim = block[0]->ndim;
    walk->count = count;
    for (int32_t d = 0; d < ndim; d++)
        walk->extent[d] = block[0]->extent[d];
    for (int32_t k = 0; k < count; k++)
        add_operand(walk, k, block[k], block[0]);
    int32_t free_dims = ndim - fixed, kept = drop_ones(walk, free_dims);
    sort_dims(walk, kept);
    kept = merge_dims(walk, kept);
    if (fixed > 0 && kept != free_dims) swap_dims(walk, kept, free_dims);
    walk->ndim = kept + fixed;
    if (walk->ndim == 0) { /* one element */
        walk->ndim = 1;
        walk->extent[0] = 1;
        for (int32_t k = 0; k < count; k++)
            walk->stride[k][0] = 0;
    }
    walk->length = walk->extent[walk->ndim - 1];
    walk->rows = 1;
    for (int32_t d = 0; d + 1 < walk->ndim; d++)
        walk->rows *= walk->extent[d];
}

void tsi_walker_start(tsi_walker *walker, const tsi_walk *walk, int64_t row)
{
    walker->walk = walk;
    for (int32_t k = 0; k < walk->count; k++)
        walker->at[k] = walk->data[k];
    for (int32_t d = walk->ndim - 2; d >= 0; d--) {
        walker->index[d] = row % walk->extent[d];
        row /= walk->extent[d];
        for (int32_t k = 0; k < walk->count; k++)
            walker->at[k] += walker->index[d] * walk->stride[k][d];
    }
}

void tsi_walker_next(tsi_walker *walker)
{
    const tsi_walk *walk = walker->walk;
    for (int32_t d = walk->ndim - 2; d >= 0; d--) {
        bool wraps = ++walker->index[d] == walk->extent[d];
        int64_t step = wraps ? 1 - walk->extent[d] : 1;
        for (int32_t k = 0; k < walk->count; k++)
            walker->at[k] += step * walk->stride[k][d];
        if (!wraps) return;
        walker->index[d] = 0;
    }
}

/* ---- buffers --------------------------------------------------------------------------------- */

static void pack_1(uint8_t *to, const char *from, int64_t stride, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = *(const uint8_t *)(from + i * stride);
}

static void pack_2(uint16_t *to, const char *from, int64_t stride, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = *(const uint16_t *)(const void *)(from + i * stride);
}

static void pack_4(uint32_t *to, const char *from, int64_t stride, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = *(const uint32_t *)(const void *)(from + i * stride);
}

static void pack_8(uint64_t *to, const char *from, int64_t stride, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = *(const uint64_t *)(const void *)(from + i * stride);
}

static void pack(size_t size, void *to, const char *from, int64_t stride, int64_t count)
{
    if (size == 1)
        pack_1(to, from, stride, count);
    else if (size == 2)
        pack_2(to, from, stride, count);
    else if (size == 4)
        pack_4(to, from, stride, count);
    else
        pack_8(to, from, stride, count);
}

static void unpack(size_t size, char *to, int64_t stride, const char *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        memcpy(to + i * stride, from + (int64_t)size * i, size);
}

enum { PIECE = 512 };

/* Truths as f32: what conditions and masks are read as. */
static void truths_f32(float *restrict to, const uint8_t *restrict from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = (float)(from[i] != 0);
}

void tsi_gather(ts_dtype to_dtype, void *to, ts_dtype dtype, const char *from, int64_t stride,
                int64_t count)
{
    size_t size = ts_dtype_size(dtype), wide = ts_dtype_size(to_dtype);
    if (stride == (int64_t)size) {
        if (dtype == TS_DTYPE_BF16 && to_dtype == TS_DTYPE_F32)
            tsi_rows()->widen(to, (const uint16_t *)(const void *)from, count);
        else if (dtype == TS_DTYPE_BOOL && to_dtype == TS_DTYPE_F32)
            truths_f32(to, (const uint8_t *)(const void *)from, count);
        else
            tsi_cpu_cast_rows(to_dtype, to, dtype, from, count);
        return;
    }
    if (dtype == to_dtype) {
        pack(size, to, from, stride, count);
        return;
    }
    uint64_t part[PIECE];
    for (int64_t at = 0; at < count; at += PIECE) {
        int64_t n = count - at < PIECE ? count - at : PIECE;
        pack(size, part, from + at * stride, stride, n);
        tsi_cpu_cast_rows(to_dtype, (char *)to + (size_t)at * wide, dtype, part, n);
    }
}

void tsi_scatter(ts_dtype dtype, char *to, int64_t stride, ts_dtype from_dtype, const void *from,
                 int64_t count)
{
    size_t size = ts_dtype_size(dtype), wide = ts_dtype_size(from_dtype);
    if (stride == (int64_t)size) {
        if (dtype == TS_DTYPE_BF16 && from_dtype == TS_DTYPE_F32)
            tsi_rows()->narrow((uint16_t *)(void *)to, from, count);
        else
            tsi_cpu_cast_rows(dtype, to, from_dtype, from, count);
        return;
    }
    uint64_t part[PIECE];
    for (int64_t at = 0; at < count; at += PIECE) {
        int64_t n = count - at < PIECE ? count - at : PIECE;
        tsi_cpu_cast_rows(dtype, part, from_dtype, (const char *)from + (size_t)at * wide, n);
        unpack(size, to + at * stride, stride, (const char *)part, n);
    }
}

/* ---- scratch --------------------------------------------------------------------------------- */

/* The pool of a rank on another device gives memory whose turn comes in the order of a queue; a
 * kernel of the cpu that works for such a rank needs memory now. */
static ts_rank *rank_with_host_pool(ts_rank *rank)
{
    if (tsi_dry(rank)) return rank;
    return rank && tsi_world_device(rank->world)->host_readable ? rank : NULL;
}

ts_status tsi_scratch_get(tsi_scratch *scratch, ts_rank *rank, size_t count, size_t bytes)
{
    rank = rank_with_host_pool(rank);
    *scratch = (tsi_scratch){ .rank = rank };
    if (bytes > 0 && count > SIZE_MAX / 2 / bytes)
        return tsi_fail_memory("scratch of a kernel", SIZE_MAX);
    scratch->bytes = count * bytes > 0 ? count * bytes : 1;
    if (rank) {
        tsi_pool *pool = tsi_pool_of(rank);
        scratch->data = pool ? tsi_pool_alloc(pool, scratch->bytes, TSI_TAG_OTHER) : NULL;
        return scratch->data ? TS_OK : TS_ERR_MEMORY;
    }
    scratch->data = tsi_alloc_aligned(scratch->bytes, TSI_CACHE_LINE);
    return scratch->data ? TS_OK : tsi_fail_memory("scratch of a kernel", scratch->bytes);
}

void tsi_scratch_done(tsi_scratch *scratch)
{
    if (!scratch->data) return;
    if (scratch->rank)
        tsi_pool_free(tsi_pool_of(scratch->rank), scratch->data, scratch->bytes, TSI_TAG_OTHER);
    else
        tsi_free(scratch->data);
    scratch->data = NULL;
}
