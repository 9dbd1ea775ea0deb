/* SPDX-License-Identifier: Apache-2.0 */
/* slots.h - what comm/ keeps in its slots: per world, per rank, per group, per operation.
 *
 *   tsi_comm_world   engine, teams interned by their list, helper threads
 *   tsi_comm_rank    seats, groups, operations in flight, the open batch; one thread at a time
 *   tsi_seat         one rank's sequence numbers in one team: shared by all its handles of that
 *                    list
 *   ts_group         a handle: the list it was made from until its first use, then team and seat
 *   ts_work          one operation of one rank, or a batch of them
 *
 * INV: sequence numbers belong to (rank, team), never to a handle, so that two handles of one list,
 * and a list made again after its release, continue the same numbering as the peers. */
#ifndef TSI_COMM_SLOTS_H
#define TSI_COMM_SLOTS_H

#include <pthread.h>

#include "base/hash.h"
#include "base/rank.h"
#include "comm/comm.h"
#include "comm/helpers.h"

typedef struct tsi_comm_world {
    ts_world *world;
    const tsi_engine *engine;
    void *engine_state;
    pthread_mutex_t lock; /* guards `team` */
    tsi_map team;         /* hash of the list -> tsi_team */
    tsi_helpers helpers;
} tsi_comm_world;

typedef struct tsi_seat {
    tsi_team *team;
    uint64_t sequence[TS_CHANNEL_COUNT];
    uint64_t *sent, *received; /* per peer; NULL until the first send or receive */
} tsi_seat;

typedef struct tsi_copies tsi_copies; /* work.c: copies of lists, for use again */

typedef struct tsi_comm_rank {
    ts_rank *rank;
    tsi_comm_world *world;
    tsi_map seat;                /* team -> tsi_seat */
    ts_group *world_group;       /* made on first use */
    ts_group *groups;            /* all handles, so that none leaks */
    ts_work *flight;             /* asynchronous operations that were not waited for yet */
    ts_work *spare;              /* freed handles, kept for reuse */
    tsi_copies *copies;          /* freed ones, a few */
    ts_work *batch, **batch_end; /* issued since batch_begin, not started */
    uint64_t epoch;              /* recoveries: all ranks of the world have as many */
    bool batch_open;
    bool left;                  /* tsi_comm_leave was called */
    bool no_loans;              /* as if peers' memory could not be read */
    bool no_following;          /* as if no operation could follow another one */
    struct tsi_window *windows; /* of groups (window.h) */
} tsi_comm_rank;

struct ts_group {
    tsi_comm_rank *comm;
    ts_group *previous, *next; /* in comm->groups */
    int64_t references;
    int64_t size, member; /* member -1: the rank is outside */
    const int64_t *ranks; /* world ranks; NULL: 0, 1, 2, ... (all of the world) */
    int64_t *own;         /* the copy of the list until the team exists; freed then */
    char *name;           /* the caller's, or NULL */
    int64_t timeout_ms;
    tsi_team *team; /* NULL until first use */
    tsi_seat *seat;
};

struct ts_work {
    tsi_work base;
    tsi_comm_rank *comm;
    ts_work *previous, *next; /* in comm->flight; next also in comm->spare and comm->batch */
    ts_work *before;          /* waited for with this one, and first; linked as any other */
    void *kept;               /* copies of rows and parts */
    ts_work *inside;          /* a batch: its operations, linked by next; base is unused then */
    struct again *again;      /* of a step that is recorded: what issues it once more (again.c) */
    int64_t asked_until_ns;   /* ts_work_test found it unfinished: asking ends then; 0: never */
    bool batch;
    bool on_stack; /* a blocking call: belongs to the caller's frame */
    bool standing; /* belongs to who issues it again and again (tsi_standing) */
    bool linked;   /* into comm->flight */
    bool stale;    /* of an epoch before the last recover: its error fails nobody any more */
};

tsi_comm_world *tsi_comm_of_world(const ts_world *world); /* NULL before tsi_comm_open */
tsi_comm_rank *tsi_comm_of_rank(ts_rank *rank);           /* made on first use; NULL: recorded */

/* group.c: team and seat of the group, made on first use. */
ts_status tsi_group_bind(ts_group *group);
void tsi_group_retain(ts_group *group);
void tsi_group_forget_all(tsi_comm_rank *comm); /* frees every handle and seat */
void tsi_seat_reset_all(tsi_comm_rank *comm);   /* a new epoch counts from one again */
ts_status tsi_seat_peers(tsi_seat *seat);       /* makes sent and received */
void tsi_team_free(tsi_team *team);

