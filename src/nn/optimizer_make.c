/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer_make.c - optimisers of a tree: their numbers, a slot for each parameter that is
 * trained.
 *
 * INV: moments lie as their parameters do, on every rank. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "nn/optimizer.h"

enum { TURNS = 5, TURNS_MAX = 100 }; /* rounds of Newton-Schulz */

/* Embeddings and heads, as models of this library and of others call them. */
static const char usual_adamw[] = "*embed* *lm_head* *wte* *wpe*";
#define BETWEEN ", \t\n" /* patterns */

static tsi_array *zeros_like(ts_tensor *param, int32_t moments)
{
    ts_shape shape = tsi_array_shape(param->array);
    ts_dtype dtype = param->dtype == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32;
    if (moments && dtype == TS_DTYPE_F32) dtype = (ts_dtype)moments;
    tsi_array *array = tsi_array_create_tagged(param->rank, dtype, &shape, TSI_TAG_OPTIMIZER);
    unsigned char zero[16] = { 0 };
    if (array && tsi_array_fill(array, zero) == TS_OK) return array;
    tsi_array_release(array);
    return NULL;
}

static bool fits_some(const char *patterns, const char *name)
{
    for (const char *at = patterns; *at;) {
        size_t length = strcspn(at, BETWEEN);
        if (length > 0 && tsi_text_fits(at, length, name)) return true;
        at += length + (at[length] != '\0');
    }
    return false;
}

/* Muon is of matrices, also of several in one tensor; and not of those that groups or patterns say.
 */
static int32_t rule_of(const ts_optimizer *o, const char *name, const ts_tensor *param)
{
    const tsi_param *body = tsi_param_of(param);
    bool matrix = param->layout->shape.ndim >= 2 && !(body && body->adamw);
    if (o->rule != TSI_RULE_MUON) return o->rule;
    return matrix && !fits_some(o->patterns, name) ? TSI_RULE_MUON : TSI_RULE_ADAMW;
}

static bool is_alike(const tsi_param_group *a, const tsi_param_group *b)
{
    return a->rate == b->rate && a->decay == b->decay && a->adjust == b->adjust &&
           a->rule == b->rule;
}

/* The group of parameters that are trained like this one. */
static ts_status find_group(ts_optimizer *o, const char *name, const ts_tensor *param, int32_t *out)
{
    const tsi_param *body = tsi_param_of(param);
    int32_t rule = rule_of(o, name, param);
    const tsi_param_group wanted = {
        .rate = body ? body->rate : 1.0,
        .decay = body && !isnan(body->decay) ? body->decay : o->weight_decay,
        .adjust = rule == TSI_RULE_MUON ? tsi_muon_adjust(o, &param->layout->shape) : 1.0,
        .rule = rule,
    };
    int64_t i = 0;
    while (i < o->group_count && !is_alike(&o->group[i], &wanted))
        i++;
    *out = (int32_t)i;
    if (i < o->group_count) return TS_OK;
    TSI_TRY(tsi_room(&o->group, o->group_count, &o->group_capacity, sizeof *o->group,
                     "the groups of an optimizer"));
    o->group[o->group_count++] = wanted;
    return TS_OK;
}

static ts_status add_param(const char *name, ts_tensor *param, void *context)
{
    ts_optimizer *o = context;
    int32_t of = 0;
    if (!tsi_leaf_of(param)) return TS_OK; /* frozen */
    TSI_TRY(find_group(o, name, param, &of));
    TSI_TRY(
        tsi_room(&o->slot, o->count, &o->capacity, sizeof *o->slot, "the state of an optimizer"));
    tsi_trained *s = &o->slot[o->count++];
    *s = (tsi_trained){ .param = tsi_tensor_retain(param),
                        .name = tsi_strdup(name),
                        .layout = ts_layout_retain(param->layout),
                        .group = of };
    if (!s->name) return tsi_fail_memory("the name of a parameter", strlen(name) + 1);
    bool second = o->group[of].rule == TSI_RULE_ADAMW, first = second || o->momentum != 0.0;
    int32_t moments = second ? o->moments : 0;
    if (first) s->first = zeros_like(param, moments);
    if (second) s->second = zeros_like(param, moments);
    return (s->first || !first) && (s->second || !second) ? TS_OK : ts_rank_status(o->rank);
}

