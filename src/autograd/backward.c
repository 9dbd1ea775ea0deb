/* SPDX-License-Identifier: Apache-2.0 */
/* backward.c - gradients from a root back to the leaves.
 *
 * Nodes are visited in descending order of recording. A node runs its gradient once for what still
 * wants it: towards watched inputs, towards parameters, or both; a split backward keeps the
 * gradients of outputs for its second half. */
#include <string.h>

#include "autograd/tape.h"
#include "base/alloc.h"
#include "tensor/scope.h"

enum { TOWARDS_INPUT = 1, TOWARDS_PARAMETER = 2 };

typedef struct run {
    ts_tape *tape;
    int32_t parts; /* which TOWARDS_ are wanted */
    int32_t keep;
    int64_t last; /* highest node that has a gradient */
    /* With ts_grad: gradients of these tensors are delivered here instead of to leaves. */
    ts_tensor *const *wrt;
    ts_tensor **wrt_grad;
    int32_t wrt_count;
} run;

/* ---- delivering ------------------------------------------------------------------------------ */

/* *sum += addition, held by one reference. */
static ts_status add_to(ts_tensor **sum, ts_tensor *addition)
{
    ts_tensor *total = *sum ? ts_add(*sum, addition) : addition;
    if (!total) return ts_rank_status(addition->rank);
    ts_tensor_retain(total);
    ts_tensor_release(*sum);
    *sum = total;
    return TS_OK;
}

static ts_status deliver_wrt(run *r, const tsi_edge *edge, ts_tensor *grad)
{
    for (int32_t k = 0; k < r->wrt_count; k++) {
        const tsi_link *link = r->wrt[k]->autograd;
        if (!link) continue;
        bool mine = edge->leaf ? link->leaf == edge->leaf
                               : link->tape == r->tape && link->node == edge->node &&
                                     link->output == edge->output;
        if (mine) TSI_TRY(add_to(&r->wrt_grad[k], grad));
    }
    return TS_OK;
}

static ts_status deliver(run *r, const tsi_edge *edge, ts_tensor *grad)
{
    if (r->wrt) TSI_TRY(deliver_wrt(r, edge, grad));
    if (edge->leaf) return r->wrt ? TS_OK : tsi_leaf_accumulate(edge->leaf, grad);
    return add_to(&r->tape->node[edge->node].out_grad[edge->output], grad);
}

/* ---- one node -------------------------------------------------------------------------------- */

static ts_status check_versions(const tsi_node *node)
{
    for (int32_t i = 0; i < node->input_count + node->output_count; i++) {
        const ts_tensor *t = node->saved[i];
        if (!t || t->is_variable || t->array->storage->version == node->version[i]) continue;
        return TSI_FAIL(
            TS_ERR_STATE,
            "backward of %s (%s): a tensor it saved was changed in place since (version %u, "
            "now %u)",
            node->op ? node->op->name : "a function", node->label, node->version[i],
            t->array->storage->version);
    }
    return TS_OK;
}

static uint64_t needs_of(const tsi_node *node, int32_t parts)
{
    uint64_t needs = 0;
    for (int32_t i = 0; i < node->input_count && i < 64; i++)
        if (node->edge[i].towards & parts) needs |= UINT64_C(1) << i;
    return needs;
}

static ts_status node_gradients(run *r, tsi_node *node, ts_tensor **in_grad)
{
    tsi_grad_io io = {
        .op = node->op,
        .attributes = node->attributes,
        .rank = r->tape->rank,
        .in = node->saved,
        .out = node->saved + node->input_count,
        .in_meta = node->in_meta,
        .out_grad = node->out_grad,
        .in_grad = in_grad,
        .needs = needs_of(node, r->parts & ~node->done),
        .input_count = node->input_count,
        .output_count = node->output_count,
    };
    if (io.needs == 0) return TS_OK;
    TSI_TRY(check_versions(node));
    ts_status status = node->op ? node->op->grad(&io) : node->grad(&io, node->extra);
    if (status != TS_OK)
        tsi_error_prefix("backward of %s: ", node->op ? node->op->name : "a function");
    return status;
}

