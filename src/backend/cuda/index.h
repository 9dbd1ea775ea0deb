/* SPDX-License-Identifier: Apache-2.0 */
/* index.h - what kernels with index tensors share (index.c). */
#ifndef TSI_BACKEND_CUDA_INDEX_H
#define TSI_BACKEND_CUDA_INDEX_H

#include "backend/cuda/cuda.h"
#include "op/core/kernel.h"

/* Whether two operands hold the same indices of every dim but `dim`. */
bool tsi_cuda_are_alike(const tsi_operand *a, const tsi_operand *b, int32_t dim);
/* Every index of an input is below `bound`; `wraps`: negative ones count from the end. What is
 * wrong is told by the next wait, as a complaint of this kind; what runs behind it can ask. */
ts_status tsi_cuda_index_check(const tsi_kernel_io *io, int32_t input, int32_t kind, int64_t bound,
                               bool wraps, tsi_cuda_asker *asker);

#endif
