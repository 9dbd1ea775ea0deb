/* SPDX-License-Identifier: Apache-2.0 */
/* world.h - the world of ranks: how a program becomes N participants, and how each says it failed.
 *
 * maker     returns a handle. NULL: it failed and the rank remembers why. A required argument
 *           that is NULL on a healthy rank is TS_ERR_NULL.
 * recorded  returns a ts_status that the rank remembers too: check it, or check once per step.
 * getter    borrows while its object lives, accepts NULL, cannot fail.
 * On a failed rank makers return NULL and recorded functions the pending status, both without any
 * effect; only functions marked [any] still act. [coll]: every rank concerned calls it, in order.
 *
 * Threads: a world may be used by all threads; a rank belongs to the thread that is attached to it
 * (any other thread gets TS_ERR_THREAD). */
#ifndef TESSERA_WORLD_H
#define TESSERA_WORLD_H

#include "types.h"

typedef struct ts_world ts_world; /* process: engine, interned layouts, plans */
typedef struct ts_rank ts_rank;   /* participant: device, queues, scopes, error, events */

/* What a rank does. Another status than TS_OK fails the rank, and its peers are told; it may have
 * said why with ts_rank_fail. */
typedef ts_status (*ts_work_fn)(ts_rank *me, void *arg);

typedef struct ts_world_options {
    size_t struct_size;
    const char *engine; /* "threads", "mpi", "model"; NULL: mpi under a launcher, else threads */
    const char *device; /* "cpu", "cuda", "cuda:1", "queue" (for tests), "auto": a GPU that loads,
                         * else "cpu"; NULL: TESSERA_DEVICE, else "cpu" */
    int64_t rank_count; /* threads, model; 0: TESSERA_RANKS, else the number of cores */
    int64_t threads_per_process; /* mpi: thread ranks in each process; 0: one */
    uint64_t seed;
    int64_t timeout_ms;         /* 0: TESSERA_TIMEOUT_MS, else 60,000 */
    const void *mpi_comm;       /* address of the caller's MPI_Comm: duplicated, MPI stays theirs */
    void *cuda_stream;          /* the caller's CUstream, where all work of the rank goes, of which
                                 * the process has one; NULL: the rank's own */
    const int64_t *model_ranks; /* model: one representative per class; NULL: rank 0 */
    int64_t model_rank_count;   /* how many; work runs once for each */
    int64_t events;             /* capacity of each rank's event ring; 0: 4096 */
    int32_t progress;           /* 0: helper threads where allowed; 1: only inside calls */
    int32_t watch; /* ts_launch_with: 1: as in ts_launch, SIGUSR1 writes what every rank is doing to
                    * standard error, where the signal has its default action */
    const char *model;    /* model: the machine, "ranks_per_node=8, latency_us=2/10, ..."; NULL:
                           * TESSERA_MODEL, else the defaults of docs/model-engine.md */
    int64_t handles_kept; /* of a rank's ended tensors so many, at 128 bytes each, are kept apart
                           * from new ones: using one of their handles is an error for sure. 0:
                           * TESSERA_HANDLES_KEPT, else 65,536, less if ranks are many */
    const char *topology; /* what plans take the links of the ranks for: a preset or a file
                           * (ts_topology_load), of the first process; NULL: TESSERA_TOPOLOGY, else
                           * "auto": by the nodes that the engine found, and the device */
} ts_world_options;

TS_BEGIN_C

/* [any] Real defaults, after which every number is meant as it stands (types.h). */
TS_API void ts_world_options_init(ts_world_options *options);

/* Frame of main(): opens a world, runs work on every rank, drains, agrees, prints the first error
 * once with its rank, and returns the exit code, 0 or 1 (2: bad option in the environment). While
 * it runs, SIGUSR1 writes what every rank is doing to standard error.
 * argv may be NULL with argc 0; options of the form --ts-ranks=N, --ts-engine=NAME are taken. Once
 * a rank has failed, the others have the timeout to come back; if one does not, being stuck in code
 * of the program, its name and last place are printed with the post-mortem and the process ends, 1.
 */
TS_API int ts_launch(int argc, char **argv, ts_work_fn work, void *arg);

