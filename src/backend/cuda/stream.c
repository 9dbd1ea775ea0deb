/* SPDX-License-Identifier: Apache-2.0 */
/* stream.c - streams, events, and copies between host and device.
 *
 * Memory from host_alloc is copied where it lies. Pageable memory goes through a ring of pinned
 * chunks: the host copies into a chunk while the one before is on its way, and waits only where the
 * ring is full.
 *
 *   pageable --memcpy--> chunk 0 1 2 3 --DMA--> device       (an event says that a chunk is free)
 *
 * A copy out to pageable memory is the driver's, which returns when it is done. */
#include "backend/cuda/cuda.h"

#include <stdatomic.h>
#include <string.h>

#include "backend/cuda/attend.h"
#include "backend/cuda/beside.h"
#include "backend/cuda/complain.h"
#include "backend/cuda/cudnn.h"
#include "base/alloc.h"
#include "base/error.h"

struct tsi_device_event {
    tsi_cuda *cuda; /* whose it is: ranks of other GPUs may be the last to use it */
    CUevent handle;
    _Atomic int32_t users;
    bool kept; /* the handle goes to those that nobody has behind its last user */
};

/* ---- streams --------------------------------------------------------------------------------- */

/* `theirs` NULL: with a handle of its own. */
static ts_status stream_open(tsi_cuda *cuda, const CUstream *theirs, tsi_stream *stream)
{
    if (!theirs)
        TSI_CUDA_TRY(cuda, "a stream",
                     tsi_cu.stream_create(&stream->handle, CU_STREAM_NON_BLOCKING));
    else
        stream->handle = *theirs;
    stream->lent = theirs != NULL;
    stream->cuda = cuda;
    pthread_mutex_init(&stream->lock, NULL);
    return TS_OK;
}

/* Zeros, before the stream has anything to do: what it is captured into finds them, too. */
static ts_status tickets_make(tsi_stream *stream)
{
    CUdeviceptr memory = 0;
    size_t bytes = TSI_CUDA_TICKETS * sizeof(uint32_t);
    TSI_CUDA_TRY(stream->cuda, "a stream", tsi_cu.alloc(&memory, bytes));
    stream->tickets = (uint32_t *)(uintptr_t)memory;
    TSI_CUDA_TRY(stream->cuda, "a stream",
                 tsi_cu.set_bytes(memory, 0, bytes, tsi_cuda_apart(stream)));
    return TS_OK;
}

static void stream_destroy(const tsi_device *device, tsi_stream *stream)
{
    tsi_cuda *cuda = tsi_cuda_of(device);
    if (!stream) return;
    bool alive = !cuda->fault[0] && tsi_cuda_enter(cuda) == TS_OK;
    if (alive) {
        (void)tsi_cu.stream_sync(stream->handle);
        for (int32_t i = 0; i < TSI_CUDA_CHUNKS; i++)
            if (stream->free[i]) (void)tsi_cu.event_destroy(stream->free[i]);
        if (stream->chunk) (void)tsi_cu.host_free(stream->chunk);
        if (stream->workspace) (void)tsi_cu.free(tsi_cuda_pointer(stream->workspace));
        if (stream->scratch) (void)tsi_cu.free(tsi_cuda_pointer(stream->scratch));
        if (stream->complaint) (void)tsi_cu.free(tsi_cuda_pointer(stream->complaint));
        if (stream->tickets) (void)tsi_cu.free(tsi_cuda_pointer(stream->tickets));
        tsi_cudnn_handle_drop(stream->cudnn);
    }
    tsi_cuda_tiles_drop(stream, alive);
    tsi_cuda_beside_drop(stream, alive);
    tsi_cuda_capture_drop(cuda, stream->capture);
    tsi_free(stream->update);
    if (alive && !stream->lent) (void)tsi_cu.stream_destroy(stream->handle);
    pthread_mutex_destroy(&stream->lock);
    tsi_free(stream);
}

