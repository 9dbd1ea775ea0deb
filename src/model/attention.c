/* SPDX-License-Identifier: Apache-2.0 */
/* attention.c - attention as the families want it: causal, scaled, and for some layers within a
 * sliding window.
 *
 *   q [B, H, T, D]   k, v [B, G, T, D]   ->   [B, H, T, D]
 *
 * A window shorter than the sequence is computed with a mask, from plain operators. */
#include <math.h>

#include "model/model.h"

static int64_t window_of(const ts_model_config *c, int64_t layer)
{
    if (c->window <= 0 || layer >= 64 * TS_WINDOW_WORDS) return 0;
    return (c->window_layers[layer / 64] >> (layer % 64)) & 1 ? c->window : 0;
}

static double scale_of(const ts_model_config *c, int64_t layer)
{
    double scale = c->attention_unscaled ? 1.0 : 1.0 / sqrt((double)(c->plain_dim + c->head_dim));
    if (c->kv_rank > 0) scale *= tsi_rope_sharpening_of_scores(c);
    return c->attention_by_layer ? scale / (double)(layer + 1) : scale;
}

/* 0 where query i sees key j: i - window < j <= i. */
static ts_status mask_at(const int64_t *global, void *element, void *context)
{
    int64_t back = global[0] - global[1];
    *(float *)element = back >= 0 && back < *(const int64_t *)context ? 0.0F : -1e30F;
    return TS_OK;
}

static ts_tensor *windowed(const ts_model *m, ts_tensor *const qkv[3], int64_t window, double scale)
{
    int64_t length = ts_tensor_shape(qkv[0]).extent[2];
    int64_t copies = m->config.heads / m->config.kv_heads;
    ts_tensor *k = ts_repeat_interleave(qkv[1], copies, 1);
    ts_tensor *v = ts_repeat_interleave(qkv[2], copies, 1);
    ts_dtype dtype = ts_tensor_dtype(qkv[0]);
    ts_meta meta = { .shape = TS_SHAPE(length, length), .dtype = TS_DTYPE_F32 };
    const ts_sharding *whole = tsi_sharding_replicated(m->mesh->desc);
    ts_tensor *mask = whole ? ts_from_function(mask_at, &window, whole, meta) : NULL;
    ts_sharding_release(whole);
    ts_tensor *scores = ts_mul_scalar(ts_matmul(qkv[0], ts_transpose(k, 2, 3)), scale);
    ts_tensor *seen = ts_softmax(ts_add(scores, mask), -1);
    return ts_matmul(ts_cast(seen, dtype), v);
}

ts_tensor *tsi_model_attention(const ts_model *m, ts_tensor *const qkv[3], int64_t layer)
{
    int64_t window = window_of(&m->config, layer);
    ts_attention_options options = TS_INIT(ts_attention_options);
    options.causal = 1;
    options.scale = scale_of(&m->config, layer);
    if (window > 0 && window < ts_tensor_shape(qkv[0]).extent[2])
        return windowed(m, qkv, window, options.scale);
    return ts_attention(qkv[0], qkv[1], qkv[2], &options);
}
