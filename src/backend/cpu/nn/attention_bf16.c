/* SPDX-License-Identifier: Apache-2.0 */
/* attention_bf16.c - attention forward of bf16 on the machine's own products (gemm.h), as
 * attention.c does it in f32: blocks of queries against blocks of keys, with a running softmax.
 *
 *   once:                     k and v of every group of heads as panels
 *   a task:                   about QUERIES queries of one head, as panels
 *   for each block of keys:   s = q k^T in f32; weights p = 2^(s c - top) rounded to bf16, c =
 *                             scale log2(e); o = o 2^(top before - top) + p v in f32
 *   at the end:               out = o / sum p, lse = (top + log2 sum p) ln 2
 *
 * Sums of p are those before rounding. Blocks of keys that no query of a task sees are left out.
 * INV: tasks depend on the sizes alone. */
#include <math.h>
#include <string.h>

#include "backend/cpu/nn/attention.h"
#include "base/compiler.h"
#include "device/number.h"
#include "op/core/element.h"

enum { QUERIES = 32, ROWS_MAX = 64, KEYS = 256, UNIT = 32, NEAR = 32 };
#define LOG2_E 1.4426950408889634
#define LN_2 0.6931471805599453

typedef struct forward {
    tsi_attend a;
    const tsi_bf16_tile *tile;
    const tsi_block *q, *k, *v, *out, *lse;
    float factor; /* scale log2(e) */
    float *norm;  /* [B][G][key_blocks]: the largest norm of a key; then of all of a group */
    int64_t step, rows, key_blocks, query_blocks; /* keys and queries in a block */
    uint16_t *keys, *values;                      /* [B][G][key_blocks] of blocks of these sizes */
    int64_t keys_size, values_size;
    char *scratch; /* per worker */
    size_t scratch_bytes;
} forward;

/* What one task holds; rows and columns are rounded up to whole tiles. */
typedef struct state {
    float *score, *sum;        /* [rows][step]; [rows][ld] */
    uint16_t *rows_of_weights; /* [mr][step], where they do not go straight into panels */
    uint16_t *weight;          /* of a panel's first row; rows weight_row, runs step apart */
    int64_t weight_row, step;
    tsi_panels q, p;
    int64_t ld, rows;
    float top[ROWS_MAX];
    double total[ROWS_MAX];
    bool near[ROWS_MAX]; /* scores have a bound, which is top from the beginning */
    bool sees[ROWS_MAX]; /* something */
    bool begun;          /* sums are there to be added to */
} state;

/* ---- keys and values as panels --------------------------------------------------------------- */

static tsi_panels panels_of_keys(const forward *f, int64_t place, int64_t columns)
{
    tsi_panels p = tsi_panels_b(f->tile, columns, f->a.depth);
    p.to = f->keys + place * f->keys_size;
    return p;
}

static tsi_panels panels_of_values(const forward *f, int64_t place, int64_t columns)
{
    tsi_panels p = tsi_panels_b(f->tile, f->a.width, columns);
    p.to = f->values + place * f->values_size;
    return p;
}

/* The largest norm of `count` positions of a head, from at; a NaN if there is one. */
static float norm_of(const forward *f, const tsi_block *x, const int64_t *at, int64_t count)
{
    double most = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint16_t *row = (const uint16_t *)x->data + at[0] * x->stride[0] +
                              at[1] * x->stride[1] + (at[2] + i) * x->stride[2];
        double sum = 0;
        if (x->stride[3] == 1) {
            sum = f->a.set->fold_bf16[TSI_BY_SQUARES](row, f->a.depth);
        } else {
            for (int64_t d = 0; d < f->a.depth; d++) {
                double v = (double)tsi_f32_of_bf16(row[d * x->stride[3]]);
                sum += v * v;
            }
        }
        if (!(sum <= most)) most = sum;
    }
    return (float)sqrt(most);
}

