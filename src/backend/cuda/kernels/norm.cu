/* SPDX-License-Identifier: Apache-2.0 */
/* norm.cu - rms_norm and layer_norm of rows, and their gradients.
 *
 *   v = (x - mean) scale, y = v weight + bias
 *   g = dy weight, dx = scale (g - mean(g) - v mean(g v)), dw = sum dy v, db = sum dy
 *
 * Of rms_norm mean, mean(g) and db are nothing; weight and bias are there if given.
 *
 *   norm_warp_C_*   a warp a row, which stays in registers: C units of 16 bytes a lane; gradients
 *                   of the longest by two warps or four, which have a part of them each, and
 *                   layer_norm of the longest by blocks of four or eight
 *   norm_block_C_*  a block a row likewise
 *   norm_*          a block a row, of any length and alignment
 *
 * INV: sums are one tree over the threads of a row; rows of gradients are dealt to blocks by their
 * number alone, and the weight's adds blocks in order: the same bits on every GPU. */
#include "backend/cuda/kernels/kept.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/real.cuh"

enum { WIDE = 16, WARPS = 8 };

/* Parameters of the columns of one unit; `otherwise` where there are none. */
template <int N, typename R>
__device__ inline void load_parameters(const void *from, int32_t dtype, bool units, int64_t c,
                                       R otherwise, R *to)
{
    if (!from) {
#pragma unroll
        for (int e = 0; e < N; e++)
            to[e] = otherwise;
    } else if (units && dtype == TS_DTYPE_F32 && (uint64_t)from % WIDE == 0 && N % 4 == 0) {
#pragma unroll
        for (int e = 0; e + 3 < N; e += 4) {
            float4 four = *(const float4 *)((const float *)from + c + e);
            to[e] = four.x, to[e + 1] = four.y, to[e + 2] = four.z, to[e + 3] = four.w;
        }
    } else if (units && dtype == TS_DTYPE_BF16 && (uint64_t)from % WIDE == 0 && N == 8) {
        unit_of<uint16_t> in;
        in.unit = *(const uint4 *)((const uint16_t *)from + c);
#pragma unroll
        for (int e = 0; e < N; e++)
            to[e] = tsi_f32_of_bf16(in.element[e % 8]);
    } else {
#pragma unroll
        for (int e = 0; e < N; e++)
            to[e] = units || e == 0 ? load_real<R>(dtype, from, c + e) : otherwise;
    }
}

/* ---- a warp a row ---------------------------------------------------------------------------- */

/* The units of a row that a thread has, of G; what lies behind its end is zeros. */
template <typename T, int C, int G = 32>
__device__ inline void load_row(unit_of<typename T::E> (&to)[C], const void *from, int64_t units)
{
    const uint4 zero = { 0, 0, 0, 0 };
#pragma unroll
    for (int k = 0; k < C; k++) {
        int64_t u = threadIdx.x % G + k * G;
        to[k].unit = u < units ? ((const uint4 *)from)[u] : zero;
    }
}

/* Parameters of a thread's units, kept for all its rows. */
template <typename T, int C, int G = 32>
__device__ inline void load_kept(float (&to)[C][WIDE / sizeof(typename T::E)], const void *from,
                                 int32_t dtype, int64_t units, float otherwise)
{
    constexpr int N = WIDE / sizeof(typename T::E);
#pragma unroll
    for (int k = 0; k < C; k++) {
        int64_t u = threadIdx.x % G + k * G;
        if (u < units) load_parameters<N, float>(from, dtype, true, u * N, otherwise, to[k]);
    }
}