void tsi_windows_release(tsi_comm_rank *comm); /* window.c */

/* work.c: the life of a ts_work. */
/* Memory for what an operation keeps of its caller's lists. NULL: there is none (not recorded). */
void *tsi_copies_take(tsi_comm_rank *comm, size_t bytes);
void tsi_copies_put(tsi_comm_rank *comm, void *memory); /* accepts NULL */
ts_work *tsi_work_take(tsi_comm_rank *comm);            /* zeroed, not linked; NULL: recorded */
void tsi_work_tell(ts_work *work);                      /* observers: it was waited for */
void tsi_work_put(ts_work *work);                       /* frees what it keeps; unlinks it */
void tsi_work_link(ts_work *work);                      /* into comm->flight */
void tsi_work_disown(ts_work *work);        /* a standing one goes, or is one like others */
ts_status tsi_work_complete(ts_work *work); /* waits, records the error; does not free */
ts_status tsi_work_launch(ts_work *work);   /* start, or run at once when alone */
/* What the rank's queue has from here on runs when the operation's bytes have moved. Once. */
void tsi_work_absorb(tsi_work *work);
/* When its bytes move, and its event as the ring of its rank has it. */
void tsi_work_moment(tsi_work *work, tsi_stream *stream);
tsi_event tsi_work_event(const tsi_work *work);
void tsi_work_forget_all(tsi_comm_rank *comm); /* all in flight are complete */
void tsi_batch_drop(tsi_comm_rank *comm);      /* frees what was issued and never started */
/* Status and error record of a work, without marking it done; the event of an asynchronous one
 * ends. */
void tsi_work_conclude(tsi_work *work, ts_status status, int64_t culprit, const char *sentence);
void tsi_work_finish(tsi_work *work, ts_status status, int64_t culprit, const char *format, ...)
    TS_PRINTF(4, 5);

/* fingerprint.c */
void tsi_fingerprint_seal(tsi_work *work); /* computes print.hash from the rest of the work */

/* Copies of an operation that are not enqueued yet. No target overlaps another one, nor what
 * another one reads, so they may run in any order. */
enum { TSI_MOVES_MAX = 64 };
typedef struct tsi_moves {
    int64_t count;
    tsi_block to[TSI_MOVES_MAX], from[TSI_MOVES_MAX];
} tsi_moves;

/* Who moves bytes: its copies and folds run in the order of the stream; NULL: at once. */
typedef struct tsi_mover {
    const tsi_device *device;
    tsi_stream *stream;
    tsi_moves *moves; /* where copies are put together; NULL: each is enqueued as it comes */
} tsi_mover;

/* carry.c: a copy of the operation; it is enqueued by the next flush at the latest. */
ts_status tsi_mover_copy(tsi_mover by, const tsi_block *to, const tsi_block *from);
ts_status tsi_mover_flush(tsi_mover by);
/* carry.c: a fold, behind the copies before it. */
ts_status tsi_mover_fold(tsi_mover by, const tsi_block *to, const tsi_block *const *from,
                         int64_t count, ts_reduce reduce, int64_t avg_count);

/* carry.c: one of `parts` equal parts of an operation whose `count` works are all in this process,
 * in the order of members. Parts of one operation write disjoint memory and may run at the same
 * time. On failure `sentence` says why. */
ts_status tsi_move_part(tsi_mover by, tsi_work *const *work, int64_t count, int64_t part,
                        int64_t parts, char *sentence, size_t size);
/* carry.c: why a copy failed: what a device that is gone says, else what the status means. */
const char *tsi_move_reason(const tsi_device *device, ts_status status);
/* exchange.c: what one member of an exchange receives. */
ts_status tsi_move_exchange(tsi_mover by, tsi_work *const *work, int64_t count, int64_t member,
                            char *sentence, size_t size);
/* exchange.c: elements of `from` into `to`, both in row-major order, any two shapes of equal count.
 */
ts_status tsi_move_stream(tsi_mover by, const tsi_block *to, const tsi_block *from);

/* describe.c: "all_reduce 'x' (a.c:12), 2.1 s ago": what a rank of this process did last. */
void tsi_rank_doing(const ts_rank *rank, char *out, size_t size);

#endif
