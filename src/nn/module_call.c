/* SPDX-License-Identifier: Apache-2.0 */
/* module_call.c - calling modules: scopes, hooks, and running again in backward.
 *
 * Everything a call makes belongs to the call's own scope, but for its outputs. Hooks of backward
 * are marks on the tape around what the call recorded. */
#include <string.h>

#include "base/alloc.h"
#include "nn/module.h"
#include "tensor/scope.h"

/* ---- hooks ----------------------------------------------------------------------------------- */

/* A hook that fails has failed the rank, with its own sentence or with this one: a call that gives
 * NULL on a healthy rank would be a riddle. */
static ts_status run_hooks(ts_module *m, ts_hook when)
{
    for (tsi_hook_entry *h = m->hooks; h; h = h->next) {
        if (h->when != (int32_t)when) continue;
        ts_status status = h->fn(m, h->context);
        if (status == TS_OK) continue;
        if (ts_rank_status(m->rank) != TS_OK) return ts_rank_status(m->rank);
        char name[256];
        (void)ts_module_name(m, name, sizeof name);
        return TSI_FAIL(status < TS_OK ? status : TS_ERR_ARG,
                        "module %s: a hook returned %s without saying why",
                        name[0] ? name : "the top of the tree", ts_status_name(status));
    }
    return TS_OK;
}

static bool has_hook(const ts_module *m, ts_hook when)
{
    for (const tsi_hook_entry *h = m->hooks; h; h = h->next)
        if (h->when == (int32_t)when) return true;
    return false;
}

static ts_status backward_before(void *context)
{
    return run_hooks(context, TS_HOOK_BACKWARD_BEFORE);
}

static ts_status backward_after(void *context)
{
    return run_hooks(context, TS_HOOK_BACKWARD_AFTER);
}

/* A parameter below the module got its gradient; the last of them completes the module's. */
static ts_status param_ready(ts_tensor *t, void *context)
{
    ts_module *m = context;
    uint64_t serial = tsi_autograd_state_of(t->rank)->serial;
    if (m->ready_serial != serial) m->ready_count = 0; /* the last backward did not reach all */
    m->ready_serial = serial;
    TSI_ASSERT(m->ready_count < m->trained_count);
    if (++m->ready_count < m->trained_count) return TS_OK;
    m->ready_count = 0;
    return run_hooks(m, TS_HOOK_GRAD_READY);
}

static ts_status watch_param(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m;
    ts_module *above = context;
    if (param->frozen) return TS_OK;
    if (!tsi_leaf_of(param->value))
        return TSI_FAIL(TS_ERR_STATE, "hook: parameter %s is not materialised", name);
    above->trained_count++;
    return ts_tensor_on_grad(param->value, param_ready, above);
}

ts_status ts_module_on(ts_module *m, ts_hook when, ts_hook_fn fn, void *context)
{
    if (!m) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(m->rank));
    if (!fn || when < 0 || when >= TS_HOOK_COUNT)
        return TSI_FAIL(TS_ERR_ARG, "hook: there is no hook %d", (int)when);
    /* One hook on each parameter counts for all hooks of the module. */
    if (when == TS_HOOK_GRAD_READY && !has_hook(m, when))
        TSI_TRY(tsi_module_visit(m, watch_param, m));
    tsi_hook_entry *h = tsi_calloc(1, sizeof *h);
    if (!h) return tsi_fail_memory("a hook", sizeof *h);
    *h = (tsi_hook_entry){ .when = (int32_t)when, .fn = fn, .context = context };
    tsi_hook_entry **end = &m->hooks;
    while (*end)
        end = &(*end)->next;
    *end = h;
    return TS_OK;
}

static ts_status reset_below(ts_module *m)
{
    for (tsi_param *p = m->param_first; p; p = p->next)
        if (tsi_leaf_of(p->value)) TSI_TRY(ts_tensor_grad_clear(p->value));
    m->ready_count = 0;
    TSI_TRY(run_hooks(m, TS_HOOK_RESET));
    for (ts_module *child = m->first; child; child = child->next)
        TSI_TRY(reset_below(child));
    return TS_OK;
}

ts_status ts_module_reset(ts_module *root)
{
    if (!root) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(root->rank));
    return reset_below(root);
}

/* ---- calling --------------------------------------------------------------------------------- */

/* Is something around this call run again in backward? Then this module is, too. */
static bool runs_again_here(ts_rank *rank)
{
    const tsi_tensor_state *tensors = tsi_slot_get(rank, TSI_SLOT_TENSOR);
    const tsi_stream_log *log = tensors ? tensors->streams : NULL;
    while (log && !log->replays)
        log = log->below;
    return log != NULL;
}

