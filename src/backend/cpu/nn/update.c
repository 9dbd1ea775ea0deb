/* SPDX-License-Identifier: Apache-2.0 */
/* update.c - optimiser updates of a whole list by all threads of the rank: items are cut into
 * pieces of one size, and all pieces are one loop. f32 by rows of the instruction set, narrow
 * parameters through f32 tiles, f64 by the plain loops. */
#include "op/nn/update.h"

#include <math.h>

#include "backend/cpu/cpu.h"
#include "base/compiler.h"
#include "device/cpu.h"

enum { PIECE = 16384, TILE = 512, CHUNK = 65536, CHUNKS = 256 };

typedef struct list {
    const tsi_list_io *io;
    const tsi_row_set *set;
    const tsi_adamw_step *adamw; /* or, if NULL, */
    const tsi_sgd_step *sgd;
    const int64_t *first; /* piece number where each item begins; NULL: pieces are items */
    float numbers[9];
    int32_t nesterov, plain; /* plain: the first step with momentum, which has a loop of its own */
} list;

static void numbers_of_sgd(list *l, const tsi_sgd_step *s)
{
    l->sgd = s;
    l->nesterov = s->nesterov;
    l->plain = s->first;
    l->numbers[0] = (float)s->lr;
    l->numbers[1] = (float)s->momentum;
    l->numbers[2] = (float)s->weight_decay;
    l->numbers[3] = (float)s->factor;
}

static void numbers_of_adamw(list *l, const tsi_adamw_step *s)
{
    l->adamw = s;
    l->numbers[0] = (float)s->beta1;
    l->numbers[1] = (float)s->beta2;
    l->numbers[2] = (float)(1.0 - s->beta1);
    l->numbers[3] = (float)(1.0 - s->beta2);
    l->numbers[4] = (float)(1.0 - s->lr * s->weight_decay);
    l->numbers[5] = (float)(s->lr / s->correction1);
    l->numbers[6] = (float)(1.0 / sqrt(s->correction2));
    l->numbers[7] = (float)s->epsilon;
    l->numbers[8] = (float)s->factor;
}

static void run_row(const list *l, float *const *x, int64_t count)
{
    if (l->adamw)
        l->set->adamw(x, l->numbers, count);
    else
        l->set->sgd(x, l->numbers, l->nesterov, count);
}

static void run_plain(const list *l, const tsi_list_item *item, int64_t first, int64_t count)
{
    if (l->adamw)
        tsi_adamw_range(l->adamw, item, first, count);
    else
        tsi_sgd_range(l->sgd, item, first, count);
}

static char *part_at(const tsi_list_part *part, int64_t first)
{
    return (char *)part->data + (size_t)first * ts_dtype_size(part->dtype);
}

/* A tile of an item whose parts are not all f32. */
static void run_tile(const list *l, const tsi_list_item *item, int64_t first, int64_t count)
{
    float buffer[TSI_UPDATE_MIRROR][TILE], *x[TSI_UPDATE_MIRROR] = { NULL };
    for (int k = 0; k < TSI_UPDATE_MIRROR; k++) {
        const tsi_list_part *part = &item->part[k];
        if (!part->data) continue;
        bool own = part->dtype == TS_DTYPE_F32;
        x[k] = own ? (float *)(void *)part_at(part, first) : buffer[k];
        if (!own)
            tsi_gather(TS_DTYPE_F32, x[k], part->dtype, part_at(part, first),
                       (int64_t)ts_dtype_size(part->dtype), count);
    }
    run_row(l, x, count);
    for (int k = 0; k < TSI_UPDATE_MIRROR; k++) {
        const tsi_list_part *part = &item->part[k];
        if (part->data && part->dtype != TS_DTYPE_F32 && k != TSI_UPDATE_GRAD &&
            !tsi_is_by_chance(l->adamw, item, k))
            tsi_scatter(part->dtype, part_at(part, first), (int64_t)ts_dtype_size(part->dtype),
                        TS_DTYPE_F32, x[k], count);
    }
    if (tsi_is_by_chance(l->adamw, item, TSI_UPDATE_FIRST))
        tsi_moments_round(l->adamw, item, first, count, x[TSI_UPDATE_FIRST], x[TSI_UPDATE_SECOND]);
}

/* The mirror of what was just updated, which the cache still has. */
static void run_mirror(const list *l, const tsi_list_item *item, int64_t first, int64_t count)
{
    const tsi_list_part *mirror = &item->part[TSI_UPDATE_MIRROR], *param = &item->part[0];
    if (!mirror->data || l->plain || param->dtype == TS_DTYPE_F64) return; /* the plain loops do */
    tsi_cpu_cast_rows(mirror->dtype, part_at(mirror, first), param->dtype, part_at(param, first),
                      count);
}

static void run_piece(const list *l, const tsi_list_item *item, int64_t first, int64_t count)
{
    bool same = true;
    float *x[TSI_UPDATE_MIRROR];
    for (int k = 0; k < TSI_UPDATE_MIRROR; k++) {
        x[k] = item->part[k].data;
        same = same && (!x[k] || item->part[k].dtype == TS_DTYPE_F32);
    }
    for (int k = 0; first > 0 && same && k < TSI_UPDATE_MIRROR; k++)
        if (x[k]) x[k] += first; /* of a small item there is one piece */
    if (l->plain || item->part[0].dtype == TS_DTYPE_F64) {
        run_plain(l, item, first, count);
    } else if (same) {
        run_row(l, x, count);
    } else {
        for (int64_t at = 0; at < count; at += TILE)
            run_tile(l, item, first + at, count - at < TILE ? count - at : TILE);
    }
    run_mirror(l, item, first, count);
}