static void pack_keys(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const forward *f = context;
    for (int64_t place = begin; place < end; place++) {
        int64_t first = place % f->key_blocks * f->step, g = place / f->key_blocks % f->a.groups;
        int64_t b = place / f->key_blocks / f->a.groups;
        int64_t columns = tsi_min_i64(f->a.keys - first, f->step);
        tsi_panels k = panels_of_keys(f, place, columns), v = panels_of_values(f, place, columns);
        tsi_attend_panels(&k, f->k, (const int64_t[]){ b, g, first }, false);
        tsi_attend_panels(&v, f->v, (const int64_t[]){ b, g, first }, true);
        tsi_panels_pack(&k);
        tsi_panels_pack(&v);
        f->norm[place] = norm_of(f, f->k, (const int64_t[]){ b, g, first }, columns);
    }
}

/* In the first place of every group: the largest norm of all its keys. */
static void join_norms(const forward *f)
{
    for (int64_t group = 0; group < f->a.batches * f->a.groups; group++) {
        float *norm = f->norm + group * f->key_blocks;
        for (int64_t i = 1; i < f->key_blocks; i++)
            if (!(norm[i] <= norm[0])) norm[0] = norm[i]; /* a NaN stays */
    }
}

/* ---- one block of keys ----------------------------------------------------------------------- */

/* Zeros to numbers begin .. end of a row in runs. */
static void clear(uint16_t *to, int64_t run, int64_t step, int64_t begin, int64_t end)
{
    for (; begin < end && begin % run != 0; begin++)
        to[begin / run * step + begin % run] = 0;
    for (; begin + run <= end; begin += run)
        memset(to + begin / run * step, 0, (size_t)run * sizeof *to);
    for (; begin < end; begin++)
        to[begin / run * step + begin % run] = 0;
}

/* One row of scores to weights; of columns it does not see, up to `end`, they are 0. A row whose
 * first columns are not seen is weighed from the first on all the same: what is hidden is -inf. */
static void weigh_row(const forward *f, state *s, int64_t i, const tsi_attend_row *at, int64_t end)
{
    const tsi_bf16_tile *tile = f->tile;
    uint16_t *to = s->weight + i % tile->mr * s->weight_row;
    int64_t seen = at->last > at->first ? at->last : 0;
    clear(to, tile->run, s->step, seen, end);
    if (seen == 0) return;
    s->sees[i] = true;
    float *row = s->score + i * f->step, factor = f->factor;
    for (int64_t j = 0; j < at->first; j++)
        row[j] = -INFINITY;
    tsi_attend_scores(&f->a, at, row, NULL);
    if (s->near[i]) { /* weigh_near has no -inf */
        bool all = at->first == 0 && !at->bits;
        s->total[i] += (double)(all ? tile->weigh_near : tile->weigh)(
            to, s->step, row, (const float[]){ factor, s->top[i] }, seen);
        return;
    }
    float top = (float)f->a.set->fold_f32[TSI_BY_MAX](row, seen) * factor, before = s->top[i];
    bool numbers = top < INFINITY; /* not if there is a NaN */
    if (!numbers) s->total[i] = (double)NAN;
    if (top < before) top = before;
    if (!isfinite(top) || !numbers) { /* or nothing but minus infinities so far */
        clear(to, tile->run, s->step, 0, seen);
        return;
    }
    if (fabsf(top) >= TSI_ATTEND_FAR) { /* see tsi_attend_weigh */
        f->a.set->scale(row, row, factor, seen);
        factor = 1.0f;
    }
    double sum = (double)tile->weigh(to, s->step, row, (const float[]){ factor, top }, seen);
    if (top != before && s->total[i] != 0.0) {
        float shrink = exp2f(before - top);
        s->total[i] *= (double)shrink;
        f->a.set->scale(s->sum + i * s->ld, s->sum + i * s->ld, shrink, f->a.width);
    }
    s->total[i] += sum;
    s->top[i] = top;
}

