/* SPDX-License-Identifier: Apache-2.0 */
/* entropy.cu - cross entropy of rows of logits, a block a row, read once: the sum of exponentials
 * follows the largest logit so far. The gradient reads and writes each once, and may lie over the
 * logits.
 *
 * INV: the loss adds rows in one tree. */
#include "backend/cuda/kernels/complain.cuh"
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/number.cuh"
#include "backend/cuda/kernels/real.cuh"

enum { UNITS = 4, ROW_UNITS = 4 }; /* on their way at a time: of the gradient, of a row */

template <typename T> __device__ inline bool by_units(const tsi_cuda_entropy_args &a, bool out)
{
    constexpr int N = 16 / sizeof(typename T::E);
    int64_t steps = a.length | a.x_stride | (out ? a.out_stride : 0);
    return steps % N == 0 && ((uint64_t)a.x | (out ? (uint64_t)a.out : 0)) % 16 == 0;
}

/* Of narrow elements the short exponential is exact enough by far. */
template <typename T> __device__ inline typename T::R power_of(typename T::R x)
{
    return exp(x);
}
template <> __device__ inline float power_of<as_bf16>(float x)
{
    return __expf(x);
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

template <typename T> __device__ void forward(const tsi_cuda_entropy_args &a)
{
    typedef typename T::R R;
    __shared__ R shared[32];
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const typename T::E *x = (const typename T::E *)a.x + row * a.x_stride;
        R chosen = 0; /* the label's logit, on its way while the row is read */
        bool counts = false;
        if (threadIdx.x == 0) {
            int64_t label = load_wide(a.label_dtype, a.labels, row * a.label_stride).whole;
            counts = label != a.ignore;
            bool wrong = counts && (label < 0 || label >= a.classes);
            if (wrong) complain(a.asker, row, label);
            counts = counts && !wrong;
            if (counts) chosen = T::load(x[label]);
        }
        running<T> r = scan<T>(a, x);
        R top = block_max(r.top, shared);
        R sum = block_sum(r.top == -INFINITY ? r.sum : r.sum * power_of<T>(r.top - top), shared);
        if (threadIdx.x != 0) continue;
        R lse = top + log(sum);
        ((R *)a.lse_out)[row] = lse;
        ((R *)a.out)[row] = counts ? lse - chosen : R(0);
    }
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
        int64_t label = load_wide(a.label_dtype, a.labels, row * a.label_stride).whole;
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

/* The loss of all rows, by one block. */
template <typename R> __device__ void total(const tsi_cuda_entropy_args &a)
{
    __shared__ double shared[32];
    double sum = 0, counted = 0;
    for (int64_t row = threadIdx.x; row < a.rows; row += blockDim.x) {
        sum += (double)((const R *)a.out)[row];
        counted += load_wide(a.label_dtype, a.labels, row * a.label_stride).whole != a.ignore;
    }
    sum = block_sum(sum, shared);
    counted = block_sum(counted, shared);
    if (threadIdx.x == 0) ((R *)a.loss)[0] = (R)(a.mean ? sum / counted : sum);
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

TSI_KERNEL(entropy_total_f32, tsi_cuda_entropy_args)
{
    total<float>(a);
}

TSI_KERNEL(entropy_total_f64, tsi_cuda_entropy_args)
{
    total<double>(a);
}
