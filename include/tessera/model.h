/* SPDX-License-Identifier: Apache-2.0 */
/* model.h - published model families: Llama, Qwen3, Mixtral, GPT-2, Qwen3-MoE and DeepSeek-V3, read
 * from and written to their own files.
 *
 * A model is a tree of modules whose parameters have the names of the published checkpoint: a block
 * for the embedding, one for each layer with its norms, attention and mlp below it, one for the
 * last norm with the head. Where parameters lie is a plan over names: a built-in one, or text
 * ("*.q_proj.weight: tp?:S(0)"). The same model runs on one rank and on any mesh. */
#ifndef TESSERA_MODEL_H
#define TESSERA_MODEL_H

#include "mask.h"
#include "parallel.h"
#include "pipeline.h"

typedef struct ts_model ts_model;
typedef struct ts_model_cache ts_model_cache;

typedef enum ts_model_family {
    TS_MODEL_LLAMA,
    TS_MODEL_QWEN3,
    TS_MODEL_MIXTRAL,
    TS_MODEL_GPT2,
    TS_MODEL_QWEN3_MOE,
    TS_MODEL_DEEPSEEK_V3
} ts_model_family;

typedef enum ts_rope_type { /* published scalings of rotary positions */
                            TS_ROPE_DEFAULT,
                            TS_ROPE_LINEAR,
                            TS_ROPE_LLAMA3,
                            TS_ROPE_YARN,
                            TS_ROPE_DYNAMIC,
                            TS_ROPE_LONGROPE
} ts_rope_type;

typedef enum ts_activation {                        /* of feed-forward blocks */
                             TS_ACTIVATION_DEFAULT, /* silu; GPT-2: gelu in its tanh form */
                             TS_ACTIVATION_SILU,
                             TS_ACTIVATION_GELU,
                             TS_ACTIVATION_GELU_TANH,
                             TS_ACTIVATION_QUICK_GELU, /* x sigmoid(1.702 x) */
                             TS_ACTIVATION_RELU,
                             TS_ACTIVATION_RELU2,
                             TS_ACTIVATION_SIGMOID,
                             TS_ACTIVATION_TANH,
                             TS_ACTIVATION_LINEAR
} ts_activation;

enum { TS_ROPE_FACTORS_MAX = 256, TS_WINDOW_WORDS = 4 };

typedef struct ts_model_config { /* zero: what the family's configuration says by default */
    size_t struct_size;
    int64_t vocab, hidden, intermediate, layers, heads, kv_heads, head_dim, positions;
    int64_t experts, experts_per_token;
    int64_t window; /* a query sees that many keys, itself included; 0: all before it */
    uint64_t window_layers[TS_WINDOW_WORDS]; /* bit i: the window holds for layer i */
    double norm_epsilon, init_deviation;
    double rope_theta, rope_factor, rope_low, rope_high,
        rope_original; /* scaling of rotary positions */
    double rope_attention, rope_beta_fast, rope_beta_slow;
    double rope_mscale, rope_mscale_all;    /* yarn; 0: not given */
    double rope_short[TS_ROPE_FACTORS_MAX]; /* longrope: one divisor per pair of a head */
    double rope_long[TS_ROPE_FACTORS_MAX];  /* for sequences longer than rope_original */
    int32_t family;                         /* ts_model_family */
    int32_t rope_type;                      /* ts_rope_type */
    int32_t rope_smooth;                    /* yarn: 1: the ends of the ramp are not rounded */
    int32_t tied;                           /* the head is the embedding; GPT-2: as a rule */
    int32_t attention_bias, mlp_bias;       /* Llama, Qwen3 */
    int32_t activation;                     /* ts_activation */
    int32_t attention_unscaled;             /* GPT-2: 1: scores are not divided by sqrt(D) */
    int32_t attention_by_layer;             /* GPT-2: 1: scores of layer i are divided by i + 1 */
    int32_t exact;          /* 1: norm_epsilon and init_deviation are meant, 0 too */
    int64_t expert_width;   /* intermediate size of one expert; 0: intermediate */
    int64_t shared_experts; /* DeepSeek: so many experts' widths see every token; 0: none */
    int64_t expert_groups, groups_per_token; /* DeepSeek: experts are chosen from the best groups */
    int64_t dense_first;                     /* DeepSeek: the first layers have no experts */
    int64_t expert_step; /* Qwen3-MoE: layers step-1, 2 step-1, ... have experts; 0: all */
    uint64_t dense_layers[TS_WINDOW_WORDS]; /* bit i: layer i has no experts */
    double route_scale;                     /* on the weights of the chosen experts; 0: 1 */
    int64_t q_rank, kv_rank;                /* DeepSeek: latent sizes of q (0: none), of k and v */
    int64_t plain_dim, value_dim; /* DeepSeek: per head, what is not rotated; a value's size. What
                                     is rotated is head_dim */
    int32_t route_sum;       /* 1: the weights of the chosen experts are divided by their sum */
    int32_t rope_interleave; /* DeepSeek: 1: rotated pairs are neighbours */
} ts_model_config;

