/* SPDX-License-Identifier: Apache-2.0 */
/* init.c - first values of parameters: functions of (seed, name, global index), so any mesh gives
 * the same bits. */
#include "nn/module.h"
#include "tensor/fill.h"

static ts_status check(const ts_tensor *parameter, const char *what)
{
    if (!tsi_tensor_enter(parameter, what)) {
        const ts_rank *rank = tsi_rank_current();
        return rank ? ts_rank_status(rank) : TS_ERR_THREAD;
    }
    return tsi_tensor_writable(parameter, "%s: the parameter", what);
}

ts_status ts_init_zeros(ts_tensor *parameter, const char *name, void *state)
{
    (void)name;
    (void)state;
    TSI_TRY(check(parameter, "init_zeros"));
    return tsi_fill_constant(parameter->array, ts_number_int(0));
}

ts_status ts_init_ones(ts_tensor *parameter, const char *name, void *state)
{
    (void)name;
    (void)state;
    TSI_TRY(check(parameter, "init_ones"));
    return tsi_fill_constant(parameter->array, ts_number_int(1));
}

ts_status ts_init_normal(ts_tensor *parameter, const char *name, void *state)
{
    TSI_TRY(check(parameter, "init_normal"));
    tsi_random random = { .kind = TSI_RANDOM_NORMAL,
                          .seed = parameter->rank->world->seed,
                          .stream = tsi_random_stream(parameter->rank, name ? name : ""),
                          .a = 0.0,
                          .b = state ? *(const double *)state : 0.02 };
    return tsi_fill_random(parameter->mesh, parameter->layout, parameter->array, &random);
}
