/* SPDX-License-Identifier: Apache-2.0 */
/* op_case.c - from a request to a query, its answer and its check. */
#include <stdlib.h>
#include <string.h>

#include "op.h"

enum { PATTERNS = 6 };

void op_request_release(op_request *r)
{
    for (int32_t i = 0; i < OP_INPUTS_MAX; i++)
        free(r->placements[i]);
    *r = (op_request){ 0 };
}

static bool read_names(const op_request *r, ts_op_query_options *o, char *error, size_t size)
{
    o->dtype = r->dtype != NULL ? (int32_t)ts_dtype_parse(r->dtype) : TS_DTYPE_F32;
    if (o->dtype == TS_DTYPE_NONE) {
        (void)snprintf(error, size, "dtype: there is no \"%s\"", r->dtype);
        return false;
    }
    o->implicit_moves = TS_MOVES_ALLOW;
    if (r->policy == NULL || strcmp(r->policy, "allow") == 0) return true;
    o->implicit_moves = TS_MOVES_FORBID;
    if (strcmp(r->policy, "forbid") == 0) return true;
    o->implicit_moves = TS_MOVES_WARN;
    if (strcmp(r->policy, "warn") == 0) return true;
    (void)snprintf(error, size, "policy: expected allow, warn or forbid, found \"%s\"", r->policy);
    return false;
}

static bool make(ts_world *world, const op_request *r, op_case *c, char *error, size_t size)
{
    ts_op_query_options o = { .struct_size = sizeof o,
                              .op = r->op,
                              .attributes = r->attributes,
                              .in = c->in,
                              .input_count = r->input_count };
    if (!read_names(r, &o, error, size)) return false;
    c->mesh = layout_mesh(world, r->mesh, error, size);
    if (c->mesh == NULL) return false;
    o.mesh = c->mesh;
    for (int32_t i = 0; i < r->input_count; i++) {
        char what[32];
        (void)snprintf(what, sizeof what, "input %d", i);
        if (r->absent[i]) continue;
        c->in[i] = layout_make(c->mesh, r->placements[i], r->shape[i], what, error, size);
        if (c->in[i] == NULL) return false;
    }
    if (ts_op_query_create(&o, &c->query) == TS_OK) return true;
    (void)snprintf(error, size, "%s", ts_last_error());
    return false;
}

bool op_open(ts_world *world, const op_request *r, op_case *c, char *error, size_t size)
{
    *c = (op_case){ .input_count = r->input_count };
    if (make(world, r, c, error, size)) return true;
    op_close(c);
    return false;
}

void op_close(op_case *c)
{
    ts_op_query_destroy(c->query);
    for (int32_t i = 0; i < c->input_count; i++)
        ts_layout_release(c->in[i]);
    ts_mesh_release(c->mesh);
    *c = (op_case){ 0 };
}

/* ---- answers --------------------------------------------------------------------------------- */
bool op_answer(const op_case *c, const char *check, ts_json_writer *json)
{
    size_t length = ts_op_query_json(c->query, NULL, 0);
    char *text = malloc(length + 1);
    if (text == NULL || length < 2) {
        free(text);
        return false;
    }
    (void)ts_op_query_json(c->query, text, length + 1);
    ts_json_put_open(json, '{');
    ts_json_put_raw(json, text + 1, length - 2); /* its members, without the brackets */
    if (check != NULL) ts_json_put_member_text(json, "check", check);
    ts_json_put_close(json, '}');
    free(text);
    return true;
}

/* ---- the check ------------------------------------------------------------------------------- */
typedef struct check {
    const op_case *self;
    char (*verdict)[LAYOUT_ERROR_MAX]; /* of every rank */
} check;

static ts_status work(ts_rank *me, void *arg)
{
    check *c = arg;
    char *mine = c->verdict[ts_rank_index(me)];
    ts_status status = TS_OK;
    (void)snprintf(mine, LAYOUT_ERROR_MAX, "ok");
    for (int32_t p = 0; p < PATTERNS && status == TS_OK; p++) {
        char one[LAYOUT_ERROR_MAX];
        status = ts_op_query_run(c->self->query, me, p, one, sizeof one);
        if (status == TS_OK && strcmp(mine, "ok") == 0) memcpy(mine, one, sizeof one);
    }
    return status;
}

/* Elements of all inputs and outputs; -1: more than are checked. */
static int64_t elements_of(const op_case *self)
{
    int64_t total = 0;
    for (int32_t i = 0; i < self->input_count + OP_OUTPUTS_MAX; i++) {
        const ts_layout *layout = i < self->input_count
                                      ? self->in[i]
                                      : ts_op_query_out(self->query, i - self->input_count);
        if (layout == NULL) continue;
        ts_shape shape = ts_layout_shape(layout);
        int64_t count = ts_shape_count(&shape);
        if (count < 0 || count > OP_CHECK_ELEMENTS_MAX) return -1;
        total += count;
    }
    return total;
}

