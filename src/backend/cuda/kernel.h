/* SPDX-License-Identifier: Apache-2.0 */
/* kernel.h - the kernels of operators on a GPU, as kernels.def names them.
 *
 * INV: a kernel launches in the order of io->queue and returns; it declines (TSI_KERNEL_DECLINED)
 * what it has no code for, before anything was launched, and the host's kernel runs. */
#ifndef TSI_BACKEND_CUDA_KERNEL_H
#define TSI_BACKEND_CUDA_KERNEL_H

#include "backend/cuda/cuda.h"
#include "op/core/kernel.h"

#define TS_KERNEL(name, fn) ts_status fn(const tsi_kernel_io *io);
#define TS_LIST_KERNEL(name, fn) ts_status fn(const tsi_list_io *io);
#include "backend/cuda/kernels.def"
#undef TS_KERNEL
#undef TS_LIST_KERNEL

/* swiglu of bf16 rows that lie apart; what it declines goes by pointwise.c as others do. */
ts_status tsi_cuda_swiglu_rows(const tsi_kernel_io *io);

#endif
