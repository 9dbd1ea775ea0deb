/* SPDX-License-Identifier: Apache-2.0 */
/* radix.h - elements as whole numbers in the order of sort (op/index/sort.c), and a radix sort of
 * them.
 *
 *   key    of 32 bits (f32 bf16 f16 and integers below 64 bits) or 64 (f64, i64): unsigned order is
 *          the order of the elements; zeros of both signs are equal, all NaN are equal and last
 *   item   32-bit key and place: one word, key << 32 | place;  else two words, key and place
 *
 * Items that begin in the order of their places end in the stable order. */
#ifndef TSI_BACKEND_CPU_RADIX_H
#define TSI_BACKEND_CPU_RADIX_H

#include "backend/cpu/cpu.h"

static inline bool tsi_key_is_wide(ts_dtype dtype)
{
    return dtype == TS_DTYPE_F64 || dtype == TS_DTYPE_I64;
}

/* Words of an item in a list of so many. */
static inline int32_t tsi_item_words(ts_dtype dtype, int64_t count)
{
    return tsi_key_is_wide(dtype) || count > (int64_t)UINT32_MAX ? 2 : 1;
}

enum { TSI_KEYS_MAX = 256 };
/* Keys of at most TSI_KEYS_MAX elements, `stride` bytes apart; descending: of the reversed order.
 * Those of 32 bits fit into 64 too. */
void tsi_keys_32(ts_dtype dtype, const char *from, int64_t stride, int64_t count, bool descending,
                 uint32_t *keys);
void tsi_keys_64(ts_dtype dtype, const char *from, int64_t stride, int64_t count, bool descending,
                 uint64_t *keys);
/* Items of a whole line; returns the bits of the first words in which some items differ. */
uint64_t tsi_items_load(ts_dtype dtype, const char *from, int64_t stride, int64_t count,
                        bool descending, int32_t words, uint64_t *items);

/* Sorts items of `words` words by the bits `live` of their first word (of 32-bit keys those above
 * the place), which hold all differences; `other` has as much room. Returns the one that holds the
 * result. `rank`: long lists are sorted by its threads; NULL: by the caller alone. `worker` of a
 * loop of the rank may call it with rank NULL. */
uint64_t *tsi_radix_sort(ts_rank *rank, uint64_t *items, uint64_t *other, int64_t count,
                         int32_t words, uint64_t live);
/* The same for lists longer than `most`: halves are sorted and merged. */
uint64_t *tsi_radix_sort_parts(ts_rank *rank, uint64_t *items, uint64_t *other, int64_t count,
                               int32_t words, uint64_t live, int64_t most);

#endif
