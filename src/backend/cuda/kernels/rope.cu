/* SPDX-License-Identifier: Apache-2.0 */
/* rope.cu - rotary positions: (x1, x2) -> (x1 c - x2 s, x2 c + x1 s) of the halves of a row.
 *
 * An item reads its pairs before it writes them, so the result may lie over the input. */
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/real.cuh"

/* The position of an item in the sequence, from the number of its chunk. */
__device__ inline int64_t position_of(const tsi_cuda_rope_args &a, int64_t item)
{
    int64_t rest = item;
    for (int d = a.space.ndim - 1; d > a.sequence; d--)
        rest /= a.space.extent[d];
    return tsi_cuda_index_at(&a.place, rest % a.space.extent[a.sequence]);
}

/* Chunks of 16 bytes of both halves. */
template <typename T> __device__ void rope_units(const tsi_cuda_rope_args &a)
{
    constexpr int N = 16 / sizeof(typename T::E);
    typedef typename T::E E;
    const tsi_cuda_operand *const operands[2] = { &a.from, &a.to };
    int last = a.space.ndim - 1;
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        int64_t offset[2], chunk = i % a.space.extent[last] * N;
        place(a.space, i, operands, offset);
        int64_t row = position_of(a, i) * a.table_row + chunk;
        unit_of<E> x[2];
        x[0].unit = *(const uint4 *)((const E *)a.from.data + offset[0]);
        x[1].unit = *(const uint4 *)((const E *)a.from.data + offset[0] + a.half);
#pragma unroll
        for (int e = 0; e < N; e++) {
            float c = load_real<float>(a.table_dtype, a.table, row + e);
            float s = load_real<float>(a.table_dtype, a.table, row + a.half + e);
            float one = T::load(x[0].element[e]), two = T::load(x[1].element[e]);
            if (a.inverse) s = -s;
            x[0].element[e] = T::store(one * c - two * s);
            x[1].element[e] = T::store(two * c + one * s);
        }
        *(uint4 *)((E *)a.to.data + offset[1]) = x[0].unit;
        *(uint4 *)((E *)a.to.data + offset[1] + a.half) = x[1].unit;
    }
}

template <typename R> __device__ void rope_any(const tsi_cuda_rope_args &a)
{
    const tsi_cuda_operand *const operands[2] = { &a.from, &a.to };
    int last = a.space.ndim - 1;
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        int64_t offset[2], pair = i % a.space.extent[last];
        place(a.space, i, operands, offset);
        int64_t row = position_of(a, i) * a.table_row;
        R c = load_real<R>(a.table_dtype, a.table, row + pair * a.table_column);
        R s = load_real<R>(a.table_dtype, a.table, row + (a.half + pair) * a.table_column);
        if (a.inverse) s = -s;
        R one = load_real<R>(a.dtype, a.from.data, offset[0]);
        R two = load_real<R>(a.dtype, a.from.data, offset[0] + a.half * a.from_column);
        store_real<R>(a.dtype, a.to.data, offset[1], one * c - two * s);
        store_real<R>(a.dtype, a.to.data, offset[1] + a.half * a.to_column, two * c + one * s);
    }
}

extern "C" __global__ void rope_f32(const __grid_constant__ tsi_cuda_rope_args a)
{
    rope_units<as_f32>(a);
}

extern "C" __global__ void rope_bf16(const __grid_constant__ tsi_cuda_rope_args a)
{
    rope_units<as_bf16>(a);
}

extern "C" __global__ void rope_any_f32(const __grid_constant__ tsi_cuda_rope_args a)
{
    rope_any<float>(a);
}

extern "C" __global__ void rope_any_f64(const __grid_constant__ tsi_cuda_rope_args a)
{
    rope_any<double>(a);
}
