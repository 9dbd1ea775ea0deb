/* SPDX-License-Identifier: Apache-2.0 */
/* entropy.c - cross_entropy and its gradient over rows of logits. Labels out of range are told by
 * the next wait. */
#include "backend/cuda/complain.h"
#include "backend/cuda/dtype.h"
#include "backend/cuda/kernel.h"
#include "backend/cuda/rows.h"
#include "base/error.h"
#include "op/nn/attributes.h"

/* NONE: no reduction. AT_ONCE: threads on a multiprocessor that fetch ahead. FEW_ROWS: of a thread,
 * which the last block adds sooner than a kernel of its own would begin. */
enum { NONE = 2, THREADS = 256, AT_ONCE = 1024, FEW_ROWS = 8 };

/* One number a row. */
static bool column_of(const tsi_block *block, int64_t rows, int64_t *stride)
{
    int64_t count, one;
    return tsi_cuda_rows_of(block, 0, &count, &one, stride) && count == rows;
}

static bool settle(const tsi_kernel_io *io, tsi_cuda_entropy_args *a)
{
    const tsi_block *x = &io->in[0].block, *labels = &io->in[1].block;
    a->x = x->data;
    a->labels = labels->data;
    a->dtype = x->dtype;
    a->label_dtype = labels->dtype;
    return io->queue && tsi_cuda_is_real(x->dtype) && tsi_cuda_is_whole(labels->dtype) &&
           tsi_block_count(x) > 0 && tsi_cuda_rows_of(x, 1, &a->rows, &a->length, &a->x_stride) &&
           column_of(labels, a->rows, &a->label_stride);
}

static ts_status launch_any(tsi_stream *stream, const tsi_cuda_kernel *kernel,
                            tsi_cuda_entropy_args *a)
{
    return tsi_cuda_launch(stream, tsi_cuda_by_dtype(a->dtype, kernel),
                           tsi_min_i64(a->rows, INT32_MAX), THREADS, 0, a);
}

/* a->ticket is set where the terms are added, too. */
static ts_status launch_rows(tsi_stream *stream, tsi_cuda_entropy_args *a, bool adds)
{
    static const tsi_cuda_kernel any[] = { TSI_CUDA_entropy_f32, TSI_CUDA_entropy_f64,
                                           TSI_CUDA_entropy_bf16, TSI_CUDA_entropy_f16 };
    static const tsi_cuda_kernel ahead[] = { TSI_CUDA_entropy_ahead_f32,
                                             TSI_CUDA_entropy_ahead_bf16 };
    int64_t units = tsi_cuda_row_units(a->dtype, a->length, a->x_stride, (uintptr_t)a->x);
    if (units == 0) return launch_any(stream, any, a);
    int64_t threads = tsi_min_i64((units + 31) / 32 * 32, THREADS);
    if (adds && a->rows <= FEW_ROWS * threads) a->ticket = stream->tickets;
    return tsi_cuda_launch(stream, ahead[a->dtype == TS_DTYPE_BF16],
                           tsi_cuda_walkers(stream, a->rows, AT_ONCE / threads), (int32_t)threads,
                           0, a);
}

ts_status tsi_cuda_cross_entropy(const tsi_kernel_io *io)
{
    const tsi_cross_entropy_attributes *attributes = io->attributes;
    const tsi_block *loss = &io->out[0].block, *lse = &io->out[1].block;
    tsi_cuda_entropy_args a = { .ignore = attributes->ignore_index };
    bool plain = attributes->label_smoothing == 0 &&
                 (io->input_count < 3 || io->in[2].block.dtype == TS_DTYPE_NONE);
    if (!plain || !settle(io, &a) || !tsi_block_is_dense(lse) || !tsi_block_is_dense(loss))
        return (ts_status)TSI_KERNEL_DECLINED;
    bool wide = a.dtype == TS_DTYPE_F64, each = attributes->reduction == NONE;
    a.classes = a.length;
    a.mean = attributes->reduction == 0;
    a.lse_out = lse->data;
    a.loss = loss->data;
    a.out = loss->data;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    if (!each) TSI_TRY(tsi_cuda_scratch(io->queue, (size_t)a.rows * (wide ? 8 : 4), &a.out));
    bool cut = io->in[1].region || attributes->peers;
    TSI_TRY(tsi_cuda_ask(io, TSI_CUDA_BAD_LABEL, a.classes, cut, &a.asker));
    TSI_TRY(launch_rows(io->queue, &a, !each));
    if (each || a.ticket) return TS_OK;
    return tsi_cuda_launch(
        io->queue, wide ? TSI_CUDA_entropy_total_f64 : TSI_CUDA_entropy_total_f32, 1, 1024, 0, &a);
}

ts_status tsi_cuda_cross_entropy_backward(const tsi_kernel_io *io)
{
    static const tsi_cuda_kernel rows[] = { TSI_CUDA_entropy_backward_f32,
                                            TSI_CUDA_entropy_backward_f64,
                                            TSI_CUDA_entropy_backward_bf16,
                                            TSI_CUDA_entropy_backward_f16 };
    const tsi_block *lse = &io->in[2].block, *g = &io->in[3].block, *dx = &io->out[0].block;
    tsi_cuda_entropy_args a = { .lse = lse->data, .g = g->data, .out = dx->data };
    int64_t count, length;
    a.lse_dtype = lse->dtype;
    a.g_dtype = g->dtype;
    if (!settle(io, &a) || dx->dtype != a.dtype || !tsi_cuda_is_real(lse->dtype) ||
        !tsi_cuda_is_real(g->dtype) || !column_of(lse, a.rows, &a.lse_stride) ||
        !column_of(g, a.rows, &a.g_stride) ||
        !tsi_cuda_rows_of(dx, 1, &count, &length, &a.out_stride) ||
        !tsi_cuda_places_make(&a.place, io->in[0].region, io->in[0].block.ndim - 1))
        return (ts_status)TSI_KERNEL_DECLINED;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    return launch_any(io->queue, rows, &a);
}
