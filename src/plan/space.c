/* SPDX-License-Identifier: Apache-2.0 */
/* space.c - making, reading and writing of placement states.
 *
 * The tables of a space hold every unusual cut and every partial that occurs in source or target,
 * in the order of axes, source first; so a state is the same integer on every rank. */
#include "plan/space.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/intmath.h"

static bool plain_shard(const ts_placement *place)
{
    return place->kind == TS_PLACE_SHARD && place->dim_last == place->dim && place->align <= 1;
}

/* Equal but for the order. */
static bool same_kind(const ts_placement *a, const ts_placement *b, int64_t size)
{
    ts_placement x = *a, y = *b;
    x.order = 0;
    y.order = 0;
    return tsi_placement_equal(&x, &y, size);
}

static ts_status code_of(tsi_space *space, int32_t axis, const ts_placement *place, int32_t *out)
{
    if (place->kind == TS_PLACE_REPLICATE) {
        *out = TSI_CODE_R;
        return TS_OK;
    }
    if (plain_shard(place)) {
        *out = TSI_CODE_S + place->dim;
        return TS_OK;
    }
    bool partial = tsi_placement_partial(place);
    ts_placement *table = partial ? space->op : space->cut;
    int32_t *count = partial ? &space->op_count : &space->cut_count;
    int32_t limit = partial ? TSI_OP_MAX : TSI_CUT_MAX;
    int32_t i = 0;
    while (i < *count && ((!partial && space->cut_size[i] != space->size[axis]) ||
                          !same_kind(&table[i], place, space->size[axis])))
        i++;
    if (i == limit) {
        return TSI_FAIL(TS_ERR_SHAPE, "plan: more than %d different partial placements", limit);
    }
    if (i == *count) {
        if (!partial) space->cut_size[i] = space->size[axis];
        table[(*count)++] = *place;
    }
    if (!partial && place->dim_last != place->dim) space->spans = 1;
    *out = (partial ? TSI_CODE_P : TSI_CODE_CUT) + i;
    return TS_OK;
}

static ts_status state_of(tsi_space *space, const ts_sharding *sharding, tsi_state *out)
{
    tsi_state state = 0;
    for (int32_t k = 0; k < space->axes; k++) {
        int32_t code = 0;
        TSI_TRY(code_of(space, k, &sharding->place[k], &code));
        int32_t position = tsi_code_cuts(code) ? sharding->place[k].order : 0;
        state = tsi_state_with(state, k, code, position);
    }
    *out = tsi_space_compact(space, state);
    return TS_OK;
}

ts_status tsi_space_make(const ts_layout *src, const ts_layout *dst, ts_dtype dtype, tsi_space *out)
{
    memset(out, 0, sizeof *out);
    const tsi_mesh_desc *mesh = src->sharding->mesh;
    out->axes = mesh->ndim;
    out->dims = src->shape.ndim;
    out->count = src->count;
    out->item = (int64_t)ts_dtype_size(dtype);
    out->ranks = mesh->count;
    memcpy(out->size, mesh->size, sizeof out->size);
    memcpy(out->extent, src->shape.extent, sizeof out->extent);
    int64_t most = 0;
    if (src->count < 0 || !tsi_mul_i64(src->count, out->item * 2, &most) ||
        !tsi_mul_i64(most, out->ranks, &most)) {
        return TSI_FAIL(TS_ERR_SHAPE, "plan: the bytes of %s on %lld ranks do not fit into 63 bits",
                        src->text, (long long)mesh->count);
    }
    TSI_TRY(state_of(out, src->sharding, &out->src));
    return state_of(out, dst->sharding, &out->dst);
}

ts_placement tsi_space_place(const tsi_space *space, tsi_state state, int32_t axis)
{
    int32_t code = tsi_state_code(state, axis);
    ts_placement place = { .kind = TS_PLACE_REPLICATE, .factor = 1, .align = 1 };
    if (code == TSI_CODE_R) return place;
    if (code >= TSI_CODE_P) return space->op[code - TSI_CODE_P];
    if (code >= TSI_CODE_CUT) {
        place = space->cut[code - TSI_CODE_CUT];
    } else {
        place.kind = TS_PLACE_SHARD;
        place.dim = place.dim_last = code - TSI_CODE_S;
    }
    place.order = tsi_state_position(state, axis);
    return place;
}

