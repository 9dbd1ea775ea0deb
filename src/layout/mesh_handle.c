/* SPDX-License-Identifier: Apache-2.0 */
/* mesh_handle.c - ts_mesh: what one rank knows of a mesh, and where it came from.
 *
 *   root "dp=2, tp=4"  --slice "tp"-->  "tp=4 : 4-7" on ranks 4..7    modes (4, 1), offset 4
 *                      --flatten----->  "dp_tp=8"                     modes (8, 1)
 *
 * A handle is in the list of its rank (or of the world, for descriptions), which frees what the
 * caller did not. The interned description of a derived mesh is made of the ranks of this rank's
 * own part; a rank outside the root has no part and gets that of coordinate zero, without being a
 * member. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/error.h"
#include "layout/mesh.h"
#include "layout/slots.h"

/* ---- life ----------------------------------------------------------------------------------- */

static ts_mesh **list_of(ts_world *world, ts_rank *rank)
{
    if (rank) {
        tsi_rank_layouts *layouts = tsi_rank_layouts_of(rank);
        return layouts ? &layouts->handles : NULL;
    }
    tsi_layout_state *state = tsi_layout_state_of(world);
    return state ? &state->handles : NULL;
}

/* The world's list is shared by threads; a rank's is its own. */
static void lock_list(const ts_mesh *mesh, int locked)
{
    if (mesh->rank) return;
    tsi_layout_state *state = tsi_layout_state_of(mesh->world);
    if (locked)
        pthread_mutex_lock(&state->lock);
    else
        pthread_mutex_unlock(&state->lock);
}

static void link_handle(ts_mesh *mesh, ts_mesh **list)
{
    lock_list(mesh, 1);
    mesh->after = *list;
    if (*list) (*list)->before = mesh;
    *list = mesh;
    lock_list(mesh, 0);
}

static void unlink_handle(ts_mesh *mesh)
{
    ts_mesh **list = list_of(mesh->world, mesh->rank);
    lock_list(mesh, 1);
    if (mesh->before)
        mesh->before->after = mesh->after;
    else
        *list = mesh->after;
    if (mesh->after) mesh->after->before = mesh->before;
    lock_list(mesh, 0);
}

void tsi_mesh_free(ts_mesh *mesh)
{
    if (mesh->groups && mesh->groups_destroy) mesh->groups_destroy(mesh->groups);
    tsi_mesh_desc_release(mesh->desc);
    tsi_mesh_desc_release(mesh->root);
    tsi_free(mesh);
}

/* A root sees itself. Not a copy of the struct: others count references meanwhile. */
static void view_root(tsi_mesh_desc *view, const tsi_mesh_desc *desc)
{
    view->count = desc->count;
    view->ndim = desc->ndim;
    view->offset = desc->offset;
    view->map = desc->map;
    view->map_count = desc->map_count;
    memcpy(view->mode_first, desc->mode_first, sizeof view->mode_first);
    memcpy(view->size, desc->size, sizeof view->size);
    memcpy(view->name, desc->name, sizeof view->name);
    memcpy(view->mode, desc->mode, sizeof view->mode);
    memcpy(view->mode_order, desc->mode_order, sizeof view->mode_order);
}

/* Takes the reference to desc. view NULL: a root. */
static ts_mesh *new_handle(ts_world *world, ts_rank *rank, tsi_mesh_desc *desc, ts_mesh *parent,
                           const tsi_mesh_desc *view)
{
    ts_mesh **list = list_of(world, rank);
    ts_mesh *mesh = list ? tsi_calloc(1, sizeof *mesh) : NULL;
    if (!mesh) {
        if (list) tsi_fail_memory("a mesh", sizeof *mesh);
        tsi_mesh_desc_release(desc);
        return NULL;
    }
    mesh->desc = desc;
    mesh->world = world;
    mesh->rank = rank;
    mesh->references = 1;
    mesh->parent = ts_mesh_retain(parent);
    mesh->root = view ? parent->root : desc;
    if (view)
        mesh->view = *view;
    else
        view_root(&mesh->view, desc);
    tsi_interned_retain(&mesh->root->interned);
    if (rank) mesh->member = tsi_mesh_desc_coord(desc, rank->index, mesh->coord);
    link_handle(mesh, list);
    return mesh;
}

ts_mesh *tsi_mesh_handle(ts_world *world, ts_rank *rank, tsi_mesh_desc *desc)
{
    return new_handle(world, rank, desc, NULL, NULL);
}

