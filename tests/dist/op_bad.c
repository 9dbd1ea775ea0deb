/* SPDX-License-Identifier: Apache-2.0 */
/* op_bad.c - calls that must be refused, for every operator of the table, and calls drawn at
 * random.
 *
 * A refusal is a sentence that begins with the operator's name and names the values, the same on
 * all ranks, before anything is communicated; the outputs are NULL and the rank goes on after a
 * catching scope. Random argument lists (shapes, dtypes, attributes, counts, absent inputs) end in
 * a result or in a refusal, never in a crash: run it with sanitizers. */
#include <stdlib.h>

#include "op_family.h"
#include "tessera/op.h"

typedef struct bad_call {
    const tsi_op_desc *op;
    ts_meta in[TSI_INPUT_MAX];
    int32_t input_count, reserved;
    _Alignas(16) unsigned char attributes[1024];
} bad_call;

static bool sampled(test *t, const tsi_op_desc *op, int32_t variant, bad_call *c)
{
    uint64_t random = t->seed + (uint64_t)variant;
    memset(c, 0, sizeof *c);
    c->op = op;
    c->input_count = op->input_max;
    return tsi_op_sample(op, &random, variant, c->in, &c->input_count, c->attributes);
}

static ts_tensor *tensor_of(ts_mesh *mesh, const ts_meta *meta)
{
    if (meta->dtype == TS_DTYPE_NONE) return NULL;
    return ts_ones(mesh, (ts_dtype)meta->dtype, meta->shape, NULL);
}

/* Runs the call where errors are caught. The error's text, or "" if there was none. */
static ts_status run_caught(test *t, bad_call *c, ts_tensor *const *in, char *text, size_t size)
{
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.catches = 1;
    ts_scope scope = ts_scope_open_with(t->me, &options);
    ts_tensor *out[TSI_OUTPUT_MAX] = { NULL };
    tsi_op_args args = { c->op, in, c->input_count, 0, c->attributes };
    ts_status status = tsi_op_run(&args, out);
    ts_status later = tsi_rank_device_sync(t->me); /* what a kernel finds that runs behind us */
    const ts_error *error = ts_rank_error(t->me);
    snprintf(text, size, "%s", (status != TS_OK || later != TS_OK) && error ? error->text : "");
    for (int32_t o = 0; status != TS_OK && o < c->op->output_count; o++)
        TEST_SAY(t, out[o] == NULL, "%s: a refused call has an output", c->op->name);
    (void)ts_scope_close(scope);
    return status != TS_OK ? status : later;
}

/* Sentences begin with the operator's name, and are no codes. */
static void check_sentence(test *t, const bad_call *c, const char *text, const char *what)
{
    size_t length = strlen(c->op->name);
    bool named = strncmp(text, c->op->name, length) == 0 && text[length] == ':';
    TEST_SAY(t, named && strlen(text) > length + 8, "%s, %s: \"%s\" is no sentence of its own",
             c->op->name, what, text);
}

static bool has_number(const char *text)
{
    return strpbrk(text, "0123456789") != NULL;
}

/* ---- one thing wrong at a time --------------------------------------------------------------- */

static void set_dim(bad_call *c, const tsi_attribute *a, int64_t value)
{
    void *at = c->attributes + a->offset;
    if (a->type == TS_ATTRIBUTE_INT) *(int64_t *)at = value;
    tsi_dims *dims = at;
    if (a->type == TS_ATTRIBUTE_DIMS && dims->count < 1) dims->count = 1;
    if (a->type == TS_ATTRIBUTE_DIMS) dims->value[0] = value;
}

static void dims_out_of_range(test *t, ts_mesh *mesh, bad_call *c)
{
    for (const tsi_attribute *a = c->op->attribute; a && a->name; a++) {
        if (strncmp(a->name, "dim", 3) != 0) continue;
        bad_call bad = *c;
        ts_tensor *in[TSI_INPUT_MAX] = { NULL };
        char text[512];
        set_dim(&bad, a, 77);
        for (int32_t i = 0; i < c->input_count; i++)
            in[i] = tensor_of(mesh, &c->in[i]);
        ts_status status = run_caught(t, &bad, in, text, sizeof text);
        TEST_SAY(t, status != TS_OK && (strstr(text, "77") || strstr(text, "1 dims")),
                 "%s: %s 77: %d, \"%s\"", c->op->name, a->name, (int)status, text);
        check_sentence(t, c, text, a->name);
    }
}

