/* SPDX-License-Identifier: Apache-2.0 */
/* model_files.c - models read and written back on several meshes: the same bytes, whatever the
 * number of ranks, the spelling of names, the number of files and the dtype. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "harness/test.h"
#include "tessera/tessera.h"

enum { PATH_BYTES = 512 };

static const char *const models[] = { "llama_bias", "llama_long", "qwen3_window", "mixtral_window",
                                      "gpt2_plain", "mixtral",    "qwen3_moe",    "deepseek_v3" };

static void folder_of(const test *t, const char *name, char *out)
{
    (void)snprintf(out, PATH_BYTES, TS_BINARY_DIR "/model-%s-%s-%lld", name, t->engine,
                   (long long)t->count);
}

static void golden(char *out, const char *model)
{
    (void)snprintf(out, PATH_BYTES, TS_SOURCE_DIR "/tests/golden/models/%s", model);
}

static char *slurp(const char *folder, const char *name, size_t *size)
{
    char path[2 * PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    (void)fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *text = malloc(*size + 1);
    if (text && fread(text, 1, *size, file) != *size) {
        free(text);
        text = NULL;
    }
    (void)fclose(file);
    return text;
}

/* Both have the file with the same bytes, or neither has it. */
static bool same_file(const char *a, const char *b, const char *name)
{
    size_t size_a = 0, size_b = 0;
    char *text_a = slurp(a, name, &size_a), *text_b = slurp(b, name, &size_b);
    bool same =
        !text_a == !text_b && size_a == size_b && (!text_a || memcmp(text_a, text_b, size_a) == 0);
    free(text_a);
    free(text_b);
    return same;
}

static void same_model(test *t, const char *from, const char *to)
{
    static const char *const names[] = { "config.json",
                                         "model.safetensors.index.json",
                                         "model.safetensors",
                                         "model-00001-of-00002.safetensors",
                                         "model-00002-of-00002.safetensors",
                                         "model-00001-of-00003.safetensors",
                                         "model-00003-of-00003.safetensors" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        TEST_SAY(t, same_file(from, to, names[i]), "%s of %s has changed", names[i], from);
}

static ts_mesh *mesh_of(test *t)
{
    return ts_mesh_create(t->me, t->count == 4 ? "dp=2, tp=2" : "tp=*");
}

static void remove_folder(test *t, const char *folder)
{
    char command[PATH_BYTES + 16];
    ts_group_barrier(ts_group_world(t->me), NULL);
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (t->index == 0) TEST_CHECK(t, system(command) == 0);
    ts_group_barrier(ts_group_world(t->me), NULL);
}

TS_TEST_RANKS(model_round_trip, 1, 2, 3, 4)
{
    char to[PATH_BYTES], from[PATH_BYTES];
    folder_of(t, "round", to);
    ts_mesh *mesh = mesh_of(t);
    ts_model_options options = TS_INIT(ts_model_options);
    options.dtype = TS_MODEL_DTYPE_STORED;
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        golden(from, models[i]);
        ts_model *model = ts_model_load(mesh, from, &options);
        TEST_OK(t, ts_model_save(model, to));
        ts_model_destroy(model);
        if (t->index == 0) same_model(t, from, to);
        remove_folder(t, to);
    }
    TEST_OK(t, ts_rank_status(t->me));
}

/* Read as f32, written as f32: bigger files, the same model. */
TS_TEST_RANKS(model_other_dtype, 1, 3)
{
    char to[PATH_BYTES], again[2 * PATH_BYTES], from[PATH_BYTES];
    folder_of(t, "dtype", to);
    (void)snprintf(again, sizeof again, "%s/again", to);
    ts_mesh *mesh = mesh_of(t);
    golden(from, "qwen3_window");
    ts_model *model = ts_model_load(mesh, from, NULL);
    TEST_OK(t, ts_model_save(model, to));
    ts_model_options options = TS_INIT(ts_model_options);
    options.dtype = TS_MODEL_DTYPE_STORED;
    ts_group_barrier(ts_group_world(t->me), NULL);
    ts_model *wide = ts_model_load(mesh, to, &options);
    ts_tensor *w = ts_module_find_param(ts_model_module(wide), "model.norm.weight");
    TEST_EQ(t, ts_tensor_dtype(w), TS_DTYPE_F32);
    TEST_OK(t, ts_model_save(wide, again));
    if (t->index == 0) same_model(t, to, again);
    int equal = 0;
    ts_equal(w, ts_module_find_param(ts_model_module(model), "model.norm.weight"), &equal);
    TEST_EQ(t, equal, 1);
    ts_model_destroy(model);
    ts_model_destroy(wide);
    remove_folder(t, to);
}

/* A layer behind the model's last (which predicts further tokens, say) is not made and not lost:
 * written back it has its bytes, from published files and from a checkpoint of ours. */
