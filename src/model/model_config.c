/* SPDX-License-Identifier: Apache-2.0 */
/* model_config.c - reading the configuration that published models come with. What a model needs
 * and we cannot do is refused here, never computed wrongly; so is a value of another type than its
 * key has, or beyond what can be meant (config_member.c). */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/intmath.h"
#include "base/text.h"
#include "model/model.h"
#include "model/model_config.h"
#include "tessera/json.h"

ts_status tsi_file_text(const char *path, char **out, size_t *length)
{
    enum { TEXT_BYTES_MAX = 64 << 20 };
    return tsi_file_read(path, TEXT_BYTES_MAX, out, length);
}

const char *const tsi_family_names[] = { "llama",     "qwen3",       "mixtral", "gpt2",
                                         "qwen3_moe", "deepseek_v3", NULL };

static ts_status family_of(tsi_members *root, int32_t *out)
{
    const char *const *names = tsi_family_names;
    const char *type = tsi_member_text(root, "model_type", "");
    TSI_TRY(root->status);
    for (int32_t i = 0; names[i]; i++)
        if (strcmp(type, names[i]) == 0) {
            *out = i;
            return TS_OK;
        }
    const char *near = tsi_text_nearest(type, names);
    return TSI_FAIL(TS_ERR_ARG,
                    "%s: model_type \"%s\" is none of llama, qwen3, mixtral, gpt2, qwen3_moe, "
                    "deepseek_v3%s%s%s",
                    root->path, type, near ? "; did you mean " : "", near ? near : "",
                    near ? "?" : "");
}

/* Does layer i of "layer_types" slide? */
static bool slides_by_type(tsi_members *root, const ts_json *types, int64_t i)
{
    const ts_json *item = ts_json_item(types, i);
    const char *type = ts_json_text(item, "");
    bool slides = strcmp(type, "sliding_attention") == 0;
    if (!slides && strcmp(type, "full_attention") != 0)
        tsi_member_refuse(root, "layer_types", item,
                          "\"full_attention\" or \"sliding_attention\" for each layer");
    return slides;
}

/* The layers a window holds for: all, those of "layer_types", or those from "max_window_layers" on.
 */
static ts_status read_window(tsi_members *root, ts_model_config *c)
{
    bool qwen = c->family == TS_MODEL_QWEN3, moe = c->family == TS_MODEL_QWEN3_MOE;
    bool none = c->family == TS_MODEL_LLAMA || c->family == TS_MODEL_DEEPSEEK_V3;
    const ts_json *types = tsi_member_list(root, "layer_types");
    bool used = tsi_member_bool(root, "use_sliding_window", !qwen && !moe);
    int64_t window = tsi_member_int(root, "sliding_window", 0, INT64_MAX / 2, 0);
    int64_t first = tsi_member_int(root, "max_window_layers", 0, INT32_MAX, 28);
    c->window = used && !none ? window : 0;
    TSI_TRY(root->status);
    if (c->window <= 0) return TS_OK;
    if (c->layers > 64 * TS_WINDOW_WORDS)
        return TSI_FAIL(TS_ERR_ARG, "%s: a sliding window with %lld layers; at most %d have one",
                        root->path, (long long)c->layers, 64 * TS_WINDOW_WORDS);
    for (int64_t i = 0; i < c->layers; i++) {
        bool slides = !qwen || (types ? slides_by_type(root, types, i) : i >= first);
        if (slides) c->window_layers[i / 64] |= (uint64_t)1 << (i % 64);
    }
    return root->status;
}

/* What families default to, where a file does not say. */
static const struct {
    int64_t positions, chosen, experts, expert_width;
    double epsilon, theta;
} family_default[] = { [TS_MODEL_LLAMA] = { 2048, 0, 0, 0, 1e-6, 1e4 },
                       [TS_MODEL_QWEN3] = { 32768, 0, 0, 0, 1e-6, 1e4 },
                       [TS_MODEL_MIXTRAL] = { 131072, 2, 0, 0, 1e-5, 1e6 },
                       [TS_MODEL_QWEN3_MOE] = { 32768, 8, 128, 768, 1e-6, 1e4 },
                       [TS_MODEL_DEEPSEEK_V3] = { 4096, 8, 256, 2048, 1e-6, 1e4 } };

/* The one word that is known here. */
static void expect_word(tsi_members *m, const char *name, const char *word)
{
    char wanted[64];
    const char *found = tsi_member_text(m, name, word);
    snprintf(wanted, sizeof wanted, "\"%s\"", word);
    if (strcmp(found, word) != 0)
        tsi_member_refuse(m, name, ts_json_member(m->object, name), wanted);
}

