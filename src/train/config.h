/* SPDX-License-Identifier: Apache-2.0 */
/* config.h - the configuration of a run as the trainer sees it: one field for each key.
 *
 * The table in config.c says for each field its section, key, default, range and meaning; reading,
 * printing and checking follow from it. */
#ifndef TSI_TRAIN_CONFIG_H
#define TSI_TRAIN_CONFIG_H

#include <stdbool.h>

#include "tessera/train.h"

enum { TSI_CONFIG_TEXT_MAX = 512 };

typedef struct tsi_model_keys {
    char directory[TSI_CONFIG_TEXT_MAX], family[32], dtype[16], compute[16];
    int64_t vocab, hidden, intermediate, layers, heads, kv_heads, head_dim, positions;
    int64_t experts, experts_per_token, expert_width, route_sum, shared_experts, tied;
    int64_t expert_groups, groups_per_token, dense_first;
    int64_t q_rank, kv_rank, plain_dim, value_dim;
    double route_scale, norm_epsilon, init_deviation, rope_theta;
} tsi_model_keys;

typedef struct tsi_data_keys {
    char path[TSI_CONFIG_TEXT_MAX], tokenizer[TSI_CONFIG_TEXT_MAX];
    char held_out[TSI_CONFIG_TEXT_MAX], documents[16], json_key[64], weights[256];
    int64_t context, shuffle, end, held_out_rows;
} tsi_data_keys;

typedef struct tsi_train_keys {
    char output[TSI_CONFIG_TEXT_MAX], memory[32], device[16];
    int64_t replay; /* 1: steps are recorded once and run again; 2: in another order */
    int64_t steps, stop_after, batch, accumulate, seed, save_every, resume, loss_scale_every,
        skips_max, eval_every, patience, find_not_finite, loss_rows, deterministic;
    double clip, loss_scale, z_loss;
} tsi_train_keys;

typedef struct tsi_checkpoint_keys {
    char keep[64];
    int64_t every, async, verify;
} tsi_checkpoint_keys;

typedef struct tsi_keep { /* which states stay: the last ones, every k-th step, the best */
    int64_t last, every, best;
} tsi_keep;

typedef struct tsi_optimizer_keys {
    char kind[16], decay[16], moments[16], groups[1024];
    char muon_adjust[16], muon_dtype[16], muon_adamw[TSI_CONFIG_TEXT_MAX];
    double rate, beta1, beta2, epsilon, weight_decay, momentum, decay_share, floor, muon_momentum;
    int64_t warmup, nesterov, muon_steps;
} tsi_optimizer_keys;

typedef struct tsi_parallel_keys {
    char mesh[TSI_CONFIG_TEXT_MAX], plan[TSI_CONFIG_TEXT_MAX], recompute[16], reshard[16];
    int64_t ep;
    char attention[16], balance[16], saved[16];
    char schedule[TSI_CONFIG_TEXT_MAX], stages[TSI_CONFIG_TEXT_MAX];
    int64_t micro_batches, prefetch;
    char topology[TSI_CONFIG_TEXT_MAX];
} tsi_parallel_keys;

typedef struct tsi_experts_keys {
    double aux_loss, sequence_loss, z_loss, bias_rate, capacity;
} tsi_experts_keys;

typedef struct tsi_comm_keys {
    char reduce[16];
} tsi_comm_keys;

typedef struct tsi_log_keys {
    char prompt[TSI_CONFIG_TEXT_MAX];
    char trace[32];
    int64_t report, sample, tensorboard, every, norms, sample_every;
    double temperature;
} tsi_log_keys;

struct ts_train_config {
    tsi_model_keys model;
    tsi_data_keys data;
    tsi_train_keys train;
    tsi_checkpoint_keys checkpoint;
    tsi_optimizer_keys optimizer;
    tsi_parallel_keys parallel;
    tsi_experts_keys experts;
    tsi_comm_keys comm;
    tsi_log_keys log;
};

/* ts_train_config_check but for where data and results lie. */
ts_status tsi_train_config_meaning(const ts_train_config *config);
/* Do sizes that have to agree? If not, the sentence has the arithmetic and what would do. */
ts_status tsi_train_fits(const ts_train_config *config);
/* Bytes of a rank; 0: "none", -1: "auto". */
ts_status tsi_limit_parse(const char *text, int64_t *bytes);
/* What Muon is made with; parameters of optimizer.muon_adamw are groups of the model already. */
ts_muon_options tsi_train_muon(const ts_train_config *config);
ts_rate_schedule tsi_train_schedule(const ts_train_config *config);
ts_status tsi_keep_parse(const char *text, tsi_keep *out);
/* Item `index` of "a, b, c" into a buffer of TSI_CONFIG_TEXT_MAX bytes; false: there is none. */
bool tsi_train_item(const char *list, int64_t index, char *out);
/* "a/b" of the output directory into a buffer of TSI_CONFIG_TEXT_MAX bytes; fails if too long. */
ts_status tsi_train_path(const ts_train_config *config, const char *name, char *out);

#endif
