/* SPDX-License-Identifier: Apache-2.0 */
/* placement.c - single placements: text both ways, their one spelling, equality.
 *
 *   placement := "R" | "P(" reduce ")" | "P(norm:" p ")" | cut ["[" position "]"]
 *   cut       := "S(" dims ")" | "SS(" dims "," factor ")" | "HT(" dims ")"
 *              | "RS(" dims ":" round ("|" round)* ")"
 *   round     := size ("," size)*
 *   dims      := dim ["-" dim] ["/" alignment]
 *
 * A dim counts from 0, or from -1 backwards where a shape will say what that is. SS with factor 1
 * is S. */
#include "layout/placement.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

#define REDUCTIONS "a reduction: sum avg min max prod and or band bor, or norm:p"

/* ---- reading -------------------------------------------------------------------------------- */

static ts_status parse_dim(tsi_cursor *cursor, int32_t *out)
{
    tsi_cursor before = *cursor;
    int64_t dim;
    if (!tsi_cursor_int(cursor, &dim)) return tsi_cursor_fail(&before, "a tensor dim");
    if (dim < -TS_NDIM_MAX || dim >= TS_NDIM_MAX)
        return tsi_cursor_fail(&before, "a tensor dim from -8 to 7");
    *out = (int32_t)dim;
    return TS_OK;
}

static ts_status parse_dims(tsi_cursor *cursor, bool aligned, ts_placement *out)
{
    if (!tsi_cursor_take(cursor, '(')) return tsi_cursor_fail(cursor, "'('");
    TSI_TRY(parse_dim(cursor, &out->dim));
    out->dim_last = out->dim;
    if (tsi_cursor_take(cursor, '-')) {
        tsi_cursor before = *cursor;
        TSI_TRY(parse_dim(cursor, &out->dim_last));
        if (out->dim_last < out->dim || (out->dim < 0 && out->dim_last >= 0))
            return tsi_cursor_fail(&before, "the last dim of the span, not before its first");
    }
    if (aligned && tsi_cursor_take(cursor, '/')) {
        tsi_cursor before = *cursor;
        if (!tsi_cursor_int(cursor, &out->align) || out->align < 1)
            return tsi_cursor_fail(&before, "an alignment of at least 1");
    }
    return TS_OK;
}

/* One round of sizes, as many as the axis has coordinates; behind those in `sizes`. */
static ts_status parse_round(tsi_cursor *cursor, int64_t each, int64_t *sizes, int64_t *count)
{
    char expected[96];
    int64_t first = *count;
    (void)snprintf(expected, sizeof expected, "%lld sizes, one for each coordinate of the axis",
                   (long long)each);
    do {
        tsi_cursor before = *cursor;
        int64_t size;
        if (!tsi_cursor_int(cursor, &size) || size < 0)
            return tsi_cursor_fail(&before, "a size of at least 0");
        if (*count - first == each) return tsi_cursor_fail(&before, expected);
        sizes[(*count)++] = size;
    } while (tsi_cursor_take(cursor, ','));
    if (each >= 0 && *count - first != each) return tsi_cursor_fail(cursor, expected);
    return TS_OK;
}

static ts_status parse_sizes(tsi_cursor *cursor, int64_t axis_size, tsi_arena *arena,
                             ts_placement *out)
{
    int64_t room = (int64_t)strcspn(cursor->at, ")") / 2 + 2, count = 0;
    int64_t *sizes = tsi_arena_alloc(arena, (size_t)room * sizeof *sizes);
    if (!sizes) return tsi_fail_memory("sizes of a ragged shard", (size_t)room * sizeof *sizes);
    TSI_TRY(parse_round(cursor, axis_size, sizes, &count));
    for (int64_t each = count; tsi_cursor_take(cursor, '|'); out->factor++)
        TSI_TRY(parse_round(cursor, each, sizes, &count));
    out->sizes = sizes;
    return TS_OK;
}

static ts_status parse_position(tsi_cursor *cursor, ts_placement *out)
{
    int64_t position;
    if (!tsi_cursor_take(cursor, '[')) return TS_OK;
    tsi_cursor before = *cursor;
    if (!tsi_cursor_int(cursor, &position) || position < 0 || position >= TS_NDIM_MAX)
        return tsi_cursor_fail(&before, "the position of the cut, 0 for the first");
    if (!tsi_cursor_take(cursor, ']')) return tsi_cursor_fail(cursor, "']'");
    out->order = (int32_t)position;
    return TS_OK;
}

static ts_status parse_cut(tsi_cursor *cursor, int64_t axis_size, tsi_arena *arena,
                           ts_placement *out)
{
    TSI_TRY(parse_dims(cursor, out->kind != TS_PLACE_RAGGED, out));
    if (out->kind == TS_PLACE_STRIDED) {
        if (!tsi_cursor_take(cursor, ',')) return tsi_cursor_fail(cursor, "',' and a split factor");
        tsi_cursor before = *cursor;
        if (!tsi_cursor_int(cursor, &out->factor) || out->factor < 1)
            return tsi_cursor_fail(&before, "a split factor of at least 1");
    }
    if (out->kind == TS_PLACE_RAGGED) {
        if (!tsi_cursor_take(cursor, ':')) return tsi_cursor_fail(cursor, "':' and the sizes");
        TSI_TRY(parse_sizes(cursor, axis_size, arena, out));
    }
    if (!tsi_cursor_take(cursor, ')'))
        return tsi_cursor_fail(cursor, out->kind == TS_PLACE_RAGGED    ? "',' or ')'"
                                       : out->kind == TS_PLACE_STRIDED ? "')' after the factor"
                                                                       : "')' after the dim");
    return parse_position(cursor, out);
}

