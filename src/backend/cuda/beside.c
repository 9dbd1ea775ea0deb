/* SPDX-License-Identifier: Apache-2.0 */
/* beside.c - small work of a graph that needs nothing of each other, side by side.
 *
 *   as called    ... -> dx = dy w -> dw = x' dy -> ...
 *   in a graph   ... -+-> dx = dy w --+-> ...
 *                     +-> dw = x' dy -+
 *
 * A small product leaves most of a GPU idle, and so do the last sums of a norm's weight ahead of
 * it. While a stream captures, a call that comes right behind others and neither touches what they
 * write nor writes what they touch goes to a branch: a stream with a workspace of its own, which
 * begins where the first of them did.
 *
 * INV: whatever the stream does next is behind all of them, so memory is given back and used again
 * as if they ran one after the other. What a branch gets follows each other: it begins behind the
 * place where the branch was joined before. */
#include "backend/cuda/beside.h"

#include <string.h>

#include "base/error.h"

enum { SMALL = 1 << 21 }; /* results that do not fill a GPU: 128 tiles of 128 x 128 */

bool tsi_cuda_is_small(int64_t results)
{
    return results <= SMALL;
}

/* ---- what a call touches --------------------------------------------------------------------- */

static tsi_bytes bytes_of(const void *memory, int32_t dtype, const int64_t *extent,
                          const int64_t *stride)
{
    tsi_block block = { .data = (void *)(uintptr_t)memory, .dtype = dtype, .ndim = 3 };
    memcpy(block.extent, extent, 3 * sizeof *extent);
    memcpy(block.stride, stride, 3 * sizeof *stride);
    return tsi_bytes_of(&block);
}

bool tsi_cuda_product_touches(const tsi_cuda_product *p, tsi_cuda_touched *out)
{
    const int64_t a[][3] = { { p->batch, p->m, p->k }, { p->a_step, p->am, p->ak } };
    const int64_t b[][3] = { { p->batch, p->k, p->n }, { p->b_step, p->bk, p->bn } };
    const int64_t c[][3] = { { p->batch, p->m, p->n }, { p->c_step, p->cm, p->cn } };
    const int64_t bias[][3] = { { 1, 1, p->n }, { 0, 0, 1 } };
    *out = (tsi_cuda_touched){ .read = { bytes_of(p->a, p->dtype, a[0], a[1]),
                                         bytes_of(p->b, p->dtype, b[0], b[1]),
                                         bytes_of(p->bias, p->c_dtype, bias[0], bias[1]),
                                         bytes_of(p->onto, p->c_dtype, c[0], c[1]) },
                               .written = bytes_of(p->c, p->c_dtype, c[0], c[1]) };
    return p->m <= SMALL && p->n <= SMALL && p->batch <= SMALL &&
           (double)p->m * (double)p->n * (double)p->batch <= SMALL;
}

static bool need_nothing(const tsi_cuda_touched *x, const tsi_cuda_touched *y)
{
    bool apart = !tsi_bytes_meet(x->written, y->written);
    for (int32_t i = 0; i < TSI_CUDA_READS; i++)
        apart = apart && !tsi_bytes_meet(x->written, y->read[i]) &&
                !tsi_bytes_meet(y->written, x->read[i]);
    return apart;
}

/* Whether there is room for one more, right behind the last, that needs nothing of the others. */
static bool joins(const tsi_stream *stream, const tsi_cuda_touched *now)
{
    const tsi_cuda_capture *capture = stream->capture;
    bool fits = capture->beside_end == stream->sent && capture->beside < TSI_CUDA_BESIDE;
    for (int32_t i = 0; fits && i < capture->beside; i++)
        fits = need_nothing(&capture->touched[i], now);
    return fits;
}

/* ---- branches -------------------------------------------------------------------------------- */

static ts_status event_of(tsi_cuda *cuda, CUevent *event)
{
    if (!*event)
        TSI_CUDA_TRY(cuda, "an event", tsi_cu.event_create(event, CU_EVENT_DISABLE_TIMING));
    return TS_OK;
}

/* Behind what the first of them is behind. */
static ts_status branch_off(tsi_stream *stream, tsi_stream **branch)
{
    tsi_cuda *cuda = stream->cuda;
    if (!*branch) TSI_TRY(cuda->device.stream_create(&cuda->device, branch));
    TSI_TRY(event_of(cuda, &stream->join));
    TSI_CUDA_TRY(cuda, "a branch of a graph",
                 tsi_cu.stream_wait(tsi_cuda_apart(*branch), stream->fork, 0));
    return TS_OK;
}

ts_status tsi_cuda_beside_begin(tsi_stream *stream, const tsi_cuda_touched *touched,
                                tsi_cuda_place *place)
{
    tsi_cuda_capture *capture = stream->capture;
    *place = (tsi_cuda_place){ .on = stream };
    if (!capture || !stream->cuda->beside || !touched) return TS_OK;
    place->member = true;
    if (joins(stream, touched)) {
        tsi_stream **branch = &stream->branch[capture->beside - 1];
        capture->touched[capture->beside++] = *touched;
        TSI_TRY(branch_off(stream, branch));
        place->on = *branch;
        return TS_OK;
    }
    capture->touched[0] = *touched;
    capture->beside = 1;
    TSI_TRY(event_of(stream->cuda, &stream->fork));
    TSI_CUDA_TRY(stream->cuda, "an event", tsi_cu.event_record(stream->fork, stream->handle));
    return TS_OK;
}

ts_status tsi_cuda_beside_end(tsi_stream *stream, const tsi_cuda_place *place)
{
    tsi_cuda *cuda = stream->cuda;
    if (!place->member) return TS_OK;
    if (place->on != stream) {
        TSI_CUDA_TRY(cuda, "an event", tsi_cu.event_record(stream->join, place->on->handle));
        TSI_CUDA_TRY(cuda, "a branch of a graph",
                     tsi_cu.stream_wait(tsi_cuda_apart(stream), stream->join, 0));
    }
    stream->capture->beside_end = stream->sent;
    return TS_OK;
}

ts_status tsi_cuda_beside_launch(tsi_stream *stream, tsi_cuda_kernel kernel, int64_t blocks,
                                 int32_t threads, void *args, tsi_bytes read, tsi_bytes written)
{
    tsi_cuda_touched touched = { .read = { read }, .written = written };
    tsi_cuda_place place;
    TSI_TRY(tsi_cuda_beside_begin(stream, &touched, &place));
    ts_status status = tsi_cuda_launch(place.on, kernel, blocks, threads, 0, args);
    ts_status ended = tsi_cuda_beside_end(stream, &place);
    return status == TS_OK ? ended : status;
}

void tsi_cuda_beside_drop(tsi_stream *stream, bool alive)
{
    const tsi_device *device = &stream->cuda->device;
    if (alive && stream->fork) (void)tsi_cu.event_destroy(stream->fork);
    if (alive && stream->join) (void)tsi_cu.event_destroy(stream->join);
    for (int32_t i = 0; i < TSI_CUDA_BESIDE - 1; i++)
        device->stream_destroy(device, stream->branch[i]);
}
