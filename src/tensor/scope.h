/* SPDX-License-Identifier: Apache-2.0 */
/* scope.h - the stack of open scopes of a rank, as the rest of the tensor layer uses it. */
#ifndef TSI_TENSOR_SCOPE_H
#define TSI_TENSOR_SCOPE_H

#include "tensor/tensor.h"

ts_status tsi_frames_begin(ts_rank *rank, tsi_tensor_state *state); /* opens the root frame */
void tsi_frames_release(tsi_tensor_state *state);                   /* closes everything */
/* The innermost frame. */
static inline tsi_frame *tsi_frame_top(tsi_tensor_state *state)
{
    return &state->frame[state->frame_count - 1];
}
/* What is done in the scope, which was opened just now, belongs to the module of that label; also
 * after scopes inside of it. The label lives as long as the rank. */
static inline void tsi_scope_relabel(ts_scope scope, const char *label)
{
    if (scope.mark == 0) return; /* it could not be opened */
    tsi_frame_top(tsi_slot_get(scope.rank, TSI_SLOT_TENSOR))->label = label;
    scope.rank->label = label;
}
/* The scope, which was opened just now, says of what is done inside what another one said. */
static inline void tsi_scope_as(ts_scope scope, const tsi_frame *said)
{
    tsi_frame *frame = tsi_frame_top(tsi_slot_get(scope.rank, TSI_SLOT_TENSOR));
    TSI_ASSERT(frame->mark == scope.mark);
    tsi_scope_relabel(scope, said->label);
    frame->implicit_bytes_max = said->implicit_bytes_max;
    frame->moves = said->moves;
    frame->no_grad = frame->no_grad || said->no_grad;
    frame->attention = said->attention;
    frame->attention_forbid = said->attention_forbid;
    frame->product = said->product;
    frame->product_forbid = said->product_forbid;
}
/* A scope for the temporaries of a function that is made of others: opened only where the innermost
 * one would not collect them, since its caller owns; else none, which may be left and closed too.
 */
ts_scope tsi_scope_inner(const ts_tensor *x);
/* The result of a maker that has nothing to do: x itself, held once more where the caller owns. */
ts_tensor *tsi_tensor_same(ts_tensor *x);
/* The frame holds one reference of the tensor from now on (the caller's). */
static inline void tsi_frame_adopt(tsi_tensor_state *state, int64_t frame, ts_tensor *t /* takes */)
{
    TSI_ASSERT(t->frame < 0);
    tsi_frame *owner = &state->frame[frame];
    if (TSI_UNLIKELY(owner->caller_owns)) {
        t->scope = owner->label;
        t->held++;
        t->caller_owns = 1;
        return;
    }
    t->frame = (int32_t)frame;
    t->previous = NULL;
    t->next = owner->first;
    if (owner->first) owner->first->previous = t;
    owner->first = t;
}
/* Takes the tensor out of its frame; the reference is the caller's. */
void tsi_frame_abandon(tsi_tensor_state *state, ts_tensor *t);

/* Does some open scope put back what variables were, if it fails? */
bool tsi_scope_catching(const tsi_tensor_state *state);

#endif
