/* SPDX-License-Identifier: Apache-2.0 */
/* attention_few.c - attention forward of few queries against many keys: a token that is generated,
 * a short last block.
 *
 *   a task      one group of keys, one stretch of them: every tile is read once for all heads of
 *               the group and all queries; each row has its running softmax
 *   at the end  the stretches of a row are joined by their tops and totals, in order
 *
 * INV: stretches depend on the sizes alone, so that any number of threads gives the same bits. */
#include <math.h>
#include <string.h>

#include "backend/cpu/nn/attention.h"
#include "base/compiler.h"
#include "op/core/element.h"

enum { KEYS = 256, TASKS = 16 };

typedef struct softmax { /* of one row over one stretch */
    double total;
    float top;
    int32_t sees;
} softmax;

typedef struct few {
    tsi_attend a;
    tsi_heads q, out;
    const tsi_block *k, *v, *lse;
    int64_t tiles, splits, each; /* tiles of keys; stretches, tiles in one */
    softmax *state;              /* [B, H, T][splits] */
    float *sum;                  /* the same, rows of width */
    float *scratch;              /* per worker: a tile of keys, one of values, scores */
    int64_t scratch_size;
} few;

/* A tile of keys or values, as rows of f32 where it lies or in `room`. */
typedef struct tile {
    const float *data;
    int64_t row;
} tile;

static tile tile_of(const tsi_block *x, const int64_t *at, int64_t count, float *room)
{
    int64_t size = (int64_t)ts_dtype_size((ts_dtype)x->dtype), width = x->extent[3];
    int64_t first = at[0] * x->stride[0] + at[1] * x->stride[1] + at[2] * x->stride[2];
    const char *data = (const char *)x->data + first * size;
    if (x->dtype == TS_DTYPE_F32 && (x->stride[3] == 1 || width == 1))
        return (tile){ (const float *)(const void *)data, x->stride[2] };
    for (int64_t i = 0; i < count; i++)
        tsi_gather(TS_DTYPE_F32, room + i * width, (ts_dtype)x->dtype,
                   data + i * x->stride[2] * size, x->stride[3] * size, width);
    return (tile){ room, width };
}

/* ---- one row against one tile ---------------------------------------------------------------- */

/* Scores to weights, and what was summed before to the new top. */
static void weigh(const few *f, softmax *s, float *sum, float *score, const tsi_attend_row *row)
{
    const tsi_row_set *set = f->a.set;
    int64_t seen = row->last - row->first;
    float *part = score + row->first, before = s->top;
    float top = (float)set->fold_f32[TSI_BY_MAX](part, seen) * tsi_attend_scale(&f->a);
    bool numbers = top < INFINITY; /* not if there is a NaN */
    if (!numbers) s->total = (double)NAN;
    if (top < before) top = before;
    if (!isfinite(top) || !numbers) { /* or nothing but minus infinities so far */
        memset(part, 0, (size_t)seen * sizeof *part);
        return;
    }
    double more = tsi_attend_weigh(&f->a, part, top, seen);
    if (top != before && s->total != 0.0) {
        float shrink = expf(before - top);
        s->total *= (double)shrink;
        set->scale(sum, sum, shrink, f->a.width);
    }
    s->total += more;
    s->top = top;
    if (f->a.drops) tsi_attend_drop_row(&f->a, row, score);
}

/* kv: the tile; place: of the row's stretch. */
static void take_row(const few *f, const tsi_attend_row *row, const tile kv[2], int64_t place,
                     float *score)
{
    const tsi_attend *a = &f->a;
    float *sum = f->sum + place * a->width;
    const float *query = tsi_heads_row(&f->q, row->b, row->h, row->query);
    f->state[place].sees = 1;
    for (int64_t j = row->first; j < row->last; j++)
        score[j] = (float)a->set->dot(query, kv[0].data + j * kv[0].row, a->depth);
    tsi_attend_scores(a, row, score, NULL);
    weigh(f, &f->state[place], sum, score, row);
    for (int64_t j = row->first; j < row->last; j++)
        if (score[j] != 0.0f)
            a->set->add_scaled(sum, kv[1].data + j * kv[1].row, score[j], a->width);
}

/* ---- tasks ----------------------------------------------------------------------------------- */

