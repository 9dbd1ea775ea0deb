/* SPDX-License-Identifier: Apache-2.0 */
/* block.c - strided blocks as values: counting, merging dims, cutting into tiles. No memory is
 * touched.
 *
 * INV: merging and cutting never change the set of (index, address) pairs, only how it is spelt. */
#include <string.h>

#include "base/error.h"
#include "base/intmath.h"
#include "device/cpu.h"

int64_t tsi_block_count(const tsi_block *block)
{
    int64_t count = 1;
    for (int32_t d = 0; d < block->ndim; d++) {
        if (block->extent[d] == 0) return 0;
        if (!tsi_mul_i64(count, block->extent[d], &count)) count = 0; /* a later dim is empty */
    }
    return count;
}

bool tsi_block_is_dense(const tsi_block *block)
{
    for (int32_t d = 0; d < block->ndim; d++)
        if (block->extent[d] == 0) return true;
    int64_t want = 1;
    for (int32_t d = block->ndim - 1; d >= 0; d--) {
        if (block->extent[d] != 1 && block->stride[d] != want) return false;
        want *= block->extent[d];
    }
    return true;
}

tsi_block tsi_block_dense_like(const tsi_block *like, void *data)
{
    tsi_block dense = *like;
    int64_t stride = 1;
    dense.data = data;
    for (int32_t d = dense.ndim - 1; d >= 0; d--) {
        dense.stride[d] = stride;
        stride *= dense.extent[d];
    }
    return dense;
}

/* All zero means row-major; anything else is taken as it stands. */
static void block_strides(const ts_array *array, tsi_block *out)
{
    bool given = false;
    for (int32_t d = 0; d < out->ndim; d++)
        given = given || array->stride[d] != 0;
    int64_t next = 1;
    for (int32_t d = out->ndim - 1; d >= 0; d--) {
        out->stride[d] = given ? array->stride[d] : next;
        /* Only an empty array can overflow here, and its strides are never used. */
        if (!tsi_mul_i64(next, out->extent[d], &next)) next = 0;
    }
}

ts_status tsi_block_of_array(const ts_array *array, const char *what, tsi_block *out)
{
    *out = (tsi_block){ 0 };
    if (!array) return TSI_FAIL(TS_ERR_ARG, "%s: the array is NULL", what);
    if (array->struct_size < sizeof(ts_array))
        return TSI_FAIL(TS_ERR_ARG, "%s: struct_size is %zu, a ts_array has %zu bytes", what,
                        array->struct_size, sizeof(ts_array));
    const ts_shape *shape = &array->meta.shape;
    size_t size = ts_dtype_size((ts_dtype)array->meta.dtype);
    if (size == 0)
        return TSI_FAIL(TS_ERR_DTYPE, "%s: there is no dtype number %d", what, array->meta.dtype);
    if (shape->ndim < 0 || shape->ndim > TS_NDIM_MAX)
        return TSI_FAIL(TS_ERR_ARG, "%s: %d dims, 0 to %d are possible", what, shape->ndim,
                        TS_NDIM_MAX);
    for (int32_t d = 0; d < shape->ndim; d++)
        if (shape->extent[d] < 0)
            return TSI_FAIL(TS_ERR_ARG, "%s: the extent of dim %d is %lld", what, d,
                            (long long)shape->extent[d]);
    int64_t count = ts_shape_count(shape), bytes = 0;
    if (count < 0 || !tsi_mul_i64(count, (int64_t)size, &bytes))
        return TSI_FAIL(TS_ERR_ARG, "%s: the size of the array overflows 64 bits", what);
    if (count > 0 && !array->data)
        return TSI_FAIL(TS_ERR_ARG, "%s: data is NULL and the array has %lld elements", what,
                        (long long)count);
    tsi_block block = { .data = array->data, .dtype = array->meta.dtype, .ndim = shape->ndim };
    memcpy(block.extent, shape->extent, sizeof block.extent);
    block_strides(array, &block);
    *out = block;
    return TS_OK;
}

static void drop_dim(tsi_block *block, int32_t d)
{
    block->ndim--;
    for (; d < block->ndim; d++) {
        block->extent[d] = block->extent[d + 1];
        block->stride[d] = block->stride[d + 1];
    }
}

/* Can dim d be walked together with the next one, as one dim? */
static bool merges(const tsi_block *block, int32_t d)
{
    return block->stride[d] == block->stride[d + 1] * block->extent[d + 1];
}

