/* SPDX-License-Identifier: Apache-2.0 */
/* at_once.c - streams and events without state. */
#include "device/at_once.h"

ts_status tsi_at_once_stream_create(const tsi_device *device, tsi_stream **out)
{
    (void)device;
    *out = NULL; /* the default stream is the only one there is */
    return TS_OK;
}

void tsi_at_once_stream_destroy(const tsi_device *device, tsi_stream *stream)
{
    (void)device, (void)stream;
}

ts_status tsi_at_once_stream_sync(const tsi_device *device, tsi_stream *stream)
{
    (void)device, (void)stream;
    return TS_OK;
}

ts_status tsi_at_once_event_record(const tsi_device *device, tsi_stream *stream,
                                   tsi_device_event **out)
{
    (void)device, (void)stream;
    *out = NULL;
    return TS_OK;
}

ts_status tsi_at_once_event_wait(const tsi_device *device, tsi_stream *stream,
                                 tsi_device_event *event)
{
    (void)device, (void)stream, (void)event;
    return TS_OK;
}

bool tsi_at_once_event_done(const tsi_device *device, tsi_device_event *event)
{
    (void)device, (void)event;
    return true;
}

void tsi_at_once_event_destroy(const tsi_device *device, tsi_device_event *event)
{
    (void)device, (void)event;
}
