/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_mlp_exchange.c - the feed-forward of experts that are cut over ranks: rows go to the
 * ranks that hold their experts, both products happen there, one row comes back from each.
 *
 *   which of all --route--> x there --in, act, out, sum by row--> y here, folded over holders
 *   gradient:               x, dy there ------------------------> dx here; dweight; din, dout stay
 *
 * rows    each row once to each holder; one round of choices, one of rows, one of results
 * nodes   each row once to each node, where it is passed on (grouped_route.h)
 * gather  all rows to all holders; what they make is a partial sum. On a device nothing waits for
 *         the host then (grouped_mlp_whole.c)
 *
 * Experts that no member holds (another axis cuts them, too) add nothing: the result is a partial
 * sum over that axis. Where rows and experts are cut by no common axis nobody is asked for rows,
 * and all of this is a product of what is here.
 *
 * INV: sums over the experts of a row are in the order of holders, and of one holder in the order
 * of its experts; by way of nodes, in the order of those who pass them on. Each is the same in
 * every run; the two may differ in the last bit. */
#include <string.h>

#include "op/core/algorithm.h"
#include "op/matrix/grouped_mlp.h"
#include "op/matrix/grouped_passage.h"
#include "tensor/scope.h"
#include "tessera/comm.h"

ts_tensor *tsi_mlp_part(const tsi_algorithm_io *io, ts_tensor *block, int32_t o, uint32_t axes,
                        tsi_move *move /* takes */)
{
    const ts_layout *promised = io->out_layout[o];
    ts_placement place[TS_NDIM_MAX];
    ts_tensor *t = NULL;
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
    if (layout)
        t = tsi_tensor_make(io->mesh, layout, (ts_dtype)block->dtype,
                            tsi_array_retain(block->array), move);
    else
        tsi_move_release(move);
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
static ts_tensor *add_products(const tsi_passage *p, ts_tensor *sum, ts_tensor *x, int64_t begin,
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
static ts_tensor *products_of(tsi_passage *p)
{
    tsi_bringing x;
    ts_status status = tsi_passage_bring(p, p->in[TSI_MLP_X], false, &x);
    if (status != TS_OK) return NULL;
    ts_dtype own = (ts_dtype)x.rows->dtype, wide = ts_dtype_size(own) < 4 ? TS_DTYPE_F32 : own;
    int64_t places = p->group ? p->route.held : p->rows;
    ts_tensor *sum = tsi_passage_zeros(p, wide, TS_SHAPE(places, p->width));
    sum = add_products(p, sum, (ts_index_select)(x.rows, 0, p->token), 0, p->own);
    ts_tensor *held = tsi_passage_brought(p, &x);
    if (!held) return NULL;
    ts_tensor *theirs = (ts_index_select)(held, 0, some(p->row, p->own, p->slots));
    sum = add_products(p, sum, theirs, p->own, p->slots);
    return wide == own ? sum : ts_cast(sum, own);
}

/* `summed`: axes over which the results are partial, though promised to be cut. They are on their
 * way when this ends: what the program computes next that does not need them, shared experts for
 * one, happens meanwhile. */
static ts_status forward(tsi_passage *p, uint32_t summed, ts_tensor **out)
{
    ts_shape block = tsi_array_shape(p->in[TSI_MLP_X]->array);
    tsi_move *move = NULL;
    p->product.weight = tsi_passage_bring_weights(p);
    TSI_TRY(tsi_passage_status(p));
    ts_tensor *y = tsi_passage_return(p, products_of(p), &block, &move);
    out[0] = tsi_mlp_part(p->io, y, 0, summed, move);
    return tsi_passage_status(p);
}

/* The first product happens while dy travels, the sums over rows while dx does. */
static ts_status gradients(tsi_passage *p, tsi_bringing *x, tsi_bringing *dy, uint32_t summed,
                           ts_tensor **out)
{
    ts_shape rows = tsi_array_shape(p->in[TSI_MLP_X]->array);
    ts_tensor *d[TSI_MLP_GRADS] = { NULL };
    tsi_mlp_back back = { .rows = &p->product };
    tsi_move *move = NULL;
    p->product.x = (ts_index_select)(tsi_passage_brought(p, x), 0, p->row);
    ts_status status = tsi_mlp_back_begin(&back);
    ts_tensor *dy_held = tsi_passage_brought(p, dy); /* which ends it, whatever happened */
    TSI_TRY(status);
    back.dy = (ts_index_select)(dy_held, 0, p->row);
    TSI_TRY(tsi_mlp_back_rows(&back, d));
    int64_t places = p->group ? p->route.held : p->rows;
    ts_tensor *dx = tsi_passage_sum(p, d[TSI_MLP_DX], p->row, places);
    dx = tsi_passage_return(p, dx, &rows, &move);
    out[TSI_MLP_DX] = tsi_mlp_part(p->io, dx, TSI_MLP_DX, summed, move);
    TSI_TRY(tsi_mlp_back_experts(&back, d));
    ts_shape choices = tsi_array_shape(p->in[TSI_MLP_WEIGHT]->array);
    ts_shape in = tsi_array_shape(p->in[TSI_MLP_IN]->array);
    ts_tensor *dweight = tsi_passage_return_weights(p, d[TSI_MLP_DWEIGHT], &choices);
    out[TSI_MLP_DWEIGHT] = tsi_mlp_part(p->io, dweight, TSI_MLP_DWEIGHT, summed, NULL);
    out[TSI_MLP_DIN] = tsi_mlp_part(p->io, (ts_reshape)(d[TSI_MLP_DIN], in), TSI_MLP_DIN, 0, NULL);
    out[TSI_MLP_DOUT] = tsi_mlp_part(p->io, d[TSI_MLP_DOUT], TSI_MLP_DOUT, 0, NULL);
    return tsi_passage_status(p);
}

static ts_status backward(tsi_passage *p, ts_tensor *dy, uint32_t summed, ts_tensor **out)
{
    tsi_bringing x, grad = { .work = NULL };
    p->product.weight = tsi_passage_bring_weights(p);
    TSI_TRY(tsi_passage_status(p));
    ts_status status = tsi_passage_bring(p, p->in[TSI_MLP_X], true, &x);
    if (status == TS_OK) status = tsi_passage_bring(p, dy, true, &grad);
    if (status == TS_OK) return gradients(p, &x, &grad, summed, out);
    (void)ts_work_wait(x.work); /* nobody reads this rank's rows after it */
    return status;
}

typedef struct way {
    uint32_t axes, summed; /* over which rows move; over which results are pending */
    bool nodes;
} way;

/* The host says in lists which rows go where. */
static ts_status by_lists(const tsi_algorithm_io *io, ts_tensor *const *in, way w, ts_tensor **out)
{
    bool back = io->input_count > TSI_MLP_INPUTS;
    tsi_passage p = { .io = io, .in = in + back };
    ts_status status = tsi_passage_begin(&p, w.axes, w.nodes);
    if (status == TS_OK)
        status = back ? backward(&p, in[0], w.summed, out) : forward(&p, w.summed, out);
    ts_mesh_release(p.self);
    tsi_arena_release(&p.arena);
    return status;
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
        in[i] = tsi_algorithm_whole(in[i], axes);
        status = in[i] ? tsi_tensor_ready(in[i]) : ts_rank_status(io->rank);
    }
    bool here = gathers || !axes; /* all rows that this rank's experts may want */
    uint32_t summed = gathers ? axes : 0;
    if (status == TS_OK && here && tsi_mlp_defers(io->rank->world, io->attributes))
        status = tsi_mlp_whole(io, in, summed, out);
    else if (status == TS_OK)
        status = by_lists(io, in, (way){ here ? 0 : axes, summed, nodes }, out);
    ts_status ended = tsi_algorithm_end(io, scope, out);
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
