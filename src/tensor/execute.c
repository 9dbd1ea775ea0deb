/* SPDX-License-Identifier: Apache-2.0 */
/* execute.c - running a plan: local copies, exchanges in rounds, and what partial sources need
 * besides.
 *
 *   direct       source --exchange--> target                        straight into the final array
 *   terms        source --fold at owners--> target --exchange--> target of the rest
 *   collectives  source --step--> staging --step--> ... --> target   each step is itself a direct
 * program, or an all_reduce of the engine
 *
 * INV: the source is only read. Extra memory is the staging of a sequence (at most two blocks at a
 * time) and, for p-norms, one copy of the source; a direct exchange needs none. */
#include "tensor/execute.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "comm/comm.h"

enum { CHANNEL_MOVE = 0 };

/* ---- local work
 * ------------------------------------------------------------------------------------------------------
 */

static void *element_at(const tsi_array *array, int64_t offset)
{
    return (char *)tsi_array_data(array) + (size_t)offset * ts_dtype_size((ts_dtype)array->dtype);
}

static ts_status copy_boxes(const tsi_part *part, const tsi_array *from, const tsi_array *to)
{
    const tsi_device *device = to->storage->device;
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
        TSI_TRY(device->copy(device, &b, &a, NULL));
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

/* ---- p-norms and averages
 * ------------------------------------------------------------------------------------------------
 */

typedef struct finishing {
    double power;   /* not 0: x^power (before, on |x|) or x^(1/power) after */
    int64_t divide; /* > 1: x / divide */
} finishing;

static double finish_real(double x, const finishing *f, bool before)
{
    if (before) return pow(fabs(x), f->power);
    if (f->divide > 1) x /= (double)f->divide;
    return f->power != 0.0 ? pow(x, 1.0 / f->power) : x;
}

/* Applies the function to every element of a block, in runs of its last dim, through doubles (or
 * pairs of them, or int64 where the dtype is whole: averages of integers truncate). */
static ts_status finish_run(const tsi_block *run, const finishing *f, bool before)
{
    enum { CHUNK = 256 };
    double real[2 * CHUNK];
    int64_t whole[CHUNK];
    const tsi_device *cpu = tsi_device_cpu();
    ts_dtype dtype = (ts_dtype)run->dtype;
    bool complex_ = dtype == TS_DTYPE_C64 || dtype == TS_DTYPE_C128;
    bool real_ = dtype == TS_DTYPE_F64 || dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_BF16 ||
                 dtype == TS_DTYPE_F16;
    size_t bytes = ts_dtype_size(dtype);
    for (int64_t done = 0; done < run->extent[0]; done += CHUNK) {
        int64_t n = run->extent[0] - done < CHUNK ? run->extent[0] - done : CHUNK;
        tsi_block part = *run, wide = { .ndim = 1, .extent = { n }, .stride = { 1 } };
        part.extent[0] = n;
        part.data = (char *)run->data + (size_t)(done * run->stride[0]) * bytes;
        wide.dtype = complex_ ? TS_DTYPE_C128 : real_ ? TS_DTYPE_F64 : TS_DTYPE_I64;
        wide.data = real_ || complex_ ? (void *)real : (void *)whole;
        TSI_TRY(cpu->copy(cpu, &wide, &part, NULL));
        for (int64_t i = 0; i < (complex_ ? 2 * n : n); i++) {
            if (complex_)
                real[i] /= (double)f->divide; /* sums and averages alone exist */
            else if (real_)
                real[i] = finish_real(real[i], f, before);
            else
                whole[i] /= f->divide;
        }
        TSI_TRY(cpu->copy(cpu, &part, &wide, NULL));
    }
    return TS_OK;
}

static ts_status finish_block(const tsi_block *block, const finishing *f, bool before)
{
    if (tsi_block_count(block) == 0) return TS_OK;
    int32_t last = block->ndim - 1;
    tsi_block run = { .dtype = block->dtype,
                      .ndim = 1,
                      .extent = { last >= 0 ? block->extent[last] : 1 },
                      .stride = { last >= 0 ? block->stride[last] : 1 } };
    int64_t index[TS_NDIM_MAX] = { 0 };
    size_t bytes = ts_dtype_size((ts_dtype)block->dtype);
    for (;;) {
        int64_t offset = 0;
        for (int32_t d = 0; d < last; d++)
            offset += index[d] * block->stride[d];
        run.data = (char *)block->data + (size_t)offset * bytes;
        TSI_TRY(finish_run(&run, f, before));
        int32_t d = last - 1;
        while (d >= 0 && ++index[d] == block->extent[d])
            index[d--] = 0;
        if (d < 0) return TS_OK;
    }
}

/* Results of a folding round: the blocks that were received without combining into another. */
static ts_status finish_round(const tsi_exchange_round *round, const tsi_array *to,
                              const finishing *f)
{
    for (int64_t i = 0; i < round->recv_count; i++) {
        const ts_part *part = &round->recv[i];
        if (part->combine) continue;
        tsi_block block = { .data = part->data, .dtype = to->dtype, .ndim = part->ndim };
        memcpy(block.extent, part->extent, sizeof block.extent);
        memcpy(block.stride, part->stride, sizeof block.stride);
        TSI_TRY(finish_block(&block, f, false));
    }
    return TS_OK;
}

/* |x|^p of the source, in a block of its own. */
static tsi_array *powered(ts_rank *rank, const tsi_array *from, double power)
{
    ts_shape shape = tsi_array_shape(from);
    tsi_array *copy = tsi_array_create(rank, (ts_dtype)from->dtype, &shape);
    if (!copy) return NULL;
    finishing f = { .power = power, .divide = 1 };
    tsi_block block = tsi_array_block(copy);
    if (tsi_array_copy(copy, from) == TS_OK && finish_block(&block, &f, true) == TS_OK) return copy;
    tsi_array_release(copy);
    return NULL;
}

/* ---- one program
 * -----------------------------------------------------------------------------------------------------------
 */

static void patch(tsi_exchange_round *round, const tsi_array *from, const tsi_array *to)
{
    for (int64_t i = 0; i < round->send_count; i++)
        round->send[i].data =
            element_at(round->send_from_target[i] ? to : from, round->send_offset[i]);
    for (int64_t i = 0; i < round->recv_count; i++)
        round->recv[i].data = element_at(to, round->recv_offset[i]);
}

static ts_status run_rounds(const tsi_execution *x, tsi_program *program, const tsi_array *from)
{
    finishing finish = { program->part.power, program->part.divide };
    bool needs_finish = finish.power != 0.0 || finish.divide > 1;
    if (finish.divide < 1) finish.divide = 1;
    for (int64_t r = 0; r < program->round_count; r++) {
        tsi_exchange_round *round = &program->round[r];
        patch(round, from, x->to);
        ts_exchange exchange = TS_INIT(ts_exchange);
        exchange.dtype = x->to->dtype;
        exchange.reduce = round->reduces ? program->part.reduce : 0;
        exchange.send = round->send;
        exchange.send_count = round->send_count;
        exchange.recv = round->recv;
        exchange.recv_count = round->recv_count;
        ts_comm_options options = TS_INIT(ts_comm_options);
        options.name = x->name;
        options.channel = CHANNEL_MOVE;
        bool last = r == program->round_count - 1;
        if (last && !(round->reduces && needs_finish)) options.work = x->work;
        TSI_TRY((ts_group_exchange)(program->group, &exchange, &options));
        if (round->reduces && needs_finish) TSI_TRY(finish_round(round, x->to, &finish));
    }
    return TS_OK;
}

static ts_status run_program(const tsi_execution *x, tsi_array **hold, int32_t *hold_count)
{
    tsi_program *program = tsi_program_of(x->rank, x->plan);
    if (!program) return ts_rank_status(x->rank);
    if (!program->member) return TS_OK;
    if (program->part.fill) TSI_TRY(fill_identity(x->plan->dst, x->to));
    if (program->part.power == 0.0) {
        TSI_TRY(copy_boxes(&program->part, x->from, x->to));
        return run_rounds(x, program, x->from);
    }
    tsi_array *source = powered(x->rank, x->from, program->part.power);
    if (!source) return ts_rank_status(x->rank);
    hold[(*hold_count)++] = source;
    TSI_TRY(copy_boxes(&program->part, source, x->to));
    return run_rounds(x, program, source);
}

/* ---- sequences of collectives
 * --------------------------------------------------------------------------------------------------
 */

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

static ts_status run_all_reduce(const tsi_execution *x, ts_mesh *mesh, uint32_t axes,
                                ts_reduce reduce, ts_work **work)
{
    ts_group *group = tsi_mesh_axes_group(mesh, axes);
    if (!group) return ts_rank_status(x->rank);
    ts_array in = TS_INIT(ts_array), out = TS_INIT(ts_array);
    tsi_array_describe(x->from, &in);
    tsi_array_describe(x->to, &out);
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.name = x->name;
    options.channel = CHANNEL_MOVE;
    options.work = work;
    return (ts_group_all_reduce)(group, &in, &out, reduce, &options);
}

/* One step as a program of its own, or as an all_reduce. */
static ts_status run_step(const tsi_execution *x, ts_mesh *mesh, const tsi_step *step,
                          const ts_layout *from, const ts_layout *to, tsi_array **hold,
                          int32_t *hold_count)
{
    ts_reduce reduce =
        step->kind == TS_STEP_ALL_REDUCE ? common_reduce(from, step->axes) : TS_REDUCE_NONE;
    if (reduce != TS_REDUCE_NONE) return run_all_reduce(x, mesh, step->axes, reduce, x->work);
    ts_plan_options options = TS_INIT(ts_plan_options);
    options.planner = "direct";
    options.forbid = TS_PLAN_NO_HIERARCHICAL;
    ts_plan *plan = NULL;
    TSI_TRY(ts_plan_cached(from, to, (ts_dtype)x->to->dtype, &options, &plan));
    tsi_execution part = *x;
    part.plan = plan;
    ts_status status = run_program(&part, hold, hold_count);
    ts_plan_release(plan);
    return status;
}

static ts_status run_sequence(const tsi_execution *x, tsi_array **hold, int32_t *hold_count)
{
    ts_mesh *mesh = tsi_mesh_of(x->rank, x->plan->src->sharding->mesh);
    if (!mesh) return ts_rank_status(x->rank);
    if (!mesh->member) return TS_OK;
    tsi_array *current = tsi_array_retain(x->from);
    ts_status status = TS_OK;
    for (int32_t s = 0; status == TS_OK && s < x->plan->step_count; s++) {
        bool last = s == x->plan->step_count - 1;
        const ts_layout *from = NULL, *to = NULL;
        status = tsi_plan_step_layouts(x->plan, s, &from, &to);
        if (status != TS_OK) break;
        tsi_array *next =
            last ? tsi_array_retain(x->to) : tsi_tensor_block(mesh, to, (ts_dtype)x->to->dtype);
        tsi_execution step = { x->rank, x->plan, current, next, x->name, last ? x->work : NULL };
        tsi_array *staged[2] = { NULL, NULL };
        int32_t staged_count = 0;
        status = next ? run_step(&step, mesh, &x->plan->step[s], from, to, staged, &staged_count)
                      : ts_rank_status(x->rank);
        for (int32_t i = 0; i < staged_count; i++) {
            if (last)
                hold[(*hold_count)++] = staged[i];
            else
                tsi_array_release(staged[i]);
        }
        if (last && current != x->from) hold[(*hold_count)++] = tsi_array_retain(current);
        tsi_array_release(current);
        current = next;
        ts_layout_release(from);
        ts_layout_release(to);
    }
    tsi_array_release(current);
    return status;
}

ts_status tsi_execute(const tsi_execution *execution, tsi_array **hold, int32_t *hold_count)
{
    switch ((ts_plan_family)execution->plan->family) {
    case TS_PLAN_NONE:
        return TS_OK;
    case TS_PLAN_LOCAL:
    case TS_PLAN_DIRECT:
    case TS_PLAN_HIERARCHICAL:
        return run_program(execution, hold, hold_count);
    case TS_PLAN_COLLECTIVES:
        return run_sequence(execution, hold, hold_count);
    }
    return TS_OK;
}
