/* SPDX-License-Identifier: Apache-2.0 */
/* entropy.cu - cross entropy of rows of logits, a block a row, read once: the sum of exponentials
 * follows the largest logit so far. Rows on 16 bytes are fetched ahead (entropy_ahead_*), and where
 * they are few, the last block of them adds the terms. The gradient reads and writes each once, and
 * may lie over the logits.
 *
 * INV: the loss adds rows in one tree. */
#include "backend/cuda/kernels/complain.cuh"
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/kept.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/number.cuh"
#include "backend/cuda/kernels/real.cuh"

enum { UNITS = 4, ROW_UNITS = 4 }; /* on their way at a time; ROW_UNITS: of a row of logits */

template <typename T> __device__ inline bool by_units(const tsi_cuda_entropy_args &a, bool out)
{
    constexpr int N = 16 / sizeof(typename T::E);
    int64_t steps = a.length | a.x_stride | (out ? a.out_stride : 0);
    return steps % N == 0 && ((uint64_t)a.x | (out ? (uint64_t)a.out : 0)) % 16 == 0;
}

/* Largest and sum of exponentials over it. */
template <typename T> struct running {
    typedef typename T::R R;
    R top, sum;
    __device__ inline void take(R most, R more)
    {
        if (most > top || most != most) {
            if (top != -INFINITY) sum *= power_of<T>(top - most); /* else nothing, or no number */
            top = most;
        }
        sum += more;
    }
};

template <typename T>
__device__ inline running<T> scan(const tsi_cuda_entropy_args &a, const typename T::E *x)
{
    constexpr int N = 16 / sizeof(typename T::E);
    typedef typename T::R R;
    running<T> r = { -(R)INFINITY, 0 };
    if (!by_units<T>(a, false)) {
        for (int64_t c = threadIdx.x; c < a.length; c += blockDim.x) {
            R v = T::load(x[c]);
            r.take(v, R(0));
            r.sum += v == -INFINITY && r.top == -INFINITY ? R(0) : power_of<T>(v - r.top);
        }
        return r;
    }
    for (int64_t u = threadIdx.x; u < a.length / N; u += ROW_UNITS * blockDim.x) {
        unit_of<typename T::E> in[ROW_UNITS];
        R most = r.top;
#pragma unroll
        for (int k = 0; k < ROW_UNITS; k++)
            if (u + k * blockDim.x < a.length / N)
                in[k].unit = ((const uint4 *)x)[u + k * blockDim.x];
#pragma unroll
        for (int k = 0; k < ROW_UNITS; k++)
#pragma unroll
            for (int e = 0; e < N; e++)
                if (u + k * blockDim.x < a.length / N)
                    most = fmax(most, T::load(in[k].element[e])); /* sums find what is no number */
        r.take(most, R(0));
        R from = r.top == -INFINITY ? R(0) : r.top;
#pragma unroll
        for (int k = 0; k < ROW_UNITS; k++)
#pragma unroll
            for (int e = 0; e < N; e++)
                if (u + k * blockDim.x < a.length / N)
                    r.sum += power_of<T>(T::load(in[k].element[e]) - from);
    }
    return r;
}

/* Does a label count? One that is out of range is told. */
__device__ inline bool judge(const tsi_cuda_entropy_args &a, int64_t row, int64_t label)
{
    bool wrong = label != a.ignore && (label < 0 || label >= a.classes);
    if (wrong) complain(a.asker, row, label);
    return label != a.ignore && !wrong;
}

__device__ inline int64_t label_of(const tsi_cuda_entropy_args &a, int64_t row)
{
    return load_wide(a.label_dtype, a.labels, row * a.label_stride).whole;
}

template <typename R>
__device__ inline void store_term(const tsi_cuda_entropy_args &a, int64_t row, R lse, R chosen,
                                  bool counts)
{
    ((R *)a.lse_out)[row] = lse;
    ((R *)a.out)[row] = counts ? lse - chosen : R(0);
}

template <typename T> __device__ void forward(const tsi_cuda_entropy_args &a)
{
    typedef typename T::R R;
    __shared__ R shared[32];
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const typename T::E *x = (const typename T::E *)a.x + row * a.x_stride;
        R chosen = 0; /* the label's logit, on its way while the row is read */
        bool counts = false;
        if (threadIdx.x == 0) {
            int64_t label = label_of(a, row);
            counts = judge(a, row, label);
            if (counts) chosen = T::load(x[label]);
        }
        running<T> r = scan<T>(a, x);
        R top = block_max(r.top, shared);
        R sum = block_sum(r.top == -INFINITY ? r.sum : r.sum * power_of<T>(r.top - top), shared);
        if (threadIdx.x == 0) store_term<R>(a, row, top + log(sum), chosen, counts);
    }
}

/* The loss of all rows, by one block. */
template <typename R> __device__ void total(const tsi_cuda_entropy_args &a)
{
    __shared__ double shared[32];
    double sum = 0, counted = 0;
    for (int64_t row = threadIdx.x; row < a.rows; row += UNITS * blockDim.x) {
        R term[UNITS];
        int64_t label[UNITS];
#pragma unroll
        for (int k = 0; k < UNITS; k++) {
            int64_t at = row + k * blockDim.x;
            term[k] = at < a.rows ? ((const R *)a.out)[at] : R(0);
            label[k] = at < a.rows ? label_of(a, at) : a.ignore;
        }
#pragma unroll
        for (int k = 0; k < UNITS; k++) {
            sum += (double)term[k];
            counted += label[k] != a.ignore;
        }
    }
    sum = block_sum(sum, shared);
    counted = block_sum(counted, shared);
    if (threadIdx.x == 0) ((R *)a.loss)[0] = (R)(a.mean ? sum / counted : sum);
}

