/* SPDX-License-Identifier: Apache-2.0 */
/* mesh_text.c - meshes as text, both ways.
 *
 *   mesh  := axis ("," axis)* [":" run ([","] run)*]
 *   axis  := [name "="] (size | "*")
 *   run   := rank ["-" rank ["/" step]]
 *
 * Errors give the column and what was expected. Runs are not unrolled while they can be counted, so
 * a line of text cannot ask for more memory than a mesh of listed ranks may have. Printing a mesh
 * and parsing it gives that mesh. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/intmath.h"
#include "layout/mesh.h"
#include "layout/placement.h"

/* ---- axes ----------------------------------------------------------------------------------- */

static ts_status parse_axis(tsi_cursor *cursor, tsi_mesh_desc *draft, int32_t *star)
{
    int32_t k = draft->ndim;
    if (k == TS_NDIM_MAX) return tsi_cursor_fail(cursor, "the end (a mesh has at most 8 axes)");
    char *name = draft->name[k];
    name[0] = '\0';
    if (tsi_cursor_word(cursor, name, TSI_AXIS_NAME_MAX + 1)) {
        if (!tsi_cursor_take(cursor, '='))
            return tsi_cursor_fail(cursor, "'=' after the axis name");
    }
    if (tsi_cursor_take(cursor, '*')) {
        if (*star >= 0) {
            cursor->at--;
            return tsi_cursor_fail(cursor, "a size (only one axis may be \"*\")");
        }
        *star = k;
        draft->size[k] = 1;
    } else {
        tsi_cursor before = *cursor;
        if (!tsi_cursor_int(cursor, &draft->size[k]))
            return tsi_cursor_fail(cursor, name[0] ? "a size or \"*\""
                                                   : "a name of at most 31 "
                                                     "characters, a size or \"*\"");
        if (draft->size[k] < 1) return tsi_cursor_fail(&before, "a size of at least 1");
    }
    draft->ndim++;
    return TS_OK;
}

ts_status tsi_mesh_parse_axes(tsi_cursor *cursor, tsi_mesh_desc *draft, int32_t *star)
{
    *star = -1;
    draft->ndim = 0;
    do
        TSI_TRY(parse_axis(cursor, draft, star));
    while (tsi_cursor_take(cursor, ','));
    if (!tsi_mesh_draft_count(draft))
        return TSI_FAIL(TS_ERR_MESH, "mesh \"%.200s\" has more than 2^60 ranks", cursor->start);
    return tsi_mesh_check_names(draft);
}

ts_status tsi_mesh_check_names(const tsi_mesh_desc *draft)
{
    for (int32_t i = 0; i < draft->ndim; i++)
        for (int32_t k = 0; k < i; k++)
            if (draft->name[i][0] && strcmp(draft->name[i], draft->name[k]) == 0)
                return TSI_FAIL(TS_ERR_MESH, "mesh: axes %d and %d are both named \"%s\"", (int)k,
                                (int)i, draft->name[i]);
    return TS_OK;
}

ts_status tsi_mesh_resolve_star(tsi_mesh_desc *draft, int32_t star, int64_t whole, const char *what)
{
    if (star < 0) return TS_OK;
    int64_t others = draft->count; /* the axis counts 1 so far */
    if (whole % others != 0 || whole == 0)
        return TSI_FAIL(TS_ERR_MESH,
                        "mesh: axis %d is \"*\" but %s, %lld, is no multiple of the other axes' "
                        "%lld: %lld or %lld would be",
                        (int)star, what, (long long)whole, (long long)others,
                        (long long)(tsi_max_i64(whole / others, 1) * others),
                        (long long)((whole / others + 1) * others));
    draft->size[star] = whole / others;
    draft->count = whole;
    return TS_OK;
}

/* ---- listed ranks --------------------------------------------------------------------------- */

typedef struct rank_run {
    int64_t first, last, step;
} rank_run;

typedef struct run_list {
    rank_run *run;
    int64_t count, room, total; /* runs, places for runs, ranks in all of them */
} run_list;

static int64_t run_length(const rank_run *r)
{
    return (r->last - r->first) / r->step + 1;
}

