/* SPDX-License-Identifier: Apache-2.0 */
/* attend_mma_back.cu - the gradient of attention of bf16 and f16 on the tensor cores, with every
 * mask, by its block lists.
 *
 *   P = exp(scale Q K' - lse)     dS = scale P (dO V' - delta)     of pairs that are seen
 *
 *   queries    a block has 128 queries of a head and walks the keys they see: dQ = dS K
 *   keys       a block has 64 keys of a group and walks the queries that see them, of all its
 * heads: dV = P' dO, dK = dS' Q. Rows are keys there, and P and dS come out turned.
 *
 * P and dS are made twice, so that no sum is shared among blocks: each is in the order of tiles,
 * and repeats have equal bits. What both need of a query is found before: the log-sum-exp of powers
 * of two, +inf of queries that see nothing, and delta = sum(dO O), scaled. Rows that do not exist
 * are zeros. */
#include "backend/cuda/kernels/attend_back.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/real.cuh"

/* ---- what is known of queries ---------------------------------------------------------------- */

/* Eight numbers of a result that is of a dtype of 16 bits or f32, on 16 bytes. */
template <typename T>
__device__ inline void load_eight(float (&to)[8], const tsi_cuda_heads &x, int64_t at)
{
    if (x.dtype == TS_DTYPE_F32) {
#pragma unroll
        for (int e = 0; e < 8; e++)
            to[e] = ((const float *)x.data)[at + e];
        return;
    }
    unit_of<uint16_t> unit = load_unit<T>((const uint16_t *)x.data + at, true);
#pragma unroll
    for (int e = 0; e < 8; e++)
        to[e] = T::load(unit.element[e]);
}

/* Eight columns a thread, of up to E. */
template <typename T, int E> __device__ void known(const tsi_cuda_attend_args &a)
{
    constexpr int LANES = E / 8;
    int32_t row = (int32_t)((blockIdx.x * blockDim.x + threadIdx.x) / LANES);
    int32_t rows = (int32_t)(a.batch * a.heads * a.queries), part = threadIdx.x % LANES * 8;
    bool there = row < rows;
    int32_t of = there ? row : 0, bh = of / (int32_t)a.queries, i = of % (int32_t)a.queries;
    int32_t b = bh / (int32_t)a.heads, h = bh % (int32_t)a.heads;
    float sum = 0;
    if (part < a.width) {
        float out[8], grad[8];
        load_eight<T>(out, a.out, at(a.out, b, h, i) + part);
        load_eight<T>(grad, a.d_out, at(a.d_out, b, h, i) + part);
#pragma unroll
        for (int e = 0; e < 8; e++)
            sum += out[e] * grad[e];
    }
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (!there || part > 0) return;
    float lse = ((const float *)a.lse.data)[at(a.lse, b, h, i)];
    ((known_of *)a.delta)[row] = { lse == -INFINITY ? INFINITY : lse * LOG2_E,
                                   sum * a.scale_narrow };
}

/* ---- queries --------------------------------------------------------------------------------- */

template <typename H, int D> __device__ void queries(const tsi_cuda_attend_args &a)
{
    constexpr int M = TSI_CUDA_TILE_QUERIES, THREADS = M * 2; /* a warp has 16 of them */
    constexpr uint32_t TILE = KEYS * D * 2;
    TSI_BLOCK_MEMORY(uint4, memory);
    uint32_t rows = shared_at(memory), grads = rows + M * D * 2;
    uint32_t keys = grads + M * D * 2, values = keys + 2 * TILE;
    const queries_at block(a);
    int64_t b = block.b, h = block.h, g = block.g, first = block.first;
    const uint16_t *k = head_of(a.k, b, g), *v = head_of(a.v, b, g);
    listed_steps steps = { runs_of(a.tiles, list_of(a.tiles, b, h), first / M), 0 };
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16; /* of the warp */
    int64_t mine = first + row + lane / 4;
    const known_of *of = known_of_head(a, b, h);
    const known_of known[2] = { known_at(a, of, mine), known_at(a, of, mine + 8) };
    seen_bits<1> seen(a, first, mine);
    float sum[1][D / 8][4];
    clear(sum);

    fetch_rows<D, M, THREADS>(rows, head_of(a.q, b, h), a.q.stride[2], first, a.queries, a.depth);
    fetch_rows<D, M, THREADS>(grads, head_of(a.d_out, b, h), a.d_out.stride[2], first, a.queries,
                              a.width);
    if (!steps.is_over()) {
        fetch_rows<D, KEYS, THREADS>(keys, k, a.k.stride[2], steps.key(), a.keys, a.depth);
        fetch_rows<D, KEYS, THREADS>(values, v, a.v.stride[2], steps.key(), a.keys, a.width);
    }
    fetch_end();
    fetch_wait();
    __syncthreads();
    for (uint32_t now = 0; !steps.is_over(); now ^= TILE) {
        listed_steps after = steps;
        after.go_on();
        if (!after.is_over()) {
            uint32_t next = now ^ TILE;
            fetch_rows<D, KEYS, THREADS>(keys + next, k, a.k.stride[2], after.key(), a.keys,
                                         a.depth);
            fetch_rows<D, KEYS, THREADS>(values + next, v, a.v.stride[2], after.key(), a.keys,
                                         a.width);
        }
        fetch_end();
        float s[1][KEYS / 8][4], dp[1][KEYS / 8][4];
        products<H, D>(s, rows, row, keys + now);
        products<H, D>(dp, grads, row, values + now);
        seen.look(a, steps);
        hide<1>(s, seen);
        turn_rows(a, s[0], dp[0], known);
        add_products<H, D, 1>(sum, dp, keys + now);
        fetch_wait();
        __syncthreads();
        steps = after;
    }
    const sums_at place = { b, h, first + row, a.queries, a.depth };
    if (a.adds) add_sums<D>(a.dq, sum, place);
    store_sums<H, D>(a.dq, sum, place);
}

