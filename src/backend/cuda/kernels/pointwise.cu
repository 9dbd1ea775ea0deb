/* SPDX-License-Identifier: Apache-2.0 */
/* pointwise.cu - elementwise operators (pointwise.def).
 *
 *   pointwise_f32, _bf16   hot operators by 16 bytes: dense operands of one dtype, or one number
 *   pointwise_rows_*       the same where the last dim is contiguous, or one number for all of it
 *   pointwise_any_*        every operator, any strides and dtypes, element by element in f32, f64
 *                          or int64
 *
 * The operator is the same for a launch: a switch costs a branch that all threads take alike. */
#include "backend/cuda/kernels/brief.cuh"
#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/number.cuh"
#include "backend/cuda/kernels/real.cuh"
#include "backend/cuda/kernels/scalar.cuh"

#define NONE 0

/* ---- any strides and dtypes ------------------------------------------------------------------ */

template <typename R> __device__ inline R load_any(int32_t dtype, const void *data, int64_t i)
{
    switch (dtype) {
    case TS_DTYPE_F32:
        return (R)((const float *)data)[i];
    case TS_DTYPE_BF16:
        return (R)tsi_f32_of_bf16(((const uint16_t *)data)[i]);
    case TS_DTYPE_F16:
        return (R)tsi_f32_of_f16(((const uint16_t *)data)[i]);
    case TS_DTYPE_F64:
        return (R)((const double *)data)[i];
    case TS_DTYPE_BOOL:
        return (R)(((const uint8_t *)data)[i] != 0);
    default:
        return (R)load_wide(dtype, data, i).whole;
    }
}

template <> __device__ inline int64_t load_any<int64_t>(int32_t dtype, const void *data, int64_t i)
{
    return load_wide(dtype, data, i).whole;
}

__device__ inline void store_any(int32_t dtype, void *data, int64_t i, float x)
{
    switch (dtype) {
    case TS_DTYPE_F32:
        ((float *)data)[i] = x;
        break;
    case TS_DTYPE_BF16:
        ((uint16_t *)data)[i] = tsi_bf16_of_f32(x);
        break;
    case TS_DTYPE_F16:
        ((uint16_t *)data)[i] = tsi_f16_of_f32(x);
        break;
    default:
        store_f64(dtype, data, i, x, 0);
        break;
    }
}

__device__ inline void store_any(int32_t dtype, void *data, int64_t i, double x)
{
    store_f64(dtype, data, i, x, 0);
}

__device__ inline void store_any(int32_t dtype, void *data, int64_t i, int64_t x)
{
    store_i64(dtype, data, i, x);
}

template <typename R>
__device__ inline R apply(const tsi_cuda_pointwise_args &a, R x, R y, R z, R n0, R n1)
{
    int flag = a.flag;
    switch (a.op) {
#define TSI_HOT(name, real, whole)                                                                 \
    case TSI_POINTWISE_##name:                                                                     \
        return R(real);
#define TSI_POINT(name, real, whole)                                                               \
    case TSI_POINTWISE_##name:                                                                     \
        return R(real);
#include "backend/cuda/kernels/pointwise.def"
#undef TSI_HOT
#undef TSI_POINT
    default:
        return x;
    }
}

template <>
__device__ inline int64_t apply<int64_t>(const tsi_cuda_pointwise_args &a, int64_t x, int64_t y,
                                         int64_t z, int64_t n0, int64_t n1)
{
    int flag = a.flag;
    double r0 = a.number[0], r1 = a.number[1];
    switch (a.op) {
#define TSI_HOT(name, real, whole)                                                                 \
    case TSI_POINTWISE_##name:                                                                     \
        return whole;
#define TSI_POINT(name, real, whole)                                                               \
    case TSI_POINTWISE_##name:                                                                     \
        return whole;
#include "backend/cuda/kernels/pointwise.def"
#undef TSI_HOT
#undef TSI_POINT
    default:
        return x;
    }
}

template <typename R> __device__ void walk(const tsi_cuda_pointwise_args &a)
{
    const tsi_cuda_operand *const operands[4] = { &a.to, &a.from[0], &a.from[1], &a.from[2] };
    R n0 = (R)a.number[0], n1 = (R)a.number[1];
    for (int64_t i = first_item(); i < a.space.count; i += item_step()) {
        int64_t offset[4];
        place(a.space, i, operands, offset);
        R x[3] = { 0, 0, 0 };
        for (int k = 0; k < a.inputs; k++)
            x[k] = load_any<R>(a.dtype[1 + k], a.from[k].data, offset[1 + k]);
        store_any(a.dtype[0], a.to.data, offset[0], apply<R>(a, x[0], x[1], x[2], n0, n1));
    }
}

extern "C" __global__ void pointwise_any(const __grid_constant__ tsi_cuda_pointwise_args a)
{
    walk<float>(a);
}

extern "C" __global__ void pointwise_any_f64(const __grid_constant__ tsi_cuda_pointwise_args a)
{
    walk<double>(a);
}

extern "C" __global__ void pointwise_any_i64(const __grid_constant__ tsi_cuda_pointwise_args a)
{
    walk<int64_t>(a);
}

/* ---- hot ones by 16 bytes -------------------------------------------------------------------- */

#define TSI_HOT(name, real, whole)                                                                 \
    struct fn_##name {                                                                             \
        template <typename R> __device__ static R apply(R x, R y, R z, R n0, R n1)                 \
        {                                                                                          \
            (void)x, (void)y, (void)z, (void)n0, (void)n1;                                         \
            return real;                                                                           \
        }                                                                                          \
    };
