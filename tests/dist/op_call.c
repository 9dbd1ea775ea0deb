/* SPDX-License-Identifier: Apache-2.0 */
/* op_call.c - operators by name (friction 2): every row of the table, its form in place, attributes
 * as values and as JSON, descriptions, and what is refused. */
#include <stdlib.h>

#include "op/core/attribute.h"
#include "op_family.h"
#include "tessera/op.h"

enum { ATTRIBUTES_MAX = 32 };

typedef struct named_call {
    const tsi_op_desc *op;
    ts_meta in[TSI_INPUT_MAX];
    int32_t input_count, said_count;
    ts_tensor *input[TSI_INPUT_MAX];
    _Alignas(16) unsigned char attributes[TSI_ATTRIBUTES_MAX];
    ts_attribute said[ATTRIBUTES_MAX];
} named_call;

static bool sampled(test *t, const tsi_op_desc *op, int32_t variant, named_call *c)
{
    uint64_t random = t->seed + (uint64_t)variant;
    memset(c, 0, sizeof *c);
    c->op = op;
    c->input_count = op->input_max;
    if (!tsi_op_sample(op, &random, variant, c->in, &c->input_count, c->attributes)) return false;
    for (const tsi_attribute *a = op->attribute; a && a->name; a++)
        c->said[c->said_count++] = tsi_attribute_value(a, c->attributes);
    return true;
}

/* Small numbers that are indices too. */
static void make_inputs(ts_mesh *mesh, named_call *c)
{
    for (int32_t i = 0; i < c->input_count; i++) {
        tsi_category kind = tsi_dtype_category((ts_dtype)c->in[i].dtype);
        c->input[i] = NULL;
        if (c->in[i].dtype == TS_DTYPE_NONE) continue;
        c->input[i] = kind == TSI_CATEGORY_INT
                          ? ts_ones(mesh, (ts_dtype)c->in[i].dtype, c->in[i].shape, NULL)
                          : family_input(mesh, i, &c->in[i], NULL);
    }
}

enum way { BY_TABLE, BY_VALUES, BY_JSON };

static ts_status call_by(test *t, ts_mesh *mesh, named_call *c, enum way way, bool in_place,
                         ts_tensor **out)
{
    char name[80];
    ts_status status;
    tsi_op_state *state = tsi_op_state_of(t->me);
    make_inputs(mesh, c);
    state->stream_is_forced = 1;
    state->stream_forced = 7;
    (void)snprintf(name, sizeof name, "%s%s", c->op->name, in_place ? "_" : "");
    const ts_op *op = ts_op_find(t->me, name);
    tsi_text json = { 0 };
    tsi_attributes_json(c->op, c->attributes, &json);
    tsi_op_args args = { c->op, c->input, c->input_count, in_place, c->attributes };
    if (way == BY_TABLE)
        status = tsi_op_run(&args, out);
    else if (way == BY_VALUES)
        status = ts_op_call(op, c->input, c->input_count, c->said, c->said_count, out);
    else
        status = ts_op_call_json(op, c->input, c->input_count, json.data, out);
    tsi_text_release(&json);
    state->stream_is_forced = 0;
    return status;
}

/* The bytes of a tensor's block; the caller frees. */
static unsigned char *bytes_of(ts_tensor *x, size_t *size)
{
    ts_array view = TS_INIT(ts_array);
    *size = 0;
    ts_tensor *dense = ts_clone(x);
    if (!dense || test_view(dense, &view) != TS_OK) return NULL;
    *size = (size_t)ts_shape_count(&view.meta.shape) * ts_dtype_size((ts_dtype)view.meta.dtype);
    unsigned char *out = tsi_alloc(*size + 1);
    if (*size) memcpy(out, view.data, *size);
    return out;
}

static void same_bits(test *t, ts_tensor *have, ts_tensor *want, const char *what)
{
    size_t n = 0, m = 0;
    unsigned char *x = bytes_of(have, &n), *y = bytes_of(want, &m);
    TEST_SAY(t, x && y && n == m && memcmp(x, y, n) == 0, "%s: other bits by name", what);
    tsi_free(x);
    tsi_free(y);
}

