/* SPDX-License-Identifier: Apache-2.0 */
/* body.h - the bodies of tensors: where they lie, how long an ended one stays what it is, and how
 * threads that are not the rank's reach one. */
#ifndef TSI_TENSOR_BODY_H
#define TSI_TENSOR_BODY_H

#include <string.h>

#include "tensor/tensor.h"

enum { TSI_SLAB_BODIES = 63, TSI_SLAB_BYTES = (TSI_SLAB_BODIES + 1) * TSI_BODY_BYTES };

/* Bodies side by side, at a multiple of TSI_SLAB_BYTES. Slabs are never given back to the system.
 */
typedef struct tsi_slab {
    _Atomic(ts_rank *) owner; /* NULL: its world is closed. Changed under the lock of body.c */
    struct tsi_slab *next;    /* of the rank, or of those without one */
    int32_t used;             /* bodies at the beginning that are initialised */
    int32_t held;             /* without a rank: bodies that the program still holds; locked */
    _Alignas(TSI_BODY_BYTES) ts_tensor body[TSI_SLAB_BODIES];
} tsi_slab;

static inline tsi_slab *tsi_slab_of(const ts_tensor *t)
{
    return (tsi_slab *)((uintptr_t)t & ~(uintptr_t)(TSI_SLAB_BYTES - 1));
}

/* May the calling thread count this tensor's references, being its rank's? */
static inline bool tsi_body_is_mine(const ts_tensor *t)
{
    ts_rank *me = tsi_rank_current();
    return me && atomic_load_explicit(&tsi_slab_of(t)->owner, memory_order_relaxed) == me;
}

TSI_NOINLINE ts_tensor *tsi_body_fresh(tsi_tensor_state *state); /* NULL: recorded */

/* Zeroed. NULL: recorded. */
static inline ts_tensor *tsi_body_make(tsi_tensor_state *state)
{
    if (TSI_UNLIKELY(state->ended_count <= state->ended_kept)) return tsi_body_fresh(state);
    ts_tensor *t = state->ended_first;
    state->ended_first = t->next;
    state->ended_count--;
    TSI_PREFETCH(t->next); /* it ended long ago */
    TSI_PREFETCH((const char *)t->next + TSI_BODY_BYTES / 2);
    memset(t, 0, offsetof(ts_tensor, post));
    return t;
}

/* The last reference went and what it had is given back. */
static inline void tsi_body_end(tsi_tensor_state *state, ts_tensor *t, tsi_ended how)
{
    t->ended = (uint8_t)how;
    t->is_variable = 0;
    t->next = NULL;
    if (state->ended_count++ == 0)
        state->ended_first = t;
    else
        state->ended_last->next = t;
    state->ended_last = t;
}

/* For a thread that is not the rank's: one release, or a drop, when the rank calls next; at once
 * where the world is closed. A release too many is in ts_last_error. */
void tsi_body_post(ts_tensor *t, bool drop);
/* What was posted for the tensor since the last time. */
void tsi_body_posted(ts_tensor *t, int32_t *releases, int32_t *drops);
/* The rank closes: no body of it has a rank any more; what the program holds stays its own. */
void tsi_bodies_close(tsi_tensor_state *state);

#endif
