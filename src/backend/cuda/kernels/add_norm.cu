/* SPDX-License-Identifier: Apache-2.0 */
/* add_norm.cu - a residual and the norm of the sum, and their gradient, rows of one piece a thread.
 *
 * A block has a row, a thread 16 bytes of it, which it keeps in registers between the two passes
 * that a norm needs: every array crosses the memory once. Rows of bf16 up to 2048 numbers have a
 * warp each, which waits for no other, and backward a group of warps.
 *
 * INV: sums of a row are one tree over the threads of a block; rows are dealt to blocks by their
 * number alone, and the weight's gradient adds up blocks in one order: the same bits on every GPU.
 */
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/real.cuh"

enum { WIDE = 16 };

template <typename T> struct piece { /* what a thread has of a row */
    enum { N = WIDE / sizeof(typename T::E) };
    typename T::R value[N];
};

template <typename T>
__device__ inline void load(piece<T> &to, const void *row, int64_t first, int64_t length, bool unit)
{
    typedef typename T::E E;
    const E *from = (const E *)row + first;
    unit_of<E> in;
    if (unit) {
        if (first < length) in.unit = *(const uint4 *)from;
    } else {
#pragma unroll
        for (int e = 0; e < piece<T>::N; e++)
            if (first + e < length) in.element[e] = from[e];
    }
#pragma unroll
    for (int e = 0; e < piece<T>::N; e++)
        to.value[e] = first + e < length ? T::load(in.element[e]) : 0;
}

template <typename T>
__device__ inline void store(void *row, const piece<T> &x, int64_t first, int64_t length, bool unit)
{
    typedef typename T::E E;
    E *to = (E *)row + first;
    unit_of<E> out;
#pragma unroll
    for (int e = 0; e < piece<T>::N; e++)
        out.element[e] = T::store(x.value[e]);
    if (unit) {
        if (first < length) *(uint4 *)to = out.unit;
    } else {
#pragma unroll
        for (int e = 0; e < piece<T>::N; e++)
            if (first + e < length) to[e] = out.element[e];
    }
}

/* The weights of a thread's columns, the same for all rows. */
template <typename T>
__device__ inline void load_weight(piece<T> &w, const tsi_cuda_add_norm_args &a, int64_t first)
{
#pragma unroll
    for (int e = 0; e < piece<T>::N; e++)
        w.value[e] = first + e < a.length
                         ? load_real<typename T::R>(a.weight_dtype, a.weight, first + e)
                         : 0;
}

template <typename T> __device__ void forward(const tsi_cuda_add_norm_args &a)
{
    typedef typename T::R R;
    enum { N = piece<T>::N };
    __shared__ R sums[32];
    int64_t first = (int64_t)threadIdx.x * N;
    piece<T> w;
    load_weight<T>(w, a, first);
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        int64_t at = row * a.length * (int64_t)sizeof(typename T::E);
        piece<T> x, r;
        load<T>(x, (const char *)a.x + at, first, a.length, a.by_units);
        load<T>(r, (const char *)a.r + at, first, a.length, a.by_units);
        R squares = 0;
#pragma unroll
        for (int e = 0; e < N; e++) { /* rounded, as it is written */
            x.value[e] = T::load(T::store(x.value[e] + r.value[e]));
            squares += x.value[e] * x.value[e];
        }
        store<T>((char *)a.sum + at, x, first, a.length, a.by_units);
        R scale = (R)(1.0 / sqrt((double)block_sum(squares, sums) / (double)a.length + a.eps));
        if (threadIdx.x == 0) ((R *)a.scale)[row] = scale;
#pragma unroll
        for (int e = 0; e < N; e++)
            x.value[e] = x.value[e] * scale * w.value[e];
        store<T>((char *)a.y + at, x, first, a.length, a.by_units);
    }
}

/* dx = dsum + scale (dy w - x^ mean(dy w x^)), x^ = x scale; dw = sum of dy x^ over rows. */
template <typename T> __device__ void backward(const tsi_cuda_add_norm_args &a)
{
    typedef typename T::R R;
    enum { N = piece<T>::N };
    __shared__ R sums[32];
    int64_t first = (int64_t)threadIdx.x * N;
    piece<T> w;
    R dw[N] = { 0 };
    load_weight<T>(w, a, first);
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        int64_t at = row * a.length * (int64_t)sizeof(typename T::E);
        piece<T> x, dy, dsum;
        load<T>(x, (const char *)a.x + at, first, a.length, a.by_units);
        load<T>(dy, (const char *)a.dy + at, first, a.length, a.by_units);
        load<T>(dsum, (const char *)a.r + at, first, a.length, a.by_units);
        R scale = ((const R *)a.scale)[row], sum = 0;
#pragma unroll
        for (int e = 0; e < N; e++) {
            x.value[e] *= scale;
            dw[e] += dy.value[e] * x.value[e];
            sum += dy.value[e] * w.value[e] * x.value[e];
        }
        R mean = block_sum(sum, sums) / (R)a.length;
#pragma unroll
        for (int e = 0; e < N; e++)
            x.value[e] = dsum.value[e] + scale * (dy.value[e] * w.value[e] - x.value[e] * mean);
        store<T>((char *)a.y + at, x, first, a.length, a.by_units);
    }
