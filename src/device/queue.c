/* SPDX-License-Identifier: Apache-2.0 */
/* queue.c - a device without a GPU that behaves like one: streams are threads that run the cpu's
 * kernels later, in order, after random delays; freed memory is noise.
 *
 *   rank:    defer(a)  defer(b)  sync ........ wait until the thread has passed b
 *   stream:        ...   a   .....   b
 *
 * It exists for tests: a program that forgets to wait reads noise here, where the cpu would forgive
 * and a GPU might hide it; one that reads without copying faults, for its addresses are none of the
 * host's. TESSERA_QUEUE_SEED chooses the delays; 0 has none.
 *
 * INV: a task runs after all tasks of its stream before it, and none of them runs twice. Once one
 * failed, those behind it are dropped until a wait has told of it, but for waits for other streams,
 * for memory is given back in this order, and those streams may still write to it, and for marks.
 * What is asked with no stream is done at once on the calling thread. */
#include "device/queue.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/thread.h"
#include "device/block_task.h"
#include "device/cpu.h"
#include "device/parallel.h"

enum { DELAY_NS_MAX = 60000, DELAY_ONE_IN = 8, SPIN_NS = 20000, STACK_BYTES = 8 << 20 };

typedef struct task {
    struct task *next;
    tsi_deferred_fn fn;
    void *context;
    void (*destroy)(void *context);
} task;

struct tsi_stream {
    const tsi_device *device; /* first: who has a handle alone finds `defer` by it */
    struct tsi_stream *next;  /* of all */
    int32_t held;             /* by who waits for it; guarded by the lock of all */
    pthread_t thread;
    pthread_mutex_t lock; /* of the list of tasks and of what failed */
    task *first, **last;
    task *spare;               /* of the thread that posts: for the next tasks, by next */
    tsi_device_graph *capture; /* likewise: what it posts goes there; NULL: to the thread */
    tsi_word posted, passed;   /* tasks; they wrap, so differences are what counts */
    _Atomic bool leaving;
    bool failed;
    tsi_error_record error;
    uint64_t random; /* of the thread alone; 0: no delays */
    int32_t lent;    /* to who adopted it and will destroy it once more */
};

struct tsi_device_graph { /* tasks that run whenever it is launched */
    task *first, **last;
};

typedef struct mark { /* of the events of one moment and of the task that sets it */
    _Atomic int32_t users;
    _Atomic int64_t ns; /* of the host's clock when the stream passed it */
} mark;

struct tsi_device_event {
    tsi_stream *stream;
    uint32_t number; /* it has happened when the stream has passed so many tasks */
    mark *mark;      /* NULL: it has no time */
};

/* All streams, so that memory is given back only when no work may still use it. */
static struct {
    pthread_mutex_t lock;
    tsi_stream *first;
    pthread_key_t of_thread; /* the stream whose thread this is */
    pthread_once_t once;
} streams = { .lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT };

static void streams_begin(void)
{
    (void)pthread_key_create(&streams.of_thread, NULL);
}

/* ---- the thread of a stream ------------------------------------------------------------------ */

static uint64_t next_random(uint64_t *state)
{
    *state = tsi_hash_mix(*state, 0x7175657565);
    return *state;
}

static void pause_now_and_then(tsi_stream *stream)
{
    if (stream->random == 0 || next_random(&stream->random) % DELAY_ONE_IN != 0) return;
    long ns = (long)(next_random(&stream->random) % DELAY_NS_MAX);
    (void)nanosleep(&(struct timespec){ .tv_nsec = ns }, NULL);
}

static ts_status run_wait(void *context);
static ts_status run_mark(void *context);

static task *take_task(tsi_stream *stream, bool *dropped)
{
    pthread_mutex_lock(&stream->lock);
    task *taken = stream->first;
    TSI_ASSERT(taken); /* it was linked before it was counted in `posted` */
    stream->first = taken->next;
    if (!stream->first) stream->last = &stream->first;
    *dropped = stream->failed && taken->fn != run_wait && taken->fn != run_mark;
    pthread_mutex_unlock(&stream->lock);
    return taken;
}

