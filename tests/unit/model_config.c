/* SPDX-License-Identifier: Apache-2.0 */
/* model_config.c - configurations of models: both spellings, defaults, what is refused and with
 * which words, and that what we write is read as the same. */
#include "model/model_config.h"
#include "unit/data_util.h"

#define SIZES                                                                                      \
    "\"vocab_size\":11,\"hidden_size\":24,\"intermediate_size\":7,\"num_hidden_layers\":3,"        \
    "\"num_attention_heads\":6"
#define LLAMA "{\"model_type\":\"llama\"," SIZES
#define QWEN3 "{\"model_type\":\"qwen3\"," SIZES
#define DEEPSEEK "{\"model_type\":\"deepseek_v3\"," SIZES
#define MIXTRAL "{\"model_type\":\"mixtral\"," SIZES
#define GPT2 "{\"model_type\":\"gpt2\",\"vocab_size\":11,\"n_embd\":24,\"n_layer\":3,\"n_head\":6"

static ts_status read_text(test *t, const char *text, ts_model_config *out)
{
    char folder[DATA_PATH_MAX], path[DATA_PATH_MAX];
    data_folder_make(t, folder);
    data_path(path, folder, "config.json");
    data_write(t, path, text, strlen(text));
    ts_status status = ts_model_config_read(folder, out);
    data_folder_remove(folder);
    return status;
}

TS_TEST(refused_configurations)
{
    static const struct {
        const char *text, *words;
    } rows[] = {
        { "{", "config.json" },
        { "{}", "model_type \"\" is none of llama, qwen3, mixtral, gpt2" },
        { "{\"model_type\":\"lama\"}", "did you mean llama?" },
        { "{\"model_type\":\"llama\"}", "sizes are missing" },
        { LLAMA ",\"num_key_value_heads\":4}", "6 heads are no multiple of 4 key heads" },
        { LLAMA ",\"head_dim\":3}", "a head size of 3 cannot be rotated in pairs" },
        { LLAMA ",\"hidden_act\":\"silo\"}",
          "the activation \"silo\" is not known; did you mean silu?" },
        { LLAMA ",\"hidden_act\":\"xielu\"}", "the activation \"xielu\" is not known" },
        { LLAMA ",\"partial_rotary_factor\":0.5}", "heads that are rotated in part" },
        { LLAMA ",\"rope_scaling\":{\"type\":\"lineal\"}}", "did you mean linear?" },
        { LLAMA ",\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":0}}", "factor 0" },
        { LLAMA ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,2]}}",
          "longrope needs long_factor with 2 factors (at most 256), found 0" },
        { LLAMA
          ",\"head_dim\":8,\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,2]}}",
          "longrope needs short_factor with 4 factors (at most 256), found 2" },
        { LLAMA ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,2],\"long_"
                "factor\":[1,-2]}}",
          "long_factor, factor 1 is not a positive number" },
        { MIXTRAL ",\"num_local_experts\":2,\"num_experts_per_tok\":3}",
          "2 experts of which 3 are chosen" },
        { MIXTRAL ",\"num_local_experts\":2,\"num_experts_per_tok\":0}",
          "2 experts of which 0 are chosen" },
        { GPT2 ",\"add_cross_attention\":true}", "cross-attention" },
        { GPT2 ",\"activation_function\":\"gelo\"}", "did you mean gelu?" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ts_model_config c;
        TEST_SAY(t, read_text(t, rows[i].text, &c) != TS_OK, "was accepted: %s", rows[i].text);
        TEST_SAYS(t, ts_last_error(), rows[i].words);
    }
}

/* Repair 30: a value of a wrong type or out of its range is refused with key, value and what was
 * expected. Repair 26: sizes whose products overflow. */
