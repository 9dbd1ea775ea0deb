/* SPDX-License-Identifier: Apache-2.0 */
/* verify.h - what the parts of `tessera verify` share. */
#ifndef CLI_VERIFY_H
#define CLI_VERIFY_H

#include "cli.h"

int cli_verify_model(int argc, char **argv);
int cli_verify_parallel(int argc, char **argv);

/* -1, or 2: --device names none. A device that is not here is said where it is opened. */
int verify_device(const char *command, const char *name);

/* ---- a model on a mesh, as a pipeline where it has stages (verify_pipeline.c) ---------------- */
typedef struct verify_setting {    /* how a model is opened; alike on all ranks */
    const char *directory;         /* its files, or NULL: */
    const ts_model_config *config; /* random weights, by name */
    ts_model_options options;
    const ts_schedule *schedule; /* of the axis pp; NULL: there is none */
    ts_fsdp_options units;
    ts_recompute again;
    int64_t every; /* n-th block, from the first layer on; 0, 1: all blocks */
} verify_setting;

typedef struct verify_pipe { /* of one rank; the first members are given */
    ts_rank *me;
    ts_model *model;             /* declared on the mesh of a stage */
    const ts_schedule *schedule; /* borrowed */
    /* All ids (shift 0) or labels (1), as ts_model_tokens lie. maker */
    ts_tensor *(*tokens)(const void *context, ts_model *model, int64_t shift);
    const void *context;
    int64_t count;         /* tokens that are predicted in all */
    bool keeps;            /* what is compared of the logits */
    ts_pipeline *pipeline; /* NULL: there are no stages */
    int64_t micros, *size;
    double squares, *last; /* of all logits; those of the first row's last position, or NULL */
    int64_t vocabulary;
} verify_pipe;

/* Declared, cut into stages where there are, wrapped, then read: p->model, NULL or half made on
 * failure; the rank's error says why. p->me, tokens, context and count are given. */
void verify_pipe_open(verify_pipe *p, const verify_setting *setting, ts_mesh *mesh);
void verify_pipe_close(verify_pipe *p);
/* A forward and backward, and the total norm, clipped. */
void verify_pipe_step(const verify_pipe *p, double clip, double *loss, double *norm);
double verify_pipe_sum(const verify_pipe *p, double mine); /* over the stages */

#endif
