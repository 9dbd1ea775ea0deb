/* SPDX-License-Identifier: Apache-2.0 */
/* propagate.c - making the plan of one operator call: metas, the choice among its rules
 * (propagate_rules.c, propagate_choice.c), what the rank needs to run it.
 *
 * A pure function of layouts, dtypes, attributes and the world's topology, so every rank makes the
 * same plan. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/intmath.h"
#include "op/core/attribute.h"
#include "op/core/dispatch.h"
#include "plan/plan.h"
#include "plan/space.h"

/* ---- where the call happens ------------------------------------------------------------------ */

/* A value that any mesh may use: one element, the same on every rank of its mesh. */
static bool is_free_scalar(const ts_layout *layout)
{
    return layout->count == 1 && layout->axes_cut == 0 && layout->axes_partial == 0;
}

/* The mesh of the first input that is bound to one. */
static ts_mesh *mesh_of(const tsi_op_args *args)
{
    ts_mesh *found = NULL;
    for (int32_t i = 0; i < args->input_count; i++) {
        const ts_tensor *t = args->in[i];
        if (!t) continue;
        if (!found || (t->mesh->desc->count > 1 && !is_free_scalar(t->layout))) {
            if (!found || found->desc->count == 1) found = t->mesh;
        }
    }
    return found;
}

static ts_status refuse_mesh(const tsi_op_request *q, int32_t i)
{
    char mine[128], theirs[128];
    tsi_mesh_desc_text(q->in[i]->sharding->mesh, mine, sizeof mine);
    tsi_mesh_desc_text(q->mesh->desc, theirs, sizeof theirs);
    return TSI_FAIL(TS_ERR_MESH,
                    "%s: input %d lies on mesh \"%s\", the others on \"%s\"; move it there first: "
                    "ts_redistribute_to(x, ts_sharding_get(mesh, \"...\"))",
                    q->op->name, i, mine, theirs);
}

/* ---- memory of a plan ------------------------------------------------------------------------ */

enum { ARRAY_ALIGN = 16 }; /* of attributes, and so of every array */

static inline size_t array_bytes(size_t count, size_t bytes)
{
    return (count * bytes + ARRAY_ALIGN - 1) / ARRAY_ALIGN * ARRAY_ALIGN;
}

/* The next array of a block; the one after it begins where it ends. */
static inline void *take_array(char **at, size_t count, size_t bytes)
{
    void *array = *at;
    *at += array_bytes(count, bytes);
    return array;
}

/* The arrays lie in one block, since each plan makes all of them. */
static ts_status plan_arrays(tsi_op_plan *plan, const tsi_op_request *q)
{
    size_t n = (size_t)(q->input_count ? q->input_count : 1), bytes = q->op->attribute_bytes;
    size_t outputs = (size_t)(plan->output_count ? plan->output_count : 1);
    size_t need = 4 * array_bytes(n, sizeof(void *)) + array_bytes(n, sizeof *plan->in_dtype) +
                  array_bytes(n, sizeof *plan->move_bytes) + array_bytes(n, sizeof *plan->in_meta) +
                  2 * array_bytes(1, bytes) + 2 * array_bytes(outputs, sizeof(void *)) +
                  array_bytes(outputs, sizeof *plan->out_meta) +
                  array_bytes(outputs, sizeof *plan->out_local);
    char *at = tsi_arena_calloc(&plan->memory, 1, need);
    if (!at) return tsi_fail_memory("the plan of an operator call", need);
    const char *end = at + need;
    plan->in = take_array(&at, n, sizeof *plan->in);
    plan->in_dtype = take_array(&at, n, sizeof *plan->in_dtype);
    plan->wanted = take_array(&at, n, sizeof *plan->wanted);
    plan->via = take_array(&at, n, sizeof *plan->via);
    plan->in_meta = take_array(&at, n, sizeof *plan->in_meta);
    plan->move_bytes = take_array(&at, n, sizeof *plan->move_bytes);
    plan->in_region = take_array(&at, n, sizeof *plan->in_region);
    plan->given = take_array(&at, 1, bytes);
    plan->attributes = take_array(&at, 1, bytes);
    plan->out = take_array(&at, outputs, sizeof *plan->out);
    plan->out_meta = take_array(&at, outputs, sizeof *plan->out_meta);
    plan->out_local = take_array(&at, outputs, sizeof *plan->out_local);
    plan->out_region = take_array(&at, outputs, sizeof *plan->out_region);
    TSI_ASSERT(at == end); /* nothing was left out of `need` */
    if (bytes && q->attributes) {
        memcpy(plan->given, q->attributes, bytes);
        memcpy(plan->attributes, q->attributes, bytes);
    }
    return TS_OK;
}

