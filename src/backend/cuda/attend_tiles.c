/* SPDX-License-Identifier: Apache-2.0 */
/* attend_tiles.c - the block lists of masks on a GPU: copies that a stream keeps.
 *
 *   tsi_mask_blocks (a value of the host) --once--> memory of the stream --> kernels
 *
 * A new list takes the memory of the one used longest ago: the order of the stream lets earlier
 * kernels finish with it first, so nothing waits, and steps with new documents take no new memory
 * once it is large enough. What a graph reads stays as it is for as long as the stream lives.
 *
 * INV: a copy is never written while a kernel or a graph may read it. */
#include <string.h>

#include "backend/cuda/attend.h"
#include "base/alloc.h"
#include "base/error.h"

enum { KEPT = 64, KEPT_BYTES = 256 << 20 }; /* at most, besides those of graphs and the newest */

_Static_assert(sizeof(tsi_cuda_run) == sizeof(tsi_mask_run), "runs are copied as they are");

typedef struct tsi_cuda_kept {
    struct tsi_cuda_kept *next; /* used before this one */
    uint64_t serial;            /* of the lists; 0: none yet */
    void *memory;
    size_t bytes;
    bool captured; /* a graph reads it */
    tsi_cuda_tiles tiles;
} kept;

/* ---- the parts of a copy --------------------------------------------------------------------- */

enum { FIRST, QUERY_AT, KEY_AT, RUN, BITS, COLUMN_FIRST, COLUMN_RUN, PARTS }; /* of 8 bytes */

typedef struct part {
    const void *from;
    size_t bytes;
} part;

static int64_t lists_of(const tsi_mask_blocks *b)
{
    return b->list_rows * b->list_heads;
}

/* The runs of rows by columns: of column c of list l, run[first[l * columns + c]] and those before
 * the next one's. */
typedef struct turned {
    int64_t *first;
    tsi_cuda_run *run;
    int64_t *next; /* of each column of a list: where its next run goes */
    int32_t *end;  /* the row behind its last run, if that is full; -1: it is not */
} turned;

/* Rows that follow each other and see all of a column are one run. Without `run` they are counted.
 */
static void turn_list(const tsi_mask_blocks *b, int64_t list, const turned *t)
{
    const int64_t *first = b->first + list * b->tile_rows;
    int64_t *next = t->next + list * b->tile_columns;
    for (int64_t c = 0; c < b->tile_columns; c++)
        t->end[c] = -1;
    for (int32_t row = 0; row < b->tile_rows; row++)
        for (const tsi_mask_run *r = b->run + first[row]; r < b->run + first[row + 1]; r++)
            for (int32_t c = r->first; c < r->first + r->count; c++) {
                bool full = r->bits < 0, goes_on = full && t->end[c] == row;
                if (goes_on && t->run) t->run[next[c] - 1].count++;
                if (!goes_on && t->run)
                    t->run[next[c]] = (tsi_cuda_run){ .first = row, .count = 1, .bits = r->bits };
                next[c] += !goes_on;
                t->end[c] = full ? row + 1 : -1;
            }
}

static void turn_lists(const tsi_mask_blocks *b, turned *t)
{
    for (int64_t list = 0; list < lists_of(b); list++)
        turn_list(b, list, t);
}

static void drop_turned(turned *t)
{
    tsi_free(t->first);
    tsi_free(t->run);
    tsi_free(t->next);
    tsi_free(t->end);
}

static ts_status turn(const tsi_mask_blocks *b, turned *t)
{
    size_t columns = (size_t)(lists_of(b) * b->tile_columns);
    *t = (turned){ .first = tsi_calloc(columns + 1, sizeof *t->first),
                   .next = tsi_calloc(columns + 1, sizeof *t->next),
                   .end = tsi_calloc((size_t)b->tile_columns + 1, sizeof *t->end) };
    bool room = t->first && t->next && t->end;
    if (room) turn_lists(b, t);
    for (size_t c = 0; room && c < columns; c++) {
        t->first[c + 1] = t->first[c] + t->next[c];
        t->next[c] = t->first[c];
    }
    if (room) t->run = tsi_calloc((size_t)t->first[columns] + 1, sizeof *t->run);
    if (!t->run) return tsi_fail_memory("block lists", columns * 24);
    turn_lists(b, t);
    return TS_OK;
}

