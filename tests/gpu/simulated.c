/* SPDX-License-Identifier: Apache-2.0 */
/* simulated.c - what the simulated GPU sees, so that a fault of a kernel or of the module's host
 * side is a failed test: kernels with faults on purpose (simulated/wrong.cu), and work that nobody
 * has waited for.
 *
 * On a real GPU there is nothing to ask: each test says so and ends. */
#include <cuda.h>
#include <dlfcn.h>
#include <math.h>

#include "gpu/gpu.h"

enum { COUNT = 256 };

/* The functions that are asked for here, by their names in the library. */
#define FUNCTIONS(X)                                                                               \
    X(cuInit)                                                                                      \
    X(cuDeviceGetName)                                                                             \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuCtxSetCurrent)                                                                             \
    X(cuCtxSynchronize)                                                                            \
    X(cuModuleLoadData)                                                                            \
    X(cuModuleGetFunction)                                                                         \
    X(cuLaunchKernelEx)                                                                            \
    X(cuMemAlloc_v2)                                                                               \
    X(cuMemFree_v2)                                                                                \
    X(cuMemHostAlloc)                                                                              \
    X(cuMemcpyHtoDAsync_v2)                                                                        \
    X(cuMemcpyDtoHAsync_v2)                                                                        \
    X(cuStreamCreate)                                                                              \
    X(cuStreamSynchronize)                                                                         \
    X(cuEventCreate)                                                                               \
    X(cuEventRecord)                                                                               \
    X(cuEventQuery)                                                                                \
    X(cuStreamWaitEvent)                                                                           \
    X(cuStreamBeginCapture_v2)                                                                     \
    X(cuStreamEndCapture)                                                                          \
    X(cuGraphInstantiateWithFlags)                                                                 \
    X(cuGraphLaunch)                                                                               \
    X(cuGetErrorString)
static struct {
#define FIELD(name) __typeof__(name) *name;
    FUNCTIONS(FIELD)
#undef FIELD
} cu;

typedef struct gpu_of {
    CUstream stream;
    CUmodule module;
    CUdeviceptr to, from; /* COUNT numbers each, `to` one more; those of `from` are 0, 1, 2 .. */
} gpu_of;

/* As wrong.cu has it. */
typedef struct wrong_args {
    int64_t count;
    CUdeviceptr to, from;
} wrong_args;

static bool is_found(test *t)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    char name[64] = "";
    CUcontext context = NULL;
    TEST_SAY(t, library != NULL, "no driver: %s", library ? "" : dlerror());
    if (!library) return false;
    bool all = true;
#define FIND(name) *(void **)(void *)&cu.name = dlsym(library, #name), all = all && cu.name;
    FUNCTIONS(FIND)
#undef FIND
    TEST_CHECK(t, all);
    if (!all || cu.cuInit(0) != CUDA_SUCCESS) return false;
    TEST_EQ(t, cu.cuDeviceGetName(name, sizeof name, 0), CUDA_SUCCESS);
    if (strcmp(name, "simulated GPU") != 0) {
        printf("skipped on %s, which is a real one\n", name);
        return false;
    }
    TEST_EQ(t, cu.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    TEST_EQ(t, cu.cuCtxSetCurrent(context), CUDA_SUCCESS);
    return true;
}

