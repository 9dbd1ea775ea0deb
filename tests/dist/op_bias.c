/* SPDX-License-Identifier: Apache-2.0 */
/* op_bias.c - attention with a bias or mask that is a tensor: what masks as values give, gradients
 * of the bias by central differences, and the same on any cut. */
#include <math.h>

#include "base/compiler.h"
#include "harness/test.h"
#include "mask/mask.h"
#include "tessera/tessera.h"

enum { B = 2, H = 4, G = 2, T = 5, S = 7, D = 3, E = 2 };

static ts_status number_at(const int64_t *global, void *element, void *context)
{
    uint64_t h = *(const uint64_t *)context;
    for (int i = 0; i < 4; i++)
        h = (h ^ (uint64_t)global[i]) * 0x9E3779B97F4A7C15u + 0x1234567u;
    *(double *)element = (double)(h >> 40) / 8388608.0 - 1.0;
    return TS_OK;
}

static ts_tensor *numbers(ts_mesh *mesh, const char *place, ts_shape shape, uint64_t seed)
{
    ts_meta meta = { .shape = shape, .dtype = TS_DTYPE_F64 };
    return ts_from_function(number_at, &seed, ts_sharding_get(mesh, place), meta);
}

static ts_status alibi_at(const int64_t *global, void *element, void *context)
{
    (void)context;
    *(double *)element = (double)(global[3] - global[2] - (S - T)) * tsi_mask_slope(global[1], H);
    return TS_OK;
}

/* The first row sees nothing; others what is before them, in steps of two. */
static ts_status seen_at(const int64_t *global, void *element, void *context)
{
    (void)context;
    *(unsigned char *)element = global[2] > 0 && (global[3] + global[2]) % 2 == 0;
    return TS_OK;
}

typedef struct inputs {
    ts_tensor *q, *k, *v, *d;
} inputs;

static inputs inputs_on(ts_mesh *mesh, const char *place)
{
    return (inputs){ numbers(mesh, place, TS_SHAPE(B, H, T, D), 1),
                     numbers(mesh, place, TS_SHAPE(B, G, S, D), 2),
                     numbers(mesh, place, TS_SHAPE(B, G, S, E), 3),
                     numbers(mesh, place, TS_SHAPE(B, H, T, E), 4) };
}

static double apart(ts_tensor *a, ts_tensor *b)
{
    double value = NAN;
    ts_tensor *d =
        ts_sub(ts_clamp(ts_tensor_full(a), -1e6, 1e6), ts_clamp(ts_tensor_full(b), -1e6, 1e6));
    ts_tensor_item(ts_amax(ts_abs(d), NULL, 0, 0), &value);
    return value;
}

/* Results and gradients of q, k, v and (if there is one) the bias. */
static void run(test *t, const inputs *x, const ts_attention_options *options, ts_tensor *out[6])
{
    ts_tape_begin(t->me);
    bool real = options->bias && ts_tensor_dtype(options->bias) != TS_DTYPE_BOOL;
    ts_attention_options watched = *options;
    ts_tensor *in[4] = { ts_watch(x->q), ts_watch(x->k), ts_watch(x->v), options->bias };
    if (real) watched.bias = in[3] = ts_watch(options->bias);
    ts_status status = ts_attention_lse(in[0], in[1], in[2], &watched, out);
    TEST_OK(t, status);
    ts_tensor *root = ts_sum(ts_mul(out[0], x->d), NULL, 0, 0);
    TEST_OK(t, ts_grad(root, in, real ? 4 : 3, out + 2));
}

static void compare(test *t, ts_tensor **have, ts_tensor **want, int count, const char *what)
{
    for (int i = 0; i < count && ts_rank_status(t->me) == TS_OK; i++) {
        double off = apart(have[i], want[i]);
        TEST_SAY(t, off < 1e-12, "%s, result %d: off by %g", what, i, off);
    }
    TEST_OK(t, ts_rank_status(t->me));
}

/* Bias and dense mask against the same said by a mask that is a value. */
TS_TEST_RANKS(bias_is_as_a_mask, 1)
{
    ts_mesh *self = ts_mesh_self(t->me);
    const ts_sharding *whole = ts_sharding_get(self, "none?:R");
    unsigned char table[T * S];
    for (int64_t i = 0; i < T * S; i++)
        (void)seen_at((const int64_t[]){ 0, 0, i / S, i % S }, &table[i], NULL);
    const ts_mask *dense = ts_mask_dense(ts_rank_world(t->me), "steps", T, S, table);
    for (int i = 0; i < 3; i++) {
        ts_tensor *have[6] = { NULL }, *want[6] = { NULL };
        ts_attention_options a = TS_INIT(ts_attention_options), b = TS_INIT(ts_attention_options);
        a.scale = b.scale = 0.7;
        if (i == 1) a.dropout = b.dropout = 0.3;
        a.mask = i == 0   ? ts_mask_get(ts_rank_world(t->me), "causal + softcap(2) + alibi")
                 : i == 1 ? ts_mask_get(ts_rank_world(t->me), "full + alibi")
                          : dense;
        if (i == 0) b.mask = ts_mask_get(ts_rank_world(t->me), "causal + softcap(2)");
        b.bias = i == 2 ? ts_from_function(seen_at, NULL, whole,
                                           (ts_meta){ TS_SHAPE(1, 1, T, S), TS_DTYPE_BOOL, 0 })
                        : ts_from_function(alibi_at, NULL, whole,
                                           (ts_meta){ TS_SHAPE(1, H, T, S), TS_DTYPE_F64, 0 });
        inputs x = inputs_on(self, "none?:R"), y = inputs_on(self, "none?:R");
        run(t, &x, &a, want);
        run(t, &y, &b, have);
        compare(t, have, want, 5, i == 2 ? "dense" : "alibi");
    }
}

