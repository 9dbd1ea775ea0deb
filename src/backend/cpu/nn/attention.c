/* SPDX-License-Identifier: Apache-2.0 */
/* attention.c - attention forward, a block of queries against blocks of keys, with a running
 * softmax.
 *
 *   for each block of keys:   s = q k^T, [QUERIES x KEYS], in the L2 cache
 *                             m' = max(m, rows of s)
 *                             p = e^(scale s - m'), l = l e^(m - m') + sum p
 *                             o = o e^(m - m') + p v
 *   at the end:               out = o / l, lse = m + log l
 *
 * No T x S matrix exists. A task is a block of queries of one head against the tiles of keys that
 * its mask lists. Narrow dtypes are computed in f32; bf16 where
 * the machine multiplies it itself is the business of attention_bf16.c, few queries that of
 * attention_few.c. */
#include "backend/cpu/nn/attention.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/matrix/gemm.h"
#include "base/compiler.h"
#include "op/core/element.h"

enum { QUERIES = 128, KEYS = 384 }; /* k is long enough for products to run well */

typedef struct forward {
    tsi_attend a;
    tsi_heads q, k, v, out;
    const tsi_block *lse;
    float *scratch;               /* per worker */
    int64_t scratch_size, blocks; /* blocks of queries in a head */
} forward;

/* What one task holds. */
typedef struct state {
    float *score, *sum; /* [QUERIES][KEYS]; [QUERIES][width] */
    float top[QUERIES];
    double total[QUERIES];
    bool sees[QUERIES]; /* something */
    int64_t rows;
} state;

/* One row of products to weights; columns it does not see become 0. */
static void weigh_row(const forward *f, state *s, int64_t i, const tsi_attend_row *at,
                      int64_t columns)
{
    const tsi_row_set *set = f->a.set;
    float *row = s->score + i * KEYS;
    int64_t seen = at->last - at->first;
    memset(row, 0, (size_t)at->first * sizeof *row);
    memset(row + at->last, 0, (size_t)(columns - at->last) * sizeof *row);
    if (seen == 0) return;
    s->sees[i] = true;
    tsi_attend_scores(&f->a, at, row, NULL);
    float *part = row + at->first;
    float top = (float)set->fold_f32[TSI_BY_MAX](part, seen) * tsi_attend_scale(&f->a);
    float before = s->top[i];
    bool numbers = top < INFINITY; /* not if there is a NaN */
    if (!numbers) s->total[i] = (double)NAN;
    if (top < before) top = before;
    if (!isfinite(top) || !numbers) { /* or nothing but minus infinities so far */
        memset(part, 0, (size_t)seen * sizeof *row);
        return;
    }
    double sum = tsi_attend_weigh(&f->a, part, top, seen);
    if (top != before && s->total[i] != 0.0) {
        float shrink = expf(before - top);
        s->total[i] *= (double)shrink;
        set->scale(s->sum + i * f->a.width, s->sum + i * f->a.width, shrink, f->a.width);
    }
    s->total[i] += sum;
    s->top[i] = top;
    if (f->a.drops) tsi_attend_drop_row(&f->a, at, row);
}

/* at: batch, head, first query, first key; g: the group. */
static void take_keys(const forward *f, state *s, const int64_t *at, int64_t g, int64_t columns,
                      const tsi_mask_run *run)
{
    const tsi_attend *a = &f->a;
    int64_t b = at[0], h = at[1], query = at[2], first = at[3];
    tsi_gemm scores = { .m = s->rows,
                        .n = columns,
                        .k = a->depth,
                        .a = tsi_heads_row(&f->q, b, h, query),
                        .b = tsi_heads_row(&f->k, b, g, first),
                        .c = s->score,
                        .am = f->q.row,
                        .ak = 1,
                        .bk = 1,
                        .bn = f->k.row,
                        .cm = KEYS,
                        .cn = 1 };
    tsi_gemm_blas(TS_DTYPE_F32, &scores);
    for (int64_t i = 0; i < s->rows; i++) {
        tsi_attend_row row = tsi_attend_row_of(a, run, at, i, columns);
        weigh_row(f, s, i, &row, columns);
    }
    tsi_gemm values = { .m = s->rows,
                        .n = a->width,
                        .k = columns,
                        .a = s->score,
                        .b = tsi_heads_row(&f->v, b, g, first),
                        .c = s->sum,
                        .am = KEYS,
                        .ak = 1,
                        .bk = f->v.row,
                        .bn = 1,
                        .cm = a->width,
                        .cn = 1,
                        .accumulate = true };
    tsi_gemm_blas(TS_DTYPE_F32, &values);
}

static void store_rows(const forward *f, const state *s, const int64_t *at)
{
    const tsi_attend *a = &f->a;
    int64_t b = at[0], h = at[1], query = at[2];
    for (int64_t i = 0; i < s->rows; i++) {
        float factor = s->sees[i] ? (float)(1.0 / s->total[i]) : 0.0f;
        double lse = s->sees[i] ? (double)s->top[i] + log(s->total[i]) : -(double)INFINITY;
        a->set->scale(tsi_heads_row(&f->out, b, h, query + i), s->sum + i * a->width, factor,
                      a->width);
        tsi_store_real((ts_dtype)f->lse->dtype, tsi_attend_lse(f->lse, b, h, query + i), lse);
    }
}

