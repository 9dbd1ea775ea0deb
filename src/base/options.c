/* SPDX-License-Identifier: Apache-2.0 */
/* options.c - the real defaults of every option struct, in one place.
 *
 * INV: options that were initialised here do what NULL does, and every number in them is meant as
 * it stands: where a 0 of a struct of zeros stands for a default, `exact` tells the two apart. */
#include <math.h>

#include "tessera/tessera.h"

/* Zeros are the defaults: nothing among them is a number for which 0 means another. */
#define PLAIN(type)                                                                                \
    void type##_init(type *options)                                                                \
    {                                                                                              \
        if (options) *options = (type)TS_INIT(type);                                               \
    }
#define DEFAULTS(type, ...)                                                                        \
    void type##_init(type *options)                                                                \
    {                                                                                              \
        if (options) *options = (type){ .struct_size = sizeof(type), __VA_ARGS__ };                \
    }

/* clang-format off */
PLAIN(ts_backward_options)
PLAIN(ts_clip_options)
PLAIN(ts_fsdp_options)
PLAIN(ts_group_options)
PLAIN(ts_grouped_mlp_options)
PLAIN(ts_comm_options)
PLAIN(ts_cut_options)
PLAIN(ts_convert_options)
PLAIN(ts_loader_options)
PLAIN(ts_load_options)
PLAIN(ts_save_options)
PLAIN(ts_index_options)
PLAIN(ts_pool_options)
PLAIN(ts_model_pipeline_options)
PLAIN(ts_pipeline_options)
PLAIN(ts_plan_options)
PLAIN(ts_schedule_options)
PLAIN(ts_schedule_costs)
PLAIN(ts_schedule_search_options)
PLAIN(ts_symmetric_options)
PLAIN(ts_scope_options)
PLAIN(ts_random_options)
PLAIN(ts_move_options)
PLAIN(ts_train_options)
PLAIN(ts_verify_options)
PLAIN(ts_world_options)

DEFAULTS(ts_tokenize_options, .shard_tokens = 100000000, .part_bytes = 4 << 20)
DEFAULTS(ts_model_config, .positions = 2048, .norm_epsilon = 1e-5,
         .init_deviation = 0.02, .rope_theta = 10000, .exact = 1)
DEFAULTS(ts_model_options, .dtype = TS_DTYPE_F32)
DEFAULTS(ts_param_options, .dtype = TS_DTYPE_F32)
DEFAULTS(ts_adamw_options, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .exact = 1)
DEFAULTS(ts_muon_options, .lr = 1e-3, .momentum = 0.95, .beta1 = 0.9, .beta2 = 0.95,
         .epsilon = 1e-8, .steps = 5, .exact = 1)
DEFAULTS(ts_sgd_options, .lr = 1e-3, .exact = 1)
DEFAULTS(ts_step_options, .grad_scale = 1)
DEFAULTS(ts_attention_options, .scale = (double)NAN, .exact = 1)
DEFAULTS(ts_batch_norm_options, .epsilon = 1e-5, .exact = 1)
DEFAULTS(ts_cross_entropy_options, .ignore_index = -100)
DEFAULTS(ts_linear_cross_entropy_options, .ignore_index = -100)
DEFAULTS(ts_loss_options, .point = 1, .exact = 1)
DEFAULTS(ts_group_norm_options, .groups = 1, .epsilon = 1e-5)
DEFAULTS(ts_conv_options, .groups = 1)
DEFAULTS(ts_close_options, .relative = 1e-5, .absolute = 1e-8)
DEFAULTS(ts_op_query_options, .dtype = TS_DTYPE_F32)
DEFAULTS(ts_stat_options, .correction = 1)
DEFAULTS(ts_norm_options, .p = 2)
DEFAULTS(ts_sort_options, .dim = -1)
DEFAULTS(ts_topk_options, .k = 1, .dim = -1)
DEFAULTS(ts_histc_options, .bins = 100)
DEFAULTS(ts_slice_options, .step = 1)
DEFAULTS(ts_arange_options, .step = 1, .exact = 1)
DEFAULTS(ts_generate_options, .tokens = 128, .stop = -1, .exact = 1)
DEFAULTS(ts_reorder_options, .tries = 2000, .passes = TS_PASS_ALL)
DEFAULTS(ts_train_program_options, .flops_per_second = 1e11, .bytes_per_second = 1e10)
/* clang-format on */
