/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_passage.c - the beginning of a passage: everybody's choices, the route of rows, and the
 * order in which the experts here take them. See grouped_passage.h. */
#include "op/matrix/grouped_passage.h"

#include <string.h>

#include "base/alloc.h"
#include "base/intmath.h"
#include "comm/engine.h"
#include "op/core/element.h"
#include "op/core/kernel.h"
#include "op/matrix/grouped_linear.h"
#include "tensor/scope.h"
#include "tessera/comm.h"

ts_status tsi_passage_status(const tsi_passage *p)
{
    return ts_rank_status(p->io->rank);
}

/* ---- tensors of this rank alone -------------------------------------------------------------- */

static ts_tensor *here(const tsi_passage *p, tsi_array *array /* takes */)
{
    if (!array) return NULL;
    const ts_layout *layout = tsi_tensor_layout_of(p->self, NULL, tsi_array_shape(array));
    ts_tensor *t = NULL;
    if (layout)
        t = tsi_tensor_make(p->self, layout, (ts_dtype)array->dtype, array, NULL);
    else
        tsi_array_release(array);
    ts_layout_release(layout);
    if (t) tsi_tell(t->rank, TSI_NEWS_FILL, &(tsi_filled){ .made = t, .how = "room" });
    return t;
}

ts_tensor *tsi_passage_room(const tsi_passage *p, ts_dtype dtype, ts_shape shape)
{
    return here(p, tsi_array_create(p->io->rank, dtype, &shape));
}

ts_tensor *tsi_passage_zeros(const tsi_passage *p, ts_dtype dtype, ts_shape shape)
{
    return (ts_zeros)(p->self, dtype, shape, NULL);
}

/* Of memory that outlives the call's tensors. */
ts_tensor *tsi_passage_index(const tsi_passage *p, int64_t *data, int64_t count)
{
    ts_array array = TS_INIT(ts_array);
    array.data = data;
    array.meta = (ts_meta){ .shape = TS_SHAPE(count), .dtype = TS_DTYPE_I64 };
    return ts_from_memory(p->io->rank, &array);
}

/* This rank's block of a tensor of rows, dense: [rows, length]. */
ts_tensor *tsi_passage_block(const tsi_passage *p, ts_tensor *t, int64_t length)
{
    ts_tensor *rows = (ts_reshape)(ts_tensor_local(t), TS_SHAPE(p->rows, length));
    return rows && !tsi_array_is_dense(rows->array) ? (ts_clone)(rows) : rows;
}

/* ---- choices of all members ------------------------------------------------------------------ */

typedef struct reading {
    int32_t *to;
    int64_t experts;
    bool skips; /* NONE is a choice, too */
} reading;

/* What is no expert travels as a number below NONE, from which it can be told; from FAR on either
 * side only that it is so far. */
enum { NONE = -1, FAR = 1 << 29 };

static int32_t bad_index(int64_t e)
{
    int64_t near = tsi_max_i64(-FAR, tsi_min_i64(e, FAR));
    return (int32_t)(NONE - 1 - (near < 0 ? -2 * near - 1 : 2 * near));
}

static int64_t told_index(int32_t bad)
{
    int64_t code = NONE - 1 - (int64_t)bad;
    return code % 2 ? -(code + 1) / 2 : code / 2;
}

static const char *beyond(int64_t told)
{
    return told >= FAR ? " or more" : told <= -FAR ? " or less" : "";
}

static ts_status read_which(void *context, const tsi_block *block)
{
    const reading *r = context;
    int64_t i = 0;
    tsi_loop loop = tsi_loop_over(block);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        int64_t e = tsi_block_int(block, loop.at[0]);
        bool good = (e >= 0 && e < r->experts) || (e == NONE && r->skips);
        r->to[i++] = good ? (int32_t)e : bad_index(e);
    }
    return TS_OK;
}

static ts_status gather_which(const tsi_passage *p, const int64_t *rows, int32_t *mine,
                              int32_t *all)
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
static ts_status check_which(const tsi_passage *p, const int32_t *which, int64_t count,
                             int64_t experts)
{
    bool cut = p->in[TSI_MLP_WHICH]->layout->axes_cut & ~p->axes;
    for (int64_t i = 0; i < count; i++)
        if (which[i] < NONE)
            return TSI_FAIL_BLAST(cut ? TS_BLAST_LOCAL : TS_BLAST_AGREED, TS_ERR_ARG,
                                  "%s: choice %lld of row %lld is expert %lld%s, of %lld",
                                  p->io->op->name, (long long)(i % p->choices),
                                  (long long)(i / p->choices), (long long)told_index(which[i]),
                                  beyond(told_index(which[i])), (long long)experts);
    return TS_OK;
}

