/* SPDX-License-Identifier: Apache-2.0 */
/* op_user.c - operators registered at run time: rules by expression and by function, kernels,
 * bodies of operators, gradients, queries, proofs, and what user code can do wrong. */
#include <stdlib.h>

#include "op_family.h"
#include "tessera/op.h"
#include "tessera/op_query.h"

/* ---- y = x sigmoid(beta x), elementwise ------------------------------------------------------ */

typedef struct swish {
    double beta;
} swish;

static ts_status like(const void *attributes, const ts_meta *in, ts_meta *out)
{
    (void)attributes;
    out[0] = in[0];
    return TS_OK;
}

static ts_status swish_kernel(const void *attributes, const ts_array *const *in,
                              ts_array *const *out)
{
    const swish *a = attributes;
    const double *x = in[0]->data;
    double *y = out[0]->data;
    for (int64_t i = 0; i < ts_shape_count(&in[0]->meta.shape); i++)
        y[i] = x[i] / (1 + exp(-a->beta * x[i]));
    return TS_OK;
}

static void swish_grad(const ts_op_io *io)
{
    const swish *a = io->attributes;
    ts_tensor *x = io->input[0], *dy = io->input[1], *s = ts_sigmoid(ts_scale(x, a->beta));
    ts_tensor *slope = ts_scale(ts_mul(ts_mul(x, s), ts_rsub_scalar(s, 1)), a->beta);
    io->output[0] = ts_mul(dy, ts_add(s, slope));
}

static const ts_op_attribute swish_attributes[] = {
    { "beta", TS_ATTRIBUTE_REAL, offsetof(swish, beta), "1.5", NULL },
    { NULL, TS_ATTRIBUTE_INT, 0, NULL, NULL },
};

static const ts_op_desc swish_desc = { .struct_size = sizeof(ts_op_desc),
                                       .name = "test.swish",
                                       .dims = "*->*",
                                       .saves = 1,
                                       .attributes_bytes = sizeof(swish),
                                       .input_count = 1,
                                       .output_count = 1,
                                       .infer = like,
                                       .kernel = swish_kernel,
                                       .grad = swish_grad,
                                       .what = "x sigmoid(beta x)",
                                       .dtypes = 1u << TS_DTYPE_F64,
                                       .attribute = swish_attributes };

static ts_tensor *swish_call(ts_tensor *x, void *context)
{
    ts_rank *me = context;
    return ts_op_apply(ts_op_register(me, &swish_desc), &x, &(swish){ 0.7 });
}

TS_TEST_RANKS(an_operator_of_the_user_takes_any_placement, 1, 2, 3, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    const char *place[] = { "R", "S(0)", "S(1)", "SS(0,2)", "P(sum)", "P(max)" };
    ts_meta meta = { .shape = TS_SHAPE(5, 4), .dtype = TS_DTYPE_F64 };
    for (int p = 0; p < 6; p++) {
        ts_tensor *x = family_input(mesh, 0, &meta, place[p]);
        ts_tensor *full = ts_tensor_full(x);
        ts_tensor *want = ts_mul(full, ts_sigmoid(ts_scale(full, 0.7)));
        ts_tensor *have = swish_call(x, t->me);
        family_same(t, have, want, place[p]);
        if (p < 4 && t->count > 1) family_plan(t, have, place[p], "swish");
        /* Other dtypes are cast around the kernel, which takes f64 alone; strides are no matter. */
        family_same(
            t,
            ts_cast(swish_call(ts_cast(ts_transpose(x, 0, 1), TS_DTYPE_F32), t->me), TS_DTYPE_F64),
            ts_cast(ts_cast(swish_call(ts_transpose(full, 0, 1), t->me), TS_DTYPE_F32),
                    TS_DTYPE_F64),
            "f32, transposed");
    }
}

static ts_status twice_kernel(const void *attributes, const ts_array *const *in,
                              ts_array *const *out)
{
    (void)attributes;
    if (in[0]->meta.dtype != TS_DTYPE_I16 || out[0]->meta.dtype != TS_DTYPE_I16)
        return ts_op_fail(TS_ERR_DTYPE, "twice takes i16");
    for (int64_t i = 0; i < ts_shape_count(&in[0]->meta.shape); i++)
        ((int16_t *)out[0]->data)[i] = (int16_t)(2 * ((const int16_t *)in[0]->data)[i]);
    return TS_OK;
}

