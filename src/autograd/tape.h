/* SPDX-License-Identifier: Apache-2.0 */
/* tape.h - what a tape is made of.
 *
 *   tape -- node[0] -- node[1] -- ... -- node[n-1]      in the order of recording
 *             |  op, attributes, saved tensors
 *             |  edge per input --> (node, output) | leaf | nothing
 *
 * A tensor's link says which node made it, or that it is a leaf. Links to nodes are weak: when the
 * tape goes, its tensors become plain values.
 *
 * INV: an edge of node k goes to a node before k, so descending order is a topological order of
 * backward. */
#ifndef TSI_AUTOGRAD_TAPE_H
#define TSI_AUTOGRAD_TAPE_H

#include "op/dispatch.h"
#include "tessera/autograd.h"

typedef struct tsi_leaf { /* what has a gradient of its own; counted by tensors and edges */
    int64_t references;
    ts_rank *rank;
    ts_mesh *mesh;           /* of the value, retained */
    const ts_layout *layout; /* where the gradient shall end up, retained */
    int32_t dtype;
    int32_t is_parameter; /* else a watched input */
    ts_tensor *grad;      /* a variable, or NULL */
    int32_t touched;      /* in the backward going on */
    int32_t settled;      /* the gradient has the leaf's layout */
    ts_grad_hook_fn hook;
    void *hook_context;
    ts_tensor *self; /* weak: the handle hooks get */
} tsi_leaf;

typedef struct tsi_link { /* ts_tensor.autograd */
    ts_tape *tape;        /* weak; NULL: the tape is gone, or a leaf */
    int64_t node;
    int32_t output, reserved;
    tsi_leaf *leaf;                  /* retained, or NULL */
    struct tsi_link *before, *after; /* in the tape's list */
} tsi_link;

typedef struct tsi_edge {
    int64_t node; /* -1: a leaf or nothing */
    int32_t output;
    int32_t towards; /* bits: 1 leads to a watched input, 2 to a parameter */
    tsi_leaf *leaf;  /* retained, or NULL */
} tsi_edge;

typedef ts_status (*tsi_node_grad_fn)(const tsi_grad_io *io, void *extra);
typedef struct tsi_node {
    const tsi_op_desc *op; /* NULL: `grad` with `extra` instead (redistribute, checkpoint) */
    tsi_node_grad_fn grad;
    void *extra;
    void (*extra_destroy)(void *extra);
    void *attributes;
    int32_t input_count, output_count;
    int32_t towards;   /* union of its edges' */
    int32_t done;      /* bits: parts whose gradients were computed */
    tsi_edge *edge;    /* input_count */
    ts_tensor **saved; /* inputs, then outputs; NULL where not saved */
    uint32_t *version; /* of saved inputs' storage when they were saved */
    ts_meta *in_meta;
    ts_tensor **out_grad; /* output_count, during backward */
    const char *label;    /* scope of the forward call */
    int32_t moves;        /* policy of that scope, also for its gradient */
    int32_t reserved;
} tsi_node;

struct ts_tape {
    ts_rank *rank;
    int64_t references;
    uint64_t scope_mark; /* records while this scope is open */
    int32_t open, reserved;
    ts_tape *outer; /* the tape that records once this one does not */
    tsi_node *node;
    int64_t node_count, node_capacity;
    tsi_link *links; /* of all tensors that refer to it */
    tsi_arena memory;
};

typedef struct tsi_autograd_state { /* of one rank, in TSI_SLOT_AUTOGRAD */
    ts_rank *rank;
    ts_tape *recording; /* innermost open tape, or NULL; it holds one reference of each open tape */
} tsi_autograd_state;

tsi_autograd_state *tsi_autograd_state_of(ts_rank *rank);
/* A node for a computation that is no operator; edges are made from `in`. Returns the node's
 * number, or -1. The caller links the outputs with tsi_tape_link. */
int64_t tsi_tape_add(ts_tape *tape, ts_tensor *const *in, int32_t input_count,
                     int32_t output_count);
bool tsi_tape_link(ts_tape *tape, ts_tensor *t, int64_t node, int32_t output);
/* Does any of the tensors lead to a leaf of this tape's interest? */
bool tsi_tape_wants(const ts_tape *tape, ts_tensor *const *in, int32_t count);
void tsi_tape_moved(ts_tensor *x, ts_tensor *y); /* a redistribution, as a node (moved.c) */
tsi_leaf *tsi_leaf_of(const ts_tensor *t);       /* NULL: not a leaf */
/* Makes the tensor a leaf. */
tsi_leaf *tsi_leaf_make(ts_tensor *t, bool is_parameter);
void tsi_leaf_release(tsi_leaf *leaf);
/* grad += addition; the first one is taken as it is. */
ts_status tsi_leaf_accumulate(tsi_leaf *leaf, ts_tensor *addition);
ts_status tsi_leaf_settle(tsi_leaf *leaf);
/* A tensor is released, or bound to another value: its link goes. Called by the tensor layer
 * through a hook. */
void tsi_link_drop(ts_tensor *t);

#endif