static ts_status parse_run(tsi_cursor *cursor, int64_t world_size, rank_run *out)
{
    tsi_cursor before = *cursor;
    if (!tsi_cursor_int(cursor, &out->first) || out->first < 0)
        return tsi_cursor_fail(&before, "a rank");
    out->last = out->first;
    out->step = 1;
    if (tsi_cursor_take(cursor, '-')) {
        tsi_cursor second = *cursor;
        if (!tsi_cursor_int(cursor, &out->last) || out->last < out->first)
            return tsi_cursor_fail(&second, "the last rank of the run, not below its first");
        second = *cursor;
        if (tsi_cursor_take(cursor, '/')) {
            second = *cursor;
            if (!tsi_cursor_int(cursor, &out->step) || out->step < 1)
                return tsi_cursor_fail(&second, "a step of at least 1");
        }
        if (out->last > TSI_MESH_COUNT_MAX) return tsi_cursor_fail(&second, "a rank below 2^60");
        out->last = out->first + (out->last - out->first) / out->step * out->step;
    }
    if (out->last >= TSI_MESH_COUNT_MAX) return tsi_cursor_fail(&before, "a rank below 2^60");
    if (world_size >= 0 && out->last >= world_size) {
        char expected[64];
        (void)snprintf(expected, sizeof expected, "ranks below %lld, the size of the world",
                       (long long)world_size);
        return tsi_cursor_fail(&before, expected);
    }
    return TS_OK;
}

static ts_status parse_runs(tsi_cursor *cursor, int64_t world_size, run_list *list)
{
    do {
        TSI_TRY(tsi_room(&list->run, list->count, &list->room, sizeof *list->run,
                         "the ranks of a mesh"));
        rank_run *r = &list->run[list->count];
        TSI_TRY(parse_run(cursor, world_size, r));
        list->count++;
        if (!tsi_add_i64(list->total, run_length(r), &list->total))
            return TSI_FAIL(TS_ERR_MESH, "mesh: more than 2^63 ranks are listed");
        (void)tsi_cursor_take(cursor, ',');
    } while (!tsi_cursor_done(cursor));
    return TS_OK;
}

static ts_status settle_list(ts_world *world, tsi_mesh_desc *draft, const run_list *list,
                             tsi_mesh_desc **out)
{
    if (list->count == 1) {
        draft->offset = list->run[0].first;
        tsi_mesh_draft_row_major(draft, list->run[0].step);
        return tsi_mesh_settle(world, draft, NULL, out);
    }
    if (list->total > TSI_MESH_LIST_MAX)
        return TSI_FAIL(TS_ERR_MESH,
                        "mesh: %lld ranks in %lld runs; more than %d need a single run",
                        (long long)list->total, (long long)list->count, (int)TSI_MESH_LIST_MAX);
    size_t bytes = (size_t)list->total * sizeof(int64_t);
    int64_t *ranks = tsi_alloc(bytes), count = 0;
    if (!ranks) return tsi_fail_memory("the ranks of a mesh", bytes);
    for (int64_t i = 0; i < list->count; i++)
        for (int64_t k = 0; k < run_length(&list->run[i]); k++)
            ranks[count++] = list->run[i].first + k * list->run[i].step;
    ts_status status = tsi_mesh_settle(world, draft, ranks, out);
    tsi_free(ranks);
    return status;
}

/* ---- meshes --------------------------------------------------------------------------------- */

static ts_status parse_listed(ts_world *world, tsi_cursor *cursor, tsi_mesh_desc *draft,
                              int32_t star, int64_t world_size, tsi_mesh_desc **out)
{
    run_list list = { 0 };
    ts_status status = parse_runs(cursor, world_size, &list);
    if (status == TS_OK && star >= 0)
        status = tsi_mesh_resolve_star(draft, star, list.total, "the number of ranks listed");
    if (status == TS_OK && list.total != draft->count)
        status = TSI_FAIL(TS_ERR_MESH, "mesh \"%.200s\": its axes hold %lld ranks, %lld are listed",
                          cursor->start, (long long)draft->count, (long long)list.total);
    if (status == TS_OK) status = settle_list(world, draft, &list, out);
    tsi_free(list.run);
    return status;
}