/* Inputs as the plan sees them: on the plan's mesh, free scalars adopted. */
static ts_status plan_inputs(tsi_op_plan *plan, const tsi_op_request *q)
{
    for (int32_t i = 0; i < q->input_count; i++) {
        const ts_layout *layout = q->in[i];
        if (!layout) {
            if (i < q->op->input_min)
                return TSI_FAIL(TS_ERR_NULL, "%s: input %d is NULL", q->op->name, i);
            continue;
        }
        plan->in_dtype[i] = q->dtype[i];
        plan->in_meta[i] = (ts_meta){ .shape = layout->shape, .dtype = q->dtype[i] };
        plan->in[i] = ts_layout_retain(layout);
        if (layout->sharding->mesh == q->mesh->desc) continue;
        if (!is_free_scalar(layout)) return refuse_mesh(q, i);
    }
    return TS_OK;
}

/* ---- what the rank needs to run it ----------------------------------------------------------- */

/* The region of a layout here, or NULL if the rank holds everything. Only the dims there are are
 * kept. */
static ts_status region_of(tsi_op_plan *plan, const ts_layout *layout, tsi_region **out)
{
    tsi_region region;
    *out = NULL;
    if (!layout->axes_cut || layout->sharding->mesh != plan->mesh->desc) return TS_OK;
    if (!tsi_layout_region(layout, plan->mesh->coord, &plan->memory, &region)) return TS_ERR_MEMORY;
    size_t bytes = offsetof(tsi_region, dim) + (size_t)region.ndim * sizeof region.dim[0];
    *out = tsi_arena_alloc(&plan->memory, bytes);
    if (!*out) return tsi_fail_memory("a region", bytes);
    memcpy(*out, &region, bytes);
    return TS_OK;
}

/* The layout that a kernel sees of an input. */
static const ts_layout *used_of(const tsi_op_plan *plan, int32_t i)
{
    return plan->wanted[i] ? plan->wanted[i] : plan->in[i];
}

/* Operands of one layout have one region. */
static ts_status region_for(tsi_op_plan *plan, const ts_layout *layout, int32_t inputs,
                            tsi_region **out)
{
    for (int32_t i = 0; i < inputs; i++)
        if (used_of(plan, i) == layout) {
            *out = plan->in_region[i];
            return TS_OK;
        }
    return region_of(plan, layout, out);
}

static ts_status add_move(tsi_op_plan *plan, int32_t input, const ts_layout *from,
                          const ts_layout *to)
{
    ts_plan *move = NULL;
    TSI_TRY(ts_plan_cached(from, to, (ts_dtype)plan->in_dtype[input], NULL, &move));
    ts_plan_summary summary = TS_INIT(ts_plan_summary);
    ts_plan_summarise(move, &summary);
    plan->move_bytes[input] = tsi_add_most(plan->move_bytes[input], summary.bytes_received);
    plan->moved_total = tsi_add_most(plan->moved_total, summary.bytes_received);
    ts_plan_release(move);
    return TS_OK;
}

static ts_status plan_moves(tsi_op_plan *plan)
{
    for (int32_t i = 0; i < plan->input_count; i++) {
        const ts_layout *via = plan->via[i];
        if (!plan->wanted[i]) continue;
        if (via) TSI_TRY(add_move(plan, i, plan->in[i], via));
        TSI_TRY(add_move(plan, i, via ? via : plan->in[i], plan->wanted[i]));
    }
    return TS_OK;
}

