/* SPDX-License-Identifier: Apache-2.0 */
/* part.c - parts that all families have: embedding, norm, head. */
#include "model/part.h"

#include "autograd/tape.h"
#include "base/error.h"

void *tsi_part_add(const tsi_builder *b, ts_module *above, const char *name,
                   const ts_module_desc *desc, size_t state_bytes)
{
    if (!above) return NULL;
    TSI_ASSERT(state_bytes >= sizeof(tsi_part) && desc->destroy == tsi_free);
    tsi_part *part = tsi_calloc(1, state_bytes);
    if (!part) {
        tsi_fail_memory("a part of a model", state_bytes);
        return NULL;
    }
    ts_module *m = ts_module_create(b->model->mesh, desc, part);
    *part = (tsi_part){ b->model, m };
    if (!m)
        tsi_free(part);
    else if (ts_module_add(above, name, m))
        return part;
    ts_module_destroy(m);
    return NULL;
}

void tsi_block_append(const tsi_builder *b, ts_module *block)
{
    ts_model *m = b->model;
    TSI_ASSERT(m->block_count < m->config.layers + 2);
    if (block) m->block[m->block_count++] = block;
}

/* ---- embedding ------------------------------------------------------------------------------- */

ts_tensor *tsi_embedding_rows(const tsi_embedding *e, ts_tensor *ids)
{
    return ts_embedding(tsi_model_cast(e->part.model, e->weight), ids);
}

static void embedding_forward(void *state, const ts_module_io *io)
{
    io->output[0] = tsi_embedding_rows(state, io->input[0]);
}

const ts_module_desc tsi_embedding_desc = TSI_PART_DESC("embedding", embedding_forward);

tsi_embedding *tsi_part_embedding(const tsi_builder *b, ts_module *above, const char *name,
                                  int64_t rows, const ts_module_desc *desc)
{
    tsi_embedding *e = tsi_part_add(b, above, name, desc, sizeof *e);
    if (!e) return NULL;
    e->weight = ts_module_param(e->part.module, "weight", TS_SHAPE(rows, b->model->config.hidden),
                                &b->normal);
    return e;
}

/* ---- products ------------------------------------------------------------------------------- */

bool tsi_part_is_whole(const ts_tensor *parameter)
{
    const ts_sharding *s = parameter->layout ? parameter->layout->sharding : NULL;
    bool whole = s != NULL; /* NULL: it has no storage yet */
    for (int32_t k = 0; whole && k < s->ndim; k++)
        whole = (s->place[k].kind == TS_PLACE_REPLICATE || s->mesh->size[k] == 1);
    return whole;
}

ts_tensor *tsi_part_linear(const ts_model *m, ts_tensor *x, ts_tensor *weight, ts_tensor *bias)
{
    return ts_linear(x, tsi_model_cast(m, weight), bias ? tsi_model_cast(m, bias) : NULL);
}

/* The one axis that cuts the rows between blocks, in plain chunks: "sp". Under a bias the sum and
 * its cut come after it, as the terms of it do. */
static bool scatters(const ts_model *m)
{
    int32_t cuts = 0;
    bool plain = m->residual != NULL;
    for (int32_t k = 0; plain && k < ts_sharding_ndim(m->residual); k++) {
        ts_placement p = ts_sharding_placement(m->residual, k);
        if (p.kind == TS_PLACE_REPLICATE || p.dim != 1) continue;
        plain = p.kind == TS_PLACE_SHARD && p.dim_last == 1;
        cuts++;
    }
    return plain && cuts == 1;
}

ts_tensor *tsi_part_linear_out(const ts_model *m, ts_tensor *x, ts_tensor *weight, ts_tensor *bias)
{
    if (bias || !scatters(m)) return tsi_part_linear(m, x, weight, bias);
    return ts_linear_scatter(x, tsi_model_cast(m, weight), NULL, 1);
}

void tsi_part_linear_list(const ts_model *m, ts_tensor *x, const tsi_part_list *list,
                          ts_tensor **out)
{
    ts_tensor *weight[TSI_PART_LIST] = { NULL };
    bool biased = false;
    for (int32_t i = 0; i < list->count; i++)
        biased = biased || list->bias[i];
    for (int32_t i = 0; biased && i < list->count; i++)
        out[i] = tsi_part_linear(m, x, list->weight[i], list->bias[i]);
    if (biased) return;
    if (m->compute) tsi_params_beside(list->weight, list->count, (ts_dtype)m->compute);
    for (int32_t i = 0; i < list->count; i++)
        weight[i] = tsi_model_cast(m, list->weight[i]);
    (void)ts_linear_list(x, weight, list->count, out); /* recorded: then they are NULL */
}

ts_tensor *tsi_part_heads(ts_tensor *x_BTC, int64_t count, int64_t size)
{
    ts_shape s = ts_tensor_shape(x_BTC);
    return ts_transpose(ts_reshape(x_BTC, TS_SHAPE(s.extent[0], s.extent[1], count, size)), 1, 2);
}

