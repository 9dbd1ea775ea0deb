/* SPDX-License-Identifier: Apache-2.0 */
/* propagate_choice.c - which rules a call takes on the axes of its mesh: those that its inputs fit
 * as they lie, else the cheapest, moves and kernels together.
 *
 * INV: all that is weighed is the same on every rank. */
#include <string.h>

#include "base/alloc.h"
#include "op/core/dispatch.h"
#include "plan/plan.h"

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

/* Where a wanted placement is partial and the present one is neither that nor R: the layout that is
 * R there, through which it goes. Others are left as they are. */
static ts_status take_detour(tsi_op_plan *plan, int32_t input)
{
    const ts_layout *have = plan->in[input], *want = plan->wanted[input];
    ts_placement place[TS_NDIM_MAX];
    bool detour = false;
    for (int32_t k = 0; k < have->sharding->ndim; k++) {
        place[k] = have->sharding->place[k];
        tsi_role to = tsi_role_of(&want->sharding->place[k]), from = tsi_role_of(&place[k]);
        if (!tsi_role_is_p(to) || from == to || from == TSI_ROLE_R) continue;
        place[k] = (ts_placement){ .kind = TS_PLACE_REPLICATE, .factor = 1, .align = 1 };
        detour = true;
    }
    return detour ? intern_layout(have->sharding->mesh, place, &have->shape, &plan->via[input])
                  : TS_OK;
}

/* Whether a layout has just these placements: then it is what interning them would give. */
static bool is_placed(const ts_layout *layout, const tsi_mesh_desc *mesh, const ts_placement *place)
{
    if (!layout || layout->sharding->mesh != mesh) return false;
    for (int32_t k = 0; k < mesh->ndim; k++)
        if (!tsi_placement_equal(&layout->sharding->place[k], &place[k], mesh->size[k]))
            return false;
    return true;
}

static ts_status take_input(tsi_op_plan *plan, const tsi_op_call *call, int32_t i,
                            const ts_placement *place)
{
    tsi_mesh_desc *mesh = plan->mesh->desc;
    if (!plan->in[i] || plan->in[i]->sharding->mesh != mesh || is_placed(plan->in[i], mesh, place))
        return TS_OK;
    const ts_layout *wanted = NULL;
    TSI_TRY(intern_layout(mesh, place, &call->in[i].shape, &wanted));
    if (tsi_layout_same_blocks(wanted, plan->in[i])) {
        ts_layout_release(wanted);
        return TS_OK;
    }
    plan->wanted[i] = wanted;
    return take_detour(plan, i);
}

/* Results are often as an input is: shape and placements; then its layout is theirs. */
static ts_status take_output(tsi_op_plan *plan, const tsi_op_call *call, int32_t o,
                             const ts_placement *place)
{
    tsi_mesh_desc *mesh = plan->mesh->desc;
    const ts_shape *shape = &call->out[o].shape;
    if (plan->in_place && o == 0) { /* the target's own; a target that moves is refused */
        plan->out[0] = ts_layout_retain(plan->in[0]);
        return TS_OK;
    }
    for (int32_t i = 0; i < call->input_count; i++) {
        const ts_layout *in = plan->in[i];
        if (!in || in->shape.ndim != shape->ndim || !is_placed(in, mesh, place)) continue;
        size_t bytes = (size_t)shape->ndim * sizeof shape->extent[0];
        if (memcmp(in->shape.extent, shape->extent, bytes) != 0) continue;
        plan->out[o] = ts_layout_retain(in);
        return TS_OK;
    }
    return intern_layout(mesh, place, shape, &plan->out[o]);
}