static ts_status stream_make(const tsi_device *device, const CUstream *theirs, tsi_stream **out)
{
    tsi_cuda *cuda = tsi_cuda_of(device);
    *out = NULL;
    TSI_TRY(tsi_cuda_enter(cuda));
    tsi_stream *stream = tsi_calloc(1, sizeof *stream);
    if (!stream) return tsi_fail_memory("a stream", sizeof *stream);
    ts_status status = stream_open(cuda, theirs, stream);
    if (status != TS_OK) {
        tsi_free(stream);
        return status;
    }
    status = tickets_make(stream);
    if (status == TS_OK)
        *out = stream;
    else
        stream_destroy(device, stream);
    return status;
}

static ts_status stream_create(const tsi_device *device, tsi_stream **out)
{
    return stream_make(device, NULL, out);
}

static ts_status check_theirs(tsi_cuda *cuda, CUstream theirs)
{
    CUcontext context = NULL;
    CUstreamCaptureStatus captured = CU_STREAM_CAPTURE_STATUS_NONE;
    TSI_TRY(tsi_cuda_enter(cuda));
    TSI_CUDA_TRY(cuda, "a stream of others", tsi_cu.stream_context(theirs, &context));
    if (context != cuda->context)
        return TSI_FAIL(TS_ERR_ARG, "stream: it is not one of %s in its primary context",
                        cuda->name);
    TSI_CUDA_TRY(cuda, "a stream of others", tsi_cu.stream_capturing(theirs, &captured));
    if (captured == CU_STREAM_CAPTURE_STATUS_NONE) return TS_OK;
    return TSI_FAIL(TS_ERR_STATE, "stream: it is being captured");
}

static ts_status stream_adopt(const tsi_device *device, void *handle, tsi_stream **out)
{
    CUstream theirs = handle;
    *out = NULL;
    TSI_TRY(check_theirs(tsi_cuda_of(device), theirs));
    return stream_make(device, &theirs, out);
}

static ts_status refuse_captured(const tsi_stream *stream)
{
    return stream && stream->capture ? TSI_FAIL(TS_ERR_STATE, TSI_CROSSES) : TS_OK;
}

static ts_status stream_sync(const tsi_device *device, tsi_stream *stream)
{
    tsi_cuda *cuda = tsi_cuda_of(device);
    if (!stream) return TS_OK;
    TSI_TRY(refuse_captured(stream));
    TSI_TRY(tsi_cuda_enter(cuda));
    TSI_CUDA_TRY(cuda, "a wait", tsi_cu.stream_sync(stream->handle));
    return tsi_cuda_complaint_tell(stream);
}

static void *stream_handle(const tsi_device *device, tsi_stream *stream)
{
    if (!stream || tsi_cuda_enter(tsi_cuda_of(device)) != TS_OK) return NULL;
    return (void *)tsi_cuda_apart(stream); /* for others' work */
}

ts_status tsi_cuda_begin(tsi_cuda *cuda, tsi_stream **stream, bool *side)
{
    TSI_TRY(tsi_cuda_enter(cuda));
    *side = *stream == NULL;
    if (!*side) return TS_OK;
    pthread_mutex_lock(&cuda->side_lock);
    ts_status status = cuda->side.handle ? TS_OK : stream_open(cuda, NULL, &cuda->side);
    *stream = &cuda->side;
    if (status != TS_OK) pthread_mutex_unlock(&cuda->side_lock);
    return status;
}

/* In steps of a quarter, so that it grows a few times only. */
size_t tsi_cuda_scratch_size(size_t bytes)
{
    enum { LEAST = 1 << 20 };
    size_t want = LEAST;
    while (want < bytes)
        want += want / 4;
    return want;
}

ts_status tsi_cuda_memory(tsi_stream *stream, const char *what, size_t bytes, CUdeviceptr *out)
{
    *out = 0;
    CUresult result = tsi_cu.alloc_async(out, bytes, tsi_cuda_apart(stream));
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return TSI_FAIL(TS_ERR_MEMORY, "no memory for %s (%zu bytes) on %s", what, bytes,
                        stream->cuda->name);
    TSI_CUDA_TRY(stream->cuda, what, result);
    return TS_OK;
}

