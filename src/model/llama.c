/* SPDX-License-Identifier: Apache-2.0 */
/* llama.c - Llama, and what differs from it by little: Qwen3 (norms of q and k), the families with
 * experts (experts.c) and DeepSeek-V3 (its attention is in latent.c).
 *
 *   x_BTC -> norm -> q_BHTD, k_BGTD, v_BGTD -> attention -> +x -> norm -> mlp -> +x
 *   B batch, T time, C hidden, H heads, G groups of keys, D head size
 *
 * One module per block, and inside a layer for its norms, attention and mlp; parameters have the
 * published names. Nothing here knows of ranks: what moves is said by two redistributions a block.
 */
#include <stdio.h>
#include <string.h>

#include "model/part.h"

/* ---- plans: first match wins ----------------------------------------------------------------- */

static const char tp_plan[] =
    "*.embed_tokens.weight: tp?:S(0)\n"
    "*.self_attn.q_proj.*: tp?:S(0)\n*.self_attn.k_proj.*: tp?:S(0)\n"
    "*.self_attn.v_proj.*: tp?:S(0)\n*.self_attn.o_proj.weight: tp?:S(1)\n"
    "*.self_attn.q_b_proj.*: tp?:S(0)\n*.self_attn.kv_b_proj.*: tp?:S(0)\n"
    "*.mlp.gate_proj.*: tp?:S(0)\n*.mlp.up_proj.*: tp?:S(0)\n"
    "*.mlp.down_proj.weight: tp?:S(1)\n"
    "*.shared_experts.gate_proj.*: tp?:S(0)\n*.shared_experts.up_proj.*: tp?:S(0)\n"
    "*.shared_experts.down_proj.weight: tp?:S(1)\n"
    "*.mlp.experts.gate_up_proj: tp?:SS(1,2)\n*.mlp.experts.down_proj: tp?:S(2)\n"
    "lm_head.weight: tp?:S(0)\n";

const char *tsi_llama_plan(const char *name)
{
    if (strcmp(name, "dp") == 0) return "";
    return strcmp(name, "tp") == 0 || strcmp(name, "sp") == 0 ? tp_plan : NULL;
}

/* ---- attention ------------------------------------------------------------------------------- */

enum { Q, K, V };

typedef struct attention {
    tsi_part part;
    int64_t layer;
    tsi_part_list qkv;
    ts_tensor *wo, *bo;
    ts_tensor *q_norm, *k_norm; /* Qwen3 */
} attention;

/* Does a rank hold a part of each head's elements? With one head on several ranks the cut of the
 * weights goes through it. */
static bool heads_are_cut(const ts_tensor *x_BHTD)
{
    const ts_layout *layout = x_BHTD ? ts_tensor_layout(x_BHTD) : NULL;
    const ts_sharding *sharding = layout ? ts_layout_sharding(layout) : NULL;
    for (int32_t k = 0; sharding && k < ts_sharding_ndim(sharding); k++) {
        ts_placement p = ts_sharding_placement(sharding, k);
        bool cuts = p.kind != TS_PLACE_REPLICATE && p.kind < TS_PLACE_PARTIAL;
        if (cuts && p.dim_last == 3) return true;
    }
    return false;
}

/* Where it lies, since nobody else wants it; a head that is cut is put together, elsewhere. */
static ts_tensor *rotate(ts_tensor *x_BHTD, ts_tensor *table)
{
    return heads_are_cut(x_BHTD) ? ts_rope(x_BHTD, table) : ts_rope_(x_BHTD, table);
}

static void attention_forward(void *state, const ts_module_io *io)
{
    const attention *a = state;
    ts_model *m = a->part.model;
    const ts_model_config *c = &m->config;
    ts_tensor *x_BTC = io->input[0];
    ts_shape s = ts_tensor_shape(x_BTC);
    ts_tensor *table = tsi_rope_table(a->part.model, s.extent[1]);
    ts_tensor *flat[3] = { NULL }, *qkv[3];
    tsi_part_linear_list(m, x_BTC, &a->qkv, flat);
    for (int i = Q; i <= K; i++) {
        ts_tensor *norm = i == Q ? a->q_norm : a->k_norm;
        qkv[i] = tsi_part_heads(flat[i], i == Q ? c->heads : c->kv_heads, c->head_dim);
        qkv[i] = norm ? ts_rope(ts_rms_norm(qkv[i], norm, c->norm_epsilon), table)
                      : rotate(qkv[i], table);
    }
    /* Beside q and k in memory, so taken when they have been rotated. */
    qkv[V] = tsi_part_heads(flat[V], c->kv_heads, c->head_dim);
    ts_tensor *o_BTHD = ts_transpose(tsi_model_attention(m, qkv, a->layer), 1, 2);
    ts_shape whole = TS_SHAPE(s.extent[0], s.extent[1], c->heads * c->head_dim);
    io->output[0] = tsi_part_linear_out(m, ts_reshape(o_BTHD, whole), a->wo, a->bo);
}

