/* SPDX-License-Identifier: Apache-2.0 */
/* attend.cu - attention of any strides, positions, masks and real dtypes: what neither cuDNN nor
 * the tensor cores take and what has too long rows for tiles (attend_tile.cu).
 *
 *   forward    a block a query: the keys of its runs in chunks of a block's threads, the largest
 *              score so far and the sum follow
 *   backward   delta = sum(d_out out) a row; then a block a query for dq, and a block a key for dk
 *              and dv, which walks the tiles of queries that see it, of all heads of the group
 *
 * With `adds` a softmax goes on from the result of other keys, which has a sum of 1 at the top lse.
 *
 * INV: every sum is one block's, in the order of chunks: the same bits on every GPU. A query that
 * sees nothing gives zeros and a log-sum-exp of -inf, and takes no part in any gradient. */
#include "backend/cuda/kernels/attend_pairs.cuh"
#include "backend/cuda/kernels/kernel.cuh"

enum { THREADS = TSI_CUDA_TILE_QUERIES, COLUMNS = 4 }; /* columns a thread sums: rows up to 512 */

struct row_of { /* local: batch, head, query; or batch, group, key */
    int64_t b, h, i;
};

__device__ inline row_of this_row(int64_t heads, int64_t rows)
{
    int64_t at = blockIdx.x;
    return { at / rows / heads, at / rows % heads, at % rows };
}

/* ---- elements -------------------------------------------------------------------------------- */

/* sum of row[c] * x[.., c], with x read where it lies. */
template <typename R>
__device__ inline R dot(const R *row, const tsi_cuda_heads &x, int64_t offset, int64_t length)
{
    R sum = 0;
    for (int64_t c = 0; c < length; c++)
        sum += row[c] * load_real<R>(x.dtype, x.data, offset + c * x.stride[3]);
    return sum;
}

template <typename R>
__device__ inline void load_row(R *to, const tsi_cuda_heads &x, int64_t offset, int64_t length)
{
    for (int64_t c = threadIdx.x; c < length; c += THREADS)
        to[c] = load_real<R>(x.dtype, x.data, offset + c * x.stride[3]);
}

/* The thread's columns of sum over j of weight[j] x[first + j, ..], times `keep` of what was. */
template <typename R>
__device__ inline void add_rows(R (&sum)[COLUMNS], R keep, const R *weight, int64_t rows,
                                const tsi_cuda_heads &x, int64_t offset, int64_t length)
{
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) {
        int64_t c = threadIdx.x + n * THREADS;
        if (c >= length) break;
        R total = sum[n] * keep;
        for (int64_t j = 0; j < rows; j++)
            total += weight[j] *
                     load_real<R>(x.dtype, x.data, offset + j * x.stride[2] + c * x.stride[3]);
        sum[n] = total;
    }
}

/* The thread's columns of a row as it is. */
template <typename R>
__device__ inline void begin_row(R (&sum)[COLUMNS], const tsi_cuda_heads &x, int64_t offset,
                                 int64_t length)
{
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) {
        int64_t c = threadIdx.x + n * THREADS;
        if (c < length) sum[n] = load_real<R>(x.dtype, x.data, offset + c * x.stride[3]);
    }
}

template <typename R>
__device__ inline void store_row(const R (&sum)[COLUMNS], R factor, const tsi_cuda_heads &x,
                                 int64_t offset, int64_t length)
{
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) {
        int64_t c = threadIdx.x + n * THREADS;
        if (c < length) store_real<R>(x.dtype, x.data, offset + c * x.stride[3], sum[n] * factor);
    }
}

/* ---- forward --------------------------------------------------------------------------------- */

/* The softmax of one query so far; every thread has the same but for its columns. */
template <typename R> struct softmax_of {
    R top, total, sum[COLUMNS];
    bool sees; /* anything */
};

/* Keys first .. first + rows - 1 of a run join; a thread has one of them. */
template <typename R>
__device__ inline void take_keys(const tsi_cuda_attend_args &a, softmax_of<R> &s, const R *query,
                                 const row_of &r, const query_of<R> &q, int64_t first, int64_t rows,
                                 bool seen)
{
    __shared__ R shared[32], weight[THREADS];
    int64_t j = first + threadIdx.x, g = a.group_of[r.h];
    R score = -INFINITY, slope;
    if (seen) score = score_of(a, q, j, dot(query, a.k, at(a.k, r.b, g, j), a.depth), slope);
    R most = block_max(score, shared);
    most = s.top != s.top || s.top > most ? s.top : most;
    R keep = s.top == -(R)INFINITY ? R(0) : exp(s.top - most);
    R mine = seen && most != -(R)INFINITY ? exp(score - most) : R(0);
    __syncthreads();
    weight[threadIdx.x] = seen ? mine * kept(a, q, j) : R(0);
    s.total = s.total * keep + block_sum(mine, shared);
    add_rows(s.sum, keep, weight, rows, a.v, at(a.v, r.b, g, first), a.width);
    s.top = most;
}

