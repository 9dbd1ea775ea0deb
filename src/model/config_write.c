/* SPDX-License-Identifier: Apache-2.0 */
/* config_write.c - the configuration of a model that was not read from a file, as its family
 * publishes it. What model_config.c reads from this text is the same configuration. */
#include "base/text.h"
#include "model/model.h"
#include "model/model_config.h"
#include <math.h>

static void whole(tsi_text *out, const char *name, int64_t value)
{
    tsi_text_printf(out, ",\n  \"%s\": %lld", name, (long long)value);
}

/* With a point: readers that know types refuse 1 where 1.0 is meant. */
static void number(tsi_text *out, double value)
{
    tsi_text_real(out, value);
    bool plain = value == floor(value) && fabs(value) < 1e15 && !(value == 0 && signbit(value));
    if (plain) tsi_text_add(out, ".0");
}

static void real(tsi_text *out, const char *name, double value)
{
    tsi_text_printf(out, ",\n  \"%s\": ", name);
    number(out, value);
}

static void truth(tsi_text *out, const char *name, int32_t value)
{
    tsi_text_printf(out, ",\n  \"%s\": %s", name, value ? "true" : "false");
}

static void factors(tsi_text *out, const char *name, const double *value, int64_t count)
{
    tsi_text_printf(out, ",\n  \"%s\": [", name);
    for (int64_t i = 0; i < count; i++) {
        if (i) tsi_text_add(out, ", ");
        number(out, value[i]);
    }
    tsi_text_add(out, "]");
}

static void add_rope(tsi_text *out, const ts_model_config *c)
{
    tsi_text_printf(out, ",\n  \"rope_parameters\": {\n  \"rope_type\": \"%s\"",
                    tsi_rope_type_name(c->rope_type));
    real(out, "rope_theta", c->rope_theta);
    if (c->rope_type != TS_ROPE_DEFAULT) real(out, "factor", c->rope_factor);
    if (c->rope_type == TS_ROPE_LLAMA3) {
        real(out, "low_freq_factor", c->rope_low);
        real(out, "high_freq_factor", c->rope_high);
    }
    if (c->rope_type == TS_ROPE_LLAMA3 || c->rope_type == TS_ROPE_YARN ||
        c->rope_type == TS_ROPE_LONGROPE)
        whole(out, "original_max_position_embeddings", (int64_t)c->rope_original);
    if (c->rope_attention != 0) real(out, "attention_factor", c->rope_attention);
    if (c->rope_type == TS_ROPE_YARN) {
        if (c->rope_beta_fast != 0) real(out, "beta_fast", c->rope_beta_fast);
        if (c->rope_beta_slow != 0) real(out, "beta_slow", c->rope_beta_slow);
        if (c->rope_mscale != 0) real(out, "mscale", c->rope_mscale);
        if (c->rope_mscale_all != 0) real(out, "mscale_all_dim", c->rope_mscale_all);
        truth(out, "truncate", !c->rope_smooth);
    }
    if (c->rope_type == TS_ROPE_LONGROPE) {
        factors(out, "short_factor", c->rope_short, c->head_dim / 2);
        factors(out, "long_factor", c->rope_long, c->head_dim / 2);
    }
    tsi_text_add(out, "}");
}

static void add_window(tsi_text *out, const ts_model_config *c)
{
    if (c->window <= 0) return;
    whole(out, "sliding_window", c->window);
    if (c->family == TS_MODEL_MIXTRAL) return;
    truth(out, "use_sliding_window", 1);
    if (c->family != TS_MODEL_QWEN3) return;
    tsi_text_add(out, ",\n  \"layer_types\": [");
    for (int64_t i = 0; i < c->layers; i++)
        tsi_text_printf(out, "%s\"%s_attention\"", i ? ", " : "",
                        (c->window_layers[i / 64] >> (i % 64)) & 1 ? "sliding" : "full");
    tsi_text_add(out, "]");
}

