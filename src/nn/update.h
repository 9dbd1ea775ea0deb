/* SPDX-License-Identifier: Apache-2.0 */
/* update.h - the arithmetic of optimisers on local blocks: parameters of any real dtype, moments in
 * f32 or f64. */
#ifndef TSI_NN_UPDATE_H
#define TSI_NN_UPDATE_H

#include "device/device.h"

typedef struct tsi_adamw_step {
    double lr, beta1, beta2, epsilon, weight_decay, correction1, correction2;
} tsi_adamw_step;
typedef struct tsi_sgd_step {
    double lr, momentum, weight_decay;
    int nesterov, first;
} tsi_sgd_step;

ts_status tsi_update_adamw(const tsi_adamw_step *step, const tsi_block *p, const tsi_block *g,
                           const tsi_block *m, const tsi_block *v);
ts_status tsi_update_sgd(const tsi_sgd_step *step, const tsi_block *p, const tsi_block *g,
                         const tsi_block *m);
double tsi_update_squares(const tsi_block *g); /* sum of squares, in double, in a fixed order */
ts_status tsi_update_scale(const tsi_block *g, double factor); /* in place */

#endif
