/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_mlp_exchange.c - the feed-forward of experts that are cut over ranks: rows go to the
 * ranks that hold their experts, both products happen there, one row comes back from each.
 *
 *   which of all --route--> x there --in, act, out, sum by row--> y here, folded over holders
 *   gradient:               x, dy there ------------------------> dx here; dweight; din, dout stay
 *
 * rows    each row once to each holder; one round of choices, one of rows, one of results
 * nodes   each row once to each node, where it is passed on (grouped_route.h)
 * gather  all rows to all holders; what they make is a partial sum
 *
 * Experts that no member holds (another axis cuts them, too) add nothing: the result is a partial
 * sum over that axis. Where rows and experts are cut by no common axis nobody is asked for rows,
 * and all of this is a product of what is here.
 *
 * INV: sums over the experts of a row are in the order of holders, and of one holder in the order
 * of its experts; by way of nodes, in the order of those who pass them on. Each is the same in
 * every run; the two may differ in the last bit. */
#include <string.h>

#include "base/alloc.h"
#include "base/intmath.h"
#include "comm/engine.h"
#include "op/core/algorithm.h"
#include "op/core/element.h"
#include "op/core/kernel.h"
#include "op/matrix/grouped_linear.h"
#include "op/matrix/grouped_mlp.h"
#include "op/matrix/grouped_route.h"
#include "tensor/scope.h"
#include "tessera/comm.h"

typedef struct passage {
    const tsi_algorithm_io *io;
    ts_tensor *const *in; /* the forward's operands, as they are used */
    ts_group *group;      /* that exchanges; NULL: nobody */
    int64_t size;         /* of it */
    uint32_t axes;        /* of the mesh, that it goes along */
    int64_t rows, width, choices;
    ts_mesh *self;
    tsi_arena arena;
    tsi_route route;
    int64_t slots, own;    /* choices that come here; of this rank's rows: they are the first */
    ts_tensor *row, *slot; /* of them, by expert: the held row, the place they came in */
    ts_tensor *token;      /* of the own ones: the row at home */
    tsi_mlp_rows product;
} passage;

static ts_status pending(const passage *p)
{
    return ts_rank_status(p->io->rank);
}

/* ---- tensors of this rank alone -------------------------------------------------------------- */

static ts_tensor *here(const passage *p, tsi_array *array /* takes */)
{
    if (!array) return NULL;
    const ts_layout *layout = tsi_tensor_layout_of(p->self, NULL, tsi_array_shape(array));
    ts_tensor *t = NULL;
    if (layout)
        t = tsi_tensor_make(p->self, layout, (ts_dtype)array->dtype, array, NULL);
    else
        tsi_array_release(array);
    ts_layout_release(layout);
    return t;
}

static ts_tensor *room(const passage *p, ts_dtype dtype, ts_shape shape)
{
    return here(p, tsi_array_create(p->io->rank, dtype, &shape));
}

static ts_tensor *zeros(const passage *p, ts_dtype dtype, ts_shape shape)
{
    return (ts_zeros)(p->self, dtype, shape, NULL);
}

/* Of memory that outlives the call's tensors. */
static ts_tensor *index_of(const passage *p, int64_t *data, int64_t count)
{
    ts_array array = TS_INIT(ts_array);
    array.data = data;
    array.meta = (ts_meta){ .shape = TS_SHAPE(count), .dtype = TS_DTYPE_I64 };
    return ts_from_memory(p->io->rank, &array);
}

/* This rank's block of a tensor of rows, dense: [rows, length]. */
static ts_tensor *block_of(const passage *p, ts_tensor *t, int64_t length)
{
    ts_tensor *rows = (ts_reshape)(ts_tensor_local(t), TS_SHAPE(p->rows, length));
    return rows && !tsi_array_is_dense(rows->array) ? (ts_clone)(rows) : rows;
}

static char *data_of(const ts_tensor *t)
{
    return tsi_array_data(t->array);
}

