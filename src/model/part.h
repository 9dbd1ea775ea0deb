/* SPDX-License-Identifier: Apache-2.0 */
/* part.h - models are trees: what the families build them from.
 *
 *   root -- embedding              each block a child of the root, and a module of its own, so that
 *        -- layer 0                hooks, recomputation and cuts apply to it as to a user's
 *        |    -- norm, attention
 *        |    -- norm, mlp
 *        -- ...
 *        -- norm with head         a group: it adds nothing to the published names
 *
 * INV: the root's forward is the composition of the blocks, one tensor between two of them; nothing
 * else passes from block to block but a tied weight. */
#ifndef TSI_MODEL_PART_H
#define TSI_MODEL_PART_H

#include "base/alloc.h"
#include "model/model.h"

typedef struct tsi_part { /* the state of every part begins with it */
    ts_model *model;
    ts_module *module;
} tsi_part;

/* One tensor in, one out; its state goes with it. */
#define TSI_PART_DESC(name, function)                                                              \
    {                                                                                              \
        .struct_size = sizeof(ts_module_desc), .type = name, .input_count = 1, .output_count = 1,  \
        .forward = function, .destroy = tsi_free                                                   \
    }

typedef struct tsi_builder {
    ts_model *model;
    ts_param_options normal, ones, zeros; /* how parameters begin */
} tsi_builder;

/* A part below `above`; its state, zero but for the part itself. NULL: recorded. */
void *tsi_part_add(const tsi_builder *b, ts_module *above, const char *name,
                   const ts_module_desc *desc, size_t state_bytes);
/* The next block of the model. */
void tsi_block_append(const tsi_builder *b, ts_module *block);

/* Rows of a table, [rows, C], by ids. */
typedef struct tsi_embedding {
    tsi_part part;
    ts_tensor *weight;
} tsi_embedding;
tsi_embedding *tsi_part_embedding(const tsi_builder *b, ts_module *above, const char *name,
                                  int64_t rows, const ts_module_desc *desc);
ts_tensor *tsi_embedding_rows(const tsi_embedding *e, ts_tensor *ids);
extern const ts_module_desc tsi_embedding_desc;

/* Whether every rank has all of a parameter. */
bool tsi_part_is_whole(const ts_tensor *parameter);
/* A product with a parameter, in the dtype of products; without a bias: NULL. */
ts_tensor *tsi_part_linear(const ts_model *model, ts_tensor *x, ts_tensor *weight, ts_tensor *bias);
/* The last product of a block's part, whose result goes to the residual: with "sp" it is summed and
 * cut while it is computed. */
ts_tensor *tsi_part_linear_out(const ts_model *model, ts_tensor *x, ts_tensor *weight,
                               ts_tensor *bias);
/* Products of one x with several parameters without biases, which lie beside each other and are one
 * product; with a bias at any of them: one after the other. */
enum { TSI_PART_LIST = 3 };
typedef struct tsi_part_list {
    int32_t count, reserved;
    ts_tensor *weight[TSI_PART_LIST], *bias[TSI_PART_LIST];
} tsi_part_list;
void tsi_part_linear_list(const ts_model *model, ts_tensor *x, const tsi_part_list *list,
                          ts_tensor **out);
/* [B, T, count * size] as heads, [B, count, T, size]. */
ts_tensor *tsi_part_heads(ts_tensor *x_BTC, int64_t count, int64_t size);
/* The gated feed-forward of a width (llama.c). */
ts_module *tsi_part_mlp(const tsi_builder *b, ts_module *above, const char *name, int64_t width);
/* A router and its experts, beside them those that see every token (experts.c). */
ts_module *tsi_part_experts(const tsi_builder *b, ts_module *above, const char *name,
                            int64_t layer);
/* Attention whose keys and values are kept as one latent row a token (latent.c). */
ts_module *tsi_part_latent(const tsi_builder *b, ts_module *above, const char *name, int64_t layer);

/* Root mean square, or with a bias a layer norm. */
ts_module *tsi_part_norm(const tsi_builder *b, ts_module *above, const char *name, bool has_bias);
/* The norm of x + r, and in *sum x + r itself: what follows goes on from there. */
ts_tensor *tsi_part_norm_of_sum(ts_module *norm, ts_tensor *x, ts_tensor *r, ts_tensor **sum);
/* The last block: the final norm, then logits. `tied`: the embedding's weight is the head's too. */
ts_module *tsi_part_head(const tsi_builder *b, const char *norm, bool has_bias, ts_tensor *tied);

#endif
