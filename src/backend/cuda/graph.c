/* SPDX-License-Identifier: Apache-2.0 */
/* graph.c - what a stream does between two moments as a graph, which is launched again and again.
 *
 * A graph has memory of its own for what its kernels leave to themselves (scratch) and for what the
 * host gave them (tables, in pinned memory): the stream's would be other calls' by the time the
 * graph runs again. The workspace of products is the stream's; the order of the stream shares it.
 *
 * INV: nothing that a graph reads or writes goes before the graph does, and the graph not before
 * its latest run is over. */
#include <string.h>

#include "backend/cuda/complain.h"
#include "backend/cuda/cuda.h"
#include "base/alloc.h"
#include "base/error.h"

struct tsi_device_graph {
    CUgraphExec handle;
    CUevent passed; /* behind its latest launch */
    tsi_cuda_capture *capture;
};

/* ---- memory ---------------------------------------------------------------------------------- */

void tsi_cuda_capture_drop(tsi_cuda *cuda, tsi_cuda_capture *capture)
{
    if (!capture) return;
    bool alive = !cuda->fault[0] && tsi_cuda_enter(cuda) == TS_OK;
    for (tsi_cuda_room *room = capture->room, *next; room; room = next) {
        next = room->next;
        if (alive && room->pinned)
            (void)tsi_cu.host_free(room->memory);
        else if (alive)
            (void)tsi_cu.free(tsi_cuda_pointer(room->memory));
        tsi_free(room);
    }
    tsi_free(capture);
}

/* Memory that goes with the graph. */
static ts_status room_make(tsi_stream *stream, size_t bytes, bool pinned, void **out)
{
    CUdeviceptr memory = 0;
    tsi_cuda_room *room = tsi_calloc(1, sizeof *room);
    if (!room) return tsi_fail_memory("memory of a graph", sizeof *room);
    CUresult result = pinned ? tsi_cu.host_alloc(&room->memory, bytes, CU_MEMHOSTALLOC_PORTABLE)
                             : tsi_cu.alloc(&memory, bytes);
    if (result != CUDA_SUCCESS) {
        tsi_free(room);
        return tsi_cuda_fail(stream->cuda, result, "memory of a graph");
    }
    if (!pinned) room->memory = (void *)(uintptr_t)memory;
    room->pinned = pinned;
    room->next = stream->capture->room;
    stream->capture->room = room;
    *out = room->memory;
    return TS_OK;
}

ts_status tsi_cuda_capture_scratch(tsi_stream *stream, size_t bytes, void **out)
{
    tsi_cuda_capture *capture = stream->capture;
    if (bytes > capture->scratch_bytes) { /* kernels captured before keep the smaller one */
        size_t want = tsi_cuda_scratch_size(bytes);
        TSI_TRY(room_make(stream, want, false, &capture->scratch));
        capture->scratch_bytes = want;
    }
    *out = capture->scratch;
    return TS_OK;
}

ts_status tsi_cuda_capture_stage(tsi_stream *stream, void *to, const void *from, size_t bytes)
{
    void *copy = NULL;
    if (bytes == 0) return TS_OK;
    TSI_TRY(room_make(stream, bytes, true, &copy));
    memcpy(copy, from, bytes);
    TSI_CUDA_TRY(stream->cuda, "a copy to the device",
                 tsi_cu.copy_in(tsi_cuda_pointer(to), copy, bytes, tsi_cuda_apart(stream)));
    return TS_OK;
}

/* By the side stream: there when this returns. */
ts_status tsi_cuda_capture_table(tsi_stream *stream, const void *from, size_t bytes, void **out)
{
    const tsi_device *device = &stream->cuda->device;
    TSI_TRY(room_make(stream, bytes, false, out));
    return device->copy_in(device, *out, from, bytes, NULL);
}

/* ---- capture --------------------------------------------------------------------------------- */

