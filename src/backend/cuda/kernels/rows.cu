/* SPDX-License-Identifier: Apache-2.0 */
/* rows.cu - softmax and log_softmax of contiguous rows, and their gradients.
 *
 *   softmax_warp_C_*    a warp a row that stays in registers, C units of 16 bytes a lane, while
 *                       the next one is on its way
 *   softmax_block_C_*   a block a row likewise
 *   softmax_*_backward_C_*   both for the gradient, of the result and of what comes back
 *   softmax_*           a block a row of any length and alignment: the largest with the sum of
 *                       exponentials that follows it, then the result
 *
 * INV: sums are one tree over the threads of a row. */
#include "backend/cuda/kernels/kept.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/real.cuh"

enum { WARPS = 8 };

/* ---- rows in registers ----------------------------------------------------------------------- */

/* The sum of exponentials over the largest; they take the place of the values, unless logarithms
 * are wanted. */
template <typename T, int C, int N>
__device__ inline float shares_of(float (&v)[C][N], float top, bool log)
{
    float sum = 0;
    if (log) {
#pragma unroll
        for (int k = 0; k < C; k++)
#pragma unroll
            for (int e = 0; e < N; e++)
                sum += power_of<T>(v[k][e] - top);
        return sum;
    }
#pragma unroll
    for (int k = 0; k < C; k++)
#pragma unroll
        for (int e = 0; e < N; e++)
            sum += v[k][e] = power_of<T>(v[k][e] - top);
    return sum;
}

template <typename T, int C, int N>
__device__ inline void write_row(uint4 *y, float (&v)[C][N], int64_t first, int64_t step,
                                 int64_t units, float top, float sum, bool log)
{
    float by = log ? 1.0f : 1.0f / sum, less = log ? top + logf(sum) : 0.0f;
#pragma unroll
    for (int k = 0; k < C; k++) {
        if (first + k * step >= units) break;
#pragma unroll
        for (int e = 0; e < N; e++)
            v[k][e] = v[k][e] * by - less;
        y[first + k * step] = unit_from<T>(v[k]);
    }
}

/* A row of a warp is computed while its next one is on its way. */
template <typename T, int C> __device__ void softmax_warp(const tsi_cuda_softmax_args &a)
{
    constexpr int N = 16 / sizeof(typename T::E);
    typedef typename T::E E;
    int64_t units = a.length / N, lane = threadIdx.x % 32, step = (int64_t)gridDim.x * WARPS;
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    uint4 next[C];
#pragma unroll
    for (int k = 0; k < C; k++)
        next[k] = row < a.rows && lane + k * 32 < units
                      ? ((const uint4 *)((const E *)a.x + row * a.x_stride))[lane + k * 32]
                      : least_unit<T>();
    for (; row < a.rows; row += step) {
        float v[C][N];
        values_of<T, C>(next, v);
#pragma unroll
        for (int k = 0; k < C; k++)
            if (row + step < a.rows && lane + k * 32 < units)
                next[k] =
                    ((const uint4 *)((const E *)a.x + (row + step) * a.x_stride))[lane + k * 32];
        float top = warp_max(largest_of(v));
        float sum = warp_sum(shares_of<T>(v, top, a.log));
        write_row<T>((uint4 *)((E *)a.y + row * a.y_stride), v, lane, 32, units, top, sum, a.log);
    }
}

/* The same of a block; what is on its way goes to shared memory, C units a thread. */
template <typename T, int C> __device__ void softmax_block(const tsi_cuda_softmax_args &a)
{
    constexpr int N = 16 / sizeof(typename T::E);
    typedef typename T::E E;
    TSI_BLOCK_MEMORY(uint4, fetched);
    __shared__ float shared[32];
    int64_t units = a.length / N, lane = threadIdx.x, threads = blockDim.x;
    fetch_prepare<C>(fetched, units, least_unit<T>());
    fetch_row<C>(fetched, (const E *)a.x + (int64_t)blockIdx.x * a.x_stride, units);
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        float v[C][N];
        fetched_row<T, C>(fetched, v);
        float top = block_max(largest_of(v), shared);
        if (row + gridDim.x < a.rows)
            fetch_row<C>(fetched, (const E *)a.x + (row + gridDim.x) * a.x_stride, units);
        float sum = block_sum(shares_of<T>(v, top, a.log), shared);
        write_row<T>((uint4 *)((E *)a.y + row * a.y_stride), v, lane, threads, units, top, sum,
                     a.log);
    }
}

