/* SPDX-License-Identifier: Apache-2.0 */
/* random.cu - random elements by global index (array/random.h says what they are): one a thread,
 * from its own words, with the host's operations in the host's order. */
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/number.cuh"
#include "base/philox.h"

/* The words of an element; k divides 4 or is a multiple of it, so they are in one block or two. */
__device__ inline void draw(const tsi_random_recipe &r, uint64_t global, uint32_t *word)
{
    uint64_t first = global * (uint64_t)r.words;
    tsi_philox_block block = tsi_philox(r.seed, r.offset + first / 4, r.stream);
    for (int i = 0; i < r.words && i < 4; i++)
        word[i] = block.word[(first + i) % 4];
}

__device__ inline uint64_t top_53(const uint32_t *word)
{
    return ((uint64_t)word[0] << 21) | (word[1] >> 11);
}

__device__ inline double uniform(const tsi_random_recipe &r, const uint32_t *word)
{
    double unit = tsi_f64_of_bits((uint64_t)(1023 - 32 + r.drop) << 52);
    double u =
        r.wide ? (double)(int64_t)top_53(word) * 0x1p-53 : tsi_f64_of_u52(word[0] >> r.drop) * unit;
    double x = r.a + (r.b - r.a) * u;
    return x < r.top ? x : r.top;
}

__device__ inline void store_uniform(const tsi_random_recipe &r, const uint32_t *word, void *to,
                                     int64_t at)
{
    if (r.unit && r.dtype == TS_DTYPE_F32) {
        ((float *)to)[at] = (float)(int32_t)(word[0] >> 8) * 0x1p-24f;
    } else if (r.unit && r.dtype == TS_DTYPE_BF16) {
        float u = (float)(int32_t)(word[0] >> 24) * 0x1p-8f;
        ((uint16_t *)to)[at] = (uint16_t)(tsi_bits_of_f32(u) >> 16);
    } else {
        double im = r.is_complex ? uniform(r, word + 1 + r.wide) : 0;
        store_f64(r.dtype, to, at, uniform(r, word), im);
    }
}

__device__ inline void store_normal(const tsi_random_recipe &r, const uint32_t *word, void *to,
                                    int64_t at)
{
    double u, v, cosine, sine;
    if (r.wide) {
        u = (double)(int64_t)(top_53(word) + 1) * 0x1p-53;
        v = (double)(int64_t)top_53(word + 2) * 0x1p-53;
    } else {
        u = (tsi_f64_of_u52(word[0]) + 1) * 0x1p-32;
        v = tsi_f64_of_u52(word[1]) * 0x1p-32;
    }
    if (!r.wide && !r.is_complex) {
        double square = -2 * tsi_log_short(u);
        double radius = sqrt(square > 0 ? square : 0);
        store_f64(r.dtype, to, at, r.a + r.b * (radius * tsi_cos_turn_short(v)), 0);
        return;
    }
    double square = -2 * tsi_log(u), radius = sqrt(square > 0 ? square : 0);
    tsi_cos_sin_turn(v, &cosine, &sine);
    if (!r.is_complex) {
        store_f64(r.dtype, to, at, r.a + r.b * (radius * cosine), 0);
        return;
    }
    double part = r.b * 0x1.6a09e667f3bcdp-1; /* sqrt(1/2) */
    store_f64(r.dtype, to, at, r.a + part * (radius * cosine), part * (radius * sine));
}

__device__ inline void store_integer(const tsi_random_recipe &r, const uint32_t *word, void *to,
                                     int64_t at)
{
    uint64_t low = (uint64_t)r.low, range = (uint64_t)r.high - low;
    uint64_t both = (uint64_t)word[0] << 32 | word[1];
    uint64_t x = r.words == 1 ? (word[0] * range) >> 32 : __umul64hi(both, range);
    store_i64(r.dtype, to, at, (int64_t)(low + x));
}

TSI_KERNEL(random_fill, tsi_cuda_random_args)
{
    const tsi_random_recipe &r = a.recipe;
    int64_t count = a.runs * a.length;
    for (int64_t i = first_item(); i < count; i += item_step()) {
        int64_t run = i / a.length, in = i - run * a.length;
        int64_t at = a.local + run * a.local_step + in;
        uint32_t word[4] = { 0, 0, 0, 0 };
        draw(r, (uint64_t)(a.global + run * a.global_step + in), word);
        switch (r.kind) {
        case TSI_RANDOM_UNIFORM:
            store_uniform(r, word, a.to, at);
            break;
        case TSI_RANDOM_NORMAL:
            store_normal(r, word, a.to, at);
            break;
        case TSI_RANDOM_INTEGER:
            store_integer(r, word, a.to, at);
            break;
        default:
            store_i64(r.dtype, a.to, at, word[0] < (uint64_t)(r.a * 0x1p32));
            break;
        }
    }
}
