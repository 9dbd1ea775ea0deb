/* SPDX-License-Identifier: Apache-2.0 */
/* scan.cu - running sums and products of lines, in f32, f64 or int64 with wrap-around.
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