TSI_STEP_PATH ts_mesh *ts_mesh_retain(ts_mesh *mesh)
{
    if (mesh) mesh->references++;
    return mesh;
}

void ts_mesh_release(ts_mesh *mesh)
{
    while (mesh && --mesh->references == 0) {
        ts_mesh *parent = mesh->parent;
        unlink_handle(mesh);
        tsi_mesh_free(mesh);
        mesh = parent;
    }
}

void tsi_mesh_each(ts_rank *rank, void (*visit)(ts_mesh *mesh, void *context), void *context)
{
    tsi_rank_layouts *layouts = tsi_rank_layouts_of(rank);
    for (ts_mesh *mesh = layouts ? layouts->handles : NULL; mesh; mesh = mesh->after)
        visit(mesh, context);
}

ts_mesh *ts_mesh_describe(ts_world *world, const char *axes)
{
    tsi_mesh_desc *desc;
    if (!world) {
        TSI_FAIL(TS_ERR_NULL, "ts_mesh_describe: a world is required, got NULL");
        return NULL;
    }
    if (tsi_mesh_desc_parse(world, axes, -1, &desc) != TS_OK) return NULL;
    return tsi_mesh_handle(world, NULL, desc);
}

ts_mesh *ts_mesh_self(ts_rank *me)
{
    if (tsi_rank_enter(me) != TS_OK) return NULL;
    tsi_rank_layouts *layouts = tsi_rank_layouts_of(me);
    if (!layouts) return NULL;
    if (!layouts->self) {
        tsi_mesh_desc draft = { .ndim = 1, .size = { 1 }, .count = 1, .offset = me->index };
        tsi_mesh_desc *desc;
        snprintf(draft.name[0], sizeof draft.name[0], "self");
        tsi_mesh_draft_row_major(&draft, 1);
        if (tsi_mesh_settle(me->world, &draft, NULL, &desc) != TS_OK) return NULL;
        layouts->self = tsi_mesh_handle(me->world, me, desc); /* the rank keeps this reference */
    }
    return ts_mesh_retain(layouts->self);
}

/* ---- derived meshes ------------------------------------------------------------------------- */

/* TS_OK if a maker may go on with this mesh. */
static ts_status enter(ts_mesh *mesh, const char *what)
{
    if (!mesh) {
        ts_rank *rank = tsi_rank_current();
        if (rank) TSI_TRY(tsi_rank_enter(rank));
        return TSI_FAIL(TS_ERR_NULL, "%s: a mesh is required, got NULL", what);
    }
    return mesh->rank ? tsi_rank_enter(mesh->rank) : TS_OK;
}

static const tsi_mode *axis_modes(const tsi_mesh_desc *view, int32_t axis, int32_t *count)
{
    *count = view->mode_first[axis + 1] - view->mode_first[axis];
    return view->mode + view->mode_first[axis];
}

/* Index of this rank's coordinate along one axis. */
static int64_t my_index(const ts_mesh *mesh, int32_t axis)
{
    int64_t index = 0, coord = mesh->coord[axis];
    for (int32_t m = mesh->view.mode_first[axis + 1] - 1; m >= mesh->view.mode_first[axis]; m--) {
        index += coord % mesh->view.mode[m].size * mesh->view.mode[m].stride;
        coord /= mesh->view.mode[m].size;
    }
    return index;
}

static tsi_mesh_desc begin_view(const ts_mesh *mesh)
{
    return (tsi_mesh_desc){ .offset = mesh->view.offset,
                            .map = mesh->root->map,
                            .map_count = mesh->root->map_count };
}

/* The interned description of a view, and a handle on it. */
static ts_mesh *derive(ts_mesh *mesh, tsi_mesh_desc *view)
{
    tsi_mesh_desc *desc;
    if (tsi_mesh_check_names(view) != TS_OK || !tsi_mesh_draft_count(view)) return NULL;
    (void)tsi_mesh_draft_order(view);
    tsi_mesh_desc draft = *view;
    if (tsi_mesh_settle(mesh->world, &draft, NULL, &desc) != TS_OK) return NULL;
    if (desc == mesh->desc) {
        tsi_mesh_desc_release(desc);
        return ts_mesh_retain(mesh);
    }
    return new_handle(mesh->world, mesh->rank, desc, mesh, view);
}