/* Rows that share a place added up, in their order: [count, ..]; rounded once. */
static ts_tensor *sum_by(const passage *p, ts_tensor *rows, ts_tensor *place, int64_t count)
{
    if (!rows) return NULL;
    ts_dtype own = (ts_dtype)rows->dtype;
    ts_shape shape = ts_tensor_shape(rows);
    bool small = ts_dtype_size(own) < 4;
    shape.extent[0] = count;
    ts_tensor *to = zeros(p, small ? TS_DTYPE_F32 : own, shape);
    ts_tensor *sum = (ts_index_add_)(to, 0, place, small ? ts_cast(rows, TS_DTYPE_F32) : rows);
    return small ? ts_cast(sum, own) : sum;
}

/* ---- choices of all members ------------------------------------------------------------------ */

typedef struct reading {
    int32_t *to;
    int64_t experts;
} reading;

/* What is no expert is told apart from all of them: -1. */
static ts_status read_which(void *context, const tsi_block *block)
{
    const reading *r = context;
    int64_t i = 0;
    tsi_loop loop = tsi_loop_over(block);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        int64_t e = tsi_load_int((ts_dtype)block->dtype, tsi_block_at(block, loop.at[0]));
        r->to[i++] = e >= 0 && e < r->experts ? (int32_t)e : (int32_t)(-1 - (e & 0xffff));
    }
    return TS_OK;
}

static ts_status gather_which(const passage *p, const int64_t *rows, int32_t *mine, int32_t *all)
{
    int64_t total = 0;
    for (int64_t j = 0; j < p->size; j++)
        total += rows[j];
    ts_comm_options options = TS_INIT(ts_comm_options);
    ts_array in = TS_INIT(ts_array), out = TS_INIT(ts_array);
    in.data = mine;
    in.meta = (ts_meta){ .shape = TS_SHAPE(p->rows, p->choices), .dtype = TS_DTYPE_I32 };
    out.data = all;
    out.meta = (ts_meta){ .shape = TS_SHAPE(total, p->choices), .dtype = TS_DTYPE_I32 };
    options.name = p->io->op->name;
    options.recv_rows = rows;
    return (ts_group_all_gather)(p->group, &in, &out, &options);
}

/* Every member sees every choice of the group's rows, so all refuse a bad one alike; ranks that
 * have other rows do not know of it. */
static ts_status check_which(const passage *p, const int32_t *which, int64_t count, int64_t experts)
{
    bool cut = p->in[TSI_MLP_WHICH]->layout->axes_cut & ~p->axes;
    for (int64_t i = 0; i < count; i++)
        if (which[i] < 0)
            return TSI_FAIL_BLAST(cut ? TS_BLAST_LOCAL : TS_BLAST_AGREED, TS_ERR_ARG,
                                  "%s: choice %lld of row %lld is expert %d, of %lld",
                                  p->io->op->name, (long long)(i % p->choices),
                                  (long long)(i / p->choices), -1 - which[i], (long long)experts);
    return TS_OK;
}

static void model_which(const passage *p, const int64_t *rows, int64_t experts, int32_t *all)
{
    for (int64_t j = 0; j < p->size; j++)
        for (int64_t row = 0; row < rows[j]; row++)
            for (int64_t k = 0; k < p->choices; k++)
                *all++ = tsi_route_modelled(j, row, k, experts);
}

/* [sum of rows][choices], in the order of members. */
static ts_status which_of_all(passage *p, const int64_t *rows, int32_t **out)
{
    int64_t total = 0, experts = p->in[TSI_MLP_IN]->layout->shape.extent[0];
    for (int64_t j = 0; j < p->size; j++)
        total += rows[j];
    size_t bytes = (size_t)(total * p->choices + 1) * sizeof(int32_t);
    int32_t *all = *out = tsi_arena_alloc(&p->arena, bytes), *mine = all;
    if (p->group)
        mine = tsi_arena_alloc(&p->arena, (size_t)(p->rows * p->choices + 1) * sizeof *mine);
    if (!all || !mine) return tsi_fail_memory("the choices of rows", bytes);
    tsi_block block = tsi_array_block(p->in[TSI_MLP_WHICH]->array);
    reading r = { mine, experts };
    TSI_TRY(tsi_host_run(p->io->rank, p->io->op->name, &block, 1, 0, read_which, &r));
    if (p->group) TSI_TRY(gather_which(p, rows, mine, all));
    if (tsi_rank_device_of(p->io->rank)->device == tsi_device_none())
        model_which(p, rows, experts, all);
    return check_which(p, all, total * p->choices, experts);
}