/* The sentence is the thread's last error: a stream has no rank that would keep it. */
static void keep_failure(tsi_stream *stream, ts_status status)
{
    pthread_mutex_lock(&stream->lock);
    tsi_error_last(&stream->error);
    if (stream->error.error.status != status) {
        ts_error error = { .status = status, .blast = TS_BLAST_LOCAL, .rank = -1, .event = -1 };
        tsi_error_set(&stream->error, &error, "queue: %s", ts_status_meaning(status));
    }
    stream->failed = true;
    pthread_mutex_unlock(&stream->lock);
}

static void *stream_run(void *argument)
{
    tsi_stream *stream = argument;
    uint32_t passed = 0;
    (void)pthread_setspecific(streams.of_thread, stream);
    for (;;) {
        if (atomic_load_explicit(&stream->posted, memory_order_acquire) == passed) {
            if (atomic_load_explicit(&stream->leaving, memory_order_acquire)) return NULL;
            (void)tsi_wait_word(&stream->posted, passed, SPIN_NS, INT64_MAX);
            continue;
        }
        bool dropped;
        task *now = take_task(stream, &dropped);
        pause_now_and_then(stream);
        ts_status status = dropped ? TS_OK : now->fn(now->context);
        if (status != TS_OK) keep_failure(stream, status);
        if (now->destroy) now->destroy(now->context);
        tsi_free(now);
        atomic_store_explicit(&stream->passed, ++passed, memory_order_release);
        tsi_wake_all(&stream->passed);
    }
}

static void wait_for(tsi_stream *stream, uint32_t number)
{
    for (;;) {
        uint32_t passed = atomic_load_explicit(&stream->passed, memory_order_acquire);
        if ((int32_t)(passed - number) >= 0) return;
        (void)tsi_wait_word(&stream->passed, passed, SPIN_NS, INT64_MAX);
    }
}

static void wait_for_all(tsi_stream *stream)
{
    TSI_ASSERT(pthread_getspecific(streams.of_thread) != stream); /* it would wait for itself */
    wait_for(stream, atomic_load_explicit(&stream->posted, memory_order_acquire));
}

/* ---- streams and events ---------------------------------------------------------------------- */

static uint64_t seed_of_delays(void)
{
    static _Atomic uint64_t ordinal;
    const char *text = getenv("TESSERA_QUEUE_SEED");
    uint64_t seed = text && *text ? strtoull(text, NULL, 10) : 1;
    return seed == 0 ? 0 : tsi_hash_mix(seed, atomic_fetch_add(&ordinal, 1)) | 1;
}

static ts_status stream_create(const tsi_device *device, tsi_stream **out)
{
    *out = NULL;
    (void)pthread_once(&streams.once, streams_begin);
    tsi_stream *stream = tsi_calloc(1, sizeof *stream);
    if (!stream) return tsi_fail_memory("a stream", sizeof *stream);
    pthread_mutex_init(&stream->lock, NULL);
    stream->device = device;
    stream->last = &stream->first;
    stream->random = seed_of_delays();
    if (tsi_thread_start(&stream->thread, stream_run, stream, STACK_BYTES) != TS_OK) {
        pthread_mutex_destroy(&stream->lock);
        tsi_free(stream);
        return TSI_FAIL(TS_ERR_MEMORY, "queue: no thread for a stream could be started");
    }
    pthread_mutex_lock(&streams.lock);
    stream->next = streams.first;
    streams.first = stream;
    pthread_mutex_unlock(&streams.lock);
    *out = stream;
    return TS_OK;
}

static task *take_spare(tsi_stream *stream)
{
    task *taken = stream->spare;
    stream->spare = taken->next;
    return taken;
}

