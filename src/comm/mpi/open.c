/* SPDX-License-Identifier: Apache-2.0 */
/* open.c - the engine and MPI itself: who initialises, who finalises, who shares memory with whom.
 *
 * If MPI is initialised already it is somebody else's: it is never finalised, and its thread level
 * is respected. Otherwise we initialise it and finalise it when the process exits. The communicator
 * is duplicated, so that no message of ours meets one of theirs; only the duplicate's errors are
 * returned to us. Signal handlers that MPI installs while we initialise it are put back, but for
 * SIGUSR1 where nobody had it: MPICH's launcher tells the survivors of a killed process with it,
 * and the default action would end them.
 *
 * At exit after a failure MPI_Finalize could wait for ever for a rank that is gone. So the ranks of
 * the node first meet in the segment: if all of them have come to their exit, MPI is finalised; if
 * one is gone or does not come within two seconds, it is left as it is (the launcher then ends the
 * job as failed).
 *
 * Environment: TESSERA_MPI_SHM=0 (everything through MPI), TESSERA_MPI_CMA=0 (peers' memory is not
 * read, data goes through the rings). All ranks must agree; the lowest wins. TESSERA_NODES: ranks
 * of this machine count as those of several, and between these go through MPI. */
#include <dlfcn.h>
#include <locale.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/mpi/internal.h"

/* What outlives a world, per process: the module is never unloaded. */
static struct {
    pthread_mutex_t lock;
    bool ours;          /* we initialised MPI */
    bool failed;        /* a world was poisoned: not everybody may come to MPI_Finalize */
    bool far;           /* ... and some of its ranks cannot be met in the segment */
    _Atomic bool stuck; /* a thread of ours is in MPI and does not come back */
    tsi_mpi *open;      /* the latest world, while it is open */
    int64_t open_count;
    tsi_segment kept; /* of the first world: for the meeting at exit */
    int64_t kept_first, kept_count;
} process = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- exit -------------------------------------------------------------------------------- */
static void set_life(const tsi_segment *segment, int64_t first, int64_t count, tsi_slot_life life)
{
    for (int64_t i = 0; i < count; i++)
        atomic_store(&segment->slot[first + i].life, life);
    for (int64_t i = 0; i < segment->count; i++)
        tsi_bell_ring(&segment->slot[i]);
}

/* Waits until every process of the node is at its exit or dead; true if all are at their exit. */
static bool meet(tsi_segment *segment)
{
    int64_t deadline = tsi_clock_ns() + 2000000000;
    for (;;) {
        bool all = true, none_left = true;
        for (int64_t i = 0; i < segment->count; i++) {
            bool exiting = atomic_load(&segment->slot[i].life) == TSI_LIFE_EXITING;
            bool dead = !exiting && tsi_place_dead(segment, i);
            all &= exiting;
            none_left &= exiting || dead;
        }
        if (all || none_left) return all;
        if (tsi_clock_ns() > deadline) return false;
        usleep(1000);
    }
}

static void at_exit(void)
{
    int finalized = 0;
    if (atomic_load(&process.stuck)) return;
    MPI_Finalized(&finalized);
    bool failed = process.failed || process.open_count > 0, all = true;
    if (process.open != NULL)
        set_life(&process.open->segment, process.open->local[0].place, process.open->threads,
                 TSI_LIFE_EXITING);
    if (process.kept.base != NULL) {
        set_life(&process.kept, process.kept_first, process.kept_count, TSI_LIFE_EXITING);
        if (failed) all = meet(&process.kept);
    }
    if (!finalized && all && !(failed && process.far)) MPI_Finalize();
}

/* While a world is opened MPI may be called by a thread of our own (begin.c), so what is wrong is
 * kept in the state, for the caller's thread to report. */
static ts_status refuse(tsi_mpi *mpi, ts_status status, const char *format, ...) TS_PRINTF(3, 4);
static ts_status refuse(tsi_mpi *mpi, ts_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(mpi->why, sizeof mpi->why, format, arguments);
    va_end(arguments);
    return status;
}