/* ---- moving rows ----------------------------------------------------------------------------- */

typedef struct parts {
    ts_part *part;
    int64_t count;
} parts;

/* Elements from a block's `first` on; what follows the part before without a gap joins it. */
static void add_part(parts *to, int64_t peer, char *data, int64_t count, size_t size, int combine)
{
    ts_part *last = to->count > 0 ? &to->part[to->count - 1] : NULL;
    if (count == 0) return;
    if (last && !combine && last->peer == peer && !last->combine &&
        (char *)last->data + (size_t)last->extent[0] * size == data) {
        last->extent[0] += count;
        return;
    }
    to->part[to->count++] = (ts_part){ .peer = peer,
                                       .data = data,
                                       .ndim = 1,
                                       .combine = combine,
                                       .extent = { count },
                                       .stride = { 1 } };
}

static ts_status parts_make(passage *p, int64_t count, parts *out)
{
    size_t bytes = ((size_t)count + 1) * sizeof *out->part;
    *out = (parts){ tsi_arena_alloc(&p->arena, bytes), 0 };
    return out->part ? TS_OK : tsi_fail_memory("the parts of an exchange", bytes);
}

/* `work` not NULL: goes on by itself until that is waited for. */
static ts_status swap(const passage *p, const ts_tensor *like, const parts *send, const parts *recv,
                      ts_work **work)
{
    ts_exchange round = TS_INIT(ts_exchange);
    ts_comm_options options = TS_INIT(ts_comm_options);
    round.dtype = (int32_t)like->dtype;
    round.reduce = TS_REDUCE_SUM;
    round.device = tsi_array_device(like->array);
    round.send = send->part;
    round.send_count = send->count;
    round.recv = recv->part;
    round.recv_count = recv->count;
    options.name = p->io->op->name;
    options.work = work;
    return (ts_group_exchange)(p->group, &round, &options);
}

/* Rows of `from` go to who holds their experts: [held, length] in `to`. */
static ts_status send_rows(passage *p, int leg, const ts_tensor *from, const ts_tensor *to,
                           ts_work **work)
{
    const tsi_route_leg *l = &p->route.leg[leg];
    size_t size = ts_dtype_size((ts_dtype)to->dtype);
    int64_t length = ts_tensor_shape(to).extent[1], row = length * (int64_t)size;
    parts send, recv;
    TSI_TRY(parts_make(p, l->out_first[p->size], &send));
    TSI_TRY(parts_make(p, p->size, &recv));
    for (int64_t j = 0; j < p->size; j++) {
        for (int64_t i = l->out_first[j]; i < l->out_first[j + 1]; i++)
            add_part(&send, j, data_of(from) + l->out_row[i] * row, length, size, 0);
        add_part(&recv, j, data_of(to) + l->in_first[j] * row,
                 (l->in_first[j + 1] - l->in_first[j]) * length, size, 0);
    }
    return swap(p, to, &send, &recv, work);
}

/* Where each row of `count` has its results, in the order of holders: a stable sort by row. */
static ts_status by_row(passage *p, const tsi_route_leg *l, int64_t count, int64_t **first,
                        int64_t **holder)
{
    int64_t out = l->out_first[p->size];
    int64_t *begin = tsi_arena_calloc(&p->arena, (size_t)count + 2, sizeof *begin);
    int64_t *member = tsi_arena_alloc(&p->arena, ((size_t)out + 1) * sizeof *member);
    if (!begin || !member) return tsi_fail_memory("the results of rows", (size_t)out * 8);
    for (int64_t i = 0; i < out; i++)
        begin[l->out_row[i] + 2]++;
    for (int64_t row = 0; row < count; row++)
        begin[row + 2] += begin[row + 1];
    for (int64_t j = 0; j < p->size; j++)
        for (int64_t i = l->out_first[j]; i < l->out_first[j + 1]; i++)
            member[begin[l->out_row[i] + 1]++] = j;
    *first = begin;
    *holder = member;
    return TS_OK;
}

