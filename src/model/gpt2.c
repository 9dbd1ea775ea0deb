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

#include "base/error.h"
#include "mask/mask.h"
#include "model/part.h"

static const char tp_plan[] = "*.attn.c_attn.weight: tp?:SS(1,3)\n*.attn.c_attn.bias: tp?:SS(0,3)\n"
                              "*.attn.c_proj.weight: tp?:S(0)\n*.mlp.c_fc.weight: tp?:S(1)\n"
                              "*.mlp.c_fc.bias: tp?:S(0)\n*.mlp.c_proj.weight: tp?:S(0)\n"
                              "*.wte.weight: tp?:S(0)\nlm_head.weight: tp?:S(0)\n";

const char *tsi_gpt2_plan(const char *name)
{
    if (strcmp(name, "dp") == 0) return "";
    return strcmp(name, "tp") == 0 || strcmp(name, "sp") == 0 ? tp_plan : NULL;
}

/* ---- products with a bias -------------------------------------------------------------------- */

typedef struct weights {
    ts_tensor *w, *b; /* [in, out], [out] */
} weights;

static weights declare(const tsi_builder *b, ts_module *m, const char *name, ts_shape shape)
{
    char weight[32], bias[32];
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    ts_tensor *w = ts_module_param(m, weight, shape, &b->normal);
    return (weights){ w, ts_module_param(m, bias, TS_SHAPE(shape.extent[1]), &b->zeros) };
}

static ts_tensor *product(const ts_model *m, ts_tensor *x, const weights *p)
{
    return ts_add(ts_matmul(x, tsi_model_cast(m, p->w)), tsi_model_cast(m, p->b));
}

/* ---- attention ------------------------------------------------------------------------------- */

typedef struct attention {
    tsi_part part;
    int64_t layer;
    weights qkv, out;
} attention;

static void attention_forward(void *state, const ts_module_io *io)
{
    const attention *a = state;
    ts_model *m = a->part.model;
    const ts_model_config *c = &m->config;
    ts_shape s = ts_tensor_shape(io->input[0]);
    ts_tensor *all = product(m, io->input[0], &a->qkv), *part[3];
    all = ts_reshape(all, TS_SHAPE(s.extent[0], s.extent[1], 3, c->heads, c->head_dim));
    for (int i = 0; i < 3; i++)
        part[i] = ts_transpose(ts_select(all, 2, i), 1, 2);
    ts_tensor *o = ts_transpose(tsi_model_attention(m, part, a->layer), 1, 2);
    io->output[0] = product(m, ts_reshape(o, s), &a->out);
}

static const ts_module_desc attention_desc = TSI_PART_DESC("gpt2.attention", attention_forward);

static ts_module *attention_add(const tsi_builder *b, ts_module *layer, int64_t index)
{
    attention *a = tsi_part_add(b, layer, "attn", &attention_desc, sizeof *a);
    if (!a) return NULL;
    int64_t c = b->model->config.hidden;
    a->layer = index;
    a->qkv = declare(b, a->part.module, "c_attn", TS_SHAPE(c, 3 * c));
    a->out = declare(b, a->part.module, "c_proj", TS_SHAPE(c, c));
    return a->part.module;
}

/* ---- feed-forward ---------------------------------------------------------------------------- */

typedef struct mlp {
    tsi_part part;
    weights in, out;
} mlp;

static void mlp_forward(void *state, const ts_module_io *io)
{
    const mlp *f = state;
    const ts_model *m = f->part.model;
    ts_tensor *wide = tsi_model_activate(m, product(m, io->input[0], &f->in));
    io->output[0] = product(m, wide, &f->out);
}

static const ts_module_desc mlp_desc = TSI_PART_DESC("gpt2.mlp", mlp_forward);

