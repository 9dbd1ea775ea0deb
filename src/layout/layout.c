/* SPDX-License-Identifier: Apache-2.0 */
/* layout.c - a sharding with a global shape, as one pointer, and all that follows from the two.
 *
 * INV: a layout's dims are in range, its cuts fit (ragged sizes add up to what they cut, on every
 * coordinate), and no dim is counted from the end: such a sharding is resolved here, and the layout
 * holds the resolved one. So nothing below can fail but for memory. A repeated question is answered
 * from the rank's own memory, without a lock. */
#include "layout/cut.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/intmath.h"
#include "layout/placement.h"
#include "layout/slots.h"

/* ---- dims counted from the end -------------------------------------------------------------- */

/* The sharding with all dims counted from 0, for tensors of ndim dims; retained. Cuts in
 * left-to-right order stay so when a dim turns out to be cut from both ends of the counting. */
static const ts_sharding *resolve(const ts_sharding *sharding, int32_t ndim)
{
    ts_placement place[TS_NDIM_MAX];
    for (int32_t k = 0; k < sharding->ndim; k++) {
        place[k] = sharding->place[k];
        place[k].order = TSI_ORDER_NONE;
    }
    for (int32_t i = 1; i < sharding->order_count; i++) {
        int32_t a = sharding->order[i - 1], b = sharding->order[i];
        if (sharding->place[a].dim != sharding->place[b].dim || a < b) continue;
        for (int32_t k = 0; k < sharding->ndim; k++)
            if (sharding->place[k].dim == sharding->place[b].dim)
                place[k].order = sharding->place[k].order;
    }
    for (int32_t k = 0; k < sharding->ndim; k++) {
        if (!tsi_placement_cuts(&place[k]) || place[k].dim >= 0) continue;
        if (place[k].dim + ndim < 0) {
            TSI_FAIL(TS_ERR_SHAPE, "placement %d cuts dim %d of a tensor of %d dims", (int)k,
                     (int)place[k].dim, (int)ndim);
            return NULL;
        }
        place[k].dim += ndim;
        place[k].dim_last += ndim;
    }
    return tsi_sharding_intern(sharding->mesh, place);
}

/* ---- making --------------------------------------------------------------------------------- */

typedef struct layout_key {
    const ts_sharding *sharding;
    const ts_shape *shape;
} layout_key;