TS_TEST_RANKS(its_kernel_sees_dtypes_that_it_takes, 1, 2)
{
    static const ts_op_desc desc = { .struct_size = sizeof(ts_op_desc),
                                     .name = "test.twice",
                                     .dims = "*->*",
                                     .input_count = 1,
                                     .output_count = 1,
                                     .kernel = twice_kernel,
                                     .dtypes = 1u << TS_DTYPE_I16 };
    static const ts_dtype fine[] = { TS_DTYPE_I16, TS_DTYPE_I64, TS_DTYPE_I32, TS_DTYPE_U8 };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    const ts_op *op = ts_op_register(t->me, &desc);
    for (int d = 0; d < 4; d++) {
        ts_tensor *x = ts_arange(mesh, fine[d], TS_SHAPE(5), "S(0)", NULL);
        family_same(t, ts_cast(ts_op_apply(op, &x, NULL), TS_DTYPE_F64),
                    ts_cast(ts_add(x, x), TS_DTYPE_F64), ts_dtype_name(fine[d]));
    }
    ts_tensor *real = ts_full(0.5, mesh, TS_DTYPE_F32, TS_SHAPE(5), "S(0)");
    ts_tensor *pairs = ts_ones(mesh, TS_DTYPE_C64, TS_SHAPE(5), "S(0)");
    FAMILY_REFUSES(t, "input 0 is f32, which no dtype", ts_op_apply(op, &real, NULL));
    FAMILY_REFUSES(t, "input 0 is c64, which no dtype",
                   ts_op_apply(ts_op_register(t->me, &swish_desc), &pairs, &(swish){ 1 }));
}

TS_TEST_RANKS(its_gradient_is_that_of_differences, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    const char *place[] = { "R", "S(0)", "S(1)", "P(sum)" };
    for (int p = 0; p < 4; p++)
        family_gradient(t, mesh, swish_call, t->me, TS_SHAPE(3, 4), place[p], "swish");
}

TS_TEST_RANKS(it_is_known_by_its_name, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    TEST_CHECK(t, !ts_op_registered(t->me, "test.swish") || t->index >= 0);
    const ts_op *op = ts_op_register(t->me, &swish_desc);
    TEST_CHECK(t, op && op == ts_op_register(t->me, &swish_desc));
    TEST_CHECK(t, ts_op_registered(t->me, "test.swish") == op);
    TEST_CHECK(t, ts_op_find(t->me, "test.swish") == op);
    FAMILY_REFUSES(t, "did you mean test.swish", ts_op_find(t->me, "test.swich"));
    FAMILY_REFUSES(t, "no form in place", ts_op_find(t->me, "test.swish_"));
    ts_op_about about = TS_INIT(ts_op_about);
    TEST_OK(t, ts_op_about_of(op, &about));
    TEST_TEXT(t, about.what, "x sigmoid(beta x)");
    TEST_EQ(t, about.has_gradient, 1);
    /* Attributes that are not given are the table's. */
    ts_tensor *x = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(4), "S(0)", NULL);
    family_same(t, ts_op_apply(op, &x, NULL), ts_op_apply(op, &x, &(swish){ 1.5 }), "defaults");
    const ts_attribute beta = ts_attribute_int("beta", 3);
    ts_tensor *by_name = NULL;
    TEST_OK(t, ts_op_call(op, &x, 1, &beta, 1, &by_name));
    family_same(t, by_name, ts_op_apply(op, &x, &(swish){ 3 }), "by name");
    ts_attribute value;
    TEST_OK(t, ts_op_default(op, 0, &value));
    TEST_CHECK(t, value.number.real == 1.5);
    /* Queries find it in the world of their mesh, with its attributes by name. */
    const ts_layout *in = ts_tensor_layout(x);
    ts_op_query_options options = TS_INIT(ts_op_query_options);
    options.op = "test.swish";
    options.attributes = "{\"beta\": 2}";
    options.mesh = mesh;
    options.in = &in;
    options.input_count = 1;
    options.implicit_moves = TS_MOVES_FORBID;
    ts_op_query *query = NULL;
    TEST_OK(t, ts_op_query_create(&options, &query));
    char text[1024] = "", verdict[256] = "";
    (void)ts_op_query_json(query, text, sizeof text);
    TEST_SAYS(t, text, "\"out\": [\"S(0)\"]");
    TEST_OK(t, ts_op_query_run(query, t->me, 0, verdict, sizeof verdict));
    TEST_TEXT(t, verdict, "ok");
    ts_op_query_destroy(query);
}

