/* SPDX-License-Identifier: Apache-2.0 */
/* tape.c - recording: what an operator call leaves on the open tape.
 *
 * INV: a gradient is of the values that the call saw. The tape holds values, with the number of
 * writes they had; what was written since, by the call itself or through another view, is refused:
 * here where a call would leave a wrong history, else in backward. */
#include "autograd/tape.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/text.h"
#include "op/core/element.h"
#include "op/core/list.h"
#include "tensor/scope.h"

/* ---- the state of a rank --------------------------------------------------------------------- */

static void scope_closed(ts_rank *rank, uint64_t mark);
static void record(void *context, void *what);
static void hear_listing(void *context, void *what);

static void hear_drop(void *context, void *what)
{
    ts_tensor *t = what;
    (void)context;
    if (t->autograd) tsi_link_drop(t);
}

static void hear_close(void *context, void *what)
{
    const tsi_closed *closed = what;
    (void)context;
    scope_closed(closed->rank, closed->mark);
}

/* Heard as long as the rank lives: tensors with a history may outlive the state. */
static const tsi_observer always = {
    .hear = { [TSI_NEWS_DROP] = hear_drop, [TSI_NEWS_CLOSE] = hear_close }
};

static void state_destroy(void *argument)
{
    tsi_autograd_state *state = argument;
    while (state->recording)
        scope_closed(state->rank, state->recording->scope_mark);
    for (ts_tape *tape = state->tapes; tape; tape = tape->older)
        tape->rank = NULL; /* the program holds it longer than its rank */
    for (int64_t i = 0; i < TSI_TAPES_ENDED; i++)
        tsi_free(state->ended[i]);
    tsi_observers_remove(&state->rank->observers, &state->hears);
    tsi_free(state);
}

static void *state_create(ts_rank *rank)
{
    tsi_tensor_state *tensors = tsi_tensor_state_of(rank);
    tsi_autograd_state *state = tensors ? tsi_calloc(1, sizeof *state) : NULL;
    if (!state) {
        tsi_fail_memory("the autograd state of a rank", sizeof *state);
        return NULL;
    }
    state->rank = rank;
    state->hears = (tsi_observer){ .context = state,
                                   .hear = { [TSI_NEWS_CALL] = record,
                                             [TSI_NEWS_MOVE] = tsi_tape_moved,
                                             [TSI_NEWS_LISTING] = hear_listing } };
    if (tsi_observers_add(&rank->observers, &always) == TS_OK) return state;
    tsi_free(state);
    return NULL;
}

TSI_STEP_PATH tsi_autograd_state *tsi_autograd_state_of(ts_rank *rank)
{
    tsi_autograd_state *state = tsi_slot_get(rank, TSI_SLOT_AUTOGRAD);
    if (TSI_LIKELY(state != NULL)) return state;
    return tsi_rank_slot(rank, TSI_SLOT_AUTOGRAD, state_create, state_destroy);
}

/* ---- links ----------------------------------------------------------------------------------- */

static tsi_link *link_of(const ts_tensor *t)
{
    return t ? t->autograd : NULL;
}

static void link_leave_tape(tsi_link *link)
{
    if (!link->tape) return;
    if (link->before)
        link->before->after = link->after;
    else
        link->tape->links = link->after;
    if (link->after) link->after->before = link->before;
    link->tape = NULL;
    link->before = link->after = NULL;
}

void tsi_link_drop(ts_tensor *t)
{
    tsi_link *link = t->autograd;
    link_leave_tape(link);
    if (link->leaf && link->leaf->self == t) link->leaf->self = NULL;
    tsi_autograd_state *state =
        link->leaf && t->rank ? tsi_slot_get(t->rank, TSI_SLOT_AUTOGRAD) : NULL;
    if (state) state->leaves++;
    tsi_leaf_release(link->leaf);
    tsi_free(link);
    t->autograd = NULL;
}

