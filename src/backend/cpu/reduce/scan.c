/* SPDX-License-Identifier: Apache-2.0 */
/* scan.c - sums so far along lines. */
#include "op/reduce/scan.h"
#include "backend/cpu/reduce/reduce_lines.h"

static void run_cumsum(const tsi_lines *l, const void *line, char *const *out)
{
    const float *x = line;
    int64_t count = l->in.count, stride = l->out.stride[0];
    double total = 0;
    if (!l->reverse && stride == (int64_t)sizeof(float)) {
        float *to = (float *)(void *)out[0];
        for (int64_t i = 0; i < count; i++) {
            total += (double)x[i];
            to[i] = (float)total;
        }
        return;
    }
    for (int64_t k = 0; k < count; k++) {
        int64_t i = l->reverse ? count - 1 - k : k;
        total += (double)x[i];
        *(float *)(void *)(out[0] + i * stride) = (float)total;
    }
}

ts_status tsi_cpu_cumsum(const tsi_kernel_io *io)
{
    const tsi_scan_attributes *a = io->attributes;
    const tsi_block *in = &io->in[0].block;
    if (in->dtype != TS_DTYPE_F32 || io->out[0].block.dtype != TS_DTYPE_F32 || in->ndim == 0)
        return (ts_status)TSI_KERNEL_DECLINED;
    if (tsi_block_count(in) == 0) return TS_OK;
    tsi_lines l = { .io = io, .run = run_cumsum, .reverse = a->reverse != 0 };
    return tsi_lines_run(&l, (int32_t)a->dim);
}
