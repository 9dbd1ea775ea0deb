/* SPDX-License-Identifier: Apache-2.0 */
/* remap_exchange.c - a changed dim that is cut: the ranks send each other the boxes they lack.
 *
 *   for every peer q:   send what q's part of the result takes from my part of each input
 *                       receive what my part of the result takes from q's
 *
 * The group holds exactly the ranks whose cuts of the changed dims differ, so other axes need not
 * be looked at. An input that is replicated over some of its axes has several holders there: a rank
 * takes from those that have its own coordinates on these axes, so each element comes once, and
 * what is replicated over all of them is at hand. */
#include <string.h>

#include "base/alloc.h"
#include "base/intmath.h"
#include "op/view/remap_box.h"
#include "tessera/comm.h"

typedef struct part_list {
    ts_part *part;
    int64_t count, capacity;
} part_list;

typedef struct exchange {
    const tsi_algorithm_io *io;
    const tsi_remap_kind *kind;
    tsi_arena arena;
    tsi_block in[TSI_INPUT_MAX], out;
    int64_t me, size;
    int32_t device; /* of the blocks, as in ts_array */
    part_list send, recv;
    /* of the part being listed */
    part_list *list;
    const tsi_block *block;
    int64_t peer;
    bool is_out;
} exchange;

/* ---- windows --------------------------------------------------------------------------------- */

static bool coord_of(const exchange *x, int64_t member, int64_t *coord)
{
    return tsi_mesh_desc_coord(x->io->mesh->desc, ts_group_rank(x->io->group, member), coord);
}

static bool range_at(tsi_arena *arena, const ts_layout *layout, const int64_t *coord, int32_t dim,
                     int64_t *begin, int64_t *end)
{
    tsi_span_list list;
    if (!tsi_layout_region_dim(layout, coord, dim, arena, &list)) return false;
    *begin = list.span_count ? tsi_spans(&list)[0].begin : 0;
    *end = *begin + list.total; /* plain chunks: one interval */
    return true;
}

static bool range_of(exchange *x, const ts_layout *layout, int64_t member, int32_t dim,
                     int64_t *begin, int64_t *end)
{
    int64_t coord[TS_NDIM_MAX];
    return coord_of(x, member, coord) && range_at(&x->arena, layout, coord, dim, begin, end);
}

/* What `to` holds of the result against what `from` holds of input i. */
static ts_status window_of(exchange *x, int32_t i, int64_t from, int64_t to, tsi_remap *map,
                           tsi_remap_window *window)
{
    x->kind->map(x->io->call, i, map);
    for (int32_t d = 0; d < map->ndim; d++) {
        tsi_remap_range *r = &window->dim[d];
        if (!(map->changed >> d & 1)) {
            *r = (tsi_remap_range){ .in_end = x->out.extent[d], .out_end = x->out.extent[d] };
            tsi_remap_still(map, d, x->out.extent[d]);
            continue;
        }
        if (!range_of(x, x->io->in[i]->layout, from, d, &r->in_begin, &r->in_end) ||
            !range_of(x, x->io->out_layout[0], to, d, &r->out_begin, &r->out_end))
            return tsi_fail_memory("the regions of an exchange", 0);
    }
    return TS_OK;
}

/* Is it this member from which I take input i, and who takes it from me? */
static bool exchanges(const exchange *x, int32_t i, int64_t member)
{
    int64_t mine[TS_NDIM_MAX], other[TS_NDIM_MAX];
    uint32_t replicated = x->io->axes & ~x->io->in[i]->layout->axes_cut;
    if (!coord_of(x, x->me, mine) || !coord_of(x, member, other)) return false;
    for (int32_t k = 0; k < x->io->mesh->desc->ndim; k++)
        if (replicated >> k & 1 && mine[k] != other[k]) return false;
    return true;
}

/* ---- parts ----------------------------------------------------------------------------------- */