bool tsi_tape_link(ts_tape *tape, ts_tensor *t, int64_t node, int32_t output)
{
    TSI_ASSERT(node >= 0 && node < tape->node_count);
    if (t->autograd) tsi_link_drop(t); /* written in place: its history is the new one */
    tsi_link *link = tsi_calloc(1, sizeof *link);
    if (!link) {
        tsi_fail_memory("the history of a tensor", sizeof *link);
        return false;
    }
    link->tape = tape;
    link->node = node;
    link->output = output;
    link->version = tsi_array_version(t->array);
    link->after = tape->links;
    if (tape->links) tape->links->before = link;
    tape->links = link;
    t->autograd = link;
    return true;
}

TSI_STEP_PATH tsi_leaf *tsi_leaf_of(const ts_tensor *t)
{
    const tsi_link *link = link_of(t);
    return link ? link->leaf : NULL;
}

/* 1: towards a watched input, 2: towards a parameter, 0: nothing of interest. What another tape
 * recorded counts as a constant: backward walks one tape. */
static int32_t towards_of(const ts_tape *tape, const ts_tensor *t)
{
    const tsi_link *link = link_of(t);
    if (!link) return 0;
    if (link->leaf) return link->leaf->towards;
    return link->tape == tape ? tape->node[link->node].towards : 0;
}

bool tsi_tape_wants(const ts_tape *tape, ts_tensor *const *in, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        if (in[i] && towards_of(tape, in[i])) return true;
    return false;
}

int ts_tensor_needs_grad(const ts_tensor *t)
{
    const tsi_link *link = link_of(t);
    return link && (link->leaf || link->tape);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static tsi_node *node_new(ts_tape *tape)
{
    if (tsi_room(&tape->node, tape->node_count, &tape->node_capacity, sizeof *tape->node,
                 "the nodes of a tape") != TS_OK)
        return NULL;
    tsi_node *node = &tape->node[tape->node_count];
    memset(node, 0, sizeof *node);
    return node;
}

static bool node_arrays(ts_tape *tape, tsi_node *node)
{
    size_t in = (size_t)node->input_count, out = (size_t)node->output_count;
    node->edge = tsi_arena_calloc(&tape->memory, in + 1, sizeof *node->edge);
    node->saved = tsi_arena_calloc(&tape->memory, in + out + 1, sizeof *node->saved);
    node->version = tsi_arena_calloc(&tape->memory, in + out + 1, sizeof *node->version);
    node->in_meta = tsi_arena_calloc(&tape->memory, in + 1, sizeof *node->in_meta);
    node->out_grad = tsi_arena_calloc(&tape->memory, out + 1, sizeof *node->out_grad);
    if (node->edge && node->saved && node->version && node->in_meta && node->out_grad) return true;
    tsi_fail_memory("a node of a tape", (in + out) * 128);
    return false;
}

static void edge_fill(const ts_tape *tape, const ts_tensor *t, tsi_edge *edge)
{
    *edge = (tsi_edge){ .node = -1, .towards = t ? towards_of(tape, t) : 0 };
    const tsi_link *link = link_of(t);
    if (!edge->towards) return;
    if (link->leaf) {
        edge->leaf = link->leaf;
        edge->leaf->references++;
    } else {
        TSI_ASSERT(link->node < tape->node_count); /* so a walk downwards meets it later */
        edge->node = link->node;
        edge->output = link->output;
    }
}

/* The node that wrote elements of a tensor by another view since the tensor was made; -1: none. */
static int64_t written_since(const ts_tape *tape, const ts_tensor *t)
{
    const tsi_link *link = link_of(t);
    if (!link || link->leaf || link->tape != tape) return -1;
    if (TSI_LIKELY(tsi_array_version(t->array) == link->version)) return -1;
    for (int64_t i = tape->written_count - 1; i >= 0; i--) {
        const tsi_written *w = &tape->written[i];
        if (w->node <= link->node) return -1; /* and so are those before it */
        if (w->block.storage == t->array->storage && tsi_array_shares(&w->block, t->array))
            return w->node;
    }
    return -1;
}

/* The history of a tensor says nothing of what was written by another view. */
static bool refuse_written(const ts_tape *tape, ts_tensor *const *in, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        int64_t writer = in[i] ? written_since(tape, in[i]) : -1;
        if (writer < 0) continue;
        /* Ranks whose blocks have nothing of what was written do not know. */
        ts_blast blast = in[i]->layout->axes_cut ? TS_BLAST_LOCAL : TS_BLAST_AGREED;
        (void)TSI_FAIL_BLAST(
            blast, TS_ERR_STATE,
            "a tape: input %d was written in place by %s through another view of its "
            "memory, of which its history does not know; clone the view before that",
            i, tape->node[writer].op->name);
        return true;
    }
    return false;
}