static ts_status plan_local(tsi_op_plan *plan)
{
    if (!plan->mesh->member) return TS_OK;
    for (int32_t i = 0; i < plan->input_count; i++)
        if (plan->in[i]) TSI_TRY(region_for(plan, used_of(plan, i), i, &plan->in_region[i]));
    for (int32_t o = 0; o < plan->output_count; o++) {
        plan->out_local[o] = ts_layout_local(plan->out[o], plan->mesh->coord);
        TSI_TRY(region_for(plan, plan->out[o], plan->input_count, &plan->out_region[o]));
    }
    return TS_OK;
}

static ts_status refuse_dtype(const tsi_op_desc *op, ts_dtype dtype)
{
    char known[96] = "";
    size_t used = 0;
    for (int d = 1; d < TS_DTYPE_COUNT && used < sizeof known; d++)
        if (op->dtypes >> d & 1)
            used += (size_t)snprintf(known + used, sizeof known - used, " %s",
                                     ts_dtype_name((ts_dtype)d));
    return TSI_FAIL(TS_ERR_DTYPE, "%s: is not defined for %s, but for%s", op->name,
                    ts_dtype_name(dtype), known);
}

static ts_status check_call(const tsi_op_request *q)
{
    const tsi_op_desc *op = q->op;
    if (q->input_count < op->input_min || q->input_count > op->input_max)
        return TSI_FAIL(TS_ERR_ARG, "%s: takes %d to %d inputs, not %d", op->name, op->input_min,
                        op->input_max, q->input_count);
    if (q->in_place && !(op->flags & TSI_OP_IN_PLACE))
        return TSI_FAIL(TS_ERR_ARG, "%s: has no in-place form", op->name);
    if (op->dtypes && q->input_count > 0 && q->in[0] && !(op->dtypes >> q->dtype[0] & 1))
        return refuse_dtype(op, (ts_dtype)q->dtype[0]);
    for (int32_t i = 0; i < q->input_count; i++) {
        if (!q->in[i] || !q->in[i]->axes_partial) continue; /* terms must have a sum */
        ts_status status = tsi_partials_check(q->in[i], (ts_dtype)q->dtype[i]);
        if (status != TS_OK) tsi_error_prefix("%s: input %d", op->name, i);
        if (status != TS_OK) return status;
    }
    return TS_OK;
}

static ts_status check_in_place(const tsi_op_call *call)
{
    const ts_meta *self = &call->in[0], *result = &call->out[0];
    if (self->dtype == result->dtype && tsi_shape_same(&self->shape, &result->shape)) return TS_OK;
    return TSI_FAIL(TS_ERR_SHAPE,
                    "%s_: the result's shape or dtype (%s) is not that of the tensor it "
                    "would be written into (%s)",
                    call->op->name, ts_dtype_name((ts_dtype)result->dtype),
                    ts_dtype_name((ts_dtype)self->dtype));
}

enum { TINY_ELEMENTS = 1024 };

static void operand_fill(tsi_operand *operand, const ts_meta *global, const tsi_region *region,
                         const ts_shape *local)
{
    *operand = (tsi_operand){ .global = global, .region = region };
    operand->block.dtype = global->dtype;
    operand->block.ndim = local->ndim;
    memcpy(operand->block.extent, local->extent, sizeof operand->block.extent);
}

