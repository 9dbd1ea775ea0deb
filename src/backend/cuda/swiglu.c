/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu.c - swiglu of 16-bit rows that lie apart, as gate and up do that are columns of one block,
 * and its gradients in one pass, of 16 bits and f32, of such rows or contiguous. */
#include "backend/cuda/dtype.h"
#include "backend/cuda/kernel.h"
#include "base/error.h"

enum { WIDE = 16, ARRAYS = TSI_CUDA_SWIGLU_ARRAYS };

/* Without gaps: one row of all elements. */
static bool is_one_row(const tsi_block *const *all)
{
    bool dense = true;
    for (int32_t k = 0; k < ARRAYS; k++)
        dense = dense && tsi_block_is_dense(all[k]);
    return dense;
}

/* Rows by units of 16 bytes; false: they are not, or there are too many of them. */
static bool settle_rows(const tsi_block *const *all, int64_t each, tsi_cuda_swiglu_args *args)
{
    int64_t count = 0, width = 0;
    for (int32_t k = 0; k < ARRAYS; k++) {
        int64_t rows, length, stride;
        if (!all[k]) continue;
        if (!tsi_cuda_rows_of(all[k], 1, &rows, &length, &stride)) return false;
        if (length % each || stride % each || (width && length / each != width)) return false;
        width = length / each;
        count = rows * width;
        args->stride[k] = stride / each;
    }
    args->units = count;
    args->by = tsi_cuda_divisor_of(width);
    return width > 0 && count < INT32_MAX;
}

ts_status tsi_cuda_swiglu_rows(const tsi_kernel_io *io)
{
    const tsi_block *out = &io->out[0].block;
    const tsi_block *all[ARRAYS] = { [TSI_CUDA_SWIGLU_GATE] = &io->in[0].block,
                                     [TSI_CUDA_SWIGLU_UP] = &io->in[1].block,
                                     [TSI_CUDA_SWIGLU_D_GATE] = out };
    tsi_cuda_swiglu_args args = { .rest = 0 };
    bool bf16 = out->dtype == TS_DTYPE_BF16;
    bool fits = io->queue && tsi_block_count(out) > 0 && (bf16 || out->dtype == TS_DTYPE_F16);
    for (int32_t k = 0; k < ARRAYS; k++) {
        if (!all[k]) continue;
        args.data[k] = all[k]->data;
        fits = fits && all[k]->dtype == out->dtype && (uintptr_t)all[k]->data % WIDE == 0 &&
               tsi_block_count(all[k]) == tsi_block_count(out);
    }
    if (!fits || !settle_rows(all, 8, &args)) return (ts_status)TSI_KERNEL_DECLINED;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    return tsi_cuda_launch(io->queue, bf16 ? TSI_CUDA_swiglu_rows_bf16 : TSI_CUDA_swiglu_rows_f16,
                           (args.units + TSI_CUDA_BLOCK - 1) / TSI_CUDA_BLOCK, TSI_CUDA_BLOCK, 0,
                           &args);
}

ts_status tsi_cuda_swiglu_gradients(const tsi_kernel_io *io)
{
    const tsi_block *gate = &io->in[1].block;
    const tsi_block *all[ARRAYS] = { &io->in[0].block, gate, &io->in[2].block, &io->out[0].block,
                                     &io->out[1].block };
    bool fits = io->queue && tsi_cuda_is_real(gate->dtype) && gate->dtype != TS_DTYPE_F64;
    int64_t count = tsi_block_count(gate), each = gate->dtype == TS_DTYPE_F32 ? 4 : 8;
    tsi_cuda_swiglu_args args = { .units = count / each, .rest = count % each };
    for (int32_t k = 0; k < ARRAYS; k++) {
        args.data[k] = all[k]->data;
        fits = fits && all[k]->dtype == gate->dtype && (uintptr_t)all[k]->data % WIDE == 0;
    }
    if (!fits) return (ts_status)TSI_KERNEL_DECLINED;
    if (count == 0) return TS_OK;
    if (!is_one_row(all)) {
        args.rest = 0;
        if (!settle_rows(all, each, &args)) return (ts_status)TSI_KERNEL_DECLINED;
    }
    int64_t threads = args.units > args.rest ? args.units : args.rest;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    tsi_cuda_kernel kernel = gate->dtype == TS_DTYPE_F32    ? TSI_CUDA_swiglu_gradients_f32
                             : gate->dtype == TS_DTYPE_BF16 ? TSI_CUDA_swiglu_gradients_bf16
                                                            : TSI_CUDA_swiglu_gradients_f16;
    return tsi_cuda_launch(io->queue, kernel, (threads + TSI_CUDA_BLOCK - 1) / TSI_CUDA_BLOCK,
                           TSI_CUDA_BLOCK, 0, &args);
}