static ts_status parse_partial(tsi_cursor *cursor, ts_placement *out)
{
    char name[16] = "";
    if (!tsi_cursor_take(cursor, '(')) return tsi_cursor_fail(cursor, "'(' and a reduction");
    tsi_cursor before = *cursor;
    (void)tsi_cursor_word(cursor, name, sizeof name);
    if (strcmp(name, "norm") == 0) {
        out->kind = TS_PLACE_NORM;
        if (!tsi_cursor_take(cursor, ':'))
            return tsi_cursor_fail(cursor, "':' and the p of the norm");
        before = *cursor;
        if (!tsi_cursor_real(cursor, &out->norm) || !isfinite(out->norm) || out->norm == 0)
            return tsi_cursor_fail(&before, "a finite p other than 0");
    } else {
        ts_reduce reduce = ts_reduce_parse(strcmp(name, "product") == 0 ? "prod" : name);
        if (reduce == TS_REDUCE_NONE) return tsi_cursor_fail(&before, REDUCTIONS);
        out->reduce = (int32_t)reduce;
    }
    return tsi_cursor_take(cursor, ')') ? TS_OK
                                        : tsi_cursor_fail(cursor, "')' after the reduction");
}

ts_status tsi_placement_parse(tsi_cursor *cursor, int64_t axis_size, tsi_arena *arena,
                              ts_placement *out)
{
    static const struct {
        const char *name;
        ts_placement_kind kind;
    } cuts[] = { { "S", TS_PLACE_SHARD },
                 { "SS", TS_PLACE_STRIDED },
                 { "RS", TS_PLACE_RAGGED },
                 { "HT", TS_PLACE_HEAD_TAIL } };
    char name[8] = "";
    tsi_cursor before = *cursor;
    *out = (ts_placement){ .factor = 1, .align = 1, .order = TSI_ORDER_NONE };
    (void)tsi_cursor_word(cursor, name, sizeof name);
    if (strcmp(name, "R") == 0) return TS_OK;
    if (strcmp(name, "P") == 0) {
        out->kind = TS_PLACE_PARTIAL;
        return parse_partial(cursor, out);
    }
    for (size_t i = 0; i < TSI_COUNT_OF(cuts); i++) {
        if (strcmp(name, cuts[i].name) != 0) continue;
        out->kind = (int32_t)cuts[i].kind;
        return parse_cut(cursor, axis_size, arena, out);
    }
    return tsi_cursor_fail(&before, "a placement: R, S(..), SS(..), RS(..), HT(..) or P(..)");
}

/* ---- one spelling --------------------------------------------------------------------------- */

static ts_status check_sizes(const ts_placement *place, int64_t axis_size)
{
    int64_t total = 0;
    if (!place->sizes) return TSI_FAIL(TS_ERR_NULL, "a ragged shard needs its sizes");
    for (int64_t i = 0; i < axis_size * place->factor; i++) {
        if (place->sizes[i] < 0 || place->sizes[i] >= TSI_EXTENT_MAX - total)
            return TSI_FAIL(TS_ERR_SHAPE,
                            "size %lld of a ragged shard, %lld, is negative or too large",
                            (long long)i, (long long)place->sizes[i]);
        total += place->sizes[i];
    }
    return TS_OK;
}

static ts_status normalise_cut(ts_placement *place, int64_t axis_size)
{
    bool left_zero = place->dim_last == 0 && place->dim < 0;
    if (place->dim_last < place->dim || left_zero) place->dim_last = place->dim;
    if (place->dim < -TS_NDIM_MAX || place->dim_last >= TS_NDIM_MAX ||
        (place->dim < 0 && place->dim_last >= 0))
        return TSI_FAIL(TS_ERR_ARG, "a cut of dims %d to %d is not possible", (int)place->dim,
                        (int)place->dim_last);
    if (place->align == 0) place->align = 1;
    if (place->kind != TS_PLACE_STRIDED && place->kind != TS_PLACE_RAGGED) place->factor = 1;
    if (place->kind == TS_PLACE_RAGGED && place->factor == 0) place->factor = 1;
    if (place->factor < 1 || place->align < 1)
        return TSI_FAIL(TS_ERR_ARG,
                        "a cut's factor and alignment must be at least 1, got %lld, %lld",
                        (long long)place->factor, (long long)place->align);
    if (place->kind == TS_PLACE_STRIDED && place->factor == 1) place->kind = TS_PLACE_SHARD;
    if (place->kind != TS_PLACE_RAGGED) {
        place->sizes = NULL;
        return TS_OK;
    }
    place->align = 1;
    return check_sizes(place, axis_size);
}

