/* SPDX-License-Identifier: Apache-2.0 */
/* thin.c - selected recomputation: values that are cheap to make again are not kept.
 *
 *   forward    product -> norm -> product        the second product would save the norm's result
 *   thin       it notes "output 0 of node 7" instead, and node 7 holds what it was made from
 *   backward   node 7 runs again when the first gradient asks, and its result goes when backward
 *              has passed node 7: everybody that uses it was recorded later, so comes earlier
 *
 * Cheap are views, what works element by element, and norms, where nothing moves between ranks.
 * Products, attention, moves, choices and draws are kept, so nothing is communicated or drawn
 * twice. What a region hands out is kept too, or a chain of sums would be made again from the
 * beginning of the net.
 *
 * INV: a node that is made again lies in the region of the one that asks for it. */
#include <string.h>

#include "autograd/tape.h"
#include "base/alloc.h"
#include "tensor/scope.h"

/* ---- recording ------------------------------------------------------------------------------- */

static bool is_cheap(const tsi_op_plan *plan)
{
    const tsi_op_desc *op = plan->op;
    const uint32_t never = TSI_OP_RANDOM | TSI_OP_HOST | TSI_OP_DATA_SHAPE | TSI_OP_USER |
                           TSI_OP_COMPOSED | TSI_OP_FREE;
    bool light = op->flags & (TSI_OP_VIEW | TSI_OP_CHEAP) || (op->dims && !strcmp(op->dims, "*"));
    return light && !(op->flags & never) && !op->flops && !plan->in_place && !plan->algorithm &&
           tsi_op_plan_bytes(plan) == 0;
}

/* Which earlier node of the region makes the tensor again; node -1: none, it is to be kept. */
static tsi_recipe recipe_of(const ts_tape *tape, const ts_tensor *t)
{
    const tsi_link *link = t->autograd;
    tsi_recipe none = { .node = -1 };
    if (!link || link->leaf || link->tape != tape || link->node < tape->thin_first) return none;
    const tsi_thin *thin = tape->node[link->node].thin;
    return thin && thin->held ? (tsi_recipe){ link->node, link->output, 0 } : none;
}

static void save_input(const ts_tape *tape, tsi_node *node, const tsi_op_record *call, int32_t i)
{
    node->thin->saved[i] = recipe_of(tape, call->in[i]);
    if (node->thin->saved[i].node >= 0) return;
    node->saved[i] = tsi_tape_hold_input(call, i, &node->version[i]);
}

static void save_output(const ts_tape *tape, tsi_node *node, int32_t place, ts_tensor *t)
{
    node->thin->saved[place] = recipe_of(tape, t);
    if (node->thin->saved[place].node >= 0) return;
    node->saved[place] = tsi_tape_hold(t, &node->version[place]);
}

/* What the node is made from. */
static bool hold_inputs(ts_tape *tape, tsi_node *node, const tsi_op_record *call)
{
    size_t in = (size_t)node->input_count + 1, out = (size_t)node->output_count;
    tsi_thin *thin = node->thin;
    thin->from = tsi_arena_calloc(&tape->memory, in, sizeof *thin->from);
    thin->version = tsi_arena_calloc(&tape->memory, in, sizeof *thin->version);
    thin->made = tsi_arena_calloc(&tape->memory, out, sizeof *thin->made);
    thin->made_version = tsi_arena_calloc(&tape->memory, out, sizeof *thin->made_version);
    ts_tensor **held = tsi_arena_calloc(&tape->memory, in, sizeof *held);
    if (!thin->from || !thin->version || !thin->made || !thin->made_version || !held) return false;
    for (int32_t i = 0; i < node->input_count; i++) {
        thin->from[i].node = -1;
        if (!call->in[i]) continue;
        thin->from[i] = recipe_of(tape, call->in[i]);
        if (thin->from[i].node >= 0) continue;
        held[i] = tsi_tape_hold_input(call, i, &thin->version[i]);
    }
    thin->held = held;
    return true;
}

bool tsi_thin_record(ts_tape *tape, int64_t number, const tsi_op_record *call)
{
    tsi_node *node = &tape->node[number];
    const tsi_op_desc *op = call->plan->op;
    int32_t in = node->input_count, out = node->output_count;
    node->thin = tsi_arena_calloc(&tape->memory, 1, sizeof *node->thin);
    tsi_recipe *saved =
        tsi_arena_calloc(&tape->memory, (size_t)(in + out) + 1, sizeof *node->thin->saved);
    if (!node->thin || !saved || (is_cheap(call->plan) && !hold_inputs(tape, node, call))) {
        tsi_fail_memory("a node of a tape", (size_t)(in + out) * 64);
        return false;
    }
    node->thin->saved = saved;
    for (int32_t i = 0; i < in + out; i++)
        saved[i].node = -1;
    for (int32_t i = 0; i < in; i++)
        if (tsi_tape_saves(node, call, i)) save_input(tape, node, call, i);
    for (int32_t o = 0; o < out; o++) {
        if (!tsi_tape_link(tape, call->out[o], number, o)) return false;
        if (op->saves >> (TSI_SAVE_OUT + o) & 1) save_output(tape, node, in + o, call->out[o]);
    }
    return true;
}

static void hold_made(tsi_thin *thin, int32_t output, ts_tensor *t)
{
    thin->made[output] = tsi_tensor_retain(t);
    thin->made_version[output] = tsi_array_version(t->array);
}

/* The tensor leaves the region: it stays, and nothing has to make it again. */
static void keep(const ts_tape *tape, ts_tensor *t)
{
    if (!t) return;
    tsi_recipe recipe = recipe_of(tape, t);
    if (recipe.node < 0) return;
    tsi_thin *thin = tape->node[recipe.node].thin;
    if (!thin->made[recipe.output]) hold_made(thin, recipe.output, t);
    thin->stays = tape->node[recipe.node].output_count == 1;
}