static ts_status add_part(const tsi_remap_box *box, void *context)
{
    exchange *x = context;
    part_list *list = x->list;
    if (list->count == list->capacity) {
        int64_t capacity = list->capacity ? 2 * list->capacity : 16;
        ts_part *grown = tsi_arena_alloc(&x->arena, (size_t)capacity * sizeof *grown);
        if (!grown) return tsi_fail_memory("the parts of an exchange", sizeof *grown);
        if (list->count) memcpy(grown, list->part, (size_t)list->count * sizeof *grown);
        list->part = grown;
        list->capacity = capacity;
    }
    tsi_block block = tsi_remap_side(box, x->block, x->is_out);
    ts_part *part = &list->part[list->count++];
    *part = (ts_part){ .peer = x->peer, .data = block.data, .ndim = block.ndim };
    memcpy(part->extent, block.extent, sizeof part->extent);
    memcpy(part->stride, block.stride, sizeof part->stride);
    return TS_OK;
}

static ts_status list_parts(exchange *x, int64_t peer, bool sends)
{
    x->peer = peer;
    x->list = sends ? &x->send : &x->recv;
    x->is_out = !sends;
    for (int32_t i = 0; i < x->io->input_count; i++) {
        tsi_remap map;
        tsi_remap_window window;
        if (!exchanges(x, i, peer)) continue;
        x->block = sends ? &x->in[i] : &x->out;
        TSI_TRY(window_of(x, i, sends ? x->me : peer, sends ? peer : x->me, &map, &window));
        TSI_TRY(tsi_remap_boxes(&map, &window, add_part, x));
    }
    return TS_OK;
}

static ts_status copy_own(exchange *x)
{
    const tsi_rank_device *mine = tsi_rank_device_of(x->io->rank);
    if (!mine) return ts_rank_status(x->io->rank);
    TSI_TRY(tsi_remap_fill(x->io->op, x->io->attributes, mine->device, mine->queue, &x->out));
    for (int32_t i = 0; i < x->io->input_count; i++) {
        tsi_remap map;
        tsi_remap_window window;
        TSI_TRY(window_of(x, i, x->me, x->me, &map, &window));
        tsi_remap_copying copying = { mine->device, mine->queue, &x->in[i], &x->out };
        TSI_TRY(tsi_remap_boxes(&map, &window, tsi_remap_copy, &copying));
    }
    return TS_OK;
}

/* ---- the algorithm --------------------------------------------------------------------------- */

static ts_status exchange_run(exchange *x)
{
    const tsi_algorithm_io *io = x->io;
    TSI_TRY(copy_own(x));
    for (int64_t q = 0; q < x->size; q++) {
        if (q == x->me) continue;
        TSI_TRY(list_parts(x, q, true));
        TSI_TRY(list_parts(x, q, false));
    }
    ts_exchange round = TS_INIT(ts_exchange);
    round.dtype = x->out.dtype;
    round.device = x->device;
    round.send = x->send.part;
    round.send_count = x->send.count;
    round.recv = x->recv.part;
    round.recv_count = x->recv.count;
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.name = io->op->name;
    return (ts_group_exchange)(io->group, &round, &options);
}

