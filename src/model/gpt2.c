/* SPDX-License-Identifier: Apache-2.0 */
/* gpt2.c - GPT-2: learned positions, layer norms, one product for q, k and v, weights stored [in,
 * out].
 *
 *   B batch, T time, C hidden, H heads, D head size
 *
 * The fused product is sharded as a strided shard of factor 3, so that each rank has its heads of
 * q, of k and of v. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "model/model.h"

typedef struct layer {
    ts_tensor *n1_w, *n1_b, *qkv_w, *qkv_b, *out_w, *out_b, *n2_w, *n2_b, *in_w, *in_b, *mlp_w,
        *mlp_b;
} layer;

typedef struct gpt2 {
    ts_model *model;
    ts_tensor *tokens, *positions, *norm_w, *norm_b, *head;
    layer *layer;
} gpt2;

static const char tp_plan[] = "*.attn.c_attn.weight: tp?:SS(1,3)\n*.attn.c_attn.bias: tp?:SS(0,3)\n"
                              "*.attn.c_proj.weight: tp?:S(0)\n*.mlp.c_fc.weight: tp?:S(1)\n"
                              "*.mlp.c_fc.bias: tp?:S(0)\n*.mlp.c_proj.weight: tp?:S(0)\n"
                              "*.wte.weight: tp?:S(0)\nlm_head.weight: tp?:S(0)\n";

const char *tsi_gpt2_plan(const char *name)
{
    if (strcmp(name, "dp") == 0) return "";
    return strcmp(name, "tp") == 0 || strcmp(name, "sp") == 0 ? tp_plan : NULL;
}

/* ---- forward --------------------------------------------------------------------------------- */

static ts_tensor *product(const ts_model *m, ts_tensor *x, ts_tensor *weight, ts_tensor *bias)
{
    return ts_add(ts_matmul(x, tsi_model_cast(m, weight)), tsi_model_cast(m, bias));
}

static ts_tensor *attention(const ts_model *m, const layer *l, int64_t index, ts_tensor *x_BTC)
{
    const ts_model_config *c = &m->config;
    ts_shape s = ts_tensor_shape(x_BTC);
    ts_tensor *all = product(m, x_BTC, l->qkv_w, l->qkv_b);
    all = ts_reshape(all, TS_SHAPE(s.extent[0], s.extent[1], 3, c->heads, c->head_dim));
    ts_tensor *part[3];
    for (int i = 0; i < 3; i++)
        part[i] = ts_transpose(ts_select(all, 2, i), 1, 2);
    ts_tensor *o = ts_transpose(tsi_model_attention(m, part, index), 1, 2);
    return product(m, ts_reshape(o, s), l->out_w, l->out_b);
}

static ts_tensor *block(const ts_model *m, const layer *l, int64_t index, ts_tensor *x)
{
    double eps = m->config.norm_epsilon;
    ts_tensor *h = tsi_model_whole(m, ts_layer_norm(x, l->n1_w, l->n1_b, eps));
    x = ts_add(x, tsi_model_residual(m, attention(m, l, index, h)));
    h = tsi_model_whole(m, ts_layer_norm(x, l->n2_w, l->n2_b, eps));
    ts_tensor *wide = tsi_model_activate(m, product(m, h, l->in_w, l->in_b));
    return ts_add(x, tsi_model_residual(m, product(m, wide, l->mlp_w, l->mlp_b)));
}

static void gpt2_forward(void *state, const ts_module_io *io)
{
    const gpt2 *g = state;
    const ts_model *m = g->model;
    int64_t length = ts_tensor_shape(io->input[0]).extent[1];
    if (length > m->config.positions) {
        TSI_FAIL(TS_ERR_SHAPE, "gpt2: a sequence of %lld is longer than the %lld learned positions",
                 (long long)length, (long long)m->config.positions);
        return;
    }
    ts_scope scope = ts_scope_open(io->rank, "h");
    ts_tensor *x = tsi_model_residual(m, ts_embedding(tsi_model_cast(m, g->tokens), io->input[0]));
    ts_tensor *place = ts_arange(m->mesh, TS_DTYPE_I64, TS_SHAPE(length), NULL, NULL);
    x = tsi_model_residual(m, ts_add(x, ts_embedding(tsi_model_cast(m, g->positions), place)));
    for (int64_t i = 0; i < m->config.layers; i++) {
        char name[24];
        snprintf(name, sizeof name, "%lld", (long long)i);
        ts_scope inner = ts_scope_open(io->rank, name);
        x = ts_scope_leave(inner, block(m, &g->layer[i], i, x));
        x = ts_scope_turn(scope, x);
    }
    x = ts_scope_leave(scope, x);
    x = tsi_model_whole(m, ts_layer_norm(x, g->norm_w, g->norm_b, m->config.norm_epsilon));
    io->output[0] = ts_linear(x, tsi_model_cast(m, g->head ? g->head : g->tokens), NULL);
}

