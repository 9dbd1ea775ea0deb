/* SPDX-License-Identifier: Apache-2.0 */
/* llama.c - Llama, and what differs from it by little: Qwen3 (norms of q and k) and Mixtral
 * (experts).
 *
 *   x_BTC -> norm -> q_BHTD, k_BGTD, v_BGTD -> attention -> +x -> norm -> mlp -> +x
 *   B batch, T time, C hidden, H heads, G groups of keys, D head size, E experts, F width of one
 *
 * Parameters have the published names. Nothing here knows of ranks: what moves is said by two
 * redistributions a block. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "model/model.h"

typedef struct layer {
    ts_tensor *norm_a, *wq, *wk, *wv, *wo, *bq, *bk, *bv, *bo, *q_norm, *k_norm, *norm_m;
    ts_tensor *gate, *up, *down, *gate_b, *up_b, *down_b; /* Llama, Qwen3 */
    ts_tensor *router, *experts_in, *experts_out; /* Mixtral: [E, C], [E, 2F, C], [E, C, F] */
} layer;

typedef struct llama {
    ts_model *model;
    ts_tensor *embedding, *norm, *head;
    layer *layer;
} llama;

/* ---- plans: first match wins ----------------------------------------------------------------- */

static const char tp_plan[] =
    "*.embed_tokens.weight: tp?:S(0)\n"
    "*.self_attn.q_proj.*: tp?:S(0)\n*.self_attn.k_proj.*: tp?:S(0)\n"
    "*.self_attn.v_proj.*: tp?:S(0)\n*.self_attn.o_proj.weight: tp?:S(1)\n"
    "*.mlp.gate_proj.*: tp?:S(0)\n*.mlp.up_proj.*: tp?:S(0)\n"
    "*.mlp.down_proj.weight: tp?:S(1)\n"
    "*.mlp.experts.gate_up_proj: tp?:SS(1,2)\n*.mlp.experts.down_proj: tp?:S(2)\n"
    "lm_head.weight: tp?:S(0)\n";

const char *tsi_llama_plan(const char *name)
{
    if (strcmp(name, "dp") == 0) return "";
    return strcmp(name, "tp") == 0 || strcmp(name, "sp") == 0 ? tp_plan : NULL;
}

/* ---- forward --------------------------------------------------------------------------------- */

static ts_tensor *heads(ts_tensor *x_BTC, int64_t count, int64_t size)
{
    ts_shape s = ts_tensor_shape(x_BTC);
    return ts_transpose(ts_reshape(x_BTC, TS_SHAPE(s.extent[0], s.extent[1], count, size)), 1, 2);
}

static ts_tensor *linear(const ts_model *m, ts_tensor *x, ts_tensor *weight, ts_tensor *bias)
{
    return ts_linear(x, tsi_model_cast(m, weight), bias ? tsi_model_cast(m, bias) : NULL);
}

static ts_tensor *attention(const ts_model *m, const layer *l, int64_t index, ts_tensor *x_BTC)
{
    const ts_model_config *c = &m->config;
    ts_tensor *q = heads(linear(m, x_BTC, l->wq, l->bq), c->heads, c->head_dim);
    ts_tensor *k = heads(linear(m, x_BTC, l->wk, l->bk), c->kv_heads, c->head_dim);
    ts_tensor *v = heads(linear(m, x_BTC, l->wv, l->bv), c->kv_heads, c->head_dim);
    if (l->q_norm) {
        q = ts_rms_norm(q, l->q_norm, c->norm_epsilon);
        k = ts_rms_norm(k, l->k_norm, c->norm_epsilon);
    }
    ts_tensor *const qkv[3] = { ts_rope(q, m->rope), ts_rope(k, m->rope), v };
    ts_tensor *o_BHTD = tsi_model_attention(m, qkv, index);
    ts_shape s = ts_tensor_shape(x_BTC);
    ts_tensor *o = ts_reshape(ts_transpose(o_BHTD, 1, 2),
                              TS_SHAPE(s.extent[0], s.extent[1], c->heads * c->head_dim));
    return linear(m, o, l->wo, l->bo);
}

static ts_tensor *swiglu(const ts_model *m, const layer *l, ts_tensor *x)
{
    ts_tensor *gate = linear(m, x, l->gate, l->gate_b), *up = linear(m, x, l->up, l->up_b);
    return linear(m, tsi_model_gate(m, gate, up), l->down, l->down_b);
}

