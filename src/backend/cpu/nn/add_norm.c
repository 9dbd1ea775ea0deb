/* SPDX-License-Identifier: Apache-2.0 */
/* add_norm.c - residual and norm by the kernels of add and rms_norm: the host's caches make one
 * pass of two where rows are short, and nothing is lost where they are not. */
#include "op/nn/add_norm.h"

#include "backend/cpu/cpu.h"

ts_status tsi_cpu_add_rms_norm(const tsi_kernel_io *io)
{
    return tsi_add_rms_norm_by(io, tsi_kernel_of(tsi_device_host(), &tsi_op_add), tsi_cpu_norm);
}

ts_status tsi_cpu_add_rms_norm_backward(const tsi_kernel_io *io)
{
    return tsi_add_rms_norm_backward_by(io, tsi_cpu_norm_backward,
                                        tsi_kernel_of(tsi_device_host(), &tsi_op_add));
}
