/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_stub.c - a library with the functions of NCCL that the engine uses, for machines without a
 * GPU: it works on the `queue` device, between threads and between processes alike.
 *
 * A communicator is a piece of shared memory named by its id, with a ring of bytes for each ordered
 * pair. A group of sends and receives is one function in the stream's order, which copies between
 * the device and the rings until all is through, as a kernel of NCCL would, and ends when its
 * communicator is aborted; to abort it waits for nobody. Like NCCL's non-blocking communicators it
 * answers "in progress" a few times before it has enqueued anything. Its reductions add from the
 * last member to the first: another order than the engine's own.
 *
 * TESSERA_STUB_FAULT="WHAT RANK NTH" makes member RANK of a communicator of at least two do WHAT in
 * its NTH operation (from 1), once for each text in a process:
 *   async   the communicator reports an error       stall   the operation never moves
 *   kill    the process dies                        join    joining fails (NTH is not read)
 *   hang    joining never ends (NTH is not read) */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "comm/nccl/api.h"

enum { RING_BYTES = 1 << 16, LATER = 2, VERSION = 22809 };

typedef struct ring {
    _Alignas(64) _Atomic uint64_t head; /* bytes ever written */
    _Alignas(64) _Atomic uint64_t tail; /* bytes ever read */
    _Alignas(64) char data[RING_BYTES];
} ring;

typedef struct hall {
    _Atomic int32_t joined;
    _Alignas(64) ring rings[]; /* [from][to] */
} hall;

typedef struct bundle bundle;

struct ncclComm {
    hall *hall;
    size_t bytes;
    int count, rank, asked; /* asked: how often it still says "in progress" */
    _Atomic int32_t error;  /* a tsi_nccl_result */
    _Atomic bool aborted;
    _Atomic int32_t holders; /* bundles in streams, and the caller: the last one frees it */
    _Atomic int32_t registered;
    int operations;
    bundle *waiting; /* not enqueued yet */
    char name[64];
    char fault[16];
    int fault_rank, fault_at;
};

/* One message; done counts its head of 8 bytes, too. */
typedef struct message {
    bool send;
    int peer;
    char *memory;
    size_t bytes, done;
    uint64_t head;
} message;

struct bundle {
    struct ncclComm *comm;
    const tsi_device *device;
    tsi_stream *stream;
    bool stalled;
    int count;
    message part[32];
    /* a reduction: out = fold of the members' memory, last first */
    ts_reduce reduce;
    tsi_block out;
    tsi_block source[16];
    void *scratch;
    size_t scratch_bytes;
};

static _Atomic int32_t registered, registrations;
static _Thread_local bundle *open_bundle;
static _Thread_local int depth;

static ring *ring_of(struct ncclComm *comm, int from, int to)
{
    return &comm->hall->rings[from * comm->count + to];
}

static void doze(void)
{
    (void)nanosleep(&(struct timespec){ .tv_nsec = 20000 }, NULL);
}

/* ---- moving ---------------------------------------------------------------------------------- */