static void need(const ts_tape *tape, const tsi_recipe *recipe)
{
    if (recipe->node >= 0) tape->node[recipe->node].thin->needed = 1;
}

static void let_inputs_go(tsi_node *node)
{
    for (int32_t i = 0; i < node->input_count; i++) {
        tsi_tensor_release(node->thin->held[i]);
        node->thin->held[i] = NULL;
    }
}

void tsi_thin_close(ts_tape *tape, ts_tensor *const *output, int32_t count)
{
    for (int32_t o = 0; o < count; o++)
        keep(tape, output[o]);
    for (int64_t n = tape->node_count - 1; n >= tape->thin_first; n--) {
        tsi_node *node = &tape->node[n];
        tsi_thin *thin = node->thin;
        if (!thin) continue;
        for (int32_t i = 0; i < node->input_count + node->output_count; i++)
            need(tape, &thin->saved[i]);
        if (!thin->held) continue;
        bool again = thin->needed && !thin->stays;
        for (int32_t i = 0; again && i < node->input_count; i++)
            need(tape, &thin->from[i]);
        if (!again) let_inputs_go(node);
    }
}

/* ---- making again ---------------------------------------------------------------------------- */

static ts_tensor *make(ts_tape *tape, tsi_recipe recipe);

/* The node's inputs, held or made again: borrowed. */
static ts_status find_inputs(ts_tape *tape, const tsi_node *node, ts_tensor **in)
{
    const tsi_thin *thin = node->thin;
    if (thin->passed)
        return TSI_FAIL(TS_ERR_STATE,
                        "backward: %s (%s) is to be made again, and an earlier backward that did "
                        "not keep what it needs has passed it",
                        node->op->name, node->label);
    for (int32_t i = 0; i < node->input_count; i++) {
        in[i] = thin->from[i].node < 0 ? thin->held[i] : make(tape, thin->from[i]);
        if (!in[i] && thin->from[i].node >= 0) return ts_rank_status(tape->rank);
        if (thin->held[i] && tsi_tape_changed(thin->held[i], thin->version[i]))
            return TSI_FAIL(TS_ERR_STATE,
                            "backward: %s (%s) is to be made again, and one of its inputs was "
                            "changed in place since",
                            node->op->name, node->label);
    }
    return TS_OK;
}

/* All outputs of a node; they stay until backward passes it. */
static ts_status make_node(ts_tape *tape, int64_t number)
{
    const tsi_node *node = &tape->node[number];
    ts_tensor *in[TSI_SAVE_OUT] = { NULL }, *out[TSI_OUTPUT_MAX] = { NULL };
    if (node->input_count > TSI_SAVE_OUT || node->output_count > TSI_OUTPUT_MAX)
        return TSI_FAIL(TS_ERR_STATE, "backward: %s has too many inputs to be made again",
                        node->op->name);
    TSI_TRY(find_inputs(tape, node, in));
    ts_scope scope = ts_scope_open_with(
        tape->rank, TS_OPTIONS(ts_scope_options, .no_grad = 1, .implicit_moves = node->moves));
    if (node->label) tsi_scope_relabel(scope, node->label);
    tsi_op_args args = {
        .op = node->op, .in = in, .input_count = node->input_count, .attributes = node->attributes
    };
    tsi_autograd_state *state = tsi_autograd_state_of(tape->rank);
    state->again++;
    ts_status status = tsi_op_run(&args, out);
    state->again--;
    for (int32_t o = 0; status == TS_OK && o < node->output_count; o++)
        if (!node->thin->made[o]) hold_made(node->thin, o, out[o]);
    ts_scope_close(scope);
    return status;
}

static ts_tensor *make(ts_tape *tape, tsi_recipe recipe)
{
    const tsi_node *node = &tape->node[recipe.node];
    const tsi_thin *thin = node->thin;
    if (!thin->made[recipe.output] && make_node(tape, recipe.node) != TS_OK) return NULL;
    ts_tensor *made = thin->made[recipe.output];
    if (!tsi_tape_changed(made, thin->made_version[recipe.output])) return made;
    (void)TSI_FAIL(TS_ERR_STATE,
                   "backward: what %s (%s) made is needed again, and was changed in place since",
                   node->op->name, node->label);
    return NULL;
}

ts_status tsi_thin_restore(ts_tape *tape, tsi_node *node)
{
    if (!node->thin) return TS_OK;
    for (int32_t i = 0; i < node->input_count + node->output_count; i++) {
        if (node->thin->saved[i].node < 0) continue;
        ts_tensor *t = make(tape, node->thin->saved[i]);
        if (!t) return ts_rank_status(tape->rank);
        node->saved[i] = tsi_tensor_retain(t);
        node->version[i] = tsi_array_version(t->array);
    }
    return TS_OK;
}

void tsi_thin_forget(tsi_node *node)
{
    for (int32_t i = 0; node->thin && i < node->input_count + node->output_count; i++) {
        if (node->thin->saved[i].node < 0) continue;
        tsi_tensor_release(node->saved[i]);
        node->saved[i] = NULL;
    }
}

void tsi_thin_pass(tsi_node *node, bool for_good)
{
    tsi_thin *thin = node->thin;
    if (!thin || !thin->held) return;
    for (int32_t o = 0; (for_good || !thin->stays) && o < node->output_count; o++) {
        tsi_tensor_release(thin->made[o]);
        thin->made[o] = NULL;
    }
    if (!for_good) return;
    let_inputs_go(node);
    thin->passed = 1;
}
