/* SPDX-License-Identifier: Apache-2.0 */
/* internal.h - the parts of the mpi engine and what they know of each other.
 *
 *   engine.c    the vtable: start, wait, test, progress
 *   open.c      MPI itself: open, close, exit
 *   begin.c     opening by a deadline, whatever MPI does
 *   lane.c      queues per (group, channel) and per pair; messages find their operation
 *   op.c        an operation as streams (what peers may read) and jobs (what I make out of them)
 *   job.c       runs jobs: copies and folds
 *   range.c     walking over strided blocks
 *   pull.c      reading a peer's memory
 *   wire.c      messages through rings in memory
 *   net.c       messages and data through MPI
 *   segment.c   the shared memory of a node
 *   fail.c      death, mismatch, stall, leaving, recovering
 *   host.c      broken invariants
 *
 * One protocol for all transports, pull only, per operation and pair:
 *
 *   OFFER  ->   fingerprint, and either the (small) data itself or where it lies
 *   <- OFFER    nothing moves before all members' offers were compared (INV: verify, then move)
 *   GET/DATA    only where the peer's memory cannot be read directly
 *   READY  ->   all_reduce: my slice of the result may be read now
 *   DONE   ->   I shall not read your memory any more: the operation ends with the last DONE
 *
 * Locks, outer to inner: a rank's lock, the net lock, an inbox lock or the poison's. Slots and
 * rings have none. */
#ifndef TSI_COMM_MPI_INTERNAL_H
#define TSI_COMM_MPI_INTERNAL_H

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/rank.h"
#include "comm/engine.h"

typedef struct tsi_mpi tsi_mpi;
typedef struct tsi_mpi_rank tsi_mpi_rank;
typedef struct tsi_mpi_op tsi_mpi_op;
typedef struct tsi_lane tsi_lane;

/* ---- messages ---------------------------------------------------------------------------- */
typedef enum tsi_message_kind {
    TSI_MESSAGE_SKIP, /* ring: the rest up to the ring's end is empty */
    TSI_MESSAGE_OFFER,
    TSI_MESSAGE_READY,
    TSI_MESSAGE_GET,
    TSI_MESSAGE_DATA,
    TSI_MESSAGE_DONE,
    TSI_MESSAGE_LEAVE,
    TSI_MESSAGE_ABORT,
    TSI_MESSAGE_RECOVER
} tsi_message_kind;

enum { TSI_CHANNEL_TO_RECV = -1, TSI_CHANNEL_TO_SEND = -2 }; /* point to point: the lane's end */

/* A message; the payload follows. OFFER and READY: value = bytes, base, list address, list length;
 * payload = fingerprint (OFFER), then the data if INLINE, else the block if the list has one.
 * GET: value = offset, bytes, id, tag, phase. DATA: value = id, offset in the get; payload = data.
 * LEAVE and ABORT: value = status, rank; payload = text. RECOVER: nothing. */
typedef struct tsi_message {
    uint32_t bytes; /* all of it, a multiple of 8 */
    uint16_t kind;
    uint16_t is_inline;
    uint32_t epoch;
    int32_t channel;
    int64_t from, to; /* world ranks */
    int64_t member;   /* the sender's place in the group */
    uint64_t team, sequence;
    int64_t value[5];
} tsi_message;

typedef struct tsi_parcel { /* a message kept in a list */
    struct tsi_parcel *next;
    MPI_Request request; /* net: sending */
    tsi_message message;
} tsi_parcel;

typedef struct tsi_parcel_list {
    tsi_parcel *first, *last;
} tsi_parcel_list;

/* ---- the shared segment: a head, a slot per rank, a ring per ordered pair ---------------- */
typedef enum tsi_slot_life {
    TSI_LIFE_NONE,
    TSI_LIFE_OPEN,
    TSI_LIFE_LEFT,
    TSI_LIFE_FAILED,
    TSI_LIFE_CLOSED,
    TSI_LIFE_EXITING
} tsi_slot_life;

enum { TSI_NOBODY = -1, TSI_TWO_DISAGREE = -2 };

typedef struct tsi_poison {
    int64_t rank; /* who failed first, or one of these two */
    int32_t status;
    char text[TSI_ERROR_TEXT_MAX];
} tsi_poison;

