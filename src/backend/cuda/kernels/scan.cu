/* SPDX-License-Identifier: Apache-2.0 */
/* scan.cu - running sums and products of lines, in f32, f64 or int64 with wrap-around, running
 * extremes with their places, and the gradient of running products.
 *
 * A block has a line and walks it by tiles of an element a thread; what is before a tile is
 * carried.
 *
 * INV: the tree follows from the length alone: the same bits on every GPU. */
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/number.cuh"
#include "backend/cuda/kernels/real.cuh"

template <typename R> __device__ inline R join(bool product, R x, R y)
{
    return product ? x * y : x + y;
}

template <> __device__ inline int64_t join<int64_t>(bool product, int64_t x, int64_t y)
{
    return (int64_t)(product ? (uint64_t)x * (uint64_t)y : (uint64_t)x + (uint64_t)y);
}

template <typename R> __device__ inline R load(const tsi_cuda_scan_args &a, int64_t at)
{
    return load_real<R>(a.from_dtype, a.from.data, at);
}

template <> __device__ inline int64_t load<int64_t>(const tsi_cuda_scan_args &a, int64_t at)
{
    return load_wide(a.from_dtype, a.from.data, at).whole;
}

template <typename R> __device__ inline void store(const tsi_cuda_scan_args &a, int64_t at, R x)
{
    store_real<R>(a.to_dtype, a.to.data, at, x);
}

template <>
__device__ inline void store<int64_t>(const tsi_cuda_scan_args &a, int64_t at, int64_t x)
{
    store_i64(a.to_dtype, a.to.data, at, x);
}

template <typename R> __device__ void scan(const tsi_cuda_scan_args &a)
{
    constexpr int WARPS = TSI_CUDA_BLOCK / 32;
    __shared__ R whole[WARPS];
    const tsi_cuda_operand *const operands[2] = { &a.from, &a.to };
    bool product = a.product != 0;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int64_t line = blockIdx.x; line < a.space.count; line += gridDim.x) {
        int64_t base[2];
        place(a.space, line, operands, base);
        R carry = product ? 1 : 0;
        for (int64_t tile = 0; tile < a.length; tile += TSI_CUDA_BLOCK) {
            int64_t i = tile + threadIdx.x;
            R x = product ? 1 : 0;
            if (i < a.length) x = load<R>(a, base[0] + i * a.from_step);
            for (int step = 1; step < 32; step *= 2) {
                R other = __shfl_up_sync(0xffffffffu, x, step);
                if (lane >= step) x = join<R>(product, other, x);
            }
            if (lane == 31) whole[warp] = x;
            __syncthreads();
            for (int w = 0; w < warp; w++)
                carry = join<R>(product, carry, whole[w]);
            if (i < a.length) store<R>(a, base[1] + i * a.to_step, join<R>(product, carry, x));
            for (int w = warp; w < WARPS; w++)
                carry = join<R>(product, carry, whole[w]);
            __syncthreads();
        }
    }
}

TSI_KERNEL(scan_f32, tsi_cuda_scan_args)
{
    scan<float>(a);
}

TSI_KERNEL(scan_f64, tsi_cuda_scan_args)
{
    scan<double>(a);
}

TSI_KERNEL(scan_i64, tsi_cuda_scan_args)
{
    scan<int64_t>(a);
}

/* ---- extremes -------------------------------------------------------------------------------- */

/* What was met on a line, and where; -1: nothing yet. */
template <typename R> struct met {
    R value;
    int64_t at;
};

/* Of equal ones the later counts; what is no number stays until the next that is none. */
template <typename R> __device__ inline met<R> after(met<R> so_far, met<R> next, bool least)
{
    if (next.at < 0) return so_far;
    if (so_far.at < 0 || next.value != next.value) return next;
    if (so_far.value != so_far.value) return so_far;
    bool takes = least ? next.value <= so_far.value : next.value >= so_far.value;
    return takes ? next : so_far;
}

