/* SPDX-License-Identifier: Apache-2.0 */
/* train.h - training a model from a configuration, and sampling from it.
 *
 *   config (INI) --> ts_train_run on every rank --> OUTPUT/model, report.html, train.jsonl
 *
 * A configuration is made and read before there are ranks, and is only read while it trains, so
 * that all ranks of a process may share it. A run is a function of its configuration and its data:
 * the same mesh gives the same bits, also if it was stopped and resumed. */
#ifndef TESSERA_TRAIN_H
#define TESSERA_TRAIN_H

#include "data.h"
#include "event.h"
#include "model.h"
#include "program.h"

/* ---- learning rates -------------------------------------------------------------------------- */
typedef enum ts_decay { TS_DECAY_COSINE, TS_DECAY_LINEAR, TS_DECAY_SQRT, TS_DECAY_NONE } ts_decay;

/* Warm-up, stable, decay. A warm-up or decay that does not fit into the steps is cut down. */
typedef struct ts_rate_schedule {
    size_t struct_size;
    int64_t steps, warmup; /* of the whole run; from 1/warmup up to 1 */
    double decay_share;    /* of the steps, at the end; negative: all after the warm-up */
    double floor;          /* the factor that decay goes down to */
    int32_t decay;         /* ts_decay */
    int32_t reserved;
} ts_rate_schedule;

/* ---- configurations -------------------------------------------------------------------------- */
typedef struct ts_train_config ts_train_config;

/* ---- what a step costs ----------------------------------------------------------------------- */
typedef struct ts_train_shape {
    size_t struct_size;
    int64_t rows, context; /* that are run at once, of all ranks together */
    int32_t moments;       /* tensors the optimiser keeps for each parameter: AdamW 2, at most */
    int32_t parts;         /* that a step is made of, run one after the other; 0: one */
    int32_t moment_dtype;  /* TS_DTYPE_BF16: of AdamW's moments; 0: f32 */
    int32_t saves_behind;  /* 1: states are saved in the background, and a rank holds the copy */
    double z_loss;         /* of the configuration; 0: none */
    ts_muon_options muon;  /* struct_size 0: none; else Muon instead of `moments` */
} ts_train_shape;

/* What a rank receives in a step, by information. */
enum { TS_TRAFFIC_MAX = 24, TS_TRAIN_PLACES_MAX = 64, TS_TRAIN_STAGES_MAX = 256 };
typedef struct ts_train_traffic {
    char axes[40]; /* that the group lies along: "fsdp", "replicate+fsdp" */
    char kind[24]; /* "exchange", "reduce_exchange", "all_reduce" ... */
    int64_t count, bytes;
    double seconds; /* on the machine that TESSERA_MODEL says, one after the other */
} ts_train_traffic;

/* Of one row of it: what is under way while the rank computes, and what it computes meanwhile. */
typedef struct ts_train_beside {
    int64_t count, bytes;
    double seconds; /* as ts_train_traffic has them */
    double product_flops, attention_flops;
    int64_t touched_bytes;
} ts_train_beside;

/* An axis of the model's mesh; experts over a part of one make an axis "ep" of it. */
typedef struct ts_train_axis {
    char name[16];
    int64_t size, stride; /* ranks of a group; how far apart neighbours are */
} ts_train_axis;

/* Parameters whose names differ in numbers alone, and that lie alike. */
enum { TS_TRAIN_PARAMS_MAX = 96 };
typedef struct ts_train_param {
    char pattern[96];           /* "model.layers.*.mlp.up_proj.weight" */
    char shape[40], layout[56]; /* "[1024, 4096]"; "fsdp:S(0) tp:S(1)", "whole" */
    int64_t count, elements;    /* of parameters; of all of them, globally */
    int64_t bytes;              /* of all of them on this rank */
} ts_train_param;

/* What a rank's operators work on at once. */
typedef struct ts_train_sizes {
    int64_t rows, hidden, inner;      /* of products: tokens, width, inner width */
    int64_t context, heads, head_dim; /* of attention */
    int32_t dtype, reserved;          /* of products, a ts_dtype */
} ts_train_sizes;

/* Memory of a rank over a step: after so many calls of operators, by kind. */
enum { TS_TRAIN_CURVE_MAX = 96 };
typedef struct ts_train_curve {
    int32_t count, reserved; /* 0: not known */
    int64_t bytes[TS_TRAIN_CURVE_MAX][TS_MEMORY_KINDS];
} ts_train_curve;

