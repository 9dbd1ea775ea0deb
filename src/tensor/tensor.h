/* SPDX-License-Identifier: Apache-2.0 */
/* tensor.h - bodies of distributed tensors, and the state the tensor layer keeps for each rank.
 *
 *   ts_tensor --> ts_layout (interned)      what it is
 *             --> tsi_array                 this rank's block (empty where the rank is outside)
 *             --> tsi_move or NULL          how the block is still being filled
 *
 * INV: a tensor is owned by counted references; the innermost frame holds one for every new tensor,
 * or the program, where the frame says so. `held` are those of the program, which alone it can give
 * back. An ended tensor has no layout and says how it ended, until its body is used again (body.h).
 * A tensor's block is read only after tsi_tensor_ready. One rank, one thread: nothing here is
 * locked but what other threads post. */
#ifndef TSI_TENSOR_TENSOR_H
#define TSI_TENSOR_TENSOR_H

#include "array/array.h"
#include "base/hash.h"
#include "base/text.h"
#include "layout/layout.h"
#include "tessera/tensor.h"

typedef struct tsi_move tsi_move; /* move.h: a redistribution in flight */

typedef enum tsi_ended { /* how a tensor ended; 0: it has not */
                         TSI_ENDED_NOT,
                         TSI_ENDED_SCOPE, /* the scope that owned it closed or turned */
                         TSI_ENDED_DROPPED,
                         TSI_ENDED_RELEASED,
                         TSI_ENDED_WORLD
} tsi_ended;

typedef enum tsi_variable_kind {
    TSI_VARIABLE = 1,
    TSI_VARIABLE_OWNED /* by what notes itself at the border of a recorded step: a leaf, a router */
} tsi_variable_kind;

enum { TSI_BODY_BYTES = 128 }; /* what is read most is in the first line */

struct ts_tensor {
    ts_rank *rank;           /* NULL: its world is closed */
    ts_mesh *mesh;           /* retained; NULL: an empty variable */
    const ts_layout *layout; /* retained */
    tsi_array *array;        /* retained; never NULL while layout is set */
    tsi_move *move;          /* retained; NULL: ready */
    int32_t references;
    int32_t held;               /* those of them that the program has */
    ts_tensor *previous, *next; /* in the frame that owns a reference, if frame >= 0 */
    int32_t frame;
    int32_t dtype;
    uint8_t is_variable; /* tsi_variable_kind, or 0 */
    uint8_t ended;       /* tsi_ended */
    uint8_t caller_owns; /* one of `held` is what a frame would have: a drop gives it back */
    uint8_t swaps;       /* a variable that shows one value from several places, in turn */
    uint32_t changes;    /* of one that swaps: how often that value was seen to be another */
    void *autograd;      /* of the autograd layer */
    const char *scope;   /* label of the last frame that owned it; kept by the event ring */
    /* Of a parameter, kept by its module; NULL: it has none. Read where a sentence needs it. */
    const tsi_name *name;
    tsi_post post; /* from here on guarded by the lock of body.c, and kept when it is used again */
    int32_t posted_releases, posted_drops;
};

/* One open scope. Frame 0 is the root: open as long as the rank. */
typedef struct tsi_frame {
    uint64_t mark;
    ts_tensor *first;   /* tensors it owns a reference of */
    const char *label;  /* fully qualified, kept by the event ring */
    int64_t undo_begin; /* entries of the undo log made inside start here */
    ts_mesh *agree;     /* retained, or NULL */
    int64_t implicit_bytes_max;
    int32_t moves; /* ts_moves, inherited values filled in */
    int32_t catches, no_grad;
    int32_t was_failed;        /* when it opened: that error is none of its own... */
    uint64_t epoch;            /* ... unless the rank recovered since */
    int32_t caller_owns;       /* new tensors are the program's, not the frame's */
    int32_t attention;         /* algorithm of calls that say none */
    uint32_t attention_forbid; /* bit a: not algorithm a */
    int32_t product;           /* the same of products that move what they multiply */
    uint32_t product_forbid;
} tsi_frame;

/* How to take back a write to a variable, or a draw of random numbers. */
typedef struct tsi_undo {
    ts_tensor *variable; /* retained; NULL: a random ordinal */
    ts_mesh *mesh;       /* what the variable was bound to, retained; NULL: nothing */
    const ts_layout *layout;
    tsi_array *array;
    tsi_move *move;
    int32_t dtype;
    int32_t reserved;
    uint64_t stream; /* random: hash of the label */
    int64_t ordinal; /* the value to restore */
} tsi_undo;

