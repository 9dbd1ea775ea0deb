/* SPDX-License-Identifier: Apache-2.0 */
/* parallel.h - sharded data parallelism: parameters lie cut over the ranks that cut the batch.
 *
 *   between uses        rank 0 [ w0 ]   rank 1 [ w1 ]        what optimisers and files see
 *   while a unit runs   rank 0 [ w0 w1 ]  rank 1 [ w0 w1 ]   what its operators see
 *   after its backward  rank 0 [ g0 ]   rank 1 [ g1 ]        summed over all ranks
 *
 * A unit is what is gathered and reduced together: the parameters of a module (or of several) that
 * no unit below it has. Nothing of the model changes: handles, names, shapes and global values of
 * parameters stay; only where their elements lie does. Gradients are reduced over every axis on
 * which they are partial at once, folded in rank order: over an axis `replicate` beside `fsdp`
 * (copies of the shards), over `tp` where a weight is used on pieces of a sequence. See
 * docs/parallel.md. */
#ifndef TESSERA_PARALLEL_H
#define TESSERA_PARALLEL_H

#include "nn.h"

/* What becomes of gathered parameters between a unit's forward and its backward. A number of 2 and
 * more: a shard over groups of so many neighbours is kept, which backward gathers from. */
typedef enum ts_reshard {
    TS_RESHARD_AUTO = 0, /* they go, but for the unit whose backward comes first, and the root */
    TS_RESHARD_YES = -1, /* they go, and are gathered again */
    TS_RESHARD_NO = -2   /* they stay */
} ts_reshard;

enum { TS_FSDP_WHOLE = -1, TS_FSDP_IGNORE = -2 };
/* Along which dim a parameter is cut; TS_FSDP_WHOLE: it is not, but reduced with its unit;
 * TS_FSDP_IGNORE: the unit has nothing to do with it. `otherwise` is what is done without it. */
typedef int32_t (*ts_fsdp_dim_fn)(const char *name, ts_shape shape, int32_t otherwise,
                                  void *context);

/* Which axes cut a parameter, by name: "fsdp"; NULL: those of the unit. Experts that lie cut over
 * some of the axes that cut the rest are one case. */
typedef const char *(*ts_fsdp_axes_fn)(const char *name, ts_shape shape, void *context);

/* Another way for what a unit moves: every x[i] in the layout to[i] on its mesh, as out[i], a
 * tensor of the innermost scope; ts_redistribute_many is what is done without it. All ranks call it
 * with the same lists. */
typedef ts_status (*ts_fsdp_move_fn)(ts_tensor *const *x, const ts_sharding *const *to,
                                     int32_t count, ts_tensor **out, void *context);

typedef struct ts_fsdp_options {
    size_t struct_size;
    const char *axes;   /* that cut; NULL: "fsdp", with "cp" where the mesh has both; without such
                           an axis nothing is cut, and gradients are reduced by units */
    ts_fsdp_dim_fn dim; /* (optional) default: the first dim that all ranks get equal parts of */
    void *dim_context;
    int32_t reshard;      /* a ts_reshard, or a number of ranks */
    int32_t compute;      /* dtype in which operators see real parameters; 0: their own */
    int32_t compute_ndim; /* parameters of fewer dims keep theirs */
    int32_t reduce;       /* dtype in which gradients are added up; 0: that of the parameter */
    int32_t prefetch_off; /* 1: no unit is gathered before it is needed; 2: and its gradients are
                             reduced before the next one computes: two units of memory at most,
                             one that is gathered and its gradients, and nothing overlaps */
    int32_t unused;       /* 1: ranks may use different parameters of a unit: which are used is
                             agreed on in each backward, and who did not use one adds zeros */
    /* (optional) For gathers, of shards or their mirrors to what operators see; for reductions, of
     * gradients to their shards: the unit does not do them itself. */
    ts_fsdp_move_fn gather_fn, reduce_fn;
    void *move_context;
    int32_t output;       /* dtype of real outputs of the unit's modules; 0: as they come */
    int32_t cast_inputs;  /* 1: real inputs of its modules are cast to `compute` */
    uint64_t keep_inputs; /* bit i: input i is not */
    /* (optional) Parameters of other axes are gathered and reduced beside the others, in rounds of
     * their own that are under way together. Where `reshard` is a number they go after forward. */
    ts_fsdp_axes_fn axes_fn;
    void *axes_context;
} ts_fsdp_options;

