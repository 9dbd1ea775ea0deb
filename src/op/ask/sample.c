/* SPDX-License-Identifier: Apache-2.0 */
/* sample.c - small random shapes and placements for the sweeps over the operator table: odd sizes,
 * so that shards are uneven or empty. */
#include "op/ask/sample.h"

#include <string.h>

#include "base/error.h"
#include "op/core/element.h"
#include "op/pointwise/unary.h"

int64_t tsi_sample_below(uint64_t *random, int64_t bound)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((*random >> 33) % (uint64_t)bound);
}

ts_shape tsi_sample_shape(uint64_t *random, int32_t variant)
{
    ts_shape shape = { .ndim = variant == 0 ? 2 : (int32_t)(1 + tsi_sample_below(random, 3)) };
    for (int32_t d = 0; d < shape.ndim; d++)
        shape.extent[d] = 1 + tsi_sample_below(random, 6);
    if (variant == 0) {
        shape.extent[0] = 5;
        shape.extent[1] = 4;
    }
    return shape;
}

bool tsi_sample_unary(tsi_sample *s)
{
    s->count = 1;
    s->in[0] = tsi_meta_f64(tsi_sample_shape(s->random, s->variant));
    return s->variant < 3;
}

bool tsi_sample_binary(tsi_sample *s)
{
    s->count = 2;
    ts_shape shape = tsi_sample_shape(s->random, s->variant), other = shape;
    if (s->variant == 1 && other.ndim > 1) { /* fewer dims */
        other.ndim = shape.ndim - 1;
        for (int32_t d = 0; d < other.ndim; d++)
            other.extent[d] = shape.extent[d + 1];
    }
    if (s->variant == 2) other.extent[0] = 1; /* broadcast in place */
    s->in[0] = tsi_meta_f64(shape);
    s->in[1] = tsi_meta_f64(other);
    return s->variant < 3;
}

bool tsi_sample_bits(tsi_sample *s)
{
    int32_t wanted = s->count; /* the sweeps set it to the most the operator takes */
    bool more = tsi_sample_binary(s);
    s->in[0].dtype = s->in[1].dtype = TS_DTYPE_I64;
    s->count = wanted == 1 ? 1 : 2;
    return more;
}

bool tsi_sample_given(tsi_sample *s, ts_shape shape, const void *given, size_t bytes, size_t count)
{
    if ((size_t)s->variant >= count) return false;
    s->count = 1;
    s->in[0] = tsi_meta_f64(shape);
    memcpy(s->attributes, (const char *)given + (size_t)s->variant * bytes, bytes);
    return true;
}

/* ---- placements ------------------------------------------------------------------------------ */

const char *tsi_sample_reduce_name(uint64_t *random, ts_dtype dtype)
{
    static const char *const names[] = { "sum", "avg", "min", "max", "prod", "and", "or" };
    if (dtype == TS_DTYPE_NONE) return NULL;
    switch (tsi_dtype_category(dtype)) {
    case TSI_CATEGORY_BOOL:
        return names[5 + tsi_sample_below(random, 2)];
    case TSI_CATEGORY_INT:
        return names[tsi_sample_below(random, 7)];
    case TSI_CATEGORY_REAL:
        return names[tsi_sample_below(random, 5)];
    case TSI_CATEGORY_COMPLEX:
        return names[tsi_sample_below(random, 2)];
    }
    return NULL;
}

/* Ragged sizes that add up to the extent, some of them 0. */
static void add_ragged(uint64_t *random, int64_t parts, int32_t dim, int64_t extent, tsi_text *out)
{
    int64_t left = extent;
    tsi_text_printf(out, "RS(%d:", (int)dim);
    for (int64_t p = 0; p < parts; p++) {
        int64_t size = p + 1 == parts ? left : tsi_sample_below(random, left + 1);
        tsi_text_printf(out, "%s%lld", p ? "," : "", (long long)size);
        left -= size;
    }
    tsi_text_add(out, ")");
}

static void add_cut(uint64_t *random, int64_t parts, const ts_shape *shape, tsi_text *out)
{
    enum { PARTS_MAX = 16 }; /* that are written out */
    int32_t dim = (int32_t)tsi_sample_below(random, shape->ndim);
    int64_t pick = tsi_sample_below(random, 8);
    if (pick == 7 && parts < PARTS_MAX)
        add_ragged(random, parts, dim, shape->extent[dim], out);
    else if (pick == 6 && dim + 1 < shape->ndim)
        tsi_text_printf(out, "S(%d-%d)", (int)dim, (int)dim + 1);
    else if (pick == 5)
        tsi_text_printf(out, "HT(%d)", (int)dim);
    else if (pick == 4)
        tsi_text_printf(out, "SS(%d,%d)", (int)dim, tsi_sample_below(random, 2) ? 2 : 5);
    else
        tsi_text_printf(out, "S(%d)", (int)dim);
}

void tsi_sample_places(uint64_t *random, const tsi_mesh_desc *mesh, const ts_shape *shape,
                       const char *reduce, tsi_text *out)
{
    for (int32_t k = 0; k < mesh->ndim; k++) {
        int64_t pick = tsi_sample_below(random, 5);
        if (k > 0) tsi_text_add(out, ", ");
        if (pick == 0 && reduce)
            tsi_text_printf(out, "P(%s)", reduce);
        else if (pick <= 1 || shape->ndim == 0)
            tsi_text_add(out, "R");
        else
            add_cut(random, mesh->size[k], shape, out);
    }
}

const ts_layout *tsi_sample_layout(uint64_t *random, tsi_mesh_desc *mesh, const ts_shape *shape,
                                   ts_dtype dtype)
{
    enum { TRIES = 100 };
    const ts_layout *layout = NULL;
    for (int i = 0; i < TRIES && !layout; i++) {
        tsi_text text = { 0 };
        tsi_sample_places(random, mesh, shape, tsi_sample_reduce_name(random, dtype), &text);
        const ts_sharding *sharding = text.failed ? NULL : tsi_sharding_parse(mesh, text.data);
        if (sharding) layout = tsi_layout_intern(sharding, shape);
        ts_sharding_release(sharding);
        tsi_text_release(&text);
    }
    return layout;
}

/* ---- extents --------------------------------------------------------------------------------- */

static void replace_extent(ts_meta *in, int32_t count, int64_t from, int64_t to)
{
    for (int32_t i = 0; i < count; i++)
        for (int32_t d = 0; d < in[i].shape.ndim; d++)
            if (in[i].shape.extent[d] == from) in[i].shape.extent[d] = to;
}

void tsi_sample_extents(uint64_t *random, ts_meta *in, int32_t count)
{
    static const int64_t small[] = { 0, 1, 1, 1, 2, 7 };
    for (int64_t changes = tsi_sample_below(random, 4); changes > 0 && count > 0; changes--) {
        const ts_shape *shape = &in[tsi_sample_below(random, count)].shape;
        if (shape->ndim == 0) continue;
        int64_t from = shape->extent[tsi_sample_below(random, shape->ndim)];
        replace_extent(in, count, from, small[tsi_sample_below(random, TSI_COUNT_OF(small))]);
    }
}