/* Everything a call needs that does not change from call to call. */
static ts_status plan_short(tsi_op_plan *plan)
{
    ts_rank *rank = plan->mesh->rank;
    bool moves = plan->algorithm > 0;
    for (int32_t i = 0; i < plan->input_count; i++)
        moves |= plan->wanted[i] != NULL ||
                 (plan->in[i] && plan->in[i]->sharding->mesh != plan->mesh->desc);
    int64_t elements = ts_shape_count(&plan->out_local[0]);
    bool countable = elements >= 0 && elements < INT64_MAX / 16; /* else it cannot be made */
    if (!rank || !plan->mesh->member || moves || !countable || plan->in_place ||
        plan->output_count != 1 || plan->op->flags & TSI_OP_RANDOM)
        return TS_OK;
    size_t count = (size_t)plan->input_count + 1;
    plan->operand = tsi_arena_calloc(&plan->memory, count, sizeof *plan->operand);
    plan->pool = tsi_pool_of(rank);
    const tsi_rank_device *mine = tsi_rank_device_of(rank);
    if (!plan->operand || !plan->pool || !mine) return tsi_fail_memory("operands", count * 200);
    for (int32_t i = 0; i < plan->input_count; i++) {
        ts_shape local = TS_SHAPE_SCALAR;
        if (plan->in[i]) local = ts_layout_local(plan->in[i], plan->mesh->coord);
        operand_fill(&plan->operand[i], &plan->in_meta[i], plan->in_region[i], &local);
    }
    const ts_shape *local = &plan->out_local[0];
    tsi_operand *out = &plan->operand[plan->input_count];
    operand_fill(out, &plan->out_meta[0], plan->out_region[0], local);
    plan->model = (tsi_array){ .dtype = plan->out_meta[0].dtype,
                               .ndim = local->ndim,
                               .dense = plan->op->view == NULL };
    int64_t stride = 1;
    for (int32_t d = local->ndim - 1; d >= 0; stride = tsi_mul_most(stride, local->extent[d--])) {
        plan->model.extent[d] = local->extent[d];
        plan->model.stride[d] = out->block.stride[d] = stride;
    }
    plan->out_bytes = (size_t)stride * ts_dtype_size((ts_dtype)plan->out_meta[0].dtype);
    plan->io = (tsi_kernel_io){ .op = plan->op,
                                .attributes = plan->attributes,
                                .in = plan->operand,
                                .out = out,
                                .input_count = plan->input_count,
                                .output_count = 1,
                                .rank = rank,
                                .device = mine->device,
                                .queue = mine->queue,
                                .seed = rank->world->seed };
    plan->is_short = ts_shape_count(local) >= 0 && !plan->op->lies_like[0];
    plan->is_tiny = stride <= TINY_ELEMENTS;
    for (int32_t i = 0; i < plan->input_count; i++)
        plan->is_tiny &= tsi_block_count(&plan->operand[i].block) <= TINY_ELEMENTS;
    return TS_OK;
}

/* What an algorithm is asked by; `in` has room for the layouts of the inputs. */
static tsi_algorithm_request request_of(const tsi_op_plan *plan, const tsi_op_call *call,
                                        const ts_layout **in)
{
    for (int32_t i = 0; i < plan->input_count; i++)
        in[i] = used_of(plan, i);
    return (
        tsi_algorithm_request){ call, in, plan->mesh->desc, plan->algorithm_axes, 0, plan->out };
}

/* The algorithm that runs with these layouts, and its bytes. */
static ts_status pick_algorithm(tsi_op_plan *plan, const tsi_op_call *call, tsi_op_story *story)
{
    const ts_layout *in[TSI_INPUT_MAX] = { NULL };
    tsi_algorithm_request request = request_of(plan, call, in);
    tsi_algorithm_choice choice;
    TSI_TRY(plan->op->pick(&request, &choice));
    plan->algorithm = choice.candidate[choice.chosen].algorithm;
    plan->algorithm_bytes = choice.candidate[choice.chosen].bytes;
    if (!story) return TS_OK;
    story->algorithms = choice;
    story->chosen.cost_us += choice.candidate[choice.chosen].us;
    return TS_OK;
}

/* What the ranks of one group of the algorithm's axes hold together: the largest of the parts that
 * other axes make. A cut over several dims counts as none. */
static void group_meta(const tsi_op_plan *plan, const ts_layout *layout, ts_meta *meta)
{
    const ts_sharding *sharding = layout->sharding;
    for (int32_t i = 0; i < sharding->order_count; i++) {
        int32_t axis = sharding->order[i];
        const ts_placement *place = &sharding->place[axis];
        if (plan->algorithm_axes >> axis & 1 || place->dim != place->dim_last) continue;
        int64_t *extent = &meta->shape.extent[place->dim];
        *extent = tsi_place_longest(place, *extent, sharding->mesh->size[axis]);
    }
}

