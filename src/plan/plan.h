/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h - the body of a plan, and one rank's part of a direct exchange.
 *
 * A plan holds its layouts and knows no rank, no address and no time of day; equal questions give
 * equal plans on every rank. A collective step goes from one state to the next
 * (tsi_plan_step_layouts interns them for an executor); a direct plan is executed from
 * tsi_plan_part, which any rank computes for itself. */
#ifndef TSI_PLAN_PLAN_H
#define TSI_PLAN_PLAN_H

#include <stdatomic.h>

#include "plan/exchange.h"
#include "plan/path.h"

typedef enum tsi_planner {
    TSI_PLANNER_AUTO,
    TSI_PLANNER_COLLECTIVES,
    TSI_PLANNER_DIRECT,
    TSI_PLANNER_GREEDY,
    TSI_PLANNER_GRAPH,
    TSI_PLANNER_COUNT
} tsi_planner;

/* Why this family: the sentence is written when somebody asks (render.c). */
typedef enum tsi_why {
    TSI_WHY_SAME,        /* nothing to do */
    TSI_WHY_LOCAL,       /* every rank has what it needs */
    TSI_WHY_NAMED,       /* the caller named the planner */
    TSI_WHY_OTHER_MESH,  /* two meshes: only direct */
    TSI_WHY_SPANS,       /* a cut over several dims: only direct */
    TSI_WHY_WHOLE,       /* averages of integers over several axes: only direct */
    TSI_WHY_FORBIDDEN,   /* the other family was forbidden */
    TSI_WHY_BUDGET,      /* the other family needs too much memory */
    TSI_WHY_FASTER,      /* least time */
    TSI_WHY_FEWER_BYTES, /* the faster sequence of collectives moves more bytes */
    TSI_WHY_UNPROVED     /* the search stopped before it could prove a sequence better */
} tsi_why;

struct ts_plan {
    _Atomic int64_t references;
    const ts_layout *src, *dst; /* retained */
    int32_t dtype, planner;     /* ts_dtype, tsi_planner */
    int32_t family, why;        /* ts_plan_family, tsi_why */
    uint32_t forbid;
    int32_t staged;
    int64_t budget_bytes;
    char topology[TS_TOPOLOGY_NAME];
    int32_t has_space, step_count;
    tsi_path_step *step; /* owned */
    tsi_state first;     /* state before step 0 */
    int64_t bytes_received, bytes_bound, peak_bytes, states;
    double time_us;
    int32_t other_family, other_bounded;
    double other_us;
    int64_t other_bytes;
    int64_t grid[TS_NDIM_MAX]; /* rounds per joint dim: each message is cut into so many pieces */
    tsi_links links;
    tsi_pair pair;   /* points to links and layouts of this plan */
    tsi_space space; /* one mesh only */
};

/* ---- for executors -------------------------------------------------------------------------- */
/* Layouts before and after a collective step, interned and retained. */
ts_status tsi_plan_step_layouts(const ts_plan *plan, int32_t index, const ts_layout **from,
                                const ts_layout **to);

/* The layout of one state of the plan's mesh, interned and retained. */
ts_status tsi_plan_state_layout(const ts_plan *plan, tsi_state state, const ts_layout **out);

typedef enum tsi_piece_array { TSI_PIECE_SOURCE, TSI_PIECE_TARGET } tsi_piece_array;

/* One strided block of a local array, sent to or received from a peer. Within a round, the elements
 * of all pieces that one rank sends to another, in list order and row-major each, are those of the
 * pieces the other receives from it; the pieces themselves may be cut differently. */
typedef struct tsi_piece {
    int64_t peer;  /* world rank; reductions: may be the rank itself (its own term, in its place) */
    int32_t array; /* tsi_piece_array; what is received always goes to the target */
    int32_t combine; /* receives: 1: folds into the block of the piece before it */
    int32_t ndim, reserved;
    int64_t offset; /* elements */
    int64_t extent[TS_NDIM_MAX], stride[TS_NDIM_MAX];
} tsi_piece;

typedef struct tsi_round {
    tsi_piece *send, *recv;
    int64_t send_count, recv_count;
    int64_t elements_sent, elements_received; /* without what goes to the rank itself */
    int32_t
        reduces; /* receives of this round fold; then `recv` blocks without combine are results */
    int32_t reserved;
} tsi_round;

typedef struct tsi_part {
    tsi_round *round;
    int64_t round_count;
    tsi_box *local; /* copies: a is the source array, b the target array */
    int64_t local_count;
    int64_t local_elements;
    int32_t fill;   /* 1: this rank's target is the identity of the target's partial everywhere */
    int32_t reduce; /* ts_reduce of folding rounds (0: none); norms: SUM */
    double power;   /* not 0: terms are |x|^power before folding, the result is x^(1/power) after */
    int64_t
        avg_count; /* of AVG: what the sum of the terms is divided by (not all need be averages) */
} tsi_part;

/* What a world rank does, from the arena. A rank of neither mesh gets an empty part. */
ts_status tsi_plan_part(const ts_plan *plan, int64_t rank, tsi_arena *arena, tsi_part *out);
/* Largest number of bytes that one round makes a rank send and receive. */
ts_status tsi_part_volume(const ts_plan *plan, int64_t rank, tsi_arena *arena, int64_t *most);

/* ---- making (plan.c, check.c) --------------------------------------------------------------- */
ts_status tsi_plan_check(const ts_layout *src, const ts_layout *dst, ts_dtype dtype);
/* Refuses partials that the dtype cannot be reduced by, or that do not mix. */
ts_status tsi_partials_check(const ts_layout *layout, ts_dtype dtype);
ts_status tsi_plan_make(const ts_layout *src, const ts_layout *dst, ts_dtype dtype,
                        const ts_plan_options *options, const ts_topology *topology, ts_plan **out);
/* account.c: bytes of all steps (into the path) and their sum; memory of the arrays between source
 * and target. */
ts_status tsi_path_account(const ts_plan *plan, tsi_path *path, int64_t *bytes, int64_t *peak);
/* A step's time under the plan's links, for paths that were not searched for. */
double tsi_path_step_time(const ts_plan *plan, tsi_state from, const tsi_path_step *step);
ts_status tsi_planner_parse(const char *name, tsi_planner *out);
extern const char *const tsi_planner_names[]; /* NULL-terminated */

#endif