enum { TS_MODEL_DTYPE_STORED = -1 };

/* What an axis of a training mesh does, by its name. */
typedef enum ts_role {
    TS_ROLE_PIPELINE,  /* pp: stages */
    TS_ROLE_REPLICATE, /* replicate, or dp: copies; the batch is cut */
    TS_ROLE_FSDP,      /* fsdp: parameters and the batch are cut */
    TS_ROLE_CONTEXT,   /* cp: the sequence is cut */
    TS_ROLE_TENSOR,    /* tp: layers are cut */
    TS_ROLE_COUNT
} ts_role;

typedef struct ts_roles {
    size_t struct_size;
    int64_t ranks;               /* of the mesh; 0: an axis is "*" */
    int64_t size[TS_ROLE_COUNT]; /* of the role's axis; 0: there is none */
} ts_roles;

typedef struct ts_model_options {
    size_t struct_size;
    const char *plan;  /* "dp", "tp", "sp"; or lines "pattern: placements", of which "base: tp" says
                          what holds for the rest; or a file of such lines. NULL: that of
                          ts_model_plan_default */
    int32_t dtype;     /* of parameters; 0: f32; TS_MODEL_DTYPE_STORED: as in the file */
    int32_t compute;   /* dtype of products; 0: as stored */
    int32_t attention; /* ts_attention_algorithm, where an axis cp cuts the sequence */
    int32_t balance;   /* ts_balance of that cut; auto: head and tail, by cost of documents */
    int64_t ep;        /* the experts of a layer are cut over groups of so many neighbouring ranks,
                          evenly or not; 0: they are not */
    /* Of routers; 0: none. Each layer's losses are added in backward (ts_model_router_factor). */
    double aux_loss;      /* on E sum over experts of share of choices * mean score, of a batch */
    double sequence_loss; /* the same of each sequence, their mean */
    double z_loss;        /* on the mean of (log sum of exponentials)^2 of the router's rows */
    double bias_rate;     /* ts_model_router_step moves selection biases by it (deepseek_v3) */
    double capacity;      /* an expert takes ceil(capacity T K / E) choices of a sequence of T, in
                             the order of tokens; others are dropped: their weights are 0 */
    int32_t count_loads;  /* 1: routers count, without any of the above, too */
    int32_t saves_cut; /* 1: with "sp", what the first products of a layer save for backward stays
                          cut over tp, and is gathered once more there: less memory, more bytes */
    int64_t loss_rows; /* ts_model_loss makes the logits of so many rows at a time, with their part
                          of the gradients: they never exist as a whole; -1: as
                          ts_linear_cross_entropy chooses; 0: of all rows. Where classes are cut
                          over tp, and in stages: of all */
} ts_model_options;

/* What ts_experts_place did. */
typedef struct ts_experts_moves {
    size_t struct_size;
    double ratio_before,
        ratio_after;            /* load of the busiest rank over the mean, of the worst layer */
    int64_t moved;              /* experts that changed their rank, of all layers */
    int64_t bytes, bytes_bound; /* received by all ranks, with the optimiser's state; the least
                                   that must be */
    int64_t copied;     /* experts that every rank computes for its own rows, of all layers */
    int64_t copy_bytes; /* received by all ranks whenever these are spread: once a forward */
} ts_experts_moves;

/* What the router of one layer did since ts_model_router_step: of all ranks together. */
typedef struct ts_router_report {
    size_t struct_size;
    int64_t layer;                          /* of the model */
    int64_t tokens, dropped;                /* tokens seen; choices that had no room */
    double load_ratio;                      /* choices of the busiest expert over the mean */
    double entropy;                         /* of the shares of choices, in nats; log E: even */
    double aux_loss, sequence_loss, z_loss; /* mean of calls by tokens, with their factors */
} ts_router_report;

/* A model as a pipeline; see ts_model_pipeline. */
typedef struct ts_model_pipeline_options {
    size_t struct_size;
    ts_mesh *mesh; /* with the axis pp */
    const ts_schedule *schedule;
    const int64_t *blocks;   /* of each stage; NULL: as even as can be */
    ts_micro_input_fn input; /* token ids of a micro-batch, placed as ts_model_tokens */
    ts_micro_loss_fn loss;   /* from its logits; both may be NULL where logits alone are wanted */
    void *context;           /* of all */
    ts_micro_begin_fn begin; /* (optional) before computations of a micro-batch: its documents */
    /* (optional) The shape of a micro-batch's ids, where all ranks know it: what goes between
     * stages is then not announced by message. */
    ts_status (*shape)(void *context, ts_rank *me, int64_t micro, ts_shape *ids);
    int64_t prefetch; /* as in ts_pipeline_options */
} ts_model_pipeline_options;