/* WIDTH blocks are at once on a multiprocessor: softmax.c launches as many. */
#define KEPT(name, type, C, WIDTH)                                                                 \
    TSI_KERNEL_BOUNDED(softmax_warp_##C##_##name, tsi_cuda_softmax_args, WARPS * 32, WIDTH)        \
    {                                                                                              \
        softmax_warp<type, C>(a);                                                                  \
    }
#define KEPT_BY_BLOCKS(name, type, C)                                                              \
    TSI_KERNEL_BOUNDED(softmax_block_##C##_##name, tsi_cuda_softmax_args, TSI_CUDA_KEPT_THREADS,   \
                       1)                                                                          \
    {                                                                                              \
        softmax_block<type, C>(a);                                                                 \
    }
KEPT(f32, as_f32, 1, 4)
KEPT(f32, as_f32, 2, 4)
KEPT(f32, as_f32, 4, 4)
KEPT(f32, as_f32, 8, 2)
KEPT(bf16, as_bf16, 1, 4)
KEPT(bf16, as_bf16, 2, 4)
KEPT(bf16, as_bf16, 4, 3)
KEPT(bf16, as_bf16, 8, 2)
KEPT_BY_BLOCKS(f32, as_f32, 4)
KEPT_BY_BLOCKS(f32, as_f32, 8)
KEPT_BY_BLOCKS(bf16, as_bf16, 4)
KEPT_BY_BLOCKS(bf16, as_bf16, 8)

/* ---- gradients of rows in registers: dx = y (dy - sum(dy y)), or dy - e^y sum(dy) ------------ */

/* A thread's part of the sum; what lies behind the end of a row is zeros. */
template <typename T, bool LOG, int C>
__device__ inline float product_of(const uint4 (&y)[C], const uint4 (&dy)[C])
{
    constexpr int N = 16 / sizeof(typename T::E);
    float sum = 0;
#pragma unroll
    for (int k = 0; k < C; k++) {
        float v[N], g[N];
        unpack<T>(y[k], v);
        unpack<T>(dy[k], g);
#pragma unroll
        for (int e = 0; e < N; e++)
            sum += LOG ? g[e] : g[e] * v[e];
    }
    return sum;
}

template <typename T, bool LOG, int C>
__device__ inline void write_gradient(uint4 *dx, const uint4 (&y)[C], const uint4 (&dy)[C],
                                      uint32_t first, uint32_t step, uint32_t units, float sum)
{
    constexpr int N = 16 / sizeof(typename T::E);
#pragma unroll
    for (int k = 0; k < C; k++) {
        if (first + k * step >= units) break;
        float v[N], g[N];
        unpack_again<T>(y[k], v);
        unpack_again<T>(dy[k], g);
#pragma unroll
        for (int e = 0; e < N; e++)
            v[e] = LOG ? g[e] - power_of<T>(v[e]) * sum : v[e] * (g[e] - sum);
        dx[first + k * step] = unit_from<T>(v);
    }
}

/* The lane's units of a row; those behind its end stay as they are. */
template <int C> __device__ inline void load_units(uint4 (&to)[C], const void *row, int64_t units)
{
#pragma unroll
    for (int k = 0; k < C; k++) {
        int64_t u = threadIdx.x % 32 + k * 32;
        if (u < units) to[k] = ((const uint4 *)row)[u];
    }
}

template <typename T, int C, bool LOG>
__device__ void softmax_warp_backward(const tsi_cuda_softmax_args &a)
{
    typedef typename T::E E;
    int64_t units = a.length * sizeof(E) / 16, step = (int64_t)gridDim.x * WARPS;
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    uint4 next_y[C], next_dy[C];
#pragma unroll
    for (int k = 0; k < C; k++)
        next_y[k] = next_dy[k] = make_uint4(0, 0, 0, 0);
    if (row < a.rows) {
        load_units(next_y, (const E *)a.x + row * a.x_stride, units);
        load_units(next_dy, (const E *)a.dy + row * a.dy_stride, units);
    }
    for (; row < a.rows; row += step) {
        uint4 y[C], dy[C];
#pragma unroll
        for (int k = 0; k < C; k++)
            y[k] = next_y[k], dy[k] = next_dy[k];
        if (row + step < a.rows) {
            load_units(next_y, (const E *)a.x + (row + step) * a.x_stride, units);
            load_units(next_dy, (const E *)a.dy + (row + step) * a.dy_stride, units);
        }
        float sum = warp_sum(product_of<T, LOG>(y, dy));
        write_gradient<T, LOG>((uint4 *)((E *)a.y + row * a.y_stride), y, dy, threadIdx.x % 32, 32,
                               units, sum);
    }
}

/* The next row is on its way before this one is computed. */
template <typename T, int C, bool LOG>
__device__ void softmax_block_backward(const tsi_cuda_softmax_args &a)
{
    typedef typename T::E E;
    TSI_BLOCK_MEMORY(uint4, fetched);
    __shared__ float shared[32];
    uint32_t units = (uint32_t)(a.length * sizeof(E) / 16);
    uint4 *fetched_dy = fetched + C * blockDim.x;
    fetch_prepare<C>(fetched, units, make_uint4(0, 0, 0, 0));
    fetch_prepare<C>(fetched_dy, units, make_uint4(0, 0, 0, 0));
    fetch_row<C>(fetched, (const E *)a.x + (int64_t)blockIdx.x * a.x_stride, units);
    fetch_row<C>(fetched_dy, (const E *)a.dy + (int64_t)blockIdx.x * a.dy_stride, units);
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        int64_t next = row + gridDim.x;
        uint4 y[C], dy[C];
        fetched_units(fetched, y);
        fetched_units(fetched_dy, dy);
        __syncthreads();
        if (next < a.rows) {
            fetch_row<C>(fetched, (const E *)a.x + next * a.x_stride, units);
            fetch_row<C>(fetched_dy, (const E *)a.dy + next * a.dy_stride, units);
        }
        float sum = block_sum(product_of<T, LOG>(y, dy), shared);
        write_gradient<T, LOG>((uint4 *)((E *)a.y + row * a.y_stride), y, dy, threadIdx.x,
                               blockDim.x, units, sum);
    }
}

