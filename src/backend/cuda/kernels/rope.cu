/* SPDX-License-Identifier: Apache-2.0 */
/* rope.cu - rotary positions: (x1, x2) -> (x1 c - x2 s, x2 c + x1 s) of the halves of a row.
 *
 * An item reads its pairs before it writes them, so the result may lie over the input. */
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/real.cuh"

/* Where an item lies: its offsets, its chunk, and the position of its row in the sequence. */
struct spot {
    int64_t from, to, chunk, position;
};

__device__ inline spot spot_of(const tsi_cuda_rope_args &a, int64_t item)
{
    spot s = { 0, 0, 0, 0 };
    int64_t rest = item;
    for (int d = a.space.ndim - 1; d >= 0; d--) {
        int64_t outer = !d                  ? 0
                        : is_small(a.space) ? (int64_t)divide((uint32_t)rest, a.space.by[d])
                                            : rest / a.space.extent[d];
        int64_t at = rest - outer * a.space.extent[d];
        rest = outer;
        s.from += at * a.from.stride[d];
        s.to += at * a.to.stride[d];
        if (d == a.space.ndim - 1) s.chunk = at;
        if (d == a.sequence) s.position = a.place.count ? tsi_cuda_index_at(&a.place, at) : at;
    }
    return s;
}

/* N numbers of the table. */
template <int N>
__device__ inline void load_angles(const tsi_cuda_rope_args &a, int64_t at, float (&to)[N])
{
    if (a.table_dtype == TS_DTYPE_F32 && ((uint64_t)a.table + at * 4) % 16 == 0) {
#pragma unroll
        for (int e = 0; e < N; e += 4) {
            float4 four = *(const float4 *)((const float *)a.table + at + e);
            to[e] = four.x, to[e + 1] = four.y, to[e + 2] = four.z, to[e + 3] = four.w;
        }
        return;
    }
#pragma unroll
    for (int e = 0; e < N; e++)
        to[e] = load_real<float>(a.table_dtype, a.table, at + e);
}

/* Chunks of 16 bytes of both halves. */
template <typename T> __device__ void rope_units(const tsi_cuda_rope_args &a)
{
    constexpr int N = 16 / sizeof(typename T::E);
    typedef typename T::E E;
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        spot s = spot_of(a, i);
        int64_t row = s.position * a.table_row + s.chunk * N;
        unit_of<E> x[2];
        x[0].unit = *(const uint4 *)((const E *)a.from.data + s.from);
        x[1].unit = *(const uint4 *)((const E *)a.from.data + s.from + a.half);
        float cosine[N], sine[N];
        load_angles<N>(a, row, cosine);
        load_angles<N>(a, row + a.half, sine);
#pragma unroll
        for (int e = 0; e < N; e++) {
            float c = cosine[e], n = a.inverse ? -sine[e] : sine[e];
            float one = T::load(x[0].element[e]), two = T::load(x[1].element[e]);
            x[0].element[e] = T::store(one * c - two * n);
            x[1].element[e] = T::store(two * c + one * n);
        }
        *(uint4 *)((E *)a.to.data + s.to) = x[0].unit;
        *(uint4 *)((E *)a.to.data + s.to + a.half) = x[1].unit;
    }
}

template <typename R> __device__ void rope_any(const tsi_cuda_rope_args &a)
{
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        spot s = spot_of(a, i);
        int64_t row = s.position * a.table_row;
        R c = load_real<R>(a.table_dtype, a.table, row + s.chunk * a.table_column);
        R n = load_real<R>(a.table_dtype, a.table, row + (a.half + s.chunk) * a.table_column);
        if (a.inverse) n = -n;
        R one = load_real<R>(a.dtype, a.from.data, s.from);
        R two = load_real<R>(a.dtype, a.from.data, s.from + a.half * a.from_column);
        store_real<R>(a.dtype, a.to.data, s.to, one * c - two * n);
        store_real<R>(a.dtype, a.to.data, s.to + a.half * a.to_column, two * c + one * n);
    }
}

TSI_KERNEL(rope_f32, tsi_cuda_rope_args)
{
    rope_units<as_f32>(a);
}

TSI_KERNEL(rope_bf16, tsi_cuda_rope_args)
{
    rope_units<as_bf16>(a);
}

TSI_KERNEL(rope_any_f32, tsi_cuda_rope_args)
{
    rope_any<float>(a);
}

TSI_KERNEL(rope_any_f64, tsi_cuda_rope_args)
{
    rope_any<double>(a);
}
