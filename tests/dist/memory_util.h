/* SPDX-License-Identifier: Apache-2.0 */
/* memory_util.h - the small models and the tokens of tests that count memory. */
#ifndef TESTS_DIST_MEMORY_UTIL_H
#define TESTS_DIST_MEMORY_UTIL_H

#include "tessera/tessera.h"

static inline ts_model_config memory_config(int32_t family, int64_t layers, int32_t tied)
{
    ts_model_config config = { .struct_size = sizeof config,
                               .family = family,
                               .vocab = 260,
                               .hidden = 48,
                               .intermediate = 128,
                               .layers = layers,
                               .heads = 4,
                               .kv_heads = family == TS_MODEL_GPT2 ? 4 : 2,
                               .head_dim = 12,
                               .positions = 64,
                               .tied = tied };
    if (family == TS_MODEL_MIXTRAL) config.experts = 4;
    if (family == TS_MODEL_MIXTRAL) config.experts_per_token = 2;
    return config;
}

static inline ts_status memory_token(const int64_t *global, void *element, void *context)
{
    (void)context;
    *(int64_t *)element = (7 * global[0] + 3 * global[1] * global[1]) % 260;
    return TS_OK;
}

#endif
