/* SPDX-License-Identifier: Apache-2.0 */
/* cut.h - one cut of an extent among the coordinates of an axis, in closed form.
 *
 * A cut gives each of n coordinates some positions of [0, extent), every position to exactly one,
 * in ascending order. Cuts compose: a later one acts on the positions that an earlier one left, so
 * lengths, maps and owners need no lists at all, and lists are needed only where regions are. With
 * c = ceil(extent / parts) rounded up to the alignment:
 *
 *   S   n = 3           [0 0 0|1 1 1|2]                parts = n
 *   SS  n = 2, f = 2    [0 0|1 1][0 0|1]               parts = n in each of f pieces
 *   HT  n = 2           [0|1|1|0]                      parts = 2n, r takes chunks r and 2n-1-r
 *   RS  sizes 3,0,2     [0 0 0|2 2]                    in several rounds: [0 0|1][0|1 1 1]
 *
 * Sizes of RS are those of the first round, then of the next; `factor` counts the rounds. */
#ifndef TSI_LAYOUT_CUT_H
#define TSI_LAYOUT_CUT_H

#include "layout/layout.h"

typedef struct tsi_cut {
    const ts_placement
        *place;    /* of an interned sharding: RAGGED sizes are followed by their offsets */
    int64_t parts; /* coordinates of the axis */
    int64_t extent;
} tsi_cut;

int64_t tsi_cut_length(const tsi_cut *cut, int64_t coord);
/* The position in [0, extent) of local position `local` of coordinate `coord`. */
int64_t tsi_cut_outer(const tsi_cut *cut, int64_t coord, int64_t local);
/* Who holds a position, and where. */
int64_t tsi_cut_find(const tsi_cut *cut, int64_t position, int64_t *local);
/* S and RS give one interval: true and that. */
bool tsi_cut_interval(const tsi_cut *cut, int64_t coord, ts_interval *out);
/* All positions of a coordinate; memory for RS in rounds alone. false: out of memory. */
bool tsi_cut_positions(const tsi_cut *cut, int64_t coord, tsi_arena *arena, tsi_span_list *out);
/* RS: what the sizes add up to. */
static inline int64_t tsi_cut_ragged_total(const tsi_cut *cut)
{
    return cut->place->sizes[2 * cut->parts * cut->place->factor];
}
/* Do all coordinates hold equally many? Then that is *length. */
bool tsi_cut_even(const tsi_cut *cut, int64_t *length);

#endif
