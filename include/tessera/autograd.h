/* SPDX-License-Identifier: Apache-2.0 */
/* autograd.h - tapes and gradients.
 *
 * A tape records operators while the scope in which it was begun is open; it lives on if it is
 * retained, and tapes end in any order. What leads to a leaf (ts_watch, a parameter) is recorded,
 * nothing else. The tape holds exactly the tensors an operator's gradient needs, and lets go of
 * each as backward uses it.
 *
 * Gradients have layouts by the operators' own rules: a replicated leaf used by sharded work gets a
 * partial gradient, which backward reduces to the leaf's layout at its end, unless it is lazy. */
#ifndef TESSERA_AUTOGRAD_H
#define TESSERA_AUTOGRAD_H

#include "tensor.h"

typedef struct ts_tape ts_tape;

typedef enum ts_backward_part {
    TS_BACKWARD_ALL,
    TS_BACKWARD_INPUTS, /* only towards watched inputs; what weights need is kept for later */
    TS_BACKWARD_WEIGHTS /* the rest of an earlier INPUTS */
} ts_backward_part;

typedef struct ts_backward_options {
    size_t struct_size;
    ts_tensor *seed; /* gradient of root; NULL: one, for a root of one element */
    int32_t part;    /* ts_backward_part */
    int32_t lazy;    /* gradients stay unreduced until a backward without lazy, or ts_grad_settle */
    int32_t keep;    /* 1: saved tensors stay, so that backward can run again */
    int32_t reserved;
} ts_backward_options;

typedef ts_status (*ts_grad_hook_fn)(ts_tensor *leaf, void *context);

TS_BEGIN_C

TS_API ts_tape *ts_tape_begin(ts_rank *me);    /* maker; records until the innermost scope closes */
TS_API ts_tape *ts_tape_retain(ts_tape *tape); /* accepts NULL */
TS_API void ts_tape_release(ts_tape *tape);    /* [any] accepts NULL */
TS_API int64_t ts_tape_length(const ts_tape *tape); /* operators recorded */

TS_API ts_tensor *ts_watch(ts_tensor *x); /* maker: the same value as a leaf that gets a gradient */
TS_API ts_tensor *ts_detach(ts_tensor *x);           /* maker: the same value without history */
TS_API int ts_tensor_needs_grad(const ts_tensor *t); /* getter */

TS_API ts_status ts_backward(ts_tensor *root,
                             const ts_backward_options *options); /* recorded [coll] */
/* Several roots at once, each with its own gradient. recorded [coll] */
TS_API ts_status ts_backward_from(ts_tensor *const *root, ts_tensor *const *seed, int32_t count,
                                  const ts_backward_options *options);
/* Gradients of `root` with respect to `wrt`, without touching the leaves' own; out[i] NULL where
 * there is none. */
TS_API ts_status ts_grad(ts_tensor *root, ts_tensor *const *wrt, int32_t count, ts_tensor **out);
TS_API ts_tensor *ts_tensor_grad(ts_tensor *leaf); /* getter; NULL: none; lives with the leaf */
TS_API ts_status ts_tensor_grad_clear(ts_tensor *leaf); /* recorded */
TS_API ts_status ts_grad_settle(ts_tensor *leaf);       /* recorded [coll]: to the leaf's layout */
/* Called when the leaf's gradient is complete in a backward, before it is reduced. */
TS_API ts_status ts_tensor_on_grad(ts_tensor *leaf, ts_grad_hook_fn fn, void *context);

TS_END_C
#endif
