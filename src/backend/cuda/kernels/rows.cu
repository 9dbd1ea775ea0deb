/* SPDX-License-Identifier: Apache-2.0 */
/* rows.cu - softmax and log_softmax of contiguous rows, and their gradients.
 *
 *   softmax_warp_C_*    a warp a row that stays in registers, C units of 16 bytes a lane
 *   softmax_block_C_*   a block a row likewise
 *   softmax_*           a block a row of any length and alignment: the largest with the sum of
 *                       exponentials that follows it, then the result
 *
 * INV: sums are one tree over the threads of a row. */
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/real.cuh"

enum { WARPS = 8 };

/* Of bf16 the short exponential is exact enough by far. */
__device__ inline float power_of(as_bf16, float x)
{
    return __expf(x);
}
__device__ inline float power_of(as_f32, float x)
{
    return expf(x);
}
__device__ inline float power_of(as_f16, float x)
{
    return expf(x);
}
__device__ inline double power_of(as_f64, double x)
{
    return exp(x);
}

/* ---- rows in registers ----------------------------------------------------------------------- */

/* One row, whose units are there already. */
template <typename T, int C, bool BLOCK>
__device__ inline void softmax_row(const tsi_cuda_softmax_args &a, int64_t row,
                                   unit_of<typename T::E> (&in)[C], float *shared)
{
    constexpr int N = 16 / sizeof(typename T::E);
    int64_t units = a.length / N, threads = BLOCK ? blockDim.x : 32;
    int64_t lane = BLOCK ? threadIdx.x : threadIdx.x % 32;
    float top = -INFINITY, sum = 0;
#pragma unroll
    for (int k = 0; k < C; k++)
#pragma unroll
        for (int e = 0; e < N; e++)
            if (lane + k * threads < units) {
                float v = T::load(in[k].element[e]);
                top = top != top || top > v ? top : v;
            }
    top = row_max<BLOCK>(top, shared);
#pragma unroll
    for (int k = 0; k < C; k++)
#pragma unroll
        for (int e = 0; e < N; e++)
            if (lane + k * threads < units) sum += power_of(T(), T::load(in[k].element[e]) - top);
    sum = row_sum<BLOCK>(sum, shared);
    float by = 1.0f / sum, shift = top + logf(sum);
#pragma unroll
    for (int k = 0; k < C; k++) {
        if (lane + k * threads >= units) break;
#pragma unroll
        for (int e = 0; e < N; e++) {
            float v = T::load(in[k].element[e]);
            in[k].element[e] = T::store(a.log ? v - shift : power_of(T(), v - top) * by);
        }
        ((uint4 *)((typename T::E *)a.y + row * a.y_stride))[lane + k * threads] = in[k].unit;
    }
}

/* Two rows of a warp are on their way at a time. */
template <typename T, int C, bool BLOCK>
__device__ void softmax_kept(const tsi_cuda_softmax_args &a)
{
    constexpr int N = 16 / sizeof(typename T::E), ROWS = BLOCK ? 1 : 2;
    typedef typename T::E E;
    __shared__ float shared[32];
    int64_t units = a.length / N, threads = BLOCK ? blockDim.x : 32;
    int64_t lane = BLOCK ? threadIdx.x : threadIdx.x % 32;
    int64_t each = BLOCK ? 1 : WARPS * ROWS;
    int64_t first = blockIdx.x * each + (BLOCK ? 0 : threadIdx.x / 32 * ROWS);
    for (int64_t row = first; row < a.rows; row += gridDim.x * each) {
        unit_of<E> in[ROWS][C];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const uint4 *x = (const uint4 *)((const E *)a.x + (row + r) * a.x_stride);
#pragma unroll
            for (int k = 0; k < C; k++)
                if (row + r < a.rows && lane + k * threads < units)
                    in[r][k].unit = x[lane + k * threads];
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (row + r < a.rows) softmax_row<T, C, BLOCK>(a, row + r, in[r], shared);
    }
}

