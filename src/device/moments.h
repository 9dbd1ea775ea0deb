/* SPDX-License-Identifier: Apache-2.0 */
/* moments.h - when the work of a rank's queues ran, while a trace is taken.
 *
 *   host    issue a | issue b |            |  a, b go to the rank's ring
 *   queue           mark . a . mark mark . b . mark
 *
 * Marks of the device stand around work that the rank posts; when they have passed, their times go
 * to the ring as events of the queue (TSI_EVENT_DEVICE). One mark at the beginning, behind which
 * the host looks at its clock, says what the device's times are on that clock; so no event seems to
 * have begun before it was issued.
 *
 * INV: without a trace rank->moments is NULL, and nothing is marked. Only the rank's thread keeps
 * marks, and none is made in what is captured. */
#ifndef TSI_DEVICE_MOMENTS_H
#define TSI_DEVICE_MOMENTS_H

#include "device/device.h"

enum { TSI_MOMENTS_QUEUES = 16 }; /* that a rank marks: its own is the first; others are not */

/* A device that measures nothing: nothing is done. The begin waits for the rank's queue, the end
 * too, and leaves everything in the ring. Pairs may lie inside each other. */
ts_status tsi_moments_begin(ts_rank *rank);
void tsi_moments_end(ts_rank *rank);
/* Waits for what was marked so far: streams other than the rank's own may go then. */
void tsi_moments_settle(ts_rank *rank);

/* Before work is posted to the stream; NULL: nobody wants to know, or it cannot be marked. */
tsi_device_event *tsi_moment_mark(ts_rank *rank, tsi_stream *stream);
/* Behind it. `event` names it: kind_name, name and where live as long as the rank. Takes the mark;
 * NULL: nothing is done. */
void tsi_moment_passed(ts_rank *rank, tsi_stream *stream, tsi_device_event *mark,
                       const tsi_event *event);

/* Of work that another thread posts for the rank: a mark, from any thread (NULL: none could be
 * made); and what lay between two of them, which are taken and may be NULL. */
tsi_device_event *tsi_moment_at(const tsi_device *device, tsi_stream *stream);
void tsi_moment_add(ts_rank *rank, tsi_stream *stream, tsi_device_event *const mark[2],
                    const tsi_event *event);

#endif
