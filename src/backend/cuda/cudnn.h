/* SPDX-License-Identifier: Apache-2.0 */
/* cudnn.h - graphs of operations for cuDNN 9, found at run time and told in its own numbers: its
 * headers are not needed.
 *
 *   tsi_cudnn_graph --finish--> tsi_cudnn_plan (kept by the caller) --run--> the stream
 *
 * Tensors have four dims. A real one is named by the caller, which gives its memory to each run; a
 * value is a number read from the host at each run; the rest exists between operations only.
 *
 * INV: a graph remembers that something failed; every later call does nothing, and finish tells. */
#ifndef TSI_BACKEND_CUDA_CUDNN_H
#define TSI_BACKEND_CUDA_CUDNN_H

#include "backend/cuda/cuda.h"

typedef struct tsi_cudnn_descriptor *tsi_cudnn_any;

typedef enum tsi_cudnn_type {
    TSI_CUDNN_F32 = 0,
    TSI_CUDNN_F16 = 2,
    TSI_CUDNN_I32 = 4,
    TSI_CUDNN_BF16 = 9,
    TSI_CUDNN_TRUTH = 11
} tsi_cudnn_type;

typedef enum tsi_cudnn_point {
    TSI_CUDNN_ADD = 0,
    TSI_CUDNN_MUL = 1,
    TSI_CUDNN_DIV = 6,
    TSI_CUDNN_SUB = 9,
    TSI_CUDNN_EXP = 13,
    TSI_CUDNN_LOG = 15,
    TSI_CUDNN_IDENTITY = 21,
    TSI_CUDNN_GE = 303,
    TSI_CUDNN_INDEX = 501,
    TSI_CUDNN_SELECT = 601
} tsi_cudnn_point;

typedef enum tsi_cudnn_reduce { TSI_CUDNN_SUM = 0, TSI_CUDNN_MAX = 3 } tsi_cudnn_reduce;

typedef struct tsi_cudnn_shape {
    int64_t extent[4], stride[4]; /* in elements */
} tsi_cudnn_shape;

enum { TSI_CUDNN_THINGS = 96, TSI_CUDNN_OPERATIONS = 40, TSI_CUDNN_TENSORS = 16 };

typedef struct tsi_cudnn_graph {
    tsi_cuda *cuda;
    tsi_cudnn_any thing[TSI_CUDNN_THINGS]; /* all of them, to be dropped */
    tsi_cudnn_any operation[TSI_CUDNN_OPERATIONS];
    int32_t things, operations;
    int64_t between; /* names of tensors that only operations see */
    bool failed;
} tsi_cudnn_graph;

typedef struct tsi_cudnn_plan {
    tsi_cudnn_any plan; /* NULL: there is none */
    int64_t workspace;
} tsi_cudnn_plan;

/* Its version, 9.19.0 as 91900; 0: it is not here, or known to be wrong. */
int64_t tsi_cudnn_version(void);

tsi_cudnn_shape tsi_cudnn_dense(int64_t a, int64_t b, int64_t c, int64_t d);
tsi_cudnn_any tsi_cudnn_real(tsi_cudnn_graph *graph, int64_t name, tsi_cudnn_type type,
                             const tsi_cudnn_shape *shape);
tsi_cudnn_any tsi_cudnn_value(tsi_cudnn_graph *graph, int64_t name, tsi_cudnn_type type);
tsi_cudnn_any tsi_cudnn_between(tsi_cudnn_graph *graph, tsi_cudnn_type type,
                                const tsi_cudnn_shape *shape);

/* out = point(x, y); y NULL: of one input. */
void tsi_cudnn_add_point(tsi_cudnn_graph *graph, tsi_cudnn_point point, tsi_cudnn_any x,
                         tsi_cudnn_any y, tsi_cudnn_any out);
/* out = x + by, of whole numbers. */
void tsi_cudnn_add_shift(tsi_cudnn_graph *graph, tsi_cudnn_any x, tsi_cudnn_any by,
                         tsi_cudnn_any out);
/* out = the index along a dim, of a tensor like x. */
void tsi_cudnn_add_index(tsi_cudnn_graph *graph, int64_t dim, tsi_cudnn_any x, tsi_cudnn_any out);
/* out = truth ? x : y. */
void tsi_cudnn_add_select(tsi_cudnn_graph *graph, tsi_cudnn_any x, tsi_cudnn_any y,
                          tsi_cudnn_any truth, tsi_cudnn_any out);
void tsi_cudnn_add_reduce(tsi_cudnn_graph *graph, tsi_cudnn_reduce reduce, tsi_cudnn_any x,
                          tsi_cudnn_any out);
void tsi_cudnn_add_product(tsi_cudnn_graph *graph, tsi_cudnn_any a, tsi_cudnn_any b,
                           tsi_cudnn_any out);
void tsi_cudnn_add_reshape(tsi_cudnn_graph *graph, tsi_cudnn_any x, tsi_cudnn_any out);

/* Makes the plan and drops the graph. No plan: cuDNN has no kernel for it. */
tsi_cudnn_plan tsi_cudnn_finish(tsi_cudnn_graph *graph);
/* In the order of the stream; `memory` by names. */
ts_status tsi_cudnn_run(tsi_stream *stream, const tsi_cudnn_plan *plan, const int64_t *name,
                        void *const *memory, int32_t count);
/* With the stream it belongs to. */
void tsi_cudnn_handle_drop(void *handle);

#endif
