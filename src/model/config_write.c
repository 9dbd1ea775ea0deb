/* SPDX-License-Identifier: Apache-2.0 */
/* config_write.c - the configuration of a model that was not read from a file, as its family
 * publishes it. What config.c reads from this text is the same configuration. */
#include "base/text.h"
#include "model/config.h"

static void whole(tsi_text *out, const char *name, int64_t value)
{
    tsi_text_printf(out, ",\n  \"%s\": %lld", name, (long long)value);
}

static void real(tsi_text *out, const char *name, double value)
{
    tsi_text_printf(out, ",\n  \"%s\": ", name);
    tsi_text_real(out, value);
}

static void truth(tsi_text *out, const char *name, int32_t value)
{
    tsi_text_printf(out, ",\n  \"%s\": %s", name, value ? "true" : "false");
}

static void add_rope(tsi_text *out, const ts_model_config *c)
{
    static const char *const types[] = { "default", "linear", "llama3", "yarn", "dynamic" };
    real(out, "rope_theta", c->rope_theta);
    if (c->rope_type == 0) return;
    tsi_text_printf(out, ",\n  \"rope_scaling\": {\n  \"rope_type\": \"%s\"", types[c->rope_type]);
    real(out, "factor", c->rope_factor);
    real(out, "low_freq_factor", c->rope_low);
    real(out, "high_freq_factor", c->rope_high);
    real(out, "original_max_position_embeddings", c->rope_original);
    if (c->rope_beta_fast != 0) real(out, "beta_fast", c->rope_beta_fast);
    if (c->rope_beta_slow != 0) real(out, "beta_slow", c->rope_beta_slow);
    if (c->rope_attention != 0) real(out, "attention_factor", c->rope_attention);
    tsi_text_add(out, "}");
}

static void add_llama(tsi_text *out, const ts_model_config *c)
{
    static const char *const names[] = { "LlamaForCausalLM", "Qwen3ForCausalLM",
                                         "MixtralForCausalLM" };
    tsi_text_printf(out, ",\n  \"architectures\": [\"%s\"]", names[c->family]);
    tsi_text_add(out, ",\n  \"hidden_act\": \"silu\"");
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
    truth(out, "attention_bias", c->attention_bias);
    if (c->family == TS_MODEL_MIXTRAL) {
        whole(out, "num_local_experts", c->experts);
        whole(out, "num_experts_per_tok", c->experts_per_token);
    }
    add_rope(out, c);
}

static void add_gpt2(tsi_text *out, const ts_model_config *c)
{
    tsi_text_add(out, ",\n  \"architectures\": [\"GPT2LMHeadModel\"]");
    tsi_text_printf(out, ",\n  \"activation_function\": \"%s\"",
                    c->gelu_tanh ? "gelu_new" : "gelu");
    whole(out, "vocab_size", c->vocab);
    whole(out, "n_embd", c->hidden);
    whole(out, "n_inner", c->intermediate);
    whole(out, "n_layer", c->layers);
    whole(out, "n_head", c->heads);
    whole(out, "n_positions", c->positions);
    real(out, "layer_norm_epsilon", c->norm_epsilon);
    truth(out, "tie_word_embeddings", 1);
}

char *tsi_model_config_text(const ts_model_config *c)
{
    static const char *const families[] = { "llama", "qwen3", "mixtral", "gpt2" };
    tsi_text out = { 0 };
    tsi_text_printf(&out, "{\n  \"model_type\": \"%s\"", families[c->family]);
    real(&out, "initializer_range", c->init_deviation);
    if (c->family == TS_MODEL_GPT2)
        add_gpt2(&out, c);
    else
        add_llama(&out, c);
    tsi_text_add(&out, "\n}\n");
    return tsi_text_take(&out);
}
