/* SPDX-License-Identifier: Apache-2.0 */
/* sort.c - sort and topk along a dim, line by line, on all threads.
 *
 *   sort    a radix sort of keys with their places (radix.h); few long lines are each sorted by all
 *           threads together
 *   topk    of a long line and a small k: elements that may be among the k first are collected; now
 *           and then the k first of those are chosen, and the last of them is the new bound
 *
 * The order is that of the reference, which is total: the same values and places, bit for bit. */
#include "backend/cpu/data.h"
#include "backend/cpu/index/radix.h"
#include "op/index/index.h"

enum { GRAIN = 4096, LONG = 65536, STEP = 32, ROOM_MIN = 512 };

typedef struct lines {
    const tsi_kernel_io *io;
    tsi_block in, values, indices; /* at least one dim: a number is a line of one */
    int32_t dim, words;
    int64_t count, wanted, lines, room; /* of a line: elements, results, items of its scratch */
    int64_t in_step, values_step, indices_step; /* bytes */
    ts_dtype dtype;
    size_t size;
    bool descending, chooses;
    uint64_t *scratch; /* per worker: twice `room` items */
} lines;

typedef struct line {
    const char *in;
    char *values, *indices;
} line;

static line line_at(const lines *l, int64_t number)
{
    int64_t in = 0, values = 0, indices = 0;
    for (int32_t d = l->in.ndim - 1; d >= 0; d--) {
        if (d == l->dim) continue;
        int64_t at = number % l->in.extent[d];
        number /= l->in.extent[d];
        in += at * l->in.stride[d];
        values += at * l->values.stride[d];
        indices += at * l->indices.stride[d];
    }
    return (line){ tsi_block_at(&l->in, in), tsi_block_at(&l->values, values),
                   tsi_block_at(&l->indices, indices) };
}

/* ---- results --------------------------------------------------------------------------------- */

static uint64_t place_of(const lines *l, const uint64_t *items, int64_t i)
{
    return l->words == 1 ? items[i] & 0xFFFFFFFFu : items[2 * i + 1];
}

static TSI_INLINE void store_values(const lines *l, const line *at, const uint64_t *items,
                                    size_t size)
{
    for (int64_t i = 0; i < l->wanted; i++)
        tsi_copy_one(at->values + i * l->values_step,
                     at->in + (int64_t)place_of(l, items, i) * l->in_step, size);
}

static void store_line(const lines *l, const line *at, const uint64_t *items)
{
    if (l->size == 4)
        store_values(l, at, items, 4);
    else if (l->size == 2)
        store_values(l, at, items, 2);
    else if (l->size == 8)
        store_values(l, at, items, 8);
    else
        store_values(l, at, items, 1);
    for (int64_t i = 0; i < l->wanted; i++) {
        int64_t place = (int64_t)place_of(l, items, i);
        memcpy(at->indices + i * l->indices_step, &place, sizeof place);
    }
}

/* ---- all of a line --------------------------------------------------------------------------- */

static void sort_line(const lines *l, ts_rank *rank, int64_t number, uint64_t *scratch)
{
    line at = line_at(l, number);
    uint64_t *other = scratch + l->room * l->words;
    uint64_t live =
        tsi_items_load(l->dtype, at.in, l->in_step, l->count, l->descending, l->words, scratch);
    store_line(l, &at, tsi_radix_sort(rank, scratch, other, l->count, l->words, live));
}

/* ---- the first k ----------------------------------------------------------------------------- */

typedef struct choice {
    const lines *l;
    uint64_t *items, *other;
    int64_t count;
    uint64_t bound; /* keys above it are not among the first */
    bool done;      /* nothing can come before what is there */
} choice;

/* The first k of what was collected stay, in order. */
static void choose(choice *c)
{
    int64_t k = c->l->wanted;
    uint64_t *sorted = tsi_radix_sort(NULL, c->items, c->other, c->count, c->l->words,
                                      c->l->words == 1 ? UINT64_MAX << 32 : UINT64_MAX);
    if (sorted != c->items) {
        c->other = c->items;
        c->items = sorted;
    }
    if (c->count < k) return;
    c->count = k;
    uint64_t last = c->items[(k - 1) * c->l->words];
    if (c->l->words == 1) last >>= 32;
    c->done = last == 0;
    c->bound = last - 1; /* an equal one that comes later comes after */
}

