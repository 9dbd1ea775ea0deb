/* SPDX-License-Identifier: Apache-2.0 */
/* spread.c - expert parallelism: the experts of a layer are cut over groups of neighbouring ranks.
 *
 *   fsdp=4, groups of 2    the mesh becomes fsdp=2, ep=2; experts: ep:S(0), their shards over fsdp
 *   fsdp=2, tp=2, of 2     the group is the axis tp; experts: tp:S(0) instead of a cut of each
 *   fsdp=2, tp=2, of 4     both axes
 *
 * Neighbours differ in the innermost axes, so a group is whole axes from the last one on, and at
 * most a part of one more, which is split: outside it keeps its name, inside it is "ep". Where the
 * mesh has no such neighbours (fsdp=3, tp=2, groups of 3) other axes of as many ranks are one. Of
 * tp and cp no part can be a group (tp=4, groups of 2): then it is larger, the axis as a whole, and
 * a rank of tp holds as much, whole experts instead of parts of them.
 * Where tokens are cut over the group, rows go to their experts (op/matrix/grouped_mlp_exchange.c);
 * over `tp` each rank does its own experts' part of the same tokens. Nothing else of a model knows
 * of it. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "model/model.h"

static ts_status refuse(const ts_model *m, int64_t ep, const char *why)
{
    char text[256];
    (void)ts_mesh_text(m->mesh, text, sizeof text);
    return TSI_FAIL(TS_ERR_ARG, "model: experts over groups of %lld ranks of the mesh \"%s\": %s",
                    (long long)ep, text, why);
}

/* Splits axis k so that its inner part has `inner` ranks. */
static ts_status split(ts_model *m, int32_t k, int64_t inner)
{
    char axes[96];
    const char *name = ts_mesh_axis_name(m->mesh, k);
    snprintf(axes, sizeof axes, "%s=%lld, ep=%lld", name,
             (long long)(ts_mesh_axis_size(m->mesh, k) / inner), (long long)inner);
    ts_mesh *mesh = ts_mesh_split(m->mesh, name, axes);
    if (!mesh) return ts_rank_status(m->rank);
    ts_mesh_release(m->mesh);
    m->mesh = mesh;
    return TS_OK;
}

/* The axes of a group: some whole, and of one more an inner part. */
typedef struct group_axes {
    uint32_t whole;
    int32_t part; /* -1: none */
    int64_t inner;
} group_axes;

/* Only of an axis that cuts the batch can a part be one. */
static bool has_parts(const ts_model *m, int32_t k)
{
    return k != ts_mesh_axis(m->mesh, "tp") && k != ts_mesh_axis(m->mesh, "cp") &&
           k != ts_mesh_axis(m->mesh, "pp");
}

/* Neighbours: from the last axis on. */
static bool take_neighbours(const ts_model *m, int64_t ep, group_axes *out)
{
    *out = (group_axes){ .part = -1 };
    for (int32_t k = ts_mesh_ndim(m->mesh) - 1; k >= 0 && ep > 1; k--) {
        int64_t size = ts_mesh_axis_size(m->mesh, k);
        if (k == ts_mesh_axis(m->mesh, "pp")) continue;
        if (ep % size == 0) {
            out->whole |= 1u << k;
            ep /= size;
            continue;
        }
        if (size % ep != 0 || !has_parts(m, k)) return false;
        out->part = k;
        out->inner = ep;
        return true;
    }
    return ep == 1;
}

/* Any axes whose ranks are that many: where neighbours are no whole part of the mesh. The later
 * axes first. */
static bool take_any(const ts_model *m, int64_t ep, group_axes *out)
{
    int32_t ndim = ts_mesh_ndim(m->mesh), pipeline = ts_mesh_axis(m->mesh, "pp");
    for (uint32_t whole = (1u << ndim) - 1; whole < 1u << ndim; whole--) {
        int64_t ranks = 1;
        for (int32_t k = 0; k < ndim; k++)
            if (whole >> k & 1) ranks *= ts_mesh_axis_size(m->mesh, k);
        if ((pipeline >= 0 && whole >> pipeline & 1) || ep % ranks != 0) continue;
        *out = (group_axes){ .whole = whole, .part = -1, .inner = ep / ranks };
        if (out->inner == 1) return true;
        for (int32_t k = ndim - 1; k >= 0; k--) {
            if (whole >> k & 1 || !has_parts(m, k)) continue;
            out->part = k;
            if (ts_mesh_axis_size(m->mesh, k) % out->inner == 0) return true;
        }
    }
    return false;
}

