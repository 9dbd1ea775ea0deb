/* SPDX-License-Identifier: Apache-2.0 */
/* cast.c - cast and clone on all threads of the rank: slabs of the outermost dim, each copied by
 * the device as it copies anything; dense f32 and bf16 by rows of their own. */
#include "backend/cpu/cpu.h"
#include "base/compiler.h"

enum { GRAIN = 32768 };

typedef struct slabs {
    tsi_block to, from;
    const tsi_device *device;
    const tsi_row_set *set;
    int32_t dim, reserved;
    _Atomic int failed; /* a status; any one of them, since all say the same */
} slabs;

static tsi_block slab_of(const tsi_block *block, int32_t dim, int64_t begin, int64_t end)
{
    tsi_block part = *block;
    part.extent[dim] = end - begin;
    part.data = (char *)block->data +
                begin * block->stride[dim] * (int64_t)ts_dtype_size((ts_dtype)block->dtype);
    return part;
}

static void run_slab(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    slabs *s = context;
    tsi_block to = slab_of(&s->to, s->dim, begin, end);
    tsi_block from = slab_of(&s->from, s->dim, begin, end);
    ts_status status = s->device->copy(s->device, &to, &from, NULL);
    if (status != TS_OK) s->failed = (int)status;
}

static void run_narrow(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const slabs *s = context;
    s->set->narrow((uint16_t *)s->to.data + begin, (const float *)s->from.data + begin,
                   end - begin);
}

static void run_widen(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const slabs *s = context;
    s->set->widen((float *)s->to.data + begin, (const uint16_t *)s->from.data + begin, end - begin);
}

/* The dim with the largest step in the result, among those that can be cut. */
static int32_t outermost(const tsi_block *to)
{
    int32_t best = -1;
    for (int32_t d = 0; d < to->ndim; d++) {
        int64_t step = to->stride[d] < 0 ? -to->stride[d] : to->stride[d];
        if (to->extent[d] > 1 && (best < 0 || step > to->stride[best])) best = d;
    }
    return best;
}

ts_status tsi_cpu_cast(const tsi_kernel_io *io)
{
    slabs s = { .to = io->out[0].block, .from = io->in[0].block, .device = io->device };
    s.set = tsi_rows();
    int64_t count = tsi_block_count(&s.to);
    if (count == 0) return TS_OK;
    bool dense = tsi_block_is_dense(&s.to) && tsi_block_is_dense(&s.from);
    if (dense && s.to.dtype == TS_DTYPE_BF16 && s.from.dtype == TS_DTYPE_F32) {
        tsi_parallel_for(io->rank, count, GRAIN, run_narrow, &s);
        return TS_OK;
    }
    if (dense && s.to.dtype == TS_DTYPE_F32 && s.from.dtype == TS_DTYPE_BF16) {
        tsi_parallel_for(io->rank, count, GRAIN, run_widen, &s);
        return TS_OK;
    }
    s.dim = outermost(&s.to);
    if (s.dim < 0) return io->device->copy(io->device, &s.to, &s.from, NULL);
    int64_t extent = s.to.extent[s.dim];
    tsi_parallel_for(io->rank, extent, GRAIN / (count / extent) + 1, run_slab, &s);
    return (ts_status)s.failed;
}
