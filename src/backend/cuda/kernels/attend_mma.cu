/* SPDX-License-Identifier: Apache-2.0 */
/* attend_mma.cu - attention forward of bf16 and f16 by the tensor cores' plain instructions, for
 * GPUs from sm_80 on: causal or whole without cuDNN, and with every mask.
 *
 *   a block    M queries of one head in registers, rows dealt to warps by 16
 *   a step     64 keys: S = Q K' in registers, the running softmax, O += P V; the next keys are on
 *              their way to shared memory meanwhile
 *
 * Steps are all keys up to the last that is seen, or the tiles of a mask's list (LISTED): those
 * that nobody sees are passed over, and bits hide pairs of partial ones alone. Which of both is a
 * matter of the kernel, not of a branch in it. With `adds` a softmax goes on from the result of
 * other keys. */
#include "backend/cuda/kernels/attend_mma.cuh"
#include "backend/cuda/kernels/kernel.cuh"

/* ---- steps over keys, and what is seen of one ------------------------------------------------ */

struct all_steps { /* keys [at, end) */
    int64_t at, end;
    __device__ bool is_over() const
    {
        return at >= end;
    }
    __device__ int64_t key() const
    {
        return at;
    }
    __device__ void go_on()
    {
        at += KEYS;
    }
};

/* How many keys of those from `first` on a query sees. */
__device__ inline int seen_of(const tsi_cuda_attend_args &a, int64_t query, int64_t first)
{
    int64_t seen = a.keys - first;
    if (a.causal) {
        int64_t reach = query + a.reach + 1 - first;
        seen = reach < seen ? reach : seen;
    }
    return seen < 0 ? 0 : seen > KEYS ? KEYS : (int)seen;
}

/* Of each of a thread's rows, how many keys of a step are seen. */
template <int MT> struct seen_first {
    int count[MT][2];
    bool masked;
    __device__ seen_first(const tsi_cuda_attend_args &a, const all_steps &steps, int64_t first,
                          int64_t mine)
    {
#pragma unroll
        for (int m = 0; m < MT; m++) {
            count[m][0] = seen_of(a, mine + m * 16, steps.at);
            count[m][1] = seen_of(a, mine + m * 16 + 8, steps.at);
        }
        masked = steps.at + KEYS > a.keys || (a.causal && steps.at + KEYS > first + a.reach + 1);
    }
    __device__ bool hides(int m, int half, int column) const
    {
        return column >= count[m][half];
    }
};

template <bool LISTED, int MT> struct way { /* through keys */
    typedef all_steps steps;
    typedef seen_first<MT> seen;
    __device__ static steps begin(const tsi_cuda_attend_args &a, int64_t b, int64_t h,
                                  int64_t first, int64_t rows)
    {
        (void)b, (void)h;
        int64_t end = a.keys;
        if (a.causal) {
            int64_t last = (first + rows < a.queries ? first + rows : a.queries) + a.reach;
            end = last < 0 ? 0 : last < end ? last : end;
        }
        return { 0, end };
    }
};

template <int MT> struct way<true, MT> {
    typedef listed_steps steps;
    typedef seen_bits<MT> seen;
    __device__ static steps begin(const tsi_cuda_attend_args &a, int64_t b, int64_t h,
                                  int64_t first, int64_t rows)
    {
        (void)rows;
        return { runs_of(a.tiles, list_of(a.tiles, b, h), first / TSI_CUDA_TILE_QUERIES), 0 };
    }
};

/* ---- one block of queries -------------------------------------------------------------------- */

template <int D, int MT> struct rows_state {
    float out[MT][D / 8][4];
    float top[MT][2], sum[MT][2]; /* of rows lane / 4 and that + 8 */
};

/* Scores of 64 keys to weights, in place; what a query does not see is 0. */
template <int D, int MT, typename S>
__device__ inline void weigh(float (&s)[MT][KEYS / 8][4], rows_state<D, MT> &r, float scale,
                             const S &seen)
{
    int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = r.top[m][half];
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &x = s[m][n][half * 2 + e];
                    if (seen.masked && seen.hides(m, half, n * 8 + column + e)) x = -INFINITY;
                    most = fmaxf(most, x);
                }
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            float base = most == -INFINITY ? 0.0f : most * scale;
            float keep = power_of_two(r.top[m][half] * scale - base), total = 0;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &x = s[m][n][half * 2 + e];
                    x = power_of_two(x * scale - base);
                    total += x;
                }
            r.sum[m][half] = r.sum[m][half] * keep + total;
            r.top[m][half] = most;
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                r.out[m][n][half * 2] *= keep, r.out[m][n][half * 2 + 1] *= keep;
        }
}

