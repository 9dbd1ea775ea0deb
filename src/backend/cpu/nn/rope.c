/* SPDX-License-Identifier: Apache-2.0 */
/* rope.c - rotary positions of narrow reals, forward and back, row by row: f32 rows where they lie,
 * others through a buffer. The table's rows are brought to f32 once per position. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/compiler.h"
#include "op/nn/attributes.h"

enum { GRAIN = 16384 };

typedef struct rope {
    const tsi_row_set *set;
    const tsi_kernel_io *io;
    tsi_block x, y, table;
    int64_t length, half;
    float sign;
    bool direct, plain; /* rows of x and y; of the table: f32, contiguous */
    float *buffer;      /* per worker: a row of x, one of the table */
} rope;

/* Where a row begins in x and y, and its place in the sequence dim. */
typedef struct place {
    int64_t index[TS_NDIM_MAX], x, y;
} place;

static void place_start(const rope *r, int64_t row, place *p)
{
    p->x = p->y = 0;
    for (int32_t d = r->x.ndim - 2; d >= 0; d--) {
        p->index[d] = row % r->x.extent[d];
        row /= r->x.extent[d];
        p->x += p->index[d] * r->x.stride[d];
        p->y += p->index[d] * r->y.stride[d];
    }
}

static void place_next(const rope *r, place *p)
{
    for (int32_t d = r->x.ndim - 2; d >= 0; d--) {
        bool wraps = ++p->index[d] == r->x.extent[d];
        int64_t step = wraps ? 1 - r->x.extent[d] : 1;
        p->x += step * r->x.stride[d];
        p->y += step * r->y.stride[d];
        if (!wraps) return;
        p->index[d] = 0;
    }
}

static const float *table_row(const rope *r, int64_t position, float *buffer)
{
    int64_t size = (int64_t)ts_dtype_size((ts_dtype)r->table.dtype);
    const char *at = (const char *)r->table.data + position * r->table.stride[0] * size;
    if (r->plain) return (const float *)(const void *)at;
    tsi_gather(TS_DTYPE_F32, buffer, (ts_dtype)r->table.dtype, at, r->table.stride[1] * size,
               r->length);
    return buffer;
}

static void turn(const rope *r, float *to, const float *from, const float *angles)
{
    float *const halves[] = { to, to + r->half };
    const float *const source[] = { from, from + r->half };
    const float *const cos_sin[] = { angles, angles + r->half };
    r->set->rotate(halves, source, cos_sin, r->sign, r->half);
}

static void run_rows(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const rope *r = context;
    float *row = r->buffer + 2 * worker * r->length, *buffer = row + r->length;
    const tsi_region *region = r->io->in[0].region;
    int32_t last = r->x.ndim - 1;
    int64_t size = (int64_t)ts_dtype_size((ts_dtype)r->x.dtype);
    place p;
    place_start(r, begin, &p);
    for (int64_t i = begin; i < end; i++, place_next(r, &p)) {
        int64_t position = p.index[last - 1];
        if (region) position = tsi_span_list_at(&region->dim[last - 1], position);
        const float *angles = table_row(r, position, buffer);
        char *to = (char *)r->y.data + p.y * size, *from = (char *)r->x.data + p.x * size;
        if (r->direct) {
            turn(r, (float *)(void *)to, (const float *)(const void *)from, angles);
            continue;
        }
        tsi_gather(TS_DTYPE_F32, row, (ts_dtype)r->x.dtype, from, r->x.stride[last] * size,
                   r->length);
        turn(r, row, row, angles);
        tsi_scatter((ts_dtype)r->y.dtype, to, r->y.stride[last] * size, TS_DTYPE_F32, row,
                    r->length);
    }
}

ts_status tsi_cpu_rope(const tsi_kernel_io *io)
{
    rope r = { .set = tsi_rows(), .io = io, .x = io->in[0].block, .y = io->out[0].block };
    r.table = io->in[1].block;
    int32_t last = r.x.ndim - 1;
    r.length = r.x.extent[last];
    r.half = r.length / 2;
    if (!tsi_is_small_real(r.x.dtype) || r.table.dtype == TS_DTYPE_F64)
        return (ts_status)TSI_KERNEL_DECLINED;
    int64_t count = tsi_block_count(&r.x);
    if (count == 0) return TS_OK;
    r.sign = ((const tsi_rope_attributes *)io->attributes)->inverse ? -1.0f : 1.0f;
    r.direct = r.x.dtype == TS_DTYPE_F32 && r.x.stride[last] == 1 && r.y.stride[last] == 1;
    r.plain = r.table.dtype == TS_DTYPE_F32 && r.table.stride[1] == 1;
    tsi_scratch scratch;
    size_t numbers = (size_t)(2 * tsi_parallel_threads(io->rank) * r.length);
    TSI_TRY(tsi_scratch_get(&scratch, io->rank, numbers, sizeof(float)));
    r.buffer = scratch.data;
    tsi_parallel_for(io->rank, count / r.length, GRAIN / r.length + 1, run_rows, &r);
    tsi_scratch_done(&scratch);
    return TS_OK;
}