static ts_status check_muon(const ts_optimizer *o)
{
    if (!(o->momentum >= 0.0 && o->momentum < 1.0))
        return TSI_FAIL(TS_ERR_ARG,
                        "muon: the momentum is %g; it is a number from 0 on, and below 1",
                        o->momentum);
    if (o->turns < 1 || o->turns > TURNS_MAX)
        return TSI_FAIL(TS_ERR_ARG, "muon: %d steps of Newton-Schulz; there are 1 to %d", o->turns,
                        TURNS_MAX);
    if (o->adjust != TS_MUON_ADJUST_RMS && o->adjust != TS_MUON_ADJUST_ORIGINAL)
        return TSI_FAIL(TS_ERR_ARG, "muon: there is no way %d to adjust rates", o->adjust);
    if (o->product && o->product != TS_DTYPE_F32 && o->product != TS_DTYPE_BF16)
        return TSI_FAIL(TS_ERR_DTYPE, "muon: products are of f32 or bf16, not of %s",
                        ts_dtype_name((ts_dtype)o->product));
    return TS_OK;
}

ts_status tsi_optimizer_check(const ts_optimizer *o)
{
    const tsi_sgd_step sgd = { o->lr, o->momentum, o->weight_decay, 1.0, 0, 0 };
    const tsi_adamw_step adamw = { .lr = o->lr,
                                   .beta1 = o->beta1,
                                   .beta2 = o->beta2,
                                   .epsilon = o->epsilon,
                                   .weight_decay = o->weight_decay };
    switch ((tsi_update_rule)o->rule) {
    case TSI_RULE_ADAMW:
        return tsi_adamw_check("adamw", &adamw);
    case TSI_RULE_SGD:
        return tsi_sgd_check("sgd", &sgd);
    case TSI_RULE_MUON:
        TSI_TRY(tsi_adamw_check("muon", &adamw));
        return check_muon(o);
    }
    return TSI_FAIL(TS_ERR_INTERNAL, "optimizer: there is no rule %d", o->rule);
}

static ts_optimizer *optimizer_make(ts_module *root, ts_optimizer proto)
{
    if (!root || tsi_rank_enter(root->rank) != TS_OK) return NULL;
    if (tsi_optimizer_check(&proto) != TS_OK) return NULL;
    ts_optimizer *o = tsi_calloc(1, sizeof *o);
    if (!o) {
        tsi_fail_memory("an optimizer", sizeof *o);
        return NULL;
    }
    *o = proto;
    o->rank = root->rank;
    ts_status status = ts_module_each(root, add_param, o);
    o->patterns = NULL;
    if (status == TS_OK && o->rule == TSI_RULE_MUON) status = tsi_muon_plan(o);
    if (status == TS_OK) return o;
    ts_optimizer_destroy(o);
    return NULL;
}

/* In options of zeros a 0 is the default. */
static double or_default(double value, int32_t exact, double otherwise)
{
    return value != 0.0 || exact ? value : otherwise;
}

static bool moments_known(const ts_module *root, const char *name, int32_t moments)
{
    if (!moments || moments == TS_DTYPE_F32 || moments == TS_DTYPE_BF16) return true;
    if (root && tsi_rank_enter(root->rank) == TS_OK)
        TSI_FAIL(TS_ERR_DTYPE, "%s: moments are f32 or bf16, not %s", name,
                 ts_dtype_name((ts_dtype)moments));
    return false;
}

