/* SPDX-License-Identifier: Apache-2.0 */
/* scope.c - scopes: who owns temporaries, where errors stop, and what is undone then.
 *
 *   frame[0] root   frame[1] "step"   frame[2] "layers.3"      <- new tensors go to the last
 *      |               |                  |
 *      t - t           t - t - t          t                      lists of owned tensors
 *
 * INV: marks grow, so a token finds its frame or nothing, never a later frame that reuses its
 * place. The undo log is one stack for all frames; entries are kept while some open frame catches,
 * else not made. */
#include "tensor/scope.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/text.h"
#include "comm/again.h"
#include "tensor/move.h"

/* ---- tensors of a frame ---------------------------------------------------------------------- */

void tsi_frame_abandon(tsi_tensor_state *state, ts_tensor *t)
{
    TSI_ASSERT(t->frame >= 0);
    t->scope = state->frame[t->frame].label;
    if (t->previous)
        t->previous->next = t->next;
    else
        state->frame[t->frame].first = t->next;
    if (t->next) t->next->previous = t->previous;
    t->previous = t->next = NULL;
    t->frame = -1;
}

/* Releases what the frame owns, but not `keep`. The list goes as a whole: what hears of an end must
 * not drop tensors of the frame. */
static void frame_clear(tsi_tensor_state *state, int64_t frame, const ts_tensor *keep)
{
    tsi_frame *owner = &state->frame[frame];
    const char *label = owner->label;
    ts_tensor *t = owner->first;
    owner->first = NULL;
    while (t) {
        ts_tensor *next = t->next;
        t->frame = -1;
        t->scope = label;
        if (t == keep)
            tsi_frame_adopt(state, frame, t);
        else
            tsi_tensor_release(t);
        t = next;
    }
}

/* ---- the undo log ---------------------------------------------------------------------------- */

TSI_STEP_PATH bool tsi_scope_catching(const tsi_tensor_state *state)
{
    for (int64_t i = state->frame_count - 1; i >= 0; i--)
        if (state->frame[i].catches) return true;
    return false;
}

static void undo_release(tsi_undo *entry)
{
    tsi_tensor_release(entry->variable);
    ts_mesh_release(entry->mesh);
    ts_layout_release(entry->layout);
    tsi_array_release(entry->array);
    tsi_move_release(entry->move);
}

void tsi_tensor_undo_push(ts_rank *rank, const tsi_undo *entry)
{
    tsi_tensor_state *state = tsi_slot_get(rank, TSI_SLOT_TENSOR);
    tsi_undo copy = *entry;
    if (!tsi_scope_catching(state)) {
        undo_release(&copy);
        return;
    }
    if (tsi_room(&state->undo, state->undo_count, &state->undo_capacity, sizeof *state->undo,
                 "the undo log of a catching scope") == TS_OK)
        state->undo[state->undo_count++] = copy;
    else
        undo_release(&copy);
}

/* Puts back what the entry remembers; its references move into the variable. */
static void undo_apply(tsi_tensor_state *state, tsi_undo *entry)
{
    if (!entry->variable) {
        tsi_ordinal *counter = tsi_map_find(&state->ordinals, entry->stream, NULL, NULL);
        if (counter) counter->next = entry->ordinal;
        if (counter) tsi_keep_undraw(state->rank, entry->stream);
        return;
    }
    ts_tensor *variable = entry->variable;
    tsi_tensor_unbind(variable);
    variable->mesh = entry->mesh;
    variable->layout = entry->layout;
    variable->array = entry->array;
    variable->move = entry->move;
    variable->dtype = entry->dtype;
    *entry = (tsi_undo){ .variable = variable };
    undo_release(entry);
}

/* The log back to `begin`: applied if the frame failed, forgotten if nobody outside catches. */
static void undo_rewind(tsi_tensor_state *state, int64_t begin, bool apply, bool outer_catches)
{
    TSI_ASSERT(begin <= state->undo_count);
    if (!apply && outer_catches) return;
    while (state->undo_count > begin) {
        tsi_undo entry = state->undo[--state->undo_count];
        if (apply)
            undo_apply(state, &entry);
        else
            undo_release(&entry);
    }
}

/* ---- opening --------------------------------------------------------------------------------- */

static const char *full_label(ts_rank *rank, const char *parent, const char *label)
{
    char text[256];
    if (!label || !*label) return parent;
    snprintf(text, sizeof text, "%s%s%s", parent, *parent ? "." : "", label);
    const char *kept = tsi_ring_name(rank->ring, text);
    return kept ? kept : parent;
}