/* As ts_launch, with options, without printing: `error` (may be NULL) receives the first error's
 * sentence and must hold `error_size` bytes. A rank that does not come back is left behind, on its
 * thread: then its world and `arg` are still in use (rank 0 is the calling thread itself). */
TS_API TS_NODISCARD ts_status ts_launch_with(const ts_world_options *options, ts_work_fn work,
                                             void *arg, char *error, size_t error_size);

/* For programs with their own threads or MPI. [coll] over processes for the mpi engine. */
TS_API TS_NODISCARD ts_status ts_world_open(const ts_world_options *options, ts_world **out);
TS_API void ts_world_close(ts_world *world); /* accepts NULL; before the caller's MPI_Finalize */
TS_API int64_t ts_world_size(const ts_world *world);        /* ranks of all processes */
TS_API int64_t ts_world_local_count(const ts_world *world); /* ranks of this process */
TS_API const char *ts_world_engine(const ts_world *world);  /* "threads" */
/* "cpu"; where it was to be found ("auto") with the reason: "cuda:0 (auto: NVIDIA H200, ..)". */
TS_API const char *ts_world_device(const ts_world *world);
/* The node (machine) of a rank: a number from 0 in the order of their first ranks, the same in
 * every process; -1: no such rank. */
TS_API int64_t ts_world_node(const ts_world *world, int64_t rank);

/* Can this engine be used here? "threads", "model", "mpi", or one MPI: "mpi:openmpi", "mpi:mpich".
 * TS_OK, or TS_ERR_MISSING; `text` (may be NULL) receives where it is, or why not and what to
 * install. Loads a module but starts nothing. */
TS_API TS_NODISCARD ts_status ts_engine_find(const char *name, char *text, size_t size);

/* Can this device be used here? "cpu", "queue", "cuda", one GPU: "cuda:1". TS_OK, or
 * TS_ERR_MISSING; `text` (may be NULL) receives what it is, or why not and where was looked. */
TS_API TS_NODISCARD ts_status ts_device_find(const char *name, char *text, size_t size);

/* The environment variable by which a launcher (mpirun, srun) told that it started this process, as
 * "OMPI_COMM_WORLD_RANK"; NULL: none did. Then the default engine is mpi. */
TS_API const char *ts_launcher(void);

/* The calling thread becomes that local rank until it detaches; the rank's state stays. */
TS_API TS_NODISCARD ts_status ts_rank_attach(ts_world *world, int64_t local_index, ts_rank **out);
TS_API void ts_rank_detach(ts_rank *me);           /* [any] */
TS_API ts_rank *ts_rank_current(void);             /* the attached rank of this thread, or NULL */
TS_API ts_world *ts_rank_world(const ts_rank *me); /* getter */
TS_API int64_t ts_rank_index(const ts_rank *me);   /* getter: 0 .. size-1 over all processes */
TS_API int64_t ts_rank_count(const ts_rank *me);   /* getter: size of the world */
TS_API ts_status ts_rank_sync(ts_rank *me);        /* recorded; waits for what is in flight */

TS_API ts_status ts_rank_status(const ts_rank *me);      /* [any] local: TS_OK or the first error */
TS_API const ts_error *ts_rank_error(const ts_rank *me); /* [any] pending or last caught, or NULL */
TS_API ts_status ts_rank_fail(ts_rank *me, ts_status status, const char *format, ...)
    TS_PRINTF(3, 4);                           /* how user code fails a step */
TS_API ts_status ts_rank_recover(ts_rank *me); /* [any][coll] agree, drop work, new epoch */

/* Ends what ranks wait for, in this process and in all others of the world: their calls return
 * TS_ERR_INTERRUPTED, and so do further ones until ts_rank_recover, called by all. What a rank
 * computes goes on to its next wait. From any thread, attached or not, and from a signal handler.
 */
TS_API void ts_world_interrupt(ts_world *world);

/* Remembers the caller's place for messages and events, as a copy; the macros of comm.h and op.h
 * call it. A literal, as theirs, is kept by its address: a copy would take 80 instructions. */
TS_API void ts_here(const char *place);
TS_API void ts_here_literal(const char *place);
#define ts_here(place) (TS_IS_LITERAL(place) ? ts_here_literal(place) : (ts_here)(place))

TS_END_C
#endif