/* The moment at which a rank holds most, and whose the memory is then. A module is here what has a
 * number of its own ("model.layers.3"), or holds parameters beside such ("lm_head"): of these it
 * has the states, and what was taken while it ran. */
enum { TS_TRAIN_MODULES_MAX = 192 };
typedef struct ts_train_module {
    char name[64]; /* "": of no module; "others": what has no room */
    int64_t bytes[TS_MEMORY_KINDS];
} ts_train_module;

typedef struct ts_train_peak {
    int64_t bytes;
    char phase[16];   /* "set_up", "forward", "backward", "recompute", "update" */
    char module[128]; /* that ran: "model.layers.3.mlp"; "": none */
    char op[32];      /* that took memory; "": it was no operator's */
    int32_t kind;     /* of that memory, a ts_memory_kind */
    int32_t row_count;
    ts_train_module row[TS_TRAIN_MODULES_MAX]; /* in the order of parameters, "" the first */
} ts_train_peak;

typedef struct ts_train_cost {
    size_t struct_size;
    int64_t parameters;
    double flops_per_token; /* forward and backward, of products; what is run again included */
    /* Of this rank, in bytes; activations: what the largest moment of a step holds beside the rest,
     * so that the sum of all is its peak. */
    int64_t weight_bytes, gradient_bytes, optimizer_bytes, activation_bytes;
    ts_memory memory;      /* of the steps: the peak by kind, and the most of each kind */
    double comm_seconds;   /* of a step, on the machine that TESSERA_MODEL says */
    int64_t ranks, tokens; /* of the mesh; of a step, all ranks together */
    int32_t traffic_count, reserved;
    ts_train_traffic traffic[TS_TRAFFIC_MAX]; /* of a step */
    /* With an axis pp, of a forecast: its idle share if all actions take the same, its stages, and
     * the memory of a rank at each place of the axis, the first of them. */
    double bubble;
    int64_t stages, micro_batches, place_count;
    int64_t place_bytes[TS_TRAIN_PLACES_MAX];
    int32_t axis_count, param_count;
    ts_train_axis axis[TS_NDIM_MAX];
    ts_train_param param[TS_TRAIN_PARAMS_MAX]; /* the last one takes what has no room */
    /* Of a step and this rank: FLOPs of products and of attention, bytes that all other operators
     * of forward and backward read and write. */
    double product_flops, attention_flops;
    int64_t touched_bytes;
    ts_train_sizes sizes;
    ts_train_curve curve;
    /* With an axis pp, of a forecast: its schedule as the configuration says it, and of each stage,
     * of the first of them, how many blocks it has (embedding, layers, norm with head, in this
     * order) and its place along pp. */
    char schedule[96];
    int32_t stage_blocks[TS_TRAIN_STAGES_MAX], stage_place[TS_TRAIN_STAGES_MAX];
    ts_train_peak peak; /* of the same moment as memory.peak */
    /* Of a forecast: which rank it is of, the one with most; which has least, and how much. */
    int64_t rank_most, rank_least, least_bytes;
    ts_train_beside beside[TS_TRAFFIC_MAX]; /* of traffic[i] */
} ts_train_cost;

/* Of one rank while all work; 0: it is not counted. */
typedef struct ts_train_rates {
    size_t struct_size;
    double product_flops, attention_flops; /* FLOP/s */
    double bytes;                          /* a second, of operators element by element */
    double comm_bytes, comm_latency; /* a second; seconds of an operation. 0: comm_seconds counts */
    /* What operations take of a rank's computing while they are under way, 0 to 1: where ranks move
     * bytes by threads of their own on cores that are all busy, one over the threads of a rank. */
    double moving;
} ts_train_rates;

/* Seconds of a step, one after the other; `step` is all of them without what is hidden. */
typedef struct ts_train_times {
    size_t struct_size;
    double step, products, attention, memory, update, comm;
    double idle;   /* ranks of a pipeline wait for each other */
    double hidden; /* of comm: the rank computes meanwhile */
} ts_train_times;

/* ---- training -------------------------------------------------------------------------------- */
/* What will be done; told once, before the first step. */
typedef struct ts_train_plan {
    size_t struct_size;
    const char *mesh, *plan, *engine, *output; /* while the run lasts */
    int64_t ranks, parameters;
    int64_t steps, step_first; /* step_first > 0: resumed */
    int64_t rows, context, tokens_per_step;
    int64_t data_tokens;
    double flops_per_token; /* forward and backward */
    /* Of one rank, in bytes; activations are an estimate. */
    int64_t weight_bytes, gradient_bytes, optimizer_bytes, activation_bytes;
    const char *schedule;          /* of the axis pp; NULL: there is none */
    int64_t stages, micro_batches; /* of it */
    const int64_t *blocks;         /* of each stage */
    double bubble;                 /* its idle share if all actions take the same */
    const char *device;            /* ts_world_device */
} ts_train_plan;

