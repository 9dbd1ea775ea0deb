/* SPDX-License-Identifier: Apache-2.0 */
/* hook.c - who is told when a gradient is there: hooks on tensors, marks around modules. */
#include "autograd/tape.h"
#include "base/alloc.h"
#include "tensor/scope.h"

/* ---- tensors --------------------------------------------------------------------------------- */

static ts_status leaf_hook(tsi_leaf *leaf, const tsi_grad_hook *hook)
{
    tsi_grad_hook *h = tsi_calloc(1, sizeof *h);
    if (!h) return tsi_fail_memory("a hook", sizeof *h);
    *h = *hook;
    tsi_grad_hook **end = &leaf->hooks; /* told in the order in which they came */
    while (*end)
        end = &(*end)->next;
    *end = h;
    return TS_OK;
}

static ts_status node_hook(ts_tape *tape, tsi_node *node, const tsi_grad_hook *hook)
{
    tsi_grad_hook *h = tsi_arena_alloc(&tape->memory, sizeof *h);
    if (!h) return tsi_fail_memory("a hook", sizeof *h);
    *h = *hook;
    tsi_grad_hook **end = &node->hooks;
    while (*end)
        end = &(*end)->next;
    *end = h;
    return TS_OK;
}

ts_status ts_tensor_on_grad(ts_tensor *t, ts_grad_hook_fn fn, void *context)
{
    ts_rank *rank = t ? t->rank : tsi_rank_current();
    if (!rank) return TS_ERR_THREAD;
    TSI_TRY(tsi_rank_enter(rank));
    if (!t || !fn) return TSI_FAIL(TS_ERR_NULL, "on_grad: the %s is NULL", t ? "hook" : "tensor");
    const tsi_link *link = t->autograd;
    tsi_grad_hook hook = { .fn = fn, .context = context, .output = link ? link->output : 0 };
    if (link && link->leaf) return leaf_hook(link->leaf, &hook);
    if (link && link->tape) return node_hook(link->tape, &link->tape->node[link->node], &hook);
    return TSI_FAIL(TS_ERR_STATE, "on_grad: the tensor is neither a leaf nor on a tape");
}

/* One that fails has failed the rank, with its own sentence or with this one. */
ts_status tsi_grad_hook_call(const tsi_grad_hook *hook, ts_tensor *t)
{
    ts_rank *rank = t->rank;
    ts_status status = hook->fn(t, hook->context);
    if (status == TS_OK || ts_rank_status(rank) != TS_OK) return status;
    return TSI_FAIL(status < TS_OK ? status : TS_ERR_ARG,
                    "backward: a hook on a gradient returned %s without saying why",
                    ts_status_name(status));
}

/* ---- marks ----------------------------------------------------------------------------------- */

ts_status tsi_tape_mark(ts_tape *tape, int64_t first, const tsi_mark *mark)
{
    TSI_ASSERT(first >= 0);
    if (first >= tape->node_count) return TS_OK; /* nothing was recorded */
    tsi_mark *m = tsi_arena_alloc(&tape->memory, sizeof *m);
    if (!m) return tsi_fail_memory("a mark on a tape", sizeof *m);
    *m = *mark;
    m->first = first;
    m->last = tape->node_count - 1;
    m->next = tape->marks;
    tape->marks = m;
    /* Inner modules end first and are marked first. Backward opens marks from the end: outer ones
     * before inner ones, so the list of ends grows at its head and that of begins at its tail. */
    m->next_end = tape->node[m->last].ends;
    tape->node[m->last].ends = m;
    m->next_begin = NULL;
    tsi_mark **end = &tape->node[first].begins;
    while (*end)
        end = &(*end)->next_begin;
    *end = m;
    return TS_OK;
}
