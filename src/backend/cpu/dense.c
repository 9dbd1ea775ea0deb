/* SPDX-License-Identifier: Apache-2.0 */
/* dense.c - operands for loops that know no strides: where they lie if they are dense, else copies
 * around the loops. */
#include "backend/cpu/data.h"

ts_status tsi_hold(const tsi_kernel_io *io, const tsi_block *block, ts_dtype dtype, bool out,
                   tsi_held *held)
{
    *held = (tsi_held){ .block = block, .dense = *block, .out = out };
    if (block->dtype == (int32_t)dtype && tsi_block_is_dense(block)) return TS_OK;
    int64_t stride = 1;
    held->dense.dtype = (int32_t)dtype;
    for (int32_t d = block->ndim - 1; d >= 0; d--) {
        held->dense.stride[d] = stride;
        stride *= block->extent[d];
    }
    TSI_TRY(tsi_scratch_get(&held->scratch, io->rank, (size_t)stride, ts_dtype_size(dtype)));
    held->dense.data = held->scratch.data;
    return out ? TS_OK : tsi_copy_all(io, &held->dense, block);
}

ts_status tsi_let_go(const tsi_kernel_io *io, tsi_held *held, ts_status status)
{
    if (status == TS_OK && held->out && held->scratch.data)
        status = tsi_copy_all(io, held->block, &held->dense);
    tsi_scratch_done(&held->scratch);
    return status;
}
