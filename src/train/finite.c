/* SPDX-License-Identifier: Apache-2.0 */
/* finite.c - where the first number that is not finite came from: the step is run once more, from
 * the same state, and every call of an operator is looked at.
 *
 * First the weights are looked at, then forward and backward of every part, then the gradients. A
 * call is the cause if its inputs are finite and an output is not; those that put infinities on
 * purpose (masks) are none. Ranks run the same calls in the same order, so that the first call of
 * any is the first of all; stages run in an order of their own, and there time decides.
 *
 * INV: nothing that counts is written: the update does not run, and gradients are forgotten. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "autograd/tape.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/rank.h"
#include "nn/module.h"
#include "op/core/dispatch.h"
#include "op/core/element.h"
#include "train/run.h"

enum { WORDS = 320 };

typedef struct search {
    tsi_run *run;
    tsi_observer hears;
    int64_t calls, began_ns;
    int64_t at;   /* when it was found; INT64_MAX: it was not */
    bool looking; /* what looking itself calls is not looked at */
    bool came;    /* something that was not finite before a call of this rank saw it */
    char words[WORDS];
} search;

static bool is_finite(search *s, ts_tensor *x)
{
    double sum = 0.0;
    if (!x || !x->layout || !x->array || !x->mesh->member) return true;
    if (tsi_dtype_category((ts_dtype)x->dtype) != TSI_CATEGORY_REAL) return true;
    if (tsi_tensor_ready(x) != TS_OK) return true;
    s->looking = true;
    ts_status status = tsi_local_squares(s->run->me, &x->array, 1, &sum);
    s->looking = false;
    return status != TS_OK || isfinite(sum);
}

static void found(search *s, const char *words)
{
    if (s->at != INT64_MAX) return;
    s->at = s->run->stages ? tsi_clock_ns() - s->began_ns : s->calls;
    snprintf(s->words, sizeof s->words, "%s", words);
}

/* Operators that may put an infinity where there was none. */
static bool puts_infinities(const char *name)
{
    static const char *const names[] = { "masked_fill", "where", "scatter_value", "fill", NULL };
    for (int i = 0; names[i]; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

static void hear_call(void *context, void *what)
{
    search *s = context;
    const tsi_op_record *call = what;
    const tsi_op_plan *plan = call->plan;
    const ts_rank *me = s->run->me;
    if (s->looking) return;
    s->calls++;
    bool good = true;
    if (s->at != INT64_MAX || puts_infinities(plan->op->name)) return;
    for (int32_t i = 0; good && i < plan->output_count; i++)
        good = is_finite(s, call->out[i]);
    if (good) return;
    for (int32_t i = plan->in_place ? 1 : 0; i < plan->input_count; i++)
        if (!is_finite(s, call->in[i])) {
            s->came = true;
            return;
        }
    /* What was written in place is gone: had it not been finite, its own call was found, unless it
     * came from another stage. */
    if (plan->in_place && s->came && s->run->stages) return;
    const tsi_autograd_state *tapes = tsi_autograd_state_of(s->run->me);
    bool labelled = me->label && me->label[0];
    char words[WORDS];
    snprintf(words, sizeof words, "the output of %s%s%.200s%s", plan->op->name,
             labelled ? " in " : "", labelled ? me->label : "",
             tapes && tapes->running ? ", backward" : ", forward");
    found(s, words);
}

static ts_status look_at_weight(const char *name, ts_tensor *param, void *context)
{
    char words[WORDS];
    snprintf(words, sizeof words, "the weight %.200s, before the step", name);
    if (!is_finite(context, param)) found(context, words);
    return TS_OK;
}

static ts_status look_at_gradient(const char *name, ts_tensor *param, void *context)
{
    char words[WORDS];
    ts_tensor *grad;
    TSI_TRY(tsi_settled_grad(param, &grad));
    snprintf(words, sizeof words, "the gradient of %.200s, when ranks had added it up", name);
    if (grad && !is_finite(context, grad)) found(context, words);
    return TS_OK;
}

static ts_status run_again(search *s, int64_t step)
{
    tsi_run *run = s->run;
    int64_t mark = tsi_clock_ns();
    ts_module *root = ts_model_module(run->model);
    ts_tensor *loss = ts_variable(run->me);
    ts_status status = loss ? ts_module_reset(root) : ts_rank_status(run->me);
    if (status == TS_OK) status = ts_group_barrier(run->all, NULL);
    s->began_ns = tsi_clock_ns();
    if (status == TS_OK) status = ts_module_each(root, look_at_weight, s);
    if (status == TS_OK) status = tsi_observers_add(&run->me->observers, &s->hears);
    for (int64_t i = 0; status == TS_OK && i < run->config->train.accumulate; i++)
        status = tsi_run_forward_backward(run, step, i, loss, &mark);
    tsi_observers_remove(&run->me->observers, &s->hears);
    s->calls++;
    if (status == TS_OK) status = ts_module_each(root, look_at_gradient, s);
    ts_tensor_release(loss);
    return status == TS_OK ? ts_module_reset(root) : status;
}

/* Whose was the first? Its words go to all. */
static ts_status agree(search *s, int64_t *rank)
{
    tsi_run *run = s->run;
    int64_t ranks = ts_rank_count(run->me), mine = ts_rank_index(run->me), first = INT64_MAX;
    if (s->at < INT64_MAX / ranks - 1) first = s->at * ranks + mine;
    ts_array word = TS_INIT(ts_array);
    word.data = &first;
    word.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_I64 };
    TSI_TRY(ts_group_all_reduce(run->all, &word, &word, TS_REDUCE_MIN, NULL));
    *rank = first == INT64_MAX ? -1 : first % ranks;
    if (*rank < 0) return TS_OK;
    word.data = s->words;
    word.meta = (ts_meta){ .shape = TS_SHAPE(WORDS), .dtype = TS_DTYPE_U8 };
    return ts_group_broadcast(run->all, &word, *rank, NULL);
}

ts_status tsi_find_not_finite(tsi_run *run, int64_t step, char *out, size_t size)
{
    search s = { .run = run, .at = INT64_MAX };
    int64_t rank = -1;
    out[0] = '\0';
    if (!run->config->train.find_not_finite) return TS_OK;
    s.hears = (tsi_observer){ .context = &s, .hear = { [TSI_NEWS_CALL] = hear_call } };
    TSI_TRY(run_again(&s, step));
    TSI_TRY(agree(&s, &rank));
    if (rank < 0)
        snprintf(out, size, "; run again, all of it was finite");
    else
        snprintf(out, size, "; the first that is not finite, on rank %lld: %s", (long long)rank,
                 s.words);
    return TS_OK;
}
