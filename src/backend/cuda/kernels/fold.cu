/* SPDX-License-Identifier: Apache-2.0 */
/* fold.cu - to[i] = from[0][i] op from[1][i] op ..., in that order, one rounding.
 *
 * INV: the operations of an element are those of the host in the same order (compiled without
 * fusing), so the bits are the same; where a NaN comes about they are any NaN. */
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/kernel.cuh"
#include "device/number.h"
#include "tessera/types.h"

/* A type of memory: how it is loaded and stored, and the words in which is added and divided. */
template <typename E, typename V, typename W, typename Q> struct plain {
    typedef E element;
    typedef V value;
    typedef W word;
    typedef Q quotient;
    __device__ static V load(E x)
    {
        return (V)x;
    }
    __device__ static E store(V x)
    {
        return (E)x;
    }
};
typedef plain<double, double, double, double> f64;
typedef plain<float, float, float, float> f32;
typedef plain<int64_t, int64_t, uint64_t, int64_t> i64;
/* Narrow ones in 64 bits: what is stored of a sum or product wraps all the same, and an average has
 * the whole sum. */
typedef plain<int32_t, int64_t, uint64_t, int64_t> i32;
typedef plain<int16_t, int64_t, uint64_t, int64_t> i16;
typedef plain<int8_t, int64_t, uint64_t, int64_t> i8;
typedef plain<uint8_t, int64_t, uint64_t, int64_t> u8;
struct bf16 : plain<uint16_t, float, float, float> {
    __device__ static float load(uint16_t x)
    {
        return tsi_f32_of_bf16(x);
    }
    __device__ static uint16_t store(float x)
    {
        return tsi_bf16_of_f32(x);
    }
};
struct f16 : plain<uint16_t, float, float, float> {
    __device__ static float load(uint16_t x)
    {
        return tsi_f32_of_f16(x);
    }
    __device__ static uint16_t store(float x)
    {
        return tsi_f16_of_f32(x);
    }
};

/* Of equal values the earlier one stays; a NaN stays from where it first occurs. */
template <typename T> __device__ typename T::value lesser(typename T::value x, typename T::value y)
{
    typename T::value m = x <= y ? x : y;
    return x != x ? x : m;
}

template <typename T> __device__ typename T::value greater(typename T::value x, typename T::value y)
{
    typename T::value m = x >= y ? x : y;
    return x != x ? x : m;
}

/* Numbers: sum avg min max prod. */
template <typename T> struct number : T {
    typedef typename T::value V;
    typedef typename T::word W;
    __device__ static V first(int32_t, V x)
    {
        return x;
    }
    __device__ static V apply(int32_t reduce, V x, V y)
    {
        switch (reduce) {
        case TS_REDUCE_MIN:
            return lesser<T>(x, y);
        case TS_REDUCE_MAX:
            return greater<T>(x, y);
        case TS_REDUCE_PROD:
            return (V)((W)x * (W)y);
        default:
            return (V)((W)x + (W)y);
        }
    }
    __device__ static V finish(int32_t reduce, V x, int64_t divisor)
    {
        typedef typename T::quotient Q;
        return reduce == TS_REDUCE_AVG ? (V)((Q)x / (Q)divisor) : x;
    }
};

/* Whole numbers: those, and logic and bits. */
template <typename T> struct whole : number<T> {
    typedef typename T::value V;
    __device__ static V first(int32_t reduce, V x)
    {
        return reduce == TS_REDUCE_AND || reduce == TS_REDUCE_OR ? (V)(x != 0) : x;
    }
    __device__ static V apply(int32_t reduce, V x, V y)
    {
        switch (reduce) {
        case TS_REDUCE_AND:
            return (V)((x != 0) & (y != 0));
        case TS_REDUCE_OR:
            return (V)((x != 0) | (y != 0));
        case TS_REDUCE_BAND:
            return (V)(x & y);
        case TS_REDUCE_BOR:
            return (V)(x | y);
        default:
            return number<T>::apply(reduce, x, y);
        }
    }
};

/* A bool may come as any byte: every reduction is a logical one. */
struct logic : plain<uint8_t, uint8_t, uint32_t, int64_t> {
    __device__ static uint8_t first(int32_t, uint8_t x)
    {
        return x != 0;
    }
    __device__ static uint8_t apply(int32_t reduce, uint8_t x, uint8_t y)
    {
        bool all = reduce == TS_REDUCE_MIN || reduce == TS_REDUCE_AND || reduce == TS_REDUCE_BAND;
        return all ? (x != 0) & (y != 0) : (x != 0) | (y != 0);
    }
    __device__ static uint8_t finish(int32_t, uint8_t x, int64_t)
    {
        return x;
    }
};

