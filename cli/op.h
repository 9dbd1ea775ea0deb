/* SPDX-License-Identifier: Apache-2.0 */
/* op.h - what the files of `tessera op` share: a request, its query, the check. */
#ifndef CLI_OP_H
#define CLI_OP_H

#include "layout.h"

enum {
    OP_INPUTS_MAX = 64,
    OP_OUTPUTS_MAX = 8,
    OP_CHECK_RANKS_MAX = 64,
    OP_CHECK_ELEMENTS_MAX = 1 << 27
};

typedef struct op_request {
    const char *op;         /* borrowed */
    const char *attributes; /* JSON object, borrowed; NULL: defaults */
    const char *mesh;       /* borrowed */
    const char *dtype, *policy;
    int32_t input_count;
    bool absent[OP_INPUTS_MAX];
    ts_shape shape[OP_INPUTS_MAX];
    char *placements[OP_INPUTS_MAX]; /* owned */
    bool check;
} op_request;

typedef struct op_case {
    ts_mesh *mesh;
    const ts_layout *in[OP_INPUTS_MAX]; /* retained */
    int32_t input_count;
    ts_op_query *query;
} op_case;

void op_request_release(op_request *request);
/* Plans the call. False: `error` says why; nothing is to be closed then. */
bool op_open(ts_world *world, const op_request *request, op_case *out, char *error, size_t size);
void op_close(op_case *self);
/* Runs it on thread ranks with every pattern of numbers. Writes "ok" or what differed. */
bool op_check(const op_case *self, char *verdict, size_t size);
/* Writes one object; `check` may be NULL. */
bool op_answer(const op_case *self, const char *check, ts_json_writer *json);

typedef struct op_defaults { /* for requests that say nothing themselves */
    ts_world *world;
    const char *dtype, *policy;
    bool check;
} op_defaults;
bool op_serve(const ts_json *request, ts_json_writer *answer, char *error, size_t size,
              void *context);

int op_list(bool json, bool markdown); /* op_list.c */

#endif