static void gpt2_destroy(void *state)
{
    gpt2 *g = state;
    tsi_free(g->layer);
    tsi_free(g);
}

static const ts_module_desc gpt2_desc = { .struct_size = sizeof(ts_module_desc),
                                          .type = "gpt2",
                                          .input_count = 1,
                                          .output_count = 1,
                                          .forward = gpt2_forward,
                                          .destroy = gpt2_destroy };

/* ---- parameters ------------------------------------------------------------------------------ */

typedef struct builder {
    ts_module *root;
    ts_param_options normal, ones, zeros;
    int64_t layer, hidden, wide;
} builder;

static ts_tensor *param(builder *b, const char *suffix, ts_shape shape,
                        const ts_param_options *options)
{
    char name[128];
    snprintf(name, sizeof name, "transformer.h.%lld.%s", (long long)b->layer, suffix);
    return ts_module_param(b->root, name, shape, options);
}

static void layer_params(builder *b, layer *l)
{
    int64_t c = b->hidden, f = b->wide;
    l->n1_w = param(b, "ln_1.weight", TS_SHAPE(c), &b->ones);
    l->n1_b = param(b, "ln_1.bias", TS_SHAPE(c), &b->zeros);
    l->qkv_w = param(b, "attn.c_attn.weight", TS_SHAPE(c, 3 * c), &b->normal);
    l->qkv_b = param(b, "attn.c_attn.bias", TS_SHAPE(3 * c), &b->zeros);
    l->out_w = param(b, "attn.c_proj.weight", TS_SHAPE(c, c), &b->normal);
    l->out_b = param(b, "attn.c_proj.bias", TS_SHAPE(c), &b->zeros);
    l->n2_w = param(b, "ln_2.weight", TS_SHAPE(c), &b->ones);
    l->n2_b = param(b, "ln_2.bias", TS_SHAPE(c), &b->zeros);
    l->in_w = param(b, "mlp.c_fc.weight", TS_SHAPE(c, f), &b->normal);
    l->in_b = param(b, "mlp.c_fc.bias", TS_SHAPE(f), &b->zeros);
    l->mlp_w = param(b, "mlp.c_proj.weight", TS_SHAPE(f, c), &b->normal);
    l->mlp_b = param(b, "mlp.c_proj.bias", TS_SHAPE(c), &b->zeros);
}

ts_module *tsi_gpt2_create(ts_model *model, const ts_model_options *options)
{
    const ts_model_config *c = &model->config;
    gpt2 *g = tsi_calloc(1, sizeof *g);
    layer *layers = tsi_calloc((size_t)c->layers + 1, sizeof *layers);
    ts_module *root = g && layers ? ts_module_create(model->mesh, &gpt2_desc, g) : NULL;
    if (!root) {
        tsi_free(g);
        tsi_free(layers);
        tsi_fail_memory("a model", sizeof *g);
        return NULL;
    }
    g->model = model;
    g->layer = layers;
    ts_param_options base = TS_INIT(ts_param_options);
    base.dtype = options && options->dtype > 0 ? options->dtype : 0;
    builder b = { .root = root,
                  .normal = base,
                  .ones = base,
                  .zeros = base,
                  .hidden = c->hidden,
                  .wide = c->intermediate };
    b.normal.init = ts_init_normal;
    b.normal.init_state = &model->config.init_deviation;
    b.ones.init = ts_init_ones;
    g->tokens =
        ts_module_param(root, "transformer.wte.weight", TS_SHAPE(c->vocab, c->hidden), &b.normal);
    g->positions = ts_module_param(root, "transformer.wpe.weight",
                                   TS_SHAPE(c->positions, c->hidden), &b.normal);
    for (b.layer = 0; b.layer < c->layers; b.layer++)
        layer_params(&b, &layers[b.layer]);
    g->norm_w = ts_module_param(root, "transformer.ln_f.weight", TS_SHAPE(c->hidden), &b.ones);
    g->norm_b = ts_module_param(root, "transformer.ln_f.bias", TS_SHAPE(c->hidden), &b.zeros);
    if (!c->tied)
        g->head = ts_module_param(root, "lm_head.weight", TS_SHAPE(c->vocab, c->hidden), &b.normal);
    return root;
}
