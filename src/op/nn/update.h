/* SPDX-License-Identifier: Apache-2.0 */
/* update.h - list operators of optimisers: updates of all parameters, sums of squares of all
 * gradients.
 *
 *   adamw     { param, grad, first, second }; attributes tsi_adamw_step
 *   sgd       { param, grad, first or none }; attributes tsi_sgd_step
 *   squares   { x, sum }: sum, one f64, grows by the squares of x, item after item
 *
 * Parameters, gradients and moments are of any real dtype; f64 parameters are computed in f64, all
 * others in f32. The sum of an item's squares is in double; its order depends on the count alone.
 */
#ifndef TSI_OP_UPDATE_H
#define TSI_OP_UPDATE_H

#include "op/core/kernel.h"

typedef struct tsi_adamw_step {
    double lr, beta1, beta2, epsilon, weight_decay;
    double correction1, correction2; /* 1 - beta^steps */
} tsi_adamw_step;
typedef struct tsi_sgd_step {
    double lr, momentum, weight_decay;
    int32_t nesterov, first; /* first: there is no momentum yet */
} tsi_sgd_step;

enum { TSI_UPDATE_PARAM, TSI_UPDATE_GRAD, TSI_UPDATE_FIRST, TSI_UPDATE_SECOND };
enum { TSI_SQUARES_OF, TSI_SQUARES_SUM };

extern const tsi_list_op tsi_list_adamw, tsi_list_sgd, tsi_list_squares;
/* Elements first .. first + count - 1 of one item, by the plain loops. */
void tsi_adamw_range(const tsi_adamw_step *step, const tsi_list_item *item, int64_t first,
                     int64_t count);
void tsi_sgd_range(const tsi_sgd_step *step, const tsi_list_item *item, int64_t first,
                   int64_t count);

#endif