TS_TEST_RANKS(registration_drops_plans, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_op_cache_stats before = TS_INIT(ts_op_cache_stats), after = TS_INIT(ts_op_cache_stats);
    ts_tensor *x = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(4), "S(0)", NULL);
    TEST_CHECK(t, ts_neg(x) && ts_neg(x));
    double sum = 0; /* nobody registers before all have their plans */
    TEST_OK(t, ts_tensor_item(ts_sum(x, NULL, 0, 0), &sum));
    TEST_OK(t, ts_op_cache_statistics(t->me, &before));
    TEST_CHECK(t, ts_op_register(t->me, &swish_desc) != NULL);
    TEST_CHECK(t, ts_neg(x) != NULL);
    TEST_OK(t, ts_op_cache_statistics(t->me, &after));
    TEST_EQ(t, after.misses, before.misses + 1);
}

/* ---- rules by an index expression and by a function ------------------------------------------ */

/* out[m] = sum over k of a[m, k] b[k]: k is reduced, each operand may be pending. */
static ts_status mv_infer(const void *attributes, const ts_meta *in, ts_meta *out)
{
    (void)attributes;
    if (in[0].shape.ndim != 2 || in[1].shape.ndim != 1)
        return ts_op_fail(TS_ERR_SHAPE, "mv wants a matrix and a vector, not %d and %d dims",
                          in[0].shape.ndim, in[1].shape.ndim);
    out[0].shape = TS_SHAPE(in[0].shape.extent[0]);
    return TS_OK;
}

static ts_status mv_kernel(const void *attributes, const ts_array *const *in, ts_array *const *out)
{
    (void)attributes;
    const double *a = in[0]->data, *b = in[1]->data;
    int64_t rows = in[0]->meta.shape.extent[0], columns = in[0]->meta.shape.extent[1];
    for (int64_t i = 0; i < rows; i++) {
        double sum = 0;
        for (int64_t k = 0; k < columns; k++)
            sum += a[i * columns + k] * b[k];
        ((double *)out[0]->data)[i] = sum;
    }
    return TS_OK;
}

static const ts_op_desc mv_desc = { .struct_size = sizeof(ts_op_desc),
                                    .name = "test.mv",
                                    .dims = "mk,k->m",
                                    .input_count = 2,
                                    .output_count = 1,
                                    .infer = mv_infer,
                                    .kernel = mv_kernel,
                                    .flow = TS_FLOW_LINEAR_EACH,
                                    .dtypes = 1u << TS_DTYPE_F64 };

/* The same said rule by rule. */
static ts_status mv_shard(const void *attributes, const ts_meta *in, int32_t rule,
                          const char **text)
{
    static const char *const rules[] = { "S(0),R->S(0)", "S(1),S(0)->P(sum)", "P(sum),R->P(sum)",
                                         NULL };
    (void)attributes;
    (void)in;
    *text = rules[rule];
    return TS_OK;
}

static int32_t mv_sample(uint64_t *random, int32_t variant, ts_meta *in, void *attributes)
{
    (void)random;
    (void)attributes;
    in[0] = (ts_meta){ .shape = TS_SHAPE(5, 3 + variant), .dtype = TS_DTYPE_F64 };
    in[1] = (ts_meta){ .shape = TS_SHAPE(3 + variant), .dtype = TS_DTYPE_F64 };
    return variant < 2;
}

