/* SPDX-License-Identifier: Apache-2.0 */
/* attributes.h - the attributes of the operators of layers, as kernels get them: normalised. */
#ifndef TSI_OP_NN_ATTRIBUTES_H
#define TSI_OP_NN_ATTRIBUTES_H

#include "op/op.h"

typedef struct tsi_conv_attributes {
    tsi_dims stride, padding, dilation; /* one number: of all place dims */
    int64_t groups;
    tsi_dims shape; /* gradients: of the result */
} tsi_conv_attributes;

typedef struct tsi_cross_entropy_attributes {
    int64_t ignore_index;
    double label_smoothing; /* the share of each label that all classes have alike */
    int32_t reduction;      /* 0 mean, 1 sum, 2 none */
    int32_t peers;          /* 1: they have other labels, and are told of a bad one here */
} tsi_cross_entropy_attributes;

typedef struct tsi_group_norm_attributes {
    int64_t num_groups;
    double eps;
} tsi_group_norm_attributes;

typedef struct tsi_loss_attributes {
    int32_t reduction, log_target;
    double point; /* where smooth_l1 (beta) and huber (delta) turn from squares to lines */
} tsi_loss_attributes;

typedef struct tsi_nll_attributes {
    int64_t ignore_index;
    int32_t reduction, reserved; /* 0 mean, 1 sum, 2 none */
} tsi_nll_attributes;

typedef struct tsi_norm_attributes {
    tsi_dims normalized; /* extents of the last dims */
    double eps;
} tsi_norm_attributes;

typedef struct tsi_pool_attributes {
    tsi_dims kernel_size, stride,
        padding;    /* one number: of all place dims; no stride: the kernel */
    tsi_dims shape; /* gradient: of the result */
} tsi_pool_attributes;

typedef struct tsi_rope_attributes {
    int32_t inverse, reserved; /* 1: rotates back, which is the gradient */
} tsi_rope_attributes;

typedef struct tsi_softmax_attributes {
    int64_t dim;
} tsi_softmax_attributes;

#endif
