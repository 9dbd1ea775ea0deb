/* SPDX-License-Identifier: Apache-2.0 */
/* execute.c - running a plan: local copies, exchanges in rounds, sequences of collectives.
 *
 *   direct       source --exchange--> target                        straight into the final array
 *   terms        source --fold at owners--> target --exchange--> target of the rest
 *   collectives  source --step--> staging --step--> ... --> target  each step is itself a direct
 *                                                                   program, or an all_reduce
 *
 * A blocking move makes its local copies itself, before it meets the others; an asynchronous one
 * sends them to itself with the exchange, so that whoever progresses the exchange makes them. */
#include "tensor/execute.h"

#include <string.h>

#include "base/alloc.h"
#include "comm/comm.h"

enum { CHANNEL_MOVE = 0 };

/* ---- local work ------------------------------------------------------------------------------ */

static void *element_at(const tsi_array *array, int64_t offset)
{
    return (char *)tsi_array_data(array) + (size_t)offset * ts_dtype_size((ts_dtype)array->dtype);
}

static ts_status copy_boxes(const tsi_part *part, const tsi_array *from, const tsi_array *to)
{
    for (int64_t i = 0; i < part->local_count; i++) {
        const tsi_box *box = &part->local[i];
        tsi_block a = { .data = element_at(from, box->offset_a),
                        .dtype = from->dtype,
                        .ndim = box->ndim };
        tsi_block b = { .data = element_at(to, box->offset_b),
                        .dtype = to->dtype,
                        .ndim = box->ndim };
        memcpy(a.extent, box->extent, sizeof a.extent);
        memcpy(b.extent, box->extent, sizeof b.extent);
        memcpy(a.stride, box->stride_a, sizeof a.stride);
        memcpy(b.stride, box->stride_b, sizeof b.stride);
        TSI_TRY(tsi_storage_copy(to->storage, &b, &a));
    }
    return TS_OK;
}

/* The identity of the target's partial placement: this rank contributes nothing. */
static ts_status fill_identity(const ts_layout *target, tsi_array *to)
{
    unsigned char element[16] = { 0 };
    for (int32_t k = 0; k < target->sharding->ndim; k++) {
        const ts_placement *place = &target->sharding->place[k];
        if (place->kind == TS_PLACE_PARTIAL)
            TSI_TRY(tsi_reduce_identity((ts_reduce)place->reduce, (ts_dtype)to->dtype, element));
    }
    return tsi_array_fill(to, element);
}

static void keep(tsi_execution *x, tsi_array *array /* takes */)
{
    TSI_ASSERT(x->hold_count < TSI_EXECUTION_HOLD);
    x->hold[x->hold_count++] = array;
}

void tsi_execution_release(tsi_execution *x)
{
    while (x->hold_count > 0)
        tsi_array_release(x->hold[--x->hold_count]);
}

/* ---- one program ---------------------------------------------------------------------------- */

bool tsi_program_defers(const tsi_program *program)
{
    return program->round_count == 1 && !program->round[0].reduces;
}

ts_status tsi_program_begin(tsi_execution *x, const tsi_program *program, bool deferred)
{
    x->source = x->from;
    if (program->part.fill) TSI_TRY(fill_identity(x->plan->dst, x->to));
    if (program->part.power != 0.0) {
        tsi_array *powers = tsi_powered(x->rank, x->from, program->part.power);
        if (!powers) return ts_rank_status(x->rank);
        tsi_tell(x->rank, TSI_NEWS_STAGE, powers->storage);
        keep(x, powers);
        x->source = powers;
    }
    return deferred ? TS_OK : copy_boxes(&program->part, x->source, x->to);
}

void tsi_round_patch(tsi_exchange_round *round, const tsi_array *source, const tsi_array *to)
{
    for (int64_t i = 0; i < round->send_all; i++)
        round->send[i].data =
            element_at(round->send_from_target[i] ? to : source, round->send_offset[i]);
    for (int64_t i = 0; i < round->recv_all; i++)
        round->recv[i].data = element_at(to, round->recv_offset[i]);
}

static ts_status run_round(tsi_execution *x, tsi_program *program, tsi_exchange_round *round,
                           bool with_local, ts_work **work)
{
    ts_exchange exchange = TS_INIT(ts_exchange);
    ts_comm_options options = TS_INIT(ts_comm_options);
    tsi_round_patch(round, x->source, x->to);
    exchange.dtype = x->to->dtype;
    exchange.device = tsi_array_device(x->to);
    exchange.reduce = round->reduces ? program->part.reduce : 0;
    exchange.avg_count = program->part.avg_count;
    exchange.send = round->send;
    exchange.send_count = with_local ? round->send_all : round->send_count;
    exchange.recv = round->recv;
    exchange.recv_count = with_local ? round->recv_all : round->recv_count;
    options.name = x->name;
    options.channel = CHANNEL_MOVE;
    options.work = work;
    TSI_TRY((ts_group_exchange)(program->group, &exchange, &options));
    return tsi_round_finish(x->rank, program, round, x->to);
}

