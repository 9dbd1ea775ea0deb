/* SPDX-License-Identifier: Apache-2.0 */
/* works.h - the kept work of a step (base/keep.h) in another order, with memory for that order.
 *
 *   lives    while a step is recorded its pool tells which blocks it takes and gives back; so it is
 *            known which block an address meant at each moment, though addresses are used again
 *   ties     two pieces of work keep their order if one changes what the other touches, or if their
 *            kinds say so; blocks count, not addresses: that two of them lay in one place ties
 *            nothing
 *   order    pieces by keys, the least first, as far as the ties allow
 *   arena    a place for each block, such that no two lie over each other while both are in use
 *
 * INV: pieces are run in an order that keeps all ties, on memory that nobody else uses from the
 * first to the last piece that touches it. So results are the bits of the recorded order, whatever
 * the keys are. Operations begin in one common order on every rank, the recorded one or one that
 * all ranks agreed on, and each is begun before it is waited for: no keys can make ranks wait for
 * each other for ever. For take the first operation in that order that somebody waits for in vain.
 * A member that has not begun it waits for another one, which it has begun, so an earlier one. */
#ifndef TSI_RUNTIME_WORKS_H
#define TSI_RUNTIME_WORKS_H

#include "array/array.h"
#include "base/hash.h"
#include "base/keep.h"

typedef struct tsi_taken { /* a block, from when it was taken to when it was given back */
    char *memory;
    int64_t bytes;
    int64_t from, to; /* pieces of work that were kept then; to < 0: it was not given back */
    bool stays;       /* somebody else knows where it lies */
    bool held;        /* by the works: who had it let it go after the recording */
} tsi_taken;

typedef struct tsi_work_touch { /* of one piece */
    tsi_kept_touch is;
    int32_t piece;
    int32_t block;  /* -1: no block of the step */
    int64_t offset; /* of the address from the block's begin */
} tsi_work_touch;

typedef struct tsi_piece { /* neighbours in the list that stay together */
    int32_t first, count;
    tsi_kept_order order;
    int64_t touch_first, touch_count;
} tsi_piece;

typedef struct tsi_works {
    const tsi_kept *kept; /* of the step that is recorded */
    tsi_pool_watch watch;
    ts_status status; /* of the lives: TS_OK or why they are not known */
    tsi_taken *block;
    int64_t block_count, block_capacity;
    tsi_map there; /* address -> index + 1, while it is there */
    bool unclear;  /* whose memory it was is not known of all: the step keeps its order */
    /* Filled by tsi_works_tie: */
    int32_t *order;          /* [work]: its number as it was recorded; NULL: the same */
    tsi_kept_work *recorded; /* in the recorded order */
    tsi_piece *piece;
    int64_t piece_count, touch_count, touch_capacity;
    tsi_work_touch *touch;
    int32_t *pair; /* before, after, before, after ... */
    int64_t pair_count, pair_capacity;
    int32_t *begin; /* pieces that begin operations, in the recorded order */
    int64_t begin_count, begin_capacity;
    /* Filled by tsi_works_order: */
    tsi_pool *home; /* of the arena alone: for want of memory it gives back no block of the step */
    char *arena;
    int64_t arena_bytes;
} tsi_works;

/* While a step is recorded; the pool is its own. */
void tsi_works_begin(tsi_works *works, const tsi_kept *kept, tsi_pool *pool);
void tsi_works_end(tsi_works *works, tsi_pool *pool);
void tsi_works_release(tsi_works *works, tsi_pool *pool);

/* Once: pieces, what they touch, what keeps its order. */
ts_status tsi_works_tie(tsi_works *works);
/* The piece that a piece of kept work is part of. */
int32_t tsi_works_piece_of(const tsi_works *works, int64_t work);

/* The number, as it was recorded, of what runs at a place now. */
static inline int64_t tsi_works_recorded(const tsi_works *works, int64_t place)
{
    return works->order ? works->order[place] : place;
}

typedef struct tsi_works_report {
    int64_t moved;        /* pieces that run later or earlier than they were recorded */
    int64_t bytes;        /* of the arena and of what stays */
    int64_t bytes_needed; /* the most that is in use at once */
    bool fits;            /* into the cap; else nothing is changed */
} tsi_works_report;
typedef struct tsi_member { /* of several pieces that should follow each other */
    int32_t piece, until;   /* until: the piece that waits for it */
    bool follows;           /* in: it should follow the member before it; out: it does */
    int64_t bytes;          /* that it needs, beside those that follow it, until then */
    char *room;             /* out, of the first of them: for the bytes of all; NULL: none */
} tsi_member;
typedef struct tsi_members { /* in the order that they keep */
    tsi_member *member;
    int64_t count;
} tsi_members;
/* The order in which operations begin. */
typedef struct tsi_begins {
    const int32_t *piece; /* all of works->begin, and parts; NULL: as recorded */
    int64_t count;
    /* (optional) Asked once it is known whether this rank can take the order, with all that it
     * needs: do all ranks? Else nothing is changed. */
    bool (*all_can)(void *context, bool can);
    void *context;
} tsi_begins;
/* Puts the list into the order of the keys, one per piece, and its blocks into an arena of at most
 * bytes_max bytes with what stays; 0: no cap. Without memory nothing is changed. Members come
 * together where the ties allow it, if there is room for that. */
ts_status tsi_works_order(tsi_works *works, tsi_kept *kept, const int64_t *key,
                          const tsi_begins *begins, const tsi_members *members, tsi_pool *pool,
                          int64_t bytes_max, tsi_works_report *report);

/* ---- parts, pure ----------------------------------------------------------------------------- */
/* Pieces 0..count-1 by their keys, such that of each pair the first comes first; ties of keys as
 * they stood. TS_ERR_STATE, not recorded: the pairs have a circle, and nothing is said of order. */
ts_status tsi_pieces_by_key(int64_t count, const int32_t *pair, int64_t pair_count,
                            const int64_t *key, int32_t *order);

/* Changes an order that keeps the pairs such that members which should follow others do, as far as
 * the pairs allow: each goes down to the next, and takes along what must come after it. */
ts_status tsi_pieces_together(int64_t count, const int32_t *pair, int64_t pair_count,
                              const tsi_members *members, int32_t *order);

typedef struct tsi_span_of_use { /* of a block, in places of the order; last < first: not used */
    int64_t bytes;
    int64_t first, last;
    int64_t offset; /* out */
} tsi_span_of_use;
/* Offsets, multiples of 64, such that no two blocks in use at one place overlap. *bytes: of all. */
ts_status tsi_arena_places(tsi_span_of_use *span, int64_t count, int64_t *bytes);

#endif