/* ---- MPI itself -------------------------------------------------------------------------- */
/* The MPI's own plug-ins look for its symbols in the global scope; we were loaded into a local one.
 */
static void make_mpi_global(void)
{
    Dl_info info;
    int (*init)(int *, char ***, int, int *) = MPI_Init_thread;
    void *address = NULL;
    memcpy(&address, &init, sizeof address);
    if (dladdr(address, &info) != 0 && info.dli_fname != NULL)
        (void)dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

static int initialize_quietly(void)
{
    struct sigaction before[65];
    char *place = NULL, name[128] = "";
    int level = 0;
    for (int s = 1; s < 65; s++)
        if (sigaction(s, NULL, &before[s]) != 0) before[s].sa_handler = SIG_ERR;
    place = setlocale(LC_ALL, NULL);
    if (place != NULL) snprintf(name, sizeof name, "%s", place);
    int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    if (name[0] != 0) (void)setlocale(LC_ALL, name);
    for (int s = 1; s < 65; s++) {
        bool needed = s == SIGCHLD || (s == SIGUSR1 && before[s].sa_handler == SIG_DFL);
        if (!needed && s != SIGKILL && s != SIGSTOP && before[s].sa_handler != SIG_ERR)
            (void)sigaction(s, &before[s], NULL);
    }
    return code;
}

static ts_status ensure_mpi(tsi_mpi *mpi)
{
    int initialized = 0, finalized = 0, level = MPI_THREAD_SINGLE, main_thread = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (finalized)
        return refuse(mpi, TS_ERR_STATE,
                      "the mpi engine cannot open a world: MPI_Finalize was called already");
    pthread_mutex_lock(&process.lock);
    ts_status status = TS_OK;
    if (!initialized) {
        make_mpi_global();
        tsi_begin_step(mpi, "MPI_Init_thread");
        if (initialize_quietly() == MPI_SUCCESS) {
            process.ours = true;
            atexit(at_exit);
        } else {
            status = refuse(mpi, TS_ERR_MISSING, "MPI_Init_thread failed");
        }
    }
    pthread_mutex_unlock(&process.lock);
    if (status != TS_OK) return status;
    MPI_Query_thread(&level);
    MPI_Is_thread_main(&main_thread);
    mpi->ours = process.ours;
    mpi->any_thread = level >= MPI_THREAD_SERIALIZED;
    mpi->thread = pthread_self();
    if (!mpi->any_thread && !main_thread)
        return refuse(mpi, TS_ERR_THREAD,
                      "MPI was initialised for one thread only, and this is not that thread");
    return TS_OK;
}

/* ---- the world --------------------------------------------------------------------------- */
static bool switched_off(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && strcmp(value, "0") == 0;
}

static ts_status duplicate(tsi_mpi *mpi, const ts_world_options *user)
{
    MPI_Comm base = MPI_COMM_WORLD;
    if (user->mpi_comm != NULL) memcpy(&base, user->mpi_comm, sizeof base);
    if (base == MPI_COMM_NULL) return refuse(mpi, TS_ERR_ARG, "mpi_comm is MPI_COMM_NULL");
    tsi_begin_step(mpi, "MPI_Comm_dup");
    if (MPI_Comm_dup(base, &mpi->comm) != MPI_SUCCESS)
        return refuse(mpi, TS_ERR_ARG, "MPI_Comm_dup of mpi_comm failed");
    MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
    int rank = 0, size = 1;
    MPI_Comm_rank(mpi->comm, &rank);
    MPI_Comm_size(mpi->comm, &size);
    mpi->process = rank;
    mpi->process_count = size;
    return TS_OK;
}

/* Options that must be the same everywhere; lowest[] gets the switches everybody has on. */
static ts_status agree(tsi_mpi *mpi, int64_t *shm, int64_t *cma)
{
    int64_t mine[6] = { mpi->threads, -mpi->threads,   *shm,
                        *cma,         mpi->any_thread, mpi->node_size_count },
            low[6];
    tsi_begin_step(mpi, "MPI_Allreduce");
    if (MPI_Allreduce(mine, low, 6, MPI_INT64_T, MPI_MIN, mpi->comm) != MPI_SUCCESS)
        return refuse(mpi, TS_ERR_PEER, "MPI_Allreduce failed while opening");
    if (low[0] != -low[1])
        return refuse(mpi, TS_ERR_ARG,
                      "threads_per_process differs between processes: %lld to %lld, %lld here",
                      (long long)low[0], (long long)-low[1], (long long)mpi->threads);
    *shm = low[2];
    *cma = low[3];
    if (low[5] == 0) mpi->node_size_count = 0;
    if (MPI_Bcast(mpi->agreed, (int)mpi->agreed_bytes, MPI_BYTE, 0, mpi->comm) != MPI_SUCCESS)
        return refuse(mpi, TS_ERR_PEER, "MPI_Bcast failed while opening");
    if (mpi->threads > 1 && !low[4])
        return refuse(mpi, TS_ERR_STATE,
                      "%lld thread ranks per process need MPI_THREAD_SERIALIZED, and the MPI "
                      "of this program was initialised for less",
                      (long long)mpi->threads);
    return TS_OK;
}

/* The processes of this machine, or those that count as its: [coll]. */
static ts_status split_node(tsi_mpi *mpi, MPI_Comm *node)
{
    int key = (int)mpi->process;
    int64_t wanted = tsi_node_wanted(mpi->node_sizes, mpi->node_size_count, mpi->first);
    MPI_Comm machine = MPI_COMM_NULL;
    if (MPI_Comm_split_type(mpi->comm, MPI_COMM_TYPE_SHARED, key, MPI_INFO_NULL, &machine) !=
        MPI_SUCCESS)
        return refuse(mpi, TS_ERR_PEER, "MPI_Comm_split_type failed while opening");
    *node = machine;
    if (mpi->node_size_count == 0) return TS_OK;
    int code = MPI_Comm_split(machine, (int)wanted, key, node);
    MPI_Comm_free(&machine);
    if (code == MPI_SUCCESS) return TS_OK;
    return refuse(mpi, TS_ERR_PEER, "MPI_Comm_split failed while opening");
}

/* The list of nodes, the same everywhere: [coll]. */
static ts_status list_nodes(tsi_mpi *mpi, MPI_Comm node)
{
    int size = 0, first = (int)mpi->process;
    MPI_Comm_size(node, &size);
    if (size == mpi->process_count) return TS_OK; /* everybody sees that */
    mpi->node = mpi->host->core.alloc(sizeof *mpi->node * (size_t)mpi->rank_count);
    int mine = mpi->node != NULL, all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, mpi->comm);
    if (!all) return refuse(mpi, TS_ERR_MEMORY, "no memory for the nodes of ranks");
    MPI_Bcast(&first, 1, MPI_INT, 0, node);
    MPI_Allgather(&first, 1, MPI_INT, mpi->node, 1, MPI_INT, mpi->comm);
    for (int64_t r = mpi->rank_count - 1; r >= 0; r--)
        mpi->node[r] = (int32_t)(mpi->node[r / mpi->threads] * mpi->threads);
    return TS_OK;
}