static void forward(ts_module *m, ts_tensor *const *input, int32_t count, ts_tensor **output,
                    int32_t phase)
{
    ts_module_io io = { .struct_size = sizeof io,
                        .rank = m->rank,
                        .input = input,
                        .output = output,
                        .input_count = count,
                        .output_count = m->desc.output_count,
                        .phase = phase || runs_again_here(m->rank) };
    m->desc.forward(m->state, &io);
}

typedef struct again { /* the state of a call that runs again */
    ts_module *module;
    int32_t count, reserved;
} again;

static void forward_again(void *state, ts_rank *me, ts_tensor *const *input, ts_tensor **output,
                          int phase)
{
    (void)me;
    const again *a = state;
    forward(a->module, input, a->count, output, phase);
}

static void call_again(ts_module *m, ts_tensor *const *input, int32_t count, ts_tensor **output)
{
    again state = { .module = m, .count = count };
    ts_checkpoint_call call = { .struct_size = sizeof call,
                                .fn = forward_again,
                                .state = &state,
                                .state_bytes = sizeof state,
                                .input = input,
                                .input_count = count,
                                .output_count = m->desc.output_count };
    (void)ts_checkpoint(&call, output);
}

/* Its cheap values are not kept, but for what it hands out. */
static void call_thin(ts_module *m, ts_tape *tape, ts_tensor *const *input, int32_t count,
                      ts_tensor **output)
{
    int64_t outer = tape->thin_first;
    tape->thin_first = tape->node_count;
    forward(m, input, count, output, 0);
    tsi_thin_close(tape, output, m->desc.output_count);
    tape->thin_first = outer;
}

static void call_inside(ts_module *m, ts_tensor *const *input, int32_t count, ts_tensor **output)
{
    ts_tape *tape = tsi_tape_recording(m->rank);
    int64_t first = tape ? tape->node_count : 0;
    if (m->runs_again == TS_RECOMPUTE_FULL)
        call_again(m, input, count, output);
    else if (m->runs_again == TS_RECOMPUTE_SELECT && tape)
        call_thin(m, tape, input, count, output);
    else
        forward(m, input, count, output, 0);
    bool marks = has_hook(m, TS_HOOK_BACKWARD_BEFORE) || has_hook(m, TS_HOOK_BACKWARD_AFTER);
    if (!tape || !marks || ts_rank_status(m->rank) != TS_OK) return;
    tsi_mark mark = { .before = backward_before, .after = backward_after, .context = m };
    (void)tsi_tape_mark(tape, first, &mark);
}

/* Hooks, forward, hooks; a unit may want other dtypes of what goes in and out. */
static ts_status call_hooked(ts_module *m, ts_tensor *const *input, int32_t count,
                             ts_tensor **output)
{
    ts_tensor *room[TSI_INPUT_MAX];
    if (m->unit_input) {
        if (count > TSI_INPUT_MAX)
            return TSI_FAIL(TS_ERR_ARG, "module %s: %d inputs, a unit takes %d at most",
                            m->name.text, count, (int)TSI_INPUT_MAX);
        TSI_TRY(m->unit_input(m, input, count, room));
        input = room;
    }
    TSI_TRY(run_hooks(m, TS_HOOK_FORWARD_BEFORE));
    call_inside(m, input, count, output);
    ts_status status = run_hooks(m, TS_HOOK_FORWARD_AFTER);
    if (status == TS_OK && m->unit_output) status = m->unit_output(m, output);
    if (status != TS_OK) output[0] = NULL;
    return status;
}

ts_tensor *ts_module_call(ts_module *m, ts_tensor *const *input, int32_t count)
{
    ts_tensor *output[TSI_OUTPUT_MAX];
    tsi_module_call(m, input, count, output);
    return output[0];
}

void tsi_module_call(ts_module *m, ts_tensor *const *input, int32_t count, ts_tensor **output)
{
    memset(output, 0, TSI_OUTPUT_MAX * sizeof(ts_tensor *));
    if (!m || tsi_rank_enter(m->rank) != TS_OK) return;
    ts_scope scope = ts_scope_open(m->rank, m->name.text);
    (void)call_hooked(m, input, count, output);                              /* recorded */
    for (int32_t o = 1; o < m->desc.output_count && o < TSI_OUTPUT_MAX; o++) /* 0 leaves last */
        ts_scope_pass(scope, output[o]);
    output[0] = ts_scope_leave(scope, output[0]);
}

ts_status ts_module_checkpoint(ts_module *m, int what)
{
    if (!m) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(m->rank));
    if (what < TS_RECOMPUTE_NONE || what > TS_RECOMPUTE_SELECT)
        return TSI_FAIL(TS_ERR_ARG, "checkpoint: there is no recomputation %d", what);
    m->runs_again = what;
    return TS_OK;
}
