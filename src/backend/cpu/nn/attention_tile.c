/* SPDX-License-Identifier: Apache-2.0 */
/* attention_tile.c - one row of a tile of scores: which columns are seen, caps, biases, drops.
 *
 * INV: outside of [first, last) nothing is read or written; inside, what is not seen is -inf after
 * tsi_attend_scores, so that its weight is 0. */
#include <math.h>

#include "backend/cpu/nn/attention.h"

static bool bit_at(const uint64_t *bits, int64_t i)
{
    return bits[i / 64] >> (i % 64) & 1;
}

/* Words that are empty are passed over, of others the lowest and the highest bit looked for. */
tsi_attend_row tsi_attend_row_of(const tsi_attend *a, const tsi_mask_run *run, const int64_t *at,
                                 int64_t i, int64_t columns)
{
    tsi_attend_row row = { at[0], at[1], at[2] + i, at[3], 0, columns, NULL };
    if (run->bits < 0) return row;
    int64_t left_out = at[3] - (int64_t)run->first * a->blocks->key_block, set = 0;
    int64_t low = 0, high = (columns + 63) / 64;
    const uint64_t *bits = tsi_mask_tile_bits(a->blocks, run, i) + left_out / 64;
    while (low < high && bits[low] == 0)
        low++;
    while (high > low && bits[high - 1] == 0)
        high--;
    row.first = row.last = 0;
    if (low == high) return row;
    row.first = low * 64 + tsi_mask_lowest(bits[low]);
    row.last = (high - 1) * 64 + tsi_mask_highest(bits[high - 1]);
    for (int64_t w = low; w < high; w++)
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
    if (a->alibi)
        bias = (float)tsi_mask_slope(tsi_operand_global(q, 1, row->h), q->global->shape.extent[1]);
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

/* Far from 0 each product is rounded as that of top was, so that nothing is above it. */
double tsi_attend_weigh(const tsi_attend *a, float *score, float top, int64_t count)
{
    float scale = tsi_attend_scale(a);
    if (fabsf(top) < TSI_ATTEND_FAR) return a->set->exp_scaled(score, score, scale, top, count);
    a->set->scale(score, score, scale, count);
    return a->set->exp_scaled(score, score, 1.0f, top, count);
}

void tsi_attend_drop_row(const tsi_attend *a, const tsi_attend_row *row, float *x)
{
    const tsi_operand *q = &a->io->in[0], *k = &a->io->in[1];
    int64_t b = tsi_operand_global(q, 0, row->b), h = tsi_operand_global(q, 1, row->h);
    int64_t query = tsi_operand_global(q, 2, row->query);
    float factor = (float)a->drop.factor;
    for (int64_t j = row->first; j < row->last; j++) {
        int64_t key = tsi_operand_global(k, 2, row->key + j);
        x[j] *= tsi_attention_keeps(&a->drop, b, h, query, key) ? factor : 0.0f;
    }
}
