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
#include "op/ask/sample.h"

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

static ts_scope open_catching(test *t)
{
    ts_scope_options catching = TS_INIT(ts_scope_options);
    catching.catches = 1;
    return ts_scope_open_with(t->me, &catching);
}

/* A layout of the input; what does not go together is refused on the way. */
static const ts_layout *draw_layout(random_call *c, int32_t input, ts_dtype dtype)
{
    ts_scope scope = open_catching(c->t);
    const ts_layout *layout =
        tsi_sample_layout(&c->t->random, c->mesh->desc, &c->in[input].shape, dtype);
    (void)ts_scope_close(scope);
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
        tsi_sample_extents(&t->random, c.in, c.input_count);
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
    TEST_SAY(t, c.made * 4 > calls, "only %lld of %lld calls were made, %lld refused",
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
