/* SPDX-License-Identifier: Apache-2.0 */
/* gpu.h - what tests on a GPU share: the module's first device, blocks on it beside the same blocks
 * on the host, and times of what a stream does. */
#ifndef TESTS_GPU_GPU_H
#define TESTS_GPU_GPU_H

#include <stdlib.h>

#include "device/device.h"
#include "harness/test.h"
#include "runtime/module_load.h"

/* The first GPU and a stream of it. NULL: the test has failed. */
static inline const tsi_device *gpu_open(test *t, tsi_stream **stream)
{
    const tsi_device *gpu = NULL;
    TEST_SAY(t, tsi_module_device("cuda", &gpu) == TS_OK, "no GPU: %s", ts_last_error());
    if (gpu) TEST_OK(t, gpu->stream_create(gpu, stream));
    return gpu && *stream ? gpu : NULL;
}

/* Memory on both sides with the same bytes. */
typedef struct gpu_pair {
    char *host, *device;
    size_t bytes;
} gpu_pair;

static inline gpu_pair gpu_pair_make(test *t, const tsi_device *gpu, tsi_stream *stream,
                                     size_t bytes)
{
    gpu_pair pair = { .host = malloc(bytes + 64), .bytes = bytes };
    void *device = NULL;
    TEST_OK(t, gpu->buffer_alloc(gpu, bytes, &device));
    for (size_t i = 0; i < bytes; i++)
        pair.host[i] = (char)test_random(t);
    TEST_OK(t, gpu->copy_in(gpu, device, pair.host, bytes, stream));
    pair.device = device;
    return pair;
}

static inline void gpu_pair_drop(const tsi_device *gpu, gpu_pair *pair)
{
    gpu->buffer_free(gpu, pair->device, pair->bytes);
    free(pair->host);
}

/* The device's bytes, after a wait; free them. */
static inline char *gpu_read(test *t, const tsi_device *gpu, tsi_stream *stream, gpu_pair pair)
{
    char *back = malloc(pair.bytes + 1);
    TEST_OK(t, gpu->copy_out(gpu, back, pair.device, pair.bytes, stream));
    TEST_OK(t, gpu->stream_sync(gpu, stream));
    return back;
}

#endif
