/* SPDX-License-Identifier: Apache-2.0 */
/* copy.cu - strided copies and fills in units of 1 to 16 bytes, and transposes by tiles.
 *
 * A thread moves four units of its block's piece of memory, so that four loads are on their way
 * before the first store and pages are walked once. */
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/kernel.cuh"

/* Four units from item i on, a block of threads apart. */
template <typename U>
__device__ inline void move_four(const tsi_cuda_copy_args &a, U *to_data, const U *from_data,
                                 int64_t i)
{
    const tsi_cuda_operand *const operands[2] = { &a.to, &a.from };
    U unit[4];
    int64_t to[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int64_t item = i + k * TSI_CUDA_BLOCK, offset[2];
        if (item >= a.space.count) continue;
        place(a.space, item, operands, offset);
        to[k] = offset[0];
        unit[k] = from_data[offset[1]];
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (i + k * TSI_CUDA_BLOCK < a.space.count) to_data[to[k]] = unit[k];
}

template <typename U> __device__ void copy_units(const tsi_cuda_copy_args &a)
{
    for (int64_t i = first_of<4>(); i < a.space.count; i += step_of<4>())
        move_four<U>(a, (U *)a.to.data, (const U *)a.from.data, i);
}

/* Block after block of a piece, piece after piece. */
template <typename U> __device__ void copy_list_units(const tsi_cuda_copy_list_args &a)
{
    for (int64_t b = blockIdx.x; b < a.count * a.blocks; b += gridDim.x) {
        int64_t piece = b / a.blocks, block = b - piece * a.blocks;
        move_four<U>(a.each, (U *)a.to[piece], (const U *)a.from[piece],
                     block * (4 * TSI_CUDA_BLOCK) + threadIdx.x);
    }
}

template <typename U> __device__ void fill_units(const tsi_cuda_fill_args &a)
{
    const tsi_cuda_operand *const operands[1] = { &a.to };
    U unit;
    memcpy(&unit, a.pattern, sizeof unit); /* arguments lie on 8 bytes, a unit may on 16 */
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        int64_t offset[1];
        place(a.space, i, operands, offset);
        ((U *)a.to.data)[offset[0]] = unit;
    }
}

/* Tile `inner` of a plane: bands of eight rows of tiles, in a band along its columns, so that
 * blocks that run together read and write long pieces on both sides. */
__device__ inline void tile_at(const tsi_cuda_transpose_args &a, int64_t inner, int64_t *row,
                               int64_t *column)
{
    uint32_t at = (uint32_t)inner, across = 8 * (uint32_t)a.column_tiles; /* 2^32 would be a TB */
    uint32_t band = at / across, rest = at - band * across;
    uint32_t height = (uint32_t)a.row_tiles - 8 * band;
    if (height > 8) height = 8;
    *column = rest / height;
    *row = 8 * band + rest % height;
}

/* The plane of tile t; most copies have one. */
__device__ inline int64_t plane_of(const tsi_cuda_transpose_args &a, int64_t t, int64_t tiles)
{
    return a.space.count == 1 ? 0 : t / tiles;
}

/* Tiles of SIDE x SIDE by 256 threads; a column more, so that a column is not one bank. */
template <typename U, int SIDE> __device__ void transpose_units(const tsi_cuda_transpose_args &a)
{
    constexpr int LINES = TSI_CUDA_BLOCK / SIDE;
    __shared__ U tile[SIDE][SIDE + 1];
    const tsi_cuda_operand *const operands[2] = { &a.to, &a.from };
    int64_t tiles = a.row_tiles * a.column_tiles, all = a.space.count * tiles;
    int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    for (int64_t t = blockIdx.x; t < all; t += gridDim.x) {
        int64_t outer = plane_of(a, t, tiles), row, column, offset[2];
        tile_at(a, t - outer * tiles, &row, &column);
        row *= SIDE, column *= SIDE;
        place(a.space, outer, operands, offset);
        U *to = (U *)a.to.data + offset[0];
        const U *from = (const U *)a.from.data + offset[1];
        U unit[SIDE / LINES];
#pragma unroll
        for (int j = 0; j < SIDE / LINES; j++)
            if (column + y + j * LINES < a.columns && row + x < a.rows)
                unit[j] = from[(column + y + j * LINES) * a.from_column + row + x];
#pragma unroll
        for (int j = 0; j < SIDE / LINES; j++)
            tile[y + j * LINES][x] = unit[j];
        __syncthreads();
#pragma unroll
        for (int j = 0; j < SIDE / LINES; j++)
            if (row + y + j * LINES < a.rows && column + x < a.columns)
                to[(row + y + j * LINES) * a.to_row + column + x] = tile[x][y + j * LINES];
        __syncthreads();
    }
}

