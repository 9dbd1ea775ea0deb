/* SPDX-License-Identifier: Apache-2.0 */
/* remain.h - the least bytes that any plan must still receive to get from a state to the target:
 * the bound of exchange.h for two states of one mesh, in a fraction of a microsecond, as the
 * heuristic of the search.
 *
 * Coordinates are numbers of prime digits. A dim is cut by the digits of its axes, the most
 * significant first; where both states cut at the same place, a rank holds something on both sides
 * only if the two digits are equal. Solutions of these equations times the common block is what
 * need not move. */
#ifndef TSI_PLAN_REMAIN_H
#define TSI_PLAN_REMAIN_H

#include "plan/space.h"

enum { TSI_REMAIN_DIGITS = 64 };

typedef struct tsi_remain {
    const tsi_space *space;
    int32_t first[TS_NDIM_MAX + 1]; /* digits of axis k */
    int32_t prime[TSI_REMAIN_DIGITS];
    int32_t dst_count[TS_NDIM_MAX]; /* digits by which the target cuts a dim */
    int32_t dst_digit[TS_NDIM_MAX][TSI_REMAIN_DIGITS];
    uint32_t dst_cut, kept;
    int64_t dst_held, kept_size; /* copies of the tensor in the target; ranks along kept partials */
} tsi_remain;

/* False: sizes or cuts are not regular enough, there is no such heuristic. */
bool tsi_remain_make(const tsi_space *space, tsi_remain *out);
double tsi_remain_bytes(const tsi_remain *remain, tsi_state state);

#endif
