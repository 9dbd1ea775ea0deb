/* SPDX-License-Identifier: Apache-2.0 */
/* driver.h - the functions of libcuda that are used, found at run time: the module opens on
 * machines without a driver and says what is missing.
 *
 * INV: tsi_cu is written once, by tsi_cuda_driver_open, before anything else of this directory. */
#ifndef TSI_BACKEND_CUDA_DRIVER_H
#define TSI_BACKEND_CUDA_DRIVER_H

#include <cudaTypedefs.h>

#include "tessera/status.h"

/* X(field, symbol, type) */
#define TSI_CUDA_DRIVER(X)                                                                         \
    X(init, cuInit, PFN_cuInit_v2000)                                                              \
    X(version, cuDriverGetVersion, PFN_cuDriverGetVersion_v2020)                                   \
    X(error_name, cuGetErrorName, PFN_cuGetErrorName_v6000)                                        \
    X(error_string, cuGetErrorString, PFN_cuGetErrorString_v6000)                                  \
    X(device_count, cuDeviceGetCount, PFN_cuDeviceGetCount_v2000)                                  \
    X(device_get, cuDeviceGet, PFN_cuDeviceGet_v2000)                                              \
    X(device_name, cuDeviceGetName, PFN_cuDeviceGetName_v2000)                                     \
    X(device_attribute, cuDeviceGetAttribute, PFN_cuDeviceGetAttribute_v2000)                      \
    X(device_memory, cuDeviceTotalMem_v2, PFN_cuDeviceTotalMem_v3020)                              \
    X(device_can_reach, cuDeviceCanAccessPeer, PFN_cuDeviceCanAccessPeer_v4000)                    \
    X(context_retain, cuDevicePrimaryCtxRetain, PFN_cuDevicePrimaryCtxRetain_v7000)                \
    X(context_set, cuCtxSetCurrent, PFN_cuCtxSetCurrent_v4000)                                     \
    X(context_reach, cuCtxEnablePeerAccess, PFN_cuCtxEnablePeerAccess_v4000)                       \
    X(module_load, cuModuleLoadData, PFN_cuModuleLoadData_v2000)                                   \
    X(module_function, cuModuleGetFunction, PFN_cuModuleGetFunction_v2000)                         \
    X(function_set, cuFuncSetAttribute, PFN_cuFuncSetAttribute_v9000)                              \
    X(launch, cuLaunchKernelEx, PFN_cuLaunchKernelEx_v11060)                                       \
    X(alloc, cuMemAlloc_v2, PFN_cuMemAlloc_v3020)                                                  \
    X(free, cuMemFree_v2, PFN_cuMemFree_v3020)                                                     \
    X(alloc_async, cuMemAllocAsync, PFN_cuMemAllocAsync_v11020)                                    \
    X(free_async, cuMemFreeAsync, PFN_cuMemFreeAsync_v11020)                                       \
    X(host_alloc, cuMemHostAlloc, PFN_cuMemHostAlloc_v2020)                                        \
    X(host_free, cuMemFreeHost, PFN_cuMemFreeHost_v2000)                                           \
    X(pointer_attribute, cuPointerGetAttribute, PFN_cuPointerGetAttribute_v4000)                   \
    X(copy_in, cuMemcpyHtoDAsync_v2, PFN_cuMemcpyHtoDAsync_v3020)                                  \
    X(copy_out, cuMemcpyDtoHAsync_v2, PFN_cuMemcpyDtoHAsync_v3020)                                 \
    X(copy, cuMemcpyDtoDAsync_v2, PFN_cuMemcpyDtoDAsync_v3020)                                     \
    X(set_bytes, cuMemsetD8Async, PFN_cuMemsetD8Async_v3020)                                       \
    X(stream_create, cuStreamCreate, PFN_cuStreamCreate_v2000)                                     \
    X(stream_destroy, cuStreamDestroy_v2, PFN_cuStreamDestroy_v4000)                               \
    X(stream_sync, cuStreamSynchronize, PFN_cuStreamSynchronize_v2000)                             \
    X(stream_wait, cuStreamWaitEvent, PFN_cuStreamWaitEvent_v3020)                                 \
    X(stream_context, cuStreamGetCtx, PFN_cuStreamGetCtx_v9020)                                    \
    X(stream_capturing, cuStreamIsCapturing, PFN_cuStreamIsCapturing_v10000)                       \
    X(event_create, cuEventCreate, PFN_cuEventCreate_v2000)                                        \
    X(event_record, cuEventRecord, PFN_cuEventRecord_v2000)                                        \
    X(event_query, cuEventQuery, PFN_cuEventQuery_v2000)                                           \
    X(event_sync, cuEventSynchronize, PFN_cuEventSynchronize_v2000)                                \
    X(event_destroy, cuEventDestroy_v2, PFN_cuEventDestroy_v4000)                                  \
    X(event_time, cuEventElapsedTime, PFN_cuEventElapsedTime_v2000)                                \
    X(capture_begin, cuStreamBeginCapture_v2, PFN_cuStreamBeginCapture_v10010)                     \
    X(capture_end, cuStreamEndCapture, PFN_cuStreamEndCapture_v10000)                              \
    X(graph_nodes, cuGraphGetNodes, PFN_cuGraphGetNodes_v10000)                                    \
    X(graph_make, cuGraphInstantiateWithFlags, PFN_cuGraphInstantiateWithFlags_v11040)             \
    X(graph_launch, cuGraphLaunch, PFN_cuGraphLaunch_v10000)                                       \
    X(graph_free, cuGraphExecDestroy, PFN_cuGraphExecDestroy_v10000)                               \
    X(graph_source_free, cuGraphDestroy, PFN_cuGraphDestroy_v10000)

typedef struct tsi_cuda_driver {
#define TSI_CUDA_FIELD(field, symbol, type) type field;
    TSI_CUDA_DRIVER(TSI_CUDA_FIELD)
#undef TSI_CUDA_FIELD
} tsi_cuda_driver;
extern tsi_cuda_driver tsi_cu;

/* Opens libcuda and initialises it; TS_ERR_MISSING with what was looked for. */
ts_status tsi_cuda_driver_open(void);
/* One of the toolkit's libraries: the first of `names` (NULL ends) that opens by its soname, then
 * in the directories of TESSERA_CUDA_PATH (a colon list). NULL: not found. */
void *tsi_cuda_library_open(const char *const *names);
/* A function of it as bytes of a pointer to a function. false: it has none of that name. */
int tsi_cuda_symbol(void *library, const char *name, void *function);

#endif