TS_BEGIN_C

/* [any] Real defaults, after which every number is meant as it stands (types.h). */
TS_API void ts_model_config_init(ts_model_config *config);
TS_API void ts_model_options_init(ts_model_options *options);
TS_API void ts_model_pipeline_options_init(ts_model_pipeline_options *options);

/* config.json of a directory, or the file itself. */
TS_API TS_NODISCARD ts_status ts_model_config_read(const char *path, ts_model_config *out);
/* Names and shapes, no storage: what follows may still say how its blocks are run and where they
 * lie (ts_module_checkpoint, ts_module_on, ts_module_plan). makers */
TS_API ts_model *ts_model_declare(ts_mesh *mesh, const ts_model_config *config,
                                  const ts_model_options *options);
TS_API ts_model *ts_model_open(ts_mesh *mesh, const char *directory,
                               const ts_model_options *options); /* config.json of a directory */
/* Storage of this rank's shards, with random values by name or, of a directory, read from its
 * weights: each rank reads its regions, and holds no more than its shards and a piece. What
 * ts_module_materialize did to single blocks stays. recorded [coll] */
TS_API ts_status ts_model_materialize(ts_model *model);
/* Every block becomes a unit of sharded data parallelism (parallel.h), and what is tied between two
 * blocks one of the whole model: after plans and recomputation are said, before it is materialised.
 * Without an axis that cuts, gradients are reduced block by block. recorded */
TS_API ts_status ts_model_fsdp(ts_model *model, const ts_fsdp_options *options);
/* Declared and materialised at once, or opened and read. makers [coll] */
TS_API ts_model *ts_model_create(ts_mesh *mesh, const ts_model_config *config,
                                 const ts_model_options *options);
TS_API ts_model *ts_model_load(ts_mesh *mesh, const char *directory,
                               const ts_model_options *options);
/* Writes config.json and the weights, from rank 0 of the mesh. What was read goes back into files
 * of the same names, in the same order, with the dtypes of the parameters: byte for byte what it
 * came from if nothing changed and dtypes are those of the files; config.json tells the dtype that
 * is written, and the other files of the directory are copied. Tensors of the files that are no
 * parameters are left out. A model that was made gives one model.safetensors. recorded [coll] */
TS_API ts_status ts_model_save(ts_model *model, const char *directory);
TS_API void ts_model_destroy(ts_model *model); /* [any] accepts NULL */

TS_API ts_module *ts_model_module(ts_model *model); /* getter: the top of its tree */
/* The blocks in the order in which they run: embedding, each layer, norm with head. One tensor goes
 * in and one comes out; the model is one after the other. Names: ts_module_name. getters */
TS_API int64_t ts_model_block_count(const ts_model *model);
TS_API ts_module *ts_model_block(ts_model *model, int64_t index); /* NULL: there is none */
TS_API const ts_model_config *ts_model_configuration(const ts_model *model); /* getter */
/* Placements of token ids [batch, length] on this model's mesh: the batch is sharded over the axes
 * dp or replicate, and fsdp; the sequence is cut over an axis cp, head and tail at first, then as
 * the ids that came last. */
TS_API const ts_sharding *ts_model_tokens(const ts_model *model); /* getter */
/* The same for ids of a length, cut as the options' balance says for the mask that attention has:
 * causal, within `documents` (NULL: there are none). Activations follow the placements of the ids
 * that a model is given. maker; held as the results of ts_sharding_get */
TS_API const ts_sharding *ts_model_tokens_of(ts_model *model, int64_t length,
                                             const ts_mask *documents);
/* Rows of the batches to come are packed documents, which attention does not cross; NULL: they are
 * not. Retained until another is given. recorded */
TS_API ts_status ts_model_documents(ts_model *model, const ts_mask *documents);
/* Logits [batch, length, vocabulary] of ids [batch, length]. Of a model in stages every rank of the
 * pipeline asks with the same ids and gets them, without gradients. maker */
TS_API ts_tensor *ts_model_logits(ts_model *model, ts_tensor *ids);
/* ---- going on from tokens before: a cache has the keys and values that a model made of them. A
 * model may have several; one ends before its model. ---- */
TS_API ts_model_cache *ts_model_cache_create(ts_model *model);     /* maker: of no tokens yet */
TS_API void ts_model_cache_destroy(ts_model_cache *cache);         /* [any] accepts NULL */
TS_API int64_t ts_model_cache_length(const ts_model_cache *cache); /* getter: tokens of a row */
/* Forgets all tokens but the first `length`. recorded */
TS_API ts_status ts_model_cache_keep(ts_model_cache *cache, int64_t length);
/* Can `count` tokens go on from it? 0: with them the model computes those before otherwise, since
 * rotary positions are scaled by the length or experts take a share of the sequence. getter */
