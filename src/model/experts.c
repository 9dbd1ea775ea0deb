/* SPDX-License-Identifier: Apache-2.0 */
/* experts.c - a feed-forward that is a choice: a router sends every token to a few of many experts.
 *
 *   x_BTC -> scores_BTE -> which_BTK, weight_BTK -> sum over K of weight * expert(x)
 *   E experts, K chosen for each token, F width of one
 *
 * Scores are probabilities (Mixtral, Qwen3-MoE) or each expert's own sigmoid (DeepSeek-V3), which
 * chooses by score plus a bias that has no gradient, and among the best groups of experts alone.
 * Weights come from the scores without the bias. Beside the chosen experts there may be shared ones
 * that see every token.
 *
 * INV: no row is computed by an expert that was not chosen for it; the sum over K is in the order
 * of the choice, with groups of experts in that of their holders. */
#include <math.h>

#include "base/alloc.h"
#include "base/error.h"
#include "model/router.h"
#include "op/core/algorithm.h"

typedef struct experts { /* x, which, weight -> y */
    tsi_part part;
    ts_tensor *in, *out;     /* [E, 2F, C], [E, C, F] */
    const tsi_router *state; /* the model's, which knows what is copied */
} experts;

typedef struct choosing {
    tsi_part part;
    tsi_router *state;           /* the model's */
    ts_tensor *router, *bias;    /* [E, C], [E] or NULL */
    ts_module *experts, *shared; /* the latter or NULL */
} choosing;

static ts_tensor *best(ts_tensor *scores, int64_t count, ts_tensor **which)
{
    ts_topk_options options = TS_INIT(ts_topk_options);
    ts_tensor *values = NULL;
    options.k = count;
    options.dim = -1;
    ts_topk(scores, &options, &values, which);
    return values;
}

/* Scores outside the best groups become -inf. A group is as good as its two best experts. */
static ts_tensor *within_groups(const ts_model_config *c, ts_tensor *scores_BTE)
{
    ts_shape s = ts_tensor_shape(scores_BTE);
    int64_t batch = s.extent[0], length = s.extent[1], last = -1,
            each = c->experts / c->expert_groups;
    ts_shape grouped = TS_SHAPE(batch, length, c->expert_groups, each);
    ts_tensor *which = NULL, *scores = ts_reshape(scores_BTE, grouped);
    ts_tensor *groups = ts_sum(best(scores, each < 2 ? each : 2, &which), &last, 1, 0);
    ts_tensor *out = ts_logical_not(ts_topk_mask(groups, c->groups_per_token));
    out = ts_expand(ts_unsqueeze(out, 3), grouped);
    return ts_reshape(ts_masked_fill(scores, out, -(double)INFINITY), s);
}

/* The experts of each token by score plus bias: a choice, which has no gradient. */
static ts_tensor *choice(const choosing *e, ts_tensor *scores_BTE)
{
    const ts_model_config *c = &e->part.model->config;
    ts_tensor *which = NULL, *by = ts_detach(scores_BTE);
    if (e->bias) by = ts_add(by, ts_cast(e->bias, ts_tensor_dtype(by)));
    if (c->expert_groups > 1 && c->groups_per_token < c->expert_groups) by = within_groups(c, by);
    best(by, c->experts_per_token, &which);
    return which;
}

/* Scores as shares: each token's add up to 1. */
static ts_tensor *shares(ts_tensor *scores_BTE)
{
    int64_t last = -1;
    return ts_div(scores_BTE, ts_add_scalar(ts_sum(scores_BTE, &last, 1, 1), 1e-20));
}

/* Which experts a token goes to, and with what weights. */
static ts_tensor *route(choosing *e, ts_tensor *x_BTC, bool again, ts_tensor **which_BTK)
{
    const ts_model *m = e->part.model;
    const ts_model_config *c = &m->config;
    ts_dtype dtype = ts_tensor_dtype(x_BTC);
    ts_tensor *logits = tsi_part_linear(m, x_BTC, e->router, NULL), *scores, *weight_BTK = NULL;
    if (dtype != TS_DTYPE_F64) logits = ts_cast(logits, TS_DTYPE_F32);
    if (e->bias) {
        scores = ts_sigmoid(logits);
        *which_BTK = choice(e, scores);
        weight_BTK = ts_gather(scores, 2, *which_BTK);
    } else {
        scores = ts_softmax(logits, -1);
        weight_BTK = best(scores, c->experts_per_token, which_BTK);
    }
    int64_t last = -1;
    if (c->route_sum) {
        ts_tensor *sum = ts_sum(weight_BTK, &last, 1, 1);
        weight_BTK = ts_div(weight_BTK, e->bias ? ts_add_scalar(sum, 1e-20) : sum);
    }
    if (c->route_scale != 0.0 && c->route_scale != 1.0)
        weight_BTK = ts_mul_scalar(weight_BTK, c->route_scale);
    if (weight_BTK && tsi_router_works(m)) {
        tsi_routed routed = { logits, e->bias ? shares(scores) : scores, *which_BTK, weight_BTK };
        weight_BTK = tsi_router_weights(e->state, &routed, again);
    }
    return ts_cast(weight_BTK, dtype);
}

