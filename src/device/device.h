/* SPDX-License-Identifier: Apache-2.0 */
/* device.h - what a device can do with memory: a const vtable, one per device.
 *
 * `cpu` runs everything at once on the calling thread, so its streams and events are trivial.
 * `queue` (queue.c) is host memory behind real streams: work runs later, in order, after random
 * delays, as it does on a GPU. `cuda` (a module) fills the same table. Kernels of operators are a
 * separate table [kind of device][op] in op/; here are only those that storage and communication
 * need.
 *
 * A rank owns one device and one queue of it (tsi_rank_device_of): program order is the queue's
 * order, and whoever reads a value on the host waits for the queue first (tsi_rank_device_sync).
 *
 * INV: outside this directory nobody names a device. Memory of a device that is not host_readable
 * is touched through this table and by kernels alone. */
#ifndef TSI_DEVICE_DEVICE_H
#define TSI_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rank.h"
#include "device/recipe.h"
#include "tessera/types.h"

/* NULL: no queue. What is asked of it is done when the call returns. */
typedef struct tsi_stream tsi_stream;
typedef struct tsi_device_event tsi_device_event;
typedef struct tsi_device_graph tsi_device_graph;

/* A strided block of memory on one device: kernels see nothing else. */
typedef struct tsi_block {
    void *data; /* first element */
    int32_t dtype;
    int32_t ndim;
    int64_t extent[TS_NDIM_MAX];
    int64_t stride[TS_NDIM_MAX]; /* in elements; may be 0 (broadcast) or negative on sources */
} tsi_block;

/* What the cost model and `doctor` want to know; 0: not known. */
typedef struct tsi_device_properties {
    char name[64];           /* "NVIDIA H200" */
    int64_t bytes, units;    /* memory; multiprocessors or cores */
    double bytes_per_second; /* of its memory */
    double flops_f32, flops_bf16;
} tsi_device_properties;

/* A function of the host that runs in the order of a stream (tsi_device.defer). */
typedef ts_status (*tsi_deferred_fn)(void *context);

