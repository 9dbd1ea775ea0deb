/* SPDX-License-Identifier: Apache-2.0 */
/* attention_tile.c - one row of a tile of scores: which columns are seen, caps, biases, drops.
 *
 * INV: outside of [first, last) nothing is read or written; inside, what is not seen is -inf after
 * tsi_attend_scores, so that its weight is 0. */
#include <math.h>

#include "backend/cpu/nn/attention.h"

static int64_t global_of(const tsi_operand *operand, int32_t dim, int64_t local)
{
    return operand->region ? tsi_span_list_at(&operand->region->dim[dim], local) : local;
}

static bool bit_at(const uint64_t *bits, int64_t i)
{
    return bits[i / 64] >> (i % 64) & 1;
}

/* The first and the last word that are not empty are looked at bit by bit. */
tsi_attend_row tsi_attend_row_of(const tsi_attend *a, const tsi_mask_run *run, const int64_t *at,
                                 int64_t i, int64_t columns)
{
    tsi_attend_row row = { at[0], at[1], at[2] + i, at[3], 0, columns, NULL };
    if (run->bits < 0) return row;
    const uint64_t *bits = tsi_mask_tile_bits(a->blocks, run, i);
    int64_t set = 0;
    while (row.first < columns && bits[row.first / 64] == 0)
        row.first += 64;
    if (row.first >= columns) row.first = columns;
    while (row.first < columns && !bit_at(bits, row.first))
        row.first++;
    while (row.last > row.first && bits[(row.last - 1) / 64] == 0)
        row.last = (row.last - 1) / 64 * 64;
    while (row.last > row.first && !bit_at(bits, row.last - 1))
        row.last--;
    for (int64_t w = 0; w < a->blocks->key_words; w++)
        set += tsi_mask_bits_in(bits[w]);
    if (set < row.last - row.first) row.bits = bits; /* there are holes */
    return row;
}

static void change_scores(const tsi_attend *a, const tsi_attend_row *row, float *score,
                          float *slope)
{
    const tsi_operand *q = &a->io->in[0];
    const int64_t *key = a->blocks->key_at + row->key, query = a->blocks->query_at[row->query];
    float bias = 0;
    if (a->alibi) bias = (float)tsi_mask_slope(global_of(q, 1, row->h), q->global->shape.extent[1]);
    for (int64_t j = row->first; j < row->last; j++) {
        float s = score[j] * a->scale, d = a->scale;
        if (a->cap > 0) {
            float t = tanhf(s / a->cap);
            d *= 1.0f - t * t;
            s = a->cap * t;
        }
        if (slope) slope[j] = d;
        score[j] = s + bias * (float)(key[j] - query);
    }
}

void tsi_attend_scores(const tsi_attend *a, const tsi_attend_row *row, float *score, float *slope)
{
    if (tsi_attend_changes(a)) change_scores(a, row, score, slope);
    for (int64_t j = row->first; row->bits && j < row->last; j++)
        if (!bit_at(row->bits, j)) score[j] = -INFINITY;
}

void tsi_attend_drop_row(const tsi_attend *a, const tsi_attend_row *row, float *x)
{
    const tsi_operand *q = &a->io->in[0], *k = &a->io->in[1];
    int64_t b = global_of(q, 0, row->b), h = global_of(q, 1, row->h);
    int64_t query = global_of(q, 2, row->query);
    for (int64_t j = row->first; j < row->last; j++) {
        int64_t key = global_of(k, 2, row->key + j);
        x[j] *= tsi_attention_keeps(&a->drop, b, h, query, key) ? a->drop.factor : 0.0f;
    }
}