/* The fewest ranks of whole axes that groups of `ep` are parts of. False: there are none. */
static bool take_larger(const ts_model *m, int64_t ep, group_axes *out)
{
    int32_t ndim = ts_mesh_ndim(m->mesh), pipeline = ts_mesh_axis(m->mesh, "pp");
    int64_t least = INT64_MAX;
    for (uint32_t whole = 1; whole < 1u << ndim; whole++) {
        int64_t ranks = 1;
        for (int32_t k = 0; k < ndim; k++)
            if (whole >> k & 1) ranks *= ts_mesh_axis_size(m->mesh, k);
        if ((pipeline >= 0 && whole >> pipeline & 1) || ranks % ep != 0 || ranks >= least) continue;
        *out = (group_axes){ .whole = whole, .part = -1 };
        least = ranks;
    }
    if (least < INT64_MAX)
        tsi_log(TSI_LOG_WARN,
                "experts over groups of %lld ranks: of tp and cp no part can be one, so groups "
                "have %lld",
                (long long)ep, (long long)least);
    return least < INT64_MAX;
}

ts_status tsi_model_spread(ts_model *m, int64_t ep)
{
    m->ep = ep;
    if (ep <= 1) return ep < 0 ? refuse(m, ep, "expected 1 or more") : TS_OK;
    if (m->config.experts <= 0) return refuse(m, ep, "the model has none");
    int32_t pipeline = ts_mesh_axis(m->mesh, "pp");
    int64_t stage = ts_mesh_size(m->mesh, NULL);
    if (pipeline >= 0) stage /= ts_mesh_axis_size(m->mesh, pipeline);
    if (ep > stage || stage % ep != 0)
        return refuse(m, ep, "that number does not divide the ranks of a stage");
    group_axes axes;
    bool taken =
        take_neighbours(m, ep, &axes) || take_any(m, ep, &axes) || take_larger(m, ep, &axes);
    TSI_ASSERT(taken); /* all axes of a stage are a group that any other is part of */
    (void)taken;
    m->ep_axes = axes.whole;
    if (axes.part < 0) return TS_OK;
    TSI_TRY(split(m, axes.part, axes.inner));
    uint32_t below = (1u << (axes.part + 1)) - 1; /* axes behind it moved up by one */
    m->ep_axes = (axes.whole & below) | (axes.whole & ~below) << 1 | 1u << (axes.part + 1);
    return TS_OK;
}

/* "*.experts.down_proj: ep:S(0) tp:S(2)", with `inside` where tp cuts within an expert. */
static void add_line(const ts_model *m, const char *pattern, const char *inside, tsi_text *out)
{
    int32_t tensor = ts_mesh_axis(m->mesh, "tp");
    tsi_text_printf(out, "%s:", pattern);
    for (int32_t k = 0; k < ts_mesh_ndim(m->mesh); k++) {
        bool within = k == tensor && inside;
        if (m->ep_axes >> k & 1)
            tsi_text_printf(out, " %s:S(0)", ts_mesh_axis_name(m->mesh, k));
        else if (within)
            tsi_text_printf(out, " %s:%s", ts_mesh_axis_name(m->mesh, k), inside);
    }
    tsi_text_add(out, "\n");
}

char *tsi_model_spread_plan(const ts_model *m, const char *plan)
{
    bool within = strstr(plan, ".experts.") != NULL; /* the plan cuts inside of experts */
    tsi_text out = { 0 };
    add_line(m, "*.experts.gate_up_proj", within ? "SS(1,2)" : NULL, &out);
    add_line(m, "*.experts.down_proj", within ? "S(2)" : NULL, &out);
    tsi_text_add(&out, plan);
    return tsi_text_take(&out);
}
