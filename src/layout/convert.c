/* SPDX-License-Identifier: Apache-2.0 */
/* convert.c - between an order of cuts and strided shards in left-to-right order.
 *
 *   mesh (2, 2), 8 rows        S(0)[1], S(0)[0]            SS(0,2), S(0)
 *   axis 1 cuts first:         0 1|2 3 || 4 5|6 7          (0,0) holds 0 1, (0,1) 4 5,
 *                                                          (1,0) holds 2 3, (1,1) 6 7
 *
 * A strided shard with factor f cuts as if f pieces were there already: those that the later axes
 * of the mesh, which cut earlier in the order, have made. The symbols are converted by that rule;
 * the two agree on data where every extent divides. With a shape the result is compared region by
 * region, and refused if it differs. */
#include "base/alloc.h"
#include "base/error.h"
#include "layout/placement.h"
#include "layout/slots.h"

/* Cuts [first, *end) of the order belong to one dim; are they from left to right, and is one of
 * them strided? */
static bool one_dim(const ts_sharding *s, int32_t first, int32_t *end, bool *strided)
{
    bool ascending = true;
    int32_t i = first;
    *strided = false;
    for (; i < s->order_count && s->place[s->order[i]].dim == s->place[s->order[first]].dim; i++) {
        if (i > first && s->order[i] < s->order[i - 1]) ascending = false;
        if (s->place[s->order[i]].kind == TS_PLACE_STRIDED) *strided = true;
    }
    *end = i;
    return ascending;
}

/* Only shards (plain, and where allowed strided) of one alignment can be converted. */
static ts_status check_kinds(const ts_sharding *s, int32_t first, int32_t end, bool strided_too)
{
    for (int32_t i = first; i < end; i++) {
        const ts_placement *place = &s->place[s->order[i]];
        bool fits =
            place->kind == TS_PLACE_SHARD || (strided_too && place->kind == TS_PLACE_STRIDED);
        if (fits && place->align == 1) continue;
        char text[64];
        (void)ts_placement_text(s, s->order[i], text, sizeof text);
        return TSI_FAIL(TS_ERR_ARG,
                        "%s on axis %d cannot be part of a conversion between an order and "
                        "strided shards: only %sshards without alignment can",
                        text, (int)s->order[i], strided_too ? "" : "plain ");
    }
    return TS_OK;
}

static ts_status dim_to_strided(const ts_sharding *s, int32_t first, int32_t end,
                                ts_placement *place)
{
    TSI_TRY(check_kinds(s, first, end, false));
    for (int32_t i = first; i < end; i++) {
        int32_t axis = s->order[i];
        int64_t factor = 1;
        for (int32_t k = first; k < i; k++)
            if (s->order[k] > axis) factor *= s->mesh->size[s->order[k]];
        place[axis].kind = TS_PLACE_STRIDED; /* factor 1 becomes a plain shard */
        place[axis].factor = factor;
        place[axis].order = TSI_ORDER_NONE;
    }
    return TS_OK;
}

/* From the last axis to the first: an axis goes behind as many of those already placed as make up
 * its factor. */
static ts_status dim_to_order(const ts_sharding *s, int32_t first, int32_t end, ts_placement *place)
{
    int32_t list[TS_NDIM_MAX], count = 0;
    TSI_TRY(check_kinds(s, first, end, true));
    for (int32_t i = end - 1; i >= first; i--) {
        int32_t axis = s->order[i], at = 0;
        int64_t pieces = 1;
        while (pieces != s->place[axis].factor && at < count)
            pieces *= s->mesh->size[list[at++]];
        if (pieces != s->place[axis].factor)
            return TSI_FAIL(
                TS_ERR_ARG,
                "SS(%d,%lld) on axis %d is not an order: the sizes of the axes that would "
                "cut before it do not multiply to %lld",
                (int)s->place[axis].dim, (long long)s->place[axis].factor, (int)axis,
                (long long)s->place[axis].factor);
        for (int32_t k = count++; k > at; k--)
            list[k] = list[k - 1];
        list[at] = axis;
    }
    for (int32_t k = 0; k < count; k++) {
        place[list[k]].kind = TS_PLACE_SHARD;
        place[list[k]].factor = 1;
        place[list[k]].order = k;
    }
    return TS_OK;
}

/* The converted sharding, retained, by symbols alone. */
static const ts_sharding *convert(const ts_sharding *s, bool to_strided)
{
    ts_placement place[TS_NDIM_MAX];
    for (int32_t k = 0; k < s->ndim; k++)
        place[k] = s->place[k];
    for (int32_t first = 0, end; first < s->order_count; first = end) {
        bool strided, ascending = one_dim(s, first, &end, &strided);
        ts_status status = TS_OK;
        if (to_strided && !ascending) status = dim_to_strided(s, first, end, place);
        if (!to_strided && strided && !ascending)
            status = TSI_FAIL(TS_ERR_ARG, "dim %d has both strided shards and an order of its own",
                              (int)s->place[s->order[first]].dim);
        if (!to_strided && strided && ascending) status = dim_to_order(s, first, end, place);
        if (status != TS_OK) return NULL;
    }
    return tsi_sharding_intern(s->mesh, place);
}

/* Do both give the same regions for the shape? */
static ts_status check_places(const ts_sharding *a, const ts_sharding *b, const ts_shape *shape)
{
    const ts_layout *x = tsi_layout_intern(a, shape), *y = x ? tsi_layout_intern(b, shape) : NULL;
    ts_status status = x && y ? TS_OK : TS_ERR_SHAPE;
    if (status == TS_OK && !ts_layout_same_places(x, y)) {
        char other[128];
        (void)ts_sharding_text(b, other, sizeof other);
        status = TSI_FAIL(TS_ERR_SHAPE,
                          "%s and (%s) put different elements on some ranks: an order and strided "
                          "shards agree only where the extent divides at every strided cut",
                          x->text, other);
    }
    ts_layout_release(x);
    ts_layout_release(y);
    return status;
}

static const ts_sharding *convert_for(ts_mesh *mesh, const ts_sharding *sharding,
                                      const ts_shape *shape, bool to_strided)
{
    if (!mesh || !sharding) {
        TSI_FAIL(TS_ERR_NULL, "conversion of a sharding: a mesh and a sharding are required");
        return NULL;
    }
    if (mesh->desc != sharding->mesh) {
        TSI_FAIL(TS_ERR_MESH, "conversion of a sharding: it belongs to another mesh");
        return NULL;
    }
    const ts_layout *layout = NULL; /* dims counted from the end need the shape first */
    if (sharding->negative && shape) {
        layout = tsi_layout_intern(sharding, shape);
        if (!layout) return NULL;
        sharding = layout->sharding;
    }
    const ts_sharding *converted = convert(sharding, to_strided);
    if (converted && converted != sharding && shape &&
        check_places(sharding, converted, shape) != TS_OK) {
        ts_sharding_release(converted);
        converted = NULL;
    }
    ts_layout_release(layout);
    if (!converted) return NULL;
    ts_status status = tsi_recent_hold(mesh->world, tsi_sharding_interned(converted));
    return status == TS_OK ? converted : NULL;
}

const ts_sharding *ts_sharding_to_strided(ts_mesh *mesh, const ts_sharding *sharding,
                                          const ts_shape *shape)
{
    return convert_for(mesh, sharding, shape, true);
}

const ts_sharding *ts_sharding_to_order(ts_mesh *mesh, const ts_sharding *sharding,
                                        const ts_shape *shape)
{
    return convert_for(mesh, sharding, shape, false);
}
