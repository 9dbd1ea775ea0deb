/* SPDX-License-Identifier: Apache-2.0 */
/* model.h - published model families: Llama, Qwen3, Mixtral and GPT-2, read from and written to
 * their own files.
 *
 * A model is a module whose parameters have the names of the published checkpoint. Where they lie
 * is a plan over names: a built-in one, or text ("*.q_proj.weight: tp?:S(0)"). The same model runs
 * on one rank and on any mesh. */
#ifndef TESSERA_MODEL_H
#define TESSERA_MODEL_H

#include "nn.h"

typedef struct ts_model ts_model;

typedef enum ts_model_family {
    TS_MODEL_LLAMA,
    TS_MODEL_QWEN3,
    TS_MODEL_MIXTRAL,
    TS_MODEL_GPT2
} ts_model_family;

typedef struct ts_model_config { /* zero: what the family's configuration says by default */
    size_t struct_size;
    int64_t vocab, hidden, intermediate, layers, heads, kv_heads, head_dim, positions;
    int64_t experts, experts_per_token;
    double norm_epsilon, init_deviation;
    double rope_theta, rope_factor, rope_low, rope_high,
        rope_original; /* scaling of rotary positions */
    double rope_attention, rope_beta_fast, rope_beta_slow;
    int32_t family;    /* ts_model_family */
    int32_t rope_type; /* 0 default, 1 linear, 2 llama3, 3 yarn, 4 dynamic */
    int32_t tied;      /* the head is the embedding */
    int32_t attention_bias;
    int32_t gelu_tanh; /* GPT-2: the tanh form */
    int32_t reserved;
} ts_model_config;

typedef struct ts_model_options {
    size_t struct_size;
    const char *plan; /* "dp", "tp", "sp", or lines of a plan; NULL: "tp" where the mesh has an axis
                         tp, else "dp" */
    int32_t dtype;    /* of parameters; 0: f32 */
    int32_t compute;  /* dtype of products; 0: as stored */
} ts_model_options;

TS_BEGIN_C

/* config.json of a directory, or the file itself. */
TS_API TS_NODISCARD ts_status ts_model_config_read(const char *path, ts_model_config *out);
TS_API ts_model *
ts_model_create(ts_mesh *mesh, const ts_model_config *config,
                const ts_model_options *options); /* maker [coll]; random weights by name */
/* config.json and weights of a directory: each rank reads only its region. maker [coll] */
TS_API ts_model *ts_model_load(ts_mesh *mesh, const char *directory,
                               const ts_model_options *options);
/* Writes config.json and model.safetensors, from rank 0 of the mesh. recorded [coll] */
TS_API ts_status ts_model_save(ts_model *model, const char *directory);
TS_API void ts_model_destroy(ts_model *model); /* [any] accepts NULL */

TS_API ts_module *ts_model_module(ts_model *model);                          /* getter */
TS_API const ts_model_config *ts_model_configuration(const ts_model *model); /* getter */
/* Placements of token ids [batch, length] on this model's mesh: the batch is sharded over an axis
 * dp. */
TS_API const ts_sharding *ts_model_tokens(const ts_model *model); /* getter */
/* Logits [batch, length, vocabulary] of ids [batch, length]. maker */
TS_API ts_tensor *ts_model_logits(ts_model *model, ts_tensor *ids);
/* Mean loss of predicting labels [batch, length] (-100: not counted). maker */
TS_API ts_tensor *ts_model_loss(ts_model *model, ts_tensor *ids, ts_tensor *labels);
/* A built-in plan of a family as text, for printing and changing; NULL: there is none of that name.
 */
TS_API const char *ts_model_plan_text(ts_model_family family, const char *name);

TS_END_C
#endif