typedef struct ts_train_step {
    size_t struct_size;
    int64_t step, steps; /* steps done, this one included */
    int64_t tokens;      /* seen since the run's first step */
    double loss, norm;   /* before the update; the norm before clipping */
    double rate;
    double seconds; /* of this step */
    double tokens_per_second, flops;
    double remaining;     /* seconds, as far as one can tell */
    int64_t memory_bytes; /* most that a rank held */
    double scale;         /* of the loss in backward */
    int64_t skipped;      /* 1: gradients were not finite, the weights stayed as they were */
    double eval_loss;     /* of the held-out rows after this step; NaN: they were not evaluated */
    /* Seconds that ranks did not wait for others: the most and the least of any, and who had most.
     */
    double busy_most, busy_least;
    int64_t busy_rank;
    /* Of models with experts, else 0: the busiest expert's load over the mean, of the worst layer;
     * the least entropy of a layer's loads (nats); choices dropped; the routers' losses, summed. */
    double load_ratio, load_entropy;
    int64_t dropped;
    double router_loss;
} ts_train_step;

typedef struct ts_train_options {
    size_t struct_size;
    /* (optional) Called on rank 0 alone. A step that returns other than 0 is the last: the run is
     * saved and ends. */
    void (*on_plan)(const ts_train_plan *plan, void *context);
    int (*on_step)(const ts_train_step *step, void *context);
    void *context;
    /* (optional) Asked on every rank, after each step and between the tokens of the sample. 1: the
     * step is the last, the run is saved and ends; 2: the sample is left out too. The largest
     * answer of any rank counts. */
    int (*stop)(void *context);
    /* 1: on a device that runs behind the host, on_step is told of a step while the next one runs,
     * and a stop ends the run one step later. 0: at once, and the device waits for it. */
    int32_t late, reserved;
} ts_train_options;

typedef struct ts_train_result {
    size_t struct_size;
    int64_t step; /* steps done */
    int32_t stopped, reserved;
    double loss, seconds;
    char model[512], report[512], log[512]; /* where they are; "" if not written */
    ts_text sample;                         /* rank 0: text the model went on with; release it */
    double bubble, bubble_measured;    /* idle share of ranks of a pipeline: of its schedule if all
                                          actions took the same, and of the last step */
    double eval_loss, eval_best;       /* the latest and the best; NaN: none */
    int64_t eval_step, eval_best_step; /* after these steps */
    int64_t patience_ended; /* 1: so many evaluations in a row were no better (train.patience) */
    int64_t replays;        /* steps that ran from a recorded one (train.replay) */
    /* With train.replay = 2, of this rank; 0: not so far. Pieces of work that run at another place;
     * seconds of a step, the shortest of three, as recorded and in that order; and predicted. */
    int64_t replay_moved;
    double replay_recorded, replay_reordered;
    double replay_recorded_predicted, replay_reordered_predicted;
} ts_train_result;

typedef struct ts_generate_options {
    size_t struct_size;
    int64_t tokens;     /* at most; 0: 128, unless exact */
    double temperature; /* 0: the likeliest token each time */
    uint64_t seed;
    int32_t stop;  /* a token that ends the text, and is not put out; -1: none */
    int32_t top_k; /* only the likeliest so many; 0: all */
    void (*on_token)(int32_t token, void *context); /* (optional) on rank 0, for each token */
    void *context;
    /* (optional) Asked on every rank before each token; other than 0 on any of them ends the text.
     */
    int (*end)(void *context);
    int32_t exact;    /* 1: tokens is meant, 0 too */
    int32_t uncached; /* 1: each token runs the whole text again, to compare */
} ts_generate_options;

TS_BEGIN_C

/* [any] Real defaults, after which every number is meant as it stands (types.h). */
TS_API void ts_train_options_init(ts_train_options *options);
TS_API void ts_generate_options_init(ts_generate_options *options);

/* The factor on the learning rate in a step, counted from 0. */
TS_API double ts_rate_factor(const ts_rate_schedule *schedule, int64_t step);

