/* SPDX-License-Identifier: Apache-2.0 */
/* norm.cu - rms_norm of contiguous rows and its gradient, a block a row.
 *
 * INV: sums are one tree over the threads of a block; rows are dealt to blocks by their number
 * alone, and the weight's gradient adds blocks in order: the same bits on every GPU. */
#include "backend/cuda/kernels/real.cuh"

enum { WIDE = 16 };

/* Rows are walked by 16 bytes, or element by element where they do not lie on them. */
template <typename T> __device__ inline bool by_units(const tsi_cuda_norm_args &a)
{
    constexpr int N = WIDE / sizeof(typename T::E);
    uint64_t bits = (uint64_t)a.x | (uint64_t)a.y | (uint64_t)a.dy;
    return a.length % N == 0 && bits % WIDE == 0;
}

/* Weights of the columns of one unit; 1 where there are none. */
template <int N>
__device__ inline void load_weights(const tsi_cuda_norm_args &a, bool units, int64_t c, float *w)
{
    bool aligned = units && (uint64_t)a.weight % WIDE == 0;
    if (aligned && a.weight && a.weight_dtype == TS_DTYPE_F32) {
#pragma unroll
        for (int e = 0; e < N; e += 4)
            *(float4 *)(w + e) = *(const float4 *)((const float *)a.weight + c + e);
    } else if (aligned && a.weight && a.weight_dtype == TS_DTYPE_BF16 && N == 8) {
        unit_of<uint16_t> in;
        in.unit = *(const uint4 *)((const uint16_t *)a.weight + c);
#pragma unroll
        for (int e = 0; e < N; e++)
            w[e] = tsi_f32_of_bf16(in.element[e]);
    } else {
#pragma unroll
        for (int e = 0; e < N; e++)
            w[e] = a.weight && (units || e == 0) ? load_real<float>(a.weight_dtype, a.weight, c + e)
                                                 : 1.0f;
    }
}

template <typename T> __device__ void rms_norm(const tsi_cuda_norm_args &a)
{
    constexpr int N = WIDE / sizeof(typename T::E);
    typedef typename T::E E;
    __shared__ float sums[32];
    bool units = by_units<T>(a);
    int step = units ? N : 1;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const E *x = (const E *)a.x + row * a.length;
        E *y = (E *)a.y + row * a.length;
        float squares = 0;
        for (int64_t c = (int64_t)threadIdx.x * step; c < a.length;
             c += (int64_t)blockDim.x * step) {
            unit_of<E> in;
            if (units)
                in.unit = *(const uint4 *)(x + c);
            else
                in.element[0] = x[c];
#pragma unroll
            for (int e = 0; e < N; e++) {
                float v = e < step ? T::load(in.element[e]) : 0.0f;
                squares += v * v;
            }
        }
        float scale =
            (float)(1.0 / sqrt((double)block_sum(squares, sums) / (double)a.length + a.eps));
        if (threadIdx.x == 0 && a.scale) a.scale[row] = scale;
        for (int64_t c = (int64_t)threadIdx.x * step; c < a.length;
             c += (int64_t)blockDim.x * step) {
            unit_of<E> in;
            if (units)
                in.unit = *(const uint4 *)(x + c);
            else
                in.element[0] = x[c];
            alignas(16) float w[N];
            load_weights<N>(a, units, c, w);
#pragma unroll
            for (int e = 0; e < N; e++)
                if (e < step) in.element[e] = T::store(T::load(in.element[e]) * scale * w[e]);
            if (units)
                *(uint4 *)(y + c) = in.unit;
            else
                y[c] = in.element[0];
        }
    }
}

/* dx = scale (dy w - x^ mean(dy w x^)), x^ = x scale; dw = sum of dy x^ over rows. */
template <typename T> __device__ void rms_norm_backward(const tsi_cuda_norm_args &a)
{
    constexpr int N = WIDE / sizeof(typename T::E);
    typedef typename T::E E;
    extern __shared__ float weights[]; /* of this block's rows; a thread has its own columns */
    __shared__ float sums[32];
    bool units = by_units<T>(a);
    int step = units ? N : 1;
    int64_t first = (int64_t)threadIdx.x * step, next = (int64_t)blockDim.x * step;
    for (int64_t c = threadIdx.x; c < a.length; c += blockDim.x)
        weights[c] = 0;
    __syncthreads();
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const E *x = (const E *)a.x + row * a.length, *dy = (const E *)a.dy + row * a.length;
        E *dx = (E *)a.y + row * a.length;
        float scale = a.scale[row], sum = 0;
        for (int64_t c = first; c < a.length; c += next) {
            unit_of<E> in, grad;
            if (units)
                in.unit = *(const uint4 *)(x + c), grad.unit = *(const uint4 *)(dy + c);
            else
                in.element[0] = x[c], grad.element[0] = dy[c];
            alignas(16) float w[N];
            load_weights<N>(a, units, c, w);
#pragma unroll
            for (int e = 0; e < N; e++) {
                if (e >= step) break;
                float g = T::load(grad.element[e]), h = T::load(in.element[e]) * scale;
                sum += g * w[e] * h;
                weights[c + e] += g * h;
            }
        }
        float mean = block_sum(sum, sums) / (float)a.length;
        for (int64_t c = first; c < a.length; c += next) {
            unit_of<E> in, grad;
            if (units)
                in.unit = *(const uint4 *)(x + c), grad.unit = *(const uint4 *)(dy + c);
            else
                in.element[0] = x[c], grad.element[0] = dy[c];
            alignas(16) float w[N];
            load_weights<N>(a, units, c, w);
#pragma unroll
            for (int e = 0; e < N; e++) {
                if (e >= step) break;
                float g = T::load(grad.element[e]), h = T::load(in.element[e]) * scale;
                in.element[e] = T::store(scale * (g * w[e] - h * mean));
            }
            if (units)
                *(uint4 *)(dx + c) = in.unit;
            else
                dx[c] = in.element[0];
        }
    }
    __syncthreads();
    for (int64_t c = threadIdx.x; c < a.length; c += blockDim.x)
        a.partial[blockIdx.x * a.length + c] = weights[c];
}

extern "C" __global__ void norm_weight(const __grid_constant__ tsi_cuda_norm_args a)
{
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= a.length) return;
    float sum = 0;
    for (int b = 0; b < a.blocks; b++)
        sum += a.partial[b * a.length + c];
    store_real<float>(a.weight_dtype, a.dw, c, sum);
}

#define NORM(name, type)                                                                           \
    extern "C" __global__ void rms_norm_##name(const __grid_constant__ tsi_cuda_norm_args a)       \
    {                                                                                              \
        rms_norm<type>(a);                                                                         \
    }                                                                                              \
    extern "C" __global__ void rms_norm_backward_##name(                                           \
        const __grid_constant__ tsi_cuda_norm_args a)                                              \
    {                                                                                              \
        rms_norm_backward<type>(a);                                                                \
    }
NORM(f32, as_f32)
NORM(bf16, as_bf16)
