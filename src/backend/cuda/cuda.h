/* SPDX-License-Identifier: Apache-2.0 */
/* cuda.h - a GPU and its streams as the files of this directory see them.
 *
 *   tsi_cuda (one a GPU) --+-- context: the primary one, whose memory other libraries see, too
 *                          +-- kernels, loaded on the first attach
 *                          +-- side: the stream of calls that want to be done on return
 *   tsi_stream ------------+-- one CUstream, and pinned chunks for copies from pageable memory
 *
 * INV: a function of the device table makes the context current on its thread before it calls the
 * driver; nothing here depends on which thread calls. */
#ifndef TSI_BACKEND_CUDA_CUDA_H
#define TSI_BACKEND_CUDA_CUDA_H

#include <pthread.h>

#include "backend/cuda/driver.h"
#include "backend/cuda/kernels/args.h"
#include "device/bytes.h"
#include "layout/region.h"

typedef enum tsi_cuda_kernel {
#define TSI_CUDA_KERNEL(image, name) TSI_CUDA_##name,
#include "backend/cuda/kernels/kernels.def"
#undef TSI_CUDA_KERNEL
    TSI_CUDA_KERNEL_COUNT
} tsi_cuda_kernel;

typedef struct tsi_cuda tsi_cuda;

enum { TSI_CUDA_CALLS = 256 }; /* that are remembered, for their names and places */
typedef struct tsi_cuda_call {
    const char *op, *where;
} tsi_cuda_call;

enum { TSI_CUDA_CHUNKS = 4, TSI_CUDA_CHUNK_BYTES = 1 << 20 };

/* Memory that a graph alone uses: what kernels find there must be there whenever it is launched. */
typedef struct tsi_cuda_room {
    struct tsi_cuda_room *next;
    void *memory;
    bool pinned; /* of the host, else of the device */
} tsi_cuda_room;

/* What a product or kernel reads and writes (beside.c). */
enum { TSI_CUDA_READS = 4, TSI_CUDA_BESIDE = 3 };
typedef struct tsi_cuda_touched {
    tsi_bytes read[TSI_CUDA_READS], written;
} tsi_cuda_touched;

typedef struct tsi_cuda_capture {
    tsi_cuda_room *room;
    void *scratch; /* of one call at a time, as the stream's */
    size_t scratch_bytes;
    bool asks;           /* one of its kernels may complain */
    int32_t beside;      /* that run side by side, */
    uint64_t beside_end; /* and what the stream had sent behind the last of them; 0: none */
    tsi_cuda_touched touched[TSI_CUDA_BESIDE];
} tsi_cuda_capture;

struct tsi_stream {
    tsi_cuda *cuda;
    CUstream handle;
    pthread_mutex_t lock; /* of the chunks */
    char *chunk;          /* pinned; NULL until the first copy */
    CUevent free[TSI_CUDA_CHUNKS];
    int32_t next, reserved;
    void *workspace; /* of products, on the device; NULL until the first */
    void *scratch;   /* of one call at a time (tsi_cuda_scratch) */
    size_t scratch_bytes;
    uint32_t *tickets;                   /* of reductions, on the device: zeros between kernels */
    struct tsi_cuda_update_item *update; /* of lists (update.c) */
    int64_t update_room;
    void *cudnn;                   /* its handle; NULL until the first attention */
    struct tsi_cuda_kept *kept;    /* block lists of masks (attend_tiles.c) */
    tsi_cuda_complaint *complaint; /* on the device (complain.h) */
    uint64_t asked;                /* calls that may complain */
    bool asking;                   /* one was launched since the last wait */
    bool apart;                    /* what it did last is no kernel (tsi_cuda_apart) */
    bool lent;                     /* the handle is a foreign library's, and stays open */
    uint64_t sent;                 /* kernels, products, copies and waits that it got */
    struct tsi_stream *branch[TSI_CUDA_BESIDE - 1]; /* of graphs (beside.c) */
    CUevent fork, join;                             /* where branches begin, where one ends */
    tsi_cuda_call call[TSI_CUDA_CALLS];
    tsi_cuda_capture *capture; /* NULL: work runs as it comes */
};