const ts_sharding *tsi_space_sharding(const tsi_space *space, tsi_mesh_desc *mesh, tsi_state state)
{
    ts_placement place[TS_NDIM_MAX];
    for (int32_t k = 0; k < space->axes; k++) {
        bool one = space->size[k] == 1 && tsi_code_partial(tsi_state_code(state, k));
        place[k] = tsi_space_place(space, one ? 0 : state, k);
    }
    return tsi_sharding_intern(mesh, place);
}

int64_t tsi_space_held(const tsi_space *space, tsi_state state)
{
    int64_t held = space->count;
    for (int32_t k = 0; k < space->axes; k++) {
        if (!tsi_code_cuts(tsi_state_code(state, k))) held *= space->size[k];
    }
    return held;
}

int64_t tsi_place_longest(const ts_placement *place, int64_t length, int64_t n)
{
    switch ((ts_placement_kind)place->kind) {
    case TS_PLACE_SHARD: {
        int64_t chunk = tsi_ceil_div(length, n);
        if (place->align > 1) chunk = tsi_min_i64(tsi_round_up(chunk, place->align), length);
        return chunk;
    }
    case TS_PLACE_STRIDED: {
        int64_t piece = tsi_max_i64(tsi_ceil_div(length, place->factor), 1);
        int64_t full = length / piece, rest = length % piece;
        return full * tsi_ceil_div(piece, n) + tsi_ceil_div(rest, n);
    }
    case TS_PLACE_RAGGED: {
        int64_t most = 0;
        for (int64_t i = 0; place->sizes && i < n; i++) {
            int64_t all = 0;
            for (int64_t round = 0; round < place->factor; round++)
                all += place->sizes[round * n + i];
            most = tsi_max_i64(most, all);
        }
        return tsi_min_i64(most, length);
    }
    case TS_PLACE_HEAD_TAIL: {
        int64_t chunk = tsi_ceil_div(length, 2 * n);
        return tsi_min_i64(2 * chunk, length);
    }
    case TS_PLACE_REPLICATE:
    case TS_PLACE_PARTIAL:
    case TS_PLACE_NORM:
        break;
    }
    return length;
}

bool tsi_place_even(const ts_placement *place, int64_t length, int64_t n)
{
    switch ((ts_placement_kind)place->kind) {
    case TS_PLACE_SHARD:
        return length % n == 0 && (place->align <= 1 || length / n % place->align == 0);
    case TS_PLACE_STRIDED:
        return length % place->factor == 0 && length / place->factor % n == 0;
    case TS_PLACE_HEAD_TAIL:
        return length % (2 * n) == 0;
    case TS_PLACE_RAGGED:
        return false;
    case TS_PLACE_REPLICATE:
    case TS_PLACE_PARTIAL:
    case TS_PLACE_NORM:
        break;
    }
    return true;
}

void tsi_space_lengths(const tsi_space *space, tsi_state state, int64_t *length, bool *even)
{
    memcpy(length, space->extent, sizeof space->extent);
    *even = true;
    for (int32_t position = 0; position < space->axes; position++) {
        for (int32_t k = 0; k < space->axes; k++) {
            int32_t code = tsi_state_code(state, k);
            if (!tsi_code_cuts(code) || tsi_state_position(state, k) != position) continue;
            ts_placement place = tsi_space_place(space, state, k);
            if (!tsi_place_even(&place, length[place.dim], space->size[k])) *even = false;
            length[place.dim] = tsi_place_longest(&place, length[place.dim], space->size[k]);
        }
    }
}

int64_t tsi_space_largest(const tsi_space *space, tsi_state state, bool *even)
{
    int64_t length[TS_NDIM_MAX], count = 1;
    tsi_space_lengths(space, state, length, even);
    for (int32_t d = 0; d < space->dims; d++)
        count *= length[d];
    return count;
}

tsi_state tsi_space_compact(const tsi_space *space, tsi_state state)
{
    for (int32_t d = 0; d < space->dims; d++) {
        int32_t next = 0;
        for (int32_t position = 0; position < TS_NDIM_MAX; position++) {
            for (int32_t k = 0; k < space->axes; k++) {
                int32_t code = tsi_state_code(state, k);
                if (!tsi_code_cuts(code) || tsi_code_dim(space, code) != d) continue;
                if (tsi_state_position(state, k) != position || position < next) continue;
                state = tsi_state_with(state, k, code, next++);
                break;
            }
        }
    }
    return state;
}