static void stream_destroy(const tsi_device *device, tsi_stream *stream)
{
    (void)device;
    if (!stream) return;
    wait_for_all(stream);
    if (stream->lent-- > 0) return;
    atomic_store_explicit(&stream->leaving, true, memory_order_release);
    atomic_fetch_add_explicit(&stream->posted, 0, memory_order_release);
    while (pthread_tryjoin_np(stream->thread, NULL) != 0) {
        tsi_wake_all(&stream->posted);
        (void)nanosleep(&(struct timespec){ .tv_nsec = 20000 }, NULL);
    }
    pthread_mutex_lock(&streams.lock);
    while (stream->held > 0) { /* they find it passed */
        pthread_mutex_unlock(&streams.lock);
        (void)nanosleep(&(struct timespec){ .tv_nsec = 20000 }, NULL);
        pthread_mutex_lock(&streams.lock);
    }
    tsi_stream **at = &streams.first;
    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    pthread_mutex_unlock(&streams.lock);
    pthread_mutex_destroy(&stream->lock);
    while (stream->spare)
        tsi_free(take_spare(stream));
    tsi_free(stream);
}

static ts_status refuse_captured(const tsi_stream *stream)
{
    return stream && stream->capture ? TSI_FAIL(TS_ERR_STATE, TSI_CROSSES) : TS_OK;
}

static ts_status stream_sync(const tsi_device *device, tsi_stream *stream)
{
    (void)device;
    if (!stream) return TS_OK;
    TSI_TRY(refuse_captured(stream));
    wait_for_all(stream);
    pthread_mutex_lock(&stream->lock);
    bool failed = stream->failed;
    stream->failed = false;
    pthread_mutex_unlock(&stream->lock);
    return failed ? tsi_fail_record(&stream->error) : TS_OK;
}

static ts_status defer(const tsi_device *device, tsi_stream *stream, tsi_deferred_fn fn,
                       void *context, void (*destroy)(void *context))
{
    (void)device;
    if (!stream) {
        ts_status status = fn(context);
        if (destroy) destroy(context);
        return status;
    }
    task *added = stream->spare ? take_spare(stream) : tsi_alloc(sizeof *added);
    if (!added) {
        if (destroy) destroy(context);
        return tsi_fail_memory("work of a stream", sizeof *added);
    }
    *added = (task){ NULL, fn, context, destroy };
    if (stream->capture) {
        *stream->capture->last = added;
        stream->capture->last = &added->next;
        return TS_OK;
    }
    pthread_mutex_lock(&stream->lock);
    *stream->last = added;
    stream->last = &added->next;
    pthread_mutex_unlock(&stream->lock);
    atomic_fetch_add_explicit(&stream->posted, 1, memory_order_release);
    tsi_wake_one(&stream->posted);
    return TS_OK;
}

static ts_status reserve(const tsi_device *device, tsi_stream *stream)
{
    (void)device;
    if (!stream) return TS_OK;
    task *spare = tsi_alloc(sizeof *spare);
    if (!spare) return tsi_fail_memory("work of a stream", sizeof *spare);
    *spare = (task){ .next = stream->spare };
    stream->spare = spare;
    return TS_OK;
}

static ts_status event_record(const tsi_device *device, tsi_stream *stream, tsi_device_event **out)
{
    (void)device;
    *out = NULL;
    if (!stream) return TS_OK; /* nothing is ever pending there */
    tsi_device_event *event = tsi_alloc(sizeof *event);
    if (!event) return tsi_fail_memory("an event", sizeof *event);
    uint32_t number = atomic_load_explicit(&stream->posted, memory_order_acquire);
    *event = (tsi_device_event){ stream, number, NULL };
    *out = event;
    return TS_OK;
}

static void mark_release(void *context)
{
    mark *m = context;
    if (m && atomic_fetch_sub_explicit(&m->users, 1, memory_order_acq_rel) == 1) tsi_free(m);
}

static ts_status run_mark(void *context)
{
    mark *m = context;
    atomic_store_explicit(&m->ns, tsi_clock_ns(), memory_order_relaxed);
    return TS_OK;
}

static ts_status event_mark(const tsi_device *device, tsi_stream *stream, tsi_device_event **out)
{
    *out = NULL;
    if (!stream) return TS_OK;
    TSI_TRY(refuse_captured(stream));
    mark *m = tsi_calloc(1, sizeof *m);
    if (!m) return tsi_fail_memory("an event", sizeof *m);
    atomic_init(&m->users, 2);
    ts_status status = defer(device, stream, run_mark, m, mark_release);
    if (status == TS_OK) status = event_record(device, stream, out);
    if (status == TS_OK)
        (*out)->mark = m;
    else
        mark_release(m);
    return status;
}