ts_status tsi_mesh_desc_parse(ts_world *world, const char *text, int64_t world_size,
                              tsi_mesh_desc **out)
{
    *out = NULL;
    if (!text) return TSI_FAIL(TS_ERR_NULL, "a mesh needs a text such as \"dp=2, tp=4\", got NULL");
    tsi_cursor cursor = tsi_cursor_of("mesh", text);
    tsi_mesh_desc draft = { 0 };
    int32_t star;
    TSI_TRY(tsi_mesh_parse_axes(&cursor, &draft, &star));
    if (tsi_cursor_take(&cursor, ':'))
        return parse_listed(world, &cursor, &draft, star, world_size, out);
    if (!tsi_cursor_done(&cursor)) return tsi_cursor_fail(&cursor, "',', ':' or the end");
    if (star >= 0 && world_size < 0)
        return TSI_FAIL(TS_ERR_MESH,
                        "mesh \"%.200s\": \"*\" takes what is left of a world, and "
                        "there is none; give a number",
                        text);
    TSI_TRY(tsi_mesh_resolve_star(&draft, star, world_size, "the size of the world"));
    if (world_size >= 0 && draft.count > world_size)
        return TSI_FAIL(TS_ERR_MESH,
                        "mesh \"%.200s\" has %lld ranks, the world only %lld: start it with %lld "
                        "(TESSERA_RANKS=%lld, or mpirun -n %lld)",
                        text, (long long)draft.count, (long long)world_size, (long long)draft.count,
                        (long long)draft.count, (long long)draft.count);
    tsi_mesh_draft_row_major(&draft, 1);
    return tsi_mesh_settle(world, &draft, NULL, out);
}

/* ---- printing ------------------------------------------------------------------------------- */

/* The step of a mesh that is one run in row-major order; 0 if it is not. */
static int64_t single_step(const tsi_mesh_desc *mesh)
{
    if (mesh->map) return 0;
    int32_t count = mesh->mode_first[mesh->ndim];
    int64_t step = count > 0 ? mesh->mode[count - 1].stride : 1, next = step;
    for (int32_t m = count - 1; m >= 0; m--) {
        if (mesh->mode[m].stride != next) return 0;
        next *= mesh->mode[m].size;
    }
    return step;
}

static void print_run(tsi_text *text, int64_t first, int64_t count, int64_t step)
{
    tsi_text_printf(text, " %lld", (long long)first);
    if (count == 1) return;
    bool both = count == 2 && step > 1; /* "2 6" rather than "2-6/4" */
    tsi_text_printf(text, both ? " %lld" : "-%lld", (long long)(first + (count - 1) * step));
    if (step > 1 && !both) tsi_text_printf(text, "/%lld", (long long)step);
}

static int64_t rank_of(const tsi_mesh_desc *mesh, int64_t index)
{
    int64_t coord[TS_NDIM_MAX];
    tsi_mesh_desc_unravel(mesh, index, coord);
    return tsi_mesh_desc_rank(mesh, coord);
}

/* Ranks in row-major order, three or more in even ascending steps as a run. */
static void print_ranks(tsi_text *text, const tsi_mesh_desc *mesh)
{
    for (int64_t i = 0; i < mesh->count;) {
        int64_t first = rank_of(mesh, i), step = 0, run = 1;
        if (i + 1 < mesh->count) step = rank_of(mesh, i + 1) - first;
        while (step > 0 && i + run < mesh->count && rank_of(mesh, i + run) == first + run * step)
            run++;
        if (run < 3) run = 1;
        print_run(text, first, run, step);
        i += run;
    }
}

size_t tsi_mesh_desc_text(const tsi_mesh_desc *mesh, char *out, size_t size)
{
    tsi_text text = { 0 };
    for (int32_t k = 0; k < mesh->ndim; k++) {
        if (k > 0) tsi_text_add(&text, ", ");
        if (mesh->name[k][0]) tsi_text_printf(&text, "%s=", mesh->name[k]);
        tsi_text_printf(&text, "%lld", (long long)mesh->size[k]);
    }
    int64_t step = single_step(mesh);
    if (step != 1 || mesh->offset != 0) {
        tsi_text_add(&text, " :");
        if (step > 0)
            print_run(&text, mesh->offset, mesh->count, step);
        else
            print_ranks(&text, mesh);
    }
    return tsi_text_copy_out(&text, out, size);
}
