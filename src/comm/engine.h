/* SPDX-License-Identifier: Apache-2.0 */
/* engine.h - what moves data between ranks: the vtable that threads, mpi, nccl and model fill.
 *
 * comm/ above it validates arguments, keeps groups, sequence numbers, events and errors, and hands
 * a complete description of one rank's side of one operation (tsi_work) to the engine:
 *
 *   ts_group_all_gather -> tsi_work (kind, blocks, fingerprint) -> engine->start -> engine->wait
 *
 * An engine may come from a module (mpi, nccl; base/module_seam.h), which sees nothing of the core
 * but this header and the host table it is given.
 *
 * INV: every operation of a (group, channel) is complete on all members before the next one of that
 * channel moves data (but see copies_early); a work is complete only when no peer will read this
 * rank's blocks any more. For memory of devices both hold in the order of queues: the bytes move
 * behind `ready` of every member, and what a rank's queue gets after ts_work_wait runs behind
 * `done`. */
#ifndef TSI_COMM_ENGINE_H
#define TSI_COMM_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "base/launcher.h"
#include "base/module_seam.h"
#include "device/device.h"
#include "tessera/comm.h"

typedef enum tsi_comm_kind {
    TSI_COMM_BARRIER,
    TSI_COMM_BROADCAST,
    TSI_COMM_SCATTER,
    TSI_COMM_GATHER,
    TSI_COMM_ALL_GATHER,
    TSI_COMM_REDUCE,
    TSI_COMM_ALL_REDUCE,
    TSI_COMM_REDUCE_SCATTER,
    TSI_COMM_ALL_TO_ALL,
    TSI_COMM_EXCHANGE,
    TSI_COMM_SEND,
    TSI_COMM_RECV,
    TSI_COMM_KIND_COUNT
} tsi_comm_kind;
const char *tsi_comm_kind_name(tsi_comm_kind kind);

/* A group as engines see it: shared by the ranks of a process that made the same list, interned in
 * the world by its list, never changed. */
typedef struct tsi_team {
    uint64_t hash; /* of the list of ranks; the same on every process */
    int64_t size;
    const int64_t *rank;          /* world rank of member i */
    const char *name;             /* for messages */
    _Atomic(void *) engine_state; /* the engine's, made on first use */
} tsi_team;

/* What must agree between members, and what a message says about each of them. */
typedef struct tsi_fingerprint {
    uint64_t hash;     /* of kind, team, channel, sequence, dtype, reduce, root and agreed counts */
    uint64_t team;     /* tsi_team.hash */
    uint64_t sequence; /* 1, 2, ... per (team, channel), or per (peer, direction) for send/recv */
    int64_t count;     /* elements of the operation's full array */
    int64_t root;      /* or peer; -1: none */
    int32_t kind, dtype, reduce, channel;
    char name[40];               /* shortened */
    char where[56];              /* file:line, shortened from the left */
    char group[32];              /* the group's name, shortened; not part of the hash */
    int64_t rank;                /* world rank of the member that made it; not part of the hash */
    int64_t extent[TS_NDIM_MAX]; /* shape of the operation's full array, or of its part where only
                                    the root */
    int32_t ndim, reserved;      /* knows the full one (scatter, gather) */
} tsi_fingerprint;

typedef enum tsi_work_state { TSI_WORK_NEW, TSI_WORK_POSTED, TSI_WORK_DONE } tsi_work_state;

/* An exchange in which nothing is copied (comm.h, tsi_group_lend): what the work gives and gets. */
struct tsi_storage;
typedef struct tsi_lending {
    struct tsi_storage *const *own; /* in which my send parts lie */
    int64_t own_count;
    ts_part *lent;             /* per receive part: where it lies with its sender */
    struct tsi_storage **held; /* [members][own_count]: retained, of those who lent me something */
} tsi_lending;

/* One rank's side of one operation. Made and freed by comm/; the engine fills engine_* and `state`.
 */
typedef struct tsi_work {
    struct tsi_work *next; /* engine's queues */
    ts_rank *rank;
    ts_group *group;
    tsi_team *team;
    int64_t member; /* my place in the team */
    tsi_fingerprint print;
    tsi_block in, out; /* dtype 0: not used. broadcast: out only (at root, too) */
    const int64_t *send_rows, *recv_rows; /* kept copies; NULL: even */
    const ts_part *send, *recv; /* exchange; kept copies; send is in order of peers, stable */
    int64_t send_count, recv_count;
    int64_t avg_count;          /* exchange: what averages divide by; 0: the parts that combine */
    const tsi_lending *lending; /* exchange: receive parts are read where they lie; NULL: copied */
    int64_t deadline_ns, timeout_ms;
    int32_t asynchronous;  /* somebody else may have to progress it */
    _Atomic int32_t state; /* tsi_work_state; DONE is stored with release after status and error */
    ts_status status;
    int32_t awaited;         /* asynchronous, and its rank will wait for it before long */
    tsi_error_record *error; /* when status != TS_OK; freed with the work */
    uint64_t event;          /* number in the rank's ring */
    const tsi_device *device;
    /* Of memory that is not the host's: what the rank's queue had before the call, and what it must
     * have passed before anything after ts_work_wait (set before DONE). NULL: nothing. */
    tsi_device_event *ready, *done;
    bool lists_stay; /* send and recv are the caller's, who keeps them until it is DONE */
    bool in_order;   /* it may be DONE when its bytes are in queues; else when they have moved */
    void *engine_state;
    int64_t engine_word[4];
    int64_t bytes_read; /* exchange: counted as received, and read by the caller where they lie */
    /* Of memory that is not the host's, while a trace is taken (device/moments.h): when the bytes
     * begin to move in a stream, and when they have (tsi_host.work_moment). */
    bool timed;
    tsi_stream *moved_in;
    tsi_device_event *moment[2];
} tsi_work;

