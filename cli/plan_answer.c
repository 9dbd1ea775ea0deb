/* SPDX-License-Identifier: Apache-2.0 */
/* plan_answer.c - what `tessera plan` says to a machine: the library's own JSON of a plan, and the
 * verdict of the check. */
#include <stdlib.h>
#include <string.h>

#include "plan.h"

bool plan_answer(const plan_case *c, const char *check, ts_json_writer *json)
{
    size_t length = ts_plan_json(c->plan, NULL, 0);
    char *text = malloc(length + 1);
    if (text == NULL || length < 2) {
        free(text);
        return false;
    }
    (void)ts_plan_json(c->plan, text, length + 1);
    ts_json_put_open(json, '{');
    ts_json_put_raw(json, text + 1, length - 2); /* its members, without the brackets */
    if (check != NULL) ts_json_put_member_text(json, "check", check);
    ts_json_put_close(json, '}');
    free(text);
    return true;
}

/* ---- batches --------------------------------------------------------------------------------- */
typedef struct fields { /* of one request; texts are owned */
    char *mesh, *to_mesh, *from, *to;
    plan_request request;
    bool check;
} fields;

static bool read_layouts(const ts_json *request, fields *f, char *error, size_t size)
{
    const ts_json *to_mesh = ts_json_member(request, "dst_mesh"), *order = NULL;
    f->mesh = layout_field_mesh(ts_json_member(request, "mesh"), "mesh", error, size);
    if (f->mesh == NULL) return false;
    if (ts_json_kind_of(to_mesh) != TS_JSON_NULL) {
        f->to_mesh = layout_field_mesh(to_mesh, "dst_mesh", error, size);
        if (f->to_mesh == NULL) return false;
    }
    if (!layout_field_shape(ts_json_member(request, "tensor"), "tensor", &f->request.shape, error,
                            size) ||
        !layout_field_order(request, "src_order", &order, error, size))
        return false;
    f->from = layout_field_placements(ts_json_member(request, "src"), "src", order, error, size);
    if (f->from == NULL || !layout_field_order(request, "dst_order", &order, error, size))
        return false;
    f->to = layout_field_placements(ts_json_member(request, "dst"), "dst", order, error, size);
    return f->to != NULL;
}

static bool read_fields(const ts_json *request, const plan_defaults *defaults, fields *f,
                        char *error, size_t size)
{
    plan_request *r = &f->request;
    *r = (plan_request){ .planner = defaults->planner, .topology = defaults->topology };
    if (!read_layouts(request, f, error, size)) return false;
    r->mesh = f->mesh;
    r->to_mesh = f->to_mesh;
    r->from = f->from;
    r->to = f->to;
    bool good = cli_field_text(request, "dtype", &r->dtype, error, size) &&
                cli_field_text(request, "planner", &r->planner, error, size) &&
                cli_field_text(request, "topology", &r->topology, error, size) &&
                cli_field_count(request, "budget", &r->budget, error, size) &&
                cli_field_bool(request, "check", &f->check, error, size);
    f->check |= defaults->check;
    return good;
}

bool plan_serve(const ts_json *request, ts_json_writer *answer, char *error, size_t size,
                void *context)
{
    const plan_defaults *defaults = context;
    fields f = { 0 };
    plan_case c;
    bool good = read_fields(request, defaults, &f, error, size) &&
                plan_open(defaults->world, &f.request, &c, error, size);
    if (good) {
        char verdict[LAYOUT_ERROR_MAX];
        if (f.check) (void)plan_check(&c, &f.request, verdict, sizeof verdict);
        good = plan_answer(&c, f.check ? verdict : NULL, answer);
        if (!good) (void)snprintf(error, size, "out of memory");
        plan_close(&c);
    }
    free(f.mesh);
    free(f.to_mesh);
    free(f.from);
    free(f.to);
    return good;
}
