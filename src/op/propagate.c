/* SPDX-License-Identifier: Apache-2.0 */
/* propagate.c - making the plan of one operator call: metas, rules, the choice on the mesh,
 * layouts.
 *
 * A pure function of layouts, dtypes, attributes and the world's topology, so every rank makes the
 * same plan. */
#include <string.h>

#include "base/alloc.h"
#include "op/dispatch.h"

/* ---- where the call happens
 * ------------------------------------------------------------------------------------ */

/* A value that any mesh may use: one element, the same on every rank of its mesh. */
static bool is_free_scalar(const ts_tensor *t)
{
    return t->layout->count == 1 && t->layout->axes_cut == 0 && t->layout->axes_partial == 0;
}

/* The mesh of the first input that is bound to one. */
static ts_mesh *mesh_of(const tsi_op_args *args)
{
    ts_mesh *found = NULL;
    for (int32_t i = 0; i < args->input_count; i++) {
        const ts_tensor *t = args->in[i];
        if (!t) continue;
        if (!found || (t->mesh->desc->count > 1 && !is_free_scalar(t))) {
            if (!found || found->desc->count == 1) found = t->mesh;
        }
    }
    return found;
}

static ts_status refuse_mesh(const tsi_op_args *args, int32_t i, const ts_mesh *mesh)
{
    char mine[128], theirs[128];
    ts_mesh_text(args->in[i]->mesh, mine, sizeof mine);
    ts_mesh_text(mesh, theirs, sizeof theirs);
    return TSI_FAIL(TS_ERR_MESH,
                    "%s: input %d lies on mesh \"%s\", the others on \"%s\"; move it there first: "
                    "ts_redistribute_to(x, ts_sharding_get(mesh, \"...\"))",
                    args->op->name, i, mine, theirs);
}

/* ---- memory of a plan
 * --------------------------------------------------------------------------------------------- */

static ts_status plan_arrays(tsi_op_plan *plan, const tsi_op_args *args)
{
    size_t n = (size_t)(args->input_count ? args->input_count : 1),
           bytes = args->op->attribute_bytes;
    tsi_arena *arena = &plan->memory;
    plan->in = tsi_arena_calloc(arena, n, sizeof *plan->in);
    plan->in_dtype = tsi_arena_calloc(arena, n, sizeof *plan->in_dtype);
    plan->wanted = tsi_arena_calloc(arena, n, sizeof *plan->wanted);
    plan->in_meta = tsi_arena_calloc(arena, n, sizeof *plan->in_meta);
    plan->move_bytes = tsi_arena_calloc(arena, n, sizeof *plan->move_bytes);
    plan->in_region = tsi_arena_calloc(arena, n, sizeof *plan->in_region);
    plan->given = tsi_arena_calloc(arena, 1, bytes + 1);
    plan->attributes = tsi_arena_calloc(arena, 1, bytes + 1);
    if (!plan->in || !plan->in_dtype || !plan->wanted || !plan->in_meta || !plan->move_bytes ||
        !plan->in_region || !plan->given || !plan->attributes)
        return tsi_fail_memory("the plan of an operator call", n * 64 + 2 * bytes);
    if (bytes && args->attributes) {
        memcpy(plan->given, args->attributes, bytes);
        memcpy(plan->attributes, args->attributes, bytes);
    }
    return TS_OK;
}

/* Inputs as the plan sees them: on the plan's mesh, free scalars adopted. */
static ts_status plan_inputs(tsi_op_plan *plan, const tsi_op_args *args)
{
    for (int32_t i = 0; i < args->input_count; i++) {
        const ts_tensor *t = args->in[i];
        if (!t) {
            if (i < args->op->input_min)
                return TSI_FAIL(TS_ERR_NULL, "%s: input %d is NULL", args->op->name, i);
            continue;
        }
        plan->in_dtype[i] = (uint8_t)t->dtype;
        plan->in_meta[i] = (ts_meta){ .shape = t->layout->shape, .dtype = t->dtype };
        plan->in[i] = ts_layout_retain(t->layout);
        if (t->mesh->desc == plan->mesh->desc) continue;
        if (!is_free_scalar(t)) return refuse_mesh(args, i, plan->mesh);
    }
    return TS_OK;
}

/* ---- rules and choice
 * ---------------------------------------------------------------------------------------------- */

