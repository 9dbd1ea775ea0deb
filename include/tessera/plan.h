/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h - how a tensor gets from one layout to another, before anything moves.
 *
 * A plan is a value: a pure function of (source layout, target layout, dtype, topology, options),
 * the same on every rank. Two families compete under one cost model:
 *
 *   collectives   a shortest path over placements: all_gather, reduce_scatter, all_reduce,
 *                 all_to_all and slices, on one axis or on several axes merged into one group
 *   direct        every rank receives exactly the elements it lacks, each from the cheapest owner;
 *                 terms of partial sources are combined at owners that need the result.
 *                 `hierarchical` is the same with every element entering a node once
 *
 * The plan `auto` chooses never receives more bytes than the best sequence of collectives, and of
 * such plans it is the one with the least predicted time. Source and target may lie on different
 * meshes of one world: then only the direct family applies. Bytes are counted by information (all
 * ranks together, no padding, what a rank copies to itself is not counted). All functions here are
 * local and may be called by any thread. */
#ifndef TESSERA_PLAN_H
#define TESSERA_PLAN_H

#include "layout.h"

typedef struct ts_plan ts_plan; /* counted, never changed after it is made */

/* ---- topologies: what the cost model knows about the machine -------------------------------- */
enum { TS_TOPOLOGY_LEVELS = 4, TS_TOPOLOGY_AXES = 8, TS_TOPOLOGY_NAME = 32 };

/* How the latency of a collective grows with the size n of its group. */
typedef enum ts_topology_hops {
    TS_HOPS_RING, /* n - 1 */
    TS_HOPS_LOG,  /* ceil(log2 n) */
    TS_HOPS_FLAT, /* 1 */
    TS_HOPS_TREE  /* n - 1; a sum goes up and down a tree where that is faster: 2 ceil(log2 n) */
} ts_topology_hops;

/* One level of the machine, the innermost first: `ranks` consecutive world ranks are one unit of
 * it. */
typedef struct ts_topology_level {
    char name[TS_TOPOLOGY_NAME];
    int64_t ranks;          /* in one unit; 0: everything that is left */
    double latency_us;      /* of one hop or one message */
    double bandwidth_gib_s; /* that one rank can receive with */
    double total_gib_s;     /* shared by the ranks of one unit; 0: no limit */
} ts_topology_level;

/* Measured values of one mesh axis, by name; they take the place of the axis's level. */
typedef struct ts_topology_axis {
    char name[TS_TOPOLOGY_NAME];
    double latency_us, bandwidth_gib_s;
} ts_topology_axis;

typedef struct ts_topology { /* an open value; begin with a preset and change what was measured */
    size_t struct_size;
    char name[TS_TOPOLOGY_NAME];
    double base_us;       /* of any collective */
    double all_to_all_us; /* more, for an all_to_all */
    double exchange_us;   /* more, for each round of a direct exchange */
    double copy_gib_s;    /* strided copies of one rank; 0: free */
    double reduce_gib_s;  /* combining of one rank; 0: free */
    double shared_gib_s;  /* copies and combining of all ranks of an innermost unit; 0: no limit */
    int32_t hops;         /* ts_topology_hops */
    int32_t level_count, axis_count, reserved;
    ts_topology_level level[TS_TOPOLOGY_LEVELS];
    ts_topology_axis axis[TS_TOPOLOGY_AXES];
    double local_us; /* of a step that meets nobody */
    double run_us;   /* more, for each of the contiguous runs that a strided block is made of */
    /* FLOP/s of one rank's products, in 1e9: of f32 (f64: half of it), of 2 bytes. What hides
     * communication is weighed by them. 0: 20, and those of 2 bytes as f32's. */
    double product_gflops, product_half_gflops;
} ts_topology;

/* ---- options -------------------------------------------------------------------------------- */
enum { /* ts_plan_options.forbid */
       TS_PLAN_NO_COLLECTIVES = 1,
       TS_PLAN_NO_DIRECT = 2,
       TS_PLAN_NO_HIERARCHICAL = 4,
       TS_PLAN_NO_MERGED = 8 /* collectives on one axis at a time only */
};

typedef struct ts_plan_options {
    size_t struct_size;
    const char *planner;         /* "auto" (NULL), "collectives", "direct", "greedy", "graph" */
    const ts_topology *topology; /* NULL: the world's */
    int64_t budget_bytes;        /* extra memory of a rank beside source and target; 0: no limit */
    uint32_t forbid;             /* TS_PLAN_NO_... */
    int32_t
        staged; /* 1: the engine packs what it sends and receives, which counts as extra memory */
} ts_plan_options;

/* ---- what a plan says ----------------------------------------------------------------------- */
typedef enum ts_plan_family {
    TS_PLAN_NONE,  /* every element is where it is wanted */
    TS_PLAN_LOCAL, /* every rank has what it needs: slices and fills only */
    TS_PLAN_COLLECTIVES,
    TS_PLAN_DIRECT,
    TS_PLAN_HIERARCHICAL
} ts_plan_family;

typedef enum ts_step_kind {
    TS_STEP_SLICE,     /* local: keep a part */
    TS_STEP_PARTITION, /* local: replicated to partial, the owner keeps */
    TS_STEP_ALL_GATHER,
    TS_STEP_ALL_REDUCE,
    TS_STEP_REDUCE_SCATTER,
    TS_STEP_ALL_TO_ALL,
    TS_STEP_EXCHANGE,       /* direct: each rank gets what it lacks */
    TS_STEP_REDUCE_EXCHANGE /* direct: terms to owners, results to the rest */
} ts_step_kind;

typedef struct ts_plan_step { /* may grow at the end */
    size_t struct_size;
    int32_t kind;  /* ts_step_kind */
    uint32_t axes; /* bit k: axis k of the (source) mesh takes part */
    int64_t bytes_received;
    double time_us;
} ts_plan_step;