/* A row's results: own first where this rank made one, in place, then those of holders. */
static void add_results(parts *recv, char *at, const int64_t *holder, int64_t count, int64_t own,
                        int64_t length, size_t size)
{
    if (own < 0 && count == 1) {
        add_part(recv, holder[0], at, length, size, 0);
        return;
    }
    for (int64_t i = own >= 0 ? -1 : 0; i < count; i++)
        recv->part[recv->count++] = (ts_part){ .peer = i < 0 ? own : holder[i],
                                               .data = at,
                                               .ndim = 1,
                                               .combine = i > (own >= 0 ? -1 : 0),
                                               .extent = { length },
                                               .stride = { 1 } };
}

/* What holders made of `count` rows comes back and folds into `to`, row by row. On the second leg
 * this rank has made a part of each itself, which lies there. */
static ts_status return_rows(passage *p, int leg, const ts_tensor *from, const ts_tensor *to,
                             int64_t count)
{
    const tsi_route_leg *l = &p->route.leg[leg];
    size_t size = ts_dtype_size((ts_dtype)to->dtype);
    int64_t row_bytes = p->width * (int64_t)size, me = ts_group_index(p->group);
    int64_t out = l->out_first[p->size], *first = NULL, *holder = NULL;
    parts send, recv;
    TSI_TRY(parts_make(p, out + p->size, &send));
    TSI_TRY(parts_make(p, 2 * out, &recv));
    TSI_TRY(by_row(p, l, count, &first, &holder));
    for (int64_t j = 0; j < p->size; j++) {
        add_part(&send, j, data_of(from) + l->in_first[j] * row_bytes,
                 (l->in_first[j + 1] - l->in_first[j]) * p->width, size, 0);
        for (int64_t row = 0; leg && j == me && row < count; row++)
            if (first[row] < first[row + 1])
                add_part(&send, me, data_of(to) + row * row_bytes, p->width, size, 0);
    }
    for (int64_t row = 0; row < count; row++)
        if (first[row] < first[row + 1])
            add_results(&recv, data_of(to) + row * row_bytes, holder + first[row],
                        first[row + 1] - first[row], leg ? me : -1, p->width, size);
    return swap(p, to, &send, &recv, NULL);
}

/* One number for each choice, to the holder (or back, from all of them). */
static ts_status pass_slots(passage *p, const ts_tensor *from, const ts_tensor *to, bool back)
{
    const int64_t *out = back ? p->route.slot_in_first : p->route.slot_out_first;
    const int64_t *in = back ? p->route.slot_out_first : p->route.slot_in_first;
    size_t size = ts_dtype_size((ts_dtype)to->dtype);
    parts send, recv;
    TSI_TRY(parts_make(p, p->size, &send));
    TSI_TRY(parts_make(p, p->size, &recv));
    for (int64_t j = 0; j < p->size; j++) {
        add_part(&send, j, data_of(from) + out[j] * (int64_t)size, out[j + 1] - out[j], size, 0);
        add_part(&recv, j, data_of(to) + in[j] * (int64_t)size, in[j + 1] - in[j], size, 0);
    }
    return swap(p, to, &send, &recv, NULL);
}

/* ---- beginning ------------------------------------------------------------------------------- */

static int64_t rows_of(const ts_layout *which, const int64_t *coord)
{
    ts_shape local = ts_layout_local(which, coord);
    int64_t rows = 1;
    for (int32_t d = 0; d < local.ndim - 1; d++)
        rows *= local.extent[d];
    return rows;
}