/* 1: compared; 0: the sample's numbers do not suit the operator, and all ways said so. */
static int32_t compare_ways(test *t, ts_mesh *mesh, named_call *c, bool in_place)
{
    ts_tensor *out[3][TSI_OUTPUT_MAX] = { { NULL } };
    ts_status status[3];
    char what[128];
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.catches = 1;
    ts_scope outer = ts_scope_open(t->me, "ways");
    for (int way = BY_TABLE; way <= BY_JSON; way++) {
        ts_scope scope = ts_scope_open_with(t->me, &options);
        status[way] = call_by(t, mesh, c, (enum way)way, in_place, out[way]);
        for (int32_t o = 0; status[way] == TS_OK && o < c->op->output_count; o++)
            out[way][o] = ts_scope_pass(scope, out[way][o]);
        (void)ts_scope_close(scope);
    }
    (void)snprintf(what, sizeof what, "%s%s", c->op->name, in_place ? "_" : "");
    TEST_SAY(t, status[BY_TABLE] == status[BY_VALUES] && status[BY_TABLE] == status[BY_JSON],
             "%s: %d, by values %d, by JSON %d: %s", what, (int)status[0], (int)status[1],
             (int)status[2], ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "");
    bool good = status[0] == TS_OK && status[1] == TS_OK && status[2] == TS_OK;
    for (int32_t o = 0; good && o < c->op->output_count; o++) {
        same_bits(t, out[BY_VALUES][o], out[BY_TABLE][o], what);
        same_bits(t, out[BY_JSON][o], out[BY_TABLE][o], what);
    }
    ts_scope_close(outer);
    return good;
}

TS_TEST_RANKS(every_operator_is_called_by_name, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    int32_t done = 0, written = 0, forms = 0;
    named_call *c = tsi_alloc(sizeof *c);
    for (int32_t k = 0; k < TSI_OP_ID_COUNT && ts_rank_status(t->me) == TS_OK; k++) {
        const tsi_op_desc *op = tsi_op_at(k);
        int32_t here = 0, here_in_place = 0;
        TEST_SAY(t, ts_op_name(ts_op_find(t->me, op->name)) == op->name, "%s is lost", op->name);
        for (int32_t variant = 0; variant < 6 && sampled(t, op, variant, c); variant++) {
            here += compare_ways(t, mesh, c, false);
            if (op->flags & TSI_OP_IN_PLACE) here_in_place += compare_ways(t, mesh, c, true);
        }
        done += here > 0;
        written += here_in_place > 0;
        forms += (op->flags & TSI_OP_IN_PLACE) != 0;
    }
    tsi_free(c);
    TEST_SAY(t, done == TSI_OP_ID_COUNT, "%d of %d operators ran", done, TSI_OP_ID_COUNT);
    TEST_SAY(t, written == forms, "%d of %d forms in place ran", written, forms);
}

/* ---- what no function could say -------------------------------------------------------------- */

static ts_tensor *call(test *t, const char *name, ts_tensor *const *in, int32_t count,
                       const ts_attribute *said, int32_t said_count)
{
    ts_tensor *out[TSI_OUTPUT_MAX] = { NULL };
    return ts_op_call(ts_op_find(t->me, name), in, count, said, said_count, out) == TS_OK ? out[0]
                                                                                          : NULL;
}

