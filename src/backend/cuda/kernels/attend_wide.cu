/* SPDX-License-Identifier: Apache-2.0 */
/* attend_wide.cu - attention forward of bf16 and f16 by products of four warps, for GPUs of 9.0:
 * what attend_mma.cu does, with factors read from shared memory while the warps go on.
 *
 *   a block    128 queries of one head, 64 for four warps each
 *   a step     64 keys: S = Q K' of it, and O += P V of the one before while its scores are weighed
 *
 *   tensor cores   S of step + 1 | O of step       | S of step + 2 | ...
 *   threads        wait          | weigh step + 1  | wait
 *
 *   memory of keys      step: free, takes step + 2     | step + 1: being multiplied
 *   memory of values    step - 1: free, takes step + 1 | step: being multiplied
 *
 * What the barrier of a step finds multiplied is fetched over. */
#include "backend/cuda/kernels/attend_forward.cuh"
#include "backend/cuda/kernels/attend_wide.cuh"
#include "backend/cuda/kernels/kernel.cuh"

/* D columns of queries and keys, E of values, or fewer. */
template <typename H, int D, int E, bool LISTED>
__device__ void attend(const tsi_cuda_attend_args &a)
{
    constexpr int M = TSI_CUDA_TILE_QUERIES, THREADS = M / TILE_ROWS * FOUR_WARPS;
    constexpr uint32_t DEEP = tile_of<D>::BYTES, WIDE = tile_of<E>::BYTES;
    typedef way<LISTED, 1> way_of;
    TSI_BLOCK_MEMORY(__align__(1024) char, memory);
    uint32_t queries = shared_at(memory), keys = queries + M / TILE_ROWS * DEEP;
    uint32_t values = keys + 2 * DEEP, own = queries + threadIdx.x / FOUR_WARPS * DEEP;
    const queries_at block(a);
    int64_t b = block.b, h = block.h, g = block.g, first = block.first;
    typename way_of::steps steps = way_of::begin(a, b, h, first, M), next = steps;
    int64_t mine = first + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; /* first row */
    rows_state<E, 1> r;
    begin_rows<E, 1>(a, r, b, h, mine);
    if (!steps.is_over()) {
        const tile_fetch<D, THREADS> q(a.q, b, h, a.depth), k(a.k, b, g, a.depth);
        const tile_fetch<E, THREADS> v(a.v, b, g, a.width);
        q.template rows<M>(queries, (int32_t)first, a.queries);
        k.template rows<KEYS>(keys, steps.key(), a.keys);
        fetch_end();
        next.go_on();
        v.template rows<KEYS>(values, steps.key(), a.keys);
        if (!next.is_over()) k.template rows<KEYS>(keys + DEEP, next.key(), a.keys);
        fetch_end();
        typename way_of::seen seen(a, first, mine);
        float s[1][KEYS / 8][4], keep[1][2], scale = a.scale_power;
        narrow_step p;
        products_meet<1>();
        wide_products<H, D>(s[0], own, keys);
        products_end();
        products_wait();
        products_there(s[0]);
        seen.look(a, steps);
        weigh<E, 1>(s, r, scale, seen, keep);
        keep_results<E, 1>(r, keep);
        narrow<H>(p, s[0]);
        uint32_t turn = 0; /* the memory of step; that of step + 1 is the other one */
        for (; !next.is_over(); turn ^= 1) {
            products_meet();
            wide_products<H, D>(s[0], own, keys + (turn ^ 1) * DEEP);
            products_end();
            wide_add_products<H, E>(r.out[0], p, values + turn * WIDE);
            products_end();
            steps = next;
            next.go_on();
            v.template rows<KEYS>(values + (turn ^ 1) * WIDE, steps.key(), a.keys);
            if (!next.is_over()) k.template rows<KEYS>(keys + turn * DEEP, next.key(), a.keys);
            fetch_end();
            products_wait<1>();
            products_there(s[0]);
            seen.look(a, steps);
            weigh<E, 1>(s, r, scale, seen, keep);
            products_there(s[0]);
            products_wait();
            products_there(r.out[0]);
            keep_results<E, 1>(r, keep);
            narrow<H>(p, s[0]);
        }
        products_meet();
        wide_add_products<H, E>(r.out[0], p, values + turn * WIDE);
        products_end();
        products_wait();
        products_there(r.out[0]);
    }
    store_rows<H, E, 1>(a, r, b, h, mine);
}

/* Kernels of columns, dtype and way through keys; `blocks` of them a multiprocessor holds. */
#define ATTEND(name, half, depth, width, blocks)                                                   \
    TSI_KERNEL_BOUNDED(attend_wide_##name, tsi_cuda_attend_args, 256, blocks)                      \
    {                                                                                              \
        attend<half, depth, width, false>(a);                                                      \
    }                                                                                              \
    TSI_KERNEL_BOUNDED(attend_wide_##name##_listed, tsi_cuda_attend_args, 256, blocks)             \
    {                                                                                              \
        attend<half, depth, width, true>(a);                                                       \
    }
ATTEND(64_bf16, of_bf16, 64, 64, 2)
ATTEND(64_f16, of_f16, 64, 64, 2)
ATTEND(128_bf16, of_bf16, 128, 128, 1)
ATTEND(128_f16, of_f16, 128, 128, 1)
ATTEND(192_bf16, of_bf16, 192, 128, 1)
ATTEND(192_f16, of_f16, 192, 128, 1)
ATTEND(256_bf16, of_bf16, 256, 256, 1)
ATTEND(256_f16, of_f16, 256, 256, 1)
