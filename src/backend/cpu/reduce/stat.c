/* SPDX-License-Identifier: Apache-2.0 */
/* stat.c - variances and standard deviations of lines. */
#include <math.h>

#include "backend/cpu/reduce/reduce_lines.h"

static void run_stat(const tsi_lines *l, const void *x, char *const *out)
{
    double mean_squares[2];
    l->set->moments(x, l->in.count, mean_squares);
    double value = mean_squares[1] / l->divisor;
    tsi_store_real((ts_dtype)l->io->out[0].block.dtype, out[0], l->root ? sqrt(value) : value);
}

static ts_status stat_kernel(const tsi_kernel_io *io, bool root)
{
    tsi_lines l = { .io = io, .run = run_stat, .root = root };
    l.divisor = tsi_stat_divisor(io->in[0].global, io->attributes);
    return tsi_lines_reduce(&l);
}

ts_status tsi_cpu_var(const tsi_kernel_io *io)
{
    return stat_kernel(io, false);
}

ts_status tsi_cpu_std(const tsi_kernel_io *io)
{
    return stat_kernel(io, true);
}