ts_status tsi_cuda_scratch(tsi_stream *stream, size_t bytes, void **out)
{
    CUdeviceptr memory = 0;
    if (stream->capture) return tsi_cuda_capture_scratch(stream, bytes, out);
    *out = stream->scratch;
    if (bytes <= stream->scratch_bytes) return TS_OK;
    size_t want = tsi_cuda_scratch_size(bytes);
    if (stream->scratch) /* what runs may still use it: the driver frees it in the stream's order */
        TSI_CUDA_TRY(stream->cuda, "scratch memory",
                     tsi_cu.free_async(tsi_cuda_pointer(stream->scratch), tsi_cuda_apart(stream)));
    stream->scratch = NULL;
    stream->scratch_bytes = 0;
    TSI_TRY(tsi_cuda_memory(stream, "scratch memory", want, &memory));
    *out = stream->scratch = (void *)(uintptr_t)memory;
    stream->scratch_bytes = want;
    return TS_OK;
}

ts_status tsi_cuda_end(tsi_cuda *cuda, tsi_stream *stream, bool side, ts_status status)
{
    if (!side) return status;
    CUresult result = tsi_cu.stream_sync(stream->handle);
    pthread_mutex_unlock(&cuda->side_lock);
    return status == TS_OK && result != CUDA_SUCCESS ? tsi_cuda_fail(cuda, result, "a wait")
                                                     : status;
}

/* ---- copies between host and device ---------------------------------------------------------- */

static bool is_pinned(const void *memory)
{
    unsigned type = 0;
    return tsi_cu.pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                    tsi_cuda_pointer(memory)) == CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_HOST;
}

static ts_status chunks_make(tsi_stream *stream)
{
    void *memory = NULL;
    if (stream->chunk) return TS_OK;
    TSI_CUDA_TRY(stream->cuda, "pinned memory",
                 tsi_cu.host_alloc(&memory, (size_t)TSI_CUDA_CHUNKS * TSI_CUDA_CHUNK_BYTES,
                                   CU_MEMHOSTALLOC_PORTABLE));
    stream->chunk = memory;
    for (int32_t i = 0; i < TSI_CUDA_CHUNKS; i++)
        TSI_CUDA_TRY(stream->cuda, "an event",
                     tsi_cu.event_create(&stream->free[i], CU_EVENT_DISABLE_TIMING));
    return TS_OK;
}

static ts_status stage_chunk(tsi_stream *stream, char *to, const char *from, size_t bytes)
{
    int32_t i = stream->next;
    char *chunk = stream->chunk + (size_t)i * TSI_CUDA_CHUNK_BYTES;
    stream->next = (i + 1) % TSI_CUDA_CHUNKS;
    TSI_CUDA_TRY(stream->cuda, "a wait", tsi_cu.event_sync(stream->free[i]));
    memcpy(chunk, from, bytes);
    TSI_CUDA_TRY(stream->cuda, "a copy to the device",
                 tsi_cu.copy_in(tsi_cuda_pointer(to), chunk, bytes, tsi_cuda_apart(stream)));
    TSI_CUDA_TRY(stream->cuda, "an event", tsi_cu.event_record(stream->free[i], stream->handle));
    return TS_OK;
}

ts_status tsi_cuda_stage_in(tsi_stream *stream, void *to, const void *from, size_t bytes)
{
    if (stream->capture) return tsi_cuda_capture_stage(stream, to, from, bytes);
    pthread_mutex_lock(&stream->lock);
    ts_status status = chunks_make(stream);
    for (size_t at = 0; at < bytes && status == TS_OK; at += TSI_CUDA_CHUNK_BYTES) {
        size_t left = bytes - at;
        status = stage_chunk(stream, (char *)to + at, (const char *)from + at,
                             left < TSI_CUDA_CHUNK_BYTES ? left : TSI_CUDA_CHUNK_BYTES);
    }
    pthread_mutex_unlock(&stream->lock);
    return status;
}

