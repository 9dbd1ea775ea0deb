/* SPDX-License-Identifier: Apache-2.0 */
/* model_plan.h - the plan of a model: where its parameters lie. */
#ifndef TSI_MODEL_MODEL_PLAN_H
#define TSI_MODEL_MODEL_PLAN_H

#include "model/model.h"

typedef struct tsi_model_plan {
    const char *text, *base; /* lines, and those for what they do not match */
    char *memory;            /* to be freed by the caller, on failure too; or NULL */
    bool own;                /* the user's: every pattern must match */
    bool sequence;           /* activations between blocks are cut along the sequence, too */
} tsi_model_plan;

/* A name, lines, or a file; NULL: ts_model_plan_default. */
ts_status tsi_model_plan_find(const ts_model *model, const char *given, tsi_model_plan *out);
/* Is there such a plan, or a file? */
ts_status tsi_model_plan_check(ts_model_family family, const char *name);
/* To the model's tree, with cut experts where the model has them. */
ts_status tsi_model_plan_apply(const tsi_model_plan *plan, const ts_model *model);

#endif
