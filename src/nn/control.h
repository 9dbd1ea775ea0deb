/* SPDX-License-Identifier: Apache-2.0 */
/* control.h - the numbers a step decides by, on the rank's device, and how the host hears of them.
 *
 *   host   begin(rate, clip ..)  ---------------------------------  outcome(step): waits for that
 *             |                                                       ^      step's numbers alone
 *   queue     copy -- squares -- decide -- update (all parameters) -- copy
 *
 * INV: between begin and end the host waits for nothing; the numbers of the last few steps are
 * kept, so that a step is read while the next one runs. */
#ifndef TSI_NN_CONTROL_H
#define TSI_NN_CONTROL_H

#include "nn/module.h"
#include "op/core/list.h"
#include "op/nn/update.h"

enum { TSI_CONTROL_KEPT = 4 }; /* steps whose numbers are kept */

typedef struct tsi_control tsi_control;

tsi_control *tsi_control_create(ts_rank *rank); /* NULL: recorded */
void tsi_control_destroy(tsi_control *control); /* accepts NULL */
/* The numbers of the next step from the host: input[TSI_CONTROL_INPUTS]. */
ts_status tsi_control_begin(tsi_control *control, const double *input);
/* [coll] With the gradients in `sums`, and the stages and loss of the options (tessera/nn.h): does
 * the update run, and how? */
ts_status tsi_control_decide(tsi_control *control, tsi_norm_sums *sums,
                             const ts_step_options *given);
/* How the numbers of some updates differ from the step's: the rate is the step's times `times`,
 * plus `plus`; plain 1: the factor of gradients is 1, whatever was decided. */
typedef struct tsi_control_own {
    double times, plus;
    int32_t plain, reserved;
} tsi_control_own;
/* The numbers once more, for such updates: what else was decided is copied to them. *index is from
 * 1 on; the numbers themselves are 0. Before the first step. */
ts_status tsi_control_add(tsi_control *control, const tsi_control_own *own, int32_t *index);
tsi_list_part tsi_control_part_of(const tsi_control *control, int32_t index);
/* The step's numbers are on their way to the host. */
ts_status tsi_control_end(tsi_control *control);
int64_t tsi_control_count(const tsi_control *control); /* steps that were begun */
/* Waits for the numbers of step `number`, which counts from 1; the last TSI_CONTROL_KEPT are there.
 * `out` has TSI_CONTROL_COUNT. */
ts_status tsi_control_read(tsi_control *control, int64_t number, double *out);
/* Where 1 is once the update of the step that was decided on runs, and 0 if it does not: f64, on
 * the device, until the next step begins. A view; NULL: recorded. */
tsi_array *tsi_control_taken(const tsi_control *control);
/* Updates that ran so far, as a state that was loaded says. */
ts_status tsi_control_resume(tsi_control *control, int64_t steps);

#endif
