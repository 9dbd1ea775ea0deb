/* SPDX-License-Identifier: Apache-2.0 */
/* plan.c - the public face of plans: making, caching, holding, reading. */
#include "plan/plan.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/intmath.h"
#include "plan/cache.h"

/* The caller's options in our size, whatever size the caller was built with. */
static ts_status read_options(const ts_plan_options *from, ts_plan_options *out)
{
    memset(out, 0, sizeof *out);
    out->struct_size = sizeof *out;
    if (!from) return TS_OK;
    if (from->struct_size < sizeof(size_t)) {
        return TSI_FAIL(TS_ERR_ARG, "plan: options.struct_size is %zu, use TS_INIT",
                        from->struct_size);
    }
    memcpy(out, from, from->struct_size < sizeof *out ? from->struct_size : sizeof *out);
    return TS_OK;
}

static ts_status check_arguments(const ts_layout *src, const ts_layout *dst, ts_plan **out)
{
    if (!out) return TSI_FAIL(TS_ERR_NULL, "plan: the output is NULL");
    *out = NULL;
    if (!src || !dst)
        return TSI_FAIL(TS_ERR_NULL, "plan: the %s layout is NULL", src ? "target" : "source");
    return TS_OK;
}

static ts_status make(const ts_layout *src, const ts_layout *dst, ts_dtype dtype,
                      const ts_plan_options *options, ts_plan **out)
{
    ts_topology topology;
    if (options->topology) {
        TSI_TRY(tsi_topology_check(options->topology));
        return tsi_plan_make(src, dst, dtype, options, options->topology, out);
    }
    TSI_TRY(ts_topology_of(src->sharding->mesh->world, &topology));
    return tsi_plan_make(src, dst, dtype, options, &topology, out);
}

ts_status ts_plan_create(const ts_layout *src, const ts_layout *dst, ts_dtype dtype,
                         const ts_plan_options *options, ts_plan **out)
{
    TSI_TRY(check_arguments(src, dst, out));
    ts_plan_options own;
    TSI_TRY(read_options(options, &own));
    return make(src, dst, dtype, &own, out);
}

ts_status ts_plan_cached(const ts_layout *src, const ts_layout *dst, ts_dtype dtype,
                         const ts_plan_options *options, ts_plan **out)
{
    TSI_TRY(check_arguments(src, dst, out));
    ts_world *world = src->sharding->mesh->world;
    ts_rank *rank = options ? NULL : tsi_rank_current();
    if (rank && rank->world == world) {
        TSI_TRY(tsi_plan_for(rank, src, dst, dtype, false, out));
        ts_plan_retain(*out);
        return TS_OK;
    }
    ts_plan_options own;
    TSI_TRY(read_options(options, &own));
    tsi_planner planner = TSI_PLANNER_AUTO;
    if (own.planner) TSI_TRY(tsi_planner_parse(own.planner, &planner));
    tsi_plan_key key = { .src = src,
                         .dst = dst,
                         .budget_bytes = own.budget_bytes,
                         .dtype = (int32_t)dtype,
                         .planner = (int32_t)planner,
                         .staged = own.staged,
                         .forbid = own.forbid };
    key.topology = own.topology ? tsi_topology_hash(own.topology) | (uint64_t)1 << 63
                                : atomic_load_explicit(&world->generation, memory_order_acquire);
    *out = tsi_plan_cache_find(world, &key);
    if (*out) return TS_OK;
    TSI_TRY(make(src, dst, dtype, &own, out));
    tsi_plan_cache_add(world, &key, *out);
    return TS_OK;
}

ts_plan *ts_plan_retain(ts_plan *plan)
{
    if (plan) atomic_fetch_add_explicit(&plan->references, 1, memory_order_relaxed);
    return plan;
}

void ts_plan_release(ts_plan *plan)
{
    if (!plan || atomic_fetch_sub_explicit(&plan->references, 1, memory_order_acq_rel) > 1) return;
    ts_layout_release(plan->src);
    ts_layout_release(plan->dst);
    tsi_free(plan->step);
    tsi_free(plan);
}