void tsi_block_coalesce_pair(tsi_block *a, tsi_block *b)
{
    for (int32_t d = a->ndim - 1; d >= 0; d--) {
        if (a->extent[d] != 1) continue;
        drop_dim(a, d);
        drop_dim(b, d);
    }
    for (int32_t d = a->ndim - 2; d >= 0; d--) {
        if (!merges(a, d) || !merges(b, d)) continue;
        a->extent[d + 1] *= a->extent[d];
        b->extent[d + 1] = a->extent[d + 1];
        drop_dim(a, d);
        drop_dim(b, d);
    }
}

/* The dim with the smallest stride that is not a broadcast; -1 if there is none. */
static int32_t fastest_dim(const tsi_block *block)
{
    int32_t best = -1;
    int64_t best_stride = INT64_MAX;
    for (int32_t d = block->ndim - 1; d >= 0; d--) {
        int64_t stride = block->stride[d] < 0 ? -block->stride[d] : block->stride[d];
        if (block->extent[d] <= 1 || stride == 0 || stride >= best_stride) continue;
        best = d;
        best_stride = stride;
    }
    return best;
}

/* Which dims grow first: those along which a or b is contiguous, then the others from the last on.
 */
static void tile_sizes(tsi_tiles *tiles, int32_t fast_a, int32_t fast_b)
{
    int64_t room = TSI_TILE_MAX;
    for (int32_t d = 0; d < tiles->ndim; d++)
        tiles->size[d] = 1;
    if (fast_a >= 0 && fast_b >= 0 && fast_a != fast_b) {
        const int64_t side = 32; /* 32 * 32 = TSI_TILE_MAX */
        tiles->size[fast_a] = tsi_min_i64(side, tiles->extent[fast_a]);
        tiles->size[fast_b] = tsi_min_i64(side, tiles->extent[fast_b]);
        room = TSI_TILE_MAX / (tiles->size[fast_a] * tiles->size[fast_b]);
    }
    for (int32_t d = tiles->ndim - 1; d >= 0 && room > 1; d--) {
        int64_t grown = tsi_min_i64(tiles->extent[d], tiles->size[d] * room);
        room = room * tiles->size[d] / grown;
        tiles->size[d] = grown;
        if (grown < tiles->extent[d]) break; /* a dim further out would only make short rows */
    }
}

static void tile_clip(tsi_tiles *tiles)
{
    tiles->count = 1;
    for (int32_t d = 0; d < tiles->ndim; d++) {
        tiles->part[d] = tsi_min_i64(tiles->size[d], tiles->extent[d] - tiles->at[d]);
        tiles->count *= tiles->part[d];
    }
}

bool tsi_tiles_first(tsi_tiles *tiles, const tsi_block *a, const tsi_block *b)
{
    *tiles = (tsi_tiles){ .ndim = a->ndim };
    memcpy(tiles->extent, a->extent, sizeof tiles->extent);
    if (tsi_block_count(a) == 0) return false; /* sizes are quotients of extents */
    tile_sizes(tiles, fastest_dim(a), fastest_dim(b));
    tile_clip(tiles);
    return true;
}

bool tsi_tiles_next(tsi_tiles *tiles)
{
    for (int32_t d = tiles->ndim - 1; d >= 0; d--) {
        tiles->at[d] += tiles->size[d];
        if (tiles->at[d] < tiles->extent[d]) {
            tile_clip(tiles);
            return true;
        }
        tiles->at[d] = 0;
    }
    return false;
}

void tsi_tiles_as_rows(tsi_tiles *tiles, int64_t length)
{
    for (int32_t d = 0; d < tiles->ndim; d++) {
        bool last = d == tiles->ndim - 1;
        tiles->size[d] = last ? tsi_min_i64(length, tiles->extent[d]) : 1;
        tiles->at[d] = 0;
    }
    tile_clip(tiles);
}

tsi_block tsi_tiles_part(const tsi_tiles *tiles, const tsi_block *block)
{
    tsi_block part = *block;
    int64_t offset = 0;
    for (int32_t d = 0; d < tiles->ndim; d++) {
        offset += tiles->at[d] * block->stride[d];
        part.extent[d] = tiles->part[d];
    }
    part.data = (char *)block->data + offset * (int64_t)ts_dtype_size((ts_dtype)block->dtype);
    return part;
}

tsi_block tsi_tiles_dense(const tsi_tiles *tiles, int32_t dtype, void *buffer)
{
    tsi_block dense = { .data = buffer, .dtype = dtype, .ndim = tiles->ndim };
    int64_t next = 1;
    for (int32_t d = tiles->ndim - 1; d >= 0; d--) {
        dense.extent[d] = tiles->part[d];
        dense.stride[d] = next;
        next *= tiles->part[d];
    }
    return dense;
}