/* All keys at their defaults. */
TS_API TS_NODISCARD ts_status ts_train_config_create(ts_train_config **out);
TS_API void ts_train_config_destroy(ts_train_config *config); /* accepts NULL */
/* An INI file; keys that it does not name stay. An unknown section or key is TS_ERR_ARG with file,
 * line and the nearest name. Relative paths of data, tokenizer and model are looked for beside the
 * file, then in the working directory. On failure the configuration may be half changed. */
TS_API TS_NODISCARD ts_status ts_train_config_read(ts_train_config *config, const char *path);
TS_API TS_NODISCARD ts_status ts_train_config_parse(ts_train_config *config, const char *what,
                                                    const char *text);
/* "train.steps=100" */
TS_API TS_NODISCARD ts_status ts_train_config_set(ts_train_config *config, const char *assignment);
/* The value of "train.steps" as text into out (like snprintf); -1: there is no such key. */
TS_API int64_t ts_train_config_get(const ts_train_config *config, const char *key, char *out,
                                   size_t size);
/* The whole configuration as an INI file with comments; like snprintf. */
TS_API size_t ts_train_config_text(const ts_train_config *config, char *out, size_t size);
/* What "train.steps", or every key of the section "train", means, takes and is now; like snprintf.
 * 0: there is no such key. */
TS_API size_t ts_train_config_explain(const ts_train_config *config, const char *key, char *out,
                                      size_t size);
/* Does it fit together? ts_train_run asks this first. */
TS_API TS_NODISCARD ts_status ts_train_config_check(const ts_train_config *config);

/* Memory and FLOPs of a training step of this model on this rank: the step is run in a world
 * without data, on the model's mesh, and every operator accounts for what it takes, saves and
 * computes. The model need not be materialised. Not counted: what kernels use while they run, and
 * what an engine does. recorded */
TS_API ts_status ts_train_estimate(ts_model *model, const ts_train_shape *shape,
                                   ts_train_cost *out);

/* The same of a configuration before there are ranks: of the rank with most, without data,
 * tokenizer, weights or storage. [any] but a rank's thread */
TS_API TS_NODISCARD ts_status ts_train_forecast(const ts_train_config *config, ts_train_cost *out);

/* Rates of this machine for operators of such sizes, in a few milliseconds. recorded [coll] over
 * the world */
TS_API ts_status ts_train_measure(ts_rank *me, const ts_train_cost *cost, ts_train_rates *out);
/* [any] How long a step takes at these rates. */
TS_API void ts_train_predict(const ts_train_cost *cost, const ts_train_rates *rates,
                             ts_train_times *out);

/* Does it fit what train.memory allows a rank? TS_ERR_MEMORY with the nearest setting that does.
 * What is free on a machine is asked by ts_train_run alone. [any] but a rank's thread */
TS_API TS_NODISCARD ts_status ts_train_limit(const ts_train_config *config,
                                             const ts_train_cost *cost);

/* The step of a configuration as a program of all its ranks, without data, tokenizer, weights,
 * storage or ranks: it is run in a world without data, once for each kind of rank, and written
 * down. `options` may be NULL. [any] but a rank's thread */
typedef struct ts_train_program_options {
    size_t struct_size;
    double flops_per_second; /* of a rank's device: kernels say how long they take; 0: 1e11 */
    double bytes_per_second; /* of its memory; 0: 1e10 */
    int32_t apart;           /* 1: a list for every rank, also where they do the same */
    int32_t reserved;
} ts_train_program_options;
TS_API void ts_train_program_options_init(ts_train_program_options *options); /* [any] */
TS_API TS_NODISCARD ts_status ts_train_program(const ts_train_config *config,
                                               const ts_train_program_options *options,
                                               ts_program **out);

/* Trains on the configuration's mesh: tokenises text if need be, makes or loads the model, goes on
 * from the newest complete state in the output directory, and leaves the model, the log and the
 * report there. recorded [coll] over the world */
TS_API ts_status ts_train_run(ts_rank *me, const ts_train_config *config,
                              const ts_train_options *options, ts_train_result *out);

/* Appends tokens that the model goes on with after the prompt (one at least); the same on all
 * ranks. Random numbers are a function of (seed, position). Keys and values of the text are kept
 * until it ends (ts_model_cache_create). recorded [coll] over the model's mesh */
TS_API ts_status ts_generate(ts_model *model, const ts_tokens *prompt,
                             const ts_generate_options *options, ts_tokens *out);

TS_END_C
#endif
