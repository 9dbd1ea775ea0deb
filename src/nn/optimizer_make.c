/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer_make.c - optimisers of a tree: their numbers, a slot for each parameter that is
 * trained.
 *
 * INV: moments lie as their parameters do, on every rank. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "nn/optimizer.h"

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

/* The group of parameters that are trained like this one. */
static ts_status find_group(ts_optimizer *o, const ts_tensor *param, int32_t *out)
{
    const tsi_param *body = tsi_param_of(param);
    double rate = body ? body->rate : 1.0;
    double decay = body && !isnan(body->decay) ? body->decay : o->weight_decay;
    int64_t i = 0;
    while (i < o->group_count && (o->group[i].rate != rate || o->group[i].decay != decay))
        i++;
    *out = (int32_t)i;
    if (i < o->group_count) return TS_OK;
    TSI_TRY(tsi_room(&o->group, o->group_count, &o->group_capacity, sizeof *o->group,
                     "the groups of an optimizer"));
    o->group[o->group_count++] = (tsi_param_group){ .rate = rate, .decay = decay };
    return TS_OK;
}

static ts_status add_param(const char *name, ts_tensor *param, void *context)
{
    ts_optimizer *o = context;
    int32_t of = 0;
    if (!tsi_leaf_of(param)) return TS_OK; /* frozen */
    TSI_TRY(find_group(o, param, &of));
    TSI_TRY(
        tsi_room(&o->slot, o->count, &o->capacity, sizeof *o->slot, "the state of an optimizer"));
    tsi_trained *s = &o->slot[o->count++];
    *s = (tsi_trained){ .param = tsi_tensor_retain(param),
                        .name = tsi_strdup(name),
                        .layout = ts_layout_retain(param->layout),
                        .group = of };
    if (!s->name) return tsi_fail_memory("the name of a parameter", strlen(name) + 1);
    bool first = !o->is_sgd || o->momentum != 0.0, second = !o->is_sgd;
    if (first) s->first = zeros_like(param, o->moments);
    if (second) s->second = zeros_like(param, o->moments);
    return (s->first || !first) && (s->second || !second) ? TS_OK : ts_rank_status(o->rank);
}

ts_status tsi_optimizer_check(const ts_optimizer *o)
{
    const tsi_sgd_step sgd = { o->lr, o->momentum, o->weight_decay, 1.0, 0, 0 };
    const tsi_adamw_step adamw = { .lr = o->lr,
                                   .beta1 = o->beta1,
                                   .beta2 = o->beta2,
                                   .epsilon = o->epsilon,
                                   .weight_decay = o->weight_decay };
    return o->is_sgd ? tsi_sgd_check("sgd", &sgd) : tsi_adamw_check("adamw", &adamw);
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
    if (ts_module_each(root, add_param, o) == TS_OK) return o;
    ts_optimizer_destroy(o);
    return NULL;
}

/* In options of zeros a 0 is the default. */
static double or_default(double value, int32_t exact, double otherwise)
{
    return value != 0.0 || exact ? value : otherwise;
}

ts_optimizer *ts_adamw_create(ts_module *root, const ts_adamw_options *options)
{
    ts_adamw_options o = TS_INIT(ts_adamw_options);
    if (options)
        memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
    if (o.moments && o.moments != TS_DTYPE_F32 && o.moments != TS_DTYPE_BF16) {
        if (root && tsi_rank_enter(root->rank) == TS_OK)
            TSI_FAIL(TS_ERR_DTYPE, "adamw: moments are f32 or bf16, not %s",
                     ts_dtype_name((ts_dtype)o.moments));
        return NULL;
    }
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
    return optimizer_make(root, (ts_optimizer){ .is_sgd = 1,
                                                .nesterov = o.nesterov,
                                                .lr = or_default(o.lr, o.exact, 1e-3),
                                                .momentum = o.momentum,
                                                .weight_decay = o.weight_decay });
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
        tsi_free(o->slot[i].name);
    }
    tsi_control_destroy(o->control);
    for (int64_t i = 0; i < o->group_count; i++)
        tsi_free(o->group[i].reserved_list);
    tsi_free(o->group);
    tsi_free(o->slot);
    tsi_free(o->item);
    tsi_free(o);
}
