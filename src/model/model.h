/* SPDX-License-Identifier: Apache-2.0 */
/* model.h - what the families share: configuration, placements of activations, the body of a model.
 */
#ifndef TSI_MODEL_MODEL_H
#define TSI_MODEL_MODEL_H

#include "nn/module.h"
#include "tessera/checkpoint.h"
#include "tessera/model.h"
#include "tessera/parallel.h"

typedef struct tsi_model_stages tsi_model_stages; /* of a model in a pipeline (stages.c) */

struct ts_model {
    ts_module *root;   /* its forward: the blocks one after the other */
    ts_module **block; /* [layers + 2]: embedding, each layer, norm with head; owned by the tree */
    int64_t block_count;
    ts_model_config config;
    ts_rank *rank;
    ts_mesh *mesh;             /* retained */
    const ts_sharding *tokens; /* retained: ids */
    const ts_sharding *whole;  /* retained: activations before products: batch over dp */
    const ts_sharding
        *residual;   /* retained: between blocks; with "sp" the sequence over tp as well */
    ts_tensor *rope; /* retained: [rope_rows, head_dim], or NULL */
    int64_t rope_rows, rope_length; /* what the table was made for */
    char *config_text;              /* as read, to be written back; or NULL */
    ts_archive *origin;             /* what it was read from, its files closed; or NULL */
    int64_t ep;               /* experts are cut over groups of so many neighbours; 0, 1: not */
    uint32_t ep_axes;         /* of the mesh: those that make such a group */
    uint8_t *here;            /* [blocks]: 1: of this rank's stages; NULL: all are (stages.c) */
    tsi_model_stages *stages; /* or NULL */
    char tied_name[TSI_PARAM_NAME_MAX]; /* of the weight that two stages share; "": none */
    ts_tensor *tied_copy; /* that weight, where this rank holds it for the last stage alone; or NULL
                           */
    ts_tensor *unsaved; /* that weight, where another stage's is the one that is written; or NULL */
    ts_fsdp_dim_fn given_dim; /* of ts_model_fsdp's options, in a pipeline */
    void *given_context;
    int32_t compute;
    int32_t sequence;           /* with "sp": between blocks the sequence is cut, too */
    int32_t attention, balance; /* of ts_model_options */
    const ts_mask *documents;   /* retained, or NULL */
    int32_t has_units;
    int32_t saves_cut;          /* of ts_model_options */
    int64_t loss_rows;          /* likewise */
    ts_model_cache *cache;      /* that a call goes on from, while it runs; or NULL */
    struct tsi_router **router; /* [router_count]: of layers with experts (router.h) */
    int64_t router_count;
    ts_model_options router_options; /* of which the routers' part is used */
    double router_factor;
    uint64_t set_in, kept_in; /* numbers of recordings that set one of these, and noted them */
    ts_fsdp_options units;    /* as ts_model_fsdp was given them */
};

/* Families declare their blocks below model->root (part.h); what fails is recorded. */
struct tsi_builder;
void tsi_llama_build(const struct tsi_builder *b);
void tsi_gpt2_build(const struct tsi_builder *b);
const char *tsi_llama_plan(const char *name);
const char *tsi_gpt2_plan(const char *name);

/* Published names: "llama", and NULL after the last. */
extern const char *const tsi_family_names[];
/* Whether a layer's feed-forward is a choice of experts. */
bool tsi_model_has_experts(const ts_model_config *config, int64_t layer);

/* Before the tree is built: the axes over which experts are cut; the mesh may be split (spread.c).
 */
ts_status tsi_model_spread(ts_model *model, int64_t ep);
/* Lines of a built-in plan with those for cut experts before them; the caller frees. NULL:
 * recorded. */
char *tsi_model_spread_plan(const ts_model *model, const char *plan);

/* The same model on another mesh of the same axes, declared: as wrapped as `model` is, where its
 * parameters lie and which blocks run again, but for hooks. maker */
ts_model *tsi_model_twin(const ts_model *model, ts_mesh *mesh);

/* The mesh of all of the model's ranks: with the axis pp where it is a pipeline. */
ts_mesh *tsi_model_mesh(const ts_model *model);
ts_mesh *tsi_model_first(const ts_model *model); /* of the first of them alone; NULL: recorded */
/* Logits of a model in stages, on every rank, without gradients. maker [coll] */
ts_tensor *tsi_model_stages_logits(ts_model *model, ts_tensor *ids);
void tsi_model_stages_destroy(tsi_model_stages *stages); /* accepts NULL */
void tsi_model_routers_release(ts_model *model);
void tsi_model_routers_clear(ts_model *model); /* what they counted since the last step */
/* ts_model_router_step, but biases move by `times` as much: a f64 number on every rank, which the
 * host may not know; NULL: 1. */
ts_status tsi_model_router_step(ts_model *model, ts_tensor *times);
typedef struct tsi_router_counts { /* since the last step */
    struct ts_tensor *load;        /* variable [E]: choices; or NULL: nothing was counted */
    struct ts_tensor *numbers;     /* variable [4]: losses times tokens; choices dropped */
    int64_t tokens;
} tsi_router_counts;

/* ---- border.c */
/* Before a forward reads documents or router_factor: a step that is recorded notes them. */
ts_status tsi_model_at_border(ts_model *model);
void tsi_model_set(ts_model *model); /* after one of them was set */

/* The position of the first token of a call: behind those of the cache it goes on from. */
int64_t tsi_model_begin(const ts_model *model);
/* New keys and values of a layer go behind those of the cache; qkv[1] and [2] are then all of them.
 */
ts_status tsi_cache_join(ts_model_cache *cache, int64_t layer, ts_tensor *qkv[3]);
/* Cosines and sines of the rotary positions of so many tokens of a call, kept by the model. NULL:
 * recorded. */
ts_tensor *tsi_rope_table(ts_model *model, int64_t length);
/* Are the frequencies of sequences of both lengths the same? */
bool tsi_rope_same(const ts_model_config *config, int64_t length, int64_t other);
/* DeepSeek: a factor on the scores of attention where positions are scaled. */
double tsi_rope_sharpening_of_scores(const ts_model_config *config);
/* The model's activations follow ids that are cut otherwise than they were (sequence.c). */
ts_status tsi_model_follow(ts_model *model, ts_tensor *ids);
ts_status tsi_model_follow_to(ts_model *model, const ts_sharding *ids);
ts_status tsi_model_place(ts_model *model, const char *cut /* of the sequence over cp */);
/* Causal attention of a layer: q [B, H, T, D], k [B, G, T, D], v [B, G, T, any]. */
ts_tensor *tsi_model_attention(ts_model *model, ts_tensor *const qkv[3], int64_t layer);
/* The operators' word for the activation of its feed-forwards. */
const char *tsi_model_activation_word(const ts_model_config *config);
ts_tensor *tsi_model_activate(const ts_model *model, ts_tensor *x);
/* The activation of the gate, times up. */
ts_tensor *tsi_model_gate(const ts_model *model, ts_tensor *gate, ts_tensor *up);
/* x where products want it, and where blocks leave it. */
ts_tensor *tsi_model_whole(const ts_model *model, ts_tensor *x);
ts_tensor *tsi_model_residual(const ts_model *model, ts_tensor *x);
/* A parameter in the dtype of products. */
ts_tensor *tsi_model_cast(const ts_model *model, ts_tensor *parameter);

#endif