TS_TEST(refused_values)
{
    static const struct {
        const char *text, *words;
    } rows[] = {
        { "[]", "is not a JSON object" },
        { "{\"model_type\":5}", "\"model_type\" is 5, expected a text" },
        { LLAMA ",\"rms_norm_eps\":\"1e-3\"}", "\"rms_norm_eps\" is \"1e-3\", expected a number" },
        { LLAMA ",\"rms_norm_eps\":-1e-5}",
          "\"rms_norm_eps\" is -1e-05, expected a number from 0" },
        { LLAMA ",\"rope_parameters\":\"yarn\"}",
          "\"rope_parameters\" is \"yarn\", expected an obj" },
        { LLAMA ",\"rope_scaling\":[1]}", "\"rope_scaling\" is a list, expected an object" },
        { LLAMA ",\"rope_scaling\":{\"type\":3}}", "\"type\" is 3, expected a text" },
        { LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":\"2\"}}",
          "\"factor\" is \"2\", expected a number" },
        { DEEPSEEK ",\"scoring_func\":\"softmax\"}", "\"scoring_func\" is \"softmax\", expected" },
        { DEEPSEEK ",\"topk_method\":\"greedy\"}", "is \"greedy\", expected \"noaux_tc\"" },
        { DEEPSEEK ",\"moe_layer_freq\":2}", "\"moe_layer_freq\" is 2, expected a whole number" },
        { MIXTRAL ",\"router_jitter_noise\":0.1}", "\"router_jitter_noise\" is 0.1, expected" },
        { LLAMA ",\"rope_theta\":-1}", "\"rope_theta\" is -1, expected a number" },
        { LLAMA ",\"rope_scaling\":{\"type\":\"llama3\",\"high_freq_factor\":1}}",
          "low_freq_factor < high_freq_factor, found 1 and 1" },
        { LLAMA ",\"hidden_act\":5}", "\"hidden_act\" is 5, expected a text" },
        { LLAMA ",\"tie_word_embeddings\":\"false\"}", "\"tie_word_embeddings\" is \"false\"" },
        { LLAMA ",\"head_dim\":4.5}", "\"head_dim\" is 4.5, expected a whole number" },
        { LLAMA ",\"head_dim\":4611686018427387904}",
          "\"head_dim\" is 4611686018427387904, expected a whole number from 0 to 100000" },
        { LLAMA ",\"max_position_embeddings\":0}", "\"max_position_embeddings\" is 0" },
        { LLAMA ",\"initializer_range\":null,\"num_local_experts\":\"8\"}", "\"8\"" },
        { QWEN3 ",\"use_sliding_window\":true,\"sliding_window\":4,\"layer_types\":[\"x\"]}",
          "\"layer_types\" is \"x\", expected \"full_attention\"" },
        { QWEN3 ",\"use_sliding_window\":true,\"sliding_window\":4,\"layer_types\":"
                "[\"full_attention\"]}",
          "\"layer_types\" is null" },
        { GPT2 ",\"n_inner\":4611686018427387904}", "\"n_inner\" is 4611686018427387904" },
        { "{\"model_type\":\"gpt2\",\"vocab_size\":11,\"n_embd\":4611686018427387904,\"n_layer\":3,"
          "\"n_head\":6}",
          "\"n_embd\" is 4611686018427387904, expected a whole number from 0 to 10000000" },
        { "{\"model_type\":\"llama\",\"vocab_size\":11,\"hidden_size\":24,\"intermediate_size\":7,"
          "\"num_hidden_layers\":10000000,\"num_attention_heads\":6}",
          "\"num_hidden_layers\" is 10000000, expected a whole number from 0 to 10000" },
        { "{\"model_type\":\"mixtral\",\"vocab_size\":11,\"hidden_size\":9999999,"
          "\"intermediate_size\":99999999,\"num_hidden_layers\":1,\"num_attention_heads\":6,"
          "\"head_dim\":8,\"num_local_experts\":99999}",
          "are too many elements" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ts_model_config c;
        TEST_SAY(t, read_text(t, rows[i].text, &c) != TS_OK, "was accepted: %s", rows[i].text);
        TEST_SAYS(t, ts_last_error(), rows[i].words);
    }
}

/* ---- every key with every wrong type (repair 30) --------------------------------------------- */

typedef struct member {
    const char *key, *value; /* a good one, which says the type */
} member;

/* Members of one object; `bad` replaces the value of member `changed`, if that is not -1. */
static void object_text(char *out, size_t size, const member *m, int count, int changed,
                        const char *bad)
{
    size_t at = (size_t)snprintf(out, size, "{");
    for (int i = 0; i < count && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s\"%s\":%s", i ? "," : "", m[i].key,
                               i == changed ? bad : m[i].value);
    if (at < size) (void)snprintf(out + at, size - at, "}");
}

/* Is it of the type that the good value has? A whole number is a number. */
static bool same_type(const char *good, const char *bad)
{
    bool whole = good[0] != '"' && good[0] != '[' && good[0] != '{' && good[0] != 't' &&
                 good[0] != 'f' && !strchr(good, '.');
    if (bad[0] == '7') return whole || strchr(good, '.') != NULL;
    if (bad[0] == '2') return !whole && strchr("0123456789", good[0]);
    return good[0] == bad[0] || (strchr("tf", good[0]) && bad[0] == 't');
}

/* The object under test stands between `before` and `after`. */
static int check_types(test *t, const char *before, const member *m, int count, const char *after)
{
    static const char *const bad[] = { "7", "2.5", "\"7\"", "true", "[7]", "{\"a\":7}" };
    char object[2048], text[4096], quoted[64];
    int refused = 0;
    ts_model_config c;
    object_text(object, sizeof object, m, count, -1, "");
    (void)snprintf(text, sizeof text, "%s%s%s", before, object, after);
    TEST_SAY(t, read_text(t, text, &c) == TS_OK, "%s: %s", text, ts_last_error());
    for (int i = 0; i < count; i++)
        for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++) {
            if (same_type(m[i].value, bad[b])) continue;
            object_text(object, sizeof object, m, count, i, bad[b]);
            (void)snprintf(text, sizeof text, "%s%s%s", before, object, after);
            (void)snprintf(quoted, sizeof quoted, "\"%s\"", m[i].key);
            TEST_SAY(t, read_text(t, text, &c) != TS_OK, "%s = %s was taken", quoted, bad[b]);
            TEST_SAYS(t, ts_last_error(), quoted);
            refused++;
        }
    return refused;
}

