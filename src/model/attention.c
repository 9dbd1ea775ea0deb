/* SPDX-License-Identifier: Apache-2.0 */
/* attention.c - attention as the families want it: causal, scaled, and for some layers within a
 * sliding window.
 *
 *   q [B, H, T, D]   k, v [B, G, T, D]   ->   [B, H, T, D]
 *
 * Which keys a query sees is one mask. Where a call goes on from a cache, the keys are those of all
 * tokens so far; the last query stands at the last of them. */
#include <math.h>
#include <stdio.h>

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

/* Queries see what comes before them: all of it, within a window, within their document. */
static const ts_mask *mask_of(const ts_model *m, int64_t window, int64_t length)
{
    ts_world *world = m->rank->world;
    const ts_mask *mask = NULL;
    if (window > 0 && window < length) {
        char text[64];
        (void)snprintf(text, sizeof text, "window(%lld, 0)", (long long)window - 1);
        mask = ts_mask_get(world, text);
    }
    if (m->documents) {
        const ts_mask *before = mask ? mask : ts_mask_get(world, "causal");
        mask = ts_mask_and(before, m->documents);
    }
    return mask;
}

ts_tensor *tsi_model_attention(ts_model *m, ts_tensor *const qkv[3], int64_t layer)
{
    ts_attention_options options = TS_INIT(ts_attention_options);
    ts_tensor *all[3] = { qkv[0], qkv[1], qkv[2] };
    if (!all[0] || !all[1] || tsi_model_at_border(m) != TS_OK) return NULL;
    if (m->cache && tsi_cache_join(m->cache, layer, all) != TS_OK) return NULL;
    options.mask = mask_of(m, window_of(&m->config, layer), ts_tensor_shape(all[1]).extent[2]);
    options.causal = options.mask == NULL;
    options.scale = scale_of(&m->config, layer);
    if (tsi_model_begin(m) == 0) options.algorithm = m->attention; /* else keys are not cut */
    return ts_attention(all[0], all[1], all[2], &options);
}