/* What may be changed at any time between two calls, of all units below a module. */
typedef enum ts_fsdp_switch {
    TS_FSDP_ALL_REDUCE,       /* 0: gradients are summed over the cutting axes alone, the rest when
                                 it is 1 again; default 1 */
    TS_FSDP_RESHARD_FORWARD,  /* a ts_reshard */
    TS_FSDP_RESHARD_BACKWARD, /* 0: parameters stay gathered for the next forward; default 1 */
    TS_FSDP_TIMES,            /* 1: host_ns and waited_ns of the statistics are counted, of the
                                 whole tree; default 0 */
    TS_FSDP_SWITCH_COUNT
} ts_fsdp_switch;

typedef struct ts_fsdp_stats { /* of this rank, of all units below a module, since it was made */
    size_t struct_size;
    int64_t units, parameters;
    int64_t gathers, reductions; /* exchanges, each of a whole unit */
    int64_t prefetched;          /* gathers that were under way when their unit was called */
    int64_t dropped;             /* gathers that nobody wanted */
    int64_t orders;              /* times that the order of units was another than expected */
    int64_t written_back;        /* parameters that were changed while they were gathered */
    int64_t calls;               /* of units, in both directions */
    int64_t host_ns; /* with TS_FSDP_TIMES: processor time of this rank's thread in the schedule of
                        them, but for waiting */
    int64_t
        fences; /* of gathers without a copy: rounds in which ranks told that they had written */
    int64_t waited_ns; /* with TS_FSDP_TIMES: the rest of the time there: for peers, for what they
                          send, for a core that moves it, and what the clocks take */
} ts_fsdp_stats;

TS_BEGIN_C

/* [any] Real defaults, after which every number is meant as it stands (types.h). */
TS_API void ts_fsdp_options_init(ts_fsdp_options *options);

/* Makes a unit of the module: inner modules before outer ones, before or after the tree is
 * materialised. A module that is a unit already, or has no parameters of its own left, is refused.
 * So is, when it is called under a tape, one with trained parameters whose call records nothing:
 * backward would not reach it (`unused`: it may be so).
 * recorded [coll] after materialising */
TS_API ts_status ts_fsdp(ts_module *m, const ts_fsdp_options *options);
/* One unit of several modules: gathered when the first of them is called, let go after the last. */
TS_API ts_status ts_fsdp_together(ts_module *const *m, int32_t count,
                                  const ts_fsdp_options *options);
/* Starts gathering the unit that the module is, and lets go of it again: for entry points other
 * than calls. Between the two its parameters are whole. recorded [coll] */
TS_API ts_status ts_fsdp_gather(ts_module *m);
TS_API ts_status ts_fsdp_release(ts_module *m);
/* Units to gather while this one computes, instead of the one that the order says comes next: in
 * forward, and in backward where `backward` is 1; count 0: as without it. All of them are units of
 * one tree. recorded */
TS_API ts_status ts_fsdp_prefetch(ts_module *m, ts_module *const *next, int32_t count,
                                  int32_t backward);
/* "auto", "yes", "no", or a number of ranks. */
TS_API TS_NODISCARD ts_status ts_reshard_parse(const char *text, int32_t *out);
TS_API ts_status ts_fsdp_set(ts_module *root, ts_fsdp_switch what, int32_t value); /* recorded */
/* Of all units of the tree that the module is in; zeros where it has none below. recorded */
TS_API ts_status ts_fsdp_statistics(ts_module *root, ts_fsdp_stats *out);

TS_END_C
#endif