static const ts_op_desc mv_said = { .struct_size = sizeof(ts_op_desc),
                                    .name = "test.mv_said",
                                    .input_count = 2,
                                    .output_count = 1,
                                    .infer = mv_infer,
                                    .shard = mv_shard,
                                    .kernel = mv_kernel,
                                    .sample = mv_sample };

TS_TEST_RANKS(rules_by_expression_and_by_function, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    const ts_op *op[] = { ts_op_register(t->me, &mv_desc), ts_op_register(t->me, &mv_said) };
    const char *place[][3] = { { "S(0)", "R", "S(0)" },
                               { "S(1)", "S(0)", "P(sum)" },
                               { "P(sum)", "R", "P(sum)" } };
    ts_meta a = { .shape = TS_SHAPE(5, 4), .dtype = TS_DTYPE_F64 };
    ts_meta b = { .shape = TS_SHAPE(4), .dtype = TS_DTYPE_F64 };
    for (int p = 0; p < 3; p++)
        for (int k = 0; k < 2; k++) {
            ts_tensor *in[2] = { family_input(mesh, 0, &a, place[p][0]),
                                 family_input(mesh, 1, &b, place[p][1]) };
            ts_tensor *y = ts_op_apply(op[k], in, NULL);
            if (t->count > 1) family_plan(t, y, place[p][2], "mv");
            family_same(t, y, ts_mv(ts_tensor_full(in[0]), ts_tensor_full(in[1])), "mv");
        }
    ts_tensor *wrong[2] = { family_input(mesh, 0, &b, "R"), family_input(mesh, 1, &b, "R") };
    FAMILY_REFUSES(t, "not 1 and 1 dims", ts_op_apply(op[0], wrong, NULL));
}

/* Sixteen factors in f64, of which all but the first may be absent. */
static ts_status product_kernel(const void *attributes, const ts_array *const *in,
                                ts_array *const *out)
{
    (void)attributes;
    for (int64_t i = 0; i < ts_shape_count(&out[0]->meta.shape); i++) {
        double product = 1;
        for (int k = 0; k < 16; k++)
            if (in[k]) product *= ((const double *)in[k]->data)[i];
        ((double *)out[0]->data)[i] = product;
    }
    return TS_OK;
}

TS_TEST_RANKS(an_expression_of_many_inputs_some_absent, 1, 2, 3)
{
    static const ts_op_desc desc = {
        .struct_size = sizeof(ts_op_desc),
        .name = "test.product",
        .dims = "ab,ab,ab,ab,ab,ab,ab,ab,ab,ab,ab,ab,ab,ab,ab,ab->ab",
        .input_count = 16,
        .input_min = 1,
        .output_count = 1,
        .infer = like,
        .kernel = product_kernel,
        .dtypes = 1u << TS_DTYPE_F64,
    };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    const ts_op *op = ts_op_register(t->me, &desc);
    ts_tensor *x = ts_full(2, mesh, TS_DTYPE_F64, TS_SHAPE(5, 3), "S(0)"), *in[16];
    for (int count = 1; count <= 16; count += 5) {
        for (int i = 0; i < 16; i++)
            in[i] = i < count ? x : NULL;
        ts_tensor *y = ts_op_apply(op, in, NULL);
        if (t->count > 1) family_plan(t, y, "S(0)", "product");
        family_same(t, y, ts_full(1 << count, mesh, TS_DTYPE_F64, TS_SHAPE(5, 3), "R"), "product");
    }
    ts_tensor *row = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(3), "R"), *wrong[16] = { row };
    FAMILY_REFUSES(t, "input 0 has 1 dims, 2 in its index", ts_op_apply(op, wrong, NULL));
}

typedef struct chosen {
    int32_t sign, reserved;
} chosen;

static ts_status chosen_kernel(const void *attributes, const ts_array *const *in,
                               ts_array *const *out)
{
    const double by = ((const chosen *)attributes)->sign ? -1 : 1;
    for (int64_t i = 0; i < ts_shape_count(&in[0]->meta.shape); i++)
        ((double *)out[0]->data)[i] = by * ((const double *)in[0]->data)[i];
    return TS_OK;
}