/* A block walks its rows; while a thread computes with some units, the next ones are on their way,
 * of this row or of the one after it. */
template <typename T> __device__ void forward_ahead(const tsi_cuda_entropy_args &a)
{
    constexpr int N = 16 / sizeof(typename T::E);
    typedef typename T::E E;
    __shared__ float shared[32];
    int64_t units = a.length / N, step = ROW_UNITS * blockDim.x;
    int64_t label = threadIdx.x == 0 ? label_of(a, blockIdx.x) : 0;
    int64_t next_row = blockIdx.x, next_at = 0; /* what is fetched next */
    uint4 next[ROW_UNITS];
    auto fetch = [&] {
        const uint4 *x = (const uint4 *)((const E *)a.x + next_row * a.x_stride);
        int64_t end = next_row < a.rows ? units : 0;
#pragma unroll
        for (int k = 0; k < ROW_UNITS; k++) {
            int64_t u = next_at + threadIdx.x + k * blockDim.x;
            next[k] = u < end ? x[u] : least_unit<T>();
        }
        next_at += step;
        if (next_at < units) return;
        next_at = 0;
        next_row += gridDim.x;
    };
    fetch();
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        running<T> r = { -INFINITY, 0 };
        float chosen = 0;
        bool counts = false;
        if (threadIdx.x == 0) {
            counts = judge(a, row, label);
            if (counts) chosen = T::load(((const E *)a.x + row * a.x_stride)[label]);
            if (row + gridDim.x < a.rows) label = label_of(a, row + gridDim.x);
        }
        for (int64_t at = 0; at < units; at += step) {
            float v[ROW_UNITS][N], most = largest_of_units<T, ROW_UNITS>(next);
            values_of<T, ROW_UNITS>(next, v);
            fetch();
            r.take(most, 0.0f);
            float from = r.top == -INFINITY ? 0.0f : r.top;
#pragma unroll
            for (int k = 0; k < ROW_UNITS; k++)
#pragma unroll
                for (int e = 0; e < N; e++)
                    r.sum += power_of<T>(v[k][e] - from);
        }
        float top = block_max(r.top, shared);
        float sum =
            block_sum(r.top == -INFINITY ? r.sum : r.sum * power_of<T>(r.top - top), shared);
        if (threadIdx.x == 0) store_term<float>(a, row, top + logf(sum), chosen, counts);
    }
    __shared__ bool last; /* thread 0 left all terms of the block */
    if (threadIdx.x == 0) last = a.ticket && is_last(a.ticket, gridDim.x);
    __syncthreads();
    if (last) total<float>(a);
}

/* dx = (softmax(x) - onehot(label)) g. */
template <typename T> __device__ void backward(const tsi_cuda_entropy_args &a)
{
    constexpr int N = 16 / sizeof(typename T::E);
    typedef typename T::R R;
    typedef typename T::E E;
    bool units = by_units<T>(a, true);
    int64_t count = units ? a.length / N : a.length;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const E *x = (const E *)a.x + row * a.x_stride;
        E *dx = (E *)a.out + row * a.out_stride;
        int64_t label = label_of(a, row);
        if (label >= 0) label = tsi_cuda_place_of(&a.place, label);
        R lse = load_real<R>(a.lse_dtype, a.lse, row * a.lse_stride);
        R g = load_real<R>(a.g_dtype, a.g, row * a.g_stride);
        for (int64_t u = threadIdx.x; u < count; u += UNITS * blockDim.x) {
            unit_of<E> in[UNITS];
#pragma unroll
            for (int k = 0; k < UNITS; k++) {
                int64_t at = u + k * blockDim.x;
                if (at >= count) break;
                if (units)
                    in[k].unit = ((const uint4 *)x)[at];
                else
                    in[k].element[0] = x[at];
            }
#pragma unroll
            for (int k = 0; k < UNITS; k++) {
                int64_t at = u + k * blockDim.x;
                if (at >= count) break;
#pragma unroll
                for (int e = 0; e < N; e++) {
                    if (!units && e > 0) break;
                    R hit = (units ? at * N + e : at) == label ? R(1) : R(0);
                    R p = power_of<T>(T::load(in[k].element[e]) - lse);
                    in[k].element[e] = T::store(g == R(0) ? R(0) : (p - hit) * g);
                }
                if (units)
                    ((uint4 *)dx)[at] = in[k].unit;
                else
                    dx[at] = in[k].element[0];
            }
        }
    }
}

#define ENTROPY(name, type)                                                                        \
    TSI_KERNEL_BOUNDED(entropy_##name, tsi_cuda_entropy_args, 256, 6)                              \
    {                                                                                              \
        forward<type>(a);                                                                          \
    }                                                                                              \
    TSI_KERNEL(entropy_backward_##name, tsi_cuda_entropy_args)                                     \
    {                                                                                              \
        backward<type>(a);                                                                         \
    }
ENTROPY(f32, as_f32)
ENTROPY(f64, as_f64)
ENTROPY(bf16, as_bf16)
ENTROPY(f16, as_f16)

#define AHEAD(name, type)                                                                          \
    TSI_KERNEL_BOUNDED(entropy_ahead_##name, tsi_cuda_entropy_args, 256, 4)                        \
    {                                                                                              \
        forward_ahead<type>(a);                                                                    \
    }
AHEAD(f32, as_f32)
AHEAD(bf16, as_bf16)

TSI_KERNEL_BOUNDED(entropy_total_f32, tsi_cuda_entropy_args, 1024)
{
    total<float>(a);
}

TSI_KERNEL_BOUNDED(entropy_total_f64, tsi_cuda_entropy_args, 1024)
{
    total<double>(a);
}