static ts_status event_time(const tsi_device *device, tsi_device_event *from, tsi_device_event *to,
                            double *us)
{
    (void)device;
    *us = 0;
    if (!from || !to) return TS_OK;
    if (!from->mark || !to->mark) return TSI_FAIL(TS_ERR_ARG, "event: it has no time");
    int64_t begin = atomic_load_explicit(&from->mark->ns, memory_order_relaxed);
    *us = (double)(atomic_load_explicit(&to->mark->ns, memory_order_relaxed) - begin) * 1e-3;
    return TS_OK;
}

static tsi_device_event *event_share(const tsi_device *device, tsi_device_event *event)
{
    (void)device;
    tsi_device_event *same = tsi_alloc(sizeof *same);
    if (!same) return NULL;
    *same = *event;
    if (same->mark) atomic_fetch_add_explicit(&same->mark->users, 1, memory_order_relaxed);
    return same;
}

static ts_status run_wait(void *context)
{
    const tsi_device_event *event = context;
    wait_for(event->stream, event->number);
    return TS_OK;
}

static ts_status event_wait(const tsi_device *device, tsi_stream *stream, tsi_device_event *event)
{
    if (!event || event->stream == stream) return TS_OK;
    tsi_device_event *kept = tsi_alloc(sizeof *kept);
    if (!kept) return tsi_fail_memory("an event", sizeof *kept);
    *kept = (tsi_device_event){ event->stream, event->number, NULL };
    return defer(device, stream, run_wait, kept, tsi_free);
}

static bool event_done(const tsi_device *device, tsi_device_event *event)
{
    (void)device;
    if (!event) return true;
    uint32_t passed = atomic_load_explicit(&event->stream->passed, memory_order_acquire);
    return (int32_t)(passed - event->number) >= 0;
}