/* The feed-forward of `count` experts, [count, 2F, C] and [count, C, F]. */
static ts_tensor *feed_forward(const experts *e, ts_tensor *const x_which_weight[3], ts_tensor *in,
                               ts_tensor *out, int64_t count)
{
    const ts_model_config *c = &e->part.model->config;
    ts_grouped_mlp_options options = TS_INIT(ts_grouped_mlp_options);
    options.weight = x_which_weight[2];
    options.in = ts_reshape(in, TS_SHAPE(count, 2, c->expert_width, c->hidden));
    options.out = out;
    options.activation = tsi_model_activation_word(c);
    options.skips = e->state->copy_count > 0;
    return ts_grouped_mlp(x_which_weight[0], x_which_weight[1], &options);
}

/* The experts that are copied, on every rank of a group: each comes from where it is stored, and
 * its gradients add up there. */
static ts_tensor *copies_of(const experts *e, ts_tensor *matrices)
{
    const tsi_router *r = e->state;
    ts_tensor **list = tsi_calloc((size_t)r->copy_count, sizeof *list), *all = NULL;
    if (!list) {
        tsi_fail_memory("copies of experts", (size_t)r->copy_count * sizeof *list);
        return NULL;
    }
    for (int64_t i = 0; i < r->copy_count; i++) {
        ts_tensor *one = ts_narrow(matrices, 0, (ts_interval){ r->copy[i], r->copy[i] + 1 });
        list[i] = one ? tsi_algorithm_whole(one, e->part.model->ep_axes) : NULL;
    }
    if (ts_rank_status(e->part.model->rank) == TS_OK) all = ts_cat(list, (int32_t)r->copy_count, 0);
    tsi_free(list);
    return all;
}

/* Choices of experts that are copied, by their place among the copies, and the others: each is -1
 * where the other is not. */
static void choose_copies(const tsi_router *r, ts_tensor *which_BTK, ts_tensor **copied,
                          ts_tensor **others)
{
    *copied = ts_add_scalar(ts_mul_scalar(which_BTK, 0), -1);
    *others = which_BTK;
    for (int64_t i = 0; i < r->copy_count; i++) {
        ts_tensor *is_it = ts_eq_scalar(which_BTK, (double)r->copy[i]);
        *copied = ts_masked_fill(*copied, is_it, (double)i);
        *others = ts_masked_fill(*others, is_it, -1.0);
    }
}

/* Experts that are cut over ranks: rows go to them, once; copies are here. */
static ts_tensor *experts_there(const experts *e, ts_tensor *x_BTC, ts_tensor *which_BTK,
                                ts_tensor *weight_BTK)
{
    const ts_model *m = e->part.model;
    ts_tensor *in = tsi_model_cast(m, e->in), *out = tsi_model_cast(m, e->out), *copied, *others;
    if (e->state->copy_count == 0)
        return feed_forward(e, (ts_tensor *[]){ x_BTC, which_BTK, weight_BTK }, in, out,
                            m->config.experts);
    choose_copies(e->state, which_BTK, &copied, &others);
    ts_tensor *in_here = copies_of(e, in), *out_here = copies_of(e, out);
    ts_tensor *there =
        feed_forward(e, (ts_tensor *[]){ x_BTC, others, weight_BTK }, in, out, m->config.experts);
    ts_tensor *here = feed_forward(e, (ts_tensor *[]){ x_BTC, copied, weight_BTK }, in_here,
                                   out_here, e->state->copy_count);
    return ts_add(there, here);
}

