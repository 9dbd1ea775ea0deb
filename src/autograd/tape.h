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

#include "op/core/dispatch.h"
#include "tessera/autograd.h"

typedef struct tsi_grad_hook {
    struct tsi_grad_hook *next;
    ts_grad_hook_fn fn;
    void *context;
    int32_t output, reserved; /* of the node; leaves: 0 */
} tsi_grad_hook;

/* What was recorded between two points of a tape: told before and after its gradients. */
typedef ts_status (*tsi_mark_fn)(void *context);
typedef struct tsi_mark {
    struct tsi_mark *next;       /* of the tape, the latest first */
    struct tsi_mark *next_begin; /* of those that begin at one node, inner ones first */
    struct tsi_mark *next_end;   /* of those that end at one node, outer ones first */
    struct tsi_mark *below;      /* on the stack of a backward */
    int64_t first, last;         /* nodes */
    tsi_mark_fn before, after;   /* either may be NULL */
    void *context;
    int32_t told, reserved; /* `before` was called in the backward going on */
} tsi_mark;

typedef struct tsi_leaf { /* what has a gradient of its own; counted by tensors and edges */
    int64_t references;
    ts_rank *rank;
    ts_mesh *mesh;           /* of the value, retained */
    const ts_layout *layout; /* where the gradient shall end up, retained */
    int32_t dtype;
    int32_t towards;  /* TSI_TOWARDS_: a watched input, or a parameter; inner ones as outside */
    ts_tensor *grad;  /* a variable, or NULL */
    int64_t pending;  /* uses that the backward going on has not passed yet */
    int32_t touched;  /* in the backward going on */
    int32_t settled;  /* the gradient has the leaf's layout */
    int32_t is_inner; /* the input of a function that runs again: its gradient goes on outside */
    uint32_t terms;   /* how many came, ever: whether some did meanwhile */
    uint32_t cleared; /* how often the gradient was to be forgotten, where there was none, too */
    tsi_grad_hook *hooks;
    ts_tensor *self; /* weak: the handle hooks get */
    /* Somebody else settles it, with others: told when it is complete; or NULL. What earlier
     * backwards left is then kept apart from what this one adds, which lies elsewhere. */
    ts_status (*complete)(void *context);
    ts_status (*alone)(void *context); /* (optional) may it be settled by itself? Else why not */
    void *complete_context;
    ts_tensor *reduced; /* a variable, or NULL */
    uint64_t kept_in;   /* number of the recording that made it, or noted it (border.c); 0: none */
} tsi_leaf;

typedef struct tsi_link { /* ts_tensor.autograd */
    ts_tape *tape;        /* weak; NULL: the tape is gone, or a leaf */
    int64_t node;
    int32_t output;
    uint32_t version;                /* of the tensor's array when it was made */
    tsi_leaf *leaf;                  /* retained, or NULL */
    struct tsi_link *before, *after; /* in the tape's list */
} tsi_link;

typedef struct tsi_edge {
    int64_t node; /* -1: a leaf or nothing */
    int32_t output;
    int32_t towards; /* bits: 1 leads to a watched input, 2 to a parameter */
    tsi_leaf *leaf;  /* retained, or NULL */
} tsi_edge;

typedef struct tsi_recipe { /* a value that is made again: which output of which node */
    int64_t node;           /* -1: none */
    int32_t output, reserved;
} tsi_recipe;
typedef struct tsi_thin { /* of a node in a region of selected recomputation (thin.c) */
    tsi_recipe *saved;    /* inputs, then outputs: what the node does not save itself */
    /* Of a node that is made again, else NULL: its inputs, held or made again; its outputs while
     * they are there. */
    ts_tensor **held, **made;
    uint32_t *version, *made_version;
    tsi_recipe *from;
    int32_t stays;  /* what was made left the region: it is never made again */
    int32_t needed; /* by a node of the region */
    int32_t passed; /* for good: its inputs are held no more */
    int32_t reserved;
} tsi_thin;

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
    tsi_edge *edge;    /* edge_count: inputs, then leaves that a function used beside them */
    ts_tensor **saved; /* inputs, then outputs; NULL where not saved */
    uint32_t *version; /* of their arrays when they were saved */
    ts_meta *in_meta;
    ts_tensor **out_grad; /* output_count, during backward */
    const char *label;    /* scope of the forward call */
    const char *where;    /* its place in the program, also for messages of its gradient */
    int32_t moves;        /* policy of that scope, also for its gradient */
    int32_t edge_count;
    int32_t rounds; /* its output is its input, rounded from this dtype; 0: it is not */
    int32_t reserved;
    tsi_grad_hook *hooks; /* in the tape's memory */
    tsi_mark *begins, *ends;
    tsi_thin *thin; /* NULL as a rule */
} tsi_node;

