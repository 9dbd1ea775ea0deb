/* SPDX-License-Identifier: Apache-2.0 */
/* attention_backward_bf16.c - the gradient of attention of bf16 on the machine's own products
 * (gemm.h), as attention_backward.c does it in f32. Scores lie the other way round, a row for each
 * key:
 *
 *   s = k q^T       p = 2^(s c - lse log2(e)), c = scale log2(e)       dv += p do
 *   dp = v do^T     ds = p (dp - delta)                                dk += ds q
 *                                                                      dq^T += k^T ds
 *
 * so that what differs by query differs by column, and no row is ever reduced. p and ds are rounded
 * to bf16; all sums are f32, scaled and rounded once at the end.
 *
 *   once:    q and do of every block of queries as panels, by query and by dim; k, v and k^T, too
 *   a task:  one chunk of keys of one group: it alone writes their dk and dv. dq of a head is added
 *            up over chunks, in order.
 *
 * INV: blocks and chunks depend on the sizes alone. */
#include <math.h>
#include <string.h>

#include "backend/cpu/nn/attention.h"
#include "base/compiler.h"
#include "op/core/element.h"

enum { QUERIES = 128, KEYS = 256, UNIT = 32, TASKS = 32 };
enum { PARTIAL_BYTES = 64 << 20 };
#define LOG2_E 1.4426950408889634

/* Panels of a block: by position, k the dims of a head; turned: the other way round. */
enum { QUERY, OUT, QUERY_TURNED, OUT_TURNED, QUERY_KINDS };
enum { KEY, VALUE, KEY_TURNED, KEY_KINDS };

typedef struct backward {
    tsi_attend a;
    const tsi_kernel_io *io;
    const tsi_bf16_tile *tile;
    int64_t queries, keys, query_blocks, key_blocks; /* in a block; blocks of a head, of a group */
    int64_t chunks, chunk;                           /* of a group; blocks of keys in one */
    uint16_t *query[QUERY_KINDS], *key[KEY_KINDS];   /* [B][H][blocks], [B][G][blocks] of panels */
    int64_t query_size[QUERY_KINDS], key_size[KEY_KINDS];
    float *base, *delta; /* [B][H][query_blocks][queries] */
    float *partial;      /* [chunks][B][H][query_blocks][D][queries] */
    int64_t partial_size;
    char *scratch; /* per worker */
    size_t scratch_bytes;
} backward;

/* What a worker holds: sums [keys of a chunk][ld], [D][queries]; scores [mr][queries]; rows of ds
 * [keys][queries], and panels. */
typedef struct state {
    float *dk, *dv, *s, *dp, *hidden;
    uint16_t *rows, *p_rows; /* p_rows, ds_rows: [mr][queries], where panels need a copy */
    uint16_t *ds_rows;
    uint16_t *p, *ds, *ds_turned;
} state;

/* One block of queries of a head against one block of keys of its group. */
typedef struct block {
    int64_t b, h, g, query, rows; /* the block of queries; how many there are */
    int64_t key, columns, first;  /* the block of keys; how many; the first of its chunk */
    const float *base, *delta;
    const tsi_mask_run *run;  /* of its tile */
    bool holes;               /* what a query of a partial tile sees is not one interval */
    int32_t sees[2][QUERIES]; /* else: the interval of columns */
    float *dq;
} block;

/* ---- panels ---------------------------------------------------------------------------------- */

static tsi_panels query_panels(const backward *w, int kind, int64_t place, int64_t rows)
{
    int64_t dims = kind == QUERY || kind == QUERY_TURNED ? w->a.depth : w->a.width;
    bool turned = kind == QUERY_TURNED || kind == OUT_TURNED;
    tsi_panels p = turned ? tsi_panels_b(w->tile, dims, rows) : tsi_panels_b(w->tile, rows, dims);
    p.to = w->query[kind] + place * w->query_size[kind];
    return p;
}

