/* SPDX-License-Identifier: Apache-2.0 */
/* launch.c - starting kernels: grids by the number of items, and index spaces with their divisors.
 *
 * Kernels walk their items with the stride of the grid, so a grid never needs more blocks than the
 * GPU keeps busy, and counts are 64 bits everywhere.
 *
 * INV: a kernel is launched with leave to begin before the one ahead of it has ended only where its
 * code waits for that one (kernels/kernel.cuh), and only behind a kernel: behind a copy, memory
 * that is taken or given back, a wait for another stream, a graph, the begin of a capture it is
 * launched as usual, and in a stream of others always, since nobody knows what is ahead there. */
#include "backend/cuda/cuda.h"

#include <string.h>

#include "base/error.h"

enum {
    BLOCKS_PER_UNIT = 32,    /* 256 threads each: four waves of what a multiprocessor holds */
    SHARED_PLAIN = 48 * 1024 /* bytes a kernel may use unasked */
};

ts_status tsi_cuda_launch(tsi_stream *stream, tsi_cuda_kernel kernel, int64_t blocks,
                          int32_t threads, int32_t shared, void *args)
{
    void *parameters[1] = { args };
    CUlaunchAttribute early = { .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                .value.programmaticStreamSerializationAllowed = 1 };
    CUlaunchConfig how = { .gridDimX = (unsigned)blocks, .gridDimY = 1, .gridDimZ = 1 };
    TSI_ASSERT(blocks > 0 && blocks <= INT32_MAX);
    if (shared > SHARED_PLAIN)
        TSI_CUDA_TRY(stream->cuda, "shared memory of a kernel",
                     tsi_cu.function_set(stream->cuda->kernel[kernel],
                                         CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared));
    how.blockDimX = (unsigned)threads;
    how.blockDimY = how.blockDimZ = 1;
    how.sharedMemBytes = (unsigned)shared;
    how.hStream = stream->handle;
    how.attrs = &early;
    how.numAttrs = stream->cuda->early && !stream->apart && !stream->lent;
    stream->apart = false;
    stream->sent++;
    CUresult result = tsi_cu.launch(&how, stream->cuda->kernel[kernel], parameters, NULL);
    return result == CUDA_SUCCESS ? TS_OK : tsi_cuda_fail(stream->cuda, result, "a launch");
}

ts_status tsi_cuda_launch_items(tsi_stream *stream, tsi_cuda_kernel kernel, int64_t items,
                                void *args)
{
    if (items <= 0) return TS_OK;
    int64_t blocks = (items + TSI_CUDA_BLOCK - 1) / TSI_CUDA_BLOCK;
    int64_t most = (int64_t)stream->cuda->units * BLOCKS_PER_UNIT;
    return tsi_cuda_launch(stream, kernel, blocks < most ? blocks : most, TSI_CUDA_BLOCK, 0, args);
}

ts_status tsi_cuda_launch_pieces(tsi_stream *stream, tsi_cuda_kernel kernel, int64_t items,
                                 int32_t per_thread, void *args)
{
    if (items <= 0) return TS_OK;
    int64_t piece = (int64_t)per_thread * TSI_CUDA_BLOCK, blocks = (items + piece - 1) / piece;
    return tsi_cuda_launch(stream, kernel, blocks < INT32_MAX ? blocks : INT32_MAX, TSI_CUDA_BLOCK,
                           0, args);
}

/* q = (high(n * magic) + n) >> shift: exact for n < 2^31. */
tsi_cuda_divisor tsi_cuda_divisor_of(int64_t extent)
{
    tsi_cuda_divisor by = { 1, 1, 0 };
    if (extent < 1 || extent > INT32_MAX) return by; /* such a space divides by the extents */
    by.divisor = (uint32_t)extent;
    while (((uint64_t)1 << by.shift) < by.divisor)
        by.shift++;
    uint64_t power = (uint64_t)1 << by.shift;
    by.magic = (uint32_t)(((power - by.divisor) << 32) / by.divisor + 1);
    return by;
}

