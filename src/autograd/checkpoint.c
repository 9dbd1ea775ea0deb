/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.c - functions whose inner values are not kept: backward runs them again.
 *
 *   forward    x -> [f, nothing recorded] -> y        the tape holds x, and which leaves f used
 *   backward   x -> [f on a tape of its own] -> y', then gradients from dy through that tape
 *
 * Gradients of leaves inside arrive at the leaves themselves, those of the inputs go on outside.
 * The second run draws the random numbers of the first (tsi_stream_log). A split backward runs f
 * once, and keeps its tape for the second half.
 *
 * INV: the second run sees the values of the first: where a leaf was written in between, or shows
 * another array, it is refused. Those that swap are their unit's care. */
#include <string.h>

#include "autograd/tape.h"
#include "base/alloc.h"
#include "tensor/scope.h"

typedef struct used { /* a leaf inside f, as f saw it */
    tsi_leaf *leaf;   /* retained */
    const tsi_array *array;
    uint32_t version;
} used;

typedef struct checkpoint {
    ts_checkpoint_fn fn;
    void *state; /* a copy */
    int32_t input_count, output_count;
    tsi_stream_log log;
    int32_t towards, done; /* of the node; parts of a split backward */
    int32_t *leads;        /* [input_count] where each leads, as of its edge */
    ts_tape *tape;         /* of the second run, or NULL */
    ts_tensor **input;     /* [input_count] of the second run, watched; retained */
    ts_tensor **output;    /* [output_count], retained */
    used *used;
    int64_t used_count;
} checkpoint;

/* ---- capturing ------------------------------------------------------------------------------- */

/* Held: a leaf that the function made for itself ends with the function's scope. */
static void capture_one(tsi_capture *c, tsi_leaf *leaf)
{
    for (int64_t i = 0; i < c->count; i++)
        if (c->leaf[i] == leaf) return;
    if (tsi_room(&c->leaf, c->count, &c->capacity, sizeof(tsi_leaf *),
                 "the leaves of a function") != TS_OK)
        return;
    c->leaf[c->count++] = leaf;
    leaf->references++;
}

/* Those whose tensors are there still: the others are made anew when the function runs again. */
static void capture_settle(tsi_capture *c)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < c->count; i++) {
        if (c->leaf[i]->self)
            c->leaf[kept++] = c->leaf[i];
        else
            tsi_leaf_release(c->leaf[i]);
    }
    c->count = kept;
}

static void capture_release(tsi_capture *c)
{
    for (int64_t i = 0; i < c->count; i++)
        tsi_leaf_release(c->leaf[i]);
    tsi_free(c->leaf);
}

void tsi_capture_leaves(tsi_autograd_state *state, ts_tensor *const *in, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        tsi_leaf *leaf = in[i] ? tsi_leaf_of(in[i]) : NULL;
        if (leaf && state->capture) capture_one(state->capture, leaf);
    }
}

/* ---- the second run -------------------------------------------------------------------------- */

static void second_drop(checkpoint *c)
{
    for (int32_t i = 0; i < c->input_count; i++) {
        tsi_tensor_release(c->input[i]);
        c->input[i] = NULL;
    }
    for (int32_t o = 0; o < c->output_count; o++) {
        tsi_tensor_release(c->output[o]);
        c->output[o] = NULL;
    }
    ts_tape_release(c->tape);
    c->tape = NULL;
}

static void checkpoint_destroy(void *extra)
{
    checkpoint *c = extra;
    second_drop(c);
    tsi_free(c->input);
    tsi_free(c->output);
    tsi_free(c->leads);
    tsi_free(c->log.stream);
    for (int64_t i = 0; i < c->used_count; i++)
        tsi_leaf_release(c->used[i].leaf);
    tsi_free(c->used);
    tsi_free(c->state);
    tsi_free(c);
}

static ts_status note_used(checkpoint *c, const tsi_capture *capture)
{
    if (capture->count == 0) return TS_OK;
    c->used = tsi_calloc((size_t)capture->count, sizeof *c->used);
    if (!c->used)
        return tsi_fail_memory("the leaves of a function",
                               (size_t)capture->count * sizeof *c->used);
    for (int64_t i = 0; i < capture->count; i++) {
        tsi_leaf *leaf = capture->leaf[i];
        const tsi_array *array = leaf->self->array;
        leaf->references++;
        c->used[c->used_count++] = (used){ leaf, array, tsi_tape_version(leaf->self) };
    }
    return TS_OK;
}

/* Before the second run and behind it: what swaps is seen to be another when it is gathered. */
static ts_status check_used(const checkpoint *c)
{
    for (int64_t i = 0; i < c->used_count; i++) {
        const used *u = &c->used[i];
        const ts_tensor *now = u->leaf->self;
        if (!now) continue;
        bool same = now->swaps || now->array == u->array;
        if (same && tsi_tape_version(now) == u->version) continue;
        return TSI_FAIL(TS_ERR_STATE,
                        "backward of a function that runs again: a parameter or watched tensor "
                        "that it used was changed since");
    }
    return TS_OK;
}