template <typename T, int C, bool LAYER> __device__ void norm_warp(const tsi_cuda_norm_args &a)
{
    constexpr int N = WIDE / sizeof(typename T::E);
    constexpr bool KEPT = C <= (LAYER ? 2 : 4); /* weights in registers */
    constexpr bool AHEAD = LAYER;               /* the next row is on its way */
    typedef typename T::E E;
    int64_t units = a.length / N, lane = threadIdx.x % 32;
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int64_t step = (int64_t)gridDim.x * WARPS;
    unit_of<E> x[C], next[AHEAD ? C : 1];
    float weight[KEPT ? C : 1][N], bias[KEPT && LAYER ? C : 1][N];
    if constexpr (KEPT) load_kept<T, C>(weight, a.weight, a.weight_dtype, units, 1.0f);
    if constexpr (KEPT && LAYER) load_kept<T, C>(bias, a.bias, a.weight_dtype, units, 0.0f);
    if constexpr (AHEAD)
        load_row<T, C>(next, (const E *)a.x + row * a.x_stride, row < a.rows ? units : 0);
    for (; row < a.rows; row += step) {
        if constexpr (AHEAD) {
#pragma unroll
            for (int k = 0; k < C; k++)
                x[k] = next[k];
            load_row<T, C>(next, (const E *)a.x + (row + step) * a.x_stride,
                           row + step < a.rows ? units : 0);
        } else {
            load_row<T, C>(x, (const E *)a.x + row * a.x_stride, units);
        }
        float mean = 0, squares = 0;
        if constexpr (LAYER) {
#pragma unroll
            for (int k = 0; k < C; k++)
#pragma unroll
                for (int e = 0; e < N; e++)
                    mean += T::load(x[k].element[e]);
            mean = warp_sum(mean) / (float)a.length;
        }
#pragma unroll
        for (int k = 0; k < C; k++)
#pragma unroll
            for (int e = 0; e < N; e++) {
                float v = T::load(x[k].element[e]) - mean;
                if (LAYER && lane + k * 32 >= units) v = 0; /* zeros behind the end are no x */
                squares += v * v;
            }
        float scale = 1.0f / sqrtf(warp_sum(squares) / (float)a.length + (float)a.eps);
        if (lane == 0) {
            if (a.scale) ((float *)a.scale)[row] = scale;
            if (LAYER && a.mean) ((float *)a.mean)[row] = mean;
        }
#pragma unroll
        for (int k = 0; k < C; k++) {
            int64_t u = lane + k * 32;
            if (u >= units) break;
            float w[N], b[N];
            if constexpr (!KEPT)
                load_parameters<N, float>(a.weight, a.weight_dtype, true, u * N, 1.0f, w);
            if constexpr (!KEPT && LAYER)
                load_parameters<N, float>(a.bias, a.weight_dtype, true, u * N, 0.0f, b);
#pragma unroll
            for (int e = 0; e < N; e++) {
                float v = (T::load(x[k].element[e]) - mean) * scale;
                v *= KEPT ? weight[KEPT ? k : 0][e] : w[e];
                if (LAYER) v += KEPT ? bias[KEPT && LAYER ? k : 0][e] : b[e];
                x[k].element[e] = T::store(v);
            }
            *(uint4 *)((E *)a.y + row * a.y_stride + u * N) = x[k].unit;
        }
    }
}

/* Over a block of G threads, warps in order. INV: the call before had other parts. */
template <int G> __device__ inline float row_sum(float x, float (&parts)[G / 32])
{
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = parts[0];
#pragma unroll
    for (int w = 1; w < G / 32; w++)
        x += parts[w];
    return x;
}

/* layer_norm of a row by a block of G threads, C units each: few enough that both parameters stay
 * in registers, where a warp would read four times what it reads of a row. */