static void meshes_that_differ(test *t, ts_mesh *mesh, ts_mesh *other, bad_call *c)
{
    char text[512];
    ts_tensor *in[TSI_INPUT_MAX] = { NULL };
    int32_t last = c->input_count - 1;
    if (c->input_count < 2 || c->in[last].dtype == TS_DTYPE_NONE) return;
    for (int32_t i = 0; i < c->input_count; i++)
        in[i] = tensor_of(i == last ? other : mesh, &c->in[i]);
    if (ts_shape_count(&c->in[last].shape) == 1 || ts_shape_count(&c->in[0].shape) == 1) return;
    ts_status status = run_caught(t, c, in, text, sizeof text);
    TEST_SAY(t, status == TS_ERR_MESH && strstr(text, "ts_redistribute_to"), "%s: two meshes: %s",
             c->op->name, text);
}

static void counts_that_differ(test *t, ts_mesh *mesh, bad_call *c)
{
    bad_call bad = *c;
    ts_tensor *in[TSI_INPUT_MAX + 1] = { NULL };
    char text[512];
    for (int32_t i = 0; i < c->input_count; i++)
        in[i] = tensor_of(mesh, &c->in[i]);
    bad.input_count = c->op->input_min - 1;
    if (bad.input_count > 0) {
        TEST_CHECK(t, run_caught(t, &bad, in, text, sizeof text) == TS_ERR_ARG);
        check_sentence(t, c, text, "too few inputs");
    }
    bad.input_count = c->input_count;
    in[0] = NULL;
    TEST_SAY(t, run_caught(t, &bad, in, text, sizeof text) == TS_ERR_NULL, "%s: NULL: %s",
             c->op->name, text);
}

/* Every dtype of every input: a result, or a refusal. */
static void dtypes_that_differ(test *t, ts_mesh *mesh, bad_call *c)
{
    for (int32_t i = 0; i < c->input_count && i < 4; i++)
        for (int32_t dtype = 1; dtype < TS_DTYPE_COUNT; dtype++) {
            bad_call bad = *c;
            ts_tensor *in[TSI_INPUT_MAX] = { NULL };
            char text[512];
            if (bad.in[i].dtype == TS_DTYPE_NONE) continue;
            ts_scope scope = ts_scope_open(t->me, "dtype");
            bad.in[i].dtype = dtype;
            for (int32_t k = 0; k < c->input_count; k++)
                in[k] = tensor_of(mesh, &bad.in[k]);
            if (run_caught(t, &bad, in, text, sizeof text) != TS_OK)
                check_sentence(t, c, text, ts_dtype_name((ts_dtype)dtype));
            ts_scope_close(scope);
        }
}

/* One extent of one input is another: a result, or a refusal. */
static void shapes_that_differ(test *t, ts_mesh *mesh, bad_call *c)
{
    for (int32_t i = 0; i < c->input_count && i < 4; i++)
        for (int32_t d = -1; d < c->in[i].shape.ndim; d++) {
            bad_call bad = *c;
            ts_tensor *in[TSI_INPUT_MAX] = { NULL };
            char text[512];
            ts_scope scope = ts_scope_open(t->me, "shape");
            if (d >= 0)
                bad.in[i].shape.extent[d] += 2;
            else if (bad.in[i].shape.ndim < TS_NDIM_MAX)
                bad.in[i].shape.extent[bad.in[i].shape.ndim++] = 3;
            for (int32_t k = 0; k < c->input_count; k++)
                in[k] = tensor_of(mesh, &bad.in[k]);
            if (run_caught(t, &bad, in, text, sizeof text) != TS_OK) {
                check_sentence(t, c, text, "another shape");
                TEST_SAY(t, has_number(text + strlen(c->op->name)), "%s: no values in \"%s\"",
                         c->op->name, text);
            }
            ts_scope_close(scope);
        }
}

TS_TEST_RANKS(one_thing_wrong_in_every_operator, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*"), *other = ts_mesh_create(t->me, "y=1, z=*");
    for (int32_t k = 0; k < TSI_OP_ID_COUNT; k++)
        for (int32_t variant = 0; variant < 2; variant++) {
            bad_call c;
            if (!sampled(t, tsi_op_at(k), variant, &c)) break;
            ts_scope scope = ts_scope_open(t->me, c.op->name);
            dims_out_of_range(t, mesh, &c);
            if (t->count > 1) meshes_that_differ(t, mesh, other, &c);
            counts_that_differ(t, mesh, &c);
            dtypes_that_differ(t, mesh, &c);
            shapes_that_differ(t, mesh, &c);
            ts_scope_close(scope);
            TEST_OK(t, ts_rank_status(t->me));
        }
}

