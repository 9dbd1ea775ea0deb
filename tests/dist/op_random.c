/* SPDX-License-Identifier: Apache-2.0 */
/* op_random.c - random calls of every operator against the same call on one rank: extents of 0 and
 * 1 among others, every dtype, inputs that lie differently, by every kind of placement, on meshes
 * of one to three axes.
 *
 * A call is sampled by its operator; then equal extents are replaced alike, so that what belongs
 * together still fits. What is refused on a mesh must be refused on one rank too. Everything
 * follows from the seed; a failure prints the call as `tessera op` takes it. TEST_CALLS is the
 * number of calls on each mesh; many of them need --timeout. */
#include <stdlib.h>

#include "base/alloc.h"
#include "base/text.h"
#include "harness/test.h"
#include "op/ask/numbers.h"
#include "op/ask/query.h"

enum { CALLS = 3000 };

typedef struct random_call {
    test *t;
    ts_mesh *mesh;
    const tsi_op_desc *op;
    bool in_place;
    ts_dtype dtype;
    int32_t input_count, reserved;
    ts_meta in[TSI_INPUT_MAX];
    const ts_layout *layout[TSI_INPUT_MAX], *whole[TSI_INPUT_MAX];
    _Alignas(16) unsigned char attributes[TSI_ATTRIBUTES_MAX];
    tsi_text json, what;
    int64_t made, refused;
} random_call;

static int64_t below(random_call *c, int64_t bound)
{
    return test_random_below(c->t, bound);
}

/* ---- the call -------------------------------------------------------------------------------- */

static bool draw_sample(random_call *c)
{
    c->op = tsi_op_at((int32_t)below(c, TSI_OP_ID_COUNT));
    for (int32_t variant = (int32_t)below(c, 6); variant >= 0; variant = variant ? 0 : -1) {
        uint64_t random = test_random(c->t);
        memset(c->attributes, 0, sizeof c->attributes);
        memset(c->in, 0, sizeof c->in);
        c->input_count = c->op->input_max;
        if (tsi_op_sample(c->op, &random, variant, c->in, &c->input_count, c->attributes))
            return true;
    }
    return false;
}

/* Every extent `from` of the call becomes `to`. */
static void replace_extent(random_call *c, int64_t from, int64_t to)
{
    for (int32_t i = 0; i < c->input_count; i++)
        for (int32_t d = 0; d < c->in[i].shape.ndim; d++)
            if (c->in[i].shape.extent[d] == from) c->in[i].shape.extent[d] = to;
}

static void draw_extents(random_call *c)
{
    static const int64_t small[] = { 0, 1, 1, 1, 2, 7 };
    for (int64_t changes = below(c, 4); changes > 0; changes--) {
        const ts_shape *shape = &c->in[below(c, c->input_count)].shape;
        if (shape->ndim == 0) continue;
        int64_t from = shape->extent[below(c, shape->ndim)];
        replace_extent(c, from, small[below(c, TSI_COUNT_OF(small))]);
    }
}

static ts_scope open_catching(test *t)
{
    ts_scope_options catching = TS_INIT(ts_scope_options);
    catching.catches = 1;
    return ts_scope_open_with(t->me, &catching);
}

/* ---- placements ------------------------------------------------------------------------------ */

/* NULL: terms have no meaning (indices). */
static const char *draw_reduce(random_call *c, ts_dtype dtype)
{
    if (dtype == TS_DTYPE_NONE) return NULL;
    static const char *const reals[] = { "sum", "avg", "min", "max", "prod" };
    static const char *const whole[] = { "sum", "avg", "min", "max", "prod", "and", "or" };
    static const char *const truths[] = { "and", "or" };
    switch (tsi_dtype_category(dtype)) {
    case TSI_CATEGORY_BOOL:
        return truths[below(c, 2)];
    case TSI_CATEGORY_INT:
        return whole[below(c, 7)];
    case TSI_CATEGORY_REAL:
        return reals[below(c, 5)];
    case TSI_CATEGORY_COMPLEX:
        return reals[below(c, 2)];
    }
    return NULL;
}

/* Ragged sizes that add up to the extent, some of them 0. */
static void add_ragged(random_call *c, int32_t axis, int32_t dim, int64_t extent, tsi_text *text)
{
    int64_t left = extent, parts = c->mesh->desc->size[axis];
    tsi_text_printf(text, "RS(%d:", (int)dim);
    for (int64_t p = 0; p < parts; p++) {
        int64_t size = p + 1 == parts ? left : below(c, left + 1);
        tsi_text_printf(text, "%s%lld", p ? "," : "", (long long)size);
        left -= size;
    }
    tsi_text_add(text, ")");
}

