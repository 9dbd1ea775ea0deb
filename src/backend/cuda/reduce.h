/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.h - reductions for those who need one inside of a kernel of their own. */
#ifndef TSI_BACKEND_CUDA_REDUCE_H
#define TSI_BACKEND_CUDA_REDUCE_H

#include "backend/cuda/cuda.h"

/* The sum of all elements over `divide` to the one element of `out`. */
ts_status tsi_cuda_sum_all(tsi_stream *stream, const tsi_block *in, const tsi_block *out,
                           double divide);

#endif