static ts_status frames_grow(tsi_tensor_state *state)
{
    return tsi_room(&state->frame, state->frame_count, &state->frame_capacity, sizeof *state->frame,
                    "the stack of scopes");
}

ts_status tsi_frames_begin(ts_rank *rank, tsi_tensor_state *state)
{
    (void)rank;
    TSI_TRY(frames_grow(state));
    state->frame[0] =
        (tsi_frame){ .mark = ++state->mark_last, .label = "", .moves = TS_MOVES_ALLOW };
    state->frame_count = 1;
    return TS_OK;
}

ts_scope ts_scope_open_with(ts_rank *me, const ts_scope_options *options)
{
    ts_scope none = { me, 0 };
    if (!me) return none;
    ts_scope_options o = TS_INIT(ts_scope_options);
    if (options)
        memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
    tsi_tensor_state *state = tsi_tensor_state_of(me);
    if (!state || frames_grow(state) != TS_OK) return none;
    const tsi_frame *parent = tsi_frame_top(state);
    tsi_frame frame = {
        .mark = ++state->mark_last,
        .label = full_label(me, parent->label, o.label),
        .undo_begin = state->undo_count,
        .agree = o.agree ? ts_mesh_retain(o.agree) : NULL,
        .implicit_bytes_max = o.implicit_moves ? o.implicit_bytes_max : parent->implicit_bytes_max,
        .moves = o.implicit_moves ? o.implicit_moves : parent->moves,
        .catches = o.catches,
        .was_failed = ts_rank_status(me) != TS_OK,
        .epoch = tsi_again_epoch(me),
        .no_grad = o.no_grad || parent->no_grad,
        .caller_owns = o.caller_owns,
        .attention = o.attention ? o.attention : parent->attention,
        .attention_forbid = o.attention_forbid | parent->attention_forbid,
        .product = o.product ? o.product : parent->product,
        .product_forbid = o.product_forbid | parent->product_forbid,
    };
    state->frame[state->frame_count++] = frame;
    me->label = frame.label;
    return (ts_scope){ me, frame.mark };
}

ts_scope ts_scope_open(ts_rank *me, const char *label)
{
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.label = label;
    return ts_scope_open_with(me, &options);
}

ts_tensor *tsi_tensor_same(ts_tensor *x)
{
    tsi_tensor_state *state = tsi_slot_get(x->rank, TSI_SLOT_TENSOR);
    return TSI_LIKELY(!tsi_frame_top(state)->caller_owns) ? x : ts_tensor_retain(x);
}

ts_scope tsi_scope_inner(const ts_tensor *x)
{
    ts_scope none = { NULL, 0 };
    tsi_tensor_state *state = x && x->rank ? tsi_slot_get(x->rank, TSI_SLOT_TENSOR) : NULL;
    if (!state || TSI_LIKELY(!tsi_frame_top(state)->caller_owns)) return none;
    return ts_scope_open(x->rank, NULL);
}

/* ---- closing --------------------------------------------------------------------------------- */

/* The open frame of a token, or -1. */
static int64_t frame_of(const tsi_tensor_state *state, ts_scope scope)
{
    for (int64_t i = state->frame_count - 1; i > 0; i--)
        if (state->frame[i].mark == scope.mark) return i;
    return -1;
}

/* Takes the pending error off the rank, so that the rank is healthy again. */
static void error_take(ts_rank *rank, tsi_error_record *out)
{
    tsi_error_copy(out, &rank->error);
    memset(&rank->error, 0, sizeof rank->error);
}

static void error_put_back(ts_rank *rank, const tsi_error_record *from)
{
    tsi_error_copy(&rank->error, from);
}

/* A catching frame ends: one verdict for this rank, or for all ranks of the agreed mesh. Returns
 * the status that close returns; the rank is healthy afterwards unless the error cannot be caught
 * (LOCAL, LOST) or is of before the frame. */