/* The run of a row of tiles that has a tile; NULL: nobody sees it. */
static const tsi_mask_run *run_with(const tsi_mask_runs *runs, int64_t number)
{
    int64_t low = 0, high = runs->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const tsi_mask_run *run = &runs->run[middle];
        if (number >= run->first && number < (int64_t)run->first + run->count) return run;
        if (number < run->first)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

/* One tile against all queries of the heads of its group. */
static void take_tile(const few *f, int64_t b, int64_t g, int64_t number, float *scratch)
{
    const tsi_attend *a = &f->a;
    const int64_t from[] = { b, g, number * KEYS };
    int64_t columns = a->keys - from[2] < KEYS ? a->keys - from[2] : KEYS;
    tile kv[2] = { { NULL, 0 }, { NULL, 0 } };
    float *score = scratch + KEYS * (a->depth + a->width);
    for (int64_t h = 0; h < a->heads; h++) {
        if (tsi_attend_group(a, h) != g) continue;
        tsi_mask_runs runs = tsi_mask_runs_of(a->blocks, b, h, 0);
        const tsi_mask_run *run = run_with(&runs, number);
        if (!run) continue;
        if (!kv[0].data) {
            kv[0] = tile_of(f->k, from, columns, scratch);
            kv[1] = tile_of(f->v, from, columns, scratch + KEYS * a->depth);
        }
        const int64_t at[] = { b, h, 0, from[2] };
        for (int64_t i = 0; i < a->queries; i++) {
            tsi_attend_row row = tsi_attend_row_of(a, run, at, i, columns);
            int64_t place = ((b * a->heads + h) * a->queries + i) * f->splits + number / f->each;
            if (row.last > row.first) take_row(f, &row, kv, place, score);
        }
    }
}

static void run_tasks(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const few *f = context;
    for (int64_t task = begin; task < end; task++) {
        int64_t split = task % f->splits, g = task / f->splits % f->a.groups;
        int64_t b = task / f->splits / f->a.groups;
        int64_t last = (split + 1) * f->each < f->tiles ? (split + 1) * f->each : f->tiles;
        for (int64_t number = split * f->each; number < last; number++)
            take_tile(f, b, g, number, f->scratch + worker * f->scratch_size);
    }
}

/* Stretches of a row into its result. */
static void join_row(const few *f, int64_t r, float *to, void *lse_at)
{
    const tsi_attend *a = &f->a;
    const softmax *s = f->state + r * f->splits;
    float top = -INFINITY, before = -INFINITY;
    double total = 0;
    if (a->io->adds) before = (float)tsi_load_real((ts_dtype)f->lse->dtype, lse_at);
    bool goes_on = !(isinf(before) && before < 0), sees = goes_on;
    if (goes_on) top = before; /* what other keys gave: a stretch with sum 1 */
    for (int64_t i = 0; i < f->splits; i++) {
        sees |= s[i].sees != 0;
        if (s[i].top > top) top = s[i].top;
    }
    if (goes_on) {
        float shrink = expf(before - top);
        total = (double)shrink;
        a->set->scale(to, to, shrink, a->width);
    } else {
        memset(to, 0, (size_t)a->width * sizeof *to);
    }
    for (int64_t i = 0; i < f->splits; i++) {
        if (s[i].total == 0.0) continue;
        float weight = isnan(s[i].total) ? NAN : expf(s[i].top - top);
        total += s[i].total * (double)weight;
        a->set->add_scaled(to, f->sum + (r * f->splits + i) * a->width, weight, a->width);
    }
    a->set->scale(to, to, sees ? (float)(1.0 / total) : 0.0f, a->width);
    tsi_store_real((ts_dtype)f->lse->dtype, lse_at,
                   sees ? (double)top + log(total) : -(double)INFINITY);
}

static void join_rows(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const few *f = context;
    const tsi_attend *a = &f->a;
    for (int64_t r = begin; r < end; r++) {
        int64_t t = r % a->queries, h = r / a->queries % a->heads, b = r / a->queries / a->heads;
        join_row(f, r, tsi_heads_row(&f->out, b, h, t), tsi_attend_lse(f->lse, b, h, t));
    }
}

/* ---- the kernel ------------------------------------------------------------------------------ */

static void run(const tsi_kernel_io *io, few *f)
{
    const tsi_attend *a = &f->a;
    int64_t rows = a->batches * a->heads * a->queries;
    for (int64_t i = 0; i < rows * f->splits; i++)
        f->state[i] = (softmax){ .top = -INFINITY };
    memset(f->sum, 0, (size_t)(rows * f->splits * a->width) * sizeof *f->sum);
    tsi_parallel_for(io->rank, a->batches * a->groups * f->splits, 1, run_tasks, f);
    tsi_parallel_for(io->rank, rows, 64, join_rows, f);
    tsi_heads_put(io->rank, &io->out[0].block, &f->out);
}

ts_status tsi_attend_forward_few(const tsi_kernel_io *io, tsi_attend *a)
{
    few f = { .k = &io->in[1].block, .v = &io->in[2].block, .lse = &io->out[1].block };
    tsi_scratch held[5] = { { 0 } };
    TSI_ASSERT(a->queries <= TSI_ATTENTION_FEW_MAX);
    TSI_TRY(tsi_attend_tiles(a, TSI_ATTENTION_FEW_MAX, KEYS));
    f.a = *a;
    int64_t tasks = a->batches * a->groups, rows = a->batches * a->heads * a->queries;
    f.tiles = (a->keys + KEYS - 1) / KEYS;
    f.splits = tasks > 0 && tasks < TASKS ? TASKS / tasks : 1;
    if (f.splits > f.tiles) f.splits = f.tiles > 0 ? f.tiles : 1;
    f.each = f.tiles > 0 ? (f.tiles + f.splits - 1) / f.splits : 1;
    f.scratch_size = KEYS * (a->depth + a->width + 1);
    size_t size[] = { (size_t)(rows * f.splits) * sizeof *f.state,
                      (size_t)(rows * f.splits * a->width + 1) * sizeof *f.sum,
                      (size_t)(tsi_parallel_threads(io->rank) * f.scratch_size) * sizeof(float) };
    ts_status status = tsi_heads_get(io->rank, &io->in[0].block, true, &f.q, &held[0]);
    if (status == TS_OK)
        status = tsi_heads_get(io->rank, &io->out[0].block, io->adds, &f.out, &held[1]);
    for (int i = 0; i < 3 && status == TS_OK; i++)
        status = tsi_scratch_get(&held[2 + i], io->rank, size[i], 1);
    if (status == TS_OK) {
        f.state = held[2].data;
        f.sum = held[3].data;
        f.scratch = held[4].data;
        if (!tsi_dry(io->rank)) run(io, &f);
    }
    for (int i = 4; i >= 0; i--)
        tsi_scratch_done(&held[i]);
    return status;
}
