/* SPDX-License-Identifier: Apache-2.0 */
/* shards.c - where the parameters of a unit lie.
 *
 *   cut     as planned, and each cutting axis of the unit cuts one dim more: after tensor parallel
 *           cuts of that dim, so that gathering gives a rank the block its operators want
 *   whole   as planned
 *   kept    as `cut`, over groups of neighbours of the cutting axis alone
 *
 * INV: which dim is cut follows from the shape and the plan alone. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "op/core/element.h"
#include "parallel/unit.h"

/* ---- which dim ------------------------------------------------------------------------------- */

/* Ranks that cut dim d already. */
static int64_t cuts_of(const ts_sharding *planned, int32_t d)
{
    int64_t ranks = 1;
    for (int32_t k = 0; k < planned->ndim; k++) {
        const ts_placement *place = &planned->place[k];
        bool cuts = tsi_placement_cuts(place) && place->dim <= d && d <= place->dim_last;
        if (cuts) ranks *= planned->mesh->size[k];
    }
    return ranks;
}

/* A dim that is part of a span cannot be cut beside it. */
static bool may_cut(const ts_sharding *planned, int32_t d)
{
    return !(planned->joined >> d & 1) && !(d > 0 && planned->joined >> (d - 1) & 1);
}

/* The first dim of more than one element is the best: its parts are neighbours in memory, so that
 * each arrives where it is read. If it does not give equal parts, another one that does; if none
 * does, the first again, or the largest where some ranks would get nothing. */
static int32_t choose_dim(const ts_shape *shape, const ts_sharding *planned, int64_t ranks)
{
    int32_t front = -1, even = -1, largest = -1;
    for (int32_t d = 0; d < shape->ndim; d++) {
        if (!may_cut(planned, d)) continue;
        int64_t extent = shape->extent[d];
        if (front < 0 && extent > 1) front = d;
        if (even < 0 && extent % (ranks * cuts_of(planned, d)) == 0 && extent > 0) even = d;
        if (largest < 0 || extent > shape->extent[largest]) largest = d;
    }
    if (even >= 0) return even;
    bool enough = front >= 0 && shape->extent[front] >= ranks * cuts_of(planned, front);
    return enough ? front : largest;
}

/* What the program says of a dim that would be chosen; that, where it says nothing. */
static int32_t ask_dim(const tsi_unit *u, const tsi_param *param, int32_t otherwise)
{
    char name[TSI_PARAM_NAME_MAX];
    if (!u->options.dim) return otherwise;
    (void)tsi_name_text(&param->name, name, sizeof name);
    return u->options.dim(name, param->shape, otherwise, u->options.dim_context);
}

static ts_status dim_of(const tsi_unit *u, const tsi_unit_param *p, const ts_sharding *planned,
                        int64_t ranks, int32_t *dim)
{
    char name[TSI_PARAM_NAME_MAX];
    const ts_shape *shape = &p->param->shape;
    *dim = ask_dim(u, p->param, choose_dim(shape, planned, ranks));
    if (*dim >= TS_FSDP_WHOLE && *dim < shape->ndim) return TS_OK;
    (void)tsi_name_text(&p->param->name, name, sizeof name);
    return TSI_FAIL(TS_ERR_ARG, "fsdp: unit %s: %s has %d dims, and is to be cut along dim %d",
                    u->name, name, shape->ndim, *dim);
}

/* ---- placements ------------------------------------------------------------------------------ */

static const ts_placement replicated = { .kind = TS_PLACE_REPLICATE, .factor = 1, .align = 1 };

static ts_placement cut_along(int32_t dim)
{
    return (ts_placement){ .kind = TS_PLACE_SHARD,
                           .dim = dim,
                           .dim_last = dim,
                           .order = -1, /* after the others */
                           .factor = 1,
                           .align = 1 };
}

/* The same on the mesh whose cutting axis is split into groups and what is inside them. */
static const ts_sharding *kept_of(const tsi_unit *u, const ts_sharding *planned, int32_t dim)
{
    ts_placement place[TS_NDIM_MAX];
    int32_t next = 0;
    for (int32_t k = 0; k < planned->ndim; k++) {
        if (!(u->axes_cut >> k & 1)) {
            place[next++] = planned->place[k];
        } else {
            place[next++] = replicated;
            place[next++] = cut_along(dim);
        }
    }
    return tsi_sharding_intern(u->groups->desc, place);
}

