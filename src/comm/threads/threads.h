/* SPDX-License-Identifier: Apache-2.0 */
/* threads.h - the bodies of the threads engine: ranks are threads that read each other's memory.
 *
 *   tsi_threads --+-- chair[rank]   where that rank waits: one word, one sleeper
 *                 +-- hall          a team's place, made on first use
 *                       +-- lane[channel]  meetings in turn, see lane.c
 *                       +-- inbox[member]  sends and receives that have not met, see inbox.c
 *
 * INV: a work's memory is touched by others only between its arrival and the store of DONE in its
 * state. INV-2: everything else here lives as long as the engine, so that a late thread finds valid
 * memory and, by the sequence number in every claim, that it came too late. INV-3: the engine is at
 * fault before any meeting is poisoned; while it is, nothing new starts, what is complete in number
 * (a full meeting, a matched pair) is carried out, and all else ends. */
#ifndef TSI_COMM_THREADS_THREADS_H
#define TSI_COMM_THREADS_THREADS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/rank.h"
#include "base/thread.h"
#include "comm/slots.h"

typedef struct tsi_threads tsi_threads;
typedef struct tsi_hall tsi_hall;

enum { TSI_LANE_DEPTH = 4 }; /* operations of a lane that can gather members at once */
enum {
    TSI_WORK_PAIRED = 3,
    TSI_WORK_MOVING = 4
}; /* states of point to point, beside those of engine.h */

typedef struct tsi_chair {
    _Alignas(TSI_CACHE_LINE) tsi_word word;
    _Atomic uint32_t sleeping;
    _Atomic uint32_t rung;           /* since it sat down */
    _Atomic uint32_t gone;           /* the rank will call no more */
    _Atomic uint32_t recovers;       /* it waits in recover */
    _Atomic(tsi_hall *) hall;        /* of the operation it waits in */
    _Atomic(struct tsi_lane *) lane; /* the same; NULL: point to point, or no operation */
    _Atomic uint64_t sequence;       /* the same, in that lane */
    _Atomic int64_t peer; /* of point to point, or outside of works: the other rank; else -1 */
} tsi_chair;

/* One operation of a lane. The turn holds its sequence number and its phase. */
typedef enum tsi_phase { TSI_PHASE_GATHER, TSI_PHASE_CHECK, TSI_PHASE_RUN } tsi_phase;
/* Members that wait later, and members that may not wait for long: helpers are asked. */
typedef enum tsi_absence { TSI_ABSENT_SOON_BACK = 1, TSI_ABSENT = 2 } tsi_absence;
typedef struct tsi_meeting {
    _Alignas(TSI_CACHE_LINE) _Atomic uint64_t turn; /* sequence << 2 | phase */
    _Atomic uint32_t arrived;      /* members; with TSI_POISONED: it will never be full */
    _Atomic uint32_t asynchronous; /* tsi_absence: who may not be there when it is full */
    _Atomic uint32_t on_device;    /* some blocks are not the host's: see streams.c */
    _Atomic uint32_t done;         /* parts */
    _Atomic uint32_t failed;       /* the first failure wrote the fields below */
    _Atomic uint64_t cursor;       /* sequence << 32 | next part that nobody was offered */
    tsi_work **work;               /* by member */
    _Atomic uint32_t *claimed;     /* by part: the sequence it was claimed in, else an older one */
    _Atomic uint32_t *stamp;       /* by member: the sequence it arrived in */
    ts_status status;
    int64_t culprit; /* world rank, -1: nobody alone */
    char text[480];
} tsi_meeting;
#define TSI_POISONED 0x80000000u