/* Layouts of a chosen expansion. */
static ts_status take_expansion(tsi_op_plan *plan, const tsi_op_call *call, const tsi_expansion *e)
{
    for (int32_t i = 0; i < call->input_count; i++)
        TSI_TRY(take_input(plan, call, i, e->in[i]));
    for (int32_t o = 0; o < call->output_count; o++)
        TSI_TRY(take_output(plan, call, o, e->out[o]));
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

/* The rule that has the inputs' roles on an axis; NULL: there is none, they would move. */
static const tsi_role *rule_as_it_lies(const tsi_expand_request *q, int32_t axis)
{
    for (int32_t r = 0; r < q->rules->count; r++) {
        const tsi_role *role = tsi_rules_row(q->rules, r);
        int32_t i = 0;
        while (i < q->rules->input_count &&
               (!q->in[i] || tsi_role_of(&q->in[i]->sharding->place[axis]) == role[i]))
            i++;
        if (i == q->rules->input_count) return role;
    }
    return NULL;
}

/* What the ranks along `axis` hold together of the operands, as the other axes cut them. */
static void part_along(const tsi_op_call *call, const tsi_expand_request *q, int32_t axis,
                       ts_meta *part)
{
    size_t inputs = (size_t)call->input_count;
    if (inputs) memcpy(part, call->in, inputs * sizeof *part);
    memcpy(part + inputs, call->out, (size_t)call->output_count * sizeof *part);
    for (int32_t k = 0; k < q->mesh->ndim; k++) {
        const tsi_role *role = k == axis ? NULL : rule_as_it_lies(q, k);
        for (int32_t i = 0; role && i < call->input_count + call->output_count; i++) {
            if (!tsi_role_is_s(role[i])) continue;
            int64_t *extent = &part[i].shape.extent[tsi_role_dim(role[i])];
            *extent = tsi_ceil_div(*extent, q->mesh->size[k]);
        }
    }
}

/* An algorithm that brings so many bytes to each rank of a group. */
static double algorithm_us(const tsi_op_call *call, const tsi_links *links,
                           const tsi_links_group *group, double bytes)
{
    if (bytes <= 0) return 0;
    if (group->n > 1 && call->op->flags & TSI_OP_ONE_ROUND)
        return tsi_time_all_gather(links, group, bytes * group->n / (group->n - 1), false);
    return call->op->flags & TSI_OP_TWO_ROUNDS ? tsi_time_two_rounds(links, group, bytes / 2.0)
                                               : tsi_time_all_reduce(links, group, bytes / 2.0);
}

/* Algorithms' times on each axis of this mesh, for the search. */
static double *algorithm_times(const tsi_op_call *call, const tsi_links *links,
                               const tsi_expand_request *q, tsi_arena *arena)
{
    int32_t count = 0;
    while (call->op->algorithm && call->op->algorithm[count].name)
        count++;
    size_t operands = (size_t)(call->input_count + call->output_count);
    double *time = tsi_arena_calloc(arena, (size_t)count * TS_NDIM_MAX + 1, sizeof *time);
    ts_meta *part = tsi_arena_calloc(arena, operands, sizeof *part);
    for (int32_t k = 0; time && part && count > 0 && k < q->mesh->ndim; k++) {
        tsi_op_call along = *call;
        tsi_links_group group = tsi_links_of(links, 1u << k);
        part_along(call, q, k, part);
        along.in = part;
        along.out = part + call->input_count;
        for (int32_t a = 0; a < count; a++) {
            double bytes = (double)call->op->algorithm[a].bytes(&along, q->mesh->size[k]);
            time[a * TS_NDIM_MAX + k] = algorithm_us(call, links, &group, bytes);
        }
    }
    return part ? time : NULL;
}

static void choice_take(const tsi_expansion *e, tsi_mesh_desc *mesh, tsi_op_choice *out)
{
    memcpy(out->rule, e->rule, sizeof out->rule);
    out->cost_us = e->cost_us;
    out->out = tsi_sharding_intern(mesh, e->out[0]);
}

/* What was chosen and the next best, for a story. */
static void story_tell(tsi_op_story *story, const tsi_rules *rules, tsi_mesh_desc *mesh,
                       tsi_expand_search *search, tsi_expansion *e)
{
    story->rules = *rules;
    choice_take(e, mesh, &story->chosen);
    while (story->other_count < TSI_STORY_OTHERS && tsi_expand_next(search, e) == TS_OK)
        choice_take(e, mesh, &story->other[story->other_count++]);
}

void tsi_op_story_release(tsi_op_story *story)
{
    ts_sharding_release(story->chosen.out);
    for (int32_t i = 0; i < story->other_count; i++)
        ts_sharding_release(story->other[i].out);
}

/* What a search weighs beside the rules: links, bytes, the algorithms' times. */
static ts_status add_costs(const tsi_op_call *call, tsi_arena *scratch, tsi_links *links,
                           tsi_expand_request *request)
{
    tsi_mesh_desc *mesh = request->mesh;
    ts_topology topology = TS_INIT(ts_topology);
    TSI_TRY(ts_topology_of(mesh->world, &topology));
    tsi_links_make(&topology, mesh, mesh->count, links);
    int64_t *bytes = tsi_arena_calloc(scratch, (size_t)call->input_count + 1, sizeof *bytes);
    request->algorithm_us = algorithm_times(call, links, request, scratch);
    if (!bytes || !request->algorithm_us)
        return tsi_fail_memory("the search for a rule", sizeof *request);
    for (int32_t i = 0; i < call->input_count; i++)
        bytes[i] = (int64_t)ts_dtype_size((ts_dtype)call->in[i].dtype);
    request->in_bytes = bytes;
    request->links = links;
    return TS_OK;
}

/* The cheapest combination, found by looking at costs; for a story, which has the others too. */
static ts_status choose_by_cost(tsi_op_plan *plan, const tsi_op_call *call,
                                tsi_expand_request *request, tsi_arena *scratch, tsi_expansion *e,
                                tsi_op_story *story)
{
    tsi_links links;
    ts_status status;
    TSI_TRY(add_costs(call, scratch, &links, request));
    tsi_expand_search *search = tsi_expand_begin(request, scratch, &status);
    if (search) status = tsi_expand_next(search, e);
    if (status == TS_ERR_POLICY) return refuse_in_place(call, plan);
    if (status == TS_OK) status = take_expansion(plan, call, e);
    if (status == TS_OK && story) story_tell(story, request->rules, request->mesh, search, e);
    return status;
}

static ts_status choose(tsi_op_plan *plan, const tsi_op_call *call, tsi_arena *scratch,
                        tsi_op_story *story)
{
    tsi_mesh_desc *mesh = plan->mesh->desc;
    tsi_rules rules = { .arena = scratch };
    tsi_op_rules(call, &rules);
    if (rules.failed) return rules.why ? rules.why : TS_ERR_MEMORY;
    const ts_layout **in = tsi_arena_calloc(scratch, (size_t)call->input_count + 1, sizeof *in);
    tsi_expansion *e = tsi_arena_alloc(scratch, sizeof *e);
    if (!in || !e) return tsi_fail_memory("the choice of a rule", sizeof *e);
    for (int32_t i = 0; i < call->input_count; i++)
        if (plan->in[i] && plan->in[i]->sharding->mesh == mesh) in[i] = plan->in[i];
    joint_context joint = { call };
    tsi_expand_request request = {
        .mesh = mesh,
        .rules = &rules,
        .in = in,
        .out = call->out,
        .in_place = plan->in_place,
        .joint = call->op->joint ? joint_check : NULL,
        .context = &joint,
    };
    plan->matched = !story && tsi_expand_match(&request, e);
    ts_status status = plan->matched ? take_expansion(plan, call, e)
                                     : choose_by_cost(plan, call, &request, scratch, e, story);
    /* A layout that rules cannot say (a cut over several dims) would be left after all. */
    if (status == TS_OK && plan->in_place && plan->wanted[0]) return refuse_in_place(call, plan);
    return status;
}

static ts_status choose_view(tsi_op_plan *plan, const tsi_op_call *call)
{
    const ts_layout *wanted = NULL;
    const ts_sharding *sharding = NULL;
    TSI_TRY(call->op->propagate(call, plan->in[0], &wanted, &sharding));
    plan->matched = wanted == plan->in[0];
    if (plan->matched)
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

ts_status tsi_op_choose(tsi_op_plan *plan, const tsi_op_call *call, tsi_arena *scratch,
                        tsi_op_story *story)
{
    return call->op->propagate ? choose_view(plan, call) : choose(plan, call, scratch, story);
}
