/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch.h - plans of operator calls, their cache, and what a rank keeps for operators. */
#ifndef TSI_OP_DISPATCH_H
#define TSI_OP_DISPATCH_H

#include "base/intmath.h"
#include "op/core/kernel.h"

/* What one call does, on one rank: made once, found by key afterwards. */
typedef struct tsi_op_plan {
    /* ---- key */
    uint64_t hash;
    const tsi_op_desc *op;
    const ts_layout **in; /* retained; NULL: absent */
    uint8_t *in_dtype;
    void *given; /* attribute bytes as the caller gave them */
    uint32_t generation;
    int32_t input_count, in_place;
    /* ---- value */
    ts_mesh *mesh;            /* retained */
    void *attributes;         /* normalised */
    const ts_layout **wanted; /* retained; NULL: as it is */
    const ts_layout **via; /* retained; a shard becomes a term of a target in place by way of R */
    ts_meta *in_meta;
    int64_t *move_bytes;    /* per input, all ranks together; 0: free */
    tsi_region **in_region; /* NULL: whole */
    int32_t output_count, algorithm;
    uint32_t algorithm_axes;
    uint32_t used; /* for eviction */
    int32_t busy,
        loose; /* running now, so not to be evicted; not in the cache, freed after the run */
    const ts_layout **out; /* retained */
    ts_meta *out_meta;
    ts_shape *out_local;
    tsi_region **out_region;
    tsi_kernel_fn kernel; /* fast one, or NULL */
    int32_t matched;      /* chosen without a search: every input stays as it is */
    int32_t reserved;
    int64_t moved_total;     /* sum of move_bytes */
    int64_t algorithm_bytes; /* received by all ranks of the algorithm */
    /* ---- the short way: one output, nothing moves, nothing but the kernel runs */
    int32_t is_short, is_tiny; /* tiny: shorter than what the clock is worth */
    tsi_pool *pool;            /* of the rank */
    tsi_array model;           /* of the output; of a view: with the strides that came last */
    int64_t view_offset;       /* of a view, beyond its input's */
    int32_t view_known, reserved2;
    size_t out_bytes;
    tsi_operand *operand; /* inputs, then outputs; all but data and strides are filled in */
    tsi_kernel_io io;     /* ready but for the stream */
    tsi_arena memory;     /* of all arrays above */
} tsi_op_plan;

typedef struct tsi_op_record { /* what observers see of one call */
    const tsi_op_plan *plan;
    const void *attributes;
    ts_tensor *const *in;
    ts_tensor *const *out;
    uint64_t stream; /* RANDOM operators: to draw the same again */
    bool writes;     /* into tensors that were there before */
} tsi_op_record;

enum { TSI_OP_CACHE_SIZE = 2048, TSI_OP_CACHE_PROBE = 8, TSI_OP_RECENT_BITS = 10 };
typedef struct tsi_op_state { /* of one rank, in TSI_SLOT_OP */
    tsi_op_plan *cache[TSI_OP_CACHE_SIZE];
    /* Places in it, tried before anything is hashed; the upper half says which calls are meant. */
    uint32_t recent[1 << TSI_OP_RECENT_BITS];
    uint32_t clock;
    uint32_t generation; /* of rules; bumped by registration */
    int64_t hits, misses, matched, evicted, implicit_bytes, live;
    uint64_t stream_forced; /* recomputation: streams are taken from here instead */
    int32_t stream_is_forced;
    int32_t check_plans; /* compare plans with the other ranks before each call */
    int64_t event_ns;    /* end of the latest event of a tiny call */
    /* The clock of tiny calls: ticks since a look at the real one, at the rate between two looks.
     */
    uint64_t tick_base, tick_limit, tick_rate; /* rate: ns * 2^32 for one tick */
    int64_t tick_ns;
    double flops, flops_here;        /* of calls in a world without data: of all ranks together; of
                                        this rank's blocks */
    void *defaults[TSI_OP_ID_COUNT]; /* attributes of calls by name where none are said; NULL: not
                                        read yet */
} tsi_op_state;

/* What is planned: layouts and dtypes, no data. A mesh that is a description (no rank of this
 * process in it) is welcome: then nothing local is worked out. */
typedef struct tsi_op_request {
    const tsi_op_desc *op;
    ts_mesh *mesh;              /* where the call happens */
    const ts_layout *const *in; /* NULL: absent */
    const uint8_t *dtype;
    int32_t input_count, in_place;
    const void *attributes;
} tsi_op_request;

