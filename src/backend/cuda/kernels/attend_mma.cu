/* SPDX-License-Identifier: Apache-2.0 */
/* attend_mma.cu - attention forward of bf16 and f16 by the tensor cores' plain instructions, for
 * GPUs from sm_80 on: causal or whole without cuDNN, and with every mask.
 *
 *   a block    M queries of one head in registers, rows dealt to warps by 16
 *   a step     64 keys: S = Q K' in registers, the running softmax, O += P V; the next keys are on
 *              their way to shared memory meanwhile
 *
 * What a step is, and the softmax: attend_forward.cuh. */
#include "backend/cuda/kernels/attend_forward.cuh"
#include "backend/cuda/kernels/kernel.cuh"

template <typename H, int D, int MT, int WARPS, bool LISTED>
__device__ void attend(const tsi_cuda_attend_args &a)
{
    constexpr int M = WARPS * MT * 16, THREADS = WARPS * 32;
    static_assert(M == TSI_CUDA_TILE_QUERIES, "a block is a row of tiles");
    TSI_BLOCK_MEMORY(uint4, memory);
    uint32_t queries = shared_at(memory);
    uint32_t keys = queries + M * D * 2, values = keys + 2 * KEYS * D * 2;
    const queries_at block(a);
    int64_t b = block.b, h = block.h, g = block.g, first = block.first;
    const uint16_t *q = head_of(a.q, b, h), *k = head_of(a.k, b, g), *v = head_of(a.v, b, g);
    typename way<LISTED, MT>::steps steps = way<LISTED, MT>::begin(a, b, h, first, M);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t mine = first + warp * MT * 16 + lane / 4; /* this thread's first row */

    fetch_rows<D, M, THREADS>(queries, q, a.q.stride[2], first, a.queries, a.depth);
    if (!steps.is_over()) {
        fetch_rows<D, KEYS, THREADS>(keys, k, a.k.stride[2], steps.key(), a.keys, a.depth);
        fetch_rows<D, KEYS, THREADS>(values, v, a.v.stride[2], steps.key(), a.keys, a.width);
    }
    fetch_end();
    fetch_wait();
    __syncthreads();
    uint32_t fragment[MT][D / 16][4];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int c = 0; c < D / 16; c++)
            load_four(fragment[m][c], chunk_at<D>(queries, (warp * MT + m) * 16 + (lane & 15),
                                                  c * 2 + (lane >> 4)));
    rows_state<D, MT> r;
    begin_rows<D, MT>(a, r, b, h, mine);
    typename way<LISTED, MT>::seen seen(a, first, mine);
    float scale = a.scale_power;
    for (int turn = 0; !steps.is_over(); turn ^= 1) {
        uint32_t now = (uint32_t)turn * KEYS * D * 2, next = (uint32_t)(turn ^ 1) * KEYS * D * 2;
        typename way<LISTED, MT>::steps after = steps;
        after.go_on();
        if (!after.is_over()) {
            fetch_rows<D, KEYS, THREADS>(keys + next, k, a.k.stride[2], after.key(), a.keys,
                                         a.depth);
            fetch_rows<D, KEYS, THREADS>(values + next, v, a.v.stride[2], after.key(), a.keys,
                                         a.width);
        }
        fetch_end();
        float s[MT][KEYS / 8][4];
        products<H, D, MT>(s, fragment, keys + now);
        seen.look(a, steps);
        float keep[MT][2];
        weigh<D, MT>(s, r, scale, seen, keep);
        keep_results<D, MT>(r, keep);
        add_products<H, D, MT>(r.out, s, values + now);
        fetch_wait();
        __syncthreads();
        steps = after;
    }
    store_rows<H, D, MT>(a, r, b, h, mine);
}

/* A kernel a head size, dtype and way through keys. */
#define ATTEND(name, half, depth, tiles, warps, listed)                                            \
    TSI_KERNEL_BOUNDED(attend_mma_##name, tsi_cuda_attend_args, warps * 32)                        \
    {                                                                                              \
        attend<half, depth, tiles, warps, listed>(a);                                              \
    }
ATTEND(64_bf16, of_bf16, 64, 2, 4, false)
ATTEND(64_f16, of_f16, 64, 2, 4, false)
ATTEND(128_bf16, of_bf16, 128, 1, 8, false)
ATTEND(128_f16, of_f16, 128, 1, 8, false)
ATTEND(64_bf16_listed, of_bf16, 64, 2, 4, true)
ATTEND(64_f16_listed, of_f16, 64, 2, 4, true)
ATTEND(128_bf16_listed, of_bf16, 128, 1, 8, true)
ATTEND(128_f16_listed, of_f16, 128, 1, 8, true)