/* Of few ranks, as their layouts are; -1: not counted. */
static int64_t received_exactly(const tsi_op_plan *plan, const tsi_op_call *call)
{
    enum { RANKS_MAX = 64 };
    const ts_layout *in[TSI_INPUT_MAX] = { NULL };
    bool few = plan->mesh->desc->count <= RANKS_MAX;
    if (!plan->op->received || plan->algorithm != 1 || !few) return -1;
    tsi_algorithm_request request = request_of(plan, call, in);
    return plan->op->received(&request);
}

/* Bytes of the plan's algorithm: every group of its axes runs it for its own part. */
static ts_status state_algorithm(tsi_op_plan *plan, const tsi_op_call *call, tsi_arena *scratch)
{
    const tsi_mesh_desc *mesh = plan->mesh->desc;
    plan->algorithm_bytes = received_exactly(plan, call);
    if (plan->algorithm_bytes >= 0) return TS_OK;
    size_t inputs = (size_t)call->input_count, count = inputs + (size_t)call->output_count;
    ts_meta *meta = tsi_arena_calloc(scratch, count, sizeof *meta);
    if (!meta) return tsi_fail_memory("the bytes of an algorithm", count * sizeof *meta);
    if (inputs) memcpy(meta, call->in, inputs * sizeof *meta);
    memcpy(meta + inputs, call->out, (size_t)call->output_count * sizeof *meta);
    for (int32_t i = 0; i < call->input_count; i++)
        if (plan->in[i]) group_meta(plan, used_of(plan, i), &meta[i]);
    for (int32_t o = 0; o < call->output_count; o++)
        group_meta(plan, plan->out[o], &meta[inputs + (size_t)o]);
    tsi_op_call part = *call;
    part.in = meta;
    part.out = meta + inputs;
    int64_t n = 1;
    for (int32_t k = 0; k < mesh->ndim; k++)
        if (plan->algorithm_axes >> k & 1) n *= mesh->size[k];
    int64_t each = plan->op->algorithm[plan->algorithm - 1].bytes(&part, n);
    plan->algorithm_bytes = tsi_mul_most(each, mesh->count);
    return TS_OK;
}

/* Takes the algorithm that moves and computes together, if there is one and it is chosen: inputs
 * stay as they came. */
static ts_status fuse(tsi_op_plan *plan, const tsi_op_call *call, tsi_op_story *story, bool *fused)
{
    tsi_fusion fusion = { .call = call,
                          .mesh = plan->mesh->desc,
                          .in = plan->in,
                          .wanted = plan->wanted,
                          .out = plan->out };
    tsi_algorithm_choice choice = { .count = 0 };
    TSI_TRY(plan->op->fuse(&fusion, &choice));
    if (choice.count == 0) return TS_OK;
    if (story) story->algorithms = choice;
    if (choice.chosen == 0) return TS_OK;
    const tsi_algorithm_candidate *taken = &choice.candidate[choice.chosen];
    if (story) story->chosen.cost_us += taken->us - choice.candidate[0].us;
    plan->algorithm = taken->algorithm;
    plan->algorithm_bytes = taken->bytes;
    plan->algorithm_axes = fusion.axes;
    for (int32_t i = 0; i < plan->input_count; i++) {
        ts_layout_release(plan->wanted[i]);
        plan->wanted[i] = NULL;
    }
    *fused = true;
    return TS_OK;
}