/* ---- keys ------------------------------------------------------------------------------------ */

template <typename H, int D> __device__ void keys(const tsi_cuda_attend_args &a)
{
    constexpr int STEP = query_steps::STEP, THREADS = KEYS * 2; /* a warp has 16 keys */
    constexpr uint32_t TILE = STEP * D * 2;
    TSI_BLOCK_MEMORY(uint4, memory);
    uint32_t rows = shared_at(memory), values = rows + KEYS * D * 2;
    uint32_t queries = values + KEYS * D * 2, grads = queries + 2 * TILE;
    step_known *known = (step_known *)((char *)memory + 2 * KEYS * D * 2 + 4 * TILE);
    int64_t tiles = (a.keys + KEYS - 1) / KEYS, bg = blockIdx.x / tiles;
    int64_t column = blockIdx.x % tiles, first = column * KEYS;
    int64_t b = bg / a.groups, g = bg % a.groups;
    int row = threadIdx.x / 32 * 16; /* of the warp */
    query_steps steps(a, b, g, column);
    float dk[1][D / 8][4], dv[1][D / 8][4];
    clear(dk);
    clear(dv);

    fetch_rows<D, KEYS, THREADS>(rows, head_of(a.k, b, g), a.k.stride[2], first, a.keys, a.depth);
    fetch_rows<D, KEYS, THREADS>(values, head_of(a.v, b, g), a.v.stride[2], first, a.keys, a.width);
    auto fetch_step = [&](const query_steps &of, int turn) {
        fetch_rows<D, STEP, THREADS>(queries + turn * TILE, head_of(a.q, b, of.h), a.q.stride[2],
                                     of.query(), a.queries, a.depth);
        fetch_rows<D, STEP, THREADS>(grads + turn * TILE, head_of(a.d_out, b, of.h),
                                     a.d_out.stride[2], of.query(), a.queries, a.width);
        fetch_known(a, known[turn], known_of_head(a, b, of.h), of);
    };
    if (!steps.is_over()) fetch_step(steps, 0);
    fetch_end();
    fetch_wait();
    __syncthreads();
    for (int turn = 0; !steps.is_over(); turn ^= 1) {
        bool masked = steps.is_masked();
        steps.go_on();
        if (!steps.is_over()) fetch_step(steps, turn ^ 1);
        fetch_end();
        float s[1][STEP / 8][4], dp[1][STEP / 8][4];
        products<H, D>(s, rows, row, queries + turn * TILE);
        products<H, D>(dp, values, row, grads + turn * TILE);
        if (masked) known[turn].hide(s[0], row);
        known[turn].turn<true>(a, s[0], dp[0]);
        add_products<H, D, 1>(dv, s, grads + turn * TILE);
        add_products<H, D, 1>(dk, dp, queries + turn * TILE);
        fetch_wait();
        __syncthreads();
    }
    store_sums<H, D>(a.dk, dk, { b, g, first + row, a.keys, a.depth });
    store_sums<H, D>(a.dv, dv, { b, g, first + row, a.keys, a.width });
}

/* Kernels of columns, or fewer, and dtype. */
#define ATTEND_KNOWN(name, real, width)                                                            \
    TSI_KERNEL(attend_known_##name, tsi_cuda_attend_args)                                          \
    {                                                                                              \
        known<real, width>(a);                                                                     \
    }
ATTEND_KNOWN(64_bf16, as_bf16, 64)
ATTEND_KNOWN(64_f16, as_f16, 64)
ATTEND_KNOWN(128_bf16, as_bf16, 128)
ATTEND_KNOWN(128_f16, as_f16, 128)
ATTEND_KNOWN(256_bf16, as_bf16, 256)
ATTEND_KNOWN(256_f16, as_f16, 256)
#define ATTEND_BACK(name, half, depth)                                                             \
    TSI_KERNEL_BOUNDED(attend_mma_queries_##name, tsi_cuda_attend_args, 256)                       \
    {                                                                                              \
        queries<half, depth>(a);                                                                   \
    }                                                                                              \
    TSI_KERNEL_BOUNDED(attend_mma_keys_##name, tsi_cuda_attend_args, 128)                          \
    {                                                                                              \
        keys<half, depth>(a);                                                                      \
    }
ATTEND_BACK(64_bf16, of_bf16, 64)
ATTEND_BACK(64_f16, of_f16, 64)
ATTEND_BACK(128_bf16, of_bf16, 128)
ATTEND_BACK(128_f16, of_f16, 128)