/* ---- reading -------------------------------------------------------------------------------- */

void ts_plan_summarise(const ts_plan *plan, ts_plan_summary *out)
{
    ts_plan_summary all = { .struct_size = sizeof all,
                            .family = plan->family,
                            .step_count = plan->step_count,
                            .bytes_received = plan->bytes_received,
                            .bytes_bound = plan->bytes_bound,
                            .peak_bytes = plan->peak_bytes,
                            .time_us = plan->time_us,
                            .other_family = plan->other_family,
                            .other_bounded = plan->other_bounded,
                            .other_us = plan->other_us,
                            .other_bytes = plan->other_bytes,
                            .states = plan->states,
                            .rounds = 0 };
    if (plan->family >= TS_PLAN_DIRECT) {
        all.rounds = plan->family == TS_PLAN_HIERARCHICAL ||
                             (plan->pair.src.terms > 1 && plan->pair.dst.replicas > 1)
                         ? 2
                         : 1;
        for (int32_t d = 0; d < plan->pair.dims; d++)
            all.rounds *= plan->grid[d];
    }
    size_t size =
        out->struct_size < sizeof all && out->struct_size > 0 ? out->struct_size : sizeof all;
    memcpy(out, &all, size);
    out->struct_size = size;
}

const ts_layout *ts_plan_source(const ts_plan *plan)
{
    return plan->src;
}
const ts_layout *ts_plan_target(const ts_plan *plan)
{
    return plan->dst;
}
ts_dtype ts_plan_dtype(const ts_plan *plan)
{
    return (ts_dtype)plan->dtype;
}
const char *ts_plan_planner(const ts_plan *plan)
{
    return tsi_planner_names[plan->planner];
}

ts_status ts_plan_step_at(const ts_plan *plan, int32_t index, ts_plan_step *out)
{
    if (!plan || !out) return TSI_FAIL(TS_ERR_NULL, "plan: the plan or the output is NULL");
    if (index < 0 || index >= plan->step_count) {
        return TSI_FAIL(TS_ERR_ARG, "plan: step %d of %d", index, plan->step_count);
    }
    const tsi_path_step *step = &plan->step[index];
    ts_plan_step all = { .struct_size = sizeof all,
                         .kind = step->kind,
                         .axes = step->axes,
                         .bytes_received = step->bytes,
                         .time_us = step->time_us };
    size_t size =
        out->struct_size < sizeof all && out->struct_size > 0 ? out->struct_size : sizeof all;
    memcpy(out, &all, size);
    out->struct_size = size;
    return TS_OK;
}

ts_status tsi_plan_state_layout(const ts_plan *plan, tsi_state state, const ts_layout **out)
{
    *out = NULL;
    const ts_sharding *sharding =
        tsi_space_sharding(&plan->space, plan->src->sharding->mesh, state);
    if (!sharding) return TS_ERR_MEMORY;
    *out = tsi_layout_intern(sharding, &plan->src->shape);
    ts_sharding_release(sharding);
    return *out ? TS_OK : TS_ERR_MEMORY;
}

ts_status tsi_plan_step_layouts(const ts_plan *plan, int32_t index, const ts_layout **from,
                                const ts_layout **to)
{
    *from = *to = NULL;
    bool first = index == 0, last = index == plan->step_count - 1;
    ts_status status = TS_OK;
    if (first)
        *from = ts_layout_retain(plan->src);
    else
        status = tsi_plan_state_layout(plan, plan->step[index - 1].to, from);
    if (last)
        *to = ts_layout_retain(plan->dst);
    else if (status == TS_OK)
        status = tsi_plan_state_layout(plan, plan->step[index].to, to);
    if (status == TS_OK) return TS_OK;
    if (*from) ts_layout_release(*from);
    if (*to) ts_layout_release(*to);
    *from = *to = NULL;
    return status;
}
