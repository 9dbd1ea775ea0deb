/* SPDX-License-Identifier: Apache-2.0 */
/* rows.h - rows on units of 16 bytes, and blocks that keep one each (kernels/kept.cuh). */
#ifndef TSI_BACKEND_CUDA_ROWS_H
#define TSI_BACKEND_CUDA_ROWS_H

#include "backend/cuda/cuda.h"
#include "base/intmath.h"

/* Units in a row of f32 or bf16; 0: rows do not lie on them, or are of another dtype. `strides` and
 * `pointers` are those of all operands, or'ed. */
static inline int64_t tsi_cuda_row_units(int32_t dtype, int64_t length, int64_t strides,
                                         uintptr_t pointers)
{
    if (dtype != TS_DTYPE_F32 && dtype != TS_DTYPE_BF16) return 0;
    int64_t n = 16 / (int64_t)ts_dtype_size((ts_dtype)dtype);
    return pointers % 16 || (length | strides) % n ? 0 : length / n;
}

/* Blocks walk rows and fetch ahead, so there are as many as run at once: `each` on a
 * multiprocessor. */
static inline int64_t tsi_cuda_walkers(const tsi_stream *stream, int64_t wanted, int64_t each)
{
    return tsi_min_i64(wanted, stream->cuda->units * each);
}

/* Does a block keep a row of so many? */
static inline bool tsi_cuda_keeps(int64_t units)
{
    return units > 0 && units <= 8 * TSI_CUDA_KEPT_THREADS;
}

/* How blocks that keep a row share a multiprocessor. */
typedef struct tsi_cuda_keepers {
    int64_t threads, each; /* units of a thread, at most */
    int64_t at_once;       /* blocks */
} tsi_cuda_keepers;

static inline tsi_cuda_keepers tsi_cuda_keepers_of(int64_t units)
{
    int64_t threads = tsi_min_i64((units + 127) / 128 * 32, TSI_CUDA_KEPT_THREADS);
    return (tsi_cuda_keepers){ threads, units > 4 * threads ? 8 : 4,
                               TSI_CUDA_KEPT_THREADS / threads };
}

/* kernel: of f32 and bf16, by 4 and 8 units a thread; bytes of shared memory for each unit, those
 * of the row itself and what a block keeps beside it. */
static inline ts_status tsi_cuda_launch_kept(tsi_stream *stream, const tsi_cuda_kernel (*kernel)[2],
                                             int32_t dtype, int64_t rows, int64_t units,
                                             int64_t bytes, void *args)
{
    tsi_cuda_keepers by = tsi_cuda_keepers_of(units);
    return tsi_cuda_launch(stream, kernel[dtype == TS_DTYPE_BF16][by.each == 8],
                           tsi_cuda_walkers(stream, rows, by.at_once), (int32_t)by.threads,
                           (int32_t)(by.each * by.threads * bytes), args);
}

#endif