static void derive_rules(const tsi_op_call *call, tsi_rules *rules)
{
    const tsi_op_desc *op = call->op;
    uint64_t absent = 0;
    for (int32_t i = 0; i < call->input_count && i < 64; i++)
        if (call->in[i].dtype == TS_DTYPE_NONE) absent |= UINT64_C(1) << i;
    tsi_arena *arena = rules->arena;
    tsi_rules_begin(rules, call->input_count, call->output_count, absent, arena);
    if (op->dims) {
        if (op->dims[0] == '*')
            tsi_rules_pointwise(rules, call->in, call->out);
        else
            tsi_rules_dims(rules, op->dims, call->in,
                           op->dims_reduce ? op->dims_reduce : TS_REDUCE_SUM);
    }
    tsi_traits traits = op->traits;
    if (op->trait) op->trait(call, &traits);
    tsi_rules_partials(rules, &traits);
    if (op->rules) op->rules(call, rules);
    tsi_rules_finish(rules);
}

typedef struct joint_context {
    const tsi_op_call *call;
} joint_context;

static bool joint_check(void *context, const ts_placement *const *in,
                        const ts_placement *const *out)
{
    const tsi_op_call *call = ((joint_context *)context)->call;
    return call->op->joint(call, in, out);
}

static ts_status intern_layout(tsi_mesh_desc *mesh, const ts_placement *place,
                               const ts_shape *shape, const ts_layout **out)
{
    const ts_sharding *sharding = tsi_sharding_intern(mesh, place);
    if (!sharding) return TS_ERR_MEMORY;
    *out = tsi_layout_intern(sharding, shape);
    ts_sharding_release(sharding);
    return *out ? TS_OK : TS_ERR_MEMORY;
}

/* Layouts of a chosen expansion. */
static ts_status take_expansion(tsi_op_plan *plan, const tsi_op_call *call, const tsi_expansion *e)
{
    tsi_mesh_desc *mesh = plan->mesh->desc;
    for (int32_t i = 0; i < call->input_count; i++) {
        if (!plan->in[i] || plan->in[i]->sharding->mesh != mesh) continue;
        const ts_layout *wanted = NULL;
        TSI_TRY(intern_layout(mesh, e->in[i], &call->in[i].shape, &wanted));
        if (wanted == plan->in[i] || ts_layout_same_places(wanted, plan->in[i]))
            ts_layout_release(wanted);
        else
            plan->wanted[i] = wanted;
    }
    for (int32_t o = 0; o < call->output_count; o++)
        TSI_TRY(intern_layout(mesh, e->out[o], &call->out[o].shape, &plan->out[o]));
    plan->algorithm = e->algorithm;
    plan->algorithm_axes = e->algorithm_axes;
    return TS_OK;
}

static ts_status refuse_in_place(const tsi_op_call *call, const tsi_op_plan *plan)
{
    return TSI_FAIL(TS_ERR_POLICY,
                    "%s_: in place, the first input would have to leave its layout %s; use %s and "
                    "write the result, or redistribute the input first",
                    call->op->name, plan->in[0]->text, call->op->name);
}

/* Algorithms' times on this mesh, for the search. */
static double *algorithm_times(const tsi_op_call *call, const tsi_links *links, tsi_arena *arena)
{
    int32_t count = 0;
    while (call->op->algorithm && call->op->algorithm[count].name)
        count++;
    double *time = tsi_arena_calloc(arena, (size_t)count + 1, sizeof *time);
    for (int32_t a = 0; time && a < count; a++) {
        double bytes = (double)call->op->algorithm[a].bytes(call, links->size[0]);
        tsi_links_group group = tsi_links_of(links, 1);
        time[a] = tsi_time_all_reduce(links, &group, bytes / 2.0);
    }
    return time;
}

