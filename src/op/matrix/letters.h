/* SPDX-License-Identifier: Apache-2.0 */
/* letters.h - letters of a contraction by kind, as products of matrices want them.
 *
 *   of a, b and c   batch      of a and c   m      of b and c   n      of a and b   k
 *
 * Letters of one kind that lie in each other's strides are one. In a header, because modules of
 * backends need no symbol of the core (INV-17).
 *
 * INV: all kinds together have at most TSI_LETTERS_MAX letters, and none is lost by moving one
 * from kind to kind, so no kind overflows. */
#ifndef TSI_OP_LETTERS_H
#define TSI_OP_LETTERS_H

#include "op/matrix/contract.h"

enum { TSI_LETTERS_BATCH, TSI_LETTERS_M, TSI_LETTERS_N, TSI_LETTERS_K, TSI_LETTERS_KINDS };
enum { TSI_LETTERS_OPERANDS = 3 }; /* a, b, c */

typedef struct tsi_letters {
    int32_t count, reserved;
    int64_t extent[TSI_LETTERS_MAX], stride[TSI_LETTERS_OPERANDS][TSI_LETTERS_MAX];
} tsi_letters;

static inline void tsi_letters_add(tsi_letters *to, int64_t extent, const int64_t *stride)
{
    TSI_ASSERT(to->count < TSI_LETTERS_MAX);
    int32_t at = to->count++;
    to->extent[at] = extent;
    for (int k = 0; k < TSI_LETTERS_OPERANDS; k++)
        to->stride[k][at] = stride[k];
}

static inline void tsi_letters_swap(tsi_letters *x, int32_t i, int32_t j)
{
    int64_t extent = x->extent[i];
    x->extent[i] = x->extent[j];
    x->extent[j] = extent;
    for (int k = 0; k < TSI_LETTERS_OPERANDS; k++) {
        int64_t stride = x->stride[k][i];
        x->stride[k][i] = x->stride[k][j];
        x->stride[k][j] = stride;
    }
}

static inline bool tsi_letters_follow(const tsi_letters *x, int32_t outer, int32_t inner)
{
    for (int k = 0; k < TSI_LETTERS_OPERANDS; k++)
        if (x->stride[k][outer] != x->stride[k][inner] * x->extent[inner]) return false;
    return true;
}

/* Sorts by the strides in operand `by`, largest first, and merges neighbours. */
static inline void tsi_letters_merge(tsi_letters *x, int by)
{
    for (int32_t i = 1; i < x->count; i++)
        for (int32_t j = i; j > 0 && x->stride[by][j - 1] < x->stride[by][j]; j--)
            tsi_letters_swap(x, j - 1, j);
    int32_t last = 0;
    for (int32_t i = 1; i < x->count; i++) {
        if (tsi_letters_follow(x, last, i)) {
            x->extent[i] *= x->extent[last];
            tsi_letters_swap(x, last, i);
        } else if (++last != i) {
            tsi_letters_swap(x, last, i);
        }
    }
    if (x->count > 0) x->count = last + 1;
}

/* All letters of a kind but the longest join the batch; it becomes the only one. */
static inline void tsi_letters_keep_longest(tsi_letters *kinds, int kind)
{
    tsi_letters *x = &kinds[kind];
    int32_t longest = 0;
    for (int32_t i = 1; i < x->count; i++)
        if (x->extent[i] > x->extent[longest]) longest = i;
    if (x->count > 1) tsi_letters_swap(x, 0, longest);
    for (int32_t i = 1; i < x->count; i++) {
        const int64_t stride[TSI_LETTERS_OPERANDS] = { x->stride[0][i], x->stride[1][i],
                                                       x->stride[2][i] };
        tsi_letters_add(&kinds[TSI_LETTERS_BATCH], x->extent[i], stride);
    }
    if (x->count > 1) x->count = 1;
}

/* Of a kind that has one letter at most. */
static inline int64_t tsi_letters_extent(const tsi_letters *x)
{
    return x->count > 0 ? x->extent[0] : 1;
}

static inline int64_t tsi_letters_stride(const tsi_letters *x, int operand)
{
    return x->count > 0 ? x->stride[operand][0] : 0;
}

#endif
