/* SPDX-License-Identifier: Apache-2.0 */
/* kept_algorithm.c - an algorithm of a step that is recorded (base/keep.h). It plans, exchanges and
 * merges for itself, so it is kept as a whole: run again, its results are copied to where they
 * were.
 *
 * INV: operands are kept as the values they had in the call, never as the caller's handles. A
 * handle may show something else by the time the step runs again: a parameter of a unit is whole
 * only until the unit lets it go (parallel/gather.c).
 * INV: what it draws is kept beside it (tensor/kept_draw.c), by the labels and in the order of the
 * call; run again, it draws what these drew. What scopes around the call said holds again. */
#include "base/alloc.h"
#include "base/keep.h"
#include "device/block_task.h"
#include "op/core/dispatch.h"
#include "tensor/scope.h"

typedef struct kept_algorithm {
    ts_rank *rank;
    tsi_op_plan *plan;                                  /* busy */
    ts_tensor *in[TSI_INPUT_MAX], *out[TSI_OUTPUT_MAX]; /* tensors of its own */
    tsi_frame around;                                   /* what the innermost scope said */
    tsi_stream_log drawn;                               /* in the call */
    tsi_stream_log draws;                               /* now; room for as many */
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
    tsi_free(k->drawn.stream);
    tsi_free(k->draws.stream);
    tsi_free(k);
}

/* On what the pieces before it drew; one that drew nothing must draw nothing. */
static ts_status run_on_drawn(kept_algorithm *k, ts_tensor **out)
{
    tsi_tensor_state *state = tsi_tensor_state_of(k->rank);
    tsi_stream_log *log = &k->draws;
    for (int64_t i = 0; i < log->count; i++)
        log->stream[i] = tsi_kept_stream_now(k->rank, k->drawn.stream[i]);
    log->next = 0;
    log->below = state->streams;
    state->streams = log;
    k->rank->kept->drawn++;
    ts_status status = tsi_op_run_algorithm(k->rank, k->plan, k->in, out);
    k->rank->kept->drawn--;
    state->streams = log->below;
    return status;
}

static ts_status algorithm_again(void *context)
{
    kept_algorithm *k = context;
    ts_tensor *out[TSI_OUTPUT_MAX] = { NULL };
    ts_scope scope = ts_scope_open(k->rank, NULL);
    if (scope.mark == 0) return ts_rank_status(k->rank);
    tsi_scope_as(scope, &k->around);
    ts_status status = run_on_drawn(k, out);
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

static const tsi_kept_kind algorithm_kind = { TSI_KEPT_MEET, algorithm_touches },
                           drawing_kind = { TSI_KEPT_DRAWN, algorithm_touches };

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

static ts_status room_for_draws(kept_algorithm *k)
{
    int64_t count = k->drawn.count;
    k->draws = (tsi_stream_log){ .count = count, .replays = 1 };
    k->draws.stream = tsi_alloc_array((size_t)count + 1, sizeof *k->draws.stream);
    return k->draws.stream ? TS_OK : tsi_fail_memory("draws of a step", (size_t)count * 8);
}

/* As usual, and for the first time; what it draws is kept, and noted. */
static ts_status run_first(kept_algorithm *k, ts_tensor *const *used, ts_tensor **out)
{
    tsi_tensor_state *state = tsi_tensor_state_of(k->rank);
    k->around = *tsi_frame_top(state);
    k->drawn.below = state->streams;
    state->streams = &k->drawn;
    tsi_keep_pause(k->rank);
    ts_status status = tsi_op_run_algorithm(k->rank, k->plan, used, out);
    for (int32_t o = 0; status == TS_OK && o < k->plan->output_count; o++)
        status = tsi_tensor_ready(out[o]);
    tsi_keep_resume(k->rank);
    state->streams = k->drawn.below;
    return status == TS_OK ? room_for_draws(k) : status;
}

ts_status tsi_op_keep_algorithm(ts_rank *rank, tsi_op_plan *plan, ts_tensor *const *used,
                                ts_tensor **out)
{
    kept_algorithm *k = tsi_calloc(1, sizeof *k);
    if (!k) return tsi_fail_memory("an operator of a step", sizeof *k);
    *k = (kept_algorithm){ .rank = rank, .plan = plan };
    plan->busy++;
    ts_status status = run_first(k, used, out);
    ts_scope scope = ts_scope_open(rank, NULL); /* the caller's may leave tensors to the caller */
    if (status == TS_OK) status = keep_values(k, used, out);
    ts_scope_close(scope);
    const tsi_kept_kind *kind = k->drawn.count > 0 ? &drawing_kind : &algorithm_kind;
    if (status == TS_OK)
        return tsi_keep_done(rank,
                             (tsi_kept_work){ algorithm_again, k, kept_algorithm_destroy, kind });
    kept_algorithm_destroy(k);
    return status;
}
