/* SPDX-License-Identifier: Apache-2.0 */
/* op_nn.h - losses, normalisation of groups, convolution, pooling, and comparisons of whole
 * tensors.
 *
 * makers: NULL on failure, NULL in gives NULL out (world.h). Any operator takes any placement; what
 * cannot stay sharded is moved, as far as the policy of the open scope allows (scope.h). Dims may
 * be negative. */
#ifndef TESSERA_OP_NN_H
#define TESSERA_OP_NN_H

#include "tensor.h"

typedef enum ts_loss_reduction {
    TS_LOSS_MEAN, /* over all elements, or all labels that count, of all ranks */
    TS_LOSS_SUM,
    TS_LOSS_NONE,      /* one loss per element */
    TS_LOSS_BATCH_MEAN /* kl_div: over the extent of dim 0 */
} ts_loss_reduction;
typedef struct ts_loss_options {
    size_t struct_size;
    int32_t reduction;  /* ts_loss_reduction */
    int32_t log_target; /* kl_div: 1: the target is a logarithm too */
    double point;       /* smooth_l1's beta, huber's delta; 0: 1, unless exact */
    int32_t exact;      /* 1: point is meant, 0 too (and refused) */
    int32_t reserved;
} ts_loss_options;
typedef struct ts_group_norm_options {
    size_t struct_size;
    int64_t groups;
    double epsilon;
} ts_group_norm_options;
typedef struct ts_conv_options { /* lists have one number per place dim, at most 3 */
    size_t struct_size;
    const int64_t *stride, *padding, *dilation; /* NULL: 1, 0, 1 */
    int64_t groups;                             /* 0: 1 */
} ts_conv_options;
typedef struct ts_pool_options { /* lists have one number per place dim, at most 3 */
    size_t struct_size;
    const int64_t *window, *stride, *padding; /* NULL: 1, the window, 0 */
} ts_pool_options;
typedef struct ts_close_options {
    size_t struct_size;
    double relative, absolute; /* |a - b| <= absolute + relative |b| */
    int32_t nan_is_equal, reserved;
} ts_close_options;

TS_BEGIN_C

/* [any] Real defaults, after which every number is meant as it stands (types.h). */
TS_API void ts_loss_options_init(ts_loss_options *options);
TS_API void ts_group_norm_options_init(ts_group_norm_options *options);
TS_API void ts_conv_options_init(ts_conv_options *options);
TS_API void ts_pool_options_init(ts_pool_options *options);
TS_API void ts_close_options_init(ts_close_options *options);

/* Shapes are equal; options NULL: the mean. Sharded inputs leave a partial sum. */
TS_API ts_tensor *ts_mse_loss(ts_tensor *x, ts_tensor *target, const ts_loss_options *options);
TS_API ts_tensor *ts_l1_loss(ts_tensor *x, ts_tensor *target, const ts_loss_options *options);
TS_API ts_tensor *ts_bce(ts_tensor *x, ts_tensor *target, const ts_loss_options *options);
TS_API ts_tensor *ts_bce_with_logits(ts_tensor *x, ts_tensor *target,
                                     const ts_loss_options *options);
TS_API ts_tensor *ts_smooth_l1_loss(ts_tensor *x, ts_tensor *target,
                                    const ts_loss_options *options);
TS_API ts_tensor *ts_huber_loss(ts_tensor *x, ts_tensor *target, const ts_loss_options *options);
TS_API ts_tensor *ts_kl_div(ts_tensor *x, ts_tensor *target, const ts_loss_options *options);
/* x [.., C] log-probabilities, labels [..]; the label -100 counts for nothing. */
TS_API ts_tensor *ts_nll_loss(ts_tensor *x, ts_tensor *labels, const ts_loss_options *options);

/* x [N, C, ..], weight and bias [C] or NULL; options NULL: one group, 1e-5. */
TS_API ts_tensor *ts_group_norm(ts_tensor *x, ts_tensor *weight, ts_tensor *bias,
                                const ts_group_norm_options *options);

/* x [N, C, places..], weight [O, C / groups, kernel..], bias [O] or NULL; 1 to 3 place dims. */
TS_API ts_tensor *ts_conv(ts_tensor *x, ts_tensor *weight, ts_tensor *bias,
                          const ts_conv_options *options);
TS_API ts_tensor *ts_conv1d(ts_tensor *x, ts_tensor *weight, ts_tensor *bias,
                            const ts_conv_options *options); /* one place dim, else refused */
TS_API ts_tensor *ts_conv2d(ts_tensor *x, ts_tensor *weight, ts_tensor *bias,
                            const ts_conv_options *options); /* two */

/* x [N, C, places..]; a mean counts the padding as zeros. */
TS_API ts_tensor *ts_max_pool(ts_tensor *x, const ts_pool_options *options);
TS_API ts_tensor *ts_avg_pool(ts_tensor *x, const ts_pool_options *options);

/* recorded [coll]. *out is 1 or 0, the same on all ranks of the mesh; 0 on failure. */
TS_API ts_status ts_equal(ts_tensor *a, ts_tensor *b, int *out);
/* options NULL: 1e-5 and 1e-8 */
TS_API ts_status ts_allclose(ts_tensor *a, ts_tensor *b, const ts_close_options *options, int *out);

TS_END_C

/* Each call also tells its place, for messages and events. */
#define ts_mse_loss(...) (ts_here(TS_HERE), ts_mse_loss(__VA_ARGS__))
#define ts_l1_loss(...) (ts_here(TS_HERE), ts_l1_loss(__VA_ARGS__))
#define ts_bce(...) (ts_here(TS_HERE), ts_bce(__VA_ARGS__))
#define ts_bce_with_logits(...) (ts_here(TS_HERE), ts_bce_with_logits(__VA_ARGS__))
#define ts_smooth_l1_loss(...) (ts_here(TS_HERE), ts_smooth_l1_loss(__VA_ARGS__))
#define ts_huber_loss(...) (ts_here(TS_HERE), ts_huber_loss(__VA_ARGS__))
#define ts_kl_div(...) (ts_here(TS_HERE), ts_kl_div(__VA_ARGS__))
#define ts_nll_loss(...) (ts_here(TS_HERE), ts_nll_loss(__VA_ARGS__))
#define ts_group_norm(...) (ts_here(TS_HERE), ts_group_norm(__VA_ARGS__))
#define ts_conv(...) (ts_here(TS_HERE), ts_conv(__VA_ARGS__))
#define ts_conv1d(...) (ts_here(TS_HERE), ts_conv1d(__VA_ARGS__))
#define ts_conv2d(...) (ts_here(TS_HERE), ts_conv2d(__VA_ARGS__))
#define ts_max_pool(...) (ts_here(TS_HERE), ts_max_pool(__VA_ARGS__))
#define ts_avg_pool(...) (ts_here(TS_HERE), ts_avg_pool(__VA_ARGS__))
#define ts_equal(...) (ts_here(TS_HERE), ts_equal(__VA_ARGS__))
#define ts_allclose(...) (ts_here(TS_HERE), ts_allclose(__VA_ARGS__))

#endif
