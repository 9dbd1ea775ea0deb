/* SPDX-License-Identifier: Apache-2.0 */
/* data.h - what the kernels that move and pick elements share: copies and fills on all threads,
 * checks of indices, single elements of a known size. */
#ifndef TSI_BACKEND_CPU_DATA_H
#define TSI_BACKEND_CPU_DATA_H

#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/compiler.h"
#include "device/number.h"
#include "op/index/index.h"

/* ---- whole blocks (view/remap.c) ------------------------------------------------------------ */
/* to = from, equal extents, any strides; and one element everywhere. */
ts_status tsi_copy_all(const tsi_kernel_io *io, const tsi_block *to, const tsi_block *from);
ts_status tsi_fill_all(const tsi_kernel_io *io, const tsi_block *to, const void *element);
ts_status tsi_zero_all(const tsi_kernel_io *io, const tsi_block *to);

/* ---- dense operands (dense.c) ---------------------------------------------------------------- */
/* A block where it lies, if it is dense and of the dtype; else in memory of its own. */
typedef struct tsi_held {
    const tsi_block *block;
    tsi_block dense; /* for the loops */
    tsi_scratch scratch;
    bool out;
} tsi_held;
ts_status tsi_hold(const tsi_kernel_io *io, const tsi_block *block, ts_dtype dtype, bool out,
                   tsi_held *held);
/* Accepts a zero one. A result is copied to its place if `status` is TS_OK; returns the status. */
ts_status tsi_let_go(const tsi_kernel_io *io, tsi_held *held, ts_status status);

/* ---- indices (index_select.c) ---------------------------------------------------------------- */
/* Does every index of a block lie in [low, high)? Where not, the reference says which. */
bool tsi_indices_fit(const tsi_kernel_io *io, const tsi_block *index, int64_t low, int64_t high);

/* ---- elements -------------------------------------------------------------------------------- */
/* `size` is 1, 2, 4, 8 or 16 and constant where this is inlined. */
static TSI_INLINE void tsi_copy_one(void *to, const void *from, size_t size)
{
    memcpy(to, from, size);
}

/* to += from; `dtype` is constant where this is inlined, for the common ones. */
static TSI_INLINE void tsi_add_one(ts_dtype dtype, void *to, const void *from)
{
    if (dtype == TS_DTYPE_F32) {
        float x, y;
        memcpy(&x, to, sizeof x);
        memcpy(&y, from, sizeof y);
        x += y;
        memcpy(to, &x, sizeof x);
    } else if (dtype == TS_DTYPE_F64) {
        double x, y;
        memcpy(&x, to, sizeof x);
        memcpy(&y, from, sizeof y);
        x += y;
        memcpy(to, &x, sizeof x);
    } else if (dtype == TS_DTYPE_I64) {
        uint64_t x, y;
        memcpy(&x, to, sizeof x);
        memcpy(&y, from, sizeof y);
        x += y;
        memcpy(to, &x, sizeof x);
    } else if (dtype == TS_DTYPE_BF16) {
        uint16_t x, y;
        memcpy(&x, to, sizeof x);
        memcpy(&y, from, sizeof y);
        x = tsi_bf16_of_f32(tsi_f32_of_bf16(x) + tsi_f32_of_bf16(y));
        memcpy(to, &x, sizeof x);
    } else {
        tsi_element_add(dtype, to, from);
    }
}

/* Where the first global index of a dim lies, and how many of the dim are here, if they are one
 * interval: then the local index is the global one less the first. */
static inline bool tsi_one_span(const tsi_operand *x, int32_t dim, int64_t *first, int64_t *held)
{
    *first = 0;
    *held = x->block.ndim ? x->block.extent[dim] : 1;
    if (!x->region) return true;
    *first = tsi_operand_offset(x, dim);
    const tsi_span_list *list = &x->region->dim[dim];
    return list->total == 0 || tsi_spans(list)[0].length == list->total;
}

#endif