typedef struct ts_plan_summary { /* may grow at the end */
    size_t struct_size;
    int32_t family; /* ts_plan_family */
    int32_t step_count;
    int64_t bytes_received, bytes_bound;
    int64_t peak_bytes;    /* extra memory beside source and target, the largest of any rank */
    double time_us;        /* predicted */
    int32_t other_family;  /* what lost; TS_PLAN_NONE: nothing else was considered */
    int32_t other_bounded; /* 1: other_us is only a lower bound (the search stopped there) */
    double other_us;
    int64_t other_bytes; /* -1: not known */
    int64_t states;      /* placement states the search looked at */
    int64_t rounds;      /* of a direct exchange */
} ts_plan_summary;

/* A strided block of a rank's target array that it receives in a direct exchange. */
typedef struct ts_plan_block { /* may grow at the end */
    size_t struct_size;
    int64_t round, from, to; /* world ranks; from == to: the rank's own term of a reduction */
    int32_t folds;           /* 1: a further term of the block before it */
    int32_t ndim;
    int64_t offset; /* in elements, as the strides */
    int64_t extent[TS_NDIM_MAX], stride[TS_NDIM_MAX];
} ts_plan_block;
typedef void (*ts_plan_block_fn)(const ts_plan_block *block, void *context);

typedef struct ts_plan_cache_stats {
    int64_t live, capacity, hits, misses, evicted;
} ts_plan_cache_stats;

TS_BEGIN_C

/* [any] Real defaults, after which every number is meant as it stands (types.h). */
TS_API void ts_plan_options_init(ts_plan_options *options);

/* Names: "auto" is the default; see the enums. Never NULL. */
TS_API const char *ts_plan_family_name(ts_plan_family family);
TS_API const char *ts_step_kind_name(ts_step_kind kind);

/* Presets: reference-cpu, 8xh100, 8xh200, torus, ethernet, threads, cluster. */
TS_API TS_NODISCARD ts_status ts_topology_preset(const char *name, ts_topology *out);
/* The JSON form (docs/planning.md). A name without '{' is a preset, or else the path of a file. */
TS_API TS_NODISCARD ts_status ts_topology_parse(const char *text, ts_topology *out);
TS_API TS_NODISCARD ts_status ts_topology_load(const char *preset_or_path, ts_topology *out);
TS_API TS_NODISCARD ts_status ts_topology_save(const ts_topology *topology, const char *path);
TS_API size_t ts_topology_json(const ts_topology *topology, char *out,
                               size_t size); /* like snprintf */
/* The world's topology: what plans use unless told otherwise; at first what ts_world_options says,
 * or `threads` on one node and, with the nodes that the engine found, `cluster` or 8xh100 (GPUs) on
 * several. Setting it starts a new generation of
 * plans and must be done alike in every process. */
TS_API ts_status ts_topology_of(ts_world *world, ts_topology *out);
TS_API ts_status ts_topology_set(ts_world *world, const ts_topology *topology);

/* A plan, held by the caller. Refused with a sentence: shapes that differ, transitions without a
 * meaning (shard to partial, one partial to another), reductions the dtype has not, an unknown
 * planner (with the nearest name), a budget that no plan can keep. `options` may be NULL. */
TS_API TS_NODISCARD ts_status ts_plan_create(const ts_layout *src, const ts_layout *dst,
                                             ts_dtype dtype, const ts_plan_options *options,
                                             ts_plan **out);
/* The same through the world's cache. The plan is held, too. */
TS_API TS_NODISCARD ts_status ts_plan_cached(const ts_layout *src, const ts_layout *dst,
                                             ts_dtype dtype, const ts_plan_options *options,
                                             ts_plan **out);
TS_API ts_plan *ts_plan_retain(ts_plan *plan);
TS_API void ts_plan_release(ts_plan *plan); /* accepts NULL */

TS_API void ts_plan_summarise(const ts_plan *plan, ts_plan_summary *out); /* set struct_size */
TS_API const ts_layout *ts_plan_source(const ts_plan *plan);              /* getter */
TS_API const ts_layout *ts_plan_target(const ts_plan *plan);              /* getter */
TS_API ts_dtype ts_plan_dtype(const ts_plan *plan);
TS_API const char *ts_plan_planner(const ts_plan *plan);
TS_API ts_status ts_plan_step_at(const ts_plan *plan, int32_t index, ts_plan_step *out);
/* Texts, like snprintf: placements before and after a step; the sentence why; the whole plan for a
 * person; the fields of `tessera plan` as one JSON object; the states as "S(0)R->RR" ("-->" where
 * axes are merged). */
TS_API size_t ts_plan_step_from(const ts_plan *plan, int32_t index, char *out, size_t size);
TS_API size_t ts_plan_step_to(const ts_plan *plan, int32_t index, char *out, size_t size);
TS_API size_t ts_plan_why(const ts_plan *plan, char *out, size_t size);
TS_API size_t ts_plan_text(const ts_plan *plan, char *out, size_t size);
TS_API size_t ts_plan_json(const ts_plan *plan, char *out, size_t size);
TS_API size_t ts_plan_trace(const ts_plan *plan, char *out, size_t size);

/* What one world rank receives, block by block in order, if the plan is a direct exchange (nothing
 * otherwise). The work is that rank's own messages, however many ranks there are. */
TS_API ts_status ts_plan_receives(const ts_plan *plan, int64_t rank, ts_plan_block_fn visit,
                                  void *context);

TS_API ts_status ts_plan_cache_statistics(ts_world *world, ts_plan_cache_stats *out);
TS_API ts_status ts_plan_cache_clear(ts_world *world);

TS_END_C
#endif