/* ---- a part of an exchange ------------------------------------------------------------------- */
static inline int64_t tsi_part_elements(const ts_part *part)
{
    int64_t count = 1;
    for (int32_t d = 0; d < part->ndim; d++)
        count *= part->extent[d];
    return count;
}
static inline tsi_block tsi_part_block(const ts_part *part, int32_t dtype)
{
    tsi_block block = { .data = part->data, .dtype = dtype, .ndim = part->ndim };
    memcpy(block.extent, part->extent, sizeof block.extent);
    memcpy(block.stride, part->stride, sizeof block.stride);
    return block;
}

/* ---- what each collective means, in closed form, for engines: comm/pieces.c --------------- */
/* The block of my in (sends) that member `peer` gets; false: nothing. Not for exchange. */
bool tsi_work_send_block(const tsi_work *work, int64_t peer, tsi_block *out);
/* The block of my out that comes from member `peer`; false: nothing. For reductions: the whole
 * block each peer contributes to. Not for exchange. */
bool tsi_work_recv_block(const tsi_work *work, int64_t peer, tsi_block *out);
/* Bytes this rank receives from others by information (INTERFACES: accounting). */
int64_t tsi_work_bytes_received(const tsi_work *work);
/* Do two members' descriptions of one operation agree, including the counts they promise each
 * other? false: `sentence` says how they differ and names both sides (rank, operation, place). */
bool tsi_work_agree(const tsi_work *mine, const tsi_work *theirs, char *sentence, size_t size);
/* "all_gather 'layers.3.wq' #17 on group dp (4 x f32, train.c:88)" */
void tsi_fingerprint_text(const tsi_fingerprint *print, char *out, size_t size);

/* ---- what the core offers an engine ---------------------------------------------------------- */
typedef struct tsi_host {
    size_t struct_size;
    tsi_module_host core;
    /* Sets status, error text and who failed first (-1: nobody alone), state DONE; wakes waiters.
     */
    void (*work_finish)(tsi_work *work, ts_status status, int64_t culprit, const char *format, ...)
        TS_PRINTF(4, 5);
    bool (*send_block)(const tsi_work *work, int64_t peer, tsi_block *out);
    bool (*recv_block)(const tsi_work *work, int64_t peer, tsi_block *out);
    void (*fingerprint_text)(const tsi_fingerprint *print, char *out, size_t size);
    const tsi_device *cpu;
    const char *(*status_meaning)(ts_status status);
    /* Status and error of a work, whose state the engine stores itself afterwards. */
    void (*work_conclude)(tsi_work *work, ts_status status, int64_t culprit, const char *sentence);
    /* Fails a rank from any thread, while it is not closed: its next call or wait for its queue
     * ends with the sentence. False: no memory. */
    bool (*rank_failed)(ts_rank *rank, ts_status status, int64_t culprit, const char *sentence);
    /* The bytes of a work move behind what the stream has; called once more: they have. From any
     * thread, before DONE. */
    void (*work_moment)(tsi_work *work, tsi_stream *stream);
} tsi_host;

typedef struct tsi_engine_options {
    size_t struct_size;
    ts_world *world; /* rank counts are filled in by open where the engine decides them */
    const ts_world_options *user;
    const tsi_host *host;
    tsi_launcher launcher; /* who started this process */
    /* Of an engine that stands on another one (nccl): that one, the ranks' device, and whether it
     * was asked for by name, so that it must not do without its library. */
    const struct tsi_engine *inner;
    const tsi_device *device;
    bool by_name;
    /* TESSERA_NODES: so many ranks count as one node, then so many; the last number repeats. 0
     * numbers: nodes are machines. */
    const int64_t *node_sizes;
    int64_t node_size_count;
    void *agreed; /* bytes that open makes those of the first process, everywhere */
    size_t agreed_bytes;
} tsi_engine_options;