template <typename T, int C, int G> __device__ void norm_layer(const tsi_cuda_norm_args &a)
{
    constexpr int N = WIDE / sizeof(typename T::E);
    typedef typename T::E E;
    __shared__ float parts[2][G / 32];
    int units = (int)(a.length / N);
    int64_t row = blockIdx.x, step = gridDim.x;
    unit_of<E> x[C], next[C];
    float weight[C][N], bias[C][N];
    load_kept<T, C, G>(weight, a.weight, a.weight_dtype, units, 1.0f);
    load_kept<T, C, G>(bias, a.bias, a.weight_dtype, units, 0.0f);
    load_row<T, C, G>(next, (const E *)a.x + row * a.x_stride, row < a.rows ? units : 0);
    for (; row < a.rows; row += step) {
        float mean = 0, squares = 0;
#pragma unroll
        for (int k = 0; k < C; k++)
            x[k] = next[k];
        load_row<T, C, G>(next, (const E *)a.x + (row + step) * a.x_stride,
                          row + step < a.rows ? units : 0);
#pragma unroll
        for (int k = 0; k < C; k++)
#pragma unroll
            for (int e = 0; e < N; e++)
                mean += T::load(x[k].element[e]);
        mean = row_sum<G>(mean, parts[0]) / (float)a.length;
#pragma unroll
        for (int k = 0; k < C; k++)
#pragma unroll
            for (int e = 0; e < N; e++) {
                float v =
                    T::load(x[k].element[e]) - ((int)threadIdx.x + k * G < units ? mean : 0.0f);
                squares += v * v; /* zeros behind the end are no x */
            }
        squares = row_sum<G>(squares, parts[1]);
        float scale = 1.0f / sqrtf(squares / (float)a.length + (float)a.eps);
        if (threadIdx.x == 0) {
            if (a.scale) ((float *)a.scale)[row] = scale;
            if (a.mean) ((float *)a.mean)[row] = mean;
        }
#pragma unroll
        for (int k = 0; k < C; k++) {
            int u = threadIdx.x + k * G;
            if (u >= units) break;
            float y[N];
#pragma unroll
            for (int e = 0; e < N; e++)
                y[e] = (T::load(x[k].element[e]) - mean) * scale * weight[k][e] + bias[k][e];
            *(uint4 *)((E *)a.y + row * a.y_stride + u * N) = unit_from<T>(y);
        }
    }
}

/* Sums of a block's rows, G threads each, column by column, to its row of `partial`. */
template <int G, int N, int C>
__device__ inline void store_sums(float (&sum)[C][N], float *to, int64_t length, float *shared)
{
#pragma unroll
    for (int k = 0; k < C; k++) {
        __syncthreads();
#pragma unroll
        for (int e = 0; e < N; e++)
            shared[threadIdx.x * N + e] = sum[k][e];
        __syncthreads();
        for (int c = threadIdx.x; c < G * N; c += WARPS * 32) {
            int64_t column = (int64_t)k * G * N + c;
            float all = shared[c];
            for (int r = 1; r < WARPS * 32 / G; r++)
                all += shared[r * G * N + c];
            if (column < length) to[column] = all;
        }
    }
}

/* What a thread has of a row for its gradient; zeros if there is no such row. */
template <typename E, int C> struct held {
    unit_of<E> x[C], dy[C];
    float scale, mean;
};

template <typename T, int C, int G, bool LAYER>
__device__ inline void hold_row(held<typename T::E, C> &to, const tsi_cuda_norm_args &a,
                                int64_t row)
{
    typedef typename T::E E;
    bool is = row < a.rows;
    int64_t units = is ? a.length / (WIDE / (int)sizeof(E)) : 0;
    load_row<T, C, G>(to.x, (const E *)a.x + row * a.x_stride, units);
    load_row<T, C, G>(to.dy, (const E *)a.dy + row * a.dy_stride, units);
    to.scale = is ? ((const float *)a.scale)[row] : 0.0f;
    to.mean = LAYER && is ? ((const float *)a.mean)[row] : 0.0f;
}

/* Two sums over the warps of a row, in order. */
template <int G> __device__ inline void meet(float &product, float &sum, float2 (&parts)[WARPS])
{
    int warp = threadIdx.x / 32, first = warp / (G / 32) * (G / 32);
    if (threadIdx.x % 32 == 0) parts[warp] = make_float2(product, sum);
    __syncthreads();
    product = parts[first].x;
    sum = parts[first].y;
#pragma unroll
    for (int w = 1; w < G / 32; w++) {
        product += parts[first + w].x;
        sum += parts[first + w].y;
    }
}

/* G threads a row, C units each: a warp, or more, whose block meets once for each row. Of
 * layer_norm the sums of two parameters take the registers that further warps would have: the next
 * row is on its way instead. */