typedef struct tsi_device {
    size_t struct_size;
    const char *name;    /* "cpu", "cuda:0" */
    const char *kind;    /* "cpu", "cuda": devices of one kind run the same kernels */
    int32_t ordinal;     /* among those of its kind */
    int32_t dlpack_type; /* kDLCPU 1, kDLCUDA 2, kDLExtDev 12 */
    bool host_readable;  /* the CPU may dereference its pointers */

    /* ---- buffers: raw, slow; the caching allocator of array/ stands before them. 64-byte aligned
     * at least. alloc returns TS_ERR_MEMORY without recording it: the caller may have caches to
     * give back first. */
    ts_status (*buffer_alloc)(const struct tsi_device *device, size_t bytes, void **out);
    void (*buffer_free)(const struct tsi_device *device, void *buffer, size_t bytes);

    /* ---- copies between this device and the host, contiguous, in stream order. `from` of copy_in
     * may be reused when the call returns, unless host_alloc made it: then when the stream has
     * passed. `to` of copy_out is there after a wait. */
    ts_status (*copy_in)(const struct tsi_device *device, void *to, const void *from, size_t bytes,
                         tsi_stream *stream);
    ts_status (*copy_out)(const struct tsi_device *device, void *to, const void *from, size_t bytes,
                          tsi_stream *stream);

    /* ---- streams and events */
    ts_status (*stream_create)(const struct tsi_device *device, tsi_stream **out);
    void (*stream_destroy)(const struct tsi_device *device, tsi_stream *stream);
    /* Waits until the stream is empty. Work that failed since the last wait is said here: its
     * sentence is recorded on the calling thread and its status returned; what was behind it in
     * the stream had no effect. */
    ts_status (*stream_sync)(const struct tsi_device *device, tsi_stream *stream);
    ts_status (*event_record)(const struct tsi_device *device, tsi_stream *stream,
                              tsi_device_event **out);
    ts_status (*event_wait)(const struct tsi_device *device, tsi_stream *stream,
                            tsi_device_event *event); /* later work of stream waits for event */
    bool (*event_done)(const struct tsi_device *device, tsi_device_event *event);
    void (*event_destroy)(const struct tsi_device *device, tsi_device_event *event);

    /* ---- kernels of storage and communication, in stream order. Shapes were checked by the
     * caller. */
    /* to[i] = cast(from[i]); equal extents, any strides, any two dtypes. */
    ts_status (*copy)(const struct tsi_device *device, const tsi_block *to, const tsi_block *from,
                      tsi_stream *stream);
    ts_status (*fill)(const struct tsi_device *device, const tsi_block *to, const void *element,
                      tsi_stream *stream); /* element has to's dtype */
    /* to[i] = from[0][i] op from[1][i] op ... in that order, one rounding; equal extents and
     * dtypes; `to` may be one of the sources. avg divides by avg_count (0: by count). */
    ts_status (*fold)(const struct tsi_device *device, const tsi_block *to,
                      const tsi_block *const *from, int64_t count, ts_reduce reduce,
                      int64_t avg_count, tsi_stream *stream);

    /* ---- all (optional); the default is in brackets */
    void (*properties)(const struct tsi_device *device,
                       tsi_device_properties *out); /* [nothing known] */
    /* Per rank, on its thread, before its first use and after its last: contexts, handles,
     * workspaces. [nothing to do] */
    ts_status (*attach)(const struct tsi_device *device, ts_rank *rank, void **state);
    void (*detach)(const struct tsi_device *device, void *state);
    /* Host memory that copies to and from the device need not stage. [tsi_alloc] */
    ts_status (*host_alloc)(const struct tsi_device *device, size_t bytes, void **out);
    void (*host_free)(const struct tsi_device *device, void *memory, size_t bytes);
    /* Whether `copy` and `fold` of this device read another's memory. [they read any's] */
    bool (*reach)(const struct tsi_device *device, const struct tsi_device *other);
    /* Microseconds between two events of event_mark that have passed. [not measured] */
    ts_status (*event_time)(const struct tsi_device *device, tsi_device_event *from,
                            tsi_device_event *to, double *us);
    /* The work of a stream between begin and end is kept instead of run; launch runs it again.
     * [cannot be captured] */
    ts_status (*capture_begin)(const struct tsi_device *device, tsi_stream *stream);
    ts_status (*capture_end)(const struct tsi_device *device, tsi_stream *stream,
                             tsi_device_graph **out);
    ts_status (*graph_launch)(const struct tsi_device *device, tsi_device_graph *graph,
                              tsi_stream *stream);
    void (*graph_destroy)(const struct tsi_device *device, tsi_device_graph *graph);
    /* Why the device can do nothing any more, as a sentence; NULL: it can. [never] */
    const char *(*fault)(const struct tsi_device *device);
    /* Runs a function of the host in stream order: kernels of the cpu on memory of this device.
     * `destroy` is called behind it, also if it did not run. [kernels are the device's own] */
    ts_status (*defer)(const struct tsi_device *device, tsi_stream *stream, tsi_deferred_fn fn,
                       void *context, void (*destroy)(void *context));
    /* A block went back to a pool's cache: what it holds means nothing from here on in the order
     * of the stream. [nothing is written] */
    void (*freed)(const struct tsi_device *device, void *memory, size_t bytes, tsi_stream *stream);
    /* Fills the runs of a dense block with random elements, the same bits as the host's. The runs
     * were checked. [the host fills an image] */
    ts_status (*random)(const struct tsi_device *device, const tsi_random_recipe *recipe,
                        const tsi_block *to, const tsi_random_run *run, int64_t run_count,
                        tsi_stream *stream);
    /* One more of the next calls of `defer` on the stream needs no memory of its own. [none ever
     * does] */
    ts_status (*reserve)(const struct tsi_device *device, tsi_stream *stream);
    /* Which libraries it uses and what is lost without those it lacks, for `doctor`. [none] */
    void (*libraries)(const struct tsi_device *device, char *text, size_t size);
    /* What foreign libraries call the stream (a CUstream); the device is current on the calling
     * thread from here on. [such libraries cannot be used] */
    void *(*stream_handle)(const struct tsi_device *device, tsi_stream *stream);
    /* Where functions that run by `defer` find what is at an address of the device; memory of the
     * host is where it is. [the address itself] */
    void *(*near)(const struct tsi_device *device, const void *address);
    /* |x|^power of every element of a block, or the root behind a sum of them, in place, in f64 and
     * with the host's bits. *done false: not of this dtype or power. [the host does it] */
    ts_status (*power)(const struct tsi_device *device, const tsi_block *block, double power,
                       bool root, tsi_stream *stream, bool *done);
    /* copy for each of `count` pairs, in any order and at once where it can: no target overlaps
     * another one, nor the source of another. The lists may be reused on return. [one by one] */
    ts_status (*copy_list)(const struct tsi_device *device, const tsi_block *to,
                           const tsi_block *from, int64_t count, tsi_stream *stream);
    /* The same moment for one more who waits for it and destroys it; NULL: no memory. [recorded
     * again] */
    tsi_device_event *(*event_share)(const struct tsi_device *device, tsi_device_event *event);
    /* event_record for event_time: others may have no time. [not measured] */
    ts_status (*event_mark)(const struct tsi_device *device, tsi_stream *stream,
                            tsi_device_event **out);
    /* ---- streams of foreign libraries, by the handle that stream_handle has of ours. [cannot be
     * used] */
    /* What is asked of `out` goes to theirs; destroying it waits for that and leaves theirs. */
    ts_status (*stream_adopt)(const struct tsi_device *device, void *handle, tsi_stream **out);
    /* Later work of theirs waits for what the stream has now; `back`: its work for theirs. */
    ts_status (*stream_meet)(const struct tsi_device *device, tsi_stream *stream, void *handle,
                             bool back);
    /* What its kernels choose algorithms by, as text, while the process lives; "": nothing. All
     * processes of a world take the first rank's (choices_take), or bits would differ. [nothing] */
    const char *(*choices)(const struct tsi_device *device);
    ts_status (*choices_take)(const struct tsi_device *device, const char *text); /* copied */
} tsi_device;

