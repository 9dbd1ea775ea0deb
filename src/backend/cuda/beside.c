/* SPDX-License-Identifier: Apache-2.0 */
/* beside.c - products of a graph that need nothing of each other, side by side.
 *
 *   as called    ... -> dx = dy w -> dw = x' dy -> ...
 *   in a graph   ... -+-> dx = dy w --+-> ...
 *                     +-> dw = x' dy -+
 *
 * A small product leaves most of a GPU idle. While a stream captures, a small one that comes right
 * behind another and neither touches what that one writes nor writes what it touches goes to the
 * stream's branch: a stream with a workspace of its own, which begins where the first product did.
 *
 * INV: whatever the stream does next is behind both, so memory is given back and used again as if
 * they ran one after the other. Products of a branch follow each other: each begins behind the
 * place where the one before was joined. */
#include "backend/cuda/beside.h"

#include "base/error.h"

enum { SMALL = 1 << 21 }; /* results that do not fill a GPU: 128 tiles of 128 x 128 */

/* ---- what a product touches ------------------------------------------------------------------ */

typedef struct matrix {
    const void *memory;
    int64_t rows, columns, row_stride, column_stride, step;
    int32_t dtype;
} matrix;

static tsi_cuda_bytes bytes_of(const matrix *x, int64_t batch)
{
    int64_t last =
        (x->rows - 1) * x->row_stride + (x->columns - 1) * x->column_stride + (batch - 1) * x->step;
    if (!x->memory) return (tsi_cuda_bytes){ 0, 0 };
    if (x->row_stride < 0 || x->column_stride < 0 || x->step < 0)
        return (tsi_cuda_bytes){ 0, UINTPTR_MAX }; /* may be anywhere */
    uintptr_t begin = (uintptr_t)x->memory;
    return (tsi_cuda_bytes){ begin,
                             begin + (uintptr_t)(last + 1) * ts_dtype_size((ts_dtype)x->dtype) };
}

static tsi_cuda_touched touched_by(const tsi_cuda_product *p)
{
    const matrix a = { p->a, p->m, p->k, p->am, p->ak, p->a_step, p->dtype };
    const matrix b = { p->b, p->k, p->n, p->bk, p->bn, p->b_step, p->dtype };
    const matrix c = { p->c, p->m, p->n, p->cm, p->cn, p->c_step, p->c_dtype };
    const matrix bias = { p->bias, 1, p->n, 0, 1, 0, p->c_dtype };
    const matrix onto = { p->onto, p->m, p->n, p->cm, p->cn, p->c_step, p->c_dtype };
    return (tsi_cuda_touched){ .read = { bytes_of(&a, p->batch), bytes_of(&b, p->batch),
                                         bytes_of(&bias, 1), bytes_of(&onto, p->batch) },
                               .written = bytes_of(&c, p->batch) };
}

static bool meet(tsi_cuda_bytes x, tsi_cuda_bytes y)
{
    return x.begin < y.end && y.begin < x.end;
}

static bool need_nothing(const tsi_cuda_touched *x, const tsi_cuda_touched *y)
{
    bool apart = !meet(x->written, y->written);
    for (int32_t i = 0; i < TSI_CUDA_PRODUCT_READS; i++)
        apart = apart && !meet(x->written, y->read[i]) && !meet(y->written, x->read[i]);
    return apart;
}

static bool is_small(const tsi_cuda_product *p)
{
    return p->m <= SMALL && p->n <= SMALL && p->batch <= SMALL &&
           (double)p->m * (double)p->n * (double)p->batch <= SMALL;
}

/* ---- the branch ------------------------------------------------------------------------------ */

static ts_status event_of(tsi_cuda *cuda, CUevent *event)
{
    if (!*event)
        TSI_CUDA_TRY(cuda, "an event", tsi_cu.event_create(event, CU_EVENT_DISABLE_TIMING));
    return TS_OK;
}

/* The second of two: behind what the first is behind. */
static ts_status branch_off(tsi_stream *stream, tsi_stream **on)
{
    tsi_cuda *cuda = stream->cuda;
    if (!stream->branch) TSI_TRY(cuda->device.stream_create(&cuda->device, &stream->branch));
    TSI_TRY(event_of(cuda, &stream->join));
    TSI_CUDA_TRY(cuda, "a branch of a graph",
                 tsi_cu.stream_wait(stream->branch->handle, stream->fork, 0));
    *on = stream->branch;
    return TS_OK;
}

ts_status tsi_cuda_beside_begin(tsi_stream *stream, const tsi_cuda_product *p, tsi_stream **on)
{
    tsi_cuda_capture *capture = stream->capture;
    *on = stream;
    if (!capture || !stream->cuda->beside || !is_small(p)) return TS_OK;
    tsi_cuda_touched now = touched_by(p);
    if (capture->product_at == stream->sent && need_nothing(&capture->product, &now))
        return branch_off(stream, on);
    capture->product = now;
    TSI_TRY(event_of(stream->cuda, &stream->fork));
    TSI_CUDA_TRY(stream->cuda, "an event", tsi_cu.event_record(stream->fork, stream->handle));
    return TS_OK;
}

ts_status tsi_cuda_beside_end(tsi_stream *stream, const tsi_cuda_product *p, tsi_stream *on)
{
    tsi_cuda *cuda = stream->cuda;
    stream->sent++;
    if (on != stream) {
        TSI_CUDA_TRY(cuda, "an event", tsi_cu.event_record(stream->join, on->handle));
        TSI_CUDA_TRY(cuda, "a branch of a graph",
                     tsi_cu.stream_wait(tsi_cuda_apart(stream), stream->join, 0));
    } else if (stream->capture && cuda->beside && is_small(p)) {
        stream->capture->product_at = stream->sent;
    }
    return TS_OK;
}

void tsi_cuda_beside_drop(tsi_stream *stream, bool alive)
{
    if (alive && stream->fork) (void)tsi_cu.event_destroy(stream->fork);
    if (alive && stream->join) (void)tsi_cu.event_destroy(stream->join);
    stream->cuda->device.stream_destroy(&stream->cuda->device, stream->branch);
}