/* The segment, and each world rank's place in it: [coll]. */
static ts_status share_memory(tsi_mpi *mpi, MPI_Comm node, bool shm, bool cma)
{
    tsi_segment *segment = &mpi->segment;
    int rank = 0;
    if (shm && !tsi_segment_open(mpi, node, true)) {
        shm = false;
        mpi->host->core.log(1, "the ranks of this node cannot share memory: all goes through MPI");
    }
    if (!shm && !tsi_segment_open(mpi, MPI_COMM_SELF, false))
        return refuse(mpi, TS_ERR_MEMORY, "no memory for the segment");
    if (segment->pidfd == NULL || segment->rank == NULL)
        return refuse(mpi, TS_ERR_MEMORY, "no memory for the segment");
    if (shm) MPI_Comm_rank(node, &rank);
    int64_t place = rank * mpi->threads;
    for (int64_t t = 0; t < mpi->threads; t++) {
        mpi->local[t].place = place + t;
        tsi_slot_open(&segment->slot[place + t]);
    }
    int64_t mine = mpi->process;
    int processes = (int)(segment->count / mpi->threads);
    int64_t *list = mpi->host->core.alloc(sizeof *list * (size_t)processes);
    if (list == NULL) return refuse(mpi, TS_ERR_MEMORY, "no memory for the segment");
    list[0] = mine;
    if (shm) MPI_Allgather(&mine, 1, MPI_INT64_T, list, 1, MPI_INT64_T, node);
    for (int64_t i = 0; i < segment->count; i++) {
        segment->rank[i] = list[i / mpi->threads] * mpi->threads + i % mpi->threads;
        mpi->place[segment->rank[i]] = (int32_t)i;
    }
    mpi->host->core.free(list);
    mpi->cma = shm && cma && tsi_segment_probe(mpi, node);
    if (shm && !cma) MPI_Barrier(node);
    for (int64_t i = 0; i < segment->count; i += mpi->threads)
        (void)tsi_place_dead(segment, i); /* opens the descriptor while the process lives */
    return TS_OK;
}