/* Bytes between a ring and memory of the device, or a message's head. */
static void put(const bundle *b, message *m, char *at, size_t bytes)
{
    if (m->done < 8)
        memcpy(m->send ? at : (char *)&m->head + m->done, m->send ? (char *)&m->head + m->done : at,
               bytes);
    else if (m->send)
        (void)b->device->copy_out(b->device, at, m->memory + (m->done - 8), bytes, NULL);
    else
        (void)b->device->copy_in(b->device, m->memory + (m->done - 8), at, bytes, NULL);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* As much as fits now. Did anything move? */
static bool step(bundle *b, message *m)
{
    struct ncclComm *comm = b->comm;
    ring *r = m->send ? ring_of(comm, comm->rank, m->peer) : ring_of(comm, m->peer, comm->rank);
    uint64_t head = atomic_load(&r->head), tail = atomic_load(&r->tail);
    size_t filled = (size_t)(head - tail), place = (size_t)(m->send ? head : tail) % RING_BYTES;
    size_t room = m->send ? RING_BYTES - filled : filled;
    size_t want = m->done < 8 ? 8 - m->done : m->bytes + 8 - m->done;
    size_t bytes = least(least(room, want), RING_BYTES - place);
    if (bytes == 0) return false;
    put(b, m, r->data + place, bytes);
    m->done += bytes;
    if (m->send)
        atomic_store(&r->head, head + bytes);
    else
        atomic_store(&r->tail, tail + bytes);
    if (!m->send && m->done == 8 && m->head != m->bytes)
        atomic_store(&comm->error, TSI_NCCL_USAGE); /* sizes of a pair differ */
    return true;
}

/* Each pair is a stream: a message begins when the one before it of its pair is through. */
static bool is_turn(const bundle *b, const message *m)
{
    for (const message *before = b->part; before < m; before++)
        if (before->send == m->send && before->peer == m->peer && before->done < before->bytes + 8)
            return false;
    return true;
}

static bool pass(bundle *b, bool *left)
{
    bool moved = false;
    *left = false;
    for (int i = 0; i < b->count; i++) {
        message *m = &b->part[i];
        if (m->done == m->bytes + 8) continue;
        *left = true;
        if (!b->stalled && is_turn(b, m)) moved = step(b, m) || moved;
    }
    return moved;
}

static void reduce(bundle *b)
{
    const tsi_block *from[16];
    for (int i = 0; i < b->comm->count; i++)
        from[i] = &b->source[b->comm->count - 1 - i];
    (void)b->device->fold(b->device, &b->out, from, b->comm->count, b->reduce, 0, NULL);
}

static ts_status run(void *context)
{
    bundle *b = context;
    struct ncclComm *comm = b->comm;
    bool left = true;
    while (left && !atomic_load(&comm->aborted) && atomic_load(&comm->error) == TSI_NCCL_SUCCESS)
        if (!pass(b, &left)) doze();
    if (!left && b->reduce != TS_REDUCE_NONE) reduce(b);
    return TS_OK; /* a kernel that is aborted ends, no more */
}

static void comm_release(struct ncclComm *comm)
{
    if (atomic_fetch_sub(&comm->holders, 1) != 1) return;
    atomic_fetch_sub(&registered, atomic_load(&comm->registered));
    (void)munmap(comm->hall, comm->bytes);
    free(comm);
}

static void bundle_free(void *context)
{
    bundle *b = context;
    struct ncclComm *comm = b->comm;
    if (b->scratch) b->device->buffer_free(b->device, b->scratch, b->scratch_bytes);
    free(b);
    comm_release(comm);
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* Faults that have come. */
static struct {
    pthread_mutex_t lock;
    char text[64];
} past = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool is_fault(const struct ncclComm *comm, const char *what)
{
    char text[64];
    if (comm->count < 2 || comm->rank != comm->fault_rank || strcmp(comm->fault, what) != 0)
        return false;
    (void)snprintf(text, sizeof text, "%s %d %d", what, comm->fault_rank, comm->fault_at);
    pthread_mutex_lock(&past.lock);
    bool again = strcmp(text, past.text) == 0;
    memcpy(past.text, text, sizeof text);
    pthread_mutex_unlock(&past.lock);
    return !again;
}

static tsi_nccl_result submit(bundle *b)
{
    struct ncclComm *comm = b->comm;
    bool now = ++comm->operations == comm->fault_at;
    if (now && is_fault(comm, "async")) atomic_store(&comm->error, TSI_NCCL_SYSTEM);
    if (now && is_fault(comm, "kill")) (void)kill(getpid(), SIGKILL);
    b->stalled = now && is_fault(comm, "stall");
    atomic_fetch_add(&comm->holders, 1);
    comm->waiting = b;
    comm->asked = LATER;
    return TSI_NCCL_IN_PROGRESS;
}

static bundle *bundle_for(struct ncclComm *comm, void *stream)
{
    bundle *b = open_bundle ? open_bundle : calloc(1, sizeof *b);
    if (!b) abort();
    b->comm = comm;
    b->stream = stream;
    b->device = *(const tsi_device *const *)stream; /* the first member of a stream of `queue` */
    open_bundle = b;
    return b;
}

static void add(bundle *b, bool send, int peer, const void *memory, size_t bytes)
{
    if ((size_t)b->count == sizeof b->part / sizeof b->part[0]) abort();
    b->part[b->count++] = (message){ .send = send,
                                     .peer = peer,
                                     .memory = (char *)(uintptr_t)memory,
                                     .bytes = bytes,
                                     .head = bytes };
}

static tsi_nccl_result close_bundle(void)
{
    bundle *b = open_bundle;
    if (depth > 0 || !b) return TSI_NCCL_SUCCESS;
    open_bundle = NULL;
    return submit(b);
}

TS_API tsi_nccl_result ncclGroupStart(void);
tsi_nccl_result ncclGroupStart(void)
{
    depth++;
    return TSI_NCCL_SUCCESS;
}

TS_API tsi_nccl_result ncclGroupEnd(void);
tsi_nccl_result ncclGroupEnd(void)
{
    depth--;
    return close_bundle();
}

static size_t size_of(tsi_nccl_type type)
{
    switch (type) {
    case TSI_NCCL_I8:
    case TSI_NCCL_U8:
        return 1;
    case TSI_NCCL_F16:
    case TSI_NCCL_BF16:
        return 2;
    case TSI_NCCL_I32:
    case TSI_NCCL_F32:
        return 4;
    case TSI_NCCL_I64:
    case TSI_NCCL_F64:
        return 8;
    case TSI_NCCL_TYPE_NONE:
        break;
    }
    abort();
}

TS_API tsi_nccl_result ncclSend(const void *from, size_t count, tsi_nccl_type type, int peer,
                                struct ncclComm *comm, void *stream);
tsi_nccl_result ncclSend(const void *from, size_t count, tsi_nccl_type type, int peer,
                         struct ncclComm *comm, void *stream)
{
    add(bundle_for(comm, stream), true, peer, from, count * size_of(type));
    return close_bundle();
}

TS_API tsi_nccl_result ncclRecv(void *to, size_t count, tsi_nccl_type type, int peer,
                                struct ncclComm *comm, void *stream);
tsi_nccl_result ncclRecv(void *to, size_t count, tsi_nccl_type type, int peer,
                         struct ncclComm *comm, void *stream)
{
    add(bundle_for(comm, stream), false, peer, to, count * size_of(type));
    return close_bundle();
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* What a member gives itself goes through a ring, too. */
TS_API tsi_nccl_result ncclAllGather(const void *from, void *to, size_t count, tsi_nccl_type type,
                                     struct ncclComm *comm, void *stream);
tsi_nccl_result ncclAllGather(const void *from, void *to, size_t count, tsi_nccl_type type,
                              struct ncclComm *comm, void *stream)
{
    size_t bytes = count * size_of(type);
    bundle *b = bundle_for(comm, stream);
    for (int p = 0; p < comm->count; p++) {
        add(b, true, p, from, bytes);
        add(b, false, p, (char *)to + (size_t)p * bytes, bytes);
    }
    return close_bundle();
}

TS_API tsi_nccl_result ncclBroadcast(const void *from, void *to, size_t count, tsi_nccl_type type,
                                     int root, struct ncclComm *comm, void *stream);
tsi_nccl_result ncclBroadcast(const void *from, void *to, size_t count, tsi_nccl_type type,
                              int root, struct ncclComm *comm, void *stream)
{
    size_t bytes = count * size_of(type);
    bundle *b = bundle_for(comm, stream);
    for (int p = 0; p < comm->count && comm->rank == root; p++)
        if (p != root) add(b, true, p, from, bytes);
    if (comm->rank != root) add(b, false, root, to, bytes);
    return close_bundle();
}

static ts_dtype dtype_of(tsi_nccl_type type)
{
    static const ts_dtype of[] = { [TSI_NCCL_I8] = TS_DTYPE_I8,   [TSI_NCCL_U8] = TS_DTYPE_U8,
                                   [TSI_NCCL_I32] = TS_DTYPE_I32, [TSI_NCCL_I64] = TS_DTYPE_I64,
                                   [TSI_NCCL_F16] = TS_DTYPE_F16, [TSI_NCCL_F32] = TS_DTYPE_F32,
                                   [TSI_NCCL_F64] = TS_DTYPE_F64, [TSI_NCCL_BF16] = TS_DTYPE_BF16 };
    return of[type];
}

static ts_reduce reduce_of(tsi_nccl_op_kind op)
{
    static const ts_reduce of[] = { [TSI_NCCL_SUM] = TS_REDUCE_SUM,
                                    [TSI_NCCL_PROD] = TS_REDUCE_PROD,
                                    [TSI_NCCL_MAX] = TS_REDUCE_MAX,
                                    [TSI_NCCL_MIN] = TS_REDUCE_MIN,
                                    [TSI_NCCL_AVG] = TS_REDUCE_AVG };
    return of[op];
}

/* `step`: bytes between what one member and the next get of `from`; to: NULL where this member gets
 * nothing. */
static tsi_nccl_result reduction(const void *from, size_t step_bytes, void *to, size_t count,
                                 tsi_nccl_type type, tsi_nccl_op_kind op, int root,
                                 struct ncclComm *comm, void *stream)
{
    bundle *b = bundle_for(comm, stream);
    size_t bytes = count * size_of(type);
    bool gets = root < 0 || root == comm->rank;
    for (int p = 0; p < comm->count; p++)
        if (root < 0 || root == p)
            add(b, true, p, (const char *)from + (size_t)p * step_bytes, bytes);
    b->scratch_bytes = bytes * (size_t)comm->count;
    if (!gets) return close_bundle();
    if (b->device->buffer_alloc(b->device, b->scratch_bytes, &b->scratch) != TS_OK) abort();
    tsi_block block = {
        .dtype = dtype_of(type), .ndim = 1, .extent = { (int64_t)count }, .stride = { 1 }
    };
    b->reduce = reduce_of(op);
    b->out = block;
    b->out.data = to;
    for (int p = 0; p < comm->count; p++) {
        b->source[p] = block;
        b->source[p].data = (char *)b->scratch + (size_t)p * bytes;
        add(b, false, p, b->source[p].data, bytes);
    }
    return close_bundle();
}

TS_API tsi_nccl_result ncclReduce(const void *from, void *to, size_t count, tsi_nccl_type type,
                                  tsi_nccl_op_kind op, int root, struct ncclComm *comm,
                                  void *stream);
tsi_nccl_result ncclReduce(const void *from, void *to, size_t count, tsi_nccl_type type,
                           tsi_nccl_op_kind op, int root, struct ncclComm *comm, void *stream)
{
    return reduction(from, 0, to, count, type, op, root, comm, stream);
}

TS_API tsi_nccl_result ncclAllReduce(const void *from, void *to, size_t count, tsi_nccl_type type,
                                     tsi_nccl_op_kind op, struct ncclComm *comm, void *stream);
tsi_nccl_result ncclAllReduce(const void *from, void *to, size_t count, tsi_nccl_type type,
                              tsi_nccl_op_kind op, struct ncclComm *comm, void *stream)
{
    return reduction(from, 0, to, count, type, op, -1, comm, stream);
}

TS_API tsi_nccl_result ncclReduceScatter(const void *from, void *to, size_t count,
                                         tsi_nccl_type type, tsi_nccl_op_kind op,
                                         struct ncclComm *comm, void *stream);
tsi_nccl_result ncclReduceScatter(const void *from, void *to, size_t count, tsi_nccl_type type,
                                  tsi_nccl_op_kind op, struct ncclComm *comm, void *stream)
{
    return reduction(from, count * size_of(type), to, count, type, op, -1, comm, stream);
}

/* ---- communicators --------------------------------------------------------------------------- */

TS_API tsi_nccl_result ncclGetVersion(int *version);
tsi_nccl_result ncclGetVersion(int *version)
{
    *version = VERSION;
    return TSI_NCCL_SUCCESS;
}

TS_API tsi_nccl_result ncclGetUniqueId(tsi_nccl_id *id);
tsi_nccl_result ncclGetUniqueId(tsi_nccl_id *id)
{
    static _Atomic int32_t number;
    memset(id, 0, sizeof *id);
    (void)snprintf(id->internal, sizeof id->internal, "/tessera-stub-%d-%d", (int)getpid(),
                   (int)atomic_fetch_add(&number, 1));
    return TSI_NCCL_SUCCESS;
}

static void read_fault(struct ncclComm *comm)
{
    const char *text = getenv("TESSERA_STUB_FAULT");
    comm->fault_rank = -1;
    if (!text || sscanf(text, "%15s %d %d", comm->fault, &comm->fault_rank, &comm->fault_at) < 2)
        comm->fault_rank = -1;
}

static bool map_hall(struct ncclComm *comm)
{
    comm->bytes = sizeof(hall) + (size_t)(comm->count * comm->count) * sizeof(ring);
    int file = shm_open(comm->name, O_RDWR | O_CREAT, 0600);
    if (file < 0) return false;
    bool good = ftruncate(file, (off_t)comm->bytes) == 0;
    void *memory =
        good ? mmap(NULL, comm->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    (void)close(file);
    comm->hall = memory != MAP_FAILED ? memory : NULL;
    return comm->hall != NULL;
}

TS_API tsi_nccl_result ncclCommInitRankConfig(struct ncclComm **out, int count, tsi_nccl_id id,
                                              int rank, tsi_nccl_config *config);
tsi_nccl_result ncclCommInitRankConfig(struct ncclComm **out, int count, tsi_nccl_id id, int rank,
                                       tsi_nccl_config *config)
{
    *out = NULL;
    if (config->magic != TSI_NCCL_MAGIC || config->size < sizeof *config || config->blocking != 0)
        return TSI_NCCL_ARGUMENT;
    struct ncclComm *comm = calloc(1, sizeof *comm);
    if (!comm) return TSI_NCCL_SYSTEM;
    comm->count = count;
    comm->rank = rank;
    atomic_store(&comm->holders, 1);
    (void)snprintf(comm->name, sizeof comm->name, "%.60s", id.internal);
    read_fault(comm);
    if (is_fault(comm, "join") || !map_hall(comm)) {
        free(comm);
        return TSI_NCCL_SYSTEM;
    }
    if (!is_fault(comm, "hang")) atomic_fetch_add(&comm->hall->joined, 1);
    *out = comm;
    return TSI_NCCL_IN_PROGRESS;
}

TS_API tsi_nccl_result ncclCommGetAsyncError(struct ncclComm *comm, tsi_nccl_result *state);
tsi_nccl_result ncclCommGetAsyncError(struct ncclComm *comm, tsi_nccl_result *state)
{
    *state = (tsi_nccl_result)atomic_load(&comm->error);
    if (*state != TSI_NCCL_SUCCESS) return TSI_NCCL_SUCCESS;
    bool all = atomic_load(&comm->hall->joined) == comm->count;
    if (all && comm->name[0]) { /* nobody else will open it */
        (void)shm_unlink(comm->name);
        comm->name[0] = '\0';
    }
    *state = all && comm->asked == 0 ? TSI_NCCL_SUCCESS : TSI_NCCL_IN_PROGRESS;
    if (comm->asked > 0 && --comm->asked == 0) {
        bundle *b = comm->waiting;
        comm->waiting = NULL;
        (void)b->device->defer(b->device, b->stream, run, b, bundle_free);
    }
    return TSI_NCCL_SUCCESS;
}

TS_API tsi_nccl_result ncclCommFinalize(struct ncclComm *comm);
tsi_nccl_result ncclCommFinalize(struct ncclComm *comm)
{
    (void)comm;
    return TSI_NCCL_SUCCESS;
}

TS_API tsi_nccl_result ncclCommDestroy(struct ncclComm *comm);
tsi_nccl_result ncclCommDestroy(struct ncclComm *comm)
{
    if (comm->waiting) bundle_free(comm->waiting);
    if (comm->name[0]) (void)shm_unlink(comm->name);
    comm_release(comm);
    return TSI_NCCL_SUCCESS;
}

TS_API tsi_nccl_result ncclCommAbort(struct ncclComm *comm);
tsi_nccl_result ncclCommAbort(struct ncclComm *comm)
{
    atomic_store(&comm->aborted, true);
    return ncclCommDestroy(comm);
}

/* ---- registration: counted, so that a test sees that each ends ------------------------------- */

TS_API tsi_nccl_result ncclCommRegister(struct ncclComm *comm, void *memory, size_t bytes,
                                        void **handle);
tsi_nccl_result ncclCommRegister(struct ncclComm *comm, void *memory, size_t bytes, void **handle)
{
    if (!comm || !memory || bytes == 0) return TSI_NCCL_ARGUMENT;
    atomic_fetch_add(&registrations, 1);
    atomic_fetch_add(&registered, 1);
    atomic_fetch_add(&comm->registered, 1);
    *handle = memory;
    return TSI_NCCL_SUCCESS;
}

TS_API tsi_nccl_result ncclCommDeregister(struct ncclComm *comm, void *handle);
tsi_nccl_result ncclCommDeregister(struct ncclComm *comm, void *handle)
{
    if (!comm || !handle) abort();
    atomic_fetch_sub(&registered, 1);
    atomic_fetch_sub(&comm->registered, 1);
    return TSI_NCCL_SUCCESS;
}

/* Of a test: registrations ever made, and those that did not end. */
TS_API void tessera_stub_registered(int32_t *made, int32_t *left);
void tessera_stub_registered(int32_t *made, int32_t *left)
{
    *made = atomic_load(&registrations);
    *left = atomic_load(&registered);
}

TS_API const char *ncclGetErrorString(tsi_nccl_result result);
const char *ncclGetErrorString(tsi_nccl_result result)
{
    return result == TSI_NCCL_SYSTEM ? "unhandled system error" : "another error";
}

TS_API const char *ncclGetLastError(struct ncclComm *comm);
const char *ncclGetLastError(struct ncclComm *comm)
{
    (void)comm;
    return "stub";
}