static void add_experts(tsi_text *out, const ts_model_config *c)
{
    bool deepseek = c->family == TS_MODEL_DEEPSEEK_V3;
    whole(out, deepseek ? "n_routed_experts" : "num_local_experts", c->experts);
    whole(out, "num_experts_per_tok", c->experts_per_token);
    if (c->family == TS_MODEL_MIXTRAL) return;
    whole(out, "moe_intermediate_size", c->expert_width);
    truth(out, "norm_topk_prob", c->route_sum);
    if (deepseek) {
        whole(out, "n_shared_experts", c->shared_experts);
        whole(out, "n_group", c->expert_groups > 0 ? c->expert_groups : 1);
        whole(out, "topk_group", c->groups_per_token > 0 ? c->groups_per_token : 1);
        whole(out, "first_k_dense_replace", c->dense_first);
        real(out, "routed_scaling_factor", c->route_scale != 0 ? c->route_scale : 1);
        return;
    }
    whole(out, "decoder_sparse_step", c->expert_step > 0 ? c->expert_step : 1);
    tsi_text_add(out, ",\n  \"mlp_only_layers\": [");
    const char *comma = "";
    for (int64_t i = 0; i < c->layers && i < 64 * TS_WINDOW_WORDS; i++)
        if ((c->dense_layers[i / 64] >> (i % 64)) & 1) {
            tsi_text_printf(out, "%s%lld", comma, (long long)i);
            comma = ", ";
        }
    tsi_text_add(out, "]");
}

static void add_latent(tsi_text *out, const ts_model_config *c)
{
    if (c->q_rank > 0) whole(out, "q_lora_rank", c->q_rank);
    whole(out, "kv_lora_rank", c->kv_rank);
    whole(out, "qk_rope_head_dim", c->head_dim);
    whole(out, "qk_nope_head_dim", c->plain_dim);
    whole(out, "qk_head_dim", c->plain_dim + c->head_dim);
    whole(out, "v_head_dim", c->value_dim);
    truth(out, "rope_interleave", c->rope_interleave);
}

static void add_llama(tsi_text *out, const ts_model_config *c)
{
    static const char *const names[] = { [TS_MODEL_LLAMA] = "LlamaForCausalLM",
                                         [TS_MODEL_QWEN3] = "Qwen3ForCausalLM",
                                         [TS_MODEL_MIXTRAL] = "MixtralForCausalLM",
                                         [TS_MODEL_QWEN3_MOE] = "Qwen3MoeForCausalLM",
                                         [TS_MODEL_DEEPSEEK_V3] = "DeepseekV3ForCausalLM" };
    tsi_text_printf(out, ",\n  \"architectures\": [\"%s\"]", names[c->family]);
    tsi_text_printf(out, ",\n  \"hidden_act\": \"%s\"", tsi_activation_name(c));
    whole(out, "vocab_size", c->vocab);
    whole(out, "hidden_size", c->hidden);
    whole(out, "intermediate_size", c->intermediate);
    whole(out, "num_hidden_layers", c->layers);
    whole(out, "num_attention_heads", c->heads);
    whole(out, "num_key_value_heads", c->kv_heads);
    whole(out, "head_dim", c->head_dim);
    whole(out, "max_position_embeddings", c->positions);
    real(out, "rms_norm_eps", c->norm_epsilon);
    truth(out, "tie_word_embeddings", c->tied);
    if (c->family != TS_MODEL_MIXTRAL) truth(out, "attention_bias", c->attention_bias);
    if (c->family == TS_MODEL_LLAMA) truth(out, "mlp_bias", c->mlp_bias);
    if (c->experts > 0) add_experts(out, c);
    if (c->kv_rank > 0) add_latent(out, c);
    add_window(out, c);
    add_rope(out, c);
}

static void add_gpt2(tsi_text *out, const ts_model_config *c)
{
    tsi_text_add(out, ",\n  \"architectures\": [\"GPT2LMHeadModel\"]");
    tsi_text_printf(out, ",\n  \"activation_function\": \"%s\"", tsi_activation_name(c));
    whole(out, "vocab_size", c->vocab);
    whole(out, "n_embd", c->hidden);
    whole(out, "n_inner", c->intermediate);
    whole(out, "n_layer", c->layers);
    whole(out, "n_head", c->heads);
    whole(out, "n_positions", c->positions);
    real(out, "layer_norm_epsilon", c->norm_epsilon);
    truth(out, "tie_word_embeddings", c->tied);
    truth(out, "scale_attn_weights", !c->attention_unscaled);
    truth(out, "scale_attn_by_inverse_layer_idx", c->attention_by_layer);
}

char *tsi_model_config_text(const ts_model_config *c)
{
    tsi_text out = { 0 };
    tsi_text_printf(&out, "{\n  \"model_type\": \"%s\"", tsi_family_names[c->family]);
    real(&out, "initializer_range", c->init_deviation);
    if (c->family == TS_MODEL_GPT2)
        add_gpt2(&out, c);
    else
        add_llama(&out, c);
    tsi_text_add(&out, "\n}\n");
    return tsi_text_take(&out);
}
