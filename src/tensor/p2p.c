/* SPDX-License-Identifier: Apache-2.0 */
/* p2p.c - tensors between neighbours on a mesh axis: send, receive, and the step of a ring.
 *
 * A shift does not change a tensor, only where it is: the rank at coordinate c gets what the rank
 * at c - hops held, so the result lies on the same mesh with the ranks of that axis turned. That
 * holds for uneven and empty shards too, the layout of the result says what each rank has now, and
 * its gradient is the way back. Turned all the way round it is on the mesh it began on. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "layout/mesh.h"
#include "tensor/move.h"

/* ---- shift ----------------------------------------------------------------------------------- */

/* The description with the ranks of an axis turned: coordinate c is the rank that was at c + hops.
 * Retained. */
static tsi_mesh_desc *turned(const tsi_mesh_desc *mesh, int32_t axis, int64_t hops)
{
    tsi_mesh_desc draft = { .ndim = mesh->ndim, .count = mesh->count }, *out = NULL;
    memcpy(draft.size, mesh->size, sizeof draft.size);
    memcpy(draft.name, mesh->name, sizeof draft.name);
    int64_t *rank = tsi_alloc_array((size_t)mesh->count, sizeof *rank), coord[TS_NDIM_MAX];
    if (!rank) {
        tsi_fail_memory("the ranks of a mesh", (size_t)mesh->count * sizeof *rank);
        return NULL;
    }
    for (int64_t i = 0; i < mesh->count; i++) {
        tsi_mesh_desc_unravel(mesh, i, coord);
        coord[axis] = (coord[axis] + hops) % mesh->size[axis];
        rank[i] = tsi_mesh_desc_rank(mesh, coord);
    }
    (void)tsi_mesh_settle(mesh->world, &draft, rank, &out);
    tsi_free(rank);
    return out;
}

/* The layout of x on the turned mesh, retained, and the handle of that mesh. */
static const ts_layout *turned_layout(const ts_tensor *x, int32_t axis, int64_t hops,
                                      ts_mesh **mesh)
{
    tsi_mesh_desc *desc = turned(x->mesh->desc, axis, hops);
    *mesh = desc ? tsi_mesh_of(x->rank, desc) : NULL;
    const ts_sharding *to = *mesh ? tsi_sharding_intern(desc, x->layout->sharding->place) : NULL;
    const ts_layout *layout = to ? tsi_layout_intern(to, &x->layout->shape) : NULL;
    if (to) ts_sharding_release(to);
    tsi_mesh_desc_release(desc);
    return layout;
}

static int64_t count_of(const tsi_array *array)
{
    ts_shape shape = tsi_array_shape(array);
    return ts_shape_count(&shape);
}

static ts_part part_of(const tsi_array *array, int64_t peer)
{
    ts_part part = { .peer = peer, .data = tsi_array_data(array), .ndim = array->ndim };
    for (int32_t d = 0; d < array->ndim; d++) {
        part.extent[d] = array->extent[d];
        part.stride[d] = array->stride[d];
    }
    return part;
}

/* One block goes hops forward, one comes from hops back; *move is set while they are on their way.
 */
static ts_status ring_step(ts_mesh *mesh, int32_t axis, int64_t hops, tsi_array *from,
                           tsi_array *to, tsi_move **move)
{
    int64_t size = mesh->desc->size[axis], at = mesh->coord[axis];
    ts_group *group = tsi_mesh_axes_group(mesh, 1u << axis);
    if (!group) return ts_rank_status(mesh->rank);
    ts_part send = part_of(from, (at + hops) % size), recv = part_of(to, (at + size - hops) % size);
    ts_exchange exchange = TS_INIT(ts_exchange);
    exchange.dtype = from->dtype;
    exchange.device = tsi_array_device(from);
    exchange.send = &send;
    exchange.recv = &recv;
    exchange.send_count = count_of(from) > 0;
    exchange.recv_count = count_of(to) > 0;
    ts_work *work = NULL;
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.name = mesh->rank->label ? mesh->rank->label : "shift";
    options.work = &work;
    TSI_TRY((ts_group_exchange)(group, &exchange, &options));
    *move = tsi_move_create(mesh->rank, work, 2);
    if (!*move) return ts_rank_status(mesh->rank);
    tsi_move_hold(*move, from);
    tsi_move_hold(*move, to);
    tsi_move_guard(*move, from);
    return TS_OK;
}