static tsi_panels key_panels(const backward *w, int kind, int64_t place, int64_t columns)
{
    int64_t dims = kind == VALUE ? w->a.width : w->a.depth;
    tsi_panels p = kind == KEY_TURNED ? tsi_panels_a(w->tile, dims, columns)
                                      : tsi_panels_a(w->tile, columns, dims);
    p.to = w->key[kind] + place * w->key_size[kind];
    return p;
}

static void pack_keys(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const backward *w = context;
    const tsi_block *of[KEY_KINDS] = { &w->io->in[1].block, &w->io->in[2].block,
                                       &w->io->in[1].block };
    for (int64_t place = begin; place < end; place++) {
        int64_t first = place % w->key_blocks * w->keys, group = place / w->key_blocks;
        const int64_t at[] = { group / w->a.groups, group % w->a.groups, first };
        for (int kind = 0; kind < KEY_KINDS; kind++) {
            tsi_panels p = key_panels(w, kind, place, tsi_min_i64(w->a.keys - first, w->keys));
            tsi_attend_panels(&p, of[kind], at, kind == KEY_TURNED);
            tsi_panels_pack(&p);
        }
    }
}

/* A row of bf16 as f32. */
static const float *wide_row(const tsi_block *x, const int64_t *at, int64_t i, float *to)
{
    const char *from = (const char *)x->data + 2 * (at[0] * x->stride[0] + at[1] * x->stride[1] +
                                                    (at[2] + i) * x->stride[2]);
    tsi_gather(TS_DTYPE_F32, to, TS_DTYPE_BF16, from, 2 * x->stride[3], x->extent[3]);
    return to;
}

/* delta = rows of (o . do), and lse in powers of two; infinity where a query sees nothing, or is
 * not there: its weights are zeros. */
static void prepare_rows(const backward *w, int64_t place, const int64_t *at, float *scratch)
{
    const tsi_block *lse = &w->io->in[4].block;
    for (int64_t i = 0; i < w->queries; i++) {
        float *base = &w->base[place * w->queries + i], *delta = &w->delta[place * w->queries + i];
        *base = INFINITY;
        *delta = 0;
        if (at[2] + i >= w->a.queries) continue;
        double is =
            tsi_load_real((ts_dtype)lse->dtype, tsi_attend_lse(lse, at[0], at[1], at[2] + i));
        const float *o = wide_row(&w->io->in[3].block, at, i, scratch);
        const float *d_out = wide_row(&w->io->in[5].block, at, i, scratch + w->a.width);
        *delta = (float)w->a.set->dot(o, d_out, w->a.width);
        if (!(isinf(is) && is < 0)) *base = (float)(is * LOG2_E);
    }
}

static void pack_queries(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const backward *w = context;
    const tsi_block *of[QUERY_KINDS] = { &w->io->in[0].block, &w->io->in[5].block,
                                         &w->io->in[0].block, &w->io->in[5].block };
    for (int64_t place = begin; place < end; place++) {
        int64_t first = place % w->query_blocks * w->queries, head = place / w->query_blocks;
        const int64_t at[] = { head / w->a.heads, head % w->a.heads, first };
        for (int kind = 0; kind < QUERY_KINDS; kind++) {
            tsi_panels p =
                query_panels(w, kind, place, tsi_min_i64(w->a.queries - first, w->queries));
            tsi_attend_panels(&p, of[kind], at, kind >= QUERY_TURNED);
            tsi_panels_pack(&p);
        }
        prepare_rows(w, place, at,
                     (float *)(void *)(w->scratch + (size_t)worker * w->scratch_bytes));
    }
}

/* ---- one block ------------------------------------------------------------------------------- */

/* Which keys of a partial block each query sees, where they are one interval. */
static void see_columns(const backward *w, block *k)
{
    const int64_t at[] = { k->b, k->h, k->query * w->queries, k->key * w->keys };
    k->holes = false;
    for (int64_t i = 0; k->run->bits >= 0 && i < w->queries && !k->holes; i++) {
        tsi_attend_row row = { 0 };
        if (i < k->rows) row = tsi_attend_row_of(&w->a, k->run, at, i, k->columns);
        k->holes = row.bits != NULL;
        k->sees[0][i] = (int32_t)row.first;
        k->sees[1][i] = (int32_t)row.last;
    }
}