static bool begin(test *t, gpu_of *g)
{
    float numbers[COUNT];
    if (!is_found(t)) return false;
    for (int i = 0; i < COUNT; i++)
        numbers[i] = (float)i;
    TEST_EQ(t, cu.cuStreamCreate(&g->stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    TEST_EQ(t, cu.cuModuleLoadData(&g->module, ""), CUDA_SUCCESS);
    TEST_EQ(t, cu.cuMemAlloc_v2(&g->to, sizeof numbers + 4), CUDA_SUCCESS);
    TEST_EQ(t, cu.cuMemAlloc_v2(&g->from, sizeof numbers), CUDA_SUCCESS);
    TEST_EQ(t, cu.cuMemcpyHtoDAsync_v2(g->from, numbers, sizeof numbers, g->stream), CUDA_SUCCESS);
    return true;
}

static CUresult launch(test *t, const gpu_of *g, CUstream stream, const char *name, int64_t count)
{
    wrong_args args = { .count = count, .to = g->to, .from = g->from };
    void *parameters[1] = { &args };
    CUfunction function = NULL;
    TEST_EQ(t, cu.cuModuleGetFunction(&function, g->module, name), CUDA_SUCCESS);
    CUlaunchConfig how = { .gridDimX = 1,
                           .gridDimY = 1,
                           .gridDimZ = 1,
                           .blockDimX = COUNT,
                           .blockDimY = 1,
                           .blockDimZ = 1,
                           .sharedMemBytes = COUNT * 16,
                           .hStream = stream };
    return function ? cu.cuLaunchKernelEx(&how, function, parameters, NULL) : CUDA_ERROR_NOT_FOUND;
}

/* Whether each number came from its mirror. */
static bool is_mirrored(test *t, const gpu_of *g)
{
    float got[COUNT];
    TEST_EQ(t, cu.cuMemcpyDtoHAsync_v2(got, g->to, sizeof got, g->stream), CUDA_SUCCESS);
    for (int i = 0; i < COUNT; i++)
        if (got[i] != (float)(COUNT - 1 - i)) return false;
    return true;
}

/* ---- kernels --------------------------------------------------------------------------------- */

TS_TEST(a_kernel_that_lacks_a_barrier_is_wrong_in_some_order)
{
    gpu_of g = { 0 };
    if (!begin(t, &g)) return;
    enum { KERNELS = 4 };
    int right[KERNELS] = { 0 };
    static const char *const names[KERNELS] = { "wrong_not", "wrong_no_barrier", "wrong_unwritten",
                                                "wrong_no_second_barrier" };
    for (int k = 0; k < KERNELS; k++)
        for (int run = 0; run < 4; run++) {
            TEST_EQ(t, launch(t, &g, g.stream, names[k], 0), CUDA_SUCCESS);
            right[k] += is_mirrored(t, &g);
        }
    TEST_EQ(t, right[0], 4);
    TEST_EQ(t, right[1], 0);
    TEST_EQ(t, right[2], 0);
    TEST_SAY(t, right[3] > 0 && right[3] < 4, "a warp ran ahead in %d of 4", 4 - right[3]);
}

TS_TEST(what_is_fetched_is_there_behind_a_wait)
{
    gpu_of g = { 0 };
    float got[COUNT];
    if (!begin(t, &g)) return;
    TEST_EQ(t, cu.cuMemAlloc_v2(&g.to, COUNT * 16), CUDA_SUCCESS);
    TEST_EQ(t, cu.cuMemAlloc_v2(&g.from, COUNT * 16), CUDA_SUCCESS);
    TEST_EQ(t, launch(t, &g, g.stream, "wrong_no_wait", 0), CUDA_SUCCESS);
    TEST_EQ(t, cu.cuMemcpyDtoHAsync_v2(got, g.to, sizeof got, g.stream), CUDA_SUCCESS);
    TEST_CHECK(t, isnan(got[0]) && isnan(got[COUNT - 1]));
}

/* Each in a process of its own (the harness), since the first fault ends the GPU. */
static void sees(test *t, const char *name, int64_t count, CUresult result, const char *says)
{
    gpu_of g = { 0 };
    const char *text = "";
    if (!begin(t, &g)) return;
    TEST_EQ(t, launch(t, &g, g.stream, name, count), CUDA_SUCCESS);
    TEST_EQ(t, cu.cuStreamSynchronize(g.stream), result);
    (void)cu.cuGetErrorString(result, &text);
    TEST_SAYS(t, text, name);
    TEST_SAYS(t, text, says);
    TEST_EQ(t, cu.cuMemFree_v2(g.to), result);
}

TS_TEST(half_of_a_block_at_a_barrier_is_seen)
{
    sees(t, "wrong_half_at_barrier", 0, CUDA_ERROR_LAUNCH_FAILED,
         "128 threads wait at a barrier, 128 for lanes of their warps");
}

TS_TEST(a_lane_that_is_not_there_is_seen)
{
    sees(t, "wrong_lane_ends", 0, CUDA_ERROR_LAUNCH_FAILED, "lane");
}

TS_TEST(a_write_behind_memory_is_seen)
{
    sees(t, "wrong_behind", 2, CUDA_ERROR_LAUNCH_FAILED,
         "something was written behind memory of 1028 bytes");
}

TS_TEST(a_read_far_behind_memory_is_seen)
{
    sees(t, "wrong_far_behind", COUNT, CUDA_ERROR_ILLEGAL_ADDRESS,
         "bytes behind the end of memory of 1024 bytes");
}

TS_TEST(an_access_off_its_alignment_is_seen)
{
    sees(t, "wrong_aligned", 0, CUDA_ERROR_MISALIGNED_ADDRESS, "off its alignment");
}

TS_TEST(an_access_behind_an_array_is_seen)
{
    sees(t, "wrong_behind_array", COUNT + 1, CUDA_ERROR_MISALIGNED_ADDRESS, "behind an array");
}

TS_TEST(a_write_behind_shared_memory_is_seen)
{
    sees(t, "wrong_behind_room", COUNT * 4, CUDA_ERROR_ILLEGAL_ADDRESS, "wrong_behind_room");
}

/* ---- the host's side ------------------------------------------------------------------------- */

TS_TEST(work_that_nobody_waits_for_is_not_done)
{
    gpu_of g = { 0 };
    CUstream other = NULL;
    CUevent event = NULL;
    float *pinned = NULL;
    if (!begin(t, &g)) return;
    TEST_EQ(t, cu.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    TEST_EQ(t, cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    TEST_EQ(t, cu.cuMemHostAlloc((void **)&pinned, COUNT * 4, 0), CUDA_SUCCESS);
    TEST_CHECK(t, isnan(pinned[0])); /* noise */
    TEST_EQ(t, launch(t, &g, g.stream, "wrong_not", 0), CUDA_SUCCESS);
    TEST_EQ(t, cu.cuEventRecord(event, g.stream), CUDA_SUCCESS);
    /* Another stream that does not wait finds nothing, one that does finds it. */
    TEST_EQ(t, cu.cuMemcpyDtoHAsync_v2(pinned, g.to, COUNT * 4, other), CUDA_SUCCESS);
    TEST_EQ(t, cu.cuStreamSynchronize(other), CUDA_SUCCESS);
    TEST_CHECK(t, isnan(pinned[0]));
    TEST_EQ(t, cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
    TEST_EQ(t, cu.cuStreamWaitEvent(other, event, 0), CUDA_SUCCESS);
    TEST_EQ(t, cu.cuMemcpyDtoHAsync_v2(pinned, g.to, COUNT * 4, other), CUDA_SUCCESS);
    TEST_CHECK(t, isnan(pinned[0])); /* pinned memory, too, is written when it is waited for */
    TEST_EQ(t, cu.cuStreamSynchronize(other), CUDA_SUCCESS);
    TEST_CHECK(t, pinned[0] == COUNT - 1);
    TEST_EQ(t, cu.cuEventQuery(event), CUDA_SUCCESS);
}

/* A branch of a graph that is not behind another one runs before it; one that is not waited for is
 * an error. */
TS_TEST(branches_of_graphs_run_in_an_order_of_their_own)
{
    gpu_of g = { 0 };
    CUstream branch = NULL;
    CUevent fork = NULL, join = NULL;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    float got = 0;
    if (!begin(t, &g)) return;
    TEST_EQ(t, cu.cuStreamCreate(&branch, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    TEST_EQ(t, cu.cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    TEST_EQ(t, cu.cuEventCreate(&join, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    for (int joined = 0; joined < 2; joined++) {
        float *number = NULL;
        TEST_EQ(t, cu.cuMemHostAlloc((void **)&number, 16, 0), CUDA_SUCCESS);
        number[0] = 1, number[1] = 2;
        TEST_EQ(t, cu.cuStreamBeginCapture_v2(g.stream, CU_STREAM_CAPTURE_MODE_RELAXED),
                CUDA_SUCCESS);
        TEST_EQ(t, cu.cuEventRecord(fork, g.stream), CUDA_SUCCESS);
        TEST_EQ(t, cu.cuMemcpyHtoDAsync_v2(g.to, &number[0], 4, g.stream), CUDA_SUCCESS);
        TEST_EQ(t, cu.cuStreamWaitEvent(branch, fork, 0), CUDA_SUCCESS);
        TEST_EQ(t, cu.cuMemcpyHtoDAsync_v2(g.to, &number[1], 4, branch), CUDA_SUCCESS);
        TEST_EQ(t, cu.cuEventRecord(join, branch), CUDA_SUCCESS);
        if (joined) TEST_EQ(t, cu.cuStreamWaitEvent(g.stream, join, 0), CUDA_SUCCESS);
        TEST_EQ(t, cu.cuStreamEndCapture(g.stream, &graph),
                joined ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    }
    TEST_EQ(t, cu.cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    TEST_EQ(t, cu.cuGraphLaunch(exec, g.stream), CUDA_SUCCESS);
    TEST_EQ(t, cu.cuMemcpyDtoHAsync_v2(&got, g.to, 4, g.stream), CUDA_SUCCESS);
    TEST_CHECK(t, got == 1); /* what was captured first came last */
}

/* On a GPU, too, whoever waits. */
TS_TEST(a_wait_for_everything_ends_what_is_captured)
{
    gpu_of g = { 0 };
    CUgraph graph = NULL;
    float got = 0;
    if (!begin(t, &g)) return;
    TEST_EQ(t, cu.cuStreamBeginCapture_v2(g.stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    TEST_EQ(t, cu.cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    TEST_EQ(t, cu.cuMemcpyDtoHAsync_v2(&got, g.to, 4, g.stream),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    TEST_EQ(t, cu.cuStreamEndCapture(g.stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    TEST_EQ(t, cu.cuCtxSynchronize(), CUDA_SUCCESS);
}
