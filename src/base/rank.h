/* SPDX-License-Identifier: Apache-2.0 */
/* rank.h - the bodies of ts_rank and ts_world as far as every layer may know them.
 *
 * A layer keeps its own state in its slot, made on first use, destroyed when the rank or world
 * closes, in descending order of slots (high layers first). So low layers need not know high ones:
 *
 *   ts_world --+-- rank[0] --+-- error, event ring, call site
 *              |             +-- slot[DEVICE] device and queue, slot[ARRAY] caching allocator ...
 *              +-- slot[LAYOUT] interned meshes and layouts, slot[PLAN] plans, slot[COMM] engine */
#ifndef TSI_BASE_RANK_H
#define TSI_BASE_RANK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/error.h"
#include "base/observe.h"
#include "base/ring.h"
#include "tessera/world.h"

typedef enum tsi_slot {
    TSI_SLOT_THREADS,
    TSI_SLOT_DEVICE,
    TSI_SLOT_LAYOUT,
    TSI_SLOT_ARRAY,
    TSI_SLOT_PLAN,
    TSI_SLOT_COMM,
    TSI_SLOT_TENSOR,
    TSI_SLOT_OP,
    TSI_SLOT_AUTOGRAD,
    TSI_SLOT_RUNTIME,
    TSI_SLOT_NN,
    TSI_SLOT_PARALLEL,
    TSI_SLOT_COUNT
} tsi_slot;

typedef struct tsi_slot_state {
    _Atomic(void *) state;
    void (*destroy)(void *state);
} tsi_slot_state;

typedef struct tsi_places tsi_places; /* place.c */
struct tsi_kept;                      /* keep.h */
struct tsi_moments;                   /* device/moments.h */

/* What another thread asks of a rank: run on the rank's own thread at its next call (INV-16). */
typedef struct tsi_post {
    struct tsi_post *next;
    void (*run)(ts_rank *rank, struct tsi_post *post);
} tsi_post;

struct ts_world {
    int64_t rank_count;  /* all processes */
    int64_t local_count; /* ranks of this process */
    int64_t first_index; /* world index of local rank 0 (mpi: process * local_count) */
    ts_rank **rank;      /* local_count of them */
    uint64_t seed;
    int64_t timeout_ms;
    int64_t handles_kept; /* of ended tensors; 0: by the number of ranks */
    void *stream;         /* of the program, for its one rank; NULL: the rank's own */
    pthread_mutex_t lock; /* guards slot creation */
    tsi_slot_state slot[TSI_SLOT_COUNT]; /* state read with tsi_world_slot */
    _Atomic uint32_t generation;         /* of the topology; part of plan keys */
    _Atomic int32_t interrupted;         /* 1: waits end with TS_ERR_INTERRUPTED until recover */
    _Atomic int32_t interrupters;        /* who tell ranks of it now: the engine stays for them */
    int64_t local_first; /* ranks of this machine before those of this process; -1: not asked for:
                            all own the same device, else each takes the next of its kind */
    /* Of a world without data: its ranks are meant as threads of one process; its kernels take the
     * scratch that the host's would take of a rank's pool. */
    int32_t together, scratch;
    /* Every so many neighbours (the last perhaps fewer) are of one node; 0: nothing is known. Where
     * that does not say it all, `node` has the node of each rank, from 0 in the order of their
     * first ranks; else it is NULL. */
    int64_t node_ranks;
    int32_t *node;
};

/* The node of a rank; -1: nothing is known. */
static inline int64_t tsi_world_node(const ts_world *world, int64_t rank)
{
    if (world->node) return rank < world->rank_count ? world->node[rank] : -1;
    return world->node_ranks > 0 ? rank / world->node_ranks : -1;
}

