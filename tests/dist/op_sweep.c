/* SPDX-License-Identifier: Apache-2.0 */
/* op_sweep.c - every operator of the table, every dtype it takes, on drawn placements of every
 * input, against the same call on one rank.
 *
 * Calls are sampled by the operators themselves; their attributes go through JSON and back on the
 * way. Extents are small and odd, so shards are even, uneven and, on eight ranks, empty. Numbers
 * are adversarial (op/ask/numbers.h). What is drawn follows from the seed. */
#include "base/alloc.h"
#include "harness/test.h"
#include "op/ask/numbers.h"
#include "op/ask/query.h"

enum { PATTERNS_TRIED = 2 };

typedef struct sweep {
    test *t;
    ts_mesh *mesh;
    const tsi_op_desc *op;
    ts_meta in[TSI_INPUT_MAX];
    int32_t input_count, reserved;
    _Alignas(16) unsigned char attributes[TSI_ATTRIBUTES_MAX];
    int64_t calls;
} sweep;

/* Pending reductions that have a meaning for the dtype. */
static const char *const *kinds_of(ts_dtype dtype, int64_t *count)
{
    static const char *const reals[] = { "sum", "avg", "min", "max", "prod" };
    static const char *const whole[] = { "sum", "min", "max" };
    static const char *const truths[] = { "and", "or" };
    static const char *const both[] = { "sum", "avg" };
    switch (tsi_dtype_category(dtype)) {
    case TSI_CATEGORY_BOOL:
        *count = 2;
        return truths;
    case TSI_CATEGORY_INT:
        *count = 3;
        return whole;
    case TSI_CATEGORY_REAL:
        *count = 5;
        return reals;
    case TSI_CATEGORY_COMPLEX:
        *count = 2;
        return both;
    }
    *count = 0;
    return reals;
}

/* One kind of pending reduction per tensor: two of them do not mix. */
static void draw_place(sweep *s, const ts_meta *meta, ts_dtype dtype, char *out, size_t size)
{
    int32_t ndim = meta->shape.ndim;
    int64_t kinds = 0;
    const char *const *kind = kinds_of(dtype, &kinds);
    const char *reduce = kind[test_random_below(s->t, kinds)];
    size_t used = 0;
    for (int32_t k = 0; k < ts_mesh_ndim(s->mesh); k++) {
        int64_t pick = test_random_below(s->t, 6), dim = ndim ? test_random_below(s->t, ndim) : 0;
        const char *comma = k ? ", " : "";
        if (pick == 0 || (ndim == 0 && pick < 5))
            used += (size_t)snprintf(out + used, size - used, "%sR", comma);
        else if (pick < 4)
            used += (size_t)snprintf(out + used, size - used, "%sS(%d)", comma, (int)dim);
        else if (pick == 4)
            used += (size_t)snprintf(out + used, size - used, "%sSS(%d,2)", comma, (int)dim);
        else
            used += (size_t)snprintf(out + used, size - used, "%sP(%s)", comma, reduce);
    }
}

static bool is_index(const sweep *s, int32_t input)
{
    tsi_category kind = tsi_dtype_category((ts_dtype)s->in[input].dtype);
    bool numbers = false;
    for (int32_t i = 0; i < s->input_count; i++)
        numbers |= tsi_dtype_category((ts_dtype)s->in[i].dtype) >= TSI_CATEGORY_REAL;
    return numbers && kind <= TSI_CATEGORY_INT;
}

