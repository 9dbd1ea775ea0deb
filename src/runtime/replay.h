/* SPDX-License-Identifier: Apache-2.0 */
/* replay.h - the body of a recorded step (tessera/step.h). */
#ifndef TSI_RUNTIME_REPLAY_H
#define TSI_RUNTIME_REPLAY_H

#include "base/keep.h"
#include "runtime/record.h"
#include "runtime/works.h"
#include "tessera/step.h"

typedef struct tsi_waited { /* in an operation, or in a wait */
    int32_t action;
    int64_t ns;
} tsi_waited;

struct ts_step {
    ts_rank *rank;
    tsi_kept kept;
    tsi_held held;
    tsi_pool *pool;
    void *plans; /* the op layer's state */
    void (*plans_destroy)(void *state);
    tsi_rank_device
        device; /* of the host while it keeps; where the device captures it is not used */
    bool captures;
    tsi_step *value;
    tsi_worked worked; /* which action each piece of work is part of */
    tsi_works works;   /* what keeps its order */
    int64_t room;      /* pieces of work that were added for parts of operations (parts.h) */
    int64_t recorded_bytes, replays;
    int64_t timed;                /* replays in this order whose times are in `value` */
    int64_t waited_ns, helped_ns; /* of the latest of them */
    tsi_waited *waited;
    int64_t waited_count, waited_capacity;
    bool agreed; /* operations begin in an order that all ranks took at `epoch` */
    bool lost;   /* they do on other ranks no more, and here it could not be undone */
    uint64_t epoch;
    /* replay_events.c */
    tsi_event *event;     /* [work] in this order: what a replay leaves that is traced; NULL: not
                             made yet */
    struct ts_step *next; /* of those that run; with the lock */
    int64_t begin_ns;     /* of the latest run */
};

/* Back to the recorded order, in any case: without it the step is lost. */
ts_status tsi_step_undo(ts_step *s);

/* A replay; `ns`, if not NULL, has room for how long each work took. */
ts_status tsi_step_run(ts_step *s, int64_t *ns);

/* That it holds from the device. */
static inline int64_t tsi_step_bytes(const ts_step *s)
{
    return tsi_pool_reserved(s->pool) + (s->works.home ? tsi_pool_reserved(s->works.home) : 0);
}

#endif