/* Notes what a call wrote in place. */
static void note_written(ts_tape *tape, int64_t number, const tsi_op_record *call)
{
    for (int32_t o = 0; call->writes && o < call->plan->output_count; o++) {
        if (tsi_room(&tape->written, tape->written_count, &tape->written_capacity,
                     sizeof *tape->written, "what a tape wrote") != TS_OK)
            return;
        tape->written[tape->written_count++] = (tsi_written){ *call->out[o]->array, number };
    }
}

int64_t tsi_tape_add(ts_tape *tape, ts_tensor *const *in, int32_t input_count, int32_t output_count)
{
    if (refuse_written(tape, in, input_count)) return -1;
    tsi_node *node = node_new(tape);
    if (!node) return -1;
    node->input_count = node->edge_count = input_count;
    node->output_count = output_count;
    if (!node_arrays(tape, node)) return -1;
    const tsi_frame *frame = tsi_frame_top(tsi_slot_get(tape->rank, TSI_SLOT_TENSOR));
    /* Backward runs under the call's own policy, and its events and errors name the call. */
    node->label = frame->label;
    node->moves = frame->moves;
    node->where = tape->rank->where;
    for (int32_t i = 0; i < input_count; i++) {
        edge_fill(tape, in[i], &node->edge[i]);
        node->towards |= node->edge[i].towards;
        if (in[i])
            node->in_meta[i] = (ts_meta){ .shape = ts_tensor_shape(in[i]), .dtype = in[i]->dtype };
    }
    return tape->node_count++;
}

bool tsi_tape_add_leaves(ts_tape *tape, int64_t number, tsi_leaf *const *leaf, int64_t count)
{
    tsi_node *node = &tape->node[number];
    TSI_ASSERT(node->edge_count == node->input_count); /* none were added before */
    size_t all = (size_t)node->input_count + (size_t)count;
    tsi_edge *edge = tsi_arena_calloc(&tape->memory, all + 1, sizeof *edge);
    if (!edge) {
        tsi_fail_memory("the leaves of a function", all * sizeof *edge);
        return false;
    }
    memcpy(edge, node->edge, (size_t)node->input_count * sizeof *edge);
    for (int64_t i = 0; i < count; i++) {
        int32_t towards = leaf[i]->towards;
        edge[node->edge_count++] = (tsi_edge){ .node = -1, .towards = towards, .leaf = leaf[i] };
        leaf[i]->references++;
        node->towards |= towards;
    }
    node->edge = edge;
    return true;
}

TSI_STEP_PATH ts_tape *tsi_tape_recording(ts_rank *rank)
{
    const tsi_autograd_state *state = tsi_slot_get(rank, TSI_SLOT_AUTOGRAD);
    if (!state || !state->recording) return NULL;
    bool off = tsi_frame_top(tsi_slot_get(rank, TSI_SLOT_TENSOR))->no_grad;
    return off ? NULL : state->recording;
}

ts_tensor *tsi_tape_hold(ts_tensor *t, uint32_t *version)
{
    *version = tsi_tape_version(t);
    if (!t->is_variable || t->swaps) return tsi_tensor_retain(t);
    ts_tensor *value = NULL;
    (void)tsi_variable_value(t, &value); /* recorded if it fails */
    return value;
}

/* Does a write of one count as one of the other? As versions say, so that it is the same on ranks
 * that hold nothing. */