static ts_module *mlp_add(const tsi_builder *b, ts_module *layer)
{
    mlp *f = tsi_part_add(b, layer, "mlp", &mlp_desc, sizeof *f);
    if (!f) return NULL;
    int64_t c = b->model->config.hidden, wide = b->model->config.intermediate;
    f->in = declare(b, f->part.module, "c_fc", TS_SHAPE(c, wide));
    f->out = declare(b, f->part.module, "c_proj", TS_SHAPE(wide, c));
    return f->part.module;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

typedef struct block {
    tsi_part part;
    ts_module *norm_a, *attention, *norm_m, *mlp;
} block;

static void block_forward(void *state, const ts_module_io *io)
{
    const block *l = state;
    const ts_model *m = l->part.model;
    ts_tensor *x = io->input[0];
    ts_tensor *h = tsi_model_whole(m, TS_CALL(l->norm_a, x));
    x = ts_add(x, tsi_model_residual(m, TS_CALL(l->attention, h)));
    h = tsi_model_whole(m, TS_CALL(l->norm_m, x));
    io->output[0] = ts_add(x, tsi_model_residual(m, TS_CALL(l->mlp, h)));
}

static const ts_module_desc block_desc = TSI_PART_DESC("gpt2.block", block_forward);

static ts_module *block_add(const tsi_builder *b, int64_t index)
{
    char name[40];
    snprintf(name, sizeof name, "transformer.h.%lld", (long long)index);
    block *l = tsi_part_add(b, b->model->root, name, &block_desc, sizeof *l);
    if (!l) return NULL;
    ts_module *m = l->part.module;
    l->norm_a = tsi_part_norm(b, m, "ln_1", true);
    l->attention = attention_add(b, m, index);
    l->norm_m = tsi_part_norm(b, m, "ln_2", true);
    l->mlp = mlp_add(b, m);
    return m;
}

typedef struct inputs { /* a group: tokens and positions */
    tsi_part part;
    ts_module *tokens, *positions;
} inputs;

/* Positions begin anew in every document. */
static ts_status position_at(const int64_t *global, void *element, void *context)
{
    *(int64_t *)element = global[1] - tsi_mask_document(context, global[0], global[1]);
    return TS_OK;
}

/* [T], or [B, T] placed as the ids where rows are packed documents. */
static ts_tensor *positions_of(const ts_model *m, ts_tensor *ids)
{
    ts_shape shape = ts_tensor_shape(ids);
    ts_arange_options from = TS_INIT(ts_arange_options);
    from.start = (double)tsi_model_begin(m);
    if (!m->documents)
        return ts_arange(m->mesh, TS_DTYPE_I64, TS_SHAPE(shape.extent[1]), NULL, &from);
    union { /* a mask is read only */
        const ts_mask *given;
        void *context;
    } mask = { .given = m->documents };
    return ts_from_function(position_at, mask.context, ids->layout->sharding,
                            (ts_meta){ .shape = shape, .dtype = TS_DTYPE_I64 });
}

static void inputs_forward(void *state, const ts_module_io *io)
{
    const inputs *g = state;
    const ts_model *m = g->part.model;
    int64_t length = tsi_model_begin(m) + ts_tensor_shape(io->input[0]).extent[1];
    if (length > m->config.positions) {
        TSI_FAIL(TS_ERR_SHAPE, "gpt2: a sequence of %lld is longer than the %lld learned positions",
                 (long long)length, (long long)m->config.positions);
        return;
    }
    ts_tensor *x = tsi_model_residual(m, TS_CALL(g->tokens, io->input[0]));
    ts_tensor *place = positions_of(m, io->input[0]);
    io->output[0] = tsi_model_residual(m, ts_add(x, TS_CALL(g->positions, place)));
}

static const ts_module_desc inputs_desc = TSI_PART_DESC("gpt2.inputs", inputs_forward);

void tsi_gpt2_build(const tsi_builder *b)
{
    const ts_model_config *c = &b->model->config;
    inputs *g = tsi_part_add(b, b->model->root, NULL, &inputs_desc, sizeof *g);
    if (!g) return;
    ts_module *m = g->part.module;
    tsi_embedding *t = tsi_part_embedding(b, m, "transformer.wte", c->vocab, &tsi_embedding_desc);
    tsi_embedding *p =
        tsi_part_embedding(b, m, "transformer.wpe", c->positions, &tsi_embedding_desc);
    if (!t || !p) return;
    g->tokens = t->part.module;
    g->positions = p->part.module;
    tsi_block_append(b, m);
    for (int64_t i = 0; i < c->layers; i++)
        tsi_block_append(b, block_add(b, i));
    tsi_block_append(b, tsi_part_head(b, "transformer.ln_f", true, t->weight));
}
