/* SPDX-License-Identifier: Apache-2.0 */
/* cpu.h - what the files of the cpu device share: copies as loops over bytes, tiles, row kernels.
 */
#ifndef TSI_DEVICE_CPU_H
#define TSI_DEVICE_CPU_H

#include "device/device.h"

const tsi_device *tsi_device_cpu(void);

enum {
    TSI_TILE_MAX = 1024
}; /* elements of a tile; up to 16 bytes each, so that some fit the L1 cache */

/* A copy as nested loops, outermost first: `unit` contiguous bytes at each position. Strides in
 * bytes. */
typedef struct tsi_loops {
    char *to;
    const char *from;
    size_t unit;
    int32_t ndim;
    int64_t extent[TS_NDIM_MAX], to_stride[TS_NDIM_MAX], from_stride[TS_NDIM_MAX];
} tsi_loops;

/* Equal dtypes. Orders and merges the dims, then takes the fastest of memcpy, rows, transpose,
 * loops. */
void tsi_cpu_copy_same(const tsi_block *to, const tsi_block *from);
/* Dims last-2 and last-1 of the loops, unit 1, 2, 4, 8 or 16, as a tiled transpose: `from` is
 * contiguous or nearly so along dim last-2, `to` along dim last-1. */
void tsi_cpu_transpose(const tsi_loops *loops);

/* Contiguous rows, one rounding (number.h). NULL: there is no such dtype. */
typedef void (*tsi_cast_rows_fn)(void *to, const void *from, int64_t count);
void tsi_cpu_cast_rows(ts_dtype to_dtype, void *to, ts_dtype from_dtype, const void *from,
                       int64_t count);
/* Rounding of f32 to bf16 and f16. */
void tsi_cpu_narrow_rows(ts_dtype dtype, void *to, const float *from, int64_t count);

/* Cuts extents into tiles of at most TSI_TILE_MAX elements, visited in row-major order. */
typedef struct tsi_tiles {
    int32_t ndim;
    int64_t extent[TS_NDIM_MAX], size[TS_NDIM_MAX]; /* of the whole; of a full tile */
    int64_t at[TS_NDIM_MAX], part[TS_NDIM_MAX];     /* this tile: first index, extents */
    int64_t count;                                  /* elements of this tile */
} tsi_tiles;
/* `a` and `b` are the blocks whose locality matters; a tile is square if they disagree on the
 * fastest dim. False: nothing to visit. next returns false after the last tile. */
bool tsi_tiles_first(tsi_tiles *tiles, const tsi_block *a, const tsi_block *b);
bool tsi_tiles_next(tsi_tiles *tiles);
/* Restarts with tiles that are rows of the last dim, at most `length` elements long. */
void tsi_tiles_as_rows(tsi_tiles *tiles, int64_t length);
/* The part of the block under this tile, and a dense block of the tile's extents over `buffer`. */
tsi_block tsi_tiles_part(const tsi_tiles *tiles, const tsi_block *block);
tsi_block tsi_tiles_dense(const tsi_tiles *tiles, int32_t dtype, void *buffer);

/* to[i] = from[0][i] op from[1][i] ... on contiguous elements, one to four sources; avg then
 * divides by the divisor. `to` may be one of the sources (slowly, unless TSI_INDEPENDENT_HERE).
 * NULL: the reduction has no meaning for the dtype. */
enum { TSI_FOLD_MAX = 4 };
typedef void (*tsi_fold_rows_fn)(void *to, const void *const *from, int64_t sources, int64_t count,
                                 int64_t divisor);
tsi_fold_rows_fn tsi_cpu_fold_rows(ts_reduce reduce, ts_dtype dtype);

/* The kernels of the device table. */
ts_status tsi_cpu_copy(const tsi_device *device, const tsi_block *to, const tsi_block *from,
                       tsi_stream *stream);
ts_status tsi_cpu_fill(const tsi_device *device, const tsi_block *to, const void *element,
                       tsi_stream *stream);
ts_status tsi_cpu_fold(const tsi_device *device, const tsi_block *to, const tsi_block *const *from,
                       int64_t count, ts_reduce reduce, int64_t avg_count, tsi_stream *stream);

#endif