/* The node that a rank counts to; 0 without numbers. */
static inline int64_t tsi_node_wanted(const int64_t *sizes, int64_t count, int64_t rank)
{
    int64_t node = 0;
    for (; node < count - 1 && rank >= sizes[node]; node++)
        rank -= sizes[node];
    return count > 0 ? node + rank / sizes[node] : 0;
}

struct tsi_model_counts; /* comm/model/model.h */

typedef struct tsi_engine {
    size_t struct_size;
    const char *name;
    bool direct;  /* an exchange needs no intermediate copy */
    bool no_data; /* model: blocks are not touched */

    /* Process level. open fills world->rank_count, local_count, first_index; where ranks are of
     * several nodes, node_ranks, or in a list `node` the first rank of each rank's node. */
    ts_status (*open)(const tsi_engine_options *options, void **state);
    void (*close)(void *state); /* all works are done or poisoned */

    /* One operation. start posts it and does not block. wait completes it in the calling thread:
     * TS_OK or the error, which is also in the work. test advances without blocking. */
    ts_status (*start)(void *state, tsi_work *work);
    ts_status (*wait)(void *state, tsi_work *work);
    bool (*test)(void *state, tsi_work *work);
    /* (optional) start of several operations together: ts_group_batch_end. Default: one by one. On
     * failure all of them have ended (DONE). */
    ts_status (*start_batch)(void *state, tsi_work *const *work, int64_t count);
    /* (optional) moves asynchronous work of this process forward; called by helper threads, one at
     * a time unless `direct`; returns whether anything is in flight that must be polled. Default:
     * the engine has its own helpers or needs none. */
    bool (*progress)(void *state);

    /* A local rank is gone: failed, returned early, detached. Peers' works end with TS_ERR_PEER and
     * this sentence. Harmless when repeated. status TS_OK: the rank finished cleanly and will call
     * no more. */
    void (*leave)(void *state, ts_rank *rank, ts_status status, const char *sentence);
    /* [coll] after errors: drop everything in flight, agree, start a new epoch. */
    ts_status (*recover)(void *state, ts_rank *rank);
    /* (optional) What every rank is doing, one line each, for the post-mortem; async-signal-unsafe.
     */
    void (*describe)(void *state, char *out, size_t size);
    /* (optional) modelled seconds of this rank and its message and byte counts per link class. */
    ts_status (*model_read)(void *state, ts_rank *rank, struct tsi_model_counts *out);
    /* (optional) The rank will call no more, whatever leave said before: recover need not wait for
     * it. */
    void (*gone)(void *state, ts_rank *rank);
    /* (optional) All ranks of this process have left cleanly: waits for those of other processes,
     * at most for the timeout. TS_ERR_PEER if one of them failed: `sentence` says which and why. */
    ts_status (*farewell)(void *state, char *sentence, size_t size);
    /* (optional) world->interrupted was set: wakes the ranks of this process that wait, so that
     * they find it. Async-signal-safe. Default: they look every few milliseconds. */
    void (*interrupt)(void *state);
    /* (optional) Has a rank failed, so that what others wait for may never come? Default: no. */
    bool (*faulty)(void *state);
    /* (optional) Works that were DONE in queues: returns when all of the rank have moved or were
     * ended, at the latest by their deadlines. Default: queues end by themselves. */
    void (*settle)(void *state, ts_rank *rank);
    /* (optional) Will that rank of the world call no more, however it ended? Default: no. */
    bool (*absent)(void *state, int64_t rank);
    /* (none where no_data) The rank waits for another one of the world outside of any operation, as
     * others find who look why it does not come; peer -1: not any more. From the rank's thread. */
    void (*awaits)(void *state, ts_rank *rank, int64_t peer);
    /* (the same) It gives that up, after waited_ms, or since that rank is gone (0): works of all
     * end with TS_ERR_PEER and a sentence that names who did not come, and `doing`. */
    void (*unmet)(void *state, ts_rank *rank, int64_t peer, int64_t waited_ms, const char *doing);
    /* (optional) Does start copy memory of that device, so that an operation has its bytes from
     * before those of its channel that have not ended? Default: no. */
    bool (*copies_early)(void *state, const tsi_device *device);
} tsi_engine;

/* The structs that an engine in a module shares with the core (base/rank.h has the last two). */
#define TSI_ENGINE_SEAM(ROW)                                                                       \
    ROW(tsi_engine)                                                                                \
    ROW(tsi_engine_options)                                                                        \
    ROW(tsi_host)                                                                                  \
    ROW(tsi_work)                                                                                  \
    ROW(tsi_fingerprint)                                                                           \
    ROW(tsi_team)                                                                                  \
    ROW(tsi_error_record)                                                                          \
    ROW(tsi_device)                                                                                \
    ROW(tsi_block)                                                                                 \
    ROW(ts_part)                                                                                   \
    ROW(ts_world_options)                                                                          \
    ROW(struct ts_world)                                                                           \
    ROW(struct ts_rank)

#endif
