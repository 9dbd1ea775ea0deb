/* SPDX-License-Identifier: Apache-2.0 */
/* config_rope.c - the part of a configuration that says how positions are rotated, in both
 * published spellings: "rope_parameters" holds everything; older files have "rope_theta" and, where
 * positions are scaled, "rope_scaling" with "type". */
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "model/model_config.h"
#include "tessera/json.h"

#define FACTOR_MAX 1e9
#define THETA_MAX 1e30

static const char *const types[] = { "default", "linear",   "llama3", "yarn",
                                     "dynamic", "longrope", NULL };

const char *tsi_rope_type_name(int32_t type)
{
    return types[type];
}

static ts_status read_factors(tsi_members *rope, const char *name, const ts_model_config *c,
                              double *out)
{
    const ts_json *list = tsi_member_list(rope, name);
    TSI_TRY(rope->status);
    int64_t count = list ? ts_json_count(list) : 0;
    if (count != c->head_dim / 2 || count > TS_ROPE_FACTORS_MAX)
        return TSI_FAIL(
            TS_ERR_ARG, "%s: longrope needs %s with %lld factors (at most %d), found %lld",
            rope->path, name, (long long)(c->head_dim / 2), TS_ROPE_FACTORS_MAX, (long long)count);
    for (int64_t i = 0; i < count; i++) {
        out[i] = ts_json_real(ts_json_item(list, i), 0.0);
        if (!(out[i] > 0.0))
            return TSI_FAIL(TS_ERR_ARG, "%s: %s, factor %lld is not a positive number", rope->path,
                            name, (long long)i);
    }
    return TS_OK;
}

static ts_status read_type(tsi_members *rope, int32_t *out)
{
    const char *type = tsi_member_text(rope, "rope_type", tsi_member_text(rope, "type", "default"));
    TSI_TRY(rope->status);
    for (*out = 0; types[*out]; ++*out)
        if (strcmp(type, types[*out]) == 0) return TS_OK;
    const char *near = tsi_text_nearest(type, types);
    return TSI_FAIL(TS_ERR_ARG,
                    "%s: rope_type \"%s\" is none of default, linear, llama3, yarn, dynamic, "
                    "longrope%s%s%s",
                    rope->path, type, near ? "; did you mean " : "", near ? near : "",
                    near ? "?" : "");
}

/* Lengths and factors that scalings share. */
static void read_scale(tsi_members *root, tsi_members *rope, ts_model_config *c)
{
    double given =
        tsi_member_real(root, "original_max_position_embeddings", 0, TSI_POSITIONS_MAX, 0);
    double inner = tsi_member_real(rope, "original_max_position_embeddings", 0, TSI_POSITIONS_MAX,
                                   (double)c->positions);
    c->rope_original = given > 0.0 ? given : inner;
    if (c->rope_type == TS_ROPE_DYNAMIC) c->rope_original = (double)c->positions;
    double ratio = c->rope_original > 0.0 ? (double)c->positions / c->rope_original : 1.0;
    bool derived = c->rope_type == TS_ROPE_YARN || c->rope_type == TS_ROPE_LONGROPE;
    c->rope_factor = tsi_member_real(rope, "factor", 0, FACTOR_MAX, derived ? ratio : 1.0);
    c->rope_attention = tsi_member_real(rope, "attention_factor", 0, FACTOR_MAX, 0);
    c->rope_low = tsi_member_real(rope, "low_freq_factor", 0, FACTOR_MAX, 1);
    c->rope_high = tsi_member_real(rope, "high_freq_factor", 0, FACTOR_MAX, 4);
    c->rope_beta_fast = tsi_member_real(rope, "beta_fast", 0, FACTOR_MAX, 32);
    c->rope_beta_slow = tsi_member_real(rope, "beta_slow", 0, FACTOR_MAX, 1);
    c->rope_mscale = tsi_member_real(rope, "mscale", 0, FACTOR_MAX, 0);
    c->rope_mscale_all = tsi_member_real(rope, "mscale_all_dim", 0, FACTOR_MAX, 0);
    c->rope_smooth = !tsi_member_bool(rope, "truncate", true);
}

static ts_status check_scale(const char *path, const ts_model_config *c)
{
    if (!(c->rope_factor > 0.0) || !(c->rope_original > 0.0) || !(c->rope_theta > 0.0))
        return TSI_FAIL(TS_ERR_ARG,
                        "%s: rope needs positive numbers: theta %g, factor %g, length %g", path,
                        c->rope_theta, c->rope_factor, c->rope_original);
    if (c->rope_type == TS_ROPE_LLAMA3 && !(c->rope_low > 0.0 && c->rope_high > c->rope_low))
        return TSI_FAIL(TS_ERR_ARG,
                        "%s: llama3 needs 0 < low_freq_factor < high_freq_factor, found %g and %g",
                        path, c->rope_low, c->rope_high);
    return TS_OK;
}

ts_status tsi_rope_read(tsi_members *root, ts_model_config *c)
{
    tsi_members rope = { root->path, tsi_member_object(root, "rope_parameters"), TS_OK };
    const ts_json *older = tsi_member_object(root, "rope_scaling");
    if (!rope.object) rope.object = older;
    c->rope_theta = tsi_member_real(root, "rope_theta", 0, THETA_MAX, c->rope_theta);
    c->rope_theta = tsi_member_real(&rope, "rope_theta", 0, THETA_MAX, c->rope_theta);
    double part = tsi_member_real(&rope, "partial_rotary_factor", 0, 1, 1);
    part = tsi_member_real(root, "partial_rotary_factor", 0, 1, part);
    TSI_TRY(root->status);
    TSI_TRY(read_type(&rope, &c->rope_type));
    read_scale(root, &rope, c);
    TSI_TRY(root->status);
    TSI_TRY(rope.status);
    if (part != 1.0)
        return TSI_FAIL(TS_ERR_ARG, "%s: heads that are rotated in part are not supported",
                        root->path);
    TSI_TRY(check_scale(root->path, c));
    if (c->rope_type != TS_ROPE_LONGROPE) return TS_OK;
    TSI_TRY(read_factors(&rope, "short_factor", c, c->rope_short));
    return read_factors(&rope, "long_factor", c, c->rope_long);
}