static void add_cut(random_call *c, const ts_shape *shape, int32_t axis, tsi_text *text)
{
    int32_t dim = (int32_t)below(c, shape->ndim);
    int64_t pick = below(c, 8);
    if (pick == 7 && c->mesh->desc->size[axis] < 16)
        add_ragged(c, axis, dim, shape->extent[dim], text);
    else if (pick == 6 && dim + 1 < shape->ndim)
        tsi_text_printf(text, "S(%d-%d)", (int)dim, (int)dim + 1);
    else if (pick == 5)
        tsi_text_printf(text, "HT(%d)", (int)dim);
    else if (pick == 4)
        tsi_text_printf(text, "SS(%d,%d)", (int)dim, below(c, 2) ? 2 : 5);
    else
        tsi_text_printf(text, "S(%d)", (int)dim);
}

/* A layout of the input; one whose cuts do not go together is drawn again. */
static const ts_layout *draw_layout(random_call *c, int32_t input, ts_dtype dtype)
{
    const ts_layout *layout = NULL;
    const ts_shape *shape = &c->in[input].shape;
    while (!layout) {
        const char *reduce = draw_reduce(c, dtype);
        tsi_text text = { 0 };
        for (int32_t k = 0; k < c->mesh->desc->ndim; k++) {
            int64_t pick = below(c, 5);
            if (k > 0) tsi_text_add(&text, ", ");
            if (pick == 0 && reduce)
                tsi_text_printf(&text, "P(%s)", reduce);
            else if (pick <= 1 || shape->ndim == 0)
                tsi_text_add(&text, "R");
            else
                add_cut(c, shape, k, &text);
        }
        ts_scope scope = open_catching(c->t);
        layout = tsi_tensor_layout_of(c->mesh, text.data, *shape);
        (void)ts_scope_close(scope);
        tsi_text_release(&text);
    }
    return layout;
}

static void draw_layouts(random_call *c)
{
    uint8_t dtype[TSI_INPUT_MAX]; /* indices and masks have their own */
    char mesh[64];
    uint64_t is_index = tsi_op_input_dtypes(c->op, c->input_count, c->dtype, dtype);
    ts_mesh_text(c->mesh, mesh, sizeof mesh);
    tsi_text_printf(&c->what, "op %s%s --mesh \"%s\" --dtype %s --attr '%s'", c->op->name,
                    c->in_place ? "_" : "", mesh, ts_dtype_name(c->dtype), c->json.data);
    for (int32_t i = 0; i < c->input_count; i++) {
        c->layout[i] = c->whole[i] = NULL;
        if (c->in[i].dtype == TS_DTYPE_NONE) continue;
        bool simple = is_index >> (i & 63) & 1; /* terms of an index are no indices */
        c->layout[i] = draw_layout(c, i, simple ? TS_DTYPE_NONE : (ts_dtype)dtype[i]);
        c->whole[i] = tsi_tensor_layout_of(c->mesh, NULL, c->in[i].shape);
        tsi_text_printf(&c->what, " --in \"%s\"", c->layout[i]->text);
    }
}

/* ---- making it ------------------------------------------------------------------------------- */

/* NULL: refused; *status says why. */
static ts_op_query *ask(random_call *c, const ts_layout *const *in, ts_status *status)
{
    char name[64];
    snprintf(name, sizeof name, "%s%s", c->op->name, c->in_place ? "_" : "");
    ts_op_query_options options = TS_INIT(ts_op_query_options);
    options.op = name;
    options.attributes = c->json.data;
    options.mesh = c->mesh;
    options.in = in;
    options.input_count = c->input_count;
    options.dtype = (int32_t)c->dtype;
    ts_op_query *query = NULL;
    ts_scope scope = open_catching(c->t);
    *status = ts_op_query_create(&options, &query);
    if (*status != TS_OK) *status = ts_rank_status(c->t->me);
    (void)ts_scope_close(scope);
    return query;
}