static ts_status choose(tsi_op_plan *plan, const tsi_op_call *call, tsi_arena *scratch)
{
    tsi_rules rules = { .arena = scratch };
    derive_rules(call, &rules);
    if (rules.failed) return TS_ERR_MEMORY;
    ts_topology topology = TS_INIT(ts_topology);
    TSI_TRY(ts_topology_of(plan->mesh->desc->world, &topology));
    tsi_links links;
    tsi_links_make(&topology, plan->mesh->desc, plan->mesh->desc->count, &links);
    int64_t *bytes = tsi_arena_calloc(scratch, (size_t)call->input_count + 1, sizeof *bytes);
    const ts_layout **in = tsi_arena_calloc(scratch, (size_t)call->input_count + 1, sizeof *in);
    tsi_expansion *e = tsi_arena_alloc(scratch, sizeof *e);
    joint_context joint = { call };
    tsi_expand_request request = {
        .mesh = plan->mesh->desc,
        .rules = &rules,
        .links = &links,
        .in_bytes = bytes,
        .in = in,
        .in_place = plan->in_place,
        .algorithm_us = algorithm_times(call, &links, scratch),
        .joint = call->op->joint ? joint_check : NULL,
        .context = &joint,
    };
    if (!bytes || !in || !e || !request.algorithm_us)
        return tsi_fail_memory("the search for a rule", sizeof *e);
    for (int32_t i = 0; i < call->input_count; i++) {
        bytes[i] = (int64_t)ts_dtype_size((ts_dtype)call->in[i].dtype);
        if (plan->in[i] && plan->in[i]->sharding->mesh == plan->mesh->desc) in[i] = plan->in[i];
    }
    ts_status status = tsi_expand(&request, scratch, e);
    if (status == TS_ERR_POLICY) return refuse_in_place(call, plan);
    return status == TS_OK ? take_expansion(plan, call, e) : status;
}

static ts_status choose_view(tsi_op_plan *plan, const tsi_op_call *call)
{
    const ts_layout *wanted = NULL;
    const ts_sharding *sharding = NULL;
    TSI_TRY(call->op->propagate(call, plan->in[0], &wanted, &sharding));
    if (wanted == plan->in[0])
        ts_layout_release(wanted);
    else
        plan->wanted[0] = wanted;
    ts_status status = TS_OK;
    for (int32_t o = 0; o < call->output_count && status == TS_OK; o++) {
        plan->out[o] = tsi_layout_intern(sharding, &call->out[o].shape);
        if (!plan->out[o]) status = TS_ERR_MEMORY;
    }
    ts_sharding_release(sharding);
    return status;
}

/* ---- what the rank needs to run it
 * ---------------------------------------------------------------------------------- */

/* The region of a layout here, or NULL if the rank holds everything. */
static ts_status region_of(tsi_op_plan *plan, const ts_layout *layout, tsi_region **out)
{
    *out = NULL;
    if (!layout->axes_cut || layout->sharding->mesh != plan->mesh->desc) return TS_OK;
    *out = tsi_arena_alloc(&plan->memory, sizeof **out);
    if (!*out) return tsi_fail_memory("a region", sizeof **out);
    return tsi_layout_region(layout, plan->mesh->coord, &plan->memory, *out) ? TS_OK
                                                                             : TS_ERR_MEMORY;
}

static ts_status plan_moves(tsi_op_plan *plan)
{
    for (int32_t i = 0; i < plan->input_count; i++) {
        if (!plan->wanted[i]) continue;
        ts_plan *move = NULL;
        TSI_TRY(
            ts_plan_cached(plan->in[i], plan->wanted[i], (ts_dtype)plan->in_dtype[i], NULL, &move));
        ts_plan_summary summary = TS_INIT(ts_plan_summary);
        ts_plan_summarise(move, &summary);
        plan->move_bytes[i] = summary.bytes_received;
        plan->moved_total += summary.bytes_received;
        ts_plan_release(move);
    }
    return TS_OK;
}

static ts_status plan_local(tsi_op_plan *plan)
{
    if (!plan->mesh->member) return TS_OK;
    for (int32_t i = 0; i < plan->input_count; i++) {
        if (!plan->in[i]) continue;
        TSI_TRY(
            region_of(plan, plan->wanted[i] ? plan->wanted[i] : plan->in[i], &plan->in_region[i]));
    }
    for (int32_t o = 0; o < plan->output_count; o++) {
        plan->out_local[o] = ts_layout_local(plan->out[o], plan->mesh->coord);
        TSI_TRY(region_of(plan, plan->out[o], &plan->out_region[o]));
    }
    return TS_OK;
}