/* What the host reads or writes in a step that is recorded would be that step's for ever. */
#define TSI_CROSSES                                                                                \
    "step: values cross between the host and a step that is recorded; inputs are tensors made "    \
    "before it, results are read after it"

/* The structs that a device in a module shares with the core. */
#define TSI_DEVICE_SEAM(ROW)                                                                       \
    ROW(tsi_device)                                                                                \
    ROW(tsi_device_properties)                                                                     \
    ROW(tsi_block)

/* Memory of the host as a device: of staging, of references, of what comes from outside. */
const tsi_device *tsi_device_host(void);
/* The host while a step of a rank is recorded: work runs at once and is kept (base/keep.h). */
const tsi_device *tsi_device_keeping(void);
/* Of worlds without data: buffers have sizes and addresses, and nothing reads or writes them. */
const tsi_device *tsi_device_none(void);
/* By name ("cpu", "queue", "cuda:1"; a kind means its first one); NULL after recording why not
 * (names what was found). */
const tsi_device *tsi_device_find(const char *name);
/* Makes more devices known to tsi_device_find: those of a module. Before the first world opens. */
ts_status tsi_device_add(const tsi_device *device);

/* ---- the device of a rank (rank.c) ----------------------------------------------------------- */
typedef struct tsi_rank_device {
    const tsi_device *device;
    tsi_stream *queue; /* where its kernels and copies go, in program order; cpu: NULL */
    void *attached;    /* the device's own (attach) */
    uint64_t waited;   /* the rank's latest event when it last waited for the queue */
    int64_t waits;     /* of the host for the queue, so far */
    bool waits_each;   /* TESSERA_DEVICE_SYNC: after every kernel */
} tsi_rank_device;
/* What ranks of the world will own; before the first of them is used. Default: the cpu. */
void tsi_world_device_set(ts_world *world, const tsi_device *device);
const tsi_device *tsi_world_device(ts_world *world);
bool tsi_world_describes(ts_world *world); /* its device is `none` */
/* Do all ranks of this process compute in the same memory: that of the host, or of one device? */
bool tsi_world_has_one_memory(ts_world *world);
/* Do copies and folds of a device read the other's memory; and those of every rank of this process
 * that of every other? */
bool tsi_device_reaches(const tsi_device *device, const tsi_device *other);
bool tsi_world_reaches(ts_world *world);
/* The rank's, made on first use on its thread. NULL: recorded. */
const tsi_rank_device *tsi_rank_device_of(ts_rank *rank);
/* The host waits for the rank's queue: after it, host memory that copy_out named is filled, and
 * what failed on the way is recorded. A device that is lost is told with the operators that were
 * called since the last wait. */
ts_status tsi_rank_device_sync(ts_rank *rank);
/* The same after a kernel, where the rank waits for each (TESSERA_DEVICE_SYNC). */
ts_status tsi_rank_device_pace(ts_rank *rank);
/* Later work of a foreign library's stream waits for what the rank's queue has now; `back`: the
 * queue's for theirs. NULL is their default stream. */
ts_status tsi_rank_device_meet(ts_rank *rank, void *stream, bool back);

/* Is the reduction meaningful for the dtype? false: *why is a phrase ("min of complex numbers"). */
bool tsi_reduce_allowed(ts_reduce reduce, ts_dtype dtype, const char **why);
/* Writes the identity element of the reduction (0, 1, +inf, ...; avg: 0) for the dtype, 16 bytes at
 * most. */
ts_status tsi_reduce_identity(ts_reduce reduce, ts_dtype dtype, void *element);

/* An address of the device, for a function that is deferred on it. */
static inline void *tsi_device_near(const tsi_device *device, const void *address)
{
    return device->near ? device->near(device, address) : (void *)(uintptr_t)address;
}

/* ---- helpers on blocks, no memory touched */
int64_t tsi_block_count(const tsi_block *block);
bool tsi_block_is_dense(const tsi_block *block); /* contiguous, row-major */
/* The elements of `like` side by side from `data` on, row-major. */
tsi_block tsi_block_dense_like(const tsi_block *like, void *data);
/* From a public array, validated: dtype, ndim, extents, data not NULL unless empty. */
ts_status tsi_block_of_array(const ts_array *array, const char *what, tsi_block *out);
/* Merges dims that are contiguous in both blocks (same extents); drops size-1 dims. */
void tsi_block_coalesce_pair(tsi_block *a, tsi_block *b);

#endif
