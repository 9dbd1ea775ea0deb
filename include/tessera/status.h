/* SPDX-License-Identifier: Apache-2.0 */
/* status.h - how a call says that it failed.
 *
 * A status is zero or negative. The sentence that explains it is kept by the rank (ts_rank_error)
 * or, before there is a rank, by the thread (ts_last_error). The list below is the only place where
 * a status is spelled: enum, names and documentation are made from it. */
#ifndef TESSERA_STATUS_H
#define TESSERA_STATUS_H

#include <stdint.h>

#include "export.h"

/* X(name, value, meaning) */
#define TS_STATUS_LIST(X)                                                                          \
    X(TS_OK, 0, "no error")                                                                        \
    X(TS_ERR_ARG, -1, "an argument has a value that is not allowed")                               \
    X(TS_ERR_NULL, -2, "a required argument is NULL")                                              \
    X(TS_ERR_SHAPE, -3, "shapes, counts or placements do not fit each other")                      \
    X(TS_ERR_MESH, -4, "a mesh does not fit the ranks or another mesh")                            \
    X(TS_ERR_STATE, -5, "the object is not in a state that allows the call")                       \
    X(TS_ERR_THREAD, -6, "the calling thread is not attached to that rank")                        \
    X(TS_ERR_MEMORY, -7, "memory could not be had")                                                \
    X(TS_ERR_IO, -8, "a file or device could not be read or written")                              \
    X(TS_ERR_POLICY, -9, "a policy of the open scope forbids it")                                  \
    X(TS_ERR_PEER, -10, "another rank failed, diverged or stalled")                                \
    X(TS_ERR_LOST, -11, "a rank or device is gone; the world must be closed")                      \
    X(TS_ERR_DTYPE, -12, "the operation has no meaning for that dtype")                            \
    X(TS_ERR_MISSING, -13, "a part was not built, or was not found on this machine")               \
    X(TS_ERR_INTERNAL, -14, "an invariant of tessera itself was broken; please report it")         \
    X(TS_ERR_INTERRUPTED, -15, "ts_world_interrupt ended what was waited for")

typedef enum ts_status {
#define TS_STATUS_ENUM(name, value, meaning) name = value,
    TS_STATUS_LIST(TS_STATUS_ENUM)
#undef TS_STATUS_ENUM
} ts_status;

/* How far an error reaches, and so what must be done about it (see docs/errors.md). */
typedef enum ts_blast {
    TS_BLAST_NONE,
    TS_BLAST_AGREED, /* from shared metadata, the same on every rank: a catching scope suffices */
    TS_BLAST_LOCAL,  /* one rank (memory, file): peers were told at once; ts_rank_recover */
    TS_BLAST_LOST    /* a rank or device is gone: close the world */
} ts_blast;

typedef struct ts_error { /* read only; may grow at the end */
    ts_status status;
    ts_blast blast;
    int64_t rank;      /* who failed first; -1 if no rank was involved */
    int64_t event;     /* number of the event in that rank's ring, or -1 */
    const char *where; /* "layers.3.attention.wq: matmul" or the caller's file:line; never NULL */
    const char *text;  /* the sentence; never NULL */
} ts_error;

TS_BEGIN_C

/* "TS_ERR_ARG"; an unknown value gives "TS_ERR_UNKNOWN". Never NULL. */
TS_API const char *ts_status_name(ts_status status);
/* The meaning column of the list. Never NULL. */
TS_API const char *ts_status_meaning(ts_status status);
/* The last error of this thread outside any rank; "" if there was none. Valid until the next
 * failing call of the thread. */
TS_API const char *ts_last_error(void);

TS_END_C
#endif
