/* SPDX-License-Identifier: Apache-2.0 */
/* gpu.h - what tests on a GPU share: the module's first device, blocks on it beside the same blocks
 * on the host, and the same work on both. */
#ifndef TESTS_GPU_GPU_H
#define TESTS_GPU_GPU_H

#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "harness/test.h"
#include "runtime/module_load.h"
#include "tessera/op.h"
#include "tessera/world.h"

/* The first GPU and a stream of it. NULL: the test has failed. */
static inline const tsi_device *gpu_open(test *t, tsi_stream **stream)
{
    const tsi_device *gpu = NULL;
    TEST_SAY(t, tsi_module_device("cuda", &gpu) == TS_OK, "no GPU: %s", ts_last_error());
    if (gpu) TEST_OK(t, gpu->stream_create(gpu, stream));
    return gpu && *stream ? gpu : NULL;
}

/* Whether the GPU is the simulated one (tests/gpu/simulated), which has no speed and little memory.
 * What a test leaves out there it says. */
static inline bool gpu_is_simulated(void)
{
    const tsi_device *gpu = NULL;
    tsi_device_properties p = { .units = 0 };
    if (tsi_module_device("cuda", &gpu) == TS_OK) gpu->properties(gpu, &p);
    return strcmp(p.name, "simulated GPU") == 0;
}

static inline bool gpu_leaves_out(const char *what)
{
    bool simulated = gpu_is_simulated();
    if (simulated) printf("the simulated GPU leaves out %s\n", what);
    return simulated;
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

/* ---- the same work on the host and on a GPU -------------------------------------------------- */

static inline void gpu_launch(test *t, const char *device, int64_t ranks, uint64_t seed,
                              ts_work_fn work, void *context)
{
    char error[512] = "";
    ts_status status = ts_launch_with(
        TS_OPTIONS(ts_world_options, .rank_count = ranks, .seed = seed, .device = device), work,
        context, error, sizeof error);
    TEST_SAY(t, status == TS_OK, "%s: %s", device, error);
}

/* One rank each, from the same random numbers. */
static inline void gpu_beside_host(test *t, uint64_t seed, ts_work_fn work, void *on_host,
                                   void *on_gpu)
{
    gpu_launch(t, "cpu", 1, seed, work, on_host);
    gpu_launch(t, "cuda", 1, seed, work, on_gpu);
}

/* All elements, to be freed; NULL: there is no such tensor. With TESSERA_CUDA_MEMORY=host: they are
 * read through pointers. */
static inline double *gpu_values(ts_tensor *x, int64_t *count)
{
    ts_array view = TS_INIT(ts_array);
    ts_tensor *wide = ts_cast(x, TS_DTYPE_F64);
    if (!wide || ts_tensor_view(wide, &view) != TS_OK) return NULL;
    ts_shape shape = ts_tensor_shape(wide);
    *count = ts_shape_count(&shape);
    double *values = malloc((size_t)*count * sizeof *values + 1);
    memcpy(values, view.data, (size_t)*count * sizeof *values);
    return values;
}

/* A result may differ from the host's by a few roundings of its dtype, as a part of the largest
 * element. */
static inline double gpu_allowed(ts_dtype dtype)
{
    return dtype == TS_DTYPE_BF16 ? 0x1p-7 : dtype == TS_DTYPE_F64 ? 1e-13 : 1e-5;
}

#endif
