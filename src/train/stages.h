/* SPDX-License-Identifier: Apache-2.0 */
/* stages.h - training through a pipeline: the mesh has an axis pp.
 *
 *   config --> schedule --> pipeline of the model's blocks --> a part of a step, micro by micro
 *
 * Everything else of a run (optimiser, states, log) sees one model whose parameters lie on the
 * meshes of their stages. */
#ifndef TSI_TRAIN_STAGES_H
#define TSI_TRAIN_STAGES_H

#include "model/model.h"
#include "train/config.h"

typedef struct tsi_stages tsi_stages;

typedef struct tsi_part { /* rows that are run at once, of all ranks together */
    int64_t rows, context;
    double factor;     /* on the gradients of their mean loss */
    bool without_grad; /* forwards alone */
    /* ids, or with shift 1 labels, of all rows; asked for where a stage needs them. maker */
    ts_tensor *(*tokens)(void *context, int64_t shift);
    /* (optional) The documents of micro-batch rows become the model's. */
    ts_status (*documents)(void *context, const int64_t *row, int64_t count);
    /* (optional) Given the mean loss where the last stage is; then the host reads none. */
    ts_status (*mean)(void *context, ts_tensor *mean);
    void *of; /* context of all three */
} tsi_part;

/* "2: 3 4 4 3": stages of a rank, and the blocks of each if they are said. */
typedef struct tsi_stages_text {
    int64_t per_rank; /* 0: what the schedule needs */
    bool by_cost;
    int64_t count; /* of blocks that are said; 0: as even as can be */
    int64_t blocks[256];
} tsi_stages_text;
ts_status tsi_stages_parse(const char *text, tsi_stages_text *out);

/* The schedule of a configuration for so many ranks of pp; search gives other orders on other
 * days. */
ts_status tsi_stages_schedule(const ts_train_config *config, int64_t ranks, ts_schedule **out);
/* Cuts a declared model; *out is NULL where the mesh has no axis pp. [coll] */
ts_status tsi_stages_open(const ts_train_config *config, ts_mesh *mesh, ts_model *model,
                          tsi_stages **out);
void tsi_stages_close(tsi_stages *stages); /* accepts NULL */
/* Are ids, or with shift 1 labels, read by stages of this rank? */
bool tsi_stages_reads(const tsi_stages *stages, int64_t shift);
/* Forwards and, unless it is without, backwards of a part; the mean loss, on every rank, or NULL.
 * [coll] */
ts_status tsi_stages_run(tsi_stages *stages, const tsi_part *part, double *loss);

ts_pipeline *tsi_stages_pipeline(const tsi_stages *stages);
ts_group *tsi_stages_group(const tsi_stages *stages); /* of the axis; NULL: there are no stages */
const int64_t *tsi_stages_blocks(const tsi_stages *stages); /* of each stage */
/* The schedule, and the blocks and place of each stage. */
void tsi_stages_tell(const tsi_stages *stages, const ts_train_config *config, ts_train_cost *out);
/* Idle share of the schedule if every forward and half of a backward cost the same. */
double tsi_stages_bubble(const tsi_stages *stages);

/* Seconds of each block's forward and backward for part->rows x part->context, measured by the
 * first rank of the mesh (stages_cost.c). [coll] */
ts_status tsi_stages_costs(const ts_model *model, ts_mesh *mesh, const tsi_part *part,
                           double *cost);
/* Times of the cells of this rank in the last step, kept while other forwards run. */
void tsi_stages_last(const tsi_stages *stages, const double **begin, const double **end);

/* ---- what was measured (stages_measure.c) ---------------------------------------------------- */
typedef struct tsi_stages_measured { /* of all ranks of the axis, of the last step */
    const ts_schedule *schedule;     /* with messages */
    double *begin, *end;             /* by cell, rank after rank; seconds */
    double span, bubble;             /* of the step; idle share of it */
    double simulated;                /* idle share of the schedule under the measured costs */
    ts_stage_cost *cost;             /* [stage] */
} tsi_stages_measured;
/* On every rank. [coll] over the axis; to be released. */
ts_status tsi_stages_measure(const tsi_stages *stages, tsi_stages_measured *out);
void tsi_stages_measured_release(tsi_stages_measured *measured);

/* `loss` itself, which in backward takes along `factor` times the sum of squares of the logits'
 * log-sum-exp (loss.c). maker */
ts_tensor *tsi_train_with_z(ts_tensor *loss, ts_tensor *logits, double factor);

#endif