void tsi_cuda_space_make(tsi_cuda_space *space, int32_t ndim, const int64_t *extent)
{
    *space = (tsi_cuda_space){ .count = 1, .ndim = ndim };
    for (int32_t d = 0; d < ndim; d++) {
        space->extent[d] = extent[d];
        space->by[d] = tsi_cuda_divisor_of(extent[d]);
        space->count *= extent[d];
    }
}

tsi_cuda_operand tsi_cuda_operand_of(const tsi_block *block)
{
    tsi_cuda_operand operand = { .data = block->data };
    memcpy(operand.stride, block->stride, sizeof operand.stride);
    return operand;
}

static bool is_one(const tsi_cuda_operand *const *operand, int32_t count, int32_t outer,
                   int32_t inner, int64_t extent)
{
    for (int32_t k = 0; k < count; k++)
        if (operand[k]->stride[outer] != operand[k]->stride[inner] * extent) return false;
    return true;
}

int32_t tsi_cuda_coalesce(int32_t ndim, int64_t *extent, tsi_cuda_operand *const *operand,
                          int32_t count)
{
    int32_t left = 0;
    for (int32_t d = 0; d < ndim; d++) {
        if (extent[d] == 1) continue;
        if (left > 0 &&
            is_one((const tsi_cuda_operand *const *)operand, count, left - 1, d, extent[d])) {
            extent[left - 1] *= extent[d];
        } else {
            extent[left++] = extent[d];
        }
        for (int32_t k = 0; k < count; k++)
            operand[k]->stride[left - 1] = operand[k]->stride[d];
    }
    if (left > 0) return left;
    extent[0] = 1; /* one element */
    for (int32_t k = 0; k < count; k++)
        operand[k]->stride[0] = 1;
    return 1;
}

bool tsi_cuda_places_make(tsi_cuda_places *places, const tsi_region *region, int32_t dim)
{
    *places = (tsi_cuda_places){ .count = 0 };
    if (!region) return true;
    const tsi_span_list *list = &region->dim[dim];
    const tsi_span *span = tsi_spans(list);
    if (list->span_count > TSI_CUDA_SPANS) return false;
    if (list->span_count == 0) { /* nothing is here: a span without indices, since none means all */
        places->count = 1;
        places->span[0] = (tsi_cuda_span){ .period = 1 };
        return true;
    }
    places->count = list->span_count;
    for (int64_t s = 0; s < list->span_count; s++)
        places->span[s] =
            (tsi_cuda_span){ span[s].begin, span[s].length, span[s].period, span[s].count };
    return true;
}

bool tsi_cuda_rows_of(const tsi_block *block, int32_t inner, int64_t *rows, int64_t *length,
                      int64_t *stride)
{
    int64_t step = 1;
    int32_t d = block->ndim - 1;
    for (; d >= block->ndim - inner; step *= block->extent[d--])
        if (block->extent[d] != 1 && block->stride[d] != step) return false;
    *length = step;
    *rows = 1;
    *stride = step;
    for (bool first = true; d >= 0; d--) {
        if (block->extent[d] == 1) continue;
        if (first) *stride = block->stride[d];
        if (!first && block->stride[d] != *stride * *rows) return false;
        first = false;
        *rows *= block->extent[d];
    }
    return *stride >= 0;
}

enum { ROOM_ALIGN = 256 };

size_t tsi_cuda_rows_room(const tsi_block *block, int32_t inner)
{
    int64_t rows, length, stride;
    if (tsi_cuda_rows_of(block, inner, &rows, &length, &stride)) return 0;
    size_t bytes = (size_t)tsi_block_count(block) * ts_dtype_size((ts_dtype)block->dtype);
    return (bytes + ROOM_ALIGN - 1) / ROOM_ALIGN * ROOM_ALIGN;
}

ts_status tsi_cuda_rows_make(tsi_stream *stream, tsi_block *block, int32_t inner, char **room)
{
    size_t bytes = tsi_cuda_rows_room(block, inner);
    if (bytes == 0) return TS_OK;
    tsi_block dense = *block;
    int64_t step = 1;
    for (int32_t d = block->ndim - 1; d >= 0; step *= block->extent[d--])
        dense.stride[d] = step;
    dense.data = *room;
    *room += bytes;
    TSI_TRY(tsi_cuda_copy(&stream->cuda->device, &dense, block, stream));
    *block = dense;
    return TS_OK;
}
