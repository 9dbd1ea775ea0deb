/* SPDX-License-Identifier: Apache-2.0 */
/* update.cu - AdamW or SGD of all parameters in one launch, sums of squares of all gradients, and
 * the numbers by which the one follows from the other.
 *
 * A block has one chunk of one item. The operations of an element are the host's in its order, not
 * fused: f32 updates have its bits. The mirror is the parameter rounded once more, from registers.
 */
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/real.cuh"
#include "op/nn/control.h"

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

/* ---- AdamW ----------------------------------------------------------------------------------- */

/* The numbers of one step, as the host makes them. */
template <typename R> struct numbers {
    R b1, b2, c1, c2, decay, rate, root, epsilon, factor;
};

template <typename R> __device__ inline numbers<R> numbers_of(const tsi_cuda_update_args &a)
{
    const double *c = a.control;
    double lr = c ? c[TSI_CONTROL_RATE] : a.lr;
    double first = c ? c[TSI_CONTROL_CORRECTION1] : a.correction1;
    double second = c ? c[TSI_CONTROL_CORRECTION2] : a.correction2;
    numbers<R> n;
    n.b1 = (R)a.beta1, n.b2 = (R)a.beta2;
    n.c1 = (R)(1.0 - a.beta1), n.c2 = (R)(1.0 - a.beta2);
    n.decay = (R)(1.0 - lr * a.weight_decay);
    n.rate = (R)(lr / first);
    n.root = (R)(1.0 / sqrt(second));
    n.epsilon = (R)a.epsilon;
    n.factor = (R)(c ? c[TSI_CONTROL_FACTOR] : a.factor);
    return n;
}

template <typename R> __device__ inline void adamw(const numbers<R> &n, R *p, R grad, R *m, R *v)
{
    R g = n.factor * grad;
    *m = n.b1 * *m + n.c1 * g;
    *v = n.b2 * *v + n.c2 * g * g;
    *p = n.decay * *p - n.rate * *m / (sqrt(*v) * n.root + n.epsilon);
}

/* ---- moments in bf16, rounded by chance -------------------------------------------------------
 */

__device__ inline uint64_t index_of(const tsi_cuda_update_item &t, int64_t i)
{
    if (t.inner == 0) return (uint64_t)(t.base + i);
    return (uint64_t)(t.base + i / t.inner * t.outer + i % t.inner);
}

__device__ inline uint64_t key_of(const tsi_cuda_update_args &a, const tsi_cuda_update_item &t)
{
    double steps = a.control ? a.control[TSI_CONTROL_STEPS] : a.steps;
    return tsi_noise_key(a.noise, steps, t.salt);
}

__device__ inline bool is_by_chance(const tsi_cuda_update_args &a, const tsi_cuda_update_item &t)
{
    return a.noise && t.dtype[2] == TS_DTYPE_BF16 && t.dtype[3] == TS_DTYPE_BF16;
}

/* f32 and bf16 as named, eight elements at once: 22 bytes of each cross the memory. */
enum { NARROW = 8 };
struct narrow_unit {
    unit_of<float> p[2], g[2];
    unit_of<uint16_t> m, v;
};

__device__ inline void load_narrow(narrow_unit &to, const tsi_cuda_update_item &t, int64_t i)
{
#pragma unroll
    for (int k = 0; k < 2; k++) {
        to.p[k].unit = __ldcs((const uint4 *)((const float *)t.part[0] + i) + k);
        to.g[k].unit = __ldcs((const uint4 *)((const float *)t.part[1] + i) + k);
    }
    to.m.unit = __ldcs((const uint4 *)((const uint16_t *)t.part[2] + i));
    to.v.unit = __ldcs((const uint4 *)((const uint16_t *)t.part[3] + i));
}

/* Of neighbours, which may lie in two rows. */
__device__ inline void noise_of(uint32_t (&to)[NARROW], const tsi_cuda_update_item &t, uint64_t key,
                                int64_t i)
{
    uint64_t index = index_of(t, i);
    bool one_row = t.inner == 0 || i % t.inner + NARROW <= t.inner;
    if (!one_row) {
        for (int e = 0; e < NARROW; e++)
            to[e] = tsi_noise_at(key, index_of(t, i + e));
        return;
    }
#pragma unroll
    for (int e = 0; e < NARROW; e++)
        to[e] = tsi_noise_at(key, index + e);
}

