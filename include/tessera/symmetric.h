/* SPDX-License-Identifier: Apache-2.0 */
/* symmetric.h - memory that every member of a group has and all of them address, for kernels of
 * your own that read and write other ranks' memory.
 *
 *   member 0   [ data, bytes of it ]      ts_symmetric_data(s, 0)
 *   member 1   [ data              ]      ts_symmetric_data(s, 1), on every member
 *
 * Nothing orders these reads and writes but signals and barriers: what was written before a signal
 * is there for whoever has waited for it. A signal is taken once: a channel has room for one signal
 * from each member to each, and a second one waits until the first is taken. Two threads must not
 * use one channel of one memory at the same time.
 *
 * The members are threads of one process, or processes of one node (engine mpi); members that
 * cannot address each other are refused on all of them. It is host memory, whatever devices ranks
 * own.
 *
 * A wait ends with TS_ERR_PEER and a sentence when another rank failed, when the one it is for has
 * finished, or after the timeout: the options', else the group's, else the world's, else a minute.
 * The last two end collectives of all ranks, too, and ts_error.rank is the rank that did not come.
 * After ts_rank_recover no signal of before is left. While a step is recorded signals, waits and
 * barriers are refused, since its replays would not do them again, and so they are in a batch.
 * All of the memory is there once it is made: none that is missing is found by a signal later. */
#ifndef TESSERA_SYMMETRIC_H
#define TESSERA_SYMMETRIC_H

#include "comm.h"
#include "types.h"

typedef struct ts_symmetric ts_symmetric; /* one member's side of it */

enum { TS_SYMMETRIC_CHANNELS_MAX = 1024 };

typedef struct ts_symmetric_options {
    size_t struct_size;
    const char *name;   /* in messages; NULL: "symmetric memory" */
    int64_t timeout_ms; /* of waits; 0: the group's */
    int32_t channels;   /* 1 .. TS_SYMMETRIC_CHANNELS_MAX; 0: 4 */
    int32_t reserved;
} ts_symmetric_options;

TS_BEGIN_C

/* [any] Real defaults, after which every number is meant as it stands (types.h). */
TS_API void ts_symmetric_options_init(ts_symmetric_options *options);

/* maker, [coll] over the group: `bytes` zeroed bytes of each member, the same on all of them, as
 * are the options. NULL: recorded; on a rank outside the group NULL without an error. */
TS_API ts_symmetric *ts_symmetric_alloc(ts_group *group, size_t bytes,
                                        const ts_symmetric_options *options);
/* [any], local: the memory itself goes with the last member that releases it. Accepts NULL. */
TS_API void ts_symmetric_release(ts_symmetric *s);

TS_API size_t ts_symmetric_bytes(const ts_symmetric *s);          /* getter: of one member */
TS_API int64_t ts_symmetric_size(const ts_symmetric *s);          /* getter: members */
TS_API int64_t ts_symmetric_index(const ts_symmetric *s);         /* getter: my place among them */
TS_API int32_t ts_symmetric_channel_count(const ts_symmetric *s); /* getter */
/* getter: the member's bytes as this rank addresses them, on 4,096; NULL: no such member. */
TS_API void *ts_symmetric_data(const ts_symmetric *s, int64_t member);
/* A dense block of the member's memory, `offset` bytes from its begin, for collectives and
 * ts_from_array; it must not outlive the memory. recorded */
TS_API ts_status ts_symmetric_view(const ts_symmetric *s, int64_t member, size_t offset,
                                   const ts_meta *meta, ts_array *out);

/* recorded. Tells the member that what this rank wrote so far is there (release). Waits while the
 * member has not taken the signal before. A member may signal itself. */
TS_API ts_status ts_symmetric_signal(ts_symmetric *s, int64_t member, int32_t channel);
/* recorded. Takes the signal of the member; waits for it (acquire). */
TS_API ts_status ts_symmetric_wait(ts_symmetric *s, int64_t member, int32_t channel);
/* recorded, [coll]: what any member wrote before is there for all after. */
TS_API ts_status ts_symmetric_barrier(ts_symmetric *s, int32_t channel);

TS_END_C

/* Each call also tells its place, for messages and events. */
#define ts_symmetric_alloc(...) (ts_here(TS_HERE), ts_symmetric_alloc(__VA_ARGS__))
#define ts_symmetric_signal(...) (ts_here(TS_HERE), ts_symmetric_signal(__VA_ARGS__))
#define ts_symmetric_wait(...) (ts_here(TS_HERE), ts_symmetric_wait(__VA_ARGS__))
#define ts_symmetric_barrier(...) (ts_here(TS_HERE), ts_symmetric_barrier(__VA_ARGS__))

#endif