static void collect_32(choice *c, const uint32_t *keys, int64_t first, int64_t n)
{
    uint32_t bound = (uint32_t)c->bound;
    for (int64_t i = 0; i < n && !c->done; i += STEP) {
        int64_t end = i + STEP < n ? i + STEP : n;
        uint32_t any = 0;
        for (int64_t j = i; j < end; j++)
            any |= keys[j] <= bound;
        if (!any) continue;
        int64_t m = c->count;
        for (int64_t j = i; j < end; j++) {
            c->items[m] = (uint64_t)keys[j] << 32 | (uint64_t)(first + j);
            m += keys[j] <= bound;
        }
        c->count = m;
        if (m + STEP < c->l->room) continue;
        choose(c);
        bound = (uint32_t)c->bound;
    }
}

static void collect_64(choice *c, const uint64_t *keys, int64_t first, int64_t n)
{
    for (int64_t i = 0; i < n && !c->done; i++) {
        if (keys[i] > c->bound) continue;
        c->items[2 * c->count] = keys[i];
        c->items[2 * c->count + 1] = (uint64_t)(first + i);
        if (++c->count + STEP >= c->l->room) choose(c);
    }
}

static void choose_line(const lines *l, int64_t number, uint64_t *scratch)
{
    line at = line_at(l, number);
    uint32_t narrow[TSI_KEYS_MAX];
    uint64_t wide[TSI_KEYS_MAX];
    choice c = { .l = l, .items = scratch, .other = scratch + l->room * l->words };
    c.bound = UINT64_MAX;
    for (int64_t first = 0, n; first < l->count && !c.done; first += n) {
        n = l->count - first < TSI_KEYS_MAX ? l->count - first : TSI_KEYS_MAX;
        const char *from = at.in + first * l->in_step;
        if (l->words == 1) {
            tsi_keys_32(l->dtype, from, l->in_step, n, l->descending, narrow);
            collect_32(&c, narrow, first, n);
        } else {
            tsi_keys_64(l->dtype, from, l->in_step, n, l->descending, wide);
            collect_64(&c, wide, first, n);
        }
    }
    choose(&c);
    store_line(l, &at, c.items);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void run_lines(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const lines *l = context;
    uint64_t *scratch = l->scratch + 2 * l->room * l->words * worker;
    for (int64_t i = begin; i < end; i++)
        if (l->chooses)
            choose_line(l, i, scratch);
        else
            sort_line(l, NULL, i, scratch);
}

static tsi_block as_line(const tsi_block *block)
{
    tsi_block out = *block;
    if (out.ndim > 0) return out;
    out.ndim = 1;
    out.extent[0] = out.stride[0] = 1;
    return out;
}

static void lines_make(lines *l, const tsi_kernel_io *io)
{
    const tsi_sort_attributes *a = io->attributes;
    *l = (lines){ .io = io,
                  .in = as_line(&io->in[0].block),
                  .values = as_line(&io->out[0].block),
                  .indices = as_line(&io->out[1].block),
                  .dim = (int32_t)a->dim,
                  .descending = a->descending != 0 };
    l->dtype = (ts_dtype)l->in.dtype;
    l->size = ts_dtype_size(l->dtype);
    l->count = l->in.extent[l->dim];
    l->wanted = l->values.extent[l->dim];
    l->words = tsi_item_words(l->dtype, l->count);
    if (l->wanted == 0) return; /* there are no lines then */
    l->lines = tsi_block_count(&l->in) / l->count;
    l->in_step = l->in.stride[l->dim] * (int64_t)l->size;
    l->values_step = l->values.stride[l->dim] * (int64_t)l->size;
    l->indices_step = l->indices.stride[l->dim] * (int64_t)sizeof(int64_t);
    l->room = 4 * l->wanted > ROOM_MIN ? 4 * l->wanted : ROOM_MIN;
    l->chooses = l->room < l->count / 2;
    if (!l->chooses) l->room = l->count;
}

ts_status tsi_cpu_sort(const tsi_kernel_io *io)
{
    lines l;
    lines_make(&l, io);
    if (l.lines == 0) return TS_OK;
    int32_t threads = tsi_parallel_threads(io->rank);
    bool together = !l.chooses && l.count >= LONG && l.lines < threads;
    int64_t workers = together || l.lines * l.count < GRAIN ? 1 : threads;
    tsi_scratch scratch;
    TSI_TRY(tsi_scratch_get(&scratch, io->rank, (size_t)(2 * l.room * l.words * workers),
                            sizeof *l.scratch));
    l.scratch = scratch.data;
    for (int64_t i = 0; together && i < l.lines; i++)
        sort_line(&l, io->rank, i, l.scratch);
    if (!together)
        tsi_parallel_for(io->rank, l.lines, workers == 1 ? l.lines : GRAIN / l.count + 1, run_lines,
                         &l);
    tsi_scratch_done(&scratch);
    return TS_OK;
}