static bool same_memory(const ts_tensor *a, const ts_tensor *b)
{
    int32_t part[2] = { a->array->part, b->array->part };
    bool apart = part[0] && part[1] && part[0] != part[1];
    return a->array->storage == b->array->storage && !apart;
}

/* Was the value of an input overwritten by the call itself? */
static bool is_lost(const tsi_op_record *call, int32_t input)
{
    const ts_tensor *t = call->in[input];
    for (int32_t o = 0; t && call->writes && o < call->plan->output_count; o++)
        if (same_memory(t, call->out[o])) return true;
    return false;
}

/* Does the gradient need this input? It may always, but that of the input itself does not, where
 * the result is linear in it. */
static bool needs_input(const tsi_node *node, const tsi_op_record *call, int32_t input)
{
    const tsi_traits *traits = &call->plan->op->traits;
    for (int32_t i = 0; i < node->input_count; i++)
        if (i != input && node->edge[i].towards) return true;
    bool each = traits->flow & TSI_LINEAR_EACH;
    return !each || (traits->linear_in && !(traits->linear_in >> input & 1));
}

bool tsi_tape_saves(const tsi_node *node, const tsi_op_record *call, int32_t input)
{
    if (input >= TSI_SAVE_OUT || !(call->plan->op->saves >> input & 1)) return false;
    return call->in[input] && (!is_lost(call, input) || needs_input(node, call, input));
}

ts_tensor *tsi_tape_hold_input(const tsi_op_record *call, int32_t input, uint32_t *version)
{
    ts_tensor *value = tsi_tape_hold(call->in[input], version);
    if (is_lost(call, input)) --*version; /* backward finds it changed */
    return value;
}

/* Is what arrives at the results of an operator without a gradient to be refused? Truths, places
 * and constants get none; a leaf that is written, as by an optimiser, stays one. */
static bool refuses(const tsi_op_record *call)
{
    const tsi_op_plan *plan = call->plan;
    bool numbers = false;
    if (plan->op->flags & TSI_OP_FREE) return false;
    for (int32_t o = 0; o < plan->output_count; o++) {
        if (tsi_leaf_of(call->out[o])) return false;
        numbers |= tsi_dtype_category((ts_dtype)call->out[o]->dtype) >= TSI_CATEGORY_REAL;
    }
    return numbers;
}

/* The leaf whose memory a tensor is, itself or by views; NULL: none. */
static const ts_tensor *leaf_seen_by(const ts_tape *tape, const ts_tensor *t)
{
    const tsi_link *link = link_of(t);
    if (!link || (!link->leaf && link->tape != tape)) return NULL;
    const tsi_leaf *leaf = link->leaf;
    for (int64_t n = leaf ? -1 : link->node; n >= 0;) {
        const tsi_node *node = &tape->node[n];
        if (!node->op || !(node->op->flags & TSI_OP_VIEW)) return NULL;
        leaf = node->edge[0].leaf;
        n = node->edge[0].node;
    }
    bool sees = leaf && leaf->self && leaf->self->array && same_memory(leaf->self, t);
    return sees ? leaf->self : NULL;
}

/* A call that writes a leaf would take the leaf's place, which got no gradient any more; and where
 * a view of it is written its history would not say so. */
static bool refuse_leaf(const ts_tape *tape, const ts_tensor *written, const char *name,
                        const char *form)
{
    const ts_tensor *t = leaf_seen_by(tape, written);
    char leaf[256] = "a watched tensor";
    if (!t) return false;
    if (t->name) (void)tsi_name_text(t->name, leaf, sizeof leaf);
    (void)TSI_FAIL(TS_ERR_STATE,
                   "%s%s: it writes a leaf (%s) while a tape records; leaves are written under "
                   "no_grad",
                   name, form, leaf);
    return true;
}

static bool refuse_leaves(const ts_tape *tape, const tsi_op_record *call)
{
    const tsi_op_plan *plan = call->plan;
    for (int32_t o = 0; o < plan->output_count; o++)
        if (refuse_leaf(tape, call->out[o], plan->op->name, plan->in_place ? "_" : "")) return true;
    return false;
}