TS_TEST_RANKS(model_layers_beyond_are_kept, 1, 2)
{
    char from[PATH_BYTES], to[PATH_BYTES], ours[PATH_BYTES], again[PATH_BYTES],
        golden_path[PATH_BYTES];
    char command[6 * PATH_BYTES];
    folder_of(t, "beyond-from", from);
    folder_of(t, "beyond-to", to);
    folder_of(t, "beyond-ours", ours);
    folder_of(t, "beyond-again", again);
    golden(golden_path, "deepseek_v3");
    (void)snprintf(command, sizeof command,
                   "rm -rf '%s' '%s' && cp -r '%s' '%s' && sed -i "
                   "'s/\"num_hidden_layers\": 3/\"num_hidden_layers\": 2/' '%s/config.json'",
                   from, ours, golden_path, from, from);
    if (t->index == 0) TEST_EQ(t, system(command), 0);
    ts_convert_options convert = TS_INIT(ts_convert_options);
    convert.to = TS_CONVERT_TESSERA;
    if (t->index == 0) TEST_OK(t, ts_checkpoint_convert(from, ours, &convert));
    ts_group_barrier(ts_group_world(t->me), NULL);
    ts_mesh *mesh = mesh_of(t);
    ts_model_options options = TS_INIT(ts_model_options);
    options.dtype = TS_MODEL_DTYPE_STORED;
    ts_model *model = ts_model_load(mesh, from, &options);
    TEST_CHECK(
        t, !ts_module_find_param(ts_model_module(model), "model.layers.2.self_attn.o_proj.weight"));
    TEST_OK(t, ts_model_save(model, to));
    ts_model_destroy(model);
    if (t->index == 0) same_model(t, from, to);
    model = ts_model_load(mesh, ours, &options);
    TEST_OK(t, ts_model_save(model, again));
    ts_model_destroy(model);
    ts_archive *archive = NULL;
    if (t->index == 0) TEST_OK(t, ts_archive_open(again, &archive));
    if (archive)
        TEST_CHECK(t, ts_archive_find(archive, "model.layers.2.self_attn.o_proj.weight") >= 0);
    ts_archive_close(archive);
    remove_folder(t, from);
    remove_folder(t, to);
    remove_folder(t, ours);
    remove_folder(t, again);
}

static bool has_words(const char *folder, const char *name, const char *words)
{
    size_t size = 0;
    char *text = slurp(folder, name, &size);
    if (text) text[size] = '\0';
    bool found = text && strstr(text, words) != NULL;
    free(text);
    return found;
}

/* Repair 19: config.json tells the dtype of the weights beside it, and the other files of the
 * directory come along, but for weights in other formats. */
TS_TEST_RANKS(model_saved_with_its_files, 1, 2)
{
    char from[PATH_BYTES], to[PATH_BYTES], command[6 * PATH_BYTES];
    folder_of(t, "files", from);
    folder_of(t, "copies", to);
    ts_mesh *mesh = mesh_of(t);
    golden(to, "qwen3_window");
    (void)snprintf(command, sizeof command,
                   "mkdir -p '%s' && cd '%s' && cp '%s'/model*safetensors* . && "
                   "sed '0,/{/s//{\"torch_dtype\": \"bfloat16\", \"x\": {\"dtype\": \"int4\"}, /' "
                   "'%s/config.json' > config.json && echo '{}' > generation_config.json && "
                   "echo '{}' > tokenizer_config.json && echo free > LICENSE && mkdir sub && "
                   "echo no > pytorch_model.bin && mkfifo pipe && echo no > .hidden",
                   from, from, to, to);
    if (t->index == 0) TEST_SAY(t, system(command) == 0, "%s", command);
    ts_group_barrier(ts_group_world(t->me), NULL);
    folder_of(t, "copies", to);
    ts_model *model = ts_model_load(mesh, from, NULL);
    TEST_OK(t, ts_model_save(model, to));
    ts_model_destroy(model);
    if (t->index == 0) {
        TEST_CHECK(t, same_file(from, to, "generation_config.json"));
        TEST_CHECK(t, same_file(from, to, "tokenizer_config.json") &&
                          has_words(to, "LICENSE", "free"));
        TEST_CHECK(t, !has_words(to, "pytorch_model.bin", "no") && !has_words(to, ".hidden", "no"));
        TEST_CHECK(t, has_words(to, "config.json",
                                "\"torch_dtype\": \"float32\", \"x\": {\"dtype\": \"int4\"}"));
    }
    remove_folder(t, from);
    remove_folder(t, to);
    ts_model_config c = TS_INIT(ts_model_config);
    c.vocab = 7;
    c.hidden = c.intermediate = 4;
    c.layers = c.heads = 1;
    ts_model_options options = TS_INIT(ts_model_options);
    options.dtype = TS_DTYPE_BF16;
    model = ts_model_create(mesh, &c, &options);
    TEST_OK(t, ts_model_save(model, to));
    if (t->index == 0)
        TEST_CHECK(t, has_words(to, "config.json", "\"torch_dtype\": \"bfloat16\"\n}"));
    ts_model_destroy(model);
    remove_folder(t, to);
    TEST_OK(t, ts_rank_status(t->me));
}