typedef struct tsi_mpi_slot {
    _Alignas(64) _Atomic uint32_t bell; /* counts messages: the word a rank sleeps on */
    _Atomic uint32_t asleep;
    _Alignas(64) _Atomic int32_t life;
    _Atomic int32_t pid;
    _Atomic uint64_t probe;                /* address of a word with a known value */
    _Alignas(64) _Atomic uint32_t version; /* odd while print is written */
    _Atomic uint32_t busy;                 /* 1: in the operation, 0: it was the last one */
    _Atomic int64_t waits_for;             /* world rank + 1; 0: nobody, as far as it knows */
    _Atomic uint32_t offering;             /* 1: it offers an operation to its peers just now */
    tsi_fingerprint print;
    tsi_poison poison[2]; /* what this rank has to say, by the parity of the epoch */
} tsi_mpi_slot;

typedef struct tsi_mpi_ring {
    _Alignas(64) _Atomic uint64_t head; /* bytes ever written */
    _Alignas(64) _Atomic uint64_t tail; /* bytes ever read */
    _Alignas(64) char data[];
} tsi_mpi_ring;

typedef struct tsi_segment {
    char *base;
    size_t bytes, ring_bytes;
    int64_t count;            /* ranks in it */
    _Atomic uint64_t *poison; /* epoch << 32 | place + 1 of who spoke first; 0: nobody yet */
    tsi_mpi_slot *slot;
    char *rings;
    int *pidfd;    /* per place; -1: not open */
    int64_t *rank; /* world rank of each place */
} tsi_segment;

/* ---- ranges of blocks -------------------------------------------------------------------- */
/* `bytes` bytes from byte `base` on of the elements of a list of blocks, row-major, one after
 * another. */
typedef struct tsi_range {
    const tsi_block *block;
    int64_t count;
    int64_t base, bytes;
} tsi_range;

typedef struct tsi_cursor_at { /* a position in a list of blocks */
    const tsi_block *block;
    int64_t left; /* blocks, this one included */
    int64_t size; /* bytes of an element */
    int64_t index[TS_NDIM_MAX];
} tsi_cursor_at;

/* ---- operations -------------------------------------------------------------------------- */
typedef struct tsi_stream_in { /* what a peer lets me read in a phase */
    bool known;
    bool fetched;    /* the list was copied here */
    tsi_range range; /* addresses of the peer's memory */
    tsi_block one;
    uint64_t list;
    tsi_block *fetched_list;
    tsi_parcel *parcel; /* data came with the message */
    const char *data;
} tsi_stream_in;

typedef struct tsi_stream_out { /* what I let a peer (or myself) read */
    tsi_range range;
    bool is_inline;
} tsi_stream_out;

typedef struct tsi_mpi_peer {
    int64_t rank;
    tsi_stream_in in[2];
    tsi_stream_out out[2];
    int64_t expect[2]; /* bytes I take from it, by phase */
    bool offered, done;
    bool reads; /* it reads my memory: I wait for its DONE */
    bool read;  /* I read its memory: I owe it a DONE */
} tsi_mpi_peer;

typedef struct tsi_source {
    int64_t member, offset; /* of bytes in that member's stream */
} tsi_source;

typedef struct tsi_job {
    tsi_range to;
    tsi_block to_block;
    tsi_source *source;
    int64_t source_count;
    int64_t moved; /* bytes finished */
    int64_t asked; /* bytes asked for by GET */
    int32_t phase;
    bool fold;
} tsi_job;

typedef struct tsi_get { /* bytes asked for and not yet used */
    struct tsi_get *next;
    tsi_job *job;
    int64_t member;
    int64_t offset, bytes; /* in the job's range */
    int64_t arrived;
    char *to;      /* contiguous target; NULL: into the job's range */
    char *staging; /* owned */
    MPI_Request request;
    bool net;
} tsi_get;

typedef struct tsi_serve { /* bytes a peer asked for */
    struct tsi_serve *next;
    int64_t member, phase, offset, bytes, id, sent;
    char *staging;
    MPI_Request request;
    bool net;
} tsi_serve;

typedef enum tsi_op_stage {
    TSI_OP_IDLE,
    TSI_OP_OFFERED,
    TSI_OP_MOVE,
    TSI_OP_GATHER,
    TSI_OP_DRAIN
} tsi_op_stage;

struct tsi_mpi_op {
    tsi_op_stage stage;
    tsi_work *work;
    int64_t count, self; /* peers; my place among them, -1: point to point */
    int64_t offers, offers_due, dones, dones_due;
    int64_t size; /* bytes of an element */
    tsi_mpi_peer *peer;
    tsi_job *job;
    int64_t job_count, jobs_left[2];
    tsi_source *source;
    tsi_block *block; /* what streams and ranges point to */
    int64_t block_count;
    bool two_phase;
    bool peer_jobs_left; /* of the latest look at the jobs */
    bool said_done;
    tsi_get *gets;
    int64_t get_count;
    tsi_serve *serves;
    char *fold_space;
    int64_t fold_bytes, fold_chunk;
    tsi_job *folding; /* the one that uses it */
    void *memory;
    size_t memory_bytes;
};

