/* SPDX-License-Identifier: Apache-2.0 */
/* attend.cu - attention of any strides, regions and real dtypes: what cuDNN does not take.
 *
 *   forward    a block a query: keys in chunks of a block's threads, the largest score so far and
 *              the sum follow
 *   backward   delta = sum(d_out out) a row; then a block a query for dq, and a block a key for dk
 *              and dv, which walks the queries of all heads of the group
 *
 * INV: every sum is one block's, in the order of chunks: the same bits on every GPU. */
#include "backend/cuda/kernels/real.cuh"

enum { THREADS = 128, COLUMNS = 4 }; /* columns a thread sums: rows of up to 512 */

struct row_of {
    int64_t b, h, i;
};

__device__ inline int64_t at(const tsi_cuda_heads &x, int64_t b, int64_t h, int64_t i, int64_t c)
{
    return b * x.stride[0] + h * x.stride[1] + i * x.stride[2] + c * x.stride[3];
}

template <typename R>
__device__ inline R element(const tsi_cuda_attend_args &a, const tsi_cuda_heads &x, int64_t offset)
{
    return load_real<R>(a.dtype, x.data, offset);
}

/* How many keys a query of this block sees. */
__device__ inline int64_t keys_seen(const tsi_cuda_attend_args &a, int64_t query)
{
    if (!a.causal) return a.keys;
    int64_t seen = tsi_cuda_index_at(&a.place, query) + a.reach + 1;
    return seen < 0 ? 0 : seen < a.keys ? seen : a.keys;
}

/* sum of row[c] * x[.., c], with x read where it lies. */
template <typename R>
__device__ inline R dot(const tsi_cuda_attend_args &a, const R *row, const tsi_cuda_heads &x,
                        int64_t offset, int64_t length)
{
    R sum = 0;
    for (int64_t c = 0; c < length; c++)
        sum += row[c] * element<R>(a, x, offset + c * x.stride[3]);
    return sum;
}

template <typename R>
__device__ inline void load_row(const tsi_cuda_attend_args &a, R *to, const tsi_cuda_heads &x,
                                int64_t offset, int64_t length)
{
    for (int64_t c = threadIdx.x; c < length; c += THREADS)
        to[c] = element<R>(a, x, offset + c * x.stride[3]);
}

/* The thread's columns of sum over j of weight[j] x[first + j, ..], times `keep` of what was. */
template <typename R>
__device__ inline void add_rows(const tsi_cuda_attend_args &a, R (&sum)[COLUMNS], R keep,
                                const R *weight, int64_t rows, const tsi_cuda_heads &x,
                                int64_t offset, int64_t length)
{
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) {
        int64_t c = threadIdx.x + n * THREADS;
        if (c >= length) break;
        R total = sum[n] * keep;
        for (int64_t j = 0; j < rows; j++)
            total += weight[j] * element<R>(a, x, offset + j * x.stride[2] + c * x.stride[3]);
        sum[n] = total;
    }
}

template <typename R>
__device__ inline void store_row(const tsi_cuda_attend_args &a, const R (&sum)[COLUMNS], R factor,
                                 const tsi_cuda_heads &x, int64_t offset, int64_t length)
{
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) {
        int64_t c = threadIdx.x + n * THREADS;
        if (c < length) store_real<R>(a.dtype, x.data, offset + c * x.stride[3], sum[n] * factor);
    }
}

__device__ inline row_of this_row(int64_t heads, int64_t rows)
{
    int64_t at = blockIdx.x;
    return { at / rows / heads, at / rows % heads, at % rows };
}

__device__ inline int64_t lse_at(const tsi_cuda_attend_args &a, const row_of &r)
{
    return r.b * a.lse.stride[0] + r.h * a.lse.stride[1] + r.i * a.lse.stride[2];
}

/* ---- forward --------------------------------------------------------------------------------- */

template <typename R> __device__ void forward(const tsi_cuda_attend_args &a)
{
    extern __shared__ double memory[];
    __shared__ R shared[32], weight[THREADS];
    R *query = (R *)memory;
    row_of r = this_row(a.heads, a.queries);
    int64_t g = a.group_of[r.h], seen = keys_seen(a, r.i);
    load_row(a, query, a.q, at(a.q, r.b, r.h, r.i, 0), a.depth);
    __syncthreads();
    R top = -INFINITY, total = 0, sum[COLUMNS] = { 0 };
    for (int64_t first = 0; first < seen; first += THREADS) {
        int64_t j = first + threadIdx.x, rows = seen - first < THREADS ? seen - first : THREADS;
        R score = -INFINITY;
        if (j < seen) score = dot(a, query, a.k, at(a.k, r.b, g, j, 0), a.depth) * (R)a.scale;
        R most = block_max(score, shared);
        most = top != top || top > most ? top : most;
        R keep = top == -INFINITY ? R(0) : exp(top - most);
        R mine = j < seen ? exp(score - most) : R(0);
        if (most == -INFINITY) mine = 0; /* nothing but minus infinities so far */
        __syncthreads();
        weight[threadIdx.x] = mine;
        total = total * keep + block_sum(mine, shared);
        add_rows(a, sum, keep, weight, rows, a.v, at(a.v, r.b, g, first, 0), a.width);
        top = most;
    }
    store_row(a, sum, seen > 0 ? R(1) / total : R(0), a.out, at(a.out, r.b, r.h, r.i, 0), a.width);
    if (threadIdx.x == 0)
        store_real<R>(a.lse_dtype, a.lse.data, lse_at(a, r),
                      seen > 0 ? top + log(total) : -(R)INFINITY);
}

/* ---- backward -------------------------------------------------------------------------------- */