static void list_axes(const tsi_mesh_desc *mesh, char *out, size_t size)
{
    out[0] = '\0';
    for (int32_t k = 0; k < mesh->ndim; k++) {
        size_t used = strlen(out);
        if (mesh->name[k][0])
            (void)snprintf(out + used, size - used, "%s%s", k ? ", " : "", mesh->name[k]);
        else
            (void)snprintf(out + used, size - used, "%s%d", k ? ", " : "", (int)k);
    }
}

/* Reads one axis by name or number. */
static ts_status parse_axis_name(tsi_cursor *cursor, const tsi_mesh_desc *mesh, int32_t *axis)
{
    char name[TSI_AXIS_NAME_MAX + 1], axes[TS_NDIM_MAX * (TSI_AXIS_NAME_MAX + 2) + 1],
        expected[384];
    tsi_cursor before = *cursor;
    int64_t number;
    *axis = -1;
    if (tsi_cursor_word(cursor, name, sizeof name))
        *axis = tsi_mesh_desc_axis(mesh, name);
    else if (tsi_cursor_int(cursor, &number) && number >= 0 && number < mesh->ndim)
        *axis = (int32_t)number;
    if (*axis >= 0) return TS_OK;
    list_axes(mesh, axes, sizeof axes);
    (void)snprintf(expected, sizeof expected, "an axis of the mesh (%s)", axes);
    return tsi_cursor_fail(&before, expected);
}

/* Adds "dp+cp" to a view: one axis of the modes of several, named by them. */
static ts_status parse_joined(tsi_cursor *cursor, const ts_mesh *mesh, tsi_mesh_desc *view,
                              uint32_t *used)
{
    tsi_mode mode[TSI_MODE_MAX];
    int32_t total = 0, k = view->ndim, parts = 0;
    char *name = view->name[k];
    view->size[k] = 1;
    do {
        int32_t axis, count;
        tsi_cursor before = *cursor;
        TSI_TRY(parse_axis_name(cursor, mesh->desc, &axis));
        if (*used >> axis & 1) return tsi_cursor_fail(&before, "each axis once");
        *used |= 1u << axis;
        const tsi_mode *from = axis_modes(&mesh->view, axis, &count);
        memcpy(mode + total, from, (size_t)count * sizeof *from);
        total += count;
        view->size[k] *= mesh->desc->size[axis];
        size_t length = strlen(name), more = strlen(mesh->desc->name[axis]);
        if (length + more + 1 > TSI_AXIS_NAME_MAX)
            return tsi_cursor_fail(&before, "joined axis names of at most 31 characters");
        if (parts++ > 0 && length > 0 && more > 0) name[length++] = '_';
        memcpy(name + length, mesh->desc->name[axis], more + 1);
    } while (tsi_cursor_take(cursor, '+'));
    (void)tsi_mesh_draft_axis(view, mode, total); /* never more modes than the mesh had */
    return TS_OK;
}

/* "tp, dp+cp" as a view; with `all` every axis must be named. */
static ts_status parse_view(const ts_mesh *mesh, const char *what, const char *axes, bool all,
                            tsi_mesh_desc *view)
{
    if (!axes) return TSI_FAIL(TS_ERR_NULL, "%s: the names of axes are required, got NULL", what);
    tsi_cursor cursor = tsi_cursor_of(what, axes);
    uint32_t used = 0;
    *view = begin_view(mesh);
    do {
        if (view->ndim == mesh->desc->ndim) return tsi_cursor_fail(&cursor, "each axis once");
        TSI_TRY(parse_joined(&cursor, mesh, view, &used));
    } while (tsi_cursor_take(&cursor, ','));
    if (!tsi_cursor_done(&cursor)) return tsi_cursor_fail(&cursor, "',', '+' or the end");
    for (int32_t k = 0; k < mesh->desc->ndim; k++) {
        if (used >> k & 1) continue;
        if (all) return tsi_cursor_fail(&cursor, "all axes of the mesh");
        view->offset += my_index(mesh, k);
    }
    return TS_OK;
}

ts_mesh *ts_mesh_slice(ts_mesh *mesh, const char *axes)
{
    tsi_mesh_desc view;
    if (enter(mesh, "ts_mesh_slice") != TS_OK) return NULL;
    if (parse_view(mesh, "slice of a mesh", axes, false, &view) != TS_OK) return NULL;
    return derive(mesh, &view);
}