__device__ inline void store_met(const tsi_cuda_scan_args &a, int64_t at, double value)
{
    store_f64(a.to_dtype, a.to.data, at, value, 0);
}

__device__ inline void store_met(const tsi_cuda_scan_args &a, int64_t at, int64_t value)
{
    store_i64(a.to_dtype, a.to.data, at, value);
}

template <typename R>
__device__ inline met<R> met_at(const tsi_cuda_scan_args &a, int64_t base, int64_t i)
{
    if (i >= a.length) return { 0, -1 };
    wide w = load_wide(a.from_dtype, a.from.data, base + i * a.from_step);
    return { kind_of(a.from_dtype) == WIDE_F64 ? (R)w.re : (R)w.whole, i };
}

template <typename R> __device__ void extremes(const tsi_cuda_scan_args &a)
{
    constexpr int WARPS = TSI_CUDA_BLOCK / 32;
    __shared__ R value[WARPS];
    __shared__ int64_t at[WARPS];
    const tsi_cuda_operand *const operands[3] = { &a.from, &a.to, &a.at };
    bool least = a.least != 0;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int64_t line = blockIdx.x; line < a.space.count; line += gridDim.x) {
        int64_t base[3];
        place(a.space, line, operands, base);
        met<R> carry = { 0, -1 };
        for (int64_t tile = 0; tile < a.length; tile += TSI_CUDA_BLOCK) {
            int64_t i = tile + threadIdx.x;
            met<R> x = met_at<R>(a, base[0], i);
            for (int step = 1; step < 32; step *= 2) {
                met<R> other = { __shfl_up_sync(0xffffffffu, x.value, step),
                                 __shfl_up_sync(0xffffffffu, x.at, step) };
                if (lane >= step) x = after(other, x, least);
            }
            if (lane == 31) value[warp] = x.value, at[warp] = x.at;
            __syncthreads();
            for (int w = 0; w < warp; w++)
                carry = after(carry, { value[w], at[w] }, least);
            x = after(carry, x, least);
            if (i < a.length) {
                store_met(a, base[1] + i * a.to_step, x.value);
                ((int64_t *)a.at.data)[base[2] + i * a.at_step] = x.at;
            }
            for (int w = warp; w < WARPS; w++)
                carry = after(carry, { value[w], at[w] }, least);
            __syncthreads();
        }
    }
}

TSI_KERNEL(scan_extremes_f64, tsi_cuda_scan_args)
{
    extremes<double>(a);
}

TSI_KERNEL(scan_extremes_i64, tsi_cuda_scan_args)
{
    extremes<int64_t>(a);
}

/* ---- the gradient of running products -------------------------------------------------------- */

/* With P(i) the product before i and s(i) = dy(i) + x(i+1) s(i+1): dx(i) = P(i) s(i), as the
 * reference does it. */
TSI_KERNEL(scan_back, tsi_cuda_scan_back_args)
{
    const tsi_cuda_operand *const operands[3] = { &a.dy, &a.x, &a.dx };
    for (int64_t line = first_item(); line < a.space.count; line += item_step()) {
        int64_t base[3];
        place(a.space, line, operands, base);
        double next = 0, before = 1, *room = a.room + line;
        for (int64_t i = a.length - 1; i >= 0; i--) {
            double s = load_real<double>(a.dy_dtype, a.dy.data, base[0] + i * a.dy_step) + next;
            room[i * a.space.count] = s;
            next = s * load_real<double>(a.x_dtype, a.x.data, base[1] + i * a.x_step);
        }
        for (int64_t i = 0; i < a.length; i++) {
            store_f64(a.dx_dtype, a.dx.data, base[2] + i * a.dx_step,
                      before * room[i * a.space.count], 0);
            before *= load_real<double>(a.x_dtype, a.x.data, base[1] + i * a.x_step);
        }
    }
}
