/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_lines.h - operators that look at dims as lines: where the largest or smallest is, the
 * variance, the log of the sum, sums so far.
 *
 * Indices and sums so far have the bits of the reference (these are added up in double, one after
 * another); a variance is the row kernel's, whatever the strides and the number of dims. Integers
 * and f64 are the reference's. */
#ifndef TSI_BACKEND_CPU_REDUCE_LINES_H
#define TSI_BACKEND_CPU_REDUCE_LINES_H

#include "backend/cpu/cpu.h"
#include "op/core/element.h"
#include "op/reduce/reduce.h"

typedef struct tsi_lines tsi_lines;
/* `x`: l->in.count elements side by side, of f32, or of bf16 if l->narrow; `out`: where the
 * results of the line are, or begin. */
typedef void (*tsi_line_fn)(const tsi_lines *l, const void *x, char *const *out);

struct tsi_lines {
    tsi_walk walk; /* over the lines; operand 0 is the input, then the results */
    tsi_line in, out;
    const tsi_kernel_io *io;
    const tsi_row_set *set;
    tsi_line_fn run;
    bool least, root, reverse; /* the operators' own */
    bool takes_narrow, narrow; /* bf16 is taken as it is where it lies side by side; and does */
    double divisor;
    float *buffer; /* per worker; NULL: lines are used where they lie */
};

/* Lines of the input, and of the results as long as those: one dim. */
ts_status tsi_lines_run(tsi_lines *l, int32_t dim);
/* Lines of the dims that are reduced (tsi_reduce_attributes), one number of each result for a line.
 * Declines all but narrow reals; of nothing at all the reference knows what is said. */
ts_status tsi_lines_reduce(tsi_lines *l);

#endif
