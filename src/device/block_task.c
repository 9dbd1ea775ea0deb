/* SPDX-License-Identifier: Apache-2.0 */
/* block_task.c - what a copy, fill or fold is made of, behind one pointer. */
#include "device/block_task.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "device/bytes.h"
#include "device/cpu.h"

typedef enum task_kind { TASK_COPY, TASK_FILL, TASK_FOLD } task_kind;

struct tsi_block_task {
    task_kind kind;
    ts_reduce reduce;
    int64_t count, avg_count;
    tsi_block to;
    unsigned char element[16];
    const tsi_block **source; /* behind the blocks */
    tsi_block from[];
};

static tsi_block_task *task_make(task_kind kind, const tsi_block *to, const tsi_block *const *from,
                                 int64_t count)
{
    size_t blocks = (size_t)count * sizeof(tsi_block);
    size_t bytes = sizeof(tsi_block_task) + blocks + (size_t)count * sizeof(tsi_block *);
    tsi_block_task *task = tsi_alloc(bytes);
    if (!task) {
        (void)tsi_fail_memory("work of a stream", bytes);
        return NULL;
    }
    *task = (tsi_block_task){ .kind = kind, .to = *to, .count = count };
    task->source = (const tsi_block **)(void *)(task->from + count);
    for (int64_t i = 0; i < count; i++) {
        task->from[i] = *from[i];
        task->source[i] = &task->from[i];
    }
    return task;
}

tsi_block_task *tsi_block_task_copy(const tsi_block *to, const tsi_block *from)
{
    return task_make(TASK_COPY, to, &from, 1);
}

tsi_block_task *tsi_block_task_fill(const tsi_block *to, const void *element)
{
    tsi_block_task *task = task_make(TASK_FILL, to, NULL, 0);
    if (task) memcpy(task->element, element, ts_dtype_size((ts_dtype)to->dtype));
    return task;
}

tsi_block_task *tsi_block_task_fold(const tsi_block *to, const tsi_block *const *from,
                                    int64_t count, ts_reduce reduce, int64_t avg_count)
{
    tsi_block_task *task = task_make(TASK_FOLD, to, from, count);
    if (!task) return NULL;
    task->reduce = reduce;
    task->avg_count = avg_count;
    return task;
}

void tsi_block_task_sources(tsi_block_task *task, void *(*at)(const void *address))
{
    for (int64_t i = 0; i < task->count; i++)
        task->from[i].data = at(task->from[i].data);
}

ts_status tsi_block_task_run(void *context)
{
    const tsi_block_task *task = context;
    const tsi_device *cpu = tsi_device_cpu();
    switch (task->kind) {
    case TASK_COPY:
        return tsi_cpu_copy(cpu, &task->to, &task->from[0], NULL);
    case TASK_FILL:
        return tsi_cpu_fill(cpu, &task->to, task->element, NULL);
    case TASK_FOLD:
        return tsi_cpu_fold(cpu, &task->to, task->source, task->count, task->reduce,
                            task->avg_count, NULL);
    }
    return TS_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

tsi_kept_touch tsi_block_covers(const tsi_block *block)
{
    tsi_bytes bytes = tsi_bytes_of(block);
    return (tsi_kept_touch){ .low = (const char *)bytes.begin, .high = (const char *)bytes.end };
}

void tsi_block_touch(tsi_block *block, bool writes, tsi_kept_tell tell, void *to)
{
    tsi_kept_touch touch = tsi_block_covers(block);
    touch.at = &block->data;
    touch.writes = writes;
    if (touch.low) tell(to, &touch);
}

static void task_touches(void *context, tsi_kept_tell tell, void *to)
{
    tsi_block_task *task = context;
    for (int64_t i = 0; i < task->count; i++)
        tsi_block_touch(&task->from[i], false, tell, to);
    tsi_block_touch(&task->to, true, tell, to);
}

const tsi_kept_kind tsi_block_task_kind = { TSI_KEPT_FREE, task_touches };