static ts_status plan_fill(tsi_op_plan *plan, const tsi_op_request *q, tsi_arena *scratch,
                           tsi_op_story *story)
{
    TSI_TRY(check_call(q));
    TSI_TRY(plan_arrays(plan, q));
    TSI_TRY(plan_inputs(plan, q));
    const tsi_op_desc *op = q->op;
    TSI_TRY(tsi_attributes_check(op, plan->attributes));
    if (op->normalise)
        TSI_TRY(op->normalise(op, plan->in_meta, plan->input_count, plan->attributes));
    tsi_op_call call = {
        op, plan->attributes, plan->in_meta, plan->out_meta, plan->input_count, plan->output_count
    };
    TSI_ASSERT(op->infer); /* the table's test looks for it */
    TSI_TRY(op->infer(&call));
    if (plan->in_place) TSI_TRY(check_in_place(&call));
    TSI_TRY(tsi_op_choose(plan, &call, scratch, story));
    if (op->flags & TSI_OP_COMPOSED) {
        plan->algorithm = 1;
        plan->algorithm_axes = (1u << plan->mesh->desc->ndim) - 1;
    }
    bool fused = false;
    if (op->fuse && plan->algorithm == 0) TSI_TRY(fuse(plan, &call, story, &fused));
    TSI_TRY(plan_moves(plan));
    TSI_TRY(plan_local(plan));
    if (plan->algorithm > 0 && !fused && op->pick)
        TSI_TRY(pick_algorithm(plan, &call, story));
    else if (plan->algorithm > 0 && !fused)
        TSI_TRY(state_algorithm(plan, &call, scratch));
    plan->kernel = tsi_kernel_of(tsi_world_device(plan->mesh->desc->world), op);
    return plan_short(plan);
}

/* What the arrays of most plans take together; thousands are kept, so there is no room to spare. */
enum { PLAN_BLOCK = 1280 };

tsi_op_plan *tsi_op_plan_for(const tsi_op_request *q, tsi_arena *scratch, tsi_op_story *story)
{
    tsi_op_plan *plan = tsi_calloc(1, sizeof *plan);
    if (!plan) {
        tsi_fail_memory("the plan of an operator call", sizeof *plan);
        return NULL;
    }
    plan->op = q->op;
    plan->input_count = q->input_count;
    plan->output_count = q->op->output_count;
    plan->in_place = q->in_place;
    plan->memory.block_size = PLAN_BLOCK;
    plan->mesh = ts_mesh_retain(q->mesh);
    if (plan_fill(plan, q, scratch, story) == TS_OK) return plan;
    tsi_op_plan_destroy(plan);
    return NULL;
}

tsi_op_plan *tsi_op_plan_make(ts_rank *rank, const tsi_op_args *args)
{
    const ts_layout *in[TSI_INPUT_MAX];
    uint8_t dtype[TSI_INPUT_MAX];
    tsi_op_request q = { .op = args->op,
                         .mesh = mesh_of(args),
                         .in = in,
                         .dtype = dtype,
                         .input_count = args->input_count,
                         .in_place = args->in_place,
                         .attributes = args->attributes };
    if (args->input_count > TSI_INPUT_MAX) {
        TSI_FAIL(TS_ERR_ARG, "%s: %d inputs are too many, %d are possible", args->op->name,
                 args->input_count, TSI_INPUT_MAX);
        return NULL;
    }
    if (!q.mesh) {
        TSI_FAIL(TS_ERR_NULL, "%s: every input is NULL", args->op->name);
        return NULL;
    }
    for (int32_t i = 0; i < args->input_count; i++) {
        in[i] = args->in[i] ? args->in[i]->layout : NULL;
        dtype[i] = args->in[i] ? (uint8_t)args->in[i]->dtype : 0;
    }
    tsi_tensor_state *state = tsi_tensor_state_of(rank);
    if (!state) return NULL;
    tsi_arena_mark mark = tsi_arena_save(&state->scratch);
    tsi_op_plan *plan = tsi_op_plan_for(&q, &state->scratch, NULL);
    tsi_arena_rewind(&state->scratch, mark);
    return plan;
}

void tsi_op_plan_destroy(tsi_op_plan *plan)
{
    if (!plan) return;
    for (int32_t i = 0; plan->in && i < plan->input_count; i++)
        ts_layout_release(plan->in[i]);
    for (int32_t i = 0; plan->wanted && i < plan->input_count; i++)
        ts_layout_release(plan->wanted[i]);
    for (int32_t i = 0; plan->via && i < plan->input_count; i++)
        ts_layout_release(plan->via[i]);
    for (int32_t o = 0; plan->out && o < plan->output_count; o++)
        ts_layout_release(plan->out[o]);
    ts_mesh_release(plan->mesh);
    tsi_arena_release(&plan->memory);
    tsi_free(plan);
}