TS_TEST_RANKS(attributes_without_an_argument_can_be_said, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *a = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(4, 4), "S(0)", NULL);
    ts_tensor *in[] = { a, a, a };
    const ts_attribute scales[] = { ts_attribute_real("alpha", 2), ts_attribute_real("beta", -1) };
    family_same(t, call(t, "addmm", in, 3, scales, 2), ts_sub(ts_scale(ts_matmul(a, a), 2), a),
                "addmm");
    family_same(t, call(t, "argmax", in, 1, NULL, 0),
                ts_full(15, mesh, TS_DTYPE_I64, TS_SHAPE_SCALAR, NULL), "argmax of all");
    const ts_attribute rows[] = { ts_attribute_int("dim", -1), ts_attribute_bool("keepdim", 1) };
    ts_tensor *largest = call(t, "argmax", in, 1, rows, 2);
    TEST_EQ(t, ts_tensor_shape(largest).ndim, 2);
    TEST_EQ(t, ts_tensor_shape(call(t, "max", in, 1, rows, 2)).ndim, 2);
    TEST_EQ(t, ts_tensor_shape(call(t, "min", in, 1, rows, 2)).ndim, 2);
    const ts_attribute back[] = { ts_attribute_int("dim", 0), ts_attribute_bool("reverse", 1) };
    family_same(t, call(t, "cumsum", in, 1, back, 2),
                ts_flip(ts_cumsum(ts_flip(a, (int64_t[]){ 0 }, 1), 0), (int64_t[]){ 0 }, 1),
                "cumsum");
    const ts_attribute bound = ts_attribute_real("posinf", 7);
    ts_tensor *inf = ts_full((double)INFINITY, mesh, TS_DTYPE_F64, TS_SHAPE(3), NULL);
    family_same(t, call(t, "nan_to_num", &inf, 1, &bound, 1),
                ts_full(7, mesh, TS_DTYPE_F64, TS_SHAPE(3), NULL), "nan_to_num");
    /* A form in place writes into its input. */
    ts_tensor *x = ts_clone(a);
    TEST_CHECK(t, call(t, "add_", (ts_tensor *[]){ x, a }, 2, scales, 1) != NULL);
    family_same(t, x, ts_scale(a, 3), "add_");
}

/* What the options of ts_cross_entropy_with say can be said by values and in JSON too. */
TS_TEST_RANKS(weights_and_smoothing_by_name, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    static const char *const place[] = { "R", "S(0)", "S(1)" };
    ts_meta classes = { .shape = TS_SHAPE(4), .dtype = TS_DTYPE_F64 };
    ts_meta logits = { .shape = TS_SHAPE(5, 4), .dtype = TS_DTYPE_F64 };
    ts_tensor *y = ts_remainder_scalar(ts_arange(mesh, TS_DTYPE_I64, TS_SHAPE(5), "S(0)", NULL), 4);
    ts_cross_entropy_options o = TS_CROSS_ENTROPY_OPTIONS_INIT;
    o.label_smoothing = 0.25;
    o.ignore_index = 1;
    o.reduction = TS_LOSS_SUM;
    o.weight = ts_abs(family_input(mesh, 2, &classes, NULL));
    for (int p = 0; p < 3; p++) {
        ts_tensor *x = family_input(mesh, 0, &logits, place[p]), *out[2];
        ts_tensor *in[] = { x, y, o.weight };
        const ts_attribute said[] = { ts_attribute_real("label_smoothing", 0.25),
                                      ts_attribute_int("ignore_index", 1),
                                      ts_attribute_text("reduction", "sum") };
        ts_tensor *want = ts_cross_entropy_with(x, y, &o);
        family_same(t, call(t, "cross_entropy", in, 3, said, 3), want, "by values");
        TEST_OK(t, ts_op_call_json(ts_op_find(t->me, "cross_entropy"), in, 3,
                                   "{\"label_smoothing\": 0.25, \"ignore_index\": 1, "
                                   "\"reduction\": \"sum\"}",
                                   out));
        family_same(t, out[0], want, "by JSON");
        /* The sum of what each label and each class costs. */
        ts_tensor *cost = ts_neg(ts_log_softmax(x, 1)), *is = ts_one_hot(y, 4);
        ts_tensor *counts = ts_cast(ts_ne_scalar(ts_unsqueeze(y, 1), 1), TS_DTYPE_F64);
        ts_tensor *share = ts_add_scalar(ts_scale(ts_cast(is, TS_DTYPE_F64), 0.75), 0.25 / 4);
        ts_tensor *each = ts_mul(ts_mul(cost, ts_mul(share, counts)), o.weight);
        family_same(t, want, ts_sum(each, NULL, 0, 0), "the formula");
    }
}

/* ---- numbers keep their 64 bits (friction 3) ------------------------------------------------- */

static const int64_t odd = (INT64_C(1) << 53) + 1; /* which no double holds */

static ts_tensor *whole(ts_mesh *mesh, int64_t value, const char *place)
{
    return ts_full_number(ts_number_int(value), mesh, TS_DTYPE_I64, TS_SHAPE(6), place);
}

