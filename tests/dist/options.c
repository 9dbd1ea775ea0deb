/* SPDX-License-Identifier: Apache-2.0 */
/* options.c - ts_..._options_init fills in the real defaults, and then a 0 is a 0 (friction 3); in
 * options of zeros it stays the default. */
#include <math.h>

#include "harness/test.h"
#include "tessera/tessera.h"

static double first_of(test *t, ts_tensor *x)
{
    double all[8] = { 0 };
    ts_array to = TS_INIT(ts_array);
    to.data = all;
    to.meta = (ts_meta){ .shape = ts_tensor_shape(x), .dtype = TS_DTYPE_F64 };
    TEST_OK(t, ts_tensor_read(ts_tensor_full(x), &to));
    return all[0];
}

static const ts_module_desc desc = { .struct_size = sizeof(ts_module_desc), .type = "test" };

/* A parameter of ones after a step with the gradient 1 and one with -2. */
static double after_two_steps(test *t, const ts_adamw_options *adamw, const ts_sgd_options *sgd)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_module *root = ts_module_create(mesh, &desc, NULL);
    ts_param_options param;
    ts_param_options_init(&param);
    param.init = ts_init_ones;
    param.dtype = TS_DTYPE_F64;
    ts_tensor *p = ts_module_param(root, "p", TS_SHAPE(3), &param);
    TEST_OK(t, ts_module_materialize(root));
    ts_optimizer *o = sgd ? ts_sgd_create(root, sgd) : ts_adamw_create(root, adamw);
    for (int step = 0; step < 2; step++) {
        ts_scope scope = ts_scope_open(t->me, "step");
        ts_tape_begin(t->me);
        TEST_OK(t, ts_backward(ts_scale(ts_sum(p, NULL, 0, 0), step ? -2.0 : 1.0), NULL));
        TEST_OK(t, ts_optimizer_step(o));
        TEST_CHECK(t, ts_tensor_grad(p) == NULL); /* friction 5: a step clears what it used */
        ts_scope_close(scope);
    }
    double value = first_of(t, p);
    ts_optimizer_destroy(o);
    ts_module_destroy(root);
    return value;
}

TS_TEST_RANKS(an_optimiser_does_what_its_options_say, 1, 2)
{
    ts_adamw_options zeros = TS_INIT(ts_adamw_options), real;
    ts_adamw_options_init(&real);
    TEST_EQ(t, (int64_t)real.struct_size, (int64_t)sizeof real);
    double by_default = after_two_steps(t, NULL, NULL);
    TEST_CHECK(t, after_two_steps(t, &zeros, NULL) == by_default);
    TEST_CHECK(t, after_two_steps(t, &real, NULL) == by_default);
    /* Without memory each step goes by the rate alone, there and back. */
    real.beta1 = real.beta2 = real.epsilon = 0;
    double there_and_back = after_two_steps(t, &real, NULL);
    TEST_SAY(t, fabs(there_and_back - 1) < 1e-15, "%.17g is not 1", there_and_back);
    TEST_CHECK(t, fabs(by_default - 1) > 1e-5);
    real.lr = 0;
    TEST_CHECK(t, after_two_steps(t, &real, NULL) == 1);
    ts_sgd_options sgd;
    ts_sgd_options_init(&sgd);
    TEST_CHECK(t, after_two_steps(t, NULL, &sgd) != 1);
    sgd.lr = 0;
    TEST_CHECK(t, after_two_steps(t, NULL, &sgd) == 1);
}

TS_TEST_RANKS(operators_honour_a_zero, 1)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_arange_options range;
    ts_arange_options_init(&range);
    range.start = 5;
    ts_tensor *x = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(1, 1), NULL, &range);
    TEST_CHECK(t, first_of(t, x) == 5);
    range.step = 0;
    ts_number last;
    ts_tensor *same = ts_arange(mesh, TS_DTYPE_I64, TS_SHAPE(4), NULL, &range);
    TEST_OK(t, ts_tensor_number(ts_select(same, 0, 3), &last));
    TEST_EQ(t, last.whole, 5);
    /* (5 - 0) / sqrt(1e-5 + epsilon) */
    ts_batch_norm_options norm;
    ts_batch_norm_options_init(&norm);
    norm.mean = ts_zeros(mesh, TS_DTYPE_F64, TS_SHAPE(1), NULL);
    norm.variance = ts_full(1e-5, mesh, TS_DTYPE_F64, TS_SHAPE(1), NULL);
    double usual = first_of(t, ts_batch_norm(x, &norm));
    norm.epsilon = 0;
    double bare = first_of(t, ts_batch_norm(x, &norm));
    TEST_CHECK(t, fabs(bare / usual - sqrt(2.0)) < 1e-9);
    ts_loss_options loss;
    ts_loss_options_init(&loss);
    TEST_CHECK(t, ts_huber_loss(x, x, &loss) != NULL);
    loss.point = 0;
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    TEST_CHECK(t, ts_huber_loss(x, x, &loss) == NULL);
    TEST_STATUS(t, ts_scope_close(scope), TS_ERR_ARG);
}