static const ts_module_desc attention_desc = TSI_PART_DESC("llama.attention", attention_forward);

static ts_module *attention_add(const tsi_builder *b, ts_module *layer, int64_t index)
{
    attention *a = tsi_part_add(b, layer, "self_attn", &attention_desc, sizeof *a);
    if (!a) return NULL;
    const ts_model_config *c = &b->model->config;
    ts_module *m = a->part.module;
    int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    a->layer = index;
    a->qkv.count = 3;
    a->qkv.weight[Q] = ts_module_param(m, "q_proj.weight", TS_SHAPE(q, c->hidden), &b->normal);
    a->qkv.weight[K] = ts_module_param(m, "k_proj.weight", TS_SHAPE(kv, c->hidden), &b->normal);
    a->qkv.weight[V] = ts_module_param(m, "v_proj.weight", TS_SHAPE(kv, c->hidden), &b->normal);
    a->wo = ts_module_param(m, "o_proj.weight", TS_SHAPE(c->hidden, q), &b->normal);
    if (c->attention_bias) {
        a->qkv.bias[Q] = ts_module_param(m, "q_proj.bias", TS_SHAPE(q), &b->zeros);
        a->qkv.bias[K] = ts_module_param(m, "k_proj.bias", TS_SHAPE(kv), &b->zeros);
        a->qkv.bias[V] = ts_module_param(m, "v_proj.bias", TS_SHAPE(kv), &b->zeros);
        a->bo = ts_module_param(m, "o_proj.bias", TS_SHAPE(c->hidden), &b->zeros);
    }
    if (c->family == TS_MODEL_QWEN3 || c->family == TS_MODEL_QWEN3_MOE) {
        a->q_norm = ts_module_param(m, "q_norm.weight", TS_SHAPE(c->head_dim), &b->ones);
        a->k_norm = ts_module_param(m, "k_norm.weight", TS_SHAPE(c->head_dim), &b->ones);
    }
    return m;
}

/* ---- feed-forward --------------------------------------------------------------------------- */

typedef struct mlp {
    tsi_part part;
    tsi_part_list gate_up;
    ts_tensor *down, *down_b;
    bool is_last; /* of its block: else its result is added to others that are sums too */
} mlp;

static ts_tensor *mlp_inner(const mlp *f, ts_tensor *x)
{
    ts_tensor *wide[2] = { NULL };
    tsi_part_linear_list(f->part.model, x, &f->gate_up, wide);
    return tsi_model_gate(f->part.model, wide[0], wide[1]);
}

static void mlp_forward(void *state, const ts_module_io *io)
{
    const mlp *f = state;
    const ts_model *m = f->part.model;
    ts_tensor *x = mlp_inner(f, io->input[0]);
    io->output[0] = f->is_last ? tsi_part_linear_out(m, x, f->down, f->down_b)
                               : tsi_part_linear(m, x, f->down, f->down_b);
}

static const ts_module_desc mlp_desc = TSI_PART_DESC("llama.mlp", mlp_forward);

