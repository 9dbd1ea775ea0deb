/* SPDX-License-Identifier: Apache-2.0 */
/* verify.h - what the parts of `tessera verify` share. */
#ifndef CLI_VERIFY_H
#define CLI_VERIFY_H

#include "cli.h"

int cli_verify_model(int argc, char **argv);

/* ---- a model as a pipeline (verify_pipeline.c) ----------------------------------------------- */
typedef struct verify_pipe { /* of one rank; the first members are given */
    ts_rank *me;
    ts_model *model;             /* declared on the mesh of a stage */
    const ts_schedule *schedule; /* borrowed */
    /* All ids (shift 0) or labels (1), as ts_model_tokens lie. maker */
    ts_tensor *(*tokens)(const void *context, ts_model *model, int64_t shift);
    const void *context;
    int64_t count; /* tokens that are predicted in all */
    bool keeps;    /* what is compared of the logits */
    ts_pipeline *pipeline;
    int64_t micros, *size;
    double squares, *last; /* of all logits; those of the first row's last position, or NULL */
    int64_t vocabulary;
} verify_pipe;

/* Before the model is materialised. False: the rank's error says why. */
bool verify_pipe_open(verify_pipe *p, ts_mesh *mesh);
void verify_pipe_close(verify_pipe *p);
double verify_pipe_sum(const verify_pipe *p, double mine); /* over the stages */

#endif