/* ---- what is missing ------------------------------------------------------------------------- */

TS_TEST_RANKS(missing_arguments_are_refused, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(4, 6), "S(0)"), *none[] = { x, NULL };
    ts_index_options where = TS_INIT(ts_index_options);
    where.index = &none[1];
    where.count = 1;
    FAMILY_REFUSES(t, "cat: input 1 is NULL", ts_cat(none, 2, 0));
    FAMILY_REFUSES(t, "cat: ", ts_cat(NULL, 2, 0));
    FAMILY_REFUSES(t, "stack: input 1 is NULL", ts_stack(none, 2, 0));
    FAMILY_REFUSES(t, "masked_select: input 1 is NULL", ts_masked_select(x, NULL));
    FAMILY_REFUSES(t, "index_get: input 1 is NULL", ts_index(x, &where));
    FAMILY_REFUSES(t, "index_put: input 1 is NULL", ts_index_put(x, NULL, &where));
    FAMILY_REFUSES(t, "scatter: input 1 is NULL", ts_scatter(x, 0, NULL, x));
    FAMILY_REFUSES(t, "repeat: ", ts_repeat(x, NULL, 2));
    FAMILY_REFUSES(t, "repeat: input 0 is NULL", ts_repeat(NULL, (int64_t[]){ 1 }, 1));
    FAMILY_REFUSES(t, "permute: ", ts_permute(x, NULL, 2));
    FAMILY_REFUSES(t, "roll: ", ts_roll(x, NULL, (int64_t[]){ 0 }, 1));
    FAMILY_REFUSES(t, "reshape: ", ts_reshape(x, (ts_shape){ .ndim = 100 }));
    FAMILY_REFUSES(t, "expand: ", ts_expand(x, (ts_shape){ .ndim = -3 }));
    FAMILY_REFUSES(t, "unflatten: ", ts_unflatten(x, 0, (ts_shape){ .ndim = 9 }));
    FAMILY_REFUSES(t, "matmul: input 1 is NULL", ts_matmul(x, NULL));
    FAMILY_REFUSES(t, "linear: input 1 is NULL", ts_linear(x, NULL, NULL));
    FAMILY_REFUSES(t, "embedding: input 0 is NULL", ts_embedding(NULL, x));
    FAMILY_REFUSES(t, "where: input 0 is NULL", ts_where(NULL, x, x));
    FAMILY_REFUSES(t, "is NULL", ts_one_hot(NULL, 3));
    FAMILY_REFUSES(t, "is NULL", ts_index_fill(x, 0, NULL, 1.0));
    TEST_OK(t, ts_rank_status(t->me));
}

/* An absent input and a variable without a value both have no layout: the plan of one call must not
 * serve the other, whichever was made first. */
TS_TEST_RANKS(an_empty_variable_is_no_absent_input, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(4, 6), "S(0)");
    ts_tensor *weight = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(3, 6), "R"),
              *bias = ts_variable(t->me);
    for (int i = 0; i < 3; i++) {
        FAMILY_REFUSES(t, "linear: input 2 is a variable without a value",
                       ts_linear(x, weight, bias));
        TEST_CHECK(t, ts_linear(x, weight, NULL) != NULL);
    }
    TEST_OK(t, ts_tensor_write(bias, ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(3), "R")));
    double with = 0, without = 0;
    TEST_OK(t, ts_tensor_item(ts_sum(ts_linear(x, weight, bias), NULL, 0, 0), &with));
    TEST_OK(t, ts_tensor_item(ts_sum(ts_linear(x, weight, NULL), NULL, 0, 0), &without));
    TEST_EQ(t, (int64_t)with, 4 * 3 * 7);
    TEST_EQ(t, (int64_t)without, 4 * 3 * 6);
    ts_tensor_release(bias);
}

/* ---- numbers in the data --------------------------------------------------------------------- */