typedef struct tsi_lane {
    tsi_hall *hall;
    _Atomic uint64_t head;          /* the sequence whose turn it is to run */
    _Atomic uint32_t pending_count; /* works that came more than TSI_LANE_DEPTH ahead */
    pthread_mutex_t lock;           /* guards pending, and arrivals from it */
    tsi_work *pending;
    struct tsi_lane *ready_next; /* in tsi_threads.ready, guarded by ready_lock */
    bool ready_queued;
    tsi_mover *mover;       /* by part; of devices, made on first use (streams.c) */
    tsi_device_event *last; /* of mover[0]: the operations before have moved; NULL: they have */
    tsi_meeting meeting[TSI_LANE_DEPTH];
} tsi_lane;

typedef struct tsi_inbox {
    pthread_mutex_t lock;
    tsi_work *send, *recv;  /* in order of arrival, linked by next */
    pthread_mutex_t moving; /* of what is below */
    tsi_mover mover;        /* of devices, made on first use (streams.c) */
    tsi_work *spent;        /* packets that its stream may still read, linked by next */
} tsi_inbox;

struct tsi_hall {
    tsi_threads *engine;
    tsi_team *team;
    tsi_hall *next;
    _Atomic(tsi_lane *) lane[TS_CHANNEL_COUNT];
    _Atomic(tsi_inbox *) inbox; /* one per member */
};

struct tsi_threads {
    ts_world *world;
    tsi_chair *chair;                /* by local index */
    int64_t spin_ns, spin_device_ns; /* before a rank sleeps; in operations on memory of devices */
    int64_t
        inline_bytes; /* operations that move at most this much are carried out by who comes last */
    int64_t cores;
    pthread_mutex_t lock; /* guards halls, fault (until `faulty` is set), recovering, lost_text */
    tsi_hall *halls;
    _Atomic uint32_t faulty;
    ts_error fault; /* text points to fault_text */
    char fault_text[TSI_ERROR_TEXT_MAX];
    char lost_text[TSI_ERROR_TEXT_MAX]; /* why the first rank gave up recovering; "": none did */
    _Atomic uint32_t departures;        /* ranks that are gone */
    _Atomic uint32_t epoch;
    int64_t recovering;
    pthread_mutex_t ready_lock;
    tsi_lane *ready;       /* lanes with parts that nobody may be there to run */
    tsi_work *pairs;       /* matched receives that nobody runs yet, linked by next */
    _Atomic uint32_t busy; /* helpers inside progress */
};

/* engine.c */
tsi_hall *tsi_hall_of(tsi_threads *engine, tsi_team *team); /* NULL: out of memory, not recorded */
/* Ends a work: status, sentence, DONE; wakes its rank. The work may be gone on return. */
void tsi_threads_finish(tsi_threads *engine, tsi_work *work, ts_status status, int64_t culprit,
                        const char *sentence);
static inline tsi_chair *tsi_chair_of(tsi_threads *engine, const ts_rank *rank)
{
    return &engine->chair[rank->local_index];
}
/* Wakes the rank if it sleeps. What it shall see was stored before with memory_order_seq_cst. */
/* True: it slept, and nobody had rung: one that was rung before may have what it waits for, and
 * run no parts. */
static inline bool tsi_chair_ring(tsi_chair *chair)
{
    if (!atomic_load_explicit(&chair->sleeping, memory_order_seq_cst)) return false;
    bool first = !atomic_exchange_explicit(&chair->rung, 1, memory_order_seq_cst);
    atomic_fetch_add_explicit(&chair->word, 1, memory_order_seq_cst);
    tsi_wake_one(&chair->word);
    return first;
}

/* fault.c: the first failure of the epoch; later ones are dropped. */
void tsi_threads_fault(tsi_threads *engine, int64_t culprit, ts_status status,
                       const char *sentence);
bool tsi_threads_faulty(const tsi_threads *engine);
ts_status tsi_fault_status(const tsi_threads *engine); /* what those end with that it ends */
/* The world was interrupted and nobody has said so yet. */
bool tsi_threads_interrupted(const tsi_threads *engine);
void tsi_fault_interrupted(tsi_threads *engine, const ts_rank *rank);
void tsi_threads_interrupt(void *state); /* async-signal-safe */
/* The sentence for a rank whose operation the fault ended. */
void tsi_fault_text(const tsi_threads *engine, const tsi_work *work, char *out, size_t size);
/* Nobody will come for this work: names whom it waits for. For the deadline and for ranks that are
 * gone. */
