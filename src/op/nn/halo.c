/* SPDX-License-Identifier: Apache-2.0 */
/* halo.c - fetching what windows reach beyond a cut; see halo.h.
 *
 * Every rank knows what every other one holds and needs, as intervals of the place dims, so the
 * ranks send each other exactly the boxes that are missing, in one round. Windows may reach over
 * several neighbours, and a rank may need nothing. */
#include "op/nn/halo.h"

#include <string.h>

#include "base/alloc.h"
#include "base/intmath.h"
#include "op/core/algorithm.h"
#include "op/core/kernel.h"
#include "tessera/comm.h"

typedef struct interval {
    int64_t begin, end;
} interval;

static interval overlap(interval a, interval b)
{
    interval both = { tsi_max_i64(a.begin, b.begin), tsi_min_i64(a.end, b.end) };
    if (both.end < both.begin) both.end = both.begin;
    return both;
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a >= 0 ? a / b : -((-a + b - 1) / b);
}

/* Places that windows [p.begin, p.end) look at, or windows that look at places. */
static interval needed(const tsi_window *w, bool windows, interval of, int64_t extent)
{
    if (of.begin >= of.end) return (interval){ 0, 0 };
    int64_t reach = w->dilation * (w->kernel - 1);
    interval need = { of.begin * w->stride - w->padding,
                      (of.end - 1) * w->stride - w->padding + reach + 1 };
    if (windows)
        need = (interval){ -floor_div(-(of.begin + w->padding - reach), w->stride),
                           floor_div(of.end - 1 + w->padding, w->stride) + 1 };
    return overlap(need, (interval){ 0, extent });
}

/* ---- rules ----------------------------------------------------------------------------------- */

void tsi_halo_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const tsi_halo_kind *kind = call->op->family;
    for (int32_t d = 2; d < call->in[kind->input].shape.ndim; d++) {
        tsi_role *row = tsi_rules_add_with(rules, 1, TSI_RULE_PLAIN);
        row[kind->input] = TSI_S(d);
        if (kind->follows >= 0) row[kind->follows] = TSI_S(d);
        for (int32_t o = 0; o < call->output_count; o++)
            row[call->input_count + o] = kind->follows >= 0 ? TSI_P(TS_REDUCE_SUM) : TSI_S(d);
    }
}

/* ---- who holds and needs what ---------------------------------------------------------------- */

typedef struct halo {
    const tsi_algorithm_io *io;
    const tsi_halo_kind *kind;
    ts_tensor *source;
    const ts_layout *followed;
    tsi_arena arena;
    int64_t me, size;
    interval need[TS_NDIM_MAX]; /* of this rank, by dim */
    tsi_block have, got;
    tsi_array *room; /* of got */
    ts_part *send, *recv;
    int64_t send_count, recv_count;
} halo;

static bool range_at(tsi_arena *arena, const ts_layout *layout, const int64_t *coord, int32_t dim,
                     interval *out)
{
    tsi_span_list list;
    if (!tsi_layout_region_dim(layout, coord, dim, arena, &list)) return false;
    out->begin = list.span_count ? tsi_spans(&list)[0].begin : 0;
    out->end = out->begin + list.total; /* plain chunks: one interval */
    return true;
}

static ts_status range_of(halo *h, const ts_layout *layout, int64_t member, int32_t dim,
                          interval *out)
{
    int64_t coord[TS_NDIM_MAX];
    if (tsi_mesh_desc_coord(h->io->mesh->desc, ts_group_rank(h->io->group, member), coord) &&
        range_at(&h->arena, layout, coord, dim, out))
        return TS_OK;
    return tsi_fail_memory("the regions of a halo", 0);
}

/* What a member holds and needs of the source, dim by dim; batch and channels are alike on all. */
static ts_status boxes_of(halo *h, int64_t member, interval *holds, interval *needs)
{
    for (int32_t d = 0; d < h->have.ndim; d++) {
        holds[d] = needs[d] = (interval){ 0, h->have.extent[d] };
        if (d < 2) continue;
        tsi_window window;
        interval of;
        h->kind->window(h->io->call, d - 2, &window);
        TSI_TRY(range_of(h, h->source->layout, member, d, &holds[d]));
        TSI_TRY(range_of(h, h->followed, member, d, &of));
        needs[d] = needed(&window, h->kind->needs_windows, of, h->source->layout->shape.extent[d]);
    }
    return TS_OK;
}

/* The box of a block that begins at `first`, as a part; false: it is empty. */
static bool part_of(const tsi_block *block, const interval *first, const interval *a,
                    const interval *b, ts_part *out)
{
    int64_t offset = 0;
    *out = (ts_part){ .ndim = block->ndim };
    for (int32_t d = 0; d < block->ndim; d++) {
        interval both = overlap(a[d], b[d]);
        out->extent[d] = both.end - both.begin;
        out->stride[d] = block->stride[d];
        if (out->extent[d] <= 0) return false;
        offset += (both.begin - first[d].begin) * block->stride[d];
    }
    out->data = tsi_block_at(block, offset);
    return true;
}

