/* SPDX-License-Identifier: Apache-2.0 */
/* random.cu - random elements by global index (array/random.h says what they are), with the host's
 * operations in the host's order.
 *
 *   random_fill      any kind and dtype, an element a thread
 *   random_truth     1 with a probability, as bool; random_unit_*: from 0 up to 1: four neighbours,
 *                    which are one block of words, a thread
 *   dropout_*        the same words, x by them and the mask at once */
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/number.cuh"
#include "backend/cuda/kernels/real.cuh"
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

__device__ inline float unit_f32(uint32_t word)
{
    return (float)(int32_t)(word >> 8) * 0x1p-24f;
}

__device__ inline uint16_t unit_bf16(uint32_t word)
{
    return (uint16_t)(tsi_bits_of_f32((float)(int32_t)(word >> 24) * 0x1p-8f) >> 16);
}

__device__ inline void store_uniform(const tsi_random_recipe &r, const uint32_t *word, void *to,
                                     int64_t at)
{
    if (r.unit && r.dtype == TS_DTYPE_F32) {
        ((float *)to)[at] = unit_f32(word[0]);
    } else if (r.unit && r.dtype == TS_DTYPE_BF16) {
        ((uint16_t *)to)[at] = unit_bf16(word[0]);
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

/* One element a thread, of any kind and dtype. */
__device__ void fill_each(const tsi_cuda_random_args &a)
{
    const tsi_random_recipe &r = a.recipe;
    int64_t count = a.runs * a.length;
    for (int64_t i = first_item(); i < count; i += item_step()) {
        int64_t run = a.runs == 1 ? 0 : i / a.length, in = i - run * a.length;
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

/* ---- elements of one word: a block of words a thread, whose four elements are neighbours ----- */

enum { FOUR = 4 };

/* The four neighbours `nth` of a run: the first may begin before it, the last end behind it. */
struct quad {
    int64_t first, at; /* in the run, in the block */
    bool whole;
    tsi_philox_block drawn;
};

/* Its keys are an operand each, since they are what the kernel was called with. */
__device__ inline tsi_philox_block draw_four(const tsi_cuda_random_args &a, uint64_t nth)
{
    uint64_t low = a.recipe.offset + nth, high = a.recipe.stream;
    tsi_philox_block c = { { (uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high,
                             (uint32_t)(high >> 32) } };
#pragma unroll
    for (int round = 0; round < TSI_PHILOX_ROUNDS; round++)
        c = tsi_philox_round(c, a.key[round][0], a.key[round][1]);
    return c;
}

__device__ inline quad quad_at(const tsi_cuda_random_args &a, int64_t quads, int64_t i)
{
    quad q;
    int64_t run = a.runs == 1 ? 0 : i / quads, global = a.global + run * a.global_step;
    int64_t nth = global / FOUR + (i - run * quads);
    q.first = nth * FOUR - global;
    q.at = a.local + run * a.local_step + q.first;
    q.whole = q.first >= 0 && q.first + FOUR <= a.length;
    q.drawn = draw_four(a, (uint64_t)nth);
    return q;
}

template <int BYTES> struct unit_in;
template <> struct unit_in<4> {
    typedef unsigned type;
};
template <> struct unit_in<8> {
    typedef uint2 type;
};
template <> struct unit_in<16> {
    typedef uint4 type;
};

/* Moved as one unit; members one by one would be four accesses. */
template <typename V> union four {
    typedef typename unit_in<sizeof(V) * FOUR>::type whole;
    whole unit;
    V value[FOUR];
};

template <typename V> __device__ inline bool fits(const V *data, int64_t at)
{
    return (uintptr_t)(data + at) % sizeof(four<V>) == 0;
}

template <typename V>
__device__ inline void store_quad(V *to, const tsi_cuda_random_args &a, const quad &q,
                                  const four<V> &x)
{
    if (q.whole && fits(to, q.at)) {
        __stwb((typename four<V>::whole *)(to + q.at), x.unit);
        return;
    }
#pragma unroll
    for (int e = 0; e < FOUR; e++)
        if (q.first + e >= 0 && q.first + e < a.length) to[q.at + e] = x.value[e];
}

/* `of` makes an element of its word. */
template <typename V, typename F> __device__ void fill_quads(const tsi_cuda_random_args &a, F of)
{
    int64_t quads = tsi_cuda_quads(a.length), count = a.runs * quads;
    for (int64_t i = first_item(); i < count; i += item_step()) {
        quad q = quad_at(a, quads, i);
        four<V> x;
#pragma unroll
        for (int e = 0; e < FOUR; e++)
            x.value[e] = of(q.drawn.word[e]);
        store_quad((V *)a.to, a, q, x);
    }
}

TSI_KERNEL(random_fill, tsi_cuda_random_args)
{
    fill_each(a);
}

TSI_KERNEL(random_truth, tsi_cuda_random_args)
{
    uint64_t chance = (uint64_t)(a.recipe.a * 0x1p32);
    fill_quads<uint8_t>(a, [=](uint32_t word) { return (uint8_t)(word < chance); });
}

TSI_KERNEL(random_unit_f32, tsi_cuda_random_args)
{
    fill_quads<float>(a, [](uint32_t word) { return unit_f32(word); });
}

TSI_KERNEL(random_unit_bf16, tsi_cuda_random_args)
{
    fill_quads<uint16_t>(a, [](uint32_t word) { return unit_bf16(word); });
}

/* ---- dropout --------------------------------------------------------------------------------- */

template <typename V>
__device__ inline four<V> load_quad(const V *from, const tsi_cuda_random_args &a, const quad &q)
{
    four<V> x;
    if (q.whole && fits(from, q.at)) {
        x.unit = *(const typename four<V>::whole *)(from + q.at);
        return x;
    }
#pragma unroll
    for (int e = 0; e < FOUR; e++)
        x.value[e] = q.first + e >= 0 && q.first + e < a.length ? from[q.at + e] : V(0);
    return x;
}

__device__ inline float scaled(float x, const tsi_cuda_dropout_args &a)
{
    return f32_of_f64(f64_of_f32(x) * a.scale);
}

/* The product in f32 is within two of its last places of the true one, and rounds as that does
 * unless it is about as near to the middle of two numbers. */
__device__ inline uint16_t scaled(uint16_t x, const tsi_cuda_dropout_args &a)
{
    enum { MIDDLE = 0x8000, NEAR = 3 };
    float y = tsi_f32_of_bf16(x) * a.near_scale;
    uint32_t below = tsi_bits_of_f32(y) & 0xFFFFu;
    if (y == y && below - (MIDDLE - NEAR) > 2u * NEAR) return bf16_of(y);
    return tsi_bf16_of_f32(f32_odd_of_f64(f64_of_f32(tsi_f32_of_bf16(x)) * a.scale));
}

/* What is not kept is 0 whatever x is there. */
template <typename V> __device__ void drop(const tsi_cuda_dropout_args &a)
{
    uint64_t chance = (uint64_t)(a.draws.recipe.a * 0x1p32);
    int64_t quads = tsi_cuda_quads(a.draws.length), count = a.draws.runs * quads;
    for (int64_t i = first_item(); i < count; i += item_step()) {
        quad q = quad_at(a.draws, quads, i);
        four<V> x = load_quad((const V *)a.x, a.draws, q), y;
        four<uint8_t> kept;
#pragma unroll
        for (int e = 0; e < FOUR; e++) {
            kept.value[e] = q.drawn.word[e] < chance;
            y.value[e] = kept.value[e] ? scaled(x.value[e], a) : V(0);
        }
        store_quad((V *)a.y, a.draws, q, y);
        store_quad((uint8_t *)a.draws.to, a.draws, q, kept);
    }
}

TSI_KERNEL(dropout_f32, tsi_cuda_dropout_args)
{
    drop<float>(a);
}

TSI_KERNEL(dropout_bf16, tsi_cuda_dropout_args)
{
    drop<uint16_t>(a);
}

/* The host draws an f64 for each element, whatever the dtype. */
TSI_KERNEL(random_bernoulli, tsi_cuda_bernoulli_args)
{
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        int64_t at[TSI_CUDA_DIMS], from = 0, to = 0, global = 0;
        uint32_t word[4] = { 0, 0, 0, 0 };
        coordinates(a.space, i, at);
        for (int d = 0; d < a.space.ndim; d++) {
            from += at[d] * a.from.stride[d];
            to += at[d] * a.to.stride[d];
            global += tsi_cuda_index_at(&a.place[d], at[d]) * a.global[d];
        }
        draw(a.recipe, (uint64_t)global, word);
        double chance = load_wide(a.from_dtype, a.from.data, from).re;
        store_i64(a.to_dtype, a.to.data, to, uniform(a.recipe, word) < chance);
    }
}