/* What the processes of a node do together: [coll]. */
static ts_status meet_node(tsi_mpi *mpi, bool shm, bool cma)
{
    MPI_Comm node = MPI_COMM_NULL;
    tsi_begin_step(mpi, "the meeting of the ranks of a node");
    ts_status status = split_node(mpi, &node);
    if (status != TS_OK) return status;
    status = list_nodes(mpi, node);
    if (status == TS_OK) status = share_memory(mpi, node, shm, cma);
    MPI_Comm_free(&node);
    return status;
}

static ts_status make_ranks(tsi_mpi *mpi)
{
    const tsi_host *host = mpi->host;
    for (int64_t t = 0; t < mpi->threads; t++) {
        tsi_mpi_rank *rank = &mpi->local[t];
        rank->mpi = mpi;
        rank->index = mpi->first + t;
        pthread_mutex_init(&rank->lock, NULL);
        pthread_mutex_init(&rank->inbox_lock, NULL);
        size_t bytes = sizeof *rank->outbox * (size_t)mpi->segment.count;
        rank->outbox = host->core.alloc(bytes);
        rank->scratch = host->core.alloc(TSI_SCRATCH_BYTES);
        rank->came = host->core.alloc((size_t)mpi->rank_count * sizeof *rank->came);
        if (rank->outbox == NULL || rank->scratch == NULL || rank->came == NULL)
            return refuse(mpi, TS_ERR_MEMORY, "no memory for rank %lld", (long long)rank->index);
        memset(rank->outbox, 0, bytes);
        memset(rank->came, 0, (size_t)mpi->rank_count * sizeof *rank->came);
    }
    return TS_OK;
}

static void release(tsi_mpi *mpi)
{
    const tsi_host *host = mpi->host;
    for (int64_t t = 0; mpi->local != NULL && t < mpi->threads; t++) {
        tsi_mpi_rank *rank = &mpi->local[t];
        if (rank->mpi == NULL) continue;
        if (rank->outbox != NULL) tsi_rank_forget(rank);
        tsi_parcel_drop(mpi, &rank->inbox);
        tsi_parcel_drop(mpi, &rank->future);
        pthread_mutex_destroy(&rank->lock);
        pthread_mutex_destroy(&rank->inbox_lock);
        host->core.free(rank->outbox);
        host->core.free(rank->scratch);
        host->core.free(rank->came);
    }
    host->core.free(mpi->local);
    host->core.free(mpi->place);
    host->core.free(mpi->gone_memory);
    host->core.free(mpi->agreed);
    host->core.free(mpi->node_sizes);
    host->core.free(mpi->node);
    pthread_mutex_destroy(&mpi->poison_lock);
    host->core.free(mpi);
}

static void *zeroed(const tsi_host *host, size_t bytes)
{
    void *memory = host->core.alloc(bytes);
    if (memory != NULL) memset(memory, 0, bytes);
    return memory;
}