static ts_status list_parts(halo *h)
{
    interval mine[TS_NDIM_MAX], holds[TS_NDIM_MAX], needs[TS_NDIM_MAX];
    size_t room = (size_t)h->size * sizeof *h->send;
    h->send = tsi_arena_alloc(&h->arena, room);
    h->recv = tsi_arena_alloc(&h->arena, room);
    if (!h->send || !h->recv) return tsi_fail_memory("the parts of a halo", 2 * room);
    TSI_TRY(boxes_of(h, h->me, mine, h->need));
    for (int64_t q = 0; q < h->size; q++) { /* oneself too: a copy */
        TSI_TRY(boxes_of(h, q, holds, needs));
        ts_part *send = &h->send[h->send_count], *recv = &h->recv[h->recv_count];
        if (part_of(&h->have, mine, mine, needs, send)) {
            send->peer = q;
            h->send_count++;
        }
        if (part_of(&h->got, h->need, holds, h->need, recv)) {
            recv->peer = q;
            h->recv_count++;
        }
    }
    return TS_OK;
}

/* The block with its halo, in memory of its own. */
static ts_status make_room(halo *h)
{
    interval holds[TS_NDIM_MAX];
    ts_shape shape = { .ndim = h->have.ndim };
    TSI_TRY(boxes_of(h, h->me, holds, h->need));
    for (int32_t d = 0; d < shape.ndim; d++)
        shape.extent[d] = h->need[d].end - h->need[d].begin;
    h->room =
        tsi_array_create_tagged(h->io->rank, (ts_dtype)h->have.dtype, &shape, TSI_TAG_ACTIVATION);
    if (!h->room) return ts_rank_status(h->io->rank);
    h->got = tsi_array_block(h->room);
    return TS_OK;
}

static ts_status fetch(halo *h)
{
    TSI_TRY(make_room(h));
    TSI_TRY(list_parts(h));
    ts_exchange round = TS_INIT(ts_exchange);
    round.dtype = h->have.dtype;
    round.device = tsi_array_device(h->room);
    round.send = h->send;
    round.send_count = h->send_count;
    round.recv = h->recv;
    round.recv_count = h->recv_count;
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.name = h->io->op->name;
    return (ts_group_exchange)(h->io->group, &round, &options);
}

/* ---- the local part -------------------------------------------------------------------------- */

static ts_status region_of(halo *h, const ts_layout *layout, const tsi_region **out)
{
    *out = NULL;
    if (!layout || !layout->axes_cut) return TS_OK;
    tsi_region *region = tsi_arena_alloc(&h->arena, sizeof *region);
    if (!region || !tsi_layout_region(layout, h->io->mesh->coord, &h->arena, region))
        return tsi_fail_memory("a region", sizeof *region);
    *out = region;
    return TS_OK;
}

/* The region of the block with its halo: intervals of the place dims are what is needed. */
static ts_status widen(halo *h, const tsi_region **region)
{
    tsi_region *wide = tsi_arena_alloc(&h->arena, sizeof *wide);
    if (!wide) return tsi_fail_memory("a region", sizeof *wide);
    *wide = **region;
    for (int32_t d = 2; d < h->got.ndim; d++) {
        wide->dim[d] = (tsi_span_list){ 0 };
        tsi_span span = { .begin = h->need[d].begin,
                          .length = h->got.extent[d],
                          .period = h->got.extent[d],
                          .count = h->got.extent[d] > 0 };
        if (span.count && !tsi_span_list_append(&wide->dim[d], span, &h->arena))
            return tsi_fail_memory("a region", sizeof *wide);
    }
    *region = wide;
    return TS_OK;
}

static ts_status run_local(halo *h, tsi_array **result)
{
    const tsi_algorithm_io *io = h->io;
    const tsi_rank_device *mine = tsi_rank_device_of(io->rank);
    if (!mine) return ts_rank_status(io->rank);
    tsi_operand in[TSI_INPUT_MAX], out[TSI_OUTPUT_MAX];
    for (int32_t i = 0; i < io->input_count; i++) {
        in[i] = (tsi_operand){ .global = &io->call->in[i] };
        if (!io->in[i]) continue;
        in[i].block = i == h->kind->input ? h->got : tsi_array_block(io->in[i]->array);
        TSI_TRY(region_of(h, io->in[i]->layout, &in[i].region));
        if (i == h->kind->input && in[i].region) TSI_TRY(widen(h, &in[i].region));
    }
    for (int32_t o = 0; o < io->output_count; o++) {
        ts_dtype dtype = (ts_dtype)io->call->out[o].dtype;
        result[o] = tsi_tensor_block(io->mesh, io->out_layout[o], dtype);
        if (!result[o]) return ts_rank_status(io->rank);
        out[o] = (tsi_operand){ .block = tsi_array_block(result[o]), .global = &io->call->out[o] };
        TSI_TRY(region_of(h, io->out_layout[o], &out[o].region));
    }
    tsi_kernel_io kernel = { .op = io->op,
                             .attributes = io->attributes,
                             .in = in,
                             .out = out,
                             .input_count = io->input_count,
                             .output_count = io->output_count,
                             .rank = io->rank,
                             .device = mine->device,
                             .queue = mine->queue };
    return tsi_kernel_run(tsi_kernel_of(mine->device, io->op), &kernel);
}