template <typename T, int C, int G, bool LAYER>
__device__ void norm_warp_backward(const tsi_cuda_norm_args &a)
{
    constexpr int N = WIDE / sizeof(typename T::E), ROWS = WARPS * 32 / G;
    constexpr bool AHEAD = LAYER;
    typedef typename T::E E;
    __shared__ float shared[WARPS * 32 * N];
    __shared__ float2 parts[2][WARPS]; /* of this row and of the one before it */
    int64_t units = a.length / N, lane = threadIdx.x % G, step = (int64_t)gridDim.x * ROWS;
    int turn = 0;
    float dw[C][N], db[LAYER ? C : 1][N], weight[C][N];
    held<E, C> next;
#pragma unroll
    for (int k = 0; k < C; k++)
#pragma unroll
        for (int e = 0; e < N; e++)
            dw[k][e] = db[LAYER ? k : 0][e] = 0;
    load_kept<T, C, G>(weight, a.weight, a.weight_dtype, units, 1.0f);
    int64_t first = (int64_t)blockIdx.x * ROWS;
    if constexpr (AHEAD) hold_row<T, C, G, LAYER>(next, a, first + threadIdx.x / G);
    for (; first < a.rows; first += step) {
        int64_t row = first + threadIdx.x / G;
        if (G == 32 && row >= a.rows) break;
        int64_t own = row < a.rows ? units : 0; /* of this row */
        if constexpr (!AHEAD) hold_row<T, C, G, LAYER>(next, a, row);
        held<E, C> now = next;
        if constexpr (AHEAD) hold_row<T, C, G, LAYER>(next, a, row + step);
        float scale = now.scale, mean = now.mean, sum = 0, product = 0;
#pragma unroll
        for (int k = 0; k < C; k++) {
            if (lane + k * G >= own) break;
#pragma unroll
            for (int e = 0; e < N; e++) {
                float d = T::load(now.dy[k].element[e]), g = d * weight[k][e];
                float v = (T::load(now.x[k].element[e]) - mean) * scale;
                if (LAYER) sum += g;
                product += g * v;
                dw[k][e] += d * v;
                if (LAYER) db[LAYER ? k : 0][e] += d;
            }
        }
        product = warp_sum(product);
        sum = LAYER ? warp_sum(sum) : 0.0f;
        if constexpr (G > 32) meet<G>(product, sum, parts[turn]);
        turn = 1 - turn;
        product /= (float)a.length;
        sum /= (float)a.length;
#pragma unroll
        for (int k = 0; k < C; k++) {
            int64_t u = lane + k * G;
            if (u >= own) break;
            float out[N];
#pragma unroll
            for (int e = 0; e < N; e++) {
                float v = (T::load(now.x[k].element[e]) - mean) * scale;
                float g = T::load(now.dy[k].element[e]) * weight[k][e];
                out[e] = scale * (g - sum - v * product);
            }
            *(uint4 *)((E *)a.y + row * a.y_stride + u * N) = unit_from<T>(out);
        }
    }
    float *to = a.partial + (int64_t)blockIdx.x * a.length * (LAYER ? 2 : 1);
    store_sums<G, N, C>(dw, to, a.length, shared);
    if constexpr (LAYER) store_sums<G, N, C>(db, to + a.length, a.length, shared);
}