/* The experts that the router chose for each token, and no others: rows are grouped by expert.
 * K is the number chosen. */
static ts_tensor *experts(const ts_model *m, const layer *l, ts_tensor *x_BTC)
{
    const ts_model_config *c = &m->config;
    ts_shape s = ts_tensor_shape(x_BTC);
    int64_t batch = s.extent[0], length = s.extent[1], chosen = c->experts_per_token;
    ts_dtype dtype = ts_tensor_dtype(x_BTC);
    ts_tensor *scores = linear(m, x_BTC, l->router, NULL), *p_BTK = NULL, *which_BTK = NULL;
    if (dtype != TS_DTYPE_F64) scores = ts_cast(scores, TS_DTYPE_F32);
    ts_topk_options options = TS_INIT(ts_topk_options);
    options.k = chosen;
    options.dim = -1;
    ts_topk(ts_softmax(scores, -1), &options, &p_BTK, &which_BTK);
    int64_t last = -1;
    ts_tensor *weight = ts_cast(ts_div(p_BTK, ts_sum(p_BTK, &last, 1, 1)), dtype);
    ts_tensor *x_BTKC =
        ts_expand(ts_unsqueeze(x_BTC, 2), TS_SHAPE(batch, length, chosen, c->hidden));
    ts_tensor *both = ts_grouped_linear(x_BTKC, tsi_model_cast(m, l->experts_in), which_BTK);
    both = ts_reshape(both, TS_SHAPE(batch, length, chosen, 2, c->intermediate));
    ts_tensor *wide_BTKF = tsi_model_gate(m, ts_select(both, 3, 0), ts_select(both, 3, 1));
    wide_BTKF = ts_mul(wide_BTKF, ts_unsqueeze(weight, 3));
    int64_t slots = 2;
    ts_tensor *y = ts_grouped_linear(wide_BTKF, tsi_model_cast(m, l->experts_out), which_BTK);
    return ts_sum(y, &slots, 1, 0);
}

static ts_tensor *block(const ts_model *m, const layer *l, int64_t index, ts_tensor *x)
{
    ts_tensor *h = tsi_model_whole(m, ts_rms_norm(x, l->norm_a, m->config.norm_epsilon));
    x = ts_add(x, tsi_model_residual(m, attention(m, l, index, h)));
    h = tsi_model_whole(m, ts_rms_norm(x, l->norm_m, m->config.norm_epsilon));
    ts_tensor *y = l->router ? experts(m, l, h) : swiglu(m, l, h);
    return ts_add(x, tsi_model_residual(m, y));
}

static void llama_forward(void *state, const ts_module_io *io)
{
    const llama *l = state;
    const ts_model *m = l->model;
    if (tsi_rope_table(l->model, ts_tensor_shape(io->input[0]).extent[1]) != TS_OK) return;
    ts_scope scope = ts_scope_open(io->rank, "layers");
    ts_tensor *x =
        tsi_model_residual(m, ts_embedding(tsi_model_cast(m, l->embedding), io->input[0]));
    for (int64_t i = 0; i < m->config.layers; i++) {
        char name[24];
        snprintf(name, sizeof name, "%lld", (long long)i);
        ts_scope inner = ts_scope_open(io->rank, name);
        x = ts_scope_leave(inner, block(m, &l->layer[i], i, x));
        x = ts_scope_turn(scope, x);
    }
    x = ts_scope_leave(scope, x);
    x = tsi_model_whole(m, ts_rms_norm(x, l->norm, m->config.norm_epsilon));
    io->output[0] = linear(m, x, l->head ? l->head : l->embedding, NULL);
}

static void llama_destroy(void *state)
{
    llama *l = state;
    tsi_free(l->layer);
    tsi_free(l);
}

static const ts_module_desc llama_desc = { .struct_size = sizeof(ts_module_desc),
                                           .type = "llama",
                                           .input_count = 1,
                                           .output_count = 1,
                                           .forward = llama_forward,
                                           .destroy = llama_destroy };

/* ---- parameters ------------------------------------------------------------------------------ */

typedef struct builder {
    ts_module *root;
    const ts_model *model;
    ts_param_options normal, ones, zeros;
    int64_t layer;
} builder;

static ts_tensor *param(builder *b, const char *suffix, ts_shape shape,
                        const ts_param_options *options)
{
    char name[128];
    snprintf(name, sizeof name, "model.layers.%lld.%s", (long long)b->layer, suffix);
    return ts_module_param(b->root, name, shape, options);
}

