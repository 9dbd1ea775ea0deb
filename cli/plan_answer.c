/* SPDX-License-Identifier: Apache-2.0 */
/* plan_answer.c - what `tessera plan` says to a machine: the library's own JSON of a plan, and the
 * verdict of the check. */
#include <stdlib.h>
#include <string.h>

#include "plan.h"

bool plan_answer(const plan_case *c, const char *check, cli_json *json)
{
    size_t length = ts_plan_json(c->plan, NULL, 0);
    char *text = malloc(length + 1);
    if (text == NULL || length < 2) {
        free(text);
        return false;
    }
    (void)ts_plan_json(c->plan, text, length + 1);
    cli_json_open(json, '{');
    cli_json_raw(json, text + 1, length - 2); /* its members, without the brackets */
    if (check != NULL) cli_json_member_text(json, "check", check);
    cli_json_close(json, '}');
    free(text);
    return true;
}

/* ---- batches --------------------------------------------------------------------------------- */
#if TS_HAVE_JANSSON
#include <jansson.h>

typedef struct fields { /* of one request; texts are owned */
    char *mesh, *to_mesh, *from, *to;
    plan_request request;
    bool check;
} fields;

/* A text or nothing; false: it is something else. */
static bool optional_text(const void *request, const char *key, const char **out, char *error,
                          size_t size)
{
    const json_t *value = json_object_get(request, key);
    if (value == NULL || json_is_null(value)) return true;
    *out = json_string_value(value);
    if (*out != NULL) return true;
    (void)snprintf(error, size, "\"%s\" must be a text", key);
    return false;
}

static bool optional_budget(const void *request, int64_t *out, char *error, size_t size)
{
    const json_t *value = json_object_get(request, "budget");
    if (value == NULL || json_is_null(value)) return true;
    if (json_is_integer(value) && json_integer_value(value) >= 0) {
        *out = json_integer_value(value);
        return true;
    }
    (void)snprintf(error, size, "\"budget\" must be a number of bytes of at least 0");
    return false;
}

static bool read_fields(const void *request, const plan_defaults *defaults, fields *f, char *error,
                        size_t size)
{
    plan_request *r = &f->request;
    *r = (plan_request){ .planner = defaults->planner, .topology = defaults->topology };
    f->check = defaults->check || json_is_true(json_object_get(request, "check"));
    f->mesh = layout_field_mesh(request, "mesh", error, size);
    if (f->mesh == NULL) return false;
    const json_t *to_mesh = json_object_get(request, "dst_mesh");
    if (to_mesh != NULL && !json_is_null(to_mesh)) {
        f->to_mesh = layout_field_mesh(request, "dst_mesh", error, size);
        if (f->to_mesh == NULL) return false;
    }
    if (!layout_field_shape(request, "tensor", &r->shape, error, size)) return false;
    f->from = layout_field_placements(request, "src", "src_order", error, size);
    if (f->from == NULL) return false;
    f->to = layout_field_placements(request, "dst", "dst_order", error, size);
    if (f->to == NULL) return false;
    r->mesh = f->mesh;
    r->to_mesh = f->to_mesh;
    r->from = f->from;
    r->to = f->to;
    return optional_text(request, "dtype", &r->dtype, error, size) &&
           optional_text(request, "planner", &r->planner, error, size) &&
           optional_text(request, "topology", &r->topology, error, size) &&
           optional_budget(request, &r->budget, error, size);
}

bool plan_serve(const void *request, cli_json *answer, char *error, size_t size, void *context)
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

#else

bool plan_serve(const void *request, cli_json *answer, char *error, size_t size, void *context)
{
    (void)request;
    (void)answer;
    (void)context;
    (void)snprintf(error, size, "this build has no jansson");
    return false;
}

#endif