typedef struct tsi_ordinal { /* of the draws of random numbers under one label */
    int64_t next;
} tsi_ordinal;

/* Streams that were drawn, to be drawn again when the same function runs again. A stack: a log that
 * records hears what is drawn above a log that replays. */
typedef struct tsi_stream_log {
    struct tsi_stream_log *below;
    uint64_t *stream; /* owned */
    int64_t count, capacity;
    int64_t next; /* the place in a replay */
    int32_t replays, reserved;
} tsi_stream_log;

/* References of layouts that tensors gave back, for the next tensors of the same layout: counts
 * that all ranks of a process share are not touched by every call. */
enum { TSI_SPARE_LAYOUTS = 16 };
typedef struct tsi_spare_layout {
    const ts_layout *layout; /* retained `count` times */
    int64_t count;
} tsi_spare_layout;

typedef struct tsi_tensor_state { /* of one rank, in TSI_SLOT_TENSOR */
    ts_rank *rank;
    tsi_frame *frame;
    int64_t frame_count, frame_capacity;
    uint64_t mark_last;
    tsi_undo *undo;
    int64_t undo_count, undo_capacity;
    ts_tensor *ended_first, *ended_last; /* bodies to use again, the oldest first; by next */
    int64_t ended_count, ended_kept;     /* how many there are, and are never used again */
    struct tsi_slab *slabs;              /* all bodies of the rank; the first has fresh ones */
    struct tsi_slab *reserve;            /* slabs for later */
    tsi_spare_layout spare[TSI_SPARE_LAYOUTS];
    tsi_move *moves;                  /* in flight, which nobody waits for or writers ask; reaped */
    tsi_map meshes;                   /* tsi_mesh_desc -> ts_mesh of this rank */
    tsi_map ordinals;                 /* label hash -> tsi_ordinal */
    tsi_map unions;                   /* pair of meshes -> tsi_union */
    struct tsi_program *program[256]; /* compiled plans, by plan (program.h) */
    uint32_t program_clock;
    uint32_t slab_count;     /* made so far; UINT32_MAX: what the root scope has was told */
    tsi_stream_log *streams; /* the innermost, or NULL */
    tsi_arena scratch;       /* of one call */
    tsi_move *spare_moves;   /* bodies to use again, by next */
    int64_t spare_move_count;
} tsi_tensor_state;

/* ---- news (base/observe.h) ------------------------------------------------------------------- */
typedef struct tsi_filled {
    ts_tensor *made;
    const char *how;      /* "zeros", "randn", "from" */
    ts_tensor *const *of; /* what it was computed from; (optional) entries may be NULL */
    int32_t of_count;
} tsi_filled;
typedef struct tsi_moved {
    ts_tensor *from, *to;
    int32_t implicit; /* by an operator for itself: the call that follows speaks for it */
} tsi_moved;
typedef struct tsi_message {
    ts_tensor *tensor;
    int32_t received; /* else sent */
} tsi_message;
typedef struct tsi_closed {
    ts_rank *rank;
    uint64_t mark; /* of the scope */
} tsi_closed;

/* ---- state ----------------------------------------------------------------------------------- */
tsi_tensor_state *tsi_tensor_state_of(ts_rank *rank); /* NULL: recorded */
/* Enter of a maker: the rank if it is healthy and this thread's, else NULL (recorded). */
ts_rank *tsi_tensor_enter(const ts_tensor *t, const char *operator_name);
/* Fails because the tensor, which `format` names ("add: input 1"), has no layout: it ended, or is a
 * variable without a value. */
ts_status tsi_tensor_refuse(const ts_tensor *t, const char *format, ...) TS_PRINTF(2, 3);
/* May the block be written? Not if its memory was given as read-only, nor where one element stands
 * for several; `format` as above. Whoever writes into the block of a tensor that he did not make
 * asks first. Where other ranks read the memory too (tsi_storage.ask) this waits for them, or gives
 * the tensor a block of its own. */
ts_status tsi_tensor_writable(const ts_tensor *t, const char *format, ...) TS_PRINTF(2, 3);

/* ---- tensors --------------------------------------------------------------------------------- */
/* A new tensor of the innermost scope; takes `array` and, if set, `move` (also on failure). */
ts_tensor *tsi_tensor_make(ts_mesh *mesh, const ts_layout *layout, ts_dtype dtype,
                           tsi_array *array /* takes */, tsi_move *move /* takes */);
