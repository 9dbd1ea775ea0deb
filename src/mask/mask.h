/* SPDX-License-Identifier: Apache-2.0 */
/* mask.h - bodies of masks, and what compute code asks them.
 *
 *   ts_mask (interned) --> a tree of nodes: leaves say which keys a query sees
 *   tsi_mask_blocks (cached by value) --> which tiles are computed, which of them under bits
 *
 * A leaf that is no table is an interval of keys per query, both of whose ends grow with the query:
 * so a rectangle of positions is judged by its corners alone, in O(leaves).
 *
 * INV: nothing here knows tensors or ranks beyond the world the values live in. Users' predicates
 * are called while blocks are compiled, never by a kernel. */
#ifndef TSI_MASK_MASK_H
#define TSI_MASK_MASK_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/intern.h"
#include "layout/region.h"
#include "tessera/mask.h"

typedef enum tsi_mask_kind {
    TSI_MASK_FULL,
    TSI_MASK_CAUSAL,
    TSI_MASK_WINDOW,
    TSI_MASK_PREFIX,
    TSI_MASK_DOCUMENTS,
    TSI_MASK_USER,
    TSI_MASK_DENSE,
    TSI_MASK_AND,
    TSI_MASK_OR
} tsi_mask_kind;

enum { TSI_MASK_NODES = 24, TSI_MASK_WORD = 32, TSI_MASK_NAME = 96 };

typedef struct tsi_mask_user { /* a registered predicate or table; lives as long as the world */
    struct tsi_mask_user *next;
    char name[TSI_MASK_WORD];
    ts_mask_fn fn; /* NULL: a table */
    void *context;
    int64_t queries, keys;
    const unsigned char *seen; /* owned */
} tsi_mask_user;

typedef struct tsi_mask_node {
    int32_t kind, left, right, reserved; /* AND, OR: their parts, earlier in the list */
    int64_t a, b;                        /* WINDOW: l, r; PREFIX: n; DOCUMENTS: rows */
    int64_t *first;            /* DOCUMENTS: row r has ends first[r] .. first[r + 1] - 1 */
    int64_t *end;              /* where each document of a row ends */
    const tsi_mask_user *user; /* USER, DENSE */
} tsi_mask_node;

struct ts_mask {
    tsi_interned interned; /* the hash is that of the text, the same in every process */
    ts_world *world;
    const char *text;         /* its one spelling; owned */
    char name[TSI_MASK_NAME]; /* the text, or "@" and its hash */
    int32_t node_count, alibi;
    double cap;                         /* 0: none */
    int64_t rows, length;               /* of documents; 0: any */
    int32_t by_row, by_head;            /* what is seen differs by it */
    tsi_mask_node node[TSI_MASK_NODES]; /* the last is the root */
    tsi_arena memory;
};

/* By text or name; retained. NULL: recorded. */
const ts_mask *tsi_mask_find(ts_world *world, const char *text);
/* Whether a mask fits rows and lengths; records a sentence that begins with `what`. */
ts_status tsi_mask_check(const ts_mask *mask, const char *what, int64_t rows, int64_t queries,
                         int64_t keys);
/* Reads and checks a text without a world to keep it in; names by hash are taken as they are. */
ts_status tsi_mask_check_text(const char *text, const char *what, int64_t rows, int64_t queries,
                              int64_t keys);
static inline bool tsi_mask_is_full(const ts_mask *mask)
{
    return mask->node[mask->node_count - 1].kind == TSI_MASK_FULL;
}
/* The slope of a head of alibi. */
double tsi_mask_slope(int64_t head, int64_t heads);

/* ---- text (mask_text.c) ---------------------------------------------------------------------- */
/* Nodes, scores and what they vary by, from a text; memory in out->memory. */
ts_status tsi_mask_parse(const char *text, const tsi_mask_user *users, ts_mask *out);
char *tsi_mask_print(const ts_mask *mask); /* the caller frees; NULL: recorded */

/* ---- who sees whom (mask_see.c) -------------------------------------------------------------- */
typedef struct tsi_mask_at { /* which of several masks: of a row and head, globally */
    int64_t row, head;
} tsi_mask_at;
bool tsi_mask_sees(const ts_mask *mask, tsi_mask_at at, int64_t query, int64_t key);
/* Bits of keys[0 .. count) for a query, into (count + 63) / 64 words; keys ascend. */
void tsi_mask_row(const ts_mask *mask, tsi_mask_at at, int64_t query, const int64_t *keys,
                  int64_t count, uint64_t *bits);
/* What is known of queries [q0, q1] against keys [k0, k1]: PARTIAL may turn out to be either. */
ts_mask_tile tsi_mask_class(const ts_mask *mask, tsi_mask_at at, const int64_t q[2],
                            const int64_t k[2]);
/* Keys outside [*begin, *end) are seen by none of the queries [q0, q1]. */
void tsi_mask_hull(const ts_mask *mask, tsi_mask_at at, const int64_t q[2], int64_t keys,
                   int64_t *begin, int64_t *end);
/* Intervals of keys [0, keys) outside of which queries [q0, q1] see nothing, ascending; of tables:
 * everything. How many, at most TSI_MASK_NODES. */