static void layer_params(builder *b, layer *l)
{
    const ts_model_config *c = &b->model->config;
    int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    l->norm_a = param(b, "input_layernorm.weight", TS_SHAPE(c->hidden), &b->ones);
    l->wq = param(b, "self_attn.q_proj.weight", TS_SHAPE(q, c->hidden), &b->normal);
    l->wk = param(b, "self_attn.k_proj.weight", TS_SHAPE(kv, c->hidden), &b->normal);
    l->wv = param(b, "self_attn.v_proj.weight", TS_SHAPE(kv, c->hidden), &b->normal);
    l->wo = param(b, "self_attn.o_proj.weight", TS_SHAPE(c->hidden, q), &b->normal);
    if (c->attention_bias) {
        l->bq = param(b, "self_attn.q_proj.bias", TS_SHAPE(q), &b->zeros);
        l->bk = param(b, "self_attn.k_proj.bias", TS_SHAPE(kv), &b->zeros);
        l->bv = param(b, "self_attn.v_proj.bias", TS_SHAPE(kv), &b->zeros);
        l->bo = param(b, "self_attn.o_proj.bias", TS_SHAPE(c->hidden), &b->zeros);
    }
    if (c->family == TS_MODEL_QWEN3) {
        l->q_norm = param(b, "self_attn.q_norm.weight", TS_SHAPE(c->head_dim), &b->ones);
        l->k_norm = param(b, "self_attn.k_norm.weight", TS_SHAPE(c->head_dim), &b->ones);
    }
    l->norm_m = param(b, "post_attention_layernorm.weight", TS_SHAPE(c->hidden), &b->ones);
    if (c->family == TS_MODEL_MIXTRAL) {
        l->router = param(b, "mlp.gate.weight", TS_SHAPE(c->experts, c->hidden), &b->normal);
        l->experts_in = param(b, "mlp.experts.gate_up_proj",
                              TS_SHAPE(c->experts, 2 * c->intermediate, c->hidden), &b->normal);
        l->experts_out = param(b, "mlp.experts.down_proj",
                               TS_SHAPE(c->experts, c->hidden, c->intermediate), &b->normal);
        return;
    }
    l->gate = param(b, "mlp.gate_proj.weight", TS_SHAPE(c->intermediate, c->hidden), &b->normal);
    l->up = param(b, "mlp.up_proj.weight", TS_SHAPE(c->intermediate, c->hidden), &b->normal);
    l->down = param(b, "mlp.down_proj.weight", TS_SHAPE(c->hidden, c->intermediate), &b->normal);
    if (!c->mlp_bias) return;
    l->gate_b = param(b, "mlp.gate_proj.bias", TS_SHAPE(c->intermediate), &b->zeros);
    l->up_b = param(b, "mlp.up_proj.bias", TS_SHAPE(c->intermediate), &b->zeros);
    l->down_b = param(b, "mlp.down_proj.bias", TS_SHAPE(c->hidden), &b->zeros);
}

ts_module *tsi_llama_create(ts_model *model, const ts_model_options *options)
{
    llama *l = tsi_calloc(1, sizeof *l);
    layer *layers = tsi_calloc((size_t)model->config.layers + 1, sizeof *layers);
    ts_module *root = l && layers ? ts_module_create(model->mesh, &llama_desc, l) : NULL;
    if (!root) {
        tsi_free(l);
        tsi_free(layers);
        tsi_fail_memory("a model", sizeof *l);
        return NULL;
    }
    l->model = model;
    l->layer = layers;
    ts_param_options base = TS_INIT(ts_param_options);
    base.dtype = options && options->dtype > 0 ? options->dtype : 0;
    builder b = { .root = root, .model = model, .normal = base, .ones = base, .zeros = base };
    b.normal.init = ts_init_normal;
    b.normal.init_state = &model->config.init_deviation;
    b.ones.init = ts_init_ones;
    const ts_model_config *c = &model->config;
    l->embedding = ts_module_param(root, "model.embed_tokens.weight", TS_SHAPE(c->vocab, c->hidden),
                                   &b.normal);
    for (b.layer = 0; b.layer < c->layers; b.layer++)
        layer_params(&b, &layers[b.layer]);
    l->norm = ts_module_param(root, "model.norm.weight", TS_SHAPE(c->hidden), &b.ones);
    if (!c->tied)
        l->head = ts_module_param(root, "lm_head.weight", TS_SHAPE(c->vocab, c->hidden), &b.normal);
    return root;
}
