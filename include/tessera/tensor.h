/* SPDX-License-Identifier: Apache-2.0 */
/* tensor.h - distributed tensors: making them, moving them, reading them.
 *
 * Every tensor is distributed: a global shape and dtype, a mesh, a placement per axis, and this
 * rank's block. On a rank outside the mesh a tensor is absent: a handle that is not NULL, with an
 * empty block. makers return NULL on failure and take NULL for "failed before" (world.h).
 * Placements are text, "S(0), R" by position or "dp:S(0)" by name; NULL means replicated on every
 * axis.
 *
 * Movement is asynchronous: a tensor that is still on its way completes on first use. */
#ifndef TESSERA_TENSOR_H
#define TESSERA_TENSOR_H

#include "layout.h"
#include "scope.h"

struct DLManagedTensorVersioned; /* of dlpack.h, version 1 */

/* The value of one element, for ts_from_function: writes one element of the tensor's dtype. Another
 * status than TS_OK ends the call, which fails with it and names the element; the function may have
 * said why with ts_rank_fail. */
typedef ts_status (*ts_element_fn)(const int64_t *global, void *element, void *context);

TS_BEGIN_C

/* ---- factories: makers, local. A partial placement is refused but by ts_empty. --------------- */
TS_API ts_tensor *ts_empty(ts_mesh *mesh, ts_dtype dtype, ts_shape shape, const char *placements);
/* Of another's mesh, shape, dtype and placements, pending ones too. The other *_like are operators
 * (op_pointwise.h, op_random.h). */
TS_API ts_tensor *ts_empty_like(ts_tensor *x);
TS_API ts_tensor *ts_zeros(ts_mesh *mesh, ts_dtype dtype, ts_shape shape, const char *placements);
TS_API ts_tensor *ts_ones(ts_mesh *mesh, ts_dtype dtype, ts_shape shape, const char *placements);
/* The fill value comes first, so that no two neighbours can be swapped. */
TS_API ts_tensor *ts_full(double value, ts_mesh *mesh, ts_dtype dtype, ts_shape shape,
                          const char *placements);
/* Whole numbers keep their 64 bits and wrap into narrower integers; complex ones need a complex
 * dtype. The tensor of a number (TS_SHAPE_SCALAR) is also how operators take one exactly. */
TS_API ts_tensor *ts_full_number(ts_number value, ts_mesh *mesh, ts_dtype dtype, ts_shape shape,
                                 const char *placements);
/* start + step * (row-major global index) */
typedef struct ts_arange_options {
    size_t struct_size;
    double start, step; /* step 0: 1, unless exact */
    int32_t exact;      /* 1: step is meant, 0 too */
    int32_t reserved;
} ts_arange_options;
TS_API void ts_arange_options_init(ts_arange_options *options);
TS_API ts_tensor *ts_arange(ts_mesh *mesh, ts_dtype dtype, ts_shape shape, const char *placements,
                            const ts_arange_options *options);
/* The same; whole numbers are added as integers of 64 bits, and wrap. No complex ones. */
TS_API ts_tensor *ts_arange_number(ts_number start, ts_number step, ts_mesh *mesh, ts_dtype dtype,
                                   ts_shape shape, const char *placements);

/* ---- random numbers by global index: the same bits on any mesh and placement (makers) -------- */
TS_API ts_tensor *ts_rand(ts_mesh *mesh, ts_dtype dtype, ts_shape shape, const char *placements);
TS_API ts_tensor *ts_randn(ts_mesh *mesh, ts_dtype dtype, ts_shape shape, const char *placements);
typedef struct ts_random_options {
    size_t struct_size;
    int64_t low, high; /* randint: low <= x < high */
    const char
        *stream; /* name of the stream; NULL: the scope's label and the ordinal of the draw in it */
    uint64_t seed;         /* read if seed_is_given, else the world's */
    int32_t seed_is_given; /* 1: `seed` counts, also if it is 0 */
    int32_t reserved;
} ts_random_options;
TS_API void ts_random_options_init(ts_random_options *options);
/* With a stream and a seed of one's own: the same numbers wherever and whenever they are drawn, on
 * any mesh of any world; the scope's own stream does not go on. */
TS_API ts_tensor *ts_rand_with(ts_mesh *mesh, ts_dtype dtype, ts_shape shape,
                               const char *placements, const ts_random_options *options);
TS_API ts_tensor *ts_randn_with(ts_mesh *mesh, ts_dtype dtype, ts_shape shape,
                                const char *placements, const ts_random_options *options);
TS_API ts_tensor *ts_randint(ts_mesh *mesh, ts_dtype dtype, ts_shape shape, const char *placements,
                             const ts_random_options *options);

