/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer.h - the body of an optimiser: what it keeps of each parameter, and who is updated
 * alike.
 *
 *   slot    a parameter and its moments, which lie as it does
 *   group   parameters that one call updates: of one rate, decay and rule
 *
 * optimizer_make.c makes it, optimizer.c takes steps, muon.c turns the directions of matrices. */
#ifndef TSI_NN_OPTIMIZER_H
#define TSI_NN_OPTIMIZER_H

#include "nn/control.h"
#include "nn/places.h"

/* How a parameter is updated; of a whole optimiser, how all are that can be. */
typedef enum tsi_update_rule { TSI_RULE_ADAMW, TSI_RULE_SGD, TSI_RULE_MUON } tsi_update_rule;

typedef struct tsi_trained {
    ts_tensor *param; /* retained */
    char *name;
    tsi_array *first, *second; /* moments; SGD and Muon: first alone */
    const ts_layout *layout;   /* of theirs, retained */
    int32_t group, reserved;
    tsi_places places; /* where moments are rounded by chance, which is by global index */
    const ts_sharding
        *owner;        /* Muon: who has its matrices whole; NULL: this rank alone. retained */
    ts_tensor *turned; /* Muon: what is added in the step that runs, borrowed; or NULL */
} tsi_trained;

typedef struct tsi_param_group { /* parameters that are updated alike, in one call */
    double rate, decay;          /* times the optimiser's rate; the weight decay */
    double adjust;       /* Muon: times both rates, where directions are orthogonal; else 1 */
    int32_t rule;        /* tsi_update_rule */
    int32_t control;     /* whose numbers count: index of the control's copies */
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
    int32_t rule, nesterov; /* tsi_update_rule; of SGD */
    int32_t moments;        /* their dtype; 0: f32, of f64 parameters f64; of Muon's f32 */
    int32_t adjust, turns;  /* of Muon: ts_muon_adjust; rounds of Newton-Schulz */
    int32_t product;        /* of Muon: the dtype of products; 0: that of moments */
    double lr, beta1, beta2, epsilon, weight_decay, momentum;
    const char *patterns;  /* while Muon is made: of parameters that go by AdamW */
    struct tsi_muon *muon; /* NULL: no parameter is turned */
};

/* Can the numbers be meant? */
ts_status tsi_optimizer_check(const ts_optimizer *o);
/* Of the last ts_optimizer_step_with: 1 if its update runs, else 0, on every rank of a mesh, as a
 * f64 number of the innermost scope that the host need not wait for. NULL: recorded. */
ts_tensor *tsi_optimizer_taken(const ts_optimizer *o, ts_mesh *mesh);
/* An array of state as a tensor of the innermost scope; NULL: recorded. */
ts_tensor *tsi_trained_tensor(const tsi_trained *s, tsi_array *state);

static inline tsi_list_part tsi_part_of(const tsi_array *array)
{
    if (!array) return (tsi_list_part){ 0 };
    return (tsi_list_part){ tsi_array_data(array), (ts_dtype)array->dtype, 0 };
}

/* ---- Muon (muon.c) --------------------------------------------------------------------------- */
/* What its update of one parameter is times, beside the rate: by the shape of its matrices. */
double tsi_muon_adjust(const ts_optimizer *o, const ts_shape *shape);
/* Who has which matrices whole, when all slots are there. The same on all ranks of a mesh. */
ts_status tsi_muon_plan(ts_optimizer *o);
ts_status tsi_muon_control(ts_optimizer *o); /* its numbers among those of the control */
/* [coll] Of every such parameter with a gradient: what is added to it, turned, in the innermost
 * scope. Nothing of the parameter or its state is changed, and what can fail in a step is here. */
ts_status tsi_muon_turn(ts_optimizer *o, bool controlled);
ts_status tsi_muon_reserve(ts_optimizer *o);
/* Momentum goes on: nothing here can fail short of a lost rank, after tsi_muon_reserve. */
ts_status tsi_muon_momentum(ts_optimizer *o, bool controlled);
/* Ranks of the world that need most and least while matrices are turned, among those who share
 * them; -1: all need as much, or nothing is turned. */
ts_status tsi_muon_range(const ts_optimizer *o, int64_t *most, int64_t *least);
void tsi_muon_release(ts_optimizer *o);

#endif