static ts_status find_route(passage *p, bool nodes)
{
    const tsi_algorithm_io *io = p->io;
    const ts_layout *which = p->in[TSI_MLP_WHICH]->layout, *in = p->in[TSI_MLP_IN]->layout;
    int64_t coord[TS_NDIM_MAX], *owner, *rows, *node = NULL;
    int32_t *choices;
    rows = tsi_arena_calloc(&p->arena, (size_t)p->size + 1, sizeof *rows);
    if (!rows) return tsi_fail_memory("the rows of members", (size_t)p->size * sizeof *rows);
    for (int64_t j = 0; j < p->size; j++) {
        int64_t rank = p->group ? ts_group_rank(p->group, j) : ts_rank_index(io->rank);
        if (!tsi_mesh_desc_coord(io->mesh->desc, rank, coord))
            return TSI_FAIL(TS_ERR_INTERNAL, "%s: rank %lld is not in its mesh", io->op->name,
                            (long long)rank);
        rows[j] = rows_of(which, coord);
    }
    TSI_TRY(which_of_all(p, rows, &choices));
    TSI_TRY(tsi_grouped_owners(io, p->group, in, &p->arena, &owner));
    if (nodes) TSI_TRY(tsi_mlp_nodes(io->mesh->desc, p->group, &p->arena, &node));
    tsi_route_request request = { .size = p->size,
                                  .me = p->group ? ts_group_index(p->group) : 0,
                                  .choices = p->choices,
                                  .rows = rows,
                                  .which = choices,
                                  .owner = owner,
                                  .node = node };
    return tsi_route_make(&request, &p->arena, &p->route);
}

typedef struct slot_lists {
    int64_t *row, *slot, *expert, *token, *next;
    tsi_span_list experts; /* here */
    int64_t first, last;   /* choices of this rank's own rows, as they come */
    int64_t count;
} slot_lists;

/* The own choices, or the others, by expert, in the order they came: products then find their rows
 * together. */
static void sort_some(const passage *p, slot_lists *l, bool own)
{
    const tsi_route *r = &p->route;
    memset(l->next, 0, ((size_t)l->experts.total + 1) * sizeof *l->next);
    for (int64_t i = 0; i < p->slots; i++)
        if ((i >= l->first && i < l->last) == own)
            l->next[tsi_span_list_find(&l->experts, r->slot_expert[i]) + 1]++;
    for (int64_t e = 0; e < l->experts.total; e++)
        l->next[e + 1] += l->next[e];
    for (int64_t i = 0; i < p->slots; i++) {
        if ((i >= l->first && i < l->last) != own) continue;
        int64_t e = tsi_span_list_find(&l->experts, r->slot_expert[i]);
        int64_t at = l->count + l->next[e]++;
        l->row[at] = r->slot_row[i];
        l->slot[at] = i;
        l->expert[at] = e;
    }
    l->count = l->last - l->first;
}

/* Those of this rank's own rows first: they wait for nobody. */
static ts_status sort_slots(passage *p)
{
    const tsi_route *r = &p->route;
    int64_t me = p->group ? ts_group_index(p->group) : 0;
    const tsi_route_leg *home = &r->leg[0];
    slot_lists l = { .first = r->slot_in_first[me], .last = r->slot_in_first[me + 1] };
    bool back = p->io->input_count > TSI_MLP_INPUTS;
    if (p->group && back) l.first = l.last = 0; /* all at once */
    if (!tsi_layout_region_dim(p->in[TSI_MLP_IN]->layout, p->io->mesh->coord, 0, &p->arena,
                               &l.experts))
        return tsi_fail_memory("the experts of a rank", 0);
    p->slots = r->slot_in_first[p->size];
    p->own = l.last - l.first;
    size_t slots = (size_t)p->slots + 1;
    l.next = tsi_arena_calloc(&p->arena, (size_t)l.experts.total + 2, sizeof *l.next);
    l.row = tsi_arena_alloc(&p->arena, 4 * slots * sizeof *l.row);
    if (!l.next || !l.row) return tsi_fail_memory("the choices of experts", slots * 4 * 8);
    l.slot = l.row + slots;
    l.expert = l.slot + slots;
    l.token = l.expert + slots;
    sort_some(p, &l, true);
    sort_some(p, &l, false);
    for (int64_t i = 0; i < p->own; i++)
        l.token[i] = home->out_row[home->out_first[me] + l.row[i] - home->in_first[me]];
    p->row = index_of(p, p->group ? l.row : l.token, p->slots);
    p->slot = index_of(p, l.slot, p->slots);
    p->token = index_of(p, l.token, p->own);
    p->product.expert = index_of(p, l.expert, p->slots);
    return pending(p);
}