/* DeepSeek's own code also chooses otherwise; published models do not ask it to. */
static void check_choice(tsi_members *m)
{
    expect_word(m, "scoring_func", "sigmoid");
    expect_word(m, "topk_method", "noaux_tc");
    (void)tsi_member_int(m, "moe_layer_freq", 1, 1, 1);
}

/* Layers that keep a plain feed-forward. */
static ts_status read_dense_layers(tsi_members *m, ts_model_config *c)
{
    const ts_json *list = tsi_member_list(m, "mlp_only_layers");
    for (int64_t i = 0; list && i < ts_json_count(list); i++) {
        const ts_json *item = ts_json_item(list, i);
        int64_t layer = ts_json_int(item, -1);
        if (layer >= c->layers) continue; /* of a model that was cut short */
        if (layer < 0 || layer >= 64 * TS_WINDOW_WORDS)
            tsi_member_refuse(m, "mlp_only_layers", item, "numbers of layers, from 0 to 255");
        else
            c->dense_layers[layer / 64] |= (uint64_t)1 << (layer % 64);
    }
    return m->status;
}

static ts_status read_experts(tsi_members *m, ts_model_config *c)
{
    bool deepseek = c->family == TS_MODEL_DEEPSEEK_V3;
    int64_t count = family_default[c->family].experts;
    count = tsi_member_int(m, "num_local_experts", 0, TSI_EXPERTS_MAX, count);
    count = tsi_member_int(m, "num_experts", 0, TSI_EXPERTS_MAX, count);
    if (deepseek) count = tsi_member_int(m, "n_routed_experts", 0, TSI_EXPERTS_MAX, count);
    c->experts = count;
    c->experts_per_token = tsi_member_int(m, "num_experts_per_tok", 0, TSI_EXPERTS_MAX,
                                          family_default[c->family].chosen);
    c->expert_width = c->intermediate;
    c->route_sum = 1;
    if (c->family == TS_MODEL_MIXTRAL) {
        (void)tsi_member_real(m, "router_jitter_noise", 0, 0, 0);
        return m->status;
    }
    c->expert_width = tsi_member_int(m, "moe_intermediate_size", 1, TSI_INTERMEDIATE_MAX,
                                     family_default[c->family].expert_width);
    c->route_sum = tsi_member_bool(m, "norm_topk_prob", deepseek);
    if (!deepseek) {
        c->expert_step = tsi_member_int(m, "decoder_sparse_step", 1, TSI_LAYERS_MAX, 1);
        return read_dense_layers(m, c);
    }
    check_choice(m);
    c->shared_experts = tsi_member_int(m, "n_shared_experts", 0, TSI_EXPERTS_MAX, 1);
    c->expert_groups = tsi_member_int(m, "n_group", 1, TSI_EXPERTS_MAX, 8);
    c->groups_per_token = tsi_member_int(m, "topk_group", 1, TSI_EXPERTS_MAX, 4);
    c->dense_first = tsi_member_int(m, "first_k_dense_replace", 0, TSI_LAYERS_MAX, 3);
    c->route_scale = tsi_member_real(m, "routed_scaling_factor", 0, 1e9, 2.5);
    return m->status;
}

/* Sizes of latent attention. What is rotated is the head size of rotary positions. */
static void read_latent(tsi_members *m, ts_model_config *c)
{
    c->q_rank = tsi_member_int(m, "q_lora_rank", 0, TSI_HIDDEN_MAX, 0);
    c->kv_rank = tsi_member_int(m, "kv_lora_rank", 1, TSI_HIDDEN_MAX, 512);
    c->head_dim = tsi_member_int(m, "qk_rope_head_dim", 2, TSI_HEAD_DIM_MAX, 64);
    c->plain_dim = tsi_member_int(m, "qk_nope_head_dim", 1, TSI_HEAD_DIM_MAX, 128);
    c->value_dim = tsi_member_int(m, "v_head_dim", 1, TSI_HEAD_DIM_MAX, 128);
    c->rope_interleave = tsi_member_bool(m, "rope_interleave", true);
    c->kv_heads = c->heads; /* every head has its own keys, whatever the file says */
}