/* Bytes that fit into one message on every way there is: the same number on every rank. */
static int64_t small_max(tsi_mpi *mpi)
{
    int64_t ring = (int64_t)mpi->segment.ring_bytes / 4, low = 0;
    if (ring > 4096) ring = 4096;
    MPI_Allreduce(&ring, &low, 1, MPI_INT64_T, MPI_MIN, mpi->comm);
    return low - (int64_t)(sizeof(tsi_message) + sizeof(tsi_fingerprint)) - 64;
}

/* Everything that waits for other processes: [coll]. */
static ts_status set_up(tsi_mpi *mpi, const ts_world_options *user)
{
    const tsi_host *host = mpi->host;
    int64_t shm = !switched_off("TESSERA_MPI_SHM"), cma = !switched_off("TESSERA_MPI_CMA");
    ts_status status = ensure_mpi(mpi);
    if (status == TS_OK) status = duplicate(mpi, user);
    if (status == TS_OK) status = agree(mpi, &shm, &cma);
    if (status != TS_OK) return status;
    mpi->rank_count = mpi->process_count * mpi->threads;
    mpi->first = mpi->process * mpi->threads;
    mpi->local = zeroed(host, sizeof *mpi->local * (size_t)mpi->threads);
    mpi->place = host->core.alloc(sizeof *mpi->place * (size_t)mpi->rank_count);
    mpi->gone_memory = zeroed(host, (size_t)mpi->rank_count);
    mpi->gone = mpi->gone_memory;
    int mine = mpi->local != NULL && mpi->place != NULL && mpi->gone != NULL, all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, mpi->comm);
    if (!all) return refuse(mpi, TS_ERR_MEMORY, "no memory for the world's ranks");
    for (int64_t i = 0; i < mpi->rank_count; i++)
        mpi->place[i] = -1;
    status = meet_node(mpi, shm != 0, cma != 0);
    if (status == TS_OK) status = make_ranks(mpi);
    int64_t outside = mpi->segment.count < mpi->rank_count;
    int64_t tell[2] = { status, -outside }, low[2];
    MPI_Allreduce(tell, low, 2, MPI_INT64_T, MPI_MIN, mpi->comm);
    if (status == TS_OK && low[0] != TS_OK)
        return refuse(mpi, TS_ERR_PEER, "another process could not open the world");
    if (status == TS_OK && outside) status = tsi_net_open(mpi);
    if (status == TS_OK) mpi->small_max = small_max(mpi);
    return status;
}

/* Whatever MPI does now or later, this process does not wait for it again. */
static void process_abandon(void)
{
    atomic_store(&process.stuck, true);
}

static void *copy_of(const tsi_host *host, const void *from, size_t bytes)
{
    void *to = host->core.alloc(bytes > 0 ? bytes : 1);
    if (to != NULL) memcpy(to, from, bytes);
    return to;
}

/* NULL: there is no memory for it. */
static tsi_mpi *make(const tsi_engine_options *options)
{
    const tsi_host *host = options->host;
    const ts_world_options *user = options->user;
    size_t sizes = sizeof *options->node_sizes * (size_t)options->node_size_count;
    tsi_mpi *mpi = zeroed(host, sizeof *mpi);
    if (mpi == NULL) return NULL;
    pthread_mutex_init(&mpi->poison_lock, NULL);
    mpi->host = host;
    mpi->world = options->world;
    mpi->comm = MPI_COMM_NULL;
    mpi->threads = user->threads_per_process > 0 ? user->threads_per_process : 1;
    mpi->timeout_ms = user->timeout_ms > 0 ? user->timeout_ms : 60000;
    mpi->agreed_bytes = options->agreed_bytes;
    mpi->node_size_count = options->node_size_count;
    mpi->agreed = copy_of(host, options->agreed, options->agreed_bytes);
    mpi->node_sizes = copy_of(host, options->node_sizes, sizes);
    if (mpi->agreed != NULL && mpi->node_sizes != NULL) return mpi;
    release(mpi);
    return NULL;
}