/* From the placements that were planned; `planned` may cut by the unit's axes itself. */
static ts_status place_from(tsi_unit *u, tsi_unit_param *p, const ts_sharding *planned)
{
    ts_placement whole[TS_NDIM_MAX] = { { 0 } }, cut[TS_NDIM_MAX] = { { 0 } };
    int64_t ranks = 1;
    int32_t given = -1; /* the dim that the plan cuts already */
    for (int32_t k = 0; k < planned->ndim; k++) {
        whole[k] = cut[k] = planned->place[k];
        if (!(u->axes_cut >> k & 1)) continue;
        if (tsi_placement_cuts(&planned->place[k])) given = planned->place[k].dim;
        whole[k] = replicated;
        ranks *= planned->mesh->size[k];
    }
    p->whole = tsi_sharding_intern(planned->mesh, whole);
    if (!p->whole) return ts_rank_status(u->rank);
    int32_t dim = given;
    if (given < 0 && ranks > 1) TSI_TRY(dim_of(u, p, p->whole, ranks, &dim));
    for (int32_t k = 0; k < planned->ndim && dim >= 0 && given < 0; k++)
        if (u->axes_cut >> k & 1) cut[k] = cut_along(dim);
    p->cut = tsi_sharding_intern(planned->mesh, cut);
    if (dim >= 0 && u->groups) p->kept = kept_of(u, p->whole, dim);
    return p->cut && (p->kept || dim < 0 || !u->groups) ? TS_OK : ts_rank_status(u->rank);
}