static uint64_t hash_key(const ts_sharding *sharding, const ts_shape *shape)
{
    uint64_t hash = sharding->interned.hash ^ (uint64_t)shape->ndim;
    for (int32_t d = 0; d < shape->ndim; d++) {
        hash = (hash ^ (uint64_t)shape->extent[d]) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    return hash;
}

static bool is_layout(const ts_layout *layout, const ts_sharding *sharding, const ts_shape *shape)
{
    return layout->sharding == sharding && tsi_shape_same(&layout->shape, shape);
}

static bool equal_layout(const tsi_interned *value, const void *key)
{
    const layout_key *wanted = key;
    return is_layout((const ts_layout *)value, wanted->sharding, wanted->shape);
}

static void print_shape(tsi_text *text, const ts_shape *shape)
{
    tsi_text_add(text, "[");
    for (int32_t d = 0; d < shape->ndim; d++) {
        if (d > 0) tsi_text_add(text, ", ");
        tsi_text_int(text, shape->extent[d]);
    }
    tsi_text_add(text, "]");
}

static ts_status fail_shape(const ts_sharding *sharding, const ts_shape *shape, int32_t axis,
                            const char *why)
{
    tsi_text text = { 0 };
    char place[64];
    (void)ts_placement_text(sharding, axis, place, sizeof place);
    print_shape(&text, shape);
    ts_status status =
        TSI_FAIL(TS_ERR_SHAPE, "placement %d, %s, does not fit a tensor of shape %s: %s", (int)axis,
                 place, text.failed ? "?" : text.data, why);
    tsi_text_release(&text);
    return status;
}

static ts_status check_shape(const ts_shape *shape)
{
    for (int32_t d = 0; d < shape->ndim; d++)
        if (shape->extent[d] < 0 || shape->extent[d] >= TSI_EXTENT_MAX)
            return TSI_FAIL(TS_ERR_SHAPE, "extent %lld of dim %d is negative or not below 2^62",
                            (long long)shape->extent[d], (int)d);
    return TS_OK;
}

/* Joins dims that are cut as one, and finds the cuts of each. */
static ts_status set_view(ts_layout *layout)
{
    const ts_sharding *s = layout->sharding;
    int32_t dims = 0, cut = 0;
    for (int32_t k = 0; k < s->ndim; k++)
        if (tsi_placement_cuts(&s->place[k]) && s->place[k].dim_last >= layout->shape.ndim)
            return fail_shape(s, &layout->shape, k, "it has no such dim");
    for (int32_t d = 0; d < layout->shape.ndim; dims++) {
        int64_t extent = layout->shape.extent[d];
        layout->view_dim[dims] = d;
        layout->cut_first[dims] = cut;
        for (; s->joined >> d & 1; d++) {
            if (!tsi_mul_i64(extent, layout->shape.extent[d + 1], &extent) ||
                extent >= TSI_EXTENT_MAX)
                return fail_shape(s, &layout->shape, s->order[cut],
                                  "the dims cut as one hold 2^62 elements or more");
        }
        layout->view.extent[dims] = extent;
        d++;
        while (cut < s->order_count && s->place[s->order[cut]].dim < d)
            cut++;
    }
    layout->view.ndim = dims;
    layout->cut_first[dims] = cut;
    return TS_OK;
}

/* Follows the extents through the cuts of one view dim as long as they are the same on all
 * coordinates. */
static ts_status check_cuts(ts_layout *layout, int32_t v)
{
    const ts_sharding *s = layout->sharding;
    int64_t extent = layout->view.extent[v];
    bool same = true;
    for (int32_t i = layout->cut_first[v]; i < layout->cut_first[v + 1]; i++) {
        int32_t axis = s->order[i];
        const ts_placement *place = &s->place[axis];
        tsi_cut cut = { place, s->mesh->size[axis], extent };
        if (place->kind == TS_PLACE_RAGGED) {
            char why[128];
            int64_t total = tsi_cut_ragged_total(&cut);
            (void)snprintf(why, sizeof why, "its sizes add up to %lld, and it cuts %lld%s",
                           (long long)total, (long long)extent,
                           same ? "" : " on some coordinates, other extents on others");
            if (!same || total != extent) return fail_shape(s, &layout->shape, axis, why);
        }
        same = same && tsi_cut_even(&cut, &extent);
    }
    if (!same) layout->even = 0;
    return TS_OK;
}

static void set_counts(ts_layout *layout)
{
    const ts_sharding *s = layout->sharding;
    bool fits = true;
    layout->count = layout->replicas = layout->terms = 1;
    for (int32_t d = 0; d < layout->shape.ndim; d++) {
        if (layout->shape.extent[d] == 0) {
            layout->count = 0;
            fits = true;
            break;
        }
        fits = fits && tsi_mul_i64(layout->count, layout->shape.extent[d], &layout->count);
    }
    if (!fits) layout->count = -1;
    for (int32_t k = 0; k < s->ndim; k++) {
        if (tsi_placement_cuts(&s->place[k])) {
            if (s->mesh->size[k] > 1) layout->axes_cut |= 1u << k;
        } else if (tsi_placement_partial(&s->place[k])) {
            layout->axes_partial |= 1u << k;
            layout->terms *= s->mesh->size[k];
        } else {
            layout->axes_replicated |= 1u << k;
            layout->replicas *= s->mesh->size[k];
        }
    }
}

static char *make_text(const ts_layout *layout)
{
    tsi_text text = { 0 };
    print_shape(&text, &layout->shape);
    tsi_text_add(&text, "(");
    tsi_sharding_print(&text, layout->sharding);
    tsi_text_add(&text, ")");
    return tsi_text_take(&text);
}

static tsi_interned *make_layout(const void *key, void *context)
{
    (void)context;
    const layout_key *wanted = key;
    ts_layout *layout = tsi_calloc(1, sizeof *layout);
    if (!layout) {
        tsi_fail_memory("a layout", sizeof *layout);
        return NULL;
    }
    layout->sharding = wanted->sharding;
    layout->shape.ndim = wanted->shape->ndim;
    for (int32_t d = 0; d < wanted->shape->ndim; d++)
        layout->shape.extent[d] = wanted->shape->extent[d];
    layout->even = 1;
    ts_status status = check_shape(&layout->shape);
    if (status == TS_OK) status = set_view(layout);
    for (int32_t v = 0; v < layout->view.ndim && status == TS_OK; v++)
        status = check_cuts(layout, v);
    if (status == TS_OK) layout->text = make_text(layout);
    if (!layout->text) {
        tsi_free(layout);
        return NULL;
    }
    set_counts(layout);
    ts_sharding_retain(layout->sharding);
    return &layout->interned;
}

static void free_text(const char *text)
{
    union {
        const char *given;
        void *memory;
    } same = { .given = text };
    tsi_free(same.memory);
}

static void destroy_layout(tsi_interned *value)
{
    ts_layout *layout = (ts_layout *)value;
    free_text(layout->text);
    ts_sharding_release(layout->sharding);
    tsi_free(layout);
}

const tsi_intern_type tsi_layout_intern_type = { "layout", equal_layout, make_layout,
                                                 destroy_layout };

/* ---- finding -------------------------------------------------------------------------------- */

/* From the tables, retained. */
static TSI_NOINLINE const ts_layout *find_layout(const ts_sharding *sharding, const ts_shape *shape)
{
    tsi_layout_state *state = tsi_layout_state_of(sharding->mesh->world);
    if (!state) return NULL;
    if (!sharding->negative) {
        layout_key key = { sharding, shape };
        return (const ts_layout *)tsi_intern_get(state->layouts, hash_key(sharding, shape), &key,
                                                 NULL);
    }
    const ts_sharding *resolved = resolve(sharding, shape->ndim);
    const ts_layout *layout = resolved ? find_layout(resolved, shape) : NULL;
    ts_sharding_release(resolved);
    return layout;
}

/* The layout in its recent place, found there or put there. */
static const ts_layout *recent_layout(tsi_recent *recent, const ts_sharding *sharding,
                                      const ts_shape *shape)
{
    const ts_layout **place = &recent->layout[hash_key(sharding, shape) % TSI_RECENT_LAYOUTS];
    if (TSI_LIKELY(*place && is_layout(*place, sharding, shape))) return *place;
    const ts_layout *layout = find_layout(sharding, shape);
    if (!layout) return NULL;
    tsi_recent_fall(recent, tsi_layout_interned(*place));
    *place = layout;
    return layout;
}

static bool can_ask(const ts_sharding *sharding, const ts_shape *shape)
{
    if (TSI_LIKELY(sharding && (uint32_t)shape->ndim <= TS_NDIM_MAX)) return true;
    if (!sharding)
        TSI_FAIL(TS_ERR_NULL, "a layout needs a sharding, got NULL");
    else
        TSI_FAIL(TS_ERR_SHAPE, "a tensor has 0 to 8 dims, not %d", (int)shape->ndim);
    return false;
}

const ts_layout *tsi_layout_intern(const ts_sharding *sharding, const ts_shape *shape)
{
    if (!can_ask(sharding, shape)) return NULL;
    tsi_recent *recent = tsi_recent_open(sharding->mesh->world);
    if (!recent) return NULL;
    const ts_layout *layout = ts_layout_retain(recent_layout(recent, sharding, shape));
    tsi_recent_close(recent);
    return layout;
}

const ts_layout *ts_layout_get(const ts_sharding *sharding, ts_shape shape)
{
    if (!can_ask(sharding, &shape)) return NULL;
    tsi_recent *recent = tsi_recent_open(sharding->mesh->world);
    if (!recent) return NULL;
    const ts_layout *layout = recent_layout(recent, sharding, &shape);
    tsi_recent_close(recent);
    return layout;
}

/* ---- getters -------------------------------------------------------------------------------- */

const ts_layout *ts_layout_retain(const ts_layout *layout)
{
    if (layout) tsi_interned_retain(tsi_layout_interned(layout));
    return layout;
}

void ts_layout_release(const ts_layout *layout)
{
    if (layout) tsi_interned_release(tsi_layout_interned(layout));
}

const ts_sharding *ts_layout_sharding(const ts_layout *layout)
{
    return layout ? layout->sharding : NULL;
}

ts_shape ts_layout_shape(const ts_layout *layout)
{
    return layout ? layout->shape : TS_SHAPE_SCALAR;
}

ts_shape ts_layout_view(const ts_layout *layout)
{
    return layout ? layout->view : TS_SHAPE_SCALAR;
}

ts_shape tsi_layout_view(const ts_layout *layout)
{
    return layout->view;
}

size_t ts_layout_text(const ts_layout *layout, char *out, size_t size)
{
    tsi_text text = { 0 };
    if (layout) tsi_text_add(&text, layout->text);
    return tsi_text_copy_out(&text, out, size);
}

size_t ts_layout_bytes(const ts_layout *layout)
{
    return layout ? sizeof *layout + strlen(layout->text) + 1 : 0;
}

int64_t ts_layout_replicas(const ts_layout *layout)
{
    return layout ? layout->replicas : 0;
}

int64_t ts_layout_terms(const ts_layout *layout)
{
    return layout ? layout->terms : 0;
}