typedef struct tsi_mask_interval {
    int64_t begin, end;
} tsi_mask_interval;
int32_t tsi_mask_intervals(const ts_mask *mask, tsi_mask_at at, const int64_t q[2], int64_t keys,
                           tsi_mask_interval *out);
/* Where the document of a position begins; 0 of a mask without documents. */
int64_t tsi_mask_document(const ts_mask *mask, int64_t row, int64_t position);
/* Pairs that queries [q0, q1) see of keys [0, keys). */
int64_t tsi_mask_pairs(const ts_mask *mask, tsi_mask_at at, int64_t q0, int64_t q1, int64_t keys);
/* Does a user's predicate answer alike when it is asked again? Asked where blocks are compiled. */
ts_status tsi_mask_pure(const ts_mask *mask, tsi_mask_at at, int64_t query, int64_t key);

/* ---- block lists (tiles.c) ------------------------------------------------------------------ */
/* Tiles [first, first + count) of one row of tiles, all of one kind; PARTIAL: one tile. */
typedef struct tsi_mask_run {
    int32_t first, count;
    int64_t bits; /* PARTIAL: first word of its bits, query_block rows of key_words; FULL: -1 */
    int32_t begin, end; /* PARTIAL: outside of these columns no row sees any; begin: of 64 */
} tsi_mask_run;

/* Positions that queries and keys stand at, as sorted lists: regions, shifted. */
typedef struct tsi_mask_shape {
    const tsi_span_list *queries, *keys; /* global indices */
    int64_t offset;                      /* of queries: S - T */
    const tsi_span_list *rows, *heads;   /* global; NULL: 0 .. row_count - 1 */
    int64_t row_count, head_count;
    int32_t query_block, key_block;
} tsi_mask_shape;

typedef struct tsi_mask_blocks {
    uint64_t hash, serial; /* serial: of this one alone, in all of the process's time */
    _Atomic int64_t references;
    size_t bytes;                             /* of all that it holds */
    const ts_mask *mask;                      /* retained */
    tsi_span_list queries, keys, rows, heads; /* copies of what it was made for */
    int64_t offset;
    int32_t query_block, key_block, key_words, reserved;
    int64_t query_count, key_count, tile_rows, tile_columns;
    int64_t list_rows, list_heads; /* 1 where the mask does not vary */
    int64_t *query_at, *key_at;    /* positions */
    /* Runs of row t of tiles of list i: run[first[i * tile_rows + t]] .. the next one's. */
    int64_t *first;
    tsi_mask_run *run;
    uint64_t *bits;
    int64_t run_count, run_room, bit_count, bit_room; /* bits in words */
    int64_t tiles_partial, tiles_full;                /* of all lists */
    tsi_arena memory;
} tsi_mask_blocks;

/* Keys of [0, keys) that any of the shape's queries sees, and those of the shape itself
 * (mask_union.c). */
ts_status tsi_mask_union(const ts_mask *mask, const tsi_mask_shape *shape, int64_t keys,
                         tsi_arena *arena, tsi_span_list *out);
/* Retained; equal mask and positions give the same one while it is kept. NULL: recorded. */
const tsi_mask_blocks *tsi_mask_blocks_get(const ts_mask *mask, const tsi_mask_shape *shape);
void tsi_mask_blocks_release(const tsi_mask_blocks *blocks);

typedef struct tsi_mask_runs {
    const tsi_mask_run *run;
    int64_t count;
} tsi_mask_runs;
/* Of a local row and head, and a row of tiles. */
static inline tsi_mask_runs tsi_mask_runs_of(const tsi_mask_blocks *b, int64_t row, int64_t head,
                                             int64_t tile_row)
{
    int64_t at = (b->list_rows > 1 ? row : 0) * b->list_heads + (b->list_heads > 1 ? head : 0);
    const int64_t *first = b->first + at * b->tile_rows + tile_row;
    int64_t count = first[1] - first[0]; /* a mask that shows nothing has no runs at all */
    return (tsi_mask_runs){ count > 0 ? b->run + first[0] : NULL, count };
}
static inline int64_t tsi_mask_bits_in(uint64_t word) /* that are set */
{
    word -= word >> 1 & UINT64_C(0x5555555555555555);
    word = (word & UINT64_C(0x3333333333333333)) + (word >> 2 & UINT64_C(0x3333333333333333));
    word = (word + (word >> 4)) & UINT64_C(0x0F0F0F0F0F0F0F0F);
    return (int64_t)(word * UINT64_C(0x0101010101010101) >> 56);
}
static inline int64_t tsi_mask_lowest(uint64_t word) /* bit that is set; 64: none */
{
    return tsi_mask_bits_in(~word & (word - 1));
}
static inline int64_t tsi_mask_highest(uint64_t word) /* bit that is set, and one more; 0: none */
{
    for (int by = 1; by < 64; by *= 2)
        word |= word >> by;
    return tsi_mask_bits_in(word);
}
/* Bits of the keys of a partial tile that row i of its queries sees. */
static inline const uint64_t *tsi_mask_tile_bits(const tsi_mask_blocks *b, const tsi_mask_run *run,
                                                 int64_t i)
{
    return b->bits + run->bits + i * b->key_words;
}

#endif