ts_mesh *ts_mesh_permute(ts_mesh *mesh, const char *axes)
{
    tsi_mesh_desc view;
    if (enter(mesh, "ts_mesh_permute") != TS_OK) return NULL;
    if (parse_view(mesh, "permutation of a mesh", axes, true, &view) != TS_OK) return NULL;
    return derive(mesh, &view);
}

/* Is it a name that text can hold? */
static bool is_name(const char *name)
{
    char copy[TSI_AXIS_NAME_MAX + 1];
    tsi_cursor cursor = tsi_cursor_of("name", name);
    return tsi_cursor_word(&cursor, copy, sizeof copy) && *cursor.at == '\0' && *name != ' ';
}

ts_mesh *ts_mesh_flatten(ts_mesh *mesh, const char *name)
{
    if (enter(mesh, "ts_mesh_flatten") != TS_OK) return NULL;
    if (name && !is_name(name)) {
        TSI_FAIL(TS_ERR_ARG, "flatten of a mesh: \"%.64s\" is no name of at most 31 characters",
                 name);
        return NULL;
    }
    tsi_mesh_desc view = begin_view(mesh);
    size_t used = 0;
    view.size[0] = mesh->desc->count;
    for (int32_t k = 0; k < mesh->desc->ndim && !name; k++) {
        size_t more = strlen(mesh->desc->name[k]);
        if (used + more + 1 > TSI_AXIS_NAME_MAX) {
            TSI_FAIL(TS_ERR_ARG,
                     "flatten of a mesh: the joined names are longer than 31 characters; "
                     "give a name");
            return NULL;
        }
        if (used > 0 && more > 0) view.name[0][used++] = '_';
        memcpy(view.name[0] + used, mesh->desc->name[k], more + 1);
        used += more;
    }
    if (name) snprintf(view.name[0], sizeof view.name[0], "%s", name);
    (void)tsi_mesh_draft_axis(&view, mesh->view.mode, mesh->view.mode_first[mesh->desc->ndim]);
    return derive(mesh, &view);
}

/* ---- split ---------------------------------------------------------------------------------- */

/* Axis names and sizes of `mesh` with those of `parts` in place of one axis. */
static ts_status split_sizes(const ts_mesh *mesh, int32_t axis, const tsi_mesh_desc *parts,
                             tsi_mesh_desc *draft)
{
    int32_t ndim = mesh->desc->ndim - 1 + parts->ndim;
    if (ndim > TS_NDIM_MAX)
        return TSI_FAIL(TS_ERR_MESH,
                        "split of a mesh: it would have %d axes, at most 8 are allowed", (int)ndim);
    for (int32_t k = 0; k < ndim; k++) {
        bool inside = k >= axis && k < axis + parts->ndim;
        const tsi_mesh_desc *from = inside ? parts : mesh->desc;
        int32_t at = inside ? k - axis : k < axis ? k : k - parts->ndim + 1;
        draft->size[k] = from->size[at];
        memcpy(draft->name[k], from->name[at], sizeof draft->name[k]);
    }
    return TS_OK;
}

/* The sizes do not fall on the borders of the axis' modes: the ranks are listed, and the result is
 * a root of its own. */
static ts_mesh *split_listed(ts_mesh *mesh, int32_t axis, const tsi_mesh_desc *parts,
                             tsi_mesh_desc *draft)
{
    draft->ndim = mesh->desc->ndim - 1 + parts->ndim;
    draft->count = mesh->desc->count;
    draft->map = NULL;
    draft->map_count = 0;
    if (draft->count > TSI_MESH_LIST_MAX) {
        TSI_FAIL(TS_ERR_MESH,
                 "split of axis %d: the sizes do not fall on the borders of the axes it "
                 "was flattened from, and %lld ranks are too many to list",
                 (int)axis, (long long)draft->count);
        return NULL;
    }
    size_t bytes = (size_t)draft->count * sizeof(int64_t);
    int64_t *ranks = tsi_alloc(bytes), coord[TS_NDIM_MAX];
    tsi_mesh_desc *desc = NULL;
    if (!ranks) {
        tsi_fail_memory("the ranks of a mesh", bytes);
        return NULL;
    }
    /* Row-major order over the new axes is that over the old ones. */
    for (int64_t i = 0; i < draft->count; i++) {
        tsi_mesh_desc_unravel(mesh->desc, i, coord);
        ranks[i] = tsi_mesh_desc_rank(mesh->desc, coord);
    }
    ts_status status = tsi_mesh_settle(mesh->world, draft, ranks, &desc);
    tsi_free(ranks);
    return status == TS_OK ? new_handle(mesh->world, mesh->rank, desc, mesh, NULL) : NULL;
}