__device__ inline void adamw_narrow_unit(const numbers<float> &n, const tsi_cuda_update_item &t,
                                         uint64_t key, narrow_unit &x, int64_t i)
{
    unit_of<uint16_t> half;
    uint32_t noise[NARROW];
    noise_of(noise, t, key, i);
#pragma unroll
    for (int e = 0; e < NARROW; e++) {
        float first = tsi_f32_of_bf16(x.m.element[e]), second = tsi_f32_of_bf16(x.v.element[e]);
        float &p = x.p[e / 4].element[e % 4];
        adamw<float>(n, &p, x.g[e / 4].element[e % 4], &first, &second);
        x.m.element[e] = tsi_bf16_by_chance(__float_as_uint(first), noise[e]);
        x.v.element[e] = tsi_bf16_by_chance(__float_as_uint(second), noise[e] >> 16);
        half.element[e] = tsi_bf16_of_f32(p);
    }
#pragma unroll
    for (int k = 0; k < 2; k++)
        __stcs((uint4 *)((float *)t.part[0] + i) + k, x.p[k].unit);
    __stcs((uint4 *)((uint16_t *)t.part[2] + i), x.m.unit);
    __stcs((uint4 *)((uint16_t *)t.part[3] + i), x.v.unit);
    if (t.part[4]) *(uint4 *)((uint16_t *)t.part[4] + i) = half.unit;
}

/* The noise takes as long as the memory: the next unit is on its way while one is computed. */
__device__ inline void adamw_narrow(const tsi_cuda_update_args &a, const tsi_cuda_update_item &t,
                                    int64_t begin, int64_t units)
{
    const numbers<float> n = numbers_of<float>(a);
    const uint64_t key = key_of(a, t);
    narrow_unit now, next;
    int64_t u = threadIdx.x;
    if (u < units) load_narrow(now, t, begin + NARROW * u);
    for (; u < units; u += blockDim.x) {
        if (u + blockDim.x < units) load_narrow(next, t, begin + NARROW * (u + blockDim.x));
        adamw_narrow_unit(n, t, key, now, begin + NARROW * u);
        now = next;
    }
}

/* Any dtypes, element by element. */
template <typename R>
__device__ inline void adamw_range(const tsi_cuda_update_args &a, const tsi_cuda_update_item &t,
                                   int64_t begin, int64_t end)
{
    const numbers<R> n = numbers_of<R>(a);
    const bool chance = is_by_chance(a, t);
    const uint64_t key = chance ? key_of(a, t) : 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
        R x[4];
        for (int k = 0; k < 4; k++)
            x[k] = load_real<R>(t.dtype[k], t.part[k], i);
        adamw<R>(n, &x[0], x[1], &x[2], &x[3]);
        store_real<R>(t.dtype[0], t.part[0], i, x[0]);
        if (chance) {
            uint32_t noise = tsi_noise_at(key, index_of(t, i));
            ((uint16_t *)t.part[2])[i] = tsi_bf16_by_chance(__float_as_uint((float)x[2]), noise);
            ((uint16_t *)t.part[3])[i] =
                tsi_bf16_by_chance(__float_as_uint((float)x[3]), noise >> 16);
        } else {
            store_real<R>(t.dtype[2], t.part[2], i, x[2]);
            store_real<R>(t.dtype[3], t.part[3], i, x[3]);
        }
        if (t.part[4])
            store_real<R>(t.dtype[4], t.part[4], i, load_real<R>(t.dtype[0], t.part[0], i));
    }
}

/* All f32 and on 16 bytes, a bf16 mirror or none: four elements at once. */
__device__ inline bool is_plain(const tsi_cuda_update_item &t, int32_t moments)
{
    uint64_t bits = (uint64_t)t.part[4] * (moments == TS_DTYPE_F32 ? 2 : 1); /* on 8 bytes, or 16 */
    bool plain = !t.part[4] || t.dtype[4] == TS_DTYPE_BF16;
    for (int k = 0; k < 4; k++) {
        bits |= (uint64_t)t.part[k];
        plain = plain && t.dtype[k] == (k < 2 ? TS_DTYPE_F32 : moments);
    }
    return plain && bits % 16 == 0;
}

