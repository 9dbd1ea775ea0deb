/* SPDX-License-Identifier: Apache-2.0 */
/* attend_forward.cuh - what attention forward is on the tensor cores, by plain instructions
 * (attend_mma.cu) and by those of four warps (attend_wide.cu): steps over keys, and the running
 * softmax of the rows that a thread has.
 *
 * Steps are all keys up to the last that is seen, or the tiles of a mask's list (LISTED): those
 * that nobody sees are passed over, and bits hide pairs of partial ones alone. Which of both is a
 * matter of the kernel, not of a branch in it. With `adds` a softmax goes on from the result of
 * other keys.
 *
 * INV: of a query that sees no key the sum is 0, the result 0, and lse -inf. */
#ifndef TSI_BACKEND_CUDA_KERNELS_ATTEND_FORWARD_CUH
#define TSI_BACKEND_CUDA_KERNELS_ATTEND_FORWARD_CUH

#include "backend/cuda/kernels/attend_mma.cuh"

/* ---- steps over keys, and what is seen of one ------------------------------------------------ */

struct all_steps { /* keys [at, end) */
    int32_t at, end;
    __device__ bool is_over() const
    {
        return at >= end;
    }
    __device__ int32_t key() const
    {
        return at;
    }
    __device__ void go_on()
    {
        at += KEYS;
    }
};

/* Before which key a query sees; at least 0. */
__device__ inline int32_t reach_of(const tsi_cuda_attend_args &a, int64_t query)
{
    int64_t reach = a.causal ? query + a.reach + 1 : a.keys;
    return (int32_t)(reach < 0 ? 0 : reach < a.keys ? reach : a.keys);
}

/* Of each of a thread's rows, how many keys of a step are seen. */
template <int MT> struct seen_first {
    int32_t reach[MT][2], all; /* all: before which every row of the block sees */
    int32_t count[MT][2];
    bool masked;
    __device__ seen_first(const tsi_cuda_attend_args &a, int64_t first, int64_t mine)
    {
#pragma unroll
        for (int m = 0; m < MT; m++) {
            reach[m][0] = reach_of(a, mine + m * 16);
            reach[m][1] = reach_of(a, mine + m * 16 + 8);
        }
        all = reach_of(a, first);
    }
    __device__ void look(const tsi_cuda_attend_args &, const all_steps &steps)
    {
        masked = steps.at + KEYS > all;
#pragma unroll
        for (int m = 0; m < MT; m++)
            count[m][0] = reach[m][0] - steps.at, count[m][1] = reach[m][1] - steps.at;
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
        return { 0, reach_of(a, (first + rows < a.queries ? first + rows : a.queries) - 1) };
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

template <int E, int MT> struct rows_state { /* E: columns of values, or more */
    float out[MT][E / 8][4];
    float top[MT][2], sum[MT][2]; /* of rows lane / 4 and that + 8 */
};

/* Scores of 64 keys to weights, in place; what a query does not see is 0. Results so far are still
 * to be multiplied by `keep`. */
template <int E, int MT, typename S>
__device__ inline void weigh(float (&s)[MT][KEYS / 8][4], rows_state<E, MT> &r, float scale,
                             const S &seen, float (&keep)[MT][2])
{
    hide<MT>(s, seen);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = r.top[m][half];
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    most = fmaxf(most, s[m][n][half * 2 + e]);
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            float base = most == -INFINITY ? 0.0f : most * scale;
            float total = 0;
            keep[m][half] = power_of_two(r.top[m][half] * scale - base);
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &x = s[m][n][half * 2 + e];
                    x = power_of_two(x * scale - base);
                    total += x;
                }
            r.sum[m][half] = r.sum[m][half] * keep[m][half] + total;
            r.top[m][half] = most;
        }
}

/* Where no row of a warp has a new top nothing changes. */
template <int E, int MT>
__device__ inline void keep_results(rows_state<E, MT> &r, const float (&keep)[MT][2])
{
    bool same = true;
#pragma unroll
    for (int m = 0; m < MT; m++)
        same = same && keep[m][0] == 1.0f && keep[m][1] == 1.0f;
    if (__all_sync(0xffffffffu, same)) return;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < E / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                r.out[m][n][e] *= keep[m][e / 2];
}

/* Nothing yet; or what other keys gave, in f32: a sum of 1, in the first of a row's four threads,
 * at the top lse. */
template <int E, int MT>
__device__ inline void begin_rows(const tsi_cuda_attend_args &a, rows_state<E, MT> &r, int64_t b,
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
            for (int n = 0; n < E / 8; n++)
                if (n * 8 < a.width)
                    r.out[m][n][half * 2] = out[n * 8], r.out[m][n][half * 2 + 1] = out[n * 8 + 1];
        }
}

template <typename H, int E, int MT>
__device__ inline void store_rows(const tsi_cuda_attend_args &a, rows_state<E, MT> &r, int64_t b,
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
            for (int n = 0; n < E / 8; n++)
                if (n * 8 < a.width)
                    store_two<H>(a.out, to + n * 8, r.out[m][n][half * 2] * by,
                                 r.out[m][n][half * 2 + 1] * by);
            if (column == 0)
                ((float *)a.lse.data)[at(a.lse, b, h, i)] =
                    sum == 0 ? -INFINITY : r.top[m][half] * (float)a.scale + logf(sum);
        }
}

#endif