/* Nothing yet; or what other keys gave, in f32: a sum of 1, in the first of a row's four threads,
 * at the top lse. */
template <int D, int MT>
__device__ inline void begin_rows(const tsi_cuda_attend_args &a, rows_state<D, MT> &r, int64_t b,
                                  int64_t h, int64_t query)
{
    int column = threadIdx.x % 4 * 2;
    clear(r.out);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            r.top[m][half] = -INFINITY;
            r.sum[m][half] = 0;
            int64_t i = query + m * 16 + half * 8;
            if (!a.adds || i >= a.queries) continue;
            float lse = ((const float *)a.lse.data)[at(a.lse, b, h, i)];
            if (lse == -INFINITY) continue;
            const float *out = (const float *)a.out.data + at(a.out, b, h, i) + column;
            r.top[m][half] = lse / (float)a.scale;
            r.sum[m][half] = column == 0 ? 1.0f : 0.0f;
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                r.out[m][n][half * 2] = out[n * 8], r.out[m][n][half * 2 + 1] = out[n * 8 + 1];
        }
}

template <typename H, int D, int MT>
__device__ inline void store_rows(const tsi_cuda_attend_args &a, rows_state<D, MT> &r, int64_t b,
                                  int64_t h, int64_t query)
{
    int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = r.sum[m][half];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            int64_t i = query + m * 16 + half * 8;
            if (i >= a.queries) continue;
            float by = sum == 0 ? 0.0f : 1.0f / sum; /* NaN stays so */
            int64_t to = at(a.out, b, h, i) + column;
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                store_two<H>(a.out, to + n * 8, r.out[m][n][half * 2] * by,
                             r.out[m][n][half * 2 + 1] * by);
            if (column == 0)
                ((float *)a.lse.data)[at(a.lse, b, h, i)] =
                    sum == 0 ? -INFINITY : r.top[m][half] * (float)a.scale + logf(sum);
        }
}

template <typename H, int D, int MT, int WARPS, bool LISTED>
__device__ void attend(const tsi_cuda_attend_args &a)
{
    constexpr int M = WARPS * MT * 16, THREADS = WARPS * 32;
    static_assert(M == TSI_CUDA_TILE_QUERIES, "a block is a row of tiles");
    TSI_BLOCK_MEMORY(uint4, memory);
    uint32_t queries = shared_at(memory);
    uint32_t keys = queries + M * D * 2, values = keys + 2 * KEYS * D * 2;
    int64_t pairs = a.batch * a.heads, tiles = (a.queries + M - 1) / M;
    int64_t bh = blockIdx.x % pairs, first = (tiles - 1 - blockIdx.x / pairs) * M;
    int64_t b = bh / a.heads, h = bh % a.heads, g = a.group_of[h];
    const uint16_t *q = (const uint16_t *)a.q.data + b * a.q.stride[0] + h * a.q.stride[1];
    const uint16_t *k = (const uint16_t *)a.k.data + b * a.k.stride[0] + g * a.k.stride[1];
    const uint16_t *v = (const uint16_t *)a.v.data + b * a.v.stride[0] + g * a.v.stride[1];
    typename way<LISTED, MT>::steps steps = way<LISTED, MT>::begin(a, b, h, first, M);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t mine = first + warp * MT * 16 + lane / 4; /* this thread's first row */

    fetch_rows<D, M, THREADS>(queries, q, a.q.stride[2], first, a.queries);
    if (!steps.is_over()) {
        fetch_rows<D, KEYS, THREADS>(keys, k, a.k.stride[2], steps.key(), a.keys);
        fetch_rows<D, KEYS, THREADS>(values, v, a.v.stride[2], steps.key(), a.keys);
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
    float scale = (float)(a.scale * LOG2_E);
    for (int turn = 0; !steps.is_over(); turn ^= 1) {
        uint32_t now = (uint32_t)turn * KEYS * D * 2, next = (uint32_t)(turn ^ 1) * KEYS * D * 2;
        typename way<LISTED, MT>::steps after = steps;
        after.go_on();
        if (!after.is_over()) {
            fetch_rows<D, KEYS, THREADS>(keys + next, k, a.k.stride[2], after.key(), a.keys);
            fetch_rows<D, KEYS, THREADS>(values + next, v, a.v.stride[2], after.key(), a.keys);
        }
        fetch_end();
        float s[MT][KEYS / 8][4];
        products<H, D, MT>(s, fragment, keys + now);
        typename way<LISTED, MT>::seen seen(a, steps, first, mine);
        weigh<D, MT>(s, r, scale, seen);
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