struct ts_rank {
    ts_world *world;
    int64_t index;           /* in the world */
    int64_t local_index;     /* in the process */
    tsi_error_record error;  /* first pending error; error.error.status TS_OK: healthy */
    tsi_error_record caught; /* the last one a scope or recover took */
    /* Called once when the rank becomes failed (any blast), on its thread, perhaps under locks of
     * low layers: it may only post ("peers are told at once"). Set by the layer that has peers. */
    void (*on_error)(ts_rank *rank, const ts_error *error);
    tsi_ring *ring;
    const char *where;  /* place of the latest public call, or ""; lives as long as the rank */
    tsi_places *places; /* what ts_here was told; NULL: nothing yet */
    const char *label;  /* innermost scope's fully qualified label, or "" */
    pthread_t thread;   /* attached thread, if attached */
    _Atomic int32_t attached;
    int32_t dry;    /* a kernel takes its scratch and computes nothing (tsi_dry) */
    int32_t placed; /* a program has said where it is: places of the library's own count no more */
    int32_t traced; /* so many want the events that are not always kept (ts_rank_trace_begin) */
    _Atomic int64_t helped_ns;   /* computed for other ranks in waits (device/guests.h) */
    struct tsi_moments *moments; /* when work of its queues ran; NULL: nobody wants it, or none */
    tsi_observers observers;
    struct tsi_kept *kept;     /* of the step that is recorded or run again; NULL: none */
    _Atomic(tsi_post *) inbox; /* latest first; emptied by the rank's thread */
    _Atomic(const tsi_error_record *) told; /* what its inbox will fail it with; NULL: nothing */
    tsi_slot_state slot[TSI_SLOT_COUNT];
};

/* Is the kernel that asks run for what it takes alone? Then its operands have no data: it reads and
 * writes none of them, loops (tsi_parallel_for) run no piece, and scratch is taken as ever. */
static inline bool tsi_dry(const ts_rank *rank)
{
    return rank && rank->dry;
}

/* Tells the rank's observers, if there are any for it. */
static inline void tsi_tell(ts_rank *rank, tsi_news news, void *what)
{
    if (tsi_observers_want(&rank->observers, news))
        tsi_observers_tell(&rank->observers, news, what);
}

/* The text as one that lives as long as the rank; equal texts are one pointer. (place.c) */
const char *tsi_place_of(ts_rank *rank, const char *text);
/* The place of a call of the library's own, a literal, for the rank of this thread: it counts until
 * a program says where it is. NULL, which is no place (TS_HERE in nn/module.h). */
const char *tsi_here_within(const char *place);
void tsi_places_destroy(tsi_places *places);

/* Fails the rank, if it is healthy, with a copy of the record. Only its own thread calls it. */
void tsi_rank_take_error(ts_rank *rank, const tsi_error_record *record);

/* The rank attached to this thread, or NULL: the one thread-local of the library, read several
 * times in a call. */
extern TSI_TLS_DIRECT _Thread_local ts_rank *tsi_attached;
static inline ts_rank *tsi_rank_current(void)
{
    return tsi_attached;
}
void tsi_rank_set_current(ts_rank *rank);

/* The world's slot, made by `create` under the lock if it is empty; NULL if create failed
 * (recorded). */
void *tsi_world_slot(ts_world *world, tsi_slot slot, void *(*create)(ts_world *world),
                     void (*destroy)(void *state));
/* The rank's slot; only its own thread asks. */
void *tsi_rank_slot(ts_rank *rank, tsi_slot slot, void *(*create)(ts_rank *rank),
                    void (*destroy)(void *state));

/* The rank's slot as it is, NULL if nobody made it yet. */
static inline void *tsi_slot_get(const ts_rank *rank, tsi_slot slot)
{
    return atomic_load_explicit(&rank->slot[slot].state, memory_order_relaxed);
}

/* Bodies without an engine, for the runtime and for tests of low layers: `local_count` ranks of a
 * world of `rank_count`, the first with index `first_index`. */
ts_status tsi_world_make(int64_t rank_count, int64_t local_count, int64_t first_index,
                         int64_t events, ts_world **out);
void tsi_world_unmake(ts_world *world); /* destroys ranks, then slots, descending */
/* Settles nodes: `node` has the first rank of each rank's node until now. NULL: node_ranks as it
 * is, 0 of which means one node. */
void tsi_world_settle_nodes(ts_world *world);

/* TS_OK if the rank is this thread's and healthy; else the status to return (recorded as the rules
 * of world.h say). Every recorded function begins with it. What others posted is done first. */
ts_status tsi_rank_enter(ts_rank *rank);
/* Would the gate let it through as it is? For calls that are made very often. */
static inline bool tsi_rank_is_ready(const ts_rank *rank)
{
    return TSI_LIKELY(rank == tsi_rank_current() && rank->error.error.status == TS_OK &&
                      atomic_load_explicit(&rank->inbox, memory_order_relaxed) == NULL);
}

/* Any thread, as long as somebody keeps the rank from being closed meanwhile. */
void tsi_rank_tell(ts_rank *rank, tsi_post *post);
/* Does what was posted. Only the rank's thread, or whoever closes it. */
void tsi_rank_drain(ts_rank *rank);

#endif
