/* SPDX-License-Identifier: Apache-2.0 */
/* keeping.c - the cpu while a step is recorded: what is asked of it runs at once and is kept.
 *
 * Kernels see a device whose work is deferred, so each call is copied with everything it points to;
 * here it is run there and then, and handed to the list (base/keep.h). Memory is the cpu's own.
 *
 * INV: nothing crosses between the host and the step while it is recorded: a number that the host
 * read would be that of the recorded step for ever, and so would one that it wrote. */
#include <pthread.h>
#include <string.h>

#include "base/error.h"
#include "base/keep.h"
#include "device/cpu.h"

static ts_status keep_work(const tsi_device *device, tsi_stream *stream, tsi_deferred_fn fn,
                           void *context, void (*destroy)(void *context))
{
    (void)device, (void)stream;
    return tsi_keep_work(tsi_rank_current(), (tsi_kept_work){ fn, context, destroy, NULL });
}

static ts_status copy_bytes(const tsi_device *device, void *to, const void *from, size_t bytes,
                            tsi_stream *stream)
{
    (void)device, (void)stream;
    if (tsi_keeps(tsi_rank_current())) return TSI_FAIL(TS_ERR_STATE, TSI_CROSSES);
    if (bytes > 0) memcpy(to, from, bytes);
    return TS_OK;
}

static ts_status stream_sync(const tsi_device *device, tsi_stream *stream)
{
    (void)device, (void)stream;
    if (!tsi_keeps(tsi_rank_current())) return TS_OK;
    return TSI_FAIL(TS_ERR_STATE,
                    "step: the host waits for a value of a step that is recorded; results are read "
                    "after it");
}

static tsi_device keeping;

static void keeping_make(void)
{
    keeping = *tsi_device_cpu();
    keeping.host_readable = false;
    keeping.copy_in = copy_bytes;
    keeping.copy_out = copy_bytes;
    keeping.stream_sync = stream_sync;
    keeping.defer = keep_work;
}

const tsi_device *tsi_device_keeping(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, keeping_make);
    return &keeping;
}
