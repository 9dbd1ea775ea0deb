/* SPDX-License-Identifier: Apache-2.0 */
/* config_rope.c - the part of a configuration that says how positions are rotated, in both
 * published spellings: "rope_parameters" holds everything; older files have "rope_theta" and, where
 * positions are scaled, "rope_scaling" with "type". */
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "model/config.h"

static const char *const types[] = { "default", "linear",   "llama3", "yarn",
                                     "dynamic", "longrope", NULL };

const char *tsi_rope_type_name(int32_t type)
{
    return types[type];
}

static double real(const tsi_json *object, const char *name, double otherwise)
{
    const tsi_json *value = tsi_json_member(object, name);
    return tsi_json_kind_of(value) == TSI_JSON_NULL ? otherwise : tsi_json_real(value, otherwise);
}

static ts_status read_factors(const char *path, const tsi_json *rope, const char *name,
                              const ts_model_config *c, double *out)
{
    const tsi_json *list = tsi_json_member(rope, name);
    int64_t count = tsi_json_count(list);
    if (tsi_json_kind_of(list) != TSI_JSON_LIST || count != c->head_dim / 2 ||
        count > TS_ROPE_FACTORS_MAX)
        return TSI_FAIL(TS_ERR_ARG,
                        "%s: longrope needs %s with %lld factors (at most %d), found %lld", path,
                        name, (long long)(c->head_dim / 2), TS_ROPE_FACTORS_MAX, (long long)count);
    for (int64_t i = 0; i < count; i++) {
        out[i] = tsi_json_real(tsi_json_item(list, i), 0.0);
        if (!(out[i] > 0.0))
            return TSI_FAIL(TS_ERR_ARG, "%s: %s, factor %lld is not a positive number", path, name,
                            (long long)i);
    }
    return TS_OK;
}

static ts_status read_type(const char *path, const tsi_json *rope, int32_t *out)
{
    const char *type = tsi_json_text(tsi_json_member(rope, "rope_type"),
                                     tsi_json_text(tsi_json_member(rope, "type"), "default"));
    for (*out = 0; types[*out]; ++*out)
        if (strcmp(type, types[*out]) == 0) return TS_OK;
    const char *near = tsi_text_nearest(type, types);
    return TSI_FAIL(TS_ERR_ARG,
                    "%s: rope_type \"%s\" is none of default, linear, llama3, yarn, dynamic, "
                    "longrope%s%s%s",
                    path, type, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

/* Lengths and factors that scalings share. */
static void read_scale(const tsi_json *root, const tsi_json *rope, ts_model_config *c)
{
    double given = real(root, "original_max_position_embeddings", 0.0);
    c->rope_original =
        given > 0.0 ? given : real(rope, "original_max_position_embeddings", (double)c->positions);
    if (c->rope_type == TS_ROPE_DYNAMIC) c->rope_original = (double)c->positions;
    double ratio = c->rope_original > 0.0 ? (double)c->positions / c->rope_original : 1.0;
    bool derived = c->rope_type == TS_ROPE_YARN || c->rope_type == TS_ROPE_LONGROPE;
    c->rope_factor = real(rope, "factor", derived ? ratio : 1.0);
    c->rope_attention = real(rope, "attention_factor", 0.0);
}

ts_status tsi_rope_read(const char *path, const tsi_json *root, ts_model_config *c)
{
    const tsi_json *rope = tsi_json_member(root, "rope_parameters");
    if (tsi_json_kind_of(rope) != TSI_JSON_OBJECT) rope = tsi_json_member(root, "rope_scaling");
    c->rope_theta = real(root, "rope_theta", c->rope_theta);
    if (real(root, "partial_rotary_factor", real(rope, "partial_rotary_factor", 1.0)) != 1.0)
        return TSI_FAIL(TS_ERR_ARG, "%s: heads that are rotated in part are not supported", path);
    c->rope_theta = real(rope, "rope_theta", c->rope_theta);
    TSI_TRY(read_type(path, rope, &c->rope_type));
    read_scale(root, rope, c);
    if (!(c->rope_factor > 0.0) || !(c->rope_original > 0.0) || !(c->rope_theta > 0.0))
        return TSI_FAIL(TS_ERR_ARG,
                        "%s: rope needs positive numbers: theta %g, factor %g, length %g", path,
                        c->rope_theta, c->rope_factor, c->rope_original);
    c->rope_low = real(rope, "low_freq_factor", 1.0);
    c->rope_high = real(rope, "high_freq_factor", 4.0);
    c->rope_beta_fast = real(rope, "beta_fast", 32.0);
    c->rope_beta_slow = real(rope, "beta_slow", 1.0);
    c->rope_mscale = real(rope, "mscale", 0.0);
    c->rope_mscale_all = real(rope, "mscale_all_dim", 0.0);
    c->rope_smooth = !tsi_json_bool(tsi_json_member(rope, "truncate"), true);
    if (c->rope_type != TS_ROPE_LONGROPE) return TS_OK;
    TSI_TRY(read_factors(path, rope, "short_factor", c, c->rope_short));
    return read_factors(path, rope, "long_factor", c, c->rope_long);
}
