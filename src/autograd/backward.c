/* SPDX-License-Identifier: Apache-2.0 */
/* backward.c - gradients from a root back to the leaves.
 *
 * Nodes are visited in descending order of recording. A node runs its gradient once for what still
 * wants it: towards watched inputs, towards parameters, or both; a split backward keeps the
 * gradients of outputs for its second half. When the last use of a leaf is passed, its gradient is
 * complete: its hooks are called and its reduction starts, while earlier nodes run. */
#include <string.h>

#include "autograd/tape.h"
#include "base/alloc.h"
#include "op/core/common.h"
#include "op/core/element.h"
#include "tensor/scope.h"

/* ---- delivering ------------------------------------------------------------------------------ */

/* *sum += addition, held by one reference. */
static ts_status add_to(ts_tensor **sum, ts_tensor *addition)
{
    ts_tensor *total = *sum ? ts_add(*sum, addition) : addition;
    if (!total) return ts_rank_status(addition->rank);
    tsi_tensor_retain(total);
    tsi_tensor_release(*sum);
    *sum = total;
    return TS_OK;
}

static ts_status deliver_wrt(tsi_backward *r, const tsi_edge *edge, ts_tensor *grad)
{
    for (int32_t k = 0; k < r->wrt_count; k++) { /* a tensor may be asked for twice */
        const tsi_link *link = r->wrt[k]->autograd;
        if (!link) continue;
        bool mine = edge->leaf ? link->leaf == edge->leaf
                               : link->tape == r->tape && link->node == edge->node &&
                                     link->output == edge->output;
        if (mine) TSI_TRY(add_to(&r->wrt_grad[k], grad));
    }
    return TS_OK;
}

/* Inside a function that runs again, leaves of the outside get their gradient as the outermost
 * backward wants it. */
static ts_status deliver(tsi_backward *r, const tsi_edge *edge, ts_tensor *grad)
{
    tsi_backward *top = r;
    while (top->outer)
        top = top->outer;
    if (edge->leaf && (edge->leaf->is_inner || !top->wrt))
        return tsi_leaf_accumulate(edge->leaf, grad);
    if (top->wrt && (edge->leaf || r == top)) TSI_TRY(deliver_wrt(top, edge, grad));
    if (edge->leaf) return TS_OK;
    TSI_ASSERT(edge->node >= 0 && edge->node < r->tape->node_count);
    return add_to(&r->tape->node[edge->node].out_grad[edge->output], grad);
}

/* The sum itself, which an operator has added its gradient to. */
static ts_status deliver_sum(tsi_backward *r, const tsi_edge *edge, ts_tensor *sum)
{
    if (edge->leaf) return ts_tensor_write(edge->leaf->grad, sum);
    ts_tensor **at = &r->tape->node[edge->node].out_grad[edge->output];
    tsi_tensor_retain(sum);
    tsi_tensor_release(*at);
    *at = sum;
    return TS_OK;
}

/* What input i of a node has got so far, where its gradient may be added to it: not while somebody
 * wants single gradients, and once for an input that occurs twice. */
static ts_tensor *sum_of(const tsi_backward *r, const tsi_node *node, int32_t input)
{
    const tsi_edge *edge = &node->edge[input];
    const tsi_backward *top = r;
    while (top->outer)
        top = top->outer;
    bool inner = edge->leaf && edge->leaf->is_inner; /* as if the function had not been run again */
    if (top->wrt || (edge->node < 0 && !inner)) return NULL;
    for (int32_t i = 0; i < input; i++)
        if (node->edge[i].node == edge->node && node->edge[i].output == edge->output &&
            node->edge[i].leaf == edge->leaf)
            return NULL;
    if (!inner) return r->tape->node[edge->node].out_grad[edge->output];
    ts_tensor *sum = edge->leaf->grad;
    return sum && ts_tensor_layout(sum) && sum->dtype == edge->leaf->dtype ? sum : NULL;
}

/* ---- one node -------------------------------------------------------------------------------- */

/* Has an output got a gradient that the operator can do nothing with? */
static ts_status check_aside(const tsi_node *node)
{
    for (int32_t o = 0; node->op && o < node->output_count; o++)
        if (node->out_grad[o] && node->op->aside >> o & 1)
            return TSI_FAIL(TS_ERR_STATE,
                            "backward of %s: its output %d has no gradient, and one is asked for; "
                            "detach it if it is to count as a constant",
                            node->op->name, o);
    return TS_OK;
}