/* It is open: the world hears what the engine found. */
static void tell_world(tsi_mpi *mpi, const tsi_engine_options *options)
{
    mpi->spin_ns = mpi->segment.count <= sysconf(_SC_NPROCESSORS_ONLN) ? 20000 : 0;
    mpi->world->rank_count = mpi->rank_count;
    mpi->world->local_count = mpi->threads;
    mpi->world->first_index = mpi->first;
    mpi->world->node = mpi->node;
    mpi->node = NULL;
    memcpy(options->agreed, mpi->agreed, mpi->agreed_bytes);
}

ts_status tsi_mpi_open(const tsi_engine_options *options, void **state)
{
    const tsi_host *host = options->host;
    const ts_world_options *user = options->user;
    *state = NULL;
    if (atomic_load(&process.stuck))
        return host->core.fail(TS_BLAST_NONE, TS_ERR_STATE,
                               "the mpi engine cannot open a world: MPI did not come back from an "
                               "earlier attempt of this process");
    tsi_mpi *mpi = make(options);
    if (mpi == NULL)
        return host->core.fail(TS_BLAST_NONE, TS_ERR_MEMORY, "no memory for the mpi engine");
    bool abandoned = false;
    ts_status status = tsi_begin(mpi, user, &options->launcher, set_up, &abandoned);
    if (abandoned) { /* a thread is still in MPI and uses `mpi` */
        process_abandon();
        return host->core.fail(TS_BLAST_NONE, status, "%s", mpi->why);
    }
    if (status != TS_OK) {
        (void)host->core.fail(TS_BLAST_NONE, status, "%s",
                              mpi->why[0] ? mpi->why : "the mpi engine cannot open the world");
        if (mpi->comm != MPI_COMM_NULL) MPI_Comm_free(&mpi->comm);
        host->core.free(mpi->segment.rank);
        tsi_segment_close(&mpi->segment);
        release(mpi);
        return status;
    }
    tell_world(mpi, options);
    pthread_mutex_lock(&process.lock);
    process.open = mpi;
    process.open_count++;
    pthread_mutex_unlock(&process.lock);
    *state = mpi;
    return TS_OK;
}

/* Ranks outside say when they leave; MPI wants every message received before the communicator goes.
 */
static void await_farewells(tsi_mpi *mpi)
{
    int64_t deadline = tsi_clock_after_ms(mpi->timeout_ms);
    for (int64_t i = 0; i < mpi->rank_count; i++) {
        if (mpi->place[i] >= 0) continue;
        while (atomic_load(&mpi->gone[i]) == 0 && !tsi_poisoned(&mpi->local[0])) {
            bool any = tsi_net_progress(mpi);
            for (int64_t t = 0; t < mpi->threads; t++)
                any |= tsi_wire_receive(&mpi->local[t]);
            if (!any) sched_yield();
            if (tsi_clock_ns() > deadline) return;
        }
    }
}

void tsi_mpi_close(void *state)
{
    tsi_mpi *mpi = state;
    tsi_segment *segment = &mpi->segment;
    for (int64_t t = 0; t < mpi->threads; t++)
        tsi_fail_leave(&mpi->local[t], TS_OK, NULL);
    if (mpi->net != NULL && tsi_net_allowed(mpi)) await_farewells(mpi);
    set_life(segment, mpi->local[0].place, mpi->threads, TSI_LIFE_CLOSED);
    bool net = mpi->net != NULL, poisoned = tsi_poisoned(&mpi->local[0]);
    tsi_net_close(mpi, poisoned);
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!poisoned && !finalized && tsi_net_allowed(mpi)) MPI_Comm_free(&mpi->comm);
    pthread_mutex_lock(&process.lock);
    process.open_count--;
    if (process.open == mpi) process.open = NULL;
    process.failed |= poisoned;
    process.far |= net;
    mpi->host->core.free(segment->rank);
    if (process.ours && process.kept.base == NULL) {
        process.kept = *segment; /* its memory is never given back */
        process.kept_first = mpi->local[0].place;
        process.kept_count = mpi->threads;
    } else {
        tsi_segment_close(segment);
    }
    pthread_mutex_unlock(&process.lock);
    release(mpi);
}