/* Weights of one panel of queries: straight into the panel where rows can be written so. */
static void weigh_panel(const forward *f, state *s, tsi_panels *p, int64_t panel,
                        const tsi_mask_run *run, const int64_t *at)
{
    const tsi_bf16_tile *tile = f->tile;
    int64_t end = p->panel_size / tile->mr;
    bool direct = tile->run == tile->ka;
    s->step = direct ? (int64_t)tile->mr * tile->ka : tile->run;
    s->weight_row = direct ? tile->ka : f->step;
    s->weight = direct ? p->to + panel * p->panel_size : s->rows_of_weights;
    for (int64_t i = panel * tile->mr; i < (panel + 1) * tile->mr; i++) {
        tsi_attend_row row = { 0 };
        if (i < s->rows) row = tsi_attend_row_of(&f->a, run, at, i, p->k);
        weigh_row(f, s, i, &row, end);
    }
    if (direct) return;
    p->from = s->weight - panel * tile->mr * f->step;
    p->stride = f->step;
    p->k_stride = 1;
    tsi_panel_pack(p, panel);
}

/* at: batch, head, first query, first key of the tile. */
static void take_keys(const forward *f, state *s, int64_t place, const tsi_mask_run *run,
                      const int64_t *at)
{
    int64_t columns = tsi_attend_columns(&f->a, run, at[3]);
    tsi_panels k = panels_of_keys(f, place, columns), v = panels_of_values(f, place, columns);
    /* These were packed with all keys of the block: zeros of p meet those that are too many. */
    v.panel_size = tsi_round_up(tsi_min_i64(f->a.keys - at[3], f->step), f->tile->kr) * f->tile->nr;
    tsi_panels_multiply(&s->q, &k, s->score, f->step, true);
    tsi_panels p = tsi_panels_a(f->tile, s->rows, columns);
    p.to = s->p.to;
    for (int64_t panel = 0; panel < p.panels; panel++)
        weigh_panel(f, s, &p, panel, run, at);
    tsi_panels_multiply(&p, &v, s->sum, s->ld, !s->begun);
    s->begun = true;
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static void store_rows(const forward *f, const state *s, const int64_t *at)
{
    const tsi_block *out = f->out;
    for (int64_t i = 0; i < s->rows; i++) {
        float factor = s->sees[i] ? (float)(1.0 / s->total[i]) : 0.0f, *row = s->sum + i * s->ld;
        double lse =
            s->sees[i] ? ((double)s->top[i] + log2(s->total[i])) * LN_2 : -(double)INFINITY;
        f->a.set->scale(row, row, factor, f->a.width);
        char *to = tsi_block_at(out, at[0] * out->stride[0] + at[1] * out->stride[1] +
                                         (at[2] + i) * out->stride[2]);
        tsi_scatter(TS_DTYPE_BF16, to, out->stride[3] * 2, TS_DTYPE_F32, row, f->a.width);
        tsi_store_real((ts_dtype)f->lse->dtype, tsi_attend_lse(f->lse, at[0], at[1], at[2] + i),
                       lse);
    }
}

/* Where the parts of a worker's scratch begin; its size if `s` is NULL. */
static size_t lay_out(const forward *f, state *s, char *at)
{
    int64_t rows = f->rows, ld = tsi_round_up(f->a.width, f->tile->nr);
    int64_t depth = tsi_round_up(f->a.depth, f->tile->kr);
    size_t score = (size_t)(rows * f->step) * sizeof(float);
    size_t sum = (size_t)(rows * ld) * sizeof(float);
    size_t weight = (size_t)tsi_round_up(f->tile->mr * f->step * 2, TSI_CACHE_LINE);
    size_t p = (size_t)(rows * f->step) * sizeof(uint16_t);
    size_t q = (size_t)tsi_round_up(rows * depth * 2, TSI_CACHE_LINE);
    if (s) {
        s->ld = ld;
        s->score = (float *)(void *)at;
        s->sum = (float *)(void *)(at + score);
        s->rows_of_weights = (uint16_t *)(void *)(at + score + sum);
        s->p.to = (uint16_t *)(void *)(at + score + sum + weight);
        s->q.to = (uint16_t *)(void *)(at + score + sum + weight + p);
    }
    return score + sum + weight + p + q;
}

static void run_block(const forward *f, int64_t task, char *scratch)
{
    const tsi_attend *a = &f->a;
    state s = { .begun = false };
    (void)lay_out(f, &s, scratch);
    int64_t block = task % f->query_blocks, h = task / f->query_blocks % a->heads;
    int64_t at[] = { task / f->query_blocks / a->heads, h, block * f->rows, 0 };
    int64_t place = (at[0] * a->groups + tsi_attend_group(a, h)) * f->key_blocks;
    s.rows = tsi_min_i64(a->queries - at[2], f->rows);
    for (int64_t i = 0; i < s.rows; i++) {
        float norm = norm_of(f, f->q, (const int64_t[]){ at[0], h, at[2] + i }, 1);
        float most = f->factor * norm * f->norm[place] * 1.001f; /* more than rounding adds */
        s.near[i] = most <= (float)NEAR;
        s.top[i] = s.near[i] ? ceilf(most) : -INFINITY;
    }
    uint16_t *panels = s.q.to;
    s.q = tsi_panels_a(f->tile, s.rows, a->depth);
    s.q.to = panels;
    tsi_attend_panels(&s.q, f->q, at, false);
    tsi_panels_pack(&s.q);
    tsi_mask_runs runs = tsi_mask_runs_of(a->blocks, at[0], h, block);
    if (runs.count == 0) memset(s.sum, 0, (size_t)(s.rows * s.ld) * sizeof *s.sum);
    for (int64_t r = 0; r < runs.count; r++)
        for (int32_t c = 0; c < runs.run[r].count; c++) {
            int64_t tile = runs.run[r].first + c;
            at[3] = tile * f->step;
            take_keys(f, &s, place + tile, &runs.run[r], at);
        }
    store_rows(f, &s, at);
}

static void run_blocks(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const forward *f = context;
    tsi_bf16_begin(f->tile);
    for (int64_t task = begin; task < end; task++)
        run_block(f, task, f->scratch + (size_t)worker * f->scratch_bytes);
    tsi_bf16_end(f->tile);
}

ts_status tsi_attend_forward_bf16(const tsi_kernel_io *io, tsi_attend *a)
{
    forward f = { .tile = tsi_bf16_tile_of_machine() };
    f.factor = (float)((double)a->scale * LOG2_E);
    f.q = &io->in[0].block;
    f.k = &io->in[1].block;
    f.v = &io->in[2].block;
    f.out = &io->out[0].block;
    f.lse = &io->out[1].block;
    f.step = tsi_min_i64(KEYS, tsi_round_up(a->keys > 0 ? a->keys : 1, UNIT));
    f.key_blocks = (a->keys + f.step - 1) / f.step;
    f.rows = tsi_round_up(QUERIES, f.tile->mr);
    TSI_ASSERT(f.rows <= ROWS_MAX);
    f.query_blocks = (a->queries - 1) / f.rows + 1;
    TSI_TRY(tsi_attend_tiles(a, f.rows, f.step));
    f.a = *a;
    f.keys_size = f.step * tsi_round_up(a->depth, f.tile->kr);
    f.values_size = f.step * tsi_round_up(a->width, f.tile->nr);
    f.scratch_bytes = lay_out(&f, NULL, NULL);
    int64_t places = a->batches * a->groups * f.key_blocks;
    tsi_scratch packed = { 0 }, own = { 0 };
    ts_status status =
        tsi_scratch_get(&packed, io->rank, (size_t)(places * (f.keys_size + f.values_size + 2) + 2),
                        sizeof(uint16_t));
    if (status == TS_OK)
        status = tsi_scratch_get(&own, io->rank, (size_t)tsi_parallel_threads(io->rank),
                                 f.scratch_bytes);
    if (status == TS_OK) {
        f.keys = packed.data;
        f.values = f.keys + places * f.keys_size;
        f.norm = (float *)(void *)(f.values + places * f.values_size);
        f.scratch = own.data;
        tsi_parallel_for(io->rank, places, 1, pack_keys, &f);
        if (!tsi_dry(io->rank)) join_norms(&f);
        tsi_parallel_for(io->rank, a->batches * a->heads * f.query_blocks, 1, run_blocks, &f);
    }
    tsi_scratch_done(&own);
    tsi_scratch_done(&packed);
    return status;
}