static ts_status watch_inputs(checkpoint *c, const tsi_grad_io *io)
{
    for (int32_t i = 0; i < c->input_count; i++) {
        if (!io->in[i]) continue;
        ts_tensor *t = c->leads[i] ? ts_watch(io->in[i]) : ts_detach(io->in[i]);
        if (!t) return ts_rank_status(io->rank);
        if (c->leads[i]) {
            tsi_leaf_of(t)->is_inner = 1;
            tsi_leaf_of(t)->towards = c->leads[i];
        }
        c->input[i] = tsi_tensor_retain(t);
    }
    return TS_OK;
}

/* f again, on a tape of its own that outlives the scope. */
static ts_status run_again(checkpoint *c, const tsi_grad_io *io)
{
    ts_rank *rank = io->rank;
    tsi_tensor_state *tensors = tsi_slot_get(rank, TSI_SLOT_TENSOR);
    const char *label = rank->label;
    ts_scope scope = ts_scope_open(rank, NULL);
    tsi_frame *frame = tsi_frame_top(tensors);
    frame->no_grad = 0; /* backward's own scope switched it off */
    frame->label = rank->label = label;
    c->tape = ts_tape_retain(ts_tape_begin(rank));
    ts_status status = c->tape ? watch_inputs(c, io) : ts_rank_status(rank);
    if (status == TS_OK) {
        c->log.next = 0;
        c->log.replays = 1;
        c->log.below = tensors->streams;
        tensors->streams = &c->log;
        tsi_autograd_state_of(rank)->again++;
        c->fn(c->state, rank, c->input, c->output, 1);
        tsi_autograd_state_of(rank)->again--;
        tensors->streams = c->log.below;
        status = ts_rank_status(rank);
    }
    for (int32_t o = 0; o < c->output_count; o++)
        tsi_tensor_retain(c->output[o]);
    ts_scope_close(scope);
    return status;
}

/* Gradients through the second run; those of the inputs are left with its watched inputs. */
static ts_status run_back(checkpoint *c, const tsi_grad_io *io, tsi_backward *outer, int32_t parts)
{
    tsi_autograd_state *state = tsi_autograd_state_of(io->rank);
    tsi_backward inner = { .outer = outer, .parts = parts, .lazy = 1, .last = -1 };
    ts_status status = TS_OK;
    if (c->done == 0) {
        for (int32_t o = 0; o < c->output_count && status == TS_OK; o++) {
            const tsi_link *link = c->output[o] ? c->output[o]->autograd : NULL;
            if (io->out_grad[o] && link)
                status = tsi_backward_plant(&inner, c->output[o], io->out_grad[o]);
        }
    } else {
        inner.tape = c->tape;
        inner.last = c->tape->node_count - 1;
    }
    state->running = &inner;
    if (status == TS_OK && inner.tape) status = tsi_backward_nodes(&inner);
    state->running = outer;
    return status;
}

static ts_status checkpoint_grad(const tsi_grad_io *io, void *extra)
{
    checkpoint *c = extra;
    tsi_backward *outer = tsi_autograd_state_of(io->rank)->running;
    TSI_ASSERT(outer); /* gradients run inside a backward */
    int32_t parts = outer->parts & ~c->done;
    ts_status status = c->tape ? TS_OK : check_used(c);
    if (status == TS_OK && !c->tape) {
        status = run_again(c, io);
        if (status == TS_OK) status = check_used(c);
    }
    if (status == TS_OK) status = run_back(c, io, outer, parts);
    for (int32_t i = 0; i < c->input_count && status == TS_OK; i++) {
        ts_tensor *grad = io->needs >> i & 1 ? ts_tensor_grad(c->input[i]) : NULL;
        if (grad) io->in_grad[i] = ts_detach(grad); /* the leaf's own handle goes with the leaf */
        status = ts_rank_status(io->rank);
    }
    c->done |= parts;
    bool whole = (c->towards & ~c->done) == 0;
    if (whole || outer->keep || status != TS_OK) {
        second_drop(c);
        c->done = 0;
    }
    return status;
}

/* ---- the first run --------------------------------------------------------------------------- */

