/* SPDX-License-Identifier: Apache-2.0 */
/* latent.c - multi-head latent attention (DeepSeek-V3): keys and values of all heads are products
 * of one short row a token, and only a part of a head is rotated by its position.
 *
 *   x_BTC -> [q_a, norm] -> q_b -> q_BHT(N+R)          N not rotated, R rotated, V size of a value
 *   x_BTC -> kv_a -> row_BT(rank), rotated_BTR         rotated: one for all heads
 *            row -> norm -> kv_b -> k_BHTN, v_BHTV     k of a head: its own N, then the shared R
 *
 * Queries may be products of a short row as well (q_rank > 0) or of x itself. */
#include "model/part.h"

typedef struct latent {
    tsi_part part;
    int64_t layer;
    ts_tensor *wq; /* [H (N + R), C], or of the row of queries: [H (N + R), q_rank] */
    ts_tensor *wq_row, *bq_row, *q_norm; /* or NULL */
    ts_tensor *w_row, *b_row, *kv_norm;  /* [rank + R, C] */
    ts_tensor *wkv, *wo, *bo;            /* [H (N + V), rank], [C, H V] */
} latent;

/* The published norms of the rows ignore the epsilon of the configuration. */
#define ROW_EPSILON 1e-6

static ts_tensor *part_of(ts_tensor *x, int64_t begin, int64_t size)
{
    ts_slice_options options = TS_INIT(ts_slice_options);
    options.start = begin;
    options.end = begin + size;
    options.end_is_given = 1;
    return ts_slice(x, (int32_t)ts_tensor_shape(x).ndim - 1, &options);
}

/* Pairs that are neighbours are brought to where ts_rope looks for them, half a head apart. */
static ts_tensor *rotated(const ts_model *m, ts_tensor *x_BHTR, ts_tensor *table)
{
    if (m->config.rope_interleave) {
        ts_shape s = ts_tensor_shape(x_BHTR);
        ts_shape pairs = TS_SHAPE(s.extent[0], s.extent[1], s.extent[2], s.extent[3] / 2, 2);
        x_BHTR = ts_reshape(ts_transpose(ts_reshape(x_BHTR, pairs), 3, 4), s);
    }
    return ts_rope(x_BHTR, table);
}

static ts_tensor *queries(const latent *a, ts_tensor *x_BTC, ts_tensor *table)
{
    const ts_model *m = a->part.model;
    const ts_model_config *c = &m->config;
    ts_tensor *row = x_BTC;
    if (a->wq_row)
        row = ts_rms_norm(tsi_part_linear(m, x_BTC, a->wq_row, a->bq_row), a->q_norm, ROW_EPSILON);
    ts_tensor *q =
        tsi_part_heads(tsi_part_linear(m, row, a->wq, NULL), c->heads, c->plain_dim + c->head_dim);
    ts_tensor *const parts[2] = { part_of(q, 0, c->plain_dim),
                                  rotated(m, part_of(q, c->plain_dim, c->head_dim), table) };
    return ts_cat(parts, 2, 3);
}

static void latent_forward(void *state, const ts_module_io *io)
{
    const latent *a = state;
    ts_model *m = a->part.model;
    const ts_model_config *c = &m->config;
    ts_tensor *x_BTC = io->input[0];
    ts_shape s = ts_tensor_shape(x_BTC);
    int64_t batch = s.extent[0], length = s.extent[1];
    ts_tensor *table = tsi_rope_table(a->part.model, length);
    ts_tensor *both = tsi_part_linear(m, x_BTC, a->w_row, a->b_row);
    ts_tensor *row = ts_rms_norm(part_of(both, 0, c->kv_rank), a->kv_norm, ROW_EPSILON);
    ts_tensor *turned = ts_unsqueeze(part_of(both, c->kv_rank, c->head_dim), 1);
    ts_tensor *kv = tsi_part_heads(tsi_part_linear(m, row, a->wkv, NULL), c->heads,
                                   c->plain_dim + c->value_dim);
    ts_shape each = TS_SHAPE(batch, c->heads, length, c->head_dim);
    ts_tensor *const k[2] = { part_of(kv, 0, c->plain_dim),
                              ts_expand(rotated(m, turned, table), each) };
    ts_tensor *const qkv[3] = { queries(a, x_BTC, table), ts_cat(k, 2, 3),
                                part_of(kv, c->plain_dim, c->value_dim) };
    ts_tensor *o_BTHV = ts_transpose(tsi_model_attention(m, qkv, a->layer), 1, 2);
    ts_shape flat = TS_SHAPE(batch, length, c->heads * c->value_dim);
    io->output[0] = tsi_part_linear(m, ts_reshape(o_BTHV, flat), a->wo, a->bo);
}

static const ts_module_desc latent_desc = TSI_PART_DESC("latent.attention", latent_forward);

static void add_queries(const tsi_builder *b, ts_module *m, latent *a)
{
    const ts_model_config *c = &b->model->config;
    int64_t q = c->heads * (c->plain_dim + c->head_dim);
    if (c->q_rank <= 0) {
        a->wq = ts_module_param(m, "q_proj.weight", TS_SHAPE(q, c->hidden), &b->normal);
        return;
    }
    a->wq_row = ts_module_param(m, "q_a_proj.weight", TS_SHAPE(c->q_rank, c->hidden), &b->normal);
    if (c->attention_bias)
        a->bq_row = ts_module_param(m, "q_a_proj.bias", TS_SHAPE(c->q_rank), &b->zeros);
    a->q_norm = ts_module_param(m, "q_a_layernorm.weight", TS_SHAPE(c->q_rank), &b->ones);
    a->wq = ts_module_param(m, "q_b_proj.weight", TS_SHAPE(q, c->q_rank), &b->normal);
}

ts_module *tsi_part_latent(const tsi_builder *b, ts_module *above, const char *name, int64_t layer)
{
    latent *a = tsi_part_add(b, above, name, &latent_desc, sizeof *a);
    if (!a) return NULL;
    const ts_model_config *c = &b->model->config;
    ts_module *m = a->part.module;
    int64_t row = c->kv_rank + c->head_dim, v = c->heads * c->value_dim;
    int64_t kv = c->heads * (c->plain_dim + c->value_dim);
    a->layer = layer;
    add_queries(b, m, a);
    a->w_row =
        ts_module_param(m, "kv_a_proj_with_mqa.weight", TS_SHAPE(row, c->hidden), &b->normal);
    if (c->attention_bias)
        a->b_row = ts_module_param(m, "kv_a_proj_with_mqa.bias", TS_SHAPE(row), &b->zeros);
    a->kv_norm = ts_module_param(m, "kv_a_layernorm.weight", TS_SHAPE(c->kv_rank), &b->ones);
    a->wkv = ts_module_param(m, "kv_b_proj.weight", TS_SHAPE(kv, c->kv_rank), &b->normal);
    a->wo = ts_module_param(m, "o_proj.weight", TS_SHAPE(c->hidden, v), &b->normal);
    if (c->attention_bias)
        a->bo = ts_module_param(m, "o_proj.bias", TS_SHAPE(c->hidden), &b->zeros);
    return m;
}
