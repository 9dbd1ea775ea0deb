/* SPDX-License-Identifier: Apache-2.0 */
/* attention_backward.c - the gradient of attention from its output and log-sum-exp, block by block.
 *
 *   p = e^(scale q k^T - lse)     dv += p^T do      dp = do v^T
 *   ds = p (dp - delta) scale     dq += ds k        dk += ds^T q
 *   delta = rows of (o . do)
 *
 * A task is one group of heads (those that share keys) and one chunk of its keys: it alone writes
 * their dk and dv. dq is added up over chunks: each has its own, folded in order.
 *
 * INV: chunks depend on sizes and mask alone, so that any number of threads gives the same bits. */
#include <math.h>
#include <string.h>

#include "backend/cpu/matrix/gemm.h"
#include "backend/cpu/nn/attention.h"
#include "base/compiler.h"
#include "op/core/element.h"

enum { QUERIES = 128, KEYS = 256, TASKS = 32, CHUNKS = 8 };
enum { Q, K, V, O, DO, DQ, DK, DV, OPERANDS };

typedef struct backward {
    tsi_attend a;
    tsi_heads x[OPERANDS];
    const tsi_block *lse;
    float *delta, *base;      /* [B, H, T]: delta and lse */
    float *scratch;           /* per worker: p and dp */
    float *partial;           /* dq of chunks 1 ..: [chunks - 1][B, H, T, D] */
    int64_t chunks;           /* of the keys of a group */
    int64_t edge[CHUNKS + 1]; /* tiles of keys at which they begin */
} backward;

/* The same for every task of one block of queries. */
typedef struct block {
    int64_t b, h, g, query, rows, first, columns; /* columns: keys first .. of the chunk */
    float *p, *dp, *dq;
    int64_t dq_row;
    const tsi_mask_run *run;
} block;

static int64_t place_of(const tsi_attend *a, int64_t b, int64_t h, int64_t t)
{
    return (b * a->heads + h) * a->queries + t;
}

/* ---- rows ----------------------------------------------------------------------------------- */

static void prepare_rows(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const backward *w = context;
    const tsi_attend *a = &w->a;
    for (int64_t i = begin; i < end; i++) {
        int64_t t = i % a->queries, h = i / a->queries % a->heads, b = i / a->queries / a->heads;
        w->delta[i] = (float)a->set->dot(tsi_heads_row(&w->x[O], b, h, t),
                                         tsi_heads_row(&w->x[DO], b, h, t), a->width);
        w->base[i] = (float)tsi_load_real((ts_dtype)w->lse->dtype, tsi_attend_lse(w->lse, b, h, t));
    }
}

/* Far from 0 products are scaled first, as those were whose logarithm `base` is. */
static void turn_scores(const tsi_attend *a, float *p, float *dp, float base, float delta,
                        int64_t count)
{
    float scale = tsi_attend_scale(a);
    bool far = fabsf(base) >= TSI_ATTEND_FAR;
    if (far) a->set->scale(p, p, scale, count);
    a->set->attend_back(p, dp, (const float[]){ far ? 1.0f : scale, base, delta }, count);
    if (far) a->set->scale(dp, dp, scale, count);
}

/* Products to weights, and the gradient of the weights to that of the scores, in place. */
static void turn_row(const backward *w, const block *k, int64_t i)
{
    const tsi_attend *a = &w->a;
    const int64_t where[] = { k->b, k->h, k->query, k->first };
    tsi_attend_row row = tsi_attend_row_of(a, k->run, where, i, k->columns);
    int64_t at = place_of(a, k->b, k->h, k->query + i);
    float *p = k->p + i * KEYS, *dp = k->dp + i * KEYS, base = w->base[at], slope[KEYS];
    if (isinf(base) && base < 0) row.last = row.first; /* a query that sees nothing */
    memset(p, 0, (size_t)row.first * sizeof *p);
    memset(dp, 0, (size_t)row.first * sizeof *dp);
    memset(p + row.last, 0, (size_t)(k->columns - row.last) * sizeof *p);
    memset(dp + row.last, 0, (size_t)(k->columns - row.last) * sizeof *dp);
    if (row.last == row.first) return;
    tsi_attend_scores(a, &row, p, slope);
    if (a->drops) tsi_attend_drop_row(a, &row, dp);
    turn_scores(a, p + row.first, dp + row.first, base, w->delta[at], row.last - row.first);
    for (int64_t j = row.first; tsi_attend_changes(a) && j < row.last; j++)
        dp[j] *= slope[j];
    if (a->drops) tsi_attend_drop_row(a, &row, p);
}