#define TYPES(t, before, m, after) check_types(t, before, m, (int)(sizeof(m) / sizeof(m)[0]), after)

static const member sizes_of_all[] = {
    { "model_type", "\"llama\"" },
    { "vocab_size", "11" },
    { "hidden_size", "24" },
    { "intermediate_size", "8" },
    { "num_hidden_layers", "3" },
    { "num_attention_heads", "6" },
    { "num_key_value_heads", "3" },
    { "head_dim", "4" },
    { "max_position_embeddings", "64" },
    { "rms_norm_eps", "0.5" },
    { "initializer_range", "0.5" },
    { "rope_theta", "9.5" },
    { "partial_rotary_factor", "1.0" },
    { "tie_word_embeddings", "true" },
    { "attention_bias", "false" },
    { "mlp_bias", "false" },
    { "hidden_act", "\"silu\"" },
    { "rope_parameters", "{\"rope_theta\":9.5}" },
};
static const member members_of_rope[] = {
    { "rope_type", "\"yarn\"" },
    { "factor", "2.5" },
    { "attention_factor", "1.5" },
    { "low_freq_factor", "1.5" },
    { "high_freq_factor", "4.5" },
    { "beta_fast", "32.5" },
    { "beta_slow", "1.5" },
    { "mscale", "1.5" },
    { "mscale_all_dim", "1.5" },
    { "original_max_position_embeddings", "32.0" },
    { "truncate", "true" },
    { "rope_theta", "9.5" },
    { "partial_rotary_factor", "1.0" },
};
static const member members_of_gpt2[] = {
    { "model_type", "\"gpt2\"" },
    { "vocab_size", "11" },
    { "n_embd", "24" },
    { "n_layer", "3" },
    { "n_head", "6" },
    { "n_inner", "48" },
    { "n_positions", "64" },
    { "layer_norm_epsilon", "0.5" },
    { "initializer_range", "0.5" },
    { "tie_word_embeddings", "true" },
    { "scale_attn_weights", "true" },
    { "scale_attn_by_inverse_layer_idx", "false" },
    { "add_cross_attention", "false" },
    { "activation_function", "\"gelu_new\"" },
};
static const member members_of_windows[] = {
    { "model_type", "\"qwen3\"" },    { "vocab_size", "11" },
    { "hidden_size", "24" },          { "intermediate_size", "8" },
    { "num_hidden_layers", "1" },     { "num_attention_heads", "6" },
    { "use_sliding_window", "true" }, { "sliding_window", "4" },
    { "max_window_layers", "2" },     { "layer_types", "[\"full_attention\"]" },
};
static const member members_of_experts[] = {
    { "model_type", "\"qwen3_moe\"" },
    { "vocab_size", "11" },
    { "hidden_size", "24" },
    { "intermediate_size", "8" },
    { "num_hidden_layers", "3" },
    { "num_attention_heads", "6" },
    { "num_experts", "4" },
    { "num_local_experts", "4" },
    { "num_experts_per_tok", "2" },
    { "moe_intermediate_size", "8" },
    { "norm_topk_prob", "true" },
    { "decoder_sparse_step", "1" },
    { "mlp_only_layers", "[0]" },
};
static const member members_of_latents[] = {
    { "model_type", "\"deepseek_v3\"" },
    { "vocab_size", "11" },
    { "hidden_size", "24" },
    { "intermediate_size", "8" },
    { "num_hidden_layers", "3" },
    { "num_attention_heads", "6" },
    { "n_routed_experts", "4" },
    { "num_experts_per_tok", "2" },
    { "moe_intermediate_size", "8" },
    { "n_shared_experts", "1" },
    { "n_group", "2" },
    { "topk_group", "1" },
    { "first_k_dense_replace", "1" },
    { "routed_scaling_factor", "2.5" },
    { "norm_topk_prob", "true" },
    { "q_lora_rank", "8" },
    { "kv_lora_rank", "8" },
    { "qk_rope_head_dim", "4" },
    { "qk_nope_head_dim", "4" },
    { "v_head_dim", "4" },
    { "rope_interleave", "true" },
    { "scoring_func", "\"sigmoid\"" },
    { "topk_method", "\"noaux_tc\"" },
    { "moe_layer_freq", "1" },
};

