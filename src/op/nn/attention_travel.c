/* SPDX-License-Identifier: Apache-2.0 */
/* attention_travel.c - what gather and ring share, see attention_travel.h. */
#include "op/nn/attention_travel.h"

#include <string.h>

#include "base/alloc.h"
#include "base/intmath.h"

/* ---- parts of exchanges ---------------------------------------------------------------------- */

ts_status tsi_travel_room(tsi_travel *t, int64_t room, tsi_travel_parts *out)
{
    size_t bytes = ((size_t)room + 1) * sizeof *out->part;
    *out = (tsi_travel_parts){ tsi_arena_alloc(&t->arena, bytes), 0, room };
    return out->part ? TS_OK : tsi_fail_memory("parts of an exchange", bytes);
}

void tsi_travel_add(tsi_travel_parts *to, const tsi_block *block, int64_t peer, int64_t first,
                    int64_t count)
{
    ts_part part = { .peer = peer, .ndim = 4 };
    for (int32_t d = 0; d < 4; d++) {
        part.extent[d] = d == 2 ? count : block->extent[d];
        part.stride[d] = block->stride[d];
        if (part.extent[d] == 0) return;
    }
    if (block->data) part.data = tsi_block_at(block, first * block->stride[2]);
    TSI_ASSERT(to->count < to->room);
    to->part[to->count++] = part;
}

ts_exchange tsi_travel_exchange(const tsi_travel *t, const tsi_travel_round *round)
{
    ts_exchange e = TS_INIT(ts_exchange);
    e.dtype = (int32_t)round->dtype;
    e.reduce = (int32_t)round->reduce;
    e.device = tsi_array_device(t->io->in[TSI_K]->array);
    e.send = round->send->part;
    e.send_count = round->send->count;
    e.recv = round->recv->part;
    e.recv_count = round->recv->count;
    return e;
}

ts_status tsi_travel_go(tsi_travel *t, const tsi_travel_round *round, ts_work **work)
{
    ts_exchange e = tsi_travel_exchange(t, round);
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.name = t->io->op->name;
    options.work = work;
    return (ts_group_exchange)(t->io->group, &e, &options);
}

ts_status tsi_travel_send(tsi_travel *t, int64_t to, tsi_travel_parts *out)
{
    tsi_span_list need;
    TSI_TRY(tsi_context_need(&t->c, to, t->c.me, &t->arena, &need));
    tsi_context_walk walk = { .list = &need };
    while (tsi_context_next(&walk)) {
        int64_t first = tsi_span_list_find(&t->c.keys[t->c.me], walk.begin);
        tsi_travel_add(out, &t->in[TSI_K], to, first, walk.count);
        tsi_travel_add(out, &t->in[TSI_V], to, first, walk.count);
    }
    return TS_OK;
}

void tsi_travel_recv(tsi_travel *t, int64_t from, const tsi_span_list *list,
                     const tsi_block block[2], tsi_travel_parts *out)
{
    tsi_context_walk walk = { .list = &t->need[from] };
    while (tsi_context_next(&walk)) {
        int64_t first = tsi_span_list_find(list, walk.begin);
        tsi_travel_add(out, &block[0], from, first, walk.count);
        tsi_travel_add(out, &block[1], from, first, walk.count);
    }
}

/* ---- beginning ------------------------------------------------------------------------------- */

static ts_status regions(tsi_travel *t)
{
    const tsi_algorithm_io *io = t->io;
    for (int32_t i = 0; i < io->input_count; i++) {
        t->in[i] = tsi_array_block(io->in[i]->array);
        if (!tsi_layout_region(io->in[i]->layout, io->mesh->coord, &t->arena, &t->region[i]))
            return tsi_fail_memory("a region", sizeof(tsi_region));
    }
    return TS_OK;
}

