/* SPDX-License-Identifier: Apache-2.0 */
/* internal.h - the parts of the nccl engine and what they know of each other.
 *
 *   engine.c    the vtable; operations on host memory go to the engine below as they are
 *   op.c        the life of an operation on device memory, and what ends it early
 *   agree.c     its shadow on the engine below: what members called is compared before bytes move
 *   staged.c    operations whose bytes go through the host: small messages, no library
 *   lane.c      communicators, made on first use; what ends them
 *   round.c     lists of parts as packed streams, one message a pair and round
 *   lower.c     collectives as rounds of parts
 *   native.c    NCCL's own collectives: where nothing is added, and by name
 *   library.c   finds the library
 *
 * One operation, on every member:
 *
 *   AGREE    a shadow without data on the host engine: fingerprints, rows, counts; who is missing
 *   JOIN     first use of a lane: member 0's id is broadcast on the host engine, all join
 *   MOVE     pack, a group of sends and receives, fold in the group's order (INV-6), unpack
 *   LAUNCH   the library is still enqueueing (communicators do not block)
 *   RUN      all is in the lane's stream, and the work is done: its rank's queue goes on behind it
 *            while the host does something else; who progresses the engine watches it
 *
 *   queue  ... ready |......................| done -> what comes after the wait
 *   lane             | begun  pack, NCCL, fold | event
 *
 * A lane is a communicator with a stream of its own: one per (group, channel), and one per ordered
 * pair of ranks that sends, so that messages of two directions never wait for each other.
 *
 * INV: nothing is enqueued before all members' shadows agreed. Operations of a lane are enqueued in
 * the order of the calls. A communicator that failed, or whose peers did, is aborted before its
 * operations end, and a rank whose work was done already is told before that, so that it never
 * reads what an aborted one left. */
#ifndef TSI_COMM_NCCL_INTERNAL_H
#define TSI_COMM_NCCL_INTERNAL_H

#include <pthread.h>

#include "base/clock.h"
#include "base/lent/words.h"
#include "base/rank.h"
#include "comm/nccl/api.h"

typedef struct tsi_nccl tsi_nccl;
typedef struct tsi_nccl_rank tsi_nccl_rank;

typedef enum tsi_lane_state {
    TSI_LANE_NEW,
    TSI_LANE_MEETING, /* the id is on its way */
    TSI_LANE_JOINING,
    TSI_LANE_READY,
    TSI_LANE_BROKEN /* aborted; until recover */
} tsi_lane_state;

/* A communicator of one rank. */
typedef struct tsi_nccl_lane {
    struct tsi_nccl_lane *next;
    tsi_nccl_rank *rank;
    uint64_t key;   /* of the group and the channel, or of the pair */
    tsi_team *team; /* of the engine below: carries the id; shared by the ranks of the process */
    int64_t member; /* my place in it */
    int32_t channel;
    tsi_lane_state state;
    const tsi_device *device;
    tsi_stream *stream;
    void *space; /* staging on the device, reused in stream order */
    size_t space_bytes;
    struct tsi_nccl_space *spaces; /* this one and smaller ones that may still be in use */
    tsi_nccl_comm comm;
    tsi_nccl_id id;
    tsi_work meeting;
} tsi_nccl_lane;

typedef enum tsi_nccl_stage {
    TSI_NCCL_AGREE,
    TSI_NCCL_JOIN,
    TSI_NCCL_MOVE,
    TSI_NCCL_LAUNCH,
    TSI_NCCL_RUN
} tsi_nccl_stage;

/* What one round has for a member of the lane. */
typedef struct tsi_nccl_peer {
    const ts_part *part; /* the send parts for it, which lie together */
    int64_t parts;
    int64_t send_count, recv_count; /* elements */
    char *send, *recv;              /* where the streams lie: staging, or the one dense part */
    bool direct;                    /* recv is the part itself: nothing is left to do */
    int64_t at;                     /* elements of the received stream that were used */
} tsi_nccl_peer;

typedef struct tsi_nccl_op {
    struct tsi_nccl_op *next; /* of the rank, in the order of the calls */
    tsi_nccl_rank *rank;
    tsi_nccl_lane *lane; /* NULL: staged */
    tsi_work *work;      /* NULL: it is done, and its bytes are on their way (RUN) */
    tsi_work shadow;     /* what is left to know of it then */
    const tsi_device *device;
    tsi_nccl_stage stage;
    bool native; /* by a collective of NCCL */
    int32_t round, rounds;
    void *lists;  /* of the shadow */
    void *memory; /* of the rounds' lists */
    void *host;   /* staged: elements; in memory of device->host_alloc */
    size_t host_bytes;
    /* the round */
    const ts_part *send, *recv;
    int64_t send_count, recv_count, avg_count;
    tsi_nccl_peer *peer;
    tsi_block *source; /* of a fold */
    const tsi_block **from;
    ts_part *parts;           /* room for two a member */
    char *flat_in, *flat_out; /* all_reduce and natives: dense, the blocks or in the staging */
    size_t flat_bytes;        /* of the lane's staging */
    tsi_device_event *begun, *event; /* in the lane's stream: its turn has come; it has passed */
    int64_t since_ns;                /* when its turn was first seen; 0: not yet */
} tsi_nccl_op;

