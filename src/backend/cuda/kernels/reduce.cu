/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.cu - reductions over some dims, and places of extremes.
 *
 *   reduce_any_*       any strides and dtypes: a thread, a warp or a block for each piece of a
 *                      result
 *   reduce_finish_*    partial results of the pieces, as a tree
 *   reduce_rows_*      contiguous rows of f32 and bf16 by 16 bytes: sums and extremes; the last
 *                      block of a row folds its pieces
 *   reduce_columns_*   columns likewise: 16 units by 64 rows a block, or 32 by 32; the last block
 *                      of a tile folds its pieces
 *   reduce_few_*       the same of few rows for each of many results: a thread a unit of columns
 *   extreme_*          the place of an extreme, a warp a result, any strides and dtypes
 *   extreme_rows_*     of contiguous rows of f32 and bf16 by 16 bytes
 *
 * INV: pieces follow from extents alone, and trees are fixed: the same bits on every GPU. */
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/number.cuh"
#include "backend/cuda/kernels/real.cuh"

static_assert(TSI_CUDA_BLOCK == 256, "names of kernels say so");

/* ---- what differs ---------------------------------------------------------------------------- */

template <typename R> __device__ inline R start_of(const tsi_cuda_reduce_args &a)
{
    switch (a.op) {
    case TSI_CUDA_MAX:
        return -(R)INFINITY;
    case TSI_CUDA_MIN:
        return (R)INFINITY;
    case TSI_CUDA_PROD:
    case TSI_CUDA_ALL:
        return 1;
    case TSI_CUDA_POWER:
        return isinf(a.power) && a.power < 0 ? (R)INFINITY : R(0);
    default:
        return 0;
    }
}

template <> __device__ inline int64_t start_of<int64_t>(const tsi_cuda_reduce_args &a)
{
    return a.start;
}

/* As `larger` has it: what is no number is smaller than all, too. */
template <typename R> __device__ inline R smaller(R x, R y)
{
    return x != x || x < y ? x : y;
}
template <> __device__ inline float smaller<float>(float x, float y)
{
    return min_of(x, y);
}

/* Two partial results as one. */
template <typename R> __device__ inline R join(int op, double power, R x, R y)
{
    switch (op) {
    case TSI_CUDA_MAX:
        return larger(x, y);
    case TSI_CUDA_MIN:
        return smaller(x, y);
    case TSI_CUDA_PROD:
        return x * y;
    case TSI_CUDA_ANY:
        return x != R(0) || y != R(0) ? R(1) : R(0);
    case TSI_CUDA_ALL:
        return x != R(0) && y != R(0) ? R(1) : R(0);
    case TSI_CUDA_POWER: /* a NaN stays one, as in MAX and MIN */
        if (!isinf(power)) return x + y;
        return x != x || (power > 0 ? x > y : x < y) ? x : y;
    default:
        return x + y;
    }
}

template <> __device__ inline int64_t join<int64_t>(int op, double power, int64_t x, int64_t y)
{
    switch (op) {
    case TSI_CUDA_MAX:
        return x > y ? x : y;
    case TSI_CUDA_MIN:
        return x < y ? x : y;
    case TSI_CUDA_PROD:
        return (int64_t)((uint64_t)x * (uint64_t)y);
    default:
        return (int64_t)((uint64_t)x + (uint64_t)y);
    }
}

template <typename R> __device__ inline R power_of_size(R size, double power)
{
    if (power == 1.0) return size;
    return power == 2.0 ? size * size : pow(size, (R)power);
}

/* What an element is before it is joined; c is the center of its result. */
template <typename R> __device__ inline R term(const tsi_cuda_reduce_args &a, R x, R c)
{
    if (a.op == TSI_CUDA_SQUARES) return (x - c) * (x - c);
    if (a.op == TSI_CUDA_EXPONENTIALS) return exp(x - c);
    if (a.op == TSI_CUDA_NORM) return power_of_size(fabs(x) / c, a.power);
    if (a.op == TSI_CUDA_COUNT) return x != R(0) ? R(1) : R(0);
    if (a.op != TSI_CUDA_POWER) return x;
    if (isinf(a.power)) return fabs(x);
    return a.power == 0.0 ? R(x != R(0)) : power_of_size(fabs(x), a.power);
}

