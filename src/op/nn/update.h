/* SPDX-License-Identifier: Apache-2.0 */
/* update.h - optimiser updates over lists of local blocks: one call for all parameters.
 *
 * Blocks of one item have the same extents and are dense in the same order, so that element i of
 * each is the same place. Parameters and gradients are of any real dtype, moments too; f64
 * parameters are computed in f64, all others in f32. */
#ifndef TSI_OP_UPDATE_H
#define TSI_OP_UPDATE_H

#include "op/op.h"

typedef struct tsi_adamw_step {
    double lr, beta1, beta2, epsilon, weight_decay;
    double correction1, correction2; /* 1 - beta^steps */
} tsi_adamw_step;
typedef struct tsi_sgd_step {
    double lr, momentum, weight_decay;
    int32_t nesterov, first; /* first: there is no momentum yet */
} tsi_sgd_step;

enum { TSI_UPDATE_PARAM, TSI_UPDATE_GRAD, TSI_UPDATE_FIRST, TSI_UPDATE_SECOND, TSI_UPDATE_PARTS };
typedef struct tsi_update_part {
    void *data; /* NULL: there is none */
    ts_dtype dtype;
    int32_t reserved;
} tsi_update_part;
typedef struct tsi_update_item {
    int64_t count; /* elements */
    tsi_update_part part[TSI_UPDATE_PARTS];
} tsi_update_item;

typedef enum tsi_update_kind { TSI_UPDATE_SGD, TSI_UPDATE_ADAMW } tsi_update_kind;
typedef struct tsi_update {
    tsi_update_kind kind;
    int32_t reserved;
    const void *step; /* tsi_sgd_step or tsi_adamw_step */
    const tsi_update_item *item;
    int64_t count;
    ts_rank *rank;
} tsi_update;

/* Runs all of them; by the fast kernel if a backend has set one. Nothing here fails. */
void tsi_update_run(const tsi_update *update);
void tsi_update_reference(const tsi_update *update); /* plain C, in order */
/* Elements first .. first + count - 1 of one item, by the plain loops. */
void tsi_update_range(const tsi_update *update, const tsi_update_item *item, int64_t first,
                      int64_t count);
/* The sum of squares of dense real elements, in double; its order depends on the count alone. */
double tsi_update_squares(ts_rank *rank, ts_dtype dtype, const void *data, int64_t count);

/* What a backend sets, once, before the first world opens. */
typedef struct tsi_update_kernels {
    void (*run)(const tsi_update *update);
    double (*squares)(ts_rank *rank, ts_dtype dtype, const void *data, int64_t count);
} tsi_update_kernels;
void tsi_update_set(const tsi_update_kernels *kernels);

#endif
