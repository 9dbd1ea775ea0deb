/* SPDX-License-Identifier: Apache-2.0 */
/* argmax.c - the largest or smallest of lines, and where the first one is. */
#include <math.h>

#include "backend/cpu/reduce/reduce_lines.h"

enum { SPAN = 64 };

static bool has(const float *x, float value, int64_t count)
{
    uint32_t found = 0;
    for (int64_t i = 0; i < count; i++)
        found |= (uint32_t)(x[i] == value);
    return found != 0;
}

/* The first place of the extreme, which is among them; a NaN is found as one. */
static int64_t place_of(const float *x, float extreme, int64_t count)
{
    int64_t i = 0;
    if (isnan(extreme)) {
        while (i + 1 < count && !isnan(x[i]))
            i++;
        return i;
    }
    while (i + SPAN <= count && !has(x + i, extreme, SPAN))
        i += SPAN;
    while (i + 1 < count && x[i] != extreme)
        i++;
    return i;
}

static void run_extreme(const tsi_lines *l, const void *line, char *const *out)
{
    const float *x = line;
    int64_t count = l->in.count;
    float extreme = (float)l->set->fold_f32[l->least ? TSI_BY_MIN : TSI_BY_MAX](x, count);
    int64_t at = place_of(x, extreme, count);
    int32_t last = l->io->output_count - 1;
    tsi_store_int(TS_DTYPE_I64, out[last], at);
    if (last > 0) tsi_store_real((ts_dtype)l->io->out[0].block.dtype, out[0], (double)x[at]);
}

static ts_status extreme_kernel(const tsi_kernel_io *io, bool least)
{
    tsi_lines l = { .io = io, .run = run_extreme, .least = least };
    return tsi_lines_reduce(&l);
}

ts_status tsi_cpu_largest(const tsi_kernel_io *io)
{
    return extreme_kernel(io, false);
}

ts_status tsi_cpu_smallest(const tsi_kernel_io *io)
{
    return extreme_kernel(io, true);
}