static void event_destroy(const tsi_device *device, tsi_device_event *event)
{
    (void)device;
    if (event) mark_release(event->mark);
    tsi_free(event);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* No address of a process on any machine has this bit, nor does a pointer's tag reach it. */
#define FAR_BIT ((uintptr_t)1 << 55)

static void *far_of(const void *memory)
{
    return memory ? (void *)((uintptr_t)memory | FAR_BIT) : NULL;
}

static void *near_of(const void *address)
{
    return (void *)((uintptr_t)address & ~FAR_BIT);
}

static void *near_on(const tsi_device *device, const void *address)
{
    (void)device;
    return near_of(address);
}

static tsi_block near_block(const tsi_block *block)
{
    tsi_block near = *block;
    near.data = near_of(block->data);
    return near;
}

/* Signalling bits in every float format, far out of range as an index. */
static void write_noise(void *memory, size_t bytes)
{
    memset(memory, 0xFB, bytes);
}

static ts_status buffer_alloc(const tsi_device *device, size_t bytes, void **out)
{
    (void)device;
    (void)pthread_once(&streams.once, streams_begin);
    const tsi_device *cpu = tsi_device_cpu();
    ts_status status = cpu->buffer_alloc(cpu, bytes, out);
    if (status == TS_OK) write_noise(*out, bytes);
    if (status == TS_OK) *out = far_of(*out);
    return status;
}

/* A kernel gives its scratch back on a stream's own thread, which must not wait for itself, nor for
 * the lock: who holds it may be waiting for this stream. */
static void wait_for_streams(void)
{
    if (pthread_getspecific(streams.of_thread)) return;
    pthread_mutex_lock(&streams.lock);
    for (tsi_stream *s = streams.first; s; s = s->next) { /* what comes now stands before it */
        s->held++;
        pthread_mutex_unlock(&streams.lock); /* it may wait for who makes a stream now */
        wait_for_all(s);
        pthread_mutex_lock(&streams.lock);
        s->held--;
    }
    pthread_mutex_unlock(&streams.lock);
}

static void buffer_free(const tsi_device *device, void *buffer, size_t bytes)
{
    (void)device;
    if (!buffer) return;
    wait_for_streams();
    write_noise(near_of(buffer), bytes);
    const tsi_device *cpu = tsi_device_cpu();
    cpu->buffer_free(cpu, near_of(buffer), bytes);
}

typedef struct bytes_task {
    void *to;
    const void *from; /* NULL: noise */
    size_t bytes;
    unsigned char copy[]; /* what copy_in took over */
} bytes_task;

static ts_status run_bytes(void *context)
{
    const bytes_task *b = context;
    if (!b->from)
        write_noise(b->to, b->bytes);
    else if (b->bytes > 0)
        memcpy(b->to, b->from, b->bytes);
    return TS_OK;
}

static ts_status defer_bytes(const tsi_device *device, void *to, const void *from, size_t bytes,
                             bool takes, tsi_stream *stream)
{
    bytes_task *b = tsi_alloc(sizeof *b + (takes ? bytes : 0));
    if (!b) return tsi_fail_memory("a copy in a stream", sizeof *b + bytes);
    *b = (bytes_task){ near_of(to), takes ? b->copy : near_of(from), bytes };
    if (takes && bytes > 0) memcpy(b->copy, from, bytes);
    return defer(device, stream, run_bytes, b, tsi_free);
}

static ts_status copy_in(const tsi_device *device, void *to, const void *from, size_t bytes,
                         tsi_stream *stream)
{
    TSI_TRY(refuse_captured(stream));
    return defer_bytes(device, to, from, bytes, true, stream);
}

static ts_status copy_out(const tsi_device *device, void *to, const void *from, size_t bytes,
                          tsi_stream *stream)
{
    TSI_TRY(refuse_captured(stream));
    return defer_bytes(device, to, from, bytes, false, stream);
}

/* Memory that cannot be poisoned stays as it is: nothing depends on the noise. */
static void freed(const tsi_device *device, void *memory, size_t bytes, tsi_stream *stream)
{
    bool now = stream && !stream->capture; /* what a graph frees may be another's when it runs */
    if (now) (void)defer_bytes(device, memory, NULL, bytes, false, stream);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static void graph_free(tsi_device_graph *graph)
{
    for (task *t = graph->first, *next; t; t = next) {
        next = t->next;
        if (t->destroy) t->destroy(t->context);
        tsi_free(t);
    }
    tsi_free(graph);
}

static void graph_destroy(const tsi_device *device, tsi_device_graph *graph)
{
    (void)device;
    if (!graph) return;
    wait_for_streams();
    graph_free(graph);
}

static ts_status capture_begin(const tsi_device *device, tsi_stream *stream)
{
    (void)device;
    tsi_device_graph *graph = tsi_calloc(1, sizeof *graph);
    if (!graph) return tsi_fail_memory("a graph", sizeof *graph);
    graph->last = &graph->first;
    stream->capture = graph;
    return TS_OK;
}

static ts_status capture_end(const tsi_device *device, tsi_stream *stream, tsi_device_graph **out)
{
    (void)device;
    tsi_device_graph *graph = stream->capture; /* NULL: it could not begin again */
    stream->capture = NULL;
    *out = graph && graph->first ? graph : NULL;
    if (graph && !*out) graph_free(graph);
    return TS_OK;
}

static ts_status run_graph(void *context)
{
    const tsi_device_graph *graph = context;
    for (const task *t = graph->first; t; t = t->next)
        TSI_TRY(t->fn(t->context));
    return TS_OK;
}

static ts_status graph_launch(const tsi_device *device, tsi_device_graph *graph, tsi_stream *stream)
{
    return defer(device, stream, run_graph, graph, NULL);
}

/* ---- kernels of storage and communication ---------------------------------------------------- */

/* Now where there is no stream, else later in it. */
static ts_status do_blocks(const tsi_device *device, tsi_block_task *work, tsi_stream *stream)
{
    return work ? defer(device, stream, tsi_block_task_run, work, tsi_free) : TS_ERR_MEMORY;
}

static ts_status copy(const tsi_device *device, const tsi_block *to, const tsi_block *from,
                      tsi_stream *stream)
{
    tsi_block near_to = near_block(to), near_from = near_block(from);
    if (!stream) return tsi_cpu_copy(tsi_device_cpu(), &near_to, &near_from, NULL);
    return do_blocks(device, tsi_block_task_copy(&near_to, &near_from), stream);
}

/* The last one first: who needs an order finds out here. */
static ts_status copy_list(const tsi_device *device, const tsi_block *to, const tsi_block *from,
                           int64_t count, tsi_stream *stream)
{
    for (int64_t i = count - 1; i >= 0; i--)
        TSI_TRY(copy(device, &to[i], &from[i], stream));
    return TS_OK;
}

static ts_status fill(const tsi_device *device, const tsi_block *to, const void *element,
                      tsi_stream *stream)
{
    tsi_block near_to = near_block(to);
    if (!stream) return tsi_cpu_fill(tsi_device_cpu(), &near_to, element, NULL);
    return do_blocks(device, tsi_block_task_fill(&near_to, element), stream);
}

static ts_status fold(const tsi_device *device, const tsi_block *to, const tsi_block *const *from,
                      int64_t count, ts_reduce reduce, int64_t avg_count, tsi_stream *stream)
{
    tsi_block near_to = near_block(to);
    tsi_block_task *work = tsi_block_task_fold(&near_to, from, count, reduce, avg_count);
    if (work) tsi_block_task_sources(work, near_of);
    return do_blocks(device, work, stream);
}

/* ---- the table ------------------------------------------------------------------------------- */

/* The threads of the rank's loops are made here, on its own thread: kernels in the stream only find
 * them. */
static ts_status attach(const tsi_device *device, ts_rank *rank, void **state)
{
    (void)device;
    *state = NULL;
    (void)tsi_parallel_threads(rank);
    return tsi_slot_get(rank, TSI_SLOT_THREADS) ? TS_OK : TS_ERR_MEMORY; /* recorded */
}

static void properties(const tsi_device *device, tsi_device_properties *out)
{
    (void)device;
    *out =
        (tsi_device_properties){ .name = "host memory behind queues", .units = tsi_core_count() };
}

static void *stream_handle(const tsi_device *device, tsi_stream *stream)
{
    (void)device;
    return stream;
}

static ts_status stream_adopt(const tsi_device *device, void *handle, tsi_stream **out)
{
    (void)device;
    *out = handle;
    (*out)->lent++;
    return TS_OK;
}

static ts_status stream_meet(const tsi_device *device, tsi_stream *stream, void *handle, bool back)
{
    tsi_device_event *event;
    if (!handle) return TSI_FAIL(TS_ERR_ARG, "stream: there is no default one of others");
    TSI_TRY(refuse_captured(stream));
    TSI_TRY(event_record(device, back ? handle : stream, &event));
    ts_status status = event_wait(device, back ? stream : handle, event);
    event_destroy(device, event);
    return status;
}

static const tsi_device queue_device = {
    .struct_size = sizeof(tsi_device),
    .name = "queue",
    .kind = "queue",
    .dlpack_type = 12,
    .host_readable = false,
    .buffer_alloc = buffer_alloc,
    .buffer_free = buffer_free,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_sync = stream_sync,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_done = event_done,
    .event_destroy = event_destroy,
    .event_share = event_share,
    .event_mark = event_mark,
    .event_time = event_time,
    .copy = copy,
    .copy_list = copy_list,
    .fill = fill,
    .fold = fold,
    .properties = properties,
    .attach = attach,
    .defer = defer,
    .reserve = reserve,
    .freed = freed,
    .stream_handle = stream_handle,
    .stream_adopt = stream_adopt,
    .stream_meet = stream_meet,
    .near = near_on,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .graph_launch = graph_launch,
    .graph_destroy = graph_destroy,
};

const tsi_device *tsi_device_queue(void)
{
    return &queue_device;
}