static ts_status begin(passage *p, uint32_t axes, bool nodes)
{
    const tsi_algorithm_io *io = p->io;
    ts_shape which = tsi_array_shape(p->in[TSI_MLP_WHICH]->array);
    p->axes = axes;
    p->group = axes ? tsi_mesh_axes_group(io->mesh, axes) : NULL;
    p->self = ts_mesh_self(io->rank);
    if ((axes && !p->group) || !p->self) return pending(p);
    p->size = axes ? ts_group_size(p->group) : 1;
    p->choices = which.extent[which.ndim - 1];
    p->rows = rows_of(p->in[TSI_MLP_WHICH]->layout, io->mesh->coord);
    p->width = p->in[TSI_MLP_OUT]->layout->shape.extent[1];
    TSI_TRY(find_route(p, nodes));
    ts_tensor *in = ts_tensor_local(p->in[TSI_MLP_IN]);
    if (!in) return pending(p);
    ts_shape s = ts_tensor_shape(in);
    p->product.in = (ts_reshape)(in, TS_SHAPE(s.extent[0], 2 * s.extent[2], s.extent[3]));
    p->product.out = ts_tensor_local(p->in[TSI_MLP_OUT]);
    p->product.activation = ((const tsi_mlp_attributes *)io->attributes)->activation;
    return sort_slots(p);
}

/* ---- rows there and back --------------------------------------------------------------------- */

/* Of a tensor of rows what the experts here were chosen for, choice by choice: [slots, C]. */
static ts_tensor *bring(passage *p, ts_tensor *t)
{
    ts_tensor *rows = block_of(p, t, p->width);
    if (rows && p->group) {
        ts_tensor *held = room(p, (ts_dtype)rows->dtype, TS_SHAPE(p->route.held, p->width));
        if (!held || send_rows(p, 0, rows, held, NULL) != TS_OK) return NULL;
        if (p->route.has_second && send_rows(p, 1, held, held, NULL) != TS_OK) return NULL;
        rows = held;
    }
    return (ts_index_select)(rows, 0, p->row);
}

static ts_tensor *bring_weights(passage *p)
{
    ts_tensor *weight = block_of(p, p->in[TSI_MLP_WEIGHT], p->choices), *came = NULL;
    weight = (ts_reshape)(weight, TS_SHAPE(p->rows * p->choices));
    weight = (ts_index_select)(weight, 0,
                               index_of(p, p->route.slot_out, p->route.slot_out_first[p->size]));
    if (weight && p->group) {
        came = room(p, (ts_dtype)weight->dtype, TS_SHAPE(p->slots));
        if (!came || pass_slots(p, weight, came, false) != TS_OK) return NULL;
        weight = came;
    }
    return (ts_index_select)(weight, 0, p->slot);
}

/* What holders made of rows, [held, C], at home: the block of an output. */
static ts_tensor *return_all(passage *p, ts_tensor *back, const ts_shape *block)
{
    if (back && p->group) {
        ts_tensor *home = zeros(p, (ts_dtype)back->dtype, TS_SHAPE(p->rows, p->width));
        if (!home) return NULL;
        if (p->route.has_second && return_rows(p, 1, back, back, p->route.held) != TS_OK)
            return NULL;
        if (return_rows(p, 0, back, home, p->rows) != TS_OK) return NULL;
        back = home;
    }
    return (ts_reshape)(back, *block);
}

/* What the experts made of choices, summed by row and sent home. */
static ts_tensor *take_back(passage *p, ts_tensor *made, const ts_shape *block)
{
    return return_all(p, sum_by(p, made, p->row, p->group ? p->route.held : p->rows), block);
}

static ts_tensor *take_back_weights(passage *p, ts_tensor *made, const ts_shape *block)
{
    int64_t out = p->route.slot_out_first[p->size];
    ts_tensor *back = sum_by(p, made, p->slot, p->slots);
    if (back && p->group) {
        ts_tensor *home = room(p, (ts_dtype)back->dtype, TS_SHAPE(out));
        if (!home || pass_slots(p, back, home, true) != TS_OK) return NULL;
        back = home;
    }
    back = sum_by(p, back, index_of(p, p->route.slot_out, out), p->rows * p->choices);
    return (ts_reshape)(back, *block);
}