#define GRADIENT(name, type, C, WIDTH)                                                             \
    TSI_KERNEL_BOUNDED(softmax_warp_backward_##C##_##name, tsi_cuda_softmax_args, WARPS * 32,      \
                       WIDTH)                                                                      \
    {                                                                                              \
        if (a.log)                                                                                 \
            softmax_warp_backward<type, C, true>(a);                                               \
        else                                                                                       \
            softmax_warp_backward<type, C, false>(a);                                              \
    }
#define GRADIENT_BY_BLOCKS(name, type, C)                                                          \
    TSI_KERNEL_BOUNDED(softmax_block_backward_##C##_##name, tsi_cuda_softmax_args,                 \
                       TSI_CUDA_KEPT_THREADS, 1)                                                   \
    {                                                                                              \
        if (a.log)                                                                                 \
            softmax_block_backward<type, C, true>(a);                                              \
        else                                                                                       \
            softmax_block_backward<type, C, false>(a);                                             \
    }
GRADIENT(f32, as_f32, 1, 4)
GRADIENT(f32, as_f32, 2, 4)
GRADIENT(f32, as_f32, 4, 3)
GRADIENT(bf16, as_bf16, 1, 4)
GRADIENT(bf16, as_bf16, 2, 4)
GRADIENT(bf16, as_bf16, 4, 3)
GRADIENT_BY_BLOCKS(f32, as_f32, 4)
GRADIENT_BY_BLOCKS(f32, as_f32, 8)
GRADIENT_BY_BLOCKS(bf16, as_bf16, 4)
GRADIENT_BY_BLOCKS(bf16, as_bf16, 8)

