/* SPDX-License-Identifier: Apache-2.0 */
/* autograd.h - tapes and gradients.
 *
 * A tape records operators while the scope in which it was begun is open; it lives on if it is
 * retained, and tapes end in any order. What leads to a leaf (ts_watch, a parameter) is recorded,
 * nothing else. The tape holds exactly the tensors an operator's gradient needs, and lets go of
 * each as backward uses it.
 *
 * Gradients have layouts by the operators' own rules: a replicated leaf used by sharded work gets a
 * partial gradient, which backward reduces to the leaf's layout as soon as it is complete, while it
 * goes on with others, unless it is lazy. A leaf that was not used has no gradient. */
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
    ts_tensor
        *seed;    /* gradient of root, its shape and dtype; NULL: one, of a root of one element */
    int32_t part; /* ts_backward_part */
    int32_t lazy; /* gradients stay unreduced until a backward without lazy, or ts_grad_settle */
    int32_t keep; /* 1: saved tensors stay, so that backward can run again */
    int32_t reserved;
} ts_backward_options;

/* Gets the leaf; of a tensor that is no leaf, its gradient. */
typedef ts_status (*ts_grad_hook_fn)(ts_tensor *t, void *context);

/* A function of tensors that may run twice, phase 0 forward and 1 again in backward. It makes every
 * output anew, the same both times, from its inputs, its state and leaves (parameters); temporaries
 * of its own end with it. */
typedef void (*ts_checkpoint_fn)(void *state, ts_rank *me, ts_tensor *const *input,
                                 ts_tensor **output, int phase);
typedef struct ts_checkpoint_call {
    size_t struct_size;
    ts_checkpoint_fn fn;
    const void *state; /* copied: plain bytes */
    size_t state_bytes;
    ts_tensor *const *input;
    int32_t input_count, output_count;
} ts_checkpoint_call;

TS_BEGIN_C

/* [any] Real defaults, after which every number is meant as it stands (types.h). */
TS_API void ts_backward_options_init(ts_backward_options *options);

TS_API ts_tape *ts_tape_begin(ts_rank *me);    /* maker; records until the innermost scope closes */
TS_API ts_tape *ts_tape_retain(ts_tape *tape); /* accepts NULL */
/* [any] What was retained, and no more: beyond that an error (TS_ERR_STATE) and nothing else; the
 * scope ends its tape itself. Accepts NULL. */
TS_API void ts_tape_release(ts_tape *tape);
TS_API int64_t ts_tape_length(const ts_tape *tape); /* operators recorded */

TS_API ts_tensor *ts_watch(ts_tensor *x); /* maker: the same value as a leaf that gets a gradient */
TS_API ts_tensor *ts_detach(ts_tensor *x);           /* maker: the same value without history */
TS_API int ts_tensor_needs_grad(const ts_tensor *t); /* getter */

TS_API ts_status ts_backward(ts_tensor *root,
                             const ts_backward_options *options); /* recorded [coll] */
/* Several roots at once, each with its own gradient, of the root's shape and dtype (NULL: one, for
 * a root of one element). recorded [coll] */
TS_API ts_status ts_backward_from(ts_tensor *const *root, ts_tensor *const *seed, int32_t count,
                                  const ts_backward_options *options);
/* Gradients of `root` with respect to `wrt`, without touching the leaves' own; out[i] NULL where
 * there is none. */
TS_API ts_status ts_grad(ts_tensor *root, ts_tensor *const *wrt, int32_t count, ts_tensor **out);
TS_API ts_tensor *ts_tensor_grad(ts_tensor *leaf); /* getter; NULL: none; lives with the leaf */
TS_API ts_status ts_tensor_grad_clear(ts_tensor *leaf); /* recorded */
TS_API ts_status ts_grad_settle(ts_tensor *leaf);       /* recorded [coll]: to the leaf's layout */
/* A leaf's hook is called when its gradient is complete in a backward (all uses are passed), before
 * it is reduced; that of any other tensor on a tape when its gradient is complete, before it goes
 * on. Several are called in the order in which they were set; they end with the leaf or the tape.
 * recorded */
TS_API ts_status ts_tensor_on_grad(ts_tensor *t, ts_grad_hook_fn fn, void *context);
/* Runs the function and keeps none of its inner values: backward runs it again, with the same
 * random numbers. Without a tape it just runs. Outputs belong to the innermost scope. recorded */
TS_API ts_status ts_checkpoint(const ts_checkpoint_call *call, ts_tensor **output);

TS_END_C
#endif