struct tsi_lane {
    tsi_lane *next, *active_next;
    bool active;
    uint64_t team;
    int64_t peer; /* point to point: its world rank; else -1 */
    int32_t channel;
    tsi_work *first, *last;
    tsi_parcel_list pending;
    tsi_mpi_op op;
};

enum { TSI_LANE_BUCKETS = 256 };

/* ---- a local rank, a world --------------------------------------------------------------- */
struct tsi_mpi_rank {
    tsi_mpi *mpi;
    int64_t index; /* in the world */
    int64_t place; /* in the segment */
    pthread_mutex_t lock;
    _Atomic uint32_t epoch;
    bool left;
    tsi_lane *lane[TSI_LANE_BUCKETS];
    int64_t lane_count;
    _Atomic int64_t works;   /* posted and not finished */
    tsi_lane *active;        /* lanes with an operation under way */
    tsi_parcel *building;    /* the message between begin and end, if it is not in a ring */
    tsi_parcel_list *outbox; /* per place: what did not fit into the ring */
    int64_t outbox_count;
    pthread_mutex_t inbox_lock;
    tsi_parcel_list inbox; /* from the net */
    _Atomic int32_t inbox_filled;
    tsi_parcel_list future; /* of an epoch that has not begun here */
    int64_t recovered;      /* RECOVER messages of the current epoch */
    bool *came;             /* whose they were, by rank */
    int64_t checked_ns;
    int64_t outside; /* world rank + 1 that it waits for outside of operations; 0: none */
    char *scratch;   /* TSI_SCRATCH_BYTES */
};

typedef struct tsi_net tsi_net;

struct tsi_mpi {
    const tsi_host *host;
    ts_world *world;
    MPI_Comm comm;
    int64_t process, process_count, threads; /* thread ranks per process */
    int64_t first, rank_count;
    int64_t timeout_ms, spin_ns;
    bool cma;        /* peers' memory can be read */
    bool ours;       /* MPI was initialised by us */
    bool any_thread; /* MPI may be called from any thread (under our lock) */
    pthread_t thread;
    int64_t small_max; /* bytes that travel inside a message, for any pair */
    tsi_segment segment;
    int32_t *place;        /* of each world rank; -1: outside the segment */
    _Atomic uint8_t *gone; /* of each world rank outside: tsi_slot_life */
    void *gone_memory;
    tsi_mpi_rank *local;
    tsi_net *net;                /* NULL: every rank is in the segment */
    _Atomic(const char *) step;  /* while it is opened: the call that waits for other processes */
    char why[320];               /* ... and what is wrong */
    pthread_mutex_t poison_lock; /* of the poison that ranks of this process write */
    /* Of tsi_engine_options, as copies: the caller may give up waiting. */
    void *agreed;
    size_t agreed_bytes;
    int64_t *node_sizes, node_size_count;
    int32_t *node; /* the first rank of each rank's node, for the world; NULL: there is one node */
};

enum {
    TSI_SCRATCH_BYTES = 256 << 10,
    TSI_STEP_BYTES = 4 << 20,  /* moved at most under one hold of the lock */
    TSI_SELF_BYTES = 1 << 20,  /* of my own blocks at a time */
    TSI_PIECE_BYTES = 1 << 20, /* one GET */
    TSI_GETS_MAX = 4,          /* per job, in flight */
    TSI_NET_BYTES = 8 << 10,   /* a message through MPI, at most */
    TSI_CANCEL_NS = 100000000, /* for a receive that has begun when it is cancelled */
    TSI_SENT_NS = 1000000000,  /* for what peers may be reading when an operation is given up */
    TSI_CHECK_NS = 2000000     /* between looks at the life of others */
};

/* ---- range.c ---- */
int64_t tsi_element_bytes(int32_t dtype);
int64_t tsi_range_elements(const tsi_block *block);
void tsi_squeeze(tsi_block *block);
void tsi_seek(tsi_cursor_at *at, const tsi_range *range, int64_t offset, int64_t size);
/* The contiguous run at the position, at most `limit` bytes; moves on. */
char *tsi_next_run(tsi_cursor_at *at, int64_t limit, int64_t *bytes);
void tsi_pack(const tsi_range *range, int64_t offset, int64_t bytes, int64_t size, char *to);
void tsi_unpack(const tsi_range *range, int64_t offset, int64_t bytes, int64_t size,
                const char *from);