static void is_whole(test *t, const char *name, ts_tensor *y, int64_t want)
{
    ts_number have = { 0 };
    TEST_SAY(t, y != NULL, "%s: no result", name);
    ts_tensor *last = y ? ts_select(ts_reshape(y, TS_SHAPE(-1)), 0, -1) : NULL;
    TEST_OK(t, ts_tensor_number(last, &have));
    TEST_SAY(t, have.kind == TS_NUMBER_INT && have.whole == want, "%s: %lld is not %lld", name,
             (long long)have.whole, (long long)want);
}

TS_TEST_RANKS(whole_numbers_reach_the_kernel, 1, 2, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    const ts_attribute value = ts_attribute_int("value", odd);
    static const struct {
        const char *op;
        int64_t x, want; /* of x and odd */
    } rows[] = {
        { "add_scalar", 2, odd + 2 },
        { "rsub_scalar", 1, odd - 1 },
        { "mul_scalar", 3, 3 * odd },
        { "eq_scalar", odd, 1 },
        { "eq_scalar", odd - 1, 0 },
        { "ne_scalar", odd - 1, 1 },
        { "gt_scalar", odd + 1, 1 },
        { "gt_scalar", odd, 0 },
        { "ge_scalar", odd - 1, 0 },
        { "lt_scalar", odd - 1, 1 },
        { "lt_scalar", odd, 0 },
        { "le_scalar", odd + 1, 0 },
        { "fmod_scalar", odd - 1, odd - 1 },
        { "remainder_scalar", odd + 1, 1 },
        { "add_scalar_", 2, odd + 2 },
    };
    for (int p = 0; p < 2; p++) {
        const char *place = p ? "S(0)" : "R";
        for (size_t k = 0; k < TSI_COUNT_OF(rows); k++) {
            ts_tensor *x = whole(mesh, rows[k].x, place);
            ts_tensor *y = call(t, rows[k].op, &x, 1, &value, 1);
            is_whole(t, rows[k].op, ts_cast(y, TS_DTYPE_I64), rows[k].want);
        }
        ts_tensor *two = whole(mesh, 2, place), *big = whole(mesh, odd + 1, place);
        const ts_attribute alpha = ts_attribute_int("alpha", odd);
        is_whole(t, "add", call(t, "add", (ts_tensor *[]){ two, two }, 2, &alpha, 1), 2 * odd + 2);
        is_whole(t, "sub", call(t, "sub", (ts_tensor *[]){ two, two }, 2, &alpha, 1), 2 - 2 * odd);
        const ts_attribute min = ts_attribute_int("min", odd), max = ts_attribute_int("max", odd);
        is_whole(t, "clamp", call(t, "clamp", &two, 1, &min, 1), odd);
        is_whole(t, "clamp", call(t, "clamp", &big, 1, &max, 1), odd);
        ts_tensor *mask = ts_eq(two, two);
        is_whole(t, "masked_fill",
                 call(t, "masked_fill", (ts_tensor *[]){ two, mask }, 2, &value, 1), odd);
        const ts_attribute pad[] = { ts_attribute_dims("pad", TS_SHAPE(0, 1)), value };
        is_whole(t, "pad", call(t, "pad", &two, 1, pad, 2), odd);
        is_whole(t, "addcmul", call(t, "addcmul", (ts_tensor *[]){ two, two, two }, 3, &value, 1),
                 4 * odd + 2);
        ts_tensor *last = ts_full(5, mesh, TS_DTYPE_I64, TS_SHAPE(1), NULL);
        is_whole(t, "scatter", call(t, "scatter", (ts_tensor *[]){ two, last }, 2, &value, 1), odd);
        const ts_attribute threshold[] = { ts_attribute_int("threshold", odd), value };
        is_whole(t, "threshold", call(t, "threshold", &big, 1, threshold, 2), odd + 1);
        is_whole(t, "threshold", call(t, "threshold", &two, 1, threshold, 2), odd);
    }
}

/* A complex number: values as by tensors, gradients by the conjugate; reals become complex. */
static void same_both(test *t, ts_tensor *have, ts_tensor *want, const char *what)
{
    TEST_EQ(t, (int)ts_tensor_dtype(have), (int)ts_tensor_dtype(want));
    ts_tensor *apart = ts_abs(ts_sub(have, want));
    family_same(t, apart, ts_zeros_like(apart), what);
}