/* One call on drawn placements; false: the operator does not take the dtype. */
static bool try_call(sweep *s, ts_dtype dtype, const char *attributes)
{
    const ts_layout *in[TSI_INPUT_MAX] = { NULL };
    uint8_t real[TSI_INPUT_MAX]; /* what the call will hold: indices and masks have their own */
    tsi_op_input_dtypes(s->op, s->input_count, dtype, real);
    char what[512] = "", verdict[512] = "ok";
    size_t used = (size_t)snprintf(what, sizeof what, "%s %s %s", s->op->name, attributes,
                                   ts_dtype_name(dtype));
    for (int32_t i = 0; i < s->input_count; i++) {
        char place[128] = "R";
        if (s->in[i].dtype == TS_DTYPE_NONE) continue;
        if (is_index(s, i) && test_random_below(s->t, 2) && s->in[i].shape.ndim > 0)
            snprintf(place, sizeof place, "S(0)%s", ts_mesh_ndim(s->mesh) > 1 ? ", R" : "");
        else if (is_index(s, i))
            snprintf(place, sizeof place, "R%s", ts_mesh_ndim(s->mesh) > 1 ? ", R" : "");
        else
            draw_place(s, &s->in[i], (ts_dtype)real[i], place, sizeof place);
        in[i] = tsi_tensor_layout_of(s->mesh, place, s->in[i].shape);
        if (used < 400) used += (size_t)snprintf(what + used, sizeof what - used, " (%s)", place);
    }
    ts_op_query_options options = TS_INIT(ts_op_query_options);
    options.op = s->op->name;
    options.attributes = attributes;
    options.mesh = s->mesh;
    options.in = in;
    options.input_count = s->input_count;
    options.dtype = (int32_t)dtype;
    ts_op_query *query = NULL;
    ts_scope_options catching = TS_INIT(ts_scope_options);
    catching.catches = 1;
    ts_scope scope = ts_scope_open_with(s->t->me, &catching);
    ts_status status = ts_op_query_create(&options, &query);
    const ts_error *error = ts_rank_error(s->t->me);
    bool refused = status != TS_OK;
    bool by_dtype = refused && error && error->status == TS_ERR_DTYPE;
    TEST_SAY(s->t, !refused || by_dtype, "%s: refused: %s", what, error ? error->text : "");
    (void)ts_scope_close(scope);
    for (int32_t p = 0; p < PATTERNS_TRIED && query; p++) {
        int32_t pattern = (int32_t)test_random_below(s->t, TSI_PATTERNS);
        status = ts_op_query_run(query, s->t->me, pattern, verdict, sizeof verdict);
        bool good = strcmp(verdict, "ok") == 0 || strncmp(verdict, "not run", 7) == 0;
        TEST_SAY(s->t, status == TS_OK && good, "%s: %s", what,
                 status == TS_OK ? verdict : ts_rank_error(s->t->me)->text);
        s->calls++;
    }
    ts_op_query_destroy(query);
    for (int32_t i = 0; i < s->input_count; i++)
        ts_layout_release(in[i]);
    return !by_dtype;
}

static void sweep_dtypes(sweep *s, int32_t rounds)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F64, TS_DTYPE_F32,  TS_DTYPE_BF16,
                                       TS_DTYPE_I64, TS_DTYPE_BOOL, TS_DTYPE_C64 };
    tsi_text json = { 0 };
    tsi_attributes_json(s->op, s->attributes, &json);
    for (size_t d = 0; d < TSI_COUNT_OF(dtypes); d++)
        for (int32_t r = 0; r < rounds && ts_rank_status(s->t->me) == TS_OK; r++)
            if (!try_call(s, dtypes[d], json.data)) break;
    tsi_text_release(&json);
}

static void sweep_table(test *t, const char *axes, int32_t variants, int32_t rounds)
{
    sweep s = { .t = t, .mesh = ts_mesh_create(t->me, axes) };
    for (int32_t k = 0; k < TSI_OP_ID_COUNT && ts_rank_status(t->me) == TS_OK; k++) {
        s.op = tsi_op_at(k);
        for (int32_t variant = 0; variant < variants; variant++) {
            uint64_t random = t->seed + (uint64_t)variant;
            memset(s.attributes, 0, sizeof s.attributes);
            memset(s.in, 0, sizeof s.in);
            s.input_count = s.op->input_max;
            if (!tsi_op_sample(s.op, &random, variant, s.in, &s.input_count, s.attributes)) break;
            sweep_dtypes(&s, rounds);
        }
    }
    TEST_SAY(t, s.calls > 500, "only %lld calls were made", (long long)s.calls);
    ts_mesh_release(s.mesh);
}

TS_TEST_RANKS(every_operator_on_a_line, 2, 3)
{
    sweep_table(t, "x=*", 4, 2);
}

TS_TEST_RANKS(every_operator_on_a_square, 4)
{
    sweep_table(t, "x=2, y=2", 3, 2);
}

TS_TEST_RANKS(every_operator_on_eight_ranks, 8)
{
    sweep_table(t, "x=*", 2, 1);
}