/* Relaxed: memory is taken on the way. */
static ts_status capture_begin(const tsi_device *device, tsi_stream *stream)
{
    tsi_cuda *cuda = tsi_cuda_of(device);
    TSI_TRY(tsi_cuda_enter(cuda));
    TSI_TRY(tsi_cuda_record_make(stream));
    tsi_cuda_capture *capture = tsi_calloc(1, sizeof *capture);
    if (!capture) return tsi_fail_memory("a graph", sizeof *capture);
    CUresult result = tsi_cu.capture_begin(stream->handle, CU_STREAM_CAPTURE_MODE_RELAXED);
    if (result != CUDA_SUCCESS) {
        tsi_free(capture);
        return tsi_cuda_fail(cuda, result, "the begin of a capture");
    }
    stream->capture = capture;
    (void)tsi_cuda_apart(stream);
    return TS_OK;
}

static bool is_empty(CUgraph source)
{
    size_t count = 0;
    return tsi_cu.graph_nodes(source, NULL, &count) == CUDA_SUCCESS && count == 0;
}

static CUresult make_handles(tsi_device_graph *graph, CUgraph source)
{
    CUresult result = tsi_cu.event_create(&graph->passed, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS) result = tsi_cu.graph_make(&graph->handle, source, 0);
    if (result != CUDA_SUCCESS && graph->passed) (void)tsi_cu.event_destroy(graph->passed);
    return result;
}

/* Takes what was captured. */
static ts_status graph_make(tsi_cuda *cuda, CUgraph source, tsi_cuda_capture *capture,
                            tsi_device_graph **out)
{
    tsi_device_graph *graph = tsi_calloc(1, sizeof *graph);
    ts_status status = graph ? TS_OK : tsi_fail_memory("a graph", sizeof *graph);
    CUresult result = graph ? make_handles(graph, source) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) status = tsi_cuda_fail(cuda, result, "a graph");
    if (status != TS_OK) {
        tsi_cuda_capture_drop(cuda, capture);
        tsi_free(graph);
        return status;
    }
    graph->capture = capture;
    *out = graph;
    return TS_OK;
}

static ts_status capture_end(const tsi_device *device, tsi_stream *stream, tsi_device_graph **out)
{
    tsi_cuda *cuda = tsi_cuda_of(device);
    tsi_cuda_capture *capture = stream->capture;
    CUgraph source = NULL;
    *out = NULL;
    stream->capture = NULL;
    (void)tsi_cuda_apart(stream);
    ts_status entered = tsi_cuda_enter(cuda);
    if (entered != TS_OK) {
        tsi_cuda_capture_drop(cuda, capture);
        return entered;
    }
    CUresult result = tsi_cu.capture_end(stream->handle, &source);
    if (result != CUDA_SUCCESS || is_empty(source)) {
        if (source) (void)tsi_cu.graph_source_free(source);
        tsi_cuda_capture_drop(cuda, capture);
        return result == CUDA_SUCCESS ? TS_OK : tsi_cuda_fail(cuda, result, "the end of a capture");
    }
    ts_status status = graph_make(cuda, source, capture, out);
    (void)tsi_cu.graph_source_free(source);
    return status;
}

static ts_status graph_launch(const tsi_device *device, tsi_device_graph *graph, tsi_stream *stream)
{
    tsi_cuda *cuda = tsi_cuda_of(device);
    TSI_TRY(tsi_cuda_enter(cuda));
    stream->asking |= graph->capture->asks;
    TSI_CUDA_TRY(cuda, "a graph", tsi_cu.graph_launch(graph->handle, tsi_cuda_apart(stream)));
    TSI_CUDA_TRY(cuda, "a graph", tsi_cu.event_record(graph->passed, stream->handle));
    return TS_OK;
}

/* It waits for this graph alone: a wait for all of the GPU would end what other ranks capture. */
static void graph_destroy(const tsi_device *device, tsi_device_graph *graph)
{
    tsi_cuda *cuda = tsi_cuda_of(device);
    if (!graph) return;
    if (!cuda->fault[0] && tsi_cuda_enter(cuda) == TS_OK) {
        (void)tsi_cu.event_sync(graph->passed);
        (void)tsi_cu.event_destroy(graph->passed);
        (void)tsi_cu.graph_free(graph->handle);
    }
    tsi_cuda_capture_drop(cuda, graph->capture);
    tsi_free(graph);
}

void tsi_cuda_graph_functions(tsi_device *device)
{
    device->capture_begin = capture_begin;
    device->capture_end = capture_end;
    device->graph_launch = graph_launch;
    device->graph_destroy = graph_destroy;
}
