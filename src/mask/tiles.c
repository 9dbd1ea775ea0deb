/* SPDX-License-Identifier: Apache-2.0 */
/* tiles.c - a mask compiled for the positions a rank holds: which tiles are computed, and how.
 *
 *            keys ->
 *   queries  [F][F][P][ ][ ]      row 0: run (0, 2, full), run (2, 1, bits)
 *            [F][F][F][P][ ]      row 1: run (0, 3, full), run (3, 1, bits)
 *
 * Empty tiles are in no list. A tile that its corners leave open is decided by its bits, so FULL
 * and EMPTY are exact. Bits that repeat (the diagonal of a causal mask) are kept once.
 *
 * INV: a value: made once, never changed, shared by the ranks of a world that hold these positions
 * while somebody uses it or it is among the last that were used. */
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/intmath.h"
#include "mask/slots.h"

/* ---- keys ------------------------------------------------------------------------------------ */

typedef struct blocks_key {
    const ts_mask *mask;
    const tsi_mask_shape *shape;
    tsi_span_list rows, heads; /* one element where the mask does not vary by it */
} blocks_key;

static tsi_span_list varied(bool varies, const tsi_span_list *given, int64_t count)
{
    if (!varies) return tsi_span_list_whole(1);
    return given ? *given : tsi_span_list_whole(count);
}

static uint64_t hash_list(uint64_t hash, const tsi_span_list *list)
{
    return tsi_hash_bytes(hash, tsi_spans(list), (size_t)list->span_count * sizeof(tsi_span));
}

static uint64_t key_hash(const blocks_key *key)
{
    const tsi_mask_shape *s = key->shape;
    uint64_t hash = tsi_hash_mix(key->mask->interned.hash, (uint64_t)s->offset);
    hash = tsi_hash_mix(hash, (uint64_t)s->query_block << 32 | (uint32_t)s->key_block);
    hash = hash_list(hash_list(hash, s->queries), s->keys);
    return hash_list(hash_list(hash, &key->rows), &key->heads);
}

static bool equal_blocks(const tsi_mask_blocks *b, const blocks_key *k)
{
    const tsi_mask_shape *s = k->shape;
    return b->mask == k->mask && b->offset == s->offset && b->query_block == s->query_block &&
           b->key_block == s->key_block && tsi_span_list_equal(&b->queries, s->queries) &&
           tsi_span_list_equal(&b->keys, s->keys) && tsi_span_list_equal(&b->rows, &k->rows) &&
           tsi_span_list_equal(&b->heads, &k->heads);
}

static void destroy_blocks(tsi_mask_blocks *b)
{
    ts_mask_release(b->mask);
    tsi_free(b->run);
    tsi_free(b->bits);
    tsi_arena_release(&b->memory);
    tsi_free(b);
}

/* ---- growing --------------------------------------------------------------------------------- */

static ts_status add_run(tsi_mask_blocks *b, int64_t row_first, tsi_mask_run run)
{
    tsi_mask_run *last = b->run_count > row_first ? &b->run[b->run_count - 1] : NULL;
    if (run.bits < 0 && last && last->bits < 0 && last->first + last->count == run.first) {
        last->count++;
        return TS_OK;
    }
    TSI_TRY(tsi_room(&b->run, b->run_count, &b->run_room, sizeof *b->run, "runs of tiles"));
    b->run[b->run_count++] = run;
    return TS_OK;
}

/* ---- bits of one tile ------------------------------------------------------------------------ */

typedef struct tile_place {
    int64_t query, rows, key, columns; /* first and number of local queries and keys */
    tsi_mask_at at;
} tile_place;

/* Bits of a tile at the end of b->bits; how many are set. */
static ts_status tile_bits(tsi_mask_blocks *b, const tile_place *t, int64_t *set)
{
    int64_t words = (int64_t)b->query_block * b->key_words;
    int64_t last = b->bit_count + words - 1;
    TSI_TRY(tsi_room(&b->bits, last, &b->bit_room, sizeof *b->bits, "bits of tiles"));
    uint64_t *bits = b->bits + b->bit_count;
    memset(bits, 0, (size_t)words * sizeof *bits);
    *set = 0;
    for (int64_t i = 0; i < t->rows; i++) {
        uint64_t *row = bits + i * b->key_words;
        int64_t query = b->query_at[t->query + i];
        tsi_mask_row(b->mask, t->at, query, b->key_at + t->key, t->columns, row);
        for (int64_t w = 0; w < b->key_words; w++)
            *set += tsi_mask_bits_in(row[w]);
    }
    return b->mask->by_head
               ? tsi_mask_pure(b->mask, t->at, b->query_at[t->query], b->key_at[t->key])
               : TS_OK;
}