#pragma unroll
    for (int e = 0; e < N; e++)
        if (first + e < a.length) ((R *)a.partial)[blockIdx.x * a.length + first + e] = dw[e];
}

/* ---- bf16, a warp a row ---------------------------------------------------------------------- */

enum { EACH = 8, LANES = 32 }; /* numbers of a unit; a lane has UNITS of them at most */

union bf16_unit {
    uint4 unit;
    uint16_t element[EACH];
};

template <int UNITS> __device__ inline void load_units(bf16_unit *to, const void *row, int units)
{
    int lane = threadIdx.x % LANES;
#pragma unroll
    for (int k = 0; k < UNITS; k++)
        if (k * LANES + lane < units) to[k].unit = ((const uint4 *)row)[k * LANES + lane];
}

/* The weights of a unit's columns. */
__device__ inline void weights_at(float *to, const tsi_cuda_add_norm_args &a, int64_t first)
{
    if (a.weight_dtype == TS_DTYPE_F32) {
        *(float4 *)to = *(const float4 *)((const float *)a.weight + first);
        *(float4 *)(to + 4) = *(const float4 *)((const float *)a.weight + first + 4);
        return;
    }
#pragma unroll
    for (int e = 0; e < EACH; e++)
        to[e] = load_real<float>(a.weight_dtype, a.weight, first + e);
}

template <int UNITS> __device__ inline void forward_warps(const tsi_cuda_add_norm_args &a)
{
    int lane = threadIdx.x % LANES, units = (int)(a.length / EACH);
    int64_t row = (int64_t)blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    if (row >= a.rows) return;
    int64_t at = row * a.length;
    bf16_unit x[UNITS], r[UNITS];
    load_units<UNITS>(x, (const uint16_t *)a.x + at, units);
    load_units<UNITS>(r, (const uint16_t *)a.r + at, units);
    float squares = 0;
#pragma unroll
    for (int k = 0; k < UNITS; k++) {
        if (k * LANES + lane >= units) continue;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            x[k].element[e] = tsi_bf16_of_f32(tsi_f32_of_bf16(x[k].element[e]) +
                                              tsi_f32_of_bf16(r[k].element[e]));
            float v = tsi_f32_of_bf16(x[k].element[e]);
            squares += v * v;
        }
        ((uint4 *)((uint16_t *)a.sum + at))[k * LANES + lane] = x[k].unit;
    }
    float scale = (float)(1.0 / sqrt((double)warp_sum(squares) / (double)a.length + a.eps));
    if (lane == 0) ((float *)a.scale)[row] = scale;
#pragma unroll
    for (int k = 0; k < UNITS; k++) {
        if (k * LANES + lane >= units) continue;
        alignas(16) float w[EACH];
        weights_at(w, a, (int64_t)(k * LANES + lane) * EACH);
#pragma unroll
        for (int e = 0; e < EACH; e++)
            x[k].element[e] = tsi_bf16_of_f32(tsi_f32_of_bf16(x[k].element[e]) * scale * w[e]);
        ((uint4 *)((uint16_t *)a.y + at))[k * LANES + lane] = x[k].unit;
    }
}

