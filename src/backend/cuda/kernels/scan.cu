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

/* ---- a line ---------------------------------------------------------------------------------- */

enum { WARPS = TSI_CUDA_BLOCK / 32 };

/* What a lane so many before this one has. */
template <typename R> __device__ inline R from_before(R x, int step)
{
    return __shfl_up_sync(0xffffffffu, x, step);
}

/* store(i, x): x is all of the line up to i, joined in its order; `none` changes nothing. `whole`
 * has a place for each warp. */
template <typename X, typename L, typename J, typename S>
__device__ inline void scan_line(int64_t length, X none, X *whole, L load, J join, S store)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    X carry = none;
    for (int64_t tile = 0; tile < length; tile += TSI_CUDA_BLOCK) {
        int64_t i = tile + threadIdx.x;
        X x = i < length ? load(i) : none;
        for (int step = 1; step < 32; step *= 2) {
            X other = from_before(x, step);
            if (lane >= step) x = join(other, x);
        }
        if (lane == 31) whole[warp] = x;
        __syncthreads();
        for (int w = 0; w < warp; w++)
            carry = join(carry, whole[w]);
        if (i < length) store(i, join(carry, x));
        for (int w = warp; w < WARPS; w++)
            carry = join(carry, whole[w]);
        __syncthreads();
    }
}

/* ---- sums and products ----------------------------------------------------------------------- */

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
    __shared__ R whole[WARPS];
    const tsi_cuda_operand *const operands[2] = { &a.from, &a.to };
    bool product = a.product != 0;
    for (int64_t line = blockIdx.x; line < a.space.count; line += gridDim.x) {
        int64_t base[2];
        place(a.space, line, operands, base);
        scan_line<R>(
            a.length, product ? 1 : 0, whole,
            [&](int64_t i) { return load<R>(a, base[0] + i * a.from_step); },
            [&](R x, R y) { return join<R>(product, x, y); },
            [&](int64_t i, R x) { store<R>(a, base[1] + i * a.to_step, x); });
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

template <typename R> __device__ inline met<R> from_before(met<R> x, int step)
{
    return { from_before(x.value, step), from_before(x.at, step) };
}

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
    wide w = load_wide(a.from_dtype, a.from.data, base + i * a.from_step);
    return { kind_of(a.from_dtype) == WIDE_F64 ? (R)w.re : (R)w.whole, i };
}

template <typename R> __device__ void extremes(const tsi_cuda_scan_args &a)
{
    __shared__ met<R> whole[WARPS];
    const tsi_cuda_operand *const operands[3] = { &a.from, &a.to, &a.at };
    bool least = a.least != 0;
    for (int64_t line = blockIdx.x; line < a.space.count; line += gridDim.x) {
        int64_t base[3];
        place(a.space, line, operands, base);
        scan_line<met<R>>(
            a.length, { 0, -1 }, whole, [&](int64_t i) { return met_at<R>(a, base[0], i); },
            [&](met<R> x, met<R> y) { return after(x, y, least); },
            [&](int64_t i, met<R> x) {
                store_met(a, base[1] + i * a.to_step, x.value);
                ((int64_t *)a.at.data)[base[2] + i * a.at_step] = x.at;
            });
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