/* ---- one block of queries against one block of keys ----------------------------------------- */

static void multiply(const block *k, tsi_gemm g, const float *a, const float *b, float *c)
{
    (void)k;
    g.a = a;
    g.b = b;
    g.c = c;
    tsi_gemm_blas(TS_DTYPE_F32, &g);
}

static void take_block(const backward *w, const block *k)
{
    const tsi_heads *x = w->x;
    int64_t depth = w->a.depth, width = w->a.width, m = k->rows, n = k->columns;
    const float *q = tsi_heads_row(&x[Q], k->b, k->h, k->query);
    const float *d_out = tsi_heads_row(&x[DO], k->b, k->h, k->query);
    const float *keys = tsi_heads_row(&x[K], k->b, k->g, k->first);
    multiply(k,
             (tsi_gemm){ .m = m,
                         .n = n,
                         .k = depth,
                         .am = x[Q].row,
                         .ak = 1,
                         .bk = 1,
                         .bn = x[K].row,
                         .cm = KEYS,
                         .cn = 1 },
             q, keys, k->p);
    multiply(k,
             (tsi_gemm){ .m = m,
                         .n = n,
                         .k = width,
                         .am = x[DO].row,
                         .ak = 1,
                         .bk = 1,
                         .bn = x[V].row,
                         .cm = KEYS,
                         .cn = 1 },
             d_out, tsi_heads_row(&x[V], k->b, k->g, k->first), k->dp);
    for (int64_t i = 0; i < m; i++)
        turn_row(w, k, i);
    multiply(k,
             (tsi_gemm){ .m = n,
                         .n = width,
                         .k = m,
                         .am = 1,
                         .ak = KEYS,
                         .bk = x[DO].row,
                         .bn = 1,
                         .cm = x[DV].row,
                         .cn = 1,
                         .accumulate = true },
             k->p, d_out, tsi_heads_row(&x[DV], k->b, k->g, k->first));
    multiply(k,
             (tsi_gemm){ .m = n,
                         .n = depth,
                         .k = m,
                         .am = 1,
                         .ak = KEYS,
                         .bk = x[Q].row,
                         .bn = 1,
                         .cm = x[DK].row,
                         .cn = 1,
                         .accumulate = true },
             k->dp, q, tsi_heads_row(&x[DK], k->b, k->g, k->first));
    multiply(k,
             (tsi_gemm){ .m = m,
                         .n = depth,
                         .k = n,
                         .am = KEYS,
                         .ak = 1,
                         .bk = x[K].row,
                         .bn = 1,
                         .cm = k->dq_row,
                         .cn = 1,
                         .accumulate = true },
             k->dp, keys, k->dq);
}

/* ---- tasks ---------------------------------------------------------------------------------- */

static void clear_rows(const tsi_heads *x, int64_t b, int64_t h, int64_t first, int64_t count,
                       int64_t length)
{
    for (int64_t t = first; t < first + count; t++)
        memset(tsi_heads_row(x, b, h, t), 0, (size_t)length * sizeof(float));
}

/* Does a block of queries see keys of a chunk? Else it has no dq of its own there. */
static bool touches(const backward *w, int64_t b, int64_t h, int64_t query, int64_t chunk)
{
    tsi_mask_runs runs = tsi_mask_runs_of(w->a.blocks, b, h, query / QUERIES);
    int64_t first = w->edge[chunk], last = w->edge[chunk + 1];
    for (int64_t r = 0; r < runs.count; r++)
        if (runs.run[r].first < last && runs.run[r].first + runs.run[r].count > first) return true;
    return false;
}

/* Tiles of all lists that a column of them has; a list is that of every row and head it serves. */
static void count_tiles(const backward *w, int64_t columns, int64_t *count)
{
    const tsi_mask_blocks *b = w->a.blocks;
    int64_t lists = b->list_rows * b->list_heads * b->tile_rows;
    memset(count, 0, (size_t)(columns + 1) * sizeof *count);
    for (int64_t r = b->first[0]; r < b->first[lists]; r++) {
        count[b->run[r].first]++;
        count[b->run[r].first + b->run[r].count]--;
    }
    for (int64_t c = 1; c < columns; c++)
        count[c] += count[c - 1];
}