/* A block of this rank as its part of output o, which is pending over `axes`. */
static ts_tensor *part_of(const passage *p, ts_tensor *block, int32_t o, uint32_t axes)
{
    const tsi_algorithm_io *io = p->io;
    const ts_layout *promised = io->out_layout[o];
    ts_placement place[TS_NDIM_MAX];
    if (!block) return NULL;
    for (int32_t k = 0; k < promised->sharding->ndim; k++) {
        place[k] = promised->sharding->place[k];
        if (axes >> k & 1)
            place[k] = (ts_placement){
                .kind = TS_PLACE_PARTIAL, .reduce = TS_REDUCE_SUM, .factor = 1, .align = 1
            };
    }
    const ts_sharding *sharding = tsi_sharding_intern(io->mesh->desc, place);
    const ts_layout *layout = sharding ? tsi_layout_intern(sharding, &promised->shape) : NULL;
    ts_tensor *t = NULL;
    if (layout)
        t = tsi_tensor_make(io->mesh, layout, (ts_dtype)block->dtype,
                            tsi_array_retain(block->array), NULL);
    ts_layout_release(layout);
    ts_sharding_release(sharding);
    return t;
}

/* ---- the algorithms -------------------------------------------------------------------------- */

static ts_tensor *some(ts_tensor *list, int64_t begin, int64_t end)
{
    return (ts_narrow)(list, 0, (ts_interval){ begin, end });
}

/* The products of choices [begin, end), of which x has the rows: added to the held rows. */
static ts_tensor *add_products(const passage *p, ts_tensor *sum, ts_tensor *x, int64_t begin,
                               int64_t end)
{
    tsi_mlp_rows part = p->product;
    if (begin == end) return sum;
    part.x = x;
    part.expert = some(p->product.expert, begin, end);
    part.weight = some(p->product.weight, begin, end);
    ts_tensor *made = tsi_mlp_product(&part);
    if (made && sum && made->dtype != sum->dtype) made = ts_cast(made, (ts_dtype)sum->dtype);
    return (ts_index_add_)(sum, 0, some(p->row, begin, end), made);
}

/* Rows travel while the experts here work on this rank's own; a row's choices are all of one kind,
 * so the sums are those of one product. */
static ts_tensor *products_of(passage *p, ts_tensor *rows)
{
    ts_dtype own = (ts_dtype)rows->dtype, wide = ts_dtype_size(own) < 4 ? TS_DTYPE_F32 : own;
    int64_t places = p->group ? p->route.held : p->rows;
    ts_tensor *held = rows, *sum = zeros(p, wide, TS_SHAPE(places, p->width));
    ts_work *work = NULL;
    if (p->group) {
        held = room(p, own, TS_SHAPE(places, p->width));
        if (!held || send_rows(p, 0, rows, held, &work) != TS_OK) return NULL;
    }
    sum = add_products(p, sum, (ts_index_select)(rows, 0, p->token), 0, p->own);
    ts_status status = ts_work_wait(work);
    if (status == TS_OK && p->group && p->route.has_second)
        status = send_rows(p, 1, held, held, NULL);
    if (status != TS_OK) return NULL;
    ts_tensor *theirs = (ts_index_select)(held, 0, some(p->row, p->own, p->slots));
    sum = add_products(p, sum, theirs, p->own, p->slots);
    return wide == own ? sum : ts_cast(sum, own);
}

/* `summed`: axes over which the results are partial, though promised to be cut. */
static ts_status forward(passage *p, uint32_t summed, ts_tensor **out)
{
    ts_shape block = tsi_array_shape(p->in[TSI_MLP_X]->array);
    ts_tensor *rows = block_of(p, p->in[TSI_MLP_X], p->width);
    p->product.weight = bring_weights(p);
    TSI_TRY(pending(p));
    out[0] = part_of(p, return_all(p, products_of(p, rows), &block), 0, summed);
    return pending(p);
}

