/* SPDX-License-Identifier: Apache-2.0 */
/* digest.h - the two hashes of checkpoints, both defined in docs/checkpoints.md with test vectors.
 *
 * Of a block of a file: over bytes in their order; it finds damage and costs about half a copy.
 * Of a tensor: a sum over its elements of a function of (global index, bits). Sums may be taken in
 * any order and by anybody, so every mesh, placement and rank count gives the number that one rank
 * gives, and ranks that hold parts add up what they have. */
#ifndef TSI_CHECKPOINT_DIGEST_H
#define TSI_CHECKPOINT_DIGEST_H

#include "tessera/types.h"

/* Bytes of a file, in their order. */
uint64_t tsi_digest_block(const void *data, size_t bytes);
/* The same from the sum over its words, which is that of as many elements of i32. */
uint64_t tsi_digest_block_of(size_t bytes, uint64_t sum);
/* The part of that sum that bytes have from `at` on, a multiple of 4; those that are fewer than a
 * word at their end are the last of the block. */
uint64_t tsi_digest_part(size_t at, const void *data, size_t bytes);

/* The part of a tensor's sum that elements [first, first + count) of its row-major order have. */
uint64_t tsi_digest_elements(ts_dtype dtype, int64_t first, const void *data, int64_t count);
/* The hash of a tensor whose elements have that sum. */
uint64_t tsi_digest_tensor(const ts_meta *meta, uint64_t sum);
/* The part of a state's hash that one tensor has: the hash is their sum. */
uint64_t tsi_digest_named(const char *name, uint64_t tensor);

#endif
