/* SPDX-License-Identifier: Apache-2.0 */
/* 06_user_op.c - an operator of the program's own: y = x sigmoid(beta x).
 *
 * The kernel is C for one block, the rule is one expression ("elementwise"), the gradient is
 * written with operators, so it is sharded like everything else. Registering proves the rule. Run
 * it: TESSERA_RANKS=4 ./06_user_op */
#include <math.h>
#include <stdio.h>

#include <tessera/tessera.h>

typedef struct swish {
    double beta;
} swish;

/* One block, contiguous, f32: the library casts and copies around it where something else comes. */
static ts_status kernel(const void *attributes, const ts_array *const *in, ts_array *const *out)
{
    const swish *a = attributes;
    const float *x = in[0]->data;
    float *y = out[0]->data;
    int64_t count = ts_shape_count(&in[0]->meta.shape);
    for (int64_t i = 0; i < count; i++)
        y[i] = x[i] / (1.0f + expf((float)-a->beta * x[i]));
    return TS_OK;
}

/* Saved x, then dy: dx = dy (s + beta x s (1 - s)), s = sigmoid(beta x). */
static void grad(const ts_op_io *io)
{
    const swish *a = io->attributes;
    ts_tensor *x = io->input[0], *dy = io->input[1], *s = ts_sigmoid(ts_scale(x, a->beta));
    ts_tensor *bend = ts_scale(ts_mul(ts_mul(x, s), ts_rsub_scalar(s, 1)), a->beta);
    io->output[0] = ts_mul(dy, ts_add(s, bend));
}

static const ts_op_attribute attributes[] = {
    { "beta", TS_ATTRIBUTE_REAL, offsetof(swish, beta), "1", NULL },
    { NULL, TS_ATTRIBUTE_INT, 0, NULL, NULL },
};

static const ts_op_desc swish_desc = { .struct_size = sizeof(ts_op_desc),
                                       .name = "example.swish",
                                       .dims = "*->*",
                                       .saves = 1, /* x */
                                       .attributes_bytes = sizeof(swish),
                                       .input_count = 1,
                                       .output_count = 1,
                                       .kernel = kernel,
                                       .grad = grad,
                                       .what = "x sigmoid(beta x)",
                                       .dtypes = 1u << TS_DTYPE_F32,
                                       .attribute = attributes };

static ts_tensor *apply_swish(ts_rank *me, ts_tensor *x, double beta)
{
    return ts_op_apply(ts_op_register(me, &swish_desc), &x, &(swish){ beta });
}

static ts_status work(ts_rank *me, void *arg)
{
    (void)arg;
    ts_mesh *mesh = ts_mesh_create(me, "dp=*");
    ts_scope scope = ts_scope_open(me, "example");
    ts_arange_options range = TS_INIT(ts_arange_options);
    range.start = -2;
    range.step = 0.5;
    ts_tensor *x = ts_watch(ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(3, 3), "S(0)", &range));
    ts_tape_begin(me);
    ts_tensor *loss = ts_sum(apply_swish(me, x, 2.0), NULL, 0, 0);
    ts_backward(loss, NULL);
    double value = 0, slope = 0;
    ts_tensor_item(loss, &value);
    ts_tensor_item(ts_sum(ts_tensor_grad(x), NULL, 0, 0), &slope);
    char placements[64] = "";
    ts_tensor *dx = ts_tensor_grad(x);
    if (dx)
        ts_sharding_text(ts_layout_sharding(ts_tensor_layout(dx)), placements, sizeof placements);
    if (ts_rank_index(me) == 0 && ts_rank_status(me) == TS_OK)
        printf("loss %.4f, sum of the gradient %.4f, placed as %s\n", value, slope, placements);
    ts_scope_close(scope);
    return ts_rank_sync(me);
}

int main(int argc, char **argv)
{
    return ts_launch(argc, argv, work, NULL);
}
