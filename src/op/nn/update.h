/* SPDX-License-Identifier: Apache-2.0 */
/* update.h - list operators of optimisers: updates of all parameters, sums of squares of all
 * gradients.
 *
 *   adamw     { param, grad, first, second, mirror, control }; attributes tsi_adamw_step
 *   sgd       { param, grad, first or none, -, mirror, control }; attributes tsi_sgd_step
 *   squares   { x, sum }: sum, one f64, grows by the squares of x, item after item
 *   decide    { sums of squares, control }: whether and how the update of a step runs
 *
 * The mirror is the parameter in a narrower dtype, written with it; control is what a step decides
 * by (tsi_control_number), the same for all items, so that nothing of it is a number of the host's.
 * Without either there is no mirror, and the update runs as the attributes say.
 *
 * Parameters, gradients and moments are of any real dtype; f64 parameters are computed in f64, all
 * others in f32. The sum of an item's squares is in double; its order depends on the count alone.
 */
#ifndef TSI_OP_UPDATE_H
#define TSI_OP_UPDATE_H

#include "op/core/kernel.h"
#include "op/nn/control.h"

typedef struct tsi_adamw_step {
    double lr, beta1, beta2, epsilon, weight_decay;
    double correction1, correction2; /* 1 - beta^steps */
    double factor;                   /* of gradients */
    double steps;                    /* updates with this one: the noise of moments in bf16 */
    uint64_t noise;                  /* its seed; 0: moments are rounded to nearest */
} tsi_adamw_step;
typedef struct tsi_sgd_step {
    double lr, momentum, weight_decay, factor;
    int32_t nesterov, first; /* first: there is no momentum yet */
} tsi_sgd_step;

enum {
    TSI_UPDATE_PARAM,
    TSI_UPDATE_GRAD,
    TSI_UPDATE_FIRST,
    TSI_UPDATE_SECOND,
    TSI_UPDATE_MIRROR,
    TSI_UPDATE_CONTROL
};
enum { TSI_SQUARES_OF, TSI_SQUARES_SUM };
enum { TSI_DECIDE_SUMS, TSI_DECIDE_CONTROL };

/* Can numbers of an update be meant? Finite and not negative, what is kept of moments below 1.
 * `name` is who was given them. */
ts_status tsi_adamw_check(const char *name, const tsi_adamw_step *step);
ts_status tsi_sgd_check(const char *name, const tsi_sgd_step *step);
/* The step that control asks for; false: none runs. Control is memory of the host here. */
bool tsi_adamw_settle(const tsi_adamw_step *given, const double *control, tsi_adamw_step *out);
bool tsi_sgd_settle(const tsi_sgd_step *given, const double *control, tsi_sgd_step *out);

extern const tsi_list_op tsi_list_adamw, tsi_list_sgd, tsi_list_squares, tsi_list_decide;
/* Moments [first, first + count) from f32 to bf16, by chance. */
void tsi_moments_round(const tsi_adamw_step *step, const tsi_list_item *item, int64_t first,
                       int64_t count, const float *m, const float *v);
/* Is a part of the item a moment that is rounded by chance? */
static inline bool tsi_is_by_chance(const tsi_adamw_step *step, const tsi_list_item *item, int part)
{
    return step && step->noise && (part == TSI_UPDATE_FIRST || part == TSI_UPDATE_SECOND) &&
           item->part[part].dtype == TS_DTYPE_BF16;
}
/* Elements first .. first + count - 1 of one item, by the plain loops. */
void tsi_adamw_range(const tsi_adamw_step *step, const tsi_list_item *item, int64_t first,
                     int64_t count);
void tsi_sgd_range(const tsi_sgd_step *step, const tsi_list_item *item, int64_t first,
                   int64_t count);

#endif