/* lse by column for one row, a key: infinity where a query does not see it, as of keys beyond the
 * columns that are computed. */
static const float *hide(const backward *w, const state *s, const block *k, int64_t row)
{
    if (k->run->bits < 0) return k->base;
    const int32_t key = (int32_t)row;
    for (int64_t i = 0; i < w->queries && !k->holes; i++)
        s->hidden[i] = key >= k->sees[0][i] && key < k->sees[1][i] ? k->base[i] : INFINITY;
    if (!k->holes) return s->hidden;
    bool computed = row < k->columns;
    const uint64_t *bits = tsi_mask_tile_bits(w->a.blocks, k->run, 0) + (computed ? row / 64 : 0);
    for (int64_t i = 0; i < w->queries; i++, bits += w->a.blocks->key_words)
        s->hidden[i] = computed && *bits >> (row % 64) & 1 ? k->base[i] : INFINITY;
    return s->hidden;
}

/* Weights and gradients of scores of one panel of keys, from its scores; rows beyond the last key
 * are zeros. */
static void turn_panel(const backward *w, const state *s, const block *k, tsi_panels *p,
                       tsi_panels *ds, int64_t panel)
{
    const tsi_bf16_tile *tile = w->tile;
    bool direct = tile->run == tile->ka;
    int64_t columns = p->panel_size / tile->mr; /* with zeros up to whole groups */
    int64_t row_step = direct ? tile->ka : w->queries;
    tsi_weigh_back x = { .step = direct ? (int64_t)tile->mr * tile->ka : tile->run,
                         .delta = k->delta,
                         .factor = (float)((double)w->a.scale * LOG2_E),
                         .count = columns };
    for (int64_t r = 0; r < tile->mr; r++) {
        int64_t row = panel * tile->mr + r;
        x.s = s->s + r * w->queries;
        x.dp = s->dp + r * w->queries;
        x.base = hide(w, s, k, row);
        x.p = (direct ? p->to + panel * p->panel_size : s->p_rows) + r * row_step;
        x.ds = (direct ? ds->to + panel * ds->panel_size : s->ds_rows) + r * row_step;
        x.row = s->rows + row * w->queries;
        tile->weigh_back(&x);
    }
    if (direct) return;
    p->from = s->p_rows - panel * tile->mr * w->queries;
    ds->from = s->ds_rows - panel * tile->mr * w->queries;
    p->stride = ds->stride = w->queries;
    p->k_stride = ds->k_stride = 1;
    tsi_panel_pack(p, panel);
    tsi_panel_pack(ds, panel);
}

static void take_block(const backward *w, const state *s, const block *k)
{
    const tsi_bf16_tile *tile = w->tile;
    int64_t heads = w->a.heads, q_place = (k->b * heads + k->h) * w->query_blocks + k->query;
    int64_t k_place = (k->b * w->a.groups + k->g) * w->key_blocks + k->key;
    int64_t all = tsi_min_i64(w->a.keys - k->key * w->keys, w->keys); /* as they were packed */
    int64_t depth = tsi_round_up(w->a.depth, tile->nr), width = tsi_round_up(w->a.width, tile->nr);
    tsi_panels q[QUERY_KINDS], key = key_panels(w, KEY, k_place, k->columns),
                               value = key_panels(w, VALUE, k_place, k->columns);
    for (int kind = 0; kind < QUERY_KINDS; kind++)
        q[kind] = query_panels(w, kind, q_place, k->rows);
    tsi_panels p = tsi_panels_a(tile, k->columns, k->rows), ds = p, one = key, two = value;
    p.to = s->p;
    ds.to = s->ds;
    one.panels = two.panels = 1;
    for (int64_t panel = 0; panel < p.panels; panel++) {
        one.to = key.to + panel * key.panel_size;
        two.to = value.to + panel * value.panel_size;
        tsi_panels_multiply(&one, &q[QUERY], s->s, w->queries, true);
        tsi_panels_multiply(&two, &q[OUT], s->dp, w->queries, true);
        turn_panel(w, s, k, &p, &ds, panel);
    }
    int64_t row = k->key * w->keys - k->first;
    tsi_panels_multiply(&p, &q[OUT_TURNED], s->dv + row * width, width, false);
    tsi_panels_multiply(&ds, &q[QUERY_TURNED], s->dk + row * depth, depth, false);
    tsi_panels turned = key_panels(w, KEY_TURNED, k_place, k->columns);
    turned.panel_size = tsi_round_up(all, tile->kr) * tile->mr;
    tsi_panels columns = tsi_panels_b(tile, k->rows, k->columns);
    columns.from = s->rows;
    columns.to = s->ds_turned;
    columns.stride = 1;
    columns.k_stride = w->queries;
    tsi_panels_pack(&columns);
    tsi_panels_multiply(&turned, &columns, k->dq, w->queries, false);
}