/* The block of the result, retained: a new one, or the same where the axis holds copies. */
static tsi_array *shifted_block(ts_tensor *x, ts_mesh *mesh, const ts_layout *layout, int32_t axis,
                                int64_t hops, tsi_move **move)
{
    bool copies = x->layout->sharding->place[axis].kind == TS_PLACE_REPLICATE;
    if (!x->mesh->member || copies || hops == 0) return tsi_array_retain(x->array);
    tsi_array *to = tsi_tensor_block(mesh, layout, (ts_dtype)x->dtype);
    if (to && ring_step(x->mesh, axis, hops, x->array, to, move) != TS_OK) {
        tsi_array_release(to);
        return NULL;
    }
    return to;
}

ts_tensor *(ts_shift)(ts_tensor *x, const char *axis, int64_t hops)
{
    ts_rank *rank = tsi_tensor_enter(x, "shift");
    if (!rank) return NULL;
    int32_t k = axis ? tsi_mesh_desc_axis(x->mesh->desc, axis) : -1;
    char text[128];
    if (k < 0) {
        tsi_mesh_desc_text(x->mesh->desc, text, sizeof text);
        TSI_FAIL(TS_ERR_MESH, "shift: the mesh %s has no axis \"%s\"", text, axis ? axis : "");
        return NULL;
    }
    if (tsi_tensor_ready(x) != TS_OK) return NULL;
    int64_t size = x->mesh->desc->size[k];
    hops = (hops % size + size) % size;
    ts_mesh *mesh = NULL;
    const ts_layout *layout = turned_layout(x, k, hops, &mesh);
    if (!layout) return NULL;
    tsi_move *move = NULL;
    tsi_tell(rank, TSI_NEWS_MOVING, NULL);
    tsi_array *array = shifted_block(x, mesh, layout, k, hops, &move);
    ts_tensor *y = array ? tsi_tensor_make(mesh, layout, (ts_dtype)x->dtype, array, move) : NULL;
    ts_layout_release(layout);
    tsi_tensor_moved(x, y, false);
    return y;
}

/* ---- send and receive ------------------------------------------------------------------------ */

/* This rank and its neighbour as a group of two; the order of the two says the channel. *index is
 * the neighbour's place in it, or -1 on a rank outside the mesh. Released by the caller. */
static ts_status pair_of(const char *what, const ts_peer *peer, ts_group **out, int64_t *index)
{
    *out = NULL;
    *index = -1;
    if (!peer || !peer->mesh)
        return TSI_FAIL(TS_ERR_NULL, "%s: the peer or its mesh is NULL", what);
    const ts_mesh *mesh = peer->mesh;
    int32_t k = peer->axis ? tsi_mesh_desc_axis(mesh->desc, peer->axis) : -1;
    char text[128];
    tsi_mesh_desc_text(mesh->desc, text, sizeof text);
    if (k < 0)
        return TSI_FAIL(TS_ERR_MESH, "%s: the mesh %s has no axis \"%s\"", what, text,
                        peer->axis ? peer->axis : "");
    if (peer->channel < 0 || peer->channel >= TS_PEER_CHANNELS)
        return TSI_FAIL(TS_ERR_ARG, "%s: channel %lld, 0 to %d are possible", what,
                        (long long)peer->channel, TS_PEER_CHANNELS - 1);
    if (!mesh->member) return TS_OK;
    int64_t coord[TS_NDIM_MAX], at = mesh->coord[k], to = at + peer->offset;
    if (to < 0 || to >= mesh->desc->size[k] || peer->offset == 0)
        return TSI_FAIL(TS_ERR_ARG,
                        "%s: on the mesh %s, coordinate %lld of axis %s has no neighbour "
                        "at %+lld",
                        what, text, (long long)at, peer->axis, (long long)peer->offset);
    memcpy(coord, mesh->coord, sizeof coord);
    coord[k] = to;
    int64_t mine = mesh->rank->index, other = tsi_mesh_desc_rank(mesh->desc, coord);
    bool first = (other < mine) == (peer->channel == 0);
    int64_t pair[2] = { first ? other : mine, first ? mine : other };
    *index = first ? 0 : 1;
    *out = ts_group_create(mesh->rank, pair, 2, NULL);
    return *out ? TS_OK : ts_rank_status(mesh->rank);
}

