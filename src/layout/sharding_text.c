/* SPDX-License-Identifier: Apache-2.0 */
/* sharding_text.c - lists of placements: by position "S(0), R", or by name "dp:S(0) tp?:S(1)".
 *
 * By position there is one placement per axis, separated by commas. By name, entries are separated
 * by blanks or commas, axes that are not named are R, and with '?' an axis may be missing.
 * Positions of cuts must be given for all cuts of a dim or for none, and be 0, 1, 2, ... in some
 * order. Every error has its column. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/hash.h"
#include "layout/placement.h"
#include "layout/slots.h"

typedef struct reader {
    tsi_cursor cursor;
    const tsi_mesh_desc *mesh;
    tsi_arena arena;
    ts_placement place[TS_NDIM_MAX];
    tsi_cursor began[TS_NDIM_MAX]; /* where the placement of an axis stands */
    uint32_t given;                /* axes that have one */
} reader;

/* Reads `name[?]:` if that is what comes next; false and no progress otherwise. */
static bool take_name(tsi_cursor *cursor, char *name, size_t size, bool *optional)
{
    tsi_cursor trial = *cursor;
    int64_t number;
    if (!tsi_cursor_word(&trial, name, size)) {
        if (!tsi_cursor_int(&trial, &number) || number < 0 || number >= TS_NDIM_MAX) return false;
        name[0] = (char)('0' + number);
        name[1] = '\0';
    }
    *optional = tsi_cursor_take(&trial, '?');
    if (!tsi_cursor_take(&trial, ':')) return false;
    *cursor = trial;
    return true;
}

static ts_status unknown_axis(const reader *r, const tsi_cursor *before, const char *name)
{
    const char *names[TS_NDIM_MAX + 1] = { NULL };
    char expected[96];
    int32_t count = 0;
    for (int32_t k = 0; k < r->mesh->ndim; k++)
        if (r->mesh->name[k][0]) names[count++] = r->mesh->name[k];
    const char *near = tsi_text_nearest(name, names);
    if (near)
        (void)snprintf(expected, sizeof expected, "an axis of the mesh (did you mean \"%s\"?)",
                       near);
    else
        (void)snprintf(expected, sizeof expected,
                       "an axis of the mesh, or '?' behind one that may be missing");
    return tsi_cursor_fail(before, expected);
}

static ts_status read_named(reader *r)
{
    while (!tsi_cursor_done(&r->cursor)) {
        char name[TSI_AXIS_NAME_MAX + 1];
        bool optional;
        ts_placement place;
        tsi_cursor before = r->cursor;
        if (!take_name(&r->cursor, name, sizeof name, &optional))
            return tsi_cursor_fail(&before, "an axis name and ':'");
        int32_t axis = tsi_mesh_desc_axis(r->mesh, name);
        if (axis < 0 && !optional) return unknown_axis(r, &before, name);
        if (axis >= 0 && (r->given >> axis & 1)) return tsi_cursor_fail(&before, "each axis once");
        tsi_cursor began = r->cursor;
        TSI_TRY(tsi_placement_parse(&r->cursor, axis >= 0 ? r->mesh->size[axis] : -1, &r->arena,
                                    &place));
        if (axis >= 0) {
            r->place[axis] = place;
            r->began[axis] = began;
            r->given |= 1u << axis;
        }
        (void)tsi_cursor_take(&r->cursor, ',');
    }
    return TS_OK;
}

static ts_status read_listed(reader *r)
{
    int32_t count = 0;
    do {
        ts_placement beyond, *place = count < r->mesh->ndim ? &r->place[count] : &beyond;
        int64_t size = count < r->mesh->ndim ? r->mesh->size[count] : -1;
        if (count < r->mesh->ndim) r->began[count] = r->cursor;
        TSI_TRY(tsi_placement_parse(&r->cursor, size, &r->arena, place));
        count++;
    } while (tsi_cursor_take(&r->cursor, ','));
    if (!tsi_cursor_done(&r->cursor)) return tsi_cursor_fail(&r->cursor, "',' or the end");
    if (count != r->mesh->ndim)
        return TSI_FAIL(
            TS_ERR_SHAPE,
            "placements \"%.200s\": %d are given, the mesh has %d %s; one is needed for "
            "each",
            r->cursor.start, (int)count, (int)r->mesh->ndim, r->mesh->ndim == 1 ? "axis" : "axes");
    return TS_OK;
}