/* A block that a call wrote in place: other views of it have another history. It is not held. */
typedef struct tsi_written {
    tsi_array block;
    int64_t node;
} tsi_written;

struct ts_tape {
    ts_rank *rank;            /* NULL: it left */
    ts_tape *newer, *older;   /* of the rank's tapes that have not ended */
    int64_t references, held; /* all; those of them that the program holds */
    int32_t ended, reserved2; /* nothing is left but this body, which says so */
    uint64_t scope_mark;      /* records while this scope is open */
    int32_t open, reserved;
    ts_tape *outer; /* the tape that records once this one does not */
    tsi_node *node;
    int64_t node_count, node_capacity;
    tsi_link *links; /* of all tensors that refer to it */
    tsi_written *written;
    int64_t written_count, written_capacity;
    tsi_mark *marks;
    int64_t thin_first; /* nodes from here on are of a region of selected recomputation; -1: none */
    tsi_arena memory;
};

typedef struct tsi_capture { /* leaves that operators without a tape use */
    struct tsi_capture *outer;
    tsi_leaf **leaf; /* owned; each once, not retained */
    int64_t count, capacity;
} tsi_capture;

/* One backward going on; inside it those of functions that run again. */
typedef struct tsi_backward {
    struct tsi_backward *outer; /* of the function's caller */
    ts_tape *tape;
    int32_t parts; /* which TSI_TOWARDS_ are wanted */
    int32_t keep, lazy, reserved;
    int64_t last;          /* highest node that has a gradient */
    tsi_mark *open;        /* innermost */
    tsi_leaf *settling[2]; /* on their way to their layout, the older first; retained */
    /* With ts_grad: gradients of these tensors are delivered here instead of to leaves. */
    ts_tensor *const *wrt;
    ts_tensor **wrt_grad;
    int32_t wrt_count;
} tsi_backward;

enum { TSI_TOWARDS_INPUT = 1, TSI_TOWARDS_PARAMETER = 2 };
enum { TSI_TAPES_ENDED = 256 }; /* bodies that are kept, so that a late handle meets one */

typedef struct tsi_autograd_state { /* of one rank, in TSI_SLOT_AUTOGRAD */
    ts_rank *rank;
    ts_tape *recording; /* innermost open tape, or NULL; it holds one reference of each open tape */
    tsi_capture *capture;    /* innermost, or NULL */
    tsi_backward *running;   /* innermost, or NULL */
    int32_t again, reserved; /* above 0: what runs now ran before, in forward */
    uint64_t serial;         /* of the latest backward */
    uint64_t leaves;         /* changes when a tensor becomes a leaf, or is one no more */
    ts_tape *tapes;          /* that have not ended, the newest first */
    ts_tape *ended[TSI_TAPES_ENDED];
    int64_t ended_count; /* so far; the latest are kept */
    tsi_observer hears;  /* calls and moves, while a tape is open */
} tsi_autograd_state;

tsi_autograd_state *tsi_autograd_state_of(ts_rank *rank);
/* The library's own references. */
ts_tape *tsi_tape_retain(ts_tape *tape);
void tsi_tape_release(ts_tape *tape);
/* A node for a computation that is no operator; edges are made from `in`. Returns the node's
 * number, or -1. The caller links the outputs with tsi_tape_link. */
int64_t tsi_tape_add(ts_tape *tape, ts_tensor *const *in, int32_t input_count,
                     int32_t output_count);