typedef ts_tensor *(*indexing_fn)(ts_tensor *x, ts_tensor *index);
static ts_tensor *by_select(ts_tensor *x, ts_tensor *index)
{
    return ts_index_select(x, 0, index);
}
static ts_tensor *by_gather(ts_tensor *x, ts_tensor *index)
{
    return ts_gather(x, 0, ts_expand(ts_unsqueeze(index, 1), TS_SHAPE(4, 5)));
}
static ts_tensor *by_labels(ts_tensor *x, ts_tensor *index)
{
    return ts_cross_entropy(
        ts_slice(x, 0, TS_OPTIONS(ts_slice_options, .end = 4, .end_is_given = 1)), index);
}

/* The last index is bad; the rank that holds it tells the others. */
TS_TEST_RANKS(an_index_out_of_range_reaches_all_ranks, 1, 2, 4)
{
    static const struct {
        const char *name, *words;
        indexing_fn fn;
    } row[] = {
        { "embedding", "index 9 is out of range for 6", ts_embedding },
        { "index_select", "index 9 is out of range for extent 6", by_select },
        { "gather", "index 9 is out of range for extent 6", by_gather },
        { "take", "index 9", NULL },
        { "cross_entropy", "label 9 is out of range for 5 classes", by_labels },
    };
    static const char *const place[] = { "R", "S(0)" };
    bool behind = !tsi_rank_device_of(t->me)->device->host_readable;
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    /* All have it by now; who leaves first may fail before the others leave. */
    (void)ts_group_barrier(ts_group_world(t->me), NULL);
    ts_arange_options range = TS_INIT(ts_arange_options);
    range.step = 3; /* 0 3 6 9: for 6 rows the last two, for 5 classes too */
    for (size_t r = 0; r < TSI_COUNT_OF(row); r++) {
        if (!row[r].fn) continue;
        for (int p = 0; p < 4; p++) {
            ts_tensor *x = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(6, 5), place[p % 2]);
            range.start = 0;
            ts_tensor *index = ts_arange(mesh, TS_DTYPE_I64, TS_SHAPE(4), place[p / 2], &range);
            index = ts_where(ts_eq(index, ts_full(6, mesh, TS_DTYPE_I64, TS_SHAPE_SCALAR, NULL)),
                             ts_ones_like(index), index); /* 0 3 1 9 */
            ts_tensor *y = row[r].fn(x, index);
            ts_tensor *sum = ts_redistribute(ts_sum(y, NULL, 0, 0), "R");
            (void)ts_tensor_wait(sum);
            /* Queues go on: there the others hear of it when they next meet the rank. */
            if (behind) (void)ts_group_barrier(ts_group_world(t->me), NULL);
            TEST_SAY(t, ts_rank_status(t->me) != TS_OK, "%s on %s, %s: accepted", row[r].name,
                     place[p % 2], place[p / 2]);
            if (ts_rank_error(t->me)) TEST_SAYS(t, ts_rank_error(t->me)->text, row[r].words);
            TEST_OK(t, ts_rank_recover(t->me));
        }
    }
}

/* ---- anything at all ------------------------------------------------------------------------- */

static int64_t any_number(test *t)
{
    static const int64_t odd[] = { 0,  1,  2,   3,         -1,        -2,      5,
                                   -9, 17, 100, INT64_MAX, INT64_MIN, 1 << 30, -(1 << 30) };
    return odd[test_random_below(t, (int64_t)TSI_COUNT_OF(odd))];
}

static void any_text(test *t, char *out)
{
    static const char letters[] = "abij.,->- AZ";
    int64_t length = test_random_below(t, 20);
    memset(out, 0, TSI_ATTRIBUTE_TEXT);
    for (int64_t i = 0; i < length; i++)
        out[i] = letters[test_random_below(t, (int64_t)sizeof letters - 1)];
}

static void any_attribute(test *t, bad_call *c, const tsi_attribute *a)
{
    static const double odd[] = { 0,          1, -1, 0.5, 1e300, -1e300, 1e-300, (double)INFINITY,
                                  (double)NAN };
    void *at = c->attributes + a->offset;
    tsi_dims dims = { .count = (int32_t)test_random_below(t, 5) - 1 };
    int32_t choices = 0;
    switch (a->type) {
    case TS_ATTRIBUTE_INT:
        *(int64_t *)at = any_number(t);
        return;
    case TS_ATTRIBUTE_REAL:
        *(double *)at = odd[test_random_below(t, (int64_t)TSI_COUNT_OF(odd))];
        return;
    case TS_ATTRIBUTE_NUMBER:
        *(ts_number *)at = tsi_number_real(odd[test_random_below(t, (int64_t)TSI_COUNT_OF(odd))]);
        return;
    case TS_ATTRIBUTE_BOOL:
        *(int32_t *)at = (int32_t)test_random_below(t, 2);
        return;
    case TS_ATTRIBUTE_DIMS:
        for (int32_t i = 0; i < dims.count; i++)
            dims.value[i] = any_number(t);
        *(tsi_dims *)at = dims;
        return;
    case TS_ATTRIBUTE_DTYPE:
        *(int32_t *)at = (int32_t)test_random_below(t, TS_DTYPE_COUNT);
        return;
    case TS_ATTRIBUTE_CHOICE:
        while (a->choices[choices])
            choices++;
        *(int32_t *)at = (int32_t)test_random_below(t, choices);
        return;
    case TS_ATTRIBUTE_TEXT:
        any_text(t, at);
        return;
    case TS_ATTRIBUTE_NONE:
        return;
    }
}

