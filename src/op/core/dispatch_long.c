/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch_long.c - everything an operator call may need: moves of its inputs, an algorithm,
 * several results and where they lie, memory that is given, ranks outside of its mesh.
 *
 * Calls whose plan is short (dispatch.c) never come here. */
#include <string.h>

#include "base/keep.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/comm.h"
#include "op/core/dispatch.h"
#include "tensor/move.h"
#include "tensor/scope.h"

/* ---- implicit moves -------------------------------------------------------------------------- */

static int32_t worst_input(const tsi_op_plan *plan)
{
    int32_t worst = 0;
    for (int32_t i = 1; i < plan->input_count; i++)
        if (plan->move_bytes[i] > plan->move_bytes[worst]) worst = i;
    return worst;
}

/* The policy of the innermost scope, before anything is communicated. */
TSI_COLD ts_status tsi_op_policy(ts_rank *rank, const tsi_op_plan *plan)
{
    const tsi_frame *frame = tsi_frame_top(tsi_slot_get(rank, TSI_SLOT_TENSOR));
    int64_t total = tsi_op_plan_bytes(plan);
    if (frame->moves == TS_MOVES_ALLOW) return TS_OK;
    if (frame->moves == TS_MOVES_WARN && total <= frame->implicit_bytes_max) return TS_OK;
    int32_t i = worst_input(plan);
    char bytes[32], wanted[256] = "";
    tsi_text_bytes(bytes, sizeof bytes, total);
    if (plan->wanted[i]) ts_sharding_text(plan->wanted[i]->sharding, wanted, sizeof wanted);
    if (frame->moves == TS_MOVES_WARN) {
        tsi_log(TSI_LOG_WARN, "%s at %s: moves %s implicitly: input %d is %s, used as (%s)",
                plan->op->name, rank->where, bytes, i, plan->in[i]->text, wanted);
        return TS_OK;
    }
    if (!plan->wanted[i])
        return TSI_FAIL(TS_ERR_POLICY,
                        "%s at %s: would move %s by its own algorithm, and implicit "
                        "moves are forbidden here",
                        plan->op->name, rank->where, bytes);
    return TSI_FAIL(
        TS_ERR_POLICY,
        "%s at %s: input %d is %s and would be moved to (%s), %s, but implicit moves are "
        "forbidden here; say it: ts_redistribute(x, \"%s\")",
        plan->op->name, rank->where, i, plan->in[i]->text, wanted, bytes, wanted);
}

static ts_tensor *move_to(const tsi_op_plan *plan, ts_tensor *t, const ts_layout *to)
{
    if (tsi_tensor_ready(t) != TS_OK) return NULL;
    tsi_source from = { t->mesh, t->layout, t->array, (ts_dtype)t->dtype };
    tsi_move *move = NULL;
    ts_move_options options = TS_INIT(ts_move_options);
    options.name = plan->op->name;
    tsi_array *array = tsi_move_begin(&from, plan->mesh, to, &options, &move);
    ts_tensor *y = array ? tsi_tensor_make(plan->mesh, to, (ts_dtype)t->dtype, array, move) : NULL;
    tsi_tensor_moved(t, y, true);
    return y;
}

/* Inputs as the kernel wants them: new tensors where something moved. */
static ts_status move_inputs(ts_rank *rank, const tsi_op_plan *plan, const tsi_op_args *args,
                             ts_tensor **used)
{
    for (int32_t i = 0; i < plan->input_count; i++) {
        used[i] = args->in[i];
        if (!plan->wanted[i]) continue;
        ts_tensor *whole = plan->via[i] ? move_to(plan, args->in[i], plan->via[i]) : NULL;
        if (plan->via[i] && !whole) return ts_rank_status(rank);
        used[i] = move_to(plan, whole ? whole : args->in[i], plan->wanted[i]);
        ts_tensor_drop(whole);
        if (!used[i]) return ts_rank_status(rank);
    }
    return TS_OK;
}

static void drop_moved(const tsi_op_plan *plan, const tsi_op_args *args, ts_tensor **used)
{
    for (int32_t i = 0; i < plan->input_count; i++)
        if (used[i] && used[i] != args->in[i]) ts_tensor_drop(used[i]);
}