TS_TEST_RANKS(a_choice_is_one_of_its_table, 1, 2)
{
    static const char *const signs[] = { "plus", "minus", NULL };
    static const ts_op_attribute table[] = { { "sign", TS_ATTRIBUTE_CHOICE, 0, "\"plus\"", signs },
                                             { 0 } };
    static const ts_op_desc desc = { .struct_size = sizeof(ts_op_desc),
                                     .name = "test.chosen",
                                     .dims = "*->*",
                                     .attributes_bytes = sizeof(chosen),
                                     .input_count = 1,
                                     .output_count = 1,
                                     .kernel = chosen_kernel,
                                     .dtypes = 1u << TS_DTYPE_F64,
                                     .attribute = table };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    const ts_op *op = ts_op_register(t->me, &desc);
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(4), "S(0)");
    family_same(t, ts_op_apply(op, &x, &(chosen){ 1, 0 }), ts_neg(x), "minus");
    FAMILY_REFUSES(t, "is choice 2 of 2", ts_op_apply(op, &x, &(chosen){ 2, 0 }));
    FAMILY_REFUSES(t, "is choice -1 of 2", ts_op_apply(op, &x, &(chosen){ -1, 0 }));
}

/* ---- a body of operators that communicates --------------------------------------------------- */

/* Rows minus the mean of all rows: the mean is reduced inside. */
static void center_compose(const ts_op_io *io)
{
    ts_tensor *x = io->input[0];
    ts_tensor *mean = ts_redistribute(ts_mean(x, (int64_t[]){ 0 }, 1, 1), "R");
    io->output[0] = ts_sub(x, mean);
}

static void center_grad(const ts_op_io *io)
{
    ts_tensor *dy = io->input[0];
    io->output[0] = ts_sub(dy, ts_redistribute(ts_mean(dy, (int64_t[]){ 0 }, 1, 1), "R"));
}

static ts_status center_shard(const void *attributes, const ts_meta *in, int32_t rule,
                              const char **text)
{
    (void)attributes;
    (void)in;
    *text = rule == 0 ? "S(0)->S(0)" : NULL;
    return TS_OK;
}

static const ts_op_desc center_desc = { .struct_size = sizeof(ts_op_desc),
                                        .name = "test.center",
                                        .input_count = 1,
                                        .output_count = 1,
                                        .infer = like,
                                        .shard = center_shard,
                                        .compose = center_compose,
                                        .grad = center_grad };

static ts_tensor *center_call(ts_tensor *x, void *context)
{
    return ts_op_apply(ts_op_register(context, &center_desc), &x, NULL);
}

TS_TEST_RANKS(a_body_of_operators_may_communicate, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_meta meta = { .shape = TS_SHAPE(5, 4), .dtype = TS_DTYPE_F64 };
    const char *place[] = { "R", "S(0)", "S(1)", "P(sum)" };
    for (int p = 0; p < 4; p++) {
        ts_tensor *x = family_input(mesh, 0, &meta, place[p]);
        ts_tensor *full = ts_tensor_full(x);
        ts_tensor *want = ts_sub(full, ts_mean(full, (int64_t[]){ 0 }, 1, 1));
        family_same(t, center_call(x, t->me), want, place[p]);
        family_gradient(t, mesh, center_call, t->me, TS_SHAPE(3, 2), place[p], "center");
    }
}

/* y = a b c, of which b and c may be absent. Everything is saved: what is absent keeps its place.
 */
static void triple_compose(const ts_op_io *io)
{
    ts_tensor *y = ts_scale(io->input[0], 1);
    for (int32_t i = 1; i < io->input_count; i++)
        if (io->input[i]) y = ts_mul(y, io->input[i]);
    io->output[0] = io->input_count == 3 ? y : NULL;
}

static void triple_grad(const ts_op_io *io)
{
    ts_tensor *y = io->input[3], *dy = io->input[4];
    if (io->input_count != 5 || io->output_count != 3)
        ts_rank_fail(io->rank, TS_ERR_STATE, "%d inputs, %d outputs", io->input_count,
                     io->output_count);
    for (int32_t i = 0; i < 3; i++)
        if (io->needs >> i & 1) io->output[i] = ts_mul(dy, ts_div(y, io->input[i]));
}