/* Has it a gradient, of values that are still those it saved? */
static ts_status check_node(const tsi_node *node)
{
    TSI_TRY(check_aside(node));
    if (node->op && !node->op->grad)
        return TSI_FAIL(TS_ERR_STATE,
                        "backward of %s: it has no gradient, and one is asked for; detach its "
                        "inputs if it is to count as a constant",
                        node->op->name);
    for (int32_t i = 0; i < node->input_count + node->output_count; i++) {
        const ts_tensor *t = node->saved[i];
        if (!t || !tsi_tape_changed(t, node->version[i])) continue;
        return TSI_FAIL(
            TS_ERR_STATE,
            "backward of %s (%s): a tensor it saved was changed in place since (version %u, "
            "now %u)",
            node->op ? node->op->name : "a function", node->label, node->version[i],
            tsi_tape_version(t));
    }
    return TS_OK;
}

/* What leads both to inputs and to parameters got its gradient in the first half of a split
 * backward, and has kept it. */
static bool edge_wants(const tsi_backward *r, const tsi_node *node, const tsi_edge *edge)
{
    return edge->towards & r->parts && !(edge->towards & node->done);
}

static uint64_t needs_of(const tsi_backward *r, const tsi_node *node)
{
    uint64_t needs = 0;
    for (int32_t i = 0; i < node->input_count && i < 64; i++)
        if (edge_wants(r, node, &node->edge[i])) needs |= UINT64_C(1) << i;
    return needs;
}

/* The gradient of a complex number is dL/dre + i dL/dim, so that of f(x) is dy conj(f'(x)). All our
 * functions and products have f(conj x) = conj f(x): the operators' gradients are written with f',
 * as for reals, and are given the conjugates of what was saved. Those that are no such functions
 * (abs, norms) take them back. A user's own gradient gets what it saved. */
static ts_status conjugate_saved(const tsi_node *node, ts_tensor **out)
{
    for (int32_t i = 0; i < node->input_count + node->output_count; i++) {
        ts_tensor *t = node->saved[i];
        bool turn = t && tsi_dtype_category((ts_dtype)t->dtype) == TSI_CATEGORY_COMPLEX &&
                    node->op && !(node->op->flags & TSI_OP_USER);
        out[i] = turn ? ts_conj(t) : t;
        if (turn && !out[i]) return ts_rank_status(t->rank);
    }
    return TS_OK;
}

/* Inputs that are what a cast made of f32: their gradient is cast back. */
static uint64_t wide_of(const tsi_backward *r, const tsi_node *node)
{
    uint64_t wide = 0;
    for (int32_t i = 0; i < node->input_count && i < 64; i++) {
        const tsi_edge *edge = &node->edge[i];
        if (edge->node >= 0 && r->tape->node[edge->node].rounds == TS_DTYPE_F32)
            wide |= UINT64_C(1) << i;
    }
    return wide;
}

/* Is nothing of it wanted after the parts of this backward? */
static bool ends_with(const tsi_backward *r, const tsi_node *node)
{
    return !r->keep && (node->towards & ~(node->done | r->parts)) == 0;
}

/* What node_run gives a gradient to work with, in one piece of memory. */
typedef struct node_work {
    ts_tensor **in_grad, **sum, **saved;
    uint64_t included, needs; /* bit i: of input i */
} node_work;

