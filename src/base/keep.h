/* SPDX-License-Identifier: Apache-2.0 */
/* keep.h - work of a rank that is kept while it runs, to be run again as it stands.
 *
 *   rank->kept NULL     the usual case: nothing is kept, and nobody pays more than a look at it
 *   a step is recorded  each seam below dispatch (kernels, copies, operations of communication)
 *                       hands its work here: it runs now, and stays in the list
 *   the step again      the list is run from top to bottom
 *
 * INV: what runs inside a kept function is part of it and is not kept once more; so is everything
 * while the list is run again. */
#ifndef TSI_BASE_KEEP_H
#define TSI_BASE_KEEP_H

#include <stdbool.h>

#include "base/rank.h"

typedef ts_status (*tsi_kept_fn)(void *context);

/* What ties a piece of work to others beside the memory that it touches. */
typedef enum tsi_kept_order {
    TSI_KEPT_FENCE,  /* nothing goes past it, either way */
    TSI_KEPT_FREE,   /* nothing else: kernels, copies */
    TSI_KEPT_RANDOM, /* draws and what uses them stay in order */
    TSI_KEPT_ISSUE,  /* begins an operation: those have one order on all ranks */
    TSI_KEPT_MEET,   /* begins one and waits for it */
    TSI_KEPT_DRAWN,  /* MEET that uses draws: RANDOM as well */
    TSI_KEPT_WAIT,   /* for what the work of the same context began, and behind that */
    TSI_KEPT_PART,   /* goes on with what the work of the same context began, before the wait */
    TSI_KEPT_BATCH,  /* from here to the end of the batch is one piece */
    TSI_KEPT_CLOSE,  /* the end of a batch: MEET or, if somebody waits later, ISSUE */
    TSI_KEPT_LAST    /* behind everything before it; what waits for others stays behind it */
} tsi_kept_order;

/* Memory that a piece of work reads or changes. `at`: where the work has the address, which may be
 * given another one; NULL: the work keeps the memory alive, and it stays where it is. */
typedef struct tsi_kept_touch {
    void **at;
    const char *low, *high; /* the last byte is before high */
    bool writes;
} tsi_kept_touch;
typedef void (*tsi_kept_tell)(void *to, const tsi_kept_touch *touch);

typedef struct tsi_kept_kind {
    tsi_kept_order order;
    /* (optional) Tells all memory of the step that the work touches; NULL: none. */
    void (*touches)(void *context, tsi_kept_tell tell, void *to);
} tsi_kept_kind;

extern const tsi_kept_kind tsi_kept_fence; /* touches nothing of the step */

typedef struct tsi_kept_work {
    tsi_kept_fn run;
    void *context;
    void (*destroy)(void *context); /* (optional) */
    const tsi_kept_kind *kind;      /* NULL: not known; the step keeps its order */
} tsi_kept_work;

typedef struct tsi_kept_stream { /* of random numbers */
    uint64_t recorded, now;
} tsi_kept_stream;

/* What decides which memory kept work means, and is the host's: the block that a variable shows,
 * the gradient of a leaf, a mirror that is as new as its value. A step that runs again begins as
 * its recording began, or is refused, and leaves what that left. */
typedef struct tsi_kept_border {
    tsi_kept_fn settle; /* (optional) the recording ended well: what it leaves is noted */
    tsi_kept_fn check;  /* (optional) may the step run again? Before anything is changed for it */
    tsi_kept_fn enter;  /* (optional) before it runs again */
    tsi_kept_fn leave;  /* (optional) behind it */
    void (*destroy)(void *context);
    void *context;
} tsi_kept_border;

typedef struct tsi_kept { /* zero is an empty one */
    tsi_kept_work *work;
    int64_t count, capacity;
    tsi_kept_stream *stream; /* each time the step runs it draws from others */
    int64_t stream_count, stream_capacity;
    int32_t inside;     /* depth of functions that run; > 0: nothing is kept */
    int32_t paused;     /* of them, those between tsi_keep_pause and tsi_keep_resume */
    int32_t drawn;      /* depth of functions that know what is drawn now */
    _Atomic int64_t at; /* the piece of work that the latest run began last; any thread looks */
    /* (optional) Of a device that captures: what is asked of it goes into a graph until it is
     * turned off, which runs the graph and keeps it. */
    ts_status (*turn)(struct tsi_kept *kept, bool on);
    void *turns; /* its context */
    tsi_kept_border *border;
    int64_t border_count, border_capacity;
    uint64_t number; /* of the recording, from 1: no two of a process have the same */
} tsi_kept;

/* Is what this rank does now to be kept? */
static inline bool tsi_keeps(const ts_rank *rank)
{
    return rank && rank->kept && rank->kept->inside == 0;
}

/* Is there something to note at the border of the step: is one recorded, and *kept_in not its
 * number? It is from here on. */
static inline bool tsi_keep_notes(const ts_rank *rank, uint64_t *kept_in)
{
    if (!tsi_keeps(rank) || *kept_in == rank->kept->number) return false;
    *kept_in = rank->kept->number;
    return true;
}

/* Is each call to be kept by itself, or does the device capture them? */
static inline bool tsi_keeps_calls(const ts_rank *rank)
{
    return tsi_keeps(rank) && !rank->kept->turn;
}
static inline bool tsi_captures(const ts_rank *rank)
{
    return tsi_keeps(rank) && rank->kept->turn;
}

/* Runs the work; if the rank keeps, it stays in the list, else the context goes. Takes the context
 * in any case. Work that fails is not kept. */
ts_status tsi_keep_work(ts_rank *rank, tsi_kept_work work);
/* Keeps work that was done already; the rank keeps. Takes the context. */
ts_status tsi_keep_done(ts_rank *rank, tsi_kept_work work);
/* The same between pause and resume too: before what is kept as a whole behind them. */
ts_status tsi_keep_apart(ts_rank *rank, tsi_kept_work work);
/* Everything until the matching end is the caller's own affair: a question whose answer is known
 * when the step runs again, or work that is kept as a whole by other means. */
void tsi_keep_pause(const ts_rank *rank);
void tsi_keep_resume(const ts_rank *rank);
/* The entry of a stream, a new one where there is none. NULL: recorded. */
tsi_kept_stream *tsi_keep_stream(tsi_kept *kept, uint64_t recorded);
/* What is drawn from now instead of the stream that was recorded. */
uint64_t tsi_kept_stream_now(const ts_rank *rank, uint64_t recorded);
/* (optional) Told of each piece of work, by its place in the list, before and after it runs. */
typedef struct tsi_kept_hearer {
    void (*begins)(void *context, int64_t place);
    void (*ended)(void *context, int64_t place);
    void *context;
} tsi_kept_hearer;
/* Runs the list; ends with the first failure. */
ts_status tsi_kept_run(ts_rank *rank, tsi_kept *kept, const tsi_kept_hearer *hearer);
/* The same; `ns` has room for how long each took. */
ts_status tsi_kept_time(ts_rank *rank, tsi_kept *kept, int64_t *ns);
void tsi_kept_release(tsi_kept *kept);
/* The rank keeps. The context is taken in any case. */
ts_status tsi_keep_border(const ts_rank *rank, tsi_kept_border border);
ts_status tsi_kept_settle(const tsi_kept *kept);
ts_status tsi_kept_enter(const tsi_kept *kept);
ts_status tsi_kept_leave(const tsi_kept *kept);

#endif