static checkpoint *checkpoint_new(const ts_checkpoint_call *call)
{
    checkpoint *c = tsi_calloc(1, sizeof *c);
    if (c) {
        c->fn = call->fn;
        c->input_count = call->input_count;
        c->output_count = call->output_count;
        c->state = tsi_alloc(call->state_bytes + 1);
        c->input = tsi_calloc((size_t)call->input_count + 1, sizeof(ts_tensor *));
        c->output = tsi_calloc((size_t)call->output_count + 1, sizeof(ts_tensor *));
        c->leads = tsi_calloc((size_t)call->input_count + 1, sizeof *c->leads);
    }
    if (!c || !c->state || !c->input || !c->output || !c->leads) {
        if (c && (!c->input || !c->output)) c->input_count = c->output_count = 0;
        if (c) checkpoint_destroy(c);
        tsi_fail_memory("a function that runs again", sizeof *c + call->state_bytes);
        return NULL;
    }
    if (call->state_bytes > 0) memcpy(c->state, call->state, call->state_bytes);
    return c;
}

/* Nothing but the outputs stays. */
static ts_status run_plain(const ts_checkpoint_call *call, ts_rank *rank, void *state,
                           ts_tensor **output, int32_t no_grad)
{
    ts_scope scope = ts_scope_open_with(rank, TS_OPTIONS(ts_scope_options, .no_grad = no_grad));
    call->fn(state, rank, call->input, output, 0);
    for (int32_t o = 0; o < call->output_count; o++) {
        /* An input that is handed on has a history of its own, which must stay its own. */
        if (output[o] && no_grad && output[o]->autograd) output[o] = ts_detach(output[o]);
        ts_scope_pass(scope, output[o]);
    }
    ts_scope_close(scope);
    return ts_rank_status(rank);
}

/* Takes c. */
static ts_status record_call(ts_tape *tape, const ts_checkpoint_call *call, checkpoint *c,
                             const tsi_capture *capture, ts_tensor **output)
{
    ts_rank *rank = tape->rank;
    int64_t number = tsi_tape_add(tape, call->input, call->input_count, call->output_count);
    if (number < 0) {
        checkpoint_destroy(c);
        return ts_rank_status(rank);
    }
    tsi_node *node = &tape->node[number];
    node->grad = checkpoint_grad;
    node->extra = c;
    node->extra_destroy = checkpoint_destroy;
    if (!tsi_tape_add_leaves(tape, number, capture->leaf, capture->count))
        return ts_rank_status(rank);
    TSI_TRY(note_used(c, capture));
    c->towards = node->towards;
    for (int32_t i = 0; i < call->input_count; i++) {
        c->leads[i] = node->edge[i].towards;
        if (!call->input[i]) continue;
        node->saved[i] = tsi_tape_hold(call->input[i], &node->version[i]);
        if (!node->saved[i]) return ts_rank_status(rank);
    }
    for (int32_t o = 0; o < call->output_count; o++)
        if (output[o] && node->towards && !tsi_tape_link(tape, output[o], number, o))
            return ts_rank_status(rank);
    return TS_OK;
}

static ts_status run_recorded(ts_tape *tape, const ts_checkpoint_call *call, ts_tensor **output)
{
    ts_rank *rank = tape->rank;
    tsi_autograd_state *state = tsi_autograd_state_of(rank);
    tsi_tensor_state *tensors = tsi_slot_get(rank, TSI_SLOT_TENSOR);
    checkpoint *c = checkpoint_new(call);
    if (!c) return ts_rank_status(rank);
    tsi_capture capture = { .outer = state->capture };
    state->capture = &capture;
    c->log.below = tensors->streams;
    tensors->streams = &c->log;
    ts_status status = run_plain(call, rank, c->state, output, 1);
    tensors->streams = c->log.below;
    state->capture = capture.outer;
    capture_settle(&capture);
    if (status == TS_OK)
        status = record_call(tape, call, c, &capture, output);
    else
        checkpoint_destroy(c);
    capture_release(&capture);
    return status;
}

ts_status ts_checkpoint(const ts_checkpoint_call *call, ts_tensor **output)
{
    ts_rank *rank = tsi_rank_current();
    if (!rank) return TS_ERR_THREAD;
    TSI_TRY(tsi_rank_enter(rank));
    if (!call || !call->fn || !output || (call->input_count > 0 && !call->input))
        return TSI_FAIL(TS_ERR_NULL, "checkpoint: an argument is NULL");
    if (call->input_count < 0 || call->output_count < 1 || call->input_count > 64)
        return TSI_FAIL(TS_ERR_ARG, "checkpoint: %d inputs and %d outputs", call->input_count,
                        call->output_count);
    for (int32_t o = 0; o < call->output_count; o++)
        output[o] = NULL;
    for (int32_t i = 0; i < call->input_count; i++) /* the tape keeps what the function ignores */
        if (call->input[i] && !call->input[i]->layout)
            return tsi_tensor_refuse(call->input[i], "checkpoint: input %d", i);
    ts_tape *tape = tsi_tape_recording(rank);
    if (tape) return run_recorded(tape, call, output);
    return run_plain(call, rank, (void *)(uintptr_t)call->state, output, 0);
}