static ts_status node_gradients(tsi_backward *r, tsi_node *node, node_work *w)
{
    ts_tensor **saved = w->saved;
    for (int32_t i = 0; i < node->input_count; i++)
        w->sum[i] = sum_of(r, node, i);
    tsi_grad_io io = {
        .op = node->op,
        .attributes = node->attributes,
        .rank = r->tape->rank,
        .in = saved,
        .out = saved + node->input_count,
        .in_meta = node->in_meta,
        .out_grad = node->out_grad,
        .in_grad = w->in_grad,
        .in_sum = w->sum,
        .included = &w->included,
        .needs = w->needs,
        .wide = wide_of(r, node),
        .input_count = node->input_count,
        .output_count = node->output_count,
        .last = ends_with(r, node),
    };
    if (io.needs == 0 && node->op) return TS_OK;
    TSI_TRY(tsi_thin_restore(r->tape, node));
    TSI_TRY(check_node(node));
    TSI_TRY(conjugate_saved(node, saved));
    const char *where = r->tape->rank->where;
    r->tape->rank->where = node->where;
    ts_status status = node->op ? node->op->grad(&io) : node->grad(&io, node->extra);
    r->tape->rank->where = where;
    if (status != TS_OK)
        tsi_error_prefix("backward of %s", node->op ? node->op->name : "a function");
    return status;
}

/* What a finished node held. */
static void node_let_go(tsi_node *node)
{
    for (int32_t i = 0; i < node->input_count + node->output_count; i++) {
        tsi_tensor_release(node->saved[i]);
        node->saved[i] = NULL;
    }
    for (int32_t o = 0; o < node->output_count; o++) {
        tsi_tensor_release(node->out_grad[o]);
        node->out_grad[o] = NULL;
    }
}

static bool has_gradient(const tsi_node *node)
{
    for (int32_t o = 0; o < node->output_count; o++)
        if (node->out_grad[o]) return true;
    return false;
}

static ts_status node_hooks(tsi_node *node)
{
    for (const tsi_grad_hook *h = node->hooks; h; h = h->next)
        if (node->out_grad[h->output]) TSI_TRY(tsi_grad_hook_call(h, node->out_grad[h->output]));
    return TS_OK;
}

/* After its gradients went on. */
static void node_end(const tsi_backward *r, tsi_node *node)
{
    bool finished = ends_with(r, node);
    node->done |= r->parts;
    if (r->keep) {
        node->done = 0;
        for (int32_t o = 0; o < node->output_count; o++) {
            tsi_tensor_release(node->out_grad[o]);
            node->out_grad[o] = NULL;
        }
    } else if (finished) {
        node_let_go(node);
    }
}

static ts_status node_deliver(tsi_backward *r, tsi_node *node, node_work *w)
{
    ts_status status = TS_OK;
    for (int32_t i = 0; status == TS_OK && i < node->input_count; i++) {
        if (!w->in_grad[i] || !edge_wants(r, node, &node->edge[i])) continue;
        if (w->included >> i & 1)
            status = deliver_sum(r, &node->edge[i], w->in_grad[i]);
        else
            status = deliver(r, &node->edge[i], w->in_grad[i]);
        w->in_grad[i] = NULL;
    }
    return status;
}

/* ---- gradients that travel ------------------------------------------------------------------- */

/* Does a node between the two lead to the move, or to what was moved? Then sums would be added in
 * another order. */
static bool meets(const tsi_backward *r, int64_t from, int64_t number)
{
    const tsi_edge *moved = &r->tape->node[from].edge[0];
    for (int64_t n = from + 1; n < number; n++)
        for (int32_t k = 0; k < r->tape->node[n].edge_count; k++) {
            const tsi_edge *edge = &r->tape->node[n].edge[k];
            bool same = edge->node == moved->node && edge->leaf == moved->leaf &&
                        edge->output == moved->output;
            if (edge->node == from || (same && (edge->node >= 0 || edge->leaf))) return true;
        }
    return false;
}

/* Inputs of a product that came by a move of which nothing else is left to come: their gradients go
 * back the same way, while those of weights are computed. */
static uint64_t travelling_of(const tsi_backward *r, int64_t number, uint64_t needs)
{
    const tsi_node *node = &r->tape->node[number];
    uint64_t early = 0;
    if (!node->op || !node->op->chunks || node->thin || r->keep) return 0;
    for (int32_t i = 0; i < node->input_count && i < 64; i++) {
        int64_t from = node->edge[i].node;
        bool moves = needs >> i & 1 && from >= 0 && tsi_node_moves(&r->tape->node[from]) &&
                     !r->tape->node[from].hooks;
        if (moves && !meets(r, from, number)) early |= UINT64_C(1) << i;
    }
    return needs & ~early ? early : 0;
}

static ts_status node_run(tsi_backward *r, int64_t number);