static void any_input(test *t, bad_call *c, int32_t i)
{
    ts_meta *meta = &c->in[i];
    int64_t what = test_random_below(t, 6);
    if (what == 0) meta->dtype = 1 + (int32_t)test_random_below(t, TS_DTYPE_COUNT - 1);
    if (what == 1) meta->shape.ndim = (int32_t)test_random_below(t, TS_NDIM_MAX + 1);
    if (what == 2 && meta->shape.ndim)
        meta->shape.extent[test_random_below(t, meta->shape.ndim)] = test_random_below(t, 7);
    if (what == 3 && i >= c->op->input_min) meta->dtype = TS_DTYPE_NONE;
    for (int32_t d = 0; d < meta->shape.ndim; d++)
        if (meta->shape.extent[d] < 0 || meta->shape.extent[d] > 7) meta->shape.extent[d] = 2;
}

/* Makes some of the call anything. */
static void disturb(test *t, bad_call *c)
{
    for (const tsi_attribute *a = c->op->attribute; a && a->name; a++)
        if (test_random_below(t, 3) == 0) any_attribute(t, c, a);
    for (int32_t i = 0; i < c->input_count; i++)
        if (test_random_below(t, 2) == 0) any_input(t, c, i);
    if (test_random_below(t, 8) == 0) c->input_count = (int32_t)test_random_below(t, 6);
}

/* Indices and all else are drawn; a result of more than this is planned, not run. */
enum { ELEMENTS_MAX = 1 << 16 };

static bool is_small(test *t, bad_call *c, ts_tensor *const *in)
{
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.catches = 1;
    ts_scope scope = ts_scope_open_with(t->me, &options);
    tsi_op_args args = { c->op, in, c->input_count, 0, c->attributes };
    tsi_op_plan *plan = c->input_count > 0 ? tsi_op_plan_make(t->me, &args) : NULL;
    bool small = plan != NULL;
    for (int32_t o = 0; plan && o < plan->output_count; o++) {
        int64_t count = ts_shape_count(&plan->out_meta[o].shape);
        small &= count >= 0 && count <= ELEMENTS_MAX;
    }
    tsi_op_plan_destroy(plan);
    (void)ts_scope_close(scope);
    return small;
}

TS_TEST_RANKS(any_argument_list, 1)
{
    ts_mesh *mesh = ts_mesh_self(t->me);
    const char *rounds = getenv("TESSERA_FUZZ_ROUNDS");
    int64_t results = 0, refusals = 0;
    for (int64_t r = 0; r < (rounds ? atoll(rounds) : 20); r++)
        for (int32_t k = 0; k < TSI_OP_ID_COUNT; k++) {
            bad_call c;
            if (!sampled(t, tsi_op_at(k), (int32_t)(r % 3), &c) && !sampled(t, tsi_op_at(k), 0, &c))
                continue;
            ts_scope scope = ts_scope_open(t->me, c.op->name);
            disturb(t, &c);
            ts_tensor *in[TSI_INPUT_MAX] = { NULL };
            char text[512];
            for (int32_t i = 0; i < c.input_count; i++)
                in[i] = tensor_of(mesh, &c.in[i]);
            bool small = is_small(t, &c, in);
            ts_status status = small ? run_caught(t, &c, in, text, sizeof text) : TS_ERR_ARG;
            results += status == TS_OK;
            refusals += status != TS_OK;
            ts_scope_close(scope);
            TEST_OK(t, ts_rank_status(t->me));
        }
    TEST_SAY(t, results > 100 && refusals > 100, "%lld results, %lld refusals", (long long)results,
             (long long)refusals);
}