TS_TEST_RANKS(complex_numbers_can_be_said, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(6), "S(0)", NULL);
    ts_number i2 = ts_number_complex(1, 2);
    ts_tensor *c = ts_full_number(i2, mesh, TS_DTYPE_C128, TS_SHAPE_SCALAR, NULL);
    const ts_attribute text = ts_attribute_text("value", "1+2i");
    const ts_attribute value = ts_attribute_number("value", i2);
    for (int both = 0; both < 2; both++) {
        ts_tensor *z = both ? ts_cast(x, TS_DTYPE_C128) : x;
        same_both(t, call(t, "add_scalar", &z, 1, &text, 1), ts_add(z, c), "add");
        same_both(t, call(t, "mul_scalar", &z, 1, &value, 1), ts_mul(z, c), "mul");
        same_both(t, call(t, "div_scalar", &z, 1, &value, 1), ts_div(z, c), "div");
        const ts_attribute weight = ts_attribute_text("weight", "1+2i");
        same_both(t, call(t, "lerp", (ts_tensor *[]){ z, c }, 2, &weight, 1),
                  ts_add(z, ts_mul(c, ts_sub(c, z))), "lerp");
        ts_tape_begin(t->me);
        ts_tensor *leaf = ts_watch(z), *grad[2] = { NULL };
        ts_tensor *by_number = call(t, "mul_scalar", &leaf, 1, &value, 1), *seed = c;
        TEST_OK(t, ts_grad(ts_sum(ts_mul(by_number, seed), NULL, 0, 0), &leaf, 1, &grad[0]));
        ts_tensor *by_tensor = ts_mul(leaf, c);
        TEST_OK(t, ts_grad(ts_sum(ts_mul(by_tensor, seed), NULL, 0, 0), &leaf, 1, &grad[1]));
        same_both(t, grad[0], grad[1], "gradient");
    }
}

/* ---- into memory that is there (friction 5)
 * ----------------------------------------------------*/

static const void *memory_of(test *t, ts_tensor *x)
{
    ts_array view = TS_INIT(ts_array);
    TEST_OK(t, ts_tensor_view(x, &view));
    return view.data;
}

TS_TEST_RANKS(results_are_written_where_they_are_wanted, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_meta meta = { .shape = TS_SHAPE(6, 4), .dtype = TS_DTYPE_F64 };
    static const char *const place[] = { "S(0)", "S(1)", "R" };
    const ts_attribute alpha = ts_attribute_real("alpha", 2);
    for (int p = 0; p < 3; p++) { /* where the result lies, and elsewhere */
        ts_tensor *x = family_input(mesh, 0, &meta, "S(0)");
        ts_tensor *in[] = { x, family_input(mesh, 1, &meta, "S(0)") };
        ts_tensor *into = ts_ones(mesh, TS_DTYPE_F64, meta.shape, place[p]);
        const void *before = memory_of(t, into);
        TEST_OK(t, ts_op_call_into(ts_op_find(t->me, "add"), in, 2, &alpha, 1, &into));
        family_same(t, into, ts_add(x, ts_scale(in[1], 2)), place[p]);
        TEST_CHECK(t, memory_of(t, into) == before);
        /* An input's own memory, a view's, several outputs, an algorithm. */
        TEST_OK(t, ts_op_call_into(ts_op_find(t->me, "mul"), (ts_tensor *[]){ into, into }, 2, NULL,
                                   0, &into));
        ts_tensor *sum = ts_add(x, ts_scale(in[1], 2));
        family_same(t, into, ts_mul(sum, sum), "squares");
        const ts_attribute turn[] = { ts_attribute_int("dim0", 0), ts_attribute_int("dim1", 1) };
        ts_tensor *turned = ts_zeros(mesh, TS_DTYPE_F64, TS_SHAPE(4, 6), place[p]);
        TEST_OK(t, ts_op_call_into(ts_op_find(t->me, "transpose"), &x, 1, turn, 2, &turned));
        family_same(t, turned, ts_transpose(x, 0, 1), "transpose");
        const ts_attribute dim = ts_attribute_int("dim", 0);
        ts_tensor *pair[] = { ts_zeros(mesh, TS_DTYPE_F64, TS_SHAPE(4), NULL),
                              ts_zeros(mesh, TS_DTYPE_I64, TS_SHAPE(4), NULL) };
        TEST_OK(t, ts_op_call_into(ts_op_find(t->me, "max"), &x, 1, &dim, 1, pair));
        family_same(t, pair[0], ts_amax(x, (int64_t[]){ 0 }, 1, 0), "max");
        TEST_OK(t, ts_op_call_into(ts_op_find(t->me, "softmax"), &x, 1, &dim, 1, &into));
        family_same(t, into, ts_softmax(x, 0), "softmax");
    }
}

