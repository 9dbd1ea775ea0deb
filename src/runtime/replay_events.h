/* SPDX-License-Identifier: Apache-2.0 */
/* replay_events.h - what a replay leaves in the rank's ring, and what it is at.
 *
 *   always     one event of the whole, and those of operations of communication
 *   traced     one more for each other piece of work, named as the action that it is part of
 *              (ts_rank_trace_begin)
 *   any time   which piece runs now, for post-mortems: the list keeps its place (tsi_kept.at) */
#ifndef TSI_RUNTIME_REPLAY_EVENTS_H
#define TSI_RUNTIME_REPLAY_EVENTS_H

#include "runtime/replay.h"

/* Runs the list, with events if somebody wants them; others may ask what it is at. */
ts_status tsi_replay_run(ts_step *s);
/* The same with times. */
ts_status tsi_replay_time(ts_step *s, int64_t *ns);
/* Names are of an order of the work; without memory they are made at the next replay. */
void tsi_replay_forget(ts_step *s);
/* Is the rank in a replay? Then what it is at, as text, and for how long the replay has run. Any
 * thread. */
bool tsi_replay_at(const ts_rank *rank, char *out, size_t size, int64_t *begin_ns);

/* The action that a work which computes is for: itself, or the operator whose operation it is. */
int32_t tsi_step_computing(const tsi_step_list *list, int32_t of);
/* What a wait waits for: the latest operation before it on what it reads; none: the wait. */
const tsi_action *tsi_step_waited_for(const tsi_step_list *list, int32_t wait);

#endif
