/* SPDX-License-Identifier: Apache-2.0 */
/* units.c - a model in units of sharded data parallelism: each block is one.
 *
 * A tied weight is used by two blocks, so it belongs to what is around both: the whole model is a
 * unit of what the blocks leave. Experts that are cut over ranks (spread.c) stay cut while their
 * layer runs: the axes that are left cut them further, or none does. */
#include <stdio.h>
#include <string.h>

#include "model/model.h"

enum { AXES_BYTES = 96 };

/* The cutting axes by name, without those of the mask. */
static void axes_text(const ts_model *m, uint32_t without, char *out)
{
    int32_t split = ts_mesh_axis(m->mesh, "ep");
    out[0] = '\0';
    for (int32_t k = 0; k < ts_mesh_ndim(m->mesh); k++) {
        const char *name = ts_mesh_axis_name(m->mesh, k);
        const char *whose = k == split && k > 0 ? ts_mesh_axis_name(m->mesh, k - 1) : name;
        bool cuts = strcmp(whose, "fsdp") == 0 ||
                    (strcmp(whose, "cp") == 0 && ts_mesh_axis(m->mesh, "fsdp") >= 0);
        if (!cuts || without >> k & 1) continue;
        size_t length = strlen(out);
        snprintf(out + length, AXES_BYTES - length, "%s%s", length ? ", " : "", name);
    }
}

/* A selection bias is written between steps (router.c) and never reduced: it stays whole. */
static bool is_bias_of_choice(const char *name)
{
    return strstr(name, ".e_score_correction_bias") != NULL;
}

static int32_t all_but_bias(const char *name, ts_shape shape, int32_t otherwise, void *context)
{
    const ts_fsdp_options *given = context;
    if (is_bias_of_choice(name)) return TS_FSDP_IGNORE;
    return given->dim ? given->dim(name, shape, otherwise, given->dim_context) : otherwise;
}

static int32_t all_but_experts(const char *name, ts_shape shape, int32_t otherwise, void *context)
{
    if (strstr(name, ".experts.")) return TS_FSDP_IGNORE;
    return all_but_bias(name, shape, otherwise, context);
}

/* Of experts the axes that are left, the context. */
static const char *axes_of_experts(const char *name, ts_shape shape, void *context)
{
    (void)shape;
    return strstr(name, ".experts.") ? context : NULL;
}

/* In a pipeline a tied weight is used by blocks of two stages, and nothing is around both: it stays
 * whole on each, and is reduced as a copy is. */
static int32_t stage_dim(const char *name, ts_shape shape, int32_t otherwise, void *context)
{
    const ts_model *m = context;
    if (m->config.tied && strcmp(name, m->tied_name) == 0) return TS_FSDP_WHOLE;
    return m->given_dim ? m->given_dim(name, shape, otherwise, m->given_context) : otherwise;
}

/* The block of the first stage, of which this rank holds the tied weight: the rest lies there, cut
 * as its ranks cut it. */
static ts_status cut_first(ts_model *m, const ts_fsdp_options *units)
{
    for (ts_module *part = m->block[0]->first; part; part = part->next)
        if (part->mesh->desc != m->mesh->desc) TSI_TRY(ts_fsdp(part, units));
    return TS_OK;
}

/* The schedule says when units are gathered. */
static void prepare_stages(ts_model *m)
{
    m->given_dim = m->units.dim;
    m->given_context = m->units.dim_context;
    m->units.dim = stage_dim;
    m->units.dim_context = m;
    m->units.prefetch_off = 1;
}

ts_status ts_model_fsdp(ts_model *m, const ts_fsdp_options *options)
{
    if (!m) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(m->rank));
    m->units = (ts_fsdp_options){ .struct_size = sizeof m->units };
    if (options)
        memcpy(&m->units, options,
               options->struct_size < sizeof m->units ? options->struct_size : sizeof m->units);
    if (!m->units.compute) { /* what products take is cast; norms and biases are as they are */
        m->units.compute = m->compute;
        m->units.compute_ndim = 2;
    }
    if (m->here) prepare_stages(m);
    bool tied = m->config.tied && !m->here;
    char all[AXES_BYTES], rest[AXES_BYTES];
    ts_fsdp_options units = m->units;
    axes_text(m, 0, all);
    axes_text(m, m->ep_axes, rest);
    if (!units.axes && all[0]) units.axes = all;
    bool spread = m->ep_axes && strcmp(all, rest) != 0;
    if (m->router_count > 0) {
        units.dim = spread && !rest[0] ? all_but_experts : all_but_bias;
        units.dim_context = &m->units;
    }
    if (spread && rest[0]) {
        units.axes_fn = axes_of_experts;
        units.axes_context = rest;
    }
    for (int64_t i = tied; i < m->block_count; i++) {
        TSI_TRY(i == 0 && m->tied_copy ? cut_first(m, &units) : ts_fsdp(m->block[i], &units));
    }
    if (tied) TSI_TRY(ts_fsdp(m->root, &units));
    m->has_units = 1;
    return TS_OK;
}