TS_TEST(repair_30_every_key_with_every_wrong_type)
{
    int refused = TYPES(t, "", sizes_of_all, "") + TYPES(t, "", members_of_gpt2, "") +
                  TYPES(t, "", members_of_windows, "") + TYPES(t, "", members_of_experts, "") +
                  TYPES(t, "", members_of_latents, "") +
                  TYPES(t, LLAMA ",\"rope_parameters\":", members_of_rope, "}") +
                  TYPES(t, LLAMA ",\"rope_scaling\":", members_of_rope, "}");
    TEST_SAY(t, refused > 400, "%d values were refused", refused);
}

/* Repair 30: a 0 that was written is not the default. */
TS_TEST(zeros_are_zeros)
{
    ts_model_config c;
    TEST_OK(t, read_text(t, LLAMA ",\"rms_norm_eps\":0,\"initializer_range\":0.0}", &c));
    TEST_CHECK(t, c.norm_epsilon == 0 && c.exact);
    TEST_CHECK(t, c.init_deviation == 0);
    TEST_OK(t, read_text(t, GPT2 ",\"layer_norm_epsilon\":0}", &c));
    TEST_CHECK(t, c.norm_epsilon == 0 && c.exact);
}

TS_TEST(defaults_and_spellings)
{
    ts_model_config c;
    TEST_OK(t, read_text(t, LLAMA "}", &c));
    TEST_CHECK(t, c.kv_heads == 6 && c.head_dim == 4 && c.positions == 2048 && !c.tied);
    TEST_CHECK(t, c.norm_epsilon == 1e-6 && c.rope_theta == 1e4 && c.rope_type == TS_ROPE_DEFAULT);
    TEST_OK(t, read_text(t, MIXTRAL ",\"num_local_experts\":4}", &c));
    TEST_CHECK(t, c.rope_theta == 1e6 && c.norm_epsilon == 1e-5 && c.experts_per_token == 2);
    TEST_OK(t, read_text(t, GPT2 "}", &c));
    TEST_CHECK(t, c.intermediate == 96 && c.tied && c.activation == TS_ACTIVATION_GELU_TANH);
    TEST_OK(t,
            read_text(t, GPT2 ",\"tie_word_embeddings\":false,\"scale_attn_weights\":false}", &c));
    TEST_CHECK(t, !c.tied && c.attention_unscaled && !c.attention_by_layer);
    TEST_OK(t, read_text(t,
                         LLAMA
                         ",\"rope_theta\":5.0,\"rope_scaling\":{\"type\":\"linear\",\"factor\":3}}",
                         &c));
    TEST_CHECK(t, c.rope_theta == 5.0 && c.rope_type == TS_ROPE_LINEAR && c.rope_factor == 3.0);
    TEST_OK(t, read_text(t,
                         LLAMA ",\"rope_parameters\":{\"rope_theta\":5.0,\"rope_type\":\"yarn\","
                               "\"original_max_position_embeddings\":512}}",
                         &c));
    TEST_CHECK(t, c.rope_theta == 5.0 && c.rope_type == TS_ROPE_YARN && c.rope_factor == 4.0);
}