/* ---- tasks ----------------------------------------------------------------------------------- */

/* The tiles of keys from k->first to `end` that one block of queries sees. */
static void take_queries(const backward *w, const state *s, block *k, int64_t end)
{
    const tsi_attend *a = &w->a;
    int64_t place = (k->b * a->heads + k->h) * w->query_blocks + k->query;
    k->base = w->base + place * w->queries;
    k->delta = w->delta + place * w->queries;
    k->rows = tsi_min_i64(a->queries - k->query * w->queries, w->queries);
    tsi_mask_runs runs = tsi_mask_runs_of(a->blocks, k->b, k->h, k->query);
    for (int64_t r = 0; r < runs.count; r++) {
        k->run = &runs.run[r];
        for (k->key = k->run->first; k->key < k->run->first + k->run->count; k->key++) {
            int64_t first = k->key * w->keys;
            if (first < k->first || first >= end) continue;
            k->columns = tsi_attend_columns(a, k->run, first);
            see_columns(w, k);
            take_block(w, s, k);
        }
    }
}

/* Rows of sums into rows of an output, scaled. */
static void put_rows(const backward *w, const tsi_block *to, const int64_t *at, float *sum,
                     int64_t ld, int64_t count, float scale)
{
    for (int64_t i = 0; i < count; i++) {
        char *row = (char *)to->data + 2 * (at[0] * to->stride[0] + at[1] * to->stride[1] +
                                            (at[2] + i) * to->stride[2]);
        float *from = sum + i * ld;
        if (scale != 1.0f) w->a.set->scale(from, from, scale, to->extent[3]);
        tsi_scatter(TS_DTYPE_BF16, row, 2 * to->stride[3], TS_DTYPE_F32, from, to->extent[3]);
    }
}

/* A part of `memory` (NULL while sizes are added up) after those before it, of whole cache lines.
 */
static void *part(char *memory, size_t *at, size_t bytes)
{
    char *here = memory ? memory + *at : NULL;
    *at += (bytes + TSI_CACHE_LINE - 1) / TSI_CACHE_LINE * TSI_CACHE_LINE;
    return here;
}

/* Where the parts of a worker's scratch begin; returns its size. */
static size_t lay_out(const backward *w, state *s, char *scratch)
{
    const size_t f = sizeof(float), h = sizeof(uint16_t), mr = (size_t)w->tile->mr;
    size_t keys = (size_t)tsi_round_up(w->keys, w->tile->mr), queries = (size_t)w->queries;
    size_t depth = (size_t)tsi_round_up(w->a.depth, w->tile->nr);
    size_t width = (size_t)tsi_round_up(w->a.width, w->tile->nr);
    size_t own = (size_t)(w->chunk * w->keys) + mr;
    size_t at = 0;
    s->dk = part(scratch, &at, own * depth * f);
    s->dv = part(scratch, &at, own * width * f);
    s->s = part(scratch, &at, mr * queries * f);
    s->dp = part(scratch, &at, mr * queries * f);
    s->hidden = part(scratch, &at, queries * f);
    s->rows = part(scratch, &at, keys * queries * h);
    s->p_rows = part(scratch, &at, mr * queries * h);
    s->ds_rows = part(scratch, &at, mr * queries * h);
    s->p = part(scratch, &at, keys * queries * h);
    s->ds = part(scratch, &at, keys * queries * h);
    s->ds_turned = part(scratch, &at, (keys + UNIT) * queries * h);
    return at;
}

