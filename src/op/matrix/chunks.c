/* SPDX-License-Identifier: Apache-2.0 */
/* chunks.c - which products run chunk by chunk: what a call says, its rules, and the weighing of
 * both ways from layouts alone (chunks.h). */
#include "op/matrix/chunks.h"

#include <string.h>

#include "base/alloc.h"
#include "base/intmath.h"
#include "op/core/algorithm.h"
#include "op/core/kernel.h"
#include "plan/plan.h"
#include "tensor/scope.h"

const char *const tsi_chunks_names[] = { "auto", "whole", "chunks", NULL };

/* ---- what a call says ------------------------------------------------------------------------ */

const tsi_chunks *tsi_chunks_of(const tsi_op_call *call)
{
    const tsi_chunks_desc *desc = call->op->chunks;
    return desc ? (const tsi_chunks *)(const void *)((const char *)call->attributes + desc->offset)
                : NULL;
}

tsi_chunks tsi_chunks_wanted(const ts_tensor *x)
{
    tsi_chunks chunks = { .scatter = -1 };
    tsi_tensor_state *state = x && x->rank ? tsi_slot_get(x->rank, TSI_SLOT_TENSOR) : NULL;
    if (!state) return chunks;
    const tsi_frame *frame = tsi_frame_top(state);
    chunks.algorithm = frame->product;
    chunks.forbid = frame->product_forbid;
    return chunks;
}

ts_status tsi_chunks_check(const tsi_op_call *call)
{
    const tsi_chunks *c = tsi_chunks_of(call);
    if (!c || c->scatter == -1) return TS_OK;
    int32_t ndim = call->out[0].shape.ndim;
    if (c->scatter >= 0 && c->scatter < ndim && call->op->chunks->rows(call, (int32_t)c->scatter))
        return TS_OK;
    return TSI_FAIL(TS_ERR_ARG,
                    "%s: dim %lld is none along which rows of the result can be computed alone, so "
                    "it cannot be scattered along it",
                    call->op->name, (long long)c->scatter);
}

int64_t tsi_chunks_back(const ts_tensor *input, const ts_tensor *dy)
{
    if (!input || !dy || input->mesh != dy->mesh) return -1;
    const ts_sharding *x = input->layout->sharding, *y = dy->layout->sharding;
    int32_t last = input->layout->shape.ndim - 1;
    for (int32_t k = 0; k < x->ndim; k++) {
        bool rows = x->place[k].kind == TS_PLACE_SHARD && x->place[k].dim < last;
        bool columns = tsi_placement_cuts(&y->place[k]) && y->place[k].dim_last == last;
        if (rows && columns && x->mesh->size[k] > 1) return x->place[k].dim;
    }
    return -1;
}

/* ---- rules ----------------------------------------------------------------------------------- */

/* A sum over cut factors, not one that an input brought along. */
static bool sums_here(const tsi_op_call *call, const tsi_role *row)
{
    int32_t cut = 0;
    for (int32_t i = 0; i < call->input_count; i++) {
        if (tsi_role_is_p(row[i])) return false;
        cut += tsi_role_is_s(row[i]);
    }
    return cut > 1 && row[call->input_count] == TSI_P(TS_REDUCE_SUM);
}

