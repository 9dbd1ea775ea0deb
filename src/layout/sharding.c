/* SPDX-License-Identifier: Apache-2.0 */
/* sharding.c - a mesh, one placement per axis and the order of cuts, as one pointer.
 *
 * INV: positions of the cuts of one dim are 0, 1, 2, ... and order[] lists the cutting axes by
 * (dim, position); cuts that share a dim share all their dims, so that dims with joined neighbours
 * are again independent; all partial placements reduce alike (sum and avg count as alike). Ragged
 * sizes, n in each round, are followed by their offsets, one more. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/hash.h"
#include "layout/placement.h"
#include "layout/slots.h"

/* ---- checks --------------------------------------------------------------------------------- */

static const char *axis_label(const tsi_mesh_desc *mesh, int32_t axis)
{
    static const char *const number[] = { "0", "1", "2", "3", "4", "5", "6", "7" };
    return mesh->name[axis][0] ? mesh->name[axis] : number[axis];
}

static bool reduce_alike(const ts_placement *a, const ts_placement *b)
{
    if (a->kind == TS_PLACE_NORM || b->kind == TS_PLACE_NORM)
        return a->kind == b->kind && a->norm == b->norm;
    bool linear_a = a->reduce == TS_REDUCE_SUM || a->reduce == TS_REDUCE_AVG;
    bool linear_b = b->reduce == TS_REDUCE_SUM || b->reduce == TS_REDUCE_AVG;
    return a->reduce == b->reduce || (linear_a && linear_b);
}

static ts_status check_partials(const ts_sharding *draft)
{
    int32_t first = -1;
    for (int32_t k = 0; k < draft->ndim; k++) {
        if (!tsi_placement_partial(&draft->place[k])) continue;
        if (first < 0) first = k;
        if (reduce_alike(&draft->place[first], &draft->place[k])) continue;
        char a[64], b[64];
        (void)tsi_placement_text(&draft->place[first], 0, 0, a, sizeof a);
        (void)tsi_placement_text(&draft->place[k], 0, 0, b, sizeof b);
        return TSI_FAIL(TS_ERR_ARG,
                        "placements: %s on axis %s and %s on axis %s cannot be mixed; only sum and "
                        "avg may be",
                        a, axis_label(draft->mesh, first), b, axis_label(draft->mesh, k));
    }
    return TS_OK;
}

/* Cuts that touch a common dim must cut the same dims. Dims counted from the end are compared among
 * themselves until a shape says what they are. */
static ts_status check_spans(const ts_sharding *draft)
{
    for (int32_t i = 0; i < draft->ndim; i++) {
        const ts_placement *a = &draft->place[i];
        for (int32_t k = i + 1; k < draft->ndim; k++) {
            const ts_placement *b = &draft->place[k];
            if (!tsi_placement_cuts(a) || !tsi_placement_cuts(b)) continue;
            if ((a->dim < 0) != (b->dim < 0)) continue;
            if (a->dim > b->dim_last || b->dim > a->dim_last) continue;
            if (a->dim == b->dim && a->dim_last == b->dim_last) continue;
            return TSI_FAIL(
                TS_ERR_ARG,
                "placements: axis %s cuts dims %d to %d as one, axis %s cuts dims %d to "
                "%d; cuts that share a dim must share all of them",
                axis_label(draft->mesh, i), (int)a->dim, (int)a->dim_last,
                axis_label(draft->mesh, k), (int)b->dim, (int)b->dim_last);
        }
    }
    return TS_OK;
}

/* ---- order ---------------------------------------------------------------------------------- */

/* Does axis a cut before axis b? By dim, then by order (none: last), then from left to right. */
static bool cuts_before(const ts_sharding *draft, int32_t a, int32_t b)
{
    const ts_placement *x = &draft->place[a], *y = &draft->place[b];
    if (x->dim != y->dim) return x->dim < y->dim;
    uint32_t order_x = (uint32_t)x->order, order_y = (uint32_t)y->order; /* none is the largest */
    if (order_x != order_y) return order_x < order_y;
    return a < b;
}

static void number_cuts(ts_sharding *draft)
{
    draft->order_count = 0;
    for (int32_t axis = 0; axis < draft->ndim; axis++) {
        if (!tsi_placement_cuts(&draft->place[axis])) continue;
        int32_t i = draft->order_count++;
        for (; i > 0 && cuts_before(draft, axis, draft->order[i - 1]); i--)
            draft->order[i] = draft->order[i - 1];
        draft->order[i] = axis;
    }
    for (int32_t i = 0; i < draft->order_count; i++) {
        ts_placement *place = &draft->place[draft->order[i]];
        const ts_placement *before = i > 0 ? &draft->place[draft->order[i - 1]] : NULL;
        place->order = before && before->dim == place->dim ? before->order + 1 : 0;
        if (place->dim < 0) draft->negative = 1;
        for (int32_t d = place->dim; d >= 0 && d < place->dim_last; d++)
            draft->joined |= 1u << d;
    }
}

/* ---- interning ------------------------------------------------------------------------------ */

static uint64_t hash_place(uint64_t hash, const ts_placement *place, int64_t axis_size)
{
    uint64_t bits;
    memcpy(&bits, &place->norm, sizeof bits);
    hash = tsi_hash_mix(hash, (uint64_t)place->kind << 32 | (uint32_t)place->dim);
    hash = tsi_hash_mix(hash, (uint64_t)place->dim_last << 32 | (uint32_t)place->order);
    hash = tsi_hash_mix(hash, (uint64_t)place->factor);
    hash = tsi_hash_mix(hash, (uint64_t)place->align);
    hash = tsi_hash_mix(hash, (uint64_t)place->reduce);
    hash = tsi_hash_mix(hash, bits);
    for (int64_t i = 0; place->kind == TS_PLACE_RAGGED && i < axis_size * place->factor; i++)
        hash = tsi_hash_mix(hash, (uint64_t)place->sizes[i]);
    return hash;
}