__device__ inline void adamw_unit(const numbers<float> &n, const tsi_cuda_update_item &t,
                                  unit_of<float> (&x)[4], int64_t i)
{
#pragma unroll
    for (int e = 0; e < 4; e++)
        adamw<float>(n, &x[0].element[e], x[1].element[e], &x[2].element[e], &x[3].element[e]);
    __stcs((uint4 *)((float *)t.part[0] + i), x[0].unit);
    __stcs((uint4 *)((float *)t.part[2] + i), x[2].unit);
    __stcs((uint4 *)((float *)t.part[3] + i), x[3].unit);
    if (!t.part[4]) return;
    ushort4 half;
    half.x = tsi_bf16_of_f32(x[0].element[0]);
    half.y = tsi_bf16_of_f32(x[0].element[1]);
    half.z = tsi_bf16_of_f32(x[0].element[2]);
    half.w = tsi_bf16_of_f32(x[0].element[3]);
    *(ushort4 *)((uint16_t *)t.part[4] + i) = half;
}

/* SIDE units of a thread are on their way together before the first is written. */
template <int SIDE>
__device__ inline void adamw_units(const tsi_cuda_update_args &a, const tsi_cuda_update_item &t,
                                   int64_t begin, int64_t units)
{
    const numbers<float> n = numbers_of<float>(a);
    for (int64_t u = threadIdx.x; u < units; u += SIDE * (int64_t)blockDim.x) {
        unit_of<float> x[SIDE][4];
#pragma unroll
        for (int s = 0; s < SIDE; s++) {
            int64_t at = u + s * (int64_t)blockDim.x;
            if (at >= units) continue;
#pragma unroll
            for (int k = 0; k < 4; k++)
                x[s][k].unit = __ldcs((const uint4 *)((const float *)t.part[k] + begin) + at);
        }
#pragma unroll
        for (int s = 0; s < SIDE; s++) {
            int64_t at = u + s * (int64_t)blockDim.x;
            if (at < units) adamw_unit(n, t, x[s], begin + 4 * at);
        }
    }
}

/* CHANCE: moments may be bf16 by chance, whose loop wants more registers than the others. */
template <bool CHANCE> __device__ inline void adamw_chunk(const tsi_cuda_update_args &a)
{
    if (a.control && a.control[TSI_CONTROL_GO] == 0.0) return;
    const tsi_cuda_update_item &t = item_of(a, blockIdx.x);
    int64_t begin = (blockIdx.x - t.first_chunk) * TSI_CUDA_UPDATE_CHUNK;
    int64_t end = begin + TSI_CUDA_UPDATE_CHUNK < t.count ? begin + TSI_CUDA_UPDATE_CHUNK : t.count;
    bool narrow = CHANCE && is_by_chance(a, t) && is_plain(t, TS_DTYPE_BF16);
    bool plain = narrow || is_plain(t, TS_DTYPE_F32);
    int64_t each = narrow ? NARROW : 4, units = plain ? (end - begin) / each : 0;
    if constexpr (CHANCE) {
        if (narrow) adamw_narrow(a, t, begin, units);
    }
    if (plain && !narrow) adamw_units<CHANCE ? 1 : 2>(a, t, begin, units);
    if (t.dtype[0] == TS_DTYPE_F64)
        adamw_range<double>(a, t, begin, end);
    else if (begin + each * units < end)
        adamw_range<float>(a, t, begin + each * units, end);
}

TSI_KERNEL(update_adamw, tsi_cuda_update_args)
{
    adamw_chunk<false>(a);
}

TSI_KERNEL(update_adamw_by_chance, tsi_cuda_update_args)
{
    adamw_chunk<true>(a);
}

/* ---- SGD: any dtypes, element by element ----------------------------------------------------- */

