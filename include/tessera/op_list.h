/* SPDX-License-Identifier: Apache-2.0 */
/* op_list.h - operators over lists of tensors, and fused optimiser updates.
 *
 * A list form does to each item what the operator of its name does to a tensor: item i of every
 * list makes one call, with its own shape, dtype, layout and mesh. Whether the calls are legal is
 * decided for the whole list first, and what has to be moved is moved then; so a list is computed
 * and written as a whole, or nothing of it is.
 *
 * `out` takes one new tensor for each item; NULL: in place, into the items of x, whose layouts stay
 * what they are. All of them are recorded [coll]: every rank calls with lists of the same layouts.
 * On failure nothing was written, and out holds NULLs. */
#ifndef TESSERA_OP_LIST_H
#define TESSERA_OP_LIST_H

#include "tensor.h"

typedef struct ts_list {
    ts_tensor *const *item;
    int64_t count;
} ts_list;

/* One step of an optimiser over a list of parameters, in place. Gradients that lie otherwise than
 * their parameters are moved first; moments must lie as their parameters, which must not be
 * partial. Not recorded on a tape. */
typedef struct ts_adamw_update {
    size_t struct_size;
    ts_list param, grad, first, second; /* second: the running mean of squares */
    double lr, beta1, beta2, epsilon, weight_decay;
    int64_t step; /* this one, from 1 */
} ts_adamw_update;

typedef struct ts_sgd_update {
    size_t struct_size;
    ts_list param, grad, momentum_of; /* momentum_of: of the parameters; count 0: none */
    double lr, momentum, weight_decay;
    int32_t nesterov, reserved;
    int64_t step; /* this one, from 1: the first one begins the momentum */
} ts_sgd_update;

TS_BEGIN_C

TS_API ts_status ts_foreach_add(ts_list x, ts_list y, double alpha,
                                ts_tensor **out); /* x + alpha y */
TS_API ts_status ts_foreach_add_scalar(ts_list x, double value, ts_tensor **out);
TS_API ts_status ts_foreach_mul(ts_list x, ts_list y, ts_tensor **out);
TS_API ts_status ts_foreach_mul_scalar(ts_list x, double value, ts_tensor **out);
TS_API ts_status ts_foreach_div(ts_list x, ts_list y, ts_tensor **out);
TS_API ts_status ts_foreach_lerp(ts_list x, ts_list y, double weight,
                                 ts_tensor **out); /* x + weight (y - x) */
TS_API ts_status ts_foreach_addcmul(ts_list x, ts_list y, ts_list z, double value,
                                    ts_tensor **out); /* x + value y z */
TS_API ts_status ts_foreach_addcdiv(ts_list x, ts_list y, ts_list z, double value,
                                    ts_tensor **out); /* x + value y / z */
TS_API ts_status ts_foreach_sqrt(ts_list x, ts_tensor **out);
TS_API ts_status ts_foreach_neg(ts_list x, ts_tensor **out);
TS_API ts_status ts_foreach_abs(ts_list x, ts_tensor **out);
TS_API ts_status ts_foreach_reciprocal(ts_list x, ts_tensor **out);
/* In place, and not recorded on a tape: what has a history on one that records is refused, and what
 * is copied is a value without its history. Copies have the dtypes of `to`. */
TS_API ts_status ts_foreach_zero(ts_list x);
TS_API ts_status ts_foreach_copy(ts_list to, ts_list from);
/* The p-norm of each item, a tensor without dims; out is not NULL. */
TS_API ts_status ts_foreach_norm(ts_list x, double p, ts_tensor **out);
/* The 2-norm of all elements of all items, each counted once, the same on every rank. */
TS_API ts_status ts_foreach_norm_total(ts_list x, double *norm);

TS_API ts_status ts_fused_adamw(const ts_adamw_update *update);
TS_API ts_status ts_fused_sgd(const ts_sgd_update *update);

/* The list forms by name, for those who list them: NULL after the last one. */
TS_API const char *ts_list_form_name(int32_t index);
TS_API const char *ts_list_form_what(int32_t index);

TS_END_C
#endif