/* The address of these bytes if they lie in one piece, else NULL. */
char *tsi_range_flat(const tsi_range *range, int64_t offset, int64_t bytes, int64_t size);
int64_t tsi_range_run(const tsi_range *range, int64_t size); /* bytes of its shortest inner run */

/* ---- segment.c ---- */
/* [coll] over `comm`: shared among the processes if `shared`, else private. false: not possible. */
bool tsi_segment_open(tsi_mpi *mpi, MPI_Comm comm, bool shared);
void tsi_segment_close(tsi_segment *segment);
bool tsi_segment_probe(tsi_mpi *mpi, MPI_Comm comm); /* [coll] may peers read each other? */
tsi_mpi_ring *tsi_segment_ring(const tsi_segment *segment, int64_t from, int64_t to);
void tsi_bell_ring(tsi_mpi_slot *slot);
void tsi_bell_wait(tsi_mpi_slot *slot, uint32_t seen, int64_t timeout_ns);
void tsi_slot_print(tsi_mpi_slot *slot, const tsi_fingerprint *print, bool busy);
bool tsi_slot_read(const tsi_mpi_slot *slot, tsi_fingerprint *print); /* false: never any */
bool tsi_place_dead(const tsi_segment *segment, int64_t place);
void tsi_slot_open(tsi_mpi_slot *slot);

/* ---- wire.c ---- */
int64_t tsi_wire_limit(const tsi_mpi_rank *rank, int64_t to); /* bytes of the longest message */
bool tsi_wire_near(const tsi_mpi_rank *rank, int64_t to);
/* A message to fill; NULL only without memory. `end` sends it. */
tsi_message *tsi_wire_begin(tsi_mpi_rank *rank, int64_t to, size_t payload);
void tsi_wire_end(tsi_mpi_rank *rank, tsi_message *message);
bool tsi_wire_room(tsi_mpi_rank *rank, int64_t to,
                   size_t payload);        /* would go into the ring at once */
bool tsi_wire_flush(tsi_mpi_rank *rank);   /* did anything leave the outbox? */
bool tsi_wire_receive(tsi_mpi_rank *rank); /* did anything come? */
tsi_parcel *tsi_parcel_make(const tsi_mpi *mpi, size_t bytes);
void tsi_parcel_push(tsi_parcel_list *list, tsi_parcel *parcel);
tsi_parcel *tsi_parcel_pop(tsi_parcel_list *list);
void tsi_parcel_drop(const tsi_mpi *mpi, tsi_parcel_list *list);

/* ---- net.c ---- */
ts_status tsi_net_open(tsi_mpi *mpi);
void tsi_net_close(tsi_mpi *mpi, bool poisoned);
void tsi_net_send(tsi_mpi *mpi, tsi_parcel *parcel /* takes */);
bool tsi_net_progress(tsi_mpi *mpi);
bool tsi_net_allowed(const tsi_mpi *mpi); /* may this thread call MPI? */
int tsi_net_tag(tsi_mpi *mpi);
bool tsi_net_irecv(tsi_mpi *mpi, void *to, int64_t bytes, int64_t from, int tag,
                   MPI_Request *request);
bool tsi_net_isend(tsi_mpi *mpi, void *from, int64_t bytes, int64_t to, int tag,
                   MPI_Request *request);
bool tsi_net_test(tsi_mpi *mpi, MPI_Request *request);
void tsi_net_cancel(tsi_mpi *mpi, MPI_Request *request, bool receive, int64_t until_ns);

/* ---- pull.c ---- */
bool tsi_pull_direct(const tsi_mpi_rank *rank, int64_t peer); /* can its memory be read? */
/* Copies bytes of a peer's stream; false: the peer's memory is not readable (it is gone). */
bool tsi_pull_flat(tsi_mpi_rank *rank, int64_t peer, const tsi_range *from, int64_t offset,
                   int64_t bytes, int64_t size, char *to);
bool tsi_pull(tsi_mpi_rank *rank, int64_t peer, const tsi_range *from, int64_t from_offset,
              const tsi_range *to, int64_t to_offset, int64_t bytes, int64_t size);
bool tsi_pull_list(tsi_mpi_rank *rank, int64_t peer, uint64_t list, int64_t count, tsi_block *to);

/* ---- op.c ---- */
bool tsi_op_build(tsi_mpi_rank *rank, tsi_mpi_op *op, tsi_work *work); /* false: memory */
tsi_message *tsi_op_begin(tsi_mpi_rank *rank, tsi_mpi_op *op, int64_t p, tsi_message_kind kind,
                          size_t payload);
