/* SPDX-License-Identifier: Apache-2.0 */
/* cudnn.c - cuDNN's backend API from C: descriptors, plans, runs.
 *
 * Everything there is a descriptor that is created, given attributes and finalised. Plans are made
 * with a handle of the GPU that lives as long as the process and run with the handle of a stream.
 *
 * INV: the table of functions is written once, with its lock, before any other use. */
#include "backend/cuda/cudnn.h"

#include <stdlib.h>

#include "base/error.h"

/* Numbers of cudnn_graph.h, which never change: descriptors, types of attributes, attributes. */
enum {
    KIND_POINTWISE = 0,
    KIND_ENGINE_CONFIG = 3,
    KIND_HEURISTICS = 4,
    KIND_PLAN = 5,
    KIND_DO_POINTWISE = 13,
    KIND_GRAPH = 15,
    KIND_PACK = 16,
    KIND_TENSOR = 17,
    KIND_PRODUCT = 18,
    KIND_DO_PRODUCT = 19,
    KIND_REDUCTION = 21,
    KIND_DO_REDUCTION = 22,
    KIND_DO_RESHAPE = 31,

    OF_HANDLE = 0,
    OF_DATA_TYPE = 1,
    OF_TRUTH = 2,
    OF_I64 = 3,
    OF_POINTER = 6,
    OF_HEURISTIC = 8,
    OF_POINT = 14,
    OF_DESCRIPTOR = 15,
    OF_REDUCE = 18,

    POINT_MODE = 0,
    POINT_PRECISION = 1,
    POINT_AXIS = 9,
    HEURISTICS_MODE = 200,
    HEURISTICS_GRAPH = 201,
    HEURISTICS_RESULTS = 202,
    PLAN_HANDLE = 400,
    PLAN_CONFIG = 401,
    PLAN_WORKSPACE = 402,
    DO_POINT = 750,
    DO_POINT_X = 751,
    DO_POINT_B = 752,
    DO_POINT_Y = 753,
    DO_POINT_T = 758,
    GRAPH_HANDLE = 800,
    GRAPH_OPERATIONS = 801,
    TENSOR_ALIGNMENT = 900,
    TENSOR_TYPE = 901,
    TENSOR_EXTENTS = 902,
    TENSOR_STRIDES = 903,
    TENSOR_NAME = 906,
    TENSOR_BETWEEN = 907,
    TENSOR_VALUE = 908,
    PACK_NAMES = 1000,
    PACK_POINTERS = 1001,
    PACK_WORKSPACE = 1003,
    PRODUCT_TYPE = 1500,
    DO_PRODUCT_A = 1520,
    DO_PRODUCT_B = 1521,
    DO_PRODUCT_C = 1522,
    DO_PRODUCT = 1523,
    REDUCTION_OPERATOR = 1600,
    REDUCTION_TYPE = 1601,
    DO_REDUCTION_X = 1610,
    DO_REDUCTION_Y = 1611,
    DO_REDUCTION = 1612,
    DO_RESHAPE_X = 2200,
    DO_RESHAPE_Y = 2201,

    HEURISTIC_A = 3,
    ANSWERS = 8,
    BETWEEN = 1000 /* names from here on are of tensors that only operations see */
};

/* X(field, symbol, result, parameters); a result of 0 is success. */
#define TSI_CUDNN(X)                                                                               \
    X(version, cudnnGetVersion, size_t, (void))                                                    \
    X(create, cudnnCreate, int, (void **))                                                         \
    X(destroy, cudnnDestroy, int, (void *))                                                        \
    X(set_stream, cudnnSetStream, int, (void *, CUstream))                                         \
    X(make, cudnnBackendCreateDescriptor, int, (int, tsi_cudnn_any *))                             \
    X(drop, cudnnBackendDestroyDescriptor, int, (tsi_cudnn_any))                                   \
    X(finalize, cudnnBackendFinalize, int, (tsi_cudnn_any))                                        \
    X(set, cudnnBackendSetAttribute, int, (tsi_cudnn_any, int, int, int64_t, const void *))        \
    X(get, cudnnBackendGetAttribute, int, (tsi_cudnn_any, int, int, int64_t, int64_t *, void *))   \
    X(execute, cudnnBackendExecute, int, (void *, tsi_cudnn_any, tsi_cudnn_any))