#define WARP(name, type, C)                                                                        \
    TSI_KERNEL_BOUNDED(norm_warp_##C##_##name, tsi_cuda_norm_args, WARPS * 32)                     \
    {                                                                                              \
        norm_warp<type, C, false>(a);                                                              \
    }
/* WIDTH blocks of layer_norm are at once on a multiprocessor: norm.c launches as many. */
#define WARP_LAYER(name, type, C, WIDTH)                                                           \
    TSI_KERNEL_BOUNDED(norm_warp_layer_##C##_##name, tsi_cuda_norm_args, WARPS * 32, WIDTH)        \
    {                                                                                              \
        norm_warp<type, C, true>(a);                                                               \
    }
#define BLOCK_LAYER(name, type, C, THREADS, WIDTH)                                                 \
    TSI_KERNEL_BOUNDED(norm_warp_layer_##C##_##name, tsi_cuda_norm_args, THREADS, WIDTH)           \
    {                                                                                              \
        norm_layer<type, 2, THREADS>(a);                                                           \
    }
#define WARP_BACKWARD(name, type, C, EACH, THREADS)                                                \
    TSI_KERNEL_BOUNDED(norm_warp_backward_##C##_##name, tsi_cuda_norm_args, WARPS * 32)            \
    {                                                                                              \
        norm_warp_backward<type, EACH, THREADS, false>(a);                                         \
    }
/* Two blocks are at once on a multiprocessor: norm.c counts on it. */
#define LAYER_BACKWARD(name, type, C, EACH, THREADS)                                               \
    TSI_KERNEL_BOUNDED(norm_warp_layer_backward_##C##_##name, tsi_cuda_norm_args, WARPS * 32, 2)   \
    {                                                                                              \
        norm_warp_backward<type, EACH, THREADS, true>(a);                                          \
    }
WARP(f32, as_f32, 1)
WARP(f32, as_f32, 2)
WARP(f32, as_f32, 4)
WARP(f32, as_f32, 8)
WARP(f32, as_f32, 16)
WARP(bf16, as_bf16, 1)
WARP(bf16, as_bf16, 2)
WARP(bf16, as_bf16, 4)
WARP(bf16, as_bf16, 8)
WARP(bf16, as_bf16, 16)
WARP_LAYER(f32, as_f32, 1, 4)
WARP_LAYER(f32, as_f32, 2, 3)
WARP_LAYER(f32, as_f32, 4, 3)
BLOCK_LAYER(f32, as_f32, 8, 128, 6)
BLOCK_LAYER(f32, as_f32, 16, 256, 3)
WARP_LAYER(bf16, as_bf16, 1, 4)
WARP_LAYER(bf16, as_bf16, 2, 3)
WARP_LAYER(bf16, as_bf16, 4, 3)
BLOCK_LAYER(bf16, as_bf16, 8, 128, 6)
BLOCK_LAYER(bf16, as_bf16, 16, 256, 3)
WARP_BACKWARD(f32, as_f32, 1, 1, 32)
WARP_BACKWARD(f32, as_f32, 2, 2, 32)
WARP_BACKWARD(f32, as_f32, 4, 4, 32)
WARP_BACKWARD(f32, as_f32, 8, 4, 64)
WARP_BACKWARD(bf16, as_bf16, 1, 1, 32)
WARP_BACKWARD(bf16, as_bf16, 2, 2, 32)
WARP_BACKWARD(bf16, as_bf16, 4, 4, 32)
WARP_BACKWARD(bf16, as_bf16, 8, 4, 64)
LAYER_BACKWARD(f32, as_f32, 1, 1, 32)
LAYER_BACKWARD(f32, as_f32, 2, 2, 32)
LAYER_BACKWARD(f32, as_f32, 4, 2, 64)
LAYER_BACKWARD(f32, as_f32, 8, 2, 128)
LAYER_BACKWARD(bf16, as_bf16, 1, 1, 32)
LAYER_BACKWARD(bf16, as_bf16, 2, 2, 32)
LAYER_BACKWARD(bf16, as_bf16, 4, 2, 64)
LAYER_BACKWARD(bf16, as_bf16, 8, 2, 128)

/* ---- a block a row that stays in registers, while the next one is on its way ----------------- */

/* A copy of the weight. Blocks begin at different places: if all of them asked for the same lines
 * at once, they would wait for each other. */
__device__ inline void fetch_weight(uint4 *to, const void *weight, int64_t units)
{
    int64_t steps = (units + blockDim.x - 1) / blockDim.x;
    for (int64_t i = 0; i < steps; i++) {
        int64_t u = (i + blockIdx.x) % steps * blockDim.x + threadIdx.x;
        if (u < units) fetch_unit(to + u, (const uint4 *)weight + u);
    }
}

template <typename T, int C> __device__ void norm_block(const tsi_cuda_norm_args &a)
{
    constexpr int N = WIDE / sizeof(typename T::E);
    typedef typename T::E E;
    TSI_BLOCK_MEMORY(uint4, fetched);
    __shared__ float shared[32];
    int64_t units = a.length / N, lane = threadIdx.x, threads = blockDim.x;
    uint4 *kept = fetched + C * threads;
    fetch_prepare<C>(fetched, units, make_uint4(0, 0, 0, 0));
    fetch_row<C>(fetched, (const E *)a.x + (int64_t)blockIdx.x * a.x_stride, units);
    if (a.kept) fetch_weight(kept, a.weight, units * a.kept);
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        float v[C][N], mean = 0, squares = 0;
        fetched_row<T, C>(fetched, v);
#pragma unroll
        for (int k = 0; k < C; k++)
#pragma unroll
            for (int e = 0; e < N; e++)
                mean += v[k][e];
        mean = a.layer ? block_sum(mean, shared) / (float)a.length : 0.0f;
#pragma unroll
        for (int k = 0; k < C; k++)
#pragma unroll
            for (int e = 0; e < N; e++) {
                v[k][e] -= lane + k * threads < units ? mean : 0.0f;
                squares += v[k][e] * v[k][e];
            }
        squares = block_sum(squares, shared);
        if (row + gridDim.x < a.rows)
            fetch_row<C>(fetched, (const E *)a.x + (row + gridDim.x) * a.x_stride, units);
        float scale = 1.0f / sqrtf(squares / (float)a.length + (float)a.eps);
        if (threadIdx.x == 0) {
            if (a.scale) ((float *)a.scale)[row] = scale;
            if (a.mean) ((float *)a.mean)[row] = mean;
        }
#pragma unroll
        for (int k = 0; k < C; k++) {
            int64_t u = lane + k * threads;
            if (u >= units) break;
            float w[N], b[N];
            load_parameters<N, float>(a.kept ? kept : a.weight, a.weight_dtype, true, u * N, 1.0f,
                                      w);
            if (a.bias) load_parameters<N, float>(a.bias, a.weight_dtype, true, u * N, 0.0f, b);
#pragma unroll
            for (int e = 0; e < N; e++) {
                v[k][e] *= scale * w[e];
                if (a.bias) v[k][e] += b[e];
            }
            ((uint4 *)((E *)a.y + row * a.y_stride))[u] = unit_from<T>(v[k]);
        }
    }
}

#define KEPT_BY_BLOCKS(name, type, C)                                                              \
    TSI_KERNEL_BOUNDED(norm_block_##C##_##name, tsi_cuda_norm_args, TSI_CUDA_KEPT_THREADS, 1)      \
    {                                                                                              \
        norm_block<type, C>(a);                                                                    \
    }
KEPT_BY_BLOCKS(f32, as_f32, 4)
KEPT_BY_BLOCKS(f32, as_f32, 8)
KEPT_BY_BLOCKS(bf16, as_bf16, 4)
KEPT_BY_BLOCKS(bf16, as_bf16, 8)

/* ---- a block a row --------------------------------------------------------------------------- */

template <typename T> __device__ void norm(const tsi_cuda_norm_args &a)
{
    constexpr int N = WIDE / sizeof(typename T::E);
    typedef typename T::E E;
    typedef typename T::R R;
    __shared__ R sums[32];
    bool units = by_units<T>(a);
    int step = units ? N : 1;
    int64_t first = (int64_t)threadIdx.x * step, next = (int64_t)blockDim.x * step;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const E *x = (const E *)a.x + row * a.x_stride;
        E *y = (E *)a.y + row * a.y_stride;
        R mean = 0, squares = 0;
        for (int64_t c = first; a.layer && c < a.length; c += next) {
            unit_of<E> in = load_unit<T>(x + c, units);
            for (int e = 0; e < step; e++)
                mean += T::load(in.element[e]);
        }
        if (a.layer) mean = block_sum(mean, sums) / (R)a.length;
        for (int64_t c = first; c < a.length; c += next) {
            unit_of<E> in = load_unit<T>(x + c, units);
            for (int e = 0; e < step; e++) {
                R v = T::load(in.element[e]) - mean;
                squares += v * v;
            }
        }
        R scale = (R)(1.0 / sqrt((double)block_sum(squares, sums) / (double)a.length + a.eps));
        if (threadIdx.x == 0) {
            if (a.scale) ((R *)a.scale)[row] = scale;
            if (a.mean) ((R *)a.mean)[row] = mean;
        }
        for (int64_t c = first; c < a.length; c += next) {
            unit_of<E> in = load_unit<T>(x + c, units);
            R w[N], b[N];
            load_parameters<N, R>(a.weight, a.weight_dtype, units, c, R(1), w);
            load_parameters<N, R>(a.bias, a.weight_dtype, units, c, R(0), b);
#pragma unroll
            for (int e = 0; e < N; e++) {
                if (e >= step) break;
                R v = (T::load(in.element[e]) - mean) * scale * w[e];
                in.element[e] = T::store(a.bias ? v + b[e] : v);
            }
            store_unit<T>(y + c, in, units);
        }
    }
}

template <typename T> __device__ void norm_backward(const tsi_cuda_norm_args &a)
{
    constexpr int N = WIDE / sizeof(typename T::E);
    typedef typename T::E E;
    typedef typename T::R R;
    TSI_BLOCK_MEMORY(double, memory);
    R *dw = (R *)memory, *db = dw + a.length; /* of this block; a thread has its own columns */
    __shared__ R sums[32];
    bool units = by_units<T>(a);
    int step = units ? N : 1;
    int64_t first = (int64_t)threadIdx.x * step, next = (int64_t)blockDim.x * step;
    int64_t kept = a.length * (a.layer ? 2 : 1);
    for (int64_t c = threadIdx.x; c < kept; c += blockDim.x)
        dw[c] = 0;
    __syncthreads();
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const E *x = (const E *)a.x + row * a.x_stride, *dy = (const E *)a.dy + row * a.dy_stride;
        E *dx = (E *)a.y + row * a.y_stride;
        R scale = ((const R *)a.scale)[row], sum = 0, product = 0;
        R mean = a.layer ? ((const R *)a.mean)[row] : R(0);
        for (int64_t c = first; c < a.length; c += next) {
            unit_of<E> in = load_unit<T>(x + c, units), grad = load_unit<T>(dy + c, units);
            R w[N];
            load_parameters<N, R>(a.weight, a.weight_dtype, units, c, R(1), w);
#pragma unroll
            for (int e = 0; e < N; e++) {
                if (e >= step) break;
                R d = T::load(grad.element[e]), v = (T::load(in.element[e]) - mean) * scale;
                sum += d * w[e];
                product += d * w[e] * v;
                dw[c + e] += d * v;
                if (a.layer) db[c + e] += d;
            }
        }
        product = block_sum(product, sums) / (R)a.length;
        sum = a.layer ? block_sum(sum, sums) / (R)a.length : R(0);
        for (int64_t c = first; c < a.length; c += next) {
            unit_of<E> in = load_unit<T>(x + c, units), grad = load_unit<T>(dy + c, units);
            R w[N];
            load_parameters<N, R>(a.weight, a.weight_dtype, units, c, R(1), w);
#pragma unroll
            for (int e = 0; e < N; e++) {
                if (e >= step) break;
                R v = (T::load(in.element[e]) - mean) * scale;
                in.element[e] =
                    T::store(scale * (T::load(grad.element[e]) * w[e] - sum - v * product));
            }
            store_unit<T>(dx + c, in, units);
        }
    }
    __syncthreads();
    for (int64_t c = threadIdx.x; c < kept; c += blockDim.x)
        ((R *)a.partial)[blockIdx.x * kept + c] = dw[c];
}

#define NORM(name, type)                                                                           \
    TSI_KERNEL_BOUNDED(norm_##name, tsi_cuda_norm_args, 512)                                       \
    {                                                                                              \
        norm<type>(a);                                                                             \
    }                                                                                              \
    TSI_KERNEL_BOUNDED(norm_backward_##name, tsi_cuda_norm_args, 512)                              \
    {                                                                                              \
        norm_backward<type>(a);                                                                    \
    }
NORM(f32, as_f32)
NORM(f64, as_f64)
NORM(bf16, as_bf16)
NORM(f16, as_f16)

/* ---- gradients of the parameters ------------------------------------------------------------- */

template <typename R> __device__ void norm_sums(const tsi_cuda_norm_args &a)
{
    int64_t kept = a.length * (a.layer ? 2 : 1), c = (int64_t)blockIdx.x * 32 + threadIdx.x % 32;
    R sum = column_sum<R>((const R *)a.partial, a.blocks, kept, c);
    if (threadIdx.x >= 32 || c >= kept) return;
    if (c < a.length)
        store_real<R>(a.sum_dtype, a.dw, c, sum);
    else
        store_real<R>(a.sum_dtype, a.db, c - a.length, sum);
}

TSI_KERNEL_BOUNDED(norm_sums_f32, tsi_cuda_norm_args, 256, 1)
{
    norm_sums<float>(a);
}

TSI_KERNEL_BOUNDED(norm_sums_f64, tsi_cuda_norm_args, 256, 1)
{
    norm_sums<double>(a);
}
