/* SPDX-License-Identifier: Apache-2.0 */
/* comm.h - groups of ranks and the collectives on them, on plain blocks of memory.
 *
 * A group is a list of ranks in the caller's order: member i is the i-th of the list, always. It
 * costs nothing until it is used and needs no agreement to be made. A rank that is not a member
 * gets a handle on which every collective returns TS_OK at once.
 *
 * Every collective is called by all members, in the same order per (group, channel). It returns
 * when it is complete, or at once if options->work is set: then ts_work_wait completes it, and
 * until then its arrays must stay. Arrays may be strided. Where a collective splits an array among
 * the members it splits dim 0: evenly (the extent must divide), or by options->send_rows /
 * recv_rows, one count per member, zero allowed. A scalar counts as one row. `in` and `out` may be
 * the same memory for all_reduce, and for broadcast there is only one array; otherwise they must
 * not overlap.
 *
 * Arrays in memory of a device: complete means in the order of the rank's queue. A call returns,
 * and ts_work_wait does, when all members have called and the bytes are in queues: what the rank
 * asks of its device afterwards sees the result and may use the arrays again; the host sees it
 * after ts_rank_sync. A failure that comes later ends the rank's next call or wait for its queue.
 *
 * Reductions fold in the group's order, ((x0 op x1) op x2) ..., bf16 and f16 in f32 with one final
 * rounding: the same bits on every rank, every run and every engine.
 *
 * Failures: members that disagree (operation, dtype, counts, root, ...) all get TS_ERR_PEER with a
 * sentence that names both sides (over MPI, members beside the two that disagree on rows of a
 * scatter, gather or all_to_all, or parts of an exchange, at their next call); a rank that fails,
 * exits or stalls past the timeout gives all its peers TS_ERR_PEER naming it and what each was
 * waiting in. Nothing hangs. */
#ifndef TESSERA_COMM_H
#define TESSERA_COMM_H

#include "world.h"

typedef struct ts_group ts_group; /* as seen by one rank; owned by the rank, counted */
typedef struct ts_work ts_work;   /* an operation in flight */

enum { TS_CHANNEL_COUNT = 4 }; /* ordered queues of a group: 0 default, 1 .. 3 the caller's */

typedef struct ts_group_options {
    size_t struct_size;
    const char *name;   /* in messages and events; NULL: made from the ranks */
    int64_t timeout_ms; /* 0: the world's */
} ts_group_options;

typedef struct ts_comm_options {
    size_t struct_size;
    const char *name;         /* what moves, for messages and events: "layers.3.wq" */
    const int64_t *send_rows; /* per member; NULL: even (or not used by the operation) */
    const int64_t *recv_rows;
    ts_work **work;     /* not NULL: asynchronous; receives a handle that must be waited for */
    int64_t timeout_ms; /* 0: the group's */
    int32_t channel;
    int32_t reserved;
} ts_comm_options;

/* One strided block of an exchange. Blocks between a pair match in order: the elements of all my
 * send parts for peer p, in list order and row-major each, are those of p's receive parts from me.
 */
typedef struct ts_part {
    int64_t peer; /* member of the group; may be the caller itself */
    void *data;   /* first element of the block */
    int32_t ndim;
    int32_t combine; /* receive parts: 1: folds into the block of the part before it (same block) */
    int64_t extent[TS_NDIM_MAX];
    int64_t stride[TS_NDIM_MAX]; /* in elements */
} ts_part;

typedef struct ts_exchange {
    size_t struct_size;
    int32_t dtype;  /* a ts_dtype */
    int32_t reduce; /* a ts_reduce for the parts with combine; 0: none */
    const ts_part *send;
    int64_t send_count;
    const ts_part *recv;
    int64_t recv_count;
    int32_t device, reserved; /* where all parts lie, as in ts_array; 0: host memory */
    int64_t avg_count;        /* avg divides by this; 0: by the parts that combine */
} ts_exchange;

TS_BEGIN_C

/* [any] Real defaults, after which every number is meant as it stands (types.h). */
TS_API void ts_group_options_init(ts_group_options *options);
TS_API void ts_comm_options_init(ts_comm_options *options);

/* ---- groups -------------------------------------------------------------------------------- */
TS_API ts_group *ts_group_world(ts_rank *me); /* getter; all ranks in order; owned by the rank */
TS_API ts_group *
ts_group_create(ts_rank *me, const int64_t *ranks, int64_t count,
                const ts_group_options *options); /* maker, local; ranks of the world */
TS_API ts_group *
ts_group_sub(ts_group *parent, const int64_t *members, int64_t count,
             const ts_group_options *options);        /* maker, local; members of parent */