TS_TEST(windows)
{
    ts_model_config c;
    TEST_OK(t, read_text(t, QWEN3 ",\"sliding_window\":9}", &c));
    TEST_CHECK(t, c.window == 0);
    TEST_OK(t,
            read_text(t,
                      QWEN3
                      ",\"sliding_window\":9,\"use_sliding_window\":true,\"max_window_layers\":1}",
                      &c));
    TEST_CHECK(t, c.window == 9 && c.window_layers[0] == 6);
    TEST_OK(t, read_text(t,
                         QWEN3 ",\"sliding_window\":9,\"use_sliding_window\":true,\"layer_types\":["
                               "\"sliding_attention\",\"full_attention\",\"sliding_attention\"]}",
                         &c));
    TEST_CHECK(t, c.window == 9 && c.window_layers[0] == 5);
    TEST_OK(t, read_text(t, MIXTRAL ",\"num_local_experts\":4,\"sliding_window\":9}", &c));
    TEST_CHECK(t, c.window == 9 && c.window_layers[0] == 7);
    TEST_OK(t, read_text(t, LLAMA ",\"sliding_window\":9}", &c));
    TEST_CHECK(t, c.window == 0);
}

/* What is written is read as the same configuration, for every kind of thing it can say. */
TS_TEST(written_and_read)
{
    static const char *const texts[] = {
        LLAMA "}",
        LLAMA ",\"attention_bias\":true,\"mlp_bias\":true,\"hidden_act\":\"relu2\",\"tie_word_"
              "embeddings\":true}",
        LLAMA ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2.5}}",
        LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1.5,"
              "\"high_freq_factor\":3,\"original_max_position_embeddings\":100}}",
        LLAMA ",\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4,\"beta_fast\":20,\"beta_"
              "slow\":2,"
              "\"mscale\":0.7,\"mscale_all_dim\":1.5,\"truncate\":false,\"attention_factor\":1.1}}",
        LLAMA
        ",\"rope_parameters\":{\"rope_type\":\"longrope\",\"factor\":4,\"short_factor\":[1,1.5],"
        "\"long_factor\":[2,3.25],\"original_max_position_embeddings\":64}}",
        QWEN3
        ",\"head_dim\":8,\"sliding_window\":9,\"use_sliding_window\":true,\"max_window_layers\":2}",
        MIXTRAL ",\"num_local_experts\":4,\"num_experts_per_tok\":3,\"sliding_window\":5}",
        GPT2 ",\"n_inner\":50,\"activation_function\":\"quick_gelu\",\"scale_attn_by_inverse_layer_"
             "idx\":true}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        ts_model_config first, second;
        TEST_OK(t, read_text(t, texts[i], &first));
        char *written = tsi_model_config_text(&first);
        TEST_OK(t, read_text(t, written ? written : "", &second));
        TEST_SAY(t, memcmp(&first, &second, sizeof first) == 0, "is read otherwise: %s\n%s",
                 texts[i], written);
        tsi_free(written);
    }
}