void tsi_fault_stalled(tsi_threads *engine, const tsi_work *work);
bool tsi_fault_gone(tsi_threads *engine,
                    const tsi_work *work); /* true: somebody was, and is named */
/* Of waits outside of works. */
void tsi_threads_awaits(void *state, ts_rank *rank, int64_t peer);
void tsi_threads_unmet(void *state, ts_rank *rank, int64_t peer, int64_t waited_ms,
                       const char *doing);
ts_status tsi_threads_recover(void *state, ts_rank *rank);
void tsi_threads_leave(void *state, ts_rank *rank, ts_status status, const char *sentence);
void tsi_threads_gone(void *state, ts_rank *rank);

/* lane.c: collectives */
tsi_lane *tsi_lane_of(tsi_hall *hall, int32_t channel); /* NULL: out of memory, not recorded */
bool tsi_lane_post(tsi_lane *lane, tsi_work *work);     /* false: it came into a poisoned meeting */
bool tsi_lane_help(tsi_lane *lane,
                   int64_t member); /* runs parts; own ones first; true: it ran any */
bool tsi_lane_has_parts(tsi_lane *lane);
bool tsi_lane_withdraw(tsi_lane *lane,
                       tsi_work *work); /* true: nobody will touch the work any more */
/* The oldest operation up to `sequence` that lacks members; 0: none. `missing` is filled with up to
 * `most` of them, `count` says how many there are. */
uint64_t tsi_lane_missing(tsi_lane *lane, uint64_t sequence, int64_t *missing, int64_t most,
                          int64_t *count);
/* Has the member not come to an operation up to `sequence` that is not complete? */
bool tsi_lane_lacks(tsi_lane *lane, uint64_t sequence, int64_t member);
void tsi_lane_reset(tsi_lane *lane);
void tsi_lane_destroy(tsi_lane *lane);

/* streams.c: operations on memory of devices */
/* Moves a part: on a device in a stream behind all members' queues, else at once. On failure `text`
 * says why. */
ts_status tsi_lane_move(tsi_lane *lane, const tsi_meeting *m, int64_t part, int64_t parts,
                        char *text, size_t size);
/* All blocks lie on one device: one part is all there is. */
bool tsi_lane_one_stream(const tsi_lane *lane, const tsi_meeting *m);
/* Before the parts of an operation are offered. */
void tsi_lane_parted(tsi_lane *lane, const tsi_meeting *m);
/* All `parts` were moved or enqueued: sets `done` of the works. */
void tsi_lane_moved(tsi_lane *lane, const tsi_meeting *m, int64_t parts, bool failed);
void tsi_lane_movers_end(tsi_lane *lane);
/* `from`'s block to `target`, which is `to`'s, or a packet's (to NULL). Sets `done` of both. */
ts_status tsi_inbox_move(tsi_inbox *box, tsi_work *from, tsi_work *to, const tsi_block *target);
void tsi_inbox_rest(tsi_inbox *box); /* the host waits until nothing of it moves */
void tsi_inbox_mover_end(tsi_inbox *box);

/* inbox.c: point to point */
tsi_inbox *tsi_inboxes_of(tsi_hall *hall); /* NULL: out of memory, not recorded */
void tsi_inbox_post(tsi_hall *hall, tsi_inbox *boxes, tsi_work *work);
bool tsi_inbox_help(tsi_threads *engine, tsi_work *work); /* runs its pair if nobody does */
bool tsi_inbox_withdraw(tsi_hall *hall, tsi_work *work);
bool tsi_inbox_run_any(tsi_threads *engine); /* for helpers */
void tsi_inboxes_reset(tsi_inbox *boxes, int64_t count);
void tsi_inboxes_destroy(tsi_inbox *boxes, int64_t count);

#endif
