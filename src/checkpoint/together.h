/* SPDX-License-Identifier: Apache-2.0 */
/* together.h - ranks of a process that load the same tensors read the files for each other.
 *
 *   tasks   item 0: chunk 0, 1, 2, ..; item 1: ..        in the same order on all ranks
 *   rank    takes the next few, reads each once, checks its hashes, and puts what each of the ranks
 *           wants of it where that one wants it
 *
 * Nobody waits for a task of another, so a slow rank leaves its share of them to the others.
 *
 * INV: while a rank has joined, others may write what its items point to; they do not any more when
 * tsi_together_leave has returned. A task that fails ends the reading of all, with its sentence. */
#ifndef TSI_CHECKPOINT_TOGETHER_H
#define TSI_CHECKPOINT_TOGETHER_H

#include "checkpoint/archive.h"

typedef struct tsi_together_item { /* a tensor that all who joined load, by the same layout */
    const tsi_entry *entry;        /* of the rank's own archive */
    tsi_archive_target target;     /* data NULL: nothing of it is wanted here */
} tsi_together_item;

typedef struct tsi_together tsi_together;

/* Meets those of the process that came with the same `id` and the same items. The items stay the
 * caller's until it leaves. Ranks that are to be served must have joined before the first reads.
 * NULL: no memory (recorded). */
tsi_together *tsi_together_join(ts_rank *rank, uint64_t id, const ts_archive *archive,
                                const tsi_together_item *item, int64_t count);
/* Takes tasks until there are none, and waits a while for others that are at theirs, so that what
 * they find is told by all. They may still be at it: agree before you leave. */
ts_status tsi_together_read(tsi_together *me, ts_archive *archive);
void tsi_together_leave(tsi_together *me /* takes */); /* accepts NULL */

#endif
