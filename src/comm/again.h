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

enum { TSI_PARTS_LIVE = 4 }; /* in which an operation goes at most */

/* Each runs what it is named after and keeps it; the rank keeps (tsi_keeps). */
ts_status tsi_again_issue(tsi_call *call);
ts_status tsi_again_wait(ts_work *work);
/* Was it issued by the step, and is what runs now a piece of that step, of which nothing is kept?
 * Then the wait is made later. */
bool tsi_again_elsewhere(const ts_work *work);
/* ts_work_test of the rank's own, on any thread that ends what the rank left (work.c). */
bool tsi_work_test(ts_work *work);
ts_status tsi_again_batch_begin(ts_rank *rank);
ts_status tsi_again_batch_end(ts_rank *rank, const ts_comm_options *options);
/* A run that failed: what it posted ends before its memory may go. */
void tsi_again_end(ts_rank *rank, const tsi_kept *kept);
/* Operations that were issued and not waited for. */
int64_t tsi_again_open(const tsi_kept *kept);

/* ---- how long they take ---------------------------------------------------------------------- */
/* Does the work issue an operation, or wait for one? */
bool tsi_again_is_one(const tsi_kept_work *work);
/* The events of an operation that somebody waits for later, of its latest run: one, or one of each
 * part. Returns how many; 0: it waits itself, or goes with others. */
int32_t tsi_again_events(const tsi_kept_work *work, uint64_t event[TSI_PARTS_LIVE]);

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
/* Each goes alone again, and whole. */
void tsi_again_go_alone(const tsi_kept *kept);

/* ---- operations in parts (again_parts.c) ----------------------------------------------------- */
/* Work that is not kept when the operation is, but may be put behind it: begins its next part, if
 * there is one. As many of them as it has parts behind the first. */
tsi_kept_work tsi_again_part_of(const tsi_kept_work *operation);
bool tsi_again_is_part(const tsi_kept_work *work);
/* Is it an operation that might be cut? Like sizes, that may differ between ranks. */
bool tsi_again_may_part(const tsi_kept_work *work);
/* Of one that might: does what it moves allow it? An element is folded in the order of the members
 * in whichever part it is, so the bits are the same. */
bool tsi_again_can_part(const tsi_kept_work *operation);
/* From now on it goes in 2 to TSI_PARTS_LIVE parts; all members of the group do the same. */
void tsi_again_go_in_parts(const tsi_kept_work *operation, int32_t parts);

#endif