/* ---- any rows -------------------------------------------------------------------------------- */

template <typename T> __device__ void softmax_rows(const tsi_cuda_softmax_args &a)
{
    constexpr int N = 16 / sizeof(typename T::E);
    typedef typename T::E E;
    typedef typename T::R R;
    __shared__ R shared[32];
    bool units = by_units<T>(a);
    int step = units ? N : 1;
    int64_t first = (int64_t)threadIdx.x * step, next = (int64_t)blockDim.x * step;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const E *x = (const E *)a.x + row * a.x_stride;
        E *y = (E *)a.y + row * a.y_stride;
        R top = -INFINITY, sum = 0;
        for (int64_t c = first; c < a.length; c += next) { /* the sum follows the largest so far */
            unit_of<E> in = load_unit<T>(x + c, units);
            R most = top;
            for (int e = 0; e < step; e++) {
                R v = T::load(in.element[e]);
                most = larger(most, v);
            }
            if (most != top) sum *= power_of<T>(top - most);
            top = most;
            R from = top == -INFINITY ? R(0) : top; /* so far nothing but these: they add nothing */
            for (int e = 0; e < step; e++)
                sum += power_of<T>(T::load(in.element[e]) - from);
        }
        R all = block_max(top, shared);
        sum =
            block_sum(top == -INFINITY && all != top ? R(0) : sum * power_of<T>(top - all), shared);
        R shift = all + log(sum), by = R(1) / sum;
        for (int64_t c = first; c < a.length; c += next) {
            unit_of<E> in = load_unit<T>(x + c, units);
            for (int e = 0; e < step; e++) {
                R v = T::load(in.element[e]);
                in.element[e] = T::store(a.log ? v - shift : power_of<T>(v - all) * by);
            }
            store_unit<T>(y + c, in, units);
        }
    }
}

template <typename T> __device__ void softmax_rows_backward(const tsi_cuda_softmax_args &a)
{
    constexpr int N = 16 / sizeof(typename T::E);
    typedef typename T::E E;
    typedef typename T::R R;
    __shared__ R shared[32];
    bool units = by_units<T>(a);
    int step = units ? N : 1;
    int64_t first = (int64_t)threadIdx.x * step, next = (int64_t)blockDim.x * step;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const E *y = (const E *)a.x + row * a.x_stride, *dy = (const E *)a.dy + row * a.dy_stride;
        E *dx = (E *)a.y + row * a.y_stride;
        R sum = 0;
        for (int64_t c = first; c < a.length; c += next) {
            unit_of<E> in = load_unit<T>(y + c, units), grad = load_unit<T>(dy + c, units);
            for (int e = 0; e < step; e++)
                sum += T::load(grad.element[e]) * (a.log ? R(1) : T::load(in.element[e]));
        }
        sum = block_sum(sum, shared);
        for (int64_t c = first; c < a.length; c += next) {
            unit_of<E> in = load_unit<T>(y + c, units), grad = load_unit<T>(dy + c, units);
            for (int e = 0; e < step; e++) {
                R v = T::load(in.element[e]), g = T::load(grad.element[e]);
                in.element[e] = T::store(a.log ? g - power_of<T>(v) * sum : v * (g - sum));
            }
            store_unit<T>(dx + c, in, units);
        }
    }
}

#define ROWS(name, type)                                                                           \
    TSI_KERNEL_BOUNDED(softmax_##name, tsi_cuda_softmax_args, 512)                                 \
    {                                                                                              \
        softmax_rows<type>(a);                                                                     \
    }                                                                                              \
    TSI_KERNEL_BOUNDED(softmax_backward_##name, tsi_cuda_softmax_args, 512)                        \
    {                                                                                              \
        softmax_rows_backward<type>(a);                                                            \
    }
ROWS(f32, as_f32)
ROWS(f64, as_f64)
ROWS(bf16, as_bf16)
ROWS(f16, as_f16)