static void run_task(const backward *w, int64_t task, char *scratch)
{
    const tsi_attend *a = &w->a;
    state s;
    (void)lay_out(w, &s, scratch);
    int64_t chunk = task % w->chunks, group = task / w->chunks;
    block k = { .b = group / a->groups, .g = group % a->groups };
    k.first = chunk * w->chunk * w->keys;
    int64_t end = tsi_min_i64(k.first + w->chunk * w->keys, a->keys), count = end - k.first;
    int64_t depth = tsi_round_up(a->depth, w->tile->nr),
            width = tsi_round_up(a->width, w->tile->nr);
    memset(s.dk, 0, (size_t)((count + w->tile->mr) * depth) * sizeof(float));
    memset(s.dv, 0, (size_t)((count + w->tile->mr) * width) * sizeof(float));
    for (k.h = 0; k.h < a->heads; k.h++) {
        if (tsi_attend_group(a, k.h) != k.g) continue;
        for (k.query = 0; k.query < w->query_blocks; k.query++) {
            int64_t place = ((chunk * a->batches + k.b) * a->heads + k.h) * w->query_blocks;
            k.dq = w->partial + (place + k.query) * w->partial_size;
            memset(k.dq, 0, (size_t)w->partial_size * sizeof(float));
            take_queries(w, &s, &k, end);
        }
    }
    const int64_t at[] = { k.b, k.g, k.first };
    put_rows(w, &w->io->out[1].block, at, s.dk, depth, count, a->scale);
    put_rows(w, &w->io->out[2].block, at, s.dv, width, count, 1.0f);
}

static void run_tasks(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const backward *w = context;
    tsi_bf16_begin(w->tile);
    for (int64_t task = begin; task < end; task++)
        run_task(w, task, w->scratch + (size_t)worker * w->scratch_bytes);
    tsi_bf16_end(w->tile);
}