/* What a finished node held. */
static void node_let_go(tsi_node *node)
{
    for (int32_t i = 0; i < node->input_count + node->output_count; i++) {
        ts_tensor_release(node->saved[i]);
        node->saved[i] = NULL;
    }
    for (int32_t o = 0; o < node->output_count; o++) {
        ts_tensor_release(node->out_grad[o]);
        node->out_grad[o] = NULL;
    }
}

static bool has_gradient(const tsi_node *node)
{
    for (int32_t o = 0; o < node->output_count; o++)
        if (node->out_grad[o]) return true;
    return false;
}

static ts_status node_run(run *r, int64_t number)
{
    tsi_node *node = &r->tape->node[number];
    if (!has_gradient(node) || !(node->towards & r->parts & ~node->done)) return TS_OK;
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.no_grad = 1;
    options.implicit_moves = node->moves;
    ts_scope scope = ts_scope_open_with(r->tape->rank, &options);
    if (node->label) r->tape->rank->label = node->label; /* its events belong to that module */
    ts_tensor **in_grad = tsi_calloc((size_t)node->input_count + 1, sizeof *in_grad);
    ts_status status = in_grad ? node_gradients(r, node, in_grad)
                               : tsi_fail_memory("gradients of inputs", sizeof *in_grad);
    node = &r->tape->node[number]; /* a gradient may have recorded more (never on this tape, but be
                                      safe) */
    for (int32_t i = 0; status == TS_OK && i < node->input_count; i++)
        if (in_grad[i] && node->edge[i].towards & r->parts & ~node->done)
            status = deliver(r, &node->edge[i], in_grad[i]);
    tsi_free(in_grad);
    ts_scope_close(scope);
    if (status != TS_OK) return status;
    node->done |= r->parts;
    bool finished = (node->towards & ~node->done) == 0;
    if (r->keep) {
        node->done = 0;
        for (int32_t o = 0; o < node->output_count; o++) {
            ts_tensor_release(node->out_grad[o]);
            node->out_grad[o] = NULL;
        }
    } else if (finished) {
        node_let_go(node);
    }
    return TS_OK;
}

/* ---- leaves at the end ----------------------------------------------------------------------- */

typedef ts_status (*leaf_fn)(tsi_leaf *leaf);

static ts_status leaf_ready(tsi_leaf *leaf)
{
    if (!leaf->touched) return TS_OK;
    leaf->touched = 0;
    return leaf->hook && leaf->self ? leaf->hook(leaf->self, leaf->hook_context) : TS_OK;
}

static ts_status each_leaf(ts_tape *tape, leaf_fn fn)
{
    for (int64_t n = tape->node_count - 1; n >= 0; n--)
        for (int32_t i = 0; i < tape->node[n].input_count; i++)
            if (tape->node[n].edge[i].leaf) TSI_TRY(fn(tape->node[n].edge[i].leaf));
    return TS_OK;
}

/* ---- seeds ----------------------------------------------------------------------------------- */

static ts_tensor *seed_one(ts_tensor *root)
{
    if (root->layout->count != 1) {
        TSI_FAIL(TS_ERR_SHAPE,
                 "backward: the root has %lld elements (%s); give its gradient in "
                 "options.seed",
                 (long long)root->layout->count, root->layout->text);
        return NULL;
    }
    return ts_ones(root->mesh, (ts_dtype)root->dtype, root->layout->shape, NULL);
}

static ts_status seed_plant(run *r, ts_tensor *root, ts_tensor *seed)
{
    const tsi_link *link = root->autograd;
    if (link && link->leaf) return r->wrt ? TS_OK : tsi_leaf_accumulate(link->leaf, seed);
    if (!link || !link->tape)
        return TSI_FAIL(TS_ERR_STATE,
                        "backward: the root has no history: it was made outside a tape, from "
                        "no leaf, or its tape has ended");
    if (r->tape && r->tape != link->tape)
        return TSI_FAIL(TS_ERR_STATE, "backward: the roots belong to different tapes");
    r->tape = link->tape;
    if (link->node > r->last) r->last = link->node;
    return add_to(&r->tape->node[link->node].out_grad[link->output], seed);
}

