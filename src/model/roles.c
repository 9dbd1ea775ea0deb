/* SPDX-License-Identifier: Apache-2.0 */
/* roles.c - what the axes of a training mesh do: their names say it.
 *
 * A name that is no role would leave an axis on which every rank computes everything, without a
 * word; so there is no such mesh. This is the one reader of the meshes of commands that train. */
#include <string.h>

#include "base/error.h"
#include "layout/mesh.h"
#include "tessera/model.h"

static const struct {
    const char *name;
    ts_role role;
} table[] = { { "pp", TS_ROLE_PIPELINE },  { "replicate", TS_ROLE_REPLICATE },
              { "dp", TS_ROLE_REPLICATE }, { "fsdp", TS_ROLE_FSDP },
              { "cp", TS_ROLE_CONTEXT },   { "tp", TS_ROLE_TENSOR } };
enum { NAME_COUNT = sizeof table / sizeof table[0] };
#define KNOWN "pp, replicate (or dp), fsdp, cp, tp"

static ts_status refuse_name(const char *mesh, const char *name)
{
    const char *names[NAME_COUNT + 1] = { NULL };
    for (int i = 0; i < NAME_COUNT; i++)
        names[i] = table[i].name;
    const char *near = tsi_text_nearest(name, names);
    if (!name[0])
        return TSI_FAIL(TS_ERR_MESH,
                        "mesh \"%.200s\": an axis has no name, which says what it does: " KNOWN
                        "; as in \"dp=2, tp=2\"",
                        mesh);
    return TSI_FAIL(TS_ERR_MESH, "mesh \"%.200s\": \"%s\" is no role of an axis (" KNOWN ")%s%s%s",
                    mesh, name, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

static ts_status add_axis(const char *mesh, const char *name, int64_t size, ts_roles *out)
{
    int i = 0;
    while (i < NAME_COUNT && strcmp(name, table[i].name) != 0)
        i++;
    if (i == NAME_COUNT) return refuse_name(mesh, name);
    if (out->size[table[i].role] > 0)
        return TSI_FAIL(TS_ERR_MESH, "mesh \"%.200s\": two axes have the role of %s", mesh, name);
    out->size[table[i].role] = size;
    return TS_OK;
}

ts_status ts_roles_parse(const char *mesh, ts_roles *out)
{
    if (!mesh || !out) return TSI_FAIL(TS_ERR_NULL, "roles: an argument is NULL");
    ts_roles roles = { .struct_size = sizeof roles };
    *out = roles;
    tsi_cursor cursor = tsi_cursor_of("mesh", mesh);
    tsi_mesh_desc draft = { 0 };
    int32_t star;
    TSI_TRY(tsi_mesh_parse_axes(&cursor, &draft, &star));
    if (!tsi_cursor_done(&cursor) && *cursor.at != ':')
        return tsi_cursor_fail(&cursor, "',' or the end");
    for (int32_t k = 0; k < draft.ndim; k++)
        TSI_TRY(add_axis(mesh, draft.name[k], draft.size[k], &roles));
    roles.ranks = star < 0 ? draft.count : 0;
    *out = roles;
    return TS_OK;
}
