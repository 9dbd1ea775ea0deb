/* SPDX-License-Identifier: Apache-2.0 */
/* share.h - who writes which part of a tensor, in closed form.
 *
 * Ranks that differ only in axes that do not cut hold the same block. Its elements, in the block's
 * row-major order, are cut into as many slots as there are holders; slot s belongs to holder
 * (s - turn) mod K, where the turn follows from the tensor's name, so that tensors of one slot are
 * spread too. Every rank computes its own share alone, and a reader that knows mesh, placements and
 * name finds every element again: nothing of it is stored.
 *
 * INV: the slots of a block cover it, each once; they begin at multiples of TSI_SHARE_ALIGN bytes.
 */
#ifndef TSI_CHECKPOINT_SHARE_H
#define TSI_CHECKPOINT_SHARE_H

#include "layout/layout.h"

enum { TSI_SHARE_ALIGN = 4096 };

typedef struct tsi_share_rule { /* of one tensor and one block of it */
    uint32_t axes;              /* that do not cut: along them blocks are alike */
    int32_t reserved;
    int64_t holders;
    int64_t turn;        /* 0 .. holders-1 */
    int64_t slot_length; /* elements; the last ones are short or empty */
    int64_t count;       /* elements of the block */
} tsi_share_rule;

typedef struct tsi_share { /* a range of the block's elements */
    int64_t first, count;
} tsi_share;

/* Of the block at coord; `bytes`: of an element as stored. */
void tsi_share_rule_of(const ts_layout *layout, const int64_t *coord, const char *name,
                       size_t bytes, tsi_share_rule *out);
/* What the holder at coord writes: copy 0 is its own slot, copy c that of the c-th before it. */
tsi_share tsi_share_at(const tsi_share_rule *rule, const ts_layout *layout, const int64_t *coord,
                       int64_t copy);
/* The slot of an element, and the rank of the world that has written copy c of that slot. */
tsi_share tsi_share_find(const tsi_share_rule *rule, int64_t element, int64_t *slot);
int64_t tsi_share_writer(const tsi_share_rule *rule, const ts_layout *layout, const int64_t *coord,
                         int64_t slot, int64_t copy);

#endif