bool tsi_op_offer(tsi_mpi_rank *rank, tsi_mpi_op *op);
bool tsi_op_ready(tsi_mpi_rank *rank, tsi_mpi_op *op);
bool tsi_op_done(tsi_mpi_rank *rank, tsi_mpi_op *op);
void tsi_op_clear(tsi_mpi_rank *rank, tsi_mpi_op *op, bool aborted);
void tsi_op_release(tsi_mpi_rank *rank, tsi_mpi_op *op);
/* A message of the operation; false: it had to be refused (the world is poisoned). */
bool tsi_op_message(tsi_mpi_rank *rank, tsi_mpi_op *op, const tsi_message *message,
                    tsi_parcel *parcel /* takes, may be NULL */);

/* ---- job.c ---- */
bool tsi_jobs_run(tsi_mpi_rank *rank, tsi_mpi_op *op, int32_t phase, bool *progress);
bool tsi_serve_run(tsi_mpi_rank *rank, tsi_mpi_op *op, bool *progress);
bool tsi_get_data(tsi_mpi_rank *rank, tsi_mpi_op *op, const tsi_message *message);
bool tsi_serve_add(tsi_mpi_rank *rank, tsi_mpi_op *op, int64_t member, const tsi_message *message);

/* ---- lane.c ---- */
bool tsi_rank_post(tsi_mpi_rank *rank, tsi_work *work);
bool tsi_rank_progress(tsi_mpi_rank *rank); /* did anything happen? The lock is held. */
void tsi_rank_message(tsi_mpi_rank *rank, const tsi_message *message,
                      tsi_parcel *parcel /* takes */);
void tsi_rank_fail_all(tsi_mpi_rank *rank, ts_status status, const char *text);
void tsi_rank_forget(tsi_mpi_rank *rank); /* lanes and what they keep */

/* ---- fail.c ---- */
bool tsi_poisoned(const tsi_mpi_rank *rank);
const tsi_poison *tsi_poison_of(const tsi_mpi_rank *rank); /* once it is poisoned */
void tsi_poison_set(tsi_mpi_rank *rank, ts_status status, int64_t culprit, const char *format, ...)
    TS_PRINTF(4, 5);
void tsi_poison_memory(tsi_mpi_rank *rank, const char *what);
ts_status tsi_poison_status(const tsi_mpi_rank *rank); /* what this rank ends its works with */
int64_t tsi_poison_culprit(const tsi_mpi_rank *rank);  /* a rank, or TSI_NOBODY */
void tsi_check_interrupt(tsi_mpi_rank *rank);
void tsi_check_life(tsi_mpi_rank *rank);
void tsi_check_deadline(tsi_mpi_rank *rank);
void tsi_show_wait(tsi_mpi_rank *rank, bool waits); /* others see for whom */
/* It waited for that rank outside of operations, waited_ms, or until that was gone (0). */
void tsi_fail_unmet(tsi_mpi_rank *rank, int64_t peer, int64_t waited_ms, const char *doing);
ts_status tsi_fail_farewell(tsi_mpi *mpi, char *sentence, size_t size);
void tsi_fail_leave(tsi_mpi_rank *rank, ts_status status, const char *sentence);
void tsi_fail_gone(tsi_mpi_rank *rank);
void tsi_fail_left(tsi_mpi_rank *rank, const tsi_message *message);
bool tsi_fail_absent(const tsi_mpi *mpi, int64_t rank); /* will it call no more? */
void tsi_fail_aborted(tsi_mpi_rank *rank, const tsi_message *message);
void tsi_fail_came(tsi_mpi_rank *rank, const tsi_message *message);
ts_status tsi_fail_recover(tsi_mpi_rank *rank, char *why, size_t size);
void tsi_fail_describe(tsi_mpi *mpi, char *out, size_t size);

/* ---- begin.c ---- */
typedef ts_status (*tsi_begin_fn)(tsi_mpi *mpi, const ts_world_options *user);
/* Runs `set_up` and returns its status; after the world's timeout TS_ERR_PEER with mpi->why, and
 * *abandoned: the call goes on in a thread that keeps `mpi`. */
ts_status tsi_begin(tsi_mpi *mpi, const ts_world_options *user, const tsi_launcher *launcher,
                    tsi_begin_fn set_up, bool *abandoned);
void tsi_begin_step(tsi_mpi *mpi, const char *call);

/* ---- open.c ---- */
ts_status tsi_mpi_open(const tsi_engine_options *options, void **state);
void tsi_mpi_close(void *state);

#endif