static ts_status run_all(run *r)
{
    if (!r->tape) return TS_OK;
    ts_tape *tape = ts_tape_retain(r->tape);
    ts_status status = TS_OK;
    for (int64_t n = r->last; n >= 0 && status == TS_OK; n--)
        status = node_run(r, n);
    if (status == TS_OK && !r->wrt) status = each_leaf(tape, leaf_ready);
    ts_tape_release(tape);
    return status;
}

static int32_t parts_of(int32_t part)
{
    switch ((ts_backward_part)part) {
    case TS_BACKWARD_ALL:
        return TOWARDS_INPUT | TOWARDS_PARAMETER;
    case TS_BACKWARD_INPUTS:
        return TOWARDS_INPUT;
    case TS_BACKWARD_WEIGHTS:
        return TOWARDS_PARAMETER;
    }
    return 0;
}

/* The second half of a split backward continues where the first left its gradients. */
static ts_status seed_again(run *r, ts_tensor *root)
{
    const tsi_link *link = root->autograd;
    if (!link || !link->tape) return TSI_FAIL(TS_ERR_STATE, "backward: the root has no history");
    r->tape = link->tape;
    r->last = link->tape->node_count - 1;
    return TS_OK;
}

ts_status ts_backward_from(ts_tensor *const *root, ts_tensor *const *seed, int32_t count,
                           const ts_backward_options *options)
{
    ts_rank *rank = tsi_tensor_enter(count > 0 ? root[0] : NULL, "backward");
    if (!rank) return tsi_rank_current() ? ts_rank_status(tsi_rank_current()) : TS_ERR_NULL;
    ts_backward_options o = TS_INIT(ts_backward_options);
    if (options)
        memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
    run r = { .parts = parts_of(o.part), .keep = o.keep, .last = -1 };
    ts_scope scope = ts_scope_open(rank, "backward");
    ts_status status = TS_OK;
    for (int32_t k = 0; k < count && status == TS_OK; k++) {
        if (!root[k])
            status = TSI_FAIL(TS_ERR_NULL, "backward: root %d is NULL", k);
        else if (o.part == TS_BACKWARD_WEIGHTS)
            status = seed_again(&r, root[k]);
        else {
            ts_tensor *one = seed && seed[k] ? seed[k] : seed_one(root[k]);
            status = one ? seed_plant(&r, root[k], one) : ts_rank_status(rank);
        }
    }
    if (status == TS_OK) status = run_all(&r);
    if (status == TS_OK && !o.lazy && r.tape) status = each_leaf(r.tape, tsi_leaf_settle);
    ts_scope_close(scope);
    return status;
}

ts_status ts_backward(ts_tensor *root, const ts_backward_options *options)
{
    ts_tensor *seed = options && options->struct_size >= offsetof(ts_backward_options, part)
                          ? options->seed
                          : NULL;
    return ts_backward_from(&root, &seed, 1, options);
}

ts_status ts_grad(ts_tensor *root, ts_tensor *const *wrt, int32_t count, ts_tensor **out)
{
    for (int32_t k = 0; k < count; k++)
        out[k] = NULL;
    ts_rank *rank = tsi_tensor_enter(root, "grad");
    if (!rank) return tsi_rank_current() ? ts_rank_status(tsi_rank_current()) : TS_ERR_NULL;
    run r = { .parts = TOWARDS_INPUT | TOWARDS_PARAMETER,
              .keep = 1,
              .last = -1,
              .wrt = wrt,
              .wrt_grad = out,
              .wrt_count = count };
    ts_scope scope = ts_scope_open(rank, "grad");
    ts_tensor *one = seed_one(root);
    ts_status status = one ? seed_plant(&r, root, one) : ts_rank_status(rank);
    if (status == TS_OK) status = run_all(&r);
    ts_scope_close(scope);
    tsi_tensor_state *state = tsi_slot_get(rank, TSI_SLOT_TENSOR);
    for (int32_t k = 0; k < count; k++) { /* our references go to the caller's scope */
        if (!out[k]) continue;
        if (status == TS_OK && out[k]->frame < 0) {
            tsi_frame_adopt(state, state->frame_count - 1, out[k]);
        } else {
            ts_tensor_release(out[k]);
            if (status != TS_OK) out[k] = NULL;
        }
    }
    return status;
}
