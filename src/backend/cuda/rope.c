/* SPDX-License-Identifier: Apache-2.0 */
/* rope.c - rotary positions: halves of rows by 16 bytes where they lie so, else pair by pair. */
#include <string.h>

#include "backend/cuda/beside.h"
#include "backend/cuda/dtype.h"
#include "backend/cuda/kernel.h"
#include "base/error.h"
#include "op/nn/attributes.h"

/* Both halves of every row begin on 16 bytes. */
static bool is_in_units(const tsi_block *x, int64_t half)
{
    int64_t n = 16 / (int64_t)ts_dtype_size((ts_dtype)x->dtype);
    bool fits = (uintptr_t)x->data % 16 == 0 && half % n == 0 && x->stride[x->ndim - 1] == 1 &&
                (x->dtype == TS_DTYPE_F32 || x->dtype == TS_DTYPE_BF16);
    for (int32_t d = 0; d < x->ndim - 1; d++)
        fits = fits && (x->extent[d] == 1 || x->stride[d] % n == 0);
    return fits;
}

static bool settle(const tsi_kernel_io *io, tsi_cuda_rope_args *a)
{
    const tsi_block *x = &io->in[0].block, *table = &io->in[1].block, *y = &io->out[0].block;
    int32_t last = x->ndim - 1;
    if (!io->queue || !tsi_cuda_is_real(x->dtype) || !tsi_cuda_is_real(table->dtype) ||
        y->dtype != x->dtype || !tsi_cuda_places_make(&a->place, io->in[0].region, last - 1))
        return false;
    a->from = tsi_cuda_operand_of(x);
    a->to = tsi_cuda_operand_of(y);
    a->table = table->data;
    a->table_row = table->stride[0];
    a->table_column = table->stride[1];
    a->half = x->extent[last] / 2;
    a->from_column = x->stride[last];
    a->to_column = y->stride[last];
    a->sequence = last - 1;
    a->dtype = x->dtype;
    a->table_dtype = table->dtype;
    a->inverse = ((const tsi_rope_attributes *)io->attributes)->inverse != 0;
    return true;
}

static void swap_dims(tsi_cuda_rope_args *a, int64_t *extent, int32_t i, int32_t j)
{
    int64_t *const list[] = { extent, a->from.stride, a->to.stride };
    for (size_t k = 0; k < TSI_COUNT_OF(list); k++) {
        int64_t one = list[k][i];
        list[k][i] = list[k][j];
        list[k][j] = one;
    }
    a->sequence = a->sequence == i ? j : a->sequence == j ? i : a->sequence;
}

/* Leading dims in the order of memory: neighbouring items read neighbouring rows, and heads of one
 * position the same angles. */
static void sort_dims(tsi_cuda_rope_args *a, int64_t *extent, int32_t count)
{
    for (int32_t i = 1; i < count; i++)
        for (int32_t j = i; j > 0 && a->from.stride[j - 1] < a->from.stride[j]; j--)
            swap_dims(a, extent, j - 1, j);
}

/* Queries and keys turn side by side in graphs. */
static ts_status launch(const tsi_kernel_io *io, tsi_cuda_kernel kernel, tsi_cuda_rope_args *args)
{
    const tsi_block *x = &io->in[0].block, *table = &io->in[1].block, *y = &io->out[0].block;
    tsi_cuda_touched touched = { .read = { tsi_bytes_of(x), tsi_bytes_of(table) },
                                 .written = tsi_bytes_of(y) };
    tsi_cuda_place place;
    bool small = tsi_cuda_is_small(tsi_block_count(y));
    TSI_TRY(tsi_cuda_beside_begin(io->queue, small ? &touched : NULL, &place));
    ts_status status = tsi_cuda_launch_items(place.on, kernel, args->space.count, args);
    ts_status ended = tsi_cuda_beside_end(io->queue, &place);
    return status == TS_OK ? ended : status;
}

ts_status tsi_cuda_rope(const tsi_kernel_io *io)
{
    const tsi_block *x = &io->in[0].block, *y = &io->out[0].block;
    tsi_cuda_rope_args args = { .half = 0 };
    if (!settle(io, &args)) return (ts_status)TSI_KERNEL_DECLINED;
    if (tsi_block_count(y) == 0) return TS_OK;
    int64_t extent[TS_NDIM_MAX];
    int32_t last = x->ndim - 1;
    bool units = is_in_units(x, args.half) && is_in_units(y, args.half) && args.table_column == 1 &&
                 args.table_dtype != TS_DTYPE_F64;
    bool wide = x->dtype == TS_DTYPE_F64 || args.table_dtype == TS_DTYPE_F64;
    int64_t n = units ? 16 / (int64_t)ts_dtype_size((ts_dtype)x->dtype) : 1;
    memcpy(extent, x->extent, sizeof extent);
    extent[last] = args.half / n;
    args.from.stride[last] *= n;
    args.to.stride[last] *= n;
    sort_dims(&args, extent, last);
    tsi_cuda_space_make(&args.space, x->ndim, extent);
    tsi_cuda_kernel kernel = wide ? TSI_CUDA_rope_any_f64 : TSI_CUDA_rope_any_f32;
    if (units) kernel = x->dtype == TS_DTYPE_F32 ? TSI_CUDA_rope_f32 : TSI_CUDA_rope_bf16;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    return launch(io, kernel, &args);
}