template <typename R>
__device__ inline void sgd_range(const tsi_cuda_update_args &a, const tsi_cuda_update_item &t,
                                 int64_t begin, int64_t end)
{
    const double *c = a.control;
    R lr = (R)(c ? c[TSI_CONTROL_RATE] : a.lr), mu = (R)a.momentum, wd = (R)a.weight_decay;
    R factor = (R)(c ? c[TSI_CONTROL_FACTOR] : a.factor);
    bool first = c ? c[TSI_CONTROL_STEPS] == 1.0 : a.first != 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
        R p = load_real<R>(t.dtype[0], t.part[0], i);
        R d = factor * load_real<R>(t.dtype[1], t.part[1], i) + wd * p;
        if (t.part[2]) {
            R m = first ? d : mu * load_real<R>(t.dtype[2], t.part[2], i) + d;
            store_real<R>(t.dtype[2], t.part[2], i, m);
            d = a.nesterov ? d + mu * m : m;
        }
        store_real<R>(t.dtype[0], t.part[0], i, p - lr * d);
        if (t.part[4])
            store_real<R>(t.dtype[4], t.part[4], i, load_real<R>(t.dtype[0], t.part[0], i));
    }
}

TSI_KERNEL(update_sgd, tsi_cuda_update_args)
{
    if (a.control && a.control[TSI_CONTROL_GO] == 0.0) return;
    const tsi_cuda_update_item &t = item_of(a, blockIdx.x);
    int64_t begin = (blockIdx.x - t.first_chunk) * TSI_CUDA_UPDATE_CHUNK;
    int64_t end = begin + TSI_CUDA_UPDATE_CHUNK < t.count ? begin + TSI_CUDA_UPDATE_CHUNK : t.count;
    if (t.dtype[0] == TS_DTYPE_F64)
        sgd_range<double>(a, t, begin, end);
    else
        sgd_range<float>(a, t, begin, end);
}

/* ---- squares --------------------------------------------------------------------------------- */

TSI_KERNEL(update_squares, tsi_cuda_update_args)
{
    __shared__ double shared[32];
    const tsi_cuda_update_item &t = item_of(a, blockIdx.x);
    int64_t begin = (blockIdx.x - t.first_chunk) * TSI_CUDA_UPDATE_CHUNK;
    int64_t end = begin + TSI_CUDA_UPDATE_CHUNK < t.count ? begin + TSI_CUDA_UPDATE_CHUNK : t.count;
    bool plain = t.dtype[0] == TS_DTYPE_F32 && (uint64_t)t.part[0] % 16 == 0;
    int64_t units = plain ? (end - begin) / 4 : 0;
    double sum = 0;
    for (int64_t u = threadIdx.x; u < units; u += blockDim.x) {
        float4 x = ((const float4 *)((const float *)t.part[0] + begin))[u];
        sum += (double)x.x * (double)x.x;
        sum += (double)x.y * (double)x.y;
        sum += (double)x.z * (double)x.z;
        sum += (double)x.w * (double)x.w;
    }
    for (int64_t i = begin + 4 * units + threadIdx.x; i < end; i += blockDim.x) {
        double x = load_real<double>(t.dtype[0], t.part[0], i);
        sum += x * x;
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) a.partial[blockIdx.x] = sum;
}

/* A block an item: its chunks. */
TSI_KERNEL(update_squares_items, tsi_cuda_update_args)
{
    __shared__ double shared[32];
    int64_t i = blockIdx.x, end = i + 1 < a.items ? a.item[i + 1].first_chunk : a.chunks;
    double sum = 0;
    for (int64_t c = a.item[i].first_chunk + threadIdx.x; c < end; c += blockDim.x)
        sum += a.partial[c];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) a.partial[a.chunks + i] = sum;
}

/* One block: item after item, each to its sum; one thread adds what all have fetched. */
TSI_KERNEL(update_squares_sum, tsi_cuda_update_args)
{
    __shared__ double value[TSI_CUDA_BLOCK];
    __shared__ double *target[TSI_CUDA_BLOCK];
    for (int64_t first = 0; first < a.items; first += blockDim.x) {
        int64_t i = first + threadIdx.x, here = a.items - first;
        if (i < a.items) {
            value[threadIdx.x] = a.partial[a.chunks + i];
            target[threadIdx.x] = (double *)a.item[i].part[1];
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            double *to = target[0], sum = *to;
            for (int64_t k = 0; k < here && k < (int64_t)blockDim.x; k++) {
                if (target[k] != to) {
                    *to = sum;
                    to = target[k];
                    sum = *to;
                }
                sum += value[k];
            }
            *to = sum;
        }
        __syncthreads();
    }
}

/* ---- deciding: one thread, as the host does it ----------------------------------------------- */

TSI_KERNEL(update_decide, tsi_cuda_decide_args)
{
    tsi_control_decide_numbers(a.sum, a.count, a.control);
}