/* Chunks of equal work: under a causal mask the first keys are seen by most queries. */
static ts_status cut_chunks(const tsi_kernel_io *io, backward *w)
{
    const tsi_attend *a = &w->a;
    int64_t tasks = a->batches * a->groups, columns = (a->keys - 1) / KEYS + 1;
    int64_t wanted = tasks < TASKS ? TASKS / tasks : 1, all = 0, done = 0;
    if (wanted > CHUNKS) wanted = CHUNKS;
    if (wanted > columns) wanted = columns;
    tsi_scratch scratch;
    TSI_TRY(tsi_scratch_get(&scratch, io->rank, (size_t)columns + 1, sizeof(int64_t)));
    int64_t *count = scratch.data;
    count_tiles(w, columns, count);
    for (int64_t c = 0; c < columns; c++)
        all += count[c];
    w->chunks = 0;
    for (int64_t c = 0; c < columns && w->chunks + 1 < wanted; c++) {
        done += count[c];
        if (done * wanted >= all * (w->chunks + 1) && c + 1 < columns) w->edge[++w->chunks] = c + 1;
    }
    w->edge[++w->chunks] = columns;
    tsi_scratch_done(&scratch);
    return TS_OK;
}

/* The tiles of a run that lie in keys [first, last). */
static void take_run(const backward *w, block *k, const tsi_mask_run *run, int64_t first,
                     int64_t last)
{
    int64_t begin = (int64_t)run->first * KEYS, end = begin + (int64_t)run->count * KEYS;
    k->run = run;
    for (k->first = begin > first ? begin : first; k->first < end && k->first < last;
         k->first += KEYS) {
        block here = *k;
        here.columns = tsi_attend_columns(&w->a, run, k->first) - run->begin;
        here.first += run->begin;
        take_block(w, &here);
    }
}

static void take_head(const backward *w, block *k, int64_t chunk, int64_t first, int64_t last)
{
    const tsi_attend *a = &w->a;
    int64_t count = a->batches * a->heads * a->queries;
    for (k->query = 0; k->query < a->queries; k->query += QUERIES) {
        k->rows = a->queries - k->query < QUERIES ? a->queries - k->query : QUERIES;
        if (chunk > 0 && !touches(w, k->b, k->h, k->query, chunk)) continue;
        k->dq = tsi_heads_row(&w->x[DQ], k->b, k->h, k->query);
        k->dq_row = w->x[DQ].row;
        if (chunk > 0) {
            k->dq =
                w->partial + ((chunk - 1) * count + place_of(a, k->b, k->h, k->query)) * a->depth;
            k->dq_row = a->depth;
        }
        bool adds = chunk == 0 && a->io->adds;
        for (int64_t i = 0; i < k->rows && !adds; i++)
            memset(k->dq + i * k->dq_row, 0, (size_t)a->depth * sizeof(float));
        tsi_mask_runs runs = tsi_mask_runs_of(a->blocks, k->b, k->h, k->query / QUERIES);
        for (int64_t r = 0; r < runs.count; r++)
            take_run(w, k, &runs.run[r], first, last);
    }
}

static void run_tasks(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const backward *w = context;
    const tsi_attend *a = &w->a;
    for (int64_t task = begin; task < end; task++) {
        block k = { .p = w->scratch + worker * 2 * QUERIES * KEYS };
        k.dp = k.p + QUERIES * KEYS;
        int64_t chunk = task % w->chunks, first = w->edge[chunk] * KEYS;
        int64_t last = w->edge[chunk + 1] * KEYS;
        if (last > a->keys) last = a->keys;
        k.g = task / w->chunks % a->groups;
        k.b = task / w->chunks / a->groups;
        clear_rows(&w->x[DK], k.b, k.g, first, last - first, a->depth);
        clear_rows(&w->x[DV], k.b, k.g, first, last - first, a->width);
        for (k.h = 0; k.h < a->heads; k.h++)
            if (tsi_attend_group(a, k.h) == k.g) take_head(w, &k, chunk, first, last);
    }
}