/* Made, saved, loaded: the same bits on any mesh, and the configuration says what it was. */
TS_TEST_RANKS(model_made_and_saved, 1, 2, 3)
{
    char to[PATH_BYTES], again[2 * PATH_BYTES];
    folder_of(t, "made", to);
    (void)snprintf(again, sizeof again, "%s/again", to);
    ts_mesh *mesh = mesh_of(t);
    ts_model_config c = TS_INIT(ts_model_config);
    c.vocab = 37;
    c.hidden = 12;
    c.intermediate = 14;
    c.layers = 2;
    c.heads = 3;
    for (int32_t family = 0; family <= TS_MODEL_DEEPSEEK_V3; family++) {
        bool latent = family == TS_MODEL_DEEPSEEK_V3, moe = family == TS_MODEL_QWEN3_MOE;
        c.family = family;
        c.tied = family == TS_MODEL_GPT2;
        c.experts = family == TS_MODEL_MIXTRAL || moe ? 5 : latent ? 6 : 0;
        c.experts_per_token = c.experts ? 2 : 0;
        c.expert_width = c.experts ? 7 : 0;
        c.dense_layers[0] = moe ? 1 : 0;
        c.dense_first = latent;
        c.shared_experts = latent ? 2 : 0;
        c.expert_groups = latent ? 3 : 0;
        c.groups_per_token = latent ? 2 : 0;
        c.kv_rank = latent ? 5 : 0;
        c.plain_dim = c.value_dim = latent ? 3 : 0;
        ts_model *model = ts_model_create(mesh, &c, NULL);
        TEST_OK(t, ts_model_save(model, to));
        ts_group_barrier(ts_group_world(t->me), NULL);
        /* Readers that know types refuse whole numbers where reals are meant. */
        if (latent) TEST_CHECK(t, has_words(to, "config.json", "\"routed_scaling_factor\": 1.0"));
        ts_model *read = ts_model_load(mesh, to, NULL);
        TEST_OK(t, ts_model_save(read, again));
        if (t->index == 0) same_model(t, to, again);
        const ts_model_config *a = ts_model_configuration(model), *b = ts_model_configuration(read);
        TEST_CHECK(t, a && b && a->head_dim == b->head_dim && a->rope_theta == b->rope_theta &&
                          a->positions == b->positions && a->tied == b->tied &&
                          a->experts == b->experts && a->expert_width == b->expert_width &&
                          a->dense_layers[0] == b->dense_layers[0] && a->kv_rank == b->kv_rank &&
                          a->value_dim == b->value_dim);
        ts_model_destroy(model);
        ts_model_destroy(read);
        remove_folder(t, to);
    }
    TEST_OK(t, ts_rank_status(t->me));
}

/* What the files of a family have no words for is refused: it would be lost with the first save. */
TS_TEST_RANKS(model_of_another_family, 1, 2)
{
    static const ts_model_config asked[] = {
        { .family = TS_MODEL_LLAMA, .experts = 4, .experts_per_token = 2 },
        { .family = TS_MODEL_LLAMA, .window = 3, .window_layers = { 1 } },
        { .family = TS_MODEL_QWEN3, .plain_dim = 2 },
        { .family = TS_MODEL_QWEN3, .mlp_bias = 1 },
        { .family = TS_MODEL_QWEN3, .attention_unscaled = 1 },
        { .family = TS_MODEL_GPT2, .kv_heads = 1 },
        { .family = TS_MODEL_GPT2, .head_dim = 6 },
        { .family = TS_MODEL_MIXTRAL, .experts = 4, .experts_per_token = 2, .attention_bias = 1 },
        { .family = TS_MODEL_MIXTRAL, .experts = 4, .experts_per_token = 2, .shared_experts = 1 },
        { .family = TS_MODEL_MIXTRAL, .experts = 4, .experts_per_token = 2, .expert_step = 2 },
        { .family = TS_MODEL_QWEN3_MOE, .experts = 4, .experts_per_token = 2, .dense_first = 1 },
        { .family = TS_MODEL_QWEN3_MOE, .experts = 4, .experts_per_token = 2, .route_scale = 2 },
        { .family = TS_MODEL_QWEN3_MOE,
          .experts = 4,
          .experts_per_token = 2,
          .expert_groups = 2,
          .groups_per_token = 1 },
        { .family = TS_MODEL_DEEPSEEK_V3 + 1 },
    };
    ts_mesh *mesh = mesh_of(t);
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        ts_model_config c = asked[i];
        c.struct_size = sizeof c;
        c.vocab = 37;
        c.hidden = 12;
        c.intermediate = 14;
        c.layers = 2;
        c.heads = 3;
        ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
        TEST_SAY(t, ts_model_declare(mesh, &c, NULL) == NULL, "configuration %d is taken", (int)i);
        TEST_STATUS(t, ts_scope_close(scope), TS_ERR_ARG);
        TEST_SAYS(t, ts_rank_error(t->me)->text, "family");
    }
}