/* All cuts of a dim have a position or none has; positions are 0 .. count-1, each once. */
static ts_status check_positions(const reader *r, int32_t axis)
{
    const ts_placement *place = &r->place[axis];
    int32_t cuts = 0, with = 0, same = 0;
    for (int32_t k = 0; k < r->mesh->ndim; k++) {
        const ts_placement *other = &r->place[k];
        if (!tsi_placement_cuts(other) || other->dim != place->dim) continue;
        cuts++;
        with += other->order != TSI_ORDER_NONE;
        same += other->order == place->order;
    }
    if (with == 0) return TS_OK;
    if (place->order == TSI_ORDER_NONE)
        return tsi_cursor_fail(
            &r->began[axis],
            "a position such as [0] behind it, as behind the other cuts of its dim");
    if (place->order >= cuts || same > 1) {
        char expected[96];
        (void)snprintf(expected, sizeof expected,
                       "positions 0 to %d, each once, behind the cuts of dim %d", (int)(cuts - 1),
                       (int)place->dim);
        return tsi_cursor_fail(&r->began[axis], expected);
    }
    return TS_OK;
}

const ts_sharding *tsi_sharding_parse(tsi_mesh_desc *mesh, const char *text)
{
    if (!text) {
        TSI_FAIL(TS_ERR_NULL, "placements need a text such as \"S(0), R\", got NULL");
        return NULL;
    }
    reader r = { .cursor = tsi_cursor_of("placements", text), .mesh = mesh };
    char name[TSI_AXIS_NAME_MAX + 1];
    bool optional;
    for (int32_t k = 0; k < mesh->ndim; k++)
        r.place[k] = (ts_placement){ .factor = 1, .align = 1 };
    tsi_cursor trial = r.cursor;
    bool named = take_name(&trial, name, sizeof name, &optional);
    ts_status status = named ? read_named(&r) : read_listed(&r);
    for (int32_t k = 0; k < mesh->ndim && status == TS_OK; k++)
        if (tsi_placement_cuts(&r.place[k])) status = check_positions(&r, k);
    const ts_sharding *sharding = status == TS_OK ? tsi_sharding_intern(mesh, r.place) : NULL;
    tsi_arena_release(&r.arena);
    return sharding;
}

/* Parses and puts the result in its place; the one that was there falls out. */
static const ts_sharding *parse_into(tsi_recent *recent, tsi_recent_sharding *place, uint64_t hash,
                                     tsi_mesh_desc *mesh, const char *text)
{
    const ts_sharding *sharding = tsi_sharding_parse(mesh, text);
    if (!sharding) return NULL;
    char *copy = tsi_strdup(text);
    if (!copy) {
        tsi_fail_memory("placements", strlen(text) + 1);
        ts_sharding_release(sharding);
        return NULL;
    }
    tsi_recent_fall(recent, tsi_sharding_interned(place->sharding));
    tsi_free(place->text);
    *place = (tsi_recent_sharding){ hash, copy, sharding };
    return sharding;
}

const ts_sharding *ts_sharding_get(ts_mesh *mesh, const char *text)
{
    if (!mesh || !text) {
        ts_rank *rank = tsi_rank_current();
        if (!rank || tsi_rank_enter(rank) == TS_OK)
            TSI_FAIL(TS_ERR_NULL, "ts_sharding_get: a mesh and a text are required");
        return NULL;
    }
    if (mesh->rank && tsi_rank_enter(mesh->rank) != TS_OK) return NULL;
    uint64_t hash = tsi_hash_text(mesh->desc->interned.hash, text);
    tsi_recent *recent = tsi_recent_open(mesh->world);
    if (!recent) return NULL;
    tsi_recent_sharding *place = &recent->sharding[hash % TSI_RECENT_SHARDINGS];
    const ts_sharding *sharding = place->sharding;
    if (!sharding || place->hash != hash || sharding->mesh != mesh->desc ||
        strcmp(place->text, text) != 0)
        sharding = parse_into(recent, place, hash, mesh->desc, text);
    tsi_recent_close(recent);
    return sharding;
}