/* What other keys gave a query, unless it saw none of them. */
template <typename R>
__device__ inline softmax_of<R> softmax_before(const tsi_cuda_attend_args &a, const row_of &r)
{
    softmax_of<R> s = { -(R)INFINITY, 0, { 0 }, false };
    if (!a.adds) return s;
    R before = load_real<R>(a.lse.dtype, a.lse.data, at(a.lse, r.b, r.h, r.i));
    if (before == -(R)INFINITY) return s;
    s.top = before;
    s.total = 1;
    s.sees = true;
    begin_row(s.sum, a.out, at(a.out, r.b, r.h, r.i), a.width);
    return s;
}

template <typename R> __device__ void forward(const tsi_cuda_attend_args &a)
{
    TSI_BLOCK_MEMORY(double, memory);
    R *query = (R *)memory;
    row_of r = this_row(a.heads, a.queries);
    query_of<R> q = query_at<R>(a, r.b, r.h, r.i);
    load_row(query, a.q, at(a.q, r.b, r.h, r.i), a.depth);
    softmax_of<R> s = softmax_before<R>(a, r);
    __syncthreads();
    run_list runs = runs_of(a.tiles, list_of(a.tiles, r.b, r.h), r.i / TSI_CUDA_TILE_QUERIES);
    for (const tsi_cuda_run *run = runs.run; run < runs.end; run++) {
        uint64_t word = word_of(a.tiles, run, r.i);
        int64_t begin = run_begin(run), end = run_end(a, run);
        if (word == 0) continue;
        s.sees = true;
        for (int64_t first = begin; first < end; first += THREADS) {
            int64_t rows = end - first < THREADS ? end - first : THREADS;
            bool seen = threadIdx.x < rows && word >> (threadIdx.x % 64) & 1;
            take_keys(a, s, query, r, q, first, rows, seen);
        }
    }
    R factor = s.sees ? R(1) / s.total : R(0);
    store_row(s.sum, factor, a.out, at(a.out, r.b, r.h, r.i), a.width);
    if (threadIdx.x == 0)
        store_real<R>(a.lse.dtype, a.lse.data, at(a.lse, r.b, r.h, r.i),
                      s.sees ? s.top + log(s.total) : -(R)INFINITY);
}

/* ---- backward -------------------------------------------------------------------------------- */

template <typename R> __device__ void delta(const tsi_cuda_attend_args &a)
{
    int64_t rows = a.batch * a.heads * a.queries, warps = (int64_t)gridDim.x * (blockDim.x / 32);
    int lane = threadIdx.x % 32;
    for (int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; row < rows;
         row += warps) {
        int64_t b = row / a.queries / a.heads, h = row / a.queries % a.heads, i = row % a.queries;
        int64_t out = at(a.out, b, h, i), d_out = at(a.d_out, b, h, i);
        R sum = 0;
        for (int64_t c = lane; c < a.width; c += 32)
            sum += load_real<R>(a.out.dtype, a.out.data, out + c * a.out.stride[3]) *
                   load_real<R>(a.d_out.dtype, a.d_out.data, d_out + c * a.d_out.stride[3]);
        sum = warp_sum(sum);
        if (lane == 0) ((R *)a.delta)[row] = sum;
    }
}

/* dq of a query: sum over its keys of slope k. */
template <typename R> __device__ void queries(const tsi_cuda_attend_args &a)
{
    TSI_BLOCK_MEMORY(double, memory);
    __shared__ R slope[THREADS];
    R *query = (R *)memory, *grad = query + a.depth, sum[COLUMNS] = { 0 };
    row_of r = this_row(a.heads, a.queries);
    int64_t g = a.group_of[r.h];
    query_of<R> q = query_at<R>(a, r.b, r.h, r.i);
    known_of<R> known = known_at<R>(a, r.b, r.h, r.i);
    load_row(query, a.q, at(a.q, r.b, r.h, r.i), a.depth);
    load_row(grad, a.d_out, at(a.d_out, r.b, r.h, r.i), a.width);
    if (a.adds) begin_row(sum, a.dq, at(a.dq, r.b, r.h, r.i), a.depth);
    run_list runs = runs_of(a.tiles, list_of(a.tiles, r.b, r.h), r.i / TSI_CUDA_TILE_QUERIES);
    if (known.base == -(R)INFINITY) runs.end = runs.run; /* it sees nothing */
    for (const tsi_cuda_run *run = runs.run; run < runs.end; run++) {
        uint64_t word = word_of(a.tiles, run, r.i);
        int64_t begin = run_begin(run), end = run_end(a, run);
        if (word == 0) continue;
        for (int64_t first = begin; first < end; first += THREADS) {
            int64_t j = first + threadIdx.x, rows = end - first < THREADS ? end - first : THREADS;
            pair_of<R> pair = { 0, 0 };
            __syncthreads();
            if (threadIdx.x < rows && word >> (threadIdx.x % 64) & 1)
                pair = pair_back(a, q, known, j, dot(query, a.k, at(a.k, r.b, g, j), a.depth),
                                 dot(grad, a.v, at(a.v, r.b, g, j), a.width));
            slope[threadIdx.x] = pair.slope;
            __syncthreads();
            add_rows(sum, R(1), slope, rows, a.k, at(a.k, r.b, g, first), a.depth);
        }
    }
    store_row(sum, R(1), a.dq, at(a.dq, r.b, r.h, r.i), a.depth);
}