static ts_status read_llama(tsi_members *m, ts_model_config *c)
{
    c->vocab = tsi_member_int(m, "vocab_size", 0, TSI_VOCAB_MAX, 0);
    c->hidden = tsi_member_int(m, "hidden_size", 0, TSI_HIDDEN_MAX, 0);
    c->intermediate = tsi_member_int(m, "intermediate_size", 0, TSI_INTERMEDIATE_MAX, 0);
    c->layers = tsi_member_int(m, "num_hidden_layers", 0, TSI_LAYERS_MAX, 0);
    c->heads = tsi_member_int(m, "num_attention_heads", 0, TSI_HEADS_MAX, 0);
    c->kv_heads = tsi_member_int(m, "num_key_value_heads", 0, TSI_HEADS_MAX, c->heads);
    c->head_dim =
        tsi_member_int(m, "head_dim", 0, TSI_HEAD_DIM_MAX, c->heads > 0 ? c->hidden / c->heads : 0);
    c->positions = tsi_member_int(m, "max_position_embeddings", 1, TSI_POSITIONS_MAX,
                                  family_default[c->family].positions);
    c->norm_epsilon = tsi_member_real(m, "rms_norm_eps", 0, 1, family_default[c->family].epsilon);
    c->rope_theta = family_default[c->family].theta;
    c->tied = tsi_member_bool(m, "tie_word_embeddings", false);
    if (c->family != TS_MODEL_MIXTRAL)
        c->attention_bias = tsi_member_bool(m, "attention_bias", false);
    if (c->family == TS_MODEL_LLAMA) c->mlp_bias = tsi_member_bool(m, "mlp_bias", false);
    if (c->family == TS_MODEL_DEEPSEEK_V3) read_latent(m, c);
    if (c->family != TS_MODEL_LLAMA && c->family != TS_MODEL_QWEN3)
        TSI_TRY(read_experts(m, c));
    else /* files of these have it, too: null, or a number that means nothing */
        (void)tsi_member_int(m, "num_local_experts", 0, TSI_EXPERTS_MAX, 0);
    const char *activation = tsi_member_text(m, "hidden_act", "silu");
    TSI_TRY(m->status);
    TSI_TRY(tsi_activation_parse(m->path, activation, &c->activation));
    TSI_TRY(read_window(m, c));
    return tsi_rope_read(m, c);
}

static ts_status read_gpt2(tsi_members *m, ts_model_config *c)
{
    c->vocab = tsi_member_int(m, "vocab_size", 0, TSI_VOCAB_MAX, 0);
    c->hidden = tsi_member_int(m, "n_embd", 0, TSI_HIDDEN_MAX, 0);
    c->layers = tsi_member_int(m, "n_layer", 0, TSI_LAYERS_MAX, 0);
    c->heads = c->kv_heads = tsi_member_int(m, "n_head", 0, TSI_HEADS_MAX, 0);
    c->head_dim = c->heads > 0 ? c->hidden / c->heads : 0;
    c->intermediate = tsi_member_int(m, "n_inner", 0, TSI_INTERMEDIATE_MAX, 4 * c->hidden);
    c->positions = tsi_member_int(m, "n_positions", 1, TSI_POSITIONS_MAX, 1024);
    c->norm_epsilon = tsi_member_real(m, "layer_norm_epsilon", 0, 1, 1e-5);
    c->tied = tsi_member_bool(m, "tie_word_embeddings", true);
    c->attention_unscaled = !tsi_member_bool(m, "scale_attn_weights", true);
    c->attention_by_layer = tsi_member_bool(m, "scale_attn_by_inverse_layer_idx", false);
    bool cross = tsi_member_bool(m, "add_cross_attention", false);
    const char *activation = tsi_member_text(m, "activation_function", "gelu_new");
    TSI_TRY(m->status);
    if (cross)
        return TSI_FAIL(TS_ERR_ARG, "%s: models with cross-attention are not supported", m->path);
    return tsi_activation_parse(m->path, activation, &c->activation);
}

