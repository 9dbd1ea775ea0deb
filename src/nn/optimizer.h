/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer.h - the body of an optimiser: what it keeps of each parameter, and who is updated
 * alike.
 *
 *   slot    a parameter and its moments, which lie as it does
 *   group   parameters that one call updates: of one rate and decay
 *
 * optimizer_make.c makes it, optimizer.c takes steps. */
#ifndef TSI_NN_OPTIMIZER_H
#define TSI_NN_OPTIMIZER_H

#include "nn/control.h"
#include "nn/places.h"

typedef struct tsi_trained {
    ts_tensor *param; /* retained */
    char *name;
    tsi_array *first, *second; /* moments; SGD: first alone */
    const ts_layout *layout;   /* of theirs, retained */
    int32_t group, reserved;
    tsi_places places; /* where moments are rounded by chance, which is by global index */
} tsi_trained;

typedef struct tsi_param_group { /* parameters that are updated alike, in one call */
    double rate, decay;          /* times the optimiser's rate; the weight decay */
    int32_t control;             /* whose numbers count: index of the control's copies */
    int32_t reserved;
    void *reserved_list; /* memory that the update will need, taken before it was agreed on */
} tsi_param_group;

struct ts_optimizer {
    ts_rank *rank;
    tsi_trained *slot;
    tsi_list_item *item; /* what a step updates: blocks of slots, or pieces of them */
    int64_t item_capacity;
    int64_t count, capacity, steps;
    tsi_control *control;  /* of steps that decide on the device; NULL before the first */
    ts_step_options given; /* to the last of them */
    tsi_param_group *group;
    int64_t group_count, group_capacity;
    int32_t is_sgd, nesterov;
    int32_t moments, reserved; /* their dtype; 0: f32, of f64 parameters f64 */
    double lr, beta1, beta2, epsilon, weight_decay, momentum;
};

/* Can the numbers be meant? */
ts_status tsi_optimizer_check(const ts_optimizer *o);

#endif