TS_API int32_t ts_model_cache_fits(const ts_model_cache *cache, int64_t count);
/* Logits [batch, length, vocabulary] of ids [batch, length] that stand behind the cache's tokens,
 * without gradients; the cache then has those tokens too. On any mesh, and of a model in stages: as
 * ts_model_logits of all tokens gives them, up to rounding. maker */
TS_API ts_tensor *ts_model_logits_after(ts_model_cache *cache, ts_tensor *ids);
/* Mean loss of predicting labels [batch, length] (-100: not counted). maker */
TS_API ts_tensor *ts_model_loss(ts_model *model, ts_tensor *ids, ts_tensor *labels);
/* ---- routers of experts: they count where the options ask for it. A forward that runs again in
 * backward counts once. ---- */
/* Layers with experts that this rank has. getter */
TS_API int64_t ts_model_router_count(const ts_model *model);
/* Of the index-th of them; load [experts] receives the choices of each, or is NULL. recorded [coll]
 */
TS_API ts_status ts_model_router_read(ts_model *model, int64_t index, ts_router_report *out,
                                      double *load);
/* Before an optimiser's step, after the backward of all its parts: selection biases move by
 * bias_rate sign(mean load - load), less the mean of that; the counts begin anew. recorded [coll]
 */
TS_API ts_status ts_model_router_step(ts_model *model);
/* What the caller multiplies the model's loss by before backward (1 / parts, a loss scale):
 * routers' losses are, too. 1 at first. recorded */
TS_API ts_status ts_model_router_factor(ts_model *model, double factor);
/* Experts go to the ranks of their groups so that loads [routers of this rank][experts] are even,
 * with as few moves as that takes: their parameters and the state that `optimizer` (or NULL) has of
 * them are redistributed, ragged. Where the busiest rank would still have more than 1.1 of the
 * mean, the largest experts are copied, as long as that brings it down: spread in every forward,
 * computed by each rank for its own rows, their gradients reduced to the one that is stored.
 * What a unit cuts further (ts_model_fsdp) it cuts as before, inside of what a rank of the group
 * has. Between steps: gradients are forgotten. Results stay what they were. A group is one axis.
 * recorded [coll] */
TS_API ts_status ts_experts_place(ts_model *model, ts_optimizer *optimizer, const double *loads,
                                  ts_experts_moves *out);
/* "layer 1: fsdp:RS(0:3,5|1,0); on all ranks: 0, 7" and a line each; like snprintf returns the
 * length it needs. */
TS_API size_t ts_experts_text(const ts_model *model, char *out, size_t size);
/* The model's blocks as stages, in order; the model is declared on ts_pipeline_mesh of options.mesh
 * and has no storage yet: ts_model_materialize then makes or reads this rank's blocks alone. maker,
 * agreed by all ranks of the mesh */
TS_API ts_pipeline *ts_model_pipeline(ts_model *model, const ts_model_pipeline_options *options);
/* The axes of "dp=2, tp=2" as roles, before there are ranks: another name, or none, is refused with
 * the nearest role, two axes of one role too, and a role of several ranks that is not available
 * yet.
 */
TS_API TS_NODISCARD ts_status ts_roles_parse(const char *mesh, ts_roles *out);
/* "sp" where the mesh has an axis tp, else "dp". */
TS_API const char *ts_model_plan_default(const ts_mesh *mesh);
/* A built-in plan of a family as text, for printing and changing; NULL: there is none of that name.
 */
TS_API const char *ts_model_plan_text(ts_model_family family, const char *name);

TS_END_C

/* Each call also tells its place, for messages and events. */
#define ts_model_declare(...) (ts_here(TS_HERE), ts_model_declare(__VA_ARGS__))
#define ts_model_open(...) (ts_here(TS_HERE), ts_model_open(__VA_ARGS__))
#define ts_model_materialize(...) (ts_here(TS_HERE), ts_model_materialize(__VA_ARGS__))
#define ts_model_create(...) (ts_here(TS_HERE), ts_model_create(__VA_ARGS__))
#define ts_model_load(...) (ts_here(TS_HERE), ts_model_load(__VA_ARGS__))
#define ts_model_save(...) (ts_here(TS_HERE), ts_model_save(__VA_ARGS__))
#define ts_model_pipeline(...) (ts_here(TS_HERE), ts_model_pipeline(__VA_ARGS__))
#define ts_model_logits(...) (ts_here(TS_HERE), ts_model_logits(__VA_ARGS__))
#define ts_model_logits_after(...) (ts_here(TS_HERE), ts_model_logits_after(__VA_ARGS__))
#define ts_model_loss(...) (ts_here(TS_HERE), ts_model_loss(__VA_ARGS__))

#endif