/* How a choice was made, for those who ask: the rules, what was taken on each axis, what lost. */
enum { TSI_STORY_OTHERS = 6 };
typedef struct tsi_op_choice {
    int32_t rule[TS_NDIM_MAX];
    double cost_us;
    const ts_sharding *out; /* of output 0, retained */
} tsi_op_choice;
typedef struct tsi_op_story {
    tsi_rules rules; /* count 0: a view, which has none */
    tsi_op_choice chosen, other[TSI_STORY_OTHERS];
    int32_t other_count, reserved;
    tsi_algorithm_choice algorithms; /* count 0: the operator has no choice of them */
} tsi_op_story;

tsi_op_state *tsi_op_state_of(ts_rank *rank); /* NULL: recorded */
/* All rules of a call on one axis; rules->arena is set by the caller. */
void tsi_op_rules(const tsi_op_call *call, tsi_rules *rules);
/* A plan that is not cached; the caller destroys it. `story` may be NULL; what it holds lives in
 * `scratch`. NULL: recorded. */
tsi_op_plan *tsi_op_plan_for(const tsi_op_request *request, tsi_arena *scratch,
                             tsi_op_story *story);
/* Layouts of a plan's operands, and its algorithm, from the metas that it has. */
ts_status tsi_op_choose(tsi_op_plan *plan, const tsi_op_call *call, tsi_arena *scratch,
                        tsi_op_story *story);
void tsi_op_story_release(tsi_op_story *story);
/* The plan of a call; cached. NULL: recorded. */
tsi_op_plan *tsi_op_plan_of(ts_rank *rank, const tsi_op_args *args);
/* A plan of a call that is not cached; the caller destroys it. */
tsi_op_plan *tsi_op_plan_make(ts_rank *rank, const tsi_op_args *args);
void tsi_op_plan_destroy(tsi_op_plan *plan);
/* Whether the policy of the innermost scope lets the plan move what it moves; recorded. */
ts_status tsi_op_policy(ts_rank *rank, const tsi_op_plan *plan);
/* Received by all ranks: moves of inputs and the algorithm's own. */
static inline int64_t tsi_op_plan_bytes(const tsi_op_plan *plan)
{
    return tsi_add_most(plan->moved_total, plan->algorithm_bytes);
}
/* User code may fail on some ranks and not on others where their blocks differ: then peers must be
 * told. */
TSI_COLD ts_status tsi_op_user_failed(const tsi_op_plan *plan, ts_rank *rank, ts_status status);
static inline ts_status tsi_op_run_kernel(const tsi_op_plan *plan, const tsi_kernel_io *io)
{
    ts_status status = tsi_kernel_run(plan->kernel, io);
    if (TSI_LIKELY(status == TS_OK || !(plan->op->flags & TSI_OP_USER))) return status;
    return tsi_op_user_failed(plan, io->rank, status);
}
/* A view of input 0 where the block allows; NULL: it does not. */
tsi_array *tsi_op_view_of(const tsi_op_plan *plan, ts_tensor *const *used);
/* The call by its plan, whatever that needs; outputs that are there are written into, of plans
 * without algorithm and view. (dispatch_long.c) */
ts_status tsi_op_run_long(ts_rank *rank, tsi_op_state *state, tsi_op_plan *plan,
                          const tsi_op_args *args, uint64_t stream, ts_tensor **out);
/* Its block in memory of its own, as a tensor of the innermost scope; NULL: recorded. */
ts_tensor *tsi_op_copy_of(ts_tensor *t);
/* Runs the kernel of a short plan on these inputs, `rounds` of 64 times; the best, in ns each. */
ts_status tsi_op_plan_time(tsi_op_plan *plan, ts_tensor *const *in, int64_t rounds, double *ns);

/* Is the call's first input on its way, and may the rows along *dim that are here be computed
 * before it has come? Then the kernel so. (arriving.c) */
bool tsi_op_arrives(const tsi_op_plan *plan, const ts_tensor *x, int32_t *dim);
ts_status tsi_op_run_arriving(const tsi_op_plan *plan, const tsi_kernel_io *io,
                              ts_tensor *const *in, tsi_array *const *result, int32_t dim);

/* [coll] over the plan's mesh. The sentence has the ranks that differ, and this rank's plan.
 * (check_plan.c) */
TSI_COLD ts_status tsi_op_check_plan(const tsi_op_plan *plan);

/* The algorithm of a plan on inputs that have come; where the rank keeps, by the second, which runs
 * it and keeps it (kept_algorithm.c). */
ts_status tsi_op_run_algorithm(ts_rank *rank, const tsi_op_plan *plan, ts_tensor *const *used,
                               ts_tensor **out);
ts_status tsi_op_keep_algorithm(ts_rank *rank, tsi_op_plan *plan, ts_tensor *const *used,
                                ts_tensor **out);

#endif
