/* SPDX-License-Identifier: Apache-2.0 */
/* block_task.h - a copy, fill or fold of host memory as a value, to be done later or once more. */
#ifndef TSI_DEVICE_BLOCK_TASK_H
#define TSI_DEVICE_BLOCK_TASK_H

#include "base/keep.h"
#include "device/device.h"

typedef struct tsi_block_task tsi_block_task; /* given back with tsi_free */

/* NULL: no memory, recorded. */
tsi_block_task *tsi_block_task_copy(const tsi_block *to, const tsi_block *from);
tsi_block_task *tsi_block_task_fill(const tsi_block *to, const void *element);
tsi_block_task *tsi_block_task_fold(const tsi_block *to, const tsi_block *const *from,
                                    int64_t count, ts_reduce reduce, int64_t avg_count);
/* Sources are where `at` says. */
void tsi_block_task_sources(tsi_block_task *task, void *(*at)(const void *address));
ts_status tsi_block_task_run(void *task);
extern const tsi_kept_kind tsi_block_task_kind;

/* What a block covers, from its first to its last byte; of an empty one `low` is NULL. */
tsi_kept_touch tsi_block_covers(const tsi_block *block);
/* Tells it, if it covers something; the block is the work's own. */
void tsi_block_touch(tsi_block *block, bool writes, tsi_kept_tell tell, void *to);

#endif
