/* SPDX-License-Identifier: Apache-2.0 */
/* brief.cuh - an f32 whose functions are the GPU's short ones: for results that are rounded to
 * bf16, which has 8 bits of the 20 they are right in. */
#ifndef TSI_BACKEND_CUDA_KERNELS_BRIEF_CUH
#define TSI_BACKEND_CUDA_KERNELS_BRIEF_CUH

#include "backend/cuda/kernels/real.cuh"

struct brief {
    float v;
    brief() = default;
    template <typename N> __device__ brief(N x) : v((float)x)
    {
    }
    __device__ explicit operator float() const
    {
        return v;
    }
};

#define BRIEF_TWO(op)                                                                              \
    __device__ inline brief operator op(brief a, brief b)                                          \
    {                                                                                              \
        return a.v op b.v;                                                                         \
    }
BRIEF_TWO(+)
BRIEF_TWO(-)
BRIEF_TWO(*)
#undef BRIEF_TWO
#define BRIEF_TEST(op)                                                                             \
    __device__ inline bool operator op(brief a, brief b)                                           \
    {                                                                                              \
        return a.v op b.v;                                                                         \
    }
BRIEF_TEST(<)
BRIEF_TEST(>)
BRIEF_TEST(<=)
BRIEF_TEST(>=)
BRIEF_TEST(==)
BRIEF_TEST(!=)
#undef BRIEF_TEST
__device__ inline brief operator-(brief a)
{
    return -a.v;
}
__device__ inline brief operator/(brief a, brief b)
{
    return __fdividef(a.v, b.v);
}
__device__ inline bool isinf(brief a)
{
    return isinf(a.v);
}
__device__ inline brief exp(brief a)
{
    return __expf(a.v);
}
/* From e^-2|x|, which is never large. */
__device__ inline brief tanh(brief a)
{
    float e = __expf(-2.0f * fabsf(a.v));
    return copysignf(__fdividef(1.0f - e, 1.0f + e), a.v);
}
#define BRIEF_SAME(name, function)                                                                 \
    __device__ inline brief name(brief a)                                                          \
    {                                                                                              \
        return function(a.v);                                                                      \
    }
BRIEF_SAME(fabs, fabsf)
BRIEF_SAME(sqrt, sqrtf)
BRIEF_SAME(log, logf)
BRIEF_SAME(erf, erff)
BRIEF_SAME(sin, sinf)
BRIEF_SAME(cos, cosf)
#undef BRIEF_SAME
__device__ inline brief pow(brief a, brief b)
{
    return powf(a.v, b.v);
}

/* bf16 in memory, computed so. */
struct as_brief {
    typedef uint16_t E;
    typedef brief R;
    __device__ static brief load(uint16_t x)
    {
        return tsi_f32_of_bf16(x);
    }
    __device__ static uint16_t store(brief x)
    {
        return bf16_of(x.v);
    }
};

#endif
