/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu.c - both gradients of swiglu by the kernels of each. */
#include "op/pointwise/swiglu.h"

#include "backend/cpu/cpu.h"

ts_status tsi_cpu_swiglu_gradients(const tsi_kernel_io *io)
{
    return tsi_swiglu_gradients_by(io, tsi_kernel_of(tsi_device_host(), &tsi_op_swiglu_backward),
                                   tsi_kernel_of(tsi_device_host(), &tsi_op_swiglu));
}