static ts_status send_early(tsi_backward *r, tsi_node *node, node_work *w, uint64_t early)
{
    uint64_t all = w->needs;
    w->needs = early;
    TSI_TRY(node_gradients(r, node, w));
    TSI_TRY(node_deliver(r, node, w));
    for (int32_t i = 0; i < node->input_count && i < 64; i++) {
        int64_t from = node->edge[i].node;
        bool goes = early >> i & 1 && has_gradient(&r->tape->node[from]) &&
                    r->tape->node[from].towards & r->parts & ~r->tape->node[from].done;
        if (goes) TSI_TRY(node_run(r, from));
    }
    w->needs = all & ~early;
    return TS_OK;
}

static ts_status node_run(tsi_backward *r, int64_t number)
{
    tsi_node *node = &r->tape->node[number];
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.no_grad = 1;
    options.implicit_moves = node->moves;
    ts_scope scope = ts_scope_open_with(r->tape->rank, &options);
    if (node->label) tsi_scope_relabel(scope, node->label);
    size_t in = (size_t)node->input_count, out = (size_t)node->output_count;
    ts_tensor **all = tsi_calloc(3 * in + out + 1, sizeof *all);
    node_work w = { 0 };
    if (all) w = (node_work){ all, all + in, all + 2 * in, 0, needs_of(r, node) };
    ts_status status = all ? node_hooks(node) : tsi_fail_memory("gradients of inputs", sizeof *all);
    uint64_t early = travelling_of(r, number, w.needs);
    if (status == TS_OK && early) status = send_early(r, node, &w, early);
    if (status == TS_OK) status = node_gradients(r, node, &w);
    if (status == TS_OK) status = node_deliver(r, node, &w);
    tsi_free(all);
    tsi_thin_forget(node);
    if (status == TS_OK) node_end(r, node);
    ts_scope_close(scope);
    return status;
}

/* ---- leaves ---------------------------------------------------------------------------------- */

/* Starts the reduction of a complete gradient. Two are under way at most: memory stays bounded, and
 * the next operators run meanwhile. */
static ts_status settle_start(tsi_backward *r, tsi_leaf *leaf)
{
    if (!leaf->grad || leaf->settled) return TS_OK;
    TSI_TRY(tsi_leaf_settle(leaf));
    tsi_leaf *oldest = r->settling[0];
    r->settling[0] = r->settling[1];
    r->settling[1] = leaf;
    leaf->references++;
    ts_status status = oldest && oldest->grad ? tsi_tensor_ready(oldest->grad) : TS_OK;
    tsi_leaf_release(oldest);
    return status;
}

static void settling_drop(tsi_backward *r)
{
    for (int i = 0; i < 2; i++) {
        tsi_leaf_release(r->settling[i]);
        r->settling[i] = NULL;
    }
}

static ts_status leaf_ready(tsi_backward *r, tsi_leaf *leaf)
{
    if (!leaf->touched) return TS_OK;
    leaf->touched = 0;
    for (const tsi_grad_hook *h = leaf->hooks; h && leaf->self; h = h->next)
        TSI_TRY(tsi_grad_hook_call(h, leaf->self));
    if (r->lazy) return TS_OK;
    return leaf->complete ? leaf->complete(leaf->complete_context) : settle_start(r, leaf);
}

/* A use of each of the node's leaves is behind us. */
static ts_status leaves_pass(tsi_backward *r, int64_t number)
{
    for (int32_t i = 0; i < r->tape->node[number].edge_count; i++) {
        tsi_leaf *leaf = r->tape->node[number].edge[i].leaf;
        if (!leaf) continue;
        TSI_ASSERT(leaf->pending > 0); /* leaves_count counted this use */
        if (--leaf->pending > 0) continue;
        const char *label = r->tape->node[number].label; /* the gradient belongs to that module */
        if (label) r->tape->rank->label = label;
        TSI_TRY(leaf_ready(r, leaf));
    }
    return TS_OK;
}

/* Anew each time: a backward that failed may have left counts behind. */
static void leaves_count(const tsi_backward *r)
{
    const tsi_node *node = r->tape->node;
    for (int64_t n = 0; n <= r->last; n++)
        for (int32_t i = 0; i < node[n].edge_count; i++)
            if (node[n].edge[i].leaf) node[n].edge[i].leaf->pending = 0;
    for (int64_t n = 0; n <= r->last; n++)
        for (int32_t i = 0; i < node[n].edge_count; i++)
            if (node[n].edge[i].leaf) node[n].edge[i].leaf->pending++;
}