/* The block, or a copy where an element may stand for several. Retained. */
static tsi_array *sendable(ts_rank *rank, tsi_array *array)
{
    if (!tsi_array_repeats(array)) return tsi_array_retain(array);
    ts_shape shape = tsi_array_shape(array);
    tsi_array *copy = tsi_array_create_tagged(rank, (ts_dtype)array->dtype, &shape, TSI_TAG_COMM);
    if (copy && tsi_array_copy(copy, array) == TS_OK) {
        tsi_tell(rank, TSI_NEWS_STAGE, copy->storage);
        return copy;
    }
    tsi_array_release(copy);
    return NULL;
}

static ts_array array_of(const tsi_array *from)
{
    ts_array array = TS_INIT(ts_array);
    array.data = tsi_array_data(from);
    array.device = tsi_array_device(from);
    array.meta.dtype = from->dtype;
    array.meta.shape = tsi_array_shape(from);
    for (int32_t d = 0; d < from->ndim; d++)
        array.stride[d] = from->stride[d];
    return array;
}

/* Sends or receives a block; the move holds it until it is through. */
static ts_status transfer(ts_rank *rank, const ts_peer *peer, tsi_array *array, bool sends,
                          tsi_move **move)
{
    ts_group *group = NULL;
    int64_t other = -1;
    tsi_tell(rank, TSI_NEWS_MOVING, NULL);
    TSI_TRY(pair_of(sends ? "send" : "recv", peer, &group, &other));
    if (!group) return TS_OK;
    ts_work *work = NULL;
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.name = rank->label ? rank->label : sends ? "send" : "recv";
    options.work = &work;
    ts_array block = array_of(array);
    ts_status status = sends ? (ts_group_send)(group, &block, other, &options)
                             : (ts_group_recv)(group, &block, other, &options);
    ts_group_release(group);
    if (status != TS_OK) return status;
    *move = tsi_move_create(rank, work, 1);
    if (!*move) return ts_rank_status(rank);
    tsi_move_hold(*move, array);
    if (sends && !ts_work_test(work)) tsi_move_guard(*move, array);
    return TS_OK;
}

ts_status(ts_send)(ts_tensor *x, const ts_peer *to)
{
    ts_rank *rank = tsi_tensor_enter(x, "send");
    if (!rank) return tsi_rank_current() ? ts_rank_status(tsi_rank_current()) : TS_ERR_NULL;
    TSI_TRY(tsi_tensor_ready(x));
    tsi_move *move = NULL;
    tsi_array *block = sendable(rank, x->array);
    ts_status status = block ? transfer(rank, to, block, true, &move) : ts_rank_status(rank);
    tsi_array_release(block);
    if (status == TS_OK) tsi_tell(rank, TSI_NEWS_MESSAGE, &(tsi_message){ x, 0 });
    tsi_move_release(move); /* the rank keeps it while it is on its way */
    return status;
}

ts_tensor *(ts_recv)(const ts_meta *what, const ts_sharding *as, const ts_peer *from)
{
    ts_rank *rank = from && from->mesh ? from->mesh->rank : tsi_rank_current();
    if (!rank || tsi_rank_enter(rank) != TS_OK) return NULL;
    if (!what || !as) {
        TSI_FAIL(TS_ERR_NULL, "recv: what is received, or its sharding, is NULL");
        return NULL;
    }
    ts_mesh *mesh = tsi_mesh_of(rank, as->mesh);
    const ts_layout *layout = mesh ? tsi_layout_intern(as, &what->shape) : NULL;
    if (!layout) return NULL;
    tsi_move *move = NULL;
    tsi_array *array = tsi_tensor_block(mesh, layout, (ts_dtype)what->dtype);
    if (array && transfer(rank, from, array, false, &move) != TS_OK) {
        tsi_array_release(array);
        array = NULL;
    }
    ts_tensor *y = array ? tsi_tensor_make(mesh, layout, (ts_dtype)what->dtype, array, move) : NULL;
    ts_layout_release(layout);
    if (y) tsi_tell(rank, TSI_NEWS_MESSAGE, &(tsi_message){ y, 1 });
    return y;
}
