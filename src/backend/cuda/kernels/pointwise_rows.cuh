/* SPDX-License-Identifier: Apache-2.0 */
/* pointwise_rows.cuh - hot elementwise operators (TSI_HOT of scalars.def) by 16 bytes, for the
 * two files that make kernels of them: dense operands of one dtype, or rows whose last dim is
 * contiguous; an operand may be one number for all of it. */
#ifndef TSI_BACKEND_CUDA_KERNELS_POINTWISE_ROWS_CUH
#define TSI_BACKEND_CUDA_KERNELS_POINTWISE_ROWS_CUH

#include "backend/cuda/kernels/index.cuh"
#include "backend/cuda/kernels/real.cuh"
#include "op/pointwise/scalars.h"

#define TSI_HOT(name, real, whole)                                                                 \
    struct fn_##name {                                                                             \
        template <typename R> __device__ static R apply(R x, R y, R z, R n0, R n1)                 \
        {                                                                                          \
            (void)x, (void)y, (void)z, (void)n0, (void)n1;                                         \
            return real;                                                                           \
        }                                                                                          \
    };
#define TSI_POINT(name, real, whole)
#include "op/pointwise/scalars.def"
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

/* Offsets of a unit. Rows that lie apart, as columns of one block do, are two dims: one division
 * for all operands. */
__device__ inline void place_unit(const tsi_cuda_pointwise_args &a, int64_t unit,
                                  int64_t (&offset)[4])
{
    const tsi_cuda_operand *const operands[4] = { &a.to, &a.from[0], &a.from[1], &a.from[2] };
    if (a.space.ndim != 2 || !is_small(a.space)) {
        place(a.space, unit, operands, offset);
        return;
    }
    uint32_t row = divide((uint32_t)unit, a.space.by[1]);
    uint32_t column = (uint32_t)unit - row * (uint32_t)a.space.extent[1];
#pragma unroll
    for (int k = 0; k < 4; k++)
        offset[k] = (int64_t)row * operands[k]->stride[0] +
                    (int64_t)column * operands[k]->stride[1];
}

/* U units a thread on their way. Of one dim, a unit's number is its place; of several, places are
 * worked out. */
template <typename F, typename T, bool DENSE, int U>
__device__ inline void rows_by(const tsi_cuda_pointwise_args &a)
{
    constexpr int N = 16 / sizeof(typename T::E);
    typedef typename T::E E;
    for (int64_t i = first_of<U>(); i < a.space.count; i += step_of<U>()) {
        unit_of<E> in[U][3];
        int64_t offset[U][4];
#pragma unroll
        for (int u = 0; u < U; u++) {
            int64_t unit = i + u * TSI_CUDA_BLOCK;
            if (unit >= a.space.count) continue;
            if (!DENSE) place_unit(a, unit, offset[u]);
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

/* Grids are made for two units a thread; of one input four keep as many bytes on their way. */
template <typename F, typename T, bool DENSE> __device__ void rows(const tsi_cuda_pointwise_args &a)
{
    if (DENSE && a.inputs == 1)
        rows_by<F, T, DENSE, 4>(a);
    else
        rows_by<F, T, DENSE, 2>(a);
}

#define TSI_POINT(name, real, whole)

#endif
