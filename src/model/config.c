/* SPDX-License-Identifier: Apache-2.0 */
/* config.c - reading the configuration that published models come with. What a model needs and we
 * cannot do is refused here, never computed wrongly. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "model/config.h"

ts_status tsi_file_text(const char *path, char **out, size_t *length)
{
    enum { TEXT_BYTES_MAX = 64 << 20 };
    return tsi_file_read(path, TEXT_BYTES_MAX, out, length);
}

static ts_status family_of(const char *path, const tsi_json *root, int32_t *out)
{
    static const char *const names[] = { "llama", "qwen3", "mixtral", "gpt2", NULL };
    const char *type = tsi_json_text(tsi_json_member(root, "model_type"), "");
    for (int32_t i = 0; names[i]; i++)
        if (strcmp(type, names[i]) == 0) {
            *out = i;
            return TS_OK;
        }
    const char *near = tsi_text_nearest(type, names);
    return TSI_FAIL(TS_ERR_ARG,
                    "%s: model_type \"%s\" is none of llama, qwen3, mixtral, gpt2%s%s%s", path,
                    type, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

static int64_t whole(const tsi_json *root, const char *name, int64_t otherwise)
{
    const tsi_json *value = tsi_json_member(root, name);
    return tsi_json_kind_of(value) == TSI_JSON_NULL ? otherwise : tsi_json_int(value, otherwise);
}

static double real(const tsi_json *root, const char *name, double otherwise)
{
    const tsi_json *value = tsi_json_member(root, name);
    return tsi_json_kind_of(value) == TSI_JSON_NULL ? otherwise : tsi_json_real(value, otherwise);
}

/* The layers a window holds for: all, those of "layer_types", or those from "max_window_layers" on.
 */
static ts_status read_window(const char *path, const tsi_json *root, ts_model_config *c)
{
    const tsi_json *types = tsi_json_member(root, "layer_types");
    bool qwen = c->family == TS_MODEL_QWEN3;
    bool used = tsi_json_bool(tsi_json_member(root, "use_sliding_window"), !qwen);
    c->window = used && c->family != TS_MODEL_LLAMA ? whole(root, "sliding_window", 0) : 0;
    if (c->window <= 0) return TS_OK;
    if (c->layers > 64 * TS_WINDOW_WORDS)
        return TSI_FAIL(TS_ERR_ARG, "%s: a sliding window with %lld layers; at most %d have one",
                        path, (long long)c->layers, 64 * TS_WINDOW_WORDS);
    int64_t first = qwen ? whole(root, "max_window_layers", 28) : 0;
    for (int64_t i = 0; i < c->layers; i++) {
        bool slides = i >= first;
        if (qwen && tsi_json_kind_of(types) == TSI_JSON_LIST)
            slides = strcmp(tsi_json_text(tsi_json_item(types, i), ""), "sliding_attention") == 0;
        if (slides) c->window_layers[i / 64] |= (uint64_t)1 << (i % 64);
    }
    return TS_OK;
}

/* What families default to, where a file does not say. */
static const struct {
    int64_t positions;
    double epsilon, theta;
} family_default[] = { { 2048, 1e-6, 1e4 }, { 32768, 1e-6, 1e4 }, { 131072, 1e-5, 1e6 } };