/* Where equal bits are already: one of the last few tiles, else where they were made. */
static int64_t keep_bits(tsi_mask_blocks *b)
{
    enum { LOOK_BACK = 4 };
    int64_t words = (int64_t)b->query_block * b->key_words, at = b->bit_count;
    for (int64_t back = 1; back <= LOOK_BACK && back * words <= at; back++)
        if (memcmp(b->bits + at - back * words, b->bits + at, (size_t)words * sizeof *b->bits) == 0)
            return at - back * words;
    b->bit_count += words;
    return at;
}

/* Columns of the bits at `at` that any row sees, from a whole word on. */
static void bound_columns(const tsi_mask_blocks *b, tsi_mask_run *run)
{
    run->begin = b->key_words * 64;
    for (int32_t w = 0; w < b->key_words; w++) {
        uint64_t any = 0;
        for (int64_t i = 0; i < b->query_block; i++)
            any |= tsi_mask_tile_bits(b, run, i)[w];
        if (!any) continue;
        if (run->begin > w * 64) run->begin = w * 64;
        run->end = w * 64 + (int32_t)tsi_mask_highest(any);
    }
}

static ts_status add_tile(tsi_mask_blocks *b, const tile_place *t, int64_t row_first)
{
    const int64_t *q = b->query_at + t->query, *k = b->key_at + t->key;
    ts_mask_tile kind = tsi_mask_class(b->mask, t->at, (int64_t[]){ q[0], q[t->rows - 1] },
                                       (int64_t[]){ k[0], k[t->columns - 1] });
    tsi_mask_run run = { (int32_t)(t->key / b->key_block), 1, -1, 0, 0 };
    int64_t set = 0;
    if (kind == TS_TILE_PARTIAL) {
        TSI_TRY(tile_bits(b, t, &set));
        kind = set == 0                      ? TS_TILE_EMPTY
               : set == t->rows * t->columns ? TS_TILE_FULL
                                             : TS_TILE_PARTIAL;
    }
    if (kind == TS_TILE_EMPTY) return TS_OK;
    if (kind == TS_TILE_PARTIAL) {
        run.bits = keep_bits(b);
        bound_columns(b, &run);
    }
    b->tiles_full += kind == TS_TILE_FULL;
    b->tiles_partial += kind == TS_TILE_PARTIAL;
    return add_run(b, row_first, run);
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* The first local key at or beyond a position. */
static int64_t key_from(const tsi_mask_blocks *b, int64_t position)
{
    int64_t low = 0, high = b->key_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (b->key_at[middle] < position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static ts_status fill_row(tsi_mask_blocks *b, tsi_mask_at at, int64_t row)
{
    tile_place t = { .query = row * b->query_block, .at = at };
    t.rows = tsi_min_i64(b->query_block, b->query_count - t.query);
    int64_t begin, end, row_first = b->run_count;
    const int64_t q[2] = { b->query_at[t.query], b->query_at[t.query + t.rows - 1] };
    tsi_mask_hull(b->mask, at, q, TSI_EXTENT_MAX, &begin, &end);
    end = key_from(b, end);
    begin = key_from(b, begin) / b->key_block * b->key_block;
    for (t.key = begin; t.key < end; t.key += b->key_block) {
        t.columns = tsi_min_i64(b->key_block, b->key_count - t.key);
        TSI_TRY(add_tile(b, &t, row_first));
    }
    return TS_OK;
}

static ts_status fill(tsi_mask_blocks *b)
{
    int64_t lists = b->list_rows * b->list_heads;
    for (int64_t i = 0; i < lists; i++) {
        tsi_mask_at at = { tsi_span_list_at(&b->rows, i / b->list_heads),
                           tsi_span_list_at(&b->heads, i % b->list_heads) };
        for (int64_t t = 0; t < b->tile_rows; t++) {
            b->first[i * b->tile_rows + t] = b->run_count;
            TSI_TRY(fill_row(b, at, t));
        }
    }
    b->first[lists * b->tile_rows] = b->run_count;
    return TS_OK;
}

static bool copy_list(const tsi_span_list *from, tsi_arena *arena, tsi_span_list *out)
{
    *out = *from;
    if (!from->more) return true;
    out->more = tsi_arena_alloc(arena, (size_t)from->span_count * sizeof(tsi_span));
    if (out->more) memcpy(out->more, from->more, (size_t)from->span_count * sizeof(tsi_span));
    return out->more != NULL;
}

static int64_t *positions(const tsi_span_list *list, int64_t offset, tsi_arena *arena)
{
    int64_t *at = tsi_arena_alloc(arena, ((size_t)list->total + 1) * sizeof *at), n = 0;
    for (int64_t s = 0; at && s < list->span_count; s++) {
        const tsi_span *span = &tsi_spans(list)[s];
        for (int64_t c = 0; c < span->count; c++)
            for (int64_t i = 0; i < span->length; i++)
                at[n++] = span->begin + c * span->period + i + offset;
    }
    return at;
}

static tsi_mask_blocks *make_blocks(const blocks_key *key)
{
    const tsi_mask_shape *s = key->shape;
    tsi_mask_blocks *b = tsi_calloc(1, sizeof *b);
    if (!b) {
        tsi_fail_memory("block lists of a mask", sizeof *b);
        return NULL;
    }
    static _Atomic uint64_t made_before;
    b->serial = 1 + atomic_fetch_add_explicit(&made_before, 1, memory_order_relaxed);
    b->mask = ts_mask_retain(key->mask);
    b->offset = s->offset;
    b->query_block = s->query_block;
    b->key_block = s->key_block;
    b->key_words = (s->key_block + 63) / 64;
    b->query_count = s->queries->total;
    b->key_count = s->keys->total;
    b->tile_rows = tsi_ceil_div(b->query_count, b->query_block);
    b->tile_columns = tsi_ceil_div(b->key_count, b->key_block);
    b->list_rows = key->rows.total;
    b->list_heads = key->heads.total;
    size_t lists = (size_t)(b->list_rows * b->list_heads * b->tile_rows) + 1;
    b->first = tsi_arena_calloc(&b->memory, lists, sizeof *b->first);
    b->query_at = positions(s->queries, s->offset, &b->memory);
    b->key_at = positions(s->keys, 0, &b->memory);
    bool made =
        b->first && b->query_at && b->key_at && copy_list(s->queries, &b->memory, &b->queries) &&
        copy_list(s->keys, &b->memory, &b->keys) && copy_list(&key->rows, &b->memory, &b->rows) &&
        copy_list(&key->heads, &b->memory, &b->heads);
    ts_status status = made ? fill(b) : tsi_fail_memory("positions of a mask", lists * 8);
    b->bytes = tsi_arena_reserved(&b->memory) + (size_t)b->run_room * sizeof *b->run +
               (size_t)b->bit_room * sizeof *b->bits;
    if (status == TS_OK) return b;
    destroy_blocks(b);
    return NULL;
}

/* ---- those that are kept --------------------------------------------------------------------- */

/* One that is kept, retained, now the last used; NULL: none. Under the lock. */
static tsi_mask_blocks *find_kept(tsi_mask_state *state, const blocks_key *key, uint64_t hash)
{
    for (int64_t i = 0; i < state->blocks_count; i++) {
        tsi_mask_blocks *b = state->blocks[i];
        if (b->hash != hash || !equal_blocks(b, key)) continue;
        memmove(state->blocks + 1, state->blocks, (size_t)i * sizeof b);
        state->blocks[0] = b;
        atomic_fetch_add_explicit(&b->references, 1, memory_order_relaxed);
        return b;
    }
    return NULL;
}

/* Keeps one more, and lets go of those that were used longest ago. Under the lock. */
static void keep(tsi_mask_state *state, tsi_mask_blocks *b)
{
    while (state->blocks_count > 0 && (state->blocks_count == TSI_BLOCKS_KEPT ||
                                       state->blocks_bytes + b->bytes > TSI_BLOCKS_BYTES)) {
        tsi_mask_blocks *oldest = state->blocks[--state->blocks_count];
        state->blocks_bytes -= oldest->bytes;
        tsi_mask_blocks_release(oldest);
    }
    memmove(state->blocks + 1, state->blocks, (size_t)state->blocks_count * sizeof b);
    state->blocks[0] = b;
    state->blocks_count++;
    state->blocks_bytes += b->bytes;
}

/* Lists are made outside the lock: ranks that hold other positions make theirs at the same time. */
const tsi_mask_blocks *tsi_mask_blocks_get(const ts_mask *mask, const tsi_mask_shape *shape)
{
    blocks_key key = { mask, shape, varied(mask->by_row, shape->rows, shape->row_count),
                       varied(mask->by_head, shape->heads, shape->head_count) };
    uint64_t hash = key_hash(&key);
    tsi_mask_state *state = tsi_mask_state_of(mask->world);
    if (!state) return NULL;
    pthread_mutex_lock(&state->lock);
    tsi_mask_blocks *found = find_kept(state, &key, hash);
    pthread_mutex_unlock(&state->lock);
    if (found) return found;
    tsi_mask_blocks *made = make_blocks(&key);
    if (!made) return NULL;
    made->hash = hash;
    atomic_store_explicit(&made->references, 2, memory_order_relaxed); /* ours, and the keeper's */
    pthread_mutex_lock(&state->lock);
    found = find_kept(state, &key, hash); /* somebody may have been faster */
    if (!found) keep(state, made);
    pthread_mutex_unlock(&state->lock);
    if (!found) return made;
    destroy_blocks(made);
    return found;
}

void tsi_mask_blocks_release(const tsi_mask_blocks *blocks)
{
    union {
        const tsi_mask_blocks *given;
        tsi_mask_blocks *value;
    } same = { .given = blocks };
    if (!blocks) return;
    if (atomic_fetch_sub_explicit(&same.value->references, 1, memory_order_acq_rel) == 1)
        destroy_blocks(same.value);
}

/* ---- for those who look ---------------------------------------------------------------------- */

static void put_tiles(const tsi_mask_blocks *b, unsigned char *tile, int64_t capacity)
{
    int64_t all = b->tile_rows * b->tile_columns;
    memset(tile, TS_TILE_EMPTY, (size_t)tsi_min_i64(all, capacity));
    for (int64_t t = 0; t < b->tile_rows; t++) {
        tsi_mask_runs runs = tsi_mask_runs_of(b, 0, 0, t);
        for (int64_t i = 0; i < runs.count; i++)
            for (int64_t c = 0; c < runs.run[i].count; c++) {
                int64_t at = t * b->tile_columns + runs.run[i].first + c;
                if (at < capacity) tile[at] = runs.run[i].bits < 0 ? TS_TILE_FULL : TS_TILE_PARTIAL;
            }
    }
}

ts_status ts_mask_tiles(const ts_mask *mask, const ts_mask_size *size, unsigned char *tile,
                        int64_t capacity, ts_mask_summary *summary)
{
    if (!mask || !size) return TSI_FAIL(TS_ERR_NULL, "mask: a mask and a size are needed");
    enum { BLOCK_MAX = 1 << 16 };
    const int64_t longest = (int64_t)1 << 58; /* of a row, as everywhere */
    if (size->queries < 0 || size->keys < 0 || size->row < 0 || size->head < 0 ||
        size->queries >= longest || size->keys >= longest ||
        (mask->rows > 1 && size->row >= mask->rows) || size->query_block < 0 ||
        size->key_block < 0 || size->query_block > BLOCK_MAX || size->key_block > BLOCK_MAX ||
        size->query_block % 64 || size->key_block % 64)
        return TSI_FAIL(TS_ERR_ARG,
                        "mask: %lld x %lld in blocks of %lld x %lld is not possible; "
                        "blocks are multiples of 64",
                        (long long)size->queries, (long long)size->keys,
                        (long long)size->query_block, (long long)size->key_block);
    TSI_TRY(tsi_mask_check(mask, "mask", tsi_max_i64(mask->rows, 1), size->queries, size->keys));
    tsi_span_list queries = tsi_span_list_whole(size->queries);
    tsi_span_list keys = tsi_span_list_whole(size->keys), row = { 0 }, head = { 0 };
    (void)tsi_span_list_append(&row, (tsi_span){ size->row, 1, 1, 1 }, NULL);
    (void)tsi_span_list_append(&head, (tsi_span){ size->head, 1, 1, 1 }, NULL);
    tsi_mask_shape shape = { .queries = &queries,
                             .keys = &keys,
                             .offset = size->keys - size->queries,
                             .rows = &row,
                             .heads = &head,
                             .query_block = (int32_t)(size->query_block ? size->query_block : 128),
                             .key_block = (int32_t)(size->key_block ? size->key_block : 128) };
    const tsi_mask_blocks *b = tsi_mask_blocks_get(mask, &shape);
    if (!b) return TS_ERR_MEMORY;
    if (tile && capacity > 0) put_tiles(b, tile, capacity);
    if (summary) {
        summary->partial = b->tiles_partial;
        summary->full = b->tiles_full;
        summary->empty = b->tile_rows * b->tile_columns - b->tiles_partial - b->tiles_full;
        summary->pairs = tsi_mask_pairs(mask, (tsi_mask_at){ size->row, size->head }, shape.offset,
                                        size->keys, size->keys);
        summary->pairs_all = tsi_mul_most(size->queries, size->keys);
    }
    tsi_mask_blocks_release(b);
    return TS_OK;
}
