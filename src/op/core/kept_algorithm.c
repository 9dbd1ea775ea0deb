/* SPDX-License-Identifier: Apache-2.0 */
/* kept_algorithm.c - an algorithm of a step that is recorded (base/keep.h). It plans, exchanges and
 * merges for itself, so it is kept as a whole: run again, its results are copied to where they
 * were.
 *
 * INV: operands are kept as the values they had in the call, never as the caller's handles. A
 * handle may show something else by the time the step runs again: a parameter of a unit is whole
 * only until the unit lets it go (parallel/gather.c). */
#include "base/alloc.h"
#include "base/keep.h"
#include "device/block_task.h"
#include "op/core/dispatch.h"
#include "tensor/tensor.h"

typedef struct kept_algorithm {
    ts_rank *rank;
    tsi_op_plan *plan;                                  /* busy */
    ts_tensor *in[TSI_INPUT_MAX], *out[TSI_OUTPUT_MAX]; /* tensors of its own */
} kept_algorithm;

static void kept_algorithm_destroy(void *context)
{
    kept_algorithm *k = context;
    for (int32_t i = 0; i < k->plan->input_count; i++)
        tsi_tensor_release(k->in[i]);
    for (int32_t o = 0; o < k->plan->output_count; o++)
        tsi_tensor_release(k->out[o]);
    k->plan->busy--;
    if (k->plan->loose && k->plan->busy == 0) tsi_op_plan_destroy(k->plan);
    tsi_free(k);
}

static ts_status algorithm_again(void *context)
{
    const kept_algorithm *k = context;
    ts_tensor *out[TSI_OUTPUT_MAX] = { NULL };
    ts_scope scope = ts_scope_open(k->rank, NULL);
    ts_status status = tsi_op_run_algorithm(k->rank, k->plan, k->in, out);
    for (int32_t o = 0; status == TS_OK && o < k->plan->output_count; o++) {
        status = tsi_tensor_ready(out[o]);
        if (status == TS_OK) status = tsi_array_copy(k->out[o]->array, out[o]->array);
    }
    ts_scope_close(scope);
    return status;
}

static void touch_tensor(const ts_tensor *x, bool writes, tsi_kept_tell tell, void *to)
{
    if (!x || !x->array) return;
    tsi_block block = tsi_array_block(x->array);
    tsi_kept_touch touch = tsi_block_covers(&block);
    touch.writes = writes;
    if (touch.low) tell(to, &touch);
}

static void algorithm_touches(void *context, tsi_kept_tell tell, void *to)
{
    const kept_algorithm *k = context;
    for (int32_t i = 0; i < k->plan->input_count; i++)
        touch_tensor(k->in[i], false, tell, to);
    for (int32_t o = 0; o < k->plan->output_count; o++)
        touch_tensor(k->out[o], true, tell, to);
}

static const tsi_kept_kind algorithm_kind = { TSI_KEPT_MEET, algorithm_touches };

/* Another tensor of the value that `x` has now, retained. NULL: there is none, or recorded. */
static ts_tensor *value_of(const ts_tensor *x)
{
    if (!x) return NULL;
    return tsi_tensor_retain(
        tsi_tensor_make(x->mesh, x->layout, (ts_dtype)x->dtype, tsi_array_retain(x->array), NULL));
}

static ts_status keep_values(kept_algorithm *k, ts_tensor *const *in, ts_tensor *const *out)
{
    for (int32_t i = 0; i < k->plan->input_count; i++)
        k->in[i] = value_of(in[i]);
    for (int32_t o = 0; o < k->plan->output_count; o++)
        k->out[o] = value_of(out[o]);
    return ts_rank_status(k->rank);
}

ts_status tsi_op_keep_algorithm(ts_rank *rank, tsi_op_plan *plan, ts_tensor *const *used,
                                ts_tensor **out)
{
    kept_algorithm *k = tsi_calloc(1, sizeof *k);
    if (!k) return tsi_fail_memory("an operator of a step", sizeof *k);
    tsi_keep_pause(rank);
    ts_status status = tsi_op_run_algorithm(rank, plan, used, out);
    for (int32_t o = 0; status == TS_OK && o < plan->output_count; o++)
        status = tsi_tensor_ready(out[o]);
    tsi_keep_resume(rank);
    *k = (kept_algorithm){ .rank = rank, .plan = plan };
    plan->busy++;
    ts_scope scope = ts_scope_open(rank, NULL); /* the caller's may leave tensors to the caller */
    if (status == TS_OK) status = keep_values(k, used, out);
    ts_scope_close(scope);
    if (status == TS_OK)
        return tsi_keep_done(
            rank, (tsi_kept_work){ algorithm_again, k, kept_algorithm_destroy, &algorithm_kind });
    kept_algorithm_destroy(k);
    return status;
}