static ts_status halo_run(const tsi_algorithm_io *io)
{
    const tsi_halo_kind *kind = io->op->family;
    halo h = { .io = io, .kind = kind, .source = io->in[kind->input] };
    tsi_array *result[TSI_OUTPUT_MAX] = { NULL };
    h.followed = kind->follows >= 0 ? io->in[kind->follows]->layout : io->out_layout[0];
    h.me = ts_group_index(io->group);
    h.size = ts_group_size(io->group);
    h.have = tsi_array_block(h.source->array);
    ts_status status = fetch(&h);
    if (status == TS_OK) status = run_local(&h, result);
    tsi_arena_release(&h.arena);
    tsi_array_release(h.room);
    return tsi_algorithm_finish(io, result, status);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static interval chunk(int64_t extent, int64_t n, int64_t r)
{
    int64_t size = tsi_ceil_div(extent, n);
    return (interval){ tsi_min_i64(r * size, extent), tsi_min_i64((r + 1) * size, extent) };
}

/* The dim that needs most, on average of the ranks. */
static int64_t halo_bytes(const tsi_op_call *call, int64_t n)
{
    enum { RANKS_MAX = 1024 };
    const tsi_halo_kind *kind = call->op->family;
    const ts_meta *from = &call->in[kind->input];
    const ts_meta *to = kind->follows >= 0 ? &call->in[kind->follows] : &call->out[0];
    int64_t count = ts_shape_count(&from->shape), most = 0;
    for (int32_t d = 2; d < from->shape.ndim && n <= RANKS_MAX; d++) {
        tsi_window window;
        int64_t missing = 0, extent = from->shape.extent[d];
        kind->window(call, d - 2, &window);
        for (int64_t r = 0; r < n; r++) {
            interval need =
                needed(&window, kind->needs_windows, chunk(to->shape.extent[d], n, r), extent);
            interval own = overlap(need, chunk(extent, n, r));
            missing += need.end - need.begin - (own.end - own.begin);
        }
        if (extent > 0)
            most = tsi_max_i64(most, tsi_ceil_div(tsi_mul_most(count / extent, missing), n));
    }
    if (n > RANKS_MAX) most = count;
    return tsi_mul_most(most, (int64_t)ts_dtype_size((ts_dtype)from->dtype));
}

/* What a rank needs of the source and has not; -1: there is no memory to say so. */
static int64_t lacks(const tsi_algorithm_request *q, const int64_t *coord, tsi_arena *arena)
{
    const tsi_halo_kind *kind = q->call->op->family;
    const ts_layout *source = q->in[kind->input];
    const ts_layout *followed = kind->follows >= 0 ? q->in[kind->follows] : q->out[0];
    int64_t needs = 1, own = 1;
    for (int32_t d = 0; d < source->shape.ndim; d++) {
        interval holds, of, need;
        if (!range_at(arena, source, coord, d, &holds)) return -1;
        need = holds;
        if (d >= 2) {
            tsi_window window;
            kind->window(q->call, d - 2, &window);
            if (!range_at(arena, followed, coord, d, &of)) return -1;
            need = needed(&window, kind->needs_windows, of, source->shape.extent[d]);
        }
        interval both = overlap(need, holds);
        needs *= tsi_max_i64(need.end - need.begin, 0);
        own *= tsi_max_i64(both.end - both.begin, 0);
    }
    return needs - own;
}

int64_t tsi_halo_received(const tsi_algorithm_request *q)
{
    const tsi_halo_kind *kind = q->call->op->family;
    tsi_arena arena = { 0 };
    int64_t coord[TS_NDIM_MAX] = { 0 }, sum = 0, one = 0;
    for (int64_t r = 0; one >= 0 && r < q->mesh->count; r++) {
        tsi_mesh_desc_unravel(q->mesh, r, coord);
        one = lacks(q, coord, &arena);
        sum += one;
    }
    tsi_arena_release(&arena);
    return one < 0 ? -1 : sum * (int64_t)ts_dtype_size((ts_dtype)q->call->in[kind->input].dtype);
}

const tsi_algorithm tsi_halo_exchange[] = { { "halo", halo_run, halo_bytes }, { 0 } };
