/* SPDX-License-Identifier: Apache-2.0 */
/* 09_fsdp.c - sharded data parallelism: a deep network of which every rank stores its part alone.
 *
 * The batch is S(0) on axis fsdp, and so are weights, gradients and the optimiser's state. A layer
 * is a unit: its weights are whole on every rank while it computes, and only then. The program is
 * that of data parallelism but for the one call ts_fsdp. Run it: TESSERA_RANKS=4 ./09_fsdp */
#include <stdio.h>

#include <tessera/tessera.h>

enum { LAYERS = 6, WIDTH = 64, ROWS = 96 };

typedef struct layer {
    ts_tensor *weight, *bias;
} layer;

typedef struct net {
    ts_module *root, *part[LAYERS];
    layer layer[LAYERS];
} net;

static void layer_forward(void *state, const ts_module_io *io)
{
    const layer *l = state;
    ts_tensor *x = io->input[0];
    io->output[0] = ts_add(x, ts_tanh(ts_linear(x, l->weight, l->bias)));
}

static void net_forward(void *state, const ts_module_io *io)
{
    const net *n = state;
    ts_tensor *x = io->input[0];
    for (int i = 0; i < LAYERS; i++)
        x = TS_CALL(n->part[i], x);
    io->output[0] = x;
}

static const ts_module_desc layer_desc = { .struct_size = sizeof(ts_module_desc),
                                           .type = "layer",
                                           .input_count = 1,
                                           .output_count = 1,
                                           .forward = layer_forward };
static const ts_module_desc net_desc = { .struct_size = sizeof(ts_module_desc),
                                         .type = "net",
                                         .input_count = 1,
                                         .output_count = 1,
                                         .forward = net_forward };

/* Declared, made into units, and only then given storage: no rank ever holds the whole. */
static void build(net *n, ts_mesh *mesh)
{
    ts_param_options normal = TS_INIT(ts_param_options);
    double deviation = 0.05;
    normal.init = ts_init_normal;
    normal.init_state = &deviation;
    n->root = ts_module_create(mesh, &net_desc, n);
    for (int i = 0; i < LAYERS; i++) {
        char name[24];
        snprintf(name, sizeof name, "layers.%d", i);
        ts_module *m = ts_module_create(mesh, &layer_desc, &n->layer[i]);
        n->part[i] = ts_module_add(n->root, name, m);
        n->layer[i].weight = ts_module_param(m, "weight", TS_SHAPE(WIDTH, WIDTH), &normal);
        n->layer[i].bias = ts_module_param(m, "bias", TS_SHAPE(WIDTH), NULL);
        ts_fsdp(m, NULL);
    }
    ts_module_materialize(n->root);
}

static ts_status value(const int64_t *global, void *element, void *context)
{
    (void)context;
    *(float *)element = (float)((global[0] * 5 + global[1] * 3) % 17) / 17.0F - 0.5F;
    return TS_OK;
}

static ts_status work(ts_rank *me, void *arg)
{
    (void)arg;
    net n;
    ts_mesh *mesh = ts_mesh_create(me, "fsdp=*");
    const ts_sharding *rows = ts_sharding_get(mesh, "fsdp:S(0)");
    ts_meta meta = { .shape = TS_SHAPE(ROWS, WIDTH), .dtype = TS_DTYPE_F32 };
    build(&n, mesh);
    ts_adamw_options adamw = TS_INIT(ts_adamw_options);
    adamw.lr = 3e-3;
    ts_optimizer *optimizer = ts_adamw_create(n.root, &adamw);
    double loss = 0;
    for (int step = 0; step < 60 && ts_rank_status(me) == TS_OK; step++) {
        ts_scope scope = ts_scope_open(me, "step");
        ts_tape_begin(me);
        ts_tensor *x = ts_from_function(value, NULL, rows, meta);
        ts_tensor *error = ts_sub(TS_CALL(n.root, x), ts_neg(x));
        ts_tensor *mean = ts_scale(ts_sum(ts_square(error), NULL, 0, 0), 1.0 / (ROWS * WIDTH));
        ts_tensor_item(mean, &loss);
        ts_backward(mean, NULL);
        ts_optimizer_step(optimizer);
        ts_scope_close(scope);
        if (step % 20 == 19 && ts_rank_index(me) == 0)
            printf("step %d: loss %.4f\n", step + 1, loss);
    }
    ts_fsdp_stats stats = TS_INIT(ts_fsdp_stats);
    char layout[64] = "";
    ts_fsdp_statistics(n.root, &stats);
    ts_layout_text(ts_tensor_layout(n.layer[0].weight), layout, sizeof layout);
    if (ts_rank_index(me) == 0)
        printf("a weight is stored as %s; %lld gathers, %lld of them ahead\n", layout,
               (long long)stats.gathers, (long long)stats.prefetched);
    ts_optimizer_destroy(optimizer);
    ts_module_destroy(n.root);
    return ts_rank_sync(me);
}

int main(int argc, char **argv)
{
    return ts_launch(argc, argv, work, NULL);
}