ts_status tsi_placement_normalise(ts_placement *place, int64_t axis_size)
{
    ts_placement plain = { .kind = place->kind, .factor = 1, .align = 1 };
    switch ((ts_placement_kind)place->kind) {
    case TS_PLACE_REPLICATE:
        *place = plain;
        return TS_OK;
    case TS_PLACE_SHARD:
    case TS_PLACE_STRIDED:
    case TS_PLACE_RAGGED:
    case TS_PLACE_HEAD_TAIL:
        place->reduce = place->reserved = 0;
        place->norm = 0;
        return normalise_cut(place, axis_size);
    case TS_PLACE_PARTIAL:
        if (place->reduce <= TS_REDUCE_NONE || place->reduce >= TS_REDUCE_COUNT)
            return TSI_FAIL(TS_ERR_ARG, "%d is no reduction", (int)place->reduce);
        plain.reduce = place->reduce;
        *place = plain;
        return TS_OK;
    case TS_PLACE_NORM:
        if (!isfinite(place->norm) || place->norm == 0)
            return TSI_FAIL(TS_ERR_ARG, "the p of a partial norm must be finite and not 0");
        plain.norm = place->norm;
        *place = plain;
        return TS_OK;
    }
    return TSI_FAIL(TS_ERR_ARG, "%d is no kind of placement", (int)place->kind);
}

bool tsi_placement_equal(const ts_placement *a, const ts_placement *b, int64_t axis_size)
{
    if (a->kind != b->kind || a->dim != b->dim || a->dim_last != b->dim_last) return false;
    if (a->order != b->order || a->factor != b->factor || a->align != b->align) return false;
    if (a->reduce != b->reduce || a->norm != b->norm) return false;
    if (a->kind != TS_PLACE_RAGGED || a->sizes == b->sizes) return true;
    return memcmp(a->sizes, b->sizes, (size_t)(axis_size * a->factor) * sizeof *a->sizes) == 0;
}

int ts_placement_equal(const ts_placement *a, const ts_placement *b, int64_t axis_size)
{
    return a && b && tsi_placement_equal(a, b, axis_size);
}

/* ---- printing ------------------------------------------------------------------------------- */

/* The shortest decimal that reads back as p, with a point in every locale. */
static void print_norm(tsi_text *text, double p)
{
    char number[40];
    for (int digits = 6; digits <= 17; digits++) {
        (void)snprintf(number, sizeof number, "%.*g", digits, p);
        if (strtod(number, NULL) == p) break;
    }
    for (char *c = number; *c; c++)
        if (*c == ',') *c = '.';
    tsi_text_printf(text, "P(norm:%s)", number);
}

static void print_number(tsi_text *text, const char *before, int64_t value)
{
    tsi_text_add(text, before);
    tsi_text_int(text, value);
}

static void print_cut(tsi_text *text, const ts_placement *place, int64_t axis_size, int ordered)
{
    static const char *const name[] = { "R", "S", "SS", "RS", "HT" };
    tsi_text_add(text, name[place->kind]);
    print_number(text, "(", place->dim);
    if (place->dim_last != place->dim) print_number(text, "-", place->dim_last);
    if (place->align > 1) print_number(text, "/", place->align);
    if (place->kind == TS_PLACE_STRIDED) print_number(text, ",", place->factor);
    for (int64_t i = 0; i < axis_size * place->factor && place->kind == TS_PLACE_RAGGED; i++)
        print_number(text, i == 0 ? ":" : i % axis_size ? "," : "|", place->sizes[i]);
    tsi_text_add(text, ")");
    if (!ordered) return;
    print_number(text, "[", place->order);
    tsi_text_add(text, "]");
}

static void print_partial(tsi_text *text, const char *reduce)
{
    tsi_text_add(text, "P(");
    tsi_text_add(text, reduce);
    tsi_text_add(text, ")");
}

void tsi_placement_print(tsi_text *text, const ts_placement *place, int64_t axis_size, int ordered)
{
    if (tsi_placement_cuts(place))
        print_cut(text, place, axis_size, ordered);
    else if (place->kind == TS_PLACE_PARTIAL)
        print_partial(text, ts_reduce_name((ts_reduce)place->reduce));
    else if (place->kind == TS_PLACE_NORM)
        print_norm(text, place->norm);
    else
        tsi_text_add(text, "R");
}

size_t tsi_text_copy_out(tsi_text *text, char *out, size_t size)
{
    size_t length = text->failed ? 0 : text->length;
    if (size > 0) {
        size_t kept = length < size ? length : size - 1;
        if (kept > 0) memcpy(out, text->data, kept);
        out[kept] = '\0';
    }
    tsi_text_release(text);
    return length;
}

size_t tsi_placement_text(const ts_placement *place, int64_t axis_size, int ordered, char *out,
                          size_t size)
{
    tsi_text text = { 0 };
    tsi_placement_print(&text, place, axis_size, ordered);
    return tsi_text_copy_out(&text, out, size);
}