static ts_status begin(tsi_travel *t, const tsi_algorithm_io *io)
{
    *t = (tsi_travel){ .io = io, .backward = io->input_count > 3 };
    t->device = tsi_rank_device_of(io->rank);
    if (!t->device) return ts_rank_status(io->rank);
    t->sum = io->call->in[TSI_Q].dtype == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32;
    const ts_layout *layout[TSI_INPUT_MAX];
    for (int32_t i = 0; i < io->input_count; i++)
        layout[i] = io->in[i]->layout;
    tsi_context_place place = { io->mesh->desc, io->mesh->coord, io->axes };
    TSI_TRY(tsi_context_make(io->call, layout, &place, &t->arena, &t->c));
    TSI_TRY(regions(t));
    t->need = tsi_arena_calloc(&t->arena, (size_t)t->c.size, sizeof *t->need);
    if (!t->need) return tsi_fail_memory("what a rank needs", (size_t)t->c.size * 96);
    for (int64_t s = 0; s < t->c.size; s++)
        TSI_TRY(tsi_context_need(&t->c, t->c.me, s, &t->arena, &t->need[s]));
    return TS_OK;
}

ts_status tsi_travel_run(const tsi_algorithm_io *io, ts_status (*run)(tsi_travel *t))
{
    tsi_travel t;
    tsi_array *result[TSI_OUTPUT_MAX] = { NULL };
    ts_status status = begin(&t, io);
    if (status == TS_OK) status = tsi_algorithm_blocks(io, result);
    for (int32_t o = 0; o < io->output_count && status == TS_OK; o++)
        t.out[o] = tsi_array_block(result[o]);
    if (status == TS_OK) status = run(&t);
    tsi_arena_release(&t.arena);
    return tsi_algorithm_finish(io, result, status);
}

/* ---- rows and kernels ------------------------------------------------------------------------ */

ts_status tsi_travel_rows(tsi_travel *t, int64_t rows, ts_dtype dtype, tsi_array *array[2],
                          tsi_block block[2])
{
    for (int i = 0; i < 2; i++) {
        const tsi_block *like = &t->in[TSI_K + i];
        ts_shape shape = TS_SHAPE(like->extent[0], like->extent[1], rows, like->extent[3]);
        array[i] = tsi_array_create(t->io->rank, dtype, &shape);
        if (!array[i]) return ts_rank_status(t->io->rank);
        block[i] = tsi_array_block(array[i]);
    }
    return TS_OK;
}

ts_status tsi_travel_kernel(tsi_travel *t, const tsi_travel_keys *keys, const tsi_block *result)
{
    const tsi_algorithm_io *io = t->io;
    tsi_operand in[TSI_INPUT_MAX], out[TSI_OUTPUT_MAX];
    tsi_region region[2] = { t->region[TSI_K], t->region[TSI_V] };
    ts_meta meta[TSI_OUTPUT_MAX];
    for (int32_t i = 0; i < io->input_count; i++)
        in[i] = (tsi_operand){ t->in[i], &io->call->in[i], &t->region[i], NULL };
    for (int i = 0; i < 2; i++) {
        region[i].dim[2] = *keys->list;
        in[TSI_K + i].block = keys->kv[i];
        in[TSI_K + i].region = &region[i];
    }
    for (int32_t o = 0; o < io->output_count; o++) {
        meta[o] = io->call->out[o];
        meta[o].dtype = result[o].dtype;
        const tsi_region *of = t->backward && o > 0 ? &region[o - 1] : &t->region[TSI_Q];
        out[o] = (tsi_operand){ result[o], &meta[o], of, NULL };
    }
    tsi_kernel_io kernel = { .op = io->op,
                             .attributes = io->attributes,
                             .in = in,
                             .out = out,
                             .input_count = io->input_count,
                             .output_count = io->output_count,
                             .rank = io->rank,
                             .device = t->device->device,
                             .queue = t->device->queue,
                             .adds = keys->adds };
    return tsi_kernel_run(tsi_kernel_of(t->device->device, io->op), &kernel);
}

ts_status tsi_travel_settle(tsi_travel *t, const tsi_block sums[2])
{
    const tsi_device *device = t->device->device;
    for (int i = 0; i < 2; i++)
        if (sums[i].data != t->out[1 + i].data)
            TSI_TRY(device->copy(device, &t->out[1 + i], &sums[i], t->device->queue));
    return TS_OK;
}