#define WARPS(units)                                                                               \
    TSI_KERNEL(add_rms_norm_warps_##units, tsi_cuda_add_norm_args)                                 \
    {                                                                                              \
        forward_warps<units>(a);                                                                   \
    }
WARPS(3)
WARPS(8)

/* ---- bf16 backward, a group of threads a row ------------------------------------------------- */

/* What a thread reads of a row: its unit of each array, and the row's scale. */
struct row_parts {
    bf16_unit x, dy, dsum;
    float scale;
};

__device__ inline void load_parts(row_parts &to, const tsi_cuda_add_norm_args &a, int64_t row,
                                  int64_t first)
{
    if (row >= a.rows || first >= a.length) return;
    int64_t at = row * a.length + first;
    to.x.unit = __ldcs((const uint4 *)((const uint16_t *)a.x + at));
    to.dy.unit = __ldcs((const uint4 *)((const uint16_t *)a.dy + at));
    to.dsum.unit = __ldcs((const uint4 *)((const uint16_t *)a.r + at));
    to.scale = ((const float *)a.scale)[row];
}

/* The groups of a block take rows side by side. A thread has 8 columns for good, with their weights
 * and the sums of their gradients; while a row is added up the next one is on its way. One barrier
 * a row: the sums of its warps lie in two places in turn. */
__device__ inline void backward_groups(const tsi_cuda_add_norm_args &a)
{
    TSI_BLOCK_MEMORY(float, shared); /* a row */
    __shared__ float sums[2][LANES];
    int group = a.group, own = threadIdx.x / group, lane = threadIdx.x % group;
    int groups = blockDim.x / group, warps = group / LANES, turn = 0;
    int64_t first = (int64_t)lane * EACH, step = (int64_t)gridDim.x * groups;
    bool has = first < a.length;
    alignas(16) float w[EACH] = { 0 };
    float dw[EACH] = { 0 }, by = 1.0f / (float)a.length;
    row_parts now = { { { 0 } }, { { 0 } }, { { 0 } }, 0 }, next = now;
    if (has) weights_at(w, a, first);
    int64_t begin = (int64_t)blockIdx.x * groups;
    load_parts(now, a, begin + own, first);
    for (; begin < a.rows; begin += step, turn ^= 1) {
        int64_t row = begin + own;
        bool works = has && row < a.rows;
        load_parts(next, a, row + step, first);
        float sum = 0, h[EACH], g[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            float d = works ? tsi_f32_of_bf16(now.dy.element[e]) : 0.0f;
            h[e] = works ? tsi_f32_of_bf16(now.x.element[e]) * now.scale : 0.0f;
            g[e] = d * w[e];
            dw[e] += d * h[e];
            sum += g[e] * h[e];
        }
        sum = warp_sum(sum);
        if (threadIdx.x % LANES == 0) sums[turn][threadIdx.x / LANES] = sum;
        __syncthreads();
        float mean = 0;
        for (int k = 0; k < warps; k++)
            mean += sums[turn][own * warps + k];
        mean *= by;
        if (works) {
            bf16_unit out;
#pragma unroll
            for (int e = 0; e < EACH; e++)
                out.element[e] = bf16_of(tsi_f32_of_bf16(now.dsum.element[e]) +
                                         now.scale * (g[e] - h[e] * mean));
            *(uint4 *)((uint16_t *)a.y + row * a.length + first) = out.unit;
        }
        now = next;
    }
    for (int k = 0; k < groups; k++) { /* in order: the same bits every time */
        __syncthreads();
        if (k != own || !has) continue;
#pragma unroll
        for (int e = 0; e < EACH; e++)
            shared[first + e] = (k ? shared[first + e] : 0.0f) + dw[e];
    }
    __syncthreads();
    for (int c = threadIdx.x; c < a.length; c += blockDim.x)
        ((float *)a.partial)[blockIdx.x * a.length + c] = shared[c];
}

TSI_KERNEL_BOUNDED(add_rms_norm_backward_groups, tsi_cuda_add_norm_args, 512, 2)
{
    backward_groups(a);
}

/* ---- the weight's gradient ------------------------------------------------------------------- */

/* 32 columns a block. */
template <typename R> __device__ void weight(const tsi_cuda_add_norm_args &a)
{
    int64_t c = (int64_t)blockIdx.x * 32 + threadIdx.x % 32;
    R sum = column_sum<R>((const R *)a.partial, a.blocks, a.length, c);
    if (threadIdx.x < 32 && c < a.length) ((R *)a.dw)[c] = sum;
}

#define ADD_NORM(name, type)                                                                       \
    TSI_KERNEL_BOUNDED(add_rms_norm_##name, tsi_cuda_add_norm_args, 1024)                          \
    {                                                                                              \
        forward<type>(a);                                                                          \
    }                                                                                              \
    TSI_KERNEL_BOUNDED(add_rms_norm_backward_##name, tsi_cuda_add_norm_args, 1024)                 \
    {                                                                                              \
        backward<type>(a);                                                                         \
    }
ADD_NORM(f32, as_f32)
ADD_NORM(bf16, as_bf16)
ADD_NORM(f16, as_f16)
ADD_NORM(f64, as_f64)

TSI_KERNEL_BOUNDED(add_norm_weight_f32, tsi_cuda_add_norm_args, 256, 1)
{
    weight<float>(a);
}

TSI_KERNEL_BOUNDED(add_norm_weight_f64, tsi_cuda_add_norm_args, 256, 1)
{
    weight<double>(a);
}