enum { TSI_CUDA_EVENTS = 128 }; /* that are kept at most */

struct tsi_cuda {
    tsi_device device; /* first: the table's functions get a pointer to it */
    char name[16];
    CUdevice handle;
    int32_t units;  /* multiprocessors */
    int32_t shared; /* bytes of shared memory that a block may ask for */
    bool early;     /* kernels may begin before the one ahead has ended (kernels/kernel.cuh) */
    bool wide;      /* four warps multiply from shared memory (kernels/wgmma.cuh) */
    bool beside;    /* small work of graphs may run side by side (beside.c) */
    pthread_mutex_t lock;
    bool open;
    CUcontext context;
    CUfunction kernel[TSI_CUDA_KERNEL_COUNT];
    struct tsi_stream side; /* not open while its handle is NULL */
    pthread_mutex_t side_lock;
    pthread_mutex_t event_lock;
    CUevent event[TSI_CUDA_EVENTS]; /* that nobody has (stream.c) */
    int32_t event_count, reserved;
    char fault[256]; /* "": none */
    void *cudnn;     /* the handle that plans are made with */
};

static inline tsi_cuda *tsi_cuda_of(const tsi_device *device)
{
    return (tsi_cuda *)(uintptr_t)device;
}

static inline CUdeviceptr tsi_cuda_pointer(const void *memory)
{
    return (CUdeviceptr)(uintptr_t)memory;
}

/* The handle for what is neither a kernel nor a library's call: the next kernel begins behind it.
 */
static inline CUstream tsi_cuda_apart(tsi_stream *stream)
{
    stream->apart = true;
    stream->sent++;
    return stream->handle;
}

/* ---- device.c */
/* The devices of this machine; *count 0 and TS_OK: a driver without GPUs. */
ts_status tsi_cuda_devices(const tsi_device *const **out, int32_t *count);
/* A driver's error as a sentence: "cuda:0: copy: CUDA_ERROR_..: an illegal memory access ..". What
 * ends a context is remembered (fault). */
ts_status tsi_cuda_fail(tsi_cuda *cuda, CUresult result, const char *what);
#define TSI_CUDA_TRY(cuda, what, expression)                                                       \
    do {                                                                                           \
        CUresult tsi_cuda_result_ = (expression);                                                  \
        if (TSI_UNLIKELY(tsi_cuda_result_ != CUDA_SUCCESS))                                        \
            return tsi_cuda_fail(cuda, tsi_cuda_result_, what);                                    \
    } while (0)
/* Makes the context current; opens the device on first use. */
ts_status tsi_cuda_enter(tsi_cuda *cuda);

/* ---- stream.c: the parts of the table that are about streams, events, graphs and the host */
void tsi_cuda_stream_functions(tsi_device *device);
/* NULL becomes the side stream, held until the end, which waits. */
ts_status tsi_cuda_begin(tsi_cuda *cuda, tsi_stream **stream, bool *side);
ts_status tsi_cuda_end(tsi_cuda *cuda, tsi_stream *stream, bool side, ts_status status);
/* Memory in the order of the stream, for tsi_cu.free_async; `what` is said where there is none. */
ts_status tsi_cuda_memory(tsi_stream *stream, const char *what, size_t bytes, CUdeviceptr *out);
/* Memory of the stream for what one call leaves to itself: the next call that asks gets the same,
 * which the order of the stream allows. It grows and is kept. */
ts_status tsi_cuda_scratch(tsi_stream *stream, size_t bytes, void **out);
size_t tsi_cuda_scratch_size(size_t bytes); /* what is taken where so much is asked for */
/* Host memory of any kind to the device, in stream order; `from` may be reused on return. */
ts_status tsi_cuda_stage_in(tsi_stream *stream, void *to, const void *from, size_t bytes);

