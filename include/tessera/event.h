/* SPDX-License-Identifier: Apache-2.0 */
/* event.h - reading what ranks did: counts, traces, the post-mortem, and the modelled clock.
 *
 * Every rank keeps a ring of its latest events (operators, collectives, waits, allocations), always
 * on. The functions here only read it, from any thread, while the ranks run on or after they ended;
 * they see the ranks of this process. A ring is finite (ts_world_options.events): what was
 * overwritten before it was read is counted in `lost`, never guessed. */
#ifndef TESSERA_EVENT_H
#define TESSERA_EVENT_H

#include "world.h"

enum { TS_COUNTS_MAX = 24 }; /* rows of a table of counts */

/* One kind of communication. */
typedef struct ts_count {
    const char *kind; /* "all_gather"; never NULL */
    int64_t count;    /* operations completed */
    int64_t bytes;    /* received from other ranks, by information */
    int64_t time_ns;  /* begin to completion, summed over operations and ranks */
} ts_count;

typedef struct ts_counts {
    size_t struct_size;
    int64_t row_count; /* kinds that occurred, in the order in which they first did */
    int64_t open;      /* operations that have begun and not completed; in no row */
    int64_t lost;      /* events overwritten before they were read; of any kind */
    ts_count row[TS_COUNTS_MAX];
} ts_counts;

/* Time of a rank's own thread. */
enum { TS_TIMES_MAX = 1024 };
typedef struct ts_time {
    const char *name; /* of an operator or a module; never NULL */
    int64_t count;    /* operators called */
    int64_t own_ns;   /* in them, without the operators and the communication they called */
} ts_time;

typedef struct ts_times {
    size_t struct_size;
    int64_t op_ns;   /* in operators: their kernels, with what surrounds them */
    int64_t comm_ns; /* in communication, waiting included; what went on meanwhile is not */
    int64_t lost;    /* events overwritten before they were read */
    int64_t op_count, module_count;
    ts_time op[TS_TIMES_MAX];
    ts_time module[TS_TIMES_MAX]; /* by the scope of the call: "layers.3", its gradients too */
} ts_times;

/* What memory is for. */
typedef enum ts_memory_kind {
    TS_MEMORY_OTHER,
    TS_MEMORY_PARAMETER, /* stored: the shards */
    TS_MEMORY_MIRROR,    /* the shards in the dtype of products */
    TS_MEMORY_GATHERED,  /* parameters that are whole while their unit runs */
    TS_MEMORY_GRADIENT,
    TS_MEMORY_OPTIMIZER,
    TS_MEMORY_ACTIVATION, /* what operators made */
    TS_MEMORY_TRANSIENT,  /* of kernels while they run */
    TS_MEMORY_COMM,       /* staging of communication */
    TS_MEMORY_STAGING,    /* the copy of a state that is saved in the background */
    TS_MEMORY_OFFLOADED,
    TS_MEMORY_KINDS
} ts_memory_kind;

/* Tensor memory of one rank, in bytes. */
typedef struct ts_memory {
    size_t struct_size;
    int64_t live;     /* asked for and not freed */
    int64_t peak;     /* the most that was live since ts_rank_memory_reset, or ever */
    int64_t reserved; /* held from the device, live or kept for reuse */
    int64_t allocations;
    int64_t at_peak[TS_MEMORY_KINDS]; /* what the peak was made of */
    int64_t most[TS_MEMORY_KINDS];    /* the most of each kind, at whatever moment */
} ts_memory;

/* What the model engine counted for one rank. Index 0: inside a node, 1: between nodes. */
typedef struct ts_modelled {
    size_t struct_size;
    double seconds;      /* the rank's modelled clock */
    int64_t operations;  /* collectives and point-to-point calls */
    int64_t messages[2]; /* received, one per peer and phase that had something to send */
    int64_t bytes[2];    /* received */
} ts_modelled;

TS_BEGIN_C

/* Number of the rank's latest event, 0 if there is none: a point from which counts can start. */
TS_API uint64_t ts_rank_event(const ts_rank *me); /* getter */
/* Communication of one rank, events after number `since` (0: all that the ring still holds). */
TS_API TS_NODISCARD ts_status ts_rank_counts(const ts_rank *me, uint64_t since, ts_counts *out);
/* Adds the time of one rank's thread, events after number `since`. The last row of a table that is
 * full is "others" and takes the rest. */
TS_API TS_NODISCARD ts_status ts_rank_times(const ts_rank *me, uint64_t since, ts_times *sum);
TS_API ts_status ts_rank_memory(ts_rank *me, ts_memory *out); /* recorded */
TS_API const char *ts_memory_kind_name(ts_memory_kind kind);  /* [any] "gathered" */
TS_API ts_status ts_rank_memory_reset(ts_rank *me);           /* recorded: the peak starts anew */
/* Communication of all ranks of this process together. */
TS_API TS_NODISCARD ts_status ts_world_counts(const ts_world *world, ts_counts *out);
/* The table as lines of text; like snprintf returns the length it needs. */
TS_API size_t ts_counts_text(const ts_counts *counts, char *out, size_t size);

/* From here until the end a rank keeps events that cost too much to be kept always: each piece of
 * work of a step that runs again, with the operator's name and place as they were recorded; and on
 * a device with queues when kernels ran there, in tracks of their own. The end waits for the rank's
 * queue. Pairs may lie inside each other. recorded */
TS_API ts_status ts_rank_trace_begin(ts_rank *me);
TS_API ts_status ts_rank_trace_end(ts_rank *me);
/* Writes a Chrome trace (Perfetto and chrome://tracing read it): a process per rank, a track per
 * queue. Where ranks are several processes, each writes its own; all but the first append ".<rank>"
 * to path. */
TS_API TS_NODISCARD ts_status ts_world_trace(const ts_world *world, const char *path);
/* The same of events that began between two times of the monotonic clock, in nanoseconds. */
TS_API TS_NODISCARD ts_status ts_world_trace_since(const ts_world *world, const char *path,
                                                   int64_t from_ns, int64_t to_ns);
/* What each rank of this process is doing, or did last, as lines of text; like snprintf. */
TS_API size_t ts_world_postmortem(ts_world *world, char *out, size_t size);

/* ---- the model engine ------------------------------------------------------------------------ */
/* Counts and clock of this rank; TS_ERR_STATE with any other engine. recorded */
TS_API ts_status ts_rank_modelled(ts_rank *me, ts_modelled *out);
/* Lets time pass on the modelled clock, as computing would; other engines ignore it. recorded */
TS_API ts_status ts_rank_model_compute(ts_rank *me, double seconds);

TS_END_C
#endif