/* What the gradient of the call needs, and who made its outputs. */
static void save(ts_tape *tape, int64_t number, const tsi_op_record *call)
{
    tsi_node *node = &tape->node[number];
    const uint64_t saves = call->plan->op->saves;
    int32_t in = node->input_count;
    for (int32_t i = 0; i < in; i++)
        if (tsi_tape_saves(node, call, i))
            node->saved[i] = tsi_tape_hold_input(call, i, &node->version[i]);
    for (int32_t o = 0; o < node->output_count; o++) {
        if (saves >> (TSI_SAVE_OUT + o) & 1)
            node->saved[in + o] = tsi_tape_hold(call->out[o], &node->version[in + o]);
        if (!tsi_tape_link(tape, call->out[o], number, o)) return;
    }
}

/* One operator was called. */
static void record(void *context, void *what)
{
    const tsi_op_record *call = what;
    tsi_autograd_state *state = context;
    ts_tape *tape = state->recording;
    const tsi_op_plan *plan = call->plan;
    const tsi_frame *frame = tsi_frame_top(tsi_slot_get(state->rank, TSI_SLOT_TENSOR));
    if (state->capture) tsi_capture_leaves(state, call->in, plan->input_count);
    if (!tape || frame->no_grad) return;
    if (!tsi_tape_wants(tape, call->in, plan->input_count)) return;
    /* Without a gradient it is recorded all the same where one would be missed: backward says so.
     */
    if (!plan->op->grad && !refuses(call)) return;
    if (call->writes && refuse_leaves(tape, call)) return;
    int64_t number = tsi_tape_add(tape, call->in, plan->input_count, plan->output_count);
    if (number < 0) return;
    tsi_node *node = &tape->node[number];
    node->op = plan->op;
    size_t bytes = plan->op->attribute_bytes;
    node->attributes = tsi_arena_alloc(&tape->memory, bytes + 1);
    if (!node->attributes) {
        tsi_fail_memory("attributes on a tape", bytes);
        return;
    }
    if (bytes) memcpy(node->attributes, call->attributes, bytes);
    if (plan->op == &tsi_op_cast) node->rounds = node->in_meta[0].dtype;
    note_written(tape, number, call);
    if (tape->thin_first >= 0)
        (void)tsi_thin_record(tape, number, call);
    else
        save(tape, number, call);
}

/* Item i by no operator: its history would be that of what it was. */
static bool refuse_history(const ts_tape *tape, const tsi_listed *listed, int64_t i)
{
    if (!towards_of(tape, listed->lists[0].item[i])) return false;
    (void)TSI_FAIL(TS_ERR_STATE,
                   "%s: item %lld has a history on a tape that records, which does not know "
                   "what is written; do it under no_grad, or to a tensor without history",
                   listed->name, (long long)i);
    return true;
}

/* What the calls of the list would be refused for, before the first of them writes. */
static bool refuse_item(const ts_tape *tape, const tsi_listed *listed, int64_t i)
{
    ts_tensor *in[TSI_INPUT_MAX] = { NULL };
    for (int32_t k = 0; k < listed->count; k++)
        in[k] = listed->lists[k].item[i];
    if (!tsi_tape_wants(tape, in, listed->count)) return false;
    return refuse_leaf(tape, in[0], listed->name, "") || refuse_written(tape, in, listed->count);
}

static void hear_listing(void *context, void *what)
{
    const tsi_listed *listed = what;
    const tsi_autograd_state *state = context;
    const ts_tape *tape = tsi_tape_recording(state->rank);
    bool refused = false;
    for (int64_t i = 0; tape && !refused && i < listed->lists[0].count; i++)
        refused = listed->by_calls ? refuse_item(tape, listed, i) : refuse_history(tape, listed, i);
}

/* ---- the life of a tape ---------------------------------------------------------------------- */