static ts_status check_call(const tsi_op_args *args)
{
    const tsi_op_desc *op = args->op;
    if (args->input_count < op->input_min || args->input_count > op->input_max)
        return TSI_FAIL(TS_ERR_ARG, "%s: takes %d to %d inputs, not %d", op->name, op->input_min,
                        op->input_max, args->input_count);
    if (args->in_place && !(op->flags & TSI_OP_IN_PLACE))
        return TSI_FAIL(TS_ERR_ARG, "%s: has no in-place form", op->name);
    const ts_tensor *first = args->input_count > 0 ? args->in[0] : NULL;
    if (op->dtypes && first && !(op->dtypes >> first->dtype & 1))
        return TSI_FAIL(TS_ERR_DTYPE, "%s: is not defined for %s", op->name,
                        ts_dtype_name((ts_dtype)first->dtype));
    return TS_OK;
}

static ts_status check_in_place(const tsi_op_call *call)
{
    const ts_meta *self = &call->in[0], *result = &call->out[0];
    bool same = self->dtype == result->dtype && self->shape.ndim == result->shape.ndim;
    for (int32_t d = 0; same && d < self->shape.ndim; d++)
        same = self->shape.extent[d] == result->shape.extent[d];
    if (same) return TS_OK;
    return TSI_FAIL(TS_ERR_SHAPE,
                    "%s_: the result's shape or dtype (%s) is not that of the tensor it "
                    "would be written into (%s)",
                    call->op->name, ts_dtype_name((ts_dtype)result->dtype),
                    ts_dtype_name((ts_dtype)self->dtype));
}

static ts_status plan_fill(tsi_op_plan *plan, const tsi_op_args *args, tsi_arena *scratch)
{
    TSI_TRY(plan_arrays(plan, args));
    TSI_TRY(plan_inputs(plan, args));
    const tsi_op_desc *op = args->op;
    if (op->normalise) TSI_TRY(op->normalise(plan->in_meta, plan->input_count, plan->attributes));
    tsi_op_call call = {
        op, plan->attributes, plan->in_meta, plan->out_meta, plan->input_count, plan->output_count
    };
    TSI_TRY(op->infer(&call));
    if (plan->in_place) TSI_TRY(check_in_place(&call));
    TSI_TRY(op->propagate ? choose_view(plan, &call) : choose(plan, &call, scratch));
    TSI_TRY(plan_moves(plan));
    TSI_TRY(plan_local(plan));
    if (plan->algorithm > 0) {
        int64_t n = 1;
        for (int32_t k = 0; k < plan->mesh->desc->ndim; k++)
            if (plan->algorithm_axes >> k & 1) n *= plan->mesh->desc->size[k];
        plan->algorithm_bytes =
            op->algorithm[plan->algorithm - 1].bytes(&call, n) * plan->mesh->desc->count;
    }
    plan->kernel = tsi_kernel_of(tsi_device_cpu(), op);
    return TS_OK;
}

tsi_op_plan *tsi_op_plan_make(ts_rank *rank, const tsi_op_args *args)
{
    if (check_call(args) != TS_OK) return NULL;
    tsi_op_plan *plan = tsi_calloc(1, sizeof *plan);
    if (!plan) {
        tsi_fail_memory("the plan of an operator call", sizeof *plan);
        return NULL;
    }
    plan->op = args->op;
    plan->input_count = args->input_count;
    plan->output_count = args->op->output_count;
    plan->in_place = args->in_place;
    plan->mesh = mesh_of(args);
    ts_status status = TS_OK;
    if (!plan->mesh) status = TSI_FAIL(TS_ERR_NULL, "%s: every input is NULL", args->op->name);
    tsi_tensor_state *state = tsi_tensor_state_of(rank);
    if (status == TS_OK && state) {
        tsi_arena_mark mark = tsi_arena_save(&state->scratch);
        status = plan_fill(plan, args, &state->scratch);
        tsi_arena_rewind(&state->scratch, mark);
    }
    if (status == TS_OK && state) return plan;
    tsi_op_plan_destroy(plan);
    return NULL;
}

void tsi_op_plan_destroy(tsi_op_plan *plan)
{
    if (!plan) return;
    for (int32_t i = 0; plan->in && i < plan->input_count; i++)
        ts_layout_release(plan->in[i]);
    for (int32_t i = 0; plan->wanted && i < plan->input_count; i++)
        ts_layout_release(plan->wanted[i]);
    for (int32_t o = 0; o < plan->output_count; o++)
        ts_layout_release(plan->out[o]);
    tsi_arena_release(&plan->memory);
    tsi_free(plan);
}