/* Leaves of earlier, lazy backwards that this one did not touch. */
static ts_status leaves_settle(const tsi_backward *r)
{
    for (int64_t n = r->tape->node_count - 1; n >= 0; n--)
        for (int32_t i = 0; i < r->tape->node[n].edge_count; i++)
            if (r->tape->node[n].edge[i].leaf)
                TSI_TRY(tsi_leaf_settle(r->tape->node[n].edge[i].leaf));
    return TS_OK;
}

/* ---- marks ----------------------------------------------------------------------------------- */

static void mark_push(tsi_backward *r, tsi_mark *m)
{
    m->told = 0;
    m->below = r->open;
    r->open = m;
}

/* Outer ones are told first; nesting is as deep as modules are. */
static ts_status marks_tell(tsi_mark *m)
{
    if (!m || m->told) return TS_OK;
    TSI_TRY(marks_tell(m->below));
    m->told = 1;
    return m->before ? m->before(m->context) : TS_OK;
}

static ts_status marks_end(tsi_backward *r, tsi_mark *m)
{
    for (; m; m = m->next_begin) {
        if (r->open == m) r->open = m->below;
        if (m->told && m->after) TSI_TRY(m->after(m->context));
    }
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

ts_status tsi_backward_plant(tsi_backward *r, ts_tensor *root, ts_tensor *seed)
{
    const tsi_link *link = root->autograd;
    if (link && link->leaf) return deliver(r, &(tsi_edge){ .node = -1, .leaf = link->leaf }, seed);
    if (!link || !link->tape)
        return TSI_FAIL(TS_ERR_STATE,
                        "backward: the root has no history: it was made outside a tape, from "
                        "no leaf, or its tape has ended");
    if (r->tape && r->tape != link->tape)
        return TSI_FAIL(TS_ERR_STATE, "backward: the roots belong to different tapes");
    r->tape = link->tape;
    if (link->node > r->last) r->last = link->node;
    tsi_edge itself = { .node = link->node, .output = link->output };
    if (r->wrt) TSI_TRY(deliver_wrt(r, &itself, seed));
    return add_to(&r->tape->node[link->node].out_grad[link->output], seed);
}

static ts_status node_visit(tsi_backward *r, int64_t number)
{
    tsi_node *node = &r->tape->node[number];
    for (tsi_mark *m = node->ends; m; m = m->next_end)
        mark_push(r, m);
    bool runs = has_gradient(node) && (node->towards & r->parts & ~node->done);
    if (runs) {
        TSI_TRY(marks_tell(r->open));
        TSI_TRY(node_run(r, number));
    }
    /* The second half of a split backward may want what the first made again, and the backward of
     * another root what this one did not reach. */
    bool whole = r->parts == (TSI_TOWARDS_INPUT | TSI_TOWARDS_PARAMETER);
    tsi_thin_pass(node, runs && whole && !r->keep);
    if (!r->outer && !r->wrt) TSI_TRY(leaves_pass(r, number));
    return marks_end(r, r->tape->node[number].begins);
}

ts_status tsi_backward_nodes(tsi_backward *r)
{
    ts_tape *tape = tsi_tape_retain(r->tape);
    ts_status status = TS_OK;
    for (tsi_mark *m = tape->marks; m; m = m->next) /* that begin below the root and end above */
        if (m->first <= r->last && m->last > r->last) mark_push(r, m);
    for (int64_t n = r->last; n >= 0 && status == TS_OK; n--)
        status = node_visit(r, n);
    tsi_tape_release(tape);
    return status;
}

/* Looks for what will be refused before anything is used up: then the tape is as it was. */
static ts_status check_all(const tsi_backward *r)
{
    unsigned char *reached = tsi_calloc((size_t)r->last + 1, 1);
    if (!reached) return tsi_fail_memory("the nodes of a backward", (size_t)r->last + 1);
    ts_status status = TS_OK;
    for (int64_t n = r->last; n >= 0 && status == TS_OK; n--) {
        const tsi_node *node = &r->tape->node[n];
        bool runs = (reached[n] || has_gradient(node)) && node->towards & r->parts & ~node->done;
        if (!runs) continue;
        for (int32_t i = 0; i < node->edge_count; i++) {
            const tsi_edge *edge = &node->edge[i];
            if (edge->node >= 0 && edge_wants(r, node, edge)) reached[edge->node] = 1;
        }
        if (!node->op || needs_of(r, node)) status = check_node(node);
    }
    tsi_free(reached);
    return status;
}

/* After a failure: gradients on their way would be taken for those of the next backward, and leaves
 * that got some for its own. What the first half of a split one keeps stays. */
static void forget(const tsi_backward *r)
{
    for (int64_t n = 0; r->tape && n < r->tape->node_count; n++) {
        tsi_node *node = &r->tape->node[n];
        for (int32_t i = 0; i < node->edge_count; i++)
            if (node->edge[i].leaf) node->edge[i].leaf->touched = 0;
        for (int32_t o = 0; node->done == 0 && o < node->output_count; o++) {
            tsi_tensor_release(node->out_grad[o]);
            node->out_grad[o] = NULL;
        }
    }
}

/* The tape is held: a hook may close the scope it was begun in. */
static ts_status run_tape(tsi_backward *r)
{
    ts_tape *tape = tsi_tape_retain(r->tape);
    ts_status status = check_all(r);
    if (status == TS_OK && !r->wrt) leaves_count(r);
    if (status == TS_OK) status = tsi_backward_nodes(r);
    if (status == TS_OK && !r->lazy && !r->wrt) status = leaves_settle(r);
    if (status != TS_OK) forget(r);
    tsi_tape_release(tape);
    return status;
}

/* Roots that are leaves have their gradient, whether the tape uses them or not. */
static ts_status roots_pass(tsi_backward *r, ts_tensor *const *root, int32_t count)
{
    for (int32_t k = 0; k < count; k++) {
        tsi_leaf *leaf = tsi_leaf_of(root[k]);
        if (leaf) TSI_TRY(leaf_ready(r, leaf));
    }
    return TS_OK;
}

/* The outermost backward, after the roots were given their gradients. */
static ts_status run_all(tsi_backward *r, ts_rank *rank, ts_tensor *const *root, int32_t count)
{
    tsi_autograd_state *state = tsi_slot_get(rank, TSI_SLOT_AUTOGRAD);
    TSI_ASSERT(state); /* it made the tape, or the leaf */
    tsi_backward *before = state->running;
    state->running = r;
    state->serial++;
    ts_status status = r->tape ? run_tape(r) : TS_OK;
    if (status == TS_OK && !r->wrt) status = roots_pass(r, root, count);
    settling_drop(r);
    state->running = before;
    return status;
}

static int32_t parts_of(int32_t part)
{
    switch ((ts_backward_part)part) {
    case TS_BACKWARD_ALL:
        return TSI_TOWARDS_INPUT | TSI_TOWARDS_PARAMETER;
    case TS_BACKWARD_INPUTS:
        return TSI_TOWARDS_INPUT;
    case TS_BACKWARD_WEIGHTS:
        return TSI_TOWARDS_PARAMETER;
    }
    return 0;
}

/* The second half of a split backward continues where the first left its gradients; a leaf got its
 * own then. */
static ts_status seed_again(tsi_backward *r, ts_tensor *root)
{
    const tsi_link *link = root->autograd;
    if (link && link->leaf) return TS_OK;
    if (!link || !link->tape) return TSI_FAIL(TS_ERR_STATE, "backward: the root has no history");
    r->tape = link->tape;
    r->last = link->tape->node_count - 1;
    return TS_OK;
}

/* A gradient has the shape and dtype of what it is the gradient of; its layout is free. */
static ts_status check_seed(int32_t k, const ts_tensor *root, const ts_tensor *seed)
{
    if (!root->layout) return tsi_tensor_refuse(root, "backward: root %d", k);
    if (!seed->layout) return tsi_tensor_refuse(seed, "backward: seed %d", k);
    const ts_shape *want = &root->layout->shape, *got = &seed->layout->shape;
    if (tsi_shape_same(want, got) && root->dtype == seed->dtype) return TS_OK;
    char want_text[96], got_text[96];
    return TSI_FAIL(
        TS_ERR_SHAPE, "backward: seed %d is %s %s, its root %s %s", k,
        ts_dtype_name((ts_dtype)seed->dtype), tsi_shape_text(got, got_text, sizeof got_text),
        ts_dtype_name((ts_dtype)root->dtype), tsi_shape_text(want, want_text, sizeof want_text));
}

ts_status ts_backward_from(ts_tensor *const *root, ts_tensor *const *seed, int32_t count,
                           const ts_backward_options *options)
{
    ts_rank *rank = tsi_tensor_enter(root && count > 0 ? root[0] : NULL, "backward");
    if (!rank) return tsi_rank_current() ? ts_rank_status(tsi_rank_current()) : TS_ERR_NULL;
    ts_backward_options o = TS_INIT(ts_backward_options);
    if (options)
        memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
    tsi_backward r = { .parts = parts_of(o.part), .keep = o.keep, .lazy = o.lazy, .last = -1 };
    ts_scope scope = ts_scope_open(rank, "backward");
    ts_status status = TS_OK;
    for (int32_t k = 0; k < count && status == TS_OK; k++) {
        bool seeded = seed && seed[k];
        if (!root[k])
            status = TSI_FAIL(TS_ERR_NULL, "backward: root %d is NULL", k);
        else if (seeded && check_seed(k, root[k], seed[k]) != TS_OK)
            status = ts_rank_status(rank);
        else if (o.part == TS_BACKWARD_WEIGHTS)
            status = seed_again(&r, root[k]);
        else {
            ts_tensor *one = seeded ? seed[k] : seed_one(root[k]);
            status = one ? tsi_backward_plant(&r, root[k], one) : ts_rank_status(rank);
        }
    }
    if (status == TS_OK)
        status = run_all(&r, rank, root, count);
    else
        forget(&r);
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

/* Whatever is not on the way from the root has no gradient; what is no tensor cannot be asked. */
static ts_status check_wrt(ts_tensor *const *wrt, int32_t count, ts_tensor *const *out)
{
    if (count > 0 && (!wrt || !out))
        return TSI_FAIL(TS_ERR_NULL, "grad: the list of %s is NULL", wrt ? "results" : "tensors");
    for (int32_t k = 0; k < count; k++) {
        if (!wrt[k]) return TSI_FAIL(TS_ERR_NULL, "grad: tensor %d of %d is NULL", k, count);
        if (wrt[k]->ended) return tsi_tensor_refuse(wrt[k], "grad: tensor %d", k);
    }
    return TS_OK;
}

ts_status ts_grad(ts_tensor *root, ts_tensor *const *wrt, int32_t count, ts_tensor **out)
{
    for (int32_t k = 0; out && k < count; k++)
        out[k] = NULL;
    ts_rank *rank = tsi_tensor_enter(root, "grad");
    if (!rank) return tsi_rank_current() ? ts_rank_status(tsi_rank_current()) : TS_ERR_NULL;
    TSI_TRY(check_wrt(wrt, count, out));
    tsi_backward r = { .parts = TSI_TOWARDS_INPUT | TSI_TOWARDS_PARAMETER,
                       .keep = 1,
                       .last = -1,
                       .wrt = wrt,
                       .wrt_grad = out,
                       .wrt_count = count };
    ts_scope scope = ts_scope_open(rank, "grad");
    ts_tensor *one = seed_one(root);
    ts_status status = one ? tsi_backward_plant(&r, root, one) : ts_rank_status(rank);
    if (status == TS_OK)
        status = run_all(&r, rank, &root, 1);
    else
        forget(&r);
    ts_scope_close(scope);
    tsi_tensor_state *state = tsi_slot_get(rank, TSI_SLOT_TENSOR);
    for (int32_t k = 0; k < count; k++) { /* our references go to the caller's scope */
        if (!out[k]) continue;
        if (status == TS_OK && out[k]->frame < 0) {
            tsi_frame_adopt(state, state->frame_count - 1, out[k]);
        } else {
            tsi_tensor_release(out[k]);
            if (status != TS_OK) out[k] = NULL;
        }
    }
    return status;
}