tsi_state tsi_space_without_units(const tsi_space *space, tsi_state state)
{
    for (int32_t k = 0; k < space->axes; k++) {
        if (space->size[k] == 1) state = tsi_state_with(state, k, TSI_CODE_R, 0);
    }
    return tsi_space_compact(space, state);
}

bool tsi_ops_mix(const ts_placement *a, const ts_placement *b)
{
    if (a->kind != b->kind) return false;
    if (a->kind == TS_PLACE_NORM) return a->norm == b->norm; /* the same written number */
    bool linear_a = a->reduce == TS_REDUCE_SUM || a->reduce == TS_REDUCE_AVG;
    bool linear_b = b->reduce == TS_REDUCE_SUM || b->reduce == TS_REDUCE_AVG;
    return a->reduce == b->reduce || (linear_a && linear_b);
}

/* ---- texts ---------------------------------------------------------------------------------- */

static void bare_text(const ts_placement *place, int64_t size, tsi_text *text)
{
    char span[32] = "", align[32] = "";
    if (place->dim_last != place->dim) snprintf(span, sizeof span, "-%d", place->dim_last);
    if (place->align > 1) snprintf(align, sizeof align, "/%lld", (long long)place->align);
    switch ((ts_placement_kind)place->kind) {
    case TS_PLACE_REPLICATE:
        tsi_text_add(text, "R");
        return;
    case TS_PLACE_SHARD:
        tsi_text_printf(text, "S(%d%s%s)", place->dim, span, align);
        return;
    case TS_PLACE_STRIDED:
        tsi_text_printf(text, "SS(%d%s%s,%lld)", place->dim, span, align, (long long)place->factor);
        return;
    case TS_PLACE_RAGGED:
        tsi_text_printf(text, "RS(%d%s%s:", place->dim, span, align);
        for (int64_t i = 0; i < size * place->factor; i++)
            tsi_text_printf(text, "%s%lld",
                            i == 0     ? ""
                            : i % size ? ","
                                       : "|",
                            (long long)place->sizes[i]);
        tsi_text_add(text, ")");
        return;
    case TS_PLACE_HEAD_TAIL:
        tsi_text_printf(text, "HT(%d%s%s)", place->dim, span, align);
        return;
    case TS_PLACE_PARTIAL:
        tsi_text_printf(text, "P(%s)", ts_reduce_name((ts_reduce)place->reduce));
        return;
    case TS_PLACE_NORM:
        tsi_text_printf(text, "P(norm:%g)", place->norm);
        return;
    }
}

/* How many axes cut the dim, and how many of those before `axis` do. */
static int32_t cutters(const tsi_space *space, tsi_state state, int32_t dim, int32_t axis,
                       int32_t *before)
{
    int32_t count = 0;
    *before = 0;
    for (int32_t k = 0; k < space->axes; k++) {
        int32_t code = tsi_state_code(state, k);
        if (!tsi_code_cuts(code) || tsi_code_dim(space, code) != dim) continue;
        count++;
        if (k < axis) (*before)++;
    }
    return count;
}

/* Is the dim cut from left to right? */
static bool left_to_right(const tsi_space *space, tsi_state state, int32_t dim)
{
    int32_t next = 0;
    for (int32_t k = 0; k < space->axes; k++) {
        int32_t code = tsi_state_code(state, k);
        if (!tsi_code_cuts(code) || tsi_code_dim(space, code) != dim) continue;
        if (tsi_state_position(state, k) != next++) return false;
    }
    return true;
}

void tsi_space_place_text(const tsi_space *space, tsi_state state, int32_t axis, bool marked,
                          tsi_text *text)
{
    ts_placement place = tsi_space_place(space, state, axis);
    bare_text(&place, space->size[axis], text);
    if (!marked || !tsi_placement_cuts(&place) || left_to_right(space, state, place.dim)) return;
    tsi_text_printf(text, "[%d]", tsi_state_position(state, axis));
}

void tsi_space_trace(const tsi_space *space, tsi_state state, tsi_text *text)
{
    for (int32_t k = 0; k < space->axes; k++) {
        ts_placement place = tsi_space_place(space, state, k);
        int32_t before = 0;
        bare_text(&place, space->size[k], text);
        if (!tsi_placement_cuts(&place)) continue;
        if (cutters(space, state, place.dim, k, &before) < 2) continue;
        tsi_text_printf(text, "[%d]", tsi_state_position(state, k));
    }
}