static ts_status run_program(tsi_execution *x)
{
    tsi_program *program = tsi_program_of(x->rank, x->plan);
    if (!program) return ts_rank_status(x->rank);
    if (!program->member) return TS_OK;
    bool deferred = x->work && tsi_program_defers(program);
    TSI_TRY(tsi_program_begin(x, program, deferred));
    for (int64_t r = 0; r < program->round_count; r++) {
        tsi_exchange_round *round = &program->round[r];
        bool waits = round->reduces && tsi_program_finishes(program);
        bool last = r == program->round_count - 1;
        TSI_TRY(run_round(x, program, round, deferred, last && !waits ? x->work : NULL));
    }
    return TS_OK;
}

/* ---- sequences of collectives --------------------------------------------------------------- */

/* The one kind of reduction on the axes, or NONE where an engine's all_reduce cannot do it alone.
 */
static ts_reduce common_reduce(const ts_layout *from, uint32_t axes)
{
    ts_reduce reduce = TS_REDUCE_NONE;
    for (int32_t k = 0; k < from->sharding->ndim; k++) {
        if (!(axes >> k & 1)) continue;
        const ts_placement *place = &from->sharding->place[k];
        if (place->kind != TS_PLACE_PARTIAL) return TS_REDUCE_NONE;
        if (reduce != TS_REDUCE_NONE && (ts_reduce)place->reduce != reduce) return TS_REDUCE_NONE;
        reduce = (ts_reduce)place->reduce;
    }
    return reduce;
}

/* Axes of several ranks. A group of one combines nothing, so it need not know how. */
static uint32_t axes_shared(const tsi_mesh_desc *mesh, uint32_t axes)
{
    for (int32_t k = 0; k < mesh->ndim; k++)
        if (mesh->size[k] == 1) axes &= ~(1u << k);
    return axes;
}

static ts_status run_all_reduce(const tsi_execution *x, ts_mesh *mesh, uint32_t axes,
                                ts_reduce reduce)
{
    ts_group *group = tsi_mesh_axes_group(mesh, axes);
    if (!group) return ts_rank_status(x->rank);
    ts_array in = TS_INIT(ts_array), out = TS_INIT(ts_array);
    tsi_array_describe(x->from, &in);
    tsi_array_describe(x->to, &out);
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.name = x->name;
    options.channel = CHANNEL_MOVE;
    options.work = x->work;
    return (ts_group_all_reduce)(group, &in, &out, reduce, &options);
}

/* The same elements in the same order, perhaps in another shape. Blocks of steps are dense. */
static ts_status copy_same(tsi_array *to, tsi_array *from)
{
    ts_shape shape = tsi_array_shape(to);
    tsi_array *view = tsi_array_view(from, (ts_dtype)to->dtype, &shape, NULL, from->offset);
    ts_status status = view ? tsi_array_copy(to, view) : TS_ERR_INTERNAL;
    tsi_array_release(view);
    return status;
}

/* The term that a step combines, or NULL. */
static const ts_placement *term_of(const ts_layout *from, uint32_t axes)
{
    for (int32_t k = 0; k < from->sharding->ndim; k++) {
        const ts_placement *place = &from->sharding->place[k];
        bool partial = place->kind == TS_PLACE_PARTIAL || place->kind == TS_PLACE_NORM;
        if (partial && axes >> k & 1) return place;
    }
    return NULL;
}

/* The layout with `term` in the place of replicas outside the axes: blocks are the same. */
static const ts_layout *replicas_apart(const ts_layout *layout, uint32_t axes,
                                       const ts_placement *term)
{
    const ts_sharding *sharding = layout->sharding;
    ts_placement place[TS_NDIM_MAX];
    for (int32_t k = 0; k < sharding->ndim; k++) {
        bool apart = !(axes >> k & 1) && sharding->place[k].kind == TS_PLACE_REPLICATE;
        place[k] = apart ? *term : sharding->place[k];
    }
    sharding = tsi_sharding_intern(sharding->mesh, place);
    layout = sharding ? tsi_layout_intern(sharding, &layout->shape) : NULL;
    ts_sharding_release(sharding);
    return layout;
}

