/* SPDX-License-Identifier: Apache-2.0 */
/* group_norm.cu - groups of channels less their mean over their deviation, in f64: a block each,
 * which walks its elements three times.
 *
 * INV: the trees of the sums follow from the extents alone: the same bits on every GPU. */
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/number.cuh"
#include "backend/cuda/kernels/real.cuh"

/* The sum over a group of what differs from the center, or of its squares; all threads get it. */
__device__ inline double moment(const tsi_cuda_group_norm_args &a, int64_t base, double center,
                                bool squares, double *shared)
{
    const tsi_cuda_operand *const operands[1] = { &a.x };
    double sum = 0;
    for (int64_t i = threadIdx.x; i < a.inner.count; i += blockDim.x) {
        int64_t at[1];
        place(a.inner, i, operands, at);
        double d = load_wide(a.dtype, a.x.data, base + at[0]).re - center;
        sum += squares ? d * d : d;
    }
    return block_sum(sum, shared);
}

__device__ inline double of_channel(const tsi_cuda_operand &w, int32_t dtype, int64_t channel,
                                    double otherwise)
{
    return w.data ? load_wide(dtype, w.data, channel * w.stride[0]).re : otherwise;
}

TSI_KERNEL_BOUNDED(group_norm, tsi_cuda_group_norm_args, 512)
{
    __shared__ double shared[32];
    const tsi_cuda_operand *const operands[3] = { &a.x, &a.y, &a.channel };
    for (int64_t item = blockIdx.x; item < a.batch * a.groups; item += gridDim.x) {
        int64_t n = item / a.groups, g = item - n * a.groups;
        int64_t x = n * a.x_batch + g * a.x_group, y = n * a.y_batch + g * a.y_group;
        double count = (double)a.inner.count, mean = moment(a, x, 0, false, shared) / count;
        double scale = 1.0 / sqrt(moment(a, x, mean, true, shared) / count + a.eps);
        for (int64_t i = threadIdx.x; i < a.inner.count; i += blockDim.x) {
            int64_t at[3];
            place(a.inner, i, operands, at);
            int64_t channel = g * a.channels + at[2];
            double v = (load_wide(a.dtype, a.x.data, x + at[0]).re - mean) * scale;
            v = v * of_channel(a.weight, a.weight_dtype, channel, 1.0) +
                of_channel(a.bias, a.bias_dtype, channel, 0.0);
            store_f64(a.dtype, a.y.data, y + at[1], v, 0);
        }
        if (threadIdx.x != 0) continue;
        store_f64(a.sum_dtype, a.mean.data, n * a.mean.stride[0] + g * a.mean.stride[1], mean, 0);
        store_f64(a.sum_dtype, a.scale.data, n * a.scale.stride[0] + g * a.scale.stride[1], scale,
                  0);
    }
}