/* Other views of the memory that is written, by handles of one storage and of two. */
TS_TEST_RANKS(forms_in_place_read_before_they_write, 1, 2)
{
    enum { N = 5 };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_shape shape = TS_SHAPE(N, N);
    ts_tensor *index = ts_arange(mesh, TS_DTYPE_I64, TS_SHAPE(N), NULL,
                                 TS_OPTIONS(ts_arange_options, .start = N - 1, .step = -1));
    for (int k = 0; k < 4; k++) {
        ts_tensor *x = ts_arange(mesh, TS_DTYPE_F64, shape, NULL, NULL), *want = NULL;
        ts_tensor *turned = ts_transpose(x, 0, 1), *whole = ts_clone(x);
        if (k == 0) want = ts_add(whole, ts_transpose(whole, 0, 1));
        if (k == 0) (void)call(t, "add_", (ts_tensor *[]){ x, turned }, 2, NULL, 0);
        if (k == 1) want = ts_mul(whole, whole);
        if (k == 1) (void)call(t, "mul_", (ts_tensor *[]){ x, x }, 2, NULL, 0);
        if (k == 2) want = ts_index_add(whole, 0, index, whole);
        if (k == 2) (void)ts_index_add_(x, 0, index, x);
        ts_tensor *row[] = { ts_narrow(x, 0, (ts_interval){ 1, N }),
                             ts_narrow(x, 0, (ts_interval){ 0, N - 1 }) };
        if (k == 3) {
            want = ts_add(ts_narrow(whole, 0, (ts_interval){ 1, N }),
                          ts_narrow(whole, 0, (ts_interval){ 0, N - 1 }));
            x = call(t, "add_", row, 2, NULL, 0);
        }
        family_same(t, x, want, "in place");
    }
    const ts_attribute turn[] = { ts_attribute_int("dim0", 0), ts_attribute_int("dim1", 1) };
    ts_tensor *square = ts_arange(mesh, TS_DTYPE_F64, shape, NULL, NULL),
              *turned = ts_transpose(ts_clone(square), 0, 1);
    TEST_OK(t, ts_op_call_into(ts_op_find(t->me, "transpose"), &square, 1, turn, 2, &square));
    family_same(t, square, turned, "a transpose into its input");
    double number[N + 1] = { 1, 2, 3, 4, 5, 6 };
    ts_array lies = { .struct_size = sizeof lies, .data = number + 1 };
    lies.meta = (ts_meta){ .shape = TS_SHAPE(N), .dtype = TS_DTYPE_F64 };
    ts_tensor *high = ts_from_memory(t->me, &lies);
    lies.data = number;
    ts_tensor *low = ts_from_memory(t->me, &lies), *in[] = { low, low };
    TEST_OK(t, ts_op_call_into(ts_op_find(t->me, "add"), in, 2, NULL, 0, &high));
    TEST_OK(t, ts_tensor_wait(high));
    TEST_OK(t, ts_rank_sync(t->me));
    if (tsi_rank_device_of(t->me)->device->host_readable) TEST_CHECK(t, number[N] == 10);
}

/* An element that stands for several has no value of its own to be written. */
TS_TEST_RANKS(expanded_views_are_not_written, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(3, 1), "R");
    ts_tensor *wide = ts_expand(x, TS_SHAPE(3, 4)),
              *y = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(3, 4), "R");
    ts_tensor *in[] = { wide, y }, *plain[] = { y, y };
    FAMILY_REFUSES(t, "add_: input 0 is a view in which an element stands for several",
                   call(t, "add_", in, 2, NULL, 0));
    FAMILY_REFUSES(t, "add: output 0 is a view in which",
                   ts_op_call_into(ts_op_find(t->me, "add"), plain, 2, NULL, 0, &wide) == TS_OK);
    family_same(t, x, ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(3, 1), NULL), "unchanged");
}

