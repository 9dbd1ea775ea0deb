/* SPDX-License-Identifier: Apache-2.0 */
/* record.h - a running step as a step value (plan/step.h).
 *
 * Between begin and end an observer of the rank writes down what the rank does: operators, moves
 * with the collectives they take, messages, waits, updates, and when memory goes. Values are blocks
 * of memory, each with a name of its own ("linear.12": made by the 12th action); what was there
 * before the recording is "given.N". The list is this rank's; tsi_step_join puts those of all ranks
 * together.
 *
 * Operations that run while the rank goes on are on queues of their own: one per channel (on the
 * first channel one for each of the first groups), one for sends, one for receives. What one round
 * of a move leaves for the next is a value without bytes: it is waited for, an operator
 * `redistribute` reads it, and the next round what that makes. */
#ifndef TSI_RUNTIME_RECORD_H
#define TSI_RUNTIME_RECORD_H

#include "array/array.h"
#include "base/rank.h"
#include "plan/step.h"

typedef struct tsi_recording tsi_recording;

ts_status tsi_record_begin(ts_rank *rank, tsi_recording **out);
/* From now on what is there before the step stays there: its storages are retained, in `held`. A
 * recording that is only looked at does not: it would change the memory that it measures. */
typedef struct tsi_held {
    tsi_storage **storage;
    int32_t *value; /* [storage]: which it is in the rank's list */
    int64_t count, capacity, value_capacity;
    tsi_storage **written; /* those of them that the step changes */
    int64_t written_count, written_capacity;
} tsi_held;
/* Which action each piece of work that the rank keeps belongs to (base/keep.h): that which was
 * written down next. -1: none was. */
typedef struct tsi_worked {
    int32_t *action;
    int64_t count, capacity;
} tsi_worked;
void tsi_record_works(tsi_recording *recording, tsi_worked *worked);
/* Kernels say how long they take, from the arithmetic and the memory that they need: in worlds
 * without data, where nothing is measured. */
void tsi_record_kernels(tsi_recording *recording, double flops_per_second, double bytes_per_second);
void tsi_record_hold(tsi_recording *recording, tsi_held *held);
void tsi_held_release(tsi_held *held);
/* Ends it, whatever happened meanwhile. *out: the step with this rank's list, to be destroyed by
 * the caller; NULL if something could not be written down (recorded). Accepts NULL. */
ts_status tsi_record_end(tsi_recording *recording /* takes */, tsi_step **out);

/* What memory of a pool's tag is called in steps and reports (memory.c). */
tsi_step_memory tsi_memory_of_tag(uint32_t tag);

#endif
