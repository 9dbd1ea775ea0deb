/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_lines.h - operators that look at one dim as lines: where the largest or smallest is, the
 * variance, sums so far.
 *
 * Indices and sums so far have the bits of the reference (these are added up in double, one after
 * another); a variance is the row kernel's, whatever the strides. Several dims at once, integers
 * and f64 are the reference's. */
#ifndef TSI_BACKEND_CPU_REDUCE_LINES_H
#define TSI_BACKEND_CPU_REDUCE_LINES_H

#include "backend/cpu/cpu.h"
#include "op/core/element.h"
#include "op/reduce/reduce.h"

typedef struct tsi_lines tsi_lines;
typedef void (*tsi_line_fn)(const tsi_lines *l, const float *x, char *const *out);

struct tsi_lines {
    tsi_walk walk; /* operand 0 is the input, the dim its last; then the results */
    const tsi_kernel_io *io;
    const tsi_row_set *set;
    tsi_line_fn run;
    ts_dtype in_dtype;
    bool least, root, reverse; /* the operators' own */
    double divisor;
    float *buffer; /* per worker; NULL: lines are used where they lie */
};

/* Lines of the input along `dim`, and of the results: these without the dim, or of one element of
 * it, if `reduced`. */
ts_status tsi_lines_run(tsi_lines *l, int32_t dim, bool reduced);
/* The dim that is reduced; -1: not one alone, or nothing there, or not of narrow reals. */
int32_t tsi_lines_dim(const tsi_kernel_io *io);

#endif