/* ---- inputs that lie over what is written ---------------------------------------------------- */

static bool same_places(const tsi_array *a, const tsi_array *b)
{
    bool same = a->dtype == b->dtype && a->ndim == b->ndim;
    for (int32_t d = 0; same && d < a->ndim; d++)
        same = a->extent[d] == b->extent[d] && (a->stride[d] == b->stride[d] || a->extent[d] <= 1);
    return same && tsi_array_data(a) == tsi_array_data(b);
}

/* May an element be written before it is read? An elementwise operator reads the very place that
 * it writes; others, and other views of the same memory, in any order. */
static bool lies_over(const tsi_op_plan *plan, const tsi_array *input, const tsi_array *target)
{
    if (!tsi_array_meets(input, target)) return false;
    bool elementwise = plan->op->dims && strcmp(plan->op->dims, "*") == 0;
    return !elementwise || !same_places(input, target);
}

ts_tensor *tsi_op_copy_of(ts_tensor *t)
{
    ts_shape shape = tsi_array_shape(t->array);
    tsi_array *copy = tsi_array_create(t->rank, (ts_dtype)t->dtype, &shape);
    if (copy && tsi_array_copy(copy, t->array) != TS_OK) {
        tsi_array_release(copy);
        return NULL;
    }
    return copy ? tsi_tensor_make(t->mesh, t->layout, (ts_dtype)t->dtype, copy, NULL) : NULL;
}

/* A form in place gives what the plain one gives: what it would overwrite is copied first. */
static ts_status copy_overlapping(const tsi_op_plan *plan, ts_tensor **used)
{
    for (int32_t i = 1; i < plan->input_count; i++) {
        if (!used[i] || !lies_over(plan, used[i]->array, used[0]->array)) continue;
        used[i] = tsi_op_copy_of(used[i]);
        if (!used[i]) return ts_rank_status(used[0]->rank);
    }
    return TS_OK;
}

/* ---- the local part -------------------------------------------------------------------------- */

TSI_COLD ts_status tsi_op_user_failed(const tsi_op_plan *plan, ts_rank *rank, ts_status status)
{
    uint32_t differ = 0;
    for (int32_t i = 0; i < plan->input_count; i++) {
        const ts_layout *layout = plan->wanted[i] ? plan->wanted[i] : plan->in[i];
        if (layout) differ |= layout->axes_cut | layout->axes_partial;
    }
    ts_error *error = &rank->error.error;
    if (!differ || error->blast != TS_BLAST_AGREED) return status;
    error->blast = TS_BLAST_LOCAL;
    if (rank->on_error) rank->on_error(rank, error);
    return status;
}

/* Does a cut become terms (an index of a cut dim)? They are no part of the input, on no rank: one
 * that holds the whole dim alone would see terms that are written into it in the input. */
static bool makes_terms(const tsi_op_plan *plan, const ts_layout *in)
{
    uint32_t made = plan->out[0]->axes_partial & ~in->axes_partial;
    for (int32_t k = 0; made >> k; k++)
        if (made >> k & 1 && plan->mesh->desc->size[k] > 1) return true;
    return false;
}

tsi_array *tsi_op_view_of(const tsi_op_plan *plan, ts_tensor *const *used)
{
    if (makes_terms(plan, used[0]->layout)) return NULL;
    tsi_op_call call = { plan->op, plan->attributes,  plan->in_meta,
                         NULL,     plan->input_count, plan->output_count };
    ts_meta out_meta = plan->out_meta[0];
    call.out = &out_meta;
    tsi_block in = tsi_array_block(used[0]->array), out = { .dtype = in.dtype };
    int64_t offset = 0;
    const ts_shape *local = &plan->out_local[0];
    out.ndim = local->ndim;
    memcpy(out.extent, local->extent, sizeof out.extent);
    if (!plan->op->view(&call, &in, &out, &offset)) return NULL;
    return tsi_array_view(used[0]->array, (ts_dtype)plan->out_meta[0].dtype, local, out.stride,
                          used[0]->array->offset + offset);
}