/* The experts that the router chose for each token, and no others: rows are grouped by expert. */
static ts_tensor *experts_here(const experts *e, ts_tensor *x_BTC, ts_tensor *which_BTK,
                               ts_tensor *weight_BTK)
{
    const ts_model *m = e->part.model;
    const ts_model_config *c = &m->config;
    ts_shape s = ts_tensor_shape(x_BTC);
    int64_t batch = s.extent[0], length = s.extent[1], chosen = c->experts_per_token, slots = 2;
    ts_tensor *x_BTKC =
        ts_expand(ts_unsqueeze(x_BTC, 2), TS_SHAPE(batch, length, chosen, c->hidden));
    ts_tensor *both = ts_grouped_linear(x_BTKC, tsi_model_cast(m, e->in), which_BTK);
    both = ts_reshape(both, TS_SHAPE(batch, length, chosen, 2, c->expert_width));
    ts_tensor *wide_BTKF = tsi_model_gate(m, ts_select(both, 3, 0), ts_select(both, 3, 1));
    wide_BTKF = ts_mul(wide_BTKF, ts_unsqueeze(weight_BTK, 3));
    ts_tensor *y_BTKC = ts_grouped_linear(wide_BTKF, tsi_model_cast(m, e->out), which_BTK);
    return ts_sum(y_BTKC, &slots, 1, 0);
}

static void experts_forward(void *state, const ts_module_io *io)
{
    const experts *e = state;
    bool cut = e->part.model->ep_axes != 0;
    io->output[0] =
        (cut ? experts_there : experts_here)(e, io->input[0], io->input[1], io->input[2]);
}

static const ts_module_desc experts_desc = { .struct_size = sizeof(ts_module_desc),
                                             .type = "experts",
                                             .input_count = 3,
                                             .output_count = 1,
                                             .forward = experts_forward,
                                             .destroy = tsi_free };

static ts_module *experts_add(const tsi_builder *b, ts_module *above, const tsi_router *state)
{
    experts *e = tsi_part_add(b, above, "experts", &experts_desc, sizeof *e);
    if (!e) return NULL;
    e->state = state;
    const ts_model_config *c = &b->model->config;
    ts_shape in = TS_SHAPE(c->experts, 2 * c->expert_width, c->hidden);
    ts_shape out = TS_SHAPE(c->experts, c->hidden, c->expert_width);
    e->in = ts_module_param(e->part.module, "gate_up_proj", in, &b->normal);
    e->out = ts_module_param(e->part.module, "down_proj", out, &b->normal);
    return e->part.module;
}

static void choosing_forward(void *state, const ts_module_io *io)
{
    choosing *e = state;
    ts_tensor *x = io->input[0], *which = NULL, *weight = route(e, x, io->phase != 0, &which);
    ts_tensor *y = TS_CALL(e->experts, x, which, weight);
    io->output[0] = e->shared ? ts_add(y, TS_CALL(e->shared, x)) : y;
}

static const ts_module_desc choosing_desc = TSI_PART_DESC("choosing", choosing_forward);

ts_module *tsi_part_experts(const tsi_builder *b, ts_module *above, const char *name, int64_t layer)
{
    choosing *e = tsi_part_add(b, above, name, &choosing_desc, sizeof *e);
    if (!e) return NULL;
    const ts_model_config *c = &b->model->config;
    ts_module *m = e->part.module;
    ts_param_options fixed = b->zeros;
    fixed.frozen = 1;
    e->router = ts_module_param(m, "gate.weight", TS_SHAPE(c->experts, c->hidden), &b->normal);
    if (c->family == TS_MODEL_DEEPSEEK_V3)
        e->bias = ts_module_param(m, "gate.e_score_correction_bias", TS_SHAPE(c->experts), &fixed);
    e->state = tsi_router_add(b->model, layer, e->bias);
    if (!e->state) return NULL;
    if (ts_module_on(m, TS_HOOK_RESET, tsi_router_reset, e->state) != TS_OK) return NULL;
    e->experts = experts_add(b, m, e->state);
    e->state->experts = e->experts;
    if (c->shared_experts > 0)
        e->shared = tsi_part_mlp(b, m, "shared_experts", c->shared_experts * c->expert_width);
    return m;
}

bool tsi_model_has_experts(const ts_model_config *c, int64_t layer)
{
    if (c->experts <= 0 || layer < c->dense_first) return false;
    if (c->expert_step > 1 && (layer + 1) % c->expert_step != 0) return false;
    if (layer >= 64 * TS_WINDOW_WORDS) return true;
    return !((c->dense_layers[layer / 64] >> (layer % 64)) & 1);
}