static double loss(const inputs *x, ts_tensor *bias, const ts_mask *mask)
{
    double value = NAN;
    ts_attention_options o = TS_INIT(ts_attention_options);
    o.bias = bias;
    o.mask = mask;
    ts_tensor_item(ts_sum(ts_mul(ts_attention(x->q, x->k, x->v, &o), x->d), NULL, 0, 0), &value);
    return value;
}

TS_TEST_RANKS(bias_has_a_gradient, 1)
{
    enum { FIRST = 3, STEP = 17 };
    ts_mesh *self = ts_mesh_self(t->me);
    const ts_mask *mask = ts_mask_get(ts_rank_world(t->me), "causal + softcap(3)");
    ts_attention_options o = TS_INIT(ts_attention_options);
    ts_tensor *out[6] = { NULL };
    inputs x = inputs_on(self, "none?:R");
    o.mask = mask;
    o.bias = numbers(self, "none?:R", TS_SHAPE(1, H, T, S), 5);
    run(t, &x, &o, out);
    ts_array bias = TS_INIT(ts_array), grad = TS_INIT(ts_array);
    ts_tensor *moved = numbers(self, "none?:R", TS_SHAPE(1, H, T, S), 5);
    TEST_OK(t, test_view(moved, &bias));
    TEST_OK(t, test_view(out[5], &grad));
    for (int64_t i = FIRST; i < H * T * S; i += STEP) {
        double *at = (double *)bias.data + i, was = *at, h = 1e-5;
        *at = was + h;
        TEST_OK(t, test_written(moved, &bias));
        double more = loss(&x, moved, mask);
        *at = was - h;
        TEST_OK(t, test_written(moved, &bias));
        double less = loss(&x, moved, mask), want = (more - less) / (2 * h);
        *at = was;
        double have = ((const double *)grad.data)[i];
        TEST_SAY(t, fabs(have - want) < 1e-8 * (1 + fabs(want)), "element %lld: %g, not %g",
                 (long long)i, have, want);
    }
}

TS_TEST_RANKS(bias_on_any_cut, 2, 3)
{
    static const char *const places[][2] = { { "x:S(0)", "x:R" },    { "x:S(1)", "x:S(1)" },
                                             { "x:S(2)", "x:S(2)" }, { "x:HT(2)", "x:HT(2)" },
                                             { "x:R", "x:S(3)" },    { "x:S(3)", "x:R" } };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    for (size_t i = 0; i < TSI_COUNT_OF(places); i++) {
        ts_tensor *have[6] = { NULL }, *want[6] = { NULL };
        ts_scope scope = ts_scope_open(t->me, places[i][0]);
        ts_attention_options a = TS_INIT(ts_attention_options), b = TS_INIT(ts_attention_options);
        a.mask = b.mask = ts_mask_get(ts_rank_world(t->me), "causal");
        a.bias = numbers(mesh, "x:R", TS_SHAPE(1, H, T, S), 6);
        b.bias = numbers(mesh, places[i][1], TS_SHAPE(1, H, T, S), 6);
        inputs x = inputs_on(mesh, "x:R"), y = inputs_on(mesh, places[i][0]);
        run(t, &x, &a, want);
        run(t, &y, &b, have);
        compare(t, have, want, 6, places[i][0]);
        ts_scope_close(scope);
    }
    ts_mesh_release(mesh);
}

/* Queries that see nothing, because there is nothing: zeros and -inf, and gradients of zeros. */
TS_TEST_RANKS(bias_of_no_keys, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_attention_options o = TS_INIT(ts_attention_options);
    ts_tensor *out[6] = { NULL };
    double sum = NAN, least = NAN, grad = NAN;
    inputs x = { numbers(mesh, "x:S(2)", TS_SHAPE(B, H, T, D), 1),
                 numbers(mesh, "x:S(2)", TS_SHAPE(B, G, 0, D), 2),
                 numbers(mesh, "x:S(2)", TS_SHAPE(B, G, 0, E), 3),
                 numbers(mesh, "x:S(2)", TS_SHAPE(B, H, T, E), 4) };
    o.bias = numbers(mesh, "x:R", TS_SHAPE(1, H, T, 1), 5);
    run(t, &x, &o, out);
    ts_tensor_item(ts_sum(ts_abs(out[0]), NULL, 0, 0), &sum);
    ts_tensor_item(ts_amax(out[1], NULL, 0, 0), &least);
    ts_tensor_item(ts_sum(ts_abs(out[2]), NULL, 0, 0), &grad);
    TEST_SAY(t, sum == 0 && isinf(least) && least < 0 && grad == 0, "%g, %g, %g", sum, least, grad);
    TEST_OK(t, ts_rank_status(t->me));
    ts_mesh_release(mesh);
}

TS_TEST_RANKS(bias_that_does_not_fit, 1, 2)
{
    ts_scope_options catching = TS_INIT(ts_scope_options);
    catching.catches = 1;
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_scope scope = ts_scope_open_with(t->me, &catching);
    ts_attention_options o = TS_INIT(ts_attention_options);
    inputs x = inputs_on(mesh, "x:S(2)");
    o.bias = numbers(mesh, "x:R", TS_SHAPE(1, H, T, S - 1), 6);
    TEST_CHECK(t, ts_attention(x.q, x.k, x.v, &o) == NULL);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "and a bias (1, 4, 5, 6) do not fit");
    (void)ts_scope_close(scope);
    TEST_OK(t, ts_rank_status(t->me));
    ts_mesh_release(mesh);
}
