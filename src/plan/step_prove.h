/* SPDX-License-Identifier: Apache-2.0 */
/* step_prove.h - the parts of the proof. */
#ifndef TSI_PLAN_STEP_PROVE_H
#define TSI_PLAN_STEP_PROVE_H

#include "plan/step_graph.h"

/* Values of one rank: there when touched, changed by nobody meanwhile, gone or left at the end. */
ts_status tsi_step_prove_order(const tsi_step *step, int64_t rank);
/* What must be there is there, and what must be there once is not there twice. */
ts_status tsi_step_prove_once(const tsi_step *step, int64_t rank);
ts_status tsi_step_prove_stages(const tsi_step *step);

#endif