bool op_check(const op_case *self, char *verdict, size_t size)
{
    int64_t ranks = ts_mesh_rank_end(self->mesh), elements = elements_of(self);
    if (ranks > OP_CHECK_RANKS_MAX) {
        (void)snprintf(verdict, size, "not run: at most %d ranks are started", OP_CHECK_RANKS_MAX);
        return false;
    }
    if (elements < 0 || elements > OP_CHECK_ELEMENTS_MAX / ranks) { /* each makes the call alone */
        (void)snprintf(verdict, size, "not run: at most %d elements of all ranks are made",
                       OP_CHECK_ELEMENTS_MAX);
        return false;
    }
    char error[LAYOUT_ERROR_MAX] = "";
    check c = { self, calloc((size_t)ranks, sizeof *c.verdict) };
    ts_world_options options = { .struct_size = sizeof options,
                                 .engine = "threads",
                                 .rank_count = ranks };
    if (c.verdict == NULL) {
        (void)snprintf(verdict, size, "not run: out of memory");
        return false;
    }
    (void)snprintf(verdict, size, "ok");
    if (ts_launch_with(&options, work, &c, error, sizeof error) != TS_OK)
        (void)snprintf(verdict, size, "the run failed: %s", error);
    for (int64_t i = 0; i < ranks && strcmp(verdict, "ok") == 0; i++)
        (void)snprintf(verdict, size, "%s", c.verdict[i]);
    free(c.verdict);
    return strcmp(verdict, "ok") == 0;
}

/* ---- batches --------------------------------------------------------------------------------- */
static bool read_inputs(const ts_json *request, op_request *r, char *error, size_t size)
{
    const ts_json *shapes = NULL, *in = NULL;
    if (!cli_field_kind(request, "shapes", TS_JSON_LIST, &shapes, error, size) ||
        !cli_field_kind(request, "in", TS_JSON_LIST, &in, error, size))
        return false;
    int64_t count = ts_json_count(shapes);
    if (shapes == NULL || in == NULL || ts_json_count(in) != count || count > OP_INPUTS_MAX) {
        (void)snprintf(error, size,
                       "\"shapes\" and \"in\" must be lists with one item for each input");
        return false;
    }
    for (r->input_count = 0; r->input_count < (int32_t)count; r->input_count++) {
        int32_t i = r->input_count;
        const ts_json *shape = ts_json_item(shapes, i);
        r->absent[i] = ts_json_kind_of(shape) == TS_JSON_NULL;
        if (r->absent[i]) continue;
        if (!layout_field_shape(shape, "shapes", &r->shape[i], error, size)) return false;
        r->placements[i] = layout_field_placements(ts_json_item(in, i), "in", NULL, error, size);
        if (r->placements[i] == NULL) return false;
    }
    return true;
}

static bool read_request(const ts_json *request, const op_defaults *d, op_request *r, char *error,
                         size_t size)
{
    if (!cli_field_text(request, "op", &r->op, error, size) ||
        !cli_field_text(request, "dtype", &r->dtype, error, size) ||
        !cli_field_text(request, "policy", &r->policy, error, size) ||
        !cli_field_bool(request, "check", &r->check, error, size))
        return false;
    r->check |= d->check;
    if (r->op == NULL) {
        (void)snprintf(error, size, "\"op\" is missing: the name of an operator");
        return false;
    }
    return read_inputs(request, r, error, size);
}

static bool serve(const ts_json *request, op_request *r, const op_defaults *d,
                  ts_json_writer *answer, char *error, size_t size)
{
    op_case c;
    if (!read_request(request, d, r, error, size) || !op_open(d->world, r, &c, error, size))
        return false;
    char verdict[LAYOUT_ERROR_MAX];
    if (r->check) (void)op_check(&c, verdict, sizeof verdict);
    bool good = op_answer(&c, r->check ? verdict : NULL, answer);
    if (!good) (void)snprintf(error, size, "out of memory");
    op_close(&c);
    return good;
}

bool op_serve(const ts_json *request, ts_json_writer *answer, char *error, size_t size,
              void *context)
{
    const op_defaults *defaults = context;
    op_request r = { .dtype = defaults->dtype, .policy = defaults->policy };
    ts_json_writer attributes = { 0 };
    const ts_json *attrs = NULL;
    bool good = cli_field_kind(request, "attrs", TS_JSON_OBJECT, &attrs, error, size);
    if (attrs != NULL) ts_json_put_value(&attributes, attrs);
    char *mesh =
        good ? layout_field_mesh(ts_json_member(request, "mesh"), "mesh", error, size) : NULL;
    r.mesh = mesh;
    r.attributes = attributes.data;
    good = mesh != NULL && !attributes.failed && serve(request, &r, defaults, answer, error, size);
    op_request_release(&r);
    ts_json_writer_release(&attributes);
    free(mesh);
    return good;
}