/* ---- norm ------------------------------------------------------------------------------------ */

typedef struct norm {
    tsi_part part;
    ts_tensor *weight, *bias;
} norm;

static void norm_forward(void *state, const ts_module_io *io)
{
    const norm *n = state;
    double epsilon = n->part.model->config.norm_epsilon;
    io->output[0] = n->bias ? ts_layer_norm(io->input[0], n->weight, n->bias, epsilon)
                            : ts_rms_norm(io->input[0], n->weight, epsilon);
}

static const ts_module_desc norm_desc = TSI_PART_DESC("norm", norm_forward);

ts_module *tsi_part_norm(const tsi_builder *b, ts_module *above, const char *name, bool has_bias)
{
    norm *n = tsi_part_add(b, above, name, &norm_desc, sizeof *n);
    if (!n) return NULL;
    ts_shape width = TS_SHAPE(b->model->config.hidden);
    n->weight = ts_module_param(n->part.module, "weight", width, &b->ones);
    if (has_bias) n->bias = ts_module_param(n->part.module, "bias", width, &b->zeros);
    return n->part.module;
}

/* One operator, where the norm is called as it is: not with hooks, nor to run again. */
ts_tensor *tsi_part_norm_of_sum(ts_module *module, ts_tensor *x, ts_tensor *r, ts_tensor **sum)
{
    const norm *n = module ? module->state : NULL;
    if (!n || n->bias || module->hooks || module->runs_again) {
        *sum = ts_add(x, r);
        return TS_CALL(module, *sum);
    }
    ts_scope scope = ts_scope_open(module->rank, module->name.text);
    ts_tensor *y = ts_add_rms_norm(x, r, n->weight, n->part.model->config.norm_epsilon, sum);
    ts_scope_pass(scope, *sum);
    return ts_scope_leave(scope, y);
}

/* ---- head ------------------------------------------------------------------------------------ */

typedef struct logits {
    tsi_part part;
    ts_tensor *weight;
} logits;

static bool classes_are_cut(const ts_tensor *weight)
{
    const ts_sharding *s = weight->layout->sharding;
    bool cut = false;
    for (int32_t k = 0; k < s->ndim; k++)
        cut = cut ||
              (tsi_placement_cuts(&s->place[k]) && s->place[k].dim == 0 && s->mesh->size[k] > 1);
    return cut;
}

/* The loss of rows whose logits never are whole; where classes are cut they are parts already. */
static ts_tensor *loss_of(const ts_model *m, ts_tensor *x, ts_tensor *weight, ts_tensor *labels)
{
    if (!weight || classes_are_cut(weight))
        return ts_cross_entropy(ts_linear(x, weight, NULL), labels);
    ts_linear_cross_entropy_options options = TS_LINEAR_CROSS_ENTROPY_OPTIONS_INIT;
    options.rows = m->loss_rows > 0 ? m->loss_rows : 0;
    options.no_gradients = tsi_tape_recording(m->rank) == NULL;
    return ts_linear_cross_entropy(x, weight, labels, &options);
}

/* With labels, a second input, the loss; else logits. */
static void logits_forward(void *state, const ts_module_io *io)
{
    const logits *l = state;
    const ts_model *m = l->part.model;
    ts_tensor *x = io->input[0], *weight = tsi_model_cast(m, l->weight);
    io->output[0] =
        io->input_count > 1 ? loss_of(m, x, weight, io->input[1]) : ts_linear(x, weight, NULL);
}

static const ts_module_desc logits_desc = TSI_PART_DESC("logits", logits_forward);

typedef struct head {
    tsi_part part;
    ts_module *norm, *logits;
} head;

static void head_forward(void *state, const ts_module_io *io)
{
    const head *h = state;
    ts_tensor *in[] = { tsi_model_whole(h->part.model, TS_CALL(h->norm, io->input[0])),
                        io->input_count > 1 ? io->input[1] : NULL };
    io->output[0] = ts_module_call(h->logits, in, in[1] ? 2 : 1);
}

static const ts_module_desc head_desc = TSI_PART_DESC("head", head_forward);

ts_module *tsi_part_head(const tsi_builder *b, const char *name, bool has_bias, ts_tensor *tied)
{
    const ts_model_config *c = &b->model->config;
    head *h = tsi_part_add(b, b->model->root, NULL, &head_desc, sizeof *h);
    if (!h) return NULL;
    h->norm = tsi_part_norm(b, h->part.module, name, has_bias);
    logits *l = tsi_part_add(b, h->part.module, "lm_head", &logits_desc, sizeof *l);
    if (!l) return NULL;
    ts_shape shape = TS_SHAPE(c->vocab, c->hidden);
    l->weight = c->tied ? tied : ts_module_param(l->part.module, "weight", shape, &b->normal);
    h->logits = l->part.module;
    return h->part.module;
}
