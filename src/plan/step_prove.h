/* SPDX-License-Identifier: Apache-2.0 */
/* step_prove.h - the parts of a check: each adds what it finds and goes on. */
#ifndef TSI_PLAN_STEP_PROVE_H
#define TSI_PLAN_STEP_PROVE_H

#include "plan/step_graph.h"

/* Values of one rank: there when touched, changed by nobody meanwhile, gone or left at the end. */
ts_status tsi_step_prove_order(const tsi_step *step, int64_t rank, tsi_findings *found);
/* What must be there is there, and what must be there once is not there twice. */
ts_status tsi_step_prove_once(const tsi_step *step, int64_t rank, tsi_findings *found);
/* Parts of an operation are all there, in order (step_split.c). */
ts_status tsi_step_prove_parts(const tsi_step *step, int64_t rank, tsi_findings *found);
ts_status tsi_step_prove_stages(const tsi_step *step, tsi_findings *found);
/* Values are read in forms that they have; collectives are over axes that have what they need. */
ts_status tsi_step_prove_forms(const tsi_step *step, int64_t rank, tsi_findings *found);

#endif