/* A fresh block for the layout on this rank, tagged as an activation. */
tsi_array *tsi_tensor_block(ts_mesh *mesh, const ts_layout *layout, ts_dtype dtype);
tsi_array *tsi_tensor_block_tagged(ts_mesh *mesh, const ts_layout *layout, ts_dtype dtype,
                                   uint32_t tag);
const ts_sharding *tsi_sharding_replicated(tsi_mesh_desc *mesh); /* R on every axis, retained */
/* The layout of (mesh, placements, shape), retained; NULL: recorded. */
const ts_layout *tsi_tensor_layout_of(ts_mesh *mesh, const char *placements, ts_shape shape);
enum { TSI_EMPTY_TEXT = 512 };
/* What a variable without storage is, for a sentence: a parameter by its full name. */
const char *tsi_tensor_empty_text(const ts_tensor *t, char *out, size_t size);
ts_status tsi_tensor_ready(ts_tensor *t); /* waits for what is on its way */
void tsi_tensor_unbind(ts_tensor *t);     /* forgets layout, block and move */
/* The variable has this value from now on; an undo brings the former one back. */
void tsi_tensor_bind(ts_tensor *variable, ts_mesh *mesh, const ts_layout *layout, ts_dtype dtype,
                     tsi_array *array /* takes */, tsi_move *move /* takes */);
/* References of the library's own; the public forms count the program's. */
ts_tensor *tsi_tensor_retain(ts_tensor *t); /* accepts NULL */
void tsi_tensor_release(ts_tensor *t);      /* accepts NULL */
ts_tensor *tsi_variable(ts_rank *rank);     /* one reference, the library's; NULL: recorded */
/* *out: what the variable shows now, under a handle of its own, retained; NULL: nothing. */
ts_status tsi_variable_value(const ts_tensor *variable, ts_tensor **out);
void tsi_tensor_posted(ts_rank *rank, tsi_post *post); /* run of a body's post */
void tsi_spare_layouts_release(tsi_tensor_state *state);
/* ts_redistribute_many, its new blocks counted under a tag of the pool. */
ts_status tsi_redistribute_tagged(ts_tensor *const *x, const ts_sharding *const *to, int32_t count,
                                  uint32_t tag, ts_tensor **out);
/* Observers are told: y is x in another layout; `implicit` as in tsi_moved. */
static inline void tsi_tensor_moved(ts_tensor *x, ts_tensor *y, bool implicit)
{
    if (y) tsi_tell(x->rank, TSI_NEWS_MOVE, &(tsi_moved){ x, y, implicit });
}
void tsi_tensor_undo_push(ts_rank *rank, const tsi_undo *entry /* takes its references */);

/* ---- meshes of a rank ------------------------------------------------------------------------ */
/* The rank's handle on a described mesh, kept for the rank's life; borrowed. NULL: recorded. */
ts_mesh *tsi_mesh_of(ts_rank *rank, tsi_mesh_desc *desc);
/* The group of the axes in the mask, in the mesh's order; borrowed. NULL: recorded. */
ts_group *tsi_mesh_axes_group(ts_mesh *mesh, uint32_t axes);
/* Before the engine goes: the groups of one handle are released. A visitor of tsi_mesh_each. */
void tsi_mesh_groups_drop(ts_mesh *mesh, void *context);

/* ---- agreement ------------------------------------------------------------------------------- */
/* [coll] over the group: every member says whether its own check passed (complaint NULL or "") and
 * a hash of what all must have said alike. All members return the same status; the sentence names
 * the first rank that complained, or the first that differs from member 0. A complaint is
 * TS_ERR_SHAPE, or what its rank calls `bad`. */
ts_status tsi_agree(ts_group *group, const char *what, const char *complaint, uint64_t hash);
ts_status tsi_agree_on(ts_group *group, const char *what, ts_status bad, const char *complaint,
                       uint64_t hash);

/* ---- random streams (random.c) --------------------------------------------------------------- */
/* The stream of the next draw: of the name, or of the scope's label and the ordinal of the draw in
 * it. */
uint64_t tsi_random_stream(ts_rank *rank, const char *name);
/* Where a step is recorded: the scope drew `stream`, and a draw of the label with this hash was
 * undone. Failures are recorded. (kept_draw.c) */
void tsi_keep_draw(ts_rank *rank, uint64_t stream);
void tsi_keep_undraw(ts_rank *rank, uint64_t label);

#endif