static ts_status frame_verdict(ts_rank *rank, tsi_frame *frame)
{
    tsi_error_record taken;
    memset(&taken, 0, sizeof taken);
    (void)tsi_rank_device_sync(rank); /* what fails in the queue was asked for inside, too */
    if (rank->error.error.status != TS_OK) error_take(rank, &taken);
    bool can_agree = taken.error.blast <= TS_BLAST_AGREED && taken.error.status != TS_ERR_PEER;
    if (frame->agree && can_agree && ts_mesh_is_member(frame->agree)) {
        ts_group *group = ts_mesh_group(frame->agree, NULL);
        const char *complaint = taken.error.status != TS_OK ? taken.error.text : NULL;
        ts_status agreed =
            group ? tsi_agree_on(group, "scope", taken.error.status, complaint, 0) : TS_ERR_STATE;
        if (agreed != TS_OK && taken.error.status == TS_OK)
            error_take(rank, &taken);
        else if (agreed != TS_OK)
            memset(&rank->error, 0, sizeof rank->error);
    }
    if (taken.error.status == TS_OK) return TS_OK;
    tsi_error_copy(&rank->caught, &taken);
    bool before = frame->was_failed && frame->epoch == tsi_again_epoch(rank);
    if (taken.error.blast > TS_BLAST_AGREED || taken.error.status == TS_ERR_PEER || before)
        error_put_back(rank, &taken); /* stays until ts_rank_recover */
    return taken.error.status;
}

static ts_status frame_close(ts_rank *rank, tsi_tensor_state *state)
{
    TSI_ASSERT(state->frame_count > 1); /* the root goes with the rank */
    tsi_frame *frame = tsi_frame_top(state);
    tsi_tell(rank, TSI_NEWS_CLOSE, &(tsi_closed){ rank, frame->mark });
    ts_status status = frame->catches ? frame_verdict(rank, frame) : TS_OK;
    frame_clear(state, state->frame_count - 1, NULL);
    frame = tsi_frame_top(state);
    int64_t begin = frame->undo_begin;
    ts_mesh_release(frame->agree);
    state->frame_count--;
    undo_rewind(state, begin, status != TS_OK, tsi_scope_catching(state));
    rank->label = tsi_frame_top(state)->label;
    return status;
}

ts_status ts_scope_close(ts_scope scope)
{
    if (!scope.rank) return TS_OK;
    tsi_tensor_state *state = tsi_slot_get(scope.rank, TSI_SLOT_TENSOR);
    if (!state) return TS_OK;
    tsi_rank_drain(scope.rank);
    int64_t index = frame_of(state, scope);
    ts_status status = TS_OK;
    while (index > 0 && state->frame_count > index) { /* one inside may have taken an error */
        ts_status taken = frame_close(scope.rank, state);
        if (taken != TS_OK) status = taken;
    }
    tsi_moves_reap(state);
    return status;
}

void tsi_frames_release(tsi_tensor_state *state)
{
    while (state->frame_count > 0) {
        frame_clear(state, state->frame_count - 1, NULL);
        ts_mesh_release(tsi_frame_top(state)->agree);
        state->frame_count--;
    }
    while (state->undo_count > 0)
        undo_release(&state->undo[--state->undo_count]);
    tsi_free(state->undo);
    tsi_free(state->frame);
    state->undo = NULL;
    state->frame = NULL;
}

/* ---- carrying a result ----------------------------------------------------------------------- */

/* A result that ended before it could leave: refused, and nothing leaves. */
static ts_tensor *leaving(ts_tensor *tensor, const char *call)
{
    if (!tensor || TSI_LIKELY(!tensor->ended)) return tensor;
    (void)tsi_tensor_refuse(tensor, "%s: the result", call);
    return NULL;
}

ts_tensor *ts_scope_turn(ts_scope scope, ts_tensor *carried)
{
    tsi_tensor_state *state = scope.rank ? tsi_slot_get(scope.rank, TSI_SLOT_TENSOR) : NULL;
    int64_t index = state ? frame_of(state, scope) : -1;
    carried = leaving(carried, "ts_scope_turn");
    if (index < 0) return carried;
    tsi_rank_drain(scope.rank);
    while (state->frame_count - 1 > index) {
        if (carried && carried->frame == state->frame_count - 1) {
            tsi_frame_abandon(state, carried);
            tsi_frame_adopt(state, index, carried);
        }
        frame_close(scope.rank, state);
    }
    frame_clear(state, index, carried);
    tsi_moves_reap(state);
    return carried;
}

ts_tensor *ts_scope_pass(ts_scope scope, ts_tensor *tensor)
{
    tsi_tensor_state *state = scope.rank ? tsi_slot_get(scope.rank, TSI_SLOT_TENSOR) : NULL;
    int64_t index = state ? frame_of(state, scope) : -1;
    tensor = leaving(tensor, "ts_scope_pass");
    if (index < 0 || !tensor || tensor->frame < index) return tensor;
    tsi_frame_abandon(state, tensor);
    tsi_frame_adopt(state, index - 1, tensor);
    return tensor;
}

ts_tensor *ts_scope_leave(ts_scope scope, ts_tensor *result)
{
    result = ts_scope_pass(scope, result);
    return ts_scope_close(scope) == TS_OK ? result : NULL;
}