TS_TEST_RANKS(absent_inputs_keep_their_places, 1, 2)
{
    static const ts_op_desc desc = { .struct_size = sizeof(ts_op_desc),
                                     .name = "test.triple",
                                     .dims = "*->*",
                                     .saves = 7 | UINT64_C(1) << 32,
                                     .input_count = 3,
                                     .input_min = 1,
                                     .output_count = 1,
                                     .compose = triple_compose,
                                     .grad = triple_grad };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    const ts_op *op = ts_op_register(t->me, &desc);
    for (int there = 0; there < 4; there++) {
        ts_scope scope = ts_scope_open(t->me, "call");
        TEST_CHECK(t, ts_tape_begin(t->me) != NULL);
        ts_tensor *in[3] = { NULL }, *slope = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(4), "R");
        for (int i = 0; i < 3; i++) {
            if (i > 0 && !(there >> (i - 1) & 1)) continue;
            in[i] = ts_watch(ts_full(2 + i, mesh, TS_DTYPE_F64, TS_SHAPE(4), "S(0)"));
            if (i > 0) slope = ts_scale(slope, 2 + i);
        }
        TEST_OK(t, ts_backward(ts_sum(ts_op_apply(op, in, NULL), NULL, 0, 0), NULL));
        family_same(t, ts_tensor_grad(in[0]), slope, "slope");
        TEST_OK(t, ts_scope_close(scope));
    }
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void dropping_compose(const ts_op_io *io)
{
    io->output[0] = ts_square(io->input[0]);
    ts_tensor_drop(io->output[0]);
}

TS_TEST_RANKS(a_body_that_gives_what_has_ended, 1, 2)
{
    static const ts_op_desc desc = { .struct_size = sizeof(ts_op_desc),
                                     .name = "test.dropping",
                                     .input_count = 1,
                                     .output_count = 1,
                                     .infer = like,
                                     .shard = center_shard,
                                     .compose = dropping_compose };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(5, 4), "S(0)");
    const ts_op *op = ts_op_register(t->me, &desc);
    FAMILY_REFUSES(t, "output 0 of its compose function is a tensor that was dropped",
                   ts_op_apply(op, &x, NULL));
}

static void real_grad(const ts_op_io *io)
{
    io->output[0] = ts_abs(io->input[0]);
}

static void same_compose(const ts_op_io *io)
{
    io->output[0] = ts_clone(io->input[0]);
}

TS_TEST_RANKS(a_gradient_of_another_kind, 1, 2)
{
    static const ts_op_desc desc = { .struct_size = sizeof(ts_op_desc),
                                     .name = "test.real_grad",
                                     .input_count = 1,
                                     .output_count = 1,
                                     .infer = like,
                                     .shard = center_shard,
                                     .compose = same_compose,
                                     .grad = real_grad };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = ts_watch(ts_ones(mesh, TS_DTYPE_C128, TS_SHAPE(5, 4), "S(0)"));
    const ts_op *op = ts_op_register(t->me, &desc);
    ts_tape_begin(t->me);
    ts_tensor *y = ts_op_apply(op, &x, NULL), *seed = ts_clone(y);
    FAMILY_REFUSES(t, "its grad function gave input 0, which is c128, f64",
                   ts_backward_from(&y, &seed, 1, NULL));
}

static ts_status false_shard(const void *attributes, const ts_meta *in, int32_t rule,
                             const char **text)
{
    (void)attributes;
    (void)in;
    *text = rule == 0 ? "P(sum)->P(sum)" : NULL; /* swish is not linear */
    return TS_OK;
}

static ts_status odd_shard(const void *attributes, const ts_meta *in, int32_t rule,
                           const char **text)
{
    (void)attributes;
    (void)in;
    *text = rule == 0 ? "S(7)->S(0)" : NULL;
    return TS_OK;
}

