/* SPDX-License-Identifier: Apache-2.0 */
/* copy.cu - strided copies and fills in units of 1 to 16 bytes, and transposes by tiles.
 *
 * A thread moves four units that are a grid apart, so that four loads are on their way before the
 * first store. */
#include "backend/cuda/kernels/index.cuh"

template <typename U> __device__ void copy_units(const tsi_cuda_copy_args &a)
{
    const tsi_cuda_operand *const operands[2] = { &a.to, &a.from };
    int64_t step = item_step();
    for (int64_t i = first_item(); i < a.space.count; i += 4 * step) {
        U unit[4];
        int64_t to[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int64_t item = i + k * step, offset[2];
            if (item >= a.space.count) continue;
            place(a.space, item, operands, offset);
            to[k] = offset[0];
            unit[k] = ((const U *)a.from.data)[offset[1]];
        }
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (i + k * step < a.space.count) ((U *)a.to.data)[to[k]] = unit[k];
    }
}

template <typename U> __device__ void fill_units(const tsi_cuda_fill_args &a)
{
    const tsi_cuda_operand *const operands[1] = { &a.to };
    U unit = *(const U *)a.pattern;
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        int64_t offset[1];
        place(a.space, i, operands, offset);
        ((U *)a.to.data)[offset[0]] = unit;
    }
}

/* Tiles of 32 x 32 by 32 x 8 threads; one column more, so that a column is not one bank. */
template <typename U> __device__ void transpose_units(const tsi_cuda_transpose_args &a)
{
    __shared__ U tile[32][33];
    const tsi_cuda_operand *const operands[2] = { &a.to, &a.from };
    int64_t tiles = a.row_tiles * a.column_tiles, all = a.space.count * tiles;
    int x = threadIdx.x % 32, y = threadIdx.x / 32;
    for (int64_t t = blockIdx.x; t < all; t += gridDim.x) {
        int64_t outer = t / tiles, inner = t - outer * tiles, offset[2];
        int64_t row = inner / a.column_tiles * 32, column = inner % a.column_tiles * 32;
        place(a.space, outer, operands, offset);
        U *to = (U *)a.to.data + offset[0];
        const U *from = (const U *)a.from.data + offset[1];
        for (int k = y; k < 32; k += 8)
            if (column + k < a.columns && row + x < a.rows)
                tile[k][x] = from[(column + k) * a.from_column + row + x];
        __syncthreads();
        for (int k = y; k < 32; k += 8)
            if (row + k < a.rows && column + x < a.columns)
                to[(row + k) * a.to_row + column + x] = tile[x][k];
        __syncthreads();
    }
}

#define UNITS(size, type)                                                                          \
    extern "C" __global__ void copy_##size(const __grid_constant__ tsi_cuda_copy_args a)           \
    {                                                                                              \
        copy_units<type>(a);                                                                       \
    }                                                                                              \
    extern "C" __global__ void fill_##size(const __grid_constant__ tsi_cuda_fill_args a)           \
    {                                                                                              \
        fill_units<type>(a);                                                                       \
    }                                                                                              \
    extern "C" __global__ void transpose_##size(const __grid_constant__ tsi_cuda_transpose_args a) \
    {                                                                                              \
        transpose_units<type>(a);                                                                  \
    }
UNITS(1, uint8_t)
UNITS(2, uint16_t)
UNITS(4, uint32_t)
UNITS(8, uint2)
UNITS(16, uint4)
