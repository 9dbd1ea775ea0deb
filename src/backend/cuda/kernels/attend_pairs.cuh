/* SPDX-License-Identifier: Apache-2.0 */
/* attend_pairs.cuh - a query and a key: the score of their product, the weight that is dropped, and
 * the gradients of both, for kernels that compute in f32 and f64.
 *
 *   score = cap(scale q k') + alibi     weights that are dropped count in the sum, not in the
 *                                       result */
#ifndef TSI_BACKEND_CUDA_KERNELS_ATTEND_PAIRS_CUH
#define TSI_BACKEND_CUDA_KERNELS_ATTEND_PAIRS_CUH

#include "backend/cuda/kernels/attend.cuh"
#include "backend/cuda/kernels/real.cuh"
#include "base/philox.h"

/* What pairs of one query have in common. */
template <typename R> struct query_of {
    int64_t position; /* as keys count */
    uint64_t line;    /* of draws */
    R lean;           /* alibi: what a score gains a position */
};

/* As tsi_mask_slope. */
__device__ inline double slope_of_head(int64_t head, int64_t heads)
{
    int64_t n = 1;
    while (n * 2 <= heads)
        n *= 2;
    return exp2(head < n ? -8.0 * (double)(head + 1) / (double)n
                         : -4.0 * (double)(2 * (head - n) + 1) / (double)n);
}

template <typename R>
__device__ inline query_of<R> query_at(const tsi_cuda_attend_args &a, int64_t b, int64_t h,
                                       int64_t i)
{
    int64_t row = tsi_cuda_index_at(&a.row_at, b), head = tsi_cuda_index_at(&a.head_at, h);
    int64_t position = a.tiles.query_at[i], query = position - a.offset;
    return { position, (uint64_t)((row * a.heads_all + head) * a.queries_all + query),
             a.alibi ? (R)slope_of_head(head, a.heads_all) : R(0) };
}

/* A product of q and k as a score; `slope` becomes the derivative of one by the other. */
template <typename R>
__device__ inline R score_of(const tsi_cuda_attend_args &a, const query_of<R> &q, int64_t key,
                             R product, R &slope)
{
    R score = product * (R)a.scale;
    slope = (R)a.scale;
    if (a.cap > 0) {
        R part = tanh(score / (R)a.cap);
        slope *= R(1) - part * part;
        score = (R)a.cap * part;
    }
    return a.alibi ? score + q.lean * (R)(a.tiles.key_at[key] - q.position) : score;
}

/* What the weight of a pair is multiplied by. */
template <typename R>
__device__ inline R kept(const tsi_cuda_attend_args &a, const query_of<R> &q, int64_t key)
{
    if (a.drop.below == 0) return R(1);
    uint64_t position = (uint64_t)a.tiles.key_at[key];
    tsi_philox_block draw = tsi_philox(a.drop.seed, position >> 2, q.line);
    return draw.word[position & 3] >= a.drop.below ? (R)a.drop.factor : R(0);
}

/* The keys of a run: those of its tiles that exist. */
__device__ inline int64_t run_begin(const tsi_cuda_run *run)
{
    return (int64_t)run->first * TSI_CUDA_TILE_KEYS;
}

__device__ inline int64_t run_end(const tsi_cuda_attend_args &a, const tsi_cuda_run *run)
{
    int64_t end = run_begin(run) + (int64_t)run->count * TSI_CUDA_TILE_KEYS;
    return end < a.keys ? end : a.keys;
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* A row's log-sum-exp and delta. */
template <typename R> struct known_of {
    R base, delta;
};

template <typename R>
__device__ inline known_of<R> known_at(const tsi_cuda_attend_args &a, int64_t b, int64_t h,
                                       int64_t i)
{
    return { load_real<R>(a.lse.dtype, a.lse.data, at(a.lse, b, h, i)),
             ((const R *)a.delta)[(b * a.heads + h) * a.queries + i] };
}

/* The weight of a pair as values see it, and the gradient of its product of q and k. */
template <typename R> struct pair_of {
    R weight, slope;
};

template <typename R>
__device__ inline pair_of<R> pair_back(const tsi_cuda_attend_args &a, const query_of<R> &q,
                                       const known_of<R> &known, int64_t key, R product, R d_weight)
{
    R slope, keep = kept(a, q, key);
    R p = exp(score_of(a, q, key, product, slope) - known.base);
    return { p * keep, p * (d_weight * keep - known.delta) * slope };
}

#endif