static ts_status read_llama(const char *path, const tsi_json *root, ts_model_config *c)
{
    c->vocab = whole(root, "vocab_size", 0);
    c->hidden = whole(root, "hidden_size", 0);
    c->intermediate = whole(root, "intermediate_size", 0);
    c->layers = whole(root, "num_hidden_layers", 0);
    c->heads = whole(root, "num_attention_heads", 0);
    c->kv_heads = whole(root, "num_key_value_heads", c->heads);
    c->head_dim = whole(root, "head_dim", c->heads > 0 ? c->hidden / c->heads : 0);
    c->positions = whole(root, "max_position_embeddings", family_default[c->family].positions);
    c->norm_epsilon = real(root, "rms_norm_eps", family_default[c->family].epsilon);
    c->rope_theta = family_default[c->family].theta;
    c->tied = tsi_json_bool(tsi_json_member(root, "tie_word_embeddings"), false);
    if (c->family != TS_MODEL_MIXTRAL)
        c->attention_bias = tsi_json_bool(tsi_json_member(root, "attention_bias"), false);
    if (c->family == TS_MODEL_LLAMA)
        c->mlp_bias = tsi_json_bool(tsi_json_member(root, "mlp_bias"), false);
    c->experts = whole(root, "num_local_experts", 0);
    c->experts_per_token = whole(root, "num_experts_per_tok", 2);
    TSI_TRY(tsi_activation_parse(path, tsi_json_text(tsi_json_member(root, "hidden_act"), "silu"),
                                 &c->activation));
    TSI_TRY(read_window(path, root, c));
    return tsi_rope_read(path, root, c);
}

static ts_status read_gpt2(const char *path, const tsi_json *root, ts_model_config *c)
{
    c->vocab = whole(root, "vocab_size", 0);
    c->hidden = whole(root, "n_embd", 0);
    c->layers = whole(root, "n_layer", 0);
    c->heads = c->kv_heads = whole(root, "n_head", 0);
    c->head_dim = c->heads > 0 ? c->hidden / c->heads : 0;
    c->intermediate = whole(root, "n_inner", 4 * c->hidden);
    c->positions = whole(root, "n_positions", 1024);
    c->norm_epsilon = real(root, "layer_norm_epsilon", 1e-5);
    c->tied = tsi_json_bool(tsi_json_member(root, "tie_word_embeddings"), true);
    c->attention_unscaled = !tsi_json_bool(tsi_json_member(root, "scale_attn_weights"), true);
    c->attention_by_layer =
        tsi_json_bool(tsi_json_member(root, "scale_attn_by_inverse_layer_idx"), false);
    if (tsi_json_bool(tsi_json_member(root, "add_cross_attention"), false))
        return TSI_FAIL(TS_ERR_ARG, "%s: models with cross-attention are not supported", path);
    return tsi_activation_parse(
        path, tsi_json_text(tsi_json_member(root, "activation_function"), "gelu_new"),
        &c->activation);
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
    if (c->heads % c->kv_heads != 0)
        return TSI_FAIL(TS_ERR_ARG, "%s: %lld heads are no multiple of %lld key heads", what,
                        (long long)c->heads, (long long)c->kv_heads);
    if (c->family != TS_MODEL_GPT2 && c->head_dim % 2 != 0)
        return TSI_FAIL(TS_ERR_ARG, "%s: a head size of %lld cannot be rotated in pairs", what,
                        (long long)c->head_dim);
    if (c->family == TS_MODEL_MIXTRAL &&
        (c->experts <= 0 || c->experts_per_token <= 0 || c->experts_per_token > c->experts))
        return TSI_FAIL(TS_ERR_ARG, "%s: %lld experts of which %lld are chosen", what,
                        (long long)c->experts, (long long)c->experts_per_token);
    return TS_OK;
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
    tsi_json_document *document = NULL;
    ts_status status = tsi_file_text(file, &text, &length);
    if (status == TS_OK) status = tsi_json_parse(file, text, length, &document);
    const tsi_json *root = document ? tsi_json_root(document) : NULL;
    if (status == TS_OK) status = family_of(file, root, &out->family);
    if (status == TS_OK) {
        out->init_deviation = real(root, "initializer_range", 0.02);
        status =
            out->family == TS_MODEL_GPT2 ? read_gpt2(file, root, out) : read_llama(file, root, out);
    }
    if (status == TS_OK) status = tsi_model_config_check(file, out);
    tsi_json_release(document);
    tsi_free(text);
    return status;
}