static void run_pieces(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const list *l = context;
    int64_t low = 0, high = l->io->count; /* the item of piece `begin`: first[low] <= begin */
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (l->first[middle] <= begin)
            low = middle;
        else
            high = middle;
    }
    for (int64_t piece = begin, i = low; piece < end; piece++) {
        while (l->first[i + 1] <= piece)
            i++;
        const tsi_list_item *item = &l->io->item[i];
        int64_t at = (piece - l->first[i]) * PIECE;
        run_piece(l, item, at, item->count - at < PIECE ? item->count - at : PIECE);
    }
}

/* The pieces of all items, numbered through; small lists are not worth a second thread. */
static ts_status run_list(list *l)
{
    const tsi_list_io *io = l->io;
    int64_t elements = 0;
    for (int64_t i = 0; i < io->count; i++)
        elements += io->item[i].count;
    tsi_scratch scratch = { 0 };
    if (elements <= 2 * PIECE ||
        tsi_scratch_get(&scratch, io->rank, (size_t)io->count + 1, sizeof(int64_t)) != TS_OK) {
        for (int64_t i = 0; i < io->count && !tsi_dry(io->rank); i++)
            run_piece(l, &io->item[i], 0, io->item[i].count);
        return TS_OK;
    }
    int64_t *first = scratch.data;
    first[0] = 0;
    for (int64_t i = 0; i < io->count && !tsi_dry(io->rank); i++)
        first[i + 1] = first[i] + (io->item[i].count + PIECE - 1) / PIECE;
    l->first = first;
    tsi_parallel_for(io->rank, first[io->count], 1, run_pieces, l);
    tsi_scratch_done(&scratch);
    return TS_OK;
}

/* All items of a step have one control. */
static const double *control_of(const tsi_list_io *io)
{
    return io->count > 0 ? io->item[0].part[TSI_UPDATE_CONTROL].data : NULL;
}

ts_status tsi_cpu_list_adamw(const tsi_list_io *io)
{
    list l = { .io = io, .set = tsi_rows() };
    tsi_adamw_step step;
    if (!tsi_adamw_settle(io->attributes, control_of(io), &step)) return TS_OK;
    numbers_of_adamw(&l, &step);
    return run_list(&l);
}

ts_status tsi_cpu_list_sgd(const tsi_list_io *io)
{
    list l = { .io = io, .set = tsi_rows() };
    tsi_sgd_step step;
    if (!tsi_sgd_settle(io->attributes, control_of(io), &step)) return TS_OK;
    numbers_of_sgd(&l, &step);
    return run_list(&l);
}

/* ---- squares --------------------------------------------------------------------------------- */

typedef struct chunk { /* of an item; its sum is the same whoever computes it */
    const tsi_list_item *item;
    int64_t first, count;
    double sum;
} chunk;

static double squares_of(const chunk *c)
{
    const tsi_row_set *set = tsi_rows();
    const tsi_list_part *x = &c->item->part[TSI_SQUARES_OF];
    size_t size = ts_dtype_size(x->dtype);
    const char *from = part_at(x, c->first);
    if (x->dtype == TS_DTYPE_F32)
        return set->squares_wide((const float *)(const void *)from, c->count);
    if (x->dtype == TS_DTYPE_F64)
        return set->fold_f64[TSI_BY_SQUARES]((const double *)(const void *)from, c->count);
    double total = 0;
    float tile[TILE];
    for (int64_t at = 0; at < c->count; at += TILE) {
        int64_t n = c->count - at < TILE ? c->count - at : TILE;
        tsi_gather(TS_DTYPE_F32, tile, x->dtype, from + (size_t)at * size, (int64_t)size, n);
        total += set->squares_wide(tile, n);
    }
    return total;
}

static void run_chunks(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    chunk *c = context;
    for (int64_t i = begin; i < end; i++)
        c[i].sum = squares_of(&c[i]);
}

typedef struct chunks { /* of a list, some of them at a time */
    const tsi_list_io *io;
    int64_t item, first; /* where the next one begins */
    int64_t count, elements;
    chunk some[CHUNKS];
} chunks;

static bool chunks_next(chunks *c)
{
    c->count = c->elements = 0;
    while (c->item < c->io->count && c->count < CHUNKS) {
        const tsi_list_item *item = &c->io->item[c->item];
        int64_t left = item->count - c->first, count = left < CHUNK ? left : CHUNK;
        if (count > 0) c->some[c->count++] = (chunk){ item, c->first, count, 0 };
        c->elements += count;
        c->first = count < left ? c->first + count : 0;
        c->item += count == left;
    }
    return c->count > 0;
}

/* Chunks of an item are added up first, in their order. */
ts_status tsi_cpu_list_squares(const tsi_list_io *io)
{
    chunks c = { .io = io };
    double total = 0;                    /* of the item so far */
    if (tsi_dry(io->rank)) return TS_OK; /* it takes no memory */
    while (chunks_next(&c)) {
        int64_t grain = c.elements > CHUNK ? 1 : c.count;
        tsi_parallel_for(io->rank, c.count, grain, run_chunks, c.some);
        for (int64_t i = 0; i < c.count; i++) {
            const chunk *at = &c.some[i];
            total += at->sum;
            if (at->first + at->count < at->item->count) continue;
            double *sum = at->item->part[TSI_SQUARES_SUM].data;
            *sum += total;
            total = 0;
        }
    }
    return TS_OK;
}