/* The direct plan of one step. It would share a reduction out among replicas, in fewer bytes and
 * one round more; a step is what each group of its axes does for itself. So replicas outside them
 * are, to this plan, terms that stay. */
static ts_status plan_step(const ts_layout *from, const ts_layout *to, uint32_t axes,
                           ts_dtype dtype, ts_plan **plan)
{
    const ts_placement *term = term_of(from, axes);
    ts_plan_options options = TS_INIT(ts_plan_options);
    options.planner = "direct";
    options.forbid = TS_PLAN_NO_HIERARCHICAL;
    if (!term) return ts_plan_cached(from, to, dtype, &options, plan);
    const ts_layout *a = replicas_apart(from, axes, term), *b = replicas_apart(to, axes, term);
    ts_status status = a && b ? ts_plan_cached(a, b, dtype, &options, plan) : TS_ERR_MEMORY;
    ts_layout_release(a);
    ts_layout_release(b);
    return status;
}

/* One step as a program of its own, or as an all_reduce. */
static ts_status run_step(tsi_execution *x, ts_mesh *mesh, const tsi_path_step *step,
                          const ts_layout *from, const ts_layout *to)
{
    uint32_t axes = axes_shared(mesh->desc, step->axes);
    ts_reduce reduce =
        step->kind == TS_STEP_ALL_REDUCE ? common_reduce(from, axes) : TS_REDUCE_NONE;
    if (reduce != TS_REDUCE_NONE) return run_all_reduce(x, mesh, axes, reduce);
    ts_plan *plan = NULL;
    TSI_TRY(plan_step(from, to, axes, (ts_dtype)x->to->dtype, &plan));
    x->plan = plan;
    ts_status status = plan->family == TS_PLAN_NONE ? copy_same(x->to, x->from) : run_program(x);
    ts_plan_release(plan);
    return status;
}

/* Step `index`, from `current` into `next`; on the last step what is in flight goes to x->hold. */
static ts_status run_step_at(tsi_execution *x, ts_mesh *mesh, int32_t index, tsi_array *current,
                             tsi_array **next)
{
    bool last = index == x->plan->step_count - 1;
    const ts_layout *from = NULL, *to = NULL;
    *next = NULL;
    TSI_TRY(tsi_plan_step_layouts(x->plan, index, &from, &to));
    *next = last ? tsi_array_retain(x->to)
                 : tsi_tensor_block_tagged(mesh, to, (ts_dtype)x->to->dtype, TSI_TAG_COMM);
    if (*next && !last) tsi_tell(x->rank, TSI_NEWS_STAGE, (*next)->storage);
    tsi_execution step = { .rank = x->rank,
                           .plan = x->plan,
                           .from = current,
                           .to = *next,
                           .name = x->name,
                           .work = last ? x->work : NULL };
    ts_status status =
        *next ? run_step(&step, mesh, &x->plan->step[index], from, to) : ts_rank_status(x->rank);
    for (int32_t i = 0; last && i < step.hold_count; i++)
        keep(x, tsi_array_retain(step.hold[i]));
    tsi_execution_release(&step);
    ts_layout_release(from);
    ts_layout_release(to);
    return status;
}

static ts_status run_sequence(tsi_execution *x)
{
    ts_mesh *mesh = tsi_mesh_of(x->rank, x->plan->src->sharding->mesh);
    if (!mesh) return ts_rank_status(x->rank);
    if (!mesh->member) return TS_OK;
    TSI_ASSERT(x->plan->step_count > 0); /* else nothing would be written */
    tsi_array *current = tsi_array_retain(x->from);
    ts_status status = TS_OK;
    for (int32_t s = 0; status == TS_OK && s < x->plan->step_count; s++) {
        tsi_array *next = NULL;
        status = run_step_at(x, mesh, s, current, &next);
        bool last = s == x->plan->step_count - 1;
        if (last && current != x->from) keep(x, tsi_array_retain(current));
        tsi_array_release(current);
        current = next;
    }
    tsi_array_release(current);
    return status;
}

ts_status tsi_execute(tsi_execution *execution)
{
    switch ((ts_plan_family)execution->plan->family) {
    case TS_PLAN_NONE:
        return TS_OK;
    case TS_PLAN_LOCAL:
        return run_program(execution);
    case TS_PLAN_DIRECT:
    case TS_PLAN_HIERARCHICAL:
        TSI_TRY(tsi_comm_now(execution->rank, "redistribute"));
        return run_program(execution);
    case TS_PLAN_COLLECTIVES:
        TSI_TRY(tsi_comm_now(execution->rank, "redistribute"));
        return run_sequence(execution);
    }
    return TS_OK;
}