static void check_refusal(random_call *c, ts_status status)
{
    ts_status alone = TS_OK;
    ts_op_query *query = ask(c, c->whole, &alone);
    bool moves = c->in_place && status == TS_ERR_POLICY; /* the target would have to move */
    TEST_SAY(c->t, !query || moves, "%s: refused (%s), but not for replicas", c->what.data,
             ts_status_name(status));
    TEST_SAY(c->t, status != TS_ERR_INTERNAL && status != TS_ERR_MEMORY, "%s: %s", c->what.data,
             ts_status_name(status));
    ts_op_query_destroy(query);
    c->refused++;
}

static void make_call(random_call *c)
{
    char verdict[512] = "";
    ts_status status = TS_OK;
    ts_op_query *query = ask(c, c->layout, &status);
    if (!query) {
        check_refusal(c, status);
        return;
    }
    status =
        ts_op_query_run(query, c->t->me, (int32_t)below(c, TSI_PATTERNS), verdict, sizeof verdict);
    bool good = strcmp(verdict, "ok") == 0 || strncmp(verdict, "not run", 7) == 0;
    TEST_SAY(c->t, status == TS_OK && good, "%s: %s", c->what.data,
             status == TS_OK ? verdict : ts_rank_error(c->t->me)->text);
    ts_op_query_destroy(query);
    c->made++;
}

/* What happens on a mesh that nobody has is told, or refused, without overflow. */
static void plan_call(random_call *c)
{
    ts_status status = TS_OK;
    ts_op_query *query = ask(c, c->layout, &status);
    c->made += query != NULL;
    c->refused += query == NULL;
    TEST_SAY(c->t, query || (status != TS_ERR_INTERNAL && status != TS_ERR_MEMORY), "%s: %s",
             c->what.data, ts_status_name(status));
    ts_op_query_summary summary = TS_INIT(ts_op_query_summary);
    if (query) ts_op_query_summarise(query, &summary);
    TEST_SAY(c->t, summary.bytes_received >= 0 && summary.cost_us >= 0, "%s: %lld bytes, %g us",
             c->what.data, (long long)summary.bytes_received, summary.cost_us);
    ts_op_query_destroy(query);
}

/* Calls on the mesh, which is released, made by `make`. */
static void random_calls(test *t, ts_mesh *mesh, void (*make)(random_call *c))
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F64,  TS_DTYPE_F64, TS_DTYPE_F32, TS_DTYPE_BF16,
                                       TS_DTYPE_I64,  TS_DTYPE_I32, TS_DTYPE_I8,  TS_DTYPE_U8,
                                       TS_DTYPE_BOOL, TS_DTYPE_C128 };
    const char *wanted = getenv("TEST_CALLS");
    int64_t calls = wanted ? atoll(wanted) : CALLS;
    random_call c = { .t = t, .mesh = mesh };
    for (int64_t n = 0; n < calls && ts_rank_status(t->me) == TS_OK; n++) {
        if (!draw_sample(&c)) continue;
        c.dtype = dtypes[below(&c, TSI_COUNT_OF(dtypes))];
        c.in_place = c.op->flags & TSI_OP_IN_PLACE && below(&c, 4) == 0;
        draw_extents(&c);
        tsi_attributes_json(c.op, c.attributes, &c.json);
        draw_layouts(&c);
        make(&c);
        tsi_text_release(&c.json);
        tsi_text_release(&c.what);
        for (int32_t i = 0; i < c.input_count; i++) {
            ts_layout_release(c.layout[i]);
            ts_layout_release(c.whole[i]);
        }
    }
    TEST_SAY(t, c.made * 3 > calls, "only %lld of %lld calls were made, %lld refused",
             (long long)c.made, (long long)calls, (long long)c.refused);
    ts_mesh_release(c.mesh);
}

TS_TEST_RANKS(random_calls_on_a_line, 2, 3)
{
    random_calls(t, ts_mesh_create(t->me, "x=*"), make_call);
}

TS_TEST_RANKS(random_calls_on_two_axes, 6)
{
    random_calls(t, ts_mesh_create(t->me, "3, 2"), make_call);
}

TS_TEST_RANKS(random_calls_on_three_axes, 8)
{
    random_calls(t, ts_mesh_create(t->me, "2, 2, 2"), make_call);
}

/* repair 26 */
TS_TEST_RANKS(random_calls_on_a_billion_squared, 1)
{
    ts_mesh *mesh = ts_mesh_describe(ts_rank_world(t->me), "1000000000, 1000000000");
    random_calls(t, mesh, plan_call);
}