static const ts_op_attribute bad_table[][3] = {
    { { "dims", TS_ATTRIBUTE_DIMS, 0, "[1]", NULL } }, /* 72 bytes in a struct of 8 */
    { { "mode", TS_ATTRIBUTE_CHOICE, 0, "\"a\"", NULL } },
    { { "beta", (ts_attribute_type)77, 0, "1", NULL } },
    { { "beta", TS_ATTRIBUTE_REAL, 0, "1", NULL }, { "beta", TS_ATTRIBUTE_REAL, 0, "2", NULL } },
};

static ts_status grumbling_shard(const void *attributes, const ts_meta *in, int32_t rule,
                                 const char **text)
{
    (void)attributes;
    (void)text;
    return ts_op_fail(TS_ERR_STATE, "no rule %d for %d dims", rule, in[0].shape.ndim);
}

static ts_status grumbling_kernel(const void *attributes, const ts_array *const *in,
                                  ts_array *const *out)
{
    (void)attributes;
    (void)out;
    return ts_op_fail(TS_ERR_STATE, "no kernel for %s", ts_dtype_name((ts_dtype)in[0]->meta.dtype));
}

static int32_t huge_sample(uint64_t *random, int32_t variant, ts_meta *in, void *attributes)
{
    (void)random;
    (void)attributes;
    in[0] = (ts_meta){ .shape = TS_SHAPE(INT64_MAX / 4, 8), .dtype = TS_DTYPE_F64 };
    return variant == 0;
}

static int32_t no_sample(uint64_t *random, int32_t variant, ts_meta *in, void *attributes)
{
    (void)random, (void)variant, (void)in, (void)attributes;
    return 0;
}

static ts_status huge_infer(const void *attributes, const ts_meta *in, ts_meta *out)
{
    (void)attributes;
    (void)in;
    out[0].shape = TS_SHAPE(INT64_MAX / 4, 8);
    return TS_OK;
}

static void refuses(test *t, ts_op_desc *desc, const char *words)
{
    FAMILY_REFUSES(t, words, ts_op_register(t->me, desc));
}

TS_TEST_RANKS(what_is_not_an_operator_is_refused, 1, 3)
{
    enum { COUNT = 24 };
    static ts_op_desc bad[COUNT]; /* by address: one descriptor, one verdict */
    static const char *const words[COUNT] = { "built-in operator",
                                              "1 to 16",
                                              "neither kernel nor",
                                              "do not hold",
                                              "\"S(7)->S(0)\"",
                                              "dims \"ab\"",
                                              "taken by another",
                                              "sample is required",
                                              "dims \"ab,b->a\"",
                                              "dims \"ab->ab,b\"",
                                              "dims \"*oops\"",
                                              "saves 0x4",
                                              "flow 0x80",
                                              "dims_reduce 99",
                                              "takes 72 bytes at offset 0",
                                              "\"mode\" has no choices",
                                              "type 77",
                                              "\"beta\" twice",
                                              "dtypes 0x80000000",
                                              "no rule 0 for",
                                              "no kernel for f64",
                                              "its sample function gave input 0",
                                              "its infer function gave output 0",
                                              "not proved: it has none" };
    static atomic_flag filled = ATOMIC_FLAG_INIT; /* once in each process */
    if (!atomic_flag_test_and_set(&filled)) {
        for (int i = 0; i < COUNT; i++)
            bad[i] = swish_desc;
        bad[0].name = "softmax";
        bad[1].input_count = 17;
        bad[2].kernel = NULL;
        bad[3].shard = false_shard;
        bad[4].shard = odd_shard;
        bad[5].dims = "ab";
        bad[7].dims = NULL;
        bad[7].shard = odd_shard;
        bad[8].dims = "ab,b->a";
        bad[9].dims = "ab->ab,b";
        bad[10].dims = "*oops";
        bad[11].saves = 4;
        bad[12].flow = 128;
        bad[13].dims_reduce = 99;
        for (int i = 14; i < 18; i++)
            bad[i].attribute = bad_table[i - 14];
        bad[18].dtypes = 1u << 31;
        bad[19].shard = grumbling_shard;
        bad[20].kernel = grumbling_kernel;
        bad[21].sample = huge_sample;
        bad[22].infer = huge_infer;
        bad[23].sample = no_sample;
        for (int i = 1; i < COUNT; i++)
            if (i != 6) bad[i].name = "test.bad";
    }
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    double sum = 0; /* every rank sees what the first of its process wrote */
    TEST_OK(t,
            ts_tensor_item(
                ts_sum(ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(t->count), "S(0)"), NULL, 0, 0), &sum));
    TEST_CHECK(t, ts_op_register(t->me, &swish_desc) != NULL);
    for (int i = 0; i < COUNT; i++)
        refuses(t, &bad[i], words[i]);
    FAMILY_REFUSES(t, "a descriptor", ts_op_register(t->me, NULL));
    FAMILY_REFUSES(t, "are required", ts_op_apply(NULL, NULL, NULL));
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(3), "R");
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    TEST_EQ(t, ts_op_apply_all(ts_op_register(t->me, &swish_desc), &x, NULL, NULL), TS_ERR_NULL);
    TEST_EQ(t, ts_scope_close(scope), TS_ERR_NULL);
}