/* Sizes that would overflow later are refused with their name, wherever they came from. */
static ts_status check_sizes(const char *what, const ts_model_config *c)
{
    const struct {
        const char *name;
        int64_t value, high;
    } sizes[] = { { "vocabulary", c->vocab, TSI_VOCAB_MAX },
                  { "hidden size", c->hidden, TSI_HIDDEN_MAX },
                  { "intermediate size", c->intermediate, TSI_INTERMEDIATE_MAX },
                  { "number of layers", c->layers, TSI_LAYERS_MAX },
                  { "number of heads", c->heads, TSI_HEADS_MAX },
                  { "number of key heads", c->kv_heads, TSI_HEADS_MAX },
                  { "head size", c->head_dim, TSI_HEAD_DIM_MAX },
                  { "number of positions", c->positions, TSI_POSITIONS_MAX },
                  { "number of experts", c->experts, TSI_EXPERTS_MAX },
                  { "width of an expert", c->expert_width, TSI_INTERMEDIATE_MAX },
                  { "number of shared experts", c->shared_experts, TSI_EXPERTS_MAX },
                  { "rank of queries", c->q_rank, TSI_HIDDEN_MAX },
                  { "rank of keys and values", c->kv_rank, TSI_HIDDEN_MAX },
                  { "size of a head that is not rotated", c->plain_dim, TSI_HEAD_DIM_MAX },
                  { "size of a value", c->value_dim, TSI_HEAD_DIM_MAX } };
    for (size_t i = 0; i < TSI_COUNT_OF(sizes); i++)
        if (sizes[i].value < 0 || sizes[i].value > sizes[i].high)
            return TSI_FAIL(TS_ERR_ARG, "%s: the %s is %lld, expected a number from 1 to %lld",
                            what, sizes[i].name, (long long)sizes[i].value,
                            (long long)sizes[i].high);
    int64_t elements = 0;
    int64_t experts = c->experts > 0 ? c->experts : 1;
    if (!tsi_mul_i64(2 * experts * (c->experts > 0 ? c->expert_width : c->intermediate), c->hidden,
                     &elements) ||
        elements > INT64_MAX / 64)
        return TSI_FAIL(TS_ERR_ARG, "%s: %lld experts of %lld x %lld are too many elements", what,
                        (long long)experts,
                        (long long)(c->experts > 0 ? c->expert_width : c->intermediate),
                        (long long)c->hidden);
    bool finite = c->norm_epsilon >= 0 && c->norm_epsilon <= 1 && c->init_deviation >= 0 &&
                  isfinite(c->init_deviation);
    if (finite) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG,
                    "%s: the epsilon of norms is %g (expected 0 to 1), the deviation of random "
                    "weights %g (expected 0 or more)",
                    what, c->norm_epsilon, c->init_deviation);
}

/* What the router can choose. */
static ts_status check_experts(const char *what, const ts_model_config *c)
{
    if (c->experts <= 0 || c->experts_per_token <= 0 || c->experts_per_token > c->experts)
        return TSI_FAIL(TS_ERR_ARG, "%s: %lld experts of which %lld are chosen", what,
                        (long long)c->experts, (long long)c->experts_per_token);
    if (c->expert_groups <= 1) return TS_OK;
    bool divides = c->experts % c->expert_groups == 0;
    int64_t open = divides ? c->groups_per_token * (c->experts / c->expert_groups) : 0;
    if (c->groups_per_token > 0 && c->groups_per_token <= c->expert_groups && divides &&
        c->experts_per_token <= open)
        return TS_OK;
    return TSI_FAIL(TS_ERR_ARG,
                    "%s: %lld experts in %lld groups, of which %lld groups and in them %lld "
                    "experts are chosen: groups must be equal and have as many",
                    what, (long long)c->experts, (long long)c->expert_groups,
                    (long long)c->groups_per_token, (long long)c->experts_per_token);
}

static bool any_dense_layer(const ts_model_config *c)
{
    uint64_t any = 0;
    for (int32_t i = 0; i < TS_WINDOW_WORDS; i++)
        any |= c->dense_layers[i];
    return any != 0;
}

/* What a family's files have no words for would be computed, and lost when the model is saved. */
static ts_status check_family(const char *what, const ts_model_config *c)
{
    enum {
        GPT2 = 1 << TS_MODEL_GPT2,
        LLAMA = 1 << TS_MODEL_LLAMA,
        QWEN = 1 << TS_MODEL_QWEN3 | 1 << TS_MODEL_QWEN3_MOE,
        MIXTRAL = 1 << TS_MODEL_MIXTRAL,
        QWEN_MOE = 1 << TS_MODEL_QWEN3_MOE,
        DEEPSEEK = 1 << TS_MODEL_DEEPSEEK_V3
    };
    const struct {
        const char *name;
        bool asked;
        uint32_t families; /* that have it */
    } parts[] = {
        { "experts", c->experts > 0, MIXTRAL | QWEN_MOE | DEEPSEEK },
        { "shared experts", c->shared_experts > 0, DEEPSEEK },
        { "groups of experts", c->expert_groups > 1, DEEPSEEK },
        { "first layers without experts", c->dense_first > 0, DEEPSEEK },
        { "layers without experts", c->expert_step > 1 || any_dense_layer(c), QWEN_MOE },
        { "factor on the weights of experts", c->route_scale != 0 && c->route_scale != 1,
          DEEPSEEK },
        { "parts of heads that are not rotated", c->plain_dim > 0 || c->value_dim > 0, DEEPSEEK },
        { "fewer key heads", c->kv_heads != c->heads, (uint32_t)~GPT2 },
        { "heads of a size of their own", c->heads * c->head_dim != c->hidden, (uint32_t)~GPT2 },
        { "biases of attention to ask for", c->attention_bias, LLAMA | QWEN | DEEPSEEK },
        { "biases of feed-forward blocks to ask for", c->mlp_bias, LLAMA },
        { "scores that are scaled otherwise", c->attention_unscaled || c->attention_by_layer,
          GPT2 },
        { "sliding window", c->window > 0, QWEN | MIXTRAL },
    };
    if (c->family < 0 || c->family > TS_MODEL_DEEPSEEK_V3)
        return TSI_FAIL(TS_ERR_ARG, "%s: there is no family %d", what, c->family);
    for (size_t i = 0; i < TSI_COUNT_OF(parts); i++)
        if (parts[i].asked && !(parts[i].families >> c->family & 1))
            return TSI_FAIL(TS_ERR_ARG, "%s: the family %s has no %s", what,
                            tsi_family_names[c->family], parts[i].name);
    return TS_OK;
}