/* dq of blocks of queries: chunks added up in order, and turned. */
static void finish_queries(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const backward *w = context;
    float *rows = (float *)(void *)(w->scratch + (size_t)worker * w->scratch_bytes);
    int64_t blocks = w->a.batches * w->a.heads * w->query_blocks, depth = w->a.depth;
    for (int64_t place = begin; place < end; place++) {
        float *sum = w->partial + place * w->partial_size;
        for (int64_t c = 1; c < w->chunks; c++)
            w->a.set->join_f32[TSI_BY_SUM](sum, sum + c * blocks * w->partial_size,
                                           depth * w->queries);
        int64_t first = place % w->query_blocks * w->queries, head = place / w->query_blocks;
        const int64_t at[] = { head / w->a.heads, head % w->a.heads, first };
        int64_t count = tsi_min_i64(w->a.queries - first, w->queries);
        for (int64_t i = 0; i < count; i++)
            for (int64_t d = 0; d < depth; d++)
                rows[i * depth + d] = sum[d * w->queries + i];
        put_rows(w, &w->io->out[0].block, at, rows, depth, count, w->a.scale);
    }
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* Sizes of blocks and chunks, by the sizes of operands alone. */
static void cut(backward *w)
{
    const tsi_attend *a = &w->a;
    const tsi_bf16_tile *tile = w->tile;
    w->queries = tsi_min_i64(QUERIES, tsi_round_up(a->queries, UNIT));
    w->keys = tsi_min_i64(KEYS / tile->mr * tile->mr, tsi_round_up(a->keys, tile->mr));
    w->query_blocks = (a->queries - 1) / w->queries + 1;
    w->key_blocks = (a->keys - 1) / w->keys + 1;
    int64_t dims[QUERY_KINDS] = { a->depth, a->width, a->depth, a->width };
    for (int kind = 0; kind < QUERY_KINDS; kind++)
        w->query_size[kind] = w->queries * tsi_round_up(dims[kind], UNIT);
    w->key_size[KEY] = w->keys * tsi_round_up(a->depth, tile->kr);
    w->key_size[VALUE] = w->keys * tsi_round_up(a->width, tile->kr);
    w->key_size[KEY_TURNED] = tsi_round_up(a->depth, tile->mr) * tsi_round_up(w->keys, tile->kr);
    w->partial_size = tsi_round_up(a->depth, tile->mr) * w->queries;
    int64_t tasks = a->batches * a->groups;
    int64_t bytes = a->batches * a->heads * w->query_blocks * w->partial_size * 4;
    int64_t chunks = tasks < TASKS ? TASKS / tasks : 1;
    chunks = tsi_min_i64(chunks, w->key_blocks);
    if (bytes > 0)
        chunks = tsi_min_i64(chunks, PARTIAL_BYTES / bytes + 1); /* heads may have size 0 */
    w->chunk = (w->key_blocks - 1) / chunks + 1;
    w->chunks = (w->key_blocks - 1) / w->chunk + 1;
}

/* The parts of what workers share; returns their size. */
static size_t lay_out_shared(backward *w, char *memory)
{
    const tsi_attend *a = &w->a;
    size_t at = 0;
    size_t q_places = (size_t)(a->batches * a->heads * w->query_blocks);
    size_t k_places = (size_t)(a->batches * a->groups * w->key_blocks);
    size_t rows = q_places * (size_t)w->queries * sizeof(float);
    for (int kind = 0; kind < QUERY_KINDS; kind++)
        w->query[kind] = part(memory, &at, q_places * (size_t)w->query_size[kind] * 2);
    for (int kind = 0; kind < KEY_KINDS; kind++)
        w->key[kind] = part(memory, &at, k_places * (size_t)w->key_size[kind] * 2);
    w->base = part(memory, &at, rows);
    w->delta = part(memory, &at, rows);
    w->partial =
        part(memory, &at, (size_t)w->chunks * q_places * (size_t)w->partial_size * sizeof(float));
    return at;
}

ts_status tsi_attend_backward_bf16(const tsi_kernel_io *io, tsi_attend *a)
{
    backward w = { .a = *a, .io = io, .tile = tsi_bf16_tile_of_machine() };
    cut(&w);
    TSI_TRY(tsi_attend_tiles(a, w.queries, w.keys));
    w.a = *a;
    state s;
    w.scratch_bytes = lay_out(&w, &s, NULL);
    /* also for rows: o and do of prepare_rows, dq of finish_queries */
    size_t rows = (size_t)(w.queries * a->depth + 2 * a->width) * sizeof(float);
    if (w.scratch_bytes < rows) w.scratch_bytes = rows;
    tsi_scratch shared = { 0 }, own = { 0 };
    ts_status status = tsi_scratch_get(&shared, io->rank, lay_out_shared(&w, NULL), 1);
    if (status == TS_OK)
        status = tsi_scratch_get(&own, io->rank, (size_t)tsi_parallel_threads(io->rank),
                                 w.scratch_bytes);
    if (status == TS_OK) {
        (void)lay_out_shared(&w, shared.data);
        w.scratch = own.data;
        int64_t q_places = a->batches * a->heads * w.query_blocks;
        tsi_parallel_for(io->rank, a->batches * a->groups * w.key_blocks, 1, pack_keys, &w);
        tsi_parallel_for(io->rank, q_places, 1, pack_queries, &w);
        tsi_parallel_for(io->rank, a->batches * a->groups * w.chunks, 1, run_tasks, &w);
        tsi_parallel_for(io->rank, q_places, 1, finish_queries, &w);
    }
    tsi_scratch_done(&own);
    tsi_scratch_done(&shared);
    return status;
}