TS_TEST_RANKS(it_belongs_to_its_world, 1)
{
    ts_world *other = NULL;
    ts_world_options options = TS_INIT(ts_world_options);
    options.rank_count = 1;
    TEST_OK(t, ts_world_open(&options, &other));
    ts_world *own = ts_rank_world(t->me);
    ts_rank_detach(t->me);
    ts_rank *there = NULL;
    TEST_OK(t, ts_rank_attach(other, 0, &there));
    const ts_op *op = ts_op_register(there, &swish_desc);
    TEST_CHECK(t, op != NULL);
    ts_rank_detach(there);
    TEST_OK(t, ts_rank_attach(own, 0, &there));
    ts_tensor *x = ts_ones(ts_mesh_self(t->me), TS_DTYPE_F64, TS_SHAPE(3), "R"), *y = NULL;
    FAMILY_REFUSES(t, "registered in another world", ts_op_apply(op, &x, NULL));
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    TEST_EQ(t, ts_op_call(op, &x, 1, NULL, 0, &y), TS_ERR_ARG);
    TEST_EQ(t, ts_scope_close(scope), TS_ERR_ARG);
    ts_world_close(other);
}

/* A kernel that fails on the rank that holds a negative number. */
static ts_status picky_kernel(const void *attributes, const ts_array *const *in,
                              ts_array *const *out)
{
    (void)attributes;
    const double *x = in[0]->data;
    for (int64_t i = 0; i < ts_shape_count(&in[0]->meta.shape); i++) {
        if (x[i] == -77) return ts_op_fail(TS_ERR_ARG, "picky: element %g is bad", x[i]);
        ((double *)out[0]->data)[i] = x[i];
    }
    return TS_OK;
}

static const ts_op_desc picky_desc = { .struct_size = sizeof(ts_op_desc),
                                       .name = "test.picky",
                                       .dims = "*->*",
                                       .input_count = 1,
                                       .output_count = 1,
                                       .infer = like,
                                       .kernel = picky_kernel,
                                       .dtypes = 1u << TS_DTYPE_F64 };

TS_TEST_RANKS(an_error_in_user_code_reaches_all_ranks, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_arange_options range = TS_INIT(ts_arange_options);
    range.start = -77;
    range.step = 10;
    ts_tensor *x = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(6), "S(0)", &range);
    const ts_op *picky = ts_op_register(t->me, &picky_desc);
    /* Who leaves it first may have failed before the others leave: they hear of it here then. */
    (void)ts_group_barrier(ts_group_world(t->me), NULL);
    ts_tensor *y = ts_op_apply(picky, &x, NULL);
    TEST_CHECK(t, !(t->index == 0 && y)); /* rank 0 holds it */
    ts_tensor *sum = ts_redistribute(ts_sum(y, NULL, 0, 0), "R");
    TEST_CHECK(t, ts_tensor_wait(sum) != TS_OK);
    TEST_CHECK(t, ts_rank_status(t->me) != TS_OK);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "picky: element -77 is bad");
    TEST_OK(t, ts_rank_recover(t->me));
    TEST_CHECK(t, ts_tensor_full(x) != NULL);
    TEST_OK(t, ts_rank_status(t->me));
}