ts_module *tsi_part_mlp(const tsi_builder *b, ts_module *above, const char *name, int64_t width)
{
    mlp *f = tsi_part_add(b, above, name, &mlp_desc, sizeof *f);
    if (!f) return NULL;
    const ts_model_config *c = &b->model->config;
    ts_module *m = f->part.module;
    ts_shape wide = TS_SHAPE(width, c->hidden), back = TS_SHAPE(c->hidden, width);
    f->is_last = strcmp(name, "mlp") == 0; /* not the experts' shared one */
    f->gate_up.count = 2;
    f->gate_up.weight[0] = ts_module_param(m, "gate_proj.weight", wide, &b->normal);
    f->gate_up.weight[1] = ts_module_param(m, "up_proj.weight", wide, &b->normal);
    f->down = ts_module_param(m, "down_proj.weight", back, &b->normal);
    if (!c->mlp_bias) return m;
    f->gate_up.bias[0] = ts_module_param(m, "gate_proj.bias", TS_SHAPE(width), &b->zeros);
    f->gate_up.bias[1] = ts_module_param(m, "up_proj.bias", TS_SHAPE(width), &b->zeros);
    f->down_b = ts_module_param(m, "down_proj.bias", TS_SHAPE(c->hidden), &b->zeros);
    return m;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

typedef struct block {
    tsi_part part;
    ts_module *norm_a, *attention, *norm_m, *mlp;
    bool attention_gathers, mlp_gathers; /* its first products are one call, without biases */
    bool mlp_adds;                       /* dense, without biases */
} block;

/* Rows before the first products of a part. Where these are one call that gathers for itself, they
 * may stay cut, and what it saves is cut. */
static ts_tensor *gathered(const ts_model *m, ts_tensor *x, bool gathers)
{
    return m->saves_cut && gathers ? x : tsi_model_whole(m, x);
}

/* x + the feed-forward of h. Its last product adds x itself where it computes in wider numbers than
 * it writes, so that the sum is rounded once, its weight is whole, so that its result is no term of
 * a sum over ranks, and it is called as it is: not with hooks, nor to run again. */
static ts_tensor *with_mlp(const block *l, ts_tensor *x, ts_tensor *h)
{
    const ts_model *m = l->part.model;
    const mlp *f = l->mlp ? l->mlp->state : NULL;
    bool narrow = m->compute == TS_DTYPE_BF16 || m->compute == TS_DTYPE_F16;
    if (!l->mlp_adds || !narrow || !f || l->mlp->hooks || l->mlp->runs_again ||
        !tsi_part_is_whole(f->down))
        return ts_add(x, tsi_model_residual(m, TS_CALL(l->mlp, h)));
    ts_scope scope = ts_scope_open(l->mlp->rank, l->mlp->name.text);
    ts_tensor *y = ts_linear(mlp_inner(f, h), tsi_model_cast(m, f->down), x);
    return tsi_model_residual(m, ts_scope_leave(scope, y));
}

static void block_forward(void *state, const ts_module_io *io)
{
    const block *l = state;
    const ts_model *m = l->part.model;
    ts_tensor *x = io->input[0];
    ts_tensor *h = gathered(m, TS_CALL(l->norm_a, x), l->attention_gathers);
    ts_tensor *a = tsi_model_residual(m, TS_CALL(l->attention, h));
    h = gathered(m, tsi_part_norm_of_sum(l->norm_m, x, a, &x), l->mlp_gathers);
    io->output[0] = with_mlp(l, x, h);
}

static const ts_module_desc block_desc = TSI_PART_DESC("llama.block", block_forward);

static ts_module *block_add(const tsi_builder *b, int64_t index)
{
    char name[40];
    snprintf(name, sizeof name, "model.layers.%lld", (long long)index);
    block *l = tsi_part_add(b, b->model->root, name, &block_desc, sizeof *l);
    if (!l) return NULL;
    ts_module *m = l->part.module;
    const ts_model_config *c = &b->model->config;
    l->norm_a = tsi_part_norm(b, m, "input_layernorm", false);
    l->attention =
        c->kv_rank > 0 ? tsi_part_latent(b, m, "self_attn", index) : attention_add(b, m, index);
    l->attention_gathers = c->kv_rank == 0 && !c->attention_bias;
    l->mlp_gathers = l->mlp_adds = !tsi_model_has_experts(c, index) && !c->mlp_bias;
    l->norm_m = tsi_part_norm(b, m, "post_attention_layernorm", false);
    l->mlp = tsi_model_has_experts(c, index) ? tsi_part_experts(b, m, "mlp", index)
                                             : tsi_part_mlp(b, m, "mlp", c->intermediate);
    return m;
}

static void tokens_forward(void *state, const ts_module_io *io)
{
    const tsi_embedding *e = state;
    io->output[0] = tsi_model_residual(e->part.model, tsi_embedding_rows(e, io->input[0]));
}

static const ts_module_desc tokens_desc = TSI_PART_DESC("llama.tokens", tokens_forward);

void tsi_llama_build(const tsi_builder *b)
{
    const ts_model_config *c = &b->model->config;
    tsi_embedding *tokens =
        tsi_part_embedding(b, b->model->root, "model.embed_tokens", c->vocab, &tokens_desc);
    tsi_block_append(b, tokens ? tokens->part.module : NULL);
    for (int64_t i = 0; i < c->layers; i++)
        tsi_block_append(b, block_add(b, i));
    tsi_block_append(b, tsi_part_head(b, "model.norm", false, tokens ? tokens->weight : NULL));
}
