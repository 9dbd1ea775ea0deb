/* SPDX-License-Identifier: Apache-2.0 */
/* mask.h - who sees whom in attention, as a value.
 *
 *   "causal"                      key k is seen by query q if k <= q
 *   "window(l, r)"                q - l <= k <= q + r; -1: no bound on that side
 *   "prefix(n)"                   k < n
 *   "documents(3, 5, 8; 16)"      both lie in the same document; lengths per row, rows by ';',
 *                                 one row stands for all
 *   "user(name)"                  a predicate in C, ts_mask_user
 *   "dense(name)"                 a table, ts_mask_dense
 *   "full"                        everything
 *   a & b, a | b, (a)             and, or; & binds stronger
 *   ... + softcap(c)              scores s become c tanh(s / c)
 *   ... + alibi                   then slope(head) (k - q) is added
 *
 * Positions are those of the keys: query i of T stands at i + S - T where there are S keys, so that
 * the last query stands at the last key.
 *
 * Masks are interned in a world: equal text is an equal pointer. They live while somebody holds
 * them, or are among the last thousand that were asked for. What is derived from a mask (block
 * lists) is kept by value beside it. All functions may be called from any thread. */
#ifndef TESSERA_MASK_H
#define TESSERA_MASK_H

#include "types.h"
#include "world.h"

typedef struct ts_mask ts_mask;

/* Does the query of this row and head see the key? Pure: the same answer whenever it is asked. */
typedef int (*ts_mask_fn)(int64_t row, int64_t head, int64_t query, int64_t key, void *context);

/* One tile of block lists. */
typedef enum ts_mask_tile { TS_TILE_EMPTY, TS_TILE_PARTIAL, TS_TILE_FULL } ts_mask_tile;

typedef struct ts_mask_size {
    size_t struct_size;
    int64_t queries, keys;          /* T and S */
    int64_t row, head;              /* which */
    int64_t query_block, key_block; /* 0: 128 */
} ts_mask_size;

typedef struct ts_mask_summary {
    size_t struct_size;
    int64_t empty, partial, full; /* tiles */
    int64_t pairs, pairs_all;     /* that are seen; T * S */
} ts_mask_summary;

typedef enum ts_balance {
    TS_BALANCE_AUTO,         /* by cost, ts_cut_for */
    TS_BALANCE_NONE,         /* chunks in order */
    TS_BALANCE_HEAD_TAIL,    /* 2n chunks, rank r has r and 2n-1-r */
    TS_BALANCE_PER_DOCUMENT, /* head and tail of every document */
    TS_BALANCE_PTRR          /* blocks by descending cost, dealt to and fro */
} ts_balance;

TS_BEGIN_C

/* ---- masks: NULL after recording a sentence. Held as the head of this file says. ------------- */
TS_API const ts_mask *ts_mask_get(ts_world *world, const char *text);
/* Lengths of the documents of each row, one row after another; count[r] of them in row r. */
TS_API const ts_mask *ts_mask_documents(ts_world *world, const int64_t *length,
                                        const int64_t *count, int64_t rows);
/* Registers a predicate under a name; "user(name)" means it from now on. A name that is taken is an
 * error, unless function and context are the same. */
TS_API const ts_mask *ts_mask_user(ts_world *world, const char *name, ts_mask_fn fn, void *context);
/* seen[i * keys + k] != 0: query i of `queries` sees key k; the same for all rows and heads. Only
 * attention of just so many queries and keys takes it. */
TS_API const ts_mask *ts_mask_dense(ts_world *world, const char *name, int64_t queries,
                                    int64_t keys, const unsigned char *seen);
TS_API const ts_mask *ts_mask_and(const ts_mask *a, const ts_mask *b);
TS_API const ts_mask *ts_mask_or(const ts_mask *a, const ts_mask *b);
TS_API const ts_mask *ts_mask_retain(const ts_mask *mask);
TS_API void ts_mask_release(const ts_mask *mask);
TS_API size_t ts_mask_text(const ts_mask *mask, char *out, size_t size); /* like snprintf */
/* What attributes of operators carry: the text where it is short, else a name by content. */
TS_API const char *ts_mask_name(const ts_mask *mask);

/* ---- questions ------------------------------------------------------------------------------- */
/* Positions, not indices of queries. */
TS_API int ts_mask_sees(const ts_mask *mask, int64_t row, int64_t head, int64_t query, int64_t key);
/* Tiles of one row and head, row-major [ceil(T / query_block)][ceil(S / key_block)], up to
 * `capacity` of them (0: none), and their numbers. */
TS_API ts_status ts_mask_tiles(const ts_mask *mask, const ts_mask_size *size, unsigned char *tile,
                               int64_t capacity, ts_mask_summary *summary);

/* ---- cuts of the sequence -------------------------------------------------------------------- */
TS_API const char *ts_balance_name(ts_balance balance);
TS_API ts_status ts_balance_parse(const char *text, ts_balance *out);
/* Tables of spec: indices[p] is the position at permuted place p, restore its inverse. HEAD_TAIL
 * needs length % (2 ranks) == 0, PER_DOCUMENT the same of every document; NONE always. */
TS_API ts_status ts_balance_table(ts_balance balance, int64_t ranks, int64_t documents,
                                  const int64_t *length, int64_t *indices, int64_t *restore);
/* PTRR: `blocks` rows of blocks by their costs, blocks % ranks == 0; the order of blocks, rank by
 * rank. */
TS_API ts_status ts_balance_blocks(int64_t ranks, int64_t blocks, const int64_t *cost,
                                   int64_t *indices, int64_t *restore);

typedef struct ts_cut_options {
    size_t struct_size;
    int64_t length; /* positions: queries and keys alike */
    int64_t align;  /* positions of a block; 0: 128 */
    int64_t ranks;
    int32_t balance; /* ts_balance */
    int32_t reserved;
} ts_cut_options;

typedef struct ts_cut_piece {
    int64_t begin, end; /* positions */
    int64_t owner;
} ts_cut_piece;

typedef struct ts_cut {
    size_t struct_size;
    int64_t ranks, length, pieces;
    ts_cut_piece *piece;     /* ascending, all of [0, length); freed by ts_cut_release */
    int64_t work_max, bound; /* pairs seen by the queries of the busiest rank; no cut along blocks
                                has less */
    double work_mean;
} ts_cut;

TS_API void ts_cut_options_init(ts_cut_options *options);
/* The cut of positions among ranks with the least maximum work under the alignment, or a named one.
 * The sum over all rows of a mask with documents; head 0. */
TS_API ts_status ts_cut_for(const ts_mask *mask, const ts_cut_options *options, ts_cut *out);
TS_API void ts_cut_release(ts_cut *cut);
/* The cut as a placement of dim `dim`: ragged, in as many rounds as it takes,
 * "RS(1:128,0|0,256)"; like snprintf. */
TS_API size_t ts_cut_text(const ts_cut *cut, int32_t dim, char *out, size_t size);

TS_END_C
#endif
