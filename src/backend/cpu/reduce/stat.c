/* SPDX-License-Identifier: Apache-2.0 */
/* stat.c - variances and standard deviations of lines. */
#include <math.h>

#include "backend/cpu/reduce/reduce_lines.h"

static void run_stat(const tsi_lines *l, const float *x, char *const *out)
{
    double mean_squares[2];
    l->set->moments(x, l->walk.length, mean_squares);
    double value = mean_squares[1] / l->divisor;
    tsi_store_real((ts_dtype)l->io->out[0].block.dtype, out[0], l->root ? sqrt(value) : value);
}

static ts_status stat_kernel(const tsi_kernel_io *io, bool root)
{
    int32_t dim = tsi_lines_dim(io);
    if (dim < 0) return (ts_status)TSI_KERNEL_DECLINED;
    tsi_lines l = { .io = io, .run = run_stat, .root = root };
    double count = (double)io->in[0].global->shape.extent[dim];
    l.divisor = fmax(count - ((const tsi_stat_attributes *)io->attributes)->correction, 0.0);
    return tsi_lines_run(&l, dim, true);
}

ts_status tsi_cpu_var(const tsi_kernel_io *io)
{
    return stat_kernel(io, false);
}

ts_status tsi_cpu_std(const tsi_kernel_io *io)
{
    return stat_kernel(io, true);
}
