/* SPDX-License-Identifier: Apache-2.0 */
/* plan_case.c - from a question to a plan, and what can be read off it: layouts between steps, who
 * sends to whom. */
#include <stdlib.h>
#include <string.h>

#include "plan.h"

static bool read_dtype(const char *text, ts_dtype *out, char *error, size_t size)
{
    const char *names[TS_DTYPE_COUNT];
    size_t count = 0;
    *out = text != NULL ? ts_dtype_parse(text) : TS_DTYPE_F32;
    if (*out != TS_DTYPE_NONE) return true;
    for (int i = 1; i < TS_DTYPE_COUNT; i++)
        names[count++] = ts_dtype_name((ts_dtype)i);
    const char *near = cli_nearest(text, names, count);
    (void)snprintf(error, size, "dtype: there is no \"%s\"%s%s%s", text,
                   near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    return false;
}

static bool fail(char *error, size_t size)
{
    (void)snprintf(error, size, "%s", ts_last_error());
    return false;
}

static bool make(plan_case *c, const plan_request *r, char *error, size_t size)
{
    if (!read_dtype(r->dtype, &c->dtype, error, size)) return false;
    c->src_mesh = layout_mesh(c->world, r->mesh, error, size);
    if (c->src_mesh == NULL) return false;
    if (r->to_mesh != NULL)
        c->dst_mesh = layout_mesh(c->world, r->to_mesh, error, size);
    else
        c->dst_mesh = ts_mesh_retain(c->src_mesh);
    if (c->dst_mesh == NULL) return false;
    c->src = layout_make(c->src_mesh, r->from, r->shape, "source", error, size);
    if (c->src == NULL) return false;
    c->dst = layout_make(c->dst_mesh, r->to, r->shape, "target", error, size);
    if (c->dst == NULL) return false;
    c->has_topology = r->topology != NULL;
    if (c->has_topology && ts_topology_load(r->topology, &c->topology) != TS_OK)
        return fail(error, size);
    ts_plan_options options = { .struct_size = sizeof options,
                                .planner = r->planner,
                                .topology = c->has_topology ? &c->topology : NULL,
                                .budget_bytes = r->budget };
    if (ts_plan_create(c->src, c->dst, c->dtype, &options, &c->plan) != TS_OK)
        return fail(error, size);
    c->summary.struct_size = sizeof c->summary;
    ts_plan_summarise(c->plan, &c->summary);
    int64_t src_end = ts_mesh_rank_end(c->src_mesh), dst_end = ts_mesh_rank_end(c->dst_mesh);
    c->ranks = src_end > dst_end ? src_end : dst_end;
    return true;
}

bool plan_open(ts_world *world, const plan_request *request, plan_case *out, char *error,
               size_t size)
{
    *out = (plan_case){ .world = world };
    if (make(out, request, error, size)) return true;
    plan_close(out);
    return false;
}

void plan_close(plan_case *c)
{
    ts_plan_release(c->plan);
    ts_layout_release(c->src);
    ts_layout_release(c->dst);
    ts_mesh_release(c->src_mesh);
    ts_mesh_release(c->dst_mesh);
    *c = (plan_case){ 0 };
}

/* ---- reading it ------------------------------------------------------------------------------ */
const ts_layout *plan_step_layout(const plan_case *c, int32_t step, bool after)
{
    size_t length =
        after ? ts_plan_step_to(c->plan, step, NULL, 0) : ts_plan_step_from(c->plan, step, NULL, 0);
    bool direct = c->summary.family == TS_PLAN_DIRECT || c->summary.family == TS_PLAN_HIERARCHICAL;
    if (direct) return ts_layout_retain(after ? c->dst : c->src);
    char *text = malloc(length + 1);
    if (text == NULL) return NULL;
    (void)(after ? ts_plan_step_to(c->plan, step, text, length + 1)
                 : ts_plan_step_from(c->plan, step, text, length + 1));
    char error[LAYOUT_ERROR_MAX];
    const ts_layout *layout =
        layout_make(c->src_mesh, text, ts_layout_shape(c->src), "step", error, sizeof error);
    free(text);
    return layout;
}

const char *plan_axes_text(const ts_mesh *mesh, uint32_t axes, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (int32_t k = 0; k < ts_mesh_ndim(mesh) && used < size; k++) {
        if (!(axes >> k & 1u)) continue;
        const char *name = ts_mesh_axis_name(mesh, k), *plus = used > 0 ? "+" : "";
        if (name[0] != '\0')
            used += (size_t)snprintf(out + used, size - used, "%s%s", plus, name);
        else
            used += (size_t)snprintf(out + used, size - used, "%s%d", plus, k);
    }
    return out;
}

typedef struct traffic {
    int64_t count, item, *bytes;
} traffic;

static void add_block(const ts_plan_block *block, void *context)
{
    traffic *t = context;
    int64_t elements = 1;
    if (block->from == block->to || block->from >= t->count) return;
    for (int32_t d = 0; d < block->ndim; d++)
        elements *= block->extent[d];
    t->bytes[block->from * t->count + block->to] += elements * t->item;
}

bool plan_traffic(const plan_case *c, int64_t count, int64_t *bytes)
{
    traffic t = { count, (int64_t)ts_dtype_size(c->dtype), bytes };
    for (int64_t rank = 0; rank < count; rank++) {
        if (ts_plan_receives(c->plan, rank, add_block, &t) != TS_OK) return false;
    }
    return true;
}