struct tsi_nccl_rank {
    tsi_nccl *nccl;
    ts_rank *rank;
    pthread_mutex_t lock; /* of everything below */
    tsi_nccl_op *ops;
    tsi_nccl_lane *lanes;
    _Atomic int64_t works; /* in ops */
};

struct tsi_nccl {
    const tsi_host *host;
    ts_world *world;
    const tsi_engine *inner;
    void *inner_state;
    const tsi_nccl_api *api; /* NULL: everything is staged */
    bool native;             /* NCCL's own reductions were asked for */
    int64_t timeout_ms;
    int64_t spin_ns;      /* a rank that waits looks so long before it sleeps */
    tsi_nccl_rank *rank;  /* by local index */
    pthread_mutex_t lock; /* of teams */
    struct tsi_nccl_team *teams;
};

enum {
    TSI_NCCL_SMALL_SEND = 1024,   /* bytes: such a send waits for nobody, so the host carries it */
    TSI_NCCL_SMALL_REDUCE = 32768 /* bytes: everything to everybody in one round */
};

static inline int64_t tsi_element_bytes(int32_t dtype)
{
    return (int64_t)ts_dtype_size((ts_dtype)dtype);
}

static inline bool tsi_is_point(const tsi_work *work)
{
    return work->print.kind == TSI_COMM_SEND || work->print.kind == TSI_COMM_RECV;
}

/* ---- agree.c ---- */
uint64_t tsi_mix(uint64_t a, uint64_t b);
/* The operation as the engine below sees it: the same fingerprint and rows, no data. */
ts_status tsi_agree_make(tsi_nccl_op *op);
/* All came; false: the counts of an exchange differ, and `text` says whose. */
bool tsi_agree_read(const tsi_nccl_op *op, char *text, size_t size);

/* ---- staged.c ---- */
ts_status tsi_staged_make(tsi_nccl_op *op); /* the shadow with data, copied out of the device */
ts_status tsi_staged_unpack(tsi_nccl_op *op);
void tsi_staged_free(tsi_nccl_op *op);

/* ---- lane.c ---- */
/* The lane of the work, made on first use. NULL: recorded. */
tsi_nccl_lane *tsi_lane_for(tsi_nccl_rank *rank, const tsi_work *work);
/* Brings the communicator nearer to ready. On failure `text` says why. */
ts_status tsi_lane_join(tsi_nccl_lane *lane, const tsi_work *work, char *text, size_t size);
/* Is the library done with what it was asked? IN_PROGRESS, SUCCESS or what went wrong. */
tsi_nccl_result tsi_lane_look(const tsi_nccl_lane *lane);
void tsi_lane_abort(tsi_nccl_lane *lane);
/* "NCCL: unhandled system error (...)" */
void tsi_lane_text(const tsi_nccl_lane *lane, tsi_nccl_result result, char *out, size_t size);
ts_status tsi_lane_space(tsi_nccl_lane *lane, size_t bytes);
void tsi_lanes_close(tsi_nccl *nccl, bool aborted);
void tsi_lanes_abort(tsi_nccl_rank *rank); /* all of a rank: recover */
void tsi_teams_free(tsi_nccl *nccl);

/* ---- lower.c ---- */
ts_status tsi_lower_begin(tsi_nccl_op *op); /* how many rounds; memory for their lists */
ts_status tsi_lower_enqueue(tsi_nccl_op *op, tsi_nccl_result *result);
ts_status tsi_lower_unpack(tsi_nccl_op *op);

/* ---- native.c ---- */
bool tsi_is_native(const tsi_nccl *nccl, const tsi_work *work);
tsi_nccl_result tsi_native_call(tsi_nccl_op *op);

/* ---- round.c ---- */
ts_status tsi_round_enqueue(tsi_nccl_op *op, tsi_nccl_result *result); /* pack, send, receive */
ts_status tsi_round_unpack(tsi_nccl_op *op);                           /* fold, unpack */

/* ---- op.c ---- */
ts_status tsi_op_start(tsi_nccl_rank *rank, tsi_work *work);
/* Are collectives on memory of the device the library's? Else they are staged. */
bool tsi_has_lanes(const tsi_nccl *nccl, const tsi_device *device);
/* Must the host have the bytes itself? */
bool tsi_op_is_staged(const tsi_nccl *nccl, const tsi_work *work);
/* Moves everything of the rank forward that can be, under its lock; ends what is late in its
 * stream. Did anything happen? */
bool tsi_ops_advance(tsi_nccl_rank *rank);
void tsi_op_late(tsi_nccl_rank *rank, tsi_work *work); /* its deadline has passed */

#endif
