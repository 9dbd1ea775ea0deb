/* SPDX-License-Identifier: Apache-2.0 */
/* cast.c - cast and clone: the device's own copy. */
#include "backend/cuda/kernel.h"

ts_status tsi_cuda_cast(const tsi_kernel_io *io)
{
    return tsi_cuda_copy(io->device, &io->out[0].block, &io->in[0].block, io->queue);
}