/* The order of dims of `like` in memory, for a block of the given extents; false: it has none. */
static bool order_of(const tsi_array *like, const ts_shape *shape, int32_t *order)
{
    bool fits = like->ndim == shape->ndim;
    for (int32_t d = 0; fits && d < shape->ndim; d++) {
        fits = like->extent[d] == shape->extent[d] && (like->stride[d] > 0 || like->extent[d] <= 1);
        int32_t at = d;
        for (; at > 0 && like->stride[order[at - 1]] < like->stride[d]; at--)
            order[at] = order[at - 1];
        order[at] = d;
    }
    return fits;
}

/* A block without gaps, its dims in this order. */
static void lay_out(tsi_array *array, const int32_t *order)
{
    int64_t stride = 1, step = 1;
    for (int32_t k = array->ndim - 1; k >= 0; k--) {
        array->stride[order[k]] = stride;
        stride *= array->extent[order[k]];
    }
    for (int32_t d = array->ndim - 1; d >= 0; step *= array->extent[d--])
        if (array->extent[d] != 1 && array->stride[d] != step) array->dense = 0;
}

/* Output o has the order of an input, which is in `order`. */
static bool lies_like(const tsi_op_plan *plan, ts_tensor *const *used, int32_t o, int32_t *order)
{
    int32_t like = plan->op->lies_like[o];
    return like && used[like - 1] && order_of(used[like - 1]->array, &plan->out_local[o], order);
}

/* A new block for output o, in memory as the operator wants it. NULL: recorded. */
static tsi_array *make_result(ts_rank *rank, const tsi_op_plan *plan, ts_tensor *const *used,
                              int32_t o)
{
    int32_t order[TS_NDIM_MAX];
    tsi_array *result =
        tsi_array_create(rank, (ts_dtype)plan->out_meta[o].dtype, &plan->out_local[o]);
    if (result && lies_like(plan, used, o, order)) lay_out(result, order);
    return result;
}

/* The local shape of all outputs as one block along dim `dim`; false: they cannot be one. */
static bool shape_beside(const tsi_op_plan *plan, int32_t dim, ts_shape *out)
{
    *out = plan->out_local[0];
    bool alike = dim >= 0 && dim < out->ndim && ts_shape_count(out) > 0;
    for (int32_t o = 1; alike && o < plan->output_count; o++) {
        const ts_shape *next = &plan->out_local[o];
        alike = plan->out_meta[o].dtype == plan->out_meta[0].dtype && next->ndim == out->ndim &&
                ts_shape_count(next) > 0;
        for (int32_t d = 0; alike && d < out->ndim; d++)
            alike = d == dim || next->extent[d] == out->extent[d];
        out->extent[dim] += next->extent[dim];
    }
    return alike;
}

enum { PART_ALIGN = 16 }; /* what fast loops want of a row */

/* Blocks for all outputs as parts of one, where the operator asks for it and they can be. */
static ts_status make_beside(ts_rank *rank, const tsi_op_plan *plan, ts_tensor *const *used,
                             tsi_array **result)
{
    int32_t order[TS_NDIM_MAX], beside = plan->op->beside;
    int32_t dim = beside > 0 ? beside - 1 : plan->out_local[0].ndim + beside;
    ts_dtype dtype = (ts_dtype)plan->out_meta[0].dtype;
    ts_shape shape;
    for (int32_t o = 0; o < plan->output_count; o++)
        if (result[o]) return TS_OK;
    if (!shape_beside(plan, dim, &shape)) return TS_OK;
    tsi_array *whole = tsi_array_create(rank, dtype, &shape);
    if (!whole) return ts_rank_status(rank);
    if (lies_like(plan, used, 0, order)) lay_out(whole, order);
    int64_t at = 0, part = whole->stride[dim] * (int64_t)ts_dtype_size(dtype);
    bool aligned = true;
    for (int32_t o = 0; o < plan->output_count; o++)
        aligned = aligned && plan->out_local[o].extent[dim] * part % PART_ALIGN == 0;
    for (int32_t o = 0; aligned && o < plan->output_count; o++) {
        result[o] = tsi_array_part(whole, o, &plan->out_local[o], whole->stride, at);
        at += plan->out_local[o].extent[dim] * whole->stride[dim];
        if (!result[o]) break; /* recorded; the caller lets the others go */
    }
    tsi_array_release(whole);
    return ts_rank_status(rank);
}