/* ---- graph.c: the parts about graphs */
void tsi_cuda_graph_functions(tsi_device *device);
void tsi_cuda_capture_drop(tsi_cuda *cuda, tsi_cuda_capture *capture); /* NULL: nothing */
/* While a stream captures: the scratch and the staging of the two functions above. */
ts_status tsi_cuda_capture_scratch(tsi_stream *stream, size_t bytes, void **out);
ts_status tsi_cuda_capture_stage(tsi_stream *stream, void *to, const void *from, size_t bytes);
/* While it captures: memory of the graph that holds these bytes and that nobody writes. */
ts_status tsi_cuda_capture_table(tsi_stream *stream, const void *from, size_t bytes, void **out);

/* ---- launch.c */
/* A launch over `items`, one a thread, in blocks of TSI_CUDA_BLOCK; at most `waves` times what the
 * GPU holds, the kernels stride on. */
ts_status tsi_cuda_launch_items(tsi_stream *stream, tsi_cuda_kernel kernel, int64_t items,
                                void *args);
/* One a thread's `per_thread` items, which are a block apart: a grid over all of them. */
ts_status tsi_cuda_launch_pieces(tsi_stream *stream, tsi_cuda_kernel kernel, int64_t items,
                                 int32_t per_thread, void *args);
ts_status tsi_cuda_launch(tsi_stream *stream, tsi_cuda_kernel kernel, int64_t blocks,
                          int32_t threads, int32_t shared, void *args);
/* A block as rows of its last `inner` dims, which are dense: how many, how long, how far apart.
 * False: it is not. */
bool tsi_cuda_rows_of(const tsi_block *block, int32_t inner, int64_t *rows, int64_t *length,
                      int64_t *stride);
/* Blocks that are no rows go through dense copies in scratch memory: the bytes a block needs there
 * (0: it is rows), and the copy, which takes the block's place and its part of the room. */
size_t tsi_cuda_rows_room(const tsi_block *block, int32_t inner);
ts_status tsi_cuda_rows_make(tsi_stream *stream, tsi_block *block, int32_t inner, char **room);
/* The global indices of a dim; false: more spans than a kernel takes. */
bool tsi_cuda_places_make(tsi_cuda_places *places, const tsi_region *region, int32_t dim);
/* Dims of `count` operands that are one where they can be, without those of extent 1: in place.
 * Returns how many are left, at least one. */
int32_t tsi_cuda_coalesce(int32_t ndim, int64_t *extent, tsi_cuda_operand *const *operand,
                          int32_t count);
tsi_cuda_divisor tsi_cuda_divisor_of(int64_t extent);
void tsi_cuda_space_make(tsi_cuda_space *space, int32_t ndim, const int64_t *extent);
tsi_cuda_operand tsi_cuda_operand_of(const tsi_block *block); /* its data and strides */

/* ---- copy.c, fold.c, random.c: the kernels of the table */
ts_status tsi_cuda_copy(const tsi_device *device, const tsi_block *to, const tsi_block *from,
                        tsi_stream *stream);
ts_status tsi_cuda_copy_list(const tsi_device *device, const tsi_block *to, const tsi_block *from,
                             int64_t count, tsi_stream *stream);
ts_status tsi_cuda_fill(const tsi_device *device, const tsi_block *to, const void *element,
                        tsi_stream *stream);
ts_status tsi_cuda_power(const tsi_device *device, const tsi_block *block, double power, bool root,
                         tsi_stream *stream, bool *done);
ts_status tsi_cuda_fold(const tsi_device *device, const tsi_block *to, const tsi_block *const *from,
                        int64_t count, ts_reduce reduce, int64_t avg_count, tsi_stream *stream);
ts_status tsi_cuda_random(const tsi_device *device, const tsi_random_recipe *recipe,
                          const tsi_block *to, const tsi_random_run *run, int64_t run_count,
                          tsi_stream *stream);

#endif