static ts_status backward(passage *p, ts_tensor *dy, uint32_t summed, ts_tensor **out)
{
    ts_shape rows = tsi_array_shape(p->in[TSI_MLP_X]->array);
    ts_shape choices = tsi_array_shape(p->in[TSI_MLP_WEIGHT]->array);
    ts_shape in = tsi_array_shape(p->in[TSI_MLP_IN]->array);
    ts_tensor *d[TSI_MLP_GRADS] = { NULL };
    p->product.x = bring(p, p->in[TSI_MLP_X]);
    ts_tensor *dy_there = bring(p, dy);
    p->product.weight = bring_weights(p);
    TSI_TRY(pending(p));
    TSI_TRY(tsi_mlp_gradients(&p->product, dy_there, d));
    out[TSI_MLP_DX] = part_of(p, take_back(p, d[TSI_MLP_DX], &rows), TSI_MLP_DX, summed);
    out[TSI_MLP_DWEIGHT] =
        part_of(p, take_back_weights(p, d[TSI_MLP_DWEIGHT], &choices), TSI_MLP_DWEIGHT, summed);
    out[TSI_MLP_DIN] = part_of(p, (ts_reshape)(d[TSI_MLP_DIN], in), TSI_MLP_DIN, 0);
    out[TSI_MLP_DOUT] = part_of(p, d[TSI_MLP_DOUT], TSI_MLP_DOUT, 0);
    return pending(p);
}

/* The tensor whole on these axes. */
static ts_tensor *whole_on(ts_tensor *t, uint32_t axes)
{
    const ts_sharding *have = t->layout->sharding;
    ts_placement place[TS_NDIM_MAX];
    for (int32_t k = 0; k < have->ndim; k++) {
        place[k] = have->place[k];
        if (axes >> k & 1)
            place[k] = (ts_placement){ .kind = TS_PLACE_REPLICATE, .factor = 1, .align = 1 };
    }
    const ts_sharding *to = tsi_sharding_intern(have->mesh, place);
    ts_tensor *moved = to ? (ts_redistribute_to)(t, to) : NULL;
    ts_sharding_release(to);
    return moved;
}

static ts_status run(const tsi_algorithm_io *io, bool nodes, bool gathers)
{
    ts_scope scope = tsi_algorithm_begin(io);
    bool back = io->input_count > TSI_MLP_INPUTS;
    ts_tensor *in[TSI_MLP_INPUTS + 1], *out[TSI_OUTPUT_MAX] = { NULL };
    memcpy(in, io->in, (size_t)io->input_count * sizeof *in);
    ts_tensor **forward_in = in + back;
    uint32_t axes = tsi_mlp_axes(forward_in[TSI_MLP_X]->layout, forward_in[TSI_MLP_IN]->layout);
    ts_status status = TS_OK;
    for (int32_t i = 0; gathers && i < io->input_count - 2 && status == TS_OK; i++) {
        in[i] = whole_on(in[i], axes);
        status = in[i] ? tsi_tensor_ready(in[i]) : ts_rank_status(io->rank);
    }
    passage p = { .io = io, .in = forward_in };
    uint32_t summed = gathers ? axes : 0;
    if (status == TS_OK) status = begin(&p, gathers ? 0 : axes, nodes);
    if (status == TS_OK)
        status = back ? backward(&p, in[0], summed, out) : forward(&p, summed, out);
    ts_status ended = tsi_algorithm_end(io, scope, out);
    ts_mesh_release(p.self);
    tsi_arena_release(&p.arena);
    return status == TS_OK ? ended : status;
}

static ts_status run_rows(const tsi_algorithm_io *io)
{
    return run(io, false, false);
}

static ts_status run_nodes(const tsi_algorithm_io *io)
{
    return run(io, true, false);
}

static ts_status run_gather(const tsi_algorithm_io *io)
{
    return run(io, false, true);
}

const tsi_algorithm tsi_mlp_algorithms[] = { { "rows", run_rows, tsi_mlp_bytes },
                                             { "nodes", run_nodes, tsi_mlp_bytes },
                                             { "gather", run_gather, tsi_mlp_bytes },
                                             { 0 } };