static ts_status parse_split(ts_mesh *mesh, const char *axis, const char *axes, int32_t *number,
                             tsi_mesh_desc *parts)
{
    int32_t star;
    if (!axis || !axes) return TSI_FAIL(TS_ERR_NULL, "ts_mesh_split: axis and axes are required");
    tsi_cursor which = tsi_cursor_of("split of a mesh", axis);
    TSI_TRY(parse_axis_name(&which, mesh->desc, number));
    tsi_cursor cursor = tsi_cursor_of("split of a mesh", axes);
    TSI_TRY(tsi_mesh_parse_axes(&cursor, parts, &star));
    if (!tsi_cursor_done(&cursor)) return tsi_cursor_fail(&cursor, "',' or the end");
    int64_t whole = mesh->desc->size[*number];
    TSI_TRY(tsi_mesh_resolve_star(parts, star, whole, "the size of the axis"));
    if (parts->count != whole)
        return TSI_FAIL(TS_ERR_MESH,
                        "split of axis \"%.64s\": its size is %lld, that of \"%.64s\" %lld", axis,
                        (long long)whole, axes, (long long)parts->count);
    return TS_OK;
}

ts_mesh *ts_mesh_split(ts_mesh *mesh, const char *axis, const char *axes)
{
    int32_t number, count;
    tsi_mesh_desc parts = { 0 };
    if (enter(mesh, "ts_mesh_split") != TS_OK) return NULL;
    if (parse_split(mesh, axis, axes, &number, &parts) != TS_OK) return NULL;
    tsi_mesh_desc view = begin_view(mesh);
    if (split_sizes(mesh, number, &parts, &view) != TS_OK) return NULL;
    bool aligned = true;
    for (int32_t k = 0; k < mesh->desc->ndim && aligned; k++) {
        const tsi_mode *mode = axis_modes(&mesh->view, k, &count);
        aligned = k == number ? tsi_mesh_draft_split(&view, mode, count, parts.size, parts.ndim)
                              : tsi_mesh_draft_axis(&view, mode, count);
    }
    return aligned ? derive(mesh, &view) : split_listed(mesh, number, &parts, &view);
}

/* ---- concatenation -------------------------------------------------------------------------- */

static ts_status add_axes(tsi_mesh_desc *view, const ts_mesh *mesh, const ts_mesh *first)
{
    if (mesh->world != first->world || mesh->rank != first->rank || mesh->root != first->root)
        return TSI_FAIL(TS_ERR_MESH,
                        "concatenation of meshes: they were not derived from one mesh");
    for (int32_t k = 0; k < mesh->desc->ndim; k++) {
        int32_t count, at = view->ndim;
        const tsi_mode *mode = axis_modes(&mesh->view, k, &count);
        if (at == TS_NDIM_MAX)
            return TSI_FAIL(TS_ERR_MESH, "concatenation of meshes: more than 8 axes");
        view->size[at] = mesh->desc->size[k];
        memcpy(view->name[at], mesh->desc->name[k], sizeof view->name[at]);
        if (!tsi_mesh_draft_axis(view, mode, count))
            return TSI_FAIL(TS_ERR_MESH, "concatenation of meshes: they overlap");
        if (mesh != first && mesh->member) view->offset -= my_index(mesh, k);
    }
    return TS_OK;
}

ts_mesh *ts_mesh_concat(ts_mesh *const *mesh, int32_t count)
{
    if (!mesh || count < 1) {
        TSI_FAIL(TS_ERR_ARG, "ts_mesh_concat: at least one mesh is required");
        return NULL;
    }
    for (int32_t i = 0; i < count; i++)
        if (enter(mesh[i], "ts_mesh_concat") != TS_OK) return NULL;
    tsi_mesh_desc view = begin_view(mesh[0]);
    for (int32_t i = 0; i < count; i++)
        if (add_axes(&view, mesh[i], mesh[0]) != TS_OK) return NULL;
    if (!tsi_mesh_draft_order(&view)) {
        TSI_FAIL(TS_ERR_MESH, "concatenation of meshes: they overlap, a rank would occur twice");
        return NULL;
    }
    return derive(mesh[0], &view);
}
