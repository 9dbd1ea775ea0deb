/* SPDX-License-Identifier: Apache-2.0 */
/* attend_wide.cuh - tiles of rows of heads for products of four warps (wgmma.cuh).
 *
 * A tile is 64 rows of D columns in shared memory (zeros behind the ones there are), 64 columns (a
 * panel) after the other, so that it is a factor either way:
 *
 *   along its rows    S = Q K': rows are queries (left) or keys (right), the inner dim is D
 *   across them       O += P V: rows are the inner dim, columns those of the result */
#ifndef TSI_BACKEND_CUDA_KERNELS_ATTEND_WIDE_CUH
#define TSI_BACKEND_CUDA_KERNELS_ATTEND_WIDE_CUH

#include "backend/cuda/kernels/attend_mma.cuh"
#include "backend/cuda/kernels/wgmma.cuh"

enum { TILE_ROWS = 64, PANEL = TILE_ROWS * 128, FOUR_WARPS = 128 }; /* a panel in bytes */
static_assert(TILE_ROWS == KEYS, "a step is a tile of keys");

template <int D> struct tile_of {
    enum { BYTES = TILE_ROWS * D * 2 };
};

/* Rows of a head, as this one of THREADS threads fetches them to tiles: 16 bytes of each AT_ONCE-th
 * row, and of each panel. Strides and rows are numbers of 31 bits. */
template <int D, int THREADS> struct tile_fetch {
    enum { CHUNKS = 8, AT_ONCE = THREADS / CHUNKS };
    static_assert(AT_ONCE % 8 == 0 && TILE_ROWS % AT_ONCE == 0, "rows are turned alike");
    const uint16_t *from; /* its row of those from 0 on */
    int32_t stride, row, columns; /* of the row, from its first on */
    uint32_t place;               /* of it in a tile */

    __device__ tile_fetch(const tsi_cuda_heads &x, int64_t b, int64_t h, int64_t width)
        : stride((int32_t)x.stride[2]), row(threadIdx.x / CHUNKS)
    {
        int chunk = threadIdx.x % CHUNKS;
        from = head_of(x, b, h) + (int64_t)row * stride + chunk * 8;
        columns = (int32_t)width - chunk * 8;
        place = chunk_at<64>(0, row, chunk);
    }
    /* Rows of a head so many elements further on. */
    __device__ tile_fetch of_head(int64_t elements) const
    {
        tile_fetch moved = *this;
        moved.from += elements;
        return moved;
    }
    /* ROWS rows from `first` on; those from `end` on are zeros. */
    template <int ROWS> __device__ void rows(uint32_t to, int32_t first, int64_t end) const
    {
        const uint16_t *source = from + (int64_t)first * stride;
        int32_t left = (int32_t)end - first - row;
#pragma unroll
        for (int at = 0; at < ROWS; at += AT_ONCE)
#pragma unroll
            for (int panel = 0; panel < D / 64; panel++) {
                uint32_t tile = at / TILE_ROWS * tile_of<D>::BYTES;
                bool there = at < left && panel * 64 < columns;
                fetch(to + place + tile + panel * PANEL + at % TILE_ROWS * 128,
                      source + (int64_t)at * stride + panel * 64, there ? 16 : 0);
            }
    }
};

/* What a thread fetched, but for the last LATER groups, is there for the products of all. */
template <int LATER = 0> __device__ inline void products_meet()
{
    fetch_wait<LATER>();
    show_products();
    __syncthreads();
    products_begin();
}

/* s = X Y' of two tiles, later. */
template <typename H, int D>
__device__ inline void wide_products(float (&s)[KEYS / 8][4], uint32_t x, uint32_t y)
{
    uint64_t left = factor_at(x, PANEL), right = factor_at(y, PANEL);
    multiply_later<false, false, true>(H(), s, left, right);
#pragma unroll
    for (int k = 1; k < D / 16; k++) {
        uint32_t at = k / 4 * PANEL + k % 4 * 32;
        multiply_later<false, false>(H(), s, factor_on(left, at), factor_on(right, at));
    }
}

/* A step's weights or their gradients, rounded: a left factor in registers. */
typedef uint32_t narrow_step[KEYS / 16][4];

template <typename H>
__device__ inline void narrow(narrow_step &to, const float (&s)[KEYS / 8][4])
{
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        to[k][0] = H::pair(s[2 * k][0], s[2 * k][1]);
        to[k][1] = H::pair(s[2 * k][2], s[2 * k][3]);
        to[k][2] = H::pair(s[2 * k + 1][0], s[2 * k + 1][1]);
        to[k][3] = H::pair(s[2 * k + 1][2], s[2 * k + 1][3]);
    }
}

/* sum += P X, X across the rows of a tile; later. */
template <typename H, int D>
__device__ inline void wide_add_products(float (&sum)[D / 8][4], const narrow_step &p, uint32_t x)
{
    uint64_t right = factor_at(x, PANEL);
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
        multiply_later<true>(H(), sum, p[k], factor_on(right, k * 16 * 128));
}

#endif