/* A parameter that has storage moves; one that is declared will be made there. */
static ts_status move_value(const tsi_unit *u, tsi_unit_param *p)
{
    ts_tensor *value = p->value;
    if (!ts_tensor_layout(value) || ts_tensor_layout(value)->sharding == p->cut) return TS_OK;
    ts_scope scope = ts_scope_open_with(u->rank, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    ts_status status = ts_tensor_relayout(value, p->cut);
    if (status == TS_OK) status = tsi_tensor_ready(value);
    ts_scope_close(scope);
    tsi_leaf *leaf = tsi_leaf_of(value);
    return status == TS_OK && leaf ? tsi_leaf_place(leaf, value) : status;
}

/* What is stored is said as a text, for files and what is made later. */
static ts_status store_text(tsi_unit_param *p)
{
    size_t length = ts_sharding_text(p->cut, NULL, 0);
    char *text = tsi_alloc(length + 1);
    if (!text) return tsi_fail_memory("placements of a parameter", length);
    (void)ts_sharding_text(p->cut, text, length + 1);
    tsi_free(p->param->stored);
    p->param->stored = text;
    return TS_OK;
}

/* Retained. */
static const ts_sharding *planned_of(const tsi_unit *u, const tsi_param *param)
{
    return param->stored ? tsi_sharding_parse(u->mesh->desc, param->stored)
                         : tsi_sharding_replicated(u->mesh->desc);
}

ts_status tsi_unit_ignores(const tsi_unit *u, const tsi_param *param, uint32_t axes, bool *out)
{
    *out = false;
    if (!u->options.dim) return TS_OK;
    const ts_sharding *planned = planned_of(u, param);
    if (!planned) return ts_rank_status(u->rank);
    int64_t ranks = 1;
    int32_t given = -1;
    for (int32_t k = 0; k < planned->ndim; k++) {
        if (!(axes >> k & 1)) continue;
        ranks *= planned->mesh->size[k];
        if (tsi_placement_cuts(&planned->place[k])) given = planned->place[k].dim;
    }
    int32_t dim = given >= 0 ? given : choose_dim(&param->shape, planned, ranks);
    *out = ask_dim(u, param, dim) == TS_FSDP_IGNORE;
    ts_sharding_release(planned);
    return TS_OK;
}

static ts_status place_param(tsi_unit *u, tsi_unit_param *p)
{
    const ts_sharding *planned = planned_of(u, p->param);
    if (!planned) return ts_rank_status(u->rank);
    ts_status status = place_from(u, p, planned);
    ts_sharding_release(planned);
    TSI_TRY(status);
    TSI_TRY(store_text(p));
    return move_value(u, p);
}

/* Real parameters of enough dims are seen in the dtype of products. */
static int32_t mirror_dtype(const tsi_unit *u, const tsi_param *param)
{
    bool real = tsi_dtype_category((ts_dtype)param->dtype) == TSI_CATEGORY_REAL;
    bool other = u->options.compute && u->options.compute != param->dtype;
    return real && other && param->shape.ndim >= u->options.compute_ndim ? u->options.compute : 0;
}

/* What shows the whole for a while is no value for a tape to hold. */
static void note_swaps(const tsi_unit_param *p)
{
    p->value->swaps = p->cut != p->whole || p->mirrors;
}

/* ---- anew ------------------------------------------------------------------------------------ */

/* The shardings of a parameter whose whole changes: its unit cuts it as before. */
static ts_status cut_anew(const tsi_unit *u, const tsi_unit_param *was, const ts_sharding *whole,
                          tsi_unit_param *out)
{
    ts_placement cut[TS_NDIM_MAX] = { { 0 } };
    int32_t dim = -1;
    for (int32_t k = 0; k < whole->ndim; k++) {
        bool own = u->axes_cut >> k & 1;
        cut[k] = own ? was->cut->place[k] : whole->place[k];
        if (own && tsi_placement_cuts(&cut[k])) dim = cut[k].dim;
    }
    *out = (tsi_unit_param){ .whole = ts_sharding_retain(whole),
                             .cut = tsi_sharding_intern(whole->mesh, cut) };
    if (was->kept && out->cut) out->kept = kept_of(u, whole, dim);
    return out->cut && (out->kept || !was->kept) ? TS_OK : ts_rank_status(u->rank);
}

static void release_shardings(tsi_unit_param *p)
{
    ts_sharding_release(p->cut);
    ts_sharding_release(p->whole);
    ts_sharding_release(p->kept);
}

const ts_sharding *tsi_unit_whole(const tsi_param *param)
{
    const tsi_unit *u = param->unit;
    for (int64_t i = 0; u && i < u->count; i++)
        if (u->param[i].param == param) return u->param[i].whole;
    return param->value->layout->sharding;
}

ts_status tsi_unit_take_back(tsi_unit *u)
{
    if (u->users > 0)
        return TSI_FAIL(TS_ERR_STATE, "fsdp: unit %s: its parameters are placed anew while it runs",
                        u->name);
    if (u->all) TSI_TRY(tsi_units_settle(u->all));
    TSI_TRY(tsi_unit_drop(u, false));
    tsi_unit_leave_shared(u);
    u->shares = 0;
    return TS_OK;
}

ts_status tsi_unit_place_anew(tsi_param *param, const ts_sharding *whole)
{
    tsi_unit *u = param->unit;
    tsi_unit_param *p = u->param, next;
    while (p->param != param)
        p++;
    TSI_TRY(tsi_unit_take_back(u));
    ts_status status = cut_anew(u, p, whole, &next);
    if (status != TS_OK) {
        release_shardings(&next);
        return status;
    }
    release_shardings(p);
    p->whole = next.whole;
    p->cut = next.cut;
    p->kept = next.kept;
    note_swaps(p);
    tsi_tensor_release(p->part);
    p->part = NULL;
    tsi_param_unmirror(param);
    TSI_TRY(store_text(p));
    return move_value(u, p);
}

/* ---- all of a unit --------------------------------------------------------------------------- */

ts_status tsi_unit_place(tsi_unit *u)
{
    for (int64_t i = 0; i < u->count; i++) {
        ts_status status = place_param(u, &u->param[i]);
        u->param[i].mirrors = mirror_dtype(u, u->param[i].param);
        note_swaps(&u->param[i]);
        if (status != TS_OK) {
            tsi_error_prefix("fsdp: unit %s", u->name);
            return status;
        }
    }
    return TS_OK;
}