TS_API void ts_group_release(ts_group *group);        /* [any]; accepts NULL and the world group */
TS_API int64_t ts_group_size(const ts_group *group);  /* getter */
TS_API int64_t ts_group_index(const ts_group *group); /* getter; my place in it, -1: outside */
TS_API int64_t ts_group_rank(const ts_group *group,
                             int64_t member); /* world rank of a member, or -1 */

/* ---- collectives: recorded [coll] ------------------------------------------------------------ */
TS_API ts_status ts_group_barrier(ts_group *group, const ts_comm_options *options);
TS_API ts_status ts_group_broadcast(ts_group *group, const ts_array *array, int64_t root,
                                    const ts_comm_options *options);
TS_API ts_status ts_group_scatter(ts_group *group, const ts_array *in /* at root */,
                                  const ts_array *out, int64_t root,
                                  const ts_comm_options *options); /* send_rows: per member */
TS_API ts_status ts_group_gather(ts_group *group, const ts_array *in,
                                 const ts_array *out /* at root */, int64_t root,
                                 const ts_comm_options *options); /* recv_rows: per member */
TS_API ts_status ts_group_all_gather(ts_group *group, const ts_array *in, const ts_array *out,
                                     const ts_comm_options *options); /* recv_rows: per member */
TS_API ts_status ts_group_reduce(ts_group *group, const ts_array *in, const ts_array *out,
                                 ts_reduce reduce, int64_t root, const ts_comm_options *options);
TS_API ts_status ts_group_all_reduce(ts_group *group, const ts_array *in, const ts_array *out,
                                     ts_reduce reduce, const ts_comm_options *options);
TS_API ts_status
ts_group_reduce_scatter(ts_group *group, const ts_array *in, const ts_array *out, ts_reduce reduce,
                        const ts_comm_options *options); /* send_rows: per member */
TS_API ts_status ts_group_all_to_all(ts_group *group, const ts_array *in, const ts_array *out,
                                     const ts_comm_options *options); /* send_rows and recv_rows */
TS_API ts_status ts_group_exchange(ts_group *group, const ts_exchange *exchange,
                                   const ts_comm_options *options);

/* ---- point to point: a FIFO per peer and direction, outside the channels: recorded ---------- */
TS_API ts_status ts_group_send(ts_group *group, const ts_array *array, int64_t to,
                               const ts_comm_options *options);
TS_API ts_status ts_group_recv(ts_group *group, const ts_array *array, int64_t from,
                               const ts_comm_options *options);

/* ---- a batch: what is issued between begin and end starts together and completes together ---- */
/* Meanwhile operations of this header are issued and nothing else: functions that ask other ranks
 * for themselves (moves, operators that communicate, steps, states) are refused. */
TS_API ts_status ts_group_batch_begin(ts_rank *me);                               /* recorded */
TS_API ts_status ts_group_batch_end(ts_rank *me, const ts_comm_options *options); /* recorded */

/* ---- operations in flight -------------------------------------------------------------------- */
TS_API ts_status ts_work_wait(ts_work *work /* takes */); /* recorded [any]; accepts NULL */
/* 1: complete, wait will not block. On the rank's thread; elsewhere 1, and the wait refuses it. Who
 * asks again and again waits, too: the timeout after the first 0 it is 1, and the wait says why. */
TS_API int ts_work_test(ts_work *work);

TS_END_C

/* Each call also tells its place, for messages and events. */
#define ts_group_barrier(...) (ts_here(TS_HERE), ts_group_barrier(__VA_ARGS__))
#define ts_group_broadcast(...) (ts_here(TS_HERE), ts_group_broadcast(__VA_ARGS__))
#define ts_group_scatter(...) (ts_here(TS_HERE), ts_group_scatter(__VA_ARGS__))
#define ts_group_gather(...) (ts_here(TS_HERE), ts_group_gather(__VA_ARGS__))
#define ts_group_all_gather(...) (ts_here(TS_HERE), ts_group_all_gather(__VA_ARGS__))
#define ts_group_reduce(...) (ts_here(TS_HERE), ts_group_reduce(__VA_ARGS__))
#define ts_group_all_reduce(...) (ts_here(TS_HERE), ts_group_all_reduce(__VA_ARGS__))
#define ts_group_reduce_scatter(...) (ts_here(TS_HERE), ts_group_reduce_scatter(__VA_ARGS__))
#define ts_group_all_to_all(...) (ts_here(TS_HERE), ts_group_all_to_all(__VA_ARGS__))
#define ts_group_exchange(...) (ts_here(TS_HERE), ts_group_exchange(__VA_ARGS__))
#define ts_group_send(...) (ts_here(TS_HERE), ts_group_send(__VA_ARGS__))
#define ts_group_recv(...) (ts_here(TS_HERE), ts_group_recv(__VA_ARGS__))

#endif
