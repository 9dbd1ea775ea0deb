/* SPDX-License-Identifier: Apache-2.0 */
/* contract.h - the cpu's contraction: one product kernel behind matmul, linear and einsum. */
#ifndef TSI_BACKEND_CPU_CONTRACT_H
#define TSI_BACKEND_CPU_CONTRACT_H

#include "backend/cpu/cpu.h"
#include "op/matrix/contract.h"

/* Any dtype, any strides; those without fast products go through the plain loops. */
ts_status tsi_cpu_contract(const tsi_contraction *contraction, bool accumulate);
void tsi_cpu_blend(const tsi_kernel_io *io, const tsi_block *added, double alpha, double beta);
/* tsi_kernels.rows_alone. */
bool tsi_cpu_rows_alone(ts_dtype dtype);

#endif