template <typename R> __device__ void delta(const tsi_cuda_attend_args &a)
{
    int64_t rows = a.batch * a.heads * a.queries, warps = (int64_t)gridDim.x * (blockDim.x / 32);
    int lane = threadIdx.x % 32;
    for (int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; row < rows;
         row += warps) {
        int64_t b = row / a.queries / a.heads, h = row / a.queries % a.heads, i = row % a.queries;
        R sum = 0;
        for (int64_t c = lane; c < a.width; c += 32)
            sum += element<R>(a, a.out, at(a.out, b, h, i, c)) *
                   element<R>(a, a.d_out, at(a.d_out, b, h, i, c));
        for (int step = 16; step > 0; step /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (lane == 0) ((R *)a.delta)[row] = sum;
    }
}

/* dq of a query: sum over keys of p (dp - delta) scale k. */
template <typename R> __device__ void queries(const tsi_cuda_attend_args &a)
{
    extern __shared__ double memory[];
    __shared__ R weight[THREADS];
    R *query = (R *)memory, *grad = query + a.depth;
    row_of r = this_row(a.heads, a.queries);
    int64_t g = a.group_of[r.h], seen = keys_seen(a, r.i);
    load_row(a, query, a.q, at(a.q, r.b, r.h, r.i, 0), a.depth);
    load_row(a, grad, a.d_out, at(a.d_out, r.b, r.h, r.i, 0), a.width);
    R base = load_real<R>(a.lse_dtype, a.lse.data, lse_at(a, r));
    R delta = ((const R *)a.delta)[blockIdx.x], sum[COLUMNS] = { 0 };
    for (int64_t first = 0; first < seen; first += THREADS) {
        int64_t j = first + threadIdx.x, rows = seen - first < THREADS ? seen - first : THREADS;
        __syncthreads();
        if (j < seen) {
            R p = exp(dot(a, query, a.k, at(a.k, r.b, g, j, 0), a.depth) * (R)a.scale - base);
            R dp = dot(a, grad, a.v, at(a.v, r.b, g, j, 0), a.width);
            weight[threadIdx.x] = p * (dp - delta) * (R)a.scale;
        }
        __syncthreads();
        add_rows(a, sum, R(1), weight, rows, a.k, at(a.k, r.b, g, first, 0), a.depth);
    }
    store_row(a, sum, R(1), a.dq, at(a.dq, r.b, r.h, r.i, 0), a.depth);
}

/* dk and dv of a key. A query that does not see it has weight 0. */
template <typename R> __device__ void keys(const tsi_cuda_attend_args &a)
{
    extern __shared__ double memory[];
    __shared__ R weight[THREADS], slope[THREADS];
    R *key = (R *)memory, *value = key + a.depth;
    row_of r = this_row(a.groups, a.keys); /* h is the group, i the key */
    load_row(a, key, a.k, at(a.k, r.b, r.h, r.i, 0), a.depth);
    load_row(a, value, a.v, at(a.v, r.b, r.h, r.i, 0), a.width);
    R by_key[COLUMNS] = { 0 }, by_value[COLUMNS] = { 0 };
    for (int64_t h = 0; h < a.heads; h++) {
        if (a.group_of[h] != r.h) continue;
        for (int64_t first = 0; first < a.queries; first += THREADS) {
            int64_t i = first + threadIdx.x;
            int64_t rows = a.queries - first < THREADS ? a.queries - first : THREADS;
            R p = 0, ds = 0;
            __syncthreads();
            if (i < a.queries && r.i < keys_seen(a, i)) {
                row_of query = { r.b, h, i };
                R base = load_real<R>(a.lse_dtype, a.lse.data, lse_at(a, query));
                R delta = ((const R *)a.delta)[(r.b * a.heads + h) * a.queries + i];
                p = exp(dot(a, key, a.q, at(a.q, r.b, h, i, 0), a.depth) * (R)a.scale - base);
                ds = dot(a, value, a.d_out, at(a.d_out, r.b, h, i, 0), a.width);
                ds = p * (ds - delta) * (R)a.scale;
            }
            weight[threadIdx.x] = p;
            slope[threadIdx.x] = ds;
            __syncthreads();
            add_rows(a, by_value, R(1), weight, rows, a.d_out, at(a.d_out, r.b, h, first, 0),
                     a.width);
            add_rows(a, by_key, R(1), slope, rows, a.q, at(a.q, r.b, h, first, 0), a.depth);
        }
    }
    store_row(a, by_value, R(1), a.dv, at(a.dv, r.b, r.h, r.i, 0), a.width);
    store_row(a, by_key, R(1), a.dk, at(a.dk, r.b, r.h, r.i, 0), a.depth);
}

#define ATTEND(name, real)                                                                         \
    extern "C" __global__ void attend_##name(const __grid_constant__ tsi_cuda_attend_args a)       \
    {                                                                                              \
        forward<real>(a);                                                                          \
    }                                                                                              \
    extern "C" __global__ void attend_delta_##name(const __grid_constant__ tsi_cuda_attend_args a) \
    {                                                                                              \
        delta<real>(a);                                                                            \
    }                                                                                              \
    extern "C" __global__ void attend_queries_##name(                                              \
        const __grid_constant__ tsi_cuda_attend_args a)                                            \
    {                                                                                              \
        queries<real>(a);                                                                          \
    }                                                                                              \
    extern "C" __global__ void attend_keys_##name(const __grid_constant__ tsi_cuda_attend_args a)  \
    {                                                                                              \
        keys<real>(a);                                                                             \
    }
ATTEND(f32, float)
ATTEND(f64, double)
