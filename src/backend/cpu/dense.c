/* SPDX-License-Identifier: Apache-2.0 */
/* dense.c - operands for loops that know no strides: where they lie if they are dense, else copies
 * around the loops. */
#include "backend/cpu/data.h"

ts_status tsi_hold(const tsi_kernel_io *io, const tsi_block *block, ts_dtype dtype, bool out,
                   tsi_held *held)
{
    *held = (tsi_held){ .block = block, .dense = *block, .out = out };
    if (block->dtype == (int32_t)dtype && tsi_block_is_dense(block)) return TS_OK;
    size_t count = (size_t)tsi_block_count(block);
    TSI_TRY(tsi_scratch_get(&held->scratch, io->rank, count, ts_dtype_size(dtype)));
    held->dense = tsi_block_dense_like(block, held->scratch.data);
    held->dense.dtype = (int32_t)dtype;
    return out ? TS_OK : tsi_copy_all(io, &held->dense, block);
}

ts_status tsi_let_go(const tsi_kernel_io *io, tsi_held *held, ts_status status)
{
    if (status == TS_OK && held->out && held->scratch.data)
        status = tsi_copy_all(io, held->block, &held->dense);
    tsi_scratch_done(&held->scratch);
    return status;
}
