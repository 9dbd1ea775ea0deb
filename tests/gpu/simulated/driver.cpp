/* SPDX-License-Identifier: Apache-2.0 */
/* driver.cpp - libcuda.so.1 of a GPU that is not there: the functions that
 * src/backend/cuda/driver.h asks for, on memory of the host (memory.h), streams that run late
 * (stream.h), and kernels that the host's compiler made (run.h).
 *
 * INV: one lock around every function; work runs on the thread that waits for it. After a fault
 * every function says so, and cuGetErrorString has the sentence of the first one. */
#include <cuda.h>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "run.h"
#include "stream.h"

#undef cuEventElapsedTime /* CUDA 13 says cuEventElapsedTime_v2; the module asks for the first */

struct CUfunc_st {
    const simulated_kernel *kernel;
    int room_most;
};
struct CUmod_st {
    int reserved;
};
struct CUctx_st {
    int reserved;
};

namespace
{

/* An A100's limits and a small one's size: what is cut by units is cut, and tests are short. */
enum {
    MAJOR = 8,
    UNITS = 8,
    ROOM_PLAIN = 48 << 10,
    ROOM_ASKED = 163 << 10, /* of a kernel that asks for more, on a GPU of 8.0 */
    ROOM_ASKED_WIDE = 227 << 10,
    VERSION = 13000,
    THREADS_MOST = 1024
};

std::recursive_mutex lock;
CUctx_st context;
thread_local CUcontext current;
char fault_sentence[512];

#define LOCKED std::lock_guard<std::recursive_mutex> locked(lock)

/* The common begin of functions that a faulty GPU refuses. */
#define ALIVE                                                                                      \
    LOCKED;                                                                                        \
    if (stream_fault != CUDA_SUCCESS) return stream_fault;                                         \
    if (!current) return CUDA_ERROR_INVALID_CONTEXT

CUresult complain(CUresult result, const char *sentence)
{
    (void)snprintf(fault_sentence, sizeof fault_sentence, "%s", sentence);
    (void)fprintf(stderr, "simulated GPU: %s\n", sentence);
    return result;
}

void *pointer_of(CUdeviceptr at)
{
    return (void *)(uintptr_t)at;
}

CUdeviceptr device_pointer(const void *at)
{
    return (CUdeviceptr)(uintptr_t)at;
}

CUresult put(CUstream stream, simulated_work work)
{
    if (!stream) return CUDA_ERROR_INVALID_HANDLE; /* the module uses no default stream */
    item it = {};
    it.work = std::move(work);
    return stream_put(stream, std::move(it));
}

} // namespace

CUresult simulated_enqueue(CUstream stream, simulated_work work)
{
    ALIVE;
    return put(stream, std::move(work));
}

bool simulated_holds(const void *at, size_t bytes)
{
    LOCKED;
    return memory_holds(at, bytes);
}

/* ---- what is there --------------------------------------------------------------------------- */