static ts_status run_local(ts_rank *rank, const tsi_op_plan *plan, ts_tensor *const *used,
                           uint64_t stream, tsi_array **result)
{
    const tsi_rank_device *mine = tsi_rank_device_of(rank);
    if (!mine) return ts_rank_status(rank);
    tsi_operand operand[TSI_INPUT_MAX + TSI_OUTPUT_MAX];
    tsi_operand *in = operand, *out = operand + plan->input_count;
    for (int32_t i = 0; i < plan->input_count; i++) {
        in[i] = (tsi_operand){ .global = &plan->in_meta[i], .region = plan->in_region[i] };
        if (!used[i]) continue;
        in[i].block = tsi_array_block(used[i]->array);
        in[i].storage = used[i]->array->storage;
    }
    if (plan->op->beside && !plan->in_place) TSI_TRY(make_beside(rank, plan, used, result));
    for (int32_t o = 0; o < plan->output_count; o++) {
        if (plan->in_place && o == 0)
            result[0] = tsi_array_retain(used[0]->array);
        else if (!result[o]) /* no memory to write into was given */
            result[o] = make_result(rank, plan, used, o);
        if (!result[o]) return ts_rank_status(rank);
        out[o] = (tsi_operand){ tsi_array_block(result[o]), &plan->out_meta[o], plan->out_region[o],
                                result[o]->storage };
    }
    tsi_kernel_io io = {
        .op = plan->op,
        .attributes = plan->attributes,
        .in = in,
        .out = out,
        .input_count = plan->input_count,
        .output_count = plan->output_count,
        .rank = rank,
        .device = mine->device,
        .queue = mine->queue,
        .seed = rank->world->seed,
        .stream = stream,
        .in_place = plan->in_place,
    };
    int32_t dim = 0;
    if (tsi_op_arrives(plan, used[0], &dim))
        return tsi_op_run_arriving(plan, &io, used, result, dim);
    if (used[0]) TSI_TRY(tsi_tensor_ready(used[0]));
    return tsi_op_run_kernel(plan, &io);
}

ts_status tsi_op_run_algorithm(ts_rank *rank, const tsi_op_plan *plan, ts_tensor *const *used,
                               ts_tensor **out)
{
    TSI_ASSERT(plan->op->algorithm && plan->algorithm > 0);
    TSI_TRY(tsi_comm_now(rank, plan->op->name));
    ts_meta out_meta[TSI_OUTPUT_MAX];
    memcpy(out_meta, plan->out_meta, (size_t)plan->output_count * sizeof *out_meta);
    tsi_op_call call = { plan->op, plan->attributes,  plan->in_meta,
                         out_meta, plan->input_count, plan->output_count };
    tsi_algorithm_io io = {
        .op = plan->op,
        .attributes = plan->attributes,
        .call = &call,
        .rank = rank,
        .mesh = plan->mesh,
        .group = tsi_mesh_axes_group(plan->mesh, plan->algorithm_axes),
        .axes = plan->algorithm_axes,
        .input_count = plan->input_count,
        .output_count = plan->output_count,
        .in = used,
        .out_layout = plan->out,
        .out = out,
    };
    if (!io.group) return ts_rank_status(rank);
    tsi_op_state *state = tsi_op_state_of(rank);
    int64_t stated = state->implicit_bytes;
    tsi_tell(rank, TSI_NEWS_MOVING, NULL);
    ts_status status = plan->op->algorithm[plan->algorithm - 1].run(&io);
    state->implicit_bytes = stated; /* what its own calls move is in what it stated */
    return status;
}

/* An output that is a tensor already has the result's memory. */
static ts_status wrap_results(const tsi_op_plan *plan, const tsi_op_args *args, tsi_array **result,
                              ts_tensor **out)
{
    if (plan->in_place) out[0] = args->in[0];
    for (int32_t o = 0; o < plan->output_count; o++) {
        if (out[o]) {
            tsi_array_release(result[o]);
            tsi_array_wrote(out[o]->array);
            continue;
        }
        out[o] = tsi_tensor_make(plan->mesh, plan->out[o], (ts_dtype)plan->out_meta[o].dtype,
                                 result[o], NULL);
        if (out[o]) continue;
        while (++o < plan->output_count) /* result[o] was taken */
            tsi_array_release(result[o]);
        return ts_rank_status(plan->mesh->rank);
    }
    return TS_OK;
}

