/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.h - kinds of dtypes, and the kernel of one. op/core/element.h has the same for the core, of
 * which a module needs no symbol. */
#ifndef TSI_BACKEND_CUDA_DTYPE_H
#define TSI_BACKEND_CUDA_DTYPE_H

#include "backend/cuda/cuda.h"
#include "base/dtype.h"

/* What f32 holds: computed in it. */
static inline bool tsi_cuda_is_narrow(int32_t dtype)
{
    return dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_BF16 || dtype == TS_DTYPE_F16;
}

static inline bool tsi_cuda_is_real(int32_t dtype)
{
    return tsi_dtype_is_real(dtype);
}

static inline bool tsi_cuda_is_whole(int32_t dtype)
{
    return dtype == TS_DTYPE_I64 || dtype == TS_DTYPE_I32 || dtype == TS_DTYPE_I16 ||
           dtype == TS_DTYPE_I8 || dtype == TS_DTYPE_U8;
}

static inline bool tsi_cuda_is_complex(int32_t dtype)
{
    return tsi_dtype_is_complex(dtype);
}

/* Of a real one. */
static inline tsi_cuda_kernel tsi_cuda_by_dtype(int32_t dtype,
                                                const tsi_cuda_kernel *f32_f64_bf16_f16)
{
    return f32_f64_bf16_f16[dtype == TS_DTYPE_F32    ? 0
                            : dtype == TS_DTYPE_F64  ? 1
                            : dtype == TS_DTYPE_BF16 ? 2
                                                     : 3];
}

#endif