static ts_status copy_in(const tsi_device *device, void *to, const void *from, size_t bytes,
                         tsi_stream *stream)
{
    tsi_cuda *cuda = tsi_cuda_of(device);
    bool side;
    if (bytes == 0) return TS_OK;
    TSI_TRY(refuse_captured(stream));
    TSI_TRY(tsi_cuda_begin(cuda, &stream, &side));
    ts_status status = TS_OK;
    if (!is_pinned(from)) {
        status = tsi_cuda_stage_in(stream, to, from, bytes);
    } else {
        CUresult result = tsi_cu.copy_in(tsi_cuda_pointer(to), from, bytes, tsi_cuda_apart(stream));
        if (result != CUDA_SUCCESS) status = tsi_cuda_fail(cuda, result, "a copy to the device");
    }
    return tsi_cuda_end(cuda, stream, side, status);
}

static ts_status copy_out(const tsi_device *device, void *to, const void *from, size_t bytes,
                          tsi_stream *stream)
{
    tsi_cuda *cuda = tsi_cuda_of(device);
    bool side;
    if (bytes == 0) return TS_OK;
    TSI_TRY(refuse_captured(stream));
    TSI_TRY(tsi_cuda_begin(cuda, &stream, &side));
    CUresult result = tsi_cu.copy_out(to, tsi_cuda_pointer(from), bytes, tsi_cuda_apart(stream));
    ts_status status =
        result == CUDA_SUCCESS ? TS_OK : tsi_cuda_fail(cuda, result, "a copy from the device");
    return tsi_cuda_end(cuda, stream, side, status);
}

/* ---- events ---------------------------------------------------------------------------------- */

/* An event says that a stream has passed a point; making one and ending it takes the driver longer
 * than recording it, so those for order alone are kept. A wait or a graph looks at an event when it
 * is called or captured, not later: one that its owners gave back may be recorded again.
 *
 * INV: what is kept has no time and was never recorded in a capture. */
static bool take_kept(tsi_cuda *cuda, CUevent *out)
{
    pthread_mutex_lock(&cuda->event_lock);
    bool any = cuda->event_count > 0;
    if (any) *out = cuda->event[--cuda->event_count];
    pthread_mutex_unlock(&cuda->event_lock);
    return any;
}

static bool keep(tsi_cuda *cuda, CUevent event)
{
    pthread_mutex_lock(&cuda->event_lock);
    bool room = cuda->event_count < TSI_CUDA_EVENTS;
    if (room) cuda->event[cuda->event_count++] = event;
    pthread_mutex_unlock(&cuda->event_lock);
    return room;
}

static ts_status event_make(tsi_cuda *cuda, bool timed, tsi_device_event **out)
{
    tsi_device_event *event = tsi_calloc(1, sizeof *event);
    *out = event;
    if (!event) return tsi_fail_memory("an event", sizeof *event);
    event->cuda = cuda;
    atomic_init(&event->users, 1);
    if (!timed && take_kept(cuda, &event->handle)) return TS_OK;
    CUresult result =
        tsi_cu.event_create(&event->handle, timed ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS) return TS_OK;
    tsi_free(event);
    *out = NULL;
    return tsi_cuda_fail(cuda, result, "an event");
}

static void event_destroy(const tsi_device *device, tsi_device_event *event)
{
    (void)device;
    if (!event || atomic_fetch_sub_explicit(&event->users, 1, memory_order_acq_rel) > 1) return;
    tsi_cuda *cuda = event->cuda;
    if (!(event->kept && keep(cuda, event->handle)) && !cuda->fault[0] &&
        tsi_cuda_enter(cuda) == TS_OK)
        (void)tsi_cu.event_destroy(event->handle);
    tsi_free(event);
}