static size_t parts_of(const tsi_mask_blocks *b, const turned *t, part *p)
{
    int64_t lists = lists_of(b), rows = lists * b->tile_rows + 1, columns = lists * b->tile_columns;
    size_t all = 0;
    p[FIRST] = (part){ b->first, (size_t)rows * sizeof *b->first };
    p[QUERY_AT] = (part){ b->query_at, (size_t)b->query_count * sizeof *b->query_at };
    p[KEY_AT] = (part){ b->key_at, (size_t)b->key_count * sizeof *b->key_at };
    p[RUN] = (part){ b->run, (size_t)b->run_count * sizeof *b->run };
    p[BITS] = (part){ b->bits, (size_t)b->bit_count * sizeof *b->bits };
    p[COLUMN_FIRST] = (part){ t->first, (size_t)(columns + 1) * sizeof *t->first };
    p[COLUMN_RUN] = (part){ t->run, (size_t)t->first[columns] * sizeof *t->run };
    for (int i = 0; i < PARTS; i++)
        all += p[i].bytes;
    return all;
}

static tsi_cuda_tiles tiles_of(const tsi_mask_blocks *b, const part *p, const char *memory)
{
    const char *at[PARTS];
    for (int i = 0; i < PARTS; i++) {
        at[i] = memory;
        memory += p[i].bytes;
    }
    return (tsi_cuda_tiles){ .first = (const void *)at[FIRST],
                             .run = (const void *)at[RUN],
                             .bits = (const void *)at[BITS],
                             .column_first = (const void *)at[COLUMN_FIRST],
                             .column_run = (const void *)at[COLUMN_RUN],
                             .query_at = (const void *)at[QUERY_AT],
                             .key_at = (const void *)at[KEY_AT],
                             .rows = b->tile_rows,
                             .columns = b->tile_columns,
                             .by_row = b->list_rows > 1 ? b->list_heads : 0,
                             .by_head = b->list_heads > 1 ? 1 : 0 };
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Kernels may still read it: the driver frees it in the stream's order. */
static ts_status give_back(tsi_stream *stream, kept *k)
{
    void *memory = k->memory;
    k->memory = NULL;
    k->bytes = 0;
    k->serial = 0;
    if (memory)
        TSI_CUDA_TRY(stream->cuda, "block lists",
                     tsi_cu.free_async(tsi_cuda_pointer(memory), tsi_cuda_apart(stream)));
    return TS_OK;
}

/* Those used longest ago give back their memory until all have `most` bytes or less. */
static ts_status trim(tsi_stream *stream, size_t most)
{
    for (;;) {
        kept *oldest = NULL;
        size_t all = 0;
        for (kept *k = stream->kept; k; k = k->next) {
            if (k->captured || !k->memory) continue;
            oldest = k;
            all += k->bytes;
        }
        if (all <= most) return TS_OK;
        TSI_TRY(give_back(stream, oldest));
    }
}

/* While a stream captures, the copy is made beside it, now: a graph would make it at each launch.
 */
static ts_status copy_parts(tsi_stream *stream, const part *p, char *to)
{
    tsi_stream *by = stream->capture ? NULL : stream;
    bool side;
    ts_status status = tsi_cuda_begin(stream->cuda, &by, &side);
    if (status != TS_OK) return status;
    for (int i = 0; i < PARTS && status == TS_OK; i++) {
        status = tsi_cuda_stage_in(by, to, p[i].from, p[i].bytes);
        to += p[i].bytes;
    }
    return tsi_cuda_end(stream->cuda, by, side, status);
}

static ts_status make_room(tsi_stream *stream, kept *k, size_t bytes)
{
    CUdeviceptr memory = 0;
    if (bytes <= k->bytes) return TS_OK;
    size_t want = tsi_cuda_scratch_size(bytes);
    CUresult result;
    if (stream->capture) { /* it has none: see place_new */
        result = tsi_cu.alloc(&memory, want);
    } else {
        TSI_TRY(give_back(stream, k));
        TSI_TRY(trim(stream, want < KEPT_BYTES ? KEPT_BYTES - want : 0));
        result = tsi_cu.alloc_async(&memory, want, tsi_cuda_apart(stream));
        if (result == CUDA_ERROR_OUT_OF_MEMORY) {
            TSI_TRY(trim(stream, 0));
            result = tsi_cu.alloc_async(&memory, want, tsi_cuda_apart(stream));
        }
    }
    TSI_CUDA_TRY(stream->cuda, "block lists", result);
    k->memory = (void *)(uintptr_t)memory;
    k->bytes = want;
    return TS_OK;
}

/* ---- those that are kept --------------------------------------------------------------------- */

static kept **place_of(tsi_stream *stream, uint64_t serial)
{
    kept **at = &stream->kept;
    while (*at && (*at)->serial != serial)
        at = &(*at)->next;
    return at;
}

/* The one used longest ago, of enough that no graph reads; NULL: there are fewer. */
static kept **oldest_of(tsi_stream *stream)
{
    kept **oldest = NULL;
    int32_t count = 0;
    for (kept **at = &stream->kept; *at; at = &(*at)->next) {
        if ((*at)->captured) continue;
        oldest = at;
        count++;
    }
    return count < KEPT ? NULL : oldest;
}

/* To the front. */
static kept *use(tsi_stream *stream, kept **at)
{
    kept *k = *at;
    *at = k->next;
    k->next = stream->kept;
    stream->kept = k;
    return k;
}

/* A place for new lists, which has none yet. While a stream captures it is a new one: what others
 * hold may be on its way to a kernel. */
static kept *place_new(tsi_stream *stream)
{
    kept **oldest = stream->capture ? NULL : oldest_of(stream);
    kept *made = oldest ? use(stream, oldest) : tsi_calloc(1, sizeof *made);
    if (made && !oldest) {
        made->next = stream->kept;
        stream->kept = made;
    }
    if (made) made->serial = 0;
    return made;
}

static ts_status fill(tsi_stream *stream, kept *k, const tsi_mask_blocks *blocks)
{
    part p[PARTS];
    turned t;
    ts_status status = turn(blocks, &t);
    size_t bytes = status == TS_OK ? parts_of(blocks, &t, p) : 0;
    if (status == TS_OK) status = make_room(stream, k, bytes);
    if (status == TS_OK) status = copy_parts(stream, p, k->memory);
    if (status == TS_OK) {
        k->tiles = tiles_of(blocks, p, k->memory);
        k->serial = blocks->serial;
    }
    drop_turned(&t);
    return status;
}

ts_status tsi_cuda_tiles_get(tsi_stream *stream, const tsi_mask_blocks *blocks, tsi_cuda_tiles *out)
{
    kept **at = place_of(stream, blocks->serial), *k = *at ? use(stream, at) : place_new(stream);
    if (!k) return tsi_fail_memory("block lists", sizeof *k);
    if (k->serial != blocks->serial) TSI_TRY(fill(stream, k, blocks));
    k->captured |= stream->capture != NULL;
    *out = k->tiles;
    return TS_OK;
}

void tsi_cuda_tiles_drop(tsi_stream *stream, bool alive)
{
    for (kept *k = stream->kept, *next; k; k = next) {
        next = k->next;
        if (alive && k->memory) (void)tsi_cu.free(tsi_cuda_pointer(k->memory));
        tsi_free(k);
    }
    stream->kept = NULL;
}