template <>
__device__ inline int64_t term<int64_t>(const tsi_cuda_reduce_args &a, int64_t x, int64_t c)
{
    return x;
}

/* An infinite one outweighs all others, or is alone: exponentials count from zero then. Norms are
 * scaled by the largest element, so that powers do not overflow, unless it is 0 or infinite. */
template <typename R> __device__ inline R center_of(const tsi_cuda_reduce_args &a, int64_t result)
{
    R c = a.center ? ((const R *)a.center)[result] : R(0);
    if (a.op == TSI_CUDA_NORM) return c == R(0) || isinf((double)c) ? R(1) : c;
    return a.op == TSI_CUDA_EXPONENTIALS && isinf((double)c) ? R(0) : c;
}

template <typename R> __device__ inline R load_term(const tsi_cuda_reduce_args &a, int64_t at, R c)
{
    switch (a.from_dtype) {
    case TS_DTYPE_F32:
        return term<R>(a, (R)((const float *)a.from.data)[at], c);
    case TS_DTYPE_BF16:
        return term<R>(a, (R)tsi_f32_of_bf16(((const uint16_t *)a.from.data)[at]), c);
    case TS_DTYPE_F16:
        return term<R>(a, (R)tsi_f32_of_f16(((const uint16_t *)a.from.data)[at]), c);
    case TS_DTYPE_F64:
        return term<R>(a, (R)((const double *)a.from.data)[at], c);
    default:
        return term<R>(a, (R)load_wide(a.from_dtype, a.from.data, at).whole, c);
    }
}

/* The norm of a sum of powers: of plain ones, or of scaled ones, where the largest element may say
 * all. */
template <typename R>
__device__ inline double norm_of(const tsi_cuda_reduce_args &a, int64_t result, double sum)
{
    if (!a.center) return a.power == 2.0 ? sqrt(sum) : pow(sum, 1.0 / a.power);
    double top = (double)((const R *)a.center)[result];
    if (top == 0 || (isinf(top) && a.power > 0)) return top;
    return (double)center_of<R>(a, result) * pow(sum, 1.0 / a.power);
}

template <typename R>
__device__ inline void finish(const tsi_cuda_reduce_args &a, int64_t result, R x)
{
    const tsi_cuda_operand *const operands[1] = { &a.to };
    int64_t offset[1];
    place(a.outer, result, operands, offset);
    bool narrow = a.to_dtype == TS_DTYPE_F32 || a.to_dtype == TS_DTYPE_BF16;
    if (sizeof(R) == sizeof(float) && narrow && a.divide == 1.0 && a.after == TSI_CUDA_AS_IT_IS) {
        store_real<R>(a.to_dtype, a.to.data, offset[0], x); /* the same bits, in fewer steps */
        return;
    }
    double value = a.divide == 1.0 ? (double)x : (double)x / a.divide;
    if (a.after == TSI_CUDA_ITS_ROOT) value = sqrt(value);
    if (a.after == TSI_CUDA_ITS_NORM) value = norm_of<R>(a, result, value);
    if (a.after == TSI_CUDA_ITS_LOG) value = log(value) + (double)center_of<R>(a, result);
    store_f64(a.to_dtype, a.to.data, offset[0], value, 0);
}

template <>
__device__ inline void finish<int64_t>(const tsi_cuda_reduce_args &a, int64_t result, int64_t x)
{
    const tsi_cuda_operand *const operands[1] = { &a.to };
    int64_t offset[1];
    place(a.outer, result, operands, offset);
    store_i64(a.to_dtype, a.to.data, offset[0], x);
}

/* ---- pieces, and threads that share one ------------------------------------------------------ */

__device__ inline int64_t end_of(const tsi_cuda_reduce_args &a, int64_t piece)
{
    int64_t end = (piece + 1) * a.piece;
    return end < a.inner.count ? end : a.inner.count;
}

