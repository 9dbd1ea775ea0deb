/* SPDX-License-Identifier: Apache-2.0 */
/* again.h - operations of a step that is recorded (base/keep.h): issued now, and once more each
 * time the step runs again, on the same memory, under the same name.
 *
 * INV: a handle that is waited for while the step is recorded was issued there, and none is left
 * under way at its end. */
#ifndef TSI_COMM_AGAIN_H
#define TSI_COMM_AGAIN_H

#include "base/keep.h"
#include "comm/issue.h"

/* Each runs what it is named after and keeps it; the rank keeps (tsi_keeps). */
ts_status tsi_again_issue(tsi_call *call);
ts_status tsi_again_wait(ts_work *work);
/* Was it issued by the step, and is what runs now a piece of that step, of which nothing is kept?
 * Then the wait is made later. */
bool tsi_again_elsewhere(const ts_work *work);
ts_status tsi_again_batch_begin(ts_rank *rank);
ts_status tsi_again_batch_end(ts_rank *rank, const ts_comm_options *options);
/* A run that failed: what it posted ends before its memory may go. */
void tsi_again_end(ts_rank *rank, const tsi_kept *kept);
/* Operations that were issued and not waited for. */
int64_t tsi_again_open(const tsi_kept *kept);

/* ---- how long they take ---------------------------------------------------------------------- */
/* Does the work issue an operation, or wait for one? */
bool tsi_again_is_one(const tsi_kept_work *work);
/* The event of an operation that somebody waits for later, of its latest run; 0: it waits itself,
 * or goes with others. */
uint64_t tsi_again_event(const tsi_kept_work *work);

/* ---- operations that go as one --------------------------------------------------------------- */
/* Can the two be one: of one group, channel, dtype and reduction, and somebody waits for them
 * later? Sums of all members are one sum of more elements. Gathers, reduce-scatters and exchanges
 * are one exchange of more blocks. An element is folded in the order of the members wherever it
 * lies, so the bits are the same. */
bool tsi_again_alike(const tsi_kept_work *one, const tsi_kept_work *other);
/* Of its elements side by side; 0: they stay where they are. */
int64_t tsi_again_bytes(const tsi_kept_work *work);
/* From now on they begin where the last of them does, and end when somebody waits for one of them.
 * With `room` their elements are copied there and reduced, and copied to where each belongs; NULL:
 * an exchange. They follow each other in the list, and all members of the group do the same. */
void tsi_again_join(const tsi_kept_work *const *operation, int64_t count, char *room);
/* Counts recoveries: what ranks agreed on before the last one may not hold on all of them. */
uint64_t tsi_again_epoch(ts_rank *rank);
/* Each goes alone again. */
void tsi_again_part(const tsi_kept *kept);

#endif