static ts_status remap_exchange(const tsi_algorithm_io *io)
{
    ts_dtype dtype = (ts_dtype)io->call->out[0].dtype;
    tsi_array *array = tsi_tensor_block(io->mesh, io->out_layout[0], dtype);
    if (!array) return ts_rank_status(io->rank);
    exchange x = { .io = io, .kind = io->op->family, .out = tsi_array_block(array) };
    x.device = tsi_array_device(array);
    x.me = ts_group_index(io->group);
    x.size = ts_group_size(io->group);
    for (int32_t i = 0; i < io->input_count; i++)
        x.in[i] = tsi_array_block(io->in[i]->array);
    ts_status status = exchange_run(&x);
    tsi_arena_release(&x.arena);
    if (status != TS_OK) {
        tsi_array_release(array);
        return status;
    }
    io->out[0] = tsi_tensor_make(io->mesh, io->out_layout[0], dtype, array, NULL);
    return io->out[0] ? TS_OK : ts_rank_status(io->rank);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static ts_status count_box(const tsi_remap_box *box, void *context)
{
    *(int64_t *)context += box->dim[0].count;
    return TS_OK;
}

static ts_status count_elements(const tsi_remap_box *box, void *context)
{
    int64_t count = 1;
    for (int32_t d = 0; d < box->ndim; d++)
        count *= box->dim[d].count;
    *(int64_t *)context += count;
    return TS_OK;
}

/* Elements of one changed dim that come from another rank when n ranks hold chunks of it. */
static int64_t moved_of(const tsi_remap_dim *dim, int64_t n)
{
    enum { RANKS_MAX = 1024, PIECES_MAX = 1 << 16 }; /* beyond, everything counts */
    if (n <= 1) return 0;
    if (dim->repeats > PIECES_MAX / n) return dim->out_extent;
    tsi_remap one = { .ndim = 1, .dim = { *dim } };
    int64_t in = tsi_ceil_div(dim->in_extent, n), out = tsi_ceil_div(dim->out_extent, n), moved = 0;
    for (int64_t r = 0; r < n && n <= RANKS_MAX; r++) {
        tsi_remap_window w = { .dim = { { 0, dim->in_extent, tsi_min_i64(r * out, dim->out_extent),
                                          tsi_min_i64((r + 1) * out, dim->out_extent) } } };
        int64_t wanted = 0, own = 0;
        (void)tsi_remap_boxes(&one, &w, count_box, &wanted);
        w.dim[0].in_begin = tsi_min_i64(r * in, dim->in_extent);
        w.dim[0].in_end = tsi_min_i64((r + 1) * in, dim->in_extent);
        (void)tsi_remap_boxes(&one, &w, count_box, &own);
        moved += wanted - own;
    }
    return n <= RANKS_MAX ? moved : dim->out_extent;
}

static int64_t exchange_bytes(const tsi_op_call *call, int64_t n)
{
    const tsi_remap_kind *kind = call->op->family;
    int64_t most[TS_NDIM_MAX] = { 0 }, bytes = 0;
    for (int32_t i = 0; i < call->input_count; i++) {
        tsi_remap map;
        kind->map(call, i, &map);
        for (int32_t d = 0; d < map.ndim; d++)
            if (map.changed >> d & 1) most[d] += moved_of(&map.dim[d], n);
    }
    int64_t count = ts_shape_count(&call->out[0].shape);
    for (int32_t d = 0; d < call->out[0].shape.ndim; d++) {
        int64_t extent = call->out[0].shape.extent[d];
        if (extent > 0) bytes = tsi_max_i64(bytes, tsi_ceil_div(count / extent * most[d], n));
    }
    return bytes * (int64_t)ts_dtype_size((ts_dtype)call->out[0].dtype);
}

/* What a rank takes of input i, or just of its own part of it. */
static bool taken_of(const tsi_algorithm_request *q, int32_t i, const int64_t *coord, bool own,
                     tsi_arena *arena, int64_t *count)
{
    enum { REPEATS_MAX = 1 << 12 };
    const tsi_remap_kind *kind = q->call->op->family;
    tsi_remap map;
    tsi_remap_window window;
    kind->map(q->call, i, &map);
    for (int32_t d = 0; d < map.ndim; d++) {
        tsi_remap_range *r = &window.dim[d];
        if (!range_at(arena, q->out[0], coord, d, &r->out_begin, &r->out_end)) return false;
        if (!(map.changed >> d & 1)) {
            int64_t extent = r->out_end - r->out_begin;
            *r = (tsi_remap_range){ .in_end = extent, .out_end = extent };
            tsi_remap_still(&map, d, extent);
            continue;
        }
        r->in_begin = 0;
        r->in_end = map.dim[d].in_extent;
        if (map.dim[d].repeats > REPEATS_MAX) return false;
        if (own && !range_at(arena, q->in[i], coord, d, &r->in_begin, &r->in_end)) return false;
    }
    *count = 0;
    return tsi_remap_boxes(&map, &window, count_elements, count) == TS_OK;
}

/* Ranks take what they lack of each input from those that have it, once. */
int64_t tsi_remap_received(const tsi_algorithm_request *q)
{
    tsi_arena arena = { 0 };
    int64_t coord[TS_NDIM_MAX] = { 0 }, all = 0, own = 0, sum = 0;
    bool good = true;
    for (int64_t r = 0; good && r < q->mesh->count; r++) {
        tsi_mesh_desc_unravel(q->mesh, r, coord);
        for (int32_t i = 0; good && i < q->call->input_count; i++) {
            good = taken_of(q, i, coord, false, &arena, &all) &&
                   taken_of(q, i, coord, true, &arena, &own);
            sum += all - own;
        }
    }
    tsi_arena_release(&arena);
    return good ? sum * (int64_t)ts_dtype_size((ts_dtype)q->call->out[0].dtype) : -1;
}

const tsi_algorithm tsi_remap_exchange[] = { { "exchange", remap_exchange, exchange_bytes },
                                             { 0 } };