static ts_status record(tsi_cuda *cuda, tsi_stream *stream, bool timed, tsi_device_event **out)
{
    tsi_device_event *event = NULL;
    *out = NULL;
    if (!stream) return TS_OK; /* nothing is ever pending there */
    TSI_TRY(tsi_cuda_enter(cuda));
    TSI_TRY(event_make(cuda, timed, &event));
    CUresult result = tsi_cu.event_record(event->handle, stream->handle);
    event->kept = result == CUDA_SUCCESS && !timed && !stream->capture;
    if (result == CUDA_SUCCESS) {
        *out = event;
        return TS_OK;
    }
    event_destroy(&cuda->device, event);
    return tsi_cuda_fail(cuda, result, "an event");
}

static ts_status event_record(const tsi_device *device, tsi_stream *stream, tsi_device_event **out)
{
    return record(tsi_cuda_of(device), stream, false, out);
}

static ts_status event_mark(const tsi_device *device, tsi_stream *stream, tsi_device_event **out)
{
    return record(tsi_cuda_of(device), stream, true, out);
}

static tsi_device_event *event_share(const tsi_device *device, tsi_device_event *event)
{
    (void)device;
    atomic_fetch_add_explicit(&event->users, 1, memory_order_relaxed);
    return event;
}

static ts_status event_wait(const tsi_device *device, tsi_stream *stream, tsi_device_event *event)
{
    tsi_cuda *cuda = tsi_cuda_of(device);
    if (!event) return TS_OK;
    TSI_TRY(tsi_cuda_enter(cuda));
    if (!stream) {
        TSI_CUDA_TRY(cuda, "a wait for an event", tsi_cu.event_sync(event->handle));
        return TS_OK;
    }
    TSI_CUDA_TRY(cuda, "a wait for an event",
                 tsi_cu.stream_wait(tsi_cuda_apart(stream), event->handle, 0));
    return TS_OK;
}

static ts_status stream_meet(const tsi_device *device, tsi_stream *stream, void *handle, bool back)
{
    tsi_cuda *cuda = tsi_cuda_of(device);
    tsi_device_event *event = NULL;
    TSI_TRY(refuse_captured(stream));
    TSI_TRY(check_theirs(cuda, handle));
    TSI_TRY(event_make(cuda, false, &event));
    CUresult result = tsi_cu.event_record(event->handle, back ? handle : stream->handle);
    event->kept = result == CUDA_SUCCESS;
    if (event->kept)
        result = tsi_cu.stream_wait(back ? tsi_cuda_apart(stream) : handle, event->handle, 0);
    event_destroy(device, event);
    return result == CUDA_SUCCESS ? TS_OK : tsi_cuda_fail(cuda, result, "a stream of others");
}

static bool event_done(const tsi_device *device, tsi_device_event *event)
{
    tsi_cuda *cuda = tsi_cuda_of(device);
    if (!event || tsi_cuda_enter(cuda) != TS_OK) return true;
    return tsi_cu.event_query(event->handle) != CUDA_ERROR_NOT_READY;
}

static ts_status event_time(const tsi_device *device, tsi_device_event *from, tsi_device_event *to,
                            double *us)
{
    tsi_cuda *cuda = tsi_cuda_of(device);
    float ms = 0;
    *us = 0;
    if (!from || !to) return TS_OK;
    TSI_TRY(tsi_cuda_enter(cuda));
    TSI_CUDA_TRY(cuda, "the time of events", tsi_cu.event_time(&ms, from->handle, to->handle));
    *us = (double)ms * 1e3;
    return TS_OK;
}

void tsi_cuda_stream_functions(tsi_device *device)
{
    device->copy_in = copy_in;
    device->copy_out = copy_out;
    device->stream_create = stream_create;
    device->stream_destroy = stream_destroy;
    device->stream_sync = stream_sync;
    device->stream_handle = stream_handle;
    device->stream_adopt = stream_adopt;
    device->stream_meet = stream_meet;
    device->event_record = event_record;
    device->event_mark = event_mark;
    device->event_share = event_share;
    device->event_wait = event_wait;
    device->event_done = event_done;
    device->event_destroy = event_destroy;
    device->event_time = event_time;
}