/* Strides that reach into each other do the same. */
TS_TEST_RANKS(overlapping_strides_are_not_written, 1, 2)
{
    enum { ROWS = 3, COLUMNS = 2 };
    static const struct {
        int64_t stride[2];
        bool taken;
    } row[] = { { { 1, 1 }, false }, { { -1, 1 }, false }, { { 1, 3 }, true }, { { -2, 1 }, true },
                { { 2, 1 }, true },  { { 1, 0 }, false },  { { 2, 2 }, false } };
    if (!tsi_rank_device_of(t->me)->device->host_readable) return;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        double number[16];
        for (int k = 0; k < 16; k++)
            number[k] = k;
        ts_array lies = TS_INIT(ts_array);
        lies.data = number + 6;
        lies.meta = (ts_meta){ .shape = TS_SHAPE(ROWS, COLUMNS), .dtype = TS_DTYPE_F64 };
        memcpy(lies.stride, row[i].stride, sizeof row[i].stride);
        ts_tensor *x = ts_from_memory(t->me, &lies);
        if (row[i].taken)
            TEST_CHECK(t, call(t, "neg_", &x, 1, NULL, 0) != NULL);
        else
            FAMILY_REFUSES(t, "neg_: input 0 is a view in which an element stands for several",
                           call(t, "neg_", &x, 1, NULL, 0));
        TEST_OK(t, ts_rank_sync(t->me));
        TEST_EQ(t, number[6] < 0, row[i].taken);
    }
}

TS_TEST_RANKS(results_that_do_not_fit_are_refused, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(6), "S(0)"), *in[] = { x, x };
    const ts_op *add = ts_op_find(t->me, "add");
    ts_tensor *narrow = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(6), "S(0)");
    ts_tensor *longer = ts_zeros(mesh, TS_DTYPE_F64, TS_SHAPE(7), "S(0)"), *none = NULL;
    FAMILY_REFUSES(t, "does not fit", ts_op_call_into(add, in, 2, NULL, 0, &narrow) == TS_OK);
    FAMILY_REFUSES(t, "does not fit", ts_op_call_into(add, in, 2, NULL, 0, &longer) == TS_OK);
    FAMILY_REFUSES(t, "output 0 of 1 is required",
                   ts_op_call_into(add, in, 2, NULL, 0, &none) == TS_OK);
    FAMILY_REFUSES(t, "are required", ts_op_call_into(add, in, 2, NULL, 0, NULL) == TS_OK);
    FAMILY_REFUSES(t, "has its output already",
                   ts_op_call_into(ts_op_find(t->me, "add_"), in, 2, NULL, 0, &x) == TS_OK);
    /* A gradient passes as through any result; what was saved of the old values is missed. */
    for (int again = 0; again < 2; again++) {
        ts_tape_begin(t->me);
        ts_tensor *leaf = ts_watch(x), *y = ts_zeros(mesh, TS_DTYPE_F64, TS_SHAPE(6), "S(0)");
        ts_tensor *both[] = { leaf, leaf }, *grad = NULL;
        TEST_OK(t, ts_op_call_into(ts_op_find(t->me, "mul"), both, 2, NULL, 0, &y));
        ts_tensor *square = ts_mul(y, y), *root = ts_sum(square, NULL, 0, 0);
        if (again) TEST_OK(t, ts_op_call_into(add, in, 2, NULL, 0, &y));
        if (again) {
            FAMILY_REFUSES(t, "mul", ts_grad(root, &leaf, 1, &grad) == TS_OK);
        } else {
            TEST_OK(t, ts_grad(root, &leaf, 1, &grad));
            family_same(t, grad, ts_full(4, mesh, TS_DTYPE_F64, TS_SHAPE(6), NULL), "4 x^3");
        }
    }
}

/* ---- descriptions ---------------------------------------------------------------------------- */

