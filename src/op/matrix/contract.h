/* SPDX-License-Identifier: Apache-2.0 */
/* contract.h - products of two arrays summed over shared indices: what matmul, linear and einsum
 * have in common.
 *
 * An equation "bmk,kn->bmn" names dims by letters. A letter of both inputs and the result is a
 * batch letter, one of both inputs alone is contracted, one of one input and the result is free;
 * one of a single input alone is summed first. */
#ifndef TSI_OP_CONTRACT_H
#define TSI_OP_CONTRACT_H

#include "op/core/common.h"

enum { TSI_LETTERS_MAX = 16 };

/* One letter: its extent and, per operand (a, b, c), its stride in elements, or 0 where the operand
 * lacks it. */
typedef struct tsi_letter {
    char name;
    int8_t dim[3]; /* -1: not there */
    int64_t extent;
    int64_t stride[3];
} tsi_letter;

typedef struct tsi_contraction {
    tsi_block a, b, c; /* b.dtype NONE: one operand only */
    int32_t letter_count;
    tsi_letter letter[TSI_LETTERS_MAX];
} tsi_contraction;

/* Checks an equation against metas and gives the result's shape. `op` begins error sentences. */
ts_status tsi_equation_infer(const char *op, const char *equation, const ts_meta *in,
                             int32_t input_count, ts_shape *out);
/* Rules of an equation over the first `factors` inputs; one more is a bias that must carry what is
 * pending in the result; its dims are the last of the result. */
void tsi_equation_rules(tsi_rules *rules, const char *equation, int32_t factors, const ts_meta *in,
                        const ts_meta *out);
/* The local problem. */
void tsi_contraction_make(const char *equation, const tsi_block *a, const tsi_block *b,
                          const tsi_block *c, tsi_contraction *out);
/* c = a b, or c += a b. Empty contractions give zeros. */
typedef ts_status (*tsi_contract_fn)(const tsi_contraction *contraction, bool accumulate);
ts_status tsi_contract_reference(const tsi_contraction *contraction, bool accumulate); /* loops */

/* The operators that are contractions, by one way to contract: the loops make them references, a
 * backend's product makes them its kernels. */
/* out = alpha out + beta added, of reals. */
typedef void (*tsi_blend_fn)(const tsi_kernel_io *io, const tsi_block *added, double alpha,
                             double beta);
ts_status tsi_product_by(const tsi_kernel_io *io, tsi_contract_fn contract,
                         tsi_blend_fn blend /* NULL: as the reference does */); /* matmul.c */
ts_status tsi_einsum_by(const tsi_kernel_io *io, tsi_contract_fn contract);
/* As ts_einsum of two. Wide: narrow factors give f32, sums that were never rounded. `scatter`: the
 * dim along which a result that is a pending sum is cut (chunks.h); -1: it stays. */
ts_tensor *tsi_einsum_said(const char *equation, ts_tensor *a, ts_tensor *b, bool wide,
                           int64_t scatter);
static inline ts_tensor *tsi_einsum_wide(const char *equation, ts_tensor *a, ts_tensor *b)
{
    return tsi_einsum_said(equation, a, b, true, -1);
}
/* `onto` plus the products of an equation of plain letters (matmul.c); in its place if nobody else
 * sees it, and then it is what is returned. */
ts_tensor *tsi_einsum_onto(ts_tensor *onto, const char *equation, ts_tensor *a, ts_tensor *b);
/* beta added + alpha a b. */
ts_tensor *tsi_addmm(ts_tensor *added, ts_tensor *a, ts_tensor *b, double alpha, double beta);
/* The product of two matrices, written where `out` lies. */
ts_status tsi_mm_into(ts_tensor *a, ts_tensor *b, ts_tensor *out);

#endif
