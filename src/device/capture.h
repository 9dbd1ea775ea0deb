/* SPDX-License-Identifier: Apache-2.0 */
/* capture.h - a step of a device that captures: graphs between the functions of the host. */
#ifndef TSI_DEVICE_CAPTURE_H
#define TSI_DEVICE_CAPTURE_H

#include "base/keep.h"
#include "device/device.h"

bool tsi_device_captures(const tsi_device *device);
/* From here on the work of the rank's queue is captured and kept, until the end. The struct is
 * borrowed. */
ts_status tsi_capture_begin(tsi_kept *kept, const tsi_rank_device *where);
/* What was captured last is run and kept; `status` is not TS_OK: it is forgotten. */
ts_status tsi_capture_end(tsi_kept *kept, ts_status status);
/* Is it such a graph, of as many calls as it was? */
bool tsi_capture_is_graph(const tsi_kept_work *work);

#endif
