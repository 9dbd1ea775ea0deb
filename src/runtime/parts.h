/* SPDX-License-Identifier: Apache-2.0 */
/* parts.h - operations that a program has in parts go in parts when the step runs in that order.
 *
 *   room     behind each operation that might be cut stand pieces of work that begin its next part,
 *            if it has one; they cost a look each
 *   wanted   where the program has the parts; of more than TSI_PARTS_LIVE neighbours go as one
 *   agreed   on all ranks that the elements of an operation can be cut, or it stays whole
 *
 * INV: parts of an operation begin in an order that all ranks agreed on, like operations (works.h),
 * or there are none. */
#ifndef TSI_RUNTIME_PARTS_H
#define TSI_RUNTIME_PARTS_H

#include "comm/again.h"
#include "plan/step.h"
#include "runtime/replay.h"

typedef struct tsi_parted { /* an operation that the program has in parts */
    int32_t action;         /* of the program: the first part */
    int32_t parts;          /* as it goes; below 2: whole */
    int32_t piece;          /* that begins the first; the next ones follow it */
    int32_t place[TSI_PARTS_LIVE];
    int64_t work; /* the kept work of that piece */
} tsi_parted;

typedef struct tsi_parteds {
    tsi_parted *op;
    int64_t count;
} tsi_parteds;

/* Once, before the works are tied; nothing was reordered yet. */
ts_status tsi_parts_make_room(ts_step *s);
/* Those of this rank. `whole`: of each action of the program the recorded one that it is a part of,
 * or -1. The works are tied. */
ts_status tsi_parts_find(tsi_parteds *all, const ts_step *s, const tsi_step_list *given,
                         const int32_t *whole, int64_t recorded);
void tsi_parts_release(tsi_parteds *all);
/* [coll] In how many parts each goes: as many as all ranks can. */
ts_status tsi_parts_agree(const tsi_parteds *all, const ts_step *s, const tsi_step *given);
/* [coll] In its place, of a rank that refuses the program: then all stay whole. */
void tsi_parts_refuse(const ts_step *s);
/* The one that a piece begins; NULL: it goes whole. */
const tsi_parted *tsi_parts_of(const tsi_parteds *all, int32_t piece);
/* From now on they go in parts, if the order was `taken`. Returns how many do. */
int64_t tsi_parts_take(const tsi_parteds *all, const ts_step *s, bool taken);

#endif