ts_tape *ts_tape_begin(ts_rank *me)
{
    if (!me || tsi_rank_enter(me) != TS_OK) return NULL;
    tsi_autograd_state *state = tsi_autograd_state_of(me);
    ts_tape *tape = state ? tsi_calloc(1, sizeof *tape) : NULL;
    if (!tape) {
        tsi_fail_memory("a tape", sizeof *tape);
        return NULL;
    }
    if (tsi_observers_add(&me->observers, &state->hears) != TS_OK) {
        tsi_free(tape);
        return NULL;
    }
    tape->rank = me;
    tape->references = 1; /* the open scope's */
    tape->older = state->tapes;
    if (state->tapes) state->tapes->newer = tape;
    state->tapes = tape;
    tape->scope_mark = tsi_frame_top(tsi_slot_get(me, TSI_SLOT_TENSOR))->mark;
    tape->open = 1;
    tape->thin_first = -1;
    tape->outer = state->recording;
    state->recording = tape;
    return tape;
}

/* Tapes that were begun in the scope stop recording; without one, calls are told to nobody. */
static void scope_closed(ts_rank *rank, uint64_t mark)
{
    tsi_autograd_state *state = tsi_slot_get(rank, TSI_SLOT_AUTOGRAD);
    while (state && state->recording && state->recording->scope_mark == mark) {
        ts_tape *tape = state->recording;
        tape->open = 0;
        state->recording = tape->outer;
        if (!state->recording) tsi_observers_remove(&rank->observers, &state->hears);
        tsi_tape_release(tape);
    }
}

ts_tape *tsi_tape_retain(ts_tape *tape)
{
    tape->references++;
    return tape;
}

ts_tape *ts_tape_retain(ts_tape *tape)
{
    if (!tape) return NULL;
    if (tape->ended) {
        TSI_FAIL(TS_ERR_STATE, "ts_tape_retain: the tape has ended");
        return NULL;
    }
    tape->held++;
    return tsi_tape_retain(tape);
}

int64_t ts_tape_length(const ts_tape *tape)
{
    return tape ? tape->node_count : 0;
}

/* The body stays a while: a handle that is used too late finds that the tape ended. */
static void body_end(ts_tape *tape)
{
    tsi_autograd_state *state = tape->rank ? tsi_slot_get(tape->rank, TSI_SLOT_AUTOGRAD) : NULL;
    if (!state) {
        tsi_free(tape);
        return;
    }
    if (tape->newer) tape->newer->older = tape->older;
    if (tape->older) tape->older->newer = tape->newer;
    if (state->tapes == tape) state->tapes = tape->older;
    *tape = (ts_tape){ .rank = state->rank, .ended = 1, .thin_first = -1 };
    ts_tape **place = &state->ended[state->ended_count++ % TSI_TAPES_ENDED];
    tsi_free(*place);
    *place = tape;
}

void tsi_tape_release(ts_tape *tape)
{
    TSI_ASSERT(tape->references > 0 && !tape->ended);
    if (--tape->references > 0) return;
    while (tape->links) /* their tensors live on, without a history */
        link_leave_tape(tape->links);
    for (int64_t n = 0; n < tape->node_count; n++) {
        tsi_node *node = &tape->node[n];
        for (int32_t i = 0; i < node->edge_count; i++)
            tsi_leaf_release(node->edge[i].leaf);
        for (int32_t i = 0; i < node->input_count + node->output_count; i++)
            tsi_tensor_release(node->saved[i]);
        for (int32_t o = 0; o < node->output_count; o++)
            tsi_tensor_release(node->out_grad[o]);
        tsi_thin_pass(node, true);
        if (node->extra_destroy) node->extra_destroy(node->extra);
    }
    tsi_arena_release(&tape->memory);
    tsi_free(tape->node);
    tsi_free(tape->written);
    body_end(tape);
}

void ts_tape_release(ts_tape *tape)
{
    if (!tape) return;
    if (tape->held == 0) {
        TSI_FAIL(TS_ERR_STATE,
                 tape->ended ? "ts_tape_release: the tape has ended"
                             : "ts_tape_release: the tape belongs to the scope it was begun in; it "
                               "was not retained, or is released twice");
        return;
    }
    tape->held--;
    tsi_tape_release(tape);
}