/* A rank outside the mesh: absent results, nothing else. */
static ts_status run_outside(const tsi_op_plan *plan, const tsi_op_args *args, ts_tensor **out)
{
    tsi_array *result[TSI_OUTPUT_MAX] = { NULL };
    for (int32_t o = 0; o < plan->output_count; o++) {
        if (plan->in_place && o == 0)
            result[0] = tsi_array_retain(args->in[0]->array);
        else
            result[o] =
                tsi_tensor_block(plan->mesh, plan->out[o], (ts_dtype)plan->out_meta[o].dtype);
        if (!result[o]) return ts_rank_status(plan->mesh->rank);
    }
    return wrap_results(plan, args, result, out);
}

/* Outputs that are there are written into: of plans without algorithm and view. */
static ts_status run_inside(ts_rank *rank, tsi_op_plan *plan, const tsi_op_args *args,
                            uint64_t stream, ts_tensor **out)
{
    ts_tensor *used[TSI_INPUT_MAX] = { NULL };
    tsi_array *result[TSI_OUTPUT_MAX] = { NULL };
    ts_status status = move_inputs(rank, plan, args, used);
    for (int32_t o = 0; status == TS_OK && o < plan->output_count; o++)
        if (out[o]) result[o] = tsi_array_retain(out[o]->array);
    int32_t dim = 0; /* the first input may still be on its way: run_local looks for itself */
    bool waits = plan->input_count > 0 && !tsi_op_arrives(plan, used[0], &dim);
    for (int32_t i = waits ? 0 : 1; status == TS_OK && i < plan->input_count; i++)
        if (used[i]) status = tsi_tensor_ready(used[i]);
    if (status == TS_OK && plan->in_place) status = copy_overlapping(plan, used);
    if (status == TS_OK && plan->algorithm > 0) {
        status = tsi_keeps(rank) ? tsi_op_keep_algorithm(rank, plan, used, out)
                                 : tsi_op_run_algorithm(rank, plan, used, out);
    } else if (status == TS_OK) {
        bool views = plan->op->view && !plan->in_place && !out[0];
        if (views) result[0] = tsi_op_view_of(plan, used);
        if (!views || !result[0]) status = run_local(rank, plan, used, stream, result);
        if (status == TS_OK)
            status = wrap_results(plan, args, result, out);
        else
            for (int32_t o = 0; o < plan->output_count; o++)
                tsi_array_release(result[o]);
    }
    drop_moved(plan, args, used);
    return status;
}

/* ---- all of it ------------------------------------------------------------------------------- */

ts_status tsi_op_run_long(ts_rank *rank, tsi_op_state *state, tsi_op_plan *plan,
                          const tsi_op_args *args, uint64_t stream, ts_tensor **out)
{
    if (plan->in_place) TSI_TRY(tsi_tensor_writable(args->in[0], "%s_: input 0", args->op->name));
    if (TSI_UNLIKELY(args->op->flags & TSI_OP_RANDOM && plan->algorithm > 0 && tsi_keeps(rank)))
        return TSI_FAIL(TS_ERR_STATE,
                        "step: %s draws random numbers while it communicates, which a step that "
                        "runs again cannot yet",
                        args->op->name);
    if (tsi_op_plan_bytes(plan) > 0) {
        TSI_TRY(tsi_op_policy(rank, plan));
        state->implicit_bytes = tsi_add_most(state->implicit_bytes, tsi_op_plan_bytes(plan));
    }
    tsi_event event = {
        .kind = TSI_EVENT_OP, .kind_name = args->op->name, .name = rank->label, .where = rank->where
    };
    uint64_t number = tsi_ring_begin(rank->ring, &event);
    plan->busy++;
    ts_status status = plan->mesh->member ? run_inside(rank, plan, args, stream, out)
                                          : run_outside(plan, args, out);
    plan->busy--;
    tsi_ring_end(rank->ring, number, plan->moved_total);
    return status;
}
