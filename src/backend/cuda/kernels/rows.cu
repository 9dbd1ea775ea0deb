/* SPDX-License-Identifier: Apache-2.0 */
/* rows.cu - softmax and log_softmax of contiguous rows, a block a row: the largest, the sum of
 * exponentials, the result. */
#include "backend/cuda/kernels/real.cuh"

template <typename T> __device__ void softmax_rows(const tsi_cuda_softmax_args &a)
{
    typedef typename T::E E;
    __shared__ float shared[32];
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const E *x = (const E *)a.x + row * a.length;
        E *y = (E *)a.y + row * a.length;
        float top = -INFINITY, sum = 0;
        for (int64_t c = threadIdx.x; c < a.length; c += blockDim.x) {
            float v = T::load(x[c]);
            top = top != top || top > v ? top : v;
        }
        top = block_max(top, shared);
        for (int64_t c = threadIdx.x; c < a.length; c += blockDim.x)
            sum += expf(T::load(x[c]) - top);
        sum = block_sum(sum, shared);
        float shift = top + logf(sum), by = 1.0f / sum;
        for (int64_t c = threadIdx.x; c < a.length; c += blockDim.x) {
            float v = T::load(x[c]);
            y[c] = T::store(a.log ? v - shift : expf(v - top) * by);
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
