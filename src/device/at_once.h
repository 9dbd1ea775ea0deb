/* SPDX-License-Identifier: Apache-2.0 */
/* at_once.h - streams and events of a device that has finished whatever was asked for when the call
 * returns: there is nothing to keep, and a wait is over at once. */
#ifndef TSI_DEVICE_AT_ONCE_H
#define TSI_DEVICE_AT_ONCE_H

#include "device/device.h"

ts_status tsi_at_once_stream_create(const tsi_device *device, tsi_stream **out);
void tsi_at_once_stream_destroy(const tsi_device *device, tsi_stream *stream);
ts_status tsi_at_once_stream_sync(const tsi_device *device, tsi_stream *stream);
ts_status tsi_at_once_event_record(const tsi_device *device, tsi_stream *stream,
                                   tsi_device_event **out);
ts_status tsi_at_once_event_wait(const tsi_device *device, tsi_stream *stream,
                                 tsi_device_event *event);
bool tsi_at_once_event_done(const tsi_device *device, tsi_device_event *event);
void tsi_at_once_event_destroy(const tsi_device *device, tsi_device_event *event);

/* Members of a tsi_device. */
#define TSI_AT_ONCE                                                                                \
    .stream_create = tsi_at_once_stream_create, .stream_destroy = tsi_at_once_stream_destroy,      \
    .stream_sync = tsi_at_once_stream_sync, .event_record = tsi_at_once_event_record,              \
    .event_wait = tsi_at_once_event_wait, .event_done = tsi_at_once_event_done,                    \
    .event_destroy = tsi_at_once_event_destroy

#endif
