/* SPDX-License-Identifier: Apache-2.0 */
/* sort.cu - lines in order, a block each, in shared memory: sort, topk, and masks of the largest.
 *
 * Numbers become whole keys in the order of the reference: a NaN is larger than any number, equal
 * ones keep their order. Values are copied from where they were, bit by bit. */
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/number.cuh"

/* Larger keys for larger numbers; for smaller ones if the order is descending. */
__device__ inline uint64_t key_of(const tsi_cuda_sort_args &a, int64_t offset)
{
    const uint64_t top = (uint64_t)1 << 63;
    wide w = load_wide(a.dtype, a.from.data, offset);
    uint64_t key;
    if (a.whole) {
        key = (uint64_t)w.whole ^ top;
    } else if (w.re != w.re) {
        key = ~(uint64_t)0;
    } else {
        uint64_t bits = tsi_bits_of_f64(w.re == 0 ? 0.0 : w.re);
        key = bits & top ? ~bits : bits | top;
    }
    return a.descending ? ~key : key;
}

__device__ inline void copy_element(int32_t dtype, void *to, int64_t i, const void *from, int64_t j)
{
    switch (dtype) {
    case TS_DTYPE_F64:
    case TS_DTYPE_I64:
        ((uint64_t *)to)[i] = ((const uint64_t *)from)[j];
        break;
    case TS_DTYPE_F32:
    case TS_DTYPE_I32:
        ((uint32_t *)to)[i] = ((const uint32_t *)from)[j];
        break;
    case TS_DTYPE_BF16:
    case TS_DTYPE_F16:
    case TS_DTYPE_I16:
        ((uint16_t *)to)[i] = ((const uint16_t *)from)[j];
        break;
    default:
        ((uint8_t *)to)[i] = ((const uint8_t *)from)[j];
        break;
    }
}

/* Bitonic, over pairs (key, place): what lies behind the line is the largest of all. */
__device__ inline void sort_shared(uint64_t *key, int32_t *at, int padded)
{
    for (int size = 2; size <= padded; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < padded; i += blockDim.x) {
                int j = i ^ step;
                if (j <= i) continue;
                bool later = key[i] > key[j] || (key[i] == key[j] && at[i] > at[j]);
                if (later != ((i & size) == 0)) continue;
                uint64_t k = key[i];
                int32_t p = at[i];
                key[i] = key[j], at[i] = at[j];
                key[j] = k, at[j] = p;
            }
        }
    __syncthreads();
}

TSI_KERNEL_BOUNDED(sort_lines, tsi_cuda_sort_args, 512)
{
    TSI_BLOCK_MEMORY(uint64_t, key);
    int32_t *at = (int32_t *)(key + a.padded);
    const tsi_cuda_operand *const operands[3] = { &a.from, &a.values, &a.places };
    for (int64_t line = blockIdx.x; line < a.space.count; line += gridDim.x) {
        int64_t base[3];
        place(a.space, line, operands, base);
        __syncthreads();
        for (int i = threadIdx.x; i < a.padded; i += blockDim.x) {
            key[i] = i < a.length ? key_of(a, base[0] + i * a.from_step) : ~(uint64_t)0;
            at[i] = i < a.length ? i : 0x7fffffff;
        }
        sort_shared(key, at, (int)a.padded);
        int64_t shown = a.mask ? a.length : a.wanted;
        for (int i = threadIdx.x; i < shown; i += blockDim.x) {
            if (a.mask) {
                store_i64(a.dtype, a.values.data, base[1] + at[i] * a.values_step, i < a.wanted);
                continue;
            }
            copy_element(a.dtype, a.values.data, base[1] + i * a.values_step, a.from.data,
                         base[0] + at[i] * a.from_step);
            ((int64_t *)a.places.data)[base[2] + i * a.places_step] = at[i];
        }
    }
}
