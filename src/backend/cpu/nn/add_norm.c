/* SPDX-License-Identifier: Apache-2.0 */
/* add_norm.c - residual and norm by the kernels of add and rms_norm: the host's caches make one
 * pass of two where rows are short, and nothing is lost where they are not. */
#include "op/nn/add_norm.h"

#include "backend/cpu/cpu.h"

static ts_status nothing(const tsi_kernel_io *io)
{
    (void)io;
    return TS_OK;
}

/* A sum takes no scratch, so none is needed where the call is for scratch alone. */
static tsi_kernel_fn sum_for(const tsi_kernel_io *io)
{
    return tsi_dry(io->rank) ? nothing : tsi_kernel_of(tsi_device_host(), &tsi_op_add);
}

ts_status tsi_cpu_add_rms_norm(const tsi_kernel_io *io)
{
    return tsi_add_rms_norm_by(io, sum_for(io), tsi_cpu_norm);
}

ts_status tsi_cpu_add_rms_norm_backward(const tsi_kernel_io *io)
{
    return tsi_add_rms_norm_backward_by(io, tsi_cpu_norm_backward, sum_for(io));
}