/* ---- from memory ----------------------------------------------------------------------------- */
/* Of the caller's memory, on ts_mesh_self. With `done` set the memory is taken: `done` is called
 * once when nothing refers to it any more, on any thread; on failure it stays the caller's. */
TS_API ts_tensor *ts_from_memory(ts_rank *me, const ts_array *block);
/* One block per rank, no copy. [coll]: dtype, shape and every rank's block are checked against the
 * layout's rule and agreed on before anything else; one wrong block is an error on all ranks that
 * names it. A new tensor for tapes: no gradient goes through it to the block. */
TS_API ts_tensor *ts_from_local(ts_tensor *block, const ts_sharding *sharding, ts_shape shape);
/* The whole array on rank `root` of the mesh's members (row-major), sent as exactly the regions the
 * others hold. [coll]; `whole` is read at the root only. */
TS_API ts_tensor *ts_distribute(const ts_array *whole, const ts_sharding *sharding, ts_meta meta,
                                int64_t root);
TS_API ts_tensor *ts_from_function(ts_element_fn fn, void *context, const ts_sharding *sharding,
                                   ts_meta meta); /* maker, local */
/* Takes `managed`: its deleter is called once when nothing refers to the memory any more and the
 * rank's queue is done with it, on any thread; on failure (NULL) it stays the caller's. Given again
 * before that it is refused: it has one owner. Memory that
 * is flagged read-only is never written: in-place forms, updates, fills and loads into such a
 * tensor are refused. Memory of the rank's device is shared, the host's is shared on the cpu and
 * copied to any other device; what it holds is there when it is given. */
TS_API ts_tensor *ts_from_dlpack(ts_rank *me, struct DLManagedTensorVersioned *managed /* takes */);
/* The same, and what it holds is there when `stream` comes so far, a stream of its producer on the
 * rank's device (a CUstream; NULL: the default stream): the rank's queue waits, the host does not.
 */
TS_API ts_tensor *ts_from_dlpack_on(ts_rank *me, struct DLManagedTensorVersioned *managed /* takes
                                                                                           */
                                    ,
                                    void *stream);

/* ---- reading --------------------------------------------------------------------------------- */
/* Own block on ts_mesh_self, no copy; maker. A new tensor for tapes: no gradient goes through it.
 */
TS_API ts_tensor *ts_tensor_local(ts_tensor *t);
TS_API ts_tensor *ts_tensor_full(ts_tensor *t); /* maker [coll]; replicated on the same mesh */
/* recorded; waits; read only. The block where it lies: out->device says whether the host may read
 * it. data is NULL of one element that stands for all (a scalar that was expanded), which strides
 * of ts_array cannot say: read it. */
TS_API ts_status ts_tensor_view(ts_tensor *t, ts_array *out);
/* recorded; waits. A copy of this rank's block in host memory of the caller's, of the block's
 * shape, in any dtype. */
TS_API ts_status ts_tensor_read(ts_tensor *t, const ts_array *to);
TS_API ts_status ts_tensor_item(ts_tensor *t, double *out); /* recorded [coll]; NaN on failure */
/* The same with the 64 bits of a whole number; kind by the dtype: INT also of bool. */
TS_API ts_status ts_tensor_number(ts_tensor *t, ts_number *out); /* recorded [coll] */
/* Readable text of the whole tensor, elided in the middle when large, and cut where `size` ends.
 * recorded [coll] */
TS_API ts_status ts_tensor_text(ts_tensor *t, char *out, size_t size);
/* The block where it lies, on the host or on a device (kDLCUDA); waits. Whoever gets it calls the
 * deleter when nothing that he enqueued uses it any more. */
TS_API ts_status ts_tensor_dlpack(ts_tensor *t,
                                  struct DLManagedTensorVersioned **out); /* recorded */
/* The same without a wait of the host: `stream`, the consumer's (a CUstream; NULL: the default
 * stream), waits for what the rank's queue has now. */
TS_API ts_status ts_tensor_dlpack_on(ts_tensor *t, void *stream,
                                     struct DLManagedTensorVersioned **out); /* recorded */
TS_API ts_status ts_tensor_wait(ts_tensor *t); /* recorded; completes what is on its way */

TS_API const ts_layout *ts_tensor_layout(const ts_tensor *t); /* getter */
TS_API ts_mesh *ts_tensor_mesh(const ts_tensor *t);           /* getter */
TS_API ts_shape ts_tensor_shape(const ts_tensor *t);          /* getter; NULL: no dims */
TS_API ts_dtype ts_tensor_dtype(const ts_tensor *t);          /* getter */
TS_API ts_rank *ts_tensor_rank(const ts_tensor *t);           /* getter */

/* ---- lifetime -------------------------------------------------------------------------------- */
/* A handle whose tensor ended is refused by every call, with a sentence that names the call and the
 * scope that owned it (ts_world_options.handles_kept). None of these three aborts, whatever it is
 * given that was a tensor once. Releasing and dropping are for any thread at any time, also after
 * the world closed: what another thread than the rank's asks is done when the rank calls next, and
 * an error of it is said by that call. A release of what the caller does not own is such an error.
 */