/* What a piece has come to: the result where it is the only one. */
template <typename R>
__device__ inline void leave(const tsi_cuda_reduce_args &a, int64_t piece, int64_t result, R x)
{
    if (a.pieces == 1)
        finish<R>(a, result, x);
    else
        ((R *)a.partial)[piece * a.outer.count + result] = x;
}

/* Pieces first, first + step, ... of a result as one, U on their way at a time; not by way of the
 * nearest cache, which does not see what other blocks of this kernel leave. */
template <typename R, int U>
__device__ inline R pieces_of(const tsi_cuda_reduce_args &a, int op, double power, int64_t result,
                              int first, int step)
{
    R sum = start_of<R>(a);
    for (int64_t p = first; result < a.outer.count && p < a.pieces; p += U * step) {
        R part[U];
#pragma unroll
        for (int u = 0; u < U; u++)
            if (p + u * step < a.pieces)
                part[u] = __ldcg((const R *)a.partial + (p + u * step) * a.outer.count + result);
#pragma unroll
        for (int u = 0; u < U; u++)
            if (p + u * step < a.pieces) sum = join<R>(op, power, sum, part[u]);
    }
    return sum;
}

/* Of G lanes side by side. */
template <int G, typename R> __device__ inline R lanes_join(int op, double power, R x)
{
#pragma unroll
    for (int step = G / 2; step > 0; step /= 2)
        x = join<R>(op, power, x, (R)__shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* Of G threads: one, some lanes of a warp, a warp, or the block. */
template <typename R, int G> __device__ inline R group_join(int op, double power, R x, R *shared)
{
    constexpr int LANES = G < 32 ? G : 32;
    if (G == 1) return x;
    x = lanes_join<LANES>(op, power, x);
    if (G <= 32) return x;
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = shared[0];
    for (int w = 1; w < TSI_CUDA_BLOCK / 32; w++)
        x = join<R>(op, power, x, shared[w]);
    return x;
}

/* ---- any strides and dtypes ------------------------------------------------------------------ */

template <typename R, int G> __device__ void reduce_any(const tsi_cuda_reduce_args &a)
{
    __shared__ R shared[32];
    const tsi_cuda_operand *const outer[1] = { &a.from }, *const inner[1] = { &a.within };
    int64_t total = a.outer.count * a.pieces, step = (int64_t)gridDim.x * (TSI_CUDA_BLOCK / G);
    int lane = threadIdx.x % G;
    for (int64_t item = (int64_t)blockIdx.x * (TSI_CUDA_BLOCK / G) + threadIdx.x / G; item < total;
         item += step) {
        int64_t piece = item / a.outer.count, result = item - piece * a.outer.count;
        int64_t end = end_of(a, piece);
        int64_t base[1], at[1];
        place(a.outer, result, outer, base);
        R sum = start_of<R>(a), center = center_of<R>(a, result);
        for (int64_t i = piece * a.piece + lane; i < end; i += G) {
            place(a.inner, i, inner, at);
            sum = join<R>(a.op, a.power, sum, load_term<R>(a, base[0] + at[0], center));
        }
        sum = group_join<R, G>(a.op, a.power, sum, shared);
        if (lane != 0) continue;
        leave<R>(a, piece, result, sum);
    }
}

/* A block has up to 32 results side by side and the rest of its threads, a power of two, for
 * their pieces. */
template <typename R> __device__ void reduce_finish(const tsi_cuda_reduce_args &a)
{
    __shared__ R shared[TSI_CUDA_REDUCE_LARGE];
    int width = 1;
    while (width < 32 && width < a.outer.count)
        width *= 2;
    int lanes = blockDim.x / width, lane = threadIdx.x / width;
    for (int64_t first = (int64_t)blockIdx.x * width; first < a.outer.count;
         first += (int64_t)gridDim.x * width) {
        int64_t i = first + threadIdx.x % width;
        R sum = pieces_of<R, 4>(a, a.op, a.power, i, lane, lanes);
        __syncthreads();
        shared[threadIdx.x] = sum;
        __syncthreads();
        for (int half = lanes / 2; half > 0; half /= 2) {
            if (lane < half)
                shared[threadIdx.x] =
                    join<R>(a.op, a.power, shared[threadIdx.x], shared[threadIdx.x + half * width]);
            __syncthreads();
        }
        if (lane == 0 && i < a.outer.count) finish<R>(a, i, shared[threadIdx.x]);
    }
}

/* A piece by G threads. */
#define ANY(name, real, G)                                                                         \
    TSI_KERNEL(reduce_any_##G##_##name, tsi_cuda_reduce_args)                                      \
    {                                                                                              \
        reduce_any<real, G>(a);                                                                    \
    }
#define FINISH(name, real)                                                                         \
    TSI_KERNEL_BOUNDED(reduce_finish_##name, tsi_cuda_reduce_args, TSI_CUDA_REDUCE_LARGE)          \
    {                                                                                              \
        reduce_finish<real>(a);                                                                    \
    }
ANY(f32, float, 1)
ANY(f32, float, 32)
ANY(f32, float, 256)
ANY(f64, double, 1)
ANY(f64, double, 32)
ANY(f64, double, 256)
ANY(i64, int64_t, 1)
ANY(i64, int64_t, 32)
ANY(i64, int64_t, 256)
FINISH(f32, float)
FINISH(f64, double)
FINISH(i64, int64_t)

/* ---- rows and columns by 16 bytes: sums and extremes ----------------------------------------- */

/* What a thread has of its piece, and units that change nothing in it. */
template <typename T, int OP> struct joined {
    float value;
    __device__ joined(const tsi_cuda_reduce_args &a) : value(start_of<float>(a))
    {
    }
    __device__ static uint32_t nothing()
    {
        return OP == TSI_CUDA_MAX ? 0xFF800000u : OP == TSI_CUDA_MIN ? 0x7F800000u : 0;
    }
    __device__ void take(const unit_of<typename T::E> &in)
    {
#pragma unroll
        for (int e = 0; e < 16 / (int)sizeof(typename T::E); e++)
            value = join<float>(OP, 0, value, T::load(in.element[e]));
    }
    __device__ float all() const
    {
        return value;
    }
};

/* Extremes of bf16 are bf16: two at a time. */
template <int OP> struct joined_pairs {
    uint32_t both;
    __device__ joined_pairs(const tsi_cuda_reduce_args &a) : both(nothing())
    {
    }
    __device__ static uint32_t nothing()
    {
        return OP == TSI_CUDA_MAX ? 0xFF80FF80u : 0x7F807F80u;
    }
    __device__ void take(const unit_of<uint16_t> &in)
    {
        const uint32_t pair[4] = { in.unit.x, in.unit.y, in.unit.z, in.unit.w };
#pragma unroll
        for (int p = 0; p < 4; p++) {
            if (OP == TSI_CUDA_MAX)
                both = max_of_pairs(both, pair[p]);
            else
                both = min_of_pairs(both, pair[p]);
        }
    }
    __device__ float all() const
    {
        return join<float>(OP, 0, tsi_f32_of_bf16((uint16_t)both),
                           tsi_f32_of_bf16((uint16_t)(both >> 16)));
    }
};
template <> struct joined<as_bf16, TSI_CUDA_MAX> : joined_pairs<TSI_CUDA_MAX> {
    using joined_pairs::joined_pairs;
};
template <> struct joined<as_bf16, TSI_CUDA_MIN> : joined_pairs<TSI_CUDA_MIN> {
    using joined_pairs::joined_pairs;
};

/* The block that leaves the last piece of a row folds all of them. */
template <int OP>
__device__ inline void finish_row(const tsi_cuda_reduce_args &a, int64_t result, float *shared)
{
    __shared__ bool last;
    if (threadIdx.x == 0) last = is_last(&a.tickets[result], a.pieces);
    __syncthreads();
    if (!last) return;
    float sum = pieces_of<float, 4>(a, OP, 0, result, threadIdx.x, TSI_CUDA_BLOCK);
    sum = group_join<float, TSI_CUDA_BLOCK>(OP, 0, sum, shared);
    if (threadIdx.x == 0) finish<float>(a, result, sum);
}

/* G threads a piece, a block where there are several. A warp goes on until the last of its pieces
 * is done: its lanes meet. */
template <typename T, int OP, int G> __device__ void rows_of(const tsi_cuda_reduce_args &a)
{
    constexpr int N = 16 / sizeof(typename T::E), U = G < 32 ? 6 : 4;
    constexpr int MEETS = G < 32 ? 32 / G : 1; /* pieces of those who meet */
    __shared__ float shared[32];
    const tsi_cuda_operand *const outer[1] = { &a.from };
    int64_t total = a.outer.count * a.pieces, step = (int64_t)gridDim.x * (TSI_CUDA_BLOCK / G);
    int lane = threadIdx.x % G, own = threadIdx.x / G % MEETS;
    for (int64_t item = (int64_t)blockIdx.x * (TSI_CUDA_BLOCK / G) + threadIdx.x / G;
         item - own < total; item += step) {
        int64_t piece = a.pieces == 1 ? 0 : item / a.outer.count;
        int64_t result = item - piece * a.outer.count;
        int64_t end = end_of(a, piece);
        int64_t base[1];
        if (item >= total) end = 0;
        place(a.outer, item < total ? result : 0, outer, base);
        const uint4 *from = (const uint4 *)((const typename T::E *)a.from.data + base[0]);
        joined<T, OP> part(a);
        for (int64_t i = piece * a.piece / N + lane; i < end / N; i += U * G) {
            unit_of<typename T::E> in[U];
            uint32_t none = part.nothing();
#pragma unroll
            for (int u = 0; u < U; u++)
                in[u].unit =
                    i + u * G < end / N ? from[i + u * G] : make_uint4(none, none, none, none);
#pragma unroll
            for (int u = 0; u < U; u++)
                part.take(in[u]);
        }
        float sum = group_join<float, G>(OP, 0, part.all(), shared);
        if (lane == 0 && item < total) leave<float>(a, piece, result, sum);
        if constexpr (G == TSI_CUDA_BLOCK)
            if (a.pieces > 1) finish_row<OP>(a, result, shared);
    }
}

/* What the threads of a block of columns share, W units across; N elements are a unit. */
template <int W, int N> struct column_room {
    float sums[TSI_CUDA_REDUCE_LARGE / W][W][N + 1], folds[TSI_CUDA_REDUCE_LARGE];
    bool last;
};

/* The block that leaves the last partial results of a tile folds all of them. */
template <int OP, int W, int N>
__device__ void finish_tile(const tsi_cuda_reduce_args &a, int64_t tile, int64_t column, int part,
                            column_room<W, N> &room)
{
    constexpr int COLUMNS = W * N, PARTS = TSI_CUDA_REDUCE_LARGE / COLUMNS, U = 12;
    __syncthreads();
    if (threadIdx.x == 0) room.last = is_last(&a.tickets[tile], a.pieces);
    __syncthreads();
    if (!room.last) return;
    float sum = pieces_of<float, U>(a, OP, 0, column, part, PARTS);
    room.folds[threadIdx.x] = sum;
    __syncthreads();
    if (part > 0 || column >= a.outer.count) return;
    for (int q = 1; q < PARTS; q++)
        sum = join<float>(OP, 0, sum, room.folds[q * COLUMNS + threadIdx.x]);
    finish<float>(a, column, sum);
}

/* Up to U rows, `step` elements apart, one after the other to a thread's columns. */
template <typename T, int OP, int U>
__device__ inline void join_rows(const typename T::E *from, int64_t step, int rows,
                                 float (&sum)[16 / sizeof(typename T::E)])
{
    constexpr int N = 16 / sizeof(typename T::E);
    uint32_t none = joined<T, OP>::nothing();
    unit_of<typename T::E> in[U];
#pragma unroll
    for (int u = 0; u < U; u++)
        in[u].unit =
            u < rows ? *(const uint4 *)(from + u * step) : make_uint4(none, none, none, none);
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
        for (int e = 0; e < N; e++)
            sum[e] = join<float>(OP, 0, sum[e], T::load(in[u].element[e]));
}

/* The space of results is one dim, a unit of columns each thread. */
template <typename T, int OP, int W>
__device__ void columns_of(const tsi_cuda_reduce_args &a,
                           column_room<W, 16 / sizeof(typename T::E)> &room)
{
    constexpr int N = 16 / sizeof(typename T::E), LANES = TSI_CUDA_REDUCE_LARGE / W, U = 8;
    int64_t units = a.outer.count / N;
    uint32_t tiles = (uint32_t)((units + W - 1) / W); /* as many blocks at least */
    int64_t tile = blockIdx.x % tiles, piece = blockIdx.x / tiles;
    int64_t unit = tile * W + threadIdx.x % W, lane = threadIdx.x / W;
    int64_t end = end_of(a, piece);
    float sum[N];
#pragma unroll
    for (int e = 0; e < N; e++)
        sum[e] = start_of<float>(a);
    int64_t r = piece * a.piece + lane, step = LANES * a.within.stride[0];
    const typename T::E *from =
        (const typename T::E *)a.from.data + r * a.within.stride[0] + unit * N;
    int left = unit < units && r < end ? (int)((end - r + LANES - 1) / LANES) : 0;
    for (; left >= U; left -= U, from += U * step)
        join_rows<T, OP, U>(from, step, U, sum);
    if (left > 0) join_rows<T, OP, U>(from, step, left, sum);
#pragma unroll
    for (int e = 0; e < N; e++)
        room.sums[lane][threadIdx.x % W][e] = sum[e];
    __syncthreads();
    int c = threadIdx.x % (W * N), part = threadIdx.x / (W * N);
    int64_t column = tile * W * N + c;
    if (part == 0 && column < a.outer.count) {
        float all = room.sums[0][c / N][c % N];
#pragma unroll
        for (int l = 1; l < LANES; l++)
            all = join<float>(OP, 0, all, room.sums[l][c / N][c % N]);
        leave<float>(a, piece, column, all);
    }
    if (a.pieces > 1) finish_tile<OP, W, N>(a, tile, column, part, room);
}

/* A unit of columns a thread, all its rows; results are units as well. */
template <typename T, int OP> __device__ void few_of(const tsi_cuda_reduce_args &a)
{
    constexpr int N = 16 / sizeof(typename T::E), U = 4;
    const tsi_cuda_operand *const operands[2] = { &a.from, &a.to };
    int64_t step = a.within.stride[0], first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (int64_t unit = first; unit < a.outer.count / N; unit += (int64_t)gridDim.x * blockDim.x) {
        int64_t offset[2];
        place(a.outer, unit * N, operands, offset);
        const typename T::E *from = (const typename T::E *)a.from.data + offset[0];
        float sum[N];
#pragma unroll
        for (int e = 0; e < N; e++)
            sum[e] = start_of<float>(a);
        for (int left = (int)a.inner.count; left > 0; left -= U, from += U * step)
            join_rows<T, OP, U>(from, step, left, sum);
        *(uint4 *)((typename T::E *)a.to.data + offset[1]) = unit_from<T>(sum);
    }
}

/* A row by G threads; WIDTH blocks are at once on a multiprocessor. */
#define ROWS(name, type, G, WIDTH)                                                                 \
    TSI_KERNEL_BOUNDED(reduce_rows_##G##_##name, tsi_cuda_reduce_args, TSI_CUDA_BLOCK, WIDTH)      \
    {                                                                                              \
        if (a.op == TSI_CUDA_SUM) rows_of<type, TSI_CUDA_SUM, G>(a);                               \
        if (a.op == TSI_CUDA_MAX) rows_of<type, TSI_CUDA_MAX, G>(a);                               \
        if (a.op == TSI_CUDA_MIN) rows_of<type, TSI_CUDA_MIN, G>(a);                               \
    }
#define COLUMNS(name, type, W)                                                                     \
    TSI_KERNEL_BOUNDED(reduce_columns_##W##_##name, tsi_cuda_reduce_args, TSI_CUDA_REDUCE_LARGE)   \
    {                                                                                              \
        __shared__ column_room<W, 16 / sizeof(type::E)> room;                                      \
        if (a.op == TSI_CUDA_SUM) columns_of<type, TSI_CUDA_SUM, W>(a, room);                      \
        if (a.op == TSI_CUDA_MAX) columns_of<type, TSI_CUDA_MAX, W>(a, room);                      \
        if (a.op == TSI_CUDA_MIN) columns_of<type, TSI_CUDA_MIN, W>(a, room);                      \
    }
#define FEW(name, type)                                                                            \
    TSI_KERNEL_BOUNDED(reduce_few_##name, tsi_cuda_reduce_args, TSI_CUDA_BLOCK)                    \
    {                                                                                              \
        if (a.op == TSI_CUDA_SUM) few_of<type, TSI_CUDA_SUM>(a);                                   \
        if (a.op == TSI_CUDA_MAX) few_of<type, TSI_CUDA_MAX>(a);                                   \
        if (a.op == TSI_CUDA_MIN) few_of<type, TSI_CUDA_MIN>(a);                                   \
    }
FEW(f32, as_f32)
FEW(bf16, as_bf16)
ROWS(f32, as_f32, 16, 3)
ROWS(f32, as_f32, 32, 4)
ROWS(f32, as_f32, 256, 4)
ROWS(bf16, as_bf16, 16, 3)
ROWS(bf16, as_bf16, 32, 4)
ROWS(bf16, as_bf16, 256, 4)
COLUMNS(f32, as_f32, 16)
COLUMNS(f32, as_f32, 32)
COLUMNS(bf16, as_bf16, 16)
COLUMNS(bf16, as_bf16, 32)

/* ---- places of extremes: a warp a result ----------------------------------------------------- */

/* Does x at i go before y at j? A NaN goes before all numbers; -1 is no place. */
template <typename R> __device__ inline bool beats(R x, int64_t i, R y, int64_t j, bool least)
{
    if (i < 0 || j < 0) return j < 0 && i >= 0;
    if (x != x || y != y) return x != x && (y == y || i < j);
    if (x == y) return i < j;
    return least ? x < y : x > y;
}

template <typename R> __device__ void extreme(const tsi_cuda_extreme_args &a)
{
    const tsi_cuda_operand *const outer[3] = { &a.from, &a.to, &a.at };
    const tsi_cuda_operand *const inner[1] = { &a.within };
    int lane = threadIdx.x % 32;
    for (int64_t result = first_item() / 32; result < a.outer.count; result += item_step() / 32) {
        int64_t base[3], at[1], place_of = -1;
        R best = 0;
        place(a.outer, result, outer, base);
        for (int64_t i = lane; i < a.inner.count; i += 32) {
            place(a.inner, i, inner, at);
            wide w = load_wide(a.from_dtype, a.from.data, base[0] + at[0]);
            R x = a.whole ? (R)w.whole : (R)w.re;
            if (beats(x, i, best, place_of, a.least)) best = x, place_of = i;
        }
        for (int step = 16; step > 0; step /= 2) {
            R x = (R)__shfl_xor_sync(0xffffffffu, best, step);
            int64_t i = __shfl_xor_sync(0xffffffffu, place_of, step);
            if (beats(x, i, best, place_of, a.least)) best = x, place_of = i;
        }
        if (lane != 0) continue;
        ((int64_t *)a.at.data)[base[2]] = place_of;
        if (!a.to.data) continue;
        if (a.whole)
            store_i64(a.to_dtype, a.to.data, base[1], (int64_t)best);
        else
            store_f64(a.to_dtype, a.to.data, base[1], (double)best, 0);
    }
}

TSI_KERNEL(extreme_f64, tsi_cuda_extreme_args)
{
    extreme<double>(a);
}

TSI_KERNEL(extreme_i64, tsi_cuda_extreme_args)
{
    extreme<int64_t>(a);
}

/* ---- of contiguous rows of f32 and bf16, by units of 16 bytes: the extreme and its unit ------ */

struct found {
    float value;
    int64_t unit; /* -1: none */
};

__device__ inline found first_of_two(found x, found y, bool least)
{
    return beats(x.value, x.unit, y.value, y.unit, least) ? x : y;
}

/* Of the units lane, lane + G, ... of a row: the first one that no other goes before. */
template <typename T, int G, bool LEAST>
__device__ inline found scan_row(const uint4 *row, int64_t units, int lane)
{
    constexpr int N = 16 / sizeof(typename T::E), U = 4;
    found best = { LEAST ? INFINITY : -INFINITY, lane < units ? lane : -1 };
    for (int64_t i = lane; i < units; i += U * G) {
        unit_of<typename T::E> in[U];
#pragma unroll
        for (int u = 0; u < U; u++)
            if (i + u * G < units) in[u].unit = row[i + u * G];
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (i + u * G >= units) break;
            float most = T::load(in[u].element[0]);
#pragma unroll
            for (int e = 1; e < N; e++) {
                float v = T::load(in[u].element[e]);
                most = LEAST ? smaller(most, v) : larger(most, v);
            }
            bool before = LEAST ? most < best.value : most > best.value;
            if (before || (most != most && best.value == best.value)) best = { most, i + u * G };
        }
    }
    return best;
}

/* Of G threads, a warp or the block; the first of them gets the result. */
template <int G> __device__ inline found group_first(found best, bool least)
{
    __shared__ found shared[TSI_CUDA_BLOCK / 32];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        found other = { __shfl_xor_sync(0xffffffffu, best.value, step),
                        __shfl_xor_sync(0xffffffffu, best.unit, step) };
        best = first_of_two(other, best, least);
    }
    if (G == 32) return best;
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = best;
    __syncthreads();
    for (int w = 1; threadIdx.x == 0 && w < G / 32; w++)
        best = first_of_two(shared[w], best, least);
    return best;
}

/* The place within the unit, and the element with its own bits. */
template <typename T>
__device__ inline void name_place(const tsi_cuda_extreme_args &a, const int64_t (&base)[3],
                                  const uint4 *row, found best)
{
    constexpr int N = 16 / sizeof(typename T::E);
    unit_of<typename T::E> in;
    in.unit = row[best.unit];
    int place = 0;
    float value = 0;
#pragma unroll
    for (int e = N - 1; e >= 0; e--) {
        float v = T::load(in.element[e]);
        if (v == best.value || (v != v && best.value != best.value)) place = e, value = v;
    }
    ((int64_t *)a.at.data)[base[2]] = best.unit * N + place;
    if (a.to.data) store_f64(a.to_dtype, a.to.data, base[1], f64_of_f32(value), 0);
}

template <typename T, int G, bool LEAST>
__device__ void extreme_rows(const tsi_cuda_extreme_args &a)
{
    constexpr int N = 16 / sizeof(typename T::E), ROWS = TSI_CUDA_BLOCK / G;
    const tsi_cuda_operand *const outer[3] = { &a.from, &a.to, &a.at };
    int lane = threadIdx.x % G;
    for (int64_t result = (int64_t)blockIdx.x * ROWS + threadIdx.x / G; result < a.outer.count;
         result += (int64_t)gridDim.x * ROWS) {
        int64_t base[3];
        place(a.outer, result, outer, base);
        const uint4 *row = (const uint4 *)((const typename T::E *)a.from.data + base[0]);
        found best = scan_row<T, G, LEAST>(row, a.inner.count / N, lane);
        best = group_first<G>(best, LEAST);
        if (lane == 0) name_place<T>(a, base, row, best);
    }
}

#define EXTREME_ROWS(name, type, G)                                                                \
    TSI_KERNEL_BOUNDED(extreme_rows_##G##_##name, tsi_cuda_extreme_args, TSI_CUDA_BLOCK, 4)        \
    {                                                                                              \
        if (a.least)                                                                               \
            extreme_rows<type, G, true>(a);                                                        \
        else                                                                                       \
            extreme_rows<type, G, false>(a);                                                       \
    }
EXTREME_ROWS(f32, as_f32, 32)
EXTREME_ROWS(f32, as_f32, 256)
EXTREME_ROWS(bf16, as_bf16, 32)
EXTREME_ROWS(bf16, as_bf16, 256)
