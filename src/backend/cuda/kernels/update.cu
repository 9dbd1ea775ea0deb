/* SPDX-License-Identifier: Apache-2.0 */
/* update.cu - AdamW of all parameters in one launch, and sums of squares of all gradients.
 *
 * A block has one chunk of one item. The operations of an element are the host's in its order, not
 * fused: f32 updates have its bits. */
#include "backend/cuda/kernels/real.cuh"

__device__ inline const tsi_cuda_update_item &item_of(const tsi_cuda_update_args &a, int64_t chunk)
{
    int64_t low = 0, high = a.items - 1;
    while (low < high) { /* the last one that begins at or before the chunk */
        int64_t middle = (low + high + 1) / 2;
        if (a.item[middle].first_chunk <= chunk)
            low = middle;
        else
            high = middle - 1;
    }
    return a.item[low];
}

__device__ inline void adamw(const tsi_cuda_update_args &a, float *p, float g, float *m, float *v)
{
    float b1 = (float)a.beta1, b2 = (float)a.beta2;
    float c1 = (float)(1.0 - a.beta1), c2 = (float)(1.0 - a.beta2);
    *m = b1 * *m + c1 * g;
    *v = b2 * *v + c2 * g * g;
    *p = (float)a.decay * *p - (float)a.rate * *m / (sqrtf(*v) * (float)a.root + (float)a.epsilon);
}

extern "C" __global__ void update_adamw(const __grid_constant__ tsi_cuda_update_args a)
{
    const tsi_cuda_update_item &t = item_of(a, blockIdx.x);
    int64_t begin = (blockIdx.x - t.first_chunk) * TSI_CUDA_UPDATE_CHUNK;
    int64_t end = begin + TSI_CUDA_UPDATE_CHUNK < t.count ? begin + TSI_CUDA_UPDATE_CHUNK : t.count;
    uint64_t bits =
        (uint64_t)t.part[0] | (uint64_t)t.part[1] | (uint64_t)t.part[2] | (uint64_t)t.part[3];
    bool plain = bits % 16 == 0;
    for (int k = 0; k < 4; k++)
        plain = plain && t.dtype[k] == TS_DTYPE_F32;
    int64_t units = plain ? (end - begin) / 4 : 0;
    for (int64_t u = threadIdx.x; u < units; u += blockDim.x) {
        unit_of<float> x[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            x[k].unit = ((const uint4 *)((const float *)t.part[k] + begin))[u];
#pragma unroll
        for (int e = 0; e < 4; e++)
            adamw(a, &x[0].element[e], x[1].element[e], &x[2].element[e], &x[3].element[e]);
        ((uint4 *)((float *)t.part[0] + begin))[u] = x[0].unit;
        ((uint4 *)((float *)t.part[2] + begin))[u] = x[2].unit;
        ((uint4 *)((float *)t.part[3] + begin))[u] = x[3].unit;
    }
    for (int64_t i = begin + 4 * units + threadIdx.x; i < end; i += blockDim.x) {
        float x[4];
        for (int k = 0; k < 4; k++)
            x[k] = load_real<float>(t.dtype[k], t.part[k], i);
        adamw(a, &x[0], x[1], &x[2], &x[3]);
        store_real<float>(t.dtype[0], t.part[0], i, x[0]);
        store_real<float>(t.dtype[2], t.part[2], i, x[2]);
        store_real<float>(t.dtype[3], t.part[3], i, x[3]);
    }
}

extern "C" __global__ void update_squares(const __grid_constant__ tsi_cuda_update_args a)
{
    __shared__ double shared[32];
    const tsi_cuda_update_item &t = item_of(a, blockIdx.x);
    int64_t begin = (blockIdx.x - t.first_chunk) * TSI_CUDA_UPDATE_CHUNK;
    int64_t end = begin + TSI_CUDA_UPDATE_CHUNK < t.count ? begin + TSI_CUDA_UPDATE_CHUNK : t.count;
    double sum = 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
        double x = load_real<double>(t.dtype[0], t.part[0], i);
        sum += x * x;
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) a.partial[blockIdx.x] = sum;
}

/* One block: item after item. */
extern "C" __global__ void update_squares_sum(const __grid_constant__ tsi_cuda_update_args a)
{
    __shared__ double shared[32];
    for (int64_t i = 0; i < a.items; i++) {
        int64_t end = i + 1 < a.items ? a.item[i + 1].first_chunk : a.chunks;
        double sum = 0;
        for (int64_t c = a.item[i].first_chunk + threadIdx.x; c < end; c += blockDim.x)
            sum += a.partial[c];
        sum = block_sum(sum, shared);
        if (threadIdx.x == 0) *(double *)a.item[i].part[1] += sum;
    }
}