TS_API ts_tensor *ts_tensor_retain(ts_tensor *t); /* the caller owns one more reference */
TS_API void ts_tensor_release(ts_tensor *t);      /* [any] gives one back; accepts NULL */
TS_API void ts_tensor_drop(ts_tensor *t); /* [any] ends a temporary early; never waits; accepts what
                                           * ended */
TS_API ts_tensor *ts_variable(ts_rank *me); /* maker; an empty stable handle, the caller's */
TS_API ts_status ts_tensor_write(ts_tensor *variable, ts_tensor *value); /* recorded; rebinds */

/* ---- moving: makers [coll] ------------------------------------------------------------------- */
typedef struct ts_move_options {
    size_t struct_size;
    const char *planner; /* "auto" (default), "collectives", "direct", "greedy", "graph" */
    const char *name;    /* in events and messages */
    int64_t budget;      /* extra bytes the move may use; 0: no limit */
    int32_t blocking;    /* 1: complete on return */
    int32_t reserved;
} ts_move_options;
TS_API void ts_move_options_init(ts_move_options *options);
TS_API ts_tensor *ts_redistribute(ts_tensor *x, const char *placements);
TS_API ts_tensor *ts_redistribute_to(ts_tensor *x, const ts_sharding *to); /* any mesh; hot path */
TS_API ts_tensor *ts_redistribute_with(ts_tensor *x, const ts_sharding *to,
                                       const ts_move_options *options);
/* Several tensors in common rounds; out receives count tensors, all NULL on failure. recorded */
TS_API ts_status ts_redistribute_many(ts_tensor *const *x, const ts_sharding *const *to,
                                      int32_t count, ts_tensor **out);
/* Changes the layout of a variable under its handle: its block is replaced when the move is
 * complete. Of a parameter, the state of an optimiser follows in its next step. recorded */
TS_API ts_status ts_tensor_relayout(ts_tensor *variable, const ts_sharding *to);

/* ---- neighbours on an axis ------------------------------------------------------------------- */
/* The step of a ring: each rank gets the block that the rank `hops` before it on the axis holds
 * (hops may be negative; the axis is a circle). The result is the same tensor on the mesh with the
 * ranks of that axis turned, so uneven shards need no padding, its layout says what a rank holds
 * now, and hops that add up to the axis' size lead back to the first mesh. Has a gradient. maker
 * [coll] */
TS_API ts_tensor *ts_shift(ts_tensor *x, const char *axis, int64_t hops);

enum { TS_PEER_CHANNELS = 2 };
typedef struct ts_peer {
    ts_mesh *mesh;
    const char *axis;
    int64_t offset;  /* the coordinate on the axis relative to this rank's; no circle, never 0 */
    int64_t channel; /* 0 or 1: sends and receives of a pair match in order, per channel */
} ts_peer;
/* This rank's block of x to a neighbour, whatever mesh x is on. Returns at once; x may be dropped.
 * Not recorded on tapes. recorded */
TS_API ts_status ts_send(ts_tensor *x, const ts_peer *to);
/* A tensor of that global shape and dtype, whose block on this rank comes from a neighbour; it
 * completes on first use. A block of another shape or dtype than the sender's is an error that
 * names both sides. maker */
TS_API ts_tensor *ts_recv(const ts_meta *what, const ts_sharding *as, const ts_peer *from);

TS_END_C

#define ts_redistribute(...) (ts_here(TS_HERE), ts_redistribute(__VA_ARGS__))
#define ts_redistribute_to(...) (ts_here(TS_HERE), ts_redistribute_to(__VA_ARGS__))
#define ts_redistribute_with(...) (ts_here(TS_HERE), ts_redistribute_with(__VA_ARGS__))
#define ts_redistribute_many(...) (ts_here(TS_HERE), ts_redistribute_many(__VA_ARGS__))
#define ts_from_local(...) (ts_here(TS_HERE), ts_from_local(__VA_ARGS__))
#define ts_distribute(...) (ts_here(TS_HERE), ts_distribute(__VA_ARGS__))
#define ts_tensor_full(...) (ts_here(TS_HERE), ts_tensor_full(__VA_ARGS__))
#define ts_shift(...) (ts_here(TS_HERE), ts_shift(__VA_ARGS__))
#define ts_send(...) (ts_here(TS_HERE), ts_send(__VA_ARGS__))
#define ts_recv(...) (ts_here(TS_HERE), ts_recv(__VA_ARGS__))
#define ts_tensor_item(...) (ts_here(TS_HERE), ts_tensor_item(__VA_ARGS__))

#endif