bool tsi_tape_link(ts_tape *tape, ts_tensor *t, int64_t node, int32_t output);
/* y is x in a narrower dtype, by whatever means: recorded as the cast it is. */
void tsi_tape_rounded(ts_tensor *x, ts_tensor *y);
/* Does any of the tensors lead to a leaf of this tape's interest? */
bool tsi_tape_wants(const ts_tape *tape, ts_tensor *const *in, int32_t count);
/* Leaves beside the inputs that the node leads to. */
bool tsi_tape_add_leaves(ts_tape *tape, int64_t number, tsi_leaf *const *leaf, int64_t count);
/* The tape that records here and now, or NULL (none, or a scope without gradients). */
ts_tape *tsi_tape_recording(ts_rank *rank);
/* What a tape keeps of a tensor: the value it has now, for a variable may get another one; and in
 * *version how often that was written. One that swaps is kept itself: what it shows now goes, and
 * is there again in backward. Retained; NULL: recorded. */
ts_tensor *tsi_tape_hold(ts_tensor *t, uint32_t *version);
/* How often the value was written, as far as is known. */
static inline uint32_t tsi_tape_version(const ts_tensor *t)
{
    return t->swaps ? t->changes : tsi_array_version(t->array);
}
/* Has the gradient of the call use for this input? Not for one that the call itself overwrote,
 * where it can do without. */
bool tsi_tape_saves(const tsi_node *node, const tsi_op_record *call, int32_t input);
/* As tsi_tape_hold, of an input: what the call itself overwrote counts as written since. */
ts_tensor *tsi_tape_hold_input(const tsi_op_record *call, int32_t input, uint32_t *version);
/* Was a value written since it was held? */
static inline bool tsi_tape_changed(const ts_tensor *held, uint32_t version)
{
    return tsi_tape_version(held) != version;
}
ts_status tsi_grad_hook_call(const tsi_grad_hook *hook, ts_tensor *t);
/* Everything from node `first` on, to be told of before and after its gradients. */
ts_status tsi_tape_mark(ts_tape *tape, int64_t first, const tsi_mark *mark);
void tsi_capture_leaves(tsi_autograd_state *state, ts_tensor *const *in, int32_t count);
/* Gradients of a tape's nodes from r->last down; seeds were planted. */
ts_status tsi_backward_nodes(tsi_backward *r);
ts_status tsi_backward_plant(tsi_backward *r, ts_tensor *root, ts_tensor *seed);
/* Selected recomputation (thin.c). Notes what the call saves, and links its outputs. */
bool tsi_thin_record(ts_tape *tape, int64_t number, const tsi_op_record *call);
/* The region ends, and hands out these: nothing is held but what makes again what is needed. */
void tsi_thin_close(ts_tape *tape, ts_tensor *const *output, int32_t count);
/* Around the gradient of a node: what it did not save is there, and goes. */
ts_status tsi_thin_restore(ts_tape *tape, tsi_node *node);
void tsi_thin_forget(tsi_node *node);
/* Backward is beyond the node, for good or for one half of it. */
void tsi_thin_pass(tsi_node *node, bool for_good);
void tsi_tape_moved(void *context, void *what); /* a redistribution, as a node (moved.c) */
bool tsi_node_moves(const tsi_node *node);      /* is it one? */
tsi_leaf *tsi_leaf_of(const ts_tensor *t);      /* NULL: not a leaf */
/* Makes the tensor a leaf. */
tsi_leaf *tsi_leaf_make(ts_tensor *t, bool is_parameter);
void tsi_leaf_release(tsi_leaf *leaf);
/* Before its gradient is read, changed or (not `reads`) cleared: a step that is recorded notes what
 * it finds (border.c). */
ts_status tsi_leaf_at_border(tsi_leaf *leaf, bool reads);
ts_tensor *tsi_leaf_variable(const tsi_leaf *leaf); /* for its gradient; NULL: recorded */
/* grad += addition; the first one is taken as it is. */
ts_status tsi_leaf_accumulate(tsi_leaf *leaf, ts_tensor *addition);
ts_status tsi_leaf_settle(tsi_leaf *leaf);
/* The value lies elsewhere now, and so will its gradient; one that is there is forgotten. */
ts_status tsi_leaf_place(tsi_leaf *leaf, const ts_tensor *value);
/* The same; one that is there moves when it is settled next. */
ts_status tsi_leaf_follow(tsi_leaf *leaf, const ts_tensor *value);
/* A tensor is released, or bound to another value: its link goes. */
void tsi_link_drop(ts_tensor *t);

#endif