void tsi_chunks_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const tsi_chunks *c = tsi_chunks_of(call);
    if (!c || c->scatter < 0) return;
    int32_t width = rules->input_count + rules->output_count;
    for (int32_t r = 1; r < rules->count; r++) {
        tsi_role *row = rules->role + (size_t)r * (size_t)width;
        if (!sums_here(call, row)) continue;
        row[call->input_count] = TSI_S(c->scatter);
        rules->algorithm[r] = TSI_CHUNKS_WHOLE;
        rules->flags[r] |= TSI_RULE_PLAIN;
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

ts_status tsi_chunk_rows_of(const ts_layout *layout, const int64_t *coord, int32_t axis,
                            int32_t dim, tsi_chunk_rows *out)
{
    int64_t there[TS_NDIM_MAX];
    tsi_arena arena = { 0 };
    for (int64_t m = 0; m < layout->sharding->mesh->size[axis]; m++) {
        tsi_span_list list;
        for (int32_t k = 0; k < layout->sharding->ndim; k++)
            there[k] = k == axis ? m : coord[k];
        if (!tsi_layout_region_dim(layout, there, dim, &arena, &list))
            return tsi_fail_memory("rows of a chunk", sizeof list);
        out[m] = (tsi_chunk_rows){ 0, list.total };
        if (list.total > 0) out[m].begin = tsi_span_list_at(&list, 0);
        tsi_arena_reset(&arena);
    }
    tsi_arena_release(&arena);
    return TS_OK;
}

/* The axis that alone cuts this dim of a layout, in plain chunks; -1: there is no such one. */
static int32_t axis_of(const ts_layout *layout, int32_t dim)
{
    const ts_sharding *s = layout->sharding;
    int32_t found = -1;
    for (int32_t k = 0; k < s->ndim; k++) {
        const ts_placement *p = &s->place[k];
        if (!tsi_placement_cuts(p) || p->dim > dim || p->dim_last < dim) continue;
        if (found >= 0 || p->kind != TS_PLACE_SHARD || p->align > 1 || p->dim != p->dim_last)
            return -1;
        found = k;
    }
    return found;
}

/* The least elements of any input that all rows need, on the rank with fewest. */
static int64_t least_weight(const tsi_op_call *call, const ts_layout *const *in, uint64_t rows)
{
    int64_t least = INT64_MAX, last[TS_NDIM_MAX];
    for (int32_t i = 0; i < call->input_count; i++) {
        if (rows >> i & 1 || !in[i] || call->in[i].shape.ndim < 2) continue;
        const tsi_mesh_desc *mesh = in[i]->sharding->mesh;
        for (int32_t k = 0; k < mesh->ndim; k++)
            last[k] = mesh->size[k] - 1;
        ts_shape local = ts_layout_local(in[i], last);
        least = tsi_min_i64(least, ts_shape_count(&local));
    }
    return least == INT64_MAX ? 0 : least;
}

/* Do pieces that are cut where the rows of members begin have the bits of the whole? `cut` has the
 * rows cut along dim, `in` is what the kernel sees. */
static bool keeps_bits(const tsi_op_call *call, const ts_layout *const *in, uint64_t rows,
                       const ts_layout *cut, int32_t axis, int32_t dim)
{
    const ts_shape *shape = &cut->shape;
    double each = 2.0 * (double)least_weight(call, in, rows);
    const tsi_mesh_desc *mesh = cut->sharding->mesh;
    int64_t inner = 1, outer = 1, n = mesh->size[axis], extent[TS_NDIM_MAX];
    if (n < 2 || shape->extent[dim] == 0) return false;
    memcpy(extent, shape->extent, sizeof extent);
    for (int32_t k = 0; k < mesh->ndim; k++) { /* rows that other axes cut are there in part */
        const ts_placement *place = &cut->sharding->place[k];
        if (k == axis || mesh->size[k] == 1 || !tsi_placement_cuts(place)) continue;
        if (place->kind != TS_PLACE_SHARD || extent[place->dim] % mesh->size[k]) return false;
        extent[place->dim] /= mesh->size[k];
    }
    for (int32_t d = 0; d + 1 < shape->ndim; d++) {
        if (d > dim) inner *= extent[d];
        if (d < dim) outer *= extent[d];
    }
    int64_t step = tsi_ceil_div(shape->extent[dim], n), rest = shape->extent[dim] % step;
    int64_t short_one = rest ? rest : step; /* of those that have any */
    if (step * inner % TSI_CHUNK_UNIT) return false;
    if (outer > 1 && shape->extent[dim] * inner % TSI_CHUNK_UNIT) return false;
    return (double)(short_one * inner) * each >= TSI_CHUNK_LEAST;
}

/* ---- weighing -------------------------------------------------------------------------------- */

typedef struct weighing {
    const tsi_op_call *call;
    tsi_mesh_desc *mesh;
    const ts_layout *from, *to; /* the move that the product hides */
    int32_t dtype, axis;
    bool possible; /* to cut it */
} weighing;

enum { CALL_US = 5 }; /* of a further call of a kernel */

static ts_status weigh(const weighing *w, tsi_algorithm_choice *out)
{
    ts_plan *move = NULL;
    TSI_TRY(ts_plan_cached(w->from, w->to, (ts_dtype)w->dtype, NULL, &move));
    ts_plan_summary s = TS_INIT(ts_plan_summary);
    ts_plan_summarise(move, &s);
    ts_plan_release(move);
    ts_topology topology = TS_INIT(ts_topology);
    TSI_TRY(ts_topology_of(w->mesh->world, &topology));
    double rate = tsi_topology_flops(&topology, (ts_dtype)w->dtype);
    double n = (double)w->mesh->size[w->axis], ranks = (double)w->mesh->count;
    double hidden = w->call->op->flops(w->call) / ranks / rate * (n - 1) / n;
    *out = (tsi_algorithm_choice){ .count = 2 };
    out->candidate[0] = (tsi_algorithm_candidate){ .algorithm = TSI_CHUNKS_WHOLE,
                                                   .steps = s.step_count,
                                                   .bytes = s.bytes_received,
                                                   .memory = s.peak_bytes,
                                                   .us = s.time_us,
                                                   .balance = 1 };
    out->candidate[1] = out->candidate[0];
    tsi_algorithm_candidate *c = &out->candidate[1];
    c->algorithm = w->possible ? TSI_CHUNKS_CHUNKS : 0;
    c->steps = (int32_t)n - 1;
    c->us = CALL_US * (n - 1) + (s.time_us > hidden ? s.time_us - hidden : 0);
    return TS_OK;
}

/* The cheapest that is possible and allowed; what is asked for where it is possible. */
static ts_status take_best(const tsi_op_call *call, tsi_algorithm_choice *choice)
{
    const tsi_chunks *c = tsi_chunks_of(call);
    const tsi_algorithm_candidate *whole = &choice->candidate[0], *chunks = &choice->candidate[1];
    bool can_whole = !(c->forbid >> TSI_CHUNKS_WHOLE & 1);
    bool can_chunks = chunks->algorithm && !(c->forbid >> TSI_CHUNKS_CHUNKS & 1);
    if (!can_whole && !can_chunks)
        return TSI_FAIL(TS_ERR_ARG, "%s: the scope forbids every algorithm that is possible here",
                        call->op->name);
    bool wants = c->algorithm ? c->algorithm == TSI_CHUNKS_CHUNKS : chunks->us < whole->us;
    choice->chosen = can_chunks && (wants || !can_whole);
    return TS_OK;
}

/* Do products of the rank's device on parts of blocks have the bits of the whole? */
static bool device_can(tsi_mesh_desc *mesh, int32_t dtype)
{
    return tsi_kernel_rows_alone(tsi_world_device(mesh->world), (ts_dtype)dtype);
}

/* ---- a gather before the product ------------------------------------------------------------- */

/* The one axis on which rows are gathered, and nothing else changes, with the dim; -1: there is
 * none. */
static int32_t gathers(const ts_layout *have, const ts_layout *want, int32_t *dim)
{
    const tsi_mesh_desc *mesh = have->sharding->mesh;
    int32_t axis = -1;
    if (want->sharding->mesh != mesh) return -1;
    for (int32_t k = 0; k < mesh->ndim; k++) {
        const ts_placement *a = &have->sharding->place[k], *b = &want->sharding->place[k];
        if (tsi_placement_equal(a, b, mesh->size[k])) continue;
        bool plain = a->kind == TS_PLACE_SHARD && b->kind == TS_PLACE_REPLICATE;
        if (!plain || axis >= 0) return -1;
        axis = k;
        *dim = a->dim;
    }
    return axis >= 0 && axis_of(have, *dim) == axis ? axis : -1;
}

/* An explicit gather is as good as the call's own: what is here need not wait for the rest. */
bool tsi_chunks_arrive(const tsi_op_call *call, const ts_layout *const *in, const ts_layout *from,
                       int32_t *dim)
{
    const tsi_chunks *c = tsi_chunks_of(call);
    bool refused = c->algorithm == TSI_CHUNKS_WHOLE || c->forbid >> TSI_CHUNKS_CHUNKS & 1;
    int32_t axis = refused ? -1 : gathers(from, in[0], dim);
    return axis >= 0 && device_can(from->sharding->mesh, call->out[0].dtype) &&
           call->op->chunks->rows(call, *dim) == 1 && keeps_bits(call, in, 1, from, axis, *dim);
}

ts_status tsi_chunks_fuse(tsi_fusion *f, tsi_algorithm_choice *out)
{
    int32_t dim = 0, axis = -1;
    bool alone = f->in[0] && f->wanted[0];
    for (int32_t i = 1; i < f->call->input_count; i++)
        alone = alone && !f->wanted[i];
    if (alone) axis = gathers(f->in[0], f->wanted[0], &dim);
    if (axis < 0 || f->call->op->chunks->rows(f->call, dim) != 1) return TS_OK;
    weighing w = { .call = f->call,
                   .mesh = f->mesh,
                   .from = f->in[0],
                   .to = f->wanted[0],
                   .dtype = f->call->in[0].dtype,
                   .axis = axis };
    w.possible = device_can(f->mesh, w.dtype) && keeps_bits(f->call, f->in, 1, f->in[0], axis, dim);
    f->axes = 1u << axis;
    TSI_TRY(weigh(&w, out));
    return take_best(f->call, out);
}

/* ---- a sum after the product ----------------------------------------------------------------- */

/* The result as the product leaves it: terms on the axes that sum. */
static const ts_layout *pending(const ts_layout *out, uint32_t axes)
{
    ts_placement place[TS_NDIM_MAX];
    for (int32_t k = 0; k < out->sharding->ndim; k++) {
        place[k] = out->sharding->place[k];
        if (axes >> k & 1)
            place[k] = (ts_placement){
                .kind = TS_PLACE_PARTIAL, .reduce = TS_REDUCE_SUM, .factor = 1, .align = 1
            };
    }
    const ts_sharding *s = tsi_sharding_intern(out->sharding->mesh, place);
    const ts_layout *layout = s ? tsi_layout_intern(s, &out->shape) : NULL;
    ts_sharding_release(s);
    return layout;
}

ts_status tsi_chunks_pick(const tsi_algorithm_request *request, tsi_algorithm_choice *out)
{
    const tsi_op_call *call = request->call;
    const ts_layout *to = request->out[0], *from = pending(to, request->axes);
    int32_t dim = (int32_t)tsi_chunks_of(call)->scatter, axis = axis_of(to, dim);
    if (!from) return TS_ERR_MEMORY;
    uint64_t rows = call->op->chunks->rows(call, dim);
    weighing w = { .call = call,
                   .mesh = request->mesh,
                   .from = from,
                   .to = to,
                   .dtype = call->out[0].dtype,
                   .axis = axis >= 0 ? axis : 0 };
    w.possible = axis >= 0 && request->axes == 1u << axis && rows &&
                 device_can(request->mesh, w.dtype) &&
                 keeps_bits(call, request->in, rows, to, axis, dim);
    ts_status status = weigh(&w, out);
    ts_layout_release(from);
    return status == TS_OK ? take_best(call, out) : status;
}

ts_status tsi_chunks_run_whole(const tsi_algorithm_io *io)
{
    const ts_layout *layout = pending(io->out_layout[0], io->axes);
    if (!layout) return ts_rank_status(io->rank);
    tsi_array *block = tsi_tensor_block(io->mesh, layout, (ts_dtype)io->call->out[0].dtype);
    ts_status status = block ? tsi_chunk_product(io, block) : ts_rank_status(io->rank);
    ts_scope scope = tsi_algorithm_begin(io);
    ts_tensor *sum = NULL;
    if (status == TS_OK)
        sum = tsi_tensor_make(io->mesh, layout, (ts_dtype)io->call->out[0].dtype, block, NULL);
    else
        tsi_array_release(block);
    ts_layout_release(layout);
    if (sum) /* it moves before the call is told */
        tsi_tell(io->rank, TSI_NEWS_FILL,
                 &(tsi_filled){ sum, io->op->name, io->in, io->input_count });
    ts_status ended = tsi_algorithm_end(io, scope, &sum);
    return status == TS_OK ? ended : status;
}

/* The call says what it wants of its result, so the search has nothing to weigh it against; both
 * algorithms are weighed, with layouts, by tsi_chunks_pick. */
static int64_t scatter_bytes(const tsi_op_call *call, int64_t n)
{
    (void)call, (void)n;
    return 0;
}

const tsi_algorithm tsi_chunks_algorithms[] = { { "whole", tsi_chunks_run_whole, scatter_bytes },
                                                { "chunks", tsi_chunks_run, scatter_bytes },
                                                { 0 } };