/* Complex: sum avg prod, as pairs; products as (ac - bd, ad + bc). */
template <typename R> struct pair_of {
    R re, im;
};
template <typename R> struct complex_of : plain<pair_of<R>, pair_of<R>, R, R> {
    typedef pair_of<R> V;
    __device__ static V load(V x)
    {
        return x;
    }
    __device__ static V store(V x)
    {
        return x;
    }
    __device__ static V first(int32_t, V x)
    {
        return x;
    }
    __device__ static V apply(int32_t reduce, V x, V y)
    {
        V sum = { x.re + y.re, x.im + y.im };
        V product = { x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re };
        return reduce == TS_REDUCE_PROD ? product : sum;
    }
    __device__ static V finish(int32_t reduce, V x, int64_t divisor)
    {
        V quotient = { x.re / (R)divisor, x.im / (R)divisor };
        return reduce == TS_REDUCE_AVG ? quotient : x;
    }
};

__device__ inline const tsi_cuda_operand &source(const tsi_cuda_fold_args &a, int64_t k)
{
    return a.more ? a.more[k] : a.from[k];
}

template <typename T> __device__ void fold_one(const tsi_cuda_fold_args &a, int64_t i)
{
    typedef typename T::element E;
    const tsi_cuda_operand *const to[1] = { &a.to };
    int64_t offset[1];
    typename T::value value;
    for (int64_t k = 0; k < a.sources; k++) {
        const tsi_cuda_operand *const from[1] = { &source(a, k) };
        place(a.space, i, from, offset);
        typename T::value next = T::load(((const E *)from[0]->data)[offset[0]]);
        value = k == 0 ? T::first(a.reduce, next) : T::apply(a.reduce, value, next);
    }
    place(a.space, i, to, offset);
    ((E *)a.to.data)[offset[0]] = T::store(T::finish(a.reduce, value, a.divisor));
}

/* 16 bytes of a contiguous row, four sources on their way at a time. R 0: any reduction. */
template <typename T, int N, int32_t R>
__device__ void fold_row(const tsi_cuda_fold_args &a, int64_t i)
{
    union {
        uint4 unit;
        typename T::element element[N];
    } in[4];
    const int32_t reduce = R ? R : a.reduce;
    typename T::value value[N];
    for (int64_t k = 0; k < a.sources; k += 4) {
#pragma unroll
        for (int s = 0; s < 4; s++)
            if (k + s < a.sources) in[s].unit = ((const uint4 *)source(a, k + s).data)[i];
#pragma unroll
        for (int s = 0; s < 4; s++) {
            if (k + s >= a.sources) break;
#pragma unroll
            for (int e = 0; e < N; e++) {
                typename T::value next = T::load(in[s].element[e]);
                value[e] = k + s == 0 ? T::first(reduce, next) : T::apply(reduce, value[e], next);
            }
        }
    }
#pragma unroll
    for (int e = 0; e < N; e++)
        in[0].element[e] = T::store(T::finish(reduce, value[e], a.divisor));
    ((uint4 *)a.to.data)[i] = in[0].unit;
}

template <typename T> __device__ void fold_all(const tsi_cuda_fold_args &a)
{
    constexpr int N = 16 / sizeof(typename T::element);
    if (!a.dense) {
        for (int64_t i = first_item(); i < a.space.count; i += item_step())
            fold_one<T>(a, i);
        return;
    }
    int64_t rows = a.space.count / N;
    if (a.reduce == TS_REDUCE_SUM)
        for (int64_t i = first_item(); i < rows; i += item_step())
            fold_row<T, N, TS_REDUCE_SUM>(a, i);
    else
        for (int64_t i = first_item(); i < rows; i += item_step())
            fold_row<T, N, 0>(a, i);
    int64_t rest = rows * N + first_item();
    if (rest < a.space.count) fold_one<T>(a, rest);
}

#define FOLD(name, type)                                                                           \
    TSI_KERNEL(fold_##name, tsi_cuda_fold_args)                                                    \
    {                                                                                              \
        fold_all<type>(a);                                                                         \
    }
FOLD(f64, number<f64>)
FOLD(f32, number<f32>)
FOLD(bf16, number<bf16>)
FOLD(f16, number<f16>)
FOLD(i64, whole<i64>)
FOLD(i32, whole<i32>)
FOLD(i16, whole<i16>)
FOLD(i8, whole<i8>)
FOLD(u8, whole<u8>)
FOLD(bool, logic)
FOLD(c64, complex_of<float>)
FOLD(c128, complex_of<double>)
