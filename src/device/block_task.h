/* SPDX-License-Identifier: Apache-2.0 */
/* block_task.h - a copy, fill or fold of host memory as a value, to be done later or once more. */
#ifndef TSI_DEVICE_BLOCK_TASK_H
#define TSI_DEVICE_BLOCK_TASK_H

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

#endif