/* Elements of two bytes in pairs on both sides: everything is even. */
TSI_KERNEL(transpose_pairs, tsi_cuda_transpose_args)
{
    constexpr int SIDE = 64;
    __shared__ uint16_t tile[SIDE][SIDE + 2];
    const tsi_cuda_operand *const operands[2] = { &a.to, &a.from };
    int64_t tiles = a.row_tiles * a.column_tiles, all = a.space.count * tiles;
    int x = threadIdx.x % 32 * 2, y = threadIdx.x / 32;
    for (int64_t t = blockIdx.x; t < all; t += gridDim.x) {
        int64_t outer = plane_of(a, t, tiles), row, column, offset[2];
        tile_at(a, t - outer * tiles, &row, &column);
        row *= SIDE, column *= SIDE;
        place(a.space, outer, operands, offset);
        uint16_t *to = (uint16_t *)a.to.data + offset[0];
        const uint16_t *from = (const uint16_t *)a.from.data + offset[1];
        uint32_t pair[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (column + y + j * 8 < a.columns && row + x < a.rows)
                pair[j] = *(const uint32_t *)&from[(column + y + j * 8) * a.from_column + row + x];
#pragma unroll
        for (int j = 0; j < 8; j++)
            *(uint32_t *)&tile[y + j * 8][x] = pair[j];
        __syncthreads();
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int k = y + j * 8;
            if (row + k < a.rows && column + x < a.columns)
                *(uint32_t *)&to[(row + k) * a.to_row + column + x] =
                    (uint32_t)tile[x][k] | (uint32_t)tile[x + 1][k] << 16;
        }
        __syncthreads();
    }
}

/* Reads units of 16 bytes, writes words of 4: rows are multiples of the unit, columns of what a
 * word holds. Words are made of one or two neighbours in a row of `to` before they go to shared
 * memory, where lanes write to 32 banks and read them in a row.
 *
 *   a warp reads    8 units, a line of memory, of each of 8 (4) columns of 2 (4) bytes
 *   words of a row  64, one bank on from row to row; fours of them change places in every second
 *                   32 rows, which the 64 of a warp would otherwise find in the same banks */
template <typename E> __device__ void transpose_wide(const tsi_cuda_transpose_args &a)
{
    constexpr int N = 16 / sizeof(E), PAIR = 4 / sizeof(E); /* elements of a unit, of a word */
    constexpr int SIDE = 64 * PAIR, GROUPS = 8, COLUMNS = 32 / GROUPS;
    constexpr int DOWN = SIDE / (GROUPS * N), STEPS = DOWN * (64 / COLUMNS) / 8;
    __shared__ uint32_t tile[SIDE][65];
    const tsi_cuda_operand *const operands[2] = { &a.to, &a.from };
    int64_t tiles = a.row_tiles * a.column_tiles, all = a.space.count * tiles;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int64_t t = blockIdx.x; t < all; t += gridDim.x) {
        int64_t outer = plane_of(a, t, tiles), row, column, offset[2];
        tile_at(a, t - outer * tiles, &row, &column);
        row *= SIDE, column *= SIDE;
        place(a.space, outer, operands, offset);
        E *to = (E *)a.to.data + offset[0];
        const E *from = (const E *)a.from.data + offset[1];
        union {
            uint4 unit;
            E element[N];
        } in[STEPS][PAIR];
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            int step = s * 8 + warp, r = (step % DOWN * GROUPS + lane / COLUMNS) * N;
            int c = (step / DOWN * COLUMNS + lane % COLUMNS) * PAIR;
#pragma unroll
            for (int p = 0; p < PAIR; p++)
                if (column + c + p < a.columns && row + r < a.rows)
                    in[s][p].unit =
                        *(const uint4 *)&from[(column + c + p) * a.from_column + row + r];
        }
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            int step = s * 8 + warp, r = (step % DOWN * GROUPS + lane / COLUMNS) * N;
            int word = step / DOWN * COLUMNS + lane % COLUMNS;
#pragma unroll
            for (int e = 0; e < N; e++) {
                uint32_t both = (uint32_t)in[s][0].element[e];
                if (PAIR == 2) both |= (uint32_t)in[s][PAIR - 1].element[e] << 16;
                tile[r + e][word ^ (r / 8 & 4)] = both;
            }
        }
        __syncthreads();
        for (int r = warp; r < SIDE && row + r < a.rows; r += 8)
#pragma unroll
            for (int w = lane; w < 64; w += 32)
                if (column + w * PAIR < a.columns)
                    *(uint32_t *)&to[(row + r) * a.to_row + column + w * PAIR] =
                        tile[r][w ^ (r / 8 & 4)];
        __syncthreads();
    }
}

TSI_KERNEL_BOUNDED(transpose_wide_2, tsi_cuda_transpose_args, TSI_CUDA_BLOCK, 3)
{
    transpose_wide<uint16_t>(a);
}

TSI_KERNEL(transpose_wide_4, tsi_cuda_transpose_args)
{
    transpose_wide<uint32_t>(a);
}

#define UNITS(size, type, side)                                                                    \
    TSI_KERNEL(copy_##size, tsi_cuda_copy_args)                                                    \
    {                                                                                              \
        copy_units<type>(a);                                                                       \
    }                                                                                              \
    TSI_KERNEL(copy_list_##size, tsi_cuda_copy_list_args)                                          \
    {                                                                                              \
        copy_list_units<type>(a);                                                                  \
    }                                                                                              \
    TSI_KERNEL(fill_##size, tsi_cuda_fill_args)                                                    \
    {                                                                                              \
        fill_units<type>(a);                                                                       \
    }                                                                                              \
    TSI_KERNEL(transpose_##size, tsi_cuda_transpose_args)                                          \
    {                                                                                              \
        transpose_units<type, side>(a);                                                            \
    }
UNITS(1, uint8_t, 64)
UNITS(2, uint16_t, 64)
UNITS(4, uint32_t, 32)
UNITS(8, uint2, 32)
UNITS(16, uint4, 32)