#define KEPT(name, type, C)                                                                        \
    TSI_KERNEL_BOUNDED(softmax_warp_##C##_##name, tsi_cuda_softmax_args, WARPS * 32)               \
    {                                                                                              \
        softmax_kept<type, C, false>(a);                                                           \
    }
#define KEPT_BY_BLOCKS(name, type, C)                                                              \
    TSI_KERNEL_BOUNDED(softmax_block_##C##_##name, tsi_cuda_softmax_args, 512, 2)                  \
    {                                                                                              \
        softmax_kept<type, C, true>(a);                                                            \
    }
KEPT(f32, as_f32, 1)
KEPT(f32, as_f32, 2)
KEPT(f32, as_f32, 4)
KEPT(bf16, as_bf16, 1)
KEPT(bf16, as_bf16, 2)
KEPT(bf16, as_bf16, 4)
KEPT_BY_BLOCKS(f32, as_f32, 4)
KEPT_BY_BLOCKS(f32, as_f32, 8)
KEPT_BY_BLOCKS(bf16, as_bf16, 4)
KEPT_BY_BLOCKS(bf16, as_bf16, 8)

/* ---- any rows -------------------------------------------------------------------------------- */

/* Units, or one element where rows do not lie on 16 bytes. */
template <typename T> __device__ inline bool by_units(const tsi_cuda_softmax_args &a)
{
    constexpr int N = 16 / sizeof(typename T::E);
    int64_t steps = a.length | a.x_stride | a.y_stride | a.dy_stride;
    return steps % N == 0 && ((uint64_t)a.x | (uint64_t)a.y | (uint64_t)a.dy) % 16 == 0;
}

template <typename T>
__device__ inline unit_of<typename T::E> load_unit(const typename T::E *from, bool units)
{
    unit_of<typename T::E> in;
    if (units)
        in.unit = *(const uint4 *)from;
    else
        in.element[0] = *from;
    return in;
}

template <typename T>
__device__ inline void store_unit(typename T::E *to, const unit_of<typename T::E> &out, bool units)
{
    if (units)
        *(uint4 *)to = out.unit;
    else
        *to = out.element[0];
}

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
                most = most != most || most > v ? most : v;
            }
            if (most != top) sum *= power_of(T(), top - most);
            top = most;
            for (int e = 0; e < step; e++)
                sum += power_of(T(), T::load(in.element[e]) - top);
        }
        R all = block_max(top, shared);
        sum = block_sum(top == -INFINITY && all != top ? R(0) : sum * power_of(T(), top - all),
                        shared);
        R shift = all + log(sum), by = R(1) / sum;
        for (int64_t c = first; c < a.length; c += next) {
            unit_of<E> in = load_unit<T>(x + c, units);
            for (int e = 0; e < step; e++) {
                R v = T::load(in.element[e]);
                in.element[e] = T::store(a.log ? v - shift : power_of(T(), v - all) * by);
            }
            store_unit<T>(y + c, in, units);
        }
    }
}

/* dx = y (dy - sum(dy y)), or dy - e^y sum(dy). */
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
                in.element[e] = T::store(a.log ? g - power_of(T(), v) * sum : v * (g - sum));
            }
            store_unit<T>(dx + c, in, units);
        }
    }
}

#define ROWS(name, type)                                                                           \
    TSI_KERNEL(softmax_##name, tsi_cuda_softmax_args)                                              \
    {                                                                                              \
        softmax_rows<type>(a);                                                                     \
    }                                                                                              \
    TSI_KERNEL(softmax_backward_##name, tsi_cuda_softmax_args)                                     \
    {                                                                                              \
        softmax_rows_backward<type>(a);                                                            \
    }
ROWS(f32, as_f32)
ROWS(f64, as_f64)
ROWS(bf16, as_bf16)
ROWS(f16, as_f16)