static bool equal_sharding(const tsi_interned *value, const void *key)
{
    const ts_sharding *a = (const ts_sharding *)value, *b = key;
    if (a->mesh != b->mesh) return false;
    for (int32_t k = 0; k < a->ndim; k++)
        if (!tsi_placement_equal(&a->place[k], &b->place[k], a->mesh->size[k])) return false;
    return true;
}

static size_t ragged_count(const ts_sharding *draft)
{
    size_t count = 0;
    for (int32_t k = 0; k < draft->ndim; k++)
        if (draft->place[k].kind == TS_PLACE_RAGGED)
            count += 2 * (size_t)(draft->mesh->size[k] * draft->place[k].factor) + 1;
    return count;
}

static tsi_interned *make_sharding(const void *key, void *context)
{
    (void)context;
    const ts_sharding *draft = key;
    size_t bytes = sizeof *draft + ragged_count(draft) * sizeof(int64_t);
    ts_sharding *sharding = tsi_alloc(bytes);
    if (!sharding) {
        tsi_fail_memory("a sharding", bytes);
        return NULL;
    }
    *sharding = *draft;
    int64_t *sizes = (int64_t *)(sharding + 1);
    for (int32_t k = 0; k < draft->ndim; k++) {
        if (draft->place[k].kind != TS_PLACE_RAGGED) continue;
        int64_t count = draft->mesh->size[k] * draft->place[k].factor, *offset = sizes + count;
        memcpy(sizes, draft->place[k].sizes, (size_t)count * sizeof *sizes);
        sharding->place[k].sizes = sizes;
        offset[0] = 0;
        for (int64_t i = 0; i < count; i++)
            offset[i + 1] = offset[i] + sizes[i];
        sizes = offset + count + 1;
    }
    tsi_interned_retain(&sharding->mesh->interned);
    return &sharding->interned;
}

static void destroy_sharding(tsi_interned *value)
{
    tsi_mesh_desc_release(((ts_sharding *)value)->mesh);
    tsi_free(value);
}

const tsi_intern_type tsi_sharding_intern_type = { "sharding", equal_sharding, make_sharding,
                                                   destroy_sharding };

const ts_sharding *tsi_sharding_intern(tsi_mesh_desc *mesh, const ts_placement *place)
{
    ts_sharding draft = { .mesh = mesh, .ndim = mesh->ndim };
    tsi_layout_state *state = tsi_layout_state_of(mesh->world);
    if (!state) return NULL;
    for (int32_t k = 0; k < mesh->ndim; k++) {
        draft.place[k] = place[k];
        if (tsi_placement_normalise(&draft.place[k], mesh->size[k]) != TS_OK) return NULL;
        if (tsi_placement_partial(&draft.place[k])) draft.axes_partial |= 1u << k;
    }
    if (check_partials(&draft) != TS_OK || check_spans(&draft) != TS_OK) return NULL;
    number_cuts(&draft);
    uint64_t hash = mesh->interned.hash;
    for (int32_t k = 0; k < mesh->ndim; k++)
        hash = hash_place(hash, &draft.place[k], mesh->size[k]);
    return (const ts_sharding *)tsi_intern_get(state->shardings, hash, &draft, NULL);
}

/* ---- getters -------------------------------------------------------------------------------- */

const ts_sharding *ts_sharding_retain(const ts_sharding *sharding)
{
    if (sharding) tsi_interned_retain(tsi_sharding_interned(sharding));
    return sharding;
}

void ts_sharding_release(const ts_sharding *sharding)
{
    if (sharding) tsi_interned_release(tsi_sharding_interned(sharding));
}

int32_t ts_sharding_ndim(const ts_sharding *sharding)
{
    return sharding ? sharding->ndim : 0;
}

ts_placement ts_sharding_placement(const ts_sharding *sharding, int32_t axis)
{
    if (!sharding || axis < 0 || axis >= sharding->ndim)
        return (ts_placement){ .factor = 1, .align = 1 };
    return sharding->place[axis];
}

/* Positions are printed for dims that are not cut from left to right. */
static int is_ordered(const ts_sharding *sharding, int32_t axis)
{
    const ts_placement *place = &sharding->place[axis];
    for (int32_t i = 1; i < sharding->order_count && tsi_placement_cuts(place); i++) {
        int32_t a = sharding->order[i - 1], b = sharding->order[i];
        if (sharding->place[a].dim == place->dim && sharding->place[b].dim == place->dim && a > b)
            return 1;
    }
    return 0;
}

size_t ts_placement_text(const ts_sharding *sharding, int32_t axis, char *out, size_t size)
{
    tsi_text text = { 0 };
    if (sharding && axis >= 0 && axis < sharding->ndim)
        tsi_placement_print(&text, &sharding->place[axis], sharding->mesh->size[axis],
                            is_ordered(sharding, axis));
    return tsi_text_copy_out(&text, out, size);
}

void tsi_sharding_print(tsi_text *text, const ts_sharding *sharding)
{
    for (int32_t k = 0; k < sharding->ndim; k++) {
        if (k > 0) tsi_text_add(text, ", ");
        tsi_placement_print(text, &sharding->place[k], sharding->mesh->size[k],
                            is_ordered(sharding, k));
    }
}

size_t ts_sharding_text(const ts_sharding *sharding, char *out, size_t size)
{
    tsi_text text = { 0 };
    if (sharding) tsi_sharding_print(&text, sharding);
    return tsi_text_copy_out(&text, out, size);
}