/* Nothing yet; or the result of other keys: a softmax with sum 1 at the top lse. */
static void begin_row(const forward *f, state *s, int64_t i, const int64_t *at)
{
    const tsi_attend *a = &f->a;
    size_t bytes = (size_t)a->width * sizeof *s->sum;
    s->top[i] = -INFINITY;
    if (a->io->adds)
        s->top[i] = (float)tsi_load_real((ts_dtype)f->lse->dtype,
                                         tsi_attend_lse(f->lse, at[0], at[1], at[2] + i));
    s->sees[i] = !(isinf(s->top[i]) && s->top[i] < 0);
    s->total[i] = s->sees[i] ? 1.0 : 0.0;
    if (s->sees[i])
        memcpy(s->sum + i * a->width, tsi_heads_row(&f->out, at[0], at[1], at[2] + i), bytes);
    else
        memset(s->sum + i * a->width, 0, bytes);
}

static void run_block(const forward *f, int64_t task, float *scratch)
{
    const tsi_attend *a = &f->a;
    state s = { .score = scratch, .sum = scratch + QUERIES * KEYS };
    int64_t block = task % f->blocks, h = task / f->blocks % a->heads;
    int64_t at[] = { task / f->blocks / a->heads, h, block * QUERIES, 0 };
    s.rows = a->queries - at[2] < QUERIES ? a->queries - at[2] : QUERIES;
    for (int64_t i = 0; i < s.rows; i++)
        begin_row(f, &s, i, at);
    tsi_mask_runs runs = tsi_mask_runs_of(a->blocks, at[0], h, block);
    for (int64_t r = 0; r < runs.count; r++)
        for (int32_t c = 0; c < runs.run[r].count; c++) {
            const tsi_mask_run *run = &runs.run[r];
            int64_t first = (int64_t)(run->first + c) * KEYS;
            int64_t columns = tsi_attend_columns(a, run, first);
            at[3] = first + run->begin;
            take_keys(f, &s, at, tsi_attend_group(a, h), columns - run->begin, run);
        }
    store_rows(f, &s, at);
}

static void run_blocks(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const forward *f = context;
    for (int64_t task = begin; task < end; task++)
        run_block(f, task, f->scratch + worker * f->scratch_size);
}

static ts_status run(const tsi_kernel_io *io, forward *f)
{
    const tsi_attend *a = &f->a;
    tsi_scratch held[5] = { { 0 } };
    const tsi_block *block[] = { &io->in[0].block, &io->in[1].block, &io->in[2].block,
                                 &io->out[0].block };
    tsi_heads *heads[] = { &f->q, &f->k, &f->v, &f->out };
    ts_status status = tsi_attend_tiles(&f->a, QUERIES, KEYS);
    for (int i = 0; i < 4 && status == TS_OK; i++)
        status = tsi_heads_get(io->rank, block[i], i < 3 || io->adds, heads[i], &held[i]);
    f->scratch_size = QUERIES * (KEYS + a->width);
    if (status == TS_OK)
        status = tsi_scratch_get(&held[4], io->rank,
                                 (size_t)(tsi_parallel_threads(io->rank) * f->scratch_size),
                                 sizeof(float));
    if (status == TS_OK) {
        f->scratch = held[4].data;
        f->blocks = (a->queries - 1) / QUERIES + 1;
        tsi_parallel_for(io->rank, a->batches * a->heads * f->blocks, 1, run_blocks, f);
        tsi_heads_put(io->rank, block[3], &f->out);
    }
    for (int i = 4; i >= 0; i--)
        tsi_scratch_done(&held[i]);
    return status;
}

static ts_status forward_blocked(const tsi_kernel_io *io, tsi_attend *a)
{
    if (tsi_attend_is_bf16(io, a)) return tsi_attend_forward_bf16(io, a);
    forward f = { .a = *a, .lse = &io->out[1].block };
    ts_status status = run(io, &f);
    *a = f.a; /* with its block lists */
    return status;
}

/* As in the table of kernels; NULL: the reference, by declining. */
static ts_status (*const forwards[TSI_ATTENTION_KERNELS])(const tsi_kernel_io *, tsi_attend *) = {
    [TSI_ATTENTION_BLOCKED] = forward_blocked,
    [TSI_ATTENTION_FEW] = tsi_attend_forward_few,
};

ts_status tsi_cpu_attention(const tsi_kernel_io *io)
{
    tsi_attend a;
    tsi_attention_kernel kernel = tsi_attention_kernel_of(io);
    if (!forwards[kernel]) return (ts_status)TSI_KERNEL_DECLINED;
    ts_status status = tsi_attend_make(io, &a);
    if (status != TS_OK) return status;
    if (a.batches * a.heads * a.queries > 0) status = forwards[kernel](io, &a);
    tsi_attend_done(&a);
    return status;
}
