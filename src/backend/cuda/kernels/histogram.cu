/* SPDX-License-Identifier: Apache-2.0 */
/* histogram.cu - how many elements fall into each of some bins, and how many different ones there
 * are. Counts are whole numbers: the order in which they are added does not show. */
#include "backend/cuda/kernels/complain.cuh"
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/number.cuh"
#include "backend/cuda/kernels/real.cuh"

/* Larger keys for larger numbers; none is 0. */
__device__ inline uint64_t key_of(double value)
{
    uint64_t bits = tsi_bits_of_f64(value), top = (uint64_t)1 << 63;
    return bits & top ? ~bits : bits | top;
}

__device__ inline double value_of(uint64_t key)
{
    uint64_t top = (uint64_t)1 << 63;
    return tsi_f64_of_bits(key & top ? key ^ top : ~key);
}

/* The extremes of all that are numbers. */
TSI_KERNEL(histogram_extremes, tsi_cuda_histogram_args)
{
    __shared__ double shared[32];
    const tsi_cuda_operand *const operands[1] = { &a.from };
    double low = INFINITY, high = -INFINITY;
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        int64_t at[1];
        place(a.space, i, operands, at);
        double value = load_wide(a.from_dtype, a.from.data, at[0]).re;
        if (value < low) low = value;
        if (value > high) high = value;
    }
    low = -block_max(-low, shared);
    high = block_max(high, shared);
    if (threadIdx.x != 0 || !(low <= high)) return;
    atomicMax((unsigned long long *)&a.extreme[0], (unsigned long long)key_of(high));
    atomicMax((unsigned long long *)&a.extreme[1], (unsigned long long)key_of(-low));
}

/* The bounds of bins: what is given, or the extremes of the numbers. */
struct bounds {
    double min, max;
};

__device__ inline bounds bounds_of(const tsi_cuda_histogram_args &a)
{
    bounds b = { a.min, a.max };
    if (!a.extreme) return b;
    if (a.extreme[0]) b = { -value_of(a.extreme[1]), value_of(a.extreme[0]) };
    if (b.min == b.max) b = { b.min - 1, b.max + 1 }; /* all alike: a bin on each side */
    return b;
}

/* The bin of an element; -1: none. */
__device__ inline int64_t bin_of(const tsi_cuda_histogram_args &a, bounds b, int64_t item,
                                 int64_t offset)
{
    wide w = load_wide(a.from_dtype, a.from.data, offset);
    if (a.whole) {
        if (w.whole >= 0 && w.whole < a.bins) return w.whole;
        complain(a.asker, item, w.whole);
        return -1;
    }
    if (!(w.re >= b.min && w.re <= b.max)) return -1;
    int64_t bin = (int64_t)((w.re - b.min) / (b.max - b.min) * (double)a.bins);
    return bin < 0 ? 0 : bin < a.bins ? bin : a.bins - 1;
}

TSI_KERNEL(histogram_count, tsi_cuda_histogram_args)
{
    TSI_BLOCK_MEMORY(uint32_t, own);
    const tsi_cuda_operand *const operands[1] = { &a.from };
    bounds within = bounds_of(a);
    for (int64_t b = threadIdx.x; a.shared && b < a.bins; b += blockDim.x)
        own[b] = 0;
    __syncthreads();
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        int64_t at[1];
        place(a.space, i, operands, at);
        int64_t bin = bin_of(a, within, i, at[0]);
        if (bin >= 0 && a.shared) atomicAdd(&own[bin], 1u);
        if (bin >= 0 && !a.shared) atomicAdd((unsigned long long *)&a.tally[bin], 1ull);
    }
    __syncthreads();
    for (int64_t b = threadIdx.x; a.shared && b < a.bins; b += blockDim.x)
        if (own[b]) atomicAdd((unsigned long long *)&a.tally[b], (unsigned long long)own[b]);
}

TSI_KERNEL(histogram_store, tsi_cuda_histogram_args)
{
    for (int64_t b = first_item(); b < a.bins; b += item_step())
        store_i64(a.to_dtype, a.to, b * a.to_step, (int64_t)a.tally[b]);
}

/* ---- different values ------------------------------------------------------------------------ */

__device__ inline uint64_t scatter_bits(uint64_t x)
{
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdull;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

/* Whether a key is here for the first time. The key that an empty slot has, which no real number
 * has, has a slot of its own behind the table. */
__device__ inline bool is_new(const tsi_cuda_unique_args &a, uint64_t key)
{
    const unsigned long long empty = ~0ull;
    unsigned long long *table = (unsigned long long *)a.table;
    if (key == empty) return atomicExch(&table[a.slots], 0ull) != 0;
    for (uint64_t at = scatter_bits(key);; at++) {
        unsigned long long *slot = &table[at & (uint64_t)(a.slots - 1)];
        unsigned long long seen = atomicCAS(slot, empty, (unsigned long long)key);
        if (seen == empty || seen == key) return seen == empty;
    }
}

TSI_KERNEL(unique_count, tsi_cuda_unique_args)
{
    const tsi_cuda_operand *const operands[1] = { &a.from };
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        int64_t at[1];
        place(a.space, i, operands, at);
        wide w = load_wide(a.dtype, a.from.data, at[0]);
        uint64_t key = a.whole ? (uint64_t)w.whole : tsi_bits_of_f64(w.re == 0 ? 0.0 : w.re);
        bool none = !a.whole && w.re != w.re; /* such are all different */
        if (none || is_new(a, key)) atomicAdd((unsigned long long *)a.count, 1ull);
    }
}
