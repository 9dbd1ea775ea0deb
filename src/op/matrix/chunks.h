/* SPDX-License-Identifier: Apache-2.0 */
/* chunks.h - products that move and multiply chunk by chunk.
 *
 *   gather    x is cut along rows and every member wants all of them: the product of a member's
 *             own rows first, then of each other member's as they come
 *   scatter   the result is a sum over members and is to be cut along rows: the rows of other
 *             members first, which they fetch while this one goes on; its own rows last
 *
 * Where members read each other's memory nothing is copied: products read the rows where they lie
 * with their owner, sums are made from where their terms lie. Otherwise rows travel in exchanges,
 * one under way while the one before is multiplied.
 *
 * INV: bytes, layouts and bits are those of the same call run whole (moves before or after one
 * product). Bits: terms are folded in the members' order (INV-6), and rows are cut only where the
 * product of a piece has the bits of the whole: in dtypes whose kernels say so
 * (tsi_kernel_rows_alone), at multiples of 32 rows, and with no less than TSI_CHUNK_LEAST
 * operations in a piece (0018). */
#ifndef TSI_OP_CHUNKS_H
#define TSI_OP_CHUNKS_H

#include "op/op.h"

enum { TSI_CHUNK_LEAST = 2100000, TSI_CHUNK_UNIT = 32 };
enum { TSI_CHUNKS_WHOLE = 1, TSI_CHUNKS_CHUNKS }; /* as ts_product_algorithm */

/* What a call says of it: among the attributes of the operator. */
typedef struct tsi_chunks {
    int32_t algorithm; /* ts_product_algorithm; 0: by cost */
    uint32_t forbid;   /* bit a: not algorithm a; from the scope */
    int64_t scatter;   /* the dim along which a result that is a pending sum is cut; -1: it stays */
} tsi_chunks;
extern const char *const tsi_chunks_names[];
#define TSI_CHUNKS_ATTRIBUTES(type, field)                                                         \
    TSI_ATTR_ONE_OF(type, field.algorithm, "algorithm", "\"auto\"", tsi_chunks_names),             \
        TSI_ATTR(type, field.scatter, INT, "scatter", "-1")

/* What an operator says of itself (tsi_op_desc.chunks). */
typedef struct tsi_chunks_desc {
    size_t offset; /* of its tsi_chunks */
    /* May some rows along this dim of all results be computed alone? Bit i: input i has them, in
     * the same dim; the others are needed whole. 0: no. */
    uint64_t (*rows)(const tsi_op_call *call, int32_t dim);
} tsi_chunks_desc;

/* The call's; NULL: the operator has none. */
const tsi_chunks *tsi_chunks_of(const tsi_op_call *call);
/* What the innermost scope of the tensor's rank says: for makers. */
tsi_chunks tsi_chunks_wanted(const ts_tensor *x);
/* Is the dim one that can be? Recorded. */
ts_status tsi_chunks_check(const tsi_op_call *call);
/* Rows of the rules whose result is pending become cut ones, where the call says scatter. */
void tsi_chunks_rules(const tsi_op_call *call, tsi_rules *rules);
/* Along which dim the gradient of `input` is to be cut, so that it comes back as the input is: it
 * is summed over the axis that cuts the input's rows. -1: none. */
int64_t tsi_chunks_back(const ts_tensor *input, const ts_tensor *dy);

/* tsi_op_desc.fuse, arrives, pick and algorithm. */
bool tsi_chunks_arrive(const tsi_op_call *call, const ts_layout *const *in, const ts_layout *from,
                       int32_t *dim);
ts_status tsi_chunks_fuse(tsi_fusion *fusion, tsi_algorithm_choice *out);
ts_status tsi_chunks_pick(const tsi_algorithm_request *request, tsi_algorithm_choice *out);
extern const tsi_algorithm tsi_chunks_algorithms[];
ts_status tsi_chunks_run(const tsi_algorithm_io *io);       /* chunks_run.c */
ts_status tsi_chunks_run_whole(const tsi_algorithm_io *io); /* product, then the sum */
/* The product of all rows into a block of the result's local extents. (chunks_run.c) */
ts_status tsi_chunk_product(const tsi_algorithm_io *io, tsi_array *out);

/* The rows along `dim` that member m of an axis holds of a layout. */
typedef struct tsi_chunk_rows {
    int64_t begin, count;
} tsi_chunk_rows;
ts_status tsi_chunk_rows_of(const ts_layout *layout, const int64_t *coord, int32_t axis,
                            int32_t dim, tsi_chunk_rows *out);

#endif