ts_optimizer *ts_adamw_create(ts_module *root, const ts_adamw_options *options)
{
    ts_adamw_options o = TS_INIT(ts_adamw_options);
    if (options)
        memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
    if (!moments_known(root, "adamw", o.moments)) return NULL;
    return optimizer_make(root, (ts_optimizer){ .lr = or_default(o.lr, o.exact, 1e-3),
                                                .beta1 = or_default(o.beta1, o.exact, 0.9),
                                                .beta2 = or_default(o.beta2, o.exact, 0.95),
                                                .epsilon = or_default(o.epsilon, o.exact, 1e-8),
                                                .weight_decay = o.weight_decay,
                                                .moments = o.moments });
}

ts_optimizer *ts_sgd_create(ts_module *root, const ts_sgd_options *options)
{
    ts_sgd_options o = TS_INIT(ts_sgd_options);
    if (options)
        memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
    return optimizer_make(root, (ts_optimizer){ .rule = TSI_RULE_SGD,
                                                .nesterov = o.nesterov,
                                                .lr = or_default(o.lr, o.exact, 1e-3),
                                                .momentum = o.momentum,
                                                .weight_decay = o.weight_decay });
}

/* ---- Muon ------------------------------------------------------------------------------------ */

static ts_status match_none(const tsi_match *match, void *context)
{
    (void)match, (void)context;
    return TS_OK;
}

/* Every pattern is that of a parameter. */
static ts_status check_patterns(ts_module *root, const char *patterns)
{
    tsi_text lines = { 0 };
    for (const char *at = patterns; *at;) {
        size_t length = strcspn(at, BETWEEN);
        if (length > 0) tsi_text_printf(&lines, "%.*s: adamw\n", (int)length, at);
        at += length + (at[length] != '\0');
    }
    if (lines.length == 0) return TS_OK;
    char *text = tsi_text_take(&lines);
    if (!text) return tsi_fail_memory("the patterns of muon", strlen(patterns));
    ts_status status = tsi_module_match(root, &(tsi_match_list){ "muon", text, match_none, NULL });
    tsi_free(text);
    return status;
}

ts_optimizer *ts_muon_create(ts_module *root, const ts_muon_options *options)
{
    ts_muon_options o = TS_INIT(ts_muon_options);
    if (options)
        memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
    if (!root || tsi_rank_enter(root->rank) != TS_OK) return NULL;
    if (!moments_known(root, "muon", o.moments)) return NULL;
    ts_optimizer made = { .rule = TSI_RULE_MUON,
                          .lr = or_default(o.lr, o.exact, 1e-3),
                          .momentum = or_default(o.momentum, o.exact, 0.95),
                          .weight_decay = o.weight_decay,
                          .beta1 = or_default(o.beta1, o.exact, 0.9),
                          .beta2 = or_default(o.beta2, o.exact, 0.95),
                          .epsilon = or_default(o.epsilon, o.exact, 1e-8),
                          .turns = o.steps ? o.steps : TURNS,
                          .adjust = o.adjust,
                          .product = o.dtype,
                          .moments = o.moments,
                          .patterns = o.adamw ? o.adamw : usual_adamw };
    if (o.adamw && check_patterns(root, o.adamw) != TS_OK) return NULL;
    return optimizer_make(root, made);
}

void ts_optimizer_destroy(ts_optimizer *o)
{
    if (!o) return;
    for (int64_t i = 0; i < o->count; i++) {
        tsi_tensor_release(o->slot[i].param);
        tsi_array_release(o->slot[i].first);
        tsi_array_release(o->slot[i].second);
        tsi_places_release(&o->slot[i].places);
        ts_layout_release(o->slot[i].layout);
        if (o->slot[i].owner) ts_sharding_release(o->slot[i].owner);
        tsi_free(o->slot[i].name);
    }
    tsi_control_destroy(o->control);
    tsi_muon_release(o);
    for (int64_t i = 0; i < o->group_count; i++)
        tsi_free(o->group[i].reserved_list);
    tsi_free(o->group);
    tsi_free(o->slot);
    tsi_free(o->item);
    tsi_free(o);
}
