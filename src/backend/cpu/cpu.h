/* SPDX-License-Identifier: Apache-2.0 */
/* cpu.h - what the drivers of the cpu backend share: walks over strided operands, scratch memory,
 * and the kernels themselves.
 *
 * A kernel returns TSI_KERNEL_DECLINED for dtypes it has no loops for, and the reference runs. It
 * never declines because of strides or sizes, so that every shard of a tensor is computed alike. */
#ifndef TSI_BACKEND_CPU_CPU_H
#define TSI_BACKEND_CPU_CPU_H

#include <stdbool.h>

#include "backend/cpu/rows/rows.h"
#include "base/keep.h"
#include "device/parallel.h"
#include "op/core/kernel.h"

/* ---- walks: several operands over the same positions ----------------------------------------- */
enum { TSI_WALK_MAX = 4 };

/* Operands with equal extents, dims sorted and merged as far as all their strides allow; the last
 * dim is the row. Strides in bytes. */
typedef struct tsi_walk {
    int32_t ndim, count; /* dims, the row's included (at least 1); operands */
    int64_t extent[TS_NDIM_MAX], stride[TSI_WALK_MAX][TS_NDIM_MAX];
    char *data[TSI_WALK_MAX];
    int64_t rows, length; /* rows: positions of all dims but the last */
} tsi_walk;

/* Over the positions of block[0]; the others broadcast against it from the right. `fixed` dims of
 * block[0], counted from the last, stay at the end and are not merged with those before: 0 or 1. */
void tsi_walk_make(tsi_walk *walk, const tsi_block *const *block, int32_t count, int32_t fixed);
/* Where a row begins in each operand, and then the next ones. */
typedef struct tsi_walker {
    const tsi_walk *walk;
    int64_t index[TS_NDIM_MAX];
    char *at[TSI_WALK_MAX];
} tsi_walker;
void tsi_walker_start(tsi_walker *walker, const tsi_walk *walk, int64_t row);
void tsi_walker_next(tsi_walker *walker);

/* `count` elements, `stride` bytes apart, as `to_dtype` (f32, f64 or i64) in a buffer; and back. */
void tsi_gather(ts_dtype to_dtype, void *to, ts_dtype dtype, const char *from, int64_t stride,
                int64_t count);
void tsi_scatter(ts_dtype dtype, char *to, int64_t stride, ts_dtype from_dtype, const void *from,
                 int64_t count);

/* ---- lines: some dims of a block as one row (line.c) ----------------------------------------- */
/* The block with the dims of `mask` moved to the end, in their order. */
tsi_block tsi_block_with_last(const tsi_block *block, uint32_t mask);

/* In row-major order; dims that lie in each other are one. Strides in bytes. */
typedef struct tsi_line {
    ts_dtype dtype;
    int32_t ndim; /* at least 1 */
    int64_t count, extent[TS_NDIM_MAX], stride[TS_NDIM_MAX];
} tsi_line;
void tsi_line_make(tsi_line *line, const tsi_block *block, int32_t outer); /* dims from outer on */
bool tsi_line_is_plain(const tsi_line *line, ts_dtype dtype); /* its elements are side by side */
int64_t tsi_line_at(const tsi_line *line, int64_t index);     /* bytes from its beginning */
/* A whole line that begins at `from`, as tsi_gather has it; and back. */
void tsi_line_gather(const tsi_line *line, const char *from, ts_dtype to_dtype, void *to);
void tsi_line_scatter(const tsi_line *line, char *to, ts_dtype from_dtype, const void *from);

/* ---- scratch: from the rank's pool; NULL: recorded ------------------------------------------- */
typedef struct tsi_scratch {
    void *data;
    size_t bytes;
    ts_rank *rank;
} tsi_scratch;
ts_status tsi_scratch_get(tsi_scratch *scratch, ts_rank *rank, size_t count, size_t bytes);
void tsi_scratch_done(tsi_scratch *scratch); /* accepts a zero one */

static inline bool tsi_is_small_real(int32_t dtype) /* computed in f32 */
{
    return dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_BF16 || dtype == TS_DTYPE_F16;
}

/* ---- the kernels: what kernels.def names ----------------------------------------------------- */
#define TS_KERNEL(name, fn) ts_status fn(const tsi_kernel_io *io);
#define TS_KERNEL_DRY(name, fn) TS_KERNEL(name, fn)
#define TS_LIST_KERNEL(name, fn) ts_status fn(const tsi_list_io *io);
#include "backend/cpu/kernels.def"
#undef TS_KERNEL
#undef TS_KERNEL_DRY
#undef TS_LIST_KERNEL
/* The row that the elementwise call comes to, of at most 8192 elements, and its function; NULL: it
 * comes to several, or to something else. */
tsi_row_fn tsi_pointwise_row(const tsi_kernel_io *io, tsi_row *row);
ts_status tsi_cpu_keep_row(const tsi_kernel_io *io, tsi_kept_work *out); /* of tsi_cpu_pointwise */
void tsi_pointwise_start(void); /* finds the rows of this machine; once, before any kernel */

#endif