/* Friction 3: keys that are seen weigh the same, so attention is the mean of their values. */
TS_TEST_RANKS(a_scale_of_zero_is_a_scale, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_attention_options usual, none;
    ts_attention_options_init(&usual);
    ts_attention_options_init(&none);
    none.scale = 0;
    for (int wide = 0; wide < 2; wide++) {
        ts_dtype dtype = wide ? TS_DTYPE_F64 : TS_DTYPE_F32;
        ts_tensor *q = ts_sin(ts_arange(mesh, dtype, TS_SHAPE(2, 2, 4, 3), "S(0)", NULL));
        ts_tensor *mean = ts_expand(ts_mean(q, (const int64_t[]){ 2 }, 1, 1), TS_SHAPE(2, 2, 4, 3));
        int same = 0;
        TEST_OK(t, ts_allclose(ts_attention(q, q, q, &none), mean, NULL, &same));
        TEST_CHECK(t, same);
        TEST_OK(t, ts_equal(ts_attention(q, q, q, &usual), ts_attention(q, q, q, NULL), &same));
        TEST_CHECK(t, same);
        TEST_OK(t, ts_allclose(ts_attention(q, q, q, &usual), mean, NULL, &same));
        TEST_CHECK(t, !same);
    }
}

TS_TEST_RANKS(a_model_keeps_its_zeros, 1)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "tp=*");
    for (int exact = 0; exact < 2; exact++) {
        ts_model_config c = TS_INIT(ts_model_config);
        if (exact) ts_model_config_init(&c);
        c.vocab = c.hidden = c.intermediate = 8;
        c.layers = c.heads = 2;
        c.norm_epsilon = c.init_deviation = 0;
        ts_model *model = ts_model_declare(mesh, &c, NULL);
        TEST_CHECK(t, model != NULL);
        const ts_model_config *kept = ts_model_configuration(model);
        TEST_CHECK(t, kept->norm_epsilon == (exact ? 0 : 1e-5));
        TEST_CHECK(t, kept->init_deviation == (exact ? 0 : 0.02));
        ts_model_destroy(model);
    }
}

/* An index that is ignored keeps its 64 bits on every way through the loss. */
TS_TEST_RANKS(an_ignored_index_may_be_any_whole_number, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    const int64_t odd = (INT64_C(1) << 53) + 1;
    ts_tensor *logits = ts_arange(mesh, TS_DTYPE_F64, TS_SHAPE(2, 3), "S(0)", NULL);
    ts_cross_entropy_options options;
    ts_cross_entropy_options_init(&options);
    options.ignore_index = odd;
    options.label_smoothing = 0.1;
    /* Labels { 1, odd }: the second row counts for nothing. */
    ts_tensor *labels = ts_arange_number(ts_number_int(1), ts_number_int(odd - 1), mesh,
                                         TS_DTYPE_I64, TS_SHAPE(2), "S(0)");
    ts_tensor *one = ts_ones(mesh, TS_DTYPE_I64, TS_SHAPE(1), NULL);
    double both = NAN, alone = NAN;
    TEST_OK(t, ts_tensor_item(ts_cross_entropy_with(logits, labels, &options), &both));
    ts_tensor *row = ts_slice(logits, 0, TS_OPTIONS(ts_slice_options, .end = 1, .end_is_given = 1));
    TEST_OK(t, ts_tensor_item(ts_cross_entropy_with(row, one, &options), &alone));
    TEST_SAY(t, fabs(both - alone) < 1e-12, "%g is not %g", both, alone);
}
