/* SPDX-License-Identifier: Apache-2.0 */
/* cut.h - an exchange in parts: the i-th of k moves the i-th k-th of the elements that go from each
 * member to each other one. Pure; no memory is touched.
 *
 *   sender     aaaabbbbbb      one pair: the elements of all its blocks, one behind another
 *   receiver   ccccccdddd      blocks of the two ends differ, elements match
 *   of three   aaa|abb|bbbb    a k-th of a block of several dims is a few blocks
 *
 * INV: of a pair both ends cut at the same elements, so parts match; terms that fold into a block
 * are cut alike and stay in their order, so that an element is folded as in the whole. */
#ifndef TSI_COMM_CUT_H
#define TSI_COMM_CUT_H

#include <stdbool.h>

#include "tessera/comm.h"

typedef struct tsi_cut {
    int64_t index, count; /* part `index` of `count` */
    int32_t dtype;
    bool folds; /* the list is of what is received: blocks may fold into the one before them */
    int64_t members;
    int64_t *scratch; /* two numbers for each member */
} tsi_cut;

/* The blocks of a part of a list, in its order; `out` may be NULL. Returns how many there are. */
int64_t tsi_cut_list(const tsi_cut *cut, const ts_part *list, int64_t count, ts_part *out);
/* Are terms that fold into one block at the same place of what their members send? */
bool tsi_cut_is_possible(const tsi_cut *cut, const ts_part *list, int64_t count);

#endif
