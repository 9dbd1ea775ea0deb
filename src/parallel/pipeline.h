/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline.h - the body of a pipeline: what a rank holds of its stages, and of what goes between.
 *
 *   stage --out--> link --to--> stages          on this rank, for each micro-batch in flight
 *     flight: tape, loss                         a stage's forward until its gradients are done
 *     passing: made, got, leaf, back             a tensor between stages, from either end
 *
 * The lists of all ranks are lowered and proved before the first step; a step follows this rank's.
 */
#ifndef TSI_PARALLEL_PIPELINE_H
#define TSI_PARALLEL_PIPELINE_H

#include "nn/module.h"
#include "plan/schedule.h"
#include "tessera/pipeline.h"

enum { TSI_STAGE_OUTPUTS = TSI_OUTPUT_MAX, TSI_CHANNEL_FORWARD = 0, TSI_CHANNEL_BACKWARD = 1 };

typedef struct tsi_stage { /* of any rank; modules of this one's */
    ts_module **module;
    int64_t module_count;
    ts_stage_input *input;
    int32_t input_count, output_count;
    int32_t link[TSI_STAGE_OUTPUTS]; /* of each output; -1: nobody uses it */
    uint64_t constant;
} tsi_stage;

typedef struct tsi_contract { /* what a link carries in a micro-batch; there once announced */
    ts_meta meta;
    const ts_sharding *sharding; /* on this rank's mesh, retained; NULL: not announced */
} tsi_contract;

typedef struct tsi_flight { /* a stage's micro-batch between forward and last gradient */
    ts_tape *tape;
    ts_tensor *loss; /* of the last stage */
} tsi_flight;

typedef struct tsi_passing { /* a link's micro-batch; all retained */
    ts_tensor *made;         /* by a stage of this rank, with its history */
    ts_tensor *got;          /* from another rank, or the number of its loan */
    ts_tensor *leaf;         /* what this rank's users are given; their gradients add up in it */
    ts_tensor **back; /* gradients from other ranks, in the order of the messages; the same */
    int32_t back_count;
    int32_t users; /* of this rank, whose gradients are still missing */
} tsi_passing;

struct ts_pipeline {
    ts_rank *rank;
    ts_mesh *mesh; /* with the axis, retained */
    ts_mesh *here; /* without it, retained */
    char axis[TSI_PARAM_NAME_MAX];
    int32_t at; /* this rank on the axis */
    int32_t stage_count, micros, shared_count;
    uint64_t epoch; /* of the rank, when the last step began */
    tsi_stage *stage;
    ts_shared_param *shared;
    ts_tensor **before; /* [shared]: gradients of steps before this one, retained; or NULL */
    tsi_stage_graph graph;
    ts_schedule *lowered;
    ts_pipeline_options options;
    tsi_contract *contract; /* [link * micros + micro] */
    tsi_flight *flight;     /* [stage * micros + micro] */
    tsi_passing *passing;   /* [link * micros + micro] */
    int64_t *size;          /* [micro]: of the last step; -1: none yet */
    const char **label;     /* [cell of this rank] */
    double *begin, *end;    /* the same: seconds; computations begin once their inputs are there */
    int64_t started_ns;     /* the step going on */
    int64_t cell;           /* that is run */
    bool announces, trains; /* the step going on */
    bool waits;             /* ts_pipeline_waits */
    bool lends;             /* tensors are not copied: messages are numbers of loans (lend.h) */
    void (*on_end)(void *context); /* (optional) it is destroyed */
    void *end_context;
    tsi_arena memory; /* of all arrays */
};

static inline int64_t tsi_pipeline_slot(const ts_pipeline *p, int32_t of, int32_t micro)
{
    return (int64_t)of * p->micros + micro;
}
static inline bool tsi_pipeline_has(const ts_pipeline *p, int32_t stage)
{
    return p->lowered->rank_of[stage] == p->at;
}

void tsi_pipeline_begins(ts_pipeline *p); /* the cell that is run begins now */
void tsi_pipeline_on_end(ts_pipeline *p, void (*fn)(void *context), void *context);
void tsi_pipeline_renew(ts_pipeline *p); /* the next step announces, whatever its sizes are */

/* Rows of all ranks in part `micro` of `micros` of such a tensor (micro_batch.c). */
int64_t tsi_micro_batch_extent(const ts_layout *layout, int32_t dim, int64_t micros, int64_t micro);

/* ---- messages (pipeline_message.c) ----------------------------------------------------------- */
ts_status tsi_pipeline_send_forward(ts_pipeline *p, const ts_cell *c);
ts_status tsi_pipeline_receive_forward(ts_pipeline *p, const ts_cell *c);
ts_status tsi_pipeline_send_backward(ts_pipeline *p, const ts_cell *c);
ts_status tsi_pipeline_receive_backward(ts_pipeline *p, const ts_cell *c);
/* A tensor of the ranks that have that stage (others: NULL) on all ranks of the axis. maker [coll]
 */
ts_tensor *tsi_pipeline_pass(ts_pipeline *p, ts_tensor *x, int32_t stage);
/* Gradients of shared parameters become the sums over all that hold them: what steps before this
 * one left is such a sum already and is set aside while it runs. */
ts_status tsi_pipeline_set_aside(ts_pipeline *p);
ts_status tsi_pipeline_share(ts_pipeline *p);

/* What came, or the tensor whose number came; it waits for it. maker */
ts_tensor *tsi_pipeline_arrived(ts_pipeline *p, int64_t slot, ts_tensor *got);

/* ---- computations (pipeline_run.c) ----------------------------------------------------------- */
ts_status tsi_pipeline_forward(ts_pipeline *p, const ts_cell *c);
/* The backward, or its half towards inputs. */
ts_status tsi_pipeline_gradient(ts_pipeline *p, const ts_cell *c);
ts_status tsi_pipeline_weight(ts_pipeline *p, const ts_cell *c);
/* Units among the stage's modules are gathered, and let go: once for all micro-batches. */
ts_status tsi_pipeline_reside(ts_pipeline *p, int32_t stage, bool gathers);
/* Gradients of the stage's parameters to their layouts. */
ts_status tsi_pipeline_reduce(ts_pipeline *p, int32_t stage);
void tsi_pipeline_drop(ts_pipeline *p); /* what a step left, done or failed */

#endif
