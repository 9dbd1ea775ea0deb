/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline.h - stages of a program, run by a schedule over the ranks of a mesh axis.
 *
 * A stage is a list of modules, run one after the other. Its inputs are the step's inputs or
 * outputs of stages before it, of any of them: what skips stages or has several users is sent once
 * to each rank that needs it. Each rank makes the modules of its own stages, on the mesh without
 * the pipeline's axis (ts_pipeline_mesh); of the others it knows what goes in and out.
 *
 * A step runs the schedule once: gradients are added to the parameters, complete and reduced. A
 * micro-batch's loss is made by the program; the step's loss is their sum, so each is divided by
 * what the whole batch has. What a stage gives is announced in the first step, its dtype, shape and
 * placements; a later step with other sizes announces anew, and anything else that differs is an
 * error which names the stage. */
#ifndef TESSERA_PIPELINE_H
#define TESSERA_PIPELINE_H

#include "nn.h"
#include "schedule.h"

typedef struct ts_pipeline ts_pipeline;

typedef struct ts_stage_input { /* where an input of a stage comes from */
    int32_t stage;              /* -1: from the step's inputs */
    int32_t output;             /* which one of it */
} ts_stage_input;

typedef struct ts_stage {
    ts_module *const *module; /* NULL where the stage is on another rank */
    int64_t module_count;
    const ts_stage_input *input;
    int32_t input_count, output_count;
    uint64_t constant; /* bit o: no gradient comes back for output o, as for integers and truths */
} ts_stage;

typedef struct ts_shared_param { /* one that several stages hold: their gradients are added */
    ts_tensor *parameter;        /* this rank's; NULL: none of its stages holds it */
    const int32_t *stage;        /* ascending; each rank that has one of them holds a copy */
    int64_t stage_count;
} ts_shared_param;

typedef struct ts_stages {
    const ts_stage *stage;
    int64_t count;
    const ts_shared_param *shared;
    int64_t shared_count;
} ts_stages;

/* Input `index` of a micro-batch, on this rank's mesh. maker */
typedef ts_tensor *(*ts_micro_input_fn)(void *context, ts_rank *me, int64_t micro, int32_t index);
/* The loss of a micro-batch from the outputs of the last stage: one element. In a forward alone
 * NULL is good, too. maker */
typedef ts_tensor *(*ts_micro_loss_fn)(void *context, ts_rank *me, int64_t micro,
                                       ts_tensor *const *output, int32_t count);

/* Before each computation of a micro-batch on this rank: what modules read beside their inputs. */
typedef ts_status (*ts_micro_begin_fn)(void *context, ts_rank *me, int64_t micro);
/* What an output of a stage will be in a micro-batch, and how it lies on this rank's mesh. */
typedef ts_status (*ts_micro_shape_fn)(void *context, ts_rank *me, int64_t micro,
                                       const ts_stage_input *of, ts_meta *meta,
                                       const ts_sharding **lies);

typedef struct ts_pipeline_options {
    size_t struct_size;
    const char *axis; /* NULL: "pp" */
    ts_micro_input_fn input;
    ts_micro_loss_fn loss;
    void *context;    /* of all */
    int64_t prefetch; /* a receive begins at most so many actions before its use, or as early as
                         sends that wait for it need it; 0: with the send */
    ts_micro_begin_fn begin; /* (optional) */
    ts_micro_shape_fn shape; /* (optional) where all ranks know it, nothing is announced by message;
                                what is given otherwise is an error all the same */
} ts_pipeline_options;

TS_BEGIN_C

/* [any] Real defaults, after which every number is meant as it stands (types.h). */
TS_API void ts_pipeline_options_init(ts_pipeline_options *options);

/* The mesh of this rank's stages: that without the axis (NULL: "pp"). maker */
TS_API ts_mesh *ts_pipeline_mesh(ts_mesh *mesh, const char *axis);
/* Proves the schedule for these stages, with all messages, before anything is sent. The modules are
 * the caller's and stay; the rest is copied. maker, agreed by all ranks of the mesh */
TS_API ts_pipeline *ts_pipeline_create(ts_mesh *mesh, const ts_stages *stages,
                                       const ts_schedule *schedule,
                                       const ts_pipeline_options *options);
TS_API void ts_pipeline_destroy(ts_pipeline *pipeline); /* [any] accepts NULL */

/* Forwards and backwards of all micro-batches. `size`, alike on all ranks, has a number for each
 * micro-batch: 0 says it is empty and is passed over; NULL: none is. The loss may be NULL.
 * recorded [coll] */
TS_API ts_status ts_pipeline_step(ts_pipeline *pipeline, const int64_t *size, double *loss);
/* The forwards alone, without gradients. recorded [coll] */
TS_API ts_status ts_pipeline_forward(ts_pipeline *pipeline, const int64_t *size, double *loss);
/* As ts_clip_grad_norm, over the stages of all ranks: each parameter once. recorded [coll] */
TS_API ts_status ts_pipeline_clip_grad_norm(ts_pipeline *pipeline, double norm_max, double *norm);
/* The sum of a number of each rank of the axis: what only some stages know. recorded [coll] */
TS_API ts_status ts_pipeline_sum(ts_pipeline *pipeline, double value, double *sum);

/* Part `micro` of `micros` of a tensor along a dim: of the rows that each rank has, sizes differ by
 * at most one, the first ones larger, the last ones empty where there are fewer rows. Its layout is
 * that of x. maker */
TS_API ts_tensor *ts_micro_batch(ts_tensor *x, int32_t dim, int64_t micros, int64_t micro);

/* The parts of all micro-batches as one tensor again: what ts_micro_batch cut along a dim, or what
 * became of it. Their layouts are alike; an empty one may be NULL. maker */
TS_API ts_tensor *ts_micro_merge(ts_tensor *const *part, int64_t micros, int32_t dim);
/* Documents of these lengths, one after the other, to micro-batches of whole ones: the largest is
 * as small as can be, the last ones are empty where there are fewer. Part m is [begin[m], begin[m +
 * 1]) of their tokens, to be taken by ts_slice; begin has micros + 1 numbers. */
TS_API TS_NODISCARD ts_status ts_micro_documents(const int64_t *length, int64_t count,
                                                 int64_t micros, int64_t *begin);

/* Times of the last step of this rank's cells, in seconds from its beginning: as many as
 * ts_schedule_count of ts_pipeline_schedule has. getters */
TS_API const ts_schedule *ts_pipeline_schedule(const ts_pipeline *pipeline); /* with messages */
TS_API int64_t ts_pipeline_rank(const ts_pipeline *pipeline); /* this rank's place on the axis */
TS_API const double *ts_pipeline_begin(const ts_pipeline *pipeline);
TS_API const double *ts_pipeline_end(const ts_pipeline *pipeline);
/* Not 0: from the next step on a cell that computes begins when its inputs are there and ends when
 * the device has done it, which the rank waits for: its whole cost, in a slower step. */
TS_API void ts_pipeline_waits(ts_pipeline *pipeline, int32_t waits);

TS_END_C
#endif