/* Latent attention is DeepSeek's alone, and whole. */
static ts_status check_latent(const char *what, const ts_model_config *c)
{
    bool latent = c->family == TS_MODEL_DEEPSEEK_V3;
    bool whole = c->kv_rank > 0 && c->plain_dim > 0 && c->value_dim > 0;
    if (latent ? whole : c->kv_rank == 0 && c->q_rank == 0) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG,
                    "%s: latent attention of rank %lld with %lld plain and %lld value elements a "
                    "head; DeepSeek-V3 needs all three, other families have none",
                    what, (long long)c->kv_rank, (long long)c->plain_dim, (long long)c->value_dim);
}

ts_status tsi_model_config_check(const char *what, const ts_model_config *c)
{
    if (c->vocab <= 0 || c->hidden <= 0 || c->layers <= 0 || c->heads <= 0 || c->head_dim <= 0 ||
        c->intermediate <= 0 || c->kv_heads <= 0)
        return TSI_FAIL(
            TS_ERR_ARG,
            "%s: sizes are missing: vocabulary %lld, hidden %lld, intermediate %lld, layers "
            "%lld, heads %lld of %lld",
            what, (long long)c->vocab, (long long)c->hidden, (long long)c->intermediate,
            (long long)c->layers, (long long)c->heads, (long long)c->head_dim);
    TSI_TRY(check_sizes(what, c));
    if (c->heads % c->kv_heads != 0)
        return TSI_FAIL(TS_ERR_ARG, "%s: %lld heads are no multiple of %lld key heads", what,
                        (long long)c->heads, (long long)c->kv_heads);
    if (c->family != TS_MODEL_GPT2 && c->head_dim % 2 != 0)
        return TSI_FAIL(TS_ERR_ARG, "%s: a head size of %lld cannot be rotated in pairs", what,
                        (long long)c->head_dim);
    TSI_TRY(check_latent(what, c));
    TSI_TRY(check_family(what, c));
    bool experts = c->family == TS_MODEL_MIXTRAL || c->experts > 0;
    return experts ? check_experts(what, c) : TS_OK;
}

ts_status ts_model_config_read(const char *path, ts_model_config *out)
{
    char file[4096];
    struct stat info;
    if (!path || !out) return TSI_FAIL(TS_ERR_NULL, "model config: an argument is NULL");
    *out = (ts_model_config){ .struct_size = sizeof *out };
    bool directory = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    snprintf(file, sizeof file, "%s%s", path, directory ? "/config.json" : "");
    char *text = NULL;
    size_t length = 0;
    ts_json_document *document = NULL;
    ts_status status = tsi_file_text(file, &text, &length);
    if (status == TS_OK) status = ts_json_parse(file, text, length, &document);
    tsi_members root = { file, document ? ts_json_root(document) : NULL, TS_OK };
    if (status == TS_OK && ts_json_kind_of(root.object) != TS_JSON_OBJECT)
        status = TSI_FAIL(TS_ERR_ARG, "%s: is not a JSON object", file);
    if (status == TS_OK) status = family_of(&root, &out->family);
    if (status == TS_OK) {
        out->exact = 1;
        out->init_deviation = tsi_member_real(&root, "initializer_range", 0, 1e3, 0.02);
        status = out->family == TS_MODEL_GPT2 ? read_gpt2(&root, out) : read_llama(&root, out);
    }
    if (status == TS_OK) status = tsi_model_config_check(file, out);
    ts_json_release(document);
    tsi_free(text);
    return status;
}