extern "C" {
#define CALL __attribute__((visibility("default"))) CUresult CUDAAPI

CALL cuInit(unsigned)
{
    return CUDA_SUCCESS;
}

CALL cuDriverGetVersion(int *version)
{
    *version = VERSION;
    return CUDA_SUCCESS;
}

static const struct {
    CUresult result;
    const char *name, *text;
} errors[] = {
#define ERROR(name, text)                                                                          \
    {                                                                                              \
        name, #name, text                                                                          \
    }
    ERROR(CUDA_SUCCESS, "no error"),
    ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    ERROR(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    ERROR(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    ERROR(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    ERROR(CUDA_ERROR_DEVICE_UNAVAILABLE, "the device is busy or unavailable"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "not permitted when stream is capturing"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "a call during the capture has ended it"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capture has work that was not joined"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency on work outside of the capture"),
#undef ERROR
};

CALL cuGetErrorName(CUresult result, const char **name)
{
    for (const auto &e : errors)
        if (e.result == result) *name = e.name;
    return CUDA_SUCCESS;
}

CALL cuGetErrorString(CUresult result, const char **text)
{
    LOCKED;
    for (const auto &e : errors)
        if (e.result == result) *text = e.text;
    if (result == stream_fault && fault_sentence[0]) *text = fault_sentence;
    return CUDA_SUCCESS;
}

CALL cuDeviceGetCount(int *count)
{
    *count = 1;
    return CUDA_SUCCESS;
}

CALL cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CALL cuDeviceGetName(char *name, int size, CUdevice)
{
    (void)snprintf(name, (size_t)size, "simulated GPU");
    return CUDA_SUCCESS;
}

/* TEST_CAPABILITY=9: a GPU of 9.0, which has products of four warps. */
static int major_of()
{
    const char *asked = getenv("TEST_CAPABILITY");
    return asked ? atoi(asked) : MAJOR;
}
static int room_asked()
{
    return major_of() < 9 ? ROOM_ASKED : ROOM_ASKED_WIDE;
}

CALL cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice)
{
    const struct {
        CUdevice_attribute which;
        int value;
    } known[] = { { CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, major_of() },
                  { CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0 },
                  { CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, UNITS },
                  { CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, room_asked() },
                  { CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1000000 },
                  { CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1000000 },
                  { CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 1024 } };
    for (const auto &k : known)
        if (k.which == which) {
            *value = k.value;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

CALL cuDeviceTotalMem_v2(size_t *bytes, CUdevice)
{
    *bytes = MEMORY_BYTES;
    return CUDA_SUCCESS;
}

CALL cuDeviceCanAccessPeer(int *can, CUdevice, CUdevice)
{
    *can = 0;
    return CUDA_SUCCESS;
}

CALL cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice)
{
    *out = &context;
    return CUDA_SUCCESS;
}

CALL cuCtxSetCurrent(CUcontext which)
{
    current = which;
    return CUDA_SUCCESS;
}

CALL cuCtxEnablePeerAccess(CUcontext, unsigned)
{
    return CUDA_ERROR_INVALID_DEVICE;
}

CALL cuCtxSynchronize()
{
    ALIVE;
    CUresult result = captures_end_early();
    if (result != CUDA_SUCCESS) return result;
    stream_run_all();
    return stream_fault;
}

/* ---- kernels --------------------------------------------------------------------------------- */

CALL cuModuleLoadData(CUmodule *module, const void *)
{
    static CUmod_st only; /* kernels have names of their own in all images */
    ALIVE;
    *module = &only;
    return CUDA_SUCCESS;
}

CALL cuModuleGetFunction(CUfunction *function, CUmodule, const char *name)
{
    ALIVE;
    const simulated_kernel *kernel = simulated_kernel_find(name);
    if (!kernel) return CUDA_ERROR_NOT_FOUND;
    *function = new CUfunc_st{ kernel, ROOM_PLAIN };
    return CUDA_SUCCESS;
}

CALL cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value)
{
    ALIVE;
    if (which != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value > room_asked())
        return CUDA_ERROR_INVALID_VALUE;
    function->room_most = value;
    return CUDA_SUCCESS;
}

/* SIMULATED_RAN=FILE: the file gets the name of each kernel that ran, once a process. */
static void note(const simulated_kernel *kernel)
{
    static std::set<const simulated_kernel *> noted;
    const char *path = getenv("SIMULATED_RAN");
    if (!path || !noted.insert(kernel).second) return;
    FILE *file = fopen(path, "a");
    if (!file) return;
    (void)fprintf(file, "%s\n", kernel->name);
    (void)fclose(file);
}

static CUresult run_kernel(const simulated_launch &launch)
{
    static const CUresult results[] = { CUDA_SUCCESS, CUDA_ERROR_ILLEGAL_ADDRESS,
                                        CUDA_ERROR_MISALIGNED_ADDRESS, CUDA_ERROR_LAUNCH_FAILED };
    char sentence[sizeof fault_sentence];
    note(launch.kernel);
    simulated_end end = simulated_run(launch, sentence, sizeof sentence);
    return end == SIMULATED_DONE ? CUDA_SUCCESS : complain(results[end], sentence);
}

/* A thread may have 255 of a block's 65,536 registers: a kernel that says nothing of its blocks is
 * sure of them in blocks of 256 alone. */
enum { THREADS_UNSAID = 256 };

CALL cuLaunchKernelEx(const CUlaunchConfig *how, CUfunction function, void **parameters, void **)
{
    ALIVE;
    const simulated_kernel *kernel = function->kernel;
    unsigned most = kernel->threads ? kernel->threads : (unsigned)THREADS_UNSAID;
    if (how->gridDimY != 1 || how->gridDimZ != 1 || how->blockDimY != 1 || how->blockDimZ != 1)
        return CUDA_ERROR_INVALID_VALUE; /* never asked for */
    if (how->gridDimX < 1 || how->blockDimX < 1 || how->blockDimX > THREADS_MOST ||
        how->sharedMemBytes > (unsigned)function->room_most ||
        (how->numAttrs > 0 && major_of() < 9))
        return CUDA_ERROR_INVALID_VALUE;
    if (how->blockDimX > most) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    std::shared_ptr<char> args((char *)aligned_alloc(64, (kernel->bytes + 63) / 64 * 64), free);
    memcpy(args.get(), parameters[0], kernel->bytes);
    unsigned blocks = how->gridDimX, threads = how->blockDimX, room = how->sharedMemBytes;
    return put(how->hStream, [=] {
        return run_kernel({ kernel, args.get(), blocks, threads, room });
    });
}

/* ---- memory ---------------------------------------------------------------------------------- */

static CUresult take(memory_kind kind, size_t bytes, void **out)
{
    *out = bytes ? memory_take(kind, bytes) : nullptr;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Told where it is noticed first: whoever gives memory back asks for no result. */
static CUresult give_back(void *memory)
{
    char what[128];
    if (!memory) return CUDA_SUCCESS;
    if (!memory_whole_at(memory, what, sizeof what))
        return stream_fault = complain(CUDA_ERROR_LAUNCH_FAILED, what);
    return memory_give_back(memory) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CALL cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
    ALIVE;
    void *memory = nullptr;
    CUresult result = take(MEMORY_DEVICE, bytes, &memory);
    *out = device_pointer(memory);
    return result;
}

CALL cuMemFree_v2(CUdeviceptr memory)
{
    ALIVE;
    stream_run_all();
    return stream_fault == CUDA_SUCCESS ? give_back(pointer_of(memory)) : stream_fault;
}

/* Captured, memory has one address in all runs of the graph, and nothing in it that a run may read.
 */
CALL cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream)
{
    ALIVE;
    void *memory = nullptr;
    CUresult result = take(MEMORY_DEVICE, bytes, &memory);
    *out = device_pointer(memory);
    if (result != CUDA_SUCCESS || !stream->captured) return result;
    stream->captured->graph->memory.emplace_back(memory, give_back);
    return put(stream, [=] {
        memset(memory, 0xFF, bytes);
        return CUDA_SUCCESS;
    });
}

CALL cuMemFreeAsync(CUdeviceptr memory, CUstream stream)
{
    ALIVE;
    if (stream->captured) return CUDA_SUCCESS; /* the graph has it */
    return put(stream, [=] { return give_back(pointer_of(memory)); });
}

CALL cuMemHostAlloc(void **out, size_t bytes, unsigned)
{
    ALIVE;
    return take(MEMORY_PINNED, bytes, out);
}

CALL cuMemFreeHost(void *memory)
{
    ALIVE;
    stream_run_all();
    return stream_fault == CUDA_SUCCESS ? give_back(memory) : stream_fault;
}

CALL cuPointerGetAttribute(void *value, CUpointer_attribute which, CUdeviceptr at)
{
    ALIVE;
    memory_kind kind = memory_kind_of(pointer_of(at));
    if (which != CU_POINTER_ATTRIBUTE_MEMORY_TYPE || kind == MEMORY_NONE)
        return CUDA_ERROR_INVALID_VALUE;
    *(CUmemorytype *)value = kind == MEMORY_PINNED ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    return CUDA_SUCCESS;
}

/* ---- copies ---------------------------------------------------------------------------------- */

static CUresult copy_later(void *to, const void *from, size_t bytes, CUstream stream)
{
    return put(stream, [=] {
        memmove(to, from, bytes);
        return CUDA_SUCCESS;
    });
}

/* Pageable memory is read before the call returns, pinned memory when it is the stream's turn. */
CALL cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    ALIVE;
    if (!memory_holds(pointer_of(to), bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (memory_kind_of(from) != MEMORY_NONE || stream->captured)
        return copy_later(pointer_of(to), from, bytes, stream);
    std::shared_ptr<char> now((char *)malloc(bytes ? bytes : 1), free);
    memcpy(now.get(), from, bytes);
    return put(stream, [=] {
        memcpy(pointer_of(to), now.get(), bytes);
        return CUDA_SUCCESS;
    });
}

CALL cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    ALIVE;
    if (!memory_holds(pointer_of(from), bytes)) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = copy_later(to, pointer_of(from), bytes, stream);
    if (result != CUDA_SUCCESS || stream->captured || memory_kind_of(to) != MEMORY_NONE)
        return result;
    stream_run(stream);
    return stream_fault;
}

CALL cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    ALIVE;
    if (!memory_holds(pointer_of(to), bytes) || !memory_holds(pointer_of(from), bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return copy_later(pointer_of(to), pointer_of(from), bytes, stream);
}

CALL cuMemsetD8Async(CUdeviceptr to, unsigned char byte, size_t bytes, CUstream stream)
{
    ALIVE;
    if (!memory_holds(pointer_of(to), bytes)) return CUDA_ERROR_INVALID_VALUE;
    return put(stream, [=] {
        memset(pointer_of(to), byte, bytes);
        return CUDA_SUCCESS;
    });
}

/* ---- streams and events ---------------------------------------------------------------------- */

CALL cuStreamCreate(CUstream *stream, unsigned)
{
    ALIVE;
    streams.insert(*stream = new CUstream_st());
    return CUDA_SUCCESS;
}

CALL cuStreamDestroy_v2(CUstream stream)
{
    ALIVE;
    stream_run(stream);
    streams.erase(stream);
    delete stream;
    return stream_fault;
}

CALL cuStreamSynchronize(CUstream stream)
{
    ALIVE;
    if (stream->captured) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    stream_run(stream);
    return stream_fault;
}

CALL cuStreamWaitEvent(CUstream stream, CUevent event, unsigned)
{
    ALIVE;
    if (event->captured) return capture_join(stream, event);
    if (!event->recorded || event->recorded->passed) return CUDA_SUCCESS;
    item it = {};
    it.behind = event->recorded;
    return stream_put(stream, std::move(it));
}

CALL cuStreamGetCtx(CUstream, CUcontext *out)
{
    ALIVE;
    *out = &context;
    return CUDA_SUCCESS;
}

CALL cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    ALIVE;
    *status = stream->captured ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

CALL cuEventCreate(CUevent *event, unsigned)
{
    ALIVE;
    *event = new CUevent_st();
    return CUDA_SUCCESS;
}

CALL cuEventRecord(CUevent event, CUstream stream)
{
    ALIVE;
    event->recorded = nullptr;
    event->captured = stream->captured;
    event->last = stream->last;
    if (stream->captured) return CUDA_SUCCESS;
    item it = {};
    it.reached = event->recorded = std::make_shared<moment>();
    it.reached->stream = stream;
    return stream_put(stream, std::move(it));
}

/* Whoever asks again and again sees the stream go on. */
CALL cuEventQuery(CUevent event)
{
    ALIVE;
    if (event->captured) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!event->recorded || event->recorded->passed) return CUDA_SUCCESS;
    stream_step(event->recorded->stream);
    if (stream_fault != CUDA_SUCCESS) return stream_fault;
    return CUDA_ERROR_NOT_READY;
}

CALL cuEventSynchronize(CUevent event)
{
    ALIVE;
    if (event->captured) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (event->recorded) stream_run_to(event->recorded);
    return stream_fault;
}

CALL cuEventDestroy_v2(CUevent event)
{
    ALIVE;
    delete event;
    return CUDA_SUCCESS;
}

CALL cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
    ALIVE;
    if (!from->recorded || !to->recorded) return CUDA_ERROR_INVALID_HANDLE;
    if (!from->recorded->passed || !to->recorded->passed) return CUDA_ERROR_NOT_READY;
    *ms = (float)((to->recorded->seconds - from->recorded->seconds) * 1e3);
    return CUDA_SUCCESS;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

CALL cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode)
{
    ALIVE;
    return capture_begin(stream);
}

CALL cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    ALIVE;
    return capture_end(stream, graph);
}

CALL cuGraphGetNodes(CUgraph graph, CUgraphNode *, size_t *count)
{
    ALIVE;
    *count = graph->nodes.size();
    return CUDA_SUCCESS;
}

CALL cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long)
{
    ALIVE;
    *out = new CUgraphExec_st{ std::make_shared<CUgraph_st>(*graph) };
    return CUDA_SUCCESS;
}

CALL cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    ALIVE;
    std::shared_ptr<CUgraph_st> graph = exec->graph;
    return put(stream, [=] { return graph_run(*graph); });
}

CALL cuGraphExecDestroy(CUgraphExec exec)
{
    ALIVE;
    delete exec;
    return CUDA_SUCCESS;
}

CALL cuGraphDestroy(CUgraph graph)
{
    ALIVE;
    delete graph;
    return CUDA_SUCCESS;
}
}
