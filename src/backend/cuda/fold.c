/* SPDX-License-Identifier: Apache-2.0 */
/* fold.c - the n-source reduction of the cuda device.
 *
 * One launch whatever the number of sources: those that do not fit the arguments are in a table
 * that goes to the device in stream order. A thread has all sources of its elements, so they are
 * applied in order and rounded once, as on the host. */
#include "backend/cuda/cuda.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

static const tsi_cuda_kernel kernel_of[TS_DTYPE_COUNT] = {
    [TS_DTYPE_F64] = TSI_CUDA_fold_f64,   [TS_DTYPE_F32] = TSI_CUDA_fold_f32,
    [TS_DTYPE_BF16] = TSI_CUDA_fold_bf16, [TS_DTYPE_F16] = TSI_CUDA_fold_f16,
    [TS_DTYPE_I64] = TSI_CUDA_fold_i64,   [TS_DTYPE_I32] = TSI_CUDA_fold_i32,
    [TS_DTYPE_I16] = TSI_CUDA_fold_i16,   [TS_DTYPE_I8] = TSI_CUDA_fold_i8,
    [TS_DTYPE_U8] = TSI_CUDA_fold_u8,     [TS_DTYPE_BOOL] = TSI_CUDA_fold_bool,
    [TS_DTYPE_C64] = TSI_CUDA_fold_c64,   [TS_DTYPE_C128] = TSI_CUDA_fold_c128,
};

static bool is_dense_on_16(const tsi_block *block)
{
    return (uintptr_t)block->data % 16 == 0 && tsi_block_is_dense(block);
}

/* Dims that follow each other in every block become one; strides of what is left. */
typedef struct folded {
    int32_t ndim, dim[TS_NDIM_MAX]; /* the last dim of each group */
    int64_t extent[TS_NDIM_MAX];
} folded;

static bool joins(const tsi_block *block, int32_t outer, int32_t inner, int64_t extent)
{
    return block->stride[outer] == extent * block->stride[inner];
}

static void fold_dims(folded *f, const tsi_block *to, const tsi_block *const *from, int64_t count)
{
    *f = (folded){ 0 };
    for (int32_t d = to->ndim - 1; d >= 0; d--) {
        if (to->extent[d] == 1) continue;
        int32_t n = f->ndim;
        bool one = n > 0 && joins(to, d, f->dim[n - 1], f->extent[n - 1]);
        for (int64_t i = 0; one && i < count; i++)
            one = joins(from[i], d, f->dim[n - 1], f->extent[n - 1]);
        if (one) {
            f->extent[n - 1] *= to->extent[d];
        } else {
            f->dim[n] = d;
            f->extent[f->ndim++] = to->extent[d];
        }
    }
}

/* `f` is innermost first, kernels want the outermost first. */
static tsi_cuda_operand operand_of(const folded *f, const tsi_block *block)
{
    tsi_cuda_operand operand = { .data = block->data };
    for (int32_t d = 0; d < f->ndim; d++)
        operand.stride[f->ndim - 1 - d] = block->stride[f->dim[d]];
    return operand;
}

static void space_of(const folded *f, tsi_cuda_space *space)
{
    int64_t extent[TS_NDIM_MAX];
    for (int32_t d = 0; d < f->ndim; d++)
        extent[f->ndim - 1 - d] = f->extent[d];
    tsi_cuda_space_make(space, f->ndim, extent);
}

static ts_status launch(tsi_stream *stream, int32_t dtype, tsi_cuda_fold_args *args)
{
    int64_t per_thread = args->dense ? 16 / (int64_t)ts_dtype_size((ts_dtype)dtype) : 1;
    return tsi_cuda_launch_items(stream, kernel_of[dtype],
                                 (args->space.count + per_thread - 1) / per_thread, args);
}

/* More sources than fit: their table lives on the device for as long as the launch. */
static ts_status launch_many(tsi_stream *stream, const folded *f, const tsi_block *const *from,
                             int64_t count, int32_t dtype, tsi_cuda_fold_args *args)
{
    size_t bytes = (size_t)count * sizeof(tsi_cuda_operand);
    tsi_cuda_operand *table = tsi_alloc(bytes);
    CUdeviceptr memory = 0;
    if (!table) return tsi_fail_memory("the sources of a fold", bytes);
    for (int64_t i = 0; i < count; i++)
        table[i] = operand_of(f, from[i]);
    ts_status status = tsi_cuda_memory(stream, "the sources of a fold", bytes, &memory);
    args->more = (const tsi_cuda_operand *)(uintptr_t)memory;
    if (status == TS_OK)
        status = tsi_cuda_stage_in(stream, (void *)(uintptr_t)memory, table, bytes);
    if (status == TS_OK) status = launch(stream, dtype, args);
    if (memory) (void)tsi_cu.free_async(memory, tsi_cuda_apart(stream));
    tsi_free(table);
    return status;
}

static ts_status fold_in(tsi_stream *stream, const tsi_block *to, const tsi_block *const *from,
                         int64_t count, ts_reduce reduce, int64_t divisor)
{
    folded f;
    tsi_cuda_fold_args args = { .sources = count, .reduce = reduce, .divisor = divisor };
    fold_dims(&f, to, from, count);
    space_of(&f, &args.space);
    args.to = operand_of(&f, to);
    args.dense = is_dense_on_16(to);
    for (int64_t i = 0; i < count; i++)
        args.dense = args.dense && is_dense_on_16(from[i]);
    if (count > TSI_CUDA_SOURCES) return launch_many(stream, &f, from, count, to->dtype, &args);
    for (int64_t i = 0; i < count; i++)
        args.from[i] = operand_of(&f, from[i]);
    return launch(stream, to->dtype, &args);
}

ts_status tsi_cuda_fold(const tsi_device *device, const tsi_block *to, const tsi_block *const *from,
                        int64_t count, ts_reduce reduce, int64_t avg_count, tsi_stream *stream)
{
    tsi_cuda *cuda = tsi_cuda_of(device);
    ts_dtype dtype = (ts_dtype)to->dtype;
    const char *why = NULL;
    bool side;
    if (!tsi_reduce_allowed(reduce, dtype, &why))
        return TSI_FAIL(TS_ERR_DTYPE, "%s of %s: %s", ts_reduce_name(reduce), ts_dtype_name(dtype),
                        why);
    if (count < 1)
        return TSI_FAIL(TS_ERR_ARG, "a reduction of %lld sources has no value", (long long)count);
    if (tsi_block_count(to) == 0) return TS_OK;
    TSI_TRY(tsi_cuda_begin(cuda, &stream, &side));
    ts_status status = fold_in(stream, to, from, count, reduce, avg_count > 0 ? avg_count : count);
    return tsi_cuda_end(cuda, stream, side, status);
}