/* [sum of rows][choices], in the order of members; NULL where there is no data. */
static ts_status which_of_all(tsi_passage *p, const int64_t *rows, int32_t **out)
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
    reading r = { mine, experts, ((const tsi_mlp_attributes *)p->io->attributes)->skips };
    TSI_TRY(tsi_host_run(p->io->rank, p->io->op->name, &block, 1, 0, read_which, &r));
    if (p->group) TSI_TRY(gather_which(p, rows, mine, all));
    if (tsi_rank_device_of(p->io->rank)->device != tsi_device_none())
        return check_which(p, all, total * p->choices, experts);
    *out = NULL;
    return TS_OK;
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

static ts_status find_route(tsi_passage *p, bool nodes)
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
                                  .experts = in->shape.extent[0],
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

static ts_status make_lists(tsi_passage *p, slot_lists *l)
{
    size_t slots = (size_t)p->slots + 1;
    if (!tsi_layout_region_dim(p->in[TSI_MLP_IN]->layout, p->io->mesh->coord, 0, &p->arena,
                               &l->experts))
        return tsi_fail_memory("the experts of a rank", 0);
    l->next = tsi_arena_calloc(&p->arena, (size_t)l->experts.total + 2, sizeof *l->next);
    l->row = tsi_arena_alloc(&p->arena, 4 * slots * sizeof *l->row);
    if (!l->next || !l->row) return tsi_fail_memory("the choices of experts", slots * 4 * 8);
    l->slot = l->row + slots;
    l->expert = l->slot + slots;
    l->token = l->expert + slots;
    return TS_OK;
}

/* The own choices, or the others, by expert, in the order they came: products then find their rows
 * together. */
static void sort_some(const tsi_passage *p, slot_lists *l, bool own)
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

/* Lists nobody reads, where there is no data. */
static ts_status describe_slots(tsi_passage *p)
{
    p->row = tsi_passage_room(p, TS_DTYPE_I64, TS_SHAPE(p->slots));
    p->slot = tsi_passage_room(p, TS_DTYPE_I64, TS_SHAPE(p->slots));
    p->token = tsi_passage_room(p, TS_DTYPE_I64, TS_SHAPE(p->own));
    p->product.expert = tsi_passage_room(p, TS_DTYPE_I64, TS_SHAPE(p->slots));
    return tsi_passage_status(p);
}

/* Those of this rank's own rows first: they wait for nobody. */
static ts_status sort_slots(tsi_passage *p)
{
    const tsi_route *r = &p->route;
    int64_t me = p->group ? ts_group_index(p->group) : 0;
    const tsi_route_leg *home = &r->leg[0];
    slot_lists l = { .first = r->slot_in_first[me], .last = r->slot_in_first[me + 1] };
    bool back = p->io->input_count > TSI_MLP_INPUTS;
    if (p->group && back) l.first = l.last = 0; /* all at once */
    p->slots = r->slot_in_first[p->size];
    p->own = l.last - l.first;
    if (!r->slot_row) return describe_slots(p);
    TSI_TRY(make_lists(p, &l));
    sort_some(p, &l, true);
    sort_some(p, &l, false);
    for (int64_t i = 0; i < p->own; i++)
        l.token[i] = home->out_row[home->out_first[me] + l.row[i] - home->in_first[me]];
    p->row = tsi_passage_index(p, p->group ? l.row : l.token, p->slots);
    p->slot = tsi_passage_index(p, l.slot, p->slots);
    p->token = tsi_passage_index(p, l.token, p->own);
    p->product.expert = tsi_passage_index(p, l.expert, p->slots);
    return tsi_passage_status(p);
}

ts_status tsi_passage_begin(tsi_passage *p, uint32_t axes, bool nodes)
{
    const tsi_algorithm_io *io = p->io;
    ts_shape which = tsi_array_shape(p->in[TSI_MLP_WHICH]->array);
    p->axes = axes;
    p->group = axes ? tsi_mesh_axes_group(io->mesh, axes) : NULL;
    p->self = ts_mesh_self(io->rank);
    if ((axes && !p->group) || !p->self) return tsi_passage_status(p);
    p->size = axes ? ts_group_size(p->group) : 1;
    p->choices = which.extent[which.ndim - 1];
    p->rows = rows_of(p->in[TSI_MLP_WHICH]->layout, io->mesh->coord);
    p->width = p->in[TSI_MLP_OUT]->layout->shape.extent[1];
    TSI_TRY(find_route(p, nodes));
    ts_tensor *in = ts_tensor_local(p->in[TSI_MLP_IN]);
    if (!in) return tsi_passage_status(p);
    ts_shape s = ts_tensor_shape(in);
    p->product.in = (ts_reshape)(in, TS_SHAPE(s.extent[0], 2 * s.extent[2], s.extent[3]));
    p->product.out = ts_tensor_local(p->in[TSI_MLP_OUT]);
    p->product.activation = ((const tsi_mlp_attributes *)io->attributes)->activation;
    return sort_slots(p);
}
