/* SPDX-License-Identifier: Apache-2.0 */
/* check.c - which transfers have a meaning. Everything here depends on shared metadata only, so all
 * ranks refuse alike, before anything moves. */
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/text.h"
#include "device/device.h"
#include "plan/plan.h"

const char *const tsi_planner_names[] = {
    "auto", "collectives", "direct", "greedy", "graph", NULL
};

ts_status tsi_planner_parse(const char *name, tsi_planner *out)
{
    *out = TSI_PLANNER_AUTO;
    if (!name || name[0] == '\0') return TS_OK;
    for (int32_t i = 0; tsi_planner_names[i]; i++) {
        if (strcmp(name, tsi_planner_names[i]) != 0) continue;
        *out = (tsi_planner)i;
        return TS_OK;
    }
    const char *near = tsi_text_nearest(name, tsi_planner_names);
    if (near) return TSI_FAIL(TS_ERR_ARG, "plan: no planner '%s'; did you mean '%s'?", name, near);
    return TSI_FAIL(TS_ERR_ARG,
                    "plan: no planner '%s'; there are auto, collectives, direct, greedy and graph",
                    name);
}

static void axis_name(const tsi_mesh_desc *mesh, int32_t axis, char *out, size_t size)
{
    if (mesh->name[axis][0] != '\0')
        snprintf(out, size, "axis '%s'", mesh->name[axis]);
    else
        snprintf(out, size, "axis %d", axis);
}

/* Not two partials that cannot be combined in any order. */
static ts_status check_mix(const ts_layout *layout, const char *which)
{
    const ts_sharding *sharding = layout->sharding;
    int32_t first = -1;
    for (int32_t k = 0; k < sharding->ndim; k++) {
        if (!tsi_placement_partial(&sharding->place[k])) continue;
        if (first < 0) first = k;
        if (tsi_ops_mix(&sharding->place[first], &sharding->place[k])) continue;
        char a[64], b[64];
        ts_placement_text(sharding, first, a, sizeof a);
        ts_placement_text(sharding, k, b, sizeof b);
        return TSI_FAIL(
            TS_ERR_SHAPE,
            "plan: the %s mixes %s and %s; only sum and avg may stand in one list, others would "
            "depend on the order of reduction",
            which, a, b);
    }
    return TS_OK;
}

/* Has the dtype this reduction? */
static ts_status check_reduce(const ts_placement *place, ts_dtype dtype)
{
    const char *why = NULL;
    if (place->kind != TS_PLACE_NORM) {
        if (tsi_reduce_allowed((ts_reduce)place->reduce, dtype, &why)) return TS_OK;
        return TSI_FAIL(TS_ERR_DTYPE, "plan: a partial of kind %s has no meaning for %s: %s",
                        ts_reduce_name((ts_reduce)place->reduce), ts_dtype_name(dtype), why);
    }
    if (tsi_dtype_is_real((int32_t)dtype)) return TS_OK;
    return TSI_FAIL(TS_ERR_DTYPE, "plan: a partial of kind norm has no meaning for %s",
                    ts_dtype_name(dtype));
}

/* Is something combined with, or made a term of, this placement on an axis? */
static ts_status check_partials(const ts_layout *layout, ts_dtype dtype)
{
    const ts_sharding *sharding = layout->sharding;
    for (int32_t k = 0; k < sharding->ndim; k++) {
        const ts_placement *place = &sharding->place[k];
        if (sharding->mesh->size[k] > 1 && tsi_placement_partial(place))
            TSI_TRY(check_reduce(place, dtype));
    }
    return TS_OK;
}

static ts_status check_axis(const ts_layout *src, const ts_layout *dst, int32_t k)
{
    const ts_placement *from = &src->sharding->place[k], *to = &dst->sharding->place[k];
    int64_t size = src->sharding->mesh->size[k];
    if (size == 1) return TS_OK;
    bool refused = false, differ = false;
    if (tsi_placement_partial(to)) {
        refused = tsi_placement_cuts(from);
        differ = tsi_placement_partial(from) && !tsi_placement_equal(from, to, size);
    }
    if (refused || differ) {
        char a[64], b[64], axis[64];
        ts_placement_text(src->sharding, k, a, sizeof a);
        ts_placement_text(dst->sharding, k, b, sizeof b);
        axis_name(src->sharding->mesh, k, axis, sizeof axis);
        return TSI_FAIL(TS_ERR_SHAPE, "plan: %s cannot go from %s to %s: %s", axis, a, b,
                        differ ? "one kind of partial is not another; reduce to R first"
                               : "a shard has no terms to be combined; gather to R first");
    }
    return TS_OK;
}

static ts_status check_shapes(const ts_layout *src, const ts_layout *dst)
{
    if (tsi_shape_same(&src->shape, &dst->shape)) return TS_OK;
    return TSI_FAIL(TS_ERR_SHAPE, "plan: source %s and target %s have different shapes", src->text,
                    dst->text);
}

ts_status tsi_partials_check(const ts_layout *layout, ts_dtype dtype)
{
    TSI_TRY(check_mix(layout, "layout"));
    return check_partials(layout, dtype);
}

ts_status tsi_plan_check(const ts_layout *src, const ts_layout *dst, ts_dtype dtype)
{
    const tsi_mesh_desc *a = src->sharding->mesh, *b = dst->sharding->mesh;
    if (ts_dtype_size(dtype) == 0)
        return TSI_FAIL(TS_ERR_DTYPE, "plan: dtype %d is unknown", (int)dtype);
    if (a->world != b->world) {
        return TSI_FAIL(TS_ERR_MESH, "plan: source and target belong to different worlds");
    }
    TSI_TRY(check_shapes(src, dst));
    TSI_TRY(check_mix(src, "source"));
    TSI_TRY(check_mix(dst, "target"));
    for (int32_t k = 0; a == b && k < a->ndim; k++)
        TSI_TRY(check_axis(src, dst, k));
    if (src == dst) return TS_OK;
    TSI_TRY(check_partials(src, dtype));
    return check_partials(dst, dtype);
}