#define TSI_POINT(name, real, whole)
#include "backend/cuda/kernels/pointwise.def"
#undef TSI_HOT
#undef TSI_POINT

/* The tail of a dense row that is no whole unit. */
template <typename F, typename T> __device__ inline void rest(const tsi_cuda_pointwise_args &a)
{
    constexpr int N = 16 / sizeof(typename T::E);
    typedef typename T::R R;
    int64_t i = a.space.count * N + first_item();
    if (i >= a.count) return;
    R x[3] = { 0, 0, 0 };
    for (int k = 0; k < a.inputs; k++)
        x[k] = T::load(((const typename T::E *)a.from[k].data)[a.single >> k & 1 ? 0 : i]);
    ((typename T::E *)a.to.data)[i] =
        T::store(F::apply(x[0], x[1], x[2], (R)a.number[0], (R)a.number[1]));
}

/* One operand's unit: 16 bytes, or one number eight (four) times. */
template <typename E> __device__ inline unit_of<E> load_operand(const E *from, bool single)
{
    unit_of<E> in;
    if (single) {
        E one = *from;
#pragma unroll
        for (int e = 0; e < 16 / (int)sizeof(E); e++)
            in.element[e] = one;
    } else {
        in.unit = *(const uint4 *)from;
    }
    return in;
}

template <typename F, typename T>
__device__ inline uint4 apply_unit(const tsi_cuda_pointwise_args &a,
                                   const unit_of<typename T::E> (&in)[3])
{
    typedef typename T::R R;
    unit_of<typename T::E> out;
#pragma unroll
    for (int e = 0; e < 16 / (int)sizeof(typename T::E); e++) {
        R x = T::load(in[0].element[e]), y = 0, z = 0;
        if (a.inputs > 1) y = T::load(in[1].element[e]);
        if (a.inputs > 2) z = T::load(in[2].element[e]);
        out.element[e] = T::store(F::apply(x, y, z, (R)a.number[0], (R)a.number[1]));
    }
    return out.unit;
}

/* Two units a thread on their way. Of one dim, a unit's number is its place; of several, places are
 * worked out. */
template <typename F, typename T, bool DENSE> __device__ void rows(const tsi_cuda_pointwise_args &a)
{
    constexpr int N = 16 / sizeof(typename T::E), U = 2;
    typedef typename T::E E;
    const tsi_cuda_operand *const operands[4] = { &a.to, &a.from[0], &a.from[1], &a.from[2] };
    for (int64_t i = first_of<U>(); i < a.space.count; i += step_of<U>()) {
        unit_of<E> in[U][3];
        int64_t offset[U][4];
#pragma unroll
        for (int u = 0; u < U; u++) {
            int64_t unit = i + u * TSI_CUDA_BLOCK;
            if (unit >= a.space.count) continue;
            if (!DENSE) place(a.space, unit, operands, offset[u]);
#pragma unroll
            for (int k = 0; k < 3; k++) {
                if (k >= a.inputs) break;
                bool single = a.single >> k & 1;
                int64_t at = !DENSE ? offset[u][1 + k] : single ? 0 : unit * N;
                in[u][k] = load_operand<E>((const E *)a.from[k].data + at, single);
            }
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            int64_t unit = i + u * TSI_CUDA_BLOCK;
            if (unit >= a.space.count) continue;
            int64_t at = DENSE ? unit * N : offset[u][0];
            *(uint4 *)((E *)a.to.data + at) = apply_unit<F, T>(a, in[u]);
        }
    }
    if (DENSE) rest<F, T>(a);
}

#define TSI_POINT(name, real, whole)

extern "C" __global__ void pointwise_f32(const __grid_constant__ tsi_cuda_pointwise_args a)
{
    switch (a.op) {
#define TSI_HOT(name, real, whole)                                                                 \
    case TSI_POINTWISE_##name:                                                                     \
        rows<fn_##name, as_f32, true>(a);                                                          \
        break;
#include "backend/cuda/kernels/pointwise.def"
#undef TSI_HOT
    }
}

extern "C" __global__ void pointwise_bf16(const __grid_constant__ tsi_cuda_pointwise_args a)
{
    switch (a.op) {
#define TSI_HOT(name, real, whole)                                                                 \
    case TSI_POINTWISE_##name:                                                                     \
        rows<fn_##name, as_brief, true>(a);                                                        \
        break;
#include "backend/cuda/kernels/pointwise.def"
#undef TSI_HOT
    }
}

extern "C" __global__ void pointwise_rows_f32(const __grid_constant__ tsi_cuda_pointwise_args a)
{
    switch (a.op) {
#define TSI_HOT(name, real, whole)                                                                 \
    case TSI_POINTWISE_##name:                                                                     \
        rows<fn_##name, as_f32, false>(a);                                                         \
        break;
#include "backend/cuda/kernels/pointwise.def"
#undef TSI_HOT
    }
}

extern "C" __global__ void pointwise_rows_bf16(const __grid_constant__ tsi_cuda_pointwise_args a)
{
    switch (a.op) {
#define TSI_HOT(name, real, whole)                                                                 \
    case TSI_POINTWISE_##name:                                                                     \
        rows<fn_##name, as_brief, false>(a);                                                       \
        break;
#include "backend/cuda/kernels/pointwise.def"
#undef TSI_HOT
    }
}
