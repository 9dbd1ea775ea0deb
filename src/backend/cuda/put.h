/* SPDX-License-Identifier: Apache-2.0 */
/* put.h - sums at places that claims point at (put.c). */
#ifndef TSI_BACKEND_CUDA_PUT_H
#define TSI_BACKEND_CUDA_PUT_H

#include "backend/cuda/cuda.h"

/* Whether so many claims can be added into so many rows. */
static inline bool tsi_cuda_put_adds(int64_t claims, int64_t rows)
{
    return claims <= INT32_MAX && rows <= INT32_MAX;
}
/* far += near, in the order of the claims: the space is theirs, `rest` what each of them adds. */
ts_status tsi_cuda_put_add(tsi_stream *stream, tsi_cuda_put_args *a);

#endif
