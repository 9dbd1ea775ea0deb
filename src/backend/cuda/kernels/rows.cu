/* SPDX-License-Identifier: Apache-2.0 */
/* rows.cu - softmax and log_softmax of contiguous rows, a block a row: the largest with the sum
 * of exponentials, then the result. */
#include "backend/cuda/kernels/real.cuh"

/* A unit, or one element where rows do not lie on 16 bytes; what is missing is -infinity. */
template <typename T, int N>
__device__ inline void load_unit(const typename T::E *x, int64_t c, bool units, float *out)
{
    unit_of<typename T::E> in;
    if (units)
        in.unit = *(const uint4 *)(x + c);
    else
        in.element[0] = x[c];
#pragma unroll
    for (int e = 0; e < N; e++)
        out[e] = units || e == 0 ? T::load(in.element[e]) : -INFINITY;
}

template <typename T> __device__ void softmax_rows(const tsi_cuda_softmax_args &a)
{
    constexpr int N = 16 / sizeof(typename T::E);
    typedef typename T::E E;
    __shared__ float shared[32];
    bool units = a.length % N == 0 && ((uint64_t)a.x | (uint64_t)a.y) % 16 == 0;
    int64_t step = units ? N : 1, first = threadIdx.x * step, next = blockDim.x * step;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const E *x = (const E *)a.x + row * a.length;
        E *y = (E *)a.y + row * a.length;
        float top = -INFINITY, sum = 0, v[N];
        for (int64_t c = first; c < a.length; c += next) { /* the sum follows the largest so far */
            load_unit<T, N>(x, c, units, v);
            float most = top;
#pragma unroll
            for (int e = 0; e < N; e++)
                most = most != most || most > v[e] ? most : v[e];
            if (most != top) sum *= expf(top - most);
            top = most;
#pragma unroll
            for (int e = 0; e < N; e++)
                if (units || e == 0) sum += expf(v[e] - top);
        }
        float all = block_max(top, shared);
        sum = block_sum(top == -INFINITY && all != top ? 0.0f : sum * expf(top - all), shared);
        float shift = all + logf(sum), by = 1.0f / sum;
        for (int64_t c = first; c < a.length; c += next) {
            unit_of<E> out;
            load_unit<T, N>(x, c, units, v);
#pragma unroll
            for (int e = 0; e < N; e++)
                out.element[e] = T::store(a.log ? v[e] - shift : expf(v[e] - all) * by);
            if (units)
                *(uint4 *)(y + c) = out.unit;
            else
                y[c] = out.element[0];
        }
    }
}

extern "C" __global__ void softmax_f32(const __grid_constant__ tsi_cuda_softmax_args a)
{
    softmax_rows<as_f32>(a);
}

extern "C" __global__ void softmax_bf16(const __grid_constant__ tsi_cuda_softmax_args a)
{
    softmax_rows<as_bf16>(a);
}