static void fold_rows(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const backward *w = context;
    const tsi_attend *a = &w->a;
    int64_t count = a->batches * a->heads * a->queries;
    for (int64_t i = begin; i < end; i++) {
        int64_t t = i % a->queries, h = i / a->queries % a->heads, b = i / a->queries / a->heads;
        float *to = tsi_heads_row(&w->x[DQ], b, h, t);
        for (int64_t c = 1; c < w->chunks; c++)
            if (touches(w, b, h, t, c))
                a->set->join_f32[TSI_BY_SUM](to, w->partial + ((c - 1) * count + i) * a->depth,
                                             a->depth);
    }
}

/* ---- the kernel ----------------------------------------------------------------------------- */

static ts_status run(const tsi_kernel_io *io, backward *w)
{
    const tsi_attend *a = &w->a;
    int64_t rows = a->batches * a->heads * a->queries, tasks = a->batches * a->groups;
    TSI_TRY(cut_chunks(io, w));
    int64_t own = tsi_parallel_threads(io->rank) * 2 * QUERIES * KEYS;
    tsi_scratch scratch;
    TSI_TRY(tsi_scratch_get(&scratch, io->rank,
                            (size_t)(2 * rows + own + (w->chunks - 1) * rows * a->depth),
                            sizeof(float)));
    w->delta = scratch.data;
    w->base = w->delta + rows;
    w->scratch = w->base + rows;
    w->partial = w->scratch + own;
    tsi_parallel_for(io->rank, rows, 256, prepare_rows, w);
    tsi_parallel_for(io->rank, tasks * w->chunks, 1, run_tasks, w);
    if (w->chunks > 1) tsi_parallel_for(io->rank, rows, 256, fold_rows, w);
    tsi_scratch_done(&scratch);
    return TS_OK;
}

/* No queries, or no keys: gradients are zeros, or what others gave. */
static ts_status all_zeros(const tsi_kernel_io *io)
{
    const unsigned char zero[16] = { 0 };
    for (int32_t o = io->adds ? 1 : 0; o < 3; o++)
        TSI_TRY(io->device->fill(io->device, &io->out[o].block, zero, NULL));
    return TS_OK;
}

static ts_status run_f32(const tsi_kernel_io *io, backward *w)
{
    tsi_scratch held[OPERANDS] = { { 0 } };
    const tsi_block *of[] = { &io->in[0].block,  &io->in[1].block, &io->in[2].block,
                              &io->in[3].block,  &io->in[5].block, &io->out[0].block,
                              &io->out[1].block, &io->out[2].block };
    ts_status status = tsi_attend_tiles(&w->a, QUERIES, KEYS);
    for (int i = 0; i < OPERANDS && status == TS_OK; i++)
        status =
            tsi_heads_get(io->rank, of[i], i < DQ || (i == DQ && io->adds), &w->x[i], &held[i]);
    if (status == TS_OK) status = run(io, w);
    for (int i = DQ; i < OPERANDS && status == TS_OK; i++)
        tsi_heads_put(io->rank, of[i], &w->x[i]);
    for (int i = OPERANDS - 1; i >= 0; i--)
        tsi_scratch_done(&held[i]);
    return status;
}

/* Is a row so far from 0 that its weights need products rounded as they were (attention.h)? */
static bool is_far(const backward *w)
{
    const tsi_attend *a = &w->a;
    int64_t rows = tsi_dry(a->io->rank) ? 0 : a->batches * a->heads * a->queries;
    for (int64_t i = 0; i < rows; i++) {
        int64_t t = i % a->queries, h = i / a->queries % a->heads, b = i / a->queries / a->heads;
        double lse = tsi_load_real((ts_dtype)w->lse->dtype, tsi_attend_lse(w->lse, b, h, t));
        if (isfinite(lse) && fabs(lse) >= (double)TSI_ATTEND_FAR) return true;
    }
    return false;
}

ts_status tsi_cpu_attention_backward(const tsi_kernel_io *io)
{
    backward w = { .lse = &io->in[4].block };
    ts_status status = tsi_attend_make(io, &w.a);
    if (status != TS_OK) return status;
    const tsi_attend *a = &w.a;
    if (a->batches * a->heads * a->queries * a->groups * a->keys == 0)
        status = all_zeros(io);
    else if (tsi_attend_is_bf16(io, a) && !is_far(&w))
        status = tsi_attend_backward_bf16(io, &w.a);
    else
        status = run_f32(io, &w);
    tsi_attend_done(&w.a);
    return status;
}
