/* SPDX-License-Identifier: Apache-2.0 */
/* 02_mlp.c - a two-layer network trained by data parallelism, which here is nothing but placements.
 *
 * The batch is S(0) on axis dp and the weights are R, so every gradient comes out as a partial sum
 * and is delivered replicated; the same program on one rank communicates nothing. Run it:
 * TESSERA_RANKS=4 ./02_mlp */
#include <stdio.h>

#include <tessera/tessera.h>

typedef struct mlp {
    ts_tensor *w1, *w2;
} mlp;

static void forward(void *state, const ts_module_io *io)
{
    const mlp *net = state;
    io->output[0] = ts_matmul(ts_relu(ts_matmul(io->input[0], net->w1)), net->w2);
}

static const ts_module_desc mlp_desc = { .struct_size = sizeof(ts_module_desc),
                                         .type = "mlp",
                                         .input_count = 1,
                                         .output_count = 1,
                                         .forward = forward };

/* Rows whose class can be told from their values: a pattern per class, shifted by the row. */
static ts_status pixel(const int64_t *global, void *element, void *context)
{
    (void)context;
    int64_t class = global[0] % 10;
    *(float *)element = (float)((global[1] * (class + 1) + global[0] / 10) % 7) / 7.0f;
    return TS_OK;
}

static ts_status label(const int64_t *global, void *element, void *context)
{
    (void)context;
    *(int64_t *)element = global[0] % 10;
    return TS_OK;
}

static ts_status work(ts_rank *me, void *arg)
{
    (void)arg;
    ts_mesh *mesh = ts_mesh_create(me, "dp=*");
    const ts_sharding *rows = ts_sharding_get(mesh, "dp:S(0)");
    mlp net = { NULL, NULL };
    ts_module *root = ts_module_create(mesh, &mlp_desc, &net);
    ts_param_options normal = TS_INIT(ts_param_options);
    double deviation = 0.1;
    normal.init = ts_init_normal;
    normal.init_state = &deviation;
    net.w1 = ts_module_param(root, "w1", TS_SHAPE(64, 128), &normal);
    net.w2 = ts_module_param(root, "w2", TS_SHAPE(128, 10), &normal);
    ts_module_materialize(root);
    ts_adamw_options adamw = TS_INIT(ts_adamw_options);
    adamw.lr = 5e-3;
    ts_optimizer *optimizer = ts_adamw_create(root, &adamw);
    ts_tensor *average = ts_variable(me); /* kept across steps */
    for (int step = 0; step < 60 && ts_rank_status(me) == TS_OK; step++) {
        ts_scope scope = ts_scope_open(me, "step");
        ts_tape_begin(me);
        ts_tensor *x = ts_from_function(
            pixel, NULL, rows, (ts_meta){ .shape = TS_SHAPE(120, 64), .dtype = TS_DTYPE_F32 });
        ts_tensor *y = ts_from_function(label, NULL, rows,
                                        (ts_meta){ .shape = TS_SHAPE(120), .dtype = TS_DTYPE_I64 });
        ts_tensor *loss = ts_cross_entropy(TS_CALL(root, x), y);
        ts_backward(loss, NULL);
        ts_optimizer_step(optimizer);
        ts_tensor_write(average, step ? ts_add(ts_scale(average, 0.8), ts_scale(loss, 0.2)) : loss);
        ts_scope_close(scope);
        double value = 0;
        if (step % 20 == 19 && ts_tensor_item(average, &value) == TS_OK && ts_rank_index(me) == 0)
            printf("step %d: loss %.3f\n", step + 1, value);
    }
    ts_tensor_release(average);
    ts_optimizer_destroy(optimizer);
    ts_module_destroy(root);
    return ts_rank_sync(me);
}

int main(int argc, char **argv)
{
    return ts_launch(argc, argv, work, NULL);
}