static struct {
    pthread_mutex_t lock;
    bool looked;
    int64_t known; /* the version; 0: not to be used */
#define TSI_CUDNN_FIELD(field, symbol, result, parameters) result(*field) parameters;
    TSI_CUDNN(TSI_CUDNN_FIELD)
#undef TSI_CUDNN_FIELD
} dnn = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- the library ----------------------------------------------------------------------------- */

static bool find_functions(void *library)
{
    bool all = library != NULL;
#define TSI_CUDNN_FIND(field, symbol, result, parameters)                                          \
    all = all && tsi_cuda_symbol(library, #symbol, &dnn.field);
    TSI_CUDNN(TSI_CUDNN_FIND)
#undef TSI_CUDNN_FIND
    return all;
}

/* NVIDIA refuses its own attention of 9.10.0 and 9.10.1. */
static bool is_usable(int64_t version)
{
    return version >= 90000 && version < 100000 && version != 91000 && version != 91001;
}

int64_t tsi_cudnn_version(void)
{
    static const char *const names[] = { "libcudnn.so.9", NULL };
    pthread_mutex_lock(&dnn.lock);
    if (!dnn.looked) {
        dnn.looked = true;
        if (find_functions(tsi_cuda_library_open(names))) {
            int64_t version = (int64_t)dnn.version();
            dnn.known = is_usable(version) ? version : 0;
        }
    }
    int64_t known = dnn.known;
    pthread_mutex_unlock(&dnn.lock);
    return known;
}

/* The handle of plans. With the GPU's lock. */
static void *plan_handle(tsi_cuda *cuda)
{
    if (!cuda->cudnn && dnn.create(&cuda->cudnn) != 0) cuda->cudnn = NULL;
    return cuda->cudnn;
}

static void *run_handle(tsi_stream *stream)
{
    if (stream->cudnn) return stream->cudnn;
    if (dnn.create(&stream->cudnn) != 0) stream->cudnn = NULL;
    if (stream->cudnn) (void)dnn.set_stream(stream->cudnn, stream->handle);
    return stream->cudnn;
}

void tsi_cudnn_handle_drop(void *handle)
{
    if (handle) (void)dnn.destroy(handle);
}

/* ---- descriptors ----------------------------------------------------------------------------- */

static tsi_cudnn_any make(tsi_cudnn_graph *g, int kind)
{
    tsi_cudnn_any made = NULL;
    if (!g->failed && g->things < TSI_CUDNN_THINGS && dnn.make(kind, &made) == 0)
        g->thing[g->things++] = made;
    else
        g->failed = true;
    return made;
}

static void set(tsi_cudnn_graph *g, tsi_cudnn_any thing, int attribute, int type, int64_t count,
                const void *value)
{
    if (!g->failed && dnn.set(thing, attribute, type, count, value) != 0) g->failed = true;
}

static void set_one(tsi_cudnn_graph *g, tsi_cudnn_any thing, int attribute, tsi_cudnn_any other)
{
    set(g, thing, attribute, OF_DESCRIPTOR, 1, &other);
}

static void finalize(tsi_cudnn_graph *g, tsi_cudnn_any thing)
{
    if (!g->failed && dnn.finalize(thing) != 0) g->failed = true;
}

static void add_operation(tsi_cudnn_graph *g, tsi_cudnn_any operation)
{
    finalize(g, operation);
    if (g->operations == TSI_CUDNN_OPERATIONS) g->failed = true;
    if (!g->failed) g->operation[g->operations++] = operation;
}

/* ---- tensors --------------------------------------------------------------------------------- */

tsi_cudnn_shape tsi_cudnn_dense(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (tsi_cudnn_shape){ { a, b, c, d }, { b * c * d, c * d, d, 1 } };
}

static tsi_cudnn_any tensor(tsi_cudnn_graph *g, int64_t name, tsi_cudnn_type type,
                            const tsi_cudnn_shape *shape, int special)
{
    tsi_cudnn_any made = make(g, KIND_TENSOR);
    int64_t alignment = 16;
    bool yes = true;
    set(g, made, TENSOR_TYPE, OF_DATA_TYPE, 1, &type);
    set(g, made, TENSOR_EXTENTS, OF_I64, 4, shape->extent);
    set(g, made, TENSOR_STRIDES, OF_I64, 4, shape->stride);
    set(g, made, TENSOR_NAME, OF_I64, 1, &name);
    set(g, made, TENSOR_ALIGNMENT, OF_I64, 1, &alignment);
    if (special) set(g, made, special, OF_TRUTH, 1, &yes);
    finalize(g, made);
    return made;
}

tsi_cudnn_any tsi_cudnn_real(tsi_cudnn_graph *graph, int64_t name, tsi_cudnn_type type,
                             const tsi_cudnn_shape *shape)
{
    return tensor(graph, name, type, shape, 0);
}

tsi_cudnn_any tsi_cudnn_value(tsi_cudnn_graph *graph, int64_t name, tsi_cudnn_type type)
{
    tsi_cudnn_shape one = tsi_cudnn_dense(1, 1, 1, 1);
    return tensor(graph, name, type, &one, TENSOR_VALUE);
}

tsi_cudnn_any tsi_cudnn_between(tsi_cudnn_graph *graph, tsi_cudnn_type type,
                                const tsi_cudnn_shape *shape)
{
    return tensor(graph, BETWEEN + graph->between++, type, shape, TENSOR_BETWEEN);
}

/* ---- operations ------------------------------------------------------------------------------ */

static tsi_cudnn_any point_of(tsi_cudnn_graph *g, tsi_cudnn_point point, tsi_cudnn_type type,
                              int64_t axis)
{
    tsi_cudnn_any made = make(g, KIND_POINTWISE);
    set(g, made, POINT_MODE, OF_POINT, 1, &point);
    set(g, made, POINT_PRECISION, OF_DATA_TYPE, 1, &type);
    if (axis >= 0) set(g, made, POINT_AXIS, OF_I64, 1, &axis);
    finalize(g, made);
    return made;
}

static void do_point(tsi_cudnn_graph *g, tsi_cudnn_any point, const tsi_cudnn_any *in,
                     tsi_cudnn_any out)
{
    static const int attribute[3] = { DO_POINT_X, DO_POINT_B, DO_POINT_T };
    tsi_cudnn_any made = make(g, KIND_DO_POINTWISE);
    set_one(g, made, DO_POINT, point);
    for (int32_t i = 0; i < 3; i++)
        if (in[i]) set_one(g, made, attribute[i], in[i]);
    set_one(g, made, DO_POINT_Y, out);
    add_operation(g, made);
}

/* Comparisons are computed as truths. */
void tsi_cudnn_add_point(tsi_cudnn_graph *graph, tsi_cudnn_point point, tsi_cudnn_any x,
                         tsi_cudnn_any y, tsi_cudnn_any out)
{
    tsi_cudnn_type type = point == TSI_CUDNN_GE ? TSI_CUDNN_TRUTH : TSI_CUDNN_F32;
    do_point(graph, point_of(graph, point, type, -1), (tsi_cudnn_any[]){ x, y, NULL }, out);
}

void tsi_cudnn_add_shift(tsi_cudnn_graph *graph, tsi_cudnn_any x, tsi_cudnn_any by,
                         tsi_cudnn_any out)
{
    do_point(graph, point_of(graph, TSI_CUDNN_ADD, TSI_CUDNN_I32, -1),
             (tsi_cudnn_any[]){ x, by, NULL }, out);
}

void tsi_cudnn_add_index(tsi_cudnn_graph *graph, int64_t dim, tsi_cudnn_any x, tsi_cudnn_any out)
{
    do_point(graph, point_of(graph, TSI_CUDNN_INDEX, TSI_CUDNN_F32, dim),
             (tsi_cudnn_any[]){ x, NULL, NULL }, out);
}

void tsi_cudnn_add_select(tsi_cudnn_graph *graph, tsi_cudnn_any x, tsi_cudnn_any y,
                          tsi_cudnn_any truth, tsi_cudnn_any out)
{
    do_point(graph, point_of(graph, TSI_CUDNN_SELECT, TSI_CUDNN_F32, -1),
             (tsi_cudnn_any[]){ x, y, truth }, out);
}

void tsi_cudnn_add_reduce(tsi_cudnn_graph *graph, tsi_cudnn_reduce reduce, tsi_cudnn_any x,
                          tsi_cudnn_any out)
{
    tsi_cudnn_type type = TSI_CUDNN_F32;
    tsi_cudnn_any how = make(graph, KIND_REDUCTION);
    set(graph, how, REDUCTION_OPERATOR, OF_REDUCE, 1, &reduce);
    set(graph, how, REDUCTION_TYPE, OF_DATA_TYPE, 1, &type);
    finalize(graph, how);
    tsi_cudnn_any made = make(graph, KIND_DO_REDUCTION);
    set_one(graph, made, DO_REDUCTION, how);
    set_one(graph, made, DO_REDUCTION_X, x);
    set_one(graph, made, DO_REDUCTION_Y, out);
    add_operation(graph, made);
}

void tsi_cudnn_add_product(tsi_cudnn_graph *graph, tsi_cudnn_any a, tsi_cudnn_any b,
                           tsi_cudnn_any out)
{
    tsi_cudnn_type type = TSI_CUDNN_F32;
    tsi_cudnn_any how = make(graph, KIND_PRODUCT);
    set(graph, how, PRODUCT_TYPE, OF_DATA_TYPE, 1, &type);
    finalize(graph, how);
    tsi_cudnn_any made = make(graph, KIND_DO_PRODUCT);
    set_one(graph, made, DO_PRODUCT, how);
    set_one(graph, made, DO_PRODUCT_A, a);
    set_one(graph, made, DO_PRODUCT_B, b);
    set_one(graph, made, DO_PRODUCT_C, out);
    add_operation(graph, made);
}

void tsi_cudnn_add_reshape(tsi_cudnn_graph *graph, tsi_cudnn_any x, tsi_cudnn_any out)
{
    tsi_cudnn_any made = make(graph, KIND_DO_RESHAPE);
    set_one(graph, made, DO_RESHAPE_X, x);
    set_one(graph, made, DO_RESHAPE_Y, out);
    add_operation(graph, made);
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* The plan of one answer of the heuristics; NULL: it does not finalise. */
static tsi_cudnn_any plan_of(void *handle, tsi_cudnn_any config)
{
    tsi_cudnn_any plan = NULL;
    if (dnn.make(KIND_PLAN, &plan) != 0) return NULL;
    if (dnn.set(plan, PLAN_HANDLE, OF_HANDLE, 1, (const void *)&handle) == 0 &&
        dnn.set(plan, PLAN_CONFIG, OF_DESCRIPTOR, 1, (const void *)&config) == 0 &&
        dnn.finalize(plan) == 0)
        return plan;
    (void)dnn.drop(plan);
    return NULL;
}

static tsi_cudnn_plan first_plan(tsi_cudnn_graph *g, void *handle, tsi_cudnn_any heuristics)
{
    tsi_cudnn_plan plan = { 0 };
    tsi_cudnn_any config[ANSWERS];
    int64_t found = 0, one = 0;
    for (int32_t i = 0; i < ANSWERS; i++)
        config[i] = make(g, KIND_ENGINE_CONFIG);
    if (g->failed || dnn.get(heuristics, HEURISTICS_RESULTS, OF_DESCRIPTOR, ANSWERS, &found,
                             (void *)config) != 0)
        return plan;
    for (int64_t i = 0; i < found && !plan.plan; i++)
        plan.plan = plan_of(handle, config[i]);
    if (plan.plan && dnn.get(plan.plan, PLAN_WORKSPACE, OF_I64, 1, &one, &plan.workspace) != 0)
        plan.workspace = 0;
    return plan;
}

tsi_cudnn_plan tsi_cudnn_finish(tsi_cudnn_graph *graph)
{
    tsi_cudnn_plan plan = { 0 };
    int mode = HEURISTIC_A;
    pthread_mutex_lock(&graph->cuda->lock);
    void *handle = plan_handle(graph->cuda);
    graph->failed = graph->failed || !handle;
    tsi_cudnn_any all = make(graph, KIND_GRAPH);
    set(graph, all, GRAPH_OPERATIONS, OF_DESCRIPTOR, graph->operations,
        (const void *)graph->operation);
    set(graph, all, GRAPH_HANDLE, OF_HANDLE, 1, (const void *)&handle);
    finalize(graph, all);
    tsi_cudnn_any heuristics = make(graph, KIND_HEURISTICS);
    set_one(graph, heuristics, HEURISTICS_GRAPH, all);
    set(graph, heuristics, HEURISTICS_MODE, OF_HEURISTIC, 1, &mode);
    finalize(graph, heuristics);
    if (!graph->failed) plan = first_plan(graph, handle, heuristics);
    while (graph->things > 0)
        (void)dnn.drop(graph->thing[--graph->things]);
    pthread_mutex_unlock(&graph->cuda->lock);
    return plan;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static int execute(void *handle, const tsi_cudnn_plan *plan, const int64_t *name,
                   void *const *memory, int32_t count, void *workspace)
{
    tsi_cudnn_any pack = NULL;
    int failed = dnn.make(KIND_PACK, &pack);
    if (failed) return failed;
    failed = dnn.set(pack, PACK_NAMES, OF_I64, count, name);
    if (!failed) failed = dnn.set(pack, PACK_POINTERS, OF_POINTER, count, (const void *)memory);
    if (!failed) failed = dnn.set(pack, PACK_WORKSPACE, OF_POINTER, 1, (const void *)&workspace);
    if (!failed) failed = dnn.finalize(pack);
    if (!failed) failed = dnn.execute(handle, plan->plan, pack);
    (void)dnn.drop(pack);
    return failed;
}

/* TESSERA_CUDNN_RUNS: how often a call runs its plan, by which benches tell what that takes alone.
 */
static int64_t runs_of_a_call(void)
{
    const char *text = getenv("TESSERA_CUDNN_RUNS");
    int64_t runs = text ? strtoll(text, NULL, 10) : 1;
    return runs > 0 ? runs : 1;
}

ts_status tsi_cudnn_run(tsi_stream *stream, const tsi_cudnn_plan *plan, const int64_t *name,
                        void *const *memory, int32_t count)
{
    void *handle = run_handle(stream), *workspace = NULL;
    if (!handle) return TSI_FAIL(TS_ERR_INTERNAL, "%s: cuDNN gives no handle", stream->cuda->name);
    TSI_TRY(tsi_cuda_scratch(stream, (size_t)plan->workspace, &workspace));
    stream->sent++;
    int failed = 0;
    for (int64_t i = runs_of_a_call(); i > 0 && !failed; i--)
        failed = execute(handle, plan, name, memory, count, workspace);
    if (!failed) return TS_OK;
    return TSI_FAIL(TS_ERR_INTERNAL, "%s: cuDNN's attention says %d", stream->cuda->name, failed);
}