/* One key of a group, and its gradients so far. */
template <typename R> struct key_of {
    row_of r;
    const R *key, *value;
    R dk[COLUMNS], dv[COLUMNS];
};

/* The queries of one tile of a head join, a thread each. */
template <typename R>
__device__ inline void take_queries(const tsi_cuda_attend_args &a, key_of<R> &k, int64_t h,
                                    int64_t first, const tsi_cuda_run *run)
{
    __shared__ R weight[THREADS], slope[THREADS];
    int64_t b = k.r.b, i = first + threadIdx.x;
    int64_t rows = a.queries - first < THREADS ? a.queries - first : THREADS;
    pair_of<R> pair = { 0, 0 };
    __syncthreads();
    if (i < a.queries && word_of(a.tiles, run, i) >> (k.r.i % TSI_CUDA_TILE_KEYS) & 1) {
        known_of<R> known = known_at<R>(a, b, h, i);
        if (known.base != -(R)INFINITY)
            pair = pair_back(a, query_at<R>(a, b, h, i), known, k.r.i,
                             dot(k.key, a.q, at(a.q, b, h, i), a.depth),
                             dot(k.value, a.d_out, at(a.d_out, b, h, i), a.width));
    }
    weight[threadIdx.x] = pair.weight;
    slope[threadIdx.x] = pair.slope;
    __syncthreads();
    add_rows(k.dv, R(1), weight, rows, a.d_out, at(a.d_out, b, h, first), a.width);
    add_rows(k.dk, R(1), slope, rows, a.q, at(a.q, b, h, first), a.depth);
}

/* dk and dv of a key: sums over the queries of its group's heads that see it. */
template <typename R> __device__ void keys(const tsi_cuda_attend_args &a)
{
    TSI_BLOCK_MEMORY(double, memory);
    R *key = (R *)memory, *value = key + a.depth;
    key_of<R> k = { this_row(a.groups, a.keys), key, value, { 0 }, { 0 } };
    const row_of &r = k.r;
    int64_t column = r.i / TSI_CUDA_TILE_KEYS;
    load_row(key, a.k, at(a.k, r.b, r.h, r.i), a.depth);
    load_row(value, a.v, at(a.v, r.b, r.h, r.i), a.width);
    for (int64_t h = 0; h < a.heads; h++) {
        if (a.group_of[h] != r.h) continue;
        run_list runs = runs_of_column(a.tiles, list_of(a.tiles, r.b, h), column);
        for (const tsi_cuda_run *run = runs.run; run < runs.end; run++)
            for (int32_t n = 0; n < run->count; n++)
                take_queries(a, k, h, (int64_t)(run->first + n) * TSI_CUDA_TILE_QUERIES, run);
    }
    store_row(k.dv, R(1), a.dv, at(a.dv, r.b, r.h, r.i), a.width);
    store_row(k.dk, R(1), a.dk, at(a.dk, r.b, r.h, r.i), a.depth);
}

#define ATTEND(name, real)                                                                         \
    TSI_KERNEL(attend_##name, tsi_cuda_attend_args)                                                \
    {                                                                                              \
        forward<real>(a);                                                                          \
    }                                                                                              \
    TSI_KERNEL(attend_delta_##name, tsi_cuda_attend_args)                                          \
    {                                                                                              \
        delta<real>(a);                                                                            \
    }                                                                                              \
    TSI_KERNEL(attend_queries_##name, tsi_cuda_attend_args)                                        \
    {                                                                                              \
        queries<real>(a);                                                                          \
    }                                                                                              \
    TSI_KERNEL(attend_keys_##name, tsi_cuda_attend_args)                                           \
    {                                                                                              \
        keys<real>(a);                                                                             \
    }
ATTEND(f32, float)
ATTEND(f64, double)
