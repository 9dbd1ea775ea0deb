/* SPDX-License-Identifier: Apache-2.0 */
/* index.h - what operators with an index tensor share: checks of indices, and where the positions
 * of one operand lie in another.
 *
 * An index is global. A rank finds out whether it holds that index of a dim; if not, it leaves the
 * element to the rank that does: zeros where it reads, nothing where it writes. */
#ifndef TSI_OP_INDEX_H
#define TSI_OP_INDEX_H

#include "op/core/common.h"

/* Integers only; the sentence names the operator and the dtype. */
ts_status tsi_index_dtype(const char *op, const ts_meta *index);
/* Every index of input `input` lies in [0, extent), or in [-extent, extent) if negative ones count
 * from the end. Nothing has been written when this fails. The error is LOCAL where ranks see
 * different indices. */
ts_status tsi_index_check(const tsi_kernel_io *io, int32_t input, int64_t extent, bool wraps);
ts_status tsi_index_refuse(const tsi_kernel_io *io, int32_t input, int64_t index, int64_t extent);

/* The pending reduction that ranks writing zeros leave: sum, or `or` for bool. */
static inline tsi_role tsi_index_joined(const ts_meta *meta)
{
    return TSI_P(meta->dtype == TS_DTYPE_BOOL ? TS_REDUCE_OR : TS_REDUCE_SUM);
}

/* Per dim: the offset in `target` of each position of `from` (the same global index). Strides may
 * be negative, so what is on another rank has an offset of its own. */
#define TSI_ELSEWHERE INT64_MIN
typedef struct tsi_offsets {
    int64_t *at[TS_NDIM_MAX];
    int64_t *memory;
} tsi_offsets;
/* Dims of the mask `skipped` get offset 0 throughout. */
ts_status tsi_offsets_make(const tsi_operand *from, const tsi_operand *target, uint32_t skipped,
                           tsi_offsets *out);
void tsi_offsets_free(tsi_offsets *offsets);
/* The sum over the dims, or TSI_ELSEWHERE if one of them is. */
static inline int64_t tsi_offsets_of(const tsi_offsets *offsets, const tsi_loop *loop)
{
    int64_t sum = 0;
    for (int32_t d = 0; d < loop->ndim; d++) {
        int64_t at = offsets->at[d][loop->index[d]];
        if (at == TSI_ELSEWHERE) return at;
        sum += at;
    }
    return sum;
}

/* to += from, one element, in the dtype's own arithmetic. */
void tsi_element_add(ts_dtype dtype, void *to, const void *from);
/* One position of a dim of a block. */
tsi_block tsi_block_slab(const tsi_block *block, int32_t dim, int64_t position);
ts_status tsi_block_zero(const tsi_kernel_io *io, const tsi_block *block);

/* index_get and index_put: which dims of x the index tensors index (those of `dims`), and where
 * their common shape B stands in x[indices]. */
typedef struct tsi_index_geometry {
    int32_t count, first; /* index tensors, and the input number of the first */
    uint32_t indexed;     /* dims of x */
    int32_t at, lines;    /* where B stands in the result, and how many dims it has */
    int32_t rest;         /* dims of x that are not indexed: */
    int32_t from[TS_NDIM_MAX], to[TS_NDIM_MAX]; /* their number in x and in the result */
} tsi_index_geometry;
/* `first`: the input number of the first index tensor, 1 of index_get and 2 of index_put. */
tsi_index_geometry tsi_index_geometry_of(int32_t first, const tsi_dims *dims, const ts_meta *in,
                                         int32_t input_count);

/* Gradients of elements that were written in place of what was there: `number` was written in their
 * stead, and `found` is what is read again; one that a later one replaced has none. */
ts_tensor *tsi_index_of_stayed(ts_tensor *dy, ts_tensor *found, ts_tensor *number);

/* Rules: input `input` pending any reduction, the other inputs replicated, the output likewise. */
void tsi_index_pass(tsi_rules *rules, int32_t input);
/* One rule from roles of inputs, then outputs. */
void tsi_index_rule(tsi_rules *rules, const tsi_role *role);
/* "gather: index is (2, 3), which ..." needs equal numbers of dims. */
ts_status tsi_index_ndim(const char *op, const ts_meta *x, const ts_meta *index);

/* ---- attributes ------------------------------------------------------------------------------ */
typedef struct tsi_masked_attributes {
    int64_t count; /* elements that are set, all ranks together */
} tsi_masked_attributes;

typedef struct tsi_index_put_attributes {
    tsi_dims dims;      /* which dims the index tensors index; empty: the first ones */
    int32_t accumulate; /* index_put: adds instead of replacing */
    int32_t reserved;
} tsi_index_put_attributes;

typedef struct tsi_index_select_attributes {
    int64_t dim;
    int64_t extent; /* index_select_backward: of the dim that was indexed */
} tsi_index_select_attributes;

typedef struct tsi_scatter_attributes {
    int64_t dim;
    ts_number value; /* scatter without a source */
    tsi_dims shape;  /* gather_backward: of what was gathered from */
} tsi_scatter_attributes;

typedef struct tsi_sort_attributes {
    int64_t dim, k; /* k: -1 for sort */
    int32_t descending, sorted;
} tsi_sort_attributes;

/* The functions of a row that are named after one word. */
#define TSI_INDEXED(word)                                                                          \
    .infer = word##_infer, .rules = word##_rules, .reference = word##_reference,                   \
    .grad = word##_grad, .sample = sample_##word

#endif
