/* SPDX-License-Identifier: Apache-2.0 */
/* estimate.c - what a training step costs, before there was one: memory of a rank, FLOPs of a
 * token.
 *
 * Activations are counted operator by operator as the families call them: what backward needs is
 * what each operator saves, and a tensor that two of them save counts once. Legend of a layer, in
 * elements per token: C hidden, Q and K widths of queries and keys, F width of the feed-forward
 * part, E experts.
 *
 *   x, norm(x)                       2 C        rotated q, k; v; attended; the same as rows
 *   q k v o o'                   3 Q + 2 K      (Qwen3 saves q and k before their norms as well)
 *   x, norm(x)                       2 C        gate, up, silu(gate) up: 3 F, and of other
 *                                               activations the activated gate; of each expert
 *                                               that was chosen also its weighted product
 *
 * FLOPs of a token are 6 for each parameter that multiplies it, forward and backward, and
 * 12 * layers * heads * head_dim * context for attention (not halved for causality). */
#include <string.h>

#include "model/model.h"
#include "tensor/tensor.h"
#include "tessera/train.h"

typedef struct sizes {
    int64_t local_bytes, local_count; /* of this rank */
    int64_t all, expert;              /* elements */
    int64_t looked_up;                /* elements that are never multiplied */
    int64_t width;                    /* bytes of an element */
    bool tied;
} sizes;

static ts_status add_size(const char *name, ts_tensor *t, void *context)
{
    sizes *s = context;
    ts_shape shape = ts_tensor_shape(t);
    tsi_block block = tsi_array_block(t->array);
    int64_t local = tsi_block_count(&block), count = ts_shape_count(&shape);
    s->all += count;
    s->local_count += local;
    s->width = (int64_t)ts_dtype_size(ts_tensor_dtype(t));
    s->local_bytes += local * s->width;
    if (strstr(name, "experts")) s->expert += count;
    bool tokens = strstr(name, "embed_tokens") || strstr(name, "wte.");
    if (strstr(name, "wpe.") || (tokens && !s->tied)) s->looked_up += count;
    return TS_OK;
}

/* Elements per token that one layer saves on a rank; `tp` divides what the plan shards. */
static int64_t layer_elements(const ts_model_config *c, int64_t tp)
{
    int64_t q = c->heads * c->head_dim, k = c->kv_heads * c->head_dim, f = c->intermediate;
    bool silu = c->activation == TS_ACTIVATION_DEFAULT || c->activation == TS_ACTIVATION_SILU;
    int64_t inside = 3 * q + 2 * k, gated = silu ? 3 * f : 4 * f;
    switch ((ts_model_family)c->family) {
    case TS_MODEL_LLAMA:
        inside += gated;
        break;
    case TS_MODEL_QWEN3:
        inside += q + k + gated;
        break;
    case TS_MODEL_MIXTRAL:
        inside += c->experts_per_token * (gated + f) + 5 * c->experts;
        break;
    case TS_MODEL_GPT2:
        inside += 2 * f;
        break;
    }
    return 4 * c->hidden + (inside + tp - 1) / tp;
}

static int64_t axis_size(ts_mesh *mesh, const char *axis)
{
    int64_t size = ts_mesh_size(mesh, axis);
    return size > 0 ? size : 1;
}

ts_status ts_train_estimate(ts_model *model, const ts_train_shape *shape, ts_train_cost *out)
{
    if (!model || !shape || !out) return TSI_FAIL(TS_ERR_NULL, "estimate: an argument is NULL");
    const ts_model_config *c = ts_model_configuration(model);
    ts_module *root = ts_model_module(model);
    ts_mesh *mesh = ts_module_mesh(root);
    sizes s = { .tied = c->tied != 0 };
    *out = (ts_train_cost){ .struct_size = sizeof *out };
    TSI_TRY(ts_module_each(root, add_size, &s));
    int64_t dp = axis_size(mesh, "dp"), tp = axis_size(mesh, "tp");
    int64_t width = model->compute ? (int64_t)ts_dtype_size((ts_dtype)model->compute) : s.width;
    int64_t tokens = (shape->rows + dp - 1) / dp * shape->context;
    int64_t head = 2 * c->hidden + (c->vocab + tp - 1) / tp;
    int64_t active = s.all - s.looked_up;
    if (c->experts > 0) active -= s.expert - s.expert / c->experts * c->experts_per_token;
    out->flops_per_token = 6.0 * (double)active + 12.0 * (double)(c->layers * c->heads) *
                                                      (double)(c->head_dim * shape->context);
    out->parameters = s.all;
    out->weight_bytes = out->gradient_bytes = s.local_bytes;
    out->optimizer_bytes = shape->moments * s.local_count * (s.width > 4 ? s.width : 4);
    out->activation_bytes = tokens * (c->layers * layer_elements(c, tp) + head) * width;
    /* Weights in the dtype of products are saved beside those that are stored. */
    if (model->compute) out->activation_bytes += s.local_count * width;
    return TS_OK;
}