TS_TEST_RANKS(an_operator_describes_itself, 1)
{
    ts_op_about about = TS_INIT(ts_op_about);
    ts_attribute value;
    const ts_op *op = ts_op_find(NULL, "clamp");
    TEST_OK(t, ts_op_about_of(op, &about));
    TEST_TEXT(t, about.attribute[0].name, "min");
    TEST_EQ(t, (int)about.attribute[0].type, TS_ATTRIBUTE_NUMBER);
    TEST_CHECK(t, about.has_in_place && about.function && !about.function_in_place);
    TEST_TEXT(t, about.function, "ts_clamp");
    TEST_OK(t, ts_op_default(op, 0, &value));
    TEST_EQ(t, value.type, TS_ATTRIBUTE_NONE);
    TEST_OK(t, ts_op_default(ts_op_find(NULL, "add"), 0, &value));
    TEST_CHECK(t, value.type == TS_ATTRIBUTE_NUMBER && value.number.whole == 1);
    FAMILY_REFUSES(t, "no attribute number 9 of 2", ts_op_default(op, 9, &value) == TS_OK);
    TEST_CHECK(t, ts_op_is_in_place(ts_op_find(NULL, "tril_")));
    TEST_CHECK(t,
               ts_op_find(NULL, "scaled_dot_product_attention") == ts_op_find(NULL, "attention"));
}

/* ---- refusals -------------------------------------------------------------------------------- */

static ts_tensor *add_with(test *t, ts_tensor *x, ts_attribute said)
{
    return call(t, "add", (ts_tensor *[]){ x, x }, 2, &said, 1);
}

TS_TEST_RANKS(what_is_wrong_is_a_sentence, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F64, TS_SHAPE(3), NULL), *out[8];
    FAMILY_REFUSES(t, "did you mean softmax", ts_op_find(t->me, "sofmax"));
    FAMILY_REFUSES(t, "no form in place", ts_op_find(t->me, "matmul_"));
    FAMILY_REFUSES(t, "a name is required", ts_op_find(t->me, NULL));
    FAMILY_REFUSES(t, "did you mean \"alpha\"", add_with(t, x, ts_attribute_real("alpa", 1)));
    const ts_attribute slope = ts_attribute_int("negative_slope", (INT64_C(1) << 53) + 1);
    const ts_attribute two = ts_attribute_text("value", "1+2i");
    FAMILY_REFUSES(t, "cannot hold 9007199254740993", call(t, "leaky_relu", &x, 1, &slope, 1));
    FAMILY_REFUSES(t, "is not defined for c128", call(t, "gt_scalar", &x, 1, &two, 1));
    FAMILY_REFUSES(t, "must be a number", add_with(t, x, ts_attribute_text("alpha", "1+2j")));
    FAMILY_REFUSES(t, "must be a number", add_with(t, x, ts_attribute_text("alpha", "2.03.0i")));
    /* Without a rank it is the thread that remembers. */
    TEST_CHECK(t, ts_op_find(NULL, "sofmax") == NULL && ts_rank_status(t->me) == TS_OK);
    TEST_SAYS(t, ts_last_error(), "did you mean softmax");
    ts_tensor *truths = ts_empty(mesh, TS_DTYPE_BOOL, TS_SHAPE(3), "P(avg)");
    if (t->count > 1)
        FAMILY_REFUSES(t, "clone: input 0: plan: a partial of kind avg has no meaning for bool",
                       ts_clone(truths));
    TEST_EQ(t, (int)ts_tensor_dtype(ts_add(ts_eq(x, x), ts_eq(x, x))), TS_DTYPE_BOOL);
    FAMILY_REFUSES(t, "has no name", add_with(t, x, ts_attribute_real(NULL, 1)));
    FAMILY_REFUSES(t, "\"value\" is required", call(t, "add_scalar", &x, 1, NULL, 0));
    FAMILY_REFUSES(t, "takes 2 to 2 inputs", call(t, "add", &x, 1, NULL, 0));
    FAMILY_REFUSES(t, "is built in", ts_op_apply(ts_op_find(t->me, "abs"), &x, NULL));
    FAMILY_REFUSES(t, "are required", ts_op_call(NULL, &x, 1, NULL, 0, out) == TS_OK ? x : NULL);
}
